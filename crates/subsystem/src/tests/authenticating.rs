//! Hosts that have to prove who they are.

use super::host::*;
use crate::{Authentication, ControllerId, PortId, Reply, Target};
use dhchap::{Group, Hash, HostConfig, Key, Step};
use nvme::fabrics::{Property, PropertyAccess};
use nvme::{Command, Sgl, Status, opcode};
use std::sync::Arc;
use std::time::Duration;

fn random(bytes: &mut [u8]) {
    getrandom::fill(bytes).unwrap();
}

fn key() -> Arc<Key> {
    Arc::new(Key::generate(Some(Hash::Sha384), &mut random))
}

fn wanted(host_key: &Arc<Key>, controller_key: Option<&Arc<Key>>) -> Option<Authentication> {
    Some(Authentication {
        host_keys: [Arc::clone(host_key)].into(),
        controller_key: controller_key.cloned(),
        hashes: Hash::ALL.to_vec(),
        groups: vec![Group::Ffdhe2048, Group::Null],
    })
}

fn host_end(host_key: &Arc<Key>, controller_key: Option<&Arc<Key>>) -> dhchap::Host {
    let config = HostConfig {
        host_nqn: HOST.into(),
        subsystem_nqn: NQN.into(),
        host_key: Arc::clone(host_key),
        controller_keys: controller_key.map(|key| [Arc::clone(key)].into()),
    };
    dhchap::Host::new(config, 5)
}

fn send(bytes: usize) -> Command {
    let mut command = nvme::fabrics::Authentication::send(bytes as u32);
    command.set_sgl(Sgl::in_capsule(0, bytes as u32));
    command
}

fn receive(bytes: u32) -> Command {
    let mut command = nvme::fabrics::Authentication::receive(bytes);
    command.set_sgl(Sgl::transport(bytes));
    command
}

/// One queue of a controller.
struct Queue<'a> {
    target: &'a mut Target,
    id: ControllerId,
    queue_id: u16,
    now: Duration,
}

impl<'a> Queue<'a> {
    fn of(target: &'a mut Target, id: ControllerId, queue_id: u16) -> Queue<'a> {
        Queue { target, id, queue_id, now: NOW }
    }

    fn reply(&mut self, command: &Command, data: &[u8]) -> Reply {
        match self.queue_id {
            0 => Host { target: self.target, id: self.id, now: self.now }.send(command, data),
            queue_id => self.target.fabrics_on_io_queue(self.id, queue_id, command, data, self.now),
        }
    }

    fn status(&mut self, command: &Command, data: &[u8]) -> Status {
        match self.reply(command, data) {
            Reply::Complete { status, .. } => status,
            other => panic!("{other:?}"),
        }
    }

    fn sends(&mut self, message: &[u8]) {
        match self.reply(&send(message.len()), message) {
            Reply::Compute(work) => {
                let busy = Status::COMMAND_SEQUENCE_ERROR.dnr();
                assert_eq!(self.status(&send(message.len()), message), busy);
                assert_eq!(self.status(&receive(4096), &[]), busy);
                self.target.computed(self.id, self.queue_id, work.run());
            }
            Reply::Complete { status, .. } => assert_eq!(status, Status::SUCCESS),
            Reply::Disconnect => {}
            other => panic!("{other:?}"),
        }
    }

    /// Runs an exchange; whether the host is content.
    fn prove(&mut self, mut host: dhchap::Host) -> bool {
        let mut message = host.open();
        loop {
            self.sends(&message);
            let (fetched, refused) = match self.reply(&receive(4096), &[]) {
                Reply::Complete { status: Status::SUCCESS, data: Some(data), .. } => (data, false),
                Reply::Refuse { data } => (data, true),
                other => panic!("{other:?}"),
            };
            assert_eq!(fetched.len(), 4096, "as much as the host has room for");
            let mut step = host.received(&fetched, &mut random);
            if let Step::Work(work) = step {
                step = host.computed(work.run(), &mut random);
            }
            match step {
                Step::Send(next) => message = next,
                Step::Proven(last) => {
                    if let Some(last) = last {
                        self.sends(&last);
                    }
                    return true;
                }
                Step::Failed(_, last) => {
                    assert_eq!(refused, last.is_none(), "who has failed says so");
                    if let Some(last) = last {
                        let reply = self.reply(&send(last.len()), &last);
                        assert_eq!(reply, Reply::Disconnect);
                    }
                    return false;
                }
                Step::Work(_) => panic!("it was carried out"),
            }
        }
    }
}

/// An enabled controller whose host has proved by `ours` who it is, and has to on each queue.
fn enabled(target: &mut Target, port: PortId, ours: &Arc<Key>) -> ControllerId {
    target.set_authentication(NQN, HOST, wanted(ours, None)).unwrap();
    let id = ADMIN.make(target, port).unwrap().controller;
    assert!(Queue::of(target, id, 0).prove(host_end(ours, None)));
    Host::resume(target, id).set_cc(ENABLE);
    id
}

fn cap() -> Command {
    PropertyAccess::read(Property::CAP)
}

#[test]
fn a_queue_takes_nothing_before_its_host_has_proved_who_it_is() {
    let (mut target, port) = target();
    let (ours, theirs) = (key(), key());
    target.set_authentication(NQN, HOST, wanted(&ours, Some(&theirs))).unwrap();
    let connected = ADMIN.make(&mut target, port).unwrap();
    assert!(connected.authenticate);
    assert_eq!(connected.result(), u32::from(connected.cntlid) | 1 << 17);
    let id = connected.controller;
    let required = Status::AUTHENTICATION_REQUIRED.dnr();
    let mut admin = Queue::of(&mut target, id, 0);
    assert_eq!(admin.status(&cap(), &[]), required);
    assert_eq!(admin.status(&identify(1, 0), &[]), required);
    assert_eq!(admin.status(&PropertyAccess::write(Property::CC, ENABLE), &[]), required);
    assert!(admin.target.controller(id).unwrap().authentication.is_none());
    assert!(admin.prove(host_end(&ours, Some(&theirs))));
    let agreed = Some((Hash::Sha512, Group::Ffdhe2048));
    assert_eq!(admin.target.controller(id).unwrap().authentication, agreed);
    assert_eq!(admin.status(&cap(), &[]), Status::SUCCESS);
    Host::resume(&mut target, id).set_cc(ENABLE);

    // Each queue for itself.
    let io = attempt_io(id.0, 1).make(&mut target, port).unwrap();
    assert!(io.authenticate && !target.is_proven(id, 1));
    let mut queue = Queue::of(&mut target, id, 1);
    let disconnect =
        Command { nsid: 8.into(), opcode: opcode::admin::FABRICS, ..Command::default() };
    assert_eq!(queue.status(&disconnect, &[]), required);
    assert!(queue.prove(host_end(&ours, None)), "it need not ask for a proof");
    assert!(target.is_proven(id, 1));

    // A queue id that is used again has proved nothing.
    target.disconnected(id, 1, NOW);
    assert!(attempt_io(id.0, 1).make(&mut target, port).unwrap().authenticate);
    assert!(!target.is_proven(id, 1));
}

#[test]
fn who_cannot_prove_who_it_is_is_sent_away() {
    let (mut target, port) = target();
    let ours = key();
    target.set_authentication(NQN, HOST, wanted(&ours, None)).unwrap();
    let id = ADMIN.make(&mut target, port).unwrap().controller;
    let mut admin = Queue::of(&mut target, id, 0);
    assert!(!admin.prove(host_end(&key(), None)));
    assert_eq!(target.authentication_failure(id, 0), Some(dhchap::Failure::Failed));
    assert!(!target.is_proven(id, 0));

    // One who asks for a proof that we cannot give.
    let id = ADMIN.make(&mut target, port).unwrap().controller;
    let mut admin = Queue::of(&mut target, id, 0);
    assert!(!admin.prove(host_end(&ours, Some(&key()))));

    // One who is given a wrong proof.
    target.set_authentication(NQN, HOST, wanted(&ours, Some(&key()))).unwrap();
    let id = ADMIN.make(&mut target, port).unwrap().controller;
    let mut admin = Queue::of(&mut target, id, 0);
    assert!(!admin.prove(host_end(&ours, Some(&key()))));
    assert!(!target.is_proven(id, 0));
}

#[test]
fn keys_count_from_the_next_proof_on() {
    let (mut target, port) = target();
    let (first, second) = (key(), key());
    target.set_authentication(NQN, HOST, wanted(&first, None)).unwrap();
    let id = ADMIN.make(&mut target, port).unwrap().controller;
    let mut admin = Queue::of(&mut target, id, 0);
    assert!(admin.prove(host_end(&first, None)));
    admin.target.set_authentication(NQN, HOST, wanted(&second, None)).unwrap();
    assert!(admin.target.is_proven(id, 0), "what is connected stays");
    assert!(admin.prove(host_end(&second, None)), "the new key, by a host that proves it again");
    assert!(!admin.prove(host_end(&first, None)));
    assert!(!target.is_proven(id, 0), "who fails then has lost what it had");
    // Another host has nothing to prove, nor has this one when its key is taken away.
    let other = Attempt { host: OTHER_HOST, ..ADMIN }.make(&mut target, port).unwrap();
    assert!(!other.authenticate && other.result() == u32::from(other.cntlid));
    target.set_authentication(NQN, HOST, None).unwrap();
    assert!(!ADMIN.make(&mut target, port).unwrap().authenticate);
    let nowhere = target.set_authentication("nqn.2026-11.test.nvlane:none", HOST, None);
    assert!(nowhere.is_err() && target.set_authentication(NQN, "no name", None).is_err());
}

#[test]
fn who_has_proved_nothing_keeps_nobody_alive() {
    let (mut target, port) = target();
    let ours = key();
    let id = enabled(&mut target, port, &ours);
    // Somebody else connects a queue of it again and again, and proves nothing.
    let mut now = NOW;
    let opened = host_end(&ours, None).open();
    for _ in 0..12 {
        now += Duration::from_secs(1);
        let origin = crate::Origin { port, local_address: None, secured: None };
        let attempt = attempt_io(id.0, 1);
        let data = attempt.data();
        let connected = target.connect(
            origin,
            &attempt.connect.command(),
            zerocopy::IntoBytes::as_bytes(&data),
            now,
        );
        if let Ok(connected) = connected {
            assert!(connected.authenticate);
            let read = Command { opcode: opcode::admin::FABRICS, ..cap() };
            target.fabrics_on_io_queue(id, 1, &read, &[], now);
            target.fabrics_on_io_queue(id, 1, &send(opened.len()), &opened, now);
            target.disconnected(id, 1, now);
        }
        target.handle_timeout(now);
    }
    assert!(target.controller(id).unwrap().dropped, "its host has long been silent");
}

#[test]
fn a_host_that_takes_long_to_prove_who_it_is_on_many_queues_is_not_given_up() {
    let (mut target, port) = target();
    let ours = key();
    let id = enabled(&mut target, port, &ours);
    for queue_id in 1..=8 {
        assert!(attempt_io(id.0, queue_id).make(&mut target, port).unwrap().authenticate);
        let now = NOW + Duration::from_secs(3) * u32::from(queue_id);
        assert!(Queue { now, ..Queue::of(&mut target, id, queue_id) }.prove(host_end(&ours, None)));
        target.handle_timeout(now);
    }
    assert!(!target.controller(id).unwrap().dropped, "24 s without a Keep Alive");
}

#[test]
fn the_keep_alive_timer_begins_with_the_proof() {
    let (mut target, port) = target();
    let ours = key();
    target.set_authentication(NQN, HOST, wanted(&ours, None)).unwrap();
    let slow = ADMIN.make(&mut target, port).unwrap().controller;
    let silent = ADMIN.make(&mut target, port).unwrap().controller;
    // It computes for much longer than its timer runs (5 s), without a word.
    let late = NOW + Duration::from_secs(50);
    target.handle_timeout(late);
    assert!(!target.controller(slow).unwrap().dropped);
    assert!(Queue { now: late, ..Queue::of(&mut target, slow, 0) }.prove(host_end(&ours, None)));
    target.handle_timeout(late + Duration::from_millis(4900));
    assert!(!target.controller(slow).unwrap().dropped, "it has just begun");
    target.handle_timeout(late + Duration::from_secs(5));
    assert!(target.controller(slow).unwrap().dropped, "as any other's now");
    target.handle_timeout(NOW + crate::UNUSED_IDLE);
    assert!(target.controller(silent).unwrap().dropped, "it has an end");
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let (mut target, port) = target();
    let ours = key();
    target.set_authentication(NQN, HOST, wanted(&ours, None)).unwrap();
    let id = ADMIN.make(&mut target, port).unwrap().controller;
    let mut admin = Queue::of(&mut target, id, 0);
    let message = host_end(&ours, None).open();
    let invalid = Status::INVALID_FIELD.dnr();
    let mut other = send(message.len());
    other.cdw10 = 0x0101_0100u32.into();
    assert_eq!(admin.status(&other, &message), invalid, "another security protocol");
    assert_eq!(admin.status(&send(0), &[]), invalid);
    assert_eq!(admin.status(&receive(8193), &[]), invalid);
    let mut wrong = send(message.len());
    wrong.set_sgl(Sgl::in_capsule(0, 7));
    assert_eq!(admin.status(&wrong, &message), Status::SGL_LENGTH_INVALID.dnr());
    assert_eq!(admin.status(&receive(7), &[]), invalid);
    // Nothing of that has spoilt anything.
    admin.sends(&message);
    // A challenge without room for it cannot be had.
    assert!(matches!(admin.reply(&receive(64), &[]), Reply::Refuse { data } if data.len() == 64));

    // A host that need not prove anything knows no such command.
    target.set_authentication(NQN, HOST, None).unwrap();
    let id = ADMIN.make(&mut target, port).unwrap().controller;
    let mut admin = Queue::of(&mut target, id, 0);
    assert_eq!(admin.status(&send(message.len()), &message), Status::INVALID_OPCODE.dnr());
}
