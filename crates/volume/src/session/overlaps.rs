//! Whether Copies would read what they write: those of one call are at work at once, and in no order.
//!
//! Volumes are told apart by what keeps their blocks, as far as they say so ([`kept`]). Within one Copy to one volume
//! ranges may overlap what is written, since they are read in order.

use super::{Ranges, Volume};
use namespace::copy::{Keeper, Place, kept};

/// Memory for the question, which is used again.
#[derive(Default)]
pub(super) struct Overlaps {
    written: Vec<Run>,
}

/// Bytes that are written.
struct Run {
    keeper: Keeper,
    from: u64,
    to: u64,
    /// For which of the targets.
    target: usize,
}

impl Overlaps {
    /// Whether Copies of `ranges` to each of `targets` would write bytes twice, or the one what another reads.
    pub(super) fn among(&mut self, targets: &[(&Volume, u64)], ranges: &Ranges) -> bool {
        if targets.len() < 2 {
            return false;
        }
        let blocks = ranges.blocks();
        if self.note(targets, blocks) {
            return true;
        }
        ranges.sources().iter().any(|range| {
            let blocks = range.blocks.into();
            match &range.place {
                // All read it.
                Place::Other(other) => {
                    let mut is_written = false;
                    kept(&other.namespace, range.slba, blocks, |keeper, from, to| {
                        is_written |= self.has(keeper, from, to, None);
                    });
                    is_written
                }
                _ => targets.iter().enumerate().any(|(number, (volume, _))| {
                    let mut is_written = false;
                    kept(volume.namespace(), range.slba, blocks, |keeper, from, to| {
                        is_written |= self.has(keeper, from, to, Some(number));
                    });
                    is_written
                }),
            }
        })
    }

    /// Whether `blocks` blocks of `source` from `slba` on meet those of `target` from `sdlba` on.
    pub(super) fn between(
        &mut self,
        target: &Volume,
        sdlba: u64,
        source: &Volume,
        slba: u64,
        blocks: u64,
    ) -> bool {
        self.note(&[(target, sdlba)], blocks);
        let mut is_written = false;
        kept(source.namespace(), slba, blocks, |keeper, from, to| {
            is_written |= self.has(keeper, from, to, None);
        });
        is_written
    }

    /// Notes what is written. Whether any of it is, twice.
    fn note(&mut self, targets: &[(&Volume, u64)], blocks: u64) -> bool {
        self.written.clear();
        for (target, (volume, sdlba)) in targets.iter().enumerate() {
            kept(volume.namespace(), *sdlba, blocks, |keeper, from, to| {
                self.written.push(Run { keeper, from, to, target });
            });
        }
        self.written.sort_unstable_by_key(|run| (run.keeper, run.from));
        let twice = |pair: &[Run]| pair[0].keeper == pair[1].keeper && pair[1].from < pair[0].to;
        self.written.windows(2).any(twice)
    }

    /// Whether bytes are written, for another target than `reader`. What was noted does not overlap.
    fn has(&self, keeper: Keeper, from: u64, to: u64, reader: Option<usize>) -> bool {
        let first = self.written.partition_point(|run| (run.keeper, run.to) <= (keeper, from));
        let runs = self.written[first..].iter();
        let mut met = runs.take_while(|run| run.keeper == keeper && run.from < to);
        met.any(|run| Some(run.target) != reader)
    }
}
