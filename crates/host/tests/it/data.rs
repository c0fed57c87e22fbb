//! Data goes and comes as it should, at all sizes and depths.

use crate::rig;

use double::Double;
use namespace::Namespace;
use namespace::layer::volatile::{CACHE_BYTES, Volatile};
use nvme::limits::DiscardLimits;
use nvme::{Command, Limits, Status, opcode};
use rig::script::{Copier, Script};
use rig::tamper::Tamper;
use rig::{Core, NQN, Target, connect, options, pattern, read, received, write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SIZES: [usize; 9] = [512, 1024, 4096, 4608, 8192, 16384, 20480, 131_072, 1 << 20];

/// Writes and reads back every size, one at a time, then many at once.
fn check(core: &Core) {
    for (seed, size) in SIZES.into_iter().enumerate() {
        let data = pattern(seed as u64, size);
        core.write(4096 * seed as u64, &data);
        assert!(core.read(4096 * seed as u64, size) == data, "{size} bytes");
    }
    for size in [512, 4096, 16384, 65536, 262_144] {
        let count = (8 << 20) / size;
        let count = count.min(200);
        let answers: Vec<_> = (0..count)
            .map(|at| {
                core.issue(write((at * size) as u64, size), pattern((at + size) as u64, size))
            })
            .collect();
        for answer in answers {
            answer.recv_timeout(rig::PATIENCE).expect("an answer").ok();
        }
        let answers: Vec<_> = (0..count)
            .map(|at| core.issue(read((at * size) as u64, size), vec![0; size]))
            .collect();
        for (at, answer) in answers.into_iter().enumerate() {
            let data = answer.recv_timeout(rig::PATIENCE).expect("an answer").ok().data;
            assert!(data == pattern((at + size) as u64, size), "{at} of {size} bytes");
        }
    }
}

#[test]
fn all_sizes_and_depths() {
    let target = Target::memory();
    check(&Core::usable(connect(target.address, &options())));
}

#[test]
fn with_digests() {
    let target = Target::memory();
    for (header_digest, data_digest) in [(true, false), (false, true), (true, true)] {
        let options = host::Options { header_digest, data_digest, ..options() };
        check(&Core::usable(connect(target.address, &options)));
    }
}

#[test]
fn with_flow_control() {
    let target = Target::memory();
    let mut options = host::Options { flow_control: true, ..options() };
    options.association.queue_entries = 8;
    check(&Core::usable(connect(target.address, &options)));
}

#[test]
fn several_cores() {
    let target = Target::serve(rig::memory(64 << 20, 9, 2), 2, 0);
    let path = connect(target.address, &options());
    let cores: Vec<Core> = (0..3).map(|_| Core::usable(path.clone())).collect();
    std::thread::scope(|scope| {
        for (index, core) in cores.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..50 {
                    let at = (index as u64) << 20;
                    let data = pattern(round, 8192);
                    core.write(at, &data);
                    assert!(core.read(at, data.len()) == data);
                }
            });
        }
    });
}

#[test]
fn large_reads_are_received_in_place() {
    const READS: usize = 64;
    const DEPTH: usize = 8;
    let target = Target::memory();
    let path = connect(target.address, &options());
    let mut before = (0, 0);
    // What comes with a header is copied, less than 512 bytes of it; and a rest of less than a page.
    for (size, share) in
        [(131_072, 0.96), (16384, 0.8), (8192, 0.7), (1 << 20, 0.96), (4096, 0.0), (512, 0.0)]
    {
        // A core that goes leaves its counts behind.
        let core = Core::usable(path.clone());
        for _ in 0..READS / DEPTH {
            let answers = [(); DEPTH].map(|()| core.issue(read(0, size), vec![0xee; size]));
            for answer in answers {
                answer.recv_timeout(rig::PATIENCE).expect("an answer").ok();
            }
        }
        drop(core);
        let now = received(&path.paths()[0]);
        let (direct, copied) = (now.0 - before.0, now.1 - before.1);
        assert_eq!(direct + copied, (READS * size) as u64, "each byte is counted once");
        let found = direct as f64 / (READS * size) as f64;
        println!("{size} bytes: {found:.4} in place");
        assert!(found >= share, "{size} bytes: {found}");
        assert!(share > 0.0 || direct == 0, "{size} bytes: {direct} in place");
        before = now;
    }
}

/// NVMe/TCP Transport 1.1, section 3.6.2.8.
const R2T: u8 = 0x09;

/// What our target takes with a command.
const TAKEN_IN_CAPSULES: usize = 16384;

/// Each size, and how often a host is asked for the data when it writes as much to what listens at `address`.
fn asked_for<const N: usize>(address: SocketAddr, sizes: [usize; N]) -> [(usize, usize); N] {
    let count = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&count);
    let count_r2t = move |pdu: &mut Vec<u8>| {
        counted.fetch_add((pdu[0] == R2T).into(), Ordering::SeqCst);
        true
    };
    // The first I/O queue's, from ICResp on.
    let relay = Tamper::each(address, 1, 0, Arc::new(count_r2t));
    let core = Core::usable(connect(relay.address, &options()));
    let asked = sizes.map(|size| {
        let data = pattern(size as u64, size);
        core.write(0, &data);
        assert!(core.read(0, size) == data, "{size} bytes");
        (size, count.swap(0, Ordering::SeqCst))
    });
    assert!(relay.done.load(Ordering::SeqCst), "another queue was watched");
    asked
}

#[test]
fn small_writes_go_in_capsules() {
    let target = Target::memory();
    let sizes = [512, 4096, 4608, 8192, 16384, 16896, 131_072];
    let expected = sizes.map(|size| (size, usize::from(size > TAKEN_IN_CAPSULES)));
    assert_eq!(asked_for(target.address, sizes), expected);
    // 64 bytes of IOCCSZ are the command's.
    let script = Script::before(target.address, Copier { in_capsule: false, ..Copier::default() });
    assert_eq!(asked_for(script.address, [512, 4096]), [(512, 1), (4096, 1)]);
}

#[test]
fn other_commands_and_errors_pass() {
    let target = Target::memory();
    let path = connect(target.address, &options());
    let limits = path.limits();
    assert_eq!((limits.blocks, limits.block_shift), (131_072, 9));
    assert!(limits.commands.write_zeroes && limits.commands.compare && limits.commands.deallocate);
    assert_eq!(path.uuid(), Some([0x42; 16]));
    let core = Core::usable(path);
    let data = pattern(1, 4096);
    core.write(0, &data);
    let flush = Command { opcode: opcode::io::FLUSH, ..Command::default() };
    core.command(flush, Vec::new()).ok();
    let compare = |data: &[u8]| {
        core.command(Command::blocks(opcode::io::COMPARE, 1, 0, 8), data.to_vec()).status
    };
    assert_eq!(compare(&data), Status::SUCCESS);
    assert_eq!(compare(&pattern(2, 4096)).code(), Status::COMPARE_FAILURE);
    core.command(Command::blocks(opcode::io::WRITE_ZEROES, 1, 0, 4), Vec::new()).ok();
    assert_eq!(core.read(0, 2048), vec![0; 2048]);
    assert_eq!(core.read(2048, 2048), data[2048..]);
    let beyond = core.command(read(64 << 20, 512), vec![0; 512]);
    assert_eq!(beyond.status.code(), Status::LBA_OUT_OF_RANGE);
    // A vendor's command goes there and comes back, with data either way.
    for opcode in [0x80, 0x81, 0x82] {
        let data = if opcode == 0x80 { Vec::new() } else { vec![1; 4096] };
        let done = core.command(Command { opcode, ..Command::default() }, data);
        assert_eq!(done.status.code(), Status::INVALID_OPCODE, "{opcode:#x}");
    }
    let both = core.command(Command { opcode: 0x83, ..Command::default() }, vec![1; 4096]);
    assert_eq!(both.status.code(), Status::INVALID_OPCODE);
}

#[test]
fn a_namespace_is_chosen_or_asked_for() {
    let target = Target::memory();
    let second: Arc<dyn Namespace> = rig::memory(1 << 20, 12, 1);
    target.add(2, second, [0x43; 16]);
    let mut options = options();
    let error = host::open(&[rig::address(target.address)], &options, "").unwrap_err();
    assert!(error.to_string().contains("1, 2") && error.to_string().contains("ns="), "{error}");
    options.association.nsid = Some(2);
    let path = connect(target.address, &options);
    assert_eq!((path.limits().blocks, path.limits().block_shift), (256, 12));
    options.association.nsid = Some(3);
    let error = host::open(&[rig::address(target.address)], &options, "").unwrap_err();
    assert!(error.to_string().contains("no namespace 3"), "{error}");
}

#[test]
fn a_flush_reaches_the_other_end() {
    let volume = Volatile::new(rig::memory(16 << 20, 9, 1), CACHE_BYTES);
    let target = Target::serve(volume.clone(), 1, 0);
    let mut options = options();
    options.association.admin_timeout = std::time::Duration::from_secs(5);
    let path = connect(target.address, &options);
    assert!(path.limits().volatile_write_cache);
    let core = Core::usable(path.clone());
    core.write(0, &[1; 4096]);
    path.flush().expect("flushed");
    assert_eq!(volume.cut(), 0, "what was acknowledged is durable");
    core.write(0, &[2; 4096]);
    assert_eq!(volume.cut(), 8, "what was not flushed is not");
    core.command(Command { opcode: opcode::io::FLUSH, ..Command::default() }, Vec::new()).ok();
    let target_address = target.address.ip().to_string();
    drop(target);
    core.await_access(|access| !access.is_usable());
    let error = path.flush().expect_err("nobody is there").to_string();
    assert!(error.contains(&target_address), "{error}");
}

#[test]
fn a_flush_gives_its_queue_back() {
    let target = Target::serve(Volatile::new(rig::memory(16 << 20, 9, 1), CACHE_BYTES), 1, 0);
    let mut options = options();
    options.association.io_queues = 2;
    // So long it was kept.
    options.association.admin_timeout = rig::PATIENCE;
    let path = connect(target.address, &options);
    let core = Core::usable(path.clone());
    let reactor = reactor::Reactor::new(&reactor::Config::default()).expect("a reactor");
    let begin = std::time::Instant::now();
    for _ in 0..5 {
        core.write(0, &[1; 4096]);
        path.flush().expect("flushed");
        while let Err(error) = path.clone().open_queue(&reactor) {
            assert!(begin.elapsed() < rig::PATIENCE / 2, "{error}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

#[test]
fn a_flush_needs_no_queue_where_none_is_left() {
    let volume = Volatile::new(rig::memory(16 << 20, 9, 1), CACHE_BYTES);
    let target = Target::serve(volume.clone(), 1, 0);
    let mut options = options();
    options.association.io_queues = 1;
    options.association.admin_timeout = std::time::Duration::from_secs(5);
    let path = connect(target.address, &options);
    let core = Core::usable(path.clone());
    core.write(0, &[1; 4096]);
    path.flush().expect("flushed");
    assert_eq!(volume.cut(), 0, "what was acknowledged is durable");
    core.write(0, &[2; 4096]);
    drop(core);
    path.flush().expect("flushed, on a queue of its own");
    assert_eq!(volume.cut(), 0, "what was acknowledged is durable");
}

#[test]
fn more_cores_than_queues_are_refused() {
    let target = Target::memory();
    let mut options = options();
    options.association.io_queues = 2;
    let path = connect(target.address, &options);
    let cores = [Core::usable(path.clone()), Core::usable(path.clone())];
    let reactor = reactor::Reactor::new(&reactor::Config::default()).expect("a reactor");
    let error = path.clone().open_queue(&reactor).err().expect("no queue is left").to_string();
    assert!(error.contains("grants 2 I/O queues"), "{error}");
    // One that is closed makes room, again and again.
    drop(cores);
    for _ in 0..5 {
        Core::usable(path.clone()).write(0, &[1; 512]);
    }
}

#[test]
fn refusals_name_the_peer_and_the_reason() {
    let target = Target::memory();
    let mut unknown = options();
    unknown.association.nqn = "nqn.2026-11.org.example:nothing".into();
    let peer = rig::address(target.address);
    let error = host::open(std::slice::from_ref(&peer), &unknown, "").unwrap_err().to_string();
    assert!(error.contains(&peer.to_string()) && error.contains("subsystem not found"), "{error}");
    // Nobody listens there.
    let free = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let error = host::open(&[rig::address(free)], &options(), "").unwrap_err().to_string();
    assert!(error.contains("connection refused"), "{error}");
    let nowhere = "no-such-host.invalid:4420".parse().unwrap();
    let error = host::open(&[nowhere], &options(), "").unwrap_err().to_string();
    assert!(error.contains("no-such-host.invalid"), "{error}");
    // One path is enough.
    let paths = host::open(&[rig::address(free), peer], &options(), "").expect("one is live");
    assert_eq!(paths.len(), 2);
    assert!(!paths[0].paths()[0].access.is_usable() && paths[1].paths()[0].access.is_usable());
}

/// A controller tells what all its namespaces take.
#[test]
fn what_is_discarded_at_once_is_what_the_volume_behind_the_target_takes() {
    let limited = |discard: DiscardLimits| {
        let volume = Double::over(rig::memory(64 << 20, 9, 1));
        Arc::new(volume.limited(move |limits| Limits { discard, ..limits }))
    };
    let discard = DiscardLimits { ranges_max: 4, range_blocks_max: 2048, blocks_max: 1 << 40 };
    let target = Target::serve(limited(discard), 1, 0);
    let mut options = options();
    options.association.nsid = Some(1);
    let path = connect(target.address, &options);
    assert_eq!(path.limits().discard, discard);
    assert!(path.limits().commands.verify, "it takes what a read takes");
    // A gateway's hosts see it too.
    let gateway = Target::serve(path.clone(), 1, 0);
    let beyond = connect(gateway.address, &options);
    assert_eq!(beyond.limits().discard, discard);
    // A volume that comes later takes less: hosts connect again, and know.
    let less = DiscardLimits { ranges_max: 9, range_blocks_max: 100, blocks_max: 150 };
    target.add(2, limited(less), [0x43; 16]);
    let end = Instant::now() + rig::PATIENCE;
    while beyond.limits().discard != discard.and(less) {
        assert!(Instant::now() < end, "{:?}", beyond.limits().discard);
        thread::sleep(Duration::from_millis(10));
        if path.refresh().expect("it only looks") {
            gateway.server.namespace_changed(NQN, 1).expect("it is there");
        }
    }
    let unlimited = Target::memory();
    let path = connect(unlimited.address, &options);
    assert_eq!(path.limits().discard, DiscardLimits::UNLIMITED);
}
