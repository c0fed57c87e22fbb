//! One core's world: its reactor, connections, views, and what they share.

use crate::allocation::Questions;
use crate::connection::Connection;
use crate::control::Control;
use crate::journal::{End, Journal};
use crate::pause::Pulse;
use crate::view::{NamespaceView, SubsystemView};
use namespace::copy::Sources;
use namespace::layer::delay::Delays;
use namespace::output::Spare;
use namespace::{Data, Request};
use reactor::{Complete, Mailbox, Reactor};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use subsystem::{ControllerId, PortId};

/// Receive buffer of a core, shared by its connections: what one `recv` may bring.
pub(crate) const RECEIVE_BYTES: usize = 256 * 1024;

/// Time in which a peer that holds buffers must let one go, while others wait for any.
const STALL_PERIOD: Duration = Duration::from_secs(2);

/// How long a stop waits for what namespaces hold; then the reactor takes back what the kernel lets go.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(10);

const TOKEN_STALLS: u64 = 0;
const TOKEN_STOP: u64 = 1;
pub(crate) const TOKEN_PULSE: u64 = 2;

/// Requests kept for reuse per core.
const REQUESTS_MAX: usize = 4096;

/// Lists of sources kept for reuse per core; of 128 ranges each takes some kilobytes.
const SOURCES_MAX: usize = 64;

/// Source ranges of Copies in progress of all connections of a core: with what layers below keep of each that is some tens of
/// MiB at most. A connection may hold as many as it leaves to others, and always one Copy: so there are 128 more for each.
const COPY_RANGES_MAX: usize = 1 << 16;

thread_local! {
    static CORE: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// The mailboxes of all cores, core 0 (the control core) first.
pub(crate) type Cores = Arc<OnceLock<Vec<Mailbox>>>;

/// What a closed connection has with namespaces.
pub(crate) struct Lingering {
    pub(crate) connection: Rc<Connection>,
    /// Where it is; they keep their queues until it is back.
    pub(crate) views: Vec<Rc<NamespaceView>>,
}

/// One core.
pub(crate) struct Core {
    pub(crate) index: usize,
    pub(crate) reactor: Rc<Reactor>,
    pub(crate) journal: Rc<Journal>,
    pub(crate) receive_buffer: RefCell<Box<[u8]>>,
    pub(crate) spare: RefCell<Spare>,
    pub(crate) subsystems: RefCell<HashMap<Arc<str>, Rc<SubsystemView>>>,
    /// Only on the control core.
    pub(crate) control: OnceCell<Rc<Control>>,
    #[expect(clippy::vec_box, reason = "requests travel as boxes: nothing is moved but a pointer")]
    requests: RefCell<Vec<Box<Request>>>,
    #[expect(clippy::vec_box, reason = "sources travel as boxes too")]
    sources: RefCell<Vec<Box<Sources>>>,
    /// Source ranges that requests hold, until they are back.
    copy_ranges: Cell<usize>,
    connections: RefCell<HashMap<u64, Rc<Connection>>>,
    next_connection: Cell<u64>,
    /// Closed connections of a controller whose requests are still with namespaces.
    draining: RefCell<HashMap<ControllerId, u32>>,
    /// Namespaces that hold requests of closed connections, by the key of those: a queue is kept until
    /// all that it was given has come back, also if its namespace is removed meanwhile.
    pub(crate) lingering: RefCell<HashMap<u64, Lingering>>,
    cores: Cores,
    epoch: Instant,
    stopping: Cell<bool>,
    /// Counts what a stop has given up, on all cores.
    given_up: OnceCell<Arc<AtomicU64>>,
    /// Connections in the queue for buffers of the pool.
    pub(crate) buffer_waiters: Cell<u32>,
    /// Bytes of answers that are not read ([`crate::answers`]).
    pub(crate) answer_bytes: Cell<usize>,
    /// Looks at who holds buffers are under way; so many were taken.
    stall_looks: Cell<Option<u32>>,
    /// Questions for what namespaces store.
    pub(crate) questions: Questions,
    /// When it was last seen to run.
    pub(crate) pulse: Pulse,
    /// Ports whose commands are held back.
    delays: RefCell<Vec<(PortId, Delays)>>,
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
    pub(crate) fn install(
        index: usize,
        reactor: Rc<Reactor>,
        cores: Cores,
        epoch: Instant,
    ) -> Rc<Core> {
        let core = Rc::new(Core {
            index,
            journal: Journal::new(&reactor),
            reactor,
            receive_buffer: RefCell::new(vec![0; RECEIVE_BYTES].into_boxed_slice()),
            spare: RefCell::default(),
            subsystems: RefCell::default(),
            control: OnceCell::new(),
            requests: RefCell::default(),
            sources: RefCell::default(),
            copy_ranges: Cell::new(0),
            connections: RefCell::default(),
            next_connection: Cell::new(0),
            draining: RefCell::default(),
            lingering: RefCell::default(),
            cores,
            epoch,
            stopping: Cell::new(false),
            given_up: OnceCell::new(),
            buffer_waiters: Cell::new(0),
            answer_bytes: Cell::new(0),
            stall_looks: Cell::new(None),
            questions: Questions::default(),
            pulse: Pulse::default(),
            delays: RefCell::default(),
        });
        CORE.with(|here| *here.borrow_mut() = Some(core.clone()));
        core
    }

    /// Takes the core off this thread, which is about to end.
    pub(crate) fn uninstall() {
        let core = CORE.with(|here| here.borrow_mut().take());
        // What has not come back by now never will, and would keep its connection.
        if let Some(core) = core {
            let lingering = core.lingering.take();
            drop(lingering);
        }
    }

    /// Time since the server's epoch, as of this turn of the loop.
    pub(crate) fn now(&self) -> Duration {
        self.reactor.now().saturating_duration_since(self.epoch)
    }

    /// The instant at `time` since the epoch.
    pub(crate) fn instant(&self, time: Duration) -> Instant {
        self.epoch + time
    }

    /// Number of cores.
    pub(crate) fn core_count(&self) -> usize {
        self.cores.get().map_or(1, Vec::len)
    }

    /// Runs `work` on core `index`, later. `false` if that core has stopped.
    ///
    /// Cores rely on each other's letters. Their number is bounded by the connections and by the
    /// entries of their queues.
    pub(crate) fn post(&self, index: usize, work: impl FnOnce(&Core) + Send + 'static) -> bool {
        let Some(cores) = self.cores.get() else { return false };
        cores[index].post_counted(move |_reactor| work(&Core::here()))
    }

    /// Runs `work` on the control core, later.
    pub(crate) fn post_control(&self, work: impl FnOnce(&Control) + Send + 'static) -> bool {
        self.post(0, move |core| {
            work(core.control.get().expect("core 0 is the control core"));
        })
    }

    /// A request out of the pool, with nothing in it.
    #[inline]
    pub(crate) fn request(&self) -> Box<Request> {
        self.requests.borrow_mut().pop().unwrap_or_else(Request::new)
    }

    /// Takes a request back; its data is dropped.
    #[inline]
    pub(crate) fn recycle(&self, mut request: Box<Request>) {
        if let Data::Sources(_) = request.data {
            self.recycle_sources(&mut request);
        }
        request.data = Data::None;
        (request.timeout_ms, request.os_error) = (0, 0);
        if let Some(fused) = request.fused.take() {
            self.recycle(fused);
        }
        let mut requests = self.requests.borrow_mut();
        if requests.len() < REQUESTS_MAX {
            requests.push(request);
        }
    }

    /// Room for the sources of a Copy, with none in it.
    pub(crate) fn sources(&self) -> Box<Sources> {
        self.sources.borrow_mut().pop().unwrap_or_default()
    }

    /// Source ranges that Copies may hold beside those in progress.
    pub(crate) fn copy_ranges_free(&self) -> usize {
        COPY_RANGES_MAX.saturating_sub(self.copy_ranges.get())
    }

    /// Has a request carry `sources`, until it comes back to be recycled.
    pub(crate) fn hold_sources(&self, request: &mut Request, sources: Box<Sources>) {
        self.copy_ranges.update(|held| held + sources.ranges.len());
        request.data = Data::Sources(sources);
    }

    #[cold]
    fn recycle_sources(&self, request: &mut Request) {
        let Data::Sources(mut sources) = std::mem::take(&mut request.data) else { return };
        // A Copy comes back with the ranges that it had.
        self.copy_ranges.update(|held| held - sources.ranges.len());
        sources.clear();
        let mut kept = self.sources.borrow_mut();
        if kept.len() < SOURCES_MAX {
            kept.push(sources);
        }
    }

    /// The view of subsystem `nqn`, made if it is not there.
    pub(crate) fn subsystem(&self, nqn: &Arc<str>) -> Rc<SubsystemView> {
        self.subsystems.borrow_mut().entry(nqn.clone()).or_default().clone()
    }

    /// Whether commands that come through `port` are held back.
    #[inline]
    pub(crate) fn is_delayed(&self, port: PortId) -> bool {
        self.delays.borrow().iter().any(|(of, _)| *of == port)
    }

    /// How long those that come through `port` are held back.
    pub(crate) fn delay(&self, port: PortId) -> Delays {
        let delays = self.delays.borrow();
        delays.iter().find(|(of, _)| *of == port).map_or(Delays::default(), |(_, delays)| *delays)
    }

    /// Holds commands back that come through `port`; no delays: no longer.
    pub(crate) fn set_delay(&self, port: PortId, new: Delays) {
        let mut delays = self.delays.borrow_mut();
        delays.retain(|(of, _)| *of != port);
        if new != Delays::default() {
            delays.push((port, new));
        }
        for view in self.subsystems.borrow().values() {
            view.forget_delayed(port);
        }
    }

    /// Adds a connection under a new key.
    pub(crate) fn add_connection(
        &self,
        make: impl FnOnce(u64) -> io::Result<Rc<Connection>>,
    ) -> io::Result<u64> {
        if self.stopping.get() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let key = self.next_connection.get();
        self.next_connection.set(key + 1);
        let connection = make(key)?;
        self.connections.borrow_mut().insert(key, connection.clone());
        self.begin_pulse();
        connection.start();
        Ok(key)
    }

    pub(crate) fn remove_connection(&self, key: u64) {
        self.connections.borrow_mut().remove(&key);
    }

    pub(crate) fn has_connections(&self) -> bool {
        !self.connections.borrow().is_empty()
    }

    pub(crate) fn connection(&self, key: u64) -> Option<Rc<Connection>> {
        self.connections.borrow().get(&key).cloned()
    }

    /// The connection of an I/O queue.
    pub(crate) fn queue(&self, controller: ControllerId, queue_id: u16) -> Option<Rc<Connection>> {
        let connections = self.connections.borrow();
        connections.values().find(|it| it.is_queue(controller, queue_id)).cloned()
    }

    pub(crate) fn connection_count(&self) -> usize {
        self.connections.borrow().len()
    }

    /// Closes every connection that `which` picks.
    pub(crate) fn close_connections(&self, which: impl Fn(&Connection) -> bool) {
        self.connections(which).iter().for_each(|connection| connection.close());
    }

    /// Those that `which` picks.
    pub(crate) fn connections(&self, which: impl Fn(&Connection) -> bool) -> Vec<Rc<Connection>> {
        self.connections.borrow().values().filter(|it| which(it)).cloned().collect()
    }

    /// A closed connection of `controller` has requests out.
    pub(crate) fn drain_begins(&self, controller: ControllerId) {
        *self.draining.borrow_mut().entry(controller).or_default() += 1;
    }

    /// All of them are back.
    pub(crate) fn drain_ends(&self, controller: ControllerId) {
        let mut draining = self.draining.borrow_mut();
        let count = draining.get_mut(&controller).expect("it had begun");
        *count -= 1;
        if *count == 0 {
            draining.remove(&controller);
        }
    }

    /// Whether closed connections of any of `controllers` have requests out.
    pub(crate) fn is_draining(&self, controllers: &[ControllerId]) -> bool {
        let draining = self.draining.borrow();
        controllers.iter().any(|controller| draining.contains_key(controller))
    }

    /// Somebody waits for memory of the pool, or too much is unread: sees to it that nobody sits on it for long.
    #[cold]
    pub(crate) fn watch_stalls(&self) {
        if self.stall_looks.get().is_none() {
            self.stall_looks.set(Some(0));
            self.look_for_stalls_later();
        }
    }

    fn look_for_stalls_later(&self) {
        self.reactor.timer(self.reactor.now() + STALL_PERIOD, Core::here(), TOKEN_STALLS);
    }

    /// Drops the connections whose peers hold memory and let none go for a whole period, as long
    /// as somebody waits, and those whose peers read nothing, as long as too much is unread. The first look only begins
    /// the period.
    fn look_for_stalls(&self) {
        let looks = self.stall_looks.get().unwrap_or(0);
        let mut somebody_waits = false;
        let full = self.is_full_of_answers();
        let (mut stalled, mut unread) = (Vec::new(), Vec::new());
        for connection in self.connections.borrow().values() {
            let (waits, stalls) = connection.memory_state();
            somebody_waits |= waits;
            if stalls {
                stalled.push(connection.clone());
            }
            if connection.reads_nothing() && full {
                unread.push(connection.clone());
            }
        }
        if !(somebody_waits || full) || self.stopping.get() {
            self.stall_looks.set(None);
            return;
        }
        if looks > 0 {
            for connection in unread {
                connection.blame(End::Unread, &"it does not read its answers, which are too many");
                connection.close();
            }
            for connection in stalled.into_iter().filter(|_| somebody_waits) {
                connection.blame(End::Stalled, &"it holds buffers which others wait for");
                connection.close();
            }
        }
        self.stall_looks.set(Some(looks + 1));
        self.look_for_stalls_later();
    }

    /// Closes everything, waits until namespaces have carried out what they hold, and lets the reactor run dry. What takes
    /// too long is added to `given_up`.
    pub(crate) fn stop(&self, given_up: Arc<AtomicU64>) {
        if self.stopping.replace(true) {
            return;
        }
        let _ = self.given_up.set(given_up);
        self.journal.close();
        self.close_connections(|_| true);
        self.subsystems.borrow_mut().clear();
        let at = self.reactor.now() + STOP_TIMEOUT;
        self.reactor.timer(at, Core::here(), TOKEN_STOP);
        self.end_if_stopped();
    }

    /// All of a closed connection has come back.
    pub(crate) fn lingers_no_more(&self, key: u64) {
        let lingering = self.lingering.borrow_mut().remove(&key);
        drop(lingering);
        self.end_if_stopped();
    }

    fn end_if_stopped(&self) {
        if self.stopping.get() && self.lingering.borrow().is_empty() {
            self.reactor.stop();
        }
    }

    /// The rest is not waited for.
    #[cold]
    fn give_up(&self) {
        let lingering = self.lingering.borrow();
        let held = |it: &Lingering| u64::from(it.connection.running_count());
        if let Some(given_up) = self.given_up.get() {
            given_up.fetch_add(lingering.values().map(held).sum(), Ordering::Relaxed);
        }
        let views = lingering.values().flat_map(|it| &it.views);
        for volume in views.map(|view| view.namespace.uri()).collect::<BTreeSet<_>>() {
            let seconds = STOP_TIMEOUT.as_secs();
            tracing::warn!(volume, seconds, "still has commands of hosts: they are given up");
        }
        self.reactor.stop();
    }
}

impl Complete for Core {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        match token {
            _ if result < 0 => {}
            TOKEN_STALLS => self.look_for_stalls(),
            TOKEN_STOP => self.give_up(),
            TOKEN_PULSE => self.beat(),
            _ => unreachable!("tokens are ours"),
        }
    }
}
