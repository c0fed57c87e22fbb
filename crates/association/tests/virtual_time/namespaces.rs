//! A namespace that is removed, renumbered, or takes another's place.

use super::{World, config, millis, seconds};
use crate::peer::Peer;
use association::{Access, Event, Reason};
use nvme::Status;
use nvme::event::AsyncEvent;
use nvme::identify::Cns;

#[test]
fn a_namespace_is_found_again_under_another_id() {
    let mut world = World::live();
    let there = |world: &World| {
        let found = world.association.namespace().map(|it| (it.nsid, it.identity.uuid[0]));
        (world.association.access(), world.association.nsid(), found)
    };
    let mut change = |namespaces: &[u32], uuids: &[(u32, u8)]| {
        (world.peer.namespaces, world.peer.uuids) = (namespaces.to_vec(), uuids.to_vec());
        world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        there(&world)
    };
    let others = [(3, 8), (5, 9), (9, 8)];
    assert_eq!(change(&[3, 5, 7, 9], &others), (Access::Optimized, 7, Some((7, 1))));
    // Its old id is another's, and then that too.
    assert_eq!(change(&[5, 7], &[(7, 8)]), (Access::Optimized, 5, Some((5, 1))));
    assert_eq!(change(&[1, 5, 9], &others), (Access::Optimized, 1, Some((1, 1))));
    assert_eq!(change(&[3, 9], &others), (Access::Inaccessible, 1, None));
    assert_eq!(change(&[], &[]), (Access::Inaccessible, 1, None));
    assert_eq!(change(&[1, 3], &[(1, 8)]), (Access::Optimized, 3, Some((3, 1))));
    assert_eq!(world.count("hang up"), 0);
    // The next connection knows where it was, and finds it where it went meanwhile.
    for (namespaces, wanted) in [(vec![1, 3], 3), (vec![1, 4], 4)] {
        world.handle(Event::Lost(Reason::Dial("test".into())));
        (world.peer.namespaces, world.peer.uuids) = (namespaces, vec![(1, 8)]);
        world.run(world.now + seconds(20));
        assert_eq!(there(&world), (Access::Optimized, wanted, Some((wanted, 1))));
    }
    // Looked at without an event.
    world.peer.namespaces = Vec::new();
    world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
    assert_eq!(world.association.access(), Access::Inaccessible);
    world.peer.namespaces = vec![6];
    world.run(world.now + seconds(2));
    assert_eq!(there(&world), (Access::Optimized, 6, Some((6, 1))));
}

/// One that has no identity is known by the id that it was found with, though nobody had named it.
#[test]
fn a_namespace_without_identity_stays_when_others_are_added() {
    // A UUID of zeroes is none.
    let peer = Peer { uuid: 0, uuids: vec![(2, 9)], ..Peer::default() };
    let mut world = World::new(config(), peer);
    assert_eq!(world.association.access(), Access::Optimized);
    world.peer.namespaces = vec![1, 2];
    world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
    assert_eq!((world.association.access(), world.association.nsid()), (Access::Optimized, 1));
    world.handle(Event::Lost(Reason::Dial("test".into())));
    world.run(world.now + seconds(20));
    assert_eq!((world.association.access(), world.association.nsid()), (Access::Optimized, 1));
    world.peer.namespaces = vec![2];
    world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
    assert_eq!(world.association.access(), Access::Inaccessible, "nor is another taken for it");
}

/// The search takes as long as there are namespaces to look at.
#[test]
fn nothing_goes_to_the_old_id_while_the_namespace_is_looked_for() {
    // Another has its id, or none has.
    for (namespaces, words) in [(vec![3, 7], "another namespace"), (vec![3], "no namespace 7")] {
        let mut world = World::new(config(), Peer { namespaces: vec![7], ..Peer::default() });
        assert_eq!((world.association.access(), world.association.nsid()), (Access::Optimized, 7));
        (world.peer.namespaces, world.peer.uuids) = (namespaces, vec![(7, 8)]);
        world.peer.held = Some((Cns::ACTIVE_NAMESPACES, 0));
        let told = world.count("access");
        world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        assert_eq!(
            (world.association.access(), world.count("access")),
            (Access::Inaccessible, told + 1)
        );
        assert!(world.association.namespace().is_none());
        let reason = world.association.reason().to_string();
        assert!(reason.contains(words), "{reason}");
        world.answer_held();
        assert_eq!((world.association.access(), world.association.nsid()), (Access::Optimized, 3));
        assert_eq!((world.count("access"), world.count("hang up")), (told + 2, 0));
    }
}

#[test]
fn commands_do_not_wait_longer_for_a_search_than_for_the_namespace() {
    let fast = config();
    let fast = association::Config { fast_io_fail_tmo: Some(seconds(5)), ..fast };
    let mut world = World::new(fast, Peer { namespaces: vec![7], ..Peer::default() });
    world.peer.namespaces = vec![3];
    world.peer.held = Some((Cns::ACTIVE_NAMESPACES, 0));
    world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
    world.run(world.now + seconds(5));
    assert_eq!(world.association.access(), Access::Failing);
    world.answer_held();
    assert_eq!(world.association.access(), Access::Optimized);
}

/// A failure that passes must not pass for a namespace without identity: others would not be the same as it.
#[test]
fn what_a_controller_fails_to_tell_is_asked_again() {
    let told = |peer: Peer| {
        let mut world = World::new(config(), peer);
        let access = world.association.access();
        world.peer.fails = None;
        world.run(seconds(11));
        let found = world.association.namespace().expect("it is there by now");
        (access, found.identity.uuid[0], found.limits.write_zeroes_bytes_max)
    };
    for cns in [Cns::NAMESPACE_DESCRIPTORS, Cns::COMMAND_SET_CONTROLLER] {
        for status in [Status::INTERNAL, Status::COMMAND_INTERRUPTED, Status::NAMESPACE_NOT_READY] {
            let peer = Peer { fails: Some((cns, status)), wzsl: Some(1), ..Peer::default() };
            assert_eq!(told(peer), (Access::Lost, 1, 8192), "{cns:?} {status}");
        }
        // It does not know them.
        for status in [Status::INTERNAL.dnr(), Status::INVALID_FIELD, Status::INVALID_OPCODE] {
            let peer = Peer { fails: Some((cns, status)), wzsl: Some(1), ..Peer::default() };
            let (uuid, bytes) = match cns {
                Cns::COMMAND_SET_CONTROLLER => (1, u32::MAX),
                _ => (0, 8192),
            };
            assert_eq!(told(peer), (Access::Optimized, uuid, bytes), "{cns:?} {status}");
        }
    }
}

#[test]
fn a_namespace_that_goes_between_two_questions_is_gone() {
    let mut world = World::live();
    world.peer.fails = Some((Cns::NAMESPACE_DESCRIPTORS, Status::INVALID_NAMESPACE.dnr()));
    world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
    assert_eq!(world.association.access(), Access::Inaccessible);
    assert!(world.association.namespace().is_none());
    world.peer.fails = None;
    world.run(seconds(2));
    assert_eq!((world.association.access(), world.count("hang up")), (Access::Optimized, 0));
}

#[test]
fn a_second_event_does_not_end_a_search_before_it_has_begun() {
    let mut world = World::new(config(), Peer { namespaces: vec![7], ..Peer::default() });
    world.peer.namespaces = vec![3];
    world.peer.held = Some((Cns::ACTIVE_NAMESPACES, 6));
    raise_twice(&mut world);
    assert_eq!(world.association.access(), Access::Optimized);
    world.answer_held();
    assert_eq!((world.association.access(), world.association.nsid()), (Access::Optimized, 3));
    assert_eq!(world.count("hang up"), 0);
}

/// Tells of a change twice, while an answer is held back.
fn raise_twice(world: &mut World) {
    world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
    // The next event request is not answered at once either.
    let held = world.held.take();
    world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
    world.held = held;
}

/// A controller keeps events of a kind to itself until the log page is read that the last one has told of.
#[test]
fn a_second_event_is_heard_though_the_namespace_is_gone() {
    let mut world = World::new(config(), Peer { namespaces: vec![7], ..Peer::default() });
    world.peer.namespaces.clear();
    world.peer.held = Some((Cns::ACTIVE_NAMESPACES, 0));
    raise_twice(&mut world);
    assert_eq!(world.count("log 4"), 1);
    world.answer_held();
    world.run(world.now + seconds(2));
    assert_eq!((world.count("log 4"), world.count("hang up")), (2, 0));
}

/// Nothing else tells of that where the target is Linux's.
#[test]
fn a_namespace_is_followed_into_another_ana_group() {
    let mut world = World::live();
    for (group, access) in [(1, Access::Inaccessible), (2, Access::Optimized)] {
        world.peer.group = group;
        world.raise(AsyncEvent::ANA_CHANGE);
        assert_eq!(world.association.access(), access);
    }
    // Without an event, when a command is refused.
    world.peer.group = 1;
    let told = world.count("access");
    for _ in 0..10 {
        if world.association.access() == Access::Optimized {
            world.handle(Event::AnaStatus);
        }
        world.run(world.now + millis(50));
    }
    assert_eq!(world.association.access(), Access::Inaccessible);
    assert_eq!(world.count("access"), told + 1, "it does not come and go");
    world.peer.group = 2;
    world.run(world.now + seconds(2));
    assert_eq!(world.association.access(), Access::Optimized);
}

#[test]
fn a_namespace_that_goes_while_its_ana_state_is_in_doubt_is_found_again() {
    for seen_before in [true, false] {
        let mut world = World::live();
        let doubt = |world: &mut World| world.handle(Event::AnaStatus);
        if seen_before {
            doubt(&mut world);
        }
        world.peer.namespaces.clear();
        world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        if !seen_before {
            // The answer to a command that was sent before.
            doubt(&mut world);
        }
        assert_eq!(world.association.access(), Access::Inaccessible);
        world.run(world.now + seconds(1));
        world.peer.namespaces.push(1);
        world.run(world.now + seconds(2));
        assert_eq!(world.association.access(), Access::Optimized);
    }
}

/// What waits for the path in some core's memory has an id that may be another namespace's from now on.
#[test]
fn a_namespace_that_goes_is_told_where_its_ana_state_let_nothing_pass_before() {
    let mut world = World::live();
    world.peer.group = 1;
    world.raise(AsyncEvent::ANA_CHANGE);
    let told = world.count("access");
    assert_eq!(world.association.access(), Access::Inaccessible);
    world.peer.namespaces.clear();
    world.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
    assert!(world.association.namespace().is_none());
    assert_eq!(
        (world.association.access(), world.count("access")),
        (Access::Inaccessible, told + 1)
    );
}
