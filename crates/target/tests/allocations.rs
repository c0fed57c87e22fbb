//! In steady state the server's core allocates nothing per I/O.

mod host;

use counting_allocator::{mark_this_thread, of_marked};
use double::Double;
use host::rig::{Rig, directory, file};
use host::{Bytes, Queue};
use namespace::Namespace;
use nvme::copy::{Entry, Format};
use nvme::{Command, opcode};
use nvme_tcp::pdu::dgst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Marks the thread of each core that opens a queue; everything else is the child's.
fn marked(child: Arc<dyn Namespace>) -> Arc<dyn Namespace> {
    Arc::new(Double::over(child).queues(|queue, _| {
        mark_this_thread(true);
        queue
    }))
}

/// One kind of I/O.
#[derive(Clone, Copy, Debug)]
struct Load {
    opcode: u8,
    blocks: u32,
    depth: usize,
}

const READ: Load = Load { opcode: opcode::io::READ, blocks: 1, depth: 1 };
const WRITE: Load = Load { opcode: opcode::io::WRITE, blocks: 1, depth: 1 };

/// Carries out `rounds` times `depth` commands.
fn run(io: &mut Queue, load: Load, rounds: usize) {
    let data = vec![0x5a; load.blocks as usize * 4096];
    for round in 0..rounds {
        let cids: Vec<_> = (0..load.depth)
            .map(|index| {
                let slba = (round * load.depth + index) as u64 * u64::from(load.blocks) % 2048;
                if load.opcode == opcode::io::COPY {
                    return copy(io, slba, load.blocks);
                }
                let command = Command::blocks(load.opcode, 1, slba, load.blocks);
                let bytes = match load.opcode {
                    opcode::io::READ => Bytes::Wanted(data.len()),
                    _ if data.len() <= 16384 => Bytes::InCapsule(&data),
                    _ => Bytes::OnRequest(&data),
                };
                io.issue(command, bytes)
            })
            .collect();
        for cid in cids {
            io.complete(cid).ok();
        }
    }
}

/// A Copy to namespace 1 of `blocks` blocks each from there and from namespace 2, whose list is
/// fetched every other time.
fn copy(io: &mut Queue, sdlba: u64, blocks: u32) -> u16 {
    let mut list = [0; 4 * Format::Namespaces.entry_bytes()];
    for (index, bytes) in list.chunks_exact_mut(Format::Namespaces.entry_bytes()).enumerate() {
        let nsid = index as u32 % 2 + 1;
        let entry = Entry { nsid, slba: 2048 + sdlba, blocks, fast_only: false };
        entry.write(Format::Namespaces, bytes);
    }
    let command = nvme::copy::command(1, sdlba.min(1024), 4, Format::Namespaces);
    let in_capsule = io.next_cid.is_multiple_of(2);
    io.issue(command, if in_capsule { Bytes::InCapsule(&list) } else { Bytes::OnRequest(&list) })
}

/// Tests take turns: there is one count.
static TURN: Mutex<()> = Mutex::new(());

fn check(volume: Arc<dyn Namespace>, dgst: u8, loads: &[Load]) {
    check_two(volume, None, dgst, loads);
}

fn check_two(
    volume: Arc<dyn Namespace>,
    second: Option<Arc<dyn Namespace>>,
    dgst: u8,
    loads: &[Load],
) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = Rig::empty(1);
    rig.add(1, marked(volume));
    if let Some(second) = second {
        rig.add(2, second);
    }
    let mut host = rig.host();
    host.dgst = dgst;
    let mut admin = host.enabled();
    enable_formats(&mut admin);
    let mut io = host.io(&admin, 1);
    let fresh = of_marked();
    // Warm for all kinds: what grows with the depth has grown.
    for load in loads {
        run(&mut io, *load, 200 / load.depth);
    }
    assert!(of_marked() > fresh, "the counter counts");
    for load in loads {
        let ios = 600 / load.blocks.isqrt() as usize;
        // Steady state is when as many commands were in flight at once as ever will be; and an
        // idle connection gives back the memory for parts of PDUs, which it takes again when the
        // socket cuts one in two. Both are rare, neither per command nor per batch.
        let mut counts = Vec::new();
        let steady = (0..5).any(|_| {
            let before = of_marked();
            run(&mut io, *load, ios / load.depth);
            counts.push(of_marked() - before);
            counts.last().is_some_and(|count| *count <= ios as u64 / 100)
        });
        assert!(steady, "allocations in {ios} I/Os: {counts:?}, {load:?}");
    }
}

/// Copies of all formats may come.
fn enable_formats(admin: &mut Queue) {
    let mut behavior = [0; 512];
    behavior[4] = 0b1100;
    let opcode = opcode::admin::SET_FEATURES;
    let command = Command { opcode, cdw10: 0x16.into(), ..Command::default() };
    admin.command(command, Bytes::InCapsule(&behavior)).ok();
}

/// Four ranges of 4 KiB at depths 1 and 32, and of 64 KiB at depth 4.
fn copies() -> Vec<Load> {
    let load = Load { opcode: opcode::io::COPY, blocks: 1, depth: 1 };
    vec![load, Load { depth: 32, ..load }, Load { depth: 4, blocks: 16, ..load }]
}

/// 4 KiB at depths 1 and 32, and 128 KiB at depth 4.
fn all() -> Vec<Load> {
    [READ, WRITE]
        .into_iter()
        .flat_map(|load| [load, Load { depth: 32, ..load }, Load { depth: 4, blocks: 32, ..load }])
        .collect()
}

#[test]
fn memory() {
    check(host::rig::memory(16 << 20, 12, 1), 0, &all());
}

#[test]
fn memory_with_digests() {
    check(host::rig::memory(16 << 20, 12, 1), dgst::HEADER | dgst::DATA, &all());
}

#[test]
fn file_volume() {
    let directory = directory();
    check(file(&directory, 16 << 20, 12, 1, Duration::ZERO), 0, &all());
}

/// A volume as a URI names it: with its guard, which is what Copies go to.
fn opened(uri: &str) -> Arc<dyn Namespace> {
    volume::open(uri, &volume::OpenOptions::default()).expect("a volume")
}

#[test]
fn copies_by_the_means_of_memory() {
    check_two(opened("mem:32M?bs=4096"), Some(opened("mem:32M?bs=4096")), 0, &copies());
}

#[test]
fn copies_that_are_read_and_written() {
    // Whoever wraps a volume hides what keeps its blocks.
    let second = marked(opened("mem:32M?bs=4096"));
    check_two(opened("mem:32M?bs=4096"), Some(second), 0, &copies());
}
