//! `nvlane config`: configurations without a daemon.

use crate::cli::ConfigCommand;
use crate::config::{Config, file, nvmetcli, store};
use anyhow::{Context, Result, anyhow};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Imports, checks or shows a configuration.
pub fn run(command: &ConfigCommand) -> Result<()> {
    match command {
        ConfigCommand::Import { file, output, json } => import(file, output.as_deref(), *json),
        ConfigCommand::Check { file } => {
            let (config, _) = file::read(file)?;
            let volumes: usize = config.subsystems.iter().map(|s| s.namespaces.len()).sum();
            let subsystems = config.subsystems.len();
            let text = format!(
                "{}: can be served: {subsystems} subsystem(s), {volumes} volume(s)\n",
                file.display()
            );
            io::stdout().write_all(text.as_bytes())?;
            Ok(())
        }
        ConfigCommand::Show { file, json } => {
            let (mut config, _) = file::read(file)?;
            config.complete();
            io::stdout().write_all(text(&config, *json).as_bytes())?;
            Ok(())
        }
    }
}

fn import(from: &Path, to: Option<&Path>, json: bool) -> Result<()> {
    let (config, notes) = nvmetcli::import(&file::read_text(from)?)
        .map_err(|problem| anyhow!("{}: {problem}", from.display()))?;
    for note in notes {
        eprintln!("nvlane: note: {note}");
    }
    let text = text(&config, json || to.is_some_and(file::is_json));
    match to {
        Some(path) => write(path, &text).with_context(|| path.display().to_string()),
        None => Ok(io::stdout().write_all(text.as_bytes())?),
    }
}

/// Replaces a file as a whole; into anything else that is there (a device, a pipe, a link) it is written.
fn write(path: &Path, text: &str) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => fs::write(path, text),
        _ => store::write_atomically(path, text.as_bytes()),
    }
}

/// A configuration as text.
pub fn text(config: &Config, json: bool) -> String {
    if json {
        let mut text = serde_json::to_string_pretty(config).expect("plain data");
        text.push('\n');
        text
    } else {
        file::to_toml(config)
    }
}
