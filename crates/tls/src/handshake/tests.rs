use super::*;
use crate::{Derivation, Key, Version, accepted};

const HOST: &str = "nqn.2014-08.org.example:host1";
const SUBSYSTEM: &str = "nqn.2024-01.org.example:disks";

fn key(hash: Hash, byte: u8) -> Key {
    Key::generate(hash, &mut |bytes| bytes.fill(byte))
}

fn psk(key: &Key, version: Version, derivation: Derivation) -> Psk {
    Psk::derive(key, HOST, SUBSYSTEM, version, derivation).expect("short names")
}

/// A controller that knows `keys`.
fn knows(keys: Vec<Key>) -> Handshake {
    Handshake::controller(Arc::new(move |identity: &[u8]| {
        keys.iter().flat_map(|key| accepted(identity, key)).collect()
    }))
}

type Ended = Result<Secrets, HandshakeError>;

/// The records of what one end sends.
fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    while let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
        let (record, rest) =
            bytes.split_at(HEADER_BYTES + record_bytes(*header).expect("a record"));
        records.push(record);
        bytes = rest;
    }
    assert!(bytes.is_empty(), "whole records");
    records
}

/// Has both talk until nobody has more to say: what each has come to, if it has.
fn talk(host: &mut Handshake, controller: &mut Handshake) -> (Option<Ended>, Option<Ended>) {
    let mut ended = [None, None];
    let note = |place: &mut Option<Ended>, progress| match progress {
        Ok(Progress::Receive) => {}
        Ok(Progress::Done(secrets)) => *place = Some(Ok(secrets)),
        Err(error) => *place = Some(Err(error)),
    };
    note(&mut ended[0], host.advance(&[]));
    for turn in 0.. {
        let (from, to, place) = match turn % 2 {
            0 => (&mut *host, &mut *controller, &mut ended[1]),
            _ => (&mut *controller, &mut *host, &mut ended[0]),
        };
        let said = from.take_output();
        if said.is_empty() {
            break;
        }
        for record in records(&said) {
            if place.is_none() {
                note(place, to.advance(record));
            }
        }
    }
    let [host, controller] = ended;
    (host, controller)
}

#[test]
fn both_ends_come_to_the_same_secrets() {
    for hash in Hash::ALL {
        for version in [Version::Zero, Version::One] {
            for derivation in [Derivation::Specified, Derivation::Compatible] {
                let key = key(hash, 7);
                let mut host = Handshake::host(psk(&key, version, derivation));
                let mut controller = knows(vec![key]);
                let ended = talk(&mut host, &mut controller);
                let (Some(Ok(one)), Some(Ok(other))) = ended else {
                    panic!("{hash} {version:?} {derivation:?}: {ended:?}");
                };
                assert_eq!((one.hash, other.hash), (hash, hash));
                assert_eq!((&one.sent, &one.received), (&other.received, &other.sent));
                assert_ne!(one.sent, one.received);
                assert_eq!(one.sent.len(), hash.bytes());
                for peer in [one.peer, other.peer] {
                    assert_eq!((&*peer.host_nqn, &*peer.subsystem_nqn), (HOST, SUBSYSTEM));
                }
            }
        }
    }
}

#[test]
fn no_two_sessions_have_the_same_secrets() {
    let key = key(Hash::Sha256, 7);
    let secrets = || {
        let mut host = Handshake::host(psk(&key, Version::One, Derivation::Specified));
        let (ended, _) = talk(&mut host, &mut knows(vec![key.clone()]));
        ended.expect("it ends").expect("a session").sent
    };
    assert_ne!(secrets(), secrets());
}

#[test]
fn who_has_no_key_or_another_is_told_apart() {
    let mine = psk(&key(Hash::Sha256, 7), Version::Zero, Derivation::Specified);
    let (host, controller) = talk(&mut Handshake::host(mine.clone()), &mut knows(vec![]));
    let refused = matches!(host, Some(Err(HandshakeError::Refused(_))));
    assert!(refused, "{host:?}");
    let Some(Err(HandshakeError::UnknownIdentity { identity })) = controller else {
        panic!("{controller:?}")
    };
    assert_eq!(identity, mine.identity);

    // Of version 0, the identity says nothing of the key.
    let other = knows(vec![key(Hash::Sha256, 8)]);
    let (host, controller) = talk(&mut Handshake::host(mine.clone()), &mut { other });
    assert!(matches!(host, Some(Err(HandshakeError::Refused(_)))), "{host:?}");
    let Some(Err(HandshakeError::OtherKey { identity })) = controller else {
        panic!("{controller:?}")
    };
    assert_eq!(identity, mine.identity);
}

#[test]
fn a_controller_that_proves_nothing_is_no_controller() {
    // One that has seen the identity, and knows another key by it.
    let mine = psk(&key(Hash::Sha256, 7), Version::Zero, Derivation::Specified);
    let mut theirs = mine.clone();
    theirs.secret.fill(1);
    let mut liar = Handshake::controller(Arc::new(move |_: &[u8]| vec![theirs.clone()]));
    let (host, _) = talk(&mut Handshake::host(mine), &mut liar);
    assert!(matches!(host, Some(Err(_)) | None), "{host:?}");
}

#[test]
fn what_is_no_handshake_is_refused() {
    for header in [*b"GET /", [1, 0, 8, 0, 8], [22, 2, 0, 0, 5], [22, 3, 1, 0x41, 1]] {
        assert!(record_bytes(header).is_err(), "{header:?}");
    }
    assert_eq!(record_bytes([22, 3, 1, 0x41, 0]).expect("the longest"), RECORD_BYTES_MAX);
    let mut controller = knows(vec![]);
    let error = controller.advance(&[22, 3, 1, 0, 4, 9, 9, 9, 9]).expect_err("no ClientHello");
    assert!(matches!(error, HandshakeError::Protocol(_)), "{error:?}");

    // Endless pieces of a ClientHello.
    let mut controller = knows(vec![]);
    let piece = [&[22, 3, 1, 0x10, 0][..], &[1, 0xff, 0xff, 0xff], &[0; 4092]].concat();
    let count = (0..100).take_while(|_| controller.advance(&piece).is_ok()).count();
    assert!(count < 17, "{count}");
}

/// A host as OpenSSL has it, without what is ours.
struct Bare(SslStream<Wire>);

impl Bare {
    fn new(psk: Psk, groups: &str) -> Bare {
        let hash = psk.hash;
        let ssl = engine::session_with(End::Host(psk), hash, groups).expect("a session");
        Bare(SslStream::new(ssl, Wire::default()).expect("a stream"))
    }

    fn says(&mut self, heard: &[u8]) -> Vec<u8> {
        self.0.get_mut().input.extend_from_slice(heard);
        let _ = self.0.do_handshake();
        std::mem::take(&mut self.0.get_mut().output)
    }
}

/// What a controller makes of what is said, record by record.
fn hear(
    controller: &mut Handshake,
    said: &[u8],
) -> (Result<Option<Secrets>, HandshakeError>, Vec<u8>) {
    let mut answer = Vec::new();
    for record in records(said) {
        let progress = controller.advance(record);
        answer.extend(controller.take_output());
        match progress {
            Ok(Progress::Receive) => {}
            Ok(Progress::Done(secrets)) => return (Ok(Some(secrets)), answer),
            Err(error) => return (Err(error), answer),
        }
    }
    (Ok(None), answer)
}

/// An identity without a digest, which stands for each of its keys twice.
#[test]
fn a_host_comes_by_the_last_of_its_keys() {
    let keys: Vec<Key> = (1..=KEYS_MAX as u8).map(|byte| key(Hash::Sha256, byte)).collect();
    let last = psk(keys.last().expect("some"), Version::Zero, Derivation::Compatible);
    let (host, controller) = talk(&mut Handshake::host(last), &mut knows(keys));
    assert!(matches!((&host, &controller), (Some(Ok(_)), Some(Ok(_)))), "{host:?}, {controller:?}");
}

/// A provider of cryptography may not have all groups (FIPS).
#[test]
fn without_a_group_that_openssl_has_not_there_are_others() {
    let key = key(Hash::Sha256, 7);
    let psk = psk(&key, Version::Zero, Derivation::Specified);
    let mut host = Bare::new(psk, "P-256:there-is-no-such-group");
    let mut controller = knows(vec![key]);
    let hello = host.says(&[]);
    // supported_groups: secp256r1 and secp384r1, and not all that OpenSSL has.
    let offered = [0, 10, 0, 6, 0, 4, 0, 0x17, 0, 0x18];
    assert!(hello.windows(offered.len()).any(|bytes| bytes == offered), "{hello:02x?}");
    let (heard, answer) = hear(&mut controller, &hello);
    assert!(matches!(heard, Ok(None)), "{heard:?}");
    let (done, _) = hear(&mut controller, &host.says(&answer));
    assert!(matches!(done, Ok(Some(_))), "{done:?}");
}

#[test]
fn a_host_that_needs_another_group_is_asked_for_it() {
    for derivation in [Derivation::Specified, Derivation::Compatible] {
        let key = key(Hash::Sha384, 7);
        let mut host = Bare::new(psk(&key, Version::Zero, derivation), "P-521:P-256");
        let mut controller = knows(vec![key]);
        let (heard, again) = hear(&mut controller, &host.says(&[]));
        assert!(
            heard.expect("no fault").is_none() && !again.is_empty(),
            "it asks for another group"
        );
        let (heard, answer) = hear(&mut controller, &host.says(&again));
        assert!(heard.expect("no fault").is_none() && answer.len() > again.len());
        let (heard, _) = hear(&mut controller, &host.says(&answer));
        assert_eq!(heard.expect("no fault").expect("secrets").peer.host_nqn, HOST);
    }
}

/// Whoever was asked for another group, and then proves another key: nobody is tried again.
#[test]
fn a_second_hello_of_another_key_is_refused_once() {
    let mine = key(Hash::Sha256, 7);
    let mut controller = knows(vec![mine.clone()]);
    let mut host = Bare::new(psk(&mine, Version::Zero, Derivation::Specified), "P-521:P-256");
    let (_, again) = hear(&mut controller, &host.says(&[]));
    let mut hello = host.says(&again);
    // The binder is its last.
    *hello.last_mut().expect("a hello") ^= 1;
    let (heard, said) = hear(&mut controller, &hello);
    assert!(matches!(heard, Err(HandshakeError::OtherKey { .. })), "{heard:?}");
    assert!(said.len() < 16, "an alert alone: {} bytes", said.len());
}

/// Both derivations have one name in version 0; but the controller has answered.
#[test]
fn a_host_that_leaves_after_the_answer_has_refused() {
    let key = key(Hash::Sha256, 7);
    let mut host = Bare::new(psk(&key, Version::Zero, Derivation::Specified), "X25519");
    let mut controller = knows(vec![key]);
    let (heard, answer) = hear(&mut controller, &host.says(&[]));
    assert!(heard.expect("no fault").is_none() && !answer.is_empty());
    // An alert, not encrypted yet: a host may not know better.
    let (heard, said) = hear(&mut controller, &[21, 3, 3, 0, 2, 2, 40]);
    assert!(matches!(heard, Err(HandshakeError::Refused(_))), "{heard:?}");
    assert!(said.len() < 32, "nothing is said again: {} bytes", said.len());
}

#[test]
fn a_host_cannot_have_keys_looked_for_without_end() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let find = move |_: &[u8]| {
        counted.fetch_add(1, Ordering::Relaxed);
        Vec::new()
    };
    let known = Known { find: Arc::new(find), asked: Mutex::default() };
    for number in 0..1000_u32 {
        for hash in Hash::ALL {
            assert!(known.of(&(number % 500).to_be_bytes(), hash).is_empty());
        }
    }
    assert_eq!(count.load(Ordering::Relaxed), IDENTITIES_MAX);
    assert_eq!(known.most(Hash::Sha384), Some(0));
}

#[test]
fn keys_of_either_hash_function_are_found_whatever_else_is_offered() {
    let key = key(Hash::Sha384, 7);
    let psk = psk(&key, Version::Zero, Derivation::Specified);
    let known = Known {
        find: Arc::new(move |identity: &[u8]| accepted(identity, &key)),
        asked: Mutex::default(),
    };
    for identity in [psk.identity.as_bytes(), b"NVMe0R01 a b"] {
        assert!(known.of(identity, Hash::Sha256).is_empty());
    }
    assert_eq!((known.most(Hash::Sha256), known.most(Hash::Sha384)), (Some(0), Some(2)));
}

#[test]
fn memory_is_given_to_sensible_hellos() {
    let promise = |length: u32| {
        let [_, high, middle, low] = length.to_be_bytes();
        knows(vec![]).advance(&[22, 3, 1, 0, 8, 1, high, middle, low, 3, 3, 0, 0])
    };
    assert!(matches!(promise(200), Ok(Progress::Receive)));
    assert!(matches!(promise(1 << 17), Err(HandshakeError::Protocol(_))));
    for other in
        [&[22, 3, 1, 0, 3, 1, 0, 0][..], &[23, 3, 3, 0, 4, 1, 0, 0, 200], &[21, 3, 3, 0, 2, 2, 40]]
    {
        assert!(
            matches!(knows(vec![]).advance(other), Err(HandshakeError::Protocol(_))),
            "{other:?}"
        );
    }
}
