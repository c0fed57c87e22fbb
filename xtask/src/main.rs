//! The project's task runner: `cargo xtask --help`. `make` has the everyday verbs.

mod ahead;
mod archive;
mod deb;
mod emulator;
mod floors;
mod guest;
mod initramfs;
mod kernel;
mod lanes;
mod ledger;
mod objects;
mod packages;
mod plan;
mod process;
mod programs;
mod repeated;
mod runner;
mod space;
mod tidy;
mod tls;
mod unit;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the nvlane project")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Guest(guest::GuestArguments),
    /// Install the Debian packages that a task needs; does nothing when they are there.
    Deps {
        /// For which task.
        #[arg(value_enum, default_value = "test")]
        list: packages::List,
    },
    /// Format, lints, unit tests and `tidy`: under three minutes.
    Check,
    Test(plan::TestArguments),
    /// Check the tree's own rules: order of crates, names, lengths, decisions.
    Tidy,
    /// Build in release mode and serve; arguments go to `nvlane serve`.
    Run {
        /// Volumes and options; none serves the default volume.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build in release mode and measure; arguments go to `nvlane bench`. `--list` names the scenarios.
    Bench {
        /// Scenario and options; the scenario `target` where none is named.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build in release mode and make a Debian package of it.
    Deb,
    /// Check whether a device kept what it acknowledged as durable (a tool of the tests).
    Ledger(ledger::LedgerArguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<u8> {
    match task {
        Task::Guest(arguments) => guest::run(arguments),
        Task::Deps { list } => packages::install(list).map(|()| 0),
        Task::Check => plan::check(),
        Task::Test(arguments) => plan::test(arguments),
        Task::Tidy => {
            println!("{}", tidy::check()?);
            Ok(0)
        }
        Task::Run { arguments } => plan::serve(&arguments),
        Task::Bench { arguments } => plan::bench(&arguments),
        Task::Deb => deb::make(),
        Task::Ledger(arguments) => ledger::run(arguments),
    }
}
