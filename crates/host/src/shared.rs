//! What of a path all threads see.

use crate::Local;
use crate::directory::Directory;
use crate::options::{Address, Options};
use crate::subsystem::{Member, Subsystem};
use association::{Association, Controller, Reason, Traffic};
use namespace::Access;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// One path, as its control thread, its queues and its users share it.
#[derive(Debug)]
pub(crate) struct Shared {
    place: Mutex<Place>,
    /// Who decides where it leads, if that may change.
    pub(crate) directory: OnceLock<Weak<Directory>>,
    pub(crate) options: Options,
    /// This end of its connections.
    pub(crate) local: Local,
    pub(crate) subsystem: Arc<Subsystem>,
    /// Which of its paths this is.
    pub(crate) member: Member,
    access: AtomicU8,
    /// [`Place::Leaving`], for queues: there are no new commands.
    leaving: AtomicBool,
    /// It leads nowhere, and has left nothing to flush where it led.
    clean: AtomicBool,
    /// Commands were sent, and answered, since the control thread last looked.
    sent: AtomicBool,
    answered: AtomicBool,
    standing: Mutex<Standing>,
    changed: Condvar,
    /// How often something may have been lost that was acknowledged: see [`namespace::Unflushed`].
    pub(crate) losses: Arc<Losses>,
    /// See [`namespace::Namespace::retry_delays`].
    retry_delays_ms: [AtomicU64; 3],
    /// As long as nothing is known of the controller.
    pub(crate) settles_at_worst: Duration,
    /// Queues that cores have open.
    queues: AtomicUsize,
    /// Those of them whose connection is live.
    live_queues: AtomicUsize,
    counters: Mutex<Vec<Arc<Counters>>>,
}

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere, and never has.
    Unused,
    /// Nowhere; it has led to this address last.
    Vacant(Address),
    /// To this address.
    At(Address),
    /// To this address, as long as something is in flight there.
    Leaving(Address),
}

/// How the path stands, in words and numbers.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// Why it is not usable.
    pub(crate) reason: Reason,
    /// Attempts that failed.
    pub(crate) failures: u64,
    /// Times that it became live where it leads.
    pub(crate) lives: u64,
    /// Grows whenever what was known of the namespace may be of another: with each association that is live, wherever it leads,
    /// and each change of the namespace.
    pub(crate) survey: u64,
    /// What it leads to.
    pub(crate) controller: Controller,
    pub(crate) nsid: u32,
    /// Where its network interface is.
    pub(crate) numa_node: Option<u32>,
    /// The address of this end.
    pub(crate) source: Option<IpAddr>,
    /// See [`namespace::PathReport::settles`].
    pub(crate) settles: Duration,
}

/// What was acknowledged and may be gone: see [`namespace::Unflushed`].
#[derive(Debug, Default)]
pub(crate) struct Losses {
    count: AtomicU64,
    /// The start of the target that has what was not flushed, if it still runs.
    kept_by: Mutex<Option<[u8; 16]>>,
}

impl Losses {
    /// How often something may have been lost.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether an association has left something of which it is not known yet whether it is gone.
    pub(crate) fn has_left(&self) -> bool {
        self.kept_by().is_some()
    }

    fn kept_by(&self) -> MutexGuard<'_, Option<[u8; 16]>> {
        self.kept_by.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An association has ended with something to flush, or has had an answer since. Whether it is gone may turn out when there
    /// is another one, where controllers tell of which start of their target they are.
    pub(crate) fn leave(&self, instance: Option<[u8; 16]>) {
        let before = std::mem::replace(&mut *self.kept_by(), instance);
        if instance.is_none() || before.is_some_and(|before| Some(before) != instance) {
            self.add();
        }
    }

    /// There is an association with a controller of `instance`. Whether that has what was left.
    pub(crate) fn resume(&self, instance: Option<[u8; 16]>) -> bool {
        let Some(kept_by) = self.kept_by().take() else { return false };
        if Some(kept_by) != instance {
            self.add();
        }
        Some(kept_by) == instance
    }
}

/// What one queue counts; only its own core writes.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) in_flight: AtomicU64,
    pub(crate) submitted: AtomicU64,
    pub(crate) errors: AtomicU64,
    /// Bytes of data that the socket gave straight into the callers' buffers.
    pub(crate) received_direct: AtomicU64,
    /// Those that came by way of the receive buffer.
    pub(crate) received_copied: AtomicU64,
}

/// [`Counters`] of all queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums {
    pub(crate) in_flight: u64,
    pub(crate) submitted: u64,
    pub(crate) errors: u64,
    pub(crate) received_direct: u64,
    pub(crate) received_copied: u64,
}

impl Counters {
    /// Adds to a counter that this thread alone writes.
    #[inline]
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }
}

const STATES: [Access; 6] = [
    Access::Optimized,
    Access::NonOptimized,
    Access::Inaccessible,
    Access::Lost,
    Access::Failing,
    Access::Gone,
];

impl Shared {
    pub(crate) fn new(place: Place, options: Options, subsystem: Arc<Subsystem>) -> Shared {
        // As long as nothing is known of the controller: it may count commands as keep alive, and then its timer runs twice.
        let quiet = Association::new(options.association.clone()).quiet();
        let settles = quiet + options.association.keep_alive_tmo;
        let leads = matches!(place, Place::At(_));
        let access = if leads { Access::Lost } else { Access::Gone };
        Shared {
            place: Mutex::new(place),
            directory: OnceLock::new(),
            local: options.local(0),
            options,
            member: subsystem.member(),
            subsystem,
            access: AtomicU8::new(access as u8),
            leaving: AtomicBool::new(false),
            clean: AtomicBool::new(!leads),
            sent: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            standing: Mutex::new(Standing {
                reason: Reason::Connecting,
                failures: 0,
                lives: 0,
                survey: 0,
                controller: Controller::default(),
                nsid: 0,
                numa_node: None,
                source: None,
                settles,
            }),
            changed: Condvar::new(),
            losses: Arc::default(),
            retry_delays_ms: Default::default(),
            settles_at_worst: settles,
            queues: AtomicUsize::new(0),
            live_queues: AtomicUsize::new(0),
            counters: Mutex::default(),
        }
    }

    /// The same with this end of its connections.
    pub(crate) fn by(self, local: Local) -> Shared {
        Shared { local, ..self }
    }

    /// Where it leads.
    pub(crate) fn place(&self) -> Place {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where it leads, or has led; of a path that never has, an address that is none.
    pub(crate) fn address(&self) -> Address {
        match self.place() {
            Place::At(address) | Place::Leaving(address) | Place::Vacant(address) => address,
            Place::Unused => Address { host: String::new(), port: 0 },
        }
    }

    /// The address that it leads to.
    pub(crate) fn led_to(&self) -> Option<Address> {
        match self.place() {
            Place::At(address) | Place::Leaving(address) => Some(address),
            Place::Vacant(_) | Place::Unused => None,
        }
    }

    /// It leads nowhere.
    pub(crate) fn is_vacant(&self) -> bool {
        matches!(self.place(), Place::Unused | Place::Vacant(_))
    }

    /// It leads to `address` from now on, or no longer. What was known of another is forgotten.
    pub(crate) fn set_place(&self, place: Place) {
        let before = self.address();
        if let Place::At(address) = &place {
            if *address != before {
                self.set_retry_delays([Duration::ZERO; 3]);
            }
            self.change(|standing| {
                standing.reason = Reason::Connecting;
                if *address != before {
                    (standing.failures, standing.lives, standing.nsid) = (0, 0, 0);
                    standing.controller = Controller::default();
                }
            });
        }
        self.leaving.store(matches!(place, Place::Leaving(_)), Ordering::Relaxed);
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }

    /// Something is to be decided anew: a path is live, or lost.
    pub(crate) fn tell_directory(&self) {
        if let Some(directory) = self.directory.get().and_then(Weak::upgrade) {
            directory.arrange_soon();
        }
    }

    /// The association's state.
    #[inline]
    pub(crate) fn access(&self) -> Access {
        STATES[usize::from(self.access.load(Ordering::Relaxed))]
    }

    /// How it stands for commands that are not on their way yet.
    pub(crate) fn access_for_new(&self) -> Access {
        let leaving = self.leaving.load(Ordering::Relaxed);
        let worst = if leaving { Access::Inaccessible } else { Access::Optimized };
        self.access().max(worst)
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.clean.load(Ordering::SeqCst)
    }

    pub(crate) fn set_clean(&self, clean: bool) {
        self.clean.store(clean, Ordering::SeqCst);
    }

    /// The state as users meet it: not usable before an I/O queue is connected, if any was opened.
    pub(crate) fn user_access(&self) -> Access {
        let access = self.access_for_new();
        let none_is_live = self.live_queues.load(Ordering::Relaxed) == 0;
        let unconnected = none_is_live && self.queues.load(Ordering::Relaxed) > 0;
        if unconnected { access.max(Access::Lost) } else { access }
    }

    /// Whether every core that has a queue open can use it.
    pub(crate) fn serves_all(&self) -> bool {
        let all = self.live_queues.load(Ordering::Relaxed) >= self.queues.load(Ordering::Relaxed);
        all && self.access_for_new().is_usable()
    }

    /// Counts one more queue that is open, of `most`. Whether there is room for it.
    pub(crate) fn reserve(&self, most: usize) -> bool {
        let more = |open| (open < most).then_some(open + 1);
        self.queues.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// A queue was closed.
    pub(crate) fn release(&self) {
        self.queues.fetch_sub(1, Ordering::Relaxed);
        self.tell_directory();
    }

    /// A queue has become live, or is so no longer.
    pub(crate) fn note_live(&self, live: bool) {
        if live {
            self.live_queues.fetch_add(1, Ordering::Relaxed);
            self.tell_directory();
        } else {
            self.live_queues.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// None is longer than commands may take here.
    pub(crate) fn set_retry_delays(&self, delays: [Duration; 3]) {
        for (delay, known) in delays.into_iter().zip(&self.retry_delays_ms) {
            let delay = delay.min(self.options.io_timeout);
            known.store(delay.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    pub(crate) fn retry_delays(&self) -> [Duration; 3] {
        let of = |known: &AtomicU64| Duration::from_millis(known.load(Ordering::Relaxed));
        self.retry_delays_ms.each_ref().map(of)
    }

    pub(crate) fn set_access(&self, access: Access) {
        self.access.store(access as u8, Ordering::Relaxed);
    }

    /// Notes what there was on an I/O queue.
    #[inline]
    pub(crate) fn note_traffic(&self, traffic: Traffic) {
        for (now, noted) in [(traffic.sent, &self.sent), (traffic.answered, &self.answered)] {
            if now && !noted.load(Ordering::Relaxed) {
                noted.store(true, Ordering::Relaxed);
            }
        }
    }

    /// What was noted since the last call.
    pub(crate) fn take_traffic(&self) -> Traffic {
        let take = |noted: &AtomicBool| noted.swap(false, Ordering::Relaxed);
        Traffic { sent: take(&self.sent), answered: take(&self.answered) }
    }

    fn lock(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn standing(&self) -> Standing {
        self.lock().clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Standing)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `done`, or `until`.
    pub(crate) fn wait(&self, until: Instant, mut done: impl FnMut(&Standing) -> bool) {
        let mut standing = self.lock();
        while !done(&standing) {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return };
            let waited = self.changed.wait_timeout(standing, left);
            standing = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Counters of a new queue.
    pub(crate) fn new_counters(&self) -> Arc<Counters> {
        let mut all = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of queues that are gone are summed in the first.
        if all.is_empty() {
            all.push(Arc::default());
        }
        let (kept, gone): (Vec<_>, Vec<_>) =
            all.drain(1..).partition(|counters| Arc::strong_count(counters) > 1);
        for counters in gone {
            let sums: [fn(&Counters) -> &AtomicU64; 4] = [
                |it| &it.submitted,
                |it| &it.errors,
                |it| &it.received_direct,
                |it| &it.received_copied,
            ];
            for of in sums {
                Counters::add(of(&all[0]), of(&counters).load(Ordering::Relaxed));
            }
        }
        all.extend(kept);
        let counters = Arc::<Counters>::default();
        all.push(Arc::clone(&counters));
        counters
    }

    /// Sums over all queues.
    pub(crate) fn sums(&self) -> Sums {
        let all = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |of: fn(&Counters) -> &AtomicU64| {
            all.iter().map(|counters| of(counters).load(Ordering::Relaxed)).sum()
        };
        // What a queue had in flight when it was closed comes back to nobody.
        let open = all.iter().filter(|counters| Arc::strong_count(counters) > 1);
        Sums {
            in_flight: open.map(|counters| counters.in_flight.load(Ordering::Relaxed)).sum(),
            submitted: sum(|it| &it.submitted),
            errors: sum(|it| &it.errors),
            received_direct: sum(|it| &it.received_direct),
            received_copied: sum(|it| &it.received_copied),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_same_start_of_a_target_still_has_is_not_lost() {
        let losses = Losses::default();
        let starts = [Some([1; 16]), Some([2; 16])];
        losses.leave(starts[0]);
        // An answer that one core had yet to take when the association had ended.
        losses.leave(starts[0]);
        assert!(losses.has_left() && losses.resume(starts[0]) && losses.count() == 0);
        losses.leave(starts[0]);
        losses.leave(starts[1]);
        assert_eq!(losses.count(), 1, "the first has gone");
        assert!(!losses.resume(starts[0]) && losses.count() == 2);
        losses.leave(None);
        assert!(losses.count() == 3 && !losses.resume(None));
    }
}
