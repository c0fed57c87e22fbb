//! The request as programs see it: the structures of `bpf/nvlane_bpf.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Backends of a device at most.
pub const BACKENDS_MAX: usize = 16;
/// Parts that one run may queue at most.
pub const PARTS_MAX: usize = 32;
/// Longest delay in nanoseconds.
pub const DELAY_NS_MAX: u64 = 10_000_000_000;
/// How often a request's parts may end at most, before it ends.
pub const PHASES_MAX: u8 = 8;

/// Flag of a request: it is to be durable when it completes.
pub const FUA: u16 = 1;
/// Flag of Write Zeroes: the blocks may be deallocated.
pub const MAY_DISCARD: u16 = 2;

/// Flag of a device: each block has one place at a time.
pub const ONE_PLACE: u8 = 1;
/// Flag of a device: where data is does not depend on maps and variables; they may begin anew.
pub const MAPS_MAY_GO: u8 = 2;

/// [`Request::place`]: the program runs here.
pub const IN_USER_SPACE: u8 = 0;

/// `struct nvlane_backend`.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct Backend {
    /// Its size.
    pub blocks: u64,
    /// Parts there now, of this core.
    pub in_flight: u32,
    /// None yet.
    pub flags: u32,
}

/// `struct nvlane_part`.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct Part {
    /// The first block, on the backend.
    pub block: u64,
    /// How many.
    pub blocks: u32,
    /// The first block, within the request.
    pub offset: u32,
    /// Which backend.
    pub backend: u16,
    /// NVMe's opcode.
    pub op: u8,
    /// Zero.
    pub reserved: u8,
    /// The line of the source that queued it.
    pub line: u32,
}

/// `struct nvlane_request`.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Request {
    /// The first block.
    pub start: u64,
    /// How many; 0 for Flush.
    pub blocks: u32,
    /// NVMe's opcode.
    pub op: u8,
    /// Block size in bytes as a power of two.
    pub block_shift: u8,
    /// [`FUA`], [`MAY_DISCARD`].
    pub flags: u16,
    /// Size of the device.
    pub device_blocks: u64,
    /// No other request in flight on this core has it.
    pub tag: u32,
    /// How many backends there are.
    pub backends: u16,
    /// How many times its parts have ended.
    pub phase: u8,
    /// Where the program runs.
    pub place: u8,
    /// Bit n is set if part n failed.
    pub failed: u32,
    /// Of the first part that failed.
    pub status: u16,
    /// Zero.
    pub reserved0: u16,
    /// The program's own.
    pub state: [u64; 4],
    /// Parts queued.
    pub parts: u16,
    /// How often it was completed.
    pub completions: u8,
    /// Whether user space is to take it over.
    pub deferred: u8,
    /// The status it was completed with.
    pub result: u16,
    /// Whether parts did not fit.
    pub overflow: u16,
    /// The line of the last action that is no part.
    pub line: u32,
    /// Zero.
    pub reserved1: u32,
    /// How long everything is to wait.
    pub delay_ns: u64,
    /// The backends.
    pub backend: [Backend; BACKENDS_MAX],
    /// The parts.
    pub part: [Part; PARTS_MAX],
}

/// `struct nvlane_device`.
#[repr(C)]
#[derive(Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Device {
    /// How many backends there are.
    pub backends: u16,
    /// Block size in bytes as a power of two.
    pub block_shift: u8,
    /// [`ONE_PLACE`], [`MAPS_MAY_GO`].
    pub flags: u8,
    /// Cores that will run the program.
    pub cores: u32,
    /// Size of the device.
    pub blocks: u64,
    /// Blocks of one request at most.
    pub blocks_max: u32,
    /// Preferred size and alignment of writes.
    pub optimal_blocks: u32,
    /// The backends.
    pub backend: [Backend; BACKENDS_MAX],
}

const _: () = assert!(size_of::<Backend>() == 16);
const _: () = assert!(size_of::<Part>() == 24);
const _: () = assert!(size_of::<Request>() == 1120);
const _: () = assert!(size_of::<Device>() == 280);

impl Default for Request {
    fn default() -> Request {
        zerocopy::FromZeros::new_zeroed()
    }
}

impl Request {
    /// Takes back what an earlier run wanted. What it wrote of parts stays, uncounted.
    #[inline]
    pub fn clear_actions(&mut self) {
        self.parts = 0;
        self.completions = 0;
        self.deferred = 0;
        self.result = 0;
        self.overflow = 0;
        self.line = 0;
        self.delay_ns = 0;
    }
}
