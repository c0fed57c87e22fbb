//! SPDK's own NVMe/TCP client, `spdk_nvme_perf`, where it is installed.
//!
//! It polls, and needs no hugepages (`--no-huge`). Its options and its report are those of SPDK 26.05.

use crate::bench::cores;
use crate::bench::initiator::{Pattern, Peer};
use crate::bench::pipeline::{Window, histogram};
use crate::bench::target::plan::Job;
use crate::bench::usage::{Observed, Usage};
use anyhow::{Context, bail, ensure};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The program.
pub const PERF: &str = "spdk_nvme_perf";
/// SPDK's target, which is measured by hand only (docs/performance.md): it polls on the core of the bare servers, and is told by
/// calls of its own what to serve.
pub const TARGET: &str = "nvmf_tgt";
/// Memory that it may have, in MiB: buffers of 128 commands are a fraction of it.
const MEMORY_MIB: u32 = 512;
/// How long it warms up, and how long it measures, in whole seconds.
const WARM_SECONDS: u32 = 1;
const SECONDS: u32 = 1;
/// How long it may take in all.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked at whether something else runs on its core.
const LOOK: Duration = Duration::from_millis(100);

/// Runs `job` by SPDK's client on `core`, against the namespace with the identifier 1 at `peer`. Latencies are not told.
pub fn window(
    peer: &Peer,
    job: &Job,
    core: usize,
    usage: &mut dyn FnMut() -> std::io::Result<Usage>,
) -> anyhow::Result<Window> {
    let pattern = match job.pattern {
        Pattern::RandomRead => "randread",
        Pattern::RandomWrite => "randwrite",
        Pattern::SequentialRead => "read",
    };
    let address = peer.address;
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let place = format!(
        "trtype:TCP adrfam:{family} traddr:{} trsvcid:{} subnqn:{} ns:1",
        address.ip(),
        address.port(),
        peer.subsystem
    );
    let mut command = Command::new(PERF);
    command.args(["--no-huge", "-s", &MEMORY_MIB.to_string(), "-c", &format!("[{core}]")]);
    command.args(["-q", &job.depth.to_string(), "-o", &job.bytes.to_string(), "-w", pattern]);
    command.args(["-a", &WARM_SECONDS.to_string(), "-t", &SECONDS.to_string(), "-r", &place]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (before, begun) = (usage()?, Instant::now());
    let mut child = cores::pin_child(&mut command, core).spawn().context("cannot be run")?;
    let observed = Observed::new(child.id());
    let mut client = Usage::default();
    while child.try_wait()?.is_none() {
        // What it says fits into its pipes.
        client = observed.as_ref().ok().and_then(|it| it.usage().ok()).unwrap_or(client);
        if begun.elapsed() > PATIENCE {
            child.kill()?;
        }
        std::thread::sleep(LOOK);
    }
    let server = usage()?.since(before);
    let share = f64::from(SECONDS) / begun.elapsed().as_secs_f64();
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("it ended with {}: {}", output.status, last_lines(&output.stderr));
    }
    let iops = rate(&String::from_utf8_lossy(&output.stdout))?;
    Ok(Window {
        ios: (iops * f64::from(SECONDS)) as u64,
        seconds: f64::from(SECONDS),
        latency: histogram(),
        client: part(client, share),
        server: part(server, share),
    })
}

/// What of `usage` falls into such a part of its time.
fn part(usage: Usage, share: f64) -> Usage {
    let count = |count: u64| (count as f64 * share) as u64;
    Usage {
        cpu: usage.cpu.mul_f64(share),
        waited: usage.waited.mul_f64(share),
        switches: count(usage.switches),
        system_calls: count(usage.system_calls),
    }
}

/// The rate in the line of its table that sums up.
fn rate(report: &str) -> anyhow::Result<f64> {
    let total = report.lines().rfind(|line| line.starts_with("Total"));
    let numbers = total.and_then(|line| line.split_once(':')).context("no total in its report")?.1;
    let iops = numbers.split_whitespace().next().context("no rate in its report")?;
    let iops: f64 = iops.parse().with_context(|| format!("{iops} is no rate"))?;
    ensure!(iops > 0.0, "it has done nothing");
    Ok(iops)
}

fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_total() {
        let report = "\
Initialization complete. Launching workers.
========================================================
                                                              Latency(us)
Device Information                       :       IOPS      MiB/s    Average        min        max
TCP (addr:127.0.0.1 subnqn:x) NSID 1 from core  1:  101000.50     394.53     316.75      20.11    1200.00
========================================================
Total                                    :  101000.50     394.53     316.75      20.11    1200.00
";
        assert_eq!(rate(report).unwrap(), 101_000.5);
        assert!(rate("Total :       0.00       0.00").is_err());
        assert!(rate("nothing was found").is_err());
    }
}
