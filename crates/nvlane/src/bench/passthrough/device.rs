//! The device that is measured, by its character and its block side.

use anyhow::{Context, bail, ensure};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// `_IO('N', 0x40)`: the namespace identifier.
const NVME_IOCTL_ID: libc::c_ulong = 0x4e40;

/// An NVMe namespace.
pub struct Device {
    /// `/dev/ng0n1`
    pub path: PathBuf,
    /// The character device.
    pub commands: File,
    /// The block device, opened past the page cache.
    pub blocks: File,
    /// Namespace identifier.
    pub nsid: u32,
    /// Logical block size as a power of two.
    pub block_shift: u32,
    /// Pieces of [`super::BYTES`] that are read.
    pub places: u64,
    /// Completions can be polled for.
    pub polls: bool,
}

impl Device {
    /// Opens `/dev/ngXnY` and its block device.
    pub fn open(path: &Path) -> anyhow::Result<Device> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(rest) = name.strip_prefix("ng") else {
            bail!("{} is no NVMe character device; give /dev/ngXnY", path.display());
        };
        let block_path = path.with_file_name(format!("nvme{rest}"));
        let open = |path: &Path, flags| {
            let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
            file.with_context(|| format!("cannot open {}", path.display()))
        };
        let commands = open(path, 0)?;
        ensure!(commands.metadata()?.file_type().is_char_device(), "{name} is no device");
        let blocks = open(&block_path, libc::O_DIRECT)?;
        // SAFETY: a descriptor that is open; the call takes no argument.
        let nsid = unsafe { libc::ioctl(commands.as_raw_fd(), NVME_IOCTL_ID) };
        ensure!(nsid > 0, "{name} has no namespace: {}", std::io::Error::last_os_error());
        let queue = |what: &str| {
            let path = format!("/sys/class/block/nvme{rest}/queue/{what}");
            let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
            text.trim().parse::<u64>().context(path)
        };
        let sectors = std::fs::read_to_string(format!("/sys/class/block/nvme{rest}/size"))?;
        let bytes = sectors.trim().parse::<u64>()? * 512;
        let places = (bytes / u64::from(super::BYTES)).min(1 << 20);
        ensure!(places > 0, "{name} is too small");
        let block_shift = queue("logical_block_size")?.ilog2();
        ensure!(1 << block_shift <= super::BYTES, "blocks of {name} are larger than 4 KiB");
        let polls = queue("io_poll").is_ok_and(|polls| polls == 1);
        Ok(Device {
            path: path.to_owned(),
            commands,
            blocks,
            nsid: nsid as u32,
            block_shift,
            places,
            polls,
        })
    }

    /// First block of a place, and how many blocks it has.
    pub fn blocks_of(&self, place: u64) -> (u64, u32) {
        let per_place = super::BYTES >> self.block_shift;
        (place * u64::from(per_place), per_place)
    }
}
