//! Flags of `nvlane copy` that have nbdcopy's names: what each does to what is there afterwards.

use crate::copy::{done, file, pattern, said};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

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

/// Nobody looks whether that is true: what is no zero stays.
#[test]
fn a_target_that_is_said_to_be_zero_is_left_alone_where_there_are_holes() {
    let dir = tempfile::tempdir().unwrap();
    let (source, data) = holey(dir.path());
    let before = vec![0xee; 8 << 20];
    let mut kept = before.clone();
    for at in [M as usize, 5 * M as usize] {
        kept[at..][..M as usize].copy_from_slice(&data[at..][..M as usize]);
    }
    for flag in ["--target-is-zero", "--destination-is-zero"] {
        for how in [&[][..], &["--read-write"]] {
            let target = file(dir.path(), "target", &before);
            let json = done(&[&[&source[..], &target, flag], how].concat());
            assert_eq!(
                (&json["skipped_bytes"], &json["zeroed_bytes"]),
                (&Value::from(6 * M), &Value::from(0))
            );
            assert!(fs::read(&target).unwrap() == kept, "{flag} {how:?}: other bytes");
        }
    }
    let target = file(dir.path(), "target", &before);
    done(&[&source, &target]);
    assert!(fs::read(&target).unwrap() == data, "other bytes");
}

/// By each of its names.
#[test]
fn so_many_requests_are_in_flight() {
    const DELAY: Duration = Duration::from_millis(25);
    // 32 pieces, each of which takes so long to write.
    let args = ["mem:2M", "delay:write=25ms(mem:2M)", "--request-size", "64K", "--read-write"];
    let took = |flag: &str, depth: &str| {
        let started = Instant::now();
        done(&[&args[..], &["--no-extents", flag, depth]].concat());
        started.elapsed()
    };
    for flag in ["-R", "--requests", "--queue-depth"] {
        let (one, four) = (took(flag, "1"), took(flag, "4"));
        assert!(one >= 32 * DELAY && four >= 8 * DELAY, "{flag}: {one:?}, {four:?}");
        // A busy machine may make any of them late, not all.
        let quickest = (0..10).find(|_| took(flag, "32") < 28 * DELAY);
        assert!(quickest.is_some(), "{flag}: 32 at once took no less than one after the other");
        assert!(said(&["mem:2M", "mem:2M", flag, "0"]).contains("requests"), "{flag}");
    }
}

/// As nbdcopy has it: zeroes are not looked for.
#[test]
fn a_sparse_size_of_zero_looks_for_none() {
    let dir = tempfile::tempdir().unwrap();
    let zeroes = file(dir.path(), "zeroes", &[0; 4 << 20]);
    let target = file(dir.path(), "target", &[0xee; 4 << 20]);
    let json = done(&[&zeroes, &target, "-S", "0"]);
    assert_eq!((&json["command_bytes"], &json["zeroed_bytes"]), (&(4 * M).into(), &0.into()));
    let json = done(&[&zeroes, &target, "--sparse=4K"]);
    assert_eq!(json["zeroed_bytes"], 4 * M, "{json}");
}
