use super::host::*;
use crate::{AnaState, ControllerId, Event, PortConfig, Reply};
use nvme::event::AsyncEvent;
use nvme::log::{GetLogPage, Lid};
use nvme::{Command, Limits, Status, opcode};

const NAMESPACE_CHANGED: u32 = AsyncEvent::NAMESPACE_ATTRIBUTE.dword0();
const ANA_CHANGED: u32 = AsyncEvent::ANA_CHANGE.dword0();

fn resized(blocks: u64) -> Limits {
    Limits { blocks, ..LIMITS }
}

#[test]
fn an_event_waits_for_a_request() {
    let (mut target, port) = target();
    let id = Host::connect(&mut target, port).id;
    target.update_limits(NQN, 1, resized(8)).unwrap();
    assert_eq!(drain(&mut target), [Event::NamespacesChanged { nqn: NQN.into() }]);
    assert_eq!(Host::resume(&mut target, id).await_event(40), Reply::Held);
    assert_eq!(completions(&drain(&mut target)), [(40, NAMESPACE_CHANGED)]);
}

#[test]
fn an_event_is_masked_until_its_page_is_read_without_retaining() {
    let (mut target, port) = target();
    let id = Host::connect(&mut target, port).id;
    for cid in 1..=3 {
        Host::resume(&mut target, id).await_event(cid);
    }
    target.update_limits(NQN, 1, resized(8)).unwrap();
    assert_eq!(completions(&drain(&mut target)), [(1, NAMESPACE_CHANGED)]);
    target.add_namespace(NQN, namespace(2)).unwrap();
    assert_eq!(completions(&drain(&mut target)), []);
    let retaining = GetLogPage {
        retain_event: true,
        ..GetLogPage::of(&get_log(Lid::CHANGED_NAMESPACES, 4096, 0))
    };
    let (_, list) = Host::resume(&mut target, id).ok(&log_page(retaining), &[]);
    assert_eq!(list[..12], [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    target.update_limits(NQN, 1, resized(16)).unwrap();
    assert_eq!(completions(&drain(&mut target)), [], "still masked");
    let list = Host::resume(&mut target, id).log(Lid::CHANGED_NAMESPACES, 4096, 0);
    assert_eq!(list[..12], [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    let list = Host::resume(&mut target, id).log(Lid::CHANGED_NAMESPACES, 4096, 0);
    assert_eq!(list, [0; 4096], "cleared by reading");
    target.remove_namespace(NQN, 2).unwrap();
    assert_eq!(completions(&drain(&mut target)), [(2, NAMESPACE_CHANGED)]);
}

#[test]
fn an_unread_page_does_not_hold_back_other_notices() {
    let (mut target, port) = target();
    let id = Host::connect(&mut target, port).id;
    for cid in 1..=2 {
        Host::resume(&mut target, id).await_event(cid);
    }
    target.update_limits(NQN, 1, resized(8)).unwrap();
    target.set_ana_state(NQN, port, 1, AnaState::CHANGE).unwrap();
    let told = completions(&drain(&mut target));
    assert_eq!(told, [(1, NAMESPACE_CHANGED), (2, ANA_CHANGED)]);
}

#[test]
fn what_did_not_change_is_not_announced() {
    let (mut target, port) = target();
    Host::connect(&mut target, port).await_event(1);
    target.update_limits(NQN, 1, LIMITS).unwrap();
    target.set_ana_state(NQN, port, 1, AnaState::OPTIMIZED).unwrap();
    assert_eq!(drain(&mut target), []);
}

#[test]
fn notices_can_be_turned_off() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    assert_eq!(host.ok(&get_feature(0x0b, 0), &[]).0, 1 << 8 | 1 << 11 | 0xff);
    host.ok(&set_feature(0x0b, 1 << 11), &[]);
    let id = host.id;
    host.await_event(1);
    target.update_limits(NQN, 1, resized(8)).unwrap();
    assert_eq!(completions(&drain(&mut target)), []);
    Host::resume(&mut target, id).ok(&set_feature(0x0b, 1 << 8), &[]);
    target.update_limits(NQN, 1, resized(16)).unwrap();
    assert_eq!(completions(&drain(&mut target)), [(1, NAMESPACE_CHANGED)]);
}

#[test]
fn a_notice_that_waits_for_a_request_can_be_turned_off() {
    let (mut target, port) = target();
    let id = Host::connect(&mut target, port).id;
    target.update_limits(NQN, 1, resized(8)).unwrap();
    target.set_ana_state(NQN, port, 1, AnaState::CHANGE).unwrap();
    let mut host = Host::resume(&mut target, id);
    host.ok(&set_feature(0x0b, 1 << 11), &[]);
    for cid in 1..=2 {
        assert_eq!(host.await_event(cid), Reply::Held);
    }
    assert_eq!(completions(&drain(&mut target)), [(1, ANA_CHANGED)]);
    Host::resume(&mut target, id).ok(&set_feature(0x0b, 1 << 8), &[]);
    assert_eq!(completions(&drain(&mut target)), [], "as what changes while it is off");
    target.update_limits(NQN, 1, resized(16)).unwrap();
    assert_eq!(completions(&drain(&mut target)), [(2, NAMESPACE_CHANGED)]);
}

#[test]
fn ana_changes_reach_the_controllers_of_their_port() {
    let (mut target, port) = target();
    let traddr = "192.0.2.2".parse().unwrap();
    let other = target.add_port(PortConfig { traddr, trsvcid: 4420, is_secured: false }).unwrap();
    let here = Host::connect(&mut target, port).id;
    let there = Host::connect(&mut target, other).id;
    for id in [here, there] {
        Host::resume(&mut target, id).await_event(id.0);
    }
    drain(&mut target);
    target.set_ana_state(NQN, other, 1, AnaState::INACCESSIBLE).unwrap();
    let events = drain(&mut target);
    assert_eq!(completions(&events), [(there.0, ANA_CHANGED)]);
    assert!(events.contains(&Event::NamespacesChanged { nqn: NQN.into() }));
    assert_eq!(target.namespaces(NQN, port)[0].state.io_status(), None);
    let status = target.namespaces(NQN, other)[0].state.io_status();
    assert_eq!(status, Some(Status::ANA_INACCESSIBLE));
}

#[test]
fn requests_are_limited_and_their_ids_are_unique() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    assert_eq!(host.await_event(1), Reply::Held);
    let again = host.await_event(1);
    assert_eq!(again, Reply::from(Status::CID_CONFLICT.dnr()));
    for cid in 2..=4 {
        assert_eq!(host.await_event(cid), Reply::Held);
    }
    assert_eq!(host.await_event(5), Reply::from(Status::AER_LIMIT_EXCEEDED.dnr()));
}

#[test]
fn more_changes_than_the_list_holds_are_told_as_all() {
    let (mut target, port) = target();
    let id = Host::connect(&mut target, port).id;
    for number in 2..=1025 {
        target.add_namespace(NQN, namespace(number)).unwrap();
    }
    let full = Host::resume(&mut target, id).log(Lid::CHANGED_NAMESPACES, 4096, 0);
    assert_eq!((&full[..4], &full[4092..]), (&[2, 0, 0, 0][..], &[1, 4, 0, 0][..]));
    for nsid in 1..=1025 {
        target.remove_namespace(NQN, nsid).unwrap();
    }
    let list = Host::resume(&mut target, id).log(Lid::CHANGED_NAMESPACES, 4096, 0);
    assert_eq!(list[..8], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
}

fn abort(queue_id: u16, cid: u16) -> Command {
    let cdw10 = (u32::from(queue_id) | u32::from(cid) << 16).into();
    Command { cdw10, ..admin(opcode::admin::ABORT) }
}

#[test]
fn abort_takes_back_event_requests_and_names_io_commands() {
    let (mut target, port) = target();
    let id: ControllerId = Host::connect(&mut target, port).id;
    attempt_io(id.0, 2).make(&mut target, port).unwrap();
    let mut host = Host::resume(&mut target, id);
    host.await_event(33);
    assert_eq!(host.ok(&abort(0, 34), &[]).0, 1, "not found");
    assert_eq!(host.ok(&abort(0, 33), &[]).0, 0);
    assert_eq!(host.send(&abort(2, 7), &[]), Reply::AbortCommand { queue_id: 2, cid: 7 });
    assert_eq!(host.status(&abort(3, 7), &[]), Status::INVALID_FIELD.dnr());
    let status = Status::ABORT_REQUESTED;
    let expected = [Event::Complete { controller: id, cid: 33, status, result: 0 }];
    assert_eq!(drain(&mut target), expected);
}
