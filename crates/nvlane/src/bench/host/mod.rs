//! Scenario `host`: our host against our target over loopback, one core each, beside the bare
//! exchange of the same bytes.
//!
//! ```text
//!   core 1: player -> guard -> multipath -> NVMe/TCP host        core 0: nvlane serve mem:256M
//!           `-------------------- or the bare client -------------> or the bare server
//! ```
//!
//! The whole stack that a user of a `tcp://` volume has is in the way, sleeping included. `policy` adds
//! what choosing among four paths costs. A full run has `spdk_nvme_perf` beside each row, where that is installed.

mod policy;

use super::exchange::Exchange;
use super::initiator::Pattern;
use super::peers::spdk;
use super::pipeline::Window;
use super::player::{Load, Mix, Player, Watch};
use super::report::{Bars, Report, Table};
use super::served::{self, Scratch};
use super::target::limit::{Limit, Paired};
use super::target::plan::{Job, Plan, Volume};
use super::target::rows::{self, Beside, Row};
use super::target::subject::Subject;
use super::{Options, Scenario, cores};
use anyhow::Context;
use namespace::Namespace;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// When the rows of a quick run stop to retry, so that it ends within 45 s.
const QUICK_ROWS: Duration = Duration::from_secs(30);

/// How long a row's windows of another client may be tried again.
const PEER_MAX: Duration = Duration::from_secs(60);

/// How often the volume is written before the first row, at most.
const FILLS_MAX: u64 = 10;

/// 16 writes of 128 KiB take less than this where all memory has been touched.
const TOUCHED: Duration = Duration::from_millis(3);

/// The scenario.
pub struct Host;

impl Scenario for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn about(&self) -> &'static str {
        "NVMe/TCP host on one core against our target on another, beside the bare exchange; in full, also SPDK's client"
    }

    fn run(&self, options: &Options) -> anyhow::Result<Report> {
        let start = Instant::now();
        cores::require(options.server_core, options.client_core)?;
        let player = Player::start(options.client_core)?;
        cores::pin(options.client_core)?;
        cores::prefer();
        let scratch = Scratch::new(&options.dir)?;
        let plan = if options.tiny { Plan::tiny() } else { Plan::new(options.quick) };
        let exchange = Exchange::new(plan.memory_bytes as usize, options.server_core)?;
        let limit = Limit::new(&exchange, plan);
        let mut report = Report::new(self.name());
        let peer = match served::version(spdk::PERF) {
            Ok(_) if plan.quick => Err("installed, but not measured in a quick run".to_owned()),
            Ok(_) => Ok("installed".to_owned()),
            Err(why) => Err(why),
        };
        let mut beside_peer = peer.is_ok();
        report.machine.peers.insert(spdk::PERF.into(), peer.unwrap_or_else(|why| why));
        let subject = Subject::start(
            &[format!("mem:{}M", plan.memory_bytes >> 20)],
            options.server_core,
            &scratch,
        )?;
        let uri = format!("tcp://{}/{}?ns=1", subject.peer.address, subject.peer.subsystem);
        let volume = volume::open(&uri, &volume::OpenOptions::default())
            .with_context(|| format!("cannot open {uri}"))?;
        let deadline = start + if plan.quick { QUICK_ROWS } else { Duration::from_secs(3600) };
        let mut run = Run { plan, subject, limit, player, volume };
        run.fill()?;
        let jobs: Vec<Job> = plan
            .jobs(Volume::Memory)
            .into_iter()
            .filter(|job| job.pattern != Pattern::SequentialRead && options.wants(&job.figure()))
            .collect();
        let mut rows = Vec::new();
        for (done, job) in jobs.iter().enumerate() {
            options.begin(job.figure())?;
            let now = Instant::now();
            let share = deadline.saturating_duration_since(now) / (jobs.len() - done) as u32;
            let mut row = run.row(*job, now + share)?;
            if beside_peer {
                match run.peer(*job, options.client_core) {
                    Ok(client) => row.beside.client = Some((spdk::PERF, client)),
                    Err(error) => {
                        beside_peer = false;
                        let note = format!("not measured from {} on: {error:#}", job.figure());
                        report.machine.peers.insert(spdk::PERF.into(), note);
                    }
                }
            }
            rows.push(row);
        }
        add(&rows, &mut report);
        if options.wants(policy::ROW) {
            policy::measure(&run.player, options, &mut report)?;
        }
        Ok(report)
    }
}

fn add(rows: &[Row], report: &mut Report) {
    let mut table = Table {
        title: "host (s: server's side, c: host's side, each per I/O)".into(),
        columns: rows::COLUMNS.to_vec(),
        rows: Vec::new(),
    };
    let mut bars = Bars { title: "share of the bare exchange".into(), bars: Vec::new() };
    for row in rows {
        row.add_to(report, &mut table, &mut bars);
        report.figure(format!("{}_host_cpu_us", row.job.figure()), row.costs.0.cpu_us);
    }
    report.machine.notes.extend(rows::unsteady(rows));
    report.tables.push(rows::limits(rows));
    report.tables.push(table);
    report.bars.push(bars);
}

struct Run<'a> {
    plan: Plan,
    subject: Subject,
    limit: Limit<'a>,
    player: Player,
    volume: Arc<dyn Namespace>,
}

impl Run<'_> {
    /// Writes all over the volume, so that reads do not meet holes: until no write waits any more for memory that is touched
    /// for the first time, which a hypervisor may take milliseconds to give.
    fn fill(&self) -> anyhow::Result<()> {
        let time = self.plan.target.measure * 4;
        let watch = Watch { windows: vec![Duration::ZERO..time], interval: time };
        for seed in 0..FILLS_MAX {
            let load = Load { mix: Mix::Write, bytes: 128 << 10, in_flight: 16, seed };
            let played = self.player.play(&self.volume, load, &watch)?;
            let slowest = played.windows[0].latency.max();
            if Duration::from_nanos(slowest) < TOUCHED {
                break;
            }
        }
        Ok(())
    }

    fn row(&mut self, job: Job, deadline: Instant) -> anyhow::Result<Row> {
        let (player, volume, subject) = (&self.player, &self.volume, &mut self.subject);
        let timing = self.plan.target;
        let mut seed = 0;
        let mut target = || {
            seed += 1;
            let mix = if job.pattern == Pattern::RandomWrite { Mix::Write } else { Mix::Read };
            let load = Load { mix, bytes: job.bytes, in_flight: job.depth.into(), seed };
            let end = timing.warm + timing.measure;
            let watch = Watch { windows: vec![timing.warm..end], interval: end };
            let playing = player.begin(volume, load, &watch)?;
            // What the server uses before and after the window is of other I/O.
            std::thread::sleep(timing.warm);
            let before = subject.usage()?;
            std::thread::sleep(timing.measure);
            let server = subject.usage()?.since(before);
            let mut played = playing.end()?;
            let window = played.windows.pop().context("one window was asked for")?;
            Ok(Window {
                ios: window.ios,
                seconds: window.seconds,
                latency: window.latency,
                client: window.usage,
                server,
            })
        };
        let paired = self.limit.beside(&job, deadline, &mut target)?;
        let (mut client, mut server) = paired.costs();
        // Neither side's calls were counted.
        (client.system_calls, server.system_calls) = (None, None);
        Ok(Row { job, paired, costs: (client, server), beside: Beside::default() })
    }

    /// SPDK's client instead of ours, against the same target and beside the same exchange.
    fn peer(&mut self, job: Job, core: usize) -> anyhow::Result<Paired> {
        let subject = &mut self.subject;
        let peer = subject.peer.clone();
        let mut client = || spdk::window(&peer, &job, core, &mut || subject.usage());
        self.limit.beside(&job, Instant::now() + PEER_MAX, &mut client)
    }
}

#[cfg(test)]
mod tests {
    use super::super::target::limit::made_up::paired;
    use super::*;

    #[test]
    fn a_row_says_what_the_host_costs_and_what_it_has_over_another_client() {
        let mut rows = [1, 4].map(|depth| rows::made_up::row(Volume::Memory, depth, 50_000));
        rows[0].costs.0.cpu_us = 1.75;
        rows[0].beside.client = Some((spdk::PERF, paired(&[(100_000, 40_000, 100_000)])));
        let mut report = Report::new("host");
        add(&rows, &mut report);
        for (name, figure) in [
            ("randread_qd1_of_limit", Some(0.5)),
            ("randread_qd1_host_cpu_us", Some(1.75)),
            ("randread_qd1_over_spdk_nvme_perf", Some(1.25)),
            ("randread_qd4_host_cpu_us", Some(1.5)),
            ("randread_qd4_over_spdk_nvme_perf", None),
        ] {
            assert_eq!(report.figures.get(name).copied(), figure, "{name}");
        }
        assert_eq!((report.rows.len(), report.tables.len(), report.bars[0].bars.len()), (2, 2, 2));
    }
}
