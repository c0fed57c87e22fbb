//! What is with a namespace when its connection ends.

use crate::host;

use double::Double;
use host::rig::{NQN, Rig, memory};
use host::{Bytes, Host, PATIENCE};
use namespace::memory::Memory;
use namespace::{Namespace, Queue, Request};
use nvme::fabrics::{CNTLID_DYNAMIC, Csts, Property};
use nvme::{Command, Limits, Status, opcode};
use nvme_tcp::FatalError;
use nvme_tcp::pdu::Kind;
use reactor::{Complete, Reactor};
use std::cell::RefCell;
use std::net::Shutdown;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long each command is held.
const HOLD: Duration = Duration::from_secs(2);
/// Much longer than a Connect waits for what its host has left behind, which is 5 s. What is left of it then is less than
/// a server that stops waits.
const LONG_HOLD: Duration = Duration::from_secs(14);

/// Holds each command, and forgets it if it is not kept until that comes back, as queues may
/// (`namespace::Queue::submit`).
struct Holding {
    me: Weak<Holding>,
    child: Rc<dyn Queue>,
    reactor: Rc<Reactor>,
    hold: Duration,
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
        self.reactor.timer(Instant::now() + self.hold, release, 0);
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

/// A queue that lets go of its volume first, and of what is below after [`CLOSING`].
struct Closing {
    child: Rc<dyn Queue>,
    volume: Option<Arc<()>>,
    closed: Arc<AtomicBool>,
}

const CLOSING: Duration = Duration::from_millis(300);

impl Queue for Closing {
    fn submit(&self, request: Box<Request>) {
        self.child.submit(request);
    }

    fn forget(&self) {}
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.volume = None;
        std::thread::sleep(CLOSING);
        self.closed.store(true, Ordering::SeqCst);
    }
}

/// `child` behind a [`Holding`] on each core, how many commands it was given, and whether it forgot any.
fn holding(
    child: &Arc<Memory>,
    hold: Duration,
) -> (Arc<dyn Namespace>, Arc<AtomicU64>, Arc<AtomicBool>) {
    let (held, forgotten) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let (holds, forgets) = (held.clone(), forgotten.clone());
    let holding = Double::over(child.clone())
        .limited(|limits| Limits { immediate: false, lends_reads: false, ..limits })
        .queues(move |child, reactor| {
            Rc::new_cyclic(|me| Holding {
                me: me.clone(),
                child,
                reactor: Rc::clone(reactor),
                hold,
                requests: RefCell::default(),
                held: holds.clone(),
                forgotten: forgets.clone(),
            })
        });
    (Arc::new(holding), held, forgotten)
}

fn await_held(held: &AtomicU64, count: u64) {
    let until = Instant::now() + PATIENCE;
    while held.load(Ordering::SeqCst) < count {
        assert!(Instant::now() < until, "the commands are with the namespace");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_reset_is_complete_when_what_was_under_way_is() {
    let (volume, held, _) = holding(&memory(1 << 20, 12, 1), HOLD);
    let rig = Rig::empty(1);
    rig.add(1, volume);
    let (mut admin, mut io) = rig.connect();
    let begin = Instant::now();
    io.issue(Command::blocks(opcode::io::WRITE, 1, 0, 1), Bytes::InCapsule(&[0x5a; 4096]));
    await_held(&held, 1);
    admin.set_property(Property::CC, 0);
    while Csts(admin.property(Property::CSTS) as u32).ready() {
        assert!(begin.elapsed() < PATIENCE, "the reset does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(begin.elapsed() >= HOLD, "{:?}", begin.elapsed());
    admin.enable();
    let mut io = rig.host().io(&admin, 1);
    io.write(1, 0, 1, &[0xa5; 4096]);
    assert!(io.read(1, 0, 1, 4096) == [0xa5; 4096], "the last one counts");
}

#[test]
fn what_a_host_has_left_in_one_subsystem_keeps_it_out_of_no_other() {
    let (volume, held, _) = holding(&memory(1 << 20, 12, 1), LONG_HOLD);
    let rig = Rig::empty(1);
    rig.add(1, volume);
    let other = "nqn.2026-11.org.example:other";
    rig.server.add_subsystem(host::rig::subsystem(other)).expect("a subsystem");
    let (admin, mut io) = rig.connect();
    io.issue(Command::blocks(opcode::io::WRITE, 1, 0, 1), Bytes::InCapsule(&[0x5a; 4096]));
    await_held(&held, 1);
    drop((admin, io));
    for nqn in [other, nvme::fabrics::DISCOVERY_NQN] {
        Host { nqn: nqn.into(), ..rig.host() }.enabled();
    }
    let (_, done) = rig.host().connect(0, CNTLID_DYNAMIC);
    done.refused(Status::CONTROLLER_BUSY);
}

/// SPDK's hosts have no name by default.
#[test]
fn hosts_without_a_name_are_told_apart_by_their_identifiers() {
    let (volume, held, _) = holding(&memory(1 << 20, 12, 1), LONG_HOLD);
    let rig = Rig::empty(1);
    rig.add(1, volume);
    let [one, other] =
        [1, 2].map(|id| Host { host_nqn: String::new(), host_id: [id; 16], ..rig.host() });
    let admin = one.enabled();
    let mut io = one.io(&admin, 1);
    io.issue(Command::blocks(opcode::io::WRITE, 1, 0, 1), Bytes::InCapsule(&[0x5a; 4096]));
    await_held(&held, 1);
    drop((admin, io));
    // What one has left behind keeps nobody else waiting, and itself out.
    other.enabled();
    let (_, done) = one.connect(0, CNTLID_DYNAMIC);
    done.refused(Status::CONTROLLER_BUSY);
}

#[test]
fn a_queue_is_kept_until_all_has_come_back() {
    let child = memory(1 << 20, 12, 1);
    let (volume, held, forgotten) = holding(&child, HOLD);
    let rig = Rig::empty(1);
    rig.add(1, volume);
    let (_admin, mut io) = rig.connect();
    let data = [0x5a; 4096];
    let begin = Instant::now();
    for slba in 0..3 {
        io.issue(Command::blocks(opcode::io::WRITE, 1, slba, 1), Bytes::InCapsule(&data));
    }
    await_held(&held, 3);
    io.socket.stream.shutdown(Shutdown::Write).expect("it is open");
    // The target has time to see the end; the connection is then gone, and the namespace soon.
    std::thread::sleep(HOLD / 4);
    rig.server.remove_namespace(NQN, 1).expect("it is served");
    // The other end is heard of when all of it was carried out. If the target saw this end late, it answers before.
    io.expect_end();
    let took = begin.elapsed();
    assert!(!forgotten.load(Ordering::SeqCst), "the queue was dropped with its commands");
    assert!(took >= HOLD, "{took:?}");
    rig.add(2, child);
    // Whoever connects waits for what the same host has left behind: there is nothing.
    let (_admin, mut io) = rig.connect();
    assert!(io.read(2, 0, 3, 3 * 4096).iter().all(|byte| *byte == 0x5a));
}

/// Its last user is gone before its queue is: only who waits for the cores, too, may have others take what is below.
#[test]
fn cores_that_have_settled_have_closed_what_nobody_uses() {
    let (holding, held, _) = holding(&memory(1 << 20, 12, 1), HOLD / 4);
    let (volume, closed) = (Arc::new(()), Arc::<AtomicBool>::default());
    let (users, closes) = (Arc::downgrade(&volume), closed.clone());
    let closing = Double::over(holding).queues(move |child, _| {
        Rc::new(Closing { child, volume: users.upgrade(), closed: closes.clone() })
    });
    let rig = Rig::empty(1);
    rig.add(1, Arc::new(closing));
    let (_admin, mut io) = rig.connect();
    let cid =
        io.issue(Command::blocks(opcode::io::WRITE, 1, 0, 1), Bytes::InCapsule(&[0x5a; 4096]));
    await_held(&held, 1);
    rig.server.remove_namespace(NQN, 1).expect("it is served");
    let until = Instant::now() + PATIENCE;
    while Arc::strong_count(&volume) > 1 {
        assert!(Instant::now() < until, "the command ends");
        std::thread::sleep(Duration::from_millis(1));
    }
    rig.server.settle().expect("it runs");
    assert!(closed.load(Ordering::SeqCst));
    io.complete(cid).ok();
}

/// A host takes a C2HTermReq as leave to send elsewhere what it has no answer to.
#[test]
fn a_fault_is_told_when_what_was_under_way_is_done() {
    let (volume, held, _) = holding(&memory(1 << 20, 12, 1), HOLD);
    let rig = Rig::empty(1);
    rig.add(1, volume);
    let (_admin, mut io) = rig.connect();
    let begin = Instant::now();
    io.issue(Command::blocks(opcode::io::WRITE, 1, 0, 1), Bytes::InCapsule(&[0x5a; 4096]));
    await_held(&held, 1);
    let unknown = io.socket.h2c(1, 9, 0, &[0; 4096], true);
    io.socket.send(&unknown);
    let answer = io.socket.pdu().expect("an answer");
    assert_eq!(answer.common.kind, Kind::CAPSULE_RESP);
    assert!(begin.elapsed() >= HOLD, "{:?}", begin.elapsed());
    io.socket.expect_termination("data", FatalError::INVALID_HEADER_FIELD, 10, &unknown);
}

/// Whoever has that answer may write the same blocks through another queue.
#[test]
fn a_disconnect_is_answered_when_what_was_under_way_is_done() {
    let (volume, held, _) = holding(&memory(1 << 20, 12, 1), HOLD);
    let rig = Rig::empty(1);
    rig.add(1, volume);
    let (_admin, mut io) = rig.connect();
    let begin = Instant::now();
    let write = Command::blocks(opcode::io::WRITE, 1, 0, 1);
    let write = io.issue(write, Bytes::InCapsule(&[0x5a; 4096]));
    await_held(&held, 1);
    let disconnect = Command {
        opcode: opcode::admin::FABRICS,
        nsid: u32::from(opcode::fabrics::DISCONNECT).into(),
        ..Command::default()
    };
    io.command(disconnect, Bytes::None).ok();
    assert!(begin.elapsed() >= HOLD, "{:?}", begin.elapsed());
    // Nothing comes after it: the answer has come before.
    io.complete(write).ok();
}
