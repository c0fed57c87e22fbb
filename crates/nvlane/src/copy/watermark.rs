//! How far a copy is: what was finished out of order, and up to where nothing is missing.
//!
//! Pure. A restart begins at [`Watermark::durable`], which only a flush moves on.

use std::collections::BTreeMap;

/// Positions of a copy, in the order in which it goes.
#[derive(Debug, Default)]
pub struct Watermark {
    /// Everything before is copied.
    complete: u64,
    /// What is copied beyond it: from where, to where.
    ahead: BTreeMap<u64, u64>,
    /// Everything before survives a crash.
    durable: u64,
    /// What a flush in progress will make durable.
    flushing: Option<u64>,
}

impl Watermark {
    /// A copy of which everything before `durable` was done before.
    pub fn new(durable: u64) -> Watermark {
        Watermark { complete: durable, durable, ..Watermark::default() }
    }

    /// `from` to `to` is copied now.
    ///
    /// # Panics
    /// In a debug build, if it was before.
    pub fn finished(&mut self, from: u64, to: u64) {
        debug_assert!(from < to && from >= self.complete && !self.ahead.contains_key(&from));
        self.ahead.insert(from, to);
        while let Some(entry) = self.ahead.first_entry() {
            if *entry.key() != self.complete {
                break;
            }
            self.complete = entry.remove();
        }
    }

    /// Everything before is copied.
    pub fn complete(&self) -> u64 {
        self.complete
    }

    /// Everything before is copied and flushed.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// A flush is submitted now.
    pub fn flush_began(&mut self) {
        debug_assert!(self.flushing.is_none(), "one flush at a time");
        self.flushing = Some(self.complete);
    }

    /// It has succeeded on every target, or failed on one; gives the new durable mark.
    pub fn flush_ended(&mut self, succeeded: bool) -> u64 {
        let flushed = self.flushing.take().expect("a flush began");
        if succeeded {
            self.durable = flushed;
        }
        self.durable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_on_when_nothing_is_missing_before() {
        let mut mark = Watermark::new(100);
        mark.finished(120, 130);
        mark.finished(140, 150);
        assert_eq!(mark.complete(), 100);
        mark.finished(100, 120);
        assert_eq!(mark.complete(), 130);
        mark.finished(130, 140);
        assert_eq!((mark.complete(), mark.durable()), (150, 100));
    }

    #[test]
    fn only_what_was_complete_when_a_flush_began_is_durable() {
        let mut mark = Watermark::new(0);
        mark.finished(0, 10);
        mark.finished(20, 30);
        mark.flush_began();
        mark.finished(10, 20);
        assert_eq!(mark.flush_ended(true), 10);
        assert_eq!((mark.complete(), mark.durable()), (30, 10));
        mark.flush_began();
        assert_eq!(mark.flush_ended(false), 10, "a flush that failed promises nothing");
        mark.flush_began();
        assert_eq!(mark.flush_ended(true), 30);
    }

    /// In any order of ends, the mark is the first position that is missing.
    #[test]
    fn any_order_of_ends_gives_the_same() {
        let mut seed = 1u64;
        for _ in 0..200 {
            let mut left: Vec<u64> = (0..20).collect();
            let (mut mark, mut done) = (Watermark::new(0), [false; 20]);
            while !left.is_empty() {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = left.swap_remove((seed >> 33) as usize % left.len());
                mark.finished(at * 7, at * 7 + 7);
                done[at as usize] = true;
                let first = done.iter().position(|done| !done).unwrap_or(20) as u64;
                assert_eq!(mark.complete(), first * 7);
            }
        }
    }
}
