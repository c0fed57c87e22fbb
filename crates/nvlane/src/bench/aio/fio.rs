//! fio's engine io_uring with everything on: what programs gain that are written for it.

use super::load::Window;
use super::subject::BLOCK;
use crate::bench::peers::fio::{self, number};
use anyhow::bail;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// fio needs so long for its own beginning to mean nothing.
const TIME_MIN: Duration = Duration::from_millis(500);

/// Its name in rows.
pub const NAME: &str = "fio_io_uring";

/// What fio is to do.
pub struct Fio<'a> {
    /// The file or device.
    pub path: &'a Path,
    /// Bytes of it that are read.
    pub bytes: usize,
    /// Requests in flight.
    pub depth: usize,
    /// Find completions by polling.
    pub polling: bool,
    /// Where it runs.
    pub core: usize,
}

impl Fio<'_> {
    /// Reads for so long.
    pub fn window(&self, length: Duration) -> anyhow::Result<Window> {
        let mut command = Command::new("fio");
        command.args(["--name=bound", "--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1"]);
        command.args([
            "--rw=randread",
            "--norandommap",
            "--randrepeat=1",
            "--thread",
            "--direct=1",
        ]);
        command.args(["--time_based", "--output-format=json", "--lat_percentiles=1", "--readonly"]);
        command.arg(format!("--filename={}", self.path.display()));
        command.arg(format!("--bs={BLOCK}")).arg(format!("--iodepth={}", self.depth));
        command.arg(format!("--size={}", self.bytes));
        // As many at once as have ended, as the other rows do.
        command.arg(format!("--iodepth_batch_submit={}", self.depth));
        command.arg("--iodepth_batch_complete_min=1");
        command.arg(format!("--iodepth_batch_complete_max={}", self.depth));
        command.arg(format!("--hipri={}", u32::from(self.polling)));
        command.arg(format!("--runtime={}ms", length.max(TIME_MIN).as_millis()));
        window_of(&fio::job_of(&mut command, self.core)?)
    }
}

fn window_of(job: &Value) -> anyhow::Result<Window> {
    let read = &job["read"];
    if number(&job["error"])? != 0.0 {
        bail!("fio: error {}", job["error"]);
    }
    let iops = number(&read["iops"])?;
    let busy = fio::busy(job)?;
    Ok(Window {
        iops,
        cpu_ns: busy * 1e9 / iops.max(1.0),
        // It says how long a request took to be submitted, which holds the others of its batch.
        submit_ns: f64::NAN,
        p50_ns: number(&read["lat_ns"]["percentile"]["50.000000"])?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rates_and_costs_are_read_and_errors_too() {
        let read = json!({ "iops": 50_000.0, "lat_ns": { "percentile": { "50.000000": 9_000 } } });
        let mut job = json!({ "error": 0, "usr_cpu": 30.0, "sys_cpu": 20.0, "read": read });
        let window = window_of(&job).unwrap();
        assert_eq!((window.iops, window.cpu_ns, window.p50_ns), (50_000.0, 10_000.0, 9_000.0));
        job["error"] = 5.into();
        assert!(window_of(&job).is_err());
        assert!(window_of(&json!({})).is_err());
    }
}
