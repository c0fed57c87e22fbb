//! The source ranges of a Copy, as this controller takes them.
//!
//! ```text
//!   all of this namespace                     0h
//!   any of another one of the subsystem       2h, or 3h where that is all that the host could enable;
//!                                             by the id that it has at this start of the target
//!   any that is not to be read and written    2h or 3h, which have Fast Copy Only; 0h to a controller that has
//!                                             neither: then its Copy is the fastest that there is
//!   anything else                             Fast Copy Not Possible: whoever asked reads and writes
//! ```

use super::Params;
use namespace::copy::{Numbering, Origin, Place, Source, Sources};
use namespace::{Data, Request};
use nvme::copy::{Entry, Format, RANGE_BLOCKS_MAX, RANGES_MAX};
use nvme::{Command, Status};
use std::sync::Arc;

/// Never for this kind of source.
const NEVER: Status = Status::FAST_COPY_NOT_POSSIBLE.dnr();

/// The format by which a Copy names namespaces, of those that a controller takes: the shorter one.
pub fn between(formats: u16) -> Option<Format> {
    let naming = [Format::Namespaces, Format::NamespacesLong];
    naming.into_iter().find(|format| formats & format.bit() != 0)
}

/// Lays `sources` out in `list`, and makes `command` say how.
pub(super) fn lay_out(
    command: &mut Command,
    sources: &Sources,
    params: &Params,
    list: &mut Vec<u8>,
) -> Result<(), Status> {
    let ranges = &sources.ranges;
    let fits = |range: &Source| (1..=RANGE_BLOCKS_MAX).contains(&range.blocks);
    if !(1..=RANGES_MAX).contains(&ranges.len()) || !ranges.iter().all(fits) {
        return Err(Status::SIZE_LIMIT_EXCEEDED.dnr());
    }
    let tells = sources.has_fast_only() && params.copies_between.is_some();
    let named = tells || names_another(sources);
    let format = match named {
        true => params.copies_between.ok_or(NEVER)?,
        false => Format::Short,
    };
    let nsid = command.nsid.get();
    let start = command.slba();
    let end = start.saturating_add(sources.blocks());
    let entry_bytes = format.entry_bytes();
    list.resize(ranges.len() * entry_bytes, 0);
    for (range, bytes) in ranges.iter().zip(list.chunks_exact_mut(entry_bytes)) {
        let source = match &range.place {
            Place::Same => nsid,
            Place::Origin(Origin::Subsystem { nqn, nsid, numbering })
                if Arc::ptr_eq(nqn, &params.subsystem) =>
            {
                let now = |it: &Arc<dyn Numbering>| it.nsid(params.instance);
                numbering.as_ref().map_or(Some(*nsid), now).ok_or(Status::FAST_COPY_NOT_POSSIBLE)?
            }
            Place::Origin(_) | Place::Other(_) => return Err(NEVER),
        };
        let past = range.slba.saturating_add(range.blocks.into());
        let overlaps = source == nsid && range.slba < end && past > start;
        // Formats 2h and 3h forbid it (NVM 1.1, section 3.3.2), and of 0h only our own targets are known to
        // read a range whole before they write any of it.
        if overlaps && (named || !params.copies_overlapping) {
            return Err(Status::FAST_COPY_NOT_POSSIBLE);
        }
        let Source { slba, blocks, fast_only, .. } = *range;
        let nsid = if named { source } else { 0 };
        let fast_only = named && fast_only;
        Entry { nsid, slba, blocks, fast_only }.write(format, bytes);
    }
    let count_z = ranges.len() as u32 - 1;
    let rest = command.cdw12.get() & !0xfff;
    command.cdw12 = (rest | count_z | u32::from(format as u8) << 8).into();
    Ok(())
}

/// What the answer to a command means to whoever sent it. A controller that refuses to copy between
/// namespaces, for whatever reason, has looked at the list only: then there are other ways.
#[inline]
pub(super) fn answer(request: &Request, status: Status, params: &Params) -> Status {
    match &request.data {
        Data::Sources(sources) if !status.is_success() => {
            let tells = sources.has_fast_only() && params.copies_between.is_some();
            match tells || names_another(sources) {
                true => between_namespaces(status, params.instance.is_some()),
                false => status,
            }
        }
        _ => status,
    }
}

#[cold]
fn between_namespaces(status: Status, is_ours: bool) -> Status {
    match status.code() {
        // It may be a source that is gone for now: another time it may be possible. Of our own targets, which take
        // the formats that they let a host enable, Invalid Field says nothing else.
        Status::INVALID_NAMESPACE => Status::FAST_COPY_NOT_POSSIBLE,
        Status::INVALID_FIELD if is_ours => Status::FAST_COPY_NOT_POSSIBLE,
        Status::INVALID_FIELD | Status::INCOMPATIBLE_NAMESPACE => NEVER,
        _ => status,
    }
}

/// Whether any source is in another namespace than the destination: then a status may be about that. An ANA status
/// goes up as it is: which of both it is about other paths show (`layer::multipath`).
pub(super) fn names_another(sources: &Sources) -> bool {
    sources.ranges.iter().any(|range| !matches!(range.place, Place::Same))
}

pub(super) fn is_ana(status: Status) -> bool {
    matches!(
        status.code(),
        Status::ANA_INACCESSIBLE | Status::ANA_TRANSITION | Status::ANA_PERSISTENT_LOSS
    )
}
