//! What was sent to a server that did not run for longer than its host waits is not carried out.

use crate::host;

use double::Double;
use host::rig::{NQN, Rig, directory, file, memory};
use host::{Bytes, Host, PATIENCE, Queue};
use namespace::{Namespace, Queue as NamespaceQueue, Request};
use nvme::{Command, opcode};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const KATO_MS: u32 = 2000;
/// Longer than that, after which a host may have given up.
const LONG: Duration = Duration::from_millis(2600);
/// Zeroes for this block have the core stand still.
const STILL: u64 = 200;

/// Has its core do nothing for `length` when a certain block is zeroed.
struct Still {
    child: Rc<dyn NamespaceQueue>,
    length: Duration,
    begun: Arc<AtomicBool>,
}

impl NamespaceQueue for Still {
    fn submit(&self, request: Box<Request>) {
        let is_zeroes = request.command.opcode == opcode::io::WRITE_ZEROES;
        if is_zeroes && request.command.slba() == STILL {
            self.begun.store(true, Ordering::SeqCst);
            std::thread::sleep(self.length);
        }
        self.child.submit(request);
    }

    fn forget(&self) {}
}

/// A server of one core, which stands still for `length` when it is told to; and whether it does.
fn server(length: Duration) -> (Rig, Arc<AtomicBool>) {
    server_of(memory(1 << 20, 12, 1), length)
}

fn server_of(child: Arc<dyn Namespace>, length: Duration) -> (Rig, Arc<AtomicBool>) {
    server_on(1, child, length)
}

fn server_on(cores: usize, child: Arc<dyn Namespace>, length: Duration) -> (Rig, Arc<AtomicBool>) {
    let begun = Arc::<AtomicBool>::default();
    let begins = begun.clone();
    let volume = Double::over(child)
        .queues(move |child, _| Rc::new(Still { child, length, begun: begins.clone() }));
    let rig = Rig::empty(cores);
    rig.add(1, Arc::new(volume));
    (rig, begun)
}

fn write(slba: u64, blocks: u32) -> Command {
    Command::blocks(opcode::io::WRITE, 1, slba, blocks)
}

/// Has the core stand still from now on.
fn stand_still(queue: &mut Queue, begun: &AtomicBool) -> u16 {
    // Takes no memory.
    let zeroes = Command::blocks(opcode::io::WRITE_ZEROES, 1, STILL, 1);
    let cid = queue.issue(zeroes, Bytes::None);
    let until = Instant::now() + PATIENCE;
    while !begun.load(Ordering::SeqCst) {
        assert!(Instant::now() < until, "the command comes to its namespace");
        std::thread::sleep(Duration::from_millis(1));
    }
    cid
}

#[test]
fn what_came_before_a_long_pause_is_not_carried_out_after_it() {
    let (rig, begun) = server(LONG);
    let host = Host { kato_ms: KATO_MS, ..rig.host() };
    let admin = host.enabled();
    let (mut whole, mut part) = (host.io(&admin, 1), host.io(&admin, 2));
    // Who has no keep alive timer never gives up.
    let patient = rig.host();
    let others = patient.enabled();
    let (mut stopper, mut other) = (patient.io(&others, 1), patient.io(&others, 2));
    // Half of a command's data has come before.
    let command = part.prepare(write(8, 3), Bytes::InCapsule(&[2; 12288]));
    let capsule = part.socket.capsule(&command, &[2; 12288]);
    let (before, after) = capsule.split_at(1000);
    part.socket.send(before);
    std::thread::sleep(Duration::from_millis(50));

    let still = stand_still(&mut stopper, &begun);
    part.socket.send(after);
    whole.issue(write(5, 1), Bytes::InCapsule(&[3; 4096]));
    let cid = other.issue(write(6, 1), Bytes::InCapsule(&[4; 4096]));
    whole.expect_end();
    part.expect_end();
    stopper.complete(still).ok();
    other.complete(cid).ok();
    assert!(other.read(1, 5, 1, 4096) == [0; 4096]);
    assert!(other.read(1, 6, 1, 4096) == [4; 4096]);
    assert!(other.read(1, 8, 3, 12288) == [0; 12288]);
    // The host is welcome again, and not taken for one that is late.
    let admin = host.enabled();
    host.io(&admin, 1).write(1, 5, 1, &[5; 4096]);
    assert!(other.read(1, 5, 1, 4096) == [5; 4096]);
}

#[test]
fn what_has_waited_for_memory_since_before_a_long_pause_is_not_begun_after_it() {
    let directory = directory();
    let (rig, begun) = server_of(file(&directory, 1 << 20, 12, 1, Duration::ZERO), LONG);
    let free = || rig.server.stats().expect("running").cores[0].buffer_bytes_free;
    let patient = rig.host();
    let others = patient.enabled();
    let mut stopper = patient.io(&others, 1);
    // All memory is set aside for data that does not come, but for less than a write takes.
    let hogs: Vec<Queue> = (2..)
        .take_while(|_| free() >= MIB)
        .map(|qid| {
            let mut hog = patient.io(&others, qid);
            let large = hog.prepare(write(0, 256), Bytes::Wanted(MIB));
            hog.send(&large, Bytes::None);
            hog.await_word();
            hog
        })
        .collect();
    let host = Host { kato_ms: KATO_MS, ..rig.host() };
    let admin = host.enabled();
    let mut io = host.io(&admin, 1);
    io.issue(write(5, 1), Bytes::InCapsule(&[3; 4096]));
    io.settle();
    assert!(free() < 4096, "it waits");

    let still = stand_still(&mut stopper, &begun);
    // There will be memory, before anybody looks at timers or sockets of the host that waits.
    drop(hogs);
    io.expect_end();
    stopper.complete(still).ok();
    assert!(stopper.read(1, 5, 1, 4096) == [0; 4096]);
}

/// A server is stopped in the middle of what it has read at once.
#[test]
fn what_was_read_with_a_command_that_took_long_is_not_begun_after_it() {
    let (rig, begun) = server(LONG);
    let patient = rig.host();
    let others = patient.enabled();
    let mut other = patient.io(&others, 1);
    let host = Host { kato_ms: KATO_MS, ..rig.host() };
    let admin = host.enabled();
    let mut io = host.io(&admin, 1);
    let zeroes = io.prepare(Command::blocks(opcode::io::WRITE_ZEROES, 1, STILL, 1), Bytes::None);
    let write = io.prepare(write(5, 1), Bytes::InCapsule(&[3; 4096]));
    let mut both = io.socket.capsule(&zeroes, &[]);
    both.extend(io.socket.capsule(&write, &[3; 4096]));
    io.socket.send(&both);
    io.expect_end();
    assert!(begun.load(Ordering::SeqCst));
    assert!(other.read(1, 5, 1, 4096) == [0; 4096]);
}

/// Both cores stand still while a queue is on its way from the one to the other.
#[test]
fn what_came_by_a_connection_on_its_way_to_another_core_is_not_begun_after_a_long_pause() {
    let (rig, begun) = server_on(2, memory(1 << 20, 12, 2), LONG);
    let patient = rig.host();
    let others = patient.enabled();
    let (mut there, mut here) = (patient.io(&others, 1), patient.io(&others, 2));
    let host = Host { kato_ms: KATO_MS, ..rig.host() };
    let admin = host.enabled();
    let first = stand_still(&mut there, &begun);
    begun.store(false, Ordering::SeqCst);
    // The core of the admin queue answers its Connect, and the other is to have it.
    let mut io = host.io(&admin, 3);
    let second = stand_still(&mut here, &begun);
    io.issue(write(5, 1), Bytes::InCapsule(&[3; 4096]));
    io.expect_end();
    there.complete(first).ok();
    here.complete(second).ok();
    assert!(here.read(1, 5, 1, 4096) == [0; 4096]);
}

#[test]
fn a_pause_that_a_host_waits_through_costs_nothing() {
    let (rig, begun) = server(LONG);
    let host = Host { kato_ms: 10 * KATO_MS, ..rig.host() };
    let admin = host.enabled();
    let (mut stopper, mut other) = (host.io(&admin, 1), host.io(&admin, 2));
    let still = stand_still(&mut stopper, &begun);
    let cid = other.issue(write(5, 1), Bytes::InCapsule(&[3; 4096]));
    stopper.complete(still).ok();
    other.complete(cid).ok();
    assert!(other.read(1, 5, 1, 4096) == [3; 4096]);
    // Nor does it look like a pause that nobody was there.
    drop((admin, stopper, other));
    std::thread::sleep(LONG);
    let host = Host { kato_ms: KATO_MS, ..Host::new(rig.address, NQN) };
    let admin = host.enabled();
    let mut io = host.io(&admin, 1);
    io.write(1, 7, 1, &[7; 4096]);
    assert!(io.read(1, 7, 1, 4096) == [7; 4096]);
}
