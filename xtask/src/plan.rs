//! What `make test`, `make test-full` and `make check` consist of.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::guest::machine::Machine;
use crate::guest::power_cut;
use crate::guest::session::{self, Script, Verdict};
use crate::kernel::{Kernel, NEWEST_SUITE};
use crate::packages::{self, List};
use crate::process::{capture, checkout, run};
use crate::runner::{Count, Runner, counted, record};
use crate::tidy;

/// The older kernel of the full run.
const OLDER_SUITE: &str = "bookworm-backports";

/// Lines shown of a guest test that passed.
const LINES_OF_PASSED: usize = 6;

/// The profile of what users get: what is measured, and what guests of the full run try.
const RELEASE: &str = "release";
/// The same but for what takes long to build: what guests of the everyday run try.
const QUICK: &str = "quick";

/// Counts of the everyday run and of the full one.
struct Depth {
    /// Rounds of tests that repeat an accident.
    rounds: u32,
    /// Seconds that each fuzzer runs.
    fuzz_seconds: u32,
}

const EVERYDAY: Depth = Depth { rounds: 5, fuzz_seconds: 10 };
const FULL: Depth = Depth { rounds: 20, fuzz_seconds: 60 };

/// Tests of the full run that say by a variable how often they are done: name, package, filter, variable.
const REPEATED: [(&str, &str, &str, (&str, &str)); 3] = [
    (
        "copies/model",
        "namespace",
        "copies_leave_what_the_model_says",
        ("COPY_OPERATIONS", "10000000"),
    ),
    ("copies/kills", "nvlane", "a_kill_at_any_moment_loses_nothing", ("NVLANE_COPY_KILLS", "50")),
    (
        "copies/ends",
        "nvlane",
        "kills_of_targets_and_of_hosts_lose_nothing",
        ("NVLANE_COPY_KILLS", "50"),
    ),
];

/// Run the tests, all or those whose name contains one of the given words.
#[derive(Args, Debug)]
pub struct TestArguments {
    /// The stated counts (20 rounds, 60 s per fuzzer, two kernels); resumes where it was stopped,
    /// and writes a dated record to docs/results.
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
    /// Words that the names of the wanted tests contain: `guest/fio`, `fuzz`, `power-cut`.
    names: Vec<String>,
}

/// `cargo xtask check`: what takes under three minutes.
pub fn check() -> Result<u8> {
    let mut runner = Runner::new(Vec::new());
    runner.step("format", format);
    runner.step("tidy", || tidy::check().map(|()| Count::ONE));
    runner.step("clippy", || {
        let arguments = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-Dwarnings"];
        run(cargo()?.args(arguments)).map(|()| Count::ONE)
    });
    runner.step("unit", || {
        let arguments = ["test", "--workspace", "--lib", "--bins", "--locked", "--no-fail-fast"];
        counted(cargo()?.args(arguments))
    });
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
    let mut runner = Runner::new(arguments.names.clone());
    if arguments.full {
        let target = target_directory()?;
        fs::create_dir_all(&target)?;
        runner = runner.resumable(target.join("test-full.progress"))?;
    }
    packages::install(List::Test)?;
    runner.step("format", format);
    runner.step("tidy", || tidy::check().map(|()| Count::ONE));
    runner.step("unit", || {
        counted(cargo()?.args(["test", "--workspace", "--locked", "--no-fail-fast"]))
    });
    for target in fuzz_targets()? {
        runner.step(&format!("fuzz/{target}"), || fuzz(&target, depth.fuzz_seconds));
    }
    if arguments.full {
        // What `unit` does a few of, as often as was asked for.
        for (name, package, filter, (variable, count)) in REPEATED {
            runner.step(name, || {
                let arguments = ["test", "--release", "--locked", "-p", package, "--tests", filter];
                let count = counted(cargo()?.args(arguments).env(variable, count))?;
                ensure!(count.passed + count.failed > 0, "no test is called {filter}");
                Ok(count)
            });
        }
        runner.step("libaio/harness", || {
            run(build(RELEASE)?.arg("--package=libaio"))?;
            let library = target_directory()?.join(RELEASE).join("libnvlane_aio.so");
            run(Command::new(checkout()?.join("tests/libaio/run")).arg(library))?;
            Ok(Count::ONE)
        });
    }
    let mut kernels = vec![(arguments.kernel.as_str(), "guest")];
    if arguments.full {
        kernels.push((OLDER_SUITE, "guest-older"));
    }
    let mut versions = Vec::new();
    for (suite, prefix) in kernels {
        match guest_tests(&mut runner, &scripts, suite, prefix, &arguments, &depth) {
            Ok(version) => versions.push(version),
            Err(error) => {
                println!("{error:#}");
                runner.note(
                    &format!("{prefix}/boot"),
                    Count { passed: 0, failed: 1 },
                    Duration::ZERO,
                );
            }
        }
    }
    if arguments.full {
        let about = [
            ("commit", commit()?),
            ("guest kernels", versions.join(", ")),
            ("rounds of each accident", depth.rounds.to_string()),
            ("seconds per fuzzer", depth.fuzz_seconds.to_string()),
        ];
        println!("\nrecorded in {}", record(&runner, &about)?.display());
    }
    Ok(runner.finish())
}

/// All that runs in a guest of one kernel; returns the kernel's version.
fn guest_tests(
    runner: &mut Runner,
    scripts: &[Script],
    suite: &str,
    prefix: &str,
    arguments: &TestArguments,
    depth: &Depth,
) -> Result<String> {
    let name = |script: &Script| format!("{prefix}/{}", script.name);
    let wanted: Vec<Script> = scripts
        .iter()
        .filter(|script| arguments.full || !script.full_only)
        .filter(|script| suite == NEWEST_SUITE || !script.newest_only)
        .filter(|script| runner.wants(&name(script)))
        .cloned()
        .collect();
    let power_cut = format!("{prefix}/power-cut");
    if wanted.is_empty() && !runner.wants(&power_cut) {
        return Ok(suite.to_owned());
    }
    println!("\n== {prefix}: building");
    let kernel = Kernel::of_suite(suite, false)?;
    let version = kernel.version.clone();
    let mut machine = Machine::new(kernel)?;
    machine.environment = environment(&wanted, arguments.full, depth)?;
    println!("== {prefix}: {} tests on Linux {version}", wanted.len());
    let noted = session::run(&machine, &wanted, &mut |verdict| {
        println!("\n== {prefix}/{}", verdict.name);
        show(verdict);
        let failed = u32::from(verdict.failure.is_some());
        let count = Count { passed: 1 - failed, failed };
        runner.note(&format!("{prefix}/{}", verdict.name), count, verdict.took);
    });
    if let Err(error) = noted {
        println!("{error:#}");
        runner.note(&format!("{prefix}/session"), Count { passed: 0, failed: 1 }, Duration::ZERO);
    }
    runner.step(&power_cut, || {
        power_cut::run(&machine, depth.rounds, arguments.seed)?;
        Ok(Count { passed: depth.rounds, failed: 0 })
    });
    Ok(version)
}

/// The last words of a test that passed; all words of one that failed, with the reason.
fn show(verdict: &Verdict) {
    let lines: Vec<&str> = verdict.log.lines().collect();
    let shown = if verdict.failure.is_some() { lines.len() } else { LINES_OF_PASSED };
    for line in &lines[lines.len().saturating_sub(shown)..] {
        println!("   {line}");
    }
    if let Some(why) = &verdict.failure {
        println!("   {why}");
    }
}

/// Builds what the scripts run, unless NVLANE names a program, and says where it is.
fn environment(scripts: &[Script], full: bool, depth: &Depth) -> Result<Vec<(String, String)>> {
    let target = target_directory()?;
    let given = std::env::var("NVLANE").ok();
    let profile = if full { RELEASE } else { QUICK };
    if given.is_none() {
        build_shipped(profile)?;
    }
    let built = target.join(profile);
    let program = given.unwrap_or_else(|| text(&built.join("nvlane")));
    let mut variables = vec![
        ("NVLANE".to_owned(), program),
        ("XTASK".to_owned(), text(&std::env::current_exe()?)),
        ("FULL".to_owned(), u8::from(full).to_string()),
        ("ROUNDS".to_owned(), depth.rounds.to_string()),
    ];
    if scripts.iter().any(|script| script.devices) {
        let given = std::env::var("NVME_EXAMPLE").ok();
        if given.is_none() {
            run(build(profile)?.args(["--package", "volume", "--example", "nvme"]))?;
        }
        let example = given.unwrap_or_else(|| text(&built.join("examples/nvme")));
        variables.push(("NVME_EXAMPLE".to_owned(), example));
    }
    if scripts.iter().any(|script| script.name.contains("mutant")) {
        variables.push(("NVLANE_MUTANTS".to_owned(), text(&build_mutants(&target)?)));
    }
    if scripts.iter().any(|script| script.name == "library") {
        let programs = match std::env::var("LIBRARY_PROGRAMS") {
            Ok(given) => given,
            Err(_) => text(&build_library_programs(&target, profile)?),
        };
        variables.push(("LIBRARY_PROGRAMS".to_owned(), programs));
    }
    if scripts.iter().any(|script| script.name == "rings") {
        variables.push(("RING_PROGRAMS".to_owned(), build_ring_programs()?));
    }
    if let Ok(peer) = std::env::var("NVLANE_PEER") {
        variables.push(("NVLANE_PEER".to_owned(), peer));
    }
    Ok(variables)
}

/// What users get: the program, and the libaio that it runs others with.
fn build_shipped(profile: &str) -> Result<()> {
    run(build(profile)?.args(["--package=nvlane", "--package=libaio"]))
}

/// The program with its promises made breakable at run time; in a place where nobody takes it for
/// the real one.
fn build_mutants(target: &Path) -> Result<PathBuf> {
    run(cargo()?.args(["build", "--locked", "--package", "nvlane", "--features", "mutants"]))?;
    let built = target.join("debug/nvlane");
    let kept = checkout()?.join("target/guest/nvlane-mutants");
    fs::copy(&built, &kept).with_context(|| built.display().to_string())?;
    // What has the mutants in it is not left where the next build expects the real one.
    fs::remove_file(&built)?;
    Ok(kept)
}

/// The library with its examples: libnvlane.so, rust/NAME, c/NAME in one folder.
fn build_library_programs(target: &Path, profile: &str) -> Result<PathBuf> {
    const NAMES: [&str; 3] = ["passthrough", "zone_append", "vendor"];
    run(build(profile)?.args(["--package", "capi"]))?;
    run(build(profile)?.args(["--package", "volume", "--examples"]))?;
    let (checkout, folder) = (checkout()?, checkout()?.join("target/guest/library"));
    for language in ["rust", "c"] {
        fs::create_dir_all(folder.join(language))?;
    }
    let programs = target.join(profile);
    let built = programs.join("libnvlane.so");
    fs::copy(&built, folder.join("libnvlane.so")).with_context(|| built.display().to_string())?;
    for name in NAMES {
        let built = programs.join("examples").join(name);
        let kept = folder.join("rust").join(name);
        fs::copy(&built, kept).with_context(|| built.display().to_string())?;
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O2", "-I"]).arg(checkout.join("crates/capi/include"));
        compiler.arg(checkout.join("examples/c").join(format!("{name}.c")));
        compiler.arg("-o").arg(folder.join("c").join(name));
        run(compiler.arg("-L").arg(&folder).arg("-lnvlane"))?;
    }
    Ok(folder)
}

/// The tests and examples of the crates around io_uring, separated by spaces: kernels differ in
/// what rings they have.
fn build_ring_programs() -> Result<String> {
    let mut programs = Vec::new();
    for what in [["test", "--no-run", "--tests"].as_slice(), &["build", "--examples"]] {
        let options = ["--locked", "--message-format=json", "--package=uring", "--package=reactor"];
        let said = capture(cargo()?.args(what).args(options))?;
        let built = said.lines().filter_map(|line| line.split_once("\"executable\":\""));
        programs.extend(built.filter_map(|(_, rest)| Some(rest.split('"').next()?.to_owned())));
    }
    Ok(programs.join(" "))
}

fn names(scripts: &[Script]) -> Result<Vec<String>> {
    let mut names: Vec<String> = ["format", "tidy", "unit"].map(String::from).to_vec();
    names.extend(fuzz_targets()?.into_iter().map(|target| format!("fuzz/{target}")));
    names.extend(scripts.iter().map(|script| {
        let only = if script.full_only { " (full run only)" } else { "" };
        format!("guest/{}{only}", script.name)
    }));
    names.push("guest/power-cut".into());
    Ok(names)
}

fn format() -> Result<Count> {
    run(cargo()?.args(["fmt", "--all", "--check"]))?;
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

fn fuzz(target: &str, seconds: u32) -> Result<Count> {
    // Its own target directory: its flags would rebuild everything in ours.
    let mut command = Command::new(checkout()?.join("fuzz/run"));
    command.env_remove("CARGO_TARGET_DIR").arg(seconds.to_string()).arg(target);
    run(&mut command)?;
    Ok(Count::ONE)
}

fn build(profile: &str) -> Result<Command> {
    let mut command = cargo()?;
    command.args(["build", "--locked", "--profile", profile]);
    Ok(command)
}

fn cargo() -> Result<Command> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(checkout()?);
    Ok(cargo)
}

fn target_directory() -> Result<PathBuf> {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => Ok(std::path::absolute(directory)?),
        None => Ok(checkout()?.join("target")),
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn commit() -> Result<String> {
    let mut git = Command::new("git");
    let said = capture(git.args(["describe", "--always", "--dirty"]).current_dir(checkout()?))?;
    Ok(said.trim().to_owned())
}

/// `cargo xtask run`: what `make run` does.
pub fn serve(arguments: &[String]) -> Result<u8> {
    packages::install(List::Run)?;
    build_shipped(RELEASE)?;
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
    build_shipped(RELEASE)?;
    let nvlane = target_directory()?.join(RELEASE).join("nvlane");
    run(Command::new(&nvlane).arg("bench").args(arguments))?;
    Ok(0)
}
