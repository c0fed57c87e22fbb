//! What an association is to do.

use std::time::Duration;

/// How to reach a namespace and how long to try; names and defaults are Linux's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// NQN of the subsystem.
    pub nqn: String,
    /// NQN of this host.
    pub host_nqn: String,
    /// Host identifier.
    pub host_id: [u8; 16],
    /// Namespace id; `None`: the only one there is.
    pub nsid: Option<u32>,
    /// I/O queues to ask for.
    pub io_queues: u16,
    /// Entries of each I/O queue.
    pub queue_entries: u16,
    /// Keep alive timeout (KATO): the controller gives up after so long without a word.
    pub keep_alive_tmo: Duration,
    /// From the loss of a connection, or a failed attempt, to the next attempt.
    pub reconnect_delay: Duration,
    /// From a loss to when it is given up for good; zero: at the loss, or the first attempt that fails; `None`: never.
    pub ctrl_loss_tmo: Option<Duration>,
    /// From a loss to when waiting commands are to fail; zero: at once; `None`: only with `ctrl_loss_tmo`.
    pub fast_io_fail_tmo: Option<Duration>,
    /// How long an admin command may take, and the making of a connection.
    pub admin_timeout: Duration,
    /// After an association has ended its commands are trusted to have ended too within so long, or the
    /// controller's Command Quiesce Time if that is longer.
    pub quiesce_time: Duration,
}

impl Config {
    /// A configuration with the defaults.
    pub fn new(nqn: &str, host_nqn: &str, host_id: [u8; 16]) -> Config {
        Config {
            nqn: nqn.into(),
            host_nqn: host_nqn.into(),
            host_id,
            nsid: None,
            io_queues: 128,
            queue_entries: 128,
            keep_alive_tmo: Duration::from_secs(5),
            reconnect_delay: Duration::from_secs(10),
            ctrl_loss_tmo: Some(Duration::from_secs(600)),
            fast_io_fail_tmo: None,
            admin_timeout: Duration::from_secs(10),
            quiesce_time: Duration::from_secs(1),
        }
    }
}
