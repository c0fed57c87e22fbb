//! Paths that lead where discovery controllers say.
//!
//! ```text
//!   a thread per discovery controller: connect, arm, read log <-----------.
//!     |                                      | told                       | it has changed; or the connection
//!     | failed: again after reconnect_delay  v                            | was lost, and is there again
//!     '------------------------------------ Logs: addresses, referrals ---'
//!                                            |
//!            control thread: arrange -> changes -> Driver::occupy, Driver::vacate
//!                     ^
//!                     '-- a path has become live, or was lost
//! ```
//!
//! What a log no longer names is let go as soon as every core can use another path, and once it is lost, if there is an
//! address instead; never for want of an answer. A path that was given up (`ctrl_loss_tmo`) and is still named is tried
//! again whenever a log was read.
//!
//! Bounds: [`PATHS_MAX`] controllers, threads and paths, a log every [`READ_INTERVAL`].

mod logs;

use crate::client::{self, Client, HostIdentity, Peer};
use crate::control::{Control, with_driver};
use crate::options::{Address, Options};
use crate::path::{Error, PATHS_MAX};
use crate::shared::{Place, Shared};
use crate::subsystem::Subsystem;
use logs::{Change, Log, Logs, Seat, changes};
use nvme::fabrics::DISCOVERY_NQN;
use std::collections::BTreeSet;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// From one look at a log to the next, however often it changes.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// The same for a controller that does not tell of changes, in times of the delay after a failure.
const POLL_DELAYS: u32 = 3;
/// When there is an address, other discovery controllers have so long to be asked before opening goes on.
const OTHERS_WAIT: Duration = Duration::from_secs(2);
/// Longest wait for a discovery controller's connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The TCP addresses of the subsystem `nqn` that discovery controllers name now, and those that they refer to. Blocks: they are
/// asked one after the other.
pub fn look_up(
    controllers: &[Address],
    nqn: &str,
    host: &HostIdentity,
    options: &client::Options,
) -> Result<Vec<Address>, Error> {
    let options = client::Options { keys: options.keys.of_host(), ..options.clone() };
    let asking = Asking { host: host.clone(), options, delay: Duration::ZERO };
    let mut logs = Logs::new(controllers);
    while let Some(next) = logs.known.iter().find(|known| !known.was_asked()) {
        let follower = Follower { address: next.address.clone(), ..Follower::default() };
        let log = follower.connect(&asking).and_then(|mut client| {
            let log = client.discovery_log().map_err(|error| words(&error))?;
            Ok(Log::of(&log, nqn, client.peer().address, asking.encrypts()))
        });
        match log {
            Ok(log) => logs.told(&follower.address, log),
            Err(failure) => logs.failed(&follower.address, &failure),
        };
    }
    found(&logs, nqn)
}

/// The addresses that controllers name, or why there is none.
fn found(logs: &Logs, nqn: &str) -> Result<Vec<Address>, Error> {
    let addresses = logs.paths();
    if !addresses.is_empty() {
        return Ok(addresses);
    }
    let why = |it: &logs::Known| match &it.failure {
        Some(failure) => failure.clone(),
        None => "no answer yet".to_owned(),
    };
    let unread = logs.known.iter().filter(|it| it.log.is_none());
    let failed: Vec<_> = unread.map(|it| (it.address.clone(), why(it))).collect();
    if logs.known.iter().all(|it| it.log.is_none()) {
        return Err(Error::NoDiscovery { controllers: failed });
    }
    let read = || logs.known.iter().filter_map(|it| it.log.as_ref());
    let named: BTreeSet<String> = read().flat_map(|log| log.names.clone()).collect();
    let secured = read().map(|log| log.secured).sum();
    let plain = read().map(|log| log.plain).sum();
    let (nqn, named) = (nqn.to_owned(), named.into_iter().collect());
    Err(Error::NotNamed { nqn, named, secured, plain, failed })
}

fn seat(shared: &Shared) -> Seat {
    let (place, access, serves_all) = (shared.place(), shared.access(), shared.serves_all());
    Seat { place, access, serves_all }
}

fn words(error: &client::ClientError) -> String {
    format!("{}: {}", error.doing, error.reason)
}

/// Follows discovery controllers and has the paths to one subsystem lead where they say. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Directory {
    me: Weak<Directory>,
    control: Arc<Control>,
    nqn: String,
    asking: Asking,
    /// The paths, by their numbers, once it is known where the first are to lead.
    seats: OnceLock<Vec<(u64, Arc<Shared>)>>,
    state: Mutex<State>,
    /// Some controller was asked.
    asked: Condvar,
    /// Threads that have not ended, those of controllers that are followed no longer among them.
    threads: Arc<AtomicUsize>,
    /// Addresses for which there is no path.
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct State {
    logs: Logs,
    followers: Vec<Arc<Follower>>,
}

/// How to ask.
#[derive(Clone, Debug)]
struct Asking {
    host: HostIdentity,
    options: client::Options,
    delay: Duration,
}

impl Asking {
    fn encrypts(&self) -> bool {
        self.options.keys.tls.is_some()
    }
}

impl Directory {
    /// Asks `controllers`, and has paths begin to be connected where they say. Blocks for a bounded time.
    pub(crate) fn open(
        control: &Arc<Control>,
        controllers: &[Address],
        options: &Options,
    ) -> Result<Arc<Directory>, Error> {
        let config = &options.association;
        let asking = Asking {
            host: HostIdentity { nqn: config.host_nqn.clone(), id: config.host_id },
            options: client::Options {
                connect_timeout: config.admin_timeout.min(CONNECT_TIMEOUT),
                command_timeout: config.admin_timeout,
                local: options.local(0),
                keys: options.keys.of_host(),
                ..client::Options::default()
            },
            delay: config.reconnect_delay,
        };
        let state = State { logs: Logs::new(controllers), followers: Vec::new() };
        let directory = Arc::new_cyclic(|me| Directory {
            me: me.clone(),
            control: Arc::clone(control),
            nqn: config.nqn.clone(),
            asking,
            seats: OnceLock::new(),
            state: Mutex::new(state),
            asked: Condvar::new(),
            threads: Arc::default(),
            waiting: AtomicUsize::new(0),
        });
        directory.follow(&mut directory.state());
        let addresses = directory.first_addresses(Instant::now() + 2 * config.admin_timeout)?;
        let subsystem = Arc::new(Subsystem::new(&config.nqn, &addresses));
        let mut addresses = addresses.into_iter();
        let seat = |_| {
            let place = addresses.next().map_or(Place::Unused, Place::At);
            let shared = Arc::new(Shared::new(place, options.clone(), Arc::clone(&subsystem)));
            shared.directory.set(directory.me.clone()).expect("it is new");
            (control.add(Arc::clone(&shared)), shared)
        };
        directory.seats.set((0..PATHS_MAX).map(seat).collect()).expect("they are made here only");
        // There may be other logs by now.
        directory.arrange_soon();
        Ok(directory)
    }

    /// The paths: their numbers, and what is known of them.
    pub(crate) fn seats(&self) -> impl Iterator<Item = (u64, &Arc<Shared>)> {
        self.seats.get().into_iter().flatten().map(|(id, shared)| (*id, shared))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every controller was asked, but not for long once there is an address.
    fn first_addresses(&self, mut until: Instant) -> Result<Vec<Address>, Error> {
        let mut state = self.state();
        let mut is_found = false;
        while !state.logs.known.iter().all(logs::Known::was_asked) {
            if !is_found && !state.logs.paths().is_empty() {
                is_found = true;
                until = until.min(Instant::now() + OTHERS_WAIT);
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            state = self.asked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        found(&state.logs, &self.nqn)
    }

    /// Follows the controllers that are known, and no others.
    fn follow(&self, state: &mut State) {
        let State { logs, followers } = state;
        let is_known =
            |follower: &Arc<Follower>| logs.known.iter().any(|it| it.address == follower.address);
        followers.retain(|follower| {
            let stays = is_known(follower);
            if !stays {
                follower.end();
            }
            stays
        });
        for known in &logs.known {
            let is_followed = followers.iter().any(|it| it.address == known.address);
            // One that is to end may take its time, and there is room when it has.
            if is_followed || self.threads.load(Ordering::Relaxed) >= PATHS_MAX {
                continue;
            }
            let follower =
                Arc::new(Follower { address: known.address.clone(), ..Follower::default() });
            let running = Running::begin(&self.threads, &self.me);
            let (directory, asking) = (self.me.clone(), self.asking.clone());
            let (theirs, nqn) = (Arc::clone(&follower), self.nqn.clone());
            let run = move || {
                theirs.run(&directory, &asking, &nqn);
                running.end();
            };
            match thread::Builder::new().name("nvlane-discover".into()).spawn(run) {
                Ok(_) => followers.push(follower),
                Err(error) => tracing::error!(peer = %known.address, "cannot follow it: {error}"),
            }
        }
    }

    /// The log of the controller at `address` was read.
    fn told(&self, address: &Address, log: Log) {
        {
            let mut state = self.state();
            if state.logs.is_failing(address) {
                tracing::info!(peer = %address, "discovery: can be asked again");
            }
            if !state.logs.told(address, log) {
                return;
            }
            self.follow(&mut state);
        }
        self.asked.notify_all();
        self.arrange_later(true);
    }

    /// The controller at `address` cannot be read now.
    fn failed(&self, address: &Address, failure: &str) {
        {
            let mut state = self.state();
            // Whoever opens is told why that fails.
            if state.logs.failed(address, failure) && self.seats.get().is_some() {
                tracing::warn!(peer = %address, "discovery: {failure}");
            }
            self.follow(&mut state);
        }
        self.asked.notify_all();
        // Another may know better what it has said.
        self.arrange_soon();
    }

    /// Has it looked, on the control thread, which path is to lead where.
    pub(crate) fn arrange_soon(&self) {
        self.arrange_later(false);
    }

    fn arrange_later(&self, anew: bool) {
        let me = self.me.clone();
        self.control.mailbox().post(move |_| {
            if let Some(directory) = me.upgrade() {
                directory.arrange(anew);
            }
        });
    }

    /// On the control thread, where paths change.
    fn arrange(&self, anew: bool) {
        let Some(seats) = self.seats.get() else { return };
        let wanted = self.state().logs.paths();
        let now: Vec<_> = seats.iter().map(|(_, shared)| seat(shared)).collect();
        for change in changes(&wanted, &now, anew) {
            match change {
                Change::Vacate(index) => {
                    let id = seats[index].0;
                    with_driver(id, |driver| driver.vacate(&self.control, id));
                }
                Change::Occupy(index, address) => {
                    with_driver(seats[index].0, |driver| driver.occupy(address));
                }
            }
        }
        self.note_waiting(&wanted);
    }

    /// Counts the addresses that have no path.
    fn note_waiting(&self, wanted: &[Address]) {
        let led_to: Vec<Address> = self.seats().filter_map(|(_, shared)| shared.led_to()).collect();
        let waiting = wanted.iter().filter(|address| !led_to.contains(address)).count();
        if self.waiting.swap(waiting, Ordering::Relaxed) != waiting && waiting > 0 {
            let subsystem = &self.nqn;
            tracing::warn!(
                subsystem,
                "{waiting} addresses more than the {PATHS_MAX} paths that there can be"
            );
        }
    }

    /// What each controller says, for people.
    pub(crate) fn describe(&self, facts: &mut Vec<(String, String)>) {
        for known in &self.state().logs.known {
            let said = known.log.as_ref().map(|log| {
                let (count, generation) = (log.paths.len(), log.generation);
                let addresses = if count == 1 { "address" } else { "addresses" };
                let others = match (log.secured, log.plain) {
                    (0, 0) => String::new(),
                    (more, 0) => format!(", {more} more that want TLS"),
                    (_, more) => format!(", {more} more without TLS"),
                };
                format!("names {count} {addresses}{others} (generation {generation})")
            });
            let words = match (said, &known.failure) {
                (Some(said), None) => said,
                (None, None) => "not asked yet".to_owned(),
                (None, Some(failure)) => failure.clone(),
                (Some(said), Some(failure)) => format!("{said}; now: {failure}"),
            };
            facts.push((format!("discovery {}", known.address), words));
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.state().followers.iter().for_each(|follower| follower.end());
    }
}

/// A thread that has not ended.
struct Running {
    threads: Arc<AtomicUsize>,
    directory: Weak<Directory>,
}

impl Running {
    fn begin(threads: &Arc<AtomicUsize>, directory: &Weak<Directory>) -> Running {
        threads.fetch_add(1, Ordering::Relaxed);
        Running { threads: Arc::clone(threads), directory: directory.clone() }
    }

    /// It ends, and leaves room for another.
    fn end(self) {
        let directory = self.directory.clone();
        drop(self);
        if let Some(directory) = directory.upgrade() {
            directory.follow(&mut directory.state());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One discovery controller, as its thread and the directory share it.
#[derive(Debug)]
struct Follower {
    address: Address,
    ended: Mutex<bool>,
    end: Condvar,
    /// What the thread waits for answers on.
    socket: Mutex<Option<TcpStream>>,
}

impl Default for Follower {
    fn default() -> Follower {
        Follower {
            address: Address { host: String::new(), port: 0 },
            ended: Mutex::new(false),
            end: Condvar::new(),
            socket: Mutex::new(None),
        }
    }
}

impl Follower {
    /// Has the thread end soon, whatever it waits for.
    fn end(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.notify_all();
        if let Some(socket) = self.socket.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // It may be closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Keeps the connection that the thread waits on, so that it can be ended.
    fn hold(&self, socket: &TcpStream) {
        // Without a descriptor left, it ends by itself.
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = socket.try_clone().ok();
        if self.rest(Duration::ZERO) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Waits. Whether the thread is to end.
    fn rest(&self, time: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.end.wait_timeout_while(ended, time, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn run(&self, directory: &Weak<Directory>, asking: &Asking, nqn: &str) {
        loop {
            let failure = self.ask(directory, asking, nqn);
            // So that the connection is closed.
            drop(self.socket.lock().unwrap_or_else(PoisonError::into_inner).take());
            let delay = match &failure {
                Ok(()) => asking.delay * POLL_DELAYS,
                Err(_) => asking.delay,
            };
            if self.rest(Duration::ZERO) {
                return;
            }
            let Some(directory) = directory.upgrade() else { return };
            if let Err(failure) = failure {
                directory.failed(&self.address, &failure);
            }
            drop(directory);
            if self.rest(delay) {
                return;
            }
        }
    }

    /// Reads its log whenever it has changed, until the connection fails; or once, if it does not tell of changes.
    fn ask(&self, directory: &Weak<Directory>, asking: &Asking, nqn: &str) -> Result<(), String> {
        let mut client = self.connect(asking)?;
        let words = |error: client::ClientError| words(&error);
        // Before the log is read: a change after that is told. Some do not tell, or refuse to be asked to.
        let tells = match client.discovery_change(Duration::ZERO) {
            Ok(_) => true,
            Err(error) if error.is_answer() => false,
            Err(error) => return Err(words(error)),
        };
        loop {
            if self.rest(Duration::ZERO) {
                return Ok(());
            }
            let log = client.discovery_log().map_err(words)?;
            let log = Log::of(&log, nqn, client.peer().address, asking.encrypts());
            let Some(directory) = directory.upgrade() else { return Ok(()) };
            directory.told(&self.address, log);
            drop(directory);
            if !tells || self.rest(READ_INTERVAL) {
                return Ok(());
            }
            while !client.discovery_change(Duration::MAX).map_err(words)? {}
        }
    }

    fn connect(&self, asking: &Asking) -> Result<Client, String> {
        let found = self.address.resolve().map_err(|error| error.to_string())?;
        let mut failure = "the name has no address".to_owned();
        for address in found {
            let peer = Peer { address, subsystem: DISCOVERY_NQN.to_owned() };
            let opened = |socket: &TcpStream| self.hold(socket);
            match Client::connect_with(&peer, &asking.host, &asking.options, opened) {
                Ok(client) => return Ok(client),
                Err(error) => failure = words(&error),
            }
            if self.rest(Duration::ZERO) {
                break;
            }
        }
        Err(failure)
    }
}
