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
//! any more (`clean`). Until then a Flush of its users goes there too, as to any path that is live.

use super::{Control, Driver, local};
use crate::flush::flush;
use crate::options::Address;
use crate::shared::Place;
use association::Reason;
use nvme::Status;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

pub(super) const TOKEN_LEAVING: u64 = 1;

/// From one look to the next whether a path that is let go has something in flight.
const LEAVING_INTERVAL: Duration = Duration::from_millis(10);

/// A path that is let go.
pub(super) struct Leaving {
    /// At the latest then.
    until: Instant,
    control: Arc<Control>,
    /// The path's number.
    id: u64,
    /// How its last Flush has ended.
    flush: Option<Receiver<Status>>,
}

impl Driver {
    /// The path leads to `address` from now on; before, it led nowhere, was given up there, or was to be let go.
    pub(crate) fn occupy(&self, address: Address) {
        self.leaving.take();
        self.shared.set_leaving(false);
        self.shared.set_clean(false);
        self.shared.set_place(Place::At(address.clone()));
        if self.association.borrow().is_live() {
            tracing::info!(peer = %address, "path stays");
        } else {
            tracing::info!(peer = %address, "path is to be connected");
            self.association.borrow_mut().start(self.now());
        }
        self.shared.set_access(local(self.association.borrow().access()));
        self.tell_queues();
        self.pump();
    }

    /// The path, which `control` knows by `id`, is to lead nowhere: at once, if it is not live; otherwise when what is in
    /// flight has come back, and all of it is durable.
    pub(crate) fn vacate(&self, control: &Arc<Control>, id: u64) {
        if !self.association.borrow().is_live() {
            return self.let_go();
        }
        if self.leaving.borrow().is_some() {
            return;
        }
        let address = self.shared.address();
        tracing::info!(peer = %address, "path is let go: discovery names it no longer");
        self.shared.set_place(Place::Leaving(address));
        self.shared.set_leaving(true);
        self.shared.change(|standing| standing.reason = Reason::Leaving);
        let until = Instant::now() + self.shared.options.io_timeout;
        let control = Arc::clone(control);
        self.leaving.replace(Some(Leaving { until, control, id, flush: None }));
        self.tell_queues();
        self.look_later();
    }

    fn tell_queues(&self) {
        self.each_queue(|handle| handle.tell(|queue| queue.access_changed()));
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
            let flush = leaving.flush.as_ref().map(Receiver::try_recv);
            let is_flushing = matches!(flush, Some(Err(TryRecvError::Empty)));
            let is_idle = !is_flushing && self.shared.sums().in_flight == 0;
            let is_late = Instant::now() >= leaving.until;
            if is_idle && !is_late && self.has_to_flush() {
                leaving.flush = Some(self.start_flush(leaving));
                false
            } else {
                is_idle || is_late
            }
        };
        if is_over { self.let_go() } else { self.look_later() }
    }

    fn start_flush(&self, leaving: &Leaving) -> Receiver<Status> {
        let (sender, receiver) = channel();
        let timeout = self.shared.options.association.admin_timeout;
        flush(&leaving.control, leaving.id, &self.shared, &self.reactor, (timeout, sender));
        receiver
    }

    fn let_go(&self) {
        let address = self.shared.address();
        // Of an association that has ended before nobody knows what it has left.
        let clean = self.association.borrow().is_live() && !self.has_to_flush();
        self.association.borrow_mut().close();
        self.pump();
        tracing::info!(peer = %address, "path is closed");
        self.leaving.take();
        self.shared.set_leaving(false);
        self.shared.set_clean(clean);
        self.shared.set_place(Place::Vacant(address));
    }
}
