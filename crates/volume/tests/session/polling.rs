//! A caller that sleeps in poll(2) on the session's descriptor, and never waits in the session.

use crate::behaviour::{execute, file, session};
use nvme::Status;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};
use volume::session::{Bytes, Done, PollError, Session, SessionConfig, Submission};

/// Milliseconds, long enough for anything that happens at all.
const PATIENCE: i32 = 20_000;

/// Whether the descriptor is readable within so many milliseconds.
fn sleep(session: &Session, limit_ms: i32) -> bool {
    let fd = session.poll_fd().expect("one may sleep").as_raw_fd();
    let until = Instant::now() + Duration::from_millis(limit_ms as u64);
    loop {
        let left = until.saturating_duration_since(Instant::now()).as_millis() as i32;
        let mut event = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which the call fills in.
        let count = unsafe { libc::poll(&raw mut event, 1, left) };
        let error = std::io::Error::last_os_error();
        if count >= 0 {
            return event.revents & libc::POLLIN != 0;
        }
        assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{error}");
    }
}

/// Reaps `count` commands, and how often it slept for them.
#[track_caller]
fn reap(session: &Session, count: usize) -> (Vec<Done>, u32) {
    let (mut done, mut slept) = (Vec::new(), 0);
    while done.len() < count {
        if session.arm().expect("one may sleep") == 0 {
            assert!(sleep(session, PATIENCE), "{} of {count} came", done.len());
            slept += 1;
        }
        session.reap(&mut done);
    }
    assert_eq!((done.len(), session.outstanding()), (count, 0));
    (done, slept)
}

#[test]
fn all_is_reaped_whatever_the_volume() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = file(&directory, "a");
    let others = (crate::behaviour::file(&directory, "b"), crate::behaviour::file(&directory, "c"));
    for (uri, must_sleep) in [
        ("mem:1M?bs=4096", false),
        ("null:1M?bs=4096", false),
        ("delay:20ms(mem:1M?bs=4096)", true),
        (&*file, false),
        (&format!("delay:5ms(linear:({}))", others.0), true),
        (&format!("rate:iops=400(volatile:({}))", others.1), false),
    ] {
        let session = session(64);
        let volume = session.open(uri).expect(uri);
        let run = |round: u8| {
            for slba in 0..60 {
                let memory = session.allocate(4096).expect("room").into();
                let mut memory = if slba % 2 == 0 { memory } else { Bytes::Owned(vec![0; 4096]) };
                memory.as_mut_slice().fill(round * 61 + slba as u8);
                let submission = match round % 2 {
                    0 => Submission::write(slba, 1, memory),
                    _ => Submission::read(slba, 1, memory),
                };
                volume.submit(submission.token(slba)).expect("room");
            }
            // By a thread, where the volume is a file.
            volume.submit(Submission::flush().token(60)).expect("room");
            reap(&session, 61)
        };
        for round in 0..4u8 {
            // Where the machine stands still all may have come before it sleeps: then once more.
            let mut runs = (0..10).map(|_| run(round));
            let run = runs.find(|(_, slept)| *slept > 0 || !must_sleep);
            let (mut done, _) = run.unwrap_or_else(|| panic!("{uri}: it has not slept"));
            assert!(done.iter().all(|done| done.status.is_success()), "{uri}");
            done.sort_by_key(|done| done.token);
            assert!((0..61).eq(done.iter().map(|done| done.token)), "{uri}");
            if round % 2 == 1 && !uri.starts_with("null:") {
                let wrote = (round - 1) * 61;
                let is_it = |done: &Done| done.data.as_slice()[4095] == wrote + done.token as u8;
                assert!(done[..60].iter().all(is_it), "{uri}");
            }
        }
    }
}

#[test]
fn commands_one_after_another_each_have_their_wake() {
    let directory = tempfile::tempdir().expect("a directory");
    let session = session(2);
    let volume = session.open(&file(&directory, "a")).expect("a file");
    let slow = session.open("delay:1ms(null:1M?bs=4096)").expect("null");
    for at in 0..300 {
        volume.submit(Submission::write(at % 256, 1, vec![1; 4096])).expect("room");
        slow.submit(Submission::flush()).expect("room");
        reap(&session, 2);
    }
    // A caller that waits is not kept from it by what was armed, nor the other way round.
    for at in 0..20 {
        execute(&session, &slow, Submission::flush());
        volume.submit(Submission::read(at, 1, vec![1; 4096])).expect("room");
        reap(&session, 1);
    }
}

#[test]
fn nothing_to_do_wakes_nobody_and_it_may_be_submitted_after_that() {
    let session = session(4);
    let volume = session.open("delay:200ms(mem:1M?bs=4096)").expect("memory");
    assert_eq!(session.arm().expect("one may sleep"), 0);
    assert!(!sleep(&session, 50));
    volume.submit(Submission::read(0, 1, vec![0; 4096])).expect("room");
    assert!(!sleep(&session, 100), "it was not handed over: nothing happens by itself");
    while session.arm().expect("one may sleep") == 0 {
        assert!(sleep(&session, PATIENCE));
        assert!(sleep(&session, 0), "it is readable for as long as nobody has looked");
    }
    assert_eq!((session.arm().expect("one may sleep"), session.arm().expect("the same")), (1, 1));
    let mut done = Vec::new();
    assert_eq!((session.reap(&mut done), done[0].status), (1, Status::SUCCESS));
    while session.arm().expect("one may sleep") != 0 || sleep(&session, 0) {}
    assert!(!sleep(&session, 50));
}

/// As tokio and others have it: told once of each change, whether or not it was looked at.
#[test]
fn edges_are_enough() {
    // SAFETY: a new descriptor, if it succeeds, which nobody else has.
    let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let session = session(16);
    let fd = session.poll_fd().expect("one may sleep").as_raw_fd();
    let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
    let mut event = libc::epoll_event { events, u64: 0 };
    let (add, raw) = (libc::EPOLL_CTL_ADD, epoll.as_raw_fd());
    // SAFETY: one structure, which the call reads.
    assert_eq!(unsafe { libc::epoll_ctl(raw, add, fd, &raw mut event) }, 0);
    let volume = session.open("delay:300us(mem:1M?bs=4096)").expect("memory");
    let quick = session.open("mem:1M?bs=4096").expect("memory");
    let (mut done, mut ended, mut slept) = (Vec::new(), 0, 0);
    while ended < 2_000 {
        for at in session.outstanding()..16 {
            let volume = if at % 8 == 0 { &quick } else { &volume };
            volume.submit(Submission::read(at as u64, 1, vec![0; 4096])).expect("room");
        }
        if session.arm().expect("one may sleep") == 0 {
            // SAFETY: as above, and written.
            let count = unsafe { libc::epoll_wait(raw, &raw mut event, 1, PATIENCE) };
            let error = std::io::Error::last_os_error();
            let is_interrupted = count < 0 && error.kind() == std::io::ErrorKind::Interrupted;
            assert!(count == 1 || is_interrupted, "after {ended} commands: {count}");
            slept += 1;
        }
        ended += session.reap(&mut done);
        done.clear();
    }
    assert!(slept > 100, "{slept}");
}

#[test]
fn who_polls_for_completions_has_no_descriptor() {
    let config = SessionConfig { depth: 1, poll: true, ..SessionConfig::default() };
    let session = Session::new(&config).expect("a session");
    let refused = session.poll_fd().expect_err("nobody would tell");
    assert!(matches!(refused, PollError::PollsAlways), "{refused}");
    assert!(session.arm().is_err());
    let volume = session.open("mem:1M?bs=4096").expect("memory");
    assert!(execute(&session, &volume, Submission::flush()).status.is_success());
}

/// Allocations of rounds of submitting, arming, sleeping and reaping.
#[test]
fn nothing_is_allocated_to_sleep() {
    let session = session(16);
    let volume = session.open("delay:50us(mem:1M?bs=4096)").expect("memory");
    let mut rounds = counting_allocator::Rounds::new(500, 2_000);
    let (mut done, mut idle) = (Vec::with_capacity(16), vec![Bytes::from(vec![0; 4096])]);
    loop {
        let data = idle.pop().expect("it came back");
        volume.submit(Submission::read(0, 1, data)).expect("room");
        while session.reap(&mut done) == 0 {
            if session.arm().expect("one may sleep") == 0 {
                assert!(sleep(&session, PATIENCE));
            }
        }
        idle.extend(done.drain(..).map(|done| done.data));
        if let Some(allocations) = rounds.ended() {
            assert_eq!(allocations, 0);
            return;
        }
    }
}
