//! Peers that hold on to what they can get: connections, buffers, unread answers. Others' I/O goes
//! on, and memory stays bounded.

use crate::host;

use host::rig::{Rig, Witness, directory, file, memory};
use host::{Bytes, PATIENCE, Queue, Socket, narrow};
use nvme::fabrics::CNTLID_DYNAMIC;
use nvme::{Command, Status, opcode};
use nvme_tcp::FatalError;
use nvme_tcp::pdu::{Kind, dgst};
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Has the witness do I/O for `time`; gives the longest that one round took.
fn keep_checking(witness: &mut Witness, time: Duration) -> Duration {
    let begin = Instant::now();
    let mut longest = Duration::ZERO;
    while begin.elapsed() < time {
        let round = Instant::now();
        witness.check();
        longest = longest.max(round.elapsed());
    }
    longest
}

#[test]
fn a_connection_without_connect_is_closed_in_time() {
    let rig = Rig::memory(1);
    let begin = Instant::now();
    let mut silent = Socket::open(rig.address);
    let mut initialized = rig.host().socket();
    let (_admin, mut io) = rig.connect();
    for socket in [&mut silent, &mut initialized] {
        socket.stream.set_read_timeout(Some(2 * PATIENCE)).expect("a TCP socket");
        socket.expect_end();
    }
    assert!(begin.elapsed() > Duration::from_secs(8), "{:?}", begin.elapsed());
    io.read(1, 0, 1, 4096);
}

/// Issues `count` reads of 1 MiB and reads none of the answers.
fn stop_reading(io: &mut Queue, count: usize) {
    narrow(&io.socket);
    for index in 0..count {
        let command = Command::blocks(opcode::io::READ, 1, (index % 32) as u64 * 256, 256);
        io.issue(command, Bytes::Wanted(MIB));
    }
}

/// Issues `count` writes of 1 MiB and sends no data.
fn never_send(io: &mut Queue, count: usize) {
    for index in 0..count {
        let command = Command::blocks(opcode::io::WRITE, 1, (index % 32) as u64 * 256 + 256, 256);
        let command = io.prepare(command, Bytes::Wanted(MIB));
        let capsule = io.socket.capsule(&command, &[]);
        io.socket.send(&capsule);
    }
}

#[test]
fn peers_that_stop_reading_starve_nobody() {
    let directory = directory();
    for volume in ["memory", "memory with digests", "file"] {
        let rig = Rig::empty(1);
        match volume {
            "file" => rig.add(1, file(&directory, 64 << 20, 12, 1, Duration::ZERO)),
            _ => rig.add(1, memory(64 << 20, 12, 1)),
        }
        let mut witness = rig.witness();
        witness.check();
        let mut host = rig.host();
        host.dgst = if volume == "memory with digests" { dgst::DATA } else { 0 };
        let admin = host.enabled();
        let mut hogs: Vec<_> = (1..=4).map(|qid| host.io(&admin, qid)).collect();
        for hog in &mut hogs {
            stop_reading(hog, 64);
        }
        let longest = keep_checking(&mut witness, Duration::from_millis(1500));
        assert!(longest < PATIENCE / 2, "{volume}: a round took {longest:?}");
        let mut late = rig.witness();
        late.check();
        // By quota, not by dropping anybody.
        assert_eq!(rig.server.stats().expect("running").cores[0].connections, 4 + 1 + 4);
        // They are slow, not wrong: who reads again gets everything.
        let first = hogs[0].next_cid - 63;
        for cid in first..first + 64 {
            assert_eq!(hogs[0].complete(cid).ok().data.len(), MIB, "{volume}");
        }
        rig.server.stop().expect("stops");
    }
}

/// Memory that is lent costs no buffers, but where a program has a read done by several parts.
#[test]
fn reads_of_lent_memory_wait_for_buffers_where_they_take_any() {
    let stripe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/stripe.bpf.o");
    let uri = format!("bpf:{stripe}(mem:32M?bs=4096,mem:32M?bs=4096)");
    let volume = volume::open(&uri, &volume::OpenOptions::default()).expect("a volume");
    assert!(volume.limits().lends_reads, "or this test tests nothing");
    let rig = Rig::empty(1);
    rig.add(1, volume);
    let mut witness = rig.witness();
    witness.check();
    const N: u64 = 60;
    let ask = |io: &mut Queue| -> Vec<u16> {
        narrow(&io.socket);
        let read = |at: u64| Command::blocks(opcode::io::READ, 1, at % 32 * 256, 256);
        (0..N).map(|at| io.issue(read(at), Bytes::Wanted(MIB))).collect()
    };
    let (_admin, mut io) = rig.connect();
    let asked = ask(&mut io);
    // The first answer comes, and the others have had all the memory that there is.
    io.await_word();
    for cid in asked {
        assert!(io.complete(cid).ok().data.len() == MIB);
    }
    // Who takes nothing is found out as others wait.
    let (_admin, mut silent) = rig.connect();
    ask(&mut silent);
    silent.await_word();
    witness.check();
}

#[test]
fn peers_that_never_send_their_data_starve_nobody() {
    let directory = directory();
    let rig = Rig::empty(1);
    rig.add(1, file(&directory, 64 << 20, 12, 1, Duration::ZERO));
    let mut witness = rig.witness();
    let admin = rig.host().enabled();
    let mut hogs: Vec<_> = (1..=4).map(|qid| rig.host().io(&admin, qid)).collect();
    for hog in &mut hogs {
        never_send(hog, 128);
    }
    let longest = keep_checking(&mut witness, Duration::from_millis(1500));
    assert!(longest < PATIENCE / 2, "a round took {longest:?}");
    let mut late = rig.witness();
    late.check();
    // Nobody waits for memory: the hogs may stay.
    assert_eq!(rig.server.stats().expect("running").cores[0].connections, 4 + 1 + 4);
}

#[test]
fn a_crowd_that_holds_all_memory_is_dropped() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let admin = rig.host().enabled();
    let mut hogs: Vec<_> = (1..=64).map(|qid| rig.host().io(&admin, qid)).collect();
    for hog in &mut hogs {
        never_send(hog, 4);
    }
    // Reads of memory need no buffer, writes out of the capsule do.
    let data = vec![0x77; MIB];
    let begin = Instant::now();
    witness.io.write(1, 0, 256, &data);
    assert!(begin.elapsed() < PATIENCE);
    assert!(witness.io.read(1, 0, 256, MIB) == data);
    keep_checking(&mut witness, Duration::from_millis(200));
}

/// Ends a crowd, however its test ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// More busy connections than the pool has buffers: what one gives back is its own again only when those before it
/// have had their turn.
#[test]
fn a_crowd_that_is_busy_starves_nobody() {
    let directory = directory();
    let rig = Rig::empty(1);
    rig.add(1, file(&directory, 64 << 20, 12, 1, Duration::ZERO));
    let mut witness = rig.witness();
    let admin = rig.host().enabled();
    let hogs: Vec<_> = (1..=40).map(|qid| rig.host().io(&admin, qid)).collect();
    let over = AtomicBool::new(false);
    let longest = thread::scope(|scope| {
        let end = Over(&over);
        for (at, mut hog) in (0..).zip(hogs) {
            let over = &over;
            scope.spawn(move || {
                let read = Command::blocks(opcode::io::READ, 1, at % 32 * 256, 256);
                let mut outstanding: VecDeque<u16> =
                    (0..4).map(|_| hog.issue(read, Bytes::Wanted(MIB))).collect();
                while let Some(cid) = outstanding.pop_front() {
                    hog.complete(cid).ok();
                    if !over.load(Ordering::Relaxed) {
                        outstanding.push_back(hog.issue(read, Bytes::Wanted(MIB)));
                    }
                }
            });
        }
        thread::sleep(Duration::from_millis(300));
        let longest = keep_checking(&mut witness, Duration::from_millis(1500));
        drop(end);
        longest
    });
    assert!(longest < PATIENCE / 2, "a round took {longest:?}");
}

/// The first half of a pair is kept from memory by its connection's share: its own second half must not be what
/// keeps it from there for good.
#[test]
fn a_fused_pair_does_not_wait_for_itself() {
    let rig = Rig::memory(1);
    let admin = rig.host().enabled();
    let mut queues: Vec<_> = (1..=35).map(|qid| rig.host().io(&admin, qid)).collect();
    let (mut io, mut small) = (queues.remove(0), queues.remove(0));
    // A write that is under way, and one of which a single block is taken from the last MiB of the pool.
    let large = vec![0x11; MIB];
    let write = io.issue(Command::blocks(opcode::io::WRITE, 1, 256, 256), Bytes::OnRequest(&large));
    io.await_word();
    let command = small.prepare(Command::blocks(opcode::io::WRITE, 1, 8, 1), Bytes::Wanted(4096));
    small.socket.send(&small.socket.capsule(&command, &[]));
    small.await_word();
    // Others take what is left, and then wait for more.
    for (index, hog) in queues.iter_mut().enumerate() {
        never_send(hog, 1);
        if index < 30 { hog.await_word() } else { hog.settle() }
    }
    let free = rig.server.stats().expect("running").cores[0].buffer_bytes_free;
    assert_eq!(free, MIB - 4096);
    let [old, new] = [[0; 4096], [0x22; 4096]];
    let halves = [(opcode::io::COMPARE, 1, &old), (opcode::io::WRITE, 2, &new)].map(
        |(opcode, fuse, data)| {
            let half = Command { flags: fuse, ..Command::blocks(opcode, 1, 5, 1) };
            io.issue(half, Bytes::InCapsule(data))
        },
    );
    // Now the write's data, which is asked for.
    io.complete(write).ok();
    for half in halves {
        io.complete(half).ok();
    }
    assert!(io.read(1, 5, 1, 4096) == new);
}

#[test]
fn a_violator_that_does_not_read_is_closed_all_the_same() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let (_admin, mut io) = rig.connect();
    stop_reading(&mut io, 128);
    // Not a PDU; and more of it, which nobody is to look at.
    let _ = io.socket.stream.write_all(&[0x99; 4096]);
    let begin = Instant::now();
    let connections = || rig.server.stats().expect("running").cores[0].connections;
    while connections() > 3 {
        assert!(begin.elapsed() < PATIENCE, "the violator is still there");
        keep_checking(&mut witness, Duration::from_millis(50));
    }
}

#[test]
fn slow_senders_hold_up_nobody() {
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let (_admin, mut io) = rig.connect();
    let data = [0x3c; 16384];
    let command = Command::blocks(opcode::io::WRITE, 1, 100, 4);
    let command = io.prepare(command, Bytes::InCapsule(&data));
    let capsule = io.socket.capsule(&command, &data);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Byte by byte through the header and into the data; all of it so would take long.
            let (single, rest) = capsule[..capsule.len() - 1].split_at(1000);
            for piece in single.chunks(1).chain(rest.chunks(64)) {
                io.socket.stream.write_all(piece).expect("connected");
                thread::sleep(Duration::from_micros(20));
            }
            done.store(true, Ordering::Relaxed);
        });
        let begin = Instant::now();
        while !done.load(Ordering::Relaxed) {
            assert!(keep_checking(&mut witness, Duration::from_millis(20)) < PATIENCE / 2);
            assert!(begin.elapsed() < 2 * PATIENCE);
        }
    });
    assert!(witness.io.read(1, 100, 4, 16384) == [0; 16384], "a byte is missing yet");
    io.socket.send(&capsule[capsule.len() - 1..]);
    io.complete(command.cid.get()).ok();
    assert!(witness.io.read(1, 100, 4, 16384) == data);
}

#[test]
fn abrupt_ends_with_io_in_flight_leave_nothing_behind() {
    let directory = directory();
    for (cores, delay) in [(1, 0), (2, 3)] {
        let rig = Rig::empty(cores);
        let delay = Duration::from_millis(delay);
        rig.add(1, file(&directory, 64 << 20, 12, cores, delay));
        let mut witness = rig.witness();
        witness.check();
        let free = |rig: &Rig| -> Vec<usize> {
            let stats = rig.server.stats().expect("running");
            stats.cores.iter().map(|core| core.buffer_bytes_free).collect()
        };
        let all = free(&rig);
        let block = [0xab; 4096];
        let large = vec![0xcd; 256 << 10];
        for round in 0..12u64 {
            // What the former one left at a slow disk may take longer than its successor is kept waiting.
            let mut admin = loop {
                let (queue, done) = rig.host().connect(0, CNTLID_DYNAMIC);
                if done.status.code() != Status::CONTROLLER_BUSY {
                    done.ok();
                    break queue;
                }
            };
            admin.enable();
            for qid in 1..=2 {
                let mut io = rig.host().io(&admin, qid);
                for index in 0..24u64 {
                    let slba = 512 + index * 64;
                    let at = |opcode, blocks| Command::blocks(opcode, 1, slba, blocks);
                    io.issue(at(opcode::io::WRITE, 1), Bytes::InCapsule(&block));
                    io.issue(at(opcode::io::READ, 64), Bytes::Wanted(256 << 10));
                    io.issue(at(opcode::io::WRITE, 64), Bytes::OnRequest(&large));
                    io.issue(at(opcode::io::COMPARE, 1), Bytes::InCapsule(&block));
                }
                // Some of it answered, some in the middle, some not begun.
                for _ in 0..round * 2 {
                    io.step().expect("connected");
                }
                if round % 3 == 0 {
                    io.socket.stream.shutdown(Shutdown::Both).expect("connected");
                }
            }
            witness.check();
        }
        let begin = Instant::now();
        while free(&rig) != all {
            assert!(begin.elapsed() < PATIENCE, "buffers are lost: {:?} of {all:?}", free(&rig));
            thread::sleep(Duration::from_millis(5));
        }
        // Every block is what some command made of it, whole.
        for index in 0..24u64 {
            let read = witness.io.read(1, 512 + index * 64, 64, 256 << 10);
            for block in read.chunks(4096) {
                assert!([0, 0xab, 0xcd].contains(&block[0]), "{:#x}", block[0]);
                assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
            }
        }
        rig.server.stop().expect("stops");
        std::fs::remove_file(directory.path().join("volume.img")).expect("made above");
    }
}

#[test]
fn the_server_stops_while_connections_are_busy() {
    let directory = directory();
    for cores in [1, 2] {
        let rig = Rig::empty(cores);
        rig.add(1, file(&directory, 64 << 20, 12, cores, Duration::from_millis(30)));
        rig.add(2, memory(16 << 20, 12, cores));
        let admin = rig.host().enabled();
        let mut queues: Vec<_> = (1..=4).map(|qid| rig.host().io(&admin, qid)).collect();
        stop_reading(&mut queues[0], 64);
        never_send(&mut queues[1], 64);
        let block = [1; 4096];
        for index in 0..64 {
            let write = Command::blocks(opcode::io::WRITE, 1, index, 1);
            queues[2].issue(write, Bytes::InCapsule(&block));
        }
        let mut half_open = Socket::open(rig.address);
        let mut busy = queues.pop().expect("four");
        let worker = thread::spawn(move || {
            let read = Command::blocks(opcode::io::READ, 2, 0, 1);
            loop {
                let cid = busy.issue_if_open(read, Bytes::Wanted(4096));
                let Some(cid) = cid else { return };
                if busy.try_complete(cid).is_err() {
                    return;
                }
            }
        });
        thread::sleep(Duration::from_millis(50));
        let begin = Instant::now();
        rig.server.stop().expect("stops");
        assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
        worker.join().expect("sees the end");
        let mut byte = [0];
        assert!(!matches!(half_open.stream.read(&mut byte), Ok(1..)), "closed");
        assert!(TcpStream::connect(rig.address).is_err(), "nobody listens any more");
        std::fs::remove_file(directory.path().join("volume.img")).expect("made above");
    }
}

/// A host with large writes under way and a queue full of small ones behind them: all are waited
/// for and none is refused, however long the pool is empty for this connection.
#[test]
fn small_writes_behind_large_ones_are_not_refused() {
    const LARGE: usize = 1 << 20;
    let rig = Rig::empty(1);
    let directory = directory();
    rig.add(1, file(&directory, 64 << 20, 12, 1, Duration::ZERO));
    let (_admin, mut io) = rig.connect();
    let (large, small) = (vec![1; LARGE], vec![2; 16384]);
    let mut cids = Vec::new();
    // More than this connection's share of the pool, none of it sent yet.
    for index in 0..24 {
        let write = Command::blocks(opcode::io::WRITE, 1, index * 256, 256);
        cids.push(io.issue(write, Bytes::OnRequest(&large)));
    }
    for index in 0..100 {
        let write = Command::blocks(opcode::io::WRITE, 1, 8192 + index * 4, 4);
        cids.push(io.issue(write, Bytes::InCapsule(&small)));
    }
    for cid in cids {
        io.complete(cid).ok();
    }
    assert!(io.read(1, 8192 + 99 * 4, 4, 16384) == small);
    assert!(io.read(1, 23 * 256, 256, LARGE) == large);
}

/// Waits until so many bytes of the pool are free.
#[track_caller]
fn await_free(rig: &Rig, core: usize, bytes: usize) {
    let begin = Instant::now();
    while rig.server.stats().expect("running").cores[core].buffer_bytes_free < bytes {
        assert!(begin.elapsed() < PATIENCE, "memory is lost");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whoever is told that the connection ends sends elsewhere what it has no answer to.
#[test]
fn what_waits_is_not_begun_once_either_side_has_ended_the_connection() {
    let directory = directory();
    let rig = Rig::empty(1);
    rig.add(1, file(&directory, 64 << 20, 12, 1, Duration::ZERO));
    let admin = rig.host().enabled();
    let mut reader = rig.host().io(&admin, 100);
    let all = rig.server.stats().expect("running").cores[0].buffer_bytes_free;
    for by_host in [false, true] {
        let mut io = rig.host().io(&admin, 99);
        never_send(&mut io, 1);
        assert_eq!(io.socket.pdu().expect("an R2T").common.kind, Kind::R2T);
        // Others take what is left, and one waits for more.
        let mut hogs: Vec<_> = (1..=32).map(|qid| rig.host().io(&admin, qid)).collect();
        for (index, hog) in hogs.iter_mut().enumerate() {
            never_send(hog, 1);
            if index < 31 { hog.await_word() } else { hog.settle() }
        }
        for slba in 0..70 {
            let write = Command::blocks(opcode::io::WRITE, 1, slba, 1);
            io.issue(write, Bytes::InCapsule(&[0x5a; 4096]));
        }
        io.settle();
        // A core that sleeps looks at a connection again only when that has something to say.
        thread::sleep(Duration::from_millis(50));
        drop(hogs);
        await_free(&rig, 0, all - MIB);
        if by_host {
            let mut end = vec![0; 24 + 8];
            end[..5].copy_from_slice(&[Kind::H2C_TERM_REQ.0, 0, 24, 0, 32]);
            end[8] = 2;
            io.socket.send(&end);
            io.socket.expect_end();
        } else {
            let unknown = io.socket.h2c(1, 999, 0, &[0; 4096], true);
            io.socket.send(&unknown);
            let field = FatalError::INVALID_HEADER_FIELD;
            io.socket.expect_termination("an unknown tag", field, 10, &unknown);
        }
        await_free(&rig, 0, all);
        assert!(reader.read(1, 0, 70, 70 * 4096).iter().all(|byte| *byte == 0), "{by_host}");
    }
}

/// A connection whose commands wait is not read, so its end is behind what nobody looks at. A host
/// that resets, as Linux does, is heard also where what it sent does not fit into the socket.
#[test]
fn what_waits_is_not_begun_once_its_host_has_gone() {
    // Just more than it reads, which fits; and more than fits.
    for (writes, resets) in [(70, false), (100, true)] {
        let directory = directory();
        let rig = Rig::empty(2);
        rig.add(1, file(&directory, 64 << 20, 12, 2, Duration::ZERO));
        let admin = rig.host().enabled();
        let [mut io, mut other] = [1, 2].map(|qid| rig.host().io(&admin, qid));
        io.settle();
        let all = rig.server.stats().expect("running").cores[1].buffer_bytes_free;
        // Odd ones are on the core of the first queue.
        let mut hogs: Vec<_> = (1..=32).map(|at| rig.host().io(&admin, 2 * at + 1)).collect();
        for hog in &mut hogs {
            never_send(hog, 1);
            hog.await_word();
        }
        for slba in 0..writes {
            let write = Command::blocks(opcode::io::WRITE, 1, slba, 1);
            io.issue(write, Bytes::InCapsule(&[1; 4096]));
        }
        // Each core answers that in a turn of its own: it has read as much as it takes, and sleeps.
        for _ in 0..20 {
            rig.server.stats().expect("running");
            thread::sleep(Duration::from_millis(5));
        }
        if resets {
            sockopt::set_socket_linger(&io.socket.stream, Some(Duration::ZERO)).expect("a socket");
            drop(io);
        } else {
            io.socket.stream.shutdown(Shutdown::Both).expect("connected");
        }
        for slba in (0..100).step_by(4) {
            other.write(1, slba, 4, &[2; 4 * 4096]);
        }
        drop(hogs);
        await_free(&rig, 1, all);
        let connections = || rig.server.stats().expect("running").cores[1].connections;
        let begin = Instant::now();
        while connections() != 0 {
            assert!(begin.elapsed() < PATIENCE, "the connection is still there");
        }
        let read = other.read(1, 0, 100, 100 * 4096);
        assert!(read.iter().all(|byte| *byte == 2), "resets: {resets}");
    }
}
