//! `nvlane bpf`.

use super::ListFormat;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `nvlane bpf`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  nvlane bpf check stripe.bpf.o
  nvlane serve 'bpf:stripe.bpf.o(a.img,b.img)'
  nvlane bpf stat")]
pub enum BpfCommand {
    /// Check a program: whether it is taken, what it does with requests of every kind, what it costs.
    #[command(after_help = "Examples:
  nvlane bpf check stripe.bpf.o
  nvlane bpf check linear.bpf.o --backends 5 --size 100M

The program is loaded and given requests of every kind, on imagined volumes that nothing reads or writes.
The running kernel's verifier is asked too, whatever comes of that, where it may be: `kernel: ok`, its reason, or
why it was not asked. An object that has more than a program (docs/bpf.md) is refused without asking. Status 1 if user
space or the kernel refuses the program, or a request would fail.")]
    Check(BpfCheckArgs),
    /// Show what the programs of a daemon's volumes, or of a device, keep in their maps.
    #[command(after_help = "Examples:
  nvlane bpf stat
  nvlane bpf stat --nsid 1 -o json
  nvlane bpf stat /dev/ublkb0

Of arrays only entries that are not all zero are shown, at most 1024 of each map.")]
    Stat(BpfStatArgs),
    /// Put another program in the place of one that routes a volume's or device's requests, while they come.
    #[command(after_help = "Examples:
  nvlane bpf replace 1 stripe-2.bpf.o               namespace 1 of the daemon's only subsystem
  nvlane bpf replace nqn.2026-11.com.example:a/3 stripe-2.bpf.o
  nvlane bpf replace /dev/ublkb0 snapshot.bpf.o

Requests in flight end under the old program; those that come meanwhile wait for them, then go by the new one. Maps
of the same name, type and sizes keep what they hold, others begin empty. A program that would change the size
of the volume is refused. A restart uses the new one.")]
    Replace(BpfReplaceArgs),
}

/// `nvlane bpf replace`.
#[derive(Debug, Args)]
pub struct BpfReplaceArgs {
    /// What it routes: a namespace of the daemon (NSID, NQN/NSID, or its volume's URI), or /dev/ublkbN.
    pub volume: String,
    /// The new program's object file.
    pub program: PathBuf,
    /// The file or name of the program that is replaced, where the volume has several.
    #[arg(long, value_name = "NAME")]
    pub replaces: Option<String>,
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// How long an answer of the daemon, or of the device's server, may take, in milliseconds; 0: for ever.
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    pub timeout: u64,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t = ListFormat::Normal)]
    pub output_format: ListFormat,
}

/// `nvlane bpf check`.
#[derive(Debug, Args)]
pub struct BpfCheckArgs {
    /// The program's object file.
    pub program: PathBuf,
    /// How many volumes to imagine.
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=16))]
    pub backends: u16,
    /// The size of each.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1G")]
    pub size: u64,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t = ListFormat::Normal)]
    pub output_format: ListFormat,
}

/// `nvlane bpf stat`.
#[derive(Debug, Args)]
pub struct BpfStatArgs {
    /// A block device, /dev/ublkbN, whose server is asked instead of the daemon.
    #[arg(conflicts_with_all = ["socket", "nqn", "nsid"])]
    pub device: Option<String>,
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// How long an answer of the daemon, or of the device's server, may take, in milliseconds; 0: for ever.
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    pub timeout: u64,
    /// Only volumes of this subsystem.
    #[arg(long, value_name = "NQN")]
    pub nqn: Option<String>,
    /// Only this namespace.
    #[arg(long, value_name = "NSID")]
    pub nsid: Option<u32>,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t = ListFormat::Normal)]
    pub output_format: ListFormat,
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = namespace::human::parse_bytes(text);
    bytes
        .filter(|bytes| (1 << 20..=1 << 60).contains(bytes))
        .ok_or_else(|| format!("`{text}` is no size: write 100M or 1G, from 1M to 1E"))
}
