use super::host::*;
use crate::{DropReason, Event, Target, UNUSED_IDLE};
use nvme::fabrics::{Connect, Csts, DISCOVERY_NQN};
use nvme::{Status, opcode};
use std::time::Duration;

fn seconds(seconds: u64) -> Duration {
    NOW + Duration::from_secs(seconds)
}

/// Runs the timers as a transport does, at the instants the target asks for, up to `end`.
fn run(target: &mut Target, end: Duration) -> Vec<Event> {
    let mut turns = 0;
    while let Some(at) = target.next_timeout().filter(|&at| at <= end) {
        target.handle_timeout(at);
        turns += 1;
        assert!(turns < 100, "the timer does not advance");
    }
    drain(target)
}

#[test]
fn silence_ends_a_controller() {
    let (mut target, port) = target();
    let id = Host::connect(&mut target, port).id;
    assert_eq!(run(&mut target, seconds(5) - Duration::from_millis(1)), []);
    let reason = DropReason::KeepAliveExpired;
    assert_eq!(run(&mut target, seconds(5)), [Event::Drop { controller: id, reason }]);
    assert_eq!(run(&mut target, seconds(500)), [], "told once");
    let mut host = Host::resume(&mut target, id);
    assert_eq!(host.status(&identify(1, 0), &[]), Status::COMMAND_SEQUENCE_ERROR.dnr());
    assert_eq!(host.csts() & Csts::CFS, Csts::CFS, "fatal status, as section 3.9 asks");
    target.disconnected(id, 0, seconds(5));
    assert_eq!(target.controllers().count(), 0);
}

#[test]
fn commands_and_io_keep_it_alive() {
    let (mut target, port) = target();
    let id = Host::connect(&mut target, port).id;
    let mut host = Host::resume(&mut target, id);
    host.now = seconds(1);
    host.ok(&admin(opcode::admin::KEEP_ALIVE), &[]);
    assert_eq!(run(&mut target, seconds(9)), [], "the timer started again at 5 s");
    target.activity(id, seconds(9));
    // A late report of earlier traffic does not undo that.
    target.activity(id, seconds(3));
    assert_eq!(run(&mut target, seconds(15) - Duration::from_millis(1)), []);
    assert_eq!(run(&mut target, seconds(15)).len(), 1);
}

#[test]
fn without_a_timeout_silence_is_fine_only_where_something_is_served() {
    let (mut target, port) = target();
    let connect = Connect { kato_ms: 0, ..ADMIN.connect };
    Host::attempt(&mut target, port, Attempt { connect, ..ADMIN });
    let unused = Attempt { connect, ..ADMIN }.make(&mut target, port).unwrap().controller;
    let discovery = Attempt { nqn: DISCOVERY_NQN, connect, ..ADMIN };
    let discovery = Host::attempt(&mut target, port, discovery).id;
    let reason = DropReason::Idle;
    let expected = [unused, discovery].map(|controller| Event::Drop { controller, reason });
    assert_eq!(run(&mut target, NOW + UNUSED_IDLE), expected);
    assert_eq!(target.next_timeout(), None, "the first one stays");
}

#[test]
fn a_changed_timeout_counts_from_then() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    host.now = seconds(3);
    host.ok(&set_feature(0x0f, 1000), &[]);
    assert_eq!(run(&mut target, seconds(4) - Duration::from_millis(1)), []);
    assert_eq!(run(&mut target, seconds(4)).len(), 1);
}
