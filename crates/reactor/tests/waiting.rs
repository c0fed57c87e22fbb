//! A thread that only waits makes one system call per completion.

mod recorder;

use reactor::{Complete, Config, Reactor};
use recorder::{config, reactor};
use std::cell::{Cell, UnsafeCell};
use std::io::{Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::time::Duration;
use uring::{File, entry};

const MESSAGES: u64 = 500;

/// Answers each byte that comes by a direct call, and reads the next by the ring.
struct Echo {
    me: Weak<Echo>,
    reactor: Rc<Reactor>,
    from: std::io::PipeReader,
    to: std::io::PipeWriter,
    byte: UnsafeCell<u8>,
    answered: Cell<u64>,
}

impl Echo {
    fn read(&self) {
        let sink = self.me.upgrade().expect("called");
        let entry = entry::read(File::Fd(self.from.as_raw_fd()), self.byte.get(), 1, u64::MAX);
        // SAFETY: the sink owns the byte and the pipe.
        unsafe { self.reactor.submit(entry, sink, 0) };
    }
}

impl Complete for Echo {
    fn complete(&self, _token: u64, result: i32, _flags: u32) {
        assert_eq!(result, 1);
        self.answered.set(self.answered.get() + 1);
        (&self.to).write_all(&[7]).expect("the other end is open");
        if self.answered.get() == MESSAGES { self.reactor.stop() } else { self.read() }
    }
}

#[test]
fn what_a_completion_starts_goes_out_with_the_next_wait() {
    let (from, mut ask) = pipe().expect("a pipe");
    let (mut answer, to) = pipe().expect("a pipe");
    let peer = std::thread::spawn(move || {
        for _ in 0..MESSAGES {
            ask.write_all(&[1]).expect("the echo reads");
            answer.read_exact(&mut [0]).expect("the echo answers");
        }
    });
    let reactor = reactor(&Config { spin: Duration::ZERO, ..config() });
    let echo = Rc::new_cyclic(|me| Echo {
        me: Weak::clone(me),
        reactor: Rc::clone(&reactor),
        from,
        to,
        byte: UnsafeCell::new(0),
        answered: Cell::new(0),
    });
    echo.read();
    let before = reactor.stats().enters;
    while reactor.wait_turn() {}
    let enters = reactor.stats().enters - before;
    reactor.run();
    peer.join().expect("every message was answered");
    assert_eq!(echo.answered.get(), MESSAGES);
    assert!(enters <= MESSAGES + MESSAGES / 10, "{enters} calls for {MESSAGES} messages");
}

/// Counts what it is told, and gathers it.
struct Gatherer {
    me: Weak<Gatherer>,
    reactor: Rc<Reactor>,
    gathered: Cell<u32>,
    rounds: std::cell::RefCell<Vec<u32>>,
}

const ONE: u64 = 0;
const ROUND: u64 = 1;

impl Gatherer {
    fn start(&self, count: u32) {
        for _ in 0..count {
            // SAFETY: the entry points to nothing.
            unsafe { self.reactor.submit(entry::nop(), self.me(), ONE) };
        }
    }

    fn me(&self) -> Rc<Gatherer> {
        self.me.upgrade().expect("called")
    }
}

impl Complete for Gatherer {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        if token == ONE {
            if self.gathered.replace(self.gathered.get() + 1) == 0 {
                self.reactor.settle(self.me(), ROUND);
            }
            return;
        }
        self.rounds.borrow_mut().push(self.gathered.take());
        match self.rounds.borrow().len() {
            1 => self.start(3),
            2 => self.start(1),
            _ => self.reactor.stop(),
        }
    }
}

#[test]
fn what_completions_bring_is_gathered_until_all_are_delivered() {
    let reactor = reactor(&config());
    let gatherer = Rc::new_cyclic(|me| Gatherer {
        me: Weak::clone(me),
        reactor: Rc::clone(&reactor),
        gathered: Cell::new(0),
        rounds: std::cell::RefCell::default(),
    });
    gatherer.start(40);
    while reactor.wait_turn() {}
    assert_eq!(*gatherer.rounds.borrow(), [40, 3, 1]);
    // Asked for from elsewhere than a completion, it is told as well.
    let outside = Reactor::new(&config()).expect("io_uring");
    let late = Rc::new_cyclic(|me| Gatherer {
        me: Weak::clone(me),
        reactor: Rc::clone(&outside),
        gathered: Cell::new(7),
        rounds: std::cell::RefCell::new(vec![0, 0]),
    });
    outside.settle(late.me(), ROUND);
    assert!(outside.turn_for(reactor::Drive::Poll));
    assert_eq!(*late.rounds.borrow(), [0, 0, 7]);
}

/// Says at its first completion how many others that stands for.
struct Many {
    reactor: Rc<Reactor>,
    others: i64,
    told: Cell<u32>,
    byte: UnsafeCell<u8>,
}

impl Complete for Many {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        if self.told.replace(self.told.get() + 1) == 0 {
            self.reactor.stands_for(self.others);
        }
    }
}

/// A thread that spins long before it sleeps sleeps at once after what stands for many.
#[test]
fn after_a_completion_that_stands_for_many_it_sleeps_rather_than_spins() {
    for (others, sleeps) in [(0, 0), (30, 1)] {
        let reactor = reactor(&Config { spin: Duration::from_secs(20), ..config() });
        let (from, mut to) = pipe().expect("a pipe");
        let (told, byte) = (Cell::new(0), UnsafeCell::new(0));
        let many = Rc::new(Many { reactor: Rc::clone(&reactor), others, told, byte });
        // SAFETY: the entry points to nothing.
        unsafe { reactor.submit(entry::nop(), Rc::clone(&many) as _, 0) };
        while many.told.get() == 0 {
            assert!(reactor.wait_turn());
        }
        let read = entry::read(File::Fd(from.as_raw_fd()), many.byte.get(), 1, u64::MAX);
        // SAFETY: the sink owns the byte, and the pipe outlives the read.
        unsafe { reactor.submit(read, Rc::clone(&many) as _, 1) };
        let before = reactor.stats().sleeps;
        let peer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            to.write_all(&[7]).expect("room");
        });
        while many.told.get() == 1 {
            assert!(reactor.wait_turn());
        }
        peer.join().expect("written");
        assert_eq!(reactor.stats().sleeps - before, sleeps, "{others}");
    }
}
