//! Waiting for what a discovery controller reports.

use super::{Client, ClientError, Payload, Reason};
use nvme::event::{AsyncEvent, notice};
use nvme::feature::Fid;
use nvme::{Command, opcode};
use std::time::{Duration, Instant};

/// One look at the connection: what sockets and clocks can count.
const LOOK_MAX: Duration = Duration::from_secs(3600);

/// After an event that is not what was asked for.
const UNASKED_PAUSE: Duration = Duration::from_millis(10);

impl Client {
    /// Waits until the discovery log has changed since it was read last, or for `within`. Whether it has.
    /// The controller is kept alive meanwhile; it reports the next change once the log was read.
    ///
    /// # Errors
    /// The controller does not tell, or the connection failed.
    pub fn discovery_change(&mut self, within: Duration) -> Result<bool, ClientError> {
        let doing = "waiting for changes of its discovery log";
        if !self.tells_changes {
            if self.identify_controller()?.oaes.get() & notice::DISCOVERY_CHANGE == 0 {
                return Err(self.failed(doing, Reason::NoEvents));
            }
            let set = Command {
                opcode: opcode::admin::SET_FEATURES,
                cdw10: u32::from(Fid::ASYNC_EVENT_CONFIGURATION.0).into(),
                cdw11: notice::DISCOVERY_CHANGE.into(),
                ..Command::default()
            };
            self.execute(set, Payload::None, doing)?;
            self.tells_changes = true;
        }
        // None where that is beyond what the clock can tell.
        let until = Instant::now().checked_add(within);
        loop {
            let alive = self.next_keep_alive();
            let next = until.into_iter().chain(alive).min();
            let now = Instant::now();
            let left = next.map_or(LOOK_MAX, |next| next.saturating_duration_since(now));
            let event =
                self.link.event(left.min(LOOK_MAX)).map_err(|reason| self.failed(doing, reason))?;
            if event.map(AsyncEvent::from_dword0) == Some(AsyncEvent::DISCOVERY_CHANGE) {
                return Ok(true);
            }
            if event.is_some() {
                // Nobody has asked for others: one after the other is not to keep us busy.
                std::thread::sleep(UNASKED_PAUSE);
            }
            let now = Instant::now();
            if alive.is_some_and(|alive| now >= alive) {
                let keep_alive =
                    Command { opcode: opcode::admin::KEEP_ALIVE, ..Command::default() };
                self.execute(keep_alive, Payload::None, "Keep Alive")?;
                self.heard = now;
            }
            if until.is_some_and(|until| now >= until) {
                return Ok(false);
            }
        }
    }

    /// When it is to be sent a Keep Alive, if ever.
    fn next_keep_alive(&self) -> Option<Instant> {
        let interval = Some(self.keep_alive / 2).filter(|interval| !interval.is_zero());
        interval.and_then(|interval| self.heard.checked_add(interval))
    }
}
