//! Protection information that the controller adds to what is written, and takes off what is read (PRACT).
//!
//! ```text
//!   command without metadata --> PRACT
//!      Types 1 and 2         --> and the first reference tag: the low bits of the address (dword 14)
//!      Zone Append           --> and PIREMAP: the tag of where the zone's blocks really go
//! ```
//!
//! Reference tags are counted up from the one in the command, not from the address (NVM 1.1, End-to-end Data
//! Protection): without one, blocks are written that nobody can read who has tags checked.
//!
//! A Compare has nothing added or taken off: the controller compares the blocks' protection information with what
//! comes with the command.

use nvme::identify::{self, DATA_BYTES};
use nvme::opcode::io as opcode;
use uring::NvmeUringCmd;
use zerocopy::FromBytes;

/// Command dword 12: Protection Information, action and checks, and the action alone.
const PRINFO: u32 = 0xf << 26;
const PRACT: u32 = 1 << 29;
/// The same, of Zone Append: Protection Information Remap (Zoned Namespace Command Set 1.2, Zone Append).
const PIREMAP: u32 = 1 << 25;

/// Bytes of protection information with a guard of 16 bits; those with others have 16.
const BYTES: u16 = 8;

/// How a namespace is protected whose metadata is protection information with a guard of 16 bits and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Protection {
    /// The bits of a reference tag in dword 14: above them is the storage tag, if the format has one. None with
    /// Type 3, whose reference tags do not follow the address.
    tag_bits: Option<u32>,
}

impl Protection {
    /// None if there is none, or it is not all of the metadata, or a controller cannot add it in this way. `nvm` is
    /// the structure of the NVM command set, where the device has formats that it tells of there.
    pub(super) fn of(
        namespace: &identify::Namespace,
        metadata_bytes: u16,
        nvm: Option<&[u8; DATA_BYTES]>,
    ) -> Option<Protection> {
        let kind = namespace.dps & 7;
        if kind == 0 || metadata_bytes != BYTES {
            return None;
        }
        let format = nvm.map_or(0, |data| {
            let Ok(nvm) = identify::NvmNamespace::ref_from_bytes(data) else {
                unreachable!("Identify data is as long as its structure")
            };
            nvm.elbaf[namespace.format_index()].get()
        });
        // Storage Tag Size, and the Protection Information Format: 0 is that with a guard of 16 bits.
        let (storage_bits, guard) = (format & 0x7f, format >> 7 & 3);
        let tag_bits = u32::MAX.checked_shr(storage_bits).unwrap_or(0);
        (guard == 0).then_some(Protection { tag_bits: matches!(kind, 1 | 2).then_some(tag_bits) })
    }

    /// Has the controller do it for a command that brings no metadata. Tags that somebody has put there stay.
    #[inline]
    pub(super) fn add(self, command: &mut NvmeUringCmd) {
        if !is_added_to(command.opcode) {
            return;
        }
        let is_own = command.cdw12 & PRINFO != 0 || command.cdw14 != 0;
        // Where checks only are asked for as well: there is no memory for what would be transferred.
        command.cdw12 |= PRACT;
        let Some(tag_bits) = self.tag_bits.filter(|_| !is_own) else { return };
        command.cdw14 = command.cdw10 & tag_bits;
        if command.opcode == opcode::ZONE_APPEND {
            command.cdw12 |= PIREMAP;
        }
    }
}

#[inline]
fn is_added_to(code: u8) -> bool {
    matches!(code, opcode::READ | opcode::WRITE | opcode::WRITE_ZEROES | opcode::ZONE_APPEND)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    pub(in super::super) const TYPE_1: Protection = Protection { tag_bits: Some(u32::MAX) };

    fn of(kind: u8, metadata_bytes: u16, elbaf: Option<u32>) -> Option<Protection> {
        let mut namespace = identify::Namespace::new_zeroed();
        // Format 17, by all bits of its number.
        (namespace.dps, namespace.flbas) = (kind, 1 | 1 << 5);
        let nvm = elbaf.map(|elbaf| {
            let mut nvm = identify::NvmNamespace::new_zeroed();
            nvm.elbaf[17] = elbaf.into();
            <[u8; DATA_BYTES]>::try_from(nvm.as_bytes()).unwrap()
        });
        Protection::of(&namespace, metadata_bytes, nvm.as_ref())
    }

    #[test]
    fn a_controller_adds_what_is_all_of_the_metadata() {
        assert_eq!(of(0, 8, None), None);
        assert_eq!(of(1, 64, None), None);
        assert_eq!(of(1, 16, Some(2 << 7)), None);
        assert_eq!(of(1, 8, Some(2 << 7)), None, "no such guard has room");
        for (kind, tag_bits) in [(1, Some(u32::MAX)), (2, Some(u32::MAX)), (3, None)] {
            assert_eq!(of(kind, 8, None), Some(Protection { tag_bits }));
            // The protection information may be the first or the last of the metadata.
            assert_eq!(of(kind | 8, 8, Some(0)), Some(Protection { tag_bits }));
        }
        // A storage tag is above the reference tag.
        for (storage_bits, tag_bits) in [(1, u32::MAX >> 1), (16, 0xffff), (32, 0), (64, 0)] {
            let expected = Some(Protection { tag_bits: Some(tag_bits) });
            assert_eq!(of(2, 8, Some(storage_bits)), expected, "{storage_bits}");
        }
    }

    /// Dwords 12 and 14 of a command on block 0x1_2345_6789 that had these.
    fn given(protection: Protection, opcode: u8, cdw12: u32, cdw14: u32) -> (u32, u32) {
        let (cdw10, cdw11) = (0x2345_6789, 1);
        let command = NvmeUringCmd { opcode, cdw10, cdw11, cdw12, cdw14, ..Default::default() };
        let mut added = command;
        protection.add(&mut added);
        let (cdw12, cdw14) = (added.cdw12, added.cdw14);
        let rest = NvmeUringCmd { cdw12: command.cdw12, cdw14: command.cdw14, ..added };
        assert_eq!(rest, command, "nothing else is changed");
        (cdw12, cdw14)
    }

    #[test]
    fn reference_tags_follow_the_address() {
        let tag = 0x2345_6789;
        for opcode in [opcode::READ, opcode::WRITE, opcode::WRITE_ZEROES] {
            assert_eq!(given(TYPE_1, opcode, 0x4000_0007, 0), (0x6000_0007, tag));
        }
        assert_eq!(given(TYPE_1, opcode::ZONE_APPEND, 7, 0), (0x2200_0007, tag));
        let short = Protection { tag_bits: Some(0xffff) };
        assert_eq!(given(short, opcode::WRITE, 7, 0), (0x2000_0007, 0x6789));
        // Type 3 has none, and must not have them remapped.
        let third = Protection { tag_bits: None };
        assert_eq!(given(third, opcode::WRITE, 7, 0), (0x2000_0007, 0));
        assert_eq!(given(third, opcode::ZONE_APPEND, 7, 0), (0x2000_0007, 0));
        for opcode in [opcode::COMPARE, opcode::VERIFY, opcode::FLUSH, 0x92] {
            assert_eq!(given(TYPE_1, opcode, 7, 0), (7, 0), "opcode {opcode:#04x}");
        }
    }

    #[test]
    fn what_somebody_asks_for_himself_stays() {
        // The reference tag is to be checked, or added, as he says.
        for cdw12 in [0x0400_0007, 0x2000_0007, 0x2400_0007] {
            for tag in [0, 77] {
                let expected = (cdw12 | PRACT, tag);
                assert_eq!(given(TYPE_1, opcode::READ, cdw12, tag), expected);
                assert_eq!(given(TYPE_1, opcode::ZONE_APPEND, cdw12, tag), expected);
            }
        }
        assert_eq!(given(TYPE_1, opcode::WRITE, 7, 77), (0x2000_0007, 77));
    }
}
