//! `nvlane bench`: the form of its reports. How fast anything is, is not asked here.

use crate::daemon::nvlane;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Every figure that the bench contract names, and those that are measured beside them.
fn figures() -> Vec<String> {
    let mut names: Vec<String> =
        ["idle_cpu_percent", "rss_mib", "idle_queue_kib", "idle_namespace_kib"]
            .map(str::to_owned)
            .to_vec();
    let small = [1, 4, 16, 32, 128].as_slice();
    for (operation, depths) in [
        ("randread", small),
        ("randwrite", small),
        ("null_randread", small),
        ("read128k", &small[..4]),
    ] {
        for depth in depths {
            names.push(format!("{operation}_qd{depth}_of_limit"));
            names.push(format!("{operation}_qd{depth}_kiops"));
        }
    }
    names
}

/// The report of a brief run, in which all figures are numbers, and those of these names are there. A machine that stands
/// still throughout a window leaves nothing to divide by: of some runs, one has them all.
fn tiny(scenario: &str, names: &[String]) -> Option<Value> {
    const TRIES: usize = 5;
    let mut missing = Vec::new();
    for _ in 0..TRIES {
        let report = report_of(scenario)?;
        let figures = report["figures"].as_object().unwrap();
        let all = names.iter().chain(figures.keys());
        missing = all.filter(|name| !report["figures"][name].is_number()).cloned().collect();
        if missing.is_empty() {
            return Some(report);
        }
        println!("no numbers: {missing:?}");
    }
    panic!("in each of {TRIES} runs figures are no numbers, in the last {missing:?}");
}

/// Runs a scenario so briefly that only the form of its report means anything; none where there is
/// one core only.
fn report_of(scenario: &str) -> Option<Value> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        println!("the bench needs two cores, there is {cores}: not run");
        return None;
    }
    let (dir, drawn) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let svg = drawn.path().join("figures.svg");
    let output = nvlane()
        .args(["bench", scenario, "--quick", "--tiny", "--json", "--dir"])
        .arg(dir.path())
        .arg("--svg")
        .arg(&svg)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["figures", "machine", "rows", "scenario"]);
    assert_eq!(report["scenario"], scenario);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    let svg = std::fs::read_to_string(svg).expect("it was drawn");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("<rect"));
    Some(report)
}

/// The report without --only has the names.
#[test]
fn a_word_that_no_row_has_is_told() {
    let only = |words: &str| {
        let mut bench = nvlane();
        bench.args(["bench", "namespace", "--tiny", "--json", "--only", words]).output().unwrap()
    };
    let output = only("null_three,memmory");
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows: Vec<&Value> =
        report["rows"].as_array().unwrap().iter().map(|row| &row["volume"]).collect();
    // With what it is compared with.
    assert_eq!(rows, ["bare_zeroes", "null_three_layers"]);
    let notes = report["machine"]["notes"].to_string();
    assert!(notes.contains("no row with memmory in its name"), "{notes}");
    let output = only("memmory,nul1");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("bench namespace --quick has no row with memmory or nul1"), "{said}");
}

/// What it has made is taken away: its files here, on other scenarios mounts and devices.
#[test]
fn one_that_is_interrupted_leaves_nothing() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("the bench needs two cores: not run");
        return;
    }
    for scenario in ["host", "target"] {
        // It may be over before it is interrupted: a brief one takes a second or two.
        assert!((0..5).any(|_| is_interrupted(scenario)), "{scenario} ends by itself each time");
    }
}

/// Interrupts one with its first row; false where it was over before.
fn is_interrupted(scenario: &str) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = nvlane();
    bench.args(["bench", scenario, "--quick", "--tiny", "--dir"]).arg(dir.path());
    let mut bench = bench.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(bench.stderr.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    assert!(first.starts_with("randread"), "{first}");
    let made = std::fs::read_dir(dir.path()).unwrap().count();
    let id = rustix::process::Pid::from_child(&bench);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let said: Vec<String> = lines.collect();
    let status = bench.wait().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{scenario}");
    if status.success() {
        return false;
    }
    assert_eq!((status.code(), made), (Some(1), 1), "{said:?}");
    assert!(said.iter().any(|line| line.starts_with("ending with this row")), "{said:?}");
    assert_eq!(said.last().unwrap(), "nvlane: interrupted");
    true
}

#[test]
fn the_hosts_report_has_every_figure_of_the_contract() {
    let mut names: Vec<String> = ["randread", "randwrite"]
        .iter()
        .flat_map(|operation| [1, 4, 16, 32, 128].map(|depth| (operation, depth)))
        .flat_map(|(operation, depth)| {
            ["of_limit", "kiops", "host_cpu_us"].map(|unit| format!("{operation}_qd{depth}_{unit}"))
        })
        .collect();
    names.push("paths4_completion_time_over_round_robin_cpu".into());
    let Some(report) = tiny("host", &names) else { return };
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 11);
    let depths: Vec<&Value> = rows.iter().filter(|row| row["volume"] == "memory").collect();
    assert_eq!(depths.len(), 10);
    for row in depths {
        figures_follow(row, &report);
    }
}

#[test]
fn the_report_of_multipath_has_every_figure_of_a_quick_run() {
    let mut names: Vec<String> = ["queue_depth", "latency", "completion_time"]
        .iter()
        .flat_map(|policy| ["mib_s", "p99_us"].map(|unit| format!("read_{policy}_{unit}")))
        .collect();
    names.extend(
        [
            "read_completion_time_over_queue_depth",
            "read_completion_time_over_next_best",
            "completion_time_of_best_split",
            "recovery_ms",
        ]
        .map(str::to_owned),
    );
    let Some(report) = tiny("multipath", &names) else { return };
    let rows = report["rows"].as_array().unwrap();
    let policies = rows.iter().filter(|row| row["operation"] == "read");
    for row in policies {
        let windows = row["samples"][0]["windows"].as_array().unwrap();
        assert_eq!(windows.len(), 3, "{row}");
        assert!(row["best_split"]["mib_s"].as_f64().unwrap() > 0.0, "{row}");
    }
    // A recovery that did not come within what was watched says so beside its figure.
    let recovery = rows.iter().find(|row| row["operation"] == "recovery").unwrap();
    assert!(recovery["recovered"].is_boolean());
    assert_eq!(recovery["samples"].as_array().unwrap().len(), 3);
}

#[test]
fn the_targets_report_has_every_figure_of_the_contract() {
    let Some(report) = tiny("target", &figures()) else { return };
    peers(&report);
    rows(&report);
}

/// A peer is there with its version, or said to be missing: by what it says when it is asked here.
fn peers(report: &Value) {
    for peer in ["nbdkit", "qemu-nbd", "fio", "nvmf_tgt"] {
        let state = report["machine"]["peers"][peer].as_str().unwrap_or_else(|| panic!("{peer}"));
        match version(peer) {
            Some(_) if peer == "fio" && !fio_reads_files() => {
                assert!(state.starts_with("missing: ") && state.contains("no engine"), "{state}");
            }
            Some(version) => {
                let rest = state.strip_prefix(&version);
                let rest = rest.unwrap_or_else(|| panic!("{peer} is {version}, not {state}"));
                assert!(rest.is_empty() || rest.starts_with(" ("), "{peer}: {state}");
            }
            None => assert_eq!(state, "missing: not installed", "{peer}"),
        }
    }
}

/// The first line that a program says of its version; none if it is not installed.
fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().next().map(str::trim).unwrap_or_default();
    assert!(!line.is_empty(), "{program} has no version: {output:?}");
    Some(line.to_owned())
}

/// Whether fio is there, with what it reads local files by.
fn fio_reads_files() -> bool {
    let engines = Command::new("fio").arg("--enghelp").output();
    engines.is_ok_and(|engines| {
        String::from_utf8_lossy(&engines.stdout).lines().any(|line| line.trim() == "io_uring")
    })
}

/// Each row has the samples that its figures follow from, and says whether they may be trusted.
fn rows(report: &Value) {
    let rows = report["rows"].as_array().unwrap();
    let measured: Vec<&Value> = rows.iter().filter(|row| row["operation"] != "idle").collect();
    assert!(measured.len() >= 5 + 5 + 4 + 5 + 5, "{} rows", measured.len());
    for row in &measured {
        let steady = row["steady"].as_bool().expect("whether it was steady");
        let samples = row["samples"].as_array().unwrap();
        let kept = samples.iter().filter(|sample| sample["kept"] == true).count();
        assert_eq!(steady, kept > 0, "{row}");
        assert!(!samples.is_empty(), "{row}");
        // A disk has no bare exchange as its limit.
        assert_eq!(row["of_limit"].is_number(), row["volume"] != "file", "{row}");
        best_of_three(row);
        figures_follow(row, report);
        latencies_and_costs(row, report);
    }
    beside(&measured, report);
    servers(&measured);
    // A machine that stands still throughout a window has nothing done in it.
    let idle = measured.iter().filter(|row| row["iops"].as_f64() == Some(0.0)).count();
    assert!(idle < measured.len() / 2, "{report}");
    unsteady(&measured, report);
    let idle: Vec<&Value> = rows.iter().filter(|row| row["operation"] == "idle").collect();
    assert_eq!(idle.len(), 2);
    assert!(idle.iter().all(|row| row["samples"].is_object() && row["beside"].is_string()));
}

/// Rates of all three bare servers are there, and the limit is the best of them.
fn best_of_three(row: &Value) {
    let limit = &row["limit"];
    let iops = |server: &str| limit[server]["iops"].as_f64().unwrap_or_else(|| panic!("{row}"));
    let best = iops(limit["best"].as_str().unwrap_or_else(|| panic!("{row}")));
    for server in ["busy_polled", "blocking", "reactor"] {
        assert!(best > 0.0 && iops(server) <= best, "{server}: {row}");
        assert!(limit[server]["p50_us"].is_number(), "{server}: {row}");
    }
}

/// How long commands took, and what one cost on each side.
fn latencies_and_costs(row: &Value, report: &Value) {
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{row}"));
    let some = number(&row["iops"]) > 0.0;
    let [p50, p99, p99_9] = ["p50_us", "p99_us", "p99_9_us"].map(|key| number(&row[key]));
    assert!((p50 > 0.0) == some && p50 <= p99 && p99 <= p99_9, "{row}");
    for side in ["client", "server"] {
        let cost = &row[side];
        // On a busy machine what was asked for before may be answered without the server in so short a window.
        let least = if side == "client" { f64::MIN_POSITIVE } else { 0.0 };
        assert!(!some || number(&cost["cpu_us"]) >= least, "{side}: {row}");
        assert!(number(&cost["context_switches"]) >= 0.0, "{side}: {row}");
    }
    assert!(!some || number(&row["client"]["system_calls"]) > 0.0, "{row}");
    let notes = report["machine"]["notes"].to_string();
    let counted = !notes.contains("system calls of the server: not counted");
    assert!(row["server"]["system_calls"].is_number() || !counted, "{row}, {notes}");
}

/// Memory has the first NBD server that is installed beside it, a file has fio, null has nobody.
fn beside(rows: &[&Value], report: &Value) {
    let nbd = ["nbdkit", "qemu-nbd"].into_iter().find(|peer| version(peer).is_some());
    let fio = Some("fio").filter(|_| fio_reads_files());
    for row in rows {
        let peer = match row["volume"].as_str().unwrap() {
            "memory" => nbd,
            "file" => fio,
            _ => None,
        };
        let beside = &row["beside"];
        assert_eq!(beside["peer"].as_str(), peer, "{row}, {}", report["machine"]["peers"]);
        let Some(peer) = peer else { continue };
        let iops = beside["iops"].as_f64().unwrap_or_else(|| panic!("{peer}: {row}"));
        assert!(iops >= 0.0 && beside["p50_us"].is_number(), "{peer}: {row}");
        let name = format!("{}_of_{}", figure(row), peer.replace('-', "_"));
        if iops > 0.0 {
            is_near(report, &name, row["iops"].as_f64().unwrap() / iops);
        }
    }
}

/// Where the server's calls are counted, there are some. Of a single row a machine that stands still may leave none.
fn servers(rows: &[&Value]) {
    let counts: Vec<f64> =
        rows.iter().filter_map(|row| row["server"]["system_calls"].as_f64()).collect();
    assert!(counts.is_empty() || counts.iter().sum::<f64>() > 0.0, "{counts:?}");
    let times: Vec<f64> = rows.iter().filter_map(|row| row["server"]["cpu_us"].as_f64()).collect();
    assert!(times.iter().sum::<f64>() > 0.0, "{times:?}");
}

/// Figures of a row are what its samples say. A brief run has one window for each row.
fn figures_follow(row: &Value, report: &Value) {
    let [sample] = row["samples"].as_array().unwrap().as_slice() else { panic!("{row}") };
    let [before, iops, after] = ["limit_before", "iops", "limit_after"]
        .map(|key| sample[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}")));
    let (name, of_limit) = (figure(row), iops / ((before + after) / 2.0));
    is_near(report, &format!("{name}_kiops"), iops / 1000.0);
    if row["volume"] == "file" {
        assert!(report["figures"].get(format!("{name}_of_limit")).is_none(), "{row}");
    } else {
        is_near(report, &format!("{name}_of_limit"), of_limit);
        assert!((row["of_limit"].as_f64().unwrap() - of_limit).abs() <= 1e-4, "{row}");
    }
    for key in ["p50_us", "p99_us"] {
        is_near(report, &format!("{name}_{key}"), row[key].as_f64().unwrap());
    }
}

/// The figure is that one, but for its rounding.
fn is_near(report: &Value, name: &str, expected: f64) {
    let value = report["figures"][name].as_f64().unwrap_or(f64::NAN);
    let off = (value - expected).abs();
    assert!(off <= 1e-4 + expected * 1e-6, "{name}: {value} is not {expected}");
}

/// A note names the figures of rows without a steady window, and those only.
fn unsteady(rows: &[&Value], report: &Value) {
    let of = |row: &&&Value| row["steady"] == false;
    let names: Vec<String> = rows.iter().filter(of).map(|row| figure(row) + "_*").collect();
    let notes = report["machine"]["notes"].as_array().unwrap();
    let mut told = notes.iter().filter_map(|note| {
        note.as_str()
            .unwrap()
            .strip_prefix("no window was steady, so that these figures mean little: ")
    });
    let told: Vec<&str> = told.next().map_or(Vec::new(), |names| names.split(", ").collect());
    assert_eq!(told, names);
}

/// What figures of a row begin with.
fn figure(row: &Value) -> String {
    let word = |key: &str| row[key].as_str().unwrap().to_owned();
    let volume = if row["volume"] == "memory" { String::new() } else { word("volume") + "_" };
    format!("{volume}{}_qd{}", word("operation"), row["queue_depth"])
}

#[test]
fn people_get_tables() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return println!("the bench needs two cores: not run");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = nvlane();
    command.args(["bench", "target", "--tiny", "--only", "read128k_qd1", "--dir"]);
    let output = command.arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let row = |begin: &str| -> Vec<String> {
        let mut lines = said.lines().filter_map(|line| line.trim_start().strip_prefix(begin));
        let cells = lines.next().unwrap_or_else(|| panic!("no row {begin}: {said}"));
        cells.split_whitespace().map(str::to_owned).collect()
    };
    assert!(said.starts_with("target: "), "{said}");
    assert!(said.contains("\nlimit: bare exchange, "), "{said}");
    let servers = ["busy_polled", "blocking", "reactor"];
    let limit = row("read128k_qd1 ");
    assert!(limit[..3].iter().all(|cell| cell.parse::<f64>().is_ok()), "{limit:?}");
    assert!(limit.len() == 4 && servers.contains(&&*limit[3]), "{limit:?}");
    // A tilde: no window was steady.
    let cells = row("memory read128k qd1 ");
    let number = |cell: &String| cell.trim_end_matches('~').parse::<f64>().is_ok() || cell == "-";
    assert!(cells.len() == 14 && servers.contains(&&*cells[3]), "{cells:?}");
    assert!(cells[..3].iter().chain(&cells[4..]).all(number), "{cells:?}");
    assert!(row("read128k_qd1_kiops ")[0].parse::<f64>().is_ok(), "{said}");
}

#[test]
fn volumes_in_process_are_measured_beside_what_their_data_takes() {
    let copied = ["bare_copy", "memory", "memory_lent"];
    let zeroed =
        ["bare_zeroes", "null", "null_three_layers", "null_lent", "null_lent_three_layers"];
    let volumes = [&copied[..], &zeroed].concat();
    let mut names: Vec<String> =
        volumes.iter().map(|volume| format!("{volume}_read_miops")).collect();
    let shares = ["memory_read_of_copy", "null_read_of_zeroes", "null_three_layers_read_of_zeroes"];
    names.extend(shares.map(str::to_owned));
    let Some(report) = tiny("namespace", &names) else { return };
    for name in &names {
        assert!(report["figures"][name].as_f64().unwrap() > 0.0, "{name}: {report}");
    }
    let rows = report["rows"].as_array().unwrap();
    let measured: Vec<&str> = rows.iter().map(|row| row["volume"].as_str().unwrap()).collect();
    assert_eq!(measured, volumes);
    for (row, volume) in rows.iter().zip(volumes) {
        let samples = row["samples"].as_array().unwrap();
        let beside = if copied.contains(&volume) { copied[0] } else { zeroed[0] };
        assert!(!samples.is_empty() && row["beside"] == beside, "{row}");
        assert!(samples.iter().all(|rate| rate.as_f64().unwrap() > 0.0), "{row}");
    }
}

/// A folder that is all of PATH: nothing there makes devices, so that no machine has any. Its cargo notes what it is told,
/// and says what a guest would.
fn alone_with_cargo() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let cargo = path.join("cargo");
    let notes = "printf '%s\\n' \"$(pwd -P)\" \"guest: $NVLANE_BENCH_IN_GUEST\" \
        \"turns: $NVLANE_BENCH_USER_SPACE_NS\" \"$@\" >\"${0%/*}/told\"";
    let says = r#"printf '{"said by": "the guest"}\n'"#;
    std::fs::write(&cargo, format!("#!/bin/sh\n{notes}\n{says}\nexit 3\n")).unwrap();
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).unwrap();
    (dir, path)
}

/// `nvlane bench ARGUMENTS` with that PATH, started there.
fn bench_in(path: &Path, arguments: &[&str]) -> Command {
    let mut command = nvlane();
    command.arg("bench").args(arguments).current_dir(path).env("PATH", path);
    command.env_remove("NVLANE_BENCH_IN_GUEST").env_remove("NVLANE_BENCH_USER_SPACE_NS");
    command
}

#[test]
fn what_this_machine_lacks_is_measured_in_a_guest() {
    let (_dir, path) = alone_with_cargo();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_nvlane")).canonicalize().unwrap();
    for scenario in ["passthrough", "aio"] {
        let own = [scenario, "--quick", "--json", "--only=_qd1", "--dir=a", "--svg", "b/c.svg"];
        let output = bench_in(&path, &own).output().unwrap();
        // It has become the guest: whose words and status these are.
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{scenario}");
        assert_eq!(output.stdout, b"{\"said by\": \"the guest\"}\n", "{scenario}");
        assert_eq!(output.status.code(), Some(3), "{scenario}");
        let here = path.display();
        let expected = format!(
            "{}\nguest: 1\nturns: \nxtask\nguest\n--exact\n--timeout\n5400\n--qemu=-cpu\n--qemu=max,-erms,-fsrm\n\
             --env\nPATH={here}\n--share\n{here}/b\n--\n{}\nbench\n{scenario}\n--quick\n--json\n--only=_qd1\n\
             --dir\n{here}/a\n--svg\n{here}/b/c.svg\n",
            checkout.display(),
            program.display(),
        );
        let told = std::fs::read_to_string(path.join("told")).unwrap();
        assert_eq!(told, expected, "{scenario}");
    }
}

#[test]
fn people_are_told_that_it_is_a_guest_and_how_to_have_one() {
    let (_dir, path) = alone_with_cargo();
    let said = |command: &mut Command| {
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), stderr, path.join("told").exists())
    };
    // There it does not start another.
    let mut inside = bench_in(&path, &["passthrough", "--quick"]);
    let (status, stderr, told) = said(inside.env("NVLANE_BENCH_IN_GUEST", "1"));
    assert!(status == Some(1) && stderr.contains("in the guest") && !told, "{stderr}");
    let (status, stderr, told) = said(&mut bench_in(&path, &["passthrough", "--quick"]));
    assert!(status == Some(3) && stderr.contains("measuring in a guest") && told, "{stderr}");
    std::fs::remove_file(path.join("cargo")).unwrap();
    let (status, stderr, _) = said(&mut bench_in(&path, &["passthrough", "--quick"]));
    let by_hand = "cargo xtask guest --exact -- nvlane bench passthrough";
    assert!(status == Some(1) && stderr.contains(by_hand), "{stderr}");
}

/// What the guest's processor would falsify is measured here and told to it.
#[test]
fn a_guest_for_block_devices_knows_what_programs_take_here() {
    if Path::new("/dev/ublk-control").exists() {
        return println!("this machine has ublk: not run");
    }
    let (dir, path) = alone_with_cargo();
    let output = bench_in(&path, &["ublk", "--quick", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let told = std::fs::read_to_string(path.join("told")).unwrap();
    let turns = told.lines().find_map(|line| line.strip_prefix("turns: ")).unwrap();
    let turns: Vec<f64> =
        turns.split([' ', '/']).map(|ns| ns.parse().unwrap_or_else(|_| panic!("{told}"))).collect();
    assert_eq!(turns.len(), 2 * 5, "{told}");
    assert!(told.lines().any(|line| line == "ublk"), "{told}");
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 2, "cargo and what it noted; of ours nothing is left behind");
}

/// Wherever it runs, since that needs no device. It is told, too, where its drawing cannot be kept.
#[test]
fn what_a_program_costs_in_user_space_is_measured_without_devices() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = nvlane();
    command.args(["bench", "ublk", "--quick", "--json", "--only", "user_space", "--dir"]);
    command.arg(dir.path()).arg("--svg").arg(dir.path().join("none/drawing.svg"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("none/drawing.svg cannot be written"), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    for name in ["user_space_bpf_ns", "user_space_layer_ns", "user_space_bpf_over_layer_ns"] {
        assert!(report["figures"][name].is_number(), "{name}: {report}");
    }
    assert!(report["figures"]["over_rublk_min"].is_null(), "{report}");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["row"]), (1, &"user_space".into()));
}

/// What a quick run leaves out, which `guest/bench_reports` therefore does not see: two namespaces, XFS, the disk, whole volumes
/// beside other programs, the clone, and fio.
#[test]
fn whoever_names_rows_of_copy_gets_them_in_a_quick_run() {
    let may = Command::new("unshare").args(["--net", "--mount", "true"]).output();
    let has_loops = Path::new("/dev/loop-control").exists();
    if !rustix::process::geteuid().is_root()
        || !has_loops
        || !may.is_ok_and(|may| may.status.success())
    {
        return println!("network namespaces and loop devices are root's: not run");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = nvlane();
    command.args(["bench", "copy", "--quick", "--tiny", "--json", "--only"]);
    command.arg("xfs_,namespaces_,64k,emulated_disk,volume,clone,fio_throttled_percent");
    let output = command.arg("--dir").arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let rows: Vec<&str> =
        report["rows"].as_array().unwrap().iter().map(|row| row["row"].as_str().unwrap()).collect();
    for (kind, shapes) in [
        ("memory", &["64k"][..]),
        ("namespaces", &["8k", "64k", "2m16"]),
        ("emulated", &["64k"]),
        ("file", &["64k"]),
        ("emulated_disk", &["8k", "64k", "2m16"]),
        ("xfs", &["8k", "64k", "2m16"]),
    ] {
        for (shape, link) in shapes.iter().flat_map(|shape| [(shape, "1g"), (shape, "full")]) {
            assert!(
                rows.contains(&&*format!("{kind}_{shape}_{link}")),
                "{kind}, {shape}: {rows:?}"
            );
        }
    }
    for row in ["clone", "volume_nvlane", "file_cp", "file_nvlane", "xfs_cp", "xfs_nvlane"] {
        assert!(rows.contains(&row), "{row}: {rows:?}");
    }
    for name in [
        "namespaces_2m16_full_over_read_write",
        "xfs_over_local",
        "emulated_disk_over_bound",
        "volume_nvlane_mib_s",
        "file_nvlane_mib_s",
        "xfs_nvlane_mib_s",
        "clone_100g_seconds",
        "clone_100g_over_cp",
        "clone_100g_over_cp_durable",
    ] {
        assert!(
            report["figures"][name].as_f64().is_some_and(|figure| figure > 0.0),
            "{name}: {report}"
        );
    }
    // On a busy machine a copy may not do what it is held to; it is said, then.
    let notes = report["machine"]["notes"].as_array().unwrap();
    let name = "fio_p99_throttled_percent_over_alone";
    let is_said = notes.iter().any(|note| note.as_str().unwrap().starts_with(name));
    assert!(report["figures"][name].is_number() || is_said, "{report}");
    for peer in ["nbdcopy", "qemu-img", "fio"] {
        assert!(report["machine"]["peers"][peer].is_string(), "{peer}: {report}");
    }
}
