//! `nvlane ctl metrics`: what Prometheus would make of it.

use crate::daemon::{Daemon, eventually, nvlane};
use crate::host::{HOST_NQN, Host};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const NQN: &str = "nqn.2026-11.com.example:a";

/// Names that there are, and values by name and labels.
#[derive(Default)]
struct Metrics {
    names: BTreeSet<String>,
    values: BTreeMap<String, f64>,
}

impl Metrics {
    fn value(&self, series: &str) -> f64 {
        *self.values.get(series).unwrap_or_else(|| panic!("no {series}: {:#?}", self.values.keys()))
    }
}

/// Reads text of the format 0.0.4, and takes nothing that it does not allow, nor what we do not write.
fn parse(text: &str) -> Metrics {
    let mut metrics = Metrics::default();
    let mut lines = text.lines();
    let first = lines.next().unwrap();
    assert!(first.starts_with("# nvlane ") && first.contains("metrics of version 1"), "{first}");
    let (mut family, mut is_histogram) = (String::new(), false);
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect(line);
            assert!(metrics.names.insert(name.to_owned()), "a second family: {line}");
            assert!(is_name(name) && name.starts_with("nvlane_") && help.ends_with('.'), "{line}");
            let kind = lines.next().unwrap().strip_prefix("# TYPE ").expect(line);
            let kind = kind.strip_prefix(name).expect(line);
            assert_eq!(kind == " counter", name.ends_with("_total"), "{line}");
            assert!([" counter", " gauge", " histogram"].contains(&kind), "{line}");
            is_histogram = kind == " histogram";
            family = name.to_owned();
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect(line);
        let mut labels = series.strip_prefix(&*family).expect(line);
        if is_histogram {
            let parts = ["_bucket", "_sum", "_count"];
            labels = parts.iter().find_map(|part| labels.strip_prefix(part)).expect(line);
        }
        if !labels.is_empty() {
            let inner = labels.strip_prefix('{').and_then(|it| it.strip_suffix('}')).expect(line);
            check_labels(inner);
        }
        let value: f64 = value.parse().expect(line);
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(metrics.values.insert(series.to_owned(), value).is_none(), "twice: {line}");
    }
    metrics
}

fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// `a="b",c="d"`, with `\\`, `\"` and `\n` in values.
fn check_labels(mut text: &str) {
    loop {
        let (name, rest) = text.split_once("=\"").expect(text);
        assert!(is_name(name), "{text}");
        let mut end = None;
        let mut bytes = rest.bytes().enumerate();
        while let Some((at, byte)) = bytes.next() {
            match byte {
                b'\\' => {
                    let (_, escaped) = bytes.next().expect(text);
                    assert!([b'\\', b'"', b'n'].contains(&escaped), "{text}");
                }
                b'"' => {
                    end = Some(at);
                    break;
                }
                _ => {}
            }
        }
        let rest = &rest[end.expect(text) + 1..];
        match rest.strip_prefix(',') {
            Some(more) => text = more,
            None => return assert!(rest.is_empty(), "{text}"),
        }
    }
}

fn ctl(socket: &Path, args: &[&str]) -> Output {
    nvlane().args(["ctl", "metrics"]).args(args).arg("--socket").arg(socket).output().unwrap()
}

fn metrics(socket: &Path) -> Metrics {
    let Output { status, stdout, stderr } = ctl(socket, &[]);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    parse(&String::from_utf8(stdout).unwrap())
}

/// Whoever has dashboards and alerts goes by them.
const NAMES: [&str; 40] = [
    "nvlane_build_info",
    "nvlane_core_buffer_free_bytes",
    "nvlane_core_buffer_size_bytes",
    "nvlane_core_completed_total",
    "nvlane_core_connections",
    "nvlane_core_enters_total",
    "nvlane_core_in_flight_operations",
    "nvlane_core_sleeps_total",
    "nvlane_core_submitted_total",
    "nvlane_core_turns_total",
    "nvlane_host_connections",
    "nvlane_host_controllers",
    "nvlane_job_done_bytes",
    "nvlane_job_size_bytes",
    "nvlane_jobs",
    "nvlane_namespace_bytes_total",
    "nvlane_namespace_commands_total",
    "nvlane_namespace_errors_total",
    "nvlane_namespace_info",
    "nvlane_namespace_latency_seconds",
    "nvlane_namespace_size_bytes",
    "nvlane_path_commands_total",
    "nvlane_path_errors_total",
    "nvlane_path_in_flight_commands",
    "nvlane_path_latency_p50_seconds",
    "nvlane_path_latency_p99_seconds",
    "nvlane_path_reconnects_total",
    "nvlane_path_standby",
    "nvlane_path_state",
    "nvlane_path_up",
    "nvlane_path_weight_ratio",
    "nvlane_process_cpu_seconds_total",
    "nvlane_process_max_fds",
    "nvlane_process_open_fds",
    "nvlane_process_resident_memory_bytes",
    "nvlane_process_start_time_seconds",
    "nvlane_refused_total",
    "nvlane_uptime_seconds",
    "nvlane_volume_missing_seconds",
    "nvlane_volumes_missing",
];

#[test]
fn everything_that_is_told_is_a_metric() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = Daemon::start(other.path(), &["mem:1M", "--nqn", "nqn.x:there"]);
    let remote = format!("tcp://{}/nqn.x:there?ns=1&reconnect_delay=100ms", target.listeners[0]);
    let args = ["fault:op=verify(mem:1M)", &remote, "late.img", "--nqn", NQN, "--nofail"];
    let daemon = Daemon::start(dir.path(), &args);
    let socket = daemon.socket.clone();
    let copy = dir.path().join("copy.img");
    let part = |volume: &str| json!([{ "volume": volume }]);
    let wanted = json!({
        "sources": part("served:1"), "targets": part(&format!("file:{}?size=1M&create", copy.display())),
    });
    daemon.call("job_add", wanted);
    let host = Host::new(daemon.listeners[0], NQN);
    let admin = host.enabled();
    let (mut io, _second) = (host.io(&admin, 1), host.io(&admin, 2));

    let jobs = "nvlane_jobs{state=\"done\"}";
    eventually("the copy is done", || metrics(&socket).value(jobs) == 1.0);
    // Latencies are those of the last seconds.
    let mut before = Metrics::default();
    eventually("latencies", || {
        io.write(2, 0, 1, &[7; 512]);
        before = metrics(&socket);
        before.names.contains("nvlane_path_latency_p99_seconds")
    });
    let names: Vec<&str> = before.names.iter().map(String::as_str).collect();
    assert_eq!(names, NAMES);
    let refused =
        |why: &str| metrics(&socket).value(&format!("nvlane_refused_total{{why=\"{why}\"}}"));
    let connects = refused("connect");
    let nowhere = format!("tcp://{}/nqn.2026-11.com.example:nowhere", daemon.listeners[0]);
    assert!(!nvlane().args(["id-ctrl", &nowhere]).output().unwrap().status.success());
    assert_eq!(refused("connect"), connects + 1.0);
    assert_eq!((refused("authentication"), refused("tls")), (0.0, 0.0));
    let series = |name: &str, labels: &str| format!("nvlane_{name}{{nqn=\"{NQN}\",{labels}}}");
    let written = series("namespace_commands_total", "nsid=\"1\",command=\"write\"");
    let bytes = series("namespace_bytes_total", "nsid=\"1\",command=\"write\"");
    let failed = series("namespace_errors_total", "nsid=\"1\"");
    let path = format!("nsid=\"2\",path=\"tcp://{}\"", target.listeners[0]);
    let sent = series("path_commands_total", &path);
    for _ in 0..8 {
        io.write(1, 0, 1, &[7; 512]);
    }
    io.write(2, 0, 1, &[7; 512]);
    let verify = nvme::Command::blocks(nvme::opcode::io::VERIFY, 1, 0, 1);
    assert!(!io.command(verify, crate::host::Bytes::None).status.is_success());
    let after = metrics(&socket);
    for (series, grown) in [(&written, 8.0), (&bytes, 4096.0), (&failed, 1.0)] {
        assert_eq!(after.value(series) - before.value(series), grown, "{series}");
    }
    assert!(after.value(&sent) > before.value(&sent), "{sent}");
    assert_eq!(after.value(&series("namespace_size_bytes", "nsid=\"1\"")), 1048576.0);
    let by_host = format!("host=\"{HOST_NQN}\"");
    assert_eq!(after.value(&series("host_controllers", &by_host)), 1.0);
    assert_eq!(after.value(&series("host_connections", &by_host)), 3.0);
    assert_eq!(after.value(&series("path_up", &path)), 1.0);
    assert_eq!(after.value(&series("path_standby", &path)), 0.0);
    assert_eq!(after.value(&series("path_state", &format!("{path},state=\"optimized\""))), 1.0);
    assert_eq!(after.value("nvlane_volumes_missing"), 1.0);
    let missing = format!("nvlane_volume_missing_seconds{{nqn=\"{NQN}\",nsid=\"3\",volume=");
    assert_eq!(after.values.keys().filter(|series| series.starts_with(&missing)).count(), 1);
    assert_eq!(after.value("nvlane_job_done_bytes{id=\"1\"}"), 1048576.0);
    assert!(after.value("nvlane_process_resident_memory_bytes") > 1e6);
    // Counters do not fall.
    for (series, value) in before.values.iter().filter(|(series, _)| series.contains("_total")) {
        assert!(after.value(series) >= *value, "{series}");
    }

    target.kill();
    let lost = series("path_state", &format!("{path},state=\"lost\""));
    eventually("the path is down", || metrics(&socket).value(&lost) == 1.0);
    assert_eq!(metrics(&socket).value(&series("path_up", &path)), 0.0);
}

#[test]
fn a_file_is_replaced_as_a_whole_and_others_may_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &["mem:1M", "--nqn", NQN]);
    let file = dir.path().join("nvlane.prom");
    let write = || ctl(&dir.path().join("s"), &["--file", file.to_str().unwrap()]);
    let Output { status, stdout, .. } = write();
    assert!(status.success() && stdout.is_empty());
    let there = fs::metadata(&file).unwrap();
    assert_eq!(there.permissions().mode() & 0o044, 0o044);
    assert!(parse(&fs::read_to_string(&file).unwrap()).names.contains("nvlane_build_info"));
    assert!(write().status.success());
    assert_ne!(fs::metadata(&file).unwrap().ino(), there.ino(), "another file in its place");
    let names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains("prom.new")), "{names:?}");

    // Without a daemon it stays as it was.
    let before = fs::read_to_string(&file).unwrap();
    daemon.kill();
    assert_eq!(write().status.code(), Some(1));
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}

/// Whether a line of `ctl top` tells of writes of 512 bytes, one after the other and 20 ms each, to the first of two
/// namespaces, and of none to the second.
fn tells_of_writes(line: &Value) -> bool {
    // The busiest first.
    let [first, second] = [0, 1].map(|index| &line["namespaces"][index]);
    let number = |field: &str| first[field].as_f64().unwrap();
    let (rate, bytes) = (number("writes_per_second"), number("written_bytes_per_second"));
    // None where nothing was written.
    let p50 = first["write"]["p50_ns"].as_u64().unwrap_or_default();
    (&first["nsid"], &second["nsid"]) == (&json!(1), &json!(2))
        && second["writes_per_second"] == json!(0.0)
        && (16 << 20..1 << 30).contains(&p50)
        && (1.0..=100.0).contains(&rate)
        && (bytes / rate - 512.0).abs() < 1e-6
}

/// A volume that takes 20 ms for writes, and none for reads, beside one that is idle.
#[test]
fn latencies_are_those_of_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &["delay:write=20ms(mem:1M)", "mem:2M", "--nqn", NQN]);
    let socket = daemon.socket.clone();
    let host = Host::new(daemon.listeners[0], NQN);
    let admin = host.enabled();
    let mut io = host.io(&admin, 1);
    let series = |part: &str, nsid: u32, command: &str, more: &str| {
        let labels = format!("nqn=\"{NQN}\",nsid=\"{nsid}\",command=\"{command}\"{more}");
        format!("nvlane_namespace_latency_seconds_{part}{{{labels}}}")
    };
    // A machine that stands still for half a second writes nothing in that time: of some tries, one is to meet writes.
    let mut seen = Vec::new();
    let is_met = (0..10).any(|_| {
        let mut top = nvlane();
        top.args(["ctl", "top", "--interval", "500ms", "--count", "2", "-o", "json"]);
        let mut top = top.arg("--socket").arg(&socket).stdout(Stdio::piped()).spawn().unwrap();
        // However late it begins, something is written meanwhile.
        while top.try_wait().unwrap().is_none() {
            io.write(1, 0, 1, &[7; 512]);
            io.read(1, 0, 1, 512);
            let verify = nvme::Command::blocks(nvme::opcode::io::VERIFY, 1, 0, 1);
            assert!(io.command(verify, crate::host::Bytes::None).status.is_success());
        }
        let text = top.wait_with_output().unwrap();
        assert!(text.status.success());
        let text = String::from_utf8(text.stdout).unwrap();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2, "{text}");
        // Not since the beginning: the first is told after an interval, too.
        let is_met = tells_of_writes(&lines[0]);
        seen.extend(lines);
        is_met
    });
    assert!(is_met, "{seen:#?}");
    let told = metrics(&socket);
    let value = |part: &str, command: &str, more: &str| told.value(&series(part, 1, command, more));
    let writes = value("count", "write", "");
    assert_eq!(value("bucket", "write", ",le=\"+Inf\""), writes);
    assert_eq!(value("bucket", "write", ",le=\"0.016777216\""), 0.0, "none in less than 16.8 ms");
    assert!(value("sum", "write", "") >= writes * 0.019, "20 ms each");
    assert!(value("bucket", "read", ",le=\"0.016777216\"") >= value("count", "read", "") * 0.5);
    let commands = format!("nvlane_namespace_commands_total{{nqn=\"{NQN}\",nsid=\"1\",command=");
    for command in ["read", "write", "other"] {
        assert_eq!(told.value(&format!("{commands}\"{command}\"}}")), value("count", command, ""));
    }
    assert!(!told.values.contains_key(&series("count", 2, "write", "")), "it is idle");

    let run = |args: &[&str]| {
        let output =
            nvlane().args(["ctl"]).args(args).arg("--socket").arg(&socket).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let table = run(&["top", "-n", "1", "--interval", "10ms"]);
    assert!(table.contains("2 idle namespace(s)") && !table.contains("Reads/s"), "{table}");
    let stats = run(&["stats"]);
    assert!(stats.contains("    write: p50 ") && stats.contains(" ms, p99 "), "{stats}");
}

/// Its control socket tells of its exports, their paths and itself.
#[test]
fn an_nbd_server_has_metrics_too() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = Daemon::start(other.path(), &["mem:1M", "--nqn", "nqn.x:there"]);
    let remote = format!("tcp://{}/nqn.x:there?ns=1", target.listeners[0]);
    let mut server = nvlane();
    server.args(["nbd", &remote, "--socket", "a.sock", "--control", "c.sock"]);
    let mut server = server.current_dir(dir.path()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    lines.map_while(Result::ok).find(|line| line == "ready").expect("it is ready");
    let socket = dir.path().join("c.sock");
    let before = metrics(&socket);
    let write =
        ["-f", "raw", "-c", "write -P 7 0 64k", "-c", "flush", "nbd+unix:///?socket=a.sock"];
    let wrote = Command::new("qemu-io").args(write).current_dir(dir.path()).output().unwrap();
    assert!(wrote.status.success(), "{wrote:?}");
    let told = metrics(&socket);
    let mut top = nvlane();
    top.args(["ctl", "top", "-n", "1", "--interval", "10ms", "--socket"]).arg(&socket);
    let top = String::from_utf8(top.output().unwrap().stdout).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let prefixes =
        ["nvlane_path_", "nvlane_namespace_", "nvlane_process_", "nvlane_build_", "nvlane_uptime_"];
    let known = |name: &&String| prefixes.iter().any(|prefix| name.starts_with(prefix));
    assert!(told.names.iter().all(|name| known(&name)), "{:?}", told.names);
    let path = format!("nqn=\"nbd:\",nsid=\"1\",path=\"tcp://{}\"", target.listeners[0]);
    assert_eq!(told.value(&format!("nvlane_path_up{{{path}}}")), 1.0);
    let export = "nqn=\"nbd:\",nsid=\"1\"";
    let grown = |name: &str, command: &str| {
        let series = format!("nvlane_namespace_{name}{{{export},command=\"{command}\"}}");
        told.value(&series) - before.value(&series)
    };
    assert_eq!((grown("commands_total", "write"), grown("bytes_total", "write")), (1.0, 65536.0));
    assert!(grown("commands_total", "other") >= 1.0, "a flush");
    let took = format!("nvlane_namespace_latency_seconds_sum{{{export},command=\"write\"}}");
    assert!(told.value(&took) > 0.0, "it went over a network");
    assert_eq!(told.value(&format!("nvlane_namespace_size_bytes{{{export}}}")), 1048576.0);
    assert!(top.contains("1 idle namespace(s)"), "{top}");
}
