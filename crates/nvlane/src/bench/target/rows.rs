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
