//! The state machine.

mod answers;
mod authenticate;
mod events;
mod loss;
mod search;
mod shutdown;

use crate::admin::{self, Built, Purpose, Query};
use crate::authentication::{Authentication, Credentials};
use crate::{ADMIN_COMMANDS_MAX, Config, Controller, Namespace, Reason};
use dhchap::{Done, Work};
use nvme::log::ana::AnaState;
use nvme::{Command, Completion};
use search::Search;
pub use shutdown::SHUTDOWN_TIME;
use std::collections::VecDeque;
use std::time::Duration;

/// From one look at CSTS.RDY to the next.
const READY_POLL: Duration = Duration::from_millis(20);

/// A live path that cannot be used is looked at again after so long, whatever events tell.
const RECHECK: Duration = Duration::from_secs(1);

/// From an I/O command's ANA status to a look at the namespace and the log page, so that a controller which contradicts itself
/// does not keep us busy.
const ANA_RECHECK: Duration = Duration::from_millis(50);

/// Commands of the driver's own that may be outstanding: the association needs the others.
const PASSED_MAX: usize = 6;

/// And Aborts, whatever the controller takes: they are hints only.
const ABORTS_MAX: usize = 4;

/// How a path stands, the better the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Live; ANA optimized, or no ANA.
    Optimized,
    /// Live; ANA non-optimized.
    NonOptimized,
    /// Live; commands would fail: ANA, or the namespace is gone.
    Inaccessible,
    /// No association now.
    Lost,
    /// The same, for longer than `fast_io_fail_tmo`.
    Failing,
    /// Given up, or closed.
    Gone,
}

/// What happened to a connection; comes with its generation.
#[derive(Debug)]
pub enum Event<'a> {
    /// The admin connection is initialized (ICResp).
    Connected,
    /// The admin connection could not be made, or is lost.
    Lost(Reason),
    /// An admin command was answered, with its data.
    Completed(&'a Completion, &'a [u8]),
    /// What was to be computed is there.
    Computed(Done),
    /// An I/O queue is connected, or none is wanted.
    QueueLive,
    /// An I/O queue could not be connected, or is lost.
    QueueLost(u16, String),
    /// Command `cid` of I/O queue `queue` has not completed within the I/O timeout.
    IoTimeout {
        /// Queue id.
        queue: u16,
        /// Command identifier.
        cid: u16,
        /// It was reported before, so that Abort has not helped.
        again: bool,
    },
    /// An I/O command came back with an ANA status.
    AnaStatus,
}

/// What there was on I/O queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Commands were sent.
    pub sent: bool,
    /// Commands were answered.
    pub answered: bool,
}

/// What the driver is to do.
#[derive(Debug)]
pub enum Action {
    /// Make the admin connection of this generation, up to ICResp.
    Dial(u64),
    /// Send an admin command.
    Send {
        /// Of which connection.
        generation: u64,
        /// The command with its identifier.
        command: Command,
        /// Data that goes in its capsule.
        data: Vec<u8>,
        /// Bytes of data that come.
        answer_bytes: u32,
    },
    /// Do this where nobody waits, and tell by [`Event::Computed`].
    Compute {
        /// Of which connection.
        generation: u64,
        /// What takes long.
        work: Work,
    },
    /// Connect I/O queues: see [`Association::controller`].
    Live(u64),
    /// Close the admin connection and all I/O queues of this generation.
    HangUp {
        /// Of which connection.
        generation: u64,
        /// After so long without a byte sent, the controller has surely ended the association and its
        /// commands.
        quiet: Duration,
    },
    /// [`Association::access`] or [`Association::reason`] has changed.
    AccessChanged,
    /// The namespace was found, or has changed: look at [`Association::proposed`], then say
    /// [`Association::accept`] or [`Association::refuse`]. Until then nothing goes there.
    NamespaceChanged,
    /// The discovery log has changed.
    DiscoveryChanged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not started.
    Off,
    /// Ended by the driver, who may start it again.
    Closed,
    /// The same, once the controller has been told.
    Closing {
        until: Duration,
    },
    /// The driver makes the connection.
    Dialing {
        until: Duration,
    },
    /// The connect sequence runs.
    Connecting,
    Live,
    Waiting {
        until: Duration,
    },
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    purpose: Purpose,
    /// When it has taken too long; `None` for what may take for ever.
    deadline: Option<Duration>,
}

/// The host side of an association with one controller. Times are since an epoch of the driver's choice.
#[derive(Debug)]
pub struct Association {
    config: Config,
    state: State,
    generation: u64,
    pending: [Option<Pending>; ADMIN_COMMANDS_MAX as usize],
    actions: VecDeque<Action>,
    credentials: Option<Credentials>,
    /// It goes on, on the admin queue.
    authentication: Option<Authentication>,
    compute_until: Option<Duration>,
    controller: Controller,
    nsid: u32,
    /// As it was accepted.
    namespace: Option<Namespace>,
    /// As it was found, until the driver says whether it is the one.
    proposed: Option<Namespace>,
    /// The namespace as the queries that run find it.
    found: Option<Namespace>,
    /// Finds the namespace again under another id.
    search: Search,
    /// Queries to be made, by [`Query::bit`].
    wanted: u8,
    ready_at: Option<Duration>,
    ready_until: Duration,
    keep_alive_at: Option<Duration>,
    recheck_at: Option<Duration>,
    /// An I/O command contradicted what the ANA log said.
    ana_suspect: bool,
    /// Since the last look at the keep alive timer.
    traffic: Traffic,
    /// When the next event was asked for, and how many have come in a row.
    events: (Duration, u32),
    /// When it is to be, if that was put off.
    listen_at: Option<Duration>,
    /// Since when there is no association, or no namespace.
    lost_since: Option<Duration>,
    /// That, while the association is live and no I/O queue is yet, and until when a loss shows that no I/O
    /// queue can be connected: later, its core has only now come to it.
    unproven: Option<(Duration, Duration)>,
    failing: bool,
    /// The path was given up, and has not been live since.
    given_up: bool,
    /// When one that was given up is tried again, and whether it may be.
    again_at: Option<Duration>,
    has_company: bool,
    reason: Reason,
    told: Access,
}

impl Association {
    /// An association that does nothing before [`Association::start`].
    pub fn new(config: Config) -> Association {
        Association {
            config,
            state: State::Off,
            generation: 0,
            pending: [None; ADMIN_COMMANDS_MAX as usize],
            actions: VecDeque::new(),
            credentials: None,
            authentication: None,
            compute_until: None,
            controller: Controller::default(),
            nsid: 0,
            namespace: None,
            proposed: None,
            found: None,
            search: Search::default(),
            wanted: 0,
            ready_at: None,
            ready_until: Duration::ZERO,
            keep_alive_at: None,
            recheck_at: None,
            ana_suspect: false,
            traffic: Traffic::default(),
            events: (Duration::ZERO, 0),
            listen_at: None,
            lost_since: None,
            unproven: None,
            failing: false,
            given_up: false,
            again_at: None,
            has_company: false,
            reason: Reason::Connecting,
            told: Access::Lost,
        }
    }

    /// The same for a path that was closed or given up, by which the namespace is to be reached in another way.
    pub fn start_elsewhere(&mut self, now: Duration, config: Config) {
        if !self.is_wanted() {
            // What the last controller could take less of, another may take.
            self.config = config;
            self.controller = Controller::default();
            self.search.accepted = None;
            self.start(now);
        }
    }

    /// Begins the first attempt.
    pub fn start(&mut self, now: Duration) {
        if self.is_wanted() {
            return;
        }
        // If it is closing yet.
        self.hang_up();
        self.lost_since = Some(now);
        (self.unproven, self.failing) = (None, false);
        (self.given_up, self.again_at) = (false, None);
        (self.traffic, self.events) = (Traffic::default(), (Duration::ZERO, 0));
        self.reason = Reason::Connecting;
        self.dial(now);
        // Whoever starts it knows.
        self.told = self.access();
    }

    /// Ends everything, until it is started again.
    pub fn close(&mut self) {
        self.hang_up();
        self.state = State::Closed;
        (self.given_up, self.again_at) = (false, None);
        self.reason = Reason::Closed;
        self.tell();
    }

    /// What to do next; until there is nothing more, after every other call.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// How the path stands. I/O queues have states of their own beside it.
    pub fn access(&self) -> Access {
        match self.state {
            State::Gone | State::Closed | State::Closing { .. } => Access::Gone,
            State::Live => self.live_access(),
            _ if self.given_up => Access::Gone,
            _ if self.failing => Access::Failing,
            _ => Access::Lost,
        }
    }

    fn live_access(&self) -> Access {
        match &self.namespace {
            Some(namespace) if !self.ana_suspect => match namespace.ana {
                AnaState::OPTIMIZED => Access::Optimized,
                AnaState::NON_OPTIMIZED => Access::NonOptimized,
                _ => Access::Inaccessible,
            },
            None if self.failing => Access::Failing,
            _ => Access::Inaccessible,
        }
    }

    /// Why the path is not usable, or was not when it last was not.
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// The present or last connection.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the connection of [`Action::Dial`] with this generation is still wanted.
    pub fn awaits_dial(&self, generation: u64) -> bool {
        generation == self.generation && matches!(self.state, State::Dialing { .. })
    }

    /// The controller, once live.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Whether there is an association. Its namespace may be gone nevertheless.
    pub fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// What was found where the namespace should be, and waits for the driver's judgement.
    pub fn proposed(&self) -> Option<&Namespace> {
        self.proposed.as_ref()
    }

    /// The namespace, once it was accepted.
    pub fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// The namespace's id, once live.
    pub fn nsid(&self) -> u32 {
        match &self.namespace {
            Some(namespace) => namespace.nsid,
            None => self.settled_nsid(),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Entries of each I/O queue.
    pub fn queue_entries(&self) -> u16 {
        self.config.queue_entries
    }

    /// Connect of I/O queue `queue` with its data; the driver adds the identifier.
    pub fn connect_io(&self, queue: u16, flow_control: bool) -> (Command, Vec<u8>) {
        use nvme::fabrics::Connect;
        let connect = Connect {
            recfmt: 0,
            qid: queue,
            sqsize_z: self.config.queue_entries - 1,
            cattr: if flow_control { 0 } else { Connect::NO_FLOW_CONTROL },
            kato_ms: 0,
        };
        (connect.command(), admin::connect_data(&self.config, self.controller.cntlid))
    }

    /// An identifier for an admin command of the driver's own, which he sends on the admin connection, and
    /// whose answer he keeps to himself: see [`Association::passed`]. None unless live, or when as many
    /// are outstanding as there is room for. If `timeout` is over first, the connection is given up.
    pub fn pass(&mut self, now: Duration, timeout: Duration) -> Option<u16> {
        let passed = |pending: &&Pending| matches!(pending.purpose, Purpose::Passed(_));
        let outstanding = self.pending.iter().flatten().filter(passed).count();
        if self.state != State::Live || outstanding >= PASSED_MAX {
            return None;
        }
        let cid = self.pending.iter().position(Option::is_none)?;
        let deadline = Some(now.saturating_add(timeout));
        self.pending[cid] = Some(Pending { purpose: Purpose::Passed(timeout), deadline });
        self.traffic.sent = true;
        Some(cid as u16)
    }

    /// The driver's command `cid` was answered. `false` if it is none of those.
    pub fn passed(&mut self, cid: u16) -> bool {
        let Some(slot) = self.pending.get_mut(usize::from(cid)) else { return false };
        let passed = matches!(slot, Some(Pending { purpose: Purpose::Passed(_), .. }));
        if passed {
            *slot = None;
            self.traffic.answered = true;
        }
        passed
    }

    /// What there was on I/O queues since the last call. The controller is alive if it answers, and knows that
    /// we are from what is sent: an answer to what was sent long ago tells it nothing.
    pub fn traffic(&mut self, traffic: Traffic) {
        self.traffic.sent |= traffic.sent;
        self.traffic.answered |= traffic.answered;
    }

    /// What is [proposed](Association::proposed) is the namespace that is wanted: should another have its
    /// id later, or none, it is looked for by its identity.
    pub fn accept(&mut self, now: Duration) {
        if let Some(namespace) = self.proposed.take() {
            self.search.identity = namespace.identity;
            self.search.accepted = Some(self.nsid);
            self.namespace = Some(namespace);
            self.settled(now);
        }
    }

    /// Ends the connection because of what the driver found out, and tries again later. What was proposed is
    /// proposed again then.
    pub fn refuse(&mut self, now: Duration, generation: u64, reason: Reason) {
        if generation == self.generation && self.is_up() {
            self.lost(now, reason);
        }
    }

    /// Takes an event of the connection `generation`; what concerns another is ignored.
    pub fn handle(&mut self, now: Duration, generation: u64, event: Event<'_>) {
        if generation != self.generation || !self.is_up() {
            return;
        }
        match event {
            Event::Connected if matches!(self.state, State::Dialing { .. }) => {
                self.state = State::Connecting;
                self.send(now, Purpose::Connect);
            }
            Event::Connected => {}
            Event::Lost(reason) => self.lost(now, self.seen_in_exchange(reason)),
            Event::Completed(completion, data) => self.completed(now, completion, data),
            Event::Computed(done) => self.computed(now, done),
            Event::QueueLive => self.unproven = None,
            Event::QueueLost(queue, reason) => self.lost(now, Reason::Queue { queue, reason }),
            Event::IoTimeout { queue, cid, again } => self.io_timeout(now, queue, cid, again),
            Event::AnaStatus => self.ana_status(now),
        }
    }

    /// Whether there are other paths to the namespace that have not been given up. One that was given up is tried again
    /// then, every `reconnect_delay`, and stays [`Access::Gone`] until it is live: nobody waits for it.
    pub fn set_company(&mut self, has_company: bool) {
        self.has_company = has_company;
    }

    /// When [`Association::handle_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Duration> {
        let state = match self.state {
            State::Dialing { until } | State::Waiting { until } | State::Closing { until } => {
                Some(until)
            }
            _ => None,
        };
        let commands = self.pending.iter().flatten().filter_map(|pending| pending.deadline);
        let own = [state, self.ready_at, self.keep_alive_at, self.recheck_at, self.again_at];
        let late = [self.compute_until, self.listen_at, self.fail_at(), self.gone_at()];
        let own = own.into_iter().chain(late).flatten();
        commands.chain(own).min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Duration) {
        let due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        match self.state {
            State::Waiting { until } if until <= now => self.dial(now),
            State::Closing { until } if until <= now => self.close(),
            State::Dialing { until } if until <= now => {
                let after = self.config.admin_timeout;
                self.lost(now, Reason::NoAnswer { what: "the connection request", after });
            }
            _ => {}
        }
        if let Some(late) = self.pending.iter().flatten().find(|it| due(it.deadline)).copied() {
            let after = self.timeout_of(late.purpose);
            self.lost(now, Reason::NoAnswer { what: late.purpose.name(), after });
        }
        if due(self.compute_until) {
            let (what, after) = ("what authentication computes", self.config.admin_timeout);
            self.lost(now, Reason::NoAnswer { what, after });
        }
        if due(self.ready_at) {
            self.ready_at = None;
            self.send(now, Purpose::Ready);
        }
        if due(self.keep_alive_at) {
            self.keep_alive(now);
        }
        if due(self.listen_at) {
            self.listen(now);
        }
        if due(self.recheck_at) {
            self.recheck_at = None;
            self.ask(now, Query::SURVEY);
        }
        if due(self.again_at) {
            self.try_again(now);
        }
        self.expire(now);
    }

    fn is_wanted(&self) -> bool {
        !matches!(self.state, State::Off | State::Closed | State::Closing { .. } | State::Gone)
    }

    /// A connection exists or is being made.
    fn is_up(&self) -> bool {
        let ends = matches!(self.state, State::Closing { .. });
        ends || matches!(self.state, State::Dialing { .. } | State::Connecting | State::Live)
    }

    fn dial(&mut self, now: Duration) {
        self.generation += 1;
        self.state = State::Dialing { until: now + self.config.admin_timeout };
        self.actions.push_back(Action::Dial(self.generation));
    }

    /// The connection is of no use any more.
    fn lost(&mut self, now: Duration, reason: Reason) {
        if self.is_closing() {
            return self.close();
        }
        let before = match self.unproven.take() {
            _ if !self.is_live() => self.lost_since,
            // A controller of which only the admin queue can be connected is as good as lost, whichever of its ends is
            // seen first.
            Some((since, until)) if now <= until => Some(since),
            _ => None,
        };
        self.lost_since = before.or(Some(now));
        self.hang_up();
        if self.given_up {
            let before = self.reason.clone();
            self.give_up(now, reason);
            if self.reason != before {
                // How it stands has not changed: for those who look why.
                self.actions.push_back(Action::AccessChanged);
            }
            return;
        }
        self.reason = reason;
        self.state = State::Waiting { until: now + self.config.reconnect_delay };
        self.told = Access::Optimized; // The reason is news too.
        // It may have been lost before it was live for a moment.
        self.expire(now);
        self.tell();
    }

    fn hang_up(&mut self) {
        if self.is_up() {
            let (generation, quiet) = (self.generation, self.quiet());
            self.actions.push_back(Action::HangUp { generation, quiet });
        }
        self.pending = [None; ADMIN_COMMANDS_MAX as usize];
        (self.authentication, self.compute_until) = (None, None);
        (self.ready_at, self.keep_alive_at, self.recheck_at) = (None, None, None);
        self.listen_at = None;
        self.wanted = 0;
        (self.proposed, self.found) = (None, None);
        self.end_search();
        self.ana_suspect = false;
    }

    /// After so long without a byte sent, the controller's keep alive timer has surely expired: it
    /// runs once more if there was traffic (NVMe Base 2.1, section 3.9.4.1). Then its commands must end.
    pub fn quiet(&self) -> Duration {
        let granularity = self.controller.keep_alive_granularity.max(Duration::from_secs(1));
        let granules = self.config.keep_alive_tmo.as_millis().div_ceil(granularity.as_millis());
        let timeout = granularity * u32::try_from(granules).unwrap_or(u32::MAX / 1000);
        timeout * if self.controller.traffic_based { 2 } else { 1 } + self.quiesce()
    }

    /// After the controller has ended a connection, its commands have surely ended so long later. That it
    /// has ended it proves nothing by itself: Linux's nvmet, for one, shuts a socket down and only then
    /// waits for the commands that came by it.
    pub fn settle(&self) -> Duration {
        if self.controller.drains { Duration::ZERO } else { self.quiesce() }
    }

    /// The Command Quiesce Time (NVMe Base 2.1, section 5.1.13.2.1): few controllers report one, and some
    /// the 1 ms that stands for "at once".
    fn quiesce(&self) -> Duration {
        self.controller.command_quiesce_time.max(self.config.quiesce_time)
    }

    /// Has the driver told of a change of access.
    fn tell(&mut self) {
        let access = self.access();
        if access != self.told {
            self.told = access;
            self.actions.push_back(Action::AccessChanged);
        }
    }

    /// A command was refused because of the ANA state: believe it until the log page was read.
    fn ana_status(&mut self, now: Duration) {
        if self.state != State::Live || self.ana_suspect {
            return;
        }
        self.ana_suspect = self.controller.ana_groups > 0 && self.namespace.is_some();
        if self.ana_suspect {
            self.reason = Reason::Ana("unknown: a command was refused");
            self.recheck_at = Some(now + ANA_RECHECK);
        }
        // Told in any case: whoever asked waits for an answer.
        self.told = self.access();
        self.actions.push_back(Action::AccessChanged);
    }

    fn io_timeout(&mut self, now: Duration, queue: u16, cid: u16, again: bool) {
        if self.state != State::Live {
            return;
        }
        let aborts = |pending: &&Pending| pending.purpose == Purpose::Abort;
        let outstanding = self.pending.iter().flatten().filter(aborts).count();
        if again {
            self.lost(now, Reason::IoTimeout { queue });
        } else if outstanding < usize::from(self.controller.aborts_max).min(ABORTS_MAX) {
            self.transmit(now, Purpose::Abort, admin::abort(queue, cid));
        }
    }

    fn keep_alive(&mut self, now: Duration) {
        let waits = self.pending.iter().flatten().any(|it| it.purpose == Purpose::KeepAlive);
        let Traffic { sent, answered } = std::mem::take(&mut self.traffic);
        let spared = self.controller.traffic_based && sent && answered;
        // What was sent may be as old as the last look, so the next comes sooner: a controller must not be without
        // a command for as long as its timer runs.
        let parts = if spared { 4 } else { 2 };
        self.keep_alive_at = Some(now + self.config.keep_alive_tmo / parts);
        if !waits && !spared {
            self.send(now, Purpose::KeepAlive);
        }
    }

    /// Has queries made, one after the other.
    fn ask(&mut self, now: Duration, queries: u8) {
        if !matches!(self.state, State::Connecting | State::Live) {
            return;
        }
        self.wanted |= queries;
        let runs = |pending: &Pending| matches!(pending.purpose, Purpose::Query(_));
        if !self.pending.iter().flatten().any(runs) {
            self.next_query(now);
        }
    }

    fn send(&mut self, now: Duration, purpose: Purpose) {
        let nsid = match purpose {
            Purpose::Query(Query::Namespaces) => self.wanted_nsid().unwrap_or(0),
            _ => self.nsid,
        };
        let built = admin::build(purpose, &self.config, &self.controller, nsid);
        self.transmit(now, purpose, built);
    }

    fn transmit(&mut self, now: Duration, purpose: Purpose, built: Built) {
        let Built { mut command, data, answer_bytes } = built;
        let Some(cid) = self.pending.iter().position(Option::is_none) else {
            // Not with those bounds: an Event Request, a Keep Alive and a query are what else there is.
            debug_assert!(false, "there is room for {purpose:?}");
            return;
        };
        let waits = purpose != Purpose::Event;
        let deadline = waits.then(|| now + self.timeout_of(purpose));
        self.pending[cid] = Some(Pending { purpose, deadline });
        command.cid = (cid as u16).into();
        let generation = self.generation;
        self.actions.push_back(Action::Send { generation, command, data, answer_bytes });
    }

    fn timeout_of(&self, purpose: Purpose) -> Duration {
        match purpose {
            Purpose::KeepAlive => self.config.keep_alive_tmo,
            Purpose::Passed(timeout) => timeout,
            _ => self.config.admin_timeout,
        }
    }
}
