//! A device: the calls that make it, hand it on and take it away.

use crate::control::{self, Control, ControlError};
use crate::driver::{DEPTH_MAX, DeviceInfo, Parameters, SECTOR_SHIFT, flag, state};
use crate::error::Error;
use crate::features::Features;
use crate::kernel::{self, ProgramPlace, Runs};
use crate::parameters;
use crate::path::DataPath;
use crate::queue::{QueueConfig, Share};
use crate::recovery;
use crate::threads::{Seed, Teller, Threads, reactor_config};
use crate::translate::Shape;
use crate::zoned::Zones;
use namespace::Namespace;
use namespace::failures::{Failures, Served};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use ublk_bpf::{KeptMaps, Queues};

/// How long the device node of a new device may take to appear.
const NODE_PATIENCE: Duration = Duration::from_secs(10);

/// Time between two looks at what is to come.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Called on a device's threads when [`Device::ending`] may have something to tell.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// How a device is made.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// The N of `/dev/ublkbN`; any if `None`.
    pub id: Option<u32>,
    /// Queues; the driver makes no more than there are processors.
    pub queues: u16,
    /// Threads of each, which have a like number of its requests (Linux 6.16 for more than one): for a client that is alone
    /// on one processor, whose requests all come by one queue.
    pub threads: u16,
    /// Requests in flight per queue, at most [`DEPTH_MAX`].
    pub depth: u16,
    /// The way of data; the best if `None`.
    pub path: Option<DataPath>,
    /// Most bytes of a request, if less than what the volume takes.
    pub io_bytes_max: Option<u32>,
    /// The device outlives a killed server ([`Device::recover`]).
    pub recovery: bool,
    /// The volume's zones, if it has any: it is one NVMe device then, opened so that commands pass.
    pub zones: Option<Zones>,
    /// Where the threads run, those of the first queue first; those beyond the list run anywhere.
    pub cpus: Vec<Option<usize>>,
    /// Poll without ever sleeping.
    pub poll: bool,
    /// Requests come and go many at a time (Linux 7.0). If `None`, where that is possible and queues have one thread each.
    pub batch: Option<bool>,
    /// Where the program of a volume runs that is one.
    pub program: ProgramPlace,
    /// What keeps the maps of the volume's programs for the next server, in the programs' order.
    pub kept: Vec<Arc<KeptMaps>>,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            id: None,
            queues: 1,
            threads: 1,
            depth: 128,
            path: None,
            io_bytes_max: None,
            recovery: false,
            zones: None,
            cpus: Vec::new(),
            poll: false,
            batch: None,
            program: ProgramPlace::Auto,
            kept: Vec::new(),
        }
    }
}

/// How a device came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was stopped, by whomever; [`Device::stop`] clears up.
    Stopped,
    /// A queue has failed, and is of no use any more; [`Device::stop`] clears up, and says why.
    Failed,
    /// Another server takes it over: make the volume durable ([`Device::leave`]) and end the
    /// process, which the kernel waits for.
    HandedOver,
}

/// A running device.
#[derive(Debug)]
pub struct Device {
    pub(crate) control: Control,
    info: DeviceInfo,
    namespace: Arc<dyn Namespace>,
    path: DataPath,
    runs: Runs,
    pub(crate) sectors: u64,
    pub(crate) threads: Threads,
    failures: Arc<Failures>,
}

impl Device {
    /// Makes the device of a volume and starts it. `note` notes for its next server what it is made of, before anybody
    /// can use it; the device is not made if that fails.
    pub fn add(
        namespace: Arc<dyn Namespace>,
        options: &DeviceOptions,
        wake: &Wake,
        note: impl FnOnce(u32, &Runs) -> Result<(), Error>,
    ) -> Result<Device, Error> {
        if options.depth == 0 || options.depth > DEPTH_MAX || options.queues == 0 {
            return Err(Error::Depth(options.depth));
        }
        let mut control = Control::open()?;
        let driver = control.features();
        // Reports of zones are made by hand, so the rest is as well.
        let takes_registered = namespace.takes_registered() && options.zones.is_none();
        let path = match control::is_root() {
            true => DataPath::choose(options.path, driver, takes_registered)?,
            false => path_without_root(options, driver)?,
        };
        if options.zones.is_some() {
            check_zoned(options, driver, path)?;
        }
        let volume = namespace.as_ref();
        let batches = takes_batches(options, driver)?;
        let fetching = kernel::fetching(batches);
        let queues = Queues { count: options.queues, depth: options.depth, fetching };
        let runs = Runs::choose(options, volume, path, queues, None)?;
        let limits = namespace.limits();
        let io_bytes_max = parameters::io_bytes_max(&limits, path, options.io_bytes_max);
        let mut flags = path.flags() | driver.mask() & flag::UPDATE_SIZE;
        if options.zones.is_some() {
            flags = path.flags() | flag::ZONED;
        }
        if !control::is_root() {
            flags = flag::UNPRIVILEGED_DEV;
        }
        if control.is_encoded() {
            flags |= flag::CMD_IOCTL_ENCODE;
        }
        if batches {
            flags |= flag::BATCH_IO;
        }
        check_threads(options.threads, options.depth, flags | driver.mask() & flag::PER_IO_DAEMON)?;
        if options.recovery {
            flags |= flag::USER_RECOVERY | flag::USER_RECOVERY_REISSUE;
            // With batches the driver would fail requests meanwhile: the server is asked instead (docs/decisions/0010).
            if flags & flag::BATCH_IO == 0 {
                flags |= driver.mask() & flag::QUIESCE;
            }
        }
        let info = control.add(&DeviceInfo {
            nr_hw_queues: options.queues,
            queue_depth: options.depth,
            max_io_buf_bytes: io_bytes_max,
            dev_id: options.id.unwrap_or(u32::MAX),
            ublksrv_pid: std::process::id() as i32,
            flags,
            ..DeviceInfo::default()
        })?;
        let id = info.dev_id;
        let mut parameters = parameters::of(&limits, path, io_bytes_max, options.zones);
        if let Some(program) = runs.kernel() {
            kernel::limit(&mut parameters, program);
        }
        let mut device = Device::new(control, info, namespace, path, runs);
        device.sectors = parameters.basic.dev_sectors;
        if let Err(error) = device.make(&parameters, options, wake, note) {
            let _ = device.control.stop(id);
            device.threads.await_end(|| drop(device.control.stop(id)));
            let node = device.threads.join();
            // Nobody else would clear it away.
            let _ = ublk_bpf::kept::forget(id);
            let _ = device.delete(node);
            return Err(error);
        }
        Ok(device)
    }

    fn make(
        &mut self,
        parameters: &Parameters,
        options: &DeviceOptions,
        wake: &Wake,
        note: impl FnOnce(u32, &Runs) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let id = self.info.dev_id;
        // Maps of an earlier device of this number are nobody's, and would be found by a server that comes later.
        match ublk_bpf::kept::forget(id).map_err(Error::Kept) {
            Err(error) if options.recovery => return Err(error),
            _ => {}
        }
        options.kept.iter().try_for_each(|kept| kept.settle_at(id)).map_err(Error::Kept)?;
        // So is what was noted of that device, and this one can be taken over from its start on.
        note(id, &self.runs)?;
        if !control::is_root() {
            await_own_node(id)?;
        }
        self.control.set_parameters(id, parameters)?;
        self.start_queues(parameters, options, false, wake)?;
        Ok(self.control.start(id)?)
    }

    pub(crate) fn new(
        control: Control,
        info: DeviceInfo,
        namespace: Arc<dyn Namespace>,
        path: DataPath,
        runs: Runs,
    ) -> Device {
        let threads = Threads::new();
        let failures = Failures::new(Served::Device(info.dev_id));
        Device { control, info, namespace, path, runs, sectors: 0, threads, failures }
    }

    /// Opens the device's node and starts its threads, all of which fetch when this returns. From then on nobody else can,
    /// as long as they live. Where one of them fails the others live on. Where requests are `held` none is begun until
    /// [`Threads::go`]: a driver gives them as soon as a queue can take them.
    pub(crate) fn start_queues(
        &mut self,
        parameters: &Parameters,
        options: &DeviceOptions,
        held: bool,
        wake: &Wake,
    ) -> Result<(), Error> {
        let (info, limits) = (&self.info, self.namespace.limits());
        let mut shape = Shape::of(&limits, info.max_io_buf_bytes)
            .with(options.zones)
            .behind(parameters.has_cache(), &limits);
        if recovery::cuts(&*self.namespace) {
            (shape.zero_blocks_max, shape.discard_blocks_max) = (u32::MAX, u32::MAX);
        }
        if shape.writes_through {
            tracing::info!(
                "{}: the volume has a write cache that the device was made without: each write is made durable by itself",
                self.node().display()
            );
        }
        let node = Arc::new(open_node(info.dev_id)?);
        let threads = options.threads;
        let each = |queue| (0..threads).map(move |thread| (queue, Share { thread, threads }));
        for (queue, share) in (0..info.nr_hw_queues).flat_map(each) {
            let config = QueueConfig {
                queue,
                depth: info.queue_depth,
                share,
                path: self.path,
                shape,
                encoded: self.control.is_encoded(),
                batch: info.flags & flag::BATCH_IO != 0,
                held,
            };
            let (thread, events) = (self.threads.handles.len(), self.threads.sender.clone());
            let seed = Seed {
                reactor: reactor_config(&config, thread, options),
                config,
                program: self.runs.kernel().cloned(),
                namespace: Arc::clone(&self.namespace),
                node: Arc::clone(&node),
                failures: Arc::clone(&self.failures),
                teller: Teller { thread, events, wake: Arc::clone(wake) },
            };
            self.threads.start(seed)?;
        }
        Ok(())
    }

    /// The N of `/dev/ublkbN`.
    pub fn id(&self) -> u32 {
        self.info.dev_id
    }

    /// The block device.
    pub fn node(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.info.dev_id).into()
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Its volume.
    pub fn namespace(&self) -> &Arc<dyn Namespace> {
        &self.namespace
    }

    /// The way of its data.
    pub fn path(&self) -> DataPath {
        self.path
    }

    /// Where the volume's program runs.
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Capacity in bytes.
    pub fn bytes(&self) -> u64 {
        self.sectors << SECTOR_SHIFT
    }

    /// Whether and how the device has come to its end.
    pub fn ending(&mut self) -> Option<Ending> {
        while let Ok(event) = self.threads.events.try_recv() {
            let (control, id) = (&mut self.control, self.info.dev_id);
            // A device that is stopped is dead before its tags end.
            let lives = || control.info(id).is_ok_and(|info| info.state != state::DEAD);
            self.threads.note(event, id, lives);
        }
        self.threads.ending()
    }

    /// Gives the device up to the server that comes next, without the driver: what was begun is ended, nothing more is begun, and
    /// then [`Device::ending`] says [`Ending::HandedOver`].
    ///
    /// # Errors
    /// It would not outlive this server.
    pub fn hand_over(&mut self) -> Result<(), Error> {
        if self.info.flags & flag::USER_RECOVERY == 0 {
            let why = "was not made with --recover: its requests fail when its server is gone";
            return Err(Error::NotRecoverable { id: self.id(), why });
        }
        self.threads.leave();
        Ok(())
    }

    /// Whether another server is to have the device, and this one is yet to end what it has begun: it is not to be stopped then,
    /// which would wait for requests that are the next server's.
    pub fn is_leaving(&self) -> bool {
        self.threads.fate == Some(Ending::HandedOver)
    }

    /// Its threads that are not done yet with what they have begun, of one that is leaving.
    pub fn threads_busy(&self) -> usize {
        self.threads.busy()
    }

    /// To be called about each second, before anything that may take long: results that the driver has refused, and of which no
    /// request has told since, are given again.
    pub fn look(&self) {
        self.threads.look();
    }

    /// Looks whether the volume's size has changed, and has the device follow. Whether it did.
    pub fn refresh(&mut self) -> Result<bool, Error> {
        self.runs.tell_mistakes();
        let volume = || self.namespace.uri();
        self.namespace.refresh().map_err(|source| Error::Flush { volume: volume(), source })?;
        self.resize()
    }

    pub(crate) fn resize(&mut self) -> Result<bool, Error> {
        let sectors = self.namespace.limits().bytes() >> SECTOR_SHIFT;
        if sectors == self.sectors || self.info.flags & flag::UPDATE_SIZE == 0 {
            return Ok(false);
        }
        self.control.update_size(self.info.dev_id, sectors)?;
        self.sectors = sectors;
        Ok(true)
    }

    /// Takes the block device away when what is in flight is done, makes the volume durable, and
    /// deletes the device; `forget` is called before, when the block device is no more and its number is not
    /// another one's yet. One that has failed is left as by a server that is killed if it may be
    /// recovered, or if requests (or a batch of their results) of a queue that is no more would be waited for: end
    /// the process then.
    pub fn stop(mut self, forget: impl FnOnce()) -> Result<(), Error> {
        let id = self.info.dev_id;
        // What has happened until now.
        let _ = self.ending();
        if let Some(errno) = self.threads.error
            && (self.info.flags & (flag::USER_RECOVERY | flag::BATCH_IO) != 0
                || !self.threads.all_ended())
        {
            self.leave()?;
            return Err(Error::Ended(io::Error::from_raw_os_error(errno)));
        }
        if self.threads.error.is_some() {
            // The driver ends what its queue has begun when nobody has the node open.
            drop(self.threads.join());
        }
        self.threads.attend();
        let stopped = unless_absent(|| self.control.stop(id));
        // A command that fetches many may have been at work, and is not told of the end then (seen in the source of 7.3).
        self.threads.await_end(|| drop(self.control.stop(id)));
        // However long the rest takes: the number is this device's until it is deleted, by whomever.
        let node = self.threads.join();
        self.failures.finish();
        self.runs.tell_mistakes();
        let flushed = self.flush();
        if stopped.is_ok() {
            forget();
        }
        let deleted = self.delete(node);
        stopped?;
        flushed?;
        deleted?;
        match self.threads.error {
            None => Ok(()),
            Some(errno) => Err(Error::Ended(io::Error::from_raw_os_error(errno))),
        }
    }

    /// Deletes the device, and waits until its number may be another one's. As long as its `node` is open that is not so, and
    /// nobody else's device is deleted.
    fn delete(&mut self, node: Option<Arc<File>>) -> Result<(), ControlError> {
        let id = self.info.dev_id;
        let Some(node) = node else { return unless_absent(|| self.control.delete(id)) };
        // Older drivers have only the call that waits, for the node as well, and so have users who are not root.
        let is_deleted = self.control.delete_async(id).is_ok() || !control::is_listed(id);
        drop(node);
        if !is_deleted {
            return unless_absent(|| self.control.delete(id));
        }
        let until = Instant::now() + NODE_PATIENCE;
        while self.control.info(id).is_ok() && !control::is_listed(id) && Instant::now() < until {
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Makes the volume durable before the process ends, of which the device waits for the successor.
    pub fn leave(mut self) -> Result<(), Error> {
        // The driver sees that the server has gone when nobody has the node open; threads that live have it.
        self.threads.handles.clear();
        self.failures.finish();
        self.runs.tell_mistakes();
        let flushed = self.flush();
        // Threads whose tags the driver still has end with the process.
        std::mem::forget(self);
        flushed
    }

    fn flush(&self) -> Result<(), Error> {
        let flushed = self.namespace.flush();
        flushed.map_err(|source| Error::Flush { volume: self.namespace.uri(), source })
    }
}

/// Tells the driver something of a device that somebody else may have taken away, or be about to.
fn unless_absent(mut tell: impl FnMut() -> Result<(), ControlError>) -> Result<(), ControlError> {
    let until = Instant::now() + NODE_PATIENCE;
    loop {
        let Err(error) = tell() else { return Ok(()) };
        match error.errno() {
            Some(libc::ENODEV | libc::ENOENT) => return Ok(()),
            // Before a node goes, it is made nobody's, by which the driver goes where we are not root.
            Some(libc::EACCES) if !control::is_root() && Instant::now() < until => {
                thread::sleep(LOOK_EVERY);
            }
            _ => return Err(error),
        }
    }
}

/// The way of data for users who are not root: what the driver copies cannot be memory that nobody has
/// written.
fn path_without_root(options: &DeviceOptions, driver: Features) -> Result<DataPath, Error> {
    if !driver.has(flag::UNPRIVILEGED_DEV) {
        return Err(Error::NotRoot("need Linux 6.5 or newer"));
    }
    if options.recovery {
        return Err(Error::NotRoot("end with their server: leave --recover away"));
    }
    match options.path {
        None | Some(DataPath::Copy) => Ok(DataPath::Copy),
        Some(_) => Err(Error::NotRoot("go by copy")),
    }
}

/// Whether requests come and go many at a time.
fn takes_batches(options: &DeviceOptions, driver: Features) -> Result<bool, Error> {
    let why_not = match options.depth {
        _ if !driver.has(flag::BATCH_IO) => Some("need Linux 7.0 or newer"),
        // The driver's own queue of tags has at least two.
        0..=1 => Some("need queues of at least two requests"),
        _ => None,
    };
    match (options.batch, why_not) {
        (Some(true), Some(why)) => Err(Error::Batch(why)),
        (Some(asked), _) => Ok(asked),
        (None, _) => Ok(why_not.is_none() && options.threads == 1),
    }
}

/// Whether queues so deep of a device with these flags may have so many threads. Programs then run in user space
/// ([`Runs::choose`]).
pub(crate) fn check_threads(threads: u16, depth: u16, flags: u64) -> Result<(), Error> {
    let why_not = match threads {
        1 => return Ok(()),
        // One without a request would never end.
        _ if threads == 0 || threads > depth => {
            "are at least one, and at most as many as it has requests"
        }
        _ if flags & flag::PER_IO_DAEMON == 0 => "need Linux 6.16 or newer",
        _ if flags & flag::BATCH_IO != 0 => "have their requests one by one: not with --batch",
        _ => return Ok(()),
    };
    Err(Error::Threads(why_not))
}

/// Whether a zoned volume can be a device.
fn check_zoned(options: &DeviceOptions, driver: Features, path: DataPath) -> Result<(), Error> {
    if !driver.has(flag::ZONED) {
        return Err(Error::Zoned("needs Linux 6.6 or newer, with CONFIG_BLK_DEV_ZONED"));
    }
    if path == DataPath::Copy {
        return Err(Error::Zoned("goes by user copy"));
    }
    if options.recovery {
        let why = "cannot be taken over: what was in flight cannot be written a second time";
        return Err(Error::Zoned(why));
    }
    Ok(())
}

/// Waits until `/dev/ublkcN` is ours, as some rule makes it (docs/ublk.md): the driver goes by that.
fn await_own_node(id: u32) -> Result<(), Error> {
    let path = PathBuf::from(format!("/dev/ublkc{id}"));
    let until = Instant::now() + NODE_PATIENCE;
    loop {
        let both = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
        match rustix::fs::access(&path, both) {
            Ok(()) => return Ok(()),
            Err(errno) if Instant::now() >= until => {
                return Err(Error::Node { path, source: errno.into() });
            }
            Err(_) => thread::sleep(LOOK_EVERY),
        }
    }
}

/// Opens `/dev/ublkcN`, which may take a moment to appear.
fn open_node(id: u32) -> Result<File, Error> {
    let path = PathBuf::from(format!("/dev/ublkc{id}"));
    // Copies never wait: marked like this, the ring makes them at once instead of on a thread of its own.
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let until = Instant::now() + NODE_PATIENCE;
    loop {
        match options.open(&path) {
            Ok(file) => return Ok(file),
            Err(source) => {
                let may_come = matches!(
                    source.raw_os_error(),
                    Some(libc::ENOENT | libc::EACCES | libc::EBUSY)
                );
                if !may_come || Instant::now() >= until {
                    return Err(Error::Node { path, source });
                }
                thread::sleep(LOOK_EVERY);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_is_without_a_request() {
        let check = |threads, depth, flags| check_threads(threads, depth, flags).is_ok();
        let can = flag::PER_IO_DAEMON;
        assert!(check(1, 1, 0), "one is always there");
        assert!(check(2, 2, can) && check(3, 128, can));
        assert!(!check(0, 128, can) && !check(3, 2, can));
        assert!(!check(2, 128, 0), "older drivers");
        assert!(!check(2, 128, can | flag::BATCH_IO));
    }
}
