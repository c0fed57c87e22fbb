//! What a scenario hands back: rows with their samples, named figures, tables and bars.

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The result of one scenario. Serialized, it is the bench contract's object.
#[derive(Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: &'static str,
    /// Where it ran, with what beside it.
    pub machine: Machine,
    /// One object per row, with the samples from which the figures follow.
    pub rows: Vec<Value>,
    /// Plain numbers by name; one that is not a number, and null in JSON, could not be measured.
    pub figures: BTreeMap<String, f64>,
    /// For people.
    #[serde(skip)]
    pub tables: Vec<Table>,
    /// For the picture.
    #[serde(skip)]
    pub bars: Vec<Bars>,
    /// For the picture.
    #[serde(skip)]
    pub lines: Vec<Lines>,
}

/// Where a scenario ran.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub processor: String,
    /// Cores that are on line.
    pub cores: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Seconds since 1970 at the start.
    pub unix_time: u64,
    /// Version of this program.
    pub nvlane: &'static str,
    /// Peers by name: their version, or why they are missing.
    pub peers: BTreeMap<String, String>,
    /// How things were counted, and what could not be.
    pub notes: Vec<String>,
}

/// A table for people.
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<&'static str>,
    /// Cells, as many per row as there are columns.
    pub rows: Vec<Vec<String>>,
}

/// A group of bars, each a share of something that is 1.
pub struct Bars {
    /// What they show.
    pub title: String,
    /// Label, value, and what is printed behind the bar.
    pub bars: Vec<(String, f64, String)>,
}

/// Values over time.
pub struct Lines {
    /// What they show.
    pub title: String,
    /// Seconds between two values.
    pub step: f64,
    /// Label and values.
    pub lines: Vec<(String, Vec<f64>)>,
}

impl Report {
    /// An empty report.
    pub fn new(scenario: &'static str) -> Report {
        Report {
            scenario,
            machine: Machine::this(),
            rows: Vec::new(),
            figures: BTreeMap::new(),
            tables: Vec::new(),
            bars: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Notes a figure, rounded to four significant decimals; not a number when it is none.
    pub fn figure(&mut self, name: impl Into<String>, value: f64) {
        if value.is_finite() {
            self.figures.insert(name.into(), (value * 1e4).round() / 1e4);
        }
    }

    /// The same for one that is to be there always: null when it is not a number, with a note of why.
    pub fn figure_or_null(&mut self, name: &str, value: f64, why: &str) {
        if value.is_finite() {
            return self.figure(name, value);
        }
        self.figures.insert(name.into(), f64::NAN);
        self.machine.notes.push(format!("{name} could not be measured: {why}"));
    }
}

impl Machine {
    /// The machine that this runs on.
    pub fn this() -> Machine {
        let line = |file: &str, key: &str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let value = text.lines().find_map(|line| line.strip_prefix(key)?.split_once(':'));
            value.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = line("/proc/meminfo", "MemTotal");
        let kib = memory.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let refusal = reactor::refusal();
        Machine {
            processor: line("/proc/cpuinfo", "model name"),
            // SAFETY: sysconf has no preconditions.
            cores: unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize,
            memory_mib: kib.unwrap_or(0) / 1024,
            kernel: kernel.trim().to_owned(),
            unix_time: now.map_or(0, |elapsed| elapsed.as_secs()),
            nvlane: env!("CARGO_PKG_VERSION"),
            peers: BTreeMap::new(),
            notes: refusal
                .iter()
                .map(|refusal| format!("io_uring is not used: {refusal}"))
                .collect(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        writeln!(
            f,
            "{}: {}, {} cores, {} MiB, Linux {}, nvlane {}",
            self.scenario,
            machine.processor,
            machine.cores,
            machine.memory_mib,
            machine.kernel,
            machine.nvlane
        )?;
        for (peer, state) in &machine.peers {
            writeln!(f, "beside {peer}: {state}")?;
        }
        for note in &machine.notes {
            writeln!(f, "note: {note}")?;
        }
        for table in &self.tables {
            write!(f, "\n{table}")?;
        }
        writeln!(f, "\nfigures")?;
        for (name, value) in &self.figures {
            match value.is_finite() {
                true => writeln!(f, "  {name:<32} {value}")?,
                false => writeln!(f, "  {name:<32} not measured")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths: Vec<usize> = self.columns.iter().map(|name| name.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        writeln!(f, "{}", self.title)?;
        let mut line = String::new();
        let header: Vec<String> = self.columns.iter().map(|&name| name.to_owned()).collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            line.clear();
            for (index, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                if index == 0 {
                    write!(line, "  {cell:<width$}")?;
                } else {
                    write!(line, "  {cell:>width$}")?;
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The middle value; not a number when there is none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[len / 2],
        len => (values[len / 2 - 1] + values[len / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[test]
    fn the_object_has_the_four_keys_of_the_contract() {
        let mut report = Report::new("target");
        report.figure("randread_qd1_of_limit", 0.91234567);
        report.figure("absent", f64::NAN);
        report.figure_or_null("missing", f64::NAN, "there is no such server");
        let value = serde_json::to_value(&report).unwrap();
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["figures", "machine", "rows", "scenario"]);
        let figures = serde_json::json!({"missing": null, "randread_qd1_of_limit": 0.9123});
        assert_eq!(value["figures"], figures);
        let notes = value["machine"]["notes"].to_string();
        assert!(notes.contains("there is no such server"), "{notes}");
    }

    #[test]
    fn columns_are_aligned() {
        let table = Table {
            title: "t".into(),
            columns: vec!["a", "long"],
            rows: vec![vec!["wide one".into(), "1".into()]],
        };
        assert_eq!(table.to_string(), "t\n  a         long\n  wide one     1\n");
    }
}
