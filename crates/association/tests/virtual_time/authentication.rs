//! A controller that wants to know who this host is, and one that is to prove who it is itself.

use super::{NQN, World, config, seconds};
use crate::peer::{Demands, Peer};
use association::{Access, Credentials, Event, Reason};
use dhchap::{ControllerConfig, Failure, Group, Hash, HostConfig, Key};
use nvme::fabrics::ConnectResult;
use nvme::{Completion, Status, opcode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Authentication Send and Receive.
const EXCHANGE: [&str; 4] = ["fabrics 5", "fabrics 6", "fabrics 5", "fabrics 6"];

fn key(seed: u8) -> Arc<Key> {
    Arc::new(Key::generate(None, &mut |bytes| bytes.fill(seed)))
}

/// Never what the peer has (33h): a challenge that is the controller's own is refused.
fn random(bytes: &mut [u8]) {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    bytes.fill(NEXT.fetch_add(1, Ordering::Relaxed) | 0x80);
}

fn credentials(host: u8, controller: Option<u8>) -> Credentials {
    let config = HostConfig {
        host_nqn: config().host_nqn.into(),
        subsystem_nqn: NQN.into(),
        host_key: key(host),
        controller_keys: controller.map(|seed| [key(seed)].into()),
    };
    Credentials { config, random }
}

fn demands(host: u8, controller: Option<u8>, group: Group) -> Option<Demands> {
    Some(Demands::new(ControllerConfig {
        host_nqn: config().host_nqn.into(),
        subsystem_nqn: NQN.into(),
        host_keys: [key(host)].into(),
        controller_key: controller.map(key),
        hashes: Hash::ALL.to_vec(),
        groups: vec![group],
    }))
}

/// A host with `given` at a controller that demands `wanted`: keys of the host and of the controller.
fn world(given: Option<(u8, Option<u8>)>, wanted: (u8, Option<u8>), group: Group) -> World {
    let peer = Peer { demands: demands(wanted.0, wanted.1, group), ..Peer::default() };
    World::with(config(), peer, given.map(|(host, controller)| credentials(host, controller)))
}

fn steps(world: &World) -> Vec<&str> {
    world.log.iter().map(|(_, what)| what.as_str()).collect()
}

#[test]
fn a_host_proves_who_it_is_before_anything_else() {
    for (given, last) in [((1, None), None), ((1, Some(2)), Some("fabrics 5"))] {
        for group in [Group::Null, Group::Ffdhe2048] {
            let world = world(Some(given), (1, Some(2)), group);
            assert_eq!(world.association.access(), Access::Optimized);
            let mut expected = vec!["dial", "fabrics 1"];
            expected.extend(&EXCHANGE[..2]);
            expected.extend((group != Group::Null).then_some("compute"));
            expected.extend(&EXCHANGE[2..]);
            expected.extend(last);
            // CAP.
            expected.push("fabrics 4");
            assert_eq!(steps(&world)[..expected.len()], expected);
        }
    }
}

#[test]
fn what_is_not_demanded_is_not_done() {
    let world = World::with(config(), Peer::default(), Some(credentials(1, None)));
    assert_eq!(world.association.access(), Access::Optimized);
    assert_eq!(world.count("fabrics 5"), 0);
}

#[test]
fn who_is_not_believed_is_told_why() {
    let refused = Reason::Refused(Failure::Failed);
    for (given, wanted, reason) in [
        (None, (1, None), Reason::KeyWanted),
        (Some((3, None)), (1, None), refused.clone()),
        (Some((3, Some(2))), (1, Some(2)), refused.clone()),
        (Some((1, Some(2))), (1, None), refused),
        (Some((1, Some(2))), (1, Some(3)), Reason::OtherController),
    ] {
        for group in [Group::Null, Group::Ffdhe2048] {
            let mut world = world(given, wanted, group);
            assert_eq!(*world.association.reason(), reason);
            assert_eq!(world.association.access(), Access::Lost);
            assert_eq!(world.count("fabrics 4"), 0, "not even a property");
            // It is tried again, in vain.
            world.run(seconds(35));
            assert_eq!((world.count("dial"), world.count("hang up")), (4, 4));
            // A key that fits is used from the next attempt on.
            let (host, controller) = wanted;
            world.association.set_credentials(Some(credentials(host, controller)));
            world.run(seconds(41));
            assert_eq!(world.association.access(), Access::Optimized);
        }
    }
}

#[test]
fn a_controller_that_fails_to_prove_who_it_is_hears_so() {
    let world = world(Some((1, Some(2))), (1, Some(3)), Group::Ffdhe2048);
    assert_eq!(
        steps(&world)[2..][..7],
        ["fabrics 5", "fabrics 6", "compute", "fabrics 5", "fabrics 6", "fabrics 5", "hang up"]
    );
    let demands = world.peer.demands.as_ref().expect("it was asked to");
    assert!(demands.controller.borrow().failure() == Some(Failure::Failed));
}

#[test]
fn a_controller_that_was_to_prove_who_it_is_may_not_do_without() {
    let world = World::with(config(), Peer::default(), Some(credentials(1, Some(2))));
    assert_eq!(*world.association.reason(), Reason::Unproven);
    for with_key in [false, true] {
        let authreq = ConnectResult::SECURE_CHANNEL | ConnectResult::AUTHENTICATE;
        let peer = Peer { authreq, ..Peer::default() };
        let world = World::with(config(), peer, with_key.then(|| credentials(1, None)));
        assert_eq!(*world.association.reason(), Reason::SecureChannel);
    }
}

#[test]
fn every_step_is_bounded() {
    // Send, Receive, Send, Receive, Send.
    for number in 0..5 {
        let mut world = world(Some((1, Some(2))), (1, Some(2)), Group::Ffdhe2048);
        world.peer.demands.as_ref().expect("they are").silent_at.set(Some(number));
        world.handle(Event::Lost(Reason::Transport("away".into())));
        world.run(seconds(15));
        assert_eq!(world.association.access(), Access::Lost, "{number}");
        world.run(seconds(20));
        let said = world.association.reason().to_string();
        let what = ["Authentication Send", "Authentication Receive"][number % 2];
        assert!(said.contains(what) && said.contains("no answer"), "{number}: {said}");
        world.peer.demands.as_ref().expect("they are").silent_at.set(None);
        world.run(seconds(31));
        assert_eq!(
            world.association.access(),
            Access::Optimized,
            "{number}: {}",
            world.association.reason()
        );
        // The same if it says that it will not.
        world.peer.demands.as_ref().expect("they are").refuses_at.set(Some(number));
        world.handle(Event::Lost(Reason::Transport("away".into())));
        world.run(seconds(42));
        let status = Status::INVALID_FIELD.dnr();
        assert_eq!(*world.association.reason(), Reason::Failed { what, status });
    }
}

#[test]
fn what_is_computed_is_bounded_too_and_counts_for_its_own_connection() {
    let mut world = world(Some((1, None)), (1, None), Group::Ffdhe2048);
    world.peer.host_computes = false;
    world.handle(Event::Lost(Reason::Transport("away".into())));
    world.run(seconds(10));
    let (generation, work) = world.work.take().expect("there is something to compute");
    world.run(seconds(20));
    let said = world.association.reason().to_string();
    assert!(said.contains("no answer to what authentication computes within 10s"), "{said}");
    // What comes of it now is for nobody: neither while there is no connection, nor for the next.
    let late = work.run();
    world.association.handle(world.now, generation, Event::Computed(late));
    world.settle();
    assert_eq!(world.association.access(), Access::Lost);
    world.run(seconds(30));
    let (next, work) = world.work.take().expect("there is something to compute");
    assert!(next > generation);
    let (sends, done) = (world.count("fabrics 5"), dhchap::Done::default());
    world.association.handle(world.now, generation, Event::Computed(done));
    world.settle();
    assert_eq!(world.count("fabrics 5"), sends);
    world.handle(Event::Computed(work.run()));
    assert_eq!(world.association.access(), Access::Optimized);
    // And none is waited for any more.
    let log = world.log.len();
    world.handle(Event::Computed(dhchap::Done::default()));
    assert_eq!(world.log.len(), log);
}

#[test]
fn a_connection_may_end_in_the_middle() {
    let mut world = world(Some((1, Some(2))), (1, Some(2)), Group::Null);
    for number in 0..5 {
        world.peer.demands.as_ref().expect("they are").silent_at.set(Some(number));
        world.handle(Event::Lost(Reason::Transport("away".into())));
        let later = world.now + seconds(10);
        world.run(later);
        // It is in the middle of an exchange, whose answer comes no more.
        let held = world.held.take().expect("it is not answered");
        assert_eq!(held.opcode, opcode::admin::FABRICS);
        let generation = world.association.generation();
        world.handle(Event::Lost(Reason::Transport("away again".into())));
        let said = world.association.reason().to_string();
        assert_eq!(said, "away again during authentication: do the keys differ?");
        let completion = Completion::new(held.cid.get(), Status::SUCCESS, 0);
        let event = Event::Completed(&completion, &[0; 4096]);
        world.association.handle(world.now, generation, event);
        world.settle();
        world.peer.demands.as_ref().expect("they are").silent_at.set(None);
        let later = world.now + seconds(10);
        world.run(later);
        assert_eq!(
            world.association.access(),
            Access::Optimized,
            "{number}: {}",
            world.association.reason()
        );
    }
}

#[test]
fn garbage_is_no_proof() {
    for number in [1, 3] {
        for garbage in [vec![], vec![0xff; 4096], vec![1; 16], vec![0; 64]] {
            let mut world = world(Some((1, Some(2))), (1, Some(2)), Group::Ffdhe2048);
            let demands = world.peer.demands.as_ref().expect("they are");
            demands.spoils.replace(Some((number, garbage)));
            world.handle(Event::Lost(Reason::Transport("away".into())));
            world.run(seconds(11));
            let Reason::Authentication(_) = world.association.reason() else {
                panic!("{}", world.association.reason());
            };
            world.peer.demands.as_ref().expect("they are").spoils.take();
            world.run(seconds(21));
            assert_eq!(world.association.access(), Access::Optimized);
        }
    }
}
