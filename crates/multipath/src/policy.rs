//! The policies by name, and what they can be told.

use std::fmt;
use std::str::FromStr;

/// How a path is chosen among those that may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The nearest path, always the same.
    Numa,
    /// One path after the other.
    RoundRobin,
    /// The path with the fewest commands in flight.
    QueueDepth,
    /// Shares in inverse proportion to average latency, as posted for Linux.
    Latency,
    /// The path that is expected to complete this command first.
    #[default]
    CompletionTime,
}

/// What a selector can be told while it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The policy.
    pub policy: Policy,
    /// Weight of a new average against the old: 2^-shift; 0 to [`Settings::SHIFT_MAX`].
    pub latency_ewma_shift: u8,
    /// Nanoseconds over which samples are averaged first; none is the policy's own default.
    pub latency_batch_timeout_ns: Option<u64>,
    /// Nanoseconds that completion-time adds to paths farther away than the nearest.
    pub numa_bias_ns: u64,
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 5] = [
        Policy::Numa,
        Policy::RoundRobin,
        Policy::QueueDepth,
        Policy::Latency,
        Policy::CompletionTime,
    ];

    /// As it is written everywhere; the first three are Linux's names.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Numa => "numa",
            Policy::RoundRobin => "round-robin",
            Policy::QueueDepth => "queue-depth",
            Policy::Latency => "latency",
            Policy::CompletionTime => "completion-time",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Policy, UnknownPolicy> {
        Policy::ALL.into_iter().find(|policy| policy.name() == text).ok_or(UnknownPolicy)
    }
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("numa, round-robin, queue-depth, latency or completion-time")
    }
}

impl std::error::Error for UnknownPolicy {}

impl Settings {
    /// Largest `latency_ewma_shift`.
    pub const SHIFT_MAX: u8 = 8;
    /// Default `latency_batch_timeout` of the policy latency, as posted: 15 s.
    pub const LATENCY_BATCH_NS: u64 = 15_000_000_000;
    /// Default `latency_batch_timeout` of completion-time: 1 ms. With 100 ms and more it loses a
    /// fifth of the throughput while latencies change.
    pub const COMPLETION_BATCH_NS: u64 = 1_000_000;

    /// The batch time-out in force.
    pub fn batch_ns(&self) -> u64 {
        self.latency_batch_timeout_ns.unwrap_or(match self.policy {
            Policy::Latency => Settings::LATENCY_BATCH_NS,
            _ => Settings::COMPLETION_BATCH_NS,
        })
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            policy: Policy::default(),
            latency_ewma_shift: 3,
            latency_batch_timeout_ns: None,
            numa_bias_ns: 20_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!("service-time".parse::<Policy>(), Err(UnknownPolicy));
    }

    #[test]
    fn the_batch_time_out_follows_the_policy_until_it_is_set() {
        let mut settings = Settings::default();
        assert_eq!(settings.batch_ns(), 1_000_000);
        settings.policy = Policy::Latency;
        assert_eq!(settings.batch_ns(), 15_000_000_000);
        settings.latency_batch_timeout_ns = Some(5);
        assert_eq!(settings.batch_ns(), 5);
    }
}
