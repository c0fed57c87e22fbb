//! Outside the measured windows: is what was written there, and what is read right?

use super::plan::Volume;
use crate::bench::initiator::{Fill, Geometry, Queue};
use crate::bench::pattern::{self, BLOCK_BYTES};
use crate::bench::pipeline::{self, Timing};
use crate::bench::random::Random;
use crate::bench::usage::Usage;
use anyhow::{Context, ensure};
use nvme::{Command, opcode};
use nvme_tcp::host::Transfer;
use std::time::Duration;

/// Depth at which patterns are written.
pub const FILL_DEPTH: u16 = 32;
/// Blocks looked at per check.
const CHECKED_BLOCKS: usize = 256;
/// The fill before all rows.
pub const BEFORE: u64 = 1;
/// What the measured writes write.
pub const MEASURED: u64 = 2;
/// The fill after all rows.
pub const AFTER: u64 = 3;

/// A volume that takes longer to be filled is too large to be measured.
const FILL_MAX: Duration = Duration::from_secs(600);

/// Writes the pattern of `generation` everywhere, at depth.
pub fn fill(
    queue: &mut Queue,
    volume: Volume,
    geometry: Geometry,
    generation: u64,
) -> anyhow::Result<()> {
    let count = geometry.blocks * geometry.block_bytes / BLOCK_BYTES as u64;
    let socket = queue.socket.try_clone()?;
    let mut fill = Fill::new(queue, volume.nsid(), geometry, count, generation);
    let timing = Timing { warm: Duration::ZERO, measure: FILL_MAX };
    let mut batch = Fill::batch(FILL_DEPTH);
    let mut nothing = || Ok(Usage::default());
    pipeline::drive(&socket, &mut fill, &mut batch, FILL_DEPTH, timing, &mut nothing)
        .with_context(|| format!("filling the {} volume failed", volume.name()))?;
    let name = volume.name();
    ensure!(fill.is_done(), "the {name} volume could not be filled in {} s", FILL_MAX.as_secs());
    Ok(())
}

/// Reads random blocks: each must hold the pattern of `filled`, or what the measured writes
/// write, if those have run. Returns how many blocks of each were met.
pub fn check(
    queue: &mut Queue,
    volume: Volume,
    geometry: Geometry,
    filled: u64,
    overwritten: bool,
) -> anyhow::Result<(usize, usize)> {
    let blocks = BLOCK_BYTES as u64 / geometry.block_bytes;
    let mut random = Random::new(11);
    let mut met = (0, 0);
    for _ in 0..CHECKED_BLOCKS {
        let index = random.below(geometry.blocks / blocks);
        let mut data = [0; BLOCK_BYTES];
        let read = Command::blocks(opcode::io::READ, volume.nsid(), index * blocks, blocks as u32);
        queue.execute(read, Transfer::ToHost(BLOCK_BYTES as u32), &mut data)?;
        if pattern::matches(&data, index, filled) {
            met.0 += 1;
        } else {
            let measured = overwritten && pattern::matches(&data, 0, MEASURED);
            ensure!(measured, "block {index} of the {} volume holds wrong data", volume.name());
            met.1 += 1;
        }
    }
    Ok(met)
}
