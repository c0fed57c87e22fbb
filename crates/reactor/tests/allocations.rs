//! Once warm, operations do not allocate.

mod recorder;

use reactor::{CommandRing, Complete, Config, Interest, Reactor};
use recorder::{config, reactor};
use std::cell::Cell;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::time::Duration;
use uring::{Kind, RingOptions, entry};

const WARM: u64 = 500;
const ROUNDS: u64 = 3000;

/// Each round: 32 no-operations, a watch, a cancelled and a fired timer, a deferred completion,
/// buffers of two sizes, and one that has to be waited for; with a further ring, big entries on
/// both.
struct Rounds {
    reactor: Rc<Reactor>,
    further: Option<Rc<CommandRing>>,
    this: Weak<Rounds>,
    reader: PipeReader,
    writer: PipeWriter,
    open: Cell<u32>,
    round: Cell<u64>,
    warm: Cell<u64>,
}

impl Rounds {
    fn round(&self) {
        let sink = || self.this.upgrade().expect("running") as Rc<dyn Complete>;
        let reactor = &self.reactor;
        self.open.set(32 + 1 + 1 + 1 + 1);
        if let Some(further) = &self.further {
            self.open.set(self.open.get() + 64);
            for token in 600..632 {
                // SAFETY: a no-operation points to nothing.
                unsafe {
                    reactor.submit_command(entry::big_nop(Some(token)), sink(), token);
                    further.submit_command(entry::big_nop(Some(token)), sink(), token);
                }
            }
        }
        for token in 0..32 {
            // SAFETY: a no-operation points to nothing.
            unsafe { reactor.submit(entry::nop(), sink(), token) };
        }
        reactor.watch(self.reader.as_raw_fd(), Interest::READ, sink(), 100);
        (&self.writer).write_all(b"x").expect("room");
        let soon = reactor.now() + Duration::from_micros(10);
        let never = reactor.timer(soon + Duration::from_secs(60), sink(), 200);
        reactor.timer(soon, sink(), 300);
        reactor.cancel_timer(never);
        reactor.defer(sink(), 400);
        let small = reactor.buffers().allocate(4096).expect("room");
        let large = reactor.buffers().allocate(1 << 20).expect("room");
        reactor.buffers().wait(sink(), 500);
        drop((small, large));
    }
}

impl Complete for Rounds {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        if token == 100 {
            (&self.reader).read_exact(&mut [0]).expect("ready");
        }
        self.open.set(self.open.get() - 1);
        if self.open.get() > 0 {
            return;
        }
        self.round.set(self.round.get() + 1);
        match self.round.get() {
            WARM => self.warm.set(counting_allocator::of_this_thread()),
            ROUNDS => return self.reactor.stop(),
            _ => {}
        }
        self.round();
    }
}

#[test]
fn a_warm_reactor_does_not_allocate() {
    rounds(Kind::Small);
}

#[test]
fn commands_do_not_allocate() {
    rounds(Kind::Mixed);
    rounds(Kind::Big);
}

fn rounds(kind: Kind) {
    let reactor = reactor(&Config { kind, ..config() });
    let options = RingOptions { kind, ..RingOptions::default() };
    let further = (kind != Kind::Small).then(|| reactor.command_ring(&options).expect("allowed"));
    let (reader, writer) = pipe().expect("a pipe");
    let rounds = Rc::new_cyclic(|this| Rounds {
        reactor: Rc::clone(&reactor),
        further,
        this: Weak::clone(this),
        reader,
        writer,
        open: Cell::new(0),
        round: Cell::new(0),
        warm: Cell::new(0),
    });
    rounds.round();
    let at_end = Rc::new(Cell::new(0));
    reactor.run();
    at_end.set(counting_allocator::of_this_thread());
    assert_eq!(rounds.round.get(), ROUNDS);
    assert!(rounds.warm.get() > 0, "the counter counts");
    // Draining makes a list of watches and the like: a few, and not one per round.
    let allocated = at_end.get() - rounds.warm.get();
    assert!(allocated < 20, "{allocated} allocations in {} rounds", ROUNDS - WARM);
}
