//! Both ends against each other, and against what others have computed.

use super::*;
use std::sync::Arc;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6d0a2a0c-7c33-4a5e-93f2-1a2b3c4d5e6f";
const SUBSYSTEM: &str = "nqn.2026-11.org.example:volume";

/// Bytes that a test can foresee: SplitMix64.
fn random(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut state = seed;
    move |buffer: &mut [u8]| {
        for byte in buffer {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            *byte = (mixed >> 32) as u8;
        }
    }
}

fn key(seed: u64, transform: Option<Hash>) -> Arc<Key> {
    Arc::new(Key::generate(transform, &mut random(seed)))
}

struct Pair {
    host: Host,
    controller: Controller,
}

/// How an exchange has ended.
#[derive(Debug, PartialEq, Eq)]
struct End {
    host: Result<(), Failure>,
    proven: bool,
    failure: Option<Failure>,
}

const PROVEN: End = End { host: Ok(()), proven: true, failure: None };

fn pair(host_keys: (Arc<Key>, Option<Arc<Key>>), keys: (Arc<Key>, Option<Arc<Key>>)) -> Pair {
    let host = HostConfig {
        host_nqn: HOST.into(),
        subsystem_nqn: SUBSYSTEM.into(),
        host_key: host_keys.0,
        controller_keys: host_keys.1.map(|key| [key].into()),
    };
    let controller = ControllerConfig {
        host_nqn: HOST.into(),
        subsystem_nqn: SUBSYSTEM.into(),
        host_keys: [keys.0].into(),
        controller_key: keys.1,
        hashes: Hash::ALL.to_vec(),
        groups: Group::ALL.to_vec(),
    };
    Pair { host: Host::new(host, 77), controller: Controller::new(controller) }
}

impl Pair {
    fn with(mut self, hash: Hash, group: Group) -> Pair {
        let mut config = self.controller.config().clone();
        (config.hashes, config.groups) = (vec![hash], vec![group]);
        self.controller = Controller::new(config);
        self
    }

    fn host_config(&self) -> HostConfig {
        self.host.config().clone()
    }

    fn send(&mut self, message: &[u8], seed: u64) {
        match self.controller.sent(message, &mut random(seed)) {
            Sent::Taken => {}
            Sent::Work(work) => {
                assert!(self.controller.fetch(MESSAGE_BYTES_MAX).is_none(), "nothing is there yet");
                assert!(matches!(self.controller.sent(message, &mut random(seed)), Sent::Busy));
                self.controller.computed(work.run());
            }
            Sent::Busy => panic!("nothing is being computed"),
        }
    }

    /// Runs the exchange to its end, with each message changed by `change`.
    fn run(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) -> End {
        let mut message = self.host.open();
        let host = loop {
            change(&mut message);
            self.send(&message, 1);
            let mut fetched =
                self.controller.fetch(MESSAGE_BYTES_MAX).expect("everything was computed");
            change(&mut fetched);
            assert!(message.len().max(fetched.len()) <= MESSAGE_BYTES_MAX);
            let mut step = self.host.received(&fetched, &mut random(2));
            if let Step::Work(work) = step {
                step = self.host.computed(work.run(), &mut random(3));
            }
            match step {
                Step::Send(next) => message = next,
                Step::Work(_) => panic!("it was carried out"),
                Step::Proven(last) => {
                    if let Some(mut last) = last {
                        assert!(!self.controller.is_proven(), "the host has not said so yet");
                        change(&mut last);
                        self.send(&last, 4);
                    }
                    break Ok(());
                }
                Step::Failed(failure, last) => {
                    if let Some(mut last) = last {
                        change(&mut last);
                        self.send(&last, 4);
                    }
                    break Err(failure);
                }
            }
        };
        End { host, proven: self.controller.is_proven(), failure: self.controller.failure() }
    }
}

fn unchanged(_: &mut Vec<u8>) {}

#[test]
fn both_ends_agree_with_every_hash_group_and_kind_of_key() {
    let transforms = [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)];
    for (at, hash) in Hash::ALL.into_iter().enumerate() {
        for group in Group::ALL {
            for transform in [transforms[at], transforms[3 - at]] {
                let (host, controller) = (key(1, transform), Some(key(2, transform)));
                let mut both = pair((host.clone(), controller.clone()), (host.clone(), controller))
                    .with(hash, group);
                assert_eq!(both.run(&mut unchanged), PROVEN, "{hash} {group} {transform:?}");
                let mut one = pair((host.clone(), None), (host, None)).with(hash, group);
                assert_eq!(one.run(&mut unchanged), PROVEN, "{hash} {group} {transform:?}");
            }
        }
    }
}

#[test]
fn who_does_not_know_the_key_proves_nothing() {
    let (right, wrong) = (key(1, None), key(9, None));
    let failed = |failure| End { host: Err(failure), proven: false, failure: Some(failure) };
    let mut host = pair((wrong.clone(), None), (right.clone(), None));
    assert_eq!(host.run(&mut unchanged), failed(Failure::Failed));
    assert!(host.controller.is_over(), "the connection is to be closed");

    let keys = (right.clone(), Some(key(2, None)));
    let mut controller = pair(keys.clone(), (right.clone(), Some(wrong)));
    assert_eq!(controller.run(&mut unchanged), failed(Failure::Failed));
    assert!(controller.controller.is_over());

    // It has no key, though it is asked for a proof.
    let mut without = pair(keys.clone(), (right.clone(), None));
    assert_eq!(without.run(&mut unchanged), failed(Failure::Failed));

    // It says that all is well, and gives no proof.
    let mut silent = pair(keys, (right.clone(), Some(key(2, None))));
    let end = silent.run(&mut |message| {
        if message[..2] == [1, 3] {
            message[8] = 0;
        }
    });
    assert_eq!(end, failed(Failure::Failed));

    // The key of another name.
    let transformed = key(1, Some(Hash::Sha256));
    let mut other = pair((transformed.clone(), None), (transformed, None));
    let mut config = other.controller.config().clone();
    config.host_nqn = "nqn.2026-11.org.example:another".into();
    other.controller = Controller::new(config);
    assert_eq!(other.run(&mut unchanged), failed(Failure::Failed));
}

#[test]
fn while_a_key_is_replaced_the_other_end_may_prove_itself_by_either() {
    let (old, new, other) = (key(1, None), key(2, Some(Hash::Sha384)), key(9, None));
    let own = key(3, None);
    for (of_host, expected) in [(&old, true), (&new, true), (&other, false)] {
        let mut pair = pair((of_host.clone(), None), (old.clone(), None));
        let mut config = pair.controller.config().clone();
        config.host_keys = [old.clone(), new.clone()].into();
        pair.controller = Controller::new(config);
        assert_eq!(pair.run(&mut unchanged) == PROVEN, expected);
        assert_eq!(pair.controller.is_proven(), expected);
    }
    for (of_controller, expected) in [(&old, true), (&new, true), (&other, false)] {
        let of_controller = Some(of_controller.clone());
        let mut pair = pair((own.clone(), Some(old.clone())), (own.clone(), of_controller));
        let mut config = pair.host_config();
        config.controller_keys = Some([old.clone(), new.clone()].into());
        pair.host = Host::new(config, 77);
        assert_eq!(pair.run(&mut unchanged) == PROVEN, expected);
        assert_eq!(pair.controller.is_proven(), expected);
    }
}

#[test]
fn any_bit_that_is_changed_on_its_way_is_noticed() {
    let keys = (key(1, None), Some(key(2, None)));
    for group in [Group::Null, Group::Ffdhe2048] {
        let fresh = || pair(keys.clone(), keys.clone()).with(Hash::Sha256, group);
        let mut lengths = Vec::new();
        assert_eq!(fresh().run(&mut |message| lengths.push(message.len())), PROVEN);
        // Beginning with Challenge: what is offered is not part of any proof.
        for (index, length) in lengths.into_iter().enumerate().skip(1) {
            for at in (0..length).step_by(if group == Group::Null { 1 } else { 53 }) {
                let mut seen = 0;
                let end = fresh().run(&mut |message| {
                    if seen == index {
                        message[at] ^= 1 << (at % 8);
                    }
                    seen += 1;
                });
                let reserved = match index {
                    1 => [2, 3, 7].contains(&at),
                    2 => [2, 3, 7, 9].contains(&at),
                    3 => [2, 3, 7].contains(&at) || (9..16).contains(&at),
                    _ => [2, 3].contains(&at) || (6..16).contains(&at),
                };
                // Of the two that tell whether there is a challenge, a proof, bit 0 alone counts.
                let flags = (index == 2 || index == 3) && at == 8;
                if reserved || flags {
                    continue;
                }
                assert_ne!(end, PROVEN, "{group}: message {index}, byte {at}");
                assert!(!end.proven, "{group}: message {index}, byte {at}");
            }
        }
    }
}

#[test]
fn a_host_proves_again_who_it_is() {
    let keys = (key(1, None), None);
    let mut pair = pair(keys.clone(), keys.clone());
    assert_eq!(pair.run(&mut unchanged), PROVEN);
    assert!(!pair.controller.has_begun());
    let config = pair.host_config();
    pair.host = Host::new(config.clone(), 78);
    pair.send(&pair.host.open(), 5);
    assert!(pair.controller.is_proven() && pair.controller.has_begun(), "commands go on meanwhile");
    pair.host = Host::new(config.clone(), 79);
    assert_eq!(pair.run(&mut unchanged), PROVEN, "begun once more, from the beginning");

    pair.host = Host::new(HostConfig { host_key: key(9, None), ..config }, 80);
    assert_eq!(pair.run(&mut unchanged).host, Err(Failure::Failed));
    assert!(!pair.controller.is_proven(), "who fails has lost what it had");
    // Not even by another try: the connection is to be closed.
    pair.send(&pair.host.open(), 6);
    assert!(pair.controller.fetch(MESSAGE_BYTES_MAX).is_some_and(|message| message[1] == 0xf1));
}

#[test]
fn nobody_who_has_proved_nothing_has_it_computed_again_and_again() {
    let keys = (key(1, None), None);
    let mut pair = pair(keys.clone(), keys).with(Hash::Sha256, Group::Ffdhe2048);
    let open = pair.host.open();
    // What could not be computed may be begun once more.
    assert!(matches!(pair.controller.sent(&open, &mut random(1)), Sent::Work(_)));
    pair.controller.not_computed();
    let Sent::Work(late) = pair.controller.sent(&open, &mut random(2)) else { panic!("a group") };
    pair.controller.not_computed();
    let Sent::Work(work) = pair.controller.sent(&open, &mut random(3)) else { panic!("a group") };
    pair.controller.computed(late.run());
    assert!(pair.controller.fetch(MESSAGE_BYTES_MAX).is_none(), "that was another's");
    pair.controller.computed(work.run());
    assert!(pair.controller.fetch(MESSAGE_BYTES_MAX).is_some());
    assert!(matches!(pair.controller.sent(&open, &mut random(4)), Sent::Taken));
    assert_eq!(pair.controller.failure(), Some(Failure::Message));
}

#[test]
fn what_is_not_offered_or_not_wanted_ends_with_its_reason() {
    let keys = (key(1, None), None);
    let fresh = || pair(keys.clone(), keys.clone());
    let failed = |failure| End { host: Err(failure), proven: false, failure: Some(failure) };
    let negotiates = |message: &[u8]| message[..2] == [0, 0];
    let with = |at: usize, value: u8| {
        fresh().run(&mut |message| {
            if negotiates(message) {
                message[at] = value;
            }
        })
    };
    assert_eq!(with(6, 1), failed(Failure::SecureChannel));
    assert_eq!(with(8, 2), failed(Failure::Protocol));
    assert_eq!(with(7, 0), failed(Failure::Protocol));
    assert_eq!(with(7, 2), failed(Failure::Payload), "a descriptor that is not there");
    assert_eq!(with(10, 31), failed(Failure::Payload), "more hashes than there is room for");
    assert_eq!(with(10, 0), failed(Failure::Hash));
    assert_eq!(with(11, 0), failed(Failure::Group));
}

#[test]
fn public_values_that_give_the_secret_away_are_refused() {
    for group in Group::ALL.into_iter().filter(|group| *group != Group::Null) {
        let bytes = group.bytes();
        let mut one = vec![0; bytes];
        assert!(!group.accepts(&one), "0");
        one[bytes - 1] = 1;
        assert!(!group.accepts(&one), "1");
        one[bytes - 1] = 2;
        assert!(group.accepts(&one), "2");
        assert!(!group.accepts(&one[1..]), "too short");
        // The prime ends with 64 ones.
        let prime = group.prime_bytes();
        assert_eq!(prime.len(), bytes);
        assert!(prime[..8].iter().chain(&prime[bytes - 8..]).all(|byte| *byte == 0xff));
        assert!(!group.accepts(&prime), "p");
        let mut less = prime.clone();
        less[bytes - 1] -= 1;
        assert!(!group.accepts(&less), "p - 1");
        less[bytes - 1] -= 1;
        assert!(group.accepts(&less), "p - 2");
    }
}

/// The first bytes of responses, host's and controller's, as Python's hmac and hashlib make them of what section 8.3.4.5 says.
#[test]
fn responses_are_as_others_make_them() {
    let (sha256, sha384, sha512) = (Hash::Sha256, Hash::Sha384, Hash::Sha512);
    let counting = |bytes: usize| (0..bytes).map(|at| at as u8).collect::<Vec<u8>>();
    let cases = [
        (sha256, None, None, "bf9f4f486a310c51", "254dad7bbe0f0f3e"),
        (sha384, Some(sha384), Some(counting(256)), "a78070d4338b4a8c", "7cfdbfa02e25fe9c"),
        (sha512, Some(sha512), Some(vec![0; 256]), "0e4c935b0f1858fd", "9bb66c259dd38695"),
        (sha256, Some(sha512), Some(vec![0; 384]), "1ea0814261628526", "ee532aeba0ce27e9"),
    ];
    for (hash, transform, shared, of_host, of_controller) in cases {
        let key = Key::generate(transform, &mut |bytes: &mut [u8]| {
            bytes.copy_from_slice(&counting(bytes.len()));
        });
        let exchange = response::Exchange {
            hash,
            group: if shared.is_some() { Group::Ffdhe2048 } else { Group::Null },
            shared: shared.as_deref().unwrap_or_default(),
            transaction: 0xabcd,
            host_nqn: HOST,
            subsystem_nqn: SUBSYSTEM,
        };
        let challenge: Vec<u8> = (0..hash.bytes()).map(|at| (at * 7) as u8).collect();
        let response = exchange.of_host(&key, &challenge, 0x0102_0304);
        assert_eq!(hex(&response.as_ref()[..8]), of_host, "{hash} {transform:?}");
        let response = exchange.of_controller(&key, &challenge, 0x0102_0304);
        assert_eq!(hex(&response.as_ref()[..8]), of_controller, "{hash} {transform:?}");
    }
}

/// The first bytes of SHA-256 over powers that Python's `pow` has computed.
#[test]
fn powers_are_as_others_compute_them() {
    let cases = [
        (Group::Ffdhe2048, 32, "c053f7925f912be3"),
        (Group::Ffdhe3072, 40, "caa407db48228130"),
        (Group::Ffdhe4096, 48, "45d45409237187a4"),
        (Group::Ffdhe6144, 48, "51854620dc3c2e17"),
        (Group::Ffdhe8192, 56, "2229e087073ed433"),
    ];
    for (group, bytes, wanted) in cases {
        let exponent: Vec<u8> = (0..bytes).map(|at| (at * 73 + 200) as u8).collect();
        let public = group.public(&exponent);
        assert_eq!(public.len(), group.bytes());
        assert_eq!(hex(&Hash::Sha256.digest(&[&public]).as_ref()[..8]), wanted, "{group}");
        // The power of a power, both ways round.
        let other = group.exponent(&mut random(4));
        let shared = group.shared(&public, &other);
        assert_eq!(shared, group.shared(&group.public(&other), &exponent), "{group}");
        assert_eq!(shared.len(), group.bytes());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn keys_are_as_other_tools_write_them() {
    // The key of bytes 0 to 31, and what nvme-cli 2.3 prints for it: gen-dhchap-key -s 000102...1f -m 0.
    let text = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    let key = Key::parse(text).unwrap();
    assert_eq!(*key.to_text(), text);
    assert_eq!((key.bytes(), key.transform()), (32, None));
    assert!(!format!("{key:?}").contains("AAEC"));
    assert_eq!(Key::parse(&format!(" {text}\n")), Ok(key));

    assert_eq!(Key::parse("secret"), Err(KeyError::Form));
    assert_eq!(Key::parse(&text[..text.len() - 1]), Err(KeyError::Form));
    assert_eq!(Key::parse(&text.replace(":00:", ":04:")), Err(KeyError::Form));
    assert_eq!(Key::parse(&text.replace(":00:A", ":00:?")), Err(KeyError::Base64));
    assert_eq!(Key::parse(&text.replace(":00:AA", ":00:BA")), Err(KeyError::Checksum));
    assert_eq!(Key::parse("DHHC-1:00:AAEC:"), Err(KeyError::Length { bytes: 3 }));
    let wanted = KeyError::HashLength { hash: Hash::Sha512, bytes: 32 };
    assert_eq!(Key::parse(&text.replace(":00:", ":03:")), Err(wanted));
}

#[test]
fn new_keys_are_read_again() {
    for transform in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
        let key = Key::generate(transform, &mut random(3));
        assert_eq!(Key::parse(&key.to_text()), Ok(key));
    }
}
