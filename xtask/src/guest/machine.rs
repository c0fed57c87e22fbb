//! One virtual machine: a stock kernel in QEMU, with this machine's root file system inside.
//!
//! ```text
//!   machine /  ──9p, read-only──┐
//!                     tmpfs ────┴─ overlay ──> guest /     (writes vanish with the guest)
//!   run directory  ──9p, writable──> same path             boot.sh, command.sh, status, logs
//!   share directory ─9p, writable──> same path             for whoever runs the command
//!   our stdout, stderr <──virtio-serial── the command's
//! ```
//!
//! Emulated in software: slow, but it needs nothing of the machine. There is no network card; the
//! guest has loopback. It does not share the clock with the host, so nothing is to be timed in it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};

use crate::emulator::Emulator;
use crate::initramfs;
use crate::kernel::Kernel;
use crate::process::{checkout, shell_quoted};

/// How long a run directory whose process is gone is kept for somebody to read its logs.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// What is quicker to emulate: without "enhanced" string instructions the kernel copies by words and not byte by byte, and
/// without protection of the user's memory from the kernel it does not end a block of translated code at each copy.
const QUICK_PROCESSOR: &str = "max,-erms,-fsrm,-smap,-smep,-umip";
/// What of the kernel's own protection is only work to an emulated processor, such as zeroes in all memory that it allocates: a tenth
/// of a guest's time together with the processor's.
const WITHOUT_HARDENING: &str = "init_on_alloc=0 randomize_kstack_offset=off hardened_usercopy=off";

/// How virtio devices hear of requests: from the thread of the processor that notifies them, without a turn of the main loop.
const NOTIFIED: &str = ",ioeventfd=off";
/// Two, and the console's, which is always the first, and not 31, whose queues would all be asked about at each turn of that loop.
/// Together a tenth of a guest's processor time.
const SERIAL_PORTS: &str = ",max_ports=3";

/// How a disk image appears in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// `/dev/vdX`.
    Virtio,
    /// An NVMe controller with one namespace.
    Nvme,
}

/// An image file that outlives the guest, even one whose power is cut: what the guest's device has
/// taken is in this machine's page cache.
#[derive(Clone, Debug)]
pub struct Disk {
    /// A raw image; created sparse when `bytes` is given and the file is missing.
    pub image: PathBuf,
    /// Size to create it with.
    pub bytes: Option<u64>,
    /// How the guest sees it.
    pub bus: Bus,
}

/// What to boot and with what; see the fields.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The kernel to boot.
    pub kernel: Kernel,
    /// Memory, as QEMU takes it: `4G`.
    pub memory: String,
    /// Virtual processors.
    pub cpus: u32,
    /// Images, in order.
    pub disks: Vec<Disk>,
    /// More words for the kernel's command line.
    pub append: String,
    /// More arguments for QEMU.
    pub qemu_arguments: Vec<String>,
    /// One instruction is one nanosecond and one thread emulates all: repeatable, slower.
    pub exact: bool,
    /// Writable in the guest, at the same path.
    pub share: PathBuf,
    /// Where the command runs.
    pub directory: PathBuf,
    /// The command's environment, besides `SHARE`, `CHECKOUT` and what a login has.
    pub environment: Vec<(String, String)>,
    /// Files that the guest copies to its memory before the command begins.
    pub nearby: BTreeSet<PathBuf>,
}

impl Machine {
    /// 4 GiB, two processors, no disk, the shared directory target/guest/share.
    pub fn new(kernel: Kernel) -> Result<Self> {
        let checkout = checkout()?;
        Ok(Self {
            kernel,
            memory: "4G".into(),
            cpus: 2,
            disks: Vec::new(),
            append: String::new(),
            qemu_arguments: Vec::new(),
            exact: false,
            share: checkout.join("target/guest/share"),
            directory: checkout,
            environment: Vec::new(),
            nearby: BTreeSet::new(),
        })
    }

    /// Boots and runs `command`, a shell script. The guest switches itself off when it ends.
    ///
    /// The guest dies with the thread that started it.
    pub fn boot(&self, command: &str) -> Result<Guest> {
        let run = self.prepare(command)?;
        let mut qemu = self.qemu(&run)?;
        let child = qemu.spawn().context("setpriv (package util-linux)")?;
        Ok(Guest { child, run, started: Instant::now() })
    }

    /// Fills a new run directory.
    fn prepare(&self, command: &str) -> Result<PathBuf> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let checkout = checkout()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let run = folder_of_this_process(&number.to_string())?;
        fs::create_dir_all(&self.share)?;
        for path in [&run, &self.share] {
            let text = path.to_string_lossy();
            // The kernel splits its command line at spaces, QEMU its options at commas.
            ensure!(!text.contains([' ', ',', '\n']), "the guest cannot take this path: {text:?}");
        }

        let modules = self.kernel.modules().display().to_string();
        let mut environment = String::new();
        let own = [
            ("RUN", run.display().to_string()),
            ("KERNEL", self.kernel.version.clone()),
            ("MODULES", modules),
            ("SHARE", self.share.display().to_string()),
            ("CHECKOUT", checkout.display().to_string()),
            ("DIRECTORY", self.directory.display().to_string()),
        ];
        let own = own.iter().map(|(name, value)| (*name, value));
        let given = self.environment.iter().map(|(name, value)| (name.as_str(), value));
        for (name, value) in own.chain(given) {
            writeln!(environment, "export {name}={}", shell_quoted(value))?;
        }
        fs::write(run.join("environment.sh"), environment)?;
        let nearby: Vec<String> =
            self.nearby.iter().map(|path| format!("{}\n", path.display())).collect();
        fs::write(run.join("nearby"), nearby.concat())?;
        fs::write(run.join("boot.sh"), include_str!("boot.sh"))?;
        fs::write(run.join("command.sh"), command)?;
        initramfs::write(&self.kernel, include_str!("init.sh"), &run.join("initramfs"))?;
        Ok(run)
    }

    fn qemu(&self, run: &Path) -> Result<Command> {
        // Figures of exact guests are of an emulator, a processor and a kernel that stay the same.
        let (emulator, cpu, hardening, notified, ports) = if self.exact {
            (Emulator::installed(), "max", "", "", "")
        } else {
            (Emulator::newest()?, QUICK_PROCESSOR, WITHOUT_HARDENING, NOTIFIED, SERIAL_PORTS)
        };
        // setpriv makes the guest die with us however we end; QEMU 7 has no option for that.
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL"])
            .args(&emulator.command)
            .args(["-nodefaults", "-no-user-config", "-machine", "q35", "-cpu", cpu])
            .args(["-display", "none", "-no-reboot", "-m", &self.memory])
            .arg("-smp")
            .arg(self.cpus.to_string());
        if self.exact {
            qemu.args(["-accel", "tcg,thread=single,tb-size=512"]);
            qemu.args(["-icount", "shift=0,sleep=off"]);
        } else {
            qemu.args(["-accel", "tcg,thread=multi,tb-size=512"]);
        }
        qemu.arg("-kernel").arg(self.kernel.image()).arg("-initrd").arg(run.join("initramfs"));
        qemu.arg("-serial").arg(format!("file:{}", run.join("console.log").display()));
        // tsc=reliable, no_timer_check: the kernel would distrust an emulated counter, and the timer of a
        // machine that is busy; the watchdogs' times: a processor that is not run for a while is no bug; panic=-1 with -no-reboot: a panic ends QEMU at once.
        qemu.arg("-append").arg(format!(
            "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check watchdog_thresh=60 \
             workqueue.watchdog_thresh=120 rcupdate.rcu_cpu_stall_timeout=120 {hardening} nvlane.run={} {}",
            run.display(),
            self.append
        ));
        let mut export = |tag: &str, path: &Path, options: &str| {
            qemu.arg("-fsdev").arg(format!(
                "local,id={tag},path={},security_model=none{options}",
                path.display()
            ));
            qemu.arg("-device").arg(format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}{notified}"));
        };
        export("root", Path::new("/"), ",readonly=on,multidevs=remap");
        export("run", run, "");
        export("share", &self.share, "");
        qemu.args(["-device", &format!("virtio-serial-pci{ports}{notified}")]);
        for (name, descriptor) in [("stdout", 1), ("stderr", 2)] {
            // Both are pipes to us; without append QEMU would truncate what is behind them.
            let path = format!("/dev/fd/{descriptor}");
            qemu.arg("-chardev").arg(format!("file,id={name},path={path},append=on"));
            qemu.arg("-device").arg(format!("virtserialport,chardev={name},name={name}"));
        }
        for (index, disk) in self.disks.iter().enumerate() {
            attach(&mut qemu, index, disk, notified)?;
        }
        qemu.args(&self.qemu_arguments);
        qemu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(qemu)
    }
}

/// Of a process whose `/proc/PID/stat` says this: utime and stime, in hundredths of a second.
fn processor_time(stat: &str) -> Option<Duration> {
    // Its name may have spaces in it.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: Vec<u64> =
        fields.split_whitespace().skip(11).take(2).filter_map(|it| it.parse().ok()).collect();
    (ticks.len() == 2).then(|| Duration::from_millis(ticks.iter().sum::<u64>() * 10))
}

fn attach(qemu: &mut Command, index: usize, disk: &Disk, notified: &str) -> Result<()> {
    let image = disk.image.display().to_string();
    if let Some(bytes) = disk.bytes
        && !disk.image.exists()
    {
        let file = fs::File::create(&disk.image).with_context(|| image.clone())?;
        file.set_len(bytes)?;
    }
    ensure!(disk.image.exists(), "{image}: no such image; give it a size to have it created");
    ensure!(!image.contains(','), "QEMU cannot take a comma in the name of an image: {image:?}");
    // "unsafe" drops the guest's flushes: they protect against a crash of this machine, which ends
    // the test as well. What the guest wrote survives the guest.
    qemu.arg("-drive")
        .arg(format!("file={image},if=none,id=disk{index},format=raw,cache=unsafe,discard=unmap"));
    match disk.bus {
        Bus::Virtio => {
            let disk = format!("virtio-blk-pci,drive=disk{index},serial=disk{index}{notified}");
            qemu.arg("-device").arg(disk);
        }
        Bus::Nvme => {
            // A namespace of its own: `-device nvme,drive=` would report no copy limits.
            qemu.arg("-device").arg(format!("nvme,serial=disk{index},id=nvme{index}"));
            qemu.arg("-device").arg(format!("nvme-ns,drive=disk{index},bus=nvme{index}"));
        }
    }
    Ok(())
}

/// Makes a folder below target/guest/run that is of this process alone, which asks for each name once.
pub fn folder_of_this_process(name: &str) -> Result<PathBuf> {
    let runs = checkout()?.join("target/guest/run");
    fs::create_dir_all(&runs)?;
    sweep(&runs)?;
    let folder = runs.join(format!("{}-{name}", std::process::id()));
    // An earlier process may have had the same number.
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| folder.display().to_string());
        }
        _ => {}
    }
    fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Removes images of disks of processes that ended, and folders of those that ended long ago.
fn sweep(runs: &Path) -> Result<()> {
    for entry in fs::read_dir(runs)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.split('-').next().unwrap_or_default().to_owned();
        // Whoever else sweeps may be faster.
        let Ok(metadata) = entry.metadata() else { continue };
        let age = SystemTime::now().duration_since(metadata.modified()?);
        if Path::new("/proc").join(process).exists() {
            continue;
        }
        if age.is_ok_and(|age| age > KEPT) {
            let _ = fs::remove_dir_all(entry.path());
            continue;
        }
        for file in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            if file.path().extension().is_some_and(|extension| extension == "img") {
                let _ = fs::remove_file(file.path());
            }
        }
    }
    Ok(())
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The command ended with this status.
    Exited(i32),
    /// The time was up and the guest was killed.
    TimedOut,
    /// The guest ended without a status: a panic, or QEMU failed.
    Died,
}

/// A running guest. Dropped, it is killed.
#[derive(Debug)]
pub struct Guest {
    child: Child,
    run: PathBuf,
    started: Instant,
}

impl Guest {
    /// The command's stdout and stderr. To be taken once, and read to their ends.
    pub fn output(&mut self) -> (ChildStdout, ChildStderr) {
        let stdout = self.child.stdout.take().expect("output is taken once");
        let stderr = self.child.stderr.take().expect("output is taken once");
        (stdout, stderr)
    }

    /// Waits until the guest is off, or kills it once it has run for `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<Ending> {
        loop {
            if self.child.try_wait()?.is_some() {
                return Ok(match fs::read_to_string(self.run.join("status")) {
                    Ok(status) => Ending::Exited(status.trim().parse()?),
                    Err(_) => Ending::Died,
                });
            }
            if self.started.elapsed() > limit {
                self.cut_power()?;
                return Ok(Ending::TimedOut);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether it is off, or about to switch itself off: its command has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        let has_status = ["status.new", "status"].iter().any(|name| self.run.join(name).exists());
        Ok(has_status || self.child.try_wait()?.is_some())
    }

    /// Pulls the plug: nothing in the guest hears of it.
    pub fn cut_power(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// What it has used of this machine's processors so far; none when it is gone.
    pub fn processor_time(&self) -> Option<Duration> {
        let said = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        processor_time(&said)
    }

    /// Where console.log, dmesg.log and the scripts of this run are.
    pub fn run_directory(&self) -> &Path {
        &self.run
    }

    /// Forgets the logs of a run that needs no explanation.
    pub fn discard_logs(&self) -> Result<()> {
        fs::remove_dir_all(&self.run).with_context(|| self.run.display().to_string())
    }

    /// All that the guest's kernel has said.
    pub fn console(&self) -> String {
        let console = fs::read(self.run.join("console.log")).unwrap_or_default();
        String::from_utf8_lossy(&console).into_owned()
    }

    /// The last lines that the kernel printed.
    pub fn console_tail(&self) -> String {
        let console = self.console();
        let lines: Vec<&str> = console.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Fails only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("machine-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn processor_time_is_the_users_and_the_systems() {
        let of = "42 (qemu (x) 1) S 1 42 42 0 -1 4194304 9 8 7 6 150 25 3 4 20 0 5 0 99 1 2";
        assert_eq!(processor_time(of), Some(Duration::from_millis(1750)));
        assert_eq!(processor_time("42 (qemu) S 1"), None);
        let own = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(processor_time(&own).unwrap() < Duration::from_secs(3600), "{own}");
    }

    #[test]
    fn a_guest_has_ended_once_its_command_has() {
        let run = folder("ended");
        let sleeps = |seconds: &str| Command::new("sleep").arg(seconds).spawn().unwrap();
        let mut guest = Guest { child: sleeps("60"), run: run.clone(), started: Instant::now() };
        assert!(!guest.has_ended().unwrap());
        for name in ["status.new", "status"] {
            fs::write(run.join(name), "1\n").unwrap();
            assert!(guest.has_ended().unwrap(), "{name}");
            fs::remove_file(run.join(name)).unwrap();
        }
        guest.cut_power().unwrap();
        assert!(guest.has_ended().unwrap(), "it is off");
        fs::remove_dir_all(&run).unwrap();
    }

    #[test]
    fn what_is_left_of_a_process_that_ended_is_its_logs() {
        let runs = folder("runs");
        // Numbers of processes end below that.
        let (gone, lives) =
            (runs.join("4194305-a"), runs.join(format!("{}-a", std::process::id())));
        for folder in [&gone, &lives] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("scratch.img"), "").unwrap();
            fs::write(folder.join("console.log"), "").unwrap();
        }
        sweep(&runs).unwrap();
        let has = |folder: &Path| ["scratch.img", "console.log"].map(|it| folder.join(it).exists());
        assert_eq!((has(&gone), has(&lives)), ([false, true], [true, true]));
        fs::remove_dir_all(&runs).unwrap();
    }

    #[test]
    fn a_folder_of_this_process_has_nothing_of_an_earlier_one() {
        let runs = checkout().unwrap().join("target/guest/run");
        let left = runs.join(format!("{}-a-test", std::process::id()));
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("status"), "0\n").unwrap();
        let folder = folder_of_this_process("a-test").unwrap();
        assert_eq!((&folder, folder.join("status").exists()), (&left, false));
        fs::remove_dir_all(&folder).unwrap();
    }
}
