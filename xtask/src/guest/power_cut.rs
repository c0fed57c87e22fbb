//! The guest whose power is cut: nvlane serves a file on a file system inside the guest, the guest's
//! own host writes to it, the guest is killed, and the next boot looks for every write that was
//! acknowledged as durable. The ledger of those is on this machine, out of the accident's reach.
//!
//! ```text
//! boot ── mount, journal replay ── serve, connect ── verify ledger of the last round
//!   ^                                                   │
//!   └────────── power cut ── some seconds ── write, note in ledger
//! ```
//!
//! What a killed guest loses is its memory: the page cache and the file system's journal that was not
//! yet written. What reached its disk stays, which is more than a real power cut leaves of a disk
//! with a volatile cache; the `volatile:` tests cover that.
//!
//! In the end the same once more with a build that ignores Flush and FUA: it has to lose writes of both kinds.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::machine::{self, Bus, Disk, Ending, Machine};
use super::session::lines_of;
use crate::lanes::Output;
use crate::process::{checkout, shell_quoted};

/// A round from power on to power off, at most.
const ROUND_LIMIT: Duration = Duration::from_secs(900);
/// Guests that may die one after the other while they boot, before a test of ours has begun: the emulator's fault.
const DEATHS_MAX: u32 = 2;
/// Lines in the ledger before the power may be cut. The next boot wants 50 durable writes: not all
/// lines are writes, and the last one may be cut off.
const NOTED_MIN: usize = 60;
/// The same of the writes with FUA, of which the next boot wants one.
const NOTED_FUA_MIN: usize = 10;

/// Whether what was promised is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promises {
    Kept,
    /// By a build that breaks them: they must be seen to be broken.
    Lost,
}

impl Promises {
    /// As the script in the guest is told.
    fn word(self) -> &'static str {
        match self {
            Promises::Kept => "kept",
            Promises::Lost => "lost",
        }
    }
}

/// Cuts the power `rounds` times; an error names what was lost. `prefix` is that of the step's name.
pub fn run(
    machine: &Machine,
    prefix: &str,
    rounds: u32,
    seed: u64,
    output: &mut Output,
) -> Result<()> {
    for (promises, rounds) in [(Promises::Kept, rounds), (Promises::Lost, 1)] {
        // Another kernel's may run in the other lane.
        let name = format!("power-cut-{prefix}-{}", promises.word());
        let directory = machine::folder_of_this_process(&name)?;
        let mut machine = machine.clone();
        // A disk and a file system for each way of making writes durable: a flush for one must not do for the other.
        let disk = |name: &str| Disk {
            image: directory.join(name),
            bytes: Some(1 << 30),
            bus: Bus::Virtio,
        };
        machine.disks = vec![disk("flush.img"), disk("fua.img")];
        machine.share.clone_from(&directory);
        for round in 0..=rounds {
            let last = round == rounds;
            let mut deaths = 0;
            let said = loop {
                match boot(&machine, &directory, promises, round, last, seed)? {
                    Some(said) => break said,
                    None if deaths < DEATHS_MAX => deaths += 1,
                    None => bail!("round {round}: no guest gets as far as the test"),
                }
                output.say(&format!("round {round}: the guest died while it booted; another one"));
            };
            output.say(&said);
        }
        fs::remove_dir_all(&directory)?;
    }
    Ok(())
}

/// One boot: verifies the round before, writes until the power goes (unless it is the last). Returns
/// what was said; None if the guest died before the script had said anything.
fn boot(
    machine: &Machine,
    directory: &Path,
    promises: Promises,
    round: u32,
    last: bool,
    seed: u64,
) -> Result<Option<String>> {
    let script = checkout()?.join("tests/guest/_power_cut.sh");
    let script = shell_quoted(&script.display().to_string());
    let ends = if last { "last" } else { "cut" };
    let mut guest =
        machine.boot(&format!("bash {script} {round} {ends} {} 2>&1\n", promises.word()))?;
    let (stdout, _stderr) = guest.output();
    let said_since = lines_of(stdout);
    let started = Instant::now();
    let mut said = String::new();
    loop {
        let left = ROUND_LIMIT.saturating_sub(started.elapsed());
        match said_since.recv_timeout(left) {
            Ok(line) if line == "@writing" && !last => break,
            Ok(line) => {
                said.push_str(&line);
                said.push('\n');
            }
            Err(_) => {
                let ending = guest.wait(ROUND_LIMIT)?;
                if last && ending == Ending::Exited(0) {
                    guest.discard_logs()?;
                    return Ok(Some(said));
                }
                if ending == Ending::Died && said.is_empty() {
                    return Ok(None);
                }
                bail!("round {round}: {ending:?}\n{said}{}", guest.console_tail());
            }
        }
    }
    // A moment that differs from round to round and not from run to run.
    let moment = (seed + u64::from(round)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7;
    let writing = Duration::from_millis(1500 + moment % 3000);
    let ledger = directory.join(format!("ledger-{round}"));
    let ledger_fua = directory.join(format!("ledger-{round}-fua"));
    let lines = |path: &Path| fs::read_to_string(path).map_or(0, |text| text.lines().count());
    let noted = || lines(&ledger);
    let writing_since = Instant::now();
    while writing_since.elapsed() < writing
        || noted() < NOTED_MIN
        || lines(&ledger_fua) < NOTED_FUA_MIN
    {
        ensure!(started.elapsed() < ROUND_LIMIT, "round {round}: nothing is written\n{said}");
        if guest.has_ended()? {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // One whose writers failed switches itself off, and has written all that it had.
    if guest.has_ended()? {
        guest.wait(ROUND_LIMIT)?;
        said.extend(said_since.iter().flat_map(|line| [line, "\n".into()]));
        bail!("round {round}: it ended before the power was cut\n{said}{}", guest.console_tail());
    }
    guest.cut_power()?;
    said.push_str(&format!("round {round}: power cut after {} durable writes", noted()));
    guest.discard_logs()?;
    Ok(Some(said))
}
