//! `nvlane bench`: the form of its reports. How fast anything is, is not asked here.

use crate::daemon::nvlane;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

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
    assert_eq!(report["rows"].as_array().unwrap().len(), 11);
}

#[test]
fn the_report_of_multipath_has_every_figure_of_a_quick_run() {
    let mut names: Vec<String> = ["queue_depth", "latency", "completion_time"]
        .iter()
        .flat_map(|policy| ["mib_s", "p99_us"].map(|unit| format!("read_{policy}_{unit}")))
        .collect();
    names.extend(
        ["read_completion_time_over_queue_depth", "completion_time_of_best_split", "recovery_ms"]
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
    // A peer is there with its version, or said to be missing.
    for peer in ["nbdkit", "qemu-nbd", "fio"] {
        let state = report["machine"]["peers"][peer].as_str();
        assert!(state.is_some_and(|state| !state.is_empty()), "{peer}: {state:?}");
    }
    rows(&report);
}

/// Each row has the samples that its figures follow from, and says whether they may be trusted.
fn rows(report: &Value) {
    let rows = report["rows"].as_array().unwrap();
    let measured: Vec<&Value> = rows.iter().filter(|row| row["operation"] != "idle").collect();
    assert!(measured.len() >= 5 + 5 + 4 + 5 + 5, "{} rows", measured.len());
    for row in measured {
        let steady = row["steady"].as_bool().expect("whether it was steady");
        let samples = row["samples"].as_array().unwrap();
        let kept = samples.iter().filter(|sample| sample["kept"] == true).count();
        assert_eq!(steady, kept > 0, "{row}");
        assert!(!samples.is_empty(), "{row}");
        // A disk has no bare exchange as its limit.
        assert_eq!(row["of_limit"].is_number(), row["volume"] != "file", "{row}");
        assert!(row["limit"]["best"].is_string(), "{row}");
    }
    let idle: Vec<&Value> = rows.iter().filter(|row| row["operation"] == "idle").collect();
    assert_eq!(idle.len(), 2);
    assert!(idle.iter().all(|row| row["samples"].is_object() && row["beside"].is_string()));
}

/// Wherever it runs, since that needs no device.
#[test]
fn what_a_program_costs_in_user_space_is_measured_without_devices() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = nvlane();
    command.args(["bench", "ublk", "--quick", "--json", "--only", "user_space", "--dir"]);
    let output = command.arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
