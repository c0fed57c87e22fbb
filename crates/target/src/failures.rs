//! What people are told of commands that a volume fails, in the log: one line in [`PERIOD`] for each volume, whatever
//! hosts send.
//!
//! ```text
//!   failed --> nothing was told for a while: the line
//!          \-> else it is counted; when the time is over a line tells the latest, and how many more there were
//! ```
//!
//! What is the host's own fault, or tells only how things stand, is not told ([`is_of_volume`]).

use nvme::{Command, Status, opcode};
use reactor::{Complete, Reactor};
use std::borrow::Cow;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time between two lines about a volume.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// Failures of one namespace, of all cores.
pub(crate) struct Failures {
    nqn: Arc<str>,
    nsid: u32,
    told: Mutex<Told>,
}

/// What was told, and what is still to be.
#[derive(Default)]
struct Told {
    /// When the next line may come; none before the first.
    until: Option<Instant>,
    /// Failures since the last line.
    left_out: u64,
    /// The latest of them, of the volume that is called so.
    latest: Option<(Failed, Arc<str>)>,
}

/// A command that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// As the host sent it, as far as it tells what was meant.
    pub(crate) command: Command,
    /// Blocks that a Copy was to copy.
    pub(crate) copy_blocks: u32,
    pub(crate) status: Status,
    /// Of the kernel; zero if none is known.
    pub(crate) os_error: i32,
}

/// What is to be done about a failure.
#[derive(Debug, PartialEq, Eq)]
enum Noted {
    /// It is told, with the number of those that were left out before it.
    Tell(u64),
    /// It is the first that is left out: someone has to look then.
    LookAt(Instant),
    /// It is counted.
    LeftOut,
}

impl Failures {
    pub(crate) fn new(nqn: &Arc<str>, nsid: u32) -> Arc<Failures> {
        Arc::new(Failures { nqn: Arc::clone(nqn), nsid, told: Mutex::default() })
    }

    /// The volume, of which `uri` gives the name, has failed a command.
    #[cold]
    pub(crate) fn note(
        self: &Arc<Self>,
        reactor: &Reactor,
        failed: Failed,
        uri: impl FnOnce() -> String,
    ) {
        let now = reactor.now();
        let (noted, volume) = {
            let mut told = self.told();
            let volume = match &told.latest {
                Some((_, volume)) => Arc::clone(volume),
                None => uri().into(),
            };
            told.latest = Some((failed, Arc::clone(&volume)));
            (told.note(now), volume)
        };
        match noted {
            Noted::Tell(more) => self.tell(failed, &volume, more),
            Noted::LookAt(time) => {
                reactor.timer(time, Rc::new(Later(Arc::clone(self))), 0);
            }
            Noted::LeftOut => {}
        }
    }

    /// Tells what was left out, if the time is over.
    fn settle(&self, now: Instant) {
        let mut told = self.told();
        if told.until.is_some_and(|until| until <= now) {
            let rest = told.rest();
            told.until = rest.is_some().then(|| now + PERIOD);
            drop(told);
            self.tell_rest(rest);
        }
    }

    /// The namespace is served no longer: tells what was left out.
    pub(crate) fn finish(&self) {
        let rest = self.told().rest();
        self.tell_rest(rest);
    }

    fn tell_rest(&self, rest: Option<(Failed, Arc<str>, u64)>) {
        if let Some((failed, volume, more)) = rest {
            self.tell(failed, &volume, more);
        }
    }

    fn tell(&self, failed: Failed, volume: &str, more: u64) {
        let (subsystem, nsid) = (&self.nqn, self.nsid);
        let Failed { command, status, os_error, .. } = failed;
        let (lba, blocks) = failed.blocks().unzip();
        let status = status.io_text(command.opcode);
        let command = opcode::io::name(command.opcode)
            .map_or_else(|| format!("opcode {:#04x}", command.opcode).into(), Cow::from);
        let error = (os_error != 0)
            .then(|| tracing::field::display(io::Error::from_raw_os_error(os_error)));
        let more = (more > 0).then_some(more);
        tracing::warn!(
            volume, ?subsystem, nsid, %command, lba, blocks, %status, error, more, "I/O of a volume has failed"
        );
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    fn note(&mut self, now: Instant) -> Noted {
        match self.until {
            Some(until) if now < until => {
                self.left_out += 1;
                if self.left_out == 1 { Noted::LookAt(until) } else { Noted::LeftOut }
            }
            _ => {
                self.until = Some(now + PERIOD);
                Noted::Tell(std::mem::take(&mut self.left_out))
            }
        }
    }

    /// The latest failure that was left out, its volume, and how many there were beside it.
    fn rest(&mut self) -> Option<(Failed, Arc<str>, u64)> {
        let more = std::mem::take(&mut self.left_out).checked_sub(1)?;
        self.latest.as_ref().map(|(failed, volume)| (*failed, Arc::clone(volume), more))
    }
}

/// Looks what was left out. It keeps no volume open.
struct Later(Arc<Failures>);

impl Complete for Later {
    fn complete(&self, _token: u64, result: i32, _flags: u32) {
        if result >= 0 {
            self.0.settle(Instant::now());
        }
    }
}

impl Failed {
    /// The first block and how many, of commands that say so.
    fn blocks(&self) -> Option<(u64, u64)> {
        let blocks = match self.command.opcode {
            opcode::io::READ
            | opcode::io::WRITE
            | opcode::io::COMPARE
            | opcode::io::WRITE_ZEROES
            | opcode::io::WRITE_UNCORRECTABLE
            | opcode::io::VERIFY => self.command.block_count(),
            opcode::io::COPY if self.copy_blocks != 0 => self.copy_blocks,
            _ => return None,
        };
        Some((self.command.slba(), blocks.into()))
    }

    /// Whether an operator is to know: the volume could not do what it should be able to. Not what the host has asked for
    /// that cannot be, what it has given up itself, nor what tells it to come again or by another path.
    pub(crate) fn is_of_volume(&self, is_read_only: bool) -> bool {
        let code = self.status.code();
        match code.sct() {
            0 => match code {
                Status::INTERNAL
                | Status::POWER_LOSS
                | Status::TRANSIENT_TRANSPORT
                | Status::CAPACITY_EXCEEDED => true,
                // A file system may have become read-only after an error.
                Status::NAMESPACE_WRITE_PROTECTED => !is_read_only,
                // Ours where memory is short, which hosts repeat; the kernel's may be worse.
                Status::COMMAND_INTERRUPTED => self.os_error != 0,
                _ => false,
            },
            // Of the command: what zones and Copies do not take.
            1 => false,
            2 => ![Status::COMPARE_FAILURE, Status::ACCESS_DENIED, Status::DEALLOCATED_BLOCK]
                .contains(&code),
            3 => ![
                Status::ANA_PERSISTENT_LOSS,
                Status::ANA_INACCESSIBLE,
                Status::ANA_TRANSITION,
                Status::HOST_ABORTED,
            ]
            .contains(&code),
            // Vendor specific, or unknown.
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(status: Status) -> Failed {
        let command = Command::blocks(opcode::io::WRITE, 1, 8, 4);
        Failed { command, copy_blocks: 0, status, os_error: 0 }
    }

    #[test]
    fn one_line_in_a_period_counts_those_in_between() {
        let start = Instant::now();
        let mut told = Told::default();
        assert_eq!(told.note(start), Noted::Tell(0), "the first at once");
        assert_eq!(told.note(start), Noted::LookAt(start + PERIOD));
        for _ in 0..5 {
            assert_eq!(told.note(start + PERIOD / 2), Noted::LeftOut);
        }
        assert_eq!(told.note(start + PERIOD), Noted::Tell(6));
        let later = start + PERIOD * 2;
        assert_eq!(told.note(later - PERIOD / 2), Noted::LookAt(later));
        assert_eq!(told.note(later), Noted::Tell(1));
    }

    #[test]
    fn what_was_left_out_is_told_though_nothing_follows() {
        let failures = Failures::new(&"nqn.2026-11.com.example:a".into(), 1);
        let start = Instant::now();
        let note = || {
            let mut told = failures.told();
            told.latest = Some((failed(Status::WRITE_FAULT), "a".into()));
            told.note(start)
        };
        assert_eq!(note(), Noted::Tell(0));
        note();
        note();
        failures.settle(start + PERIOD / 2);
        assert_eq!(failures.told().left_out, 2, "it is not yet time");
        failures.settle(start + PERIOD);
        let told = failures.told();
        assert_eq!((told.left_out, told.until), (0, Some(start + PERIOD * 2)), "that was a line");
        drop(told);
        failures.settle(start + PERIOD * 2);
        assert_eq!(failures.told().until, None, "the next is told at once");
    }

    #[test]
    fn only_what_the_volume_could_not_do_is_told() {
        for status in [
            Status::WRITE_FAULT,
            Status::UNRECOVERED_READ.dnr(),
            Status::GUARD_CHECK,
            Status::CAPACITY_EXCEEDED,
            Status::INTERNAL,
            Status::NAMESPACE_WRITE_PROTECTED,
            Status::HOST_PATHING_ERROR,
            Status::INTERNAL_PATH_ERROR,
            Status(0x7c1),
        ] {
            assert!(failed(status).is_of_volume(false), "{status}");
        }
        for status in [
            Status::INVALID_OPCODE.dnr(),
            Status::INVALID_FIELD.dnr(),
            Status::LBA_OUT_OF_RANGE.dnr(),
            Status::COMPARE_FAILURE,
            Status::ABORTED_FAILED_FUSED,
            Status::ABORT_REQUESTED,
            Status::HOST_ABORTED,
            Status::RESERVATION_CONFLICT,
            Status::ACCESS_DENIED,
            Status::DEALLOCATED_BLOCK,
            Status::NAMESPACE_NOT_READY,
            Status::COMMAND_INTERRUPTED,
            Status::ANA_INACCESSIBLE,
            Status::ANA_TRANSITION,
            Status::OVERLAPPING_RANGE,
        ] {
            assert!(!failed(status).is_of_volume(false), "{status}");
        }
        assert!(!failed(Status::NAMESPACE_WRITE_PROTECTED.dnr()).is_of_volume(true));
        let short = Failed { os_error: 12, ..failed(Status::COMMAND_INTERRUPTED) };
        assert!(short.is_of_volume(false));
    }

    #[test]
    fn blocks_are_those_of_the_command() {
        let at = |opcode| {
            let command = Command::blocks(opcode, 1, 8, 4);
            Failed { command, copy_blocks: 9, ..failed(Status::WRITE_FAULT) }.blocks()
        };
        assert_eq!(at(opcode::io::WRITE), Some((8, 4)));
        assert_eq!(at(opcode::io::COPY), Some((8, 9)));
        assert_eq!((at(opcode::io::FLUSH), at(opcode::io::DATASET_MANAGEMENT)), (None, None));
    }
}
