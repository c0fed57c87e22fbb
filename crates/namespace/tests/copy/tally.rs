//! By which means blocks were copied: counted where that happens, so that a run can be told to meet them.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a Copy may meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// Copies carried out by memory.
    Memory,
    /// Copies carried out by files.
    File,
    /// Extents of files that share blocks with others, when a world ends.
    Shared,
    /// Copies carried out by the namespaces behind character devices.
    Device,
    /// Copies carried out by the namespaces behind block devices.
    Block,
    /// Blocks that were read and written.
    Moved,
    /// Copies to volumes of which a part is on a device that has no Copy.
    Without,
    /// Copies to volumes that have `delay:` in them.
    Delay,
    /// Copies to volumes that have `rate:` in them.
    Rate,
}

/// All of them, with their names in `COPY_MEANS`.
const ALL: [(Means, &str); 9] = [
    (Means::Memory, "memory"),
    (Means::File, "file"),
    (Means::Shared, "shared"),
    (Means::Device, "device"),
    (Means::Block, "block"),
    (Means::Moved, "moved"),
    (Means::Without, "without"),
    (Means::Delay, "delay"),
    (Means::Rate, "rate"),
];

/// How often each was met.
#[derive(Debug, Default)]
pub struct Tally([AtomicU64; ALL.len()]);

impl Tally {
    pub fn add(&self, means: Means, count: u64) {
        self.0[means as usize].fetch_add(count, Ordering::Relaxed);
    }

    fn count(&self, means: Means) -> u64 {
        self.0[means as usize].load(Ordering::Relaxed)
    }

    /// A Copy to a volume with that URI has succeeded.
    pub fn note(&self, uri: &str) {
        for (means, word) in
            [(Means::Without, WITHOUT), (Means::Delay, "delay:"), (Means::Rate, "rate:")]
        {
            self.add(means, uri.contains(word).into());
        }
    }

    /// In words.
    pub fn line(&self) -> String {
        ALL.map(|(means, name)| format!("{name} {}", self.count(means))).join(", ")
    }

    /// Panics unless each of `wanted` was met, names that are separated by commas.
    pub fn insist(&self, wanted: &str) {
        for wanted in wanted.split(',') {
            let known = ALL.iter().find(|(_, name)| *name == wanted);
            let (means, _) = known.unwrap_or_else(|| panic!("{wanted:?} is none of {ALL:?}"));
            assert!(self.count(*means) > 0, "nothing was copied by {wanted}: {}", self.line());
        }
    }
}

/// In the URI of a part of what has no Copy.
pub const WITHOUT: &str = "without-copy:";
