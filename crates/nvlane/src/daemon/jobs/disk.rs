//! Which disk it is. Names like /dev/sda are given anew at each start of the machine.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where the kernel tells of its devices.
const SYS: &str = "/sys";

/// What a disk tells of itself, below its directory in /sys: the first that is there counts.
const NAMES: [&str; 5] = ["wwid", "device/wwid", "serial", "device/cid", "dm/uuid"];

/// What tells the disk of a device node from all others, also after a restart of the machine, if there is anything.
pub fn name(node: &Path) -> Option<String> {
    let node = fs::canonicalize(node).ok()?;
    let found = fs::metadata(&node).ok()?;
    let directory = if found.file_type().is_block_device() {
        let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
        PathBuf::from(format!("{SYS}/dev/block/{major}:{minor}"))
    } else {
        // The character device of an NVMe namespace, ngXnY, has a block device beside it.
        let generic = node.file_name()?.to_str()?.strip_prefix("ng")?;
        PathBuf::from(format!("{SYS}/class/block/nvme{generic}"))
    };
    name_at(&directory)
}

/// Of what is a device node, block device or not.
pub fn is_node(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|it| it.file_type().is_block_device() || it.file_type().is_char_device())
}

/// This start of the machine.
pub fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

fn name_at(directory: &Path) -> Option<String> {
    let directory = fs::canonicalize(directory).ok()?;
    let text = |name: &str| {
        let text = fs::read_to_string(directory.join(name)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    // A part of a disk is the same part of the same disk.
    if let Some(number) = text("partition") {
        let disk = name_at(directory.parent()?)?;
        return Some(format!("{disk} partition {number}"));
    }
    let own = NAMES.iter().find_map(|name| Some(format!("{name} {}", text(name)?)));
    // Several loop devices may be on one file.
    let on_file = || Some(format!("{} from {}", text("loop/backing_file")?, text("loop/offset")?));
    own.or_else(on_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_known_by_what_it_tells_and_a_part_by_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("sda");
        fs::create_dir_all(disk.join("sda2")).unwrap();
        fs::create_dir_all(disk.join("device")).unwrap();
        fs::write(disk.join("sda2/partition"), "2\n").unwrap();
        assert_eq!(name_at(&disk), None);
        assert_eq!(name_at(&disk.join("sda2")), None);
        // As virtio's of a disk without one.
        fs::write(disk.join("serial"), "\n").unwrap();
        assert_eq!(name_at(&disk), None);
        fs::write(disk.join("device/wwid"), "naa.5000c500a1b2c3d4\n").unwrap();
        assert_eq!(name_at(&disk).unwrap(), "device/wwid naa.5000c500a1b2c3d4");
        let part = name_at(&disk.join("sda2")).unwrap();
        assert_eq!(part, "device/wwid naa.5000c500a1b2c3d4 partition 2");
        // As /sys/dev/block has them.
        std::os::unix::fs::symlink(disk.join("sda2"), folder.path().join("8:2")).unwrap();
        assert_eq!(name_at(&folder.path().join("8:2")), Some(part));
    }

    #[test]
    fn loop_devices_on_one_file_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let named = |name: &str, offset: &str| {
            let disk = folder.path().join(name);
            fs::create_dir_all(disk.join("loop")).unwrap();
            fs::write(disk.join("loop/backing_file"), "/srv/disk.img\n").unwrap();
            fs::write(disk.join("loop/offset"), offset).unwrap();
            name_at(&disk).unwrap()
        };
        let (first, second) = (named("loop0", "0\n"), named("loop1", "1048576\n"));
        assert_eq!(first, "/srv/disk.img from 0");
        assert_ne!(first, second);
        assert_eq!(named("loop7", "1048576\n"), second);
    }

    #[test]
    fn what_is_no_node_has_no_name() {
        assert!(is_node(Path::new("/dev/null")) && !is_node(Path::new("/etc/passwd")));
        assert_eq!(name(Path::new("/dev/null")), None);
        assert_eq!(name(Path::new("/etc/passwd")), None);
        assert_eq!(boot().len(), 36);
    }
}
