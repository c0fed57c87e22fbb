//! Those who take part in every turn, and when they are sent to sleep.

use crate::Poll;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Up to this many active pollers are polled in every turn until the reactor sleeps. With more,
/// polling those that have nothing to do costs more than having the ring tell when they have:
/// see docs/decisions/0002-sockets-ring-or-direct.md.
pub const DIRECT_MAX: usize = 8;

/// In a crowd, a poller is parked after this many fruitless polls in a row: they cost about what
/// it costs to be told by the ring.
pub const PATIENCE: u32 = 8;

/// For so long after more than [`DIRECT_MAX`] were active, it counts as a crowd. Without this the
/// last few pollers left active would be polled in vain while the ring tells of all the others.
const SPELL: Duration = Duration::from_millis(1);

/// A poller that was attached; see [`crate::Reactor::activate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerId {
    index: u32,
    generation: u32,
}

/// All pollers, and the indexes of the active ones.
pub struct Pollers {
    direct_max: usize,
    patience: u32,
    crowd: bool,
    crowd_until: Option<Instant>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// May name slots that are no longer active, until [`Pollers::sweep`].
    active: Vec<u32>,
    stale: bool,
}

struct Slot {
    poller: Option<Rc<dyn Poll>>,
    generation: u32,
    active: bool,
    /// The index stands in the list of active ones.
    listed: bool,
    fruitless: u32,
}

impl Default for Pollers {
    fn default() -> Pollers {
        Pollers {
            direct_max: DIRECT_MAX,
            patience: PATIENCE,
            crowd: false,
            crowd_until: None,
            slots: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            stale: false,
        }
    }
}

impl Pollers {
    /// See [`crate::Reactor::set_crowd`].
    pub fn set_crowd(&mut self, direct_max: usize, patience: u32) {
        self.direct_max = direct_max;
        self.patience = patience;
    }

    pub fn attach(&mut self, poller: Rc<dyn Poll>) -> PollerId {
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize].poller = Some(poller);
                index
            }
            None => {
                let poller = Some(poller);
                let slot =
                    Slot { poller, generation: 0, active: false, listed: false, fruitless: 0 };
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 pollers")
            }
        };
        let id = PollerId { index, generation: self.slots[index as usize].generation };
        self.activate(id);
        id
    }

    pub fn activate(&mut self, id: PollerId) {
        let slot = &mut self.slots[id.index as usize];
        if slot.generation != id.generation || slot.active {
            return;
        }
        slot.active = true;
        slot.fruitless = 0;
        if !slot.listed {
            slot.listed = true;
            self.active.push(id.index);
        }
    }

    /// Returns the poller, for the caller to drop.
    pub fn detach(&mut self, id: PollerId) -> Option<Rc<dyn Poll>> {
        let slot = &mut self.slots[id.index as usize];
        if slot.generation != id.generation {
            return None;
        }
        slot.generation = slot.generation.wrapping_add(1);
        self.stale |= slot.active;
        slot.active = false;
        self.free.push(id.index);
        slot.poller.take()
    }

    /// Length of the list of active pollers, to iterate by [`Pollers::at`].
    #[inline]
    pub fn listed(&self) -> usize {
        self.active.len()
    }

    /// Begins a pass at `now` over those that are listed, and looks whether they are a crowd. Returns how many there
    /// are.
    #[inline]
    pub fn begin_pass(&mut self, now: Instant) -> usize {
        let listed = self.active.len();
        if listed > self.direct_max {
            self.crowd = true;
            self.crowd_until = Some(now + SPELL);
        } else if self.crowd {
            self.crowd = self.crowd_until.is_some_and(|until| now < until);
        }
        listed
    }

    /// The poller at a place of the list, unless it is no longer active.
    #[inline]
    pub fn at(&self, place: usize) -> Option<(Rc<dyn Poll>, PollerId)> {
        let index = *self.active.get(place)?;
        let slot = &self.slots[index as usize];
        let poller = slot.poller.as_ref().filter(|_| slot.active)?;
        Some((Rc::clone(poller), PollerId { index, generation: slot.generation }))
    }

    /// Notes how a poll went. Whether the poller is to be parked.
    #[inline]
    pub fn polled(&mut self, id: PollerId, worked: bool) -> bool {
        let slot = &mut self.slots[id.index as usize];
        if slot.generation != id.generation {
            return false;
        }
        slot.fruitless = if worked { 0 } else { slot.fruitless.saturating_add(1) };
        self.crowd && slot.fruitless >= self.patience
    }

    /// Polls no more until activated. To be called before [`Poll::park`], which may activate.
    pub fn deactivate(&mut self, id: PollerId) {
        let slot = &mut self.slots[id.index as usize];
        if slot.generation == id.generation {
            slot.active = false;
            self.stale = true;
        }
    }

    /// Takes those that are no longer active off the list. Not during an iteration.
    #[inline]
    pub fn sweep(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let slots = &mut self.slots;
        self.active.retain(|index| {
            let slot = &mut slots[*index as usize];
            slot.listed = slot.active;
            slot.active
        });
    }

    /// Takes all pollers, for the caller to drop.
    pub fn detach_all(&mut self) -> Vec<Rc<dyn Poll>> {
        let ids = (0u32..).zip(&self.slots).filter(|(_, slot)| slot.poller.is_some());
        let ids: Vec<PollerId> =
            ids.map(|(index, slot)| PollerId { index, generation: slot.generation }).collect();
        ids.into_iter().filter_map(|id| self.detach(id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;
    impl Poll for Nothing {
        fn poll(&self) -> bool {
            false
        }
        fn park(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_place_used_again_during_a_pass_is_listed_once() {
        let mut pollers = Pollers::default();
        let first = pollers.attach(Rc::new(Nothing));
        pollers.detach(first);
        let second = pollers.attach(Rc::new(Nothing));
        assert_eq!(pollers.listed(), 1);
        assert_eq!(pollers.at(0).map(|(_, id)| id), Some(second));
        // Late calls with the old id concern nobody.
        pollers.deactivate(first);
        pollers.activate(first);
        assert!(pollers.detach(first).is_none());
        pollers.sweep();
        assert_eq!(pollers.listed(), 1);
        pollers.deactivate(second);
        pollers.sweep();
        assert_eq!(pollers.listed(), 0);
        pollers.activate(second);
        assert_eq!(pollers.listed(), 1);
    }

    #[test]
    fn only_a_crowd_is_impatient() {
        let (mut pollers, mut now) = (Pollers::default(), Instant::now());
        let first = pollers.attach(Rc::new(Nothing));
        for _ in 1..DIRECT_MAX {
            pollers.attach(Rc::new(Nothing));
        }
        assert_eq!(pollers.begin_pass(now), DIRECT_MAX);
        assert!((0..100).all(|_| !pollers.polled(first, false)));
        let last = pollers.attach(Rc::new(Nothing));
        pollers.begin_pass(now);
        assert!(!pollers.polled(first, true));
        assert!((1..PATIENCE).all(|_| !pollers.polled(first, false)));
        assert!(pollers.polled(first, false));
        // It stays a crowd for a spell after some were parked.
        pollers.deactivate(last);
        pollers.sweep();
        now += SPELL / 2;
        pollers.begin_pass(now);
        assert!(pollers.polled(first, false));
        now += SPELL;
        pollers.begin_pass(now);
        assert!(!pollers.polled(first, false));
    }
}
