//! A sink that writes down what it is told, and a reactor that cannot hang a test.

#![allow(dead_code, reason = "each test binary uses a part")]

use reactor::{Complete, Config, Reactor};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Notes every completion; stops the reactor once `expected` have come.
pub struct Recorder {
    pub seen: RefCell<Vec<(u64, i32)>>,
    expected: usize,
    reactor: Rc<Reactor>,
}

impl Recorder {
    pub fn new(reactor: &Rc<Reactor>, expected: usize) -> Rc<Recorder> {
        let (seen, reactor) = (RefCell::default(), Rc::clone(reactor));
        Rc::new(Recorder { seen, expected, reactor })
    }

    pub fn results(&self) -> Vec<(u64, i32)> {
        let mut seen = self.seen.borrow().clone();
        seen.sort_unstable();
        seen
    }
}

impl Complete for Recorder {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        self.seen.borrow_mut().push((token, result));
        if self.seen.borrow().len() == self.expected {
            self.reactor.stop();
        }
    }
}

/// Calls a closure for each completion.
pub struct Calls<F: Fn(u64, i32)>(pub F);

impl<F: Fn(u64, i32)> Complete for Calls<F> {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        (self.0)(token, result);
    }
}

pub fn config() -> Config {
    Config { entries: 64, buffer_bytes: 4 << 20, ..Config::default() }
}

/// A reactor that fails the test when it is still running after 30 seconds.
pub fn reactor(config: &Config) -> Rc<Reactor> {
    let reactor = Reactor::new(config).expect("io_uring is allowed where tests run");
    let overdue = Calls(|_, _| panic!("the reactor was not stopped within 30 seconds"));
    reactor.timer(Instant::now() + Duration::from_secs(30), Rc::new(overdue), 0);
    reactor
}
