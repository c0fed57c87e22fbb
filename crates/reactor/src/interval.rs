//! What is to be done once in a while, and asked for with each command.

use crate::Reactor;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Ticks of the processor's counter within which the clock is not read again: 13 ms at 5 GHz, 67 ms at 1 GHz.
const TICKS: u64 = 1 << 26;

/// A time that passes again and again. Asking whether it has costs a look at the processor's counter, where one is known,
/// and not at the clock, for which commands would be 1.7 % slower (docs/performance.md); it is told up to 70 ms late.
pub struct Interval {
    period: Duration,
    end: Cell<Instant>,
    /// The counter when the clock was last read.
    read: Cell<u64>,
}

impl Interval {
    /// Begins now.
    pub fn new(period: Duration) -> Interval {
        Interval { period, end: Cell::new(Instant::now() + period), read: Cell::new(0) }
    }

    /// Whether it is over.
    #[inline]
    pub fn is_over(&self, reactor: &Reactor) -> bool {
        let ticks = ticks();
        // A counter that was put back is far away, too.
        if ticks.is_some_and(|ticks| ticks.wrapping_sub(self.read.get()) < TICKS) {
            return false;
        }
        let is_over = self.ends_before(reactor.now());
        if let (false, Some(ticks)) = (is_over, ticks) {
            self.read.set(ticks);
        }
        is_over
    }

    /// Begins again.
    pub fn restart(&self, reactor: &Reactor) {
        self.end.set(reactor.now() + self.period);
    }

    #[cold]
    fn ends_before(&self, now: Instant) -> bool {
        now >= self.end.get()
    }
}

/// Whether some time may have passed since it was told: for who asks so often that the clock costs too much.
#[derive(Default)]
pub struct Moment(Cell<u64>);

impl Moment {
    /// It is now.
    #[inline]
    pub fn tell(&self) {
        self.0.set(ticks().unwrap_or(0));
    }

    /// Whether that may be more than 13 to 67 ms ago, by how quick the processor's counter is; always where none is known.
    #[inline]
    pub fn may_be_past(&self) -> bool {
        // A counter that was put back is far away, too.
        ticks().is_none_or(|ticks| ticks.wrapping_sub(self.0.get()) >= TICKS)
    }
}

/// The processor's counter; none where none is known here.
#[inline(always)]
fn ticks() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all processors of this architecture have it. A process that forbids itself to read it cannot read the clock
    // either, which the kernel takes from there (prctl(2), PR_SET_TSC).
    return Some(unsafe { core::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use std::thread::sleep;

    #[test]
    fn a_moment_passes() {
        let moment = Moment::default();
        assert!(moment.may_be_past(), "it was never told");
        // Only a thread that stands still for so long between the two does not see it.
        let is_now = (0..5).any(|_| {
            moment.tell();
            !moment.may_be_past()
        });
        assert!(is_now || cfg!(not(target_arch = "x86_64")));
        sleep(Duration::from_millis(100));
        assert!(moment.may_be_past());
    }

    #[test]
    fn it_is_over_until_it_begins_again() {
        let reactor = Reactor::new(&Config::default()).expect("a reactor");
        let long = Interval::new(Duration::from_secs(600));
        let short = Interval::new(Duration::from_millis(50));
        for _ in 0..2 {
            sleep(Duration::from_millis(200));
            // The reactor's time is that of its turn.
            reactor.turn_for(crate::Drive::Poll);
            assert!(!long.is_over(&reactor) && !long.is_over(&reactor));
            assert!(short.is_over(&reactor) && short.is_over(&reactor));
            short.restart(&reactor);
            long.restart(&reactor);
        }
        let again = Interval { period: Duration::from_secs(600), ..short };
        again.restart(&reactor);
        sleep(Duration::from_millis(200));
        assert!(!again.is_over(&reactor), "it has begun again");
    }
}
