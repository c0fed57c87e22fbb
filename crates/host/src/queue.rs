//! One core's way to a remote namespace: an I/O queue's connection on the core's own reactor.
//!
//! ```text
//!   submit --> Connection: slot by CID --send queue--> one writev per turn --> socket
//!   complete <-- done <-- Connection <-- nvme_tcp machine <-- recv (large data: into its buffer)
//!                               '--> the ring, for data that is pages of the kernel (`pages`)
//!
//!   lost:  never sent             HOST_ABORTED, at once
//!          changes nothing        HOST_PATHING_ERROR, at once
//!          its pages refused      DATA_TRANSFER_ERROR, not to be retried
//!          others                 HOST_PATHING_ERROR, once the old connection is surely dead (`old`)
//! ```
//!
//! The control thread makes the TCP connection and hands it over ([`Handle::give`]); the queue
//! initializes it, sends Connect, proves who this host is if the controller wants to know (`authenticate`), and is usable from then on. When it dies, the control thread is
//! told, and resets the whole controller.

mod admin;
mod authenticate;
mod connection;
pub mod copy;
mod elsewhere;
mod ending;
mod front;
mod left_out;
mod old;
mod pages;
mod params;
mod receive;
mod send;
mod slot;

use crate::control::{Control, Driver};
use crate::path::Path;
use crate::shared::{Counters, Shared};
use admin::Admins;
use association::{Event, Traffic};
use connection::{Connection, Lost, Received};
pub(crate) use front::PathQueue;
use left_out::LeftOut;
use namespace::{Access, AccessWatcher, Request};
use nvme::Status;
use old::Old;
pub(crate) use params::Params;
use reactor::{Complete, Mailbox, Poll, PollerId, Reactor, Stream};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The receive buffer that the queues of one core share.
const RECEIVE_BYTES: usize = 256 * 1024;

/// From one look at an old connection to the next.
const OLD_INTERVAL: Duration = Duration::from_millis(10);

/// After an Abort was asked for, its command has so long, or the I/O timeout if that is shorter.
const ABORT_WAIT: Duration = Duration::from_secs(5);

const TOKEN_DEFERRED: u64 = 0;
const TOKEN_SCAN: u64 = 1;
const TOKEN_OLD: u64 = 2;
const TOKEN_LEFT_OUT: u64 = 3;

thread_local! {
    static QUEUES: RefCell<HashMap<u64, Weak<IoQueue>>> = RefCell::default();
    static RECEIVE_BUFFER: RefCell<Weak<ReceiveBuffer>> = const { RefCell::new(Weak::new()) };
}

/// A connection that was closed by the controller sooner than this was not closed because nobody used it.
const RESTED: Duration = Duration::from_secs(1);

/// Whether the peer has closed a connection on which it has nothing to say yet.
fn has_ended(socket: &OwnedFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    // What is no data is not the end (`reactor::pass_record`).
    !matches!(rustix::net::recv(socket, &mut [0u8; 1][..], flags), Err(Errno::AGAIN | Errno::IO))
}

/// Requests on their way back.
type Requests = Vec<Box<Request>>;

type ReceiveBuffer = RefCell<Box<[u8]>>;

/// A TCP connection for queue id `queue`, made at `dialed`.
#[derive(Debug)]
pub(crate) struct NewConnection {
    pub(crate) queue: u16,
    pub(crate) params: Arc<Params>,
    pub(crate) socket: OwnedFd,
    pub(crate) dialed: Instant,
}

/// What the core has yet to take over. Not in a letter: a core that is not driven for long would hold one
/// more descriptor with every association.
type Given = Arc<Mutex<Option<NewConnection>>>;

/// Reaches a queue from other threads.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    mailbox: Mailbox,
    key: u64,
    given: Given,
}

impl Handle {
    /// Names the queue in the process.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Hands a connection over, in place of one that was not taken.
    pub(crate) fn give(&self, connection: NewConnection) {
        drop(self.take());
        *self.given.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        self.tell(|queue| {
            if let Some(connection) = queue.handle.take() {
                queue.begin(connection);
            }
        });
    }

    /// What was handed over and not taken.
    pub(crate) fn take(&self) -> Option<NewConnection> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Calls `work` on the queue's core, unless the queue is gone.
    pub(crate) fn tell(&self, work: impl FnOnce(&IoQueue) + Send + 'static) {
        let key = self.key;
        self.mailbox.post(move |_| {
            let queue = QUEUES.with_borrow(|queues| queues.get(&key).and_then(Weak::upgrade));
            if let Some(queue) = queue {
                work(&queue);
            }
        });
    }
}

/// The queue itself; its reactor holds it too.
pub(crate) struct IoQueue {
    me: Weak<IoQueue>,
    handle: Handle,
    path: u64,
    control: Arc<Control>,
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    counters: Arc<Counters>,
    receive_buffer: Rc<ReceiveBuffer>,
    inner: RefCell<Inner>,
    /// Requests to be completed when nothing is borrowed.
    done: RefCell<Requests>,
    /// Admin commands that the control thread has.
    admins: Admins,
    poller: Cell<Option<PollerId>>,
    watcher: RefCell<Option<Weak<dyn AccessWatcher>>>,
    /// Connect has succeeded.
    live: Cell<bool>,
    left_out: LeftOut,
    /// A command was refused because of the ANA state; the control thread looks into it.
    suspect: Cell<bool>,
    in_turn: Cell<bool>,
    deferred: Cell<bool>,
    scanning: Cell<bool>,
    /// When that was to be.
    scan_due: Cell<Instant>,
    closed: Cell<bool>,
}

#[derive(Default)]
struct Inner {
    connection: Option<Connection>,
    /// Connections that were given up and may still be alive at the other end.
    old: Vec<Old>,
    /// Requests for which the queue has no room.
    waiting: VecDeque<Box<Request>>,
}

impl IoQueue {
    /// A queue on this thread's reactor, of the path with number `path`, which `owner` keeps; the
    /// control thread will connect it. It is counted already ([`Shared::reserve`]).
    pub(crate) fn open(
        control: &Arc<Control>,
        path: u64,
        shared: &Arc<Shared>,
        reactor: &Rc<Reactor>,
        owner: Option<Arc<Path>>,
    ) -> Rc<PathQueue> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        let receive_buffer = RECEIVE_BUFFER.with_borrow_mut(|shared| {
            shared.upgrade().unwrap_or_else(|| {
                let buffer = Rc::new(RefCell::new(vec![0; RECEIVE_BYTES].into_boxed_slice()));
                *shared = Rc::downgrade(&buffer);
                buffer
            })
        });
        let handle = Handle { mailbox: reactor.mailbox(), key, given: Arc::default() };
        let io = Rc::new_cyclic(|me| IoQueue {
            me: me.clone(),
            handle: handle.clone(),
            path,
            control: Arc::clone(control),
            shared: Arc::clone(shared),
            reactor: Rc::clone(reactor),
            counters: shared.new_counters(),
            receive_buffer,
            inner: RefCell::default(),
            done: RefCell::default(),
            admins: Admins::default(),
            poller: Cell::new(None),
            watcher: RefCell::new(None),
            live: Cell::new(false),
            left_out: LeftOut::default(),
            suspect: Cell::new(false),
            in_turn: Cell::new(false),
            deferred: Cell::new(false),
            scanning: Cell::new(false),
            scan_due: Cell::new(reactor.now()),
            closed: Cell::new(false),
        });
        QUEUES.with_borrow_mut(|queues| queues.insert(key, Rc::downgrade(&io)));
        control.with(path, move |driver| driver.queue_opened(handle));
        Rc::new(PathQueue { io, _path: owner })
    }

    fn me(&self) -> Rc<IoQueue> {
        self.me.upgrade().expect("a queue that runs is held")
    }

    #[inline]
    fn access(&self) -> Access {
        let access = self.shared.access_for_new();
        if !self.live.get() {
            access.max(self.left_out.access())
        } else if self.suspect.get() {
            access.max(Access::Inaccessible)
        } else {
            access
        }
    }

    #[inline]
    fn submit(&self, request: Box<Request>) {
        if !self.live.get() && elsewhere::may_go(&request, self.shared.access()) {
            return self.flush_elsewhere(request);
        }
        self.submit_here(request);
    }

    /// By this queue's own connection.
    #[inline]
    pub(crate) fn submit_here(&self, request: Box<Request>) {
        let refused = {
            let mut inner = self.inner.borrow_mut();
            let Inner { connection, waiting, .. } = &mut *inner;
            match connection {
                Some(connection) if self.live.get() => {
                    if waiting.is_empty() && connection.has_room() {
                        connection.start(request, self.reactor.now()).err()
                    } else {
                        waiting.push_back(request);
                        None
                    }
                }
                _ => Some((request, Status::HOST_ABORTED)),
            }
        };
        Counters::add(&self.counters.submitted, 1);
        Counters::add(&self.counters.in_flight, 1);
        if let Some((mut request, status)) = refused {
            (request.status, request.result) = (status, 0);
            self.done.borrow_mut().push(request);
        } else if !self.scanning.get() {
            self.scan_later();
        }
        if !self.in_turn.get() {
            self.defer();
        }
    }

    /// Arranges for a turn at the end of the reactor's.
    #[inline]
    fn defer(&self) {
        if !self.deferred.replace(true) {
            self.reactor.defer(self.me(), TOKEN_DEFERRED);
        }
    }

    fn begin(&self, connection: NewConnection) {
        let NewConnection { queue, params, socket, dialed } = connection;
        if self.closed.get() {
            return;
        }
        // The controller does not wait for Connect as long as this core may rest.
        if dialed.elapsed() >= RESTED && has_ended(&socket) {
            let generation = params.generation;
            return self.tell_control(move |driver| driver.connect_again(generation, queue));
        }
        let stream = match Stream::try_from(socket) {
            Ok(stream) => stream,
            Err(error) => {
                return self.tell_lost(params.generation, queue, crate::dial::words(&error));
            }
        };
        let newer = self.inner.borrow().connection.as_ref().map(|it| it.generation());
        match newer {
            // The control thread's newest word counts; this one was overtaken.
            Some(generation) if generation >= params.generation => return,
            Some(_) => self.lose(Lost::ours("replaced"), false),
            None => {}
        }
        let now = self.reactor.now();
        let connection = Connection::new(queue, &params, stream, self.me.clone(), now);
        self.inner.borrow_mut().connection = Some(connection);
        match self.poller.get() {
            Some(poller) => self.reactor.activate(poller),
            None => self.poller.set(Some(self.reactor.attach(self.me()))),
        }
        self.scan_later();
    }

    /// The association `generation` has ended.
    pub(crate) fn hang_up(&self, generation: u64) {
        let ours = self.inner.borrow().connection.as_ref().map(|it| it.generation());
        if ours == Some(generation) {
            self.lose(Lost::ours("the association ended"), false);
            self.deliver();
        }
    }

    /// The control thread has news of the path, which was not usable when they were written if `withheld`. By now it may
    /// be again, with another id.
    pub(crate) fn access_changed(&self, withheld: bool) {
        self.suspect.set(false);
        self.tell_watcher();
        // What waits here for a path that is let go is sent yet.
        if withheld || self.shared.access() >= Access::Inaccessible {
            self.give_back();
        }
    }

    /// Whether it was live before.
    fn set_live(&self, live: bool) -> bool {
        let before = self.live.replace(live);
        if before != live {
            self.shared.note_live(live);
        }
        if live {
            self.left_out.end(&self.reactor);
        }
        before
    }

    fn tell_watcher(&self) {
        let watcher = self.watcher.borrow().as_ref().and_then(Weak::upgrade);
        if let Some(watcher) = watcher {
            watcher.access_changed();
        }
    }

    fn tell_lost(&self, generation: u64, queue: u16, words: String) {
        self.tell_control(move |driver| {
            driver.event(generation, Event::QueueLost(queue, words));
        });
    }

    fn tell_control(&self, work: impl FnOnce(&Driver) + Send + 'static) {
        self.control.with(self.path, work);
    }

    /// The connection is of no use any more: completes what may be, keeps the rest until the old
    /// connection is dead, and with `tell` has the controller reset.
    fn lose(&self, mut lost: Lost, tell: bool) {
        let now = self.reactor.now();
        let (generation, queue) = {
            let mut inner = self.inner.borrow_mut();
            let Some(mut connection) = inner.connection.take() else { return };
            let mut done = self.done.borrow_mut();
            connection.params.end();
            connection.link.judge(&mut lost);
            let held = connection.abandon(&lost, &mut done);
            for mut request in inner.waiting.drain(..) {
                request.status = Status::HOST_ABORTED;
                done.push(request);
            }
            let whose = (connection.generation(), connection.queue());
            let params = Arc::clone(&connection.params);
            let link = connection.into_link(&self.reactor);
            if let Some(old) = Old::new(link, held, now, &params, &lost) {
                if inner.old.is_empty() {
                    self.reactor.timer(now + OLD_INTERVAL, self.me(), TOKEN_OLD);
                }
                inner.old.push(old);
            }
            whose
        };
        self.suspect.set(false);
        if self.set_live(false) {
            self.tell_watcher();
        }
        if !self.done.borrow().is_empty() {
            self.defer();
        }
        if tell {
            self.tell_lost(generation, queue, lost.words);
        }
    }

    /// Completes what is done. Nothing may be borrowed: completions may submit.
    fn deliver(&self) {
        if self.done.borrow().is_empty() {
            return;
        }
        let mut done = self.done.take();
        let count = done.len() as u64;
        let failed = done.iter().filter(|request| is_path_error(request.status)).count() as u64;
        Counters::add(&self.counters.in_flight, count.wrapping_neg());
        if failed != 0 {
            Counters::add(&self.counters.errors, failed);
        }
        for request in done.drain(..) {
            request.complete();
        }
        // Keeps the vector's memory. What came meanwhile has a turn of its own.
        let mut now = self.done.borrow_mut();
        if now.is_empty() {
            *now = done;
        } else {
            self.defer();
        }
    }

    /// One turn: with `receive`, the socket is read first. Returns whether anything moved.
    fn turn(&self, receive: bool) -> bool {
        if self.closed.get() {
            return false;
        }
        self.in_turn.set(true);
        let mut progress = false;
        let outcome = self.turn_within(receive, &mut progress);
        if let Err(lost) = outcome {
            self.lose(lost, true);
            progress = true;
        }
        self.deliver();
        self.in_turn.set(false);
        // What completions have submitted goes with this turn.
        let outcome = match &mut self.inner.borrow_mut().connection {
            Some(connection) if connection.has_unsent() => connection.flush(&self.reactor),
            _ => Ok(false),
        };
        if let Err(lost) = outcome {
            self.lose(lost, true);
        }
        progress
    }

    fn turn_within(&self, receive: bool, progress: &mut bool) -> Result<(), Lost> {
        let mut inner = self.inner.borrow_mut();
        let Inner { connection, waiting, .. } = &mut *inner;
        let Some(connection) = connection else { return Ok(()) };
        let mut answered = false;
        if connection.link.moved.take() {
            let (moved, received) = connection.moved(&mut self.done.borrow_mut())?;
            *progress |= moved;
            answered |= received;
        }
        *progress |= connection.flush(&self.reactor)?;
        if receive {
            let mut buffer = self.receive_buffer.borrow_mut();
            let mut done = self.done.borrow_mut();
            let received = connection.receive(&mut buffer, &mut done, &self.reactor)?;
            *progress |= received;
            answered |= received;
        }
        let work = match connection.is_live() {
            true => None,
            false => connection.authenticate(self.reactor.now())?,
        };
        let (became_live, ana_status) = connection.take_news();
        while !waiting.is_empty() && connection.has_room() && connection.is_live() {
            let request = waiting.pop_front().expect("just seen");
            if let Err((mut request, status)) = connection.start(request, self.reactor.now()) {
                (request.status, request.result) = (status, 0);
                self.done.borrow_mut().push(request);
            }
        }
        *progress |= connection.flush(&self.reactor)?;
        if connection.take_late_answers() {
            connection.finish_answered(&mut self.done.borrow_mut());
        }
        self.note_received(&mut connection.received);
        let sent = std::mem::take(&mut connection.started);
        if self.live.get() {
            self.shared.note_traffic(Traffic { sent, answered });
        }
        let generation = connection.generation();
        drop(inner);
        if let Some(work) = work {
            self.compute(generation, work);
        }
        if ana_status && !self.suspect.replace(true) {
            self.tell_control(move |driver| {
                driver.event(generation, Event::AnaStatus);
            });
            self.tell_watcher();
        }
        if became_live {
            self.set_live(true);
            self.tell_watcher();
            self.tell_control(move |driver| driver.event(generation, Event::QueueLive));
        }
        Ok(())
    }

    #[inline]
    fn note_received(&self, received: &mut Received) {
        let Received { direct, copied } = std::mem::take(received);
        if direct | copied != 0 {
            Counters::add(&self.counters.received_direct, direct);
            Counters::add(&self.counters.received_copied, copied);
        }
    }

    /// Has commands looked through for those that take too long.
    fn scan_later(&self) {
        if self.scanning.replace(true) {
            return;
        }
        let timeout = self.shared.options.io_timeout;
        let interval = (timeout / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let due = self.reactor.now() + interval;
        self.scan_due.set(due);
        self.reactor.timer(due, self.me(), TOKEN_SCAN);
    }

    fn scan(&self) {
        self.scanning.set(false);
        let now = self.reactor.now();
        // Nobody drove this core so long: there may be answers, and capsules that have yet to be sent.
        let paused = now.saturating_duration_since(self.scan_due.get());
        let mut late = Vec::new();
        let busy = match &mut self.inner.borrow_mut().connection {
            Some(connection) => connection.scan(now, paused, |cid, again| late.push((cid, again))),
            None => Ok(false),
        };
        match busy {
            Err(lost) => {
                self.lose(lost, true);
                self.deliver();
            }
            Ok(busy) => {
                if busy {
                    self.scan_later();
                }
                // Identifiers may have come free for those that wait.
                self.defer();
                let inner = self.inner.borrow();
                let Some(connection) = &inner.connection else { return };
                let (generation, queue) = (connection.generation(), connection.queue());
                for (cid, again) in late {
                    let peer = self.shared.address();
                    tracing::warn!(%peer, queue, cid, again, "a command takes too long");
                    self.tell_control(move |driver| {
                        driver.event(generation, Event::IoTimeout { queue, cid, again });
                    });
                }
            }
        }
    }

    /// Looks which old connections are dead by now.
    fn look_at_old(&self) {
        let now = self.reactor.now();
        {
            let mut inner = self.inner.borrow_mut();
            let mut done = self.done.borrow_mut();
            let mut buffer = self.receive_buffer.borrow_mut();
            inner.old.retain_mut(|old| !old.is_dead(now, &mut buffer, &mut done));
            if !inner.old.is_empty() {
                self.reactor.timer(now + OLD_INTERVAL, self.me(), TOKEN_OLD);
            }
        }
        self.deliver();
    }

    fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        if let Some(poller) = self.poller.take() {
            self.reactor.detach(poller);
        }
        let inner = self.inner.take();
        if let Some(connection) = inner.connection {
            let _ = connection.into_link(&self.reactor).stream.shutdown();
        }
        drop(self.handle.take());
        let key = self.handle.key();
        self.set_live(false);
        self.left_out.end(&self.reactor);
        let _ = QUEUES.try_with(|queues| queues.borrow_mut().remove(&key));
        self.shared.release();
        self.control.with(self.path, move |driver| driver.queue_closed(key));
    }
}

/// Whether a command came back because of its path: that failed it, or spoiled its data.
#[inline]
fn is_path_error(status: Status) -> bool {
    status.sct() == 3 || status.code() == Status::TRANSIENT_TRANSPORT
}

impl Poll for IoQueue {
    fn poll(&self) -> bool {
        self.turn(true)
    }

    fn park(&self) -> bool {
        match &self.inner.borrow().connection {
            Some(connection) => connection.park(&self.reactor),
            None => true,
        }
    }
}

impl Complete for IoQueue {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        if self.closed.get() {
            return;
        }
        match token {
            TOKEN_DEFERRED => {
                self.deferred.set(false);
                self.turn(false);
                let busy = self.inner.borrow().connection.as_ref().is_some_and(|it| it.is_busy());
                if let Some(poller) = self.poller.get()
                    && busy
                {
                    self.reactor.activate(poller);
                }
            }
            TOKEN_SCAN => self.scan(),
            TOKEN_OLD => self.look_at_old(),
            TOKEN_LEFT_OUT => self.left_out_for_long(),
            _ => unreachable!("tokens are ours"),
        }
    }
}

impl IoQueue {
    /// There may be something to do with the socket.
    fn activate(&self) {
        if let Some(poller) = self.poller.get() {
            self.reactor.activate(poller);
        }
    }

    /// The kernel has given back pages; `request` has waited for that since its connection was lost.
    fn pages_back(&self, request: Option<Box<Request>>) {
        self.done.borrow_mut().extend(request);
        if !self.closed.get() {
            self.defer();
            // Nobody watches the socket where the poller was parked while the ring read from it.
            self.activate();
        }
    }
}
