//! How much data a command moves, as far as that is known.
//!
//! A device moves as much as the command says, to and from the pages that the driver has told it of. The
//! driver tells of those that came with the command, and nobody compares the two.

use nvme::opcode::{admin, io as opcode};
use nvme::{Command, Limits, Status};

/// Refuses an I/O command that would move more data than `bytes`, which come with it. Zone descriptors
/// of the namespace have extensions of `zone_extension_bytes`.
#[inline]
pub fn data(
    command: &Command,
    limits: &Limits,
    zone_extension_bytes: u32,
    bytes: usize,
) -> Result<(), Status> {
    let moved = match command.opcode {
        opcode::READ | opcode::WRITE => Some(blocks(command, limits)),
        _ => moved(command, limits, zone_extension_bytes),
    };
    enough(moved, bytes)
}

/// Refuses an admin command that would move more data than `bytes`, which come with it.
pub fn admin_data(command: &Command, bytes: usize) -> Result<(), Status> {
    enough(moved_admin(command), bytes)
}

#[inline]
fn enough(moved: Option<u64>, bytes: usize) -> Result<(), Status> {
    let too_long = u32::try_from(bytes).is_err();
    match moved {
        _ if too_long => Err(Status::INVALID_FIELD.dnr()),
        Some(moved) if moved > bytes as u64 => Err(Status::INVALID_FIELD.dnr()),
        _ => Ok(()),
    }
}

/// The bytes that an admin command moves; none where it depends on more than the command, as with
/// features, or only a vendor knows (NVMe Base 2.1, section 5).
fn moved_admin(command: &Command) -> Option<u64> {
    let dwords = |count_z: u32| (u64::from(count_z) + 1) * 4;
    let (cdw10, cdw11) = (command.cdw10.get(), command.cdw11.get());
    // Directive operation and type.
    let directive = cdw11 & 0xffff;
    Some(match command.opcode {
        admin::IDENTIFY | admin::NAMESPACE_ATTACHMENT => 4096,
        // The upper half of the count is in dword 11.
        admin::GET_LOG_PAGE => dwords(cdw10 >> 16 | cdw11 << 16),
        // Create; there is nothing to be transferred to delete.
        admin::NAMESPACE_MANAGEMENT if cdw10 & 0xf == 0 => 4096,
        // Maximum number of dwords (NVM 1.1, section 4.2.1).
        admin::GET_LBA_STATUS => dwords(command.cdw12.get()),
        // Enable Directive, Release Identifier, Release Resources; Allocate Resources: all is in the command.
        admin::DIRECTIVE_SEND if matches!(directive, 0x0001 | 0x0101 | 0x0102) => 0,
        admin::DIRECTIVE_RECEIVE if directive == 0x0103 => 0,
        admin::FIRMWARE_DOWNLOAD | admin::DIRECTIVE_SEND | admin::DIRECTIVE_RECEIVE => {
            dwords(cdw10)
        }
        admin::SECURITY_SEND | admin::SECURITY_RECEIVE => cdw11.into(),
        _ => return None,
    })
}

/// The bytes of a command's blocks.
#[inline]
fn blocks(command: &Command, limits: &Limits) -> u64 {
    u64::from(command.block_count()) << limits.block_shift
}

/// The bytes that the command moves; none where only a vendor knows.
fn moved(command: &Command, limits: &Limits, zone_extension_bytes: u32) -> Option<u64> {
    // Zero-based counts of double words.
    let dwords = |count_z: u32| (u64::from(count_z) + 1) * 4;
    let (cdw10, cdw11) = (command.cdw10.get(), command.cdw11.get());
    let (cdw12, cdw13) = (command.cdw12.get(), command.cdw13.get());
    Some(match command.opcode {
        opcode::READ | opcode::WRITE | opcode::COMPARE | opcode::ZONE_APPEND => {
            blocks(command, limits)
        }
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
        // Set Zone Descriptor Extension, whose size is the format's.
        opcode::ZONE_MANAGEMENT_SEND if cdw13 & 0xff == 0x10 => zone_extension_bytes.into(),
        _ => return None,
    })
}

/// Commands that everybody knows; others are passed where that was asked for.
#[inline]
pub(super) fn is_usual(code: u8) -> bool {
    matches!(
        code,
        opcode::FLUSH
            | opcode::WRITE
            | opcode::READ
            | opcode::WRITE_UNCORRECTABLE
            | opcode::COMPARE
            | opcode::WRITE_ZEROES
            | opcode::DATASET_MANAGEMENT
            | opcode::VERIFY
    )
}

/// Whether the command's data is that of blocks, which may have metadata.
#[inline]
pub(super) fn moves_blocks(code: u8) -> bool {
    matches!(code, opcode::READ | opcode::WRITE | opcode::COMPARE | opcode::ZONE_APPEND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::limits::{Commands, DiscardLimits, Passthrough};

    const LIMITS: Limits = Limits {
        block_shift: 9,
        blocks: 1 << 20,
        transfer_bytes_max: 1 << 20,
        write_zeroes_bytes_max: u32::MAX,
        discard: DiscardLimits::UNLIMITED,
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
            checksum: false,
            allocation: false,
        },
        copy: nvme::limits::CopyLimits::NONE,
        metadata_bytes: 0,
        passthrough: Passthrough::ALL,
        lends_reads: false,
        immediate: false,
    };

    #[test]
    fn no_admin_command_moves_more_than_came_with_it() {
        let command = |opcode, cdw10: u32, cdw11: u32| Command {
            opcode,
            cdw10: cdw10.into(),
            cdw11: cdw11.into(),
            ..Command::default()
        };
        for (command, bytes) in [
            (command(admin::IDENTIFY, 1, 0), 4096),
            (command(admin::GET_LOG_PAGE, 0x007f_0002, 0), 512),
            (command(admin::GET_LOG_PAGE, 0xffff_0002, 1), 0x2_0000 * 4),
            (command(admin::NAMESPACE_MANAGEMENT, 0, 0), 4096),
            (command(admin::NAMESPACE_ATTACHMENT, 0, 0), 4096),
            (command(admin::FIRMWARE_DOWNLOAD, 1023, 0), 4096),
            (command(admin::DIRECTIVE_RECEIVE, 7, 0), 32),
            (Command { cdw12: 1023.into(), ..command(admin::GET_LBA_STATUS, 0, 0) }, 4096),
            (command(admin::SECURITY_SEND, 0, 520), 520),
        ] {
            assert_eq!(admin_data(&command, bytes), Ok(()), "{command:?}");
            let refused = Err(Status::INVALID_FIELD.dnr());
            assert_eq!(admin_data(&command, bytes - 1), refused, "{command:?}");
        }
        // Nor do directives whose command says all.
        for operation in [0x0001, 0x0101, 0x0102] {
            assert_eq!(admin_data(&command(admin::DIRECTIVE_SEND, 0, operation), 0), Ok(()));
        }
        assert_eq!(admin_data(&command(admin::DIRECTIVE_RECEIVE, 0, 0x0103), 0), Ok(()));
        assert!(admin_data(&command(admin::DIRECTIVE_RECEIVE, 0, 0x0101), 0).is_err());
        // Deleting a namespace transfers nothing, and what a vendor's command does is not known.
        assert_eq!(admin_data(&command(admin::NAMESPACE_MANAGEMENT, 1, 0), 0), Ok(()));
        assert_eq!(admin_data(&command(admin::VENDOR_FIRST, 0, 0), 0), Ok(()));
        assert!(admin_data(&command(admin::VENDOR_FIRST, 0, 0), 1 << 32).is_err());
    }

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
            (command(opcode::ZONE_MANAGEMENT_SEND, 0, 0, 0, 0x10), 256),
        ] {
            assert_eq!(data(&command, &LIMITS, 256, bytes), Ok(()), "{command:?}");
            let refused = Err(Status::INVALID_FIELD.dnr());
            assert_eq!(data(&command, &LIMITS, 256, bytes - 1), refused, "{command:?}");
        }
        for opcode in [opcode::FLUSH, opcode::WRITE_ZEROES, opcode::VERIFY, 0x81, 0xff] {
            assert_eq!(data(&command(opcode, 0, 0, 7, 0), &LIMITS, 256, 0), Ok(()));
        }
    }
}
