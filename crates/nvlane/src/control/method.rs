//! The methods: names, parameters and results. docs/control.md describes them for people.
//!
//! Where `nqn` is optional it may be left out while there is exactly one subsystem.

use crate::config::AnaState;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use uuid::Uuid;

/// `volume_add`: opens a volume and makes it a namespace. Gives a [`Volume`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeAdd {
    /// The volume's URI.
    pub volume: String,
    /// The subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// Namespace id; the lowest free one when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
    /// UUID; made when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
    /// NGUID; made when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nguid: Option<Uuid>,
    /// ANA group; 1 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ana_group: Option<u32>,
}

/// `volume_remove`: ends a namespace, flushed and closed. Gives an empty object.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRemove {
    /// The subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// The namespace.
    pub nsid: u32,
}

/// `volume_resize`: changes a volume's capacity, and tells the hosts. Gives a [`Volume`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeResize {
    /// The subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// The namespace.
    pub nsid: u32,
    /// The new capacity in bytes.
    pub bytes: u64,
}

/// `host_allow` and `host_disallow`: changes who may connect. Give an empty object.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// The host's NQN, or `*` for hosts that are not listed.
    pub host: String,
}

/// `listener_add` and `listener_remove`. Both give a [`Listener`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// The address; with port 0, adding takes a free port and says which.
    pub address: SocketAddr,
}

/// `ana_set`: sets the state of an ANA group. Gives an empty object.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnaSet {
    /// The subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// The listener; all of them when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<SocketAddr>,
    /// The group.
    pub group: u32,
    /// The state.
    pub state: AnaState,
}

/// `subsystem_add`: begins an empty subsystem. Gives an empty object.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubsystemAdd {
    /// Its name.
    pub nqn: String,
    /// Its serial number; made when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Hosts that may connect; any when there are none.
    #[serde(default)]
    pub allowed_hosts: Vec<String>,
    /// Another server serves the same volumes.
    #[serde(default)]
    pub shared: bool,
}

/// `subsystem_remove`: ends a subsystem and its namespaces. Gives an empty object.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubsystemRemove {
    /// Its name.
    pub nqn: String,
}

/// A volume that is being served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its subsystem.
    pub nqn: String,
    /// Its namespace id.
    pub nsid: u32,
    /// Its URI in canonical form.
    pub volume: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its NGUID.
    pub nguid: Uuid,
    /// Its ANA group.
    pub ana_group: u32,
    /// Its capacity in bytes.
    pub bytes: u64,
    /// Its logical block size in bytes.
    pub block_bytes: u32,
}
