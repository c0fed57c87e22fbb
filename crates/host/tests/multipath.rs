//! Two paths under multipath: no error reaches the user and no block is stale, whatever dies.

mod rig;

use namespace::Access;
use rig::registers::{Checker, await_path, open, shared_volume};
use rig::relay::Relay;
use rig::{PATIENCE, Target, options, read};
use std::time::Duration;

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
