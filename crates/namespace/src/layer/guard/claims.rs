//! What a Copy that goes down holds meanwhile: its sources shared, its destination alone.
//!
//! ```text
//!   guard 7: [destination]     entered first, shard after shard
//!   guard 3: [sources]         then this; and both are left when the Copy has come back
//! ```
//!
//! Guards are numbered as they are made, and everybody enters their tables in descending order, so that nobody
//! waits in a circle. What is below a guard was made before it: a command that goes down with its blocks held
//! may meet further guards, whose numbers are lower than its own. Sources are claimed only in guards whose numbers are
//! higher than all of those ([`Namespace::last_guard`]); others are read and written, a command for
//! each table.
//!
//! Where Copies are carried out on threads, one of these is ready before anything is entered (`copy::threads`).
//!
//! **Bounded.** Source ranges that touch are one in the table, and where more than [`RANGES_MAX`] are left in
//! a shard, the nearest are taken together with what is between them: it is held as well, which keeps others
//! waiting for no reason but is as safe. So a list of 128 ranges costs no more under a shard's lock
//! than one of eight.

use super::Guard;
use crate::copy::{Load, Sources};
use crate::layer::conflicts::{RANGES_MAX, Range, User};
use crate::{Data, Request};
use std::cmp::Reverse;
use std::sync::Arc;

/// The ranges of one Copy, on their way into the tables or in them.
pub(super) struct Claim {
    /// By descending number.
    parts: Vec<Part>,
    /// The part that is being entered; their number once all are.
    at: usize,
    /// In line in the lowest missing shard of that part.
    waits: bool,
    /// It counts as passing: its own volume's table is not in use.
    pub passes: bool,
    /// The thread that it is to be carried out on.
    pub thread: Thread,
    /// Here while it is not below.
    pub request: Option<Box<Request>>,
}

/// See `copy::threads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thread {
    /// None is needed, or somebody above has it.
    None,
    /// It will be told; nothing is entered before.
    Awaited(Load),
    /// It is to be given back.
    Ready(Load),
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
        let (parts, thread) = (Vec::new(), Thread::None);
        Claim { parts, at: 0, waits: false, passes, thread, request: Some(request) }
    }

    /// Adds a range of `guard`'s volume.
    pub fn add(&mut self, guard: &Arc<Guard>, range: Range) {
        debug_assert!(self.at == 0 && !self.waits, "nothing was entered yet");
        let number = |guard: &Guard| Reverse(guard.number);
        let place = self.parts.binary_search_by_key(&number(guard), |part| number(&part.guard));
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

    /// What is to be copied, while it waits for blocks or for a thread.
    pub fn sources(&self) -> Option<&Sources> {
        match &self.request.as_ref()?.data {
            Data::Sources(sources) => Some(sources),
            _ => None,
        }
    }

    /// Gets out of the line it is in, for somebody's blocks. False if its turn has come.
    pub fn give_up(&mut self, user: User, next: &mut Vec<User>) -> bool {
        let part = &self.parts[self.at];
        let gone = part.guard.conflicts.give_up(part.missing.trailing_zeros(), user, next);
        self.waits &= !gone;
        gone
    }

    /// Leaves all tables, and the line it may be in: its queue is gone.
    pub fn quit(&mut self, user: User, next: &mut Vec<User>) {
        if std::mem::take(&mut self.waits) {
            self.parts[self.at].advance();
        }
        self.leave(user, next);
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
