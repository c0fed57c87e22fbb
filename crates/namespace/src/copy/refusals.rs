//! What a backend has refused to copy.
//!
//! Refused "for good" means: until something is changed of which nobody is told. A file system may be mounted
//! anew, a device's firmware replaced, a remote controller give more than it did. So a refusal is remembered
//! for [`REMEMBERED`], and no longer than the backend's limits for Copies stay what they are.

use super::{Origin, Place};
use crate::file::File;
use crate::memory::Memory;
use nvme::limits::CopyLimits;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Kinds remembered; beyond that the oldest is forgotten, and refused once more when it comes again.
const KINDS_MAX: usize = 64;
/// Then it is tried again, which costs one refusal.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(60);

/// Kinds of sources that were refused, and are not tried again until that is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    any: AtomicBool,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    /// Of the backend, when it refused them.
    limits: CopyLimits,
    /// Each with the time when it was refused, oldest first.
    kinds: Vec<(Kind, Instant)>,
}

/// Where a source was. Weak: that a volume was refused once does not keep it open.
#[derive(Debug)]
enum Kind {
    Same,
    File(Weak<File>),
    Memory(Weak<Memory>),
    Subsystem(Arc<str>, u32),
}

impl Refusals {
    /// Whether sources like `place` are not to be tried of a backend that has `limits` now.
    pub fn has(&self, place: &Place, limits: &CopyLimits, now: Instant) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut noted = self.noted();
        if noted.limits != *limits {
            noted.kinds.clear();
        }
        noted.kinds.retain(|(_, since)| now.saturating_duration_since(*since) < REMEMBERED);
        self.any.store(!noted.kinds.is_empty(), Ordering::Relaxed);
        noted.kinds.iter().any(|(kind, _)| kind.is(place))
    }

    /// Notes that sources like `place` were refused for good.
    pub fn note(&self, place: &Place, limits: &CopyLimits, now: Instant) {
        let Some(kind) = Kind::of(place) else { return };
        let mut noted = self.noted();
        if noted.limits != *limits {
            noted.kinds.clear();
            noted.limits = *limits;
        }
        if noted.kinds.iter().any(|(kind, _)| kind.is(place)) {
            return;
        }
        if noted.kinds.len() == KINDS_MAX {
            noted.kinds.remove(0);
        }
        noted.kinds.push((kind, now));
        self.any.store(true, Ordering::Relaxed);
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kind {
    /// None of volumes that are not told apart here.
    fn of(place: &Place) -> Option<Kind> {
        Some(match place {
            Place::Same => Kind::Same,
            Place::Other(_) => return None,
            Place::Origin(Origin::File(file)) => Kind::File(Arc::downgrade(file)),
            Place::Origin(Origin::Memory(memory)) => Kind::Memory(Arc::downgrade(memory)),
            Place::Origin(Origin::Subsystem { nqn, nsid, .. }) => {
                Kind::Subsystem(Arc::clone(nqn), *nsid)
            }
        })
    }

    fn is(&self, place: &Place) -> bool {
        match (self, place) {
            (Kind::Same, Place::Same) => true,
            (Kind::File(one), Place::Origin(Origin::File(other))) => {
                one.as_ptr() == Arc::as_ptr(other)
            }
            (Kind::Memory(one), Place::Origin(Origin::Memory(other))) => {
                one.as_ptr() == Arc::as_ptr(other)
            }
            (Kind::Subsystem(one, number), Place::Origin(Origin::Subsystem { nqn, nsid, .. })) => {
                one == nqn && number == nsid
            }
            _ => false,
        }
    }
}

/// Whether both places are one to whoever copies from there.
pub(crate) fn is_one(one: &Place, other: &Place) -> bool {
    match (one, other) {
        (Place::Other(one), Place::Other(other)) => Rc::ptr_eq(one, other),
        _ => Kind::of(one).is_some_and(|kind| kind.is(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CopyLimits = CopyLimits { ranges_max: 4, range_blocks_max: 8, blocks_max: 32 };

    fn place(nsid: u32) -> Place {
        Place::Origin(Origin::Subsystem { nqn: "nqn.test".into(), nsid, numbering: None })
    }

    #[test]
    fn kinds_are_told_apart_and_the_oldest_forgotten() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let has = |place: &Place| refusals.has(place, &LIMITS, now);
        assert!(!has(&Place::Same) && !has(&place(0)));
        for nsid in 0..KINDS_MAX as u32 + 1 {
            refusals.note(&place(nsid), &LIMITS, now);
            refusals.note(&place(nsid), &LIMITS, now);
        }
        assert!(!has(&place(0)) && has(&place(1)));
        assert!(has(&place(KINDS_MAX as u32)) && !has(&Place::Same));
        refusals.note(&Place::Same, &LIMITS, now);
        assert!(has(&Place::Same));
        assert!(is_one(&place(3), &place(3)) && !is_one(&place(3), &place(4)));
        assert!(is_one(&Place::Same, &Place::Same) && !is_one(&Place::Same, &place(3)));
    }

    #[test]
    fn what_was_refused_is_tried_again_after_a_minute_and_when_limits_change() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        refusals.note(&Place::Same, &LIMITS, now);
        refusals.note(&place(1), &LIMITS, now + REMEMBERED / 2);
        let later = now + REMEMBERED;
        assert!(refusals.has(&Place::Same, &LIMITS, later - Duration::from_millis(1)));
        assert!(
            !refusals.has(&Place::Same, &LIMITS, later) && refusals.has(&place(1), &LIMITS, later)
        );
        // It is refused again.
        refusals.note(&Place::Same, &LIMITS, later);
        assert!(refusals.has(&Place::Same, &LIMITS, later));
        let other = CopyLimits { ranges_max: 8, ..LIMITS };
        assert!(
            !refusals.has(&Place::Same, &other, later) && !refusals.has(&place(1), &LIMITS, later)
        );
    }
}
