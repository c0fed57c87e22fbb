//! What a controller says of itself and of its namespaces: little, much, or what the script makes of it.

use super::Script;
use nvme::identify::{self, Cns, Nidt};
use nvme::log::ana::{Group, Header};
use nvme::{Command, opcode};
use std::ops::Range;
use zerocopy::{FromZeros, IntoBytes};

/// Writes that change an answer at most.
const WRITES_MAX: u8 = 8;
/// Bytes of a descriptor of the largest length.
const LARGEST: usize = 4 + 255;

/// The answer of a controller that has little.
pub(super) fn identify(cns: Cns, more: u8) -> Vec<u8> {
    match cns {
        Cns::CONTROLLER => {
            let mut data = identify::Controller::new_zeroed();
            data.oaes = u32::MAX.into();
            data.cmic = more << 3;
            data.nanagrpid = u32::from(more).into();
            data.crdt[0] = u16::from(more >> 6).into();
            data.ctratt = (u32::from(more) << 4).into();
            data.as_bytes().to_vec()
        }
        Cns::ACTIVE_NAMESPACES if more & 1 << 7 == 0 => vec![more | 1, 0, 0, 0],
        Cns::ACTIVE_NAMESPACES => {
            let listed = (1..=7u32).filter(|nsid| more & 1 << (nsid - 1) != 0);
            listed.flat_map(u32::to_le_bytes).collect()
        }
        Cns::NAMESPACE => {
            let mut data = identify::Namespace::new_zeroed();
            data.nsze = u64::from(more).into();
            data.lbaf[0].lbads = 9 + (more & 3);
            data.anagrpid = 1.into();
            data.as_bytes().to_vec()
        }
        _ => vec![3, 16, 0, 0, more],
    }
}

/// A page with one group.
pub(super) fn ana(more: u8) -> Vec<u8> {
    let (mut header, mut group) = (Header::new_zeroed(), Group::new_zeroed());
    header.groups = 1.into();
    (group.group, group.state) = (1.into(), more & 15);
    [header.as_bytes(), group.as_bytes()].concat()
}

/// The answer of a controller that has all there is.
pub(super) fn identify_much(cns: Cns, more: u8) -> Vec<u8> {
    match cns {
        Cns::CONTROLLER => {
            let mut data = identify::Controller::new_zeroed();
            (data.oaes, data.cmic) = (u32::MAX.into(), 1 << 3);
            data.nanagrpid = u32::from(1 + (more & 7)).into();
            (data.mdts, data.vwc) = (more >> 4, 1);
            (data.oncs, data.oacs, data.cdfs) = (0xffff.into(), 0xffff.into(), 0xffff.into());
            data.ioccsz = (4 + u32::from(more)).into();
            data.as_bytes().to_vec()
        }
        Cns::NAMESPACE => {
            let mut data = identify::Namespace::new_zeroed();
            (data.nsze, data.anagrpid) = ((u64::from(more) << 8 | 8).into(), 1.into());
            (data.lbaf[0].lbads, data.lbaf[1].lbads) = (if more & 1 == 0 { 12 } else { 9 }, 12);
            (data.lbaf[2].lbads, data.lbaf[2].ms) = (9, 8.into());
            (data.lbaf[15].lbads, data.lbaf[63].lbads, data.nlbaf_z) = (12, 9, 63);
            (data.nsfeat, data.dlfeat) = (1 << 4, 1 << 3 | 1);
            data.npwg_z = u16::from(more).into();
            (data.mssrl, data.mcl, data.msrc_z) = (255.into(), 1000.into(), 127);
            (data.nguid, data.eui64) = ([0x11; 16], [0x12; 8]);
            data.as_bytes().to_vec()
        }
        Cns::NAMESPACE_DESCRIPTORS if more >> 6 == 3 => descriptors_to_the_end(more),
        Cns::NAMESPACE_DESCRIPTORS => [
            descriptor(Nidt::EUI64, &[0x21; 8]),
            descriptor(Nidt::NGUID, &[0x22; 16]),
            descriptor(Nidt::UUID, &[more >> 1; 16]),
            descriptor(Nidt(4), &[0]),
        ]
        .concat(),
        Cns::COMMAND_SET_CONTROLLER => {
            vec![more & 15, more >> 4, 0, more, 1, 0, 0, 0, 1]
        }
        _ => identify(cns, more),
    }
}

fn descriptor(kind: Nidt, bytes: &[u8]) -> Vec<u8> {
    [&[kind.0, bytes.len() as u8, 0, 0], bytes].concat()
}

/// As many as there is room for: the last one ends with the list, or one byte after it.
fn descriptors_to_the_end(more: u8) -> Vec<u8> {
    let whole = identify::DATA_BYTES / LARGEST;
    let mut list = descriptor(Nidt(0x80), &[1; 255]).repeat(whole);
    let rest = identify::DATA_BYTES - list.len() - 4;
    list.extend(descriptor(Nidt(0x80), &vec![1; rest + usize::from(more & 1)]));
    list
}

/// A page of several groups, namespaces with one that comes before the group that is looked for.
pub(super) fn ana_much(more: u8, bytes: u32) -> Vec<u8> {
    let namespaces = u32::from(more >> 4 & 3) * 8;
    let group = |number: u32, namespaces: u32| {
        let mut group = Group::new_zeroed();
        (group.group, group.namespaces) = (number.into(), namespaces.into());
        group.state = more & 15;
        group.as_bytes().to_vec()
    };
    let mut page = Header::new_zeroed().as_bytes().to_vec();
    page.extend(group(2, namespaces));
    page.extend((1..=namespaces).flat_map(u32::to_le_bytes));
    let mut groups = 1;
    for number in [1, 3, 4, 5, 6, 7, 8] {
        if page.len() + size_of::<Group>() <= bytes as usize {
            page.extend(group(number, 0));
            groups += 1;
        }
    }
    page[8] = groups;
    page
}

/// Lets the script change an answer: each write is wherever it says, or where there is something that matters.
pub(super) fn change(data: &mut [u8], command: &Command, script: &mut Script<'_>) {
    if data.is_empty() {
        return;
    }
    let fields: Vec<u16> = fields(command).iter().cloned().flatten().collect();
    for _ in 0..=script.byte() % WRITES_MAX {
        let (word, value) = (script.word(), script.byte());
        let at = if word >> 15 == 0 { word } else { fields[usize::from(word) % fields.len()] };
        data[usize::from(at) % data.len()] = value;
    }
}

fn fields(command: &Command) -> &'static [Range<u16>] {
    // CRDT, OACS and ACL, NANAGRPID, MAXCMD, ONCS, VWC, CDFS, IOCCSZ, ICDOFF, and vendor specific ones.
    const CONTROLLER: &[Range<u16>] = &[
        24..26,
        76..78,
        128..134,
        256..259,
        348..352,
        514..516,
        520..522,
        525..526,
        534..536,
        1792..1796,
        1800..1802,
        3072..3080,
    ];
    // NSZE, NSFEAT, FLBAS, DLFEAT, NPWG, Copy, ANAGRPID, NSATTR, identifiers, formats, and vendor specific ones.
    const NAMESPACE: &[Range<u16>] = &[
        0..8,
        24..25,
        26..27,
        33..34,
        64..66,
        74..81,
        92..96,
        99..100,
        104..105,
        120..121,
        128..140,
        380..392,
    ];
    // Types and lengths, as they are in a list with all there is.
    const DESCRIPTORS: &[Range<u16>] =
        &[0..2, 4..5, 12..14, 32..34, 36..37, 52..54, 57..59, 3885..3887];
    match (command.opcode, Cns(command.cdw10.get() as u8)) {
        (opcode::admin::GET_LOG_PAGE, _) => {
            &[8..10, 16..24, 32..33, 48..56, 64..65, 80..88, 96..97, 112..120]
        }
        (_, Cns::CONTROLLER) => CONTROLLER,
        (_, Cns::NAMESPACE) => NAMESPACE,
        (_, Cns::NAMESPACE_DESCRIPTORS) => DESCRIPTORS,
        _ => &[0..8, 8..16],
    }
}
