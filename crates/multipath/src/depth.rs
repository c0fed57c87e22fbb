//! Commands in flight of all cores of a host, for queue-depth.
//!
//! Linux counts them per controller, in one atomic number that every processor changes with every command. Counts of each
//! core's own would have cores with one command in flight each all take the first path. So it is the same here, and the only
//! thing of a choice that cores write together; under other policies nobody counts. What a core has in flight when it changes to
//! this one it adds then.

use crate::probe::Shared;
use crate::{PATHS_MAX, PathSet};
use std::sync::Arc;

/// One core's part of the count: under queue-depth all that it has in flight, otherwise nothing. Dropped, it takes that back.
#[derive(Debug)]
pub struct Counted {
    own: [u32; PATHS_MAX],
    shared: Arc<Shared>,
}

impl Counted {
    pub fn new(shared: Arc<Shared>) -> Counted {
        Counted { own: [0; PATHS_MAX], shared }
    }

    /// The path that has the fewest; the first of several.
    #[inline]
    pub fn least(&self, candidates: PathSet) -> Option<usize> {
        candidates.min_by_key(|&path| self.shared.active(path))
    }

    /// One more.
    #[inline]
    pub fn begin(&mut self, path: usize) {
        self.own[path] += 1;
        self.shared.count(path, 1);
    }

    /// All of these have begun; none was counted.
    pub fn begin_all(&mut self, in_flight: &[u32; PATHS_MAX]) {
        self.own = *in_flight;
        self.own.iter().enumerate().for_each(|(path, &own)| self.shared.count(path, own));
    }

    /// None counts any more.
    pub fn end_all(&mut self) {
        self.own.iter().enumerate().for_each(|(path, &own)| self.shared.discount(path, own));
        self.own = [0; PATHS_MAX];
    }

    /// One that has begun has ended.
    #[inline]
    pub fn end(&mut self, path: usize) {
        self.own[path] -= 1;
        self.shared.discount(path, 1);
    }
}

/// Has the same in flight.
impl Clone for Counted {
    fn clone(&self) -> Counted {
        self.own.iter().enumerate().for_each(|(path, &own)| self.shared.count(path, own));
        Counted { own: self.own, shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.end_all();
    }
}
