use super::host::*;
use crate::{DropReason, Event, Origin, PortId, Refusal, Reply, Target, TargetConfig};
use nvme::fabrics::{Cc, Connect, Csts, DISCOVERY_NQN, Property, PropertyAccess};
use nvme::feature::Fid;
use nvme::log::Lid;
use nvme::{Command, Status, opcode};
use zerocopy::IntoBytes;

const IN_DATA: u64 = 1 << 16;

fn refusal(attempt: Attempt) -> (Status, u64) {
    let (mut target, port) = target();
    let refused = attempt.make(&mut target, port).unwrap_err();
    assert_eq!(target.controllers().count(), 0);
    (refused.status, refused.result)
}

#[test]
fn admin_and_io_queues_connect() {
    let (mut target, port) = target();
    let connected = ADMIN.make(&mut target, port).unwrap();
    assert_eq!((connected.queue_id, connected.queue_entries), (0, 32));
    assert!(!connected.sq_flow_control_disabled && !connected.discovery);
    let mut host = Host::resume(&mut target, connected.controller);
    host.set_cc(ENABLE);
    let mut io = attempt_io(connected.cntlid, 3);
    io.connect.cattr = Connect::NO_FLOW_CONTROL;
    let queue = io.make(&mut target, port).unwrap();
    assert_eq!((queue.queue_id, queue.queue_entries), (3, 128));
    assert!(queue.sq_flow_control_disabled);
    assert_eq!(target.controllers().next().unwrap().io_queues, 1);
}

#[test]
fn bad_parameters_are_named() {
    let connect = ADMIN.connect;
    let invalid = Status::CONNECT_INVALID_PARAMETERS.dnr();
    let with = |connect: Connect| refusal(Attempt { connect, ..ADMIN });
    assert_eq!(with(Connect { recfmt: 1, ..connect }), (Status::INCOMPATIBLE_FORMAT.dnr(), 0));
    assert_eq!(with(Connect { sqsize_z: 0, ..connect }), (invalid, 44));
    assert_eq!(with(Connect { sqsize_z: 1024, ..connect }), (invalid, 44));
    let missing = Attempt { nqn: "nqn.2026-11.test.nvlane:missing", ..ADMIN };
    assert_eq!(refusal(missing), (invalid, IN_DATA | 256));
    assert_eq!(refusal(Attempt { nqn: "nothing", ..ADMIN }), (invalid, IN_DATA | 256));
    assert_eq!(refusal(Attempt { host: "m e", ..ADMIN }), (invalid, IN_DATA | 512));
    assert_eq!(refusal(Attempt { cntlid: 1, ..ADMIN }), (invalid, IN_DATA | 16));
    let discovery = Attempt { nqn: DISCOVERY_NQN, ..attempt_io(1, 1) };
    assert_eq!(refusal(discovery), (invalid, 42));
}

#[test]
fn people_are_told_why() {
    let reason = |attempt: Attempt<'_>| {
        let (mut target, port) = target();
        target.set_allow_any_host(NQN, false).unwrap();
        target.allow_host(NQN, HOST).unwrap();
        attempt.make(&mut target, port).unwrap_err().reason
    };
    let missing = Attempt { nqn: "nqn.2026-11.test.nvlane:missing", ..ADMIN };
    assert_eq!(reason(missing), Refusal::UnknownSubsystem);
    let other = Attempt { host: "nqn.2026-11.test.nvlane:other", ..ADMIN };
    assert_eq!(reason(other), Refusal::HostNotAllowed);
    assert_eq!(reason(Attempt { host: "m e", ..ADMIN }), Refusal::Invalid);
    assert_eq!(reason(Attempt { cntlid: 1, ..ADMIN }), Refusal::Invalid);
}

#[test]
fn a_summary_tells_how_a_controller_stands() {
    let (mut target, port) = target();
    let id = ADMIN.make(&mut target, port).unwrap().controller;
    let stands = |target: &Target| {
        let it = target.controller(id).unwrap();
        (it.enabled, it.shut_down, it.dropped, it.errors)
    };
    assert_eq!(stands(&target), (false, false, false, 0));
    let mut host = Host::resume(&mut target, id);
    host.set_cc(ENABLE);
    assert_eq!(stands(host.target), (true, false, false, 0));
    host.target.note_error(id, 1, &Command::default(), Status::INTERNAL);
    assert_eq!(stands(host.target), (true, false, false, 1));
    host.set_cc(ENABLE | Cc::SHN_NORMAL);
    assert_eq!(stands(host.target), (false, true, false, 1));
    target.remove_port(port).unwrap();
    assert_eq!(stands(&target), (false, true, true, 1));
    target.disconnected(id, 0, NOW);
    assert_eq!(target.controller(id), None);
}

#[test]
fn an_nqn_needs_its_terminating_zero() {
    let (mut target, port) = target();
    let mut data = ADMIN.data();
    data.subnqn = [b'n'; 256];
    let origin = Origin { port, local_address: None, secured: None };
    let command = ADMIN.connect.command();
    let refused = target.connect(origin, &command, data.as_bytes(), NOW).unwrap_err();
    assert_eq!(refused.result, IN_DATA | 256);
}

#[test]
fn short_data_other_commands_and_unknown_ports_are_refused() {
    let (mut target, port) = target();
    let origin = Origin { port, local_address: None, secured: None };
    let command = ADMIN.connect.command();
    let mut refusal = |origin, command: &Command, data: &[u8]| {
        target.connect(origin, command, data, NOW).unwrap_err().status.code()
    };
    assert_eq!(refusal(origin, &command, &[0; 1023]), Status::SGL_LENGTH_INVALID);
    let early = PropertyAccess::read(Property::CAP);
    assert_eq!(refusal(origin, &early, &[]), Status::COMMAND_SEQUENCE_ERROR);
    let data = ADMIN.data();
    let bare = Command { flags: 0, ..command };
    let status = refusal(origin, &bare, &[]);
    assert_eq!(status, Status::SGL_LENGTH_INVALID, "PSDT does not matter (Figure 95)");
    let nowhere = Origin { port: PortId(9), local_address: None, secured: None };
    let status = refusal(nowhere, &command, data.as_bytes());
    assert_eq!(status, Status::CONNECT_INVALID_PARAMETERS);
    let fused = Command { flags: 1, ..command };
    let status = refusal(origin, &fused, data.as_bytes());
    assert_eq!(status, Status::CONNECT_INVALID_PARAMETERS, "Connect never says Invalid Field");
}

#[test]
fn only_listed_hosts_connect() {
    let (mut target, port) = target();
    target.set_allow_any_host(NQN, false).unwrap();
    let refused = ADMIN.make(&mut target, port).unwrap_err();
    assert_eq!(refused.status, Status::CONNECT_INVALID_HOST.dnr());
    target.allow_host(NQN, HOST).unwrap();
    let id = ADMIN.make(&mut target, port).unwrap().controller;
    drain(&mut target);
    target.disallow_host(NQN, HOST).unwrap();
    let reason = DropReason::HostDisallowed;
    assert_eq!(drain(&mut target), [Event::Drop { controller: id, reason }]);
    assert!(ADMIN.make(&mut target, port).is_err());
}

#[test]
fn a_host_without_a_name_connects_where_any_host_may() {
    let nameless = Attempt { host: "", ..ADMIN };
    let (mut target, port) = target();
    let cntlid = nameless.make(&mut target, port).unwrap().cntlid;
    Host::resume(&mut target, crate::ControllerId(cntlid)).set_cc(ENABLE);
    Attempt { host: "", ..attempt_io(cntlid, 1) }.make(&mut target, port).unwrap();
    let named = attempt_io(cntlid, 2).make(&mut target, port).unwrap_err();
    assert_eq!(named.result, IN_DATA | 16, "another host's controller");
    target.set_allow_any_host(NQN, false).unwrap();
    let refused = nameless.make(&mut target, port).unwrap_err();
    assert_eq!(refused.status, Status::CONNECT_INVALID_HOST.dnr());
    assert!(target.allow_host(NQN, "").is_err(), "no list can name it");
}

#[test]
fn io_queues_are_checked_against_their_controller() {
    let (mut target, port) = target();
    let id = ADMIN.make(&mut target, port).unwrap().controller;
    let status = |target: &mut Target, attempt: Attempt| {
        let refused = attempt.make(target, port).unwrap_err();
        (refused.status.code(), refused.result)
    };
    let early = status(&mut target, attempt_io(id.0, 1));
    assert_eq!(early.0, Status::COMMAND_SEQUENCE_ERROR, "not enabled yet");
    Host::resume(&mut target, id).set_cc(ENABLE);
    let invalid = Status::CONNECT_INVALID_PARAMETERS;
    assert_eq!(status(&mut target, attempt_io(id.0, 9)), (invalid, 42));
    assert_eq!(status(&mut target, attempt_io(id.0 + 1, 1)), (invalid, IN_DATA | 16));
    let other = Attempt { host: OTHER_HOST, ..attempt_io(id.0, 1) };
    assert_eq!(status(&mut target, other), (invalid, IN_DATA | 16));
    let other = Attempt { host_id: [8; 16], ..attempt_io(id.0, 1) };
    assert_eq!(status(&mut target, other), (invalid, IN_DATA));
    let anonymous = Attempt { host_id: [0; 16], ..attempt_io(id.0, 8) };
    anonymous.make(&mut target, port).unwrap();
    let again = status(&mut target, attempt_io(id.0, 8));
    assert_eq!(again.0, Status::INVALID_QUEUE_IDENTIFIER, "the queue exists");
    target.disconnected(id, 8, NOW);
    attempt_io(id.0, 8).make(&mut target, port).unwrap();
}

#[test]
fn ids_run_out_and_come_back_late() {
    let config = TargetConfig { cntlid_min: 10, cntlid_max: 12, ..TargetConfig::default() };
    let mut target = Target::new(config).unwrap();
    let traddr = "::1".parse().unwrap();
    let port =
        target.add_port(crate::PortConfig { traddr, trsvcid: 4420, is_secured: false }).unwrap();
    target.add_subsystem(subsystem(NQN)).unwrap();
    let mut connect = || ADMIN.make(&mut target, port).map(|connected| connected.cntlid);
    assert_eq!([connect(), connect(), connect()], [Ok(10), Ok(11), Ok(12)]);
    let busy = connect().unwrap_err();
    assert_eq!(busy.status, Status::CONTROLLER_BUSY, "worth a retry");
    target.disconnected(crate::ControllerId(11), 0, NOW);
    assert_eq!(ADMIN.make(&mut target, port).unwrap().cntlid, 11);
}

#[test]
fn an_id_is_not_reused_while_a_connection_lives() {
    let (mut target, port) = target();
    let id = Host::connect(&mut target, port).id;
    attempt_io(id.0, 1).make(&mut target, port).unwrap();
    target.disconnected(id, 0, NOW);
    let reason = DropReason::AdminDisconnected;
    assert_eq!(drain(&mut target), [Event::Drop { controller: id, reason }]);
    assert_eq!(target.controllers().count(), 1);
    assert!(attempt_io(id.0, 2).make(&mut target, port).is_err(), "it is going");
    target.disconnected(id, 1, NOW);
    assert_eq!(target.controllers().count(), 0);
}

#[test]
fn properties_read_and_refuse() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let cap = host.ok(&PropertyAccess::read(Property::CAP), &[]).0;
    assert_eq!(cap & 0xffff, 1023);
    assert_eq!(cap >> 37 & 0xff, 1, "the NVM command set alone");
    assert_eq!(host.ok(&PropertyAccess::read(Property::CRTO), &[]).0, cap >> 24 & 0xff);
    assert_eq!(host.ok(&PropertyAccess::read(Property::VS), &[]).0, 0x2_0100);
    assert_eq!(host.ok(&PropertyAccess::read(Property::CC), &[]).0, u64::from(ENABLE));
    assert_eq!(host.csts(), Csts::RDY);
    let invalid = Status::INVALID_FIELD.dnr();
    assert_eq!(host.status(&PropertyAccess::read(Property::NSSR), &[]), invalid);
    assert_eq!(host.status(&PropertyAccess::write(Property::NSSR, 1), &[]), invalid);
    assert_eq!(host.status(&PropertyAccess::write(Property::CSTS, 0), &[]), invalid);
    let bare = Command { flags: 0, ..PropertyAccess::read(Property::VS) };
    assert_eq!(host.ok(&bare, &[]).0, 0x2_0100, "byte 1 is zero where there is no data");
    let mut narrow = PropertyAccess::read(Property::CAP);
    narrow.cdw10 = 0.into();
    assert_eq!(host.status(&narrow, &[]), invalid);
}

#[test]
fn a_configuration_that_is_not_supported_is_fatal() {
    for cc in [ENABLE | 1 << 7, ENABLE | 6 << 4, ENABLE | 1 << 11, ENABLE & !Cc::ENTRY_SIZES] {
        let (mut target, port) = target();
        let mut host = Host::connect(&mut target, port);
        host.set_cc(0);
        host.set_cc(cc);
        assert_eq!(host.csts(), Csts::CFS);
        let status = host.status(&identify(1, 0), &[]);
        assert_eq!(status.code(), Status::COMMAND_SEQUENCE_ERROR);
    }
}

#[test]
fn shutdown_completes_and_lets_the_host_read_it() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let id = host.id;
    attempt_io(id.0, 1).make(host.target, port).unwrap();
    host.set_cc(ENABLE | Cc::SHN_NORMAL);
    assert_eq!(host.csts() & Csts::SHST, Csts::SHST_OCCURRING);
    assert_eq!(drain(host.target), [Event::DropIoQueues { controller: id }]);
    host.target.disconnected(id, 1, NOW);
    assert_eq!(host.csts() & Csts::SHST, Csts::SHST_COMPLETE);
    // Until it is reset, only Fabrics commands are processed.
    assert_eq!(host.status(&identify(1, 0), &[]), Status::COMMAND_SEQUENCE_ERROR.dnr());
    let late = attempt_io(id.0, 1).make(host.target, port).unwrap_err();
    assert_eq!(late.status, Status::COMMAND_SEQUENCE_ERROR.dnr());
    target.handle_timeout(NOW + crate::ASSOCIATION_LINGER);
    assert!(matches!(drain(&mut target)[..], [Event::Drop { controller, .. }] if controller == id));
}

#[test]
fn a_reset_forgets_requests_and_may_be_followed_by_enable() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    assert_eq!(host.await_event(1), Reply::Held);
    host.set_cc(0);
    assert_eq!(host.csts(), 0);
    assert_eq!(host.status(&identify(1, 0), &[]), Status::COMMAND_SEQUENCE_ERROR.dnr());
    host.set_cc(ENABLE);
    assert_eq!(host.csts(), Csts::RDY);
    let id = host.id;
    host.target.update_limits(NQN, 1, nvme::Limits { blocks: 8, ..LIMITS }).unwrap();
    assert_eq!(completions(&drain(host.target)), [], "the request is gone");
    target.activity(id, NOW + crate::ASSOCIATION_LINGER);
    target.handle_timeout(NOW + crate::ASSOCIATION_LINGER);
    assert_eq!(drain(&mut target), [], "it was enabled again");
}

/// A Controller Level Reset (NVMe Base 2.1, sections 3.7.2 and 5.1.25): features are as at first, and so are logs that are read once.
#[test]
fn a_reset_takes_back_what_the_host_has_set() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let fids = [Fid::ASYNC_EVENT_CONFIGURATION, Fid::ERROR_RECOVERY, Fid::WRITE_ATOMICITY];
    let values = |host: &mut Host<'_>| fids.map(|fid| host.ok(&get_feature(fid.0, 0), &[]).0);
    let first = values(&mut host);
    for (fid, value) in fids.into_iter().zip([0, 5, 1]) {
        host.ok(&set_feature(fid.0, value), &[]);
    }
    assert_eq!(values(&mut host), [0, 5, 1]);
    host.target.update_limits(NQN, 1, nvme::Limits { blocks: 8, ..LIMITS }).unwrap();
    // Shut down in order, then reset.
    host.set_cc(ENABLE | 1 << 14);
    assert_eq!(host.csts() & Csts::SHST, Csts::SHST_COMPLETE);
    host.set_cc(0);
    assert_eq!(host.csts(), 0);
    host.set_cc(ENABLE);
    assert_eq!(host.csts(), Csts::RDY);
    assert_eq!(values(&mut host), first);
    let changed = host.log(Lid::CHANGED_NAMESPACES, 4, 0);
    assert_eq!(changed, [0; 4], "it was told of nothing since");
}

#[test]
fn an_association_outlives_a_reset_by_two_minutes_and_silence() {
    let (mut target, port) = target();
    let connect = Connect { kato_ms: 1000, ..ADMIN.connect };
    let id = Attempt { connect, ..ADMIN }.make(&mut target, port).unwrap().controller;
    let mut host = Host::resume(&mut target, id);
    host.set_cc(ENABLE);
    host.set_cc(0);
    for seconds in [5, 119] {
        host.target.handle_timeout(NOW + std::time::Duration::from_secs(seconds));
        assert_eq!(drain(host.target), [], "after {seconds} s");
    }
    host.set_cc(ENABLE);
    assert_eq!(host.csts(), Csts::RDY);
}

#[test]
fn an_io_queue_comes_through_the_port_of_its_admin_queue() {
    let (mut target, port) = target();
    let traddr = "192.0.2.2".parse().unwrap();
    let other =
        target.add_port(crate::PortConfig { traddr, trsvcid: 4420, is_secured: false }).unwrap();
    let id = Host::connect(&mut target, port).id;
    let refused = attempt_io(id.0, 1).make(&mut target, other).unwrap_err();
    assert_eq!(refused.status, Status::CONNECT_INVALID_PARAMETERS.dnr());
    attempt_io(id.0, 1).make(&mut target, port).unwrap();
}

#[test]
fn a_reset_is_complete_when_the_last_io_queue_is_gone() {
    for patient in [true, false] {
        let (mut target, port) = target();
        let mut host = Host::connect(&mut target, port);
        let id = host.id;
        for queue in [1, 2] {
            attempt_io(id.0, queue).make(host.target, port).unwrap();
        }
        host.set_cc(0);
        assert_eq!(drain(host.target), [Event::DropIoQueues { controller: id }]);
        host.target.disconnected(id, 1, NOW);
        assert_eq!(host.csts(), Csts::RDY, "what queue 2 has sent is under way");
        assert_eq!(host.status(&identify(1, 0), &[]), Status::COMMAND_SEQUENCE_ERROR.dnr());
        if !patient {
            host.set_cc(ENABLE);
        }
        let early = attempt_io(id.0, 1).make(host.target, port).unwrap_err();
        assert_eq!(early.status, Status::COMMAND_SEQUENCE_ERROR.dnr());
        host.target.disconnected(id, 2, NOW);
        if patient {
            assert_eq!(host.csts(), 0);
            host.set_cc(ENABLE);
        }
        assert_eq!(host.csts(), Csts::RDY);
        attempt_io(id.0, 1).make(host.target, port).unwrap();
        target.activity(id, NOW + crate::ASSOCIATION_LINGER);
        target.handle_timeout(NOW + crate::ASSOCIATION_LINGER);
        assert_eq!(drain(&mut target), [], "it was enabled again");
    }
}

#[test]
fn removing_a_subsystem_or_a_port_drops_controllers() {
    let (mut target, port) = target();
    let id = Host::connect(&mut target, port).id;
    assert_eq!(target.remove_subsystem(NQN), Ok(vec![id]));
    let reason = DropReason::SubsystemRemoved;
    assert_eq!(drain(&mut target), [Event::Drop { controller: id, reason }]);
    // Whatever still arrives is answered, though the subsystem is gone.
    let mut host = Host::resume(&mut target, id);
    assert_eq!(host.status(&identify(1, 0), &[]).code(), Status::COMMAND_SEQUENCE_ERROR);
    let discovery = Attempt { nqn: DISCOVERY_NQN, ..ADMIN };
    let id = discovery.make(&mut target, port).unwrap().controller;
    assert_eq!(target.remove_port(port), Ok(vec![id]));
}

#[test]
fn fabrics_commands_on_io_queues() {
    let (mut target, port) = target();
    let id = Host::connect(&mut target, port).id;
    let mut reply = |command: &Command| target.fabrics_on_io_queue(id, 1, command, &[], NOW);
    let mut disconnect = PropertyAccess::read(Property::CAP);
    disconnect.nsid = u32::from(opcode::fabrics::DISCONNECT).into();
    disconnect.cdw10 = 0.into();
    assert_eq!(reply(&disconnect), Reply::Disconnect);
    let status = |reply| match reply {
        Reply::Complete { status, .. } => status.code(),
        other => panic!("{other:?}"),
    };
    assert_eq!(status(reply(&PropertyAccess::read(Property::CAP))), Status::INVALID_QUEUE_TYPE);
    assert_eq!(status(reply(&ADMIN.connect.command())), Status::COMMAND_SEQUENCE_ERROR);
}
