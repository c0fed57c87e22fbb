//! `rate:`: lets so many bytes or commands pass a second, over all cores.

use crate::human::{format_bytes, format_count, parse_bytes, parse_count};
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

impl Rates {
    /// Changes the setting `name`. An error of kind `Unsupported` says that there is no such setting, one of kind
    /// `InvalidInput` what its value can be.
    pub fn set(&mut self, name: &str, value: &str) -> io::Result<()> {
        let (bytes, commands) = (&mut self.bytes, &mut self.commands);
        let (rate, other, wanted, expected) = match name {
            "rate.bytes" => (bytes, commands, parse_bytes(value), "bytes a second like 100M"),
            "rate.iops" => (commands, bytes, parse_count(value), "commands a second like 10K"),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        let wrong = |what: &str| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{name}={value}: {what}"))
        };
        *rate = match wanted {
            None if value == NONE && other.is_none() => {
                return Err(wrong("there is no other limit: give a large one"));
            }
            None if value == NONE => None,
            Some(wanted) if wanted > 0 => Some(wanted),
            _ => return Err(wrong(&format!("is not {expected}, or {NONE}"))),
        };
        Ok(())
    }
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

/// Value of a setting that lifts a limit.
const NONE: &str = "none";

/// A namespace behind a narrow gate. Settings: `rate.bytes` (`100M`) and `rate.iops` (`10K`); `none` lifts one of two.
#[derive(Debug)]
pub struct Rate {
    child: Arc<dyn Namespace>,
    gate: Arc<Gate>,
}

impl Rate {
    /// Lets `rates` through to `child`.
    ///
    /// # Panics
    /// If a rate is zero; `volume` refuses that.
    pub fn new(child: Arc<dyn Namespace>, rates: Rates) -> Arc<Rate> {
        assert!(rates.bytes != Some(0) && rates.commands != Some(0));
        Arc::new(Rate { child, gate: Arc::new(Gate::new(rates)) })
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
    pass_to_child!(numa_node each_program allocation copies_on_threads last_guard destination);
    pass_to_child!(volatile_epoch access writes_back write_off gives_checksums);
    pass_to_child!(retry_delays lost snapshot nsid);

    fn uri(&self) -> String {
        format!("rate:{}({})", self.gate.rates(), self.child.uri())
    }

    /// Takes its own settings. Commands that wait keep their time; what comes later goes by the new rate.
    fn tune(&self, name: &str, value: &str) -> io::Result<()> {
        let Gate { bytes, commands, .. } = &*self.gate;
        let mut rates = self.gate.rates();
        match rates.set(name, value) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return self.child.tune(name, value);
            }
            Err(error) => return Err(error),
        }
        for (meter, rate, before) in
            [(bytes, rates.bytes, bytes.rate()), (commands, rates.commands, commands.rate())]
        {
            if rate != before {
                meter.set(self.gate.now(), rate.unwrap_or(0));
            }
        }
        Ok(())
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        facts.push(("rate".into(), format!("{} a second", self.gate.rates())));
        self.child.describe(facts);
    }
}

/// Both meters, shared by all cores.
#[derive(Debug)]
struct Gate {
    start: Instant,
    bytes: Meter,
    commands: Meter,
}

/// One rate: the time, in nanoseconds since the start, at which what has passed so far will have
/// been paid for.
#[derive(Debug)]
struct Meter {
    /// 0: everything passes.
    per_second: AtomicU64,
    paid: AtomicU64,
}

impl Gate {
    fn new(rates: Rates) -> Gate {
        Gate {
            start: Instant::now(),
            bytes: Meter::new(rates.bytes.unwrap_or(0)),
            commands: Meter::new(rates.commands.unwrap_or(0)),
        }
    }

    fn rates(&self) -> Rates {
        Rates { bytes: self.bytes.rate(), commands: self.commands.rate() }
    }

    #[inline]
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// When a command may pass; none if now.
    #[inline]
    fn pass(&self, bytes: u64, commands: u64) -> Option<Instant> {
        let now = self.now();
        let at = self.bytes.pass(now, bytes).max(self.commands.pass(now, commands));
        (at > now).then(|| self.start + Duration::from_nanos(at))
    }
}

impl Meter {
    fn new(per_second: u64) -> Meter {
        Meter { per_second: AtomicU64::new(per_second), paid: AtomicU64::new(0) }
    }

    fn rate(&self) -> Option<u64> {
        Some(self.per_second.load(Ordering::Relaxed)).filter(|&rate| rate > 0)
    }

    /// Another rate from time `now` on; what is not paid for yet is paid for at that rate.
    fn set(&self, now: u64, per_second: u64) {
        let (order, relaxed) = (Ordering::Relaxed, Ordering::Relaxed);
        let before = self.per_second.swap(per_second, order);
        let rebook = |paid: u64| {
            let debt = u128::from(paid.saturating_sub(now)) * u128::from(before);
            let debt = debt.checked_div(u128::from(per_second)).unwrap_or(0);
            Some(paid.min(now).saturating_add(u64::try_from(debt).unwrap_or(u64::MAX)))
        };
        self.paid.fetch_update(order, relaxed, rebook).expect("always booked");
    }

    /// Books `amount` at time `now`; returns when it may pass.
    #[inline]
    fn pass(&self, now: u64, amount: u64) -> u64 {
        let Some(rate) = self.rate() else { return 0 };
        let cost = u128::from(amount) * 1_000_000_000 / u128::from(rate);
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
    fn what_is_not_paid_for_is_paid_for_at_the_new_rate() {
        let meter = Meter::new(1000);
        let second = 1_000_000_000;
        assert_eq!(meter.pass(second, 1001), 2 * second);
        // A second of debt is a tenth of one at ten times the rate.
        meter.set(second, 10_000);
        assert_eq!(meter.pass(second, 10), second + second / 10 + 1_000_000);
        meter.set(second, 0);
        assert_eq!(meter.pass(second, 1 << 40), 0);
        // Nothing is owed of what passed without a limit.
        meter.set(2 * second, 1000);
        assert_eq!(meter.pass(2 * second, 1), 2 * second);
    }

    #[test]
    fn limits_are_changed_in_use_and_told() {
        let null = crate::null::Null::open(1 << 20, 9, None).unwrap();
        let below = Rate::new(null, Rates { bytes: Some(1 << 20), commands: None });
        let uri = |rate: &Rate| rate.uri().split('(').next().unwrap().to_owned();
        below.tune("rate.bytes", "2M").unwrap();
        assert_eq!(uri(&below), "rate:2M");
        assert!(below.tune("rate.bytes", "none").is_err(), "no limit would be left");
        below.tune("rate.iops", "10K").unwrap();
        assert_eq!(uri(&below), "rate:bytes=2M,iops=10K");
        below.tune("rate.bytes", "none").unwrap();
        assert_eq!(uri(&below), "rate:iops=10K");
        for (name, value) in [("rate.iops", "0"), ("rate.iops", "many"), ("rate.bytes", "-1")] {
            let error = below.tune(name, value).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
        // The layer above takes what both have, and passes on what it has not.
        let above = Rate::new(below.clone(), Rates { bytes: Some(512), commands: None });
        above.tune("rate.bytes", "4M").unwrap();
        assert_eq!((uri(&above), uri(&below)), ("rate:4M".into(), "rate:iops=10K".into()));
        let error = above.tune("policy", "numa").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn a_copy_counts_for_what_it_reads_and_what_it_writes() {
        let reactor = Reactor::new(&reactor::Config::default()).unwrap();
        let null = crate::null::Null::open(1 << 20, 9, None).unwrap();
        let gate = Gate::new(Rates::default());
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
        let range = |blocks| Source { place: Place::Same, slba: 0, blocks, fast_only: false };
        let sources = Sources { ranges: vec![range(3), range(4)], ..Sources::default() };
        request.data = Data::Sources(Box::new(sources));
        assert_eq!(queue.amount(&request), (2 * 7 * 512, 1));
        // Passed through as its bytes, it counts as any command that nobody knows.
        request.data = Data::None;
        assert_eq!(queue.amount(&request), (0, 1));
    }
}
