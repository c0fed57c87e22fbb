//! How far a copy is, on a terminal.

use super::shared::{Counts, Phase};
use crate::session::Progress;
use std::time::Instant;

/// A line that is written again and again, and taken away in the end.
pub struct Line {
    copying: Progress,
    verifying: Option<Progress>,
}

impl Line {
    /// Of a copy that begins now.
    pub fn new() -> Line {
        Line { copying: Progress::new("copied", None), verifying: None }
    }

    /// So far it is. `rate` is in bytes per second, where it is known; otherwise it is that since the beginning.
    pub fn update(&mut self, phase: Phase, counts: &Counts, rate: Option<u64>) {
        let (line, done) = match phase {
            Phase::Copying | Phase::Flushing => (&mut self.copying, counts.done_bytes),
            Phase::Verifying => {
                self.copying.end();
                let line = || Progress::new("compared", None);
                (self.verifying.get_or_insert_with(line), counts.verified_bytes)
            }
        };
        line.set_total(counts.total_bytes);
        match rate {
            Some(rate) => line.update_at(Instant::now(), done, rate as f64),
            None => line.update(Instant::now(), done),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.copying.end();
        if let Some(line) = &mut self.verifying {
            line.end();
        }
    }
}
