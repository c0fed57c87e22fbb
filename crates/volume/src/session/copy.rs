//! Copy: source ranges of any volumes of the session, and what a Copy is checked for.
//!
//! A Copy comes with [`Ranges`], or with the bytes of the wire in any of the four formats, in which a
//! namespace id is that of a volume of the session ([`super::VolumeId`]). Either way it goes down as
//! `Data::Sources`.

use super::{Bytes, Open, Submission, Volume};
use namespace::copy::{Place, Source, Sources};
use nvme::copy::Entry;
use nvme::opcode::io as opcode;
use nvme::{Fuse, Limits, Status};
use std::fmt;
use std::rc::Rc;

/// Source ranges of a Copy, in order. Kept and used again, nothing is allocated per command.
#[derive(Default)]
pub struct Ranges {
    sources: Box<Sources>,
    fast_only: bool,
    /// The session whose volumes are named; 0 if none is.
    session: u64,
    /// Volumes of several sessions are.
    is_mixed: bool,
}

impl Ranges {
    /// No ranges yet.
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// Adds blocks of the volume that is written to.
    pub fn push(&mut self, slba: u64, blocks: u32) {
        self.add(Place::Same, slba, blocks);
    }

    /// Adds blocks of any volume of the session, which stays open until the Copy has ended.
    pub fn push_from(&mut self, volume: &Volume, slba: u64, blocks: u32) {
        let session = volume.core.flights.session();
        self.is_mixed |= self.session != 0 && self.session != session;
        self.session = session;
        self.add(Place::Other(Rc::clone(&volume.open.sides)), slba, blocks);
    }

    fn add(&mut self, place: Place, slba: u64, blocks: u32) {
        self.sources.ranges.push(Source { place, slba, blocks, fast_only: self.fast_only });
    }

    /// Whether the Copy is to fail (Fast Copy Not Possible) where it could only read and write. It holds for all
    /// ranges, until they are taken out.
    pub fn set_fast_only(&mut self, fast_only: bool) {
        self.fast_only = fast_only;
        self.sources.ranges.iter_mut().for_each(|range| range.fast_only = fast_only);
    }

    /// Takes all ranges out, and keeps their room.
    pub fn clear(&mut self) {
        self.sources.ranges.clear();
        self.fast_only = false;
        (self.session, self.is_mixed) = (0, false);
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.sources.ranges.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sources.ranges.is_empty()
    }

    /// Blocks of all ranges together.
    pub fn blocks(&self) -> u64 {
        self.sources.blocks()
    }

    /// Blocks of the first `count` ranges.
    pub(super) fn blocks_before(&self, count: usize) -> u64 {
        self.sources.ranges.iter().take(count).map(|range| u64::from(range.blocks)).sum()
    }

    pub(super) fn sources(&self) -> &[Source] {
        &self.sources.ranges
    }

    /// Whether all volumes named are of `session`.
    pub(super) fn is_of(&self, session: u64) -> bool {
        !self.is_mixed && (self.session == 0 || self.session == session)
    }

    /// Adds the same ranges to `sources`, which has none.
    pub(super) fn clone_into(&self, sources: &mut Sources) {
        sources.ranges.extend(self.sources.ranges.iter().cloned());
    }

    pub(super) fn into_sources(self) -> Box<Sources> {
        self.sources
    }

    /// Ranges that have gone down and come back: only their room is left.
    pub(super) fn from_sources(sources: Box<Sources>) -> Ranges {
        // Not from the default, which has room of its own.
        let mut ranges = Ranges { sources, fast_only: false, session: 0, is_mixed: false };
        ranges.clear();
        ranges
    }
}

impl fmt::Debug for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranges").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Whether a submission is a Copy that goes down as `Data::Sources`, given the volume's limits.
#[inline]
pub(super) fn is_copy(submission: &Submission) -> bool {
    submission.command.opcode == opcode::COPY
        && !submission.admin
        && submission.command.fuse() == Fuse::None
}

/// Reads the ranges that lie in the submission's memory, as they come over a wire, into `sources`, which
/// has none. `volume` finds a volume of the session by its number.
pub(super) fn read(
    submission: &Submission,
    target: &Open,
    sources: &mut Sources,
    volume: impl Fn(u32) -> Option<Rc<Open>>,
) -> Result<(), Status> {
    let command = &submission.command;
    let format = command.copy_format().ok_or(Status::INVALID_FIELD.dnr())?;
    let len = command.copy_ranges() * format.entry_bytes();
    if submission.is_in_pieces() {
        return Err(Status::INVALID_FIELD.dnr());
    }
    if submission.data.len() < len {
        return Err(Status::SGL_LENGTH_INVALID.dnr());
    }
    // SAFETY: the submission has as many bytes, which stay until the command was reaped.
    let bytes = unsafe { std::slice::from_raw_parts(submission.data.as_ptr(), len) };
    for Entry { nsid, slba, blocks, fast_only } in nvme::copy::entries(command, bytes)? {
        let place = match format.names_namespaces() {
            true if nsid != target.id.0 => {
                let open = volume(nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
                Place::Other(Rc::clone(&open.sides))
            }
            _ => Place::Same,
        };
        sources.ranges.push(Source { place, slba, blocks, fast_only });
    }
    match format.names_namespaces() && overlaps(sources, command.slba()) {
        true => Err(Status::OVERLAPPING_RANGE.dnr()),
        false => Ok(()),
    }
}

/// Whether a range of the volume itself lies where the Copy to `sdlba` writes.
fn overlaps(sources: &Sources, sdlba: u64) -> bool {
    let end = sdlba.saturating_add(sources.blocks());
    sources.ranges.iter().any(|range| {
        let last = range.slba.saturating_add(range.blocks.into());
        matches!(range.place, Place::Same) && range.slba < end && sdlba < last
    })
}

/// Checks a Copy of `sources` to the blocks from `sdlba` on, in the order in which QEMU does.
pub(super) fn check(
    sources: &mut Sources,
    target: &Open,
    limits: &Limits,
    sdlba: u64,
) -> Result<(), Status> {
    let most = limits.copy;
    let is_empty = sources.ranges.iter().any(|range| range.blocks == 0);
    if sources.ranges.is_empty() || is_empty {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let is_long = |range: &Source| range.blocks > most.range_blocks_max;
    if sources.ranges.len() > most.ranges_max.into()
        || sources.ranges.iter().any(is_long)
        || sources.blocks() > most.blocks_max.into()
    {
        return Err(Status::SIZE_LIMIT_EXCEEDED.dnr());
    }
    // Ranges mostly follow on one another in one volume: its limits may cost a lock.
    let mut known: Option<(*const (), Limits)> = None;
    for range in &mut sources.ranges {
        let of = match &range.place {
            Place::Other(other) if !Rc::ptr_eq(other, &target.sides) => {
                let key = Rc::as_ptr(other).cast::<()>();
                match known {
                    Some((of, limits)) if of == key => limits,
                    _ => known.insert((key, other.namespace.limits())).1,
                }
            }
            _ => {
                range.place = Place::Same;
                *limits
            }
        };
        if of.block_shift != limits.block_shift || of.metadata_bytes != limits.metadata_bytes {
            return Err(Status::INCOMPATIBLE_NAMESPACE.dnr());
        }
        if !of.contains(range.slba, range.blocks) {
            return Err(Status::LBA_OUT_OF_RANGE.dnr());
        }
    }
    // No more than MCL, which has 32 bits.
    if !limits.contains(sdlba, sources.blocks() as u32) {
        return Err(Status::LBA_OUT_OF_RANGE.dnr());
    }
    match limits.read_only {
        true => Err(Status::NAMESPACE_WRITE_PROTECTED.dnr()),
        false => Ok(()),
    }
}

/// The ranges that a submission brings, apart from its memory.
pub(super) fn take_ranges(submission: &mut Submission) -> Option<Ranges> {
    match std::mem::take(&mut submission.data) {
        Bytes::Ranges(ranges) => Some(ranges),
        other => {
            submission.data = other;
            None
        }
    }
}
