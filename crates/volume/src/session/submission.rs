//! What goes in and what comes out.

use super::{Bytes, Ranges, VolumeId};
use nvme::{Command, Status, opcode};

/// A command to be carried out.
#[derive(Debug, Default)]
pub struct Submission {
    /// Opcode, namespace and command dwords. Command identifier, data and metadata pointers are set by
    /// whoever sends it, the namespace id of an I/O command too.
    pub command: Command,
    /// An admin command: for the controller behind the volume.
    pub admin: bool,
    /// What it writes, or where it reads to: as long as the command says.
    pub data: Bytes,
    /// Metadata of the blocks, where the volume has such.
    pub metadata: Bytes,
    /// Milliseconds after which a device's driver gives the command up; 0 for the volume's own time-out. Only
    /// devices and remote volumes look at it.
    pub timeout_ms: u32,
    /// Comes back with the completion.
    pub token: u64,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Done {
    /// What it was submitted to; of a Copy to many volumes the one that `result` tells of.
    pub volume: VolumeId,
    /// What it was submitted with.
    pub token: u64,
    /// How it went; [`Status::io_text`] says it in the specification's words, after an admin command `to_string()`.
    pub status: Status,
    /// Dwords 0 and 1 of the completion: what the command has for a result, such as the block
    /// that a Zone Append wrote to.
    pub result: u64,
    /// The memory it was submitted with.
    pub data: Bytes,
    /// The same.
    pub metadata: Bytes,
}

/// A command that was not taken.
#[derive(Debug)]
pub struct Rejected {
    /// Why.
    pub reason: Reason,
    /// What was to be submitted.
    pub submission: Submission,
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// As many commands as the session's depth are in flight, or wait to be reaped.
    #[error("the session's depth is reached: reap first")]
    Full,
    /// Ordinary memory has to be copied, and the pool has no room for it now.
    #[error(
        "no room in the buffer pool for memory that has to be copied: reap first, or use buffers of the pool"
    )]
    NoBuffer,
    /// The session was dropped.
    #[error("the session has ended")]
    Ended,
    /// A Copy names a volume of another session: nobody drives that here.
    #[error("a source or target is a volume of another session")]
    Foreign,
    /// A Copy to many names no volume to copy to.
    #[error("there is no volume to copy to")]
    Empty,
    /// Blocks would be read that the same call writes, or be written twice: which comes first nobody could say.
    #[error("what is copied, or to where, overlaps with what is written")]
    Overlap,
}

impl Submission {
    /// `command`, without data.
    pub fn new(command: Command) -> Submission {
        Submission { command, ..Submission::default() }
    }

    /// An admin command, without data. It names no namespace (0), all of them or the volume's own: Invalid Namespace or
    /// Format otherwise.
    pub fn admin(command: Command) -> Submission {
        Submission { command, admin: true, ..Submission::default() }
    }

    /// Reads `blocks` blocks from `slba` on into `data`.
    ///
    /// # Panics
    /// In a debug build, if `blocks` is not 1 to 65,536.
    #[inline]
    pub fn read(slba: u64, blocks: u32, data: impl Into<Bytes>) -> Submission {
        Submission::with(opcode::io::READ, slba, blocks, data.into())
    }

    /// Writes `data` to `blocks` blocks from `slba` on.
    ///
    /// # Panics
    /// In a debug build, if `blocks` is not 1 to 65,536.
    #[inline]
    pub fn write(slba: u64, blocks: u32, data: impl Into<Bytes>) -> Submission {
        Submission::with(opcode::io::WRITE, slba, blocks, data.into())
    }

    #[inline]
    fn with(opcode: u8, slba: u64, blocks: u32, data: Bytes) -> Submission {
        let command = Command::blocks(opcode, super::check::NSID, slba, blocks);
        // All of it is named: there is nothing that would have to be dropped.
        let metadata = Bytes::None;
        Submission { command, admin: false, data, metadata, timeout_ms: 0, token: 0 }
    }

    /// Makes what was written before durable.
    pub fn flush() -> Submission {
        Submission::new(Command { opcode: opcode::io::FLUSH, ..Command::default() })
    }

    /// Copies blocks, of this volume and of others of the session, to those from `sdlba` on, one range after the
    /// other. As much as `limits.copy` says; it is offered by every volume that was opened by its URI.
    ///
    /// On failure `result` is the lowest range that was not copied whole.
    pub fn copy(sdlba: u64, ranges: Ranges) -> Submission {
        Submission::copy_to(sdlba).data(ranges)
    }

    /// The same without its ranges.
    pub(super) fn copy_to(sdlba: u64) -> Submission {
        let mut command = Command { opcode: opcode::io::COPY, ..Command::default() };
        command.set_slba(sdlba);
        Submission::new(command)
    }

    /// Whether some of its memory is in several pieces.
    pub(super) fn is_in_pieces(&self) -> bool {
        [&self.data, &self.metadata].iter().any(|memory| matches!(memory, Bytes::Vectors(_)))
    }

    /// With this memory.
    #[must_use]
    pub fn data(self, data: impl Into<Bytes>) -> Submission {
        Submission { data: data.into(), ..self }
    }

    /// With this memory for metadata.
    #[must_use]
    pub fn metadata(self, metadata: impl Into<Bytes>) -> Submission {
        Submission { metadata: metadata.into(), ..self }
    }

    /// With a time-out in milliseconds.
    #[must_use]
    pub fn timeout_ms(self, timeout_ms: u32) -> Submission {
        Submission { timeout_ms, ..self }
    }

    /// With a token.
    #[inline]
    #[must_use]
    pub fn token(self, token: u64) -> Submission {
        Submission { token, ..self }
    }
}
