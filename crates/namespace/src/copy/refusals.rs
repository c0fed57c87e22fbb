//! What a backend has refused to copy for good.

use super::{Origin, Place};
use crate::file::File;
use crate::memory::Memory;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Kinds remembered; beyond that the oldest is forgotten, and refused once more when it comes again.
const KINDS_MAX: usize = 64;

/// Kinds of sources that are not to be tried again.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    same: AtomicBool,
    any: AtomicBool,
    kinds: Mutex<Vec<Kind>>,
}

/// A source behind another volume. Weak: that a volume was refused once does not keep it open.
#[derive(Debug)]
enum Kind {
    File(Weak<File>),
    Memory(Weak<Memory>),
    Subsystem(Arc<str>, u32),
}

impl Refusals {
    /// Whether sources like `place` are not to be tried.
    pub fn has(&self, place: &Place) -> bool {
        match place {
            Place::Same => self.same.load(Ordering::Relaxed),
            Place::Other(_) => false,
            Place::Origin(origin) => {
                self.any.load(Ordering::Relaxed) && self.kinds().iter().any(|kind| kind.is(origin))
            }
        }
    }

    /// Notes that sources like `place` were refused for good.
    pub fn note(&self, place: &Place) {
        match place {
            Place::Same => self.same.store(true, Ordering::Relaxed),
            Place::Other(_) => {}
            Place::Origin(origin) => {
                let mut kinds = self.kinds();
                if kinds.iter().any(|kind| kind.is(origin)) {
                    return;
                }
                if kinds.len() == KINDS_MAX {
                    kinds.remove(0);
                }
                kinds.push(Kind::of(origin));
                self.any.store(true, Ordering::Relaxed);
            }
        }
    }

    fn kinds(&self) -> MutexGuard<'_, Vec<Kind>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kind {
    fn of(origin: &Origin) -> Kind {
        match origin {
            Origin::File(file) => Kind::File(Arc::downgrade(file)),
            Origin::Memory(memory) => Kind::Memory(Arc::downgrade(memory)),
            Origin::Subsystem { nqn, nsid } => Kind::Subsystem(Arc::clone(nqn), *nsid),
        }
    }

    fn is(&self, origin: &Origin) -> bool {
        match (self, origin) {
            (Kind::File(one), Origin::File(other)) => one.as_ptr() == Arc::as_ptr(other),
            (Kind::Memory(one), Origin::Memory(other)) => one.as_ptr() == Arc::as_ptr(other),
            (Kind::Subsystem(one, number), Origin::Subsystem { nqn, nsid }) => {
                one == nqn && number == nsid
            }
            _ => false,
        }
    }
}

/// Whether both places are one to whoever copies from there.
pub(crate) fn is_one(one: &Place, other: &Place) -> bool {
    match (one, other) {
        (Place::Same, Place::Same) => true,
        (Place::Other(one), Place::Other(other)) => Rc::ptr_eq(one, other),
        (Place::Origin(one), Place::Origin(other)) => Kind::of(one).is(other),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart_and_the_oldest_forgotten() {
        let refusals = Refusals::default();
        let place = |nsid| Place::Origin(Origin::Subsystem { nqn: "nqn.test".into(), nsid });
        assert!(!refusals.has(&Place::Same) && !refusals.has(&place(0)));
        for nsid in 0..KINDS_MAX as u32 + 1 {
            refusals.note(&place(nsid));
            refusals.note(&place(nsid));
        }
        assert!(!refusals.has(&place(0)) && refusals.has(&place(1)));
        assert!(refusals.has(&place(KINDS_MAX as u32)) && !refusals.has(&Place::Same));
        refusals.note(&Place::Same);
        assert!(refusals.has(&Place::Same));
        assert!(is_one(&place(3), &place(3)) && !is_one(&place(3), &place(4)));
    }
}
