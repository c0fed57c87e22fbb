//! PDUs that are wrong: each gets the C2HTermReq that NVMe/TCP Transport 1.1 names (section 3.5 and
//! 3.6.2.5), the connection ends, and everybody else's I/O goes on.

use crate::host;

use host::rig::Rig;
use host::{Bytes, PATIENCE, Queue, Socket, ic_req};
use nvme::{Command, Sgl, Status, opcode};
use nvme_tcp::FatalError;
use nvme_tcp::pdu::{Kind, R2t, dgst, flags};
use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

const FIELD: FatalError = FatalError::INVALID_HEADER_FIELD;
const SEQUENCE: FatalError = FatalError::PDU_SEQUENCE;
const LIMIT: FatalError = FatalError::DATA_LIMIT_EXCEEDED;

/// A read of one block of namespace 1.
fn read() -> Command {
    Command::blocks(opcode::io::READ, 1, 0, 1)
}

/// A write of `blocks` blocks of namespace 1.
fn write(blocks: u32) -> Command {
    Command::blocks(opcode::io::WRITE, 1, 0, blocks)
}

/// `pdu` with the bytes at `at` replaced.
fn edited(mut pdu: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    pdu[at..at + bytes.len()].copy_from_slice(bytes);
    pdu
}

#[test]
fn wrong_initializations_are_terminated() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let good = ic_req(|_| {});
    let unsupported = FatalError::UNSUPPORTED_PARAMETER;
    let cases: &[(&str, usize, &[u8], FatalError, u32)] = &[
        ("an unknown type", 0, &[0x77], FIELD, 0),
        ("a reserved type", 0, &[0x08], FIELD, 0),
        ("a response", 0, &[Kind::CAPSULE_RESP.0], FIELD, 0),
        ("kickstart", 0, &[Kind::KD_REQ.0], FIELD, 0),
        ("a command before ICReq", 0, &[Kind::CAPSULE_CMD.0], SEQUENCE, 0),
        ("data before ICReq", 0, &[Kind::H2C_DATA.0], SEQUENCE, 0),
        ("flags", 1, &[1], FIELD, 1),
        ("a short HLEN", 2, &[127], FIELD, 2),
        ("a zero HLEN", 2, &[0], FIELD, 2),
        ("a long PLEN", 4, &[129], FIELD, 4),
        ("a zero PLEN", 4, &[0], FIELD, 4),
        ("a huge PLEN", 4, &[0xff; 4], FIELD, 4),
        ("a PDU format version", 8, &[1, 0], unsupported, 8),
        ("an HPDA out of range", 10, &[32], FIELD, 10),
    ];
    for &(what, at, bytes, fes, fei) in cases {
        let pdu = edited(good.clone(), at, bytes);
        let mut socket = Socket::open(rig.address);
        socket.send(&pdu);
        socket.expect_termination(what, fes, fei, &pdu);
        witness.check();
    }
}

#[test]
fn wrong_headers_are_terminated_on_every_kind_of_queue() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let admin = rig.host().enabled();
    let data = vec![1; 512];
    let capsule = |queue: &mut Queue| {
        let command = queue.prepare(read(), Bytes::Wanted(4096));
        queue.socket.capsule(&command, &[])
    };
    let with_data = |queue: &mut Queue| {
        let command = queue.prepare(write(1), Bytes::InCapsule(&data));
        queue.socket.capsule(&command, &data)
    };
    type Make<'a> = &'a dyn Fn(&mut Queue) -> Vec<u8>;
    let cases: &[(&str, Make<'_>, usize, &[u8], u32)] = &[
        ("an unknown type", &capsule, 0, &[0x42], 0),
        ("C2HData from a host", &capsule, 0, &[Kind::C2H_DATA.0], 0),
        ("R2T from a host", &capsule, 0, &[Kind::R2T.0], 0),
        ("C2HTermReq from a host", &capsule, 0, &[Kind::C2H_TERM_REQ.0], 0),
        ("a header digest not agreed on", &capsule, 1, &[flags::HDGST], 1),
        ("a data digest not agreed on", &with_data, 1, &[flags::DDGST], 1),
        ("LAST_PDU on a command", &capsule, 1, &[flags::LAST], 1),
        ("a reserved flag", &capsule, 1, &[0x80], 1),
        ("a short HLEN", &capsule, 2, &[71], 2),
        ("a long HLEN", &capsule, 2, &[73], 2),
        ("a zero HLEN", &capsule, 2, &[0], 2),
        ("PDO within the header", &with_data, 3, &[64], 3),
        ("PDO not aligned", &with_data, 3, &[73], 3),
        ("a zero PDO with data", &with_data, 3, &[0], 3),
        ("PDO without data", &capsule, 3, &[96], 3),
        ("PLEN within the header", &capsule, 4, &[71, 0, 0, 0], 4),
        ("a PLEN of zero", &capsule, 4, &[0, 0, 0, 0], 4),
        ("a PLEN of the common header", &capsule, 4, &[8, 0, 0, 0], 4),
    ];
    for &(what, make, at, bytes, fei) in cases {
        for qid in [0, 1, 2] {
            let mut queue = match qid {
                0 => rig.host().admin(),
                _ => connected_again(&rig, &admin, qid),
            };
            let pdu = edited(make(&mut queue), at, bytes);
            queue.socket.send(&pdu);
            queue.socket.expect_termination(&format!("{what}, queue {qid}"), FIELD, fei, &pdu);
        }
        witness.check();
    }
}

/// The queue id may still be in use for a moment by the connection that was just terminated.
fn connected_again(rig: &Rig, admin: &Queue, qid: u16) -> Queue {
    let until = Instant::now() + PATIENCE;
    loop {
        let (queue, done) = rig.host().connect(qid, admin.cntlid);
        if done.status != Status::INVALID_QUEUE_IDENTIFIER.dnr() {
            done.ok();
            return queue;
        }
        assert!(Instant::now() < until, "queue {qid} is not given back");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn more_in_capsule_data_than_offered_is_terminated_before_it_came() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let (_admin, mut io) = rig.connect();
    let command = io.prepare(write(5), Bytes::OnRequest(&[0; 20480]));
    let pdu = io.socket.capsule(&command, &[0; 16384 + 4]);
    io.socket.send(&pdu[..72]);
    io.socket.expect_termination("16 KiB and 4 bytes", LIMIT, 0, &pdu);
    witness.check();
    // 8 KiB on an admin queue, and before Connect.
    let mut socket = rig.host().socket();
    let pdu = socket.capsule(&command, &[0; 8192 + 4]);
    socket.send(&pdu[..72]);
    socket.expect_termination("8 KiB and 4 bytes", LIMIT, 0, &pdu);
    witness.check();
    // The most that a header can claim.
    let mut socket = rig.host().socket();
    let pdu = edited(pdu[..72].to_vec(), 4, &[0xff; 4]);
    socket.send(&pdu);
    socket.expect_termination("4 GiB", LIMIT, 0, &pdu);
    witness.check();
}

#[test]
fn a_second_initialization_is_a_sequence_error() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let mut socket = rig.host().socket();
    socket.send(&ic_req(|_| {}));
    socket.expect_termination("before Connect", SEQUENCE, 0, &ic_req(|_| {}));
    let (mut admin, mut io) = rig.connect();
    io.socket.send(&ic_req(|_| {}));
    io.socket.expect_termination("on an I/O queue", SEQUENCE, 0, &ic_req(|_| {}));
    admin.socket.send(&ic_req(|_| {}));
    admin.socket.expect_termination("on an admin queue", SEQUENCE, 0, &ic_req(|_| {}));
    witness.check();
}

#[test]
fn a_wrong_header_digest_is_terminated_with_the_digest_received() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    for dgst in [dgst::HEADER, dgst::HEADER | dgst::DATA] {
        let mut host = rig.host();
        host.dgst = dgst;
        let admin = host.enabled();
        let mut io = host.io(&admin, 1);
        io.write(1, 0, 1, &[9; 4096]);
        assert_eq!(io.read(1, 0, 1, 4096), [9; 4096]);
        let command = io.prepare(read(), Bytes::Wanted(4096));
        for at in [8, 40, 71, 72, 75] {
            let mut io = connected_again_with(&host, &admin, at as u16);
            let mut pdu = io.socket.capsule(&command, &[]);
            pdu[at] ^= 0x10;
            let received = u32::from_le_bytes(pdu[72..76].try_into().expect("four bytes"));
            io.socket.send(&pdu);
            let what = format!("byte {at}");
            io.socket.expect_termination(&what, FatalError::HEADER_DIGEST, received, &pdu);
        }
        // A digest agreed on may not be missing.
        let mut io = connected_again_with(&host, &admin, 3);
        io.socket.format.header_digest = false;
        let pdu = io.socket.capsule(&command, &[]);
        io.socket.send(&pdu);
        io.socket.expect_termination("no digest", FIELD, 1, &pdu);
        witness.check();
    }
}

fn connected_again_with(host: &host::Host, admin: &Queue, qid: u16) -> Queue {
    let (queue, done) = host.connect(qid, admin.cntlid);
    done.ok();
    queue
}

/// Issues a write of 8 KiB and takes its R2T: the command's identifier and the tag.
fn asked(io: &mut Queue) -> (u16, u16) {
    let data = [0; 8192];
    let command = io.prepare(write(2), Bytes::OnRequest(&data));
    let capsule = io.socket.capsule(&command, &[]);
    io.socket.send(&capsule);
    let pdu = io.socket.pdu().expect("an R2T");
    assert_eq!(pdu.common.kind, Kind::R2T);
    let request = R2t::read_from_bytes(&pdu.header).expect("24 bytes");
    assert_eq!((request.r2to.get(), request.r2tl.get()), (0, 8192));
    (request.cccid.get(), request.ttag.get())
}

#[test]
fn data_that_nobody_asked_for_is_terminated() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let admin = rig.host().enabled();
    let range = FatalError::DATA_OUT_OF_RANGE;
    let block = [0; 4096];
    type Make<'a> = &'a dyn Fn(&Socket, u16, u16) -> Vec<u8>;
    let cases: &[(&str, Make<'_>, FatalError, u32)] = &[
        ("an unknown tag", &|s, cid, tag| s.h2c(cid, tag + 1, 0, &block, false), FIELD, 10),
        ("tag FFFFh", &|s, cid, _| s.h2c(cid, 0xffff, 0, &block, false), FIELD, 10),
        ("another command", &|s, cid, tag| s.h2c(cid + 1, tag, 0, &block, false), FIELD, 8),
        ("a gap", &|s, cid, tag| s.h2c(cid, tag, 4096, &block, true), SEQUENCE, 0),
        ("beyond the end", &|s, cid, tag| s.h2c(cid, tag, 0, &[0; 8196], true), range, 0),
        ("a huge offset", &|s, cid, tag| s.h2c(cid, tag, u32::MAX, &block, false), range, 0),
        ("LAST_PDU too early", &|s, cid, tag| s.h2c(cid, tag, 0, &block, true), SEQUENCE, 0),
        ("LAST_PDU missing", &|s, cid, tag| s.h2c(cid, tag, 0, &[0; 8192], false), SEQUENCE, 0),
        (
            "a DATAL other than the data",
            &|s, cid, tag| edited(s.h2c(cid, tag, 0, &block, false), 16, &[1]),
            FIELD,
            16,
        ),
        (
            "no data",
            &|s, cid, tag| edited(s.h2c(cid, tag, 0, &block, false), 4, &[24, 0]),
            FIELD,
            4,
        ),
        ("HLEN", &|s, cid, tag| edited(s.h2c(cid, tag, 0, &block, false), 2, &[28]), FIELD, 2),
    ];
    for (index, &(what, make, fes, fei)) in cases.iter().enumerate() {
        let mut io = rig.host().io(&admin, index as u16 + 1);
        let (cid, tag) = asked(&mut io);
        let pdu = make(&io.socket, cid, tag);
        let before = if fei == 4 { 24 } else { pdu.len() };
        io.socket.send(&pdu[..before]);
        io.socket.expect_termination(what, fes, fei, &pdu);
        witness.check();
    }
    // No R2T is outstanding at all: before Connect, and once the transfer is over.
    let mut socket = rig.host().socket();
    let pdu = socket.h2c(1, 0, 0, &block, true);
    socket.send(&pdu);
    socket.expect_termination("data before Connect", FIELD, 10, &pdu);
    let mut io = rig.host().io(&admin, 60);
    io.write(1, 0, 16, &[5; 65536]);
    let pdu = io.socket.h2c(1, 0, 0, &block, true);
    io.socket.send(&pdu);
    io.socket.expect_termination("data again", FIELD, 10, &pdu);
    witness.check();
}

#[test]
fn a_wrong_data_digest_fails_the_command_and_not_the_connection() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let mut host = rig.host();
    host.dgst = dgst::DATA;
    let admin = host.enabled();
    let mut io = host.io(&admin, 1);
    io.write(1, 0, 2, &[7; 8192]);
    // In the capsule.
    let command = io.prepare(write(2), Bytes::InCapsule(&[8; 8192]));
    let mut pdu = io.socket.capsule(&command, &[8; 8192]);
    *pdu.last_mut().expect("a digest") ^= 1;
    io.socket.send(&pdu);
    io.complete(command.cid.get()).refused(Status::TRANSIENT_TRANSPORT);
    // In the first of two H2CData PDUs, as digest and as data.
    for damaged in [24, 24 + 4095, 24 + 4096] {
        let (cid, tag) = asked(&mut io);
        let mut first = io.socket.h2c(cid, tag, 0, &[8; 4096], false);
        first[damaged] ^= 0x80;
        io.socket.send(&first);
        let second = io.socket.h2c(cid, tag, 4096, &[8; 4096], true);
        io.socket.send(&second);
        io.complete(cid).refused(Status::TRANSIENT_TRANSPORT);
    }
    assert_eq!(io.read(1, 0, 2, 8192), [7; 8192], "nothing of it was written");
    io.write(1, 0, 2, &[9; 8192]);
    assert_eq!(io.read(1, 0, 2, 8192), [9; 8192]);
    witness.check();
}

#[test]
fn truncated_pdus_harm_nobody() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let admin = rig.host().enabled();
    let request = ic_req(|_| {});
    for end in [0, 1, 7, 8, 127] {
        let mut socket = Socket::open(rig.address);
        socket.send(&request[..end]);
        socket.stream.shutdown(Shutdown::Write).expect("connected");
        socket.expect_end();
    }
    let mut scratch = Queue::fresh(rig.host().socket());
    let command = scratch.prepare(write(4), Bytes::InCapsule(&[0; 16384]));
    let capsule = scratch.socket.capsule(&command, &[0xee; 16384]);
    for (index, end) in [1, 8, 71, 72, 73, 4096, 72 + 16383].into_iter().enumerate() {
        let mut io = rig.host().io(&admin, index as u16 + 1);
        io.socket.send(&capsule[..end]);
        io.socket.stream.shutdown(Shutdown::Write).expect("connected");
        io.socket.expect_end();
    }
    for (index, end) in [1, 23, 24, 25, 24 + 8191].into_iter().enumerate() {
        let mut io = rig.host().io(&admin, index as u16 + 20);
        let (cid, tag) = asked(&mut io);
        let data = io.socket.h2c(cid, tag, 0, &[0xee; 8192], true);
        io.socket.send(&data[..end]);
        io.socket.stream.shutdown(Shutdown::Write).expect("connected");
        io.socket.expect_end();
    }
    witness.check();
    assert_eq!(witness.io.read(1, 0, 4, 16384), [0; 16384], "no half a write was carried out");
}

#[test]
fn bytes_that_come_one_by_one_are_understood() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let mut host = rig.host();
    host.dgst = dgst::HEADER | dgst::DATA;
    let admin = host.enabled();
    for qid in [1, 2] {
        let mut io = host.io(&admin, qid);
        let command = io.prepare(write(1), Bytes::InCapsule(&[qid as u8; 4096]));
        let mut stream = io.socket.capsule(&command, &[qid as u8; 4096]);
        let read = io.prepare(read(), Bytes::Wanted(4096));
        stream.extend(io.socket.capsule(&read, &[]));
        for byte in &stream {
            io.socket.stream.write_all(std::slice::from_ref(byte)).expect("connected");
        }
        io.complete(command.cid.get()).ok();
        assert_eq!(io.complete(read.cid.get()).ok().data, [qid as u8; 4096]);
        // The same for a transfer of its own.
        let (cid, tag) = asked(&mut io);
        let data = io.socket.h2c(cid, tag, 0, &[0x55; 8192], true);
        for byte in &data {
            io.socket.stream.write_all(std::slice::from_ref(byte)).expect("connected");
        }
        io.complete(cid).ok();
        assert_eq!(io.read(1, 0, 2, 8192), [0x55; 8192]);
        witness.check();
    }
}

#[test]
fn terminations_by_the_host_are_not_answered() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let mut good = vec![0; 24 + 8];
    good[..5].copy_from_slice(&[Kind::H2C_TERM_REQ.0, 0, 24, 0, 32]);
    good[8] = 2;
    for (at, value) in [(0, Kind::H2C_TERM_REQ.0), (2, 25), (4, 8), (4, 153)] {
        let pdu = edited(good.clone(), at, &[value]);
        let mut socket = Socket::open(rig.address);
        socket.send(&pdu);
        socket.expect_end();
        let (_admin, mut io) = rig.connect();
        io.socket.send(&pdu);
        io.socket.expect_end();
        witness.check();
    }
}

/// A whole conversation of one I/O queue, as a host sends it that waits for nothing.
fn conversation(rig: &Rig, qid: u16, cntlid: u16) -> Vec<u8> {
    let host = rig.host();
    let mut queue = Queue::fresh(host.socket());
    let block = [0x11; 4096];
    let mut stream = ic_req(|_| {});
    let mut say = |queue: &mut Queue, command: Command, bytes: Bytes<'_>, flags: u8| {
        let mut command = queue.prepare(command, bytes);
        command.flags |= flags;
        let data: &[u8] = if let Bytes::InCapsule(data) = bytes { data } else { &[] };
        stream.extend(queue.socket.capsule(&command, data));
        if let Bytes::OnRequest(data) = bytes {
            // The lowest tag that is free is as good a guess as any.
            stream.extend(queue.socket.h2c(command.cid.get(), 1, 0, data, true));
        }
    };
    let data = host.connect_data(cntlid);
    let connect = host.connect_parameters(qid).command();
    say(&mut queue, connect, Bytes::InCapsule(data.as_bytes()), 0);
    let at = |opcode, slba, blocks| Command::blocks(opcode, 1, slba, blocks);
    say(&mut queue, at(opcode::io::READ, 100, 2), Bytes::Wanted(8192), 0);
    say(&mut queue, at(opcode::io::WRITE, 100, 1), Bytes::InCapsule(&block), 0);
    say(&mut queue, at(opcode::io::COMPARE, 100, 1), Bytes::InCapsule(&block), 1);
    say(&mut queue, at(opcode::io::WRITE, 100, 1), Bytes::InCapsule(&block), 2);
    say(&mut queue, at(opcode::io::WRITE, 104, 2), Bytes::OnRequest(&[0x22; 8192]), 0);
    say(&mut queue, at(opcode::io::WRITE_ZEROES, 110, 4), Bytes::None, 0);
    let ranges = [[0; 8], [0, 0, 0, 0, 1, 0, 0, 0]].concat();
    say(&mut queue, at(opcode::io::DATASET_MANAGEMENT, 0, 5), Bytes::InCapsule(&ranges), 0);
    say(&mut queue, at(opcode::io::VERIFY, 100, 9), Bytes::None, 0);
    say(&mut queue, at(opcode::io::READ, 100, 256), Bytes::Wanted(1 << 20), 0);
    say(&mut queue, connect, Bytes::InCapsule(data.as_bytes()), 0);
    stream
}

#[test]
fn damaged_conversations_harm_nobody() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let admin = rig.host().enabled();
    let streams = [1, 2].map(|qid| conversation(&rig, qid, admin.cntlid));
    let mut seed = 0x5eed_u64;
    let mut random = |bound: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % bound
    };
    for round in 0..1500 {
        let mut stream = streams[round % 2].clone();
        // Headers are hit as often as data: the first bytes of some PDU, or anywhere.
        for _ in 0..random(4) {
            let at = match random(2) {
                0 => 128 + random(1400),
                _ => random(stream.len()),
            };
            stream[at] = random(256) as u8;
        }
        if random(4) == 0 {
            stream.truncate(random(stream.len()));
        }
        let mut socket = Socket::open(rig.address);
        if socket.stream.write_all(&stream).is_ok() {
            let _ = socket.stream.shutdown(Shutdown::Write);
            let _ = std::io::copy(&mut socket.stream, &mut std::io::sink());
        }
        if round % 50 == 0 {
            witness.check();
        }
    }
    witness.check();
    // Both cores are there still, and nothing is left behind on them.
    let begin = Instant::now();
    loop {
        let stats = rig.server.stats().expect("running");
        let connections: usize = stats.cores.iter().map(|core| core.connections).sum();
        if connections == 3 {
            // Most of the conversations got as far as their commands.
            assert!(stats.namespaces[0].counted.writes > 1000, "{:?}", stats.namespaces[0]);
            break;
        }
        assert!(begin.elapsed() < host::PATIENCE, "{connections} connections are left");
        std::thread::sleep(Duration::from_millis(5));
    }
    rig.server.stop().expect("stops");
}

/// Hosts leave the data pointer of a command without data as it was.
#[test]
fn a_data_pointer_of_nothing_may_be_any() {
    let rig = Rig::memory(1);
    let (mut admin, _io) = rig.connect();
    // Temperature Threshold has its value in dword 11.
    let set = |value: u32| Command {
        opcode: opcode::admin::SET_FEATURES,
        cdw10: 4.into(),
        cdw11: value.into(),
        ..Command::default()
    };
    let zero = Sgl { identifier: 0, ..Sgl::transport(0) };
    let keyed = Sgl { identifier: 0x40, ..zero };
    let pointers = [zero, keyed, Sgl::transport(0), Sgl::in_capsule(9, 0)];
    for (value, sgl) in (330..).zip(pointers) {
        let mut command = admin.prepare(set(value), Bytes::None);
        command.set_sgl(sgl);
        let cid = admin.send(&command, Bytes::None);
        admin.complete(cid).ok();
        let get = Command { opcode: opcode::admin::GET_FEATURES, ..set(0) };
        assert_eq!(admin.command(get, Bytes::None).ok().result, value.into());
    }
    // One that has data needs to say where.
    let behavior = Command { cdw10: 0x16.into(), ..set(0) };
    let mut command = admin.prepare(behavior, Bytes::None);
    command.set_sgl(zero);
    let cid = admin.send(&command, Bytes::None);
    admin.complete(cid).refused(Status::SGL_TYPE_INVALID.dnr());
}

#[test]
fn sgl_descriptors_that_are_not_the_data_are_refused() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let (_admin, mut io) = rig.connect();
    let block = [3; 4096];
    let length = Status::SGL_LENGTH_INVALID.dnr();
    let kind = Status::SGL_TYPE_INVALID.dnr();
    let offset = Status::SGL_OFFSET_INVALID.dnr();
    let keyed = Sgl { identifier: 0x40, ..Sgl::transport(4096) };
    let segment = Sgl { identifier: 0x20, ..Sgl::transport(4096) };
    let cases: &[(&str, Command, Sgl, &[u8], Status)] = &[
        ("a longer read", read(), Sgl::transport(8192), &[], length),
        ("a shorter read", read(), Sgl::transport(512), &[], length),
        ("a read of nothing", read(), Sgl::transport(0), &[], length),
        ("a read into the capsule", read(), Sgl::in_capsule(0, 4096), &[], kind),
        ("a keyed read", read(), keyed, &[], kind),
        ("a segment", write(1), segment, &[], kind),
        ("a longer write", write(1), Sgl::in_capsule(0, 8192), &block, length),
        ("less in the capsule than said", write(2), Sgl::in_capsule(0, 8192), &block, offset),
        ("nothing in the capsule", write(1), Sgl::in_capsule(0, 4096), &[], offset),
        ("an offset", write(1), Sgl::in_capsule(4, 4096), &block, offset),
        ("an offset that overflows", write(1), Sgl::in_capsule(u64::MAX, 4096), &block, offset),
    ];
    for &(what, command, sgl, data, status) in cases {
        let mut command = io.prepare(command, Bytes::None);
        command.set_sgl(sgl);
        let pdu = io.socket.capsule(&command, data);
        io.socket.send(&pdu);
        let done = io.complete(command.cid.get());
        assert_eq!(done.status, status, "{what}: {}", done.status);
        assert!(done.data.is_empty(), "{what}");
    }
    assert_eq!(io.read(1, 0, 1, 4096), [0; 4096], "nothing was written");
    witness.check();
}
