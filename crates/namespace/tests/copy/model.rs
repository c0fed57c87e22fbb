//! Random Copies, among writes and fused pairs, against volumes in memory: whatever the stacks are, in
//! whatever order their backends work, and whatever fails.
//!
//! `COPY_OPERATIONS` says how many commands (4,000), `COPY_SEED` where the dice start (1), `COPY_DIRECTORY` in which
//! directory files are made (of what file system it is), `COPY_DEVICES` on which devices volumes may lie as well (paths,
//! separated by commas; what is on them is lost), and `COPY_MEANS` what must have been met ([`Tally`]).

use crate::blocks::Core;
use crate::devices::Devices;
use crate::dice::Dice;
use crate::leaf::shared_extents;
use crate::stacks::Maker;
use crate::tally::{Means, Tally};
use crate::world::{Size, VOLUMES, World};
use namespace::Namespace;
use std::path::PathBuf;
use std::sync::Arc;

/// So many operations keep all processors busy, each with dice of its own.
const MANY: u64 = 100_000;
/// Of so many worlds two are large: one in which nothing fails, and one in which something does.
const LARGE_EVERY: u64 = 16;
/// So many commands of a small world take as long as one of a large one.
const LARGE_COSTS: u64 = 8;
/// What everybody meets.
const USUAL_MEANS: &str = "memory,file,moved,delay,rate";

/// Where volumes are, and what became of Copies to them.
#[derive(Default)]
struct Site {
    directory: Option<PathBuf>,
    devices: Option<Devices>,
    tally: Arc<Tally>,
}

impl Site {
    /// As variables say, but without devices.
    fn of_files() -> Site {
        Site { directory: std::env::var_os("COPY_DIRECTORY").map(PathBuf::from), ..Site::default() }
    }

    fn block_shift(&self, dice: &mut Dice) -> u8 {
        match &self.devices {
            Some(devices) if !dice.one_in(4) => devices.block_shift(dice),
            _ if dice.one_in(2) => 9,
            _ => 12,
        }
    }
}

#[test]
fn copies_leave_what_the_model_says() {
    let read = |name: &str, usual| {
        let given = std::env::var(name).ok();
        given.map_or(usual, |text| text.parse().expect("a number"))
    };
    let (operations, seed): (u64, u64) = (read("COPY_OPERATIONS", 4_000), read("COPY_SEED", 1));
    println!("COPY_OPERATIONS={operations} COPY_SEED={seed}");
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let devices = std::env::var("COPY_DEVICES").ok().map(|paths| Devices::open(&paths));
    let threads = if operations < MANY || devices.is_some() { 1 } else { threads };
    let site = &Site { devices, ..Site::of_files() };
    let totals: Vec<[u64; 3]> = std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || worlds(site, operations / threads, seed + thread));
        let started: Vec<_> = (0..threads).map(start).collect();
        started.into_iter().map(|thread| thread.join().expect("the model is right")).collect()
    });
    let [copied, failed, in_vain] =
        [0, 1, 2].map(|index| totals.iter().map(|total| total[index]).sum::<u64>());
    println!(
        "{operations} operations from seed {seed}: {copied} Copies succeeded, {failed} failed, \
         {in_vain} of them naming a range that was copied; met: {}",
        site.tally.line()
    );
    assert!(copied > operations / 4, "{copied} of {operations}");
    assert!(failed > operations / 100, "faults were injected");
    assert_eq!(in_vain, 0, "of {failed}");
    site.tally.insist(&std::env::var("COPY_MEANS").unwrap_or_else(|_| USUAL_MEANS.into()));
}

/// One world after another. Returns what [`World::run`] does.
fn worlds(site: &Site, operations: u64, seed: u64) -> [u64; 3] {
    let mut dice = Dice::new(seed);
    let (mut done, mut round, mut totals) = (0, 0u64, [0; 3]);
    while done < operations {
        let here = (operations / 40).clamp(40, 10_000).min(operations - done);
        let (size, here) = match round % LARGE_EVERY {
            2 | 9 => (Size::LARGE, (here / LARGE_COSTS).max(40).min(here)),
            _ => (Size::SMALL, here),
        };
        let counted = one_world(site, &mut dice, size, round, here);
        totals.iter_mut().zip(counted).for_each(|(total, counted)| *total += counted);
        (done, round) = (done + here, round + 1);
    }
    totals
}

fn one_world(site: &Site, dice: &mut Dice, size: Size, round: u64, operations: u64) -> [u64; 3] {
    // Where a Copy is many commands, each fails the less often.
    let often = if size == Size::LARGE { LARGE_COSTS } else { 1 };
    let failures = if round.is_multiple_of(2) { 0 } else { often * (10 + dice.roll(40)) };
    let block_shift = site.block_shift(dice);
    one_world_of(site, dice, size, block_shift, failures, round, operations)
}

fn one_world_of(
    site: &Site,
    dice: &mut Dice,
    size: Size,
    block_shift: u8,
    failures: u64,
    round: u64,
    operations: u64,
) -> [u64; 3] {
    let directory = site.directory.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::tempdir_in(directory).expect("a folder");
    let maker = Maker {
        failures,
        devices: site.devices.as_ref(),
        mostly_files: site.directory.is_some(),
        tally: Arc::clone(&site.tally),
        ..Maker::new(folder.path(), block_shift, 1 + dice.roll(2) as usize)
    };
    let volumes: Vec<Arc<dyn Namespace>> =
        (0..VOLUMES).map(|_| maker.volume(size.blocks(), dice)).collect();
    // Some pools are so small that pieces have to wait for memory.
    let buffer_bytes = if dice.one_in(3) { 2 << 20 } else { 32 << 20 };
    if let Some(devices) = &site.devices {
        devices.clear();
    }
    let core = Core::new(&volumes, buffer_bytes);
    let world = World::new(core, size, dice, failures > 0, &site.tally);
    let counted = world.run(operations, &format!("round {round}"));
    site.tally.add(Means::Shared, shared_extents(folder.path()));
    counted
}

/// Only files have them, and those are slow: a little of each.
#[test]
fn copies_of_blocks_of_16_kib_leave_what_the_model_says() {
    let (site, mut dice) = (&Site::of_files(), Dice::new(1));
    let [copied, ..] = one_world_of(site, &mut dice, Size::SMALL, 14, 0, 0, 100);
    let [also, failed, _] = one_world_of(site, &mut dice, Size::SMALL, 14, 20, 1, 100);
    assert!(copied > 40 && also > 20 && failed > 0, "{copied}, {also}, {failed}");
}
