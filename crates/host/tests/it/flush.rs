//! Flush over several controllers with caches of their own, and what is told when one is lost.

use crate::rig;

use namespace::Namespace;
use namespace::layer::fault::{Fault, Rule};
use namespace::layer::multipath::{Multipath, MultipathOptions, Policy, Settings};
use namespace::layer::volatile::{CACHE_BYTES, Volatile};
use namespace::memory::Memory;
use nvme::{Command, Status, opcode};
use rig::relay::Relay;
use rig::script::{Copier, Script};
use rig::{Core, Done, PATIENCE, Target, address, connect, memory, options, pattern, write};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
/// Writes in a row.
const WRITES: u64 = 8;

/// Controllers of one namespace, each with its own cache over it, and a host that takes them in turn.
struct Stage {
    volume: Arc<Memory>,
    caches: Vec<Arc<Volatile>>,
    targets: Vec<Option<Target>>,
    namespace: Arc<Multipath>,
    core: Core,
}

impl Stage {
    /// With what is between a controller and its cache.
    fn with(count: usize, between: impl Fn(usize, Arc<Volatile>) -> Arc<dyn Namespace>) -> Stage {
        let volume = memory(1 << 20, 9, count);
        let cache = |_| Volatile::new(volume.clone(), CACHE_BYTES);
        let caches: Vec<_> = (0..count).map(cache).collect();
        let served = caches.iter().cloned().enumerate().map(|(at, cache)| between(at, cache));
        let targets: Vec<_> = served.map(|cache| Some(Target::serve(cache, 1, 0))).collect();
        let addresses: Vec<_> =
            targets.iter().flatten().map(|target| address(target.address)).collect();
        let paths = host::open(&addresses, &options(), "").expect("paths");
        let paths = paths.into_iter().map(|path| path as Arc<dyn Namespace>).collect();
        let settings = Settings { policy: Policy::RoundRobin, ..Settings::default() };
        let options = MultipathOptions { tuning: settings.into(), ..MultipathOptions::default() };
        let namespace = Multipath::new(paths, options).expect("one namespace");
        let core = Core::new(namespace.clone());
        let stage = Stage { volume, caches, targets, namespace, core };
        (0..count).for_each(|path| stage.await_path(path, true));
        stage
    }

    fn new(count: usize) -> Stage {
        Stage::with(count, |_, cache| cache)
    }

    fn await_path(&self, path: usize, is_usable: bool) {
        let until = Instant::now() + PATIENCE;
        while self.namespace.paths()[path].access.is_usable() != is_usable {
            assert!(Instant::now() < until, "{:?}", self.namespace.paths());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Writes so often, by the paths in turn.
    fn write(&self) {
        let data = pattern(7, BLOCK);
        (0..WRITES).for_each(|at| self.core.write(at * BLOCK as u64, &data));
    }

    fn flush(&self) -> Done {
        self.core.command(Command { opcode: opcode::io::FLUSH, ..Command::default() }, Vec::new())
    }

    fn epoch(&self) -> u64 {
        self.namespace.volatile_epoch()
    }

    /// Commands that each path has been given.
    fn sent(&self) -> Vec<u64> {
        self.namespace.paths().iter().map(|path| path.selections).collect()
    }

    /// What a loss of power at every controller takes away.
    fn cut(&self) -> Vec<u64> {
        self.caches.iter().map(|cache| cache.cut()).collect()
    }

    fn stop(&mut self, path: usize) -> u16 {
        let target = self.targets[path].take().expect("it runs");
        let port = target.address.port();
        drop(target);
        self.await_path(path, false);
        port
    }
}

#[test]
fn a_flush_goes_by_every_path_that_has_written() {
    let stage = Stage::new(3);
    let before = stage.epoch();
    stage.write();
    assert!(stage.cut().iter().all(|lost| *lost > 0), "each has something to lose");
    stage.write();
    let sent = stage.sent();
    stage.flush().ok();
    assert_eq!(stage.sent(), sent.iter().map(|sent| sent + 1).collect::<Vec<_>>());
    assert_eq!(stage.cut(), [0; 3]);
    // There is nothing left to flush, so that one command is enough.
    let sum = |sent: Vec<u64>| sent.iter().sum::<u64>();
    let sent = sum(stage.sent());
    stage.flush().ok();
    assert_eq!(sum(stage.sent()), sent + 1);
    // One has written: it is that one's to flush, whoever's turn it is.
    for _ in 0..3 {
        stage.core.write(0, &pattern(1, BLOCK));
        let sent = sum(stage.sent());
        stage.flush().ok();
        assert_eq!(sum(stage.sent()), sent + 1);
        assert_eq!(stage.cut(), [0; 3]);
    }
    assert_eq!(stage.epoch(), before);
}

#[test]
fn a_path_that_is_lost_with_what_it_acknowledged_is_told_of_once() {
    let mut stage = Stage::new(2);
    stage.write();
    let before = stage.epoch();
    let port = stage.stop(1);
    // The other one's is durable, and nothing else is.
    stage.flush().ok();
    let lost = stage.cut();
    assert!(lost[0] == 0 && lost[1] > 0, "{lost:?}");
    let told = stage.epoch();
    assert!(told > before, "it need not come back for that");
    stage.write();
    stage.flush().ok();
    assert_eq!(stage.epoch(), told, "nothing more");
    let back: Arc<dyn Namespace> = stage.caches[1].clone();
    stage.targets[1] = Some(Target::serve(back, 1, port));
    stage.await_path(1, true);
    stage.write();
    stage.flush().ok();
    assert_eq!(stage.epoch(), told, "nor does it when it comes back");
    assert_eq!(stage.cut(), [0; 2]);
}

#[test]
fn what_was_flushed_or_never_cached_cannot_be_lost() {
    let mut stage = Stage::new(1);
    let before = stage.epoch();
    let restart = |stage: &mut Stage| {
        let port = stage.stop(0);
        let volume: Arc<dyn Namespace> = stage.caches[0].clone();
        stage.targets[0] = Some(Target::serve(volume, 1, port));
        stage.await_path(0, true);
        stage.epoch() - before
    };
    assert_eq!(restart(&mut stage), 0, "nothing was written");
    stage.write();
    stage.flush().ok();
    assert_eq!(restart(&mut stage), 0, "all was flushed");
    let mut durable = write(0, BLOCK);
    durable.cdw12 = (durable.cdw12.get() | 1 << 30).into();
    stage.core.command(durable, pattern(2, BLOCK)).ok();
    assert_eq!(restart(&mut stage), 0, "Force Unit Access");
    stage.write();
    assert_eq!(restart(&mut stage), 1, "it was not flushed");
    assert_eq!(restart(&mut stage), 1, "that was told");
    // Without a cache there is nothing to lose.
    let port = stage.stop(0);
    stage.targets[0] = Some(Target::serve(stage.volume.clone(), 1, port));
    stage.await_path(0, true);
    stage.write();
    assert_eq!(restart(&mut stage), 1);
}

/// The network goes away for a moment, and the target does not. Returns whether that counts as a loss.
fn is_loss(foreign: bool) -> bool {
    let cache = Volatile::new(memory(1 << 20, 9, 1), CACHE_BYTES);
    let target = Target::serve(cache.clone(), 1, 0);
    let script = Script::before(target.address, Copier { ours: !foreign, ..Copier::default() });
    let relay = Relay::to(script.address);
    let path = connect(relay.address, &options());
    let namespace = Multipath::new(vec![path], MultipathOptions::default()).expect("one namespace");
    let core = Core::usable(namespace.clone());
    core.write(0, &pattern(4, BLOCK));
    let before = namespace.volatile_epoch();
    relay.close(0);
    let until = Instant::now() + PATIENCE;
    let is_back = || {
        let path = &namespace.paths()[0];
        path.reconnects >= 1 && path.access.is_usable()
    };
    while !is_back() {
        assert!(Instant::now() < until, "{:?}", namespace.paths());
        std::thread::sleep(Duration::from_millis(2));
    }
    namespace.volatile_epoch() != before
}

#[test]
fn a_network_that_is_away_for_a_moment_loses_nothing_of_our_own_targets() {
    assert!(!is_loss(false));
    assert!(is_loss(true), "nobody can tell");
}

#[test]
fn what_was_left_with_a_target_is_lost_with_that() {
    let cache = Volatile::new(memory(1 << 20, 9, 1), CACHE_BYTES);
    let mut target = Target::serve(cache.clone(), 1, 0);
    let relay = Relay::to(target.address);
    let path = connect(relay.address, &options());
    let namespace = Multipath::new(vec![path], MultipathOptions::default()).expect("one namespace");
    let core = Core::usable(namespace.clone());
    let before = namespace.volatile_epoch();
    let await_back = |reconnects| {
        let until = Instant::now() + PATIENCE;
        let is_back =
            |path: &namespace::PathReport| path.reconnects >= reconnects && path.access.is_usable();
        while !is_back(&namespace.paths()[0]) {
            assert!(Instant::now() < until, "{:?}", namespace.paths());
            std::thread::sleep(Duration::from_millis(2));
        }
        namespace.paths()[0].reconnects
    };
    core.write(0, &pattern(4, BLOCK));
    relay.close(0);
    let reconnects = await_back(1);
    assert_eq!(namespace.volatile_epoch(), before);
    // It was acknowledged before the one connection, and is lost after the other.
    let port = target.address.port();
    drop(target);
    target = Target::serve(cache.clone(), 1, port);
    let reconnects = await_back(reconnects + 1);
    assert_eq!(namespace.volatile_epoch(), before + 1);
    core.write(0, &pattern(5, BLOCK));
    let flush = Command { opcode: opcode::io::FLUSH, ..Command::default() };
    core.command(flush, Vec::new()).ok();
    assert_eq!(cache.cut(), 0);
    drop(target);
    let _target = Target::serve(cache, 1, port);
    await_back(reconnects + 1);
    assert_eq!(namespace.volatile_epoch(), before + 1, "it was flushed");
}

#[test]
fn a_path_that_comes_up_later_is_no_loss() {
    let volume: Arc<dyn Namespace> = Volatile::new(memory(1 << 20, 9, 1), CACHE_BYTES);
    let target = Target::serve(volume.clone(), 1, 0);
    let later = Target::serve(volume.clone(), 1, 0);
    let absent = later.address;
    drop(later);
    let addresses = [target.address, absent].map(address);
    let paths = host::open(&addresses, &options(), "").expect("a path");
    let paths = paths.into_iter().map(|path| path as Arc<dyn Namespace>).collect();
    let namespace = Multipath::new(paths, MultipathOptions::default()).expect("one namespace");
    let core = Core::usable(namespace.clone());
    core.write(0, &pattern(3, BLOCK));
    let before = namespace.volatile_epoch();
    let _later = Target::serve(volume, 1, absent.port());
    let until = Instant::now() + PATIENCE;
    while !namespace.paths()[1].access.is_usable() {
        assert!(Instant::now() < until, "{:?}", namespace.paths());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(namespace.volatile_epoch(), before);
}

#[test]
fn a_flush_fails_with_any_of_its_controllers_and_is_repeated_where_it_may_be() {
    let stage = |status: Status, count: u64| {
        Stage::with(2, move |at, cache| {
            let rule = Rule {
                opcodes: vec![opcode::io::FLUSH],
                status: Some(status),
                count: Some(count * at as u64),
                ..Rule::default()
            };
            Fault::new(cache, rule)
        })
    };
    let fails = stage(Status::WRITE_FAULT.dnr(), 1);
    fails.write();
    assert_eq!(fails.flush().status, Status::WRITE_FAULT.dnr());
    assert!(fails.caches[1].cut() > 0, "it would be lost");
    fails.write();
    fails.flush().ok();
    assert_eq!(fails.cut(), [0; 2]);
    let interrupted = stage(Status::COMMAND_INTERRUPTED, 3);
    interrupted.write();
    interrupted.flush().ok();
    assert_eq!(interrupted.cut(), [0; 2]);
    let for_long = stage(Status::COMMAND_INTERRUPTED, 100);
    for_long.write();
    assert_eq!(for_long.flush().status.code(), Status::COMMAND_INTERRUPTED);
}

#[test]
fn a_core_without_a_queue_has_another_flush_what_that_wrote() {
    let volume = memory(1 << 20, 9, 2);
    let caches = [0, 1].map(|_| Volatile::new(volume.clone(), CACHE_BYTES));
    let target = Target::serve(caches[0].clone(), 1, 0);
    let later = Target::serve(caches[1].clone(), 1, 0);
    let absent = later.address;
    drop(later);
    let addresses = [target.address, absent].map(address);
    let paths = host::open(&addresses, &options(), "").expect("a path");
    let paths = paths.into_iter().map(|path| path as Arc<dyn Namespace>).collect();
    let settings = Settings { policy: Policy::RoundRobin, ..Settings::default() };
    let options = MultipathOptions { tuning: settings.into(), ..MultipathOptions::default() };
    let namespace = Multipath::new(paths, options).expect("one namespace");
    let [first, other] = [0, 1].map(|_| Core::usable(namespace.clone()));
    let before = namespace.volatile_epoch();
    // This one has a queue for one core.
    let _later = Target::serve_queues(caches[1].clone(), 1, absent.port(), 1);
    let until = Instant::now() + PATIENCE;
    while !namespace.paths()[1].access.is_usable() {
        assert!(Instant::now() < until, "{:?}", namespace.paths());
        std::thread::sleep(Duration::from_millis(2));
    }
    (0..WRITES).for_each(|at| first.write(at * BLOCK as u64, &pattern(7, BLOCK)));
    let flush = Command { opcode: opcode::io::FLUSH, ..Command::default() };
    other.command(flush, Vec::new()).ok();
    assert!(namespace.paths()[1].selections > 0);
    assert_eq!([caches[0].cut(), caches[1].cut()], [0; 2]);
    assert_eq!(namespace.volatile_epoch(), before);
}
