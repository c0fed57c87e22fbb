//! Programs that tests start all the time, and what they load: the guest copies them to its memory.
//!
//! Over 9p each look at a file is a round trip to QEMU, which waits for one of the processors that the
//! guests are emulated on. A `cat` makes some thirty of them: by far the most of what it costs to start it
//! in a guest, and most scripts do little but start programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::capture;

/// Programs that scripts start more than a few times. Those that are not installed are left out.
const PROGRAMS: &str = "awk basename bash blkdiscard blockdev cat chmod cmp cp cut date dd df dirname \
    dmesg env fallocate fio fsck.ext4 grep head ip jq ln losetup ls mkdir mkfifo mkfs.ext4 mkfs.xfs modprobe \
    mount mv nbdinfo nproc nvme od ps readlink rm rmdir sed seq setpriv sh sha256sum sleep sort stat \
    sync tail tee timeout touch tr truncate umount uniq wc xargs xfs_io";

/// Where a guest looks for programs.
const PATH: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// What every program reads.
const READ_BY_ALL: [&str; 2] =
    ["/etc/ld.so.cache", "/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache"];
const LOCALE: &str = "/usr/lib/locale/C.utf8";

/// Those files, and the links on the way to them; with `more` programs.
pub fn files(more: impl IntoIterator<Item = PathBuf>) -> Result<BTreeSet<PathBuf>> {
    let installed = PROGRAMS.split_whitespace().filter_map(|name| {
        PATH.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
    });
    let programs: Vec<PathBuf> = installed.chain(more).filter(|path| path.is_file()).collect();
    // Says so of scripts and of what is linked statically, and fails.
    let list = ["-c", r#"ldd "$@" 2>/dev/null; true"#, "ldd"];
    let libraries = capture(Command::new("sh").args(list).args(&programs))?;
    let libraries = libraries.split_whitespace().filter(|word| word.starts_with('/'));
    let libraries = libraries.map(|word| PathBuf::from(word.trim_end_matches(':')));

    let locale = fs::read_dir(LOCALE).into_iter().flatten().flatten().map(|entry| entry.path());
    let read = READ_BY_ALL.iter().map(PathBuf::from).chain(locale);
    let mut files = BTreeSet::new();
    for path in programs.into_iter().chain(libraries).chain(read) {
        let Ok(whole) = path.canonicalize() else { continue };
        if whole.is_file() {
            files.extend(path.ancestors().filter(|path| path.is_symlink()).map(Path::to_owned));
            files.insert(whole);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_with_all_it_loads_and_what_is_missing_is_left_out() {
        let this = std::env::current_exe().unwrap();
        let files = files([this.clone(), PathBuf::from("/nowhere/program")]).unwrap();
        let has = |name: &str| files.iter().any(|path| path.ends_with(name));
        assert!(has("bash") && has("cat") && has("libc.so.6") && has("ld.so.cache"), "{files:?}");
        assert!(files.contains(&this.canonicalize().unwrap()) && !has("program"), "{files:?}");
        // Where folders are links, those are among them.
        let merged = Path::new("/lib").is_symlink();
        assert_eq!(files.contains(Path::new("/lib")), merged, "{files:?}");
    }
}
