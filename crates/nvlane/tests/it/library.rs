//! Sessions on a remote volume: the calls are those for a file, and the association stays alive while their caller
//! does nothing.

use crate::daemon::Daemon;
use namespace::Access;
use nvme::{Command, Status, opcode};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};
use volume::session::{Bytes, CLOSE_WAIT, Done, Session, SessionConfig, Submission, Volume};

const NQN: &str = "nqn.2026-11.com.example:library";
/// Long enough for anything that happens at all.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

fn start(dir: &Path, volume: &str) -> Daemon {
    Daemon::start(dir, &[volume, "--nqn", NQN])
}

fn uri(daemon: &Daemon, options: &str) -> String {
    format!("tcp://{}/{NQN}?ns=1{options}", daemon.listeners[0])
}

fn session() -> Session {
    Session::new(&SessionConfig { depth: 16, ..SessionConfig::default() }).unwrap()
}

#[track_caller]
fn execute(session: &Session, volume: &Volume, submission: Submission) -> Done {
    volume.submit(submission).unwrap();
    assert_eq!(session.wait(1, PATIENCE), 1);
    let mut done = Vec::new();
    session.reap(&mut done);
    done.pop().unwrap()
}

#[test]
fn the_calls_for_a_file_do_for_a_remote_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), "mem:16M");
    let session = session();
    let volume = session.open(&uri(&daemon, "")).unwrap();
    let local = session.open("mem:1M").unwrap();
    let pattern: Vec<u8> = (0..8192u32).map(|at| (at * 7 % 251) as u8).collect();
    for volume in [&volume, &local] {
        let done = execute(&session, volume, Submission::write(5, 16, pattern.clone()).token(3));
        assert_eq!((done.status, done.token, done.volume), (Status::SUCCESS, 3, volume.id()));
        assert!(execute(&session, volume, Submission::flush()).status.is_success());
        let buffer = session.allocate(8192).unwrap();
        let done = execute(&session, volume, Submission::read(5, 16, buffer));
        assert!(done.data.as_slice() == pattern, "into a buffer of the pool");
        let done = execute(&session, volume, Submission::read(6, 1, vec![0; 512]));
        assert!(done.data.as_slice() == &pattern[512..1024], "into ordinary memory");
        let compare = Submission::new(Command::blocks(opcode::io::COMPARE, 1, 5, 1));
        let done = execute(&session, volume, compare.data(vec![0; 512]));
        assert_eq!(done.status.code(), Status::COMPARE_FAILURE);
        let done =
            execute(&session, volume, Submission::read(volume.limits().blocks, 1, vec![0; 512]));
        assert_eq!(done.status.code(), Status::LBA_OUT_OF_RANGE);
        let vendor = Command { opcode: 0x93, ..Command::default() };
        let done = execute(&session, volume, Submission::new(vendor));
        assert_eq!(done.status.code(), Status::INVALID_OPCODE);
    }
    // An admin command reaches the controller.
    let identify =
        Command { opcode: opcode::admin::IDENTIFY, cdw10: 1.into(), ..Command::default() };
    let done = execute(&session, &volume, Submission::admin(identify).data(vec![0; 4096]));
    assert!(done.status.is_success(), "{}", done.status);
    let nqn = &done.data.as_slice()[768..][..NQN.len()];
    assert_eq!(nqn, NQN.as_bytes(), "SUBNQN of Identify Controller");
}

#[test]
fn many_commands_are_in_flight_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), "delay:100ms(mem:16M)");
    let session = session();
    let volume = session.open(&uri(&daemon, "")).unwrap();
    let together = || {
        let begin = Instant::now();
        for slba in 0..16 {
            volume.submit(Submission::read(slba, 1, vec![1; 512]).token(slba)).unwrap();
        }
        assert_eq!(session.wait(16, PATIENCE), 16);
        let taken = begin.elapsed();
        let mut done = Vec::new();
        session.reap(&mut done);
        let is_read = |done: &Done| done.status.is_success() && done.data.as_slice() == [0; 512];
        assert!(done.len() == 16 && done.iter().all(is_read));
        taken
    };
    // One after the other they would take sixteen times 100 ms, each time.
    let is_soon = |taken: &Duration| *taken < Duration::from_millis(1500);
    let taken: Vec<Duration> = (0..5).map(|_| together()).collect();
    assert!(taken.iter().any(is_soon), "{taken:?}");
}

/// A daemon that serves the file `a.img` by way of a cache that forgets what was not flushed when the daemon is killed, and whoever has written
/// there, who stays connected.
fn cached(dir: &Path) -> (Daemon, (Volume, Session)) {
    let path = dir.join("a.img");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let daemon = start(dir, &format!("volatile:({})", path.display()));
    let session = session();
    let volume = session.open(&uri(&daemon, "&ctrl_loss_tmo=1s")).unwrap();
    let done = execute(&session, &volume, Submission::write(8, 8, vec![7; 4096]));
    assert_eq!(done.status, Status::SUCCESS);
    assert!(holds(dir, 0), "the cache has it");
    (daemon, (volume, session))
}

/// Whether the file has nothing but `byte` where that was written.
fn holds(dir: &Path, byte: u8) -> bool {
    std::fs::read(dir.join("a.img")).unwrap()[4096..8192].iter().all(|it| *it == byte)
}

#[test]
fn a_daemon_that_is_told_to_stop_flushes_what_nobody_did() {
    for kept in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (daemon, _writer) = cached(dir.path());
        if kept {
            let (status, log) = daemon.stop("TERM");
            assert!(status.success(), "{log}");
        } else {
            daemon.kill();
        }
        assert!(holds(dir.path(), if kept { 7 } else { 0 }));
    }
}

/// What is removed from a daemon that goes on is flushed as well.
#[test]
fn a_volume_that_is_removed_is_flushed() {
    for (method, params) in
        [("volume_remove", json!({"nsid": 1})), ("subsystem_remove", json!({"nqn": NQN}))]
    {
        let dir = tempfile::tempdir().unwrap();
        let (daemon, _writer) = cached(dir.path());
        daemon.call(method, params);
        assert!(holds(dir.path(), 7), "{method}");
    }
}

#[test]
fn commands_to_a_remote_namespace_allocate_nothing() {
    const WARM_UP: u64 = 2_000;
    const COUNTED: u64 = 5_000;
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), "mem:16M");
    let session = session();
    let volume = session.open(&uri(&daemon, "")).unwrap();
    let mut done = Vec::with_capacity(16);
    // Half of them in memory of the pool, half in ordinary memory.
    let mut idle: Vec<Bytes> = (0..16)
        .map(|at| match at % 2 {
            0 => session.allocate(4096).unwrap().into(),
            _ => vec![1; 4096].into(),
        })
        .collect();
    let (mut sent, mut allocations) = (0, None);
    let mut rounds = counting_allocator::Rounds::new(WARM_UP, COUNTED);
    while allocations.is_none() {
        while let Some(data) = idle.pop() {
            let slba = sent * 8 % 32_768;
            let submission = match sent % 3 {
                0 => Submission::write(slba, 8, data),
                _ => Submission::read(slba, 8, data),
            };
            volume.submit(submission).unwrap();
            sent += 1;
        }
        session.wait(1, PATIENCE);
        session.reap(&mut done);
        for done in done.drain(..) {
            assert!(done.status.is_success(), "{}", done.status);
            idle.push(done.data);
            allocations = allocations.or(rounds.ended());
        }
    }
    assert_eq!(allocations, Some(0), "for {COUNTED} commands");
}

#[test]
fn an_idle_caller_keeps_its_association() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), "mem:16M");
    let session = session();
    // A machine that stands still for a second loses it rightly: of some tries, one is to keep it.
    let mut seen = Vec::new();
    let kept = (0..10).any(|_| {
        let volume = session.open(&uri(&daemon, "&keep_alive_tmo=1s")).unwrap();
        let read = || execute(&session, &volume, Submission::read(0, 1, vec![0; 512])).status;
        assert!(read().is_success());
        // Nothing is called for several times the keep alive timeout.
        std::thread::sleep(Duration::from_millis(4500));
        let before = volume.namespace().paths();
        let [path] = &before[..] else { panic!("one path") };
        let was_live = (path.reconnects, path.access) == (0, Access::Optimized);
        let kept = was_live && read().is_success() && volume.namespace().paths()[0].reconnects == 0;
        seen.push(before);
        kept
    });
    assert!(kept, "{seen:?}");
}

#[test]
fn a_session_ends_though_its_target_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), "delay:10s(mem:16M)");
    let session = session();
    let uri = uri(&daemon, "&reconnect_delay=100ms");
    let volume = session.open(&uri).unwrap();
    volume.submit(Submission::write(0, 1, vec![0; 512])).unwrap();
    volume.submit(Submission::read(1, 1, vec![0; 512])).unwrap();
    session.flush();
    daemon.kill();
    let begin = Instant::now();
    drop(session);
    assert!(begin.elapsed() < CLOSE_WAIT + Duration::from_secs(20), "{:?}", begin.elapsed());
    drop(volume);
    // Nor does anybody try to connect again for what they wait for.
    let address = uri.trim_start_matches("tcp://").split('/').next().unwrap();
    let port = std::net::TcpListener::bind(address).unwrap();
    port.set_nonblocking(true).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(port.accept().is_err(), "somebody is still connecting");
}
