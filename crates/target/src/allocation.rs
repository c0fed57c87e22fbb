//! Get LBA Status: which blocks a namespace stores, asked on a thread that may block, for an admin queue.

use crate::connection::{Connection, Inner};
use crate::core::Core;
use crate::exchange::Stage;
use namespace::Namespace;
use namespace::output::Payload;
use nvme::Status;
use nvme::lba_status::{Allocated, Extent, descriptors_in};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs that a namespace is asked for at once.
const RUNS_MAX: usize = 1024;

/// Time after which no more is asked: the answer ends there, and says so.
const ENOUGH: Duration = Duration::from_millis(250);

/// Those of one core. One is asked at a time: the threads are for file Copies and proofs as well.
#[derive(Default)]
pub(crate) struct Questions {
    is_asked: Cell<bool>,
    /// One for each connection at most.
    waiting: RefCell<VecDeque<Question>>,
}

/// What a connection's host wants to know.
struct Question {
    /// Of the connection.
    key: u64,
    cid: u16,
    work: Work,
}

/// Gives the answer; none if the namespace is gone.
type Work = Box<dyn FnOnce() -> Option<Vec<u8>> + Send>;

impl Connection {
    /// Has namespace `nsid` of subsystem `nqn` asked which of `blocks` blocks from `slba` on it stores. One such command of a
    /// queue is carried out at a time.
    #[cold]
    pub(crate) fn ask_allocation(
        &self,
        inner: &mut Inner,
        slot: u32,
        (nqn, nsid): (&Arc<str>, u32),
        (slba, blocks): (u64, u64),
        room: (usize, usize),
    ) {
        let Some(view) = self.core.subsystem(nqn).namespace(nsid) else {
            return self.respond(inner, slot, Status::NAMESPACE_NOT_READY, 0, Payload::None);
        };
        if inner.asks_allocation {
            return self.respond(inner, slot, Status::COMMAND_INTERRUPTED, 0, Payload::None);
        }
        inner.asks_allocation = true;
        let exchange = inner.exchanges.slot(slot);
        exchange.stage = Stage::Running;
        // Whoever waits keeps nothing open that is removed meanwhile.
        let namespace = Arc::downgrade(&view.namespace);
        let work = Box::new(move || Some(allocated(&*namespace.upgrade()?, slba, blocks, room)));
        let question = Question { key: self.key(), cid: exchange.cid, work };
        self.core.questions.waiting.borrow_mut().push_back(question);
        ask_next(&self.core);
    }

    /// It is there; or there was no thread for it, or the namespace has gone, and the host may try again.
    fn allocation_told(&self, cid: u16, found: Option<Vec<u8>>) {
        if self.closed.get() {
            return;
        }
        {
            let mut inner = self.inner.borrow_mut();
            let inner = &mut *inner;
            inner.asks_allocation = false;
            if let Some(slot) = inner.exchanges.find(cid, Stage::Running) {
                let status =
                    if found.is_some() { Status::SUCCESS } else { Status::COMMAND_INTERRUPTED };
                self.respond_with(inner, slot, status, 0, found);
            }
        }
        self.defer();
    }
}

/// Asks what is wanted next, of connections that are still there.
fn ask_next(core: &Rc<Core>) {
    let next = || core.questions.waiting.borrow_mut().pop_front();
    while !core.questions.is_asked.get()
        && let Some(Question { key, cid, work }) = next()
    {
        if core.connection(key).is_none() {
            continue;
        }
        core.questions.is_asked.set(true);
        let asking = Rc::clone(core);
        let then = move |found: Option<Option<Vec<u8>>>| {
            asking.questions.is_asked.set(false);
            if let Some(connection) = asking.connection(key) {
                connection.allocation_told(cid, found.flatten());
            }
            ask_next(&asking);
        };
        core.reactor.aside(true, work, then);
    }
}

/// The answer, `bytes` long, of which its list has no more than `list_bytes`. What a namespace cannot tell is stored.
fn allocated(
    namespace: &dyn Namespace,
    slba: u64,
    blocks: u64,
    (bytes, list_bytes): (usize, usize),
) -> Vec<u8> {
    let (end, until) = (slba + blocks, Instant::now() + ENOUGH);
    let room = descriptors_in(list_bytes);
    let mut extents: Vec<Extent> = Vec::new();
    let mut at = slba;
    // One more than there is room for would be left out.
    while at < end && extents.len() <= room && Instant::now() < until {
        let told = namespace.allocation(at, end - at, RUNS_MAX).unwrap_or_else(|error| {
            tracing::debug!("{}: no map of its holes: {error}", namespace.uri());
            Vec::new()
        });
        let before = at;
        for run in told {
            let blocks = run.blocks.min(end - at);
            if run.is_stored {
                store(&mut extents, at, blocks);
            }
            at += blocks;
        }
        if at == before {
            store(&mut extents, at, end - at);
            at = end;
        }
    }
    if at < end && extents.len() < room {
        // The time is over: whoever asks on from the end of what is told is to come farther.
        store(&mut extents, at, 1);
    }
    let mut answer = vec![0; bytes];
    Allocated { extents, is_complete: at == end }.write(&mut answer[..list_bytes]);
    answer
}

fn store(extents: &mut Vec<Extent>, slba: u64, blocks: u64) {
    match extents.last_mut() {
        Some(last) if last.slba + last.blocks == slba => last.blocks += blocks,
        _ if blocks > 0 => extents.push(Extent { slba, blocks }),
        _ => {}
    }
}
