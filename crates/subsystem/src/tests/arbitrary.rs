//! A peer that sends anything, and a control plane that changes things meanwhile.

use super::host::*;
use crate::{
    AnaState, ControllerId, EVENT_REQUESTS_MAX, Event, IoStatistics, Origin, Reply, Target,
};
use nvme::fabrics::{ConnectData, DISCOVERY_NQN};
use nvme::lba_status::{self, Question};
use nvme::{Command, Limits, Sgl, opcode};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

#[derive(Clone, Debug)]
enum Step {
    Admin { command: [u8; 64], opcode: u8, plausible: bool, data: Vec<u8> },
    EventRequest { cid: u8 },
    Fabrics { command: [u8; 64] },
    ConnectAdmin { discovery: bool },
    ConnectIo { qid: u16 },
    ConnectAnything { command: [u8; 64], data: Vec<u8> },
    Cc(u32),
    AddNamespace(u32),
    RemoveNamespace(u32),
    Resize(u64),
    Ana { group: u32, state: u8 },
    Host { allow: bool },
    Wait(u64),
    Disconnect,
}

fn bytes64() -> impl Strategy<Value = [u8; 64]> {
    let half = proptest::array::uniform32(any::<u8>());
    (half, proptest::array::uniform32(any::<u8>())).prop_map(|(low, high)| {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&low);
        bytes[32..].copy_from_slice(&high);
        bytes
    })
}

fn opcodes() -> impl Strategy<Value = u8> {
    prop_oneof![
        8 => proptest::sample::select(vec![0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f, 0x86]),
        1 => any::<u8>(),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let data = proptest::collection::vec(any::<u8>(), 0..600);
    let connect_data = proptest::collection::vec(any::<u8>(), 1024);
    prop_oneof![
        8 => (bytes64(), opcodes(), any::<bool>(), data).prop_map(
            |(command, opcode, plausible, data)| Step::Admin { command, opcode, plausible, data }
        ),
        4 => bytes64().prop_map(|command| Step::Admin {
            command,
            opcode: opcode::admin::GET_LBA_STATUS,
            plausible: true,
            data: Vec::new(),
        }),
        3 => (0u8..6).prop_map(|cid| Step::EventRequest { cid }),
        1 => bytes64().prop_map(|command| Step::Fabrics { command }),
        2 => any::<bool>().prop_map(|discovery| Step::ConnectAdmin { discovery }),
        1 => (1u16..10).prop_map(|qid| Step::ConnectIo { qid }),
        1 => (bytes64(), connect_data)
            .prop_map(|(command, data)| Step::ConnectAnything { command, data }),
        2 => prop_oneof![Just(ENABLE), Just(0), Just(ENABLE | 1 << 14), any::<u32>()]
            .prop_map(Step::Cc),
        1 => (1u32..12).prop_map(Step::AddNamespace),
        1 => (1u32..12).prop_map(Step::RemoveNamespace),
        2 => (1u64..100).prop_map(Step::Resize),
        1 => (0u32..5, any::<u8>()).prop_map(|(group, state)| Step::Ana { group, state }),
        1 => any::<bool>().prop_map(|allow| Step::Host { allow }),
        1 => (0u64..4000).prop_map(Step::Wait),
        1 => Just(Step::Disconnect),
    ]
}

/// A transport that keeps the books: which requests are held, which connections are open.
struct Transport {
    target: Target,
    now: Duration,
    origin: Origin<'static>,
    current: Option<ControllerId>,
    held: BTreeMap<ControllerId, BTreeSet<u16>>,
    open: BTreeMap<ControllerId, BTreeSet<u16>>,
    /// The blocks of each namespace there is.
    blocks: BTreeMap<u32, u64>,
    /// How often the target was to tell what is allocated.
    allocations: u32,
}

impl Transport {
    fn new() -> Transport {
        let (target, port) = target();
        Transport {
            target,
            now: NOW,
            origin: Origin { port, local_address: None, secured: None },
            current: None,
            held: BTreeMap::new(),
            open: BTreeMap::new(),
            blocks: BTreeMap::from([(1, LIMITS.blocks)]),
            allocations: 0,
        }
    }

    fn admin(&mut self, command: &Command, data: &[u8]) {
        let Some(id) = self.current else { return };
        let statistics = |_| IoStatistics::default();
        match self.target.admin(id, command, data, self.now, &statistics) {
            Reply::Held => {
                assert_eq!(command.opcode, opcode::admin::ASYNC_EVENT_REQUEST);
                let held = self.held.entry(id).or_default();
                assert!(held.insert(command.cid.get()), "held twice");
            }
            Reply::Complete { status, data, .. } => {
                if let Some(data) = data {
                    assert!(status.is_success());
                    assert_eq!(data.len() as u32, command.sgl().length.get());
                }
            }
            Reply::AbortCommand { queue_id, .. } => {
                assert!(self.open[&id].contains(&queue_id) && queue_id != 0);
            }
            Reply::Disconnect => panic!("the admin queue was asked to go"),
            Reply::Allocation { nqn, nsid, slba, blocks, bytes, list_bytes } => {
                self.allocations += 1;
                assert_eq!(command.opcode, opcode::admin::GET_LBA_STATUS);
                assert_eq!((&*nqn, nsid), (NQN, command.nsid.get()));
                let question = Question::of(command);
                assert_eq!((question.action, question.slba), (lba_status::ALLOCATED, slba));
                let end = self.blocks[&nsid];
                assert_eq!(blocks, question.blocks.map_or(end - slba, u64::from));
                assert!(blocks > 0 && slba + blocks <= end);
                assert_eq!(bytes, command.sgl().length.get());
                assert!((8..=bytes).contains(&list_bytes));
                assert!(u64::from(list_bytes) <= question.bytes);
            }
            Reply::Pass { .. } => panic!("no namespace passes commands on"),
            Reply::Compute(_) | Reply::Refuse { .. } => panic!("no host has to prove anything"),
        }
    }

    fn connect(&mut self, command: &Command, data: &[u8]) {
        if let Ok(connected) = self.target.connect(self.origin, command, data, self.now) {
            let id = connected.controller;
            assert!((2..=crate::QUEUE_ENTRIES_MAX).contains(&connected.queue_entries));
            let fresh = self.open.entry(id).or_default().insert(connected.queue_id);
            assert!(fresh, "one connection per queue");
            if connected.queue_id == 0 {
                self.current = Some(id);
                self.held.remove(&id);
            }
        }
    }

    fn close(&mut self, id: ControllerId, chosen: impl Fn(u16) -> bool) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let closed: Vec<u16> = open.iter().copied().filter(|&queue_id| chosen(queue_id)).collect();
        for queue_id in closed {
            open.remove(&queue_id);
            self.target.disconnected(id, queue_id, self.now);
        }
        if open.is_empty() {
            self.open.remove(&id);
        }
    }

    fn settle(&mut self) {
        while let Some(event) = self.target.poll_event() {
            match event {
                Event::Complete { controller, cid, .. } => {
                    let held = self.held.get_mut(&controller).expect("something is held");
                    assert!(held.remove(&cid), "completed once, and only what is held");
                }
                Event::DropIoQueues { controller } => self.close(controller, |qid| qid != 0),
                Event::Drop { controller, .. } => {
                    self.held.remove(&controller);
                    self.close(controller, |_| true);
                }
                Event::NamespacesChanged { .. } => {}
            }
        }
        let live: BTreeSet<_> = self.target.controllers().map(|c| c.controller).collect();
        assert_eq!(live, self.open.keys().copied().collect());
        assert!(self.held.values().all(|held| held.len() <= EVENT_REQUESTS_MAX));
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Admin { command, opcode, plausible, data } => {
                let mut command = Command::read_from_bytes(&command).unwrap();
                command.opcode = opcode;
                if plausible {
                    plausible_command(&mut command);
                }
                self.admin(&command, &data);
            }
            Step::EventRequest { cid } => {
                let cid = u16::from(cid).into();
                self.admin(&Command { cid, ..admin(opcode::admin::ASYNC_EVENT_REQUEST) }, &[]);
            }
            Step::Fabrics { command } => {
                let Some(id) = self.current else { return };
                let command = Command::read_from_bytes(&command).unwrap();
                let reply = self.target.fabrics_on_io_queue(id, 1, &command, &[], self.now);
                assert!(matches!(reply, Reply::Complete { .. } | Reply::Disconnect));
            }
            Step::ConnectAdmin { discovery } => {
                let nqn = if discovery { DISCOVERY_NQN } else { NQN };
                let attempt = Attempt { nqn, ..ADMIN };
                self.connect(&attempt.connect.command(), attempt.data().as_bytes());
            }
            Step::ConnectIo { qid } => {
                let Some(id) = self.current else { return };
                let attempt = attempt_io(id.0, qid);
                self.connect(&attempt.connect.command(), attempt.data().as_bytes());
            }
            Step::ConnectAnything { command, data } => {
                let mut command = Command::read_from_bytes(&command).unwrap();
                command.opcode = opcode::admin::FABRICS;
                let _: ConnectData = ConnectData::read_from_bytes(&data).unwrap();
                self.connect(&command, &data);
            }
            Step::Cc(value) => {
                let property = nvme::fabrics::Property::CC;
                let reset = value & 1 == 0;
                self.admin(&nvme::fabrics::PropertyAccess::write(property, value), &[]);
                // The host knows that a reset ends its requests.
                if let (true, Some(id)) = (reset, self.current) {
                    self.held.remove(&id);
                }
            }
            other => self.control(other),
        }
    }

    /// What the control plane does; it may be refused.
    fn control(&mut self, step: Step) {
        let target = &mut self.target;
        let refused = match step {
            Step::AddNamespace(number) => {
                let added = target.add_namespace(NQN, namespace(number));
                self.blocks.extend(added.iter().map(|nsid| (*nsid, LIMITS.blocks)));
                added.is_err()
            }
            Step::RemoveNamespace(nsid) => {
                let removed = target.remove_namespace(NQN, nsid);
                if removed.is_ok() {
                    self.blocks.remove(&nsid);
                }
                removed.is_err()
            }
            Step::Resize(blocks) => {
                let resized = target.update_limits(NQN, 1, Limits { blocks, ..LIMITS });
                if resized.is_ok() {
                    self.blocks.insert(1, blocks);
                }
                resized.is_err()
            }
            Step::Ana { group, state } => {
                target.set_ana_state(NQN, self.origin.port, group, AnaState(state % 6)).is_err()
            }
            Step::Host { allow } => target.set_allow_any_host(NQN, allow).is_err(),
            Step::Wait(milliseconds) => {
                self.now += Duration::from_millis(milliseconds);
                target.handle_timeout(self.now);
                assert!(target.next_timeout().is_none_or(|at| at > self.now));
                false
            }
            _ => {
                if let Some(id) = self.current.take() {
                    self.close(id, |queue_id| queue_id == 0);
                }
                false
            }
        };
        // A refusal changes nothing: no event may follow from it.
        if refused {
            assert_eq!(self.target.poll_event(), None);
        }
    }
}

/// Gives a random command the fields that get it past the first checks.
fn plausible_command(command: &mut Command) {
    let cdw10 = command.cdw10.get();
    let bytes = match command.opcode {
        opcode::admin::IDENTIFY => {
            command.nsid = (command.nsid.get() % 4).into();
            command.cdw10 = (cdw10 % 0x20).into();
            command.cdw11 = (command.cdw11.get() & 0xffff).into();
            4096
        }
        opcode::admin::GET_LOG_PAGE => {
            command.nsid = (command.nsid.get() % 4).into();
            command.cdw10 = ((cdw10 % 0x14) | (cdw10 & 0x03ff_ff00)).into();
            command.cdw11 = 0.into();
            command.cdw12 = (command.cdw12.get() & 0x7fc).into();
            command.cdw13 = 0.into();
            command.cdw14 = 0.into();
            nvme::log::GetLogPage::of(command).bytes as u32
        }
        opcode::admin::SET_FEATURES | opcode::admin::GET_FEATURES => {
            command.nsid = 0.into();
            command.cdw10 = ((cdw10 % 0x84) | (cdw10 & 0x300)).into();
            if cdw10 & 1 == 0 { 512 } else { 16 }
        }
        opcode::admin::GET_LBA_STATUS => {
            command.nsid = [1, 1, 1, 2][command.nsid.get() as usize % 4].into();
            // Most of them blocks that are there, up to the end or a few, as much as there is room for or less.
            let (slba, cdw13) = (command.slba(), command.cdw13.get());
            let action = [lba_status::ALLOCATED, lba_status::ALLOCATED, 0x10, 0x11];
            let action = action[(cdw13 >> 30) as usize];
            command.set_slba(slba % 110);
            command.cdw12 = (command.cdw12.get() % 1024).into();
            command.cdw13 = (u32::from(action) << 24 | cdw13 & 31).into();
            8 + cdw10 % 1023 * 4
        }
        _ => 0,
    };
    command.set_sgl(Sgl::transport(bytes));
    command.flags = Sgl::PSDT_SGL;
}

/// Runs the steps with a host that has connected.
fn run(steps: Vec<Step>) -> Transport {
    let mut transport = Transport::new();
    transport.step(Step::ConnectAdmin { discovery: false });
    transport.step(Step::Cc(ENABLE));
    for step in steps {
        transport.step(step);
        transport.settle();
    }
    transport
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// Every command gets exactly one reply, held requests complete at most once, and the books
    /// of both sides agree after every step.
    #[test]
    fn anything_goes_and_is_answered(steps in proptest::collection::vec(step(), 1..80)) {
        run(steps);
    }
}

/// The checks of such a reply are worth something only if there are some.
#[test]
fn questions_of_what_is_allocated_are_among_the_steps() {
    let mut runner = TestRunner::deterministic();
    let strategy = proptest::collection::vec(step(), 1..80);
    let allocations: u32 =
        (0..96).map(|_| run(strategy.new_tree(&mut runner).unwrap().current()).allocations).sum();
    assert!(allocations >= 16, "{allocations}");
}
