//! Runs named steps one after the other, says how each ended, and sums up:
//!
//! ```text
//! == unit
//! ...                               whatever the step prints
//! -- unit: 212 passed in 41.3 s
//!
//! 240 passed, 1 failed              the last line, for people and for machines
//! ```
//!
//! A step that fails does not stop those after it. A resumable run remembers what has passed, for
//! exactly this state of the tree, and skips it when it is started again.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{capture, checkout, line_of};

/// How many checks a step consisted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Those that passed.
    pub passed: u32,
    /// Those that failed.
    pub failed: u32,
}

impl Count {
    /// A step that is one check.
    pub const ONE: Self = Self { passed: 1, failed: 0 };
}

/// A step that has ended.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What it counted.
    pub count: Count,
    /// How long it took.
    pub took: Duration,
}

/// Runs steps and remembers how they ended.
#[derive(Debug)]
pub struct Runner {
    filters: Vec<String>,
    rows: Vec<Row>,
    resume: Option<Resume>,
    started: Instant,
}

impl Runner {
    /// Runs the steps whose name contains one of `filters`; all when there are none.
    pub fn new(filters: Vec<String>) -> Self {
        Self { filters, rows: Vec::new(), resume: None, started: Instant::now() }
    }

    /// Skips what a run with the same tree has already passed, as noted in `path`.
    pub fn resumable(mut self, path: PathBuf) -> Result<Self> {
        let resume = Resume::open(path)?;
        self.rows.clone_from(&resume.rows);
        self.resume = Some(resume);
        Ok(self)
    }

    /// Whether a step of that name is to be run: it is wanted, and has not passed before.
    pub fn wants(&self, name: &str) -> bool {
        let wanted =
            self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter));
        wanted && !self.rows.iter().any(|row| row.name == name)
    }

    /// Runs a step unless it is not wanted.
    pub fn step(&mut self, name: &str, action: impl FnOnce() -> Result<Count>) {
        if !self.wants(name) {
            return;
        }
        println!("\n== {name}");
        let started = Instant::now();
        let count = action().unwrap_or_else(|error| {
            println!("{error:#}");
            Count { passed: 0, failed: 1 }
        });
        self.note(name, count, started.elapsed());
    }

    /// Notes a step that somebody else ran.
    pub fn note(&mut self, name: &str, count: Count, took: Duration) {
        let seconds = took.as_secs_f64();
        match count.failed {
            0 => println!("-- {name}: {} passed in {seconds:.1} s", count.passed),
            failed => println!("-- {name}: {failed} FAILED in {seconds:.1} s"),
        }
        let row = Row { name: name.to_owned(), count, took };
        if let Some(resume) = &mut self.resume
            && count.failed == 0
        {
            // Only a convenience is lost when this fails; say so and go on.
            resume.note(&row).unwrap_or_else(|error| println!("cannot note progress: {error:#}"));
        }
        self.rows.push(row);
    }

    /// All steps so far, those of the run that this one resumes among them.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// What all steps counted together.
    pub fn total(&self) -> Count {
        let sum = |of: fn(&Row) -> u32| self.rows.iter().map(of).sum();
        Count { passed: sum(|row| row.count.passed), failed: sum(|row| row.count.failed) }
    }

    /// Prints the summary; returns the exit status. Having run nothing is a failure.
    pub fn finish(&self) -> u8 {
        println!("\n== summary, after {:.0} s", self.started.elapsed().as_secs_f64());
        for row in &self.rows {
            let verdict = if row.count.failed == 0 { "ok    " } else { "FAILED" };
            println!("{verdict} {:>7.1} s  {}", row.took.as_secs_f64(), row.name);
        }
        let Count { passed, failed } = self.total();
        println!("{passed} passed, {failed} failed");
        u8::from(failed > 0 || passed == 0)
    }
}

/// Runs cargo's or libtest's command, shows its output, and adds up its `test result:` lines.
pub fn counted(command: &mut Command) -> Result<Count> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| line_of(command))?;
    let mut count = Count { passed: 0, failed: 0 };
    let stdout = child.stdout.take().expect("stdout is a pipe");
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        if let Some(result) = test_result(&line) {
            count.passed += result.passed;
            count.failed += result.failed;
        }
    }
    let status = child.wait()?;
    if !status.success() && count.failed == 0 {
        bail!("{} failed: {status}", line_of(command));
    }
    Ok(count)
}

/// `test result: ok. 3 passed; 0 failed; 0 ignored; ...`
fn test_result(line: &str) -> Option<Count> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = counts.split("; ");
    let mut next = |word: &str| counts.next()?.strip_suffix(word)?.trim().parse().ok();
    Some(Count { passed: next("passed")?, failed: next("failed")? })
}

/// The file that remembers what passed; its first line is the state of the tree.
#[derive(Debug)]
struct Resume {
    file: File,
    rows: Vec<Row>,
}

impl Resume {
    fn open(path: PathBuf) -> Result<Self> {
        let tree = tree_state()?;
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut lines = text.lines();
        if lines.next() != Some(&tree) {
            fs::write(&path, format!("{tree}\n")).with_context(|| path.display().to_string())?;
            let file = OpenOptions::new().append(true).open(&path)?;
            return Ok(Self { file, rows: Vec::new() });
        }
        let rows: Vec<Row> = lines.filter_map(parse_row).collect();
        println!("resuming: {} steps have passed before ({})", rows.len(), path.display());
        Ok(Self { file: OpenOptions::new().append(true).open(&path)?, rows })
    }

    fn note(&mut self, row: &Row) -> Result<()> {
        writeln!(self.file, "{}\t{}\t{}", row.count.passed, row.took.as_millis(), row.name)?;
        Ok(())
    }
}

fn parse_row(line: &str) -> Option<Row> {
    let mut fields = line.splitn(3, '\t');
    let passed = fields.next()?.parse().ok()?;
    let took = Duration::from_millis(fields.next()?.parse().ok()?);
    let name = fields.next()?.to_owned();
    Some(Row { name, count: Count { passed, failed: 0 }, took })
}

/// The commit, and a digest of what differs from it.
fn tree_state() -> Result<String> {
    let checkout = checkout()?;
    let git =
        |arguments: &[&str]| capture(Command::new("git").args(arguments).current_dir(&checkout));
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["diff", "HEAD", "--", ".", ":!docs"])?;
    Ok(format!("{} {:016x}", commit.trim(), fingerprint(changes.as_bytes())))
}

/// FNV-1a: tells two states of a tree apart; nobody attacks it.
fn fingerprint(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Writes the dated record of a full run to docs/results; returns where.
pub fn record(runner: &Runner, about: &[(&str, String)]) -> Result<PathBuf> {
    let date = capture(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    let directory = checkout()?.join("docs/results");
    fs::create_dir_all(&directory)?;
    let path = directory.join(format!("{}-test-full.md", date.trim()));
    let mut text = format!("# Full test run of {}\n\n", date.trim());
    for (what, value) in about {
        text.push_str(&format!("- {what}: {value}\n"));
    }
    let Count { passed, failed } = runner.total();
    text.push_str(&format!("- {passed} passed, {failed} failed\n\n"));
    text.push_str("| step | passed | failed | seconds |\n|---|---|---|---|\n");
    for Row { name, count, took } in runner.rows() {
        let seconds = took.as_secs_f64();
        text.push_str(&format!(
            "| {name} | {} | {} | {seconds:.1} |\n",
            count.passed, count.failed
        ));
    }
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    relative(&path)
}

fn relative(path: &Path) -> Result<PathBuf> {
    Ok(path.strip_prefix(checkout()?)?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_libtest_are_counted() {
        let line =
            "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(test_result(line), Some(Count { passed: 12, failed: 3 }));
        assert_eq!(test_result("test tests::x ... ok"), None);
    }

    #[test]
    fn a_failure_does_not_stop_the_steps_after_it() {
        let mut runner = Runner::new(Vec::new());
        runner.step("bad", || bail!("broken"));
        runner.step("good", || Ok(Count { passed: 4, failed: 0 }));
        assert_eq!(runner.total(), Count { passed: 4, failed: 1 });
        assert_eq!(runner.finish(), 1);
    }

    #[test]
    fn only_wanted_steps_run_and_none_is_a_failure() {
        let mut runner = Runner::new(vec!["fuzz".into()]);
        runner.step("unit", || unreachable!("not wanted"));
        assert_eq!(runner.finish(), 1);
        runner.step("fuzz/pdu", || Ok(Count::ONE));
        assert_eq!(runner.finish(), 0);
    }

    #[test]
    fn progress_is_read_back() {
        let row = parse_row("3\t1500\tguest/fio").unwrap();
        assert_eq!((row.name.as_str(), row.count.passed), ("guest/fio", 3));
        assert_eq!(row.took, Duration::from_millis(1500));
    }
}
