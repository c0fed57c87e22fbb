//! Two ends that mean well, and somebody between them who may not.
//!
//! The script says who knows which key, and what becomes of each message on its way: it is let through, or it is changed, cut,
//! lengthened, replaced by one that was seen before, sent twice or lost. All else goes on as it should. Who has proved
//! something must have sent the right proof, and exchanges that were let alone must succeed.

use crate::message::{self, Message};
use crate::response::Exchange;
use crate::{
    Controller, ControllerConfig, Failure, Group, Hash, Host, HostConfig, Key, Sent, Step,
};
use crate::{MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN};
use std::sync::Arc;

const NAMES: [&str; 2] = ["nqn.2026-11.org.example:host", "nqn.2026-11.org.example:a"];
/// Exchanges that a script is for at most.
const EXCHANGES_MAX: u8 = 6;

/// What the fuzzer's bytes say; zeroes from their end on.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }
}

/// Bytes that never come twice: SplitMix64.
struct Random(u64);

impl Random {
    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            *byte = ((self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u8;
        }
    }
}

/// A challenge, as who has made it has sent it.
struct Challenge {
    hash: Hash,
    sequence: u32,
    bytes: Vec<u8>,
    transaction: u16,
}

/// What a run came to, for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Exchanges after which both ends were content, while messages were touched or not.
    pub(super) proven: u32,
    /// Among them those in which the controller had to prove who it is.
    pub(super) mutual: u32,
    /// Among them those of a host that had been proven before.
    pub(super) again: u32,
}

struct Pair {
    host: Host,
    controller: Controller,
    random: Random,
    /// All messages that were sent, by either end.
    seen: Vec<Vec<u8>>,
    /// Nothing was done to a message of this exchange.
    is_honest: bool,
    /// What the controller has asked last.
    asked: Option<Challenge>,
    /// It got the right answer to that.
    is_answered: bool,
    /// What the host has asked in this exchange.
    asked_back: Option<Challenge>,
}

/// Runs a script: exchanges, one after another, on a connection or on several.
pub(super) fn exchanges(bytes: &[u8]) -> Count {
    let mut script = Script(bytes);
    let mut pair = Pair::new(script.byte());
    let mut count = Count::default();
    for exchange in 0..EXCHANGES_MAX {
        let was_proven = pair.controller.is_proven();
        if pair.exchange(&mut script) {
            count.proven += 1;
            count.mutual += u32::from(pair.asked_back.is_some());
            count.again += u32::from(was_proven);
        }
        if script.0.is_empty() {
            break;
        }
        pair.again(script.byte(), exchange);
    }
    count
}

fn key(byte: u8) -> Arc<Key> {
    Arc::new(Key::generate(None, &mut |bytes: &mut [u8]| bytes.fill(byte)))
}

/// What the other end may prove itself by: a key, and by `choice` another before or after it.
fn accepted(choice: u8, byte: u8) -> Arc<[Arc<Key>]> {
    match choice >> 6 {
        0 => [key(byte)].into(),
        1 => [key(byte), key(byte + 100)].into(),
        _ => [key(byte + 100), key(byte)].into(),
    }
}

/// Bits of `choice`: who knows which key, and what is agreed on.
fn configs(choice: u8) -> (HostConfig, ControllerConfig) {
    let [host_nqn, subsystem_nqn] = NAMES.map(Arc::<str>::from);
    let (is_mutual, has_key) = (choice & 1 != 0, choice & 2 == 0);
    let host = HostConfig {
        host_nqn: Arc::clone(&host_nqn),
        subsystem_nqn: Arc::clone(&subsystem_nqn),
        host_key: key(if choice & 4 == 0 { 1 } else { 9 }),
        controller_keys: is_mutual.then(|| accepted(choice, 2)),
    };
    let controller = ControllerConfig {
        host_nqn,
        subsystem_nqn,
        host_keys: accepted(choice, 1),
        controller_key: has_key.then(|| key(if choice & 8 == 0 { 2 } else { 9 })),
        hashes: Hash::ALL.into_iter().cycle().skip(usize::from(choice >> 4 & 3)).take(3).collect(),
        groups: vec![Group::Null],
    };
    (host, controller)
}

impl Pair {
    fn new(choice: u8) -> Pair {
        let (host, controller) = configs(choice);
        Pair {
            host: Host::new(host, 1),
            controller: Controller::new(controller),
            random: Random(choice.into()),
            seen: Vec::new(),
            is_honest: true,
            asked: None,
            is_answered: false,
            asked_back: None,
        }
    }

    /// The next exchange: of the same connection or of another, by the same transaction or another.
    fn again(&mut self, choice: u8, exchange: u8) {
        let transaction = if choice & 1 == 0 { u16::from(exchange) + 2 } else { 1 };
        if choice & 2 != 0 {
            self.controller = Controller::new(self.controller.config().clone());
            (self.asked, self.is_answered) = (None, false);
        }
        let mut config = self.host.config().clone();
        if choice & 4 != 0 {
            config.host_key = key(if choice & 8 == 0 { 1 } else { 9 });
        }
        self.host = Host::new(config, transaction);
        (self.is_honest, self.asked_back) = (true, None);
    }

    /// Whether both ends are content. An exchange that was let alone ends as the keys have it.
    fn exchange(&mut self, script: &mut Script<'_>) -> bool {
        let may_begin = !self.controller.has_begun() || self.controller.is_proven();
        let ended = self.run(script);
        let is_proven = self.controller.is_proven();
        if self.is_honest && may_begin {
            let (host, controller) = (self.host.config(), self.controller.config());
            let right = controller.host_keys.contains(&host.host_key)
                && host.controller_keys.as_ref().is_none_or(|keys| {
                    controller.controller_key.as_ref().is_some_and(|key| keys.contains(key))
                });
            let expected = if right { Ok(()) } else { Err(Failure::Failed) };
            assert_eq!((ended, is_proven), (expected, right), "an exchange that was let alone");
            assert_eq!(self.controller.has_begun(), !right);
        }
        ended.is_ok() && is_proven
    }

    fn run(&mut self, script: &mut Script<'_>) -> Result<(), Failure> {
        let mut message = self.host.open();
        loop {
            for bytes in self.on_its_way(&message, script) {
                self.reach_controller(&bytes);
            }
            let fetched = self.fetch();
            let mut next = None;
            for bytes in self.on_its_way(&fetched, script) {
                next = Some(self.reach_host(&bytes));
            }
            let (ended, last) = match next {
                // It was lost: fetched again.
                None => match self.fetch_after_a_loss() {
                    Step::Send(_) => panic!("nothing goes on after a loss"),
                    step => ending(step),
                },
                Some(Step::Send(reply)) => {
                    message = reply;
                    continue;
                }
                Some(step) => ending(step),
            };
            if let Some(last) = last {
                for bytes in self.on_its_way(&last, script) {
                    self.reach_controller(&bytes);
                }
            }
            return ended;
        }
    }

    fn fetch_after_a_loss(&mut self) -> Step {
        let fetched = self.fetch();
        self.reach_host(&fetched)
    }

    /// What comes out at the other side.
    fn on_its_way(&mut self, message: &[u8], script: &mut Script<'_>) -> Vec<Vec<u8>> {
        self.seen.push(message.to_vec());
        let choice = script.byte();
        let mut bytes = message.to_vec();
        match choice & 7 {
            0 | 1 => return vec![bytes],
            2 => {
                let at = usize::from(script.byte()) % bytes.len();
                bytes[at] ^= script.byte();
            }
            3 => bytes.truncate(script.byte().into()),
            4 => bytes.clone_from(&self.seen[usize::from(script.byte()) % self.seen.len()]),
            5 => {
                // The head is right, what follows is the script's.
                let len = usize::from(script.byte()).min(script.0.len());
                let (rest, after) = script.0.split_at(len);
                script.0 = after;
                bytes.truncate(usize::from(choice >> 3));
                bytes.extend_from_slice(rest);
            }
            6 => {
                let other = self.seen[usize::from(script.byte()) % self.seen.len()].clone();
                self.is_honest = false;
                return if choice & 8 == 0 { vec![other, bytes] } else { vec![bytes, other] };
            }
            _ => {
                self.is_honest = false;
                return if choice & 8 == 0 { vec![] } else { vec![bytes.clone(), bytes] };
            }
        }
        self.is_honest &= bytes == message;
        vec![bytes]
    }

    fn reach_controller(&mut self, bytes: &[u8]) {
        let was_proven = self.controller.is_proven();
        match self.controller.sent(bytes, &mut |buffer| self.random.fill(buffer)) {
            Sent::Taken => {}
            Sent::Work(_) | Sent::Busy => panic!("without a group nothing is computed"),
        }
        let told = message::read(bytes);
        if let Ok((transaction, Message::Reply(reply))) = &told {
            self.is_answered = self.asked.as_ref().is_some_and(|asked| {
                let is_right = |key: &Arc<Key>| {
                    let right = exchange(asked).of_host(key, &asked.bytes, asked.sequence);
                    reply.response == right.as_ref()
                };
                let keys = &self.controller.config().host_keys;
                asked.transaction == *transaction && keys.iter().any(is_right)
            });
        }
        if !was_proven && self.controller.is_proven() {
            assert!(matches!(told, Ok((_, Message::Success2))), "the host has not said so yet");
            assert!(self.is_answered, "the host has given no proof");
        }
        self.check();
    }

    fn fetch(&mut self) -> Vec<u8> {
        let was_proven = self.controller.is_proven();
        let bytes = self.controller.fetch(MESSAGE_BYTES_MAX).expect("nothing is being computed");
        assert!((MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX).contains(&bytes.len()));
        let (transaction, told) = message::read(&bytes).expect("our own message");
        match &told {
            Message::Challenge(challenge) => {
                let hash = Hash::of_id(challenge.hash).expect("one of ours");
                let (sequence, bytes) = (challenge.sequence, challenge.challenge.to_vec());
                self.asked = Some(Challenge { hash, sequence, bytes, transaction });
                self.is_answered = false;
            }
            Message::Success1 { response, .. } => {
                assert!(self.is_answered, "without a proof there is no success");
                if response.is_none() {
                    assert!(self.controller.is_proven(), "the host had nothing to ask");
                }
            }
            Message::Failure1(_) => assert!(!self.controller.is_proven(), "it has failed"),
            other => panic!("a controller does not send {other:?}"),
        }
        if !was_proven && self.controller.is_proven() {
            assert!(matches!(told, Message::Success1 { response: None, .. }));
        }
        self.check();
        bytes
    }

    /// Whatever is so at any time.
    fn check(&self) {
        let (controller, agreed) = (&self.controller, self.controller.agreed());
        assert_eq!(agreed.is_some(), controller.is_proven(), "what a proof was given by");
        assert!(agreed.is_none_or(|(_, group)| group == Group::Null));
        assert!(!controller.is_proven() || !controller.is_over(), "who has failed has lost it");
        assert!(!controller.is_over() || controller.failure().is_some());
    }

    fn reach_host(&mut self, bytes: &[u8]) -> Step {
        let step = match self.host.received(bytes, &mut |buffer| self.random.fill(buffer)) {
            // Only a challenge that was changed names a group.
            Step::Work(work) => {
                self.host.computed(work.skip(), &mut |buffer| self.random.fill(buffer))
            }
            step => step,
        };
        let told = message::read(bytes);
        match &step {
            Step::Send(reply) => {
                let (transaction, told) = message::read(reply).expect("our own message");
                let Message::Reply(reply) = told else { panic!("a host sends no {told:?}") };
                let is_mutual = self.host.config().controller_keys.is_some();
                assert_eq!(reply.challenge.is_some(), is_mutual);
                let hash = Hash::ALL.into_iter().find(|hash| hash.bytes() == reply.response.len());
                let (hash, sequence) = (hash.expect("one of ours"), reply.sequence);
                self.asked_back = reply.challenge.map(|bytes| {
                    assert!(sequence != 0, "zero is for secure channels");
                    Challenge { hash, sequence, bytes: bytes.to_vec(), transaction }
                });
            }
            Step::Proven(last) => {
                let Ok((_, Message::Success1 { response, .. })) = told else {
                    panic!("proven by {told:?}")
                };
                assert_eq!(last.is_some(), self.host.config().controller_keys.is_some());
                if let Some(keys) = &self.host.config().controller_keys {
                    let asked = self.asked_back.as_ref().expect("it has asked");
                    let known = self.controller.config().controller_key.as_ref();
                    let key = known.filter(|key| keys.contains(key));
                    let key = key.expect("it cannot have given a proof");
                    let right = exchange(asked).of_controller(key, &asked.bytes, asked.sequence);
                    assert_eq!(response, Some(right.as_ref()), "the controller gave no proof");
                }
            }
            Step::Failed(..) => {}
            Step::Work(_) => panic!("it was carried out"),
        }
        step
    }
}

/// How it has ended, and what is still to be sent.
fn ending(step: Step) -> (Result<(), Failure>, Option<Vec<u8>>) {
    match step {
        Step::Proven(last) => (Ok(()), last),
        Step::Failed(failure, last) => (Err(failure), last),
        Step::Send(_) | Step::Work(_) => unreachable!("it goes on"),
    }
}

fn exchange(asked: &Challenge) -> Exchange<'static> {
    Exchange {
        hash: asked.hash,
        group: Group::Null,
        shared: &[],
        transaction: asked.transaction,
        host_nqn: NAMES[0],
        subsystem_nqn: NAMES[1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn exchanges_that_are_let_alone_end_as_the_keys_have_it() {
        let script = |choice: u8, next: u8| {
            // Negotiate to Success1, or to Success2; then whatever is next, and the same once more.
            let alone = vec![0; if choice & 1 == 0 { 4 } else { 5 }];
            [&[choice][..], &alone, &[next], &alone].concat()
        };
        for (choice, next) in (0..64).flat_map(|choice| [0, 1, 2, 4, 12].map(|it| (choice, it))) {
            exchanges(&script(choice, next));
        }
        let twice = Count { proven: 2, mutual: 0, again: 1 };
        assert_eq!(exchanges(&script(0, 0)), twice);
        assert_eq!(exchanges(&script(1, 0)), Count { mutual: 2, ..twice });
        assert_eq!(exchanges(&script(1, 2)), Count { mutual: 2, again: 0, ..twice });
        // Nobody who does not know the key.
        assert_eq!(exchanges(&script(5, 2)), Count::default());
        assert_eq!(exchanges(&script(9, 2)), Count::default());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn whoever_stands_between(
            choice in any::<u8>(),
            ways in proptest::collection::vec(prop_oneof![3 => Just(0), 1 => any::<u8>()], 0..80),
        ) {
            exchanges(&[&[choice & 1 | choice & 0x30][..], &ways].concat());
            exchanges(&[&[choice][..], &ways].concat());
        }
    }
}
