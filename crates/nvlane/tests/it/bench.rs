//! `nvlane bench target`: the form of its report. How fast anything is, is not asked here.

use crate::daemon::nvlane;
use serde_json::Value;

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

#[test]
fn the_report_is_one_object_with_every_figure_of_the_contract() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        println!("skipped: the bench needs two cores, there is {cores}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = nvlane()
        .args(["bench", "target", "--quick", "--tiny", "--json", "--dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["figures", "machine", "rows", "scenario"]);
    assert_eq!(report["scenario"], "target");

    for name in figures() {
        let figure = &report["figures"][&name];
        assert!(figure.is_f64() || figure.is_i64() || figure.is_u64(), "{name} is {figure}");
    }
    for (name, figure) in report["figures"].as_object().unwrap() {
        assert!(figure.is_number(), "{name} is {figure}");
    }
    // A peer is there with its version, or said to be missing.
    for peer in ["nbdkit", "qemu-nbd", "fio"] {
        let state = report["machine"]["peers"][peer].as_str();
        assert!(state.is_some_and(|state| !state.is_empty()), "{peer}: {state:?}");
    }
    rows(&report);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
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
