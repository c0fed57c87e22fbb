//! Opens any volume by its URI, building the stack of layers that it names.
//!
//! ```text
//!   "delay:30ms(linear:(mem:1G,/srv/disk.img?ro))"  --parse-->  Uri  --open-->  Arc<dyn Namespace>
//!
//!                                      guard            added on top of every stack
//!                                        delay 30 ms
//!                                          linear
//!                                            memory   file
//! ```
//!
//! | volume | options |
//! |---|---|
//! | `mem:1G`, `null:1G` | `bs`, `uuid` |
//! | `file:/path`, a path, `/dev/sdX` | `create&size=`, `bs`, `ro`, `uuid`, `buffered` |
//! | `/dev/ng0n1`, `nvme:/path` | `passthrough`, `poll`, `hybrid`, `sqpoll`, `sqpoll_idle`, `timeout`, `ro`, `uuid` |
//! | `tcp://host:port,host:port/NQN` | `ns`, `hostnqn`, `hostid`, `dhchap_key`, `dhchap_ctrl_key`, `tls_key`, `hdr_digest`, `data_digest`, `queue_size`, `disable_sqflow`, `keep_alive_tmo`, `reconnect_delay`, `ctrl_loss_tmo`, `fast_io_fail_tmo`, `io_timeout`, `connect_timeout`, `quiesce_time`, `failover`, `policy` and what it takes, `passthrough`, `ro`, `uuid` |
//! | `linear:(a,b)`, `bpf:prog.bpf.o(a,b)`, `multipath:(a,b)`, `multipath:policy=latency,latency_batch_timeout=1s(a,b)`, `delay:30ms(a)`, `delay:read=1ms,write=2ms(a)`, `rate:1G(a)`, `rate:iops=10K(a)`, `fault:rate=1%,op=read(a)`, `volatile:(a)`, `volatile:cache=1M(a)` | `ro`, `uuid` |
//!
//! Blocks are of 512 bytes unless `bs=4096` says otherwise or the file's device needs 4096. Bytes
//! of a path that mean something in a URI are written `%XX`. Sizes are powers of 1024.
//!
//! [`session`] is the ring as a library: it opens volumes on the caller's own thread.
//!
//! What it does not do: carry out any I/O; that is `namespace`.
//!
//! Key constants: [`DEPTH_MAX`] volumes above one another.

mod device;
mod open;
mod parse;
mod program;
mod remote;
pub mod session;
mod uri;

pub use device::Device;
pub use open::{OpenOptions, open, open_uri, open_uri_making};
pub use program::{read_program, read_program_waiting};
pub use remote::{Remote, is_remote, may_be_remote};
pub use uri::{Kind, Options, Uri};

use namespace::device::DeviceError;
use namespace::file::OpenError;
use namespace::layer::linear::LinearError;
use namespace::layer::multipath::MultipathError;
use namespace::layer::program::ProgramError;
use std::io;
use std::path::PathBuf;

/// Volumes that may lie above one another: every layer may push one frame on a request, and the
/// guard and the front door one each.
pub const DEPTH_MAX: usize = namespace::DEPTH_MAX - 2;

/// Why a volume could not be opened, in one line that names the mend.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is no URI.
    #[error("volume {text:?}, at letter {at}: {message}")]
    Syntax {
        /// What was given.
        text: String,
        /// Where reading stopped, counted from 1.
        at: usize,
        /// What is wrong there.
        message: &'static str,
    },
    /// No backend or layer has that name.
    #[error("unknown kind of volume {scheme:?}: {hint}")]
    UnknownScheme {
        /// What was given.
        scheme: String,
        /// What may have been meant.
        hint: String,
    },
    /// The volume has no such option, or not in that form.
    #[error("{scheme}: does not take the option {option:?}; it takes {known}")]
    UnknownOption {
        /// What was given.
        option: String,
        /// The volume.
        scheme: String,
        /// What there is.
        known: String,
    },
    /// An option's value makes no sense.
    #[error("{option} cannot be {value:?}; give {expected}")]
    BadValue {
        /// The option.
        option: String,
        /// What was given.
        value: String,
        /// What it can be.
        expected: &'static str,
    },
    /// A volume of nothing.
    #[error("{what} has no block; give a size like 10G")]
    Empty {
        /// How it was written: `mem:0`, `size=0`.
        what: String,
    },
    /// One file is two parts of a volume.
    #[error("{} is in this volume more than once, and a file has one writer; take one away, or have each read only (?ro)", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
    },
    /// Too many layers.
    #[error("more than {DEPTH_MAX} volumes lie above one another; take layers away")]
    TooDeep,
    /// The size of a memory or null volume is not a whole number of blocks.
    #[error("{uri}: the size is {problem} blocks of {block_bytes} bytes; change it or ?bs=")]
    Size {
        /// The volume.
        uri: String,
        /// Less than one of, or not a whole number of.
        problem: &'static str,
        /// The block size.
        block_bytes: u32,
    },
    /// The memory for it cannot be had.
    #[error(
        "{uri}: cannot map the memory: {source}; make it smaller or raise the limit on address space"
    )]
    Memory {
        /// The volume.
        uri: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file cannot be served.
    #[error(transparent)]
    File(#[from] OpenError),
    /// An NVMe device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A remote namespace cannot be reached.
    #[error(transparent)]
    Remote(#[from] host::Error),
    /// Volumes do not go together.
    #[error(transparent)]
    Linear(#[from] LinearError),
    /// Volumes are not paths to one.
    #[error(transparent)]
    Multipath(#[from] MultipathError),
    /// A program cannot be read.
    #[error("bpf: cannot read the program {path}: {source}", path = path.display())]
    ProgramFile {
        /// The object file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program is refused, or does not go with its volumes.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Memory has one path.
    #[error(
        "multipath: mem: volumes are different volumes, not paths to one; take null: to try policies"
    )]
    MemoryPaths,
    /// This thread's queue cannot be opened.
    #[error("{uri}: cannot open a queue: {source}")]
    Queue {
        /// The volume.
        uri: String,
        /// What the namespace said.
        source: io::Error,
    },
    /// A setting of multipath makes no sense.
    #[error("{0}")]
    Setting(io::Error),
}

impl Error {
    fn syntax(text: &str, at: usize, message: &'static str) -> Error {
        let letters = text.get(..at).map_or(0, |before| before.chars().count());
        Error::Syntax { text: text.into(), at: letters + 1, message }
    }
}
