//! One connection: a socket, the protocol's machines, and the requests in progress.
//!
//! ```text
//!  socket --recv--> receive buffer of the core --Handshake, Transmission--> begin() --> volume
//!  socket <-writev-- output <-- answer() <-- finished() <-----------------------------'
//! ```
//!
//! A turn is: one receive, every request in it started, every command that came back meanwhile
//! answered, one `writev`. What completes outside a turn is sent at the end of the reactor's.

mod again;
mod answer;
mod begin;
mod memory;
mod merge;
mod receive;

use crate::core::Core;
use crate::exchange::{Exchanges, NONE, REQUESTS_MAX};
use crate::handshake::{self, Handshake};
use crate::request::Transmission;
use again::Later;
use memory::Holding;
use namespace::output::{Flushed, Output, Payload};
use namespace::{Namespace, Queue, Request, Sink, Told};
use nvme::Limits;
use reactor::{Complete, Interest, Poll, PollerId, Stream, TimerId, WatchId};
use receive::Incoming;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Memory of replies outside the buffer pool from which on nothing more is read.
const HEAP_BYTES_MAX: usize = 256 * 1024;

/// How long a peer that is told to go may take to read what is queued.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

const TOKEN_READABLE: u64 = 0;
const TOKEN_WRITABLE: u64 = 1;
const TOKEN_DEFERRED: u64 = 2;
const TOKEN_BUFFERS: u64 = 3;
const TOKEN_CLOSE: u64 = 4;
const TOKEN_HANDSHAKE: u64 = 5;
/// Tokens from here on: the volume has told the holes for the request in this slot.
const TOKEN_ALLOCATION: u64 = 16;
/// From here on: the command at this place is to be tried again.
const TOKEN_AGAIN: u64 = TOKEN_ALLOCATION + REQUESTS_MAX as u64;

/// A connection on its core.
pub(crate) struct Connection {
    core: Rc<Core>,
    stream: Stream,
    inner: RefCell<Inner>,
    key: u64,
    me: Weak<Connection>,
    poller: Cell<Option<PollerId>>,
    /// Commands that the volume is to be given again.
    later: RefCell<Later>,
    /// Requests that came back and are not looked at yet.
    done: RefCell<Vec<(u64, Box<Request>)>>,
    /// A turn is running and will see `done` at its end.
    in_turn: Cell<bool>,
    deferred: Cell<bool>,
    closed: Cell<bool>,
    /// Closed, and nothing is with the volume any more: the peer knows, and it is no longer counted.
    ended: Cell<bool>,
    watches: [Cell<Option<WatchId>>; 2],
    /// Runs during the handshake, or while the peer does not read that is told to go.
    timer: Cell<Option<TimerId>>,
    /// Commands with the volume.
    running: Cell<u32>,
}

/// What changes as bytes come and go.
struct Inner {
    phase: Phase,
    exchanges: Exchanges,
    /// The write whose data is being received.
    incoming: Option<Incoming>,
    /// Requests that wait for a buffer.
    waiting: VecDeque<u32>,
    /// The read whose simple reply is sent piece by piece: no other reply may come between.
    streaming: Option<u32>,
    /// Replies that wait for its end.
    delayed: VecDeque<u32>,
    /// Empty; swapped with `Connection::done`.
    looked_at: Vec<(u64, Box<Request>)>,
    /// Taken from the core's spares while there is something to send.
    output: Option<Box<Output>>,
    /// Bytes of what is not complete.
    stash: Vec<u8>,
    /// The stash may hold whole requests.
    stash_unseen: bool,
    /// Nothing more is taken: close once everything in progress is answered.
    closing: bool,
    memory: Holding,
}

enum Phase {
    Handshake(Handshake),
    Serving(Transmission, View),
}

/// The export as this connection uses it.
struct View {
    queue: Rc<dyn Queue>,
    namespace: Arc<dyn Namespace>,
    block_shift: u8,
    /// Most blocks of a command with data.
    blocks_max: u32,
    /// Most bytes that one command zeroes or trims.
    bulk_bytes_max: Cell<u32>,
    limits: Limits,
    /// What this client has been told that the volume has lost: others have the same queue.
    told: RefCell<Told>,
}

impl Inner {
    /// Whether nothing is read before something is answered, sent, or freed.
    #[inline]
    fn is_held_back(&self) -> bool {
        self.exchanges.is_full() && self.incoming.is_none()
            || self.incoming.as_ref().is_some_and(|incoming| incoming.waits)
            || self.output.as_ref().is_some_and(|output| output.heap_bytes() > HEAP_BYTES_MAX)
    }

    /// The export and what was agreed on.
    ///
    /// # Panics
    /// During the handshake.
    #[inline]
    fn serving(&self) -> (&Transmission, &View) {
        let Phase::Serving(transmission, view) = &self.phase else {
            unreachable!("requests come after the handshake")
        };
        (transmission, view)
    }
}

impl Connection {
    /// A connection on `core`, not polled before [`Connection::start`].
    pub(crate) fn new(core: Rc<Core>, key: u64, stream: Stream) -> Rc<Connection> {
        Rc::new_cyclic(|me| Connection {
            core,
            stream,
            inner: RefCell::new(Inner {
                phase: Phase::Handshake(Handshake::default()),
                exchanges: Exchanges::default(),
                incoming: None,
                waiting: VecDeque::new(),
                streaming: None,
                delayed: VecDeque::new(),
                looked_at: Vec::new(),
                output: None,
                stash: Vec::new(),
                stash_unseen: false,
                closing: false,
                memory: Holding::default(),
            }),
            key,
            me: me.clone(),
            poller: Cell::new(None),
            later: RefCell::default(),
            done: RefCell::default(),
            in_turn: Cell::new(false),
            deferred: Cell::new(false),
            closed: Cell::new(false),
            ended: Cell::new(false),
            watches: [Cell::new(None), Cell::new(None)],
            timer: Cell::new(None),
            running: Cell::new(0),
        })
    }

    /// Greets the client, and takes part in the reactor's turns.
    pub(crate) fn start(&self) {
        self.send(&mut self.inner.borrow_mut(), &handshake::greeting());
        let reactor = &self.core.reactor;
        let deadline = reactor.now() + HANDSHAKE_TIMEOUT;
        self.timer.set(Some(reactor.timer(deadline, self.me(), TOKEN_HANDSHAKE)));
        self.poller.set(Some(reactor.attach(self.me())));
    }

    fn me(&self) -> Rc<Connection> {
        self.me.upgrade().expect("a connection that runs is held")
    }

    pub(crate) fn is_in_handshake(&self) -> bool {
        matches!(self.inner.borrow().phase, Phase::Handshake(_))
    }

    /// Closes once what is in progress is answered; at once during the handshake.
    pub(crate) fn finish(&self) {
        let is_serving = {
            let mut inner = self.inner.borrow_mut();
            inner.closing = true;
            matches!(inner.phase, Phase::Serving(..))
        };
        if is_serving { self.defer() } else { self.close() }
    }

    /// Closes the connection. What the volume still holds comes back later and is dropped; until then the connection
    /// is counted, so that nobody has more with the volumes by hanging up and coming again.
    pub(crate) fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        if let Some(poller) = self.poller.take() {
            self.core.reactor.detach(poller);
        }
        for watch in &self.watches {
            if let Some(watch) = watch.take() {
                self.core.reactor.unwatch(watch);
            }
        }
        self.cancel_timer();
        if !self.in_turn.get() {
            self.tear_down();
        }
    }

    fn cancel_timer(&self) {
        if let Some(timer) = self.timer.take() {
            self.core.reactor.cancel_timer(timer);
        }
    }

    fn tear_down(&self) {
        {
            let mut inner = self.inner.borrow_mut();
            let inner = &mut *inner;
            let mut spare = self.core.spare.borrow_mut();
            if let Some(mut output) = inner.output.take() {
                output.discard(&mut spare);
                spare.put(output);
            }
            // Merges stay where they are: the volume may be at work on them.
            inner.incoming = None;
            inner.waiting.clear();
            self.leave_line(inner);
        }
        for (_, request) in self.done.take() {
            self.core.recycle(request);
        }
        if self.running.get() == 0 {
            self.end();
        }
    }

    /// Commands with the volume.
    pub(crate) fn running_count(&self) -> u32 {
        self.running.get()
    }

    /// The volume's URI, after the handshake.
    pub(crate) fn volume(&self) -> Option<String> {
        match &self.inner.borrow().phase {
            Phase::Handshake(_) => None,
            Phase::Serving(_, view) => Some(view.namespace.uri()),
        }
    }

    /// A closed connection is no more: the peer learns of it, and somebody else may come.
    pub(crate) fn end(&self) {
        if !self.ended.replace(true) {
            let _ = self.stream.shutdown();
            self.core.remove_connection(self.key);
        }
    }

    /// A command of a closed connection came back.
    #[cold]
    fn drained(&self) {
        // Not from within the queue's call: with the last connection of a server that stops, its queues go.
        if self.running.get() == 0 && !self.ended.get() {
            self.defer();
        }
    }

    /// Does `work` on what changes. If that closes the connection, it is torn down afterwards.
    fn within<R>(&self, work: impl FnOnce(&mut Inner) -> R) -> R {
        self.in_turn.set(true);
        let outcome = work(&mut self.inner.borrow_mut());
        self.in_turn.set(false);
        if self.closed.get() {
            self.tear_down();
        }
        outcome
    }

    /// One turn: with `receive`, the socket is read first. Returns whether anything moved.
    fn turn(&self, receive: bool) -> bool {
        if self.closed.get() {
            return false;
        }
        self.within(|inner| self.turn_within(inner, receive)).unwrap_or_else(|error| {
            tracing::debug!(%error, "connection ends");
            self.close();
            true
        })
    }

    fn turn_within(&self, inner: &mut Inner, receive: bool) -> io::Result<bool> {
        let mut progress = self.flush(inner)?;
        if receive && !inner.closing && !inner.is_held_back() {
            progress |= self.receive(inner)?;
        }
        progress |= self.finish_done(inner);
        progress |= self.flush(inner)?;
        if self.retry_share(inner) {
            progress = true;
            self.flush(inner)?;
        }
        if inner.closing {
            self.end_if_finished(inner, progress)?;
        }
        Ok(progress)
    }

    /// The last answers of a connection that is to end: a client that takes none of them for a while is left.
    fn end_if_finished(&self, inner: &Inner, progress: bool) -> io::Result<()> {
        if progress || inner.output.is_none() {
            self.cancel_timer();
        }
        if inner.output.is_some() {
            if self.timer.get().is_none() {
                let reactor = &self.core.reactor;
                let timer = reactor.timer(reactor.now() + CLOSE_TIMEOUT, self.me(), TOKEN_CLOSE);
                self.timer.set(Some(timer));
            }
            return Ok(());
        }
        if self.running.get() == 0 && inner.waiting.is_empty() && self.done.borrow().is_empty() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    /// Gives the socket what is queued.
    fn flush(&self, inner: &mut Inner) -> io::Result<bool> {
        let Some(output) = &mut inner.output else { return Ok(false) };
        let mut spare = self.core.spare.borrow_mut();
        let (exchanges, memory) = (&mut inner.exchanges, &mut inner.memory);
        let flushed = output.flush(&self.stream, &mut spare, |slot, payload| {
            memory.sent(payload);
            if slot != NONE {
                exchanges.end(slot);
            }
        })?;
        if flushed == Flushed::All {
            spare.put(inner.output.take().expect("just flushed"));
        }
        Ok(flushed != Flushed::Blocked(false))
    }

    /// Queues `bytes` that end no exchange.
    fn send(&self, inner: &mut Inner, bytes: &[u8]) {
        let mut spare = self.core.spare.borrow_mut();
        let output = inner.output.get_or_insert_with(|| spare.take());
        output.bytes(bytes, &mut spare);
        output.hold(NONE, Payload::None);
    }

    /// Looks at what has come back. What comes back meanwhile has to wait for the next turn, so
    /// that a request of many commands leaves room for other connections.
    fn finish_done(&self, inner: &mut Inner) -> bool {
        if self.done.borrow().is_empty() {
            return false;
        }
        let mut done = self.done.replace(std::mem::take(&mut inner.looked_at));
        for (state, request) in done.drain(..) {
            match self.pause(inner, state, &request) {
                None => self.finished(inner, state, request),
                Some(pause) => self.submit_after(pause, state, request),
            }
        }
        inner.looked_at = done;
        true
    }

    /// Sends a command to the volume; it comes back to `state`.
    #[inline]
    fn submit(&self, queue: &Rc<dyn Queue>, state: u64, mut request: Box<Request>) {
        request.asked = request.command;
        request.push(self.me(), state);
        self.running.set(self.running.get() + 1);
        queue.submit(request);
    }

    /// Arranges for a turn at the end of the reactor's.
    fn defer(&self) {
        if !self.deferred.replace(true) {
            self.core.reactor.defer(self.me(), TOKEN_DEFERRED);
        }
    }

    /// Whether the poller has nothing to do before it is woken.
    fn is_idle(&self) -> bool {
        let inner = self.inner.borrow();
        let hears = self.watches[0].get().is_some() && !inner.stash_unseen;
        inner.output.is_none()
            && self.done.borrow().is_empty()
            && (inner.is_held_back() || inner.closing || hears)
    }

    fn watch(&self, place: usize, interest: Interest, token: u64) {
        if self.watches[place].get().is_none() {
            let fd = self.stream.as_raw_fd();
            let watch = self.core.reactor.watch(fd, interest, self.me(), token);
            self.watches[place].set(Some(watch));
        }
    }
}

impl Poll for Connection {
    fn poll(&self) -> bool {
        self.turn(true)
    }

    fn park(&self) -> bool {
        if self.closed.get() {
            return true;
        }
        if !self.done.borrow().is_empty() {
            return false;
        }
        let (is_blocked, is_deaf) = {
            let mut inner = self.inner.borrow_mut();
            if inner.stash.is_empty() {
                // An idle connection holds no memory.
                inner.stash.shrink_to(0);
            }
            let is_deaf = inner.closing || inner.is_held_back();
            if inner.stash_unseen && !is_deaf {
                return false;
            }
            (inner.output.is_some(), is_deaf)
        };
        if is_blocked {
            self.watch(1, Interest::WRITE, TOKEN_WRITABLE);
        }
        if !is_deaf {
            self.watch(0, Interest::READ, TOKEN_READABLE);
        }
        true
    }
}

impl Complete for Connection {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        match token {
            TOKEN_READABLE => self.watches[0].set(None),
            TOKEN_WRITABLE => self.watches[1].set(None),
            TOKEN_CLOSE | TOKEN_HANDSHAKE => {
                self.timer.set(None);
                tracing::debug!("a client takes too long");
                return self.close();
            }
            TOKEN_DEFERRED => {
                self.deferred.set(false);
                if self.closed.get() && self.running.get() == 0 {
                    return self.end();
                }
                self.turn(false);
                if self.closed.get() || self.is_idle() {
                    return;
                }
                // The socket took not all, or may be read again: the poller has to see to it.
            }
            TOKEN_BUFFERS => {
                if !self.closed.get() {
                    self.within(|inner| {
                        self.waits_no_more(inner);
                        self.retry_waiting(inner);
                    });
                    self.defer();
                }
                return;
            }
            TOKEN_AGAIN.. => return self.submit_again((token - TOKEN_AGAIN) as usize),
            _ => {
                self.running.set(self.running.get() - 1);
                if self.closed.get() {
                    return self.drained();
                }
                let slot = (token - TOKEN_ALLOCATION) as u32;
                self.within(|inner| self.allocation_told(inner, slot));
                self.defer();
                return;
            }
        }
        if let Some(poller) = self.poller.get() {
            self.core.reactor.activate(poller);
        }
    }
}

impl Sink for Connection {
    #[inline]
    fn completed(&self, request: Box<Request>, state: u64) {
        self.running.set(self.running.get() - 1);
        if self.closed.get() {
            self.core.recycle(request);
            return self.drained();
        }
        self.done.borrow_mut().push((state, request));
        if !self.in_turn.get() {
            self.defer();
        }
    }
}
