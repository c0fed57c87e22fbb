//! The target with its two ports, and the host's way to them.

use super::{IN_FLIGHT, Operation};
use crate::bench::Options;
use crate::bench::served::subsystem;
use anyhow::Context;
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

    /// The fast path answers so much later from now on.
    pub fn delay_fast(&self, time: Duration) -> anyhow::Result<()> {
        Ok(self.server.set_delay(self.fast_port, Delays::all(time))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cores;
    use crate::bench::multipath::BYTES;
    use crate::bench::player::{Load, Mix, Player, Watch};

    /// Less than a read takes whose path is slower, and more than one needs whose path is not.
    const BETWEEN: Duration = Duration::from_millis(34);
    /// How often is tried what a busy machine may spoil.
    const TRIES: usize = 20;

    /// What the quickest of some reads one by one took; none where the machine stood still meanwhile.
    fn quickest(stage: &Stage, player: &Player, address: SocketAddr) -> Option<Duration> {
        let volume = stage.open(&[address], "numa").unwrap();
        let load = Load { mix: Mix::Read, bytes: BYTES, in_flight: 1, seed: 1 };
        let time = Duration::from_millis(200);
        let watch = Watch { windows: vec![Duration::ZERO..time], interval: time };
        let window = player.play(&volume, load, &watch).unwrap().windows.remove(0);
        (window.ios > 0).then(|| Duration::from_nanos(window.latency.min()))
    }

    #[test]
    fn one_path_takes_30_ms_more_unless_something_else_delays_it() {
        assert_eq!(SLOWER, Duration::from_millis(30));
        let mut options = Options::of(&["multipath"]);
        if cores::require(options.server_core, options.client_core).is_err() {
            #[expect(clippy::print_stdout, reason = "whoever runs the tests is told")]
            return println!("the bench needs two cores: not run");
        }
        let player = Player::start(options.client_core).unwrap();
        let stage = Stage::start(Operation::Read, &options).unwrap();
        let reads = |stage: &Stage, path| quickest(stage, &player, path);
        let slow: Vec<Duration> =
            (0..TRIES).filter_map(|_| reads(&stage, stage.slow)).take(3).collect();
        assert!(!slow.is_empty() && slow.iter().all(|took| *took >= BETWEEN), "{slow:?}");
        let is_quick = |stage: &Stage, path| {
            (0..TRIES).filter_map(|_| reads(stage, path)).any(|took| took < BETWEEN)
        };
        assert!(is_quick(&stage, stage.fast), "the fast path is slower, too");
        options.slow_address = Some([127, 0, 0, 2].into());
        let stage = Stage::start(Operation::Read, &options).unwrap();
        assert_eq!(Some(stage.slow.ip()), options.slow_address);
        assert!(is_quick(&stage, stage.slow), "it is delayed twice");
    }
}
