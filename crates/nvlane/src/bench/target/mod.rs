//! Scenario `target`: the NVMe/TCP target beside the bare exchange of the same bytes.
//!
//! ```text
//!   core 0: nvlane serve (own process) | bare server (thread) | nbdkit        one at a time
//!               ^ loopback
//!   core 1: the client loop of `pipeline`: NVMe/TCP, bare, NBD                the same loop
//! ```

mod idle;
pub(super) mod limit;
pub(super) mod plan;
pub(super) mod rows;
pub(super) mod subject;
mod verify;

use super::exchange::Exchange;
use super::initiator::{Geometry, Load, Pattern, Queue};
use super::peers::{fio, nbd, spdk};
use super::pipeline::{self, Window};
use super::report::{Bars, Report, Table};
use super::served::{self, Scratch, Served};
use super::usage::Usage;
use super::{Options, Scenario, cores, heed};
use anyhow::Context;
use limit::{Cost, Limit};
use plan::{Job, Plan, Volume};
use rows::{Beside, Row};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use subject::Subject;

/// The largest depth of any row.
const DEPTH_MAX: u16 = 128;
/// When the rows of a quick run stop to retry, so that it ends within 45 s.
const QUICK_ROWS: Duration = Duration::from_secs(24);

/// In this order.
const VOLUMES: [Volume; 3] = [Volume::Memory, Volume::Null, Volume::File];

/// The scenario.
pub struct Target;

impl Scenario for Target {
    fn name(&self) -> &'static str {
        "target"
    }

    fn about(&self) -> &'static str {
        "NVMe/TCP target on one core, loopback, beside the bare exchange, NBD and local fio"
    }

    fn run(&self, options: &Options) -> anyhow::Result<Report> {
        let start = Instant::now();
        cores::require(options.server_core, options.client_core)?;
        cores::pin(options.client_core)?;
        let scratch = Scratch::new(&options.dir)?;
        let plan = if options.tiny { Plan::tiny() } else { Plan::new(options.quick) };
        let exchange = Exchange::new(plan.memory_bytes as usize, options.server_core)?;
        let mut report = Report::new(self.name());
        report.machine.notes.push(if cores::prefer() {
            "client and servers ran at a raised priority".into()
        } else {
            "client and servers ran at normal priority: raising it is not permitted".into()
        });
        let deadline = start + if plan.quick { QUICK_ROWS } else { Duration::from_secs(3600) };

        let file = scratch.path().join("volume.img");
        std::fs::File::create(&file)?.set_len(plan.file_bytes)?;
        let own = options.against.is_none();
        let subject = match &options.against {
            None => Subject::start(&subject::volumes(&plan, &file), options.server_core, &scratch)?,
            Some(uri) => Subject::running(uri, options.against_pid)?,
        };
        let mut run = Run {
            options,
            plan,
            file,
            subject,
            limit: Limit::new(&exchange, plan),
            deadline,
            nbd: None,
            fio: false,
            calls_counted: true,
            rows_left: VOLUMES.iter().map(|&volume| wanted(options, plan, volume).len()).sum(),
        };
        run.find_peers(&scratch, &mut report);
        let mut rows = run.rows(own, &mut report)?;
        drop(run);
        add_rows(&mut rows, &mut report);
        if own && options.wants("idle") {
            heed()?;
            idle::measure(&exchange, &plan, options.server_core, &scratch, &mut report)?;
        }
        Ok(report)
    }
}

/// The jobs on `volume` that were asked for.
fn wanted(options: &Options, plan: Plan, volume: Volume) -> Vec<Job> {
    plan.jobs(volume).into_iter().filter(|job| options.wants(&job.figure())).collect()
}

fn add_rows(rows: &mut [Row], report: &mut Report) {
    let mut table = Table {
        title: "target (s: server's side, c: client's side, each per I/O)".into(),
        columns: rows::COLUMNS.to_vec(),
        rows: Vec::new(),
    };
    let mut bars = Bars { title: "share of the bare exchange".into(), bars: Vec::new() };
    for row in rows.iter() {
        row.add_to(report, &mut table, &mut bars);
    }
    report.machine.notes.extend(rows::unsteady(rows));
    report.tables.push(rows::limits(rows));
    report.tables.push(table);
    report.bars.push(bars);
}

struct Run<'a> {
    options: &'a Options,
    plan: Plan,
    file: PathBuf,
    subject: Subject,
    limit: Limit<'a>,
    deadline: Instant,
    nbd: Option<(nbd::Server, Served)>,
    fio: bool,
    calls_counted: bool,
    rows_left: usize,
}

impl Run<'_> {
    /// Starts the first NBD server that is installed; names what is missing.
    fn find_peers(&mut self, scratch: &Scratch, report: &mut Report) {
        for server in nbd::Server::ALL {
            let mut state = served::version(server.name());
            if state.is_ok() && self.nbd.is_some() {
                state = state.map(|version| format!("{version} (not measured, the first one was)"));
            } else if state.is_ok() {
                match start_nbd(server, self.plan.memory_bytes, self.options.server_core, scratch) {
                    Ok(served) => self.nbd = Some((server, served)),
                    Err(error) => state = Err(format!("missing: {error:#}")),
                }
            }
            report.machine.peers.insert(server.name().into(), state.unwrap_or_else(|why| why));
        }
        let fio = fio::version_with(fio::ENGINE);
        self.fio = fio.is_ok();
        report.machine.peers.insert("fio".into(), fio.unwrap_or_else(|why| why));
        let spdk = served::version(spdk::TARGET);
        let spdk =
            spdk.map(|version| format!("{version} (installed, but measured by --against only)"));
        report.machine.peers.insert(spdk::TARGET.into(), spdk.unwrap_or_else(|why| why));
    }

    fn rows(&mut self, own: bool, report: &mut Report) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for volume in VOLUMES {
            let jobs = wanted(self.options, self.plan, volume);
            if jobs.is_empty() {
                continue;
            }
            let (_controller, mut queue, geometry) = match self.subject.open(volume, DEPTH_MAX) {
                Ok(opened) => opened,
                Err(error) if !own => {
                    let note = format!("no {} rows: {error:#}", volume.name());
                    report.machine.notes.push(note);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let keeps = volume != Volume::Null;
            let writes = jobs.iter().any(|job| job.pattern == Pattern::RandomWrite);
            if keeps {
                verify::fill(&mut queue, volume, geometry, verify::BEFORE)?;
                if volume == Volume::File && self.fio {
                    self.copy_for_fio()?;
                }
                verify::check(&mut queue, volume, geometry, verify::BEFORE, false)?;
            }
            for job in jobs {
                self.rows_left -= 1;
                self.options.begin(job.figure())?;
                rows.push(self.row(job, &mut queue, geometry)?);
            }
            if keeps {
                let met = verify::check(&mut queue, volume, geometry, verify::BEFORE, true)?;
                anyhow::ensure!(
                    !writes || met.1 > 0,
                    "nothing of what was measured as written is there"
                );
                verify::fill(&mut queue, volume, geometry, verify::AFTER)?;
                verify::check(&mut queue, volume, geometry, verify::AFTER, false)?;
            }
        }
        report.machine.notes.push(if self.calls_counted {
            "system calls: server by the raw_syscalls:sys_enter tracepoint in a window of its own, \
             client by its own count"
                .into()
        } else {
            "system calls of the server: not counted (tracefs and perf_event_open are needed)"
                .into()
        });
        Ok(rows)
    }

    /// fio gets a copy of its own, since it writes too.
    fn copy_for_fio(&self) -> anyhow::Result<()> {
        let copy = local_copy(&self.file);
        std::fs::copy(&self.file, &copy)?;
        std::fs::File::open(&copy)?.sync_all()?;
        Ok(())
    }

    fn row(&mut self, job: Job, queue: &mut Queue, geometry: Geometry) -> anyhow::Result<Row> {
        let timing = self.plan.target;
        let subject = &mut self.subject;
        let mut seed = 0;
        let mut target = || {
            seed += 1;
            window(&job, queue, geometry, subject, timing, seed)
        };
        // Retries may take no more than the row's share of what is left.
        let now = Instant::now();
        let left = self.deadline.saturating_duration_since(now);
        let deadline = now + left / (self.rows_left as u32 + 1);
        let paired = self.limit.beside(&job, deadline, &mut target)?;
        let costs = self.costs(&job, queue, geometry, paired.costs())?;
        let beside = self.beside(&job)?;
        Ok(Row { job, paired, costs, beside })
    }

    /// Adds the server's system calls, counted in a window of their own.
    fn costs(
        &mut self,
        job: &Job,
        queue: &mut Queue,
        geometry: Geometry,
        (client, mut server): (Cost, Cost),
    ) -> anyhow::Result<(Cost, Cost)> {
        server.system_calls = None;
        let counting = self.subject.observed().map(|observed| observed.count_system_calls());
        if let Some(Ok(())) = counting {
            let timing = self.plan.count;
            let window = window(job, queue, geometry, &mut self.subject, timing, 77)?;
            server.system_calls = Cost::new(window.server, window.ios).system_calls;
        } else {
            self.calls_counted = false;
        }
        if let Some(observed) = self.subject.observed() {
            observed.stop_counting();
        }
        Ok((client, server))
    }

    fn beside(&mut self, job: &Job) -> anyhow::Result<Beside> {
        let mut beside = Beside::default();
        if job.volume == Volume::Memory
            && let Some((server, served)) = &self.nbd
        {
            let window = nbd_window(served, job, self.plan)
                .with_context(|| format!("measuring {} failed", server.name()))?;
            let p50_us = limit::quantile_us(&window.latency, 0.5);
            beside.nbd = Some((server.name(), window.iops(), p50_us));
        }
        if job.volume == Volume::File && self.fio {
            beside.fio = Some(local_fio(&self.file, job, self.plan, self.options.client_core)?);
        }
        Ok(beside)
    }
}

/// One window of the target.
fn window(
    job: &Job,
    queue: &mut Queue,
    geometry: Geometry,
    subject: &mut Subject,
    timing: pipeline::Timing,
    seed: u64,
) -> anyhow::Result<Window> {
    let socket = queue.socket.try_clone()?;
    let nsid = job.volume.nsid();
    let mut load = Load::new(queue, nsid, geometry, job.pattern, job.bytes, seed);
    let mut batch = load.batch(job.depth, verify::MEASURED);
    let mut observe = || subject.usage();
    pipeline::drive(&socket, &mut load, &mut batch, job.depth, timing, &mut observe)
        .with_context(|| format!("{} failed", job.figure()))
}

/// Starts a server and writes all its memory once, so that reads do not meet holes.
fn start_nbd(
    server: nbd::Server,
    bytes: u64,
    core: usize,
    scratch: &Scratch,
) -> anyhow::Result<Served> {
    let served = server.start(bytes, core, scratch)?;
    let client = nbd::Client::connect(served.address)?;
    let mut fill = client.fill(4096);
    let mut batch = fill.batch(verify::FILL_DEPTH);
    let timing = pipeline::Timing { warm: Duration::ZERO, measure: Duration::from_secs(600) };
    let mut nothing = || Ok(Usage::default());
    let depth = verify::FILL_DEPTH;
    pipeline::drive(&client.socket, &mut fill, &mut batch, depth, timing, &mut nothing)?;
    Ok(served)
}

fn nbd_window(served: &Served, job: &Job, plan: Plan) -> anyhow::Result<Window> {
    let client = nbd::Client::connect(served.address)?;
    let mut load = client.load(job.pattern, job.bytes);
    let mut batch = load.batch(job.depth);
    let mut observe = || served.observed.usage();
    let (depth, timing) = (job.depth, plan.target);
    Ok(pipeline::drive(&client.socket, &mut load, &mut batch, depth, timing, &mut observe)?)
}

fn local_copy(file: &Path) -> PathBuf {
    file.with_extension("fio")
}

fn local_fio(file: &Path, job: &Job, plan: Plan, core: usize) -> anyhow::Result<fio::Measured> {
    fio::run(&local_copy(file), job.pattern, job.bytes, job.depth, core, plan.fio)
}
