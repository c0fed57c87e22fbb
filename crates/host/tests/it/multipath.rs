//! Two paths under multipath: no error reaches the user and no block is stale, whatever dies.

use crate::rig;

use host::{Failover, Options};
use namespace::layer::delay::{Delay, Delays};
use namespace::layer::multipath::{Policy, Settings};
use namespace::{Access, PathReport};
use rig::registers::{Checker, await_path, open, open_with, shared_volume};
use rig::relay::Relay;
use rig::{Core, PATIENCE, Target, memory, options, pattern, read, write};
use std::time::{Duration, Instant};

#[test]
fn targets_die_and_come_back_under_io() {
    let volume = shared_volume();
    let mut targets = [0, 0].map(|port| Some(Target::serve(volume.clone(), 1, port)));
    let addresses = [0, 1].map(|at| targets[at].as_ref().expect("it serves").address);
    let namespace = open(&addresses, &options());
    let mut checker = Checker::new(namespace.clone());
    for round in 0..10 {
        let dying = round % 2;
        await_path(&namespace, 1 - dying, Access::is_usable);
        checker.rounds(Duration::from_millis(20));
        let target = targets[dying].take();
        // While it dies, commands are on their way.
        let death = std::thread::spawn(move || drop(target));
        checker.rounds(Duration::from_millis(50));
        death.join().expect("it ends");
        await_path(&namespace, dying, |access| !access.is_usable());
        let port = addresses[dying].port();
        targets[dying] = Some(Target::serve(volume.clone(), 1, port));
        await_path(&namespace, dying, Access::is_usable);
    }
    assert!(namespace.paths().iter().all(|path| path.reconnects >= 5), "{:?}", namespace.paths());
    assert!(checker.longest < Duration::from_secs(10), "{:?}", checker.longest);
}

#[test]
fn all_paths_lost_and_found_again() {
    let volume = shared_volume();
    let target = Target::serve(volume.clone(), 1, 0);
    let namespace = open(&[target.address], &options());
    let mut checker = Checker::new(namespace.clone());
    checker.round();
    let port = target.address.port();
    drop(target);
    let waiting = checker.core.issue(read(0, 4096), vec![0; 4096]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(waiting.try_recv().is_err(), "it waits");
    let _target = Target::serve(volume, 1, port);
    waiting.recv_timeout(PATIENCE).expect("an answer").ok();
    checker.round();
}

#[test]
fn without_any_path_commands_fail_when_their_time_is_over() {
    let target = Target::serve(shared_volume(), 1, 0);
    let mut options = options();
    options.association.ctrl_loss_tmo = Some(Duration::from_secs(5));
    let namespace = open(&[target.address], &options);
    let checker = Checker::new(namespace.clone());
    drop(target);
    let done = checker.core.command(read(0, 4096), vec![0; 4096]);
    assert!(!done.status.is_success());
    let report = &namespace.paths()[0];
    assert_eq!(report.access, Access::Gone);
    assert!(report.reason.contains("ctrl_loss_tmo"), "{}", report.reason);
}

#[test]
fn a_path_that_was_given_up_is_used_again_when_it_is_back() {
    let volume = shared_volume();
    let [target, other] = [(); 2].map(|()| Target::serve(volume.clone(), 1, 0));
    let mut options = options();
    options.association.ctrl_loss_tmo = Some(Duration::from_secs(8));
    let namespace = open(&[target.address, other.address], &options);
    await_path(&namespace, 0, Access::is_usable);
    await_path(&namespace, 1, Access::is_usable);
    let mut checker = Checker::new(namespace.clone());
    checker.rounds(Duration::from_millis(100));
    let (port, other_port) = (target.address.port(), other.address.port());
    drop(target);
    await_path(&namespace, 0, |access| access == Access::Gone);
    let report = &namespace.paths()[0];
    assert!(report.reason.contains("ctrl_loss_tmo"), "{}", report.reason);
    checker.rounds(Duration::from_millis(500));
    assert_eq!(namespace.paths()[0].access, Access::Gone, "it is tried, and nobody waits for it");
    // Also when the other one is lost meanwhile, for which everybody waits.
    drop(other);
    await_path(&namespace, 1, |access| !access.is_usable());
    let target = Target::serve(volume.clone(), 1, port);
    await_path(&namespace, 0, Access::is_usable);
    assert_ne!(namespace.paths()[1].access, Access::Gone);
    checker.rounds(Duration::from_millis(100));
    // Of the one that is left, all is as with any other.
    await_path(&namespace, 1, |access| access == Access::Gone);
    checker.rounds(Duration::from_millis(100));
    // When all were given up, users were told: it stays so.
    drop(target);
    await_path(&namespace, 0, |access| access == Access::Gone);
    let done = checker.core.command(read(0, 4096), vec![0; 4096]);
    assert!(!done.status.is_success());
    let _targets = [port, other_port].map(|port| Target::serve(volume.clone(), 1, port));
    std::thread::sleep(Duration::from_secs(1));
    assert!(namespace.paths().iter().all(|path| path.access == Access::Gone));
}

#[test]
fn a_black_hole_loses_nothing() {
    let volume = shared_volume();
    let targets = [(); 2].map(|()| Target::serve(volume.clone(), 1, 0));
    let relay = Relay::to(targets[0].address);
    let mut options = options();
    options.association.keep_alive_tmo = Duration::from_secs(1);
    let namespace = open(&[relay.address, targets[1].address], &options);
    await_path(&namespace, 0, Access::is_usable);
    await_path(&namespace, 1, Access::is_usable);
    let mut checker = Checker::new(namespace.clone());
    checker.rounds(Duration::from_millis(100));
    relay.swallow(true);
    checker.rounds(Duration::from_secs(6));
    relay.swallow(false);
    await_path(&namespace, 0, Access::is_usable);
    checker.rounds(Duration::from_millis(100));
    assert!(namespace.paths()[0].reconnects >= 1, "{:?}", namespace.paths());
    // Keep alive tells after at most 1.5 s, the connection is dead 3 s later.
    assert!(checker.longest < Duration::from_secs(15), "{:?}", checker.longest);
}

#[test]
fn commands_fail_when_fast_io_fail_tmo_is_over_and_the_path_comes_back() {
    let volume = shared_volume();
    let target = Target::serve(volume.clone(), 1, 0);
    let mut options = options();
    options.association.fast_io_fail_tmo = Some(Duration::from_secs(2));
    options.association.ctrl_loss_tmo = Some(Duration::from_secs(600));
    let namespace = open(&[target.address], &options);
    let mut checker = Checker::new(namespace.clone());
    checker.round();
    let port = target.address.port();
    let begin = Instant::now();
    drop(target);
    await_path(&namespace, 0, |access| !access.is_usable());
    let done = checker.core.command(read(0, 4096), vec![0; 4096]);
    assert!(!done.status.is_success());
    let took = done.at - begin;
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(20), "{took:?}");
    assert_eq!(namespace.paths()[0].access, Access::Failing);
    // Then at once, as long as the path is away.
    expect_failure_at_once(&checker);
    let _target = Target::serve(volume, 1, port);
    await_path(&namespace, 0, Access::is_usable);
    checker.round();
}

/// A command fails, and waits for nothing: of three, one is that quick on a machine that stalls, too.
#[track_caller]
fn expect_failure_at_once(checker: &Checker) {
    let times = [(); 3].map(|()| {
        let begin = Instant::now();
        let done = checker.core.command(read(0, 4096), vec![0; 4096]);
        assert!(!done.status.is_success());
        done.at - begin
    });
    assert!(times.iter().any(|took| *took < Duration::from_secs(1)), "{times:?}");
}

/// No time at all, as Linux has it: nothing waits, and by `ctrl_loss_tmo` nothing is tried either.
#[test]
fn commands_fail_at_the_loss_where_no_time_is_given() {
    for (loss, fast, wanted) in [
        (Some(Duration::from_secs(600)), Some(Duration::ZERO), Access::Failing),
        (Some(Duration::ZERO), None, Access::Gone),
    ] {
        let volume = shared_volume();
        let target = Target::serve(volume.clone(), 1, 0);
        let mut options = options();
        options.association.fast_io_fail_tmo = fast;
        options.association.ctrl_loss_tmo = loss;
        let namespace = open(&[target.address], &options);
        let mut checker = Checker::new(namespace.clone());
        checker.round();
        let port = target.address.port();
        drop(target);
        await_path(&namespace, 0, |access| access == wanted);
        expect_failure_at_once(&checker);
        let _target = Target::serve(volume, 1, port);
        if wanted == Access::Failing {
            await_path(&namespace, 0, Access::is_usable);
            checker.round();
        } else {
            std::thread::sleep(Duration::from_secs(2));
            assert_eq!(namespace.paths()[0].access, Access::Gone);
        }
    }
}

/// How long a write takes whose path swallows it, while another path is there. None: that path was lost before.
fn write_into_a_black_hole(options: &Options) -> Option<Duration> {
    let volume = shared_volume();
    let targets = [(); 2].map(|()| Target::serve(volume.clone(), 1, 0));
    let relay = Relay::to(targets[0].address);
    let settings = Settings { policy: Policy::Numa, ..Settings::default() };
    let namespace = open_with(&[relay.address, targets[1].address], options, settings);
    await_path(&namespace, 0, Access::is_usable);
    await_path(&namespace, 1, Access::is_usable);
    let core = Core::usable(namespace.clone());
    // This core's queue of that path is connected, too.
    let sent = || namespace.paths().iter().map(|path| path.selections).collect::<Vec<_>>();
    while sent()[0] == 0 {
        core.write(8192, &[1; 4096]);
    }
    let before = sent();
    relay.swallow(true);
    let begin = Instant::now();
    let done = core.command(write(0, 4096), pattern(1, 4096)).ok();
    let after = sent();
    assert!(after[1] > before[1], "{before:?}, {after:?}");
    assert!(core.read(0, 4096) == pattern(1, 4096));
    (after[0] > before[0]).then(|| done.at - begin)
}

#[test]
fn fast_failover_has_writes_go_elsewhere_before_the_old_connection_is_surely_dead() {
    let mut options = options();
    options.association.keep_alive_tmo = Duration::from_secs(1);
    let quick = Options { failover: Failover::Fast, ..options.clone() };
    // A machine that stalls makes either longer.
    let mut attempts = (0..3).map(|_| {
        let (sure, fast) = (write_into_a_black_hole(&options)?, write_into_a_black_hole(&quick)?);
        println!("{fast:?}, {sure:?}");
        Some(fast + Duration::from_secs(1) < sure)
    });
    assert!(attempts.any(|shows| shows == Some(true)), "not one of three shows it");
}

/// Reads that each core has sent on a path, from the statistics of that path.
fn reads_by_core(path: &PathReport) -> Vec<u64> {
    let of_a_core = path.details.iter().filter(|(name, _)| name.starts_with("read core "));
    let sent = of_a_core.map(|(_, line)| {
        let sent = line.split(' ').find_map(|value| value.strip_prefix("sel="));
        sent.expect("every policy counts").parse().expect("a number")
    });
    sent.collect()
}

/// The quick path's share of what each of two cores has read, which together keep eight commands in flight for a
/// second, and until each of their users has read so often. The other path takes 50 ms more.
fn shares_of_the_quick_path(policy: Policy, reads_min: u32) -> [f64; 2] {
    let volume = memory(1 << 20, 9, 4);
    let late = Delay::new(volume.clone(), Delays::all(Duration::from_millis(50)));
    let (slow, quick) = (Target::serve(late, 2, 0), Target::serve(volume, 2, 0));
    let settings = Settings { policy, ..Settings::default() };
    // The slow one comes first, so that what is equal does not go to the quick one.
    let namespace = open_with(&[slow.address, quick.address], &options(), settings);
    await_path(&namespace, 0, Access::is_usable);
    await_path(&namespace, 1, Access::is_usable);
    let cores = [(); 2].map(|()| Core::usable(namespace.clone()));
    std::thread::scope(|scope| {
        for core in cores.iter().flat_map(|core| [core; 4]) {
            scope.spawn(move || {
                let (until, mut reads) = (Instant::now() + Duration::from_secs(1), 0);
                while Instant::now() < until || reads < reads_min {
                    core.read(0, 512);
                    reads += 1;
                }
            });
        }
    });
    let sent: Vec<Vec<u64>> = namespace.paths().iter().map(reads_by_core).collect();
    let [slow, quick] = &sent[..] else { panic!("two paths: {sent:?}") };
    println!("{policy}: by the slow path {slow:?}, by the quick one {quick:?}");
    assert_eq!((slow.len(), quick.len()), (2, 2), "{sent:?}");
    [0, 1].map(|core| quick[core] as f64 / (slow[core] + quick[core]) as f64)
}

#[test]
fn each_of_two_cores_prefers_the_quick_path() {
    // A machine that stalls loses a path, whose commands go by the other.
    let once_in_three = |policy, reads_min, wanted: std::ops::Range<f64>| {
        let all = (0..3).map(|_| shares_of_the_quick_path(policy, reads_min));
        let shows = |shares: [f64; 2]| shares.iter().all(|share| wanted.contains(share));
        assert!({ all }.any(shows), "{policy}: not one of three shows it");
    };
    for policy in [Policy::CompletionTime, Policy::QueueDepth] {
        once_in_three(policy, 200, 0.8..1.1);
    }
    // Where nobody looks at how long commands take, both paths have as many.
    once_in_three(Policy::RoundRobin, 50, 0.4..0.6);
}

#[test]
fn two_paths_to_one_address_leave_by_different_ends_of_this_machine() {
    let target = Target::serve(shared_volume(), 1, 0);
    let from = |address: [u8; 4]| host::Local { address: Some(address.into()), interface: None };
    let mut options = options();
    options.locals = vec![from([127, 0, 0, 8]), from([127, 0, 0, 9]), from([192, 0, 2, 1])];
    let namespace = open(&[target.address; 3], &options);
    await_path(&namespace, 0, Access::is_usable);
    await_path(&namespace, 1, Access::is_usable);
    let mut checker = Checker::new(namespace.clone());
    checker.rounds(Duration::from_millis(300));
    let paths = namespace.paths();
    let source = |path: usize| {
        let details = paths[path].details.iter();
        details.clone().find(|(name, _)| name == "source").map(|(_, source)| source.clone())
    };
    assert_eq!([0, 1].map(source), ["127.0.0.8", "127.0.0.9"].map(|it| Some(it.to_owned())));
    assert!(paths[..2].iter().all(|path| path.selections > 0), "{paths:?}");
    // No address of this machine.
    assert_eq!(source(2), None);
    assert!(!paths[2].access.is_usable());
    assert!(paths[2].reason.contains("from 192.0.2.1: "), "{}", paths[2].reason);
}
