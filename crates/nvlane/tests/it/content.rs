//! `nvlane cat` and `nvlane write`: bytes go in and come out as they were, and what cannot be done is
//! refused before anything is written where that can be known.

use crate::daemon::{PATIENCE, nvlane, wait};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Output, Stdio};

/// A file volume of `bytes`.
fn volume(dir: &Path, bytes: u64) -> String {
    let path = dir.join("v.img");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Bytes of which no block is like another.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64 / 8)
        .flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

fn write(volume: &str, args: &[&str], input: &[u8]) -> Output {
    let mut child = nvlane()
        .args(["write", volume])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that refuses its input hangs up on it.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn cat(volume: &str, args: &[&str]) -> Vec<u8> {
    let output = nvlane().args(["cat", volume]).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The one line that a command which must fail says.
fn said(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn what_is_written_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let name = volume(dir.path(), 8 << 20);
    // More than is in flight at once, and not a whole number of commands.
    let data = pattern((5 << 20) + 512 * 3);
    let output = write(&name, &["--offset", "1M"], &data);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let whole = cat(&name, &[]);
    assert_eq!(whole.len(), 8 << 20);
    assert!(whole[..1 << 20].iter().all(|&byte| byte == 0));
    assert!(whole[1 << 20..][..data.len()] == data[..], "other bytes");
    assert!(whole[(1 << 20) + data.len()..].iter().all(|&byte| byte == 0));
    // Ranges need not be whole blocks.
    let from = (1 << 20) + 777;
    let part = cat(&name, &["--offset", &from.to_string(), "--length", "300001"]);
    assert!(part == whole[from..from + 300_001], "other bytes");
    assert!(cat(&name, &["--length", "0"]).is_empty());
    assert!(cat(&name, &["--offset", "8M"]).is_empty());
}

#[test]
fn a_file_is_written_from_where_it_stands_and_layers_are_passed() {
    let dir = tempfile::tempdir().unwrap();
    let name = volume(dir.path(), 1 << 20);
    let layered = format!("delay:1ms({name})");
    let file = dir.path().join("in");
    let data = pattern(64 << 10);
    fs::write(&file, &data).unwrap();
    let output = write(&layered, &["--input", file.to_str().unwrap()], &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(cat(&layered, &["--length", "64K"]) == data, "other bytes");
    assert!(fs::read(&name).unwrap()[..data.len()] == data[..], "not in the file");
}

#[test]
fn a_block_in_part_is_refused_or_filled_up() {
    let dir = tempfile::tempdir().unwrap();
    let name = volume(dir.path(), 1 << 20);
    fs::write(&name, vec![0xff; 1 << 20]).unwrap();
    let line = said(&write(&name, &[], b"hello"));
    assert!(line.contains("5 bytes into a block of 512") && line.contains("--pad"), "{line}");
    assert_eq!(fs::read(&name).unwrap()[..512], [0xff; 512], "written all the same");

    // Of a file it is known before anything is written.
    let file = dir.path().join("in");
    fs::write(&file, vec![1; 1000]).unwrap();
    let line = said(&write(&name, &["-i", file.to_str().unwrap()], &[]));
    assert!(line.contains("1000 bytes") && line.contains("--pad"), "{line}");
    assert_eq!(fs::read(&name).unwrap()[..512], [0xff; 512], "written all the same");

    let output = write(&name, &["--pad", "--offset", "512"], b"hello");
    assert!(output.status.success(), "{output:?}");
    let bytes = fs::read(&name).unwrap();
    assert_eq!(bytes[512..517], *b"hello");
    assert!(bytes[517..1024].iter().all(|&byte| byte == 0));
    assert!(bytes[1024..].iter().all(|&byte| byte == 0xff));
}

#[test]
fn what_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let name = volume(dir.path(), 1 << 20);
    let line = said(&write(&name, &["--offset", "1023K"], &pattern(4096)));
    assert!(line.contains("longer than"), "{line}");
    assert_eq!(cat(&name, &["--offset", "1023K"]), pattern(4096)[..1024], "what fits is written");
    let file = dir.path().join("in");
    fs::write(&file, vec![1; 4096]).unwrap();
    let line = said(&write(&name, &["--offset", "1023K", "-i", file.to_str().unwrap()], &[]));
    assert!(line.contains("4096 bytes is longer than the 1024"), "{line}");
    // Exactly to the end.
    let output = write(&name, &["--offset", "1023K"], &pattern(1024));
    assert!(output.status.success(), "{output:?}");

    for (args, part) in [
        (&["--offset", "100"][..], "start of one of its blocks"),
        (&["--offset", "2M"], "is beyond its end at 1048576"),
        (&["--input", "/does/not/exist"], "/does/not/exist"),
    ] {
        let line = said(&write(&name, args, &[]));
        assert!(line.contains(part), "{args:?}: {line}");
    }
    let line = said(&write(&format!("{name}?ro"), &[], &[0; 512]));
    assert!(line.contains("read-only"), "{line}");
    let output = nvlane().args(["cat", &name, "--offset", "1M", "--length", "1"]).output().unwrap();
    assert!(said(&output).contains("not within"), "{output:?}");
}

#[test]
fn a_command_that_fails_is_told_with_its_offset_and_status() {
    let dir = tempfile::tempdir().unwrap();
    let name = volume(dir.path(), 1 << 20);
    fs::write(&name, pattern(1 << 20)).unwrap();
    // The block at 512 KiB cannot be read: everything before that comes out.
    let volume = format!("fault:lba=1024,op=read({name})");
    let output = nvlane().args(["cat", &volume]).output().unwrap();
    let line = said(&output);
    assert!(line.contains("at offset 524288") && line.contains("Unrecovered Read"), "{line}");
    assert!(output.stdout == pattern(512 << 10), "{} bytes came", output.stdout.len());

    let volume = format!("fault:op=write,status=write-fault({name})");
    let line = said(&write(&volume, &[], &pattern(1 << 20)));
    assert!(line.contains("writing") && line.contains("Write Fault"), "{line}");
    let volume = format!("fault:op=flush,status=internal({name})");
    let line = said(&write(&volume, &[], &pattern(4096)));
    assert!(line.contains("flushing") && line.contains("Internal Error"), "{line}");
}

/// A failure is told at once, though the input is open and silent.
#[test]
fn a_failure_does_not_wait_for_the_input() {
    let dir = tempfile::tempdir().unwrap();
    let name = volume(dir.path(), 1 << 20);
    let volume = format!("fault:op=write,status=write-fault({name})");
    let mut child = nvlane()
        .args(["write", &volume])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // It may have failed before it took everything.
    let _ = stdin.write_all(&pattern(256 << 10));
    let status = wait(&mut child);
    drop(stdin);
    assert_eq!(status.code(), Some(1));
    let mut line = String::new();
    child.stderr.take().unwrap().read_to_string(&mut line).unwrap();
    assert!(line.contains("Write Fault"), "{line}");
}

/// `nvlane cat ... | head`.
#[test]
fn a_broken_pipe_ends_quietly() {
    let mut child = nvlane()
        .args(["cat", "null:64M"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut some = [1; 100];
    stdout.read_exact(&mut some).unwrap();
    assert_eq!(some, [0; 100]);
    drop(stdout);
    let started = std::time::Instant::now();
    assert!(wait(&mut child).success());
    assert!(started.elapsed() < PATIENCE);
    let mut line = String::new();
    child.stderr.take().unwrap().read_to_string(&mut line).unwrap();
    assert_eq!(line, "");
}

/// What was done is done, whether anybody reads what is said of it.
#[test]
fn commands_end_well_where_nobody_reads_what_they_say() {
    let shut = || Stdio::from(std::io::pipe().unwrap().1);
    let output = nvlane().args(["bench", "--list"]).stdout(shut()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let read = ["io", "mem:1M", "-O", "2", "-l", "512", "-r", "--raw-binary"];
    let output = nvlane().args(read).stderr(shut()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, [0; 512]);
    // What has failed has, and what is to be done is done.
    let dir = tempfile::tempdir().unwrap();
    let (a, nothing) = (dir.path().join("a"), dir.path().join("nothing"));
    fs::write(&a, pattern(4096)).unwrap();
    fs::write(&nothing, "").unwrap();
    let (a, nothing) = (a.to_str().unwrap(), nothing.to_str().unwrap());
    for args in [
        &["io", a, "-O", "0x90", "-l", "512", "-r", "-o", "json"][..],
        &["io", a, "-O", "0x90", "-l", "512", "-r", "--latency"],
        &["bpf", "check", nothing],
        &["list-subsys", "tcp://127.0.0.1:1/nqn.x:y"],
    ] {
        let output = nvlane().args(args).stdout(shut()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
    let write = ["io", a, "-O", "1", "-l", "512", "-w", "-s", "-i", "/dev/zero"];
    let output = nvlane().args(write).stdout(shut()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read(a).unwrap()[..512], [0; 512]);
}

/// As one that somebody cuts off meanwhile: such a file says that it has a page, and has a few bytes.
#[test]
fn an_input_that_ends_early_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let a = dir.path().join("a");
    fs::write(&a, pattern(8192)).unwrap();
    let input = "/sys/devices/system/cpu/online";
    let (size, has) = (fs::metadata(input).unwrap().len(), fs::read(input).unwrap().len());
    assert!(size > has as u64 && size <= 8192, "{size}, {has}");
    let args = ["write", a.to_str().unwrap(), "--input", input, "--pad"];
    let line = said(&nvlane().args(args).output().unwrap());
    assert!(line.contains(&format!("the input of {size} bytes ended after {has}")), "{line}");
    assert!(fs::read(&a).unwrap() == pattern(8192));
}

/// As `copy` refuses it: no volume shows those bytes.
#[test]
fn a_file_with_bytes_behind_its_last_block_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a");
    fs::write(&file, pattern(1000)).unwrap();
    let name = file.to_str().unwrap();
    let line = said(&nvlane().args(["cat", name]).output().unwrap());
    assert!(line.contains("the last 488 bytes are no whole block of 512"), "{line}");
    assert_eq!(cat(name, &["--length", "512"]), pattern(1000)[..512]);
}

/// Children are gone before they are waited for where SIGCHLD is ignored, which programs inherit.
#[test]
fn a_program_is_waited_for_whatever_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let stat = dir.path().join("stat.json");
    let run = [env!("CARGO_BIN_EXE_nvlane"), "aio", "run", "--stat", stat.to_str().unwrap()];
    let mut command = std::process::Command::new("env");
    // What else is ignored, it ignores as well.
    let script = "grep SigIgn /proc/self/status; exit 3";
    command.args(["--ignore-signal=CHLD", "--ignore-signal=HUP"]).args(run);
    let output = command.args(["--", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    let mask = said.strip_prefix("SigIgn:").unwrap_or_else(|| panic!("{output:?}")).trim();
    assert_eq!(u64::from_str_radix(mask, 16).unwrap() & 1, 1, "{said}");
    assert!(fs::read_to_string(&stat).unwrap().contains("\"total\""));
}
