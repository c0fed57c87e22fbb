use super::host::*;
use crate::{DropReason, Event, NAMESPACES_MAX, NamespaceConfig};
use nvme::identify::{Cns, Controller, IndependentNamespace, Namespace, NvmController};
use nvme::limits::{CopyLimits, DiscardLimits};
use nvme::{Limits, Sgl, Status};
use zerocopy::FromBytes;

fn u32s(bytes: &[u8]) -> Vec<u32> {
    let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    words.take_while(|&word| word != 0).collect()
}

#[test]
fn the_controller_is_what_linux_wants() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let data = host.identify(Cns::CONTROLLER.0, 0);
    let controller = Controller::read_from_bytes(&data).unwrap();
    assert_eq!(controller.cntlid.get(), host.id.0);
    assert_eq!(controller.cntrltype, 1);
    assert_eq!(&controller.sn, b"S1                  ");
    assert_eq!(controller.mdts, 8, "1 MiB in pages of 4 KiB");
    assert_eq!(controller.ioccsz.get(), (64 + 16384) / 16);
    assert_eq!((controller.iorcsz.get(), controller.icdoff.get()), (1, 0));
    assert_ne!(controller.sgls.get() & 1, 0, "or Linux refuses: mandatory SGLs");
    assert!((1..=controller.nn.get()).contains(&controller.mnan.get()), "or no ANA");
    assert_ne!(controller.lpa & 1 << 1, 0, "or no unprivileged passthrough");
    assert_ne!(controller.lpa & 1 << 2, 0, "or log pages cannot be read in parts");
    assert_eq!(controller.cmic, 0b1011);
    assert_eq!((controller.sqes, controller.cqes), (0x66, 0x44));
    assert_ne!(controller.ctratt.get() & 1 << 6, 0, "traffic based keep alive");
    assert_eq!(controller.oncs.get(), 0b11_1001_1101);
    assert_eq!(controller.cdfs.get(), 0b1111, "all formats of a list to copy");
    assert_eq!((controller.fuses.get(), controller.acwu_z.get()), (1, 0));
    assert_eq!(controller.vwc & 1, 1);
    assert_eq!(controller.oaes.get(), 1 << 8 | 1 << 11);
    assert!(controller.subnqn.starts_with(b"nqn.2026-11.test.nvlane:one\0"));
    // Linux disables ANA if its log could be larger than a transfer.
    let ana_log = 16 + controller.nanagrpid.get() * 32 + controller.mnan.get() * 4;
    assert!(ana_log <= crate::TRANSFER_BYTES_MAX);
}

#[test]
fn capabilities_follow_the_namespaces() {
    let (mut target, port) = target();
    let bare = Limits {
        commands: nvme::limits::Commands::default(),
        copy: CopyLimits::NONE,
        volatile_write_cache: false,
        ..LIMITS
    };
    target.update_limits(NQN, 1, bare).unwrap();
    let mut host = Host::connect(&mut target, port);
    let data = host.identify(Cns::CONTROLLER.0, 0);
    let controller = Controller::read_from_bytes(&data).unwrap();
    assert_eq!(controller.oncs.get(), 1 << 4, "Save and Select only");
    assert_eq!((controller.fuses.get(), controller.vwc), (0, 0b101));
    // A namespace with a cache may come while the host is connected, which asks the controller once.
    let independent = host.identify(Cns::INDEPENDENT_NAMESPACE.0, 1);
    let independent = IndependentNamespace::read_from_bytes(&independent).unwrap();
    assert_ne!(independent.nsfeat & 1 << 5, 0, "this one has none");
    assert_eq!(controller.cdfs.get(), 0);
    let namespace = Namespace::read_from_bytes(&host.identify(Cns::NAMESPACE.0, 1)).unwrap();
    assert_eq!((namespace.mssrl.get(), namespace.mcl.get(), namespace.msrc_z), (0, 0, 0));
    assert!(nvme::identify::vendor::has_no_write_cache(&namespace.vs));
    let effects = host.log(nvme::log::Lid::EFFECTS, 4096, 0);
    assert_eq!(effects[1024 + 4 * 0x19], 0, "no Copy");
}

#[test]
fn what_one_copy_may_ask_for_is_told() {
    let (mut target, port) = target();
    let shown = |target: &mut crate::Target| {
        let mut host = Host::connect(target, port);
        let data = host.identify(Cns::NAMESPACE.0, 1);
        let shown = Namespace::read_from_bytes(&data).unwrap();
        (shown.mssrl.get(), shown.mcl.get(), shown.msrc_z)
    };
    assert_eq!(shown(&mut target), (65_535, 1 << 18, 127));
    // What the fields cannot tell is not offered either.
    let copy = CopyLimits { ranges_max: 257, range_blocks_max: 1 << 16, blocks_max: u32::MAX };
    target.update_limits(NQN, 1, Limits { copy, ..LIMITS }).unwrap();
    assert_eq!(shown(&mut target), (65_535, u32::MAX, 255));
    assert_eq!(target.namespaces(NQN, port)[0].limits.copy.range_blocks_max, 65_535);
    let copy = CopyLimits { ranges_max: 0, ..LIMITS.copy };
    target.update_limits(NQN, 1, Limits { copy, ..LIMITS }).unwrap();
    assert_eq!(shown(&mut target), (0, 0, 0));
}

#[test]
fn mdts_is_what_every_namespace_takes() {
    let (mut target, port) = target();
    let less = Limits { transfer_bytes_max: 200 << 10, ..LIMITS };
    target.add_namespace(NQN, NamespaceConfig { limits: less, ..namespace(2) }).unwrap();
    let mut host = Host::connect(&mut target, port);
    assert_eq!(host.identify(Cns::CONTROLLER.0, 0)[77], 5, "128 KiB in pages of 4 KiB");
    assert_eq!(host.identify(Cns::COMMAND_SET_CONTROLLER.0, 0)[0], 5, "Verify too");
    let least = Limits { transfer_bytes_max: 4096, ..LIMITS };
    assert!(host.target.update_limits(NQN, 2, least).is_err());
}

#[test]
fn hosts_that_were_told_of_larger_transfers_are_to_identify_again() {
    let (mut target, port) = target();
    let other = "nqn.2026-11.test.nvlane:other";
    target.add_subsystem(subsystem(other)).unwrap();
    let told = |target: &mut crate::Target, nqn| {
        let mut host = Host::attempt(target, port, Attempt { nqn, ..ADMIN });
        host.identify(Cns::CONTROLLER.0, 0);
        host.id
    };
    let dropped = |target: &mut crate::Target| -> Vec<_> {
        let events = drain(target).into_iter();
        let drops = events.filter(|event| matches!(event, Event::Drop { .. }));
        drops
            .map(|event| match event {
                Event::Drop { controller, reason: DropReason::TransferLimit } => controller,
                other => panic!("{other:?}"),
            })
            .collect()
    };
    let (first, _) = (told(&mut target, NQN), told(&mut target, other));
    // This one asks later, and is told what stands then.
    let late = Host::connect(&mut target, port).id;
    let at_most = |bytes| Limits { transfer_bytes_max: bytes, ..LIMITS };
    target.add_namespace(NQN, namespace(2)).unwrap();
    assert_eq!(dropped(&mut target), [], "as large as the others");
    let smaller = NamespaceConfig { limits: at_most(256 << 10), ..namespace(3) };
    target.add_namespace(NQN, smaller).unwrap();
    assert_eq!(dropped(&mut target), [first]);
    assert_eq!(Host::resume(&mut target, late).identify(Cns::CONTROLLER.0, 0)[77], 6);
    for bytes in [512 << 10, 256 << 10, 300 << 10] {
        target.update_limits(NQN, 3, at_most(bytes)).unwrap();
        assert_eq!(dropped(&mut target), [], "no less than was told");
    }
    target.update_limits(NQN, 3, at_most(128 << 10)).unwrap();
    assert_eq!(dropped(&mut target), [late]);
}

/// WZSL has a page of its own, which not every host reads.
#[test]
fn hosts_that_were_told_of_more_zeroes_are_to_identify_again() {
    let (mut target, port) = target();
    let mut told = |cns: Cns| {
        let mut host = Host::attempt(&mut target, port, ADMIN);
        host.identify(cns.0, 0);
        host.id
    };
    let (zeroes, _) = (told(Cns::COMMAND_SET_CONTROLLER), told(Cns::CONTROLLER));
    drain(&mut target);
    let mut config = namespace(2);
    config.limits.write_zeroes_bytes_max = 64 << 10;
    config.limits.commands.write_zeroes = false;
    let limits = config.limits;
    target.add_namespace(NQN, config).unwrap();
    let drops = |target: &mut crate::Target| {
        let events = drain(target).into_iter();
        events.filter(|event| matches!(event, Event::Drop { .. })).collect::<Vec<_>>()
    };
    assert_eq!(drops(&mut target), [], "it has none");
    target.update_limits(NQN, 2, Limits { commands: LIMITS.commands, ..limits }).unwrap();
    let reason = DropReason::TransferLimit;
    assert_eq!(drops(&mut target), [Event::Drop { controller: zeroes, reason }]);
}

/// So do the limits of Dataset Management.
#[test]
fn hosts_that_were_told_of_more_to_deallocate_are_to_identify_again() {
    let (mut target, port) = target();
    let told = |target: &mut crate::Target, limits: Limits| {
        let mut host = Host::attempt(target, port, ADMIN);
        host.identify(Cns::COMMAND_SET_CONTROLLER.0, 0);
        let id = host.id;
        drain(target);
        target.update_limits(NQN, 1, limits).unwrap();
        let events = drain(target).into_iter();
        let drops = events.filter_map(|event| match event {
            Event::Drop { controller, .. } => Some(controller),
            _ => None,
        });
        (id, drops.collect::<Vec<_>>())
    };
    let discard = DiscardLimits { ranges_max: 1, range_blocks_max: 100, blocks_max: 100 };
    let (host, dropped) = told(&mut target, Limits { discard, ..LIMITS });
    assert_eq!(dropped, [host]);
    assert_eq!(told(&mut target, LIMITS).1, [], "it is more now");
    let discard = DiscardLimits { blocks_max: 1 << 40, ..DiscardLimits::UNLIMITED };
    let (host, dropped) = told(&mut target, Limits { discard, ..LIMITS });
    assert_eq!(dropped, [host], "the one before knows of less");
}

#[test]
fn a_subsystem_that_may_not_fuse_does_not_offer_it() {
    let (mut target, port) = target();
    let nqn = "nqn.2026-11.test.nvlane:shared";
    let config = crate::SubsystemConfig { fused: false, ..subsystem(nqn) };
    target.add_subsystem(config).unwrap();
    target.add_namespace(nqn, namespace(1)).unwrap();
    assert!(!target.namespaces(nqn, port)[0].limits.commands.compare_and_write);
    assert!(target.namespaces(NQN, port)[0].limits.commands.compare_and_write);
    let mut host = Host::attempt(&mut target, port, Attempt { nqn, ..ADMIN });
    let data = host.identify(Cns::CONTROLLER.0, 0);
    assert_eq!(Controller::read_from_bytes(&data).unwrap().fuses.get(), 0);
}

#[test]
fn a_namespace_shows_its_limits() {
    let (mut target, port) = target();
    let limits = Limits { block_shift: 12, read_only: true, optimal_write_bytes: 65536, ..LIMITS };
    target.add_namespace(NQN, NamespaceConfig { limits, ..namespace(2) }).unwrap();
    let mut host = Host::connect(&mut target, port);
    let data = host.identify(Cns::NAMESPACE.0, 2);
    let shown = Namespace::read_from_bytes(&data).unwrap();
    assert_eq!((shown.nsze.get(), shown.ncap.get()), (1 << 21, 1 << 21));
    assert_eq!(u128::from_le_bytes(shown.nvmcap), 1 << 33);
    assert_eq!((shown.lbaf[0].lbads, shown.nmic, shown.nsattr), (12, 1, 1));
    assert_eq!(shown.npwg_z.get(), 15);
    assert_eq!(shown.dlfeat, 0b1001);
    assert_eq!(shown.anagrpid.get(), 1);
    assert_eq!(shown.nguid, namespace(2).nguid);
    let data = host.identify(Cns::INDEPENDENT_NAMESPACE.0, 2);
    let shown = IndependentNamespace::read_from_bytes(&data).unwrap();
    assert_eq!((shown.nstat, shown.nmic, shown.nsattr), (1, 1, 1));
    assert_eq!(shown.nsfeat & 1 << 5, 0, "a write cache is present");
}

#[test]
fn utilization_is_known_only_where_the_namespace_is_reached() {
    let (mut target, port) = target();
    let id = Host::connect(&mut target, port).id;
    let states = [(1, true), (2, true), (3, false), (4, false), (0x0f, true)];
    for (state, known) in states {
        target.set_ana_state(NQN, port, 1, crate::AnaState(state)).unwrap();
        let data = Host::resume(&mut target, id).identify(Cns::NAMESPACE.0, 1);
        let shown = Namespace::read_from_bytes(&data).unwrap();
        assert_eq!(shown.nuse.get(), if known { 1 << 21 } else { 0 });
        assert_eq!(shown.nvmcap != [0; 16], known);
        // Linux takes a capacity of zero for a namespace that is gone.
        assert_eq!(shown.ncap.get(), 1 << 21);
    }
}

#[test]
fn namespace_ids_are_valid_inactive_or_invalid() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let invalid = Status::INVALID_NAMESPACE.dnr();
    for cns in [Cns::NAMESPACE, Cns::COMMAND_SET_NAMESPACE, Cns::INDEPENDENT_NAMESPACE] {
        assert_eq!(host.identify(cns.0, 2), [0; 4096], "inactive");
        for nsid in [0, NAMESPACES_MAX + 1, nvme::NSID_ALL] {
            assert_eq!(host.status(&identify(cns.0, nsid), &[]), invalid);
        }
    }
    assert_eq!(host.status(&identify(Cns::NAMESPACE_DESCRIPTORS.0, 2), &[]), invalid);
    for nsid in [nvme::NSID_ALL, nvme::NSID_ALL - 1] {
        assert_eq!(host.status(&identify(Cns::ACTIVE_NAMESPACES.0, nsid), &[]), invalid);
    }
}

#[test]
fn descriptors_name_the_namespace() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let data = host.identify(Cns::NAMESPACE_DESCRIPTORS.0, 1);
    assert_eq!(data[..4], [2, 16, 0, 0]);
    assert_eq!(data[4..20], namespace(1).nguid);
    assert_eq!(data[20..24], [3, 16, 0, 0]);
    assert_eq!(data[24..40], namespace(1).uuid);
    assert_eq!(data[40..46], [4, 1, 0, 0, 0, 0], "NVM command set, end of list");
}

#[test]
fn thousands_of_namespaces_are_listed_in_pages() {
    let (mut target, port) = target();
    for number in 2..=2500 {
        assert_eq!(target.add_namespace(NQN, namespace(number)), Ok(number));
    }
    target.remove_namespace(NQN, 1024).unwrap();
    let mut host = Host::connect(&mut target, port);
    for cns in [Cns::ACTIVE_NAMESPACES, Cns::COMMAND_SET_ACTIVE_NAMESPACES] {
        let mut seen = Vec::new();
        loop {
            let page = u32s(&host.identify(cns.0, seen.last().copied().unwrap_or(0)));
            seen.extend(&page);
            if page.len() < 1024 {
                break;
            }
        }
        let all: Vec<u32> = (1..=2500).filter(|&nsid| nsid != 1024).collect();
        assert_eq!(seen, all);
    }
    assert_eq!(host.target.add_namespace(NQN, namespace(1024)), Ok(1024), "the lowest free");
}

#[test]
fn controllers_and_command_sets_are_listed() {
    let (mut target, port) = target();
    let first = Host::connect(&mut target, port).id;
    let mut host = Host::connect(&mut target, port);
    let second = host.id;
    let both = [[2, 0], first.0.to_le_bytes(), second.0.to_le_bytes(), [0, 0]].concat();
    assert_eq!(host.identify(Cns::CONTROLLERS.0, 0)[..8], both);
    assert_eq!(host.identify(Cns::NAMESPACE_CONTROLLERS.0, 1)[..8], both);
    let mut from_second = identify(Cns::CONTROLLERS.0, 0);
    from_second.cdw10 = (u32::from(Cns::CONTROLLERS.0) | u32::from(second.0) << 16).into();
    assert_eq!(host.ok(&from_second, &[]).1[..2], [1, 0]);
    let mut sets = identify(Cns::COMMAND_SETS.0, 0);
    sets.cdw10 = (u32::from(Cns::COMMAND_SETS.0) | 0xffff << 16).into();
    assert_eq!(host.ok(&sets, &[]).1[..16], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    sets.cdw10 = (u32::from(Cns::COMMAND_SETS.0) | 0x1234 << 16).into();
    assert_eq!(host.status(&sets, &[]), Status::INVALID_FIELD.dnr());
}

#[test]
fn command_set_limits_are_told() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let data = host.identify(Cns::COMMAND_SET_CONTROLLER.0, 0);
    let limits = NvmController::read_from_bytes(&data).unwrap();
    assert_eq!((limits.vsl, limits.wzsl), (8, 11), "1 MiB and 8 MiB in pages of 4 KiB");
    // What every namespace takes; what has no Write Zeroes has no say.
    let less = Limits { write_zeroes_bytes_max: 3 << 20, ..LIMITS };
    host.target.add_namespace(NQN, NamespaceConfig { limits: less, ..namespace(2) }).unwrap();
    let mut none = Limits { write_zeroes_bytes_max: 8192, ..LIMITS };
    none.commands.write_zeroes = false;
    host.target.add_namespace(NQN, NamespaceConfig { limits: none, ..namespace(3) }).unwrap();
    let mut host = Host::connect(&mut target, port);
    let data = host.identify(Cns::COMMAND_SET_CONTROLLER.0, 0);
    assert_eq!(data[1], 9, "2 MiB");
    assert_eq!(data[3..16], [0; 13], "what is deallocated has no limit");
    let discard = DiscardLimits { ranges_max: 8, range_blocks_max: 1000, blocks_max: 4000 };
    let limits = Limits { discard, ..LIMITS };
    host.target.add_namespace(NQN, NamespaceConfig { limits, ..namespace(4) }).unwrap();
    let discard = DiscardLimits { ranges_max: 100, range_blocks_max: 500, blocks_max: 5000 };
    let limits = Limits { block_shift: 12, discard, ..LIMITS };
    host.target.add_namespace(NQN, NamespaceConfig { limits, ..namespace(5) }).unwrap();
    let discard = DiscardLimits { ranges_max: 1, range_blocks_max: 1, blocks_max: 1 };
    let mut none = Limits { discard, ..LIMITS };
    none.commands.deallocate = false;
    host.target.add_namespace(NQN, NamespaceConfig { limits: none, ..namespace(6) }).unwrap();
    let mut host = Host::connect(&mut target, port);
    let data = host.identify(Cns::COMMAND_SET_CONTROLLER.0, 0);
    let limits = NvmController::read_from_bytes(&data).unwrap();
    assert_eq!((limits.dmrl, limits.dmrsl.get(), limits.dmsl.get()), (8, 500, 4000));
    let mut zoned = identify(Cns::COMMAND_SET_CONTROLLER.0, 0);
    zoned.cdw11 = (2u32 << 24).into();
    assert_eq!(host.status(&zoned, &[]), Status::INVALID_FIELD.dnr());
}

#[test]
fn bad_identify_commands_are_refused() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    for cns in [0x04, 0x10, 0x14, 0x20, 0xff] {
        assert_eq!(host.status(&identify(cns, 1), &[]), Status::INVALID_FIELD.dnr());
    }
    let mut command = identify(1, 0);
    command.set_sgl(Sgl::transport(4092));
    assert_eq!(host.status(&command, &[]), Status::SGL_LENGTH_INVALID.dnr());
    command.set_sgl(Sgl { identifier: 0x40, ..Sgl::transport(4096) });
    assert_eq!(host.status(&command, &[]), Status::SGL_TYPE_INVALID.dnr());
    command.set_sgl(Sgl::in_capsule(0, 4096));
    assert_eq!(host.status(&command, &[]), Status::SGL_TYPE_INVALID.dnr(), "data for the host");
    command = identify(1, 0);
    command.flags = 0;
    assert_eq!(host.status(&command, &[]), Status::INVALID_FIELD.dnr(), "PRPs");
    command.flags = Sgl::PSDT_SGL | 1;
    assert_eq!(host.status(&command, &[]), Status::INVALID_FIELD.dnr(), "fused");
    assert_eq!(host.status(&admin(0x80), &[]), Status::INVALID_OPCODE.dnr(), "Format");
}
