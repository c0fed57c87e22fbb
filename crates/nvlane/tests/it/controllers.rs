//! Who is connected, and what the log tells of hosts that come, go, and are refused.

use crate::control::ctl;
use crate::daemon::{ANYWHERE, Daemon, eventually};
use crate::host::{Bytes, HOST_NQN, Host};
use nvme::Status;
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, DISCOVERY_NQN, Property};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;
use zerocopy::IntoBytes;

const NQN: &str = "nqn.2026-11.com.example:a";

fn start(dir: &Path, args: &[&str]) -> Daemon {
    Daemon::start(dir, &[&["mem:1M", "--nqn", NQN], args].concat())
}

fn controllers(daemon: &Daemon) -> Vec<Value> {
    daemon.call("controller_list", json!({})).as_array().unwrap().clone()
}

/// Lines of a log that have all of these in them.
fn lines<'a>(log: &'a str, parts: &[&str]) -> Vec<&'a str> {
    log.lines().filter(|line| parts.iter().all(|part| line.contains(part))).collect()
}

#[test]
fn a_controller_is_listed_with_what_is_known_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), &[]);
    assert_eq!(controllers(&daemon), [Value::Null; 0]);
    assert_eq!(ctl(&daemon, &["controller", "list"]), "no host is connected\n");

    let host =
        Host { dgst: 1, kato_ms: 14_500, entries: 64, ..Host::new(daemon.listeners[0], NQN) };
    let mut admin = host.admin();
    assert_eq!(controllers(&daemon)[0]["state"], "disabled");
    admin.enable();
    let _first = host.io(&admin, 1);
    let second = Host { entries: 32, ..host.clone() }.io(&admin, 2);
    let list = controllers(&daemon);
    let mut one = list[0].clone();
    let seconds = one["connected_seconds"].take();
    assert!(seconds.as_u64().unwrap() < 30, "{seconds}");
    let wanted = json!({
        "controller": admin.cntlid, "nqn": NQN, "host_nqn": HOST_NQN,
        "host_id": "07070707-0707-0707-0707-070707070707",
        "address": admin.socket.stream.local_addr().unwrap(), "listener": daemon.listeners[0],
        "discovery": false, "state": "enabled", "io_queues": 2, "io_queue_entries": [32, 64],
        "header_digest": true, "data_digest": false, "tls": false, "keep_alive_ms": 15_000,
        "authentication": null, "connected_seconds": null, "errors": 0,
    });
    assert_eq!((one, list.len()), (wanted, 1));

    drop(second);
    eventually("an I/O queue is gone", || controllers(&daemon)[0]["io_queues"] == 1);
    assert_eq!(controllers(&daemon)[0]["io_queue_entries"], json!([64]));
    // A command that fails is in the controller's error log.
    let unknown = nvme::Command { opcode: 0x7a, ..nvme::Command::default() };
    admin.command(unknown, Bytes::None).refused(Status::INVALID_OPCODE.dnr());
    assert_eq!(controllers(&daemon)[0]["errors"], 1);

    // Hosts that ask which subsystems there are have one of their own.
    let discovery = Host::new(daemon.listeners[0], DISCOVERY_NQN);
    let _asks = discovery.enabled();
    let list = controllers(&daemon);
    assert_eq!(
        (list.len(), &list[1]["discovery"], &list[1]["nqn"]),
        (2, &json!(true), &json!(DISCOVERY_NQN))
    );
    let of =
        |nqn: &str| daemon.call("controller_list", json!({"nqn": nqn})).as_array().unwrap().len();
    assert_eq!((of(NQN), of(DISCOVERY_NQN)), (1, 1));
    assert_eq!(daemon.refuse("controller_list", json!({"nqn": "nqn.x"})), -32001);

    let text = ctl(&daemon, &["controller", "list"]);
    let row = text.lines().find(|line| line.contains(HOST_NQN)).unwrap();
    let address = admin.socket.stream.local_addr().unwrap().to_string();
    for part in [&*address, NQN, "1 of 64", " header ", " 15 s ", " enabled "] {
        assert!(row.contains(part), "{part}: {text}");
    }
    let json: Value =
        serde_json::from_str(&ctl(&daemon, &["controller", "list", "-o", "json"])).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 2);
}

#[test]
fn the_log_tells_who_comes_and_who_goes_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), &["--listen", ANYWHERE]);
    let named = |name: &str| Host {
        host_nqn: format!("nqn.2014-08.org.example:{name}"),
        ..Host::new(daemon.listeners[0], NQN)
    };
    let gone = || eventually("it is gone", || controllers(&daemon).is_empty());

    let mut admin = named("ordered").enabled();
    let id = format!("controller={}", admin.cntlid);
    let address = format!("peer={}", admin.socket.stream.local_addr().unwrap());
    admin.set_property(Property::CC, Cc::ENTRY_SIZES | Cc::EN | Cc::SHN_NORMAL);
    drop(admin);
    gone();
    drop(named("leaves").enabled());
    gone();
    let mut admin = named("babbles").enabled();
    admin.socket.send(&[0xff; 8]);
    while admin.socket.pdu().is_ok() {}
    gone();
    let silent = Host { kato_ms: 5000, ..named("silent") }.enabled();
    gone();
    drop(silent);
    let _kept_out = named("kept-out").enabled();
    daemon.call("host_disallow", json!({"host": "*"}));
    gone();
    daemon.call("host_allow", json!({"host": "*"}));
    // Asking for what there is is no news.
    drop(Host { nqn: DISCOVERY_NQN.to_owned(), ..named("asks") }.enabled());
    gone();
    let _stays = named("stays").enabled();
    let (status, log) = daemon.stop("TERM");
    assert!(status.success(), "{log}");

    let host = |name: &str| format!("host=\"nqn.2014-08.org.example:{name}\"");
    for name in ["ordered", "leaves", "babbles", "silent", "kept-out", "stays"] {
        let came = lines(&log, &[" INFO ", "host connected", &host(name), NQN]);
        assert_eq!(came.len(), 1, "{name}: {log}");
    }
    assert_eq!(lines(&log, &["host connected", &id, &address]).len(), 1, "{log}");
    for (name, what, why) in [
        ("ordered", "host disconnected", "shut down by the host"),
        ("leaves", "host lost", "closed by the host"),
        ("babbles", "host lost", "protocol error of the host"),
        ("silent", "host lost", "keep alive expired"),
        ("kept-out", "host lost", "the host is no longer allowed"),
    ] {
        let went = lines(&log, &[" INFO ", &host(name), " seconds="]);
        assert_eq!(went.len(), 1, "{name}: {log}");
        assert!(went[0].contains(what) && went[0].contains(why), "{name}: {log}");
    }
    let blamed = lines(&log, &[" WARN ", "ending a connection", "peer=127.0.0.1:"]);
    assert_eq!(blamed.len(), 1, "{log}");
    // The server's own end is told once, and not of each host.
    assert_eq!(lines(&log, &[&host("stays")]).len(), 1, "{log}");
    assert!(lines(&log, &[&host("asks")]).is_empty(), "{log}");
}

#[test]
fn a_host_that_is_refused_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), &["--allow-host", HOST_NQN]);
    let listed = Host::new(daemon.listeners[0], NQN);
    let _admin = listed.admin();
    let stranger =
        Host { host_nqn: "nqn.2014-08.org.example:stranger".to_owned(), ..listed.clone() };
    let (refused, done) = stranger.connect(0, CNTLID_DYNAMIC);
    done.refused(Status::CONNECT_INVALID_HOST.dnr());
    let address = format!("peer={}", refused.socket.stream.local_addr().unwrap());
    // A name may have anything in it, and is one line all the same.
    let lost = Host { nqn: "nqn.2026-11.com.example:\n\u{202e}b".to_owned(), ..listed };
    lost.connect(0, CNTLID_DYNAMIC).1.refused(Status::CONNECT_INVALID_PARAMETERS.dnr());
    let elsewhere = Host { nqn: "nqn.2026-11.com.example:b".to_owned(), ..lost };
    elsewhere.connect(0, CNTLID_DYNAMIC).1.refused(Status::CONNECT_INVALID_PARAMETERS.dnr());
    let (_, log) = daemon.stop("TERM");
    let said = lines(&log, &[" WARN ", "host refused"]);
    assert_eq!(said.len(), 2, "{log}");
    for part in [&*address, "example:stranger", NQN, "not on the subsystem's list"] {
        assert!(said[0].contains(part), "{part}: {log}");
    }
    for part in ["peer=127.0.0.1:", HOST_NQN, "example:b", "no such subsystem"] {
        assert!(said[1].contains(part), "{part}: {log}");
    }
}

/// However many are refused: some lines a second, and none is forgotten.
#[test]
fn a_flood_of_refusals_does_not_flood_the_log() {
    const REFUSALS: u64 = 1000;
    const PER_SECOND: u64 = 5;
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), &["--allow-host", "nqn.2014-08.org.example:other"]);
    let since = Instant::now();
    let host = Host::new(daemon.listeners[0], NQN);
    let (mut queue, done) = host.connect(0, CNTLID_DYNAMIC);
    done.refused(Status::CONNECT_INVALID_HOST.dnr());
    // A connection may try again.
    let data = host.connect_data(CNTLID_DYNAMIC);
    for _ in 1..REFUSALS {
        let command = host.connect_parameters(0).command();
        let done = queue.command(command, Bytes::InCapsule(data.as_bytes()));
        done.refused(Status::CONNECT_INVALID_HOST.dnr());
    }
    let said = |log: &str| lines(log, &["host refused"]).len() as u64;
    let left_out = |log: &str| -> u64 {
        let summaries = lines(log, &[" WARN ", "more hosts were refused"]);
        let counts = summaries.iter().map(|line| line.split_once("count=").unwrap().1);
        counts.map(|count| count.trim().parse::<u64>().unwrap()).sum()
    };
    // What was left out is told though nothing follows.
    eventually("the last summary", || said(&daemon.log()) + left_out(&daemon.log()) >= REFUSALS);
    let seconds = since.elapsed().as_secs() + 2;
    let (_, log) = daemon.stop("TERM");
    let (said, left_out) = (said(&log), left_out(&log));
    assert!((PER_SECOND..=PER_SECOND * seconds).contains(&said), "{said} in {seconds} s");
    assert_eq!(said + left_out, REFUSALS, "{log}");
}

#[test]
fn what_there_is_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--cntlid", "1-100", "--listen", ANYWHERE, "--listen", ANYWHERE];
    let daemon = start(dir.path(), &args);
    let other = "nqn.2026-11.com.example:b";
    let stranger = "nqn.2014-08.org.example:host1";
    let text = ctl(&daemon, &["subsystem", "add", other, "--shared", "--allow-host", stranger]);
    assert_eq!(text, format!("subsystem {other} is added\n"));
    ctl(&daemon, &["volume", "add", "mem:1M", "--nqn", NQN, "--ana-group", "2"]);
    ctl(&daemon, &["volume", "add", "mem:1M", "--nqn", NQN]);
    let listener = daemon.listeners[1].to_string();
    ctl(&daemon, &["ana", "set", "2", "inaccessible", "--nqn", NQN, "--listener", &listener]);
    let _admin = Host::new(daemon.listeners[1], NQN).enabled();
    let _asks = Host::new(daemon.listeners[1], DISCOVERY_NQN).enabled();
    let call = |method: &str| daemon.call(method, json!({}));

    let mut subsystems = call("subsystem_list");
    for one in subsystems.as_array_mut().unwrap() {
        assert_eq!(one["serial"].take().as_str().unwrap().len(), 20);
    }
    let wanted = json!([
        {"nqn": NQN, "serial": null, "shared": false, "allow_any_host": true, "hosts": 0,
         "namespaces": 3, "missing": 0, "controllers": 1},
        {"nqn": other, "serial": null, "shared": true, "allow_any_host": false, "hosts": 1,
         "namespaces": 0, "missing": 0, "controllers": 0},
    ]);
    assert_eq!(subsystems, wanted);
    let connected = json!([{"host": HOST_NQN, "controllers": 1}]);
    let wanted = json!([
        {"nqn": NQN, "allow_any_host": true, "allowed_hosts": [], "authentication": [], "connected_hosts": connected},
        {"nqn": other, "allow_any_host": false, "allowed_hosts": [stranger], "authentication": [], "connected_hosts": []},
    ]);
    assert_eq!(call("host_list"), wanted);
    let wanted = json!([
        {"address": daemon.listeners[0], "tls": false, "controllers": 0},
        {"address": daemon.listeners[1], "tls": false, "controllers": 1},
    ]);
    assert_eq!(call("listener_list"), wanted);
    let ana = |group: u32, listener: usize, state: &str, namespaces: &[u32]| {
        let listener = daemon.listeners[listener];
        json!({"nqn": NQN, "group": group, "listener": listener, "state": state, "namespaces": namespaces})
    };
    let wanted = json!([
        ana(1, 0, "optimized", &[1, 3]),
        ana(1, 1, "optimized", &[1, 3]),
        ana(2, 0, "optimized", &[2]),
        ana(2, 1, "inaccessible", &[2]),
    ]);
    assert_eq!(call("ana_list"), wanted);
    assert_eq!(daemon.call("ana_list", json!({"nqn": other})), json!([]));
    assert_eq!(daemon.refuse("host_list", json!({"nqn": "nqn.x"})), -32001);

    let text = ctl(&daemon, &["subsystem", "list"]);
    assert!(text.lines().any(|line| line.contains(other) && line.contains("1 listed")), "{text}");
    let text = ctl(&daemon, &["host", "list"]);
    assert!(text.contains(&format!("{HOST_NQN}: 1 controller(s), not listed")), "{text}");
    assert!(text.contains(&format!("{stranger}: 0 controller(s)\n")), "{text}");
    let text = ctl(&daemon, &["listener", "list"]);
    assert!(text.contains(&listener), "{text}");
    let text = ctl(&daemon, &["ana", "show", "--nqn", NQN]);
    let row = |line: &&str| line.contains("inaccessible") && line.contains(&listener);
    assert_eq!(text.lines().filter(row).count(), 1, "{text}");
    let json: Value = serde_json::from_str(&ctl(&daemon, &["ana", "show", "-o", "json"])).unwrap();
    assert_eq!(json, wanted);
    // A shared subsystem needs a range of controller ids.
    let alone = tempfile::tempdir().unwrap();
    let alone = start(alone.path(), &[]);
    assert_eq!(alone.refuse("subsystem_add", json!({"nqn": other, "shared": true})), -32602);
}

#[test]
fn the_log_can_be_changed_while_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), &["--log", "warn"]);
    let named = |name: &str| Host {
        host_nqn: format!("nqn.2014-08.org.example:{name}"),
        ..Host::new(daemon.listeners[0], NQN)
    };
    drop(named("before").enabled());
    assert_eq!(daemon.refuse("log_set", json!({"filter": "loud"})), -32602);
    assert_eq!(ctl(&daemon, &["log", "debug"]), "logging debug from now on\n");
    drop(named("after").enabled());
    eventually("they are gone", || controllers(&daemon).is_empty());
    daemon.call("log_set", json!({"filter": "warn,target=off"}));
    drop(named("late").enabled());
    let (_, log) = daemon.stop("TERM");
    let told =
        |name: &str| !lines(&log, &["host connected", &format!("example:{name}")]).is_empty();
    assert_eq!((told("before"), told("after"), told("late")), (false, true, false), "{log}");
    assert!(!lines(&log, &[" DEBUG "]).is_empty(), "{log}");
}

/// A host of ours, which is another daemon.
#[test]
fn a_host_of_ours_is_listed() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = start(dir.path(), &[]);
    let volume = format!("tcp://{}/{NQN}?ns=1&keep_alive_tmo=10s", daemon.listeners[0]);
    let host = Daemon::start(other.path(), &[&volume, "--nqn", "nqn.2026-11.com.example:b"]);
    // It makes its I/O queues when they are used.
    let user = Host::new(host.listeners[0], "nqn.2026-11.com.example:b");
    let admin = user.enabled();
    user.io(&admin, 1).read(1, 0, 1, 512);
    let one = controllers(&daemon).pop().unwrap();
    assert!(one["io_queues"].as_u64() > Some(0), "{one}");
    assert_eq!((&one["keep_alive_ms"], &one["state"]), (&json!(10_000), &json!("enabled")));
    assert!(one["host_nqn"].as_str().unwrap().starts_with("nqn."), "{one}");
    assert!(host.stop("TERM").0.success());
    eventually("it is gone", || controllers(&daemon).is_empty());
    let (_, log) = daemon.stop("TERM");
    let told = |what: &str| lines(&log, &[what]).len();
    assert_eq!((told("host connected"), told("by the host")), (1, 1), "{log}");
}
