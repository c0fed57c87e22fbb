//! What a program defers, NVLANE_DEFERRED decides on.

use crate::core::Core;
use crate::program;
use namespace::{Namespace, ProgramReport};
use nvme::Status;
use std::sync::Arc;
use volume::OpenOptions;

const CHUNK: u64 = 64;

fn report(volume: &dyn Namespace) -> ProgramReport {
    let mut found = None;
    volume.each_program(&mut |routed| found = Some(routed.report()));
    found.expect("it is a program")
}

/// What the program has counted: routed, deferred, ended, deferred then.
fn counts(volume: &dyn Namespace) -> [u64; 4] {
    let report = report(volume);
    let map = report.maps.iter().find(|map| map.name == "counts").expect("it has counted");
    let mut counts = [0; 4];
    for (key, values) in &map.entries {
        let value: [u8; 8] = values[0].as_slice().try_into().expect("eight bytes");
        counts[usize::from(key[0])] = u64::from_le_bytes(value);
    }
    counts
}

/// A bit is something that NVLANE_DEFERRED has not found as it should be.
fn seen(volume: &dyn Namespace) -> u8 {
    let report = report(volume);
    let map = report.maps.iter().find(|map| map.name == ".data").expect("it has variables");
    // Behind `forever`, or before it; that one stays 1.
    let bytes: Vec<u8> = map.entries.iter().flat_map(|(_, values)| values.concat()).collect();
    assert_eq!(bytes.len(), 16);
    bytes.iter().sum::<u8>() - 1
}

#[test]
fn it_decides_in_their_place_with_their_state() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["a", "b"].map(|name| folder.path().join(name));
    let [a, b] = files.each_ref().map(|path| format!("file:{}?size=2M&create", path.display()));
    let uri = program("tests/deferred", &format!("{a},{b}"));
    let volume = volume::open(&uri, &OpenOptions::default()).expect(&uri);
    let core = Core::start(Arc::clone(&volume));
    for chunk in 0..8 {
        let data = vec![chunk as u8 + 1; 16 * 512];
        assert_eq!(core.write(chunk * CHUNK + 3, data, 512), Status::SUCCESS);
    }
    assert_eq!(counts(&*volume), [8, 4, 10, 2]);
    for chunk in 0..8 {
        let data = core.read(chunk * CHUNK + 3, 16, 512).data;
        assert!(data.iter().all(|byte| *byte == chunk as u8 + 1), "chunk {chunk}");
    }
    assert_eq!(counts(&*volume), [16, 8, 18, 4]);
    assert_eq!((seen(&*volume), report(&*volume).mistakes), (0, 0));
    assert_eq!(core.flush(), Status::SUCCESS);
    let [a, b] = files.map(|path| std::fs::read(path).expect("it is there"));
    for chunk in 0..8_usize {
        let at = (chunk * 64 + 3) * 512;
        let there = |bytes: &[u8]| bytes[at..at + 16 * 512].iter().all(|it| *it == chunk as u8 + 1);
        assert!(there(&a), "chunk {chunk}");
        assert_eq!(there(&b), chunk % 4 == 3, "chunk {chunk} on the other one");
    }
}

#[test]
fn what_it_does_wrong_fails_the_request_alone() {
    let uri = program("tests/deferred", "mem:2M,mem:2M");
    let volume = volume::open(&uri, &OpenOptions::default()).expect(&uri);
    let core = Core::start(Arc::clone(&volume));
    // Defers again, returns 5, does nothing, reads from nowhere, never ends: whose mistake it is, `hostile` shows.
    for (number, at) in [0, 8, 16, 24, 32].into_iter().enumerate() {
        let status = core.write(1024 + at, vec![1; 512], 512);
        assert_eq!(status, Status::INTERNAL.dnr(), "block {at}");
        assert_eq!(report(&*volume).mistakes, number as u64 + 1);
    }
    assert_eq!(core.write(1024 + 40, vec![1; 512], 512), Status::SUCCESS);
    assert_eq!(core.write(CHUNK, vec![2; 512], 512), Status::SUCCESS);
    assert_eq!(core.read(CHUNK, 1, 512).data, vec![2; 512]);
    assert_eq!((seen(&*volume), report(&*volume).mistakes), (0, 5));
}
