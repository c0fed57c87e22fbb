//! Scenario `copy`: data copied where it lies, beside the same data read and written over the link.
//!
//! ```text
//!   this namespace                             namespace nvl-PID
//!   core 1: session, tcp://      ==== veth ====  core 0: our target: memory, a second volume, files
//!      Copy: 8 KiB, 64 KiB, 16 x 2 MiB   1 Gbit/s (tbf), then as fast as it goes
//!      or: read, write of the same
//! ```
//!
//! Every window of Copy commands has one of reads and writes beside it, in turn; figures are medians of the
//! ratios. What is on the wire is counted by the network device, headers and all.

mod beside;
mod bound;
mod clone;
mod fio;
mod load;
mod peers;
mod stage;

use super::net::Net;
use super::report::{Bars, Report, Table, median};
use super::served::Scratch;
use super::{Options, Scenario, cores, heed};
use load::{Host, SHAPES, Shape, Timing, Window};
use serde_json::json;
use stage::{EMULATED_ON_DISK, KINDS, Kind, On, Target, Xfs};
use std::path::Path;
use std::time::Duration;

/// Links: a name in figures, and Mbit/s; 0 for as many as there are.
const LINKS: [(&str, u32); 2] = [("1g", 1000), ("full", 0)];

/// What Copies of 8 KiB are held to, over reads and writes, to see how much of the network such a rate takes: a little
/// more than the proposal asks for.
const HELD: f64 = 8.0;
/// What it asks for. What the network has to carry says nothing where Copies make less.
const ASKED: f64 = 7.4;

/// The scenario.
pub struct Copy;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Plan {
    timing: Timing,
    runs: usize,
    /// Size of each volume in MiB.
    mib: u64,
    /// Only rows that figures of the contract are of; whoever names rows gets those.
    brief: bool,
}

impl Scenario for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn about(&self) -> &'static str {
        "Copy beside reads and writes over a link of 1 Gbit/s, and of full speed; as root"
    }

    fn run(&self, options: &Options) -> anyhow::Result<Report> {
        cores::require(options.server_core, options.client_core)?;
        cores::pin(options.client_core)?;
        let plan = Plan::new(options);
        let scratch = Scratch::new(&options.dir)?;
        let mut report = Report::new(self.name());
        let mut bench = Bench { options, plan, rows: Vec::new() };
        let xfs = (!plan.brief && bench.wants_any(On::Xfs))
            .then(|| Xfs::new(scratch.path(), plan.mib * 2 + 512));
        for (link, mbit) in LINKS {
            let net = Net::new(&[mbit])?;
            bench.on(&net, link, On::Memory, None)?;
            bench.on(&net, link, On::Disk, Some(scratch.path()))?;
            match &xfs {
                Some(Ok(xfs)) => bench.on(&net, link, On::Xfs, Some(xfs.directory()))?,
                Some(Err(error)) => {
                    report.machine.notes.push(format!("no XFS: {error:#}"));
                }
                None => {}
            }
        }
        bench.report(&mut report)?;
        beside::measure(plan.mib, plan.timing, plan.runs, options, &mut report)?;
        // What goes wrong there is not to cost what was measured before.
        let fio = fio::measure(plan.mib, plan.timing, plan.runs, options, &scratch, &mut report);
        let clone = clone::measure(options, &scratch, &mut report);
        let (of_fio, of_clone) = (fio::WAYS.map(|way| way.figure), clone::FIGURES);
        for (figures, outcome) in [(&of_fio[..], fio), (&of_clone[..], clone)] {
            let Err(error) = outcome else { continue };
            for figure in figures {
                if !report.figures.contains_key(*figure) {
                    report.figure_or_null(figure, f64::NAN, &format!("{error:#}"));
                }
            }
        }
        let whole = peers::measure(plan.mib, plan.brief, options, &scratch, &mut report);
        if report.rows.is_empty() {
            whole?;
        } else if let Err(error) = whole {
            report.machine.notes.push(format!("whole volumes were not copied: {error:#}"));
        }
        Ok(report)
    }
}

impl Plan {
    fn new(options: &Options) -> Plan {
        let ms = Duration::from_millis;
        let (warm, measure, runs, mib) = match (options.tiny, options.quick) {
            (true, _) => (ms(5), ms(20), 1, 128),
            (_, true) => (ms(100), ms(400), 3, 512),
            _ => (ms(300), ms(1000), 5, 1024),
        };
        Plan {
            timing: Timing { warm, measure },
            runs,
            mib,
            brief: options.quick && options.only.is_empty(),
        }
    }
}

/// One row: a kind of copy, a size and a link.
struct Row {
    link: &'static str,
    kind: Kind,
    shape: Shape,
    copied: Vec<Window>,
    moved: Vec<Window>,
    /// Copy commands held to [`HELD`] times the rate of reads and writes, where the network they take is a figure.
    held: Vec<Window>,
    /// MiB/s of the bound, where there is one.
    bound: Vec<f64>,
}

struct Bench<'a> {
    options: &'a Options,
    plan: Plan,
    rows: Vec<Row>,
}

impl Bench<'_> {
    /// Whether any row is wanted whose volumes are kept on `on`.
    fn wants_any(&self, on: On) -> bool {
        let rows = LINKS.iter().flat_map(|(link, _)| {
            KINDS
                .iter()
                .flat_map(move |kind| SHAPES.map(|shape| (kind, row_name(link, kind, &shape))))
        });
        rows.into_iter().any(|(kind, row)| kind.on == on && self.options.wants(&row))
    }

    /// Everything whose volumes are kept on `on`.
    fn on(
        &mut self,
        net: &Net,
        link: &'static str,
        on: On,
        directory: Option<&Path>,
    ) -> anyhow::Result<()> {
        let wanted = |kind: &Kind, shape: &Shape| {
            kind.on == on
                && (!self.plan.brief || is_asked_for(link, kind, shape))
                && self.options.wants(&row_name(link, kind, shape))
        };
        let rows: Vec<(Kind, Shape)> = KINDS
            .into_iter()
            .flat_map(|kind| SHAPES.map(|shape| (kind, shape)))
            .filter(|(kind, shape)| wanted(kind, shape))
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        let kinds: Vec<Kind> = rows.iter().map(|(kind, _)| *kind).collect();
        let target =
            Target::start(net, self.plan.mib, directory, &kinds, self.options.server_core)?;
        let mut host = Host::new(&target.uris)?;
        for (kind, shape) in rows {
            let name = row_name(link, &kind, &shape);
            self.options.begin(format_args!("{name}: {}", kind.about))?;
            host.check(kind.volumes.0, kind.volumes.1)?;
            let row = self.row(net, &mut host, link, kind, shape, directory)?;
            self.rows.push(row);
        }
        Ok(())
    }

    fn row(
        &self,
        net: &Net,
        host: &mut Host,
        link: &'static str,
        kind: Kind,
        shape: Shape,
        directory: Option<&Path>,
    ) -> anyhow::Result<Row> {
        let (timing, server) = (self.plan.timing, self.options.server_core);
        let mut row =
            Row { link, kind, shape, copied: vec![], moved: vec![], held: vec![], bound: vec![] };
        for _ in 0..self.plan.runs {
            heed()?;
            row.copied.push(host.copy(kind.volumes, shape, timing, net, f64::INFINITY)?);
            let moved = host.read_and_write(kind.volumes, shape, timing, net)?;
            row.moved.push(moved);
            if is_held(link, &kind, &shape) {
                let mib_s = HELD * moved.mib_s;
                row.held.push(host.copy(kind.volumes, shape, timing, net, mib_s)?);
            }
            // Without the link's limit only: it is the machine's that is asked for.
            match directory {
                Some(directory) if link == "full" && kind.name == EMULATED_ON_DISK => {
                    let files = (stage::second_file(directory), stage::file(directory));
                    row.bound.push(bound::disk(&files, shape, timing, server)?);
                }
                Some(directory) if link == "full" => {
                    let file = stage::file(directory);
                    row.bound.push(bound::local_file(&file, shape, timing, server)?);
                }
                None if link == "full" && kind.name == "emulated" => {
                    row.bound.push(bound::memory(self.plan.mib / 2, shape, timing, server)?);
                }
                _ => {}
            }
        }
        Ok(row)
    }

    fn report(&self, report: &mut Report) -> anyhow::Result<()> {
        let mut table = Table {
            title: "copies (MiB/s; medians)".into(),
            columns: vec![
                "row",
                "Copy",
                "read + write",
                "ratio",
                "wire Mbit/s",
                "of 1 Gbit/s",
                "bound",
                "of bound",
            ],
            rows: Vec::new(),
        };
        let mut bars = Bars { title: "over read + write".into(), bars: Vec::new() };
        for row in &self.rows {
            row.add_to(report, &mut table, &mut bars);
        }
        report.tables.push(table);
        report.bars.push(bars);
        Ok(())
    }
}

/// Whether a figure that is to be there in each report is of this row; see [`Row::contract`].
fn is_asked_for(link: &str, kind: &Kind, shape: &Shape) -> bool {
    matches!(
        (kind.name, shape.name, link),
        ("memory", "8k" | "2m16", _) | ("file" | "emulated", "2m16", "full")
    )
}

/// Whether there are windows that are held to a rate.
fn is_held(link: &str, kind: &Kind, shape: &Shape) -> bool {
    (kind.name, shape.name, link) == ("memory", "8k", "1g")
}

fn row_name(link: &str, kind: &Kind, shape: &Shape) -> String {
    format!("{}_{}_{link}", kind.name, shape.name)
}

impl Row {
    fn add_to(&self, report: &mut Report, table: &mut Table, bars: &mut Bars) {
        let name = row_name(self.link, &self.kind, &self.shape);
        let rate = |windows: &[Window]| median(windows.iter().map(|window| window.mib_s));
        let pairs = self.copied.iter().zip(&self.moved);
        let ratio = median(pairs.map(|(copied, moved)| copied.mib_s / moved.mib_s));
        let wire = median(self.copied.iter().map(|window| window.wire_mbit_s));
        let bound = median(self.bound.iter().copied());
        let of_bound =
            median(self.copied.iter().zip(&self.bound).map(|(copied, bound)| copied.mib_s / bound));
        let shown = |value: f64, digits: usize| match value.is_finite() {
            true => format!("{value:.digits$}"),
            false => "-".to_owned(),
        };
        let percent = if self.link == "1g" { wire / 10.0 } else { f64::NAN };
        table.rows.push(vec![
            name.clone(),
            shown(rate(&self.copied), 0),
            shown(rate(&self.moved), 0),
            shown(ratio, 2),
            shown(wire, 1),
            shown(percent, 2),
            shown(bound, 0),
            shown(of_bound, 2),
        ]);
        bars.bars.push((name.clone(), ratio, format!("{:.0} MiB/s", rate(&self.copied))));
        report.figure(format!("{name}_mib_s"), rate(&self.copied));
        report.figure(format!("{name}_over_read_write"), ratio);
        self.contract(report, ratio, percent, of_bound);
        if !self.held.is_empty() {
            let (ratio, wire) = self.held();
            table.rows.push(vec![
                format!("{name}, held"),
                shown(rate(&self.held), 0),
                shown(rate(&self.moved), 0),
                shown(ratio, 2),
                shown(wire, 1),
                shown(wire / 10.0, 2),
                "-".into(),
                "-".into(),
            ]);
        }
        report.rows.push(json!({
            "row": name,
            "about": self.kind.about,
            "beside": "the same ranges read and written over the link",
            "copied": self.copied,
            "read_and_written": self.moved,
            "held": self.held,
            "bound_mib_s": self.bound,
        }));
    }

    /// Of Copies that are held to a rate: over reads and writes, and Mbit/s on the wire.
    fn held(&self) -> (f64, f64) {
        let pairs = self.held.iter().zip(&self.moved);
        let ratio = median(pairs.map(|(held, moved)| held.mib_s / moved.mib_s));
        (ratio, median(self.held.iter().map(|window| window.wire_mbit_s)))
    }

    /// The figures that have names of their own.
    fn contract(&self, report: &mut Report, ratio: f64, percent: f64, of_bound: f64) {
        match (self.kind.name, self.shape.name, self.link) {
            ("memory", "8k", "1g") => {
                report.figure("copy_8k_over_read_write", ratio);
                report.figure("network_8k_free_percent", percent);
                let (held, wire) = self.held();
                report.figure("copy_8k_held_over_read_write", held);
                report.figure("network_8k_percent", wire / 10.0);
                if held < ASKED {
                    let note = format!(
                        "network_8k_percent is of {held:.1} times the rate of reads and writes, less than {ASKED}"
                    );
                    report.machine.notes.push(note);
                }
            }
            ("memory", "2m16", "1g") => {
                report.figure("copy_2m16_over_read_write", ratio);
                report.figure("network_2m16_percent", percent);
            }
            ("memory", size @ ("8k" | "2m16"), _) => {
                report.figure(format!("copy_{size}_over_read_write_full"), ratio);
            }
            ("file", "2m16", "full") => report.figure("file_over_local", of_bound),
            ("xfs", "2m16", "full") => report.figure("xfs_over_local", of_bound),
            ("emulated", "2m16", "full") => report.figure("emulated_over_bound", of_bound),
            (EMULATED_ON_DISK, "2m16", "full") => {
                report.figure("emulated_disk_over_bound", of_bound);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_has_the_row_of_each_figure_of_the_contract() {
        let window = |mib_s| Window { mib_s, wire_mbit_s: 5.0 };
        let mut report = Report::new("copy");
        for (link, _) in LINKS {
            for (kind, shape) in
                KINDS.into_iter().flat_map(|kind| SHAPES.map(|shape| (kind, shape)))
            {
                let row = Row {
                    link,
                    kind,
                    shape,
                    copied: vec![window(60.0)],
                    moved: vec![window(20.0)],
                    held: vec![Window { mib_s: 160.0, wire_mbit_s: 90.0 }],
                    bound: vec![80.0],
                };
                let before = report.figures.len();
                row.contract(&mut report, 3.0, 0.5, 0.75);
                // XFS is made, and the disk kept busy, by full runs only.
                let is_quick = !["xfs", EMULATED_ON_DISK].contains(&kind.name);
                let has_figure = report.figures.len() > before && is_quick;
                assert_eq!(
                    is_asked_for(link, &kind, &shape),
                    has_figure,
                    "{}",
                    row_name(link, &kind, &shape)
                );
            }
        }
        let expected = [
            ("copy_8k_over_read_write", 3.0),
            ("copy_2m16_over_read_write", 3.0),
            ("copy_8k_over_read_write_full", 3.0),
            ("copy_2m16_over_read_write_full", 3.0),
            ("copy_8k_held_over_read_write", 8.0),
            ("network_8k_percent", 9.0),
            ("network_8k_free_percent", 0.5),
            ("network_2m16_percent", 0.5),
            ("file_over_local", 0.75),
            ("emulated_over_bound", 0.75),
            ("emulated_disk_over_bound", 0.75),
            ("xfs_over_local", 0.75),
        ];
        assert_eq!(report.figures, expected.map(|(name, value)| (name.to_owned(), value)).into());
    }
}
