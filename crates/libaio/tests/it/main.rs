//! Every case runs on Debian's libaio (package libaio1, or libaio1t64) and on ours, and must print the same.

mod cases;
mod depth;
mod extended;
mod leaks;
mod programs;
mod symbols;

use aio::stat::{Counter, Report, VARIABLE};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where Debian has the library; since Debian 13 under the second name.
const NATIVE: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/libaio.so.1", "/usr/lib/x86_64-linux-gnu/libaio.so.1t64"];

/// The library of libaio, to compare with.
fn native() -> PathBuf {
    let found = NATIVE.iter().map(PathBuf::from).find(|path| path.exists());
    found
        .expect("libaio is not installed: apt-get install libaio1, or libaio1t64 from Debian 13 on")
}

/// Our library, as built for this test.
fn ours() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().expect("a folder");
    let library = folder.join("libnvlane_aio.so");
    // Without it the programs would find the system's, and agree with it.
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// A folder with our library under both of its names.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["libaio.so.1", "libaio.so.1t64"] {
            symlink(ours(), folder.path().join(name)).expect("a link");
        }
        folder
    });
    made.path()
}

/// Compiles tests/c/NAME.c against a libaio.
fn compiled(name: &str, library: &Path, scratch: &Path) -> PathBuf {
    let program = scratch.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let output = Command::new("cc")
        .args(["-O1", "-g", "-Wall", "-Wno-unused-function", "-Werror", "-o"])
        .args([&program, &source, library])
        .args(["-lpthread", "-ldl"])
        .output()
        .expect("cc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A folder on a disk, for O_DIRECT.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a folder")
}

/// The command with one of the libraries: None for the system's.
fn with(program: &Path, mode: Option<&str>) -> Command {
    let mut command = Command::new("timeout");
    command.arg("120").arg(program);
    // cargo's own search path has our library in it.
    command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD").env_remove("NVLANE_AIO");
    if let Some(mode) = mode {
        command.env("LD_LIBRARY_PATH", folder()).env("NVLANE_AIO", mode);
    }
    command
}

/// The same command with precedence over what else runs, as far as that is permitted: for what depends on how soon a
/// program comes back.
fn preferred(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "-10"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}

/// Has every call of one kind refused in the program.
fn refuse_call(command: &mut Command, call: libc::c_long, errno: libc::c_int) {
    let step = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let give = libc::BPF_RET | libc::BPF_K;
    // The number of the call comes first in what a filter sees.
    let filter = [
        step(load, 0, 0, 0),
        step(equal, call as u32, 0, 1),
        step(give, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0),
        step(give, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    // SAFETY: two system calls, which are allowed between fork and exec; the filter is copied by the second.
    unsafe {
        command.pre_exec(move || {
            let (len, filter) = (filter.len() as u16, filter.as_ptr().cast_mut());
            let program = libc::sock_fprog { len, filter };
            let (own, mode) = (libc::PR_SET_NO_NEW_PRIVS, libc::SECCOMP_MODE_FILTER);
            let filtered = libc::prctl(own, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) == 0;
            if filtered { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
}

/// Which way the requests of a command went, children included.
struct Ways(Vec<(u32, Report)>);

impl Ways {
    /// Runs the command with our library, which tells.
    fn of<T>(command: &mut Command, run: impl Fn(&mut Command) -> T) -> (T, Ways) {
        let folder = tempfile::tempdir().expect("a folder");
        command.env(OsStr::from_bytes(VARIABLE.to_bytes()), folder.path());
        let done = run(command);
        (done, Ways(Report::kept_in(folder.path()).expect("what it did")))
    }

    fn count(&self, counter: Counter) -> u64 {
        self.0.iter().map(|(_, report)| report.total(counter)).sum()
    }

    /// Requests that did not go to the kernel's AIO.
    fn ours(&self) -> u64 {
        self.count(Counter::Ring) + self.count(Counter::Inline)
    }

    fn native(&self) -> u64 {
        self.count(Counter::Native)
    }
}

/// What a run printed; it must have succeeded.
fn printed(command: &mut Command) -> String {
    let output = command.output().expect("timeout(1)");
    let errors = String::from_utf8_lossy(&output.stderr);
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let last: Vec<&str> = lines.lines().rev().take(5).collect();
    assert!(output.status.success(), "{command:?}: {}: {errors}\n{last:?}", output.status);
    lines
}

/// A new folder below `parent`, the same for every run.
fn fresh(parent: &Path) -> PathBuf {
    let folder = parent.join("files");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).expect("a folder");
    folder
}
