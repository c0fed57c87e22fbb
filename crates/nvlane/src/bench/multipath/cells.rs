//! What was measured so far, kept in a file: a full run takes hours, and may be stopped.

use super::best::Best;
use crate::bench::pipeline::histogram;
use crate::bench::player::PlayedWindow;
use anyhow::Context;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Name of the file in the bench's directory.
const FILE: &str = "nvlane-bench-multipath.json";
/// Those of a quick run, which leaves alone what a long one has kept.
const QUICK_FILE: &str = "nvlane-bench-multipath-quick.json";

/// One policy, one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Cell {
    /// By window.
    pub windows: Vec<WindowFigures>,
    /// By window: how many commands took how many nanoseconds.
    pub latencies: Vec<Latencies>,
    /// MiB/s by second.
    pub series_mib_s: Vec<f64>,
    /// By path.
    pub shares: Vec<f64>,
}

/// A histogram as it is kept: its values that occur, and how often.
pub type Latencies = Vec<(u64, u32)>;

impl Cell {
    /// What a report's row shows of it.
    pub fn sample(&self) -> Value {
        json!({ "windows": self.windows, "series_mib_s": self.series_mib_s, "shares": self.shares })
    }
}

/// To be kept.
pub fn latencies(histogram: &Histogram<u32>) -> Latencies {
    let values = histogram.iter_recorded();
    values.map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
}

/// Latency in microseconds over several windows: half, 99 of 100 and 999 of 1,000 commands did not exceed it.
pub fn quantiles_us<'a>(windows: impl Iterator<Item = &'a Latencies>) -> [f64; 3] {
    let mut all = histogram();
    for &(value, count) in windows.flatten() {
        all.saturating_record_n(value, count);
    }
    if all.is_empty() {
        return [f64::NAN; 3];
    }
    [0.5, 0.99, 0.999].map(|share| all.value_at_quantile(share) as f64 / 1e3)
}

/// What one window showed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WindowFigures {
    /// Throughput.
    pub mib_s: f64,
    /// Latency that half of the commands did not exceed.
    pub p50_us: f64,
    /// The same for 99 of 100.
    pub p99_us: f64,
    /// The same for 999 of 1,000.
    pub p99_9_us: f64,
    /// CPU time of the host per command.
    pub host_cpu_us: f64,
}

impl WindowFigures {
    /// From what was played.
    pub fn new(window: &PlayedWindow) -> WindowFigures {
        let quantile = |share| window.latency.value_at_quantile(share) as f64 / 1e3;
        WindowFigures {
            mib_s: window.iops() * f64::from(super::BYTES) / f64::from(1 << 20),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p99_9_us: quantile(0.999),
            host_cpu_us: window.usage.cpu.as_secs_f64() * 1e6 / window.ios.max(1) as f64,
        }
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Kept {
    /// What the cells are of; others are dropped.
    what: String,
    best: BTreeMap<String, Best>,
    cells: BTreeMap<String, Cell>,
}

/// What tells this program from one built of other sources: cells of different programs do not mix.
pub fn program() -> anyhow::Result<String> {
    let bytes = fs::read("/proc/self/exe").context("cannot read our own program")?;
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

/// All cells of a run, and where they are kept.
pub struct Cells {
    path: PathBuf,
    kept: Kept,
}

impl Cells {
    /// Those that an earlier run of the same `what` has left in `dir`, or none.
    pub fn open(dir: &Path, what: &str, quick: bool) -> anyhow::Result<Cells> {
        let path = dir.join(if quick { QUICK_FILE } else { FILE });
        let kept = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::NotFound => Kept::default(),
            Err(error) => return Err(error).context(path.display().to_string()),
        };
        let kept =
            if kept.what == what { kept } else { Kept { what: what.into(), ..Kept::default() } };
        Ok(Cells { path, kept })
    }

    /// What was measured of that row.
    pub fn find(&self, name: &str, run: usize) -> Option<&Cell> {
        self.kept.cells.get(&format!("{name}/{run}"))
    }

    /// Keeps one more.
    pub fn note(&mut self, name: &str, run: usize, cell: Cell) -> anyhow::Result<()> {
        self.kept.cells.insert(format!("{name}/{run}"), cell);
        self.save()
    }

    /// The paths alone, if they were measured.
    pub fn best(&self, operation: &str) -> Option<Best> {
        self.kept.best.get(operation).copied()
    }

    /// Keeps them.
    pub fn note_best(&mut self, operation: &str, best: Best) -> anyhow::Result<()> {
        self.kept.best.insert(operation.into(), best);
        self.save()
    }

    /// The run is complete: the next one begins anew.
    pub fn finished(&self) -> anyhow::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn save(&self) -> anyhow::Result<()> {
        let new = self.path.with_extension("new");
        fs::write(&new, serde_json::to_vec(&self.kept)?)
            .and_then(|()| fs::rename(&new, &self.path))
            .with_context(|| format!("{} cannot be written; see --dir", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_where_it_was_stopped_and_only_that_run() {
        let dir = tempfile::tempdir().unwrap();
        let cell = Cell {
            latencies: vec![vec![(4_600_000, 7)]],
            series_mib_s: vec![1.5],
            ..Cell::default()
        };
        let mut cells = Cells::open(dir.path(), "a", false).unwrap();
        assert!(cells.find("read_numa", 0).is_none());
        cells.note("read_numa", 0, cell).unwrap();
        let again = Cells::open(dir.path(), "a", false).unwrap();
        let found = again.find("read_numa", 0).unwrap();
        assert_eq!((found.series_mib_s[0], found.latencies[0][0]), (1.5, (4_600_000, 7)));
        assert!(again.find("read_numa", 1).is_none());
        assert!(Cells::open(dir.path(), "b", false).unwrap().find("read_numa", 0).is_none());
        // A quick run has cells of its own, and takes away no others.
        let quick = Cells::open(dir.path(), "a", true).unwrap();
        assert!(quick.find("read_numa", 0).is_none());
        quick.finished().unwrap();
        assert!(Cells::open(dir.path(), "a", false).unwrap().find("read_numa", 0).is_some());
        again.finished().unwrap();
        assert!(Cells::open(dir.path(), "a", false).unwrap().find("read_numa", 0).is_none());
        again.finished().unwrap();
    }

    #[test]
    fn latencies_of_all_windows_are_one_histogram() {
        let window = |us: u64, count: u32| {
            let mut one = histogram();
            one.record_n(us * 1000, count).unwrap();
            latencies(&one)
        };
        let near = |found: [f64; 3], expected: [f64; 3]| {
            let pairs = found.iter().zip(expected);
            pairs.for_each(|(found, expected)| assert!((found / expected - 1.0).abs() < 0.02));
        };
        let (fast, slow) = (window(100, 985), window(5000, 15));
        near(quantiles_us([&fast].into_iter()), [100.0; 3]);
        // 15 of 1,000 are slow, which neither window alone shows.
        near(quantiles_us([&fast, &slow].into_iter()), [100.0, 5000.0, 5000.0]);
        near(quantiles_us([&fast, &fast, &slow].into_iter()), [100.0, 100.0, 5000.0]);
        assert!(quantiles_us([].into_iter())[0].is_nan());
    }
}
