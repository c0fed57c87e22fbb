//! `nvlane kickstart`: a centralized discovery controller that is asked to fetch what a daemon serves, and does; and those
//! that do not.
//!
//! The centralized controller is a script over a socket: no program that has one can be installed here.

use crate::daemon::{Daemon, nvlane};
use nvme_tcp::pdu::{CommonHeader, IcReq, IcResp, KdReq, KdResp, KickstartRecord, Kind, flags};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use zerocopy::{FromBytes, IntoBytes};

const NQN: &str = "nqn.2026-11.com.example:a";
const CDC_NQN: &str = "nqn.2026-11.com.example:cdc";

/// A centralized controller for one request, as `script` has it.
fn cdc<T: Send + 'static>(
    script: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (String, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (address, thread::spawn(move || script(listener.accept().unwrap().0)))
}

fn initialize(socket: &mut TcpStream) {
    let mut request = [0; size_of::<IcReq>()];
    socket.read_exact(&mut request).unwrap();
    let request = IcReq::read_from_bytes(&request).unwrap();
    assert_eq!((request.common.kind, request.common.flags), (Kind::IC_REQ, flags::KDCONN));
    let response = IcResp {
        common: CommonHeader { kind: Kind::IC_RESP, flags: 0, hlen: 128, pdo: 0, plen: 128.into() },
        pfv: 0.into(),
        cpda_z: 0,
        dgst: 0,
        maxh2cdata: 8192.into(),
        reserved: [0; 112],
    };
    socket.write_all(response.as_bytes()).unwrap();
}

/// The records of a KDReq, and how many entries it announces.
fn request(socket: &mut TcpStream) -> (Vec<KickstartRecord>, u16) {
    let mut header = [0; size_of::<KdReq>()];
    socket.read_exact(&mut header).unwrap();
    let header = KdReq::read_from_bytes(&header).unwrap();
    assert_eq!(header.common.kind, Kind::KD_REQ);
    let mut data = vec![0; header.common.plen.get() as usize - size_of::<KdReq>()];
    socket.read_exact(&mut data).unwrap();
    let records = <[KickstartRecord]>::ref_from_bytes(&data).unwrap().to_vec();
    assert_eq!(records.len(), usize::from(header.numkr.get()));
    (records, header.numdie.get())
}

fn respond(socket: &mut TcpStream, ksstat: u8, failrsn: u8, nqn: &str) {
    let common = CommonHeader { kind: Kind::KD_RESP, flags: 0, hlen: 10, pdo: 0, plen: 274.into() };
    let mut pdu = KdResp { common, ksstat, failrsn }.as_bytes().to_vec();
    pdu.extend_from_slice(nqn.as_bytes());
    pdu.resize(274, 0);
    // In two pieces, as a network may have it.
    let (first, second) = pdu.split_at(100);
    socket.write_all(first).unwrap();
    socket.write_all(second).unwrap();
}

fn field(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap().trim_end_matches('\0').to_owned()
}

/// TRTYPE, ADRFAM, TRADDR and TRSVCID.
type Record = (u8, u8, String, String);

/// Records, NUMDIE, and what a controller that accepts then fetches from the first record's address: the NQNs there.
fn accept(mut socket: TcpStream) -> (Vec<Record>, u16, Vec<String>) {
    initialize(&mut socket);
    let (records, entries) = request(&mut socket);
    respond(&mut socket, 0, 0, CDC_NQN);
    assert_eq!(socket.read(&mut [0; 1]).unwrap(), 0, "the connection is closed");
    let records: Vec<_> = records
        .iter()
        .map(|record| (record.trtype, record.adrfam, field(&record.traddr), field(&record.trsvcid)))
        .collect();
    let (_, _, traddr, trsvcid) = &records[0];
    let log = nvlane()
        .args(["discover", "-a", traddr, "-s", trsvcid, "-q", CDC_NQN, "-o", "json"])
        .output()
        .unwrap();
    let log: Value = serde_json::from_slice(&log.stdout).unwrap();
    let nqns = log["records"].as_array().unwrap().iter();
    let nqns = nqns.map(|record| record["subnqn"].as_str().unwrap().to_owned()).collect();
    (records, entries, nqns)
}

fn start(dir: &std::path::Path) -> Daemon {
    let listen = ["--listen", "127.0.0.1:0", "--listen", "[::1]:0"];
    Daemon::start(dir, &[&["mem:8M", "--nqn", NQN][..], &listen].concat())
}

fn says(args: &[&str]) -> (Option<i32>, String, String) {
    let output = nvlane().arg("kickstart").args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_cdc_fetches_what_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let listeners: Vec<String> = daemon.listeners.iter().map(SocketAddr::to_string).collect();
    let ports: Vec<String> =
        daemon.listeners.iter().map(|listener| listener.port().to_string()).collect();

    let (address, cdc_thread) = cdc(accept);
    let args = [&address, "-l", &listeners[0], "-l", &listeners[1]];
    let (status, out, err) = says(&args);
    assert_eq!((status, err.as_str()), (Some(0), ""));
    // The discovery subsystem and the one that is served, by each of two addresses.
    let line = format!("{address} ({CDC_NQN}) fetches 4 entries from {}\n", listeners.join(", "));
    assert_eq!(out, line);
    let (records, entries, nqns) = cdc_thread.join().unwrap();
    let record = |adrfam, traddr: &str, port: &str| (3, adrfam, traddr.into(), port.into());
    assert_eq!(records, [record(1, "127.0.0.1", &ports[0]), record(2, "::1", &ports[1])]);
    assert_eq!(entries, 4);
    assert!(nqns.iter().any(|nqn| nqn == NQN), "{nqns:?}");

    let (address, cdc_thread) = cdc(accept);
    let (status, out, _) = says(&[&address, "-l", &listeners[0], "--entries", "9", "-o", "json"]);
    assert_eq!(status, Some(0));
    let out: Value = serde_json::from_str(&out).unwrap();
    let listener = json!({
        "trtype": "tcp", "adrfam": "ipv4", "traddr": "127.0.0.1", "trsvcid": ports[0],
    });
    let expected = json!({
        "schema_version": 1, "cdc": address, "cdc_nqn": CDC_NQN, "listeners": [listener], "entries": 9,
    });
    assert_eq!(out, expected);
    assert_eq!(cdc_thread.join().unwrap().1, 9);
}

#[test]
fn a_cdc_that_does_not_is_told_by_name() {
    type Script = fn(TcpStream);
    let scripts: [(Script, &str); 5] = [
        (
            |mut socket| {
                initialize(&mut socket);
                request(&mut socket);
                respond(&mut socket, 1, 1 << 6, "");
            },
            "it registers nothing: insufficient discovery resources",
        ),
        (drop, "it closed the connection without an answer"),
        (
            |mut socket| {
                initialize(&mut socket);
                request(&mut socket);
                respond(&mut socket, 0, 0, "nqn.\x1b[2J");
                let mut term = [0; 24];
                socket.read_exact(&mut term).unwrap();
                assert_eq!((term[0], term[8]), (Kind::H2C_TERM_REQ.0, 1));
            },
            "it broke the protocol: Invalid PDU Header Field in a PDU of type 0x0b (FEI 0xa)",
        ),
        (
            |mut socket| {
                initialize(&mut socket);
                // Until it is given up.
                let _ = socket.read_to_end(&mut Vec::new());
            },
            "it does not answer",
        ),
        (
            |mut socket| {
                // Slowly, so that each byte comes in time.
                while socket.write_all(&[1]).is_ok() {
                    thread::sleep(std::time::Duration::from_millis(20));
                }
            },
            "it broke the protocol: Invalid PDU Header Field in a PDU of type 0x01 (FEI 0x1)",
        ),
    ];
    for (script, words) in scripts {
        let (address, cdc_thread) = cdc(script);
        // Milliseconds; only of one it is to be over.
        let timeout = if words == "it does not answer" { "1500" } else { "20000" };
        let args = [&address, "-l", "127.0.0.1:1", "--entries", "1", "--timeout", timeout];
        let (status, out, err) = says(&args);
        assert_eq!((status, out.as_str()), (Some(1), ""), "{err}");
        // What was not read when it closed the connection resets it.
        let reset = words.contains("closed") && err.contains("reset by peer");
        assert!(err == format!("nvlane: {address}: {words}\n") || reset, "{err}");
        cdc_thread.join().unwrap();
    }
}

#[test]
fn what_is_no_cdc_and_what_cannot_be_reached_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let served = daemon.listeners[0].to_string();
    let (status, _, err) = says(&[&served, "-l", &served]);
    let words = "it ended the connection: Invalid PDU Header Field (FEI 0x1); only a centralized discovery controller takes kickstart requests";
    assert_eq!((status, err), (Some(1), format!("nvlane: {served}: {words}\n")));

    let (status, _, err) = says(&[&served, "-l", "0.0.0.0"]);
    assert_eq!(status, Some(1));
    assert_eq!(err, "nvlane: 0.0.0.0:4420 is no address that another machine can reach\n");

    let (status, _, err) = says(&[&served, "-l", "127.0.0.1:1"]);
    assert_eq!(status, Some(1));
    assert!(
        err.contains("127.0.0.1:1") && err.ends_with("(--entries N: not to be asked)\n"),
        "{err}"
    );

    let (status, _, err) = says(&["127.0.0.1:1", "-l", &served]);
    assert_eq!((status, err.starts_with("nvlane: 127.0.0.1:1: ")), (Some(1), true), "{err}");
    let (status, _, err) = says(&["a b"]);
    assert!(status == Some(1) && err.contains("\"a b\": give an address like"), "{err}");
}
