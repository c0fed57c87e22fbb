use super::host::*;
use crate::{
    ANA_GROUPS_MAX, ConfigError, IO_QUEUES_MAX, NAMESPACES_MAX, NamespaceConfig, PortConfig,
    PortId, SubsystemConfig, Target, TargetConfig, is_valid_nqn,
};
use nvme::Limits;
use nvme::fabrics::DISCOVERY_NQN;

#[test]
fn nqns_have_a_form() {
    for good in [NQN, HOST, DISCOVERY_NQN, "nqn.2001-01.a:b c d".split(' ').next().unwrap()] {
        assert!(is_valid_nqn(good), "{good}");
    }
    let long = format!("nqn.2026-11.test:{}", "x".repeat(223 - 17));
    assert!(is_valid_nqn(&long));
    let too_long = format!("{long}x");
    assert!(is_valid_nqn("testnqn"), "as other targets are set up");
    for bad in ["", "nqn.2026-11.a b", "nqn.2026-11.a\n", "a\u{a0}b", &too_long] {
        assert!(!is_valid_nqn(bad), "{bad}");
    }
}

#[test]
fn a_subsystem_must_make_sense() {
    let (mut target, _) = target();
    let mut error = |config| target.add_subsystem(config).unwrap_err();
    let nqn = "nqn.2026-11.test.nvlane:two";
    assert_eq!(error(subsystem(NQN)), ConfigError::SubsystemExists { nqn: NQN.into() });
    assert!(matches!(error(subsystem(DISCOVERY_NQN)), ConfigError::SubsystemExists { .. }));
    assert_eq!(error(subsystem("t wo")), ConfigError::InvalidNqn { nqn: "t wo".into() });
    let hosts = vec![HOST.into(), "some body".into()];
    let with_hosts = SubsystemConfig { hosts, ..subsystem(nqn) };
    assert_eq!(error(with_hosts), ConfigError::InvalidNqn { nqn: "some body".into() });
    for queues in [0, IO_QUEUES_MAX + 1] {
        let config = SubsystemConfig { io_queues_max: queues, ..subsystem(nqn) };
        assert_eq!(error(config), ConfigError::InvalidQueues { queues });
    }
    for serial in ["", "123456789012345678901", "Seriennummer\u{e4}", "tab\t"] {
        let config = SubsystemConfig { serial: serial.into(), ..subsystem(nqn) };
        assert!(matches!(error(config), ConfigError::InvalidText { bytes_max: 20, .. }));
    }
    let firmware = "123456789".into();
    assert!(Target::new(TargetConfig { firmware, ..TargetConfig::default() }).is_err());
}

#[test]
fn a_namespace_must_make_sense() {
    let (mut target, _) = target();
    let mut error = |config| target.add_namespace(NQN, config).unwrap_err();
    let nqn = || NQN.to_owned();
    let at = |nsid| NamespaceConfig { nsid: Some(nsid), ..namespace(9) };
    assert_eq!(error(at(1)), ConfigError::NamespaceExists { nqn: nqn(), nsid: 1 });
    for nsid in [0, NAMESPACES_MAX + 1, u32::MAX] {
        assert_eq!(error(at(nsid)), ConfigError::InvalidNamespaceId { nsid });
    }
    let twin = NamespaceConfig { uuid: namespace(1).uuid, ..namespace(9) };
    assert_eq!(error(twin), ConfigError::DuplicateIdentifier { nqn: nqn(), nsid: 1 });
    let nobody = NamespaceConfig { uuid: [0; 16], nguid: [0; 16], ..namespace(9) };
    assert_eq!(error(nobody), ConfigError::NoIdentifier);
    for ana_group in [0, ANA_GROUPS_MAX + 1] {
        let config = NamespaceConfig { ana_group, ..namespace(9) };
        assert_eq!(error(config), ConfigError::InvalidGroup { group: ana_group });
    }
    for (block_shift, blocks) in [(9, 0), (8, 1), (13, 1), (12, u64::MAX), (255, 1)] {
        let limits = Limits { block_shift, blocks, ..LIMITS };
        let config = NamespaceConfig { limits, ..namespace(9) };
        assert_eq!(error(config), ConfigError::InvalidLimits { block_shift, blocks });
    }
    assert_eq!(target.add_namespace(NQN, at(NAMESPACES_MAX)), Ok(NAMESPACES_MAX));
    let other = Limits { block_shift: 12, ..LIMITS };
    let changed = target.update_limits(NQN, 1, other);
    assert_eq!(changed, Err(ConfigError::BlockSizeChanged { nsid: 1 }));
}

#[test]
fn what_is_not_there_is_said() {
    let (mut target, port) = target();
    let nowhere = "nqn.2026-11.test.nvlane:nowhere";
    let unknown = || Err(ConfigError::UnknownSubsystem { nqn: nowhere.into() });
    assert_eq!(target.remove_namespace(nowhere, 1), unknown());
    assert_eq!(target.allow_host(nowhere, HOST), unknown());
    assert_eq!(target.remove_subsystem(nowhere).map(|_| ()), unknown());
    let unknown = Err(ConfigError::UnknownNamespace { nqn: NQN.into(), nsid: 7 });
    assert_eq!(target.remove_namespace(NQN, 7), unknown);
    assert_eq!(target.update_limits(NQN, 7, LIMITS), unknown);
    let unknown = ConfigError::UnknownHost { nqn: NQN.into(), host: HOST.into() };
    assert_eq!(target.disallow_host(NQN, HOST), Err(unknown));
    let unknown = Err(ConfigError::UnknownPort { port: 9 });
    assert_eq!(target.remove_port(PortId(9)).map(|_| ()), unknown);
    assert!(target.namespaces(nowhere, port).is_empty());
    let traddr = "192.0.2.1".parse().unwrap();
    let again = target.add_port(PortConfig { traddr, trsvcid: 4420, is_secured: false });
    assert_eq!(again, Err(ConfigError::PortExists { address: traddr, trsvcid: 4420 }));
    assert_eq!(drain(&mut target), [], "nothing happened");
}

#[test]
fn messages_say_what_to_do() {
    let error = ConfigError::InvalidNqn { nqn: "a disk".into() };
    let text = "\"a disk\" is not an NQN: 1 to 223 bytes without white space, like \
                nqn.2024-01.org.example:name";
    assert_eq!(error.to_string(), text);
    let error = ConfigError::InvalidQueues { queues: 0 };
    assert_eq!(error.to_string(), "0 I/O queues: must be 1 to 128");
}
