//! `volatile:`: keeps writes in memory until they are flushed, so that a power cut can be played.
//!
//! ```text
//!   Write          -> kept, acknowledged             Read  -> child, overlaid with what is kept
//!   Flush          -> kept blocks written down, child flushed
//!   Read with FUA  -> the same, if some of its blocks are kept; then child
//!   Write with FUA, Write Zeroes, deallocate (if the child does) -> child; what was kept of these blocks is dropped
//!   cut()          -> kept blocks forgotten; a Flush at work ends with an error
//! ```
//!
//! Killing the process forgets what is kept too, as a power cut would, which the page cache
//! below a `file:` does not. Memory is bounded: a write that finds the cache full waits until
//! all that is kept was written down (and not flushed), as a disk's cache would do. What goes
//! down goes one job at a time over all cores, in the order of the blocks. A tool for tests: it
//! allocates one block of memory per block written.

mod queue;

use crate::human::format_bytes;
use crate::layer::pass_to_child;
use crate::wake::Waker;
use crate::{Data, Namespace, Queue, Request, Sink};
use nvme::limits::Passthrough;
use nvme::{Command, Limits, Status, opcode};
use queue::VolatileQueue;
use reactor::{Config, Reactor};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes kept at most, unless said otherwise.
pub const CACHE_BYTES: u64 = 64 << 20;

/// A namespace that forgets.
#[derive(Debug)]
pub struct Volatile {
    me: Weak<Volatile>,
    child: Arc<dyn Namespace>,
    cache_bytes: u64,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    cache: Mutex<Cache>,
    blocks_max: usize,
    turn: Mutex<Turn>,
}

/// What is kept: the newest content of each block.
#[derive(Debug, Default)]
struct Cache {
    blocks: BTreeMap<u64, Kept>,
    sequence: u64,
    cuts: u64,
}

#[derive(Debug)]
struct Kept {
    /// Number of the write it came with.
    sequence: u64,
    data: Arc<[u8]>,
}

/// Who may write down.
#[derive(Debug, Default)]
struct Turn {
    owner: Option<Waker>,
    waiting: VecDeque<Waker>,
}

impl Volatile {
    /// Keeps up to `cache_bytes` of writes before `child`; at least the largest single write.
    pub fn new(child: Arc<dyn Namespace>, cache_bytes: u64) -> Arc<Volatile> {
        let limits = child.limits();
        let bytes = cache_bytes.max(u64::from(limits.transfer_bytes_max));
        let shared = Shared {
            cache: Mutex::default(),
            blocks_max: usize::try_from(bytes >> limits.block_shift).unwrap_or(usize::MAX),
            turn: Mutex::default(),
        };
        Arc::new_cyclic(|me| Volatile {
            me: me.clone(),
            child,
            cache_bytes,
            shared: Arc::new(shared),
        })
    }
}

impl Namespace for Volatile {
    fn limits(&self) -> Limits {
        let mut limits = self.child.limits();
        limits.volatile_write_cache = true;
        limits.commands.compare = false;
        limits.commands.compare_and_write = false;
        limits.commands.verify = false;
        limits.commands.checksum = false;
        limits.commands.write_uncorrectable = false;
        // What is in the cache counts as well.
        limits.commands.allocation = false;
        Limits {
            passthrough: Passthrough::NONE,
            copy: nvme::limits::CopyLimits::NONE,
            metadata_bytes: 0,
            lends_reads: false,
            immediate: false,
            ..limits
        }
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let child = Arc::clone(&self.child).open_queue(reactor)?;
        let namespace = Arc::clone(&self.child);
        Ok(VolatileQueue::open(Arc::clone(&self.shared), namespace, child, reactor)?)
    }

    pass_to_child!(refresh resize uuid keeps_blocks_whole paths numa_node each_program tune);
    pass_to_child!(last_guard retry_delays lost access nsid);

    /// Writes down on a reactor of its own: the serving ones may have ended.
    fn flush(&self) -> io::Result<()> {
        if !self.shared.cache().blocks.is_empty() {
            let this = self.me.upgrade().expect("a namespace lives in an Arc");
            let config = Config { buffer_bytes: 1 << 20, ..Config::default() };
            let reactor = Reactor::new(&config).map_err(io::Error::other)?;
            let queue = this.open_queue(&reactor)?;
            let end = Rc::new(End { reactor: Rc::clone(&reactor), status: Cell::default() });
            let mut request = Request::new();
            request.command = Command { opcode: opcode::io::FLUSH, ..Command::default() };
            request.push(Rc::clone(&end) as Rc<dyn Sink>, 0);
            queue.submit(request);
            if end.status.get().is_none() {
                reactor.run();
            }
            let status = end.status.get().unwrap_or(Status::INTERNAL);
            if !status.is_success() {
                return Err(io::Error::other(status.to_string()));
            }
        }
        self.child.flush()
    }

    fn uri(&self) -> String {
        let cache = match self.cache_bytes {
            CACHE_BYTES => String::new(),
            bytes => format!("cache={}", format_bytes(bytes)),
        };
        format!("volatile:{cache}({})", self.child.uri())
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        let kept = self.shared.cache().blocks.len();
        facts.push(("blocks not flushed".into(), kept.to_string()));
        self.child.describe(facts);
    }

    fn cut(&self) -> u64 {
        let mut cache = self.shared.cache();
        cache.cuts += 1;
        let kept = std::mem::take(&mut cache.blocks).len() as u64;
        drop(cache);
        kept + self.child.cut()
    }

    fn volatile_epoch(&self) -> u64 {
        let cuts = self.shared.cache().cuts;
        cuts + self.child.volatile_epoch()
    }
}

/// Ends a reactor when the one request on it has ended.
struct End {
    reactor: Rc<Reactor>,
    status: Cell<Option<Status>>,
}

impl Sink for End {
    fn completed(&self, request: Box<Request>, _state: u64) {
        self.status.set(Some(request.status));
        self.reactor.stop();
    }
}

impl Shared {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the turn to write down, or has `queue` woken with it later.
    fn take_turn(&self, queue: &Waker) -> bool {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // A core that has ended will not pass it on.
        if turn.owner.as_ref().is_some_and(Waker::is_alive) {
            turn.waiting.push_back(queue.clone());
            return false;
        }
        turn.owner = Some(queue.clone());
        true
    }

    /// Passes the turn on.
    fn pass_turn(&self) {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        turn.owner = None;
        while let Some(next) = turn.waiting.pop_front() {
            if next.call(0) {
                turn.owner = Some(next);
                return;
            }
        }
    }
}

impl Cache {
    /// Keeps the blocks of a write, unless that makes more than `most`.
    fn keep(&mut self, start: u64, data: &Data, block_bytes: usize, most: usize) -> bool {
        let count = data.len() / block_bytes;
        let known = self.blocks.range(start..start + count as u64).count();
        if self.blocks.len() - known + count > most {
            return false;
        }
        self.sequence += 1;
        // SAFETY: the data is readable for its length, and nobody writes to it during this call.
        let bytes = unsafe { std::slice::from_raw_parts(data.as_ptr(), data.len()) };
        for (index, block) in bytes.chunks_exact(block_bytes).enumerate() {
            let kept = Kept { sequence: self.sequence, data: block.into() };
            self.blocks.insert(start + index as u64, kept);
        }
        true
    }

    /// Drops what is kept of a range from writes up to number `sequence`.
    fn drop_range(&mut self, start: u64, end: u64, sequence: u64) {
        let old = |(&block, kept): (&u64, &Kept)| (kept.sequence <= sequence).then_some(block);
        let old: Vec<u64> = self.blocks.range(start..end).filter_map(old).collect();
        for block in old {
            self.blocks.remove(&block);
        }
    }
}
