//! Files that are what volumes are at one moment.

use super::Daemon;
use super::jobs::Reply;
use crate::control::method::{Snapshot, VolumeSnapshot};
use crate::control::protocol::Failure;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Snapshots that are being made, by subsystem and namespace: how many.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshots(Arc<Mutex<BTreeMap<(String, u32), usize>>>);

impl Snapshots {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, u32), usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one is made of that namespace, which is used meanwhile.
    pub(super) fn has(&self, key: &(String, u32)) -> bool {
        self.lock().contains_key(key)
    }

    fn begin(&self, key: &(String, u32)) {
        *self.lock().entry(key.clone()).or_default() += 1;
    }

    fn end(&self, key: &(String, u32)) {
        let mut all = self.lock();
        if let Some(count) = all.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                all.remove(key);
            }
        }
    }
}

impl Daemon {
    /// Makes a snapshot, and tells by `reply` what became of it: a file system may take its time.
    pub(super) fn volume_snapshot(
        &mut self,
        wanted: VolumeSnapshot,
        reply: Reply,
    ) -> Result<(), Failure> {
        let nqn = self.nqn(wanted.nqn)?;
        self.namespace(&nqn, wanted.nsid)?;
        let volume = self.served(&nqn, wanted.nsid)?;
        let file = wanted.file;
        if !Path::new(&file).is_absolute() {
            return Err(Failure::params(format!("file: {file} is no absolute path")));
        }
        let (snapshots, key) = (self.snapshots.clone(), (nqn, wanted.nsid));
        snapshots.begin(&key);
        let noted = key.clone();
        let make = move || {
            let made = volume.snapshot(Path::new(&file)).and_then(|()| {
                let bytes = std::fs::metadata(&file)?.len();
                Ok(json!(Snapshot { file: file.clone(), bytes }))
            });
            drop(volume);
            snapshots.end(&key);
            let failed = |error| Failure::volume(format!("{file}: {error}"));
            // A client that has gone needs no answer.
            let _ = reply.send(made.map_err(failed));
        };
        let thread = thread::Builder::new().name("snapshot".into()).spawn(make);
        thread.map(|_| ()).map_err(|error| {
            self.snapshots.end(&noted);
            Failure::conflict(format!("no thread: {error}"))
        })
    }
}
