//! Descriptors that the caller passes: each is what it was when the program began, or nothing.

use crate::daemon::{self, nvlane};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// `nvlane serve` of a file of zeroes, from a shell that does `before` first.
fn serve(dir: &Path, before: &str, fd: &str) -> Command {
    fs::write(dir.join("a.img"), vec![0; 1 << 20]).unwrap();
    let script = format!("{before}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_nvlane"), "serve", "a.img"]);
    command.args(["--data-dir", "data", "--socket", "s", "--listen", daemon::ANYWHERE]);
    command.args(["--ready-fd", fd]).current_dir(dir);
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

#[test]
fn one_that_nobody_passed_is_refused_and_no_volume_is_written() {
    let dir = tempfile::tempdir().unwrap();
    // One of these would be the volume's own.
    for fd in 5..=9 {
        let mut command = serve(dir.path(), "exec 5>&- 6>&- 7>&- 8>&- 9>&-", &fd.to_string());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // Where it does serve, this is past the readiness.
        if lines.any(|line| line.contains("nvme connect")) {
            let id = child.id().to_string();
            assert!(Command::new("kill").arg(id).status().unwrap().success());
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let is_written = fs::read(dir.path().join("a.img")).unwrap().iter().any(|byte| *byte != 0);
        assert!(!is_written, "descriptor {fd} was a volume's");
        let told = format!("nvlane: --ready-fd: descriptor {fd} is not open (EBADF)\n");
        assert_eq!((output.status.code(), said), (Some(1), told));
    }
    let copy = nvlane()
        .args(["copy", "mem:1M", "mem:1M", "--progress=99999"])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(copy.status.code(), Some(1));
    let said = String::from_utf8(copy.stderr).unwrap();
    assert_eq!(said, "nvlane: --progress: descriptor 99999 is not open (EBADF)\n");
}

#[test]
fn one_that_only_reads_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let output = serve(dir.path(), "exec 9<a.img", "9").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("descriptor 9 is not open for writing"), "{said}");
}

/// What is in a file already stays, however it was opened.
#[test]
fn files_are_written_where_they_stand() {
    let dir = tempfile::tempdir().unwrap();
    for before in
        ["echo first >o; exec 3>>o", "exec 3>o; echo first >&3", "exec 3>o 1>&3; echo first"]
    {
        let _ = fs::remove_file(dir.path().join("o"));
        let mut command = serve(dir.path(), before, "3");
        let mut child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let told = || fs::read_to_string(dir.path().join("o")).unwrap_or_default();
        daemon::eventually("readiness", || told().contains("\"nqns\""));
        assert!(told().starts_with("first\n"), "{before}: {}", told());
        assert_eq!(told().contains("ready; connect"), before.contains("1>&3"), "{before}");
        child.kill().unwrap();
        child.wait().unwrap();
        daemon::wait_for_lock(&dir.path().join("a.img"));
    }
    let copied = Command::new("sh")
        .args([
            "-c",
            "exec 3>o; echo first >&3; exec \"$0\" copy a.img b.img --create --progress=3",
        ])
        .arg(env!("CARGO_BIN_EXE_nvlane"))
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(copied.status.success());
    let told = fs::read_to_string(dir.path().join("o")).unwrap();
    assert!(told.starts_with("first\n") && told.ends_with("100/100\n"), "{told}");
}

#[test]
fn sockets_are_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(daemon::PATIENCE)).unwrap();
    let mut command = serve(dir.path(), ":", "1");
    command.stdout(Stdio::from(OwnedFd::from(theirs))).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut lines = BufReader::new(ours).lines().map_while(Result::ok);
    let ready = lines.find(|line| line.starts_with('{'));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ready.is_some(), "nothing was told");
}
