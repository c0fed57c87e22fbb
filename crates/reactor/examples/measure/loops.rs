//! Costs of the loop itself, in processor time: no-operations, cached reads, empty turns.

use crate::processor_time;
use reactor::{Buffer, CommandRing, Complete, Config, FixedFile, Poll, Reactor};
use std::cell::{Cell, RefCell};
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::time::Duration;
use uring::{BigEntry, Completion, Entry, Kind, Ring, RingOptions, Wait, entry};

const OPERATIONS: u64 = 2_000_000;
const DEPTHS: [u64; 3] = [1, 32, 128];

/// Keeps `depth` operations in flight until all were done.
struct Load {
    reactor: Rc<Reactor>,
    this: Weak<Load>,
    file: Option<FixedFile>,
    commands: Commands,
    buffers: RefCell<Vec<Buffer>>,
    left: Cell<u64>,
    open: Cell<u64>,
    place: Cell<u64>,
}

const BLOCKS: u64 = 4096;

/// Whether no-operations go as commands do.
#[derive(Clone)]
enum Commands {
    No,
    /// As entries of 128 bytes, on the first ring.
    First,
    /// The same on a further ring.
    Further(Rc<CommandRing>),
}

impl Load {
    fn run(kind: Kind, file: Option<&std::fs::File>, depth: u64, operations: u64) -> Duration {
        let config = Config { cpu: Some(0), kind, ..Config::default() };
        let reactor = Reactor::new(&config).expect("io_uring");
        Load::run_on(&reactor, Commands::No, file, depth, operations)
    }

    /// No-operations as commands, on the first ring of a kind or, if that is small, a further one.
    fn run_commands(kind: Kind, depth: u64, operations: u64) -> Duration {
        let config = Config { cpu: Some(0), kind, ..Config::default() };
        let reactor = Reactor::new(&config).expect("io_uring");
        let commands = if kind == Kind::Small {
            let options = RingOptions { kind: Kind::Big, ..RingOptions::default() };
            Commands::Further(reactor.command_ring(&options).expect("io_uring"))
        } else {
            Commands::First
        };
        Load::run_on(&reactor, commands, None, depth, operations)
    }

    fn run_on(
        reactor: &Rc<Reactor>,
        commands: Commands,
        file: Option<&std::fs::File>,
        depth: u64,
        operations: u64,
    ) -> Duration {
        let place = |_| {
            let buffer = reactor.buffers().allocate(4096).expect("room");
            buffer.ensure_registered().expect("lockable memory");
            buffer
        };
        let load = Rc::new_cyclic(|this| Load {
            this: Weak::clone(this),
            file: file.map(|file| reactor.register_file(file.as_raw_fd()).expect("a place")),
            buffers: RefCell::new((0..depth).map(place).collect()),
            left: Cell::new(operations),
            open: Cell::new(depth),
            place: Cell::new(1),
            commands,
            reactor: Rc::clone(reactor),
        });
        (0..depth).for_each(|token| load.start(token));
        let begin = processor_time();
        reactor.run();
        processor_time() - begin
    }

    fn entry(&self, token: u64) -> Entry {
        let Some(file) = &self.file else { return entry::nop() };
        let mut buffers = self.buffers.borrow_mut();
        let buffer = &mut buffers[token as usize];
        let index = buffer.fixed_index().expect("registered");
        // A full-period generator over the blocks.
        let place = (self.place.get() * 1_103_515_245 + 12_345) % BLOCKS;
        self.place.set(place);
        entry::read_fixed(file.file(), buffer.as_mut_ptr(), 4096, place * 4096, index)
    }

    fn command() -> BigEntry {
        entry::big_nop(Some(1))
    }

    fn start(&self, token: u64) {
        let sink = self.this.upgrade().expect("running");
        // SAFETY: the load owns the buffers and lives until the reactor has drained.
        unsafe {
            match &self.commands {
                Commands::No => self.reactor.submit(self.entry(token), sink, token),
                Commands::First => self.reactor.submit_command(Load::command(), sink, token),
                Commands::Further(ring) => ring.submit_command(Load::command(), sink, token),
            }
        }
    }
}

impl Complete for Load {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        assert!(result == 0 || result == 4096, "{result}");
        if self.left.get() > 0 {
            self.left.set(self.left.get() - 1);
            return self.start(token);
        }
        self.open.set(self.open.get() - 1);
        if self.open.get() == 0 {
            self.reactor.stop();
        }
    }
}

/// The same on the bare ring, for comparison.
fn raw(file: Option<&std::fs::File>, depth: u64, operations: u64) -> Duration {
    let mut ring = Ring::new(1024).expect("io_uring");
    let mut memory = vec![0u8; 4096 * depth as usize];
    ring.register_buffers(1).expect("a table");
    // SAFETY: the memory lives longer than the ring's last operation.
    unsafe { ring.update_buffer(0, memory.as_mut_ptr(), memory.len()) }.expect("lockable memory");
    if let Some(file) = file {
        ring.register_files(1).expect("a table");
        ring.update_file(0, file.as_raw_fd()).expect("a place");
    }
    let mut completions: Vec<Completion> = Vec::with_capacity(256);
    let mut place = 1;
    let begin = processor_time();
    let mut done = 0;
    while done < operations {
        for slot in 0..depth {
            place = (place * 1_103_515_245 + 12_345) % BLOCKS;
            // SAFETY: within the memory, which has a block per slot.
            let start = unsafe { memory.as_mut_ptr().add(4096 * slot as usize) };
            let fixed = uring::File::Fixed(0);
            let entry = match file {
                Some(_) => entry::read_fixed(fixed, start, 4096, place * 4096, 0),
                None => entry::nop(),
            };
            // SAFETY: as above.
            unsafe { ring.push(&entry) }.expect("room");
        }
        let mut open = depth;
        while open > 0 {
            ring.enter(if open == depth { Wait::No } else { Wait::Forever }).expect("sound");
            ring.reap(&mut completions);
            open -= completions.len() as u64;
            completions.clear();
        }
        done += depth;
    }
    processor_time() - begin
}

fn rows(name: &str, file: Option<&std::fs::File>, operations: u64) {
    for depth in DEPTHS {
        let mut best = [Duration::MAX; 2];
        for _ in 0..5 {
            best[0] = best[0].min(Load::run(Kind::Small, file, depth, operations));
            best[1] = best[1].min(raw(file, depth, operations));
        }
        let [reactor, raw] = best.map(|time| time.as_secs_f64() * 1e9 / operations as f64);
        println!("{name} QD {depth:>3}: reactor {reactor:6.1} ns, bare ring {raw:6.1} ns");
    }
}

/// Cost of a no-operation.
pub fn nop() {
    rows("nop ", None, OPERATIONS);
}

/// Cost of a 4 KiB read from the page cache, registered file and buffer. The file is made.
pub fn read(path: &str) {
    rows("read", Some(&cached(path)), OPERATIONS / 4);
}

/// A file in the page cache, which goes when it is closed.
fn cached(path: &str) -> std::fs::File {
    std::fs::write(path, vec![7; (BLOCKS * 4096) as usize]).expect("writable");
    let file = std::fs::File::open(path).expect("readable");
    std::fs::remove_file(path).expect("ours");
    file
}

const KINDS: [Kind; 3] = [Kind::Small, Kind::Mixed, Kind::Big];

/// The same operations on rings of each kind (docs/decisions/0005), the least of five runs, taken
/// in turn.
pub fn kinds(path: &str, operations: u64) {
    let options = RingOptions { kind: Kind::Mixed, ..RingOptions::default() };
    let granted = Ring::with_options(&options).expect("io_uring").setup().kind;
    println!("mixed rings are {granted:?} here");
    let file = cached(path);
    for (name, file) in [("nop ", None), ("read", Some(&file))] {
        for depth in DEPTHS {
            let mut best = [Duration::MAX; KINDS.len()];
            for _ in 0..5 {
                for (kind, best) in KINDS.into_iter().zip(&mut best) {
                    *best = (*best).min(Load::run(kind, file, depth, operations));
                }
            }
            let [small, mixed, big] = best.map(|time| time.as_secs_f64() * 1e9 / operations as f64);
            println!(
                "{name} QD {depth:>3}: small {small:7.1} ns, mixed {mixed:7.1}, big {big:7.1}"
            );
        }
    }
    for depth in DEPTHS {
        let mut best = [Duration::MAX; KINDS.len()];
        for _ in 0..5 {
            for (kind, best) in KINDS.into_iter().zip(&mut best) {
                *best = (*best).min(Load::run_commands(kind, depth, operations));
            }
        }
        let [further, mixed, big] = best.map(|time| time.as_secs_f64() * 1e9 / operations as f64);
        println!(
            "command QD {depth:>3}: first ring mixed {mixed:7.1} ns, big {big:7.1}; \
             further ring beside a small one {further:7.1}",
        );
    }
}

/// One run, for counting its instructions: KIND nop|FILE DEPTH OPERATIONS.
pub fn once(words: &[String]) {
    let [kind, what, depth, operations] = words else { panic!("KIND nop|FILE DEPTH OPERATIONS") };
    let names = ["small", "mixed", "big"];
    let kind = KINDS[names.iter().position(|name| name == kind).expect("a kind")];
    let [depth, operations] = [depth, operations].map(|word| word.parse().expect("a number"));
    let file = (what != "nop").then(|| cached(what));
    Load::run(kind, file.as_ref(), depth, operations);
}

/// Cost of a turn in which nothing is to be done.
pub fn turn() {
    struct Nothing {
        reactor: Rc<Reactor>,
        left: Cell<u64>,
    }
    impl Poll for Nothing {
        fn poll(&self) -> bool {
            self.left.set(self.left.get() - 1);
            if self.left.get() == 0 {
                self.reactor.stop();
            }
            false
        }
        fn park(&self) -> bool {
            false
        }
    }
    let config = Config { cpu: Some(0), poll_always: true, ..Config::default() };
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let reactor = Reactor::new(&config).expect("io_uring");
        let left = Cell::new(10_000_000);
        reactor.attach(Rc::new(Nothing { reactor: Rc::clone(&reactor), left }));
        let before = processor_time();
        reactor.run();
        best = best.min(processor_time() - before);
    }
    println!("turn with one active poller: {:.1} ns", best.as_secs_f64() * 1e9 / 1e7);
}
