//! Hosts that come by TLS, and those that should.

use super::host::*;
use crate::{Origin, PortConfig, PortId, Refusal, Secured, Target};
use nvme::Status;
use nvme::fabrics::DISCOVERY_NQN;
use nvme::log::Lid;
use nvme::log::discovery::{Entry, Header};
use zerocopy::{FromBytes, IntoBytes};

const OTHER: &str = "nqn.2026-11.test.nvlane:other";

fn come(
    target: &mut Target,
    port: PortId,
    attempt: Attempt<'_>,
    secured: Option<(&str, &str)>,
) -> Result<(), Refusal> {
    let secured = secured.map(|(host_nqn, subsystem_nqn)| Secured { host_nqn, subsystem_nqn });
    let origin = Origin { port, local_address: None, secured };
    let (command, data) = (attempt.connect.command(), attempt.data());
    match target.connect(origin, &command, data.as_bytes(), NOW) {
        Ok(_) => Ok(()),
        Err(refused) => {
            assert_eq!(refused.status, Status::CONNECT_INVALID_HOST.dnr());
            Err(refused.reason)
        }
    }
}

#[test]
fn a_host_with_a_key_comes_by_tls_alone() {
    let (mut target, port) = target();
    let mine = Some((HOST, NQN));
    assert_eq!(come(&mut target, port, ADMIN, None), Ok(()));
    target.set_secured(NQN, HOST, true).unwrap();
    assert_eq!(come(&mut target, port, ADMIN, None), Err(Refusal::NotSecured));
    assert_eq!(come(&mut target, port, ADMIN, mine), Ok(()));
    // Others have no key, and discovery has no list of hosts.
    assert_eq!(come(&mut target, port, Attempt { host: OTHER, ..ADMIN }, None), Ok(()));
    assert_eq!(come(&mut target, port, Attempt { nqn: DISCOVERY_NQN, ..ADMIN }, None), Ok(()));
    target.set_secured(NQN, HOST, false).unwrap();
    assert_eq!(come(&mut target, port, ADMIN, None), Ok(()));
    assert!(target.set_secured(NQN, "a b", true).is_err());
    assert!(target.set_secured(OTHER, HOST, true).is_err());
}

/// Whoever has one key speaks for the host, and to the subsystem, that its identity names, and for nobody else.
#[test]
fn an_identity_is_good_for_its_own_names() {
    let (mut target, port) = target();
    for (host, subsystem) in [(OTHER, NQN), (HOST, OTHER), (HOST, DISCOVERY_NQN)] {
        let refused = come(&mut target, port, ADMIN, Some((host, subsystem)));
        assert_eq!(refused, Err(Refusal::OtherIdentity), "{host} {subsystem}");
    }
    let discovery = Attempt { nqn: DISCOVERY_NQN, ..ADMIN };
    assert_eq!(come(&mut target, port, discovery, Some((HOST, NQN))), Err(Refusal::OtherIdentity));
    assert_eq!(come(&mut target, port, discovery, Some((HOST, DISCOVERY_NQN))), Ok(()));

    let connected = ADMIN.make(&mut target, port).unwrap();
    Host::resume(&mut target, connected.controller).set_cc(ENABLE);
    let io = attempt_io(connected.cntlid, 1);
    assert_eq!(come(&mut target, port, io, Some((OTHER, NQN))), Err(Refusal::OtherIdentity));
    assert_eq!(come(&mut target, port, io, Some((HOST, NQN))), Ok(()));
}

#[test]
fn the_discovery_log_tells_which_ports_want_tls() {
    let (mut target, port) = target();
    let traddr = "192.0.2.1".parse().unwrap();
    target.add_port(PortConfig { traddr, trsvcid: 4421, is_secured: true }).unwrap();
    let id = Attempt { nqn: DISCOVERY_NQN, ..ADMIN }.make(&mut target, port).unwrap().controller;
    let mut host = Host::resume(&mut target, id);
    host.set_cc(ENABLE);
    let log = host.log(Lid::DISCOVERY, 8192, 0);
    let count = Header::read_from_bytes(&log[..1024]).unwrap().numrec.get() as usize;
    let entries = log[1024..].chunks_exact(1024).take(count);
    let told: Vec<_> = entries
        .map(|entry| Entry::read_from_bytes(entry).unwrap())
        .map(|it| (it.trsvcid[3], it.treq, it.tsas[0]))
        .collect();
    assert_eq!(told, [(b'0', 4, 0), (b'0', 4, 0), (b'1', 5, 2), (b'1', 5, 2)]);
}
