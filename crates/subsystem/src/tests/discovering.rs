use super::host::*;
use crate::{ControllerId, Origin, PortConfig, PortId, Target};
use nvme::event::AsyncEvent;
use nvme::fabrics::DISCOVERY_NQN;
use nvme::identify::{Cns, Controller};
use nvme::log::Lid;
use nvme::log::discovery::{EFLAG_DUPLICATE, EFLAG_PERSISTENT, Entry, Header};
use nvme::{Status, opcode};
use zerocopy::{FromBytes, IntoBytes};

const DISCOVERY: Attempt<'static> = Attempt { nqn: DISCOVERY_NQN, ..ADMIN };

fn text(field: &[u8]) -> &str {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).unwrap()
}

/// Generation counter and (subtype, NQN, address) of every entry, read as hosts do: the header,
/// then everything.
fn discover(target: &mut Target, id: ControllerId) -> (u64, Vec<(u8, String, String)>) {
    let mut host = Host::resume(target, id);
    let header = Header::read_from_bytes(&host.log(Lid::DISCOVERY, 1024, 0)).unwrap();
    let bytes = header.numrec.get() * 1024;
    let log = host.log(Lid::DISCOVERY, bytes, 1024);
    let entries = log.chunks_exact(1024).map(|entry| Entry::read_from_bytes(entry).unwrap());
    let told = entries.map(|entry| {
        assert_eq!((entry.trtype, entry.cntlid.get(), entry.asqsz.get()), (3, 0xffff, 32));
        // DUPRETINFO and EPCSD (NVMe Base 2.1, Figure 294), of discovery itself alone.
        assert_eq!(entry.eflags.get(), if entry.subtype == 3 { 0b11 } else { 0 });
        assert_eq!(text(&entry.trsvcid), "4420");
        (entry.subtype, text(&entry.subnqn).to_owned(), text(&entry.traddr).to_owned())
    });
    (header.genctr.get(), told.collect())
}

fn enabled(target: &mut Target, port: PortId, host: &str) -> ControllerId {
    Host::attempt(target, port, Attempt { host, ..DISCOVERY }).id
}

#[test]
fn the_log_tells_what_the_host_may_use() {
    let (mut target, port) = target();
    let id = enabled(&mut target, port, HOST);
    let stranger = enabled(&mut target, port, OTHER_HOST);
    target.set_allow_any_host(NQN, false).unwrap();
    target.allow_host(NQN, HOST).unwrap();
    let address = "192.0.2.1".to_owned();
    let own = (3, DISCOVERY_NQN.to_owned(), address.clone());
    let (before, seen) = discover(&mut target, id);
    assert_eq!(seen, [own.clone(), (2, NQN.to_owned(), address)]);
    assert_eq!(discover(&mut target, stranger).1, [own]);
    target.disallow_host(NQN, HOST).unwrap();
    let (after, seen) = discover(&mut target, id);
    assert!(after > before);
    assert_eq!(seen.len(), 1);
}

/// Addresses of the ports as a host is told that has reached `port` at `local`, each with whether
/// discovery there is said to tell the same.
fn told_at(target: &mut Target, port: PortId, local: &str) -> Vec<(String, String, bool)> {
    let origin = Origin { port, local_address: Some(local.parse().unwrap()), secured: None };
    let (command, data) = (DISCOVERY.connect.command(), DISCOVERY.data());
    let connected = target.connect(origin, &command, data.as_bytes(), NOW).unwrap();
    assert!(connected.discovery);
    let mut host = Host::resume(target, connected.controller);
    host.set_cc(ENABLE);
    let log = host.log(Lid::DISCOVERY, 8192, 0);
    let header = Header::read_from_bytes(&log[..1024]).unwrap();
    let entries = log[1024..].chunks_exact(1024).take(header.numrec.get() as usize);
    let entries: Vec<_> = entries.map(|entry| Entry::read_from_bytes(entry).unwrap()).collect();
    // For each port itself, and one for its subsystem.
    let told = entries.chunks_exact(2).map(|pair| {
        let [own, subsystem] = pair else { unreachable!("pairs") };
        assert_eq!((own.subtype, subsystem.subtype, subsystem.eflags.get()), (3, 2, 0));
        assert_eq!((own.traddr, own.trsvcid), (subsystem.traddr, subsystem.trsvcid));
        assert_eq!(own.adrfam, if text(&own.traddr).contains(':') { 2 } else { 1 });
        let flags = own.eflags.get();
        assert_ne!(flags & EFLAG_PERSISTENT, 0);
        let same = flags & EFLAG_DUPLICATE != 0;
        (text(&own.traddr).to_owned(), text(&own.trsvcid).to_owned(), same)
    });
    told.collect()
}

#[test]
fn an_unspecified_port_is_told_as_the_address_that_was_reached() {
    let (mut target, first) = target();
    let at = |address: &str, port: &str, same| (address.to_owned(), port.to_owned(), same);
    assert_eq!(told_at(&mut target, first, "192.0.2.1"), [at("192.0.2.1", "4420", true)]);
    let traddr = "0.0.0.0".parse().unwrap();
    let port = target.add_port(PortConfig { traddr, trsvcid: 4421, is_secured: false }).unwrap();
    for local in ["198.51.100.7", "::ffff:198.51.100.7"] {
        assert_eq!(
            told_at(&mut target, port, local),
            [at("192.0.2.1", "4420", false), at("198.51.100.7", "4421", true)],
        );
    }
    assert_eq!(
        told_at(&mut target, first, "192.0.2.1"),
        [at("192.0.2.1", "4420", true), at("192.0.2.1", "4421", true)],
    );
}

#[test]
fn an_unspecified_port_of_the_other_family_is_left_out() {
    let (mut target, first) = target();
    let mut add = |traddr: &str, trsvcid| {
        target
            .add_port(PortConfig { traddr: traddr.parse().unwrap(), trsvcid, is_secured: false })
            .unwrap()
    };
    let (four, six) = (add("0.0.0.0", 4421), add("::", 4421));
    let at = |address: &str, port: &str, same| (address.to_owned(), port.to_owned(), same);
    for (port, local) in [(four, "198.51.100.7"), (first, "198.51.100.7")] {
        assert_eq!(
            told_at(&mut target, port, local),
            [at("192.0.2.1", "4420", false), at("198.51.100.7", "4421", true)],
        );
    }
    assert_eq!(
        told_at(&mut target, six, "2001:db8::7"),
        [at("192.0.2.1", "4420", false), at("2001:db8::7", "4421", true)],
    );
}

#[test]
fn every_change_is_counted_and_announced_once_until_read() {
    let (mut target, port) = target();
    let id = enabled(&mut target, port, HOST);
    for cid in 1..=2 {
        Host::resume(&mut target, id).await_event(cid);
    }
    let (before, _) = discover(&mut target, id);
    target.add_subsystem(subsystem("nqn.2026-11.test.nvlane:two")).unwrap();
    let change = AsyncEvent::DISCOVERY_CHANGE.dword0();
    assert_eq!(change, 0x70_f002);
    assert_eq!(completions(&drain(&mut target)), [(1, change)]);
    target.remove_subsystem("nqn.2026-11.test.nvlane:two").unwrap();
    assert_eq!(completions(&drain(&mut target)), [], "masked until the log is read");
    let (after, _) = discover(&mut target, id);
    assert_eq!(after, before + 2);
    let traddr = "192.0.2.2".parse().unwrap();
    target.add_port(PortConfig { traddr, trsvcid: 4420, is_secured: false }).unwrap();
    assert_eq!(completions(&drain(&mut target)), [(2, change)]);
}

#[test]
fn changes_that_a_host_cannot_see_are_not_announced() {
    let (mut target, port) = target();
    let id = enabled(&mut target, port, HOST);
    Host::resume(&mut target, id).await_event(1);
    let config = crate::SubsystemConfig {
        allow_any_host: false,
        hosts: vec![OTHER_HOST.into()],
        ..subsystem("nqn.2026-11.test.nvlane:two")
    };
    target.add_subsystem(config).unwrap();
    assert_eq!(completions(&drain(&mut target)), []);
    target.allow_host("nqn.2026-11.test.nvlane:two", HOST).unwrap();
    assert_eq!(completions(&drain(&mut target)).len(), 1);
}

#[test]
fn the_discovery_controller_says_what_it_is_and_no_more() {
    let (mut target, port) = target();
    let id = enabled(&mut target, port, HOST);
    let mut host = Host::resume(&mut target, id);
    let data = host.identify(Cns::CONTROLLER.0, 0);
    let controller = Controller::read_from_bytes(&data).unwrap();
    assert_eq!((controller.cntrltype, controller.nn.get()), (2, 0));
    assert_eq!(controller.dctype, 1, "a direct discovery controller");
    assert_eq!(controller.oaes.get(), 1 << 31);
    assert_eq!(text(&controller.subnqn), DISCOVERY_NQN);
    let status = host.status(&identify(Cns::ACTIVE_NAMESPACES.0, 0), &[]);
    assert_eq!(status, Status::INVALID_FIELD.dnr());
    let status = host.status(&get_log(Lid::SMART, 512, 0), &[]);
    assert_eq!(status, Status::INVALID_LOG_PAGE.dnr());
    assert_eq!(host.status(&admin(opcode::admin::ABORT), &[]), Status::INVALID_OPCODE.dnr());
    let status = host.status(&set_feature(0x07, 0), &[]);
    assert_eq!(status, Status::INVALID_FIELD.dnr(), "no I/O queues");
    assert_eq!(host.status(&set_feature(0x0b, 1 << 31), &[]), Status::SUCCESS);
    let status = host.status(&set_feature(0x0b, 1 << 8), &[]);
    assert_eq!(status, Status::INVALID_FIELD.dnr(), "no namespaces");
}

#[test]
fn entry_sizes_do_not_matter_without_io_queues() {
    let (mut target, port) = target();
    let id = DISCOVERY.make(&mut target, port).unwrap().controller;
    let mut host = Host::resume(&mut target, id);
    host.set_cc(1);
    assert_eq!(host.csts(), 1);
}
