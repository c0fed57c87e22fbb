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

    /// One begins, which is being made until what is given is dropped.
    fn begin(&self, key: (String, u32)) -> Making {
        *self.lock().entry(key.clone()).or_default() += 1;
        Making { snapshots: self.clone(), key }
    }
}

/// A snapshot that is being made. It ends however its thread does.
struct Making {
    snapshots: Snapshots,
    key: (String, u32),
}

impl Drop for Making {
    fn drop(&mut self) {
        let mut all = self.snapshots.lock();
        if let Some(count) = all.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.key);
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
        let making = self.snapshots.begin((nqn, wanted.nsid));
        let make = move || {
            // Last of all the namespace may be removed, whose volume nobody has open then.
            let making = making;
            let volume = volume;
            let made = volume.snapshot(Path::new(&file)).and_then(|()| {
                let bytes = std::fs::metadata(&file)?.len();
                Ok(json!(Snapshot { file: file.clone(), bytes }))
            });
            drop(volume);
            drop(making);
            let failed = |error| Failure::volume(format!("{file}: {error}"));
            // A client that has gone needs no answer.
            let _ = reply.send(made.map_err(failed));
        };
        let thread = thread::Builder::new().name("snapshot".into()).spawn(make);
        thread.map(|_| ()).map_err(|error| Failure::conflict(format!("no thread: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_ends_even_if_its_thread_panics() {
        let snapshots = Snapshots::default();
        let key = ("nqn.x".to_owned(), 1);
        let one = snapshots.begin(key.clone());
        let other = snapshots.begin(key.clone());
        let thread = thread::spawn(move || {
            let _making = one;
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert!(snapshots.has(&key), "there is another");
        drop(other);
        assert!(!snapshots.has(&key));
    }
}
