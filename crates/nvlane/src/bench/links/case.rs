//! One case: links, a load, something that happens, and what was seen of it.

use super::outcome::{Seen, Sent, mib_s};
use super::stage::{NQN, Target};
use crate::bench::Options;
use crate::bench::net::{Net, Way};
use crate::bench::player::{Load, Mix, Played, Player, Watch};
use anyhow::Context;
use namespace::Namespace;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Commands are counted by intervals of this length.
pub const INTERVAL: Duration = Duration::from_millis(10);
/// Bytes of a small and of a large command.
pub const SMALL_BYTES: u32 = 4096;
/// See [`SMALL_BYTES`].
pub const LARGE_BYTES: u32 = 1 << 20;
/// Queues fill before this.
pub const WARM: Duration = Duration::from_secs(1);
/// When something happens, and when it is over.
pub const HAPPENS: Duration = Duration::from_secs(3);
/// See [`HAPPENS`].
pub const OVER: Duration = Duration::from_secs(5);
/// When a run ends in which something happens.
pub const END: Duration = Duration::from_secs(12);
/// When others end, with commands of one size and of two.
const QUIET_END: Duration = Duration::from_secs(5);
const SIZES_END: Duration = Duration::from_secs(15);
/// How often each path is measured alone, and how often at most where it has less than [`LINK_SHARE`] of its link: a
/// connection may be slow for as long as it lasts.
const TRIES_ALONE: usize = 2;
const TRIES_ALONE_MAX: usize = 6;
/// What headers leave of a link is about 0.95.
const LINK_SHARE: f64 = 0.9;
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
        name: "unequal_4",
        about: "400, 200, 100 and 50 Mbit/s",
        mbit: &[400, 200, 100, 50],
        ..PLAIN
    },
    Case {
        name: "unequal_8",
        about: "two each of 200, 100, 50 and 25 Mbit/s",
        mbit: &[200, 200, 100, 100, 50, 50, 25, 25],
        ..PLAIN
    },
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

impl Case {
    /// When a run of it ends.
    fn end(&self) -> Duration {
        match (self.event, self.large) {
            (Event::None, 0) => QUIET_END,
            // Commands of 1 MiB are few.
            (Event::None, _) => SIZES_END,
            _ => END,
        }
    }

    /// What is looked at: the time while nothing happens, and the rest.
    fn windows(&self) -> Vec<Range<Duration>> {
        match self.event {
            Event::None => vec![WARM..self.end()],
            _ => vec![WARM..HAPPENS, HAPPENS..self.end()],
        }
    }

    /// The same of a path alone.
    fn window_alone(&self) -> Range<Duration> {
        WARM..if self.large > 0 { 4 * WARM } else { 2 * WARM }
    }

    /// How long it takes under so many policies, besides the time in which links and targets are set up.
    #[cfg(test)]
    fn takes(&self, policies: usize) -> Duration {
        let alone = self.window_alone().end * (TRIES_ALONE * self.mbit.len()) as u32;
        alone + self.end() * policies as u32
    }

    /// What a link carries at most, in MiB/s, headers among it.
    fn link_mib_s(&self, link: usize) -> f64 {
        let to_host = self.mbit[link];
        let to_target = self.to_target_mbit.get(link).copied().unwrap_or(to_host);
        let mbit = match self.mix {
            Mix::Read => to_host,
            Mix::Write => to_target,
            // As much in either direction.
            Mix::Mixed => 2 * to_host.min(to_target),
        };
        f64::from(mbit) * 1e6 / 8.0 / f64::from(1 << 20)
    }

    /// Its commands on `volume`, those of both sizes at once.
    fn play(
        &self,
        player: &Player,
        volume: &Arc<dyn Namespace>,
        watch: &Watch,
    ) -> anyhow::Result<(Played, Option<Played>)> {
        let mix = self.mix;
        let small = Load { mix, bytes: SMALL_BYTES, in_flight: self.in_flight, seed: 1 };
        let large = Load { mix, bytes: LARGE_BYTES, in_flight: self.large, seed: 2 };
        std::thread::scope(|scope| {
            let large =
                (self.large > 0).then(|| scope.spawn(move || player.play(volume, large, watch)));
            let small = player.play(volume, small, watch);
            let large = large.map(|large| large.join().expect("playing does not panic"));
            Ok((small?, large.transpose()?))
        })
    }
}

/// Each path alone with the commands of the case, in MiB/s: the greatest rate of two runs or more, since what comes in
/// between only ever takes away.
pub fn alone(case: &Case, player: &Player, options: &Options) -> anyhow::Result<Vec<f64>> {
    let (net, _target) = set_up(case, options)?;
    let watch = Watch { windows: vec![case.window_alone()], interval: INTERVAL };
    let mut rates = vec![0.0; case.mbit.len()];
    for tries in 0..TRIES_ALONE_MAX {
        for (link, (rate, path)) in rates.iter_mut().zip(addresses(case, &net)).enumerate() {
            if tries >= TRIES_ALONE && *rate >= LINK_SHARE * case.link_mib_s(link) {
                continue;
            }
            let volume = open(&[path], "numa")?;
            let (small, large) = case.play(player, &volume, &watch)?;
            *rate = mib_s(&small, large.as_ref()).max(*rate);
        }
    }
    Ok(rates)
}

/// Runs a case under `policy`.
pub fn run(case: &Case, policy: &str, player: &Player, options: &Options) -> anyhow::Result<Seen> {
    let (net, mut target) = set_up(case, options)?;
    let volume = open(&addresses(case, &net), policy)?;
    let watch = Watch { windows: case.windows(), interval: INTERVAL };
    let happens = case.event != Event::None;
    let (volume, watch) = (&volume, &watch);
    let start = Instant::now();
    let (played, sent, back) = std::thread::scope(|scope| {
        let played = scope.spawn(move || case.play(player, volume, watch));
        let sent = happens.then(|| scope.spawn(move || watch_paths(volume, start)));
        let happened = if happens { happen(case.event, &net, &mut target) } else { Ok(()) };
        let back = start.elapsed();
        let played = played.join().expect("playing does not panic");
        let sent = sent.map(|sent| sent.join().expect("watching does not panic"));
        happened?;
        anyhow::Ok((played?, sent.unwrap_or_default(), back))
    })
    .with_context(|| format!("case {}, {policy}", case.name))?;
    let (small, large) = played;
    Ok(Seen {
        small,
        large,
        sent,
        back: happens.then_some(back),
        selections: volume.paths().iter().map(|path| path.selections).collect(),
    })
}

/// The links of a case, and what listens at their ends, which is to be dropped first.
fn set_up(case: &Case, options: &Options) -> anyhow::Result<(Net, Target)> {
    let net = Net::new(case.mbit)?;
    for (link, &mbit) in case.to_target_mbit.iter().enumerate() {
        net.shape(link, Way::ToTarget, mbit)?;
    }
    let target = Target::start(&net, case.mbit.len(), case.event == Event::Killed, options)?;
    Ok((net, target))
}

fn addresses(case: &Case, net: &Net) -> Vec<SocketAddr> {
    (0..case.mbit.len()).map(|link| Target::address(net, link)).collect()
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

/// Looks at the volume's paths once per interval, from `start` until the end of a run.
fn watch_paths(volume: &Arc<dyn Namespace>, start: Instant) -> Vec<Sent> {
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

#[cfg(test)]
mod tests {
    use super::super::POLICIES;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_full_run_takes_a_quarter_of_an_hour_and_a_quick_one_45_seconds() {
        let full: Duration = CASES.iter().map(|case| case.takes(POLICIES.len())).sum();
        assert!(full <= Duration::from_secs(15 * 60), "{full:?}");
        let quick: Duration =
            CASES.iter().filter(|case| case.quick).map(|case| case.takes(1)).sum();
        assert!(quick <= Duration::from_secs(40), "{quick:?}");
    }

    #[test]
    fn two_four_and_eight_paths_are_there_alike_and_unequal() {
        let names: BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len(), "names differ");
        let plain = |case: &&Case| {
            case.event == Event::None && case.large == 0 && case.to_target_mbit.is_empty()
        };
        let found: BTreeSet<(usize, bool)> = CASES
            .iter()
            .filter(plain)
            .map(|case| (case.mbit.len(), case.mbit.iter().any(|&mbit| mbit != case.mbit[0])))
            .collect();
        let all = [2, 4, 8].into_iter().flat_map(|paths| [(paths, false), (paths, true)]);
        assert_eq!(found, all.collect());
        // More than two cores can send.
        for case in CASES {
            assert!(case.mbit.iter().sum::<u32>() <= 880, "{}", case.name);
        }
    }

    #[test]
    fn a_link_bounds_what_a_path_gives_alone() {
        let named = |name| CASES.iter().find(|case| case.name == name).expect("it is there");
        let mbit = |mbit: f64| mbit * 1e6 / 8.0 / 1_048_576.0;
        assert_eq!(named("unequal_8").link_mib_s(7), mbit(25.0));
        assert_eq!(named("killed_writes").link_mib_s(0), mbit(400.0));
        // Half writes: the way that is slow for them bounds both.
        assert_eq!(named("slow_writes").link_mib_s(0), mbit(800.0));
        assert_eq!(named("slow_writes").link_mib_s(1), mbit(80.0));
    }

    #[test]
    fn windows_are_in_order_and_reach_to_the_end() {
        for case in CASES {
            let windows = case.windows();
            assert_eq!(windows[0].start, WARM, "{}", case.name);
            assert!(windows.windows(2).all(|pair| pair[0].end == pair[1].start), "{}", case.name);
            assert_eq!(windows.last().map(|window| window.end), Some(case.end()), "{}", case.name);
            // Paths are watched until the end, and what happens is over well before.
            let happens = case.event != Event::None;
            assert_eq!(windows.len(), if happens { 2 } else { 1 }, "{}", case.name);
            assert!(!happens || case.end() == END && case.large == 0, "{}", case.name);
        }
    }
}
