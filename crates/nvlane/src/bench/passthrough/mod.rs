//! Scenario `passthrough`: NVMe commands on a ring, beside the block path, synchronous passthrough and fio.
//!
//! ```text
//!   sync     ioctl(NVME_IOCTL_IO64_CMD), one thread, and one thread per command in flight
//!   block    io_uring reads of the block device                      (fixed buffers, registered file)
//!   command  io_uring commands to the character device, step by step (plain, + fixed, + file, + polls)
//!   library  `volume::session`: what users of the library get        (fixed buffers, registered file)
//!   fio      its engine io_uring_cmd                                  (the same options, and it submits as many at once as have ended)
//! ```
//!
//! Random reads of 4 KiB, depth 1 to 128, from one thread. Without `--device`, nvme-loop over null_blk is set
//! up here, once as it is and once with commands that take 200 us. Machines whose kernel has none of it, or
//! users who are not root, get an exact guest (`guest`), where CPU time is the number of instructions.

mod device;
mod fio;
mod lane;
mod library;
mod stage;
mod sync;

use super::report::{Bars, Report, Table, median};
use super::{Options, Scenario, cores, guest, heed};
use anyhow::Context;
use device::Device;
use hdrhistogram::Histogram;
use lane::{Lane, Steps, Submitted};
use serde::Serialize;
use serde_json::json;
use stage::Stage;
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes per command.
const BYTES: u32 = 4096;
const DEPTHS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Depths of commands that take their time, in a quick run of everything.
const DEPTHS_QUICK: [usize; 3] = [1, 8, STEPS_AT];
/// The depth at which a quick run shows every step, and that of `async_over_sync_qd64`.
const STEPS_AT: usize = 64;

/// The set-up whose commands take 200 us.
const SLOW: &str = "loop_200us";

/// The lane of block reads that others are compared with.
const BLOCK: &str = "block_fixed_file";

/// What one window of one lane showed.
pub struct Window {
    /// Commands answered.
    pub ios: u64,
    /// Its length.
    pub seconds: f64,
    /// CPU time of the threads that submit, the kernel's included.
    pub cpu: Duration,
    /// Nanoseconds from submission to completion.
    pub latency: Histogram<u32>,
    /// CPU time of submitting, of entering the kernel and of taking completions, where it was told apart.
    pub stages: Option<[Duration; 3]>,
}

/// A window in numbers.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    kiops: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
    /// Microseconds per command.
    stages_us: Option<[f64; 3]>,
}

impl Sample {
    fn of(window: &Window) -> Sample {
        let quantile = |share| window.latency.value_at_quantile(share) as f64 / 1e3;
        let per_io = |time: Duration| time.as_secs_f64() * 1e6 / window.ios.max(1) as f64;
        Sample {
            kiops: window.ios as f64 / window.seconds / 1e3,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            cpu_us: per_io(window.cpu),
            stages_us: window.stages.map(|stages| stages.map(per_io)),
        }
    }
}

/// How much is run.
struct Plan {
    warm: Duration,
    measure: Duration,
    /// Rounds of all lanes at a depth; ratios are those within a round.
    rounds: usize,
    /// Every step at every depth.
    all: bool,
    /// Of everything so little that it ends in time.
    hasty: bool,
}

impl Plan {
    fn new(options: &Options) -> Plan {
        let (warm, measure) = match (options.tiny, options.quick) {
            (true, _) => (5, 25),
            (false, true) => (50, 250),
            (false, false) => (200, 1000),
        };
        let window = |ms| guest::window(Duration::from_millis(ms));
        let rounds = match (options.quick, guest::is_inside()) {
            (true, _) => 1,
            // They hardly differ in there.
            (false, true) => 2,
            (false, false) => 5,
        };
        let (all, hasty) = (!options.quick, options.quick && options.only.is_empty());
        Plan { warm: window(warm), measure: window(measure), rounds, all, hasty }
    }
}

/// The scenario.
pub struct Passthrough;

impl Scenario for Passthrough {
    fn name(&self) -> &'static str {
        "passthrough"
    }

    fn about(&self) -> &'static str {
        "NVMe commands on a ring, beside block reads, ioctl and fio; on --device or nvme-loop, in a guest where there is none"
    }

    fn run(&self, options: &Options) -> anyhow::Result<Report> {
        if options.device.is_none()
            && let Err(why) = stage::is_possible()
        {
            return Err(guest::run(self.name(), &why, &[], options));
        }
        cores::pin(options.client_core)?;
        cores::prefer();
        let plan = Plan::new(options);
        let mut report = Report::new(self.name());
        report.machine.peers.insert("fio".into(), fio::version());
        if let Some(path) = &options.device {
            let device = Device::open(path)?;
            run_on("device", &device, &plan, options, &mut report)?;
            return Ok(report);
        }
        for (name, delay) in [("loop", Duration::ZERO), (SLOW, Duration::from_micros(200))] {
            let stage = Stage::new(delay)
                .context("nvme-loop over null_blk cannot be set up; give --device /dev/ngXnY")?;
            let device = Device::open(&stage.device()?)?;
            run_on(name, &device, &plan, options, &mut report)?;
        }
        Ok(report)
    }
}

/// Samples by lane and depth.
type Samples = BTreeMap<(String, usize), Vec<Sample>>;

fn run_on(
    name: &str,
    device: &Device,
    plan: &Plan,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut samples = Samples::new();
    let takes_time = name == SLOW;
    let depths: &[usize] = if plan.hasty && takes_time { &DEPTHS_QUICK } else { &DEPTHS };
    for &depth in depths {
        let mut lanes = lanes(device, plan, depth, options)?;
        lanes.retain(|lane| options.wants(&format!("{name}_{}_qd{depth}", lane.name())));
        for round in 0..plan.rounds {
            let rounds = plan.rounds;
            options
                .begin(format_args!("{name}, depth {depth}, round {} of {rounds}", round + 1))?;
            for lane in &mut lanes {
                heed()?;
                let window = lane.run(depth, plan.warm, plan.measure);
                let window = window.with_context(|| format!("{name}, {}", lane.name()))?;
                samples.entry((lane.name(), depth)).or_default().push(Sample::of(&window));
            }
        }
    }
    show(name, device, &samples, report);
    Ok(())
}

/// What runs at `depth`: in a quick run all steps at one depth only, and of them the last, which is the most that a library could
/// make of commands, at every depth if it was asked for by name.
fn lanes<'a>(
    device: &'a Device,
    plan: &Plan,
    depth: usize,
    options: &Options,
) -> anyhow::Result<Vec<Box<dyn Runs + 'a>>> {
    let mut lanes: Vec<Box<dyn Runs>> = Vec::new();
    let fixed = Steps { fixed: true, file: true, ..Steps::default() };
    lanes.push(Box::new(library::Library::new(device, false)?));
    lanes.push(Box::new(Lane::new(device, Steps { block: true, ..fixed })?));
    if !plan.hasty || depth == STEPS_AT {
        lanes.push(Box::new(Lane::new(device, fixed)?));
    }
    if fio::is_there() {
        lanes.push(Box::new(fio::Fio::new(device, fixed, options.client_core)));
    }
    if !plan.all && depth != STEPS_AT {
        return Ok(lanes);
    }
    if plan.all && fio::is_there() {
        lanes.push(Box::new(fio::Fio::new(device, fixed, options.client_core).by_ones()));
    }
    lanes.push(Box::new(sync::Sync::new(device, false)));
    lanes.push(Box::new(sync::Sync::new(device, true)));
    lanes.push(Box::new(Lane::new(device, Steps { block: true, ..Steps::default() })?));
    let mut steps = vec![
        Steps::default(),
        Steps { fixed: true, ..Steps::default() },
        Steps { sqpoll: true, ..fixed },
    ];
    if device.polls {
        steps.push(Steps { iopoll: true, ..fixed });
        steps.push(Steps { iopoll: true, sqpoll: true, ..fixed });
        lanes.push(Box::new(library::Library::new(device, true)?));
        lanes.push(Box::new(Lane::new(device, Steps { block: true, iopoll: true, ..fixed })?));
        if fio::is_there() {
            let polled = Steps { iopoll: true, ..fixed };
            lanes.push(Box::new(fio::Fio::new(device, polled, options.client_core)));
        }
    }
    for step in steps {
        // A thread of the kernel that polls has no core of its own on small machines: it is shown,
        // not compared.
        lanes.push(match step.sqpoll {
            true => Box::new(Submitted::new(device, step)),
            false => Box::new(Lane::new(device, step)?),
        });
    }
    Ok(lanes)
}

/// One way of reading, set up for one device.
pub trait Runs {
    /// Its name in rows.
    fn name(&self) -> String;

    /// Keeps `depth` commands in flight, for `warm` and then, watched, for `measure`.
    fn run(&mut self, depth: usize, warm: Duration, measure: Duration) -> anyhow::Result<Window>;
}

/// Adds rows, figures, a table and bars.
fn show(name: &str, device: &Device, samples: &Samples, report: &mut Report) {
    let mut table = Table {
        title: format!("{name}: {} ({} KiB random reads)", device.path.display(), BYTES >> 10),
        columns: vec![
            "lane",
            "qd",
            "K/s",
            "p50 us",
            "p99 us",
            "CPU us",
            "submit / enter / reap us",
        ],
        rows: Vec::new(),
    };
    for ((lane, depth), rounds) in samples {
        let of = |value: fn(&Sample) -> f64| median(rounds.iter().map(value));
        let stages = rounds.iter().find_map(|sample| sample.stages_us);
        table.rows.push(vec![
            lane.clone(),
            depth.to_string(),
            format!("{:.1}", of(|sample| sample.kiops)),
            format!("{:.1}", of(|sample| sample.p50_us)),
            format!("{:.1}", of(|sample| sample.p99_us)),
            format!("{:.2}", of(|sample| sample.cpu_us)),
            stages.map_or(String::new(), |[a, b, c]| format!("{a:.2} / {b:.2} / {c:.2}")),
        ]);
        report.rows.push(json!({
            "set_up": name, "lane": lane, "depth": depth, "block_bytes": BYTES, "kernel_path": device.path,
            "polls": device.polls, "beside": "block, fio, sync", "samples": rounds,
        }));
        report.figure(format!("{name}_{lane}_qd{depth}_kiops"), of(|sample| sample.kiops));
        report.figure(format!("{name}_{lane}_qd{depth}_cpu_us"), of(|sample| sample.cpu_us));
    }
    report.tables.push(table);
    ratios(name, samples, report);
}

/// The figures of the contract: those of the set-up without a delay, or of `--device`, have no prefix.
fn ratios(name: &str, samples: &Samples, report: &mut Report) {
    let prefix = if name == SLOW { "loop_200us_" } else { "" };
    let find = |lane: &str, depth: usize| samples.get(&(lane.to_owned(), depth));
    let over = |ours: &[Sample], theirs: &[Sample]| {
        median(ours.iter().zip(theirs).map(|(ours, theirs)| ours.kiops / theirs.kiops))
    };
    let mut bars = Bars { title: format!("{name}: library over others"), bars: Vec::new() };
    for depth in DEPTHS {
        // What a library could make at most: a loop that pushes commands and enters, over the same of block reads.
        if let (Some(bare), Some(block)) = (find("command_fixed_file", depth), find(BLOCK, depth)) {
            report.figure(format!("{prefix}command_over_block_qd{depth}"), over(bare, block));
        }
        let Some(ours) = find("library", depth) else { continue };
        for (peer, figure) in [("fio_fixed_file", "fio"), (BLOCK, "block")] {
            let Some(theirs) = find(peer, depth) else { continue };
            let ratio = over(ours, theirs);
            report.figure(format!("{prefix}uring_cmd_over_{figure}_qd{depth}"), ratio);
            let rate = median(ours.iter().map(|sample| sample.kiops));
            bars.bars.push((format!("{figure} qd{depth}"), ratio, format!("{rate:.0} K/s")));
        }
        if let (STEPS_AT, Some(sync)) = (depth, find("sync", depth)) {
            // What the figure is about is a device that takes its time.
            let figure = match prefix.is_empty() {
                true => "async_over_sync_qd64_without_delay",
                false => "async_over_sync_qd64",
            };
            report.figure(figure, over(ours, sync));
        }
    }
    report.bars.push(bars);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(kiops: f64) -> Sample {
        Sample { kiops, p50_us: 1.0, p99_us: 2.0, cpu_us: 1.0, stages_us: None }
    }

    #[test]
    fn ratios_are_those_of_a_round_and_name_their_set_up() {
        let lanes = [
            ("library", [30.0, 60.0]),
            (BLOCK, [20.0, 120.0]),
            ("command_fixed_file", [40.0, 480.0]),
            ("fio_fixed_file", [15.0, 30.0]),
            ("sync", [3.0, 6.0]),
        ];
        let samples: Samples = lanes
            .map(|(lane, rounds)| ((lane.to_owned(), STEPS_AT), rounds.map(sample).to_vec()))
            .into();
        for (set_up, prefix, sync) in [
            ("loop", "", "async_over_sync_qd64_without_delay"),
            ("loop_200us", "loop_200us_", "async_over_sync_qd64"),
        ] {
            let mut report = Report::new("passthrough");
            ratios(set_up, &samples, &mut report);
            let expected = [
                (format!("{prefix}uring_cmd_over_block_qd64"), 1.0),
                (format!("{prefix}uring_cmd_over_fio_qd64"), 2.0),
                (format!("{prefix}command_over_block_qd64"), 3.0),
                (sync.to_owned(), 10.0),
            ];
            assert_eq!(report.figures, expected.into(), "{set_up}");
        }
    }

    #[test]
    fn the_bound_needs_no_library() {
        let samples: Samples = [(BLOCK, 20.0), ("command_fixed_file", 30.0)]
            .map(|(lane, kiops)| ((lane.to_owned(), 1), vec![sample(kiops)]))
            .into();
        let mut report = Report::new("passthrough");
        ratios("device", &samples, &mut report);
        assert_eq!(report.figures, [("command_over_block_qd1".to_owned(), 1.5)].into());
    }
}
