//! How much a submission costs: 4 KiB random reads of null and memory volumes in process, on one
//! pinned core, without and with three layers.
//!
//! `cargo run --release -p volume --example submit -- [--json] [--quick]`
//!
//! The front door here does what any does per command: fill in the command, submit, take the
//! completed request back; time is CPU time of the thread. Memory is 256 MiB, written before; `lent` hands out a pointer, as
//! the target sends it, and `copied` fills a pool buffer. A row is the median of its samples.

use namespace::{Data, Queue, Request, Sink};
use nvme::Command;
use nvme::opcode::io as opcode;
use reactor::{Config, Reactor};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use volume::OpenOptions;

const BLOCK_BYTES: usize = 4096;
const SAMPLES: usize = 5;
const DEPTHS: [usize; 3] = [1, 32, 128];
/// Commands between two looks at the clock.
const BATCH: usize = 4096;

/// Name, URI, and whether memory lends.
const VOLUMES: [(&str, &str, bool); 6] = [
    ("null", "null:256M?bs=4096", true),
    ("null through 3 layers", "linear:(delay:0(fault:rate=0(null:256M?bs=4096)))", true),
    ("memory lent", "mem:256M?bs=4096", true),
    ("memory lent through 3 layers", "linear:(delay:0(fault:rate=0(mem:256M?bs=4096)))", true),
    ("memory copied", "mem:256M?bs=4096", false),
    ("memory copied through 3 layers", "linear:(delay:0(fault:rate=0(mem:256M?bs=4096)))", false),
];

struct Front {
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    done: RefCell<Vec<Box<Request>>>,
}

impl Sink for Front {
    #[inline]
    fn completed(&self, request: Box<Request>, _state: u64) {
        self.done.borrow_mut().push(request);
    }
}

struct Row {
    volume: &'static str,
    depth: usize,
    /// Commands a second, ascending.
    samples: Vec<f64>,
}

impl Row {
    fn median(&self) -> f64 {
        self.samples[self.samples.len() / 2]
    }

    fn best(&self) -> f64 {
        self.samples[self.samples.len() - 1]
    }
}

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    let quick = std::env::args().any(|argument| argument == "--quick");
    let time = Duration::from_millis(if quick { 50 } else { 300 });
    reactor::pin(0).expect("core 0 is there");
    let reactor = Reactor::new(&Config::default()).expect("a reactor");
    let mut rows = Vec::new();
    for (name, uri, lend) in VOLUMES {
        let options = OpenOptions { lend, ..OpenOptions::default() };
        let namespace = volume::open(uri, &options).expect(uri);
        let blocks = namespace.limits().blocks;
        let lends = namespace.limits().lends_reads;
        let queue = namespace.open_queue(&reactor).expect("a queue");
        let front = Rc::new(Front { done: RefCell::default() });
        fill(&reactor, &*queue, &front, blocks);
        for depth in DEPTHS {
            let requests = (0..depth).map(|_| prepared(&reactor, lends)).collect();
            let mut run = Run { queue: &*queue, front: &front, requests, blocks, random: 0x9e37 };
            run.sample(time / 4);
            let mut samples: Vec<_> = (0..SAMPLES).map(|_| run.sample(time)).collect();
            samples.sort_by(f64::total_cmp);
            rows.push(Row { volume: name, depth, samples });
        }
    }
    if json { print_json(&rows) } else { print_table(&rows) }
}

/// A request with what a read needs: a buffer unless memory is lent.
fn prepared(reactor: &Reactor, lends: bool) -> Box<Request> {
    let mut request = Request::new();
    if !lends {
        let buffer = reactor.buffers().allocate(BLOCK_BYTES).expect("the pool is large enough");
        request.data = Data::Buffer(buffer);
    }
    request
}

/// Writes every block, so that reads do not all meet the kernel's one page of zeroes.
fn fill(reactor: &Reactor, queue: &dyn Queue, front: &Rc<Front>, blocks: u64) {
    let mut buffer = reactor.buffers().allocate(BLOCK_BYTES).expect("the pool is large enough");
    buffer.as_mut_slice().fill(0x5a);
    let mut request = Request::new();
    request.data = Data::Buffer(buffer);
    for slba in 0..blocks {
        request.command = Command::blocks(opcode::WRITE, 1, slba, 1);
        request.push(Rc::clone(front) as Rc<dyn Sink>, 0);
        queue.submit(request);
        request = front.done.borrow_mut().pop().expect("completed at once");
        assert!(request.status.is_success());
    }
}

struct Run<'a> {
    queue: &'a dyn Queue,
    front: &'a Rc<Front>,
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    requests: Vec<Box<Request>>,
    blocks: u64,
    random: u64,
}

impl Run<'_> {
    /// Commands a second of CPU time, over about `time`.
    fn sample(&mut self, time: Duration) -> f64 {
        let start = cpu_time();
        let mut count = 0;
        loop {
            for _ in 0..(BATCH / self.requests.len()).max(1) {
                count += self.round();
            }
            let taken = cpu_time() - start;
            if taken >= time {
                return count as f64 / taken.as_secs_f64();
            }
        }
    }

    /// Submits as many commands as may be in flight, and takes them back.
    #[inline]
    fn round(&mut self) -> usize {
        for mut request in self.requests.drain(..) {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let slba = ((u128::from(self.random) * u128::from(self.blocks)) >> 64) as u64;
            request.command = Command::blocks(opcode::READ, 1, slba, 1);
            request.push(Rc::clone(self.front) as Rc<dyn Sink>, 0);
            self.queue.submit(request);
        }
        std::mem::swap(&mut self.requests, &mut *self.front.done.borrow_mut());
        for request in &mut self.requests {
            assert!(request.status.is_success());
            if let Data::Lent(bytes) = &request.data {
                assert_eq!(bytes.len(), BLOCK_BYTES);
                request.data = Data::None;
            }
        }
        self.requests.len()
    }
}

/// CPU time of this thread: what others do on this core meanwhile does not count.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "every thread has a clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn print_table(rows: &[Row]) {
    println!(
        "{:<32} {:>4} {:>8} {:>8} {:>8}",
        "4 KiB random reads", "QD", "M/s", "ns each", "best M/s"
    );
    for row in rows {
        let (rate, each) = (row.median() / 1e6, 1e9 / row.median());
        let best = row.best() / 1e6;
        println!("{:<32} {:>4} {rate:>8.2} {each:>8.1} {best:>8.2}", row.volume, row.depth);
    }
}

fn print_json(rows: &[Row]) {
    let row = |row: &Row| {
        let samples: Vec<_> = row.samples.iter().map(|sample| format!("{sample:.0}")).collect();
        let (volume, depth, samples) = (row.volume, row.depth, samples.join(","));
        let median = row.median();
        format!(
            r#"{{"volume":"{volume}","depth":{depth},"per_second":{median:.0},"samples":[{samples}]}}"#
        )
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    println!(r#"{{"scenario":"submit","rows":[{}]}}"#, rows.join(","));
}
