//! Which ranges of blocks are in use, so that overlapping commands follow one another.
//!
//! The blocks are cut into regions, and regions are dealt to shards, each a short list under a
//! spin lock. A command enters the shards of its range in ascending order, waiting in line
//! wherever an earlier command overlaps it; so the order is fair, and nobody waits in a circle.
//!
//! Every range knows how many earlier ones are in its way. So what is done under a shard's lock grows with
//! the ranges in that shard, not with their square, whatever hosts ask for; and a command has at most
//! [`RANGES_MAX`] ranges in a shard.

use crate::spin::SpinLock;

/// Shards: as many as a `u64` has bits.
const SHARDS: u64 = 64;
/// Blocks of one region as a power of two. Most commands lie within one.
const REGION_SHIFT: u32 = 8;

/// Ranges of one user in one shard.
pub const RANGES_MAX: usize = 8;

/// The table, shared by all cores.
#[derive(Debug)]
pub struct Conflicts {
    shards: Box<[Shard]>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(SpinLock<Vec<Entry>>);

/// Who uses a range: a queue (by number) and its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    pub queue: u64,
    pub slot: u64,
}

/// A range of blocks and how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    /// One past the last block; above `start`.
    pub end: u64,
    /// Nobody else may use it at the same time; otherwise others may that are not exclusive.
    pub exclusive: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    user: User,
    range: Range,
    /// Earlier ranges of others, still here, that keep this one waiting.
    blockers: u32,
}

impl Range {
    fn conflicts(&self, other: &Range) -> bool {
        (self.exclusive || other.exclusive) && self.start < other.end && other.start < self.end
    }

    /// The shards to enter, as bits.
    #[inline]
    pub fn shards(&self) -> u64 {
        let first = self.start >> REGION_SHIFT;
        let last = (self.end - 1) >> REGION_SHIFT;
        if last - first >= SHARDS - 1 {
            return u64::MAX;
        }
        let run = u64::MAX >> (SHARDS - 1 - (last - first));
        run.rotate_left((first % SHARDS) as u32)
    }
}

impl Conflicts {
    pub fn new() -> Conflicts {
        Conflicts { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    /// Gets in line in one shard. Returns whether the range may be used at once; if not, a
    /// [`Conflicts::leave`] of somebody else will name this user.
    #[inline]
    pub fn enter(&self, shard: u32, user: User, range: Range) -> bool {
        self.enter_all(shard, user, std::iter::once(range))
    }

    /// Enters one shard if nothing there is in the way; otherwise nothing changes. Returns whether it has.
    #[inline]
    pub fn enter_if_free(&self, shard: u32, user: User, range: Range) -> bool {
        let mut entries = self.shards[shard as usize].0.lock();
        let is_free = !entries.iter().any(|other| other.range.conflicts(&range));
        if is_free {
            entries.push(Entry { user, range, blockers: 0 });
        }
        is_free
    }

    /// Gets in line with several ranges at once, in one shard: they may be used when all of them may.
    /// Ranges of one user do not keep each other out. At most [`RANGES_MAX`].
    #[inline]
    pub fn enter_all(&self, shard: u32, user: User, ranges: impl Iterator<Item = Range>) -> bool {
        let mut entries = self.shards[shard as usize].0.lock();
        let (others, mut granted) = (entries.len(), true);
        for range in ranges {
            let earlier = &entries[..others];
            let blockers = earlier.iter().filter(|other| other.range.conflicts(&range)).count();
            granted &= blockers == 0;
            entries.push(Entry { user, range, blockers: blockers as u32 });
        }
        debug_assert!(
            entries.len() - others <= RANGES_MAX,
            "what is done under the lock is bounded"
        );
        granted
    }

    /// Leaves one shard; adds those whose turn has come to `next`.
    #[inline]
    pub fn leave(&self, shard: u32, user: User, next: &mut Vec<User>) {
        let mut entries = self.shards[shard as usize].0.lock();
        if let [entry] = entries[..] {
            // Nearly always: nobody else is here.
            assert!(entry.user == user, "who leaves has entered");
            return entries.clear();
        }
        remove(&mut entries, user, next);
    }

    /// Gets out of the line of one shard, where `user` waits. False if his turn has come: he has been named, and is
    /// in the shard. Adds those whose turn has come to `next`.
    pub fn give_up(&self, shard: u32, user: User, next: &mut Vec<User>) -> bool {
        let mut entries = self.shards[shard as usize].0.lock();
        let waits = entries.iter().any(|entry| entry.user == user && entry.blockers > 0);
        if waits {
            remove(&mut entries, user, next);
        }
        waits
    }

    /// Has those of a queue leave whose slot `is_meant`, wherever they are, none of whom waits.
    pub fn quit(&self, queue: u64, is_meant: impl Fn(u64) -> bool, next: &mut Vec<User>) {
        let is_meant = |entry: &&Entry| entry.user.queue == queue && is_meant(entry.user.slot);
        for (shard, entries) in self.shards.iter().enumerate() {
            let find = || entries.0.lock().iter().find(is_meant).map(|entry| entry.user);
            while let Some(user) = find() {
                self.leave(shard as u32, user, next);
            }
        }
    }

    /// The most ranges that a shard has.
    #[cfg(test)]
    pub fn longest(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().len()).max().unwrap_or(0)
    }

    /// Whether nobody is in the table.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.0.lock().is_empty())
    }
}

/// Takes the ranges of `user` out of a shard; adds those whose turn has come by that to `next`.
fn remove(entries: &mut Vec<Entry>, user: User, next: &mut Vec<User>) {
    let place = entries.iter().position(|entry| entry.user == user);
    let place = place.expect("who leaves has entered");
    // Ranges that came at once are next to one another.
    let count = entries[place..].iter().take_while(|entry| entry.user == user).count();
    let (gone, later) = entries[place..].split_at_mut(count);
    for group in later.chunk_by_mut(|one, other| one.user == other.user) {
        let (mut waited, mut waits) = (false, false);
        for entry in &mut *group {
            let freed = gone.iter().filter(|gone| gone.range.conflicts(&entry.range)).count();
            waited |= freed > 0;
            entry.blockers -= freed as u32;
            waits |= entry.blockers > 0;
        }
        if waited && !waits {
            next.push(group[0].user);
        }
    }
    entries.drain(place..place + count);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(start: u64, end: u64, exclusive: bool) -> Range {
        Range { start, end, exclusive }
    }

    #[test]
    fn readers_share_and_writers_wait_in_line() {
        let table = Conflicts::new();
        let user = |slot| User { queue: 1, slot };
        let (shared, exclusive) = (range(0, 8, false), range(4, 12, true));
        assert!(table.enter(0, user(0), shared));
        assert!(table.enter(0, user(1), shared));
        assert!(!table.enter(0, user(2), exclusive));
        // Later readers do not overtake the writer that waits.
        assert!(!table.enter(0, user(3), range(7, 8, false)));
        assert!(table.enter(0, user(4), range(0, 4, false)));
        let mut next = Vec::new();
        table.leave(0, user(0), &mut next);
        assert_eq!(next, []);
        table.leave(0, user(1), &mut next);
        assert_eq!(next, [user(2)]);
        next.clear();
        table.leave(0, user(2), &mut next);
        assert_eq!(next, [user(3)]);
        table.leave(0, user(3), &mut next);
        table.leave(0, user(4), &mut next);
        assert!(table.is_empty());
    }

    #[test]
    fn ranges_that_come_at_once_are_granted_at_once() {
        let table = Conflicts::new();
        let user = |slot| User { queue: 1, slot };
        // A source and a destination that overlap are one user's own business.
        let copy = [range(0, 8, false), range(4, 12, true)];
        assert!(table.enter(0, user(0), range(2, 3, true)));
        assert!(table.enter(0, user(1), range(11, 12, false)));
        assert!(!table.enter_all(0, user(2), copy.into_iter()));
        // Later ones wait for either range, whichever the copy itself waits for.
        assert!(!table.enter(0, user(3), range(9, 10, false)));
        assert!(!table.enter(0, user(4), range(0, 1, true)));
        assert!(table.enter(0, user(5), range(1, 2, false)));
        let mut next = Vec::new();
        table.leave(0, user(0), &mut next);
        assert_eq!(next, []);
        table.leave(0, user(1), &mut next);
        assert_eq!(next, [user(2)]);
        next.clear();
        table.leave(0, user(2), &mut next);
        assert_eq!(next, [user(3), user(4)]);
        table.leave(0, user(5), &mut next);
        table.leave(0, user(3), &mut next);
        table.leave(0, user(4), &mut next);
        assert!(table.is_empty());
    }

    #[test]
    fn who_waits_may_get_out_of_the_line_and_who_is_named_may_not() {
        let table = Conflicts::new();
        let user = |slot| User { queue: 1, slot };
        assert!(table.enter(0, user(0), range(0, 8, false)));
        assert!(!table.enter(0, user(1), range(4, 12, true)));
        assert!(!table.enter(0, user(2), range(2, 6, false)));
        assert!(!table.enter(0, user(3), range(10, 14, false)));
        let mut next = Vec::new();
        assert!(!table.give_up(0, user(0), &mut next) && next.is_empty());
        // Those who waited for him only go on.
        assert!(table.give_up(0, user(1), &mut next));
        assert_eq!(next, [user(2), user(3)]);
        assert!(!table.give_up(0, user(2), &mut next));
        for slot in [0, 2, 3] {
            table.leave(0, user(slot), &mut next);
        }
        assert!(table.is_empty() && next.len() == 2);
    }

    #[test]
    fn who_enters_only_what_is_free_does_not_wait_and_keeps_others_out() {
        let table = Conflicts::new();
        let user = |slot| User { queue: 1, slot };
        assert!(table.enter_if_free(0, user(0), range(0, 8, false)));
        assert!(!table.enter_if_free(0, user(1), range(7, 9, true)));
        assert!(!table.enter(0, user(1), range(7, 9, true)));
        // One that waits is not overtaken either.
        assert!(!table.enter_if_free(0, user(2), range(8, 9, false)));
        assert!(table.enter_if_free(5, user(3), range(9, 10, true)));
        let mut next = Vec::new();
        table.quit(2, |_| true, &mut next);
        table.quit(1, |slot| slot == 7, &mut next);
        assert!(next.is_empty() && !table.is_empty());
        table.quit(1, |slot| slot != 1, &mut next);
        assert_eq!(next, [user(1)]);
        table.leave(0, user(1), &mut next);
        assert!(table.is_empty());
    }

    /// The same by its meaning: a user may go on when none of his ranges conflicts with an earlier one.
    #[derive(Default)]
    struct Model(Vec<(User, Vec<Range>)>);

    impl Model {
        fn may(&self, user: User) -> bool {
            let place = self.0.iter().position(|(other, _)| *other == user).unwrap();
            let mine = &self.0[place].1;
            let earlier = self.0[..place].iter().flat_map(|(_, ranges)| ranges);
            earlier.into_iter().all(|other| mine.iter().all(|range| !range.conflicts(other)))
        }
    }

    proptest! {
        #[test]
        fn whoever_may_go_on_is_told_once(
            steps in prop::collection::vec(
                (any::<bool>(), prop::collection::vec((0u64..40, 1u64..9, any::<bool>()), 1..5), any::<prop::sample::Index>()),
                1..60,
            ),
        ) {
            let (table, mut model) = (Conflicts::new(), Model::default());
            for (slot, (enters, ranges, which)) in steps.into_iter().enumerate() {
                let user = User { queue: 1, slot: slot as u64 };
                if enters || model.0.is_empty() {
                    let ranges: Vec<_> = ranges.iter().map(|it| range(it.0, it.0 + it.1, it.2)).collect();
                    model.0.push((user, ranges.clone()));
                    prop_assert_eq!(table.enter_all(0, user, ranges.into_iter()), model.may(user));
                    continue;
                }
                // Whoever leaves may use what he has.
                let ready: Vec<User> =
                    model.0.iter().map(|(user, _)| *user).filter(|user| model.may(*user)).collect();
                let gone = *which.get(&ready);
                model.0.retain(|(user, _)| *user != gone);
                let wanted: Vec<User> = model.0.iter().map(|(user, _)| *user)
                    .filter(|user| model.may(*user) && !ready.contains(user)).collect();
                let mut next = Vec::new();
                table.leave(0, gone, &mut next);
                prop_assert_eq!(next, wanted);
            }
        }

        #[test]
        fn ranges_that_overlap_share_a_shard(
            a in 0u64..1 << 20, b in 0u64..1 << 20, len_a in 1u64..70_000, len_b in 1u64..70_000,
        ) {
            let (one, two) = (range(a, a + len_a, true), range(b, b + len_b, true));
            prop_assert!(one.shards() != 0);
            if one.conflicts(&two) {
                prop_assert!(one.shards() & two.shards() != 0);
            }
        }

        #[test]
        fn shards_are_those_of_the_regions(start in 0u64..1 << 30, len in 1u64..20_000) {
            let regions = start >> REGION_SHIFT..=(start + len - 1) >> REGION_SHIFT;
            let wanted = regions.fold(0u64, |bits, region| bits | 1 << (region % SHARDS));
            prop_assert_eq!(range(start, start + len, false).shards(), wanted);
        }
    }
}
