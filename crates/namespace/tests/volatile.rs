//! `volatile:` where the core that writes down ends in the middle of it.

use namespace::layer::delay::{Delay, Delays};
use namespace::layer::volatile::{CACHE_BYTES, Volatile};
use namespace::memory::{Memory, MemoryOptions};
use namespace::{Data, Namespace, Request, Sink};
use nvme::Command;
use nvme::opcode::io as opcode;
use reactor::{Complete, Config, Reactor};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
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
    let slow = Delay::new(Memory::open(options).unwrap(), Delays { write, ..Delays::default() });
    let volume = Volatile::new(slow, CACHE_BYTES);
    let ended = Arc::clone(&volume);
    thread::spawn(move || end_in_the_middle(&ended)).join().unwrap();
    let kept = |volume: &Volatile| {
        let mut facts = Vec::new();
        volume.describe(&mut facts);
        facts.into_iter().find(|(name, _)| name == "blocks not flushed").unwrap().1
    };
    assert_eq!(kept(&volume), "1", "it was on its way");
    let (tell, told) = mpsc::channel();
    let flushed = Arc::clone(&volume);
    thread::spawn(move || tell.send(flushed.flush()).unwrap());
    let flushed = told.recv_timeout(Duration::from_secs(60)).expect("it does not wait for ever");
    flushed.unwrap();
    assert_eq!(kept(&volume), "0");
}
