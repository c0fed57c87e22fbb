//! Waiting for what a discovery controller reports.

use super::{Client, ClientError, KEEP_ALIVE_MS, Payload, Reason};
use nvme::event::{AsyncEvent, notice};
use nvme::feature::Fid;
use nvme::{Command, opcode};
use std::time::{Duration, Instant};

/// From one Keep Alive to the next.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(KEEP_ALIVE_MS as u64 / 2);

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
            let alive = self.heard + KEEP_ALIVE_INTERVAL;
            let next = until.map_or(alive, |until| until.min(alive));
            let left = next.saturating_duration_since(Instant::now());
            let event = self.link.event(left).map_err(|reason| self.failed(doing, reason))?;
            if event.map(AsyncEvent::from_dword0) == Some(AsyncEvent::DISCOVERY_CHANGE) {
                return Ok(true);
            }
            if event.is_some() {
                // Nobody has asked for others: one after the other is not to keep us busy.
                std::thread::sleep(UNASKED_PAUSE);
            }
            let now = Instant::now();
            if now >= alive {
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
}
