//! What of the source are holes, asked ahead of the pieces.

use super::{Engine, MAPPED, State};
use crate::copy::layout::{Order, Runs, Stretch, stretches};
use namespace::Namespace;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are asked about at once, and how many runs the answer may have.
const WINDOW_BYTES: u64 = 1 << 30;
const RUNS_MAX: usize = 1024;

/// What a thread for calls that block has found out.
#[derive(Default)]
pub(super) struct Answer {
    stretches: Mutex<Vec<Stretch>>,
}

/// A question about a part of an extent.
struct Question {
    source: Arc<dyn Namespace>,
    /// First byte there, and in the copy.
    offset: u64,
    start: u64,
    bytes: u64,
    /// What holes shrink to.
    unit: u64,
    /// Empty where it does not matter what targets keep.
    targets: Vec<(Arc<dyn Namespace>, u64)>,
}

impl Engine {
    /// Blocks of source and targets go into this, counted from the start of the extent of `volume`.
    pub(super) fn unit(&self, volume: usize) -> u64 {
        let targets = self.layout.targets.iter().map(|target| self.limits[target.volume]);
        let blocks = targets.map(|limits| limits.block_bytes()).max().unwrap_or(512);
        u64::from(blocks.max(self.limits[volume].block_bytes()))
    }

    /// Whether targets are known to be zero from byte `from` of the copy on, without being asked.
    pub(super) fn is_zero(&self, state: &State, from: u64) -> bool {
        self.options.target_is_zero && from >= state.touched
    }

    /// Sees to it that something is known of the bytes that come next. False if it is being found out.
    pub(super) fn is_mapped(&self, state: &mut State) -> bool {
        if state.mapping.is_some() {
            return false;
        }
        if !state.map.is_empty() {
            return true;
        }
        if self.layout.order == Order::Backwards {
            state.map.push_back(data(self.layout.bytes));
            return true;
        }
        let extent = self.layout.extent_at(state.next);
        if !self.options.extents {
            state.map.push_back(data(extent.start + extent.bytes));
            return true;
        }
        let skip = state.next - extent.start;
        let namespace = |volume: usize| Arc::clone(&self.ways[volume].namespace);
        let targets = match self.is_zero(state, state.next) || self.options.allocated {
            true => Vec::new(),
            false => {
                let at = |target: &crate::copy::layout::Target| {
                    (namespace(target.volume), target.offset + state.next)
                };
                self.layout.targets.iter().map(at).collect()
            }
        };
        let question = Question {
            source: namespace(extent.volume),
            offset: extent.offset + skip,
            start: state.next,
            bytes: (extent.bytes - skip).min(WINDOW_BYTES),
            unit: self.unit(extent.volume),
            targets,
        };
        let answer = Arc::new(Answer::default());
        state.mapping = Some(Arc::clone(&answer));
        let work = move || {
            let found = question.ask().unwrap_or_else(|error| {
                tracing::debug!("{}: no map of its holes: {error}", question.source.uri());
                vec![data(question.start + question.bytes)]
            });
            *answer.stretches.lock().unwrap_or_else(PoisonError::into_inner) = found;
            0
        };
        // A remote volume asks its controller.
        self.reactor.blocking_long(Box::new(work), self.this(), MAPPED);
        false
    }

    /// The answer is there.
    pub(super) fn mapped(&self, result: i32) {
        let mut state = self.state.borrow_mut();
        let Some(answer) = state.mapping.take() else { return };
        let found =
            std::mem::take(&mut *answer.stretches.lock().unwrap_or_else(PoisonError::into_inner));
        if result < 0 || found.is_empty() {
            // Nobody could ask: what is not known is stored.
            let extent = self.layout.extent_at(state.next);
            state.map.push_back(data(extent.start + extent.bytes));
        } else {
            state.map.extend(found);
        }
    }
}

/// Everything up to `end` is stored, as far as is known.
fn data(end: u64) -> Stretch {
    Stretch { end, is_hole: false, empty_targets: 0 }
}

impl Question {
    fn ask(&self) -> io::Result<Vec<Stretch>> {
        let mut source = runs(&*self.source, self.offset, self.bytes)?;
        let mut known: u64 = source.iter().map(|(bytes, _)| bytes).sum();
        if known < self.bytes {
            // The next question begins where this answer ends, at a whole unit.
            let whole = known - known % self.unit;
            if whole == 0 {
                return Ok(vec![data(self.start + self.unit.min(self.bytes))]);
            }
            let mut excess = known - whole;
            while excess > 0 {
                let (bytes, _) = source.last_mut().expect("there is more than the excess");
                let less = excess.min(*bytes);
                (*bytes, excess) = (*bytes - less, excess - less);
                if *bytes == 0 {
                    source.pop();
                }
            }
            known = whole;
        }
        let has_holes = source.iter().any(|(_, is_stored)| !is_stored);
        let targets = match has_holes {
            true => &self.targets[..],
            false => &[],
        };
        let keep = |(target, offset): &(Arc<dyn Namespace>, u64)| {
            // What a target does not tell is taken to be stored.
            runs(&**target, *offset, known).unwrap_or_default()
        };
        let targets: Vec<Runs> = targets.iter().map(keep).collect();
        Ok(stretches(self.start, self.unit, &source, &targets))
    }
}

/// What a volume says of `bytes` bytes from `offset` on, as far as it does.
fn runs(volume: &dyn Namespace, offset: u64, bytes: u64) -> io::Result<Runs> {
    let limits = volume.limits();
    let shift = limits.block_shift;
    // A last block in part is there as a whole; a volume may have shrunk.
    let room = limits.blocks.saturating_sub(offset >> shift);
    let blocks = bytes.div_ceil(1 << shift).min(room);
    if blocks == 0 {
        return Ok(Runs::new());
    }
    let found = volume.allocation(offset >> shift, blocks, RUNS_MAX)?;
    let mut left = bytes;
    let mut runs = Runs::with_capacity(found.len());
    for run in found {
        let len = (run.blocks << shift).min(left);
        left -= len;
        if len > 0 {
            runs.push((len, run.is_stored));
        }
    }
    Ok(runs)
}
