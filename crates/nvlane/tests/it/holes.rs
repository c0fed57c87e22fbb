//! Holes of remote volumes: told by their target, and not sent over the network.

use crate::copy::pattern;
use crate::daemon::{Daemon, nvlane};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const M: u64 = 1 << 20;
/// Where 64 KiB are stored, of 256 MiB.
const STORED: [u64; 5] = [0, 3 * M, 100 * M, 101 * M, 256 * M - (64 << 10)];
const PIECE: u64 = 64 << 10;

fn sparse(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(256 * M).unwrap();
    for (seed, at) in STORED.into_iter().enumerate() {
        file.write_all_at(&pattern(PIECE as usize, seed as u64), at).unwrap();
    }
}

fn copied(args: &[&str]) -> Value {
    let output = nvlane().args(["copy", "-o", "json"]).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn holes_of_remote_volumes_do_not_cross_the_network() {
    let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = far.path().join("source");
    sparse(&source);
    let any = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let daemon = Daemon::start(far.path(), &[&["source"], &any[..]].concat());
    let [one, two] = daemon.listeners[..] else { panic!("{:?}", daemon.listeners) };
    let other = Daemon::start(near.path(), &["other?size=256M&create"]);
    let sent = || daemon.call("stats", json!({}))["namespaces"][0]["read_bytes"].as_u64().unwrap();
    let (all, holes) = (STORED.len() as u64 * PIECE, 256 * M - STORED.len() as u64 * PIECE);
    let from = format!("tcp://{one},{two}/{}?ns=1", daemon.nqn);
    let same = |copy: &Path| {
        assert!(fs::read(copy).unwrap() == fs::read(&source).unwrap(), "{}", copy.display());
        let stored = fs::metadata(copy).unwrap().blocks() * 512;
        assert!(stored <= 2 * all, "{}: {stored} bytes are stored", copy.display());
    };

    // To a file of this machine, over what was there.
    let local = near.path().join("local");
    fs::write(&local, vec![0xee; 256 << 20]).unwrap();
    let json = copied(&[&from, local.to_str().unwrap()]);
    assert_eq!(json["zeroed_bytes"], holes, "{json}");
    assert!((all..all + M).contains(&sent()), "holes were read: {}", sent());
    same(&local);
    // To another target, which knows that it has nothing there: nothing is sent to it either.
    let to = format!("tcp://{}/{}?ns=1", other.listeners[0], other.nqn);
    let before = sent();
    let json = copied(&[&from, &to, "--verify"]);
    assert_eq!(json["skipped_bytes"], holes, "{json}");
    // Besides what is copied, an idle path is tried by a small read now and then.
    assert!((all..all + M).contains(&(sent() - before)), "holes were read");
    same(&near.path().join("other"));
    // Not if so wished.
    let before = sent();
    copied(&[&from, local.to_str().unwrap(), "--no-extents"]);
    assert!(sent() - before >= 256 * M);
}
