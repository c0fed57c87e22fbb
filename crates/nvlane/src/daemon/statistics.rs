//! What `stats` tells: counters since the daemon started, summed over the cores where that helps.

use super::Daemon;
use crate::control::protocol::Failure;
use serde::{Deserialize, Serialize};

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
}

impl Daemon {
    pub(super) fn statistics(&self) -> Result<Statistics, Failure> {
        let stats = self.server.stats().map_err(|error| Failure::refused(error.to_string()))?;
        let namespaces = stats.namespaces.into_iter().map(|one| NamespaceStatistics {
            nqn: one.nqn,
            nsid: one.nsid,
            reads: one.reads,
            writes: one.writes,
            read_bytes: one.read_bytes,
            written_bytes: one.written_bytes,
            copies: one.copies,
            copied_bytes: one.copied_bytes,
            others: one.others,
            errors: one.errors,
        });
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
            })
            .collect();
        Ok(Statistics {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs(),
            connections: cores.iter().map(|core| core.connections).sum(),
            namespaces: namespaces.collect(),
            cores,
        })
    }
}
