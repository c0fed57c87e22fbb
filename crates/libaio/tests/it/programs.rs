//! Programs that are linked to libaio, with our library in its place.

use super::*;

/// The program's path; these are in the list of packages that the tests need.
fn installed(name: &str) -> PathBuf {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|folder| folder.join(name))
        .find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not installed"))
}

/// Runs it; tells which way its requests went.
fn fio(arguments: &[&str]) -> Ways {
    let scratch = scratch();
    let file = scratch.path().join("data");
    let mut command = with(&installed("fio"), Some("auto"));
    command.arg("--name=verify").arg(format!("--filename={}", file.display()));
    command.args(["--ioengine=libaio", "--rw=randrw", "--bssplit=4k/60:16k/30:128k/10"]);
    command.args(["--size=24M", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]);
    command.args(["--output-format=terse"]).args(arguments);
    let (line, ways) = Ways::of(command.current_dir(scratch.path()), printed);
    let jobs: Vec<Vec<&str>> = line.lines().map(|line| line.split(';').collect()).collect();
    assert!(!jobs.is_empty());
    for fields in jobs.iter().filter(|fields| fields.len() > 40) {
        assert_eq!(fields[4], "0", "fio's error: {line}");
    }
    ways
}

/// Nearly all was ours: the kernel has what came before the program was known.
fn all_but_the_first(ways: &Ways, counter: Counter) {
    let (here, native) = (ways.count(counter), ways.native());
    assert!(here > 10 * native && here > 500, "{counter:?}: {here}, native: {native}");
}

/// As it does by itself: each submitted by a call of its own, which is the kernel's once it is known.
#[test]
fn fio_verifies_what_it_writes_past_the_page_cache() {
    let ways = fio(&["--direct=1", "--iodepth=32"]);
    let (ring, native) = (ways.count(Counter::Ring), ways.native());
    assert!(ring >= 250 && native > 2_000, "{ring} by io_uring, {native} natively");
}

/// One at a time, each waited for at once: they are read and written where they are submitted, or go to the kernel where fio does more in between.
#[test]
fn fio_verifies_what_it_writes_one_by_one() {
    let ways = fio(&["--direct=1", "--iodepth=1"]);
    let [ring, here] = [Counter::Ring, Counter::Inline].map(|counter| ways.count(counter));
    let native = ways.native();
    println!("{ring} by io_uring, {here} at once, {native} natively");
    assert!(ring >= 100 && here + native > 10 * 128, "{ring}, {here} at once, {native} natively");
}

#[test]
fn fio_verifies_what_it_writes_in_batches() {
    let batches = ["--iodepth=64", "--iodepth_batch=16", "--iodepth_batch_complete_min=8"];
    all_but_the_first(&fio(&[&["--direct=1"], &batches[..]].concat()), Counter::Ring);
}

#[test]
fn fio_verifies_what_it_writes_through_the_page_cache() {
    all_but_the_first(&fio(&["--direct=0", "--iodepth=16", "--fsync=50"]), Counter::Inline);
}

#[test]
fn fio_verifies_what_it_writes_from_threads() {
    let batches = ["--iodepth=32", "--iodepth_batch=16", "--iodepth_batch_complete_min=8"];
    let threads = ["--direct=1", "--thread", "--numjobs=4", "--offset_increment=24M"];
    all_but_the_first(&fio(&[&threads[..], &batches].concat()), Counter::Ring);
}

/// Processes that are forked once the library is there, and threads that share it.
#[test]
fn fio_verifies_what_several_write_through_the_page_cache() {
    let own = ["--direct=0", "--iodepth=16", "--size=6M", "--offset_increment=6M"];
    for jobs in [&["--numjobs=2"][..], &["--numjobs=4", "--thread"]] {
        all_but_the_first(&fio(&[&own[..], jobs].concat()), Counter::Inline);
    }
}

#[test]
fn fio_verifies_when_it_reads_the_ring_itself() {
    let reader = ["--direct=1", "--iodepth=16", "--userspace_reap"];
    let ways = fio(&[&reader[..], &["--iodepth_batch_complete_min=0"]].concat());
    assert!(ways.ours() == 0 && ways.native() > 500, "{} of {}", ways.ours(), ways.native());
    fio(&reader);
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
        let (lines, ways) = Ways::of(command.args(write).arg(&image), printed);
        assert!(lines.contains("Run completed"), "{lines}");
        assert!(ways.ours() == 0 && ways.native() >= 3000, "{}: {}", ways.ours(), ways.native());
    }
}

/// And what it has read is what it has written, by one request and by several in flight.
#[test]
fn qemu_io_verifies_what_it_writes() {
    let scratch = scratch();
    let image = scratch.path().join("image");
    std::fs::write(&image, vec![5_u8; 4 << 20]).expect("an image");
    let qemu_io = |commands: &[&str]| {
        let mut command = with(&installed("qemu-io"), Some("auto"));
        command.args(["--native-aio", "--cache=none", "--format=raw"]);
        command.args(commands.iter().flat_map(|line| ["-c", line])).arg(&image);
        Ways::of(&mut command, |command| command.output().expect("timeout(1)"))
    };
    let (output, ways) = qemu_io(&[
        "write -P 0x5a 0 1M",
        "read -P 0x5a 0 1M",
        "aio_write -P 0x5b 1M 64k",
        "aio_write -P 0x5c 1088k 64k",
        "aio_flush",
        "aio_read -P 0x5b 1M 64k",
        "aio_read -P 0x5c 1088k 64k",
        "aio_flush",
        "read -P 5 2M 1M",
    ]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !said.contains("failed"), "{output:?}");
    assert!(ways.ours() == 0 && ways.native() >= 7, "{}: {}", ways.ours(), ways.native());
    let written = std::fs::read(&image).expect("the image");
    let ends = [(0x5a, 1 << 20), (0x5b, 1088 << 10), (0x5c, 1152 << 10), (5, 4 << 20)];
    let mut from = 0;
    for (byte, to) in ends {
        assert!(written[from..to].iter().all(|&found| found == byte), "{from} to {to}");
        from = to;
    }
    // It would have said so.
    let (output, _) = qemu_io(&["read -P 0x5b 0 1M"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
