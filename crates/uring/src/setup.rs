//! What a ring is asked to be, and what the kernel grants.

use crate::error::{Error, RingOption};
use crate::sys::{self, Parameters};
use std::io;
use std::os::fd::OwnedFd;

/// Completion queue entries per submission queue entry: watches of many idle sockets complete
/// together, and an overflowing queue costs memory and time in the kernel.
const COMPLETIONS_PER_ENTRY: u32 = 4;

/// A mixed submission queue has at least this many slots, so that an entry of two and the one that
/// fills up the end of the ring fit.
const MIXED_ENTRIES_MIN: u32 = 4;

/// Sizes of a ring's entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// 64 bytes to submit, 16 to complete: everything but NVMe commands.
    #[default]
    Small,
    /// Both sizes in one ring: a big entry takes two slots (`IORING_SETUP_SQE_MIXED`,
    /// `IORING_SETUP_CQE_MIXED`). A kernel that has no such rings makes it [`Kind::Big`];
    /// [`Setup::kind`] tells.
    Mixed,
    /// 128 bytes to submit, 32 to complete, whatever the entry needs (`IORING_SETUP_SQE128`,
    /// `IORING_SETUP_CQE32`; 5.19).
    Big,
}

/// A thread of the kernel that takes entries from the submission queue by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqPoll {
    /// The processor it runs on; any if `None`.
    pub cpu: Option<u32>,
    /// It sleeps when nothing was submitted for that long, in milliseconds, and is woken by a
    /// system call then. 0 stands for the kernel's own choice, one second.
    pub idle_ms: u32,
}

/// What a ring shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// Entries of the submission queue, rounded up to a power of two.
    pub entries: u32,
    /// Sizes of the entries.
    pub kind: Kind,
    /// Completions are looked for on the device instead of interrupting (`IORING_SETUP_IOPOLL`):
    /// [`crate::Ring::enter`] does it, so enter while something is in flight. Only for files that can
    /// be polled; [`RingOptions::explain`] has words for the refusal of others.
    pub iopoll: bool,
    /// As `iopoll`, but an enter sleeps for about half of what commands have taken before it polls
    /// (`IORING_SETUP_HYBRID_IOPOLL`, 6.13). Implies `iopoll`.
    pub hybrid_iopoll: bool,
    /// Entries are taken by a thread of the kernel (`IORING_SETUP_SQPOLL`); with `iopoll` it polls
    /// for completions too.
    pub sqpoll: Option<SqPoll>,
    /// The ring's descriptor becomes readable when something completes, while its thread sleeps
    /// elsewhere: no `IORING_SETUP_DEFER_TASKRUN`, with which completions wait for an enter.
    pub pollable: bool,
    /// The ring is used by several threads, one at a time: no `IORING_SETUP_SINGLE_ISSUER`, no
    /// registered ring descriptor. [`crate::Ring`] is still not `Send`; the owner vouches.
    pub shared: bool,
}

impl Default for RingOptions {
    fn default() -> RingOptions {
        RingOptions {
            entries: 1024,
            kind: Kind::Small,
            iopoll: false,
            hybrid_iopoll: false,
            sqpoll: None,
            pollable: false,
            shared: false,
        }
    }
}

/// What the kernel granted when the ring was set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Sizes of the entries: [`Kind::Big`] where [`Kind::Mixed`] was asked for and is not known.
    pub kind: Kind,
    /// Completions are polled for.
    pub iopoll: bool,
    /// They are, after a sleep about as long as commands take (`IORING_SETUP_HYBRID_IOPOLL`, 6.13).
    pub hybrid_iopoll: bool,
    /// A thread of the kernel submits.
    pub sqpoll: bool,
    /// Completion work runs only within our own enters (`IORING_SETUP_DEFER_TASKRUN`, 6.1).
    pub defer_taskrun: bool,
    /// Only this thread submits (`IORING_SETUP_SINGLE_ISSUER`, 6.0).
    pub single_issuer: bool,
    /// Completion work does not interrupt us (`IORING_SETUP_COOP_TASKRUN`, 5.19).
    pub coop_taskrun: bool,
    /// The kernel tells in shared memory that completion work waits (`IORING_SETUP_TASKRUN_FLAG`).
    pub taskrun_flag: bool,
    /// No indirection array in front of the entries (`IORING_SETUP_NO_SQARRAY`, 6.6).
    pub no_sqarray: bool,
    /// The ring's descriptor is registered (5.18).
    pub registered_ring: bool,
    /// There is no io_uring: this process does what the kernel would ([`crate::Ring::emulated`]).
    pub emulated: bool,
    /// Slots of the submission queue.
    pub entries: u32,
    /// Slots of the completion queue.
    pub completions: u32,
}

impl RingOptions {
    /// Says in words why an operation on a ring of this kind was refused, where the ring is the
    /// reason; `result` is the completion's.
    pub fn explain(&self, result: i32) -> Option<&'static str> {
        let polls = self.iopoll || self.hybrid_iopoll;
        match -result {
            libc::EOPNOTSUPP if polls => Some(
                "completions of this ring are polled for, which the file does not allow: it must \
                 be an NVMe device, or a file opened with O_DIRECT whose device can be polled \
                 (for NVMe: `modprobe nvme poll_queues=2`)",
            ),
            libc::EINVAL if polls => {
                Some("the operation is not one that a ring whose completions are polled for can do")
            }
            libc::EOPNOTSUPP if self.kind == Kind::Small => {
                Some("NVMe commands need a ring with entries of 128 bytes")
            }
            _ => None,
        }
    }

    /// Set-ups that would do, from the best to the plainest: a kernel refuses flags that it does
    /// not know.
    fn candidates(&self) -> Vec<Setup> {
        let kind = self.kind;
        let iopoll = self.iopoll || self.hybrid_iopoll;
        let (hybrid_iopoll, sqpoll) = (self.hybrid_iopoll, self.sqpoll.is_some());
        let plain = Setup { kind, iopoll, hybrid_iopoll, sqpoll, ..Setup::default() };
        let cooperative = Setup { coop_taskrun: true, taskrun_flag: true, ..plain };
        let steps = if self.sqpoll.is_some() {
            // The thread does the completion work: nothing of ours is to be interrupted.
            let single = Setup { single_issuer: true, ..plain };
            vec![Setup { no_sqarray: true, ..single }, single, plain]
        } else {
            let single = Setup { single_issuer: true, ..cooperative };
            let deferring = Setup { defer_taskrun: true, ..single };
            let newest = Setup { no_sqarray: true, ..deferring };
            vec![newest, deferring, single, cooperative, plain]
        };
        let restrict = |setup: Setup| Setup {
            single_issuer: setup.single_issuer && !self.shared,
            defer_taskrun: setup.defer_taskrun && !self.shared && !self.pollable,
            ..setup
        };
        let steps: Vec<Setup> = steps.into_iter().map(restrict).collect();
        match kind {
            // Kernels that know mixed rings know all the rest, too.
            Kind::Mixed => {
                let big = Setup { kind: Kind::Big, ..steps[0] };
                let rest = steps[1..].iter().map(|setup| Setup { kind: Kind::Big, ..*setup });
                [steps[0], big].into_iter().chain(rest).collect()
            }
            Kind::Small | Kind::Big => steps,
        }
    }

    fn parameters(&self, setup: &Setup) -> Parameters {
        let chosen = [
            (setup.iopoll, sys::SETUP_IOPOLL),
            (setup.hybrid_iopoll, sys::SETUP_HYBRID_IOPOLL),
            (setup.sqpoll, sys::SETUP_SQPOLL | sys::SETUP_SUBMIT_ALL),
            (self.sqpoll.is_some_and(|thread| thread.cpu.is_some()), sys::SETUP_SQ_AFF),
            (setup.coop_taskrun, sys::SETUP_COOP_TASKRUN | sys::SETUP_SUBMIT_ALL),
            (setup.taskrun_flag, sys::SETUP_TASKRUN_FLAG),
            (setup.single_issuer, sys::SETUP_SINGLE_ISSUER),
            (setup.defer_taskrun, sys::SETUP_DEFER_TASKRUN),
            (setup.no_sqarray, sys::SETUP_NO_SQARRAY),
            (setup.kind == Kind::Big, sys::SETUP_SQE128 | sys::SETUP_CQE32),
            (setup.kind == Kind::Mixed, sys::SETUP_SQE_MIXED | sys::SETUP_CQE_MIXED),
        ];
        let flags = chosen.iter().filter(|(set, _)| *set).map(|(_, flags)| flags);
        let thread = self.sqpoll.unwrap_or(SqPoll { cpu: None, idle_ms: 0 });
        Parameters {
            cq_entries: self.slots().saturating_mul(COMPLETIONS_PER_ENTRY),
            flags: flags.fold(sys::SETUP_CLAMP | sys::SETUP_CQSIZE, |all, flags| all | flags),
            sq_thread_cpu: thread.cpu.unwrap_or(0),
            sq_thread_idle: thread.idle_ms,
            ..Parameters::default()
        }
    }

    /// What a ring that is emulated is.
    pub(crate) fn emulated(&self) -> Setup {
        let entries = self.slots();
        let completions = entries.saturating_mul(COMPLETIONS_PER_ENTRY);
        Setup { emulated: true, taskrun_flag: true, entries, completions, ..Setup::default() }
    }

    fn slots(&self) -> u32 {
        let least = if self.kind == Kind::Mixed { MIXED_ENTRIES_MIN } else { 1 };
        self.entries.clamp(least, 1 << 16).next_power_of_two()
    }

    /// Makes the ring: its descriptor, where its parts lie, and what it is.
    pub(crate) fn set_up(&self) -> Result<(OwnedFd, Parameters, Setup), Error> {
        if let Some(error) = Error::of_environment() {
            return Err(error);
        }
        match self.try_all()? {
            Ok(made) => Ok(made),
            Err(source) => Err(self.culprit(source)),
        }
    }

    /// The inner error is that the kernel found each of the set-ups invalid.
    fn try_all(&self) -> Result<Result<(OwnedFd, Parameters, Setup), io::Error>, Error> {
        let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
        for mut setup in self.candidates() {
            let mut parameters = self.parameters(&setup);
            match sys::setup(self.slots(), &mut parameters) {
                Ok(fd) => {
                    setup.entries = parameters.sq_entries;
                    setup.completions = parameters.cq_entries;
                    return Ok(Ok((fd, parameters, setup)));
                }
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
                Err(error) => return Err(Error::explain("io_uring_setup", error)),
            }
        }
        Ok(Err(refused))
    }

    /// Which of the options it is without which the kernel would have agreed.
    fn culprit(&self, source: io::Error) -> Error {
        let thread = self.sqpoll;
        let cpu = thread.and_then(|thread| thread.cpu);
        let without = [
            (cpu.is_some(), RingOption::Processor(cpu.unwrap_or(0)), {
                RingOptions { sqpoll: thread.map(|one| SqPoll { cpu: None, ..one }), ..*self }
            }),
            (thread.is_some(), RingOption::Thread, RingOptions { sqpoll: None, ..*self }),
            (self.hybrid_iopoll, RingOption::Hybrid, {
                RingOptions { hybrid_iopoll: false, iopoll: true, ..*self }
            }),
            (self.iopoll || self.hybrid_iopoll, RingOption::Poll, {
                RingOptions { hybrid_iopoll: false, iopoll: false, ..*self }
            }),
            (self.kind != Kind::Small, RingOption::Big, RingOptions { kind: Kind::Small, ..*self }),
        ];
        for (_, option, options) in without.into_iter().filter(|(asked, ..)| *asked) {
            if matches!(options.try_all(), Ok(Ok(_))) {
                return Error::OptionRefused { option, source };
            }
        }
        Error::explain("io_uring_setup", source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_falls_back_to_big_and_never_to_small() {
        let options = RingOptions { kind: Kind::Mixed, ..RingOptions::default() };
        let kinds: Vec<Kind> = options.candidates().iter().map(|setup| setup.kind).collect();
        assert_eq!(kinds[0], Kind::Mixed);
        assert!(kinds.len() > 3 && kinds[1..].iter().all(|kind| *kind == Kind::Big), "{kinds:?}");
    }

    #[test]
    fn a_submission_thread_excludes_deferred_completion_work() {
        let sqpoll = Some(SqPoll { cpu: None, idle_ms: 10 });
        let options = RingOptions { sqpoll, ..RingOptions::default() };
        assert!(
            options.candidates().iter().all(|setup| !setup.defer_taskrun && !setup.coop_taskrun)
        );
    }

    #[test]
    fn a_shared_ring_is_nobodys_own() {
        let options = RingOptions { shared: true, ..RingOptions::default() };
        assert!(options.candidates().iter().all(|setup| !setup.single_issuer));
    }
}
