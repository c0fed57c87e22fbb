//! `delay:`: holds every command back for a time before it goes down.

use crate::human::format_duration;
use crate::layer::pass_to_child;
use crate::layer::slab::Slab;
use crate::{Namespace, Queue, Request};
use nvme::Limits;
use nvme::opcode::io as opcode;
use reactor::{Complete, Reactor};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// How long commands are held back, by what they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Read, Compare and Verify.
    pub read: Duration,
    /// Everything that writes. A fused pair counts as a write.
    pub write: Duration,
    /// Flush.
    pub flush: Duration,
    /// Everything else.
    pub other: Duration,
}

impl Delays {
    /// The same delay for every command.
    pub fn all(time: Duration) -> Delays {
        Delays { read: time, write: time, flush: time, other: time }
    }

    #[inline]
    fn of(&self, request: &Request) -> Duration {
        match request.command.opcode {
            _ if request.fused.is_some() => self.write,
            opcode::READ | opcode::COMPARE | opcode::VERIFY => self.read,
            opcode::WRITE
            | opcode::WRITE_ZEROES
            | opcode::WRITE_UNCORRECTABLE
            | opcode::COPY
            | opcode::DATASET_MANAGEMENT => self.write,
            opcode::FLUSH => self.flush,
            _ => self.other,
        }
    }
}

/// As in a volume URI: `30ms`, or `read=1ms,write=2ms`.
impl fmt::Display for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Delays::all(self.read) {
            return f.write_str(&format_duration(self.read));
        }
        let named = [
            ("read", self.read),
            ("write", self.write),
            ("flush", self.flush),
            ("other", self.other),
        ];
        let mut separator = "";
        for (name, time) in named.into_iter().filter(|(_, time)| !time.is_zero()) {
            write!(f, "{separator}{name}={}", format_duration(time))?;
            separator = ",";
        }
        Ok(())
    }
}

/// A namespace whose answers come late.
#[derive(Debug)]
pub struct Delay {
    child: Arc<dyn Namespace>,
    delays: Delays,
}

impl Delay {
    /// Puts `delays` before `child`.
    pub fn new(child: Arc<dyn Namespace>, delays: Delays) -> Arc<Delay> {
        Arc::new(Delay { child, delays })
    }
}

impl Namespace for Delay {
    fn limits(&self) -> Limits {
        let limits = self.child.limits();
        Limits { immediate: limits.immediate && self.delays == Delays::default(), ..limits }
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        Ok(queue(Arc::clone(&self.child).open_queue(reactor)?, reactor, self.delays))
    }

    pass_to_child!(refresh resize flush uuid keeps_blocks_whole takes_registered cut paths);
    pass_to_child!(numa_node each_program tune allocation copies_on_threads last_guard destination);
    pass_to_child!(volatile_epoch access writes_back write_off gives_checksums);
    pass_to_child!(retry_delays lost snapshot nsid);

    fn uri(&self) -> String {
        format!("delay:{}({})", self.delays, self.child.uri())
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        facts.push(("delay".into(), self.delays.to_string()));
        self.child.describe(facts);
    }
}

/// Puts `delays` before one core's way to a namespace. What it is given is no longer done with when
/// `submit` returns, whatever the namespace's limits say.
pub fn queue(child: Rc<dyn Queue>, reactor: &Rc<Reactor>, delays: Delays) -> Rc<dyn Queue> {
    Rc::new_cyclic(|me| DelayQueue {
        me: me.clone(),
        child,
        reactor: Rc::clone(reactor),
        delays,
        held: Slab::default(),
    })
}

struct DelayQueue {
    me: Weak<DelayQueue>,
    child: Rc<dyn Queue>,
    reactor: Rc<Reactor>,
    delays: Delays,
    held: Slab<Box<Request>>,
}

impl Queue for DelayQueue {
    #[inline]
    fn submit(&self, request: Box<Request>) {
        let time = self.delays.of(&request);
        if time.is_zero() {
            return self.child.submit(request);
        }
        let slot = self.held.insert(request);
        let sink = self.me.upgrade().expect("the queue lives while it is called");
        // Not `Reactor::now`, which is as old as the turn: a delay is never shorter than asked.
        self.reactor.timer(Instant::now() + time, sink, slot);
    }

    /// At once: what is held back, limited or failed is I/O.
    fn submit_admin(&self, request: Box<Request>) {
        self.child.submit_admin(request);
    }

    fn access(&self) -> crate::Access {
        self.child.access()
    }

    fn watch_access(&self, watcher: Weak<dyn crate::AccessWatcher>) {
        self.child.watch_access(watcher);
    }

    fn forget(&self) {
        self.child.forget();
        drop(self.held.clear());
    }
}

impl Complete for DelayQueue {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        self.child.submit(self.held.take(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_held_back_as_what_writes() {
        let delays = Delays { write: Duration::from_millis(3), ..Delays::default() };
        let mut request = Request::new();
        request.command = nvme::copy::command(1, 0, 1, nvme::copy::Format::Short);
        assert_eq!(delays.of(&request), Duration::from_millis(3));
        request.command.opcode = opcode::COMPARE;
        assert_eq!(delays.of(&request), Duration::ZERO);
    }
}
