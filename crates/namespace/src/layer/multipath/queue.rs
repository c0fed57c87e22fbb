//! One core's side: selection, retries, waiting.

use super::admin::AdminFlight;
use super::counters::Core;
use super::flush::{Joint, Side};
use super::{FAILING, Multipath, WAITING, copies, may_return, numa};
use crate::layer::addresses_blocks;
use crate::layer::slab::Slab;
use crate::{Access, AccessWatcher, Data, Queue, Request, Sink};
use association::retry::{Retry, may_retry};
use multipath::{
    Group, Outcome, PATHS_MAX, PROBE_BYTES, PathSet, Selector, Settings, Standing, Token,
};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::{Complete, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Path errors of one command before it is given up. With the pauses between them they take the
/// better part of a minute, in which a path that only pretends to be usable is found out.
const FAILURES_MAX: u32 = 64;
/// Longest pause after a path error; the first is a millisecond, each next twice the last.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Retries of a command that controllers put off, as many as Linux's `max_retries`.
const DELAYS_MAX: u8 = 5;
/// Pauses for Command Retry Delay numbers 0 to 3, where controllers do not tell what they mean by 1 to 3.
const DELAYS_MS: [u64; 4] = [10, 100, 200, 400];
/// How often statistics are shown and idle paths looked at while commands come.
const TICK_NS: u64 = 10_000_000;

/// How long commands wait before that is logged: connections take a moment to be made.
const QUIET: Duration = Duration::from_secs(1);

/// Token that looks after what waits; slots are below these.
const DRAIN: u64 = u64::MAX;
/// Token that logs that commands wait.
const TELL: u64 = u64::MAX - 1;
/// Frame state of a probe, with its path; others are slots.
const PROBE: u64 = 1 << 63;
/// Frame state and token of an admin command, with its slot among those.
pub(super) const ADMIN: u64 = 1 << 62;
/// Frame state of a Flush beside another one, with its slot among those.
pub(super) const SIDE: u64 = 1 << 61;
/// No second command, or no others beside.
pub(super) const ALONE: u64 = u64::MAX;

pub(super) struct MultipathQueue {
    pub(super) me: Weak<MultipathQueue>,
    pub(super) namespace: Arc<Multipath>,
    pub(super) reactor: Rc<Reactor>,
    pub(super) paths: Vec<Rc<dyn Queue>>,
    core: Arc<Core>,
    selector: RefCell<Selector>,
    flights: Slab<Flight>,
    /// Second commands of fused pairs in flight, as they came.
    seconds: Slab<Command>,
    /// Slots of commands that wait for a path or for their retry, in order.
    waiting: RefCell<VecDeque<u64>>,
    /// [`DRAIN`] is on its way.
    draining: Cell<bool>,
    /// [`TELL`] is on its way.
    telling: Cell<bool>,
    /// Some path's access has changed, or which are on standby.
    changed: Cell<bool>,
    /// Paths on standby, while others can be used.
    pub(super) spared: Cell<PathSet>,
    generation: Cell<u32>,
    /// When this turn began, twice: computing the second from the first costs as much as a choice.
    turn: Cell<(Instant, u64)>,
    next_tick_ns: Cell<u64>,
    block_shift: u8,
    probes: RefCell<Probes>,
    /// Admin commands on their way.
    pub(super) admins: Slab<AdminFlight>,
    /// Flushes that have others beside them, and those.
    pub(super) joints: Slab<Joint>,
    pub(super) sides: Slab<Side>,
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    pub(super) spare_flushes: RefCell<Vec<Box<Request>>>,
    /// Who wants to know how this queue stands.
    watcher: RefCell<Option<Weak<dyn AccessWatcher>>>,
}

/// Group and bytes of a command.
type Demand = (Group, u64);

/// A command on its way.
pub(super) struct Flight {
    /// Here while it is not below.
    request: Option<Box<Request>>,
    /// The command as it came: paths may rewrite it.
    pub(super) command: Command,
    /// Slot of the second command of a fused pair as it came, or [`ALONE`].
    second: u64,
    token: Option<Token>,
    /// Paths that have failed it since the last pause.
    pub(super) avoid: PathSet,
    failures: u32,
    delays: u8,
    /// It came without a buffer, to be lent memory.
    lends: bool,
    /// Of a Flush: its number on its path, and its slot where there are others beside it.
    pub(super) flush_number: u64,
    pub(super) joint: u64,
}

/// Reads of our own.
struct Probes {
    tokens: [Option<Token>; PATHS_MAX],
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    spare: Vec<Box<Request>>,
}

impl MultipathQueue {
    pub(super) fn open(
        namespace: Arc<Multipath>,
        reactor: &Rc<Reactor>,
    ) -> io::Result<Rc<MultipathQueue>> {
        let open = |path: &Arc<_>| crate::Namespace::open_queue(Arc::clone(path), reactor);
        let paths = namespace.paths.iter().map(open).collect::<io::Result<Vec<_>>>()?;
        let generation = namespace.generation.load(Ordering::Acquire);
        let seed = namespace.seeds.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&namespace.shared);
        let mut selector = Selector::new(paths.len(), namespace.settings(), shared, seed);
        let nodes = namespace.paths.iter().map(|path| path.numa_node());
        numa::place(&mut selector, nodes, namespace.system);
        let spare = paths.iter().map(|_| Request::new()).collect();
        let queue = Rc::new_cyclic(|me| MultipathQueue {
            me: me.clone(),
            reactor: Rc::clone(reactor),
            core: namespace.enrol(),
            selector: RefCell::new(selector),
            flights: Slab::default(),
            seconds: Slab::default(),
            waiting: RefCell::default(),
            draining: Cell::new(false),
            telling: Cell::new(false),
            changed: Cell::new(true),
            spared: Cell::default(),
            generation: Cell::new(generation),
            turn: Cell::new((namespace.epoch, 0)),
            next_tick_ns: Cell::new(0),
            block_shift: crate::Namespace::limits(&*namespace).block_shift,
            probes: RefCell::new(Probes { tokens: [None; PATHS_MAX], spare }),
            admins: Slab::default(),
            joints: Slab::default(),
            sides: Slab::default(),
            spare_flushes: RefCell::default(),
            watcher: RefCell::default(),
            namespace,
            paths,
        });
        let watcher: Weak<dyn AccessWatcher> = queue.me.clone();
        queue.paths.iter().for_each(|path| path.watch_access(watcher.clone()));
        queue.look_around();
        Ok(queue)
    }
}

impl Drop for MultipathQueue {
    fn drop(&mut self) {
        self.show(self.namespace.now_ns());
        self.namespace.retire(&self.core);
    }
}

impl Queue for MultipathQueue {
    #[inline]
    fn submit(&self, request: Box<Request>) {
        self.look_around();
        let now_ns = self.now_ns();
        if now_ns >= self.next_tick_ns.get() {
            return self.submit_and_tick(request, now_ns);
        }
        let second = match &request.fused {
            Some(second) => self.seconds.insert(second.command),
            None => ALONE,
        };
        let flight = Flight {
            command: request.command,
            second,
            token: None,
            avoid: PathSet::EMPTY,
            failures: 0,
            delays: 0,
            lends: matches!(request.data, Data::None),
            flush_number: 0,
            joint: ALONE,
            request: None,
        };
        let demand = self.demand(&request);
        // Who waits goes first.
        if self.waiting.borrow().is_empty()
            && let Some(path) = self.select(demand, PathSet::EMPTY, now_ns)
        {
            return self.send(path, demand, flight, request, now_ns);
        }
        let slot = self.flights.insert(Flight { request: Some(request), ..flight });
        self.wait(slot);
    }

    fn submit_admin(&self, request: Box<Request>) {
        self.start_admin(request);
    }

    /// The best of the paths'.
    fn access(&self) -> Access {
        self.paths.iter().map(|path| path.access()).min().expect("there is a path")
    }

    fn watch_access(&self, watcher: Weak<dyn AccessWatcher>) {
        self.watcher.replace(Some(watcher));
    }

    fn forget(&self) {
        self.paths.iter().for_each(|path| path.forget());
        self.waiting.take();
        drop((self.flights.clear(), self.admins.clear(), self.joints.clear()));
    }
}

impl Sink for MultipathQueue {
    #[inline]
    fn completed(&self, mut request: Box<Request>, state: u64) {
        if state & PROBE != 0 {
            return self.probed(request, (state & !PROBE) as usize);
        }
        if state & ADMIN != 0 {
            return self.admin_completed(request, state & !ADMIN);
        }
        if state & SIDE != 0 {
            return self.side_completed(request, state & !SIDE);
        }
        let mut flight = self.flights.take(state);
        let token = flight.token.take().expect("what comes back was sent");
        let status = pair_status(&request);
        let verdict = match &request.data {
            Data::Sources(sources) if !status.is_success() => {
                let (sdlba, failures) = (flight.command.slba(), flight.failures);
                let judged = copies::judge(sources, sdlba, status, failures, self.ways());
                request.status = judged.1;
                judged.0
            }
            _ => may_retry(&flight.command, flight.second != ALONE, status),
        };
        self.account(&token, status, verdict);
        if verdict != Retry::No {
            return self.retry(flight, request, token.path(), verdict);
        }
        if flight.command.opcode == opcode::FLUSH {
            self.flush_answered(&flight, token.path(), status);
        } else {
            self.namespace.acknowledged(token.path(), &flight.command);
        }
        self.finish(flight, request);
    }
}

impl AccessWatcher for MultipathQueue {
    fn access_changed(&self) {
        self.changed.set(true);
        self.drain_soon();
        let watcher = self.watcher.borrow().as_ref().and_then(Weak::upgrade);
        if let Some(watcher) = watcher {
            watcher.access_changed();
        }
    }
}

impl Complete for MultipathQueue {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        self.look_around();
        match token {
            _ if token & (PROBE | ADMIN) == ADMIN => return self.send_admin(token & !ADMIN),
            DRAIN => self.draining.set(false),
            TELL => return self.tell(),
            slot => self.waiting.borrow_mut().push_back(slot),
        }
        self.drain();
    }
}

impl MultipathQueue {
    /// Time since the namespace was opened, as old as the turn: a clock read per command would
    /// cost as much as the choice.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        let now = self.reactor.now();
        let (turn, turn_ns) = self.turn.get();
        if now == turn {
            return turn_ns;
        }
        let now_ns = now.saturating_duration_since(self.namespace.epoch).as_nanos() as u64;
        self.turn.set((now, now_ns));
        now_ns
    }

    /// Takes note of changed settings and of paths that stand otherwise than before.
    #[inline]
    pub(super) fn look_around(&self) {
        let generation = self.namespace.generation.load(Ordering::Acquire);
        if generation != self.generation.get() {
            self.generation.set(generation);
            let settings: Settings = self.namespace.settings();
            self.selector.borrow_mut().configure(settings);
            self.changed.set(true);
        }
        if self.changed.get() {
            self.look_at_paths();
        }
    }

    #[cold]
    fn look_at_paths(&self) {
        self.changed.set(false);
        let standby = self.namespace.standby();
        let usable = self.usable();
        let spared = if usable.without(standby).is_empty() { PathSet::EMPTY } else { standby };
        self.spared.set(spared);
        let mut selector = self.selector.borrow_mut();
        for (number, path) in self.paths.iter().enumerate() {
            let access = path.access();
            self.core.paths[number].set_access(access);
            selector.stand(
                number,
                match access {
                    _ if spared.contains(number) => Standing::Unusable,
                    Access::Optimized => Standing::Optimized,
                    Access::NonOptimized => Standing::NonOptimized,
                    _ => Standing::Unusable,
                },
            );
        }
        if selector.has_usable() {
            self.namespace.end_outage();
        }
    }

    fn usable(&self) -> PathSet {
        let usable = |&path: &usize| self.paths[path].access().is_usable();
        (0..self.paths.len()).filter(usable).fold(PathSet::EMPTY, PathSet::with)
    }

    #[inline]
    fn select(&self, demand: Demand, avoid: PathSet, now_ns: u64) -> Option<usize> {
        self.selector.borrow_mut().select(now_ns, demand.0, demand.1, avoid)
    }

    /// How a command counts: bits 1:0 of an opcode say where its data goes. Lists of ranges are no
    /// data.
    #[inline]
    fn demand(&self, request: &Request) -> Demand {
        let command = &request.command;
        match command.opcode & 3 {
            1 if !matches!(command.opcode, opcode::DATASET_MANAGEMENT | opcode::COPY) => {
                let second = request.fused.as_ref().map_or(0, |second| second.data.len());
                (Group::Write, (request.data.len() + second) as u64)
            }
            2 if matches!(request.data, Data::None) => {
                (Group::Read, u64::from(command.block_count()) << self.block_shift)
            }
            2 => (Group::Read, request.data.len() as u64),
            _ => (Group::Other, 0),
        }
    }

    #[inline]
    fn send(
        &self,
        mut path: usize,
        demand: Demand,
        mut flight: Flight,
        mut request: Box<Request>,
        now_ns: u64,
    ) {
        if flight.command.opcode == opcode::FLUSH && self.paths.len() > 1 {
            path = self.flush_beside(path, &mut flight);
        }
        let token = self.dispatched(path, demand, now_ns);
        let slot = self.flights.insert(Flight { token: Some(token), ..flight });
        request.push(self.me.upgrade().expect("the queue lives while it is called"), slot);
        self.paths[path].submit(request);
    }

    /// Tells the selector and the counters that a command goes by `path`.
    #[inline]
    pub(super) fn dispatched(&self, path: usize, (group, bytes): Demand, now_ns: u64) -> Token {
        let counters = &self.core.paths[path];
        counters.selections.add(1);
        counters.in_flight.add(1);
        self.selector.borrow_mut().submitted(path, now_ns, group, bytes)
    }

    /// Gives a command back.
    #[inline]
    pub(super) fn finish(&self, flight: Flight, request: Box<Request>) {
        if flight.second != ALONE {
            self.seconds.take(flight.second);
        }
        if flight.joint != ALONE {
            return self.join(flight, request);
        }
        request.complete();
    }

    /// Tells the selector and the counters what came of a command.
    #[inline]
    pub(super) fn account(&self, token: &Token, status: Status, verdict: Retry) {
        let now_ns = self.now_ns();
        let counters = &self.core.paths[token.path()];
        counters.in_flight.sub(1);
        let outcome = if verdict == Retry::OtherPath || status.sct() == 3 {
            counters.errors.add(1);
            Outcome::Failed
        } else if is_spoiled(status) {
            counters.errors.add(1);
            Outcome::PutOff
        } else if verdict == Retry::No {
            counters.latencies.record(now_ns.saturating_sub(token.sent_ns()));
            Outcome::Answered
        } else {
            // Put off at once is not fast.
            Outcome::PutOff
        };
        self.selector.borrow_mut().completed(token, now_ns, outcome);
    }

    /// Has a command that a path failed, or a controller put off, sent again; or gives it up.
    #[cold]
    pub(super) fn retry(
        &self,
        mut flight: Flight,
        mut request: Box<Request>,
        path: usize,
        verdict: Retry,
    ) {
        let mut avoid = PathSet::EMPTY;
        let pause = match verdict {
            Retry::Delayed(number) if flight.delays < DELAYS_MAX => {
                flight.delays += 1;
                if is_spoiled(pair_status(&request)) {
                    // That may be so each time.
                    avoid = flight.avoid.with(path);
                }
                self.delay(number, request.timeout_ms)
            }
            Retry::OtherPath if flight.failures < FAILURES_MAX => {
                flight.failures += 1;
                flight.avoid = flight.avoid.with(path);
                self.pause_after(flight.failures)
            }
            _ => return self.finish(flight, request),
        };
        request.command = flight.command;
        if flight.lends {
            request.data = Data::None;
        }
        if let Some(second) = request.fused.as_deref_mut() {
            second.command = self.seconds.with(flight.second, |command| *command);
            (second.status, second.os_error, second.result) = (Status::SUCCESS, 0, 0);
        }
        (request.status, request.os_error, request.result) = (Status::SUCCESS, 0, 0);
        // One on standby is tried first, once it can be.
        let spared = self.spared.get();
        let has_spare = !spared.is_empty() && flight.avoid.and(spared).is_empty();
        let stays = pause.is_zero() || has_spare && verdict == Retry::OtherPath;
        if !stays {
            flight.avoid = avoid;
        }
        let slot = self.flights.insert(Flight { request: Some(request), ..flight });
        if pause.is_zero() {
            // Not from within the path's call: it may be in the middle of giving back others.
            return self.wait(slot);
        }
        let me = self.me.upgrade().expect("the queue lives while it is called");
        self.reactor.timer(Instant::now() + pause, me, slot);
    }

    /// What a controller means by Command Retry Delay `number`, but not longer than the command may take.
    fn delay(&self, number: u8, timeout_ms: u32) -> Duration {
        let number = usize::from(number & 3);
        let told =
            number.checked_sub(1).map(|at| crate::Namespace::retry_delays(&*self.namespace)[at]);
        let pause = told.filter(|told| !told.is_zero());
        let pause = pause.unwrap_or(Duration::from_millis(DELAYS_MS[number]));
        let most = (timeout_ms != 0).then(|| Duration::from_millis(timeout_ms.into()));
        pause.min(most.unwrap_or(Duration::MAX))
    }

    /// How many paths there are, or may be again.
    #[cold]
    fn ways(&self) -> usize {
        self.paths.iter().filter(|path| may_return(path.access())).count().max(1)
    }

    /// Nothing until each path may have failed once, then a millisecond, and twice as long with
    /// each further failure.
    fn pause_after(&self, failures: u32) -> Duration {
        match failures.checked_sub(self.ways() as u32) {
            None | Some(0) => Duration::ZERO,
            Some(further) => {
                let pause = Duration::from_millis(1 << (further - 1).min(10));
                pause.min(PAUSE_MAX)
            }
        }
    }

    fn wait(&self, slot: u64) {
        self.waiting.borrow_mut().push_back(slot);
        self.drain_soon();
    }

    fn drain_soon(&self) {
        if !self.draining.replace(true) {
            let me = self.me.upgrade().expect("the queue lives while it is called");
            self.reactor.defer(me, DRAIN);
        }
    }

    /// Sends what waits, in order, until there is no path for the first. What comes to wait
    /// meanwhile has its turn later.
    fn drain(&self) {
        let now_ns = self.now_ns();
        let count = self.waiting.borrow().len();
        for _ in 0..count {
            let Some(slot) = self.waiting.borrow_mut().pop_front() else { return };
            let mut flight = self.flights.take(slot);
            let request = flight.request.take().expect("what waits is here");
            let demand = self.demand(&request);
            let path = match self.select(demand, flight.avoid, now_ns) {
                None if !flight.avoid.is_empty() => {
                    let spared = self.spared.get().and(self.usable()).without(flight.avoid);
                    let best = spared.min_by_key(|&path| self.paths[path].access());
                    // Those that have failed it are better than nothing.
                    best.or_else(|| self.select(demand, PathSet::EMPTY, now_ns))
                }
                path => path,
            };
            match path {
                Some(path) => self.send(path, demand, flight, request, now_ns),
                None if self.namespace.is_path => {
                    self.hand_back(flight, request, Status::HOST_ABORTED)
                }
                None if self.paths.iter().any(|path| may_return(path.access())) => {
                    self.tell_later();
                    // The slot may be another now, its place in the line is the same.
                    let slot = self.flights.insert(Flight { request: Some(request), ..flight });
                    return self.waiting.borrow_mut().push_front(slot);
                }
                None => self.give_up(flight, request),
            }
        }
    }

    /// Has it logged that commands wait, if they still do after a while.
    fn tell_later(&self) {
        if !self.telling.replace(true) {
            let me = self.me.upgrade().expect("the queue lives while it is called");
            self.reactor.timer(Instant::now() + QUIET, me, TELL);
        }
    }

    fn tell(&self) {
        self.telling.set(false);
        if !self.waiting.borrow().is_empty() && !self.selector.borrow().has_usable() {
            self.namespace.tell_outage(WAITING);
        }
    }

    /// No path will be usable again, or not in time.
    fn give_up(&self, flight: Flight, request: Box<Request>) {
        self.namespace.tell_outage(FAILING);
        self.hand_back(flight, request, Status::HOST_PATHING_ERROR);
    }

    /// Fails a command that is not on its way: another path may do whatever it is.
    fn hand_back(&self, flight: Flight, mut request: Box<Request>, status: Status) {
        if flight.joint != ALONE {
            (request.status, request.result) = (Status::HOST_PATHING_ERROR, 0);
            return self.finish(flight, request);
        }
        if flight.second != ALONE {
            self.seconds.take(flight.second);
        }
        request.finish_pair(status);
    }

    /// The command goes first: whether paths are to be probed depends on how long what is in flight takes.
    #[cold]
    fn submit_and_tick(&self, request: Box<Request>, now_ns: u64) {
        self.next_tick_ns.set(now_ns + TICK_NS);
        let last = request.command;
        self.submit(request);
        // A path may have been found to be lost.
        self.look_around();
        self.tick(now_ns, &last);
    }

    /// Shows statistics, lets old ones fade, and has idle paths probed where `last` was.
    fn tick(&self, now_ns: u64, last: &Command) {
        let halvings = self.core.fade(now_ns);
        self.core.paths.iter().for_each(|path| path.latencies.fade(halvings));
        self.show(now_ns);
        if addresses_blocks(last) {
            self.probe(now_ns, last);
        }
    }

    /// Shows what the selector knows.
    fn show(&self, now_ns: u64) {
        let mut selector = self.selector.borrow_mut();
        for (path, counters) in self.core.paths.iter().enumerate() {
            let groups = Group::ALL.map(|group| selector.statistics(path, group, now_ns));
            counters.publish(selector.share(path, now_ns), &groups);
        }
    }

    fn probe(&self, now_ns: u64, last: &Command) {
        loop {
            let Some(path) = self.selector.borrow_mut().probe(now_ns) else { return };
            let blocks = (PROBE_BYTES >> self.block_shift).max(1);
            let capacity = crate::Namespace::limits(&*self.namespace).blocks;
            let Some(last_place) = capacity.checked_sub(blocks) else { return };
            let slba = last.slba().min(last_place);
            let bytes = blocks << self.block_shift;
            let Some(buffer) = self.reactor.buffers().allocate(bytes as usize) else { return };
            let mut probes = self.probes.borrow_mut();
            let Some(mut request) = probes.spare.pop() else { return };
            request.command = Command::blocks(opcode::READ, last.nsid.get(), slba, blocks as u32);
            request.data = Data::Buffer(buffer);
            request.data.truncate(bytes as usize);
            (request.status, request.result) = (Status::SUCCESS, 0);
            let token = self.selector.borrow_mut().probe_submitted(path, now_ns, bytes);
            probes.tokens[path] = Some(token);
            drop(probes);
            let me = self.me.upgrade().expect("the queue lives while it is called");
            request.push(me, PROBE | path as u64);
            self.paths[path].submit(request);
        }
    }

    /// A probe has come back. It is never retried.
    #[cold]
    fn probed(&self, mut request: Box<Request>, path: usize) {
        let mut probes = self.probes.borrow_mut();
        let token = probes.tokens[path].take().expect("what comes back was sent");
        let answered = request.status.sct() != 3 && !is_spoiled(request.status);
        let outcome = if answered { Outcome::Answered } else { Outcome::Failed };
        self.selector.borrow_mut().completed(&token, self.now_ns(), outcome);
        request.data = Data::None;
        probes.spare.push(request);
    }
}

/// Whether the path has delivered a command's data damaged, or not all of it.
#[inline]
fn is_spoiled(status: Status) -> bool {
    status.code() == Status::TRANSIENT_TRANSPORT
}

/// The status that decides about a pair: the first that is no success.
#[inline]
fn pair_status(request: &Request) -> Status {
    match &request.fused {
        Some(second) if request.status.is_success() => second.status,
        _ => request.status,
    }
}
