//! What is with a namespace when its connection ends.

mod host;

use host::rig::{NQN, Rig, memory};
use host::{Bytes, PATIENCE};
use namespace::{Namespace, PathReport, Queue, Request};
use nvme::{Command, Limits, opcode};
use reactor::{Complete, Reactor};
use std::cell::RefCell;
use std::io;
use std::net::Shutdown;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long each command is held.
const HOLD: Duration = Duration::from_secs(2);

/// A volume that holds each command, and forgets it if its queue is not kept until it comes back, as
/// queues may (`namespace::Queue::submit`).
#[derive(Debug)]
struct Holding {
    child: Arc<dyn Namespace>,
    held: Arc<AtomicU64>,
    forgotten: Arc<AtomicBool>,
}

struct HoldingQueue {
    me: Weak<HoldingQueue>,
    child: Rc<dyn Queue>,
    reactor: Rc<Reactor>,
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    requests: RefCell<Vec<Box<Request>>>,
    held: Arc<AtomicU64>,
    forgotten: Arc<AtomicBool>,
}

/// A timer that does not keep the queue.
struct Release(Weak<HoldingQueue>);

impl Namespace for Holding {
    fn limits(&self) -> Limits {
        Limits { immediate: false, lends_reads: false, ..self.child.limits() }
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let child = self.child.clone().open_queue(reactor)?;
        Ok(Rc::new_cyclic(|me| HoldingQueue {
            me: me.clone(),
            child,
            reactor: Rc::clone(reactor),
            requests: RefCell::default(),
            held: Arc::clone(&self.held),
            forgotten: Arc::clone(&self.forgotten),
        }))
    }

    fn refresh(&self) -> io::Result<bool> {
        self.child.refresh()
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

    fn paths(&self) -> Vec<PathReport> {
        Vec::new()
    }
}

impl Queue for HoldingQueue {
    fn submit(&self, request: Box<Request>) {
        self.requests.borrow_mut().push(request);
        self.held.fetch_add(1, Ordering::SeqCst);
        let release = Rc::new(Release(self.me.clone()));
        self.reactor.timer(Instant::now() + HOLD, release, 0);
    }
}

impl Drop for HoldingQueue {
    fn drop(&mut self) {
        if !self.requests.borrow().is_empty() {
            self.forgotten.store(true, Ordering::SeqCst);
        }
    }
}

impl Complete for Release {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        let Some(queue) = self.0.upgrade() else { return };
        let request = queue.requests.borrow_mut().remove(0);
        queue.child.submit(request);
    }
}

#[test]
fn a_queue_is_kept_until_all_has_come_back() {
    let (held, forgotten) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let child = memory(1 << 20, 12, 1);
    let holding =
        Holding { child: child.clone(), held: held.clone(), forgotten: forgotten.clone() };
    let rig = Rig::empty(1);
    rig.add(1, Arc::new(holding));
    let (_admin, mut io) = rig.connect();
    let data = [0x5a; 4096];
    let begin = Instant::now();
    for slba in 0..3 {
        io.issue(Command::blocks(opcode::io::WRITE, 1, slba, 1), Bytes::InCapsule(&data));
    }
    let until = Instant::now() + PATIENCE;
    while held.load(Ordering::SeqCst) < 3 {
        assert!(Instant::now() < until, "the writes are with the namespace");
        std::thread::sleep(Duration::from_millis(1));
    }
    io.socket.stream.shutdown(Shutdown::Write).expect("it is open");
    // The target has time to see the end; the connection is then gone, and the namespace soon.
    std::thread::sleep(HOLD / 4);
    rig.server.remove_namespace(NQN, 1).expect("it is served");
    // The other end is heard of when all of it was carried out.
    io.socket.expect_end();
    let took = begin.elapsed();
    assert!(!forgotten.load(Ordering::SeqCst), "the queue was dropped with its commands");
    assert!(took >= HOLD, "{took:?}");
    rig.add(2, child);
    // Whoever connects waits for what the same host has left behind: there is nothing.
    let (_admin, mut io) = rig.connect();
    assert!(io.read(2, 0, 3, 3 * 4096).iter().all(|byte| *byte == 0x5a));
}
