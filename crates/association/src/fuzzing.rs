//! The body of the fuzz target `association` in fuzz/: what must hold whatever a controller answers.
//!
//! The fuzzer writes a script of what happens: answers that are right, answers that are not, lost
//! connections, time. Identifiers must stay unique and bounded, nothing may be sent on a
//! connection that was given up, and time must never stand still. Where the controller has to prove who it is, nothing
//! may be sent before it has (`proof`). What is found out about a namespace is what the controller has told (`told`), whatever
//! it tells (`data`). The same bytes are a discovery controller's, whose log is read.

mod data;
mod discovery;
mod proof;
mod told;

use crate::{ADMIN_COMMANDS_MAX, Action, Association, Config, Event, Namespace, Reason, Traffic};
use nvme::identify::Cns;
use nvme::lba_status::Allocated;
use nvme::{Command, Completion, Status, opcode};
use proof::Proof;
use std::time::Duration;
use told::Told;

/// What is left of the fuzzer's bytes; zeroes from then on.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let byte = self.0.split_off_first();
        byte.copied().unwrap_or(0)
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }
}

/// A command that was sent and is not answered, with the bytes of data it asked for.
struct Sent {
    generation: u64,
    command: Command,
    answer_bytes: u32,
}

struct World {
    association: Association,
    now: Duration,
    /// The connection in use; 0: none.
    up: u64,
    sent: Vec<Sent>,
    proof: Proof,
    told: Told,
}

impl World {
    fn new(association: Association, proof: Proof) -> World {
        let (now, sent, told) = (Duration::ZERO, Vec::new(), Told::default());
        World { association, now, up: 0, sent, proof, told }
    }
}

/// What the driver refuses.
fn is_strange(namespace: &Namespace) -> bool {
    namespace.identity.uuid[0] & 1 != 0
}

/// Runs a script.
pub fn fuzz_association(bytes: &[u8]) {
    fuzz_machine(bytes);
    fuzz_allocated(bytes);
    discovery::fuzz(&mut Script(bytes));
}

/// Whatever a controller says of what is allocated: extents are of blocks that were asked about, and follow one another.
fn fuzz_allocated(bytes: &[u8]) {
    let Some((slba, answer)) = bytes.split_first_chunk() else { return };
    let slba = u64::from_le_bytes(*slba);
    let Some(allocated) = Allocated::read(answer, slba) else { return };
    let mut from = slba;
    for extent in &allocated.extents {
        assert!(extent.slba >= from && extent.blocks > 0);
        from = extent.slba.checked_add(extent.blocks).expect("there are so many blocks");
    }
    // It is what was said: written again, it is read again.
    let mut again = vec![0; answer.len()];
    allocated.write(&mut again);
    assert_eq!(Allocated::read(&again, slba), Some(allocated));
}

fn fuzz_machine(bytes: &[u8]) {
    let mut script = Script(bytes);
    let mut config = Config::new("nqn.x:s", "nqn.x:h", [1; 16]);
    let choice = script.byte();
    config.nsid = (choice & 1 != 0).then_some(u32::from(choice));
    config.fast_io_fail_tmo = (choice & 2 != 0).then_some(Duration::from_secs(5));
    let mut association = Association::new(config);
    let proof = Proof::new(choice);
    association.set_credentials(proof.credentials());
    let mut world = World::new(association, proof);
    world.association.start(world.now);
    world.settle();
    while !script.0.is_empty() {
        world.act(&mut script);
        world.settle();
    }
}

impl World {
    fn settle(&mut self) {
        while let Some(action) = self.association.poll_action() {
            match action {
                Action::Dial(generation) => {
                    assert_eq!(self.up, 0, "one connection at a time");
                    self.up = generation;
                    self.proof.begin();
                    self.told = Told::default();
                }
                Action::Send { generation, command, answer_bytes, data } => {
                    self.proof.sent(&command, &data);
                    assert_eq!(generation, self.up, "sent on the connection there is");
                    assert!(command.cid.get() < ADMIN_COMMANDS_MAX);
                    let same = |sent: &Sent| sent.command.cid == command.cid;
                    assert!(!self.sent.iter().any(same), "an identifier that is in use");
                    self.sent.push(Sent { generation, command, answer_bytes });
                }
                Action::HangUp { generation, .. } => {
                    assert_eq!(generation, self.up);
                    self.up = 0;
                    self.sent.clear();
                }
                Action::Compute { generation, work } => {
                    assert_eq!(generation, self.up);
                    self.proof.work = Some((generation, work));
                }
                Action::Live(generation) => assert_eq!(generation, self.up),
                Action::NamespaceChanged => self.judge(),
                Action::AccessChanged | Action::DiscoveryChanged => {}
            }
        }
        if let Some(namespace) = self.association.namespace() {
            assert_eq!(namespace.nsid, self.association.nsid(), "commands go there");
            assert!(!is_strange(namespace), "refused");
            told::check_limits(&namespace.limits);
        }
    }

    fn judge(&mut self) {
        let generation = self.association.generation();
        if let Some(found) = self.association.proposed() {
            self.told.check(found, self.association.controller());
        }
        match self.association.proposed() {
            // Its connection has ended meanwhile.
            None => {}
            Some(found) if is_strange(found) => {
                self.association.refuse(self.now, generation, Reason::Transport("strange".into()));
            }
            Some(_) => self.association.accept(self.now),
        }
    }

    fn act(&mut self, script: &mut Script<'_>) {
        let choice = script.byte();
        let generation = match choice >> 7 {
            0 => self.association.generation(),
            _ => self.association.generation().wrapping_sub(1),
        };
        let mut tell = |event| self.association.handle(self.now, generation, event);
        match choice & 15 {
            0 if choice & 16 != 0 => self.compute(generation),
            0 => tell(Event::Connected),
            1 => tell(Event::Lost(Reason::Transport("lost".into()))),
            2 => tell(Event::QueueLost(script.word(), "lost".into())),
            3 => {
                let (queue, cid) = (script.word(), script.word());
                tell(Event::IoTimeout { queue, cid, again: choice & 16 != 0 });
            }
            4 => tell(Event::AnaStatus),
            5 if choice & 64 != 0 => match self.association.access() {
                crate::Access::Gone => self.association.start(self.now),
                _ => self.association.shut_down(self.now),
            },
            5 => {
                let (sent, answered) = (choice & 16 != 0, choice & 32 != 0);
                self.association.traffic(Traffic { sent, answered });
            }
            6 => self.pass(Duration::from_millis(script.word().into())),
            7 => self.pass_to_next(),
            8..=9 => self.answer_anything(generation, script),
            _ => self.answer(generation, choice, script),
        }
    }

    /// What was to be computed is there, or something that was not.
    fn compute(&mut self, generation: u64) {
        let (of, done) = match self.proof.work.take() {
            Some((of, work)) => (of.min(generation), work.run()),
            None => (generation, dhchap::Done::default()),
        };
        self.association.handle(self.now, of, Event::Computed(done));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.association.handle_timeout(self.now);
    }

    fn pass_to_next(&mut self) {
        let Some(at) = self.association.next_timeout() else { return };
        self.now = self.now.max(at);
        self.association.handle_timeout(self.now);
        self.settle();
        let next = self.association.next_timeout();
        assert!(next.is_none_or(|next| next > self.now), "what is due was done");
    }

    fn take(&mut self, script: &mut Script<'_>) -> Option<Sent> {
        let at = usize::from(script.byte());
        (!self.sent.is_empty()).then(|| self.sent.remove(at % self.sent.len()))
    }

    /// An answer with whatever status, result and data, which may be as long as it was asked for.
    fn answer_anything(&mut self, generation: u64, script: &mut Script<'_>) {
        let choice = script.byte();
        let sent = if choice & 1 != 0 { self.take(script) } else { None };
        let cid = match &sent {
            Some(sent) => sent.command.cid.get(),
            None if choice & 1 != 0 => 0,
            None => script.word(),
        };
        let sent = sent.or_else(|| self.sent_as(cid));
        let status = Status(script.word() & 0x7fff);
        let result = u64::from(script.word()) | u64::from(script.word()) << 16;
        let len = usize::from(script.byte()).min(script.0.len());
        let (data, rest) = script.0.split_at(len);
        script.0 = rest;
        let mut data = data.to_vec();
        if let Some(sent) = &sent
            && choice & 2 != 0
        {
            data.resize(sent.answer_bytes as usize, 0);
        }
        let completion = Completion::new(cid, status, result);
        if let Some(sent) = sent.filter(|_| generation == self.up) {
            self.told.heard(&sent.command, status.is_success(), &data);
        }
        self.association.handle(self.now, generation, Event::Completed(&completion, &data));
    }

    fn sent_as(&mut self, cid: u16) -> Option<Sent> {
        let at = self.sent.iter().position(|sent| sent.command.cid.get() == cid)?;
        Some(self.sent.remove(at))
    }

    /// An answer of the right kind, with some fields of the script's.
    fn answer(&mut self, generation: u64, choice: u8, script: &mut Script<'_>) {
        let Some(sent) = self.take(script) else { return };
        let (command, more) = (&sent.command, script.byte());
        let (has_much, is_changed) = (choice & 32 != 0, choice & 48 == 48);
        let cns = Cns(command.cdw10.get() as u8);
        let (result, mut data) = match command.opcode {
            opcode::admin::FABRICS => self.proof.answer(command, more),
            opcode::admin::IDENTIFY if has_much => (0, data::identify_much(cns, more)),
            opcode::admin::IDENTIFY => (0, data::identify(cns, more)),
            opcode::admin::GET_LOG_PAGE if has_much => (0, data::ana_much(more, sent.answer_bytes)),
            opcode::admin::GET_LOG_PAGE => (0, data::ana(more)),
            opcode::admin::ASYNC_EVENT_REQUEST => {
                let events = [0x0004_0002, 0x000c_0302, 0x0070_f002, u64::from(more)];
                (events[usize::from(more & 3)], Vec::new())
            }
            _ => (u64::from(more), Vec::new()),
        };
        data.resize(sent.answer_bytes as usize, 0);
        if is_changed && command.opcode != opcode::admin::FABRICS {
            data::change(&mut data, command, script);
        }
        let completion = Completion::new(command.cid.get(), Status::SUCCESS, result);
        let generation = generation.min(sent.generation);
        if generation == self.up {
            self.told.heard(command, true, &data);
        }
        self.association.handle(self.now, generation, Event::Completed(&completion, &data));
        if generation != self.up {
            self.sent.push(sent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn scripts(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            fuzz_association(&bytes);
        }

        #[test]
        fn answers_that_have_much(steps in proptest::collection::vec(step(), 10..60)) {
            fuzz_machine(&[&[0, 0], &steps.concat()[..]].concat());
        }
    }

    /// An answer as it is, one that is changed, or anything.
    fn step() -> impl Strategy<Value = Vec<u8>> {
        let right = prop_oneof![Just(1), any::<u8>()];
        let write = (any::<u16>(), prop_oneof![0..20_u8, any::<u8>()]);
        let writes = proptest::collection::vec(write, 1..=8);
        prop_oneof![
            8 => right.prop_map(|more| vec![47, 1, more]),
            2 => (any::<u8>(), writes).prop_map(|(more, writes)| {
                let writes = writes.iter().flat_map(|(at, value)| {
                    let [low, high] = at.to_le_bytes();
                    [low, high, *value]
                });
                let count = writes.clone().count() / 3 - 1;
                [63, 1, more, count as u8].into_iter().chain(writes).collect()
            }),
            1 => proptest::collection::vec(any::<u8>(), 1..12),
        ]
    }

    /// What each answer of a connection begins with, in turn: its choice, which command, and more.
    fn live_with(mores: [u8; 13]) -> World {
        let association = Association::new(Config::new("nqn.x:s", "nqn.x:h", [1; 16]));
        let mut world = World::new(association, Proof::new(0));
        world.association.start(Duration::ZERO);
        world.settle();
        world.act(&mut Script(&[0]));
        for more in mores {
            world.settle();
            world.act(&mut Script(&[47, 1, more]));
        }
        world.settle();
        world
    }

    #[test]
    fn a_controller_that_has_much_is_believed() {
        // Its groups do not all fit where namespaces are listed, so that there must be many.
        for (controller, page) in [(1, 1), (0x17, 0x31)] {
            let world = live_with([1, 1, 1, 1, controller, 1, 1, 1, 1, 1, 1, 0x20, page]);
            assert_eq!(world.association.access(), crate::Access::Optimized);
            let found = world.association.namespace().expect("it is live");
            assert_eq!((found.identity.eui64, found.identity.nguid), ([0x21; 8], [0x22; 16]));
            let commands = found.limits.commands;
            assert!(commands.allocation && commands.deallocate && commands.verify);
            assert!(found.limits.copy.is_offered());
            assert_eq!(found.limits.write_zeroes_bytes_max, 4 * 4096);
        }
        // A list of descriptors may end with the data, and no later.
        for (more, access) in [(0xc0, crate::Access::Optimized), (0xc1, crate::Access::Lost)] {
            let world = live_with([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, more, 1, 1]);
            assert_eq!(world.association.access(), access, "{more:#x}");
        }
    }

    /// The committed seeds, whole and cut.
    #[test]
    fn seeds() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/association");
        let entries = std::fs::read_dir(folder).expect("the seeds are committed");
        let mut count = 0;
        for entry in entries {
            let bytes = std::fs::read(entry.expect("a readable folder").path()).expect("a file");
            (0..=bytes.len()).for_each(|end| fuzz_association(&bytes[..end]));
            count += 1;
        }
        assert!(count > 0, "no seeds in {folder}");
    }

    #[test]
    fn a_good_controller_becomes_live() {
        for choice in [0, 4, 4 | 8, 4 | 16, 4 | 8 | 16] {
            becomes_live(Proof::new(choice));
        }
    }

    /// Connected, then right answers to whatever is first.
    fn becomes_live(proof: Proof) {
        let mut association = Association::new(Config::new("nqn.x:s", "nqn.x:h", [1; 16]));
        association.set_credentials(proof.credentials());
        let mut world = World::new(association, proof);
        world.association.start(Duration::ZERO);
        world.settle();
        world.act(&mut Script(&[0]));
        for _ in 0..40 {
            world.settle();
            // Not the event request, which waits behind others.
            let at = world
                .sent
                .iter()
                .position(|sent| sent.command.opcode != opcode::admin::ASYNC_EVENT_REQUEST);
            let Some(at) = at else {
                if world.proof.work.is_none() {
                    break;
                }
                world.act(&mut Script(&[16]));
                continue;
            };
            world.act(&mut Script(&[15, at as u8, 4]));
        }
        assert_eq!(world.association.access(), crate::Access::Optimized);
    }
}
