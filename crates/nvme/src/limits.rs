//! What a namespace can do, as data: layers combine it, front doors publish it as Identify data.

use crate::dataset::RANGES_MAX;

/// Commands that a namespace carries out beside Read, Write and Flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    /// Write Zeroes.
    pub write_zeroes: bool,
    /// Dataset Management deallocate, and the Deallocate bit of Write Zeroes.
    pub deallocate: bool,
    /// Write Uncorrectable.
    pub write_uncorrectable: bool,
    /// Compare.
    pub compare: bool,
    /// Fused Compare-and-Write.
    pub compare_and_write: bool,
    /// Verify.
    pub verify: bool,
    /// A Verify that gives the checksum of what it has read ([`crate::Command::wants_checksum`]).
    pub checksum: bool,
    /// Get LBA Status, as far as it tells which blocks are allocated ([`crate::lba_status`]). Those that are not read as zeroes.
    pub allocation: bool,
}

impl Commands {
    /// What both can do.
    #[must_use]
    pub const fn and(self, other: Commands) -> Commands {
        Commands {
            write_zeroes: self.write_zeroes && other.write_zeroes,
            deallocate: self.deallocate && other.deallocate,
            write_uncorrectable: self.write_uncorrectable && other.write_uncorrectable,
            compare: self.compare && other.compare,
            compare_and_write: self.compare_and_write && other.compare_and_write,
            verify: self.verify && other.verify,
            checksum: self.checksum && other.checksum,
            allocation: self.allocation && other.allocation,
        }
    }
}

/// Commands that nobody here interprets and a namespace passes to what is behind it. They count as
/// able to do anything: whoever offers them to others does so only where that was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passthrough {
    /// I/O commands beyond Read, Write, Flush and [`Commands`]: of other command sets, and vendor
    /// specific ones.
    pub io: bool,
    /// Admin commands.
    pub admin: bool,
}

impl Passthrough {
    /// Nothing is passed through.
    pub const NONE: Passthrough = Passthrough { io: false, admin: false };
    /// Everything is.
    pub const ALL: Passthrough = Passthrough { io: true, admin: true };

    /// What either lets pass.
    pub const fn or(self, other: Passthrough) -> Passthrough {
        Passthrough { io: self.io || other.io, admin: self.admin || other.admin }
    }

    /// As it is written in options: `io`, `admin`, `io+admin`; none for nothing.
    pub const fn words(self) -> Option<&'static str> {
        match self {
            Passthrough { io: false, admin: false } => None,
            Passthrough { io: true, admin: false } => Some("io"),
            Passthrough { io: false, admin: true } => Some("admin"),
            Passthrough { io: true, admin: true } => Some("io+admin"),
        }
    }

    /// Undoes [`Passthrough::words`].
    pub fn parse(text: &str) -> Option<Passthrough> {
        match text {
            "io" => Some(Passthrough { io: true, admin: false }),
            "admin" => Some(Passthrough { io: false, admin: true }),
            "io+admin" | "admin+io" => Some(Passthrough::ALL),
            _ => None,
        }
    }
}

/// What one Copy may ask for (NVM 1.1, section 4.1.5.1); all zero where there is no Copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyLimits {
    /// Source ranges of one command, at most 256 (MSRC is one less).
    pub ranges_max: u16,
    /// Blocks of one source range (MSSRL), at most 65,535.
    pub range_blocks_max: u32,
    /// Blocks of all source ranges together (MCL).
    pub blocks_max: u32,
}

impl CopyLimits {
    /// There is no Copy.
    pub const NONE: CopyLimits = CopyLimits { ranges_max: 0, range_blocks_max: 0, blocks_max: 0 };

    /// Whether there is a Copy.
    pub const fn is_offered(&self) -> bool {
        self.ranges_max > 0 && self.range_blocks_max > 0 && self.blocks_max > 0
    }

    /// What both can do.
    #[must_use]
    pub fn and(self, other: CopyLimits) -> CopyLimits {
        CopyLimits {
            ranges_max: self.ranges_max.min(other.ranges_max),
            range_blocks_max: self.range_blocks_max.min(other.range_blocks_max),
            blocks_max: self.blocks_max.min(other.blocks_max),
        }
    }
}

/// What one Dataset Management may name (NVM 1.1, section 4.1.5.4). Nobody here refuses more, or cuts it: that is
/// left to what is behind the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardLimits {
    /// Ranges of one command (DMRL), at most 256.
    pub ranges_max: u16,
    /// Blocks of one range (DMRSL).
    pub range_blocks_max: u32,
    /// Blocks of all ranges together (DMSL).
    pub blocks_max: u64,
}

impl DiscardLimits {
    /// Whatever a command can name.
    pub const UNLIMITED: DiscardLimits = DiscardLimits {
        ranges_max: RANGES_MAX as u16,
        range_blocks_max: u32::MAX,
        blocks_max: u64::MAX,
    };

    /// What both take.
    #[must_use]
    pub fn and(self, other: DiscardLimits) -> DiscardLimits {
        DiscardLimits {
            ranges_max: self.ranges_max.min(other.ranges_max),
            range_blocks_max: self.range_blocks_max.min(other.range_blocks_max),
            blocks_max: self.blocks_max.min(other.blocks_max),
        }
    }

    /// Blocks of a range at most, also where it is the command's only one.
    #[inline]
    pub fn one_range_blocks_max(&self) -> u32 {
        u64::from(self.range_blocks_max).min(self.blocks_max).max(1) as u32
    }
}

/// Limits and capabilities of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Logical block size in bytes as a power of two: 9 (512) or 12 (4096).
    pub block_shift: u8,
    /// Capacity in logical blocks.
    pub blocks: u64,
    /// Largest data transfer of one command in bytes.
    pub transfer_bytes_max: u32,
    /// Largest range of one Write Zeroes in bytes (WZSL, NVM 1.1, section 4.1.5.4); `u32::MAX` where there is no limit.
    pub write_zeroes_bytes_max: u32,
    /// Dataset Management.
    pub discard: DiscardLimits,
    /// Preferred write granularity and alignment in bytes.
    pub optimal_write_bytes: u32,
    /// No write is accepted.
    pub read_only: bool,
    /// Data survives a power cut only once flushed or written with FUA.
    pub volatile_write_cache: bool,
    /// Optional commands.
    pub commands: Commands,
    /// Copy. Below a guard: by means of the namespace's own, never by reading and writing.
    pub copy: CopyLimits,
    /// Metadata of each block in bytes, where it is transferred as a buffer of its own.
    pub metadata_bytes: u16,
    /// Commands passed through.
    pub passthrough: Passthrough,
    /// Reads may be answered with lent memory (see `namespace::Data::Lent`).
    pub lends_reads: bool,
    /// Every command is finished, or its write data taken, before `submit` returns.
    pub immediate: bool,
}

impl Limits {
    /// Logical block size in bytes.
    #[inline]
    pub fn block_bytes(&self) -> u32 {
        1 << self.block_shift
    }

    /// Capacity in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.blocks << self.block_shift
    }

    /// Blocks of one Write Zeroes at most: no more than a command can name.
    #[inline]
    pub fn zero_blocks_max(&self) -> u32 {
        (self.write_zeroes_bytes_max >> self.block_shift).clamp(1, 1 << 16)
    }

    /// Whether `count` blocks from `slba` lie within the namespace.
    #[inline]
    pub fn contains(&self, slba: u64, count: u32) -> bool {
        slba.checked_add(u64::from(count)).is_some_and(|end| end <= self.blocks)
    }
}
