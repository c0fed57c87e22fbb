//! The controller's end of a queue.

use crate::hash::Digest;
use crate::message::{self, Failure, Message, Negotiate, Reply};
use crate::response::Exchange;
use crate::{Done, Group, Hash, Key, Random, Work, work};
use std::sync::Arc;
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroizing;

/// Who is to prove who he is, and how.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// NQN of the host.
    pub host_nqn: Arc<str>,
    /// NQN of the subsystem.
    pub subsystem_nqn: Arc<str>,
    /// The host's keys, by any of which it may prove who it is: one, and while that is replaced the other as well.
    pub host_keys: Arc<[Arc<Key>]>,
    /// The controller's, by which it proves who it is to hosts that want to know.
    pub controller_key: Option<Arc<Key>>,
    /// Hash functions that will do, the preferred one first.
    pub hashes: Vec<Hash>,
    /// Groups that will do, the preferred one first.
    pub groups: Vec<Group>,
}

/// What becomes of a message that the host has sent.
#[derive(Debug)]
pub enum Sent {
    /// It was taken: whatever came of it is told by the next message that the host fetches.
    Taken,
    /// The same, after this: see [`Controller::computed`].
    Work(Work),
    /// Something is still being computed: the message was not looked at.
    Busy,
}

/// The controller's end of one queue. It outlives an exchange: hosts may prove again who they are.
#[derive(Debug)]
pub struct Controller {
    config: ControllerConfig,
    transaction: u16,
    stage: Stage,
    proven: bool,
    /// What the last exchange agreed on.
    agreed: Option<(Hash, Group)>,
    failure: Option<Failure>,
}

enum Stage {
    /// No exchange goes on.
    Idle,
    /// Our public value is being computed.
    Opening(Round),
    /// The challenge is to be fetched.
    Challenge(Round),
    /// The host is to answer.
    Asked(Round),
    /// The session key is being computed.
    Checking(Round, Answer),
    /// The host has proved who it is, Success1 is to be fetched: with our response if it asked.
    Success(Hash, Option<Digest>),
    /// The host is to say whether our response was right.
    Answered,
    /// Failure1 is to be fetched.
    Failing,
    /// The host knows that it has failed, or has given up: nothing is expected any more.
    Over,
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Stage::Idle => "Idle",
            Stage::Opening(_) => "Opening",
            Stage::Challenge(_) => "Challenge",
            Stage::Asked(_) => "Asked",
            Stage::Checking(..) => "Checking",
            Stage::Success(..) => "Success",
            Stage::Answered => "Answered",
            Stage::Failing => "Failing",
            Stage::Over => "Over",
        })
    }
}

/// What was agreed on, and what was asked.
struct Round {
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
    exponent: Zeroizing<Vec<u8>>,
    public: Vec<u8>,
    /// Of what is being computed.
    work: u64,
}

/// What the host has answered.
struct Answer {
    response: Vec<u8>,
    sequence: u32,
    challenge: Option<Vec<u8>>,
}

impl Controller {
    /// The end of a queue whose host has proved nothing yet.
    pub fn new(config: ControllerConfig) -> Controller {
        let (stage, failure) = (Stage::Idle, None);
        Controller { config, transaction: 0, stage, proven: false, agreed: None, failure }
    }

    /// As it was configured.
    pub fn config(&self) -> &ControllerConfig {
        &self.config
    }

    /// Asks by `config` from the next exchange on: to be called while none goes on.
    pub fn configure(&mut self, config: ControllerConfig) {
        self.config = config;
    }

    /// Whether the host has proved who it is. It stays so while it does so again.
    pub fn is_proven(&self) -> bool {
        self.proven
    }

    /// What the host has proved by who it is, if it has.
    pub fn agreed(&self) -> Option<(Hash, Group)> {
        self.agreed.filter(|_| self.proven)
    }

    /// Whether the queue is to be closed: authentication has failed, and the host knows.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Why authentication has failed, if it has.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Whether an exchange goes on, or has failed.
    pub fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::Idle)
    }

    /// The host has sent `bytes`.
    pub fn sent(&mut self, bytes: &[u8], random: Random) -> Sent {
        if matches!(self.stage, Stage::Opening(_) | Stage::Checking(..)) {
            return Sent::Busy;
        }
        let taken = self.take(bytes, random);
        taken.unwrap_or_else(|failure| {
            self.fail(failure);
            Sent::Taken
        })
    }

    /// What [`Sent::Work`] asked for is there; what an earlier exchange asked for, or another queue's, is let go.
    pub fn computed(&mut self, done: Done) {
        match &self.stage {
            Stage::Opening(round) | Stage::Checking(round, _) if round.work == done.id => {}
            _ => return,
        }
        match std::mem::replace(&mut self.stage, Stage::Failing) {
            Stage::Opening(round) => {
                self.stage = Stage::Challenge(Round { public: done.public, ..round });
            }
            Stage::Checking(round, answer) => {
                if let Err(failure) = self.check(&round, &answer, &done.shared) {
                    self.fail(failure);
                }
            }
            stage => self.stage = stage,
        }
    }

    /// What [`Sent::Work`] asked for cannot be had: the host may begin again.
    pub fn not_computed(&mut self) {
        if matches!(self.stage, Stage::Opening(_) | Stage::Checking(..)) {
            self.stage = Stage::Idle;
        }
    }

    /// The message that the host fetches, for which it has `room` bytes, [`crate::MESSAGE_BYTES_MIN`] at least. None while something is
    /// being computed.
    pub fn fetch(&mut self, room: usize) -> Option<Vec<u8>> {
        let message = self.message()?;
        if message.len() <= room {
            return Some(message);
        }
        self.fail(Failure::Payload);
        self.message()
    }

    fn message(&mut self) -> Option<Vec<u8>> {
        let transaction = self.transaction;
        match std::mem::replace(&mut self.stage, Stage::Over) {
            stage @ (Stage::Opening(_) | Stage::Checking(..)) => {
                self.stage = stage;
                None
            }
            Stage::Challenge(round) => {
                let Round { hash, group, sequence, challenge, public, .. } = &round;
                let names = (*hash, *group);
                let bytes = message::challenge(transaction, names, *sequence, challenge, public);
                self.stage = Stage::Asked(round);
                Some(bytes)
            }
            Stage::Success(hash, response) => {
                self.stage = if response.is_some() { Stage::Answered } else { Stage::Idle };
                self.proven |= response.is_none();
                Some(message::success1(transaction, hash, response.as_ref().map(AsRef::as_ref)))
            }
            Stage::Idle | Stage::Asked(_) | Stage::Answered => {
                self.fail(Failure::Message);
                self.stage = Stage::Over;
                Some(message::failure1(transaction, Failure::Message))
            }
            Stage::Failing | Stage::Over => {
                let failure = self.failure.unwrap_or(Failure::Failed);
                Some(message::failure1(transaction, failure))
            }
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.proven = false;
        self.failure = Some(failure);
        self.stage = Stage::Failing;
    }

    fn take(&mut self, bytes: &[u8], random: Random) -> Result<Sent, Failure> {
        let (transaction, message) = message::read(bytes)?;
        let negotiates = matches!(message, Message::Negotiate(_));
        if negotiates && !self.is_over() && !matches!(self.stage, Stage::Failing) {
            self.transaction = transaction;
        } else if transaction != self.transaction {
            return Err(Failure::Payload);
        }
        match (std::mem::replace(&mut self.stage, Stage::Failing), message) {
            (Stage::Failing | Stage::Over, _) => {
                // What has failed has failed: the connection is about to be closed.
                Err(self.failure.unwrap_or(Failure::Message))
            }
            // Once for each connection, unless the host has proved who it is: who has not could have us compute for ever.
            (stage, Message::Negotiate(offer)) if self.proven || matches!(stage, Stage::Idle) => {
                self.negotiate(&offer, random)
            }
            (Stage::Asked(round), Message::Reply(reply)) => self.answered(round, &reply, random),
            (Stage::Answered, Message::Success2) => {
                self.stage = Stage::Idle;
                self.proven = true;
                Ok(Sent::Taken)
            }
            (_, Message::Failure2(failure)) => {
                self.fail(failure);
                self.stage = Stage::Over;
                Ok(Sent::Taken)
            }
            _ => Err(Failure::Message),
        }
    }

    fn negotiate(&mut self, offer: &Negotiate, random: Random) -> Result<Sent, Failure> {
        if offer.secure_channel {
            return Err(Failure::SecureChannel);
        }
        if !offer.protocol {
            return Err(Failure::Protocol);
        }
        let offered = |hash: &&Hash| offer.hashes.contains(&hash.id());
        let hash = *self.config.hashes.iter().find(offered).ok_or(Failure::Hash)?;
        let offered = |group: &&Group| offer.groups.contains(&group.id());
        let group = *self.config.groups.iter().find(offered).ok_or(Failure::Group)?;
        let mut challenge = vec![0; hash.bytes()];
        random(&mut challenge);
        let exponent = group.exponent(random);
        let sequence = sequence(random);
        let public = Vec::new();
        let work = work::id(random);
        let round = Round { hash, group, sequence, challenge, exponent, public, work };
        if group == Group::Null {
            self.stage = Stage::Challenge(round);
            return Ok(Sent::Taken);
        }
        let exponent = round.exponent.clone();
        self.stage = Stage::Opening(round);
        Ok(Sent::Work(Work { id: work, group, exponent, public: true, peer: None }))
    }

    fn answered(
        &mut self,
        mut round: Round,
        reply: &Reply<'_>,
        random: Random,
    ) -> Result<Sent, Failure> {
        if reply.response.len() != round.hash.bytes() {
            return Err(Failure::Payload);
        }
        // A sequence number of zero is for a challenge that only makes a key of a secure channel; one that
        // is ours would have us answer it.
        let refused = |challenge: &[u8]| reply.sequence == 0 || challenge == round.challenge;
        if reply.challenge.is_some_and(refused) {
            return Err(Failure::Payload);
        }
        let answer = Answer {
            response: reply.response.to_vec(),
            sequence: reply.sequence,
            challenge: reply.challenge.map(<[u8]>::to_vec),
        };
        let group = round.group;
        if group == Group::Null {
            if !reply.public.is_empty() {
                return Err(Failure::Payload);
            }
            self.check(&round, &answer, &[])?;
            return Ok(Sent::Taken);
        }
        if !group.accepts(reply.public) {
            return Err(Failure::Group);
        }
        let (exponent, id) = (round.exponent.clone(), work::id(random));
        round.work = id;
        self.stage = Stage::Checking(round, answer);
        let peer = Some(reply.public.to_vec());
        Ok(Sent::Work(Work { id, group, exponent, public: false, peer }))
    }

    /// Holds the host's answer against what it must be.
    fn check(&mut self, round: &Round, answer: &Answer, shared: &[u8]) -> Result<(), Failure> {
        let exchange = Exchange {
            hash: round.hash,
            group: round.group,
            shared,
            transaction: self.transaction,
            host_nqn: &self.config.host_nqn,
            subsystem_nqn: &self.config.subsystem_nqn,
        };
        // All of them, so that the time it takes does not tell which it was.
        let mut is_right = Choice::from(0);
        for key in &*self.config.host_keys {
            let expected = exchange.of_host(key, &round.challenge, round.sequence);
            is_right |= expected.as_ref().ct_eq(&answer.response);
        }
        if !bool::from(is_right) {
            return Err(Failure::Failed);
        }
        let response = match (&answer.challenge, &self.config.controller_key) {
            (None, _) => None,
            (Some(_), None) => return Err(Failure::Failed),
            (Some(challenge), Some(key)) => {
                Some(exchange.of_controller(key, challenge, answer.sequence))
            }
        };
        self.agreed = Some((round.hash, round.group));
        self.stage = Stage::Success(round.hash, response);
        Ok(())
    }
}

/// A sequence number, which is never zero.
pub(crate) fn sequence(random: Random) -> u32 {
    let mut bytes = [0; 4];
    random(&mut bytes);
    u32::from_le_bytes(bytes).max(1)
}
