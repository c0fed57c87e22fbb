//! What a target costs that has nothing to do: CPU, memory, and the first I/O after a rest.

use super::plan::{Plan, Volume};
use super::subject::Subject;
use crate::bench::exchange::{Bare, COMMAND_BYTES, Exchange, Shape, Source, Waiting};
use crate::bench::initiator::{Controller, Geometry, Load, Pattern, Queue};
use crate::bench::pipeline::{self, Batch};
use crate::bench::report::{Report, Table, median};
use crate::bench::served::Scratch;
use anyhow::Context;
use serde_json::json;
use std::time::{Duration, Instant};

/// Idle I/O queues.
const QUEUES: usize = 1000;
/// I/O queues asked for per controller.
const QUEUES_PER_CONTROLLER: u16 = 125;
/// Queues that a small installation has.
const FEW: u16 = 8;
/// Entries per queue: Linux's default.
const ENTRIES: u16 = 128;
/// I/Os per queue before memory is looked at, so that what is made on demand is there.
const WARMING: usize = 4;
/// How long to rest before a first I/O.
const REST: Duration = Duration::from_secs(1);

/// Namespaces, beyond the first one, that nobody uses.
const NAMESPACES: usize = 1000;
/// Namespaces before them: what the first few set up is not counted as theirs.
const NAMESPACES_BEFORE: usize = 8;

/// Measures, and adds rows and figures to `report`.
pub fn measure(
    exchange: &Exchange,
    plan: &Plan,
    core: usize,
    scratch: &Scratch,
    report: &mut Report,
) -> anyhow::Result<()> {
    allow_files()?;
    let volume = format!("mem:{}M", plan.memory_bytes >> 20);
    let mut subject = Subject::start(&[volume], core, scratch)?;
    let mut few = Connected::new(&subject, FEW)?;
    let rss_few = resident(&mut subject)?;
    let mut crowd = Vec::new();
    let mut count = 0;
    while count < QUEUES {
        let wanted = (QUEUES - count).min(QUEUES_PER_CONTROLLER.into()) as u16;
        let connected = Connected::new(&subject, wanted)
            .with_context(|| format!("after {count} queues the next could not be connected"))?;
        count += connected.queues.len();
        crowd.push(connected);
    }
    let rss_crowd = resident(&mut subject)?;
    let idle_queue = (rss_crowd.saturating_sub(rss_few)) as f64 / count as f64 / 1024.0;

    let rest = rest(exchange, &mut subject, &mut few, plan.idle_samples)?;
    let extra = median(rest.target_us.iter().copied()) - median(rest.echo_us.iter().copied());
    let (queues, controllers) = (count + few.queues.len(), crowd.len() + 1);
    report.figure("idle_cpu_percent", rest.cpu_percent);
    report.figure("idle_first_io_extra_us", extra);
    report.figure("rss_mib", rss_few as f64 / (1 << 20) as f64);
    report.figure("idle_queue_kib", idle_queue);
    report.rows.push(json!({
        "volume": "memory",
        "operation": "idle",
        "queues": queues,
        "controllers": controllers,
        "seconds": rest.seconds,
        "cpu_percent": rest.cpu_percent,
        "context_switches_per_s": rest.switches_per_s,
        "rss_bytes_few_queues": rss_few,
        "rss_bytes_all_queues": rss_crowd,
        "beside": "blocking echo of the same byte counts, equally long asleep",
        "samples": { "first_io_us": rest.target_us, "first_echo_us": rest.echo_us,
            "first_reactor_echo_us": rest.reactor_us },
    }));
    drop((crowd, few, subject));
    namespaces(core, scratch, report)?;
    report.tables.push(Table {
        title: format!("idle, {} queues of {} controllers", queues, controllers),
        columns: vec![
            "",
            "cpu %",
            "switches/s",
            "first I/O us",
            "first echo us",
            "on reactor us",
            "rss MiB",
            "KiB per queue",
        ],
        rows: vec![vec![
            "nvlane".into(),
            format!("{:.3}", rest.cpu_percent),
            format!("{:.1}", rest.switches_per_s),
            format!("{:.1}", median(rest.target_us)),
            format!("{:.1}", median(rest.echo_us)),
            format!("{:.1}", median(rest.reactor_us)),
            format!("{:.1}", rss_few as f64 / (1 << 20) as f64),
            format!("{idle_queue:.1}"),
        ]],
    });
    Ok(())
}

/// What a further namespace takes that nobody uses: two servers, one with a few namespaces and one
/// with many more.
fn namespaces(core: usize, scratch: &Scratch, report: &mut Report) -> anyhow::Result<()> {
    let resident_with = |count: usize| {
        let volumes = vec!["null:1M".to_owned(); count];
        let mut subject = Subject::start(&volumes, core, scratch)?;
        // Every one of them is there.
        let mut controller = Controller::connect(&subject.peer, 1)?;
        controller.geometry(count as u32)?;
        resident(&mut subject)
    };
    let few = resident_with(NAMESPACES_BEFORE)?;
    let many = resident_with(NAMESPACES_BEFORE + NAMESPACES)?;
    let each = many.saturating_sub(few) as f64 / NAMESPACES as f64 / 1024.0;
    report.figure("idle_namespace_kib", each);
    report.rows.push(json!({
        "volume": "null",
        "operation": "idle",
        "namespaces": NAMESPACES_BEFORE + NAMESPACES,
        "beside": format!("the same server with {NAMESPACES_BEFORE} namespaces"),
        "samples": { "rss_bytes_few_namespaces": few, "rss_bytes_all_namespaces": many },
    }));
    Ok(())
}

/// A controller with its queues, each used a little.
struct Connected {
    _controller: Controller,
    queues: Vec<Queue>,
    geometry: Geometry,
}

impl Connected {
    fn new(subject: &Subject, wanted: u16) -> anyhow::Result<Connected> {
        let mut controller = Controller::connect(&subject.peer, wanted)?;
        let geometry = controller.geometry(Volume::Memory.nsid())?;
        let count = controller.queues;
        let mut queues = (1..=count)
            .map(|qid| controller.queue(qid, ENTRIES))
            .collect::<anyhow::Result<Vec<Queue>>>()?;
        for queue in &mut queues {
            for _ in 0..WARMING {
                first_io(queue, geometry)?;
            }
        }
        Ok(Connected { _controller: controller, queues, geometry })
    }
}

/// What resting showed.
struct Rest {
    seconds: f64,
    cpu_percent: f64,
    switches_per_s: f64,
    target_us: Vec<f64>,
    echo_us: Vec<f64>,
    /// The echo as a poller of the reactor: what waking costs without NVMe.
    reactor_us: Vec<f64>,
}

/// Rests, and now and then asks the target or the echo for one block. Two I/Os in that time do not
/// show in the CPU time of all of it.
fn rest(
    exchange: &Exchange,
    subject: &mut Subject,
    few: &mut Connected,
    samples: usize,
) -> anyhow::Result<Rest> {
    let shape = Shape { request_data: 0, answer_data: 4096, source: Source::Hot };
    let (socket, echo) = exchange.connect(shape, Waiting::Blocking)?;
    let (reactor_socket, reactor_echo) = exchange.connect(shape, Waiting::Reactor)?;
    let mut batch = Batch::new(2 * COMMAND_BYTES, Vec::new());
    let (mut bare, mut on_reactor) = (Bare::new(shape, 1), Bare::new(shape, 1));
    let (mut target_us, mut echo_us, mut reactor_us) = (Vec::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    let before = subject.usage()?;
    for _ in 0..samples {
        std::thread::sleep(REST);
        let taken = first_io(&mut few.queues[0], few.geometry)?;
        target_us.push(taken.as_secs_f64() * 1e6);
        std::thread::sleep(REST);
        let taken = pipeline::once(&socket, &mut bare, &mut batch)?;
        echo_us.push(taken.as_secs_f64() * 1e6);
        std::thread::sleep(REST);
        let taken = pipeline::once(&reactor_socket, &mut on_reactor, &mut batch)?;
        reactor_us.push(taken.as_secs_f64() * 1e6);
    }
    let used = subject.usage()?.since(before);
    let seconds = start.elapsed().as_secs_f64();
    drop((socket, reactor_socket));
    reactor_echo.thread.join().expect("the bare server does not panic")?;
    echo.thread.join().expect("the bare server does not panic")?;
    Ok(Rest {
        seconds,
        cpu_percent: used.cpu.as_secs_f64() / seconds * 100.0,
        switches_per_s: used.switches as f64 / seconds,
        target_us,
        echo_us,
        reactor_us,
    })
}

/// One 4 KiB read on an otherwise idle queue.
fn first_io(queue: &mut Queue, geometry: Geometry) -> anyhow::Result<Duration> {
    let socket = queue.socket.try_clone()?;
    let nsid = Volume::Memory.nsid();
    let mut load = Load::new(queue, nsid, geometry, Pattern::RandomRead, 4096, 5);
    let mut batch = load.batch(1, 0);
    Ok(pipeline::once(&socket, &mut load, &mut batch)?)
}

fn resident(subject: &mut Subject) -> anyhow::Result<u64> {
    // What connecting has set in motion comes to rest.
    std::thread::sleep(Duration::from_millis(200));
    let observed = subject.observed().context("the server's process is not known")?;
    Ok(observed.resident_bytes()?)
}

/// Raises the number of open files to what may be had: every queue is a socket.
fn allow_files() -> anyhow::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is complete; lowering nothing, this has no effect on memory.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    let needed = (QUEUES + 100) as u64;
    anyhow::ensure!(
        limit.rlim_max >= needed,
        "{needed} open files are needed, the hard limit is {} (ulimit -Hn)",
        limit.rlim_max
    );
    Ok(())
}
