//! Checks an I/O command of the NVM command set against the limits of its namespace.
//!
//! ```text
//!   check(command, limits) ----> Transfer { direction, bytes }        what the command means
//!   locate(command, transfer) -> Placement { in capsule | transport } where its data is
//!   check_fused(compare, write, limits)                               the pair as such
//!   copy::check_copy, ranges                                          what the data of these commands says
//! ```
//!
//! Pure and without allocation: it runs on every core for every command. Whether the namespace
//! exists and its ANA state lets I/O through is known before: no limits without a namespace.

use crate::{IN_CAPSULE_BYTES, TRANSFER_BYTES_MAX, WRITE_ZEROES_BYTES_MAX};
use nvme::copy::LIST_BYTES_MAX;
use nvme::dataset::{RANGES_MAX, Range};
use nvme::opcode::io as opcode;
use nvme::{Command, Fuse, Limits, Sgl, Status};
use zerocopy::FromBytes;

const _: () = assert!(LIST_BYTES_MAX <= IN_CAPSULE_BYTES as usize);

/// Which way a command's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// There is none.
    None,
    /// From the host to the controller.
    ToController,
    /// From the controller to the host.
    ToHost,
}

/// The data that a command means to transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which way.
    pub direction: Direction,
    /// Bytes; zero without data.
    pub bytes: u32,
}

/// Where a command's data is or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// There is none.
    None,
    /// `bytes` from `offset` of the capsule's data, host to controller.
    InCapsule {
        /// Offset into the capsule's data.
        offset: u32,
        /// Length in bytes.
        bytes: u32,
    },
    /// The transport moves `bytes` in PDUs of their own.
    Transport {
        /// Length in bytes.
        bytes: u32,
    },
}

impl Transfer {
    const NONE: Transfer = Transfer { direction: Direction::None, bytes: 0 };

    #[inline]
    const fn to_controller(bytes: u32) -> Transfer {
        Transfer { direction: Direction::ToController, bytes }
    }

    #[inline]
    const fn to_host(bytes: u32) -> Transfer {
        Transfer { direction: Direction::ToHost, bytes }
    }
}

/// Checks a command of its own, or one half of a fused pair (see [`check_fused`] for the pair).
///
/// Order of checks: fused operation and data pointer, opcode, transfer size, range, write
/// protection; the first that fails gives the status. Of a Copy all but its format is checked by
/// [`crate::copy`].
#[inline]
pub fn check(command: &Command, limits: &Limits) -> Result<Transfer, Status> {
    // Neither fused (bits 1:0), nor with PRPs (bits 7:6 zero): by far the most frequent.
    if command.flags != Sgl::PSDT_SGL {
        check_flags(command, limits)?;
    }
    match command.opcode {
        opcode::READ => Ok(Transfer::to_host(block_transfer(command, limits)?)),
        opcode::WRITE => {
            let bytes = block_transfer(command, limits)?;
            check_writable(limits)?;
            Ok(Transfer::to_controller(bytes))
        }
        _ => check_rare(command, limits),
    }
}

/// Checks what makes two commands a fused Compare-and-Write (NVM 1.1, section 3.1): Compare first,
/// Write second, the same namespace and range, at most one atomic compare-and-write unit (ACWU: one
/// block). Both have passed [`check`]; a status returned here goes to both.
#[inline]
pub fn check_fused(compare: &Command, write: &Command) -> Result<(), Status> {
    let pair = compare.fuse() == Fuse::First && write.fuse() == Fuse::Second;
    let same = compare.nsid == write.nsid
        && compare.slba() == write.slba()
        && compare.block_count() == write.block_count();
    if !pair || !same {
        return Err(Status::INVALID_FIELD.dnr());
    }
    if compare.block_count() > 1 {
        return Err(Status::ATOMIC_WRITE_UNIT_EXCEEDED.dnr());
    }
    Ok(())
}

/// Where the data of a checked command is, by its SGL descriptor; `capsule_bytes` is the length of
/// the data that came in its capsule.
///
/// A Dataset Management command may bring more than its ranges, up to the 4 KiB of all: Linux
/// sends a whole buffer. Any other length but the command's own is refused, as SGLS tells.
#[inline]
pub fn locate(
    command: &Command,
    transfer: Transfer,
    capsule_bytes: u32,
) -> Result<Placement, Status> {
    if transfer.direction == Direction::None {
        return Ok(Placement::None);
    }
    let sgl = command.sgl();
    let bytes = sgl.length.get();
    let spare = command.opcode == opcode::DATASET_MANAGEMENT
        && bytes > transfer.bytes
        && bytes <= RANGES_MAX * size_of::<Range>() as u32;
    if bytes != transfer.bytes && !spare {
        return Err(Status::SGL_LENGTH_INVALID.dnr());
    }
    match sgl.identifier {
        Sgl::TRANSPORT => Ok(Placement::Transport { bytes }),
        Sgl::IN_CAPSULE if transfer.direction == Direction::ToController => {
            let end = sgl.address.get().checked_add(u64::from(bytes));
            let capsule_end = u64::from(capsule_bytes.min(IN_CAPSULE_BYTES));
            if end.is_none_or(|end| end > capsule_end) {
                return Err(Status::SGL_OFFSET_INVALID.dnr());
            }
            Ok(Placement::InCapsule { offset: sgl.address.get() as u32, bytes })
        }
        _ => Err(Status::SGL_TYPE_INVALID.dnr()),
    }
}

/// Checks the ranges of a Dataset Management command that deallocates, once its data is there, and
/// passes each that is not empty on.
pub fn ranges(
    command: &Command,
    data: &[u8],
    limits: &Limits,
    mut each: impl FnMut(u64, u32),
) -> Result<(), Status> {
    let count = command.range_count() as usize;
    let Ok((ranges, _)) = <[Range]>::ref_from_prefix_with_elems(data, count) else {
        return Err(Status::SGL_LENGTH_INVALID.dnr());
    };
    // All are checked before anything happens (NVM 1.1, section 3.3.3).
    if ranges.iter().any(|range| !limits.contains(range.slba.get(), range.blocks.get())) {
        return Err(Status::LBA_OUT_OF_RANGE.dnr());
    }
    for range in ranges.iter().filter(|range| range.blocks.get() != 0) {
        each(range.slba.get(), range.blocks.get());
    }
    Ok(())
}

/// Checks of everything but Read and Write.
fn check_rare(command: &Command, limits: &Limits) -> Result<Transfer, Status> {
    let commands = &limits.commands;
    match command.opcode {
        opcode::FLUSH => Ok(Transfer::NONE),
        opcode::COMPARE if commands.compare => {
            Ok(Transfer::to_controller(block_transfer(command, limits)?))
        }
        opcode::VERIFY if commands.verify => {
            // VSL is what MDTS is.
            block_transfer(command, limits)?;
            Ok(Transfer::NONE)
        }
        opcode::WRITE_ZEROES if commands.write_zeroes => {
            let bytes = u64::from(command.block_count()) << limits.block_shift;
            if bytes > u64::from(limits.write_zeroes_bytes_max.min(WRITE_ZEROES_BYTES_MAX)) {
                return Err(Status::INVALID_FIELD.dnr());
            }
            check_range(command, limits)?;
            check_writable(limits)?;
            Ok(Transfer::NONE)
        }
        opcode::WRITE_UNCORRECTABLE if commands.write_uncorrectable => {
            check_range(command, limits)?;
            check_writable(limits)?;
            Ok(Transfer::NONE)
        }
        opcode::DATASET_MANAGEMENT if commands.deallocate => {
            if command.deallocates() {
                check_writable(limits)?;
            }
            Ok(Transfer::to_controller(command.range_count() * size_of::<Range>() as u32))
        }
        opcode::COPY if limits.copy.is_offered() => {
            let format = command.copy_format().ok_or(Status::INVALID_FIELD.dnr())?;
            let bytes = command.copy_ranges() * format.entry_bytes();
            Ok(Transfer::to_controller(bytes as u32))
        }
        _ if limits.passthrough.io => passed(command, limits),
        // Reservations among them: Identify does not offer them.
        _ => Err(Status::INVALID_OPCODE.dnr()),
    }
}

/// A command that only the device behind the namespace knows: its data is as long as its SGL says,
/// and goes as bits 1:0 of the opcode say (NVMe Base 2.1, Figure 91).
fn passed(command: &Command, limits: &Limits) -> Result<Transfer, Status> {
    if limits.read_only && !changes_nothing(command.opcode) {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
    }
    let bytes = command.sgl().length.get();
    if bytes > limits.transfer_bytes_max.min(TRANSFER_BYTES_MAX) {
        return Err(Status::INVALID_FIELD.dnr());
    }
    match command.opcode & 3 {
        0 => Ok(Transfer::NONE),
        _ if bytes == 0 => Ok(Transfer::NONE),
        1 => Ok(Transfer::to_controller(bytes)),
        2 => Ok(Transfer::to_host(bytes)),
        // Both ways: no transport has that.
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}

/// Of the commands that are passed, those that surely leave the namespace as it is. A vendor's may
/// do anything, whichever way its data goes.
fn changes_nothing(code: u8) -> bool {
    matches!(
        code,
        opcode::RESERVATION_REPORT
            | opcode::IO_MANAGEMENT_RECEIVE
            | opcode::ZONE_MANAGEMENT_RECEIVE
    )
}

/// FUSE and PSDT (NVMe Base 2.1, Figure 91).
#[cold]
fn check_flags(command: &Command, limits: &Limits) -> Result<(), Status> {
    let fused_as_offered = match command.fuse() {
        Fuse::None => true,
        Fuse::First => command.opcode == opcode::COMPARE && limits.commands.compare_and_write,
        Fuse::Second => command.opcode == opcode::WRITE && limits.commands.compare_and_write,
        Fuse::Reserved => false,
    };
    if fused_as_offered && (command.uses_sgl() || !command.transfers_data()) {
        Ok(())
    } else {
        Err(Status::INVALID_FIELD.dnr())
    }
}

/// Length of a transfer of logical blocks, within MDTS and the namespace.
#[inline]
fn block_transfer(command: &Command, limits: &Limits) -> Result<u32, Status> {
    let bytes = u64::from(command.block_count()) << limits.block_shift;
    if bytes > u64::from(limits.transfer_bytes_max.min(TRANSFER_BYTES_MAX)) {
        return Err(Status::INVALID_FIELD.dnr());
    }
    check_range(command, limits)?;
    Ok(bytes as u32)
}

#[inline]
fn check_range(command: &Command, limits: &Limits) -> Result<(), Status> {
    if limits.contains(command.slba(), command.block_count()) {
        Ok(())
    } else {
        Err(Status::LBA_OUT_OF_RANGE.dnr())
    }
}

#[inline]
fn check_writable(limits: &Limits) -> Result<(), Status> {
    if limits.read_only { Err(Status::NAMESPACE_WRITE_PROTECTED.dnr()) } else { Ok(()) }
}
