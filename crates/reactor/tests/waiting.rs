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
