//! The orderly end of an association.

use super::{World, config, millis, seconds};
use crate::peer::Peer;
use association::{Access, Event, Reason, SHUTDOWN_TIME};
use nvme::fabrics::Csts;

/// Property Set and Property Get.
const SET: &str = "fabrics 0";
const GET: &str = "fabrics 4";

impl World {
    fn shut_down(&mut self) {
        self.log.clear();
        self.association.shut_down(self.now);
        self.settle();
    }

    fn steps(&self) -> Vec<&str> {
        self.log.iter().map(|(_, what)| what.as_str()).collect()
    }
}

#[test]
fn a_controller_is_told_and_waited_for() {
    let mut world = World::live();
    world.run(seconds(3));
    world.peer.csts = Csts::RDY | Csts::SHST_OCCURRING;
    world.shut_down();
    assert_eq!(world.steps(), ["access", SET, GET]);
    assert_eq!(world.association.access(), Access::Gone);
    assert!(world.association.is_closing());
    world.run(millis(3100));
    assert!(world.association.is_closing() && world.count(GET) > 3);
    world.peer.csts = Csts::RDY | Csts::SHST_COMPLETE;
    world.run(millis(3200));
    assert!(!world.association.is_closing());
    assert_eq!(world.log.last().map(|(_, what)| what.as_str()), Some("hang up"));
    // Neither a keep alive nor another attempt.
    let said = world.log.len();
    world.run(seconds(100));
    assert_eq!(world.log.len(), said);
}

#[test]
fn nobody_waits_long() {
    for silent in [false, true] {
        let mut world = World::live();
        world.run(seconds(3));
        world.peer.silent = silent;
        world.shut_down();
        world.run(seconds(3) + SHUTDOWN_TIME - millis(1));
        assert!(world.association.is_closing());
        world.run(seconds(3) + SHUTDOWN_TIME);
        assert!(!world.association.is_closing());
        assert_eq!(world.count("hang up"), 1);
        world.run(seconds(100));
        assert_eq!((world.count("hang up"), world.count("dial")), (1, 0));
    }
}

#[test]
fn a_connection_that_ends_meanwhile_is_the_end() {
    for event in [Event::Lost(Reason::Transport("away".into())), Event::QueueLost(1, "away".into())]
    {
        let mut world = World::live();
        world.peer.silent = true;
        world.shut_down();
        world.handle(event);
        assert_eq!((world.association.is_closing(), world.count("hang up")), (false, 1));
        world.run(seconds(100));
        assert_eq!((world.association.access(), world.count("dial")), (Access::Gone, 0));
    }
}

#[test]
fn what_is_not_live_is_closed_at_once() {
    let mut world = World::new(config(), Peer { silent: true, ..Peer::default() });
    world.shut_down();
    assert_eq!(world.steps(), ["hang up", "access"]);
    assert!(!world.association.is_closing());
}

#[test]
fn it_may_be_started_again_meanwhile() {
    let mut world = World::live();
    world.peer.silent = true;
    world.shut_down();
    world.peer.silent = false;
    world.association.start(world.now);
    world.settle();
    assert_eq!(world.steps()[..4], ["access", SET, "hang up", "dial"]);
    assert_eq!(world.association.access(), Access::Optimized);
    world.run(seconds(100));
    assert_eq!(world.count("hang up"), 1);
}
