//! Every rule of an association on virtual time, against a controller made of answers.

mod authentication;
mod keep_alive;
mod loss;
mod namespaces;
mod peer;
mod queues;
mod shutdown;

use association::{Access, Action, Association, Config, Credentials, Event, Reason, Traffic};
use nvme::event::AsyncEvent;
use nvme::feature::Fid;
use nvme::log::ana::AnaState;
use nvme::{Command, Completion, Status, opcode};
use peer::Peer;
use proptest::prelude::*;
use std::time::Duration;

const NQN: &str = "nqn.2026-11.org.example:volume";

/// Commands were sent and answered.
const BOTH: Traffic = Traffic { sent: true, answered: true };

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// An association with its peer and a clock.
struct World {
    association: Association,
    peer: Peer,
    now: Duration,
    /// What the driver was told, in words, with the time.
    log: Vec<(Duration, String)>,
    /// The Asynchronous Event Request that waits.
    event: Option<u16>,
    /// What the peer takes its time for.
    held: Option<Command>,
    /// What nobody has computed yet, and of which connection.
    work: Option<(u64, dhchap::Work)>,
    /// UUIDs of namespaces that the driver refuses.
    strangers: Vec<u8>,
}

impl World {
    fn new(config: Config, peer: Peer) -> World {
        World::with(config, peer, None)
    }

    fn with(config: Config, peer: Peer, credentials: Option<Credentials>) -> World {
        let mut association = Association::new(config);
        association.set_credentials(credentials);
        association.start(Duration::ZERO);
        let (now, log, event, strangers) = (Duration::ZERO, Vec::new(), None, Vec::new());
        let (held, work) = (None, None);
        let mut world = World { association, peer, now, log, event, held, work, strangers };
        world.settle();
        world
    }

    fn live() -> World {
        let world = World::new(config(), Peer::default());
        assert_eq!(world.association.access(), Access::Optimized);
        world
    }

    fn handle(&mut self, event: Event<'_>) {
        let generation = self.association.generation();
        self.association.handle(self.now, generation, event);
        self.settle();
    }

    /// Carries out actions until there are none.
    fn settle(&mut self) {
        while let Some(action) = self.association.poll_action() {
            let generation = self.association.generation();
            match action {
                Action::Dial(of) => {
                    self.log.push((self.now, "dial".into()));
                    let event = match self.peer.reachable {
                        true => Event::Connected,
                        false => Event::Lost(Reason::Dial("refused".into())),
                    };
                    self.association.handle(self.now, of, event);
                }
                Action::Send { generation: of, command, answer_bytes, data } => {
                    assert_eq!(of, generation);
                    self.log.push((self.now, name(&command)));
                    let cid = command.cid.get();
                    if command.opcode == opcode::admin::ASYNC_EVENT_REQUEST {
                        self.event = Some(cid);
                    }
                    if let Some((status, result, data)) = self.peer.answer(&command, &data) {
                        assert_eq!(data.len(), answer_bytes as usize, "{command:?}");
                        let completion = Completion::new(cid, status, result);
                        let event = Event::Completed(&completion, &data);
                        self.association.handle(self.now, of, event);
                    } else {
                        self.held = Some(command);
                    }
                }
                Action::Compute { generation: of, work } => {
                    assert_eq!(of, generation);
                    self.log.push((self.now, "compute".into()));
                    if self.peer.host_computes {
                        self.association.handle(self.now, of, Event::Computed(work.run()));
                    } else {
                        self.work = Some((of, work));
                    }
                }
                Action::Live(of) => {
                    self.log.push((self.now, "live".into()));
                    let event = match self.peer.queues {
                        Some(true) => Event::QueueLive,
                        Some(false) => Event::QueueLost(1, "refused".into()),
                        None => continue,
                    };
                    self.association.handle(self.now, of, event);
                }
                Action::HangUp { .. } => self.log.push((self.now, "hang up".into())),
                Action::AccessChanged => self.log.push((self.now, "access".into())),
                Action::NamespaceChanged => {
                    self.log.push((self.now, "namespace".into()));
                    self.judge(generation);
                }
                Action::DiscoveryChanged => self.log.push((self.now, "discovery".into())),
            }
        }
    }

    fn judge(&mut self, generation: u64) {
        let found = self.association.proposed().expect("something to judge");
        if self.strangers.contains(&found.identity.uuid[0]) {
            let (found, expected) = (found.identity.to_string(), "another".into());
            let reason = Reason::OtherNamespace { found, expected };
            self.association.refuse(self.now, generation, reason);
        } else {
            self.association.accept(self.now);
        }
    }

    /// Lets time pass until `until`.
    fn run(&mut self, until: Duration) {
        while let Some(at) = self.association.next_timeout().filter(|at| *at <= until) {
            assert!(at >= self.now || at == Duration::ZERO, "time goes forward");
            self.now = at.max(self.now);
            self.association.handle_timeout(self.now);
            self.settle();
        }
        self.now = until;
    }

    fn raise(&mut self, event: AsyncEvent) {
        let cid = self.event.take().expect("an event request is outstanding");
        let completion = Completion::new(cid, Status::SUCCESS, event.dword0().into());
        self.handle(Event::Completed(&completion, &[]));
    }

    /// The peer answers what it took its time for.
    fn answer_held(&mut self) {
        self.peer.held = None;
        let command = self.held.take().expect("something was held");
        let (status, result, data) = self.peer.answer(&command, &[]).expect("an answer");
        let completion = Completion::new(command.cid.get(), status, result);
        self.handle(Event::Completed(&completion, &data));
    }

    fn times(&self, what: &str) -> Vec<Duration> {
        self.log.iter().filter(|(_, it)| it == what).map(|(at, _)| *at).collect()
    }

    fn count(&self, what: &str) -> usize {
        self.times(what).len()
    }
}

fn name(command: &Command) -> String {
    match command.opcode {
        opcode::admin::FABRICS => format!("fabrics {}", command.fctype()),
        opcode::admin::IDENTIFY => format!("identify {}", command.cdw10.get()),
        opcode::admin::GET_LOG_PAGE => format!("log {}", command.cdw10.get() & 0xff),
        opcode::admin::SET_FEATURES => format!("feature {}", command.cdw10.get() & 0xff),
        opcode::admin::KEEP_ALIVE => "keep alive".into(),
        opcode::admin::ABORT => "abort".into(),
        opcode::admin::ASYNC_EVENT_REQUEST => "event".into(),
        opcode => format!("opcode {opcode}"),
    }
}

fn config() -> Config {
    Config::new(NQN, "nqn.2026-11.org.example:host", [1; 16])
}

#[test]
fn formats_of_copy_are_enabled_where_that_is_needed_and_allowed() {
    let tell = format!("feature {}", Fid::HOST_BEHAVIOR.0);
    let refused = Status::INVALID_FIELD.dnr();
    // Formats, answer, retry delay; then how often it is told, and what is left of the formats.
    for (copy_formats, behavior, retry_delay, told, usable) in [
        (0, Status::SUCCESS, 0, 0, 0),
        (0b0011, Status::SUCCESS, 0, 0, 0b0011),
        (0b0101, Status::SUCCESS, 0, 1, 0b0101),
        (0b1111, Status::SUCCESS, 3, 1, 0b1111),
        (0b1111, refused, 0, 1, 0b0011),
        (0b1111, refused, 3, 2, 0b0011),
        (0, refused, 3, 1, 0),
    ] {
        let peer = Peer { copy_formats, behavior, retry_delay, ..Peer::default() };
        let world = World::new(config(), peer);
        assert_eq!(world.association.access(), Access::Optimized, "{copy_formats:#b}");
        assert_eq!(world.count(&tell), told, "{copy_formats:#b} {behavior}");
        assert_eq!(world.association.controller().copy_formats, usable);
    }
}

#[test]
fn write_zeroes_has_the_limit_that_the_controller_tells() {
    for (wzsl, bytes) in
        [(None, u32::MAX), (Some(0), u32::MAX), (Some(1), 8192), (Some(11), 8 << 20)]
    {
        let world = World::new(config(), Peer { wzsl, ..Peer::default() });
        assert_eq!(world.association.access(), Access::Optimized, "{wzsl:?}");
        let limits = world.association.namespace().unwrap().limits;
        assert_eq!(limits.write_zeroes_bytes_max, bytes, "{wzsl:?}");
    }
}

#[test]
fn the_connect_sequence() {
    let world = World::live();
    let steps: Vec<&str> = world.log.iter().map(|(_, what)| what.as_str()).collect();
    assert_eq!(
        steps,
        [
            "dial",
            "fabrics 1",
            "fabrics 4",
            "fabrics 0",
            "fabrics 4",
            "identify 1",
            "feature 7",
            "feature 11",
            "event",
            "identify 2",
            "identify 0",
            "identify 3",
            "identify 6",
            "log 12",
            "namespace",
            "live",
            "access",
        ]
    );
    let association = &world.association;
    assert_eq!((association.nsid(), association.controller().io_queues), (1, 8));
    assert_eq!(association.controller().in_capsule_bytes, 4096);
    let namespace = association.namespace().expect("it was found");
    assert_eq!((namespace.limits.blocks, namespace.identity.uuid), (1000, [1; 16]));
}

#[test]
fn old_connections_say_nothing() {
    let mut world = World::live();
    let old = world.association.generation();
    world.handle(Event::Lost(Reason::Transport("closed".into())));
    world.run(seconds(20));
    assert_eq!(world.association.access(), Access::Optimized);
    let before = world.log.len();
    let completion = Completion::new(3, Status::INTERNAL, 0);
    for event in [
        Event::Lost(Reason::Transport("late".into())),
        Event::Completed(&completion, &[]),
        Event::QueueLost(1, "late".into()),
        Event::IoTimeout { queue: 1, cid: 1, again: true },
        Event::AnaStatus,
    ] {
        world.association.handle(world.now, old, event);
        world.settle();
    }
    assert_eq!((world.association.access(), world.log.len()), (Access::Optimized, before));
}

#[test]
fn namespace_changes_are_read() {
    let mut world = World::live();
    world.peer.blocks = 2000;
    world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
    assert_eq!(world.count("log 4"), 1, "the log page that lets the next event come");
    assert_eq!(world.association.namespace().map(|it| it.limits.blocks), Some(2000));
    assert_eq!(world.count("namespace"), 2);
    // It goes and comes back.
    world.peer.namespaces.clear();
    world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
    assert_eq!(world.association.access(), Access::Inaccessible);
    world.peer.namespaces.push(1);
    world.run(seconds(2));
    assert_eq!(world.association.access(), Access::Optimized, "looked at without an event");
    assert_eq!(world.count("hang up"), 0);
}

#[test]
fn what_was_refused_is_not_taken_at_a_later_connect() {
    // Whether the right one was known before or not, whether it comes back or not.
    for (known, comes_back) in [(true, true), (true, false), (false, true), (false, false)] {
        let config = Config { ctrl_loss_tmo: Some(seconds(60)), ..config() };
        let mut world = World::new(config, Peer { reachable: known, ..Peer::default() });
        world.strangers = vec![8];
        (world.peer.reachable, world.peer.uuid) = (true, 8);
        if known {
            world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        }
        let proposed = world.count("namespace");
        world.run(seconds(45));
        assert!(world.count("namespace") >= proposed + 4, "proposed at every connect");
        assert_eq!(world.count("live"), usize::from(known), "but no I/O goes there");
        assert_eq!(world.association.access(), Access::Lost);
        world.peer.uuid = if comes_back { 1 } else { 8 };
        world.run(seconds(61));
        // That it is refused again and again does not make it wait longer.
        let wanted = if comes_back { Access::Optimized } else { Access::Gone };
        assert_eq!(world.association.access(), wanted);
        assert_eq!(world.count("live"), usize::from(known) + usize::from(comes_back));
    }
}

#[test]
fn commands_do_not_wait_for_ever_for_a_namespace_that_was_removed() {
    // fast_io_fail_tmo, if it is less, is the limit.
    for (fast, limit) in [(None, 60), (Some(seconds(5)), 5), (Some(seconds(90)), 60)] {
        let loss = Some(seconds(60));
        let config = Config { ctrl_loss_tmo: loss, fast_io_fail_tmo: fast, ..config() };
        let mut world = World::new(config, Peer::default());
        for _ in 0..2 {
            let since = world.now;
            world.peer.namespaces.clear();
            world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
            world.run(since + seconds(limit) - millis(1));
            assert_eq!(world.association.access(), Access::Inaccessible);
            world.run(since + seconds(limit));
            assert_eq!(world.association.access(), Access::Failing);
            // The controller is not given up: it may have the namespace again.
            world.run(since + seconds(200));
            assert_eq!(world.association.access(), Access::Failing);
            world.peer.namespaces.push(1);
            world.run(since + seconds(202));
            assert_eq!(world.association.access(), Access::Optimized);
        }
        assert_eq!(world.count("hang up"), 0);
        // Only one that is lost is, and from then on.
        world.peer.namespaces.clear();
        world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        world.run(world.now + seconds(200));
        let since = world.now;
        world.peer.reachable = false;
        world.handle(Event::Lost(Reason::Dial("test".into())));
        world.run(since + seconds(59));
        assert_eq!(world.association.access(), Access::Failing);
        world.run(since + seconds(60));
        assert_eq!(world.association.access(), Access::Gone);
    }
}

#[test]
fn a_connection_that_took_too_long_is_not_wanted() {
    let mut world = World::new(config(), Peer { reachable: false, ..Peer::default() });
    let generation = world.association.generation();
    assert!(!world.association.awaits_dial(generation), "it was lost");
    let mut fresh = Association::new(config());
    fresh.start(Duration::ZERO);
    assert!(fresh.awaits_dial(1) && !fresh.awaits_dial(0));
    fresh.handle_timeout(seconds(3600));
    assert!(!fresh.awaits_dial(1), "the time was over");
    world.association.close();
    assert!(!world.association.awaits_dial(generation));
}

/// As where a script changes as many namespaces.
#[test]
fn events_without_end_are_asked_for_now_and_then() {
    let mut world = World::live();
    for _ in 0..1000 {
        world.run(world.now + millis(5));
        if world.event.is_some() {
            world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        }
    }
    // What came last is heard soon.
    world.peer.blocks = 2000;
    world.run(world.now + millis(100));
    world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
    assert_eq!(world.association.namespace().map(|it| it.limits.blocks), Some(2000));
    // 256 in 1.28 seconds, and ten in each of the others.
    let events = world.count("event");
    assert!((256..300).contains(&events), "{events}");
    assert!(world.log.len() < 3000, "{}", world.log.len());
    // Then it is as before, and as many with time between them are none too many.
    for _ in 0..1000 {
        world.run(world.now + seconds(1));
        world.raise(AsyncEvent::ANA_CHANGE);
        assert!(world.event.is_some(), "the next one is asked for at once");
    }
    assert_eq!((world.association.access(), world.count("hang up")), (Access::Optimized, 0));
}

#[test]
fn an_event_that_is_yet_to_be_asked_for_is_of_one_connection() {
    for ends in [
        |world: &mut World| world.association.shut_down(world.now),
        |world: &mut World| {
            world.association.close();
        },
    ] {
        let mut world = World::live();
        while world.event.is_some() {
            world.raise(AsyncEvent::ANA_CHANGE);
        }
        let asked = world.count("event");
        ends(&mut world);
        world.settle();
        world.run(seconds(10));
        assert_eq!((world.count("event"), world.event), (asked, None));
        // Another asks at once.
        let now = world.now;
        world.association.start(now);
        world.settle();
        assert_eq!(world.count("event"), asked + 1);
    }
}

#[test]
fn ana_changes_are_read() {
    let mut world = World::live();
    for (state, access) in [
        (AnaState::NON_OPTIMIZED, Access::NonOptimized),
        (AnaState::PERSISTENT_LOSS, Access::Inaccessible),
        (AnaState::OPTIMIZED, Access::Optimized),
        (AnaState::CHANGE, Access::Inaccessible),
    ] {
        world.peer.state = state;
        world.raise(AsyncEvent::ANA_CHANGE);
        assert_eq!(world.association.access(), access, "{state:?}");
    }
    world.peer.state = AnaState::OPTIMIZED;
    world.run(seconds(2));
    assert_eq!(world.association.access(), Access::Optimized, "looked at without an event");
}

#[test]
fn a_refused_command_makes_the_path_inaccessible_until_the_log_was_read() {
    let mut world = World::live();
    world.peer.state = AnaState::INACCESSIBLE;
    world.handle(Event::AnaStatus);
    assert_eq!(world.association.access(), Access::Inaccessible);
    assert_eq!(world.count("log 12"), 1, "not at once");
    world.peer.state = AnaState::NON_OPTIMIZED;
    world.run(millis(100));
    assert_eq!(world.association.access(), Access::NonOptimized);
    assert_eq!(world.count("log 12"), 2);
    // Without ANA there is nothing to read.
    let mut world = World::new(config(), Peer { ana: false, ..Peer::default() });
    world.handle(Event::AnaStatus);
    assert_eq!((world.association.access(), world.count("log 12")), (Access::Optimized, 0));
}

#[test]
fn a_late_command_is_aborted_then_the_controller_reset() {
    let mut world = World::live();
    world.handle(Event::IoTimeout { queue: 3, cid: 7, again: false });
    assert_eq!((world.count("abort"), world.count("hang up")), (1, 0));
    world.handle(Event::IoTimeout { queue: 3, cid: 7, again: true });
    assert_eq!(world.count("hang up"), 1);
    assert_eq!(world.association.reason(), &Reason::IoTimeout { queue: 3 });
}

#[test]
fn a_lost_queue_resets_the_controller() {
    let mut world = World::live();
    world.handle(Event::QueueLost(2, "connection reset".into()));
    assert_eq!(world.count("hang up"), 1);
    assert!(world.association.reason().to_string().contains("I/O queue 2: connection reset"));
}

#[test]
fn aborts_keep_to_the_limit() {
    for (aborts_z, wanted) in [(0, 1), (1, 2), (3, 4), (255, 4)] {
        let mut world = World::new(config(), Peer { aborts_z, ..Peer::default() });
        // As many of the driver's own as there may be, beside the Event Request.
        while world.association.pass(world.now, seconds(60)).is_some() {}
        world.peer.silent = true;
        for cid in 0..100 {
            world.handle(Event::IoTimeout { queue: 1, cid, again: false });
        }
        assert_eq!(world.count("abort"), wanted, "of {} that it takes", aborts_z + 1);
        // There is room for what keeps the association alive, and for a look at the namespace.
        let cid = world.event.take().expect("an event request is outstanding");
        let event = AsyncEvent::NAMESPACE_ATTRIBUTE.dword0().into();
        let completion = Completion::new(cid, Status::SUCCESS, event);
        world.handle(Event::Completed(&completion, &[]));
        assert!(world.event.is_some() && world.count("log 4") == 1);
        let before = world.count("keep alive");
        world.run(world.now + millis(2500));
        assert_eq!(world.count("keep alive"), before + 1);
    }
}

#[test]
fn refusals_are_told_in_words() {
    let refused = Peer { connect: Status::CONNECT_INVALID_HOST.dnr(), ..Peer::default() };
    let world = World::new(config(), refused);
    assert_eq!(world.association.access(), Access::Lost);
    assert!(world.association.reason().to_string().contains("not allowed"));
    let several = Peer { namespaces: vec![1, 5], ..Peer::default() };
    let world = World::new(config(), several);
    assert!(world.association.reason().to_string().contains("1, 5"));
}

#[test]
fn quiet_covers_the_controllers_timer() {
    for (traffic_based, expected) in [(false, 6), (true, 11)] {
        let world = World::new(config(), Peer { traffic_based, ..Peer::default() });
        assert_eq!(world.association.quiet(), seconds(expected));
    }
    // What the controller says that its commands may last beyond the association.
    let world = World::new(config(), Peer { cqt_ms: 20_000, ..Peer::default() });
    assert_eq!(world.association.quiet(), seconds(25));
    let short = Config { keep_alive_tmo: millis(100), ..config() };
    let world = World::new(short, Peer::default());
    assert_eq!(world.association.quiet(), seconds(2), "the controller rounds up to a second");
}

#[test]
fn an_end_is_no_proof_unless_the_controller_drains() {
    let settle = |peer| World::new(config(), peer).association.settle();
    assert_eq!(settle(Peer::default()), seconds(1));
    assert_eq!(settle(Peer { cqt_ms: 1, ..Peer::default() }), seconds(1));
    assert_eq!(settle(Peer { cqt_ms: 20_000, ..Peer::default() }), seconds(20));
    let drains = Peer { drains: true, cqt_ms: 20_000, ..Peer::default() };
    assert_eq!(settle(drains), Duration::ZERO);
    let patient = Config { quiesce_time: seconds(7), ..config() };
    let world = World::new(patient, Peer::default());
    assert_eq!((world.association.settle(), world.association.quiet()), (seconds(7), seconds(12)));
}

#[test]
fn closing_ends_everything() {
    let mut world = World::live();
    world.association.close();
    world.settle();
    assert_eq!((world.count("hang up"), world.association.next_timeout()), (1, None));
}

/// Something that may happen.
#[derive(Clone, Debug)]
enum Happening {
    Connected,
    Lost,
    Completed { cid: u16, status: u16, result: u64, data: Vec<u8>, honest: bool },
    QueueLost,
    IoTimeout(bool),
    AnaStatus,
    Traffic,
    Time(u64),
    Old,
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let completed = (0..20u16, prop_oneof![3 => Just(0u16), 1 => any::<u16>()], any::<u64>());
    let data = proptest::collection::vec(any::<u8>(), 0..64);
    let completed = (completed, data, prop::bool::weighted(0.9)).prop_map(
        |((cid, status, result), data, honest)| Happening::Completed {
            cid,
            status,
            result,
            data,
            honest,
        },
    );
    let one = prop_oneof![
        2 => Just(Happening::Connected),
        1 => Just(Happening::Lost),
        30 => completed,
        1 => Just(Happening::QueueLost),
        2 => any::<bool>().prop_map(Happening::IoTimeout),
        2 => Just(Happening::AnaStatus),
        1 => Just(Happening::Traffic),
        5 => (0..20_000u64).prop_map(Happening::Time),
        1 => Just(Happening::Old),
    ];
    proptest::collection::vec(one, 0..200)
}

proptest! {
    /// Whatever comes, nothing panics, commands outstanding are bounded and time goes on.
    #[test]
    fn anything_may_happen(happenings in happenings()) {
        let peer = Peer::default();
        let mut association = Association::new(config());
        let mut now = Duration::ZERO;
        association.start(now);
        let mut sent: Vec<Command> = Vec::new();
        for happening in happenings {
            let mut actions = 0;
            while let Some(action) = association.poll_action() {
                actions += 1;
                match action {
                    Action::Send { command, .. } => sent.push(command),
                    Action::HangUp { .. } => sent.clear(),
                    _ => {}
                }
            }
            prop_assert!(actions < 20 && sent.len() <= 16, "{actions} {}", sent.len());
            let generation = association.generation();
            let mut tell = |event| association.handle(now, generation, event);
            match happening {
                Happening::Connected => tell(Event::Connected),
                Happening::Lost => tell(Event::Lost(Reason::Transport("lost".into()))),
                Happening::Completed { cid, status, result, data, honest } => {
                    let command = match sent.len() {
                        0 => None,
                        len => Some(sent.remove(usize::from(cid) % len)),
                    };
                    match command {
                        Some(command) if honest => {
                            let answer = peer.answer(&command, &[]);
                            let (status, result, data) =
                                answer.unwrap_or((Status(status), result, data));
                            let it = Completion::new(command.cid.get(), status, result);
                            tell(Event::Completed(&it, &data));
                        }
                        _ => {
                            let it = Completion::new(cid, Status(status & 0x7fff), result);
                            tell(Event::Completed(&it, &data));
                        }
                    }
                }
                Happening::QueueLost => tell(Event::QueueLost(1, "lost".into())),
                Happening::IoTimeout(again) => {
                    tell(Event::IoTimeout { queue: 1, cid: 1, again });
                }
                Happening::AnaStatus => tell(Event::AnaStatus),
                Happening::Traffic => association.traffic(BOTH),
                Happening::Time(passed) => {
                    now += Duration::from_millis(passed);
                    association.handle_timeout(now);
                }
                Happening::Old => {
                    let old = generation.wrapping_sub(1);
                    association.handle(now, old, Event::QueueLost(1, "old".into()));
                }
            }
        }
    }
}
