//! Copy: its list, its limits, and in which order they are held against it.

use super::host::{Host, LIMITS, NQN, get_feature, set_feature, target};
use crate::copy::{check_copy, check_format};
use crate::io::{Direction, Transfer, check, locate};
use crate::{AnaState, NAMESPACES_MAX, NamespaceAccess};
use nvme::copy::{self, Entry, FORMATS, FORMATS_ALWAYS, Format};
use nvme::limits::CopyLimits;
use nvme::{Command, Limits, Sgl, Status};
use proptest::prelude::*;

const OK: Result<u32, Status> = Ok(16);
const SIZE: Status = Status::SIZE_LIMIT_EXCEEDED.dnr();
const RANGE: Status = Status::LBA_OUT_OF_RANGE.dnr();
const FIELD: Status = Status::INVALID_FIELD.dnr();

/// Eight ranges of up to 100 blocks each, 400 together, in a namespace of 1,000.
const SMALL: Limits = Limits {
    blocks: 1000,
    copy: CopyLimits { ranges_max: 8, range_blocks_max: 100, blocks_max: 400 },
    ..LIMITS
};

fn entry(nsid: u32, slba: u64, blocks: u32) -> Entry {
    Entry { nsid, slba, blocks, fast_only: false }
}

/// Namespace 1 is written to. 2 is like it but smaller, 3 has other blocks, 4 has metadata, 5 is
/// inaccessible, 6 is lost, 7 is not optimized; 2 to 7 have 500 blocks.
fn find(nsid: u32) -> Option<NamespaceAccess> {
    let limits = Limits { blocks: 500, copy: CopyLimits::NONE, read_only: true, ..SMALL };
    let (limits, state) = match nsid {
        2 => (limits, AnaState::OPTIMIZED),
        3 => (Limits { block_shift: 12, ..limits }, AnaState::OPTIMIZED),
        4 => (Limits { metadata_bytes: 8, ..limits }, AnaState::OPTIMIZED),
        5 => (limits, AnaState::INACCESSIBLE),
        6 => (limits, AnaState::PERSISTENT_LOSS),
        7 => (limits, AnaState::NON_OPTIMIZED),
        _ => return None,
    };
    Some(NamespaceAccess { nsid, limits, state })
}

fn run(format: Format, sdlba: u64, entries: &[Entry], limits: &Limits) -> Result<u32, Status> {
    let command = copy::command(1, sdlba, entries.len(), format);
    let mut list = vec![0; entries.len() * format.entry_bytes()];
    for (entry, bytes) in entries.iter().zip(list.chunks_exact_mut(format.entry_bytes())) {
        entry.write(format, bytes);
    }
    check_copy(&command, copy::entries(&command, &list)?, limits, |nsid| {
        assert!(format.names_namespaces(), "nobody asked for another namespace");
        assert_ne!(nsid, 1, "the destination is known");
        find(nsid)
    })
}

#[test]
fn lists_are_as_long_as_format_and_count_say() {
    for format in Format::ALL {
        for ranges in [1, 2, 128, 256] {
            let mut command = copy::command(1, 0, ranges, format);
            let bytes = (ranges * format.entry_bytes()) as u32;
            let transfer = Transfer { direction: Direction::ToController, bytes };
            command.flags = Sgl::PSDT_SGL;
            assert_eq!(check(&command, &LIMITS), Ok(transfer));
            for (length, fits) in
                [(bytes, true), (bytes - 1, false), (bytes + 1, false), (0, false)]
            {
                let wanted = if fits { None } else { Some(Status::SGL_LENGTH_INVALID.dnr()) };
                for sgl in [Sgl::transport(length), Sgl::in_capsule(0, length)] {
                    command.set_sgl(sgl);
                    assert_eq!(locate(&command, transfer, 16384).err(), wanted, "{format:?}");
                }
            }
        }
    }
    for number in 4..16u32 {
        let mut command = copy::command(1, 0, 1, Format::Short);
        command.flags = Sgl::PSDT_SGL;
        command.cdw12 = (number << 8).into();
        assert_eq!(check(&command, &LIMITS), Err(FIELD));
    }
    let mut command = copy::command(1, 0, 1, Format::Short);
    command.flags = Sgl::PSDT_SGL;
    let none = Limits { copy: CopyLimits::NONE, ..LIMITS };
    assert_eq!(check(&command, &none), Err(Status::INVALID_OPCODE.dnr()));
}

#[test]
fn where_copy_is_not_offered_but_commands_are_passed_it_is_passed() {
    let passthrough = nvme::limits::Passthrough { io: true, admin: false };
    let limits = Limits { copy: CopyLimits::NONE, passthrough, ..LIMITS };
    // A length that is none of a list's: the device is to judge.
    let mut command = copy::command(1, 0, 3, Format::Short);
    command.set_sgl(Sgl::transport(77));
    let transfer = Transfer { direction: Direction::ToController, bytes: 77 };
    assert_eq!(check(&command, &limits), Ok(transfer));
    let offered = Limits { copy: SMALL.copy, ..limits };
    assert_eq!(check(&command, &offered).map(|transfer| transfer.bytes), Ok(96));
}

#[test]
fn formats_are_enabled_before_ranges_are_counted() {
    for format in Format::ALL {
        for (ranges, status) in [(1, None), (8, None), (9, Some(SIZE)), (256, Some(SIZE))] {
            let command = copy::command(1, 0, ranges, format);
            assert_eq!(check_format(&command, FORMATS, &SMALL).err(), status);
            let named = format.names_namespaces().then_some(FIELD);
            assert_eq!(check_format(&command, FORMATS_ALWAYS, &SMALL).err(), named.or(status));
            assert_eq!(check_format(&command, format.bit(), &SMALL).err(), status);
            assert_eq!(check_format(&command, !format.bit(), &SMALL), Err(FIELD));
        }
    }
    let mut unknown = copy::command(1, 0, 1, Format::Short);
    unknown.cdw12 = (4u32 << 8 | 255).into();
    assert_eq!(check_format(&unknown, u16::MAX, &SMALL), Err(FIELD));
}

/// What is tried: first block of the destination, sources, and what comes of it.
type Case<'a> = (&'a str, u64, &'a [Entry], Result<u32, Status>);

/// One wrong thing each, and just not wrong.
#[test]
fn every_limit_has_its_status() {
    let own = |slba, blocks| entry(1, slba, blocks);
    let two = entry(2, 0, 8);
    let table: &[Case] = &[
        ("one range", 100, &[own(0, 16)], OK),
        ("two", 100, &[own(0, 8), own(900, 8)], OK),
        ("the longest", 500, &[own(0, 100)], Ok(100)),
        ("longer", 500, &[own(0, 101)], Err(SIZE)),
        ("one of them longer", 500, &[own(0, 1), own(0, 101)], Err(SIZE)),
        ("as long as a field says", 500, &[own(0, 65_536)], Err(SIZE)),
        ("all together", 500, &[own(0, 100), own(0, 100), own(0, 100), own(0, 100)], Ok(400)),
        ("more", 500, &[own(0, 100), own(0, 100), own(0, 100), own(0, 100), own(0, 1)], Err(SIZE)),
        ("the last source block", 100, &[own(984, 16)], OK),
        ("beyond it", 100, &[own(985, 16)], Err(RANGE)),
        ("far beyond it", 100, &[own(1 << 40, 16)], Err(RANGE)),
        ("around the end of numbers", 100, &[own(u64::MAX, 16)], Err(RANGE)),
        ("the second beyond it", 100, &[own(0, 8), own(993, 8)], Err(RANGE)),
        ("to the last block", 984, &[own(0, 16)], OK),
        ("to beyond it", 985, &[own(0, 16)], Err(RANGE)),
        ("the second to beyond it", 985, &[own(0, 8), own(0, 8)], Err(RANGE)),
        ("to around the end of numbers", u64::MAX, &[own(0, 16)], Err(RANGE)),
        ("from another", 100, &[two, own(0, 8)], OK),
    ];
    for (what, sdlba, entries, wanted) in table {
        for format in [Format::Namespaces, Format::NamespacesLong] {
            assert_eq!(run(format, *sdlba, entries, &SMALL), *wanted, "{what}, {format:?}");
        }
        if entries.iter().all(|entry| entry.nsid == 1) {
            for format in [Format::Short, Format::Long] {
                assert_eq!(run(format, *sdlba, entries, &SMALL), *wanted, "{what}, {format:?}");
            }
        }
    }
}

#[test]
fn sources_in_other_namespaces_are_held_against_those() {
    let table: &[(&str, Entry, Result<u32, Status>)] = &[
        ("the whole of it", entry(2, 484, 16), OK),
        ("beyond its end", entry(2, 485, 16), Err(RANGE)),
        ("beyond its end, though not beyond the destination's", entry(2, 600, 16), Err(RANGE)),
        ("no namespace", entry(0, 0, 16), Err(Status::INVALID_NAMESPACE.dnr())),
        ("inactive", entry(8, 0, 16), Err(FIELD)),
        ("the last there can be", entry(NAMESPACES_MAX, 0, 16), Err(FIELD)),
        ("beyond it", entry(NAMESPACES_MAX + 1, 0, 16), Err(Status::INVALID_NAMESPACE.dnr())),
        ("all namespaces", entry(u32::MAX, 0, 16), Err(Status::INVALID_NAMESPACE.dnr())),
        ("other blocks", entry(3, 0, 16), Err(Status::INCOMPATIBLE_NAMESPACE.dnr())),
        ("metadata", entry(4, 0, 16), Err(Status::INCOMPATIBLE_NAMESPACE.dnr())),
        ("inaccessible", entry(5, 0, 16), Err(Status::ANA_INACCESSIBLE)),
        ("lost", entry(6, 0, 16), Err(Status::ANA_PERSISTENT_LOSS)),
        ("not optimized", entry(7, 0, 16), OK),
    ];
    for format in [Format::Namespaces, Format::NamespacesLong] {
        for (what, source, wanted) in table {
            assert_eq!(run(format, 100, &[*source], &SMALL), *wanted, "{what}");
            let second = wanted.map(|blocks| blocks + 1);
            assert_eq!(run(format, 100, &[entry(1, 0, 1), *source], &SMALL), second, "{what}");
        }
    }
    // In formats that name none these bytes mean nothing.
    assert_eq!(run(Format::Short, 100, &[entry(8, 0, 16)], &SMALL), OK);
}

#[test]
fn overlap_is_refused_where_namespaces_are_named() {
    // The destination is 100 to 115.
    let overlapping: &[&[Entry]] = &[
        &[entry(1, 100, 16)],
        &[entry(1, 85, 16)],
        &[entry(1, 115, 16)],
        &[entry(1, 104, 1), entry(2, 0, 15)],
        // The second range lies where the first goes.
        &[entry(2, 0, 15), entry(1, 100, 1)],
        &[entry(1, 0, 15), entry(1, 115, 1)],
    ];
    let apart: &[&[Entry]] = &[
        &[entry(1, 84, 16)],
        &[entry(1, 116, 16)],
        &[entry(2, 100, 16)],
        // Sources may overlap each other.
        &[entry(1, 0, 8), entry(1, 4, 8)],
    ];
    for format in Format::ALL {
        let refused = format.names_namespaces();
        for entries in overlapping.iter().chain(apart) {
            if !refused && entries.iter().any(|entry| entry.nsid != 1) {
                continue;
            }
            let overlaps = refused && overlapping.contains(entries);
            let wanted = if overlaps { Err(Status::OVERLAPPING_RANGE.dnr()) } else { OK };
            assert_eq!(run(format, 100, entries, &SMALL), wanted, "{format:?} {entries:?}");
        }
    }
}

/// Each step has one thing more that is wrong, which is found earlier.
#[test]
fn the_first_that_fails_gives_the_status() {
    let mut limits = SMALL;
    let mut entries = vec![entry(1, 990, 10)];
    let mut sdlba = 985;
    let mut check =
        |wanted: Status, edit: &mut dyn FnMut(&mut Vec<Entry>, &mut u64, &mut Limits)| {
            edit(&mut entries, &mut sdlba, &mut limits);
            assert_eq!(
                run(Format::Namespaces, sdlba, &entries, &limits),
                Err(wanted),
                "{entries:?}"
            );
        };
    check(Status::OVERLAPPING_RANGE.dnr(), &mut |_, _, _| {});
    check(Status::NAMESPACE_WRITE_PROTECTED.dnr(), &mut |_, _, limits| limits.read_only = true);
    check(RANGE, &mut |_, sdlba, _| *sdlba = 991);
    check(RANGE, &mut |entries, _, _| entries.insert(0, entry(2, 490, 11)));
    check(Status::INCOMPATIBLE_NAMESPACE.dnr(), &mut |entries, _, _| entries[0].nsid = 3);
    check(Status::ANA_INACCESSIBLE, &mut |entries, _, _| entries.insert(0, entry(5, 0, 1)));
    check(FIELD, &mut |entries, _, _| entries.insert(0, entry(9, 0, 1)));
    check(SIZE, &mut |_, _, limits| limits.copy.blocks_max = 20);
    check(SIZE, &mut |entries, _, limits| {
        limits.copy.blocks_max = u32::MAX;
        entries.push(entry(1, 0, 101));
    });
}

#[test]
fn formats_that_name_namespaces_are_used_once_the_host_has_enabled_them() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let set = |cdfe: u16| {
        let mut behavior = [0; 512];
        behavior[4..6].copy_from_slice(&cdfe.to_le_bytes());
        behavior
    };
    let mut command = set_feature(0x16, 0);
    command.set_sgl(Sgl::transport(512));
    let id = host.id;
    assert_eq!(host.target.copy_formats(id), FORMATS_ALWAYS);
    for (cdfe, formats) in [(0b1000, 0b1011), (0b0100, 0b0111), (0b1100, 0b1111), (0, 0b0011)] {
        host.ok(&command, &set(cdfe));
        assert_eq!(host.target.copy_formats(id), formats);
        let mut get = get_feature(0x16, 0);
        get.set_sgl(Sgl::transport(512));
        assert_eq!(host.ok(&get, &[]).1[..], set(cdfe));
    }
    host.ok(&command, &set(0b0100));
    for bit in [0, 1, 4, 5, 15] {
        assert_eq!(host.status(&command, &set(0b0100 | 1 << bit)), FIELD, "reserved: bit {bit}");
        assert_eq!(host.target.copy_formats(id), 0b0111, "a refusal changes nothing");
    }
    // Another controller knows nothing of it.
    let other = Host::connect(host.target, port).id;
    assert_eq!(target.copy_formats(other), FORMATS_ALWAYS);
    // What is not supported cannot be enabled.
    let none = Limits { copy: CopyLimits::NONE, ..LIMITS };
    target.update_limits(NQN, 1, none).unwrap();
    let mut host = Host::connect(&mut target, port);
    assert_eq!(host.status(&command, &set(0b0100)), FIELD);
    host.ok(&command, &set(0));
}

proptest! {
    /// Whatever passes lies within the namespaces and the limits, and nothing panics.
    #[test]
    fn what_passes_is_within_the_limits(
        list in proptest::collection::vec(any::<u8>(), copy::LIST_BYTES_MAX), plausible: bool,
        ranges in 1usize..=256, format in 0usize..4, sdlba in prop_oneof![0u64..1100, any::<u64>()],
        limits in prop_oneof![Just(SMALL), Just(Limits { blocks: 1 << 40, ..LIMITS })],
    ) {
        let format = Format::ALL[format];
        let mut list = list;
        if plausible {
            for bytes in list.chunks_mut(format.entry_bytes()) {
                let (nsid, slba) = (u32::from(bytes[0] % 9), u64::from(bytes[8]) * 4);
                entry(nsid, slba, u32::from(bytes[16]) % 110 + 1).write(format, bytes);
            }
        }
        let command: Command = copy::command(1, sdlba, ranges, format);
        let entries = copy::entries(&command, &list).unwrap();
        if let Ok(blocks) = check_copy(&command, entries.clone(), &limits, find) {
            prop_assert!(blocks <= limits.copy.blocks_max);
            prop_assert_eq!(u64::from(blocks), entries.clone().map(|it| u64::from(it.blocks)).sum::<u64>());
            prop_assert!(sdlba + u64::from(blocks) <= limits.blocks);
            for entry in entries {
                let own = !format.names_namespaces() || entry.nsid == 1;
                let end = if own { limits.blocks } else { 500 };
                prop_assert!(entry.slba + u64::from(entry.blocks) <= end);
                prop_assert!(entry.blocks <= limits.copy.range_blocks_max);
            }
        }
    }
}
