//! What a host may do wrong, and the C2HTermReq that each gets: Fatal Error Status and
//! Information.

use crate::peer;

use nvme_tcp::controller::{Config, Connection, Event, RESPONSE_BYTES_MAX};
use nvme_tcp::pdu::{Kind, TERM_BYTES_MAX, flags};
use nvme_tcp::{FatalError, Terminate};
use peer::{Pdu, ic_req};

/// A change of a header field: byte offset and new bytes.
type Edit = (usize, &'static [u8]);

const IN_CAPSULE_MAX: u32 = 4096;
const MAX_H2C_DATA: u32 = 4096;

fn config() -> Config {
    Config { max_h2c_data: MAX_H2C_DATA, in_capsule_max: IN_CAPSULE_MAX, ..Config::default() }
}

/// A connection with digests (or not), data aligned to 16 bytes, and one transfer outstanding: 6000
/// bytes from 512 under tag 3 for command 7.
fn connected(digests: bool) -> Connection {
    let mut connection = Connection::new(Config { cpda_z: 3, ..config() });
    let request = ic_req(|request| request.dgst = if digests { 3 } else { 0 });
    let mut input = request.as_slice();
    assert!(matches!(connection.receive(&mut input), Ok(Some(Event::Initialize { .. }))));
    assert_eq!(connection.header_digest(), digests);
    connection.expect(7, 3, 512, 6000, &mut [0; RESPONSE_BYTES_MAX]);
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
        assert!(input.len() <= connection.input_bytes_max());
        held = input.to_vec();
    }
    None
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
        assert_eq!(sent[..4], [Kind::C2H_TERM_REQ.0, 0, 24, 0], "{what}");
        assert_eq!(sent[4..8], (sent.len() as u32).to_le_bytes(), "{what}");
        assert_eq!(sent[8..10], fes.0.to_le_bytes(), "{what}");
        assert_eq!(sent[10..14], fei.to_le_bytes(), "{what}");
        assert_eq!(sent[14..24], [0; 10], "{what}");
        assert_eq!(sent[24..], pdu[..sent.len() - 24], "{what}");
        // Dead from then on: a good capsule is dropped without a trace.
        assert!(connection.is_closed());
        let capsule = Pdu::command(1).bytes();
        let mut input = capsule.as_slice();
        assert!(matches!(connection.receive(&mut input), Ok(None)), "{what}");
        assert!(input.is_empty(), "{what}");
    }
}

#[test]
fn initialization() {
    let cases: &[(&str, Edit, FatalError, u32)] = &[
        ("flags", (1, &[1]), FatalError::INVALID_HEADER_FIELD, 1),
        ("HLEN", (2, &[127]), FatalError::INVALID_HEADER_FIELD, 2),
        ("PLEN short", (4, &[127]), FatalError::INVALID_HEADER_FIELD, 4),
        ("PLEN long", (4, &[0, 0, 0, 1]), FatalError::INVALID_HEADER_FIELD, 4),
        ("PFV", (8, &[1, 0]), FatalError::UNSUPPORTED_PARAMETER, 8),
        ("HPDA", (10, &[32]), FatalError::INVALID_HEADER_FIELD, 10),
        ("HLEN and PLEN: the lowest counts", (2, &[0, 0, 0]), FatalError::INVALID_HEADER_FIELD, 2),
        ("type", (0, &[0x08]), FatalError::INVALID_HEADER_FIELD, 0),
        ("type of the other direction", (0, &[0x01]), FatalError::INVALID_HEADER_FIELD, 0),
        ("kickstart", (0, &[0x0a]), FatalError::INVALID_HEADER_FIELD, 0),
        ("command first", (0, &[0x04]), FatalError::PDU_SEQUENCE, 0),
        ("data first", (0, &[0x06]), FatalError::PDU_SEQUENCE, 0),
    ];
    for &(what, (at, bytes), fes, fei) in cases {
        let mut request = ic_req(|_| {});
        request[at..at + bytes.len()].copy_from_slice(bytes);
        refused(what, || Connection::new(config()), &request, fes, fei);
    }
    let second = ic_req(|_| {});
    refused("second ICReq", || connected(false), &second, FatalError::PDU_SEQUENCE, 0);
}

#[test]
fn common_headers() {
    const HDGST: u8 = flags::HDGST;
    const FIELD: FatalError = FatalError::INVALID_HEADER_FIELD;
    let plain = Pdu::command(1);
    let with_data = Pdu::command(1).data(512).aligned(16);
    let transfer = Pdu::h2c(7, 3, 512).data(512).aligned(16);
    let cases: &[(&str, &Pdu, Edit, u32)] = &[
        ("unknown type", &plain, (0, &[0x55]), 0),
        ("response from a host", &plain, (0, &[0x05]), 0),
        ("C2HData from a host", &plain, (0, &[0x07]), 0),
        ("R2T from a host", &plain, (0, &[0x09]), 0),
        ("C2HTermReq from a host", &plain, (0, &[0x03]), 0),
        ("header digest not in use", &plain, (1, &[HDGST]), 1),
        ("data digest not in use", &with_data, (1, &[flags::DDGST]), 1),
        ("data digest without data", &plain, (1, &[flags::DDGST]), 1),
        ("reserved flag", &plain, (1, &[0x80]), 1),
        ("LAST_PDU on a capsule", &plain, (1, &[flags::LAST]), 1),
        ("SUCCESS from a host", &transfer, (1, &[flags::SUCCESS]), 1),
        ("HLEN short", &plain, (2, &[71]), 2),
        ("HLEN zero", &plain, (2, &[0]), 2),
        ("HLEN of H2CData", &transfer, (2, &[72]), 2),
        ("PDO without data", &plain, (3, &[80]), 3),
        ("PDO within the header", &with_data, (3, &[64]), 3),
        ("PDO not aligned", &with_data, (3, &[84]), 3),
        ("PDO zero", &with_data, (3, &[0]), 3),
        ("PDO of H2CData", &transfer, (3, &[28]), 3),
        ("PDO beyond the PDU", &transfer, (3, &[240, 50, 0]), 3),
        ("PLEN short", &plain, (4, &[71]), 4),
        ("PLEN zero", &plain, (4, &[0]), 4),
        ("PLEN of H2CData without data", &transfer, (4, &[32, 0]), 4),
        ("PLEN of H2CData short", &transfer, (4, &[8, 0]), 4),
        ("padding and no data", &with_data, (4, &[80, 0]), 4),
    ];
    for &(what, pdu, (at, bytes), fei) in cases {
        let mut pdu = pdu.bytes();
        pdu[at..at + bytes.len()].copy_from_slice(bytes);
        refused(what, || connected(false), &pdu, FIELD, fei);
    }
    let missing = Pdu::command(1).bytes();
    refused("header digest missing", || connected(true), &missing, FIELD, 1);
    let missing = Pdu::command(1).data(512).aligned(16).header_digest().bytes();
    refused("data digest missing", || connected(true), &missing, FIELD, 1);
}

#[test]
fn in_capsule_data_over_the_limit() {
    let limit = IN_CAPSULE_MAX as usize;
    let mut connection = connected(false);
    assert!(feed(&mut connection, &Pdu::command(1).data(limit).aligned(16).bytes(), 100).is_none());
    let over = Pdu::command(1).data(limit + 1).aligned(16).bytes();
    let fes = FatalError::DATA_LIMIT_EXCEEDED;
    refused("one byte over", || connected(false), &over, fes, 0);
    let mut huge = Pdu::command(1).data(16).aligned(16).bytes();
    huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    refused("4 GiB", || connected(false), &huge, fes, 0);
    // The limit is refused by the common header alone: nothing more is waited for.
    assert!(feed(&mut connected(false), &huge[..8], 8).is_some());
}

#[test]
fn transfers() {
    let field = FatalError::INVALID_HEADER_FIELD;
    let range = FatalError::DATA_OUT_OF_RANGE;
    let sequence = FatalError::PDU_SEQUENCE;
    let limit = FatalError::DATA_LIMIT_EXCEEDED;
    let pdu = |cid, tag, offset, len| Pdu::h2c(cid, tag, offset).data(len).aligned(16);
    let cases: &[(&str, Pdu, FatalError, u32)] = &[
        ("tag never given", pdu(7, 4, 512, 512), field, 10),
        ("tag beyond the table", pdu(7, 0xffff, 512, 512), field, 10),
        ("other command", pdu(8, 3, 512, 512), field, 8),
        ("DATAL short", pdu(7, 3, 512, 512).datal(511), field, 16),
        ("DATAL long", pdu(7, 3, 512, 512).datal(513), field, 16),
        ("DATAL zero", pdu(7, 3, 512, 512).datal(0), field, 16),
        ("over MAXH2CDATA", pdu(7, 3, 512, 4100), limit, 0),
        ("before the range: repeats", pdu(7, 3, 0, 512), sequence, 0),
        ("leaves a gap", pdu(7, 3, 516, 512), sequence, 0),
        ("beyond the range", pdu(7, 3, 6000, 513), range, 0),
        ("offset overflows", pdu(7, 3, u32::MAX, 512), range, 0),
        ("LAST_PDU too early", pdu(7, 3, 512, 512).last(), sequence, 0),
    ];
    for (what, pdu, fes, fei) in cases {
        refused(what, || connected(false), &pdu.bytes(), *fes, *fei);
    }
    let begun = || {
        let mut connection = connected(false);
        assert!(feed(&mut connection, &pdu(7, 3, 512, 4096).bytes(), 1000).is_none());
        connection
    };
    let rest = 6000 - 4096;
    let at = 512 + 4096;
    refused("the same again", begun, &pdu(7, 3, 512, 4096).bytes(), sequence, 0);
    refused("overlap", begun, &pdu(7, 3, at - 4, 512).bytes(), sequence, 0);
    refused("overrun", begun, &pdu(7, 3, at, rest + 4).last().bytes(), range, 0);
    refused("LAST_PDU missing", begun, &pdu(7, 3, at, rest).bytes(), sequence, 0);
    let finished = || {
        let mut connection = begun();
        let last = pdu(7, 3, at, rest as _).last().bytes();
        assert!(feed(&mut connection, &last, 1000).is_none());
        connection
    };
    refused("after the end", finished, &pdu(7, 3, 512, 512).bytes(), field, 10);
}

#[test]
fn header_digests() {
    for pdu in [Pdu::command(1), Pdu::h2c(7, 3, 512).data(512).aligned(16).data_digest()] {
        let pdu = pdu.header_digest();
        let good = pdu.bytes();
        assert!(feed(&mut connected(true), &good, 5).is_none());
        for at in 8..usize::from(good[2]) + 4 {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            let received = bad[usize::from(good[2])..][..4].try_into().unwrap();
            let fei = u32::from_le_bytes(received);
            refused("digest", || connected(true), &bad, FatalError::HEADER_DIGEST, fei);
        }
    }
}

#[test]
fn a_wrong_data_digest_is_the_commands_failure_only() {
    let mut connection = connected(true);
    let mut bad = Pdu::command(1).data(64).aligned(16).header_digest().data_digest().bytes();
    *bad.last_mut().unwrap() ^= 1;
    let mut input = bad.as_slice();
    match connection.receive(&mut input) {
        Ok(Some(Event::Command { data, digest_error: true, .. })) => assert_eq!(data.len(), 64),
        other => panic!("{other:?}"),
    }
    let first = Pdu::h2c(7, 3, 512).data(3000).aligned(16).header_digest().data_digest();
    let second = Pdu::h2c(7, 3, 3512).data(3000).aligned(16).last().header_digest().data_digest();
    let mut bad = first.bytes();
    bad[100] ^= 1;
    bad.extend(second.bytes());
    let mut input = bad.as_slice();
    let mut got = 0;
    while let Some(event) = connection.receive(&mut input).unwrap() {
        let Event::Data { tag: 3, offset, bytes, done, digest_error } = event else { panic!() };
        assert_eq!(offset, 512 + got);
        got += bytes.len() as u32;
        assert_eq!(done, got == 6000);
        assert_eq!(digest_error, done);
    }
    assert_eq!(got, 6000);
    // The tag's next transfer starts afresh.
    connection.expect(7, 3, 0, 64, &mut [0; RESPONSE_BYTES_MAX]);
    let good = Pdu::h2c(7, 3, 0).data(64).aligned(16).last().header_digest().data_digest().bytes();
    let event = connection.receive(&mut good.as_slice()).unwrap();
    assert!(matches!(event, Some(Event::Data { done: true, digest_error: false, .. })));
}

#[test]
fn terminations_are_not_answered() {
    for start in [true, false] {
        for (edit, fes, fei) in [
            ((8, 4), FatalError(4), 0x0403_0201),
            ((2, 23), FatalError(0), 0),
            ((4, 23), FatalError(0), 0),
            ((4, 153), FatalError(0), 0),
        ] {
            let mut connection = if start { Connection::new(config()) } else { connected(true) };
            let mut pdu = vec![0; 24];
            pdu[0] = Kind::H2C_TERM_REQ.0;
            pdu[2] = 24;
            pdu[4] = 24;
            pdu[10..14].copy_from_slice(&[1, 2, 3, 4]);
            pdu[edit.0] = edit.1;
            let mut input = pdu.as_slice();
            match connection.receive(&mut input) {
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
fn cancelled_transfers_are_dropped_to_their_end() {
    for cut in [0, 10, 100, 3000] {
        let mut connection = connected(false);
        let mut stream = Pdu::h2c(7, 3, 512).data(3000).aligned(16).bytes();
        stream.extend(Pdu::h2c(7, 3, 3512).data(3000).aligned(16).last().bytes());
        stream.extend(Pdu::command(9).bytes());
        let mut input = &stream[..cut];
        let mut before = 0;
        while let Some(event) = connection.receive(&mut input).unwrap() {
            let Event::Data { bytes, done: false, .. } = event else { panic!() };
            before += bytes.len();
        }
        assert_eq!(before, cut.saturating_sub(32));
        connection.cancel(3);
        assert_eq!(connection.payload_pending(), None);
        let mut input = &stream[cut - input.len()..];
        match connection.receive(&mut input).unwrap() {
            Some(Event::Data { tag: 3, bytes: [], done: true, .. }) => {}
            other => panic!("{other:?}"),
        }
        match connection.receive(&mut input).unwrap() {
            Some(Event::Command { command, .. }) => assert_eq!(command.cid.get(), 9),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn two_transfers_of_one_command_may_interleave() {
    let mut connection = connected(false);
    connection.expect(7, 4, 6512, 200, &mut [0; RESPONSE_BYTES_MAX]);
    let mut stream = Pdu::h2c(7, 3, 512).data(3000).aligned(16).bytes();
    stream.extend(Pdu::h2c(7, 4, 6512).data(200).aligned(16).last().bytes());
    stream.extend(Pdu::h2c(7, 3, 3512).data(3000).aligned(16).last().bytes());
    let mut input = stream.as_slice();
    let mut seen = Vec::new();
    while let Some(event) = connection.receive(&mut input).unwrap() {
        let Event::Data { tag, offset, bytes, done, .. } = event else { panic!() };
        seen.push((tag, offset, bytes.len(), done));
    }
    assert_eq!(seen, [(3, 512, 3000, false), (4, 6512, 200, true), (3, 3512, 3000, true)]);
}

#[test]
fn negotiation_is_what_both_sides_want() {
    for (asked, offered) in (0u8..4).flat_map(|asked| (0u8..4).map(move |offered| (asked, offered)))
    {
        let mut connection = Connection::new(Config {
            header_digest: offered & 1 != 0,
            data_digest: offered & 2 != 0,
            cpda_z: 5,
            ..config()
        });
        let request = ic_req(|request| {
            request.dgst = asked;
            request.maxr2t_z = u32::MAX.into();
        });
        let event = connection.receive(&mut request.as_slice()).unwrap();
        let Some(Event::Initialize { response }) = event else { panic!() };
        assert_eq!(response[..8], [1, 0, 128, 0, 128, 0, 0, 0]);
        assert_eq!(response[8..12], [0, 0, 5, asked & offered]);
        assert_eq!(response[12..16], MAX_H2C_DATA.to_le_bytes());
        assert_eq!(response[16..], [0; 112]);
        assert_eq!(connection.max_r2t(), 1 << 32);
    }
}
