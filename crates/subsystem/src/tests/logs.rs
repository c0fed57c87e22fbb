use super::host::*;
use crate::{AnaState, NamespaceConfig};
use nvme::log::{Effects, ErrorEntry, GetLogPage, Lid, Smart, ana};
use nvme::{Command, Sgl, Status, opcode};
use zerocopy::FromBytes;

#[test]
fn ana_groups_list_their_namespaces_and_states() {
    let (mut target, port) = target();
    let in_group = |number, ana_group| NamespaceConfig { ana_group, ..namespace(number) };
    for (number, group) in [(2, 7), (3, 1), (4, 7)] {
        target.add_namespace(NQN, in_group(number, group)).unwrap();
    }
    target.set_ana_state(NQN, port, 7, AnaState::NON_OPTIMIZED).unwrap();
    let mut host = Host::connect(&mut target, port);
    let log = host.log(Lid::ANA, 1024, 0);
    let header = ana::Header::read_from_bytes(&log[..16]).unwrap();
    assert_eq!((header.groups.get(), header.change_count.get()), (2, 5));
    let first = ana::Group::read_from_bytes(&log[16..48]).unwrap();
    assert_eq!((first.group.get(), first.namespaces.get(), first.state), (1, 2, 1));
    assert_eq!(log[48..56], [1, 0, 0, 0, 3, 0, 0, 0]);
    let second = ana::Group::read_from_bytes(&log[56..88]).unwrap();
    assert_eq!((second.group.get(), second.namespaces.get(), second.state), (7, 2, 2));
    assert_eq!(second.change_count.get(), 5);
    assert_eq!(log[88..100], [2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    let groups_only = GetLogPage { lsp: 1, ..GetLogPage::of(&get_log(Lid::ANA, 84, 0)) };
    let log = host.ok(&log_page(groups_only), &[]).1;
    let second = ana::Group::read_from_bytes(&log[48..80]).unwrap();
    assert_eq!((second.group.get(), second.namespaces.get()), (7, 0));
}

/// nvme-cli computes the largest ANA log that there could be and reads it in parts of 4 KiB.
#[test]
fn the_ana_log_can_be_read_to_the_end_that_hosts_compute() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let bytes = u64::from(16 + crate::ANA_GROUPS_MAX * 32 + crate::NAMESPACES_MAX * 4);
    assert_eq!(host.log(Lid::ANA, bytes, 0)[..12], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    for offset in (4096..bytes).step_by(4096) {
        assert!(host.log(Lid::ANA, 4096, offset).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn every_ana_state_has_its_io_status() {
    let (mut target, port) = target();
    let states = [
        (AnaState::OPTIMIZED, None),
        (AnaState::NON_OPTIMIZED, None),
        (AnaState::INACCESSIBLE, Some(Status::ANA_INACCESSIBLE)),
        (AnaState::PERSISTENT_LOSS, Some(Status::ANA_PERSISTENT_LOSS)),
        (AnaState::CHANGE, Some(Status::ANA_TRANSITION)),
    ];
    for (state, status) in states {
        target.set_ana_state(NQN, port, 1, state).unwrap();
        assert_eq!(target.namespaces(NQN, port)[0].state.io_status(), status);
    }
    assert!(target.set_ana_state(NQN, port, 1, AnaState(9)).is_err());
    assert!(target.set_ana_state(NQN, port, 0, AnaState::CHANGE).is_err());
    assert!(target.set_ana_state(NQN, port, 129, AnaState::CHANGE).is_err());
}

#[test]
fn smart_counts_in_thousands_of_blocks() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let smart = Smart::read_from_bytes(&host.log(Lid::SMART, 512, 0)).unwrap();
    assert_eq!((smart.data_units_read[0].get(), smart.data_units_written[0].get()), (2, 1));
    assert_eq!((smart.host_reads[0].get(), smart.host_writes[0].get()), (10, 20));
    let mut one = get_log(Lid::SMART, 512, 0);
    one.nsid = 1.into();
    let smart = Smart::read_from_bytes(&host.ok(&one, &[]).1).unwrap();
    assert_eq!(smart.data_units_read[0].get(), 2, "512,001 bytes are rounded up");
    for (nsid, wanted) in [(2, Status::INVALID_FIELD), (8193, Status::INVALID_NAMESPACE)] {
        one.nsid = nsid.into();
        assert_eq!(host.status(&one, &[]), wanted.dnr(), "namespace {nsid}");
    }
}

#[test]
fn errors_are_kept_newest_first() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    for cid in 0..70u16 {
        let command = Command { cid: cid.into(), ..admin(0xc1) };
        assert_eq!(host.status(&command, &[]), Status::INVALID_OPCODE.dnr());
    }
    let write = Command::blocks(opcode::io::WRITE, 1, 55, 1);
    host.target.note_error(host.id, 3, &write, Status::WRITE_FAULT);
    let log = host.log(Lid::ERROR, 4096, 0);
    let entries: Vec<_> =
        log.chunks_exact(64).map(|entry| ErrorEntry::read_from_bytes(entry).unwrap()).collect();
    assert_eq!((entries[0].error_count.get(), entries[0].sqid.get()), (71, 3));
    assert_eq!((entries[0].lba.get(), entries[0].nsid.get()), (55, 1));
    assert_eq!(entries[0].status.get(), 0x280 << 1);
    assert_eq!((entries[1].cid.get(), entries[1].opcode), (69, 0xc1));
    assert_eq!(entries[63].error_count.get(), 8, "the last 64");
    let smart = Smart::read_from_bytes(&host.log(Lid::SMART, 512, 0)).unwrap();
    assert_eq!(smart.error_entries[0].get(), 71);
}

#[test]
fn an_error_has_a_block_where_its_command_has_one() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let with = [
        opcode::io::READ,
        opcode::io::WRITE,
        opcode::io::COMPARE,
        opcode::io::VERIFY,
        opcode::io::WRITE_ZEROES,
        opcode::io::WRITE_UNCORRECTABLE,
        opcode::io::COPY,
    ];
    let without = [
        opcode::io::FLUSH,
        opcode::io::DATASET_MANAGEMENT,
        opcode::io::RESERVATION_REGISTER,
        opcode::admin::FABRICS,
        opcode::io::VENDOR_FIRST,
    ];
    let opcodes = with.map(|code| (code, 55)).into_iter().chain(without.map(|code| (code, 0)));
    for (code, lba) in opcodes {
        let command = Command::blocks(code, 1, 55, 1);
        host.target.note_error(host.id, 3, &command, Status::WRITE_FAULT);
        let log = host.log(Lid::ERROR, 64, 0);
        let entry = ErrorEntry::read_from_bytes(&log).unwrap();
        assert_eq!((entry.opcode, entry.lba.get()), (code, lba), "{code:#x}");
    }
}

/// Linux's hwmon sets thresholds, and tells an alarm when the log does.
#[test]
fn smart_warns_of_the_temperature_as_the_thresholds_say() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let mut warns = |threshold: Option<u32>| {
        if let Some(threshold) = threshold {
            host.ok(&set_feature(0x04, threshold), &[]);
        }
        let smart = Smart::read_from_bytes(&host.log(Lid::SMART, 512, 0)).unwrap();
        (smart.critical_warning, smart.temperature.get())
    };
    assert_eq!(warns(None), (0, 300));
    let under = 1 << 20;
    for (threshold, warning) in [
        (300, 1 << 1),
        (301, 0),
        (299, 1 << 1),
        (343, 0),
        (under | 300, 1 << 1),
        (under | 299, 0),
        (under | 301, 1 << 1),
        (under, 0),
    ] {
        assert_eq!(warns(Some(threshold)), (warning, 300), "{threshold:#x}");
    }
}

/// What Linux demands of the effects log before an unprivileged process may pass a command.
#[test]
fn effects_let_unprivileged_commands_pass() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let effects = Effects::read_from_bytes(&host.log(Lid::EFFECTS, 4096, 0)).unwrap();
    for opcode in [0x00, 0x02, 0x05, 0x0c] {
        assert_eq!(effects.io[opcode].get(), 0b01, "supported, changes nothing: {opcode:#x}");
    }
    for opcode in [0x01, 0x08, 0x09, 0x19] {
        assert_eq!(effects.io[opcode].get(), 0b11, "supported, changes blocks: {opcode:#x}");
    }
    for opcode in [0x04, 0x0d, 0x0e, 0x11, 0x15, 0x1d, 0x80] {
        assert_eq!(effects.io[opcode].get(), 0, "not supported: {opcode:#x}");
    }
    for opcode in [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18] {
        assert_eq!(effects.admin[opcode].get(), 1);
    }
    assert_eq!(effects.admin[0x80].get(), 0, "Format NVM");
    let zoned = GetLogPage { csi: 2, ..GetLogPage::of(&get_log(Lid::EFFECTS, 4096, 0)) };
    assert_eq!(host.ok(&log_page(zoned), &[]).1, host.log(Lid::EFFECTS, 4096, 0), "CSI ignored");
}

#[test]
fn supported_pages_and_features_are_those_that_answer() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let supported = host.log(Lid::SUPPORTED, 1024, 0);
    for lid in 0..=255u8 {
        let answered = host.status(&get_log(Lid(lid), 4, 0), &[]).is_success();
        assert_eq!(supported[usize::from(lid) * 4] & 1 == 1, answered, "page {lid:#x}");
    }
    let features = host.log(Lid::FEATURE_EFFECTS, 1024, 0);
    for fid in 0..=255u8 {
        let answered = host.status(&get_feature(fid, 3), &[]).is_success();
        assert_eq!(features[usize::from(fid) * 4] & 1 == 1, answered, "feature {fid:#x}");
    }
    let firmware = host.log(Lid::FIRMWARE, 512, 0);
    assert_eq!((firmware[0], &firmware[8..13]), (1, &b"0.1.0"[..]));
}

#[test]
fn parts_of_a_page_are_the_page() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let whole = host.log(Lid::EFFECTS, 4096, 0);
    for (bytes, offset) in [(4, 0), (128, 2048), (96, 1020), (8, 4088)] {
        let part = host.log(Lid::EFFECTS, bytes, offset);
        assert_eq!(part, whole[offset as usize..(offset + bytes) as usize]);
    }
    let over_the_end = host.log(Lid::EFFECTS, 16, 4088);
    assert_eq!(over_the_end[8..], [0; 8]);
}

#[test]
fn bad_log_page_commands_are_refused() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let invalid = Status::INVALID_FIELD.dnr();
    assert_eq!(host.status(&get_log(Lid::SMART, 512, 2), &[]), invalid);
    assert_eq!(host.status(&get_log(Lid::SMART, 512, 516), &[]), invalid);
    assert_eq!(host.status(&get_log(Lid::SMART, 512, u64::MAX - 3), &[]), invalid);
    assert_eq!(host.status(&get_log(Lid::SMART, (1 << 20) + 4, 0), &[]), invalid, "MDTS");
    let status = host.status(&get_log(Lid::DISCOVERY, 1024, 0), &[]);
    assert_eq!(status, Status::INVALID_LOG_PAGE.dnr());
    let mut command = get_log(Lid::SMART, 512, 0);
    command.set_sgl(Sgl::transport(508));
    assert_eq!(host.status(&command, &[]), Status::SGL_LENGTH_INVALID.dnr());
    command.set_sgl(Sgl::in_capsule(0, 512));
    assert_eq!(host.status(&command, &[]), Status::SGL_TYPE_INVALID.dnr(), "data for the host");
}
