//! The daemon: a running [`target::Server`], the configuration that it carries out, and its changes.
//!
//! ```text
//!   signals -----------\                      /--> target::Server (cores, connections)
//!   control socket -----+--> Daemon::run -----+--> namespace::Namespace (refresh, resize, flush)
//!   once a second ------/   (one thread)      \--> config::store (every change, before it is answered)
//! ```
//!
//! Everything happens on one thread, one thing after the other: changes cannot race. What a volume may hang in (being opened,
//! looked at, flushed) is done on others, and keeps no other control command waiting; a new size does for 10 s at most.
//!
//! Files: `start` brings a configuration up, `change` is what can be changed afterwards, `dispatch`
//! knows the control socket's methods, `add` opens volumes, `looks` sees their sizes, `closing` flushes them, `statistics`, `lists` and `paths` what it tells, `jobs` are the copies that it does,
//! `missing` the volumes that are to come, `keys` by what hosts prove who they are.

mod add;
mod change;
mod claims;
mod closing;
mod dispatch;
mod jobs;
mod keys;
mod lists;
mod looks;
mod maps;
mod missing;
#[cfg(feature = "mutants")]
mod mutant;
mod paths;
mod program;
mod snapshot;
mod start;
mod statistics;
mod twice;

pub use statistics::{CoreStatistics, NamespaceStatistics, Started, Statistics};
pub use twice::files_of;

use crate::config::identity::Machine;
use crate::config::store::Store;
use crate::config::{self, Config, Cores};
use crate::control::method::Volume;
use crate::control::server::Call;
use add::Added;
use claims::Claims;
use closing::Closing;
use jobs::Jobs;
use looks::Looks;
use missing::Missing;
use namespace::Namespace;
use snapshot::Snapshots;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use target::{Bound, PortId, Server};

/// How often volumes are asked whether their size has changed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// How often it looks whether volumes are open, or were looked at, while they are.
const OPENING_INTERVAL: Duration = Duration::from_millis(5);

/// What the daemon's loop waits for.
pub enum Event {
    /// A call from the control socket.
    Call(Call),
    /// A signal to stop.
    Stop,
}

/// What carries the data path of a daemon for as long as it runs.
pub struct Threads {
    /// How many, and where.
    pub cores: Cores,
    /// Never sleep.
    pub poll: bool,
}

/// A running daemon.
pub struct Daemon {
    server: Server,
    /// Cores that open queues to each volume.
    cores: usize,
    /// What is kept for the next start.
    config: Config,
    volumes: BTreeMap<(String, u32), Arc<dyn Namespace>>,
    /// Those that are served once they can be opened.
    missing: Missing,
    /// Controller ids of shared subsystems, of which no other server may have any.
    claims: Claims,
    ports: Vec<(SocketAddr, PortId)>,
    /// Addresses at which nobody is accepted yet.
    bound: Vec<Bound>,
    /// Volumes whose last look at the size failed, so as to say it once.
    unwell: BTreeSet<(String, u32)>,
    /// What their hosts know of them, of those that were looked at.
    sizes: BTreeMap<(String, u32), u64>,
    /// New sizes that were given up, and may still come.
    resizing: BTreeMap<(String, u32), JoinHandle<()>>,
    store: Store,
    machine: Machine,
    jobs: Jobs,
    started: Started,
    snapshots: Snapshots,
    added: Added,
    closing: Closing,
    looks: Looks,
}

impl Daemon {
    /// The configuration as it is now, complete.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The volumes that are served.
    pub fn volumes(&self) -> Vec<Volume> {
        self.config
            .subsystems
            .iter()
            .flat_map(|subsystem| {
                subsystem.namespaces.iter().filter_map(|n| self.volume(&subsystem.nqn, n))
            })
            .collect()
    }

    fn volume(&self, nqn: &str, namespace: &config::Namespace) -> Option<Volume> {
        let nsid = namespace.nsid?;
        let limits = self.volumes.get(&(nqn.to_owned(), nsid))?.limits();
        Some(Volume {
            nqn: nqn.to_owned(),
            nsid,
            volume: namespace.volume.clone(),
            uuid: namespace.uuid?,
            nguid: namespace.nguid?,
            ana_group: namespace.ana_group,
            bytes: limits.bytes(),
            block_bytes: limits.block_bytes(),
        })
    }

    /// Answers calls and looks after the volumes until it is told to stop, or nobody can tell it
    /// anything any more.
    pub fn run(&mut self, events: &Receiver<Event>) {
        let mut refresh_at = Instant::now() + REFRESH_INTERVAL;
        loop {
            let mut wait = refresh_at.saturating_duration_since(Instant::now());
            let is_quick = self.added.are_expected() || self.looks.are_under_way();
            if is_quick || self.jobs.is_opening() {
                wait = wait.min(OPENING_INTERVAL);
            }
            match events.recv_timeout(wait) {
                Ok(Event::Call(call)) => self.answer(call),
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.jobs.serve(&self.volumes);
            self.jobs.expect(self.missing.uris());
            self.jobs.settle();
            self.serve_added();
            self.see_sizes();
            if Instant::now() >= refresh_at {
                self.miss_gone();
                self.serve_found();
                self.refresh();
                self.jobs.collect();
                refresh_at = Instant::now() + REFRESH_INTERVAL;
            }
        }
    }

    /// Stops accepting, finishes what is in flight and makes every volume durable.
    pub fn stop(mut self) -> Result<(), target::Error> {
        // They go on when the daemon starts again.
        self.jobs.halt();
        let stopped = self.server.stop();
        stopped.and(self.closing.wait())
    }

    /// Begins to look whether volumes were resized outside.
    fn refresh(&mut self) {
        if let Some(key) = self.looks.hanging()
            && let Some(volume) = self.volumes.get(&key)
        {
            tracing::warn!("{}: does not answer when its size is looked at", volume.uri());
            self.unwell.insert(key);
        }
        if let Err(error) = self.looks.begin(&self.volumes) {
            tracing::debug!("no thread to look at volumes: {error}");
        }
    }

    /// Tells hosts of sizes that have changed: outside, or by a call that was given up before its volume had the new one.
    fn see_sizes(&mut self) {
        for (key, looked_at, outcome) in self.looks.ended() {
            let namespace = self.volumes.get(&key);
            let is_it = |volume: &&Arc<_>| looked_at.ptr_eq(&Arc::downgrade(volume));
            // Else it was removed meanwhile.
            let Some(namespace) = namespace.filter(is_it) else { continue };
            let changed = match outcome {
                Ok(changed) => {
                    self.unwell.remove(&key);
                    changed
                }
                Err(error) => {
                    if self.unwell.insert(key) {
                        tracing::warn!("{}: cannot look at its size: {error}", namespace.uri());
                    }
                    continue;
                }
            };
            let bytes = namespace.limits().bytes();
            let told = self.sizes.insert(key.clone(), bytes);
            if changed || told.is_some_and(|told| told != bytes) {
                self.missing.resized(&key, bytes);
                tracing::info!("{}: is now {}", namespace.uri(), crate::size::format(bytes));
                let (nqn, nsid) = &key;
                if let Err(error) = self.server.namespace_changed(nqn, *nsid) {
                    tracing::warn!("{}: cannot announce its size: {error}", namespace.uri());
                }
            }
        }
    }
}
