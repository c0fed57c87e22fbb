//! Volumes that were removed: each is flushed on a thread, and closed, before whoever removed it is answered.

use super::jobs::Reply;
use crate::control::protocol::Failure;
use namespace::Namespace;
use serde_json::json;
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
    /// Flushes each of them, even if one before it cannot be, and then answers: with what has failed before, or with that.
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
            let flushed: Vec<_> = volumes.into_iter().map(flushed).collect();
            let outcome = flushed.into_iter().fold(before, Result::and);
            // A client that has gone needs no answer.
            let _ = reply.send(outcome.map(|()| json!({})));
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

    /// Waits for those that end within [`STOP_WAIT`].
    pub(super) fn wait(self) {
        let deadline = Instant::now() + STOP_WAIT;
        let is_over = || self.0.iter().all(JoinHandle::is_finished);
        while !is_over() && Instant::now() < deadline {
            thread::sleep(STOP_INTERVAL);
        }
        if !is_over() {
            tracing::error!("a volume that was removed is not flushed yet");
        }
    }
}

/// Flushes one and closes it.
fn flushed(volume: Arc<dyn Namespace>) -> Result<(), Failure> {
    volume.flush().map_err(|error| {
        Failure::volume(format!("{}: removed, but not flushed: {error}", volume.uri()))
    })
}
