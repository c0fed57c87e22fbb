//! Paths that follow what discovery controllers say, under I/O that never fails.

use crate::rig;

use namespace::layer::fault::{Fault, Rule};
use namespace::layer::volatile::{CACHE_BYTES, Volatile};
use namespace::{Access, Namespace, PathReport};
use nvme::{Command, opcode};
use rig::naming::{Naming, other, path, referral};
use rig::registers::{Checker, open_discovered, shared_volume};
use rig::relay::Relay;
use rig::wire::Wire;
use rig::{Core, NQN, PATIENCE, Target, options, pattern, read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waits until there are paths to just these addresses, in any order, which can all be used.
#[track_caller]
fn await_paths(namespace: &Arc<dyn Namespace>, addresses: &[SocketAddr]) {
    await_that(namespace, addresses, |path| path.access.is_usable());
}

#[track_caller]
fn await_that(
    namespace: &Arc<dyn Namespace>,
    addresses: &[SocketAddr],
    is_so: impl Fn(&PathReport) -> bool,
) {
    let mut wanted: Vec<String> = addresses.iter().map(|it| format!("tcp://{it}")).collect();
    wanted.sort();
    let until = Instant::now() + PATIENCE;
    loop {
        let paths = namespace.paths();
        let mut names: Vec<String> = paths.iter().map(|path| path.name.clone()).collect();
        names.sort();
        if names == wanted && paths.iter().all(&is_so) {
            return;
        }
        assert!(Instant::now() < until, "{paths:#?} instead of {wanted:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A memory volume, and targets that serve it.
fn targets<const N: usize>() -> [Target; N] {
    let volume = shared_volume();
    std::array::from_fn(|_| Target::serve(volume.clone(), 1, 0))
}

#[test]
fn paths_come_and_go_with_the_log() {
    let [a, b, c] = targets();
    let naming = Naming::new(vec![other("nqn.x:other", c.address), path(a.address)]);
    let namespace = open_discovered(&[naming.address], &options()).expect("a path");
    await_paths(&namespace, &[a.address]);
    let mut checker = Checker::new(namespace.clone());
    let some = Duration::from_millis(20);
    checker.rounds(some);
    naming.name(vec![path(a.address), path(b.address)]);
    await_paths(&namespace, &[a.address, b.address]);
    checker.rounds(some);
    naming.name(vec![path(b.address), path(c.address), path(a.address)]);
    await_paths(&namespace, &[a.address, b.address, c.address]);
    // To a path that is just let go, commands go on being answered: none is lost, and so none sent again.
    for _ in 0..5 {
        naming.name(vec![path(c.address)]);
        checker.rounds(some);
        await_paths(&namespace, &[c.address]);
        naming.name(vec![path(a.address), path(b.address)]);
        checker.rounds(some);
        await_paths(&namespace, &[a.address, b.address]);
    }
    let errors: u64 = namespace.paths().iter().map(|path| path.errors).sum();
    assert_eq!(errors, 0, "{:#?}", namespace.paths());
    // Each address has its past: it was connected to again and again.
    assert!(namespace.paths().iter().all(|path| path.reconnects >= 4), "{:#?}", namespace.paths());
}

#[test]
fn the_last_path_stays_until_another_can_be_used() {
    let [a, b] = targets();
    let late = Relay::to(b.address);
    let wire = Wire::before(a.address);
    let naming = Naming::new(vec![path(wire.address)]);
    let namespace = open_discovered(&[naming.address], &options()).expect("a path");
    let mut checker = Checker::new(namespace.clone());
    late.swallow(true);
    let await_the_one = || {
        await_that(&namespace, &[wire.address, late.address], |path| {
            path.access.is_usable() == path.name.ends_with(&wire.address.to_string())
        });
    };
    naming.name(vec![path(late.address)]);
    await_the_one();
    checker.rounds(Duration::from_millis(100));
    // An empty log takes nothing away either, not even while the path is lost: it is tried as any other.
    let reads = naming.reads();
    naming.name(Vec::new());
    let until = Instant::now() + PATIENCE;
    while naming.reads() < reads + 2 {
        assert!(Instant::now() < until, "it is not read");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..3 {
        wire.cut();
        checker.rounds(Duration::from_millis(100));
        await_the_one();
    }
    // A new address of which more is to be had: then they are let go.
    naming.name(vec![path(b.address)]);
    await_paths(&namespace, &[b.address]);
    checker.rounds(Duration::from_millis(20));
}

/// Commands that wait while the only path is lost find the new address, and none fails on the way there.
#[test]
fn what_waits_for_a_lost_path_goes_by_the_new_one() {
    let volume = shared_volume();
    let mut target = Target::serve(volume.clone(), 1, 0);
    let naming = Naming::new(vec![path(target.address)]);
    let namespace = open_discovered(&[naming.address], &options()).expect("a path");
    let core = Core::usable(namespace.clone());
    for _ in 0..20 {
        let next = Target::serve(volume.clone(), 1, 0);
        drop(std::mem::replace(&mut target, next));
        let lost = |path: &PathReport| !path.access.is_usable();
        let until = Instant::now() + PATIENCE;
        while !namespace.paths().iter().all(lost) {
            assert!(Instant::now() < until, "{:?}", namespace.paths());
            std::thread::sleep(Duration::from_millis(1));
        }
        let waiting: Vec<_> =
            (0..8).map(|at| core.issue(read(at * 4096, 4096), vec![0; 4096])).collect();
        naming.name(vec![path(target.address)]);
        for answer in waiting {
            answer.recv_timeout(PATIENCE).expect("an answer").ok();
        }
        await_paths(&namespace, &[target.address]);
    }
}

#[test]
fn a_path_without_io_queues_is_no_other_one() {
    let [a, b] = targets();
    // Its admin queue can be connected, and the next connection, which is that of an I/O queue, gets no answer.
    let half = Relay::to(b.address);
    half.hold(Some(1));
    let naming = Naming::new(vec![path(a.address)]);
    let mut options = options();
    // Who waits for it waits as long.
    options.association.admin_timeout = Duration::from_secs(20);
    let namespace = open_discovered(&[naming.address], &options).expect("a path");
    let mut checker = Checker::new(namespace.clone());
    naming.name(vec![path(half.address)]);
    await_that(&namespace, &[a.address, half.address], |path| {
        path.access.is_usable() == path.name.ends_with(&a.address.to_string())
    });
    checker.rounds(Duration::from_secs(1));
    half.hold(None);
    await_paths(&namespace, &[half.address]);
    checker.rounds(Duration::from_millis(20));
    assert!(checker.longest < Duration::from_secs(10), "{:?}", checker.longest);
}

#[test]
fn a_path_with_few_queues_keeps_no_core_from_the_others() {
    let volume = shared_volume();
    let a = Target::serve(volume.clone(), 1, 0);
    let few = Target::serve_queues(volume, 1, 0, 1);
    let naming = Naming::new(vec![path(few.address), path(a.address)]);
    let namespace = open_discovered(&[naming.address], &options()).expect("a path");
    let cores = [(); 3].map(|()| Core::usable(namespace.clone()));
    cores.iter().for_each(|core| drop(core.read(0, 4096)));
    // It stays as long as somebody needs it, and is let go with its cores.
    naming.name(vec![path(few.address)]);
    let paths = || namespace.paths().len();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(paths(), 2);
    cores.iter().for_each(|core| drop(core.read(0, 4096)));
    let [one, two, three] = cores;
    drop((two, three));
    await_paths(&namespace, &[few.address]);
    one.read(0, 4096);
}

#[test]
fn one_that_does_not_tell_is_asked_now_and_then() {
    let [a, b] = targets();
    let naming = Naming::telling(vec![path(a.address)], false);
    let namespace = open_discovered(&[naming.address], &options()).expect("a path");
    await_paths(&namespace, &[a.address]);
    naming.name(vec![path(a.address), path(b.address)]);
    await_paths(&namespace, &[a.address, b.address]);
    naming.name(vec![path(b.address)]);
    await_paths(&namespace, &[b.address]);
}

#[test]
fn a_path_that_takes_less_than_users_were_told_is_not_used() {
    let volume = shared_volume();
    let a = Target::serve(volume.clone(), 1, 0);
    // It has a cache, of which nobody knows that it is to be flushed.
    let b = Target::serve(Volatile::new(volume, CACHE_BYTES), 1, 0);
    let naming = Naming::new(vec![path(a.address)]);
    let namespace = open_discovered(&[naming.address], &options()).expect("a path");
    let mut checker = Checker::new(namespace.clone());
    naming.name(vec![path(a.address), path(b.address)]);
    await_that(&namespace, &[a.address, b.address], |path| {
        path.access.is_usable() != path.reason.contains("takes less than the paths")
    });
    checker.rounds(Duration::from_millis(100));
    assert!(!namespace.limits().volatile_write_cache);
    assert_eq!(namespace.paths().iter().filter(|path| path.selections > 0).count(), 1);
}

/// The same where it is one of a list, and has not answered when the volume was opened.
#[test]
fn a_path_that_answers_late_takes_what_users_were_told() {
    let volume = shared_volume();
    let a = Target::serve(volume.clone(), 1, 0);
    let listener = std::net::TcpListener::bind((a.address.ip(), 0)).expect("a port");
    let late = listener.local_addr().expect("it is bound");
    drop(listener);
    let addresses = [a.address, late].map(rig::address);
    let paths = host::open(&addresses, &options(), "").expect("one answers");
    let b = Target::serve(Volatile::new(volume, CACHE_BYTES), 1, late.port());
    assert_eq!(b.address, late);
    let until = Instant::now() + PATIENCE;
    let told = |path: &host::Path| path.paths().remove(0);
    while !told(&paths[1]).reason.contains("takes less than the paths") {
        assert!(!told(&paths[1]).access.is_usable(), "{:?}", told(&paths[1]));
        assert!(Instant::now() < until, "{:?}", told(&paths[1]));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(told(&paths[0]).access.is_usable() && !paths[0].limits().volatile_write_cache);
}

#[test]
fn a_target_moves_to_another_address() {
    let target = Target::serve(shared_volume(), 1, 0);
    let namespace = open_discovered(&[target.address], &options()).expect("a path");
    let mut checker = Checker::new(namespace.clone());
    let (mut port, mut address) = (target.port, target.address);
    for _ in 0..5 {
        let any = SocketAddr::new(address.ip(), 0);
        let (next, to) = target.server.add_listener(any).expect("a listener");
        await_paths(&namespace, &[address, to]);
        checker.rounds(Duration::from_millis(20));
        // With it goes the discovery controller that was given; the other's is known by now.
        target.server.remove_listener(port).expect("it listens");
        checker.rounds(Duration::from_millis(20));
        await_paths(&namespace, &[to]);
        (port, address) = (next, to);
    }
    assert!(checker.longest < Duration::from_secs(10), "{:?}", checker.longest);
}

#[test]
fn referrals_are_followed_and_dropped() {
    let [a, b] = targets();
    let second = Naming::new(vec![path(b.address)]);
    let first = Naming::new(vec![path(a.address), referral(second.address)]);
    let namespace = open_discovered(&[first.address], &options()).expect("a path");
    await_paths(&namespace, &[a.address, b.address]);
    // What a controller has said stays so while it cannot be asked.
    second.refuse(true);
    first.refuse(true);
    let mut checker = Checker::new(namespace.clone());
    checker.rounds(Duration::from_millis(200));
    await_paths(&namespace, &[a.address, b.address]);
    second.refuse(false);
    first.refuse(false);
    first.name(vec![path(a.address)]);
    await_paths(&namespace, &[a.address]);
    checker.rounds(Duration::from_millis(20));
    let until = Instant::now() + PATIENCE;
    while second.hosts() > 0 {
        assert!(Instant::now() < until, "nobody refers to it any more");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut facts = Vec::new();
    namespace.describe(&mut facts);
    let said: Vec<_> = facts.iter().filter(|(name, _)| name.starts_with("discovery")).collect();
    assert_eq!(said.len(), 1, "{facts:?}");
    assert!(said[0].1.starts_with("names 1 address "), "{said:?}");
    drop((checker, namespace));
    while first.hosts() > 0 {
        assert!(Instant::now() < until + PATIENCE, "the volume is closed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_path_that_was_given_up_is_tried_again_with_the_next_log() {
    let volume = shared_volume();
    let a = Target::serve(volume.clone(), 1, 0);
    let mut options = options();
    // The first connect has as long.
    options.association.ctrl_loss_tmo = Some(Duration::from_secs(6));
    let naming = Naming::new(vec![path(a.address)]);
    let namespace = open_discovered(&[naming.address], &options).expect("a path");
    let core = Core::usable(namespace.clone());
    let address = a.address;
    drop(a);
    await_that(&namespace, &[address], |path| path.access == Access::Gone);
    let done = core.command(read(0, 4096), vec![0; 4096]);
    assert!(!done.status.is_success());
    let _a = Target::serve(volume, 1, address.port());
    // Nobody tries it: it was given up.
    std::thread::sleep(Duration::from_millis(300));
    await_that(&namespace, &[address], |path| path.access == Access::Gone);
    naming.name(vec![path(address), other("nqn.x:another", address)]);
    await_paths(&namespace, &[address]);
    core.read(0, 4096);
}

#[test]
fn what_opening_says() {
    let [a] = targets();
    let open = |naming: &[SocketAddr]| {
        open_discovered(naming, &options()).map(drop).expect_err("there is none").to_string()
    };
    let unnamed = Naming::new(vec![other("nqn.x:one", a.address), other("nqn.x:two", a.address)]);
    let said = open(&[unnamed.address]);
    assert!(said.contains(NQN) && said.contains("they name nqn.x:one, nqn.x:two"), "{said}");
    let closed = Naming::new(Vec::new());
    closed.refuse(true);
    let said = open(&[closed.address]);
    assert!(
        said.starts_with("no discovery controller can be asked")
            && said.contains(&closed.address.to_string()),
        "{said}"
    );
    let said = open(&[unnamed.address, closed.address]);
    assert!(said.contains("nqn.x:two (") && said.contains(&closed.address.to_string()), "{said}");
    let empty = Naming::new(Vec::new());
    let said = open(&[empty.address]);
    assert!(said.ends_with("they name no subsystem"), "{said}");
    // A path that cannot be connected is told with its reason.
    let nobody = Naming::new(vec![path(closed.address)]);
    let said = open(&[nobody.address]);
    assert!(said.contains(&format!("{}: ", closed.address)), "{said}");
}

#[test]
fn logs_that_change_without_end_are_read_now_and_then() {
    let [a] = targets();
    let naming = Naming::new(vec![path(a.address)]);
    let namespace = open_discovered(&[naming.address], &options()).expect("a path");
    let mut checker = Checker::new(namespace.clone());
    let (begin, before) = (Instant::now(), naming.reads());
    while begin.elapsed() < Duration::from_secs(1) || naming.reads() < before + 4 {
        assert!(begin.elapsed() < PATIENCE, "{} reads only", naming.reads() - before);
        naming.name(vec![path(a.address)]);
        checker.rounds(Duration::from_millis(20));
    }
    // Twice each time, and all of it again if it has changed meanwhile.
    let (reads, time) = (naming.reads() - before, begin.elapsed());
    let most = 8 * (time.as_millis() as u64 / 100 + 1);
    assert!(reads <= most, "{reads} in {time:?}");
    await_paths(&namespace, &[a.address]);
}

fn flush() -> Command {
    Command { opcode: opcode::io::FLUSH, ..Command::default() }
}

#[test]
fn what_a_path_that_is_let_go_has_acknowledged_is_flushed() {
    let volume = shared_volume();
    // Two controllers, each with a cache of its own.
    let caches = [(); 2].map(|()| Volatile::new(volume.clone(), CACHE_BYTES));
    let [a, b] = [0, 1].map(|at| Target::serve(caches[at].clone(), 1, 0));
    let both = || vec![path(a.address), path(b.address)];
    let naming = Naming::new(both());
    let namespace = open_discovered(&[naming.address], &options()).expect("a path");
    namespace.tune("policy", "round-robin").expect("it is known");
    let core = Core::usable(namespace.clone());
    let epoch = namespace.volatile_epoch();
    for _ in 0..3 {
        await_paths(&namespace, &[a.address, b.address]);
        (0..8).for_each(|at| core.write(at * 4096, &pattern(at, 4096)));
        naming.name(vec![path(b.address)]);
        await_paths(&namespace, &[b.address]);
        assert_eq!(caches[0].cut(), 0, "it was flushed before the path was let go");
        // Nobody else's is, until somebody flushes.
        core.command(flush(), Vec::new()).ok();
        assert_eq!(caches[1].cut(), 0);
        namespace.flush().expect("there is nothing left");
        naming.name(both());
    }
    assert_eq!(namespace.volatile_epoch(), epoch, "nothing may be lost");
    // Named again, and not there: that is no loss either.
    await_paths(&namespace, &[a.address, b.address]);
    core.command(flush(), Vec::new()).ok();
    (0..8).for_each(|at| core.write(at * 4096, &pattern(at, 4096)));
    naming.name(vec![path(b.address)]);
    await_paths(&namespace, &[b.address]);
    let address = a.address;
    drop(a);
    naming.name(vec![path(address), path(b.address)]);
    await_that(&namespace, &[address, b.address], |path| {
        path.access.is_usable() == path.name.ends_with(&b.address.to_string())
    });
    core.command(flush(), Vec::new()).ok();
    namespace.flush().expect("there is nothing left");
    assert_eq!(namespace.volatile_epoch(), epoch, "it had left nothing");
}

#[test]
fn what_cannot_be_flushed_is_told_of() {
    let volume = shared_volume();
    let caches = [(); 2].map(|()| Volatile::new(volume.clone(), CACHE_BYTES));
    let rule = Rule { opcodes: vec![opcode::io::FLUSH], ..Rule::default() };
    let a = Target::serve(Fault::new(caches[0].clone(), rule), 1, 0);
    let b = Target::serve(caches[1].clone(), 1, 0);
    let naming = Naming::new(vec![path(a.address), path(b.address)]);
    let mut options = options();
    options.io_timeout = Duration::from_secs(1);
    let namespace = open_discovered(&[naming.address], &options).expect("a path");
    namespace.tune("policy", "round-robin").expect("it is known");
    let core = Core::usable(namespace.clone());
    await_paths(&namespace, &[a.address, b.address]);
    (0..8).for_each(|at| core.write(at * 4096, &pattern(at, 4096)));
    let epoch = namespace.volatile_epoch();
    naming.name(vec![path(b.address)]);
    await_paths(&namespace, &[b.address]);
    core.command(flush(), Vec::new()).ok();
    assert!(namespace.volatile_epoch() > epoch, "the next one is told");
    assert!(caches[0].cut() > 0);
}
