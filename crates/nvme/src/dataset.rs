//! Dataset Management (NVM 1.1, section 3.3.3).

use crate::Command;
use crate::wire::wire;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most ranges of one command: the field is eight bits, zero-based.
pub const RANGES_MAX: u32 = 256;

wire! {
    /// One range of a Dataset Management command (NVM 1.1, section 3.3.3).
    #[derive(Default)]
    pub struct Range[16] {
        /// Context attributes: hints.
        pub attributes: U32,
        /// Length in logical blocks; zero is an empty range.
        pub blocks: U32,
        /// Starting LBA.
        pub slba: U64,
    }
}

impl Command {
    /// Number of ranges of Dataset Management, one-based (command dword 10, bits 7:0 plus one).
    #[inline]
    pub fn range_count(&self) -> u32 {
        (self.cdw10.get() & 0xff) + 1
    }

    /// Attribute - Deallocate of Dataset Management (command dword 11, bit 2).
    #[inline]
    pub fn deallocates(&self) -> bool {
        self.cdw11.get() & 1 << 2 != 0
    }
}
