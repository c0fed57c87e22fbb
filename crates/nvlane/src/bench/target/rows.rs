//! Rows of the scenario, as JSON, as figures and as lines for people.

use super::limit::{Cost, Paired, quantile_us};
use super::plan::{Job, Volume};
use crate::bench::peers::fio;
use crate::bench::report::{Bars, Report, Table};
use serde_json::{Value, json};

/// What was measured beside a row's target, in the same run.
#[derive(Default)]
pub struct Beside {
    /// An NBD server on the same kind of memory: its name, rate and median latency.
    pub nbd: Option<(&'static str, f64, f64)>,
    /// fio on the same file.
    pub fio: Option<fio::Measured>,
    /// Another client against the same target, beside the same limit: its name and its windows.
    pub client: Option<(&'static str, Paired)>,
}

/// One finished row.
pub struct Row {
    /// What was done.
    pub job: Job,
    /// Windows beside the limit.
    pub paired: Paired,
    /// Costs of the client and of the server per request.
    pub costs: (Cost, Cost),
    /// Peers.
    pub beside: Beside,
}

/// Columns of the table.
pub const COLUMNS: [&str; 15] = [
    "row",
    "iops",
    "of limit",
    "limit",
    "by",
    "p50 us",
    "p99",
    "p99.9",
    "cpu us s",
    "c",
    "calls s",
    "c",
    "switches s",
    "c",
    "peer iops",
];

/// What the note begins with that names the figures of unsteady rows.
const UNSTEADY: &str = "no window was steady, so that these figures mean little:";

impl Row {
    /// Adds the row to a report.
    pub fn add_to(&self, report: &mut Report, table: &mut Table, bars: &mut Bars) {
        let name = self.job.figure();
        let paired = &self.paired;
        report.rows.push(self.json());
        report.figure(format!("{name}_of_limit"), self.of_limit());
        report.figure(format!("{name}_kiops"), paired.iops() / 1e3);
        report.figure(format!("{name}_p50_us"), quantile_us(&paired.latency, 0.5));
        report.figure(format!("{name}_p99_us"), quantile_us(&paired.latency, 0.99));
        if let Some((peer, iops, _)) = self.beside.nbd {
            let peer = peer.replace('-', "_");
            report.figure(format!("{name}_of_{peer}"), paired.iops() / iops);
        }
        if let Some(fio) = self.beside.fio {
            report.figure(format!("{name}_of_fio"), paired.iops() / fio.iops);
        }
        if let Some((peer, other)) = &self.beside.client {
            report.figure(format!("{name}_over_{peer}"), paired.of_limit() / other.of_limit());
        }
        table.rows.push(self.cells());
        if self.of_limit().is_finite() {
            let note = format!("{:.2} of {:.0}K", self.of_limit(), paired.limit_iops() / 1e3);
            bars.bars.push((name, self.of_limit(), note));
        }
    }

    /// A file's limit is the disk, not the network.
    fn of_limit(&self) -> f64 {
        if self.job.volume == Volume::File { f64::NAN } else { self.paired.of_limit() }
    }

    fn json(&self) -> Value {
        let (job, paired) = (&self.job, &self.paired);
        let latency = |quantile| quantile_us(&paired.latency, quantile);
        let mut row = json!({
            "volume": job.volume.name(),
            "operation": job.operation(),
            "block_bytes": job.bytes,
            "queue_depth": job.depth,
            "iops": number(paired.iops()),
            "of_limit": number(self.of_limit()),
            "p50_us": latency(0.5),
            "p99_us": latency(0.99),
            "p99_9_us": latency(0.999),
            "steady": paired.steady(),
            "limit": paired.limit,
            "samples": paired.samples,
            "client": self.costs.0,
            "server": self.costs.1,
        });
        if let Some((peer, iops, p50_us)) = self.beside.nbd {
            row["beside"] = json!({ "peer": peer, "iops": number(iops), "p50_us": p50_us });
        }
        if let Some(fio) = self.beside.fio {
            row["beside"] = json!({ "peer": "fio", "iops": number(fio.iops),
                "p50_us": fio.p50_us, "p99_us": fio.p99_us });
        }
        if let Some((peer, other)) = &self.beside.client {
            row["beside"] = json!({ "peer": peer, "iops": number(other.iops()),
                "of_limit": number(other.of_limit()), "steady": other.steady(),
                "samples": other.samples });
        }
        row
    }

    fn cells(&self) -> Vec<String> {
        let (job, paired) = (&self.job, &self.paired);
        let (client, server) = (&self.costs.0, &self.costs.1);
        let peer = self.beside.nbd.map(|(_, iops, _)| iops);
        let peer = peer.or(self.beside.fio.map(|fio| fio.iops));
        let peer = peer.or(self.beside.client.as_ref().map(|(_, other)| other.iops()));
        let best = paired.limit["best"].as_str().unwrap_or_default();
        let latency = |quantile| format!("{:.1}", quantile_us(&paired.latency, quantile));
        let calls = |cost: &Cost| cost.system_calls.map_or("-".into(), |n| format!("{n:.2}"));
        vec![
            format!("{} {} qd{}", job.volume.name(), job.operation(), job.depth),
            format!("{:.0}", paired.iops()),
            // A tilde: no window was steady.
            decimals(self.of_limit(), 2) + if paired.steady() { "" } else { "~" },
            decimals(paired.limit_iops(), 0),
            best.to_owned(),
            latency(0.5),
            latency(0.99),
            latency(0.999),
            format!("{:.2}", server.cpu_us),
            format!("{:.2}", client.cpu_us),
            calls(server),
            calls(client),
            format!("{:.4}", server.context_switches),
            format!("{:.4}", client.context_switches),
            decimals(peer.unwrap_or(f64::NAN), 0),
        ]
    }
}

/// A table of all bare servers, so that all three are printed.
pub fn limits(rows: &[Row]) -> Table {
    let mut table = Table {
        title: "limit: bare exchange, requests per second by how the server waits; the best is the limit".into(),
        columns: vec!["exchange", "busy_polled", "blocking", "reactor", "best"],
        rows: Vec::new(),
    };
    for row in rows {
        let limit = &row.paired.limit;
        let iops = |name: &str| format!("{:.0}", limit[name]["iops"].as_f64().unwrap_or(f64::NAN));
        table.rows.push(vec![
            row.job.figure(),
            iops("busy_polled"),
            iops("blocking"),
            iops("reactor"),
            limit["best"].as_str().unwrap_or_default().to_owned(),
        ]);
    }
    table
}

/// A note that names the figures of rows without a steady window, which are numbers like any others; none where there are no
/// such rows.
pub fn unsteady(rows: &[Row]) -> Option<String> {
    let rows = rows.iter().filter(|row| !row.paired.steady());
    let names: Vec<String> = rows.map(|row| format!("{}_*", row.job.figure())).collect();
    (!names.is_empty()).then(|| format!("{UNSTEADY} {}", names.join(", ")))
}

fn decimals(value: f64, places: usize) -> String {
    if value.is_finite() { format!("{value:.places$}") } else { "-".into() }
}

/// JSON has no NaN: absent is null.
fn number(value: f64) -> Value {
    if value.is_finite() { json!((value * 1e4).round() / 1e4) } else { Value::Null }
}

/// What was never measured, for tests of what is said of it.
#[cfg(test)]
pub mod made_up {
    use super::*;
    use crate::bench::initiator::Pattern;
    use crate::bench::target::limit::made_up::paired;

    /// Random reads of which a second gave so many, where the limit gave 100,000. Half of them took 100 us, more than one in a
    /// hundred 200 us, and one in two hundred 400 us.
    pub fn row(volume: Volume, depth: u16, iops: u64) -> Row {
        let job = Job { volume, pattern: Pattern::RandomRead, bytes: 4096, depth };
        // The limit moved around the second window, which does not count therefore.
        let mut paired = paired(&[(100_000, iops, 100_000), (100_000, 1, 50_000)]);
        for (us, count) in [(100, 600), (200, 395), (400, 5)] {
            paired.latency.record_n(us * 1000, count).unwrap();
        }
        let cost = |cpu_us, system_calls, context_switches| Cost {
            cpu_us,
            system_calls,
            context_switches,
        };
        let costs = (cost(1.5, None, 0.25), cost(2.5, Some(3.5), 0.125));
        Row { job, paired, costs, beside: Beside::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::made_up::row;
    use super::*;
    use crate::bench::target::limit::made_up::paired;

    /// What rows add to a report.
    fn added(rows: &[Row]) -> (Report, Table, Bars) {
        let mut report = Report::new("target");
        let mut table = Table { title: "t".into(), columns: COLUMNS.to_vec(), rows: Vec::new() };
        let mut bars = Bars { title: "b".into(), bars: Vec::new() };
        for row in rows {
            row.add_to(&mut report, &mut table, &mut bars);
        }
        (report, table, bars)
    }

    /// Within what a histogram tells apart.
    fn near(value: f64, expected: f64) -> bool {
        (value / expected - 1.0).abs() < 0.01
    }

    /// These are all figures of the report.
    fn has_figures(report: &Report, expected: &[(&str, f64)]) {
        let figures = &report.figures;
        assert_eq!(figures.len(), expected.len(), "{figures:?}");
        for (name, value) in expected {
            let figure = figures.get(*name).copied().unwrap_or(f64::NAN);
            assert!(near(figure, *value), "{name} is to be {value}: {figures:?}");
        }
    }

    #[test]
    fn figures_are_those_of_their_row() {
        let rows = [row(Volume::Memory, 1, 50_000), row(Volume::Null, 32, 80_000)];
        let (report, _, bars) = added(&rows);
        has_figures(
            &report,
            &[
                ("randread_qd1_of_limit", 0.5),
                ("randread_qd1_kiops", 50.0),
                ("randread_qd1_p50_us", 100.0),
                ("randread_qd1_p99_us", 200.0),
                ("null_randread_qd32_of_limit", 0.8),
                ("null_randread_qd32_kiops", 80.0),
                ("null_randread_qd32_p50_us", 100.0),
                ("null_randread_qd32_p99_us", 200.0),
            ],
        );
        let bar = |name: &str, share, note: &str| (name.to_owned(), share, note.to_owned());
        let expected = [
            bar("randread_qd1", 0.5, "0.50 of 100K"),
            bar("null_randread_qd32", 0.8, "0.80 of 100K"),
        ];
        assert_eq!(bars.bars, expected);
    }

    #[test]
    fn a_row_says_what_was_measured() {
        let (report, table, _) = added(&[row(Volume::Memory, 4, 50_000)]);
        let said = &report.rows[0];
        let expected = [
            ("volume", json!("memory")),
            ("operation", json!("randread")),
            ("block_bytes", json!(4096)),
            ("queue_depth", json!(4)),
            ("iops", json!(50_000.0)),
            ("of_limit", json!(0.5)),
            ("steady", json!(true)),
        ];
        for (key, value) in expected {
            assert_eq!(said[key], value, "{key}: {said}");
        }
        for (key, us) in [("p50_us", 100.0), ("p99_us", 200.0), ("p99_9_us", 400.0)] {
            assert!(near(said[key].as_f64().unwrap(), us), "{key}: {said}");
        }
        let first = &said["samples"][0];
        let rates = ["limit_before", "iops", "limit_after"].map(|key| first[key].as_f64().unwrap());
        assert_eq!(rates, [100_000.0, 50_000.0, 100_000.0]);
        assert_eq!((&first["kept"], &said["samples"][1]["kept"]), (&json!(true), &json!(false)));
        let client = json!({"cpu_us": 1.5, "system_calls": null, "context_switches": 0.25});
        assert_eq!(said["client"], client);
        let server = json!({"cpu_us": 2.5, "system_calls": 3.5, "context_switches": 0.125});
        assert_eq!(said["server"], server);
        assert!(said.get("beside").is_none(), "{said}");

        // The latencies are between.
        let cells: Vec<&str> = table.rows[0].iter().map(String::as_str).collect();
        assert_eq!(cells[..5], ["memory randread qd4", "50000", "0.50", "100000", "blocking"]);
        let latencies: Vec<f64> = cells[5..8].iter().map(|cell| cell.parse().unwrap()).collect();
        let close = latencies.iter().zip([100.0, 200.0, 400.0]).all(|(us, to)| near(*us, to));
        assert!(close, "{latencies:?}");
        assert_eq!(cells[8..], ["2.50", "1.50", "3.50", "-", "0.1250", "0.2500", "-"]);
        assert_eq!(cells.len(), COLUMNS.len());
    }

    #[test]
    fn of_peers_the_figures_say_how_many_times_as_much_we_have() {
        let rows = [1, 2, 3].map(|depth| {
            let mut row = row(Volume::Memory, depth, 50_000);
            match depth {
                1 => row.beside.nbd = Some(("qemu-nbd", 20_000.0, 30.0)),
                2 => {
                    let measured = fio::Measured { iops: 40_000.0, p50_us: 30.0, p99_us: 60.0 };
                    row.beside.fio = Some(measured);
                }
                // Beside a limit of its own: two fifths of it.
                _ => {
                    let other = paired(&[(200_000, 80_000, 200_000)]);
                    row.beside.client = Some(("spdk_nvme_perf", other));
                }
            }
            row
        });
        let (report, table, _) = added(&rows);
        let others = |name: &String| ["limit", "kiops", "us"].iter().all(|it| !name.ends_with(it));
        let figures = report.figures.iter().filter(|(name, _)| others(name));
        let figures: Vec<(&str, f64)> =
            figures.map(|(name, figure)| (name.as_str(), *figure)).collect();
        let expected = [
            ("randread_qd1_of_qemu_nbd", 2.5),
            ("randread_qd2_of_fio", 1.25),
            ("randread_qd3_over_spdk_nvme_perf", 1.25),
        ];
        assert_eq!(figures, expected);
        let nbd = json!({"peer": "qemu-nbd", "iops": 20_000.0, "p50_us": 30.0});
        assert_eq!(report.rows[0]["beside"], nbd);
        let fio = json!({"peer": "fio", "iops": 40_000.0, "p50_us": 30.0, "p99_us": 60.0});
        assert_eq!(report.rows[1]["beside"], fio);
        let client = &report.rows[2]["beside"];
        assert_eq!(
            (&client["peer"], &client["iops"], &client["of_limit"]),
            (&json!("spdk_nvme_perf"), &json!(80_000.0), &json!(0.4))
        );
        let last: Vec<&str> = table.rows.iter().map(|cells| cells[14].as_str()).collect();
        assert_eq!(last, ["20000", "40000", "80000"]);
    }

    #[test]
    fn a_file_has_no_share_of_the_exchange() {
        let (report, table, bars) = added(&[row(Volume::File, 4, 20_000)]);
        has_figures(
            &report,
            &[
                ("file_randread_qd4_kiops", 20.0),
                ("file_randread_qd4_p50_us", 100.0),
                ("file_randread_qd4_p99_us", 200.0),
            ],
        );
        assert!(report.rows[0]["of_limit"].is_null() && bars.bars.is_empty());
        assert_eq!(table.rows[0][2], "-");
    }

    #[test]
    fn rows_without_a_steady_window_are_marked_and_named() {
        let mut rows = [row(Volume::Memory, 1, 50_000), row(Volume::Memory, 4, 50_000)];
        rows[1].paired = paired(&[(100_000, 45_000, 80_000)]);
        let (_, table, _) = added(&rows);
        assert_eq!([&*table.rows[0][2], &table.rows[1][2]], ["0.50", "0.50~"]);
        assert_eq!(unsteady(&rows).unwrap(), format!("{UNSTEADY} randread_qd4_*"));
        assert!(unsteady(&rows[..1]).is_none());
    }

    #[test]
    fn all_three_bare_servers_are_shown() {
        let table = limits(&[row(Volume::Memory, 1, 50_000)]);
        assert_eq!(table.rows, [["randread_qd1", "1", "3", "2", "blocking"]]);
    }
}
