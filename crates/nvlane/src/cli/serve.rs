//! `nvlane serve`.

use crate::config::{ControllerIds, Cores, Listen, parse_host, parse_listen, parse_nqn};
use crate::size;
use clap::Args;
use std::path::PathBuf;
use uuid::Uuid;

/// Arguments of `nvlane serve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  nvlane serve                                   a file of 4 GiB in the data directory
  nvlane serve disk.img mem:1G                   two namespaces of one subsystem
  nvlane serve /dev/sdb --listen 0.0.0.0 --listen '[::]' --allow-host nqn.2014-08.org.example:host1
  nvlane serve 'file:/srv/a.img?size=100G&create' --cores 0-3
  nvlane key new host1.key && nvlane serve /dev/sdb --listen 0.0.0.0 --host-key nqn.2014-08.org.example:host1=host1.key
  nvlane key new --tls host1.tls && nvlane serve /dev/sdb --listen tls://0.0.0.0 --host-tls-key nqn.2014-08.org.example:host1=host1.tls
  nvlane serve disk.img /dev/disk/by-id/usb-backup --nofail      the disk when it is plugged in
  nvlane serve --config /etc/nvlane.toml
  nvlane serve /mnt/shared/a.img --shared --nqn nqn.2026-11.com.example:a \\
      --uuid b0c2a1f6-7d8e-4f3a-9b1c-2d3e4f5a6b7c --cntlid 1-1000     one of two gateways

What `nvlane ctl` changes is kept in the data directory and continued when the same command or the
same file is served again; an edited configuration file wins over it.

Volumes: PATH, file:PATH?size=10G&create, mem:SIZE, null:SIZE, tcp://HOST[:PORT],.../NQN?ns=N,
discovery://HOST[:PORT],.../NQN?ns=N, /dev/ngXnY, linear:(a,b), multipath:(a,b), bpf:PROG.o(a,b),
and delay:, rate:, fault: or volatile: before (a). Sizes take K, M, G and T, powers of 1024. All of
them and their options: docs/serve.md.")]
pub struct ServeArgs {
    /// Volumes: paths or URIs (file:, mem:, null:, delay:..(..), ...). None: a file in the data
    /// directory.
    #[arg(value_name = "VOLUME", conflicts_with = "config")]
    pub volumes: Vec<String>,
    /// Address to listen on, with or without port, and tls:// before it for encrypted connections alone; may be given more
    /// than once.
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen, default_value = "127.0.0.1:4420", conflicts_with = "config")]
    pub listen: Vec<Listen>,
    /// Name of the subsystem; derived from the machine and the volumes when left out.
    #[arg(long, value_name = "NQN", value_parser = parse_nqn, conflicts_with = "config")]
    pub nqn: Option<String>,
    /// Let only this host connect (* for any); may be given more than once.
    #[arg(long, value_name = "NQN", value_parser = parse_host, conflicts_with = "config")]
    pub allow_host: Vec<String>,
    /// Let this host connect, as --allow-host does, if it proves by the key in that file (`nvlane key new`; or by one of two) that it
    /// is who it says it is; may be given more than once.
    // Read later: what clap refuses it says again, and it might be a key.
    #[arg(long, value_name = "NQN=FILE", conflicts_with = "config")]
    pub host_key: Vec<String>,
    /// Prove to this host, if it wants to know, by the key in that file who this is; may be given more than once.
    #[arg(long, value_name = "NQN=FILE", requires = "host_key", conflicts_with = "config")]
    pub host_ctrl_key: Vec<String>,
    /// Let this host connect, as --allow-host does, if it comes to a listener with tls:// by the key in that file (`nvlane key
    /// new --tls`; or by one of two); may be given more than once.
    #[arg(long, value_name = "NQN=FILE", conflicts_with = "config")]
    pub host_tls_key: Vec<String>,
    /// Configuration file: TOML, or JSON if its name ends in .json.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Size of the volume that is served when none is named, when it is first made.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "4G", conflicts_with_all = ["volumes", "config"])]
    pub size: u64,
    /// Cores of the data path: how many (4) or which (0,2-5; 3-3 for one). One if not given.
    #[arg(long, value_name = "N|LIST")]
    pub cores: Option<Cores>,
    /// Poll without ever sleeping: lower latency, and each core fully used.
    #[arg(long)]
    pub poll: bool,
    /// Another server may serve the same volumes: give each the same NQN and UUID, and ranges of
    /// controller ids that do not meet.
    #[arg(long, requires_all = ["nqn", "uuid", "cntlid"], conflicts_with = "config")]
    pub shared: bool,
    /// UUID of the volume; one for each volume, in their order.
    #[arg(long, value_name = "UUID", requires = "volumes")]
    pub uuid: Vec<Uuid>,
    /// Range of controller ids to give out.
    #[arg(long, value_name = "MIN-MAX", conflicts_with = "config")]
    pub cntlid: Option<ControllerIds>,
    /// Control socket, for `nvlane ctl`: /run/nvlane.sock for root, nvlane.sock in $XDG_RUNTIME_DIR otherwise.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Directory for state and for the default volume: /var/lib/nvlane for root, ~/.local/share/nvlane otherwise.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Put the state of earlier changes aside and start from the command line or file alone. Copies that were running are paused.
    #[arg(long)]
    pub fresh: bool,
    /// Serve the other volumes when one cannot be opened, and that one once it can be (`nvlane ctl volume missing` lists
    /// them). A configuration file may say so of single ones.
    #[arg(long)]
    pub nofail: bool,
    /// What to log to standard error: error, warn, info, debug, trace, or a filter such as
    /// target=debug,warn.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log: String,
    /// Write one line of JSON (nqns, listeners, socket) to this file descriptor when ready.
    #[arg(long, value_name = "FD")]
    pub ready_fd: Option<u32>,
}
