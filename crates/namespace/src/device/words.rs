//! Which words of a command that everybody knows reach the device.
//!
//! A command has room for directives, placement, hints and tags, which steer a device beyond what is
//! read or written where. Where unknown commands are not to pass, neither are they.

use nvme::command::CHECKSUM;
use nvme::opcode::io as opcode;
use uring::NvmeUringCmd;

/// Command dword 12 of commands on a range (NVM 1.1, section 3.2 and 3.3): Number of Logical Blocks.
const BLOCKS: u32 = 0xffff;
/// The same: Deallocate, of Write Zeroes.
const DEALLOCATE: u32 = 1 << 25;
/// The same: Force Unit Access, and Limited Retry.
pub(super) const ACCESS: u32 = 1 << 30 | 1 << 31;
/// Dataset Management: Number of Ranges in dword 10; Deallocate and the two hints in dword 11.
const RANGES: u32 = 0xff;
const ATTRIBUTES: u32 = 7;

/// Clears what the contract of a namespace does not know.
#[inline]
pub(super) fn mask(command: &mut NvmeUringCmd) {
    (command.cdw2, command.cdw3) = (0, 0);
    let checksum = command.opcode == opcode::VERIFY && command.cdw13 == CHECKSUM;
    command.cdw13 = if checksum { CHECKSUM } else { 0 };
    (command.cdw14, command.cdw15) = (0, 0);
    command.cdw12 &= match command.opcode {
        opcode::READ | opcode::WRITE | opcode::COMPARE | opcode::VERIFY => BLOCKS | ACCESS,
        opcode::WRITE_ZEROES => BLOCKS | DEALLOCATE | ACCESS,
        opcode::WRITE_UNCORRECTABLE => BLOCKS,
        _ => 0,
    };
    match command.opcode {
        opcode::DATASET_MANAGEMENT => {
            command.cdw10 &= RANGES;
            command.cdw11 &= ATTRIBUTES;
        }
        opcode::FLUSH => (command.cdw10, command.cdw11) = (0, 0),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_hints_and_tags_do_not_pass() {
        let all = u32::MAX;
        let (access, zeroing) = (0xc000_ffff, 0xc200_ffff);
        for (opcode, cdw10, cdw11, cdw12) in [
            (opcode::READ, all, all, access),
            (opcode::WRITE, all, all, access),
            (opcode::COMPARE, all, all, access),
            (opcode::VERIFY, all, all, access),
            (opcode::WRITE_ZEROES, all, all, zeroing),
            (opcode::WRITE_UNCORRECTABLE, all, all, 0xffff),
            (opcode::DATASET_MANAGEMENT, 0xff, 7, 0),
            (opcode::FLUSH, 0, 0, 0),
        ] {
            let mut command = NvmeUringCmd {
                opcode,
                nsid: 5,
                cdw2: all,
                cdw3: all,
                addr: 6,
                data_len: 7,
                cdw10: all,
                cdw11: all,
                cdw12: all,
                cdw13: all,
                cdw14: all,
                cdw15: all,
                timeout_ms: 8,
                ..NvmeUringCmd::default()
            };
            mask(&mut command);
            let expected = NvmeUringCmd {
                opcode,
                nsid: 5,
                addr: 6,
                data_len: 7,
                cdw10,
                cdw11,
                cdw12,
                timeout_ms: 8,
                ..NvmeUringCmd::default()
            };
            assert_eq!(command, expected, "opcode {opcode:#04x}");
        }
    }

    #[test]
    fn only_a_verify_may_ask_for_a_checksum() {
        for (opcode, kept) in [(opcode::VERIFY, CHECKSUM), (opcode::READ, 0), (opcode::WRITE, 0)] {
            let mut command = NvmeUringCmd { opcode, cdw13: CHECKSUM, ..NvmeUringCmd::default() };
            mask(&mut command);
            assert_eq!(command.cdw13, kept, "opcode {opcode:#04x}");
        }
    }
}
