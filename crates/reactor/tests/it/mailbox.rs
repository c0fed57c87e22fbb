//! Letters from other threads: none lost, whatever the moment.

use crate::recorder;

use reactor::{Config, Drive, Reactor};
use recorder::{config, reactor};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// xorshift64, so that the pauses differ and are the same every time.
fn pause(state: &mut u64) -> Duration {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    Duration::from_nanos(*state % 30_000)
}

/// Posts `count` letters one at a time, each after a pause that makes it meet the loop busy,
/// spinning, falling asleep or asleep; each must be run before the next is posted.
fn hammer(spin: Duration, count: u64, seed: u64) {
    let (send, receive) = std::sync::mpsc::channel();
    let runner = thread::spawn(move || {
        // Without a limit to the time of all letters: each has one of its own.
        let reactor = Reactor::new(&Config { spin, ..config() });
        let reactor = reactor.expect("io_uring is allowed where tests run");
        send.send(reactor.mailbox()).expect("awaited");
        reactor.run();
        reactor.stats()
    });
    let mailbox = receive.recv().expect("sent");
    let seen = Arc::new(AtomicU64::new(0));
    let mut state = seed;
    for number in 1..=count {
        let until = Instant::now() + pause(&mut state);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let counter = Arc::clone(&seen);
        assert!(mailbox.post(move |_| {
            counter.fetch_add(1, Ordering::Release);
        }));
        let deadline = Instant::now() + Duration::from_secs(10);
        while seen.load(Ordering::Acquire) != number {
            assert!(Instant::now() < deadline, "letter {number} was never run");
            thread::yield_now();
        }
    }
    assert!(mailbox.post(|reactor| reactor.stop()));
    let stats = runner.join().expect("stopped");
    assert_eq!(stats.letters, count + 1);
    assert!(stats.sleeps > 0, "the race was not run: {stats:?}");
    assert!(!mailbox.post(|_| ()), "an ended reactor takes no letters");
}

#[test]
fn no_wake_up_is_lost_when_it_sleeps_at_once() {
    hammer(Duration::ZERO, 50_000, 0x9e37_79b9);
}

#[test]
fn no_wake_up_is_lost_when_it_spins_first() {
    hammer(Duration::from_micros(5), 50_000, 0x85eb_ca6b);
}

#[test]
fn letters_of_many_threads_arrive_in_each_ones_order() {
    let (send, receive) = std::sync::mpsc::channel();
    let runner = thread::spawn(move || {
        let reactor = reactor(&config());
        send.send(reactor.mailbox()).expect("awaited");
        reactor.run();
    });
    let mailbox = receive.recv().expect("sent");
    let next: Arc<[AtomicU64; 4]> = Arc::default();
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (mailbox, next) = (mailbox.clone(), Arc::clone(&next));
            thread::spawn(move || {
                for number in 0..5000 {
                    let next = Arc::clone(&next);
                    assert!(mailbox.post(move |_| {
                        assert_eq!(next[writer].fetch_add(1, Ordering::Relaxed), number);
                    }));
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().expect("posted");
    }
    assert!(mailbox.post(|reactor| reactor.stop()));
    runner.join().expect("in order");
    assert!(next.iter().all(|next| next.load(Ordering::Relaxed) == 5000));
}

#[test]
fn a_full_mailbox_refuses_letters_but_not_those_that_are_counted() {
    let reactor = reactor(&config());
    let mailbox = reactor.mailbox();
    let mut waiting = 0;
    while mailbox.post(|_| ()) {
        waiting += 1;
        assert!(waiting <= 65_536);
    }
    assert_eq!(waiting, 65_536);
    assert!(mailbox.post_counted(|reactor| reactor.stop()), "a letter that must not be lost is");
    reactor.run();
    assert_eq!(reactor.stats().letters, waiting + 1);
    assert!(!mailbox.post_counted(|_| ()), "an ended reactor takes no letters");
}

/// The letters that came with one that panics are left, and their wake-up is used up: whoever waits again must not
/// sleep over them, spinning first or not.
#[test]
fn what_came_with_a_letter_that_panics_is_run_by_the_next_wait() {
    for spin in [Duration::ZERO, Duration::from_micros(5)] {
        let reactor = reactor(&Config { spin, ..config() });
        // Nothing comes for a while, so that the next wait sleeps at once.
        for _ in 0..20 {
            let limit = Instant::now() + Duration::from_millis(1);
            assert!(!reactor.turn_for(Drive::Until(limit)));
        }
        let seen = Arc::new(AtomicU64::new(0));
        let mailbox = reactor.mailbox();
        assert!(mailbox.post(|_| panic!("this letter panics")));
        for _ in 0..3 {
            let counter = Arc::clone(&seen);
            assert!(mailbox.post(move |_| {
                counter.fetch_add(1, Ordering::Relaxed);
            }));
        }
        let begin = Instant::now();
        let wait = Drive::Until(begin + Duration::from_secs(20));
        let turned = catch_unwind(AssertUnwindSafe(|| reactor.turn_for(wait)));
        assert!(turned.is_err(), "it panicked");
        assert_eq!(seen.load(Ordering::Relaxed), 0, "the first is run first");
        assert!(reactor.turn_for(wait), "there are letters left");
        assert_eq!(seen.load(Ordering::Relaxed), 3);
        assert!(begin.elapsed() < Duration::from_secs(20), "it slept over them");
    }
}
