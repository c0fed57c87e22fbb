//! A volume that does not answer: a file of a file system in user space whose process is stopped. Nobody else waits for it.

use crate::daemon::{Daemon, ask, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

/// The failure that a volume makes.
const VOLUME: i64 = -32003;
/// The failure of what is there already.
const CONFLICT: i64 = -32002;

/// A file whose file system can be made to hang.
struct Hanging {
    server: Child,
    path: PathBuf,
}

impl Hanging {
    /// Where there is such a file system, and the user may mount one.
    fn start(dir: &Path, name: &str) -> Option<Hanging> {
        let (path, below) = (dir.join(name), dir.join(format!("{name}.below")));
        File::create_new(&path).unwrap();
        File::create_new(&below).unwrap().set_len(8 << 20).unwrap();
        let node = format!("driver=file,node-name=n,filename={}", below.display());
        let export = format!(
            "type=fuse,id=e,node-name=n,writable=on,growable=on,mountpoint={}",
            path.display()
        );
        let mut command = Command::new("qemu-storage-daemon");
        command.args(["--blockdev", &node, "--export", &export]).stdin(Stdio::null());
        let mut hanging = Hanging { server: command.spawn().ok()?, path };
        let mut has_ended = false;
        eventually("a file system or none", || {
            has_ended = hanging.server.try_wait().unwrap().is_some();
            has_ended || fs::metadata(&hanging.path).is_ok_and(|it| it.len() > 0)
        });
        (!has_ended).then_some(hanging)
    }

    /// Hangs until what is given is dropped, which has to be before a daemon that uses it: nothing ends that waits for it.
    fn stop(&self) -> Stopped {
        let server = Pid::from_child(&self.server);
        kill_process(server, Signal::STOP).unwrap();
        Stopped(server)
    }
}

/// A process that is stopped.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.server), Signal::TERM);
        let _ = self.server.wait();
    }
}

/// A call that may take longer than others have patience for.
fn later(daemon: &Daemon, method: &'static str, params: Value) -> thread::JoinHandle<Value> {
    let socket = daemon.socket.clone();
    thread::spawn(move || ask(&socket, method, params).unwrap())
}

fn bytes_of(daemon: &Daemon, nsid: u64) -> Option<u64> {
    let all = daemon.call("volume_list", json!({}));
    let one = all.as_array().unwrap().iter().find(|volume| volume["nsid"] == nsid)?;
    one["bytes"].as_u64()
}

#[test]
fn a_volume_that_hangs_keeps_no_other_call_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["a.img", "b.img"].map(|name| Hanging::start(dir.path(), name));
    let [Some(one), Some(other)] = files else {
        println!(
            "not checked: volumes that hang (qemu-storage-daemon with FUSE, and a user who may mount)"
        );
        return;
    };
    let growing = dir.path().join("growing.img");
    File::create_new(&growing).unwrap().set_len(1 << 20).unwrap();
    let daemon = Daemon::start(dir.path(), &["a.img", "growing.img", "mem:1M"]);
    assert_eq!(bytes_of(&daemon, 1), Some(8 << 20));

    // It gets no new size in time, and that is told; as are hosts, later.
    let stopped = one.stop();
    let resize = json!({"nsid": 1, "bytes": 16 << 20});
    assert_eq!(daemon.refuse("volume_resize", resize), VOLUME);
    let other_size = json!({"nsid": 1, "bytes": 32 << 20});
    assert_eq!(daemon.refuse("volume_resize", other_size), CONFLICT, "which would come first?");
    assert_eq!(bytes_of(&daemon, 1), Some(8 << 20));
    drop(stopped);
    eventually("it has grown", || bytes_of(&daemon, 1) == Some(16 << 20));
    eventually("hosts are told", || daemon.log().contains("a.img?bs=512: is now 16 MiB"));

    let stopped = [one.stop(), other.stop()];
    eventually("it is told", || daemon.log().contains("a.img?bs=512: does not answer"));
    // The sizes of others are looked at.
    File::options().write(true).open(&growing).unwrap().set_len(2 << 20).unwrap();
    eventually("the other has grown", || bytes_of(&daemon, 2) == Some(2 << 20));
    daemon.call("volume_resize", json!({"nsid": 3, "bytes": 4 << 20}));
    // One that cannot be opened is waited for by nobody but who wants it.
    let wanted = json!({"volume": other.path, "nsid": 7});
    let adds = later(&daemon, "volume_add", wanted.clone());
    eventually("it is being opened", || has_thread(&daemon, "open-volume"));
    assert_eq!(daemon.refuse("volume_add", wanted), CONFLICT, "once at a time");
    let added = daemon.call("volume_add", json!({"volume": "mem:1M"}));
    assert_eq!(added["nsid"], 4);
    daemon.call("volume_add", json!({"volume": "mem:2M", "nsid": 7}));
    assert!(!adds.is_finished());
    // Nor is one that cannot be flushed, for longer than what is in flight may take.
    let removes = later(&daemon, "volume_remove", json!({"nsid": 1}));
    eventually("it is removed", || bytes_of(&daemon, 1).is_none());
    daemon.call("stats", json!({}));
    assert!(!removes.is_finished());

    drop(stopped);
    assert_eq!(removes.join().unwrap()["result"], json!({}));
    let answer = adds.join().unwrap();
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("namespace 7") && message.contains("exists already"), "{answer}");
    // It was let go of.
    daemon.call("volume_add", json!({"volume": other.path}));
    drop(daemon);
}

/// Whether one of its threads is called so.
fn has_thread(daemon: &Daemon, name: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let mut names = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("comm")));
    names.any(|found| found.is_ok_and(|found| found.trim_end() == name))
}

/// A stop waits for it, names it, and leaves all others durable.
#[test]
fn a_stop_names_the_volume_that_it_waits_for() {
    let dir = tempfile::tempdir().unwrap();
    let Some(hanging) = Hanging::start(dir.path(), "a.img") else {
        println!("not checked: a stop while a volume hangs (qemu-storage-daemon with FUSE)");
        return;
    };
    let daemon = Daemon::start(dir.path(), &["a.img", "mem:1M"]);
    let stopped = hanging.stop();
    kill_process(Pid::from_raw(daemon.pid() as i32).unwrap(), Signal::TERM).unwrap();
    eventually("it is told", || daemon.log().contains("a.img?bs=512: is not flushed yet"));
    drop(stopped);
    let (status, log) = daemon.stop_with(&[]);
    assert!(status.success(), "{log}");
}
