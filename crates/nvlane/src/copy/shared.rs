//! What a copy and those who watch it tell each other, from any thread.

use super::recent::Recent;
use super::throttle::Throttle;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// What is wished of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Go on.
    Run,
    /// End soon, with what is copied flushed.
    Stop,
}

/// What a copy is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Copying.
    #[default]
    Copying,
    /// Making it durable.
    Flushing,
    /// Comparing both sides.
    Verifying,
}

/// How far a copy is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Of the copy.
    pub total_bytes: u64,
    /// Copied: everything before is, and maybe some after.
    pub done_bytes: u64,
    /// Copied, flushed, and noted: where a restart begins.
    pub durable_bytes: u64,
    /// Compared.
    pub verified_bytes: u64,
    /// Of these, by checksums that the targets gave.
    pub checksummed_bytes: u64,
    /// Given to Copy commands, once for each target.
    pub command_bytes: u64,
    /// Of these, copied where they lie.
    pub offloaded_bytes: u64,
    /// Of these, read and written beside the target.
    pub moved_bytes: u64,
    /// Read and written by the copy itself, once for each target.
    pub written_bytes: u64,
    /// Written as zeroes or deallocated, once for each target.
    pub zeroed_bytes: u64,
    /// Left alone, since there was nothing on either side.
    pub skipped_bytes: u64,
    /// Times that a target may have lost what was not flushed, and that was copied again; not bytes.
    pub setbacks: u64,
}

impl Counts {
    /// What was done before a restart, and since.
    pub fn plus(self, since: Counts) -> Counts {
        Counts {
            command_bytes: self.command_bytes + since.command_bytes,
            offloaded_bytes: self.offloaded_bytes + since.offloaded_bytes,
            moved_bytes: self.moved_bytes + since.moved_bytes,
            written_bytes: self.written_bytes + since.written_bytes,
            zeroed_bytes: self.zeroed_bytes + since.zeroed_bytes,
            skipped_bytes: self.skipped_bytes + since.skipped_bytes,
            setbacks: self.setbacks + since.setbacks,
            ..since
        }
    }
}

/// Between a copy and its watchers.
#[derive(Debug, Default)]
pub struct Shared {
    stop: AtomicBool,
    throttle: Mutex<Throttle>,
    now: Mutex<(Phase, Counts)>,
    recent: Mutex<Recent>,
    verifying: OnceLock<Instant>,
}

impl Shared {
    /// A copy that is to keep to `throttle`.
    pub fn new(throttle: Throttle) -> Shared {
        Shared { throttle: Mutex::new(throttle), ..Shared::default() }
    }

    /// What is wished.
    pub fn wish(&self) -> Wish {
        if self.stop.load(Ordering::Relaxed) { Wish::Stop } else { Wish::Run }
    }

    /// Asks it to end soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The limit that is to be kept.
    pub fn throttle(&self) -> Throttle {
        *self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another limit.
    pub fn set_throttle(&self, throttle: Throttle) {
        *self.throttle.lock().unwrap_or_else(PoisonError::into_inner) = throttle;
        self.recent().forget(Instant::now());
    }

    /// How far it was when it last said so.
    pub fn now(&self) -> (Phase, Counts) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It begins: the time before, in which volumes were opened, does not count.
    pub fn begin(&self) {
        self.recent().forget(Instant::now());
    }

    /// Everything is copied and flushed, and is compared from now on.
    pub fn begin_verifying(&self) {
        let _ = self.verifying.set(Instant::now());
    }

    /// Since when it compares both sides, if it has come to that.
    pub fn verifying_since(&self) -> Option<Instant> {
        self.verifying.get().copied()
    }

    /// Says how far it is.
    pub fn tell(&self, phase: Phase, counts: Counts) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = (phase, counts);
        let (kind, bytes) = match phase {
            Phase::Copying | Phase::Flushing => (0, counts.done_bytes),
            Phase::Verifying => (1, counts.verified_bytes),
        };
        self.recent().note(Instant::now(), kind, bytes);
    }

    /// Bytes that it copies, or compares, in a second now; 0 where it is too early to say.
    pub fn bytes_per_second(&self) -> u64 {
        self.recent().rate(Instant::now()).unwrap_or(0)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
