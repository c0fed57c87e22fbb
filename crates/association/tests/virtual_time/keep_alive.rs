//! When Keep Alives go, and what their silence means.

use super::{BOTH, World, config, millis, seconds};
use crate::peer::Peer;
use association::{Access, Traffic};
use std::time::Duration;

#[test]
fn keep_alives_go_at_half_the_time() {
    let mut world = World::live();
    world.run(seconds(11));
    assert_eq!(world.times("keep alive"), [millis(2500), seconds(5), millis(7500), seconds(10)]);
    assert_eq!(world.count("hang up"), 0);
}

#[test]
fn traffic_spares_keep_alives_where_the_controller_counts_it() {
    // After a look that found traffic the next comes sooner.
    let spared: &[u64] = &[3750, 8750];
    for (traffic_based, expected) in [(true, spared), (false, &[2500, 5000, 7500, 10_000])] {
        let mut world = World::new(config(), Peer { traffic_based, ..Peer::default() });
        for at in [2, 4, 7] {
            world.run(seconds(at));
            world.association.traffic(BOTH);
        }
        world.run(seconds(10));
        let expected: Vec<_> = expected.iter().map(|&at| millis(at)).collect();
        assert_eq!(world.times("keep alive"), expected, "traffic based: {traffic_based}");
    }
}

/// The controller's timer runs from what it hears, the host's patience from what it is told.
#[test]
fn neither_late_answers_nor_commands_without_one_spare_a_keep_alive() {
    for (sent, answered) in [(false, true), (true, false)] {
        let mut world = World::new(config(), Peer { traffic_based: true, ..Peer::default() });
        for at in 1..=10 {
            world.run(seconds(at));
            world.association.traffic(Traffic { sent, answered });
        }
        assert_eq!(world.count("keep alive"), 4);
    }
}

/// Whatever the moments at which commands are sent and answered, the controller is not without one for as long as its
/// timer runs.
#[test]
fn the_controller_hears_of_us_in_time() {
    for offset in 0..50 {
        let mut world = World::new(config(), Peer { traffic_based: true, ..Peer::default() });
        // One every two seconds to eleven: with late answers, as from a slow device.
        let mut heard = vec![Duration::ZERO];
        let mut at = millis(offset * 100);
        while at < seconds(60) {
            world.run(at);
            world.association.traffic(Traffic { sent: true, answered: false });
            heard.push(at);
            let late = at + millis(offset * 37 % 1900);
            world.run(late);
            world.association.traffic(Traffic { sent: false, answered: true });
            at = late + millis(100 + offset * 180);
        }
        heard.extend(world.times("keep alive"));
        heard.sort_unstable();
        let longest = heard.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(longest <= Some(millis(3750)), "{offset}: {longest:?} of 5 s");
    }
}

#[test]
fn silence_is_noticed_and_the_connection_made_anew() {
    let mut world = World::live();
    world.peer.silent = true;
    world.run(seconds(7));
    assert_eq!(world.count("hang up"), 0);
    world.run(seconds(8));
    // The Keep Alive of 2.5 s was not answered for 5 s.
    assert_eq!(world.times("hang up"), [millis(7500)]);
    assert_eq!(world.association.access(), Access::Lost);
    assert!(world.association.reason().to_string().contains("Keep Alive"));
    world.peer.silent = false;
    world.run(seconds(30));
    assert_eq!(world.times("dial"), [Duration::ZERO, millis(17_500)]);
    assert_eq!(world.association.access(), Access::Optimized);
}
