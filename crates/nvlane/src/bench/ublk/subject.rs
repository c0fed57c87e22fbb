//! The servers that are compared: ours on each way of data, and rublk.

use super::stage::Stage;
use crate::bench::cores;
use crate::bench::memory::Memory;
use crate::bench::usage::{Observed, Usage};
use ::ublk::Control;
use ::ublk::driver::{SECTOR_SHIFT, state};
use anyhow::{Context, bail, ensure};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The first number of a device that is tried.
const FIRST_ID: u32 = 40;
/// How long a server may take to have its device, and to give it up.
const START_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A way of serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// The driver copies.
    Copy,
    /// Our server copies.
    UserCopy,
    /// Nobody does; this is the default.
    ZeroCopy,
    /// Nor here, of a device that outlives its server.
    Recoverable,
    /// A program in user space routes each request; the data is not copied.
    ProgramUser,
    /// The program runs in the kernel.
    ProgramKernel,
    /// The same of a device that outlives its server: only killed, and not in [`Way::ALL`].
    RecoverableProgram,
    /// So is this, of a remote volume.
    RecoverableRemote,
    /// rublk's loop target as it is by default.
    Rublk,
    /// The same with `--zero-copy`.
    RublkZeroCopy,
}

impl Way {
    /// All that have rows, in the order of tables.
    pub const ALL: [Way; 8] = [
        Way::Copy,
        Way::UserCopy,
        Way::ZeroCopy,
        Way::ProgramUser,
        Way::ProgramKernel,
        Way::Rublk,
        Way::RublkZeroCopy,
        Way::Recoverable,
    ];

    /// In rows and figures.
    pub fn name(self) -> &'static str {
        match self {
            Way::Copy => "copy",
            Way::UserCopy => "user_copy",
            Way::ZeroCopy => "zero_copy",
            Way::Recoverable => "zero_copy_recover",
            Way::ProgramUser => "bpf_user",
            Way::ProgramKernel => "bpf_kernel",
            Way::RecoverableProgram => "bpf_kernel_recover",
            Way::RecoverableRemote => "remote_recover",
            Way::Rublk => "rublk",
            Way::RublkZeroCopy => "rublk_zero_copy",
        }
    }

    /// Whether it is another project's.
    pub fn is_rublk(self) -> bool {
        matches!(self, Way::Rublk | Way::RublkZeroCopy)
    }

    /// The words that start it as device `id`.
    fn words(self, id: u32, stage: &Stage, program: &Path) -> Vec<String> {
        let one = stage.one().display().to_string();
        let routed = || format!("bpf:{}({})", program.display(), stage.both());
        let (volume, options): (String, &[&str]) = match self {
            Way::Copy => (one, &["--copy"]),
            Way::UserCopy => (one, &["--user-copy"]),
            Way::ZeroCopy => (one, &["--zero-copy"]),
            Way::Recoverable => (one, &["--zero-copy", "--recover"]),
            Way::ProgramUser => (routed(), &["--bpf", "user"]),
            Way::ProgramKernel => (routed(), &["--bpf", "kernel"]),
            Way::RecoverableProgram => (routed(), &["--bpf", "kernel", "--recover"]),
            Way::RecoverableRemote => (stage.remote(), &["--recover"]),
            Way::Rublk => (one, &["--foreground"]),
            Way::RublkZeroCopy => (one, &["--foreground", "--zero-copy"]),
        };
        let id = id.to_string();
        let mut words: Vec<String> = match self.is_rublk() {
            true => ["add", "loop", "-n", &id, "-q", "1", "-d", "128", "-f", &volume],
            false => ["ublk", "add", &volume, "-n", &id, "-q", "1", "-d", "128", "--log=warn"],
        }
        .map(str::to_owned)
        .to_vec();
        words.extend(options.iter().map(|word| (*word).to_owned()));
        words
    }
}

/// A running server with its device, ended when dropped.
pub struct Subject {
    child: Child,
    control: Control,
    id: u32,
    observed: Observed,
    process: u32,
    core: usize,
    log: PathBuf,
    /// Bytes of the device.
    pub bytes: u64,
}

impl Subject {
    /// Starts it on `core` alone, and waits for its device.
    pub fn start(
        way: Way,
        stage: &Stage,
        program: &Path,
        directory: &Path,
        core: usize,
    ) -> anyhow::Result<Subject> {
        let mut control = Control::open()?;
        let id = (FIRST_ID..FIRST_ID + 100).find(|id| control.info(*id).is_err());
        let id = id.context("there are a hundred ublk devices already")?;
        let ours = std::env::current_exe()?;
        let mut command =
            Command::new(if way.is_rublk() { Path::new("rublk") } else { ours.as_path() });
        command.args(way.words(id, stage, program));
        let log = directory.join(format!("{}.log", way.name()));
        let mut child = spawn(&mut command, core, &log)?;
        let made = await_device(&mut control, id, &mut child, None);
        let made = made.and_then(|process| {
            let sectors = control.parameters(id)?.basic.dev_sectors;
            pin_threads(process, core)?;
            Ok((process, sectors << SECTOR_SHIFT, Observed::new(process)?))
        });
        match made {
            Ok((process, bytes, observed)) => {
                Ok(Subject { child, control, id, observed, process, core, log, bytes })
            }
            Err(error) => {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
                let _ = control.stop(id);
                let _ = control.delete(id);
                bail!("{}", last_said(&log).unwrap_or_else(|| error.to_string()))
            }
        }
    }

    /// Its block device.
    pub fn node(&self) -> PathBuf {
        node(self.id)
    }

    /// Kills the server and starts its successor, which answers a read then.
    pub fn kill_and_recover(&mut self, program: &InMemory) -> anyhow::Result<Recovery> {
        let killed = Instant::now();
        let since = || killed.elapsed().as_secs_f64() * 1e3;
        self.child.kill()?;
        self.child.wait()?;
        let gone_ms = since();
        let mut command = Command::new(program.path());
        command.args(["ublk", "recover", &self.id.to_string(), "--log=warn"]);
        self.child = spawn(&mut command, self.core, &self.log)?;
        let next = await_device(&mut self.control, self.id, &mut self.child, Some(self.process));
        let live_ms = since();
        let next = next.and_then(|process| read_once(&self.node()).map(|()| process));
        let served_ms = since();
        let why = || last_said(&self.log).unwrap_or_else(|| "it says nothing".into());
        self.process = next.with_context(why)?;
        pin_threads(self.process, self.core)?;
        self.observed = Observed::new(self.process)?;
        Ok(Recovery { gone_ms, live_ms, served_ms })
    }

    /// Begins or ends counting system calls.
    pub fn count_calls(&mut self, on: bool) -> std::io::Result<()> {
        if on {
            return self.observed.count_system_calls();
        }
        self.observed.stop_counting();
        Ok(())
    }

    /// What it and the machine have used until now.
    pub fn look(&self) -> anyhow::Result<Look> {
        Ok(Look {
            usage: self.observed.usage()?,
            ticks: threads_ticks(self.process)?,
            machine: machine_busy(&std::fs::read_to_string("/proc/stat")?)
                .context("/proc/stat has no times")?,
        })
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> std::io::Result<u64> {
        self.observed.resident_bytes()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // SAFETY: a signal to our own child, which has not been waited for.
            unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        }
        let until = Instant::now() + STOP_MAX;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() >= until {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            std::thread::sleep(LOOK_EVERY);
        }
        if self.control.info(self.id).is_ok() {
            let _ = self.control.stop(self.id);
            let _ = self.control.delete(self.id);
        }
    }
}

/// This program in memory: that it is read from a disk is no part of what is measured. In an exact guest it would come
/// from the machine around it, and while it does nothing but wait for that the guest's clock runs ahead by minutes.
pub struct InMemory(OwnedFd);

impl InMemory {
    /// Reads it.
    pub fn new() -> anyhow::Result<InMemory> {
        let memory = memfd_create(c"nvlane", MemfdFlags::CLOEXEC)?;
        let mut file = File::from(memory);
        std::io::copy(&mut File::open(std::env::current_exe()?)?, &mut file)?;
        Ok(InMemory(file.into()))
    }

    /// By which this process and those that it starts find it.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }
}

/// What a server's end and its successor's beginning took, each since the kill.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Recovery {
    /// Until the process was gone.
    pub gone_ms: f64,
    /// Until the device had a server again.
    pub live_ms: f64,
    /// Until a read was answered.
    pub served_ms: f64,
}

/// What had been used up at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// By the server's process.
    pub usage: Usage,
    /// The same in user space and in the kernel, in the kernel's coarse ticks.
    pub ticks: [u64; 2],
    /// By all processors, whatever they did.
    pub machine: Duration,
}

fn node(id: u32) -> PathBuf {
    format!("/dev/ublkb{id}").into()
}

fn not_installed(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        std::io::ErrorKind::NotFound => anyhow::anyhow!("not installed"),
        _ => error.into(),
    }
}

/// Starts a server on `core` alone; what it says goes to `log`.
fn spawn(command: &mut Command, core: usize, log: &Path) -> anyhow::Result<Child> {
    let log = File::create(log)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    cores::pin_child(command, core).spawn().map_err(not_installed)
}

/// The last line of a server's log.
fn last_said(log: &Path) -> Option<String> {
    let said = std::fs::read_to_string(log).ok()?;
    let line = said.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(line.replace("nvlane: ", ""))
}

/// Reads a block that is in no cache.
fn read_once(node: &Path) -> anyhow::Result<()> {
    const BYTES: usize = 4096;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(node)?;
    let memory = Memory::new(BYTES)?;
    // SAFETY: the mapping has so many bytes.
    let read = unsafe { libc::pread(file.as_raw_fd(), memory.start().cast(), BYTES, 0) };
    ensure!(read == BYTES as isize, "a read: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Waits until the device can be used, and has another server than `before`; the process that serves it.
fn await_device(
    control: &mut Control,
    id: u32,
    child: &mut Child,
    before: Option<u32>,
) -> anyhow::Result<u32> {
    let until = Instant::now() + START_MAX;
    loop {
        let info = control.info(id);
        if let Ok(info) = info
            && info.state == state::LIVE
            // None while one has gone and the device has not been told.
            && let Ok(process) = u32::try_from(info.ublksrv_pid)
            && Some(process) != before
            && File::open(node(id)).is_ok()
        {
            return Ok(process);
        }
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "the server ended: {status}");
        }
        ensure!(Instant::now() < until, "the device does not come");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Has all threads of a process run on one core, whatever they have chosen themselves.
fn pin_threads(process: u32, core: usize) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        let Some(Ok(task)) = entry.file_name().to_str().map(str::parse) else { continue };
        // One that has ended meanwhile need not be pinned.
        let _ = cores::pin_task(task, core);
    }
    Ok(())
}

/// User and system time in ticks. Of each thread by itself: the kernel divides the exact time of whom it is
/// asked for by the ticks of his whole life, so that a process has its start in each of its windows.
fn threads_ticks(process: u32) -> anyhow::Result<[u64; 2]> {
    let mut all = [0; 2];
    for entry in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        // One that has ended meanwhile had no part in the window.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let [user, system] = ticks(&stat).context("/proc/PID/task/TID/stat has no times")?;
        all = [all[0] + user, all[1] + system];
    }
    Ok(all)
}

/// Those of a process or thread (proc_pid_stat(5), fields 14 and 15; the name may hold anything).
fn ticks(stat: &str) -> Option<[u64; 2]> {
    let mut fields = stat.rsplit_once(") ")?.1.split_whitespace().skip(11);
    Some([fields.next()?.parse().ok()?, fields.next()?.parse().ok()?])
}

/// Time that all processors together were busy (proc_stat(5)): all but idle and waiting for I/O.
fn machine_busy(stat: &str) -> Option<Duration> {
    // USER_HZ, which is the same on all architectures that this runs on.
    const TICK_MS: u64 = 10;
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // Guest time, behind these, is in user time already.
    let fields = line.split_whitespace().take(8).map(str::parse::<u64>);
    let times = fields.collect::<Result<Vec<u64>, _>>().ok()?;
    let busy = times.iter().enumerate().filter(|(at, _)| !matches!(at, 3 | 4));
    Some(Duration::from_millis(TICK_MS * busy.map(|(_, ticks)| ticks).sum::<u64>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "17 (a) b) S 1 17 17 0 -1 4194560 9 0 0 0 31 44 0 0 20 0 3 0 77 1000 250";
        assert_eq!(ticks(stat), Some([31, 44]));
        let stat = "cpu  10 1 20 500 30 2 3 4 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(machine_busy(stat), Some(Duration::from_millis(400)));
        // Many processors, for weeks.
        let stat = "cpu  9000000000 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(machine_busy(stat), Some(Duration::from_secs(90_000_000)));
        assert_eq!((ticks("17"), machine_busy("intr 1")), (None, None));
    }
}
