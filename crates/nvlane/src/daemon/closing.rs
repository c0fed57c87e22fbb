//! Volumes that were removed: they are flushed on threads, and closed, before whoever removed them is answered.

use super::jobs::Reply;
use crate::control::protocol::Failure;
use namespace::Namespace;
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a stop waits for them.
const STOP_WAIT: Duration = Duration::from_secs(10);
const STOP_INTERVAL: Duration = Duration::from_millis(2);

/// The threads that flush.
#[derive(Default)]
pub(super) struct Closing(Vec<JoinHandle<()>>);

impl Closing {
    /// Flushes each of them, even if others cannot be, and then answers: with what has failed before, or with that.
    pub(super) fn flush(
        &mut self,
        volumes: Vec<Arc<dyn Namespace>>,
        before: Result<(), Failure>,
        reply: Reply,
    ) {
        self.0.retain(|thread| !thread.is_finished());
        if volumes.is_empty() {
            let _ = reply.send(before.map(|()| json!({})));
            return;
        }
        let (done, again) = (reply.clone(), before.clone());
        let flush = move || {
            let failed = target::flush_all(volumes).into_iter().next();
            let flushed = failed.map_or(Ok(()), |(volume, error)| {
                Err(Failure::volume(format!("{volume}: removed, but not flushed: {error}")))
            });
            // A client that has gone needs no answer.
            let _ = reply.send(before.and(flushed).map(|()| json!({})));
        };
        match thread::Builder::new().name("flush-volume".to_owned()).spawn(flush) {
            Ok(thread) => self.0.push(thread),
            Err(error) => {
                let why = format!("removed, but not flushed, since there is no thread: {error}");
                let outcome = again.and(Err(Failure::volume(why)));
                let _ = done.send(outcome);
            }
        }
    }

    /// Waits for those that end within [`STOP_WAIT`]: an error if some do not.
    pub(super) fn wait(self) -> Result<(), target::Error> {
        let deadline = Instant::now() + STOP_WAIT;
        let is_over = || self.0.iter().all(JoinHandle::is_finished);
        while !is_over() && Instant::now() < deadline {
            thread::sleep(STOP_INTERVAL);
        }
        if is_over() {
            return Ok(());
        }
        let volume = "a volume that was removed".to_owned();
        Err(target::Error::Flush { volume, source: io::ErrorKind::TimedOut.into() })
    }
}
