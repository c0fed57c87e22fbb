//! `nvlane list-subsys`: subsystems with the paths to them.

use super::connect::{self, DISCOVERY_PORT, Remote};
use super::{discover, json, text};
use crate::cli::{ListFormat, ListSubsysArgs, RemoteArgs};
use crate::control::client::Client as Control;
use crate::control::method::VolumePaths;
use crate::control::path;
use anyhow::{Context, Result};
use host::Local;
use host::client::{Client, ClientError};
use nvme::fabrics::DISCOVERY_NQN;
use nvme::log::ana::AnaState;
use nvme::log::discovery::{Entry, SubsystemType};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::SocketAddr;

/// CMIC bit: the subsystem reports ANA states.
const CMIC_ANA: u8 = 1 << 3;

/// A subsystem as this host sees it.
struct Subsystem {
    nqn: String,
    /// Empty where nobody has chosen one.
    policy: String,
    paths: Vec<PathTo>,
}

/// A path to it.
struct PathTo {
    transport: String,
    address: String,
    /// `live`, or what it is instead.
    state: String,
    /// ANA state, where the subsystem reports one.
    ana: String,
    /// Why it is not live.
    reason: String,
}

/// `nvlane list-subsys`.
pub fn list_subsys(args: &ListSubsysArgs) -> Result<()> {
    let mut subsystems = Vec::new();
    if args.remote.traddr.is_some() {
        discovered(&args.remote, args.nqn.as_deref(), &mut subsystems)?;
    } else if args.volumes.is_empty() {
        let socket = args.socket.clone().unwrap_or_else(path::socket);
        let volumes = Control::connect(&socket)?.call("volume_paths", json!({}))?;
        let volumes: Vec<VolumePaths> =
            serde_json::from_value(volumes).context("the daemon is of another version")?;
        opened(volumes, &mut subsystems);
    }
    for volume in &args.volumes {
        let remote = Remote::parse(volume, &args.remote)?;
        let paths = remote.paths().map(|(address, local)| look_by(&remote, address, local));
        subsystems.push(Subsystem {
            paths: paths.collect(),
            policy: remote.policy.clone().unwrap_or_default(),
            nqn: remote.nqn,
        });
    }
    let out = match args.output_format {
        ListFormat::Normal => text_of(&subsystems).into_bytes(),
        ListFormat::Json => {
            let subsystems: Vec<Value> = subsystems.iter().enumerate().map(json_of).collect();
            json::write(Map::from_iter([("Subsystems".to_owned(), subsystems.into())]))
        }
    };
    io::stdout().write_all(&out)?;
    Ok(())
}

/// What a discovery controller names, each address looked at.
fn discovered(
    args: &RemoteArgs,
    only: Option<&str>,
    subsystems: &mut Vec<Subsystem>,
) -> Result<()> {
    let discovery = Remote::at(args, DISCOVERY_PORT, DISCOVERY_NQN)?;
    let log = discovery.connect_to_discovery()?.discovery_log()?;
    let mut entries: BTreeMap<String, Vec<&Entry>> = BTreeMap::new();
    for entry in &log.entries {
        let nqn = text::of_field(&entry.subnqn);
        if SubsystemType(entry.subtype) == SubsystemType::NVM && only.is_none_or(|only| nqn == only)
        {
            entries.entry(nqn).or_default().push(entry);
        }
    }
    for (nqn, entries) in entries {
        let mut remote = discovery.clone();
        remote.nqn.clone_from(&nqn);
        let paths = entries.iter().map(|entry| {
            let address = text::of_field(&entry.traddr);
            let port = text::of_field(&entry.trsvcid);
            let transport = discover::transport(entry.trtype);
            let parsed = (address.parse().ok(), port.parse().ok());
            match parsed {
                (Some(address), Some(port)) if transport == "tcp" => {
                    look(&remote, SocketAddr::new(address, port))
                }
                _ => PathTo {
                    transport: transport.to_owned(),
                    address: format!("traddr={address},trsvcid={port}"),
                    state: "unsupported".to_owned(),
                    ana: String::new(),
                    reason: "not an address of TCP".to_owned(),
                },
            }
        });
        subsystems.push(Subsystem { paths: paths.collect(), policy: String::new(), nqn });
    }
    Ok(())
}

/// The subsystems of what a daemon has opened.
fn opened(volumes: Vec<VolumePaths>, subsystems: &mut Vec<Subsystem>) {
    for volume in volumes {
        // A volume with layers above it is no subsystem's alone, and goes by its own name.
        let nqn = connect::subsystem_of(&volume.volume).unwrap_or(volume.volume);
        let paths = volume.paths.into_iter().map(|path| {
            let (transport, mut address) = where_to(&path.name);
            if let Some(source) = path.details.get("source").filter(|_| path.is_live()) {
                address += &format!(",src_addr={source}");
            }
            PathTo {
                transport: transport.to_owned(),
                address,
                state: if path.is_live() { "live".to_owned() } else { path.access.clone() },
                ana: if path.is_live() { path.access } else { String::new() },
                reason: path.reason,
            }
        });
        let paths = paths.collect();
        subsystems.push(Subsystem { nqn, policy: volume.policy.unwrap_or_default(), paths });
    }
}

/// Transport and address of a path that is known by its name, `tcp://HOST:PORT` or a volume of this machine.
fn where_to(name: &str) -> (&str, String) {
    match name.split_once("://") {
        None => ("local", name.to_owned()),
        Some((transport, at)) => {
            let address = match at.rsplit_once(':') {
                Some((host, port)) => {
                    let host = host.trim_start_matches('[').trim_end_matches(']');
                    format!("traddr={host},trsvcid={port}")
                }
                None => at.to_owned(),
            };
            (transport, address)
        }
    }
}

/// Connects to an address that a discovery controller names.
fn look(remote: &Remote, address: SocketAddr) -> PathTo {
    let by = remote.paths().next().map(|(_, local)| local.clone()).unwrap_or_default();
    look_by(remote, address, &by)
}

/// Connects to one address, to see how the subsystem is through it.
fn look_by(remote: &Remote, address: SocketAddr, by: &Local) -> PathTo {
    let mut local = String::new();
    let mut ask = || -> Result<String, ClientError> {
        let mut client = remote.connect_to(address, by)?;
        if let Some(source) = client.local_address() {
            local = format!(",src_addr={}", source.ip());
        }
        ana_state(&mut client, remote.nsid)
    };
    let (state, ana, reason) = match ask() {
        Ok(ana) => ("live", ana, String::new()),
        Err(error) => ("unreachable", String::new(), error.to_string()),
    };
    let (ip, port) = (address.ip(), address.port());
    PathTo {
        transport: "tcp".to_owned(),
        address: format!("traddr={ip},trsvcid={port}{local}"),
        state: state.to_owned(),
        ana,
        reason,
    }
}

/// The ANA state of the namespace through this controller; of all groups that have a namespace, if
/// none was named.
fn ana_state(client: &mut Client, nsid: Option<u32>) -> Result<String, ClientError> {
    let controller = client.identify_controller()?;
    if controller.cmic & CMIC_ANA == 0 {
        return Ok(String::new());
    }
    let nsids = match nsid {
        Some(nsid) => vec![nsid],
        None => client.active_namespaces()?,
    };
    let log = client.ana_groups(controller.nanagrpid.get())?;
    let mut states: Vec<&str> = Vec::new();
    for nsid in nsids {
        let group = client.identify_namespace(nsid)?.anagrpid.get();
        let state = log.state(group).map_or("unknown", state_name);
        if !states.contains(&state) {
            states.push(state);
        }
    }
    Ok(states.join(","))
}

fn state_name(state: AnaState) -> &'static str {
    match state {
        AnaState::OPTIMIZED => "optimized",
        AnaState::NON_OPTIMIZED => "non-optimized",
        AnaState::INACCESSIBLE => "inaccessible",
        AnaState::PERSISTENT_LOSS => "persistent-loss",
        AnaState::CHANGE => "change",
        _ => "unknown",
    }
}

fn text_of(subsystems: &[Subsystem]) -> String {
    let mut out = String::new();
    for (index, subsystem) in subsystems.iter().enumerate() {
        let name = format!("nvme-subsys{index}");
        let _ = writeln!(out, "{name} - NQN={}", subsystem.nqn);
        if !subsystem.policy.is_empty() {
            let _ = writeln!(out, "{:1$}   iopolicy={2}", "", name.len(), subsystem.policy);
        }
        out.push_str("\\\n");
        for path in &subsystem.paths {
            let parts = [&path.transport, &path.address, &path.state, &path.ana];
            let parts: Vec<&str> =
                parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
            let reason = match path.reason.as_str() {
                "" => String::new(),
                reason => format!(" ({reason})"),
            };
            let _ = writeln!(out, " +- {}{reason}", parts.join(" "));
        }
    }
    out
}

fn json_of((index, subsystem): (usize, &Subsystem)) -> Value {
    let paths: Vec<Value> = subsystem
        .paths
        .iter()
        .map(|path| {
            json!({
                "Transport": path.transport,
                "Address": path.address,
                "State": path.state,
                "ANAState": path.ana,
                "Reason": path.reason,
            })
        })
        .collect();
    json!({
        "Name": format!("nvme-subsys{index}"),
        "NQN": subsystem.nqn,
        "IOPolicy": subsystem.policy,
        "Paths": paths,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_paths_are_written_as_nvme_cli_does() {
        for (name, transport, address) in [
            ("tcp://192.0.2.1:4420", "tcp", "traddr=192.0.2.1,trsvcid=4420"),
            ("tcp://[2001:db8::1]:5", "tcp", "traddr=2001:db8::1,trsvcid=5"),
            ("tcp://storage.example:4420", "tcp", "traddr=storage.example,trsvcid=4420"),
            ("/dev/ng0n1", "local", "/dev/ng0n1"),
        ] {
            assert_eq!(where_to(name), (transport, address.to_owned()), "{name}");
        }
    }

    #[test]
    fn subsystems_are_shown_as_nvme_cli_does() {
        let path = |state: &str, ana: &str, reason: &str| PathTo {
            transport: "tcp".into(),
            address: "traddr=192.0.2.1,trsvcid=4420".into(),
            state: state.into(),
            ana: ana.into(),
            reason: reason.into(),
        };
        let subsystem = Subsystem {
            nqn: "nqn.a".into(),
            policy: "numa".into(),
            paths: vec![path("live", "optimized", ""), path("unreachable", "", "refused")],
        };
        assert_eq!(
            text_of(&[subsystem]),
            "nvme-subsys0 - NQN=nqn.a
               iopolicy=numa
\\
 +- tcp traddr=192.0.2.1,trsvcid=4420 live optimized
 +- tcp traddr=192.0.2.1,trsvcid=4420 unreachable (refused)
"
        );
    }
}
