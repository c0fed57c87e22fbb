//! No allocation per I/O, through three layers and the guard, in every way a command can go. Copies are in the
//! target's test of this name.

use counting_allocator::Rounds;
use namespace::dataset::{self, Range};
use namespace::{Data, Queue, Request, Sink};
use nvme::Command;
use nvme::opcode::io as opcode;
use reactor::{Config, Poll, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use volume::OpenOptions;

const DEPTH: u64 = 16;
/// Commands before counting starts: tables and pools grow to what they need.
const WARM_UP: u64 = 4_000;
const COUNTED: u64 = 10_000;
/// Blocks of 4096 bytes of every volume here.
const BLOCKS: u64 = 256;

/// What a command is.
#[derive(Clone, Copy)]
enum What {
    /// One of this opcode, of four blocks.
    Blocks(u8),
    /// Compare and Write, fused.
    Pair,
    /// Dataset Management of one range.
    Range,
}

/// Commands in their order, each with whether it goes across the middle.
const MIX: [(What, bool); 14] = [
    (What::Blocks(opcode::READ), false),
    (What::Blocks(opcode::READ), false),
    (What::Blocks(opcode::WRITE), false),
    (What::Blocks(opcode::READ), true),
    (What::Blocks(opcode::WRITE), true),
    (What::Blocks(opcode::VERIFY), false),
    (What::Blocks(opcode::WRITE_ZEROES), false),
    (What::Blocks(opcode::FLUSH), false),
    (What::Blocks(opcode::COMPARE), false),
    (What::Blocks(opcode::COMPARE), true),
    (What::Pair, false),
    (What::Pair, true),
    (What::Range, false),
    (What::Range, true),
];

/// Keeps `DEPTH` commands in flight, until all are done.
struct Load {
    queue: Rc<dyn Queue>,
    reactor: Rc<Reactor>,
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    done: RefCell<Vec<Box<Request>>>,
    /// Second halves of pairs that are not in use.
    #[expect(clippy::vec_box, reason = "as above")]
    seconds: RefCell<Vec<Box<Request>>>,
    number: Cell<u64>,
    rounds: RefCell<Rounds>,
    allocations: Cell<Option<u64>>,
    me: Weak<Load>,
}

impl Sink for Load {
    fn completed(&self, mut request: Box<Request>, _state: u64) {
        let second = request.fused.take();
        for half in second.iter().chain([&request]) {
            // What is in flight when the reactor stops may be cancelled.
            let stopping = self.allocations.get().is_some();
            assert!(stopping || half.status.is_success(), "{} {:?}", half.status, half.command);
        }
        self.seconds.borrow_mut().extend(second);
        self.done.borrow_mut().push(request);
    }
}

impl Poll for Load {
    fn poll(&self) -> bool {
        let mut worked = false;
        loop {
            let Some(request) = self.done.borrow_mut().pop() else { return worked };
            worked = true;
            if let Some(allocations) = self.rounds.borrow_mut().ended() {
                self.allocations.set(Some(allocations));
                self.reactor.stop();
                return true;
            }
            self.send(request);
        }
    }

    fn park(&self) -> bool {
        false
    }
}

impl Load {
    /// The next of the mix. All blocks are zeroes and stay so: whatever is compared is the same.
    fn send(&self, mut request: Box<Request>) {
        let number = self.number.get();
        self.number.set(number + 1);
        let (what, across) = MIX[number as usize % MIX.len()];
        let slba = if across { BLOCKS / 2 - 1 } else { number * 5 % (BLOCKS - 4) };
        let blocks = |code| Command::blocks(code, 1, slba, 4);
        let Data::Buffer(buffer) = &mut request.data else { unreachable!("buffers stay") };
        let list = &mut buffer.as_mut_slice()[..dataset::RANGE_BYTES];
        list.fill(0);
        request.command = match what {
            What::Blocks(code) => blocks(code),
            What::Pair => {
                let mut second = self.seconds.borrow_mut().pop().expect("one for each");
                second.command = Command { flags: 2, ..blocks(opcode::WRITE) };
                request.fused = Some(second);
                Command { flags: 1, ..blocks(opcode::COMPARE) }
            }
            What::Range => {
                let range = Range { attributes: 0, blocks: 4, slba };
                list.copy_from_slice(&range.to_bytes());
                dataset::deallocate(1, 1)
            }
        };
        request.push(self.me.upgrade().expect("alive"), 0);
        self.queue.submit(request);
    }
}

/// A request with four blocks of zeroes.
fn request(reactor: &Reactor) -> Box<Request> {
    let mut request = Request::new();
    let mut buffer = reactor.buffers().allocate(16 << 10).expect("the pool is large enough");
    buffer.as_mut_slice().fill(0);
    request.data = Data::Buffer(buffer);
    request
}

/// Allocations during the best ten thousand of some commands on `uri`.
fn allocations(uri: &str) -> u64 {
    let namespace = volume::open(uri, &OpenOptions::default()).expect(uri);
    let limits = namespace.limits();
    assert_eq!(limits.blocks, BLOCKS);
    assert!(limits.commands.compare_and_write && limits.commands.deallocate, "{uri}");
    let reactor = Reactor::new(&Config::default()).expect("a reactor");
    let queue = namespace.open_queue(&reactor).expect("a queue");
    let load = Rc::new_cyclic(|me| Load {
        queue,
        reactor: Rc::clone(&reactor),
        done: RefCell::default(),
        seconds: RefCell::new((0..DEPTH).map(|_| request(&reactor)).collect()),
        number: Cell::new(0),
        rounds: RefCell::new(Rounds::new(WARM_UP, COUNTED)),
        allocations: Cell::new(None),
        me: Weak::clone(me),
    });
    for _ in 0..DEPTH {
        load.send(request(&reactor));
    }
    reactor.attach(load.clone());
    reactor.run();
    load.allocations.get().expect("all were done")
}

#[test]
fn commands_allocate_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("volume.img");
    let file = format!("file:{}?create&size=1M&bs=4096", path.display());
    let program = |name: &str, volumes: &str| {
        format!("bpf:{}/../../bpf/{name}.bpf.o({volumes})", env!("CARGO_MANIFEST_DIR"))
    };
    let half = "mem:512K?bs=4096";
    for uri in [
        "null:1M?bs=4096",
        "mem:1M?bs=4096",
        "delay:0(fault:rate=0(linear:(mem:512K?bs=4096,mem:512K?bs=4096)))",
        "delay:10us(fault:rate=0(linear:(mem:512K?bs=4096,mem:512K?bs=4096)))",
        "rate:iops=10M(linear:(mem:512K?bs=4096,mem:512K?bs=4096))",
        "delay:0(fault:rate=0(rate:iops=10M(mem:1M?bs=4096)))",
        "delay:10us(fault:rate=0(mem:1M?bs=4096))",
        &file,
        &program("linear", &format!("{half},{half}")),
        &program("stripe", &format!("{half},{half}")),
        &program("mirror", "mem:1M?bs=4096,mem:1M?bs=4096"),
        &program("statistics", "delay:10us(mem:1M?bs=4096)"),
        &program("snapshot", "mem:1M?bs=4096,mem:1M?bs=4096"),
    ] {
        let count = allocations(uri);
        assert_eq!(count, 0, "{uri}: {count} allocations for {COUNTED} commands");
    }
}

#[test]
fn the_count_counts() {
    let before = counting_allocator::of_this_thread();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(counting_allocator::of_this_thread(), before + 1);
    // A layer that allocates, and says so.
    assert!(allocations("volatile:(mem:1M?bs=4096)") > 0);
}
