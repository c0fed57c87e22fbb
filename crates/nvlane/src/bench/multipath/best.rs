//! What the best possible split over both paths gives, from each path measured alone.

use super::stage::Stage;
use super::{BYTES, INTERVAL, Operation};
use crate::bench::player::{Load, Player, Watch};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Each path alone, and the best of both.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Best {
    /// Latency of one command at a time, in microseconds, by path.
    pub latency_us: [f64; 2],
    /// All commands in flight on that path alone, in MiB/s.
    pub alone_mib_s: [f64; 2],
    /// The most that any split of the commands in flight can give.
    pub mib_s: f64,
}

impl Best {
    /// Measures for `time` four times: one command, then all of them, on each path.
    pub fn measure(
        stage: &Stage,
        player: &Player,
        operation: Operation,
        time: Duration,
    ) -> anyhow::Result<Best> {
        let (mut latency_us, mut alone_mib_s) = ([0.0; 2], [0.0; 2]);
        for (path, address) in [stage.fast, stage.slow].into_iter().enumerate() {
            let volume = stage.open(&[address], "numa")?;
            let play = |in_flight| {
                let load = Load { mix: operation.mix(), bytes: BYTES, in_flight, seed: 1 };
                // The first half fills the queues.
                let watch = Watch { windows: vec![time / 2..time], interval: INTERVAL };
                player.play(&volume, load, &watch)
            };
            let one = play(1)?;
            latency_us[path] = one.windows[0].latency.value_at_quantile(0.5) as f64 / 1e3;
            let all = play(stage.in_flight)?;
            alone_mib_s[path] = all.windows[0].iops() * f64::from(BYTES) / f64::from(1 << 20);
        }
        let mib_s = best(stage.in_flight, latency_us, alone_mib_s);
        Ok(Best { latency_us, alone_mib_s, mib_s })
    }
}

/// By Little's law `n` commands on a path give at most `n / latency`, and no more than the path
/// gives alone; both together no more than the backend that they share, which the faster one alone
/// has shown.
fn best(in_flight: usize, latency_us: [f64; 2], alone_mib_s: [f64; 2]) -> f64 {
    let mib = f64::from(BYTES) / f64::from(1 << 20);
    let gives = |path: usize, commands: usize| {
        (commands as f64 / latency_us[path] * 1e6 * mib).min(alone_mib_s[path])
    };
    let backend = alone_mib_s[0].max(alone_mib_s[1]);
    let splits = (0..=in_flight).map(|fast| gives(0, fast) + gives(1, in_flight - fast));
    splits.fold(0.0, f64::max).min(backend)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_one_path_fills_is_the_bound() {
        // 512 commands at 4.6 ms would give 435 MiB/s.
        assert_eq!(best(512, [4_600.0, 34_600.0], [350.0, 57.0]), 350.0);
    }

    #[test]
    fn paths_that_do_not_fill_it_are_bounded_by_latency() {
        // Both the same: any split gives what one alone gives.
        let both = best(512, [10_000.0, 10_000.0], [200.0, 200.0]);
        assert!((both - 200.0).abs() < 1e-9, "{both}");
    }
}
