//! Sleeping elsewhere: a descriptor that a loop of the caller's polls, in place of an enter of ours.
//!
//! ```text
//!   completions of the ring, and of further rings   --kernel-->  \
//!   letters, blocking work that has ended           --mailbox->   eventfd --> the caller's poll, epoll ...
//!   the earliest timer, as a timeout of the ring    --kernel-->  /
//! ```
//!
//! The ring's own descriptor would not do: with `IORING_SETUP_DEFER_TASKRUN` nobody who polls it is woken while
//! completion work waits for an enter (seen on Linux 6.18), and without that flag such work interrupts the caller's
//! `epoll_wait` (`EINTR`). A registered eventfd is told when work begins to wait. Letters write it themselves rather than by the
//! ring's read of the mailbox, since the kernel tells an eventfd of another eventfd's write some 15 ms late.

use crate::Reactor;
use crate::reactor::State;
use crate::slots::OWN;
use std::cell::{Cell, UnsafeCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};
use uring::entry::{self, Timespec};

/// `user_data` of the timeout that stands for the earliest timer.
pub(crate) const ALARM: u64 = OWN | 2;

/// Longer timeouts end here, as waits do: the kernel adds them to its clock.
const LIMIT_MAX: Duration = Duration::from_nanos(1 << 62);

/// Why nobody can be woken by a descriptor.
#[derive(Debug, thiserror::Error)]
pub enum OutsideError {
    /// The loop was made to look all the time ([`crate::Config::poll_always`]).
    #[error(
        "completions are polled for all the time, as was asked for: no descriptor tells of them; make it one that may sleep"
    )]
    PollsAlways,
    /// A ring with something in flight is one that has to be looked at.
    #[error(
        "commands are in flight whose completions are polled for, or that a thread of the kernel submits: no descriptor \
         tells of them; open the volume without poll, hybrid and sqpoll"
    )]
    Polls,
    /// No eventfd, or the ring takes none.
    #[error("no descriptor to be woken by (open files are limited by `ulimit -n`): {0}")]
    Eventfd(#[source] io::Error),
}

/// What a reactor knows of sleep outside.
#[derive(Default)]
pub(crate) struct Outside {
    /// The ring knows the eventfd.
    registered: Cell<bool>,
    /// When the ring's timeout ends, if there is one in flight.
    pub(crate) alarm: Cell<Option<Instant>>,
    /// For its entry, until the kernel has taken that.
    limit: UnsafeCell<Timespec>,
}

impl Reactor {
    /// A descriptor that can be polled for reading (`poll`, `epoll`): see [`Reactor::arm`]. The same at each call; it is for
    /// polling only.
    ///
    /// # Errors
    /// The loop never sleeps; no descriptor is to be had.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>, OutsideError> {
        if self.config.poll_always {
            return Err(OutsideError::PollsAlways);
        }
        let event = self.mailbox.outside().map_err(OutsideError::Eventfd)?.as_fd();
        if !self.outside.registered.get() {
            let registered = self.ring.borrow_mut().register_eventfd(event);
            registered.map_err(OutsideError::Eventfd)?;
            self.outside.registered.set(true);
        }
        let ring = self.ring.borrow();
        if !ring.setup().emulated {
            return Ok(event);
        }
        // SAFETY: the ring's own, which stays as long as the reactor does.
        Ok(unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) })
    }

    /// To be called last before the caller sleeps on [`Reactor::descriptor`]: hands over what was started, and has the
    /// descriptor become readable as soon as a turn ([`Reactor::turn_for`]) finds something to do, or sooner. `false` if
    /// there is something to do now: take a turn, and come back. Never blocks.
    ///
    /// # Errors
    /// As for [`Reactor::descriptor`]; and where completions are in flight of which only looking tells.
    ///
    /// # Panics
    /// When called from within a turn.
    pub fn arm(&self) -> Result<bool, OutsideError> {
        let _turning = self.begin_turns();
        self.descriptor()?;
        let event = self.mailbox.outside().map_err(OutsideError::Eventfd)?;
        if self.commands.poll() {
            return Err(OutsideError::Polls);
        }
        // What it has told of until now. What has come since the last turn is looked for below.
        let told = rustix::io::read(event, &mut [0; 8]);
        debug_assert!(told.is_ok() || told == Err(rustix::io::Errno::AGAIN), "{told:?}");
        let idle = self.state.get() == State::Running
            && self.park_all()
            && !self.is_pressed()
            && (!self.commands.any() || self.commands.arm(self))
            && self.set_alarm();
        // Also where there is something to do: it takes this along.
        self.flush_first();
        Ok(idle && self.is_flushed() && self.mailbox.fall_asleep_outside())
    }

    /// Makes the descriptor readable: for callers that would go on only later.
    ///
    /// # Panics
    /// Before the first call of [`Reactor::descriptor`].
    pub fn rouse(&self) {
        self.mailbox.rouse();
    }

    /// Whether the kernel has all that was started, and nothing that it tells of already.
    fn is_flushed(&self) -> bool {
        let ring = self.ring.borrow();
        self.backlog.borrow().is_empty()
            && ring.queued() == 0
            && !ring.has_completions()
            && !ring.wants_enter()
    }

    /// Has the ring complete something by the time the earliest timer is due. `false` if one is due.
    fn set_alarm(&self) -> bool {
        let Some(at) = self.timers.borrow_mut().next() else { return true };
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let armed = self.outside.alarm.get();
        if armed.is_some_and(|armed| armed <= at) {
            return true;
        }
        let limit = self.outside.limit.get();
        // SAFETY: nobody else is at it; an entry that the kernel has not taken yet has its limit changed to the earlier one.
        unsafe { limit.write(left.min(LIMIT_MAX).into()) };
        let entry = match armed {
            None => entry::timeout(limit).user_data(ALARM),
            // Of a success nobody needs to be told; otherwise the alarm is just going off.
            Some(_) => {
                let update = entry::timeout_update(ALARM, limit).user_data(OWN);
                update.flags(entry::Flags::SKIP_SUCCESS)
            }
        };
        // SAFETY: `limit` lives in the reactor, and is read when the kernel takes the entry, which no kernel does after that.
        unsafe { self.queue(entry) };
        self.outside.alarm.set(Some(at));
        true
    }
}
