//! `nvlane config`: configurations without a daemon.

use crate::cli::ConfigCommand;
use crate::config::identity::Machine;
use crate::config::nvmetcli::KeyFile;
use crate::config::renamed;
use crate::config::store::{Outlook, StoreError};
use crate::config::{Config, file, nvmetcli, store};
use crate::control::client::Client;
use crate::stdout;
use crate::{control, key, origin};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Imports, checks or shows a configuration.
pub fn run(command: &ConfigCommand) -> Result<()> {
    match command {
        ConfigCommand::Import { file, output, keys_dir, json } => {
            import(file, output.as_deref(), keys_dir.as_deref(), *json)
        }
        ConfigCommand::Check { file, data_dir, socket, timeout } => {
            let patience = Duration::from_millis(*timeout);
            let daemon = socket.as_deref().map(|socket| (socket, patience));
            check(file, data_dir.as_deref(), daemon)
        }
        ConfigCommand::Show { file, json } => {
            let (mut config, _) = file::read(file)?;
            config.complete();
            stdout::write(text(&config, *json))?;
            Ok(())
        }
    }
}

/// Says whether a file can be served, and what that would make of the state that there is.
fn check(path: &Path, data_dir: Option<&Path>, daemon: Option<(&Path, Duration)>) -> Result<()> {
    let (mut config, content) = file::read(path)?;
    let start = origin::start_of_file(&config, &content);
    config.complete();
    config.check_keys().with_context(|| path.display().to_string())?;
    let daemon = daemon.map(|(socket, patience)| served_at(socket, patience)).transpose()?;
    let volumes: usize = config.subsystems.iter().map(|s| s.namespaces.len()).sum();
    let subsystems = config.subsystems.len();
    let path_text = path.display();
    let mut text =
        format!("{path_text}: can be served: {subsystems} subsystem(s), {volumes} volume(s)\n");
    let no_tls = config.listeners.iter().find_map(|listen| listen.check_kernel().err());
    let no_tls = no_tls.map(|error| format!("not on this machine: {error}"));
    let notes = [config.weak_authentication(), config.unreachable(), config.keys_being_replaced()];
    for note in notes.into_iter().flatten().chain(no_tls) {
        let _ = writeln!(text, "note: {note}");
    }
    for subsystem in &config.subsystems {
        for path in subsystem.namespaces.iter().flat_map(|it| origin::relative_paths(&it.volume)) {
            let there = origin::absolute(&path)?;
            let _ = writeln!(
                text,
                "note: {}: {} means the folder that `nvlane serve` is started in; from here it is {there}",
                subsystem.nqn,
                path.display()
            );
        }
    }
    // Where a state is, `serve` is told by its own --data-dir.
    let usual = control::path::data_dir();
    if data_dir.is_none() {
        control::path::check_owner(&usual)?;
    }
    let machine = Machine::known(data_dir.unwrap_or(&usual));
    let places = data_dir.map_or(vec![None, Some(&*usual)], |data_dir| vec![Some(data_dir)]);
    let mut renamed = Vec::new();
    for place in places {
        let state = origin::state_of_file(path, place)?;
        let found = match store::outlook(&state, &start) {
            // Nobody has said that there is one.
            Err(StoreError::Io { .. }) if data_dir.is_none() && place.is_some() => continue,
            found => found?,
        };
        let state = state.display();
        match found {
            Outlook::Nothing => {}
            Outlook::Continued(changes) => {
                let count =
                    changes.map_or(String::new(), |all| format!(", {} change(s)", all.len()));
                let _ = writeln!(text, "a restart continues the state in {state}{count}");
            }
            Outlook::Discarded(left) => {
                if let Some(problem) = left.lost_keys(&config) {
                    bail!("{}: {problem}", path.display());
                }
                let _ = writeln!(
                    text,
                    "a restart serves the file as it is, and discards the state in {state}:"
                );
                for change in left.changes(&config) {
                    let _ = writeln!(text, "  {change}");
                }
                renamed.extend(left.renamed(&config, machine));
            }
        }
    }
    // The daemon knows better than a state that it may have had.
    if let Some(daemon) = daemon {
        renamed = renamed::renamed(&daemon, &config, machine);
    }
    if !renamed.is_empty() {
        text.push_str("hosts that stay connected take these for other disks:\n");
    }
    for namespace in renamed {
        let _ = writeln!(text, "  {namespace}");
    }
    stdout::write(text)
}

/// What the daemon serves whose control socket is there.
fn served_at(socket: &Path, patience: Duration) -> Result<Config> {
    let config = Client::connect(socket)?.patient_for(patience).call("config_get", json!({}))?;
    serde_json::from_value(config).context("the daemon is of another version")
}

fn import(from: &Path, to: Option<&Path>, keys_dir: Option<&Path>, json: bool) -> Result<()> {
    let keys_dir = keys_dir.map(Path::to_owned).or(to.and_then(keys_beside));
    let keys_dir = keys_dir.map(std::path::absolute).transpose()?;
    let imported = nvmetcli::import(&file::read_text(from)?, keys_dir.as_deref())
        .map_err(|problem| anyhow!("{}: {problem}", from.display()))?;
    for note in imported.notes {
        crate::stderr::line(format_args!("nvlane: note: {note}"));
    }
    // First, since what is served by a configuration must not name keys that are not there.
    imported.keys.iter().try_for_each(write_key)?;
    let text = text(&imported.config, json || to.is_some_and(file::is_json));
    match to {
        Some(path) => store::write_output(path, text.as_bytes(), 0o600)
            .with_context(|| path.display().to_string()),
        None => stdout::write(text),
    }
}

/// The directory for keys of a configuration that is written to `path`; none if that is no file.
fn keys_beside(path: &Path) -> Option<PathBuf> {
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return None;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".keys");
    Some(name.into())
}

/// Writes a key where there is none; one that is there stays, and must be the same.
fn write_key(file: &KeyFile) -> Result<()> {
    let KeyFile { path, key } = file;
    let place = || path.display().to_string();
    if let Some(directory) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.with_context(|| directory.display().to_string())?;
    }
    match key::write_new(path, &key.to_text()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // One that is being replaced is another.
            let known = host::keys::read_keys(path)
                .is_ok_and(|known| known.len() == 1 && *known[0] == *key);
            ensure!(
                known,
                "{}: is there, and holds something else: --keys-dir DIR for another place",
                place()
            );
            Ok(())
        }
        written => written.with_context(place),
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
