//! Scenario `namespace`: volumes without a network, on one core, through the `Namespace` contract.
//!
//! ```text
//!   pool of requests --submit--> [linear -> linear -> linear ->] null | memory
//!        ^----------completed (same call)-----------'
//! ```
//!
//! Rates are per second of CPU time, so that other work on the core does not count.
//! Beside them, a bare copy of random 4 KiB blocks, and zeroes written over as many buffers: what reading memory, or a
//! null volume, into a buffer cannot be faster than. What is lent writes nothing.

use super::exchange::Region;
use super::report::{Bars, Report, Table, median};
use super::{Options, Scenario, cores, heed, random::Random, usage};
use anyhow::{Context, ensure};
use namespace::layer::linear::Linear;
use namespace::memory::{Memory, MemoryOptions};
use namespace::null::Null;
use namespace::{Data, Namespace, Queue, Request, Sink};
use nvme::{Command, opcode};
use reactor::{Config, Reactor};
use serde_json::json;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of each volume, and of the memory that is copied from.
pub(super) const BYTES: u64 = 256 << 20;
/// The same where only the report's form matters.
const TINY_BYTES: u64 = 4 << 20;
/// Bytes per read, and of a logical block.
const BLOCK_BYTES: u64 = 4096;
/// Requests in flight.
const DEPTH: usize = 32;
/// Submissions between two looks at the clock, in rounds of `DEPTH`.
const ROUNDS_PER_LOOK: usize = 64;
/// Layers put above the null volume.
const LAYERS: usize = 3;

/// Volumes that are compared with what is done without any.
struct Kind {
    bare: Bare,
    /// The name of that, and of a volume's share of it.
    beside: &'static str,
    share: &'static str,
    /// Their names, and whether they lend what is read.
    volumes: &'static [(&'static str, bool)],
}

const KINDS: [Kind; 2] = [
    Kind {
        bare: Bare::Copy,
        beside: "bare_copy",
        share: "of_copy",
        volumes: &[("memory", false), ("memory_lent", true)],
    },
    Kind {
        bare: Bare::Zeroes,
        beside: "bare_zeroes",
        share: "of_zeroes",
        volumes: &[
            ("null", false),
            ("null_three_layers", false),
            ("null_lent", true),
            ("null_lent_three_layers", true),
        ],
    },
];

/// The scenario.
pub struct InProcess;

impl Scenario for InProcess {
    fn name(&self) -> &'static str {
        "namespace"
    }

    fn about(&self) -> &'static str {
        "null and memory volumes in process, on one core, beside a bare copy and bare zeroes"
    }

    fn run(&self, options: &Options) -> anyhow::Result<Report> {
        cores::pin(options.server_core).context("the core cannot be used; see --server-core")?;
        let (window, windows, bytes) = match (options.tiny, options.quick) {
            (true, _) => (2, 2, TINY_BYTES),
            (false, true) => (80, 5, BYTES),
            (false, false) => (400, 11, BYTES),
        };
        let window = Duration::from_millis(window);
        let reactor = Reactor::new(&Config::default())?;
        let mut report = Report::new(self.name());
        let (rows, bars) = (Vec::new(), Vec::new());
        let mut bench = Bench { report: &mut report, rows, bars };
        for Kind { bare, beside, share, volumes } in KINDS {
            let mut wanted = volumes.iter().filter(|(name, _)| options.wants(name)).peekable();
            // What is compared with it is measured with it.
            if !options.wants(beside) && wanted.peek().is_none() {
                continue;
            }
            let buffers = Buffers::new(bytes, bare)?;
            let rates = (0..windows).map(|seed| buffers.window(window, seed));
            let rate = bench.add(beside, beside, rates.collect::<Result<_, _>>()?);
            for (name, lent) in wanted {
                heed()?;
                let load = Load::new(&reactor, volume(name, bytes)?, bytes, *lent)?;
                let rates = (0..windows).map(|seed| load.window(window, seed));
                let of = bench.add(name, beside, rates.collect::<Result<_, _>>()?) / rate;
                // Who lends does none of it.
                if !lent {
                    bench.compare(name, share, of);
                }
            }
        }
        let Bench { rows, bars, .. } = bench;
        report.tables.push(Table {
            title: format!("4 KiB random reads in process, {DEPTH} in flight"),
            columns: vec!["volume", "M reads/s", "ns per read", "slowest window", "fastest"],
            rows,
        });
        report
            .bars
            .push(Bars { title: "rate, the bare copy and the bare zeroes are 1".into(), bars });
        Ok(report)
    }
}

struct Bench<'a> {
    report: &'a mut Report,
    rows: Vec<Vec<String>>,
    bars: Vec<(String, f64, String)>,
}

impl Bench<'_> {
    /// A row, measured in the same run as the one `beside` it: its rate.
    fn add(&mut self, name: &str, beside: &str, rates: Vec<f64>) -> f64 {
        let rate = median(rates.iter().copied());
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let fastest = rates.iter().copied().fold(0.0, f64::max);
        self.report.figure(format!("{name}_read_miops"), rate / 1e6);
        self.rows.push(vec![
            name.to_owned(),
            format!("{:.2}", rate / 1e6),
            format!("{:.1}", 1e9 / rate),
            format!("{:.2}", slowest / 1e6),
            format!("{:.2}", fastest / 1e6),
        ]);
        self.report.rows.push(json!({
            "volume": name,
            "operation": "randread",
            "block_bytes": BLOCK_BYTES,
            "queue_depth": DEPTH,
            "iops": rate,
            "beside": beside,
            "samples": rates,
        }));
        rate
    }

    /// What share of the bare rate the volume has.
    fn compare(&mut self, name: &str, share: &str, of: f64) {
        self.report.figure(format!("{name}_read_{share}"), of);
        self.bars.push((name.to_owned(), of, format!("{of:.2}")));
    }
}

/// The volume of that name.
fn volume(name: &str, bytes: u64) -> anyhow::Result<Arc<dyn Namespace>> {
    if name.starts_with("memory") {
        let options = MemoryOptions { bytes, block_shift: 12, cores: 1, lend: true, uuid: None };
        return Ok(Memory::open(options)?);
    }
    let layers = if name.ends_with("three_layers") { LAYERS } else { 0 };
    let null: Arc<dyn Namespace> = Null::open(bytes, 12, None)?;
    (0..layers).try_fold(null, |below, _| Ok(Linear::new(vec![below])? as Arc<dyn Namespace>))
}

/// Takes completed requests back.
struct Pool {
    idle: RefCell<VecDeque<Box<Request>>>,
}

impl Sink for Pool {
    fn completed(&self, request: Box<Request>, _state: u64) {
        self.idle.borrow_mut().push_back(request);
    }
}

/// A queue and its requests.
pub(super) struct Load {
    queue: Rc<dyn Queue>,
    pool: Rc<Pool>,
    blocks: u64,
    lent: bool,
}

impl Load {
    /// Opens a queue of a volume of so many `bytes` and writes every block, so that reads meet memory and not the zero page.
    pub(super) fn new(
        reactor: &Rc<Reactor>,
        namespace: Arc<dyn Namespace>,
        bytes: u64,
        lent: bool,
    ) -> anyhow::Result<Load> {
        let queue = namespace.open_queue(reactor)?;
        let pool = Rc::new(Pool { idle: RefCell::new(VecDeque::with_capacity(DEPTH)) });
        for _ in 0..DEPTH {
            let mut request = Request::new();
            let buffer = reactor.buffers().allocate(BLOCK_BYTES as usize);
            request.data = Data::Buffer(buffer.context("the buffer pool is too small")?);
            pool.idle.borrow_mut().push_back(request);
        }
        let mut load = Load { queue, pool, blocks: bytes / BLOCK_BYTES, lent };
        for block in 0..load.blocks {
            load.submit(Command::blocks(opcode::io::WRITE, 1, block, 1), false)?;
        }
        load.lent = lent;
        Ok(load)
    }

    /// Reads per second of CPU time over one window.
    pub(super) fn window(&self, time: Duration, seed: u64) -> anyhow::Result<f64> {
        let mut random = Random::new(seed);
        let mut reads = 0u64;
        let (start, before) = (Instant::now(), usage::of_this_thread()?);
        // Once at least: a busy machine may let all of the time pass before the first.
        while reads == 0 || start.elapsed() < time {
            for _ in 0..ROUNDS_PER_LOOK * DEPTH {
                let block = random.below(self.blocks);
                self.submit(Command::blocks(opcode::io::READ, 1, block, 1), self.lent)?;
                reads += 1;
            }
        }
        Ok(reads as f64 / usage::of_this_thread()?.since(before).cpu.as_secs_f64())
    }

    /// One command. The request that has rested longest is used, so all buffers take part.
    #[inline]
    fn submit(&self, command: Command, lent: bool) -> anyhow::Result<()> {
        let request = self.pool.idle.borrow_mut().pop_front();
        let mut request = request.context("a volume did not complete within the call")?;
        request.command = command;
        if lent {
            request.data = Data::None;
        }
        request.push(Rc::clone(&self.pool) as Rc<dyn Sink>, 0);
        self.queue.submit(request);
        if let Some(request) = self.pool.idle.borrow().back() {
            ensure!(request.status.is_success(), "a read failed: {}", request.status);
        }
        Ok(())
    }
}

/// What a read's data takes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bare {
    /// Random blocks are copied.
    Copy,
    /// Zeroes are written.
    Zeroes,
}

/// Fills as many buffers as there are requests, in turn, and does nothing else.
struct Buffers {
    source: Region,
    blocks: u64,
    bare: Bare,
}

impl Buffers {
    fn new(bytes: u64, bare: Bare) -> anyhow::Result<Buffers> {
        // Zeroes come from nowhere.
        let bytes = if bare == Bare::Copy { bytes } else { BLOCK_BYTES };
        Ok(Buffers { source: Region::new(bytes as usize)?, blocks: bytes / BLOCK_BYTES, bare })
    }

    fn window(&self, time: Duration, seed: u64) -> anyhow::Result<f64> {
        let mut random = Random::new(seed);
        let mut target = vec![0; DEPTH * BLOCK_BYTES as usize];
        let mut filled = 0u64;
        let (start, before) = (Instant::now(), usage::of_this_thread()?);
        while filled == 0 || start.elapsed() < time {
            for _ in 0..ROUNDS_PER_LOOK {
                for target in target.chunks_exact_mut(BLOCK_BYTES as usize) {
                    match self.bare {
                        Bare::Copy => {
                            let from = (random.below(self.blocks) * BLOCK_BYTES) as usize;
                            target.copy_from_slice(self.source.slice(from, BLOCK_BYTES as usize));
                        }
                        Bare::Zeroes => target.fill(0),
                    }
                    std::hint::black_box(&target);
                    filled += 1;
                }
            }
        }
        Ok(filled as f64 / usage::of_this_thread()?.since(before).cpu.as_secs_f64())
    }
}
