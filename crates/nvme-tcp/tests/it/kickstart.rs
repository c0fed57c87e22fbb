//! The end that asks of kickstart discovery, against answers of all kinds.

use nvme_tcp::kickstart::{Connection, Event, FailureReason, INPUT_BYTES_MAX, RECORDS_MAX};
use nvme_tcp::pdu::{CommonHeader, IcReq, IcResp, KdReq, KdResp, KickstartRecord, Kind, flags};
use nvme_tcp::{FatalError, Terminate};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

const NQN: &str = "nqn.2014-08.org.example:cdc";

fn ic_resp(change: impl FnOnce(&mut IcResp)) -> Vec<u8> {
    let common =
        CommonHeader { kind: Kind::IC_RESP, flags: 0, hlen: 128, pdo: 0, plen: 128.into() };
    let mut response = IcResp {
        common,
        pfv: 0.into(),
        cpda_z: 0,
        dgst: 0,
        maxh2cdata: 4096.into(),
        reserved: [0; 112],
    };
    change(&mut response);
    response.as_bytes().to_vec()
}

/// A KDResp whose NQN is at byte `from`.
fn kd_resp(nqn: &[u8], from: usize, change: impl FnOnce(&mut KdResp)) -> Vec<u8> {
    let common = CommonHeader { kind: Kind::KD_RESP, flags: 0, hlen: 10, pdo: 0, plen: 274.into() };
    let mut response = KdResp { common, ksstat: 0, failrsn: 0 };
    change(&mut response);
    let mut pdu = response.as_bytes().to_vec();
    pdu.resize(274, 0);
    pdu[from..from + nqn.len()].copy_from_slice(nqn);
    pdu
}

fn receive(connection: &mut Connection, bytes: &[u8]) -> Result<Option<Event>, Terminate> {
    let mut input = bytes;
    let event = connection.receive(&mut input)?;
    assert!(event.is_none() || input.is_empty(), "an event takes its PDU");
    Ok(event)
}

fn initialized() -> Connection {
    let mut connection = Connection::new();
    assert_eq!(receive(&mut connection, &ic_resp(|_| {})), Ok(Some(Event::Initialized)));
    connection
}

fn record(traddr: &str) -> KickstartRecord {
    let mut record = KickstartRecord { trtype: 3, adrfam: 1, trsvcid: [0; 32], traddr: [0; 256] };
    record.trsvcid[..4].copy_from_slice(b"4420");
    record.traddr[..traddr.len()].copy_from_slice(traddr.as_bytes());
    record
}

#[test]
fn a_registration_is_accepted() {
    let mut connection = Connection::new();
    let (request, _) = IcReq::read_from_prefix(&connection.initialize()).unwrap();
    assert_eq!((request.common.kind, request.common.flags), (Kind::IC_REQ, flags::KDCONN));
    assert_eq!((request.common.hlen, request.common.plen.get(), request.dgst), (128, 128, 0));
    assert_eq!(receive(&mut connection, &ic_resp(|_| {})), Ok(Some(Event::Initialized)));

    let records = [record("192.0.2.1"), record("192.0.2.2")];
    let pdu = connection.request(&records, 7);
    assert_eq!(pdu.len(), 12 + 2 * 290);
    assert_eq!(&pdu[..12], &[0x0a, 0, 12, 12, 0x50, 2, 0, 0, 2, 0, 7, 0]);
    assert_eq!(<[KickstartRecord]>::ref_from_bytes(&pdu[12..]).unwrap(), &records);
    assert_eq!((&pdu[12..18], &pdu[46..55]), (&b"\x03\x014420"[..], &b"192.0.2.1"[..]));

    let accepted = Event::Accepted { cdc_nqn: NQN.to_owned() };
    let answer = kd_resp(NQN.as_bytes(), 10, |_| {});
    assert_eq!(receive(&mut connection, &answer), Ok(Some(accepted)));
    // There is nothing to come.
    assert_eq!(receive(&mut connection, &answer), Ok(None));
}

#[test]
fn the_nqn_is_found_where_it_is() {
    for from in 10..=18 {
        for pdo in [0, from as u8] {
            let answer = kd_resp(NQN.as_bytes(), from, |response| response.common.pdo = pdo);
            let event = receive(&mut initialized(), &answer).unwrap().unwrap();
            assert_eq!(event, Event::Accepted { cdc_nqn: NQN.to_owned() }, "{from} {pdo}");
        }
    }
    let long = [b'n'; 256];
    let event = receive(&mut initialized(), &kd_resp(&long, 18, |_| {})).unwrap().unwrap();
    let Event::Accepted { cdc_nqn } = event else { panic!("{event:?}") };
    assert_eq!(cdc_nqn.as_bytes(), long);
}

#[test]
fn records_begin_where_the_cdc_wants_data() {
    for (cpda_z, pdo) in [(0, 12), (1, 16), (3, 16), (7, 32), (31, 128)] {
        let mut connection = Connection::new();
        let response = ic_resp(|response| response.cpda_z = cpda_z);
        assert_eq!(receive(&mut connection, &response), Ok(Some(Event::Initialized)));
        let pdu = connection.request(&[record("192.0.2.1")], 1);
        assert_eq!((usize::from(pdu[3]), pdu.len()), (pdo, pdo + 290), "{cpda_z}");
        assert_eq!(&pdu[pdo + 34..pdo + 43], b"192.0.2.1");
        assert!(pdu[12..pdo].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_refusal_says_why() {
    for (failrsn, words) in [
        (1 << 6, "insufficient discovery resources"),
        (1 << 2 | 1 << 4, "invalid transport type, address family does not match"),
        (0, "reason 0x00"),
        (1 << 7, "reason 0x80"),
    ] {
        let answer = kd_resp(b"", 10, |response| {
            (response.ksstat, response.failrsn) = (1, failrsn);
        });
        let event = receive(&mut initialized(), &answer).unwrap().unwrap();
        assert_eq!(event, Event::Refused(FailureReason(failrsn)));
        assert_eq!(FailureReason(failrsn).to_string(), words);
    }
    assert_eq!(FailureReason::INSUFFICIENT_RESOURCES.0, 1 << 6);
}

#[test]
fn a_termination_ends_it() {
    let mut term = vec![0x03, 0, 24, 0, 24, 0, 0, 0, 6, 0, 1, 0, 0, 0];
    term.resize(24, 0);
    let told = Event::Terminated { fes: FatalError::UNSUPPORTED_PARAMETER, fei: 1 };
    for mut connection in [Connection::new(), initialized()] {
        assert_eq!(receive(&mut connection, &term), Ok(Some(told.clone())));
        assert_eq!(receive(&mut connection, &ic_resp(|_| {})), Ok(None));
    }
}

#[test]
fn what_is_wrong_is_named_as_the_specification_has_it() {
    use FatalError as Fes;
    let kind = |kind: u8, bytes: usize| {
        let mut pdu = vec![kind, 0, 24, 0, 24, 0, 0, 0];
        pdu.resize(bytes, 0);
        pdu
    };
    let field = |fei| (Fes::INVALID_HEADER_FIELD, fei);
    let sequence = (Fes::PDU_SEQUENCE, 0);
    let answer = |change: fn(&mut KdResp)| kd_resp(NQN.as_bytes(), 10, change);
    let cases = [
        // On a connection that is not initialized.
        (false, answer(|_| {}), sequence),
        (false, kind(0x05, 24), field(0)),
        (false, kind(0x0a, 24), field(0)),
        (false, ic_resp(|response| response.common.flags = flags::KDCONN), field(1)),
        (false, ic_resp(|response| response.common.hlen = 127), field(2)),
        (false, ic_resp(|response| response.common.plen = 132.into()), field(4)),
        (false, ic_resp(|response| response.pfv = 1.into()), (Fes::UNSUPPORTED_PARAMETER, 8)),
        (false, ic_resp(|response| response.cpda_z = 32), field(10)),
        (false, ic_resp(|response| response.dgst = 1), field(11)),
        // On one that is.
        (true, ic_resp(|_| {}), sequence),
        (true, kind(0x07, 24), field(0)),
        (true, answer(|response| response.common.flags = flags::HDGST), field(1)),
        (true, answer(|response| response.common.hlen = 12), field(2)),
        (true, answer(|response| response.common.pdo = 9), field(3)),
        (true, answer(|response| response.common.pdo = 19), field(3)),
        (true, answer(|response| response.common.plen = 273.into()), field(4)),
        (true, answer(|response| response.common.plen = u32::MAX.into()), field(4)),
        (true, answer(|response| response.ksstat = 2), field(8)),
        (true, kd_resp(b"", 10, |_| {}), field(18)),
        (true, kd_resp(b"nqn.\x1b[2J", 10, |_| {}), field(10)),
        (true, kd_resp(b"\xff\xfe", 10, |_| {}), field(10)),
    ];
    for (index, (begun, pdu, (fes, fei))) in cases.into_iter().enumerate() {
        let mut connection = if begun { initialized() } else { Connection::new() };
        let terminate = receive(&mut connection, &pdu).expect_err("it is wrong");
        assert_eq!((terminate.fes, terminate.fei), (fes, fei), "case {index}");
        assert_eq!(terminate.pdu()[0], Kind::H2C_TERM_REQ.0);
        assert_eq!(receive(&mut connection, &pdu), Ok(None), "case {index}: it is over");
    }
}

#[test]
#[should_panic(expected = "RECORDS_MAX")]
fn too_many_records_are_a_mistake() {
    initialized().request(&[record("192.0.2.1"); RECORDS_MAX + 1], 1);
}

proptest! {
    /// Whatever the pieces in which it comes.
    #[test]
    fn answers_come_in_pieces(
        cuts in prop::collection::vec(1usize..200, 1..8), failrsn in any::<u8>(), refused: bool,
    ) {
        let last = kd_resp(NQN.as_bytes(), 10, |response| {
            (response.ksstat, response.failrsn) = (refused.into(), failrsn);
        });
        let bytes = [ic_resp(|_| {}), last].concat();
        let mut connection = Connection::new();
        let (mut events, mut from, mut to) = (Vec::new(), 0, 0);
        for cut in cuts.into_iter().cycle() {
            to = (to + cut).min(bytes.len());
            let mut input = &bytes[from..to];
            while let Some(event) = connection.receive(&mut input).unwrap() {
                events.push(event);
            }
            prop_assert!(input.len() <= INPUT_BYTES_MAX);
            from = to - input.len();
            if to == bytes.len() {
                break;
            }
        }
        let end = if refused {
            Event::Refused(FailureReason(failrsn))
        } else {
            Event::Accepted { cdc_nqn: NQN.to_owned() }
        };
        prop_assert_eq!(events, [Event::Initialized, end]);
    }

    /// Requests are read as they were written.
    #[test]
    fn requests_survive_a_round_trip(
        bytes in prop::collection::vec(any::<u8>(), 290 * 3), count in 1usize..=3,
        entries: u16, cpda_z in 0u8..32,
    ) {
        let mut connection = Connection::new();
        let response = ic_resp(|response| response.cpda_z = cpda_z);
        receive(&mut connection, &response).unwrap();
        let bytes = &bytes[..290 * count];
        let records = <[KickstartRecord]>::ref_from_bytes(bytes).unwrap();
        let pdu = connection.request(records, entries);
        let (request, _) = KdReq::read_from_prefix(&pdu).unwrap();
        prop_assert_eq!(request.common.plen.get() as usize, pdu.len());
        prop_assert_eq!((request.numkr.get() as usize, request.numdie.get()), (count, entries));
        prop_assert_eq!(&pdu[usize::from(request.common.pdo)..], bytes);
    }
}
