//! fio's engine io_uring_cmd with the options of a lane.

use super::device::Device;
use super::lane::Steps;
use super::{BYTES, Runs, Window};
use crate::bench::peers::fio::{self, number};
use crate::bench::pipeline::histogram;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// What sends commands.
const ENGINE: &str = "io_uring_cmd";

/// fio needs so long for its own beginning to mean nothing.
const TIME_MIN: Duration = Duration::from_millis(500);

/// What is installed, or that it is missing. Asked once: each depth wants to know, and fio takes its time in a guest.
fn installed() -> &'static Result<String, String> {
    static INSTALLED: OnceLock<Result<String, String>> = OnceLock::new();
    INSTALLED.get_or_init(|| fio::version_with(ENGINE))
}

/// The same in words.
pub fn version() -> String {
    installed().clone().unwrap_or_else(|why| why)
}

/// Whether there is one.
pub fn is_there() -> bool {
    installed().is_ok()
}

/// fio on a device.
pub struct Fio<'a> {
    device: &'a Device,
    steps: Steps,
    core: usize,
    /// Each command is submitted by itself, as fio does unless it is told otherwise.
    by_ones: bool,
}

impl<'a> Fio<'a> {
    /// With the same steps as a lane, on `core`. Like every other lane it takes what has ended, and submits as many at once.
    pub fn new(device: &'a Device, steps: Steps, core: usize) -> Fio<'a> {
        Fio { device, steps, core, by_ones: false }
    }

    /// The same as fio does it by itself: one system call for each command.
    pub fn by_ones(self) -> Fio<'a> {
        Fio { by_ones: true, ..self }
    }
}

impl Runs for Fio<'_> {
    fn name(&self) -> String {
        self.steps.name(if self.by_ones { "fio_by_ones" } else { "fio" })
    }

    fn run(&mut self, depth: usize, warm: Duration, measure: Duration) -> anyhow::Result<Window> {
        let mut command = Command::new("fio");
        // The engine before its own options.
        command.args([
            "--name=peer",
            &format!("--ioengine={ENGINE}"),
            "--cmd_type=nvme",
            "--thread",
        ]);
        command.args(["--rw=randread", "--norandommap", "--randrepeat=1", "--time_based"]);
        command.args(["--output-format=json", "--lat_percentiles=1"]);
        command.arg(format!("--filename={}", self.device.path.display()));
        command.arg(format!("--bs={BYTES}")).arg(format!("--iodepth={depth}"));
        command.arg(format!("--size={}", self.device.places * u64::from(BYTES)));
        if !self.by_ones {
            command.arg(format!("--iodepth_batch_submit={depth}"));
            command.arg("--iodepth_batch_complete_min=1");
            command.arg(format!("--iodepth_batch_complete_max={depth}"));
        }
        let time = measure.max(TIME_MIN);
        command.arg(format!("--runtime={}ms", time.as_millis()));
        command.arg(format!("--ramp_time={}ms", warm.as_millis()));
        for (on, option) in [
            (self.steps.fixed, "--fixedbufs=1"),
            (self.steps.file, "--registerfiles=1"),
            (self.steps.iopoll, "--hipri=1"),
            (self.steps.sqpoll, "--sqthread_poll=1"),
        ] {
            if on {
                command.arg(option);
            }
        }
        let job = fio::job_of(&mut command, self.core)?;
        let read = &job["read"];
        let seconds = number(&read["runtime"])? / 1e3;
        let ios = number(&read["total_ios"])?;
        let mut latency = histogram();
        for (name, share) in [("50.000000", 98), ("99.000000", 2)] {
            // Two values that give back the same two quantiles.
            let value = number(&read["lat_ns"]["percentile"][name])? as u64;
            latency.saturating_record_n(value, share);
        }
        let cpu = Duration::from_secs_f64(fio::busy(&job)? * seconds);
        Ok(Window { ios: ios as u64, seconds, cpu, latency, stages: None })
    }
}
