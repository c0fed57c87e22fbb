//! The body of the fuzz target `tls` in fuzz/: texts of keys and identities (`texts`), both ends fed whatever comes (`records`), and each
//! other's records, one of which somebody touches (`touched`). What OpenSSL makes of it is looked at as far as it is ours: who is believed.

use crate::handshake::HEADER_BYTES;
use crate::{Derivation, Handshake, Hash, Key, Peer, Progress, Psk, Version, accepted};
use std::sync::Arc;

const HOST: &str = "nqn.2026-11.org.example:host";
const SUBSYSTEM: &str = "nqn.2026-11.org.example:a";

/// The most that one end answers before it has failed or is done.
const OUTPUT_BYTES_MAX: usize = 1 << 16;

/// The same bytes are texts, records, and say which byte is touched.
pub fn fuzz(input: &[u8]) {
    texts(input);
    records(input);
    touched(input);
}

fn key(hash: Hash) -> Key {
    Key::generate(hash, &mut |bytes| bytes.fill(7))
}

fn ends(hash: Hash, version: Version) -> (Handshake, Handshake) {
    let key = key(hash);
    let psk = Psk::derive(&key, HOST, SUBSYSTEM, version, Derivation::Specified);
    let host = Handshake::host(psk.expect("short names"));
    (host, Handshake::controller(Arc::new(move |identity: &[u8]| accepted(identity, &key))))
}

fn texts(input: &[u8]) {
    if let Ok(key) = Key::parse(&String::from_utf8_lossy(input)) {
        assert_eq!(Key::parse(&key.to_text()).as_ref(), Ok(&key));
    }
    if let Some(peer) = Peer::of(input) {
        let names = format!("{} {}", peer.host_nqn, peer.subsystem_nqn);
        assert!(String::from_utf8_lossy(input).contains(&names));
    }
    for psk in accepted(input, &key(Hash::Sha256)) {
        assert_eq!(psk.identity.as_bytes(), input);
    }
}

/// Feeds `input`, cut into records by lengths that it tells, to both ends: nobody who does not know the key is believed.
fn records(mut input: &[u8]) {
    let (mut host, mut controller) = ends(Hash::Sha256, Version::Zero);
    let (mut answered, mut is_first) = (0, true);
    assert!(matches!(host.advance(&[]), Ok(Progress::Receive)));
    let (mut host, mut controller) = (Some(&mut host), Some(&mut controller));
    while let [high, low, kind, rest @ ..] = input {
        let bytes = usize::from(u16::from_be_bytes([*high, *low]));
        let (message, rest) = rest.split_at(rest.len().min(bytes));
        input = rest;
        let length = (message.len() as u16).to_be_bytes();
        // As what comes by a connection: with a header that fits, and first a hello, without which nothing is looked at.
        let mut record = [&[20 + kind % 4, 3, 1], &length[..], message].concat();
        if std::mem::take(&mut is_first) && record.len() > 8 {
            let [high, low] = (message.len() as u16 - 4).to_be_bytes();
            (record[0], record[5], record[6], record[7]) = (22, 1, 0, high);
            if let Some(place) = record.get_mut(8) {
                *place = low;
            }
        }
        for end in [&mut host, &mut controller] {
            let Some(handshake) = end else { continue };
            let progress = handshake.advance(&record);
            answered += handshake.take_output().len();
            match progress {
                Ok(Progress::Receive) => {}
                Ok(Progress::Done(secrets)) => panic!("who knows no key is believed: {secrets:?}"),
                Err(_) => *end = None,
            }
        }
        assert!(answered <= OUTPUT_BYTES_MAX);
    }
}

/// Has both ends talk to each other, with one byte of one record touched: then not both are done.
fn touched(input: &[u8]) {
    let [which, at, high, by, ..] = *input else { return };
    let hash = if by & 1 == 0 { Hash::Sha256 } else { Hash::Sha384 };
    let version = if by & 2 == 0 { Version::Zero } else { Version::One };
    let (mut host, mut controller) = ends(hash, version);
    let at = usize::from(u16::from_be_bytes([high & 3, at]));
    // Versions in headers are for show.
    let by = if (1..=2).contains(&at) { 0 } else { by };
    let (mut number, mut is_touched) = (0, false);
    let mut done = (None, None);
    assert!(matches!(host.advance(&[]), Ok(Progress::Receive)));
    for turn in 0..8 {
        let (from, to) = match turn % 2 {
            0 => (&mut host, &mut controller),
            _ => (&mut controller, &mut host),
        };
        let said = from.take_output();
        let mut rest = &said[..];
        while let [_, _, _, high, low, ..] = *rest {
            let bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
            let (record, after) = rest.split_at(bytes);
            rest = after;
            let mut record = record.to_vec();
            if number == which % 8 && at < record.len() && by != 0 {
                record[at] ^= by;
                is_touched = true;
            }
            number += 1;
            let place = if turn % 2 == 0 { &mut done.1 } else { &mut done.0 };
            if place.is_some() {
                continue;
            }
            match to.advance(&record) {
                Ok(Progress::Receive) => {}
                Ok(Progress::Done(secrets)) => *place = Some(Ok(secrets)),
                Err(error) => *place = Some(Err(error)),
            }
        }
    }
    match done {
        (Some(Ok(one)), Some(Ok(other))) => {
            assert!(!is_touched, "record {which} at {at} by {by:#x}: nobody has noticed");
            assert_eq!((&one.sent, &one.received), (&other.received, &other.sent));
            assert_eq!(one.peer, Peer { host_nqn: HOST.into(), subsystem_nqn: SUBSYSTEM.into() });
            assert_eq!(one.peer, other.peer);
        }
        other => assert!(is_touched, "nothing was touched: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    #[test]
    fn seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/tls");
        let mut count = 0;
        for entry in folder.read_dir().expect("the seeds are committed") {
            fuzz(&std::fs::read(entry.expect("a readable folder").path()).expect("a file"));
            count += 1;
        }
        assert!(count > 0, "no seeds in {}", folder.display());
    }

    #[test]
    fn untouched_they_agree() {
        for by in [4, 1, 2, 3] {
            touched(&[7, 255, 255, by]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_comes(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            fuzz(&bytes);
        }

        #[test]
        fn whichever_byte(which: u8, at in 0..600u16, by: u8) {
            let [high, low] = at.to_be_bytes();
            touched(&[which, low, high, by]);
        }
    }
}
