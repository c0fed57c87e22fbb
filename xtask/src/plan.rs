//! What `make test`, `make test-full` and `make check` consist of.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::ahead::Ahead;
use crate::deb;
use crate::floors;
use crate::guest::machine::Machine;
use crate::guest::nvme::Set;
use crate::guest::on_purpose;
use crate::guest::power_cut;
use crate::guest::session::{Script, Seat, Verdict};
use crate::kernel::{Kernel, NEWEST_SUITE};
use crate::lanes::{self, Count, Output, Step};
use crate::objects;
use crate::packages::{self, List};
use crate::process::{capture, cargo, checkout, run, target_directory};
use crate::programs::{GIVEN, Programs, QUICK, RELEASE, SHIPPED};
use crate::repeated;
use crate::runner::{Runner, record};
use crate::{space, tidy, unit};

/// The older kernel of the full run.
const OLDER_SUITE: &str = "bookworm-backports";
const OLDER: &str = "guest-older";

/// The oldest kernel that anything runs on, and what the full run tries there: the rest asks for more of the kernel's
/// own host, or of its other parts, than of ours.
const OLDEST_SUITE: &str = "bookworm";
const OLDEST: &str = "guest-oldest";
/// Of the names of steps in guests of the kernel that is asked for.
const FIRST: &str = "guest";
const OLDEST_SCRIPTS: [&str; 12] = [
    "abilities",
    "aio",
    "bpf_examples",
    "connect",
    "copy_namespaces",
    "filesystem",
    "fio",
    "holes",
    "host_cli",
    "nbd",
    "reconnect",
    "volatile",
];

/// How steps are listed that the everyday run does not have.
const FULL_ONLY: &str = " (full run only)";

/// Lines shown of a guest test that passed.
const LINES_OF_PASSED: usize = 6;

/// The step that cuts a guest's power.
const POWER_CUT: &str = "power-cut";

/// The step whose scripts fail on purpose; in guests of the first kernel only: it is about us.
const ON_PURPOSE: &str = "on_purpose";

/// Processors of all guests of the full run on the newest kernel: that they race is part of what it is for. Otherwise a
/// script says what its guest needs ([`Script::processors`]), and a power cut needs one.
const FULL_PROCESSORS: u32 = 2;

const LANES_MAX: usize = 16;

/// What is measured where nobody says what.
const USUAL_SCENARIO: &str = "target";

/// Counts of the everyday run and of the full one.
struct Depth {
    /// Rounds of tests that repeat an accident.
    rounds: u32,
    /// Seconds that each fuzzer runs.
    fuzz_seconds: u32,
}

const EVERYDAY: Depth = Depth { rounds: 5, fuzz_seconds: 10 };
const FULL: Depth = Depth { rounds: 20, fuzz_seconds: 60 };

/// Run the tests, all or those whose name contains one of the given words.
#[derive(Args, Debug)]
pub struct TestArguments {
    /// The stated counts (20 rounds, 60 s per fuzzer, three kernels); resumes where it was stopped,
    /// and writes a dated record to docs/results, unless names are given.
    #[arg(long)]
    full: bool,
    /// List the names and run nothing.
    #[arg(long)]
    list: bool,
    /// Debian suite whose kernel the guest boots.
    #[arg(long, value_name = "SUITE", default_value = NEWEST_SUITE)]
    kernel: String,
    /// Seed of the moments at which power is cut.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Steps that run side by side; in a single lane their output is shown as it comes. [default: 2, everyday 3 where
    /// there is memory for three guests, or 1 on a single processor]
    #[arg(long, value_name = "COUNT", value_parser = lane_count)]
    lanes: Option<usize>,
    /// Words that the names of the wanted tests contain: `guest/fio`, `fuzz`, `power-cut`.
    names: Vec<String>,
}

/// `cargo xtask check`: what takes under three minutes.
pub fn check() -> Result<u8> {
    packages::install(List::Run)?;
    let mut runner = Runner::new(Vec::new(), 1);
    let steps = vec![
        Step::new("format", |(): &mut (), output| format(output)),
        Step::new("tidy", |(), output| tidy(output)),
        Step::new("clippy", |(), output| {
            let what = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-Dwarnings"];
            output.run(cargo()?.args(what)).map(|()| Count::ONE)
        }),
        Step::new("unit", |(), output| {
            let what = ["test", "--workspace", "--lib", "--bins", "--locked", "--no-fail-fast"];
            output.counted(cargo()?.args(what))
        }),
    ];
    runner.run(&logs()?, steps);
    Ok(runner.finish())
}

/// `cargo xtask test`.
pub fn test(arguments: TestArguments) -> Result<u8> {
    let depth = if arguments.full { FULL } else { EVERYDAY };
    let scripts = Script::all(depth.rounds)?;
    if arguments.list {
        for name in names(&scripts)? {
            println!("{name}");
        }
        return Ok(0);
    }
    let lanes = arguments.lanes.unwrap_or_else(|| lanes::usual(arguments.full));
    let mut runner = Runner::new(arguments.names.clone(), lanes);
    if arguments.names.is_empty() {
        space::ensure_enough(arguments.full)?;
    }
    packages::install(List::Test)?;
    objects::compile_changed()?;

    let mut kernels = vec![(arguments.kernel.clone(), FIRST)];
    if arguments.full {
        kernels.push((OLDER_SUITE.to_owned(), OLDER));
        kernels.push((OLDEST_SUITE.to_owned(), OLDEST));
        let target = target_directory()?;
        fs::create_dir_all(&target)?;
        let asked = asked(&kernels, arguments.seed);
        runner = runner.resumable(&checkout()?, target.join("test-full.progress"), &asked)?;
    }
    let guests: Vec<Guests> = kernels
        .into_iter()
        .map(|(suite, prefix)| Guests::of(suite, prefix, &scripts, &arguments, &runner))
        .collect();
    let all_scripts = guests.iter().flat_map(|guests| guests.scripts.clone()).collect();
    let cut = guests.iter().any(|guests| guests.power_cut);
    let programs = Programs::of(all_scripts, cut, arguments.full, depth.rounds)
        .beside_unit_tests(runner.wants("unit"));
    let mut ahead = Vec::new();
    if runner.wants("unit") {
        if guests.iter().any(|guests| guests.wanted) {
            ahead.extend(programs.longest_build()?);
        }
        if fuzz_targets()?.iter().any(|target| runner.wants(&format!("fuzz/{target}"))) {
            let mut build = fuzz_command()?;
            build.arg("--build");
            ahead.push(build);
        }
    }
    let mut ahead = Ahead::new(ahead);
    runner.run_alone(&logs()?, steps_alone(&mut ahead, arguments.full));
    ahead.hurry();
    let mut steps = steps_before_guests(&guests, &programs, arguments.full, &depth)?;
    for guests in &guests {
        guests.add_steps(&mut steps, &programs, depth.rounds, arguments.seed);
    }
    runner.run(&logs()?, steps);

    // What names a part is no record of the whole.
    if arguments.full && arguments.names.is_empty() {
        let versions: Vec<String> = guests.iter().map(Guests::version).collect();
        let mut tree = commit()?;
        if runner.tree_has_changed()? {
            tree.push_str(", and the tree has changed while this ran");
        }
        let about = [
            ("commit", tree),
            ("guest kernels", versions.join(", ")),
            ("rounds of each accident", depth.rounds.to_string()),
            ("seconds per fuzzer", depth.fuzz_seconds.to_string()),
            ("seed of random copies (COPY_SEED)", copy_seed(&commit()?).to_string()),
        ];
        println!("\nrecorded in {}", record(&runner, &about)?.display());
    }
    Ok(runner.finish())
}

/// What a run depends on besides the tree, in a line: kernels, as far as they are there, the seed, and what is given.
fn asked(kernels: &[(String, &str)], seed: u64) -> String {
    let version = |(suite, _): &(String, &str)| {
        // What hinders is told by the step that needs it.
        let kernel = Kernel::of_suite(suite, false);
        kernel.map_or_else(|_| suite.clone(), |kernel| kernel.version)
    };
    let mut asked: Vec<String> = kernels.iter().map(version).collect();
    asked.push(format!("seed {seed}"));
    let given =
        GIVEN.iter().filter_map(|name| Some(format!("{name}={:?}", std::env::var_os(name)?)));
    asked.extend(given);
    asked.join(", ")
}

fn lane_count(text: &str) -> Result<usize> {
    let count = text.parse()?;
    ensure!((1..=LANES_MAX).contains(&count), "from 1 to {LANES_MAX}");
    Ok(count)
}

/// What nothing else runs beside but what is done `ahead`, at the lowest priority: some of these tests measure time.
fn steps_alone(ahead: &mut Ahead, full: bool) -> Vec<Step<'_, ()>> {
    let mut steps = vec![
        Step::new("format", |(): &mut (), output| format(output)),
        Step::new("tidy", |(), output| tidy(output)),
    ];
    if full {
        steps.push(Step::new("bench/copy", |(), output| {
            let program = released(output)?;
            floors::here(&program, &target_directory()?, output)
        }));
        steps.push(Step::new("bench/decision", |(), output| floors::decision(output)));
        steps.push(Step::new("bench/floors", |(), output| {
            let program = released(output)?;
            floors::in_guests(&program, output)
        }));
    }
    steps.push(Step::new("unit", move |(), output| {
        unit::test(full, output, || ahead.begin(&logs()?))
    }));
    steps
}

/// Builds nvlane as it is released, and tells where it is.
fn released(output: &mut Output) -> Result<PathBuf> {
    output.run(cargo()?.args(["build", "--locked", "--profile", RELEASE]).args(SHIPPED))?;
    Ok(target_directory()?.join(RELEASE).join("nvlane"))
}

/// All other steps but what runs in guests.
fn steps_before_guests<'a>(
    guests: &'a [Guests],
    programs: &'a Programs,
    full: bool,
    depth: &Depth,
) -> Result<Vec<Step<'a, Seat>>> {
    let mut steps = Vec::new();
    if guests.iter().any(|guests| guests.wanted) {
        let waiting = Waiting { guests, programs };
        let build = Step::new("guest/build", move |_: &mut Seat, output| {
            let _waiting = &waiting;
            let made = programs.make(output);
            let fetched: Vec<Result<()>> =
                guests.iter().map(|guests| guests.fetch_kernel(output)).collect();
            fetched.into_iter().chain([made]).collect::<Result<()>>()?;
            Ok(Count::NONE)
        });
        steps.push(build.preparing());
    }
    let seconds = depth.fuzz_seconds;
    for target in fuzz_targets()? {
        let name = format!("fuzz/{target}");
        steps.push(Step::new(name, move |_, output| fuzz(&target, seconds, output)));
    }
    steps.push(Step::new("libaio/harness", move |_, output| {
        let (profile, cases) = if full { (RELEASE, None) } else { (QUICK, Some("short")) };
        output.run(cargo()?.args([
            "build",
            "--locked",
            "--profile",
            profile,
            "--package=libaio",
        ]))?;
        let library = target_directory()?.join(profile).join("libnvlane_aio.so");
        output.run(Command::new(checkout()?.join("tests/libaio/run")).arg(library).args(cases))?;
        Ok(Count::ONE)
    }));
    if full {
        // What `unit` does a few of, as often as was asked for, and not what the run of another commit has done.
        let seed = copy_seed(&commit()?);
        for test in repeated::TESTS {
            steps.push(Step::new(test.name, move |_, output| test.run(seed, output)));
        }
        steps.push(Step::new("deb", |_, output| deb::test(output)));
    }
    Ok(steps)
}

/// Whoever waits for kernels and programs; told when the step that makes them is over, however it ended.
struct Waiting<'a> {
    guests: &'a [Guests],
    programs: &'a Programs,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.programs.give_up();
        for guests in self.guests {
            let _ = guests.kernel.set(None);
        }
    }
}

/// All that runs in guests of one kernel.
struct Guests {
    suite: String,
    /// Of the names of the steps.
    prefix: &'static str,
    /// So many processors at least have its guests.
    processors: u32,
    scripts: Vec<Script>,
    /// The power is to be cut.
    power_cut: bool,
    /// Scripts are to fail on purpose.
    on_purpose: bool,
    /// Anything is to be run at all.
    wanted: bool,
    /// None when there is none to be had.
    kernel: OnceLock<Option<Kernel>>,
}

impl Guests {
    fn of(
        suite: String,
        prefix: &'static str,
        scripts: &[Script],
        arguments: &TestArguments,
        runner: &Runner,
    ) -> Self {
        let scripts: Vec<Script> = scripts
            .iter()
            .filter(|script| arguments.full || !script.full_only)
            .filter(|script| suite == NEWEST_SUITE || !script.newest_only)
            .filter(|script| prefix != OLDEST || OLDEST_SCRIPTS.contains(&script.name.as_str()))
            .filter(|script| runner.wants(&format!("{prefix}/{}", script.name)))
            .cloned()
            .collect();
        let power_cut = prefix != OLDEST && runner.wants(&format!("{prefix}/{POWER_CUT}"));
        let on_purpose = prefix == FIRST && runner.wants(&format!("{prefix}/{ON_PURPOSE}"));
        let wanted = !scripts.is_empty() || power_cut || on_purpose;
        let newest = suite == NEWEST_SUITE;
        let processors = if arguments.full && newest { FULL_PROCESSORS } else { 1 };
        let kernel = OnceLock::new();
        Self { suite, prefix, processors, scripts, power_cut, on_purpose, wanted, kernel }
    }

    fn fetch_kernel(&self, output: &mut Output) -> Result<()> {
        let (kernel, result) = match Kernel::of_suite(&self.suite, false) {
            Ok(kernel) => {
                output.say(&format!("{} tests on Linux {}", self.scripts.len(), kernel.version));
                (Some(kernel), Ok(()))
            }
            Err(error) => (None, Err(error)),
        };
        self.kernel.set(kernel).expect("it is fetched once");
        result
    }

    /// Waits until the step that makes them has kernel and programs. The guest has so many processors at least.
    fn machine(&self, programs: &Programs, processors: u32) -> Result<Machine> {
        let cpus = processors.max(self.processors);
        let environment = programs.ready()?.to_vec();
        let kernel = self.kernel.wait().clone().context("there is no kernel to boot")?;
        Ok(Machine { environment, cpus, ..Machine::new(kernel)? })
    }

    /// Of the kernel; just the suite when nothing wanted it.
    fn version(&self) -> String {
        let kernel = self.kernel.get().and_then(Option::as_ref);
        kernel.map_or_else(|| self.suite.clone(), |kernel| kernel.version.clone())
    }

    fn add_steps<'a>(
        &'a self,
        steps: &mut Vec<Step<'a, Seat>>,
        programs: &'a Programs,
        rounds: u32,
        seed: u64,
    ) {
        // First, being the longest: at the end the other lane would wait for it.
        let cut =
            Step::new(format!("{}/{POWER_CUT}", self.prefix), move |seat: &mut Seat, output| {
                seat.leave();
                let machine = self.machine(programs, 1)?;
                output.start_clock();
                power_cut::run(&machine, self.prefix, rounds, seed, output)?;
                Ok(Count { passed: rounds, failed: 0 })
            });
        steps.extend(self.power_cut.then_some(cut));
        // In the guest of the scripts that come next.
        let mut on_purpose = self.on_purpose.then(|| {
            Step::new(format!("{}/{ON_PURPOSE}", self.prefix), move |seat: &mut Seat, output| {
                let machine = self.machine(programs, 1)?;
                seat.prepare(&machine, Set::Placed, output)?;
                output.start_clock();
                on_purpose::run(seat, &machine, output)
            })
        });
        for script in ordered(&self.scripts, self.processors) {
            let name = format!("{}/{}", self.prefix, script.name);
            let processors = script.processors.max(self.processors);
            if processors == self.processors {
                steps.extend(on_purpose.take());
            }
            // Two processors take the room of two guests, and four no more.
            let weight = processors.min(2) as usize;
            let step = Step::new(name, move |seat: &mut Seat, output: &mut Output| {
                let machine = self.machine(programs, script.processors)?;
                seat.prepare(&machine, script.devices_there(), output)?;
                output.start_clock();
                let mut verdict = seat.run(script)?;
                if verdict.died {
                    // Once; and told.
                    let why = verdict.failure.as_deref().unwrap_or_default();
                    output.say(&format!("{why}\nonce more, in another guest"));
                    output.blame("the first guest died, see the step's words");
                    seat.prepare(&machine, script.devices_there(), output)?;
                    verdict = seat.run(script)?;
                }
                if verdict.lacks && self.suite == NEWEST_SUITE {
                    verdict.failure = Some("the newest kernel lacks nothing, they say".into());
                }
                show(&verdict, output);
                Ok(match verdict.failure {
                    Some(_) => Count::FAILED,
                    None if verdict.lacks => Count::NONE,
                    None => Count::ONE,
                })
            });
            steps.push(step.weighing(weight));
        }
        steps.extend(on_purpose);
    }
}

/// Those that have the same guests, of so many processors at least, come together. Those with several processors come first: often they
/// wait for each other, and what has one goes on beside them.
fn ordered(scripts: &[Script], least: u32) -> Vec<&Script> {
    let mut ordered: Vec<&Script> = scripts.iter().collect();
    ordered.sort_by_key(|script| {
        (Reverse(script.processors.max(least)), script.devices_there() == Set::Usual)
    });
    ordered
}

/// The last words of a test that passed; all words of one that failed, with the reason.
fn show(verdict: &Verdict, output: &mut Output) {
    let lines: Vec<&str> = verdict.log.lines().collect();
    let shown = if verdict.failure.is_some() { lines.len() } else { LINES_OF_PASSED };
    for line in &lines[lines.len().saturating_sub(shown)..] {
        output.say(&format!("   {line}"));
    }
    if let Some(time) = verdict.processor_time {
        output.say(&format!("   {:.1} s of processor time", time.as_secs_f64()));
    }
    if let Some(why) = &verdict.failure {
        output.say(&format!("   {why}"));
        // Where it stopped, in the words of tests/guest/harness.sh: what failed, and then what that made fail; or
        // else its last words.
        let end = lines.iter().position(|line| line.starts_with("--- ")).unwrap_or(lines.len());
        let died = lines[..end].iter().position(|line| line.starts_with("FAILED "));
        let from = died.unwrap_or(end.saturating_sub(2));
        output.blame(why);
        output.blame(&lines[from..end].join("\n"));
    }
}

fn names(scripts: &[Script]) -> Result<Vec<String>> {
    let mut names: Vec<String> = ["format", "tidy", "unit"].map(String::from).to_vec();
    names.extend(fuzz_targets()?.into_iter().map(|target| format!("fuzz/{target}")));
    names.push("libaio/harness".into());
    names.extend(scripts.iter().map(|script| {
        let only = if script.full_only { FULL_ONLY } else { "" };
        format!("{FIRST}/{}{only}", script.name)
    }));
    names.extend([POWER_CUT, ON_PURPOSE].map(|name| format!("{FIRST}/{name}")));
    let alone = ["bench/copy", "bench/decision", "deb", "bench/floors"];
    let repeated = repeated::TESTS.iter().map(|test| test.name);
    names.extend(alone.into_iter().chain(repeated).map(|name| format!("{name}{FULL_ONLY}")));
    let older = scripts.iter().filter(|script| !script.newest_only).map(|it| it.name.as_str());
    let older = older.chain([POWER_CUT]).map(|name| format!("{OLDER}/{name}{FULL_ONLY}"));
    let oldest = OLDEST_SCRIPTS.iter().map(|name| format!("{OLDEST}/{name}{FULL_ONLY}"));
    names.extend(older.chain(oldest));
    Ok(names)
}

fn format(output: &Output) -> Result<Count> {
    output.run(cargo()?.args(["fmt", "--all", "--check"]))?;
    Ok(Count::ONE)
}

fn tidy(output: &mut Output) -> Result<Count> {
    output.say(&tidy::check()?);
    Ok(Count::ONE)
}

fn fuzz_targets() -> Result<Vec<String>> {
    let directory = checkout()?.join("fuzz/fuzz_targets");
    let mut targets = Vec::new();
    for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            targets.push(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    targets.sort();
    Ok(targets)
}

fn fuzz(target: &str, seconds: u32, output: &Output) -> Result<Count> {
    output.run(fuzz_command()?.arg(seconds.to_string()).arg(target))?;
    Ok(Count::ONE)
}

fn fuzz_command() -> Result<Command> {
    // Its own target directory: its flags would rebuild everything in ours.
    let mut command = Command::new(checkout()?.join("fuzz/run"));
    command.env_remove("CARGO_TARGET_DIR");
    Ok(command)
}

/// Where what steps print is kept while they run.
fn logs() -> Result<PathBuf> {
    Ok(target_directory()?.join("test-logs"))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn commit() -> Result<String> {
    let mut git = Command::new("git");
    let said = capture(git.args(["describe", "--always", "--dirty"]).current_dir(checkout()?))?;
    Ok(said.trim().to_owned())
}

/// Where random copies of the full run begin: at the number that a commit's short name is.
fn copy_seed(commit: &str) -> u64 {
    let name = commit.trim_end_matches("-dirty");
    let name = name.rsplit_once("-g").map_or(name, |(_, name)| name);
    u64::from_str_radix(name, 16).unwrap_or(1)
}

/// `cargo xtask run`: what `make run` does.
pub fn serve(arguments: &[String]) -> Result<u8> {
    packages::install(List::Run)?;
    objects::compile_changed()?;
    run(cargo()?.args(["build", "--locked", "--profile", RELEASE]).args(SHIPPED))?;
    let nvlane = target_directory()?.join(RELEASE).join("nvlane");
    // Replaced by it, so that signals and the exit status are its own.
    let error = std::os::unix::process::CommandExt::exec(
        Command::new(&nvlane).arg("serve").args(arguments),
    );
    Err(error).with_context(|| text(&nvlane))
}

/// `cargo xtask bench`: the benchmarks, with their peers installed.
pub fn bench(arguments: &[String]) -> Result<u8> {
    packages::install(List::Bench)?;
    objects::compile_changed()?;
    run(cargo()?.args(["build", "--locked", "--profile", RELEASE]).args(SHIPPED))?;
    let nvlane = target_directory()?.join(RELEASE).join("nvlane");
    run(Command::new(&nvlane).arg("bench").args(bench_words(arguments)))?;
    Ok(0)
}

/// The arguments of `nvlane bench`: whoever names no scenario gets the target's. A word that is no option may be one's name,
/// or an option's value beside one; nvlane tells which are missing.
fn bench_words(arguments: &[String]) -> Vec<&str> {
    let asks = |word: &String| matches!(word.as_str(), "--list" | "--help" | "-h");
    let names_none = arguments.iter().all(|word| word.starts_with('-') && !asks(word));
    let scenario = names_none.then_some(USUAL_SCENARIO);
    scenario.into_iter().chain(arguments.iter().map(String::as_str)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_run_on_the_oldest_kernel_is_there_and_may() {
        let scripts = Script::all(1).unwrap();
        for name in OLDEST_SCRIPTS {
            let script = scripts.iter().find(|script| script.name == name);
            assert!(script.is_some_and(|script| !script.newest_only), "{name}");
        }
    }

    #[test]
    fn scripts_with_the_same_guests_come_together_and_those_with_one_processor_last() {
        let scripts = Script::all(1).unwrap();
        for least in [1, 2] {
            let guest = |script: &&Script| (script.processors.max(least), script.devices_there());
            let mut guests: Vec<(u32, Set)> = ordered(&scripts, least).iter().map(guest).collect();
            assert_eq!(guests.len(), scripts.len());
            guests.dedup();
            assert!(guests.is_sorted_by_key(|(processors, _)| Reverse(*processors)), "{guests:?}");
            let is_once = |it| guests.iter().filter(|other| *other == it).count() == 1;
            assert!(guests.iter().all(is_once), "each kind is booted once: {guests:?}");
        }
    }

    #[test]
    fn every_step_is_listed() {
        let listed = names(&[]).unwrap();
        let programs = Programs::of(Vec::new(), false, true, 1);
        let mut ahead = Ahead::new(Vec::new());
        let steps = steps_before_guests(&[], &programs, true, &FULL).unwrap();
        let steps = steps.into_iter().map(|step| step.name);
        for name in steps.chain(steps_alone(&mut ahead, true).into_iter().map(|step| step.name)) {
            let is_listed = |it: &String| it.strip_suffix(FULL_ONLY).unwrap_or(it) == name;
            assert!(listed.iter().any(is_listed), "{name}");
        }
    }

    #[test]
    fn random_copies_begin_at_the_commit() {
        assert_eq!(copy_seed("0a1b2c3"), 0x00a1_b2c3);
        assert_eq!(copy_seed("v0.1-17-g0a1b2c3-dirty"), 0x00a1_b2c3);
        assert_eq!(copy_seed("v0.1"), 1);
    }

    #[test]
    fn a_bench_without_a_scenario_is_the_targets() {
        let words = |line: &str| {
            let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            bench_words(&arguments).join(" ")
        };
        assert_eq!(words(""), "target");
        assert_eq!(words("--quick --json"), "target --quick --json");
        for line in ["host --quick", "--only idle target", "--list", "--help", "-h"] {
            assert_eq!(words(line), line);
        }
    }
}
