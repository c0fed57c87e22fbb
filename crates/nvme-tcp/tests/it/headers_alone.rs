//! A driver that cannot see data: it receives headers alone, and tells how much data went elsewhere.

use crate::peer;

use nvme::Command;
use nvme_tcp::host::{COMMAND_HEADER_BYTES_MAX, Config, Connection, Event, Transfer};
use peer::{Pdu, ic_resp};

/// A connection with reads of 10,000 bytes outstanding as commands 0 to 3, and others as 4 to 7.
fn connection(header_digest: bool, hpda_z: u8) -> Connection {
    let config = Config { header_digest, hpda_z, queue_entries: 8, ..Config::default() };
    let mut connection = Connection::new(config);
    let response = ic_resp(|response| response.dgst = u8::from(header_digest));
    let mut input = &response[..];
    assert_eq!(connection.header_missing(&[]), 24);
    assert_eq!(connection.header_missing(&response[..100]), 28);
    assert!(matches!(connection.receive(&mut input), Ok(Some(Event::Initialized))));
    for cid in 0..8u16 {
        let command = Command { cid: cid.into(), ..Command::default() };
        let transfer = if cid < 4 { Transfer::ToHost(10_000) } else { Transfer::ToController(64) };
        connection.command(&command, transfer, &mut [0; COMMAND_HEADER_BYTES_MAX]);
    }
    connection
}

/// Feeds `stream` as such a driver does, `at_once` bytes at most. What came, in words.
fn feed(connection: &mut Connection, mut stream: &[u8], at_once: usize) -> Vec<String> {
    let (mut held, mut said) = (Vec::new(), Vec::new());
    while !stream.is_empty() {
        if let Some(pending) = connection.payload_pending() {
            assert!(held.is_empty(), "not a byte of data was taken for header");
            let count = (pending.remaining as usize).min(at_once);
            stream = &stream[count..];
            said.push(format!("{} bytes of {} at {}", count, pending.key, pending.offset));
            if let Some(end) = connection.payload_passed(count as u32) {
                said.push(format!("end of {}, success {}", end.cid, end.success));
            }
            continue;
        }
        let count = connection.header_missing(&held).min(at_once);
        held.extend(&stream[..count]);
        stream = &stream[count..];
        let mut input = &held[..];
        match connection.receive(&mut input).expect("no fault") {
            None => {}
            Some(Event::Response { completion, .. }) => {
                said.push(format!("response of {}", completion.cid.get()));
            }
            Some(Event::ReadyToTransfer(outgoing)) => said.push(format!("R2T of {}", outgoing.cid)),
            Some(event) => panic!("{event:?}"),
        }
        held = input.to_vec();
    }
    assert!(held.is_empty());
    said
}

#[test]
fn data_stays_where_it_is() {
    for (header_digest, alignment) in [(false, 4), (true, 4), (false, 128), (true, 64)] {
        let with = |pdu: Pdu| {
            let pdu = pdu.aligned(alignment);
            if header_digest { pdu.header_digest() } else { pdu }.bytes()
        };
        let stream = [
            with(Pdu::response(4)),
            with(Pdu::c2h(2, 0).data(9_000)),
            with(Pdu::r2t(5, 1, 0, 64)),
            with(Pdu::c2h(0, 0).data(10_000).last()),
            with(Pdu::c2h(2, 9_000).data(1_000).last().flags(nvme_tcp::pdu::flags::SUCCESS)),
            with(Pdu::response(0)),
        ]
        .concat();
        for at_once in [usize::MAX, 1000, 7, 1] {
            let mut connection = connection(header_digest, (alignment / 4 - 1) as u8);
            let mut said = feed(&mut connection, &stream, at_once);
            if at_once < usize::MAX {
                said.retain(|words| !words.contains("bytes"));
            } else {
                assert_eq!(said.remove(1), "9000 bytes of 2 at 0");
                assert_eq!(said.remove(2), "10000 bytes of 0 at 0");
                assert_eq!(said.remove(3), "1000 bytes of 2 at 9000");
            }
            let ends = ["end of 0, success false", "end of 2, success true", "response of 0"];
            assert_eq!(said[..2], ["response of 4", "R2T of 5"]);
            assert_eq!(said[2..], ends);
        }
    }
}

/// The beginning of anything: there is always something to receive, and never much.
#[test]
fn something_is_always_missing() {
    let connection = connection(false, 0);
    for kind in 0..=255 {
        for len in 0..=255usize {
            for fill in [0, 1, 24, 255] {
                let mut input = vec![fill; len];
                if let Some(first) = input.first_mut() {
                    *first = kind;
                }
                let missing = connection.header_missing(&input);
                assert!((1..=255).contains(&missing) && (len >= 24 || missing <= 24 - len));
            }
        }
    }
}
