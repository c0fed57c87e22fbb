//! Data that the ring moves between socket and registered memory, as it does with the pages of a block
//! device's requests.

mod rig;

use host::{Failover, Options, Path};
use namespace::Namespace;
use nvme::{Status, opcode};
use rig::pages::{PLAIN_MS, Pages};
use rig::relay::Relay;
use rig::tamper::Tamper;
use rig::{Core, PATIENCE, Target, connect, options, pattern, read, write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// An I/O queue's connection is the second; its ICResp and the answer to Connect come first.
const IO: usize = 1;
const FIRST: usize = 2;

const SIZES: [usize; 9] = [512, 1024, 4096, 4608, 8192, 16384, 20480, 131_072, 1 << 20];

/// A path that takes pages, and pages; `None` where the kernel moves none.
fn path(address: SocketAddr, options: &Options) -> Option<(Arc<Path>, Arc<Pages>)> {
    let path = connect(address, options);
    if !path.takes_registered() {
        eprintln!("this kernel does not move registered buffers through sockets");
        return None;
    }
    Some((path, Arc::new(Pages::new())))
}

/// Writes and reads back every size, one at a time, then many at once, among them some whose data is not
/// in pages.
fn check(core: &Core) {
    for (seed, size) in SIZES.into_iter().enumerate() {
        let data = pattern(seed as u64, size);
        core.write(4096 * seed as u64, &data);
        assert!(core.read(4096 * seed as u64, size) == data, "{size} bytes");
    }
    for size in [512, 4096, 16384, 65536, 262_144] {
        let count = ((8 << 20) / size).min(200);
        let issue = |at: usize, command, data| match at % 5 {
            0 => core.issue_within(command, data, PLAIN_MS),
            _ => core.issue(command, data),
        };
        let answers: Vec<_> = (0..count)
            .map(|at| {
                issue(at, write((at * size) as u64, size), pattern((at + size) as u64, size))
            })
            .collect();
        for answer in answers {
            answer.recv_timeout(PATIENCE).expect("an answer").ok();
        }
        let answers: Vec<_> = (0..count)
            .map(|at| issue(at, read((at * size) as u64, size), vec![0; size]))
            .collect();
        for (at, answer) in answers.into_iter().enumerate() {
            let data = answer.recv_timeout(PATIENCE).expect("an answer").ok().data;
            assert!(data == pattern((at + size) as u64, size), "{at} of {size} bytes");
        }
    }
}

#[test]
fn all_sizes_and_depths() {
    let target = Target::memory();
    let Some((path, pages)) = path(target.address, &options()) else { return };
    check(&Core::with_pages(path, &pages));
    pages.check();
}

#[test]
fn with_header_digests_and_flow_control() {
    let target = Target::memory();
    let mut options = Options { header_digest: true, flow_control: true, ..options() };
    options.association.queue_entries = 8;
    let Some((path, pages)) = path(target.address, &options) else { return };
    check(&Core::with_pages(path, &pages));
    pages.check();
}

#[test]
fn reads_and_writes_at_once() {
    let target = Target::memory();
    let Some((path, pages)) = path(target.address, &options()) else { return };
    let core = Core::with_pages(path, &pages);
    for at in 0..32 {
        core.write(at << 18, &pattern(at, 262_144));
    }
    for round in 0..4 {
        let answers: Vec<_> = (0..64u64)
            .map(|at| match at % 2 {
                0 => core.issue(read(at / 2 << 18, 262_144), vec![0; 262_144]),
                _ => core.issue(write((at / 2 + 32) << 18, 262_144), pattern(at, 262_144)),
            })
            .collect();
        for (at, answer) in answers.into_iter().enumerate() {
            let data = answer.recv_timeout(PATIENCE).expect("an answer").ok().data;
            let seed = if at % 2 == 0 { at / 2 } else { at };
            assert!(data == pattern(seed as u64, 262_144), "{at} in round {round}");
        }
    }
    drop(core);
    pages.check();
}

/// A digest is made of the data, and checked with it: somebody has to see it.
#[test]
fn data_digests_need_the_data() {
    let target = Target::memory();
    let options = Options { data_digest: true, ..options() };
    assert!(!connect(target.address, &options).takes_registered());
}

#[test]
fn only_reads_and_writes_have_pages() {
    let target = Target::memory();
    let Some((path, pages)) = path(target.address, &options()) else { return };
    let core = Core::with_pages(path, &pages);
    // The rig gives pages to reads and writes; the size of none is wrong for its command here.
    let mut command = write(0, 4096);
    command.opcode = opcode::io::COMPARE;
    let done = core.command(command, vec![0; 4096]);
    assert!(done.status.is_success(), "{}", done.status);
}
