//! The target with its two ports, and the host's way to them.

use super::{BYTES, IN_FLIGHT, Operation};
use crate::bench::Options;
use crate::bench::player::{Load, Mix, Player, Watch};
use crate::bench::served::subsystem;
use anyhow::{Context, bail};
use namespace::Namespace;
use namespace::layer::delay::Delays;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use target::{NamespaceOptions, PortId, Server, ServerConfig};

const NQN: &str = "nqn.2026-11.io.nvlane:bench-multipath";
/// What the slow path adds.
const SLOWER: Duration = Duration::from_millis(30);

/// A target in this process, on a core of its own.
pub struct Stage {
    server: Server,
    fast_port: PortId,
    /// The path without anything added.
    pub fast: SocketAddr,
    /// The other.
    pub slow: SocketAddr,
    /// Commands in flight.
    pub in_flight: usize,
}

impl Stage {
    /// Serves what `operation` stands for.
    pub fn start(operation: Operation, options: &Options) -> anyhow::Result<Stage> {
        let cores = vec![Some(options.server_core)];
        let server = Server::start(&ServerConfig { cores, ..ServerConfig::default() })?;
        server.add_subsystem(subsystem(NQN))?;
        let volume =
            volume::open(&operation.volume(options.scale), &volume::OpenOptions::default())?;
        let namespace =
            NamespaceOptions { nsid: Some(1), uuid: [0x42; 16], nguid: [0; 16], ana_group: 1 };
        server.add_namespace(NQN, &namespace, volume)?;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (fast_port, fast) = server.add_listener(any)?;
        let at = options.slow_address.map_or(any, |address| SocketAddr::new(address, 0));
        let (slow_port, slow) = server.add_listener(at)?;
        if options.slow_address.is_none() {
            server.set_delay(slow_port, Delays::all(SLOWER))?;
        }
        let in_flight = IN_FLIGHT / options.scale as usize;
        Ok(Stage { server, fast_port, fast, slow, in_flight })
    }

    /// The namespace through `addresses`, under `policy`.
    pub fn open(
        &self,
        addresses: &[SocketAddr],
        policy: &str,
    ) -> anyhow::Result<Arc<dyn Namespace>> {
        let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        let uri =
            format!("tcp://{}/{NQN}?ns=1&queue_size=1024&policy={policy}", addresses.join(","));
        volume::open(&uri, &volume::OpenOptions::default())
            .with_context(|| format!("cannot open {uri}"))
    }

    fn delay_fast(&self, time: Duration) -> anyhow::Result<()> {
        Ok(self.server.set_delay(self.fast_port, Delays::all(time))?)
    }
}

/// How long completion-time takes, once a path is fast again, until reads flow at nine tenths of
/// the rate before: milliseconds, and whether they did. If not, it took longer than that.
pub fn recovery(player: &Player, options: &Options) -> anyhow::Result<(f64, bool)> {
    const INTERVAL: Duration = Duration::from_millis(10);
    let scale = if options.tiny { 10 } else { 1 };
    let (slow_at, fast_at, end) = (
        Duration::from_secs(2) / scale,
        Duration::from_secs(4) / scale,
        Duration::from_secs(8) / scale,
    );
    let stage = Stage::start(Operation::Read, options)?;
    let volume = stage.open(&[stage.fast, stage.slow], "completion-time")?;
    let load = Load { mix: Mix::Read, bytes: BYTES, in_flight: stage.in_flight, seed: 1 };
    let watch = Watch { windows: vec![Duration::ZERO..end], interval: INTERVAL };
    let played = std::thread::scope(|scope| {
        let player = scope.spawn(|| player.play(&volume, load, &watch));
        std::thread::sleep(slow_at);
        stage.delay_fast(Duration::from_millis(200))?;
        std::thread::sleep(fast_at - slow_at);
        stage.delay_fast(Duration::ZERO)?;
        player.join().expect("playing does not panic")
    })?;
    let at = |time: Duration| (time.as_nanos() / INTERVAL.as_nanos()) as usize;
    let mean = |counts: &[u32]| {
        counts.iter().map(|&count| f64::from(count)).sum::<f64>() / counts.len().max(1) as f64
    };
    let before = mean(&played.series[at(slow_at / 2)..at(slow_at)]);
    if before == 0.0 && !options.tiny {
        bail!("nothing was read before the path became slow");
    }
    // Five intervals in a row: one alone may be luck.
    let after = &played.series[at(fast_at)..];
    let recovered = after.windows(5).position(|counts| mean(counts) >= 0.9 * before);
    let intervals = recovered.map_or(after.len(), |intervals| intervals + 1);
    Ok((intervals as f64 * INTERVAL.as_secs_f64() * 1e3, recovered.is_some()))
}
