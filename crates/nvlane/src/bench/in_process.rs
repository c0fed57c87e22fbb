//! Scenario `namespace`: volumes without a network, on one core, through the `Namespace` contract.
//!
//! ```text
//!   pool of requests --submit--> [linear -> linear -> linear ->] null | memory
//!        ^----------completed (same call)-----------'
//! ```
//!
//! Rates are per second of CPU time, so that other work on the core does not count.
//! Beside them, a bare copy of random 4 KiB blocks: what reading memory cannot be faster than.

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

/// The volume whose reads are a copy each.
const COPIED: &str = "memory";

/// The scenario.
pub struct InProcess;

impl Scenario for InProcess {
    fn name(&self) -> &'static str {
        "namespace"
    }

    fn about(&self) -> &'static str {
        "null and memory volumes in process, on one core, beside a bare copy"
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
        let null = || Null::open(bytes, 12, None);
        let stack = (0..LAYERS).try_fold(null()? as Arc<dyn Namespace>, |below, _| {
            Linear::new(vec![below]).map(|layer| layer as Arc<dyn Namespace>)
        })?;
        let cases: [(&str, Arc<dyn Namespace>, bool); 4] = [
            ("null", null()?, false),
            ("null_three_layers", stack, false),
            (COPIED, memory(bytes)?, false),
            ("memory_lent", memory(bytes)?, true),
        ];
        let mut report = Report::new(self.name());
        let (rows, bars, beside) = (Vec::new(), Vec::new(), None);
        let mut bench = Bench { report: &mut report, rows, bars, beside };
        let mut limit = None;
        // What it is compared with is measured with it.
        if options.wants("bare_copy") || options.wants(COPIED) {
            bench.beside = Some("bare_copy");
            let copy = Copy::new(bytes)?;
            let copies =
                (0..windows).map(|seed| copy.window(window, seed)).collect::<Result<_, _>>()?;
            limit = Some(bench.add("bare_copy", copies, None));
        }
        for (name, namespace, lent) in cases {
            if !options.wants(name) {
                continue;
            }
            heed()?;
            let load = Load::new(&reactor, namespace, bytes, lent)?;
            let rates =
                (0..windows).map(|seed| load.window(window, seed)).collect::<Result<_, _>>()?;
            bench.add(name, rates, limit.filter(|_| name == COPIED));
        }
        let Bench { rows, bars, .. } = bench;
        report.tables.push(Table {
            title: format!("4 KiB random reads in process, {DEPTH} in flight"),
            columns: vec!["volume", "M reads/s", "ns per read", "slowest window", "fastest"],
            rows,
        });
        report.bars.push(Bars { title: "rate, the bare copy is 1".into(), bars });
        Ok(report)
    }
}

struct Bench<'a> {
    report: &'a mut Report,
    rows: Vec<Vec<String>>,
    bars: Vec<(String, f64, String)>,
    /// What was measured in the same run.
    beside: Option<&'static str>,
}

impl Bench<'_> {
    fn add(&mut self, name: &str, rates: Vec<f64>, limit: Option<f64>) -> f64 {
        let rate = median(rates.iter().copied());
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let fastest = rates.iter().copied().fold(0.0, f64::max);
        self.report.figure(format!("{name}_read_miops"), rate / 1e6);
        if let Some(limit) = limit {
            self.report.figure(format!("{name}_read_of_copy"), rate / limit);
            self.bars.push((name.to_owned(), rate / limit, format!("{:.2} M/s", rate / 1e6)));
        }
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
            "beside": self.beside,
            "samples": rates,
        }));
        rate
    }
}

fn memory(bytes: u64) -> anyhow::Result<Arc<dyn Namespace>> {
    let options = MemoryOptions { bytes, block_shift: 12, cores: 1, lend: true, uuid: None };
    Ok(Memory::open(options)?)
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

/// Copies random blocks, and nothing else.
struct Copy {
    source: Region,
    bytes: u64,
}

impl Copy {
    fn new(bytes: u64) -> anyhow::Result<Copy> {
        Ok(Copy { source: Region::new(bytes as usize)?, bytes })
    }

    fn window(&self, time: Duration, seed: u64) -> anyhow::Result<f64> {
        let mut random = Random::new(seed);
        let mut target = vec![0; DEPTH * BLOCK_BYTES as usize];
        let mut copies = 0u64;
        let (start, before) = (Instant::now(), usage::of_this_thread()?);
        while copies == 0 || start.elapsed() < time {
            for _ in 0..ROUNDS_PER_LOOK {
                for target in target.chunks_exact_mut(BLOCK_BYTES as usize) {
                    let from = (random.below(self.bytes / BLOCK_BYTES) * BLOCK_BYTES) as usize;
                    target.copy_from_slice(self.source.slice(from, BLOCK_BYTES as usize));
                    std::hint::black_box(&target);
                    copies += 1;
                }
            }
        }
        Ok(copies as f64 / usage::of_this_thread()?.since(before).cpu.as_secs_f64())
    }
}
