//! `nvlane`: the command and the daemon.
//!
//! ```text
//!   cli --> serve --> daemon (control plane) --> target, volume (data path)
//!       |-> ctl ------^ control socket
//!       |-> nbd --> ::nbd, volume
//!       |-> ublk --> ::ublk, volume
//!       |-> discover, kickstart, id-ctrl, ... (admin) --> host::client --> a controller
//!       |-> cat, write, paths (session), copy --> volume
//!       |-> jobs ------^ copies that the daemon does
//!       |-> io, admin (passthrough) --> volume::session
//!       |-> doctor --> tries what this machine allows
//!       |-> bpf --> ::bpf, or control socket
//!       |-> aio --> ::aio, in the programs it runs
//!       \-> config, key, info, bench, completions, man
//! ```
//!
//! What it does not do: no data path of its own. That of the daemon is in `target`, volumes are in `volume`;
//! `session` has commands use one.
//! A user's mistake costs one line on standard error and exit status 1.
//!
//! Read `config`, `serve`, `daemon`, `control`, in this order.

// They end the program where nobody reads any more.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod aio;
mod bench;
mod bpf;
mod cli;
mod config;
mod config_command;
mod content;
mod control;
mod copy;
mod ctl;
mod daemon;
mod doctor;
mod info;
mod jobs;
mod key;
mod manual;
mod nbd;
mod origin;
mod passed;
mod passthrough;
mod paths;
mod patience;
mod serve;
mod session;
mod settle;
mod signals;
mod size;
mod stderr;
mod stdout;
mod ublk;
mod when;

use clap::Parser;
use clap::error::ErrorKind;
use cli::{Cli, Command};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    signals::outlive_file_size_limit();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return command_line_error(&error),
    };
    let outcome = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Nbd(args) => nbd::run(&args),
        Command::Ublk(command) => ublk::command(&command),
        Command::Attach(args) => ublk::attach(&args),
        Command::Detach(args) => ublk::detach(&args),
        Command::Ctl(args) => ctl::run(args),
        Command::Config(command) => config_command::run(&command),
        Command::Key(command) => key::run(&command),
        Command::Info(args) => info::run(&args),
        Command::Cat(args) => content::cat(&args),
        Command::Write(args) => content::write(&args),
        Command::Copy(args) => copy::run(&args),
        Command::Jobs(args) => jobs::run(&args),
        Command::Paths(args) => paths::run(&args),
        Command::Discover(args) => admin::discover(&args),
        Command::Kickstart(args) => admin::kickstart(&args),
        Command::List(args) => admin::list(&args),
        Command::ListSubsys(args) => admin::list_subsys(&args),
        Command::IdCtrl(args) => admin::id_ctrl(&args),
        Command::IdNs(args) => admin::id_ns(&args),
        Command::GetLog(args) => admin::get_log(&args),
        Command::ShowRegs(args) => admin::show_regs(&args),
        Command::Io(args) => passthrough::io(&args),
        Command::Admin(args) => passthrough::admin(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Aio(command) => aio::command(&command),
        Command::Bpf(command) => bpf::command(&command),
        Command::Bench(args) => bench::run(args),
        Command::Completions(args) => manual::completions(args.shell),
        Command::Man(args) => manual::pages(args.dir.as_deref()),
    };
    // Controllers that were used are told that this is the end.
    host::await_closed(Duration::from_secs(1));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough: `nvlane man | head`.
        Err(error) if error.is::<stdout::NoReader>() => ExitCode::SUCCESS,
        Err(error) => {
            say(&one_line(&error));
            ExitCode::FAILURE
        }
    }
}

fn command_line_error(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::FAILURE
        }
        _ => {
            say(&cli::one_line(error));
            ExitCode::FAILURE
        }
    }
}

/// Tells an error to whoever still reads them.
fn say(line: &str) {
    stderr::line(format_args!("nvlane: {line}"));
}

/// The error and its causes, without those that the text before has quoted already.
fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}
