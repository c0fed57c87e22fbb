//! How a host proves who it is on one queue, admin or I/O: the steps of DH-HMAC-CHAP as commands.
//!
//! ```text
//!   Connect answered --begin--> Command --answered--> Command | Compute | Proven | Failed
//!                                                        ^        |
//!                                                        '--computed
//! ```

use crate::Reason;
use dhchap::{Done, Failure, Host, HostConfig, MESSAGE_BYTES_MAX, Step, Work};
use nvme::fabrics::ConnectResult;
use nvme::{Command, Status, fabrics};
use std::fmt;

/// Room for a message that is fetched, as much as Linux asks for.
const RECEIVE_BYTES: u32 = 4096;
const _: () = assert!(RECEIVE_BYTES as usize >= MESSAGE_BYTES_MAX);

/// By what a host proves who it is, on every queue of an association.
#[derive(Clone)]
pub struct Credentials {
    /// Names and keys. A controller whose key is among them has to prove who it is as well.
    pub config: HostConfig,
    /// Gives bytes that nobody can foresee.
    pub random: fn(&mut [u8]),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

/// An Authentication Send or Receive; whoever sends it adds the identifier.
#[derive(Debug)]
pub struct AuthenticationCommand {
    /// The command.
    pub command: Command,
    /// Data that goes in its capsule.
    pub data: Vec<u8>,
    /// Room for what comes: the controller may send less.
    pub answer_bytes: u32,
}

impl AuthenticationCommand {
    fn send(data: Vec<u8>) -> AuthenticationCommand {
        let command = fabrics::Authentication::send(data.len() as u32);
        AuthenticationCommand { command, data, answer_bytes: 0 }
    }

    fn receive() -> AuthenticationCommand {
        let command = fabrics::Authentication::receive(RECEIVE_BYTES);
        AuthenticationCommand { command, data: Vec::new(), answer_bytes: RECEIVE_BYTES }
    }
}

/// What is next.
#[derive(Debug)]
pub enum Next {
    /// Send this, and give the answer to [`Authentication::answered`].
    Command(AuthenticationCommand),
    /// Do this where nobody waits, and give what comes of it to [`Authentication::computed`].
    Compute(Work),
    /// Any other command may be sent.
    Proven,
    /// Send this if there is something, without waiting for an answer, and close the connection.
    Failed(Reason, Option<AuthenticationCommand>),
}

/// The host's side of one queue. Every step of it ends in another, or in the end: there are eight at most.
#[derive(Debug)]
pub struct Authentication {
    host: Host,
    random: fn(&mut [u8]),
    awaits: Awaits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    /// That a message was taken, before one is fetched.
    Sent,
    /// The same of the last one.
    LastSent,
    /// A message.
    Received,
    Computed,
}

impl Authentication {
    /// What Connect's `result` on queue `queue` demands, if anything; and the first command then.
    ///
    /// # Errors
    /// It demands what there is no key for, or what is not supported. Or it demands nothing of the admin queue, and the
    /// controller was to prove who it is.
    pub fn begin(
        credentials: Option<&Credentials>,
        queue: u16,
        result: ConnectResult,
    ) -> Result<Option<(Authentication, AuthenticationCommand)>, Reason> {
        if result.secure_channel() {
            return Err(Reason::SecureChannel);
        }
        match credentials {
            None if result.authenticate() => Err(Reason::KeyWanted),
            Some(Credentials { config, random }) if result.authenticate() => {
                // One exchange at a time on each queue, so that its id tells them apart.
                let host = Host::new(config.clone(), queue);
                let first = AuthenticationCommand::send(host.open());
                let awaits = Awaits::Sent;
                Ok(Some((Authentication { host, random: *random, awaits }, first)))
            }
            // Of I/O queues Linux (6.18 and later) demands nothing: there the admin queue's proof has to do.
            Some(it) if queue == 0 && it.config.controller_keys.is_some() => Err(Reason::Unproven),
            _ => Ok(None),
        }
    }

    /// The command was answered.
    pub fn answered(&mut self, status: Status, data: &[u8]) -> Next {
        if !status.is_success() {
            let fetched = self.awaits == Awaits::Received;
            let what = if fetched { "Authentication Receive" } else { "Authentication Send" };
            return Next::Failed(Reason::Failed { what, status }, None);
        }
        match self.awaits {
            Awaits::Sent => {
                self.awaits = Awaits::Received;
                Next::Command(AuthenticationCommand::receive())
            }
            Awaits::LastSent => Next::Proven,
            Awaits::Received => {
                let step = self.host.received(data, &mut self.random);
                self.go_on(step)
            }
            Awaits::Computed => unreachable!("no command is outstanding"),
        }
    }

    /// Whether [`Authentication::computed`] is what it waits for.
    pub fn is_computing(&self) -> bool {
        self.awaits == Awaits::Computed
    }

    /// What was to be computed is there.
    pub fn computed(&mut self, done: Done) -> Next {
        let step = self.host.computed(done, &mut self.random);
        self.go_on(step)
    }

    fn go_on(&mut self, step: Step) -> Next {
        match step {
            Step::Send(message) => {
                self.awaits = Awaits::Sent;
                Next::Command(AuthenticationCommand::send(message))
            }
            Step::Work(work) => {
                self.awaits = Awaits::Computed;
                Next::Compute(work)
            }
            Step::Proven(None) => Next::Proven,
            Step::Proven(Some(message)) => {
                self.awaits = Awaits::LastSent;
                Next::Command(AuthenticationCommand::send(message))
            }
            Step::Failed(failure, last) => {
                // What has a last word is our own judgement.
                let reason = match (failure, &last) {
                    (Failure::Failed, Some(_)) => Reason::OtherController,
                    (failure, Some(_)) => Reason::Authentication(failure),
                    (failure, None) => Reason::Refused(failure),
                };
                Next::Failed(reason, last.map(AuthenticationCommand::send))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dhchap::Key;
    use std::sync::Arc;

    #[test]
    fn the_admin_queue_proves_for_io_queues_of_which_nothing_is_demanded() {
        let key = |seed: u8| Arc::new(Key::generate(None, &mut |bytes| bytes.fill(seed)));
        let config = HostConfig {
            host_nqn: "nqn.x:h".into(),
            subsystem_nqn: "nqn.x:s".into(),
            host_key: key(1),
            controller_keys: Some([key(2)].into()),
        };
        let credentials = Credentials { config, random: |bytes| bytes.fill(3) };
        let begin =
            |queue, bits| Authentication::begin(Some(&credentials), queue, ConnectResult(bits));
        assert_eq!(begin(0, 1).expect_err("nothing is proved"), Reason::Unproven);
        assert!(begin(1, 1).expect("it may").is_none());
        for queue in [0, 1] {
            assert!(begin(queue, ConnectResult::AUTHENTICATE).expect("it may").is_some());
            let both = ConnectResult::AUTHENTICATE | ConnectResult::SECURE_CHANNEL;
            assert_eq!(begin(queue, both).expect_err("TLS"), Reason::SecureChannel);
        }
    }
}
