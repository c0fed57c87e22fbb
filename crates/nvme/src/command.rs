//! Submission and completion queue entries (NVMe Base 2.1, section 4.1 and 4.2).

use crate::{Status, opcode};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What command dword 13 of a Verify says that is to give a checksum; see [`Command::wants_checksum`].
pub const CHECKSUM: u32 = u32::from_le_bytes(*b"crc6");

/// A submission queue entry: Common Command Format (NVMe Base 2.1, Figure 92).
#[repr(C)]
#[derive(
    Clone, Copy, Default, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct Command {
    /// Opcode; see [`crate::opcode`].
    pub opcode: u8,
    /// FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// Command identifier, echoed in the completion.
    pub cid: U16,
    /// Namespace identifier.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata pointer.
    pub mptr: U64,
    /// Data pointer: for fabrics one SGL descriptor.
    pub dptr: [u8; 16],
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}
const _: () = assert!(size_of::<Command>() == 64);

/// Fused operation (NVMe Base 2.1, Figure 91, bits 9:8 of dword 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fuse {
    /// Normal operation.
    None,
    /// First command of a fused pair.
    First,
    /// Second command of a fused pair.
    Second,
    /// The reserved encoding.
    Reserved,
}

impl Command {
    /// An I/O command that addresses logical blocks (NVM 1.1, section 3.2 and 3.3): `blocks` is one-based.
    #[inline]
    pub fn blocks(opcode: u8, nsid: u32, slba: u64, blocks: u32) -> Command {
        debug_assert!((1..=0x1_0000).contains(&blocks));
        Command {
            opcode,
            nsid: nsid.into(),
            cdw10: (slba as u32).into(),
            cdw11: ((slba >> 32) as u32).into(),
            cdw12: (blocks - 1).into(),
            ..Command::default()
        }
    }

    /// Starting LBA: command dwords 10 and 11 of Read, Write, Compare, Write Zeroes, Verify.
    #[inline]
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw10.get()) | u64::from(self.cdw11.get()) << 32
    }

    /// Sets the starting LBA.
    #[inline]
    pub fn set_slba(&mut self, slba: u64) {
        self.cdw10 = (slba as u32).into();
        self.cdw11 = ((slba >> 32) as u32).into();
    }

    /// Number of logical blocks, one-based: 1 to 65,536 (command dword 12, bits 15:0 plus one).
    #[inline]
    pub fn block_count(&self) -> u32 {
        (self.cdw12.get() & 0xffff) + 1
    }

    /// Whether a Verify is to give the CRC-64/NVME of its blocks (NVM 1.1, section 5.3.1.2) in completion dwords 0 and 1. That is ours
    /// and no standard's: command dword 13, which is reserved, says [`CHECKSUM`]. Namespaces that know it say so in
    /// the vendor specific bytes of Identify Namespace ([`crate::identify::vendor::gives_checksums`]).
    #[inline]
    pub fn wants_checksum(&self) -> bool {
        self.opcode == opcode::io::VERIFY && self.cdw13.get() == CHECKSUM
    }

    /// Force Unit Access (command dword 12, bit 30).
    #[inline]
    pub fn fua(&self) -> bool {
        self.cdw12.get() & 1 << 30 != 0
    }

    /// Deallocate bit of Write Zeroes (command dword 12, bit 25).
    #[inline]
    pub fn deac(&self) -> bool {
        self.cdw12.get() & 1 << 25 != 0
    }

    /// Fused operation of this entry.
    #[inline]
    pub fn fuse(&self) -> Fuse {
        match self.flags & 3 {
            0 => Fuse::None,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }
}

/// A completion queue entry (NVMe Base 2.1, Figure 96), as fabrics carry it.
#[repr(C)]
#[derive(
    Clone, Copy, Default, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct Completion {
    /// Command-specific result: dwords 0 and 1.
    pub result: U64,
    /// Submission queue head pointer.
    pub sqhd: U16,
    /// Submission queue identifier; reserved in fabrics.
    pub sqid: U16,
    /// Command identifier.
    pub cid: U16,
    /// Status in bits 15:1; bit 0 is the phase tag, zero in fabrics.
    pub status: U16,
}
const _: () = assert!(size_of::<Completion>() == 16);

impl Completion {
    /// A completion for `cid`.
    #[inline]
    pub fn new(cid: u16, status: Status, result: u64) -> Completion {
        Completion {
            result: result.into(),
            sqhd: 0.into(),
            sqid: 0.into(),
            cid: cid.into(),
            status: (status.0 << 1).into(),
        }
    }

    /// The status field without the phase tag.
    #[inline]
    pub fn status(&self) -> Status {
        Status(self.status.get() >> 1)
    }
}
