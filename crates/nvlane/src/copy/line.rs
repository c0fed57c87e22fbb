//! How far a copy is, on a terminal; and for programs.

use super::shared::{Counts, Phase};
use crate::session::Progress;
use std::fs::File;
use std::io::{IsTerminal, Write, stderr};
use std::time::Instant;

/// A line that is written again and again, and taken away in the end.
pub struct Line {
    is_shown: bool,
    copying: Progress,
    verifying: Option<Progress>,
}

impl Line {
    /// Of a copy that begins now; `always` shows it where there is no terminal, too.
    pub fn new(always: bool) -> Line {
        let is_shown = always || stderr().is_terminal();
        Line { is_shown, copying: Progress::shown("copied", None, is_shown), verifying: None }
    }

    /// So far it is. `rate` is in bytes per second, where it is known; otherwise it is that since the beginning.
    pub fn update(&mut self, phase: Phase, counts: &Counts, rate: Option<u64>) {
        let (line, done) = match phase {
            Phase::Copying | Phase::Flushing => (&mut self.copying, counts.done_bytes),
            Phase::Verifying => {
                self.copying.end();
                let line = || Progress::shown("compared", None, self.is_shown);
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

/// Percents, a line of nbdcopy's each.
pub struct Percents {
    file: File,
    last: Option<u64>,
}

impl Percents {
    /// To whoever has asked for them.
    pub fn to(file: File) -> Percents {
        Percents { file, last: None }
    }

    /// So far it is.
    pub fn update(&mut self, counts: &Counts) {
        let percent = counts.done_bytes.saturating_mul(100) / counts.total_bytes.max(1);
        if self.last.replace(percent) != Some(percent) {
            // Who has gone needs none.
            let _ = self.file.write_all(format!("{percent}/100\n").as_bytes());
        }
    }
}
