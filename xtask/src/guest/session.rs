//! Many tests in few boots: tests/guest/*.sh, one after the other inside a guest.
//!
//! ```text
//! we ──"next" in the run directory──> session.sh in the guest ──"@begin NAME" "@end NAME STATUS"──> us
//!                    a test that hangs or takes the kernel down: kill the guest, blame that test;
//!                    the next one gets a new guest
//! ```
//!
//! Each lane has a [`Seat`] with a guest of its own, and which test runs in which guest shows only when a
//! lane is free for it.
//!
//! A test is a script whose first lines say `# limit: SECONDS` and may say `# round: SECONDS` (added
//! to the limit for each of the `ROUNDS` that it repeats; the machine may be three times slower), `# only: full` (not in the everyday run),
//! `# kernel: newest` (needs what older kernels lack), `# processors: 2` (has that many also where one would do, see
//! [`Script::processors`]) or `# devices: usual` (uses that [`Set`] of NVMe devices). What it may use is in
//! tests/guest/harness.sh. It passes when it ends with status 0 (or 77, where the kernel lacks what it is about: on the newest
//! kernel none may) and the kernel has not warned, but of what
//! `# kernel says: REGEX` names: a fault of the kernel's own, about which the script says more.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::copied;
use super::machine::{self, Bus, Disk, Guest, Machine};
use super::nearby;
use super::nvme::{Devices, Set};
use crate::lanes::Output;
use crate::process::checkout;

/// Limits are of a machine that has nothing else to do; they only end what hangs, and machines are shared.
const SLOWER: u64 = 3;

/// How long a boot may take until a test can begin, on a machine that is busy: some 15 s, and a minute or two beside much else. One whose
/// kernel gets no timer interrupts any more (once in some hundred boots there) never ends.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// So many boots that fail one after the other are enough.
const BOOTS_MAX: u32 = 3;
/// How long the cleaning up after a test may take.
const GRACE: Duration = Duration::from_secs(90);
/// Status of a script that leaves before its end, since the kernel lacks what it is about (`lacks` of harness.sh).
const LACKS: &str = "77";
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
    /// The NVMe devices that it uses.
    pub devices: Option<Set>,
    /// It runs the example `nvme` of crates/volume.
    pub has_example: bool,
    /// It has the kernel's TLS.
    pub has_tls: bool,
    /// Processors that its guest has everyday: one, unless it says that what it tests needs more. One is emulated
    /// without atomic instructions, twice as fast as two.
    pub processors: u32,
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
        let limit = SLOWER * (seconds(&limit)? + round * u64::from(rounds));
        Ok(Self {
            name: name.to_owned(),
            path: path.to_owned(),
            limit: Duration::from_secs(limit),
            full_only: says("only:").is_some_and(|value| value == "full"),
            newest_only: says("kernel:").is_some_and(|value| value == "newest"),
            devices: match says("devices:").as_deref() {
                None => None,
                Some("usual") => Some(Set::Usual),
                Some("placed") => Some(Set::Placed),
                Some(other) => bail!("{name}: there are no devices {other:?}"),
            },
            has_example: text.contains("NVME_EXAMPLE") || text.contains("/_nvme.sh"),
            has_tls: text.contains("/_tls.sh"),
            processors: match says("processors:").as_deref() {
                None => 1,
                Some("2") => 2,
                Some("4") => 4,
                Some(other) => bail!("{name}: no guest has {other:?} processors"),
            },
        })
    }
}

impl Script {
    /// The NVMe devices that its guest has, whether it uses them or not.
    pub fn devices_there(&self) -> Set {
        self.devices.unwrap_or(Set::Placed)
    }
}

/// What became of a test.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// None when it passed, else why not, in a few words.
    pub failure: Option<String>,
    /// It has left before its end: the guest's kernel lacks what it is about.
    pub lacks: bool,
    /// The guest's kernel has died of the emulation.
    pub died: bool,
    /// All it printed, and what explains a failure.
    pub log: String,
    /// What its guest has used of this machine's processors meanwhile; none when the guest is gone.
    pub processor_time: Option<Duration>,
}

/// What a lane keeps from test to test: the guest that is ready for the next.
#[derive(Debug, Default)]
pub struct Seat {
    session: Option<Session>,
    /// The kernel, devices and processors that were tried last, and how many such guests, one after the other, did
    /// not get as far as a test.
    tried: (Option<(String, Set, u32)>, u32),
}

impl Seat {
    /// Has a guest of `machine` ready; boots it unless the last one can go on. On a machine that is very
    /// busy a kernel may take its timer for broken, so it gets more than one chance.
    pub fn prepare(&mut self, machine: &Machine, devices: Set, output: &mut Output) -> Result<()> {
        let wanted = Some((machine.kernel.version.clone(), devices, machine.cpus));
        if wanted != self.tried.0 {
            self.leave();
            self.tried = (wanted, 0);
        }
        while self.session.is_none() {
            if self.tried.1 == BOOTS_MAX {
                // The next test tries once more: the machine may have been too busy.
                self.tried.1 -= 1;
                bail!("no guest boots");
            }
            match Session::boot(machine, devices) {
                Ok(session) => {
                    if let Some(time) = session.guest.processor_time() {
                        let seconds = time.as_secs_f64();
                        output.say(&format!("a guest booted: {seconds:.1} s of processor time"));
                    }
                    self.session = Some(session);
                    self.tried.1 = 0;
                }
                Err(error) => {
                    output.say(&format!("{error:#}"));
                    self.tried.1 += 1;
                }
            }
        }
        Ok(())
    }

    /// Runs `script` in the guest that is ready.
    pub fn run(&mut self, script: &Script) -> Result<Verdict> {
        self.follow(script, false)
    }

    /// The same of one that is to fail: no reason to keep what the guest has left, unless it is lost.
    pub fn run_to_fail(&mut self, script: &Script) -> Result<Verdict> {
        self.follow(script, true)
    }

    fn follow(&mut self, script: &Script, is_meant: bool) -> Result<Verdict> {
        let mut session = self.session.take().context("no guest is ready")?;
        let (verdict, lost) = session.follow(script)?;
        session.all_passed &= !lost && (is_meant || verdict.failure.is_none());
        if !lost {
            self.session = Some(session);
        }
        Ok(verdict)
    }

    /// Switches the guest off: the lane does something else.
    pub fn leave(&mut self) {
        self.session = None;
    }
}

/// A guest in which tests run, one after the other.
#[derive(Debug)]
struct Session {
    guest: Guest,
    events: Receiver<String>,
    /// Its disks, and what it might share with us.
    folder: PathBuf,
    _devices: Devices,
    all_passed: bool,
}

impl Session {
    /// Boots, and waits until the guest asks for a test.
    fn boot(machine: &Machine, devices: Set) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Of this guest alone: there may be others of this process, and others may test in the same
        // checkout.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = machine::folder_of_this_process(&format!("session-{number}"))?;
        let mut machine = machine.clone();
        machine.share = folder.join("share");
        let image = folder.join("scratch.img");
        machine.disks.insert(0, Disk { image, bytes: Some(SCRATCH_BYTES), bus: Bus::Virtio });
        let devices = Devices::attach(&mut machine, devices, &folder)?;
        let programs = machine.environment.iter().map(|(_, value)| PathBuf::from(value));
        machine.nearby = nearby::files(programs.filter(|path| path.is_absolute()))?;
        let mut guest = machine.boot(include_str!("session.sh"))?;
        let (stdout, stderr) = guest.output();
        copied(stderr, File::create(guest.run_directory().join("session.log"))?);
        let events = lines_of(stdout);
        let mut session = Self { guest, events, folder, _devices: devices, all_passed: false };
        match session.events.recv_timeout(BOOT_LIMIT) {
            Ok(line) if line == "@ready" => {
                session.all_passed = true;
                Ok(session)
            }
            Ok(line) => bail!("session.sh said {line:?}"),
            Err(_) => bail!(
                "the guest does not get as far as a test; its console said:\n{}",
                session.guest.console_tail()
            ),
        }
    }

    /// Has the guest run `script`; returns what became of it, and whether the guest is lost.
    fn follow(&mut self, script: &Script) -> Result<(Verdict, bool)> {
        let limit = script.limit.as_secs();
        let line = format!("{}\t{limit}\t{}\n", script.name, script.path.display());
        let run = self.guest.run_directory();
        fs::write(run.join("next.new"), line)?;
        fs::rename(run.join("next.new"), run.join("next"))?;
        let log = run.join(format!("{}.log", script.name));
        let end = format!("@end {} ", script.name);
        let until = Instant::now() + script.limit + GRACE;
        let before = self.guest.processor_time();
        let (mut died, mut lacks) = (false, false);
        let (failure, lost) = loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let Some(rest) = line.strip_prefix(&end) else { continue };
                    lacks = rest == LACKS;
                    break (failure_of(rest), false);
                }
                Err(why) => {
                    let how = match why {
                        RecvTimeoutError::Timeout => "it hung",
                        RecvTimeoutError::Disconnected => "it died",
                    };
                    died = why == RecvTimeoutError::Disconnected
                        && is_emulations(&self.guest.console());
                    let console = self.guest.console_tail();
                    let why = format!("the guest was lost: {how}\n{console}");
                    break (Some(why), true);
                }
            }
        };
        let log = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
        let processor_time =
            self.guest.processor_time().zip(before).map(|(now, before)| now.saturating_sub(before));
        Ok((Verdict { failure, lacks, died, log, processor_time }, lost))
    }
}

/// Whether a kernel has died of the emulation: an emulated processor may meet a breakpoint (int3) that the kernel has just put
/// into its own code and taken away again. Whatever else it dies of is the test's.
fn is_emulations(console: &str) -> bool {
    let faults = |line: &&str| line.contains("Oops: ") || line.contains("kernel BUG at");
    console.lines().rev().find(faults).is_some_and(|line| line.contains("Oops: int3: "))
}

impl Drop for Session {
    fn drop(&mut self) {
        // Nothing is lost if something stays. Nobody writes the images when the guest is gone.
        let _ = self.guest.cut_power();
        let _ = fs::remove_dir_all(&self.folder);
        if self.all_passed {
            let _ = self.guest.discard_logs();
        }
    }
}

/// Why a script has failed that ended with this status, as session.sh tells it; none where it has passed.
fn failure_of(status: &str) -> Option<String> {
    match status {
        "0" | LACKS => None,
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
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_a_breakpoint_that_is_gone_again_is_the_emulations() {
        let int3 = "[ 1210.512849] Oops: int3: 0000 [#1] SMP NOPTI\n";
        let bug = "kernel BUG at mm/usercopy.c:101!\ninvalid opcode: 0000 [#1]\n";
        let null = "Oops: Oops: 0002 [#1] SMP\n";
        assert!(is_emulations(int3) && is_emulations(&format!("{bug}{int3}Kernel panic\n")));
        assert!(!is_emulations("") && !is_emulations("Kernel panic\n"));
        for other in [bug, null] {
            assert!(!is_emulations(other) && !is_emulations(&format!("{int3}{other}")));
        }
    }

    /// What session.sh looks for in the kernel's log, and whether it finds it in that line.
    fn is_complaint(line: &str) -> bool {
        let script = include_str!("session.sh");
        let pattern = script.lines().find_map(|line| line.strip_prefix("complaints='"));
        let pattern = pattern.and_then(|rest| rest.strip_suffix('\'')).unwrap();
        let mut grep = Command::new("grep");
        let mut grep =
            grep.args(["-qE", pattern]).stdin(Stdio::piped()).spawn().expect("grep is there");
        writeln!(grep.stdin.take().unwrap(), "{line}").unwrap();
        grep.wait().unwrap().success()
    }

    #[test]
    fn what_the_kernel_complains_about_is_told_from_what_it_tells() {
        for complaint in [
            "BUG: kernel NULL pointer dereference, address: 0000000000000008",
            "kernel BUG at block/blk-mq.c:1234!",
            "WARNING: CPU: 0 PID: 12 at block/blk-mq.c:12 blk_mq_end+0x1/0x2",
            "WARNING: kernel/sched/core.c:3441 at set_task_cpu+0x1b/0x1d0, CPU#1: iou/7",
            "Oops: Oops: 0002 [#1] SMP NOPTI",
            "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP",
            "invalid opcode: 0000 [#2] PREEMPT SMP",
            "UBSAN: array-index-out-of-bounds in drivers/nvme/host/core.c:1:2",
            "INFO: task fio:123 blocked for more than 120 seconds.",
            "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "rcu: INFO: rcu_preempt self-detected stall on CPU",
            "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-... }",
        ] {
            assert!(is_complaint(complaint), "{complaint}");
        }
        for told in [
            "Linux version 7.2.12-amd64 (x) #1 SMP PREEMPT_DYNAMIC Debian 7.2.12-1 (2026-11-01)",
            "nvme nvme0: I/O tag 12 (500c) type 4 opcode 0x1 (I/O Cmd) QID 1 timeout",
            "nvme nvme0: starting error recovery",
            "traps: crasher[123] general protection fault ip:1 sp:2 error:0 in crasher[3,4000+1000]",
            "traps: crasher[123] trap invalid opcode ip:1 sp:2 error:0 in crasher[3,4000+1000]",
            "rcu: \tRCU CPU stall warnings timeout set to 120 (rcu_cpu_stall_timeout).",
            "loop0: detected capacity change from 0 to 131072",
            "x86/fpu: Supporting XSAVE feature 0x001: 'x87 floating point registers'",
        ] {
            assert!(!is_complaint(told), "{told}");
        }
    }

    #[test]
    fn scripts_that_run_the_example_are_known() {
        for script in Script::all(1).unwrap() {
            let folder = script.path.parent().unwrap();
            let text = |path: &Path| fs::read_to_string(path).unwrap();
            let own = text(&script.path);
            let mut all = vec![own.clone()];
            for line in own.lines().filter(|line| line.starts_with(". ")) {
                let name = line.rsplit('/').next().unwrap().trim_end_matches('"');
                all.push(text(&folder.join(name)));
            }
            let has = all.iter().any(|text| text.contains("NVME_EXAMPLE"));
            assert_eq!(script.has_example, has, "{}", script.name);
            let known = script.name != "device_head_reset" || has;
            assert!(known, "it is the one that asks for no devices");
        }
    }

    #[test]
    fn whatever_is_not_status_0_is_a_failure() {
        assert_eq!((failure_of("0"), failure_of(LACKS)), (None, None));
        for (status, failure) in [
            ("1", "exit status 1"),
            ("3", "exit status 3"),
            ("", "exit status "),
            ("00", "exit status 00"),
            ("99", "the guest's kernel complained"),
            ("124", "stopped at its time limit"),
            ("137", "stopped at its time limit"),
        ] {
            assert_eq!(failure_of(status).as_deref(), Some(failure), "{status:?}");
        }
    }

    #[test]
    fn a_script_says_its_limit_at_its_top() {
        let path = Path::new("/x/discover.sh");
        let script = Script::parse("discover", path, "#!/bin/bash\n# limit: 30\n# only: full\n", 5);
        let script = script.unwrap();
        assert_eq!((script.limit, script.full_only), (Duration::from_secs(30 * SLOWER), true));
        assert!(!script.newest_only && script.devices.is_none() && script.processors == 1);
        for (said, count) in [("2", 2), ("4", 4)] {
            let said = format!("# limit: 30\n# processors: {said}\n");
            assert_eq!(Script::parse("race", path, &said, 5).unwrap().processors, count);
        }
        assert!(Script::parse("race", path, "# limit: 30\n# processors: 3\n", 5).is_err());
        assert!(Script::parse("discover", path, "#!/bin/bash\ntrue\n# limit: 30\n", 5).is_err());
        let repeated = Script::parse("kill", path, "# limit: 30\n# round: 10\n", 5).unwrap();
        assert_eq!(repeated.limit, Duration::from_secs(80 * SLOWER));
    }
}
