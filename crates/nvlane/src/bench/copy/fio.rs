//! What fio notices of a copy that is held back: its latencies with the copy and without.
//!
//! ```text
//!   core 1: fio (engine nbd) -> nvlane nbd tcp://...   ==== veth, 1 Gbit/s ====   core 0: our target
//!           nvlane copy --throttle ...                                     reads: namespace 1; copy: from 2 to 3
//! ```
//!
//! A copy that has come to its end begins again. Of each window with one it is noted how much was copied, and how long
//! nothing was; a pair of windows whose copy did not do what it is held to is measured again.

use super::beside::{Copying, NEAR, THROTTLE_MIB, begun};
use super::load::Timing;
use super::stage::{self, On, Target};
use crate::bench::net::Net;
use crate::bench::peers::fio;
use crate::bench::report::{Report, Table, median};
use crate::bench::served::{self, Scratch, Served};
use crate::bench::{Options, cores, heed};
use anyhow::Context;
use serde::Serialize;
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// One row: where volumes are, and what the copy is held to.
#[derive(Clone, Copy)]
pub struct Way {
    row: &'static str,
    pub figure: &'static str,
    on: On,
    held: Held,
}

/// What a copy is held to.
#[derive(Clone, Copy)]
enum Held {
    /// MiB per second.
    Rate(u32),
    /// So many hundredths of the time.
    Percent(u32),
}

pub const WAYS: [Way; 4] = [
    Way {
        row: "fio_throttled",
        figure: "fio_p99_throttled_over_alone",
        on: On::Memory,
        held: Held::Rate(THROTTLE_MIB),
    },
    Way {
        row: "fio_throttled_percent",
        figure: "fio_p99_throttled_percent_over_alone",
        on: On::Memory,
        held: Held::Percent(PERCENT),
    },
    Way {
        row: "fio_throttled_file",
        figure: "fio_p99_throttled_file_over_alone",
        on: On::Disk,
        held: Held::Rate(THROTTLE_MIB),
    },
    Way {
        row: "fio_throttled_file_percent",
        figure: "fio_p99_throttled_file_percent_over_alone",
        on: On::Disk,
        held: Held::Percent(PERCENT),
    },
];

/// A percentage that leaves room for others.
const PERCENT: u32 = 10;
/// Who copies less by a percentage is no burden to anybody.
const LEAST_MIB_S: f64 = 20.0;
/// Reads in flight.
const DEPTH: usize = 4;
/// A window is that long at least.
const WINDOW_MIN: Duration = Duration::from_millis(1500);
/// Pairs of windows: of each run, and at most, those among them that do not count.
const PAIRS: usize = 2;
const TRIES: usize = 4;
/// Time between two looks at what is copied.
const LOOK: Duration = Duration::from_millis(10);
/// A window does not count if nothing was copied for that long.
const STANDSTILL_MAX: Duration = Duration::from_millis(500);
/// A copy that was ended has nothing under way any more if nothing was copied for that long.
const SETTLED: Duration = Duration::from_millis(200);

/// What fio saw in one window.
#[derive(Serialize)]
struct Window {
    p99_us: f64,
    p50_us: f64,
    iops: f64,
    /// Of the copy beside it: MiB per second, the longest time without anything copied, and how often it began again.
    copy_mib_s: f64,
    standstill_ms_max: f64,
    begun_again: u32,
}

/// Two windows, one after the other.
#[derive(Serialize)]
struct Pair {
    alone: Window,
    beside: Window,
    /// Why it does not count.
    fault: Option<String>,
}

/// Over a link of 1 Gbit/s: fio reads from one volume of the target while it copies from a second to a third.
pub fn measure(
    mib: u64,
    timing: Timing,
    runs: usize,
    options: &Options,
    scratch: &Scratch,
    report: &mut Report,
) -> anyhow::Result<()> {
    let is_named = !options.only.is_empty();
    let ways: Vec<Way> = WAYS.into_iter().filter(|way| options.wants(way.row)).collect();
    if ways.is_empty() || (options.quick && !is_named) {
        return Ok(());
    }
    match version() {
        Ok(version) => {
            report.machine.peers.insert("fio".into(), version);
        }
        Err(why) => {
            for way in &ways {
                report.figure_or_null(way.figure, f64::NAN, &format!("fio: {why}"));
            }
            report.machine.peers.insert("fio".into(), why);
            return Ok(());
        }
    }
    let timing = Timing { measure: timing.measure.max(WINDOW_MIN), ..timing };
    let mut table = Table {
        title: "p99 of fio beside a throttled copy (us; medians)".into(),
        columns: vec!["row", "pairs", "alone", "beside", "ratio", "copy MiB/s", "ms without"],
        rows: Vec::new(),
    };
    for on in [On::Memory, On::Disk] {
        let ways: Vec<Way> = ways.iter().copied().filter(|way| way.on == on).collect();
        if ways.is_empty() {
            continue;
        }
        for way in &ways {
            options.begin(format_args!("{}: {}", way.row, way.about()))?;
        }
        let directory = (on == On::Disk).then_some(scratch.path());
        let bench = Bench::new(mib, timing, directory, options, scratch)?;
        let mut samples: Vec<Vec<Pair>> = ways.iter().map(|_| Vec::new()).collect();
        for _ in 0..runs * TRIES {
            heed()?;
            for (way, pairs) in ways.iter().zip(&mut samples) {
                if pairs.iter().filter(|pair| pair.fault.is_none()).count() < runs * PAIRS {
                    pairs.push(bench.pair(way)?);
                }
            }
        }
        for (way, pairs) in ways.iter().zip(&samples) {
            way.report(pairs, runs, &mut table, report);
        }
    }
    report.tables.push(table);
    Ok(())
}

/// The version of fio, if it can talk NBD.
fn version() -> Result<String, String> {
    fio::version_with("nbd")
}

impl Held {
    fn option(self) -> String {
        match self {
            Held::Rate(mib_s) => format!("{mib_s}M"),
            Held::Percent(percent) => format!("{percent}%"),
        }
    }
}

impl Way {
    fn about(&self) -> String {
        let on = match self.on {
            On::Memory => "memory",
            On::Disk | On::Xfs => "files",
        };
        let option = self.held.option();
        format!(
            "fio, random reads of 4 KiB, {on}, beside nvlane copy --throttle {option} on the same target"
        )
    }

    /// Why a pair does not count.
    fn fault(&self, alone: &Window, beside: &Window) -> Option<String> {
        let Window { copy_mib_s, standstill_ms_max, .. } = beside;
        if alone.copy_mib_s > 0.0 {
            return Some("fio was not alone".into());
        }
        if *standstill_ms_max > STANDSTILL_MAX.as_secs_f64() * 1e3 {
            return Some(format!("nothing was copied for {standstill_ms_max:.0} ms of a window"));
        }
        match self.held {
            Held::Rate(mib_s) if !NEAR.contains(&(copy_mib_s / f64::from(mib_s))) => {
                Some(format!("the copy ran at {copy_mib_s:.1} MiB/s, not near {mib_s}"))
            }
            Held::Percent(_) if *copy_mib_s < LEAST_MIB_S => {
                Some(format!("the copy ran at {copy_mib_s:.1} MiB/s, less than {LEAST_MIB_S}"))
            }
            _ => None,
        }
    }

    /// The figure is of pairs that count; of one for each run at least.
    fn report(&self, pairs: &[Pair], runs: usize, table: &mut Table, report: &mut Report) {
        let counting = || pairs.iter().filter(|pair| pair.fault.is_none());
        let ratio = median(counting().map(|pair| pair.beside.p99_us / pair.alone.p99_us));
        let standstill = counting().map(|pair| pair.beside.standstill_ms_max).fold(0.0, f64::max);
        table.rows.push(vec![
            self.row.into(),
            format!("{} of {}", counting().count(), pairs.len()),
            format!("{:.0}", median(counting().map(|pair| pair.alone.p99_us))),
            format!("{:.0}", median(counting().map(|pair| pair.beside.p99_us))),
            format!("{ratio:.2}"),
            format!("{:.1}", median(counting().map(|pair| pair.beside.copy_mib_s))),
            format!("{standstill:.0}"),
        ]);
        let rate = median(counting().map(|pair| pair.beside.copy_mib_s));
        report.figure_or_null(&format!("{}_copy_mib_s", self.row), rate, "no pair counts");
        let ratio = if counting().count() < runs { f64::NAN } else { ratio };
        let faults = pairs.iter().filter_map(|pair| pair.fault.as_deref());
        let why = faults.collect::<Vec<_>>().join("; ");
        report.figure_or_null(self.figure, ratio, &why);
        report.rows.push(json!({
            "row": self.row, "about": self.about(), "beside": "the same without the copy",
            "throttle": self.held.option(), "pairs": pairs,
        }));
    }
}

struct Bench<'a> {
    /// Ends before what it is connected to.
    nbd: Served,
    target: Target,
    _net: Net,
    timing: Timing,
    directory: Option<&'a Path>,
    core: usize,
}

impl<'a> Bench<'a> {
    /// Three volumes of `mib` MiB, in memory or in files of `directory`, and `nvlane nbd` to the first.
    fn new(
        mib: u64,
        timing: Timing,
        directory: Option<&'a Path>,
        options: &Options,
        scratch: &Scratch,
    ) -> anyhow::Result<Bench<'a>> {
        let net = Net::new(&[1000])?;
        let volumes = [1, 2, 3].map(|number| match directory {
            None => format!("mem:{mib}M"),
            Some(directory) => {
                let path = directory.join(format!("fio-{number}.img"));
                format!("file:{}?create&size={mib}M", path.display())
            }
        });
        // The target's core comes before other work, as fio and `nvlane nbd` do.
        let target = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                cores::prefer();
                Target::serve(&net, &volumes, options.server_core)
            });
            thread.join().expect("it does not panic")
        })?;
        let address = served::free_address()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["nbd", &target.uris[0], "--listen", &address.to_string()]);
        let nbd = Served::start(&mut command, address, options.client_core, scratch)?;
        Ok(Bench { nbd, target, _net: net, timing, directory, core: options.client_core })
    }

    fn pair(&self, way: &Way) -> anyhow::Result<Pair> {
        let alone = self.window(None)?;
        let beside = self.window(Some(way.held))?;
        let fault = way.fault(&alone, &beside);
        Ok(Pair { alone, beside, fault })
    }

    /// One run of fio, beside a copy or alone.
    fn window(&self, held: Option<Held>) -> anyhow::Result<Window> {
        let copied = || self.target.copied_bytes(2);
        let mut copying = match held {
            None => None,
            Some(held) => {
                let [_, from, to] = &self.target.uris[..] else { unreachable!("three volumes") };
                let copying = Copying::start(from, to, &held.option(), self.core)?;
                begun(&copied)?;
                Some(copying)
            }
        };
        let window = std::thread::scope(|scope| {
            let fio = scope.spawn(|| self.fio());
            let (first, start) = (copied()?, Instant::now());
            let (mut last, mut since, mut standstill) = (first, start, Duration::ZERO);
            let mut begun_again = 0;
            while !fio.is_finished() {
                std::thread::sleep(LOOK);
                if let Some(copying) = &mut copying {
                    begun_again += u32::from(copying.again()?);
                }
                let now = copied()?;
                standstill = standstill.max(since.elapsed());
                if now > last {
                    (last, since) = (now, Instant::now());
                }
            }
            let mib = (last - first) as f64 / f64::from(1 << 20);
            let copy_mib_s = mib / start.elapsed().as_secs_f64();
            let window = fio.join().expect("it does not panic")?;
            let standstill_ms_max = standstill.as_secs_f64() * 1e3;
            anyhow::Ok(Window { copy_mib_s, standstill_ms_max, begun_again, ..window })
        })?;
        if copying.is_none() {
            return Ok(Window { standstill_ms_max: 0.0, ..window });
        }
        drop(copying);
        // What it has left under way, or to be written back, is not to be noticed by the next window.
        let mut last = None;
        while last != Some(copied()?) {
            last = Some(copied()?);
            std::thread::sleep(SETTLED);
        }
        if let Some(directory) = self.directory {
            stage::sync(directory)?;
        }
        Ok(window)
    }

    fn fio(&self) -> anyhow::Result<Window> {
        let Timing { warm, measure } = self.timing;
        let mut command = Command::new("fio");
        command.args(["--name=reads", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--thread"]);
        command.args(["--norandommap", "--randrepeat=0", "--time_based", "--output-format=json"]);
        command.arg(format!("--uri=nbd://{}/", self.nbd.address));
        command.arg(format!("--iodepth={DEPTH}"));
        command.arg(format!("--ramp_time={}ms", warm.as_millis()));
        command.arg(format!("--runtime={}ms", measure.as_millis()));
        let job = fio::job_of(&mut command, self.core)?;
        let reads = &job["read"];
        let percentile = |name: &str| fio::number(&reads["clat_ns"]["percentile"][name]);
        Ok(Window {
            p99_us: percentile("99.000000").context("p99")? / 1e3,
            p50_us: percentile("50.000000").context("p50")? / 1e3,
            iops: fio::number(&reads["iops"])?,
            copy_mib_s: 0.0,
            standstill_ms_max: 0.0,
            begun_again: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_without_its_copy_does_not_count() {
        let window = |copy_mib_s, standstill_ms_max| Window {
            p99_us: 200.0,
            p50_us: 100.0,
            iops: 1e4,
            copy_mib_s,
            standstill_ms_max,
            begun_again: 0,
        };
        let [rate, percent, ..] = WAYS;
        for (mib_s, standstill, by_rate, by_percent) in
            [(50.0, 60.0, true, true), (900.0, 200.0, false, true), (50.0, 800.0, false, false)]
        {
            let [alone, beside] = [window(0.0, 0.0), window(mib_s, standstill)];
            assert_eq!(rate.fault(&alone, &beside).is_none(), by_rate, "{mib_s} {standstill}");
            assert_eq!(
                percent.fault(&alone, &beside).is_none(),
                by_percent,
                "{mib_s} {standstill}"
            );
            assert!(rate.fault(&window(0.5, 0.0), &beside).is_some(), "it was not alone");
        }
    }
}
