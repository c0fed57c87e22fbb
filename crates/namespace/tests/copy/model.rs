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
use crate::world::{self, Size, VOLUMES, World};
use namespace::Namespace;
use std::path::PathBuf;
use std::sync::Arc;

/// So many operations are done in several worlds at once.
const MANY: u64 = 100_000;
/// Of so many worlds two are large: one in which nothing fails, and one in which something does.
const LARGE_EVERY: u64 = 16;
/// Commands of one world, at most.
const WORLD_MAX: u64 = 10_000;
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
    let devices = std::env::var("COPY_DEVICES").ok().map(|paths| Devices::open(&paths));
    let many = operations >= MANY && devices.is_none();
    let site = &Site { devices, ..Site::of_files() };
    let worlds = worlds(operations);
    let totals = world::each(worlds.len() as u64, many, |number| {
        let (size, here) = worlds[number as usize];
        one_world(site, &mut Dice::of_world(seed, number), size, number, here)
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

/// Of what size each world is, and how many commands it has.
fn worlds(operations: u64) -> Vec<(Size, u64)> {
    let (mut left, mut worlds) = (operations, Vec::new());
    while left > 0 {
        let here = (operations / 40).clamp(40, WORLD_MAX).min(left);
        let (size, here) = match worlds.len() as u64 % LARGE_EVERY {
            2 | 9 => (Size::LARGE, (here / LARGE_COSTS).max(40).min(here)),
            _ => (Size::SMALL, here),
        };
        worlds.push((size, here));
        left -= here;
    }
    worlds
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
