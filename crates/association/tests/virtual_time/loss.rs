//! What is lost fails fast if asked to, is tried again, and is given up in the end.

use super::{World, config, millis, seconds};
use crate::peer::Peer;
use association::{Access, Config, Event, Reason};
use nvme::identify::Cns;
use std::time::Duration;

#[test]
fn a_loss_fails_fast_if_asked_to_and_is_given_up_in_the_end() {
    let mut config = config();
    config.fast_io_fail_tmo = Some(seconds(5));
    config.ctrl_loss_tmo = Some(seconds(60));
    let mut world = World::new(config, Peer::default());
    world.run(seconds(1));
    world.peer.reachable = false;
    world.handle(Event::Lost(Reason::Transport("closed".into())));
    world.run(millis(5900));
    assert_eq!(world.association.access(), Access::Lost);
    world.run(millis(6100));
    assert_eq!(world.association.access(), Access::Failing);
    // It recovers from that.
    world.peer.reachable = true;
    world.run(seconds(12));
    assert_eq!(world.association.access(), Access::Optimized);
    world.peer.reachable = false;
    world.handle(Event::Lost(Reason::Transport("closed".into())));
    world.run(seconds(71));
    assert_eq!(world.association.access(), Access::Failing);
    world.run(seconds(73));
    assert_eq!(world.association.access(), Access::Gone);
    let reason = world.association.reason().to_string();
    assert!(reason.contains("ctrl_loss_tmo") && reason.contains("refused"), "{reason}");
    let dials = world.count("dial");
    world.peer.reachable = true;
    world.run(seconds(1000));
    assert_eq!(world.count("dial"), dials, "it was all there was");
    assert_eq!(world.association.access(), Access::Gone);
}

#[test]
fn a_path_that_was_given_up_is_tried_again_beside_others() {
    let config = Config { ctrl_loss_tmo: Some(seconds(60)), ..config() };
    let mut world = World::new(config, Peer::default());
    world.run(seconds(1));
    world.peer.reachable = false;
    world.handle(Event::Lost(Reason::Transport("closed".into())));
    world.run(seconds(62));
    assert_eq!(world.association.access(), Access::Gone);
    world.association.set_company(true);
    let (dials, told) = (world.count("dial"), world.count("access"));
    world.run(seconds(162));
    let again = world.count("dial") - dials;
    assert!((9..=11).contains(&again), "every reconnect_delay: {again}");
    assert_eq!(world.association.access(), Access::Gone, "nobody waits for it");
    assert_eq!(world.count("access"), told, "nor hears of it");
    let reason = world.association.reason().to_string();
    assert!(reason.contains("ctrl_loss_tmo") && reason.contains("refused"), "{reason}");
    // Why it cannot be had is told when it changes.
    let last = world.association.reason().clone();
    // A controller with which no I/O queue can be connected does not make it wait either.
    (world.peer.reachable, world.peer.queues) = (true, Some(false));
    world.run(seconds(173));
    assert!(world.count("live") > 1, "it is tried");
    assert_eq!(world.association.access(), Access::Gone);
    assert!(*world.association.reason() != last && world.count("access") > told);
    world.peer.queues = Some(true);
    world.run(seconds(184));
    assert_eq!(world.association.access(), Access::Optimized);
    // It is one as any other then.
    world.peer.reachable = false;
    world.handle(Event::Lost(Reason::Transport("closed".into())));
    assert_eq!(world.association.access(), Access::Lost);
    world.run(seconds(245));
    assert_eq!(world.association.access(), Access::Gone);
    // Closed, it is let alone; started anew, it has all its time.
    world.association.close();
    let dials = world.count("dial");
    world.run(seconds(400));
    assert_eq!(world.count("dial"), dials);
    world.association.start(world.now);
    world.run(seconds(459));
    assert_eq!(world.association.access(), Access::Lost);
    world.run(seconds(461));
    assert_eq!(world.association.access(), Access::Gone);
}

#[test]
fn without_ctrl_loss_tmo_it_tries_for_ever() {
    let config = Config { ctrl_loss_tmo: None, ..config() };
    let mut world = World::new(config, Peer { reachable: false, ..Peer::default() });
    world.run(seconds(100_000));
    assert_eq!(world.count("dial"), 10_001);
    world.peer.reachable = true;
    world.run(seconds(100_020));
    assert_eq!(world.association.access(), Access::Optimized);
}

/// As Linux: without a time for it there are no reconnects, and the attempt to connect at first is one all the same.
#[test]
fn no_time_for_reconnects_is_the_end_at_the_loss() {
    let config = Config { ctrl_loss_tmo: Some(Duration::ZERO), ..config() };
    let mut world = World::new(config.clone(), Peer { queues: None, ..Peer::default() });
    // It takes its time.
    world.run(seconds(1));
    assert_eq!((world.association.access(), world.count("dial")), (Access::Optimized, 1));
    world.handle(Event::QueueLive);
    world.run(seconds(100));
    world.peer.reachable = false;
    world.handle(Event::Lost(Reason::Transport("closed".into())));
    assert_eq!(world.association.access(), Access::Gone);
    let reason = world.association.reason().to_string();
    assert_eq!(reason, "given up at once (ctrl_loss_tmo); the last attempt: closed");
    world.run(seconds(1000));
    assert_eq!(world.count("dial"), 1, "it is the end");
    // Beside others it is tried again, as any that was given up.
    world.association.set_company(true);
    world.peer = Peer::default();
    world.run(seconds(1020));
    assert_eq!((world.association.access(), world.count("dial")), (Access::Optimized, 2));

    let mut world = World::new(config, Peer { reachable: false, ..Peer::default() });
    world.run(seconds(1000));
    assert_eq!((world.association.access(), world.count("dial")), (Access::Gone, 1));
    let reason = world.association.reason().to_string();
    assert!(reason.contains("at once (ctrl_loss_tmo)") && reason.contains("refused"), "{reason}");
}

#[test]
fn a_first_attempt_that_is_held_up_is_waited_for_though_there_is_no_time() {
    for (loss, fast) in [(Some(Duration::ZERO), None), (None, Some(Duration::ZERO))] {
        let config = Config { ctrl_loss_tmo: loss, fast_io_fail_tmo: fast, ..config() };
        let peer = Peer { held: Some((Cns::NAMESPACE, 1)), ..Peer::default() };
        let mut world = World::new(config, peer);
        world.run(seconds(9));
        assert_eq!(world.association.access(), Access::Lost, "{loss:?} {fast:?}");
        world.answer_held();
        assert_eq!(world.association.access(), Access::Optimized, "{loss:?} {fast:?}");
    }
}

#[test]
fn no_time_for_commands_fails_them_at_the_loss_and_reconnects_all_the_same() {
    let config = Config { fast_io_fail_tmo: Some(Duration::ZERO), ..config() };
    let mut world = World::new(config, Peer::default());
    world.run(seconds(1));
    world.peer.reachable = false;
    world.handle(Event::Lost(Reason::Transport("closed".into())));
    assert_eq!(world.association.access(), Access::Failing);
    // Also while it is tried.
    world.run(seconds(11));
    assert_eq!((world.association.access(), world.count("dial")), (Access::Failing, 2));
    world.peer.reachable = true;
    world.run(seconds(21));
    assert_eq!((world.association.access(), world.count("dial")), (Access::Optimized, 3));
}
