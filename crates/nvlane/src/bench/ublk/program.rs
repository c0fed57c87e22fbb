//! What a program costs in user space: reads of null volumes through one, and through a layer of ours that does the
//! same, less reads of a null volume alone.

use crate::bench::in_process::{BYTES, Load};
use anyhow::Context;
use reactor::{Config, Reactor};
use serde::Serialize;
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

/// What one turn of windows showed: nanoseconds of CPU time per 4 KiB read, beyond those of a null volume alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Turn {
    /// The program above two null volumes, half as large each.
    pub program_ns: f64,
    /// `linear:` in Rust above the same: what a layer costs that routes requests.
    pub layer_ns: f64,
}

impl Turn {
    /// What the program takes beyond that layer.
    pub fn over_layer_ns(&self) -> f64 {
        self.program_ns - self.layer_ns
    }
}

/// Turns of a window each: the program, the layer, a null volume alone; all opened alike, behind a guard.
pub fn turns(object: &Path, quick: bool) -> anyhow::Result<Vec<Turn>> {
    let reactor = Reactor::new(&Config::default())?;
    let (window, turns) = if quick { (40, 5) } else { (200, 11) };
    let window = Duration::from_millis(window);
    let open = |uri: &str| -> anyhow::Result<Load> {
        Load::new(&reactor, volume::open(uri, &OpenOptions::default())?, BYTES, false)
    };
    let alone = open(&format!("null:{BYTES}?bs=4096"))?;
    let half = format!("null:{}?bs=4096", BYTES / 2);
    let routed = open(&format!("bpf:{}({half},{half})", object.display()))?;
    let layered = open(&format!("linear:({half},{half})"))?;
    (0..turns)
        .map(|seed| {
            let ns = |load: &Load| anyhow::Ok(1e9 / load.window(window, seed)?);
            let (program, layer, alone) = (ns(&routed)?, ns(&layered)?, ns(&alone)?);
            Ok(Turn { program_ns: program - alone, layer_ns: layer - alone })
        })
        .collect()
}

/// As [`known_outside`] reads them.
pub fn written(turns: &[Turn]) -> String {
    let words = turns.iter().map(|turn| format!("{}/{}", turn.program_ns, turn.layer_ns));
    words.collect::<Vec<String>>().join(" ")
}

/// The turns that were measured outside the guest.
pub fn known_outside() -> Option<Vec<Turn>> {
    read(&std::env::var(HOST_NS).ok()?)
}

fn read(text: &str) -> Option<Vec<Turn>> {
    let number = |text: &str| text.parse().ok().filter(|ns: &f64| ns.is_finite());
    let turn = |word: &str| {
        let (program, layer) = word.split_once('/')?;
        Some(Turn { program_ns: number(program)?, layer_ns: number(layer)? })
    };
    let turns: Vec<Turn> = text.split_whitespace().map(turn).collect::<Option<_>>()?;
    (!turns.is_empty()).then_some(turns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_told_to_the_guest_whole_or_not_at_all() {
        let turns = [
            Turn { program_ns: 154.125, layer_ns: 60.5 },
            Turn { program_ns: -0.25, layer_ns: 1e-3 },
        ];
        assert_eq!(read(&written(&turns)).unwrap(), turns);
        for text in ["", "1", "1/", "1/NaN", "1/2 inf/3"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn each_volume_is_read_in_each_turn() {
        let scratch = tempfile::tempdir().unwrap();
        let object = write(scratch.path()).unwrap();
        let turns = turns(&object, true).unwrap();
        assert_eq!(turns.len(), 5);
        let finite = |turn: &Turn| turn.program_ns.is_finite() && turn.layer_ns.is_finite();
        assert!(turns.iter().all(finite), "{turns:?}");
        // How much either adds is not asked here, but not even a busy machine makes a program free.
        assert!(turns.iter().any(|turn| turn.program_ns > 0.0), "{turns:?}");
    }
}
