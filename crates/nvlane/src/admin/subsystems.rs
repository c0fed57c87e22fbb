//! `nvlane list-subsys`: subsystems with the paths to them.

use super::ana::States;
use super::connect::{self, DISCOVERY_PORT, Remote, address_text};
use super::{discover, json, text};
use crate::cli::{ListFormat, ListSubsysArgs, RemoteArgs};
use crate::control::client::Client as Control;
use crate::control::method::VolumePaths;
use crate::control::path;
use crate::stdout;
use anyhow::{Context, Result, ensure};
use host::Local;
use host::client::{Client, ClientError};
use nvme::fabrics::DISCOVERY_NQN;
use nvme::identify::{Controller, ControllerType};
use nvme::log::discovery::{Entry, SubsystemType};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

/// The state of a path whose controller answers.
const LIVE: &str = "live";

/// A subsystem as this host sees it.
struct Subsystem {
    nqn: String,
    /// Empty where nobody has chosen one, or no path is there to use it on.
    policy: String,
    /// The host that asks, or uses it; empty where that is not known.
    host_nqn: String,
    paths: Vec<PathTo>,
}

/// A path to it.
#[derive(Default)]
struct PathTo {
    /// What its controller says of itself, if it was asked.
    identity: Option<Identity>,
    /// The controller's id, if there is one.
    controller: Option<u16>,
    transport: String,
    address: String,
    /// `live`, or what it is instead.
    state: String,
    /// ANA state, where the subsystem reports one.
    ana: String,
    /// Why it is not live.
    reason: String,
}

/// What a controller says of itself and its subsystem.
#[derive(Clone, Default)]
struct Identity {
    model: String,
    serial: String,
    firmware: String,
    /// `nvm`, `discovery` or `administrative`, by the type of the controller.
    kind: &'static str,
}

impl Identity {
    fn of(controller: &Controller) -> Identity {
        Identity {
            model: text::of_field(&controller.mn),
            serial: text::of_field(&controller.sn),
            firmware: text::of_field(&controller.fr),
            kind: match ControllerType(controller.cntrltype) {
                ControllerType::IO => "nvm",
                ControllerType::DISCOVERY => "discovery",
                ControllerType::ADMINISTRATIVE => "administrative",
                _ => "",
            },
        }
    }
}

impl Subsystem {
    /// What its first controller says that was asked; nothing where none was.
    fn identity(&self) -> Identity {
        self.paths.iter().find_map(|path| path.identity.clone()).unwrap_or_default()
    }

    fn answers(&self) -> bool {
        self.paths.iter().any(|path| path.state == LIVE)
    }

    /// Why no path does.
    fn silence(&self) -> String {
        let reasons: Vec<&str> = self.paths.iter().map(|path| path.reason.as_str()).collect();
        format!("{} answers on no path: {}", self.nqn, reasons.join("; "))
    }
}

/// `nvlane list-subsys`.
pub fn list_subsys(args: &ListSubsysArgs) -> Result<()> {
    let mut subsystems = Vec::new();
    // Of what a discovery controller names some may be out of reach from here; what was named by the user is not to be.
    let is_any_enough = args.remote.traddr.is_some() && args.nqn.is_none();
    if args.remote.traddr.is_some() {
        discovered(&args.remote, args.nqn.as_deref(), &mut subsystems)?;
    } else if args.volumes.is_empty() {
        let patience = Duration::from_millis(args.remote.timeout);
        let socket = args.socket.clone().unwrap_or_else(path::socket);
        let volumes =
            Control::connect(&socket)?.patient_for(patience).call("volume_paths", json!({}))?;
        let volumes: Vec<VolumePaths> =
            serde_json::from_value(volumes).context("the daemon is of another version")?;
        opened(volumes, &mut subsystems);
    }
    for volume in &args.volumes {
        let remote = Remote::parse(volume, &args.remote)?;
        let paths = remote.paths().map(|(address, local)| look_by(&remote, address, local));
        let paths: Vec<PathTo> = paths.collect();
        let is_used = paths.iter().any(|path| path.state == LIVE);
        subsystems.push(Subsystem {
            paths,
            policy: remote.policy.clone().filter(|_| is_used).unwrap_or_default(),
            host_nqn: remote.host.nqn.clone(),
            nqn: remote.nqn,
        });
    }
    let out = match args.output_format {
        ListFormat::Normal => text_of(&subsystems, args.verbose).into_bytes(),
        ListFormat::Json => {
            let subsystems = subsystems.iter().enumerate();
            let subsystems: Vec<Value> = subsystems.map(|it| json_of(it, args.verbose)).collect();
            json::write(Map::from_iter([("Subsystems".to_owned(), subsystems.into())]))
        }
    };
    let printed = stdout::write(out);
    // What a daemon has opened was not asked, and stands as it says.
    let is_asked = args.remote.traddr.is_some() || !args.volumes.is_empty();
    let silent: Vec<String> =
        subsystems.iter().filter(|it| !it.answers()).map(Subsystem::silence).collect();
    let is_enough = silent.is_empty() || is_any_enough && silent.len() < subsystems.len();
    // Who is silent is so, whoever reads of it.
    ensure!(!is_asked || is_enough, "{}", silent.join("; "));
    printed
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
                    reason: "not an address of TCP".to_owned(),
                    ..PathTo::default()
                },
            }
        });
        subsystems.push(Subsystem {
            paths: paths.collect(),
            policy: String::new(),
            host_nqn: discovery.host.nqn.clone(),
            nqn,
        });
    }
    Ok(())
}

/// The subsystems of what a daemon has opened.
fn opened(volumes: Vec<VolumePaths>, subsystems: &mut Vec<Subsystem>) {
    for volume in volumes {
        // A volume with layers above it is no subsystem's alone, and goes by its own name.
        let named = connect::subsystem_of(&volume.volume);
        let (nqn, host_nqn) = named.unwrap_or((volume.volume, String::new()));
        let paths = volume.paths.into_iter().map(|path| {
            let (transport, mut address) = where_to(&path.name);
            if let Some(source) = path.details.get("source").filter(|_| path.is_live()) {
                address += &format!(",src_addr={source}");
            }
            let controller = path.details.get("controller").filter(|_| path.is_live());
            PathTo {
                identity: None,
                controller: controller.and_then(|id| id.parse().ok()),
                transport: transport.to_owned(),
                address,
                state: if path.is_live() { LIVE.to_owned() } else { path.access.clone() },
                ana: if path.is_live() { path.access } else { String::new() },
                reason: path.reason,
            }
        });
        let paths = paths.collect();
        let policy = volume.policy.unwrap_or_default();
        subsystems.push(Subsystem { nqn, policy, host_nqn, paths });
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
    let mut path = PathTo {
        transport: "tcp".to_owned(),
        address: address_text(address, None),
        ..PathTo::default()
    };
    let mut ask = || -> Result<String, ClientError> {
        let mut client = remote.connect_to(address, by)?;
        path.address = address_text(address, client.local_address());
        path.controller = Some(client.controller_id());
        let controller = client.identify_controller()?;
        path.identity = Some(Identity::of(&controller));
        ana_states(&mut client, &controller, remote.nsid)
    };
    (path.state, path.ana, path.reason) = match ask() {
        Ok(ana) => (LIVE.to_owned(), ana, String::new()),
        Err(error) => ("unreachable".to_owned(), String::new(), error.to_string()),
    };
    path
}

/// The ANA state of the namespace through this controller; of all groups that have a namespace, if
/// none was named.
fn ana_states(
    client: &mut Client,
    controller: &Controller,
    nsid: Option<u32>,
) -> Result<String, ClientError> {
    let all = States::ask(client, controller)?;
    if !all.are_reported() {
        return Ok(String::new());
    }
    let nsids = match nsid {
        Some(nsid) => vec![nsid],
        None => client.active_namespaces()?,
    };
    let mut states: Vec<&str> = Vec::new();
    for nsid in nsids {
        let state = all.of(&*client.identify_namespace(nsid)?);
        if !states.contains(&state) {
            states.push(state);
        }
    }
    Ok(states.join(","))
}

fn text_of(subsystems: &[Subsystem], verbose: bool) -> String {
    let mut out = String::new();
    for (index, subsystem) in subsystems.iter().enumerate() {
        let name = format!("nvme-subsys{index}");
        let _ = writeln!(out, "{name} - NQN={}", subsystem.nqn);
        let Identity { model, serial, firmware, kind } = subsystem.identity();
        for (what, value, shown) in [
            ("hostnqn", &*subsystem.host_nqn, verbose),
            ("model", &model, verbose),
            ("serial", &serial, verbose),
            ("firmware", &firmware, verbose),
            ("iopolicy", &subsystem.policy, true),
            ("type", kind, verbose),
        ] {
            if shown && !value.is_empty() {
                let _ = writeln!(out, "{:1$}   {what}={value}", "", name.len());
            }
        }
        out.push_str("\\\n");
        for path in &subsystem.paths {
            let controller = path.controller.filter(|_| verbose).map(|id| format!("cntlid={id}"));
            let controller = controller.unwrap_or_default();
            let parts = [&path.transport, &path.address, &path.state, &path.ana, &controller];
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

fn json_of((index, subsystem): (usize, &Subsystem), verbose: bool) -> Value {
    let path = |path: &PathTo| {
        let mut json = json!({
            "Transport": path.transport,
            "Address": path.address,
            "State": path.state,
            "ANAState": path.ana,
            "Reason": path.reason,
        });
        if verbose {
            json["Cntlid"] = path.controller.into();
        }
        json
    };
    let mut json = json!({
        "Name": format!("nvme-subsys{index}"),
        "NQN": subsystem.nqn,
        "IOPolicy": subsystem.policy,
        "Paths": subsystem.paths.iter().map(path).collect::<Vec<Value>>(),
    });
    if verbose {
        let Identity { model, serial, firmware, kind } = subsystem.identity();
        json["HostNQN"] = subsystem.host_nqn.as_str().into();
        json["Model"] = model.into();
        json["Serial"] = serial.into();
        json["Firmware"] = firmware.into();
        json["Type"] = kind.into();
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice;

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
            ..PathTo::default()
        };
        let mut subsystem = Subsystem {
            nqn: "nqn.a".into(),
            policy: "numa".into(),
            host_nqn: "nqn.h".into(),
            paths: vec![path("unreachable", "", "refused"), path("live", "optimized", "")],
        };
        let plain = "nvme-subsys0 - NQN=nqn.a
               iopolicy=numa
\\
 +- tcp traddr=192.0.2.1,trsvcid=4420 unreachable (refused)
 +- tcp traddr=192.0.2.1,trsvcid=4420 live optimized
";
        assert_eq!(text_of(slice::from_ref(&subsystem), false), plain);
        let (model, serial) = ("M".into(), "S".into());
        subsystem.paths[1].identity =
            Some(Identity { model, serial, firmware: "1".into(), kind: "nvm" });
        subsystem.paths[1].controller = Some(7);
        assert_eq!(text_of(slice::from_ref(&subsystem), false), plain);
        assert_eq!(
            text_of(&[subsystem], true),
            "nvme-subsys0 - NQN=nqn.a
               hostnqn=nqn.h
               model=M
               serial=S
               firmware=1
               iopolicy=numa
               type=nvm
\\
 +- tcp traddr=192.0.2.1,trsvcid=4420 unreachable (refused)
 +- tcp traddr=192.0.2.1,trsvcid=4420 live optimized cntlid=7
"
        );
    }
}
