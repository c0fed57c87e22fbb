//! Shell completions and manual pages, made from the command line's own description.

use crate::cli;
use crate::stdout;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// Prints the completion script of a shell.
pub fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "nvlane", &mut script);
    stdout::write(script)
}

/// Prints the manual page of `nvlane`, or writes that of every command into `dir`.
pub fn pages(dir: Option<&Path>) -> Result<()> {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(cli::command()).render(&mut page)?;
        stdout::write(page)?;
        return Ok(());
    };
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    clap_mangen::generate_to(cli::command(), dir).with_context(|| dir.display().to_string())?;
    Ok(())
}
