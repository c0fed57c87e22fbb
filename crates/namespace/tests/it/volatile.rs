//! `volatile:`: what it writes down, and where the core that does ends in the middle of it.

use double::Double;
use namespace::layer::delay::{Delay, Delays};
use namespace::layer::volatile::{CACHE_BYTES, Volatile};
use namespace::memory::{Memory, MemoryOptions};
use namespace::{Data, Namespace, Queue, Request, Sink, dataset};
use nvme::opcode::io as opcode;
use nvme::{Command, Limits, Status};
use reactor::{Complete, Config, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const BLOCK: usize = 512;

/// Nobody waits for these.
struct Nobody;

impl Sink for Nobody {
    fn completed(&self, _request: Box<Request>, _state: u64) {}
}

/// Ends a reactor.
struct Stop(Rc<Reactor>);

impl Complete for Stop {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        self.0.stop();
    }
}

/// Writes a block and flushes it, and ends while it goes down.
fn end_in_the_middle(volume: &Arc<Volatile>) {
    let config = Config { buffer_bytes: 1 << 20, ..Config::default() };
    let reactor = Reactor::new(&config).unwrap();
    let queue = Arc::clone(volume).open_queue(&reactor).unwrap();
    let mut buffer = reactor.buffers().allocate(BLOCK).unwrap();
    buffer.as_mut_slice().fill(7);
    let mut write = Request::new();
    write.command = Command::blocks(opcode::WRITE, 1, 3, 1);
    write.data = Data::Buffer(buffer);
    let mut flush = Request::new();
    flush.command = Command { opcode: opcode::FLUSH, ..Command::default() };
    for mut request in [write, flush] {
        request.push(Rc::new(Nobody), 0);
        queue.submit(request);
    }
    let soon = Instant::now() + Duration::from_millis(20);
    reactor.timer(soon, Rc::new(Stop(Rc::clone(&reactor))), 0);
    reactor.run();
}

#[test]
fn whoever_comes_next_writes_down() {
    let (bytes, block_shift, cores) = (1 << 20, 9, 2);
    let options = MemoryOptions { bytes, block_shift, cores, lend: false, uuid: None };
    let write = Duration::from_millis(200);
    let kept = |volume: &Volatile| {
        let mut facts = Vec::new();
        volume.describe(&mut facts);
        facts.into_iter().find(|(name, _)| name == "blocks not flushed").unwrap().1
    };
    let ended = || {
        let delays = Delays { write, ..Delays::default() };
        let volume = Volatile::new(Delay::new(Memory::open(options).unwrap(), delays), CACHE_BYTES);
        let ended = Arc::clone(&volume);
        thread::spawn(move || end_in_the_middle(&ended)).join().unwrap();
        volume
    };
    // Where the machine stands still it is written before the reactor is ended: then once more.
    let volume = (0..10).map(|_| ended()).find(|volume| kept(volume) == "1");
    let volume = volume.expect("it was on its way");
    let (tell, told) = mpsc::channel();
    let flushed = Arc::clone(&volume);
    thread::spawn(move || tell.send(flushed.flush()).unwrap());
    let flushed = told.recv_timeout(Duration::from_secs(60)).expect("it does not wait for ever");
    flushed.unwrap();
    assert_eq!(kept(&volume), "0");
}

#[test]
fn what_lies_beyond_the_end_of_a_smaller_child_is_kept_no_longer() {
    let options =
        MemoryOptions { bytes: 1 << 20, block_shift: 9, cores: 1, lend: false, uuid: None };
    let volume = Volatile::new(Memory::open(options).unwrap(), CACHE_BYTES);
    let reactor = Reactor::new(&Config { buffer_bytes: 1 << 20, ..Config::default() }).unwrap();
    let queue = Arc::clone(&volume).open_queue(&reactor).unwrap();
    for slba in [3, 2000] {
        let mut write = Request::new();
        write.command = Command::blocks(opcode::WRITE, 1, slba, 1);
        let mut buffer = reactor.buffers().allocate(BLOCK).unwrap();
        buffer.as_mut_slice().fill(7);
        write.data = Data::Buffer(buffer);
        write.push(Rc::new(Nobody), 0);
        queue.submit(write);
    }
    volume.resize(512 << 10).unwrap();
    volume.flush().unwrap();
    let mut facts = Vec::new();
    volume.describe(&mut facts);
    assert!(facts.contains(&("blocks not flushed".into(), "0".into())), "{facts:?}");
}

/// Opcode, first block and blocks of what a child is given.
type Log = Arc<Mutex<Vec<(u8, u64, u32)>>>;

struct Recorder(Rc<dyn Queue>, Log);

impl Queue for Recorder {
    fn submit(&self, request: Box<Request>) {
        let command = &request.command;
        let blocks = if command.opcode == opcode::FLUSH { 0 } else { command.block_count() };
        self.1.lock().unwrap().push((command.opcode, command.slba(), blocks));
        self.0.submit(request);
    }

    fn forget(&self) {
        self.0.forget();
    }
}

/// Ends a reactor when it has seen the last request.
struct Last(Rc<Reactor>);

impl Sink for Last {
    fn completed(&self, request: Box<Request>, state: u64) {
        assert!(request.status.is_success(), "{}", request.status);
        if state == 0 {
            self.0.stop();
        }
    }
}

/// What the child is given for `commands`, of which it takes `most` bytes at once.
fn given(commands: &[Command], most: u32) -> Vec<(u8, u64, u32)> {
    let (bytes, block_shift, cores) = (1 << 20, 9, 1);
    let options = MemoryOptions { bytes, block_shift, cores, lend: false, uuid: None };
    let log = Log::default();
    let seen = Arc::clone(&log);
    let child = Double::over(Memory::open(options).unwrap())
        .limited(move |limits| Limits { transfer_bytes_max: most, ..limits })
        .queues(move |queue, _| Rc::new(Recorder(queue, Arc::clone(&seen))));
    let volume = Volatile::new(Arc::new(child), CACHE_BYTES);
    let reactor = Reactor::new(&Config { buffer_bytes: 1 << 20, ..Config::default() }).unwrap();
    let queue = volume.open_queue(&reactor).unwrap();
    for (command, left) in commands.iter().zip((0..commands.len() as u64).rev()) {
        let mut request = Request::new();
        request.command = *command;
        if command.opcode != opcode::FLUSH {
            let len = command.block_count() as usize * BLOCK;
            request.data = Data::Buffer(reactor.buffers().allocate(len).unwrap());
            request.data.truncate(len);
        }
        request.push(Rc::new(Last(Rc::clone(&reactor))), left);
        queue.submit(request);
    }
    reactor.run();
    drop(queue);
    log.lock().unwrap().clone()
}

#[test]
fn no_more_is_written_down_at_once_than_the_child_takes() {
    let write = Command::blocks(opcode::WRITE, 1, 8, 32);
    let flush = Command { opcode: opcode::FLUSH, ..Command::default() };
    let pieces = |blocks: u32| (0..32 / blocks).map(move |at| (8 + u64::from(at * blocks), blocks));
    for (most, blocks) in [(1 << 20, 32), (8192, 16), (4096, 8), (512, 1)] {
        let expected: Vec<_> = pieces(blocks)
            .map(|(start, blocks)| (opcode::WRITE, start, blocks))
            .chain([(opcode::FLUSH, 0, 0)])
            .collect();
        assert_eq!(given(&[write, flush], most), expected, "{most} bytes");
    }
}

#[test]
fn what_is_read_with_force_unit_access_is_written_down_first() {
    let write = Command::blocks(opcode::WRITE, 1, 8, 4);
    let read = Command::blocks(opcode::READ, 1, 10, 4);
    let mut durable = read;
    durable.cdw12 = (durable.cdw12.get() | 1 << 30).into();
    let reads = (opcode::READ, 10, 4);
    assert_eq!(given(&[write, read], 1 << 20), [reads]);
    assert_eq!(given(&[write, durable], 1 << 20), [(opcode::WRITE, 8, 4), reads]);
    assert_eq!(given(&[durable], 1 << 20), [reads], "nothing is kept");
}

/// What was sent by one queue, and has come back.
struct Session {
    reactor: Rc<Reactor>,
    queue: Rc<dyn Queue>,
    ended: Rc<Ended>,
}

#[derive(Default)]
struct Ended {
    reactor: RefCell<Option<Rc<Reactor>>>,
    request: Cell<Option<Box<Request>>>,
}

impl Sink for Ended {
    fn completed(&self, request: Box<Request>, _state: u64) {
        assert!(self.request.replace(Some(request)).is_none(), "each is seen before the next ends");
        if let Some(reactor) = &*self.reactor.borrow() {
            reactor.stop();
        }
    }
}

impl Session {
    fn of(volume: &Arc<Volatile>) -> Session {
        let reactor = Reactor::new(&Config { buffer_bytes: 1 << 20, ..Config::default() }).unwrap();
        let queue = Arc::clone(volume).open_queue(&reactor).unwrap();
        Session { reactor, queue, ended: Rc::default() }
    }

    /// Sends a command, with the bytes that it has or has room for.
    fn send(&self, command: Command, bytes: &[u8]) {
        let mut request = Request::new();
        request.command = command;
        if !bytes.is_empty() {
            let mut buffer = self.reactor.buffers().allocate(bytes.len()).unwrap();
            buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
            request.data = Data::Buffer(buffer);
            request.data.truncate(bytes.len());
        }
        request.push(Rc::clone(&self.ended) as Rc<dyn Sink>, 0);
        self.queue.submit(request);
    }

    /// The one that has come back, or comes next.
    fn ended(&self) -> Box<Request> {
        self.ended.request.take().unwrap_or_else(|| {
            self.ended.reactor.replace(Some(Rc::clone(&self.reactor)));
            self.reactor.run();
            self.ended.reactor.take();
            self.ended.request.take().unwrap()
        })
    }

    fn write(&self, block: u64, byte: u8) {
        self.send(Command::blocks(opcode::WRITE, 1, block, 1), &[byte; BLOCK]);
        assert_eq!(self.ended().status, Status::SUCCESS);
    }

    fn read(&self, block: u64) -> u8 {
        self.send(Command::blocks(opcode::READ, 1, block, 1), &[0; BLOCK]);
        first_byte(&self.ended())
    }
}

fn first_byte(request: &Request) -> u8 {
    assert_eq!(request.status, Status::SUCCESS);
    // SAFETY: the request holds its data, a block.
    unsafe { request.data.as_ptr().read() }
}

#[test]
fn what_is_overwritten_while_a_flush_is_at_work_is_not_left_out() {
    let flush = Command { opcode: opcode::FLUSH, ..Command::default() };
    let mut durable = Command::blocks(opcode::READ, 1, 10, 1);
    durable.cdw12 = (durable.cdw12.get() | 1 << 30).into();
    for command in [durable, flush] {
        let (bytes, block_shift, cores) = (1 << 20, 9, 1);
        let options = MemoryOptions { bytes, block_shift, cores, lend: false, uuid: None };
        let write = Duration::from_millis(50);
        let slow =
            Delay::new(Memory::open(options).unwrap(), Delays { write, ..Delays::default() });
        let volume = Volatile::new(slow, CACHE_BYTES);
        let session = Session::of(&volume);
        for block in [0, 10] {
            session.write(block, b'A');
        }
        let room = if command == flush { 0 } else { BLOCK };
        session.send(command, &[0; BLOCK][..room]);
        session.write(10, b'B');
        let ended = session.ended();
        assert_eq!(ended.status, Status::SUCCESS);
        if command != flush {
            assert!(b"AB".contains(&first_byte(&ended)), "it was acknowledged before");
        }
        volume.cut();
        let there = session.read(10);
        assert!(b"AB".contains(&there), "{there} after {:#x}", command.opcode);
    }
}

/// Leaves Dataset Management alone.
struct Unmoved(Rc<dyn Queue>);

impl Queue for Unmoved {
    fn submit(&self, request: Box<Request>) {
        match request.command.opcode {
            opcode::DATASET_MANAGEMENT => request.finish(Status::SUCCESS),
            _ => self.0.submit(request),
        }
    }

    fn forget(&self) {
        self.0.forget();
    }
}

#[test]
fn what_is_deallocated_is_not_rolled_back_where_the_child_leaves_it_alone() {
    let (bytes, block_shift, cores) = (1 << 20, 9, 1);
    let options = MemoryOptions { bytes, block_shift, cores, lend: false, uuid: None };
    let memory = || Memory::open(options).unwrap();
    let unmoved = Double::over(memory())
        .limited(|mut limits| {
            limits.commands.deallocate = false;
            limits
        })
        .queues(|queue, _| Rc::new(Unmoved(queue)));
    for (child, expected) in [(memory() as Arc<dyn Namespace>, 0), (Arc::new(unmoved), b'B')] {
        let session = Session::of(&Volatile::new(child, CACHE_BYTES));
        session.write(7, b'A');
        session.send(Command { opcode: opcode::FLUSH, ..Command::default() }, &[]);
        assert_eq!(session.ended().status, Status::SUCCESS);
        session.write(7, b'B');
        let range = dataset::Range { attributes: 0, blocks: 1, slba: 7 };
        session.send(dataset::deallocate(1, 1), &range.to_bytes());
        assert_eq!(session.ended().status, Status::SUCCESS);
        assert_eq!(session.read(7), expected);
    }
}
