//! nvme-loop over null_blk: an NVMe namespace that the kernel makes of nothing, through configfs.

use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const NULLB: &str = "/sys/kernel/config/nullb";
const NVMET: &str = "/sys/kernel/config/nvmet";
/// How long a device may take to appear.
const APPEARS: Duration = Duration::from_secs(20);

/// Whether this machine's kernel makes such devices, for us; if not, why.
pub fn is_possible() -> Result<(), String> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err("only root can set up NVMe devices".into());
    }
    for module in ["null_blk nr_devices=0", "nvme-loop", "nvmet"] {
        modprobe(module).map_err(|error| format!("no NVMe device can be made here: {error:#}"))?;
    }
    Ok(())
}

/// The device with all that it stands on; taken down when dropped.
pub struct Stage {
    name: String,
    port: PathBuf,
}

impl Stage {
    /// Sets it up, where that [`is_possible`]; with a `delay`, each command takes so long.
    pub fn new(delay: Duration) -> anyhow::Result<Stage> {
        if !Path::new(NULLB).exists() && !Path::new(NVMET).exists() {
            let _ = Command::new("mount")
                .args(["-t", "configfs", "none", "/sys/kernel/config"])
                .status();
        }
        let name = format!("nvlane-bench-{}", std::process::id());
        let port =
            Path::new(NVMET).join("ports").join((std::process::id() % 60_000 + 1).to_string());
        let stage = Stage { name, port };
        stage.make(delay)?;
        Ok(stage)
    }

    /// `/dev/ngXnY`, once it is there.
    pub fn device(&self) -> anyhow::Result<PathBuf> {
        let start = Instant::now();
        loop {
            for entry in fs::read_dir("/sys/class/nvme")?.flatten() {
                let nqn = fs::read_to_string(entry.path().join("subsysnqn")).unwrap_or_default();
                if nqn.trim() != self.name {
                    continue;
                }
                let namespaces =
                    fs::read_dir(entry.path())?.flatten().map(|entry| entry.file_name());
                let name = namespaces
                    .filter_map(|name| name.into_string().ok())
                    .find_map(|name| name.strip_prefix("ng").map(str::to_owned));
                if let Some(rest) = name.or_else(|| self.head()) {
                    let path = PathBuf::from(format!("/dev/ng{rest}"));
                    if path.exists() && Path::new(&format!("/dev/nvme{rest}")).exists() {
                        return Ok(path);
                    }
                }
            }
            if start.elapsed() > APPEARS {
                bail!("the loop device does not appear");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The head that the kernel's multipath puts above the controller: `0n1`.
    fn head(&self) -> Option<String> {
        let subsystems = fs::read_dir("/sys/class/nvme-subsystem").ok()?.flatten();
        let ours = subsystems.map(|entry| entry.path()).find(|path| {
            fs::read_to_string(path.join("subsysnqn")).is_ok_and(|nqn| nqn.trim() == self.name)
        })?;
        let names = fs::read_dir(ours).ok()?.flatten();
        names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .find_map(|name| name.strip_prefix("ng").map(str::to_owned))
    }

    fn make(&self, delay: Duration) -> anyhow::Result<()> {
        let null = Path::new(NULLB).join(&self.name);
        fs::create_dir(&null).with_context(|| null.display().to_string())?;
        let irqmode = if delay.is_zero() { "0" } else { "2" };
        for (file, value) in [
            ("size", "1024"),
            ("blocksize", "512"),
            ("memory_backed", "0"),
            ("queue_mode", "2"),
            ("hw_queue_depth", "256"),
            ("irqmode", irqmode),
        ] {
            write(&null.join(file), value)?;
        }
        if !delay.is_zero() {
            write(&null.join("completion_nsec"), &delay.as_nanos().to_string())?;
        }
        write(&null.join("power"), "1")?;
        let index = fs::read_to_string(null.join("index"))?;
        let block = self.block(index.trim());
        let subsystem = Path::new(NVMET).join("subsystems").join(&self.name);
        fs::create_dir(&subsystem).with_context(|| subsystem.display().to_string())?;
        write(&subsystem.join("attr_allow_any_host"), "1")?;
        let namespace = subsystem.join("namespaces/1");
        fs::create_dir(&namespace)?;
        write(&namespace.join("device_path"), &block)?;
        write(&namespace.join("enable"), "1")?;
        fs::create_dir(&self.port)?;
        write(&self.port.join("addr_trtype"), "loop")?;
        std::os::unix::fs::symlink(&subsystem, self.port.join("subsystems").join(&self.name))?;
        let connect = format!("transport=loop,nqn={}", self.name);
        write(Path::new("/dev/nvme-fabrics"), &connect)
    }

    /// Devices are named by their directory, by their number on older kernels.
    fn block(&self, index: &str) -> String {
        let named = format!("/dev/{}", self.name);
        if Path::new(&named).exists() { named } else { format!("/dev/nullb{index}") }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for entry in fs::read_dir("/sys/class/nvme").into_iter().flatten().flatten() {
            let nqn = fs::read_to_string(entry.path().join("subsysnqn")).unwrap_or_default();
            if nqn.trim() == self.name {
                let _ = fs::write(entry.path().join("delete_controller"), "1");
            }
        }
        let subsystem = Path::new(NVMET).join("subsystems").join(&self.name);
        let null = Path::new(NULLB).join(&self.name);
        let _ = fs::remove_file(self.port.join("subsystems").join(&self.name));
        let _ = fs::remove_dir(&self.port);
        let _ = fs::write(subsystem.join("namespaces/1/enable"), "0");
        let _ = fs::remove_dir(subsystem.join("namespaces/1"));
        let _ = fs::remove_dir(&subsystem);
        let _ = fs::write(null.join("power"), "0");
        let _ = fs::remove_dir(&null);
    }
}

fn modprobe(module: &str) -> anyhow::Result<()> {
    let output = Command::new("modprobe").args(module.split(' ')).output();
    let output = output.context("modprobe cannot be run (package kmod)")?;
    if !output.status.success() {
        bail!("modprobe {module}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn write(path: &Path, value: &str) -> anyhow::Result<()> {
    fs::write(path, value)
        .with_context(|| format!("{value} cannot be written to {}", path.display()))
}
