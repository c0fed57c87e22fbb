//! A thread with a reactor, paths that do as they are told, and a multipath queue over them.

use namespace::copy::{Place, Source, Sources};
use namespace::layer::multipath::{Multipath, MultipathOptions, Policy, Settings};
use namespace::{Access, AccessWatcher, Data, Namespace, Queue, Request, Run, Sink};
use nvme::limits::{Commands, DiscardLimits, Passthrough};
use nvme::{Command, Limits, Status};
use reactor::{Config, Mailbox, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A condition that does not come true within this time never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// A path under the test's control.
#[derive(Debug)]
pub struct Fake {
    pub name: String,
    pub limits: Mutex<Limits>,
    pub uuid: Option<[u8; 16]>,
    pub first_access: Access,
    pub tuned: Mutex<Vec<String>>,
    /// How it stands, whatever its queue says.
    pub access: Mutex<Access>,
    pub retry_delays: [Duration; 3],
    /// It cannot flush by itself.
    pub flush_fails: AtomicBool,
    /// Flushes that it was to do by itself.
    pub flushes: AtomicU64,
    /// How often it was asked which blocks are stored.
    pub asked: AtomicU64,
}

/// Its queue on the core's thread.
pub struct FakeQueue {
    access: Cell<Access>,
    watcher: RefCell<Option<Weak<dyn AccessWatcher>>>,
    /// Commands that wait to be answered.
    pub held: RefCell<VecDeque<Box<Request>>>,
    /// Answers at once, if it is set.
    pub answer: Cell<Option<Status>>,
    /// Commands as they came.
    pub seen: RefCell<Vec<Command>>,
    /// The second of fused pairs.
    pub seconds: RefCell<Vec<Command>>,
}

/// A command that has come back.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    pub number: u64,
    pub status: Status,
    pub second: Option<Status>,
    /// Byte 0 of its data.
    pub byte: Option<u8>,
}

/// What lives on the core's thread.
pub struct World {
    pub reactor: Rc<Reactor>,
    pub queue: Rc<dyn Queue>,
    pub paths: Vec<Rc<FakeQueue>>,
    front: Rc<Front>,
}

#[derive(Default)]
struct Front {
    done: RefCell<Vec<Done>>,
}

thread_local! {
    static OPENED: RefCell<Vec<Rc<FakeQueue>>> = const { RefCell::new(Vec::new()) };
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// One core.
pub struct Core {
    pub namespace: Arc<Multipath>,
    mailbox: Mailbox,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    pub fn new(name: &str) -> Fake {
        Fake {
            name: name.to_owned(),
            limits: Mutex::new(limits()),
            uuid: None,
            first_access: Access::Optimized,
            tuned: Mutex::default(),
            access: Mutex::default(),
            retry_delays: [Duration::ZERO; 3],
            flush_fails: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        }
    }
}

pub fn limits() -> Limits {
    Limits {
        block_shift: 12,
        blocks: 1 << 20,
        transfer_bytes_max: 1 << 20,
        write_zeroes_bytes_max: u32::MAX,
        discard: DiscardLimits::UNLIMITED,
        optimal_write_bytes: 4096,
        read_only: false,
        volatile_write_cache: false,
        commands: Commands { compare_and_write: true, ..Commands::default() },
        copy: nvme::limits::CopyLimits::NONE,
        metadata_bytes: 0,
        passthrough: Passthrough::NONE,
        lends_reads: false,
        immediate: true,
    }
}

impl Namespace for Fake {
    fn limits(&self) -> Limits {
        *self.limits.lock().unwrap()
    }

    fn open_queue(self: Arc<Self>, _reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let queue = Rc::new(FakeQueue {
            access: Cell::new(self.first_access),
            watcher: RefCell::default(),
            held: RefCell::default(),
            answer: Cell::new(None),
            seen: RefCell::default(),
            seconds: RefCell::default(),
        });
        OPENED.with_borrow_mut(|opened| opened.push(Rc::clone(&queue)));
        Ok(queue)
    }

    fn refresh(&self) -> io::Result<bool> {
        Err(io::Error::other(self.name.clone()))
    }

    fn resize(&self, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        match self.flush_fails.load(Ordering::Relaxed) {
            true => Err(io::Error::other(self.name.clone())),
            false => Ok(()),
        }
    }

    fn access(&self) -> Access {
        *self.access.lock().unwrap()
    }

    fn retry_delays(&self) -> [Duration; 3] {
        self.retry_delays
    }

    fn uri(&self) -> String {
        self.name.clone()
    }

    fn describe(&self, _facts: &mut Vec<(String, String)>) {}

    fn uuid(&self) -> Option<[u8; 16]> {
        self.uuid
    }

    fn allocation(&self, _slba: u64, blocks: u64, _runs_max: usize) -> io::Result<Vec<Run>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(vec![Run { blocks, is_stored: true }])
    }

    fn tune(&self, name: &str, value: &str) -> io::Result<()> {
        if name != "known" {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.tuned.lock().unwrap().push(value.to_owned());
        Ok(())
    }
}

impl Queue for FakeQueue {
    fn submit(&self, mut request: Box<Request>) {
        self.seen.borrow_mut().push(request.command);
        // Paths may do that.
        request.command.nsid = 77.into();
        request.command.set_slba(request.command.slba() + 1000);
        if let Some(second) = request.fused.as_deref_mut() {
            self.seconds.borrow_mut().push(std::mem::take(&mut second.command));
        }
        match self.answer.get() {
            Some(status) => request.finish_pair(status),
            None => self.held.borrow_mut().push_back(request),
        }
    }

    fn submit_admin(&self, request: Box<Request>) {
        self.submit(request);
    }

    fn access(&self) -> Access {
        self.access.get()
    }

    fn watch_access(&self, watcher: Weak<dyn AccessWatcher>) {
        self.watcher.replace(Some(watcher));
    }

    fn forget(&self) {}
}

impl FakeQueue {
    pub fn stand(&self, access: Access) {
        self.access.set(access);
        let watcher = self.watcher.borrow().as_ref().and_then(Weak::upgrade);
        if let Some(watcher) = watcher {
            watcher.access_changed();
        }
    }

    /// Completes the command that has waited longest.
    pub fn answer_one(&self, status: Status) {
        let request = self.held.borrow_mut().pop_front().expect("something is held");
        request.finish_pair(status);
    }

    pub fn held(&self) -> usize {
        self.held.borrow().len()
    }

    /// Completes all that is held now.
    pub fn answer_all(&self, status: Status) {
        (0..self.held()).for_each(|_| self.answer_one(status));
    }

    /// Blocks that were asked for.
    pub fn places(&self) -> Vec<u64> {
        self.seen.borrow().iter().map(Command::slba).collect()
    }
}

impl Sink for Front {
    fn completed(&self, request: Box<Request>, number: u64) {
        let byte = match request.data.len() {
            0 => None,
            // SAFETY: the request holds its data.
            _ => Some(unsafe { request.data.as_ptr().read() }),
        };
        let second = request.fused.as_ref().map(|second| second.status);
        let done = Done { number, status: request.status, second, byte };
        self.done.borrow_mut().push(done);
    }
}

impl World {
    /// Sends a command of one block at `slba`, whose number is the same.
    pub fn send(&self, opcode: u8, slba: u64) {
        self.send_command(Command::blocks(opcode, 1, slba, 1), slba, None);
    }

    pub fn send_command(&self, command: Command, number: u64, byte: Option<u8>) {
        let mut request = Request::new();
        request.command = command;
        if let Some(byte) = byte {
            let mut buffer = self.reactor.buffers().allocate(4096).expect("the pool has room");
            buffer.as_mut_slice().fill(byte);
            request.data = Data::Buffer(buffer);
        }
        request.push(Rc::clone(&self.front) as Rc<dyn Sink>, number);
        self.queue.submit(request);
    }

    /// Sends an admin command, whichever.
    pub fn send_admin(&self, number: u64) {
        let mut request = Request::new();
        request.push(Rc::clone(&self.front) as Rc<dyn Sink>, number);
        self.queue.submit_admin(request);
    }

    /// Sends a read of one block that has so long.
    pub fn send_within(&self, slba: u64, timeout_ms: u32) {
        let mut request = Request::new();
        request.command = Command::blocks(nvme::opcode::io::READ, 1, slba, 1);
        request.timeout_ms = timeout_ms;
        request.push(Rc::clone(&self.front) as Rc<dyn Sink>, slba);
        self.queue.submit(request);
    }

    /// Sends Compare and Write, fused.
    pub fn send_pair(&self, slba: u64) {
        let mut request = Request::new();
        request.command = Command::blocks(nvme::opcode::io::COMPARE, 1, slba, 1);
        let mut second = Request::new();
        second.command = Command::blocks(nvme::opcode::io::WRITE, 1, slba, 1);
        request.fused = Some(second);
        request.push(Rc::clone(&self.front) as Rc<dyn Sink>, slba);
        self.queue.submit(request);
    }

    /// Sends a Copy of ranges of the same namespace, first block and length, to the blocks from `sdlba`
    /// on; its number is that.
    pub fn send_copy(&self, sdlba: u64, ranges: &[(u64, u32)]) {
        let mut request = Request::new();
        let format = nvme::copy::Format::Short;
        request.command = nvme::copy::command(1, sdlba, ranges.len(), format);
        let same = |&(slba, blocks)| Source { place: Place::Same, slba, blocks, fast_only: false };
        let ranges = ranges.iter().map(same).collect();
        request.data = Data::Sources(Box::new(Sources { ranges, ..Sources::default() }));
        request.push(Rc::clone(&self.front) as Rc<dyn Sink>, sdlba);
        self.queue.submit(request);
    }

    /// What has come back since the last call.
    pub fn done(&self) -> Vec<Done> {
        self.front.done.take()
    }

    pub fn numbers(&self) -> Vec<u64> {
        self.done().iter().map(|done| done.number).collect()
    }
}

impl Core {
    pub fn start(paths: Vec<Fake>, policy: Policy) -> Core {
        let paths = paths.into_iter().map(|path| Arc::new(path) as Arc<dyn Namespace>).collect();
        let settings = Settings { policy, ..Settings::default() };
        let options = MultipathOptions { tuning: settings.into(), ..MultipathOptions::default() };
        let namespace = Multipath::new(paths, options).expect("they go together");
        Core::over(namespace)
    }

    /// Two optimized paths.
    pub fn two(policy: Policy) -> Core {
        Core::start(vec![Fake::new("a"), Fake::new("b")], policy)
    }

    pub fn over(namespace: Arc<Multipath>) -> Core {
        let (ready, started) = channel();
        let served = Arc::clone(&namespace);
        let thread = std::thread::spawn(move || {
            let config = Config { buffer_bytes: 16 << 20, ..Config::default() };
            let reactor = Reactor::new(&config).expect("a reactor");
            let queue = served.open_queue(&reactor).expect("a queue");
            let paths = OPENED.take();
            let world = World { reactor: Rc::clone(&reactor), queue, paths, front: Rc::default() };
            WORLD.set(Some(Rc::new(world)));
            ready.send(reactor.mailbox()).expect("the test waits");
            reactor.run();
            WORLD.set(None);
        });
        let mailbox = started.recv().expect("the core starts");
        Core { namespace, mailbox, thread: Some(thread) }
    }

    /// Runs `work` on the core's thread, in a turn of its own.
    pub fn run<R: Send + 'static>(&self, work: impl FnOnce(&World) -> R + Send + 'static) -> R {
        let (sender, result) = channel();
        let posted = self.mailbox.post(move |_| {
            let world = WORLD.with_borrow(|world| world.clone()).expect("the core runs");
            let _ = sender.send(work(&world));
        });
        assert!(posted);
        result.recv_timeout(PATIENCE).expect("the work does not panic")
    }

    /// Runs `look` until it gives something.
    pub fn until<R: Send + 'static>(&self, look: fn(&World) -> Option<R>) -> R {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = self.run(look) {
                return found;
            }
            assert!(Instant::now() < end, "it never comes true");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets what was put off to the end of the turn happen.
    pub fn settle(&self) {
        (0..3).for_each(|_| self.run(|_| ()));
    }

    /// In flight and sent, by path.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        let reports = self.namespace.paths();
        reports.iter().map(|path| (path.in_flight, path.selections)).collect()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.mailbox.post(|reactor| reactor.stop());
        let ended = self.thread.take().expect("joined once").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the core panicked");
    }
}

/// Blocks with what was last written to them, behind several paths.
#[derive(Debug, Default)]
pub struct Store(pub BTreeMap<u64, u8>);
