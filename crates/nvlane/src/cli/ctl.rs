//! `nvlane ctl`.

use super::content::interval;
use crate::config::{AnaState, Listen, parse_host, parse_listen, parse_listener, parse_one_host};
use crate::size;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use uuid::Uuid;

/// Arguments of `nvlane ctl`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane ctl volume add 'file:/srv/b.img?size=20G&create'
  nvlane ctl volume resize 1 40G
  nvlane ctl stats -o json
  nvlane ctl call config_get

The methods behind it, for programs, are in docs/control.md.")]
pub struct CtlArgs {
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    /// How long an answer of the daemon may take, in milliseconds; 0: for ever.
    #[arg(long, value_name = "MS", default_value_t = 30_000, global = true)]
    pub timeout: u64,
    /// How to write what comes back: text, but for `call` json.
    #[arg(short, long, value_enum, global = true)]
    pub output: Option<Output>,
    /// What to do.
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[value(alias = "normal")]
    Text,
    /// For programs: the method's result.
    Json,
}

/// The commands of `nvlane ctl`.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// Add, remove and resize volumes.
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Say which hosts may connect, and which have to prove who they are.
    #[command(subcommand)]
    Host(HostCommand),
    /// Show which hosts are connected.
    #[command(subcommand)]
    Controller(ControllerCommand),
    /// Add, remove and list addresses.
    #[command(subcommand)]
    Listener(ListenerCommand),
    /// Set and show ANA states.
    #[command(subcommand)]
    Ana(AnaCommand),
    /// Add, remove and list subsystems.
    #[command(subcommand)]
    Subsystem(SubsystemCommand),
    /// Show what was served so far.
    #[command(after_help = "Example:
  nvlane ctl stats -o json | jq .namespaces")]
    Stats,
    /// Watch what is served: commands, bytes and latencies of each namespace, the busiest first.
    #[command(after_help = "Examples:
  nvlane ctl top
  nvlane ctl top --interval 5s
  nvlane ctl top --count 1 -o json        one second, for a script

Latencies are those of the volume, without the network: known to a power of two, and read off in between.
Those of the paths to remote volumes: nvlane paths --watch.")]
    Top {
        /// How long to look before each table: 1s, 500ms.
        #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
        interval: Duration,
        /// End after so many tables, instead of when it is stopped.
        #[arg(short = 'n', long, value_name = "TABLES")]
        count: Option<u64>,
    },
    /// Write metrics for Prometheus, in its text format.
    #[command(after_help = "Examples:
  nvlane ctl metrics
  nvlane ctl metrics --file /var/lib/prometheus/node-exporter/nvlane.prom
  nvlane ctl metrics --socket /run/nvlane/ublk-0.sock      the paths of a block device

What they mean, a timer for them, and alerts: docs/monitoring.md.")]
    Metrics {
        /// Write there, as a whole, instead of to standard output: for node_exporter's textfile collector.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Show the configuration as it is now.
    #[command(after_help = "Example:
  nvlane ctl config > nvlane.toml")]
    Config,
    /// Change what is logged, until the server is started again.
    #[command(after_help = "Examples:
  nvlane ctl log debug
  nvlane ctl log warn,target=debug
  nvlane ctl log info                     as it usually is")]
    Log {
        /// error, warn, info, debug, trace, off, or a list such as warn,target=debug.
        #[arg(value_name = "LEVEL")]
        filter: String,
    },
    /// Call a method of the control socket.
    #[command(after_help = "Example:
  nvlane ctl call volume_add '{\"volume\": \"mem:1G\"}'")]
    Call {
        /// The method.
        method: String,
        /// Its parameters, a JSON object.
        #[arg(value_parser = json, default_value = "{}")]
        params: serde_json::Value,
    },
}

/// `nvlane ctl volume`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  nvlane ctl volume add mem:1G
  nvlane ctl volume remove 2")]
pub enum VolumeCommand {
    /// Open a volume and serve it.
    #[command(after_help = "Examples:
  nvlane ctl volume add disk.img
  nvlane ctl volume add mem:1G --nsid 7 --ana-group 2")]
    Add {
        /// The volume: a path or a URI.
        volume: String,
        /// The subsystem; needed when there are several.
        #[arg(long)]
        nqn: Option<String>,
        /// Namespace id; the lowest free one when left out.
        #[arg(long)]
        nsid: Option<u32>,
        /// UUID; made when left out.
        #[arg(long)]
        uuid: Option<Uuid>,
        /// NGUID; made when left out, none if all zero.
        #[arg(long)]
        nguid: Option<Uuid>,
        /// ANA group; 1 when left out.
        #[arg(long, value_name = "GROUP")]
        ana_group: Option<u32>,
        /// Should it not be there when the server starts again, serve the others, and this one once it is.
        #[arg(long)]
        nofail: bool,
    },
    /// Stop serving a volume, flush and close it.
    #[command(after_help = "Example:
  nvlane ctl volume remove 2")]
    Remove {
        /// Namespace id.
        nsid: u32,
        /// The subsystem; needed when there are several.
        #[arg(long)]
        nqn: Option<String>,
    },
    /// Change a volume's capacity; hosts notice.
    #[command(after_help = "Example:
  nvlane ctl volume resize 1 40G")]
    Resize {
        /// Namespace id.
        nsid: u32,
        /// The new capacity.
        #[arg(value_parser = size::parse)]
        size: u64,
        /// It may be less than it is now: what lies behind is gone then.
        #[arg(long)]
        shrink: bool,
        /// The subsystem; needed when there are several.
        #[arg(long)]
        nqn: Option<String>,
    },
    /// Make a file that is what a volume is at this moment, while it is in use.
    #[command(
        after_help = "Of a file on XFS or btrfs, whose blocks the new file shares: in a part of a second, whatever the size.
What hosts keep in their own caches is not in it: have them flush first, as fsfreeze does.

Example:
  nvlane ctl volume snapshot 1 /srv/monday.img && nvlane ctl volume add 'file:/srv/monday.img?ro'"
    )]
    Snapshot {
        /// Namespace id.
        nsid: u32,
        /// The file to be made, on the volume's file system.
        file: PathBuf,
        /// The subsystem; needed when there are several.
        #[arg(long)]
        nqn: Option<String>,
    },
    /// Change a setting of a volume in use, such as the policy of its paths, or how much may pass a second.
    #[command(after_help = "Examples:
  nvlane ctl volume tune 1 policy=round-robin
  nvlane ctl volume tune 1 standby=192.0.2.2          that path is for when no other can be used; standby=none
  nvlane ctl volume tune 1 rate.bytes=200M            of a volume with rate:; rate.iops=10K, or none
  nvlane ctl volume tune 1 latency_ewma_shift=5")]
    Tune {
        /// Namespace id.
        nsid: u32,
        /// The setting and its new value.
        #[arg(value_name = "NAME=VALUE", value_parser = setting)]
        setting: (String, String),
        /// The subsystem; needed when there are several.
        #[arg(long)]
        nqn: Option<String>,
    },
    /// Show the paths to volumes; `nvlane paths` shows them as a table.
    #[command(after_help = "Example:
  nvlane ctl volume paths -o json")]
    Paths {
        /// Namespace id; all volumes that have paths when left out.
        nsid: Option<u32>,
        /// The subsystem.
        #[arg(long)]
        nqn: Option<String>,
    },
    /// List the volumes that are served.
    #[command(after_help = "Example:
  nvlane ctl volume list -o json")]
    List,
    /// List the volumes that are to be served (nofail), and cannot be opened now.
    #[command(after_help = "Example:
  nvlane ctl volume missing")]
    Missing,
}

/// `nvlane ctl host`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  nvlane ctl host disallow '*'            from now on only hosts that are listed
  nvlane ctl host set-key nqn.2014-08.org.example:host1 --dhchap-key /etc/nvlane/host1.key")]
pub enum HostCommand {
    /// Let a host connect.
    #[command(after_help = "Examples:
  nvlane ctl host allow nqn.2014-08.org.example:host1
  nvlane ctl host allow '*'               any host

Where any host may connect (the default without --allow-host), listing one restricts nobody. To
restrict: `nvlane ctl host allow NQN`, then `nvlane ctl host disallow '*'`.")]
    Allow {
        /// The host's NQN, or * for any.
        #[arg(value_parser = parse_host)]
        host: String,
        /// The subsystem; needed when there are several.
        #[arg(long)]
        nqn: Option<String>,
    },
    /// No longer let a host connect; what it has connected is dropped.
    #[command(after_help = "Example:
  nvlane ctl host disallow nqn.2014-08.org.example:host1

Its key, if it has one, is kept for when it is allowed again.")]
    Disallow {
        /// The host's NQN, or * for hosts that are not listed.
        host: String,
        /// The subsystem; needed when there are several.
        #[arg(long)]
        nqn: Option<String>,
    },
    /// Have a host prove who it is from its next connection on; what it has connected stays.
    #[command(group = ArgGroup::new("keys").required(true).multiple(true))]
    #[command(after_help = "Examples:
  nvlane key new /etc/nvlane/host1.key
  nvlane ctl host set-key nqn.2014-08.org.example:host1 --dhchap-key /etc/nvlane/host1.key
  nvlane ctl host set-key nqn.2014-08.org.example:host1 --dhchap-key h.key --dhchap-ctrl-key a.key     both prove it
  nvlane ctl host set-key nqn.2014-08.org.example:host1 --tls-key h.tls     by tls:// alone

It replaces all that was said of the host before. The server reads the files then and there, and keeps their names. After a file has been changed, say the same again.
Where any host may connect, a key protects the name of one alone: `nvlane ctl host disallow '*'` keeps the others out.")]
    SetKey {
        /// The host's NQN.
        #[arg(value_parser = parse_one_host)]
        host: String,
        /// The file that the host's key is in; or two, each in a line of its own, of which either will do while one is replaced.
        #[arg(long, value_name = "FILE", group = "keys")]
        dhchap_key: Option<PathBuf>,
        /// The file of the key by which the subsystem proves who it is, if the host wants to know.
        #[arg(long, value_name = "FILE", requires = "dhchap_key")]
        dhchap_ctrl_key: Option<PathBuf>,
        /// The only hash function that will do: sha256, sha384 or sha512. Any if not given.
        #[arg(long, value_name = "HASH", requires = "dhchap_key")]
        dhchap_hash: Option<dhchap::Hash>,
        /// The only group of Diffie and Hellman that will do: null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 or
        /// ffdhe8192. Any if not given.
        #[arg(long, value_name = "GROUP", requires = "dhchap_key")]
        dhchap_dhgroup: Option<dhchap::Group>,
        /// The file of the key (or of two) by which the host comes to listeners with tls://, and then to no other: of `nvlane key new --tls`.
        #[arg(long, value_name = "FILE", group = "keys")]
        tls_key: Option<PathBuf>,
        /// The subsystem; needed when there are several.
        #[arg(long)]
        nqn: Option<String>,
    },
    /// No longer ask a host to prove who it is: what gives its name is let in, if that may connect.
    #[command(after_help = "Example:
  nvlane ctl host clear-key nqn.2014-08.org.example:host1")]
    ClearKey {
        /// The host's NQN.
        host: String,
        /// The subsystem; needed when there are several.
        #[arg(long)]
        nqn: Option<String>,
    },
    /// List the hosts that may connect, those that have to prove who they are, and those that are connected.
    #[command(after_help = "Example:
  nvlane ctl host list")]
    List {
        /// The subsystem; all when left out.
        #[arg(long)]
        nqn: Option<String>,
    },
}

/// `nvlane ctl controller`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:
  nvlane ctl controller list")]
pub enum ControllerCommand {
    /// List the controllers: which host is connected to what, from where, since when.
    #[command(after_help = "Examples:
  nvlane ctl controller list
  nvlane ctl controller list -o json | jq '.[].host_nqn'")]
    List {
        /// The subsystem; all when left out.
        #[arg(long)]
        nqn: Option<String>,
    },
}

/// `nvlane ctl listener`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:
  nvlane ctl listener add 0.0.0.0:4421")]
pub enum ListenerCommand {
    /// Listen on one more address.
    #[command(after_help = "Examples:
  nvlane ctl listener add '[::]:4420'
  nvlane ctl listener add tls://192.0.2.1:4421        encrypted connections alone")]
    Add {
        /// The address, with or without port, and tls:// before it for encrypted connections alone.
        #[arg(value_parser = parse_listen)]
        address: Listen,
    },
    /// Stop listening on an address; what is connected through it is dropped.
    #[command(after_help = "Example:
  nvlane ctl listener remove 0.0.0.0:4421")]
    Remove {
        /// The address, with or without port; tls:// before it may be left out.
        #[arg(value_parser = parse_listen)]
        address: Listen,
    },
    /// List the addresses that are listened on.
    #[command(after_help = "Example:
  nvlane ctl listener list")]
    List,
}

/// `nvlane ctl ana`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:
  nvlane ctl ana set 1 inaccessible --listener 192.0.2.1:4420")]
pub enum AnaCommand {
    /// Set the state of a group, on one listener or on all.
    #[command(after_help = "Examples:
  nvlane ctl ana set 1 non-optimized
  nvlane ctl ana set 2 optimized --listener 192.0.2.1:4420")]
    Set {
        /// The group.
        group: u32,
        /// Its state.
        state: AnaState,
        /// The listener; all when left out.
        #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listener)]
        listener: Option<SocketAddr>,
        /// The subsystem; needed when there are several.
        #[arg(long)]
        nqn: Option<String>,
    },
    /// Show the states of groups, on each listener.
    #[command(after_help = "Example:
  nvlane ctl ana show")]
    Show {
        /// The subsystem; all when left out.
        #[arg(long)]
        nqn: Option<String>,
    },
}

/// `nvlane ctl subsystem`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:
  nvlane ctl subsystem add nqn.2026-11.com.example:b")]
pub enum SubsystemCommand {
    /// Add an empty subsystem.
    #[command(after_help = "Examples:
  nvlane ctl subsystem add nqn.2026-11.com.example:b --allow-host nqn.2014-08.org.example:host1
  nvlane ctl subsystem add nqn.2026-11.com.example:c --shared      another gateway serves it too")]
    Add {
        /// Its name.
        nqn: String,
        /// Its serial number; made when left out.
        #[arg(long)]
        serial: Option<String>,
        /// A host that may connect, or `*`; any when none is given.
        #[arg(long, value_name = "NQN")]
        allow_host: Vec<String>,
        /// Another server may serve the same volumes. This one must have been started with a range of controller ids.
        #[arg(long)]
        shared: bool,
    },
    /// List the subsystems.
    #[command(after_help = "Example:
  nvlane ctl subsystem list")]
    List,
    /// Change a setting of all volumes of a subsystem that have it, such as the policy of their paths.
    #[command(after_help = "Example:
  nvlane ctl subsystem tune nqn.2026-11.com.example:b policy=round-robin")]
    Tune {
        /// Its name.
        nqn: String,
        /// The setting and its new value.
        #[arg(value_name = "NAME=VALUE", value_parser = setting)]
        setting: (String, String),
    },
    /// Remove a subsystem with its volumes.
    #[command(after_help = "Example:
  nvlane ctl subsystem remove nqn.2026-11.com.example:b")]
    Remove {
        /// Its name.
        nqn: String,
    },
}

fn json(text: &str) -> Result<serde_json::Value, String> {
    match serde_json::from_str(text) {
        Ok(value @ serde_json::Value::Object(_)) => Ok(value),
        Ok(_) => Err("parameters are a JSON object".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE, such as policy=round-robin".to_owned()),
    }
}
