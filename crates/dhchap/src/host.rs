//! The host's end of a queue.

use crate::controller::sequence;
use crate::message::{self, Challenge, Failure, Message};
use crate::response::Exchange;
use crate::{Done, Group, Hash, Key, Random, Work, work};
use std::sync::Arc;
use subtle::{Choice, ConstantTimeEq};

/// Who proves who he is, and to whom.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// NQN of the host.
    pub host_nqn: Arc<str>,
    /// NQN of the subsystem.
    pub subsystem_nqn: Arc<str>,
    /// The host's key.
    pub host_key: Arc<Key>,
    /// The controller's, where it is to prove who it is: by any of them, of which there are two while one is replaced.
    pub controller_keys: Option<Arc<[Arc<Key>]>>,
}

/// What the host does next.
#[derive(Debug)]
pub enum Step {
    /// Send this message, then fetch one.
    Send(Vec<u8>),
    /// First this: see [`Host::computed`].
    Work(Work),
    /// Both have proved what they had to. Where there is a message it is to be sent before any other command.
    Proven(Option<Vec<u8>>),
    /// Authentication has failed: send the message if there is one, and close the connection.
    Failed(Failure, Option<Vec<u8>>),
}

/// The host's end of one queue, for one exchange.
#[derive(Debug)]
pub struct Host {
    config: HostConfig,
    transaction: u16,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// A challenge is to come.
    Opened,
    /// Both powers are being computed.
    Answering(Asked),
    /// Success1 is to come; what the controller's response must be one of, where it must give one.
    Answered(Hash, Option<Vec<Expected>>),
    /// It has ended.
    Over,
}

struct Expected(crate::hash::Digest);

impl std::fmt::Debug for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Expected")
    }
}

/// What the controller has asked.
#[derive(Debug)]
struct Asked {
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
}

impl Host {
    /// The end of a queue. `transaction` tells this exchange from others of the association.
    pub fn new(config: HostConfig, transaction: u16) -> Host {
        Host { config, transaction, stage: Stage::Opened }
    }

    /// As it was configured.
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// The first message to be sent.
    pub fn open(&self) -> Vec<u8> {
        message::negotiate(self.transaction, &Hash::ALL, &Group::ALL)
    }

    /// A message was fetched.
    pub fn received(&mut self, bytes: &[u8], random: Random) -> Step {
        let taken = self.take(bytes, random);
        taken.unwrap_or_else(|failure| {
            self.stage = Stage::Over;
            Step::Failed(failure, Some(message::failure2(self.transaction, failure)))
        })
    }

    /// What [`Step::Work`] asked for is there.
    pub fn computed(&mut self, done: Done, random: Random) -> Step {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Answering(asked) => self.answer(&asked, &done, random),
            stage => {
                self.stage = stage;
                Step::Failed(Failure::Message, None)
            }
        }
    }

    fn take(&mut self, bytes: &[u8], random: Random) -> Result<Step, Failure> {
        let (transaction, message) = message::read(bytes)?;
        if let Message::Failure1(failure) = message {
            self.stage = Stage::Over;
            return Ok(Step::Failed(failure, None));
        }
        if transaction != self.transaction {
            return Err(Failure::Payload);
        }
        match (std::mem::replace(&mut self.stage, Stage::Over), message) {
            (Stage::Opened, Message::Challenge(challenge)) => self.asked(&challenge, random),
            (Stage::Answered(hash, expected), Message::Success1 { response, hash_bytes }) => {
                if hash_bytes != hash.bytes() {
                    return Err(Failure::Payload);
                }
                self.judge(expected, response)
            }
            _ => Err(Failure::Message),
        }
    }

    fn asked(&mut self, challenge: &Challenge<'_>, random: Random) -> Result<Step, Failure> {
        let hash = Hash::of_id(challenge.hash).ok_or(Failure::Hash)?;
        let group = Group::of_id(challenge.group).ok_or(Failure::Group)?;
        if challenge.challenge.len() != hash.bytes() {
            return Err(Failure::Payload);
        }
        let sequence = challenge.sequence;
        let asked = Asked { hash, group, sequence, challenge: challenge.challenge.to_vec() };
        if group == Group::Null {
            if !challenge.public.is_empty() {
                return Err(Failure::Payload);
            }
            return Ok(self.answer(&asked, &Done::default(), random));
        }
        if !group.accepts(challenge.public) {
            return Err(Failure::Group);
        }
        self.stage = Stage::Answering(asked);
        let (exponent, peer) = (group.exponent(random), Some(challenge.public.to_vec()));
        let id = work::id(random);
        Ok(Step::Work(Work { id, group, exponent, public: true, peer }))
    }

    fn answer(&mut self, asked: &Asked, done: &Done, random: Random) -> Step {
        let exchange = Exchange {
            hash: asked.hash,
            group: asked.group,
            shared: &done.shared,
            transaction: self.transaction,
            host_nqn: &self.config.host_nqn,
            subsystem_nqn: &self.config.subsystem_nqn,
        };
        let response = exchange.of_host(&self.config.host_key, &asked.challenge, asked.sequence);
        let mut challenge = vec![0; asked.hash.bytes()];
        let (mut ours, mut expected) = (None, None);
        if let Some(keys) = &self.config.controller_keys {
            random(&mut challenge);
            let sequence = sequence(random);
            let response =
                |key: &Arc<Key>| Expected(exchange.of_controller(key, &challenge, sequence));
            expected = Some(keys.iter().map(response).collect());
            ours = Some((&challenge[..], sequence));
        }
        self.stage = Stage::Answered(asked.hash, expected);
        Step::Send(message::reply(self.transaction, response.as_ref(), ours, &done.public))
    }

    fn judge(
        &mut self,
        expected: Option<Vec<Expected>>,
        response: Option<&[u8]>,
    ) -> Result<Step, Failure> {
        let Some(expected) = expected else { return Ok(Step::Proven(None)) };
        // Without a response nothing is proved.
        let response = response.ok_or(Failure::Failed)?;
        let is_right = expected
            .iter()
            .fold(Choice::from(0), |is_right, Expected(it)| is_right | it.as_ref().ct_eq(response));
        if !bool::from(is_right) {
            return Err(Failure::Failed);
        }
        Ok(Step::Proven(Some(message::success2(self.transaction))))
    }
}
