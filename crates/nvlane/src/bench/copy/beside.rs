//! What others notice of a copy that is held back: latencies of reads, with it and without.

use super::load::{Host, Timing};
use super::stage::Target;
use crate::bench::Options;
use crate::bench::net::Net;
use crate::bench::report::{Report, Table, median};
use anyhow::{Context, ensure};
use serde_json::json;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Row, and in words.
const ROW: &str = "throttled";
const ABOUT: &str = "random reads of 4 KiB, beside nvlane copy --throttle 50M on the same target";
/// What the copy is held to.
const THROTTLE: &str = "50M";
/// Reads in flight.
const DEPTH: usize = 4;
/// Before a window begins, the copy is given that long to begin.
const BEGIN: Duration = Duration::from_millis(300);

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
    if !options.quiet {
        eprintln!("{ROW}: {ABOUT}");
    }
    let net = Net::new(&[1000])?;
    let target = Target::start(&net, mib, None, options.server_core)?;
    let mut host = Host::new(&target.uris)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        alone.push(host.read_p99(0, DEPTH, timing)?);
        let mut copy = Copying::start(&target.uris[0], &target.uris[1])?;
        std::thread::sleep(BEGIN);
        beside.push(host.read_p99(0, DEPTH, timing)?);
        copy.ensure_busy()?;
    }
    let us = |times: &[Duration]| median(times.iter().map(|time| time.as_secs_f64() * 1e6));
    let ratios = alone.iter().zip(&beside).map(|(a, b)| b.as_secs_f64() / a.as_secs_f64());
    let ratio = median(ratios);
    let shown = |value: f64, digits: usize| format!("{value:.digits$}");
    report.tables.push(Table {
        title: "p99 of reads beside a throttled copy (us; medians)".into(),
        columns: vec!["row", "alone", "beside", "ratio"],
        rows: vec![vec![ROW.into(), shown(us(&alone), 1), shown(us(&beside), 1), shown(ratio, 2)]],
    });
    report.figure("p99_throttled_over_alone", ratio);
    let p99 =
        |times: &[Duration]| times.iter().map(|time| time.as_secs_f64() * 1e6).collect::<Vec<_>>();
    report.rows.push(json!({
        "row": ROW, "about": ABOUT, "p99_alone_us": p99(&alone), "p99_beside_us": p99(&beside),
    }));
    Ok(())
}

/// A copy at work in a process of its own; killed when dropped.
struct Copying(Child);

impl Copying {
    fn start(from: &str, to: &str) -> anyhow::Result<Copying> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        command.args(["copy", from, to, "--throttle", THROTTLE, "--no-extents"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Copying(command.spawn().context("nvlane copy")?))
    }

    /// One that has ended held nobody up.
    fn ensure_busy(&mut self) -> anyhow::Result<()> {
        let ended = self.0.try_wait()?;
        ensure!(ended.is_none(), "the copy has ended before the reads: {ended:?}");
        Ok(())
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
