//! Scenario `ublk`: block devices of this kernel, on each way of data, and with programs, beside rublk.
//!
//! ```text
//!   client, core 1 --io_uring--> /dev/ublkbN      copy, user copy, zero copy: over null_blk
//!                                    |            bpf_user, bpf_kernel: linear.bpf.o over two of them
//!   server, core 0 <----------- ublk_drv          rublk: its loop target, as it is and with zero copy
//! ```
//!
//! The backends cost nothing, so that what is measured is the way to them. All servers take turns in
//! each round, and ratios are those within a round. Machines whose kernel has no ublk, or users who
//! are not root, get an exact guest (`guest`), where CPU time is the number of instructions.
//!
//! What it does not do: volumes that cost something, several queues, latency under a bounded rate.

mod figures;
mod load;
mod program;
mod stage;
mod subject;

use super::report::Report;
use super::served::{self, Scratch, Served};
use super::{Options, Scenario, cores, guest, heed};
use anyhow::Context;
use load::{Client, Shape};
use serde::Serialize;
use stage::Stage;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use subject::{InMemory, Look, Recovery, Subject, Way};

/// The rows, in the order of tables.
const ROWS: [Shape; 5] = [
    Shape { name: "randwrite512k_qd16", writes: true, bytes: 512 << 10, depth: 16 },
    Shape { name: "randread4k_qd1", writes: false, bytes: 4 << 10, depth: 1 },
    Shape { name: "randread4k_qd32", writes: false, bytes: 4 << 10, depth: 32 },
    Shape { name: "randread64k_qd16", writes: false, bytes: 64 << 10, depth: 16 },
    Shape { name: "randwrite64k_qd16", writes: true, bytes: 64 << 10, depth: 16 },
];

/// Rows of zero copy beside copy alone, of other sizes and depths: in full windows, or when they are named.
const LARGER: [Shape; 5] = [
    Shape { name: "randread64k_qd1", writes: false, bytes: 64 << 10, depth: 1 },
    Shape { name: "randwrite128k_qd4", writes: true, bytes: 128 << 10, depth: 4 },
    Shape { name: "randread512k_qd16", writes: false, bytes: 512 << 10, depth: 16 },
    Shape { name: "randread1m_qd16", writes: false, bytes: 1 << 20, depth: 16 },
    Shape { name: "randwrite1m_qd1", writes: true, bytes: 1 << 20, depth: 1 },
];

/// Whose servers are killed.
const KILLED_WAYS: [Way; 3] = [Way::Recoverable, Way::RecoverableProgram, Way::RecoverableRemote];

/// What remote volumes are of, and by whom they are asked for: a host that its target knows again.
const NQN: &str = "nqn.2026-11.com.example:bench";
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:6b0b1b1e-7d0f-4c0e-9a55-0f1a2b3c4d5e";

/// What is under way when a server is killed.
const KILLED: Shape = ROWS[4];

/// Depths between which resident memory is compared, with writes of 512 KiB.
const MEMORY_DEPTHS: [usize; 2] = [1, 128];

/// The scenario.
pub struct Ublk;

/// How much is run.
#[derive(Clone, Copy, Debug)]
struct Plan {
    warm: Duration,
    measure: Duration,
    rounds: u64,
    /// How often a server is killed.
    kills: u64,
}

/// What one window of one server showed; times are per request.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    iops: f64,
    mib_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// CPU time of the server, user and system.
    cpu_ns: f64,
    /// How much of it was in user space, as the kernel's ticks have it; none if there was no tick.
    user_share: Option<f64>,
    /// CPU time of the whole machine, the client and the server included.
    machine_ns: f64,
    switches: f64,
    /// System calls of the server, in a window of their own: each is a return to user space.
    returns: Option<f64>,
}

/// Everything that was measured, and what could not be.
#[derive(Default)]
struct Measured {
    samples: BTreeMap<(Way, &'static str), Vec<Sample>>,
    /// Resident bytes at each of [`MEMORY_DEPTHS`].
    memory: BTreeMap<Way, [u64; 2]>,
    /// Of each server that was killed.
    recovery: BTreeMap<Way, Vec<Recovery>>,
    missing: BTreeMap<Way, String>,
    /// What a program and a layer add to a read in process.
    user_space: Vec<program::Turn>,
}

impl Scenario for Ublk {
    fn name(&self) -> &'static str {
        "ublk"
    }

    fn about(&self) -> &'static str {
        "block devices by ublk: copy, user copy, zero copy, BPF programs, rublk; in a guest where the kernel has none"
    }

    fn run(&self, options: &Options) -> anyhow::Result<Report> {
        let scratch = Scratch::new(&options.dir)?;
        let object = program::write(scratch.path())?;
        let user_space = || program::turns(&object, options.quick);
        let rows = ROWS.iter().chain(&LARGER).map(|shape| shape.name);
        let is_in_process = options.wants("user_space");
        if !rows.chain(["memory", "recovery"]).any(|row| options.wants(row)) {
            let mut report = Report::new(self.name());
            let turns = if is_in_process { user_space()? } else { Vec::new() };
            let measured = Measured { user_space: turns, ..Measured::default() };
            figures::fill(&measured, &mut report);
            return Ok(report);
        }
        if let Err(why) = stage::has_ublk() {
            let here = if guest::is_inside() { Vec::new() } else { user_space()? };
            // Nothing of ours is dropped when this process becomes the guest.
            drop(scratch);
            let told = [(program::HOST_NS, program::written(&here))];
            return Err(guest::run(self.name(), &why, &told, options));
        }
        cores::require(options.server_core, options.client_core)?;
        let user_space = match program::known_outside() {
            Some(turns) => turns,
            None => user_space()?,
        };
        let mut measured = Measured { user_space, ..Measured::default() };
        cores::pin(options.client_core)?;
        cores::prefer();
        let bench = Bench {
            options,
            plan: Plan::new(options),
            stage: Stage::new().context("null block devices cannot be set up")?,
            object,
            scratch: &scratch,
        };
        for round in 0..bench.plan.rounds {
            for way in Way::ALL {
                let rounds = bench.plan.rounds;
                options.begin(format_args!("round {} of {rounds}: {}", round + 1, way.name()))?;
                bench.measure(way, round, &mut measured)?;
            }
        }
        // The others take a minute of an exact guest: in full windows, or when it is named.
        let takes_all = !options.quick || !options.only.is_empty();
        let killed = KILLED_WAYS.into_iter().filter(|way| takes_all || *way == Way::Recoverable);
        for way in killed.filter(|_| options.wants("recovery")) {
            bench.kill(way, &mut measured)?;
        }
        let mut report = Report::new(self.name());
        figures::fill(&measured, &mut report);
        Ok(report)
    }
}

impl Plan {
    fn new(options: &Options) -> Plan {
        let (warm, measure, rounds, kills) = match (options.tiny, options.quick) {
            (true, _) => (2, 10, 1, 2),
            (_, true) => (10, 60, 1, 6),
            _ => (100, 500, 3, 20),
        };
        let [warm, measure] = [warm, measure].map(Duration::from_millis);
        Plan { warm, measure, rounds, kills }
    }
}

struct Bench<'a> {
    options: &'a Options,
    plan: Plan,
    stage: Stage,
    object: PathBuf,
    scratch: &'a Scratch,
}

impl Bench<'_> {
    /// All rows of one server.
    fn measure(&self, way: Way, round: u64, measured: &mut Measured) -> anyhow::Result<()> {
        let Some(mut subject) = self.start(way, measured) else { return Ok(()) };
        let mut client = Client::open(&subject.node(), subject.bytes)?;
        if round == 0 && self.options.wants("memory") {
            let memory = self.memory(&mut subject, &mut client);
            measured.memory.insert(way, memory.with_context(|| way.name())?);
        }
        let rows = ROWS.iter().filter(|shape| self.options.wants(shape.name));
        let larger = LARGER.iter().filter(|shape| self.wants_larger(way, shape.name));
        for shape in rows.chain(larger) {
            heed()?;
            let sample = self.window(*shape, round, &mut subject, &mut client);
            let sample = sample.with_context(|| format!("{}, {}", way.name(), shape.name))?;
            measured.samples.entry((way, shape.name)).or_default().push(sample);
        }
        Ok(())
    }

    /// Starts a server; None where it cannot be, which is noted once.
    fn start(&self, way: Way, measured: &mut Measured) -> Option<Subject> {
        if measured.missing.contains_key(&way) {
            return None;
        }
        let core = self.options.server_core;
        let program = &self.object;
        let started = Subject::start(way, &self.stage, program, self.scratch.path(), core);
        let noted = |error: anyhow::Error| measured.missing.insert(way, format!("{error:#}"));
        started.map_err(noted).ok()
    }

    fn wants_larger(&self, way: Way, row: &str) -> bool {
        let is_compared = matches!(way, Way::Copy | Way::ZeroCopy);
        let is_named = !self.options.only.is_empty();
        is_compared && self.options.wants(row) && (is_named || !self.options.quick)
    }

    /// How long servers are away that are killed.
    fn kill(&self, way: Way, measured: &mut Measured) -> anyhow::Result<()> {
        let _target = match way {
            Way::RecoverableRemote => Some(self.target()?),
            _ => None,
        };
        let Some(mut subject) = self.start(way, measured) else { return Ok(()) };
        let mut client = Client::open(&subject.node(), subject.bytes)?;
        let times = self.recovery(way, &mut subject, &mut client);
        measured.recovery.insert(way, times.with_context(|| format!("{}: recovery", way.name()))?);
        Ok(())
    }

    /// A target of the first null block device, on the client's core.
    fn target(&self) -> anyhow::Result<Served> {
        let address = served::free_address()?;
        self.stage.set_remote(&format!("tcp://{address}/{NQN}?ns=1&hostnqn={HOST_NQN}"));
        let mut command = Command::new(std::env::current_exe()?);
        let place = self.scratch.path().join("target");
        command.arg("serve").arg(self.stage.one()).args(["--nqn", NQN, "--listen"]);
        command.arg(address.to_string()).arg("--data-dir").arg(&place);
        command.arg("--socket").arg(place.with_extension("sock"));
        Served::start(&mut command, address, self.options.client_core, self.scratch)
    }

    /// Kills the server under writes, which all end well, again and again: how long each successor takes to serve.
    fn recovery(
        &self,
        way: Way,
        subject: &mut Subject,
        client: &mut Client,
    ) -> anyhow::Result<Vec<Recovery>> {
        let Plan { warm, mut kills, .. } = self.plan;
        if way == Way::RecoverableProgram && self.options.quick {
            // It takes the kernel most of a second to look at a program.
            kills = kills.min(2);
        }
        let program = InMemory::new()?;
        let times = (0..kills).map(|round| {
            heed()?;
            let mut took = None;
            client.run(KILLED, round, warm, Duration::ZERO, || {
                if took.is_none() {
                    let _awake = cores::Awake::keep(self.options.server_core)?;
                    took = Some(subject.kill_and_recover(&program)?);
                }
                Ok(())
            })?;
            took.context("nothing was killed")
        });
        times.collect()
    }

    /// Resident memory after writes with few and many in flight.
    fn memory(&self, subject: &mut Subject, client: &mut Client) -> anyhow::Result<[u64; 2]> {
        let mut resident = [0; 2];
        for (depth, resident) in MEMORY_DEPTHS.into_iter().zip(&mut resident) {
            let shape = Shape { depth, ..ROWS[0] };
            let Plan { warm, .. } = self.plan;
            client.run(shape, 0, warm, warm, || Ok(()))?;
            *resident = subject.resident_bytes()?;
        }
        Ok(resident)
    }

    fn window(
        &self,
        shape: Shape,
        round: u64,
        subject: &mut Subject,
        client: &mut Client,
    ) -> anyhow::Result<Sample> {
        let Plan { warm, measure, .. } = self.plan;
        let window = client.run(shape, round, warm, measure, || subject.look())?;
        let [before, after] = window.seen;
        let requests = window.requests.max(1) as f64;
        let returns = self.returns(shape, round, subject, client)?;
        let used = after.usage.since(before.usage);
        let quantile = |share| window.latency.value_at_quantile(share) as f64 / 1e3;
        let iops = window.requests as f64 / window.seconds;
        Ok(Sample {
            iops,
            mib_s: iops * f64::from(shape.bytes) / f64::from(1 << 20),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            cpu_ns: used.cpu.as_nanos() as f64 / requests,
            user_share: user_share(before, after),
            machine_ns: (after.machine - before.machine).as_nanos() as f64 / requests,
            switches: used.switches as f64 / requests,
            returns,
        })
    }

    /// System calls of the server per request; none where they cannot be counted.
    fn returns(
        &self,
        shape: Shape,
        round: u64,
        subject: &mut Subject,
        client: &mut Client,
    ) -> anyhow::Result<Option<f64>> {
        if subject.count_calls(true).is_err() {
            return Ok(None);
        }
        let Plan { warm, measure, .. } = self.plan;
        let window = client.run(shape, round, warm, measure / 2, || subject.look())?;
        subject.count_calls(false)?;
        let [before, after] = window.seen;
        let calls = after.usage.since(before.usage).system_calls;
        Ok(Some(calls as f64 / window.requests.max(1) as f64))
    }
}

fn user_share(before: Look, after: Look) -> Option<f64> {
    let [user, system] = [0, 1].map(|at| after.ticks[at].saturating_sub(before.ticks[at]) as f64);
    (user + system > 0.0).then(|| user / (user + system))
}
