//! NVMe character devices, `/dev/ngXnY`: commands go to the device as they are, without the block
//! layer in between.
//!
//! ```text
//!   Read, Write, Zone Append, a vendor's ...  -> NVME_URING_CMD_IO     /dev/ng0n1  \
//!   admin commands                            -> NVME_URING_CMD_ADMIN  /dev/nvme0  /  ring -> device
//!                                                                                       |
//!   status, and the 64 bits of result  <--------- completion (32 bytes) <---------------'
//! ```
//!
//! What a command means the device knows; here only its namespace id and the place of its data are
//! filled in, and what is known to move more data than came with it is refused: nobody else checks
//! that ([`check`]). Commands beyond those that [`nvme::limits::Commands`] tells are passed where the
//! volume was opened for it.
//!
//! The core's own ring carries the commands if it has entries of 128 bytes; otherwise, and where
//! completions are polled for or a kernel thread submits, a ring beside it does, which all devices of a
//! core share that are opened with the same options.
//!
//! The kernel fails over, and retries, what goes through its block layer, but none of this: neither for
//! the head of several controllers' ways (native multipath) nor when a controller is reset. So what may
//! be tried again by `association::retry` is, with growing pauses, for [`RETRY_TIME`] at most; unless
//! the device is a path of `multipath:`, which then does that.
//!
//! A namespace that somebody formats otherwise is refused until it is opened again ([`shape`]); Copy is
//! the device's own where it has one ([`copy`]).
//!
//! What it does not do: fused pairs (the driver passes none; the guard makes Compare-and-Write of two),
//! metadata within blocks, fences against other users of the device.
//!
//! Key constants: [`RETRY_TIME`]; 1 MiB of data per command.

mod admin;
pub mod block;
pub mod check;
pub mod controller;
mod copy;
mod facts;
mod flights;
mod ioctl;
mod names;
mod protection;
mod queue;
mod resets;
mod ring;
mod shape;
mod siblings;
mod status;
mod sysfs;
#[cfg(test)]
mod tests;
mod words;

use crate::copy::{Located, Origin};
use crate::{Access, Namespace, Queue};
use facts::Facts;
use flights::Flights;
use ioctl::Unanswered;
use nvme::Limits;
use nvme::identify::{self, Cns, DATA_BYTES};
use nvme::limits::Passthrough;
use queue::DeviceQueue;
use reactor::Reactor;
use resets::Resets;
use shape::Shape;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use sysfs::Place;
pub use uring::SqPoll;
use zerocopy::FromBytes;

/// How long a command that failed on its way is tried again.
pub const RETRY_TIME: Duration = Duration::from_secs(30);

/// Bytes of the largest piece that a page cache consists of (`MAX_PAGECACHE_ORDER`); it lies at a multiple of that.
const FOLIO_BYTES_MAX: i64 = 2 << 20;

/// How a device is opened and used.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// `/dev/ngXnY`, or another node of it.
    pub path: PathBuf,
    /// Open it for reading only.
    pub read_only: bool,
    /// Commands that are passed beyond those that everybody knows.
    pub passthrough: Passthrough,
    /// Poll for completions.
    pub iopoll: bool,
    /// The same, after a sleep.
    pub hybrid_iopoll: bool,
    /// A kernel thread submits, one for each core.
    pub sqpoll: Option<SqPoll>,
    /// Cores that will open queues.
    pub cores: usize,
    /// For commands that do not say themselves, in milliseconds; 0: the kernel's own.
    pub timeout_ms: u32,
    /// Try again what failed on its way. Not for one of several paths to the same namespace.
    pub retries: bool,
    /// The volume's UUID instead of the namespace's own.
    pub uuid: Option<[u8; 16]>,
    /// The volume's URI.
    pub uri: String,
}

/// Why a device cannot be used, in one line that names the mend.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// It cannot be opened.
    #[error("{}: {source}{}", path.display(), hint(source))]
    Open {
        /// The device.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is something else.
    #[error(
        "{} is no NVMe namespace's character device; give one like /dev/ng0n1 (`nvme list`)", path.display()
    )]
    NotNvme {
        /// What was given.
        path: PathBuf,
    },
    /// The device does not say what it is.
    #[error("{}: {what} failed: {why}", path.display())]
    Identify {
        /// The device.
        path: PathBuf,
        /// The command.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// It cannot be served.
    #[error("{} cannot be used: {what}", path.display())]
    Unsuitable {
        /// The device.
        path: PathBuf,
        /// What stands against it.
        what: String,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "; run as root, have the device's permissions changed (`chmod`, or a udev rule), or add ?ro \
             if it may be read"
        }
        Some(libc::ENOENT) => "; `nvme list` shows the namespaces that there are",
        Some(libc::ENXIO | libc::ENODEV) => "; its controller is gone",
        Some(libc::EAGAIN) => "; no controller of its subsystem leads to it now",
        _ => "",
    }
}

/// A namespace by its character device.
#[derive(Debug)]
pub struct Device {
    file: File,
    options: DeviceOptions,
    place: Place,
    resets: Resets,
    nsid: u32,
    limits: Limits,
    /// Capacity now; the rest of `limits` does not change while a namespace is in use.
    blocks: AtomicU64,
    facts: Facts,
    shape: shape::Watch,
    flights: Flights,
    /// Bytes of a block as the block layer had it, where there is one.
    kernel_block_bytes: Option<u64>,
    zoned: bool,
    polls: Option<bool>,
    model: String,
    /// Errors of the kernel that were logged.
    logged: Mutex<Vec<i32>>,
    /// Those with which no controller could be opened.
    logged_closed: Mutex<Vec<io::ErrorKind>>,
    /// The block device of the same namespace, if volumes use that one too: its page cache is told of Copies.
    block: OnceLock<File>,
    /// What carries the commands, as the first queue found it.
    carrier: OnceLock<String>,
    retried: AtomicU64,
}

/// The folios that hold `bytes` bytes from `start` on, as `(start, bytes)`: the kernel keeps one that it is to drop in part.
fn whole_folios(start: i64, bytes: i64) -> (i64, i64) {
    let begin = start - start % FOLIO_BYTES_MAX;
    let end = start.saturating_add(bytes);
    let rest = (FOLIO_BYTES_MAX - end % FOLIO_BYTES_MAX) % FOLIO_BYTES_MAX;
    (begin, end.saturating_add(rest) - begin)
}

impl Device {
    /// Opens the device and asks it what it is. Blocks.
    pub fn open(options: DeviceOptions) -> Result<Arc<Device>, DeviceError> {
        let path = &options.path;
        if let Some(SqPoll { cpu: Some(cpu), .. }) = options.sqpoll
            && options.cores > 1
        {
            let what = format!(
                "sqpoll={cpu} puts the submission threads of all {} cores on processor {cpu}; leave the \
                 number away, or serve with one core",
                options.cores
            );
            return Err(DeviceError::Unsuitable { path: path.clone(), what });
        }
        let failed = |source| DeviceError::Open { path: path.clone(), source };
        let file = OpenOptions::new().read(true).write(!options.read_only).open(path);
        let file = file.map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let place =
            Some(&metadata).filter(|it| it.file_type().is_char_device()).and_then(Place::of);
        let not_nvme = || DeviceError::NotNvme { path: path.clone() };
        let place = place.ok_or_else(not_nvme)?;
        let nsid = ioctl::nsid(&file).map_err(|error| match error.raw_os_error() {
            // A head of several controllers' ways, none of which can be used.
            Some(libc::EAGAIN) => failed(error),
            _ => not_nvme(),
        })?;
        let (limits, mut facts, shape, model) = identify(&file, path, nsid, &place)?;
        facts.nqn = facts.nqn.map(|nqn| names::shared(place.parent(), nqn));
        let queue = place.queue_limits();
        if (options.iopoll || options.hybrid_iopoll) && queue.polls == Some(false) {
            tracing::warn!(device = %path.display(), "{NO_POLL_QUEUES}");
        }
        let limits = Limits {
            read_only: limits.read_only || options.read_only,
            passthrough: options.passthrough,
            ..limits
        };
        let device = Arc::new(Device {
            file,
            kernel_block_bytes: place.block_bytes(),
            resets: Resets::of(&place),
            place,
            nsid,
            limits,
            blocks: AtomicU64::new(limits.blocks),
            facts,
            shape: shape::Watch::new(shape),
            flights: Flights::default(),
            zoned: queue.zoned,
            polls: queue.polls,
            model,
            logged: Mutex::default(),
            logged_closed: Mutex::default(),
            block: OnceLock::new(),
            carrier: OnceLock::new(),
            retried: AtomicU64::new(0),
            // Linux 7.3 has been seen to sleep for ever in a hybrid poll of a queue that is not polled.
            options: DeviceOptions {
                iopoll: options.iopoll || (options.hybrid_iopoll && queue.polls == Some(false)),
                hybrid_iopoll: options.hybrid_iopoll && queue.polls != Some(false),
                ..options
            },
        });
        siblings::note(&device);
        Ok(device)
    }

    /// Logs an error of the kernel, the first time that it comes.
    fn log(&self, errno: i32, now: status::Circumstances) {
        if is_new(&self.logged, errno) {
            let (device, words) = (self.options.path.display(), status::words(errno, now));
            let error = io::Error::from_raw_os_error(errno);
            tracing::warn!(%device, %error, "{words}");
        }
    }

    /// Logs why no controller can be opened for admin commands, the first time that it is so.
    fn log_closed(&self, error: &io::Error) {
        if is_new(&self.logged_closed, error.kind()) {
            let device = self.options.path.display();
            tracing::warn!(%device, %error, "cannot pass admin commands");
        }
    }

    /// What the namespace's blocks look like now. Blocks.
    fn look(&self) -> io::Result<Shape> {
        Ok(Shape::of(&self.ask()?).unwrap_or(shape::UNKNOWN))
    }

    /// Looks whether the kernel has found blocks of another size: for volumes that nobody refreshes. Reads
    /// a file in /sys, which does not wait for the device.
    fn look_aside(&self) {
        let now = self.place.block_bytes();
        if now.is_some() && self.kernel_block_bytes.is_some() && now != self.kernel_block_bytes {
            self.tell(self.shape.look(None));
        }
    }

    /// Logs that the namespace has become another, if it was found out just now.
    fn tell(&self, changed: bool) {
        if changed {
            let device = self.options.path.display();
            tracing::warn!(%device, "{FORMATTED}");
        }
    }

    /// Identify Namespace. Blocks.
    fn ask(&self) -> io::Result<identify::Namespace> {
        let data = ioctl::identify(&self.file, Cns::NAMESPACE, self.nsid, 0)?;
        let Ok(namespace) = identify::Namespace::read_from_bytes(&data[..]) else {
            unreachable!("Identify data is as long as its structure")
        };
        Ok(namespace)
    }

    fn polled(&self) -> bool {
        self.options.iopoll || self.options.hybrid_iopoll
    }

    /// Whether somebody may have cached what a Copy replaces.
    fn is_cached(&self) -> bool {
        self.block.get().is_some()
    }

    /// A Copy to `blocks` blocks from `slba` on has ended: nobody shall see what was there before. Starts to write what is
    /// dirty, and waits for all processors: blocks.
    fn drop_cached(&self, slba: u64, blocks: u64) {
        let Some(block) = self.block.get() else { return };
        let bytes =
            |blocks: u64| i64::try_from(blocks << self.limits.block_shift).unwrap_or(i64::MAX);
        let (start, len) = whole_folios(bytes(slba), bytes(blocks));
        let (fd, advice) = (block.as_raw_fd(), libc::POSIX_FADV_DONTNEED);
        // SAFETY: the call names no memory. It fails for no device.
        unsafe { libc::posix_fadvise(fd, start, len, advice) };
    }

    fn describe_copy(&self) -> String {
        let limits = &self.limits.copy;
        match self.facts.no_copy {
            Some(why) => format!("read and written: {why}"),
            None => format!(
                "by the device within the namespace: {} ranges of {} blocks, {} blocks together",
                limits.ranges_max, limits.range_blocks_max, limits.blocks_max
            ),
        }
    }

    fn describe_polling(&self) -> String {
        match self.polls {
            Some(false) => NO_POLL_QUEUES.into(),
            Some(true) if self.options.hybrid_iopoll => "polled for, after a sleep".into(),
            Some(true) => "polled for".into(),
            None => "polled for, if the device has poll queues: the kernel does not say".into(),
        }
    }
}

/// Whether that was not noted yet; it is now.
fn is_new<T: PartialEq>(noted: &Mutex<Vec<T>>, what: T) -> bool {
    let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
    let is_new = !noted.contains(&what);
    if is_new {
        noted.push(what);
    }
    is_new
}

/// For people whose namespace has become another one.
const FORMATTED: &str = "formatted otherwise since it was opened, or gone; commands are refused until the \
     volume is opened again";

/// Controller Attributes: Extended LBA Formats Supported (NVMe Base 2.1, Figure 312).
const CTRATT_ELBAS: u32 = 1 << 15;

/// The NVM Command Set, and the Zoned Namespace Command Set (NVMe Base 2.1, Figure 312).
const CSI_NVM: u8 = 0;
const CSI_ZONED: u8 = 2;

/// For people who asked for polling in vain.
const NO_POLL_QUEUES: &str = "polling was asked for, but the device has no poll queues, and the kernel \
     waits for interrupts; `modprobe nvme poll_queues=2` gives some (NVMe/TCP: `nvme connect \
     --nr-poll-queues=2`)";

type Identified = (Limits, Facts, Shape, String);

fn identify(file: &File, path: &Path, nsid: u32, place: &Place) -> Result<Identified, DeviceError> {
    let ask = |what, cns, nsid, csi| {
        ioctl::identify(file, cns, nsid, csi).map_err(|why| DeviceError::Identify {
            path: path.into(),
            what,
            why: why.to_string(),
        })
    };
    let controller = ask("Identify Controller", Cns::CONTROLLER, 0, 0)?;
    let namespace = ask("Identify Namespace", Cns::NAMESPACE, nsid, 0)?;
    // Many controllers do not have it.
    let nvm_controller = ioctl::identify(file, Cns::COMMAND_SET_CONTROLLER, 0, 0).ok();
    let nvm_namespace = (tells_protection(&controller, &namespace))
        .then(|| ask("Identify Namespace (NVM)", Cns::COMMAND_SET_NAMESPACE, nsid, CSI_NVM))
        .transpose()?;
    let queue = place.queue_limits();
    let zoned_namespace = (queue.zoned)
        .then(|| ioctl::identify(file, Cns::COMMAND_SET_NAMESPACE, nsid, CSI_ZONED).ok())
        .flatten();
    let data = facts::Identified {
        controller: &controller,
        namespace: &namespace,
        nvm_controller: nvm_controller.as_deref(),
        nvm_namespace: nvm_namespace.as_deref(),
        zoned_namespace: zoned_namespace.as_deref(),
    };
    let (limits, facts, shape) = facts::limits(&data, &queue)
        .map_err(|what| DeviceError::Unsuitable { path: path.into(), what })?;
    Ok((limits, facts, shape, model(&controller)))
}

/// Whether what the namespace's protection information looks like is in a structure of its own.
fn tells_protection(controller: &[u8; DATA_BYTES], namespace: &[u8; DATA_BYTES]) -> bool {
    let controller = identify::Controller::ref_from_bytes(controller);
    let namespace = identify::Namespace::ref_from_bytes(namespace);
    controller.is_ok_and(|it| it.ctratt.get() & CTRATT_ELBAS != 0)
        && namespace.is_ok_and(|it| it.dps & 7 != 0)
}

/// Model, firmware and serial number, in words.
fn model(controller: &[u8; DATA_BYTES]) -> String {
    let Ok(controller) = identify::Controller::read_from_bytes(&controller[..]) else {
        unreachable!("Identify data is as long as its structure")
    };
    let text = |field: &[u8]| {
        let printable =
            |&byte: &u8| if matches!(byte, b' '..=b'~') { char::from(byte) } else { '?' };
        let len = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
        field[..len].iter().map(printable).collect::<String>().trim().to_owned()
    };
    format!("{} {} ({})", text(&controller.mn), text(&controller.fr), text(&controller.sn))
}

impl Namespace for Device {
    fn limits(&self) -> Limits {
        Limits { blocks: self.blocks.load(Ordering::Relaxed), ..self.limits }
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        Ok(DeviceQueue::open(self, reactor)?)
    }

    fn takes_registered(&self) -> bool {
        // Other rings than the core's own do not know its buffers.
        !self.polled() && self.options.sqpoll.is_none() && self.limits.metadata_bytes == 0
    }

    fn vectors_pages(&self) -> u32 {
        self.facts.segments_max
    }

    fn nsid(&self) -> Option<u32> {
        Some(self.nsid)
    }

    fn refresh(&self) -> io::Result<bool> {
        let namespace = self.ask()?;
        self.tell(self.shape.look(Shape::of(&namespace)));
        if self.shape.is_changed() {
            // Counted in other blocks, or of a namespace that is no more.
            return Ok(false);
        }
        let blocks = namespace.nsze.get();
        Ok(self.blocks.swap(blocks, Ordering::Relaxed) != blocks)
    }

    fn resize(&self, _bytes: u64) -> io::Result<()> {
        let what = "an NVMe namespace is resized by namespace management";
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    fn flush(&self) -> io::Result<()> {
        if !self.limits.volatile_write_cache || self.limits.read_only {
            return Ok(());
        }
        ioctl::flush(&self.file, self.nsid).map_err(Unanswered::into)
    }

    fn access(&self) -> Access {
        if self.place.exists() { Access::Optimized } else { Access::Gone }
    }

    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        self.shape.check().ok()?;
        let nqn = Arc::clone(self.facts.nqn.as_ref()?);
        let blocks = blocks.min(self.limits().blocks.checked_sub(slba)?);
        let origin = Origin::Subsystem { nqn, nsid: self.nsid, numbering: None };
        (blocks > 0).then_some(Located { origin, slba, blocks, guard: None })
    }

    fn destination(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        self.limits.copy.is_offered().then(|| self.origin(slba, blocks)).flatten()
    }

    fn uri(&self) -> String {
        self.options.uri.clone()
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        let mut say = |key: &str, value: String| facts.push((key.into(), value));
        let kind = if self.zoned { "zoned namespace" } else { "namespace" };
        say("device", format!("{}, {kind} {} of {}", self.place.name(), self.nsid, self.model));
        let controllers: Vec<String> = (self.place.controllers().iter())
            .map(|(name, state)| format!("{name} {state}"))
            .collect();
        say("controllers", controllers.join(", "));
        let retries = match (self.options.retries, self.place.is_head()) {
            (false, _) => "by multipath".to_owned(),
            (true, true) => format!(
                "here, for {} s: the kernel does not fail passed commands over",
                RETRY_TIME.as_secs()
            ),
            (true, false) => format!("here, for {} s", RETRY_TIME.as_secs()),
        };
        if self.shape.is_changed() {
            say("blocks", FORMATTED.into());
        }
        say("copy", self.describe_copy());
        say("retries", retries);
        let retried = self.retried.load(Ordering::Relaxed);
        if retried > 0 {
            say("commands tried again", retried.to_string());
        }
        if let Some(carrier) = self.carrier.get() {
            say("commands go by", carrier.clone());
        }
        if self.polled() {
            say("completions", self.describe_polling());
        }
        if self.limits.metadata_bytes != 0 {
            let what = match self.facts.protection.is_some() {
                true => "added and taken off by the controller where a command brings none",
                false => "to be brought by every command that reads or writes",
            };
            say("metadata", format!("{} bytes, {what}", self.limits.metadata_bytes));
        }
        let passed = self.options.passthrough.words().unwrap_or("nothing");
        say("passed beyond the usual commands", passed.into());
        if self.options.passthrough.admin {
            say("admin commands go by", admin::describe(&self.place));
        }
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.options.uuid.or_else(|| self.place.uuid()).or(self.facts.nguid)
    }

    fn keeps_blocks_whole(&self) -> bool {
        // NVM 1.1, section 2.1.4: AWUN is one logical block at least.
        true
    }

    fn volatile_epoch(&self) -> u64 {
        if self.limits.volatile_write_cache { self.resets.epoch(&self.place, false) } else { 0 }
    }
}
