//! Volumes over real backends, and the two layers that the tests put between.

use crate::devices::Devices;
use crate::dice::Dice;
use crate::leaf::Leaf;
use crate::tally::{Means, Tally};
use crate::world::SCATTERED;
use namespace::copy::Located;
use namespace::file::{File, FileOptions};
use namespace::layer::delay::{Delay, Delays};
use namespace::layer::fault::{Fault, Rule};
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::layer::linear::Linear;
use namespace::layer::program::Routed;
use namespace::layer::rate::{Rate, Rates};
use namespace::memory::{Memory, MemoryOptions};
use namespace::{Namespace, Queue, Request};
use nvme::limits::CopyLimits;
use nvme::opcode::io as opcode;
use nvme::{Limits, Status};
use reactor::{Complete, Reactor};
use std::cell::{Cell, RefCell};
use std::io;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// What volumes are made of.
pub struct Maker<'a> {
    pub folder: &'a Path,
    pub block_shift: u8,
    /// Cores that memory is told of: two make it copy under locks.
    pub cores: usize,
    /// One in so many commands fails in some of the backends, none if zero.
    pub failures: u64,
    /// Those that backends may be on.
    pub devices: Option<&'a Devices>,
    /// Files are what it is about: most backends are such.
    pub mostly_files: bool,
    /// What most backends are instead, if they are to be elsewhere.
    pub elsewhere: Option<&'a Elsewhere<'a>>,
    /// A target is to have it: each of its volumes takes as much at once as a target promises.
    pub served: bool,
    /// Failures are also so many after so many commands, or of certain blocks.
    pub varied: bool,
    /// Some of these are such that a host tries again.
    pub interrupts: bool,
    pub tally: Arc<Tally>,
    pub files: Cell<u32>,
}

/// Makes a backend of so many blocks.
pub type Elsewhere<'a> = dyn Fn(u64, &mut Dice) -> Arc<dyn Namespace> + 'a;

impl<'a> Maker<'a> {
    /// Without failures and devices.
    pub fn new(folder: &'a Path, block_shift: u8, cores: usize) -> Maker<'a> {
        Maker {
            folder,
            block_shift,
            cores,
            failures: 0,
            devices: None,
            mostly_files: false,
            elsewhere: None,
            served: false,
            varied: false,
            interrupts: false,
            tally: Arc::default(),
            files: Cell::new(0),
        }
    }

    pub fn memory(&self, blocks: u64) -> Arc<dyn Namespace> {
        Memory::open(MemoryOptions {
            bytes: blocks << self.block_shift,
            block_shift: self.block_shift,
            cores: self.cores,
            lend: self.cores == 1,
            uuid: None,
        })
        .expect("memory")
    }

    pub fn file(&self, blocks: u64, buffered: bool) -> Arc<dyn Namespace> {
        let number = self.files.replace(self.files.get() + 1);
        File::open(&FileOptions {
            path: self.folder.join(number.to_string()),
            create_bytes: Some(blocks << self.block_shift),
            block_shift: Some(self.block_shift),
            read_only: false,
            shared: false,
            buffered,
            uuid: None,
            is_path: false,
            made: None,
        })
        .expect("a file")
    }

    /// Memory, a file, a part of a device, or what is elsewhere.
    fn leaf(&self, blocks: u64, dice: &mut Dice) -> Arc<dyn Namespace> {
        if let Some(elsewhere) = self.elsewhere
            && !dice.one_in(5)
        {
            return elsewhere(blocks, dice);
        }
        if let Some(devices) = self.devices
            && !dice.one_in(4)
            && let Some(part) = devices.part(blocks, self.block_shift, dice, &self.tally)
        {
            return part;
        }
        // Files are the slowest by far: each Copy goes to a thread. Only they have blocks of more than 4 KiB.
        let is_file = (dice.roll(4) == 0) != self.mostly_files || self.block_shift > 12;
        match is_file {
            true => Leaf::whole(self.file(blocks, dice.one_in(2)), Means::File, &self.tally),
            false => Leaf::whole(self.memory(blocks), Means::Memory, &self.tally),
        }
    }

    /// A backend, perhaps with layers over it.
    fn backend(&self, blocks: u64, dice: &mut Dice) -> Arc<dyn Namespace> {
        let leaf = self.leaf(blocks, dice);
        let mixed: Arc<dyn Namespace> = match dice.one_in(2) {
            true => Mixed::over(leaf, self.served, dice),
            false => leaf,
        };
        self.faulty(slowed(mixed, dice), dice)
    }

    /// Perhaps with faults: of media, or Copies refused.
    fn faulty(&self, child: Arc<dyn Namespace>, dice: &mut Dice) -> Arc<dyn Namespace> {
        if self.failures == 0 || dice.one_in(2) {
            return child;
        }
        let (opcodes, status) = match dice.roll(4) {
            0 => (vec![opcode::COPY], Some(Status::FAST_COPY_NOT_POSSIBLE)),
            1 => (vec![opcode::COPY], None),
            2 => (vec![opcode::READ, opcode::WRITE], None),
            _ => (Vec::new(), None),
        };
        let rate = 1.0 / self.failures as f64;
        let seed = dice.roll(1 << 30);
        let rule = Rule { rate, opcodes, status, seed, ..Rule::default() };
        let rule = if self.varied { self.vary(rule, child.limits().blocks, dice) } else { rule };
        Fault::new(child, rule)
    }

    /// Perhaps not now and then, but several in a row, or of certain blocks; and perhaps with a status that says to try again.
    fn vary(&self, rule: Rule, blocks: u64, dice: &mut Dice) -> Rule {
        let status = match self.interrupts && dice.one_in(4) {
            true => rule.status.or(Some(Status::COMMAND_INTERRUPTED)),
            false => rule.status,
        };
        let rule = Rule { status, ..rule };
        match dice.roll(4) {
            0 => {
                let (skip, count) = (dice.roll(10 * self.failures), 1 + dice.roll(6));
                Rule { rate: 1.0, skip, count: Some(count), ..rule }
            }
            1 => {
                // Not always: who looks at what they hold reads until that succeeds.
                let (first, count) = (dice.roll(blocks), dice.roll(8));
                Rule { rate: 0.3, lba: Some((first, first + count)), ..rule }
            }
            _ => rule,
        }
    }

    /// A volume of `blocks` blocks with a guard.
    pub fn volume(&self, blocks: u64, dice: &mut Dice) -> Arc<dyn Namespace> {
        let child = match dice.roll(4) {
            0 => self.backend(blocks, dice),
            1 => self.program(blocks, dice),
            _ => Linear::new(self.parts(blocks, dice)).expect("blocks of one size"),
        };
        let guard = |child| {
            let options = GuardOptions { cores: self.cores, ..GuardOptions::default() };
            Guard::new(child, options) as Arc<dyn Namespace>
        };
        let guard = match dice.one_in(6) {
            true => guard(guard(child)),
            false => guard(child),
        };
        let guard = if dice.one_in(4) { slowed(guard, dice) } else { guard };
        match self.failures > 0 && dice.one_in(4) {
            true => self.faulty(guard, dice),
            false => guard,
        }
    }

    /// Two or three backends one after another, one of them perhaps with a guard of its own.
    fn parts(&self, blocks: u64, dice: &mut Dice) -> Vec<Arc<dyn Namespace>> {
        let mut children = Vec::new();
        let mut left = blocks;
        for _ in 0..1 + dice.roll(2) {
            let here = 1 + dice.roll(left - 1);
            children.push(self.backend(here, dice));
            left -= here;
            if left == 1 {
                break;
            }
        }
        children.push(self.backend(left, dice));
        if dice.one_in(4) {
            let options = GuardOptions {
                cores: self.cores,
                uuid: Some([7; 16]),
                in_uri: true,
                ..GuardOptions::default()
            };
            let index = dice.roll(children.len() as u64) as usize;
            let child = children.swap_remove(index);
            let last = children.len();
            children.push(Guard::new(child, options));
            children.swap(index, last);
        }
        children
    }

    /// Backends behind a program: one after another, striped, or scattered and some of it written twice.
    fn program(&self, blocks: u64, dice: &mut Dice) -> Arc<dyn Namespace> {
        // So that nothing is left over.
        let count = [5, 3, 2, 1][dice.roll(4) as usize];
        let chunk = (64 << 10) >> self.block_shift;
        let several = |of: u64, dice: &mut Dice| -> Vec<_> {
            (0..count).map(|_| self.backend(of, dice)).collect()
        };
        let (name, children) = match dice.roll(3) {
            0 if blocks.is_multiple_of(count * chunk) => ("stripe", several(blocks / count, dice)),
            1 if blocks.is_multiple_of(count * 3) => (SCATTERED, several(blocks / count + 3, dice)),
            _ => ("linear", self.parts(blocks, dice)),
        };
        let routed = routed(name, children, self.cores);
        assert_eq!(routed.limits().blocks, blocks, "{name} over {count}");
        routed
    }
}

/// Perhaps with commands held back for some microseconds, or to a rate that a few at once exceed.
fn slowed(child: Arc<dyn Namespace>, dice: &mut Dice) -> Arc<dyn Namespace> {
    match dice.roll(8) {
        0 => {
            let [read, write] = [0, 1].map(|least| Duration::from_micros(least + dice.roll(40)));
            Delay::new(child, Delays { read, write, ..Delays::default() })
        }
        1 => {
            let (bytes, commands) = ((64 << 20) << dice.roll(4), 20_000 << dice.roll(3));
            let which = dice.roll(3);
            let bytes = (which != 1).then_some(bytes);
            Rate::new(child, Rates { bytes, commands: (which != 0).then_some(commands) })
        }
        _ => child,
    }
}

/// `children` behind the repository's program `name`.
pub fn routed(name: &str, children: Vec<Arc<dyn Namespace>>, cores: usize) -> Arc<Routed> {
    Routed::new(&object(name), name.to_owned(), children, cores).expect(name)
}

/// The object of the repository's program `name`.
pub fn object(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../bpf/{name}.bpf.o"));
    std::fs::read(&path).expect(name)
}

/// Makes a backend small and unordered: it takes little at once, and starts commands in any order.
#[derive(Debug)]
pub struct Mixed {
    child: Arc<dyn Namespace>,
    copy: CopyLimits,
    transfer_bytes_max: u32,
    /// One in so many commands is held back for a turn.
    held: u64,
    seed: u64,
}

impl Mixed {
    /// With `served`, it takes as much data at once as `child`.
    pub fn over(child: Arc<dyn Namespace>, served: bool, dice: &mut Dice) -> Arc<Mixed> {
        let limits = child.limits();
        let copy = match limits.copy.is_offered() && !dice.one_in(4) {
            false => CopyLimits::NONE,
            true => limits.copy.and(CopyLimits {
                ranges_max: 1 + dice.roll(4) as u16,
                range_blocks_max: 1 + dice.roll(9) as u32,
                blocks_max: 9 + dice.roll(9) as u32,
            }),
        };
        let transfer_bytes_max = match served {
            true => limits.transfer_bytes_max,
            false => limits.block_bytes() * (1 + dice.roll(8) as u32),
        };
        let (held, seed) = (1 + dice.roll(3), dice.roll(1 << 30));
        Arc::new(Mixed { child, copy, transfer_bytes_max, held, seed })
    }
}

impl Namespace for Mixed {
    fn limits(&self) -> Limits {
        let Mixed { copy, transfer_bytes_max, .. } = *self;
        let limits = self.child.limits();
        Limits { copy, transfer_bytes_max, immediate: false, ..limits }
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let child = Arc::clone(&self.child).open_queue(reactor)?;
        Ok(Rc::new_cyclic(|me| MixedQueue {
            me: Weak::clone(me),
            child,
            reactor: Rc::clone(reactor),
            dice: RefCell::new(Dice::new(self.seed)),
            held: RefCell::default(),
            namespace: self,
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
        format!("mixed({})", self.child.uri())
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        self.child.describe(facts);
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.child.uuid()
    }

    fn keeps_blocks_whole(&self) -> bool {
        self.child.keeps_blocks_whole()
    }

    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        Arc::clone(&self.child).origin(slba, blocks)
    }
}

struct MixedQueue {
    me: Weak<MixedQueue>,
    namespace: Arc<Mixed>,
    child: Rc<dyn Queue>,
    reactor: Rc<Reactor>,
    dice: RefCell<Dice>,
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    held: RefCell<Vec<Box<Request>>>,
}

impl Queue for MixedQueue {
    fn submit(&self, request: Box<Request>) {
        let bytes = request.data.len();
        assert!(bytes <= self.namespace.transfer_bytes_max as usize, "{bytes} bytes at once");
        if let namespace::Data::Sources(sources) = &request.data {
            let limits = self.namespace.copy;
            assert!(sources.ranges.len() <= usize::from(limits.ranges_max));
            assert!(sources.blocks() <= u64::from(limits.blocks_max));
            let most = sources.ranges.iter().map(|range| range.blocks).max();
            assert!((1..=limits.range_blocks_max).contains(&most.expect("there is a range")));
        }
        if self.dice.borrow_mut().one_in(self.namespace.held) {
            self.held.borrow_mut().push(request);
            self.reactor.defer(self.me.upgrade().expect("alive"), 0);
        } else {
            self.child.submit(request);
        }
    }

    fn forget(&self) {}
}

impl Complete for MixedQueue {
    /// Any one of those that are held goes on.
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        let mut held = self.held.borrow_mut();
        let index = self.dice.borrow_mut().roll(held.len() as u64) as usize;
        let request = held.swap_remove(index);
        drop(held);
        self.child.submit(request);
    }
}
