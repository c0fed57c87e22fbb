//! Which core's queue has which queue id, where a controller may grant fewer than there are cores.

use crate::dial::Dialer;
use crate::queue::Handle;
use std::rc::Rc;
use std::time::Instant;

/// The queues that cores have opened; queue id less one is the place.
#[derive(Default)]
pub(crate) struct Places {
    places: Vec<Place>,
}

#[derive(Default)]
pub(crate) struct Place {
    pub(crate) handle: Option<Handle>,
    pub(crate) dialer: Option<Rc<Dialer>>,
    /// The last association in which the queue id was used.
    pub(crate) used: u64,
    /// When it was closed last.
    closed: Option<Instant>,
}

impl Places {
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn at(&mut self, index: usize) -> &mut Place {
        &mut self.places[index]
    }

    /// The queues' handles, from the lowest queue id on.
    pub(crate) fn handles(&self) -> impl Iterator<Item = &Handle> {
        self.places.iter().filter_map(|place| place.handle.as_ref())
    }

    pub(crate) fn dialers(&self) -> impl Iterator<Item = &Rc<Dialer>> {
        self.places.iter().filter_map(|place| place.dialer.as_ref())
    }

    /// A place for one more queue: of the first `granted`, while association `generation` lives, if one of those is
    /// free.
    pub(crate) fn add(&mut self, handle: Handle, granted: usize, generation: u64) -> usize {
        let index = self.free(granted, generation).or_else(|| {
            let free = self.places.iter().position(|place| place.handle.is_none());
            free.filter(|_| self.places.len() >= granted)
        });
        let index = index.unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() - 1
        });
        self.places[index].handle = Some(handle);
        index
    }

    /// An id that was not used in this association, so that the controller has surely let go of it; where there is
    /// none, the one that was closed first.
    fn free(&self, granted: usize, generation: u64) -> Option<usize> {
        let free = self.places.iter().enumerate().take(granted);
        let free = free.filter(|(_, place)| place.handle.is_none());
        let reused = |place: &Place| place.used == generation;
        let (index, place) = free.min_by_key(|(_, place)| (reused(place), place.closed))?;
        (!reused(place) || self.places.len() >= granted).then_some(index)
    }

    /// The queue `key` is closed.
    pub(crate) fn remove(&mut self, key: u64, now: Instant) {
        for place in &mut self.places {
            if place.handle.as_ref().is_some_and(|handle| handle.key() == key) {
                *place = Place { used: place.used, closed: Some(now), ..Place::default() };
            }
        }
    }

    /// Moves a queue from beyond the first `granted` places to one of those that is free. Where it is then.
    pub(crate) fn seat(&mut self, granted: usize, generation: u64) -> Option<usize> {
        let beyond = self.places.iter().enumerate().skip(granted);
        let from =
            beyond.filter(|(_, place)| place.handle.is_some()).map(|(index, _)| index).next()?;
        let to = self.free(granted, generation)?;
        self.places[to].handle = std::mem::take(&mut self.places[from]).handle;
        Some(to)
    }
}
