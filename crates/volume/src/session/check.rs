//! What a front door checks before a command goes down: the range, and the length of its memory.

use super::{Bytes, Submission};
use namespace::dataset::{RANGE_BYTES, RANGES_MAX, range_count};
use nvme::opcode::io as opcode;
use nvme::{Command, Fuse, Limits, Status};

/// The namespace id in I/O commands: a volume is one namespace, whatever its id elsewhere.
pub(super) const NSID: u32 = 1;

/// Checks a command; `Ok` is how many bytes of its data go down.
///
/// Of commands that are not of the NVM command set the length is what the caller says: so it is with a
/// device, whose driver cannot know either.
#[inline(always)]
pub(super) fn check(submission: &Submission, limits: &Limits) -> Result<usize, Status> {
    check_len(submission, submission.data.piece_len(), limits)
}

/// The same of a command whose data may be in several pieces.
#[cold]
pub(super) fn check_pieces(submission: &Submission, limits: &Limits) -> Result<usize, Status> {
    if submission.metadata.piece_len() == Bytes::PIECES {
        return Err(Status::INVALID_FIELD.dnr());
    }
    check_len(submission, submission.data.len(), limits)
}

/// The same of a command whose data is `len` bytes; refused if that is [`Bytes::PIECES`].
#[inline(always)]
fn check_len(submission: &Submission, len: usize, limits: &Limits) -> Result<usize, Status> {
    let Submission { command, admin, data, metadata, .. } = submission;
    // Both halves of a fused pair would have to go down as one.
    if command.fuse() != Fuse::None {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let pieces = || len == Bytes::PIECES || metadata.piece_len() == Bytes::PIECES;
    if *admin {
        return if pieces() { Err(Status::INVALID_FIELD.dnr()) } else { Ok(len) };
    }
    match command.opcode {
        opcode::READ | opcode::WRITE | opcode::COMPARE => {
            range(command, limits)?;
            let bytes = u64::from(command.block_count()) << limits.block_shift;
            if bytes > u64::from(limits.transfer_bytes_max) {
                return Err(Status::INVALID_FIELD.dnr());
            }
            let around = command.block_count() as usize * usize::from(limits.metadata_bytes);
            let fits = metadata.is_none() || [0, around].contains(&metadata.piece_len());
            if len as u64 != bytes || !fits {
                return Err(Status::SGL_LENGTH_INVALID.dnr());
            }
            if command.opcode == opcode::WRITE {
                writable(limits)?;
            }
            Ok(len)
        }
        opcode::FLUSH => none(len),
        opcode::VERIFY => range(command, limits).and_then(|()| none(len)),
        opcode::WRITE_ZEROES | opcode::WRITE_UNCORRECTABLE => {
            range(command, limits)?;
            writable(limits)?;
            none(len)
        }
        opcode::DATASET_MANAGEMENT => {
            let needed = range_count(command) * RANGE_BYTES;
            if !(needed..=RANGES_MAX * RANGE_BYTES).contains(&len) {
                return Err(Status::SGL_LENGTH_INVALID.dnr());
            }
            if command.deallocates() {
                writable(limits)?;
            }
            Ok(needed)
        }
        // Whoever offers no Copy cannot be told of volumes either.
        opcode::COPY if matches!(data, Bytes::Ranges(_)) => Err(Status::INVALID_OPCODE.dnr()),
        _ if pieces() => Err(Status::INVALID_FIELD.dnr()),
        _ => Ok(len),
    }
}

fn range(command: &Command, limits: &Limits) -> Result<(), Status> {
    match limits.contains(command.slba(), command.block_count()) {
        true => Ok(()),
        false => Err(Status::LBA_OUT_OF_RANGE.dnr()),
    }
}

fn writable(limits: &Limits) -> Result<(), Status> {
    match limits.read_only {
        true => Err(Status::NAMESPACE_WRITE_PROTECTED.dnr()),
        false => Ok(()),
    }
}

/// A command without data.
fn none(len: usize) -> Result<usize, Status> {
    if len == 0 { Ok(0) } else { Err(Status::SGL_LENGTH_INVALID.dnr()) }
}
