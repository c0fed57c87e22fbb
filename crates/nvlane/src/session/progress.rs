//! How far a command is, on a terminal.

use crate::size;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// How often it is written.
const INTERVAL: Duration = Duration::from_millis(500);

/// Bytes done of bytes to do.
pub struct Progress {
    /// None where nobody watches.
    shown: Option<Shown>,
    what: &'static str,
    total: Option<u64>,
    started: Instant,
}

struct Shown {
    next: Instant,
    width: usize,
}

impl Progress {
    /// Of `what` (`"read"`), of which there are `total` bytes if that is known.
    pub fn new(what: &'static str, total: Option<u64>) -> Progress {
        Progress::shown(what, total, stderr().is_terminal())
    }

    /// The same, if it `is_shown`.
    pub fn shown(what: &'static str, total: Option<u64>, is_shown: bool) -> Progress {
        let started = Instant::now();
        let shown = is_shown.then(|| Shown { next: started + INTERVAL, width: 0 });
        Progress { shown, what, total, started }
    }

    /// There are so many bytes to do, as is known by now.
    pub fn set_total(&mut self, total: u64) {
        self.total = Some(total);
    }

    /// So many bytes are done since it was made.
    pub fn update(&mut self, now: Instant, done: u64) {
        let elapsed = now.duration_since(self.started).as_secs_f64();
        self.update_at(now, done, done as f64 / elapsed.max(1e-9));
    }

    /// So many bytes are done, and so many of a second.
    pub fn update_at(&mut self, now: Instant, done: u64, rate: f64) {
        let Some(shown) = self.shown.as_mut().filter(|shown| now >= shown.next) else { return };
        shown.next = now + INTERVAL;
        let line = line(self.what, done, self.total, rate);
        let width = shown.width.max(line.len());
        shown.width = line.len();
        // A terminal that cannot be written to has nobody before it.
        let _ = write!(stderr(), "\r{line:width$}");
    }

    /// Takes the line away.
    pub fn end(&mut self) {
        if let Some(Shown { width, .. }) = self.shown.take().filter(|shown| shown.width > 0) {
            let _ = write!(stderr(), "\r{:width$}\r", "");
        }
    }
}

fn line(what: &str, done: u64, total: Option<u64>, rate: f64) -> String {
    let of = match total {
        Some(total) if total > 0 => {
            let percent = u128::from(done) * 100 / u128::from(total);
            format!(" of {} ({percent} %)", size::format(total))
        }
        _ => String::new(),
    };
    let left = match total {
        Some(total) if rate >= 1.0 && total > done => {
            let seconds = (total - done) as f64 / rate;
            format!(", {} left", time(seconds.round() as u64))
        }
        _ => String::new(),
    };
    let (done, rate) = (size::format(done), size::format(rate as u64));
    format!("{done}{of} {what}, {rate}/s{left}").replace("about ", "")
}

/// `7 s`, `3:07`, `1:03:07`.
fn time(seconds: u64) -> String {
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes}:{:02}", seconds % 60),
        _ => format!("{hours}:{minutes:02}:{:02}", seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::{line, time};

    #[test]
    fn a_line_says_how_far_and_how_fast() {
        assert_eq!(
            line("read", 1 << 30, Some(4 << 30), f64::from(512 << 20)),
            "1 GiB of 4 GiB (25 %) read, 512 MiB/s, 6 s left"
        );
        assert_eq!(line("written", 0, None, 0.0), "0 B written, 0 B/s");
        assert_eq!([time(59), time(187), time(3787)], ["59 s", "3:07", "1:03:07"]);
    }
}
