//! What a controller has told on a connection, byte by byte: what the association makes of it is held against that.
//!
//! Offsets are the specification's, and nothing here is read as the association reads it.

use crate::{Controller, Namespace};
use nvme::identify::Cns;
use nvme::limits::Passthrough;
use nvme::log::Lid;
use nvme::log::ana::AnaState;
use nvme::{Command, Limits, opcode};
use std::collections::BTreeMap;

/// Least and most of what one command transfers.
const TRANSFER_BYTES: std::ops::RangeInclusive<u32> = 4096..=1 << 20;

/// The last successful answers of a connection.
#[derive(Default)]
pub(super) struct Told {
    controller: Vec<u8>,
    namespaces: BTreeMap<u32, Vec<u8>>,
    descriptors: BTreeMap<u32, Vec<u8>>,
    command_set: Vec<u8>,
    ana: Vec<u8>,
}

impl Told {
    /// A command is answered so.
    pub(super) fn heard(&mut self, command: &Command, is_success: bool, data: &[u8]) {
        let (nsid, low) = (command.nsid.get(), command.cdw10.get() as u8);
        let data = if is_success { data.to_vec() } else { Vec::new() };
        match (command.opcode, low) {
            (opcode::admin::IDENTIFY, cns) => match Cns(cns) {
                Cns::CONTROLLER => self.controller = data,
                Cns::NAMESPACE => drop(self.namespaces.insert(nsid, data)),
                Cns::NAMESPACE_DESCRIPTORS => drop(self.descriptors.insert(nsid, data)),
                Cns::COMMAND_SET_CONTROLLER => self.command_set = data,
                _ => {}
            },
            (opcode::admin::GET_LOG_PAGE, lid) if Lid(lid) == Lid::ANA => self.ana = data,
            _ => {}
        }
    }

    /// A namespace that was found is one that the controller has told of.
    pub(super) fn check(&self, found: &Namespace, controller: &Controller) {
        self.check_controller(controller);
        check_limits(&found.limits);
        let said = &self.namespaces[&found.nsid];
        self.check_size(said, &found.limits);
        self.check_commands(said, &found.limits);
        self.check_identity(said, found);
        assert_eq!(found.ana_group, dword(said, 92), "ANAGRPID");
        let has_ana = self.controller[76] & 1 << 3 != 0 && dword(&self.controller, 348) != 0;
        let state = if has_ana { state_of(&self.ana, found.ana_group) } else { None };
        assert_eq!(found.ana.0, state.unwrap_or(AnaState::OPTIMIZED.0), "the group's state");
    }

    fn check_controller(&self, controller: &Controller) {
        let said = &self.controller;
        let (icdoff, capsule) = (word(said, 1800), u64::from(dword(said, 1792)) * 16);
        let in_capsule = controller.in_capsule_bytes;
        assert!(in_capsule <= *TRANSFER_BYTES.end());
        assert!(in_capsule == 0 || icdoff == 0 && u64::from(in_capsule) + 64 <= capsule);
        assert!(controller.ana_groups <= crate::ANA_GROUPS_MAX);
        assert_eq!(controller.aborts_max, u16::from(said[258]) + 1);
        for text in [&controller.model, &controller.serial, &controller.firmware] {
            assert!(text.bytes().all(|byte| matches!(byte, b' '..=b'~')), "it can be shown");
        }
    }

    fn check_size(&self, said: &[u8], limits: &Limits) {
        let format = usize::from(said[26] % 16) + usize::from(said[26] / 32 % 4) * 16;
        let entry = &said[128 + 4 * format..][..4];
        assert_eq!(&entry[..2], &[0, 0], "without metadata");
        assert_eq!((limits.block_shift, limits.blocks), (entry[2], long(said, 0)));
        let transfer = match u32::from(self.controller[77]) {
            0 | 8.. => *TRANSFER_BYTES.end(),
            mdts => 4096 * 2_u32.pow(mdts),
        };
        assert_eq!(limits.transfer_bytes_max, transfer, "MDTS");
        assert_eq!(limits.read_only, said[99] % 2 == 1, "NSATTR");
    }

    /// Nothing is used that the controller has not.
    fn check_commands(&self, said: &[u8], limits: &Limits) {
        let (oncs, commands) = (word(&self.controller, 520), limits.commands);
        let zeroes = said[33] & 7 == 1;
        for (used, bit) in [
            (commands.compare, 0),
            (commands.write_uncorrectable, 1),
            (commands.deallocate, 2),
            (commands.write_zeroes, 3),
            (commands.verify, 7),
            (limits.copy.is_offered(), 8),
        ] {
            assert!(!used || oncs >> bit & 1 == 1, "ONCS has no bit {bit}");
        }
        assert!(zeroes || !commands.deallocate && !commands.allocation, "DLFEAT");
        let oacs = word(&self.controller, 256);
        assert!(!commands.allocation || oacs >> 9 & 1 == 1, "OACS");
        assert!(!limits.volatile_write_cache || self.controller[525] & 1 == 1, "VWC");
        assert!(!commands.checksum || commands.verify, "a checksum is a Verify's");
        if limits.copy.is_offered() {
            assert_eq!(word(&self.controller, 534) & 1, 1, "CDFS: format 0h");
            let copy = (u16::from(said[80]) + 1, u32::from(word(said, 74)), dword(said, 76));
            let most = limits.copy;
            assert_eq!((most.ranges_max, most.range_blocks_max, most.blocks_max), copy);
        }
        let [verify, zero] = [0, 1].map(|at| match self.command_set.get(at) {
            None | Some(0 | 20..) => u64::from(u32::MAX),
            Some(power) => 4096_u64 << power,
        });
        assert_eq!(u64::from(limits.write_zeroes_bytes_max), zero, "WZSL");
        assert!(!commands.verify || u64::from(limits.transfer_bytes_max) <= verify, "VSL");
    }

    fn check_identity(&self, said: &[u8], found: &Namespace) {
        let (mut nguid, mut eui64, mut uuid) = (&said[104..120], &said[120..128], &[0; 16][..]);
        let list = self.descriptors.get(&found.nsid).map_or(&[][..], Vec::as_slice);
        let mut at = 0;
        while at + 4 <= list.len() && list[at + 1] != 0 {
            let (from, len) = (at + 4, usize::from(list[at + 1]));
            let identifier = list.get(from..from + len).expect("a list that ends in its middle");
            match list[at] {
                1 => eui64 = identifier,
                2 => nguid = identifier,
                3 => uuid = identifier,
                _ => {}
            }
            at = from + len;
        }
        let identity = &found.identity;
        assert_eq!([&identity.nguid[..], &identity.eui64, &identity.uuid], [nguid, eui64, uuid]);
    }
}

/// Limits that hold together, whatever they were made of.
pub(super) fn check_limits(limits: &Limits) {
    let block = match limits.block_shift {
        9 => 512,
        12 => 4096,
        shift => panic!("blocks of 2^{shift} bytes"),
    };
    assert!(limits.blocks > 0 && limits.blocks.checked_mul(block).is_some());
    assert!(TRANSFER_BYTES.contains(&limits.transfer_bytes_max));
    assert!(TRANSFER_BYTES.contains(&limits.optimal_write_bytes));
    for bytes in [limits.transfer_bytes_max, limits.optimal_write_bytes] {
        assert_eq!(u64::from(bytes) % block, 0, "whole blocks");
    }
    assert!((1..=1 << 16).contains(&limits.zero_blocks_max()));
    assert!((1..=256).contains(&limits.discard.ranges_max));
    assert!(limits.discard.range_blocks_max > 0 && limits.discard.blocks_max > 0);
    assert!(limits.copy.ranges_max <= 256 && limits.copy.range_blocks_max <= 65_535);
    assert!(!limits.commands.compare_and_write, "fabrics have no pairs");
    assert!(!limits.lends_reads && !limits.immediate && limits.metadata_bytes == 0);
    assert_eq!(limits.passthrough, Passthrough::NONE);
}

/// The state of the first group of that number on the page.
fn state_of(page: &[u8], group: u32) -> Option<u8> {
    let mut at = 16;
    for _ in 0..word(page, 8) {
        if dword(page, at) == group {
            return Some(page[at + 16]);
        }
        at += 32 + 4 * dword(page, at + 4) as usize;
    }
    None
}

fn word(data: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(data[at..at + 2].try_into().expect("two bytes"))
}

fn dword(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(data[at..at + 4].try_into().expect("four bytes"))
}

fn long(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().expect("eight bytes"))
}
