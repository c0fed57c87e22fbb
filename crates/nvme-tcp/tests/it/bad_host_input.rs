//! What a controller may do wrong, and the H2CTermReq that each gets: Fatal Error Status and
//! Information.

use crate::peer;

use nvme::Command;
use nvme_tcp::host::{
    COMMAND_HEADER_BYTES_MAX, Config, Connection, DATA_HEADER_BYTES_MAX, Event, INPUT_BYTES_MAX,
    Transfer,
};
use nvme_tcp::pdu::{Kind, TERM_BYTES_MAX, flags};
use nvme_tcp::{FatalError, Terminate};
use peer::{Pdu, ic_resp};

const FIELD: FatalError = FatalError::INVALID_HEADER_FIELD;
const SEQUENCE: FatalError = FatalError::PDU_SEQUENCE;
const RANGE: FatalError = FatalError::DATA_OUT_OF_RANGE;

fn config(digests: bool) -> Config {
    Config { header_digest: digests, data_digest: digests, hpda_z: 3, max_r2t: 2, queue_entries: 8 }
}

fn start(connection: &mut Connection, cid: u16, transfer: Transfer) {
    let command = Command { cid: cid.into(), ..Command::default() };
    connection.command(&command, transfer, &mut [0; COMMAND_HEADER_BYTES_MAX]);
}

/// A connection with digests (or not), and in flight: 1 without data, 2 that reads 6000 bytes, 3
/// that writes 6000 bytes, 4 with 512 bytes in its capsule.
fn connected(digests: bool) -> Connection {
    let mut connection = Connection::new(config(digests));
    let response = ic_resp(|response| response.dgst = if digests { 3 } else { 0 });
    let event = connection.receive(&mut response.as_slice());
    assert!(matches!(event, Ok(Some(Event::Initialized))));
    start(&mut connection, 1, Transfer::None);
    start(&mut connection, 2, Transfer::ToHost(6000));
    start(&mut connection, 3, Transfer::ToController(6000));
    start(&mut connection, 4, Transfer::InCapsule(512));
    connection
}

fn feed(connection: &mut Connection, bytes: &[u8], chunk: usize) -> Option<Terminate> {
    let mut held = Vec::new();
    for chunk in bytes.chunks(chunk) {
        held.extend_from_slice(chunk);
        let mut input = held.as_slice();
        loop {
            match connection.receive(&mut input) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(terminate) => return Some(terminate),
            }
        }
        assert!(input.len() <= INPUT_BYTES_MAX);
        held = input.to_vec();
    }
    None
}

#[test]
fn digests_that_are_declined_are_told() {
    for (asked, used) in (0u8..4).flat_map(|asked| (0u8..4).map(move |used| (asked, used))) {
        let (header_digest, data_digest) = (asked & 1 != 0, asked & 2 != 0);
        let mut connection =
            Connection::new(Config { header_digest, data_digest, ..config(false) });
        let response = ic_resp(|response| response.dgst = used);
        let event = connection.receive(&mut response.as_slice());
        assert_eq!(event.is_ok(), used & !asked == 0, "{asked} {used}");
        if event.is_ok() {
            let all = [None, Some("header digests"), Some("data digests")];
            let all = [&all[..], &[Some("header digests and data digests")]].concat();
            assert_eq!(connection.declined(), all[usize::from(asked & !used)], "{asked} {used}");
        }
    }
}

/// Its identifier may be used at once, and an answer to it is one to nothing.
#[test]
fn a_command_that_was_withdrawn_is_not_in_flight() {
    let mut connection = connected(false);
    for cid in 1..=4 {
        connection.withdraw(cid);
    }
    start(&mut connection, 2, Transfer::None);
    let of = |cid: u16| Pdu::response(cid).bytes();
    assert!(feed(&mut connection, &of(2), usize::MAX).is_none());
    assert!(feed(&mut connection, &of(1), usize::MAX).is_some());
}

/// Whatever the chunks, `pdu` must end the connection with this status and information.
fn refused(what: &str, connect: impl Fn() -> Connection, pdu: &[u8], fes: FatalError, fei: u32) {
    for chunk in [usize::MAX, 1, 7] {
        let mut connection = connect();
        let terminate = feed(&mut connection, pdu, chunk);
        let terminate = terminate.unwrap_or_else(|| panic!("{what}: accepted"));
        assert_eq!((terminate.fes, terminate.fei), (fes, fei), "{what}: {terminate}");
        let sent = terminate.pdu();
        assert!(sent.len() <= TERM_BYTES_MAX && sent.len() >= 24 + 8, "{what}");
        assert_eq!(sent[..4], [Kind::H2C_TERM_REQ.0, 0, 24, 0], "{what}");
        assert_eq!(sent[4..8], (sent.len() as u32).to_le_bytes(), "{what}");
        assert_eq!(sent[24..], pdu[..sent.len() - 24], "{what}");
        assert!(connection.is_closed());
        let response = Pdu::response(1).bytes();
        assert!(matches!(connection.receive(&mut response.as_slice()), Ok(None)), "{what}");
    }
}

#[test]
fn initialization() {
    let unsupported = FatalError::UNSUPPORTED_PARAMETER;
    let cases: &[(&str, usize, &[u8], FatalError, u32)] = &[
        ("type", 0, &[0x77], FIELD, 0),
        ("ICReq from a controller", 0, &[0x00], FIELD, 0),
        ("response first", 0, &[0x05], SEQUENCE, 0),
        ("flags", 1, &[2], FIELD, 1),
        ("HLEN", 2, &[24], FIELD, 2),
        ("PLEN", 4, &[129], FIELD, 4),
        ("PFV", 8, &[0, 1], unsupported, 8),
        ("CPDA", 10, &[32], FIELD, 10),
        ("header digest not asked for", 11, &[1], FIELD, 11),
        ("data digest not asked for", 11, &[2], FIELD, 11),
        ("MAXH2CDATA", 12, &[0xff, 0x0f, 0, 0], FIELD, 12),
    ];
    for &(what, at, bytes, fes, fei) in cases {
        let mut response = ic_resp(|_| {});
        response[at..at + bytes.len()].copy_from_slice(bytes);
        refused(what, || Connection::new(config(false)), &response, fes, fei);
    }
    refused("second ICResp", || connected(false), &ic_resp(|_| {}), SEQUENCE, 0);
}

#[test]
fn common_headers() {
    let response = Pdu::response(1);
    let data = Pdu::c2h(2, 0).data(512).aligned(16);
    let request = Pdu::r2t(3, 0, 0, 512);
    let cases: &[(&str, &Pdu, usize, &[u8], u32)] = &[
        ("command from a controller", &response, 0, &[0x04], 0),
        ("H2CData from a controller", &data, 0, &[0x06], 0),
        ("H2CTermReq from a controller", &data, 0, &[0x02], 0),
        ("digest not in use", &response, 1, &[flags::HDGST], 1),
        ("data digest not in use", &data, 1, &[flags::DDGST], 1),
        ("LAST_PDU on a response", &response, 1, &[flags::LAST], 1),
        ("SUCCESS without LAST_PDU", &data, 1, &[flags::SUCCESS], 1),
        ("HLEN", &request, 2, &[23], 2),
        ("PDO not aligned", &data, 3, &[28], 3),
        ("PDO within the header", &data, 3, &[16], 3),
        ("PLEN of a response", &response, 4, &[25], 4),
        ("PLEN of an R2T", &request, 4, &[28], 4),
        ("PLEN without data", &data, 4, &[32, 0], 4),
    ];
    for &(what, pdu, at, bytes, fei) in cases {
        let mut pdu = pdu.bytes();
        pdu[at..at + bytes.len()].copy_from_slice(bytes);
        refused(what, || connected(false), &pdu, FIELD, fei);
    }
    let missing = Pdu::response(1).bytes();
    refused("header digest missing", || connected(true), &missing, FIELD, 1);
}

#[test]
fn commands_that_are_not_in_flight() {
    for cid in [0, 7, 8, 0xffff] {
        refused("response", || connected(false), &Pdu::response(cid).bytes(), FIELD, 20);
        let with_digest = Pdu::response(cid).header_digest().bytes();
        refused("response", || connected(true), &with_digest, FIELD, 20);
        let data = Pdu::c2h(cid, 0).data(512).aligned(16);
        refused("data", || connected(false), &data.bytes(), FIELD, 8);
        refused("R2T", || connected(false), &Pdu::r2t(cid, 0, 0, 512).bytes(), FIELD, 8);
    }
    let twice = [Pdu::response(1).bytes(), Pdu::response(1).bytes()].concat();
    let mut connection = connected(false);
    assert!(feed(&mut connection, &twice[..24], 9).is_none());
    let terminate = feed(&mut connection, &twice[24..], 9).expect("completed twice");
    assert_eq!((terminate.fes, terminate.fei), (FIELD, 20));
}

#[test]
fn data_that_nobody_asked_for() {
    let pdu = |cid, offset, len| Pdu::c2h(cid, offset).data(len).aligned(16);
    let cases: &[(&str, Pdu, FatalError, u32)] = &[
        ("command without data", pdu(1, 0, 512), FIELD, 8),
        ("command that writes", pdu(3, 0, 512), FIELD, 8),
        ("command with in-capsule data", pdu(4, 0, 512), FIELD, 8),
        ("DATAL short", pdu(2, 0, 512).datal(511), FIELD, 16),
        ("DATAL zero", pdu(2, 0, 512).datal(0), FIELD, 16),
        ("gap", pdu(2, 4, 512), SEQUENCE, 0),
        ("overrun", pdu(2, 0, 6001), RANGE, 0),
        ("offset overflows", pdu(2, u32::MAX, 512), RANGE, 0),
        ("LAST_PDU too early", pdu(2, 0, 512).last(), SEQUENCE, 0),
        ("LAST_PDU missing", pdu(2, 0, 6000), SEQUENCE, 0),
    ];
    for (what, pdu, fes, fei) in cases {
        refused(what, || connected(false), &pdu.bytes(), *fes, *fei);
    }
    let begun = || {
        let mut connection = connected(false);
        assert!(feed(&mut connection, &pdu(2, 0, 4096).bytes(), 999).is_none());
        connection
    };
    refused("again", begun, &pdu(2, 0, 4096).bytes(), SEQUENCE, 0);
    refused("overlap", begun, &pdu(2, 4000, 512).bytes(), SEQUENCE, 0);
    let success = || {
        let mut connection = begun();
        let rest = pdu(2, 4096, 6000 - 4096).last().flags(flags::SUCCESS).bytes();
        assert!(feed(&mut connection, &rest, 999).is_none());
        connection
    };
    refused("response after SUCCESS", success, &Pdu::response(2).bytes(), FIELD, 20);
    let finished = || {
        let mut connection = begun();
        let rest = pdu(2, 4096, 6000 - 4096).last().bytes();
        assert!(feed(&mut connection, &rest, 999).is_none());
        connection
    };
    refused("data after the last", finished, &pdu(2, 5996, 4).last().bytes(), SEQUENCE, 0);
    assert!(feed(&mut finished(), &Pdu::response(2).bytes(), 999).is_none());
}

#[test]
fn requests_to_transfer() {
    let cases: &[(&str, Pdu, FatalError, u32)] = &[
        ("command without data", Pdu::r2t(1, 0, 0, 512), FIELD, 8),
        ("command that reads", Pdu::r2t(2, 0, 0, 512), FIELD, 8),
        ("command with in-capsule data", Pdu::r2t(4, 0, 0, 512), FIELD, 8),
        ("R2TL zero", Pdu::r2t(3, 0, 0, 0), FIELD, 16),
        ("gap", Pdu::r2t(3, 0, 4, 512), SEQUENCE, 0),
        ("overrun", Pdu::r2t(3, 0, 0, 6001), RANGE, 0),
        ("offset overflows", Pdu::r2t(3, 0, u32::MAX, 512), RANGE, 0),
    ];
    for (what, pdu, fes, fei) in cases {
        refused(what, || connected(false), &pdu.bytes(), *fes, *fei);
    }
    let mut connection = connected(false);
    let mut requests = Pdu::r2t(3, 9, 0, 512).bytes();
    requests.extend(Pdu::r2t(3, 8, 512, 512).bytes());
    assert!(feed(&mut connection, &requests, 50).is_none());
    let third = Pdu::r2t(3, 7, 1024, 512).bytes();
    let terminate = feed(&mut connection, &third, 50).expect("one too many");
    assert_eq!((terminate.fes, terminate.fei), (FatalError::R2T_LIMIT_EXCEEDED, 0));
}

#[test]
fn outstanding_requests_are_those_not_yet_answered() {
    let mut connection = connected(false);
    for round in 0..10 {
        let request = Pdu::r2t(3, round, u32::from(round) * 600, 600).bytes();
        let event = connection.receive(&mut request.as_slice()).unwrap();
        let Some(Event::ReadyToTransfer(mut outgoing)) = event else { panic!() };
        let mut out = [0; DATA_HEADER_BYTES_MAX];
        let pdu = connection.data_header(&mut outgoing, &mut out).unwrap();
        assert_eq!((pdu.offset, pdu.len), (u32::from(round) * 600, 600));
        let expected = Pdu::h2c(3, round, pdu.offset).data(600).last().bytes();
        assert_eq!(out[..pdu.header_bytes], expected[..24]);
        assert_eq!(connection.data_header(&mut outgoing, &mut out), None);
    }
}

#[test]
fn digests() {
    let good = Pdu::response(1).header_digest().bytes();
    for at in 8..28 {
        let mut bad = good.clone();
        bad[at] ^= 4;
        let fei = u32::from_le_bytes(bad[24..].try_into().unwrap());
        refused("digest", || connected(true), &bad, FatalError::HEADER_DIGEST, fei);
    }
    assert!(feed(&mut connected(true), &good, 3).is_none());
    // A wrong data digest in the first of two PDUs spoils the command, not the connection.
    for (success, chunk) in [(false, 4000), (true, 13)] {
        let mut connection = connected(true);
        let first = Pdu::c2h(2, 0).data(3000).aligned(16).header_digest().data_digest();
        let second = Pdu::c2h(2, 3000).data(3000).aligned(16).header_digest().data_digest().last();
        let second = if success { second.flags(flags::SUCCESS) } else { second };
        let mut stream = first.bytes();
        *stream.last_mut().unwrap() ^= 1;
        stream.extend(second.bytes());
        stream.extend(Pdu::response(if success { 1 } else { 2 }).header_digest().bytes());
        let mut held = Vec::new();
        let (mut ends, mut responses) = (0, 0);
        for chunk in stream.chunks(chunk) {
            held.extend_from_slice(chunk);
            let mut input = held.as_slice();
            while let Some(event) = connection.receive(&mut input).unwrap() {
                match event {
                    Event::Data { end: Some(end), .. } => {
                        assert!(end.digest_error && end.success == success);
                        ends += 1;
                    }
                    Event::Data { end: None, .. } => {}
                    Event::Response { received, digest_error, .. } => {
                        assert_eq!(digest_error, !success);
                        assert_eq!(received, if success { 0 } else { 6000 });
                        responses += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            held = input.to_vec();
        }
        assert_eq!((ends, responses), (1, 1));
    }
}

#[test]
fn terminations_are_not_answered() {
    for (edit, fes, fei) in [
        ((8, 2), FatalError(2), 0x0403_0201),
        ((2, 25), FatalError(0), 0),
        ((4, 153), FatalError(0), 0),
    ] {
        for mut connection in [Connection::new(config(false)), connected(true)] {
            let mut pdu = vec![0; 24];
            pdu[0] = Kind::C2H_TERM_REQ.0;
            pdu[2] = 24;
            pdu[4] = 24;
            pdu[10..14].copy_from_slice(&[1, 2, 3, 4]);
            pdu[edit.0] = edit.1;
            match connection.receive(&mut pdu.as_slice()) {
                Ok(Some(Event::Terminated { fes: got_fes, fei: got_fei })) => {
                    assert_eq!((got_fes, got_fei), (fes, fei));
                }
                other => panic!("{other:?}"),
            }
            assert!(connection.is_closed());
        }
    }
}

#[test]
fn a_command_without_digests_is_byte_for_byte_what_is_expected() {
    let mut connection = connected(false);
    let mut out = [0xaa; COMMAND_HEADER_BYTES_MAX];
    let command = Command { opcode: 1, cid: 5.into(), nsid: 9.into(), ..Command::default() };
    let n = connection.command(&command, Transfer::InCapsule(512), &mut out);
    assert_eq!(n, 72);
    assert_eq!(out[..8], [4, 0, 72, 72, 0x48, 0x02, 0, 0]);
    assert_eq!(out[8..16], [1, 0x40, 5, 0, 9, 0, 0, 0]);
    assert_eq!(out[32..48], [0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0x01]);
}
