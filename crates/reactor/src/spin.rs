//! When to spin before sleeping: adapts to the gaps between pieces of work.

use std::time::{Duration, Instant};

/// Going to sleep and being woken lengthens a gap by about this much.
const WAKE: Duration = Duration::from_micros(20);

/// Credit moves between 0 and this.
const CREDIT_MAX: u32 = 8;
/// Spin only with this much credit.
const CREDIT_SPIN: u32 = 2;
/// What a spin that met work earns. One that met none costs 1, so that spinning goes on as long
/// as more than a third of the spins meet work.
const REWARD: u32 = 2;

/// Without credit, every so many gaps one is spun into all the same: being asleep makes gaps longer
/// than they would be, so that their length alone does not tell that spinning would pay.
const PROBE_EVERY: u32 = 16;

/// Longer spins than that are cut.
const LIMIT_MAX: Duration = Duration::from_secs(3600);

/// Decides about each gap, from the last work to the next, whether to spin into it.
pub struct Spin {
    limit: Duration,
    credit: u32,
    gap: Option<Gap>,
    slept: bool,
    /// Gaps slept through since the last probe, and whether this one is a probe.
    unprobed: u32,
    probing: bool,
    /// Spins that met no work.
    pub fruitless: u64,
}

/// The time since the last work.
#[derive(Clone, Copy)]
struct Gap {
    /// When a spin that began with it ends.
    spun_until: Instant,
}

impl Spin {
    pub fn new(limit: Duration) -> Spin {
        Spin {
            limit: limit.min(LIMIT_MAX),
            credit: CREDIT_MAX,
            gap: None,
            slept: false,
            unprobed: 0,
            probing: false,
            fruitless: 0,
        }
    }

    /// A turn did something. `now` gives the time, where it matters.
    #[inline]
    pub fn worked(&mut self, now: impl FnOnce() -> Instant) {
        if let Some(gap) = self.gap {
            self.gap = None;
            self.judge(gap, now);
        }
    }

    /// A turn did nothing. Whether to go on spinning.
    #[inline]
    pub fn idled(&mut self, now: impl FnOnce() -> Instant) -> bool {
        !self.limit.is_zero() && self.goes_on(now())
    }

    fn goes_on(&mut self, now: Instant) -> bool {
        let gap = match self.gap {
            Some(gap) => gap,
            None => {
                self.probing = self.credit < CREDIT_SPIN && self.unprobed >= PROBE_EVERY;
                *self.gap.insert(Gap { spun_until: now + self.limit })
            }
        };
        (self.credit >= CREDIT_SPIN || self.probing) && !self.slept && now < gap.spun_until
    }

    /// The loop goes to sleep.
    #[inline]
    pub fn sleeps(&mut self) {
        if self.limit.is_zero() {
            return;
        }
        if !self.slept {
            if self.credit >= CREDIT_SPIN || self.probing {
                self.credit = self.credit.saturating_sub(1);
                self.fruitless += 1;
                self.unprobed = 0;
            } else {
                self.unprobed += 1;
            }
        }
        self.slept = true;
    }

    /// A gap has ended.
    fn judge(&mut self, gap: Gap, now: impl FnOnce() -> Instant) {
        let slept = std::mem::take(&mut self.slept);
        self.probing = false;
        // Slept and yet soon woken: a spin would have met the work.
        if !slept || (self.credit < CREDIT_SPIN && now() < gap.spun_until + WAKE) {
            self.credit = (self.credit + REWARD).min(CREDIT_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// Lets `gap` pass in turns of 1 us, sleeping as told; whether it was slept through.
    fn pass(spin: &mut Spin, now: &mut Instant, gap: Duration) -> bool {
        let end = *now + gap;
        let mut slept = false;
        while *now < end {
            if spin.idled(|| *now) {
                *now += US;
            } else {
                spin.sleeps();
                slept = true;
                *now = end + 10 * US;
            }
        }
        spin.worked(|| *now);
        slept
    }

    #[test]
    fn short_gaps_are_spun_through() {
        let (mut spin, mut now) = (Spin::new(20 * US), Instant::now());
        assert!((0..100).all(|_| !pass(&mut spin, &mut now, 10 * US)));
        assert_eq!(spin.fruitless, 0);
    }

    #[test]
    fn long_gaps_end_the_spinning_and_a_short_one_starts_it_again() {
        let (mut spin, mut now) = (Spin::new(20 * US), Instant::now());
        assert!((0..100).all(|_| pass(&mut spin, &mut now, 500 * US)));
        let probes = 100 / u64::from(PROBE_EVERY);
        assert!(spin.fruitless <= u64::from(CREDIT_MAX) + probes, "{}", spin.fruitless);
        // The first may be slept through, as nothing announced it.
        pass(&mut spin, &mut now, 10 * US);
        assert!((0..100).all(|_| !pass(&mut spin, &mut now, 10 * US)));
    }

    /// Gaps that sleeping makes longer than the limit, though they would be short: a batch whose
    /// next comes 15 us after its answer, and 90 us after a sleep.
    #[test]
    fn sleep_that_lengthens_gaps_does_not_last() {
        let (mut spin, mut now) = (Spin::new(20 * US), Instant::now());
        (0..CREDIT_MAX + 2).for_each(|_| assert!(pass(&mut spin, &mut now, 200 * US)));
        let mut slept = 0;
        for _ in 0..100 {
            let spins = spin.credit >= CREDIT_SPIN || spin.unprobed >= PROBE_EVERY;
            slept += u32::from(pass(&mut spin, &mut now, if spins { 15 * US } else { 90 * US }));
        }
        assert!(slept <= PROBE_EVERY + 1, "{slept} of 100 gaps were slept through");
    }

    #[test]
    fn the_clock_is_read_only_where_the_time_matters() {
        let unread = || -> Instant { panic!("nobody needs the time") };
        let mut never = Spin::new(Duration::ZERO);
        assert!(!never.idled(unread));
        never.sleeps();
        never.worked(unread);
        // One turn after the other does something.
        let mut busy = Spin::new(20 * US);
        (0..100).for_each(|_| busy.worked(unread));
        // A gap that was spun through need not be measured either.
        let now = Instant::now();
        assert!(busy.idled(|| now));
        busy.worked(unread);
    }

    #[test]
    fn a_limit_beyond_all_time_is_cut() {
        let (mut spin, now) = (Spin::new(Duration::MAX), Instant::now());
        assert!(spin.idled(|| now));
        assert!(spin.idled(|| now + LIMIT_MAX / 2) && !spin.idled(|| now + LIMIT_MAX));
    }

    #[test]
    fn without_a_limit_there_is_no_spinning() {
        let (mut spin, mut now) = (Spin::new(Duration::ZERO), Instant::now());
        assert!((0..10).all(|_| pass(&mut spin, &mut now, US)));
        assert_eq!(spin.fruitless, 0);
    }
}
