//! The admin queue of a controller that demands it proves who this host is before anything else is sent.

use super::{Action, Association};
use crate::Reason;
use crate::admin::{Built, Purpose};
use crate::authentication::{Authentication, AuthenticationCommand, Credentials, Next};
use dhchap::Done;
use nvme::Status;
use nvme::fabrics::ConnectResult;
use std::time::Duration;

impl Association {
    /// By what this host proves who it is from the next connection on; none by default.
    pub fn set_credentials(&mut self, credentials: Option<Credentials>) {
        self.credentials = credentials;
    }

    /// By what it proves who it is, on I/O queues too ([`Authentication`]).
    pub fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Connect has succeeded.
    pub(super) fn connected(&mut self, now: Duration, result: ConnectResult) -> Result<(), Reason> {
        match Authentication::begin(self.credentials.as_ref(), 0, result)? {
            None => self.send(now, Purpose::Capabilities),
            Some((authentication, first)) => {
                self.authentication = Some(authentication);
                self.send_authentication(now, first);
            }
        }
        Ok(())
    }

    /// An Authentication Send or Receive was answered.
    pub(super) fn authenticated(
        &mut self,
        now: Duration,
        status: Status,
        data: &[u8],
    ) -> Result<(), Reason> {
        let authentication = self.authentication.as_mut().expect("its command was sent");
        let next = authentication.answered(status, data);
        self.next_of_authentication(now, next)
    }

    /// The answer to [`Action::Compute`], if it is one to the last.
    pub(super) fn computed(&mut self, now: Duration, done: Done) {
        let waits = |it: &&mut Authentication| it.is_computing();
        let Some(authentication) = self.authentication.as_mut().filter(waits) else { return };
        self.compute_until = None;
        let next = authentication.computed(done);
        if let Err(reason) = self.next_of_authentication(now, next) {
            self.lost(now, reason);
        }
    }

    /// Why a connection has ended. Some controllers (Linux's nvmet) end it at times before they have said that they do not
    /// believe this host.
    pub(super) fn seen_in_exchange(&self, reason: Reason) -> Reason {
        match reason {
            Reason::Transport(words) if self.authentication.is_some() => {
                Reason::Transport(format!("{words} during authentication: do the keys differ?"))
            }
            reason => reason,
        }
    }

    fn next_of_authentication(&mut self, now: Duration, next: Next) -> Result<(), Reason> {
        match next {
            Next::Command(command) => self.send_authentication(now, command),
            Next::Compute(work) => {
                self.compute_until = Some(now + self.config.admin_timeout);
                let generation = self.generation;
                self.actions.push_back(Action::Compute { generation, work });
            }
            Next::Proven => {
                self.authentication = None;
                self.send(now, Purpose::Capabilities);
            }
            Next::Failed(reason, last) => {
                if let Some(last) = last {
                    self.send_authentication(now, last);
                }
                return Err(reason);
            }
        }
        Ok(())
    }

    fn send_authentication(&mut self, now: Duration, command: AuthenticationCommand) {
        let AuthenticationCommand { command, data, answer_bytes } = command;
        let receives = answer_bytes > 0;
        let purpose =
            if receives { Purpose::AuthenticationReceive } else { Purpose::AuthenticationSend };
        self.transmit(now, purpose, Built { command, data, answer_bytes });
    }
}
