//! Whether the disk has room for what a run makes. Without it linkers end by bus errors, and guests stand still.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{capture, target_directory};

/// What everything that the everyday run builds takes, with kernels and disks of guests.
const EVERYDAY: u64 = 14 << 30;

/// The same of the full run, which builds as for releases, too, and has guests of three kernels.
const FULL: u64 = 22 << 30;

/// What a run makes anew, however much was built before.
const AGAIN: u64 = 4 << 30;

/// Fails with what to do about it where too little is left for a run of everything.
pub fn ensure_enough(full: bool) -> Result<()> {
    let target = target_directory()?;
    fs::create_dir_all(&target)?;
    let disk = capture(Command::new("df").args(["--block-size=1", "--output=avail"]).arg(&target))?;
    let left = number(&disk).with_context(|| format!("df says {disk:?}"))?;
    let used = capture(Command::new("du").args(["--summarize", "--block-size=1"]).arg(&target))?;
    let used = number(&used).with_context(|| format!("du says {used:?}"))?;
    let wanted = wanted(used, full);
    ensure!(
        left >= wanted,
        "the disk of {} has {} GiB left, and the tests want {} there: remove what is old (cargo clean), \
         or set CARGO_TARGET_DIR to a folder elsewhere; NAMES runs some tests only",
        target.display(),
        left >> 30,
        wanted >> 30
    );
    Ok(())
}

/// What is to be left on the disk when `used` is built already.
fn wanted(used: u64, full: bool) -> u64 {
    let all = if full { FULL } else { EVERYDAY };
    all.saturating_sub(used).max(AGAIN)
}

/// The last line that begins with a number.
fn number(said: &str) -> Option<u64> {
    said.lines().rev().find_map(|line| line.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_counts() {
        assert_eq!(number("      Avail\n42834567168\n"), Some(42_834_567_168));
        assert_eq!(number("4096\t/somewhere/target\n"), Some(4096));
        assert_eq!(number("Avail\n"), None);
    }

    #[test]
    fn what_is_built_is_not_wanted_again() {
        assert_eq!(wanted(0, false), EVERYDAY);
        assert_eq!(wanted(EVERYDAY - AGAIN - 1, false), AGAIN + 1);
        assert_eq!(wanted(100 << 30, false), AGAIN);
        assert_eq!(wanted(0, true), FULL);
    }
}
