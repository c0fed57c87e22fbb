//! `nvlane aio`: programs over our libaio, and what they did.
//!
//! ```text
//!   run  --LD_PRELOAD--> program
//!   stat <--/proc/PID/fd-- counters of the library in the program
//!   run --stat <--files of a folder-- the same, when it has ended
//! ```

use crate::cli::{AioCommand, AioMode, AioRunArgs, AioStatArgs, ListFormat};
use crate::stdout;
use ::aio::stat::{self, Counter, NAMES, Report, sum};
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// Names the library, for those who keep it elsewhere.
const VARIABLE: &str = "NVLANE_AIO_LIBRARY";
/// What our library has and libaio has not.
const OURS: &[u8] = b"NVLANE_AIO_1";
/// Where the library may be, from the folder of this program. A build calls it `libnvlane_aio.so`.
const PLACES: [&str; 4] =
    ["libaio.so.1", "libnvlane_aio.so", "deps/libnvlane_aio.so", "../lib/nvlane/libaio.so.1"];

/// Signals that are looked for while the program runs, but for those that are ignored: it is to ignore them, too.
const PASSED: [i32; 6] = [SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGINT, SIGQUIT];

/// `nvlane aio`.
pub fn command(command: &AioCommand) -> Result<()> {
    match command {
        AioCommand::Run(args) => run(args),
        AioCommand::Stat(args) => show(args),
    }
}

/// Becomes the program, or waits for it to tell what it did.
fn run(args: &AioRunArgs) -> Result<()> {
    let library = library(args.library.as_deref())?;
    let mut preload = library.into_os_string();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        preload.push(":");
        preload.push(before);
    }
    let (program, arguments) = args.program.split_first().context("no program is named")?;
    let mode = match args.mode {
        AioMode::Auto => "auto",
        AioMode::Ring => "ring",
        AioMode::Native => "native",
    };
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", preload).env("NVLANE_AIO", mode);
    let refused = || format!("{} cannot be run", Path::new(program).display());
    match &args.stat {
        None => Err(command.exec()).with_context(refused),
        Some(file) => {
            let probe = Probe::of(file)?;
            // A name that nobody can have taken before, and nobody else's to look into.
            let folder = tempfile::Builder::new().prefix("nvlane-aio-").tempdir()?;
            command.env(OsStr::from_bytes(stat::VARIABLE.to_bytes()), folder.path());
            // Before it runs: one that comes meanwhile is passed on then.
            let wanted = PASSED.into_iter().filter(|&signal| !crate::signals::ignores(signal));
            let signals = Signals::new(wanted).context("cannot wait for signals")?;
            crate::signals::wait_for_children();
            let mut child = command.spawn().with_context(refused)?;
            probe.keep();
            if let Err(error) = pass(signals, child.id()) {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
            let status = child.wait()?;
            let told = Report::kept_in(folder.path()).map_err(anyhow::Error::from);
            if let Err(error) = told.and_then(|reports| tell(file, &reports)) {
                crate::stderr::line(format_args!(
                    "nvlane: what the program did is not told: {error:#}"
                ));
            }
            drop(folder);
            // As a shell has it.
            let ended = status.signal().map(|signal| 128 + signal);
            std::process::exit(status.code().or(ended).unwrap_or(1));
        }
    }
}

/// The file that is written in the end, looked at before the program runs: what it did would be lost otherwise.
struct Probe<'a> {
    /// It was not there, and goes again if the program does not run.
    made: Option<&'a Path>,
}

impl Probe<'_> {
    fn of(file: &Path) -> Result<Probe<'_>> {
        // A pipe is waited for when there is something for it.
        let is_there = match file.metadata() {
            Ok(found) if !found.is_file() && !found.is_dir() => return Ok(Probe { made: None }),
            found => found.is_ok(),
        };
        if file == Path::new("-") {
            return Ok(Probe { made: None });
        }
        let mut open = fs::OpenOptions::new();
        open.write(true).create(true).truncate(false);
        open.open(file).with_context(|| format!("--stat {}", file.display()))?;
        Ok(Probe { made: (!is_there).then_some(file) })
    }

    fn keep(mut self) {
        self.made = None;
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.made {
            let _ = fs::remove_file(file);
        }
    }
}

/// Passes on signals that are meant for the program. Those of a terminal reach it anyway.
fn pass(mut signals: Signals, pid: u32) -> Result<()> {
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if !matches!(signal, SIGINT | SIGQUIT) {
                // SAFETY: a number, and a child that has not been waited for but for an instant before we end.
                unsafe { libc::kill(pid as libc::pid_t, signal) };
            }
        }
    })?;
    Ok(())
}

/// Writes what processes did to `file`.
fn tell(file: &Path, reports: &[(u32, Report)]) -> Result<()> {
    if file == Path::new("-") {
        for (pid, report) in reports {
            crate::stderr::text(format_args!("process {pid}\n{}", as_text(report)));
        }
        return Ok(());
    }
    let processes: Vec<Value> = reports
        .iter()
        .map(|(pid, report)| {
            let mut object = as_json(report);
            object["pid"] = (*pid).into();
            object
        })
        .collect();
    let total = counters(|index| sum(reports.iter().map(|(_, report)| total(report, index))));
    let text = format!("{:#}\n", json!({ "processes": processes, "total": total }));
    fs::write(file, text).with_context(|| file.display().to_string())
}

/// The library's absolute path.
fn library(named: Option<&Path>) -> Result<PathBuf> {
    let named = named.map(PathBuf::from);
    let named = named.or_else(|| std::env::var_os(VARIABLE).map(|path: OsString| path.into()));
    if let Some(path) = named {
        return checked(&path);
    }
    let program = std::env::current_exe().context("where this program is")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    for place in PLACES {
        let path = folder.join(place);
        if path.exists()
            && let Ok(path) = checked(&path)
        {
            return Ok(path);
        }
    }
    bail!(
        "no libaio.so.1 of nvlane beside {} or in ../lib/nvlane; name it with --library or in ${VARIABLE}",
        program.display()
    );
}

fn checked(path: &Path) -> Result<PathBuf> {
    let path = path.canonicalize().with_context(|| path.display().to_string())?;
    let text = path.to_string_lossy();
    // The dynamic loader splits LD_PRELOAD there, and knows no way around it.
    if text.contains([' ', ':']) {
        bail!("{text}: the dynamic loader takes no path with a space or a colon");
    }
    let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
    if !bytes.windows(OURS.len()).any(|window| window == OURS) {
        bail!("{text} is not nvlane's libaio");
    }
    Ok(path)
}

/// Prints what the process did.
fn show(args: &AioStatArgs) -> Result<()> {
    let report = Report::of(args.pid)?;
    stdout::write(match args.output_format {
        ListFormat::Json => format!("{:#}\n", as_json(&report)),
        ListFormat::Normal => as_text(&report),
    })
}

fn counters(counts: impl Fn(usize) -> u64) -> Map<String, Value> {
    NAMES
        .iter()
        .enumerate()
        .map(|(index, name)| ((*name).to_owned(), counts(index).into()))
        .collect()
}

fn as_json(report: &Report) -> Value {
    let open: Vec<Value> = report
        .open
        .iter()
        .map(|context| {
            let mut object = counters(|index| context.counts[index]);
            object.insert("id".into(), format!("{:#x}", context.id).into());
            object.insert("mode".into(), context.mode.into());
            object.insert("reason".into(), context.reason.into());
            object.insert("events".into(), context.nr.into());
            object.insert("extended".into(), context.extended.into());
            object.insert("events_taken".into(), context.counts[Counter::Events as usize].into());
            Value::Object(object)
        })
        .collect();
    let total = counters(|index| total(report, index));
    json!({ "contexts": report.contexts, "open": open, "total": total })
}

/// A counter over all contexts, open and ended.
fn total(report: &Report, index: usize) -> u64 {
    let open = report.open.iter().map(|context| context.counts[index]);
    sum(open.chain([report.ended[index]]))
}

fn as_text(report: &Report) -> String {
    let mut text = format!("contexts: {} made, {} open\n", report.contexts, report.open.len());
    let columns =
        [Counter::Ring, Counter::Inline, Counter::Native, Counter::Refused, Counter::Events];
    let names: Vec<&str> = columns.iter().map(|&column| NAMES[column as usize]).collect();
    let mut line = |name: &str, mode: &str, values: Vec<String>| {
        text.push_str(&format!("{name:<20} {mode:<26}"));
        for value in values {
            text.push_str(&format!(" {value:>12}"));
        }
        text.push('\n');
    };
    line("context", "mode", names.iter().map(|&name| name.to_owned()).collect());
    for context in &report.open {
        let mode = match (context.extended, context.reason) {
            (true, _) => "io_setup2".to_owned(),
            (false, "") => context.mode.to_owned(),
            (false, reason) => format!("{} ({reason})", context.mode),
        };
        let values = columns.iter().map(|&column| context.counts[column as usize].to_string());
        line(&format!("{:#x}", context.id), &mode, values.collect());
    }
    let values = columns.iter().map(|&column| report.total(column).to_string());
    line("total", "", values.collect());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut counts = [0; NAMES.len()];
        counts[Counter::Ring as usize] = 7;
        let open = ::aio::stat::Open {
            id: 0x7000,
            mode: "native",
            reason: "eventfd",
            nr: 127,
            extended: false,
            counts,
        };
        Report { contexts: 3, ended: counts, open: vec![open] }
    }

    #[test]
    fn totals_have_contexts_that_have_ended() {
        let json = as_json(&report());
        assert_eq!(json["total"]["ring"], 14);
        assert_eq!(json["open"][0]["ring"], 7);
        assert_eq!(json["open"][0]["id"], "0x7000");
        let text = as_text(&report());
        assert!(text.contains("native (eventfd)"), "{text}");
        assert!(text.lines().last().unwrap().contains("14"), "{text}");
    }

    #[test]
    fn counters_of_others_may_be_any_numbers() {
        let mut odd = report();
        odd.ended.fill(u64::MAX);
        assert_eq!(as_json(&odd)["total"]["ring"], u64::MAX);
        let folder = tempfile::tempdir().unwrap();
        tell(&folder.path().join("stat"), &[(1, odd.clone()), (2, odd)]).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_written_is_told_before_the_program_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let library = path("libaio.so.1");
        fs::write(&library, OURS).unwrap();
        let args = |stat: PathBuf, program: PathBuf| AioRunArgs {
            mode: AioMode::Auto,
            library: Some(library.clone()),
            stat: Some(stat),
            program: vec![program.into(), path("ran").into()],
        };
        let touch = || PathBuf::from("/usr/bin/touch");
        for stat in [path("nowhere/stat"), folder.path().to_owned()] {
            let error = format!("{:#}", run(&args(stat.clone(), touch())).unwrap_err());
            assert!(error.starts_with(&format!("--stat {}: ", stat.display())), "{error}");
        }
        assert!(!path("ran").exists());
        // A program that cannot be run leaves no empty file, and one that was there as it was.
        assert!(run(&args(path("stat"), path("nothing"))).is_err() && !path("stat").exists());
        fs::write(path("stat"), "before").unwrap();
        assert!(run(&args(path("stat"), path("nothing"))).is_err());
        assert_eq!(fs::read(path("stat")).unwrap(), b"before");
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        // Above all that there can be.
        let args = AioStatArgs { pid: 1 << 30, output_format: ListFormat::Normal };
        assert_eq!(show(&args).unwrap_err().to_string(), "there is no process 1073741824");
    }

    #[test]
    fn a_file_that_is_not_our_library_is_refused() {
        let error = library(Some(Path::new("/proc/self/status"))).unwrap_err();
        assert!(error.to_string().contains("not nvlane's libaio"), "{error}");
        assert!(library(Some(Path::new("/nowhere/libaio.so"))).is_err());
    }
}
