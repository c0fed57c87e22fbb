//! What the kernel tells of an NVMe character device below /sys.
//!
//! ```text
//!   /sys/dev/char/MAJOR:MINOR -> .../nvme/nvme0/ng0n1                     of one controller
//!                             -> .../nvme-subsystem/nvme-subsys0/ng0n1    head of several
//!   beside it: nvme0n1/{uuid,ro,queue/...}, and for a head the controllers nvmeX
//! ```

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where the device is, and what is beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The directory that the device and its block device are in: a controller or a subsystem.
    parent: PathBuf,
    /// `ng0n1`.
    name: String,
}

/// What the block layer says of the namespace's queue; nothing if there is no block device, as for
/// command sets that the kernel does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueLimits {
    /// Largest transfer in bytes.
    pub(super) bytes_max: Option<u64>,
    /// Pieces of memory that are not beside one another, in one transfer.
    pub(super) segments_max: Option<u64>,
    /// There are poll queues.
    pub(super) polls: Option<bool>,
    /// It is a zoned namespace.
    pub(super) zoned: bool,
    /// Writes are refused.
    pub(super) read_only: bool,
}

impl Place {
    /// Finds the device whose node has these metadata; none if it is no NVMe namespace's.
    pub(super) fn of(metadata: &fs::Metadata) -> Option<Place> {
        let device = metadata.rdev();
        let link = format!("/sys/dev/char/{}:{}", libc::major(device), libc::minor(device));
        let directory = fs::canonicalize(link).ok()?;
        let name = directory.file_name()?.to_str()?.to_owned();
        let parent = directory.parent()?.to_owned();
        name.starts_with("ng").then_some(Place { parent, name })
    }

    /// Finds the character device of the namespace of which this is the block device; none if it is
    /// something else, or but a part of one.
    pub(super) fn beside(metadata: &fs::Metadata) -> Option<Place> {
        let is_block = metadata.file_type().is_block_device();
        let device = metadata.rdev();
        let link = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
        let directory = is_block.then(|| fs::canonicalize(link).ok()).flatten()?;
        Place::beside_directory(&directory)
    }

    fn beside_directory(block: &Path) -> Option<Place> {
        let parent = block.parent()?.to_owned();
        let name = format!("ng{}", file_name(block)?.strip_prefix("nvme")?);
        let place = Place { parent, name };
        place.exists().then_some(place)
    }

    /// One in a directory that looks like the kernel's.
    #[cfg(test)]
    pub(super) fn at(parent: PathBuf) -> Place {
        Place { parent, name: "ng0n1".into() }
    }

    /// The directory that it is in.
    pub(super) fn parent(&self) -> &Path {
        &self.parent
    }

    /// The device's own name: `ng0n1`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is still there.
    pub(super) fn exists(&self) -> bool {
        self.parent.join(&self.name).exists()
    }

    /// Whether it stands for several controllers' ways to the namespace.
    pub(super) fn is_head(&self) -> bool {
        file_name(&self.parent).is_some_and(|name| name.starts_with("nvme-subsys"))
    }

    /// The controllers that lead to it, by name (`nvme0`), each with its state (`live`).
    pub(super) fn controllers(&self) -> Vec<(String, String)> {
        let state = |path: &Path| read(&path.join("state")).unwrap_or_default();
        if !self.is_head() {
            let name = file_name(&self.parent).unwrap_or_default();
            return vec![(name.to_owned(), state(&self.parent))];
        }
        let entries = fs::read_dir(&self.parent).into_iter().flatten().flatten();
        let mut found: Vec<_> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let digits = name.strip_prefix("nvme")?;
                let named = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                named.then(|| (name, state(&entry.path())))
            })
            .collect();
        found.sort();
        found
    }

    /// Whether any controller can be given commands now: it is live, and the namespace accessible by it.
    pub(super) fn has_path(&self) -> bool {
        self.controllers().iter().any(|(name, state)| state == "live" && self.is_accessible(name))
    }

    /// Whether a controller says nothing else of the namespace (ANA). Its way there is a block device of its own, below
    /// it: of ng3n1 by nvme10 that is nvme3c10n1.
    fn is_accessible(&self, controller: &str) -> bool {
        let way = || {
            let (subsystem, head) = self.name.strip_prefix("ng")?.split_once('n')?;
            Some(format!("nvme{subsystem}c{}n{head}", controller.strip_prefix("nvme")?))
        };
        let state = |way: String| read(&self.parent.join(controller).join(way).join("ana_state"));
        way().and_then(state).is_none_or(|it| matches!(&*it, "optimized" | "non-optimized"))
    }

    /// The controllers, each with how often it was reset, where the kernel counts that.
    pub(super) fn resets(&self) -> Vec<(String, Option<u64>)> {
        let parent = |name: &str| match self.is_head() {
            true => self.parent.join(name),
            false => self.parent.clone(),
        };
        let count = |name: &str| read(&parent(name).join("diag/reset_count"))?.parse().ok();
        let names = self.controllers().into_iter().map(|(name, _)| name);
        names.map(|name| (count(&name), name)).map(|(count, name)| (name, count)).collect()
    }

    /// Whether the block layer has no cache to flush.
    pub(super) fn writes_through(&self) -> bool {
        let cache = self.block().and_then(|block| read(&block.join("queue/write_cache")));
        cache.is_some_and(|cache| cache == "write through")
    }

    /// The namespace's UUID, if it has one.
    pub(super) fn uuid(&self) -> Option<[u8; 16]> {
        crate::uuid::parse(&read(&self.block()?.join("uuid"))?)
    }

    /// What the block layer says.
    pub(super) fn queue_limits(&self) -> QueueLimits {
        let Some(block) = self.block() else { return QueueLimits::default() };
        let queue = block.join("queue");
        let number = |name: &str| read(&queue.join(name))?.parse::<u64>().ok();
        let zoned = read(&queue.join("zoned"));
        QueueLimits {
            bytes_max: number("max_hw_sectors_kb").map(|kilobytes| kilobytes << 10),
            segments_max: number("max_segments"),
            polls: number("io_poll").map(|polls| polls != 0),
            zoned: zoned.is_some_and(|model| model != "none"),
            read_only: read(&block.join("ro")).is_some_and(|ro| ro == "1"),
        }
    }

    /// Bytes of a block as the block layer has it now.
    pub(super) fn block_bytes(&self) -> Option<u64> {
        read(&self.block()?.join("queue/logical_block_size"))?.parse().ok()
    }

    /// The namespace's block device.
    fn block(&self) -> Option<PathBuf> {
        let path = self.parent.join(format!("nvme{}", self.name.strip_prefix("ng")?));
        path.exists().then_some(path)
    }
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory tree as the kernel makes it.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{content}\n")).unwrap();
        }
        root
    }

    fn place(root: &tempfile::TempDir, parent: &str, name: &str) -> Place {
        Place { parent: root.path().join(parent), name: name.into() }
    }

    #[test]
    fn a_device_of_one_controller() {
        let root = tree(&[
            ("nvme0/state", "live"),
            ("nvme0/ng0n1/dev", "240:0"),
            ("nvme0/nvme0n1/ro", "1"),
            ("nvme0/nvme0n1/uuid", "00112233-4455-6677-8899-aabbccddeeff"),
            ("nvme0/nvme0n1/queue/max_hw_sectors_kb", "512"),
            ("nvme0/nvme0n1/queue/max_segments", "127"),
            ("nvme0/nvme0n1/queue/io_poll", "0"),
            ("nvme0/nvme0n1/queue/zoned", "host-managed"),
            ("nvme0/nvme0n1/queue/logical_block_size", "4096"),
        ]);
        let place = place(&root, "nvme0", "ng0n1");
        assert!(!place.is_head() && place.exists() && place.has_path());
        assert_eq!(place.controllers(), [("nvme0".into(), "live".into())]);
        assert_eq!(place.uuid().map(|uuid| uuid[15]), Some(0xff));
        let expected = QueueLimits {
            bytes_max: Some(512 << 10),
            segments_max: Some(127),
            polls: Some(false),
            zoned: true,
            read_only: true,
        };
        assert_eq!(place.queue_limits(), expected);
        assert_eq!(place.block_bytes(), Some(4096));
    }

    #[test]
    fn a_head_has_the_controllers_of_its_subsystem() {
        let root = tree(&[
            ("nvme-subsys3/nvme10/state", "connecting"),
            ("nvme-subsys3/nvme2/state", "dead"),
            ("nvme-subsys3/nvme3n1/queue/zoned", "none"),
            ("nvme-subsys3/ng3n1/dev", "240:1"),
            ("nvme-subsys3/iopolicy", "numa"),
        ]);
        let place = place(&root, "nvme-subsys3", "ng3n1");
        assert!(place.is_head() && !place.has_path());
        let states: Vec<_> = place.controllers();
        assert_eq!(states.len(), 2);
        fs::write(root.path().join("nvme-subsys3/nvme10/state"), "live\n").unwrap();
        assert!(place.has_path());
        let state = root.path().join("nvme-subsys3/nvme10/nvme3c10n1/ana_state");
        fs::create_dir(state.parent().unwrap()).unwrap();
        for (word, is) in [
            ("optimized", true),
            ("inaccessible", false),
            ("non-optimized", true),
            ("change", false),
        ] {
            fs::write(&state, format!("{word}\n")).unwrap();
            assert_eq!(place.has_path(), is, "{word}");
        }
        assert!(!place.queue_limits().zoned);
    }

    #[test]
    fn a_block_device_has_its_character_device_beside_it() {
        let root = tree(&[
            ("nvme0/nvme0n1/ro", "0"),
            ("nvme0/nvme0n1/nvme0n1p1/start", "2048"),
            ("nvme0/ng0n1/dev", "240:0"),
            ("nvme0/nvme0n2/ro", "0"),
            ("virtio0/vda/ro", "0"),
        ]);
        let beside = |path: &str| Place::beside_directory(&root.path().join(path));
        assert_eq!(beside("nvme0/nvme0n1"), Some(place(&root, "nvme0", "ng0n1")));
        for other in ["nvme0/nvme0n1/nvme0n1p1", "nvme0/nvme0n2", "virtio0/vda"] {
            assert_eq!(beside(other), None, "{other}");
        }
        assert_eq!(Place::beside(&fs::metadata("/dev/null").unwrap()), None);
    }

    #[test]
    fn nothing_is_made_up() {
        let root = tree(&[("nvme0/state", "live")]);
        let place = place(&root, "nvme0", "ng0n7");
        assert!(!place.exists());
        assert_eq!((place.uuid(), place.queue_limits()), (None, QueueLimits::default()));
        assert_eq!(Place::of(&fs::metadata("/dev/null").unwrap()), None);
    }
}
