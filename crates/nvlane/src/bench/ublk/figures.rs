//! From samples to rows, tables and the figures of the contract.

use super::subject::Way;
use super::{MEMORY_DEPTHS, Measured, ROWS, Sample, program};
use crate::bench::report::{Bars, Report, Table, median};
use crate::bench::served;
use serde_json::json;

/// The rows of zero copy against copy.
const LARGE: [&str; 2] = ["randread64k_qd16", "randwrite64k_qd16"];

/// Our server as it is by default.
const DEFAULT: Way = Way::ZeroCopy;

/// Adds all of it to a report.
pub fn fill(measured: &Measured, report: &mut Report) {
    name_what_is_missing(measured, report);
    rows(measured, report);
    memory(measured, report);
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
    report.machine.notes.push(format!("user_space_bpf_ns was measured {place}"));
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

    /// The worst that any row shows; not a number if there is none.
    fn most(&self, way: Way, value: impl Fn(&Sample) -> f64) -> f64 {
        let rows = ROWS.iter().map(|row| self.middle(way, row.name, &value));
        rows.filter(|value| value.is_finite()).reduce(f64::max).unwrap_or(f64::NAN)
    }
}

fn user_ns(sample: &Sample) -> f64 {
    sample.user_share.map_or(f64::NAN, |share| share * sample.cpu_ns)
}

fn rows(measured: &Measured, report: &mut Report) {
    for row in ROWS {
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

/// The figures that are there always.
fn contract(measured: &Measured, report: &mut Report) {
    let why = |way: Way| match measured.missing.get(&way) {
        Some(why) => format!("{}: {why}", way.name()),
        None => "its rows were not run, or had no sample".into(),
    };
    let large = ROWS[0].name;
    let program = why(Way::ProgramKernel);
    let copy_and_program = [Way::Copy, Way::ProgramKernel];
    let cpu = measured.ratio(large, copy_and_program, |sample| sample.cpu_ns);
    report.figure_or_null("cpu_copy_over_bpf", cpu, &program);
    let rate = measured.ratio(large, copy_and_program, |sample| sample.iops);
    report.figure_or_null("bandwidth_bpf_over_copy", 1.0 / rate, &program);
    let user = measured.most(Way::ProgramKernel, user_ns);
    report.figure_or_null("user_cpu_ns_per_request_bpf", user, &program);
    let returns = |sample: &Sample| sample.returns.unwrap_or(f64::NAN);
    let returns = measured.most(Way::ProgramKernel, returns);
    report.figure_or_null("returns_per_request_bpf", returns, &program);
    let zero_and_copy = [Way::ZeroCopy, Way::Copy];
    let least = least(LARGE.map(|row| measured.ratio(row, zero_and_copy, |sample| sample.iops)));
    report.figure_or_null("zero_copy_over_copy_64k", least, &why(Way::ZeroCopy));
    report.figure_or_null("over_rublk_min", over_rublk(measured), &why(Way::Rublk));
    let added = program::middle(&measured.program_ns);
    report.figure_or_null("user_space_bpf_ns", added, "it was not measured outside the guest");
}

/// Our default over rublk at its best, on the row where that is least.
fn over_rublk(measured: &Measured) -> f64 {
    least(ROWS.map(|row| {
        let rate = |sample: &Sample| sample.iops;
        let over = [Way::Rublk, Way::RublkZeroCopy]
            .map(|theirs| measured.ratio(row.name, [DEFAULT, theirs], rate));
        least(over)
    }))
}

/// The least of those that are numbers.
fn least<const N: usize>(values: [f64; N]) -> f64 {
    values.into_iter().filter(|value| value.is_finite()).reduce(f64::min).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut measured = Measured { program_ns: vec![40.0, 60.0, 50.0], ..Measured::default() };
        for (place, way) in Way::ALL.into_iter().enumerate() {
            if without.contains(&way) {
                measured.missing.insert(way, "it is on holiday".into());
                continue;
            }
            for row in ROWS {
                let one = sample((place + 1) as f64, 1000.0 / (place + 1) as f64, 0.5, 0.25);
                measured.samples.insert((way, row.name), vec![one]);
            }
            measured.memory.insert(way, [1 << 20, (1 << 20) + 4096]);
        }
        measured
    }

    const CONTRACT: [&str; 7] = [
        "cpu_copy_over_bpf",
        "user_cpu_ns_per_request_bpf",
        "returns_per_request_bpf",
        "bandwidth_bpf_over_copy",
        "zero_copy_over_copy_64k",
        "over_rublk_min",
        "user_space_bpf_ns",
    ];

    #[test]
    fn every_figure_of_the_contract_follows_from_the_samples() {
        let mut report = Report::new("ublk");
        fill(&measured(&[]), &mut report);
        let figure = |name: &str| report.figures[name];
        // Copy has rate 1, zero copy 3, the program in the kernel 5, rublk 6 and 7.
        let expected = [5.0, 100.0, 0.25, 5.0, 3.0, 3.0 / 7.0, 50.0];
        for (name, expected) in CONTRACT.into_iter().zip(expected) {
            assert!((figure(name) - expected).abs() < 1e-3, "{name} is {}", figure(name));
        }
        assert_eq!(figure("bpf_kernel_memory_growth_kib"), 4.0);
        assert_eq!(report.rows.len(), Way::ALL.len() * (ROWS.len() + 1));
        assert_eq!(report.tables.len(), ROWS.len() + 1);
    }

    #[test]
    fn what_is_missing_is_null_and_named() {
        let mut report = Report::new("ublk");
        let without = [Way::ProgramKernel, Way::Rublk, Way::RublkZeroCopy];
        fill(&measured(&without), &mut report);
        let value = serde_json::to_value(&report).unwrap();
        let figures = value["figures"].as_object().unwrap();
        for name in CONTRACT {
            let is_null = !matches!(name, "zero_copy_over_copy_64k" | "user_space_bpf_ns");
            assert_eq!(figures[name].is_null(), is_null, "{name}");
        }
        assert_eq!(value["machine"]["peers"]["rublk"], "missing: it is on holiday");
        let notes = value["machine"]["notes"].to_string();
        assert!(notes.contains("cpu_copy_over_bpf could not be measured: bpf_kernel: it is on"));
        assert!(!report.figures.contains_key("rublk_randread4k_qd1_kiops"));
    }
}
