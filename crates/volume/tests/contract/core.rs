//! A thread with a reactor and a queue, driven from the test's thread.

use namespace::{Data, Namespace, Queue, Request, Sink};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::{Config, Mailbox, Reactor};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// One serving core.
pub struct Core {
    mailbox: Mailbox,
    thread: Option<JoinHandle<()>>,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: Status,
    /// Completion dwords 0 and 1.
    pub result: u64,
    /// Of the second command of a fused pair.
    pub second: Option<Status>,
    /// What was read.
    pub data: Vec<u8>,
    /// It was answered with lent memory.
    pub lent: bool,
}

/// A command to be sent.
#[derive(Clone, Debug, Default)]
pub struct Order {
    pub command: Command,
    /// Data to write, or to compare with.
    pub data: Vec<u8>,
    /// Bytes to read.
    pub read: usize,
    /// Ask for lent memory.
    pub lend: bool,
    /// The Write of a fused pair, with its data.
    pub fused: Option<(Command, Vec<u8>)>,
}

struct Front {
    queue: Rc<dyn Queue>,
    senders: RefCell<HashMap<u64, Sender<Answer>>>,
    next: RefCell<u64>,
}

thread_local! {
    static FRONT: RefCell<Option<Rc<Front>>> = const { RefCell::new(None) };
}

impl Sink for Front {
    fn completed(&self, mut request: Box<Request>, state: u64) {
        let lent = matches!(request.data, Data::Lent(_));
        let reads = request.command.opcode == opcode::READ && request.status.is_success();
        let mut data = Vec::new();
        if reads {
            // SAFETY: the data is readable for its length, and nobody writes to it here.
            let bytes =
                unsafe { std::slice::from_raw_parts(request.data.as_ptr(), request.data.len()) };
            data.extend_from_slice(bytes);
        }
        let second = request.fused.take().map(|second| second.status);
        let sender = self.senders.borrow_mut().remove(&state).expect("completed once");
        let Request { status, result, .. } = *request;
        let _ = sender.send(Answer { status, result, second, data, lent });
    }
}

impl Core {
    pub fn start(namespace: Arc<dyn Namespace>) -> Core {
        Core::with_pool(namespace, 32 << 20)
    }

    pub fn with_pool(namespace: Arc<dyn Namespace>, buffer_bytes: usize) -> Core {
        let (ready, started) = channel();
        let thread = std::thread::spawn(move || {
            let config = Config { buffer_bytes, ..Config::default() };
            let reactor = Reactor::new(&config).expect("a reactor");
            let queue = namespace.open_queue(&reactor).expect("a queue");
            let (senders, next) = (RefCell::default(), RefCell::default());
            FRONT.set(Some(Rc::new(Front { queue, senders, next })));
            ready.send(reactor.mailbox()).expect("the test waits");
            reactor.run();
            FRONT.set(None);
        });
        Core { mailbox: started.recv().expect("the core starts"), thread: Some(thread) }
    }

    /// Sends a command; the answer comes through the channel.
    pub fn submit(&self, order: Order) -> Receiver<Answer> {
        let (sender, answer) = channel();
        let posted = self.mailbox.post(move |reactor| {
            let front = FRONT.with_borrow(|front| front.clone()).expect("the core runs");
            let number = {
                let mut next = front.next.borrow_mut();
                *next += 1;
                *next
            };
            front.senders.borrow_mut().insert(number, sender);
            let queue = Rc::clone(&front.queue);
            let mut request = Request::new();
            request.command = order.command;
            request.data = match order.read {
                0 => filled(reactor, &order.data),
                _ if order.lend => Data::None,
                bytes => filled(reactor, &vec![0xee; bytes]),
            };
            request.fused = order.fused.map(|(command, data)| {
                let mut second = Request::new();
                (second.command, second.data) = (command, filled(reactor, &data));
                second
            });
            request.push(front, number);
            queue.submit(request);
        });
        assert!(posted);
        answer
    }

    /// Sends a command and waits for its answer.
    pub fn run(&self, order: Order) -> Answer {
        self.submit(order).recv().expect("every command is answered")
    }

    pub fn read(&self, slba: u64, blocks: u32, block_bytes: usize) -> Answer {
        self.run(read(slba, blocks, block_bytes))
    }

    pub fn write(&self, slba: u64, data: Vec<u8>, block_bytes: usize) -> Status {
        self.run(write(slba, data, block_bytes)).status
    }

    pub fn flush(&self) -> Status {
        self.run(Order { command: Command::default(), ..Order::default() }).status
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.mailbox.post(|reactor| reactor.stop());
        let ended = self.thread.take().expect("dropped once").join();
        if !std::thread::panicking() {
            ended.expect("the core did not panic");
        }
    }
}

fn filled(reactor: &Reactor, bytes: &[u8]) -> Data {
    if bytes.is_empty() {
        return Data::None;
    }
    let Some(mut buffer) = reactor.buffers().allocate(bytes.len()) else {
        return leaked(bytes);
    };
    buffer.truncate(bytes.len());
    buffer.as_mut_slice().copy_from_slice(bytes);
    Data::Buffer(buffer)
}

/// Aligned memory that is never freed, for tests in which the pool is empty.
fn leaked(bytes: &[u8]) -> Data {
    let layout = std::alloc::Layout::from_size_align(bytes.len(), 4096).expect("a layout");
    // SAFETY: the size is not zero; the memory is filled at once, and never freed.
    unsafe {
        let memory = std::alloc::alloc(layout);
        assert!(!memory.is_null());
        memory.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        Data::Part(namespace::Part::new(memory, bytes.len(), None))
    }
}

pub fn read(slba: u64, blocks: u32, block_bytes: usize) -> Order {
    Order {
        command: Command::blocks(opcode::READ, 1, slba, blocks),
        read: blocks as usize * block_bytes,
        ..Order::default()
    }
}

pub fn write(slba: u64, data: Vec<u8>, block_bytes: usize) -> Order {
    let blocks = (data.len() / block_bytes) as u32;
    Order { command: Command::blocks(opcode::WRITE, 1, slba, blocks), data, ..Order::default() }
}

/// Compare with `old`, then write `new`, fused.
pub fn compare_and_write(slba: u64, old: Vec<u8>, new: Vec<u8>, block_bytes: usize) -> Order {
    let blocks = (old.len() / block_bytes) as u32;
    let mut first = Command::blocks(opcode::COMPARE, 1, slba, blocks);
    first.flags = 1;
    let mut second = Command::blocks(opcode::WRITE, 1, slba, blocks);
    second.flags = 2;
    Order { command: first, data: old, fused: Some((second, new)), ..Order::default() }
}
