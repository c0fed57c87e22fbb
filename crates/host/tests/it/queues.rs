//! Fewer I/O queues than cores: who has one, and what becomes of those that have none.

use crate::rig;

use namespace::layer::multipath::Settings;
use namespace::{Access, Namespace};
use nvme::Status;
use reactor::Reactor;
use rig::registers::{await_path, open, open_with, shared_volume};
use rig::{Core, PATIENCE, Target, connect, options, pattern, read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Stops `target` and starts it again, with `granted` I/O queues; `meanwhile` nobody serves.
fn restart(
    target: Target,
    volume: &Arc<impl Namespace + 'static>,
    granted: u16,
    meanwhile: impl FnOnce(),
) -> Target {
    let port = target.address.port();
    drop(target);
    meanwhile();
    Target::serve_queues(volume.clone(), 1, port, granted)
}

/// Cores that all are connected, `count` of them: the first has the first queue.
fn cores(namespace: &Arc<dyn Namespace>, count: usize) -> Vec<Core> {
    (0..count).map(|_| Core::usable(namespace.clone())).collect()
}

#[test]
fn a_core_without_a_queue_gets_the_one_that_another_closes() {
    let volume = shared_volume();
    let target = Target::serve(volume.clone(), 1, 0);
    let namespace = open(&[target.address], &options());
    let mut cores = cores(&namespace, 3);
    let first = cores.remove(0);
    let away = || cores.iter().for_each(|core| core.await_access(|access| !access.is_usable()));
    let _target = restart(target, &volume, 1, away);
    first.await_access(Access::is_usable);
    let waiting: Vec<_> = cores.iter().map(|core| core.issue(read(0, 512), vec![0; 512])).collect();
    first.write(0, &pattern(1, 512));
    std::thread::sleep(Duration::from_millis(100));
    assert!(cores.iter().all(|core| core.access() == Access::Lost));
    assert!(waiting.iter().all(|answer| answer.try_recv().is_err()), "they wait");
    drop(first);
    for (core, answer) in cores.into_iter().zip(waiting) {
        core.await_access(Access::is_usable);
        assert!(core.read(0, 512) == pattern(1, 512));
        answer.recv_timeout(PATIENCE).expect("an answer").ok();
    }
}

#[test]
fn queues_that_were_closed_while_the_path_was_away_are_others() {
    let volume = shared_volume();
    let target = Target::serve(volume.clone(), 1, 0);
    let namespace = open(&[target.address], &options());
    let mut cores = cores(&namespace, 4);
    let last = cores.pop().expect("there are four");
    let away = || {
        last.await_access(|access| !access.is_usable());
        cores.clear();
    };
    let _target = restart(target, &volume, 1, away);
    last.await_access(Access::is_usable);
    last.write(0, &pattern(2, 512));
}

#[test]
fn commands_of_a_core_without_a_queue_go_another_way_or_end_when_their_time_is_over() {
    let volume = shared_volume();
    let targets = [(); 2].map(|()| Target::serve(volume.clone(), 1, 0));
    let mut options = options();
    options.association.fast_io_fail_tmo = Some(Duration::from_secs(2));
    let addresses = [0, 1].map(|at| targets[at].address);
    let namespace = open_with(&addresses, &options, Settings::default());
    await_path(&namespace, 0, Access::is_usable);
    await_path(&namespace, 1, Access::is_usable);
    let cores = cores(&namespace, 2);
    let [few, other] = targets;
    let away = || await_path(&namespace, 0, |access| !access.is_usable());
    let _few = restart(few, &volume, 1, away);
    await_path(&namespace, 0, Access::is_usable);
    cores[1].write(0, &pattern(3, 512));
    drop(other);
    await_path(&namespace, 1, |access| !access.is_usable());
    let begin = Instant::now();
    let waits = cores[1].issue(read(0, 512), vec![0; 512]);
    assert!(cores[0].read(0, 512) == pattern(3, 512));
    let done = waits.recv_timeout(PATIENCE).expect("it ends");
    assert_eq!(done.status, Status::HOST_PATHING_ERROR);
    assert!(done.at - begin < Duration::from_secs(10));
    assert_eq!(cores[1].access(), Access::Failing);
    assert!(cores[0].read(0, 512) == pattern(3, 512));
}

/// Lets the first of every two connections through to `target`, which is an admin queue's, and ends the other.
fn admin_only(target: SocketAddr, on: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("it listens");
    std::thread::spawn(move || {
        let mut is_admin = false;
        for host in listener.incoming() {
            let Ok(host) = host else { return };
            is_admin = !is_admin;
            if !is_admin && on.load(Ordering::Relaxed) {
                continue;
            }
            let Ok(target) = TcpStream::connect(target) else { continue };
            for (from, to) in [(&host, &target), (&target, &host)] {
                let mut from = from.try_clone().expect("a descriptor");
                let mut to = to.try_clone().expect("a descriptor");
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

#[test]
fn a_controller_that_lets_no_io_queue_connect_is_given_up() {
    let mut target = Target::serve(shared_volume(), 1, 0);
    let on = Arc::new(AtomicBool::new(false));
    let relay = admin_only(target.address, Arc::clone(&on));
    let mut options = options();
    options.association.ctrl_loss_tmo = Some(Duration::from_secs(8));
    let namespace = open(&[relay], &options);
    let core = Core::usable(namespace.clone());
    core.write(0, &pattern(4, 512));
    on.store(true, Ordering::Relaxed);
    let port = target.address.port();
    drop(target);
    target = Target::serve(shared_volume(), 1, port);
    let begin = Instant::now();
    let done = core.command(read(0, 512), vec![0; 512]);
    assert_eq!(done.status, Status::HOST_PATHING_ERROR);
    assert!(done.at - begin < Duration::from_secs(25));
    let path = &namespace.paths()[0];
    assert_eq!(path.access, Access::Gone);
    assert!(path.reconnects > 1, "its admin queue was connected again and again");
    drop(target);
}

#[test]
fn no_more_queues_are_opened_than_are_granted() {
    let target = Target::memory();
    let mut options = options();
    options.association.io_queues = 4;
    for _ in 0..20 {
        let path = connect(target.address, &options);
        let (start, end) = (Arc::new(Barrier::new(12)), Arc::new(Barrier::new(12)));
        let open = |_| {
            let (path, start, end) = (Arc::clone(&path), Arc::clone(&start), Arc::clone(&end));
            std::thread::spawn(move || {
                let reactor = Reactor::new(&reactor::Config::default()).expect("a reactor");
                start.wait();
                let queue = path.open_queue(&reactor);
                end.wait();
                queue.is_ok()
            })
        };
        let threads: Vec<_> = (0..12).map(open).collect();
        let opened = threads.into_iter().filter_map(|thread| thread.join().ok());
        assert_eq!(opened.filter(|opened| *opened).count(), 4);
    }
}
