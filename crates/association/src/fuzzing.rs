//! The body of the fuzz target `association` in fuzz/: what must hold whatever a controller answers.
//!
//! The fuzzer writes a script of what happens: answers that are right, answers that are not, lost
//! connections, time. Identifiers must stay unique and bounded, nothing may be sent on a
//! connection that was given up, and time must never stand still. Where the controller has to prove who it is, nothing
//! may be sent before it has (`proof`). The same bytes are a discovery
//! controller's, whose log is read.

mod discovery;
mod proof;

use crate::{ADMIN_COMMANDS_MAX, Action, Association, Config, Event, Namespace, Reason, Traffic};
use nvme::identify::{self, Cns};
use nvme::lba_status::Allocated;
use nvme::log::ana::{Group, Header};
use nvme::{Command, Completion, Status, opcode};
use proof::Proof;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

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
    let mut world = World { association, now: Duration::ZERO, up: 0, sent: Vec::new(), proof };
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
        }
    }

    fn judge(&mut self) {
        let generation = self.association.generation();
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
            _ => self.answer(generation, script),
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

    /// An answer with whatever status, result and data.
    fn answer_anything(&mut self, generation: u64, script: &mut Script<'_>) {
        let cid = match script.byte() & 1 {
            0 => script.word(),
            _ => self.take(script).map_or(0, |sent| sent.command.cid.get()),
        };
        let status = Status(script.word() & 0x7fff);
        let result = u64::from(script.word()) | u64::from(script.word()) << 16;
        let len = usize::from(script.byte()).min(script.0.len());
        let (data, rest) = script.0.split_at(len);
        script.0 = rest;
        let completion = Completion::new(cid, status, result);
        self.association.handle(self.now, generation, Event::Completed(&completion, data));
        self.sent.retain(|sent| sent.command.cid.get() != cid);
    }

    /// An answer of the right kind, with some fields of the script's.
    fn answer(&mut self, generation: u64, script: &mut Script<'_>) {
        let Some(sent) = self.take(script) else { return };
        let (command, more) = (&sent.command, script.byte());
        let (result, mut data) = match command.opcode {
            opcode::admin::FABRICS => self.proof.answer(command, more),
            opcode::admin::IDENTIFY => (0, identify(Cns(command.cdw10.get() as u8), more)),
            opcode::admin::GET_LOG_PAGE => (0, ana(more)),
            opcode::admin::ASYNC_EVENT_REQUEST => {
                let events = [0x0004_0002, 0x000c_0302, 0x0070_f002, u64::from(more)];
                (events[usize::from(more & 3)], Vec::new())
            }
            _ => (u64::from(more), Vec::new()),
        };
        data.resize(sent.answer_bytes as usize, 0);
        let completion = Completion::new(command.cid.get(), Status::SUCCESS, result);
        let generation = generation.min(sent.generation);
        self.association.handle(self.now, generation, Event::Completed(&completion, &data));
        if generation != self.up {
            self.sent.push(sent);
        }
    }
}

fn identify(cns: Cns, more: u8) -> Vec<u8> {
    match cns {
        Cns::CONTROLLER => {
            let mut data = identify::Controller::new_zeroed();
            data.oaes = u32::MAX.into();
            data.cmic = more << 3;
            data.nanagrpid = u32::from(more).into();
            data.crdt[0] = u16::from(more >> 6).into();
            data.ctratt = (u32::from(more) << 4).into();
            data.as_bytes().to_vec()
        }
        Cns::ACTIVE_NAMESPACES if more & 1 << 7 == 0 => vec![more | 1, 0, 0, 0],
        Cns::ACTIVE_NAMESPACES => {
            let listed = (1..=7u32).filter(|nsid| more & 1 << (nsid - 1) != 0);
            listed.flat_map(u32::to_le_bytes).collect()
        }
        Cns::NAMESPACE => {
            let mut data = identify::Namespace::new_zeroed();
            data.nsze = u64::from(more).into();
            data.lbaf[0].lbads = 9 + (more & 3);
            data.anagrpid = 1.into();
            data.as_bytes().to_vec()
        }
        _ => vec![3, 16, 0, 0, more],
    }
}

fn ana(more: u8) -> Vec<u8> {
    let (mut header, mut group) = (Header::new_zeroed(), Group::new_zeroed());
    header.groups = 1.into();
    (group.group, group.state) = (1.into(), more & 15);
    [header.as_bytes(), group.as_bytes()].concat()
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
        let mut world = World { association, now: Duration::ZERO, up: 0, sent: Vec::new(), proof };
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
