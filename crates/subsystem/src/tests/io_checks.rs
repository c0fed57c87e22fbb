use super::host::LIMITS;
use crate::io::{Direction, Placement, Transfer, check, check_fused, locate, ranges};
use nvme::dataset::Range;
use nvme::limits::{Commands, CopyLimits};
use nvme::opcode::io as opcode;
use nvme::{Command, Limits, Sgl, Status};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

fn command(opcode: u8, slba: u64, blocks: u32) -> Command {
    let mut command = Command::blocks(opcode, 1, slba, blocks);
    command.set_sgl(Sgl::transport(blocks * 512));
    command
}

fn fused(mut command: Command, fuse: u8) -> Command {
    command.flags |= fuse;
    command
}

#[test]
fn transfers_are_what_the_command_says() {
    let transfer = |opcode| check(&command(opcode, 0, 8), &LIMITS).unwrap();
    let bytes = 4096;
    let to_controller = Transfer { direction: Direction::ToController, bytes };
    assert_eq!(transfer(opcode::READ), Transfer { direction: Direction::ToHost, bytes });
    assert_eq!(transfer(opcode::WRITE), to_controller);
    assert_eq!(transfer(opcode::COMPARE), to_controller);
    for opcode in [opcode::FLUSH, opcode::VERIFY, opcode::WRITE_ZEROES] {
        assert_eq!(transfer(opcode), Transfer { direction: Direction::None, bytes: 0 });
    }
    let mut dsm = command(opcode::DATASET_MANAGEMENT, 0, 1);
    dsm.cdw10 = 2.into();
    let three = Transfer { direction: Direction::ToController, bytes: 48 };
    assert_eq!(check(&dsm, &LIMITS), Ok(three));
}

#[test]
fn ranges_end_with_the_namespace() {
    let out = Err(Status::LBA_OUT_OF_RANGE.dnr());
    let last = LIMITS.blocks - 8;
    for opcode in
        [opcode::READ, opcode::WRITE, opcode::COMPARE, opcode::VERIFY, opcode::WRITE_ZEROES]
    {
        assert!(check(&command(opcode, last, 8), &LIMITS).is_ok());
        assert_eq!(check(&command(opcode, last + 1, 8), &LIMITS), out);
        assert_eq!(check(&command(opcode, u64::MAX, 2), &LIMITS), out);
    }
}

#[test]
fn sizes_have_a_limit() {
    let too_large = Err(Status::INVALID_FIELD.dnr());
    assert!(check(&command(opcode::READ, 0, 2048), &LIMITS).is_ok());
    assert_eq!(check(&command(opcode::READ, 0, 2049), &LIMITS), too_large);
    assert_eq!(check(&command(opcode::VERIFY, 0, 2049), &LIMITS), too_large);
    let less = Limits { transfer_bytes_max: 8192, ..LIMITS };
    assert!(check(&command(opcode::WRITE, 0, 16), &less).is_ok());
    assert_eq!(check(&command(opcode::WRITE, 0, 17), &less), too_large);
    let large = Limits { block_shift: 12, ..LIMITS };
    assert_eq!(check(&command(opcode::WRITE, 0, 257), &large), too_large);
    assert_eq!(check(&command(opcode::READ, 0, 65536), &large), too_large);
    assert!(check(&command(opcode::WRITE_ZEROES, 0, 2048), &large).is_ok());
    assert_eq!(check(&command(opcode::WRITE_ZEROES, 0, 2049), &large), too_large);
    let less = Limits { write_zeroes_bytes_max: 1 << 20, ..LIMITS };
    assert!(check(&command(opcode::WRITE_ZEROES, 0, 2048), &less).is_ok());
    assert_eq!(check(&command(opcode::WRITE_ZEROES, 0, 2049), &less), too_large);
}

#[test]
fn a_read_only_namespace_is_only_read() {
    let limits = Limits { read_only: true, ..LIMITS };
    let protected = Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
    for opcode in [opcode::WRITE, opcode::WRITE_ZEROES] {
        assert_eq!(check(&command(opcode, 0, 1), &limits), protected);
    }
    let mut dsm = command(opcode::DATASET_MANAGEMENT, 0, 1);
    assert!(check(&dsm, &limits).is_ok(), "a hint");
    dsm.cdw11 = 4.into();
    assert_eq!(check(&dsm, &limits), protected);
    for opcode in [opcode::READ, opcode::COMPARE, opcode::FLUSH, opcode::VERIFY] {
        assert!(check(&command(opcode, 0, 1), &limits).is_ok());
    }
}

#[test]
fn what_identify_does_not_offer_is_an_invalid_opcode() {
    let none = Limits { commands: Commands::default(), copy: CopyLimits::NONE, ..LIMITS };
    let invalid = Err(Status::INVALID_OPCODE.dnr());
    for opcode in 0..=255u8 {
        let offered = matches!(opcode, opcode::FLUSH | opcode::WRITE | opcode::READ);
        assert_eq!(check(&command(opcode, 0, 1), &none) == invalid, !offered, "{opcode:#x}");
    }
    use opcode::{RESERVATION_ACQUIRE, RESERVATION_REGISTER, RESERVATION_RELEASE};
    for opcode in
        [RESERVATION_REGISTER, opcode::RESERVATION_REPORT, RESERVATION_ACQUIRE, RESERVATION_RELEASE]
    {
        assert_eq!(check(&command(opcode, 0, 1), &LIMITS), invalid, "reservations are absent");
    }
}

#[test]
fn fused_pairs_are_compare_and_write_of_one_block() {
    let compare = fused(command(opcode::COMPARE, 5, 1), 1);
    let write = fused(command(opcode::WRITE, 5, 1), 2);
    assert!(check(&compare, &LIMITS).is_ok() && check(&write, &LIMITS).is_ok());
    assert_eq!(check_fused(&compare, &write), Ok(()));
    let invalid = Err(Status::INVALID_FIELD.dnr());
    assert_eq!(check_fused(&compare, &fused(command(opcode::WRITE, 6, 1), 2)), invalid);
    let mut elsewhere = write;
    elsewhere.nsid = 2.into();
    assert_eq!(check_fused(&compare, &elsewhere), invalid);
    assert_eq!(check_fused(&write, &compare), invalid);
    let two = (fused(command(opcode::COMPARE, 5, 2), 1), fused(command(opcode::WRITE, 5, 2), 2));
    assert_eq!(check_fused(&two.0, &two.1), Err(Status::ATOMIC_WRITE_UNIT_EXCEEDED.dnr()));
    let field = Err(Status::INVALID_FIELD.dnr());
    for (opcode, fuse) in [(opcode::WRITE, 1), (opcode::COMPARE, 2), (opcode::READ, 1)] {
        assert_eq!(check(&fused(command(opcode, 5, 1), fuse), &LIMITS), field);
    }
    assert_eq!(check(&fused(command(opcode::WRITE, 5, 1), 3), &LIMITS), field);
    let mut apart = LIMITS;
    apart.commands.compare_and_write = false;
    assert_eq!(check(&compare, &apart), field);
}

#[test]
fn prps_are_refused() {
    let mut command = command(opcode::READ, 0, 1);
    command.flags = 0;
    assert_eq!(check(&command, &LIMITS), Err(Status::INVALID_FIELD.dnr()));
    command.flags = 0xc0;
    assert_eq!(check(&command, &LIMITS), Err(Status::INVALID_FIELD.dnr()));
    command.flags = 0x80;
    assert!(check(&command, &LIMITS).is_ok());
    command.opcode = opcode::FLUSH;
    command.flags = 0;
    assert!(check(&command, &LIMITS).is_ok(), "no data, no pointer");
}

fn placement(opcode: u8, sgl: Sgl, capsule_bytes: u32) -> Result<Placement, Status> {
    let mut command = command(opcode, 0, 8);
    command.set_sgl(sgl);
    let transfer = check(&command, &LIMITS).unwrap();
    locate(&command, transfer, capsule_bytes)
}

#[test]
fn data_is_where_the_descriptor_says() {
    let bytes = 4096;
    let write = |sgl, capsule| placement(opcode::WRITE, sgl, capsule);
    assert_eq!(write(Sgl::transport(4096), 0), Ok(Placement::Transport { bytes }));
    let inside = Ok(Placement::InCapsule { offset: 0, bytes });
    assert_eq!(write(Sgl::in_capsule(0, 4096), 4096), inside);
    let offset = Err(Status::SGL_OFFSET_INVALID.dnr());
    assert_eq!(write(Sgl::in_capsule(1, 4096), 4096), offset);
    assert_eq!(write(Sgl::in_capsule(u64::MAX, 4096), 4096), offset);
    assert_eq!(write(Sgl::in_capsule(16384, 4096), 32768), offset, "beyond IOCCSZ");
    let length = Err(Status::SGL_LENGTH_INVALID.dnr());
    assert_eq!(write(Sgl::transport(4095), 0), length);
    assert_eq!(write(Sgl::transport(4097), 0), length);
    let kind = Err(Status::SGL_TYPE_INVALID.dnr());
    assert_eq!(write(Sgl { identifier: 0x40, ..Sgl::transport(4096) }, 0), kind);
    assert_eq!(placement(opcode::READ, Sgl::in_capsule(0, 4096), 4096), kind);
    assert_eq!(placement(opcode::FLUSH, Sgl::transport(77), 0), Ok(Placement::None));
}

#[test]
fn dataset_management_may_bring_a_whole_buffer() {
    let dsm = |sgl| {
        let mut command = command(opcode::DATASET_MANAGEMENT, 0, 1);
        command.set_sgl(sgl);
        locate(&command, check(&command, &LIMITS).unwrap(), 4096)
    };
    assert_eq!(dsm(Sgl::transport(4096)), Ok(Placement::Transport { bytes: 4096 }));
    assert_eq!(dsm(Sgl::in_capsule(0, 16)), Ok(Placement::InCapsule { offset: 0, bytes: 16 }));
    assert_eq!(dsm(Sgl::transport(15)), Err(Status::SGL_LENGTH_INVALID.dnr()));
    assert_eq!(dsm(Sgl::transport(4097)), Err(Status::SGL_LENGTH_INVALID.dnr()));
}

#[test]
fn all_ranges_are_checked_before_any_is_used() {
    let mut dsm = command(opcode::DATASET_MANAGEMENT, 0, 1);
    dsm.cdw10 = 2.into();
    dsm.cdw11 = 4.into();
    let range = |slba: u64, blocks: u32| Range {
        slba: slba.into(),
        blocks: blocks.into(),
        ..Range::default()
    };
    let collect = |data: &[u8]| {
        let mut seen = Vec::new();
        ranges(&dsm, data, &LIMITS, |slba, blocks| seen.push((slba, blocks))).map(|()| seen)
    };
    let data = [range(0, 8), range(9, 0), range(100, u32::from(u16::MAX) * 2)];
    assert_eq!(collect(data.as_bytes()), Ok(vec![(0, 8), (100, 131_070)]));
    let data = [range(0, 8), range(LIMITS.blocks, 1), range(0, 1)];
    assert_eq!(collect(data.as_bytes()), Err(Status::LBA_OUT_OF_RANGE.dnr()));
    assert_eq!(collect(&data.as_bytes()[..47]), Err(Status::SGL_LENGTH_INVALID.dnr()));
}

proptest! {
    /// Whatever passes is within every limit.
    #[test]
    fn what_passes_is_within_the_limits(
        bytes in proptest::array::uniform32(any::<u8>()), opcode in 0u8..0x1a, flags: u8,
        blocks in 1u64..1 << 40, slba in 0u64..1 << 40, block_shift in prop_oneof![Just(9), Just(12)],
        read_only: bool, placed: bool, capsule_bytes in 0u32..40000,
    ) {
        let whole: Vec<u8> = bytes.iter().chain(&bytes).copied().collect();
        let mut command = Command::read_from_bytes(&whole).unwrap();
        command.opcode = opcode;
        command.flags = if flags & 1 == 0 { Sgl::PSDT_SGL } else { flags };
        command.set_slba(slba);
        let limits = Limits { block_shift, blocks, read_only, ..LIMITS };
        if let Ok(transfer) = check(&command, &limits) {
            prop_assert!(transfer.bytes <= crate::TRANSFER_BYTES_MAX);
            prop_assert_eq!(transfer.bytes == 0, transfer.direction == Direction::None);
            if matches!(opcode, opcode::READ | opcode::WRITE | opcode::WRITE_ZEROES) {
                prop_assert!(slba + u64::from(command.block_count()) <= blocks);
            }
            if read_only {
                prop_assert_ne!(opcode, opcode::WRITE);
            }
            if placed {
                let offset = u64::from(flags) * 128;
                command.set_sgl(Sgl::in_capsule(offset, transfer.bytes));
            }
            if let Ok(Placement::InCapsule { offset, bytes }) =
                locate(&command, transfer, capsule_bytes)
            {
                prop_assert!(offset + bytes <= capsule_bytes);
            }
        }
    }
}
