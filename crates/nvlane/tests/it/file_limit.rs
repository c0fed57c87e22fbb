//! The limit of a file's size, RLIMIT_FSIZE: a write beyond it fails, and the program lives on.

use crate::daemon::{ANYWHERE, PATIENCE, volume_of, wait};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

/// The program with a limit of 512 KiB, in blocks of 512 bytes.
fn limited(dir: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 1024; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_nvlane")]);
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).current_dir(dir);
    command
}

/// Two volumes, one of which has data.
fn volumes(dir: &Path) {
    fs::write(dir.join("from.img"), vec![7; 1 << 20]).unwrap();
    File::create(dir.join("to.img")).unwrap().set_len(1 << 20).unwrap();
}

/// It must have failed by itself, in one line.
fn said(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{} {said}", output.status);
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn a_served_volume_fails_the_write_and_is_served_on() {
    let dir = tempfile::tempdir().unwrap();
    volumes(dir.path());
    let mut child = limited(dir.path())
        .args(["serve", "to.img", "--data-dir", "data", "--socket", "s", "--listen", ANYWHERE])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let socket = dir.path().join("s");
    let volume = volume_of(&mut child, &socket);
    let write = |offset: &str| {
        let mut write = Command::new(env!("CARGO_BIN_EXE_nvlane"));
        write.args(["write", &volume, "--offset", offset]).stdin(Stdio::piped());
        let mut write = write.stderr(Stdio::piped()).spawn().unwrap();
        write.stdin.take().unwrap().write_all(&[9; 4096]).unwrap();
        write.wait_with_output().unwrap()
    };
    let since = Instant::now();
    let said = said(&write("768K"));
    assert!(said.contains("Capacity Exceeded"), "{said}");
    assert!(since.elapsed() < PATIENCE, "{said}");
    let within = write("64K");
    assert!(within.status.success(), "{}", String::from_utf8_lossy(&within.stderr));
    let id = child.id().to_string();
    assert!(Command::new("kill").arg(id).status().unwrap().success());
    assert_eq!(wait(&mut child).code(), Some(0));
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let told = log.lines().find(|line| line.contains("I/O of a volume has failed")).expect(&log);
    assert!(told.contains("lba=1536 blocks=8 status=Capacity Exceeded"), "{told}");
    assert!(told.contains("error=File too large (os error 27)"), "{told}");
    assert_eq!(fs::read(dir.path().join("to.img")).unwrap()[64 << 10..][..4096], [9; 4096]);
}

#[test]
fn copy_and_write_say_what_stopped_them() {
    let dir = tempfile::tempdir().unwrap();
    volumes(dir.path());
    for how in [&["copy", "from.img", "to.img"][..], &["copy", "from.img", "new.img", "--create"]] {
        let said = said(&limited(dir.path()).args(how).output().unwrap());
        assert!(said.starts_with("nvlane: "), "{said}");
    }
    let write = ["write", "to.img", "--input", "from.img"];
    let said = said(&limited(dir.path()).args(write).output().unwrap());
    assert!(said.contains("Capacity Exceeded"), "{said}");
}

/// What the program starts has what it would have without us.
#[test]
fn programs_that_it_starts_know_nothing_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let show = ["aio", "run", "--", "grep", "SigIgn", "/proc/self/status"];
    let output = limited(dir.path()).args(show).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let mask = said.strip_prefix("SigIgn:").unwrap_or_else(|| panic!("{output:?}")).trim();
    // SIGXFSZ is 25.
    assert_eq!(u64::from_str_radix(mask, 16).unwrap() & 1 << 24, 0, "{said}");
}
