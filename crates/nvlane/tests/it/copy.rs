//! `nvlane copy`: what arrives is what was there, by whichever means; and what is said of it.

use crate::daemon::{Daemon, eventually, free_address, nvlane, wait, wait_for_lock};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

const M: u64 = 1 << 20;

/// Bytes of which no block is like another.
pub fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64 / 8)
        .flat_map(|word| (word + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

/// A file in `dir`, and its path.
pub fn file(dir: &Path, name: &str, bytes: &[u8]) -> String {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

pub fn copy(args: &[&str]) -> Output {
    nvlane().arg("copy").args(args).output().unwrap()
}

/// What a copy that must succeed tells.
pub fn done(args: &[&str]) -> Value {
    let output = copy(&[args, &["-o", "json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Everything went one way or another.
    let sum: u64 = ["command_bytes", "written_bytes", "zeroed_bytes", "skipped_bytes"]
        .iter()
        .map(|field| json[*field].as_u64().unwrap())
        .sum();
    let targets = json["targets"].as_array().unwrap().len() as u64;
    assert!(sum >= json["total_bytes"].as_u64().unwrap() * targets, "{json}");
    assert_eq!(
        (&json["done_bytes"], &json["durable_bytes"]),
        (&json["total_bytes"], &json["total_bytes"])
    );
    json
}

/// The one line that a copy which must fail says.
pub fn said(args: &[&str]) -> String {
    line(&copy(args))
}

pub fn line(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn a_file_is_cloned_with_its_holes() {
    let dir = tempfile::tempdir().unwrap();
    let a = dir.path().join("a");
    let holey = File::create(&a).unwrap();
    holey.set_len(64 * M).unwrap();
    for at in [0, 20, 21, 50] {
        holey.write_all_at(&pattern(M as usize, at), at * M).unwrap();
    }
    let (a, b) = (a.to_str().unwrap(), dir.path().join("b"));
    let b = b.to_str().unwrap();
    let json = done(&[a, b, "--create"]);
    assert_eq!(json["total_bytes"], 64 * M);
    assert_eq!(json["command_bytes"], 4 * M);
    assert_eq!(json["skipped_bytes"], 60 * M, "what was made is empty");
    assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "other bytes");
    assert!(fs::metadata(b).unwrap().blocks() * 512 <= 6 * M, "holes are filled");

    // Over what was there: holes are made.
    let c = file(dir.path(), "c", &[0xff; 64 << 20]);
    let json = done(&[a, &c, "--verify"]);
    assert_eq!((&json["zeroed_bytes"], &json["verified"]), (&Value::from(60 * M), &true.into()));
    assert!(fs::read(a).unwrap() == fs::read(&c).unwrap(), "other bytes");
    assert!(fs::metadata(&c).unwrap().blocks() * 512 <= 6 * M, "holes are not made");
    // And not, if so wished.
    let json = done(&[a, &c, "--no-extents", "--read-write"]);
    assert_eq!(json["written_bytes"], 64 * M);
    assert!(fs::metadata(&c).unwrap().blocks() * 512 >= 64 * M);
    // Zeroes that were written are found.
    let json = done(&[&c, b, "--sparse", "4K"]);
    assert_eq!(
        (&json["written_bytes"], &json["zeroed_bytes"]),
        (&Value::from(4 * M), &Value::from(60 * M))
    );
    assert!(fs::read(&c).unwrap() == fs::read(b).unwrap(), "other bytes");
    assert!(fs::metadata(b).unwrap().blocks() * 512 <= 6 * M, "zeroes take room");
}

#[test]
fn parts_of_several_volumes_go_to_several() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (pattern(4 << 20, 1), pattern(4 << 20, 2));
    let (a, b) = (file(dir.path(), "a", &one), file(dir.path(), "b", &other));
    let full = vec![0xee; 8 << 20];
    let (c, d) = (file(dir.path(), "c", &full), file(dir.path(), "d", &full));
    let mut parts = one[1 << 20..3 << 20].to_vec();
    parts.extend_from_slice(&other[3 << 20..]);
    parts.extend_from_slice(&one[..4096]);
    for how in [&[][..], &["--read-write"], &["--request-size", "64K", "-R", "3"]] {
        file(dir.path(), "c", &full);
        file(dir.path(), "d", &full);
        let sources = [&format!("{a}@1M+2M"), &format!("{b}@3M"), &format!("{a}@+4K")];
        let targets = [&format!("{c}@512K"), "--also", &format!("{d}@4M"), "--verify"];
        let args = sources.iter().map(|it| it.as_str()).chain(targets).chain(how.iter().copied());
        done(&args.collect::<Vec<_>>());
        for (name, at) in [(&c, 512 << 10), (&d, 4 << 20)] {
            let mut wanted = full.clone();
            wanted[at..at + parts.len()].copy_from_slice(&parts);
            assert!(fs::read(name).unwrap() == wanted, "{name}, {how:?}: other bytes");
        }
    }
}

/// Two files of different file systems are not beside one another: the kernel copies within one only.
#[test]
fn targets_on_another_file_system_are_written_from_one_read() {
    let dir = tempfile::tempdir().unwrap();
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
    let device = |dir: &Path| fs::metadata(dir).unwrap().dev();
    if device(dir.path()) == device(memory.path()) {
        // The temporary files are there too.
        return;
    }
    let data = pattern(4 << 20, 1);
    let a = file(dir.path(), "a", &data);
    let [b, c] = ["b", "c"].map(|name| file(memory.path(), name, &vec![1; 4 << 20]));
    let json = done(&[&a, &b, "--also", &c]);
    assert_eq!((&json["written_bytes"], &json["command_bytes"]), (&(8 * M).into(), &0.into()));
    assert!(fs::read(&b).unwrap() == data && fs::read(&c).unwrap() == data, "other bytes");
    let means = |args: &[&str]| String::from_utf8(copy(args).stdout).unwrap();
    let text = means(&[&a, &b, "-n"]);
    assert!(text.contains("read and written") && !text.contains("copy_file_range"), "{text}");
    assert!(means(&[&b, &c, "-n"]).contains("copy_file_range"));
}

/// What has to be read is read once, however many targets there are.
#[test]
fn several_targets_elsewhere_are_written_from_one_read() {
    let dir = tempfile::tempdir().unwrap();
    let a = file(dir.path(), "a", &pattern(4 << 20, 1));
    let json = done(&[&a, "mem:4M", "--also", "mem:8M", "--verify"]);
    assert_eq!((&json["written_bytes"], &json["command_bytes"]), (&Value::from(8 * M), &0.into()));
    let b = file(dir.path(), "b", &vec![1; 4 << 20]);
    let json = done(&[&a, &b, "--also", "mem:8M", "--verify"]);
    assert_eq!(json["command_bytes"], 8 * M, "one is beside the source: {json}");
    assert_eq!(json["offloaded_bytes"], 4 * M, "{json}");
    let plan = copy(&[&a, "mem:4M", "--also", "mem:8M", "-n"]);
    let text = String::from_utf8(plan.stdout).unwrap();
    assert_eq!(text.matches("once for several targets").count(), 2, "{text}");
}

#[test]
fn blocks_may_differ_in_size() {
    let dir = tempfile::tempdir().unwrap();
    let data = pattern((3 << 20) + 512, 5);
    let a = file(dir.path(), "a", &data);
    let b = format!("{}?bs=4096", file(dir.path(), "b", &[0xdd; 4 << 20]));
    assert!(said(&[&a, &b]).contains("--pad"));
    let json = done(&[&a, &b, "--pad", "--verify"]);
    assert_eq!(json["written_bytes"], 3 * M + 4096);
    let bytes = fs::read(dir.path().join("b")).unwrap();
    assert!(bytes[..data.len()] == data[..], "other bytes");
    assert!(bytes[data.len()..data.len() + 3584].iter().all(|byte| *byte == 0), "not filled up");
    assert!(bytes[data.len() + 3584..].iter().all(|byte| *byte == 0xdd), "written beyond");
    // And back.
    let c = file(dir.path(), "c", &vec![0; 4 << 20]);
    done(&[&b, &c, "--verify"]);
    assert!(fs::read(&c).unwrap() == bytes, "other bytes");
    let refused = said(&[&a, &b, "--pad", "--fast-only"]);
    assert!(refused.contains("512 and 4096"), "{refused}");
}

/// Only who needs it is filled up: others keep what comes after the source's length, and need no room for more.
#[test]
fn each_target_is_filled_up_to_its_own_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let data = pattern((3 << 20) + 512, 5);
    let a = format!("{}?bs=512", file(dir.path(), "a", &data));
    let other = pattern(4 << 20, 6);
    for how in [
        &[][..],
        &["--read-write"],
        &["--verify"],
        &["--read-write", "--verify"],
        &["--sparse", "4K"],
    ] {
        let small = format!("{}?bs=512", file(dir.path(), "small", &other));
        let large = format!("{}?bs=4096", file(dir.path(), "large", &other));
        let tight = format!("{}?bs=512", file(dir.path(), "tight", &vec![1; data.len()]));
        let args =
            [&a, &large, "--also", &small, "--also", &tight, "--also", "mem:4M?bs=512", "--pad"];
        done(&[&args[..], how].concat());
        let mut wanted = other.clone();
        wanted[..data.len()].copy_from_slice(&data);
        assert!(fs::read(dir.path().join("small")).unwrap() == wanted, "{how:?}: written beyond");
        assert!(fs::read(dir.path().join("tight")).unwrap() == data, "{how:?}: other bytes");
        wanted[data.len()..][..3584].fill(0);
        assert!(fs::read(dir.path().join("large")).unwrap() == wanted, "{how:?}: not filled up");
    }
    // A hole at the end as well.
    let hole = dir.path().join("hole");
    File::create(&hole).unwrap().set_len((64 << 10) + 512).unwrap();
    let hole = format!("{}?bs=512", hole.display());
    let small = format!("{}?bs=512", file(dir.path(), "small", &other));
    let large = format!("{}?bs=4096", file(dir.path(), "large", &other));
    done(&[&hole, &small, "--also", &large, "--pad", "--verify"]);
    for (name, filled) in [("small", (64 << 10) + 512), ("large", (64 << 10) + 4096)] {
        let mut wanted = other.clone();
        wanted[..filled].fill(0);
        assert!(fs::read(dir.path().join(name)).unwrap() == wanted, "{name}");
    }
}

#[test]
fn what_overlaps_itself_is_moved() {
    let dir = tempfile::tempdir().unwrap();
    let data = pattern(8 << 20, 9);
    for (from, to) in [(0, 1 << 20), (1 << 20, 0), (512, 0), (0, 4096)] {
        for how in [&[][..], &["--read-write"]] {
            let a = file(dir.path(), "a", &data);
            let args = [&format!("{a}@{from}+6M"), &format!("{a}@{to}"), "--request-size", "1M"];
            done(&[&args[..], how].concat());
            let mut wanted = data.clone();
            wanted.copy_within(from..from + (6 << 20), to);
            assert!(fs::read(&a).unwrap() == wanted, "{from} to {to}: other bytes");
        }
    }
    let a = file(dir.path(), "a", &data);
    let line = said(&[&format!("{a}@+1M"), &format!("{a}@512"), "--verify"]);
    assert!(line.contains("--verify"), "{line}");
    assert!(said(&[&a, &a]).contains("there already"));
}

/// A range of a Copy has 65,528 blocks at most, and what is moved in larger pieces has to come out the same.
#[test]
fn what_overlaps_itself_is_moved_in_pieces_larger_than_a_range() {
    const SIZE: usize = 36 << 20;
    let dir = tempfile::tempdir().unwrap();
    // Ranges of one Copy would meet 4 KiB before a whole MiB of the piece: data is there only.
    let mut data = vec![0; SIZE];
    for (seed, before) in (0..SIZE).step_by(1 << 20).enumerate() {
        let part = before.saturating_sub(64 << 10)..before + (64 << 10);
        data[part.clone()].copy_from_slice(&pattern(part.len(), seed as u64));
    }
    let a = file(dir.path(), "a", &[]);
    let sparse = || {
        let file = File::options().write(true).open(&a).unwrap();
        file.set_len(0).unwrap();
        file.set_len(SIZE as u64).unwrap();
        for (at, chunk) in data.chunks(64 << 10).enumerate() {
            if chunk.iter().any(|byte| *byte != 0) {
                file.write_all_at(chunk, (at << 16) as u64).unwrap();
            }
        }
    };
    sparse();
    let source = file(dir.path(), "source", &fs::read(&a).unwrap());
    let daemon = Daemon::start(dir.path(), &["mem:36M?bs=512", "--nqn", NQN]);
    let remote = format!("tcp://{}/{NQN}?ns=1", daemon.listeners[0]);
    let read = |volume: &str| nvlane().args(["cat", volume]).output().unwrap().stdout;
    for (from, to) in [(0, 4096), (4096, 0)] {
        let mut wanted = data.clone();
        wanted.copy_within(from..from + (35 << 20), to);
        for size in ["33M", "128M"] {
            sparse();
            done(&[
                &format!("{a}?bs=512@{from}+35M"),
                &format!("{a}?bs=512@{to}"),
                "--request-size",
                size,
            ]);
            assert!(fs::read(&a).unwrap() == wanted, "{from} to {to}, {size}: other bytes");
            done(&[&source, &remote]);
            let (part, there) = (format!("{remote}@{from}+35M"), format!("{remote}@{to}"));
            let json = done(&[&part, &there, "--request-size", size]);
            assert!(read(&remote) == wanted, "remote, {from} to {to}, {size}: other bytes");
            assert_eq!(json["moved_bytes"], 0, "{json}");
        }
    }
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (a, full) = (file(dir.path(), "a", &pattern(2 << 20, 1)), vec![0xaa; 1 << 20]);
    let b = file(dir.path(), "b", &full);
    let (bs, cut) = (format!("{b}?ro"), |part: &str| format!("{a}{part}"));
    let (beyond, odd, some) = (cut("@3M"), cut("@1+512"), cut("@+512"));
    let (long, within, again) = (format!("{b}@0+512"), format!("{b}@100"), format!("{b}@256"));
    let tail = file(dir.path(), "tail", &[&pattern(64 << 10, 1)[..], &[1; 96]].concat());
    let cases: [(&[&str], &str); 13] = [
        (&[&tail, &b], "the last 96 bytes"),
        (&[&a, &b], "more than the 1048576"),
        (&[&a, &bs], "read-only"),
        (&[&beyond, &b], "not within"),
        (&[&odd, &b], "whole blocks"),
        (&[&some, &long], "no length"),
        (&[&some, &within], "does not begin a block"),
        (&["/not/there", &b], "/not/there"),
        (&["served:1", &b], "--detach"),
        (&[&a, "/not/there"], "/not/there does not exist; add --create"),
        (&[&some, &b, "--also", &again], "does not begin a block"),
        (&[&some, &b, "-R", "0"], "requests"),
        (&[&some, &b, "--sparse", "8G"], "from 512 to 2G"),
    ];
    for (args, part) in cases {
        let line = said(args);
        assert!(line.contains(part), "{args:?}: {line}");
    }
    assert!(fs::read(&b).unwrap() == full, "written all the same");
    let new = dir.path().join("new");
    said(&[&tail, new.to_str().unwrap(), "--create"]);
    assert!(!new.exists(), "made for nothing");
    done(&[&format!("{tail}@+64K"), &b]);
}

#[test]
fn failures_name_what_failed_and_how_far_it_got() {
    let dir = tempfile::tempdir().unwrap();
    let data = pattern(4 << 20, 3);
    let (a, b) = (file(dir.path(), "a", &data), file(dir.path(), "b", &vec![0; 4 << 20]));
    let bad = format!("fault:lba=4096,op=read({a})");
    for how in ["--request-size=512K", "--read-write"] {
        let line = said(&[&bad, &b, how, "--no-extents"]);
        assert!(
            line.contains("Unrecovered Read") && line.contains("are copied and flushed"),
            "{line}"
        );
        assert!(line.contains("fault:"), "{line}");
    }
    let line = said(&[&a, &format!("fault:op=flush,status=internal({b})")]);
    assert!(line.contains("flushing") && line.contains("the first 0 bytes"), "{line}");
    // Nothing that is written there can be read again.
    let line = said(&[&a, "null:4M", "--verify"]);
    assert!(line.contains("null:4M") && line.contains("is not what was copied"), "{line}");
}

/// Also within one namespace of it, which the target is told by a format that has room for that.
#[test]
fn fast_only_fails_where_a_target_would_read_and_write() {
    let dir = tempfile::tempdir().unwrap();
    let data = pattern(4 << 20, 4);
    let a = file(dir.path(), "a", &data);
    let daemon = Daemon::start(dir.path(), &["volatile:(mem:8M)", "mem:8M", "--nqn", NQN]);
    let remote = |nsid| format!("tcp://{}/{NQN}?ns={nsid}", daemon.listeners[0]);
    for nsid in [1, 2] {
        done(&[&a, &remote(nsid)]);
    }
    for (from, to, is_fast) in [(1, 1, false), (2, 2, true), (1, 2, false)] {
        let args = [&format!("{}@+4M", remote(from)), &format!("{}@4M", remote(to)), "--fast-only"];
        match is_fast {
            true => assert_eq!(done(&args)["moved_bytes"], 0),
            false => {
                let line = said(&args);
                assert!(line.contains("Fast Copy Not Possible"), "{from} to {to}: {line}");
            }
        }
    }
    let there = nvlane().args(["cat", &remote(1)]).output().unwrap().stdout;
    assert!(there[..4 << 20] == data[..] && there[4 << 20..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_plan_names_the_means_and_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (a, full) = (file(dir.path(), "a", &pattern(2 << 20, 1)), vec![0xaa; 4 << 20]);
    let b = file(dir.path(), "b", &full);
    let plan = |args: &[&str]| -> Value {
        let output = copy(&[args, &["--dry-run", "-o", "json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let means =
        |plan: &Value, part: usize| plan["parts"][part]["means"].as_str().unwrap().to_owned();
    let both = format!("linear:({b},mem:4M)");
    let one = plan(&[&a, &b]);
    assert!(means(&one, 0).contains("copy_file_range"), "{one}");
    let apart = plan(&[&a, &a, &format!("{both}@1M")]);
    assert_eq!(apart["total_bytes"], 4 * M);
    let part = |at: usize, field: &str| apart["parts"][at][field].as_u64().unwrap();
    assert_eq!((part(1, "bytes"), part(2, "bytes")), (M, M), "{apart}");
    assert_eq!((part(2, "source_offset"), part(2, "target_offset")), (M, 4 * M), "{apart}");
    assert!(means(&apart, 2).contains("read and written"), "{apart}");
    let blocks = plan(&[&a, &format!("{b}?bs=4096")]);
    assert!(means(&blocks, 0).contains("blocks of 512 and 4096"), "{blocks}");
    assert!(fs::read(&b).unwrap() == full, "written all the same");
    let output = copy(&[&a, &b, "-n"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Means") && text.contains("copy_file_range"), "{text}");
    let output = copy(&[&a, &b]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("copied 2 MiB in ") && text.contains("copied where it lies"),
        "{text}"
    );
}

#[test]
fn info_names_the_means_of_a_pair() {
    let dir = tempfile::tempdir().unwrap();
    let full = vec![0xaa; 4 << 20];
    let (a, b) = (file(dir.path(), "a", &full), file(dir.path(), "b", &full));
    let said = |args: &[&str]| {
        let output = nvlane().arg("info").args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let told = |args: &[&str]| -> Value {
        serde_json::from_str(&said(&[args, &["-o", "json"]].concat())).unwrap()
    };
    assert!(told(&[&a])["copied_to"].is_null());
    let parts = |source: &str, target: &str| {
        let told = told(&[source, target]);
        assert_eq!(told["bytes"].as_u64().is_some(), told["copied_to"]["volume"].is_string());
        let parts = told["copied_to"]["parts"].as_array().unwrap().clone();
        let part = |it: &Value| {
            let number = |field: &str| it[field].as_u64().unwrap() / M;
            (number("offset"), number("bytes"), it["means"].as_str().unwrap().to_owned())
        };
        parts.iter().map(part).collect::<Vec<_>>()
    };
    let files = parts(&a, &b)[0].2.clone();
    assert!(files.starts_with("Copy: ") && files.ends_with("copy_file_range"), "{files}");
    let apart = "Copy: read and written beside the target".to_owned();
    assert_eq!(parts(&a, &b), [(0, 4, files.clone())]);
    // Within one volume too, also where it is a layer that wants to see its reads.
    let late = format!("delay:write=1ms({b})");
    assert_eq!(
        [parts(&a, &a), parts(&late, &late)],
        [[(0, 4, files.clone())], [(0, 4, files.clone())]]
    );
    assert_eq!(parts(&a, &format!("linear:(mem:1M,{b})")), [(0, 1, apart), (1, 3, files)]);
    assert_eq!(parts(&a, &format!("{b}?ro"))[0].2, "not at all: the target is read-only");
    assert!(parts(&a, &format!("{b}?bs=4096"))[0].2.ends_with("blocks of 512 and 4096 bytes"));
    let text = said(&[&a, &b]);
    assert!(text.contains("copied to") && text.contains("Copy: copy_file_range"), "{text}");

    let daemon = Daemon::start(dir.path(), &["mem:4M", "mem:8M", "--nqn", NQN]);
    let [one, two] = [1, 2].map(|nsid| format!("tcp://{}/{NQN}?ns={nsid}", daemon.listeners[0]));
    let by_it = format!("Copy: by the controller of {NQN}");
    for (source, target) in [(&one, &two), (&one, &one)] {
        assert_eq!(parts(source, target), [(0, 4, by_it.clone())]);
    }
}

#[test]
fn a_rate_is_kept_and_an_interrupt_ends_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let data = pattern(16 << 20, 7);
    let (a, b) = (file(dir.path(), "a", &data), file(dir.path(), "b", &vec![0; 16 << 20]));
    let started = Instant::now();
    done(&[&format!("{a}@+3M"), &b, "--throttle", "2M"]);
    let taken = started.elapsed();
    assert!(taken >= Duration::from_millis(1200), "{taken:?} for 3 MiB at 2 MiB/s");
    done(&[&format!("{a}@+3M"), &b, "--throttle", "50%"]);

    let mut child = nvlane()
        .args(["copy", &a, &b, "--throttle", "1M"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Those before ended at 3 MiB: what is there now is this one's, which listens to signals by then.
    let target = File::open(&b).unwrap();
    eventually("progress", || {
        let mut block = [0; 512];
        target.read_exact_at(&mut block, 3 * M).unwrap();
        block[..] == data[3 << 20..][..512]
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    wait(&mut child);
    let line = line(&child.wait_with_output().unwrap());
    let bytes = line.split("the first ").nth(1).and_then(|rest| rest.split(' ').next());
    let bytes: usize = bytes.and_then(|bytes| bytes.parse().ok()).expect(&line);
    assert!(line.contains("interrupted") && bytes < 15 << 20, "{line}");
    assert!(fs::read(&b).unwrap()[..bytes] == data[..bytes], "{line}: other bytes");
}

const NQN: &str = "nqn.2026-11.com.example:a";

#[test]
fn remote_volumes_are_copied_by_their_target_where_they_can_be() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data = pattern(8 << 20, 11);
    let a = file(dir.path(), "a", &data);
    let daemon =
        Daemon::start(dir.path(), &[&a, "mem:16M", "mem:8M?bs=4096", "null:8M", "--nqn", NQN]);
    let other = Daemon::start(elsewhere.path(), &["mem:8M", "--nqn", "nqn.2026-11.com.example:b"]);
    let remote = |nsid: u32| format!("tcp://{}/{NQN}?ns={nsid}", daemon.listeners[0]);
    let there = format!("tcp://{}/nqn.2026-11.com.example:b?ns=1", other.listeners[0]);
    let read = |volume: &str| nvlane().args(["cat", volume]).output().unwrap().stdout;

    let sent = |nsid: usize| {
        let stats = daemon.call("stats", serde_json::json!({}));
        let one = &stats["namespaces"][nsid - 1];
        (one["read_bytes"].as_u64().unwrap(), one["written_bytes"].as_u64().unwrap())
    };
    let json = done(&[&remote(1), &format!("{}@4M", remote(2))]);
    assert!(read(&remote(2))[4 << 20..12 << 20] == data[..], "other bytes");
    assert_eq!(json["offloaded_bytes"], 8 * M, "{json}");
    assert_eq!((sent(1).0, sent(2).1), (0, 0), "it crossed the network");
    // Within one namespace as well.
    let json = done(&[&format!("{}@4M+8M", remote(2)), &remote(2), "--request-size", "1M"]);
    assert!(json["command_bytes"].as_u64() == Some(8 * M), "{json}");
    assert!(read(&remote(2))[..8 << 20] == data[..], "other bytes");
    // It is compared where it lies, too.
    let before = sent(1).0 + sent(2).0;
    let json = done(&[&remote(1), &format!("{}@4M", remote(2)), "--verify"]);
    assert_eq!(json["checksummed_bytes"], 8 * M, "{json}");
    assert_eq!(sent(1).0 + sent(2).0, before, "it crossed the network");
    // What is here is read here, what is there is not, whichever way it went.
    let read_there = || sent(1).0 + sent(2).0;
    let before = read_there();
    let local = file(elsewhere.path(), "local", &data);
    let json = done(&[&local, &format!("{}@8M", remote(2)), "--verify"]);
    assert_eq!((&json["checksummed_bytes"], read_there()), (&(8 * M).into(), before), "{json}");
    let json = done(&[&remote(1), &local, "--verify"]);
    let read_once = before + 8 * M;
    assert_eq!((&json["checksummed_bytes"], read_there()), (&0.into(), read_once), "{json}");
    // To another machine it is moved; and where blocks differ.
    let json = done(&[&remote(1), &there, "--verify"]);
    assert_eq!(json["checksummed_bytes"], 8 * M, "{json}");
    assert!(read(&there) == data, "other bytes");
    let before = sent(3).0;
    done(&[&there, &remote(3), "--verify"]);
    assert_eq!(sent(3).0, before, "it crossed the network");
    assert!(read(&remote(3)) == data, "other bytes");
    let before = sent(3).0;
    let json = done(&[&there, &remote(3), "--verify", "--read-write"]);
    assert_eq!((&json["verified_bytes"], &json["checksummed_bytes"]), (&(8 * M).into(), &0.into()));
    assert_eq!(sent(3).0, before + 8 * M, "it was not read");
    // What the target does not keep is noticed there, and where it is.
    let line = said(&[&remote(1), &remote(4), "--verify", "--request-size", "512K", "-R", "1"]);
    assert!(line.contains("what is in bytes 0 to 524288, by its checksum, is not what"), "{line}");
    let line = said(&[&format!("{}&queue_size=64@+1M", remote(2)), &format!("{}@2M", remote(2))]);
    assert!(line.contains("are one volume"), "{line}");
    let output = copy(&[&remote(1), &remote(2), "-n", "--verify"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("by the controller of {NQN}")), "{text}");
    assert!(text.contains("compared afterwards: by checksums"), "{text}");
}

/// Controllers have a limit on one Write Zeroes (ours 8 MiB), which is neither a transfer's nor what a command can name.
#[test]
fn holes_larger_than_a_target_zeroes_at_once_are_zeroed_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &["mem:65M", "mem:65M?bs=4096", "--nqn", NQN]);
    let full = file(dir.path(), "full", &[0xee; 65 << 20]);
    let holey = file(dir.path(), "holey", &pattern(M as usize, 3));
    File::options().write(true).open(&holey).unwrap().set_len(65 * M).unwrap();
    for nsid in [1, 2] {
        let remote = format!("tcp://{}/{NQN}?ns={nsid}", daemon.listeners[0]);
        done(&[&full, &remote]);
        let json = done(&[&holey, &remote, "--verify"]);
        assert_eq!(json["zeroed_bytes"], 64 * M, "{json}");
        let there = nvlane().args(["cat", &remote]).output().unwrap().stdout;
        assert!(there == fs::read(&holey).unwrap(), "other bytes");
    }
}

/// The target's power is cut in the middle: what it had not flushed is copied again.
#[test]
fn a_copy_outlives_a_target_that_loses_power() {
    let (dir, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data = pattern(8 << 20, 13);
    let a = file(dir.path(), "a", &data);
    let b = file(there.path(), "b", &vec![1; 8 << 20]);
    let cached = format!("volatile:({b})");
    let serve =
        |listen: &str| Daemon::start(there.path(), &[&cached, "--nqn", NQN, "--listen", listen]);
    let listen = free_address();
    let target = serve(&listen);
    let to = format!("tcp://{listen}/{NQN}?ns=1&reconnect_delay=100ms");
    let written = |target: &Daemon| {
        let stats = target.call("stats", serde_json::json!({}));
        stats["namespaces"][0]["written_bytes"].as_u64().unwrap()
    };
    let cut_power = |target: Daemon| {
        eventually("work that is not flushed", || written(&target) > M);
        target.kill();
        wait_for_lock(Path::new(&b));
        serve(&listen)
    };
    let mut child = nvlane();
    child.args(["copy", &a, &to, "--throttle", "1M", "-o", "json"]);
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let target = cut_power(target);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // Once more: what is done is durable.
    target.kill();
    wait_for_lock(Path::new(&b));
    assert!(fs::read(&b).unwrap() == data, "other bytes");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["setbacks"], 1, "{json}");
    assert!(said.contains("copied again from byte 0 on"), "{said}");

    // What came by a pipe is gone: `write` cannot send it again, and says so.
    let target = serve(&listen);
    let mut child = nvlane();
    child.args(["write", &to]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&data[..4 << 20]).unwrap();
    let _target = cut_power(target);
    stdin.write_all(&data[4 << 20..]).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("write it again"), "{said}");
}
