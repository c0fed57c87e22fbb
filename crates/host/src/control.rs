//! The control thread: one per process, with the admin connections of all paths.
//!
//! ```text
//!   Path (any thread) --letter--> Driver: Association --actions--> AdminConnection, IoQueue
//!                                   ^                                   |            |
//!                                   '--------------- events ------------+------------'
//! ```

mod closing;
mod dialing;
mod place;

use crate::admin::AdminConnection;
use crate::dial::{Dialed, Dialer, Peer, Secure};
use crate::passed::{Passed, Passing};
use crate::places::Places;
use crate::queue::{Handle, NewConnection, Params};
use crate::shared::Shared;
use association::{Access, Action, Association, Event, Reason};
use closing::Closing;
pub use closing::await_closed;
use nvme::{Completion, Status};
use place::Leaving;
use reactor::{Complete, Mailbox, Reactor, TimerId};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak as ArcWeak, mpsc};
use std::time::{Duration, Instant};

/// Names being looked up at a time, over all paths: each may hang.
const LOOK_UPS_MAX: usize = 32;

/// I/O queues of a path: the most that are asked of a controller.
pub(crate) const QUEUES_MAX: usize = 128;

/// The control thread, which ends when the last path lets go of it.
#[derive(Debug)]
pub(crate) struct Control {
    mailbox: Mailbox,
}

static CONTROL: Mutex<ArcWeak<Control>> = Mutex::new(ArcWeak::new());

thread_local! {
    static DRIVERS: RefCell<HashMap<u64, Rc<Driver>>> = RefCell::default();
}

impl Control {
    /// The process's control thread, started if there is none.
    pub(crate) fn shared() -> io::Result<Arc<Control>> {
        let mut shared = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(control) = shared.upgrade() {
            return Ok(control);
        }
        let (sender, receiver) = mpsc::channel();
        std::thread::Builder::new().name("nvlane-host".into()).spawn(move || run(&sender))?;
        let ended = || io::Error::other("the host's control thread ended");
        let mailbox = receiver.recv().map_err(|_| ended())?.map_err(io::Error::other)?;
        let control = Arc::new(Control { mailbox });
        *shared = Arc::downgrade(&control);
        Ok(control)
    }

    /// Drives a new path. Returns the number it is known by.
    pub(crate) fn add(&self, shared: Arc<Shared>) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.mailbox.post(move |reactor| {
            let driver = Driver::new(reactor, shared);
            DRIVERS.with_borrow_mut(|drivers| drivers.insert(id, Rc::clone(&driver)));
            driver.begin();
        });
        id
    }

    /// Closes a path, which may take until its controller knows ([`await_closed`]).
    pub(crate) fn remove(&self, id: u64) {
        let closing = Closing::begin();
        self.mailbox.post(move |_| {
            if let Some(driver) = DRIVERS.with_borrow_mut(|drivers| drivers.remove(&id)) {
                driver.end(closing);
            }
        });
    }

    /// Calls `work` on the control thread with the path `id`, unless it is gone.
    pub(crate) fn with(&self, id: u64, work: impl FnOnce(&Driver) + Send + 'static) {
        self.mailbox.post(move |_| with_driver(id, work));
    }

    /// Its mailbox.
    pub(crate) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }
}

/// Calls `work` with the driver of the path `id`, on the control thread, unless it is gone.
pub(crate) fn with_driver(id: u64, work: impl FnOnce(&Driver)) {
    if let Some(driver) = DRIVERS.with_borrow(|drivers| drivers.get(&id).cloned()) {
        work(&driver);
    }
}

/// Of the path `id`, on the control thread: [`Driver::queue_to_share`].
pub(crate) fn queue_to_share(id: u64) -> Option<Handle> {
    let driver = DRIVERS.with_borrow(|drivers| drivers.get(&id).cloned());
    driver.and_then(|driver| driver.queue_to_share())
}

impl Drop for Control {
    fn drop(&mut self) {
        self.mailbox.post(|reactor| closing::stop_once_closed(reactor));
    }
}

fn run(sender: &mpsc::Sender<Result<Mailbox, reactor::Error>>) {
    let config = reactor::Config {
        entries: 256,
        // Nothing here is worth a spinning core.
        spin: Duration::ZERO,
        buffer_bytes: 2 << 20,
        blocking_threads: LOOK_UPS_MAX,
        ..reactor::Config::default()
    };
    // Whoever opened the first path may have a core of its own.
    reactor::unpin();
    match Reactor::new(&config) {
        Err(error) => drop(sender.send(Err(error))),
        Ok(reactor) => {
            if sender.send(Ok(reactor.mailbox())).is_ok() {
                reactor.run();
            }
            DRIVERS.take();
        }
    }
}

/// One path on the control thread.
pub(crate) struct Driver {
    me: Weak<Driver>,
    reactor: Rc<Reactor>,
    shared: Arc<Shared>,
    epoch: Instant,
    association: RefCell<Association>,
    dialer: Rc<Dialer>,
    admin: RefCell<Option<Rc<AdminConnection>>>,
    queues: RefCell<Places>,
    timer: Cell<Option<(TimerId, Duration)>>,
    /// It is to be let go.
    leaving: RefCell<Option<Leaving>>,
    /// Admin commands that are passed on.
    passed: Passed,
    /// A thread is at the files of the keys, for this attempt or an earlier one.
    reading_keys: Cell<bool>,
    /// By what connections are encrypted, if they are.
    secure: RefCell<Option<Rc<Secure>>>,
    /// It is being closed, and holds itself until it is.
    closing: RefCell<Option<(Rc<Driver>, Closing)>>,
    /// What I/O queues of the present association need.
    live: RefCell<Option<(SocketAddr, Arc<Params>)>>,
}

impl Driver {
    fn new(reactor: &Rc<Reactor>, shared: Arc<Shared>) -> Rc<Driver> {
        let association = Association::new(shared.options.association.clone());
        Rc::new_cyclic(|me| Driver {
            me: me.clone(),
            reactor: Rc::clone(reactor),
            dialer: Dialer::new(reactor, shared.local.clone()),
            shared,
            epoch: Instant::now(),
            association: RefCell::new(association),
            admin: RefCell::new(None),
            queues: RefCell::default(),
            timer: Cell::new(None),
            leaving: RefCell::new(None),
            passed: Passed::default(),
            reading_keys: Cell::new(false),
            secure: RefCell::new(None),
            closing: RefCell::new(None),
            live: RefCell::new(None),
        })
    }

    fn now(&self) -> Duration {
        self.reactor.now().saturating_duration_since(self.epoch)
    }

    fn begin(&self) {
        if self.shared.is_vacant() {
            return;
        }
        self.association.borrow_mut().start(self.now());
        self.pump();
    }

    /// Something happened to a connection of this path.
    pub(crate) fn event(&self, generation: u64, event: Event<'_>) {
        self.association.borrow_mut().handle(self.now(), generation, event);
        self.pump();
    }

    /// The controller has answered an admin command.
    pub(crate) fn completed(&self, generation: u64, completion: &Completion, data: Vec<u8>) {
        let cid = completion.cid.get();
        let ours = generation == self.association.borrow().generation()
            && self.association.borrow_mut().passed(cid);
        if !ours {
            return self.event(generation, Event::Completed(completion, &data));
        }
        self.passed.answered(cid, completion, data);
        self.send_passed();
        self.pump();
    }

    /// Passes an admin command on, as soon as there is room.
    pub(crate) fn pass(&self, passing: Passing) {
        if !self.association.borrow().is_live() {
            return passing.answer(Status::HOST_ABORTED, 0, Vec::new());
        }
        self.passed.wait(passing);
        self.send_passed();
        // There may be a new deadline.
        self.set_timer();
    }

    fn send_passed(&self) {
        let Some(admin) = self.admin.borrow().clone() else { return };
        while let Some((timeout, for_namespace)) = self.passed.next() {
            let nsid = self.association.borrow().namespace().map_or(0, |it| it.nsid);
            if for_namespace && nsid == 0 {
                // Its old id may be another's by now.
                self.passed.give_back();
                continue;
            }
            let Some(cid) = self.association.borrow_mut().pass(self.now(), timeout) else { return };
            self.passed.send(cid, nsid, &admin);
        }
    }

    /// A core has opened a queue.
    pub(crate) fn queue_opened(&self, handle: Handle) {
        let generation = self.association.borrow().generation();
        let granted = self.live.borrow().as_ref().map(|(_, params)| params.io_queues);
        let most = granted.map_or(QUEUES_MAX, usize::from).min(QUEUES_MAX);
        let index = self.queues.borrow_mut().add(handle, most, generation);
        self.connect_queue(index);
    }

    /// A core has closed a queue.
    pub(crate) fn queue_closed(&self, key: u64) {
        self.queues.borrow_mut().remove(key, self.reactor.now());
        if let Some(index) = self.seat() {
            self.connect_queue(index);
        }
        self.look_whether_queues_are_wanted();
    }

    /// Where no core has a queue open, there is none that may fail to be connected.
    fn look_whether_queues_are_wanted(&self) {
        let live = self.live.borrow().as_ref().map(|(_, params)| params.generation);
        if let Some(generation) = live
            && self.queues.borrow().handles().next().is_none()
        {
            self.event(generation, Event::QueueLive);
        }
    }

    /// Gives a core that has got none of the queues that the controller grants one that is free.
    fn seat(&self) -> Option<usize> {
        let live = self.live.borrow();
        let (_, params) = live.as_ref()?;
        self.queues.borrow_mut().seat(usize::from(params.io_queues), params.generation)
    }

    /// Does what the association wants done.
    fn pump(&self) {
        loop {
            let action = self.association.borrow_mut().poll_action();
            let Some(action) = action else { break };
            self.act(action);
        }
        self.set_timer();
        self.look_whether_it_has_closed();
    }

    fn act(&self, action: Action) {
        match action {
            Action::Dial(generation) => self.dial(generation),
            Action::Send { generation, command, data, answer_bytes } => {
                let admin = self.admin.borrow().clone();
                if let Some(admin) = admin
                    && generation == self.association.borrow().generation()
                {
                    admin.send(&command, &data, answer_bytes);
                }
            }
            Action::Compute { generation, work } => self.compute(generation, work),
            Action::Live(generation) => self.live(generation),
            Action::HangUp { generation, .. } => self.hang_up(generation),
            Action::AccessChanged => self.access_changed(),
            Action::NamespaceChanged => self.namespace_changed(),
            Action::DiscoveryChanged => {}
        }
    }

    /// The association is live: every core's queue is to be connected.
    fn live(&self, generation: u64) {
        let address = self.admin.borrow().as_ref().and_then(|admin| admin.peer_addr());
        let own = self.admin.borrow().as_ref().and_then(|admin| admin.local_addr());
        let numa_node = own.and_then(|own| crate::nic::numa_node(own.ip()));
        let params = {
            let association = self.association.borrow();
            let current = association.generation() == generation;
            if !current || !association.is_live() {
                return;
            }
            Arc::new(Params::new(&association, &self.shared))
        };
        let Some(address) = address else {
            let reason = Reason::Transport("the peer closed the connection".into());
            return self.event(generation, Event::Lost(reason));
        };
        // Before anybody sees that it is live.
        self.shared.subsystem.joined(&params);
        {
            let association = self.association.borrow();
            let controller = association.controller().clone();
            self.shared.set_retry_delays(controller.retry_delays);
            self.shared.set_access(local(association.access()));
            // A controller that drains has let us connect after it was done with what others of this host
            // had sent, if it can tell that they were of this host.
            let config = association.config();
            let named = crate::identity::is_lasting(&config.host_nqn);
            let settles =
                association.settle().max(if named { Duration::ZERO } else { config.quiesce_time });
            self.shared.change(|standing| {
                standing.lives += 1;
                standing.survey += 1;
                standing.settles = settles;
                standing.numa_node = numa_node;
                standing.source = own.map(|own| own.ip().to_canonical());
                standing.controller = controller;
                standing.nsid = association.nsid();
            });
        }
        params.begin();
        self.shared.set_clean(false);
        tracing::info!(peer = %self.shared.address(), "path is live");
        self.shared.tell_directory();
        *self.live.borrow_mut() = Some((address, params));
        while self.seat().is_some() {}
        let count = self.queues.borrow().len();
        for index in 0..count {
            self.connect_queue(index);
        }
        self.look_whether_queues_are_wanted();
    }

    /// The connection of a queue has ended before its core used it.
    pub(crate) fn connect_again(&self, generation: u64, queue: u16) {
        let current =
            self.live.borrow().as_ref().is_some_and(|(_, live)| live.generation == generation);
        if current {
            self.connect_queue(usize::from(queue) - 1);
        }
    }

    fn connect_queue(&self, index: usize) {
        let Some((address, params)) = self.live.borrow().clone() else { return };
        let queue = index as u16 + 1;
        let (handle, dialer) = {
            let mut queues = self.queues.borrow_mut();
            let place = queues.at(index);
            let Some(handle) = place.handle.clone() else { return };
            if queue > params.io_queues {
                let peer = self.shared.address();
                tracing::error!(%peer, queue, granted = params.io_queues, "no I/O queue is left");
                return handle.tell(|queue| queue.left_out());
            }
            place.used = params.generation;
            let dialer = place
                .dialer
                .get_or_insert_with(|| Dialer::new(&self.reactor, self.shared.local.clone()));
            (handle, Rc::clone(dialer))
        };
        let me = self.me.clone();
        let timeout = self.shared.options.association.admin_timeout;
        let secure = self.secure.borrow().clone();
        dialer.dial(Peer::Known(vec![address]), secure, timeout, move |dialed| {
            if let Some(driver) = me.upgrade() {
                driver.queue_dialed(&handle, queue, params, dialed);
            }
        });
    }

    /// A queue's connection was made, or not. The association may have ended meanwhile.
    fn queue_dialed(&self, handle: &Handle, queue: u16, params: Arc<Params>, dialed: Dialed) {
        let generation = params.generation;
        let current =
            self.live.borrow().as_ref().is_some_and(|(_, live)| live.generation == generation);
        match dialed {
            Ok(_) if !current => {}
            Ok(stream) => {
                let socket = OwnedFd::from(stream);
                handle.give(NewConnection { queue, params, socket, dialed: Instant::now() });
            }
            Err(reason) => self.event(generation, Event::QueueLost(queue, reason)),
        }
    }

    fn hang_up(&self, generation: u64) {
        if let Some((_, params)) = self.live.take() {
            params.end();
            self.shared.subsystem.left(&params);
        }
        self.shared.subsystem.hung_up(self.shared.member);
        self.passed.hang_up();
        if let Some(admin) = self.admin.take() {
            admin.close();
        }
        self.dialer.hang_up();
        self.queues.borrow().dialers().for_each(|dialer| dialer.hang_up());
        self.each_queue(|handle| {
            drop(handle.take());
            handle.tell(move |queue| queue.hang_up(generation));
        });
    }

    fn access_changed(&self) {
        let (access, reason) = {
            let association = self.association.borrow();
            if association.is_live() && association.namespace().is_none() {
                self.withhold();
            }
            (association.access(), association.reason().clone())
        };
        let before = self.shared.access();
        let now = local(access);
        self.shared.set_access(now);
        let is_news = !matches!(reason, Reason::Closed | Reason::Connecting);
        if now >= namespace::Access::Inaccessible && is_news {
            let (peer, words) = (self.shared.address(), reason.to_string());
            match now {
                namespace::Access::Gone if now != before => {
                    tracing::error!(%peer, "path is gone: {words}");
                }
                _ if now != before => tracing::warn!(%peer, "path is {}: {words}", named(now)),
                _ => tracing::debug!(%peer, "{words}"),
            }
        }
        // Of a connection that is made anew it is told that the path is live.
        if before == namespace::Access::Inaccessible && now.is_usable() {
            tracing::info!(peer = %self.shared.address(), "path is {} again", named(now));
        }
        self.shared.change(|standing| {
            standing.failures += u64::from(now >= namespace::Access::Lost);
            standing.reason = reason;
        });
        let withheld = now >= namespace::Access::Inaccessible;
        self.each_queue(|handle| handle.tell(move |queue| queue.access_changed(withheld)));
        if now != before {
            self.shared.tell_directory();
        }
    }

    /// There is no namespace: what cores start from now on does not go to the id that it had.
    fn withhold(&self) {
        if let Some((_, params)) = &*self.live.borrow() {
            params.nsid.store(0, Ordering::Relaxed);
            self.shared.subsystem.withheld(self.shared.member);
        }
    }

    fn namespace_changed(&self) {
        let namespace = self.association.borrow().proposed().cloned();
        let Some(namespace) = namespace else { return };
        let options = &self.shared.options;
        let found = self.shared.subsystem.found(self.shared.member, &namespace, options);
        let mut association = self.association.borrow_mut();
        match found {
            Ok(()) => {
                association.accept(self.now());
                if let Some((_, params)) = &*self.live.borrow() {
                    params.nsid.store(namespace.nsid, Ordering::Relaxed);
                    let writes_back = namespace.limits.volatile_write_cache;
                    params.writes_back.store(writes_back, Ordering::Relaxed);
                }
                self.shared.change(|standing| {
                    standing.nsid = namespace.nsid;
                    standing.survey += 1;
                });
            }
            Err(reason) => {
                let generation = association.generation();
                association.refuse(self.now(), generation, reason);
            }
        }
    }

    /// A core's queue, if cores use as many as the controller grants.
    pub(crate) fn queue_to_share(&self) -> Option<Handle> {
        let granted = usize::from(self.live.borrow().as_ref()?.1.io_queues);
        let queues = self.queues.borrow();
        (queues.handles().count() >= granted).then(|| queues.handles().next().cloned())?
    }

    /// Whether users of the namespace wait for another path, or have one.
    fn has_company(&self) -> bool {
        // Not this one, which is gone.
        let stands = |other: &Rc<Driver>| {
            Arc::ptr_eq(&other.shared.subsystem, &self.shared.subsystem)
                && other.shared.access() != namespace::Access::Gone
        };
        DRIVERS.with_borrow(|drivers| drivers.values().any(stands))
    }

    fn each_queue(&self, tell: impl Fn(&Handle)) {
        self.queues.borrow().handles().for_each(tell);
    }

    fn set_timer(&self) {
        let next = self.association.borrow().next_timeout();
        let set = self.timer.get();
        if set.map(|(_, at)| at) == next {
            return;
        }
        if let Some((timer, _)) = self.timer.take() {
            self.reactor.cancel_timer(timer);
        }
        let (Some(at), Some(me)) = (next, self.me.upgrade()) else { return };
        // Beyond what a clock can tell, never will do.
        let Some(instant) = self.epoch.checked_add(at) else { return };
        self.timer.set(Some((self.reactor.timer(instant, me, 0), at)));
    }
}

impl Complete for Driver {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        if token == place::TOKEN_LEAVING {
            return self.look_whether_it_may_go();
        }
        self.timer.set(None);
        {
            let mut association = self.association.borrow_mut();
            association.traffic(self.shared.take_traffic());
            association.set_company(self.has_company());
            association.handle_timeout(self.now());
        }
        self.pump();
    }
}

fn local(access: Access) -> namespace::Access {
    match access {
        Access::Optimized => namespace::Access::Optimized,
        Access::NonOptimized => namespace::Access::NonOptimized,
        Access::Inaccessible => namespace::Access::Inaccessible,
        Access::Lost => namespace::Access::Lost,
        Access::Failing => namespace::Access::Failing,
        Access::Gone => namespace::Access::Gone,
    }
}

/// As documentation and `nvlane paths` have it.
fn named(access: namespace::Access) -> &'static str {
    match access {
        namespace::Access::Optimized => "optimized",
        namespace::Access::NonOptimized => "non-optimized",
        namespace::Access::Inaccessible => "inaccessible",
        namespace::Access::Lost => "lost",
        namespace::Access::Failing => "failing",
        namespace::Access::Gone => "gone",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::queue::IoQueue;
    use association::Config;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    /// Calls `work` on a driver's thread, with an open queue of the same thread and what makes parameters of a
    /// generation, and runs the reactor until it is stopped.
    fn with_queue(work: impl FnOnce(Rc<Driver>, Handle, &dyn Fn(u64) -> Arc<Params>) + 'static) {
        let reactor = Reactor::new(&reactor::Config::default()).expect("a reactor");
        let control = Arc::new(Control { mailbox: reactor.mailbox() });
        let options = Options::new(Config::new("nqn.a", "nqn.h", [7; 16]));
        let address = "127.0.0.1".parse().expect("an address");
        let shared = Arc::new(Shared::new(
            crate::shared::Place::At(address),
            options.clone(),
            Arc::default(),
        ));
        let driver = Driver::new(&reactor, Arc::clone(&shared));
        let path = 1 << 40;
        DRIVERS.with_borrow_mut(|drivers| drivers.insert(path, Rc::clone(&driver)));
        shared.reserve(1);
        let queue = IoQueue::open(&control, path, &shared, &reactor, None);
        let of = move |generation| {
            let association = Association::new(options.association.clone());
            let mut params = Params::new(&association, &shared);
            params.generation = generation;
            Arc::new(params)
        };
        // The queue's handle comes by the mailbox.
        let work = move || {
            let handle = driver.queues.borrow().handles().next().cloned().expect("it is open");
            work(driver, handle, &of);
        };
        reactor.timer(Instant::now(), Rc::new(Then(Cell::new(Some(Box::new(work))))), 0);
        reactor.run();
        drop(queue);
        DRIVERS.with_borrow_mut(|drivers| drivers.remove(&path));
    }

    /// Both ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let local = listener.local_addr().expect("it listens");
        let stream = TcpStream::connect(local).expect("a connection");
        (stream, listener.accept().expect("a connection").0)
    }

    /// What the other end of a queue's connection hears, if it was dialed for an association of `generation`
    /// while the one with `live` is live.
    fn heard(live: Option<u64>, generation: u64) -> usize {
        let (stream, mut peer) = pair();
        let local = peer.local_addr().expect("it is connected");
        let (sender, receiver) = mpsc::channel();
        with_queue(move |driver, handle, of| {
            *driver.live.borrow_mut() = live.map(|live| (local, of(live)));
            driver.queue_dialed(&handle, 1, of(generation), Ok(stream));
            let mailbox = driver.reactor.mailbox();
            std::thread::spawn(move || {
                let mut bytes = [0; 1024];
                sender.send(peer.read(&mut bytes).unwrap_or(0)).expect("the test waits");
                mailbox.post(|reactor| reactor.stop());
            });
        });
        receiver.recv().expect("it was heard")
    }

    type Work = Box<dyn FnOnce()>;

    /// Something to be done in a turn.
    struct Then(Cell<Option<Work>>);

    impl Complete for Then {
        fn complete(&self, _token: u64, _result: i32, _flags: u32) {
            if let Some(work) = self.0.take() {
                work();
            }
        }
    }

    #[test]
    fn a_connection_that_comes_late_is_not_used() {
        assert_eq!(heard(Some(3), 3), 128, "ICReq");
        assert_eq!(heard(Some(4), 3), 0, "another association");
        assert_eq!(heard(None, 3), 0, "none");
    }

    #[test]
    fn a_core_that_rests_has_one_connection_waiting_at_most() {
        with_queue(|driver, handle, of| {
            let dialed = |generation| {
                let (stream, peer) = pair();
                peer.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
                let local = peer.local_addr().expect("it is connected");
                *driver.live.borrow_mut() = Some((local, of(generation)));
                driver.queue_dialed(&handle, 1, of(generation), Ok(stream));
                peer
            };
            let end = |mut peer: TcpStream| peer.read(&mut [0; 1]).expect("it ends");
            // This thread is the core's, too: it does not come to its letters meanwhile.
            let first = dialed(3);
            let second = dialed(4);
            assert_eq!(end(first), 0, "the next has come");
            second.set_nonblocking(true).expect("a socket");
            assert!((&second).read(&mut [0; 1]).is_err(), "it waits");
            second.set_nonblocking(false).expect("a socket");
            driver.hang_up(4);
            assert_eq!(end(second), 0, "the association has ended");
            driver.reactor.stop();
        });
    }
}
