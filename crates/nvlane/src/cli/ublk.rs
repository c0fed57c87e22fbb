//! `nvlane ublk`.

use super::ListFormat;
use crate::config::Cores;
use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

/// `nvlane ublk`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  modprobe ublk_drv && nvlane ublk add disk.img     /dev/ublkb0, until stopped
  nvlane ublk list
  nvlane ublk features                              what the driver of this kernel can do

The manual: docs/ublk.md.")]
pub enum UblkCommand {
    /// Make a block device of a volume, and serve it until stopped.
    Add(UblkAddArgs),
    /// Take devices away; their servers flush and end.
    Del(UblkDelArgs),
    /// List devices.
    List(UblkListArgs),
    /// Serve a device whose server is gone; requests that were in flight go on.
    Recover(UblkRecoverArgs),
    /// Take a device over from its server, which ends; requests wait meanwhile.
    Upgrade(UblkRecoverArgs),
    /// Show what the driver of this kernel can do, and which kernel has what it lacks.
    Features(UblkListArgs),
}

/// How a device is served.
#[derive(Clone, Debug, Args)]
pub struct UblkServeArgs {
    /// Where queues are served: how many cores (4) or which (0,2-5; 3-3 for one), for the threads of the first queue
    /// first. Without it threads run anywhere.
    #[arg(long, value_name = "N|LIST")]
    pub cores: Option<Cores>,
    /// Threads of each queue, which share its requests (Linux 6.16): more than one serves a client sooner that is alone on
    /// one processor and whose data is copied. Requests come and go one by one then, and programs run in user space.
    #[arg(long, value_name = "THREADS", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,
    /// Poll without ever sleeping: lower latency, and each thread's core fully used.
    #[arg(long)]
    pub poll: bool,
    /// Where the program of a bpf: volume runs: in the kernel where that comes to the same (Linux 7.1, plain files
    /// and block devices; this if nothing is said), in the kernel or not at all, or in user space. `kernel` also takes
    /// a program that may keep a block in several places, whose overlapping writes nobody keeps apart there.
    #[arg(long, value_name = "WHERE", value_enum)]
    pub bpf: Option<ProgramPlace>,
    /// How to write what was made; JSON is one line.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: ListFormat,
    /// What to log to standard error: error, warn, info, debug, trace, or a filter such as
    /// ublk=debug,warn. `info` if nothing is said.
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
}

/// Where a program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgramPlace {
    /// The best that there is.
    #[default]
    Auto,
    /// In the kernel.
    Kernel,
    /// In user space.
    User,
}

/// How a device is made.
#[derive(Debug, Args)]
pub struct UblkMakeArgs {
    /// The volume: a path or a URI (file:, mem:, tcp:, ...).
    pub volume: String,
    /// The N of /dev/ublkbN; the first free one if not given.
    #[arg(short = 'n', long, value_name = "N")]
    pub id: Option<u32>,
    /// Queues, each with a thread of its own (but see --threads); no more than there are processors. 1 if nothing is said.
    #[arg(short, long, value_name = "QUEUES", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub queues: Option<u16>,
    /// Requests in flight of each queue. 128 if nothing is said.
    #[arg(short, long, value_name = "DEPTH", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub depth: Option<u16>,
    /// The best way of data that there is; the default.
    #[arg(long, group = "path")]
    pub auto: bool,
    /// Give the volume the requests' own pages: files, devices, remote ones (Linux 6.16).
    #[arg(long, group = "path")]
    pub zero_copy: bool,
    /// The server copies once: any volume (Linux 6.5).
    #[arg(long, group = "path")]
    pub user_copy: bool,
    /// Have the driver copy, into memory that belongs to each request.
    #[arg(long, group = "path")]
    pub copy: bool,
    /// Have requests come and go many at a time (Linux 7.0): the default of devices with one thread per queue.
    /// A device that is taken over stays as it was made.
    #[arg(long, conflicts_with = "no_batch")]
    pub batch: bool,
    /// Have them come and go one by one.
    #[arg(long)]
    pub no_batch: bool,
    /// Most bytes of a request, at most 1M.
    #[arg(long, value_name = "SIZE", value_parser = io_size)]
    pub max_io: Option<u32>,
    /// Refuse everything that writes.
    #[arg(short, long)]
    pub read_only: bool,
    /// How it is served.
    #[command(flatten)]
    pub serve: UblkServeArgs,
}

/// `nvlane ublk add`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane ublk add disk.img                                    any number, one queue
  nvlane ublk add disk.img -n 5 -q 4 -d 64 --recover
  nvlane ublk add 'tcp://192.0.2.1,192.0.2.2/nqn.2026-11.com.example:a?ns=1'
  nvlane ublk add 'linear:(a.img,b.img)' --user-copy

It prints the device, and serves it until SIGINT, SIGTERM or SIGHUP (services: not SIGHUP): the device is taken
away, what is in flight done, the volume flushed. Unmount file systems before.

Data goes the best way that the kernel and the volume allow, which is shown. With --recover the device outlives a
server that was killed: its requests wait for `nvlane ublk recover`, or for the same command again with -n N,
which says what the device has that differs from what is asked for: it stays as it was made.

It needs root and `modprobe ublk_drv` (without root: docs/ublk.md); `nvlane doctor` says what is missing.")]
pub struct UblkAddArgs {
    /// How it is made.
    #[command(flatten)]
    pub make: UblkMakeArgs,
    /// Let the device outlive a killed server.
    #[arg(long)]
    pub recover: bool,
    /// Leave the server in the background, where it logs to /run/nvlane/ublk-N.log, once it serves: what is printed then is
    /// the device. Part of a service, it becomes the service's main process.
    #[arg(long)]
    pub background: bool,
}

/// `nvlane ublk recover`, `nvlane ublk upgrade`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane ublk recover 0                    with the volume that it had
  nvlane ublk recover 0 /srv/disk.img
  nvlane ublk upgrade 0                    while it is in use, by a new version of nvlane
  nvlane ublk upgrade 0 --background       the same, and it goes on without this terminal

The device must have been made with --recover. Queues, depth and the way of data stay as they were, and so do
--bpf, --cores, --threads, --poll and --log unless they are given. A device of the unit nvlane-ublk@N is upgraded by
`systemctl reload nvlane-ublk@N`.")]
pub struct UblkRecoverArgs {
    /// The device, by name or number.
    #[arg(value_name = "DEVICE", value_parser = device)]
    pub id: u32,
    /// The volume, with all that was written to it; the one that the device was made with if not given.
    pub volume: Option<String>,
    /// Leave the server in the background, where it logs to /run/nvlane/ublk-N.log, once it serves: what is printed then is
    /// the device. Part of a service, it becomes the service's main process.
    #[arg(long)]
    pub background: bool,
    /// How it is served.
    #[command(flatten)]
    pub serve: UblkServeArgs,
}

/// `nvlane ublk del`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane ublk del 0 /dev/ublkb1
  nvlane ublk del --all --force            also those that are in use

Devices that are open are left alone where the driver can tell (Linux 7.0), unless --force is given.")]
pub struct UblkDelArgs {
    /// Devices, by name or number (`nvlane detach` takes their volumes, too).
    #[arg(value_name = "DEVICE", required_unless_present = "all", value_parser = device)]
    pub ids: Vec<u32>,
    /// All that there are.
    #[arg(short, long, conflicts_with = "ids")]
    pub all: bool,
    /// Although somebody has it open: his requests fail from then on.
    #[arg(short, long)]
    pub force: bool,
}

/// `nvlane ublk list`, `nvlane ublk features`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane ublk list -o json
  nvlane ublk features")]
pub struct UblkListArgs {
    /// How to write it.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: ListFormat,
}

/// `nvlane attach`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane attach 'tcp://192.0.2.1,192.0.2.2/nqn.2026-11.com.example:a?ns=1'    prints /dev/ublkb0
  nvlane attach 'discovery://192.0.2.1:4420/nqn.2026-11.com.example:a?ns=1'    by all addresses that it has
  nvlane attach disk.img -n 5 -q 4 -o json

It is `nvlane ublk add --recover` in the background: connected by all paths, with a block device. The server logs
to /run/nvlane/ublk-N.log. Should it be killed, the device waits for `nvlane ublk recover N`, or for the same command with
-n N, which is refused where that device has another volume.")]
pub struct AttachArgs {
    /// How it is made.
    #[command(flatten)]
    pub make: UblkMakeArgs,
}

/// `nvlane detach`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane detach /dev/ublkb0
  nvlane detach 'tcp://192.0.2.1,192.0.2.2/nqn.2026-11.com.example:a?ns=1'")]
pub struct DetachArgs {
    /// Devices, by name or number, or their volumes: a file by its name in this directory, or by its path.
    #[arg(required = true)]
    pub devices: Vec<String>,
    /// Although somebody has it open: his requests fail from then on.
    #[arg(short, long)]
    pub force: bool,
}

fn device(text: &str) -> Result<u32, String> {
    crate::ublk::device_id(text).ok_or_else(|| "write N, or /dev/ublkbN".to_owned())
}

fn io_size(text: &str) -> Result<u32, String> {
    let bytes = crate::size::parse(text)?;
    match u32::try_from(bytes) {
        Ok(bytes @ 4096..=0x10_0000) => Ok(bytes),
        _ => Err(format!("`{text}`: requests have 4K to 1M")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: UblkCommand,
    }

    #[test]
    fn devices_go_by_name_as_well() {
        let line = |words: &[&str]| {
            Line::try_parse_from([&["ublk"], words].concat()).map(|line| line.command)
        };
        for name in ["7", "ublkb7", "/dev/ublkb7"] {
            let Ok(UblkCommand::Del(del)) = line(&["del", "0", name]) else { panic!("{name}") };
            assert_eq!(del.ids, [0, 7]);
            let Ok(UblkCommand::Recover(recover)) = line(&["recover", name, "disk.img"]) else {
                panic!("{name}")
            };
            assert_eq!((recover.id, recover.volume.as_deref()), (7, Some("disk.img")));
            assert!(matches!(line(&["upgrade", name]), Ok(UblkCommand::Upgrade(it)) if it.id == 7));
        }
        let said = line(&["del", "/dev/sda"]).unwrap_err().to_string();
        assert!(said.contains("/dev/sda") && said.contains("write N, or /dev/ublkbN"), "{said}");
    }
}
