//! A target in this process, paths to it, and cores that use them.
//!
//! ```text
//!   Target    the real one, on a port that can be taken again after a stop
//!   Core      a thread with a reactor and one queue: issue, wait, read, write
//!   Relay     forwards bytes between host and target until it is told to stop
//! ```
#![allow(dead_code, reason = "each test uses the part it needs")]

pub mod device;
pub mod naming;
pub mod pages;
pub mod registers;
pub mod relay;
pub mod rogue;
pub mod script;
pub mod splitter;
pub mod tamper;
pub mod wire;

use association::Config;
use host::{Address, Options, Path};
use namespace::copy::{Origin, Place, Source, Sources};
use namespace::memory::{Memory, MemoryOptions};
use namespace::{Access, AccessWatcher, Data, Namespace, PathReport, Queue, Request, Sink};
use nvme::{Command, Status, opcode};
use pages::Pages;
use reactor::{Mailbox, Reactor};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use target::{NamespaceOptions, PortId, Server, ServerConfig, SubsystemConfig};

pub const NQN: &str = "nqn.2026-11.org.example:volume";
pub const HOST_NQN: &str = "nqn.2026-11.org.example:host";

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A served volume.
pub struct Target {
    pub server: Server,
    pub port: PortId,
    pub address: SocketAddr,
}

/// A memory volume of `bytes` bytes.
pub fn memory(bytes: u64, block_shift: u8, cores: usize) -> Arc<Memory> {
    let options = MemoryOptions { bytes, block_shift, cores, lend: true, uuid: None };
    Memory::open(options).expect("memory")
}

/// A loopback address of each test's own: the port of a target that was ended is to be had again, whatever other
/// tests and programs bind meanwhile.
fn here() -> [u8; 4] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static HERE: u32 = NEXT.fetch_add(1, Ordering::Relaxed));
    let (process, test) = (std::process::id(), HERE.with(|number| *number));
    [127, 1 + (process % 250) as u8, (process / 250 % 250) as u8, 1 + (test % 250) as u8]
}

impl Target {
    /// Serves `volume` as namespace 1 on `port`, 0 for any.
    pub fn serve(volume: Arc<dyn Namespace>, cores: usize, port: u16) -> Target {
        Target::serve_queues(volume, cores, port, 128)
    }

    /// The same, with so many I/O queues at most for a host.
    pub fn serve_queues(
        volume: Arc<dyn Namespace>,
        cores: usize,
        port: u16,
        io_queues_max: u16,
    ) -> Target {
        let config = ServerConfig { cores: vec![None; cores], ..ServerConfig::default() };
        let server = Server::start(&config).expect("a server");
        let subsystem = SubsystemConfig {
            nqn: NQN.into(),
            serial: "test".into(),
            model: "nvlane".into(),
            allow_any_host: true,
            hosts: Vec::new(),
            io_queues_max,
            fused: true,
        };
        server.add_subsystem(subsystem).expect("a subsystem");
        let address = SocketAddr::from((here(), port));
        let (port, address) = server.add_listener(address).expect("a listener");
        let target = Target { server, port, address };
        target.add(1, volume, [0x42; 16]);
        target
    }

    /// 64 MiB of memory in blocks of 512 bytes.
    pub fn memory() -> Target {
        Target::serve(memory(64 << 20, 9, 1), 1, 0)
    }

    pub fn add(&self, nsid: u32, volume: Arc<dyn Namespace>, uuid: [u8; 16]) {
        let options = NamespaceOptions { nsid: Some(nsid), uuid, nguid: [0; 16], ana_group: 1 };
        self.server.add_namespace(NQN, &options, volume).expect("a namespace");
    }
}

/// Options with short times.
pub fn options() -> Options {
    let mut config = Config::new(NQN, HOST_NQN, [7; 16]);
    config.reconnect_delay = Duration::from_millis(50);
    Options::new(config)
}

pub fn address(address: SocketAddr) -> Address {
    address.to_string().parse().expect("an address")
}

/// A path to `target`.
pub fn connect(target: SocketAddr, options: &Options) -> Arc<Path> {
    let paths = host::open(&[address(target)], options, "").expect("a path");
    paths.into_iter().next().expect("one was asked for")
}

/// Bytes of data that a path has received straight into buffers, and by way of its own.
pub fn received(path: &PathReport) -> (u64, u64) {
    let bytes = |name: &str| -> u64 {
        let found = path.details.iter().find(|(known, _)| known == name);
        found.expect("it is told").1.parse().expect("a number")
    };
    (bytes("received_direct_bytes"), bytes("received_copied_bytes"))
}

/// How a command ended.
#[derive(Debug)]
pub struct Done {
    pub status: Status,
    pub result: u64,
    pub data: Vec<u8>,
    pub at: Instant,
}

impl Done {
    #[track_caller]
    pub fn ok(self) -> Done {
        assert!(self.status.is_success(), "{}", self.status);
        self
    }
}

/// A source range: of the same namespace, or of one of a subsystem.
#[derive(Clone)]
pub struct Range {
    pub of: Option<Origin>,
    pub slba: u64,
    pub blocks: u32,
    pub fast_only: bool,
}

/// A thread with a reactor that holds one queue of a namespace.
pub struct Core {
    mailbox: Mailbox,
    thread: Option<JoinHandle<()>>,
    access: Arc<Mutex<Access>>,
}

thread_local! {
    static USER: RefCell<Option<Rc<User>>> = const { RefCell::new(None) };
}

/// What lives on the core.
struct User {
    reactor: Rc<Reactor>,
    queue: Rc<dyn Queue>,
    me: Weak<User>,
    access: Arc<Mutex<Access>>,
    next: Cell<u64>,
    waiting: RefCell<std::collections::HashMap<u64, mpsc::Sender<Done>>>,
    /// Where commands that have not come back have their data.
    places: RefCell<std::collections::BTreeMap<u64, (*const u8, usize)>>,
    /// Data of commands that have come back is kept here, if it is to be.
    kept: RefCell<Option<Vec<Data>>>,
    /// Where data is, if not in buffers of the pool.
    pages: Option<Arc<Pages>>,
}

impl Core {
    pub fn new(namespace: Arc<dyn Namespace>) -> Core {
        Core::start_with(namespace, None)
    }

    /// A usable core whose commands have their data in `pages`, which the ring knows by index.
    pub fn with_pages(namespace: Arc<dyn Namespace>, pages: &Arc<Pages>) -> Core {
        assert!(namespace.takes_registered());
        let core = Core::start_with(namespace, Some(Arc::clone(pages)));
        core.await_access(Access::is_usable);
        core
    }

    fn start_with(namespace: Arc<dyn Namespace>, pages: Option<Arc<Pages>>) -> Core {
        let (sender, receiver) = mpsc::channel();
        let access = Arc::new(Mutex::new(Access::Lost));
        let shown = Arc::clone(&access);
        let thread = std::thread::spawn(move || {
            let kernel_buffers = pages.as_ref().map_or(0, |_| pages::SLOTS);
            let config = reactor::Config { kernel_buffers, ..reactor::Config::default() };
            let reactor = Reactor::new(&config).expect("a reactor");
            let queue = namespace.open_queue(&reactor).expect("a queue");
            let user = Rc::new_cyclic(|me| User {
                reactor: Rc::clone(&reactor),
                queue,
                me: me.clone(),
                access: shown,
                next: Cell::new(0),
                waiting: RefCell::default(),
                places: RefCell::default(),
                kept: RefCell::default(),
                pages,
            });
            user.access_changed();
            let watcher: Rc<dyn AccessWatcher> = user.clone();
            user.queue.watch_access(Rc::downgrade(&watcher));
            drop(watcher);
            USER.set(Some(user));
            sender.send(reactor.mailbox()).expect("the test waits");
            reactor.run();
            USER.take();
        });
        let mailbox = receiver.recv().expect("the core runs");
        Core { mailbox, thread: Some(thread), access }
    }

    /// A core whose queue is usable.
    pub fn usable(namespace: Arc<dyn Namespace>) -> Core {
        let core = Core::new(namespace);
        core.await_access(Access::is_usable);
        core
    }

    pub fn access(&self) -> Access {
        *self.access.lock().expect("no panic")
    }

    #[track_caller]
    pub fn await_access(&self, wanted: impl Fn(Access) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !wanted(self.access()) {
            assert!(Instant::now() < until, "access stays {:?}", self.access());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts a command with `data` to write or a buffer as long to read into.
    pub fn issue(&self, command: Command, data: Vec<u8>) -> mpsc::Receiver<Done> {
        self.issue_within(command, data, 0)
    }

    /// The same, with a time-out of the command's own in milliseconds.
    pub fn issue_within(
        &self,
        command: Command,
        data: Vec<u8>,
        timeout_ms: u32,
    ) -> mpsc::Receiver<Done> {
        self.start(command, data, timeout_ms, false)
    }

    /// Starts an admin command.
    pub fn issue_admin(&self, command: Command, data: Vec<u8>) -> mpsc::Receiver<Done> {
        self.issue_admin_within(command, data, 0)
    }

    pub fn issue_admin_within(
        &self,
        command: Command,
        data: Vec<u8>,
        timeout_ms: u32,
    ) -> mpsc::Receiver<Done> {
        self.start(command, data, timeout_ms, true)
    }

    fn start(
        &self,
        command: Command,
        data: Vec<u8>,
        timeout_ms: u32,
        admin: bool,
    ) -> mpsc::Receiver<Done> {
        let (sender, receiver) = mpsc::channel();
        self.mailbox.post(move |_| {
            let user = USER.with_borrow(|user| user.clone()).expect("the core runs");
            user.issue(command, &data, (timeout_ms, admin), sender);
        });
        receiver
    }

    /// Starts a Copy of `ranges`.
    pub fn issue_copy(&self, command: Command, ranges: Vec<Range>) -> mpsc::Receiver<Done> {
        let (sender, receiver) = mpsc::channel();
        self.mailbox.post(move |_| {
            let user = USER.with_borrow(|user| user.clone()).expect("the core runs");
            let ranges = ranges.into_iter().map(|range| {
                let Range { of, slba, blocks, fast_only } = range;
                let place = of.map_or(Place::Same, Place::Origin);
                Source { place, slba, blocks, fast_only }
            });
            let mut request = Request::new();
            request.command = command;
            let sources = Sources { ranges: ranges.collect(), ..Sources::default() };
            request.data = Data::Sources(Box::new(sources));
            user.submit(request, false, sender);
        });
        receiver
    }

    #[track_caller]
    pub fn copy(&self, command: Command, ranges: Vec<Range>) -> Done {
        self.issue_copy(command, ranges).recv_timeout(PATIENCE).expect("an answer")
    }

    /// From now on buffers stay where they are when their commands come back.
    pub fn keep_buffers(&self) {
        self.ask(|user| drop(user.kept.replace(Some(Vec::new()))));
    }

    /// What is in those buffers now.
    pub fn kept(&self) -> Vec<Vec<u8>> {
        self.ask(|user| {
            let kept = user.kept.borrow();
            let buffers = kept.iter().flatten().filter_map(|data| match data {
                Data::Buffer(buffer) => Some(buffer.as_slice().to_vec()),
                _ => None,
            });
            buffers.collect()
        })
    }

    /// What is in the buffers of commands that have not come back, in the order in which those were issued.
    pub fn peek(&self) -> Vec<Vec<u8>> {
        self.ask(|user| {
            let places = user.places.borrow();
            // SAFETY: the requests own so many bytes there until they come back; what is written to them is
            // by this thread.
            let copy = |&(at, len)| unsafe { std::slice::from_raw_parts(at, len) }.to_vec();
            places.values().map(copy).collect()
        })
    }

    /// Waits until what was issued is with the socket, as far as that takes it: it is sent at the end of the turn in
    /// which it came.
    pub fn settle(&self) {
        (0..3).for_each(|_| self.ask(|_| ()));
    }

    /// Its thread does nothing until what comes back is dropped.
    pub fn block(&self) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel();
        self.mailbox.post(move |_| {
            let _ = released.recv();
        });
        release
    }

    fn ask<R: Send + 'static>(&self, work: impl FnOnce(&User) -> R + Send + 'static) -> R {
        let (sender, receiver) = mpsc::channel();
        self.mailbox.post(move |_| {
            let user = USER.with_borrow(|user| user.clone()).expect("the core runs");
            let _ = sender.send(work(&user));
        });
        receiver.recv_timeout(PATIENCE).expect("the core runs")
    }

    #[track_caller]
    pub fn admin(&self, command: Command, data: Vec<u8>) -> Done {
        self.issue_admin(command, data).recv_timeout(PATIENCE).expect("an answer")
    }

    #[track_caller]
    pub fn command(&self, command: Command, data: Vec<u8>) -> Done {
        self.issue(command, data).recv_timeout(PATIENCE).expect("an answer")
    }

    /// Carries out a command, again if that fails: a path by itself whose peer is soon taken for dead may be lost
    /// once more. Its data.
    #[track_caller]
    pub fn until_served(&self, command: Command, data: &[u8]) -> Vec<u8> {
        let until = Instant::now() + 2 * PATIENCE;
        loop {
            self.await_access(Access::is_usable);
            let done = self.command(command, data.to_vec());
            if done.status.is_success() {
                return done.data;
            }
            assert!(Instant::now() < until, "{}", done.status);
        }
    }

    /// Reads `bytes` bytes from byte `at`, in blocks of 512.
    #[track_caller]
    pub fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        self.command(read(at, bytes), vec![0xee; bytes]).ok().data
    }

    #[track_caller]
    pub fn write(&self, at: u64, data: &[u8]) {
        self.command(write(at, data.len()), data.to_vec()).ok();
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.mailbox.post(|reactor| {
            USER.take();
            reactor.stop();
        });
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn read(at: u64, bytes: usize) -> Command {
    Command::blocks(opcode::io::READ, 1, at / 512, (bytes / 512) as u32)
}

pub fn write(at: u64, bytes: usize) -> Command {
    Command::blocks(opcode::io::WRITE, 1, at / 512, (bytes / 512) as u32)
}

/// Bytes that differ from one another and between seeds.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

impl User {
    fn issue(
        &self,
        command: Command,
        data: &[u8],
        (timeout_ms, admin): (u32, bool),
        sender: mpsc::Sender<Done>,
    ) {
        let mut request = Request::new();
        request.command = command;
        request.timeout_ms = timeout_ms;
        let plain = data.is_empty() || admin || timeout_ms == pages::PLAIN_MS;
        if let Some(pages) = self.pages.as_ref().filter(|_| !plain) {
            let half = timeout_ms == pages::HALF_MS;
            request.data = Data::Registered(pages.take(&self.reactor, data, half));
        } else if !data.is_empty() {
            let mut buffer = self.reactor.buffers().allocate(data.len()).expect("a buffer");
            buffer.as_mut_slice().copy_from_slice(data);
            request.data = Data::Buffer(buffer);
        }
        self.submit(request, admin, sender);
    }

    fn submit(&self, mut request: Box<Request>, admin: bool, sender: mpsc::Sender<Done>) {
        let id = self.next.replace(self.next.get() + 1);
        self.waiting.borrow_mut().insert(id, sender);
        if let Data::Buffer(buffer) = &request.data {
            let bytes = buffer.as_slice();
            self.places.borrow_mut().insert(id, (bytes.as_ptr(), bytes.len()));
        }
        request.push(self.me.upgrade().expect("the core runs"), id);
        if admin {
            self.queue.submit_admin(request);
        } else {
            self.queue.submit(request);
        }
    }
}

impl Sink for User {
    fn completed(&self, mut request: Box<Request>, state: u64) {
        self.places.borrow_mut().remove(&state);
        let data = match &request.data {
            Data::Buffer(buffer) => buffer.as_slice().to_vec(),
            Data::Registered(registered) => {
                self.pages.as_ref().expect("they are ours").give_back(*registered)
            }
            _ => Vec::new(),
        };
        let (status, result) = (request.status, request.result);
        if let Some(kept) = &mut *self.kept.borrow_mut() {
            kept.push(std::mem::replace(&mut request.data, Data::None));
        }
        let sender = self.waiting.borrow_mut().remove(&state).expect("completed once");
        // A test that does not care has dropped its end.
        let _ = sender.send(Done { status, result, data, at: Instant::now() });
    }
}

impl AccessWatcher for User {
    fn access_changed(&self) {
        *self.access.lock().expect("no panic") = self.queue.access();
    }
}
