//! Timers, deferred completions and calls that block.

use crate::recorder;

use reactor::{Complete, Drive, Line, Reactor};
use recorder::{Calls, Recorder, config, reactor};
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[test]
fn timers_fire_in_order_and_not_early() {
    let timing = reactor(&config());
    let start = Instant::now();
    let seen: Rc<RefCell<Vec<(u64, Duration)>>> = Rc::default();
    let note = Rc::clone(&seen);
    let stop = Rc::clone(&timing);
    let sink: Rc<dyn Complete> = Rc::new(Calls(move |token, _| {
        note.borrow_mut().push((token, start.elapsed()));
        if token == 300 {
            stop.stop();
        }
    }));
    for ms in [300, 100, 200] {
        timing.timer(start + Duration::from_millis(ms), Rc::clone(&sink), ms);
    }
    let cancelled = timing.timer(start + Duration::from_millis(150), Rc::clone(&sink), 150);
    timing.cancel_timer(cancelled);
    timing.run();
    let seen = seen.borrow();
    assert!(seen.iter().map(|(ms, _)| *ms).eq([100, 200, 300]), "{seen:?}");
    assert!(seen.iter().all(|(ms, at)| *at >= Duration::from_millis(*ms)), "{seen:?}");
    let stats = timing.stats();
    // On a busy machine one sleep may last until all are due, or the first turn come when they are.
    let is_late = seen[0].1 >= Duration::from_millis(300);
    assert!(stats.sleeps <= 6 && (stats.sleeps >= 1 || is_late), "one per timer or so: {stats:?}");
}

/// Defers 11 to 13 for 1 to 3, then 99 for 12, and stops.
struct Chain {
    reactor: Rc<Reactor>,
    this: Weak<Chain>,
    order: RefCell<Vec<u64>>,
}

impl Complete for Chain {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        self.order.borrow_mut().push(token);
        let again = self.this.upgrade().expect("pending");
        match token {
            1..=3 => self.reactor.defer(again, token + 10),
            12 => self.reactor.defer(again, 99),
            99 => self.reactor.stop(),
            _ => {}
        }
    }
}

#[test]
fn deferred_come_after_the_turns_completions() {
    let reactor = reactor(&config());
    let chain = Rc::new_cyclic(|this| Chain {
        reactor: Rc::clone(&reactor),
        this: Weak::clone(this),
        order: RefCell::default(),
    });
    for token in 1..=3 {
        // SAFETY: a no-operation points to nothing.
        unsafe { reactor.submit(uring::entry::nop(), Rc::clone(&chain) as Rc<_>, token) };
    }
    reactor.run();
    assert_eq!(*chain.order.borrow(), [1, 2, 3, 11, 12, 13, 99]);
}

#[test]
fn blocking_calls_run_beside_the_loop_on_a_bounded_number_of_threads() {
    let pooled = reactor(&reactor::Config { blocking_threads: 3, ..config() });
    let sink = Recorder::new(&pooled, 30);
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for token in 0..30 {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        let work = move || {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // The first three are at work at once, however late one of them is.
            let until = Instant::now() + Duration::from_secs(10);
            while most.load(Ordering::SeqCst) < 3 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(3));
            running.fetch_sub(1, Ordering::SeqCst);
            assert_ne!(token, 7, "a panic is an answer too");
            token as i32
        };
        pooled.blocking(Box::new(work), Rc::clone(&sink) as Rc<_>, token);
    }
    pooled.run();
    let expected = (0..30).map(|n| (n, if n == 7 { -libc::EIO } else { n as i32 }));
    assert!(sink.results().into_iter().eq(expected));
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[test]
fn long_work_leaves_threads_to_others() {
    let pooled = reactor(&reactor::Config { blocking_threads: 4, ..config() });
    let sink = Recorder::new(&pooled, 13);
    // Long work that ends only when the rest is done: were it given every thread, nothing would end.
    let (short, busy) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for token in 0..5 {
        let (short, busy) = (Arc::clone(&short), Arc::clone(&busy));
        let work = move || {
            let most = busy.fetch_add(1, Ordering::SeqCst) + 1;
            while short.load(Ordering::SeqCst) < 8 {
                std::thread::sleep(Duration::from_millis(1));
            }
            busy.fetch_sub(1, Ordering::SeqCst);
            most as i32
        };
        pooled.blocking_long(Box::new(work), Rc::clone(&sink) as Rc<_>, token);
    }
    for token in 5..13 {
        let short = Arc::clone(&short);
        let work = move || short.fetch_add(1, Ordering::SeqCst) as i32;
        pooled.blocking(Box::new(work), Rc::clone(&sink) as Rc<_>, token);
    }
    pooled.run();
    let results = sink.results();
    assert_eq!(results.len(), 13);
    let most_max = pooled.long_threads() as i32;
    assert_eq!(most_max, 3);
    let long = results.iter().filter(|(token, _)| *token < 5);
    assert!(long.map(|(_, most)| most).all(|most| (1..=most_max).contains(most)));
}

#[test]
fn lines_are_done_in_order_and_by_no_more_threads_than_they_have() {
    let pooled = reactor(&reactor::Config { blocking_threads: 4, ..config() });
    let sink = Recorder::new(&pooled, 24);
    let (busy, others) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for token in 0..20 {
        // Twenty in a line of two threads, all of which wait until something of another line is done.
        let (busy, others) = (Arc::clone(&busy), Arc::clone(&others));
        let work = move || {
            let most = busy.fetch_add(1, Ordering::SeqCst) + 1;
            while others.load(Ordering::SeqCst) < 4 {
                std::thread::sleep(Duration::from_millis(1));
            }
            busy.fetch_sub(1, Ordering::SeqCst);
            most as i32
        };
        let line = Line { number: 7, threads: 2 };
        pooled.blocking_in(line, Box::new(work), Rc::clone(&sink) as Rc<_>, token);
    }
    for token in 20..24 {
        let others = Arc::clone(&others);
        let work = move || others.fetch_add(1, Ordering::SeqCst) as i32;
        // Nobody has none.
        let line = Line { number: 8, threads: 0 };
        pooled.blocking_in(line, Box::new(work), Rc::clone(&sink) as Rc<_>, token);
    }
    pooled.run();
    let results = sink.results();
    let of_first = |(token, _): &&(u64, i32)| *token < 20;
    assert_eq!(results.iter().filter(of_first).map(|(_, most)| *most).max(), Some(2));
    let of_second: Vec<_> = results.iter().filter(|it| !of_first(it)).copied().collect();
    assert_eq!(of_second, [(20, 0), (21, 1), (22, 2), (23, 3)]);
}

/// Within a turn the time stands still, whoever asks and how long it takes; the next turn has its own.
#[test]
fn a_turn_has_one_time() {
    let reactor = reactor(&config());
    let times = Rc::new(RefCell::new(Vec::new()));
    for _ in 0..2 {
        let (noted, asked) = (Rc::clone(&times), Rc::downgrade(&reactor));
        let ask = move |_, _| {
            noted.borrow_mut().push(asked.upgrade().expect("alive").now());
            std::thread::sleep(Duration::from_millis(5));
        };
        reactor.defer(Rc::new(Calls(ask)), 0);
    }
    let begun = Instant::now();
    assert!(reactor.turn_for(Drive::Poll));
    let first = times.take();
    assert!(first.len() == 2 && first[0] == first[1] && first[0] >= begun, "{first:?}");
    // Who takes turns now and then does other things in between.
    let after = Instant::now();
    assert!(reactor.now() >= after, "the turn is over");
    assert!(!reactor.turn_for(Drive::Poll), "nothing is left");
    assert!(reactor.now() >= first[0] + Duration::from_millis(10), "of a turn of its own");
    reactor.stop();
    reactor.run();
}
