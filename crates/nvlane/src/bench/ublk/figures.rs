//! From samples to rows, tables and the figures of the contract.

use super::load::Shape;
use super::program::Turn;
use super::subject::Way;
use super::{KILLED, KILLED_WAYS, LARGER, MEMORY_DEPTHS, Measured, ROWS, Sample, program};
use crate::bench::report::{Bars, Report, Table, median};
use crate::bench::served;
use serde_json::json;

/// The rows of zero copy against copy.
const LARGE: [&str; 3] = [ROWS[0].name, "randread64k_qd16", "randwrite64k_qd16"];

/// Our server as it is by default.
const DEFAULT: Way = Way::ZeroCopy;

/// Adds all of it to a report.
pub fn fill(measured: &Measured, report: &mut Report) {
    name_what_is_missing(measured, report);
    rows(measured, report);
    memory(measured, report);
    recovery(measured, report);
    user_space(measured, report);
    contract(measured, report);
    report.machine.notes.push(
        "returns are system calls of the server, counted in windows of their own; user CPU time is as the \
         kernel's ticks divide it; machine CPU time has the client's in it"
            .into(),
    );
}

fn name_what_is_missing(measured: &Measured, report: &mut Report) {
    let rublk = match measured.missing.get(&Way::Rublk) {
        Some(why) => format!("missing: {why}"),
        None => served::version("rublk").unwrap_or_else(|why| why),
    };
    report.machine.peers.insert("rublk".into(), rublk);
    for (way, why) in &measured.missing {
        if *way != Way::Rublk {
            report.machine.notes.push(format!("{}: {why}", way.name()));
        }
    }
    let is_outside = program::known_outside().is_some();
    let place = if is_outside { "outside the guest" } else { "here" };
    report.machine.notes.push(format!("user_space_*_ns were measured {place}"));
}

impl Measured {
    fn of(&self, way: Way, row: &'static str) -> &[Sample] {
        self.samples.get(&(way, row)).map_or(&[], Vec::as_slice)
    }

    /// The middle of what a row's rounds show; not a number without any.
    fn middle(&self, way: Way, row: &'static str, value: impl Fn(&Sample) -> f64) -> f64 {
        median(self.of(way, row).iter().map(value))
    }

    /// The middle of the ratios within each round.
    fn ratio(&self, row: &'static str, ways: [Way; 2], value: impl Fn(&Sample) -> f64) -> f64 {
        let [above, below] = ways.map(|way| self.of(way, row));
        median(above.iter().zip(below).map(|(above, below)| value(above) / value(below)))
    }

    /// The most that any row shows, or the row that shows none.
    fn most(&self, way: Way, value: impl Fn(&Sample) -> f64) -> Result<f64, Without> {
        let rows = ROWS.map(|row| (row.name, self.middle(way, row.name, &value)));
        every(rows).map(|rows| rows.into_iter().fold(f64::NEG_INFINITY, f64::max))
    }
}

/// The row that has no number. A figure about all rows is none then, or a row that fails would better it.
struct Without(&'static str);

/// The values, if each row has one.
fn every<const N: usize>(rows: [(&'static str, f64); N]) -> Result<[f64; N], Without> {
    match rows.iter().find(|(_, value)| !value.is_finite()) {
        Some(&(row, _)) => Err(Without(row)),
        None => Ok(rows.map(|(_, value)| value)),
    }
}

fn least<const N: usize>(rows: [(&'static str, f64); N]) -> Result<f64, Without> {
    every(rows).map(|rows| rows.into_iter().fold(f64::INFINITY, f64::min))
}

fn user_ns(sample: &Sample) -> f64 {
    sample.user_share.map_or(f64::NAN, |share| share * sample.cpu_ns)
}

fn rows(measured: &Measured, report: &mut Report) {
    let is_run = |row: &Shape| Way::ALL.iter().any(|way| !measured.of(*way, row.name).is_empty());
    for row in ROWS.into_iter().chain(LARGER.into_iter().filter(is_run)) {
        let mut table = Table {
            title: row.name.into(),
            columns: vec![
                "server",
                "K/s",
                "MiB/s",
                "p50 us",
                "p99 us",
                "CPU us",
                "user %",
                "machine us",
                "switches",
                "returns",
            ],
            rows: Vec::new(),
        };
        let mut bars = Bars { title: format!("{}: rate over copy", row.name), bars: Vec::new() };
        for way in Way::ALL.into_iter().filter(|way| !measured.of(*way, row.name).is_empty()) {
            let of = |value: fn(&Sample) -> f64| measured.middle(way, row.name, value);
            let percent = of(|sample| sample.user_share.map_or(f64::NAN, |share| share * 100.0));
            let kiops = of(|sample| sample.iops) / 1e3;
            table.rows.push(vec![
                way.name().into(),
                format!("{kiops:.2}"),
                format!("{:.0}", of(|sample| sample.mib_s)),
                format!("{:.1}", of(|sample| sample.p50_us)),
                format!("{:.1}", of(|sample| sample.p99_us)),
                format!("{:.2}", of(|sample| sample.cpu_ns) / 1e3),
                shown(percent, 0),
                format!("{:.2}", of(|sample| sample.machine_ns) / 1e3),
                format!("{:.3}", of(|sample| sample.switches)),
                shown(of(|sample| sample.returns.unwrap_or(f64::NAN)), 3),
            ]);
            let over = measured.ratio(row.name, [way, Way::Copy], |sample| sample.iops);
            if over.is_finite() {
                bars.bars.push((way.name().into(), over, format!("{kiops:.1} K/s")));
            }
            report.figure(format!("{}_{}_kiops", way.name(), row.name), kiops);
            let cpu = of(|sample| sample.cpu_ns) / 1e3;
            report.figure(format!("{}_{}_cpu_us", way.name(), row.name), cpu);
            report.rows.push(json!({
                "row": row.name, "server": way.name(), "block_bytes": row.bytes, "depth": row.depth,
                "writes": row.writes, "beside": "copy, rublk", "samples": measured.of(way, row.name),
            }));
        }
        report.tables.push(table);
        report.bars.push(bars);
    }
}

fn shown(value: f64, decimals: usize) -> String {
    if value.is_finite() { format!("{value:.decimals$}") } else { "-".into() }
}

fn memory(measured: &Measured, report: &mut Report) {
    let mut table = Table {
        title: "resident memory of the server, writes of 512 KiB".into(),
        columns: vec!["server", "QD 1, KiB", "QD 128, KiB", "growth, KiB"],
        rows: Vec::new(),
    };
    for (way, [few, many]) in &measured.memory {
        let [few, many] = [few >> 10, many >> 10];
        let growth = many as f64 - few as f64;
        table.rows.push(vec![
            way.name().into(),
            few.to_string(),
            many.to_string(),
            format!("{growth:.0}"),
        ]);
        report.figure(format!("{}_memory_growth_kib", way.name()), growth);
        report.rows.push(json!({
            "row": "memory", "server": way.name(), "depths": MEMORY_DEPTHS, "resident_kib": [few, many],
            "beside": "copy, rublk",
        }));
    }
    report.tables.push(table);
}

/// How long it is from a server's end to its successor's first answer.
fn recovery(measured: &Measured, report: &mut Report) {
    let mut table = Table {
        title: "from kill -9 of a server under 16 writes of 64 KiB to its successor's first answer"
            .into(),
        columns: vec!["server", "kills", "median, ms", "most, ms"],
        rows: Vec::new(),
    };
    let figures = ["recovery_ms", "recovery_bpf_ms", "recovery_remote_ms"];
    for (way, figure) in KILLED_WAYS.into_iter().zip(figures) {
        let samples = measured.recovery.get(&way).map_or(&[][..], Vec::as_slice);
        let times: Vec<f64> = samples.iter().map(|sample| sample.served_ms).collect();
        let most = times.iter().copied().reduce(f64::max).unwrap_or(f64::NAN);
        let why = match measured.missing.get(&way) {
            Some(why) => format!("{}: {why}", way.name()),
            None => "no server was killed".into(),
        };
        let middle = median(times.iter().copied());
        report.figure_or_null(figure, middle, &why);
        report.figure_or_null(&format!("{figure}_max"), most, &why);
        if times.is_empty() {
            continue;
        }
        table.rows.push(vec![
            way.name().into(),
            times.len().to_string(),
            format!("{middle:.0}"),
            format!("{most:.0}"),
        ]);
        report.rows.push(json!({
            "row": "recovery", "server": way.name(), "block_bytes": KILLED.bytes, "depth": KILLED.depth,
            "writes": KILLED.writes, "samples": samples,
        }));
    }
    if !table.rows.is_empty() {
        report.tables.push(table);
    }
}

/// What a program adds to a read in process, beside what a layer in Rust adds that does the same.
fn user_space(measured: &Measured, report: &mut Report) {
    let turns = &measured.user_space;
    let why = "it was not measured outside the guest";
    let mut table = Table {
        title: "in user space: CPU time that is added to a 4 KiB read of null:".into(),
        columns: vec!["by", "ns"],
        rows: Vec::new(),
    };
    let mut add = |figure: &str, by: &str, value: fn(&Turn) -> f64| {
        let ns = median(turns.iter().map(value));
        report.figure_or_null(figure, ns, why);
        table.rows.push(vec![by.into(), shown(ns, 1)]);
    };
    add("user_space_bpf_ns", "program", |turn| turn.program_ns);
    add("user_space_layer_ns", "linear: in Rust", |turn| turn.layer_ns);
    add("user_space_bpf_over_layer_ns", "program, beyond that", Turn::over_layer_ns);
    report.tables.push(table);
    report.rows.push(json!({
        "row": "user_space", "block_bytes": 4096, "beside": "null: alone, linear: in Rust", "samples": turns,
    }));
}

/// The figures that are there always.
fn contract(measured: &Measured, report: &mut Report) {
    if let (None, Some(why)) =
        (measured.missing.get(&Way::Rublk), measured.missing.get(&Way::RublkZeroCopy))
    {
        let note = format!("over_rublk_min is without its zero copy, which is its best: {why}");
        report.machine.notes.push(note);
    }
    let why = |way: Way| match measured.missing.get(&way) {
        Some(why) => format!("{}: {why}", way.name()),
        None => "its rows were not run, or had no sample".into(),
    };
    let mut of_all = |name: &str, way: Way, figure: Result<f64, Without>| match figure {
        Ok(value) => report.figure(name, value),
        Err(_) if measured.missing.contains_key(&way) => {
            report.figure_or_null(name, f64::NAN, &why(way));
        }
        Err(Without(row)) => {
            let why = format!("{row} was not run, or has no number");
            report.figure_or_null(name, f64::NAN, &why);
        }
    };
    let user = measured.most(Way::ProgramKernel, user_ns);
    of_all("user_cpu_ns_per_request_bpf", Way::ProgramKernel, user);
    let returns = |sample: &Sample| sample.returns.unwrap_or(f64::NAN);
    let returns = measured.most(Way::ProgramKernel, returns);
    of_all("returns_per_request_bpf", Way::ProgramKernel, returns);
    let rate = |sample: &Sample| sample.iops;
    let over_copy = LARGE.map(|row| (row, measured.ratio(row, [Way::ZeroCopy, Way::Copy], rate)));
    of_all("zero_copy_over_copy_64k", Way::ZeroCopy, least(over_copy));
    let over_copy = LARGER.map(|row| {
        let over = measured.ratio(row.name, [Way::ZeroCopy, Way::Copy], rate);
        (row.name, over)
    });
    of_all("zero_copy_over_copy_larger", Way::ZeroCopy, least(over_copy));
    of_all("over_rublk_min", Way::Rublk, over_rublk(measured, DEFAULT));
    let recoverable = over_rublk(measured, Way::Recoverable);
    of_all("recoverable_over_rublk_min", Way::Rublk, recoverable);
    let large = ROWS[0].name;
    let program = why(Way::ProgramKernel);
    let copy_and_program = [Way::Copy, Way::ProgramKernel];
    let cpu = measured.ratio(large, copy_and_program, |sample| sample.cpu_ns);
    report.figure_or_null("cpu_copy_over_bpf", cpu, &program);
    let copy_over = measured.ratio(large, copy_and_program, rate);
    report.figure_or_null("bandwidth_bpf_over_copy", 1.0 / copy_over, &program);
}

/// One of ours over rublk at its best, on the row where that is least. A way of rublk's that cannot be
/// started here counts for nothing; one that has a row without a number leaves none.
fn over_rublk(measured: &Measured, ours: Way) -> Result<f64, Without> {
    let theirs = [Way::Rublk, Way::RublkZeroCopy];
    let present = theirs.into_iter().filter(|way| !measured.missing.contains_key(way));
    let over = present.map(|theirs| {
        least(ROWS.map(|row| {
            let rate = |sample: &Sample| sample.iops;
            (row.name, measured.ratio(row.name, [ours, theirs], rate))
        }))
    });
    let over = over.collect::<Result<Vec<f64>, Without>>()?;
    over.into_iter().reduce(f64::min).ok_or(Without(ROWS[0].name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ublk::subject::Recovery;

    fn sample(iops: f64, cpu_ns: f64, user_share: f64, returns: f64) -> Sample {
        Sample {
            iops,
            mib_s: iops / 2.0,
            p50_us: 1.0,
            p99_us: 2.0,
            cpu_ns,
            user_share: Some(user_share),
            machine_ns: 2.0 * cpu_ns,
            switches: 0.1,
            returns: Some(returns),
        }
    }

    /// Every row with one sample of each way, whose rate is the way's place, one for copy.
    fn measured(without: &[Way]) -> Measured {
        let user_space = [(40.0, 10.0), (60.0, 45.0), (50.0, 30.0)]
            .map(|(program_ns, layer_ns)| Turn { program_ns, layer_ns })
            .to_vec();
        let killed = |times: [f64; 3]| {
            times.map(|served_ms| Recovery { gone_ms: 5.0, live_ms: served_ms - 2.0, served_ms })
        };
        let times = [[80.0, 600.0, 70.0], [90.0, 310.0, 95.0], [170.0, 180.0, 410.0]];
        let recovery = KILLED_WAYS.into_iter().zip(times.map(|times| killed(times).to_vec()));
        let recovery = recovery.filter(|(way, _)| !without.contains(way)).collect();
        let mut measured = Measured { user_space, recovery, ..Measured::default() };
        for (place, way) in Way::ALL.into_iter().enumerate() {
            if without.contains(&way) {
                measured.missing.insert(way, "it is on holiday".into());
                continue;
            }
            for row in ROWS.into_iter().chain(LARGER) {
                let one = sample((place + 1) as f64, 1000.0 / (place + 1) as f64, 0.5, 0.25);
                measured.samples.insert((way, row.name), vec![one]);
            }
            measured.memory.insert(way, [1 << 20, (1 << 20) + 4096]);
        }
        measured
    }

    const CONTRACT: [&str; 17] = [
        "cpu_copy_over_bpf",
        "user_cpu_ns_per_request_bpf",
        "returns_per_request_bpf",
        "bandwidth_bpf_over_copy",
        "zero_copy_over_copy_64k",
        "zero_copy_over_copy_larger",
        "over_rublk_min",
        "recoverable_over_rublk_min",
        "recovery_ms",
        "recovery_ms_max",
        "recovery_bpf_ms",
        "recovery_bpf_ms_max",
        "recovery_remote_ms",
        "recovery_remote_ms_max",
        "user_space_bpf_ns",
        "user_space_layer_ns",
        "user_space_bpf_over_layer_ns",
    ];

    #[test]
    fn every_figure_of_the_contract_follows_from_the_samples() {
        let mut report = Report::new("ublk");
        fill(&measured(&[]), &mut report);
        let figure = |name: &str| report.figures[name];
        // Copy has rate 1, zero copy 3, the program in the kernel 5, rublk 6 and 7, a device that outlives its server 8.
        // Of the turns the middle one each: differences are taken within a turn.
        let expected = [
            5.0,
            100.0,
            0.25,
            5.0,
            3.0,
            3.0,
            3.0 / 7.0,
            8.0 / 7.0,
            80.0,
            600.0,
            95.0,
            310.0,
            180.0,
            410.0,
            50.0,
            30.0,
            20.0,
        ];
        for (name, expected) in CONTRACT.into_iter().zip(expected) {
            assert!((figure(name) - expected).abs() < 1e-3, "{name} is {}", figure(name));
        }
        assert_eq!(figure("bpf_kernel_memory_growth_kib"), 4.0);
        assert_eq!(report.rows.len(), Way::ALL.len() * (ROWS.len() + LARGER.len() + 1) + 4);
        assert_eq!(report.rows.last().unwrap()["samples"][1]["layer_ns"], 45.0);
        assert_eq!(report.tables.len(), ROWS.len() + LARGER.len() + 3);
    }

    #[test]
    fn what_is_missing_is_null_and_named() {
        let mut report = Report::new("ublk");
        let without = [Way::ProgramKernel, Way::RecoverableProgram, Way::Rublk, Way::RublkZeroCopy];
        fill(&measured(&without), &mut report);
        let value = serde_json::to_value(&report).unwrap();
        let figures = value["figures"].as_object().unwrap();
        for name in CONTRACT {
            let there = ["zero_copy_over", "recovery_ms", "recovery_remote", "user_space"];
            let is_null = !there.iter().any(|begin| name.starts_with(begin));
            assert_eq!(figures[name].is_null(), is_null, "{name}");
        }
        assert_eq!(value["machine"]["peers"]["rublk"], "missing: it is on holiday");
        let notes = value["machine"]["notes"].to_string();
        assert!(notes.contains("cpu_copy_over_bpf could not be measured: bpf_kernel: it is on"));
        assert!(!report.figures.contains_key("rublk_randread4k_qd1_kiops"));
    }

    #[test]
    fn a_row_without_a_number_leaves_no_figure_of_all_rows() {
        let mut measured = measured(&[]);
        measured.samples.get_mut(&(Way::RublkZeroCopy, "randread4k_qd32")).unwrap()[0].iops =
            f64::NAN;
        let kernel = measured.samples.get_mut(&(Way::ProgramKernel, "randread4k_qd1")).unwrap();
        (kernel[0].returns, kernel[0].user_share) = (None, None);
        measured.samples.remove(&(Way::Copy, LARGE[1]));
        let mut report = Report::new("ublk");
        fill(&measured, &mut report);
        let value = serde_json::to_value(&report).unwrap();
        let notes = value["machine"]["notes"].to_string();
        for (name, row) in [
            ("over_rublk_min", "randread4k_qd32"),
            ("returns_per_request_bpf", "randread4k_qd1"),
            ("user_cpu_ns_per_request_bpf", "randread4k_qd1"),
            ("zero_copy_over_copy_64k", LARGE[1]),
        ] {
            assert!(value["figures"][name].is_null(), "{name}");
            assert!(notes.contains(&format!("{name} could not be measured: {row}")), "{notes}");
        }
    }

    #[test]
    fn a_rublk_without_zero_copy_is_compared_with_what_it_has() {
        let mut report = Report::new("ublk");
        fill(&measured(&[Way::RublkZeroCopy]), &mut report);
        assert!((report.figures["over_rublk_min"] - 3.0 / 6.0).abs() < 1e-3);
        let notes = report.machine.notes.join("\n");
        assert!(notes.contains("without its zero copy") && notes.contains("on holiday"), "{notes}");
    }
}
