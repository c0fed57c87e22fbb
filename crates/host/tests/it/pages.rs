//! Data that the ring moves between socket and registered memory, as it does with the pages of a block
//! device's requests.

use crate::rig;

use host::{Failover, Options, Path};
use namespace::Namespace;
use namespace::layer::multipath::{Multipath, MultipathOptions};
use nvme::{Status, opcode};
use rig::pages::{HALF_MS, PLAIN_MS, Pages, kernel_moves_pages};
use rig::relay::Relay;
use rig::splitter::{Splitter, When};
use rig::tamper::Tamper;
use rig::{Core, PATIENCE, Target, connect, options, pattern, read, write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An I/O queue's connection is the second; its ICResp and the answer to Connect come first.
const IO: usize = 1;
const FIRST: usize = 2;

const CAPSULE_RESP: u8 = 0x05;
const C2H_DATA: u8 = 0x07;
const R2T: u8 = 0x09;

const SIZES: [usize; 9] = [512, 1024, 4096, 4608, 8192, 16384, 20480, 131_072, 1 << 20];

/// Bytes from one place to the next.
const STEP: u64 = 262_144;

/// Of a pattern: what was written in `round` at place `at`.
fn seed(round: u64, at: u64) -> u64 {
    round * 1000 + at
}

/// A path that takes pages, and pages; `None` where the kernel moves none.
fn path(address: SocketAddr, options: &Options) -> Option<(Arc<Path>, Arc<Pages>)> {
    let path = connect(address, options);
    takes(&path).then(|| (path, Arc::new(Pages::new())))
}

/// Whether a path takes pages; that it does where the kernel moves them.
fn takes(path: &Path) -> bool {
    if !path.takes_registered() {
        assert!(!kernel_moves_pages(), "this kernel moves pages, and the path takes none");
        eprintln!("this kernel does not move registered buffers through sockets");
    }
    path.takes_registered()
}

/// Writes and reads back every size, one at a time, then many at once, among them some whose data is not
/// in pages.
fn check(core: &Core) {
    for (seed, size) in SIZES.into_iter().enumerate() {
        let data = pattern(seed as u64, size);
        core.write(4096 * seed as u64, &data);
        assert!(core.read(4096 * seed as u64, size) == data, "{size} bytes");
    }
    for size in [512, 4096, 16384, 65536, 262_144] {
        let count = ((8 << 20) / size).min(200);
        let issue = |at: usize, command, data| match at % 5 {
            0 => core.issue_within(command, data, PLAIN_MS),
            _ => core.issue(command, data),
        };
        let answers: Vec<_> = (0..count)
            .map(|at| issue(at, write((at * size) as u64, size), pattern((at + size) as u64, size)))
            .collect();
        for answer in answers {
            answer.recv_timeout(PATIENCE).expect("an answer").ok();
        }
        let answers: Vec<_> =
            (0..count).map(|at| issue(at, read((at * size) as u64, size), vec![0; size])).collect();
        for (at, answer) in answers.into_iter().enumerate() {
            let data = answer.recv_timeout(PATIENCE).expect("an answer").ok().data;
            assert!(data == pattern((at + size) as u64, size), "{at} of {size} bytes");
        }
    }
}

#[test]
fn all_sizes_and_depths() {
    let target = Target::memory();
    let Some((path, pages)) = path(target.address, &options()) else { return };
    check(&Core::with_pages(path, &pages));
    pages.check();
}

#[test]
fn with_header_digests_and_flow_control() {
    let target = Target::memory();
    let mut options = Options { header_digest: true, flow_control: true, ..options() };
    options.association.queue_entries = 8;
    let Some((path, pages)) = path(target.address, &options) else { return };
    check(&Core::with_pages(path, &pages));
    pages.check();
}

#[test]
fn reads_and_writes_at_once() {
    let target = Target::memory();
    let Some((path, pages)) = path(target.address, &options()) else { return };
    let core = Core::with_pages(path, &pages);
    for at in 0..32 {
        core.write(at * STEP, &pattern(at, 262_144));
    }
    for round in 0..4 {
        let answers: Vec<_> = (0..64u64)
            .map(|at| match at % 2 {
                0 => core.issue(read(at / 2 * STEP, 262_144), vec![0; 262_144]),
                _ => core.issue(write((at / 2 + 32) * STEP, 262_144), pattern(at, 262_144)),
            })
            .collect();
        for (at, answer) in answers.into_iter().enumerate() {
            let data = answer.recv_timeout(PATIENCE).expect("an answer").ok().data;
            let seed = if at % 2 == 0 { at / 2 } else { at };
            assert!(data == pattern(seed as u64, 262_144), "{at} in round {round}");
        }
    }
    drop(core);
    pages.check();
}

#[test]
fn pages_are_taken_where_the_kernel_moves_them() {
    let target = Target::memory();
    let taken = connect(target.address, &options()).takes_registered();
    assert_eq!(taken, kernel_moves_pages());
}

/// A digest is made of the data, and checked with it: somebody has to see it.
#[test]
fn data_digests_need_the_data() {
    let target = Target::memory();
    let options = Options { data_digest: true, ..options() };
    assert!(!connect(target.address, &options).takes_registered());
}

#[test]
fn only_reads_and_writes_have_pages() {
    let target = Target::memory();
    let Some((path, pages)) = path(target.address, &options()) else { return };
    let core = Core::with_pages(path, &pages);
    let mut command = write(0, 4096);
    command.opcode = opcode::io::COMPARE;
    let done = core.command(command, vec![0; 4096]);
    assert_eq!(done.status.code(), Status::INVALID_FIELD);
    let done = core.issue_within(command, vec![0; 4096], PLAIN_MS);
    let done = done.recv_timeout(PATIENCE).expect("an answer");
    assert!(done.status.is_success(), "{}", done.status);
    drop(core);
    pages.check();
}

/// Commands that take longer are given up with their connection, soon.
fn impatient() -> Options {
    let mut options = Options { io_timeout: Duration::from_secs(4), ..options() };
    options.association.keep_alive_tmo = Duration::from_secs(2);
    options
}

/// The header of a PDU that is all about command `cid`: C2HData with LAST and SUCCESS, or R2T.
fn about(kind: u8, cid: u16, bytes: u32) -> Vec<u8> {
    let (flags, pdo, plen) = if kind == C2H_DATA { (0xc, 24, 24 + bytes) } else { (0, 0, 24) };
    let mut header = vec![kind, flags, 24, pdo];
    header.extend(plen.to_le_bytes());
    header.extend(cid.to_le_bytes());
    header.extend([0; 6]);
    header.extend(bytes.to_le_bytes());
    header.extend([0; 4]);
    header
}

/// Half of the data comes, and no more: the kernel waits for the rest with the request's pages. When the
/// read has come back it comes after all.
#[test]
fn a_read_that_stalls_has_its_pages_back_first() {
    const BYTES: u32 = 262_144;
    let target = Target::memory();
    let relay = Relay::to(target.address);
    let Some((path, pages)) = path(relay.address, &impatient()) else { return };
    let core = Core::with_pages(path.clone(), &pages);
    relay.hold(Some(IO));
    let reading = core.issue(read(0, BYTES as usize), vec![0xee; BYTES as usize]);
    core.settle();
    // Identifiers are given in order.
    assert!(relay.inject(IO, &about(C2H_DATA, 0, BYTES)));
    assert!(relay.inject(IO, &vec![0x55; BYTES as usize / 2]));
    let done = reading.recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(done.status, Status::HOST_PATHING_ERROR);
    let (came, rest) = done.data.split_at(BYTES as usize / 2);
    assert!(came.iter().all(|byte| *byte == 0x55), "what came is there");
    assert!(rest.iter().all(|byte| *byte == 0xee), "and no more");
    relay.inject(IO, &vec![0x66; BYTES as usize / 2]);
    std::thread::sleep(Duration::from_millis(200));
    pages.check();
    relay.hold(None);
    core.until_served(write(0, 8192), &pattern(1, 8192));
    assert!(core.until_served(read(0, 8192), &[0; 8192]) == pattern(1, 8192));
}

/// The ring has the end of the last command's data: from then on the connection is idle, and watched.
#[test]
fn a_peer_that_leaves_behind_its_last_data_is_noticed() {
    const BYTES: u32 = 65_536;
    let target = Target::memory();
    let relay = Relay::to(target.address);
    let mut options = options();
    // Nobody is to notice by that.
    options.association.keep_alive_tmo = 4 * PATIENCE;
    let Some((path, pages)) = path(relay.address, &options) else { return };
    let core = Core::with_pages(path.clone(), &pages);
    relay.hold(Some(IO));
    let reading = core.issue(read(0, BYTES as usize), vec![0; BYTES as usize]);
    core.settle();
    assert!(relay.inject(IO, &about(C2H_DATA, 0, BYTES)));
    assert!(relay.inject(IO, &vec![0x55; BYTES as usize / 2]));
    // Long enough for the reactor to go to sleep, here and below.
    std::thread::sleep(Duration::from_secs(1));
    assert!(relay.inject(IO, &vec![0x55; BYTES as usize / 2]));
    let data = reading.recv_timeout(PATIENCE).expect("an answer").ok().data;
    assert!(data.iter().all(|byte| *byte == 0x55));
    std::thread::sleep(Duration::from_secs(1));
    relay.swallow(true);
    relay.close(IO);
    core.await_access(|access| !access.is_usable());
    relay.swallow(false);
    relay.hold(None);
    core.await_access(namespace::Access::is_usable);
    core.write(0, &pattern(1, 8192));
    assert!(core.read(0, 8192) == pattern(1, 8192));
    drop(core);
    pages.check();
}

/// Asks for the data of writes that fill the socket, whose peer does not read. Each write's status.
fn stalled_writes(options: &Options, said: &[u8]) -> Option<Vec<Status>> {
    const WRITES: u16 = 24;
    const BYTES: u32 = 1 << 20;
    let target = Target::memory();
    let relay = Relay::to(target.address);
    let (path, pages) = path(relay.address, options)?;
    let core = Core::with_pages(path.clone(), &pages);
    relay.hold(Some(IO));
    let answers: Vec<_> = (0..u64::from(WRITES))
        .map(|at| core.issue(write(at << 20, BYTES as usize), vec![at as u8; BYTES as usize]))
        .collect();
    core.settle();
    for cid in 0..WRITES {
        assert!(relay.inject(IO, &about(R2T, cid, BYTES)));
    }
    std::thread::sleep(Duration::from_millis(200));
    relay.inject(IO, said);
    let statuses: Vec<_> =
        answers.iter().map(|it| it.recv_timeout(PATIENCE).expect("an answer").status).collect();
    relay.hold(None);
    core.until_served(write(0, 8192), &pattern(1, 8192));
    assert!(core.until_served(read(0, 8192), &[0; 8192]) == pattern(1, 8192));
    drop(core);
    pages.check();
    Some(statuses)
}

#[test]
fn writes_that_stall_have_their_pages_back_first() {
    for failover in [Failover::Fast, options().failover] {
        let options = Options { failover, ..impatient() };
        let Some(statuses) = stalled_writes(&options, &[]) else { return };
        let lost = |status: &Status| *status == Status::HOST_PATHING_ERROR;
        assert!(statuses.iter().all(lost), "{statuses:?}");
    }
}

/// Controllers may: the rest of the data is of no use to them then.
#[test]
fn writes_that_are_answered_while_their_data_is_sent() {
    const WRITES: u16 = 24;
    let answer = |cid: u16| {
        let mut answer = vec![CAPSULE_RESP, 0, 24, 0, 24, 0, 0, 0];
        answer.extend([0; 12]);
        answer.extend(cid.to_le_bytes());
        answer.extend((Status::WRITE_FAULT.0 << 1).to_le_bytes());
        answer
    };
    let said: Vec<u8> = (0..WRITES).flat_map(answer).collect();
    let patient = Options { io_timeout: Duration::from_secs(4), ..options() };
    let Some(statuses) = stalled_writes(&patient, &said) else { return };
    assert!(statuses.iter().all(|status| *status == Status::WRITE_FAULT), "{statuses:?}");
}

/// Writes by a controller that asks for `piece` bytes at a time: one connection does.
fn split_writes(bytes: usize, piece: usize, when: When, rounds: u64) {
    let target = Target::memory();
    let splitter = Splitter::before(target.address, piece, when);
    let mut options = options();
    // Its writes are traffic for the host, which spares Keep Alives for them, and the target sees none of them.
    options.association.keep_alive_tmo = 4 * PATIENCE;
    let Some((path, pages)) = path(splitter.address, &options) else { return };
    let core = Core::with_pages(path, &pages);
    for round in 0..rounds {
        let data = pattern(round, bytes);
        core.write(0, &data);
        assert!(splitter.written() == data, "round {round}");
    }
    assert_eq!(splitter.connections(), 2, "that of the admin queue, and ours");
    drop(core);
    pages.check();
}

#[test]
fn writes_in_pieces() {
    split_writes(262_144, 16_384, When::Read, 40);
}

/// The end of a piece can be with the controller before we are told that it was sent; more so if it asks
/// for the next before that.
#[test]
fn the_next_piece_is_asked_for_while_one_is_sent() {
    split_writes(1 << 20, 1 << 18, When::Stuck, 3);
}

/// Another path would fare no better, so that nobody is to try one.
#[test]
fn pages_that_the_kernel_does_not_take() {
    const BYTES: usize = 131_072;
    let target = Target::memory();
    let Some((path, pages)) = path(target.address, &options()) else { return };
    let core = Core::with_pages(path, &pages);
    for command in [write(0, BYTES), read(0, BYTES)] {
        let done = core.issue_within(command, vec![0x77; BYTES], HALF_MS);
        let done = done.recv_timeout(PATIENCE).expect("an answer");
        assert_eq!(done.status, Status::DATA_TRANSFER_ERROR.dnr(), "{}", done.status);
        core.await_access(namespace::Access::is_usable);
        core.write(0, &pattern(1, BYTES));
        assert!(core.read(0, BYTES) == pattern(1, BYTES));
    }
    drop(core);
    pages.check();
}

#[test]
fn a_killed_target_leaves_nothing_unanswered_and_nothing_half_done() {
    const BYTES: usize = 262_144;
    let volume = rig::memory(32 << 20, 9, 2);
    let mut target = Target::serve(volume.clone(), 1, 0);
    let port = target.address.port();
    let Some((path, pages)) = path(target.address, &options()) else { return };
    let core = Core::with_pages(path, &pages);
    for round in 0..4u64 {
        core.await_access(namespace::Access::is_usable);
        let answers: Vec<_> = (0..120u64)
            .map(|at| match at % 2 {
                0 => core.issue(write(at / 2 * STEP, BYTES), pattern(seed(round, at / 2), BYTES)),
                _ => core.issue(read(at / 2 * STEP, BYTES), vec![0; BYTES]),
            })
            .collect();
        let first = answers[round as usize].recv_timeout(PATIENCE).expect("an answer");
        drop(first);
        drop(target);
        let mut written = Vec::new();
        for (at, answer) in answers.iter().enumerate().filter(|(at, _)| *at != round as usize) {
            let done = answer.recv_timeout(PATIENCE).expect("an answer");
            assert!(done.status.is_success() || done.status.sct() == 3, "{}", done.status);
            if at % 2 == 0 && done.status.is_success() {
                written.push(at as u64 / 2);
            }
        }
        core.await_access(|access| !access.is_usable());
        target = Target::serve(volume.clone(), 1, port);
        core.await_access(namespace::Access::is_usable);
        for at in written {
            assert!(core.read(at * STEP, BYTES) == pattern(seed(round, at), BYTES), "{at}");
        }
    }
    drop(core);
    pages.check();
}

/// Reads 8 KiB while the PDU that answers is edited; the status.
fn tampered(edit: impl Fn(&mut Vec<u8>) -> bool + Send + Sync + 'static) -> Option<Status> {
    let target = Target::memory();
    let tamper = Tamper::with(target.address, IO, FIRST, Arc::new(edit));
    let (path, pages) = path(tamper.address, &options())?;
    let core = Core::with_pages(path, &pages);
    let done = core.command(read(0, 8192), vec![0xee; 8192]);
    assert!(tamper.done.load(Ordering::SeqCst), "the PDU was edited");
    let again = core.until_served(read(0, 8192), &[0xee; 8192]);
    assert!(again.iter().all(|byte| *byte == 0));
    drop(core);
    pages.check();
    Some(done.status)
}

#[test]
fn data_that_is_cut_or_too_much() {
    type Edit = fn(&mut Vec<u8>) -> bool;
    let lost: [Edit; 6] = [
        |pdu| {
            pdu.truncate(pdu.len() / 2);
            false
        },
        |pdu| {
            pdu.truncate(5);
            false
        },
        // More data than was asked for.
        |pdu| {
            pdu[4..8].copy_from_slice(&(24 + 16384u32).to_le_bytes());
            pdu[16..20].copy_from_slice(&16384u32.to_le_bytes());
            pdu.resize(24 + 16384, 0x77);
            true
        },
        |pdu| {
            pdu[12..16].copy_from_slice(&(1u32 << 30).to_le_bytes());
            true
        },
        // Its data begins within its header, or far behind it.
        |pdu| {
            pdu[3] = 20;
            true
        },
        |pdu| {
            pdu[3] = 0xff;
            true
        },
    ];
    for (number, edit) in lost.into_iter().enumerate() {
        let Some(status) = tampered(edit) else { return };
        assert_eq!(status, Status::HOST_PATHING_ERROR, "{number}");
    }
}

#[test]
fn success_without_data_is_no_success() {
    let status = tampered(|pdu| {
        let cid = [pdu[8], pdu[9]];
        *pdu = vec![CAPSULE_RESP, 0, 24, 0, 24, 0, 0, 0];
        pdu.extend([0; 12]);
        pdu.extend(cid);
        pdu.extend([0; 2]);
        true
    });
    assert!(matches!(status, None | Some(Status::TRANSIENT_TRANSPORT)), "{status:?}");
}

/// The data in two PDUs, aligned as nobody asked for, with an answer of its own.
#[test]
fn data_in_pieces() {
    let status = tampered(|pdu| {
        let data = pdu.split_off(24);
        let mut first = pdu.clone();
        first[1] = 0;
        first[3] = 64;
        first[4..8].copy_from_slice(&(64 + 512u32).to_le_bytes());
        first[16..20].copy_from_slice(&512u32.to_le_bytes());
        first.resize(64, 0x99);
        first.extend(&data[..512]);
        let mut second = pdu.clone();
        second[1] = 0x4;
        second[4..8].copy_from_slice(&(24 + 7680u32).to_le_bytes());
        second[12..16].copy_from_slice(&512u32.to_le_bytes());
        second[16..20].copy_from_slice(&7680u32.to_le_bytes());
        second.extend(&data[512..]);
        let mut answer = vec![CAPSULE_RESP, 0, 24, 0, 24, 0, 0, 0];
        answer.extend([0; 12]);
        answer.extend(&pdu[8..10]);
        answer.extend([0; 2]);
        *pdu = [first, second, answer].concat();
        true
    });
    assert!(matches!(status, None | Some(Status::SUCCESS)), "{status:?}");
}

/// By two paths, of which one dies after the other: nobody above notices.
#[test]
fn failover_with_pages() {
    const BYTES: usize = 65_536;
    let volume = rig::memory(32 << 20, 9, 2);
    let mut targets = [0, 0].map(|port| Some(Target::serve(volume.clone(), 1, port)));
    let addresses = [0, 1].map(|at| targets[at].as_ref().expect("it serves").address);
    let paths = host::open(&addresses.map(rig::address), &options(), "").expect("paths");
    if !takes(&paths[0]) {
        return;
    }
    let paths = paths.into_iter().map(|path| path as Arc<dyn Namespace>).collect();
    let namespace = Multipath::new(paths, MultipathOptions::default()).expect("one namespace");
    let pages = Arc::new(Pages::new());
    let core = Core::with_pages(namespace.clone(), &pages);
    for round in 0..6u64 {
        let until = Instant::now() + PATIENCE;
        while !namespace.paths().iter().all(|path| path.access.is_usable()) {
            assert!(Instant::now() < until, "{:?}", namespace.paths());
            std::thread::sleep(Duration::from_millis(2));
        }
        let dying = (round % 2) as usize;
        let answers: Vec<_> = (0..200u64)
            .map(|at| core.issue(write(at << 16, BYTES), pattern(seed(round, at), BYTES)))
            .collect();
        let target = targets[dying].take();
        drop(target);
        for answer in answers {
            answer.recv_timeout(PATIENCE).expect("an answer").ok();
        }
        targets[dying] = Some(Target::serve(volume.clone(), 1, addresses[dying].port()));
        for at in 0..200 {
            assert!(core.read(at << 16, BYTES) == pattern(seed(round, at), BYTES), "{at}");
        }
    }
    drop(core);
    pages.check();
}
