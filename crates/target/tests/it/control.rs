//! What the control plane does shows at the hosts: keep alive, asynchronous events, ANA, many
//! namespaces, the health log.

use crate::host;

use double::Double;
use host::rig::{NQN, Rig, file, memory, subsystem};
use host::{Bytes, Done, Host, PATIENCE, Queue, Socket, narrow};
use namespace::{Lost, Namespace};
use nvme::event::{AsyncEvent, notice};
use nvme::log::{Lid, Smart};
use nvme::{Command, Limits, NSID_ALL, Sgl, Status, opcode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use target::{AnaState, NamespaceOptions};
use zerocopy::FromBytes;

fn identify(cns: u32, nsid: u32) -> Command {
    Command {
        opcode: opcode::admin::IDENTIFY,
        nsid: nsid.into(),
        cdw10: cns.into(),
        ..Command::default()
    }
}

/// Get Log Page of `bytes` bytes, which also clears its event.
fn log_page(page: u32, nsid: u32, bytes: u32) -> Command {
    Command {
        opcode: opcode::admin::GET_LOG_PAGE,
        nsid: nsid.into(),
        cdw10: (page | (bytes / 4 - 1) << 16).into(),
        ..Command::default()
    }
}

/// Enables the notices of namespaces and of ANA, and leaves a request for an event.
fn expect_event(admin: &mut Queue) -> u16 {
    let configure = Command {
        opcode: opcode::admin::SET_FEATURES,
        cdw10: 0x0b.into(),
        cdw11: (notice::NAMESPACE_ATTRIBUTE | notice::ANA_CHANGE).into(),
        ..Command::default()
    };
    admin.command(configure, Bytes::None).ok();
    request_event(admin)
}

fn request_event(admin: &mut Queue) -> u16 {
    let command = Command { opcode: opcode::admin::ASYNC_EVENT_REQUEST, ..Command::default() };
    admin.issue(command, Bytes::None)
}

/// Sees that the event that completed is `event`, reads its log page, and asks for the next.
#[track_caller]
fn acknowledge(admin: &mut Queue, done: Done, event: AsyncEvent, changed: &[u32]) -> u16 {
    assert_eq!(AsyncEvent::from_dword0(done.ok().result as u32), event);
    let page = u32::from(event.log_page);
    let log = admin.command(log_page(page, NSID_ALL, 4096), Bytes::Wanted(4096)).ok().data;
    if event == AsyncEvent::NAMESPACE_ATTRIBUTE {
        let numbers = log.chunks(4).map(|word| word.try_into().expect("four bytes"));
        let nsids: Vec<_> = numbers.map(u32::from_le_bytes).take_while(|nsid| *nsid != 0).collect();
        assert_eq!(nsids, changed);
    }
    request_event(admin)
}

/// Capacity in blocks, as Identify Namespace tells it.
fn capacity(admin: &mut Queue, nsid: u32) -> u64 {
    let data = admin.command(identify(0, nsid), Bytes::Wanted(4096)).ok().data;
    u64::from_le_bytes(data[..8].try_into().expect("eight bytes"))
}

#[test]
fn changes_of_namespaces_are_announced() {
    for cores in [1, 2] {
        let rig = Rig::empty(cores);
        let volume = memory(1 << 20, 12, cores);
        rig.add(1, volume.clone());
        let (mut admin, mut io) = rig.connect();
        let mut cid = expect_event(&mut admin);
        let event = AsyncEvent::NAMESPACE_ATTRIBUTE;
        rig.add(2, memory(1 << 20, 9, cores));
        let done = admin.complete(cid);
        cid = acknowledge(&mut admin, done, event, &[2]);
        io.write(2, 5, 1, &[5; 512]);
        // Larger: the new blocks are there. Smaller: they are gone.
        volume.resize(2 << 20).expect("memory grows");
        rig.server.namespace_changed(NQN, 1).expect("served");
        let done = admin.complete(cid);
        cid = acknowledge(&mut admin, done, event, &[1]);
        assert_eq!(capacity(&mut admin, 1), 512);
        io.write(1, 511, 1, &[1; 4096]);
        volume.resize(1 << 20).expect("memory shrinks");
        rig.server.namespace_changed(NQN, 1).expect("served");
        let done = admin.complete(cid);
        cid = acknowledge(&mut admin, done, event, &[1]);
        let read = Command::blocks(opcode::io::READ, 1, 511, 1);
        io.command(read, Bytes::Wanted(4096)).refused(Status::LBA_OUT_OF_RANGE.dnr());
        rig.server.remove_namespace(NQN, 2).expect("served");
        let done = admin.complete(cid);
        cid = acknowledge(&mut admin, done, event, &[2]);
        let read = Command::blocks(opcode::io::READ, 2, 0, 1);
        io.command(read, Bytes::Wanted(512)).refused(Status::INVALID_FIELD.dnr());
        // What happens before the log page is read is told by it: one event, both namespaces.
        rig.add(7, memory(1 << 20, 12, cores));
        let done = admin.complete(cid);
        rig.add(9, memory(1 << 20, 12, cores));
        let cid = acknowledge(&mut admin, done, event, &[7, 9]);
        // An abort takes the request back.
        let abort = Command {
            opcode: opcode::admin::ABORT,
            cdw10: (u32::from(cid) << 16).into(),
            ..Command::default()
        };
        assert_eq!(admin.command(abort, Bytes::None).ok().result & 1, 0);
        admin.complete(cid).refused(Status::ABORT_REQUESTED);
    }
}

#[test]
fn hosts_that_would_send_too_much_at_once_are_to_connect_again() {
    let rig = Rig::memory(2);
    let (mut admin, mut io) = rig.connect();
    let (mut unaware, mut other) = rig.connect();
    assert_eq!(admin.command(identify(1, 0), Bytes::Wanted(4096)).ok().data[77], 8, "1 MiB");
    let narrow = |limits| Limits { transfer_bytes_max: 128 << 10, ..limits };
    rig.add(2, Arc::new(Double::over(memory(1 << 20, 12, 2)).limited(narrow)));
    admin.expect_end();
    io.expect_end();
    // The next time it is told what all namespaces take; who had not asked is told so at once.
    let (mut again, _io) = rig.connect();
    for admin in [&mut again, &mut unaware] {
        assert_eq!(admin.command(identify(1, 0), Bytes::Wanted(4096)).ok().data[77], 5);
    }
    other.write(2, 0, 32, &[2; 128 << 10]);
}

#[test]
fn limits_that_nobody_could_serve_change_nothing() {
    let rig = Rig::empty(2);
    let gone = Arc::new(AtomicBool::new(false));
    let is_gone = Arc::clone(&gone);
    let limit = move |limits: Limits| match is_gone.load(Ordering::Relaxed) {
        true => Limits { blocks: 0, ..limits },
        false => limits,
    };
    rig.add(1, Arc::new(Double::over(memory(1 << 20, 12, 2)).limited(limit)));
    let (_admin, mut io) = rig.connect();
    gone.store(true, Ordering::Relaxed);
    rig.server.namespace_changed(NQN, 1).expect_err("no namespace has no blocks");
    io.read(1, 0, 8, 8 * 4096);
}

#[test]
fn changes_of_ana_states_are_announced_and_obeyed() {
    for cores in [1, 2] {
        let rig = Rig::memory(cores);
        let (mut admin, mut io) = rig.connect();
        let mut cid = expect_event(&mut admin);
        let read = Command::blocks(opcode::io::READ, 1, 0, 1);
        for (state, status) in [
            (AnaState::INACCESSIBLE, Status::ANA_INACCESSIBLE),
            (AnaState::NON_OPTIMIZED, Status::SUCCESS),
            (AnaState::PERSISTENT_LOSS, Status::ANA_PERSISTENT_LOSS),
            (AnaState::CHANGE, Status::ANA_TRANSITION),
            (AnaState::OPTIMIZED, Status::SUCCESS),
        ] {
            rig.server.set_ana_state(NQN, rig.port, 1, state).expect("a group");
            // It is in force as soon as the call has returned, and told after.
            let done = io.command(read, Bytes::Wanted(4096));
            assert_eq!(done.status.code(), status, "{state:?}");
            let done = admin.complete(cid);
            cid = acknowledge(&mut admin, done, AsyncEvent::ANA_CHANGE, &[]);
        }
    }
}

#[test]
fn requests_for_events_have_a_limit() {
    let rig = Rig::memory(1);
    let (mut admin, _io) = rig.connect();
    let _first = expect_event(&mut admin);
    for _ in 0..3 {
        request_event(&mut admin);
    }
    for _ in 0..100 {
        let cid = request_event(&mut admin);
        admin.complete(cid).refused(Status::AER_LIMIT_EXCEEDED.dnr());
    }
}

#[test]
fn a_host_that_falls_silent_is_dropped() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let mut host = rig.host();
    host.kato_ms = 5000;
    let mut silent = host.enabled();
    let mut idle: Vec<_> = (1..=2).map(|qid| host.io(&silent, qid)).collect();
    // Those who send Keep Alive, or have I/O, stay.
    let mut dutiful = host.enabled();
    let busy = host.enabled();
    let mut io = host.io(&busy, 1);
    let begin = Instant::now();
    let keep_alive = Command { opcode: opcode::admin::KEEP_ALIVE, ..Command::default() };
    // Silence is noticed after one to two time-outs.
    while begin.elapsed() < Duration::from_millis(10_500) {
        dutiful.command(keep_alive, Bytes::None).ok();
        io.read(1, 0, 1, 4096);
        witness.check();
        std::thread::sleep(Duration::from_millis(100));
    }
    silent.expect_end();
    for queue in &mut idle {
        queue.expect_end();
    }
    // Its controller is gone with it.
    let (_, done) = host.connect(3, silent.cntlid);
    done.refused(Status::CONNECT_INVALID_PARAMETERS.dnr());
    dutiful.command(keep_alive, Bytes::None).ok();
    drop(busy);
}

#[test]
fn a_controller_ends_with_its_admin_queue() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let (admin, mut first) = rig.connect();
    let mut second = rig.host().io(&admin, 2);
    second.write(1, 0, 1, &[1; 4096]);
    let cntlid = admin.cntlid;
    drop(admin);
    first.expect_end();
    second.expect_end();
    let (_, done) = rig.host().connect(3, cntlid);
    done.refused(Status::CONNECT_INVALID_PARAMETERS.dnr());
    witness.check();
}

#[test]
fn a_listener_that_is_removed_takes_its_connections_along() {
    let rig = Rig::memory(2);
    let any = "127.0.0.1:0".parse().expect("an address");
    let (port, address) = rig.server.add_listener(any).expect("a second listener");
    let mut witness = rig.witness();
    let mut host = rig.host();
    host.address = address;
    let admin = host.enabled();
    let mut io = host.io(&admin, 1);
    io.read(1, 0, 1, 4096);
    rig.server.remove_listener(port).expect("added above");
    io.expect_end();
    assert!(std::net::TcpStream::connect(address).is_err());
    witness.check();
}

#[test]
fn a_connection_without_a_controller_goes_with_its_listener() {
    let rig = Rig::memory(2);
    let any = "127.0.0.1:0".parse().expect("an address");
    let (port, address) = rig.server.add_listener(any).expect("a second listener");
    let mut fresh = Socket::initialized(address, 0);
    rig.server.remove_listener(port).expect("added above");
    fresh.expect_end();
}

/// Nothing is written to a namespace after it was removed, though a host may still owe its data.
#[test]
fn a_removed_namespace_is_let_go_of_by_commands_that_wait_for_data() {
    let rig = Rig::memory(2);
    let volume = memory(1 << 20, 12, 2);
    rig.add(2, volume.clone());
    let (_admin, mut io) = rig.connect();
    let data = [0x5a; 32768];
    let write = Command::blocks(opcode::io::WRITE, 2, 0, 8);
    let mut write = io.prepare(write, Bytes::None);
    write.set_sgl(Sgl::transport(data.len() as u32));
    let cid = io.send(&write, Bytes::None);
    let r2t = io.socket.pdu().expect("an R2T");
    let tag = u16::from_le_bytes([r2t.header[10], r2t.header[11]]);
    rig.server.remove_namespace(NQN, 2).expect("served");
    let until = Instant::now() + PATIENCE;
    while Arc::strong_count(&volume) > 1 {
        assert!(Instant::now() < until, "somebody keeps the volume");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pdu = io.socket.h2c(cid, tag, 0, &data, true);
    io.socket.send(&pdu);
    io.complete(cid).refused(Status::INVALID_FIELD.dnr());
    rig.add(3, volume);
    assert!(io.read(3, 0, 8, data.len()).iter().all(|byte| *byte == 0));
}

#[test]
fn a_removed_namespace_is_let_go_of_by_answers_that_are_not_read() {
    const MIB: usize = 1 << 20;
    let rig = Rig::memory(1);
    let volume = memory(64 << 20, 12, 1);
    rig.add(2, volume.clone());
    let (_admin, mut io) = rig.connect();
    narrow(&io.socket);
    let read = |slba| Command::blocks(opcode::io::READ, 2, slba, 256);
    let asked: Vec<_> = (0..16).map(|at| io.issue(read(at * 256), Bytes::Wanted(MIB))).collect();
    // The first answer comes and the others stand behind it.
    io.await_word();
    let kept = Arc::strong_count(&volume);
    rig.server.remove_namespace(NQN, 2).expect("served");
    let until = Instant::now() + PATIENCE;
    while Arc::strong_count(&volume) > 1 {
        assert!(Instant::now() < until, "somebody keeps the volume, as {kept} did");
        std::thread::sleep(Duration::from_millis(1));
    }
    let answered =
        asked.into_iter().map(|cid| io.complete(cid)).filter(|done| done.status.is_success());
    assert!(
        answered.inspect(|done| assert!(done.data == [0; MIB])).count() > 0,
        "what was read is sent"
    );
}

#[test]
fn a_new_listener_has_no_ana_state_of_an_old_one() {
    let rig = Rig::memory(2);
    let any = "127.0.0.1:0".parse().expect("an address");
    let (old, _) = rig.server.add_listener(any).expect("a second listener");
    rig.server.set_ana_state(NQN, old, 1, AnaState::INACCESSIBLE).expect("a group");
    rig.server.remove_listener(old).expect("added above");
    let (new, address) = rig.server.add_listener(any).expect("a third listener");
    assert_eq!(new, old, "the id is used again, or this test tests nothing");
    let mut host = rig.host();
    host.address = address;
    let admin = host.enabled();
    host.io(&admin, 1).read(1, 0, 1, 4096);
}

#[test]
fn a_thousand_namespaces_are_told_apart() {
    const COUNT: u32 = 1000;
    let rig = Rig::empty(2);
    let begin = Instant::now();
    for nsid in 1..=COUNT {
        rig.add(nsid, memory(64 << 10, if nsid % 2 == 0 { 9 } else { 12 }, 2));
    }
    let added = begin.elapsed();
    let (mut admin, mut io) = rig.connect();
    let data = admin.command(identify(2, 0), Bytes::Wanted(4096)).ok().data;
    let listed: Vec<_> = data
        .chunks(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
        .take_while(|nsid| *nsid != 0)
        .collect();
    assert_eq!(listed, (1..=COUNT).collect::<Vec<_>>());
    let block = |nsid: u32| if nsid.is_multiple_of(2) { 512 } else { 4096 };
    for nsid in 1..=COUNT {
        io.write(nsid, 3, 1, &nsid.to_le_bytes().repeat(block(nsid) / 4));
    }
    for nsid in (1..=COUNT).rev() {
        assert!(io.read(nsid, 3, 1, block(nsid)) == nsid.to_le_bytes().repeat(block(nsid) / 4));
    }
    assert_eq!(rig.server.stats().expect("running").namespaces.len(), COUNT as usize);
    let begin = Instant::now();
    for nsid in 1..=COUNT {
        rig.server.remove_namespace(NQN, nsid).expect("served");
    }
    assert!(begin.elapsed() < PATIENCE + 10 * added, "{:?}", begin.elapsed());
    let read = Command::blocks(opcode::io::READ, 1, 0, 1);
    io.command(read, Bytes::Wanted(4096)).refused(Status::INVALID_FIELD.dnr());
}

#[test]
fn a_returning_host_is_not_overtaken_by_its_own_past() {
    let directory = host::rig::directory();
    let rig = Rig::empty(2);
    let delay = Duration::from_millis(300);
    let volume: Arc<dyn Namespace> = file(&directory, 16 << 20, 12, 2, delay);
    rig.add(1, volume);
    for qid in [1, 2] {
        let admin = rig.host().enabled();
        let mut io = rig.host().io(&admin, qid);
        let write = Command::blocks(opcode::io::WRITE, 1, 0, 1);
        let issued = Instant::now();
        io.issue(write, Bytes::InCapsule(&[1; 4096]));
        // The volume has it, and is not done with it.
        io.settle();
        drop((io, admin));
        let admin = rig.host().enabled();
        assert!(issued.elapsed() >= delay, "its Connect waits for the old write to end");
        let mut io = rig.host().io(&admin, qid);
        io.write(1, 0, 1, &[2; 4096]);
        std::thread::sleep(delay);
        assert_eq!(io.read(1, 0, 1, 4096), [2; 4096], "the old write came last");
    }
}

/// The kernel tells of lost data once, whoever flushes then.
#[test]
fn each_host_is_told_of_lost_data_by_its_next_flush() {
    for cores in [1, 2] {
        let rig = Rig::empty(cores);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        // All hosts are here before.
        let at = Instant::now() + PATIENCE;
        let losing = move || Lost { count: counted.load(Ordering::Relaxed), at: Some(at) };
        rig.add(1, Arc::new(Double::over(memory(1 << 20, 12, cores)).losing(losing)));
        let (first, mut io) = rig.connect();
        let other = Host { host_id: [8; 16], ..rig.host() };
        let admin = other.enabled();
        let mut others = [rig.host().io(&first, 2), other.io(&admin, 1)];
        let flush = Command { opcode: opcode::io::FLUSH, nsid: 1.into(), ..Command::default() };
        for queue in [&mut io].into_iter().chain(&mut others) {
            queue.command(flush, Bytes::None).ok();
        }
        lost.store(1, Ordering::Relaxed);
        let [second, stranger] = &mut others;
        io.command(flush, Bytes::None).refused(Status::WRITE_FAULT.dnr());
        // It knows, by whichever queue.
        for queue in [&mut io, second] {
            queue.command(flush, Bytes::None).ok();
        }
        stranger.command(flush, Bytes::None).refused(Status::WRITE_FAULT.dnr());
        stranger.command(flush, Bytes::None).ok();
        // A host that connects again has been told.
        let (_admin, mut again) = rig.connect();
        again.command(flush, Bytes::None).ok();
    }
}

/// What the health log counts of namespace `nsid`: data units and commands of reads, then of writes.
fn counted(admin: &mut Queue, nsid: u32) -> [[u64; 2]; 2] {
    let page = log_page(Lid::SMART.0.into(), nsid, 512);
    let data = admin.command(page, Bytes::Wanted(512)).ok().data;
    let smart = Smart::read_from_bytes(&data).expect("512 bytes");
    let reads = [smart.data_units_read[0].get(), smart.host_reads[0].get()];
    [reads, [smart.data_units_written[0].get(), smart.host_writes[0].get()]]
}

/// Reads and writes as often as told, each time `units` data units of 512,000 bytes.
fn transfer(io: &mut Queue, nsid: u32, units: u32, [reads, writes]: [u64; 2]) {
    let blocks = 125 * units;
    let data = vec![7; blocks as usize * 4096];
    for _ in 0..reads {
        io.read(nsid, 0, blocks, data.len());
    }
    for _ in 0..writes {
        io.write(nsid, 0, blocks, &data);
    }
}

#[test]
fn the_health_log_counts_the_io_of_its_subsystem_on_all_cores() {
    let rig = Rig::empty(2);
    for nsid in [1, 2] {
        rig.add(nsid, memory(16 << 20, 12, 2));
    }
    let nqn = "nqn.2026-11.org.example:other";
    rig.server.add_subsystem(subsystem(nqn)).expect("a second subsystem");
    let options = NamespaceOptions { nsid: Some(1), uuid: [9; 16], nguid: [0; 16], ana_group: 1 };
    rig.server.add_namespace(nqn, &options, memory(16 << 20, 12, 2)).expect("a namespace");
    let other = Host::new(rig.address, nqn);
    let mut other_admin = other.enabled();
    transfer(&mut other.io(&other_admin, 1), 1, 1, [7, 9]);
    let mut admin = rig.host().enabled();
    assert_eq!(counted(&mut admin, NSID_ALL), [[0; 2]; 2]);
    let mut queues: Vec<_> = (1..=4).map(|qid| rig.host().io(&admin, qid)).collect();
    for io in &mut queues {
        transfer(io, 1, 2, [3, 1]);
        transfer(io, 2, 1, [1, 5]);
    }
    let cores = rig.server.stats().expect("running").cores;
    assert!(cores.iter().all(|core| core.connections >= 2), "each has queues: {cores:?}");
    assert_eq!(counted(&mut admin, 1), [[24, 12], [8, 4]]);
    assert_eq!(counted(&mut admin, 2), [[4, 4], [20, 20]]);
    assert_eq!(counted(&mut admin, NSID_ALL), [[28, 16], [28, 24]]);
    for nsid in [1, NSID_ALL] {
        assert_eq!(counted(&mut other_admin, nsid), [[7, 7], [9, 9]]);
    }
}
