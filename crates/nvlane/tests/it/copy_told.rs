//! What `nvlane copy` and `nvlane jobs wait` tell while they are at work: to whom, and what it was in the end.

use crate::copy::{file, pattern, said};
use crate::daemon::{nvlane, wait};
use crate::jobs::{part_of, start, unthrottle};
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

/// Both ends of a terminal: the user's, and the program's. No child of another test's gets them.
fn terminal() -> (File, OwnedFd) {
    let mut options = File::options();
    let user = options.read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/ptmx");
    let user = user.unwrap();
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::unlockpt(user.as_raw_fd()) }, 0);
    // SAFETY: the same, and the argument is flags.
    let program = unsafe { libc::ioctl(user.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    assert!(program >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: it was opened just now, and nobody else knows it.
    (user, unsafe { OwnedFd::from_raw_fd(program) })
}

/// What a program that must succeed writes to its output, and to a terminal that is its standard error. Calls `timed` once
/// that has said how long it takes still.
fn watched(command: &mut Command, timed: impl FnOnce() + Send) -> (String, String) {
    let (mut user, program) = terminal();
    let mut child = command.stdout(Stdio::piped()).stderr(program).spawn().unwrap();
    // The command has kept an end for another child.
    command.stderr(Stdio::null());
    let (status, screen) = std::thread::scope(|scope| {
        let screen = scope.spawn(move || {
            let (mut screen, mut timed) = (String::new(), Some(timed));
            let mut bytes = [0; 4096];
            // There is no end but an error, once nobody has the other side any more. All of it is ASCII.
            while let Ok(count @ 1..) = user.read(&mut bytes) {
                screen.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
                if screen.contains(" s left") {
                    timed.take().into_iter().for_each(|timed| timed());
                }
            }
            screen
        });
        (wait(&mut child), screen.join().unwrap())
    });
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(status.success(), "{screen}");
    (output, screen)
}

/// Lines of the kind `1 MiB of 3 MiB (33 %) copied, 2 MiB/s, 1 s left`, each written over the one before, and in the
/// end nothing.
fn check_lines(screen: &str) {
    assert!(!screen.contains('\n') && screen.ends_with('\r'), "{screen:?}");
    let lines: Vec<&str> = screen.split('\r').filter(|line| !line.is_empty()).collect();
    let Some((blank, lines)) = lines.split_last() else { panic!("nobody was told anything") };
    assert!(blank.trim().is_empty(), "{screen:?}");
    for line in lines {
        let is_one = line.contains(" of 3 MiB (") && line.contains(" %) copied, ");
        assert!(is_one && line.contains("/s"), "{line:?}");
    }
    assert!(lines.iter().any(|line| line.contains(" s left")), "{screen:?}");
}

/// Where no terminal is nobody is told anything before the end.
#[test]
fn progress_is_shown_on_terminals_and_what_was_done_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) =
        (file(dir.path(), "a", &pattern(3 << 20, 1)), file(dir.path(), "b", &[0; 3 << 20]));
    let args = ["copy", &a, &b, "--throttle", "2M"];
    let (output, screen) = watched(nvlane().args(args), || ());
    check_lines(&screen);
    let is_told = |output: &str, what: &str| {
        let rate = output.strip_prefix("copied 3 MiB in ").and_then(|rest| rest.split_once(" s, "));
        assert!(rate.is_some_and(|(_, rest)| rest.contains("iB/s: ")), "{output}");
        assert!(output.ends_with(&format!(": {what}\n")), "{output}");
    };
    is_told(&output, "3 MiB copied where it lies");
    let output = nvlane().args(args).arg("--read-write").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    is_told(&String::from_utf8(output.stdout).unwrap(), "3 MiB read and written");
    // Unless it is asked for.
    let output = nvlane().args(args).arg("-p").output().unwrap();
    check_lines(&String::from_utf8(output.stderr).unwrap());
}

#[test]
fn a_job_that_is_waited_for_is_shown_on_terminals() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), "a", &pattern(3 << 20, 1));
    file(dir.path(), "b", &[0; 3 << 20]);
    let daemon = start(dir.path());
    let wait_for_job = |id: u64, throttle: &str| {
        let wanted = json!({
            "sources": part_of("served:1"),
            "targets": part_of("served:2"),
            "options": {"throttle": throttle},
        });
        assert_eq!(daemon.call("job_add", wanted)["id"], id);
        let mut command = nvlane();
        command.args(["jobs", "wait", &id.to_string(), "--socket"]).arg(&daemon.socket);
        command
    };
    // Long enough for who begins to wait seconds later.
    let (output, screen) = watched(&mut wait_for_job(1, "100K"), || unthrottle(&daemon, 1));
    check_lines(&screen);
    assert!(output.contains("3 MiB of 3 MiB (100 %)"), "{output}");
    assert!(output.contains("3 MiB copied where it lies"), "{output}");
    let output = wait_for_job(2, "2M").output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// As nbdcopy has it.
#[test]
fn a_program_is_told_percents() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) =
        (file(dir.path(), "a", &pattern(3 << 20, 1)), file(dir.path(), "b", &[0; 3 << 20]));
    let told = dir.path().join("told");
    let shell = format!(
        "exec 3>{}; exec {} copy {a} {b} --throttle 2M --progress=3",
        told.display(),
        env!("CARGO_BIN_EXE_nvlane")
    );
    let output = Command::new("sh").args(["-c", &shell]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    let told = std::fs::read_to_string(told).unwrap();
    let percents: Vec<u64> = told
        .lines()
        .map(|line| line.strip_suffix("/100").and_then(|it| it.parse().ok()).expect(line))
        .collect();
    assert!(percents.len() > 3 && percents.is_sorted() && percents.ends_with(&[100]), "{told}");
    assert!(said(&[&a, &b, "--progress=77"]).contains("descriptor 77 is not open (EBADF)"));
}
