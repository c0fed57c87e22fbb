//! fio on the local file: what the disk gives without a network.

use crate::bench::initiator::Pattern;
use crate::bench::{cores, served};
use anyhow::{Context, bail};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What reads local files.
pub const ENGINE: &str = "io_uring";

/// What fio measured.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Measured {
    /// Requests per second.
    pub iops: f64,
    /// Latency, half of the requests.
    pub p50_us: f64,
    /// Latency, 99 of 100.
    pub p99_us: f64,
}

/// What is installed, if it has that engine.
pub fn version_with(engine: &str) -> Result<String, String> {
    let version = served::version("fio")?;
    let output = Command::new("fio").arg("--enghelp").output();
    let output = output.map_err(|error| format!("missing: {error}"))?;
    let engines = String::from_utf8_lossy(&output.stdout);
    match engines.lines().any(|line| line.trim() == engine) {
        true => Ok(version),
        false => Err(format!("missing: {version} has no engine {engine}")),
    }
}

/// Runs fio on `core`: what its JSON says of the one job.
pub fn job_of(command: &mut Command, core: usize) -> anyhow::Result<Value> {
    let output = cores::pin_child(command, core).output().context("fio cannot be run")?;
    if !output.status.success() {
        bail!("fio failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    // It may warn before the object begins.
    let text = String::from_utf8_lossy(&output.stdout);
    let json = &text[text.find('{').context("fio printed no JSON")?..];
    let mut report: Value = serde_json::from_str(json).context("fio printed no JSON")?;
    Ok(report["jobs"][0].take())
}

/// A number of a job's.
pub fn number(value: &Value) -> anyhow::Result<f64> {
    value.as_f64().context("fio reports no such number")
}

/// How much of a processor a job has had.
pub fn busy(job: &Value) -> anyhow::Result<f64> {
    Ok((number(&job["usr_cpu"])? + number(&job["sys_cpu"])?) / 100.0)
}

/// Runs fio with io_uring and O_DIRECT on `core` for `time`.
pub fn run(
    path: &Path,
    pattern: Pattern,
    bytes: u32,
    depth: u16,
    core: usize,
    time: Duration,
) -> anyhow::Result<Measured> {
    let (rw, section) = match pattern {
        Pattern::RandomRead => ("randread", "read"),
        Pattern::RandomWrite => ("randwrite", "write"),
        Pattern::SequentialRead => ("read", "read"),
    };
    let mut command = Command::new("fio");
    let engine = format!("--ioengine={ENGINE}");
    command.args(["--name=local", &engine, "--direct=1", "--time_based", "--thread"]);
    command.args(["--output-format=json", "--lat_percentiles=1", "--norandommap"]);
    command.arg(format!("--filename={}", path.display()));
    command.arg(format!("--rw={rw}")).arg(format!("--bs={bytes}"));
    command.arg(format!("--iodepth={depth}")).arg(format!("--runtime={}ms", time.as_millis()));
    let job = job_of(&mut command, core)?;
    let measured = &job[section];
    let percentile =
        |name: &str| measured["lat_ns"]["percentile"][name].as_f64().unwrap_or(f64::NAN) / 1e3;
    Ok(Measured {
        iops: measured["iops"].as_f64().context("fio reports no rate")?,
        p50_us: percentile("50.000000"),
        p99_us: percentile("99.000000"),
    })
}
