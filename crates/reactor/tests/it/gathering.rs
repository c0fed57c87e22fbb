//! What completions bring, gathered until all of them are delivered.

use crate::recorder;

use reactor::{Complete, Reactor};
use recorder::{config, reactor};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use uring::entry;

/// Counts what it is told, and gathers it.
struct Gatherer {
    me: Weak<Gatherer>,
    reactor: Rc<Reactor>,
    gathered: Cell<u32>,
    rounds: RefCell<Vec<u32>>,
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
        rounds: RefCell::default(),
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
        rounds: RefCell::new(vec![0, 0]),
    });
    outside.settle(late.me(), ROUND);
    assert!(outside.turn_for(reactor::Drive::Poll));
    assert_eq!(*late.rounds.borrow(), [0, 0, 7]);
}
