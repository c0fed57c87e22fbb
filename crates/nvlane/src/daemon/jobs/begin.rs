//! New jobs, and what they would do: their volumes are opened on a thread, and then it is looked whether another job is in the way.

use super::overlap::{self, Places};
use super::record::Record;
use super::{Done, Entry, JOBS_MAX, Jobs, Key, Reply, Served, Weakly, lock, run, unsaved};
use crate::control::method::{Job, JobAdd, JobState};
use crate::control::protocol::Failure;
use crate::copy::plan::Told;
use crate::copy::spec::Spec;
use serde_json::Value;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};

/// A job whose volumes are being opened, which may take as long as a remote target likes.
pub(super) struct Opening {
    pub(super) spec: Spec,
    /// Whatever other jobs do there.
    overlap_ok: bool,
    /// What was served when that began.
    served: Weakly,
    opened: Receiver<Result<Opened, String>>,
    /// To whoever has asked for it.
    reply: Reply,
}

/// Its volumes, and what it would do if that is all that was asked.
struct Opened {
    ready: run::Ready,
    plan: Option<Told>,
}

impl Jobs {
    /// Has the volumes of a job opened; [`Jobs::settle`] begins it then, and answers `reply`. With `plans` it does not
    /// begin, and the answer is what it would do.
    pub fn add(&mut self, wanted: JobAdd, plans: bool, served: &Served, reply: Reply) -> Done<()> {
        self.collect();
        let JobAdd { sources, targets, options, overlap_ok } = wanted;
        let spec = Spec { sources, targets, options };
        spec.check().map_err(Failure::params)?;
        self.check_room()?;
        if self.jobs.len() + self.opening.len() >= JOBS_MAX {
            return Err(Failure::conflict(format!(
                "there are {JOBS_MAX} jobs: `nvlane jobs clear` forgets those that have ended"
            )));
        }
        self.serve(served);
        let (opened, outcome) = sync_channel(1);
        let (live, wanted) = (self.live.clone(), spec.clone());
        let thread = std::thread::Builder::new().name("job-open".into());
        let open = move || {
            let ready = run::prepare(&wanted, &live);
            let with_plan = |ready: run::Ready| {
                let plan = plans.then(|| ready.plan(&wanted.options));
                Opened { ready, plan }
            };
            // Nobody waits for it when the daemon is stopping.
            let _ = opened.send(ready.map(with_plan));
        };
        thread.spawn(open).map_err(|error| Failure::conflict(format!("no thread: {error}")))?;
        let served = lock(&self.live.volumes).clone();
        self.opening.push(Opening { spec, overlap_ok, served, opened: outcome, reply });
        Ok(())
    }

    /// Whether volumes of new jobs are being opened: [`Jobs::settle`] is to be called soon.
    pub fn is_opening(&self) -> bool {
        !self.opening.is_empty()
    }

    /// Begins the jobs whose volumes are open now.
    pub fn settle(&mut self) {
        let mut at = 0;
        while let Some(opening) = self.opening.get(at) {
            let opened = match opening.opened.try_recv() {
                Ok(opened) => opened,
                Err(TryRecvError::Disconnected) => Err("opening its volumes has failed".into()),
                Err(TryRecvError::Empty) => {
                    at += 1;
                    continue;
                }
            };
            let Opening { spec, overlap_ok, served, reply, .. } = self.opening.remove(at);
            let opened = opened.map_err(Failure::volume);
            let answer = opened.and_then(|opened| self.settled(spec, overlap_ok, &served, opened));
            // A client that has gone needs no answer.
            let _ = reply.send(answer);
        }
    }

    /// The volumes of a new job are open.
    fn settled(
        &mut self,
        mut spec: Spec,
        overlap_ok: bool,
        before: &Weakly,
        opened: Opened,
    ) -> Done<Value> {
        let Opened { ready, plan } = opened;
        if let Some((nqn, nsid)) = self.live.lost(before, &ready) {
            let what = format!("namespace {nsid} of {nqn} was removed meanwhile");
            return Err(Failure::conflict(what));
        }
        // A restart is to copy the same, though a volume may have grown.
        ready.fix(&mut spec);
        let record = Record::new(self.next, spec, ready.volumes());
        if let (false, Some(why)) = (overlap_ok, self.in_the_way(&record)) {
            return Err(Failure::conflict(format!(
                "{why}: wait for it, cancel it, or say --overlap-ok if neither harms the other"
            )));
        }
        let value = match plan {
            Some(plan) => serde_json::to_value(plan),
            None => serde_json::to_value(self.begin_with(record, ready)?),
        };
        Ok(value.expect("results are plain data"))
    }

    fn begin_with(&mut self, record: Record, ready: run::Ready) -> Done<Job> {
        let id = record.id;
        self.records.save(&record).map_err(|error| {
            // It may be there all the same: then the next start would begin it.
            if let (_, Err(error)) = self.records.remove(&[id]) {
                tracing::error!("job {id} was not begun, and its record may be there: {error}");
            }
            unsaved(error)
        })?;
        self.next += 1;
        let record = Arc::new(Mutex::new(record));
        self.jobs.insert(id, Entry { record, run: None });
        let run = self.begin(id);
        let start = self.start_of(id, &run);
        self.entry(id)?.run = Some(run);
        start.now(ready);
        self.job(id)
    }

    /// A job that has not ended, and reads or writes what `record` is to write, or writes what that reads. A paused one
    /// goes on some day; one that has failed perhaps never, and is asked about when it does.
    pub(super) fn in_the_way(&mut self, record: &Record) -> Option<String> {
        self.collect();
        let keys: Vec<Key> = lock(&self.live.volumes).keys().cloned().collect();
        let served = |name: &str| overlap::named(name, keys.iter());
        let ours = Places::of(record, served);
        self.jobs.values().find_map(|entry| {
            let theirs = lock(&entry.record);
            let is_over = theirs.is_over() || theirs.state == JobState::Failed;
            if theirs.id == record.id || is_over && entry.run.is_none() {
                return None;
            }
            let what = ours.conflict(&Places::of(&theirs, served))?;
            let state = entry.state(&theirs).name();
            Some(format!("job {}, which is {state}, {what}", theirs.id))
        })
    }
}
