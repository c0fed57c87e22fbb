//! `nvlane serve` from outside: readiness, stopping, and the errors that users meet.

use crate::daemon::{self, Daemon, eventually, nvlane};
use serde_json::json;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs a command that must fail; gives the one line that it says.
fn fails(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{command:?} said {said:?}");
    assert_eq!(said.lines().count(), 1, "{command:?} said {said:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "{command:?}");
    said
}

fn serve(dir: &Path, volume: &str) -> Command {
    let mut command = nvlane();
    command.args(["serve", volume, "--listen", "127.0.0.1:0"]);
    command.arg("--data-dir").arg(dir.join("other")).arg("--socket").arg(dir.join("other.s"));
    command
}

#[test]
fn a_volume_that_cannot_be_served_costs_one_line_and_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img");
    let name = path.to_str().unwrap();

    let said = fails(&mut serve(dir.path(), name));
    assert!(said.contains(name) && said.contains("not exist"), "{said}");
    assert!(!path.exists(), "it was made");

    fs::write(&path, [7; 511]).unwrap();
    let said = fails(&mut serve(dir.path(), name));
    assert!(said.contains(name) && said.contains("less than one block"), "{said}");
    assert_eq!(fs::read(&path).unwrap(), [7; 511]);

    for (volume, part) in [("wat:1G", "wat"), ("mem:much", "much"), ("mem:100", "100")] {
        let said = fails(&mut serve(dir.path(), volume));
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn what_a_volume_leaves_out_of_its_file_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img");
    for (bytes, is_told) in [((1 << 20) + 7, true), (1 << 20, false)] {
        File::create(&path).unwrap().set_len(bytes).unwrap();
        let daemon = Daemon::start(dir.path(), &[path.to_str().unwrap()]);
        assert_eq!(daemon.call("volume_list", json!({}))[0]["bytes"], 1 << 20);
        let (_, log) = daemon.stop("TERM");
        assert_eq!(log.contains("its last 7 bytes are no whole block"), is_told, "{log}");
    }
}

#[test]
fn a_volume_that_may_not_be_read_costs_one_line() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = dir.path().join("a.img");
    fs::write(&path, [7; 8192]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = serve(dir.path(), path.to_str().unwrap());
    if fs::metadata(dir.path()).unwrap().uid() == 0 {
        // Root may read anything, so somebody else has to try, with a binary within reach.
        let binary = dir.path().join("nvlane");
        // By a program of its own: written by this one, it would stay open for writing in a child of another test that
        // has not begun its program yet, and nobody could run it.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_nvlane")).arg(&binary).status();
        assert!(copied.unwrap().success());
        let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = Command::new(binary);
        command.args(args).current_dir("/").uid(65534).gid(65534);
    }
    let said = fails(&mut command);
    assert!(said.contains("a.img") && said.to_lowercase().contains("permission"), "{said}");
}

#[test]
fn a_volume_has_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let name = path.to_str().unwrap();
    let daemon = Daemon::start(dir.path(), &[name]);
    let before = fs::metadata(&path).unwrap();
    let said = fails(&mut serve(dir.path(), name));
    assert!(said.contains(name) && said.contains("already"), "{said}");
    assert_eq!(fs::metadata(&path).unwrap().mtime_nsec(), before.mtime_nsec());
    // The first one serves on.
    assert_eq!(daemon.call("volume_list", json!({}))[0]["bytes"], 1 << 20);
}

#[test]
fn two_gateways_share_a_volume_when_both_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let uuid = "b0c2a1f6-7d8e-4f3a-9b1c-2d3e4f5a6b7c";
    let gateway = |place: &str, ids: &str| {
        let place = dir.path().join(place);
        fs::create_dir(&place).unwrap();
        let nqn = "nqn.2026-11.com.example:a";
        let path = path.to_str().unwrap();
        Daemon::start(&place, &[path, "--shared", "--nqn", nqn, "--uuid", uuid, "--cntlid", ids])
    };
    let one = gateway("one", "1-1000");
    let two = gateway("two", "1001-2000");
    for daemon in [&one, &two] {
        assert_eq!(daemon.call("volume_list", json!({}))[0]["uuid"], uuid);
    }
    let said = fails(&mut serve(dir.path(), path.to_str().unwrap()));
    assert!(said.contains("already"), "{said}");

    // A third one may not have ids that another has, unless that one is gone, however it went.
    let nqn = "nqn.2026-11.com.example:a";
    let third = |ids: &str| {
        let mut command = serve(dir.path(), path.to_str().unwrap());
        command.args(["--shared", "--nqn", nqn, "--uuid", uuid, "--cntlid", ids]);
        command
    };
    let said = fails(&mut third("2000-3000"));
    assert!(said.contains("--cntlid") && said.contains("2000-3000"), "{said}");
    two.kill();
    let _three = gateway("three", "2000-3000");
}

#[test]
fn sharing_takes_all_that_two_servers_must_agree_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let flags = [
        ("--nqn", "nqn.2026-11.com.example:a"),
        ("--uuid", "b0c2a1f6-7d8e-4f3a-9b1c-2d3e4f5a6b7c"),
        ("--cntlid", "1-1000"),
    ];
    for left_out in flags {
        let mut command = serve(dir.path(), path.to_str().unwrap());
        command.arg("--shared");
        for (flag, value) in flags.iter().filter(|flag| **flag != left_out) {
            command.args([flag, value]);
        }
        let said = fails(&mut command);
        assert!(said.contains(left_out.0), "{said}");
    }
}

#[test]
fn wrong_command_lines_and_files_cost_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("nvlane.toml");
    fs::write(&config, "[[subsystems]]\nnqn = \"nqn.2026-11.com.example:a\"\nserail = \"1\"\n")
        .unwrap();
    let said = fails(nvlane().arg("serve").arg("--config").arg(&config));
    assert!(said.contains("nvlane.toml: line 3") && said.contains("serail"), "{said}");
    let said = fails(nvlane().arg("serve").arg("--config").arg(dir.path().join("none.toml")));
    assert!(said.contains("none.toml"), "{said}");
    let said = fails(nvlane().args(["serve", "--lisen", "127.0.0.1"]));
    assert!(said.contains("--lisen"), "{said}");
    let said = fails(nvlane().args(["serve", "mem:1M", "--log", "a=b=c"]));
    assert!(said.contains("--log"), "{said}");
    let said = fails(nvlane().args(["ctl", "stats", "--socket"]).arg(dir.path().join("none")));
    assert!(said.contains("none") && said.contains("nvlane serve"), "{said}");
    let said = fails(
        serve(dir.path(), "mem:1M")
            .args(["--uuid", "b0c2a1f6-7d8e-4f3a-9b1c-2d3e4f5a6b7c"])
            .args(["--uuid", "b0c2a1f6-7d8e-4f3a-9b1c-2d3e4f5a6b7d"]),
    );
    assert!(said.contains("--uuid"), "{said}");
}

#[test]
fn mistakes_of_newcomers_cost_one_line_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("own.img");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let link = dir.path().join("link.img");
    std::os::unix::fs::symlink(&image, &link).unwrap();
    let (image, link) = (image.to_str().unwrap(), link.to_str().unwrap());
    let uuid = "b0c2a1f6-7d8e-4f3a-9b1c-2d3e4f5a6b7c";
    let shared = ["--shared", "--nqn", "nqn.2026-11.com.example:a", "--cntlid", "1-9", "--uuid"];
    for (args, parts) in [
        (vec![link], vec!["own.img", "link.img", "twice"]),
        (vec!["--nqn", "bogus"], vec!["bogus", "nqn."]),
        (vec!["--allow-host", "bo gus"], vec!["bo gus", "nqn."]),
        (vec!["--log", "bogus,,"], vec!["bogus,,", "error, warn, info, debug, trace"]),
        (
            vec!["--listen", "no.such.host.invalid:1"],
            vec!["no.such.host.invalid", "127.0.0.1:4420"],
        ),
        (
            vec!["--listen", "0.0.0.0:4499", "--listen", "127.0.0.1:4499"],
            vec!["0.0.0.0:4499 covers"],
        ),
        (vec!["/does/not/exist"], vec!["/does/not/exist"]),
    ] {
        let said = fails(serve(dir.path(), image).args(&args));
        assert!(parts.iter().all(|part| said.contains(part)), "{args:?}: {said}");
    }
    let said = fails(serve(dir.path(), "mem:1M").args(shared).arg(uuid));
    assert!(said.contains("cannot be shared"), "{said}");
    let mut left: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["link.img", "own.img"]);

    let said = fails(nvlane().args(["ctl", "host", "allow", "bo gus"]));
    assert!(said.contains("bo gus") && said.contains("nqn."), "{said}");
    let saved = dir.path().join("saved.json");
    fs::write(&saved, "[]").unwrap();
    let said = fails(nvlane().args(["config", "import"]).arg(&saved));
    assert!(said.contains("no nvmetcli file"), "{said}");
}

#[test]
fn a_hosts_name_is_listened_on_and_too_many_cores_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &["mem:1M", "--listen", "localhost:0", "--cores", "64"]);
    assert!(daemon.listeners[0].ip().is_loopback());
    let (status, log) = daemon.stop("TERM");
    assert!(status.success());
    let processors = std::thread::available_parallelism().unwrap().get();
    assert_eq!(log.contains("64 threads share"), processors < 64, "{log}");
}

#[test]
fn an_address_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &["mem:1M"]);
    let address = daemon.listeners[0].to_string();
    let mut command = nvlane();
    command.args(["serve", "mem:1M", "--log", "error", "--listen", &address]);
    command.arg("--data-dir").arg(dir.path().join("other"));
    let said = fails(command.arg("--socket").arg(dir.path().join("other.s")));
    assert!(said.contains(&address), "{said}");
    assert_eq!(said.matches("in use").count(), 1, "{said}");
}

#[test]
fn signals_stop_it_in_order() {
    for signal in ["TERM", "INT", "HUP"] {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(dir.path(), &["mem:1M"]);
        let address = daemon.listeners[0];
        let connection = TcpStream::connect(address).unwrap();
        let (status, log) = daemon.stop(signal);
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains("everything is flushed"), "{log}");
        drop(connection);
        // The kernel's ring lets go of the socket a moment later.
        eventually("no listener", || TcpStream::connect(address).is_err());
        assert!(!dir.path().join("s").exists(), "the socket is left");
    }
}

/// Whoever read the log may be gone first: nobody's storage goes with it.
#[test]
fn it_serves_on_and_stops_in_order_when_nobody_reads_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = serve(dir.path(), "mem:1M");
    command
        .args(["--ready-fd", "1", "--log", "debug"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stderr.take());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let ready = lines.find(|line| line.starts_with('{')).expect("it is ready");
    let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
    let address = ready["listeners"][0].as_str().unwrap();
    // What is no PDU is told in the log.
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(&[0xff; 64]).unwrap();
    let _ = peer.read_to_end(&mut Vec::new());
    TcpStream::connect(address).expect("it still serves");
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
    assert_eq!(daemon::wait(&mut child).code(), Some(0));
    // Nor does a supervisor who has gone keep it from serving.
    let mut child = serve(dir.path(), "mem:1M")
        .args(["--ready-fd", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let socket = dir.path().join("other.s");
    eventually("a control socket", || daemon::ask(&socket, "volume_list", json!({})).is_ok());
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
    assert_eq!(daemon::wait(&mut child).code(), Some(0));
}

/// `timeout` tells a process and then its group, which is the process again.
#[test]
fn told_twice_at_once_it_still_flushes() {
    for signals in [["TERM", "TERM"], ["TERM", "INT"], ["HUP", "TERM"]] {
        // Where the machine stands still for a second between the two, the second one is meant.
        let flushed = (0..3).any(|_| {
            let dir = tempfile::tempdir().unwrap();
            let daemon = Daemon::start(dir.path(), &["--size", "64M"]);
            let (status, log) = daemon.stop_with(&signals);
            status.code() == Some(0) && log.contains("everything is flushed")
        });
        assert!(flushed, "{signals:?}");
    }
}

#[test]
fn the_default_volume_is_sparse_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &["--size", "64M"]);
    let first = daemon.call("volume_list", json!({}));
    let nqn = daemon.nqn.clone();
    let (status, log) = daemon.stop("TERM");
    assert!(status.success(), "{log}");
    let path = dir.path().join("data/default.img");
    let file = fs::metadata(&path).unwrap();
    assert_eq!(file.len(), 64 << 20);
    assert!(file.blocks() * 512 < 1 << 20, "not sparse");
    let daemon = Daemon::start(dir.path(), &["--size", "64M"]);
    assert_eq!(daemon.call("volume_list", json!({})), first);
    assert_eq!(daemon.nqn, nqn);
}

#[test]
fn a_size_that_changes_outside_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    let daemon = Daemon::start(dir.path(), &[path.to_str().unwrap()]);
    file.set_len(3 << 20).unwrap();
    eventually("the new size", || daemon.call("volume_list", json!({}))[0]["bytes"] == 3 << 20);
}

#[test]
fn manuals_and_completions_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let status = nvlane().args(["man", "--dir"]).arg(dir.path()).status().unwrap();
    assert!(status.success());
    for page in ["nvlane.1", "nvlane-serve.1", "nvlane-ctl-volume-add.1"] {
        let text = fs::read_to_string(dir.path().join(page)).unwrap();
        assert!(text.contains("Example"), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let output = nvlane().args(["completions", shell]).output().unwrap();
        assert!(String::from_utf8(output.stdout).unwrap().contains("serve"), "{shell}");
    }
}

#[test]
fn info_tells_what_a_volume_is() {
    let output = nvlane().args(["info", "mem:1M", "--json"]).output().unwrap();
    let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info["schema_version"], 1);
    assert_eq!(info["bytes"], 1 << 20);
    let same = nvlane().args(["info", "mem:1M", "-o", "json"]).output().unwrap();
    let same: serde_json::Value = serde_json::from_slice(&same.stdout).unwrap();
    assert_eq!(same["bytes"], info["bytes"]);
    let output = nvlane().args(["info", "mem:1M"]).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("1 MiB"));
}

#[test]
fn a_supervisor_is_told_when_it_is_ready_and_when_it_stops() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(daemon::PATIENCE)).unwrap();
    let mut child = serve(dir.path(), "mem:1M")
        .env("NOTIFY_SOCKET", &path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let hear = || {
        let mut text = [0; 256];
        let len = socket.recv(&mut text).unwrap();
        String::from_utf8(text[..len].to_vec()).unwrap()
    };
    let ready = hear();
    assert!(ready.contains("READY=1") && ready.contains("1 volume"), "{ready}");
    let id = child.id().to_string();
    let tell = |signal| {
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
    };
    // It has no terminal that could be lost.
    tell("HUP");
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let heard = socket.recv(&mut [0; 256]).unwrap_err();
    assert_eq!(heard.kind(), std::io::ErrorKind::WouldBlock, "it stops");
    socket.set_read_timeout(Some(daemon::PATIENCE)).unwrap();
    tell("TERM");
    assert!(hear().contains("STOPPING=1"));
    assert!(daemon::wait(&mut child).success());
}

/// All that runs below a unit inherits its socket: systemd says whom it has started.
#[test]
fn a_supervisor_hears_of_whom_it_has_started_and_of_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_nonblocking(true).unwrap();
    let heard = |started: &str| {
        let mut child = Command::new("sh")
            .args(["-c", &format!("export SYSTEMD_EXEC_PID={started}; exec \"$@\""), "sh"])
            .arg(env!("CARGO_BIN_EXE_nvlane"))
            .args(serve(dir.path(), "mem:1M").get_args())
            .env("NOTIFY_SOCKET", &path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("ready")));
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
        assert!(daemon::wait(&mut child).success());
        let mut text = [0; 256];
        let messages = std::iter::from_fn(|| socket.recv(&mut text).ok());
        messages.count()
    };
    assert_eq!(heard("$$"), 2, "ready, and stopping");
    assert_eq!(heard("$PPID"), 0, "a unit's shell has started it");
}

#[test]
fn it_listens_on_several_addresses_of_both_families() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["mem:1M", "--listen", "127.0.0.1:0", "--listen", "[::1]:0"];
    let daemon = Daemon::start(dir.path(), &args);
    let [four, six] = daemon.listeners[..] else { panic!("{:?}", daemon.listeners) };
    assert!(four.is_ipv4() && six.is_ipv6());
    TcpStream::connect(four).unwrap();
    TcpStream::connect(six).unwrap();
}

/// The kernel lets go of the files of a server that has ended some time after it: the next one waits for them.
#[test]
fn a_file_that_is_let_go_of_within_a_moment_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("a.img")).unwrap();
    file.set_len(1 << 20).unwrap();
    // A machine that stands still for as long as it is waited for has it refused rightly.
    let daemon = (0..5).find_map(|_| {
        file.lock().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(700));
                file.unlock().unwrap();
            });
            std::panic::catch_unwind(|| Daemon::start(dir.path(), &["a.img"])).ok()
        })
    });
    assert!(daemon.expect("one of five is served").stop("TERM").0.success());
}

#[test]
fn other_commands_wait_for_a_file_as_long() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    let cat = || nvlane().arg("cat").arg(&path).output().unwrap();
    let name = path.to_str().unwrap();
    let io = ["io", "-O", "2", "-l", "512", "-r", name];
    let commands: [&[&str]; 5] =
        [&["cat", name], &["info", name], &["list", name], &["copy", name, "mem:1M", "-n"], &io];
    for command in commands {
        let had = (0..5).any(|_| {
            file.lock().unwrap();
            let had = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(300));
                    file.unlock().unwrap();
                });
                nvlane().args(command).output().unwrap()
            });
            had.status.success() && !had.stdout.is_empty()
        });
        assert!(had, "none of five had the file: {command:?}");
    }
    file.lock().unwrap();
    let refused = cat();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("by another process"), "{said}");
}
