//! The one configuration model.
//!
//! ```text
//!   command line --\                                       /--> run-time state (JSON, `store`)
//!   TOML file ------+--> Config --check()--> daemon --------+
//!   nvmetcli.json --/      ^                               \--> `config show`, `config_get`
//!                          `-- JSON-RPC changes (`daemon`)
//! ```
//!
//! Fields left out are filled in when the daemon starts ([`Config::complete`], `identity`), and a
//! complete configuration is what is saved, so that nothing a host could see changes at a restart.

pub mod authentication;
mod cores;
pub mod difference;
pub mod file;
pub mod identity;
mod limits;
mod listen;
mod name;
pub mod nvmetcli;
mod opened;
pub mod renamed;
pub mod store;

pub use authentication::Authentication;
pub use cores::Cores;
pub use listen::{Listen, NoTls};
pub use name::{
    ControllerIds, LISTEN_PORT, check_nqn, parse_address, parse_host, parse_listen, parse_listener,
    parse_nqn, parse_one_host,
};

use limits::{ANA_GROUP_MAX, HOSTS_MAX, LISTENERS_MAX, NAMESPACES_MAX, SUBSYSTEMS_MAX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use uuid::Uuid;

/// The host that stands for all which are not listed, on command lines and in calls.
pub const ANY_HOST: &str = "*";

/// What a daemon serves, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Threads that carry the data path; one, unpinned, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<Cores>,
    /// Never sleep: busy polling on every core.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub poll: bool,
    /// Controller ids that this server gives out, `MIN-MAX`; all when left out. Two servers of one
    /// volume need ranges that do not meet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_ids: Option<ControllerIds>,
    /// Addresses that accept NVMe/TCP connections, encrypted ones with `tls://`; 127.0.0.1:4420 when there are none.
    #[serde(default)]
    pub listeners: Vec<Listen>,
    /// What hosts see.
    #[serde(default)]
    pub subsystems: Vec<Subsystem>,
}

/// An NVM subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subsystem {
    /// NVMe Qualified Name (NVMe Base 2.1, 4.7), at most 223 bytes.
    pub nqn: String,
    /// Serial number, 1 to 20 printable ASCII characters; derived from the NQN when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Whether hosts that are not listed may connect; when left out, yes if none is listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_any_host: Option<bool>,
    /// NQNs of hosts that may connect.
    #[serde(default)]
    pub allowed_hosts: Vec<String>,
    /// Another server may serve the same volumes at the same time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Hosts that have to prove who they are, and by what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authentication: Vec<Authentication>,
    /// The namespaces.
    #[serde(default)]
    pub namespaces: Vec<Namespace>,
    /// ANA states that are not optimized.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ana: Vec<Ana>,
}

/// A namespace: a volume and the names by which hosts know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// Namespace id, from 1; the lowest free one when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
    /// The volume's URI.
    pub volume: String,
    /// UUID; the volume's own or a derived one when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
    /// NGUID, written like a UUID; all zero for none, as in Identify Namespace; derived from the UUID when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nguid: Option<Uuid>,
    /// ANA group, from 1.
    #[serde(default = "first_group")]
    pub ana_group: u32,
    /// A volume that cannot be opened at the start does not keep the others from being served, and is served once it can be; as
    /// the option of that name in fstab(5).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nofail: bool,
}

/// The state of an ANA group, on one listener or on all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ana {
    /// The listener's address; all of them when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<SocketAddr>,
    /// The group.
    pub group: u32,
    /// Its state.
    pub state: AnaState,
}

/// Asymmetric namespace access states (NVMe Base 2.1, 8.1.1), by the names Linux gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum AnaState {
    /// Reachable, the way to prefer.
    #[default]
    Optimized,
    /// Reachable, to be used when there is nothing better.
    NonOptimized,
    /// Not reachable now.
    Inaccessible,
    /// Never to be reachable again.
    PersistentLoss,
    /// About to become something else.
    Change,
}

/// A value that cannot be served.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{at}: {problem}")]
pub struct Invalid {
    /// Where, as a path: `subsystems[0].namespaces[2].uuid`.
    pub at: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

fn first_group() -> u32 {
    1
}

pub(crate) fn invalid<T>(at: impl Into<String>, problem: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid { at: at.into(), problem: problem.into() })
}

impl Config {
    /// Checks everything that can be checked without opening a volume.
    pub fn check(&self) -> Result<(), Invalid> {
        bounded("listeners", self.listeners.len(), LISTENERS_MAX)?;
        let addresses: Vec<SocketAddr> = self.listeners.iter().map(|it| it.address).collect();
        let mut seen = BTreeSet::new();
        for (index, address) in addresses.iter().enumerate() {
            if address.port() != 0 && !seen.insert(address) {
                return invalid(
                    format!("listeners[{index}]"),
                    format!("{address} is listed twice"),
                );
            }
        }
        for (index, address) in addresses.iter().enumerate() {
            let covered_by = |all: &&SocketAddr| {
                all.ip().is_unspecified()
                    && (all.port(), all.is_ipv4()) == (address.port(), address.is_ipv4())
            };
            if address.port() != 0
                && !address.ip().is_unspecified()
                && let Some(all) = addresses.iter().find(covered_by)
            {
                return invalid(
                    format!("listeners[{index}]"),
                    format!("{address} is one of the addresses that {all} covers: leave it out"),
                );
            }
        }
        bounded("subsystems", self.subsystems.len(), SUBSYSTEMS_MAX)?;
        let mut nqns = BTreeSet::new();
        let mut uuids = BTreeSet::new();
        for (index, subsystem) in self.subsystems.iter().enumerate() {
            let at = format!("subsystems[{index}]");
            if !nqns.insert(subsystem.nqn.as_str()) {
                return invalid(format!("{at}.nqn"), format!("{} is used twice", subsystem.nqn));
            }
            if subsystem.shared && self.controller_ids.is_none() {
                return invalid(
                    "controller_ids",
                    "a shared subsystem needs a range that no other server uses, such as 1-32767",
                );
            }
            subsystem.check(&at, &addresses, &mut uuids)?;
        }
        Ok(())
    }

    /// Fills in what can be known without opening a volume: listeners, serials, host rules,
    /// namespace ids. Doing it again changes nothing.
    pub fn complete(&mut self) {
        if self.listeners.is_empty() {
            self.listeners.push(SocketAddr::from(([127, 0, 0, 1], LISTEN_PORT)).into());
        }
        for subsystem in &mut self.subsystems {
            subsystem.complete();
        }
    }

    /// A short name for what it says, however it is written: comments, the order of what has none, and what is
    /// said although it is the default do not count. The same in every version of this program.
    pub fn fingerprint(&self) -> String {
        let mut config = self.clone();
        config.complete();
        config.listeners.sort_unstable();
        for subsystem in &mut config.subsystems {
            subsystem.allowed_hosts.sort_unstable();
            subsystem.authentication.sort_by(|one, other| one.host.cmp(&other.host));
            subsystem.namespaces.sort_by_key(|namespace| namespace.nsid);
        }
        config.subsystems.sort_by(|one, other| one.nqn.cmp(&other.nqn));
        let value = serde_json::to_value(&config).expect("a configuration is plain data");
        store::fingerprint(&value.to_string())
    }

    /// The subsystem called `nqn`.
    pub fn subsystem(&self, nqn: &str) -> Option<&Subsystem> {
        self.subsystems.iter().find(|subsystem| subsystem.nqn == nqn)
    }

    /// The subsystem called `nqn`, to change.
    pub fn subsystem_mut(&mut self, nqn: &str) -> Option<&mut Subsystem> {
        self.subsystems.iter_mut().find(|subsystem| subsystem.nqn == nqn)
    }
}

impl Subsystem {
    /// Fills in serial, host rule and namespace ids.
    pub fn complete(&mut self) {
        if self.serial.is_none() {
            self.serial = Some(identity::serial(&self.nqn));
        }
        if self.allow_any_host != Some(false)
            && self.allowed_hosts.iter().any(|host| host == ANY_HOST)
        {
            self.allowed_hosts.retain(|host| host != ANY_HOST);
            self.allow_any_host = Some(true);
        }
        self.allow_any_host.get_or_insert(self.allowed_hosts.is_empty());
        for index in 0..self.namespaces.len() {
            if self.namespaces[index].nsid.is_none() {
                self.namespaces[index].nsid = Some(self.nsid_free());
            }
        }
    }

    /// The lowest namespace id not in use.
    pub fn nsid_free(&self) -> u32 {
        let used: BTreeSet<u32> = self.namespaces.iter().filter_map(|n| n.nsid).collect();
        (1..).find(|nsid| !used.contains(nsid)).expect("fewer namespaces than ids")
    }

    /// The namespace with this id.
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.iter().find(|namespace| namespace.nsid == Some(nsid))
    }

    fn check(
        &self,
        at: &str,
        listeners: &[SocketAddr],
        uuids: &mut BTreeSet<Uuid>,
    ) -> Result<(), Invalid> {
        check_nqn(&self.nqn).or_else(|problem| invalid(format!("{at}.nqn"), problem))?;
        if let Some(serial) = &self.serial {
            name::check_serial(serial)
                .or_else(|problem| invalid(format!("{at}.serial"), problem))?;
        }
        bounded(&format!("{at}.allowed_hosts"), self.allowed_hosts.len(), HOSTS_MAX)?;
        for (index, host) in self.allowed_hosts.iter().enumerate() {
            if host == ANY_HOST && self.allow_any_host == Some(false) {
                return invalid(
                    format!("{at}.allowed_hosts[{index}]"),
                    format!("`{ANY_HOST}` is any host, and allow_any_host is false"),
                );
            }
            check_nqn(host)
                .or_else(|problem| invalid(format!("{at}.allowed_hosts[{index}]"), problem))?;
        }
        self.check_authentication(at)?;
        bounded(&format!("{at}.namespaces"), self.namespaces.len(), NAMESPACES_MAX)?;
        let mut nsids = BTreeSet::new();
        for (index, namespace) in self.namespaces.iter().enumerate() {
            let at = format!("{at}.namespaces[{index}]");
            if namespace.nsid.is_some_and(|nsid| !nsids.insert(nsid)) {
                return invalid(format!("{at}.nsid"), "is used twice in this subsystem");
            }
            namespace.check(&at, self.shared, uuids)?;
        }
        for (index, ana) in self.ana.iter().enumerate() {
            let at = format!("{at}.ana[{index}]");
            check_group(&format!("{at}.group"), ana.group)?;
            if let Some(listener) = ana.listener.filter(|listener| !listeners.contains(listener)) {
                return invalid(format!("{at}.listener"), format!("{listener} is no listener"));
            }
        }
        Ok(())
    }
}

impl Namespace {
    /// A namespace of `volume` about which nothing else has been said.
    pub fn new(volume: String) -> Namespace {
        Namespace { volume, ana_group: first_group(), ..Namespace::default() }
    }

    fn check(&self, at: &str, shared: bool, uuids: &mut BTreeSet<Uuid>) -> Result<(), Invalid> {
        if let Some(nsid) = self.nsid.filter(|&nsid| nsid == 0 || nsid > limits::NSID_MAX) {
            return invalid(
                format!("{at}.nsid"),
                format!("{nsid} is not between 1 and {}", limits::NSID_MAX),
            );
        }
        match self.volume.parse::<volume::Uri>() {
            Err(error) => return invalid(format!("{at}.volume"), error.to_string()),
            Ok(uri) if shared && uri.has_memory() => {
                return invalid(
                    format!("{at}.volume"),
                    format!("{} is memory of this process: it cannot be shared", self.volume),
                );
            }
            Ok(_) => {}
        }
        if shared && self.uuid.is_none() {
            return invalid(
                format!("{at}.uuid"),
                "a shared volume needs the UUID that every server gives it",
            );
        }
        // A zero NGUID is none; a UUID each namespace has.
        if self.uuid.is_some_and(|uuid| uuid.is_nil()) {
            return invalid(format!("{at}.uuid"), "is zero; leave it out to have one made");
        }
        if let Some(uuid) = self.uuid.filter(|&uuid| !uuids.insert(uuid)) {
            return invalid(format!("{at}.uuid"), format!("{uuid} is used twice"));
        }
        check_group(&format!("{at}.ana_group"), self.ana_group)
    }
}

fn bounded(at: &str, count: usize, max: usize) -> Result<(), Invalid> {
    if count > max {
        return invalid(at, format!("{count} are more than the {max} that can be served"));
    }
    Ok(())
}

/// Checks the number of an ANA group.
pub(crate) fn check_group(at: &str, group: u32) -> Result<(), Invalid> {
    if group == 0 || group > ANA_GROUP_MAX {
        return invalid(at, format!("{group} is not between 1 and {ANA_GROUP_MAX}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
