//! Flags of `nvlane copy` that have nbdcopy's names: what each does to what is there afterwards.

use crate::copy::{done, file, pattern};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const M: u64 = 1 << 20;

/// A file of 8 MiB that stores the second and the sixth, and its bytes.
fn holey(dir: &Path) -> (String, Vec<u8>) {
    let path = dir.join("holey");
    let file = File::create(&path).unwrap();
    file.set_len(8 * M).unwrap();
    for at in [1, 5] {
        file.write_all_at(&pattern(M as usize, at), at * M).unwrap();
    }
    let data = fs::read(&path).unwrap();
    (path.to_str().unwrap().to_owned(), data)
}

fn stored(path: &str) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn allocated_holes_take_room() {
    let dir = tempfile::tempdir().unwrap();
    let (source, data) = holey(dir.path());
    let cases: [(&[&str], bool); 5] = [
        (&[], false),
        (&["--allocated"], true),
        (&["--allocated", "--read-write"], true),
        (&["--allocated", "--sparse", "4K"], true),
        // A Copy would keep the holes that nobody asks for.
        (&["--allocated", "--no-extents"], true),
    ];
    for (flags, is_allocated) in cases {
        // Over what takes room, and over what takes none.
        let full = file(dir.path(), "full", &[0xee; 8 << 20]);
        let new = dir.path().join("new").display().to_string();
        let _ = fs::remove_file(&new);
        for args in [vec![&source[..], &full], vec![&source[..], &new, "--create"]] {
            done(&[&args, flags].concat());
            assert!(fs::read(args[1]).unwrap() == data, "{args:?} {flags:?}: other bytes");
            let stored = stored(args[1]);
            let is_right = if is_allocated { stored >= 8 * M } else { stored < 4 * M };
            assert!(is_right, "{args:?} {flags:?}: {stored} bytes are stored");
        }
    }
}
