//! Copies that the daemon does by itself: `nvlane copy --detach`.
//!
//! ```text
//!   job_add --> volumes (served, or opened for the job, --> engine, on a core of the data path
//!                 on a thread of their own)                   | flush, then the record, every two seconds
//!   restart --> records --> the same, from where the record says that everything is durable
//! ```
//!
//! A job runs on one of the cores, so that it may use the volumes that are served there. What it asks of its
//! volumes goes through their guards as hosts' commands do.
//!
//! What it does not do: start failed jobs again by itself.
//!
//! Key constants: [`RUNNING_MAX`], [`JOBS_MAX`], [`OPEN_WAIT`].

mod begin;
mod disk;
pub(super) mod identity;
mod overlap;
mod record;
mod run;

use super::twice::files_of;
use crate::control::method::{Job, JobClear, JobOf, JobState, JobThrottle, JobsCleared};
use crate::control::protocol::Failure;
use crate::copy::engine::Outcome;
use crate::copy::shared::{Counts, Phase, Shared};
use crate::copy::spec::Spec;
use begin::Opening;
use namespace::Namespace;
use reactor::Mailbox;
use record::{Record, Records};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use volume::Uri;

/// Jobs at work at one time.
const RUNNING_MAX: usize = 64;
/// Jobs that are remembered.
const JOBS_MAX: usize = 1024;
/// How long a job that goes on after a restart waits for its volumes: what a killed daemon held, or another machine.
const OPEN_WAIT: Duration = Duration::from_secs(30);
/// How long the end of the daemon waits for jobs.
const HALT_WAIT: Duration = Duration::from_secs(60);

type Done<T> = Result<T, Failure>;

/// Subsystem and namespace id.
type Key = (String, u32);

/// The volumes that are served.
pub type Served = BTreeMap<Key, Arc<dyn Namespace>>;

/// The same, kept open by others only.
type Weakly = BTreeMap<Key, Weak<dyn Namespace>>;

/// The volumes that are served now. It keeps none of them open.
#[derive(Clone, Default)]
struct Live {
    volumes: Arc<Mutex<Weakly>>,
    /// URIs of those that are to be served, and are not there.
    missing: Arc<Mutex<Vec<(Key, String)>>>,
}

impl Live {
    fn set(&self, served: &Served) {
        let weak = served.iter().map(|(key, volume)| (key.clone(), Arc::downgrade(volume)));
        *lock(&self.volumes) = weak.collect();
    }

    /// A namespace that is to be served, of files of that volume.
    fn missing(&self, uri: &Uri) -> Option<Key> {
        let files = files_of(uri);
        let missing = lock(&self.missing);
        let is_on = |theirs: &str| {
            let Ok(theirs) = theirs.parse::<Uri>() else { return false };
            files_of(&theirs).iter().any(|(path, _)| files.iter().any(|(other, _)| other == path))
        };
        missing.iter().find(|(_, theirs)| is_on(theirs)).map(|(key, _)| key.clone())
    }

    /// Those for which `holds`, at most two.
    fn find(
        &self,
        holds: impl Fn(&Key, &Arc<dyn Namespace>) -> bool,
    ) -> Vec<(Key, Arc<dyn Namespace>)> {
        let volumes = lock(&self.volumes).clone();
        let open = volumes.into_iter().filter_map(|(key, volume)| Some((key, volume.upgrade()?)));
        open.filter(|(key, volume)| holds(key, volume)).take(2).collect()
    }

    /// A volume of `ready` that was served `before`, and is not any more.
    fn lost(&self, before: &Weakly, ready: &run::Ready) -> Option<Key> {
        let now = lock(&self.volumes);
        let is_used = |volume: &Weak<dyn Namespace>| {
            volume.upgrade().is_some_and(|volume| ready.uses(&volume))
        };
        let is_there = |volume: &Weak<dyn Namespace>| now.values().any(|it| it.ptr_eq(volume));
        let lost = before.iter().find(|(_, volume)| is_used(volume) && !is_there(volume));
        lost.map(|(key, _)| key.clone())
    }
}

/// All jobs.
pub struct Jobs {
    live: Live,
    records: Records,
    jobs: BTreeMap<u64, Entry>,
    opening: Vec<Opening>,
    cores: Vec<Mailbox>,
    next: u64,
}

/// Where the outcome of a call goes.
pub type Reply = SyncSender<Done<Value>>;

/// A job, with what is known of it on disk.
struct Entry {
    record: Arc<Mutex<Record>>,
    run: Option<Run>,
}

/// A job at work.
struct Run {
    shared: Arc<Shared>,
    /// Filled in once it has ended.
    outcome: run::Told,
    /// What it will be when it has been stopped.
    then: JobState,
    from: u64,
    /// Volumes that it uses, once they are known.
    volumes: Arc<Mutex<Vec<Arc<dyn Namespace>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jobs {
    /// Jobs on these cores, with their records beside the state file.
    pub fn none(state: &Path, cores: Vec<Mailbox>) -> Jobs {
        let (live, records) = (Live::default(), Records::beside(state));
        Jobs { live, records, jobs: BTreeMap::new(), opening: Vec::new(), cores, next: 1 }
    }

    /// Finds the jobs that there were, which go on with the volumes in `served`, or with `pause` when they are told to.
    pub fn go_on(&mut self, served: &Served, pause: bool) {
        self.serve(served);
        let (found, damaged) = self.records.load();
        for (path, problem) in damaged {
            tracing::error!("{}: not a job's record of this version: {problem}", path.display());
        }
        self.next = self.records.free_id();
        for record in found {
            let mut record = record;
            if let Some(volume) = record.forgotten().filter(|_| !record.is_over()) {
                let lost = format!("{volume}: its memory went with the daemon that had it");
                tracing::error!("job {}: {lost}", record.id);
                record.lose(lost);
                // Otherwise it is found again by the next start.
                if let Err(error) = self.records.save(&record) {
                    tracing::error!("job {}: its record cannot be written: {error}", record.id);
                }
            }
            let (id, is_running) = (record.id, record.state == JobState::Running);
            let record = Arc::new(Mutex::new(record));
            self.jobs.insert(id, Entry { record, run: None });
            if is_running && pause {
                tracing::warn!(
                    "job {id}: was running before this fresh start, and is paused now: `nvlane jobs resume {id}`"
                );
                if let Err(error) = self.set_state(id, JobState::Paused, None) {
                    tracing::error!("job {id}: {}", error.message);
                }
            } else if is_running {
                tracing::info!("job {id}: going on");
                self.launch_later(id);
            }
        }
    }

    /// The volumes that are served from now on.
    pub fn serve(&self, served: &Served) {
        self.live.set(served);
    }

    /// The volumes that will be served once they are there, by namespace and URI: no job is to have them for itself.
    pub fn expect(&self, missing: Vec<(Key, String)>) {
        *lock(&self.live.missing) = missing;
    }

    /// All jobs.
    pub fn list(&mut self) -> Vec<Job> {
        self.collect();
        self.jobs.values().map(Entry::job).collect()
    }

    /// Halts a job, which can be resumed.
    pub fn pause(&mut self, wanted: JobOf) -> Done<Job> {
        self.end(wanted.id, JobState::Paused)
    }

    /// Ends a job.
    pub fn cancel(&mut self, wanted: JobOf) -> Done<Job> {
        self.end(wanted.id, JobState::Cancelled)
    }

    /// Goes on with a job that was paused or has failed.
    pub fn resume(&mut self, wanted: JobOf, served: &Served) -> Done<Job> {
        self.collect();
        let id = wanted.id;
        let entry = self.entry(id)?;
        let state = lock(&entry.record).state;
        match (state, &entry.run) {
            (_, Some(run)) if run.then == JobState::Running => return self.job(id),
            (_, Some(_)) => {
                return Err(Failure::conflict(format!("job {id} has not ended yet: try again")));
            }
            (JobState::Done | JobState::Cancelled, None) => {
                return Err(Failure::conflict(format!("job {id} has ended for good")));
            }
            (_, None) => {}
        }
        self.check_room()?;
        if state == JobState::Failed {
            // Others may have begun since: they did not have to wait for what may never go on.
            let record = lock(&self.jobs[&id].record).clone();
            if let Some(why) = self.in_the_way(&record) {
                return Err(Failure::conflict(format!("{why}: wait for it, or cancel it")));
            }
        }
        self.change(id, |record| {
            record.vouch();
            record.set_state(JobState::Running, None);
        })?;
        self.serve(served);
        self.launch_later(id);
        self.job(id)
    }

    /// Holds a job back, more or less than now.
    pub fn throttle(&mut self, wanted: JobThrottle) -> Done<Job> {
        self.collect();
        let JobThrottle { id, throttle } = wanted;
        let entry = self.entry(id)?;
        if entry.run.is_none() && lock(&entry.record).is_over() {
            return Err(Failure::conflict(format!("job {id} has ended")));
        }
        self.change(id, |record| record.spec.options.throttle = throttle)?;
        if let Some(run) = &self.entry(id)?.run {
            run.shared.set_throttle(throttle);
        }
        self.job(id)
    }

    /// Forgets jobs that have ended, failed ones as well; all of them, or one.
    pub fn clear(&mut self, wanted: &JobClear) -> Done<JobsCleared> {
        self.collect();
        let is_ended = |entry: &Entry| {
            let record = lock(&entry.record);
            entry.run.is_none() && (record.is_over() || record.state == JobState::Failed)
        };
        let cleared: Vec<u64> = match wanted.id {
            Some(id) if is_ended(self.entry(id)?) => vec![id],
            Some(id) => {
                return Err(Failure::conflict(format!("job {id} has not ended: cancel it first")));
            }
            None => {
                let ended = self.jobs.iter().filter(|(_, entry)| is_ended(entry));
                ended.map(|(id, _)| *id).collect()
            }
        };
        let (gone, outcome) = self.records.remove(&cleared);
        for id in &cleared[..gone] {
            self.jobs.remove(id);
        }
        match (gone, outcome) {
            (_, Ok(())) => Ok(JobsCleared { cleared }),
            (0, Err(error)) => Err(unsaved(error)),
            (_, Err(error)) => {
                let forgotten: Vec<String> = cleared[..gone].iter().map(u64::to_string).collect();
                let forgotten = forgotten.join(", ");
                Err(Failure::unsaved(match cleared.get(gone) {
                    Some(id) => format!(
                        "forgotten: {forgotten}; the record of job {id} cannot be removed: {error}"
                    ),
                    None => format!("forgotten: {forgotten}; not durably: {error}"),
                }))
            }
        }
    }

    /// Why a volume, which is served as `key`, cannot be taken away: a job is at work on it, or about to be.
    pub fn user_of(&mut self, key: &Key, volume: &Arc<dyn Namespace>) -> Option<String> {
        self.collect();
        let means = |spec: &Spec| {
            let mut parts = spec.sources.iter().chain(&spec.targets);
            parts.any(|part| run::is_meant(&part.volume, key, volume))
        };
        if self.opening.iter().any(|opening| means(&opening.spec)) {
            return Some("a job that is beginning opens it: try again".into());
        }
        let uses = |entry: &Entry, run: &Run| {
            let open = lock(&run.volumes);
            // One that is opening its volumes is about to use what it began with.
            let record = || lock(&entry.record).volumes.clone();
            let names = || record().iter().any(|one| run::is_meant(&one.uri, key, volume));
            open.iter().any(|one| Arc::ptr_eq(one, volume)) || (open.is_empty() && names())
        };
        let mut jobs = self.jobs.iter();
        let user = jobs.find(|(_, entry)| entry.run.as_ref().is_some_and(|run| uses(entry, run)));
        user.map(|(id, _)| format!("job {id} is at work on it: pause or cancel it first"))
    }

    /// Notes what has ended since. Called now and then.
    pub fn collect(&mut self) {
        for (id, entry) in &mut self.jobs {
            let Some(run) = &entry.run else { continue };
            let Some(run::Ended { outcome, time_seconds }) = lock(&run.outcome).take() else {
                continue;
            };
            let (then, (_, counts)) = (run.then, run.shared.now());
            let mut record = lock(&entry.record);
            record.counts = counts;
            match outcome {
                Outcome::Done(checksum) => {
                    record.set_state(JobState::Done, None);
                    record.checksum = checksum;
                    record.durable = counts.total_bytes;
                    tracing::info!("job {id}: done, everything is flushed");
                }
                Outcome::Stopped(durable) => {
                    // One that goes on when the daemon starts again has not begun anew.
                    if then != JobState::Running {
                        record.set_state(then, None);
                    }
                    record.durable = durable;
                }
                Outcome::Failed(failure, durable) => {
                    tracing::error!("job {id}: {failure}");
                    let state = match then {
                        JobState::Cancelled => JobState::Cancelled,
                        _ => JobState::Failed,
                    };
                    record.set_state(state, Some(failure));
                    record.durable = durable;
                }
            }
            // It may be a while since.
            record.ended = record.ended.map(|_| time_seconds);
            if let Err(error) = self.records.save(&record) {
                tracing::error!("job {id}: its record cannot be written: {error}");
                // Nobody is told that it is done, since a restart would not know.
                let what = format!("its record cannot be written: {error}");
                record.set_state(JobState::Failed, Some(what));
            }
            drop(record);
            entry.run = None;
        }
    }

    /// Stops what is at work, to go on when the daemon starts again.
    pub fn halt(&mut self) {
        for run in self.jobs.values().filter_map(|entry| entry.run.as_ref()) {
            run.shared.stop();
        }
        let until = Instant::now() + HALT_WAIT;
        while self.jobs.values().any(|entry| entry.run.is_some()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            self.collect();
        }
    }

    /// Stops a job, which then is in `then`.
    fn end(&mut self, id: u64, then: JobState) -> Done<Job> {
        self.collect();
        let entry = self.entry(id)?;
        let state = lock(&entry.record).state;
        match &entry.run {
            // It has not ended yet, but for good.
            Some(run) if run.then == JobState::Cancelled && then != JobState::Cancelled => {
                return Err(Failure::conflict(format!("job {id} is being cancelled")));
            }
            Some(_) => {
                // A crash before it has ended is not to undo this; and what cannot be saved is not done.
                self.set_state(id, then, None)?;
                if let Some(run) = &mut self.entry(id)?.run {
                    run.then = then;
                    run.shared.stop();
                }
            }
            None if state == then => {}
            None if matches!(state, JobState::Done | JobState::Cancelled) => {
                return Err(Failure::conflict(format!("job {id} has ended")));
            }
            None if state == JobState::Failed && then == JobState::Paused => {
                return Err(Failure::conflict(format!(
                    "job {id} has failed, there is nothing to pause: resume or cancel it"
                )));
            }
            None => {
                // Why it had failed is to be known still.
                let error = lock(&entry.record).error.clone();
                self.set_state(id, then, error)?;
            }
        }
        self.job(id)
    }

    fn check_room(&self) -> Done<()> {
        let running = self.jobs.values().filter(|entry| entry.run.is_some()).count();
        match running + self.opening.len() < RUNNING_MAX {
            true => Ok(()),
            false => Err(Failure::conflict(format!("{RUNNING_MAX} jobs are at work already"))),
        }
    }

    fn set_state(&mut self, id: u64, state: JobState, error: Option<String>) -> Done<()> {
        self.change(id, |record| record.set_state(state, error))
    }

    /// Changes a record; what cannot be saved is not changed.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut Record)) -> Done<()> {
        let records = self.records.clone();
        let mut record = lock(&self.entry(id)?.record);
        let before = record.clone();
        change(&mut record);
        records.save(&record).map_err(|error| {
            *record = before;
            // It may be there all the same, and not be durable.
            if let Err(error) = records.save(&record) {
                tracing::error!(
                    "job {id}: a change that was not made may be in its record: {error}"
                );
            }
            unsaved(error)
        })
    }

    fn entry(&mut self, id: u64) -> Done<&mut Entry> {
        self.jobs.get_mut(&id).ok_or_else(|| Failure::missing(format!("there is no job {id}")))
    }

    fn job(&mut self, id: u64) -> Done<Job> {
        Ok(self.entry(id)?.job())
    }

    /// A job begins or goes on.
    fn begin(&self, id: u64) -> Run {
        let record = lock(&self.jobs[&id].record);
        let shared = Arc::new(Shared::new(record.spec.options.throttle));
        let (durable, total_bytes) = (record.durable, record.total());
        let now = Counts { done_bytes: durable, durable_bytes: durable, ..record.counts };
        // Known before the volumes are open again.
        let counts = Counts { total_bytes, ..now };
        shared.tell(Phase::Copying, counts);
        Run {
            shared,
            outcome: Arc::default(),
            then: JobState::Running,
            from: record.durable,
            volumes: Arc::default(),
        }
    }

    fn start_of(&self, id: u64, run: &Run) -> run::Start {
        run::Start {
            id,
            record: Arc::clone(&self.jobs[&id].record),
            records: self.records.clone(),
            shared: Arc::clone(&run.shared),
            outcome: Arc::clone(&run.outcome),
            volumes: Arc::clone(&run.volumes),
            core: self.cores[id as usize % self.cores.len()].clone(),
        }
    }

    /// Opens the volumes on a thread of their own, which may take a while, and begins then.
    fn launch_later(&mut self, id: u64) {
        let run = self.begin(id);
        let start = self.start_of(id, &run);
        let outcome = Arc::clone(&run.outcome);
        let from = run.from;
        self.jobs.get_mut(&id).expect("it is there").run = Some(run);
        let served = self.live.clone();
        let thread = std::thread::Builder::new().name(format!("job-{id}"));
        if let Err(error) = thread.spawn(move || start.when_open(&served, OPEN_WAIT)) {
            run::tell(&outcome, Outcome::Failed(format!("no thread: {error}"), from));
        }
    }
}

impl Entry {
    /// What was asked for is told when it has happened.
    fn state(&self, record: &Record) -> JobState {
        match self.run.as_ref().map(|run| run.then) {
            Some(JobState::Paused) => JobState::Pausing,
            Some(JobState::Cancelled) => JobState::Cancelling,
            Some(_) => JobState::Running,
            None => record.state,
        }
    }

    fn job(&self) -> Job {
        let record = lock(&self.record);
        let (phase, counts, rate) = match &self.run {
            Some(run) => {
                let (phase, counts) = run.shared.now();
                (phase, counts, run.shared.bytes_per_second())
            }
            None => (Phase::Copying, record.counts, 0),
        };
        Job {
            id: record.id,
            state: self.state(&record),
            phase,
            error: record.error.clone(),
            sources: record.spec.sources.clone(),
            targets: record.spec.targets.clone(),
            options: record.spec.options.clone(),
            counts,
            bytes_per_second: rate,
            checksum: record.checksum.map(|sum| format!("{sum:016x}")),
            created_time_seconds: record.created,
            started_time_seconds: record.started,
            // What is asked to end has not yet.
            ended_time_seconds: record.ended.filter(|_| self.run.is_none()),
        }
    }
}

fn unsaved(error: std::io::Error) -> Failure {
    Failure::unsaved(format!("nothing was changed, since it could not be saved: {error}"))
}
