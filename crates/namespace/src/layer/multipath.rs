//! `multipath:`: one namespace over several ways to it.
//!
//! ```text
//!   submit -> select a path -> its queue -> completed -> up
//!     |          ^                              | path error that may be retried
//!     |          |                              v
//!     '-> wait while no path is usable <--- another path, at once at first, then with pauses
//! ```
//!
//! Per core: a queue of each path, a [`multipath::Selector`], the commands in flight and those that
//! wait. Nothing is shared between cores per command; statistics are relaxed atomics.
//!
//! What is retried is `association::retry`'s to say, when a write may be retried the path's: it
//! gives back a write that was lost only once it can no longer be carried out on the old
//! connection. So a write that was retried is carried out before it is acknowledged, and none
//! after a later one that was acknowledged first. What is waiting is in order of arrival; commands
//! in flight have no order, as in NVMe.
//!
//! A Flush goes to every path that has acknowledged something since it was flushed last: each is a controller, and may
//! have a cache of its own (`flush`).
//!
//! Where paths are idle, reads of the layer's own measure them ([`multipath::Selector::probe`]):
//! the one request that no front door has asked for. It reads where the last command was, and
//! its data is dropped.

mod admin;
mod copies;
mod counters;
mod flush;
mod histogram;
mod numa;
mod queue;
mod standby;
mod tuning;

use crate::copy::{Located, OnThreads};
use crate::human::format_bytes;
use crate::layer::tune_each;
use crate::{Access, Lost, Namespace, PathReport, Queue, Run};
use counters::{Core, Past};
use multipath::{PATHS_MAX, PathSet, Shared};
use nvme::Limits;
use queue::MultipathQueue;
use reactor::Reactor;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use multipath::{Policy, Settings};
pub use standby::Standby;
pub use tuning::{SETTINGS, Tuning, differing, set};

/// One namespace, reached in several ways.
#[derive(Debug)]
pub struct Multipath {
    paths: Vec<Arc<dyn Namespace>>,
    uri: Option<String>,
    is_path: bool,
    tuning: Mutex<Tuning>,
    /// Changes with the tuning.
    generation: AtomicU32,
    /// What time is counted from, on all cores.
    epoch: Instant,
    shared: Arc<Shared>,
    cores: Mutex<Cores>,
    /// What each path has acknowledged.
    standings: Box<[flush::Standing]>,
    /// Paths that were lost with something to flush, where they have not told it themselves.
    losses: AtomicU64,
    seeds: AtomicU64,
    /// Where the kernel tells of nodes and distances.
    system: &'static Path,
    /// What was logged of an outage: nothing, [`WAITING`] or [`FAILING`].
    told: AtomicU8,
}

/// How long paths are asked for holes, one after another.
const ALLOCATION_PATIENCE: Duration = Duration::from_secs(5);

/// No path is usable, commands wait.
const WAITING: u8 = 1;
/// No path is left, commands fail.
const FAILING: u8 = 2;

/// The cores that have queues, and what those had counted that are gone.
#[derive(Debug)]
struct Cores {
    open: Vec<Arc<Core>>,
    past: Vec<Past>,
}

/// What a multipath namespace is to be.
#[derive(Clone, Debug, Default)]
pub struct MultipathOptions {
    /// Policy, tunables and paths on standby, until they are changed.
    pub tuning: Tuning,
    /// The volume's URI without the settings, where it is not `multipath:(...)`. Settings that
    /// are not the defaults are appended as options of a query.
    pub uri: Option<String>,
    /// It is a path of another multipath namespace itself, by which nothing is to wait that may go another way: what
    /// none of its own paths can take goes back there.
    pub is_path: bool,
}

/// Why volumes cannot be paths to one namespace.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MultipathError {
    /// There is none, or there are too many.
    #[error("multipath: {0} paths given; it takes 1 to {PATHS_MAX}")]
    Count(usize),
    /// Their blocks differ in size.
    #[error(
        "multipath: {first} has blocks of {first_bytes} bytes and {other} of {other_bytes}: not one volume"
    )]
    BlockSize {
        /// A path.
        first: String,
        /// Its block size.
        first_bytes: u32,
        /// Another path.
        other: String,
        /// Its block size.
        other_bytes: u32,
    },
    /// They say that they are different volumes.
    #[error("multipath: {first} and {other} have different UUIDs: not one volume")]
    Uuid {
        /// A path.
        first: String,
        /// Another path.
        other: String,
    },
}

impl Multipath {
    /// Makes one namespace of `paths`, which are ways to the same blocks.
    pub fn new(
        paths: Vec<Arc<dyn Namespace>>,
        options: MultipathOptions,
    ) -> Result<Arc<Multipath>, MultipathError> {
        if !(1..=PATHS_MAX).contains(&paths.len()) {
            return Err(MultipathError::Count(paths.len()));
        }
        let first = &paths[0];
        for other in &paths[1..] {
            let sizes = (first.limits().block_bytes(), other.limits().block_bytes());
            if sizes.0 != sizes.1 {
                return Err(MultipathError::BlockSize {
                    first: first.uri(),
                    first_bytes: sizes.0,
                    other: other.uri(),
                    other_bytes: sizes.1,
                });
            }
        }
        let mut known = paths.iter().filter_map(|path| Some((path, path.uuid()?)));
        if let Some((first, uuid)) = known.next()
            && let Some((other, _)) = known.find(|(_, other)| *other != uuid)
        {
            return Err(MultipathError::Uuid { first: first.uri(), other: other.uri() });
        }
        let cores = Cores { open: Vec::new(), past: vec![Past::default(); paths.len()] };
        let standings = paths.iter().map(|_| flush::Standing::default()).collect();
        Ok(Arc::new(Multipath {
            paths,
            standings,
            losses: AtomicU64::new(0),
            uri: options.uri,
            is_path: options.is_path,
            tuning: Mutex::new(options.tuning),
            generation: AtomicU32::new(0),
            epoch: Instant::now(),
            shared: Arc::default(),
            cores: Mutex::new(cores),
            // Hosts differ by chance (process ids are the same on machines that start alike), cores by the order in which
            // they open their queues.
            seeds: AtomicU64::new(RandomState::new().hash_one(0)),
            system: Path::new("/sys/devices/system"),
            told: AtomicU8::new(0),
        }))
    }

    /// Policy and tunables now.
    pub fn settings(&self) -> Settings {
        self.tuning().settings
    }

    fn tuning(&self) -> MutexGuard<'_, Tuning> {
        self.tuning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the paths are called now.
    fn names(&self) -> Vec<String> {
        let name = |path: &Arc<dyn Namespace>| match &mut path.paths()[..] {
            [own] => std::mem::take(&mut own.name),
            _ => path.uri(),
        };
        self.paths.iter().map(name).collect()
    }

    /// The paths that are on standby.
    fn standby(&self) -> PathSet {
        let standby = self.tuning().standby.clone();
        if standby.is_empty() { PathSet::EMPTY } else { standby.of(&self.names()) }
    }

    fn cores(&self) -> MutexGuard<'_, Cores> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since it was opened.
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn retune(&self, name: &str, value: &str) -> io::Result<()> {
        let mut tuning = self.tuning();
        let mut wanted = tuning.clone();
        tuning::set(&mut wanted, name, value)?;
        if wanted.standby != tuning.standby {
            let mut names = self.names();
            if let Some(stranger) = wanted.standby.stranger(&names) {
                names.retain(|name| !name.is_empty());
                let what = format!("{name}: no path is {stranger}; there are {}", names.join(", "));
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
        }
        *tuning = wanted;
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// A new core's counters.
    fn enrol(&self) -> Arc<Core> {
        let core = Arc::new(Core::new(self.paths.len(), self.now_ns()));
        self.cores().open.push(Arc::clone(&core));
        core
    }

    /// A core's queue has gone: its counts are kept.
    fn retire(&self, core: &Arc<Core>) {
        let mut cores = self.cores();
        cores.open.retain(|open| !Arc::ptr_eq(open, core));
        for (past, path) in cores.past.iter_mut().zip(&core.paths) {
            past.add(path);
        }
    }

    /// Logs once per outage that commands wait, and once that they fail, each path with its reason.
    fn tell_outage(&self, what: u8) {
        if self.told.fetch_max(what, Ordering::Relaxed) >= what {
            return;
        }
        let why = |path: &PathReport| match path.reason.as_str() {
            "" => format!("{}: {:?}", path.name, path.access),
            reason => format!("{}: {reason}", path.name),
        };
        let paths: Vec<String> = self.paths().iter().map(why).collect();
        let paths = if paths.is_empty() { "there is none".to_owned() } else { paths.join("; ") };
        match what {
            WAITING => tracing::warn!("no path is usable, commands wait: {paths}"),
            _ => tracing::error!("no path is left, commands fail: {paths}"),
        }
    }

    /// Notes that there is a path again.
    fn end_outage(&self) {
        if self.told.swap(0, Ordering::Relaxed) > 0 {
            tracing::info!("a path is usable again");
        }
    }

    fn report(&self, cores: &[&Core], past: &Past, path: usize, standby: PathSet) -> PathReport {
        let child = &self.paths[path];
        let mut own = child.paths();
        let mut report = match own.len() {
            1 => own.remove(0),
            _ => PathReport {
                name: child.uri(),
                access: cores
                    .iter()
                    .map(|core| core.paths[path].access())
                    .min()
                    .unwrap_or_default(),
                settles: own.iter().map(|path| path.settles).max().unwrap_or_default(),
                settles_unseen: own
                    .iter()
                    .map(|path| path.settles_unseen)
                    .max()
                    .unwrap_or_default(),
                ..PathReport::default()
            },
        };
        report.standby = standby.contains(path);
        let counts = || cores.iter().map(|core| &core.paths[path]);
        report.in_flight = counts().map(|count| count.in_flight.read()).sum();
        report.selections =
            past.selections + counts().map(|count| count.selections.read()).sum::<u64>();
        report.errors = past.errors + counts().map(|count| count.errors.read()).sum::<u64>();
        let now_ns = self.now_ns();
        report.weight = counters::share(cores, path, now_ns);
        let latencies = counters::latencies(cores, path, now_ns);
        report.p50_ns = latencies.quantile_ns(0.5);
        report.p99_ns = latencies.quantile_ns(0.99);
        report.details.extend(counters::details(cores, past, path, self.settings().policy));
        report
    }
}

impl Namespace for Multipath {
    /// What all paths can do.
    fn limits(&self) -> Limits {
        let mut limits = self.paths[0].limits();
        for path in &self.paths[1..] {
            let other = path.limits();
            limits.blocks = limits.blocks.min(other.blocks);
            limits.transfer_bytes_max = limits.transfer_bytes_max.min(other.transfer_bytes_max);
            limits.write_zeroes_bytes_max =
                limits.write_zeroes_bytes_max.min(other.write_zeroes_bytes_max);
            limits.discard = limits.discard.and(other.discard);
            limits.optimal_write_bytes = limits.optimal_write_bytes.max(other.optimal_write_bytes);
            limits.read_only |= other.read_only;
            limits.volatile_write_cache |= other.volatile_write_cache;
            limits.lends_reads &= other.lends_reads;
            limits.copy = limits.copy.and(other.copy);
            limits.passthrough.io &= other.passthrough.io;
            limits.passthrough.admin &= other.passthrough.admin;
            if other.metadata_bytes != limits.metadata_bytes {
                limits.metadata_bytes = 0;
            }
            limits.commands = limits.commands.and(other.commands);
        }
        // A command may wait for a path.
        Limits { immediate: false, ..limits }
    }

    fn gives_checksums(&self) -> bool {
        self.paths.iter().all(|path| path.gives_checksums())
    }

    /// That of the paths that know theirs, if it is one.
    fn nsid(&self) -> Option<u32> {
        let mut known = self.paths.iter().filter_map(|path| path.nsid());
        let first = known.next()?;
        known.all(|other| other == first).then_some(first)
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        Ok(MultipathQueue::open(self, reactor)?)
    }

    /// Looks on every path; an error only if none can be asked.
    fn refresh(&self) -> io::Result<bool> {
        any_succeeds(self.paths.iter().map(|path| path.refresh()))
            .map(|changes| changes.contains(&true))
    }

    /// Resizes what the paths lead to, by every path: some only note the new size.
    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.paths.iter().try_for_each(|path| path.resize(bytes))
    }

    fn flush(&self) -> io::Result<()> {
        self.flush_now()
    }

    fn uri(&self) -> String {
        let said = tuning::differing(&self.tuning());
        match &self.uri {
            None => {
                let paths: Vec<_> = self.paths.iter().map(|path| path.uri()).collect();
                format!("multipath:{}({})", said.join(","), paths.join(","))
            }
            Some(uri) if said.is_empty() => uri.clone(),
            Some(uri) => {
                let separator = if uri.contains('?') { '&' } else { '?' };
                format!("{uri}{separator}{}", said.join("&"))
            }
        }
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        tuning::describe(&self.tuning(), facts);
        let capacity = self.limits().bytes();
        for path in &self.paths {
            if path.paths().is_empty() {
                facts.push(("path".into(), path.uri()));
            }
            let bytes = path.limits().bytes();
            if bytes != capacity {
                let what = format!("{}, more than another path", format_bytes(bytes));
                facts.push(("path's size".into(), what));
            }
            let mut own = Vec::new();
            path.describe(&mut own);
            // What is so on every path is told once.
            own.retain(|fact| !facts.contains(fact));
            facts.append(&mut own);
        }
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.paths.iter().find_map(|path| path.uuid())
    }

    fn keeps_blocks_whole(&self) -> bool {
        self.paths.iter().all(|path| path.keeps_blocks_whole())
    }

    fn takes_registered(&self) -> bool {
        self.paths.iter().all(|path| path.takes_registered())
    }

    fn cut(&self) -> u64 {
        self.paths.iter().map(|path| path.cut()).sum()
    }

    fn lost(&self) -> Lost {
        self.paths.iter().map(|path| path.lost()).sum()
    }

    fn volatile_epoch(&self) -> u64 {
        let own = self.losses.load(Ordering::SeqCst);
        own + self.paths.iter().map(|path| path.volatile_epoch()).sum::<u64>()
    }

    /// The best of the paths'.
    fn access(&self) -> Access {
        self.paths.iter().map(|path| path.access()).min().expect("there is a path")
    }

    fn writes_back(&self) -> bool {
        self.paths.iter().any(|path| path.writes_back())
    }

    fn write_off(&self) {
        self.paths.iter().for_each(|path| path.write_off());
    }

    fn paths(&self) -> Vec<PathReport> {
        let (open, past) = {
            let cores = self.cores();
            (cores.open.clone(), cores.past.clone())
        };
        let cores: Vec<&Core> = open.iter().map(Arc::as_ref).collect();
        let standby = self.standby();
        let report = |path| self.report(&cores, &past[path], path, standby);
        let reports = (0..self.paths.len()).map(report);
        reports.filter(|report| !report.name.is_empty()).collect()
    }

    fn each_program(&self, visit: &mut dyn FnMut(&crate::layer::program::Routed)) {
        self.paths.iter().for_each(|path| path.each_program(visit));
    }

    /// The longest of the paths': a command that is put off may be sent by any of them.
    fn retry_delays(&self) -> [Duration; 3] {
        let all = self.paths.iter().map(|path| path.retry_delays());
        let longest = |one: [Duration; 3], other: [Duration; 3]| {
            std::array::from_fn(|number| one[number].max(other[number]))
        };
        all.reduce(longest).expect("there is a path")
    }

    /// What the best path says of those that say something.
    fn allocation(&self, slba: u64, blocks: u64, runs_max: usize) -> io::Result<Vec<Run>> {
        let standby = self.standby();
        let known = self.paths.iter().enumerate();
        let mut paths: Vec<_> = known.map(|(at, path)| (at, path.access(), path)).collect();
        paths.sort_by_key(|(at, access, _)| (standby.contains(*at), *access));
        let usable = paths.into_iter().filter(|(_, access, _)| access.is_usable());
        let until = Instant::now() + ALLOCATION_PATIENCE;
        let in_time = usable.take_while(|_| Instant::now() < until);
        let told = in_time.map(|(_, _, path)| path.allocation(slba, blocks, runs_max));
        let told = told.filter_map(Result::ok).find(|runs| !runs.is_empty());
        Ok(told.unwrap_or_else(|| vec![Run { blocks, is_stored: true }]))
    }

    fn copies_on_threads(&self) -> OnThreads {
        OnThreads::of(self.paths.iter().map(|path| path.copies_on_threads()))
    }

    fn last_guard(&self) -> Option<u64> {
        self.paths.iter().filter_map(|path| path.last_guard()).max()
    }

    /// The first path's that knows: they lead to the same blocks.
    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        self.paths.iter().find_map(|path| Arc::clone(path).origin(slba, blocks))
    }

    fn destination(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        self.paths.iter().find_map(|path| Arc::clone(path).destination(slba, blocks))
    }

    /// Takes policy and tunables; whatever it does not know, every path that knows it is told.
    fn tune(&self, name: &str, value: &str) -> io::Result<()> {
        match self.retune(name, value) {
            // It may mean a path of a path.
            Err(unknown) if unknown.kind() == io::ErrorKind::Unsupported => {
                tune_each(self.paths.iter(), name, value).map_err(|error| match error.kind() {
                    io::ErrorKind::Unsupported => unknown,
                    _ => error,
                })
            }
            own => own,
        }
    }
}

/// What those that succeeded gave; the first error if none did.
fn any_succeeds<T>(results: impl Iterator<Item = io::Result<T>>) -> io::Result<Vec<T>> {
    let (mut good, mut first) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(value) => good.push(value),
            Err(error) => first = first.or(Some(error)),
        }
    }
    match first {
        Some(error) if good.is_empty() => Err(error),
        _ => Ok(good),
    }
}

/// Whether there is hope that commands can be sent on such a path again.
fn may_return(access: Access) -> bool {
    access < Access::Failing
}
