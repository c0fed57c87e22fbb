//! One case: links, a load, something that happens, and what came of it.

use super::stage::{NQN, Target};
use crate::bench::Options;
use crate::bench::net::{Net, Way};
use crate::bench::player::{Load, Mix, Played, Player, Watch};
use anyhow::Context;
use namespace::Namespace;
use serde::Serialize;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Commands are counted by intervals of this length.
const INTERVAL: Duration = Duration::from_millis(10);
/// Over so much time a share is taken.
const SMOOTH: Duration = Duration::from_millis(100);
/// A path that carries less than this, of 1, has nothing to get back to.
const SHARE_MIN: f64 = 0.01;
/// When something happens, and when it is over.
const HAPPENS: Duration = Duration::from_secs(3);
const OVER: Duration = Duration::from_secs(5);
const END: Duration = Duration::from_secs(12);
/// The host notices a dead path within about this, and comes back to it as often.
const TIMES: &str = "keep_alive_tmo=1s&io_timeout=1s&reconnect_delay=200ms";

/// What happens on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing.
    None,
    /// Path 0 answers 100 ms later for a while.
    Spike,
    /// Link 0 is taken down and up again.
    LinkDown,
    /// The target's process on path 0 is killed, and another started in its place.
    Killed,
    /// Link 0 swallows everything for a while.
    Swallow,
}

/// A case.
pub struct Case {
    /// Its name in figures.
    pub name: &'static str,
    /// In words.
    pub about: &'static str,
    /// Mbit/s of each link.
    mbit: &'static [u32],
    /// Mbit/s from the host to the target, where that differs.
    to_target_mbit: &'static [u32],
    mix: Mix,
    in_flight: usize,
    /// Beside it, so many of 1 MiB.
    large: usize,
    event: Event,
    /// Part of a quick run.
    pub quick: bool,
}

const PLAIN: Case = Case {
    name: "",
    about: "",
    mbit: &[400, 400],
    to_target_mbit: &[],
    mix: Mix::Read,
    in_flight: 128,
    large: 0,
    event: Event::None,
    quick: false,
};

/// All of them.
pub const CASES: &[Case] = &[
    Case {
        name: "bandwidth_10_1",
        about: "800 and 80 Mbit/s",
        mbit: &[800, 80],
        quick: true,
        ..PLAIN
    },
    Case { name: "paths_2", about: "2 x 400 Mbit/s", ..PLAIN },
    Case { name: "paths_4", about: "4 x 200 Mbit/s", mbit: &[200; 4], ..PLAIN },
    Case { name: "paths_8", about: "8 x 100 Mbit/s", mbit: &[100; 8], ..PLAIN },
    Case {
        name: "sizes",
        about: "4 KiB beside 8 x 1 MiB, 600 and 200 Mbit/s",
        mbit: &[600, 200],
        in_flight: 32,
        large: 8,
        ..PLAIN
    },
    Case {
        name: "slow_writes",
        about: "path 1 slow for writes only, half writes",
        to_target_mbit: &[400, 40],
        mix: Mix::Mixed,
        ..PLAIN
    },
    Case {
        name: "spike",
        about: "path 0 is 100 ms slower for 2 s",
        event: Event::Spike,
        quick: true,
        ..PLAIN
    },
    Case { name: "link_down", about: "link 0 is down for 2 s", event: Event::LinkDown, ..PLAIN },
    Case {
        name: "killed",
        about: "one of two targets is killed, and back after 2 s",
        event: Event::Killed,
        ..PLAIN
    },
    Case {
        name: "black_hole",
        about: "link 0 swallows everything for 2 s",
        event: Event::Swallow,
        ..PLAIN
    },
    // Reads are sent again at once, writes only when the old connection is surely dead.
    Case {
        name: "link_down_writes",
        about: "link 0 is down for 2 s, writes",
        mix: Mix::Write,
        event: Event::LinkDown,
        ..PLAIN
    },
    Case {
        name: "killed_writes",
        about: "one of two targets is killed, and back after 2 s, writes",
        mix: Mix::Write,
        event: Event::Killed,
        ..PLAIN
    },
    Case {
        name: "black_hole_writes",
        about: "link 0 swallows everything for 2 s, writes",
        mix: Mix::Write,
        event: Event::Swallow,
        ..PLAIN
    },
];

/// What came of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Each path alone, in MiB/s, while nothing happens.
    pub alone_mib_s: Vec<f64>,
    /// All paths, the small commands and the large ones, while nothing happens.
    pub mib_s: f64,
    /// Latency of the small commands over the whole run.
    pub p50_us: f64,
    /// The same: 999 of 1,000 are below.
    pub p99_9_us: f64,
    /// Longest time without any completion.
    pub stall_ms: f64,
    /// From the end of what happened to path 0 until that path has nine tenths of its own share of the commands
    /// before; where that was not reached, as long as was watched. None where nothing happens, or to a path that
    /// the policy does not use.
    pub recovery_ms: Option<f64>,
    /// Whether it was reached.
    pub recovered: bool,
    /// The same while something happens to path 0, and from then to the end.
    pub fault_mib_s: Option<[f64; 2]>,
    /// Path 0's share of the commands before something happens, while it does, and in the last second.
    pub shares: Option<[f64; 3]>,
    /// Commands sent on each path.
    pub selections: Vec<u64>,
}

impl Outcome {
    /// Share of the sum of the paths alone.
    pub fn of_best(&self) -> f64 {
        self.mib_s / self.best()
    }

    /// The rate while something happens, as a share of what the other paths give alone, and the rate afterwards as
    /// one of all.
    pub fn fault_of_best(&self) -> Option<[f64; 2]> {
        let [during, after] = self.fault_mib_s?;
        let best = self.best();
        Some([during / (best - self.alone_mib_s[0]), after / best])
    }

    fn best(&self) -> f64 {
        self.alone_mib_s.iter().sum()
    }
}

/// Runs a case under `policy`.
pub fn run(
    case: &Case,
    policy: &str,
    player: &Player,
    options: &Options,
) -> anyhow::Result<Outcome> {
    let net = Net::new(case.mbit)?;
    for (link, &mbit) in case.to_target_mbit.iter().enumerate() {
        net.shape(link, Way::ToTarget, mbit)?;
    }
    let links = case.mbit.len();
    let mut target = Target::start(&net, links, case.event == Event::Killed, options)?;
    let paths: Vec<SocketAddr> = (0..links).map(|link| Target::address(&net, link)).collect();
    let small = Load { mix: case.mix, bytes: 4096, in_flight: case.in_flight, seed: 1 };
    let mut alone_mib_s = Vec::new();
    for path in &paths {
        let volume = open(&[*path], "numa")?;
        let watch = Watch {
            windows: vec![Duration::from_secs(1)..Duration::from_secs(2)],
            interval: INTERVAL,
        };
        let played = player.play(&volume, small, &watch)?;
        alone_mib_s.push(mib_s(&played, 4096));
    }
    let volume = open(&paths, policy)?;
    let quiet = case.event == Event::None;
    let end = if quiet { Duration::from_secs(5) } else { END };
    let before = Duration::from_secs(1)..if quiet { end } else { HAPPENS };
    let watch = Watch { windows: vec![before, HAPPENS.min(end)..end], interval: INTERVAL };
    let watch =
        if quiet { Watch { windows: vec![watch.windows[0].clone()], ..watch } } else { watch };
    let (volume, watch) = (&volume, &watch);
    let start = Instant::now();
    let (played, large, sent, back) = std::thread::scope(|scope| {
        let small = scope.spawn(move || player.play(volume, small, watch));
        let large = (case.large > 0).then(|| {
            let load = Load { bytes: 1 << 20, in_flight: case.large, seed: 2, mix: case.mix };
            scope.spawn(move || player.play(volume, load, watch))
        });
        let sent = (!quiet).then(|| scope.spawn(move || Sent::watch(volume, start)));
        let happened = if quiet { Ok(()) } else { happen(case.event, &net, &mut target) };
        let back = start.elapsed();
        let played = small.join().expect("playing does not panic");
        let large = large.map(|large| large.join().expect("playing does not panic"));
        let sent = sent.map(|sent| sent.join().expect("watching does not panic"));
        happened?;
        anyhow::Ok((played?, large.transpose()?, sent.unwrap_or_default(), back))
    })
    .with_context(|| format!("case {}, {policy}", case.name))?;
    let large_mib_s = large.as_ref().map_or(0.0, |played| mib_s(played, 1 << 20));
    let mut latency = played.windows[0].latency.clone();
    for window in &played.windows[1..] {
        latency.add(&window.latency)?;
    }
    let quantile = |share| latency.value_at_quantile(share) as f64 / 1e3;
    let shares = (!quiet).then(|| {
        let second = Duration::from_secs(1);
        [HAPPENS / 2..HAPPENS, HAPPENS..OVER, END - second..END]
            .map(|range| Sent::share(&sent, range.start, range.end))
    });
    let fault_mib_s =
        (!quiet).then(|| [HAPPENS..OVER, OVER..END].map(|range| rate(&played.series, &range)));
    let recovery = recovery(&sent, back);
    Ok(Outcome {
        alone_mib_s,
        mib_s: mib_s(&played, 4096) + large_mib_s,
        p50_us: quantile(0.5),
        p99_9_us: quantile(0.999),
        stall_ms: longest_stall(&played.series).as_secs_f64() * 1e3,
        recovery_ms: recovery
            .map(|recovery| recovery.unwrap_or(END.saturating_sub(back)).as_secs_f64() * 1e3),
        recovered: recovery.is_some_and(|recovery| recovery.is_some()),
        fault_mib_s,
        shares,
        selections: volume.paths().iter().map(|path| path.selections).collect(),
    })
}

fn mib_s(played: &Played, bytes: u32) -> f64 {
    played.windows[0].iops() * f64::from(bytes) / f64::from(1 << 20)
}

fn open(paths: &[SocketAddr], policy: &str) -> anyhow::Result<Arc<dyn Namespace>> {
    let paths: Vec<String> = paths.iter().map(SocketAddr::to_string).collect();
    let uri = format!("tcp://{}/{NQN}?ns=1&policy={policy}&{TIMES}", paths.join(","));
    volume::open(&uri, &volume::OpenOptions::default())
        .with_context(|| format!("cannot open {uri}"))
}

/// Waits until it is time, does it, waits and undoes it.
fn happen(event: Event, net: &Net, target: &mut Target) -> anyhow::Result<()> {
    let wait = || std::thread::sleep(OVER - HAPPENS);
    std::thread::sleep(HAPPENS);
    match event {
        Event::None => {}
        Event::Spike => {
            target.delay(0, Duration::from_millis(100))?;
            wait();
            target.delay(0, Duration::ZERO)?;
        }
        Event::LinkDown => {
            net.set_up(0, false)?;
            wait();
            net.set_up(0, true)?;
        }
        Event::Killed => {
            target.kill(0)?;
            wait();
            target.start_again(net, 0)?;
        }
        Event::Swallow => {
            net.swallow(0)?;
            wait();
            for way in [Way::ToTarget, Way::ToHost] {
                net.shape(0, way, PLAIN.mbit[0])?;
            }
        }
    }
    Ok(())
}

/// The rate within `range`, in MiB/s.
fn rate(series: &[u32], range: &Range<Duration>) -> f64 {
    let interval = |moment: Duration| (moment.as_nanos() / INTERVAL.as_nanos()) as usize;
    let within = interval(range.start)..interval(range.end).min(series.len());
    let count: u64 =
        series.get(within).unwrap_or_default().iter().map(|&count| u64::from(count)).sum();
    count as f64 * 4096.0 / f64::from(1 << 20) / (range.end - range.start).as_secs_f64()
}

/// The longest run of intervals without completions.
fn longest_stall(series: &[u32]) -> Duration {
    let longest = series.split(|&count| count > 0).map(<[u32]>::len).max();
    INTERVAL * longest.unwrap_or(0) as u32
}

/// What had been sent at one moment.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Duration,
    /// By path 0.
    own: u64,
    /// By all paths.
    all: u64,
}

impl Sent {
    /// Looks at the volume's paths once per interval, from `start` until the end of a run.
    fn watch(volume: &Arc<dyn Namespace>, start: Instant) -> Vec<Sent> {
        let mut seen = Vec::new();
        while start.elapsed() < END {
            let paths = volume.paths();
            let own = paths.first().map_or(0, |path| path.selections);
            let all = paths.iter().map(|path| path.selections).sum();
            seen.push(Sent { at: start.elapsed(), own, all });
            std::thread::sleep(INTERVAL);
        }
        seen
    }

    /// Path 0's share of what was sent between two moments; not a number where nothing was.
    fn share(seen: &[Sent], from: Duration, to: Duration) -> f64 {
        let at = |moment| seen.get(seen.partition_point(|sent| sent.at < moment)).or(seen.last());
        let (Some(from), Some(to)) = (at(from), at(to)) else { return f64::NAN };
        (to.own - from.own) as f64 / (to.all - from.all) as f64
    }
}

/// How long after `back` path 0 has nine tenths of the share again that it had before [`HAPPENS`]; the inner one is none
/// if that never was, the outer if it had none.
fn recovery(seen: &[Sent], back: Duration) -> Option<Option<Duration>> {
    let before = Sent::share(seen, HAPPENS / 2, HAPPENS);
    if !before.is_finite() || before < SHARE_MIN {
        return None;
    }
    let end = seen.last()?.at;
    let after = seen.iter().filter(|sent| sent.at >= back && sent.at + SMOOTH <= end);
    let mut again = after
        .filter(|sent| Sent::share(seen, sent.at, sent.at + SMOOTH) >= 0.9 * before)
        .map(|sent| sent.at - back);
    Some(again.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_the_longest_of_several() {
        assert_eq!(longest_stall(&[1, 0, 0, 3, 0, 0, 0, 2, 0]), 3 * INTERVAL);
        assert_eq!(longest_stall(&[1, 1]), Duration::ZERO);
    }

    #[test]
    fn the_rate_while_something_happens_is_of_that_time_alone() {
        let mut series = vec![1000; (END.as_millis() / INTERVAL.as_millis()) as usize];
        let interval = |at: Duration| (at.as_millis() / INTERVAL.as_millis()) as usize;
        series[interval(HAPPENS)..interval(OVER)].fill(500);
        let full = 1000.0 * 100.0 * 4096.0 / f64::from(1 << 20);
        assert!((rate(&series, &(HAPPENS..OVER)) - full / 2.0).abs() < 1e-6);
        assert!((rate(&series, &(OVER..END)) - full).abs() < 1e-6);
        let outcome = Outcome {
            alone_mib_s: vec![full, full / 2.0],
            mib_s: full,
            fault_mib_s: Some([full / 2.0, full]),
            p50_us: 0.0,
            p99_9_us: 0.0,
            stall_ms: 0.0,
            recovery_ms: None,
            recovered: false,
            shares: None,
            selections: Vec::new(),
        };
        let [during, after] = outcome.fault_of_best().expect("something happened");
        assert!((during - 1.0).abs() < 1e-9 && (after - 2.0 / 3.0).abs() < 1e-9);
    }

    /// A run in which path 0's share of every 100 commands is `share`, by the interval.
    fn run(share: impl Fn(Duration) -> u64) -> Vec<Sent> {
        let mut seen = vec![Sent { at: Duration::ZERO, own: 0, all: 0 }];
        while let Some(&Sent { at, own, all }) = seen.last()
            && at < END
        {
            seen.push(Sent { at: at + INTERVAL, own: own + share(at), all: all + 100 });
        }
        seen
    }

    #[test]
    fn recovery_is_the_paths_own_and_not_that_of_the_sum() {
        let back = OVER + 3 * INTERVAL;
        // All commands go on at the same rate the whole time; path 0 has half of them again 70 ms after it is back.
        let again = back + 7 * INTERVAL;
        let seen = run(|at| if at < HAPPENS || at >= again { 50 } else { 0 });
        // Ten intervals together have it once nine of them do.
        assert_eq!(recovery(&seen, back), Some(Some(6 * INTERVAL)));
        assert_eq!(Sent::share(&seen, HAPPENS, OVER), 0.0);
        let seen = run(|at| if at < HAPPENS { 50 } else { 44 });
        assert_eq!(recovery(&seen, back), Some(None));
        let seen = run(|at| if at < HAPPENS { 50 } else { 45 });
        assert_eq!(recovery(&seen, back), Some(Some(Duration::ZERO)));
    }

    #[test]
    fn a_path_that_is_not_used_has_nothing_to_get_back_to() {
        assert_eq!(recovery(&run(|_| 0), OVER), None);
        assert_eq!(recovery(&[], OVER), None);
        let nothing = [Sent { at: Duration::ZERO, own: 0, all: 0 }; 2];
        assert_eq!(recovery(&nothing, OVER), None);
    }
}
