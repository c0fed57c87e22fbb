//! The orderly end: a controller that is told of it (CC.SHN) need not guess what has become of its host.

use super::{Association, READY_POLL, State};
use crate::Reason;
use crate::admin::Purpose;
use nvme::Completion;
use nvme::fabrics::Csts;
use std::time::Duration;

/// What a controller gets for it: somebody may wait for us to end.
pub const SHUTDOWN_TIME: Duration = Duration::from_secs(1);

impl Association {
    /// Ends everything as [`Association::close`] does, but tells a controller that is live first, and waits until it has
    /// shut down, for [`SHUTDOWN_TIME`] at most. Until then it [is closing](Association::is_closing). To be called once
    /// nothing is in flight on I/O queues.
    pub fn shut_down(&mut self, now: Duration) {
        if self.state != State::Live {
            return self.close();
        }
        self.state = State::Closing { until: now + SHUTDOWN_TIME };
        (self.ready_at, self.keep_alive_at, self.recheck_at) = (None, None, None);
        self.listen_at = None;
        self.wanted = 0;
        (self.proposed, self.found) = (None, None);
        self.end_search();
        self.reason = Reason::Closed;
        self.tell();
        self.send(now, Purpose::Shutdown);
    }

    /// Whether there is a connection yet by which the controller is told of the end.
    pub fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing { .. })
    }

    /// Something was answered while it is closing.
    pub(super) fn shutdown_answered(
        &mut self,
        now: Duration,
        purpose: Purpose,
        completion: &Completion,
    ) {
        let goes_on = completion.status().is_success();
        match purpose {
            Purpose::Shutdown if goes_on => self.send(now, Purpose::Ready),
            Purpose::Ready if goes_on => {
                let status = completion.result.get() as u32;
                match status & (Csts::SHST | Csts::CFS) {
                    0 | Csts::SHST_OCCURRING => self.ready_at = Some(now + READY_POLL),
                    _ => self.close(),
                }
            }
            Purpose::Shutdown | Purpose::Ready => self.close(),
            // Nobody waits for that any more.
            _ => {}
        }
    }
}
