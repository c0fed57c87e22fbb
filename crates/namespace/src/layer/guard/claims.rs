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
//!
//! **Bounded.** Source ranges that touch are one in the table, and where more than [`RANGES_MAX`] are left in
//! a shard, the nearest are taken together with what is between them: it is held as well, which keeps others
//! waiting for no reason but is as safe. So a list of 128 ranges costs no more under a shard's lock
//! than one of eight.

use super::Guard;
use crate::Request;
use crate::layer::conflicts::{RANGES_MAX, Range, User};
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
    /// As they came; then by kind and place, apart from one another.
    ranges: Vec<Range>,
    is_sorted: bool,
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
            self.parts.insert(place, Part::new(guard));
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
            if !std::mem::replace(&mut part.is_sorted, true) {
                merge(&mut part.ranges);
            }
            while part.missing != 0 {
                let shard = part.missing.trailing_zeros();
                let ranges = Few::of(&part.ranges, shard);
                if !part.guard.conflicts.enter_all(shard, user, ranges.iter()) {
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
    fn new(guard: Arc<Guard>) -> Part {
        Part { guard, ranges: Vec::new(), is_sorted: false, missing: 0, entered: 0 }
    }

    /// The lowest missing shard was entered.
    fn advance(&mut self) {
        let lowest = self.missing & self.missing.wrapping_neg();
        self.entered |= lowest;
        self.missing &= !lowest;
    }
}

/// Puts ranges in order, those that are used alone first, and makes one of those that touch.
fn merge(ranges: &mut Vec<Range>) {
    ranges.sort_unstable_by_key(|range| (!range.exclusive, range.start));
    ranges.dedup_by(|next, range| {
        let touch = next.exclusive == range.exclusive && next.start <= range.end;
        if touch {
            range.end = range.end.max(next.end);
        }
        touch
    });
}

/// What is entered into one shard: [`RANGES_MAX`] ranges at most.
struct Few {
    ranges: [Range; RANGES_MAX],
    count: usize,
}

impl Few {
    /// Of `ranges`, which are merged, those in `shard`.
    fn of(ranges: &[Range], shard: u32) -> Few {
        let none = Range { start: 0, end: 1, exclusive: false };
        let mut few = Few { ranges: [none; RANGES_MAX], count: 0 };
        for range in ranges.iter().filter(|range| range.shards() & 1 << shard != 0) {
            few.push(*range);
        }
        few
    }

    fn iter(&self) -> impl Iterator<Item = Range> {
        self.ranges[..self.count].iter().copied()
    }

    /// Adds a range behind all others of its kind.
    fn push(&mut self, range: Range) {
        if self.count < RANGES_MAX {
            self.ranges[self.count] = range;
            self.count += 1;
            return;
        }
        // One place is made by joining the two that are nearest, the new one among them.
        let gap = |one: &Range, other: &Range| match one.exclusive == other.exclusive {
            true => other.start - one.end,
            false => u64::MAX,
        };
        let joined = |one: &Range, other: &Range| Range { end: other.end, ..*one };
        let last = gap(&self.ranges[RANGES_MAX - 1], &range);
        let gaps = self.ranges.windows(2).map(|pair| gap(&pair[0], &pair[1]));
        let (at, least) = gaps.enumerate().min_by_key(|(_, gap)| *gap).expect("there are several");
        if last <= least {
            self.ranges[RANGES_MAX - 1] = joined(&self.ranges[RANGES_MAX - 1], &range);
            return;
        }
        self.ranges[at] = joined(&self.ranges[at], &self.ranges[at + 1]);
        self.ranges.copy_within(at + 2.., at + 1);
        self.ranges[RANGES_MAX - 1] = range;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::conflicts::Conflicts;
    use proptest::prelude::*;

    fn range(start: u64, blocks: u64, exclusive: bool) -> Range {
        Range { start, end: start + blocks, exclusive }
    }

    /// Lists that are as bad as they can be: 128 blocks apart from one another in one region, by 128 Copies.
    #[test]
    fn hostile_lists_are_short_in_the_table() {
        let table = Conflicts::new();
        for slot in 0..128 {
            let user = User { queue: 1, slot };
            let mut ranges: Vec<_> = (0..128).rev().map(|at| range(at * 2, 1, false)).collect();
            ranges.push(range(1 << 20, 1, true));
            merge(&mut ranges);
            assert_eq!(ranges.len(), 129);
            table.enter_all(0, user, Few::of(&ranges, 0).iter());
        }
        assert!(table.longest() <= 128 * RANGES_MAX);
        let mut told = 0;
        for slot in 0..128 {
            let mut next = Vec::new();
            table.leave(0, User { queue: 1, slot }, &mut next);
            told += next.len();
        }
        assert!(table.is_empty());
        // All wait for one block that each of them writes.
        assert_eq!(told, 127);
    }

    proptest! {
        #[test]
        fn what_is_entered_covers_what_is_used(
            used in prop::collection::vec((0u64..2000, 1u64..300, prop::bool::weighted(0.2)), 1..129),
        ) {
            let used: Vec<_> = used.into_iter().map(|it| range(it.0, it.1, it.2)).collect();
            let mut merged = used.clone();
            merge(&mut merged);
            for shard in 0..64 {
                let few = Few::of(&merged, shard);
                for one in used.iter().filter(|range| range.shards() & 1 << shard != 0) {
                    let covers = |range: Range| {
                        range.exclusive == one.exclusive && range.start <= one.start && one.end <= range.end
                    };
                    prop_assert!(few.iter().any(covers), "{one:?} in shard {shard}");
                }
                let all: Vec<_> = few.iter().collect();
                let apart = |pair: &[Range]| pair[0].end < pair[1].start || pair[0].exclusive && !pair[1].exclusive;
                prop_assert!(all.windows(2).all(apart), "{all:?}");
            }
        }
    }
}
