//! Volumes that are not there when a daemon starts, and come.

use crate::daemon::{ANYWHERE, Daemon, ask, eventually, free_address, nvlane};
use crate::host::{Bytes, Host, Queue};
use nvme::{Command, Status, opcode};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::Path;
use std::process::Output;

const NQN: &str = "nqn.2026-11.com.example:a";
/// The failure that a volume makes.
const VOLUME: i64 = -32003;

fn missing(daemon: &Daemon) -> Value {
    daemon.call("volume_missing", json!({}))
}

fn nsids(volumes: &Value) -> Vec<u64> {
    let all = volumes.as_array().unwrap().iter();
    all.map(|volume| volume["nsid"].as_u64().unwrap()).collect()
}

fn served(daemon: &Daemon) -> Vec<u64> {
    nsids(&daemon.call("volume_list", json!({})))
}

/// Ids of the namespaces that a host finds.
fn active(admin: &mut Queue) -> Vec<u32> {
    let mut command = Command { opcode: opcode::admin::IDENTIFY, ..Command::default() };
    command.cdw10 = 2.into();
    let list = admin.command(command, Bytes::Wanted(4096)).ok().data;
    let words = list.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    words.take_while(|&nsid| nsid != 0).collect()
}

/// Has the host told of namespaces that come and go. What comes is the answer to this.
fn await_notice(admin: &mut Queue) -> u16 {
    let event = Command { opcode: opcode::admin::ASYNC_EVENT_REQUEST, ..Command::default() };
    let mut notices = Command { opcode: opcode::admin::SET_FEATURES, ..Command::default() };
    // Asynchronous Event Configuration: Namespace Attribute Notices.
    (notices.cdw10, notices.cdw11) = (0x0b.into(), (1 << 8).into());
    admin.command(notices, Bytes::None).ok();
    admin.issue(event, Bytes::None)
}

fn make(path: &Path) {
    File::create_new(path).unwrap().set_len(1 << 20).unwrap();
}

#[test]
fn a_volume_that_is_missing_is_served_when_it_comes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("late.img");
    let args = ["mem:1M", "late.img", "mem:2M", "--nqn", NQN, "--nofail"];
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(served(&daemon), [1, 3]);
    let said = missing(&daemon);
    assert_eq!(nsids(&said), [2]);
    let reason = said[0]["reason"].as_str().unwrap();
    assert!(reason.contains("late.img") && reason.contains("not exist"), "{reason}");

    let host = Host::new(daemon.listeners[0], NQN);
    let mut admin = host.enabled();
    assert_eq!(active(&mut admin), [1, 3]);
    let held = await_notice(&mut admin);
    // Its id is its own, and nothing can be done to it but to remove it.
    assert_eq!(daemon.refuse("volume_add", json!({"volume": "mem:1M", "nsid": 2})), -32002);
    for (method, params) in [
        ("volume_resize", json!({"nsid": 2, "bytes": 4 << 20})),
        ("volume_tune", json!({"nsid": 2, "name": "policy", "value": "numa"})),
        ("volume_program", json!({"nsid": 2, "object": "/a.o"})),
        ("volume_paths", json!({"nsid": 2})),
    ] {
        assert_eq!(daemon.refuse(method, params), VOLUME, "{method}");
    }
    // No copy has it for itself.
    let job = json!({"sources": [{"volume": path}], "targets": [{"volume": path}]});
    let answer = ask(&daemon.socket, "job_add", job).unwrap();
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("to be served as namespace 2"), "{answer}");
    daemon.call("host_allow", json!({"host": "nqn.2014-08.org.example:h"}));

    make(&path);
    // The host is told, and finds it.
    assert_eq!(admin.complete(held).ok().result & 0xff, 2, "a notice");
    assert_eq!(active(&mut admin), [1, 2, 3]);
    assert_eq!((served(&daemon), missing(&daemon)), (vec![1, 2, 3], json!([])));
    let mut io = host.io(&admin, 1);
    io.write(2, 5, 1, &[7; 512]);
    let uuid = daemon.call("volume_list", json!({}))[1]["uuid"].clone();
    let (status, log) = daemon.stop("TERM");
    assert!(status.success(), "{log}");
    assert_eq!(fs::read(&path).unwrap()[5 * 512..6 * 512], [7; 512]);

    // Where it is there from the first on, it is the same.
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!((served(&daemon), missing(&daemon)), (vec![1, 2, 3], json!([])));
    assert_eq!(daemon.call("volume_list", json!({}))[1]["uuid"], uuid);
}

#[test]
fn one_that_is_removed_while_it_is_missing_does_not_come() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("late.img");
    let args = ["mem:1M", "late.img", "--nqn", NQN];
    let nofail = [&args[..], &["--nofail"]].concat();
    let daemon = Daemon::start(dir.path(), &nofail);
    daemon.call("volume_remove", json!({"nsid": 2}));
    assert_eq!((served(&daemon), missing(&daemon)), (vec![1], json!([])));
    make(&path);
    // Its id can be given to another.
    daemon.call("volume_add", json!({"volume": "mem:3M", "nsid": 2}));
    daemon.kill();
    // That is kept, and by a start that says nothing of missing volumes as well.
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!((served(&daemon), missing(&daemon)), (vec![1, 2], json!([])));
    let volumes = daemon.call("volume_list", json!({}));
    assert!(volumes[1]["volume"].as_str().unwrap().starts_with("mem:3M"), "{volumes}");
}

#[test]
fn a_file_says_which_volumes_may_be_missing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nvlane.toml");
    let write = |first: &str, second: &str| {
        let text = format!(
            "listeners = [\"{ANYWHERE}\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n\
             [[subsystems.namespaces]]\nvolume = \"mem:1M\"\n{first}\n\
             [[subsystems.namespaces]]\nvolume = \"/does/not/exist\"\n{second}\n"
        );
        fs::write(&file, text).unwrap();
    };
    write("", "nofail = true");
    let args = ["--config", file.to_str().unwrap()];
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!((served(&daemon), nsids(&missing(&daemon))), (vec![1], vec![2]));
    let config = daemon.call("config_get", json!({}));
    let namespaces = &config["subsystems"][0]["namespaces"];
    assert_eq!((&namespaces[0]["nofail"], &namespaces[1]["nofail"]), (&Value::Null, &json!(true)));
    daemon.kill();

    // It holds for the one that has it.
    write("nofail = true", "");
    let mut command = nvlane();
    command.arg("serve").args(args).arg("--data-dir").arg(dir.path().join("data"));
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!((status.code(), said.lines().count()), (Some(1), 1), "{said}");
}

/// Those that are not there are opened with it, and saved so.
#[test]
fn a_setting_of_a_subsystem_holds_for_volumes_that_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("late.img");
    let late = path.to_str().unwrap();
    let (paths, rate) = (format!("multipath:({late})"), format!("rate:1G({late})"));
    let args = ["rate:1G(mem:1M)", &paths, "--nqn", NQN, "--nofail"];
    let config = |daemon: &Daemon, index: usize| {
        let config = daemon.call("config_get", json!({}));
        config["subsystems"][0]["namespaces"][index]["volume"].as_str().unwrap().to_owned()
    };
    let tune = |name: &str, value: &str| json!({"nqn": NQN, "name": name, "value": value});
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(nsids(&missing(&daemon)), [2]);
    assert_eq!(daemon.call("subsystem_tune", tune("policy", "numa")), json!([]));
    assert_eq!(daemon.refuse("subsystem_tune", tune("policy", "best")), VOLUME);
    assert_eq!(config(&daemon, 1), format!("multipath:policy=numa(file:{late})"));
    daemon.kill();
    let daemon = Daemon::start(dir.path(), &args);
    make(&path);
    eventually("it is served", || served(&daemon) == [1, 2]);
    assert_eq!(daemon.call("volume_paths", json!({"nsid": 2}))[0]["policy"], "numa");
    drop(daemon);

    // What its UUID goes by is not changed before it has one.
    fs::remove_file(&path).unwrap();
    let other = tempfile::tempdir().unwrap();
    let args = ["rate:1G(mem:1M)", &rate, "--nqn", NQN, "--nofail"];
    let daemon = Daemon::start(other.path(), &args);
    assert_eq!(daemon.refuse("subsystem_tune", tune("rate.bytes", "2G")), VOLUME);
    assert_eq!(
        (config(&daemon, 0), config(&daemon, 1)),
        ("rate:2G(mem:1M?bs=512)".into(), format!("rate:1G(file:{late})"))
    );
}

/// Somebody else has it: it comes when he is done.
#[test]
fn a_volume_that_another_has_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img");
    make(&path);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.lock().unwrap();
    let daemon = Daemon::start(dir.path(), &["mem:1M", "a.img", "--nqn", NQN, "--nofail"]);
    assert_eq!(nsids(&missing(&daemon)), [2]);
    let host = Host::new(daemon.listeners[0], NQN);
    let admin = host.enabled();
    let mut io = host.io(&admin, 1);
    let read = Command::blocks(opcode::io::READ, 2, 0, 1);
    io.command(read, Bytes::Wanted(512)).refused(Status::INVALID_FIELD.dnr());
    file.unlock().unwrap();
    eventually("it is served", || served(&daemon) == [1, 2]);
    io.command(read, Bytes::Wanted(512)).ok();
}

/// States of ANA groups name listeners, which are not there before the volumes.
#[test]
fn what_is_there_is_served_from_the_first_connection_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img");
    make(&path);
    let file = dir.path().join("nvlane.toml");
    let text = format!(
        "listeners = [\"{ANYWHERE}\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n\
         [[subsystems.namespaces]]\nvolume = \"{}\"\nnofail = true\n\
         [[subsystems.ana]]\nlistener = \"{ANYWHERE}\"\ngroup = 1\nstate = \"non-optimized\"\n",
        path.display()
    );
    fs::write(&file, text).unwrap();
    let daemon = Daemon::start(dir.path(), &["--config", file.to_str().unwrap()]);
    assert_eq!(missing(&daemon), json!([]));
    let host = Host::new(daemon.listeners[0], NQN);
    assert_eq!(active(&mut host.enabled()), [1]);
    let (status, log) = daemon.stop("TERM");
    assert!(status.success() && !log.contains("not served"), "{log}");
}

/// Nothing is locked that would tell.
#[test]
fn a_part_of_what_is_missing_is_not_added_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.img"), dir.path().join("b.img"));
    make(&a);
    let linear = format!("linear:({},{})", a.display(), b.display());
    let args = ["mem:1M", &linear, "--nqn", NQN, "--nofail"];
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(nsids(&missing(&daemon)), [2]);
    assert_eq!(daemon.refuse("volume_add", json!({"volume": a})), -32002);
    make(&b);
    assert_eq!(daemon.refuse("volume_add", json!({"volume": b})), -32002);
    eventually("it is served", || served(&daemon) == [1, 2]);
}

/// What has gone and may be missing is taken away, and served again when it is back.
#[test]
fn a_volume_that_goes_is_served_again_when_it_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let there = dir.path().join("there");
    fs::create_dir(&there).unwrap();
    make(&there.join("a.img"));
    let start =
        |args: &[&str]| Daemon::start(&there, &[&["a.img", "--nqn", "nqn.x:there"], args].concat());
    let address = free_address();
    let target = start(&["--listen", &address]);
    let uuid = target.call("volume_list", json!({}))[0]["uuid"].as_str().unwrap().to_owned();
    let remote = format!(
        "tcp://{address}/nqn.x:there?ns=1&ctrl_loss_tmo=3s&reconnect_delay=100ms&keep_alive_tmo=10s"
    );
    let stays = remote.replace("ns=1", "ns=1&queue_size=64");
    let with_memory = format!("linear:(mem:1M,{})", remote.replace("ns=1", "ns=1&queue_size=32"));
    let file = dir.path().join("nvlane.toml");
    let text = format!(
        "listeners = [\"{ANYWHERE}\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n\
         [[subsystems.namespaces]]\nvolume = \"mem:1M\"\n\
         [[subsystems.namespaces]]\nvolume = \"{remote}\"\nnofail = true\n\
         [[subsystems.namespaces]]\nvolume = \"{stays}\"\nuuid = \"00000000-0000-4000-8000-000000000003\"\n\
         [[subsystems.namespaces]]\nvolume = \"{with_memory}\"\nnofail = true\n"
    );
    fs::write(&file, text).unwrap();
    let daemon = Daemon::start(dir.path(), &["--config", file.to_str().unwrap()]);
    eventually("all of them", || served(&daemon) == [1, 2, 3, 4] && missing(&daemon) == json!([]));
    let volumes = daemon.call("volume_list", json!({}));
    let host = Host::new(daemon.listeners[0], NQN);
    let mut admin = host.enabled();
    let held = await_notice(&mut admin);
    let mut io = host.io(&admin, 1);
    io.write(2, 5, 1, &[7; 512]);

    target.kill();
    assert_eq!(admin.complete(held).ok().result & 0xff, 2, "a notice");
    eventually("it is missing", || nsids(&missing(&daemon)) == [2]);
    assert_eq!((active(&mut admin), served(&daemon)), (vec![1, 3, 4], vec![1, 3, 4]));
    let read = |nsid| Command::blocks(opcode::io::READ, nsid, 5, 1);
    io.command(read(2), Bytes::Wanted(512)).refused(Status::INVALID_FIELD.dnr());
    // One that may not be missing fails, and stays; and so does one of which a part is memory.
    assert_ne!(io.command(read(3), Bytes::Wanted(512)).status, Status::SUCCESS);
    io.command(read(4), Bytes::Wanted(512)).ok();

    // Another volume is there now.
    let other = format!("file:a.img?uuid={}", "00000000-0000-4000-8000-000000000009");
    let args = [&other, "--nqn", "nqn.x:there", "--listen", &address, "--fresh"];
    let target = Daemon::start(&there, &args);
    let reason = || missing(&daemon)[0]["reason"].as_str().map(ToOwned::to_owned);
    eventually("it is told apart", || reason().is_some_and(|it| it.contains("another UUID")));
    assert_eq!(served(&daemon), [1, 3, 4]);
    target.kill();

    let target = start(&["--listen", &address, "--fresh"]);
    assert_eq!(target.call("volume_list", json!({}))[0]["uuid"], uuid);
    eventually("it is back", || served(&daemon) == [1, 2, 3, 4]);
    assert_eq!((missing(&daemon), active(&mut admin)), (json!([]), vec![1, 2, 3, 4]));
    assert_eq!(daemon.call("volume_list", json!({}))[1], volumes[1]);
    assert_eq!(io.command(read(2), Bytes::Wanted(512)).ok().data, [7; 512]);
    let (status, log) = daemon.stop("TERM");
    assert!(log.contains("has gone, and is served when it comes back"), "{status} {log}");
}
