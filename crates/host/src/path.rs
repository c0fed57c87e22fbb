//! One path to a remote namespace, as a namespace.

use crate::allocation::{Asked, Tracking};
use crate::control::Control;
use crate::directory::Directory;
use crate::flush::flush;
use crate::options::{Address, Failover, Options};
use crate::pages::Means;
use crate::queue::{IoQueue, copy};
use crate::shared::{Place, Shared, Standing, Sums};
use crate::subsystem::Subsystem;
use association::Reason;
use namespace::copy::{Located, Origin};
use namespace::{Access, Namespace, PathReport, Queue, Run};
use nvme::Limits;
use reactor::Reactor;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{fmt, io};

/// Paths that one namespace may have.
pub const PATHS_MAX: usize = 16;

/// After the first path is live, the others have so long to become so too before opening ends.
const OTHERS_WAIT: Duration = Duration::from_secs(2);

/// Why a path whose association is live cannot be used yet.
const CONNECTING: &str = "connecting its I/O queues";

/// Why a remote namespace cannot be opened: what each path said.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No path is live.
    #[error("cannot connect to {nqn}: {}", list(paths))]
    NoPath {
        /// The subsystem.
        nqn: String,
        /// Address and reason of each.
        paths: Vec<(Address, Reason)>,
    },
    /// No discovery controller could be asked.
    #[error("no discovery controller can be asked: {}", said(controllers))]
    NoDiscovery {
        /// Address and what went wrong, of each.
        controllers: Vec<(Address, String)>,
    },
    /// No discovery controller names the subsystem.
    #[error("{}", unnamed(nqn, named, (*secured, *plain), failed))]
    NotNamed {
        /// The subsystem.
        nqn: String,
        /// The subsystems that they name.
        named: Vec<String>,
        /// Addresses of it that want TLS, for which there is no key.
        secured: usize,
        /// Those that do not have it, where there is one.
        plain: usize,
        /// The controllers that could not be asked, and why.
        failed: Vec<(Address, String)>,
    },
    /// More addresses than are sensible.
    #[error("{0} paths are too many; {PATHS_MAX} can be")]
    TooManyPaths(usize),
    /// The keys of authentication cannot be had.
    #[error("{0}")]
    Key(String),
    /// The control thread cannot be started.
    #[error("cannot start the host's control thread: {0}")]
    Control(String),
}

fn list(paths: &[(Address, Reason)]) -> String {
    let each = paths.iter().map(|(address, reason)| format!("{address}: {reason}"));
    each.collect::<Vec<_>>().join("; ")
}

fn said(controllers: &[(Address, String)]) -> String {
    let each = controllers.iter().map(|(address, what)| format!("{address}: {what}"));
    each.collect::<Vec<_>>().join("; ")
}

fn unnamed(
    nqn: &str,
    named: &[String],
    (secured, plain): (usize, usize),
    failed: &[(Address, String)],
) -> String {
    /// Names in a message.
    const NAMES_MAX: usize = 8;
    let mut words = format!("no discovery controller names a TCP address of {nqn}");
    match named {
        _ if secured > 0 => {
            words += ", but for some that want TLS: give this host's key for it (tls_key=FILE)"
        }
        _ if plain > 0 => words += " that has TLS, as tls_key demands",
        [] => words += "; they name no subsystem",
        names => {
            let more = if names.len() > NAMES_MAX { ", ..." } else { "" };
            let shown = &names[..names.len().min(NAMES_MAX)];
            words += &format!("; they name {}{more}", shown.join(", "));
        }
    }
    if !failed.is_empty() {
        words += &format!(" ({})", said(failed));
    }
    words
}

/// One path: one controller, reached at one address. No command waits here and none is sent twice:
/// `layer::multipath` does that.
pub struct Path {
    id: u64,
    control: Arc<Control>,
    shared: Arc<Shared>,
    /// The limits that the last call of `refresh` saw.
    seen: Mutex<Option<Limits>>,
    /// What follows the subsystem in the path's URI.
    query: String,
    /// Who decides where it leads, if that may change.
    directory: Option<Arc<Directory>>,
    tracking: Tracking,
}

/// Connects to the namespace through each of `addresses`. Blocks until every path is live or has
/// failed once, but not for long once one is live; those that failed go on trying. `query` is what
/// follows the subsystem in the paths' URIs, with its question mark, or empty.
pub fn open(
    addresses: &[Address],
    options: &Options,
    query: &str,
) -> Result<Vec<Arc<Path>>, Error> {
    assert!(!addresses.is_empty(), "there is something to connect to");
    if addresses.len() > PATHS_MAX {
        return Err(Error::TooManyPaths(addresses.len()));
    }
    look_at_keys(options)?;
    let control = Control::shared().map_err(|error| Error::Control(error.to_string()))?;
    let subsystem = Arc::new(Subsystem::new(&options.association.nqn, addresses));
    let start = |(index, address): (usize, &Address)| {
        let place = Place::At(address.clone());
        let shared = Shared::new(place, options.clone(), Arc::clone(&subsystem));
        let shared = Arc::new(shared.by(options.local(index)));
        let id = control.add(Arc::clone(&shared));
        Path::new(id, &control, shared, query, None)
    };
    let paths: Vec<Arc<Path>> = addresses.iter().enumerate().map(start).collect();
    await_live(&paths, options)?;
    // What users have been told by now holds for those that come later, too.
    subsystem.fix();
    Ok(paths)
}

/// The same through the addresses that discovery controllers name for the subsystem, now and as long as the paths are
/// held: `controllers` are followed, and those that they refer to. There are [`PATHS_MAX`] paths always, of which
/// those lead nowhere for which there is no address.
pub fn open_discovered(
    controllers: &[Address],
    options: &Options,
    query: &str,
) -> Result<Vec<Arc<Path>>, Error> {
    assert!(!controllers.is_empty(), "there is somebody to ask");
    if controllers.len() > PATHS_MAX {
        return Err(Error::TooManyPaths(controllers.len()));
    }
    look_at_keys(options)?;
    let control = Control::shared().map_err(|error| Error::Control(error.to_string()))?;
    let directory = Directory::open(&control, controllers, options)?;
    let path = |(id, shared): (u64, &Arc<Shared>)| {
        Path::new(id, &control, Arc::clone(shared), query, Some(Arc::clone(&directory)))
    };
    let paths: Vec<Arc<Path>> = directory.seats().map(path).collect();
    await_live(&paths, options)?;
    // From now on addresses may come that nobody knows.
    paths.iter().for_each(|path| path.shared.subsystem.fix());
    Ok(paths)
}

/// A key that cannot be read is told at once; later it may be one that is just being replaced.
fn look_at_keys(options: &Options) -> Result<(), Error> {
    let config = &options.association;
    match options.keys.read(&config.host_nqn, &config.nqn) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Key(error.to_string())),
    }
}

/// Waits until every path that leads somewhere is live or has failed once, but not for long once one is live.
fn await_live(paths: &[Arc<Path>], options: &Options) -> Result<(), Error> {
    // A name look-up, an attempt to connect, and the answer to one command.
    let mut until = Instant::now() + 2 * options.association.admin_timeout;
    let live = |standing: &Standing| standing.lives > 0;
    for path in paths.iter().filter(|path| !path.shared.is_vacant()) {
        path.shared.wait(until, |standing| live(standing) || standing.failures > 0);
        if live(&path.shared.standing()) {
            until = until.min(Instant::now() + OTHERS_WAIT);
        }
    }
    if paths.iter().any(|path| live(&path.shared.standing())) {
        for path in paths {
            path.refresh().expect("only reads memory");
        }
        return Ok(());
    }
    let tried = paths.iter().filter(|path| !path.shared.is_vacant());
    let reason = |path: &Arc<Path>| (path.shared.address(), path.shared.standing().reason);
    let nqn = options.association.nqn.clone();
    Err(Error::NoPath { nqn, paths: tried.map(reason).collect() })
}

impl Path {
    fn new(
        id: u64,
        control: &Arc<Control>,
        shared: Arc<Shared>,
        query: &str,
        directory: Option<Arc<Directory>>,
    ) -> Arc<Path> {
        let (control, seen, query) = (Arc::clone(control), Mutex::default(), query.to_owned());
        let tracking = Tracking::default();
        Arc::new(Path { id, control, shared, seen, query, directory, tracking })
    }

    /// Why it is not usable, or was not when it last was not.
    pub fn reason(&self) -> Reason {
        self.shared.standing().reason
    }

    /// Sends Flush by a queue on the control thread, or by a core's if there can be no other.
    fn flush_within(&self, timeout: Duration) -> io::Result<()> {
        let (sender, receiver) = mpsc::channel();
        let (path, shared) = (self.id, Arc::clone(&self.shared));
        let control = Arc::downgrade(&self.control);
        self.control.mailbox().post(move |reactor| {
            let Some(control) = control.upgrade() else { return };
            flush(&control, path, &shared, reactor, (timeout, sender));
        });
        let words = || {
            let what = format!("{}: {}", self.shared.address(), self.reason());
            io::Error::new(io::ErrorKind::NotConnected, what)
        };
        let status = receiver.recv_timeout(timeout).map_err(|_| words())?;
        if status.is_success() {
            return Ok(());
        }
        Err(io::Error::other(format!("{}: Flush failed: {status}", self.shared.address())))
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.control.remove(self.id);
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Path").field("uri", &self.uri()).finish_non_exhaustive()
    }
}

impl Namespace for Path {
    fn limits(&self) -> Limits {
        self.shared.subsystem.limits().expect("a path is handed out once one was live")
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let standing = self.shared.standing();
        let granted = usize::from(standing.controller.io_queues);
        // One of many that come and go is not to keep a core from the others.
        let is_bounded = standing.lives > 0 && self.directory.is_none();
        let most = if is_bounded { granted } else { usize::MAX };
        if !self.shared.reserve(most) {
            let what = format!(
                "{}: the controller grants {granted} I/O queues; use as many cores at most",
                self.shared.address()
            );
            return Err(io::Error::other(what));
        }
        Ok(IoQueue::open(&self.control, self.id, &self.shared, reactor, Some(self.clone())))
    }

    fn nsid(&self) -> Option<u32> {
        Some(self.shared.standing().nsid).filter(|nsid| *nsid != 0)
    }

    fn refresh(&self) -> io::Result<bool> {
        let now = self.shared.subsystem.limits();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::replace(&mut *seen, now) != now)
    }

    fn resize(&self, _bytes: u64) -> io::Result<()> {
        let what = "a remote namespace is resized where it is";
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    fn flush(&self) -> io::Result<()> {
        if !self.shared.subsystem.writes_back() || self.shared.options.read_only {
            return Ok(());
        }
        if self.shared.is_vacant() {
            let what = format!("{}: no path leads there any more", self.shared.address());
            return Err(io::Error::new(io::ErrorKind::NotConnected, what));
        }
        self.flush_within(self.shared.options.association.admin_timeout)
    }

    fn uri(&self) -> String {
        let nqn = &self.shared.options.association.nqn;
        format!("tcp://{}/{nqn}{}", self.shared.address(), self.query)
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        if let Some(directory) = &self.directory {
            directory.describe(facts);
        }
        if self.shared.is_vacant() {
            return;
        }
        let standing = self.shared.standing();
        let name = format!("path {}", self.shared.address());
        let access = self.shared.user_access();
        let state = match access {
            Access::Optimized | Access::NonOptimized => {
                let controller = &standing.controller;
                let encrypted = match self.shared.options.keys.tls {
                    Some(_) => ", encrypted (TLS 1.3)",
                    None => "",
                };
                format!(
                    "{access:?}, controller {} of {} {} ({}), namespace {}{encrypted}",
                    controller.cntlid,
                    controller.model,
                    controller.firmware,
                    controller.serial,
                    standing.nsid,
                )
            }
            Access::Lost if self.shared.access().is_usable() => format!("{access:?}: {CONNECTING}"),
            _ => format!("{access:?}: {}", standing.reason),
        };
        facts.push((name, state));
        let between = copy::between(standing.controller.copy_formats).is_some();
        let copy = match self.shared.subsystem.limits() {
            Some(limits) if !limits.copy.is_offered() => {
                "read and written: the controller has none"
            }
            _ if between => "the controller's own, from other namespaces of its subsystem too",
            _ => "the controller's own, within the namespace",
        };
        facts.push(("copy".into(), copy.into()));
        if self.shared.subsystem.limits().is_some_and(|limits| limits.commands.allocation) {
            facts.push(("holes".into(), "asked of the controller (Get LBA Status)".into()));
        }
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        if let Some(uuid) = self.shared.options.uuid {
            return Some(uuid);
        }
        let (_, identity) = self.shared.subsystem.identity()?;
        [identity.uuid, identity.nguid].into_iter().find(|id| *id != [0; 16])
    }

    fn keeps_blocks_whole(&self) -> bool {
        // NVMe Base 2.1, section 4.1.5 of NVM 1.1: AWUN is one logical block at least.
        true
    }

    /// Data digests are made of bytes, which pages do not show; and the kernel's TLS takes other ways (`MSG_WAITALL` it refuses).
    fn takes_registered(&self) -> bool {
        let options = &self.shared.options;
        !options.data_digest && options.keys.tls.is_none() && Means::find().is_some()
    }

    /// Associations that have ended with something acknowledged and not flushed. A Flush by the association that
    /// has acknowledged a write makes it durable; of a newer one nobody knows whether the controller has lost
    /// power before, unless it says that it is of the same start of one of our targets: then the number changes only
    /// when it turns out that it is not. Without a volatile write cache there is nothing to lose.
    fn volatile_epoch(&self) -> u64 {
        self.shared.losses.count()
    }

    /// The association's, whether or not a core's queue is connected.
    fn access(&self) -> Access {
        self.shared.access()
    }

    /// Not while it leads nowhere and has left nothing to flush.
    fn writes_back(&self) -> bool {
        self.shared.subsystem.writes_back() && !self.shared.is_clean()
    }

    fn write_off(&self) {
        self.shared.losses.resume(None);
    }

    /// Nothing while the path is not usable: the namespace may be another by now.
    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        let subsystem = &self.shared.subsystem;
        let (nsid, _) = subsystem.identity().filter(|_| self.shared.access().is_usable())?;
        let blocks = self.limits().blocks.saturating_sub(slba).min(blocks);
        let (nqn, numbering) = (Arc::clone(subsystem.name()), Some(Arc::clone(subsystem) as _));
        let origin = Origin::Subsystem { nqn, nsid, numbering };
        (blocks > 0).then_some(Located { origin, slba, blocks, guard: None })
    }

    fn allocation(&self, slba: u64, blocks: u64, runs_max: usize) -> io::Result<Vec<Run>> {
        let Path { control, shared, tracking, .. } = self;
        Asked { control, path: self.id, shared, tracking }.runs(slba, blocks, runs_max)
    }

    fn destination(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        self.limits().copy.is_offered().then(|| self.origin(slba, blocks)).flatten()
    }

    fn retry_delays(&self) -> [Duration; 3] {
        self.shared.retry_delays()
    }

    fn numa_node(&self) -> Option<u32> {
        self.shared.standing().numa_node
    }

    fn paths(&self) -> Vec<PathReport> {
        if self.shared.is_vacant() {
            return vec![PathReport { access: Access::Gone, ..PathReport::default() }];
        }
        let standing = self.shared.standing();
        let access = self.shared.user_access();
        let sums = self.shared.sums();
        let reason = match access {
            Access::Optimized | Access::NonOptimized => String::new(),
            Access::Lost if self.shared.access().is_usable() => CONNECTING.into(),
            _ => standing.reason.to_string(),
        };
        vec![PathReport {
            name: format!("tcp://{}", self.shared.address()),
            access,
            reason,
            in_flight: sums.in_flight,
            selections: sums.submitted,
            errors: sums.errors,
            reconnects: standing.lives.saturating_sub(1),
            settles: match self.shared.options.failover {
                Failover::Fast => Duration::ZERO,
                Failover::Safe => standing.settles,
            },
            settles_unseen: match self.directory {
                Some(_) if self.shared.options.failover == Failover::Safe => {
                    self.shared.settles_at_worst
                }
                _ => Duration::ZERO,
            },
            details: details(&standing, sums),
            ..PathReport::default()
        }]
    }
}

fn details(standing: &Standing, sums: Sums) -> Vec<(String, String)> {
    let mut details = vec![
        ("controller".into(), standing.controller.cntlid.to_string()),
        ("received_direct_bytes".into(), sums.received_direct.to_string()),
        ("received_copied_bytes".into(), sums.received_copied.to_string()),
    ];
    details.extend(standing.source.map(|source| ("source".into(), source.to_string())));
    details
}
