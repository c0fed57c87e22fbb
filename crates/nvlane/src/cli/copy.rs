//! `nvlane copy` and `nvlane jobs`.

use super::ListFormat;
use crate::copy::spec::{Options, Part};
use crate::copy::throttle::Throttle;
use crate::size;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `nvlane copy`.
#[derive(Debug, Args)]
#[command(
    override_usage = "nvlane copy [OPTIONS] <SOURCE>... <TARGET>",
    after_help = "Examples:
  nvlane copy disk.img clone.img --create
  nvlane copy disk.img 'tcp://192.0.2.1/nqn.2026-11.com.example:a?ns=2'
  nvlane copy a.img@1G+512M b.img whole.img@2G --verify      parts, one after another
  nvlane copy master.img one.img --also two.img --also three.img
  nvlane copy a.img b.img --dry-run                          by which means, without doing it
  nvlane copy a.img b.img --detach --throttle 50M            by the daemon; see nvlane jobs
  nvlane copy served:1 'tcp://192.0.2.1/nqn.2026-11.com.example:a?ns=1' --detach    what it serves
  nvlane copy served:1 served:2 --detach --dry-run           by which means the daemon would do it

A part of a volume is written VOLUME@OFFSET+LENGTH, VOLUME@OFFSET or VOLUME@+LENGTH; sizes take K,
M, G and T. An @ in a name that ends like that is written %40. Blocks are copied where they lie if
source and target allow that, and read and written otherwise; what the target holds there is
overwritten. All is flushed when the command ends; interrupted, it says how far it got.
With --detach, served:NSID names a volume that the daemon serves. How to, means and limits: docs/copy.md."
)]
pub struct CopyArgs {
    /// What is read, one after another, and last what it is written to: paths or URIs.
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "TARGET"])]
    pub parts: Vec<Part>,
    /// Write the same to this volume too; may be given more than once.
    #[arg(long, value_name = "TARGET")]
    pub also: Vec<Part>,
    /// Make target files that are not there, as large as they need to be.
    #[arg(long)]
    pub create: bool,
    /// Say what would be done, and by which means, and do nothing; with --detach, what the daemon would do.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Show how far it is where standard error is no terminal, too; with FD, write lines like 37/100 to that instead.
    #[arg(short, long, value_name = "FD", num_args = 0..=1, require_equals = true, conflicts_with = "detach")]
    pub progress: Option<Option<u32>>,
    /// How.
    #[command(flatten)]
    pub how: HowArgs,
    /// Have the daemon do it, and return once it has opened the volumes: see nvlane jobs.
    #[arg(long, conflicts_with = "create")]
    pub detach: bool,
    /// With --detach: also if another job that has not ended writes what this one reads or writes, or reads what it writes.
    #[arg(long, requires = "detach")]
    pub overlap_ok: bool,
    /// The daemon's control socket, with --detach; or of the daemon that may serve a volume which is in use.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// With --detach: how long an answer of the daemon may take, in milliseconds; 0: for ever.
    #[arg(long, value_name = "MS", default_value_t = 30_000, requires = "detach")]
    pub timeout: u64,
    /// How to write the outcome.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: ListFormat,
}

/// How a copy is done.
#[derive(Clone, Debug, Args)]
pub struct HowArgs {
    /// Commands in flight, at most.
    #[arg(
        short = 'R',
        long,
        visible_alias = "queue-depth",
        value_name = "N",
        default_value_t = 16
    )]
    pub requests: usize,
    /// Bytes of a command, at most; 16M of a Copy and 256K of a read when left out.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub request_size: Option<u64>,
    /// Do not ask the source for its holes: everything is copied.
    #[arg(long)]
    pub no_extents: bool,
    /// Holes of the source take room in the target, as zeroes.
    #[arg(long)]
    pub allocated: bool,
    /// The target reads as zeroes now: leave it alone where the source has holes.
    #[arg(long, alias = "destination-is-zero")]
    pub target_is_zero: bool,
    /// Look for zeroes in the data too, in pieces of so many bytes, and make holes of them; everything is then
    /// read here. 0, as when left out: do not.
    #[arg(short = 'S', long, value_name = "BYTES", value_parser = size::parse)]
    pub sparse: Option<u64>,
    /// Fill up with zeroes the block of a target that the source ends within, rather than refuse that.
    #[arg(long)]
    pub pad: bool,
    /// Fail where blocks cannot be copied where they lie.
    #[arg(long, conflicts_with = "read_write")]
    pub fast_only: bool,
    /// Read and write here, without Copy commands.
    #[arg(long)]
    pub read_write: bool,
    /// Compare both sides afterwards, by checksums where volumes give them; others are read.
    #[arg(long)]
    pub verify: bool,
    /// Hold it back: 30% of the time and of the requests in flight, or 100M bytes per second, which spreads it evenly.
    #[arg(long, value_name = "PERCENT|BYTES", default_value = "none")]
    pub throttle: Throttle,
}

impl HowArgs {
    /// The same as data.
    pub fn options(&self) -> Options {
        Options {
            requests: self.requests,
            request_bytes: self.request_size,
            extents: !self.no_extents,
            allocated: self.allocated,
            target_is_zero: self.target_is_zero,
            sparse_bytes: self
                .sparse
                .filter(|bytes| *bytes > 0)
                .map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
            pad: self.pad,
            fast_only: self.fast_only,
            read_write: self.read_write,
            verify: self.verify,
            throttle: self.throttle,
        }
    }
}

/// `nvlane jobs`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane jobs                             the copies that the daemon does, and has done
  nvlane jobs pause 3
  nvlane jobs throttle 3 50M
  nvlane jobs show 3 -o json")]
pub struct JobsArgs {
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    /// How long an answer of the daemon may take, in milliseconds; 0: for ever.
    #[arg(long, value_name = "MS", default_value_t = 30_000, global = true)]
    pub timeout: u64,
    /// How to write it.
    #[arg(short, long, value_enum, default_value = "normal", global = true)]
    pub output_format: ListFormat,
    /// What to do.
    #[command(subcommand)]
    pub command: Option<JobsCommand>,
}

/// What can be done with jobs.
#[derive(Clone, Debug, Subcommand)]
pub enum JobsCommand {
    /// List them all.
    #[command(after_help = "Example:
  nvlane jobs list -o json | jq '.jobs[] | select(.state == \"failed\")'")]
    List,
    /// Show all of one.
    #[command(after_help = "Example:
  nvlane jobs show 3")]
    Show {
        /// The job.
        id: u64,
    },
    /// Wait until one has ended, also while the daemon is started again; exit status 1 if it has failed.
    #[command(after_help = "Example:
  nvlane jobs wait 3 && echo done")]
    Wait {
        /// The job.
        id: u64,
    },
    /// Halt one; what it has copied stays.
    #[command(after_help = "Example:
  nvlane jobs pause 3")]
    Pause {
        /// The job.
        id: u64,
    },
    /// Go on with one that was paused, or has failed.
    #[command(
        visible_alias = "retry",
        after_help = "Examples:
  nvlane jobs resume 3
  nvlane jobs retry 3                      one that has failed, from where it came to"
    )]
    Resume {
        /// The job.
        id: u64,
    },
    /// End one for good; what it has copied stays where it is.
    #[command(after_help = "Example:
  nvlane jobs cancel 3")]
    Cancel {
        /// The job.
        id: u64,
    },
    /// Hold one back, more or less than now.
    #[command(after_help = "Examples:
  nvlane jobs throttle 3 30%              of the time
  nvlane jobs throttle 3 100M             bytes per second
  nvlane jobs throttle 3 none")]
    Throttle {
        /// The job.
        id: u64,
        /// The limit.
        #[arg(value_name = "PERCENT|BYTES|none")]
        limit: Throttle,
    },
    /// Forget those that are done or cancelled, and those that have failed, which cannot be resumed then.
    #[command(after_help = "Examples:
  nvlane jobs clear
  nvlane jobs clear 3")]
    Clear {
        /// The job; all of them when left out.
        id: Option<u64>,
    },
}
