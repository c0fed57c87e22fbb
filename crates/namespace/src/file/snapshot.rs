//! What a volume in a file is at one moment, as another file that shares its blocks.

use super::{File, Kind};
use rustix::fs::{AtFlags, CWD, linkat};
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// `FICLONE` (linux/fs.h): all of a file. XFS and btrfs let nobody write meanwhile, write back what is in the page cache, and
/// wait for direct writes under way.
const FICLONE: libc::c_ulong = 0x4004_9409;

/// Where files do not share blocks.
const NONE_HERE: &str = "files do not share blocks here: on XFS (made with reflink=1) and btrfs they do, unless only one \
     of both has `chattr +C`";

fn unsupported(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what)
}

impl File {
    pub(super) fn snapshot_to(&self, to: &Path) -> io::Result<()> {
        if self.kind == Kind::Block {
            let what = "a block device has no snapshots of its own: LVM and the like make them";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        if fs::symlink_metadata(to).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let mode = self.file.metadata()?.permissions().mode() & 0o777;
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        // Without a name until it is whole: whatever ends us meanwhile leaves nothing behind.
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(mode).custom_flags(libc::O_TMPFILE);
        let made = options.open(folder).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EISDIR) => unsupported(NONE_HERE),
            _ => error,
        })?;
        self.clone_to(&made)?;
        // Whatever the umask says.
        made.set_permissions(Permissions::from_mode(mode))?;
        made.sync_all()?;
        let unnamed = format!("/proc/self/fd/{}", made.as_raw_fd());
        linkat(CWD, unnamed, CWD, to, AtFlags::SYMLINK_FOLLOW)?;
        fs::File::open(folder)?.sync_all()
    }

    fn clone_to(&self, made: &fs::File) -> io::Result<()> {
        loop {
            // SAFETY: the request takes a descriptor, which is open, and no memory.
            if unsafe { libc::ioctl(made.as_raw_fd(), FICLONE, self.file.as_raw_fd()) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL) => Err(unsupported(NONE_HERE)),
                Some(libc::EXDEV) => {
                    Err(unsupported("a snapshot is made on the volume's own file system"))
                }
                _ => Err(error),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Namespace;
    use crate::file::{File, FileOptions};
    use std::fs;
    use std::io;

    /// Where the file system of this test shares blocks it is a copy; elsewhere nothing is left behind. (In a guest there is
    /// XFS: `guest/snapshot`.)
    #[test]
    fn a_snapshot_is_whole_or_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("volume");
        fs::write(&path, vec![7; 1 << 20]).expect("a file");
        let volume = File::open(&FileOptions::buffered(path, None)).expect("a volume");
        let made = folder.path().join("snapshot");
        match volume.snapshot(&made) {
            Ok(()) => assert!(fs::read(&made).expect("it is there") == vec![7; 1 << 20]),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("share blocks"), "{error}");
                assert!(!made.exists());
            }
        }
        // What is there already is left as it is.
        fs::write(&made, "mine").expect("a file");
        let error = volume.snapshot(&made).expect_err("it is there");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&made).expect("it is there"), b"mine");
    }
}
