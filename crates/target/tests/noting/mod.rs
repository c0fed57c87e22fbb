//! A volume that notes what it is asked to copy, instead of copying it.

use namespace::copy::Place;
use namespace::{Data, Namespace, Queue, Request, Sink};
use nvme::limits::{Commands, CopyLimits, DiscardLimits, Passthrough};
use nvme::{Command, Limits, Status, opcode};
use reactor::{Complete, Reactor};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What one Copy may ask for: little.
pub const COPY: CopyLimits = CopyLimits { ranges_max: 8, range_blocks_max: 100, blocks_max: 400 };

pub const LIMITS: Limits = Limits {
    block_shift: 12,
    blocks: 1024,
    transfer_bytes_max: 1 << 20,
    write_zeroes_bytes_max: u32::MAX,
    discard: DiscardLimits::UNLIMITED,
    optimal_write_bytes: 4096,
    read_only: false,
    volatile_write_cache: false,
    commands: Commands {
        write_zeroes: false,
        deallocate: false,
        write_uncorrectable: false,
        compare: false,
        compare_and_write: false,
        verify: false,
        checksum: false,
        allocation: false,
    },
    copy: COPY,
    metadata_bytes: 0,
    passthrough: Passthrough::NONE,
    lends_reads: false,
    immediate: true,
};

/// A Copy as the volume saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub sdlba: u64,
    /// The URI of another volume, first block, and blocks of each.
    pub sources: Vec<(Option<String>, u64, u32)>,
    /// Of each source.
    pub fast_only: Vec<bool>,
    /// Another volume was given with a queue that is not its own.
    pub delayed: bool,
}

/// What a volume notes, and what it is told to do.
#[derive(Debug)]
pub struct Notes {
    pub limits: Mutex<Limits>,
    pub seen: Mutex<Vec<Seen>>,
    /// Data of copies that came as bytes.
    pub bytes: Mutex<Vec<Vec<u8>>>,
    /// How each Copy ends.
    pub answer: Mutex<(Status, u64)>,
    /// From now on Copies are held, until they are let go.
    pub hold: AtomicBool,
    /// Copies that are held.
    pub held: AtomicU64,
    /// Queues that are open.
    pub queues: AtomicU64,
    /// A queue was dropped with something in it.
    pub forgotten: AtomicBool,
}

#[derive(Debug)]
pub struct Noting {
    name: String,
    pub notes: Arc<Notes>,
}

impl Noting {
    pub fn new(name: &str, limits: Limits) -> Arc<Noting> {
        let notes = Notes {
            limits: Mutex::new(limits),
            seen: Mutex::default(),
            bytes: Mutex::default(),
            answer: Mutex::new((Status::SUCCESS, 0)),
            hold: AtomicBool::new(false),
            held: AtomicU64::new(0),
            queues: AtomicU64::new(0),
            forgotten: AtomicBool::new(false),
        };
        Arc::new(Noting { name: name.into(), notes: Arc::new(notes) })
    }
}

impl Namespace for Noting {
    fn limits(&self) -> Limits {
        *self.notes.limits.lock().unwrap()
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let queue = Rc::new_cyclic(|me| NotingQueue {
            me: me.clone(),
            reactor: Rc::clone(reactor),
            notes: Arc::clone(&self.notes),
            requests: RefCell::default(),
            copies: RefCell::default(),
        });
        self.notes.queues.fetch_add(1, Ordering::SeqCst);
        OWN.lock().unwrap().insert(Rc::as_ptr(&queue) as usize);
        Ok(queue)
    }

    fn refresh(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn resize(&self, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn uri(&self) -> String {
        self.name.clone()
    }

    fn describe(&self, _facts: &mut Vec<(String, String)>) {}

    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }
}

/// Addresses of all queues that volumes of this kind have opened themselves.
static OWN: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// A Copy from another volume ends when a Read through that one's queue has: as with who reads and writes.
struct NotingQueue {
    me: Weak<NotingQueue>,
    reactor: Rc<Reactor>,
    notes: Arc<Notes>,
    /// Held.
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    requests: RefCell<Vec<Box<Request>>>,
    /// Wait for their Read.
    copies: RefCell<HashMap<u64, Box<Request>>>,
}

impl NotingQueue {
    fn copy(&self, request: Box<Request>) {
        let Data::Sources(sources) = &request.data else { unreachable!("just seen") };
        let mut first = None;
        let mut delayed = false;
        let each = sources.ranges.iter().map(|range| {
            let name = match &range.place {
                Place::Same => None,
                Place::Other(other) => {
                    let address = Rc::as_ptr(&other.queue).cast::<()>() as usize;
                    delayed |= !OWN.lock().unwrap().contains(&address);
                    first.get_or_insert_with(|| Rc::clone(&other.queue));
                    Some(other.namespace.uri())
                }
                Place::Origin(_) => panic!("an origin above the guard"),
            };
            (name, range.slba, range.blocks)
        });
        let fast_only = sources.ranges.iter().map(|range| range.fast_only).collect();
        let sources: Vec<_> = each.collect();
        let sdlba = request.command.slba();
        self.notes.seen.lock().unwrap().push(Seen { sdlba, sources, fast_only, delayed });
        let Some(source) = first else { return self.carry_out(request) };
        let mut read = Request::new();
        read.command = Command::blocks(opcode::io::READ, 1, 0, 1);
        let key = request.command.cid.get().into();
        read.push(self.me.upgrade().expect("in use"), key);
        assert!(self.copies.borrow_mut().insert(key, request).is_none());
        source.submit(read);
    }

    /// Ends a command, now or when it is not to be held any more.
    fn carry_out(&self, request: Box<Request>) {
        self.requests.borrow_mut().push(request);
        if self.notes.hold.load(Ordering::SeqCst) {
            self.notes.held.fetch_add(1, Ordering::SeqCst);
            self.look_later();
        } else {
            self.end_all();
        }
    }

    fn look_later(&self) {
        let release = Rc::new(Release(self.me.clone()));
        self.reactor.timer(Instant::now() + Duration::from_millis(5), release, 0);
    }

    fn end_all(&self) {
        for request in self.requests.take() {
            self.end(request);
        }
    }

    fn end(&self, mut request: Box<Request>) {
        let copies = request.command.opcode == opcode::io::COPY;
        let answer = *self.notes.answer.lock().unwrap();
        (request.status, request.result) = if copies { answer } else { (Status::SUCCESS, 0) };
        request.complete();
    }
}

/// A timer that does not keep the queue.
struct Release(Weak<NotingQueue>);

impl Complete for Release {
    fn complete(&self, _token: u64, result: i32, _flags: u32) {
        match self.0.upgrade().filter(|_| result >= 0) {
            Some(queue) if queue.notes.hold.load(Ordering::SeqCst) => queue.look_later(),
            Some(queue) => queue.end_all(),
            None => {}
        }
    }
}

impl Queue for NotingQueue {
    fn submit(&self, request: Box<Request>) {
        match &request.data {
            Data::Sources(_) => self.copy(request),
            Data::Buffer(bytes) if request.command.opcode == opcode::io::COPY => {
                self.notes.bytes.lock().unwrap().push(bytes.as_slice().to_vec());
                request.finish(Status::SUCCESS);
            }
            _ => self.carry_out(request),
        }
    }

    fn forget(&self) {}
}

impl Sink for NotingQueue {
    fn completed(&self, _read: Box<Request>, state: u64) {
        let copy = self.copies.borrow_mut().remove(&state).expect("it waits for its Read");
        self.end(copy);
    }
}

impl Drop for NotingQueue {
    fn drop(&mut self) {
        if !self.requests.borrow().is_empty() || !self.copies.borrow().is_empty() {
            self.notes.forgotten.store(true, Ordering::SeqCst);
        }
        OWN.lock().unwrap().remove(&(std::ptr::from_ref(self) as usize));
        self.notes.queues.fetch_sub(1, Ordering::SeqCst);
    }
}
