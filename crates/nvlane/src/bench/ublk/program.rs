//! What a program costs in user space: reads of a null volume through one, less reads of the volume alone.

use crate::bench::in_process::{BYTES, Load};
use crate::bench::report::median;
use anyhow::Context;
use reactor::{Config, Reactor};
use std::path::{Path, PathBuf};
use std::time::Duration;
use volume::OpenOptions;

/// What was measured outside the guest, whose processor is emulated.
pub const HOST_NS: &str = "NVLANE_BENCH_USER_SPACE_NS";

/// The proposal's program: one volume after another (bpf/linear.bpf.c).
const LINEAR: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/linear.bpf.o"));

/// Writes the program's object into a directory.
pub fn write(directory: &Path) -> anyhow::Result<PathBuf> {
    let path = directory.join("linear.bpf.o");
    std::fs::write(&path, LINEAR).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Nanoseconds of CPU time per 4 KiB read that the program adds: pairs of windows, in turn.
pub fn added_ns(object: &Path, quick: bool) -> anyhow::Result<Vec<f64>> {
    let reactor = Reactor::new(&Config::default())?;
    let (window, pairs) = if quick { (40, 5) } else { (200, 11) };
    let window = Duration::from_millis(window);
    let open = |uri: &str| -> anyhow::Result<Load> {
        Load::new(&reactor, volume::open(uri, &OpenOptions::default())?, false)
    };
    let alone = open(&format!("null:{BYTES}?bs=4096"))?;
    let half = BYTES / 2;
    let object = object.display();
    let routed = open(&format!("bpf:{object}(null:{half}?bs=4096,null:{half}?bs=4096)"))?;
    (0..pairs)
        .map(|seed| {
            let (with, without) = (routed.window(window, seed)?, alone.window(window, seed)?);
            Ok(1e9 / with - 1e9 / without)
        })
        .collect()
}

/// The middle of what is added, or what was measured outside the guest.
pub fn known_outside() -> Option<f64> {
    std::env::var(HOST_NS).ok()?.parse().ok().filter(|ns: &f64| ns.is_finite())
}

/// The middle of the pairs.
pub fn middle(pairs: &[f64]) -> f64 {
    median(pairs.iter().copied())
}
