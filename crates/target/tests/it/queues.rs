//! As many I/O queues as a controller has, and one port slower than the other.

use crate::host;

use host::rig::Rig;
use host::{Bytes, PATIENCE};
use namespace::layer::delay::Delays;
use nvme::fabrics::Connect;
use nvme::feature::Fid;
use nvme::{Command, Status, opcode};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// I/O queues per controller, as documented for users.
const QUEUES: u16 = 128;

/// Set Features, Number of Queues: `count` of each kind (zero-based in the command).
fn number_of_queues(count: u16) -> Command {
    let count_z = u32::from(count - 1);
    Command {
        opcode: opcode::admin::SET_FEATURES,
        cdw10: u32::from(Fid::NUMBER_OF_QUEUES.0).into(),
        cdw11: (count_z << 16 | count_z).into(),
        ..Command::default()
    }
}

#[test]
fn a_controller_has_128_io_queues_and_no_more() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let host = rig.host();
    let mut admin = host.enabled();
    let allotted = 127 << 16 | 127;
    let done = admin.command(number_of_queues(1000), Bytes::None).ok();
    assert_eq!(done.result, allotted, "more than there are: as many as there are");
    let done = admin.command(number_of_queues(QUEUES), Bytes::None).ok();
    assert_eq!(done.result, allotted);

    let mut queues: Vec<_> = (1..=QUEUES).map(|qid| host.io(&admin, qid)).collect();
    let connections = rig.server.stats().expect("running");
    let connections: usize = connections.cores.iter().map(|core| core.connections).sum();
    assert_eq!(connections, 2 + 1 + usize::from(QUEUES));

    let (mut extra, done) = host.connect(QUEUES + 1, admin.cntlid);
    done.refused(Status::CONNECT_INVALID_PARAMETERS.dnr());
    assert_eq!(done.result, Connect::QID_OFFSET.into(), "the queue id is the culprit");
    // Nor is it a queue now.
    let read = Command::blocks(opcode::io::READ, 1, 0, 1);
    extra.command(read, Bytes::Wanted(4096)).refused(Status::COMMAND_SEQUENCE_ERROR.dnr());
    let data = host.connect_data(admin.cntlid);
    let again = host.connect_parameters(QUEUES).command();
    let done = extra.command(again, Bytes::InCapsule(data.as_bytes()));
    done.refused(Status::INVALID_QUEUE_IDENTIFIER.dnr());

    // Each writes a block of its own, all before any waits; its neighbour reads it.
    let block = |qid: u16| vec![qid as u8 ^ 0x5a; 4096];
    let cids: Vec<u16> = queues
        .iter_mut()
        .zip(1..)
        .map(|(queue, qid)| {
            let write = Command::blocks(opcode::io::WRITE, 1, 16 + u64::from(qid), 1);
            queue.issue(write, Bytes::InCapsule(&block(qid)))
        })
        .collect();
    for (queue, cid) in queues.iter_mut().zip(cids) {
        queue.complete(cid).ok();
    }
    for (queue, qid) in queues.iter_mut().zip(1..) {
        let other = qid % QUEUES + 1;
        assert!(queue.read(1, 16 + u64::from(other), 1, 4096) == block(other), "queue {qid}");
    }
    witness.check();

    // A queue that ends makes room for one with its id.
    drop(queues.pop());
    let until = Instant::now() + PATIENCE;
    let mut replaced = loop {
        let (queue, done) = host.connect(QUEUES, admin.cntlid);
        if done.status.is_success() {
            break queue;
        }
        assert!(Instant::now() < until, "the id is not free again: {}", done.status);
        std::thread::sleep(Duration::from_millis(20));
    };
    replaced.read(1, 17, 1, 4096);
}

#[test]
fn a_delay_on_one_port_holds_back_what_comes_through_that_one() {
    let rig = Rig::memory(2);
    let (slow, address) =
        rig.server.add_listener(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a second port");
    let delay = Duration::from_millis(60);
    rig.server.set_delay(slow, Delays::all(delay)).expect("running");
    let mut host = rig.host();
    host.address = address;
    host.host_id = [8; 16];
    let admin = host.enabled();
    let mut delayed = host.io(&admin, 1);
    let (_admin, mut direct) = rig.connect();
    // In the capsule: bytes that are gone when the delay is over, unless they were kept.
    let start = Instant::now();
    delayed.write(1, 3, 1, &[0x5a; 4096]);
    delayed.write(1, 4, 1, &[0xa5; 4096]);
    assert!(start.elapsed() >= 2 * delay);
    assert_eq!(direct.read(1, 3, 1, 4096), [0x5a; 4096]);
    assert_eq!(direct.read(1, 4, 1, 4096), [0xa5; 4096]);
    // Several at once are held back together, not one after the other; the other port is free.
    let delay = Duration::from_secs(12);
    rig.server.set_delay(slow, Delays::all(delay)).expect("running");
    let start = Instant::now();
    let cids: Vec<u16> = (0..32)
        .map(|at| delayed.issue(Command::blocks(opcode::io::READ, 1, at, 1), Bytes::Wanted(4096)))
        .collect();
    (0..2).for_each(|_| drop(direct.read(1, 0, 1, 4096)));
    assert!(start.elapsed() < delay, "the slow port held others back: {:?}", start.elapsed());
    for cid in cids {
        assert_eq!(delayed.complete(cid).ok().data.len(), 4096);
    }
    assert!(start.elapsed() >= delay && start.elapsed() < 5 * delay, "{:?}", start.elapsed());
    rig.server.set_delay(slow, Delays::default()).expect("running");
    assert_eq!(delayed.read(1, 3, 1, 4096), [0x5a; 4096]);
}
