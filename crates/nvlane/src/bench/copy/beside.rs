//! What others notice of a copy that is held back: latencies of reads, with it and without.

use super::load::{Host, Timing};
use super::stage::Target;
use crate::bench::net::Net;
use crate::bench::report::{Report, Table, median};
use crate::bench::{Options, cores, heed};
use anyhow::{Context, ensure};
use serde_json::json;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Row, and in words.
const ROW: &str = "throttled";
const ABOUT: &str = "random reads of 4 KiB, beside nvlane copy --throttle 50M on the same target";
/// What the copy is held to, in MiB per second.
pub const THROTTLE_MIB: u32 = 50;
/// Of that it must have copied so much within a window; else there was no such copy beside the reads.
pub const NEAR: std::ops::RangeInclusive<f64> = 0.7..=1.3;
/// A window is that long at least: sixteen commands of the copy.
const WINDOW_MIN: Duration = Duration::from_secs(1);
/// Reads in flight.
const DEPTH: usize = 4;
/// How long the copy may take to begin.
const BEGIN_MAX: Duration = Duration::from_secs(60);

/// Over a link of 1 Gbit/s: the target copies from one volume in memory to a second, and a host reads from it.
pub fn measure(
    mib: u64,
    timing: Timing,
    runs: usize,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    if !options.wants(ROW) {
        return Ok(());
    }
    options.begin(format_args!("{ROW}: {ABOUT}"))?;
    let net = Net::new(&[1000])?;
    let target = Target::start(&net, mib, None, &[], options.server_core)?;
    let mut host = Host::new(&target.uris)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let mut rates: Vec<f64> = Vec::new();
    let timing = Timing { measure: timing.measure.max(WINDOW_MIN), ..timing };
    let throttle = format!("{THROTTLE_MIB}M");
    for _ in 0..runs {
        heed()?;
        alone.push(host.read_p99(0, DEPTH, timing)?);
        let copying =
            Copying::start(&target.uris[0], &target.uris[1], &throttle, options.client_core)?;
        let copied = || target.copied_bytes(1);
        begun(&copied)?;
        let (before, since) = (copied()?, Instant::now());
        beside.push(host.read_p99(0, DEPTH, timing)?);
        let (after, taken) = (copied()?, since.elapsed());
        rates.push((after - before) as f64 / f64::from(1 << 20) / taken.as_secs_f64());
        drop(copying);
    }
    let us = |times: &[Duration]| median(times.iter().map(|time| time.as_secs_f64() * 1e6));
    let ratios = alone.iter().zip(&beside).map(|(a, b)| b.as_secs_f64() / a.as_secs_f64());
    let near = |rate: &f64| NEAR.contains(&(rate / f64::from(THROTTLE_MIB)));
    let ratio = if rates.iter().all(near) { median(ratios) } else { f64::NAN };
    let shown = |value: f64, digits: usize| format!("{value:.digits$}");
    report.tables.push(Table {
        title: "p99 of reads beside a throttled copy (us; medians)".into(),
        columns: vec!["row", "alone", "beside", "ratio", "copy MiB/s"],
        rows: vec![vec![
            ROW.into(),
            shown(us(&alone), 1),
            shown(us(&beside), 1),
            shown(ratio, 2),
            shown(median(rates.iter().copied()), 1),
        ]],
    });
    let why = format!("the copy ran at {rates:.1?} MiB/s in its windows, not near {THROTTLE_MIB}");
    report.figure_or_null("p99_throttled_over_alone", ratio, &why);
    let p99 =
        |times: &[Duration]| times.iter().map(|time| time.as_secs_f64() * 1e6).collect::<Vec<_>>();
    report.rows.push(json!({
        "row": ROW, "about": ABOUT, "p99_alone_us": p99(&alone), "p99_beside_us": p99(&beside),
        "copy_mib_s": rates,
    }));
    Ok(())
}

/// Waits until something is copied.
pub fn begun(copied: &impl Fn() -> anyhow::Result<u64>) -> anyhow::Result<()> {
    let (before, since) = (copied()?, Instant::now());
    while copied()? == before {
        ensure!(since.elapsed() < BEGIN_MAX, "the copy does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A copy at work in a process of its own; killed when dropped.
pub struct Copying {
    command: Command,
    child: Child,
}

impl Copying {
    /// Copies volume `from` to volume `to` from `core`, held back by `throttle`.
    pub fn start(from: &str, to: &str, throttle: &str, core: usize) -> anyhow::Result<Copying> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["copy", from, to, "--throttle", throttle, "--no-extents"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = cores::pin_child(&mut command, core).spawn().context("nvlane copy")?;
        Ok(Copying { command, child })
    }

    /// Begins again if all is copied; whether it did.
    pub fn again(&mut self) -> anyhow::Result<bool> {
        let Some(status) = self.child.try_wait()? else { return Ok(false) };
        ensure!(status.success(), "nvlane copy ended with {status}");
        self.child = self.command.spawn().context("nvlane copy")?;
        Ok(true)
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
