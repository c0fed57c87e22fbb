//! A block device of the kernel's own that takes no time and has a poll queue: null_blk, through configfs.

use anyhow::{Context, bail};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const NULLB: &str = "/sys/kernel/config/nullb";
const MIB: &str = "256";
/// How long the device may take to appear.
const APPEARS: Duration = Duration::from_secs(10);

/// The device; taken down when dropped.
pub struct Stage {
    folder: PathBuf,
}

impl Stage {
    /// Sets it up, where that [`is_possible`]. Requests that nobody polls for complete in a soft interrupt, as is
    /// null_blk's way.
    pub fn new() -> anyhow::Result<Stage> {
        let folder = Path::new(NULLB).join(format!("nvlane-bench-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let stage = Stage { folder };
        for (file, value) in [
            ("size", MIB),
            ("blocksize", "512"),
            ("queue_mode", "2"),
            ("submit_queues", "1"),
            ("poll_queues", "1"),
            ("irqmode", "1"),
            ("power", "1"),
        ] {
            let path = stage.folder.join(file);
            fs::write(&path, value)
                .with_context(|| format!("{value} cannot be written to {}", path.display()))?;
        }
        Ok(stage)
    }

    /// Its path, once it is there: named by its folder, by its number on older kernels.
    pub fn device(&self) -> anyhow::Result<PathBuf> {
        let index = fs::read_to_string(self.folder.join("index"))?;
        let name = self.folder.file_name().context("a folder has a name")?;
        let names =
            [Path::new("/dev").join(name), PathBuf::from(format!("/dev/nullb{}", index.trim()))];
        let start = Instant::now();
        loop {
            if let Some(path) = names.iter().find(|path| is_block(path)) {
                return Ok(path.clone());
            }
            if start.elapsed() > APPEARS {
                bail!("null_blk's device does not appear");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Nothing is to be done about what stays.
        let _ = fs::write(self.folder.join("power"), "0");
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Whether this machine's kernel has null_blk, for us; if not, why.
pub fn is_possible() -> Result<(), String> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err("only root can set up null_blk".into());
    }
    let output = Command::new("modprobe").args(["null_blk", "nr_devices=0"]).output();
    let output = output.map_err(|error| format!("modprobe cannot be run: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("no null_blk here: {}", said.trim()));
    }
    Ok(())
}

/// Whether it is a block device.
pub fn is_block(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Whether the device that `path` is, or is on, has poll queues (`queue/io_poll`). Without them older kernels take
/// polled requests all the same, and complete them by interrupts.
pub fn has_poll_queues(path: &Path) -> bool {
    let Ok(found) = fs::metadata(path) else { return false };
    let device = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
    let known = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    // A partition has its device above it.
    ["queue/io_poll", "../queue/io_poll"].iter().any(|file| {
        let text = fs::read_to_string(Path::new(&known).join(file));
        text.is_ok_and(|text| text.trim() == "1")
    })
}
