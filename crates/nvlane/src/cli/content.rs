//! The commands that use a volume: `nvlane cat`, `nvlane write`, `nvlane paths`.

use super::ListFormat;
use crate::size;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// `nvlane cat`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane cat disk.img > copy.img
  nvlane cat 'tcp://192.0.2.1:4420/nqn.2026-11.com.example:a?ns=1' --offset 1M --length 64K | hexdump -C
  nvlane cat 'tcp://192.0.2.1,192.0.2.2/nqn.2026-11.com.example:a?ns=1' | sha256sum

Blocks that were never written are zeroes. Offset and length need not be whole blocks.")]
pub struct CatArgs {
    /// The volume: a path or a URI.
    pub volume: String,
    /// First byte.
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
    pub offset: u64,
    /// How many bytes; to the end when left out.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub length: Option<u64>,
}

/// `nvlane write`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane write disk.img < copy.img
  nvlane write 'tcp://192.0.2.1:4420/nqn.2026-11.com.example:a?ns=1' --input copy.img
  echo hello | nvlane write mem:1M --pad --offset 4K

Writes all of the input, flushes it, and says nothing if that went well. What was written when
something fails stays written.")]
pub struct WriteArgs {
    /// The volume: a path or a URI.
    pub volume: String,
    /// Where to begin, at a whole block.
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
    pub offset: u64,
    /// The file to write; standard input when left out.
    #[arg(short, long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Fill up the last block with zeroes, rather than refuse an input that ends within it.
    #[arg(long)]
    pub pad: bool,
}

/// `nvlane paths`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane paths                                     the volumes of the daemon on this machine
  nvlane paths --nsid 1 --watch
  nvlane paths /dev/ublkb0 --watch                 the volume of a block device of ours
  nvlane paths --socket c.sock                     those of nvlane nbd --control c.sock
  nvlane paths 'tcp://192.0.2.1,192.0.2.2/nqn.2026-11.com.example:a?ns=1' --watch --interval 500ms
  nvlane paths -o json | jq '.volumes[].paths[].p99_ns'

Of a volume that is served the figures are those of its own I/O. A volume that is named is opened here, and
its paths are probed with small reads, round-robin unless its URI names a policy: then the figures
are those of the probes.")]
pub struct PathsArgs {
    /// A URI, opened here and probed, or /dev/ublkbN, of which its server is asked. Without it, the daemon's volumes.
    #[arg(conflicts_with_all = ["socket", "nqn", "nsid"])]
    pub volume: Option<String>,
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// How long an answer of the daemon may take, in milliseconds; 0: for ever.
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    pub timeout: u64,
    /// Only volumes of this subsystem of the daemon.
    #[arg(long, value_name = "NQN")]
    pub nqn: Option<String>,
    /// Only this namespace of the daemon.
    #[arg(long, value_name = "NSID")]
    pub nsid: Option<u32>,
    /// Go on until stopped.
    #[arg(short, long)]
    pub watch: bool,
    /// How long to look before each table: 1s, 500ms.
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub interval: Duration,
    /// How to write it; with --watch, JSON is one line for each interval.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: ListFormat,
}

/// A time between two looks.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    const RANGE: std::ops::RangeInclusive<Duration> =
        Duration::from_millis(10)..=Duration::from_secs(3600);
    namespace::human::parse_duration(text)
        .filter(|time| RANGE.contains(time))
        .ok_or_else(|| format!("`{text}` is no interval: write 500ms or 2s, from 10ms to 3600s"))
}
