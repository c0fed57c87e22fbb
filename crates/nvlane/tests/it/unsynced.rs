//! What is written and renamed, and not durable, as its directory cannot be synced: whoever asked for it is told that it was
//! not done, and a later start must not find it all the same.

use crate::daemon::Daemon;
use crate::jobs::{part_of, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const UNSAVED: i64 = -32004;

/// The next fsync of a directory fails that comes when the file is there that the variable names.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int fsync(int fd) {
    const char *armed = getenv("FAILS_ONCE");
    struct stat found;
    if (armed && !fstat(fd, &found) && S_ISDIR(found.st_mode) && !unlink(armed)) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_fsync, fd);
}
"#;

/// A daemon whose directories fail to be synced once after each [`Rig::arm`].
struct Rig {
    dir: TempDir,
    shim: PathBuf,
    armed: PathBuf,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let [source, shim, armed] =
            ["shim.c", "shim.so", "armed"].map(|name| dir.path().join(name));
        fs::write(&source, SHIM).unwrap();
        let mut command = Command::new("cc");
        command.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
        assert!(command.args([&shim, &source]).status().expect("a compiler").success());
        Rig { dir, shim, armed }
    }

    fn start(&self, args: &[&str]) -> Daemon {
        let environment = [("LD_PRELOAD", &*self.shim), ("FAILS_ONCE", &*self.armed)];
        Daemon::start_with(self.dir.path(), args, &environment)
    }

    fn arm(&self) {
        fs::write(&self.armed, "").unwrap();
    }

    /// Calls what cannot be saved, and starts the daemon again.
    fn refused(&self, daemon: Daemon, args: &[&str], method: &str, params: Value) -> Daemon {
        self.arm();
        assert_eq!(daemon.refuse(method, params), UNSAVED, "{method}");
        assert!(!self.armed.exists());
        daemon.kill();
        self.start(args)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }
}

#[test]
fn a_change_is_not_there_after_a_restart() {
    let rig = Rig::new();
    let object = |name: &str| {
        let path = format!("{}/../../bpf/{name}.bpf.o", env!("CARGO_MANIFEST_DIR"));
        fs::canonicalize(Path::new(&path)).unwrap().to_str().unwrap().to_owned()
    };
    let args = [&*format!("bpf:{}(mem:1M)", object("statistics"))];
    let daemon = rig.start(&args);
    let before = daemon.call("config_get", json!({}));
    let host = json!({"host": "nqn.2014-08.org.example:host1"});
    let daemon = rig.refused(daemon, &args, "host_allow", host);
    assert_eq!(daemon.call("config_get", json!({}))["subsystems"], before["subsystems"]);
    let program = json!({"nsid": 1, "object": object("linear")});
    let daemon = rig.refused(daemon, &args, "volume_program", program);
    assert_eq!(daemon.call("config_get", json!({}))["subsystems"], before["subsystems"]);
}

#[test]
fn a_job_that_was_refused_does_not_begin_after_a_restart() {
    let rig = Rig::new();
    let args = ["mem:1M"];
    let [a, b] = ["a", "b"].map(|name| rig.path(name));
    fs::write(&a, vec![7; 1 << 20]).unwrap();
    fs::write(&b, vec![0; 1 << 20]).unwrap();
    let copy = |to: &str| json!({"sources": part_of(&a), "targets": part_of(to)});
    let daemon = rig.start(&args);
    // Their directory is there from then on.
    fs::write(rig.path("c"), vec![0; 1 << 20]).unwrap();
    daemon.call("job_add", copy(&rig.path("c")));
    wait_for(&daemon, 1, "done");
    let jobs = daemon.call("job_list", json!({}));
    let daemon = rig.refused(daemon, &args, "job_add", copy(&b));
    assert_eq!(daemon.call("job_list", json!({})), jobs);
    assert!(fs::read(&b).unwrap() == vec![0; 1 << 20], "it was copied all the same");

    // One that is paused stays so.
    let mut slow = copy(&format!("delay:write=1s({b})"));
    slow["options"] = json!({"requests": 1, "request_bytes": 65536});
    daemon.call("job_add", slow);
    daemon.call("job_pause", json!({"id": 2}));
    wait_for(&daemon, 2, "paused");
    let daemon = rig.refused(daemon, &args, "job_resume", json!({"id": 2}));
    wait_for(&daemon, 2, "paused");
}
