//! What choosing among four paths costs the host: CPU time per read under completion-time, as a share of
//! the same under round-robin, in windows that alternate.
//!
//! In a guest whose instructions take one nanosecond each (`cargo xtask guest --exact`) the CPU time
//! is the number of instructions, those of the kernel included.

use crate::bench::Options;
use crate::bench::player::{Load, Mix, Player, Watch};
use crate::bench::report::{Report, Table, median};
use crate::bench::served::subsystem;
use anyhow::Context;
use namespace::Namespace;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use target::{NamespaceOptions, Server, ServerConfig};

const NQN: &str = "nqn.2026-11.io.nvlane:bench-policy";
/// The first is what the second is compared with.
const POLICIES: [&str; 2] = ["round-robin", "completion-time"];
const PATHS: usize = 4;
const IN_FLIGHT: usize = 32;
/// Pairs of windows.
const PAIRS: usize = 9;
const QUICK_PAIRS: usize = 3;
/// The name of the row, for `--only`.
pub const ROW: &str = "paths4";

/// Measures, and adds the row.
pub fn measure(player: &Player, options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let server = Server::start(&ServerConfig {
        cores: vec![Some(options.server_core)],
        ..ServerConfig::default()
    })?;
    let addresses = serve(&server)?;
    let volumes = POLICIES
        .iter()
        .map(|policy| open(&addresses, policy))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (warm, length) = match options.tiny {
        true => (Duration::from_millis(10), Duration::from_millis(20)),
        false => (Duration::from_millis(200), Duration::from_millis(500)),
    };
    let mut samples: Vec<[f64; 2]> = Vec::new();
    for pair in 0..if options.quick { QUICK_PAIRS } else { PAIRS } {
        let mut sample = [f64::NAN; 2];
        // In turns, so that neither is always the first.
        for at in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            let load =
                Load { mix: Mix::Read, bytes: 4096, in_flight: IN_FLIGHT, seed: pair as u64 };
            let watch = Watch { windows: vec![warm..warm + length], interval: length };
            let played = player.play(&volumes[at], load, &watch)?;
            let window = &played.windows[0];
            sample[at] = window.usage.cpu.as_secs_f64() * 1e6 / window.ios.max(1) as f64;
        }
        samples.push(sample);
    }
    let each = |at: usize| median(samples.iter().map(|sample| sample[at]));
    let ratio = median(samples.iter().map(|[before, after]| after / before));
    let mut table = Table {
        title: format!("four paths, {IN_FLIGHT} reads in flight: CPU time of the host per read"),
        columns: vec!["policy", "us", "of round-robin"],
        rows: Vec::new(),
    };
    for (at, policy) in POLICIES.iter().enumerate() {
        let share = if at == 0 { 1.0 } else { ratio };
        table.rows.push(vec![
            (*policy).to_owned(),
            format!("{:.3}", each(at)),
            format!("{share:.3}"),
        ]);
        report.figure(format!("{ROW}_{}_cpu_us", policy.replace('-', "_")), each(at));
    }
    report.figure(format!("{ROW}_completion_time_over_round_robin_cpu"), ratio);
    report.rows.push(json!({
        "operation": "randread", "paths": PATHS, "in_flight": IN_FLIGHT, "block_bytes": 4096,
        "policies": POLICIES, "beside": POLICIES[0], "ratio": ratio, "samples": samples,
    }));
    report.tables.push(table);
    Ok(())
}

fn serve(server: &Server) -> anyhow::Result<Vec<SocketAddr>> {
    server.add_subsystem(subsystem(NQN))?;
    let volume = volume::open("null:1G", &volume::OpenOptions::default())?;
    let options =
        NamespaceOptions { nsid: Some(1), uuid: [0x44; 16], nguid: [0; 16], ana_group: 1 };
    server.add_namespace(NQN, &options, volume)?;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    (0..PATHS).map(|_| Ok(server.add_listener(any)?.1)).collect()
}

fn open(addresses: &[SocketAddr], policy: &str) -> anyhow::Result<Arc<dyn Namespace>> {
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let uri = format!("tcp://{}/{NQN}?ns=1&policy={policy}", addresses.join(","));
    volume::open(&uri, &volume::OpenOptions::default())
        .with_context(|| format!("cannot open {uri}"))
}
