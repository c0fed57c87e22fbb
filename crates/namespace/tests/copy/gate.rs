//! A backend that holds commands until it is told to let them go: a disk that hangs.

use namespace::copy::{Located, OnThreads};
use namespace::{Data, Namespace, Queue, Request};
use nvme::limits::Passthrough;
use nvme::opcode::io as opcode;
use nvme::{Limits, Status};
use reactor::{Complete, Reactor};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What a gate is like.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// What is held.
    pub opcodes: Vec<u8>,
    /// It keeps blocks whole; otherwise the guard does.
    pub whole: bool,
    /// It takes commands that nobody knows, and answers them at once.
    pub passes: bool,
}

#[derive(Debug)]
pub struct Gate {
    child: Arc<dyn Namespace>,
    rules: Rules,
    is_open: Mutex<bool>,
    opened: Condvar,
    shut: AtomicBool,
    /// Commands that have come, of any kind.
    pub came: AtomicU64,
}

impl Gate {
    /// Closed. Copies wait on threads for calls that block.
    pub fn new(child: Arc<dyn Namespace>, rules: Rules) -> Arc<Gate> {
        Arc::new(Gate {
            child,
            rules,
            is_open: Mutex::new(false),
            opened: Condvar::new(),
            shut: AtomicBool::new(true),
            came: AtomicU64::new(0),
        })
    }

    pub fn open(&self) {
        self.shut.store(false, Ordering::Release);
        *self.is_open.lock().expect("nobody fails with it") = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let open = self.is_open.lock().expect("nobody fails with it");
        drop(self.opened.wait_while(open, |open| !*open).expect("nobody fails with it"));
    }
}

/// Lest threads wait for a test that has failed.
pub struct Opened<'a>(pub &'a Gate);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl Namespace for Gate {
    fn limits(&self) -> Limits {
        let mut limits = Limits { immediate: false, lends_reads: false, ..self.child.limits() };
        limits.commands.compare_and_write = false;
        if self.rules.passes {
            limits.passthrough = Passthrough { io: true, ..limits.passthrough };
        }
        limits
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let child = Arc::clone(&self.child).open_queue(reactor)?;
        let reactor = Rc::clone(reactor);
        Ok(Rc::new_cyclic(|me| GateQueue {
            me: Weak::clone(me),
            gate: self,
            child,
            reactor,
            held: RefCell::default(),
        }))
    }

    fn refresh(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.child.resize(bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.child.flush()
    }

    fn uri(&self) -> String {
        self.child.uri()
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        self.child.describe(facts);
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    fn keeps_blocks_whole(&self) -> bool {
        self.rules.whole
    }

    fn copies_on_threads(&self) -> OnThreads {
        OnThreads::One
    }

    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        Arc::clone(&self.child).origin(slba, blocks)
    }
}

struct GateQueue {
    me: Weak<GateQueue>,
    gate: Arc<Gate>,
    child: Rc<dyn Queue>,
    reactor: Rc<Reactor>,
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    held: RefCell<Vec<Box<Request>>>,
}

impl Queue for GateQueue {
    fn submit(&self, request: Box<Request>) {
        self.gate.came.fetch_add(1, Ordering::Relaxed);
        let code = request.command.opcode;
        let is_held = self.gate.rules.opcodes.contains(&code);
        match code {
            opcode::ZONE_APPEND => request.finish(Status::SUCCESS),
            opcode::COPY if is_held => {
                let gate = Arc::clone(&self.gate);
                let work = move || {
                    gate.wait();
                    0
                };
                let Data::Sources(sources) = &request.data else { unreachable!("it is a Copy") };
                let (queue, line) = (self.me.upgrade().expect("alive"), sources.line());
                let flight = Flight { queue, request: Cell::new(Some(request)) };
                self.reactor.blocking_in(line, Box::new(work), Rc::new(flight), 0);
            }
            _ if is_held && self.gate.shut.load(Ordering::Acquire) => {
                self.held.borrow_mut().push(request);
                self.look_later();
            }
            _ => self.child.submit(request),
        }
    }

    fn forget(&self) {}
}

impl GateQueue {
    fn look_later(&self) {
        let at = self.reactor.now() + Duration::from_millis(1);
        self.reactor.timer(at, self.me.upgrade().expect("alive"), 0);
    }
}

impl Complete for GateQueue {
    fn complete(&self, _token: u64, result: i32, _flags: u32) {
        if result < 0 || self.held.borrow().is_empty() {
            return;
        }
        if self.gate.shut.load(Ordering::Acquire) {
            return self.look_later();
        }
        let request = self.held.borrow_mut().remove(0);
        self.child.submit(request);
        self.look_later();
    }
}

/// A Copy on a thread.
struct Flight {
    queue: Rc<GateQueue>,
    request: Cell<Option<Box<Request>>>,
}

impl Complete for Flight {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        self.queue.child.submit(self.request.take().expect("it ends once"));
    }
}
