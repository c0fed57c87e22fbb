//! What is shared with the loop in the kernel: the structures of `bpf/loop/shared.h`.

use bpf::request::{BACKENDS_MAX, Request};
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Entries of the submission queue.
pub const SQ_ENTRIES: u32 = 256;
/// Most requests in flight of a queue.
pub const DEPTH_MAX: u16 = 1024;
/// Mistakes that are kept: the 1st, 2nd, 4th, 8th...
pub const MISTAKES_KEPT: usize = 32;
/// Requests that NVLANE_DEFERRED decides on between two turns of the loop.
pub const TAKEN_MAX: usize = 7;
/// Files of the ring: the driver's, the backends, `/dev/zero`.
pub const FILES: usize = 1 + BACKENDS_MAX + 1;
/// Buffers for tags, where requests come many at a time.
pub const BUFFERS: u16 = 64;
/// Most tags that the driver gives at once.
pub const BATCH_MAX: u16 = 128;
/// Bytes of a tag.
pub const TAG_BYTES: u16 = 2;
/// Bytes of a buffer for tags.
pub const BUFFER_BYTES: u16 = BATCH_MAX * TAG_BYTES;
/// Bytes of what the driver is told of a tag (`struct ublk_elem_header`).
pub const RESULT_BYTES: u16 = 8;
/// The ring's memory region (`struct nvlane_memory`): a `struct __kernel_timespec` per request, then a result of each, the
/// buffers, and the ring that they are provided by, which begins a page.
pub const RESULTS_AT: usize = DEPTH_MAX as usize * 16;
/// Where the buffers for tags are in it.
pub const TAGS_AT: usize = RESULTS_AT + DEPTH_MAX as usize * RESULT_BYTES as usize;
/// Where the ring is that they are provided by.
pub const BUFFERS_AT: usize = TAGS_AT + BUFFERS as usize * BUFFER_BYTES as usize;
/// Where it says whose ring it is: after that ring's entries.
pub const QUEUE_AT: usize = BUFFERS_AT + BUFFERS as usize * 16;
/// Bytes of it all, in whole pages.
pub const MEMORY_BYTES: usize = BUFFERS_AT + 4096;

/// The map of requests: as many entries for each queue as it is deep.
pub const FLIGHTS: &str = "nvlane_flights";
/// The map of the queues' [`QueueState`].
pub const QUEUES: &str = "nvlane_queues";
/// The map of the queues' [`Deferrals`].
pub const DEFERRALS: &str = "nvlane_deferrals";
/// The map of the queues' [`Held`].
pub const HELD: &str = "nvlane_held";
/// The map of the [`MistakeLog`], shared by all queues.
pub const MISTAKES: &str = "nvlane_mistakes";
/// The map of the [`LoopConfig`].
pub const CONFIG: &str = ".rodata.nvlane";
/// The loop's `struct io_uring_bpf_ops`.
pub const OPERATIONS: &str = "nvlane_ops";
/// Sections of code that are for the machine in user space.
pub const USER_SECTIONS: &str = "nvlane/";

/// `struct nvlane_loop_config`: constants of a device's queues.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
pub struct LoopConfig {
    /// Size of the device.
    pub device_blocks: u64,
    /// Sizes of the backends.
    pub sizes: [u64; BACKENDS_MAX],
    /// Bytes of the ring's first region, and where things are in it.
    pub cq_bytes: u32,
    /// The completion queue's head.
    pub cq_head: u32,
    /// Its tail.
    pub cq_tail: u32,
    /// Its entries.
    pub cq_entries: u32,
    /// How many, less one.
    pub cq_mask: u32,
    /// The number of the driver's command that commits, and fetches the next where they come one by one.
    pub commit: u32,
    /// That of the one that fetches many at a time.
    pub fetch: u32,
    /// Most blocks of a request.
    pub blocks_max: u32,
    /// How deep each is.
    pub depth: u16,
    /// How many backends.
    pub backends: u16,
    /// Block size in bytes as a power of two.
    pub block_shift: u8,
    /// Write Zeroes may deallocate.
    pub deallocates: u8,
    /// The program has NVLANE_DEFERRED.
    pub defers: u8,
    /// Requests come many at a time.
    pub batches: u8,
    /// The program has NVLANE_DONE.
    pub has_done: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

/// `struct nvlane_queue_state`: what a queue is, and what has happened on it.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct QueueState {
    /// Address of the driver's descriptors.
    pub descriptors: u64,
    /// Address of the ring's memory region.
    pub memory: u64,
    /// Which queue.
    pub queue: u32,
    /// Where its requests begin among those of all queues.
    pub flights: u32,
    /// Requests that the driver has given.
    pub requests: u64,
    /// Completions seen.
    pub completions: u64,
    /// Entries submitted.
    pub entries: u64,
    /// How many times entries were submitted.
    pub submissions: u64,
    /// How many times the loop has run.
    pub steps: u64,
    /// Losses of data that its users were told of.
    pub losses: u64,
    /// Requests that have not been given back.
    pub busy: u32,
    /// Tags that the driver has taken back.
    pub ended: u32,
    /// What the driver or the ring said then, if it was not the usual.
    pub error: i32,
    /// The loop's own.
    pub told: u32,
    /// Not 0: no request comes any more, where they come many at a time; then all tags end at once.
    pub over: u32,
    /// The loop's own, as what follows.
    pub in_vain: u32,
    /// Entries of this turn.
    pub filled: u32,
    /// Results that are to be committed.
    pub gathered: u32,
    /// Not 0: requests are to be asked for again.
    pub refetch: u32,
    /// Commits of which the driver has not said what became of them.
    pub committing: u32,
    /// Parts with each backend.
    pub in_flight: [u32; BACKENDS_MAX],
    /// Zero: the next queue's begins on another line of the cache.
    pub reserved: [u64; 10],
}

/// [`Mistake::entry`]: `NVLANE_DONE`.
pub const IN_DONE: u8 = 1;
/// [`Mistake::entry`]: `NVLANE_DEFERRED`.
pub const IN_DEFERRED: u8 = 2;

/// `struct nvlane_mistake`: a wrong list of actions.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct Mistake {
    /// First block of the request.
    pub start: u64,
    /// Its length.
    pub blocks: u32,
    /// Line of the source that made it, 0 if unknown.
    pub line: u32,
    /// What the program returned.
    pub returned: i32,
    /// What is wrong; see [`crate::mistakes`].
    pub kind: u8,
    /// A part that it is about.
    pub first: u8,
    /// Another one.
    pub second: u8,
    /// The request's operation.
    pub op: u8,
    /// Which function of the program made it: [`IN_DONE`], [`IN_DEFERRED`], or NVLANE_ROUTE.
    pub entry: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

/// `struct nvlane_answer`: NVLANE_DEFERRED has decided on a request.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct Answer {
    /// Which.
    pub tag: u32,
    /// What it returned.
    pub returned: i32,
}

/// `struct nvlane_deferrals`: requests on their way between the loop and NVLANE_DEFERRED.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Deferrals {
    /// How many the loop has given.
    pub given: u32,
    /// How many answers there are.
    pub taken: u32,
    /// Not 0: others are still to be decided on.
    pub more: u32,
    /// Zero.
    pub reserved: u32,
    /// The answers.
    pub answer: [Answer; TAKEN_MAX],
    /// The tags of what was given.
    pub tag: [u16; DEPTH_MAX as usize],
}

/// `struct nvlane_held`: requests that have come and not begun.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Held {
    /// Not 0: what comes is held back.
    pub holding: u32,
    /// Not 0: the ring's descriptor for calls was written to.
    pub called: u32,
    /// Counts the first that waits.
    pub first: u32,
    /// And the one after the last.
    pub end: u32,
    /// Their tags.
    pub tag: [u16; DEPTH_MAX as usize],
}

/// What the completions of the descriptor for calls are about (NVLANE_CALL).
pub const CALL: u64 = 7 << 56;
/// What the completion is about of a list of results that are none yet (NVLANE_COMMITTED).
pub const PREPARED: u64 = 8 << 56;

/// `struct nvlane_mistake_log`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct MistakeLog {
    /// How many there were.
    pub count: u64,
    /// Number n is the 2^n-th.
    pub at: [Mistake; MISTAKES_KEPT],
    /// How often a backend said that data is lost.
    pub losses: u64,
}

const _: () = {
    assert!(size_of::<LoopConfig>() == 184);
    assert!(size_of::<QueueState>() == 256);
    assert!(BUFFERS_AT.is_multiple_of(4096));
    assert!(size_of::<Mistake>() == 32);
    assert!(size_of::<Deferrals>() == 2120);
    assert!(size_of::<Held>() == 2064);
    assert!(size_of::<Request>() == 1120);
};
