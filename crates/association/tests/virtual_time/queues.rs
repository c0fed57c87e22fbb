//! A controller is as good as lost whose admin queue can be connected, and no I/O queue.

use super::{World, config, seconds};
use crate::peer::Peer;
use association::{Access, Config, Event, Reason};

#[test]
fn a_controller_without_io_queues_is_given_up_in_time() {
    for fast in [None, Some(seconds(20))] {
        let config =
            Config { ctrl_loss_tmo: Some(seconds(60)), fast_io_fail_tmo: fast, ..config() };
        let mut world = World::new(config, Peer::default());
        world.run(seconds(100));
        world.peer.queues = Some(false);
        world.handle(Event::Lost(Reason::Transport("away".into())));
        world.run(seconds(119));
        assert!(world.count("live") > 1, "it is tried again");
        assert_eq!(world.association.access(), Access::Lost);
        world.run(seconds(159));
        let failing = if fast.is_some() { Access::Failing } else { Access::Lost };
        assert_eq!(world.association.access(), failing);
        world.run(seconds(160));
        assert_eq!(world.association.access(), Access::Gone);
    }
}

#[test]
fn a_queue_that_was_connected_has_the_time_begin_anew() {
    let config = Config { ctrl_loss_tmo: Some(seconds(60)), ..config() };
    let mut world = World::new(config, Peer::default());
    for round in 0..4 {
        world.peer.queues = Some(false);
        world.handle(Event::QueueLost(1, "away".into()));
        world.run(seconds(100 * round + 45));
        assert_eq!(world.association.access(), Access::Lost);
        world.peer.queues = Some(true);
        world.run(seconds(100 * (round + 1)));
        assert_eq!(world.association.access(), Access::Optimized);
    }
}

#[test]
fn a_controller_that_never_had_an_io_queue_is_given_up_too() {
    let config = Config { ctrl_loss_tmo: Some(seconds(60)), ..config() };
    let mut world = World::new(config, Peer { queues: Some(false), ..Peer::default() });
    world.run(seconds(59));
    assert_eq!(world.association.access(), Access::Lost);
    world.run(seconds(60));
    assert_eq!(world.association.access(), Access::Gone);
}

#[test]
fn a_core_that_comes_to_its_queue_late_shows_nothing() {
    let config = Config { ctrl_loss_tmo: Some(seconds(60)), ..config() };
    for reason in [Event::QueueLost(1, "away".into()), Event::Lost(Reason::Connecting)] {
        let mut world = World::new(config.clone(), Peer { queues: None, ..Peer::default() });
        world.run(seconds(1000));
        world.peer.reachable = false;
        world.handle(reason);
        world.run(seconds(1059));
        assert_eq!(world.association.access(), Access::Lost);
        world.run(seconds(1060));
        assert_eq!(world.association.access(), Access::Gone);
    }
}

#[test]
fn one_that_ends_its_admin_queue_first_is_given_up_as_well() {
    let config = Config { ctrl_loss_tmo: Some(seconds(60)), ..config() };
    let mut world = World::new(config, Peer { queues: None, ..Peer::default() });
    for round in 0..6 {
        assert_eq!(
            (world.count("live"), world.association.access()),
            (round + 1, Access::Optimized)
        );
        let later = world.now + seconds(1);
        world.run(later);
        world.handle(Event::Lost(Reason::Transport("away".into())));
        world.run(later + seconds(10));
    }
    assert_eq!(world.association.access(), Access::Gone);
    assert!(world.now < seconds(70), "{:?}", world.now);
}
