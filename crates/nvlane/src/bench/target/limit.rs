//! The limit of each row, and the target measured between two windows of it.
//!
//! Loopback on virtual machines runs in one of two speeds, by where the hypervisor has put the
//! cores, and changes between them. So each window of the target lies between two windows of the
//! limit; where those differ by more than a tenth, the window is discarded and another is tried.
//! So is one in which something else ran on the two cores for more than a twentieth of the time.

use super::plan::{Job, Plan};
use crate::bench::exchange::{Exchange, Shape, Waiting};
use crate::bench::pipeline::{Window, histogram};
use crate::bench::report::median;
use crate::bench::usage::Usage;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::time::Instant;

/// How much the limit may move around a window.
const MOVED_MAX: f64 = 0.10;

/// How much the limit may move around the windows that stand in for those of a row without a
/// steady one: less than the two speeds differ.
const UNSTEADY_MAX: f64 = 0.25;
/// How much of a window something else may run.
const DISTURBED_MAX: f64 = 0.05;
/// Windows to choose the limit by, when they are disturbed.
const CHOOSE_TRIES: usize = 3;

/// The three bare servers at one shape and depth.
pub struct Choice {
    shape: Shape,
    depth: u16,
    /// Rates in the order of [`Waiting::ALL`].
    iops: [f64; 3],
    p50_us: [f64; 3],
}

/// Rates of the limit, remembered by shape and depth.
pub struct Limit<'a> {
    exchange: &'a Exchange,
    plan: Plan,
    choices: Vec<Choice>,
}

impl<'a> Limit<'a> {
    /// Nothing measured yet.
    pub fn new(exchange: &'a Exchange, plan: Plan) -> Limit<'a> {
        Limit { exchange, plan, choices: Vec::new() }
    }

    /// Measures all three bare servers for `job`, unless that was done before. Returns the index.
    /// Disturbed windows are tried again until `deadline`.
    fn choose(&mut self, job: &Job, deadline: Instant) -> anyhow::Result<usize> {
        let (shape, depth) = (job.shape(), job.depth);
        let known = self.choices.iter().position(|c| c.shape == shape && c.depth == depth);
        if let Some(index) = known {
            return Ok(index);
        }
        let mut choice = Choice { shape, depth, iops: [0.0; 3], p50_us: [0.0; 3] };
        for (index, waiting) in Waiting::ALL.into_iter().enumerate() {
            for _ in 0..CHOOSE_TRIES {
                let window = self.exchange.window(shape, waiting, depth, self.plan.choose)?;
                if window.iops() > choice.iops[index] {
                    choice.iops[index] = window.iops();
                    choice.p50_us[index] = quantile_us(&window.latency, 0.5);
                }
                if window.disturbed() <= DISTURBED_MAX || Instant::now() > deadline {
                    break;
                }
            }
        }
        self.choices.push(choice);
        Ok(self.choices.len() - 1)
    }

    /// Windows of the target for `job`, each between two of the best bare server.
    /// Stops trying at `deadline`, but not before one pair was measured.
    pub fn beside(
        &mut self,
        job: &Job,
        deadline: Instant,
        target: &mut dyn FnMut() -> anyhow::Result<Window>,
    ) -> anyhow::Result<Paired> {
        let choice = self.choose(job, deadline)?;
        let (best, shape, depth) = {
            let choice = &self.choices[choice];
            (choice.best(), choice.shape, choice.depth)
        };
        let limit_timing = self.plan.limit;
        let exchange = self.exchange;
        let limit = || exchange.window(shape, best, depth, limit_timing);
        let mut paired = Paired::new(&self.choices[choice]);
        let mut before = limit()?;
        for tried in 0..self.plan.tries {
            let enough = paired.kept().count() >= self.plan.pairs;
            if enough || (tried > 0 && Instant::now() > deadline) {
                break;
            }
            let window = target()?;
            let after = limit()?;
            paired.add(Sample::new(&before, &window, &after), &window);
            before = after;
        }
        Ok(paired)
    }
}

impl Choice {
    fn best(&self) -> Waiting {
        let best = (0..3).max_by(|&a, &b| self.iops[a].total_cmp(&self.iops[b]));
        Waiting::ALL[best.expect("there are three")]
    }

    fn json(&self) -> Value {
        let mut object = json!({ "best": self.best().name() });
        for (index, waiting) in Waiting::ALL.into_iter().enumerate() {
            object[waiting.name()] =
                json!({ "iops": self.iops[index].round(), "p50_us": self.p50_us[index] });
        }
        object
    }
}

/// One window of the target and its neighbours.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Sample {
    /// The limit's rate before, per second.
    pub limit_before: f64,
    /// The target's rate.
    pub iops: f64,
    /// The limit's rate after.
    pub limit_after: f64,
    /// Largest share of any of the three windows in which something else ran.
    pub disturbed: f64,
    /// The limit stood still, and nothing else ran.
    pub kept: bool,
}

impl Sample {
    fn new(before: &Window, window: &Window, after: &Window) -> Sample {
        let windows = [before, window, after];
        let mut sample = Sample {
            limit_before: before.iops(),
            iops: window.iops(),
            limit_after: after.iops(),
            disturbed: windows.map(Window::disturbed).into_iter().fold(0.0, f64::max),
            kept: false,
        };
        sample.kept = sample.moved() <= MOVED_MAX && sample.disturbed <= DISTURBED_MAX;
        sample
    }

    fn moved(&self) -> f64 {
        let larger = self.limit_before.max(self.limit_after);
        (self.limit_before - self.limit_after).abs() / larger
    }

    /// The target's share of the limit around it.
    pub fn share(&self) -> f64 {
        self.iops / ((self.limit_before + self.limit_after) / 2.0)
    }
}

/// A row's windows.
pub struct Paired {
    /// All of them, the discarded too.
    pub samples: Vec<Sample>,
    /// Latencies in the kept ones.
    pub latency: Histogram<u32>,
    /// What the three bare servers gave.
    pub limit: Value,
    ios: u64,
    seconds: f64,
    client: Usage,
    server: Usage,
}

impl Paired {
    fn new(choice: &Choice) -> Paired {
        Paired {
            samples: Vec::new(),
            latency: histogram(),
            limit: choice.json(),
            ios: 0,
            seconds: 0.0,
            client: Usage::default(),
            server: Usage::default(),
        }
    }

    fn add(&mut self, sample: Sample, window: &Window) {
        let first_kept = sample.kept && self.kept().next().is_none();
        if first_kept {
            // What a row without any kept window would have shown does not count any more.
            self.latency.reset();
            (self.ios, self.seconds) = (0, 0.0);
            (self.client, self.server) = (Usage::default(), Usage::default());
        }
        if sample.kept || self.kept().next().is_none() {
            self.latency.add(&window.latency).expect("all histograms have the same bounds");
            self.ios += window.ios;
            self.seconds += window.seconds;
            self.client = plus(self.client, window.client);
            self.server = plus(self.server, window.server);
        }
        self.samples.push(sample);
    }

    fn kept(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(|sample| sample.kept)
    }

    /// Whether the limit stood still around at least one window.
    pub fn steady(&self) -> bool {
        self.kept().next().is_some()
    }

    /// Median share of the limit. If no window was kept, that of those around which the limit moved
    /// so little that it was in one of its speeds; if there is none either, of all.
    pub fn of_limit(&self) -> f64 {
        if self.steady() {
            return median(self.kept().map(Sample::share));
        }
        let usable = self.samples.iter().filter(|sample| sample.moved() <= UNSTEADY_MAX);
        let share = median(usable.map(Sample::share));
        if share.is_finite() { share } else { median(self.samples.iter().map(Sample::share)) }
    }

    /// Median rate: of the kept windows, or of all if none was.
    pub fn iops(&self) -> f64 {
        let steady = self.steady();
        median(
            self.samples.iter().filter(|sample| sample.kept || !steady).map(|sample| sample.iops),
        )
    }

    /// Median rate of the limit around the kept windows, or around all if none was.
    pub fn limit_iops(&self) -> f64 {
        let steady = self.steady();
        let counted = self.samples.iter().filter(|sample| sample.kept || !steady);
        median(counted.flat_map(|sample| [sample.limit_before, sample.limit_after]))
    }

    /// Costs per request on the client's side, and on the server's.
    pub fn costs(&self) -> (Cost, Cost) {
        (Cost::new(self.client, self.ios), Cost::new(self.server, self.ios))
    }
}

/// What one request costs one side.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Cost {
    /// CPU time in microseconds.
    pub cpu_us: f64,
    /// System calls; absent where they could not be counted.
    pub system_calls: Option<f64>,
    /// Context switches.
    pub context_switches: f64,
}

impl Cost {
    /// `usage` spread over `ios` requests.
    pub fn new(usage: Usage, ios: u64) -> Cost {
        let ios = ios.max(1) as f64;
        Cost {
            cpu_us: usage.cpu.as_secs_f64() * 1e6 / ios,
            system_calls: Some(usage.system_calls as f64 / ios),
            context_switches: usage.switches as f64 / ios,
        }
    }
}

fn plus(a: Usage, b: Usage) -> Usage {
    Usage {
        cpu: a.cpu + b.cpu,
        waited: a.waited + b.waited,
        switches: a.switches + b.switches,
        system_calls: a.system_calls + b.system_calls,
    }
}

/// A quantile in microseconds.
pub fn quantile_us(latency: &Histogram<u32>, quantile: f64) -> f64 {
    latency.value_at_quantile(quantile) as f64 / 1e3
}

/// What was never measured, for tests of what becomes of it.
#[cfg(test)]
pub mod made_up {
    use super::*;

    /// One of a second.
    pub fn window(iops: u64) -> Window {
        let usage = Usage::default();
        Window { ios: iops, seconds: 1.0, latency: histogram(), client: usage, server: usage }
    }

    /// Blocking is the limit, with 3 of 1, 3 and 2.
    pub fn choice() -> Choice {
        let source = crate::bench::exchange::Source::Hot;
        let shape = Shape { request_data: 0, answer_data: 1, source };
        Choice { shape, depth: 1, iops: [1.0, 3.0, 2.0], p50_us: [0.0; 3] }
    }

    /// Rates of the limit before, of the target, and of the limit after.
    pub fn paired(windows: &[(u64, u64, u64)]) -> Paired {
        let mut paired = Paired::new(&choice());
        for &(before, rate, after) in windows {
            let sample = Sample::new(&window(before), &window(rate), &window(after));
            paired.add(sample, &window(rate));
        }
        paired
    }
}

#[cfg(test)]
mod tests {
    use super::made_up::{choice, paired, window};
    use super::*;

    #[test]
    fn the_best_of_three_is_the_limit() {
        assert_eq!(choice().best(), Waiting::Blocking);
    }

    #[test]
    fn windows_around_which_the_limit_moved_do_not_count() {
        let paired = paired(&[(100, 90, 50), (100, 80, 95), (100, 60, 100)]);
        assert_eq!(paired.samples.iter().map(|s| s.kept).collect::<Vec<_>>(), [false, true, true]);
        assert_eq!(paired.ios, 140);
        assert_eq!(paired.iops(), 70.0);
        assert!((paired.of_limit() - (80.0 / 97.5 + 0.6) / 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_row_between_two_speeds_has_the_share_of_what_there_is() {
        let two_speeds = paired(&[(100, 60, 50), (50, 75, 100), (100, 30, 50)]);
        assert!(!two_speeds.steady());
        assert!((two_speeds.of_limit() - 0.8).abs() < 1e-9);
        assert_eq!(two_speeds.iops(), 60.0);
        // One window within one speed is better than any between two.
        let one_speed = paired(&[(100, 60, 50), (50, 75, 100), (100, 40, 80)]);
        assert!(!one_speed.steady());
        assert!((one_speed.of_limit() - 40.0 / 90.0).abs() < 1e-9);
    }

    #[test]
    fn a_disturbed_window_is_not_kept_but_better_than_none() {
        let mut disturbed = window(50);
        disturbed.server.waited = std::time::Duration::from_millis(200);
        let mut paired = Paired::new(&choice());
        paired.add(Sample::new(&window(100), &disturbed, &window(100)), &disturbed);
        assert!(!paired.steady());
        assert_eq!(paired.of_limit(), 0.5);
    }

    #[test]
    fn what_a_side_uses_in_windows_that_count_is_spread_over_their_requests() {
        let used = |cpu_ms, switches, system_calls| Usage {
            cpu: std::time::Duration::from_millis(cpu_ms),
            switches,
            system_calls,
            ..Usage::default()
        };
        let mut paired = paired(&[(100, 90, 50)]);
        for rate in [60, 40] {
            let mut busy = window(rate);
            (busy.client, busy.server) = (used(1, 5, 10), used(2, 15, 20));
            paired.add(Sample::new(&window(100), &busy, &window(100)), &busy);
        }
        let (client, server) = paired.costs();
        let each = |cost: Cost| (cost.cpu_us, cost.context_switches, cost.system_calls);
        assert_eq!(each(client), (20.0, 0.1, Some(0.2)));
        assert_eq!(each(server), (40.0, 0.3, Some(0.4)));
    }
}
