//! What a client learns of an export, and what the two ends have agreed on.

use crate::wire::transmission_flag as flag;
use nvme::Limits;

/// Most bytes of a read or write: what clients may send that do not ask ("Size constraints").
pub const PAYLOAD_MAX: u32 = 32 << 20;

/// The smallest preferred block size: a page.
const PREFERRED_BYTES_MIN: u32 = 4096;

/// The exports that a handshake may choose from, in the order in which they are listed. The first
/// is also the one without a name.
pub trait Exports {
    /// How many there are.
    fn count(&self) -> usize;
    /// Name of one.
    fn name(&self, index: usize) -> &str;
    /// Words about it for people.
    fn description(&self, index: usize) -> &str;
    /// What it can do now.
    fn limits(&self, index: usize) -> Limits;
}

/// What the handshake has agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Place of the export in the list.
    pub export: usize,
    /// Its size in bytes as the client was told.
    pub bytes: u64,
    /// Bytes to which the client has agreed to align its requests; 1 if it has not.
    pub alignment: u32,
    /// Transmission flags as the client was told.
    pub flags: u16,
    /// Structured replies.
    pub structured: bool,
    /// `base:allocation` may be asked for.
    pub has_allocation: bool,
}

impl Session {
    /// Whether the client was offered `flag`.
    pub fn offers(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The export of that name; the first for the empty name.
pub fn find(exports: &dyn Exports, name: &[u8]) -> Option<usize> {
    let named = (0..exports.count()).find(|index| exports.name(*index).as_bytes() == name);
    named.or((name.is_empty() && exports.count() > 0).then_some(0))
}

/// Transmission flags of an export.
///
/// Several connections are always welcome: no connection has a cache of its own, and NVMe's Flush
/// covers every write of the namespace that was completed before, whoever sent it.
pub fn transmission_flags(limits: &Limits, structured: bool) -> u16 {
    let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
    // It is a Verify.
    if limits.commands.verify {
        flags |= flag::SEND_CACHE;
    }
    if structured {
        flags |= flag::SEND_DF;
    }
    if limits.read_only {
        return flags | flag::READ_ONLY;
    }
    if limits.commands.deallocate {
        flags |= flag::SEND_TRIM;
    }
    if limits.commands.write_zeroes {
        flags |= flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
    }
    flags
}

/// Preferred block size of an export.
pub fn preferred_bytes(limits: &Limits) -> u32 {
    let least = limits.block_bytes().max(PREFERRED_BYTES_MIN);
    let optimal = limits.optimal_write_bytes;
    if optimal.is_power_of_two() { optimal.clamp(least, PAYLOAD_MAX) } else { least }
}
