//! `nvlane bench`: scenarios that measure, each beside its peers and in the same run.
//!
//! ```text
//!   Scenario::run --> Report --> JSON (the bench contract) | tables | SVG
//!      `- pipeline: the client loop      `- rows with samples, named figures
//!         exchange, initiator, peers: what it speaks, and with whom
//! ```
//!
//! How each figure comes about, and what it was on which day: docs/performance.md.

mod aio;
mod copy;
mod cores;
mod exchange;
mod guest;
mod host;
mod in_process;
mod initiator;
mod links;
mod memory;
mod multipath;
mod net;
mod passthrough;
mod pattern;
mod peers;
mod pipeline;
mod player;
mod random;
mod report;
mod served;
mod svg;
mod target;
mod ublk;
mod usage;

use crate::{signals, stderr, stdout};
use anyhow::{Context, bail, ensure};
use report::Report;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// All scenarios.
const SCENARIOS: &[&dyn Scenario] = &[
    &target::Target,
    &host::Host,
    &multipath::Multipath,
    &links::Links,
    &passthrough::Passthrough,
    &aio::Aio,
    &copy::Copy,
    &ublk::Ublk,
    &in_process::InProcess,
];

/// Set when somebody wants it to end: at the next row, so that nothing of what it has made stays behind.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Arguments of `nvlane bench`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nvlane bench --list
  nvlane bench target                     tables; some minutes
  nvlane bench target --quick --json      one JSON object, within 45 seconds
  nvlane bench target --only idle         just what idling costs
  nvlane bench target --against tcp://127.0.0.1:4420/nqn.2014-08.org.example:disk --against-pid 4711")]
pub struct BenchArgs {
    /// What to measure; see --list
    #[arg(required_unless_present = "list")]
    scenario: Option<String>,
    /// Name the scenarios
    #[arg(long)]
    list: bool,
    /// Fewer and shorter windows: ends within 45 seconds, the start of a guest not counted
    #[arg(long)]
    quick: bool,
    /// As --quick, and so brief that the figures mean nothing: for tests of the report's form
    #[arg(long, hide = true)]
    tiny: bool,
    /// Print one JSON object with rows and figures
    #[arg(long)]
    json: bool,
    /// Draw the result
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Where files to be measured are made; on the disk that is meant
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Core of the servers
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    server_core: usize,
    /// Core of the client
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    client_core: usize,
    /// Only rows whose names contain one of these words: `idle`, `randwrite_qd16`
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    only: Vec<String>,
    /// passthrough: the NVMe character device to read from, in place of one of the kernel's own
    #[arg(long, value_name = "/dev/ngXnY")]
    device: Option<PathBuf>,
    /// multipath: divide the backend's rate and the commands in flight by this, for a slow machine
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    scale: u32,
    /// multipath: how often each policy is run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// multipath: the slow path listens at this address, where delay was arranged already (netem)
    #[arg(long, value_name = "ADDRESS")]
    slow_address: Option<IpAddr>,
    /// Measure a target that runs already (tcp://ADDRESS:PORT/NQN); overwrites its namespaces 1 and 3
    #[arg(long, value_name = "URI")]
    against: Option<String>,
    /// Process of that target, to be observed
    #[arg(long, value_name = "PID", requires = "against")]
    against_pid: Option<u32>,
}

/// What a scenario is told.
pub struct Options {
    /// End within 45 seconds.
    pub quick: bool,
    /// Only the report's form matters.
    pub tiny: bool,
    /// Say nothing on the way.
    pub quiet: bool,
    /// Directory for files.
    pub dir: PathBuf,
    /// Core of the servers.
    pub server_core: usize,
    /// Core of the client.
    pub client_core: usize,
    /// Words of the rows that are wanted; empty for all.
    pub only: Vec<String>,
    /// Those of them that are in a row's name.
    pub found: Mutex<BTreeSet<String>>,
    /// The device of `passthrough`.
    pub device: Option<PathBuf>,
    /// The set-up of `multipath` is so many times smaller.
    pub scale: u32,
    /// How often each of its policies is run.
    pub runs: u32,
    /// Where its slow path listens, if something else delays it.
    pub slow_address: Option<IpAddr>,
    /// A target that runs already.
    pub against: Option<String>,
    /// Its process.
    pub against_pid: Option<u32>,
}

impl Options {
    fn new(arguments: &BenchArgs) -> Options {
        Options {
            quick: arguments.quick || arguments.tiny,
            tiny: arguments.tiny,
            quiet: arguments.json,
            dir: arguments.dir.clone(),
            server_core: arguments.server_core,
            client_core: arguments.client_core,
            only: arguments.only.clone(),
            found: Mutex::default(),
            device: arguments.device.clone(),
            // Even a busy machine is to get something done.
            scale: if arguments.tiny { 32 } else { arguments.scale },
            runs: arguments.runs,
            slow_address: arguments.slow_address,
            against: arguments.against.clone(),
            against_pid: arguments.against_pid,
        }
    }

    /// What a scenario is told by `nvlane bench WORDS`.
    #[cfg(test)]
    fn of(words: &[&str]) -> Options {
        use clap::Parser as _;
        let line = [&["nvlane", "bench"], words].concat();
        let cli = crate::cli::Cli::try_parse_from(line).expect("flags of bench");
        let crate::cli::Command::Bench(arguments) = cli.command else { panic!("not bench") };
        Options::new(&arguments)
    }

    /// Whether the row of that name was asked for.
    fn wants(&self, row: &str) -> bool {
        let mut words = self.only.iter().filter(|word| row.contains(word.as_str())).peekable();
        let is_wanted = self.only.is_empty() || words.peek().is_some();
        self.found.lock().expect("nobody panics with it").extend(words.cloned());
        is_wanted
    }

    /// Tells what is measured from here on; an error if somebody wants it to end.
    fn begin(&self, row: impl Display) -> anyhow::Result<()> {
        heed()?;
        if !self.quiet {
            stderr::line(row);
        }
        Ok(())
    }

    /// Notes words that no row has; an error where that is all of them, since then nothing was measured that anybody wants.
    fn note_unknown(&self, report: &mut Report) -> anyhow::Result<()> {
        let found = self.found.lock().expect("nobody panics with it");
        let unknown: Vec<&str> =
            self.only.iter().filter(|&word| !found.contains(word)).map(String::as_str).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let way = if self.quick { " --quick" } else { "" };
        let why = format!(
            "bench {}{way} has no row with {} in its name; a report without --only has them all",
            report.scenario,
            unknown.join(" or ")
        );
        ensure!(!found.is_empty(), why);
        report.machine.notes.push(why);
        Ok(())
    }
}

/// An error if somebody wants it to end.
fn heed() -> anyhow::Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// Has a signal end what is measured in order: devices, mounts, servers and files are taken away. The second one leaves
/// them.
fn end_in_order() -> anyhow::Result<()> {
    signals::on_stop(|| {
        // First, so that it does not come after what ends.
        stderr::line(
            "ending with this row, and taking away what was made; again: at once, leaving it",
        );
        INTERRUPTED.store(true, Ordering::Relaxed);
    })
}

/// One thing to measure.
///
/// An implementer measures its peers in the same run, names those that are missing in
/// `machine.peers`, gives rows the samples from which figures follow, and ends within 45 s when
/// `options.quick`. One about devices that a kernel may not have becomes a guest then (`guest`).
pub trait Scenario: Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// One line for `--list`.
    fn about(&self) -> &'static str;

    /// Measures.
    fn run(&self, options: &Options) -> anyhow::Result<Report>;
}

/// Runs `nvlane bench`.
pub fn run(arguments: BenchArgs) -> anyhow::Result<()> {
    let Some(name) = arguments.scenario.as_deref().filter(|_| !arguments.list) else {
        let line =
            |scenario: &&dyn Scenario| format!("{:<12} {}\n", scenario.name(), scenario.about());
        return stdout::write(SCENARIOS.iter().map(line).collect::<String>());
    };
    let Some(scenario) = SCENARIOS.iter().find(|scenario| scenario.name() == name) else {
        let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name()).collect();
        bail!("there is no scenario {name}; there are: {}", names.join(", "));
    };
    cores::may_prefer(!arguments.tiny);
    end_in_order()?;
    let options = Options::new(&arguments);
    let outcome = scenario.run(&options);
    // Whatever fails then may be for the same signal, which servers and other programs have got as well.
    heed()?;
    let mut report = outcome?;
    options.note_unknown(&mut report)?;
    // First: what was measured is not to be lost with a drawing that cannot be kept.
    let printed = stdout::write(match arguments.json {
        true => format!("{}\n", serde_json::to_string(&report)?),
        false => report.to_string(),
    });
    if let Some(path) = &arguments.svg {
        std::fs::write(path, svg::draw(&report))
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    printed
}
