//! Programs that are linked to libaio, with our library in its place.

use super::*;

/// The program's path; these are in the list of packages that the tests need.
fn installed(name: &str) -> PathBuf {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|folder| folder.join(name))
        .find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not installed"))
}

fn fio(arguments: &[&str]) {
    let scratch = scratch();
    let file = scratch.path().join("data");
    let mut command = with(&installed("fio"), Some("auto"));
    command.arg("--name=verify").arg(format!("--filename={}", file.display()));
    command.args(["--ioengine=libaio", "--rw=randrw", "--bssplit=4k/60:16k/30:128k/10"]);
    command.args(["--size=24M", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]);
    command.args(["--output-format=terse"]).args(arguments);
    let line = printed(command.current_dir(scratch.path()));
    let jobs: Vec<Vec<&str>> = line.lines().map(|line| line.split(';').collect()).collect();
    assert!(!jobs.is_empty());
    for fields in jobs.iter().filter(|fields| fields.len() > 40) {
        assert_eq!(fields[4], "0", "fio's error: {line}");
    }
}

#[test]
fn fio_verifies_what_it_writes_past_the_page_cache() {
    fio(&["--direct=1", "--iodepth=32"]);
    fio(&["--direct=1", "--iodepth=1"]);
}

#[test]
fn fio_verifies_what_it_writes_in_batches() {
    fio(&["--direct=1", "--iodepth=64", "--iodepth_batch=16", "--iodepth_batch_complete_min=8"]);
}

#[test]
fn fio_verifies_what_it_writes_through_the_page_cache() {
    fio(&["--direct=0", "--iodepth=16", "--fsync=50"]);
}

#[test]
fn fio_verifies_what_it_writes_from_threads() {
    fio(&["--direct=1", "--iodepth=8", "--thread", "--numjobs=4", "--offset_increment=24M"]);
}

#[test]
fn fio_verifies_when_it_reads_the_ring_itself() {
    fio(&["--direct=1", "--iodepth=16", "--userspace_reap", "--iodepth_batch_complete_min=0"]);
    fio(&["--direct=1", "--iodepth=16", "--userspace_reap"]);
}

/// It reads the ring without looking for the magic number, and waits for eventfds.
#[test]
fn qemu_img_reads_and_writes() {
    let scratch = scratch();
    let image = scratch.path().join("image");
    std::fs::write(&image, vec![5_u8; 16 << 20]).expect("an image");
    for write in [&["-w"][..], &[]] {
        let mut command = with(&installed("qemu-img"), Some("auto"));
        command.args(["bench", "-n", "-t", "none", "-f", "raw", "-c", "3000", "-d", "32"]);
        let lines = printed(command.args(write).arg(&image));
        assert!(lines.contains("Run completed"), "{lines}");
    }
}
