//! The zones of an NVMe device, as the block device beside it has them in /sys.

use ::ublk::Zones;
use ::ublk::driver::SECTOR_SHIFT;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use volume::Kind;

/// The zones of a volume that is one zoned `/dev/ngXnY`; none of any other.
pub fn of(volume: &str) -> Option<Zones> {
    let Ok(volume::Uri { kind: Kind::Device(device), .. }) = volume.parse() else { return None };
    of_queue(&queue_of(&device.path)?)
}

/// Where the kernel tells of the block device beside it.
fn queue_of(device: &Path) -> Option<PathBuf> {
    let metadata = fs::metadata(device).ok().filter(|it| it.file_type().is_char_device())?;
    let number = metadata.rdev();
    let link = format!("/sys/dev/char/{}:{}", libc::major(number), libc::minor(number));
    let directory = fs::canonicalize(link).ok()?;
    let rest = directory.file_name()?.to_str()?.strip_prefix("ng")?;
    Some(directory.parent()?.join(format!("nvme{rest}/queue")))
}

fn of_queue(queue: &Path) -> Option<Zones> {
    let text = |name: &str| fs::read_to_string(queue.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    if text("zoned")?.trim() == "none" {
        return None;
    }
    let most = |name: &str| number(name).and_then(|most| u32::try_from(most).ok());
    let append = number("zone_append_max_bytes")? >> SECTOR_SHIFT;
    Some(Zones {
        sectors: most("chunk_sectors").filter(|sectors| sectors.is_power_of_two())?,
        open_max: most("max_open_zones").unwrap_or(0),
        active_max: most("max_active_zones").unwrap_or(0),
        append_sectors_max: u32::try_from(append).unwrap_or(u32::MAX).max(1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_those_that_the_kernel_tells_of() {
        let queue = tempfile::tempdir().unwrap();
        let write = |name: &str, value: &str| {
            fs::write(queue.path().join(name), format!("{value}\n")).unwrap();
        };
        assert_eq!(of_queue(queue.path()), None);
        for (name, value) in [
            ("zoned", "host-managed"),
            ("chunk_sectors", "8192"),
            ("max_open_zones", "4"),
            ("max_active_zones", "0"),
            ("zone_append_max_bytes", "524288"),
        ] {
            write(name, value);
        }
        let zones = Zones { sectors: 8192, open_max: 4, active_max: 0, append_sectors_max: 1024 };
        assert_eq!(of_queue(queue.path()), Some(zones));
        write("zoned", "none");
        assert_eq!(of_queue(queue.path()), None);
        assert_eq!(of("mem:16M"), None);
    }
}
