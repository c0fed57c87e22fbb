//! Writes and reads of a scratch NVMe namespace through a reactor: on the first ring, and on further
//! ones that poll or have a submission thread, many in flight, with buffers of the pool.
//!
//! `commands /dev/ng0n1` (as root; **overwrites** the first 8 MiB of the namespace, whose blocks have
//! 512 bytes). One line per combination; fails if one does not do what it should.

use reactor::{Buffer, CommandRing, Complete, Config, Drive, FixedFile, Reactor};
use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};
use uring::{BigEntry, Kind, NvmeOp, NvmeUringCmd, RingOptions, SqPoll, entry};

const DEPTH: u64 = 32;
const OPERATIONS: u64 = 1024;
const BYTES: usize = 8192;
const BLOCKS: u32 = (BYTES / 512) as u32;

/// A write of each place and then a read of it, `DEPTH` at a time.
struct Load {
    reactor: Rc<Reactor>,
    /// Absent: the first ring.
    further: Option<Rc<CommandRing>>,
    file: FixedFile,
    nsid: u32,
    slots: RefCell<Vec<Buffer>>,
    next: Cell<u64>,
    done: Cell<u64>,
}

impl Load {
    /// `number` is an operation's; the even ones write what the odd ones read.
    fn command(&self, slot: u64, number: u64) -> BigEntry {
        let mut slots = self.slots.borrow_mut();
        let buffer = &mut slots[slot as usize];
        let fixed = match &self.further {
            Some(ring) => ring.fixed_index(buffer),
            None => buffer.ensure_registered(),
        };
        let writes = number & 1 == 0;
        if writes {
            buffer.as_mut_slice().fill((number >> 1) as u8);
        } else {
            buffer.as_mut_slice().fill(0xff);
        }
        let command = NvmeUringCmd {
            opcode: if writes { 1 } else { 2 },
            nsid: self.nsid,
            addr: buffer.as_ptr() as u64,
            data_len: BYTES as u32,
            cdw10: (slot * 16 + (number >> 1) % 16) as u32 * BLOCKS,
            cdw12: BLOCKS - 1,
            ..NvmeUringCmd::default()
        };
        entry::nvme_command(self.file.file(), &command, NvmeOp::Io, fixed)
    }

    fn start(self: &Rc<Load>, slot: u64, number: u64) {
        let sink = Rc::new(Operation { load: Rc::clone(self), number });
        self.submit(self.command(slot, number), sink, slot);
    }

    /// `sink` owns the load.
    fn submit(&self, entry: BigEntry, sink: Rc<dyn Complete>, slot: u64) {
        // SAFETY: the load owns the buffers, and the sink the load.
        unsafe {
            match &self.further {
                Some(ring) => ring.submit_command(entry, sink, slot),
                None => self.reactor.submit_command(entry, sink, slot),
            }
        }
    }
}

/// Counts what is told after the end.
struct Last {
    left: Cell<u64>,
    _load: Rc<Load>,
}

impl Complete for Last {
    fn complete(&self, _slot: u64, result: i32, _flags: u32) {
        assert_eq!(result, 0, "what the kernel had is done");
        self.left.set(self.left.get() - 1);
    }
}

struct Operation {
    load: Rc<Load>,
    number: u64,
}

impl Complete for Operation {
    fn complete(&self, slot: u64, result: i32, _flags: u32) {
        assert_eq!(result, 0, "status {result:x}h of operation {}", self.number);
        let load = &self.load;
        load.done.set(load.done.get() + 1);
        if self.number & 1 == 0 {
            return load.start(slot, self.number + 1);
        }
        let expected = (self.number >> 1) as u8;
        let read = load.slots.borrow()[slot as usize].as_slice().iter().all(|b| *b == expected);
        assert!(read, "what was written is read");
        let next = load.next.get();
        if next < OPERATIONS {
            load.next.set(next + 1);
            load.start(slot, next << 1);
        }
    }
}

fn run(file: &File, nsid: u32, kind: Kind, further: Option<&RingOptions>) -> (f64, f64) {
    let reactor = Reactor::new(&Config { kind, ..Config::default() }).expect("io_uring");
    let further = further.map(|options| reactor.command_ring(options).expect("the option"));
    let place = match &further {
        Some(ring) => ring.register_file(file.as_raw_fd()),
        None => reactor.register_file(file.as_raw_fd()),
    };
    let buffers = (0..DEPTH).map(|_| reactor.buffers().allocate(BYTES).expect("room")).collect();
    let load = Rc::new(Load {
        reactor: Rc::clone(&reactor),
        further,
        file: place.expect("a place"),
        nsid,
        slots: RefCell::new(buffers),
        next: Cell::new(DEPTH),
        done: Cell::new(0),
    });
    let begin = Instant::now();
    (0..DEPTH).for_each(|slot| load.start(slot, slot << 1));
    let end = begin + Duration::from_secs(60);
    while load.done.get() < 2 * OPERATIONS {
        assert!(reactor.turn_for(Drive::Until(end)), "commands hang");
    }
    let elapsed = begin.elapsed().as_secs_f64();
    let enters = reactor.stats().enters as f64;
    // Some more, which the reactor waits for when it stops.
    let last = Rc::new(Last { left: Cell::new(DEPTH), _load: Rc::clone(&load) });
    for slot in 0..DEPTH {
        load.submit(load.command(slot, 1), Rc::clone(&last) as Rc<_>, slot);
    }
    reactor.turn_for(Drive::Poll);
    reactor.stop();
    reactor.run();
    assert_eq!(last.left.get(), 0, "the reactor waited");
    assert_eq!(reactor.stats().in_flight, 0);
    (elapsed * 1e6 / (2 * OPERATIONS) as f64, enters / (2 * OPERATIONS) as f64)
}

fn main() {
    let name = std::env::args().nth(1).expect("usage: commands /dev/ngXnY");
    let file = OpenOptions::new().read(true).write(true).open(&name).expect("the device");
    const NVME_IOCTL_ID: libc::Ioctl = 0x4e40;
    // SAFETY: the call takes no argument.
    let nsid = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ID) } as u32;
    let options = RingOptions { entries: 16, kind: Kind::Big, ..RingOptions::default() };
    let sqpoll = Some(SqPoll { cpu: None, idle_ms: 5 });
    let further = [
        ("interrupts", options),
        ("polled", RingOptions { iopoll: true, ..options }),
        ("hybrid", RingOptions { hybrid_iopoll: true, ..options }),
        ("thread", RingOptions { sqpoll, ..options }),
        ("thread, polled", RingOptions { sqpoll, iopoll: true, ..options }),
        ("mixed, polled", RingOptions { iopoll: true, kind: Kind::Mixed, ..options }),
    ];
    for kind in [Kind::Big, Kind::Mixed] {
        let (us, enters) = run(&file, nsid, kind, None);
        println!("first ring, {kind:?}: {us:.1} us, {enters:.2} enters per operation");
    }
    // Linux 7.3 has been seen to sleep for ever in a hybrid poll of a queue that is not polled.
    let no_hybrid = std::env::var_os("NO_HYBRID").is_some();
    for (name, options) in further.iter().filter(|(_, it)| !(no_hybrid && it.hybrid_iopoll)) {
        let (us, enters) = run(&file, nsid, Kind::Small, Some(options));
        println!("further ring, {name}: {us:.1} us, {enters:.2} enters per operation");
    }
}
