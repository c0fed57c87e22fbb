//! Volumes of which the configuration says `nofail`, and which are not there: the others are served meanwhile.
//!
//! ```text
//!   start --> Missing --a thread per try--> volume::open
//!               ^  run, once a second <-- there: served from now on, hosts are told --'
//!               |                     <-- not there: why, told once; tried again -----'
//!               '-- a volume that is served has gone: hosts are told
//! ```
//!
//! Key constants: [`RETRY_INTERVAL`], [`START_WAIT`], [`TRIES_MAX`].

use super::Daemon;
use super::jobs::identity::Identity;
use super::start::{controller_ids, open, options};
use crate::control::method::VolumeMissing;
use crate::control::protocol::Failure;
use crate::patience::{Patience, is_busy};
use namespace::{Access, Namespace};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long after a try that failed the next one begins.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How long a start waits for the first tries, so that what is there is served from the first connection on; longer after a crash.
const START_WAIT: Duration = Duration::from_secs(5);
/// How often a start looks whether they have ended.
const START_INTERVAL: Duration = Duration::from_millis(2);
/// Tries at a time.
const TRIES_MAX: usize = 32;
/// One that takes longer, on a server that does not answer, is a thread that waits, and takes no other's place.
const TRY_SLOW: Duration = Duration::from_secs(3);
/// Threads in all.
const THREADS_MAX: usize = 512;

/// Subsystem and namespace id.
type Key = (String, u32);

/// The volumes that are to be served once they can be opened.
pub struct Missing {
    volumes: BTreeMap<Key, Entry>,
    /// Cores that open queues to each volume.
    cores: usize,
    /// For how long the first try waits for somebody who is gone to let go.
    patience: Duration,
    /// Not only those that are configured so may be missing.
    any: bool,
    /// What the volumes were that are served, as they were opened.
    identities: BTreeMap<Key, Identity>,
    /// Those that had gone when they were looked at last.
    gone: BTreeSet<Key>,
}

struct Entry {
    uri: String,
    shared: bool,
    since: Instant,
    /// What the last try has met; none before the first has ended.
    why: Option<String>,
    stage: Stage,
    /// What is being opened is not what is wanted by now.
    is_outdated: bool,
    /// Nobody wants it any more.
    dropped: Arc<AtomicBool>,
}

enum Stage {
    /// Until the next try.
    Waiting(Instant),
    /// Opened, to be served.
    Found,
    /// Since then.
    Trying(Instant, Receiver<Result<Arc<dyn Namespace>, String>>),
}

impl Missing {
    /// Nothing is missing. Of what will be, somebody who is gone may hold something for as long as `patience`.
    /// Every volume may be, if `any` is said.
    pub fn none(cores: usize, patience: Duration, any: bool) -> Missing {
        Missing {
            volumes: BTreeMap::new(),
            cores,
            patience,
            identities: BTreeMap::new(),
            gone: BTreeSet::new(),
            any,
        }
    }

    /// A volume that is to be opened.
    pub fn insert(&mut self, key: Key, uri: String, shared: bool) {
        let now = Instant::now();
        let (stage, dropped) = (Stage::Waiting(now), Arc::default());
        let entry =
            Entry { uri, shared, since: now, why: None, stage, is_outdated: false, dropped };
        self.volumes.insert(key, entry);
    }

    /// A volume that is to be opened with other settings.
    pub fn retune(&mut self, key: &Key, uri: String) {
        let Some(entry) = self.volumes.get_mut(key) else { return };
        entry.uri = uri;
        entry.is_outdated = matches!(entry.stage, Stage::Trying(..));
    }

    /// A volume that was served, and has gone.
    fn insert_gone(&mut self, key: Key, uri: String, shared: bool) {
        self.insert(key.clone(), uri, shared);
        let entry = self.volumes.get_mut(&key).expect("it was inserted");
        entry.why = Some("it has gone".to_owned());
        entry.stage = Stage::Waiting(Instant::now() + RETRY_INTERVAL);
    }

    /// Which they are, by namespace and URI.
    pub fn uris(&self) -> Vec<(Key, String)> {
        self.volumes.iter().map(|(key, entry)| (key.clone(), entry.uri.clone())).collect()
    }

    /// It is served, or nobody wants it any more.
    pub fn remove(&mut self, key: &Key) {
        self.volumes.remove(key);
    }

    /// Notes what a volume is that is to be served.
    pub fn note(&mut self, key: &Key, volume: &dyn Namespace) {
        self.identities.insert(key.clone(), Identity::of(volume));
    }

    /// A volume that is served has another size now.
    pub fn resized(&mut self, key: &Key, bytes: u64) {
        if let Some(identity) = self.identities.get_mut(key) {
            identity.resized(bytes);
        }
    }

    /// A volume is not served any more, and nobody wants it.
    pub fn forget(&mut self, key: &Key) {
        self.identities.remove(key);
        self.gone.remove(key);
    }

    /// Nobody wants those of this subsystem any more.
    pub fn remove_all(&mut self, nqn: &str) {
        self.volumes.retain(|(of, _), _| of != nqn);
        self.identities.retain(|(of, _), _| of != nqn);
        self.gone.retain(|(of, _)| of != nqn);
    }

    /// Whether this one is missing.
    pub fn has(&self, key: &Key) -> bool {
        self.volumes.contains_key(key)
    }

    /// All that are missing, for people.
    pub fn list(&self) -> Vec<VolumeMissing> {
        let all = self.volumes.iter().map(|((nqn, nsid), entry)| VolumeMissing {
            nqn: nqn.clone(),
            nsid: *nsid,
            volume: entry.uri.clone(),
            reason: entry.why.clone().unwrap_or_else(|| "it is being opened".to_owned()),
            seconds: entry.since.elapsed().as_secs(),
        });
        all.collect()
    }

    /// Begins the tries whose time has come, and gives what others have opened. Those stay here until they are removed.
    fn found(&mut self) -> Vec<(Key, Arc<dyn Namespace>)> {
        let mut found = Vec::new();
        for (key, entry) in &mut self.volumes {
            let Stage::Trying(_, outcome) = &entry.stage else { continue };
            let outcome = match outcome.try_recv() {
                Ok(outcome) => outcome,
                Err(TryRecvError::Empty) => continue,
                Err(TryRecvError::Disconnected) => Err("opening it has failed".to_owned()),
            };
            match outcome {
                Ok(_) if std::mem::take(&mut entry.is_outdated) => {
                    entry.stage = Stage::Waiting(Instant::now());
                }
                Ok(volume) => {
                    entry.stage = Stage::Found;
                    found.push((key.clone(), volume));
                }
                Err(why) => entry.failed(key, why),
            }
        }
        self.begin();
        found
    }

    /// Begins the tries whose time has come, those first that have waited longest.
    fn begin(&mut self) {
        let now = Instant::now();
        let is_under_way = |entry: &&Entry| matches!(entry.stage, Stage::Trying(..));
        let is_quick = |entry: &&Entry| matches!(entry.stage, Stage::Trying(since, _) if now - since < TRY_SLOW);
        let threads = self.volumes.values().filter(is_under_way).count();
        let quick = self.volumes.values().filter(is_quick).count();
        let room = TRIES_MAX.saturating_sub(quick).min(THREADS_MAX.saturating_sub(threads));
        let mut due: Vec<(Instant, &mut Entry)> = Vec::new();
        for entry in self.volumes.values_mut() {
            if let Stage::Waiting(until) = entry.stage
                && until <= now
            {
                due.push((until, entry));
            }
        }
        due.sort_by_key(|(until, _)| *until);
        for (_, entry) in due.into_iter().take(room) {
            entry.begin(self.cores, self.patience);
        }
    }

    /// Whether each has been tried.
    fn are_tried(&self) -> bool {
        let is_tried = |entry: &Entry| entry.why.is_some() || matches!(entry.stage, Stage::Found);
        self.volumes.values().all(is_tried)
    }
}

impl Entry {
    /// The first try, and no other, has patience.
    fn begin(&mut self, cores: usize, patience: Duration) {
        let (uri, shared, dropped) = (self.uri.clone(), self.shared, Arc::clone(&self.dropped));
        let patience = if self.why.is_none() { patience } else { Duration::ZERO };
        let (sender, receiver) = sync_channel(1);
        let begun = thread::Builder::new().name("open-volume".to_owned()).spawn(move || {
            let may_wait = |error: &_| is_busy(error) && !dropped.load(Ordering::Relaxed);
            let opened = Patience::new(patience).wait(|| open(&uri, shared, cores), may_wait);
            // Nobody may want it any more, which closes it.
            let _ = sender.send(opened.map_err(|error| error.to_string()));
        });
        self.stage = match begun {
            Ok(_) => Stage::Trying(Instant::now(), receiver),
            Err(error) => {
                self.why = Some(format!("no thread to open it: {error}"));
                Stage::Waiting(Instant::now() + RETRY_INTERVAL)
            }
        };
    }

    fn failed(&mut self, (nqn, nsid): &Key, why: String) {
        self.is_outdated = false;
        self.stage = Stage::Waiting(Instant::now() + RETRY_INTERVAL);
        if self.why.as_ref() != Some(&why) {
            tracing::warn!("namespace {nsid} of {nqn} is not served, and tried again: {why}");
            self.why = Some(why);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

impl Daemon {
    /// The volumes that are to be served, and cannot be opened.
    pub fn missing(&self) -> Vec<VolumeMissing> {
        self.missing.list()
    }

    /// Waits until each missing volume has been tried, or for [`START_WAIT`], and serves those that are there.
    pub(super) fn wait_for_missing(&mut self) {
        let deadline = Instant::now() + START_WAIT.max(self.missing.patience);
        let mut found = self.missing.found();
        while !self.missing.are_tried() && Instant::now() < deadline {
            thread::sleep(START_INTERVAL);
            found.extend(self.missing.found());
        }
        // In the order of the configuration, whichever was opened first: names may be derived from it.
        let all = self.config.subsystems.iter();
        let keys = all.flat_map(|of| of.namespaces.iter().map(|it| (of.nqn.clone(), it.nsid)));
        let keys = keys.filter_map(|(nqn, nsid)| Some((nqn, nsid?)));
        let place: BTreeMap<Key, usize> = keys.enumerate().map(|(at, key)| (key, at)).collect();
        found.sort_by_cached_key(|(key, _)| place.get(key));
        self.serve(found);
    }

    /// Takes away the volumes that have gone and may be missing, so that they are opened anew when they come back. What
    /// a job is at work on stays until that has noticed.
    pub(super) fn miss_gone(&mut self) {
        let all = self.config.subsystems.iter();
        let may_be_missing = all.flat_map(|of| {
            let namespaces = of.namespaces.iter().filter(|it| self.missing.any || it.nofail);
            namespaces
                .filter_map(|it| Some(((of.nqn.clone(), it.nsid?), it.volume.clone(), of.shared)))
        });
        for (key, uri, shared) in may_be_missing.collect::<Vec<_>>() {
            let Some(volume) = self.volumes.get(&key) else { continue };
            if volume.access() != Access::Gone {
                self.missing.gone.remove(&key);
                continue;
            }
            // Not one that is just being exchanged; and what memory there is stays what it is.
            let memory = self.missing.identities.get(&key).is_some_and(Identity::has_memory);
            if memory || self.missing.gone.insert(key.clone()) {
                continue;
            }
            if self.jobs.user_of(&key, volume).is_some() {
                continue;
            }
            let (nqn, nsid) = &key;
            if let Err(error) = self.server.remove_namespace(nqn, *nsid) {
                tracing::warn!("namespace {nsid} of {nqn}: {uri} has gone, and stays: {error}");
                continue;
            }
            tracing::warn!(
                "namespace {nsid} of {nqn}: {uri} has gone, and is served when it comes back"
            );
            self.looks.forget(&key);
            self.unwell.remove(&key);
            self.sizes.remove(&key);
            self.resizing.remove(&key);
            self.missing.gone.remove(&key);
            self.claims.release(nqn, *nsid);
            // What is in flight on the cores holds it for a little longer.
            self.volumes.remove(&key);
            self.missing.insert_gone(key, uri, shared);
        }
    }

    /// Serves those of the missing volumes that are there now.
    pub(super) fn serve_found(&mut self) {
        let found = self.missing.found();
        self.serve(found);
    }

    fn serve(&mut self, found: Vec<(Key, Arc<dyn Namespace>)>) {
        for (key, volume) in found {
            let (nqn, nsid) = &key;
            match self.serve_one(&key, volume) {
                Ok(()) => {
                    let was_told =
                        self.missing.volumes.get(&key).is_some_and(|it| it.why.is_some());
                    self.missing.remove(&key);
                    if was_told {
                        let uri = self.volumes[&key].uri();
                        tracing::info!("namespace {nsid} of {nqn}: {uri} is there, and served");
                    }
                }
                Err(why) => {
                    let entry = self.missing.volumes.get_mut(&key).expect("it is missing");
                    entry.failed(&key, why);
                }
            }
        }
    }

    fn serve_one(
        &mut self,
        key @ (nqn, nsid): &Key,
        volume: Arc<dyn Namespace>,
    ) -> Result<(), String> {
        // Under a name that says no more there may be another disk, which is not to be taken for the one that has gone.
        let identity = Identity::of(&*volume);
        if let Some(before) = self.missing.identities.get(key) {
            before.check(&identity)?;
        }
        let mut config = self.config.clone();
        let subsystem = config.subsystem_mut(nqn).expect("what is missing is configured");
        let shared = subsystem.shared;
        let entry = subsystem.namespaces.iter_mut().find(|entry| entry.nsid == Some(*nsid));
        let entry = entry.expect("what is missing is configured");
        self.identify(nqn, entry, &volume);
        let (uri, uuid, options) = (entry.volume.clone(), entry.uuid, options(entry));
        let all = config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        if all.filter(|other| other.uuid == uuid).count() > 1 {
            return Err(format!("{uri}: another namespace has its UUID"));
        }
        if shared {
            let ids = controller_ids(&self.config);
            self.claims.take(nqn, *nsid, &uri, ids).map_err(|error| error.to_string())?;
        }
        if let Err(error) = self.server.add_namespace(nqn, &options, volume.clone()) {
            self.claims.release(nqn, *nsid);
            return Err(error.to_string());
        }
        self.config = config;
        self.missing.identities.insert(key.clone(), identity);
        self.volumes.insert(key.clone(), volume);
        Ok(())
    }

    /// The volume that is served as a namespace that is configured.
    pub(super) fn served(&self, nqn: &str, nsid: u32) -> Result<Arc<dyn Namespace>, Failure> {
        let key = (nqn.to_owned(), nsid);
        let volume = self.volumes.get(&key).cloned();
        volume.ok_or_else(|| {
            let why = self.missing.volumes.get(&key).and_then(|entry| entry.why.as_deref());
            Failure::volume(format!(
                "namespace {nsid} of {nqn} is not there: {}",
                why.unwrap_or("it is being opened")
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2026-11.com.example:a";

    fn missing(count: u32) -> Missing {
        let mut missing = Missing::none(1, Duration::ZERO, false);
        for nsid in 1..=count {
            let uri = format!("file:/does/not/exist/{nsid}");
            missing.insert((NQN.to_owned(), nsid), uri, false);
        }
        missing
    }

    fn entry(missing: &mut Missing, nsid: u32) -> &mut Entry {
        missing.volumes.get_mut(&(NQN.to_owned(), nsid)).unwrap()
    }

    fn under_way(missing: &Missing) -> Vec<u32> {
        let trying = |entry: &Entry| matches!(entry.stage, Stage::Trying(..));
        let all = missing.volumes.iter().filter(|(_, entry)| trying(entry));
        all.map(|((_, nsid), _)| *nsid).collect()
    }

    #[test]
    fn who_has_waited_longest_is_tried_first() {
        let (max, now) = (TRIES_MAX as u32, Instant::now());
        let mut missing = missing(2 * max);
        for nsid in 1..=max {
            entry(&mut missing, nsid).stage = Stage::Waiting(now);
        }
        for nsid in max + 1..=2 * max {
            entry(&mut missing, nsid).stage = Stage::Waiting(now - Duration::from_secs(1));
        }
        missing.begin();
        assert_eq!(under_way(&missing), (max + 1..=2 * max).collect::<Vec<_>>());
        missing.begin();
        assert_eq!(under_way(&missing).len(), TRIES_MAX, "no more at a time");
    }

    #[test]
    fn what_does_not_answer_takes_no_others_place() {
        let max = TRIES_MAX as u32;
        let mut missing = missing(2 * max);
        let mut senders = Vec::new();
        for nsid in 1..=max {
            let (sender, receiver) = sync_channel(1);
            senders.push(sender);
            let since = Instant::now() - TRY_SLOW;
            entry(&mut missing, nsid).stage = Stage::Trying(since, receiver);
        }
        assert!(missing.found().is_empty());
        assert_eq!(under_way(&missing).len(), 2 * TRIES_MAX);
    }

    #[test]
    fn each_is_tried_and_says_why_it_is_not_there() {
        let mut missing = missing(3 * TRIES_MAX as u32);
        let since = Instant::now();
        while !missing.are_tried() {
            assert!(missing.found().is_empty() && since.elapsed() < Duration::from_secs(30));
            thread::sleep(START_INTERVAL);
        }
        assert!(missing.list().iter().all(|volume| volume.reason.contains("does not exist")));
    }
}
