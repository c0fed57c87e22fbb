//! What is simulated, as values: hosts and their load, ports with their links, the device behind
//! them, faults.
//!
//! ```text
//!  host, core 0..n            port p                                  backend (all ports)
//!  Selector --- up link ----> processor --------------------------->  queue, rate
//!     ^         FIFO, rate,   FIFO, cost per command, rate             |
//!     |         then delay                                             v
//!     +-------- down link <------------------------------------------ latency (in parallel)
//!               FIFO, rate, then delay
//! ```
//!
//! A read's data goes down, a write's goes up with its command. Latency of backend and port is
//! time in which nothing else waits: many commands have it at once, as on flash, or in a layer
//! that delays. All queues are without a limit.

use multipath::Group;

/// A microsecond in nanoseconds.
pub const US: u64 = 1_000;
/// A millisecond in nanoseconds.
pub const MS: u64 = 1_000_000;
/// A second in nanoseconds.
pub const S: u64 = 1_000_000_000;
/// A MiB per second in bytes per second.
pub const MIB: f64 = 1_048_576.0;

/// Bytes of a command on the wire: its capsule and the headers around it.
pub const COMMAND_BYTES: u32 = 150;
/// Bytes of an answer on the wire, the data aside.
pub const ANSWER_BYTES: u32 = 100;
/// First retransmission time-out of TCP; each later one is twice as long.
pub const RTO_NS: u64 = 200 * MS;

/// All that a run depends on, seed and policy aside.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// How it is named on the command line.
    pub name: &'static str,
    /// What it is about, in a line.
    pub about: &'static str,
    /// Hosts, all alike, each with a path to every port.
    pub hosts: usize,
    /// Cores of each host, each with a selector of its own.
    pub cores: usize,
    /// What each core does.
    pub load: Load,
    /// Share of reads among the commands; the rest are writes.
    pub reads: f64,
    /// Sizes in bytes and their shares of the commands.
    pub sizes: Vec<(u32, f64)>,
    /// Where paths lead to.
    pub ports: Vec<Port>,
    /// What is behind all of them.
    pub backend: Backend,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// How hosts find out and come back.
    pub failover: Failover,
    /// Cores begin at any time within this.
    pub start_spread_ns: u64,
    /// What is measured: name, beginning, end. The last end is that of the run.
    pub windows: Vec<Window>,
}

/// What each core does.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// So many commands in flight, always.
    Closed {
        /// Jobs times their queue depth.
        in_flight: usize,
    },
    /// A Poisson process.
    Open {
        /// Commands per second.
        iops: f64,
    },
}

/// A target's port with the link to it.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Bytes per second towards the port.
    pub up: f64,
    /// Bytes per second from the port.
    pub down: f64,
    /// Who is sent first, in both directions.
    pub queueing: Queueing,
    /// Propagation delay of one direction.
    pub delay_ns: u64,
    /// Time of the port's processor per command, 25 % more or less.
    pub cost_ns: f64,
    /// Bytes per second of the port's processor.
    pub rate: f64,
    /// Latency of reads here, beside the backend's.
    pub read_ns: u64,
    /// The same of writes.
    pub write_ns: u64,
}

/// Who is sent first where several wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// Who came first.
    Fifo,
    /// Commands without data: a host that sends them before the data of writes.
    CommandsFirst,
    /// One message per connection in turn; reads and writes have connections of their own.
    Fair,
}

/// The device behind the ports.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// Bytes per second.
    pub rate: f64,
    /// Latency of reads, 10 % more or less.
    pub read_ns: u64,
    /// The same of writes.
    pub write_ns: u64,
    /// What its latency depends on besides.
    pub ramp: Option<Ramp>,
}

/// Latency that rises with load, in a straight line: queues within a device that are short at
/// first and then no longer grow.
#[derive(Clone, Copy, Debug)]
pub struct Ramp {
    /// Part of the latency that remains where nothing else is in flight.
    pub idle_part: f64,
    /// Commands in flight through a port from which on it is the full latency.
    pub full_at: u32,
}

/// What goes wrong at a port for a while.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Which port.
    pub port: usize,
    /// What.
    pub kind: FaultKind,
    /// From when.
    pub from_ns: u64,
    /// Until when.
    pub until_ns: u64,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// Everything takes so much longer, in parallel.
    Slow(u64),
    /// Link and processor take so many times as long.
    Narrow(f64),
    /// Nothing passes in either direction. TCP sends again what was lost, at
    /// [`RTO_NS`] times 1, 3, 7, 15 ... after the first loss, and what follows waits behind it.
    BlackHole,
    /// The target is gone and so are its connections; hosts see that at once.
    Kill,
}

/// What hosts do about a lost path.
#[derive(Clone, Copy, Debug)]
pub struct Failover {
    /// A connection is given up after so long without an answer (keep alive).
    pub silence_ns: u64,
    /// From then on to when writes may be sent again elsewhere, where the peer has not hung up.
    pub quiet_ns: u64,
    /// A lost path is connected again at any time within this after the fault has ended.
    pub reconnect_ns: u64,
}

/// A time to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Its name.
    pub name: &'static str,
    /// Its beginning.
    pub from_ns: u64,
    /// Its end.
    pub until_ns: u64,
}

/// A kind of command.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Read or write.
    pub group: Group,
    /// Size of its data.
    pub bytes: u32,
    /// Of all commands.
    pub share: f64,
}

impl Scenario {
    /// When the run ends.
    pub fn end_ns(&self) -> u64 {
        self.windows.iter().map(|window| window.until_ns).max().unwrap_or(0)
    }

    /// The kinds of commands.
    pub fn classes(&self) -> Vec<Class> {
        let groups = [(Group::Read, self.reads), (Group::Write, 1.0 - self.reads)];
        let each = groups.into_iter().filter(|(_, share)| *share > 0.0);
        each.flat_map(|(group, part)| {
            let class = move |&(bytes, share)| Class { group, bytes, share: part * share };
            self.sizes.iter().map(class)
        })
        .collect()
    }

    /// Mean size of the commands' data.
    pub fn mean_bytes(&self) -> f64 {
        self.sizes.iter().map(|(bytes, share)| f64::from(*bytes) * share).sum()
    }
}

impl Port {
    /// A port on a link of `rate` bytes per second in both directions, `delay_ns` away, with a
    /// processor that is never the bottleneck.
    pub fn new(rate: f64, delay_ns: u64) -> Port {
        Port {
            up: rate,
            down: rate,
            queueing: Queueing::Fifo,
            delay_ns,
            cost_ns: 500.0,
            rate: f64::INFINITY,
            read_ns: 0,
            write_ns: 0,
        }
    }

    /// Latency of a command of `group` here, beside the backend's.
    pub fn latency_ns(&self, group: Group) -> u64 {
        if group == Group::Read { self.read_ns } else { self.write_ns }
    }
}

impl Backend {
    /// One without a limit.
    pub fn unlimited(latency_ns: u64) -> Backend {
        Backend { rate: f64::INFINITY, read_ns: latency_ns, write_ns: latency_ns, ramp: None }
    }

    /// Latency of a command of `group` where `in_flight` others came in through the same port.
    pub fn latency_ns(&self, group: Group, in_flight: u32) -> f64 {
        let full_ns = if group == Group::Read { self.read_ns } else { self.write_ns } as f64;
        let Some(Ramp { idle_part, full_at }) = self.ramp else { return full_ns };
        let load = f64::from(in_flight.min(full_at)) / f64::from(full_at);
        full_ns * (idle_part + (1.0 - idle_part) * load)
    }
}

impl Class {
    /// Bytes that go to the port and come back for one command.
    pub fn wire_bytes(&self) -> (u32, u32) {
        match self.group {
            Group::Read => (COMMAND_BYTES, ANSWER_BYTES + self.bytes),
            _ => (COMMAND_BYTES + self.bytes, ANSWER_BYTES),
        }
    }
}
