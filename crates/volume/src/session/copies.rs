//! Copies of more than one command's worth: to many volumes, and to be waited for.

use super::groups::{Member, Outcome};
use super::{Ranges, Reason, Submission, Volume};
use nvme::{Limits, Status};
use reactor::Drive;
use std::rc::Rc;

/// Why [`Volume::copy_range`] has copied nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The Copy was not taken.
    #[error(transparent)]
    Rejected(#[from] Reason),
    /// It was, and failed.
    #[error("Copy: {0}")]
    Failed(Status),
}

impl Volume {
    /// Copies the same blocks to several volumes of a session: one Copy for each, which complete as one. Each of
    /// `targets` is a volume, which may be one of the sources, and its first block that is written to; a range of
    /// the volume itself ([`Ranges::push`]) is one of each target.
    ///
    /// The completion has `result`, the lowest of `targets` whose Copy has failed, the status of that, and its
    /// volume; if none has, `result` is how many there are. The others were tried all the same.
    ///
    /// Those Copies are at work at once: what the one writes, no other may read or write.
    ///
    /// # Errors
    /// There is no room for so many commands, a volume is of another session, or blocks are written that another target
    /// has written or read, as far as volumes tell that their blocks are the same; nothing was started.
    pub fn copy_to_all(
        targets: &[(&Volume, u64)],
        ranges: &Ranges,
        token: u64,
    ) -> Result<(), Reason> {
        start_group(targets, ranges, token, false).map(drop)
    }

    /// Copies `blocks` blocks of `source`, from `slba` on, to those from `sdlba` on, and waits for it: as
    /// copy_file_range does between files. Gives how many were copied: fewer than asked for if the volume's
    /// limits allow no more at once, or if it failed in the middle.
    ///
    /// What else is in flight goes on meanwhile, and waits to be reaped.
    ///
    /// # Errors
    /// Nothing was copied. As with copy_file_range, the blocks that are read and those that are written may not
    /// overlap ([`Reason::Overlap`]), as far as volumes tell that their blocks are the same. One Copy of one range may:
    /// [`Submission::copy`].
    pub fn copy_range(
        &self,
        sdlba: u64,
        source: &Volume,
        slba: u64,
        blocks: u64,
    ) -> Result<u64, CopyError> {
        let (ranges, whole) = cut(source, slba, blocks, &self.namespace().limits());
        if whole == 0 {
            return Ok(0);
        }
        // It is cut into ranges, and a later one would be read after those before were written over it.
        if self.core.overlaps.borrow_mut().between(self, sdlba, source, slba, blocks) {
            return Err(CopyError::Rejected(Reason::Overlap));
        }
        let group = start_group(&[(self, sdlba)], &ranges, 0, true)?;
        let outcome = loop {
            if let Some(outcome) = self.core.flights.outcome(group) {
                break outcome;
            }
            if !self.core.turn(Drive::Forever) {
                return Err(CopyError::Rejected(Reason::Ended));
            }
        };
        let Outcome { status, command_result, .. } = outcome;
        let copied = match status.is_success() {
            true => whole,
            false => ranges.blocks_before(command_result as usize),
        };
        if copied == 0 { Err(CopyError::Failed(status)) } else { Ok(copied) }
    }
}

/// Starts a Copy of `ranges` to each of `targets`, or nothing.
fn start_group(
    targets: &[(&Volume, u64)],
    ranges: &Ranges,
    token: u64,
    is_private: bool,
) -> Result<u32, Reason> {
    let Some((first, _)) = targets.first() else { return Err(Reason::Empty) };
    let core = &first.core;
    if core.ended.get() {
        return Err(Reason::Ended);
    }
    let flights = &core.flights;
    let is_ours = |volume: &Volume| Rc::ptr_eq(&volume.core, core);
    if !targets.iter().all(|(volume, _)| is_ours(volume)) || !ranges.is_of(flights.session()) {
        return Err(Reason::Foreign);
    }
    if flights.room() < targets.len() {
        return Err(Reason::Full);
    }
    if core.overlaps.borrow_mut().among(targets, ranges) {
        return Err(Reason::Overlap);
    }
    core.fresh.set(true);
    flights.look(&core.reactor);
    let group = flights.begin(targets.len() as u32, first.id(), is_private);
    for (number, (volume, sdlba)) in targets.iter().enumerate() {
        let submission = Submission::copy_to(*sdlba).token(token);
        let member = Member { group, number: number as u32 };
        flights.start_member(&volume.open, submission, ranges, member);
    }
    Ok(group)
}

/// Ranges of as much as one Copy may take.
fn cut(source: &Volume, slba: u64, blocks: u64, limits: &Limits) -> (Ranges, u64) {
    let most = limits.copy;
    let whole = blocks.min(most.blocks_max.into());
    let mut ranges = Ranges::new();
    let mut at = 0;
    while at < whole && ranges.len() < most.ranges_max.into() {
        let count = (whole - at).min(most.range_blocks_max.into());
        ranges.push_from(source, slba.saturating_add(at), count as u32);
        at += count;
    }
    match ranges.is_empty() && blocks > 0 {
        // Refused by whoever offers no Copy.
        true => {
            ranges.push_from(source, slba, blocks.min(1) as u32);
            (ranges, blocks.min(1))
        }
        false => (ranges, at),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Session, SessionConfig};
    use super::*;

    #[test]
    fn a_copy_is_cut_into_ranges_within_limits() {
        let session = Session::new(&SessionConfig::default()).expect("a session");
        let volume = session.open("null:1G").expect("a volume");
        let mut limits = volume.limits();
        limits.copy.ranges_max = 3;
        limits.copy.range_blocks_max = 100;
        limits.copy.blocks_max = 250;
        let cut = |blocks| {
            let (ranges, whole) = cut(&volume, 7, blocks, &limits);
            (ranges.len(), ranges.blocks(), whole)
        };
        assert_eq!(cut(0), (0, 0, 0));
        assert_eq!(cut(100), (1, 100, 100));
        assert_eq!(cut(101), (2, 101, 101));
        assert_eq!(cut(1000), (3, 250, 250));
    }
}
