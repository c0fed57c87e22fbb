//! What `stats` tells: counters since the daemon started, summed over the cores where that helps.

use super::Daemon;
use crate::control::protocol::Failure;
use crate::control::times::Latencies;
use namespace::counters::Counted;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The result of `stats`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Statistics {
    /// The daemon's version.
    pub version: String,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// Open connections, admin and I/O queues alike.
    pub connections: usize,
    /// Per namespace.
    pub namespaces: Vec<NamespaceStatistics>,
    /// Per core of the data path.
    pub cores: Vec<CoreStatistics>,
    /// Hosts that a target did not let in; none of other servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedStatistics>,
    /// Of the daemon's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessStatistics>,
}

/// Hosts that were not let in, since the start.
#[derive(Debug, Serialize, Deserialize)]
pub struct RefusedStatistics {
    /// By the answer to their Connect.
    pub connect: u64,
    /// For want of a proof of who they are.
    pub authentication: u64,
    /// For want of a TLS session.
    pub tls: u64,
}

/// What the process takes of the machine.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProcessStatistics {
    /// When the daemon was started, in seconds since 1970.
    pub start_time_seconds: u64,
    /// Memory that is resident.
    pub resident_bytes: u64,
    /// Time of processors, in user space and in the kernel, in milliseconds.
    pub cpu_ms: u64,
    /// Open files and sockets.
    pub open_files: u64,
    /// As many there can be.
    pub open_files_max: u64,
}

/// Counters of a namespace.
#[derive(Debug, Serialize, Deserialize)]
pub struct NamespaceStatistics {
    /// Its subsystem.
    pub nqn: String,
    /// Its id.
    pub nsid: u32,
    /// Commands that read.
    pub reads: u64,
    /// Commands that wrote.
    pub writes: u64,
    /// Bytes sent to hosts.
    pub read_bytes: u64,
    /// Bytes taken from hosts.
    pub written_bytes: u64,
    /// Copy commands.
    #[serde(default)]
    pub copies: u64,
    /// Bytes that they copied into this namespace.
    #[serde(default)]
    pub copied_bytes: u64,
    /// Other commands.
    pub others: u64,
    /// Commands that failed.
    pub errors: u64,
    /// How long those took that succeeded, in the volume.
    #[serde(default)]
    pub latency: Latencies,
}

/// Counters of a core.
#[derive(Debug, Serialize, Deserialize)]
pub struct CoreStatistics {
    /// Its connections.
    pub connections: usize,
    /// Turns of its loop.
    pub turns: u64,
    /// Calls of `io_uring_enter`.
    pub enters: u64,
    /// Those of them that slept.
    pub sleeps: u64,
    /// Operations handed to the kernel.
    pub submitted: u64,
    /// Completions taken from the kernel.
    pub completed: u64,
    /// Operations that the kernel holds now.
    pub in_flight: usize,
    /// Free bytes of its buffer pool.
    pub buffer_bytes_free: usize,
    /// Bytes of its buffer pool.
    #[serde(default)]
    pub buffer_bytes: usize,
}

impl Daemon {
    pub(super) fn statistics(&self) -> Result<Statistics, Failure> {
        let stats = self.server.stats().map_err(|error| Failure::refused(error.to_string()))?;
        let namespaces = stats.namespaces.into_iter();
        let namespaces =
            namespaces.map(|it| NamespaceStatistics::new(it.nqn, it.nsid, &it.counted));
        let cores: Vec<CoreStatistics> = stats
            .cores
            .into_iter()
            .map(|one| CoreStatistics {
                connections: one.connections,
                turns: one.reactor.turns,
                enters: one.reactor.enters,
                sleeps: one.reactor.sleeps,
                submitted: one.reactor.submitted,
                completed: one.reactor.completed,
                in_flight: one.reactor.in_flight,
                buffer_bytes_free: one.buffer_bytes_free,
                buffer_bytes: one.buffer_bytes,
            })
            .collect();
        let connections = cores.iter().map(|core| core.connections).sum();
        let refused = RefusedStatistics {
            connect: stats.refused.connects,
            authentication: stats.refused.proofs,
            tls: stats.refused.sessions,
        };
        let all = Statistics::of(self.started, connections, namespaces.collect(), cores);
        Ok(Statistics { refused: Some(refused), ..all })
    }
}

/// When a server was started, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    instant: Instant,
    time: SystemTime,
}

impl Started {
    /// It was just now.
    pub fn now() -> Started {
        Started { instant: Instant::now(), time: SystemTime::now() }
    }
}

impl Statistics {
    /// Of this process, and of what it serves.
    pub fn of(
        started: Started,
        connections: usize,
        namespaces: Vec<NamespaceStatistics>,
        cores: Vec<CoreStatistics>,
    ) -> Statistics {
        Statistics {
            refused: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: started.instant.elapsed().as_secs(),
            connections,
            namespaces,
            cores,
            process: Some(ProcessStatistics::now(started.time)),
        }
    }
}

impl NamespaceStatistics {
    /// Of that namespace, or of what a front door has in its place.
    pub fn new(nqn: String, nsid: u32, counted: &Counted) -> NamespaceStatistics {
        NamespaceStatistics {
            nqn,
            nsid,
            reads: counted.reads,
            writes: counted.writes,
            read_bytes: counted.read_bytes,
            written_bytes: counted.written_bytes,
            copies: counted.copies,
            copied_bytes: counted.copied_bytes,
            others: counted.others,
            errors: counted.errors,
            latency: Latencies::from(&counted.latencies),
        }
    }
}

impl ProcessStatistics {
    /// As it is now. What the kernel does not tell is zero.
    fn now(started: SystemTime) -> ProcessStatistics {
        let since_1970 = started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        ProcessStatistics {
            start_time_seconds: since_1970.as_secs(),
            resident_bytes: resident_bytes(&status).unwrap_or(0),
            cpu_ms: cpu_ms(),
            // The listing is one of them while it is read.
            open_files: fs::read_dir("/proc/self/fd")
                .map_or(0, |all| all.count().saturating_sub(1) as u64),
            open_files_max: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        }
    }
}

/// Out of /proc/PID/status, where it is in KiB.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

fn cpu_ms() -> u64 {
    // SAFETY: all zeroes is a valid rusage, which the kernel fills.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `used` outlives the call.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut used) } != 0 {
        return 0;
    }
    let ms = |time: libc::timeval| time.tv_sec as u64 * 1000 + time.tv_usec as u64 / 1000;
    ms(used.ru_utime) + ms(used.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_tells_of_itself() {
        let status = "Name:\tnvlane\nVmRSS:\t    1234 kB\nRssAnon:\t 9 kB\n";
        assert_eq!(resident_bytes(status), Some(1234 << 10));
        assert_eq!(resident_bytes("Name:\tnvlane\n"), None);
        let now = ProcessStatistics::now(SystemTime::now());
        assert!(now.resident_bytes > 1 << 20 && now.open_files_max >= now.open_files, "{now:?}");
        assert!(now.start_time_seconds > 1_700_000_000 && now.open_files >= 3, "{now:?}");
    }
}
