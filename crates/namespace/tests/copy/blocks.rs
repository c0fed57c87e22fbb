//! Volumes as a front door sees them: their queues on one reactor, and blocks that hold a number each.

use namespace::copy::{Other, Place, Source, Sources};
use namespace::{Data, Namespace, Request, Sink};
use nvme::copy::Format;
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::{Config, Drive, Reactor};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is not done after this time never will be: longer than a disk takes that others have filled the queue of.
const PATIENCE: Duration = Duration::from_secs(150);
/// So long looks whoever gives up.
const SECOND_LOOK: Duration = Duration::from_secs(5);

/// One core with all volumes.
pub struct Core {
    pub reactor: Rc<Reactor>,
    pub volumes: Vec<Rc<Other>>,
    pub block_bytes: usize,
    done: Rc<Done>,
}

/// Requests that have come back, by number.
#[derive(Default)]
struct Done(RefCell<Vec<Option<Box<Request>>>>);

/// What became of a command.
pub struct Outcome {
    pub status: Status,
    pub result: u64,
    pub data: Data,
    /// Of the second of a fused pair.
    pub second: Option<Status>,
}

/// A source range: of which volume, and of which blocks.
pub type Span = (usize, u64, u32);

impl Sink for Done {
    fn completed(&self, request: Box<Request>, number: u64) {
        let before = self.0.borrow_mut()[number as usize].replace(request);
        assert!(before.is_none(), "completed twice");
    }
}

/// What each thread of this process waits for, by the kernel's words.
fn threads() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let tasks = tasks.map(|task| {
        let of = |name: &str| read(&format!("{}/{name}", task.path().display()));
        let state =
            of("status").lines().find_map(|line| line.strip_prefix("State:\t").map(str::to_owned));
        let state = state.unwrap_or_default();
        format!(
            "{}: {state}, {}, system call {}\n{}",
            of("comm"),
            of("wchan"),
            of("syscall"),
            of("stack")
        )
    });
    tasks.collect::<Vec<_>>().join("\n")
}

impl Core {
    pub fn new(volumes: &[Arc<dyn Namespace>], buffer_bytes: usize) -> Core {
        let reactor =
            Reactor::new(&Config { buffer_bytes, ..Config::default() }).expect("a reactor");
        Core::on(reactor, volumes)
    }

    pub fn on(reactor: Rc<Reactor>, volumes: &[Arc<dyn Namespace>]) -> Core {
        let open = |namespace: &Arc<dyn Namespace>| {
            let queue = Arc::clone(namespace).open_queue(&reactor).expect("a queue");
            Rc::new(Other { namespace: Arc::clone(namespace), queue })
        };
        let volumes: Vec<_> = volumes.iter().map(open).collect();
        let block_bytes = volumes[0].namespace.limits().block_bytes() as usize;
        Core { reactor, volumes, block_bytes, done: Rc::default() }
    }

    /// Blocks that one command to a volume may have.
    pub fn blocks_max(&self, volume: usize) -> u32 {
        let bytes = self.volumes[volume].namespace.limits().transfer_bytes_max as usize;
        (bytes / self.block_bytes) as u32
    }

    pub fn copy(&self, volume: usize, slba: u64, spans: &[Span], fast_only: bool) -> Box<Request> {
        let source = |&(from, slba, blocks): &Span| {
            let place = match from == volume {
                true => Place::Same,
                false => Place::Other(Rc::clone(&self.volumes[from])),
            };
            Source { place, slba, blocks, fast_only }
        };
        let ranges: Vec<Source> = spans.iter().map(source).collect();
        let mut request = Request::new();
        request.command = nvme::copy::command(1, slba, ranges.len(), Format::Short);
        request.data = Data::Sources(Box::new(Sources { ranges, ..Sources::default() }));
        request
    }

    pub fn write(&self, slba: u64, numbers: &[u64]) -> Box<Request> {
        let mut request = Request::new();
        request.command = Command::blocks(opcode::WRITE, 1, slba, numbers.len() as u32);
        let mut buffer = self
            .reactor
            .buffers()
            .allocate(numbers.len() * self.block_bytes)
            .expect("the pool has room for the test");
        for (block, number) in buffer.as_mut_slice().chunks_mut(self.block_bytes).zip(numbers) {
            block.chunks_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
        }
        request.data = Data::Buffer(buffer);
        request
    }

    /// A Compare with `old` and a Write of `new`, as one.
    pub fn swap(&self, slba: u64, old: &[u64], new: &[u64]) -> Box<Request> {
        let (mut request, mut second) = (self.write(slba, old), self.write(slba, new));
        request.command.opcode = opcode::COMPARE;
        request.command.flags |= 1;
        second.command.flags |= 2;
        request.fused = Some(second);
        request
    }

    /// Starts commands on volumes and waits for all of them.
    pub fn run(&self, requests: Vec<(usize, Box<Request>)>) -> Vec<Outcome> {
        self.done.0.borrow_mut().clear();
        self.done.0.borrow_mut().resize_with(requests.len(), || None);
        let mut asked = Vec::new();
        for (number, (volume, mut request)) in requests.into_iter().enumerate() {
            asked.push((volume, request.command));
            request.push(Rc::clone(&self.done) as Rc<dyn Sink>, number as u64);
            self.volumes[volume].queue.submit(request);
        }
        let begin = Instant::now();
        while self.done.0.borrow().iter().any(Option::is_none) {
            self.reactor.turn_for(Drive::Until(begin + PATIENCE));
            if begin.elapsed() >= PATIENCE {
                self.give_up(&asked);
            }
        }
        let outcome = |done: Option<Box<Request>>| {
            let mut request = done.expect("all are back");
            let data = std::mem::take(&mut request.data);
            let second = request.fused.take().map(|second| second.status);
            Outcome { status: request.status, result: request.result, data, second }
        };
        self.done.0.borrow_mut().drain(..).map(outcome).collect()
    }

    /// Tells which of what was asked has not come back, and whether it does when the reactor looks without being told:
    /// then it was not woken.
    fn give_up(&self, asked: &[(usize, Command)]) -> ! {
        let threads = threads();
        let missing = || -> Vec<_> {
            let done = self.done.0.borrow();
            let missing = asked.iter().zip(&*done).filter(|(_, done)| done.is_none());
            missing.map(|(asked, _)| *asked).collect()
        };
        let (missed, before) = (missing(), self.reactor.stats());
        let until = Instant::now() + SECOND_LOOK;
        while !missing().is_empty() && Instant::now() < until {
            self.reactor.turn_for(Drive::Poll);
        }
        let (left, after) = (missing(), self.reactor.stats());
        panic!(
            "commands have not come back: {missed:?}\n{threads}\nafter another look: {left:?}\n{before:?}\n{after:?}"
        );
    }

    /// The numbers that blocks hold, none where a block is torn; reads that fail are tried again.
    pub fn read(&self, volume: usize, slba: u64, blocks: u64) -> Vec<Option<u64>> {
        let mut numbers = Vec::new();
        let (mut at, end) = (slba, slba + blocks);
        while at < end {
            let here = u64::from(self.blocks_max(volume)).min(end - at) as u32;
            let outcome = self.run(vec![(volume, self.reading(at, here))]).remove(0);
            if !outcome.status.is_success() {
                continue;
            }
            numbers.extend(self.numbers(&outcome));
            at += u64::from(here);
        }
        numbers
    }

    pub fn reading(&self, slba: u64, blocks: u32) -> Box<Request> {
        let mut request = Request::new();
        request.command = Command::blocks(opcode::READ, 1, slba, blocks);
        let buffer = self.reactor.buffers().allocate(blocks as usize * self.block_bytes);
        request.data = Data::Buffer(buffer.expect("the pool has room for the test"));
        request
    }

    /// The numbers that were read, none where a block is torn.
    pub fn numbers(&self, outcome: &Outcome) -> Vec<Option<u64>> {
        let Data::Buffer(buffer) = &outcome.data else { panic!("read into a buffer") };
        buffer.as_slice().chunks(self.block_bytes).map(number).collect()
    }
}

/// The number that a block holds, if it is whole.
fn number(block: &[u8]) -> Option<u64> {
    let first = &block[..8];
    let whole = block.chunks(8).all(|word| word == first);
    whole.then(|| u64::from_le_bytes(first.try_into().expect("eight bytes")))
}
