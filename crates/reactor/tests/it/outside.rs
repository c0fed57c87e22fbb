//! A caller that sleeps in poll(2), and nowhere else: whatever there is to do wakes it.

use crate::recorder;

use reactor::{Config, Drive, OutsideError, Reactor};
use recorder::{Calls, config};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::{Cell, RefCell};
use std::io::{PipeReader, Write, pipe};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use uring::{File, RingOptions, SqPoll, entry};

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(20);

/// Long enough for others to be found asleep.
const A_WHILE: Duration = Duration::from_millis(30);

fn reactor() -> Rc<Reactor> {
    Reactor::new(&config()).expect("io_uring is allowed where tests run")
}

/// Whether the descriptor becomes readable before `limit` has passed.
fn sleep(reactor: &Reactor, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("seconds");
        let event = reactor.descriptor().expect("one may sleep");
        let mut event = [PollFd::new(&event, PollFlags::IN)];
        match poll(&mut event, Some(&left)) {
            Ok(count) => return count > 0,
            Err(error) => assert_eq!(error, rustix::io::Errno::INTR),
        }
    }
}

/// Takes turns, and sleeps outside between them, until `done`. How often it slept.
#[track_caller]
fn drive(reactor: &Reactor, done: impl Fn() -> bool) -> u32 {
    let mut slept = 0;
    loop {
        while reactor.turn_for(Drive::Poll) {}
        if done() {
            return slept;
        }
        if reactor.arm().expect("one may sleep") {
            assert!(sleep(reactor, PATIENCE), "nobody has told of it");
            slept += 1;
        }
    }
}

/// A sink that notes a result.
fn noting(result: &Rc<Cell<Option<i32>>>) -> Rc<Calls<impl Fn(u64, i32) + use<>>> {
    let result = Rc::clone(result);
    Rc::new(Calls(move |_, got| result.set(Some(got))))
}

/// A pipe into which a byte comes after a while.
fn slow_pipe() -> PipeReader {
    let (from, mut to) = pipe().expect("a pipe");
    thread::spawn(move || {
        thread::sleep(A_WHILE);
        to.write_all(&[7]).expect("room");
    });
    from
}

/// What it waits for may have come before it sleeps, where the machine stands still.
#[track_caller]
fn woken_in_one_of_several(attempt: impl Fn() -> u32) {
    assert!((0..10).any(|_| attempt() > 0), "it never slept");
}

#[test]
fn completions_of_the_ring_wake_it() {
    woken_in_one_of_several(|| {
        let reactor = reactor();
        let (from, mut byte, result) = (slow_pipe(), [0u8], Rc::default());
        let read = entry::read(File::Fd(from.as_raw_fd()), byte.as_mut_ptr(), 1, u64::MAX);
        // SAFETY: the byte outlives the operation, which is waited for below.
        unsafe { reactor.submit(read, noting(&result), 0) };
        let slept = drive(&reactor, || result.get().is_some());
        assert_eq!((result.get(), byte), (Some(1), [7]));
        slept
    });
}

#[test]
fn what_is_readable_wakes_it() {
    let reactor = reactor();
    let (from, result) = (slow_pipe(), Rc::default());
    reactor.watch(from.as_raw_fd(), reactor::Interest::READ, noting(&result), 0);
    drive(&reactor, || result.get().is_some());
    assert_eq!(result.get().expect("told") & 1, 1);
}

#[test]
fn completions_of_a_further_ring_wake_it() {
    let reactor = reactor();
    let further = reactor.command_ring(&RingOptions { entries: 8, ..RingOptions::default() });
    let further = further.expect("a ring");
    let (from, mut byte, result) = (slow_pipe(), [0u8], Rc::default());
    let read = entry::read(File::Fd(from.as_raw_fd()), byte.as_mut_ptr(), 1, u64::MAX);
    // SAFETY: the byte outlives the operation, which is waited for below.
    unsafe { further.submit(read, noting(&result), 0) };
    drive(&reactor, || result.get().is_some());
    assert_eq!((result.get(), byte), (Some(1), [7]));
}

#[test]
fn work_that_blocks_wakes_it_when_it_has_ended() {
    woken_in_one_of_several(|| {
        let reactor = reactor();
        let result = Rc::default();
        let work = || {
            thread::sleep(A_WHILE);
            42
        };
        reactor.blocking(Box::new(work), noting(&result), 0);
        let slept = drive(&reactor, || result.get().is_some());
        assert_eq!(result.get(), Some(42));
        slept
    });
}

#[test]
fn timers_wake_it_and_earlier_ones_that_come_later() {
    let reactor = reactor();
    let order: Rc<RefCell<Vec<u64>>> = Rc::default();
    let begin = Instant::now();
    let set = |token, after_ms| {
        let order = Rc::clone(&order);
        let note = Calls(move |token, _| order.borrow_mut().push(token));
        reactor.timer(begin + Duration::from_millis(after_ms), Rc::new(note), token);
    };
    let is_armed = || reactor.arm().expect("one may sleep");
    set(1, 600_000);
    assert!(is_armed());
    // The alarm is moved, twice, which by itself is nothing to be done.
    set(2, 200);
    assert!(is_armed() || begin.elapsed() >= Duration::from_millis(200));
    set(3, 60);
    assert!(is_armed() || begin.elapsed() >= Duration::from_millis(60));
    drive(&reactor, || !order.borrow().is_empty());
    assert!(begin.elapsed() >= Duration::from_millis(60));
    drive(&reactor, || order.borrow().len() == 2);
    assert!(begin.elapsed() >= Duration::from_millis(200));
    assert_eq!(*order.borrow(), [3, 2]);
    // None of the first is due, and a timer that is cancelled wakes nobody.
    while !is_armed() {
        reactor.turn_for(Drive::Poll);
    }
    assert!(!sleep(&reactor, A_WHILE), "it is told of nothing");
}

#[test]
fn what_is_there_already_forbids_to_sleep() {
    let reactor = reactor();
    assert!(reactor.arm().expect("one may sleep"), "there is nothing");
    let result: Rc<Cell<Option<i32>>> = Rc::default();
    reactor.defer(noting(&result), 0);
    assert!(!reactor.arm().expect("one may sleep"), "deferred");
    drive(&reactor, || result.take().is_some());
    reactor.timer(Instant::now(), noting(&result), 0);
    assert!(!reactor.arm().expect("one may sleep"), "due");
    drive(&reactor, || result.take().is_some());
    // SAFETY: a no-operation points to nothing.
    unsafe { reactor.submit(entry::nop(), noting(&result), 0) };
    assert!(!reactor.arm().expect("one may sleep"), "it completes as it is handed over");
    drive(&reactor, || result.take().is_some());
    assert!(reactor.mailbox().post(|_| ()));
    assert!(!reactor.arm().expect("one may sleep"), "a letter");
    drive(&reactor, || reactor.stats().letters == 1);
    assert!(reactor.arm().expect("one may sleep"));
    reactor.rouse();
    assert!(sleep(&reactor, PATIENCE));
    assert!(reactor.arm().expect("one may sleep") && !sleep(&reactor, A_WHILE), "said once");
}

/// Letters that meet it at work, falling asleep and asleep: each must be run before the next is posted.
#[test]
fn no_letter_is_missed_whatever_the_moment() {
    const LETTERS: u64 = 20_000;
    let reactor = reactor();
    let (mailbox, seen) = (reactor.mailbox(), Arc::new(AtomicU64::new(0)));
    let writer = thread::spawn(move || {
        let mut random = 0x9e37_79b9_u64;
        for number in 0..LETTERS {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let until = Instant::now() + Duration::from_nanos(random % 30_000);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            let counter = Arc::clone(&seen);
            assert!(mailbox.post(move |_| {
                counter.fetch_add(1, Ordering::Release);
            }));
            while seen.load(Ordering::Acquire) == number {
                thread::yield_now();
            }
        }
    });
    let slept = drive(&reactor, || reactor.stats().letters == LETTERS);
    writer.join().expect("all were run");
    assert!(slept > 0, "the race was not run");
}

#[test]
fn a_wait_of_the_reactors_own_still_works() {
    let reactor = reactor();
    let result = Rc::default();
    for round in 0..3 {
        let begin = Instant::now();
        reactor.timer(begin + A_WHILE, noting(&result), 0);
        if round % 2 == 0 {
            drive(&reactor, || result.get().is_some());
        } else {
            // With what the last sleep outside has left.
            assert!(reactor.arm().expect("one may sleep") || begin.elapsed() >= A_WHILE);
            while result.get().is_none() {
                reactor.turn_for(Drive::Forever);
            }
        }
        assert!(result.take().is_some() && begin.elapsed() >= A_WHILE);
        let mailbox = reactor.mailbox();
        let letter = thread::spawn(move || {
            thread::sleep(A_WHILE);
            mailbox.post(|_| ())
        });
        let letters = reactor.stats().letters;
        while reactor.stats().letters == letters {
            reactor.turn_for(Drive::Forever);
        }
        assert!(letter.join().expect("posted"));
    }
}

#[test]
fn who_has_to_look_may_not_sleep() {
    let always = Reactor::new(&Config { poll_always: true, ..config() }).expect("a reactor");
    assert!(matches!(always.descriptor(), Err(OutsideError::PollsAlways)));
    assert!(matches!(always.arm(), Err(OutsideError::PollsAlways)));
    let reactor = reactor();
    let sqpoll = Some(SqPoll { cpu: None, idle_ms: 1 });
    let further = reactor.command_ring(&RingOptions { sqpoll, ..RingOptions::default() });
    let further = further.expect("a ring");
    assert!(reactor.arm().expect("nothing is in flight there"));
    let (from, mut byte, result) = (slow_pipe(), [0u8], Rc::default());
    let read = entry::read(File::Fd(from.as_raw_fd()), byte.as_mut_ptr(), 1, u64::MAX);
    // SAFETY: the byte outlives the operation, which is waited for below.
    unsafe { further.submit(read, noting(&result), 0) };
    let refused = reactor.arm().expect_err("it must be looked at");
    assert!(refused.to_string().contains("sqpoll"), "{refused}");
    while result.get().is_none() {
        reactor.turn_for(Drive::Poll);
    }
    assert!(drive(&reactor, || true) == 0 && reactor.arm().expect("nothing is in flight there"));
}
