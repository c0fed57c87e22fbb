//! `nvlane list -v`: subsystems, controllers and namespaces apart, and how they belong together, in three tables as
//! nvme-cli has them.

use super::ana::States;
use super::connect::{self, Remote, address_text};
use super::list::{Device, Source, columns, local, nsid_text, served_volumes};
use super::text;
use crate::control::client::Client as Control;
use crate::control::lists::{AnaNow, ControllerNow, SubsystemNow};
use anyhow::{Context, Result};
use clap::ValueEnum;
use host::Local;
use host::client::{ClientError, Reason};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// What there is, and how it belongs together.
#[derive(Default)]
pub struct Topology {
    subsystems: Vec<Subsystem>,
    /// Volumes that are namespaces of no subsystem.
    others: Vec<Device>,
}

/// A subsystem.
struct Subsystem {
    nqn: String,
    controllers: Vec<Controller>,
    /// By their ids.
    namespaces: BTreeMap<u32, Device>,
}

/// A controller of it, by which its namespaces are reached.
#[derive(Default)]
struct Controller {
    /// None where it did not answer.
    id: Option<u16>,
    /// The host that it is for.
    host_nqn: String,
    serial: String,
    model: String,
    firmware: String,
    address: String,
    /// `live`, or what it is instead.
    state: String,
    /// Why it is not live.
    reason: String,
    paths: Vec<Path>,
}

/// The way to a namespace by one controller.
struct Path {
    nsid: u32,
    /// ANA state, where the subsystem reports one.
    ana: String,
    uri: String,
}

/// What a controller has answered.
struct Answer {
    controller: Controller,
    /// Namespaces that no controller before it has told.
    fresh: Vec<Device>,
    /// Of a namespace that was named and that it does not have.
    refusal: Option<ClientError>,
}

impl Topology {
    /// What these are. A subsystem is asked by all its addresses, and once, though several of its namespaces may be
    /// named.
    pub fn of(sources: Vec<Source>) -> Result<Topology> {
        let mut topology = Topology::default();
        // Of no id: all namespaces.
        let mut wanted: Vec<(Remote, BTreeSet<Option<u32>>)> = Vec::new();
        for source in sources {
            match source {
                Source::Daemon(mut daemon) => topology.add_served(&mut daemon)?,
                Source::Local(volume) => topology.others.push(local(&volume)?),
                Source::Remote(remote) => {
                    let nsid = remote.nsid;
                    let known = wanted.iter_mut().find(|(one, _)| one.is_same_subsystem(&remote));
                    match known {
                        Some((_, nsids)) => drop(nsids.insert(nsid)),
                        None => wanted.push((*remote, BTreeSet::from([nsid]))),
                    }
                }
            }
        }
        for (remote, nsids) in wanted {
            let nsids: Option<Vec<u32>> = nsids.into_iter().collect();
            topology.subsystems.push(ask(&remote, nsids.as_deref())?);
        }
        Ok(topology)
    }

    /// Adds what a daemon serves, with the controllers that hosts have there.
    fn add_served(&mut self, daemon: &mut Control) -> Result<()> {
        let volumes = served_volumes(daemon)?;
        let subsystems: Vec<SubsystemNow> = call(daemon, "subsystem_list")?;
        let controllers: Vec<ControllerNow> = call(daemon, "controller_list")?;
        let states: Vec<AnaNow> = call(daemon, "ana_list")?;
        for subsystem in subsystems {
            let own = controllers.iter().filter(|one| !one.discovery && one.nqn == subsystem.nqn);
            let volumes = volumes.iter().filter(|volume| volume.nqn == subsystem.nqn);
            let namespaces = volumes.map(|volume| (volume.nsid, volume.clone().into()));
            self.subsystems.push(Subsystem {
                controllers: own.map(|one| served(one, &subsystem, &states)).collect(),
                namespaces: namespaces.collect(),
                nqn: subsystem.nqn,
            });
        }
        Ok(())
    }

    /// All namespaces, and the volumes that are none.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        let namespaces = self.subsystems.iter().flat_map(|one| one.namespaces.values());
        namespaces.chain(&self.others)
    }

    /// Three tables: subsystems, controllers, namespaces.
    pub fn text(&self) -> String {
        let (mut subsystems, mut controllers, mut namespaces) = (vec![], vec![], vec![]);
        for (name, subsystem, named) in self.named() {
            let names: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
            subsystems.push([name.clone(), subsystem.nqn.clone(), names.join(", ")].map(or_dash));
            controllers.extend(named.iter().map(|(one, controller)| controller.row(one, &name)));
            for (nsid, device) in &subsystem.namespaces {
                let by = named.iter().filter(|(_, one)| one.has(*nsid));
                let by: Vec<&str> = by.map(|(name, _)| name.as_str()).collect();
                namespaces.push(row(device, by.join(", ")));
            }
        }
        namespaces.extend(self.others.iter().map(|device| row(device, String::new())));
        let tables = [
            columns(&["Subsystem", "Subsystem-NQN", "Controllers"], &subsystems),
            columns(&CONTROLLER_HEAD, &controllers),
            columns(&["Device", "NSID", "Usage", "Format", "Controllers"], &namespaces),
        ];
        tables.join("\n")
    }

    /// The subsystems with all that belongs to them: docs/cli-json.md.
    pub fn json(&self) -> Value {
        let subsystems = self.named().map(|(name, subsystem, named)| {
            let controllers: Vec<Value> =
                named.iter().map(|(name, controller)| controller.json(name)).collect();
            let namespaces: Vec<Value> =
                subsystem.namespaces.values().map(Device::json_in_subsystem).collect();
            json!({
                "Subsystem": name,
                "SubsystemNQN": subsystem.nqn,
                "Controllers": controllers,
                "Namespaces": namespaces,
            })
        });
        subsystems.collect()
    }

    /// Subsystems and their controllers with names as Linux gives them, counted from 0 over all.
    fn named(&self) -> impl Iterator<Item = (String, &Subsystem, Vec<(String, &Controller)>)> {
        let mut count = 0;
        self.subsystems.iter().enumerate().map(move |(index, subsystem)| {
            let first = count;
            count += subsystem.controllers.len();
            let names = (first..).map(|number| format!("nvme{number}"));
            (format!("nvme-subsys{index}"), subsystem, names.zip(&subsystem.controllers).collect())
        })
    }
}

/// The heads of the table of controllers.
const CONTROLLER_HEAD: [&str; 9] =
    ["Device", "Cntlid", "SN", "MN", "FR", "TxPort", "Address", "Subsystem", "Namespaces"];

impl Controller {
    fn has(&self, nsid: u32) -> bool {
        self.paths.iter().any(|path| path.nsid == nsid)
    }

    fn row(&self, name: &str, subsystem: &str) -> [String; 9] {
        let path = |path: &Path| match path.ana.as_str() {
            "" => nsid_text(path.nsid),
            ana => format!("{} {ana}", nsid_text(path.nsid)),
        };
        let namespaces = match self.state.as_str() {
            "live" => self.paths.iter().map(path).collect::<Vec<_>>().join(", "),
            state if self.reason.is_empty() => state.to_owned(),
            state => format!("{state} ({})", self.reason),
        };
        [
            name.to_owned(),
            self.id.map(|id| id.to_string()).unwrap_or_default(),
            self.serial.clone(),
            self.model.clone(),
            self.firmware.clone(),
            "tcp".to_owned(),
            self.address.clone(),
            subsystem.to_owned(),
            namespaces,
        ]
        .map(or_dash)
    }

    fn json(&self, name: &str) -> Value {
        let path = |path: &Path| {
            json!({
                "Path": path.uri,
                "NSID": path.nsid,
                "ANAState": path.ana,
            })
        };
        json!({
            "Controller": name,
            "Cntlid": self.id,
            "HostNQN": self.host_nqn,
            "SerialNumber": self.serial,
            "ModelNumber": self.model,
            "Firmware": self.firmware,
            "Transport": "tcp",
            "Address": self.address,
            "State": self.state,
            "Reason": self.reason,
            "Paths": self.paths.iter().map(path).collect::<Vec<Value>>(),
        })
    }
}

/// A row of the table of namespaces.
fn row(device: &Device, controllers: String) -> [String; 5] {
    let (usage, format) = (device.usage_text(), device.format_text());
    [device.node.clone(), nsid_text(device.nsid), usage, format, or_dash(controllers)]
}

fn or_dash(cell: String) -> String {
    if cell.is_empty() { "-".to_owned() } else { cell }
}

/// Asks a subsystem by each of its addresses, for those namespaces or for all.
fn ask(remote: &Remote, nsids: Option<&[u32]>) -> Result<Subsystem> {
    let mut subsystem =
        Subsystem { nqn: remote.nqn.clone(), controllers: Vec::new(), namespaces: BTreeMap::new() };
    let (mut unreachable, mut refusal) = (Vec::new(), None);
    for (address, local) in remote.paths() {
        match ask_by(remote, address, local, nsids, &subsystem.namespaces) {
            Ok(answer) => {
                subsystem.controllers.push(answer.controller);
                let fresh = answer.fresh.into_iter().map(|device| (device.nsid, device));
                subsystem.namespaces.extend(fresh);
                refusal = refusal.or(answer.refusal);
            }
            Err(error) => {
                subsystem.controllers.push(Controller {
                    host_nqn: remote.host.nqn.clone(),
                    address: address_text(address, None),
                    state: "unreachable".to_owned(),
                    reason: error.to_string(),
                    ..Controller::default()
                });
                unreachable.push(error);
            }
        }
    }
    if unreachable.len() == subsystem.controllers.len() {
        return Err(connect::nobody(unreachable));
    }
    // Each namespace that was named is there by one of them.
    let is_there = |nsid: &u32| subsystem.namespaces.contains_key(nsid);
    match refusal {
        Some(refusal) if !nsids.unwrap_or_default().iter().all(is_there) => {
            return Err(refusal.into());
        }
        _ => {}
    }
    for (nsid, device) in &mut subsystem.namespaces {
        let has = subsystem.controllers.iter().zip(&remote.addresses);
        let has = has.filter(|(controller, _)| controller.has(*nsid));
        device.node = remote.uri_by(has.map(|(_, address)| address), *nsid);
    }
    Ok(subsystem)
}

/// Asks one controller; of namespaces that are `known` only whether they are there, and how.
fn ask_by(
    remote: &Remote,
    address: SocketAddr,
    local: &Local,
    nsids: Option<&[u32]>,
    known: &BTreeMap<u32, Device>,
) -> Result<Answer, ClientError> {
    let mut client = remote.connect_to(address, local)?;
    let identified = client.identify_controller()?;
    let states = States::ask(&mut client, &identified)?;
    let (mut paths, mut fresh, mut refusal) = (Vec::new(), Vec::new(), None);
    let listed = nsids.map_or_else(|| client.active_namespaces(), |nsids| Ok(nsids.to_vec()))?;
    for nsid in listed {
        let namespace = match client.identify_namespace(nsid) {
            Ok(namespace) => namespace,
            Err(error) if nsids.is_some() && is_answer(&error) => {
                refusal = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let uri = remote.uri_by([&address], nsid);
        paths.push(Path { nsid, ana: states.of(&namespace).to_owned(), uri: uri.clone() });
        if !known.contains_key(&nsid) {
            let mut device = Device::ask(&mut client, &identified, nsid, &namespace)?;
            (device.node, device.subsystem) = (uri, remote.nqn.clone());
            fresh.push(device);
        }
    }
    let controller = Controller {
        id: Some(client.controller_id()),
        host_nqn: remote.host.nqn.clone(),
        serial: text::of_field(&identified.sn),
        model: text::of_field(&identified.mn),
        firmware: text::of_field(&identified.fr),
        address: address_text(address, client.local_address()),
        state: "live".to_owned(),
        reason: String::new(),
        paths,
    };
    Ok(Answer { controller, fresh, refusal })
}

/// The controller has answered that there is no such namespace.
fn is_answer(error: &ClientError) -> bool {
    matches!(error.reason, Reason::NoNamespace { .. } | Reason::Status { .. })
}

/// A controller that a host has at the daemon; what it says of itself is known of the daemon as little as without -v.
fn served(controller: &ControllerNow, subsystem: &SubsystemNow, states: &[AnaNow]) -> Controller {
    let mut paths = Vec::new();
    let here =
        |ana: &&AnaNow| ana.nqn == subsystem.nqn && Some(ana.listener) == controller.listener;
    for ana in states.iter().filter(here) {
        let state = ana.state.to_possible_value().map(|word| word.get_name().to_owned());
        let state = state.unwrap_or_default();
        let address = [&ana.listener];
        paths.extend(ana.namespaces.iter().map(|&nsid| Path {
            nsid,
            ana: state.clone(),
            uri: connect::uri_of(address, &subsystem.nqn, nsid),
        }));
    }
    paths.sort_by_key(|path| path.nsid);
    let is_enabled = controller.state == "enabled";
    Controller {
        id: Some(controller.controller),
        host_nqn: controller.host_nqn.clone(),
        serial: subsystem.serial.clone(),
        address: controller
            .listener
            .map(|at| address_text(at, controller.address))
            .unwrap_or_default(),
        state: if is_enabled { "live".to_owned() } else { controller.state.clone() },
        paths,
        ..Controller::default()
    }
}

fn call<T: DeserializeOwned>(daemon: &mut Control, method: &str) -> Result<T> {
    let answer = daemon.call(method, json!({}))?;
    serde_json::from_value(answer).context("the daemon is of another version")
}
