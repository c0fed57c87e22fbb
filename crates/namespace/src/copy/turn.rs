//! How much a thread copies by itself in one turn of its reactor.

use reactor::{Complete, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Instant;

/// Bytes that one queue copies in a turn where that is the processor's work (memory): about a tenth of
/// a millisecond, in which nobody else on this core is served.
pub(crate) const TURN_BYTES_MAX: usize = 1 << 20;

/// The share of one queue. Whoever has to wait goes on in the next turn, in turn.
pub(super) struct Turn {
    me: Weak<Turn>,
    reactor: Rc<Reactor>,
    began: Cell<Option<Instant>>,
    bytes: Cell<usize>,
    waiting: RefCell<VecDeque<(Weak<dyn Complete>, u64)>>,
    is_deferred: Cell<bool>,
}

impl Turn {
    pub fn new(reactor: &Rc<Reactor>) -> Rc<Turn> {
        Rc::new_cyclic(|me| Turn {
            me: Weak::clone(me),
            reactor: Rc::clone(reactor),
            began: Cell::new(None),
            bytes: Cell::new(0),
            waiting: RefCell::default(),
            is_deferred: Cell::new(false),
        })
    }

    /// Whether more may be copied in this turn.
    pub fn may_copy(&self) -> bool {
        let now = Some(self.reactor.now());
        if self.began.replace(now) != now {
            self.bytes.set(0);
        }
        self.bytes.get() < TURN_BYTES_MAX
    }

    /// Notes `bytes` that were copied while the caller waited.
    pub fn copied(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
    }

    /// Calls `sink` in a later turn, when it may copy.
    pub fn wait(&self, sink: Weak<dyn Complete>, token: u64) {
        self.waiting.borrow_mut().push_back((sink, token));
        self.defer();
    }

    fn defer(&self) {
        if !self.is_deferred.replace(true) {
            let me = self.me.upgrade().expect("it lives while it is called");
            self.reactor.defer(me, 0);
        }
    }
}

impl Complete for Turn {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        self.is_deferred.set(false);
        while self.may_copy() {
            let Some((sink, token)) = self.waiting.borrow_mut().pop_front() else { return };
            if let Some(sink) = sink.upgrade() {
                sink.complete(token, 0, 0);
            }
        }
        if !self.waiting.borrow().is_empty() {
            self.defer();
        }
    }
}
