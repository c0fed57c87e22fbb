//! The control core's part: listeners, the subsystems' state machine, and the admin queues.

use crate::authentication::PROOF_TIMEOUT;
use crate::connection::{Connection, FRESH_ENTRIES, Inner, Shared};
use crate::core::Core;
use crate::journal::{End, Subject, Why};
use crate::losses::Hosts;
use crate::report::Owner;
use crate::secure::{Handshakes, Keys};
use crate::takeover::Takeover;
use crate::trial::Trial;
use namespace::counters::{Counted, Counters};
use nvme::fabrics::ConnectData;
use nvme::{Command, Status, opcode};
use nvme_tcp::controller;
use reactor::{Complete, Interest, Listener, Stream, TimerId, WatchId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use subsystem::{Connected, ControllerId, Event, IoStatistics, PortId, Refusal, Reply, Target};
use zerocopy::FromBytes;

/// How long a connection may take until its Connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long accepting pauses when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TOKEN_EVENTS: u64 = 0;
const TOKEN_TIMEOUT: u64 = 1;
const TOKEN_HALF_OPEN: u64 = 2;
const TOKEN_UNPROVEN: u64 = 3;
const TOKEN_UNSECURED: u64 = 4;

/// Counters by subsystem and namespace id, one for each core.
type AllCounters = HashMap<(Arc<str>, u32), Vec<Arc<Counters>>>;

/// What the control core keeps.
pub(crate) struct Control {
    pub(crate) target: RefCell<Target>,
    core: Weak<Core>,
    me: Weak<Control>,
    controllers: RefCell<HashMap<ControllerId, Association>>,
    hosts: RefCell<Hosts>,
    listeners: RefCell<HashMap<PortId, Rc<Acceptor>>>,
    counters: RefCell<AllCounters>,
    /// Connections that have not sent Connect yet.
    half_open: Trial,
    /// Those whose hosts have yet to prove who they are.
    pub(crate) unproven: Trial,
    /// Handshakes of those that are to be encrypted.
    pub(crate) unsecured: Trial,
    pub(crate) handshakes: RefCell<Handshakes>,
    pub(crate) keys: Arc<Keys>,
    takeovers: RefCell<HashMap<u64, Rc<Takeover>>>,
    next_takeover: Cell<u64>,
    events_due: Cell<bool>,
    timer: Cell<Option<(Duration, TimerId)>>,
}

/// The connections of one controller.
struct Association {
    /// Key of the admin connection on the control core.
    admin: Option<u64>,
    shared: Arc<Shared>,
    nqn: Arc<str>,
    /// Whose it is.
    owner: Option<Owner>,
    /// Entries of its I/O queues, by queue id.
    entries: BTreeMap<u16, u16>,
    /// What was told of it.
    told: Told,
}

/// What people were told of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// Nothing: its host has yet to prove who it is.
    Nothing,
    Connected,
    Ended,
}

impl Association {
    fn new(nqn: &Arc<str>) -> Association {
        Association {
            admin: None,
            shared: Arc::default(),
            nqn: Arc::clone(nqn),
            owner: None,
            entries: BTreeMap::new(),
            told: Told::Nothing,
        }
    }
}

impl Association {
    fn tell_connected(&mut self, core: &Core) {
        if let Some(owner) = self.owner.as_ref().filter(|_| self.told == Told::Nothing) {
            self.told = Told::Connected;
            core.journal.connected(owner);
        }
    }
}

/// Whether headers and data of a connection have digests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digests {
    pub(crate) header: bool,
    pub(crate) data: bool,
}

impl Control {
    pub(crate) fn new(core: &Rc<Core>, target: Target) -> Rc<Control> {
        Rc::new_cyclic(|me| Control {
            target: RefCell::new(target),
            core: Rc::downgrade(core),
            me: me.clone(),
            controllers: RefCell::default(),
            hosts: RefCell::default(),
            listeners: RefCell::default(),
            counters: RefCell::default(),
            half_open: Trial::new(CONNECT_TIMEOUT),
            unproven: Trial::new(PROOF_TIMEOUT),
            unsecured: Trial::new(CONNECT_TIMEOUT),
            handshakes: RefCell::default(),
            keys: Arc::default(),
            takeovers: RefCell::default(),
            next_takeover: Cell::new(0),
            events_due: Cell::new(false),
            timer: Cell::new(None),
        })
    }

    pub(crate) fn core(&self) -> Rc<Core> {
        self.core.upgrade().expect("the core outlives its control")
    }

    pub(crate) fn me(&self) -> Rc<Control> {
        self.me.upgrade().expect("in use")
    }

    /// A Connect command.
    pub(crate) fn connect(
        &self,
        port: PortId,
        command: &Command,
        data: &[u8],
        connection: &Connection,
        digests: Digests,
    ) -> Result<Connected, (Status, u64)> {
        let local_address = connection.stream.local_addr().ok().map(|address| address.ip());
        let secured = connection.secured.get().map(|it| subsystem::Secured {
            host_nqn: &it.host_nqn,
            subsystem_nqn: &it.subsystem_nqn,
        });
        let origin = subsystem::Origin { port, local_address, secured };
        let now = self.core().now();
        let connected = self.target.borrow_mut().connect(origin, command, data, now);
        let connected = connected.map_err(|refused| {
            self.tell_refused(connection, data, refused.reason);
            (refused.status, refused.result)
        })?;
        let mut controllers = self.controllers.borrow_mut();
        let anew = || Association::new(&connected.nqn);
        let association = controllers.entry(connected.controller).or_insert_with(anew);
        if connected.queue_id == 0 {
            let owner = Owner {
                controller: connected.cntlid,
                nqn: connected.nqn.clone(),
                host_nqn: connected.host_nqn.clone(),
                peer: connection.peer(),
                discovery: connected.discovery,
                header_digest: digests.header,
                data_digest: digests.data,
                secured: connection.secured.get().is_some(),
                since: now,
            };
            // Of one that has just gone, with the same id, nothing is left.
            let host =
                ConnectData::ref_from_prefix(data).map(|(it, _)| self.hosts.borrow_mut().of(it));
            let host = host.unwrap_or_default();
            *association = Association {
                admin: Some(connection.key()),
                shared: Arc::new(Shared { host, ..Shared::default() }),
                owner: Some(owner),
                ..anew()
            };
            if !connected.authenticate {
                association.tell_connected(&self.core());
            }
        } else {
            association.entries.insert(connected.queue_id, connected.queue_entries);
        }
        // A reset may have taken back what the host had enabled.
        self.tell_features(connected.controller, &association.shared);
        Ok(connected)
    }

    /// Keeps a takeover while the cores are asked; gives its ticket.
    pub(crate) fn park_takeover(&self, takeover: Rc<Takeover>) -> u64 {
        let ticket = self.next_takeover.get();
        self.next_takeover.set(ticket + 1);
        self.takeovers.borrow_mut().insert(ticket, takeover);
        ticket
    }

    pub(crate) fn parked_takeover(&self, ticket: u64) -> Option<Rc<Takeover>> {
        self.takeovers.borrow().get(&ticket).cloned()
    }

    pub(crate) fn forget_takeover(&self, ticket: u64) {
        self.takeovers.borrow_mut().remove(&ticket);
    }

    /// What the cores share of `controller`.
    pub(crate) fn shared(&self, controller: ControllerId) -> Arc<Shared> {
        let controllers = self.controllers.borrow();
        controllers.get(&controller).map(|it| it.shared.clone()).unwrap_or_default()
    }

    /// A command on a controller's admin queue.
    pub(crate) fn admin(
        &self,
        controller: ControllerId,
        command: &Command,
        data: &[u8],
        connection: &Connection,
    ) -> Reply {
        let now = self.core().now();
        let statistics = |nsid| self.statistics(controller, nsid);
        let reply = self.target.borrow_mut().admin(controller, command, data, now, &statistics);
        if subsystem::is_authentication(command) {
            self.tell_proof((controller, 0), connection.peer(), &reply);
            if self.target.borrow().is_proven(controller, 0) {
                self.unproven.passed(connection.key());
            }
        }
        if command.opcode == opcode::admin::SET_FEATURES {
            self.tell_features(controller, &self.shared(controller));
        }
        reply
    }

    /// Has all cores see what a controller's host has set.
    fn tell_features(&self, controller: ControllerId, shared: &Shared) {
        let target = self.target.borrow();
        shared.copy_formats.store(target.copy_formats(controller), Ordering::Release);
        shared.kato_ms.store(target.kato_ms(controller), Ordering::Relaxed);
    }

    /// A fabrics command on an I/O queue.
    pub(crate) fn fabrics(
        &self,
        (controller, queue_id): (ControllerId, u16),
        command: &Command,
        data: &[u8],
        peer: Option<SocketAddr>,
    ) -> Reply {
        let now = self.core().now();
        let mut target = self.target.borrow_mut();
        let reply = target.fabrics_on_io_queue(controller, queue_id, command, data, now);
        drop(target);
        if subsystem::is_authentication(command) {
            self.tell_proof((controller, queue_id), peer, &reply);
        }
        reply
    }

    /// I/O counts of one namespace of the controller's subsystem, or of all, over all cores.
    fn statistics(&self, controller: ControllerId, nsid: Option<u32>) -> IoStatistics {
        let mut sum = IoStatistics::default();
        let controllers = self.controllers.borrow();
        let counters = self.counters.borrow();
        let Some(association) = controllers.get(&controller) else { return sum };
        for ((nqn, of), cores) in counters.iter() {
            if *nqn != association.nqn || nsid.is_some_and(|nsid| nsid != *of) {
                continue;
            }
            let counted = Counted::of(cores.iter().map(|core| &**core));
            sum.reads += counted.reads;
            sum.writes += counted.writes;
            sum.bytes_read += counted.read_bytes;
            sum.bytes_written += counted.written_bytes;
            sum.media_errors += counted.media_errors;
        }
        sum
    }

    /// Counters of a namespace, one per core.
    pub(crate) fn add_counters(&self, nqn: &Arc<str>, nsid: u32, counters: Vec<Arc<Counters>>) {
        self.counters.borrow_mut().insert((nqn.clone(), nsid), counters);
    }

    /// Forgets the counters of namespaces that are no more.
    pub(crate) fn forget_counters(&self, which: impl Fn(&(Arc<str>, u32)) -> bool) {
        self.counters.borrow_mut().retain(|namespace, _| !which(namespace));
    }

    /// A command failed on an I/O queue: the error log tells hosts.
    pub(crate) fn note_error(
        &self,
        controller: ControllerId,
        queue_id: u16,
        command: &Command,
        status: Status,
    ) {
        self.target.borrow_mut().note_error(controller, queue_id, command, status);
    }

    /// Tells of a Connect that was refused.
    fn tell_refused(&self, connection: &Connection, data: &[u8], reason: Refusal) {
        let Ok((data, _)) = ConnectData::ref_from_prefix(data) else { return };
        let name = |field: &[u8; 256]| {
            let name = <[u8]>::split(field, |byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        };
        self.core()
            .journal
            .refused(reason, || (connection.peer(), name(&data.hostnqn), name(&data.subnqn)));
    }

    /// Tells once that a host has a controller now.
    pub(crate) fn tell_connected(&self, controller: ControllerId) {
        if let Some(association) = self.controllers.borrow_mut().get_mut(&controller) {
            association.tell_connected(&self.core());
        }
    }

    /// Tells once that a controller has come to its end.
    fn tell_ended(&self, controller: ControllerId, why: Why) {
        let mut controllers = self.controllers.borrow_mut();
        let Some(association) = controllers.get_mut(&controller) else { return };
        let Some(owner) = &association.owner else { return };
        if std::mem::replace(&mut association.told, Told::Ended) == Told::Connected {
            let core = self.core();
            core.journal.ended(owner, why, core.now().saturating_sub(owner.since));
        }
    }

    /// What is noted of a controller, with the entries of its I/O queues.
    pub(crate) fn with_owner<R>(
        &self,
        controller: ControllerId,
        told: impl FnOnce(&Owner, &BTreeMap<u16, u16>) -> R,
    ) -> Option<R> {
        let controllers = self.controllers.borrow();
        let association = controllers.get(&controller)?;
        association.owner.as_ref().map(|owner| told(owner, &association.entries))
    }

    /// The connection of a queue has ended, for that reason if it was the peer's.
    pub(crate) fn queue_closed(&self, controller: ControllerId, queue_id: u16, end: Option<End>) {
        let now = self.core().now();
        if queue_id == 0 {
            let summary = self.target.borrow().controller(controller);
            let shut_down = summary.is_some_and(|it| it.shut_down);
            if let Some(why) = shut_down.then_some(Why::ShutDown).or(end.map(Why::Connection)) {
                self.tell_ended(controller, why);
            }
        }
        if let Some(association) = self.controllers.borrow_mut().get_mut(&controller) {
            match queue_id {
                0 => association.admin = None,
                _ => drop(association.entries.remove(&queue_id)),
            }
        }
        self.target.borrow_mut().disconnected(controller, queue_id, now);
        self.kick();
    }

    /// Has the events looked after at the end of this turn.
    pub(crate) fn kick(&self) {
        if !self.events_due.replace(true) {
            self.core().reactor.defer(self.me(), TOKEN_EVENTS);
        }
    }

    fn events(&self) {
        self.events_due.set(false);
        loop {
            let event = self.target.borrow_mut().poll_event();
            match event {
                None => break,
                Some(Event::Complete { controller, cid, status, result }) => {
                    let admin = self.controllers.borrow().get(&controller).and_then(|it| it.admin);
                    if let Some(connection) = admin.and_then(|key| self.core().connection(key)) {
                        connection.complete_held(cid, status, result);
                    }
                }
                Some(Event::DropIoQueues { controller }) => self.close(controller, false),
                Some(Event::Drop { controller, reason }) => {
                    self.tell_ended(controller, Why::Dropped(reason));
                    self.close(controller, true);
                }
                // The server tells the cores itself, before it tells the target.
                Some(Event::NamespacesChanged { .. }) => {}
            }
        }
        self.forget_controllers();
        self.set_timer();
    }

    /// Runs `work` on core `index`, later.
    pub(crate) fn post(&self, index: usize, work: impl FnOnce(&Core) + Send + 'static) {
        self.core().post(index, work);
    }

    /// Closes a controller's connections on every core.
    fn close(&self, controller: ControllerId, admin: bool) {
        let close = move |core: &Core| {
            core.close_connections(|connection| {
                connection.controller() == Some(controller) && (admin || !connection.is_admin())
            });
        };
        let core = self.core();
        // Here at once: a connection that goes to its own core later than the letter would get by.
        close(&core);
        for index in 1..core.core_count() {
            core.post(index, close);
        }
    }

    fn forget_controllers(&self) {
        let mut controllers = self.controllers.borrow_mut();
        if controllers.values().all(|it| it.admin.is_some()) {
            return;
        }
        let target = self.target.borrow();
        let known: HashSet<_> = target.controllers().map(|it| it.controller).collect();
        controllers.retain(|controller, _| known.contains(controller));
    }

    fn set_timer(&self) {
        let next = self.target.borrow().next_timeout();
        let current = self.timer.get();
        if next == current.map(|(at, _)| at) {
            return;
        }
        let core = self.core();
        if let Some((_, id)) = self.timer.take() {
            core.reactor.cancel_timer(id);
        }
        if let Some(at) = next {
            let id = core.reactor.timer(core.instant(at), self.me(), TOKEN_TIMEOUT);
            self.timer.set(Some((at, id)));
        }
    }

    fn timeout(&self) {
        self.timer.set(None);
        let now = self.core().now();
        let mut target = self.target.borrow_mut();
        for (controller, association) in self.controllers.borrow().iter() {
            if association.shared.active.swap(false, Ordering::Relaxed) {
                target.activity(*controller, now);
            }
        }
        target.handle_timeout(now);
        drop(target);
        self.kick();
    }

    /// Accepts connections of `port` from `listener`.
    pub(crate) fn listen(&self, port: PortId, listener: Listener, is_secured: bool) {
        let acceptor = Rc::new_cyclic(|me| Acceptor {
            control: self.me.clone(),
            me: me.clone(),
            port,
            is_secured,
            listener,
            watch: Cell::new(None),
            closed: Cell::new(false),
        });
        acceptor.watch();
        self.listeners.borrow_mut().insert(port, acceptor);
    }

    /// Stops listening on `port`. Its connections are dropped by the target's event.
    pub(crate) fn unlisten(&self, port: PortId) {
        if let Some(acceptor) = self.listeners.borrow_mut().remove(&port) {
            acceptor.close();
        }
        self.give_up_handshakes(|it| it == port);
    }

    /// Stops listening everywhere.
    pub(crate) fn unlisten_all(&self) {
        for (_, acceptor) in self.listeners.borrow_mut().drain() {
            acceptor.close();
        }
        self.give_up_handshakes(|_| true);
        if let Some((_, id)) = self.timer.take() {
            self.core().reactor.cancel_timer(id);
        }
    }

    /// A connection of which nothing is known, but for whose key it is encrypted by.
    pub(crate) fn accepted(&self, port: PortId, stream: Stream, secured: Option<tls::Peer>) {
        let core = self.core();
        let machine = controller::Connection::new(controller::Config {
            queue_entries: FRESH_ENTRIES,
            ..controller::Config::default()
        });
        let added = core.add_connection(|key| {
            let connection = Connection::new(core.clone(), key, stream, Inner::new(machine, port));
            if let Some(peer) = secured {
                let _ = connection.secured.set(peer);
            }
            Ok(connection)
        });
        let Ok(key) = added else { return };
        if let Some(key) = self.half_open.begin(core.now(), key) {
            self.close_if_fresh(key);
        }
        self.watch_trials();
    }

    /// Has those ended in time who do not pass.
    pub(crate) fn watch_trials(&self) {
        let core = self.core();
        for (trial, token) in [
            (&self.half_open, TOKEN_HALF_OPEN),
            (&self.unproven, TOKEN_UNPROVEN),
            (&self.unsecured, TOKEN_UNSECURED),
        ] {
            if let Some(deadline) = trial.starts_timer() {
                core.reactor.timer(core.instant(deadline), self.me(), token);
            }
        }
    }

    fn expire_half_open(&self) {
        for key in self.half_open.over(self.core().now()) {
            self.close_if_fresh(key);
        }
    }

    fn close_if_fresh(&self, key: u64) {
        if let Some(connection) = self.core().connection(key)
            && connection.is_fresh()
        {
            connection.close();
        }
    }
}

impl Complete for Control {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        match token {
            _ if result < 0 => {}
            TOKEN_EVENTS => self.events(),
            TOKEN_TIMEOUT => self.timeout(),
            TOKEN_HALF_OPEN => {
                self.expire_half_open();
                self.watch_trials();
            }
            TOKEN_UNPROVEN => {
                self.expire_unproven();
                self.watch_trials();
            }
            TOKEN_UNSECURED => {
                self.expire_unsecured();
                self.watch_trials();
            }
            _ => unreachable!("tokens are ours"),
        }
    }
}

/// A listening socket on the control core.
struct Acceptor {
    control: Weak<Control>,
    me: Weak<Acceptor>,
    port: PortId,
    /// It takes encrypted connections alone.
    is_secured: bool,
    listener: Listener,
    watch: Cell<Option<WatchId>>,
    closed: Cell<bool>,
}

impl Acceptor {
    fn watch(&self) {
        let (Some(control), Some(me)) = (self.control.upgrade(), self.me.upgrade()) else { return };
        let fd = self.listener.as_raw_fd();
        let watch = control.core().reactor.watch(fd, Interest::READ, me, TOKEN_EVENTS);
        self.watch.set(Some(watch));
    }

    fn close(&self) {
        self.closed.set(true);
        // The ring holds the descriptor a little longer: nobody is to be accepted meanwhile.
        // SAFETY: a plain call on a descriptor that is open.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        if let (Some(watch), Some(control)) = (self.watch.take(), self.control.upgrade()) {
            control.core().reactor.unwatch(watch);
        }
    }

    /// Takes what waits, a bounded number per turn.
    fn accept(&self) -> io::Result<()> {
        let Some(control) = self.control.upgrade() else { return Ok(()) };
        for _ in 0..64 {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    tracing::debug!(%peer, "connection");
                    if self.is_secured {
                        control.secure(self.port, stream, peer);
                    } else {
                        control.accepted(self.port, stream, None);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Complete for Acceptor {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        if token == TOKEN_EVENTS {
            self.watch.set(None);
        }
        if self.closed.get() {
            return;
        }
        match self.accept() {
            Ok(()) => self.watch(),
            Err(error) => {
                if let (Some(control), Some(me)) = (self.control.upgrade(), self.me.upgrade()) {
                    let core = control.core();
                    core.journal.tell(Subject::Faults, || {
                        tracing::warn!(%error, "cannot accept; trying again soon");
                    });
                    core.reactor.timer(core.reactor.now() + ACCEPT_PAUSE, me, TOKEN_TIMEOUT);
                }
            }
        }
    }
}
