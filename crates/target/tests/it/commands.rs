//! Commands that are wrong: each gets the status that the specifications name, and everybody
//! else's I/O goes on.

use crate::host;

use double::Double;
use host::rig::{NQN, Rig, memory, subsystem};
use host::{Bytes, Done, Host, Queue};
use namespace::Namespace;
use namespace::layer::fault::{Fault, Rule};
use namespace::layer::linear::Linear;
use nvme::dataset::Range;
use nvme::fabrics::{
    CNTLID_DYNAMIC, Cc, Connect, ConnectData, DISCOVERY_NQN, Property, PropertyAccess,
};
use nvme::log::{ErrorEntry, GetLogPage, Lid, Smart};
use nvme::{Command, NSID_ALL, Sgl, Status, opcode};
use nvme_tcp::pdu::Kind;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;
use zerocopy::IntoBytes;

/// IATTR of a refused Connect: the culprit is in its data.
const IN_DATA: u64 = 1 << 16;

fn read() -> Command {
    Command::blocks(opcode::io::READ, 1, 0, 1)
}

fn identify() -> Command {
    Command { opcode: opcode::admin::IDENTIFY, cdw10: 1.into(), ..Command::default() }
}

/// Set Features, Host Behavior Support: 512 bytes from the host.
fn host_behavior() -> Command {
    Command { opcode: opcode::admin::SET_FEATURES, cdw10: 0x16.into(), ..Command::default() }
}

#[test]
fn nothing_comes_before_connect() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let mut queue = Queue::fresh(rig.host().socket());
    let sequence = Status::COMMAND_SEQUENCE_ERROR.dnr();
    let block = [1; 4096];
    queue.command(read(), Bytes::Wanted(4096)).refused(sequence);
    queue.command(identify(), Bytes::Wanted(4096)).refused(sequence);
    queue.command(PropertyAccess::read(Property::CAP), Bytes::None).refused(sequence);
    let write = Command::blocks(opcode::io::WRITE, 1, 4, 1);
    queue.command(write, Bytes::InCapsule(&block)).refused(sequence);
    // Not worth asking for its data either.
    let cid = queue.issue(write, Bytes::OnRequest(&block));
    let pdu = queue.socket.pdu().expect("an answer");
    assert_eq!(pdu.common.kind, Kind::CAPSULE_RESP, "no R2T before Connect");
    assert_eq!(pdu.header[20..22], cid.to_le_bytes());
    // Connect is welcome still.
    let data = rig.host().connect_data(CNTLID_DYNAMIC);
    let connect = rig.host().connect_parameters(0).command();
    queue.command(connect, Bytes::InCapsule(data.as_bytes())).ok();
    queue.enable();
    witness.check();
    assert_eq!(rig.server.stats().expect("running").namespaces[0].counted.errors, 0);
}

/// Sends a Connect for queue `qid` of `cntlid`, edited.
fn attempt(
    host: &Host,
    (qid, cntlid): (u16, u16),
    edit: impl FnOnce(&mut Connect, &mut ConnectData),
) -> Done {
    let mut queue = Queue::fresh(host.socket());
    let mut connect = host.connect_parameters(qid);
    let mut data = host.connect_data(cntlid);
    edit(&mut connect, &mut data);
    let done = queue.command(connect.command(), Bytes::InCapsule(data.as_bytes()));
    if !done.status.is_success() {
        // A refused connection may try again.
        let (connect, data) = (host.connect_parameters(0), host.connect_data(CNTLID_DYNAMIC));
        queue.command(connect.command(), Bytes::InCapsule(data.as_bytes())).ok();
    }
    done
}

#[test]
fn wrong_connects_name_their_culprit() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let host = rig.host();
    let admin = host.enabled();
    let _first = host.io(&admin, 1);
    let disabled = host.admin();
    let invalid = Status::CONNECT_INVALID_PARAMETERS.dnr();
    let sequence = Status::COMMAND_SEQUENCE_ERROR.dnr();
    type Edit = fn(&mut Connect, &mut ConnectData);
    let dynamic = (0, CNTLID_DYNAMIC);
    let (io, used) = ((3, admin.cntlid), (1, admin.cntlid));
    type Case = (&'static str, (u16, u16), Edit, Status, u64);
    let cases: &[Case] = &[
        ("a missing NQN", dynamic, |_, data| data.subnqn[24] = b'x', invalid, IN_DATA | 256),
        ("no NQN", dynamic, |_, data| data.subnqn = [0; 256], invalid, IN_DATA | 256),
        ("an endless NQN", dynamic, |_, data| data.subnqn = [b'n'; 256], invalid, IN_DATA | 256),
        ("no host NQN", io, |_, data| data.hostnqn = [0; 256], invalid, IN_DATA | 16),
        (
            "a host NQN of noise",
            dynamic,
            |_, data| data.hostnqn = [0xff; 256],
            invalid,
            IN_DATA | 512,
        ),
        ("an admin queue of a controller", (0, 1), |_, _| {}, invalid, IN_DATA | 16),
        (
            "a record format",
            dynamic,
            |connect, _| connect.recfmt = 1,
            Status::INCOMPATIBLE_FORMAT.dnr(),
            0,
        ),
        ("a queue of one entry", dynamic, |connect, _| connect.sqsize_z = 0, invalid, 44),
        ("a queue too long", dynamic, |connect, _| connect.sqsize_z = 1024, invalid, 44),
        ("a queue far too long", io, |connect, _| connect.sqsize_z = 0xffff, invalid, 44),
        ("a queue id in use", used, |_, _| {}, Status::INVALID_QUEUE_IDENTIFIER.dnr(), 0),
        ("a queue id too large", io, |connect, _| connect.qid = 129, invalid, 42),
        ("the largest queue id", io, |connect, _| connect.qid = 0xffff, invalid, 42),
        ("a missing controller", (3, 999), |_, _| {}, invalid, IN_DATA | 16),
        ("any controller", (3, CNTLID_DYNAMIC), |_, _| {}, invalid, IN_DATA | 16),
        ("before enable", (1, disabled.cntlid), |_, _| {}, sequence, 0),
        ("another host id", io, |_, data| data.hostid[3] = 1, invalid, IN_DATA),
        ("another host", io, |_, data| data.hostnqn[24] ^= 1, invalid, IN_DATA | 16),
    ];
    for &(what, of, edit, status, result) in cases {
        let done = attempt(&host, of, edit);
        assert_eq!(done.status, status, "{what}: {}", done.status);
        assert_eq!(done.result, result, "{what}");
        witness.check();
    }
    attempt(&host, io, |_, _| {}).ok();
    // As SPDK's client connects, where any host may.
    attempt(&host, dynamic, |_, data| data.hostnqn = [0; 256]).ok();
}

#[test]
fn connect_data_of_the_wrong_length_is_refused() {
    let rig = Rig::memory(1);
    let host = rig.host();
    let mut queue = Queue::fresh(host.socket());
    let data = host.connect_data(CNTLID_DYNAMIC);
    let connect = host.connect_parameters(0).command();
    let length = Status::SGL_LENGTH_INVALID.dnr();
    let long = [data.as_bytes(), &[0; 4]].concat();
    queue.command(connect, Bytes::InCapsule(&data.as_bytes()[..1020])).refused(length);
    queue.command(connect, Bytes::InCapsule(&long)).refused(length);
    queue.command(connect, Bytes::None).refused(length);
    for huge in [65536, 65537, u32::MAX] {
        let mut command = queue.prepare(connect, Bytes::None);
        command.set_sgl(Sgl::transport(huge));
        let cid = queue.send(&command, Bytes::None);
        queue.complete(cid).refused(length);
    }
    queue.command(connect, Bytes::OnRequest(data.as_bytes())).ok();
    queue.enable();
}

#[test]
fn hosts_that_are_not_on_the_list_stay_outside() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let nqn = "nqn.2026-11.org.example:private";
    let mut config = subsystem(nqn);
    config.allow_any_host = false;
    config.hosts = vec![host::HOST_NQN.into()];
    rig.server.add_subsystem(config).expect("a second subsystem");
    let friend = Host::new(rig.address, nqn);
    let mut stranger = friend.clone();
    stranger.host_nqn = "nqn.2026-11.org.example:stranger".into();
    let (_, done) = stranger.connect(0, CNTLID_DYNAMIC);
    done.refused(Status::CONNECT_INVALID_HOST.dnr());
    assert_eq!(done.result, IN_DATA | 512);
    // Not by way of somebody else's controller either.
    let admin = friend.enabled();
    stranger.connect(1, admin.cntlid).1.refused(Status::CONNECT_INVALID_HOST.dnr());
    let mut io = friend.io(&admin, 1);
    // A controller of another subsystem is none of this one's.
    let mut other = friend.clone();
    other.nqn = NQN.into();
    let (_, done) = other.connect(1, admin.cntlid);
    done.refused(Status::CONNECT_INVALID_PARAMETERS.dnr());
    // Taken off the list, the host is dropped.
    rig.server.disallow_host(nqn, host::HOST_NQN).expect("on the list");
    io.expect_end();
    friend.connect(0, CNTLID_DYNAMIC).1.refused(Status::CONNECT_INVALID_HOST.dnr());
    witness.check();
}

#[test]
fn a_discovery_controller_has_no_io_queues() {
    let rig = Rig::memory(1);
    let discovery = Host::new(rig.address, DISCOVERY_NQN);
    let mut admin = discovery.enabled();
    let (_, done) = discovery.connect(1, admin.cntlid);
    done.refused(Status::CONNECT_INVALID_PARAMETERS.dnr());
    assert_eq!(done.result, 42);
    admin.command(identify(), Bytes::Wanted(4096)).ok();
}

#[test]
fn a_second_connect_and_misplaced_commands_are_refused() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let host = rig.host();
    let (mut admin, mut io) = rig.connect();
    let connect = host.connect_parameters(2).command();
    let data = host.connect_data(admin.cntlid);
    for queue in [&mut admin, &mut io] {
        let done = queue.command(connect, Bytes::InCapsule(data.as_bytes()));
        done.refused(Status::COMMAND_SEQUENCE_ERROR.dnr());
    }
    let property = PropertyAccess::read(Property::CSTS);
    io.command(property, Bytes::None).refused(Status::INVALID_QUEUE_TYPE.dnr());
    let disable = PropertyAccess::write(Property::CC, 0);
    io.command(disable, Bytes::None).refused(Status::INVALID_QUEUE_TYPE.dnr());
    let strange = Command { nsid: 0x77.into(), ..property };
    io.command(strange, Bytes::None).refused(Status::INVALID_OPCODE.dnr());
    admin.command(strange, Bytes::None).refused(Status::INVALID_OPCODE.dnr());
    let unknown = Command { opcode: 0xf0, ..Command::default() };
    admin.command(unknown, Bytes::None).refused(Status::INVALID_OPCODE.dnr());
    let vendor = Command { opcode: 0xc0, nsid: 1.into(), ..Command::default() };
    io.command(vendor, Bytes::None).refused(Status::INVALID_OPCODE.dnr());
    admin
        .command(PropertyAccess::write(Property::VS, 1), Bytes::None)
        .refused(Status::INVALID_FIELD.dnr());
    admin
        .command(PropertyAccess::read(Property(0x500)), Bytes::None)
        .refused(Status::INVALID_FIELD.dnr());
    io.write(1, 0, 1, &[1; 4096]);
    // A controller that is not enabled carries out no admin command.
    let mut disabled = host.admin();
    disabled.command(identify(), Bytes::Wanted(4096)).refused(Status::COMMAND_SEQUENCE_ERROR.dnr());
    // A configuration that is not supported is a fatal status, not ready.
    disabled.set_property(Property::CC, Cc::EN);
    assert_eq!(disabled.property(Property::CSTS) & 3, 2);
    witness.check();
}

#[test]
fn ranges_beyond_the_end_are_refused_and_touch_nothing() {
    let rig = Rig::empty(1);
    rig.add(1, memory(16 << 20, 12, 1));
    rig.add(2, memory(16 << 20, 9, 1));
    let mut witness = rig.witness();
    let (_admin, mut io) = rig.connect();
    for (nsid, shift) in [(1, 12), (2, 9)] {
        let blocks = (16u64 << 20) >> shift;
        let block = 1usize << shift;
        io.write(nsid, blocks - 1, 1, &vec![9; block]);
        for (slba, count) in [
            (blocks, 1),
            (blocks - 1, 2),
            (u64::MAX, 1),
            (u64::MAX - 1, 4),
            (u64::MAX >> shift, 2),
            (1 << 63, 2),
            (1 << (64 - shift), 1),
        ] {
            let bytes = vec![1; count as usize * block];
            for (opcode, data) in [
                (opcode::io::READ, Bytes::Wanted(bytes.len())),
                (opcode::io::WRITE, Bytes::InCapsule(&bytes)),
                (opcode::io::WRITE, Bytes::OnRequest(&bytes)),
                (opcode::io::COMPARE, Bytes::InCapsule(&bytes)),
                (opcode::io::VERIFY, Bytes::None),
                (opcode::io::WRITE_ZEROES, Bytes::None),
            ] {
                let done = io.command(Command::blocks(opcode, nsid, slba, count), data);
                assert_eq!(done.status, Status::LBA_OUT_OF_RANGE.dnr(), "{opcode:#x} {slba:#x}");
                assert!(done.data.is_empty());
            }
            let range = Range { attributes: 0.into(), blocks: count.into(), slba: slba.into() };
            let first = Range { blocks: 1.into(), slba: (blocks - 1).into(), ..range };
            let deallocate = Command {
                opcode: opcode::io::DATASET_MANAGEMENT,
                nsid: nsid.into(),
                cdw10: 1.into(),
                cdw11: 4.into(),
                ..Command::default()
            };
            io.command(deallocate, Bytes::InCapsule([first, range].as_bytes()))
                .refused(Status::LBA_OUT_OF_RANGE.dnr());
        }
        assert_eq!(io.read(nsid, blocks - 1, 1, block), vec![9; block]);
    }
    witness.check();
}

#[test]
fn fields_that_mean_nothing_are_refused() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let (mut admin, mut io) = rig.connect();
    let invalid = Status::INVALID_FIELD.dnr();
    for (what, flags) in [("reserved FUSE", 0x43), ("PRPs", 0x00), ("reserved PSDT", 0xc0)] {
        let mut command = io.prepare(read(), Bytes::Wanted(4096));
        command.flags = flags;
        let cid = io.send(&command, Bytes::None);
        assert_eq!(io.complete(cid).status, invalid, "{what}");
        let mut command = admin.prepare(identify(), Bytes::Wanted(4096));
        command.flags = flags;
        let cid = admin.send(&command, Bytes::None);
        assert_eq!(admin.complete(cid).status, invalid, "{what}");
    }
    // A fused read, and a fused write as the first.
    for (opcode, flags) in [(opcode::io::READ, 0x41), (opcode::io::WRITE, 0x41)] {
        let mut command = io.prepare(Command::blocks(opcode, 1, 0, 1), Bytes::Wanted(4096));
        command.flags = flags;
        let cid = io.send(&command, Bytes::None);
        io.complete(cid).refused(invalid);
    }
    for (nsid, wanted) in [
        (2, Status::INVALID_FIELD),
        (8192, Status::INVALID_FIELD),
        (0, Status::INVALID_NAMESPACE),
        (8193, Status::INVALID_NAMESPACE),
        (NSID_ALL, Status::INVALID_NAMESPACE),
    ] {
        let command = Command::blocks(opcode::io::READ, nsid, 0, 1);
        io.command(command, Bytes::Wanted(4096)).refused(wanted.dnr());
    }
    // More than MDTS, 1 MiB.
    let large = Command::blocks(opcode::io::READ, 1, 0, 257);
    io.command(large, Bytes::Wanted(257 * 4096)).refused(invalid);
    let huge = Command::blocks(opcode::io::WRITE, 1, 0, 65536);
    let mut command = io.prepare(huge, Bytes::None);
    command.set_sgl(Sgl::transport(65536 * 4096));
    let cid = io.send(&command, Bytes::None);
    io.complete(cid).refused(invalid);
    let reservation = Command { opcode: opcode::io::RESERVATION_REPORT, nsid: 1.into(), ..read() };
    io.command(reservation, Bytes::Wanted(4096)).refused(Status::INVALID_OPCODE.dnr());
    witness.check();
}

#[test]
fn an_identifier_in_use_is_a_conflict_and_the_first_command_goes_on() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let (mut admin, mut io) = rig.connect();
    let event = Command { opcode: opcode::admin::ASYNC_EVENT_REQUEST, ..Command::default() };
    let held = admin.issue(event, Bytes::None);
    let mut again = admin.prepare(identify(), Bytes::Wanted(4096));
    again.cid = held.into();
    admin.send(&again, Bytes::None);
    admin.complete(held).refused(Status::CID_CONFLICT.dnr());
    admin.command(identify(), Bytes::Wanted(4096)).ok();
    // A write that waits for its data.
    let data = [6; 32768];
    let write = Command::blocks(opcode::io::WRITE, 1, 0, 8);
    let mut write = io.prepare(write, Bytes::None);
    write.set_sgl(Sgl::transport(32768));
    let cid = io.send(&write, Bytes::None);
    let r2t = io.socket.pdu().expect("an R2T");
    let tag = u16::from_le_bytes([r2t.header[10], r2t.header[11]]);
    let mut again = io.prepare(read(), Bytes::Wanted(4096));
    again.cid = cid.into();
    io.send(&again, Bytes::None);
    io.complete(cid).refused(Status::CID_CONFLICT.dnr());
    let pdu = io.socket.h2c(cid, tag, 0, &data, true);
    io.socket.send(&pdu);
    io.complete(cid).ok();
    assert_eq!(io.read(1, 0, 8, 32768), data);
    witness.check();
}

#[test]
fn more_commands_than_the_queue_has_entries_end_the_connection() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let mut host = rig.host();
    host.entries = 4;
    let admin = host.enabled();
    for qid in [1, 2] {
        let mut io = host.io(&admin, qid);
        let write = Command::blocks(opcode::io::WRITE, 1, 0, 8);
        for _ in 0..4 {
            io.issue(write, Bytes::OnRequest(&[1; 32768]));
        }
        for _ in 0..4 {
            assert_eq!(io.socket.pdu().expect("an R2T").common.kind, Kind::R2T);
        }
        io.issue(write, Bytes::OnRequest(&[1; 32768]));
        io.socket.expect_end();
        witness.check();
    }
}

#[test]
fn as_many_admin_commands_as_entries_may_wait_for_their_data() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    for entries in [32, 300] {
        let mut host = rig.host();
        host.entries = entries;
        let mut admin = host.enabled();
        let data = [0; 512];
        let cids: Vec<_> = (0..entries)
            .map(|_| {
                let command = admin.prepare(host_behavior(), Bytes::OnRequest(&data));
                let capsule = admin.socket.capsule(&command, &[]);
                admin.socket.send(&capsule);
                command.cid.get()
            })
            .collect();
        let requests: Vec<_> = cids
            .iter()
            .map(|_| {
                let pdu = admin.socket.pdu().expect("an R2T");
                assert_eq!(pdu.common.kind, Kind::R2T);
                u16::from_le_bytes([pdu.header[10], pdu.header[11]])
            })
            .collect();
        for (cid, tag) in cids.iter().zip(&requests) {
            let pdu = admin.socket.h2c(*cid, *tag, 0, &data, true);
            admin.socket.send(&pdu);
        }
        for cid in cids {
            admin.complete(cid).ok();
        }
        witness.check();
    }
}

#[test]
fn a_crowd_of_connects_that_wait_for_their_data_ends_the_connection() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let host = rig.host();
    let mut queue = Queue::fresh(host.socket());
    let connect = host.connect_parameters(0).command();
    let mut stream = Vec::new();
    for _ in 0..300 {
        let command = queue.prepare(connect, Bytes::Wanted(1024));
        stream.extend(queue.socket.capsule(&command, &[]));
    }
    queue.socket.send(&stream);
    while queue.socket.pdu().is_ok() {}
    witness.check();
}

#[test]
fn a_connect_that_waits_for_its_data_is_not_overtaken() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let host = rig.host();
    let admin = host.enabled();
    for qid in [1, 2] {
        let mut queue = Queue::fresh(host.socket());
        let data = host.connect_data(admin.cntlid);
        let first = queue.prepare(host.connect_parameters(qid + 10).command(), Bytes::Wanted(1024));
        let capsule = queue.socket.capsule(&first, &[]);
        queue.socket.send(&capsule);
        let r2t = queue.socket.pdu().expect("an R2T");
        assert_eq!(r2t.common.kind, Kind::R2T);
        let second = host.connect_parameters(qid).command();
        let done = queue.command(second, Bytes::InCapsule(data.as_bytes()));
        done.refused(Status::COMMAND_SEQUENCE_ERROR.dnr());
        let pdu = queue.socket.h2c(first.cid.get(), 0, 0, data.as_bytes(), true);
        queue.socket.send(&pdu);
        queue.complete(first.cid.get()).ok();
        queue.write(1, 0, 1, &[qid as u8; 4096]);
        assert_eq!(queue.read(1, 0, 1, 4096), [qid as u8; 4096]);
        witness.check();
    }
}

#[test]
fn commands_sent_along_with_connect_are_answered() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let host = rig.host();
    let admin = host.enabled();
    for qid in [1, 2] {
        let mut queue = Queue::fresh(host.socket());
        let data = host.connect_data(admin.cntlid);
        let bytes = Bytes::InCapsule(data.as_bytes());
        let connect = queue.prepare(host.connect_parameters(qid).command(), bytes);
        let read = queue.prepare(read(), Bytes::Wanted(4096));
        let mut stream = queue.socket.capsule(&connect, data.as_bytes());
        stream.extend(queue.socket.capsule(&read, &[]));
        // And a part of a third.
        let write = Command::blocks(opcode::io::WRITE, 1, 9, 1);
        let write = queue.prepare(write, Bytes::InCapsule(&[4; 4096]));
        let third = queue.socket.capsule(&write, &[4; 4096]);
        stream.extend(&third[..100]);
        queue.socket.stream.write_all(&stream).expect("connected");
        queue.complete(connect.cid.get()).ok();
        queue.complete(read.cid.get()).ok();
        queue.socket.send(&third[100..]);
        queue.complete(write.cid.get()).ok();
        assert_eq!(queue.read(1, 9, 1, 4096), [4; 4096]);
        witness.check();
    }
}

/// Issues one half of a fused pair.
fn half(io: &mut Queue, opcode: u8, slba: u64, data: &[u8], on_request: bool) -> u16 {
    let bytes = if on_request { Bytes::OnRequest(data) } else { Bytes::InCapsule(data) };
    let mut command = io.prepare(Command::blocks(opcode, 1, slba, 1), bytes);
    command.flags |= if opcode == opcode::io::COMPARE { 1 } else { 2 };
    io.send(&command, bytes)
}

#[test]
fn fused_pairs_that_are_none_are_aborted() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let (_admin, mut io) = rig.connect();
    let (old, new, other) = ([1; 4096], [2; 4096], [3; 4096]);
    io.write(1, 0, 1, &old);
    let missing = Status::ABORTED_MISSING_FUSED;
    for on_request in [false, true] {
        // First without second: a normal command follows.
        let first = half(&mut io, opcode::io::COMPARE, 0, &old, on_request);
        assert_eq!(io.read(1, 0, 1, 4096), old);
        io.complete(first).refused(missing);
        // A second first.
        let first = half(&mut io, opcode::io::COMPARE, 0, &old, on_request);
        let again = half(&mut io, opcode::io::COMPARE, 0, &old, on_request);
        let write = half(&mut io, opcode::io::WRITE, 0, &new, on_request);
        io.complete(first).refused(missing);
        io.complete(again).ok();
        io.complete(write).ok();
        assert_eq!(io.read(1, 0, 1, 4096), new);
        io.write(1, 0, 1, &old);
        // Second without first.
        let write = half(&mut io, opcode::io::WRITE, 0, &new, on_request);
        io.complete(write).refused(missing);
        // A compare that fails takes the write with it.
        let compare = half(&mut io, opcode::io::COMPARE, 0, &other, on_request);
        let write = half(&mut io, opcode::io::WRITE, 0, &new, on_request);
        assert_eq!(io.complete(compare).status.code(), Status::COMPARE_FAILURE);
        io.complete(write).refused(Status::ABORTED_FAILED_FUSED);
        // Other blocks.
        let compare = half(&mut io, opcode::io::COMPARE, 0, &old, on_request);
        let write = half(&mut io, opcode::io::WRITE, 1, &new, on_request);
        io.complete(compare).refused(Status::INVALID_FIELD.dnr());
        io.complete(write).refused(Status::INVALID_FIELD.dnr());
        // A write out of range, and a compare out of range.
        let compare = half(&mut io, opcode::io::COMPARE, 0, &old, on_request);
        let write = half(&mut io, opcode::io::WRITE, 1 << 40, &new, on_request);
        io.complete(compare).refused(Status::ABORTED_FAILED_FUSED);
        io.complete(write).refused(Status::LBA_OUT_OF_RANGE.dnr());
        let compare = half(&mut io, opcode::io::COMPARE, 1 << 40, &old, on_request);
        let write = half(&mut io, opcode::io::WRITE, 0, &new, on_request);
        io.complete(compare).refused(Status::LBA_OUT_OF_RANGE.dnr());
        io.complete(write).refused(Status::ABORTED_FAILED_FUSED);
        // What follows is a second without a first again.
        let write = half(&mut io, opcode::io::WRITE, 0, &new, on_request);
        io.complete(write).refused(missing);
        assert_eq!(io.read(1, 0, 1, 4096), old, "nothing was written");
        witness.check();
    }
}

#[test]
fn both_of_a_fused_pair_are_answered_where_no_queue_can_be_opened() {
    let rig = Rig::empty(1);
    let volume = Double::over(memory(1 << 20, 12, 1)).without_queues();
    rig.add(1, Arc::new(volume));
    let (_admin, mut io) = rig.connect();
    let compare = half(&mut io, opcode::io::COMPARE, 0, &[1; 4096], false);
    let write = half(&mut io, opcode::io::WRITE, 0, &[2; 4096], false);
    io.complete(compare).refused(Status::NAMESPACE_NOT_READY);
    io.complete(write).refused(Status::ABORTED_FAILED_FUSED);
}

fn log_page<Page: zerocopy::FromBytes>(admin: &mut Queue, lid: Lid) -> Page {
    let bytes = size_of::<Page>();
    let page = GetLogPage { bytes: bytes as u64, lid, ..GetLogPage::of(&Command::default()) };
    let command = Command { nsid: NSID_ALL.into(), ..page.command() };
    let data = admin.command(command, Bytes::Wanted(bytes)).ok().data;
    Page::read_from_bytes(&data).expect("as long as asked for")
}

/// What failed is in the error log, what the media failed in the health log; what merely differs from what it
/// is compared with, as it does for hosts that take locks by it, is in neither.
/// Though the part of the volume that fails counts its own blocks.
#[test]
fn the_error_log_names_the_block_that_the_host_named() {
    let rig = Rig::empty(1);
    let rule = Rule { opcodes: vec![opcode::io::WRITE], ..Rule::default() };
    let parts: [Arc<dyn Namespace>; 2] =
        [memory(1 << 20, 12, 1), Fault::new(memory(1 << 20, 12, 1), rule)];
    rig.add(1, Linear::new(parts.into()).unwrap());
    let (mut admin, mut io) = rig.connect();
    let write = Command::blocks(opcode::io::WRITE, 1, 256 + 7, 1);
    io.command(write, Bytes::InCapsule(&[1; 4096])).refused(Status::WRITE_FAULT);
    let until = Instant::now() + host::PATIENCE;
    let entry = loop {
        let entry: ErrorEntry = log_page(&mut admin, Lid::ERROR);
        if entry.error_count.get() == 1 {
            break entry;
        }
        assert!(Instant::now() < until, "the control core is told beside the answer");
    };
    assert_eq!((entry.nsid.get(), entry.lba.get()), (1, 256 + 7));
}

#[test]
fn logs_tell_what_failed() {
    let rig = Rig::empty(1);
    let rule = Rule { opcodes: vec![opcode::io::READ], lba: Some((7, 7)), ..Rule::default() };
    rig.add(1, Fault::new(memory(1 << 20, 12, 1), rule));
    let (mut admin, mut io) = rig.connect();
    let (old, new) = ([0; 4096], [2; 4096]);
    let wrong = half(&mut io, opcode::io::COMPARE, 0, &new, false);
    let write = half(&mut io, opcode::io::WRITE, 0, &new, false);
    assert_eq!(io.complete(wrong).status.code(), Status::COMPARE_FAILURE);
    io.complete(write).refused(Status::ABORTED_FAILED_FUSED);
    io.write(1, 0, 1, &old);
    let smart: Smart = log_page(&mut admin, Lid::SMART);
    assert_eq!((smart.media_errors[0].get(), smart.error_entries[0].get()), (0, 0));
    let entry: ErrorEntry = log_page(&mut admin, Lid::ERROR);
    assert_eq!(entry.error_count.get(), 0, "an unused entry");
    for count in 1..=2 {
        let failed = io.command(Command::blocks(opcode::io::READ, 1, 7, 1), Bytes::Wanted(4096));
        assert_eq!(failed.status.code(), Status::UNRECOVERED_READ);
        // The control core is told beside the answer.
        let until = Instant::now() + host::PATIENCE;
        let smart = loop {
            let smart: Smart = log_page(&mut admin, Lid::SMART);
            if smart.error_entries[0].get() == count {
                break smart;
            }
            assert!(Instant::now() < until, "{smart:?}");
        };
        assert_eq!(smart.media_errors[0].get(), count);
        assert_eq!(smart.host_writes[0].get(), 1, "those that were carried out");
        let entry: ErrorEntry = log_page(&mut admin, Lid::ERROR);
        let place = (entry.nsid.get(), entry.lba.get(), entry.sqid.get(), entry.opcode);
        assert_eq!((entry.error_count.get(), place), (count, (1, 7, 1, opcode::io::READ)));
        assert_eq!(Status(entry.status.get() >> 1).code(), Status::UNRECOVERED_READ);
    }
}
