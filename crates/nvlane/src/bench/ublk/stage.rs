//! What the devices stand on: the driver, and two null block devices, which cost nothing and forget everything.

use anyhow::{Context, bail};
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const NULLB: &str = "/sys/kernel/config/nullb";

/// Size of each device, in MiB.
const MIB: &str = "1024";

/// Most sectors of a request: 1 MiB, as much as servers take. By default it is 255, and a request of 512 KiB would be
/// refused once, given to another thread and cut into five there, whoever serves it.
const SECTORS_MAX: &str = "2048";

/// Two null block devices, taken away when dropped.
pub struct Stage {
    made: Vec<PathBuf>,
    devices: Vec<PathBuf>,
    /// By which name the first is reached over a network.
    remote: RefCell<String>,
}

impl Stage {
    /// Loads what is needed and makes the devices.
    pub fn new() -> anyhow::Result<Stage> {
        modprobe(&["ublk_drv"])?;
        modprobe(&["null_blk", "nr_devices=0"])?;
        if !Path::new(NULLB).exists() {
            let mounted = Command::new("mount")
                .args(["-t", "configfs", "none", "/sys/kernel/config"])
                .status();
            mounted.context("configfs cannot be mounted")?;
        }
        let mut stage = Stage { made: Vec::new(), devices: Vec::new(), remote: RefCell::default() };
        for letter in ["a", "b"] {
            stage.make(&format!("nvlane-bench-{}-{letter}", std::process::id()))?;
        }
        Ok(stage)
    }

    /// The first of them.
    pub fn one(&self) -> &Path {
        &self.devices[0]
    }

    /// The same by a target, once there is one.
    pub fn remote(&self) -> String {
        self.remote.borrow().clone()
    }

    /// Where that is.
    pub fn set_remote(&self, uri: &str) {
        self.remote.replace(uri.to_owned());
    }

    /// Both, as the backends of a volume.
    pub fn both(&self) -> String {
        format!("{},{}", self.devices[0].display(), self.devices[1].display())
    }

    fn make(&mut self, name: &str) -> anyhow::Result<()> {
        let null = Path::new(NULLB).join(name);
        fs::create_dir(&null).with_context(|| null.display().to_string())?;
        self.made.push(null.clone());
        // Old kernels have no such file.
        let sectors_max = null.join("max_sectors");
        if sectors_max.exists() {
            fs::write(&sectors_max, SECTORS_MAX)
                .with_context(|| sectors_max.display().to_string())?;
        }
        for (file, value) in [
            ("size", MIB),
            ("blocksize", "512"),
            ("memory_backed", "0"),
            ("queue_mode", "2"),
            ("hw_queue_depth", "256"),
            // Completed by whoever submits.
            ("irqmode", "0"),
            ("power", "1"),
        ] {
            let path = null.join(file);
            fs::write(&path, value).with_context(|| path.display().to_string())?;
        }
        // Devices are named by their directory, by their number on older kernels.
        let named = Path::new("/dev").join(name);
        let index = fs::read_to_string(null.join("index"))?;
        let numbered = PathBuf::from(format!("/dev/nullb{}", index.trim()));
        self.devices.push(if named.exists() { named } else { numbered });
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for null in &self.made {
            // What cannot be taken away stays until the machine restarts.
            let _ = fs::write(null.join("power"), "0");
            let _ = fs::remove_dir(null);
        }
    }
}

/// Whether this machine's kernel has ublk, for us; if not, why.
pub fn has_ublk() -> Result<(), String> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err("only root can make ublk devices".into());
    }
    match modprobe(&["ublk_drv"]) {
        Ok(()) => Ok(()),
        Err(_) if Path::new(::ublk::CONTROL_PATH).exists() => Ok(()),
        Err(_) => Err("this machine's kernel has no ublk".into()),
    }
}

fn modprobe(words: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("modprobe").args(words).output();
    let output = output.context("modprobe cannot be run (package kmod)")?;
    if !output.status.success() {
        bail!("modprobe {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
