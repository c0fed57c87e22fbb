//! `rate:`: lets so many bytes or commands pass a second, over all cores.

use crate::human::{format_bytes, format_count};
use crate::layer::pass_to_child;
use crate::layer::slab::Slab;
use crate::{Data, Namespace, Queue, Request};
use nvme::Limits;
use reactor::{Complete, Reactor};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

/// How much may pass at once after a pause, as time at the full rate.
const BURST: Duration = Duration::from_millis(1);

/// What may pass in a second; at least one of the two is set, and neither is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Bytes of data read and written. A Copy does both with each.
    pub bytes: Option<u64>,
    /// Commands, a fused pair being two.
    pub commands: Option<u64>,
}

/// As in a volume URI: `1G`, `iops=10K`, or `bytes=1G,iops=10K`.
impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bytes.map(format_bytes), self.commands.map(format_count)) {
            (Some(bytes), Some(commands)) => write!(f, "bytes={bytes},iops={commands}"),
            (Some(bytes), None) => f.write_str(&bytes),
            (None, Some(commands)) => write!(f, "iops={commands}"),
            (None, None) => Ok(()),
        }
    }
}

/// A namespace behind a narrow gate.
#[derive(Debug)]
pub struct Rate {
    child: Arc<dyn Namespace>,
    rates: Rates,
    gate: Arc<Gate>,
}

impl Rate {
    /// Lets `rates` through to `child`.
    ///
    /// # Panics
    /// If a rate is zero; `volume` refuses that.
    pub fn new(child: Arc<dyn Namespace>, rates: Rates) -> Arc<Rate> {
        assert!(rates.bytes != Some(0) && rates.commands != Some(0));
        let gate = Gate {
            start: Instant::now(),
            bytes: rates.bytes.map(Meter::new),
            commands: rates.commands.map(Meter::new),
        };
        Arc::new(Rate { child, rates, gate: Arc::new(gate) })
    }
}

impl Namespace for Rate {
    fn limits(&self) -> Limits {
        Limits { immediate: false, ..self.child.limits() }
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let child = Arc::clone(&self.child).open_queue(reactor)?;
        let block_shift = self.limits().block_shift;
        Ok(Rc::new_cyclic(|me| RateQueue {
            me: me.clone(),
            child,
            reactor: Rc::clone(reactor),
            gate: Arc::clone(&self.gate),
            held: Slab::default(),
            block_shift,
        }))
    }

    pass_to_child!(refresh resize flush uuid keeps_blocks_whole takes_registered cut paths);
    pass_to_child!(numa_node each_program tune allocation copies_on_threads last_guard);
    pass_to_child!(volatile_epoch access writes_back write_off gives_checksums);
    pass_to_child!(retry_delays lost);

    fn uri(&self) -> String {
        format!("rate:{}({})", self.rates, self.child.uri())
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        facts.push(("rate".into(), format!("{} a second", self.rates)));
        self.child.describe(facts);
    }
}

/// Both meters, shared by all cores.
#[derive(Debug)]
struct Gate {
    start: Instant,
    bytes: Option<Meter>,
    commands: Option<Meter>,
}

/// One rate: the time, in nanoseconds since the start, at which what has passed so far will have
/// been paid for.
#[derive(Debug)]
struct Meter {
    per_second: u64,
    paid: AtomicU64,
}

impl Gate {
    /// When a command may pass; none if now.
    #[inline]
    fn pass(&self, bytes: u64, commands: u64) -> Option<Instant> {
        let now = self.start.elapsed().as_nanos() as u64;
        let wait = |meter: &Option<Meter>, amount| {
            meter.as_ref().map_or(0, |meter| meter.pass(now, amount))
        };
        let at = wait(&self.bytes, bytes).max(wait(&self.commands, commands));
        (at > now).then(|| self.start + Duration::from_nanos(at))
    }
}

impl Meter {
    fn new(per_second: u64) -> Meter {
        Meter { per_second, paid: AtomicU64::new(0) }
    }

    /// Books `amount` at time `now`; returns when it may pass.
    #[inline]
    fn pass(&self, now: u64, amount: u64) -> u64 {
        let cost = u128::from(amount) * 1_000_000_000 / u128::from(self.per_second);
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let oldest = now.saturating_sub(BURST.as_nanos() as u64);
        let book = |paid: u64| Some(paid.max(oldest).saturating_add(cost));
        let (order, relaxed) = (Ordering::Relaxed, Ordering::Relaxed);
        let before = self.paid.fetch_update(order, relaxed, book).expect("always booked");
        before.max(oldest).saturating_add(cost)
    }
}

struct RateQueue {
    me: Weak<RateQueue>,
    child: Rc<dyn Queue>,
    reactor: Rc<Reactor>,
    gate: Arc<Gate>,
    held: Slab<Box<Request>>,
    block_shift: u8,
}

impl Queue for RateQueue {
    #[inline]
    fn submit(&self, request: Box<Request>) {
        let (bytes, commands) = self.amount(&request);
        let Some(at) = self.gate.pass(bytes, commands) else {
            return self.child.submit(request);
        };
        let slot = self.held.insert(request);
        let sink = self.me.upgrade().expect("the queue lives while it is called");
        self.reactor.timer(at, sink, slot);
    }

    /// At once: what is held back, limited or failed is I/O.
    fn submit_admin(&self, request: Box<Request>) {
        self.child.submit_admin(request);
    }

    fn access(&self) -> crate::Access {
        self.child.access()
    }

    fn watch_access(&self, watcher: Weak<dyn crate::AccessWatcher>) {
        self.child.watch_access(watcher);
    }

    fn forget(&self) {
        self.child.forget();
        drop(self.held.clear());
    }
}

impl RateQueue {
    /// Bytes of data and commands that a request counts for. A read that asks for lent memory
    /// carries none yet, so the command is asked.
    #[inline]
    fn amount(&self, request: &Request) -> (u64, u64) {
        use nvme::opcode::io as opcode;
        let command = &request.command;
        // For a checksum the blocks are read as well, if further down.
        let moves = matches!(command.opcode, opcode::READ | opcode::WRITE | opcode::COMPARE)
            || command.wants_checksum();
        let bytes = u64::from(command.block_count()) << self.block_shift;
        let commands = 1 + u64::from(request.fused.is_some());
        match (command.opcode, &request.data) {
            _ if moves => (bytes * commands, commands),
            // A list of ranges is no data.
            (opcode::DATASET_MANAGEMENT, _) => (0, commands),
            (opcode::COPY, Data::Sources(sources)) => {
                ((2 * sources.blocks()) << self.block_shift, commands)
            }
            // Of what nobody here knows, the data is all that is known.
            _ => (request.data.len() as u64, commands),
        }
    }
}

impl Complete for RateQueue {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        self.child.submit(self.held.take(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::{Place, Source, Sources};

    #[test]
    fn a_meter_books_what_passes() {
        let meter = Meter::new(1000);
        let second = 1_000_000_000;
        // One unit costs a millisecond; a pause earns one of them.
        assert_eq!(meter.pass(second, 1), second);
        assert_eq!(meter.pass(second, 1), second + 1_000_000);
        assert_eq!(meter.pass(second, 8), second + 9_000_000);
        assert_eq!(meter.pass(2 * second, 1), 2 * second);
    }

    #[test]
    fn a_copy_counts_for_what_it_reads_and_what_it_writes() {
        let reactor = Reactor::new(&reactor::Config::default()).unwrap();
        let null = crate::null::Null::open(1 << 20, 9, None).unwrap();
        let gate = Gate { start: Instant::now(), bytes: None, commands: None };
        let queue = Rc::new_cyclic(|me| RateQueue {
            me: Weak::clone(me),
            child: null.open_queue(&reactor).unwrap(),
            reactor: Rc::clone(&reactor),
            gate: Arc::new(gate),
            held: Slab::default(),
            block_shift: 9,
        });
        let mut request = Request::new();
        request.command = nvme::copy::command(1, 8, 2, nvme::copy::Format::Short);
        let range = |blocks| Source { place: Place::Same, slba: 0, blocks };
        let sources = Sources { ranges: vec![range(3), range(4)], ..Sources::default() };
        request.data = Data::Sources(Box::new(sources));
        assert_eq!(queue.amount(&request), (2 * 7 * 512, 1));
        // Passed through as its bytes, it counts as any command that nobody knows.
        request.data = Data::None;
        assert_eq!(queue.amount(&request), (0, 1));
    }
}
