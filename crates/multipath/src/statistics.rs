//! What is told of a path.

/// One path in one group on one core. The first seven have the names of the posted `latency_stat`
/// and are those of the policy latency; what follows is completion-time's. Both stay at zero under
/// other policies, but for `sel` and what is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStatistics {
    /// Commands in a row, of [`crate::WEIGHT_SCALE`] or so for all paths together.
    pub weight: u32,
    /// Of which are left.
    pub credit: u32,
    /// 10^9 / `slat_ns`.
    pub score: u64,
    /// Smoothed latency in nanoseconds.
    pub slat_ns: u64,
    /// Commands sent.
    pub sel: u64,
    /// Latencies taken into account.
    pub nr_samples: u64,
    /// Latencies above a second, not taken into account.
    pub nr_ignored: u64,

    /// Commands in flight.
    pub in_flight: u32,
    /// Work in flight: bytes, and 4096 per command.
    pub queued_work: u64,
    /// L: smoothed latency in nanoseconds.
    pub latency_ns: u64,
    /// Qb: smoothed work that was in flight around it.
    pub backlog_work: u64,
    /// B: work delivered per second.
    pub rate: u64,
    /// l0: least latency of the last seconds, in nanoseconds.
    pub least_ns: u64,
    /// For how long the path has owed an answer, in nanoseconds.
    pub silent_ns: u64,
    /// Latencies that were cut to eight times the smoothed one.
    pub clipped: u64,
    /// Reads sent to measure an idle path.
    pub probes: u64,
}
