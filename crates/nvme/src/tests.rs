//! Layout and round trips.

use crate::event::AsyncEvent;
use crate::fabrics::{Connect, ConnectData, Property, PropertyAccess};
use crate::feature::HostBehavior;
use crate::identify::{Controller, IndependentNamespace, Namespace, NvmController, NvmNamespace};
use crate::limits::DiscardLimits;
use crate::log::{ErrorEntry, GetLogPage, Lid, Smart, ana, discovery};
use crate::{Command, Sgl, Status};
use proptest::prelude::*;
use std::mem::offset_of;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Offsets as the figures print them: a size alone does not notice two fields exchanged.
#[test]
fn fields_are_where_the_figures_put_them() {
    let controller = [
        (offset_of!(Controller, cmic), 76),
        (offset_of!(Controller, cntlid), 78),
        (offset_of!(Controller, oaes), 92),
        (offset_of!(Controller, cntrltype), 111),
        (offset_of!(Controller, crdt), 128),
        (offset_of!(Controller, nvmsr), 253),
        (offset_of!(Controller, oacs), 256),
        (offset_of!(Controller, lpa), 261),
        (offset_of!(Controller, tnvmcap), 280),
        (offset_of!(Controller, kas), 320),
        (offset_of!(Controller, anatt), 342),
        (offset_of!(Controller, nanagrpid), 348),
        (offset_of!(Controller, domain), 356),
        (offset_of!(Controller, sqes), 512),
        (offset_of!(Controller, nn), 516),
        (offset_of!(Controller, vwc), 525),
        (offset_of!(Controller, acwu_z), 532),
        (offset_of!(Controller, cdfs), 534),
        (offset_of!(Controller, sgls), 536),
        (offset_of!(Controller, mnan), 540),
        (offset_of!(Controller, subnqn), 768),
        (offset_of!(Controller, ioccsz), 1792),
        (offset_of!(Controller, ofcs), 1804),
        (offset_of!(Controller, psd), 2048),
    ];
    let namespace = [
        (offset_of!(Namespace, nmic), 30),
        (offset_of!(Namespace, dlfeat), 33),
        (offset_of!(Namespace, nvmcap), 48),
        (offset_of!(Namespace, npwg_z), 64),
        (offset_of!(Namespace, mssrl), 74),
        (offset_of!(Namespace, mcl), 76),
        (offset_of!(Namespace, msrc_z), 80),
        (offset_of!(Namespace, anagrpid), 92),
        (offset_of!(Namespace, nsattr), 99),
        (offset_of!(Namespace, nguid), 104),
        (offset_of!(Namespace, lbaf), 128),
        (offset_of!(IndependentNamespace, nstat), 14),
        (offset_of!(NvmNamespace, npdgl), 268),
        (offset_of!(NvmController, dmrl), 3),
        (offset_of!(NvmController, dmrsl), 4),
        (offset_of!(NvmController, dmsl), 8),
    ];
    let others = [
        (offset_of!(ErrorEntry, sqid), 8),
        (offset_of!(ErrorEntry, cid), 10),
        (offset_of!(ErrorEntry, status), 12),
        (offset_of!(ErrorEntry, location), 14),
        (offset_of!(ErrorEntry, lba), 16),
        (offset_of!(ErrorEntry, nsid), 24),
        (offset_of!(ErrorEntry, trtype), 29),
        (offset_of!(ErrorEntry, csi), 30),
        (offset_of!(ErrorEntry, opcode), 31),
        (offset_of!(ErrorEntry, command_specific), 32),
        (offset_of!(ErrorEntry, version), 63),
        (offset_of!(Smart, data_units_read), 32),
        (offset_of!(Smart, error_entries), 176),
        (offset_of!(Smart, sensors), 200),
        (offset_of!(ana::Group, state), 16),
        (offset_of!(discovery::Entry, trsvcid), 32),
        (offset_of!(discovery::Entry, traddr), 512),
        (offset_of!(ConnectData, hostnqn), 512),
        (offset_of!(Sgl, identifier), 15),
        (offset_of!(HostBehavior, cdfe), 4),
    ];
    for (found, printed) in controller.into_iter().chain(namespace).chain(others) {
        assert_eq!(found, printed);
    }
}

proptest! {
    #[test]
    fn commands_survive(bytes in proptest::array::uniform32(any::<u8>())) {
        let whole: Vec<u8> = bytes.iter().chain(&bytes).copied().collect();
        let command = Command::read_from_bytes(&whole).unwrap();
        prop_assert_eq!(command.as_bytes(), &whole[..]);
    }

    #[test]
    fn structures_survive(bytes in proptest::collection::vec(any::<u8>(), 4096)) {
        let controller = Controller::read_from_bytes(&bytes).unwrap();
        prop_assert_eq!(controller.as_bytes(), &bytes[..]);
        let namespace = Namespace::read_from_bytes(&bytes).unwrap();
        prop_assert_eq!(namespace.as_bytes(), &bytes[..]);
    }

    #[test]
    fn log_page_parameters_survive(
        lid: u8, lsp in 0u8..0x80, retain_event: bool, dwords in 1u64..=1 << 32, offset: u64,
        index_offset: bool, csi: u8,
    ) {
        let lid = Lid(lid);
        let bytes = dwords * 4;
        let page = GetLogPage { lid, lsp, retain_event, bytes, offset, index_offset, csi };
        prop_assert_eq!(GetLogPage::of(&page.command()), page);
    }

    #[test]
    fn connect_parameters_survive(
        recfmt: u16, qid: u16, sqsize_z: u16, cattr: u8, kato_ms: u32,
    ) {
        let connect = Connect { recfmt, qid, sqsize_z, cattr, kato_ms };
        prop_assert_eq!(Connect::of(&connect.command()), connect);
    }

    #[test]
    fn sgl_survives(offset: u64, length: u32, flags: u8) {
        let mut command = Command { flags, ..Command::default() };
        command.set_sgl(Sgl::in_capsule(offset, length));
        prop_assert_eq!(command.sgl(), Sgl::in_capsule(offset, length));
        prop_assert!(command.uses_sgl());
        prop_assert_eq!(command.flags & 3, flags & 3);
    }

    #[test]
    fn events_survive(kind in 0u8..8, information: u8, log_page: u8) {
        let event = AsyncEvent { kind, information, log_page };
        prop_assert_eq!(AsyncEvent::from_dword0(event.dword0()), event);
    }

    #[test]
    fn status_keeps_unknown_codes(bits in 0u16..0x8000) {
        let completion = crate::Completion::new(7, Status(bits), 0);
        prop_assert_eq!(completion.status(), Status(bits));
    }
}

#[test]
fn limits_of_dataset_management_are_told_all_or_none_and_zero_is_none() {
    let mut data = NvmController::new_zeroed();
    assert_eq!(data.discard_limits(), DiscardLimits::UNLIMITED);
    let mut told = |limits| {
        data.set_discard_limits(limits);
        ((data.dmrl, data.dmrsl.get(), data.dmsl.get()), data.discard_limits())
    };
    let limits = DiscardLimits { ranges_max: 3, range_blocks_max: 100, blocks_max: 250 };
    assert_eq!(told(limits), ((3, 100, 250), limits));
    let limits = DiscardLimits { range_blocks_max: 100, ..DiscardLimits::UNLIMITED };
    assert_eq!(told(limits).0, (255, 100, u64::MAX));
    let limits = DiscardLimits { blocks_max: 250, ..DiscardLimits::UNLIMITED };
    assert_eq!(told(limits).0, (255, 250, 250), "no range is longer");
    assert_eq!(told(DiscardLimits::UNLIMITED), ((0, 0, 0), DiscardLimits::UNLIMITED));
    // Whoever tells less than all.
    (data.dmrl, data.dmrsl) = (1, 8.into());
    let limits = DiscardLimits { ranges_max: 1, range_blocks_max: 8, blocks_max: u64::MAX };
    assert_eq!(data.discard_limits(), limits);
}

#[test]
fn opcodes_tell_whether_there_is_data() {
    use crate::opcode::{admin, fabrics, io};
    let opcode = |opcode| Command { opcode, ..Command::default() }.transfers_data();
    for with_data in
        [io::READ, io::WRITE, io::COMPARE, io::DATASET_MANAGEMENT, io::COPY, admin::IDENTIFY]
    {
        assert!(opcode(with_data));
    }
    let without = [io::FLUSH, io::WRITE_ZEROES, io::VERIFY, admin::KEEP_ALIVE];
    assert!(without.into_iter().all(|without| !opcode(without)));
    let of_type = |fctype: u8| {
        let nsid = u32::from(fctype).into();
        Command { opcode: admin::FABRICS, nsid, ..Command::default() }.transfers_data()
    };
    assert!(of_type(fabrics::CONNECT) && !of_type(fabrics::PROPERTY_GET));
    assert!(!of_type(fabrics::DISCONNECT) && !of_type(fabrics::PROPERTY_SET));
}

#[test]
fn property_commands_carry_their_size() {
    let cap = PropertyAccess::of(&PropertyAccess::read(Property::CAP));
    assert_eq!((cap.bytes, cap.property), (Some(8), Property::CAP));
    let cc = PropertyAccess::of(&PropertyAccess::write(Property::CC, 0x46_0001));
    assert_eq!((cc.bytes, cc.property, cc.value), (Some(4), Property::CC, 0x46_0001));
}

/// Numbers of command specific statuses mean something else to other commands: the words follow the
/// opcode, and none is given twice to one opcode.
#[test]
fn words_of_an_io_status_follow_the_opcode() {
    use crate::opcode::io;
    let copy = |status: Status| status.io_words(io::COPY);
    let words = [
        (Status::SIZE_LIMIT_EXCEEDED, "Command Size Limit Exceeded"),
        (Status::INCOMPATIBLE_NAMESPACE, "Incompatible Namespace or Format"),
        (Status::FAST_COPY_NOT_POSSIBLE, "Fast Copy Not Possible"),
        (Status::OVERLAPPING_RANGE, "Overlapping I/O Range"),
        (Status::INSUFFICIENT_RESOURCES, "Insufficient Resources"),
        (Status::LBA_OUT_OF_RANGE, "LBA Out of Range"),
    ];
    for (status, words) in words {
        assert_eq!(copy(status), Some(words));
        assert_eq!(copy(status.dnr()), Some(words), "whatever the other bits are");
    }
    assert_eq!(Status::SIZE_LIMIT_EXCEEDED.words(), Some("Connect Restart Discovery"));
    let full = Status(0x1b9).dnr();
    assert_eq!(full.io_words(io::ZONE_APPEND), Some("Zone Is Full"));
    assert_eq!(full.words(), None, "zones are for I/O commands");
    assert_eq!(Status(0x181).io_words(io::WRITE), Some("Invalid Protection Information"));
    assert_eq!(Status(0x284).io_words(io::READ), Some("End-to-end Reference Tag Check Error"));
    assert_eq!(Status(0x10a).words(), Some("Invalid Format"));
    assert_eq!(
        Status(0x10a).io_words(io::READ),
        None,
        "namespaces are not formatted by I/O commands"
    );
    assert_eq!(Status::FAST_COPY_NOT_POSSIBLE.io_words(io::WRITE), None);
    assert_eq!(Status::WRITE_FAULT.io_words(io::WRITE), Some("Write Fault"));
    let text = Status::SIZE_LIMIT_EXCEEDED.dnr().io_text(io::COPY).to_string();
    assert_eq!(text, "Command Size Limit Exceeded (SCT 0x1 SC 0x83, do not retry)");
    assert_eq!(Status::WRITE_FAULT.io_text(io::WRITE).to_string(), Status::WRITE_FAULT.to_string());
}
