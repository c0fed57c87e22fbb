//! One core's world: its reactor, its connections, and what they share.

use crate::connection::Connection;
use crate::export::Exports;
use namespace::counters::{Counted, Counters};
use namespace::failures::Failures;
use namespace::output::Spare;
use namespace::{Data, Namespace, Queue, Request};
use nvme::Limits;
use reactor::{Complete, Mailbox, Reactor, Stream};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Receive buffer of a core, shared by its connections: what one `recv` may bring.
const RECEIVE_BYTES: usize = 256 * 1024;

/// Requests kept for reuse per core.
const REQUESTS_MAX: usize = 4096;

/// How long connections may take to finish what is in progress when the server stops.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections of a server; who comes then is hung up on.
pub(crate) const CONNECTIONS_MAX: usize = 1024;

/// Connections of a core in their handshake; of more, the oldest makes room.
const HANDSHAKES_MAX: usize = 128;

const TOKEN_STALLS: u64 = 0;
const TOKEN_STOP: u64 = 1;

thread_local! {
    static CORE: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// A volume under the name by which clients know it.
#[derive(Clone, Debug)]
pub struct Export {
    /// Its name, at most 4096 bytes; the first export is the one without a name too.
    pub name: String,
    /// Words for people, at most 4096 bytes; every client may read them.
    pub description: String,
    /// The volume, opened for as many cores as the server has.
    pub namespace: Arc<dyn Namespace>,
}

/// What clients have done, to be read from anywhere.
#[derive(Debug)]
pub struct Activity {
    /// By export, then by core.
    counters: Vec<Vec<Counters>>,
    pub(crate) connections: AtomicUsize,
}

impl Activity {
    pub(crate) fn new(exports: usize, cores: usize) -> Activity {
        let of_export = |_| (0..cores).map(|_| Counters::default()).collect();
        let counters = (0..exports).map(of_export).collect();
        Activity { counters, connections: AtomicUsize::new(0) }
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// What was done with each export, in the order in which the server was given them.
    pub fn exports(&self) -> impl Iterator<Item = Counted> + '_ {
        self.counters.iter().map(Counted::of)
    }
}

/// What all cores of a server share.
pub(crate) struct Shared {
    pub(crate) exports: Vec<Export>,
    pub(crate) mailboxes: OnceLock<Vec<Mailbox>>,
    pub(crate) activity: Arc<Activity>,
    /// What the log tells of each export.
    pub(crate) failures: Vec<Arc<Failures>>,
    /// Commands that volumes still had when the end did not wait any longer.
    pub(crate) given_up: AtomicU64,
    /// Time in which a peer that holds buffers must let one go, while others wait for any.
    pub(crate) stall_period: Duration,
}

impl Exports for Shared {
    fn count(&self) -> usize {
        self.exports.len()
    }

    fn name(&self, index: usize) -> &str {
        &self.exports[index].name
    }

    fn description(&self, index: usize) -> &str {
        &self.exports[index].description
    }

    fn limits(&self, index: usize) -> Limits {
        self.exports[index].namespace.limits()
    }
}

/// One core.
pub(crate) struct Core {
    pub(crate) reactor: Rc<Reactor>,
    pub(crate) shared: Arc<Shared>,
    /// Its place among the cores.
    index: usize,
    pub(crate) receive_buffer: RefCell<Box<[u8]>>,
    pub(crate) spare: RefCell<Spare>,
    #[expect(clippy::vec_box, reason = "requests travel as boxes: nothing is moved but a pointer")]
    requests: RefCell<Vec<Box<Request>>>,
    /// This core's ways to the exports, opened when first used.
    queues: RefCell<Vec<Option<Rc<dyn Queue>>>>,
    connections: RefCell<HashMap<u64, Rc<Connection>>>,
    next_connection: Cell<u64>,
    /// Connections in the order in which they came, those in their handshake among them.
    handshakes: RefCell<VecDeque<u64>>,
    stopping: Cell<bool>,
    /// Connections in the queue for buffers of the pool.
    pub(crate) buffer_waiters: Cell<u32>,
    /// Looks at who holds buffers are under way; so many were taken.
    stall_looks: Cell<Option<u32>>,
}

impl Core {
    /// The core that runs on this thread.
    ///
    /// # Panics
    /// On a thread that runs none.
    pub(crate) fn here() -> Rc<Core> {
        CORE.with(|core| core.borrow().clone()).expect("called on a core's thread")
    }

    /// Makes a core of this thread.
    pub(crate) fn install(index: usize, reactor: Rc<Reactor>, shared: Arc<Shared>) {
        let core = Rc::new(Core {
            reactor,
            queues: RefCell::new(vec![None; shared.exports.len()]),
            shared,
            index,
            receive_buffer: RefCell::new(vec![0; RECEIVE_BYTES].into_boxed_slice()),
            spare: RefCell::default(),
            requests: RefCell::default(),
            connections: RefCell::default(),
            next_connection: Cell::new(0),
            handshakes: RefCell::default(),
            stopping: Cell::new(false),
            buffer_waiters: Cell::new(0),
            stall_looks: Cell::new(None),
        });
        CORE.with(|here| *here.borrow_mut() = Some(core));
    }

    /// Takes the core off this thread, which is about to end.
    pub(crate) fn uninstall() {
        CORE.with(|here| here.borrow_mut().take());
    }

    /// This core's counters of an export.
    #[inline]
    pub(crate) fn counters(&self, export: usize) -> &Counters {
        &self.shared.activity.counters[export][self.index]
    }

    /// A request out of the pool, with nothing in it.
    #[inline]
    pub(crate) fn request(&self) -> Box<Request> {
        self.requests.borrow_mut().pop().unwrap_or_else(Request::new)
    }

    /// Takes a request back; its data is dropped.
    #[inline]
    pub(crate) fn recycle(&self, mut request: Box<Request>) {
        (request.data, request.os_error) = (Data::None, 0);
        if let Some(fused) = request.fused.take() {
            self.recycle(fused);
        }
        let mut requests = self.requests.borrow_mut();
        if requests.len() < REQUESTS_MAX {
            requests.push(request);
        }
    }

    /// This core's way to an export.
    pub(crate) fn queue(&self, export: usize) -> io::Result<Rc<dyn Queue>> {
        if let Some(queue) = &self.queues.borrow()[export] {
            return Ok(queue.clone());
        }
        let namespace = self.shared.exports[export].namespace.clone();
        let queue = namespace.open_queue(&self.reactor)?;
        self.queues.borrow_mut()[export] = Some(queue.clone());
        Ok(queue)
    }

    /// Serves a connection that was counted in `Shared::connections`.
    pub(crate) fn adopt(self: &Rc<Core>, socket: OwnedFd) {
        let stream = Stream::try_from(socket);
        let (false, Ok(stream)) = (self.stopping.get(), stream) else {
            self.shared.activity.connections.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        let key = self.next_connection.get();
        self.next_connection.set(key + 1);
        let connection = Connection::new(self.clone(), key, stream);
        self.connections.borrow_mut().insert(key, connection.clone());
        connection.start();
        self.limit_handshakes(key);
    }

    /// Whoever connects and says nothing is not to keep others out.
    fn limit_handshakes(&self, newest: u64) {
        let mut handshakes = self.handshakes.borrow_mut();
        handshakes.push_back(newest);
        if handshakes.len() <= HANDSHAKES_MAX {
            return;
        }
        let connection = |key: &u64| self.connections.borrow().get(key).cloned();
        handshakes.retain(|key| connection(key).is_some_and(|it| it.is_in_handshake()));
        if handshakes.len() > HANDSHAKES_MAX
            && let Some(oldest) = handshakes.pop_front().as_ref().and_then(connection)
        {
            drop(handshakes);
            oldest.close();
        }
    }

    pub(crate) fn remove_connection(&self, key: u64) {
        if self.connections.borrow_mut().remove(&key).is_some() {
            self.shared.activity.connections.fetch_sub(1, Ordering::Relaxed);
        }
        self.end_if_stopped();
    }

    fn all_connections(&self) -> Vec<Rc<Connection>> {
        self.connections.borrow().values().cloned().collect()
    }

    /// Somebody waits for memory of the pool: sees to it that nobody sits on it for long.
    #[cold]
    pub(crate) fn watch_stalls(&self) {
        if self.stall_looks.get().is_none() {
            self.stall_looks.set(Some(0));
            self.later(self.shared.stall_period, TOKEN_STALLS);
        }
    }

    fn later(&self, time: Duration, token: u64) {
        self.reactor.timer(self.reactor.now() + time, Core::here(), token);
    }

    /// Drops the connections whose peers hold memory and let none go for a whole period, as long
    /// as somebody waits. The first look only begins the period.
    fn look_for_stalls(&self) {
        let looks = self.stall_looks.get().unwrap_or(0);
        let connections = self.all_connections();
        let states: Vec<_> = connections.iter().map(|it| it.memory_state()).collect();
        if !states.iter().any(|(waits, _)| *waits) || self.stopping.get() {
            self.stall_looks.set(None);
            return;
        }
        for (connection, (_, stalls)) in connections.iter().zip(states) {
            if stalls && looks > 0 {
                tracing::warn!("dropping a client that holds buffers which others wait for");
                connection.close();
            }
        }
        self.stall_looks.set(Some(looks + 1));
        self.later(self.shared.stall_period, TOKEN_STALLS);
    }

    /// Lets every connection finish what is in progress, then ends the reactor.
    pub(crate) fn stop(&self) {
        self.stopping.set(true);
        for connection in self.all_connections() {
            connection.finish();
        }
        self.later(STOP_TIMEOUT, TOKEN_STOP);
        self.end_if_stopped();
    }

    /// What is not finished is not waited for.
    #[cold]
    fn give_up(&self) {
        let mut volumes = BTreeSet::new();
        for connection in self.all_connections() {
            let commands = connection.running_count();
            if commands > 0 {
                self.shared.given_up.fetch_add(commands.into(), Ordering::Relaxed);
                volumes.extend(connection.volume());
            }
            connection.close();
            // The volume may keep what it has for as long as it likes.
            connection.end();
        }
        for volume in volumes {
            let seconds = STOP_TIMEOUT.as_secs();
            tracing::warn!(volume, seconds, "still has commands of clients: they are given up");
        }
        self.end_if_stopped();
    }

    fn end_if_stopped(&self) {
        if self.stopping.get() && self.connections.borrow().is_empty() {
            self.queues.borrow_mut().clear();
            self.reactor.stop();
        }
    }
}

impl Complete for Core {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        match token {
            _ if result < 0 => {}
            TOKEN_STALLS => self.look_for_stalls(),
            TOKEN_STOP => self.give_up(),
            _ => unreachable!("tokens are ours"),
        }
    }
}
