//! `nvlane ctl`: the control socket for people.

mod exposition;
mod lists;
mod metrics;
mod top;

use crate::cli::{
    AnaCommand, ControllerCommand, CtlArgs, CtlCommand, HostCommand, ListenerCommand, Output,
    SubsystemCommand, VolumeCommand,
};
use crate::config::{ANY_HOST, Config, Listen, authentication};
use crate::config_command;
use crate::control::client::Client;
use crate::control::lists::ListOf;
use crate::control::method::{
    AnaSet, Host, HostClearKey, HostKeySet, HostSetKey, Listener, ListenerChanged, LogSet,
    Snapshot, SubsystemAdd, SubsystemRemove, SubsystemTune, Volume, VolumeAdd, VolumeMissing,
    VolumePaths, VolumePathsOf, VolumeRemove, VolumeResize, VolumeSnapshot, VolumeTune,
};
use crate::control::path;
use crate::daemon::Statistics;
use crate::origin::{absolute, key_file};
use crate::paths;
use crate::size;
use crate::stdout;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// Calls one method and prints what comes back.
pub fn run(args: CtlArgs) -> Result<()> {
    let usual = match args.command {
        CtlCommand::Call { .. } => Output::Json,
        _ => Output::Text,
    };
    let socket = args.socket.unwrap_or_else(path::socket);
    let patience = Duration::from_millis(args.timeout);
    if let CtlCommand::Metrics { file } = args.command {
        let is_text = args.output.is_none_or(|output| output == Output::Text);
        ensure!(is_text, "metrics are text: `nvlane ctl stats -o json` is JSON");
        return metrics::run(&socket, patience, file.as_deref());
    }
    if let CtlCommand::Top { interval, count } = args.command {
        let output = args.output.unwrap_or(usual);
        return top::run(&socket, &top::Look { interval, count, output, patience });
    }
    let (method, params) = call_of(args.command)?;
    let result = Client::connect(&socket)?.patient_for(patience).call(&method, params.clone())?;
    let text = match args.output.unwrap_or(usual) {
        Output::Json => format!("{result:#}\n"),
        Output::Text => text(&method, &params, result)?,
    };
    stdout::write(text)
}

fn call_of(command: CtlCommand) -> Result<(String, Value)> {
    let (method, params) = match command {
        CtlCommand::Volume(command) => volume_call(command)?,
        CtlCommand::Host(command) => host_call(command)?,
        CtlCommand::Controller(ControllerCommand::List { nqn }) => {
            ("controller_list", params(&ListOf { nqn }))
        }
        CtlCommand::Listener(ListenerCommand::List) => ("listener_list", json!({})),
        CtlCommand::Listener(ListenerCommand::Add { address }) => {
            ("listener_add", params(&Listener { address }))
        }
        CtlCommand::Listener(ListenerCommand::Remove { address }) => {
            ("listener_remove", params(&Listener { address }))
        }
        CtlCommand::Ana(AnaCommand::Set { group, state, listener, nqn }) => {
            ("ana_set", params(&AnaSet { nqn, listener, group, state }))
        }
        CtlCommand::Ana(AnaCommand::Show { nqn }) => ("ana_list", params(&ListOf { nqn })),
        CtlCommand::Subsystem(SubsystemCommand::List) => ("subsystem_list", json!({})),
        CtlCommand::Subsystem(SubsystemCommand::Add { nqn, serial, allow_host, shared }) => {
            let allowed_hosts = allow_host;
            ("subsystem_add", params(&SubsystemAdd { nqn, serial, allowed_hosts, shared }))
        }
        CtlCommand::Subsystem(SubsystemCommand::Remove { nqn }) => {
            ("subsystem_remove", params(&SubsystemRemove { nqn }))
        }
        CtlCommand::Subsystem(SubsystemCommand::Tune { nqn, setting: (name, value) }) => {
            ("subsystem_tune", params(&SubsystemTune { nqn, name, value }))
        }
        CtlCommand::Stats => ("stats", json!({})),
        CtlCommand::Config => ("config_get", json!({})),
        CtlCommand::Log { filter } => ("log_set", params(&LogSet { filter })),
        CtlCommand::Metrics { .. } | CtlCommand::Top { .. } => {
            unreachable!("they are of several methods")
        }
        CtlCommand::Call { method, params } => return Ok((method, params)),
    };
    Ok((method.to_owned(), params))
}

fn host_call(command: HostCommand) -> Result<(&'static str, Value)> {
    Ok(match command {
        HostCommand::Allow { host, nqn } => ("host_allow", params(&Host { nqn, host })),
        HostCommand::Disallow { host, nqn } => ("host_disallow", params(&Host { nqn, host })),
        HostCommand::SetKey {
            host,
            dhchap_key,
            dhchap_ctrl_key,
            dhchap_hash,
            dhchap_dhgroup,
            tls_key,
            nqn,
        } => {
            // The daemon's current directory is another one.
            let set = HostSetKey {
                nqn,
                host,
                dhchap_key: dhchap_key.as_deref().map(key_file).transpose()?,
                dhchap_ctrl_key: dhchap_ctrl_key.as_deref().map(key_file).transpose()?,
                dhchap_hash: dhchap_hash.map(|hash| hash.to_string()),
                dhchap_dhgroup: dhchap_dhgroup.map(|group| group.to_string()),
                tls_key: tls_key.as_deref().map(key_file).transpose()?,
            };
            ("host_set_key", params(&set))
        }
        HostCommand::ClearKey { host, nqn } => {
            ("host_clear_key", params(&HostClearKey { nqn, host }))
        }
        HostCommand::List { nqn } => ("host_list", params(&ListOf { nqn })),
    })
}

fn volume_call(command: VolumeCommand) -> Result<(&'static str, Value)> {
    Ok(match command {
        VolumeCommand::Add { volume, nqn, nsid, uuid, nguid, ana_group, nofail } => {
            // The daemon's current directory is another one.
            let volume = crate::origin::settled(&volume)?;
            let add = VolumeAdd { volume, nqn, nsid, uuid, nguid, ana_group, nofail };
            ("volume_add", params(&add))
        }
        VolumeCommand::Remove { nsid, nqn } => {
            ("volume_remove", params(&VolumeRemove { nqn, nsid }))
        }
        VolumeCommand::Resize { nsid, size, shrink, nqn } => {
            ("volume_resize", params(&VolumeResize { nqn, nsid, bytes: size, shrink }))
        }
        VolumeCommand::Snapshot { nsid, file, nqn } => {
            // The daemon's current directory is another one.
            let file = absolute(&file)?;
            ("volume_snapshot", params(&VolumeSnapshot { nqn, nsid, file }))
        }
        VolumeCommand::Tune { nsid, setting: (name, value), nqn } => {
            ("volume_tune", params(&VolumeTune { nqn, nsid, name, value }))
        }
        VolumeCommand::Paths { nsid, nqn } => {
            ("volume_paths", params(&VolumePathsOf { nqn, nsid }))
        }
        VolumeCommand::List => ("volume_list", json!({})),
        VolumeCommand::Missing => ("volume_missing", json!({})),
    })
}

fn params<T: Serialize>(params: &T) -> Value {
    serde_json::to_value(params).expect("parameters are plain data")
}

/// A result for people.
fn text(method: &str, params: &Value, result: Value) -> Result<String> {
    Ok(match method {
        "volume_add" | "volume_resize" | "volume_tune" => volumes(&[read(result)?]),
        "volume_list" | "subsystem_tune" => volumes(&read::<Vec<Volume>>(result)?),
        "volume_snapshot" => {
            let Snapshot { file, bytes } = read(result)?;
            format!("{file}: {} at one moment\n", size::format(bytes))
        }
        "volume_missing" => missing(&read::<Vec<VolumeMissing>>(result)?),
        "volume_paths" => paths::table_of(&read::<Vec<VolumePaths>>(result)?),
        "listener_add" => format!("listening on {}\n", listen(&read(result)?)),
        "listener_remove" => format!("no longer listening on {}\n", listen(&read(result)?)),
        "controller_list" => lists::controllers(&read::<Vec<_>>(result)?),
        "subsystem_list" => lists::subsystems(&read::<Vec<_>>(result)?),
        "host_list" => lists::hosts(&read::<Vec<_>>(result)?),
        "host_set_key" => key_set(&read(result)?),
        "listener_list" => lists::listeners(&read::<Vec<_>>(result)?),
        "ana_list" => lists::ana(&read::<Vec<_>>(result)?),
        "stats" => statistics(&read(result)?),
        "config_get" => config_command::text(&read::<Config>(result)?, false),
        _ if result == json!({}) => done(method, params),
        _ => format!("{result:#}\n"),
    })
}

/// A listener as it is given.
fn listen(&ListenerChanged { address, tls }: &ListenerChanged) -> Listen {
    Listen { address, tls }
}

/// What a method did that has no result but that it is done.
fn done(method: &str, params: &Value) -> String {
    let said = |name: &str| match &params[name] {
        Value::String(text) if text == ANY_HOST => "any host".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match method {
        "volume_remove" => format!("namespace {} is removed, flushed and closed\n", said("nsid")),
        "host_allow" => format!("{} may connect\n", said("host")),
        "host_disallow" if params["host"] == ANY_HOST => {
            "only hosts that are listed may connect\n".to_owned()
        }
        "host_disallow" => format!("{} is no longer listed\n", said("host")),
        "host_clear_key" => format!("{} need not prove who it is any more\n", said("host")),
        "ana_set" => format!("ANA group {} is now {}\n", said("group"), said("state")),
        "subsystem_add" => format!("subsystem {} is added\n", said("nqn")),
        "log_set" => format!("logging {} from now on\n", said("filter")),
        "subsystem_remove" => format!("subsystem {} is removed\n", said("nqn")),
        _ => "done\n".to_owned(),
    }
}

fn read<T: DeserializeOwned>(result: Value) -> Result<T> {
    serde_json::from_value(result).context("the daemon is of another version (try -o json)")
}

fn volumes(volumes: &[Volume]) -> String {
    let mut text = String::new();
    for volume in volumes {
        let _ = writeln!(
            text,
            "namespace {} of {}: {}, {} in blocks of {}, uuid {}, ANA group {}",
            volume.nsid,
            volume.nqn,
            volume.volume,
            size::format(volume.bytes),
            volume.block_bytes,
            volume.uuid,
            volume.ana_group
        );
    }
    text
}

/// What is proven from now on, and what is amiss with that.
fn key_set(set: &HostKeySet) -> String {
    let HostKeySet { nqn, host, may_connect, allow_any_host, has_listener, .. } = set;
    let mut text = format!("{host} has to prove who it is, from its next connection to {nqn} on\n");
    let _ = writeln!(
        text,
        "note: a server that is started from another configuration or command line does not know of it: put it there as well"
    );
    if !may_connect {
        let _ = writeln!(text, "note: it may not connect yet: nvlane ctl host allow {host}");
    }
    if !has_listener {
        let _ = writeln!(text, "note: {host} {}", authentication::NO_LISTENER);
    }
    if *allow_any_host {
        let _ = writeln!(text, "note: {}", authentication::anybody(nqn));
    }
    for field in &set.dropped {
        let _ = writeln!(text, "note: {host} had a {field} before, and has none any more");
    }
    for path in &set.twofold {
        let _ = writeln!(text, "note: {}, and say this again", authentication::twofold(path));
    }
    for path in &set.exposed {
        let _ = writeln!(text, "note: {}", authentication::exposed(path));
    }
    text
}

fn missing(volumes: &[VolumeMissing]) -> String {
    let mut text = String::new();
    for volume in volumes {
        let VolumeMissing { nqn, nsid, reason, seconds, .. } = volume;
        let _ = writeln!(text, "namespace {nsid} of {nqn}: missing for {seconds} s: {reason}");
    }
    text
}

fn statistics(stats: &Statistics) -> String {
    let mut text = format!(
        "nvlane {}, up {} s, {} connection(s)\n",
        stats.version, stats.uptime_seconds, stats.connections
    );
    if let Some(process) = &stats.process {
        let _ = writeln!(
            text,
            "{} resident, {:.1} s of processors, {} of {} open files",
            size::format(process.resident_bytes),
            process.cpu_ms as f64 / 1e3,
            process.open_files,
            process.open_files_max
        );
    }
    for one in &stats.namespaces {
        let _ = writeln!(
            text,
            "namespace {} of {}: {} reads ({}), {} writes ({}), {} copies ({}), {} others, {} errors",
            one.nsid,
            one.nqn,
            one.reads,
            size::format(one.read_bytes),
            one.writes,
            size::format(one.written_bytes),
            one.copies,
            size::format(one.copied_bytes),
            one.others,
            one.errors
        );
        for (command, times) in one.latency.named().into_iter().filter(|(_, it)| it.count() > 0) {
            let [p50, p99] = [times.p50_ns, times.p99_ns].map(|ns| top::time(times, ns));
            let _ = writeln!(text, "    {command}: p50 {p50}, p99 {p99}");
        }
    }
    for (index, core) in stats.cores.iter().enumerate() {
        let _ = writeln!(
            text,
            "core {index}: {} connection(s), {} turns, {} enters, {} sleeps, {} in flight, {} of buffers free",
            core.connections,
            core.turns,
            core.enters,
            core.sleeps,
            core.in_flight,
            size::format(core.buffer_bytes_free as u64)
        );
    }
    text
}
