//! Whether a controller was reset since somebody looked: what it had acknowledged and not flushed may be gone.
//!
//! The kernel brings a controller back by itself and tells nobody, but it counts: `diag/reset_count` of the controller,
//! raised whenever its state becomes `resetting`, before any command is carried out after that (Linux 7.2; older
//! kernels have no such file, and nothing is known there). Whether power was lost it does not tell.

use super::sysfs::Place;
use std::sync::{Mutex, PoisonError};

/// The resets that were seen of the controllers of one namespace.
#[derive(Debug)]
pub(super) struct Resets(Mutex<Seen>);

#[derive(Debug)]
struct Seen {
    /// Each controller with its count.
    counts: Vec<(String, Option<u64>)>,
    /// Changes of them.
    changes: u64,
    /// There was no cache when somebody looked last.
    through: bool,
}

impl Resets {
    /// Those from now on.
    pub(super) fn of(place: &Place) -> Resets {
        let through = place.writes_through();
        Resets(Mutex::new(Seen { counts: place.resets(), changes: 0, through }))
    }

    /// A number that has changed if a controller was reset since the last call, or is gone. A new one is no loss, nor
    /// is anything where there was no cache all the while (`through`, then and now). It never comes back.
    /// Reads files in /sys, which do not wait for the device.
    pub(super) fn epoch(&self, place: &Place, through: bool) -> u64 {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = place.resets();
        let without_cache = std::mem::replace(&mut seen.through, through) && through;
        if !without_cache && !seen.counts.iter().all(|count| now.contains(count)) {
            seen.changes += 1;
        }
        seen.counts = now;
        seen.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn resets_and_losses_are_told_and_new_controllers_are_not() {
        let root = tempfile::tempdir().unwrap();
        let subsystem = root.path().join("nvme-subsys0");
        let set = |name: &str, count: &str| {
            let directory = subsystem.join(name).join("diag");
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("reset_count"), count).unwrap();
        };
        set("nvme0", "3\n");
        let place = Place::at(subsystem.clone());
        let resets = Resets::of(&place);
        assert_eq!((resets.epoch(&place, false), resets.epoch(&place, false)), (0, 0));
        set("nvme1", "7\n");
        assert_eq!(resets.epoch(&place, false), 0, "it has acknowledged nothing yet");
        set("nvme0", "4\n");
        assert_eq!((resets.epoch(&place, false), resets.epoch(&place, false)), (1, 1));
        // Anybody may set it back, and one may hide the other in a sum.
        set("nvme0", "0\n");
        set("nvme1", "11\n");
        assert_eq!(resets.epoch(&place, false), 2);
        // Somebody takes the cache away, and gives it back.
        assert_eq!(resets.epoch(&place, true), 2, "what was told stays told");
        set("nvme0", "1\n");
        assert_eq!(resets.epoch(&place, true), 2, "there was nothing to lose");
        assert_eq!(resets.epoch(&place, false), 2);
        set("nvme0", "2\n");
        assert_eq!(resets.epoch(&place, true), 3, "there was, before it was taken away");
        assert_eq!(resets.epoch(&place, false), 3);
        fs::remove_dir_all(subsystem.join("nvme1")).unwrap();
        assert_eq!(resets.epoch(&place, false), 4, "gone with what it had");
        // An older kernel.
        fs::remove_dir_all(subsystem.join("nvme0/diag")).unwrap();
        let resets = Resets::of(&place);
        assert_eq!((resets.epoch(&place, false), resets.epoch(&place, false)), (0, 0));
    }
}
