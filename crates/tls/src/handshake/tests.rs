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
