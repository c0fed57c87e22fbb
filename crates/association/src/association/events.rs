//! Requests of events. A controller that has one after the other to report, as where a script changes hundreds of namespaces,
//! is asked for the next one a while later: it reports what has changed until then.

use super::Association;
use crate::admin::Purpose;
use std::time::Duration;

/// Events in a row, none later than so long after it was asked for: from then on there are ten a second at most.
const IN_A_ROW_MAX: u32 = 256;
const EVENT_TIME: Duration = Duration::from_millis(100);

impl Association {
    /// Asks for the next event.
    pub(super) fn listen(&mut self, now: Duration) {
        self.listen_at = None;
        self.events.0 = now;
        self.send(now, Purpose::Event);
    }

    /// An event has come: asks for the next one, now or later.
    pub(super) fn listen_on(&mut self, now: Duration) {
        let (asked, count) = self.events;
        let in_a_row = now.saturating_sub(asked) < EVENT_TIME;
        self.events.1 = if in_a_row { count.saturating_add(1) } else { 1 };
        if self.events.1 <= IN_A_ROW_MAX {
            self.listen(now);
        } else {
            self.listen_at = Some(now + EVENT_TIME);
        }
    }
}
