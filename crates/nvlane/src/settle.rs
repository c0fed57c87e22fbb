//! What a server that has ended may have left under way at controllers: they carry commands out for a while after the
//! connections have ended by which these came, unless they drain.

use crate::signals;
use namespace::{Namespace, PathReport};
use sd_notify::NotifyState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// From when the kernel has let go of a server's device or socket to when the connections of that server are closed.
pub const CONNECTIONS_CLOSE: Duration = Duration::from_millis(100);

/// How often we look whether we are to stop, and for how long we ask the service manager to wait.
const STOP_LOOK_EVERY: Duration = Duration::from_millis(500);
const START_EXTENDS: Duration = Duration::from_secs(60);

/// How the last server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// It was killed, or has crashed.
    Killed,
    /// Perhaps it was, if there was one. What it sent by paths that do not answer now is not waited for: each start
    /// would take as long as their keep alive.
    Unknown,
}

/// Waits until nothing is carried out any more of what a server that ended then has sent. Its requests come again, to
/// us, and what has been acknowledged after them must not be overwritten by what they were the first time. `false` if
/// we are told to stop.
pub fn settle(volume: &dyn Namespace, last: Last, ended: Instant, stop: &AtomicBool) -> bool {
    settle_paths(&volume.paths(), last, ended, stop)
}

fn settle_paths(paths: &[PathReport], last: Last, ended: Instant, stop: &AtomicBool) -> bool {
    let counts = |path: &&PathReport| last == Last::Killed || path.access.is_usable();
    let mut settles =
        paths.iter().filter(counts).map(|path| path.settles).max().unwrap_or_default();
    if last == Last::Killed {
        // It may have had paths that nobody names any more.
        let unseen = paths.iter().map(|path| path.settles_unseen).max().unwrap_or_default();
        settles = settles.max(unseen);
    }
    let left = || settles.saturating_sub(ended.elapsed());
    if left() >= Duration::from_secs(2) {
        let seconds = left().as_secs();
        tracing::info!(seconds, "waits until what the last server has sent has surely ended");
    }
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        if left().is_zero() {
            return true;
        }
        // A service manager would stop one that takes long to start.
        let longer = NotifyState::ExtendTimeoutUsec(START_EXTENDS.as_micros() as u32);
        signals::notify(&[longer]);
        thread::sleep(left().min(STOP_LOOK_EVERY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use namespace::Access;

    /// Longer than any test takes.
    const FOREVER: Duration = Duration::from_secs(10_000);

    /// Paths that stand like this, and settle so long.
    fn paths(paths: &[(Access, Duration)]) -> Vec<PathReport> {
        let report = |&(access, settles)| PathReport { access, settles, ..PathReport::default() };
        paths.iter().map(report).collect()
    }

    #[test]
    fn what_has_surely_ended_is_not_waited_for() {
        let stop = AtomicBool::new(false);
        let drained = (Access::Optimized, Duration::ZERO);
        for (given, last) in [
            (&[][..], Last::Killed),
            (&[drained], Last::Killed),
            (&[drained], Last::Unknown),
            (&[drained, (Access::Lost, FOREVER)], Last::Unknown),
        ] {
            assert!(settle_paths(&paths(given), last, Instant::now(), &stop), "{given:?}");
        }
    }

    #[test]
    fn what_may_be_under_way_is_waited_for() {
        const SETTLES: Duration = Duration::from_millis(50);
        let stop = AtomicBool::new(false);
        let (drained, other) =
            ((Access::Optimized, Duration::ZERO), (Access::NonOptimized, SETTLES));
        for (given, last) in [
            (&[drained, other], Last::Killed),
            (&[drained, other], Last::Unknown),
            (&[drained, (Access::Lost, SETTLES)], Last::Killed),
        ] {
            let ended = Instant::now();
            assert!(settle_paths(&paths(given), last, ended, &stop));
            assert!(ended.elapsed() >= SETTLES, "{given:?}");
        }
        stop.store(true, Ordering::Relaxed);
        let silent = paths(&[(Access::Lost, FOREVER)]);
        assert!(!settle_paths(&silent, Last::Killed, Instant::now(), &stop));
    }
}
