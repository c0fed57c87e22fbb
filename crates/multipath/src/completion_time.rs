//! completion-time: chooses the path that is expected to complete this command first.
//!
//! ```text
//!   T = max(L + (Q + w - Qb) / B, l0)     L   smoothed latency
//!                                         Qb  smoothed work that was in flight around those samples
//!   silent longer than T:                 Q   work in flight now,  w  of this command
//!   T = silence x (1 + n / 10)            B   rate at which the path delivers work
//!                                         l0  least latency of the last seconds
//!                                         n   commands in flight
//! ```
//!
//! B is the fastest that was seen, unless the queue says otherwise: with Qb in flight the latency is L
//! instead of l0, so the path works at Qb / (L - l0) then. A link that lets bursts through (a token
//! bucket, a large window) delivers some work at once and the rest at its own pace; without the second
//! rate it would seem that one more command costs it nothing.
//!
//! Work is bytes plus [`WORK_OVERHEAD`] per command, so one line through (work, time) serves 4 KiB
//! and 1 MiB alike. All is kept per core, path and group: reads of a path do not wait behind its
//! writes where bandwidth differs by direction.
//!
//! Paths that are as good as another are taken in turn, by turns of the caller: his commands of one moment go together. As
//! good is the same time; of a path with nothing in flight it is a tenth more than the best, or as much more as the smoothed
//! latency may be wrong by ([`ERRORS`]). What few commands have told of a queue that others use, too, is chance for the most part,
//! and old: were it believed, all who heard the same would go where it was a little shorter.
//!
//! A path that is chosen no more is measured no more. Reads are helped by probes (`probe`), other
//! groups by giving one command in [`REFRESH_EVERY`] to a path whose estimate is old. That command is
//! a user's. So where reads tell that the path is farther than the best one by more than a command
//! takes there, it is spent rarely enough to cost a thousandth of the time.

use crate::PATHS_MAX;
use crate::selector::Token;
use crate::set::PathSet;

/// Work of a command beside its bytes.
pub const WORK_OVERHEAD: u64 = 4096;
/// Samples that end a batch before its time.
const BATCH_SAMPLES: u32 = 64;
/// An idle path that is expected to take so little more than the best one, as a part of that, is as good: with few commands
/// a path, what is known of each differs by as much from host to host, and all would go where it is a little better.
const AS_GOOD: f64 = 0.1;
/// The same, in standard errors of the smoothed latency.
const ERRORS: f64 = 1.5;
/// What the last batch counts for, at most, where it is noted how far batches are from what was expected.
const DEVIATION_SHARE_MAX: f64 = 0.75;
/// A sample counts as at most so many smoothed latencies: one lost packet is no trend.
const CLIP: f64 = 8.0;
/// Work in flight counts as a queue from so many commands on.
const QUEUE_MIN: f64 = 2.0;
/// Half-life of a delivery rate that is not reached again.
const RATE_HALF_LIFE_NS: f64 = 1e9;
/// The least latency is that of this long at least and twice this long at most.
const LEAST_BUCKET_NS: u64 = 2_500_000_000;
/// Commands given to a path that has never answered, until it does, while others have.
const UNKNOWN_MAX: u32 = 8;
/// Expected time of a command on such a path, per command in flight.
const UNKNOWN_NS: f64 = 1_000.0;
/// A rank behind every measured time: more than a century.
const LAST_NS: f64 = 4e18;
/// Every so many commands of a group other than reads, a path with an old estimate may have its turn.
const REFRESH_EVERY: u32 = 1024;
/// The same where a command takes longer than [`SLOW_NS`].
const REFRESH_EVERY_SLOW: u32 = 32;
/// How old that is.
const REFRESH_AGE_NS: u64 = 400_000_000;
/// A command on a path that reads show to be farther may cost one part in so many of the time since
/// the last.
const REFRESH_SHARE: u64 = 1000;
/// The same, by what the path took last, of a refresh that comes early since commands are slow.
const REFRESH_SHARE_SLOW: u64 = 16;
/// What reads tell of a path is believed for so long.
const READS_AGE_NS: u64 = 10_000_000_000;
/// Commands that take longer are few, even if many are in flight: counts of them are no measure.
pub const SLOW_NS: f64 = 100e6;
/// What a path that fails commands is thought to take at first, and at most.
const FAILED_NS: f64 = 1e6;
const FAILED_NS_MAX: f64 = 1e9;

/// What is known of one path in one group.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    forecast: Forecast,
    /// Smoothed work in flight when the samples of the smoothed latency were sent.
    pub backlog: f64,
    /// Work in flight.
    pub queued: u64,
    /// Commands in flight.
    pub in_flight: u32,
    /// Work delivered since the beginning.
    delivered: u64,
    rate_ns: u64,
    /// Nanoseconds per unit of work at the fastest that was seen.
    fastest: f64,
    /// The same by the queue: what a unit in flight adds to the latency.
    by_queue: f64,
    least_now_ns: f64,
    least_before_ns: f64,
    least_began_ns: u64,
    batch_began_ns: u64,
    batch_latency_ns: f64,
    batch_backlog: f64,
    batch_work: f64,
    batch_samples: u32,
    /// How far the latencies of batches are from the smoothed one.
    deviation_ns: f64,
    /// Others are no better that are expected to take so much less.
    margin_ns: f64,
    /// Samples that were cut to [`CLIP`] smoothed latencies.
    pub clipped: u64,
    /// When the smoothed latency changed last.
    pub updated_ns: u64,
    /// The path has failed commands and answered none since: the latency is a penalty.
    failing: bool,
}

/// What a choice looks at, for each path; the rest is prepared when commands are sent and end.
#[derive(Clone, Copy, Debug)]
struct Forecast {
    /// Smoothed latency; 0 before the first sample.
    latency_ns: f64,
    /// Work in flight beyond the backlog that the latency comes with.
    excess: f64,
    /// Nanoseconds per unit of work delivered; infinite where no rate is known.
    inverse_rate: f64,
    least_ns: f64,
    /// Since when the path has owed an answer: when a command ended last, or the first of those in
    /// flight was sent; infinite if it owes none.
    silent_since_ns: f64,
}

/// The paths of one group on one core.
#[derive(Clone, Debug)]
pub struct Estimates {
    paths: [Estimate; PATHS_MAX],
    /// Selections, for [`REFRESH_EVERY`].
    selections: u32,
    /// The path that was looked at first, and when.
    rotation: usize,
    asked_ns: u64,
}

impl Default for Estimates {
    fn default() -> Estimates {
        let paths = [Estimate::UNKNOWN; PATHS_MAX];
        Estimates { paths, selections: 0, rotation: 0, asked_ns: 0 }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Paths to choose from, one at least.
    pub candidates: PathSet,
    /// Those of them that are farther away than the nearest.
    pub remote: PathSet,
    /// How many paths there are at all.
    pub paths: usize,
    /// Of the command.
    pub work: u64,
    /// The time.
    pub now_ns: u64,
    /// Added to remote paths.
    pub numa_bias_ns: f64,
    /// Whether paths with old estimates are to have their turn: nobody probes this group.
    pub refreshes: bool,
}

impl Estimates {
    /// The path with the least expected time. Of paths that are not known `stand_in` may know, or `reads`; those
    /// tell also which paths are worth a command.
    #[inline]
    pub fn select(&mut self, demand: &Demand, stand_in: &Estimates, reads: &Estimates) -> usize {
        // Whoever is as good is served in turn: start at another path each time, but at the same for all commands of
        // one moment, which then go together.
        let paths = demand.paths;
        let mut start = self.rotation + usize::from(demand.now_ns != self.asked_ns);
        start = if start >= paths { 0 } else { start };
        self.rotation = start;
        self.asked_ns = demand.now_ns;
        let bits = u32::from(demand.candidates.0);
        let mut rest = bits >> start | (bits & ((1 << start) - 1)) << (paths - start);
        let question = Question::new(demand);
        let (mut best, mut best_ns, mut better_ns) = (0, f64::INFINITY, f64::INFINITY);
        while rest != 0 {
            let turned = rest.trailing_zeros() as usize + start;
            rest &= rest - 1;
            let path = if turned >= paths { turned - paths } else { turned };
            let own = &self.paths[path];
            let mut time_ns = own.forecast.time_ns(&question);
            let silent_ns = question.now_ns - own.forecast.silent_since_ns;
            if own.forecast.latency_ns == 0.0 || time_ns < silent_ns {
                time_ns = own.special_ns([&stand_in.paths[path], &reads.paths[path]], &question);
            }
            if demand.remote.contains(path) {
                time_ns += demand.numa_bias_ns;
            }
            // Without a branch, which would be foreseen in half of the cases at best.
            best = if time_ns < better_ns { path } else { best };
            best_ns = if time_ns < better_ns { time_ns } else { best_ns };
            let margin_ns = if own.in_flight == 0 { own.margin_ns } else { 0.0 };
            better_ns = if time_ns < better_ns { time_ns - margin_ns } else { better_ns };
        }
        if demand.refreshes {
            self.selections += 1;
            if self.selections >= REFRESH_EVERY_SLOW
                && (self.selections >= REFRESH_EVERY || best_ns > SLOW_NS)
            {
                return self.refresh(demand, reads, best, best_ns);
            }
        }
        best
    }

    /// Notes a command sent.
    #[inline]
    pub fn submitted(&mut self, token: &Token) {
        let path = &mut self.paths[token.path()];
        path.queued += token.work;
        if path.in_flight == 0 {
            path.forecast.silent_since_ns = token.sent_ns as f64;
        }
        path.in_flight += 1;
        path.forecast.excess += token.work as f64;
    }

    /// Takes back a command that is no longer in flight.
    #[inline]
    pub fn ended(&mut self, token: &Token, now_ns: u64) {
        let path = &mut self.paths[token.path()];
        path.queued -= token.work;
        path.in_flight -= 1;
        path.forecast.silent_since_ns =
            if path.in_flight == 0 { f64::INFINITY } else { now_ns as f64 };
        path.forecast.excess = path.queued as f64 - path.backlog;
    }

    /// Learns from a command that was answered, after [`Estimates::ended`].
    #[inline]
    pub fn sample(&mut self, token: &Token, now_ns: u64, batch_ns: u64, ewma_shift: u8) {
        let path = &mut self.paths[token.path()];
        let latency_ns = now_ns.saturating_sub(token.sent_ns).max(1) as f64;
        if path.failing {
            path.forgive();
        }
        path.delivered += token.work;
        path.rate_sample(latency_ns / (path.delivered - token.delivered) as f64, now_ns);
        path.least_sample(latency_ns, now_ns);
        let smoothed_ns = path.forecast.latency_ns;
        if token.probe && smoothed_ns > 2.0 * latency_ns {
            return path.rebound(token, latency_ns, now_ns);
        }
        if smoothed_ns > 0.0 && latency_ns > CLIP * smoothed_ns {
            path.clipped += 1;
            path.batch_latency_ns += CLIP * smoothed_ns;
            path.batch_backlog += token.queued as f64 * (CLIP * smoothed_ns / latency_ns);
        } else {
            path.batch_latency_ns += latency_ns;
            path.batch_backlog += token.queued as f64;
        }
        path.batch_work += token.work as i64 as f64;
        path.batch_samples += 1;
        let elapsed_ns = now_ns.saturating_sub(path.batch_began_ns);
        if smoothed_ns == 0.0 || elapsed_ns >= batch_ns || path.batch_samples >= BATCH_SAMPLES {
            path.end_batch(now_ns, elapsed_ns, batch_ns, ewma_shift);
        }
    }

    /// Learns that the path failed a command. A path that fails at once would look fast: what it is
    /// thought to take doubles, until it answers a probe or a refresh.
    pub fn failed(&mut self, path: usize, now_ns: u64) {
        let path = &mut self.paths[path];
        let penalty_ns = (path.forecast.latency_ns * 2.0).clamp(FAILED_NS, FAILED_NS_MAX);
        path.assume(penalty_ns, now_ns);
        path.slow_down();
        path.failing = true;
    }

    /// The path has answered in another group: what it is thought to take for its failures alone
    /// is forgotten.
    pub fn forgive(&mut self, path: usize) {
        let path = &mut self.paths[path];
        if path.failing {
            path.forgive();
        }
    }

    /// A path has come back: it keeps its estimate, but starts slowly. What it failed when it was
    /// lost says nothing of what it is now: such an estimate is forgotten.
    pub fn returned(&mut self, path: usize) {
        let path = &mut self.paths[path];
        path.slow_down();
        if path.failing {
            path.forgive();
        }
    }

    /// Takes over what a sibling core has measured with a probe of `work`.
    pub fn told(&mut self, path: usize, latency_ns: u64, work: u64, now_ns: u64) {
        let path = &mut self.paths[path];
        let latency_ns = latency_ns.max(1) as f64;
        path.assume(latency_ns, now_ns);
        path.fastest = latency_ns / work as f64;
        path.rate_ns = now_ns;
        path.settle_rate();
    }

    /// Forgets what was learned, not what is in flight.
    pub fn reset(&mut self) {
        for path in &mut self.paths {
            let silent_since_ns = path.forecast.silent_since_ns;
            let Estimate { queued, in_flight, delivered, .. } = *path;
            *path = Estimate { queued, in_flight, delivered, ..Estimate::UNKNOWN };
            path.forecast.silent_since_ns = silent_since_ns;
            path.forecast.excess = queued as f64;
        }
    }

    /// What is known of `path`.
    pub fn path(&self, path: usize) -> &Estimate {
        &self.paths[path]
    }

    /// Work delivered by `path` so far, to be kept with a command.
    #[inline]
    pub fn delivered(&self, path: usize) -> u64 {
        self.paths[path].delivered
    }

    /// The path with the oldest estimate, if that is old enough and the path may be better than the
    /// best one by now.
    #[cold]
    fn refresh(&mut self, demand: &Demand, reads: &Estimates, best: usize, best_ns: f64) -> usize {
        let is_early = self.selections < REFRESH_EVERY;
        let now_ns = demand.now_ns;
        let best_reads = &reads.paths[best];
        // Nothing is far from a path of which nothing is known.
        let nearest_ns =
            if best_reads.is_fresh(now_ns) { best_reads.least_ns() } else { f64::INFINITY };
        let may_be_better = demand.candidates.filter(|&path| {
            let own = &self.paths[path];
            let age_ns = now_ns.saturating_sub(own.updated_ns);
            let affordable_ns = best_ns.max((age_ns / REFRESH_SHARE) as f64);
            let early_ns = (age_ns / REFRESH_SHARE_SLOW) as f64;
            own.in_flight == 0
                && age_ns > REFRESH_AGE_NS
                && (!is_early || own.forecast.latency_ns - best_ns <= early_ns)
                && reads.paths[path].at_least_ns(now_ns) - nearest_ns <= affordable_ns
        });
        let oldest = may_be_better.min_by_key(|&path| self.paths[path].updated_ns);
        if oldest.is_some() || !is_early {
            self.selections = 0;
        }
        oldest.unwrap_or(best)
    }
}

/// A demand as numbers that are the same for every path.
struct Question {
    work: f64,
    twice_per_work: f64,
    now_ns: f64,
}

impl Question {
    #[inline]
    fn new(demand: &Demand) -> Question {
        // By way of signed numbers, which convert faster.
        let work = demand.work as i64 as f64;
        Question { work, twice_per_work: 2.0 / work, now_ns: demand.now_ns as i64 as f64 }
    }
}

impl Forecast {
    /// Expected time of a command, by what is known and in flight.
    #[inline]
    fn time_ns(&self, question: &Question) -> f64 {
        // A rate below half of work / L contradicts L. Comparisons are spelled out here because
        // `f64::min` costs more, for the sake of what is no number.
        let slowest = question.twice_per_work * self.latency_ns;
        let inverse_rate = if self.inverse_rate < slowest { self.inverse_rate } else { slowest };
        let time_ns = self.latency_ns + (self.excess + question.work) * inverse_rate;
        if time_ns > self.least_ns { time_ns } else { self.least_ns }
    }
}

impl Estimate {
    const UNKNOWN: Estimate = Estimate {
        forecast: Forecast {
            latency_ns: 0.0,
            excess: 0.0,
            inverse_rate: f64::INFINITY,
            least_ns: 0.0,
            silent_since_ns: f64::INFINITY,
        },
        backlog: 0.0,
        queued: 0,
        in_flight: 0,
        delivered: 0,
        rate_ns: 0,
        fastest: f64::INFINITY,
        by_queue: 0.0,
        least_now_ns: 0.0,
        least_before_ns: 0.0,
        least_began_ns: 0,
        batch_began_ns: 0,
        batch_latency_ns: 0.0,
        batch_backlog: 0.0,
        batch_work: 0.0,
        batch_samples: 0,
        deviation_ns: 0.0,
        margin_ns: 0.0,
        clipped: 0,
        updated_ns: 0,
        failing: false,
    };

    /// Smoothed latency in nanoseconds; 0 before the first sample.
    pub fn latency_ns(&self) -> f64 {
        self.forecast.latency_ns
    }

    /// Work delivered per second; 0 if that is not known.
    pub fn rate_per_second(&self) -> f64 {
        1e9 / self.forecast.inverse_rate
    }

    /// Least latency of the last seconds.
    pub fn least_ns(&self) -> f64 {
        self.forecast.least_ns
    }

    /// Nanoseconds since anything was heard of the path, if it owes an answer.
    pub fn silent_ns(&self, now_ns: u64) -> u64 {
        (now_ns as f64 - self.forecast.silent_since_ns).max(0.0) as u64
    }

    /// Whether it was measured lately.
    fn is_fresh(&self, now_ns: u64) -> bool {
        let age_ns = now_ns.saturating_sub(self.updated_ns);
        self.forecast.latency_ns > 0.0 && !self.failing && age_ns < READS_AGE_NS
    }

    /// What a command takes even if nothing is in its way, as far as that is known; one that is
    /// still on its way tells as well.
    fn at_least_ns(&self, now_ns: u64) -> f64 {
        let least_ns = if self.is_fresh(now_ns) { self.forecast.least_ns } else { 0.0 };
        least_ns.max(self.silent_ns(now_ns) as f64)
    }

    /// Expected time where the path is silent for longer than was expected, or where nothing was
    /// measured in this group: the first of `stand_ins` that knows is asked then.
    #[cold]
    fn special_ns(&self, stand_ins: [&Estimate; 2], question: &Question) -> f64 {
        let own = &self.forecast;
        let stand_in = stand_ins.into_iter().find(|other| other.forecast.latency_ns > 0.0);
        let time_ns = if own.latency_ns > 0.0 {
            own.time_ns(question)
        } else if let Some(stand_in) = stand_in {
            // What that group knows, with what is in flight here.
            let excess = self.queued as f64 - stand_in.backlog;
            Forecast { excess, ..stand_in.forecast }.time_ns(question)
        } else {
            let waiting = UNKNOWN_NS * f64::from(self.in_flight);
            // It may be slow or dead: not everything is staked on it. Above `LAST_NS` a double
            // counts in steps of 512.
            return if self.in_flight < UNKNOWN_MAX { waiting } else { LAST_NS + waiting };
        };
        let silent_ns = question.now_ns - own.silent_since_ns;
        if silent_ns > time_ns {
            return silent_ns * (1.0 + 0.1 * f64::from(self.in_flight));
        }
        time_ns
    }

    /// Takes a sample of nanoseconds per unit of work.
    #[inline]
    fn rate_sample(&mut self, inverse_rate: f64, now_ns: u64) {
        let age = now_ns.saturating_sub(self.rate_ns) as i64 as f64 * (1.0 / RATE_HALF_LIFE_NS);
        // 2^age; the tangent is good to one in a million for a millisecond.
        let faded = if age < 1e-3 { 1.0 + age * std::f64::consts::LN_2 } else { age.exp2() };
        let former = self.fastest * faded;
        self.fastest = if inverse_rate < former { inverse_rate } else { former };
        self.rate_ns = now_ns;
        self.settle_rate();
    }

    /// The slower of both rates holds.
    #[inline]
    fn settle_rate(&mut self) {
        let (fastest, by_queue) = (self.fastest, self.by_queue);
        self.forecast.inverse_rate = if by_queue > fastest { by_queue } else { fastest };
    }

    #[inline]
    fn least_sample(&mut self, latency_ns: f64, now_ns: u64) {
        if self.forecast.least_ns == 0.0
            || now_ns.saturating_sub(self.least_began_ns) >= LEAST_BUCKET_NS
        {
            return self.next_bucket(latency_ns, now_ns);
        }
        if latency_ns < self.least_now_ns {
            self.least_now_ns = latency_ns;
            self.forecast.least_ns = self.forecast.least_ns.min(latency_ns);
        }
    }

    #[cold]
    fn next_bucket(&mut self, latency_ns: f64, now_ns: u64) {
        let first = self.forecast.least_ns == 0.0;
        // A bucket that ended long ago says nothing any more.
        let stale = now_ns.saturating_sub(self.least_began_ns) >= 2 * LEAST_BUCKET_NS;
        self.least_before_ns = if first || stale { latency_ns } else { self.least_now_ns };
        self.least_now_ns = latency_ns;
        self.least_began_ns = now_ns;
        self.forecast.least_ns = self.least_now_ns.min(self.least_before_ns);
    }

    #[cold]
    fn end_batch(&mut self, now_ns: u64, elapsed_ns: u64, batch_ns: u64, ewma_shift: u8) {
        let samples = f64::from(self.batch_samples);
        let latency_ns = self.batch_latency_ns / samples;
        let backlog = self.batch_backlog / samples;
        let share = if self.forecast.latency_ns == 0.0 {
            1.0
        } else {
            // As many steps as batches had time for, so that a quiet path is not an inert one.
            let steps = (elapsed_ns / batch_ns.max(1)).clamp(1, 64) as i32;
            1.0 - (1.0 - 0.5f64.powi(i32::from(ewma_shift))).powi(steps)
        };
        let off_ns = latency_ns - self.forecast.latency_ns;
        if self.forecast.latency_ns > 0.0 {
            let share = share.min(DEVIATION_SHARE_MAX);
            self.deviation_ns += share * (off_ns.abs() - self.deviation_ns);
        }
        self.forecast.latency_ns += share * off_ns;
        self.settle_margin(share);
        self.follow(self.backlog + share * (backlog - self.backlog));
        // One command or two in flight are no queue.
        let queued = self.backlog > QUEUE_MIN * self.batch_work / samples;
        let waiting_ns = (self.forecast.latency_ns - self.forecast.least_ns).max(0.0);
        self.by_queue = if queued { waiting_ns / self.backlog } else { 0.0 };
        self.settle_rate();
        self.begin_batch(now_ns);
    }

    /// By how much the latency may be wrong to which the last batch has contributed this share; 0 where it is known
    /// otherwise.
    fn settle_margin(&mut self, share: f64) {
        let error_ns = self.deviation_ns * (share / (2.0 - share)).sqrt();
        self.margin_ns = (AS_GOOD * self.forecast.latency_ns).max(ERRORS * error_ns);
    }

    fn begin_batch(&mut self, now_ns: u64) {
        self.batch_latency_ns = 0.0;
        self.batch_backlog = 0.0;
        self.batch_work = 0.0;
        self.batch_samples = 0;
        self.batch_began_ns = now_ns;
        self.updated_ns = now_ns;
    }

    /// Changes the backlog that the latency comes with.
    fn follow(&mut self, backlog: f64) {
        self.backlog = backlog;
        self.forecast.excess = self.queued as f64 - backlog;
    }

    /// Forgets the rate: as many commands as half of work / L allows, until more is seen.
    fn slow_down(&mut self) {
        self.fastest = f64::INFINITY;
        self.settle_rate();
    }

    /// Takes a latency for granted, in place of all that was measured.
    fn assume(&mut self, latency_ns: f64, now_ns: u64) {
        self.failing = false;
        self.forecast.latency_ns = latency_ns;
        self.settle_margin(0.0);
        self.by_queue = 0.0;
        self.settle_rate();
        self.follow(0.0);
        self.forecast.least_ns = latency_ns;
        self.least_now_ns = latency_ns;
        self.least_before_ns = latency_ns;
        self.least_began_ns = now_ns;
        self.begin_batch(now_ns);
    }

    /// Forgets the latency: the next sample is the first.
    #[cold]
    fn forgive(&mut self) {
        self.failing = false;
        self.by_queue = 0.0;
        self.settle_rate();
        self.forecast.latency_ns = 0.0;
        self.forecast.least_ns = 0.0;
    }

    /// A probe came back much sooner than was expected: the estimate was old. Only the rate of the
    /// probe itself counts, so that the path is taken into use step by step.
    #[cold]
    fn rebound(&mut self, token: &Token, latency_ns: f64, now_ns: u64) {
        self.forecast.latency_ns = latency_ns;
        self.settle_margin(0.0);
        self.fastest = latency_ns / token.work as f64;
        self.by_queue = 0.0;
        self.settle_rate();
        self.follow(token.queued as f64);
        self.begin_batch(now_ns);
    }
}

#[cfg(test)]
mod tests;
