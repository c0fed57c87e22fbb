//! Where a path leads, if that may change (`directory`).
//!
//! ```text
//!   vacant --occupy--> leads to an address --vacate--> leaving: no new commands --idle and flushed--> vacant
//!                          ^   |                          |                  '--- too late, or lost ---^
//!                          '---+--------- occupy ---------'                                            |
//!                              '------------------------- vacate, while it is not live ----------------'
//! ```
//!
//! What a path that is let go has acknowledged is made durable first, by a Flush of its own, so that nobody needs one there
//! any more (`clean`, until there is another association). Until then a Flush of its users goes there too, as to any path
//! that is live. That every core knows is waited for: what one sends meanwhile is answered as well.

use super::{Control, Driver, local};
use crate::flush::flush;
use crate::options::Address;
use crate::shared::Place;
use association::Reason;
use nvme::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

pub(super) const TOKEN_LEAVING: u64 = 1;

/// From one look to the next whether a path that is let go has something in flight.
const LEAVING_INTERVAL: Duration = Duration::from_millis(10);

/// From a Flush that has failed to the next.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// A path that is let go.
pub(super) struct Leaving {
    /// At the latest then.
    until: Instant,
    control: Arc<Control>,
    /// The path's number.
    id: u64,
    /// Letters to cores that those have not read yet.
    unread: Arc<AtomicUsize>,
    flush: Flushing,
}

enum Flushing {
    /// None was wanted yet.
    Not,
    /// It is on its way.
    Sent(Receiver<Status>),
    /// It has failed; the next one is sent then.
    Failed(Instant),
    /// It makes no sense to send another.
    Refused,
}

/// Counted until its core has read it, or is gone.
struct Letter(Arc<AtomicUsize>);

impl Letter {
    fn to_be_read(unread: &Arc<AtomicUsize>) -> Letter {
        unread.fetch_add(1, Ordering::Relaxed);
        Letter(Arc::clone(unread))
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Flushing {
    /// Notes how the one on its way has ended.
    fn look(&mut self) {
        let Flushing::Sent(answer) = self else { return };
        *self = match answer.try_recv() {
            Err(TryRecvError::Empty) => return,
            Ok(status) if status.is_success() => Flushing::Not,
            Ok(status) if status == status.dnr() => Flushing::Refused,
            Ok(_) | Err(TryRecvError::Disconnected) => {
                Flushing::Failed(Instant::now() + FLUSH_INTERVAL)
            }
        };
    }

    fn may_begin(&self) -> bool {
        match self {
            Flushing::Not => true,
            Flushing::Failed(until) => Instant::now() >= *until,
            Flushing::Sent(_) | Flushing::Refused => false,
        }
    }
}

impl Driver {
    /// The path leads to `address` from now on; before, it led nowhere, was lost or given up there or elsewhere, or was to
    /// be let go. It is never seen to be gone in between.
    pub(crate) fn occupy(&self, address: Address) {
        self.leaving.take();
        // Live elsewhere it is of no use: it was given up there, say because the namespace is gone.
        let is_there = self.shared.led_to().as_ref() == Some(&address);
        if is_there && self.association.borrow().is_live() {
            tracing::info!(peer = %address, "path stays");
            self.shared.set_place(Place::At(address));
        } else {
            tracing::info!(peer = %address, "path is to be connected");
            if self.shared.address() != address {
                self.shared.subsystem.forget(self.shared.member);
            }
            self.shared.set_place(Place::At(address));
            self.association.borrow_mut().close();
            let config = self.shared.options.association.clone();
            self.association.borrow_mut().start_elsewhere(self.now(), config);
            self.pump();
        }
        self.shared.set_access(local(self.association.borrow().access()));
        self.each_queue(|handle| handle.tell(|queue| queue.access_changed(false)));
        self.shared.tell_directory();
    }

    /// The path, which `control` knows by `id`, is to lead nowhere: at once, if it is not live; otherwise when what is in
    /// flight has come back, and all of it is durable.
    pub(crate) fn vacate(&self, control: &Arc<Control>, id: u64) {
        let address = self.shared.address();
        if !self.association.borrow().is_live() {
            let reason = self.association.borrow().reason().to_string();
            tracing::info!(peer = %address, "path is let go: discovery names it no longer, and it was lost: {reason}");
            return self.let_go();
        }
        if self.leaving.borrow().is_some() {
            return;
        }
        tracing::info!(peer = %address, "path is let go: discovery names it no longer");
        self.shared.set_place(Place::Leaving(address));
        self.shared.change(|standing| standing.reason = Reason::Leaving);
        let unread = Arc::<AtomicUsize>::default();
        self.each_queue(|handle| {
            let letter = Letter::to_be_read(&unread);
            handle.tell(move |queue| {
                queue.access_changed(false);
                drop(letter);
            });
        });
        let until = Instant::now() + self.shared.options.io_timeout;
        let (control, flush) = (Arc::clone(control), Flushing::Not);
        self.leaving.replace(Some(Leaving { until, control, id, unread, flush }));
        self.look_later();
    }

    fn look_later(&self) {
        let me = self.me.upgrade().expect("it is being called");
        self.reactor.timer(Instant::now() + LEAVING_INTERVAL, me, TOKEN_LEAVING);
    }

    fn has_to_flush(&self) -> bool {
        self.live.borrow().as_ref().is_some_and(|(_, params)| params.has_to_flush())
    }

    pub(super) fn look_whether_it_may_go(&self) {
        let is_over = {
            let mut leaving = self.leaving.borrow_mut();
            let Some(leaving) = &mut *leaving else { return };
            leaving.flush.look();
            let is_idle = leaving.unread.load(Ordering::Acquire) == 0
                && !matches!(leaving.flush, Flushing::Sent(_))
                && self.shared.sums().in_flight == 0;
            let wants_flush = is_idle && self.has_to_flush();
            let left = leaving.until.saturating_duration_since(Instant::now());
            if wants_flush && leaving.flush.may_begin() && !left.is_zero() {
                leaving.flush = Flushing::Sent(self.start_flush(leaving, left));
            }
            let is_done = is_idle && (!wants_flush || matches!(leaving.flush, Flushing::Refused));
            is_done || left.is_zero()
        };
        if is_over { self.let_go() } else { self.look_later() }
    }

    fn start_flush(&self, leaving: &Leaving, timeout: Duration) -> Receiver<Status> {
        let (sender, receiver) = channel();
        flush(&leaving.control, leaving.id, &self.shared, &self.reactor, (timeout, sender));
        receiver
    }

    fn let_go(&self) {
        let address = self.shared.address();
        // Before anybody sees that it is gone. Of an association that has ended before nobody knows what it has left.
        let clean = self.association.borrow().is_live() && !self.has_to_flush();
        self.shared.set_clean(clean);
        self.association.borrow_mut().close();
        self.pump();
        if self.shared.losses.has_left() {
            // Something was answered just then.
            self.shared.set_clean(false);
        }
        tracing::info!(peer = %address, "path is closed");
        self.leaving.take();
        self.shared.subsystem.forget(self.shared.member);
        self.shared.set_place(Place::Vacant(address));
        // There may be an address that waits for room.
        self.shared.tell_directory();
    }
}
