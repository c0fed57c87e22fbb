//! One NVMe/TCP connection: a socket, its protocol machine, and the commands in flight on it.
//!
//! ```text
//!  socket --recv--> receive buffer of the core --machine--> command() --> namespace or controller
//!  socket <-writev-- output <-- respond() <-- finished() <------------------------'
//! ```
//!
//! A turn is: one receive, every command in it started, every completion that came meanwhile
//! answered, one `writev`. What completes outside a turn is sent at the end of the reactor's.

mod ending;
mod moving;
mod receive;

use crate::answers::Unread;
use crate::core::Core;
use crate::exchange::{Exchanges, Stage};
use crate::journal::{End, Subject};
use crate::losses::Host;
use crate::view::{NamespaceView, SubsystemView};
use namespace::output::{Flushed, Output, Payload};
use namespace::{Data, Request, Sink};
use nvme::Status;
use nvme_tcp::controller;
use reactor::{Complete, Interest, Poll, PollerId, Stream, TimerId, WatchId};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32};
use std::time::Duration;
use subsystem::{ControllerId, PortId};

/// Commands outstanding on a connection that has not sent Connect, which alone makes sense there.
pub(crate) const FRESH_ENTRIES: u16 = 32;

/// PDUs queued that belong to no command: a host that provokes more and reads none is dropped.
const UNREAD_MAX: usize = 4096;

/// Memory outside the buffer pool that a connection may take before nothing more is read from it:
/// answers to admin commands that the host has not read, and data in capsules that wait for a
/// buffer. The socket is the queue then.
pub(crate) const HEAP_BYTES_MAX: usize = 256 * 1024;

/// Data in capsules that a connection may have waiting while it also receives data it asked for, when
/// reading on is the only way to get that. More is answered Command Interrupted, which hosts retry
/// only a few times, so every capsule of a queue of 128 entries (Linux's default) has room.
pub(crate) const KEPT_BYTES_MAX: usize = 128 * subsystem::IN_CAPSULE_BYTES as usize;

/// How long a peer that is told to go may take to read what is queued.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

const TOKEN_READABLE: u64 = 0;
const TOKEN_WRITABLE: u64 = 1;
const TOKEN_DEFERRED: u64 = 2;
const TOKEN_BUFFERS: u64 = 3;
const TOKEN_CLOSE: u64 = 4;

/// A connection on its core.
pub(crate) struct Connection {
    pub(crate) core: Rc<Core>,
    pub(crate) stream: Stream,
    pub(crate) inner: RefCell<Inner>,
    key: u64,
    me: Weak<Connection>,
    poller: Cell<Option<PollerId>>,
    /// Requests that came back and are not answered yet.
    done: RefCell<Vec<(u32, Box<Request>)>>,
    /// A turn is running and will see `done` at its end.
    in_turn: Cell<bool>,
    deferred: Cell<bool>,
    pub(crate) closed: Cell<bool>,
    watches: [Cell<Option<WatchId>>; 2],
    /// Runs while the peer is told to go and does not read it.
    close_timer: Cell<Option<TimerId>>,
    /// A failed command is on its way to the error log; no second one at a time.
    pub(crate) noting_error: Arc<AtomicBool>,
    /// Requests the namespaces hold.
    running: Cell<u32>,
    /// Closed, but not yet reported to the control core: requests are still out.
    to_report: Cell<Option<(ControllerId, u16)>>,
    /// What its end was put down to first.
    end: Cell<Option<End>>,
    pub(crate) unread: Unread,
    /// Whose key it is encrypted by, as long as it is nobody's.
    pub(crate) secured: OnceCell<tls::Peer>,
}

/// What changes as bytes come and go.
pub(crate) struct Inner {
    pub(crate) machine: controller::Connection,
    pub(crate) role: Role,
    pub(crate) port: PortId,
    pub(crate) exchanges: Exchanges,
    /// First command of a fused pair whose second has not come; `NONE` if it failed already.
    pub(crate) fused: Option<u32>,
    /// I/O commands that wait for a buffer.
    pub(crate) waiting: VecDeque<u32>,
    /// Taken from the core's spares while there is something to send.
    pub(crate) output: Option<Box<Output>>,
    /// Entries of the queue.
    pub(crate) entries: u16,
    /// Commands fetched: the submission queue head, modulo the entries.
    pub(crate) sq_head: u16,
    /// Bytes of a PDU that is not complete.
    stash: Vec<u8>,
    /// The stash came along from another core and may hold whole PDUs.
    stash_unseen: bool,
    /// The peer is told to go: nothing more is begun, and it is closed once everything is sent.
    pub(crate) closing: bool,
    /// What it is told last, once all that runs has come back.
    parting: Option<ending::Parting>,
    /// In the queue of those to whom the pool's free memory goes next.
    pub(crate) waits_for_buffers: bool,
    /// It has waited, and it is its turn.
    pub(crate) is_served: bool,
    /// A Get LBA Status is being carried out.
    pub(crate) asks_allocation: bool,
}

/// What a connection is for, known once Connect succeeded.
pub(crate) enum Role {
    /// Nothing yet: only Connect is accepted.
    Fresh,
    /// The admin queue of a controller.
    Admin(ControllerId),
    /// An I/O queue whose host has yet to prove who it is; on the control core until then.
    Unproven(Link),
    /// An I/O queue.
    Io(IoQueue),
}

/// An I/O queue.
pub(crate) struct IoQueue {
    pub(crate) link: Link,
    pub(crate) view: Rc<SubsystemView>,
    /// The namespace used last: (generation of the view, namespace id, namespace). Weak, so that an
    /// idle connection does not keep open what was removed.
    pub(crate) cached: Option<(u64, u32, Weak<NamespaceView>)>,
}

/// What ties an I/O queue to its controller; goes along when a connection moves to another core.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) controller: ControllerId,
    pub(crate) nqn: Arc<str>,
    pub(crate) queue_id: u16,
    pub(crate) entries: u16,
    pub(crate) flow_control: bool,
    pub(crate) shared: Arc<Shared>,
}

/// What the cores share of a controller. Read per command, so nothing here is written often.
#[derive(Default)]
pub(crate) struct Shared {
    /// Set by any command: traffic-based keep alive.
    pub(crate) active: AtomicBool,
    /// Formats of a Copy's list that the host may use. Set Features changes it on the control core
    /// before it is answered; a host that has the answer finds it on every core.
    pub(crate) copy_formats: AtomicU16,
    /// The keep alive time-out in milliseconds, zero for none. Set Features changes it, too.
    pub(crate) kato_ms: AtomicU32,
    pub(crate) host: Arc<Host>,
}

impl Inner {
    pub(crate) fn new(machine: controller::Connection, port: PortId) -> Inner {
        Inner {
            machine,
            role: Role::Fresh,
            port,
            exchanges: Exchanges::new(usize::from(FRESH_ENTRIES)),
            fused: None,
            waiting: VecDeque::new(),
            output: None,
            entries: FRESH_ENTRIES,
            sq_head: 0,
            stash: Vec::new(),
            stash_unseen: false,
            closing: false,
            parting: None,
            waits_for_buffers: false,
            is_served: false,
            asks_allocation: false,
        }
    }

    /// Bytes of answers to admin commands that are not sent yet.
    #[inline]
    pub(crate) fn unread_answers(&self) -> usize {
        self.output.as_ref().map_or(0, |output| output.heap_bytes())
    }

    /// Connect has told the size of the queue.
    pub(crate) fn set_entries(&mut self, entries: u16) {
        self.entries = entries;
        self.machine.set_queue_entries(usize::from(entries));
        self.exchanges.set_entries_max(usize::from(entries));
    }
}

impl Connection {
    /// A connection on `core`, not polled before [`Connection::start`].
    pub(crate) fn new(core: Rc<Core>, key: u64, stream: Stream, inner: Inner) -> Rc<Connection> {
        Rc::new_cyclic(|me| Connection {
            core,
            stream,
            inner: RefCell::new(inner),
            key,
            me: me.clone(),
            poller: Cell::new(None),
            done: RefCell::default(),
            in_turn: Cell::new(false),
            deferred: Cell::new(false),
            closed: Cell::new(false),
            watches: [Cell::new(None), Cell::new(None)],
            close_timer: Cell::new(None),
            noting_error: Arc::default(),
            running: Cell::new(0),
            to_report: Cell::new(None),
            end: Cell::new(None),
            unread: Unread::default(),
            secured: OnceCell::new(),
        })
    }

    /// Takes part in the reactor's turns.
    pub(crate) fn start(&self) {
        let poller = self.core.reactor.attach(self.me());
        self.poller.set(Some(poller));
    }

    pub(crate) fn me(&self) -> Rc<Connection> {
        self.me.upgrade().expect("a connection that runs is held")
    }

    /// Key of this connection on its core.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Where it comes from.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        let peer = self.stream.peer_addr().ok()?;
        Some(SocketAddr::new(peer.ip().to_canonical(), peer.port()))
    }

    /// It ends for that reason, unless there was one before.
    pub(crate) fn ends(&self, end: End) {
        self.end.set(self.end.get().or(Some(end)));
    }

    /// It ends for a fault of its peer, of which people are told.
    #[cold]
    pub(crate) fn blame(&self, end: End, fault: &dyn fmt::Display) {
        self.ends(end);
        self.core.journal.tell(Subject::Faults, || {
            let peer = self.peer().map(tracing::field::display);
            tracing::warn!(peer, %fault, "ending a connection");
        });
    }

    /// The controller this connection belongs to.
    pub(crate) fn controller(&self) -> Option<ControllerId> {
        match &self.inner.try_borrow().ok()?.role {
            Role::Fresh => None,
            Role::Admin(controller) => Some(*controller),
            Role::Unproven(link) => Some(link.controller),
            Role::Io(queue) => Some(queue.link.controller),
        }
    }

    pub(crate) fn is_queue(&self, controller: ControllerId, queue_id: u16) -> bool {
        self.inner.try_borrow().is_ok_and(|inner| match &inner.role {
            Role::Io(queue) => {
                queue.link.controller == controller && queue.link.queue_id == queue_id
            }
            _ => false,
        })
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.inner.try_borrow().is_ok_and(|inner| matches!(inner.role, Role::Admin(_)))
    }

    pub(crate) fn is_unproven(&self) -> bool {
        self.inner.try_borrow().is_ok_and(|inner| matches!(inner.role, Role::Unproven(_)))
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.inner.try_borrow().is_ok_and(|inner| matches!(inner.role, Role::Fresh))
    }

    /// The same, of a connection to `port`.
    pub(crate) fn is_fresh_on(&self, port: PortId) -> bool {
        self.is_fresh() && self.inner.try_borrow().is_ok_and(|inner| inner.port == port)
    }

    /// Whether nothing is read before memory is free again. Data that was asked for comes through
    /// the same socket, so a connection that waits for such is never held back for its capsules.
    #[inline]
    fn is_held_back(&self, inner: &Inner) -> bool {
        let unread_max = if self.core.is_full_of_answers() { 0 } else { HEAP_BYTES_MAX };
        inner.unread_answers() > unread_max
            || !inner.waiting.is_empty()
                && inner.exchanges.kept_bytes() > HEAP_BYTES_MAX
                && !inner.exchanges.receiving()
    }

    /// Sends `request` to a namespace; it comes back to slot `slot`.
    #[inline]
    pub(crate) fn start_request(
        &self,
        queue: &Rc<dyn namespace::Queue>,
        slot: u32,
        mut request: Box<Request>,
    ) {
        request.push(self.me(), u64::from(slot));
        self.running.set(self.running.get() + 1);
        queue.submit(request);
    }

    /// The same for an admin command.
    pub(crate) fn start_admin_request(
        &self,
        queue: &Rc<dyn namespace::Queue>,
        slot: u32,
        mut request: Box<Request>,
    ) {
        request.push(self.me(), u64::from(slot));
        self.running.set(self.running.get() + 1);
        queue.submit_admin(request);
    }

    /// Completes an Asynchronous Event Request that the controller held.
    pub(crate) fn complete_held(&self, cid: u16, status: Status, result: u64) {
        if self.closed.get() {
            return;
        }
        {
            let mut inner = self.inner.borrow_mut();
            let inner = &mut *inner;
            if let Some(slot) = inner.exchanges.find(cid, Stage::Running) {
                self.respond(inner, slot, status, result, Payload::None);
            }
        }
        self.defer();
    }

    /// One turn: with `receive`, the socket is read first. Returns whether anything moved.
    fn turn(&self, receive: bool) -> bool {
        if self.closed.get() {
            return false;
        }
        self.in_turn.set(true);
        let outcome = self.turn_within(&mut self.inner.borrow_mut(), receive);
        self.in_turn.set(false);
        match outcome {
            _ if self.closed.get() => self.tear_down(),
            Ok(progress) => return progress,
            Err(error) => {
                tracing::debug!(%error, "connection ends");
                self.ends(End::Failed(error.kind()));
                self.close();
            }
        }
        true
    }

    fn turn_within(&self, inner: &mut Inner, receive: bool) -> io::Result<bool> {
        let mut progress = false;
        progress |= self.flush(inner)?;
        if receive && !inner.closing && !self.wants_to_move(inner) && !self.is_held_back(inner) {
            progress |= self.receive(inner)?;
            if self.closed.get() {
                return Ok(true);
            }
        }
        loop {
            progress |= self.finish_done(inner);
            progress |= self.flush(inner)?;
            if inner.closing {
                if !self.part(inner) {
                    break;
                }
                continue;
            }
            if self.may_retry(inner) && self.is_abandoned() {
                return Err(self.closed_by_peer());
            }
            // What waits came long ago, perhaps.
            if self.may_retry(inner) && self.is_out_of_time(inner) {
                return Ok(true);
            }
            if !self.retry_share(inner) {
                break;
            }
        }
        if inner.output.is_none() {
            if inner.closing && inner.parting.is_none() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if !inner.closing {
                self.move_home(inner);
            }
        } else if inner.closing && self.close_timer.get().is_none() {
            let reactor = &self.core.reactor;
            let timer = reactor.timer(reactor.now() + CLOSE_TIMEOUT, self.me(), TOKEN_CLOSE);
            self.close_timer.set(Some(timer));
        }
        Ok(progress)
    }

    /// Gives the socket what is queued.
    fn flush(&self, inner: &mut Inner) -> io::Result<bool> {
        let Some(output) = &mut inner.output else { return Ok(false) };
        let mut spare = self.core.spare.borrow_mut();
        let exchanges = &mut inner.exchanges;
        let flushed = output.flush(&self.stream, &mut spare, |slot, _payload| {
            if slot != crate::exchange::NONE {
                exchanges.end(slot);
            }
        })?;
        self.note_unread(output.heap_bytes(), flushed != Flushed::Blocked(false));
        if flushed == Flushed::All {
            spare.put(inner.output.take().expect("just flushed"));
        }
        Ok(flushed != Flushed::Blocked(false))
    }

    /// Queues `bytes` that answer no command.
    pub(crate) fn send(&self, inner: &mut Inner, bytes: &[u8]) {
        let mut spare = self.core.spare.borrow_mut();
        let output = inner.output.get_or_insert_with(|| spare.take());
        output.bytes(bytes, &mut spare);
        output.hold(crate::exchange::NONE, Payload::None);
    }

    /// Finishes what came back from the namespaces.
    fn finish_done(&self, inner: &mut Inner) -> bool {
        let mut progress = false;
        loop {
            if self.done.borrow().is_empty() {
                return progress;
            }
            let mut done = self.done.take();
            progress = true;
            for (slot, request) in done.drain(..) {
                self.finished(inner, slot, request);
            }
            // Keeps the vector's memory.
            let mut now = self.done.borrow_mut();
            if now.is_empty() {
                *now = done;
            }
        }
    }

    /// Arranges for a turn at the end of the reactor's.
    pub(crate) fn defer(&self) {
        if !self.deferred.replace(true) {
            self.core.reactor.defer(self.me(), TOKEN_DEFERRED);
        }
    }

    /// Commands wait for memory: be told when some is free.
    pub(crate) fn wait_for_buffers(&self, inner: &mut Inner) {
        if !inner.waits_for_buffers {
            inner.waits_for_buffers = true;
            self.core.buffer_waiters.set(self.core.buffer_waiters.get() + 1);
            self.core.reactor.buffers().wait(self.me(), TOKEN_BUFFERS);
            self.core.watch_stalls();
        }
    }

    /// It is told of memory no more: or those behind would wait for that.
    fn leave_line(&self, inner: &mut Inner) {
        if inner.waits_for_buffers {
            let me: Rc<dyn Complete> = self.me();
            self.core.reactor.buffers().stop_waiting(&me, TOKEN_BUFFERS);
        }
        self.waits_no_more(inner);
    }

    fn waits_no_more(&self, inner: &mut Inner) {
        if std::mem::take(&mut inner.waits_for_buffers) {
            self.core.buffer_waiters.set(self.core.buffer_waiters.get() - 1);
        }
    }

    /// Whether commands wait for the pool, and whether the peer sits on memory of it.
    pub(crate) fn memory_state(&self) -> (bool, bool) {
        let mut inner = self.inner.borrow_mut();
        (inner.waits_for_buffers, inner.exchanges.stalled())
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
        let me = self.me();
        let (blocked, deaf) = {
            let mut inner = self.inner.borrow_mut();
            if inner.stash.is_empty() {
                // An idle connection holds no memory.
                inner.stash.shrink_to(0);
            }
            let held_back = self.is_held_back(&inner);
            if inner.stash_unseen && !held_back && !inner.closing {
                return false;
            }
            (inner.output.is_some(), inner.closing || held_back)
        };
        if blocked && self.watches[1].get().is_none() {
            let watch = self.core.reactor.watch(
                self.stream.as_raw_fd(),
                Interest::WRITE,
                me.clone(),
                TOKEN_WRITABLE,
            );
            self.watches[1].set(Some(watch));
        }
        // What a peer says that is told to go is not read any more.
        if !deaf && self.watches[0].get().is_none() {
            let watch = self.core.reactor.watch(
                self.stream.as_raw_fd(),
                Interest::READ,
                me,
                TOKEN_READABLE,
            );
            self.watches[0].set(Some(watch));
        }
        true
    }
}

impl Complete for Connection {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        match token {
            TOKEN_READABLE => self.watches[0].set(None),
            TOKEN_WRITABLE => self.watches[1].set(None),
            TOKEN_CLOSE => {
                self.close_timer.set(None);
                self.close();
                return;
            }
            TOKEN_DEFERRED => {
                self.deferred.set(false);
                if self.closed.get() && self.running.get() == 0 {
                    for (_, request) in self.done.take() {
                        self.core.recycle(request);
                    }
                    self.core.lingers_no_more(self.key);
                    return;
                }
                self.turn(false);
                let idle = {
                    let inner = self.inner.borrow();
                    inner.output.is_none()
                        && (self.is_held_back(&inner) || self.watches[0].get().is_some())
                };
                if self.closed.get() || idle {
                    return;
                }
                // The socket took not all, or may be read again: the poller has to see to it.
            }
            TOKEN_BUFFERS => {
                // What waits came long ago, perhaps: this may be the first that runs after that.
                self.core.pulse();
                if self.closed.get() {
                    return;
                }
                if self.is_abandoned() {
                    self.ends(End::Closed);
                    self.close();
                    return;
                }
                {
                    let mut inner = self.inner.borrow_mut();
                    self.waits_no_more(&mut inner);
                    if inner.closing {
                        return;
                    }
                    inner.is_served = true;
                    self.retry_waiting(&mut inner);
                    inner.is_served = false;
                }
                self.defer();
                return;
            }
            _ => unreachable!("tokens are ours"),
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
            if let Data::Sources(_) = request.data {
                // It may be the last to hold a queue, which is not dropped from within its own call.
                self.done.borrow_mut().push((state as u32, request));
            } else {
                self.core.recycle(request);
            }
            self.drained();
            return;
        }
        self.done.borrow_mut().push((state as u32, request));
        if !self.in_turn.get() {
            self.defer();
        }
    }
}
