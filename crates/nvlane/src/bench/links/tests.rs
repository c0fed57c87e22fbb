//! The report, from samples that are made up: which figures, rows and cells there are, and what is in them.

use super::case::{END, HAPPENS, INTERVAL, OVER, WARM};
use super::outcome::{Seen, Sent};
use super::*;
use crate::bench::pipeline::histogram;
use crate::bench::player::{Played, PlayedWindow};
use crate::bench::usage::Usage;
use serde_json::Value;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

fn case(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).expect("there is such a case")
}

/// A window with so many commands a second; `latencies`: milliseconds, and how many commands took as long.
fn window(range: Range<Duration>, iops: u64, latencies: &[(u64, u32)]) -> PlayedWindow {
    let seconds = (range.end - range.start).as_secs_f64();
    let mut latency = histogram();
    for &(ms, count) in latencies {
        latency.record_n(ms * 1_000_000, count).expect("within the bounds");
    }
    PlayedWindow { ios: (iops as f64 * seconds) as u64, seconds, latency, usage: Usage::default() }
}

/// Four seconds in which nothing happens, with commands of both sizes.
fn quiet() -> Seen {
    let range = WARM..5 * WARM;
    let small = window(range.clone(), 7680, &[(1, 985), (20, 13), (300, 2)]);
    let large = window(range, 6, &[(100, 500), (200, 495), (400, 5)]);
    // Two intervals in a row without any.
    let mut series = vec![76; 500];
    series[200..202].fill(0);
    let played = |window, series| Played { windows: vec![window], series };
    Seen {
        small: played(small, series),
        large: Some(played(large, vec![1; 500])),
        sent: Vec::new(),
        back: None,
        selections: vec![3, 1],
    }
}

/// 6,400 commands a second before something happens, half of them meanwhile, three quarters afterwards; half of what is
/// sent goes by path 0 before, and again from `again` on. In the first window commands take 2 ms, in the second 50, but
/// for one in a hundred, which takes 800.
fn fault(back: Duration, again: Duration) -> Seen {
    let each = |at: Duration| match at {
        _ if at < HAPPENS => 64,
        _ if at < OVER => 32,
        _ => 48,
    };
    let mut seen = Seen {
        small: Played {
            windows: vec![
                window(WARM..HAPPENS, 6400, &[(2, 1000)]),
                window(HAPPENS..END, 4444, &[(50, 990), (800, 10)]),
            ],
            series: Vec::new(),
        },
        large: None,
        sent: vec![Sent { at: Duration::ZERO, own: 0, all: 0 }],
        back: Some(back),
        selections: vec![40, 60],
    };
    while let Some(&Sent { at, own, all }) = seen.sent.last()
        && at < END
    {
        let share = if at < HAPPENS || at >= again { 50 } else { 0 };
        seen.small.series.push(each(at));
        seen.sent.push(Sent { at: at + INTERVAL, own: own + share, all: all + 100 });
    }
    seen
}

/// All figures of the report, and no others; those in microseconds are as exact as a histogram.
fn assert_figures(report: &Report, expected: &[(&str, f64)]) {
    let names: Vec<&str> = report.figures.keys().map(String::as_str).collect();
    let mut wanted: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    for (name, value) in expected {
        let found = report.figures[*name];
        let near = if name.ends_with("_us") { 0.01 } else { 1e-4 };
        assert!((found - value).abs() <= near * value, "{name} is {found}, not {value}");
    }
}

fn near(value: &Value, expected: f64) {
    let value = value.as_f64().expect("a number");
    assert!((value / expected - 1.0).abs() <= 0.01, "{value}, not {expected}");
}

#[test]
fn sizes_are_told_apart_and_their_best_is_of_both() {
    let mut report = form();
    add(case("sizes"), "completion-time", &Outcome::new(&[27.0, 13.0], &quiet()), &mut report);
    // 30 MiB/s of 4 KiB and 6 of 1 MiB, of 40 that the paths give alone with both.
    assert_figures(
        &report,
        &[
            ("sizes_completion_time_mib_s", 36.0),
            ("sizes_completion_time_of_best", 0.9),
            ("sizes_completion_time_p99_9_us", 300_000.0),
            ("sizes_completion_time_1m_p50_us", 100_000.0),
            ("sizes_completion_time_1m_p99_us", 200_000.0),
            ("sizes_completion_time_1m_p99_9_us", 400_000.0),
            ("sizes_completion_time_stall_ms", 20.0),
        ],
    );
    let row = &report.rows[0];
    let keys: Vec<&String> = row.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["about", "beside", "best_mib_s", "case", "of_best", "policy", "samples"]);
    near(&row["best_mib_s"], 40.0);
    near(&row["of_best"], 0.9);
    let samples = &row["samples"];
    assert_eq!(samples["alone_mib_s"], json!([27.0, 13.0]));
    assert_eq!(
        (&samples["small"]["bytes"], &samples["small"]["ios"]),
        (&json!(4096), &json!(30720))
    );
    assert_eq!(
        (&samples["large"]["bytes"], &samples["large"]["ios"]),
        (&json!(1 << 20), &json!(24))
    );
    let sizes = [("small", [30.0, 1e3, 20e3, 300e3]), ("large", [6.0, 100e3, 200e3, 400e3])];
    for (size, expected) in sizes {
        for (key, expected) in ["mib_s", "p50_us", "p99_us", "p99_9_us"].into_iter().zip(expected) {
            near(&samples[size][key], expected);
        }
    }
    assert!(samples["recovery_ms"].is_null() && samples["shares"].is_null(), "{samples}");

    let table = &report.tables[0];
    let cells = &table.rows[0];
    assert_eq!(cells.len(), table.columns.len());
    let ms = |size: &str| {
        let of = |key: &str| format!("{:.2}", samples[size][key].as_f64().unwrap() / 1e3);
        [of("p50_us"), of("p99_us"), of("p99_9_us")].join(" / ")
    };
    let (small, large) = (ms("small"), ms("large"));
    let expected = [
        "sizes",
        "completion-time",
        "36.0",
        "0.90",
        "-",
        "-",
        small.as_str(),
        large.as_str(),
        "20 ms",
        "-",
    ];
    assert_eq!(cells[..], expected);
    let bar = ("sizes_completion_time".to_owned(), 36.0 / 40.0, "36 MiB/s".to_owned());
    assert_eq!(report.bars[0].bars, [bar]);
}

#[test]
fn what_happens_meanwhile_and_afterwards_has_bounds_of_its_own() {
    let (back, mut report) = (OVER + 3 * INTERVAL, form());
    // Path 0 has its share again 130 ms after it is back, and ten intervals nine tenths of it one earlier.
    let seen = fault(back, back + 13 * INTERVAL);
    add(case("spike"), "queue-depth", &Outcome::new(&[20.0, 30.0], &seen), &mut report);
    assert_figures(
        &report,
        &[
            ("spike_queue_depth_mib_s", 25.0),
            ("spike_queue_depth_of_best", 0.5),
            // 12.5 MiB/s: path 0 does not count while something happens to it. Then 18.75.
            ("spike_queue_depth_meanwhile_of_others", 12.5 / 30.0),
            ("spike_queue_depth_after_of_best", 18.75 / 50.0),
            ("spike_queue_depth_p99_9_us", 800_000.0),
            ("spike_queue_depth_stall_ms", 0.0),
            ("spike_queue_depth_recovery_ms", 120.0),
        ],
    );
    let samples = &report.rows[0]["samples"];
    assert_eq!(samples["recovered"], true);
    assert_eq!(samples["shares"], json!([0.5, 0.0, 0.5]));
    assert!(samples["large"].is_null(), "{samples}");
    near(&samples["small"]["p50_us"], 2000.0);
    near(&samples["small"]["p99_us"], 50_000.0);
    let cells = &report.tables[0].rows[0];
    assert_eq!(cells[2..6], ["25.0", "0.50", "0.42", "0.38"]);
    assert_eq!(cells[7..], ["-", "0 ms", "120 ms"]);
}

#[test]
fn a_path_that_does_not_get_its_share_again_says_how_long_was_watched() {
    let mut report = form();
    let seen = fault(OVER + WARM, END + WARM);
    add(case("killed"), "latency", &Outcome::new(&[20.0, 30.0], &seen), &mut report);
    assert_eq!(report.figures["killed_latency_recovery_ms"], 6000.0);
    assert_eq!(report.rows[0]["samples"]["recovered"], false);
    assert_eq!(report.rows[0]["samples"]["shares"], json!([0.5, 0.0, 0.0]));
    assert_eq!(report.tables[0].rows[0].last().unwrap(), "over 6000 ms");
}

#[test]
fn a_path_that_was_not_used_has_no_time_of_recovery() {
    let mut seen = fault(OVER, OVER);
    seen.sent.iter_mut().for_each(|sent| sent.own = 0);
    let mut report = form();
    add(case("link_down"), "numa", &Outcome::new(&[20.0, 30.0], &seen), &mut report);
    assert!(!report.figures.contains_key("link_down_numa_recovery_ms"));
    assert!(report.figures.contains_key("link_down_numa_meanwhile_of_others"));
    assert_eq!(report.tables[0].rows[0].last().unwrap(), "-");
}

#[test]
fn a_quick_run_has_the_quick_cases_under_one_policy() {
    let options = |quick, only: &[&str]| Options {
        quick,
        tiny: false,
        quiet: true,
        dir: ".".into(),
        server_core: 0,
        client_core: 1,
        only: only.iter().map(|&word| word.to_owned()).collect(),
        found: Mutex::default(),
        device: None,
        scale: 1,
        runs: 1,
        slow_address: None,
        against: None,
        against_pid: None,
    };
    let rows = |quick, only: &[&str]| -> Vec<String> {
        let options = options(quick, only);
        let all = CASES.iter().flat_map(|case| POLICIES.map(|policy| (case, policy)));
        let asked = all.filter(|(case, policy)| is_asked_for(case, policy, &options));
        asked.map(|(case, policy)| row_name(case, policy)).collect()
    };
    assert_eq!(rows(true, &[]), ["bandwidth_10_1_completion_time", "spike_completion_time"]);
    assert_eq!(rows(false, &[]).len(), CASES.len() * POLICIES.len());
    let some = rows(false, &["unequal_8_latency", "sizes_numa"]);
    assert_eq!(some, ["unequal_8_latency", "sizes_numa"]);
    assert!(rows(true, &["sizes"]).is_empty());
}
