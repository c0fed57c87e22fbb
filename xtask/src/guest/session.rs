//! Many tests in few boots: tests/guest/*.sh, run one after the other inside a guest.
//!
//! ```text
//! plan.txt ──> session.sh in the guest ──"@begin NAME" "@end NAME STATUS MS"──> us
//!                    │ a test that hangs or takes the kernel down: kill the guest,
//!                    └ blame that test, boot again with those that are left
//! ```
//!
//! A test is a script whose first lines say `# limit: SECONDS` and may say `# round: SECONDS` (added
//! to the limit for each of the `ROUNDS` that it repeats), `# only: full` (not in the everyday run),
//! `# kernel: newest` (needs what older kernels lack) or `# devices: nvme` (needs those of [`Devices`]). What it may use is in
//! tests/guest/harness.sh. It passes when it ends with status 0 and the kernel has not warned, but of what
//! `# kernel says: REGEX` names: a fault of the kernel's own, about which the script says more.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::copied;
use super::machine::{Bus, Disk, Guest, Machine};
use super::nvme::Devices;
use crate::process::checkout;

/// How long a boot may take until the first test begins, on a machine that is busy.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// How long the cleaning up after a test may take.
const GRACE: Duration = Duration::from_secs(90);
/// Size of the sparse disk that holds the tests' backing files.
const SCRATCH_BYTES: u64 = 8 << 30;

/// A test that runs in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The file's name without `.sh`.
    pub name: String,
    /// Where it is; the same place in the guest.
    pub path: PathBuf,
    /// After that it is stopped and has failed.
    pub limit: Duration,
    /// Only in the full run.
    pub full_only: bool,
    /// Only on the newest kernel.
    pub newest_only: bool,
    /// It wants the guest to have NVMe devices.
    pub devices: bool,
}

impl Script {
    /// All scripts below tests/guest, by name. harness.sh and files named `_*` are for sourcing.
    pub fn all(rounds: u32) -> Result<Vec<Self>> {
        let directory = checkout()?.join("tests/guest");
        let mut scripts = Vec::new();
        for entry in fs::read_dir(&directory).context("tests/guest")? {
            let path = entry?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(name) = file.strip_suffix(".sh") else { continue };
            if name == "harness" || name.starts_with('_') {
                continue;
            }
            let text = fs::read_to_string(&path)?;
            scripts.push(Self::parse(name, &path, &text, rounds)?);
        }
        scripts.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(scripts)
    }

    fn parse(name: &str, path: &Path, text: &str, rounds: u32) -> Result<Self> {
        let says = |key: &str| {
            let lines = text.lines().take_while(|line| line.starts_with('#'));
            let mut values = lines.filter_map(|line| line.strip_prefix("# ")?.strip_prefix(key));
            values.next().map(|value| value.trim().to_owned())
        };
        let limit =
            says("limit:").with_context(|| format!("{name}: no line `# limit: SECONDS`"))?;
        let seconds = |text: &str| -> Result<u64> {
            text.parse().with_context(|| format!("{name}: {text:?} is not a number of seconds"))
        };
        let round = says("round:").map_or(Ok(0), |text| seconds(&text))?;
        let limit = seconds(&limit)? + round * u64::from(rounds);
        Ok(Self {
            name: name.to_owned(),
            path: path.to_owned(),
            limit: Duration::from_secs(limit),
            full_only: says("only:").is_some_and(|value| value == "full"),
            newest_only: says("kernel:").is_some_and(|value| value == "newest"),
            devices: says("devices:").is_some_and(|value| value == "nvme"),
        })
    }
}

/// What became of a test.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The script's name.
    pub name: String,
    /// None when it passed, else why not, in a few words.
    pub failure: Option<String>,
    /// How long it took, by the guest's clock.
    pub took: Duration,
    /// All it printed, and what explains a failure.
    pub log: String,
}

/// Runs `scripts` in as few boots of `machine` as they allow; `report` hears of each as it ends.
pub fn run(machine: &Machine, scripts: &[Script], report: &mut dyn FnMut(&Verdict)) -> Result<()> {
    // Of this process alone: others may test in the same checkout.
    let scratch = checkout()?.join(format!("target/guest/scratch-{}.img", std::process::id()));
    let mut left = scripts;
    while !left.is_empty() {
        if scratch.exists() {
            fs::remove_file(&scratch)?;
        }
        let mut machine = machine.clone();
        let disk = Disk { image: scratch.clone(), bytes: Some(SCRATCH_BYTES), bus: Bus::Virtio };
        machine.disks.insert(0, disk);
        let prefix = format!("nvme-{}", std::process::id());
        let wanted = left.iter().any(|script| script.devices);
        let directory = checkout()?.join("target/guest");
        let _devices =
            wanted.then(|| Devices::attach(&mut machine, &directory, &prefix)).transpose()?;
        let done = one_boot(&machine, left, report)?;
        ensure!(done > 0, "the guest does not get as far as its first test");
        left = &left[done..];
    }
    if scratch.exists() {
        fs::remove_file(&scratch)?;
    }
    Ok(())
}

/// Boots once and runs what it can; returns how many scripts have a verdict.
fn one_boot(
    machine: &Machine,
    scripts: &[Script],
    report: &mut dyn FnMut(&Verdict),
) -> Result<usize> {
    let lines: Vec<String> = scripts
        .iter()
        .map(|s| format!("{}\t{}\t{}\n", s.name, s.limit.as_secs(), s.path.display()))
        .collect();
    let mut guest = machine.boot(&format!(
        "cat >\"$RUN/plan.txt\" <<'PLAN'\n{}PLAN\n{}",
        lines.concat(),
        include_str!("session.sh")
    ))?;
    let (stdout, stderr) = guest.output();
    copied(stderr, std::io::stderr());
    let events = lines_of(stdout);

    let mut done = 0;
    let mut all_passed = true;
    for script in scripts {
        let Some(verdict) = follow(&mut guest, &events, script)? else { break };
        all_passed &= verdict.failure.is_none();
        report(&verdict);
        done += 1;
        if verdict.failure.as_ref().is_some_and(|why| why.contains(GUEST_LOST)) {
            break;
        }
    }
    if done == scripts.len() {
        guest.wait(Duration::MAX)?;
    }
    if all_passed && done > 0 {
        guest.discard_logs()?;
    }
    Ok(done)
}

/// In the failure of a test that took the guest with it.
const GUEST_LOST: &str = "the guest was lost";

/// Follows one test to its end. None when the guest ends before the test begins.
fn follow(
    guest: &mut Guest,
    events: &Receiver<String>,
    script: &Script,
) -> Result<Option<Verdict>> {
    let begin = format!("@begin {}", script.name);
    loop {
        match events.recv_timeout(BOOT_LIMIT) {
            Ok(line) if line == begin => break,
            Ok(line) => println!("{line}"),
            Err(_) => {
                println!("guest: no test began; its console said:\n{}", guest.console_tail());
                guest.cut_power()?;
                return Ok(None);
            }
        }
    }
    let end = format!("@end {} ", script.name);
    let (failure, took) = loop {
        match events.recv_timeout(script.limit + GRACE) {
            Ok(line) => {
                let Some(rest) = line.strip_prefix(&end) else { continue };
                let (status, ms) = rest.split_once(' ').context("session.sh: a torn line")?;
                break (failure_of(status), Duration::from_millis(ms.parse()?));
            }
            Err(why) => {
                let how = match why {
                    RecvTimeoutError::Timeout => "it hung",
                    RecvTimeoutError::Disconnected => "it died",
                };
                let console = guest.console_tail();
                guest.cut_power()?;
                break (Some(format!("{GUEST_LOST}: {how}\n{console}")), script.limit);
            }
        }
    };
    let log = guest.run_directory().join(format!("{}.log", script.name));
    let log = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    Ok(Some(Verdict { name: script.name.clone(), failure, took, log }))
}

fn failure_of(status: &str) -> Option<String> {
    match status {
        "0" => None,
        "99" => Some("the guest's kernel complained".into()),
        "124" | "137" => Some("stopped at its time limit".into()),
        other => Some(format!("exit status {other}")),
    }
}

/// The lines of `from`, as they come; ends with it.
pub fn lines_of(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_says_its_limit_at_its_top() {
        let path = Path::new("/x/discover.sh");
        let script = Script::parse("discover", path, "#!/bin/bash\n# limit: 30\n# only: full\n", 5);
        let script = script.unwrap();
        assert_eq!((script.limit, script.full_only), (Duration::from_secs(30), true));
        assert!(!script.newest_only && !script.devices);
        assert!(Script::parse("discover", path, "#!/bin/bash\ntrue\n# limit: 30\n", 5).is_err());
        let repeated = Script::parse("kill", path, "# limit: 30\n# round: 10\n", 5).unwrap();
        assert_eq!(repeated.limit, Duration::from_secs(80));
    }
}
