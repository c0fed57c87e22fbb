//! A core that has got none of the I/O queues that the controller grants.
//!
//! Its commands go by other paths. Where there is none they wait as for a path that is lost, and as long: nothing
//! says that the controller will ever grant more, but a core that has one may close it.

use super::{IoQueue, TOKEN_LEFT_OUT};
use namespace::Access;
use reactor::{Reactor, TimerId};
use std::cell::Cell;

#[derive(Default)]
pub(super) struct LeftOut {
    /// When that will have been too long, unless a queue is live before.
    due: Cell<Option<TimerId>>,
    failing: Cell<bool>,
}

impl LeftOut {
    /// It has a queue, or needs none any more.
    pub(super) fn end(&self, reactor: &Reactor) {
        self.failing.set(false);
        if let Some(due) = self.due.take() {
            reactor.cancel_timer(due);
        }
    }

    /// How the path stands at best for a core whose queue is not live.
    #[inline]
    pub(super) fn access(&self) -> Access {
        if self.failing.get() { Access::Failing } else { Access::Lost }
    }
}

impl IoQueue {
    /// The association is live, and has no queue for this core.
    pub(crate) fn left_out(&self) {
        let LeftOut { due, failing } = &self.left_out;
        if self.live.get() || failing.get() || due.get().is_some() {
            return;
        }
        let config = &self.shared.options.association;
        let after = config.fast_io_fail_tmo.into_iter().chain(config.ctrl_loss_tmo).min();
        let at = after.and_then(|after| self.reactor.now().checked_add(after));
        due.set(at.map(|at| self.reactor.timer(at, self.me(), TOKEN_LEFT_OUT)));
    }

    pub(super) fn left_out_for_long(&self) {
        self.left_out.due.set(None);
        self.left_out.failing.set(true);
        let peer = self.shared.address();
        tracing::error!(%peer, "a core has had no I/O queue for too long: this path fails its commands");
        self.tell_watcher();
    }
}
