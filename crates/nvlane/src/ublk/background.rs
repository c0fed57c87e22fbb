//! Servers in the background: of nobody who could take them with him, not even a terminal.

use super::record;
use crate::cli::{ListFormat, UblkAddArgs, UblkMakeArgs, UblkRecoverArgs, UblkServeArgs};
use crate::signals;
use crate::stdout;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What a server has said when its device was there.
struct Served {
    /// The N of `/dev/ublkbN`.
    id: u32,
    /// All of it: a line of JSON.
    line: String,
}

/// `nvlane ublk recover --background`, `nvlane ublk upgrade --background`.
pub fn recover(command: &str, args: &UblkRecoverArgs) -> Result<()> {
    let mut arguments = vec![command.to_owned(), args.id.to_string()];
    arguments.extend(args.volume.clone());
    arguments.extend(serve_arguments(&args.serve));
    tell(&start_here(&arguments)?, args.serve.output_format)
}

/// `nvlane ublk add --background`.
pub fn add(args: &UblkAddArgs) -> Result<()> {
    let mut arguments = vec!["add".to_owned()];
    arguments.extend(make_arguments(&args.make));
    arguments.extend(args.recover.then(|| "--recover".to_owned()));
    tell(&start_here(&arguments)?, args.make.serve.output_format)
}

/// `nvlane attach`: of no service, wherever it is typed.
pub fn attach(args: &UblkMakeArgs) -> Result<()> {
    let mut arguments = vec!["add".to_owned(), "--recover".to_owned()];
    arguments.extend(make_arguments(args));
    tell(&start_logged(&arguments)?, args.serve.output_format)
}

/// Starts `nvlane ublk ARGUMENTS`. Where that is part of a service, so is the server, which becomes its main process and logs
/// where the service does.
fn start_here(arguments: &[String]) -> Result<Served> {
    if !signals::is_service() {
        return start_logged(arguments);
    }
    // Of that service, too, though it is another process.
    start(server(arguments)?.env_remove(signals::STARTED))?
        .context("the server has ended: its log says why")
}

/// Tells which device is there.
fn tell(served: &Served, format: ListFormat) -> Result<()> {
    let text = match format {
        ListFormat::Json => served.line.clone(),
        ListFormat::Normal => format!("/dev/ublkb{}\n", served.id),
    };
    stdout::write(text)
}

/// Starts `nvlane ublk ARGUMENTS`, whose log is a file, and waits until its device is there.
///
/// # Errors
/// What the server said last.
fn start_logged(arguments: &[String]) -> Result<Served> {
    let log = record::log_of_new_server(std::process::id());
    if let Some(directory) = log.parent() {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    let errors = File::create(&log).with_context(|| log.display().to_string())?;
    let mut command = server(arguments)?;
    // Of no service: it would take the server for its own.
    let served = start(command.stderr(errors).env_remove(signals::SOCKET));
    let Ok(Some(served)) = served else {
        let said = last_words(&log);
        let _ = fs::remove_file(&log);
        served?;
        bail!("{}", said.unwrap_or_else(|| "the server has ended without a word".into()));
    };
    // Who waits for it reads no log.
    warnings(&fs::read_to_string(&log).unwrap_or_default())
        .for_each(|said| crate::stderr::line(format_args!("nvlane: {said}")));
    fs::rename(&log, record::log_of(served.id.into()))
        .with_context(|| log.display().to_string())?;
    Ok(served)
}

/// What a log warns of, without time and level.
fn warnings(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter_map(|line| {
        let (_, rest) = line.split_once(' ')?;
        Some(rest.trim_start().strip_prefix("WARN ")?.trim_start())
    })
}

/// The last line that a server has logged.
fn last_words(log: &Path) -> Option<String> {
    let said = fs::read_to_string(log).unwrap_or_default();
    let last = said.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(last.trim_start_matches("nvlane: ").to_owned())
}

fn server(arguments: &[String]) -> Result<Command> {
    let program = std::env::current_exe().context("cannot find out which program this is")?;
    let mut command = Command::new(program);
    let (action, rest) = arguments.split_first().context("there is something to be done")?;
    command.args(["ublk", action, "-o", "json"]).args(rest);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// Starts a server, which is nobody's child then and in a session of its own, and outlives every terminal. None if it has ended
/// before its device was there.
fn start(command: &mut Command) -> Result<Option<Served>> {
    // SAFETY: between fork and exec nothing is called but what POSIX (2008) lists as safe there, and the process between
    // both ends without running anything else of ours.
    let command = unsafe {
        command.pre_exec(|| {
            libc::setsid();
            match libc::fork() {
                0 => {}
                -1 => return Err(io::Error::last_os_error()),
                // Service managers watch their own children: that is what the server becomes now.
                _ => libc::_exit(0),
            }
            match libc::signal(libc::SIGHUP, libc::SIG_IGN) {
                libc::SIG_ERR => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        })
    };
    signals::wait_for_children();
    let mut between = command.spawn().context("cannot start the server")?;
    let output = between.stdout.take().expect("piped");
    between.wait().context("cannot wait for the server's parent")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).context("cannot hear the server")?;
    let made: Value = serde_json::from_str(&line).unwrap_or_default();
    let id = made["id"].as_u64().and_then(|id| u32::try_from(id).ok());
    Ok(id.map(|id| Served { id, line }))
}

/// What is asked for, on a command line, without the format.
fn make_arguments(args: &UblkMakeArgs) -> Vec<String> {
    let UblkMakeArgs {
        volume,
        id,
        queues,
        depth,
        auto,
        zero_copy,
        user_copy,
        copy,
        batch,
        no_batch,
        max_io,
        read_only,
        serve,
    } = args;
    let flags = [
        (auto, "--auto"),
        (zero_copy, "--zero-copy"),
        (user_copy, "--user-copy"),
        (copy, "--copy"),
        (batch, "--batch"),
        (no_batch, "--no-batch"),
        (read_only, "--read-only"),
    ];
    let values = [
        id.map(|id| format!("--id={id}")),
        queues.map(|queues| format!("--queues={queues}")),
        depth.map(|depth| format!("--depth={depth}")),
        max_io.map(|bytes| format!("--max-io={bytes}")),
    ];
    let mut words: Vec<String> = values.into_iter().flatten().collect();
    words.extend(flags.iter().filter(|(asked, _)| **asked).map(|(_, flag)| (*flag).to_owned()));
    words.extend(serve_arguments(serve));
    // It may begin as options do.
    words.extend(["--".to_owned(), volume.clone()]);
    words
}

/// The same of how it is served.
fn serve_arguments(args: &UblkServeArgs) -> Vec<String> {
    let UblkServeArgs { cores, threads, poll, bpf, output_format: _, log } = args;
    let place = bpf.as_ref().and_then(ValueEnum::to_possible_value);
    let each = [
        cores.as_ref().map(|cores| format!("--cores={cores}")),
        threads.map(|threads| format!("--threads={threads}")),
        poll.then(|| "--poll".to_owned()),
        place.map(|place| format!("--bpf={}", place.get_name())),
        log.as_ref().map(|log| format!("--log={log}")),
    ];
    each.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        serve: UblkServeArgs,
    }

    #[derive(Debug, Parser)]
    struct MakeLine {
        #[command(flatten)]
        make: UblkMakeArgs,
    }

    #[test]
    fn what_is_made_in_the_background_is_what_was_asked_for() {
        for line in [
            &["add", "mem:1M"][..],
            &["add", "-q", "2", "--", "-odd.img"],
            &[
                "add",
                "bpf:a.bpf.o(a b,c)",
                "-n",
                "7",
                "-q",
                "2",
                "-d",
                "8",
                "--max-io",
                "64K",
                "-r",
            ],
            &["add", "disk.img", "--auto", "--batch", "--bpf", "user"],
            &["add", "disk.img", "--zero-copy", "--no-batch", "--threads", "2", "--cores", "0-1"],
            &["add", "disk.img", "--user-copy", "--log", "debug"],
            &["add", "disk.img", "--copy", "--poll"],
        ] {
            let asked = MakeLine::parse_from(line);
            let words = make_arguments(&asked.make);
            let told = MakeLine::parse_from(["add".to_owned()].into_iter().chain(words));
            assert_eq!(format!("{asked:?}"), format!("{told:?}"));
        }
    }

    #[test]
    fn what_the_server_is_told_is_what_was_asked_for() {
        for line in [
            &["ublk"][..],
            &["ublk", "--cores", "0,2-3", "--threads", "2", "--poll"],
            &["ublk", "--bpf", "kernel", "--cores", "3-3", "--log", "ublk=debug,warn"],
        ] {
            let asked = Line::parse_from(line);
            let words = serve_arguments(&asked.serve);
            let told = Line::parse_from(["ublk".to_owned()].into_iter().chain(words));
            assert_eq!(format!("{asked:?}"), format!("{told:?}"));
        }
    }

    #[test]
    fn who_waits_for_a_server_hears_what_it_warns_of() {
        let log = "2026-11-26T01:02:03.000004Z  INFO a WARN b\n2026-11-26T01:02:03.000005Z  WARN c: d\nWARN\n";
        let said: Vec<&str> = warnings(log).collect();
        assert_eq!(said, ["c: d"]);
    }

    #[test]
    fn the_last_line_is_what_a_server_has_to_say() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        assert_eq!(last_words(&log), None);
        fs::write(&log, "INFO first\nnvlane: no such volume\n\n").unwrap();
        assert_eq!(last_words(&log), Some("no such volume".to_owned()));
    }
}
