//! The project's task runner: `cargo xtask --help`. `make` has the everyday verbs.

mod guest;
mod initramfs;
mod kernel;
mod ledger;
mod packages;
mod process;

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
        Task::Ledger(arguments) => ledger::run(arguments),
    }
}
