//! What is lost for too long: commands fail by it, and then it is given up. One that was given up is tried again as long as
//! not all paths to the namespace have been.

use super::{Association, State};
use crate::Reason;
use std::time::Duration;

impl Association {
    /// Gives up what has been lost for too long: commands, or the path.
    pub(super) fn expire(&mut self, now: Duration) {
        let due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        if due(self.fail_at()) {
            self.failing = true;
            self.tell();
        }
        if due(self.gone_at()) {
            self.hang_up();
            let last = std::mem::replace(&mut self.reason, Reason::Closed);
            self.give_up(now, last);
            self.tell();
        }
    }

    /// The path is given up, and tried again later.
    pub(super) fn give_up(&mut self, now: Duration, last: Reason) {
        (self.state, self.given_up) = (State::Gone, true);
        self.again_at = Some(now.saturating_add(self.config.reconnect_delay));
        let after = self.config.ctrl_loss_tmo.unwrap_or_default();
        self.reason = Reason::GivenUp { after, last: Box::new(last) };
    }

    /// Begins an attempt by a path that was given up, if that is worth one now.
    pub(super) fn try_again(&mut self, now: Duration) {
        self.again_at = None;
        if self.state != State::Gone {
            return;
        }
        if self.has_company {
            self.dial(now);
        } else {
            self.again_at = Some(now.saturating_add(self.config.reconnect_delay));
        }
    }

    pub(super) fn fail_at(&self) -> Option<Duration> {
        let (fast, all) = (self.config.fast_io_fail_tmo, self.config.ctrl_loss_tmo);
        // A controller without the namespace is not given up, but commands do not wait longer for it.
        let after = if self.is_live() { fast.into_iter().chain(all).min() } else { fast };
        let may_fail = !self.failing && !self.given_up && self.is_wanted();
        let since = self.lost_since.filter(|_| may_fail)?;
        self.due(since, after)
    }

    pub(super) fn gone_at(&self) -> Option<Duration> {
        let may_go = !self.is_live() && !self.given_up && self.is_wanted();
        let since = self.lost_since.filter(|_| may_go)?;
        self.due(since, self.config.ctrl_loss_tmo)
    }

    /// No time at all, as Linux has it, is none once it is lost: an attempt that has begun, the first, is waited for.
    fn due(&self, since: Duration, after: Option<Duration>) -> Option<Duration> {
        let is_trying = self.is_up() && !self.is_live();
        let after = after.filter(|after| !(after.is_zero() && is_trying))?;
        Some(since.saturating_add(after))
    }
}
