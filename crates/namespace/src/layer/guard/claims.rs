//! What a Copy that goes down holds meanwhile: its sources shared, its destination alone.
//!
//! ```text
//!   guard of volume 3: [sources]         entered first, shard after shard
//!   guard of volume 7: [destination]     then this; and left when the Copy has come back
//! ```
//!
//! Volumes are numbered, and everybody enters the tables in ascending order, so that nobody waits in a
//! circle. A command that is sent down by a guard with its blocks held may meet further guards
//! below; those are always entered after the ones above.

use super::Guard;
use crate::Request;
use crate::layer::conflicts::{Range, User};
use std::sync::Arc;

/// The ranges of one Copy, on their way into the tables or in them.
pub(super) struct Claim {
    /// By ascending number.
    parts: Vec<Part>,
    /// The part that is being entered; their number once all are.
    at: usize,
    /// In line in the lowest missing shard of that part.
    waits: bool,
    /// It counts as passing: its own volume's table is not in use.
    pub passes: bool,
    /// Here while it is not below.
    pub request: Option<Box<Request>>,
}

/// Ranges in one volume's table.
struct Part {
    guard: Arc<Guard>,
    ranges: Vec<Range>,
    /// Shards still to be entered, and those entered, as bits.
    missing: u64,
    entered: u64,
}

impl Claim {
    pub fn new(request: Box<Request>, passes: bool) -> Claim {
        Claim { parts: Vec::new(), at: 0, waits: false, passes, request: Some(request) }
    }

    /// Adds a range of `guard`'s volume.
    pub fn add(&mut self, guard: &Arc<Guard>, range: Range) {
        debug_assert!(self.at == 0 && !self.waits, "nothing was entered yet");
        let place = self.parts.binary_search_by_key(&guard.number, |part| part.guard.number);
        let place = place.unwrap_or_else(|place| {
            let guard = Arc::clone(guard);
            self.parts.insert(place, Part { guard, ranges: Vec::new(), missing: 0, entered: 0 });
            place
        });
        let part = &mut self.parts[place];
        part.missing |= range.shards();
        part.ranges.push(range);
    }

    /// Goes on entering. Returns whether everything may be used; otherwise `user` will be woken
    /// when its turn has come, and [`Claim::turn`] is to be called then.
    pub fn enter(&mut self, user: User) -> bool {
        debug_assert!(!self.waits, "it was woken");
        while let Some(part) = self.parts.get_mut(self.at) {
            while part.missing != 0 {
                let shard = part.missing.trailing_zeros();
                let here = |range: &Range| range.shards() & 1 << shard != 0;
                let ranges = part.ranges.iter().copied().filter(here);
                if !part.guard.conflicts.enter_all(shard, user, ranges) {
                    self.waits = true;
                    return false;
                }
                part.advance();
            }
            self.at += 1;
        }
        true
    }

    /// What it was in line for has been granted.
    pub fn turn(&mut self) {
        assert!(std::mem::take(&mut self.waits), "only who waits is woken");
        self.parts[self.at].advance();
    }

    /// Leaves all tables; adds those whose turn has come to `next`.
    pub fn leave(&mut self, user: User, next: &mut Vec<User>) {
        for part in &mut self.parts {
            while part.entered != 0 {
                part.guard.conflicts.leave(part.entered.trailing_zeros(), user, next);
                part.entered &= part.entered - 1;
            }
        }
    }
}

impl Part {
    /// The lowest missing shard was entered.
    fn advance(&mut self) {
        let lowest = self.missing & self.missing.wrapping_neg();
        self.entered |= lowest;
        self.missing &= !lowest;
    }
}
