//! The control socket of a live daemon, and what of it is there again after a crash.

use crate::daemon::{Daemon, ask, eventually, free_address, nvlane};
use crate::host::{Bytes, Host};
use nvme::identify::{Cns, Nidt};
use nvme::{Command, opcode};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use uuid::Uuid;

const NQN: &str = "nqn.2026-11.com.example:a";

fn start(dir: &Path) -> Daemon {
    Daemon::start(dir, &["mem:1M", "--nqn", NQN])
}

fn host(number: usize) -> String {
    format!("nqn.2014-08.org.example:host{number}")
}

#[test]
fn every_change_is_there_again_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let file = dir.path().join("b.img");
    let uri = format!("file:{}?size=2M&create", file.display());
    let added = daemon.call("volume_add", json!({"volume": uri, "ana_group": 2}));
    assert_eq!((&added["nsid"], &added["bytes"]), (&json!(2), &json!(2 << 20)));
    daemon.call("volume_resize", json!({"nsid": 2, "bytes": 4 << 20}));
    daemon.call("volume_resize", json!({"nsid": 1, "bytes": 2 << 20}));
    daemon.call("host_allow", json!({"host": host(1)}));
    daemon.call("host_allow", json!({"host": host(2)}));
    daemon.call("host_disallow", json!({"host": host(1)}));
    daemon.call("host_disallow", json!({"host": "*"}));
    let free = free_address();
    let listener = daemon.call("listener_add", json!({"address": *free}));
    TcpStream::connect(listener["address"].as_str().unwrap()).unwrap();
    daemon.call("ana_set", json!({"group": 2, "state": "inaccessible"}));
    daemon.call(
        "ana_set",
        json!({"group": 1, "state": "non-optimized", "listener": listener["address"]}),
    );
    daemon.call("subsystem_add", json!({"nqn": "nqn.2026-11.com.example:b"}));
    daemon.call("volume_add", json!({"volume": "mem:1M", "nqn": "nqn.2026-11.com.example:b"}));
    let (config, volumes) =
        (daemon.call("config_get", json!({})), daemon.call("volume_list", json!({})));
    assert_eq!(config["subsystems"][0]["allowed_hosts"], json!([host(2)]));
    assert_eq!(config["subsystems"][0]["allow_any_host"], json!(false));
    assert_eq!(config["subsystems"][0]["ana"].as_array().unwrap().len(), 2);
    assert_eq!(volumes[0]["bytes"], 2 << 20);
    assert_eq!(volumes[1]["bytes"], 4 << 20);
    daemon.kill();

    let daemon = start(dir.path());
    assert_eq!(daemon.call("config_get", json!({})), config);
    assert_eq!(daemon.call("volume_list", json!({})), volumes);
    TcpStream::connect(listener["address"].as_str().unwrap()).unwrap();

    daemon.call("subsystem_remove", json!({"nqn": "nqn.2026-11.com.example:b"}));
    daemon.call("volume_remove", json!({"nsid": 2}));
    daemon.call("listener_remove", json!({"address": listener["address"]}));
    // The kernel's ring lets go of the socket a moment later.
    let address = listener["address"].as_str().unwrap();
    eventually("no listener", || TcpStream::connect(address).is_err());
    daemon.kill();
    let daemon = start(dir.path());
    assert_eq!(daemon.call("volume_list", json!({})).as_array().unwrap().len(), 1);
    assert_eq!(daemon.call("config_get", json!({}))["listeners"].as_array().unwrap().len(), 1);
}

/// Killed at twenty different moments while it changes its state: it always starts again, and
/// everything that it had acknowledged is there.
#[test]
fn a_kill_at_any_moment_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let acknowledged = AtomicUsize::new(0);
    for round in 0..20u64 {
        let daemon = start(dir.path());
        let config = daemon.call("config_get", json!({}));
        let hosts = config["subsystems"][0]["allowed_hosts"].as_array().unwrap().clone();
        let count = acknowledged.load(Ordering::Relaxed);
        for number in 0..count {
            assert!(hosts.contains(&json!(host(number))), "round {round}: host {number} is lost");
        }
        let socket = daemon.socket.clone();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in count..count + 40 {
                    match ask(&socket, "host_allow", json!({"host": host(number)})) {
                        Ok(answer) if answer["result"] == json!({}) => {
                            acknowledged.store(number + 1, Ordering::Relaxed);
                        }
                        _ => return,
                    }
                }
            });
            // Some changes are acknowledged in every round; then it dies in the middle of another.
            let wanted = count + 1 + round as usize % 4;
            eventually("changes", || acknowledged.load(Ordering::Relaxed) >= wanted);
            std::thread::sleep(Duration::from_micros(round * 7919 % 5000));
            daemon.kill();
        });
    }
}

/// Removed means closed: its lock is free and it can be served again at once, even if a host had a
/// command on it then and its queue has used it before.
#[test]
fn a_removed_volume_can_be_added_again_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let path = dir.path().join("b.img");
    let uri = format!("delay:write=300ms(file:{}?size=2M&create)", path.display());
    let host = Host::new(daemon.listeners[0], &daemon.nqn);
    let admin = host.enabled();
    let mut queue = host.io(&admin, 1);
    for _ in 0..5 {
        let added = daemon.call("volume_add", json!({"volume": uri}));
        assert_eq!(added["nsid"], 2);
        queue.read(2, 0, 1, 512);
        let write = Command::blocks(opcode::io::WRITE, 2, 0, 1);
        let cid = queue.issue(write, Bytes::InCapsule(&[7; 512]));
        // Answered after the write on the same connection: that one is on its way by now.
        queue.read(2, 1, 1, 512);
        daemon.call("volume_remove", json!({"nsid": 2}));
        let file = fs::File::open(&path).unwrap();
        file.try_lock().expect("it is closed");
        // Closing alone would leave it to a child of another test that has not begun its program yet.
        file.unlock().unwrap();
        queue.complete(cid).ok();
    }
}

#[test]
fn wrong_calls_are_refused_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let before = daemon.call("config_get", json!({}));
    for (method, params, code) in [
        ("volume_ad", json!({}), -32601),
        ("volume_add", json!({}), -32602),
        ("volume_add", json!({"volume": "mem:1M", "nsdi": 3}), -32602),
        ("volume_add", json!({"volume": "mem:1M", "nsid": 0}), -32602),
        ("volume_add", json!({"volume": "mem:1M", "ana_group": 129}), -32602),
        ("volume_add", json!({"volume": "mem:1M", "nsid": 1}), -32002),
        ("volume_add", json!({"volume": "/does/not/exist"}), -32003),
        ("volume_add", json!({"volume": "mem:1M", "nqn": "nqn.2026-11.com.example:x"}), -32001),
        ("volume_remove", json!({"nsid": 9}), -32001),
        ("volume_resize", json!({"nsid": 9, "bytes": 1 << 20}), -32001),
        ("volume_resize", json!({"nsid": 1, "bytes": 100}), -32003),
        ("host_allow", json!({"host": ""}), -32602),
        ("host_disallow", json!({"host": host(1)}), -32001),
        ("listener_add", json!({"address": "here"}), -32602),
        ("listener_add", json!({"address": daemon.listeners[0]}), -32002),
        ("listener_add", json!({"address": "203.0.113.1:4420"}), -32005),
        ("listener_remove", json!({"address": "127.0.0.1:1"}), -32001),
        ("listener_remove", json!({"address": daemon.listeners[0]}), -32002),
        ("ana_set", json!({"group": 0, "state": "optimized"}), -32602),
        ("ana_set", json!({"group": 1, "state": "best"}), -32602),
        ("subsystem_add", json!({"nqn": NQN}), -32002),
        ("subsystem_remove", json!({"nqn": "nqn.2026-11.com.example:x"}), -32001),
        (
            "subsystem_tune",
            json!({"nqn": "nqn.2026-11.com.example:x", "name": "policy", "value": "numa"}),
            -32001,
        ),
        ("subsystem_tune", json!({"nqn": NQN, "name": "policy", "value": "numa"}), -32003),
        (
            "subsystem_tune",
            json!({"nqn": NQN, "nsid": 1, "name": "policy", "value": "numa"}),
            -32602,
        ),
        ("stats", json!({"all": true}), -32602),
    ] {
        assert_eq!(daemon.refuse(method, params.clone()), code, "{method} {params}");
    }
    assert_eq!(daemon.call("config_get", json!({})), before);
}

#[test]
fn lists_have_a_bound_that_a_restart_does_not_meet_first() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nvlane.toml");
    let hosts: Vec<String> = (0..1024).map(host).collect();
    let text = format!(
        "listeners = [\"127.0.0.1:0\"]\n[[subsystems]]\nnqn = \"{NQN}\"\nallowed_hosts = {hosts:?}\n"
    );
    fs::write(&file, text).unwrap();
    let args = ["--config", file.to_str().unwrap()];
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(daemon.refuse("host_allow", json!({"host": host(1024)})), -32602);
    daemon.call("host_disallow", json!({"host": host(0)}));
    daemon.call("host_allow", json!({"host": host(1024)}));
    daemon.kill();
    let daemon = Daemon::start(dir.path(), &args);
    let hosts = daemon.call("config_get", json!({}))["subsystems"][0]["allowed_hosts"].clone();
    assert_eq!(hosts.as_array().unwrap().len(), 1024);
}

#[test]
fn what_cannot_be_saved_is_not_done() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let before = daemon.call("config_get", json!({}));
    // Nothing can be renamed over a directory.
    let states: Vec<_> = fs::read_dir(dir.path().join("data"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "lock"))
        .collect();
    let [lock] = &states[..] else { panic!("{states:?}") };
    fs::create_dir(lock.with_extension("")).unwrap();
    assert_eq!(daemon.refuse("host_allow", json!({"host": host(1)})), -32004);
    assert_eq!(daemon.refuse("volume_add", json!({"volume": "mem:1M"})), -32004);
    assert_eq!(daemon.refuse("listener_add", json!({"address": "127.0.0.1:0"})), -32004);
    assert_eq!(daemon.call("config_get", json!({})), before);
    assert_eq!(daemon.call("volume_list", json!({})).as_array().unwrap().len(), 1);
}

/// As it is where a process has just ended that had them.
#[test]
fn what_somebody_is_about_to_let_go_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let path = dir.path().join("a.img");
    fs::File::create_new(&path).unwrap().set_len(1 << 20).unwrap();
    let free = free_address();
    is_waited_for(&daemon, "volume_add", &json!({"volume": path}), || {
        let file = fs::File::open(&path).unwrap();
        file.lock().unwrap();
        move || file.unlock().unwrap()
    });
    is_waited_for(&daemon, "listener_add", &json!({"address": *free}), || {
        let listener = TcpListener::bind(&*free).unwrap();
        move || drop(listener)
    });
}

/// Calls a method while somebody has what it needs, which `take` takes and what that gives lets go.
fn is_waited_for<End: FnOnce() + Send + 'static>(
    daemon: &Daemon,
    method: &str,
    params: &Value,
    take: impl Fn() -> End,
) {
    // A machine that stands still lets go too late: of some tries, one is to be in time.
    let is_done = (0..5).any(|_| {
        let let_go = take();
        let gone = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            let_go();
        });
        let since = Instant::now();
        let answer = ask(&daemon.socket, method, params.clone()).unwrap();
        let (is_done, waited) = (answer.get("error").is_none(), since.elapsed());
        gone.join().unwrap();
        assert!(is_done || waited >= Duration::from_secs(2), "after {waited:?}: {answer}");
        is_done
    });
    assert!(is_done, "{method} waits too short a time");
}

#[test]
fn an_edited_file_wins_and_names_stay() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nvlane.toml");
    let text = |more: &str| {
        format!(
            "listeners = [\"127.0.0.1:0\"]\n{more}[[subsystems]]\nnqn = \"{NQN}\"\n[[subsystems.namespaces]]\nvolume = \"mem:1M\"\n"
        )
    };
    fs::write(&file, text("")).unwrap();
    let args = ["--config", file.to_str().unwrap()];
    let daemon = Daemon::start(dir.path(), &args);
    let volumes = daemon.call("volume_list", json!({}));
    daemon.call("volume_add", json!({"volume": "mem:3M"}));
    daemon.kill();

    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(daemon.call("volume_list", json!({})).as_array().unwrap().len(), 2);
    daemon.kill();

    fs::write(&file, text("cores = 2\n")).unwrap();
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(daemon.call("volume_list", json!({})), volumes);
    assert_eq!(daemon.call("stats", json!({}))["cores"].as_array().unwrap().len(), 2);
}

/// What `nvlane ctl` says, which must succeed.
pub fn ctl(daemon: &Daemon, args: &[&str]) -> String {
    let output =
        nvlane().arg("ctl").args(args).arg("--socket").arg(&daemon.socket).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn ctl_speaks_to_people_and_to_programs() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let text = ctl(&daemon, &["volume", "add", "mem:2M", "--nsid", "7"]);
    assert!(text.starts_with("namespace 7 of") && text.contains("2 MiB"), "{text}");
    ctl(&daemon, &["volume", "resize", "7", "4M"]);
    let refused = nvlane()
        .args(["ctl", "--socket", daemon.socket.to_str().unwrap(), "volume", "resize", "7", "1M"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    for part in ["4194304", "1048576", "--shrink"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let text = ctl(&daemon, &["volume", "resize", "7", "1M", "--shrink"]);
    assert!(text.contains("1 MiB"), "{text}");
    ctl(&daemon, &["volume", "resize", "7", "4M"]);
    let list: Value =
        serde_json::from_str(&ctl(&daemon, &["volume", "list", "-o", "json"])).unwrap();
    assert_eq!(list[1]["bytes"], 4 << 20);
    let text = ctl(&daemon, &["host", "disallow", "*"]);
    assert_eq!(text, "only hosts that are listed may connect\n");
    let text = ctl(&daemon, &["host", "allow", &host(1)]);
    assert_eq!(text, format!("{} may connect\n", host(1)));
    let text = ctl(&daemon, &["ana", "set", "1", "change"]);
    assert_eq!(text, "ANA group 1 is now change\n");
    let text = ctl(&daemon, &["listener", "add", "127.0.0.1:0"]);
    assert!(text.starts_with("listening on 127.0.0.1:"), "{text}");
    let address = text.trim_start_matches("listening on ").trim();
    let text = ctl(&daemon, &["listener", "remove", address]);
    assert_eq!(text, format!("no longer listening on {address}\n"));
    assert!(ctl(&daemon, &["stats"]).contains("core 0"), "no core");
    let stats: Value = serde_json::from_str(&ctl(&daemon, &["stats", "-o", "json"])).unwrap();
    assert_eq!(stats["namespaces"].as_array().unwrap().len(), 2);
    // What `config` prints is a configuration file.
    let file = dir.path().join("now.toml");
    fs::write(&file, ctl(&daemon, &["config"])).unwrap();
    assert!(nvlane().args(["config", "check"]).arg(&file).status().unwrap().success());
    assert_eq!(ctl(&daemon, &["call", "volume_remove", "{\"nsid\": 7}"]), "{}\n");
    let output = nvlane()
        .args(["ctl", "volume", "remove", "7", "--socket"])
        .arg(&daemon.socket)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        format!("nvlane: there is no namespace 7 in {NQN}\n")
    );
}

/// How much may pass is changed in use, and is there again.
#[test]
fn a_rate_is_changed_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["rate:iops=1(mem:1M)", "--nqn", NQN];
    let daemon = Daemon::start(dir.path(), &args);
    let host = Host::new(daemon.listeners[0], NQN);
    let admin = host.enabled();
    let mut queue = host.io(&admin, 1);
    let text = ctl(&daemon, &["volume", "tune", "1", "rate.iops=100K"]);
    assert!(text.contains("rate:iops=100K(mem:"), "{text}");
    // At one a second they would take fifty seconds.
    let since = Instant::now();
    (0..50).for_each(|block| drop(queue.read(1, block, 1, 512)));
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    assert_eq!(
        daemon.refuse("volume_tune", json!({"nsid": 1, "name": "rate.iops", "value": "none"})),
        -32003
    );
    daemon.kill();
    let daemon = Daemon::start(dir.path(), &args);
    let volumes = daemon.call("volume_list", json!({}));
    assert!(volumes[0]["volume"].as_str().unwrap().starts_with("rate:iops=100K("), "{volumes}");
}

#[test]
fn a_kernel_targets_configuration_is_imported() {
    let dir = tempfile::tempdir().unwrap();
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/nvmetcli.json");
    let toml = dir.path().join("nvlane.toml");
    let output = nvlane().args(["config", "import", sample, "-o"]).arg(&toml).output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("note: port 3"));
    let json = nvlane().args(["config", "import", sample, "--json"]).output().unwrap().stdout;
    let json: Value = serde_json::from_slice(&json).unwrap();
    let shown = nvlane().args(["config", "show", "--json"]).arg(&toml).output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&shown.stdout).unwrap(), json);
    assert_eq!(json["subsystems"][0]["namespaces"][0]["volume"], "file:/dev/vg0/disk1");
}

/// An NGUID that a host did not see before makes another disk of a namespace, for which it removes the one that it has.
#[test]
fn imported_namespaces_have_the_names_that_hosts_know() {
    let dir = tempfile::tempdir().unwrap();
    let (uuid, nguid) =
        ("b0c2a1f6-7d8e-4f3a-9b1c-2d3e4f5a6b7c", "ef90689c-6c46-d44c-89c1-4067801309a8");
    let zero = Uuid::nil().to_string();
    // As the kernel's target has them: none was set; one was; by an older nvmetcli, which does not know the field.
    let devices = [json!({"uuid": uuid, "nguid": zero}), json!({"nguid": nguid}), json!({})];
    let namespaces: Vec<Value> = (1..)
        .zip(devices)
        .map(|(nsid, mut device)| {
            let path = dir.path().join(format!("{nsid}.img"));
            fs::write(&path, [0; 1 << 16]).unwrap();
            device["path"] = json!(path);
            json!({"nsid": nsid, "enable": 1, "device": device})
        })
        .collect();
    let saved = json!({
        "hosts": [],
        "ports": [{"portid": 1, "subsystems": [NQN], "addr": {"trtype": "tcp", "adrfam": "ipv4", "traddr": "127.0.0.2", "trsvcid": "0"}}],
        "subsystems": [{"nqn": NQN, "attr": {"allow_any_host": "1"}, "namespaces": namespaces}],
    });
    fs::write(dir.path().join("config.json"), saved.to_string()).unwrap();
    let mut import = nvlane();
    import.args(["config", "import", "config.json", "-o", "nvlane.toml"]).current_dir(dir.path());
    assert!(import.status().unwrap().success());

    // What a host is told: the NGUID of Identify Namespace, and the descriptors by their types.
    let told = |daemon: &Daemon, nsid: u32| {
        let mut admin = Host::new(daemon.listeners[0], NQN).enabled();
        let mut identify = |cns: Cns| {
            let opcode = opcode::admin::IDENTIFY;
            let cdw10 = u32::from(cns.0).into();
            let command = Command { opcode, nsid: nsid.into(), cdw10, ..Command::default() };
            admin.command(command, Bytes::Wanted(4096)).ok().data
        };
        let namespace = identify(Cns::NAMESPACE);
        let nguid = Uuid::from_slice(&namespace[104..120]).unwrap();
        let (list, mut descriptors) = (identify(Cns::NAMESPACE_DESCRIPTORS), BTreeMap::new());
        let mut rest = &list[..];
        while rest[0] != 0 {
            let (kind, end) = (rest[0], 4 + usize::from(rest[1]));
            descriptors.insert(kind, rest[4..end].to_vec());
            rest = &rest[end..];
        }
        (nguid, descriptors)
    };
    let bytes = |id: &str| id.parse::<Uuid>().unwrap().as_bytes().to_vec();
    let (nguid_type, uuid_type) = (Nidt::NGUID.0, Nidt::UUID.0);
    let check = |daemon: &Daemon| {
        let (first, descriptors) = told(daemon, 1);
        assert_eq!((first, descriptors.get(&nguid_type)), (Uuid::nil(), None));
        assert_eq!(descriptors[&uuid_type], bytes(uuid));
        let (second, descriptors) = told(daemon, 2);
        assert_eq!((second.to_string(), &descriptors[&nguid_type]), (nguid.into(), &bytes(nguid)));
        let (third, descriptors) = told(daemon, 3);
        assert_eq!((third, descriptors.get(&nguid_type)), (Uuid::nil(), None));
        assert!(descriptors.contains_key(&uuid_type));
    };
    let daemon = Daemon::start(dir.path(), &["--config", "nvlane.toml"]);
    check(&daemon);
    // What never said that it has none is given one.
    let added = daemon.call("volume_add", json!({"volume": "mem:1M"}));
    assert_ne!(added["nguid"], json!(zero));
    let without = daemon.call("volume_add", json!({"volume": "mem:1M", "nguid": zero}));
    assert_eq!(without["nguid"], json!(zero));
    let volumes = daemon.call("volume_list", json!({}));
    daemon.kill();

    // Now by its state.
    let daemon = Daemon::start(dir.path(), &["--config", "nvlane.toml"]);
    check(&daemon);
    assert_eq!(daemon.call("volume_list", json!({})), volumes);
    assert_eq!(told(&daemon, 4).0.to_string(), added["nguid"].as_str().unwrap());
}

/// (In a guest there is a file system that has snapshots: `guest/snapshot`.)
#[test]
fn what_has_no_snapshot_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let file = dir.path().join("s.img");
    let output = nvlane()
        .args(["ctl", "--socket"])
        .arg(&daemon.socket)
        .args(["volume", "snapshot", "1"])
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("only a file: volume has snapshots"),
        "{said}"
    );
    assert!(!file.exists());
    for (params, code) in [
        (json!({"nsid": 9, "file": "/s.img"}), -32001),
        (json!({"nsid": 1, "file": "s.img"}), -32602),
        (json!({"nsid": 1}), -32602),
    ] {
        assert_eq!(daemon.refuse("volume_snapshot", params.clone()), code, "{params}");
    }
}

/// A daemon that hangs is told after the time that was given.
#[test]
fn a_daemon_that_does_not_answer_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &["mem:1M", "--nqn", NQN]);
    let pid = rustix::process::Pid::from_raw(daemon.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let metrics = dir.path().join("metrics").to_str().unwrap().to_owned();
    let here = dir.path().join("nvlane.toml").to_str().unwrap().to_owned();
    fs::write(&here, format!("[[subsystems]]\nnqn = \"{NQN}\"\n")).unwrap();
    for asked in [
        &["ctl", "volume", "list"][..],
        &["ctl", "metrics", "--file", &metrics],
        &["jobs"],
        &["paths"],
        &["list"],
        &["list-subsys"],
        &["bpf", "stat"],
        &["bpf", "replace", "1", &here],
        &["config", "check", &here],
        &["copy", "--detach", "mem:1M", "mem:1M"],
        &["copy", "--detach", "--dry-run", "mem:1M", "mem:1M"],
    ] {
        let mut command = nvlane();
        command.args(asked).arg("--socket").arg(&daemon.socket).args(["--timeout", "200"]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{asked:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        let wanted = format!("nvlane: {}: no answer within 0.2 s", daemon.socket.display());
        assert!(said.starts_with(&wanted), "{asked:?}: {said}");
    }
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(ctl(&daemon, &["volume", "list", "--timeout", "0"]).contains("mem:"));
    // Of the daemon, and of a controller.
    let remote = format!("tcp://{}/{NQN}", daemon.listeners[0]);
    let socket = daemon.socket.to_str().unwrap();
    for asked in [&["list", "--socket", socket][..], &["list", &remote], &["id-ctrl", &remote]] {
        let output = nvlane().args(asked).args(["--timeout", "0"]).output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty(), "{asked:?}: {output:?}");
    }
}

/// Whatever a file or an import lets in can be named here as well.
#[test]
fn a_host_whose_name_is_of_no_form_can_be_let_in_and_kept_out() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("k");
    assert!(nvlane().args(["key", "new"]).arg(&key).output().unwrap().status.success());
    let key = key.to_str().unwrap();
    let daemon = start(dir.path());
    for host in ["testhost", "other"] {
        ctl(&daemon, &["host", "allow", host]);
    }
    ctl(&daemon, &["host", "set-key", "other", "--dhchap-key", key]);
    let subsystem = daemon.call("config_get", json!({}))["subsystems"][0].clone();
    assert_eq!(subsystem["allowed_hosts"], json!(["testhost", "other"]));
    for host in ["testhost", "other"] {
        ctl(&daemon, &["host", "disallow", host]);
    }
    let subsystem = daemon.call("config_get", json!({}))["subsystems"][0].clone();
    assert_eq!(subsystem.get("allowed_hosts").unwrap_or(&json!([])), &json!([]));
    // What can be nobody's name is refused, and `*` has no key.
    let long = "n".repeat(224);
    for refused in [
        &["host", "allow", "a b"][..],
        &["host", "allow", &long],
        &["host", "allow", ""],
        &["host", "set-key", "*", "--dhchap-key", key],
    ] {
        let output = nvlane().arg("ctl").args(refused).arg("--socket").arg(&daemon.socket).output();
        assert!(!output.unwrap().status.success(), "{refused:?}");
    }
}

/// By the command line of a new server too.
#[test]
fn a_new_server_lets_in_hosts_whose_names_are_of_no_form() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("k");
    assert!(nvlane().args(["key", "new"]).arg(&key).output().unwrap().status.success());
    let of = |host: &str| format!("{host}={}", key.display());
    let longest = "n".repeat(223);
    let (with_key, controller) = (of("other"), of("other"));
    let args = ["mem:1M", "--allow-host", "testhost", "--allow-host", &longest];
    let keys = ["--host-key", &with_key, "--host-ctrl-key", &controller];
    let daemon = Daemon::start(dir.path(), &[&args[..], &keys].concat());
    let subsystem = daemon.call("config_get", json!({}))["subsystems"][0].clone();
    assert_eq!(subsystem["allowed_hosts"], json!(["testhost", longest, "other"]));
    drop(daemon);
    let long = "n".repeat(224);
    for (option, refused) in [
        ("--allow-host", String::new()),
        ("--allow-host", long.clone()),
        ("--host-key", of("")),
        ("--host-key", of(&long)),
    ] {
        let mut command = nvlane();
        command.args(["serve", "mem:1M", "--listen", "127.0.0.1:0", option, &refused]);
        let output = command.arg("--data-dir").arg(dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("is no NQN"), "{option}: {said}");
    }
}

/// As nvme-cli takes it.
#[test]
fn an_id_may_be_given_in_hexadecimal() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &["mem:1M", "mem:1M", "--nqn", NQN]);
    let uri = format!("tcp://{}/{NQN}", daemon.listeners[0]);
    assert!(nvlane().args(["id-ns", &uri, "-n", "0x2"]).output().unwrap().status.success());
}
