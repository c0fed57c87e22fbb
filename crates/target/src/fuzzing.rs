//! The body of the fuzz target `carrier` in fuzz/: Copies of any host, carried out in memory.
//!
//! The fuzzer's bytes choose volumes (memory, `linear:` of it, parts that refuse or fail), commands and their lists. What
//! passes the checks goes to the top of the destination's stack, as a connection gives it there. Whatever the bytes are, it comes
//! back, and leaves what a model of each block says: all of it, or an error with everything before the range that it
//! names, which was not copied whole.

use crate::copy::fill;
use namespace::copy::{Other, Sources};
use namespace::layer::fault::{Fault, Rule};
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::layer::linear::Linear;
use namespace::memory::{Memory, MemoryOptions};
use namespace::{Data, Namespace, Queue, Request, Sink};
use nvme::copy::{Entry, FORMATS, Format};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::{Buffer, Config, Drive, Reactor};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use subsystem::copy::{check_copy, check_format};
use subsystem::{AnaState, NamespaceAccess};

/// Blocks of each volume, of 512 bytes.
const BLOCKS: u64 = 48;
/// Namespaces 1 to 3.
const VOLUMES: u32 = 3;
/// Copies of one input, one after another.
const COPIES: usize = 4;
/// What has not come back after so many turns never will.
const TURNS: u32 = 100_000;

thread_local! {
    static REACTOR: Rc<Reactor> =
        Reactor::new(&Config { buffer_bytes: 1 << 20, ..Config::default() }).expect("a reactor");
}

/// What is left of the fuzzer's bytes; zeroes from then on.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn below(&mut self, below: u64) -> u64 {
        u64::from(self.byte()) % below
    }

    /// A number that is mostly below `below`, or close to where numbers end.
    fn number(&mut self, below: u64) -> u64 {
        match self.byte() {
            0xff => u64::MAX - self.below(4),
            0xfe => 1 << self.below(64),
            byte => u64::from(byte) % below,
        }
    }
}

/// A volume, and the memory that its blocks are in, one part after another.
struct Volume {
    top: Rc<Other>,
    parts: Vec<(Rc<dyn Queue>, u32)>,
}

/// What came back.
#[derive(Default)]
struct Back(RefCell<Option<Box<Request>>>);

impl Sink for Back {
    fn completed(&self, request: Box<Request>, _state: u64) {
        let before = self.0.borrow_mut().replace(request);
        assert!(before.is_none(), "completed twice");
    }
}

struct World {
    reactor: Rc<Reactor>,
    volumes: Vec<Volume>,
    /// Something may fail.
    faulty: bool,
}

impl World {
    fn new(script: &mut Script<'_>) -> World {
        let reactor = REACTOR.with(Rc::clone);
        let mut world = World { reactor, volumes: Vec::new(), faulty: false };
        for number in 0..VOLUMES {
            let volume = world.volume(script);
            world.fill(&volume, u64::from(number) * 1000);
            world.volumes.push(volume);
        }
        world
    }

    /// Up to four parts of memory, some of them in a `linear:` of their own.
    fn volume(&mut self, script: &mut Script<'_>) -> Volume {
        let shape = script.byte();
        let (mut parts, mut children) = (Vec::new(), Vec::new());
        let count = 1 + u64::from(shape & 3);
        for left in (0..count).rev() {
            let used: u64 = parts.iter().map(|(_, blocks)| blocks).sum();
            let free = BLOCKS - used - left;
            let blocks = if left == 0 { free } else { 1 + script.below(free) };
            let memory = Memory::open(MemoryOptions {
                bytes: blocks << 9,
                block_shift: 9,
                cores: 1 + usize::from(shape >> 7),
                lend: false,
                uuid: None,
            });
            let memory = memory.expect("some pages");
            children.push(self.layer(script, memory.clone()));
            parts.push((memory, blocks));
        }
        if shape & 8 != 0 && children.len() > 2 {
            let rest = children.split_off(2);
            children = [Linear::new(children).expect("blocks of one size") as _].into();
            children.extend(rest);
        }
        let child = match children.len() {
            1 => children.remove(0),
            _ => Linear::new(children).expect("blocks of one size"),
        };
        let guard = |child| Guard::new(child, GuardOptions::default()) as Arc<dyn Namespace>;
        let namespace = if shape & 4 != 0 { guard(guard(child)) } else { guard(child) };
        let open = |namespace: Arc<dyn Namespace>| {
            namespace.open_queue(&self.reactor).expect("memory has queues")
        };
        let part = |(memory, blocks)| (open(memory as Arc<dyn Namespace>), blocks as u32);
        let parts = parts.into_iter().map(part).collect();
        let queue = open(Arc::clone(&namespace));
        Volume { top: Rc::new(Other { namespace, queue }), parts }
    }

    /// Perhaps with some Copies refused, or a few commands failed.
    fn layer(&mut self, script: &mut Script<'_>, child: Arc<dyn Namespace>) -> Arc<dyn Namespace> {
        let choice = script.byte();
        let copies = vec![opcode::COPY];
        let (opcodes, status) = match choice & 7 {
            0..4 => return child,
            4 => (copies, Some(Status::FAST_COPY_NOT_POSSIBLE)),
            5 => (copies, Some(Status::FAST_COPY_NOT_POSSIBLE.dnr())),
            6 => (copies, None),
            _ => (vec![opcode::READ, opcode::WRITE], None),
        };
        self.faulty |= status.is_none();
        let (skip, count) = (u64::from(choice >> 6) / 2, Some(1 + u64::from(choice >> 3 & 7)));
        Fault::new(child, Rule { opcodes, status, skip, count, ..Rule::default() })
    }

    fn carry_out(&self, queue: &Rc<dyn Queue>, mut request: Box<Request>) -> Box<Request> {
        let back = Rc::<Back>::default();
        request.push(Rc::clone(&back) as Rc<dyn Sink>, 0);
        queue.submit(request);
        for _ in 0..TURNS {
            if let Some(request) = back.0.borrow_mut().take() {
                return request;
            }
            self.reactor.turn_for(Drive::Poll);
        }
        panic!("a command does not come back");
    }

    fn on_part(&self, (queue, blocks): &(Rc<dyn Queue>, u32), code: u8, buffer: Buffer) -> Buffer {
        let mut request = Request::new();
        request.command = Command::blocks(code, 1, 0, *blocks);
        request.data = Data::Buffer(buffer);
        let request = self.carry_out(queue, request);
        let Data::Buffer(buffer) = request.data else { panic!("memory gives the buffer back") };
        assert!(request.status.is_success());
        buffer
    }

    fn buffer(&self, (_, blocks): &(Rc<dyn Queue>, u32)) -> Buffer {
        self.reactor.buffers().allocate(*blocks as usize * 512).expect("nobody has any")
    }

    /// Writes to the memory of a volume: a number of its own into each block.
    fn fill(&self, volume: &Volume, mut next: u64) {
        for part in &volume.parts {
            let mut buffer = self.buffer(part);
            for block in buffer.as_mut_slice().chunks_exact_mut(512) {
                block.as_chunks_mut().0.fill(next.to_le_bytes());
                next += 1;
            }
            self.on_part(part, opcode::WRITE, buffer);
        }
    }

    /// The number that each block of a volume holds, as its memory has it.
    fn contents(&self, volume: &Volume) -> Vec<u64> {
        let mut numbers = Vec::new();
        for part in &volume.parts {
            let buffer = self.on_part(part, opcode::READ, self.buffer(part));
            for block in buffer.as_slice().chunks_exact(512) {
                let (words, _) = block.as_chunks::<8>();
                assert!(words.iter().all(|word| *word == words[0]), "a block is torn");
                numbers.push(u64::from_le_bytes(words[0]));
            }
        }
        numbers
    }

    fn all_contents(&self) -> Vec<Vec<u64>> {
        self.volumes.iter().map(|volume| self.contents(volume)).collect()
    }

    /// What a connection makes of a list; or why it does not.
    fn sources(&self, command: &Command, list: &[u8]) -> Result<Box<Sources>, Status> {
        let volume = |nsid: u32| self.volumes.get((nsid as usize).wrapping_sub(1));
        let limits = volume(command.nsid.get()).expect("one of them").top.namespace.limits();
        check_format(command, FORMATS, &limits)?;
        let entries = nvme::copy::entries(command, list)?;
        let access = |nsid| {
            let limits = volume(nsid)?.top.namespace.limits();
            Some(NamespaceAccess { nsid, limits, state: AnaState::OPTIMIZED })
        };
        check_copy(command, entries.clone(), &limits, access)?;
        let mut sources = Box::<Sources>::default();
        fill(&mut sources, command, entries, |nsid| {
            Ok(Rc::clone(&volume(nsid).expect("just checked").top))
        })?;
        Ok(sources)
    }
}

/// A Copy, and its list: mostly one that can be carried out.
fn listed(script: &mut Script<'_>) -> (Command, Vec<u8>) {
    let (choice, format) = (script.byte(), Format::ALL[script.below(4) as usize]);
    let count = if choice & 1 == 0 { 1 + script.below(6) } else { 1 + script.below(128) };
    let longest = if choice & 1 == 0 { 12 } else { 2 };
    let mut list = Vec::new();
    for _ in 0..count {
        let entry = Entry {
            nsid: script.number(VOLUMES.into()).wrapping_add(1) as u32,
            slba: script.number(BLOCKS),
            blocks: 1 + (script.number(longest) % (1 << 16)) as u32,
            fast_only: choice & 6 == 6 && script.byte() & 1 != 0,
        };
        let start = list.len();
        list.resize(start + format.entry_bytes(), 0);
        entry.write(format, &mut list[start..]);
    }
    let nsid = 1 + script.below(VOLUMES.into()) as u32;
    let mut command = nvme::copy::command(nsid, script.number(BLOCKS), count as usize, format);
    command.cdw12 |= u32::from(choice & 8 != 0) << 30;
    (command, list)
}

/// Carries Copies out.
pub fn fuzz_carrier(bytes: &[u8]) {
    let mut script = Script(bytes);
    let world = World::new(&mut script);
    let mut model = world.all_contents();
    for _ in 0..COPIES {
        let (command, list) = listed(&mut script);
        let Ok(mut sources) = world.sources(&command, &list) else { continue };
        let stops = script.byte() == 0xff;
        sources.stop = stops.then(|| Arc::new(AtomicBool::new(true)));
        let ranges = sources.ranges.len();
        let mut request = Request::new();
        (request.command, request.data) = (command, Data::Sources(sources));
        let queue = &world.volumes[command.nsid.get() as usize - 1].top.queue;
        let request = world.carry_out(queue, request);
        let Data::Sources(sources) = &request.data else { panic!("a Copy has its sources again") };
        assert_eq!(sources.ranges.len(), ranges);
        let entries = nvme::copy::entries(&command, &list).expect("it has passed");
        let entries: Vec<Entry> = entries.collect();
        let lowest = match request.status {
            status if status.is_success() => entries.len(),
            status => {
                let lowest = request.result as usize;
                let refused = status.code() == Status::FAST_COPY_NOT_POSSIBLE;
                assert!(refused && entries[lowest].fast_only || stops || world.faulty, "{status}");
                lowest
            }
        };
        check(&world, &mut model, &command, &entries, lowest);
    }
}

/// Holds what a Copy has left against the model: the first `lowest` ranges were copied, of the next ones some blocks may
/// have been. The model takes that over.
fn check(
    world: &World,
    model: &mut Vec<Vec<u64>>,
    command: &Command,
    entries: &[Entry],
    lowest: usize,
) {
    let (to, sdlba) = (command.nsid.get() as usize - 1, command.slba() as usize);
    let named = command.copy_format().is_some_and(Format::names_namespaces);
    let (mut at, mut sure) = (sdlba, sdlba);
    let before = model[to].clone();
    for (number, entry) in entries.iter().enumerate() {
        let from = if named { entry.nsid as usize - 1 } else { to };
        let (slba, blocks) = (entry.slba as usize, entry.blocks as usize);
        let read = model[from][slba..slba + blocks].to_vec();
        model[to][at..at + blocks].copy_from_slice(&read);
        at += blocks;
        sure = if number < lowest { at } else { sure };
    }
    let held = world.all_contents();
    for block in sure..at {
        let now = held[to][block];
        assert!(now == before[block] || now == model[to][block], "block {block}");
    }
    if let Some(entry) = entries.get(lowest) {
        let range = sure..sure + entry.blocks as usize;
        let changes = range.clone().all(|block| before[block] != model[to][block]);
        let whole = held[to][range.clone()] == model[to][range];
        assert!(!changes || !whole, "range {lowest} was copied");
    }
    model[to][sure..at].copy_from_slice(&held[to][sure..at]);
    assert_eq!(*model, held);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    #[test]
    fn carrier_seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/carrier");
        let mut count = 0;
        for entry in folder.read_dir().expect("the seeds are committed") {
            fuzz_carrier(&std::fs::read(entry.expect("a readable folder").path()).expect("a file"));
            count += 1;
        }
        assert!(count > 0, "no seeds in {}", folder.display());
    }

    proptest! {
        #[test]
        fn any_copies(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            fuzz_carrier(&bytes);
        }
    }
}
