//! One case: links, a load, something that happens, and what came of it.

use crate::bench::Options;
use crate::bench::net::{Net, Way};
use crate::bench::player::{Load, Mix, Played, Player, Watch};
use crate::bench::served::subsystem;
use anyhow::{Context, ensure};
use namespace::Namespace;
use namespace::layer::delay::Delays;
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use target::{NamespaceOptions, PortId, Server, ServerConfig};

const NQN: &str = "nqn.2026-11.io.nvlane:bench-links";
const PORT: u16 = 4420;
/// Commands are counted by intervals of this length.
const INTERVAL: Duration = Duration::from_millis(10);
/// Whether a rate is reached is told by so many intervals together.
const SMOOTH: usize = 10;
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
    /// The target's port on path 0 is gone and comes back.
    PortGone,
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
        name: "port_gone",
        about: "the target's port 0 is gone for 2 s",
        event: Event::PortGone,
        ..PLAIN
    },
    Case {
        name: "black_hole",
        about: "link 0 swallows everything for 2 s",
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
    /// From the end of what happened until nine tenths of the rate before; where that was not reached,
    /// as long as was watched. None where nothing happens.
    pub recovery_ms: Option<f64>,
    /// Whether it was reached.
    pub recovered: bool,
    /// Commands sent on each path.
    pub selections: Vec<u64>,
}

impl Outcome {
    /// Share of the sum of the paths alone.
    pub fn of_best(&self) -> f64 {
        self.mib_s / self.alone_mib_s.iter().sum::<f64>()
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
    let target = Target::start(&net, case.mbit.len(), options.server_core)?;
    let paths: Vec<SocketAddr> = (0..case.mbit.len()).map(|link| net.address(link, PORT)).collect();
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
    let (played, large) = std::thread::scope(|scope| {
        let small = scope.spawn(move || player.play(volume, small, watch));
        let large = (case.large > 0).then(|| {
            let load = Load { bytes: 1 << 20, in_flight: case.large, seed: 2, mix: case.mix };
            scope.spawn(move || player.play(volume, load, watch))
        });
        let happened = if quiet { Ok(()) } else { happen(case.event, &net, &target) };
        let played = small.join().expect("playing does not panic");
        let large = large.map(|large| large.join().expect("playing does not panic"));
        happened?;
        anyhow::Ok((played?, large.transpose()?))
    })
    .with_context(|| format!("case {}, {policy}", case.name))?;
    let large_mib_s = large.as_ref().map_or(0.0, |played| mib_s(played, 1 << 20));
    let mut latency = played.windows[0].latency.clone();
    for window in &played.windows[1..] {
        latency.add(&window.latency)?;
    }
    let quantile = |share| latency.value_at_quantile(share) as f64 / 1e3;
    let recovery = if quiet { None } else { recovery(&played.series) };
    let watched_ms = (END - OVER).as_secs_f64() * 1e3;
    Ok(Outcome {
        alone_mib_s,
        mib_s: mib_s(&played, 4096) + large_mib_s,
        p50_us: quantile(0.5),
        p99_9_us: quantile(0.999),
        stall_ms: longest_stall(&played.series).as_secs_f64() * 1e3,
        recovery_ms: (!quiet).then(|| recovery.unwrap_or(watched_ms)),
        recovered: !quiet && recovery.is_some(),
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
fn happen(event: Event, net: &Net, target: &Target) -> anyhow::Result<()> {
    let wait = || std::thread::sleep(OVER - HAPPENS);
    std::thread::sleep(HAPPENS);
    match event {
        Event::None => {}
        Event::Spike => {
            target.server.set_delay(target.ports[0], Delays::all(Duration::from_millis(100)))?;
            wait();
            target.server.set_delay(target.ports[0], Delays::default())?;
        }
        Event::LinkDown => {
            net.set_up(0, false)?;
            wait();
            net.set_up(0, true)?;
        }
        Event::PortGone => {
            target.server.remove_listener(target.ports[0])?;
            wait();
            let address = net.address(0, PORT);
            net.within(|| Ok(target.server.add_listener(address)?))?;
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

/// The longest run of intervals without completions.
fn longest_stall(series: &[u32]) -> Duration {
    let longest = series.split(|&count| count > 0).map(<[u32]>::len).max();
    INTERVAL * longest.unwrap_or(0) as u32
}

/// Milliseconds from [`OVER`] until nine tenths of the rate before [`HAPPENS`]; `None` if never.
fn recovery(series: &[u32]) -> Option<f64> {
    let at = |time: Duration| (time.as_nanos() / INTERVAL.as_nanos()) as usize;
    let rate = |counts: &[u32]| {
        counts.iter().map(|&count| f64::from(count)).sum::<f64>() / counts.len() as f64
    };
    let before = rate(&series[at(HAPPENS) / 2..at(HAPPENS)]);
    let after = &series[at(OVER)..];
    let reached = after.windows(SMOOTH).position(|counts| rate(counts) >= 0.9 * before)?;
    Some(reached as f64 * INTERVAL.as_secs_f64() * 1e3)
}

/// Our target, listening on each link.
struct Target {
    server: Server,
    ports: Vec<PortId>,
}

impl Target {
    fn start(net: &Net, links: usize, core: usize) -> anyhow::Result<Target> {
        let config = ServerConfig { cores: vec![Some(core)], ..ServerConfig::default() };
        let server = Server::start(&config)?;
        server.add_subsystem(subsystem(NQN))?;
        let volume = volume::open("mem:1G", &volume::OpenOptions::default())?;
        let options =
            NamespaceOptions { nsid: Some(1), uuid: [0x43; 16], nguid: [0; 16], ana_group: 1 };
        server.add_namespace(NQN, &options, volume)?;
        let mut ports = Vec::new();
        for link in 0..links {
            let address = net.address(link, PORT);
            let (port, _) = net.within(|| Ok(server.add_listener(address)?))?;
            ports.push(port);
        }
        ensure!(ports.len() == links, "a port per link");
        Ok(Target { server, ports })
    }
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
    fn recovery_counts_from_the_end_of_what_happened() {
        let at = |time: Duration| (time.as_nanos() / INTERVAL.as_nanos()) as usize;
        let mut series = vec![100; at(END)];
        series[at(HAPPENS)..at(OVER) + 7].fill(10);
        // Ten intervals together reach it once nine of them and a bit are at the full rate.
        assert_eq!(recovery(&series), Some(60.0));
        series[at(HAPPENS)..].fill(10);
        assert_eq!(recovery(&series), None);
    }
}
