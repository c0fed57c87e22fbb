//! Volumes and a model of them: random commands, and what each must have left.
//!
//! Blocks are dealt to lanes; one command of each lane is in flight at a time, all lanes together, on
//! the same queues. So the outcome of each is known, while they meet in tables and pools.

use crate::blocks::{Core, Outcome, Span};
use crate::dice::Dice;
use crate::tally::{Means, Tally};
use namespace::{Data, Request};
use nvme::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const LANES: usize = 4;
/// How many volumes there are.
pub const VOLUMES: usize = 3;
/// Commands between two looks at everything.
const LOOK_EVERY: u64 = 200;

/// One in so many Copies is to be durable when it is done.
const FUA_EVERY: u64 = 16;
/// Status code type of what a path has met: whether the command was carried out nobody knows.
const PATH: u8 = 3;
/// The program that writes some blocks to two places.
pub const SCATTERED: &str = "tests/scattered";

/// How large a world is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Blocks of each lane in each volume.
    lane_blocks: u64,
    /// Source ranges of one Copy.
    ranges_max: u64,
    /// Blocks of one source range.
    range_blocks_max: u64,
}

impl Size {
    pub const SMALL: Size = Size { lane_blocks: 60, ranges_max: 5, range_blocks_max: 30 };
    /// Copies of as many ranges as a volume takes, which go down in several commands.
    pub const LARGE: Size = Size { lane_blocks: 480, ranges_max: 128, range_blocks_max: 200 };

    /// Blocks of each volume.
    pub fn blocks(&self) -> u64 {
        LANES as u64 * self.lane_blocks
    }
}

/// Worlds for each processor, where there are many: most of the time each waits, for threads, and for what holds commands
/// back.
const AT_ONCE: usize = 4;

/// Runs the worlds with numbers below `count`, one after another or, if they are `many`, as many at once as keep all
/// processors busy. A world is told its number alone, so that each can be had again without the others.
pub fn each<T: Send>(count: u64, many: bool, world: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if many { processors * AT_ONCE } else { 1 };
    let next = AtomicU64::new(0);
    let take = || {
        let number = next.fetch_add(1, Ordering::Relaxed);
        (number < count).then(|| world(number))
    };
    std::thread::scope(|scope| {
        let start = |_| scope.spawn(|| std::iter::from_fn(take).collect::<Vec<T>>());
        let started: Vec<_> = (0..threads).map(start).collect();
        started.into_iter().flat_map(|one| one.join().expect("the model is right")).collect()
    })
}

/// A command and what is expected of it.
struct Step {
    volume: usize,
    slba: u64,
    action: Action,
}

enum Action {
    /// With those source ranges that are not to be read and written.
    Copy {
        spans: Vec<Span>,
        fast_only: Vec<bool>,
        /// With Force Unit Access.
        fua: bool,
    },
    Write(Vec<u64>),
    Swap(Vec<u64>),
}

/// Volumes, what each of their blocks is to hold, and dice.
pub struct World<'a> {
    core: Core,
    size: Size,
    /// What each block of each volume holds.
    model: Vec<Vec<u64>>,
    dice: &'a mut Dice,
    next: u64,
    faulty: bool,
    /// Copies that have succeeded, and that have failed.
    copied: u64,
    failed: u64,
    /// Of those, the ones of which the range that was named is seen to be copied whole, though it is known how far
    /// they were.
    named_in_vain: u64,
    /// Volumes by other names are such, too, as [`World::keeps_two`] says.
    pub others_keep_two: bool,
    tally: Arc<Tally>,
    uris: Vec<String>,
}

/// Tells what was being done when the test panics.
struct Doing(String);

impl Drop for Doing {
    fn drop(&mut self) {
        eprintln!("{}", self.0);
    }
}

impl<'a> World<'a> {
    /// Volumes of zeroes; with `faulty`, commands may fail.
    pub fn new(
        core: Core,
        size: Size,
        dice: &'a mut Dice,
        faulty: bool,
        tally: &Arc<Tally>,
    ) -> World<'a> {
        let (copied, failed, named_in_vain) = (0, 0, 0);
        World {
            model: vec![vec![0; size.blocks() as usize]; VOLUMES],
            uris: core.volumes.iter().map(|one| one.namespace.uri()).collect(),
            core,
            size,
            dice,
            next: 1,
            faulty,
            copied,
            failed,
            named_in_vain,
            others_keep_two: false,
            tally: Arc::clone(tally),
        }
    }

    /// Rounds of commands. Returns how many Copies succeeded, how many failed, and how many of those named a range
    /// in vain.
    pub fn run(mut self, operations: u64, what: &str) -> [u64; 3] {
        let doing = Doing(format!("{what}: {:?}", self.uris));
        let mut since = 0;
        for _ in 0..operations / LANES as u64 {
            self.round();
            since += LANES as u64;
            if since >= LOOK_EVERY {
                since = 0;
                self.look_at_all();
            }
        }
        self.look_at_all();
        std::mem::forget(doing);
        for volume in &self.core.volumes {
            let moved = volume.namespace.copied().moved_bytes;
            self.tally.add(Means::Moved, moved / self.core.block_bytes as u64);
        }
        [self.copied, self.failed, self.named_in_vain]
    }

    /// One command in each lane, all at once.
    fn round(&mut self) {
        let steps: Vec<Step> = (0..LANES).map(|lane| self.step(lane as u64)).collect();
        let requests = steps.iter().map(|step| (step.volume, self.request(step))).collect();
        let outcomes = self.core.run(requests);
        for (step, outcome) in steps.into_iter().zip(outcomes) {
            self.check(step, outcome);
        }
    }

    fn step(&mut self, lane: u64) -> Step {
        let lane_blocks = self.size.lane_blocks;
        let (start, volume) = (lane * lane_blocks, self.dice.roll(VOLUMES as u64) as usize);
        let kind = self.dice.roll(8);
        if kind > 2 {
            return self.copy_step(start, volume);
        }
        let fuses = self.core.volumes[volume].namespace.limits().commands.compare_and_write;
        let blocks = 1 + self.dice.roll(u64::from(self.core.blocks_max(volume)).min(6));
        let slba = start + self.dice.roll(lane_blocks - blocks + 1);
        let numbers = (0..blocks).map(|block| self.next + block).collect();
        self.next += blocks;
        let action = match kind == 2 && fuses {
            true => Action::Swap(numbers),
            false => Action::Write(numbers),
        };
        Step { volume, slba, action }
    }

    /// A Copy within the lane that starts with block `start`.
    fn copy_step(&mut self, start: u64, volume: usize) -> Step {
        let Size { lane_blocks, ranges_max, range_blocks_max } = self.size;
        let (mut spans, mut left) = (Vec::new(), lane_blocks);
        let ranges = 1 + self.dice.roll(ranges_max);
        for range in 0..ranges {
            if left == 0 {
                break;
            }
            // About as much of each, if they are many.
            let fair = if ranges > 5 { 1 + 2 * left / (ranges - range) } else { left };
            let blocks = 1 + self.dice.roll(fair.min(left).min(range_blocks_max));
            let slba = start + self.dice.roll(lane_blocks - blocks + 1);
            let from = match self.dice.one_in(2) {
                true => volume,
                false => self.dice.roll(VOLUMES as u64) as usize,
            };
            spans.push((from, slba, blocks as u32));
            left -= blocks;
        }
        let slba = start + self.dice.roll(left + 1);
        // All of them, one in three, or none.
        let one_in = match self.dice.roll(16) {
            0 => 1,
            1 => 3,
            _ => 0,
        };
        let fua = self.dice.one_in(FUA_EVERY);
        let fast_only = spans.iter().map(|_| one_in > 0 && self.dice.one_in(one_in)).collect();
        Step { volume, slba, action: Action::Copy { spans, fast_only, fua } }
    }

    fn request(&self, step: &Step) -> Box<Request> {
        match &step.action {
            Action::Copy { spans, fast_only, fua } => {
                let mut request = self.core.copy(step.volume, step.slba, spans, false);
                request.command.cdw12 |= u32::from(*fua) << 30;
                let Data::Sources(sources) = &mut request.data else { unreachable!("just made") };
                for (range, fast_only) in sources.ranges.iter_mut().zip(fast_only) {
                    range.fast_only = *fast_only;
                }
                request
            }
            Action::Write(numbers) => self.core.write(step.slba, numbers),
            Action::Swap(numbers) => {
                let start = step.slba as usize;
                let old = &self.model[step.volume][start..start + numbers.len()];
                self.core.swap(step.slba, old, numbers)
            }
        }
    }

    /// Holds what a command has left against the model.
    fn check(&mut self, step: Step, outcome: Outcome) {
        let ok =
            outcome.status.is_success() && outcome.second.is_none_or(|second| second.is_success());
        let numbers = match step.action {
            Action::Copy { spans, fast_only, .. } => {
                return self.check_copy(step.volume, step.slba, &spans, &fast_only, outcome);
            }
            Action::Write(numbers) | Action::Swap(numbers) => numbers,
        };
        assert!(ok || self.faulty, "{} {:?}", outcome.status, outcome.second);
        let old = self.model[step.volume].clone();
        let start = step.slba as usize;
        self.model[step.volume][start..start + numbers.len()].copy_from_slice(&numbers);
        if !ok {
            self.settle(step.volume, &old, step.slba, numbers.len() as u64);
        }
    }

    fn check_copy(
        &mut self,
        volume: usize,
        slba: u64,
        spans: &[Span],
        fast_only: &[bool],
        outcome: Outcome,
    ) {
        let total: u64 = spans.iter().map(|span| u64::from(span.2)).sum();
        if outcome.status.is_success() {
            self.copied += 1;
            self.tally.note(&self.uris[volume]);
            self.move_all(volume, slba, spans);
            return self.look_at(volume, slba, total);
        }
        let lowest = outcome.result as usize;
        assert!(lowest < spans.len(), "range {lowest} of {}", spans.len());
        // The range that is named is one that is not to be read and written.
        let is_refused = outcome.status.code() == Status::FAST_COPY_NOT_POSSIBLE;
        assert!(is_refused && fast_only[lowest] || self.faulty, "{}", outcome.status);
        self.failed += 1;
        let (whole, rest) = spans.split_at(lowest);
        let done: u64 = whole.iter().map(|span| u64::from(span.2)).sum();
        self.move_all(volume, slba, whole);
        self.look_at(volume, slba, done);
        // Of the others, some blocks may have been copied.
        let old = self.model[volume].clone();
        self.move_all(volume, slba + done, rest);
        // The range named is one that was not copied whole, as far as that can be seen and anybody knows.
        let start = (slba + done) as usize;
        let named = start..start + rest[0].2 as usize;
        let changes = named.clone().all(|block| old[block] != self.model[volume][block]);
        let would = self.model[volume][named.clone()].to_vec();
        self.settle(volume, &old, slba + done, total - done);
        let whole = self.model[volume][named] == would[..];
        if changes && whole && !self.keeps_two(volume) && outcome.status.code().sct() != PATH {
            let Outcome { status, result, .. } = outcome;
            println!("in vain: {status}, range {result} of {spans:?} to {slba} of {volume}");
            println!("    {:?}", self.uris);
            self.named_in_vain += 1;
        }
    }

    /// Whether some blocks of a volume are written to two places and read from one: then it cannot be seen that one of two
    /// writes has failed.
    fn keeps_two(&self, volume: usize) -> bool {
        let uri = &self.uris[volume];
        uri.contains(SCATTERED) || self.others_keep_two && uri.contains("tcp:")
    }

    /// Range by range, each read whole before it is written.
    fn move_all(&mut self, volume: usize, slba: u64, spans: &[Span]) {
        let mut at = slba as usize;
        for &(from, slba, blocks) in spans {
            let (slba, blocks) = (slba as usize, blocks as usize);
            let read = self.model[from][slba..slba + blocks].to_vec();
            self.model[volume][at..at + blocks].copy_from_slice(&read);
            at += blocks;
        }
    }

    /// Each block holds what the model says, or what it held before; the model takes that over.
    fn settle(&mut self, volume: usize, old: &[u64], slba: u64, blocks: u64) {
        let held = self.core.read(volume, slba, blocks);
        for (block, held) in (slba as usize..).zip(held) {
            let (was, would) = (old[block], self.model[volume][block]);
            let told = held.is_some_and(|held| held == was || held == would);
            assert!(told, "volume {volume} block {block}: {held:?}, was {was}, would be {would}");
            self.model[volume][block] = held.expect("just looked");
        }
    }

    fn look_at(&self, volume: usize, slba: u64, blocks: u64) {
        let held = self.core.read(volume, slba, blocks);
        for (block, held) in (slba as usize..).zip(held) {
            let wanted = self.model[volume][block];
            assert_eq!(held, Some(wanted), "volume {volume} block {block}");
        }
    }

    fn look_at_all(&self) {
        for (volume, blocks) in self.model.iter().enumerate() {
            self.look_at(volume, 0, blocks.len() as u64);
        }
    }
}
