//! Checks a Copy against the limits of its namespace, and of those that its sources are in.
//!
//! ```text
//!   io::check(command, limits)                    what the list of source ranges is long
//!   check_format(command, enabled, limits)        before the list comes
//!   check_copy(command, entries, limits, find)    once it is there: everything else
//! ```
//!
//! Pure and without allocation, as [`crate::io`]. All is checked before anything is copied, so that a
//! Copy that is refused has copied nothing: dword 0 of its completion is 0, its first source range.

use crate::{NamespaceAccess, not_active};
use nvme::copy::{Entry, Format};
use nvme::{Command, Limits, Status};

/// Checks what a Copy says of its list: the format is one of `enabled` (a bit each, see
/// [`crate::Target::copy_formats`]), and there are no more ranges than the namespace takes (MSRC).
pub fn check_format(command: &Command, enabled: u16, limits: &Limits) -> Result<(), Status> {
    let format = command.copy_format().ok_or(Status::INVALID_FIELD.dnr())?;
    if format.bit() & enabled == 0 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    if command.copy_ranges() > usize::from(limits.copy.ranges_max) {
        return Err(Status::SIZE_LIMIT_EXCEEDED.dnr());
    }
    Ok(())
}

/// Checks the source ranges of a Copy to a namespace with `limits`, and returns how many blocks they
/// are together. `find` gives another namespace of the subsystem, for formats that name some.
///
/// Order of checks: lengths of the ranges (MSSRL), their sum (MCL); then range by range its namespace,
/// the ANA state of that, its block size, the range within it; then the destination's range, write
/// protection, and ranges that overlap the destination. The first that fails gives the status.
pub fn check_copy(
    command: &Command,
    entries: impl Iterator<Item = Entry> + Clone,
    limits: &Limits,
    mut find: impl FnMut(u32) -> Option<NamespaceAccess>,
) -> Result<u32, Status> {
    let names_namespaces = command.copy_format().is_some_and(Format::names_namespaces);
    let is_own = |entry: &Entry| !names_namespaces || entry.nsid == command.nsid.get();
    let blocks = check_sizes(entries.clone(), limits)?;
    for entry in entries.clone() {
        if is_own(&entry) {
            check_source(&entry, limits)?;
            continue;
        }
        let source = find(entry.nsid).ok_or(not_active(entry.nsid))?;
        if let Some(status) = source.state.io_status() {
            return Err(status);
        }
        let format = |limits: &Limits| (limits.block_shift, limits.metadata_bytes);
        if format(&source.limits) != format(limits) {
            return Err(Status::INCOMPATIBLE_NAMESPACE.dnr());
        }
        check_source(&entry, &source.limits)?;
    }
    if !limits.contains(command.slba(), blocks) {
        return Err(Status::LBA_OUT_OF_RANGE.dnr());
    }
    if limits.read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
    }
    // Formats 0h and 1h copy what overlaps as if each range were read whole before it is written;
    // those that name namespaces refuse it.
    let (first, end) = (command.slba(), command.slba() + u64::from(blocks));
    let overlaps = |entry: Entry| {
        is_own(&entry) && entry.slba < end && first < entry.slba + u64::from(entry.blocks)
    };
    if names_namespaces && entries.into_iter().any(overlaps) {
        return Err(Status::OVERLAPPING_RANGE.dnr());
    }
    Ok(blocks)
}

/// Each range, and all together, within what one command may copy.
fn check_sizes(
    entries: impl Iterator<Item = Entry> + Clone,
    limits: &Limits,
) -> Result<u32, Status> {
    let too_much = Status::SIZE_LIMIT_EXCEEDED.dnr();
    if entries.clone().any(|entry| entry.blocks > limits.copy.range_blocks_max) {
        return Err(too_much);
    }
    let blocks: u64 = entries.map(|entry| u64::from(entry.blocks)).sum();
    let blocks = u32::try_from(blocks).map_err(|_| too_much)?;
    if blocks > limits.copy.blocks_max { Err(too_much) } else { Ok(blocks) }
}

fn check_source(entry: &Entry, limits: &Limits) -> Result<(), Status> {
    if limits.contains(entry.slba, entry.blocks) {
        Ok(())
    } else {
        Err(Status::LBA_OUT_OF_RANGE.dnr())
    }
}
