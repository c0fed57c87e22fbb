use super::host::*;
use crate::Target;
use nvme::{Command, Sgl, Status};

const INVALID: Status = Status::INVALID_FIELD.dnr();

fn with_data(mut command: Command, bytes: u32) -> Command {
    command.set_sgl(Sgl::transport(bytes));
    command
}

#[test]
fn queues_are_granted_before_they_exist() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let granted = 7 | 7 << 16;
    assert_eq!(host.ok(&set_feature(0x07, 3 | 3 << 16), &[]).0, granted);
    assert_eq!(host.ok(&get_feature(0x07, 0), &[]).0, granted);
    assert_eq!(host.status(&set_feature(0x07, 0xffff), &[]), INVALID);
    assert_eq!(host.status(&set_feature(0x07, 0xffff << 16), &[]), INVALID);
    attempt_io(host.id.0, 1).make(host.target, port).unwrap();
    let late = host.status(&set_feature(0x07, 0), &[]);
    assert_eq!(late, Status::COMMAND_SEQUENCE_ERROR.dnr());
}

#[test]
fn values_are_kept_and_defaults_remembered() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    // Arbitration, temperature threshold, error recovery, write atomicity, asynchronous events, keep alive.
    for (fid, value) in
        [(0x01, 0x0703_0104), (0x04, 300), (0x05, 77), (0x0a, 1), (0x0b, 0x100), (0x0f, 30_000)]
    {
        let default = host.ok(&get_feature(fid, 0), &[]).0;
        host.ok(&set_feature(fid, value), &[]);
        assert_eq!(host.ok(&get_feature(fid, 0), &[]).0, value.into());
        assert_eq!(host.ok(&get_feature(fid, 1), &[]).0, default);
        assert_eq!(host.ok(&get_feature(fid, 2), &[]).0, default, "nothing is saved");
        assert_eq!(host.ok(&get_feature(fid, 3), &[]).0, 1 << 2, "changeable");
        assert_eq!(host.status(&get_feature(fid, 4), &[]), INVALID);
    }
}

#[test]
fn the_two_thresholds_are_apart() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    host.ok(&set_feature(0x04, 280 | 1 << 20), &[]);
    assert_eq!(host.ok(&get_feature(0x04, 0), &[]).0, 343);
    let under = Command { cdw11: (1u32 << 20).into(), ..get_feature(0x04, 0) };
    assert_eq!(host.ok(&under, &[]).0, 280);
    assert_eq!(host.status(&set_feature(0x04, 280 | 3 << 16), &[]), INVALID, "no such sensor");
}

#[test]
fn what_cannot_be_set_says_why() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    assert_eq!(host.status(&set_feature(0x02, 1), &[]), INVALID, "one power state");
    assert_eq!(host.status(&set_feature(0x05, 1 << 16), &[]), INVALID, "DULBE");
    assert_eq!(host.status(&set_feature(0x0b, 1 << 9), &[]), INVALID, "not in OAES");
    assert_eq!(host.status(&set_feature(0x19, 1), &[]), INVALID, "one profile");
    for absent in [0x00, 0x03, 0x08, 0x0c, 0x10, 0x80, 0x82, 0x83, 0x84, 0xc0] {
        assert_eq!(host.status(&set_feature(absent, 0), &[]), INVALID);
        assert_eq!(host.status(&get_feature(absent, 0), &[]), INVALID);
        assert_eq!(host.status(&get_feature(absent, 3), &[]), INVALID);
    }
    let mut command = set_feature(0x01, 0);
    command.cdw10 = (1u32 | 1 << 31).into();
    assert_eq!(host.status(&command, &[]), Status::FEATURE_NOT_SAVEABLE.dnr());
    command = set_feature(0x01, 0);
    command.nsid = 1.into();
    assert_eq!(host.status(&command, &[]), Status::FEATURE_NOT_NAMESPACE.dnr());
}

#[test]
fn the_write_cache_is_reported_as_it_is_and_stays_so() {
    let (mut target, port) = target();
    let is = |target: &mut Target, on: u32| {
        let mut host = Host::connect(target, port);
        assert_eq!(host.ok(&get_feature(0x06, 0), &[]).0, on.into());
        host.ok(&set_feature(0x06, on), &[]);
        let fixed = Status::FEATURE_NOT_CHANGEABLE.dnr();
        assert_eq!(host.status(&set_feature(0x06, on ^ 1), &[]), fixed);
    };
    is(&mut target, 1);
    let through = nvme::Limits { volatile_write_cache: false, ..LIMITS };
    target.update_limits(NQN, 1, through).unwrap();
    is(&mut target, 0);
}

#[test]
fn the_host_identifier_is_that_of_connect() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let short = with_data(get_feature(0x81, 0), 8);
    assert_eq!(host.status(&short, &[]), Status::HOST_ID_INCONSISTENT.dnr());
    let long = with_data(Command { cdw11: 1.into(), ..get_feature(0x81, 0) }, 16);
    assert_eq!(host.ok(&long, &[]).1, [7; 16]);
    let set = with_data(set_feature(0x81, 1), 16);
    assert_eq!(host.status(&set, &[9; 16]), Status::COMMAND_SEQUENCE_ERROR.dnr());
}

#[test]
fn host_behavior_comes_back() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let mut behavior = [0; 512];
    behavior[0] = 1;
    behavior[2] = 1;
    host.ok(&with_data(set_feature(0x16, 0), 512), &behavior);
    assert_eq!(host.ok(&with_data(get_feature(0x16, 0), 512), &[]).1, behavior);
    assert_eq!(host.ok(&with_data(get_feature(0x16, 1), 512), &[]).1, [0; 512]);
    let set = with_data(set_feature(0x16, 0), 512);
    assert_eq!(host.status(&set, &behavior[..511]), Status::SGL_LENGTH_INVALID.dnr());
    behavior[1] = 2;
    assert_eq!(host.status(&set, &behavior), INVALID, "a flag is 0 or 1");
}

#[test]
fn the_keep_alive_timer_is_rounded_up() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    assert_eq!(host.ok(&get_feature(0x0f, 0), &[]).0, 5000);
    host.ok(&set_feature(0x0f, 15_001), &[]);
    assert_eq!(host.ok(&get_feature(0x0f, 0), &[]).0, 16_000);
}
