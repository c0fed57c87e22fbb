//! What people are told of commands that a volume fails, in the log: one line in 10 s for each volume that is served,
//! whatever clients send.
//!
//! ```text
//!   failed --> nothing was told for a while: the line
//!          \-> else it is counted; when the time is over a line tells the latest, and how many more there were
//! ```
//!
//! What is the client's own fault, or tells only how things stand, is not told.

use nvme::{Command, Status, opcode};
use reactor::{Complete, Reactor};
use std::borrow::Cow;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time between two lines about a volume.
const PERIOD: Duration = Duration::from_secs(10);

/// Failures of one volume that is served, of all cores.
#[derive(Debug)]
pub struct Failures {
    served: Served,
    told: Mutex<Told>,
}

/// What a volume is served as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// A namespace of a subsystem: NQN and namespace id.
    Namespace(Arc<str>, u32),
    /// An export of that name.
    Export(Arc<str>),
    /// The block device `/dev/ublkbN`: N.
    Device(u32),
}

/// What was told, and what is still to be.
#[derive(Debug, Default)]
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
pub struct Failed {
    /// What it was to do.
    pub opcode: u8,
    /// With which blocks: the first, and how many, as the client knows them. None if it is about none, or that is not
    /// known.
    pub blocks: Option<(u64, u64)>,
    /// What the volume said.
    pub status: Status,
    /// Of the kernel; zero if none is known.
    pub os_error: i32,
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
    /// None yet.
    pub fn new(served: Served) -> Arc<Failures> {
        Arc::new(Failures { served, told: Mutex::default() })
    }

    /// The volume, of which `uri` gives the name, has failed a command. `is_read_only`: clients know that they cannot
    /// write to it.
    #[cold]
    pub fn note(
        self: &Arc<Self>,
        reactor: &Reactor,
        failed: Failed,
        is_read_only: bool,
        uri: impl FnOnce() -> String,
    ) {
        if !failed.is_of_volume(is_read_only) {
            return;
        }
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

    /// The volume is served no longer: tells what was left out.
    pub fn finish(&self) {
        let rest = self.told().rest();
        self.tell_rest(rest);
    }

    fn tell_rest(&self, rest: Option<(Failed, Arc<str>, u64)>) {
        if let Some((failed, volume, more)) = rest {
            self.tell(failed, &volume, more);
        }
    }

    fn tell(&self, failed: Failed, volume: &str, more: u64) {
        let (subsystem, nsid, export, device) = match &self.served {
            Served::Namespace(nqn, nsid) => (Some(&**nqn), Some(*nsid), None, None),
            Served::Export(name) => (None, None, Some(&**name), None),
            Served::Device(id) => (None, None, None, Some(*id)),
        };
        let Failed { opcode, blocks, status, os_error } = failed;
        let (lba, blocks) = blocks.unzip();
        let status = status.io_text(opcode);
        let command = opcode::io::name(opcode)
            .map_or_else(|| format!("opcode {opcode:#04x}").into(), Cow::from);
        let error = (os_error != 0)
            .then(|| tracing::field::display(io::Error::from_raw_os_error(os_error)));
        let more = (more > 0).then_some(more);
        tracing::warn!(
            volume, subsystem, nsid, export, device, %command, lba, blocks, %status, error, more,
            "I/O of a volume has failed"
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
    /// One that says by itself with which blocks, if it is about any.
    pub fn of(command: &Command, status: Status, os_error: i32) -> Failed {
        let blocks = match command.opcode {
            opcode::io::READ
            | opcode::io::WRITE
            | opcode::io::COMPARE
            | opcode::io::WRITE_ZEROES
            | opcode::io::WRITE_UNCORRECTABLE
            | opcode::io::VERIFY => Some((command.slba(), command.block_count().into())),
            _ => None,
        };
        Failed { opcode: command.opcode, blocks, status, os_error }
    }

    /// Whether an operator is to know: the volume could not do what it should be able to. Not what the client has asked
    /// for that cannot be, what it has given up itself, nor what tells it to come again or by another path.
    fn is_of_volume(&self, is_read_only: bool) -> bool {
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
        Failed::of(&Command::blocks(opcode::io::WRITE, 1, 8, 4), status, 0)
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
        let failures = Failures::new(Served::Export("a".into()));
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
        let of =
            |opcode| Failed::of(&Command::blocks(opcode, 1, 8, 4), Status::WRITE_FAULT, 0).blocks;
        assert_eq!((of(opcode::io::WRITE), of(opcode::io::VERIFY)), (Some((8, 4)), Some((8, 4))));
        assert_eq!((of(opcode::io::FLUSH), of(opcode::io::DATASET_MANAGEMENT)), (None, None));
    }
}
