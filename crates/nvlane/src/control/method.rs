//! The methods: names, parameters and results. docs/control.md describes them for people.
//!
//! Where `nqn` is optional it may be left out while there is exactly one subsystem.

use crate::config::{AnaState, Listen};
use crate::copy::shared::{Counts, Phase};
use crate::copy::spec::{Options, Part};
use crate::copy::throttle::Throttle;
use namespace::{Access, PathReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use uuid::Uuid;

/// `volume_add`: opens a volume and makes it a namespace. Gives a [`Volume`].
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// NGUID; made when left out, none if all zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nguid: Option<Uuid>,
    /// ANA group; 1 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ana_group: Option<u32>,
    /// Whether the daemon is to start without it from now on, should it not be there then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nofail: bool,
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

/// `volume_snapshot`: makes a file that is what the volume is at one moment. Gives a [`Snapshot`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeSnapshot {
    /// The subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// The namespace.
    pub nsid: u32,
    /// The file to be made, an absolute path on the volume's file system.
    pub file: String,
}

/// What `volume_snapshot` has made.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The file.
    pub file: String,
    /// Its length.
    pub bytes: u64,
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
    /// Whether it may be less than it is: what lies behind is gone then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shrink: bool,
}

/// `volume_paths`: the ways to volumes. Gives an array of [`VolumePaths`].
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumePathsOf {
    /// The subsystem; all of them when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// The namespace; all that have paths when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
}

/// `volume_tune`: changes a setting of an open volume, such as its policy. Gives a [`Volume`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeTune {
    /// The subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// The namespace.
    pub nsid: u32,
    /// The setting.
    pub name: String,
    /// Its new value.
    pub value: String,
}

/// `volume_program`: puts another program in the place of one that routes a volume's requests. Gives a
/// [`ProgramReplaced`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeProgram {
    /// The subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// The namespace.
    pub nsid: u32,
    /// The new program's object file, an absolute path.
    pub object: String,
    /// The name of the old one, as the URI has it, or of its file; may be left out where there is but one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
}

/// `volume_program` of a device's server; as [`VolumeProgram`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProgram {
    /// The new program's object file, an absolute path.
    pub object: String,
    /// The name of the old one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
}

/// What has become of a volume and its maps with the new program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramReplaced {
    /// The volume's URI in canonical form, by now.
    pub volume: String,
    /// Maps that both programs have, which hold what they held.
    pub kept: Vec<String>,
    /// Maps of the new program that began empty.
    pub fresh: Vec<String>,
    /// Maps of the old program that are gone.
    pub dropped: Vec<String>,
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

/// `host_set_key`: a host has to prove who it is from its next connection on. The files are read then and there, and again by each
/// start. Gives a [`HostKeySet`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSetKey {
    /// The subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// The host's NQN.
    pub host: String,
    /// The file of the host's key, an absolute path; none: it has nothing to prove but by TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_key: Option<String>,
    /// The file of the key by which the subsystem proves who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_ctrl_key: Option<String>,
    /// The only hash function that will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_hash: Option<String>,
    /// The only group of Diffie and Hellman that will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_dhgroup: Option<String>,
    /// The file of the key by which the host comes to listeners that take encrypted connections, and then to no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<String>,
}

/// What holds for a host whose key was set.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostKeySet {
    /// The subsystem.
    pub nqn: String,
    /// The host.
    pub host: String,
    /// It may connect; otherwise it has yet to be allowed.
    pub may_connect: bool,
    /// Any other host may connect as well, without proof if it has no key.
    pub allow_any_host: bool,
    /// There is a listener that takes encrypted connections, or it has no key for TLS.
    #[serde(default = "yes")]
    pub has_listener: bool,
    /// Files of keys that every user of the machine may read or change.
    pub exposed: Vec<String>,
    /// Files that hold two keys, by each of which it may come.
    #[serde(default)]
    pub twofold: Vec<String>,
    /// Fields of what was said before that nothing was said of now: it has to prove that no more.
    #[serde(default)]
    pub dropped: Vec<String>,
}

/// `host_clear_key`: a host need not prove who it is any more. Gives an empty object.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostClearKey {
    /// The subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// The host's NQN.
    pub host: String,
}

/// `listener_add` and `listener_remove`. Both give a [`ListenerChanged`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// The address, with `tls://` where only encrypted connections are to be taken; with port 0, adding takes a free port and says
    /// which. Removing goes by the address alone.
    pub address: Listen,
}

/// The listener that was added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerChanged {
    /// Its address.
    pub address: SocketAddr,
    /// It takes encrypted connections alone.
    #[serde(default)]
    pub tls: bool,
}

impl From<Listen> for ListenerChanged {
    fn from(Listen { address, tls }: Listen) -> ListenerChanged {
        ListenerChanged { address, tls }
    }
}

fn yes() -> bool {
    true
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

/// `subsystem_tune`: changes a setting of all volumes of a subsystem that have it, of those that are missing for when they
/// come. Gives an array of those,
/// [`Volume`] each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubsystemTune {
    /// Its name.
    pub nqn: String,
    /// The setting.
    pub name: String,
    /// Its new value.
    pub value: String,
}

/// `log_set`: changes what is logged, until the daemon is started again. Gives an empty object.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSet {
    /// As `--log` has it: a level, or a list such as `warn,target=debug`.
    pub filter: String,
}

/// A volume that is to be served (`nofail`), and cannot be opened now. `volume_missing` gives an array of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMissing {
    /// Its subsystem.
    pub nqn: String,
    /// Its namespace id.
    pub nsid: u32,
    /// Its URI as it was given.
    pub volume: String,
    /// Why it is not served, in words.
    pub reason: String,
    /// For how long, as far as this daemon knows.
    pub seconds: u64,
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

/// The ways to a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumePaths {
    /// Its subsystem.
    pub nqn: String,
    /// Its namespace id.
    pub nsid: u32,
    /// Its URI in canonical form.
    pub volume: String,
    /// How commands are spread over the paths, where that can be chosen.
    #[serde(default)]
    pub policy: Option<String>,
    /// The paths.
    pub paths: Vec<PathNow>,
}

/// The programs of a volume: what `volume_maps` gives, with parameters as [`VolumePathsOf`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeMaps {
    /// Its subsystem.
    pub nqn: String,
    /// Its namespace id.
    pub nsid: u32,
    /// Its URI in canonical form.
    pub volume: String,
    /// The programs.
    pub programs: Vec<ProgramNow>,
}

/// The programs of a device: what `volume_maps` of its server gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceMaps {
    /// The block device.
    pub device: String,
    /// Its volume's URI in canonical form.
    pub volume: String,
    /// The programs.
    pub programs: Vec<ProgramNow>,
}

/// What a program of a device was given when its volume was opened: `volume_backends` of its server gives one for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramBackends {
    /// Its object file.
    pub name: String,
    /// Size of what it routes, in blocks.
    pub blocks: u64,
    /// The volumes behind it.
    pub backends: Vec<BackendNow>,
}

/// A volume behind a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackendNow {
    /// Logical block size in bytes as a power of two.
    pub block_shift: u8,
    /// Size in blocks.
    pub blocks: u64,
    /// Largest transfer of one command in bytes.
    pub transfer_bytes_max: u32,
    /// Preferred write granularity in bytes.
    pub optimal_write_bytes: u32,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramNow {
    /// Its object file.
    pub name: String,
    /// Requests that failed because of what it did.
    pub mistakes: u64,
    /// Its maps.
    pub maps: Vec<MapNow>,
}

/// A map of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapNow {
    /// The variable's name; the section's for global variables.
    pub name: String,
    /// `array`, `per-core array`, `hash`, `variables`.
    pub kind: String,
    /// Entries that there can be.
    pub entries_max: u32,
    /// Those that there are; of arrays, those that are not all zero.
    pub entries: Vec<MapEntry>,
    /// Entries that were left out, the map being large.
    pub left_out: u64,
}

/// An entry of a map, in hexadecimal, byte by byte as it lies in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapEntry {
    /// The key.
    pub key: String,
    /// The value: one, or one for each core.
    pub values: Vec<String>,
}

/// A path, as [`PathReport`] has it; counts are since the volume was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathNow {
    /// What tells it from the others.
    pub name: String,
    /// `optimized`, `non-optimized`, `inaccessible`, `lost`, `failing` or `gone`.
    pub access: String,
    /// It is kept for when no other can be used.
    #[serde(default)]
    pub standby: bool,
    /// Why it is not live; empty if it is.
    pub reason: String,
    /// Commands in flight.
    pub in_flight: u64,
    /// Commands sent.
    pub selections: u64,
    /// Commands that came back with an error of the path.
    pub errors: u64,
    /// Connections made after the first.
    pub reconnects: u64,
    /// What the policy gives it, 0 to 128.
    pub weight: u32,
    /// Half of the latencies are below, in nanoseconds.
    pub p50_ns: u64,
    /// 99 of 100 latencies are below, in nanoseconds.
    pub p99_ns: u64,
    /// What only some policies or transports know.
    pub details: BTreeMap<String, String>,
}

impl PathNow {
    /// Whether commands may be sent over it.
    pub fn is_live(&self) -> bool {
        self.access == "optimized" || self.access == "non-optimized"
    }
}

impl From<PathReport> for PathNow {
    fn from(report: PathReport) -> PathNow {
        let access = match report.access {
            Access::Optimized => "optimized",
            Access::NonOptimized => "non-optimized",
            Access::Inaccessible => "inaccessible",
            Access::Lost => "lost",
            Access::Failing => "failing",
            Access::Gone => "gone",
        };
        PathNow {
            name: report.name,
            access: access.to_owned(),
            standby: report.standby,
            reason: report.reason,
            in_flight: report.in_flight,
            selections: report.selections,
            errors: report.errors,
            reconnects: report.reconnects,
            weight: report.weight,
            p50_ns: report.p50_ns,
            p99_ns: report.p99_ns,
            details: report.details.into_iter().collect(),
        }
    }
}

/// `job_add`: begins a copy that the daemon does by itself. Gives a [`Job`]. `job_plan`: says what it would do, and begins nothing.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobAdd {
    /// What is read, one after another; a volume is a URI, `served:NSID` or `served:NQN/NSID`.
    pub sources: Vec<Part>,
    /// What all of it is written to.
    pub targets: Vec<Part>,
    /// How.
    #[serde(default)]
    pub options: Options,
    /// Also if another job that has not ended writes what this one reads or writes, or reads what it writes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlap_ok: bool,
}

/// `job_pause`, `job_resume`, `job_cancel`: say what becomes of a job. Give a [`Job`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobOf {
    /// The job.
    pub id: u64,
}

/// `job_throttle`: another limit for a job. Gives a [`Job`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobThrottle {
    /// The job.
    pub id: u64,
    /// `30%` of the time, `100M` bytes per second, or `none`.
    pub throttle: Throttle,
}

/// `job_clear`: forgets jobs that are done, cancelled or failed. Gives [`JobsCleared`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobClear {
    /// The job; all of them when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
}

/// The jobs that are forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobsCleared {
    /// Their numbers.
    pub cleared: Vec<u64>,
}

/// What has become of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// It is at work, or will be when the daemon has started again.
    Running,
    /// It was asked to pause, and ends what it has begun.
    Pausing,
    /// It can be resumed.
    Paused,
    /// Everything is copied and flushed, and compared if that was asked for.
    Done,
    /// It can be resumed.
    Failed,
    /// It was asked to end, and ends what it has begun.
    Cancelling,
    /// It was ended.
    Cancelled,
}

impl JobState {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Pausing => "pausing",
            JobState::Paused => "paused",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelling => "cancelling",
            JobState::Cancelled => "cancelled",
        }
    }
}

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Its number, which no other has had.
    pub id: u64,
    /// What has become of it.
    pub state: JobState,
    /// What it does while it is running.
    pub phase: Phase,
    /// Why it has failed, also when it was cancelled after that.
    pub error: Option<String>,
    /// What is read.
    pub sources: Vec<Part>,
    /// What is written.
    pub targets: Vec<Part>,
    /// How.
    pub options: Options,
    /// How far it is.
    pub counts: Counts,
    /// Bytes copied, or compared, per second in the last ten seconds, while it is running.
    pub bytes_per_second: u64,
    /// CRC-64/NVME of everything, where both sides were compared.
    pub checksum: Option<String>,
    /// When it was added, in seconds since 1970. Jobs of earlier versions do not know when.
    #[serde(default)]
    pub created_time_seconds: Option<u64>,
    /// When it was begun, or resumed last.
    #[serde(default)]
    pub started_time_seconds: Option<u64>,
    /// When it was done, had failed or was cancelled.
    #[serde(default)]
    pub ended_time_seconds: Option<u64>,
}
