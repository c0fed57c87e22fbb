//! What is with a namespace when its connection ends.

mod host;

use double::Double;
use host::rig::{NQN, Rig, memory};
use host::{Bytes, PATIENCE};
use namespace::{Queue, Request};
use nvme::{Command, Limits, opcode};
use reactor::{Complete, Reactor};
use std::cell::RefCell;
use std::net::Shutdown;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long each command is held.
const HOLD: Duration = Duration::from_secs(2);

/// Holds each command, and forgets it if it is not kept until that comes back, as queues may
/// (`namespace::Queue::submit`).
struct Holding {
    me: Weak<Holding>,
    child: Rc<dyn Queue>,
    reactor: Rc<Reactor>,
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    requests: RefCell<Vec<Box<Request>>>,
    held: Arc<AtomicU64>,
    forgotten: Arc<AtomicBool>,
}

/// A timer that does not keep the queue.
struct Release(Weak<Holding>);

impl Queue for Holding {
    fn submit(&self, request: Box<Request>) {
        self.requests.borrow_mut().push(request);
        self.held.fetch_add(1, Ordering::SeqCst);
        let release = Rc::new(Release(self.me.clone()));
        self.reactor.timer(Instant::now() + HOLD, release, 0);
    }

    fn forget(&self) {}
}

impl Drop for Holding {
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
    let (holds, forgets) = (held.clone(), forgotten.clone());
    let holding = Double::over(child.clone())
        .limited(|limits| Limits { immediate: false, lends_reads: false, ..limits })
        .queues(move |child, reactor| {
            Rc::new_cyclic(|me| Holding {
                me: me.clone(),
                child,
                reactor: Rc::clone(reactor),
                requests: RefCell::default(),
                held: holds.clone(),
                forgotten: forgets.clone(),
            })
        });
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
