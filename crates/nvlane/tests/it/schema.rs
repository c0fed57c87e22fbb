//! The JSON of `paths`, `info`, `list` and `list-subsys`, against targets that run: exactly these keys, of these
//! types, as docs/cli-json.md has them. What goes or changes its type is a new schema version; what is added is
//! added there, too.

use crate::daemon::{Daemon, eventually, nvlane};
use crate::host::Host;
use crate::remote::{self, NQN, start, uri};
use serde_json::{Map, Value, json};
use std::process::Stdio;

const GATEWAY: &str = "nqn.2026-11.com.example:g";

fn json(args: &[&str]) -> Value {
    remote::json(&[args, &["-o", "json"]].concat())
}

/// The same once no path is away: a command waits for the first of them, and only a little longer for others.
fn json_of_all(args: &[&str]) -> Value {
    let mut told = Value::Null;
    eventually("all paths", || {
        told = json(args);
        !is_some_away(&told)
    });
    told
}

/// Whether some path in there has no controller.
fn is_some_away(told: &Value) -> bool {
    match told {
        Value::Array(parts) => parts.iter().any(is_some_away),
        Value::Object(fields) => {
            fields.get("Cntlid").is_some_and(Value::is_null)
                || fields.get("details").is_some_and(|details| details["controller"].is_null())
                || fields.values().any(is_some_away)
        }
        _ => false,
    }
}

/// What a value is made of: a word for what has no parts, and of an array the shapes that its elements have.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "boolean".into(),
        Value::Number(number) if number.is_u64() => "integer".into(),
        Value::Number(_) => "fraction".into(),
        Value::String(_) => "string".into(),
        Value::Array(elements) => {
            let mut shapes: Vec<Value> = Vec::new();
            for element in elements.iter().map(shape) {
                if !shapes.contains(&element) {
                    shapes.push(element);
                }
            }
            shapes.into()
        }
        Value::Object(fields) => {
            let shapes = fields.iter().map(|(key, value)| (key.clone(), shape(value)));
            Value::Object(shapes.collect())
        }
    }
}

/// Shapes of a path of `nvlane paths`; its details are looked at by [`details`].
fn path() -> Value {
    json!({
        "name": "string", "access": "string", "reason": "string", "in_flight": "integer",
        "selections": "integer", "errors": "integer", "reconnects": "integer", "weight": "integer",
        "share": "fraction", "standby": "boolean", "p50_ns": "integer", "p99_ns": "integer", "details": {},
    })
}

/// The same in `nvlane info`, where nothing was sent before of which it could have a share.
fn path_without_share() -> Value {
    let Value::Object(mut path) = path() else { unreachable!("it is an object") };
    path.remove("share");
    path.into()
}

/// Takes the details out of all `paths` and gives them.
fn take_details(paths: &mut Value) -> Vec<Map<String, Value>> {
    let take = |path: &mut Value| {
        let details = std::mem::replace(&mut path["details"], json!({}));
        details.as_object().expect("an object").clone()
    };
    paths.as_array_mut().unwrap().iter_mut().map(take).collect()
}

/// What every path over TCP tells: numbers.
const OF_A_PATH: [&str; 3] = ["controller", "received_direct_bytes", "received_copied_bytes"];

/// Checks the details of a path over TCP: its own, and the statistics of each group, `fields` by name, of all cores
/// together or of one. Whether there are statistics of reads.
fn check(details: &Map<String, Value>, fields: &str) -> bool {
    for name in OF_A_PATH {
        let value = details.get(name).and_then(Value::as_str).unwrap_or_default();
        assert!(value.parse::<u64>().is_ok(), "{name}: {details:?}");
    }
    let source = details["source"].as_str().unwrap_or_default();
    assert!(source.parse::<std::net::IpAddr>().is_ok(), "{details:?}");
    let own = |name: &str| name == "source" || OF_A_PATH.contains(&name);
    for (name, value) in details.iter().filter(|(name, _)| !own(name)) {
        let (group, core) = name.split_once(" core ").unwrap_or((name.as_str(), "0"));
        assert!(["read", "write", "other"].contains(&group), "{name}");
        assert!(core.parse::<u32>().is_ok(), "{name}");
        let line = value.as_str().expect("a string");
        let known = line.split(' ').map(|field| {
            let (name, value) = field.split_once('=').unwrap_or_else(|| panic!("{line}"));
            assert!(value.parse::<u64>().is_ok(), "{line}");
            name
        });
        assert_eq!(known.collect::<Vec<_>>().join(" "), fields, "{name}");
    }
    details.contains_key("read")
}

#[test]
fn paths_that_are_probed() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    for (policy, fields) in [
        ("numa", "sel in_flight"),
        ("round-robin", "sel in_flight"),
        ("queue-depth", "sel in_flight"),
        ("latency", "weight credit score slat_ns sel nr_samples nr_ignored in_flight"),
        (
            "completion-time",
            "sel in_flight queued_work latency_ns backlog_work rate least_ns silent_ns clipped probes",
        ),
    ] {
        let volume = uri(&daemon, &format!("&policy={policy}"));
        let mut told = json_of_all(&["paths", &volume, "--interval", "300ms"]);
        let details = take_details(&mut told["volumes"][0]["paths"]);
        let reads = details.iter().filter(|details| check(details, fields)).count();
        assert!(reads >= 1, "{policy}: {details:?}");
        let wanted = json!({
            "schema_version": "integer",
            "volumes": [{
                "nqn": "string", "nsid": "integer", "volume": "string", "policy": "string",
                "paths": [path()],
            }],
        });
        assert_eq!(shape(&told), wanted, "{policy}: {told}");
        let volume = &told["volumes"][0];
        assert_eq!(
            (&volume["policy"], &volume["nqn"], &volume["nsid"]),
            (&json!(policy), &json!(""), &json!(0))
        );
    }
}

/// While it is in use, since statistics are those of cores that use it; and a path that is lost is told as any other.
#[test]
fn paths_of_a_daemon() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ports = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let target = Daemon::start(dir.path(), &[&["null:1T", "--nqn", NQN][..], &ports].concat());
    let volume = uri(&target, "&policy=latency&reconnect_delay=100ms");
    let gateway = Daemon::start(other.path(), &[&volume, "--nqn", GATEWAY]);
    let through = format!("tcp://{}/{GATEWAY}?ns=1", gateway.listeners[0]);
    let mut reader = nvlane().args(["cat", &through]).stdout(Stdio::null()).spawn().unwrap();
    let ask = || json(&["paths", "--socket", gateway.socket.to_str().unwrap()]);
    eventually("reads", || ask()["volumes"][0]["paths"][0]["details"]["read"] != Value::Null);
    target.call("listener_remove", json!({"address": target.listeners[1]}));
    eventually("a path is lost", || ask()["volumes"][0]["paths"][1]["access"] == "lost");
    let mut told = ask();
    let details = take_details(&mut told["volumes"][0]["paths"]);
    let fields = "weight credit score slat_ns sel nr_samples nr_ignored in_flight";
    assert!(details.iter().any(|details| check(details, fields)), "{details:?}");
    let wanted = json!({
        "schema_version": "integer",
        "volumes": [{
            "nqn": "string", "nsid": "integer", "volume": "string", "policy": "string",
            "paths": [path()],
        }],
    });
    assert_eq!(shape(&told), wanted, "{told}");
    // The control socket gives the same without shares.
    let mut told = gateway.call("volume_paths", json!({}));
    take_details(&mut told[0]["paths"]);
    assert_eq!(shape(&told[0]["paths"]), json!([path_without_share()]));
    reader.kill().unwrap();
    reader.wait().unwrap();
}

/// `info` of a volume, whose facts are for people: strings, whatever they are called.
fn check_info(volume: &str, policy: &Value, paths: &Value) {
    let mut told = json(&["info", volume]);
    take_details(&mut told["paths"]);
    let facts = told["facts"].take();
    assert!(facts.as_object().unwrap().values().all(Value::is_string), "{facts}");
    let wanted = json!({
        "schema_version": "integer", "volume": "string", "bytes": "integer",
        "block_bytes": "integer", "transfer_bytes_max": "integer",
        "optimal_write_bytes": "integer", "read_only": "boolean",
        "volatile_write_cache": "boolean", "commands": ["string"], "facts": "null",
        "policy": policy, "paths": paths,
    });
    assert_eq!(shape(&told), wanted, "{volume}: {told}");
}

#[test]
fn info() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    check_info(&uri(&daemon, ""), &json!("string"), &json!([path_without_share()]));
    check_info("mem:1M", &json!("null"), &json!([]));
    check_info("delay:1ms(mem:1M)", &json!("null"), &json!([]));
}

#[test]
fn list() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let wanted = json!({
        "schema_version": "integer",
        "Devices": [{
            "DevicePath": "string", "SubsystemNQN": "string", "NameSpace": "integer",
            "UUID": "string", "SerialNumber": "string", "ModelNumber": "string",
            "Firmware": "string", "UsedBytes": "integer", "MaximumLBA": "integer",
            "PhysicalSize": "integer", "SectorSize": "integer",
        }],
    });
    let (remote, socket) = (uri(&daemon, ""), daemon.socket.to_str().unwrap());
    let port = daemon.listeners[0].port().to_string();
    for args in [
        &["list", &remote][..],
        &["list", &remote, "mem:1M"],
        &["list", "-a", "127.0.0.1", "-s", &port, "-n", NQN],
        &["list", "--socket", socket],
    ] {
        assert_eq!(shape(&json(args)), wanted, "{args:?}");
    }
}

#[test]
fn list_verbose() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let mut wanted = json!({
        "schema_version": "integer",
        "Subsystems": [{
            "Subsystem": "string", "SubsystemNQN": "string",
            "Controllers": [{
                "Controller": "string", "Cntlid": "integer", "HostNQN": "string",
                "SerialNumber": "string", "ModelNumber": "string", "Firmware": "string",
                "Transport": "string", "Address": "string", "State": "string",
                "Reason": "string",
                "Paths": [{"Path": "string", "NSID": "integer", "ANAState": "string"}],
            }],
            "Namespaces": [{
                "DevicePath": "string", "NSID": "integer", "UUID": "string",
                "UsedBytes": "integer", "MaximumLBA": "integer", "PhysicalSize": "integer",
                "SectorSize": "integer",
            }],
        }],
    });
    let (remote, socket) = (uri(&daemon, ""), daemon.socket.to_str().unwrap());
    // What is there without -v stays as it is.
    wanted["Devices"] = shape(&json(&["list", &remote])["Devices"]);
    let host = Host::new(daemon.listeners[0], NQN);
    let _host = host.enabled();
    for args in [&["list", "-v", &remote][..], &["list", "-v", "--socket", socket]] {
        assert_eq!(shape(&json_of_all(args)), wanted, "{args:?}");
    }
}

#[test]
fn list_subsys() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = start(dir.path());
    let remote = uri(&daemon, "");
    let gateway = Daemon::start(other.path(), &[&remote, "--nqn", GATEWAY]);
    let wanted = json!({
        "schema_version": "integer",
        "Subsystems": [{
            "Name": "string", "NQN": "string", "IOPolicy": "string",
            "Paths": [{
                "Transport": "string", "Address": "string", "State": "string",
                "ANAState": "string", "Reason": "string",
            }],
        }],
    });
    let mut verbose = wanted.clone();
    for field in ["HostNQN", "Model", "Serial", "Firmware", "Type"] {
        verbose["Subsystems"][0][field] = "string".into();
    }
    verbose["Subsystems"][0]["Paths"][0]["Cntlid"] = "integer".into();
    assert_eq!(shape(&json_of_all(&["list-subsys", "-v", &remote])), verbose);
    let (port, socket) = (daemon.listeners[0].port().to_string(), gateway.socket.to_str().unwrap());
    let nobody = format!("tcp://{},127.0.0.1:1/{NQN}?ns=1", daemon.listeners[0]);
    for (args, last) in [
        (&["list-subsys", &remote][..], daemon.listeners[1].port()),
        (&["list-subsys", &nobody], 1),
        (&["list-subsys", "-a", "127.0.0.1", "-s", &port], daemon.listeners[1].port()),
        (&["list-subsys", "--socket", socket], daemon.listeners[1].port()),
    ] {
        let told = json(args);
        assert_eq!(shape(&told), wanted, "{args:?}");
        // However it is known, an address is written in one way.
        let [subsystem] = &told["Subsystems"].as_array().unwrap()[..] else { panic!("{told}") };
        assert_eq!((&subsystem["Name"], &subsystem["NQN"]), (&json!("nvme-subsys0"), &json!(NQN)));
        let [one, two] = &subsystem["Paths"].as_array().unwrap()[..] else { panic!("{told}") };
        for (path, port) in [(one, daemon.listeners[0].port()), (two, last)] {
            let address = path["Address"].as_str().unwrap();
            let wanted = format!("traddr=127.0.0.1,trsvcid={port}");
            assert_eq!(address.split(",src_addr=").next(), Some(&*wanted), "{args:?}");
            assert_eq!(path["Transport"], "tcp");
        }
    }
}
