//! Files that are what volumes are at one moment.

use super::Daemon;
use super::jobs::Reply;
use crate::control::method::{Snapshot, VolumeSnapshot};
use crate::control::protocol::Failure;
use serde_json::json;
use std::path::Path;
use std::thread;

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
        let make = move || {
            let made = volume.snapshot(Path::new(&file)).and_then(|()| {
                let bytes = std::fs::metadata(&file)?.len();
                Ok(json!(Snapshot { file: file.clone(), bytes }))
            });
            let failed = |error| Failure::volume(format!("{file}: {error}"));
            // A client that has gone needs no answer.
            let _ = reply.send(made.map_err(failed));
        };
        let thread = thread::Builder::new().name("snapshot".into()).spawn(make);
        thread.map_err(|error| Failure::conflict(format!("no thread: {error}")))?;
        Ok(())
    }
}
