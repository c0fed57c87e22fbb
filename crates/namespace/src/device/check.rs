//! How much data a command moves, as far as that is known.
//!
//! A device moves as much as the command says, to and from the pages that the driver has told it of. The
//! driver tells of those that came with the command, and nobody compares the two.

use nvme::opcode::io as opcode;
use nvme::{Command, Limits, Status};

/// Refuses an I/O command that would move more data than `bytes`, which come with it.
pub fn data(command: &Command, limits: &Limits, bytes: usize) -> Result<(), Status> {
    match moved(command, limits) {
        Some(moved) if moved > bytes as u64 => Err(Status::INVALID_FIELD.dnr()),
        _ => Ok(()),
    }
}

/// The bytes that the command moves; none where only a vendor knows.
fn moved(command: &Command, limits: &Limits) -> Option<u64> {
    let blocks = || u64::from(command.block_count()) << limits.block_shift;
    // Zero-based counts of double words.
    let dwords = |count_z: u32| (u64::from(count_z) + 1) * 4;
    let (cdw10, cdw11) = (command.cdw10.get(), command.cdw11.get());
    let (cdw12, cdw13) = (command.cdw12.get(), command.cdw13.get());
    Some(match command.opcode {
        opcode::READ | opcode::WRITE | opcode::COMPARE | opcode::ZONE_APPEND => blocks(),
        // Ranges of 16 bytes (NVM 1.1, section 3.3.3).
        opcode::DATASET_MANAGEMENT => (u64::from(cdw10 & 0xff) + 1) * 16,
        // Source ranges of 32 bytes, or of 40 in formats 1h and 3h (NVM 1.1, section 3.3.2).
        opcode::COPY => {
            let bytes = if cdw12 >> 8 & 1 == 1 { 40 } else { 32 };
            (u64::from(cdw12 & 0xff) + 1) * bytes
        }
        opcode::RESERVATION_REPORT => dwords(cdw10),
        // Two keys, or one and nothing (NVMe Base 2.1, section 7).
        opcode::RESERVATION_REGISTER | opcode::RESERVATION_ACQUIRE => 16,
        opcode::RESERVATION_RELEASE => 8,
        // Management Operation 1h: Reclaim Unit Handle status.
        opcode::IO_MANAGEMENT_RECEIVE => dwords(cdw11),
        // Reclaim Unit Handle update: placement identifiers of two bytes.
        opcode::IO_MANAGEMENT_SEND if cdw10 & 0xff == 1 => (u64::from(cdw10 >> 16) + 1) * 2,
        opcode::ZONE_MANAGEMENT_RECEIVE => dwords(cdw12),
        // Set Zone Descriptor Extension, whose size is the format's: 64 bytes at least.
        opcode::ZONE_MANAGEMENT_SEND if cdw13 & 0xff == 0x10 => 64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::limits::{Commands, Passthrough};

    const LIMITS: Limits = Limits {
        block_shift: 9,
        blocks: 1 << 20,
        transfer_bytes_max: 1 << 20,
        optimal_write_bytes: 4096,
        read_only: false,
        volatile_write_cache: true,
        commands: Commands {
            write_zeroes: true,
            deallocate: true,
            write_uncorrectable: true,
            compare: true,
            compare_and_write: false,
            verify: true,
        },
        metadata_bytes: 0,
        passthrough: Passthrough::ALL,
        lends_reads: false,
        immediate: false,
    };

    #[test]
    fn no_command_moves_more_than_came_with_it() {
        let command = |opcode: u8, cdw10: u32, cdw11: u32, cdw12: u32, cdw13: u32| Command {
            opcode,
            cdw10: cdw10.into(),
            cdw11: cdw11.into(),
            cdw12: cdw12.into(),
            cdw13: cdw13.into(),
            ..Command::default()
        };
        for (command, bytes) in [
            (command(opcode::READ, 0, 0, 7, 0), 4096),
            (command(opcode::WRITE, 0, 0, 0x4000_0007, 0), 4096),
            (command(opcode::COMPARE, 0, 0, 0xffff, 0), 65536 * 512),
            (command(opcode::ZONE_APPEND, 0, 0, 0, 0), 512),
            (command(opcode::DATASET_MANAGEMENT, 0xff, 4, 0, 0), 4096),
            (command(opcode::COPY, 0, 0, 0, 0), 32),
            (command(opcode::COPY, 0, 0, 3, 0), 128),
            (command(opcode::COPY, 0, 0, 0x103, 0), 160),
            (command(opcode::COPY, 0, 0, 0x203, 0), 128),
            (command(opcode::COPY, 0, 0, 0x303, 0), 160),
            (command(opcode::ZONE_MANAGEMENT_RECEIVE, 0, 0, 1023, 0), 4096),
            (command(opcode::RESERVATION_REPORT, 15, 0, 0, 0), 64),
            (command(opcode::IO_MANAGEMENT_RECEIVE, 1, 15, 0, 0), 64),
            (command(opcode::IO_MANAGEMENT_SEND, 0x0003_0001, 0, 0, 0), 8),
        ] {
            assert_eq!(data(&command, &LIMITS, bytes), Ok(()), "{command:?}");
            let refused = Err(Status::INVALID_FIELD.dnr());
            assert_eq!(data(&command, &LIMITS, bytes - 1), refused, "{command:?}");
        }
        for opcode in [opcode::FLUSH, opcode::WRITE_ZEROES, opcode::VERIFY, 0x81, 0xff] {
            assert_eq!(data(&command(opcode, 0, 0, 7, 0), &LIMITS, 0), Ok(()));
        }
    }
}
