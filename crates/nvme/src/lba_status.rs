//! Get LBA Status (NVM 1.1, section 4.2.1), as far as it tells which blocks are allocated.
//!
//! ```text
//!   header     NLSD: how many descriptors | CMPC: whether that is all
//!   descriptor DSLBA | NLB, zero-based | LBARS      ascending; blocks between them are not allocated
//! ```
//!
//! The other actions (10h and 11h) look for blocks that cannot be read any more.

use crate::{Command, Sgl, opcode};

/// Action Type: allocated blocks, as the controller keeps track of them. Only of namespaces whose Tracked LBA Allocation
/// Granularity is not zero ([`crate::identify::NvmNamespace::tlbaag`]).
pub const ALLOCATED: u8 = 0x02;

/// Bytes before the descriptors.
pub const HEADER_BYTES: usize = 8;
/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;

/// Completion Condition: more descriptors than there was room for.
const INCOMPLETE: u8 = 1;
/// Completion Condition: the action was performed on all blocks asked for.
const COMPLETE: u8 = 2;
/// LBA Range Status of an answer to [`ALLOCATED`].
const RANGE_ALLOCATED: u8 = 0b010;

/// Consecutive blocks that are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first.
    pub slba: u64,
    /// How many: 1 to 2^32.
    pub blocks: u64,
}

/// What of the blocks asked for is allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Ascending, and apart from one another or adjacent.
    pub extents: Vec<Extent>,
    /// Nothing else of the range is. Otherwise that is known up to the last of these extents.
    pub is_complete: bool,
}

/// Asks which of `blocks` blocks from `slba` on are allocated: of all up to the end of the namespace, if they are more than
/// a command can name (65,535). The answer may have `bytes`, whole dwords ([`descriptors_in`] tells how much that is).
pub fn command(nsid: u32, slba: u64, blocks: u64, bytes: u32) -> Command {
    debug_assert!(bytes as usize >= HEADER_BYTES && bytes.is_multiple_of(4), "whole dwords");
    // Zero: up to the end.
    let range_length = u16::try_from(blocks).unwrap_or(0);
    let mut command = Command {
        opcode: opcode::admin::GET_LBA_STATUS,
        nsid: nsid.into(),
        // Dwords, zero-based (MNDW).
        cdw12: (bytes / 4 - 1).into(),
        cdw13: (u32::from(ALLOCATED) << 24 | u32::from(range_length)).into(),
        ..Command::default()
    };
    command.set_slba(slba);
    command.set_sgl(Sgl::transport(bytes));
    command
}

/// What a [`command`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Action Type.
    pub action: u8,
    /// The first block.
    pub slba: u64,
    /// How many; none: up to the end of the namespace.
    pub blocks: Option<u16>,
    /// Bytes that the answer may have, at most 2^34.
    pub bytes: u64,
}

impl Question {
    /// Reads a command.
    pub fn of(command: &Command) -> Question {
        let (cdw13, dwords_z) = (command.cdw13.get(), command.cdw12.get());
        let range_length = cdw13 as u16;
        Question {
            action: (cdw13 >> 24) as u8,
            slba: command.slba(),
            blocks: (range_length != 0).then_some(range_length),
            bytes: (u64::from(dwords_z) + 1) * 4,
        }
    }
}

/// Descriptors that fit into an answer of `bytes`.
pub fn descriptors_in(bytes: usize) -> usize {
    bytes.saturating_sub(HEADER_BYTES) / DESCRIPTOR_BYTES
}

impl Allocated {
    /// Lays it out in `bytes`, the rest of which becomes zero. Extents that find no room are left out, and so it says.
    pub fn write(&self, bytes: &mut [u8]) {
        bytes.fill(0);
        let mut room = descriptors_in(bytes.len());
        let (mut written, mut is_complete) = (0_u32, self.is_complete);
        'all: for extent in &self.extents {
            let mut rest = *extent;
            while rest.blocks > 0 {
                if room == 0 {
                    is_complete = false;
                    break 'all;
                }
                let blocks = rest.blocks.min(1 << 32);
                let at = HEADER_BYTES + written as usize * DESCRIPTOR_BYTES;
                bytes[at..at + 8].copy_from_slice(&rest.slba.to_le_bytes());
                bytes[at + 8..at + 12].copy_from_slice(&((blocks - 1) as u32).to_le_bytes());
                bytes[at + 13] = RANGE_ALLOCATED;
                (rest.slba, rest.blocks) = (rest.slba.wrapping_add(blocks), rest.blocks - blocks);
                (written, room) = (written + 1, room - 1);
            }
        }
        let header =
            [&written.to_le_bytes()[..], &[if is_complete { COMPLETE } else { INCOMPLETE }]];
        for (to, from) in bytes.iter_mut().zip(header.into_iter().flatten()) {
            *to = *from;
        }
    }

    /// Reads an answer about blocks from `slba` on. None if it makes no sense: whoever believes it leaves blocks out.
    pub fn read(bytes: &[u8], slba: u64) -> Option<Allocated> {
        let (header, descriptors) = bytes.split_at_checked(HEADER_BYTES)?;
        let count = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
        let list = usize::try_from(count).ok()?.checked_mul(DESCRIPTOR_BYTES)?;
        let is_complete = match header[4] {
            COMPLETE => true,
            INCOMPLETE => false,
            _ => return None,
        };
        let mut extents = Vec::new();
        let mut from = slba;
        for descriptor in descriptors.get(..list)?.chunks_exact(DESCRIPTOR_BYTES) {
            let first = u64::from_le_bytes(descriptor[..8].try_into().expect("eight bytes"));
            let blocks_z = u32::from_le_bytes(descriptor[8..12].try_into().expect("four bytes"));
            let blocks = u64::from(blocks_z) + 1;
            let end = first.checked_add(blocks)?;
            // What is tracked in larger units may begin before the block that was asked for.
            let is_next = first >= from || extents.is_empty() && end > slba;
            if !is_next || descriptor[13] & 7 != RANGE_ALLOCATED {
                return None;
            }
            let slba = first.max(from);
            extents.push(Extent { slba, blocks: end - slba });
            from = end;
        }
        Some(Allocated { extents, is_complete })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(of: &[(u64, u64)]) -> Vec<Extent> {
        of.iter().map(|&(slba, blocks)| Extent { slba, blocks }).collect()
    }

    #[test]
    fn questions_are_read_as_they_are_asked() {
        for (blocks, named) in [(1, Some(1)), (0xffff, Some(0xffff)), (0x1_0000, None)] {
            let command = command(7, 0x1_2345_6789, blocks, 4096);
            assert_eq!((command.nsid.get(), command.sgl().length.get()), (7, 4096));
            let question = Question::of(&command);
            let slba = 0x1_2345_6789;
            let expected = Question { action: ALLOCATED, slba, blocks: named, bytes: 4096 };
            assert_eq!(question, expected);
        }
    }

    #[test]
    fn answers_are_read_as_they_are_written() {
        for is_complete in [false, true] {
            let all = Allocated { extents: extents(&[(5, 1), (9, 100), (109, 3)]), is_complete };
            let mut bytes = vec![0xee; 4096];
            all.write(&mut bytes);
            assert_eq!(Allocated::read(&bytes, 5), Some(all));
            assert!(bytes[HEADER_BYTES + 3 * DESCRIPTOR_BYTES..].iter().all(|byte| *byte == 0));
        }
        let none = Allocated { extents: Vec::new(), is_complete: true };
        let mut bytes = [0xee; HEADER_BYTES];
        none.write(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(Allocated::read(&bytes, 0), Some(none));
    }

    #[test]
    fn fields_lie_where_the_specification_has_them() {
        let one = Allocated { extents: extents(&[(0x1122, 0x3345)]), is_complete: true };
        let mut bytes = [0; 24];
        one.write(&mut bytes);
        assert_eq!((bytes[0], bytes[4]), (1, 2));
        assert_eq!((bytes[8], bytes[9], bytes[16], bytes[17]), (0x22, 0x11, 0x44, 0x33));
        assert_eq!(bytes[21], 2);
    }

    #[test]
    fn what_finds_no_room_is_left_out_and_said() {
        let all = Allocated { extents: extents(&[(0, 1), (2, 1), (4, 1)]), is_complete: true };
        let mut bytes = [0; HEADER_BYTES + 2 * DESCRIPTOR_BYTES + 12];
        all.write(&mut bytes);
        let expected = Allocated { extents: extents(&[(0, 1), (2, 1)]), is_complete: false };
        assert_eq!(Allocated::read(&bytes, 0), Some(expected));
        // More blocks than a descriptor can have.
        let large = Allocated { extents: extents(&[(1, (1 << 32) + 2)]), is_complete: true };
        large.write(&mut bytes);
        let expected = extents(&[(1, 1 << 32), ((1 << 32) + 1, 2)]);
        assert_eq!(Allocated::read(&bytes, 0).map(|it| it.extents), Some(expected));
        for short in 0..HEADER_BYTES {
            large.write(&mut bytes[..short]);
            assert_eq!(Allocated::read(&bytes[..short], 0), None);
        }
    }

    #[test]
    fn answers_that_make_no_sense_are_not_believed() {
        let read = |of: &[(u64, u64)], slba: u64, change: &dyn Fn(&mut [u8])| {
            let mut bytes = [0; 256];
            Allocated { extents: extents(of), is_complete: true }.write(&mut bytes);
            change(&mut bytes);
            Allocated::read(&bytes, slba).map(|it| it.extents)
        };
        let good = [(10, 5), (20, 5)];
        assert!(read(&good, 10, &|_| {}).is_some());
        // What is tracked in larger units may begin earlier.
        assert_eq!(read(&good, 12, &|_| {}), Some(extents(&[(12, 3), (20, 5)])));
        assert_eq!(read(&good, 15, &|_| {}), None, "all of it is before");
        assert_eq!(read(&[(20, 5), (10, 5)], 0, &|_| {}), None, "not ascending");
        assert_eq!(read(&[(10, 5), (14, 5)], 0, &|_| {}), None, "overlapping");
        assert_eq!(read(&[(u64::MAX - 3, 5)], 0, &|_| {}), None, "beyond all blocks");
        assert_eq!(read(&good, 0, &|bytes| bytes[4] = 0), None, "no condition");
        assert_eq!(read(&good, 0, &|bytes| bytes[0] = 200), None, "more than there are");
        assert_eq!(read(&good, 0, &|bytes| bytes[3] = 0xff), None, "many more");
        assert_eq!(read(&good, 0, &|bytes| bytes[21] = 0), None, "not the status asked for");
    }
}
