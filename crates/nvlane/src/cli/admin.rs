//! The commands that ask a controller, with nvme-cli's names and flags: `nvlane discover`, `id-ctrl`,
//! `id-ns`, `list`, `list-subsys`, `get-log`, `show-regs`.

use clap::{Args, ValueEnum};
use std::net::IpAddr;
use std::path::PathBuf;
use uuid::Uuid;

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[value(alias = "text")]
    Normal,
    /// For programs: docs/cli-json.md.
    Json,
    /// The data structure as it came.
    Binary,
}

/// Form of the output of commands that show no single data structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// For people.
    #[value(alias = "text")]
    Normal,
    /// For programs: docs/cli-json.md.
    Json,
}

/// Which controller, and as whom.
#[derive(Clone, Debug, Args)]
pub struct RemoteArgs {
    /// Transport type.
    #[arg(short, long, value_name = "TYPE", value_parser = ["tcp"], default_value = "tcp")]
    pub transport: String,
    /// Address or host name of the controller.
    #[arg(short = 'a', long, value_name = "ADDR")]
    pub traddr: Option<String>,
    /// Its port.
    #[arg(short = 's', long, value_name = "PORT", requires = "traddr")]
    pub trsvcid: Option<u16>,
    /// Address of this host that the connection comes from.
    #[arg(short = 'w', long, value_name = "ADDR")]
    pub host_traddr: Option<IpAddr>,
    /// Network interface of this host that the connection goes by.
    #[arg(short = 'f', long, value_name = "NAME", value_parser = interface)]
    pub host_iface: Option<String>,
    /// Host NQN; /etc/nvme/hostnqn when left out, or one made from this machine's id.
    #[arg(short = 'q', long, value_name = "NQN")]
    pub hostnqn: Option<String>,
    /// Host identifier; made from the host NQN when left out.
    #[arg(short = 'I', long, value_name = "UUID")]
    pub hostid: Option<Uuid>,
    /// File of the key by which this host proves who it is (DH-HMAC-CHAP).
    #[arg(long, value_name = "FILE")]
    pub dhchap_key: Option<PathBuf>,
    /// File of the key (or of two, of which either will do) by which the controller has to prove who it is.
    #[arg(long, value_name = "FILE")]
    pub dhchap_ctrl_key: Option<PathBuf>,
    /// File of the key for TLS: the connection is encrypted by it, or not made.
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Ask for header digests.
    #[arg(short = 'g', long)]
    pub hdr_digest: bool,
    /// Ask for data digests.
    #[arg(short = 'G', long)]
    pub data_digest: bool,
    /// Milliseconds that a command may take, or an answer of the daemon; 0: for ever.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub timeout: u64,
}

/// The controller is told milliseconds, in 32 bits.
const KEEP_ALIVE_S_MAX: i64 = (u32::MAX / 1000) as i64;

/// `nvlane discover`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane discover -a 192.0.2.1                     a discovery controller on port 8009
  nvlane discover -a 192.0.2.1 -s 4420 -o json     what an nvlane or Linux target has there
  nvlane discover -a 192.0.2.1 -w 192.0.2.7        by this address of this machine
  nvlane discover -a 192.0.2.1 --watch             and what becomes of it
  nvlane discover -a 192.0.2.1 --raw log.bin       the log page, for other programs")]
pub struct DiscoverArgs {
    /// Which controller.
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// NQN of the discovery subsystem; the well-known one when left out.
    #[arg(short = 'n', long, value_name = "NQN")]
    pub nqn: Option<String>,
    /// Stay connected, and write it again whenever the controller says that it has changed.
    #[arg(long)]
    pub watch: bool,
    /// Seconds of silence after which the controller may take this host for gone; 0: it is told of none. With --watch it hears
    /// something twice as often.
    #[arg(short = 'k', long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=KEEP_ALIVE_S_MAX), default_value_t = 120)]
    pub keep_alive_tmo: u32,
    /// Write the log page to this file, as it came, and nothing to standard output.
    #[arg(short = 'r', long, value_name = "FILE")]
    pub raw: Option<PathBuf>,
    /// How to write it.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: Format,
}

/// `nvlane kickstart`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane kickstart 192.0.2.9                                 what this machine serves on port 4420
  nvlane kickstart 192.0.2.9:8009 -l 192.0.2.1 -l 198.51.100.1:4421
  nvlane kickstart 192.0.2.9 -o json | jq -r .cdc_nqn        whom to let in

The centralized discovery controller (CDC) then connects to those addresses and reads the discovery log there. It sees what its
own host NQN may see.")]
pub struct KickstartArgs {
    /// The centralized discovery controller: HOST[:PORT], port 8009 if none is said.
    #[arg(value_name = "CDC")]
    pub cdc: String,
    /// Where the discovery controller is that it shall ask: HOST[:PORT], port 4420 if none is said; may be given again. When left
    /// out, this machine, by the address from which the CDC is reached.
    #[arg(short, long, value_name = "ADDR")]
    pub listener: Vec<String>,
    /// How many entries there are; counted, by asking those addresses, when left out.
    #[arg(long, value_name = "N")]
    pub entries: Option<u16>,
    /// Milliseconds that each of the parties asked may take.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..), default_value_t = 10_000)]
    pub timeout: u64,
    /// How to write it.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: ListFormat,
}

/// `nvlane id-ctrl`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane id-ctrl tcp://192.0.2.1:4420/nqn.2026-11.com.example:a
  nvlane id-ctrl -a 192.0.2.1 -s 4420 -n nqn.2026-11.com.example:a -H
  nvlane id-ctrl tcp://192.0.2.1/nqn.2026-11.com.example:a -o json | jq .mdts")]
pub struct IdCtrlArgs {
    /// The controller: tcp://HOST:PORT/NQN.
    #[arg(value_name = "URI", conflicts_with_all = ["traddr", "nqn"])]
    pub device: Option<String>,
    /// Which controller.
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// NQN of the subsystem.
    #[arg(short = 'n', long, value_name = "NQN")]
    pub nqn: Option<String>,
    /// How to write it.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// How an Identify data structure is written.
#[derive(Clone, Copy, Debug, Args)]
pub struct ShowArgs {
    /// How to write it.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: Format,
    /// Write the data structure as it came; the same as -o binary.
    #[arg(short = 'b', long)]
    pub raw_binary: bool,
    /// Say what the bits of a field mean.
    #[arg(short = 'H', long)]
    pub human_readable: bool,
    /// Show the vendor specific part as well.
    #[arg(short = 'v', long)]
    pub vendor_specific: bool,
}

impl ShowArgs {
    /// The form that is wanted.
    pub fn format(&self) -> Format {
        if self.raw_binary { Format::Binary } else { self.output_format }
    }
}

/// `nvlane id-ns`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane id-ns 'tcp://192.0.2.1:4420/nqn.2026-11.com.example:a?ns=1'
  nvlane id-ns tcp://192.0.2.1/nqn.2026-11.com.example:a -n 1 -H
  nvlane id-ns -a 192.0.2.1 -s 4420 --nqn nqn.2026-11.com.example:a -n 1 -o json

As with nvme-cli, -n is the namespace id here. It may be left out where there is one namespace.")]
pub struct IdNsArgs {
    /// The namespace: tcp://HOST:PORT/NQN?ns=N.
    #[arg(value_name = "URI", conflicts_with_all = ["traddr", "nqn"])]
    pub device: Option<String>,
    /// Which controller.
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// NQN of the subsystem.
    #[arg(long, value_name = "NQN")]
    pub nqn: Option<String>,
    /// Namespace id.
    #[arg(short = 'n', long, value_name = "NSID", value_parser = number::<u32>)]
    pub namespace_id: Option<u32>,
    /// How to write it.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// `nvlane get-log`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane get-log tcp://192.0.2.1:4420/nqn.2026-11.com.example:a --log-id 2 --log-len 512
  nvlane get-log tcp://192.0.2.1/nqn.2026-11.com.example:a -i 0x0c -l 64 -b > ana.bin
  nvlane get-log tcp://192.0.2.1/nqn.2026-11.com.example:a -i 5 -l 4096 -o json

-a and -s are address and port here, as with `nvme connect`; -o is the form of the output.")]
pub struct GetLogArgs {
    /// The controller: tcp://HOST:PORT/NQN, with ?ns=N for the log of a namespace.
    #[arg(value_name = "URI", conflicts_with_all = ["traddr", "nqn"])]
    pub device: Option<String>,
    /// Which controller.
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// NQN of the subsystem.
    #[arg(long, value_name = "NQN")]
    pub nqn: Option<String>,
    /// Log page identifier.
    #[arg(short = 'i', long, value_name = "LID", value_parser = number::<u8>)]
    pub log_id: u8,
    /// Bytes to read, a multiple of four.
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = number::<u64>)]
    pub log_len: u64,
    /// First byte.
    #[arg(short = 'L', long, value_name = "OFFSET", value_parser = number::<u64>, default_value = "0")]
    pub lpo: u64,
    /// Namespace id; FFFFFFFFh, the controller's own log, when left out.
    #[arg(short = 'n', long, value_name = "NSID", value_parser = number::<u32>)]
    pub namespace_id: Option<u32>,
    /// Log specific parameter, seven bits.
    #[arg(long, value_name = "LSP", value_parser = number::<u8>, default_value = "0")]
    pub lsp: u8,
    /// Log specific identifier.
    #[arg(short = 'S', long, value_name = "LSI", value_parser = number::<u16>, default_value = "0")]
    pub lsi: u16,
    /// Command set identifier.
    #[arg(short = 'y', long, value_name = "CSI", value_parser = number::<u8>, default_value = "0")]
    pub csi: u8,
    /// UUID index.
    #[arg(short = 'U', long, value_name = "INDEX", value_parser = number::<u8>, default_value = "0")]
    pub uuid_index: u8,
    /// The offset counts entries, not bytes.
    #[arg(short = 'O', long)]
    pub ot: bool,
    /// Do not clear the asynchronous event of this log.
    #[arg(short = 'r', long)]
    pub rae: bool,
    /// How to write it.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: Format,
    /// Write the log as it came; the same as -o binary.
    #[arg(short = 'b', long)]
    pub raw_binary: bool,
}

/// `nvlane show-regs`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane show-regs tcp://192.0.2.1:4420/nqn.2026-11.com.example:a
  nvlane show-regs -a 192.0.2.1 -s 4420 -n nqn.2026-11.com.example:a -H

Over a fabric these are properties: CAP, VS, CC, CSTS, and NSSR and CRTO where the controller has
them.")]
pub struct ShowRegsArgs {
    /// The controller: tcp://HOST:PORT/NQN.
    #[arg(value_name = "URI", conflicts_with_all = ["traddr", "nqn"])]
    pub device: Option<String>,
    /// Which controller.
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// NQN of the subsystem.
    #[arg(short = 'n', long, value_name = "NQN")]
    pub nqn: Option<String>,
    /// How to write it.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: ListFormat,
    /// Say what the bits mean.
    #[arg(short = 'H', long)]
    pub human_readable: bool,
}

/// `nvlane list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane list                                      what the daemon on this machine serves
  nvlane list tcp://192.0.2.1:4420/nqn.2026-11.com.example:a
  nvlane list -a 192.0.2.1 -s 4420 -n nqn.2026-11.com.example:a -o json
  nvlane list -v 'tcp://192.0.2.1,192.0.2.2/nqn.2026-11.com.example:a'   by each address
  nvlane list disk.img mem:1G                      local volumes")]
pub struct ListArgs {
    /// Volumes; of tcp://HOST:PORT/NQN without ?ns= all namespaces.
    #[arg(value_name = "VOLUME", conflicts_with_all = ["traddr", "nqn"])]
    pub volumes: Vec<String>,
    /// Which controller.
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// NQN of the subsystem.
    #[arg(short = 'n', long, value_name = "NQN", requires = "traddr")]
    pub nqn: Option<String>,
    /// Show subsystems, controllers and namespaces apart, and how they belong together.
    #[arg(short, long)]
    pub verbose: bool,
    /// Control socket of the daemon, when no volume is named.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// How to write it.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: ListFormat,
}

/// `nvlane list-subsys`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane list-subsys                               the subsystems that the daemon's volumes are of
  nvlane list-subsys -a 192.0.2.1 -s 4420          all that a discovery controller names
  nvlane list-subsys -a 192.0.2.1 -s 4420 -v       also what they are
  nvlane list-subsys 'tcp://192.0.2.1,192.0.2.2/nqn.2026-11.com.example:a?ns=1' -o json

Each address is connected to once, to see whether it is live and what its ANA state is.")]
pub struct ListSubsysArgs {
    /// Remote volumes, with all their addresses.
    #[arg(value_name = "URI", conflicts_with_all = ["traddr", "nqn"])]
    pub volumes: Vec<String>,
    /// Which discovery controller.
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Only this subsystem.
    #[arg(short = 'n', long, value_name = "NQN", requires = "traddr")]
    pub nqn: Option<String>,
    /// Show more: what the subsystem is, as which host it is asked, and ids of controllers.
    #[arg(short, long)]
    pub verbose: bool,
    /// Control socket of the daemon, when nothing is named.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// How to write it.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: ListFormat,
}

fn interface(text: &str) -> Result<String, String> {
    let name = host::is_interface(text).then(|| text.to_owned());
    name.ok_or_else(|| format!("`{text}` is no name of a network interface"))
}

/// A number as nvme-cli takes it: decimal, or hexadecimal behind 0x.
pub(super) fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let value = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    value
        .ok()
        .and_then(|value| T::try_from(value).ok())
        .ok_or_else(|| format!("`{text}` is no number that fits; write 12 or 0x0c"))
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(number::<u8>("12"), Ok(12));
        assert_eq!(number::<u8>("0x0C"), Ok(12));
        for wrong in ["", "0x", "256", "c", "-1", "0x1g"] {
            assert!(number::<u8>(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
