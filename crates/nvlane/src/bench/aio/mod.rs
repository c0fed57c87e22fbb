//! Scenario `aio`: the kernel's AIO, our libaio in its place, and `io_setup2`, by turns in one process.
//!
//! ```text
//!   load: keeps `depth` random 4 KiB reads in flight
//!     |- kernel     io_submit(2), io_getevents(2), as libaio makes them
//!     |- drop-in    aio::drop_in
//!     |- polled     io_setup2(IOPOLL)                            where the device takes it
//!     `- io_setup2  USERIOCB, FIXEDBUFS, IOPOLL where the device takes it; and with SQTHREAD
//! ```
//!
//! Windows of all subjects take turns, and ratios are of the windows of one turn, so that what
//! disturbs the machine for longer than a turn disturbs all alike. `--dir` may name a block device,
//! which is read only; else a file is made there.

mod load;
mod subject;

use super::report::{Bars, Report, Table, median};
use super::{Options, Scenario, cores};
use anyhow::{Context, ensure};
use load::{Load, Window};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;
use subject::{Kind, Subject};

/// Bytes of the file that is read.
const BYTES: usize = 64 << 20;
/// Requests in flight.
const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const DEPTHS_QUICK: [usize; 3] = [1, 8, 64];

/// The scenario.
pub struct Aio;

impl Scenario for Aio {
    fn name(&self) -> &'static str {
        "aio"
    }

    fn about(&self) -> &'static str {
        "asynchronous I/O: the kernel's, our libaio in its place, io_setup2; --dir may be a device"
    }

    fn run(&self, options: &Options) -> anyhow::Result<Report> {
        cores::pin(options.client_core).context("the core cannot be used; see --client-core")?;
        let place = Place::make(options)?;
        let (window_ms, turns) = match (options.tiny, options.quick) {
            (true, _) => (5, 2),
            (_, true) => (60, 5),
            _ => (200, 11),
        };
        let mut bench = Bench {
            report: Report::new(self.name()),
            window: Duration::from_millis(window_ms),
            turns,
            table: Vec::new(),
            worst: f64::INFINITY,
        };
        let depths: &[usize] = if options.quick { &DEPTHS_QUICK } else { &DEPTHS };
        for direct in [true, false] {
            for &depth in depths {
                let row = format!("{}_qd{depth}", if direct { "direct" } else { "cached" });
                if options.wants(&row) {
                    bench.case(&place, direct, depth, &row)?;
                }
            }
        }
        bench.finish(&place);
        Ok(bench.report)
    }
}

/// What is read.
struct Place {
    path: PathBuf,
    device: bool,
}

impl Place {
    fn make(options: &Options) -> anyhow::Result<Place> {
        let path = options.dir.clone();
        let found = std::fs::metadata(&path).with_context(|| path.display().to_string())?;
        if found.file_type().is_block_device() {
            return Ok(Place { path, device: true });
        }
        let path = path.join(format!("nvlane-bench-aio-{}", std::process::id()));
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        for chunk in 0..BYTES >> 20 {
            file.write_all(&vec![chunk as u8; 1 << 20])?;
        }
        file.sync_all()?;
        Ok(Place { path, device: false })
    }

    fn open(&self, direct: bool) -> anyhow::Result<File> {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&self.path)
            .with_context(|| self.path.display().to_string())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.device {
            // Nothing is to be done about a file that is gone already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

struct Bench {
    report: Report,
    window: Duration,
    turns: u64,
    table: Vec<Vec<String>>,
    worst: f64,
}

impl Bench {
    /// All subjects at one depth, by turns.
    fn case(&mut self, place: &Place, direct: bool, depth: usize, row: &str) -> anyhow::Result<()> {
        let file = place.open(direct)?;
        let mut loads = Vec::new();
        for kind in Kind::ALL {
            if !direct && !kind.takes_cached() {
                continue;
            }
            match Subject::open(kind, &file, depth) {
                Ok(subject) => loads.push(Load::new(subject, depth, BYTES)),
                Err(error) => self.note(format!("{row}: {}: {error:#}", kind.name())),
            }
        }
        let mut windows: BTreeMap<&'static str, Vec<Window>> = BTreeMap::new();
        for turn in 0..=self.turns {
            for load in &mut loads {
                let window = load.window(self.window, turn)?;
                // The first warms up: caches, and how our library comes to know its program.
                if turn > 0 {
                    windows.entry(load.name()).or_default().push(window);
                }
            }
        }
        let kernel = windows.get("kernel").cloned().unwrap_or_default();
        ensure!(!kernel.is_empty(), "the kernel's AIO is not to be had");
        for kind in Kind::ALL {
            if let Some(windows) = windows.get(kind.name()) {
                self.add(kind, windows, &kernel, direct, depth, row);
            }
        }
        Ok(())
    }

    fn note(&mut self, note: String) {
        if !self.report.machine.notes.contains(&note) {
            self.report.machine.notes.push(note);
        }
    }

    fn add(
        &mut self,
        kind: Kind,
        windows: &[Window],
        kernel: &[Window],
        direct: bool,
        depth: usize,
        row: &str,
    ) {
        let of = |value: fn(&Window) -> f64| median(windows.iter().map(value));
        let pairs = || windows.iter().zip(kernel);
        let rate = median(pairs().map(|(ours, theirs)| ours.iops / theirs.iops));
        let cpu = median(pairs().map(|(ours, theirs)| ours.cpu_ns / theirs.cpu_ns));
        let name = kind.name();
        match kind {
            Kind::DropIn => {
                self.worst = self.worst.min(rate);
                self.report.figure(format!("dropin_over_aio_{row}"), rate);
                if depth == 1 {
                    let figure = if direct {
                        "dropin_cpu_saving_direct"
                    } else {
                        "dropin_cpu_saving_single"
                    };
                    self.report.figure(figure, 1.0 - cpu);
                }
            }
            Kind::Setup2 if direct => {
                self.report.figure(format!("io_setup2_over_aio_qd{depth}"), rate);
                if depth == 1 {
                    self.report.figure("io_setup2_submit_ns", of(|window| window.submit_ns));
                }
            }
            Kind::Setup2Thread if direct => {
                self.report.figure(format!("io_setup2_sqthread_over_aio_qd{depth}"), rate);
            }
            Kind::Kernel if direct && depth == 1 => {
                self.report.figure("aio_submit_ns", of(|window| window.submit_ns));
            }
            _ => {}
        }
        self.report.rows.push(json!({
            "row": row, "subject": name, "depth": depth, "direct": direct,
            "iops": windows.iter().map(|window| window.iops).collect::<Vec<_>>(),
            "cpu_ns": windows.iter().map(|window| window.cpu_ns).collect::<Vec<_>>(),
            "submit_ns": windows.iter().map(|window| window.submit_ns).collect::<Vec<_>>(),
            "p50_ns": windows.iter().map(|window| window.p50_ns).collect::<Vec<_>>(),
        }));
        self.table.push(vec![
            row.to_owned(),
            name.to_owned(),
            format!("{:.0}", of(|window| window.iops)),
            format!("{rate:.2}"),
            format!("{:.0}", of(|window| window.cpu_ns)),
            format!("{cpu:.2}"),
            format!("{:.0}", of(|window| window.submit_ns)),
            format!("{:.1}", of(|window| window.p50_ns) / 1e3),
        ]);
        if direct && kind != Kind::Kernel {
            let bars = &mut self.report.bars;
            let title = "rate, O_DIRECT, the kernel's AIO is 1";
            if bars.is_empty() {
                bars.push(Bars { title: title.into(), bars: Vec::new() });
            }
            bars[0].bars.push((format!("{name} qd{depth}"), rate, format!("{rate:.2}")));
        }
    }

    fn finish(&mut self, place: &Place) {
        self.report.figure("dropin_over_aio_min", self.worst);
        let what = if place.device { place.path.display().to_string() } else { "a file".into() };
        self.report.tables.push(Table {
            title: format!("4 KiB random reads of {what}, one core"),
            columns: vec![
                "case",
                "subject",
                "IOPS",
                "of kernel",
                "cpu ns",
                "of kernel",
                "submit ns",
                "p50 us",
            ],
            rows: std::mem::take(&mut self.table),
        });
    }
}
