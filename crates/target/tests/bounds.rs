//! What strangers and fools can make the server keep: descriptors and memory are bounded.
//!
//! The tests here measure the memory of the whole process and take turns.

mod host;

use double::Double;
use host::rig::{Rig, directory, file, memory};
use host::{Bytes, Host, PATIENCE, ic_req, narrow};
use namespace::layer::delay::{Delay, Delays};
use namespace::layer::guard::{Guard, GuardOptions};
use nvme::copy::{self, Entry, Format};
use nvme::fabrics::DISCOVERY_NQN;
use nvme::log::{GetLogPage, Lid};
use nvme::{Command, Status, opcode};
use nvme_tcp::pdu::dgst;
use std::fmt;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Held by the test that measures.
static TURN: Mutex<()> = Mutex::new(());

/// Lets this process have as many descriptors as it may.
fn raise_descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one valid rlimit each.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    limit.rlim_max
}

/// Resident memory of this process, server and host, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages: usize = statm.split(' ').nth(1).expect("two numbers").parse().expect("a number");
    pages * 4096
}

#[test]
fn ten_thousand_half_open_connections_shut_nobody_out() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = raise_descriptor_limit();
    assert!(limit >= 12_000, "this needs 12,000 descriptors (ulimit -Hn), not {limit}");
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    witness.check();
    let before = resident();
    let request = ic_req(|_| {});
    let mut crowd = Vec::new();
    for index in 0..10_000u32 {
        // Several addresses of the server: ports are reckoned for each.
        let address = SocketAddr::from(([127, 0, (index % 4) as u8, 1], rig.address.port()));
        let mut stream = TcpStream::connect(address).expect("the server accepts");
        // Nothing, part of an ICReq, or all of it; those dropped already may refuse it.
        let _ = match index % 3 {
            0 => Ok(()),
            1 => stream.write_all(&request[..100]),
            _ => stream.write_all(&request),
        };
        crowd.push(stream);
        if index % 500 == 499 {
            witness.check();
        }
    }
    let mut late = rig.witness();
    late.check();
    witness.check();
    let stats = rig.server.stats().expect("running");
    let open: usize = stats.cores.iter().map(|core| core.connections).sum();
    assert!(open <= 1024 + 4, "{open} connections are open");
    let grown = resident().saturating_sub(before);
    assert!(grown < 48 * MIB, "{} MiB more are resident", grown / MIB);
    drop(crowd);
    late.check();
    witness.check();
}

#[test]
fn answers_that_are_not_read_are_bounded() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let (_admin, mut io) = rig.connect();
    narrow(&io.socket);
    let before = resident();
    // One command that waits for its data, and its identifier again and again.
    let command = io.prepare(Command::blocks(opcode::io::WRITE, 1, 0, 8), Bytes::Wanted(32768));
    let flood = io.socket.capsule(&command, &[]).repeat(1000);
    let begin = Instant::now();
    while io.socket.stream.write_all(&flood).is_ok() {
        assert!(begin.elapsed() < PATIENCE, "the flood is not stopped");
    }
    witness.check();
    assert!(resident().saturating_sub(before) < 64 * MIB);
}

/// As much as the pool has and a little more, of the 256 MiB that are asked for.
#[test]
fn reads_that_are_not_taken_are_bounded() {
    const READS: u64 = 64;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = directory();
    for volume in ["memory", "file"] {
        let rig = Rig::empty(1);
        match volume {
            "file" => rig.add(1, file(&directory, 64 << 20, 12, 1, Duration::ZERO)),
            _ => rig.add(1, memory(64 << 20, 12, 1)),
        }
        let mut witness = rig.witness();
        // The volume's own memory is there before.
        for at in 0..READS {
            let data = vec![at as u8; MIB];
            witness.io.write(1, at * 256, 256, &data);
        }
        witness.check();
        let pool = rig.server.stats().expect("running").cores[0].buffer_bytes;
        let host = Host { dgst: dgst::DATA, ..rig.host() };
        let admin = host.enabled();
        let before = resident();
        let grown = || resident().saturating_sub(before);
        let mut hogs: Vec<_> = (1..=4).map(|qid| host.io(&admin, qid)).collect();
        let mut asked = Vec::new();
        for hog in &mut hogs {
            narrow(&hog.socket);
            let read = |at: u64| Command::blocks(opcode::io::READ, 1, at * 256, 256);
            asked = (0..READS).map(|at| hog.issue(read(at), Bytes::Wanted(MIB))).collect();
            hog.await_word();
        }
        for _ in 0..20 {
            witness.check();
            std::thread::sleep(Duration::from_millis(10));
            assert!(grown() < pool + 16 * MIB, "{volume}: {} MiB more are resident", grown() / MIB);
        }
        // Whoever takes them after all has all of them.
        let mut last = hogs.pop().expect("four");
        for (at, cid) in asked.into_iter().enumerate() {
            let data = last.complete(cid).ok().data;
            assert!(data.len() == MIB && data[MIB - 1] == at as u8, "{volume}, read {at}");
        }
        assert!(grown() < pool + 16 * MIB, "{volume}: {} MiB more are resident", grown() / MIB);
        rig.server.stop().expect("stops");
    }
}

#[test]
fn admin_answers_that_are_not_read_are_bounded_and_all_come_in_the_end() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    let (mut admin, _io) = rig.connect();
    narrow(&admin.socket);
    let before = resident();
    // A few bytes that cost the controller as much as is asked for.
    let command = page(Lid::SMART, MIB);
    let cids: Vec<u16> = (0..30).map(|_| admin.issue(command, Bytes::Wanted(MIB))).collect();
    for _ in 0..20 {
        witness.check();
        std::thread::sleep(Duration::from_millis(10));
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 8 * MIB, "{} MiB more are resident", grown / MIB);
    for cid in cids {
        assert_eq!(admin.complete(cid).ok().data.len(), MIB);
    }
}

/// Get Log Page of so many bytes of page `lid`.
fn page(lid: Lid, bytes: usize) -> Command {
    let page = GetLogPage { bytes: bytes as u64, lid, ..GetLogPage::of(&Command::default()) };
    Command { nsid: u32::MAX.into(), ..page.command() }
}

#[test]
fn admin_answers_that_are_not_read_are_bounded_however_many_hosts_there_are() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = Rig::memory(1);
    let (mut admin, mut io) = rig.connect();
    let discovery = Host { nqn: DISCOVERY_NQN.into(), kato_ms: u32::MAX, ..rig.host() };
    let before = resident();
    let long = page(Lid::SMART, MIB);
    let mut is_refused = false;
    let ask = |_| {
        let mut queue = discovery.enabled();
        narrow(&queue.socket);
        // The kernel takes some.
        for _ in 0..8 {
            queue.issue(page(Lid::DISCOVERY, MIB), Bytes::Wanted(MIB));
        }
        queue.await_word();
        // Before those who take nothing have been dropped, if it takes long to ask.
        is_refused = is_refused || {
            let status = admin.command(long, Bytes::Wanted(MIB)).status;
            assert!(status.is_success() || status == Status::COMMAND_INTERRUPTED, "{status}");
            !status.is_success()
        };
        queue
    };
    let crowd: Vec<_> = (0..200).map(ask).collect();
    assert!(is_refused, "it has room for all of them");
    // Others get what is short, and whatever they want when those who take nothing have been dropped.
    admin.command(page(Lid::SMART, 512), Bytes::Wanted(512)).ok();
    io.read(1, 0, 1, 4096);
    let grown = resident().saturating_sub(before);
    assert!(grown < 96 * MIB, "{} MiB more are resident", grown / MIB);
    let begin = Instant::now();
    while !admin.command(long, Bytes::Wanted(MIB)).status.is_success() {
        assert!(begin.elapsed() < PATIENCE, "nobody was dropped");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(crowd);
}

/// A Copy within namespace `nsid` of as many ranges as there may be, and its list.
fn longest_copy(nsid: u32) -> (Command, Vec<u8>) {
    let (format, entry) = (Format::Short, Entry { nsid: 0, slba: 0, blocks: 1, fast_only: false });
    let mut list = vec![0; 128 * format.entry_bytes()];
    list.chunks_exact_mut(format.entry_bytes()).for_each(|bytes| entry.write(format, bytes));
    (copy::command(nsid, 1000, 128, format), list)
}

#[test]
fn copies_that_never_end_are_bounded_however_many_hosts_have_them() {
    const HOSTS: u64 = 128;
    const COPIES: u64 = 120;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = Rig::memory(1);
    let mut witness = rig.witness();
    // A volume that nothing comes back from while the test lasts.
    let hung = Delays { write: PATIENCE * 10, ..Delays::default() };
    let hung = Delay::new(memory(64 << 20, 12, 1), hung);
    rig.add(2, Guard::new(hung, GuardOptions::default()));
    let refused = || {
        let namespaces = rig.server.stats().expect("running").namespaces;
        namespaces.iter().map(|namespace| namespace.counted.errors).sum::<u64>()
    };
    let (command, list) = longest_copy(2);
    let (before, mut crowd, mut held) = (resident(), Vec::new(), Vec::new());
    for number in 0..HOSTS {
        let (admin, mut io) = rig.connect();
        let before = refused();
        for _ in 0..COPIES {
            io.issue(command, Bytes::InCapsule(&list));
        }
        io.settle();
        held.push(COPIES - (refused() - before));
        crowd.push((admin, io));
        if number % 16 == 0 {
            witness.check();
        }
    }
    // The first have what a connection may have; those who come late have less, and one at least.
    assert_eq!((held[0], held.iter().min()), (COPIES, Some(&1)), "{held:?}");
    let ranges = held.iter().sum::<u64>() * 128;
    assert!(ranges <= (1 << 16) + HOSTS * 128, "{ranges} source ranges are held");
    let grown = resident().saturating_sub(before);
    assert!(grown < 48 * MIB, "{} MiB more are resident", grown / MIB);
    // Others copy meanwhile.
    let (_late, mut io) = rig.connect();
    let (command, list) = longest_copy(1);
    io.command(command, Bytes::InCapsule(&list)).ok();
    witness.check();
    drop(crowd);
    io.command(command, Bytes::InCapsule(&list)).ok();
    witness.check();
}

/// Counts the lines of the log that say that there is no queue.
struct Lines(AtomicU64);

/// Whether a line says that.
struct Says(bool);

impl tracing::field::Visit for Says {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        self.0 |= field.name() == "message" && format!("{value:?}") == "cannot open a queue";
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut says = Says(false);
        event.record(&mut says);
        self.0.fetch_add(says.0.into(), Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn commands_that_find_no_queue_are_counted_and_told_in_a_few_lines() {
    const READS: u64 = 1000;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = Arc::new(Lines(AtomicU64::new(0)));
    tracing::subscriber::set_global_default(lines.clone()).expect("the first");
    let rig = Rig::empty(1);
    rig.add(1, Arc::new(Double::over(memory(1 << 20, 12, 1)).without_queues()));
    let (_admin, mut io) = rig.connect();
    let begin = Instant::now();
    for slba in 0..READS {
        let read = Command::blocks(opcode::io::READ, 1, slba % 256, 1);
        io.command(read, Bytes::Wanted(4096)).refused(Status::NAMESPACE_NOT_READY);
    }
    let seconds = begin.elapsed().as_secs() + 1;
    let told = lines.0.load(Ordering::Relaxed);
    assert!((1..=5 * (seconds + 1)).contains(&told), "{told} lines in {seconds} s");
    assert_eq!(rig.server.stats().expect("running").namespaces[0].counted.errors, READS);
}
