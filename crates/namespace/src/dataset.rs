//! The data of Dataset Management (NVM 1.1, section 3.3.3): up to 256 ranges.

use nvme::{Command, Status};

/// Ranges that one command may carry (NVM 1.1, Figure 46: Number of Ranges is 8 bits, zero-based).
pub const RANGES_MAX: usize = 256;
/// Bytes of one range definition (NVM 1.1, Figure 48).
pub const RANGE_BYTES: usize = 16;
/// Attribute Deallocate (NVM 1.1, Figure 47, command dword 11 bit 2).
const DEALLOCATE: u32 = 1 << 2;

/// One range: `blocks` logical blocks from `slba`. A length of zero is allowed and does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Context attributes: hints.
    pub attributes: u32,
    /// Length in logical blocks.
    pub blocks: u32,
    /// Starting LBA.
    pub slba: u64,
}

impl Range {
    /// The range laid out as on the wire.
    pub fn to_bytes(self) -> [u8; RANGE_BYTES] {
        let mut bytes = [0; RANGE_BYTES];
        bytes[..4].copy_from_slice(&self.attributes.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[8..].copy_from_slice(&self.slba.to_le_bytes());
        bytes
    }

    /// The range that `bytes` lay out.
    pub fn from_bytes(bytes: &[u8; RANGE_BYTES]) -> Range {
        let [a0, a1, a2, a3, n0, n1, n2, n3, slba @ ..] = *bytes;
        Range {
            attributes: u32::from_le_bytes([a0, a1, a2, a3]),
            blocks: u32::from_le_bytes([n0, n1, n2, n3]),
            slba: u64::from_le_bytes(slba),
        }
    }
}

/// Ranges that `command` says it carries: 1 to 256.
#[inline]
pub fn range_count(command: &Command) -> usize {
    (command.cdw10.get() & 0xff) as usize + 1
}

/// Whether the command asks to deallocate; the other attributes are hints without effect here.
#[inline]
pub fn deallocates(command: &Command) -> bool {
    command.cdw11.get() & DEALLOCATE != 0
}

/// The ranges that `command` carries in `len` bytes at `data`, checked against a capacity of
/// `blocks` before any of them is acted upon.
///
/// # Safety
/// `data` must be readable for `len` bytes while the ranges are in use.
pub unsafe fn ranges(
    command: &Command,
    data: *const u8,
    len: usize,
    blocks: u64,
) -> Result<impl Iterator<Item = Range> + Clone + use<>, Status> {
    let count = range_count(command);
    if len < count * RANGE_BYTES {
        return Err(Status::SGL_LENGTH_INVALID);
    }
    let ranges = (0..count).map(move |index| {
        // SAFETY: `index` is below `count`, whose ranges fit into `len` readable bytes.
        let bytes = unsafe { data.add(index * RANGE_BYTES).cast::<[u8; RANGE_BYTES]>().read() };
        Range::from_bytes(&bytes)
    });
    let inside = |range: Range| {
        range.slba.checked_add(u64::from(range.blocks)).is_some_and(|end| end <= blocks)
    };
    if !ranges.clone().all(inside) {
        return Err(Status::LBA_OUT_OF_RANGE);
    }
    Ok(ranges)
}

/// A Dataset Management command that deallocates `count` ranges.
pub fn deallocate(nsid: u32, count: usize) -> Command {
    debug_assert!((1..=RANGES_MAX).contains(&count));
    Command {
        opcode: nvme::opcode::io::DATASET_MANAGEMENT,
        nsid: nsid.into(),
        cdw10: (count as u32 - 1).into(),
        cdw11: DEALLOCATE.into(),
        ..Command::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_round_trip_and_are_checked() {
        let range = Range { attributes: 7, blocks: 9, slba: 0x1_0000_0001 };
        assert_eq!(Range::from_bytes(&range.to_bytes()), range);
        let bytes = range.to_bytes();
        // SAFETY: the bytes outlive the iterators.
        let parse = |count, blocks| unsafe {
            ranges(&deallocate(1, count), bytes.as_ptr(), bytes.len(), blocks)
                .map(Iterator::collect::<Vec<_>>)
        };
        assert_eq!(parse(1, u64::MAX), Ok(vec![range]));
        assert_eq!(parse(1, 0x1_0000_000a), Ok(vec![range]));
        assert_eq!(parse(1, 0x1_0000_0009), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(parse(2, u64::MAX), Err(Status::SGL_LENGTH_INVALID));
    }
}
