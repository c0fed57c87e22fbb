//! A thread that only waits makes one system call per completion.

use crate::recorder;

use reactor::{Complete, Config, Drive, Reactor};
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

/// Reads a byte, then another, and asks to be told at the end of the turn.
struct Goes {
    me: Weak<Goes>,
    reactor: Rc<Reactor>,
    from: std::io::PipeReader,
    to: std::io::PipeWriter,
    byte: UnsafeCell<u8>,
    told: Cell<Option<u64>>,
}

const READ: u64 = 1;
const DEFERRED: u64 = 2;
const WRITTEN: u64 = 3;

impl Goes {
    fn new(reactor: &Rc<Reactor>) -> (Rc<Goes>, std::io::PipeWriter, std::io::PipeReader) {
        let (from, ask) = pipe().expect("a pipe");
        let (answer, to) = pipe().expect("a pipe");
        let goes = Rc::new_cyclic(|me| Goes {
            me: Weak::clone(me),
            reactor: Rc::clone(reactor),
            from,
            to,
            byte: UnsafeCell::new(0),
            told: Cell::default(),
        });
        (goes, ask, answer)
    }

    fn sink(&self) -> Rc<dyn Complete> {
        self.me.upgrade().expect("called")
    }

    fn read(&self) {
        let entry = entry::read(File::Fd(self.from.as_raw_fd()), self.byte.get(), 1, u64::MAX);
        // SAFETY: the sink owns the byte and the pipe.
        unsafe { self.reactor.submit(entry, self.sink(), READ) };
    }
}

impl Complete for Goes {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        assert!(result >= 0, "{token}: {result}");
        self.told.set(Some(token));
        match (token, self.byte_read()) {
            (READ, b'd') => self.reactor.defer(self.sink(), DEFERRED),
            (READ, b'w') => {
                let entry =
                    entry::write(File::Fd(self.to.as_raw_fd()), self.byte.get(), 1, u64::MAX, 0);
                // SAFETY: as in `read`.
                unsafe { self.reactor.submit(entry, self.sink(), WRITTEN) };
            }
            _ => {}
        }
    }
}

impl Goes {
    fn byte_read(&self) -> u8 {
        // SAFETY: the read has ended, and no other was started.
        unsafe { self.byte.get().read() }
    }
}

/// A turn of the caller's that has slept: what its completions leave to be done is done before it returns, and where
/// they leave nothing it returns without a further look at the kernel.
#[test]
fn a_turn_that_slept_leaves_nothing_undone_and_is_no_longer_than_that() {
    let reactor = reactor(&Config { spin: Duration::ZERO, ..config() });
    let (goes, ask, mut answer) = Goes::new(&reactor);
    // One by one, from another thread, while this one sleeps.
    let wait_for = |byte: u8| {
        goes.told.set(None);
        goes.read();
        let before = reactor.stats();
        let mut to = ask.try_clone().expect("a descriptor");
        let peer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            to.write_all(&[byte]).expect("room");
        });
        while goes.told.get().is_none() {
            assert!(reactor.turn_for(Drive::Forever), "it runs");
        }
        peer.join().expect("written");
        let after = reactor.stats();
        assert_eq!(after.sleeps - before.sleeps, 1);
        (goes.told.get(), after.enters - before.enters, after.turns - before.turns)
    };
    assert_eq!(wait_for(b'-'), (Some(READ), 1, 0), "one system call, and no turn behind it");
    assert_eq!(wait_for(b'd'), (Some(DEFERRED), 1, 1), "at the end of the same turn");
    assert_eq!(wait_for(b'w').2, 1);
    let mut poll = libc::pollfd { fd: answer.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 5000) };
    assert_eq!(ready, 1, "the write went out with the turn");
    let mut byte = [0];
    answer.read_exact(&mut byte).expect("a byte");
    assert_eq!(byte, *b"w");
    drop(ask);
    reactor.stop();
    reactor.run();
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
