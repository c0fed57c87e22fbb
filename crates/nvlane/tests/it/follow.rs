//! `discovery://` volumes: the server's listeners come and go, and whoever has the volume follows without an error.

use crate::daemon::{ANYWHERE, Daemon, PATIENCE, eventually, nvlane, wait};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const NQN: &str = "nqn.2026-11.com.example:a";

/// A volume behind a discovery controller, at an NBD door with a control socket. Killed when dropped.
struct Door(Child);

impl Door {
    fn start(dir: &Path, volume: &str) -> Door {
        let mut command = nvlane();
        command.args(["nbd", volume, "--socket", "n.sock", "--control", "n.control"]);
        let mut child = command.current_dir(dir).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "ready"), "{:?}", child.wait());
        Door(child)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn json_of(dir: &Path, args: &[&str]) -> Value {
    let output = nvlane().args(args).args(["-o", "json"]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The door's paths, each with whether it can be used, sorted.
fn paths(dir: &Path) -> Vec<(String, bool)> {
    let told = json_of(dir, &["paths", "--socket", "n.control"]);
    let paths = told["volumes"][0]["paths"].as_array().unwrap().iter();
    let mut paths: Vec<_> = paths
        .map(|path| {
            let name = path["name"].as_str().unwrap().to_owned();
            (name, path["access"] == "optimized")
        })
        .collect();
    paths.sort();
    paths
}

#[test]
fn a_door_follows_the_listeners_of_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["a.img?size=16M&create", "--nqn", NQN, "--listen", ANYWHERE];
    let daemon = Daemon::start(dir.path(), &args);
    let mut at = daemon.listeners[0].to_string();
    let volume = format!("discovery://{at}/{NQN}?ns=1");
    let mut door = Door::start(dir.path(), &volume);
    let await_paths = |addresses: &[&str]| {
        let mut wanted: Vec<_> =
            addresses.iter().map(|address| (format!("tcp://{address}"), true)).collect();
        wanted.sort();
        eventually(&format!("{wanted:?}"), || paths(dir.path()) == wanted);
    };
    await_paths(&[&at]);
    // Whatever moves, nothing that was written comes back otherwise, and nothing fails.
    let mut load = Command::new("timeout");
    load.args(["100", "fio", "--name=load", "--ioengine=nbd", "--uri=nbd+unix:///?socket=n.sock"]);
    load.args(["--rw=randrw", "--bsrange=512-64k", "--bs_unaligned=0", "--iodepth=16"]);
    load.args(["--size=16M", "--time_based", "--runtime=90", "--verify=crc32c"]);
    load.args(["--verify_fatal=1", "--verify_state_save=0", "--verify_backlog=64"]);
    load.args(["--serialize_overlap=1", "--rate_iops=2000", "--output-format=terse"]);
    let mut load = load.current_dir(dir.path()).stdout(Stdio::null()).spawn().unwrap();
    let goes_on = || {
        let sent = || {
            let told = json_of(dir.path(), &["paths", "--socket", "n.control"]);
            let paths = told["volumes"][0]["paths"].as_array().unwrap().clone();
            paths.iter().map(|path| path["selections"].as_u64().unwrap()).sum::<u64>()
        };
        let before = sent();
        eventually("fio goes on", || sent() > before + 100);
    };
    for _ in 0..4 {
        goes_on();
        let added = daemon.call("listener_add", json!({"address": ANYWHERE}));
        let next = added["address"].as_str().unwrap().to_owned();
        await_paths(&[&at, &next]);
        daemon.call("listener_remove", json!({"address": at}));
        await_paths(&[&next]);
        at = next;
    }
    goes_on();
    // SIGINT has fio finish with what it has to verify; on a slow machine it has ended before, by itself.
    Command::new("pkill").args(["-INT", "-P", &load.id().to_string()]).status().unwrap();
    let ended = wait(&mut load);
    // 128: by the signal.
    assert!(matches!(ended.code(), Some(0 | 128)), "fio has found an error: {ended}");

    // Commands that ask a controller find it the same way, and say what the discovery controller says.
    let volume = format!("discovery://{at}/{NQN}?ns=1");
    let subsystem = &json_of(dir.path(), &["list-subsys", &volume])["Subsystems"][0];
    assert_eq!((&subsystem["NQN"], &subsystem["Paths"][0]["State"]), (&json!(NQN), &json!("live")));
    assert_eq!(json_of(dir.path(), &["id-ctrl", &volume])["subnqn"], NQN);
    let output = nvlane().args(["info", &volume]).output().unwrap();
    let info = String::from_utf8(output.stdout).unwrap();
    assert!(
        info.contains(&format!("discovery {at}")) && info.contains("names 1 address "),
        "{info}"
    );
    let wrong = volume.replace(NQN, "nqn.x:y");
    for command in ["info", "id-ctrl"] {
        let output = nvlane().args([command, &wrong]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.lines().count() == 1 && said.contains("nqn.x:y"), "{said}");
    }

    // The server is gone for a while: what waits goes on when it is back, though nobody can be asked meanwhile.
    daemon.kill();
    eventually("the path is lost", || paths(dir.path()).iter().all(|(_, usable)| !usable));
    let mut copy = Command::new("timeout");
    copy.args([&PATIENCE.as_secs().to_string(), "nbdcopy", "nbd+unix:///?socket=n.sock", "back"]);
    let mut copy = copy.current_dir(dir.path()).spawn().unwrap();
    let args = ["a.img?size=16M&create", "--nqn", NQN, "--listen", &at];
    let daemon = Daemon::start(dir.path(), &args);
    assert!(wait(&mut copy).success());
    daemon.stop("TERM");
    assert!(
        std::fs::read(dir.path().join("back")).unwrap()
            == std::fs::read(dir.path().join("a.img")).unwrap()
    );
    door.0.kill().unwrap();
}
