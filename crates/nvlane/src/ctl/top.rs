//! `nvlane ctl top`: what is served now, by namespace, as a table that is drawn anew.
//!
//! ```text
//!   stats, volume_list --> Sample --difference to the sample before--> rates and times --> table or JSON
//! ```

use crate::admin::{self, columns};
use crate::cli::Output;
use crate::control::client::Client;
use crate::control::method::Volume;
use crate::control::times::{Latencies, Times};
use crate::daemon::{NamespaceStatistics, Statistics};
use crate::paths::CLEAR;
use crate::size;
use crate::stdout;
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Lines of a table for people; the busiest come first.
const LINES_MAX: usize = 40;

/// How to look.
pub struct Look {
    /// Time between two samples.
    pub interval: Duration,
    /// How long an answer may take; zero: for ever.
    pub patience: Duration,
    /// Tables until it ends by itself.
    pub count: Option<u64>,
    /// How to write them.
    pub output: Output,
}

/// Draws tables of whoever listens at `socket`.
pub fn run(socket: &Path, look: &Look) -> Result<()> {
    let clear = look.output == Output::Text && io::stdout().is_terminal();
    let mut before = Sample::take(socket, look.patience)?;
    let mut left = look.count;
    while left != Some(0) {
        thread::sleep(look.interval);
        let sample = Sample::take(socket, look.patience)?;
        let now = Now::between(&before, &sample);
        let text = match look.output {
            Output::Json => format!("{}\n", now.json()),
            Output::Text => format!("{}{}", if clear { CLEAR } else { "" }, now.text()),
        };
        stdout::write(text)?;
        before = sample;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// What was told at one moment.
struct Sample {
    at: Instant,
    stats: Statistics,
    volumes: Vec<Volume>,
}

impl Sample {
    fn take(socket: &Path, patience: Duration) -> Result<Sample> {
        // For each sample anew: who says nothing for a minute is hung up on.
        let mut client = Client::connect(socket)?.patient_for(patience);
        let other = "the daemon is of another version";
        let volumes = client.call("volume_list", json!({}))?;
        let stats = client.call("stats", json!({}))?;
        let at = Instant::now();
        let stats = serde_json::from_value(stats).context(other)?;
        Ok(Sample { at, stats, volumes: serde_json::from_value(volumes).context(other)? })
    }
}

/// What was done between two samples.
struct Now {
    seconds: f64,
    /// Processors that were busy, 1 for each.
    processors: f64,
    resident_bytes: u64,
    connections: usize,
    namespaces: Vec<Busy>,
}

/// A namespace, per second.
struct Busy {
    nqn: String,
    nsid: u32,
    volume: String,
    reads: f64,
    writes: f64,
    /// Copies as well.
    others: f64,
    read_bytes: f64,
    written_bytes: f64,
    copied_bytes: f64,
    errors: f64,
    times: Latencies,
}

impl Now {
    fn between(before: &Sample, now: &Sample) -> Now {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let cpu_ms = |sample: &Sample| sample.stats.process.as_ref().map_or(0, |it| it.cpu_ms);
        let earlier: BTreeMap<_, _> =
            before.stats.namespaces.iter().map(|it| ((&*it.nqn, it.nsid), it)).collect();
        let names: BTreeMap<_, _> =
            now.volumes.iter().map(|it| ((&*it.nqn, it.nsid), &*it.volume)).collect();
        let mut namespaces: Vec<Busy> = now
            .stats
            .namespaces
            .iter()
            .map(|it| {
                let key = (&*it.nqn, it.nsid);
                let volume = names.get(&key).copied().unwrap_or_default();
                Busy::between(earlier.get(&key).copied(), it, volume, seconds)
            })
            .collect();
        namespaces.sort_by(|a, b| b.commands().total_cmp(&a.commands()));
        Now {
            seconds,
            processors: cpu_ms(now).saturating_sub(cpu_ms(before)) as f64 / 1e3 / seconds,
            resident_bytes: now.stats.process.as_ref().map_or(0, |it| it.resident_bytes),
            connections: now.stats.connections,
            namespaces,
        }
    }

    fn text(&self) -> String {
        let sum = |of: fn(&Busy) -> f64| self.namespaces.iter().map(of).sum::<f64>();
        let mut text = format!(
            "{:.0} commands/s, {}/s read, {}/s written; {} connection(s), {:.0} % of a processor, {} resident\n\n",
            sum(Busy::commands),
            bytes(sum(|it| it.read_bytes)),
            bytes(sum(|it| it.written_bytes)),
            self.connections,
            self.processors * 100.0,
            size::format(self.resident_bytes),
        );
        let busy: Vec<&Busy> = self.namespaces.iter().filter(|it| it.is_busy()).collect();
        let head = [
            "Namespace",
            "Reads/s",
            "Bytes/s",
            "p50",
            "p99",
            "Writes/s",
            "Bytes/s",
            "p50",
            "p99",
            "Others/s",
            "Errors/s",
            "Volume",
        ];
        let rows: Vec<_> = busy.iter().take(LINES_MAX).map(|it| it.row(self.is_one())).collect();
        if !rows.is_empty() {
            text.push_str(&columns(&head, &rows));
        }
        if busy.len() > LINES_MAX {
            let _ = writeln!(text, "{} more busy namespace(s)", busy.len() - LINES_MAX);
        }
        let _ = writeln!(text, "{} idle namespace(s)", self.namespaces.len() - busy.len());
        text
    }

    /// Whether all namespaces are of one subsystem, which then need not be named.
    fn is_one(&self) -> bool {
        self.namespaces.windows(2).all(|pair| pair[0].nqn == pair[1].nqn)
    }

    fn json(&self) -> Value {
        let namespaces: Vec<Value> = self.namespaces.iter().map(Busy::json).collect();
        admin::json_object(Map::from_iter([
            ("seconds".to_owned(), json!(self.seconds)),
            ("connections".to_owned(), json!(self.connections)),
            ("processors".to_owned(), json!(self.processors)),
            ("resident_bytes".to_owned(), json!(self.resident_bytes)),
            ("namespaces".to_owned(), namespaces.into()),
        ]))
    }
}

impl Busy {
    fn between(
        before: Option<&NamespaceStatistics>,
        now: &NamespaceStatistics,
        volume: &str,
        seconds: f64,
    ) -> Busy {
        // One that was removed and added again begins anew.
        let rate = |of: fn(&NamespaceStatistics) -> u64| {
            of(now).saturating_sub(before.map_or(0, of)) as f64 / seconds
        };
        Busy {
            nqn: now.nqn.clone(),
            nsid: now.nsid,
            volume: volume.to_owned(),
            reads: rate(|it| it.reads),
            writes: rate(|it| it.writes),
            others: rate(|it| it.others + it.copies),
            read_bytes: rate(|it| it.read_bytes),
            written_bytes: rate(|it| it.written_bytes),
            copied_bytes: rate(|it| it.copied_bytes),
            errors: rate(|it| it.errors),
            times: match before {
                Some(before) => now.latency.since(&before.latency),
                None => now.latency.clone(),
            },
        }
    }

    fn commands(&self) -> f64 {
        self.reads + self.writes + self.others
    }

    fn is_busy(&self) -> bool {
        self.commands() + self.errors > 0.0
    }

    fn row(&self, is_one: bool) -> [String; 12] {
        let name =
            if is_one { self.nsid.to_string() } else { format!("{} {}", self.nsid, self.nqn) };
        let [read, write] = [&self.times.read, &self.times.write];
        [
            name,
            format!("{:.0}", self.reads),
            bytes(self.read_bytes),
            time(read, read.p50_ns),
            time(read, read.p99_ns),
            format!("{:.0}", self.writes),
            bytes(self.written_bytes),
            time(write, write.p50_ns),
            time(write, write.p99_ns),
            format!("{:.0}", self.others),
            format!("{:.0}", self.errors),
            self.volume.clone(),
        ]
    }

    fn json(&self) -> Value {
        let times = |times: &Times| json!({ "p50_ns": times.p50_ns, "p99_ns": times.p99_ns });
        json!({
            "nqn": self.nqn,
            "nsid": self.nsid,
            "volume": self.volume,
            "reads_per_second": self.reads,
            "writes_per_second": self.writes,
            "others_per_second": self.others,
            "read_bytes_per_second": self.read_bytes,
            "written_bytes_per_second": self.written_bytes,
            "copied_bytes_per_second": self.copied_bytes,
            "errors_per_second": self.errors,
            "read": times(&self.times.read),
            "write": times(&self.times.write),
            "copy": times(&self.times.copy),
            "other": times(&self.times.other),
        })
    }
}

/// Bytes for reading, one decimal.
fn bytes(count: f64) -> String {
    for (unit, power) in [("GiB", 3), ("MiB", 2), ("KiB", 1)] {
        let size = 1024_f64.powi(power);
        if count >= size {
            return format!("{:.1} {unit}", count / size);
        }
    }
    format!("{count:.0} B")
}

/// A time for reading, of as much as buckets of a power of two tell.
pub fn time(times: &Times, ns: u64) -> String {
    match ns {
        _ if times.count() == 0 => "-".to_owned(),
        0..=8192 => "< 8 us".to_owned(),
        8193..1_000_000 => format!("{:.0} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}
