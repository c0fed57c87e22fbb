//! Runs named steps, remembers how each ended, and sums up:
//!
//! ```text
//! .. unit                           it has begun, in one of the lanes
//!
//! == unit
//! ...                               whatever the step printed
//! -- unit: 212 passed in 41.3 s     it has ended
//!
//! 240 passed, 1 failed              the last line, for people and for machines
//! ```
//!
//! A resumable run remembers what has passed, for exactly this state of the tree (records aside) and what was asked for, and
//! skips it when it is started again.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::lanes::{self, Count, Row, Step};
use crate::process::{capture, checkout};

/// Runs steps and remembers how they ended.
#[derive(Debug)]
pub struct Runner {
    filters: Vec<String>,
    lanes: usize,
    rows: Vec<Row>,
    resume: Option<Resume>,
    started: Instant,
}

impl Runner {
    /// Runs the steps whose name contains one of `filters`, all when there are none, in `lanes` lanes.
    pub fn new(filters: Vec<String>, lanes: usize) -> Self {
        Self { filters, lanes, rows: Vec::new(), resume: None, started: Instant::now() }
    }

    /// Skips what a run with the same tree, `asked` for the same, has already passed, as noted in `path`.
    pub fn resumable(mut self, checkout: &Path, path: PathBuf, asked: &str) -> Result<Self> {
        let resume = Resume::open(checkout, path, asked)?;
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

    /// Runs those of `steps` that are wanted, or that only prepare others; with logs in the folder
    /// `logs`.
    pub fn run<S: Default>(&mut self, logs: &Path, steps: Vec<Step<'_, S>>) {
        self.run_in(self.lanes, logs, steps);
    }

    /// The same, one after the other: steps that others beside them would disturb.
    pub fn run_alone(&mut self, logs: &Path, steps: Vec<Step<'_, ()>>) {
        self.run_in(1, logs, steps);
    }

    fn run_in<S: Default>(&mut self, lanes: usize, logs: &Path, steps: Vec<Step<'_, S>>) {
        let order: Vec<String> = steps.iter().map(|step| step.name.clone()).collect();
        let steps = steps.into_iter().filter(|step| step.prepares || self.wants(&step.name));
        lanes::run(lanes, room(lanes), logs, steps.collect(), |row| {
            if let Some(resume) = &mut self.resume
                && row.count.failed == 0
                && row.count.passed > 0
            {
                // Only a convenience is lost when this fails; say so and go on.
                resume
                    .note(row)
                    .unwrap_or_else(|error| println!("cannot note progress: {error:#}"));
            }
            self.rows.push(row.clone());
        });
        self.rows.sort_by_key(|row| order.iter().position(|name| *name == row.name));
    }

    /// All steps so far, those of the run that this one resumes among them, as they were ordered.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// What all steps counted together.
    pub fn total(&self) -> Count {
        let sum = |of: fn(&Row) -> u32| self.rows.iter().map(of).sum();
        Count { passed: sum(|row| row.count.passed), failed: sum(|row| row.count.failed) }
    }

    /// Whether the tree is not what it was when this began: what passed before and after is not of one tree.
    pub fn tree_has_changed(&mut self) -> Result<bool> {
        self.resume.as_mut().map_or(Ok(false), Resume::tree_has_changed)
    }

    /// Prints the summary; returns the exit status. Having run nothing is a failure.
    pub fn finish(&self) -> u8 {
        println!("\n== summary, after {:.0} s", self.started.elapsed().as_secs_f64());
        for row in &self.rows {
            let verdict = if row.count.failed == 0 { "ok    " } else { "FAILED" };
            println!("{verdict} {:>7.1} s  {}", row.took.as_secs_f64(), row.name);
            for line in &row.why {
                println!("                  {line}");
            }
        }
        let Count { passed, failed } = self.total();
        println!("{passed} passed, {failed} failed");
        u8::from(failed > 0 || passed == 0)
    }
}

/// Room of the steps in `lanes` lanes: one for each lane, and one more for each processor here. So of three guests beside each other on two
/// processors no more than two have two.
fn room(lanes: usize) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    lanes + processors
}

/// Steps that look at what [`tree_state`] leaves out.
const NEVER_CARRIED: [&str; 2] = ["tidy", "deb"];

/// The file that remembers what passed; its first line is the state of the tree, and what was asked for.
#[derive(Debug)]
struct Resume {
    /// The tree's place.
    checkout: PathBuf,
    file: File,
    rows: Vec<Row>,
    /// As it was when this began.
    tree: String,
    /// It has been another since: nothing is noted any more.
    has_changed: bool,
}

impl Resume {
    fn open(checkout: &Path, path: PathBuf, asked: &str) -> Result<Self> {
        let tree = tree_state(checkout)?;
        let key = format!("{tree} {asked}");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut lines = text.lines();
        let mut rows = Vec::new();
        if lines.next() == Some(&key) {
            rows.extend(lines.filter_map(parse_row));
            println!("resuming: {} steps have passed before ({})", rows.len(), path.display());
        } else {
            fs::write(&path, format!("{key}\n")).with_context(|| path.display().to_string())?;
        }
        let file = OpenOptions::new().append(true).open(&path)?;
        Ok(Self { checkout: checkout.to_owned(), file, rows, tree, has_changed: false })
    }

    fn tree_has_changed(&mut self) -> Result<bool> {
        if !self.has_changed && tree_state(&self.checkout)? != self.tree {
            println!("the tree has changed: what passes from now on is not noted");
            self.has_changed = true;
        }
        Ok(self.has_changed)
    }

    fn note(&mut self, row: &Row) -> Result<()> {
        if NEVER_CARRIED.contains(&row.name.as_str()) || self.tree_has_changed()? {
            return Ok(());
        }
        writeln!(self.file, "{}\t{}\t{}", row.count.passed, row.took.as_millis(), row.name)?;
        Ok(())
    }
}

fn parse_row(line: &str) -> Option<Row> {
    let mut fields = line.splitn(3, '\t');
    let passed = fields.next()?.parse().ok()?;
    let took = Duration::from_millis(fields.next()?.parse().ok()?);
    let name = fields.next()?.to_owned();
    Some(Row { name, count: Count { passed, failed: 0 }, took, why: Vec::new() })
}

/// Files that no step looks at but [`NEVER_CARRIED`], as git is told to leave them out.
const RECORDS: [&str; 6] = [
    ":!docs/results",
    ":!docs/performance.md",
    ":!docs/roadmap.md",
    ":!docs/limits.md",
    ":!docs/tried.md",
    ":!CHANGELOG.md",
];

/// A digest of all files but records, as they are: a commit that only says what was found does not make a run begin anew.
fn tree_state(checkout: &Path) -> Result<String> {
    let files = |arguments: &[&str]| {
        let records = ["--", "."].into_iter().chain(RECORDS);
        capture(Command::new("git").args(arguments).args(records).current_dir(checkout))
    };
    let mut state = files(&["ls-files", "--stage"])?;
    state.push_str(&files(&["diff"])?);
    // A test that nobody has added yet is a change as well.
    for name in files(&["ls-files", "--others", "--exclude-standard"])?.lines() {
        let content = fs::read(checkout.join(name)).unwrap_or_default();
        state.push_str(&format!("{name} {:016x}\n", fingerprint(&content)));
    }
    Ok(format!("{:016x}", fingerprint(state.as_bytes())))
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
    for Row { name, count, took, .. } in runner.rows() {
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
    use anyhow::bail;

    use super::*;

    /// Runs steps of these names, each of which passes unless it is called `bad`; returns which ran.
    fn ran(runner: &mut Runner, names: &[&str]) -> Vec<String> {
        let steps = names.iter().map(|&name| {
            Step::new(name, move |(): &mut (), _| match name {
                "bad" => bail!("broken"),
                _ => Ok(Count::ONE),
            })
        });
        let logs = std::env::temp_dir().join(format!("xtask-runner-{}", std::process::id()));
        runner.run(&logs, steps.collect());
        let mut ran: Vec<String> = runner.rows.iter().map(|row| row.name.clone()).collect();
        ran.sort();
        ran
    }

    #[test]
    fn a_failure_does_not_stop_the_steps_after_it() {
        let mut runner = Runner::new(Vec::new(), 1);
        ran(&mut runner, &["bad", "good"]);
        assert_eq!(runner.total(), Count { passed: 1, failed: 1 });
        assert_eq!(runner.finish(), 1);
    }

    #[test]
    fn only_wanted_steps_run_and_none_is_a_failure() {
        let mut runner = Runner::new(vec!["fuzz".into()], 1);
        assert!(ran(&mut runner, &["unit", "bad"]).is_empty());
        assert_eq!(runner.finish(), 1);
        assert_eq!(ran(&mut runner, &["unit", "fuzz/pdu"]), ["fuzz/pdu"]);
        assert_eq!(runner.finish(), 0);
    }

    /// A tree of its own: in ours, other tests have files for a while.
    fn tree(folder: &Path) -> PathBuf {
        let tree = folder.join("tree");
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join("a.rs"), "fn a() {}").unwrap();
        for arguments in [["init", "-q"], ["add", "."]] {
            capture(Command::new("git").args(arguments).current_dir(&tree)).unwrap();
        }
        tree
    }

    #[test]
    fn a_resumed_run_does_what_has_not_passed_and_prepares_it_again() {
        let folder = std::env::temp_dir().join(format!("xtask-resume-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let tree = tree(&folder);
        let path = folder.join("progress");
        let calls = std::sync::Mutex::new(Vec::new());
        let mut runs = Vec::new();
        for broken in [true, false] {
            let runner = Runner::new(Vec::new(), 2);
            let mut runner = runner.resumable(&tree, path.clone(), "seed 1").unwrap();
            let step = |name: &'static str, count: Count| {
                let calls = &calls;
                Step::new(name, move |(): &mut (), _| {
                    calls.lock().unwrap().push(name);
                    Ok(count)
                })
            };
            let second = if broken { Count::FAILED } else { Count::ONE };
            let steps = vec![
                step("build", Count::NONE).preparing(),
                step("a", Count::ONE),
                step("b", second),
            ];
            runner.run(&folder, steps);
            let names: Vec<String> = runner.rows().iter().map(|row| row.name.clone()).collect();
            assert_eq!(names, ["build", "a", "b"]);
            let mut called = std::mem::take(&mut *calls.lock().unwrap());
            called.sort_unstable();
            runs.push((called, runner.total()));
        }
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(runs[0], (vec!["a", "b", "build"], Count { passed: 1, failed: 1 }));
        assert_eq!(runs[1], (vec!["b", "build"], Count { passed: 2, failed: 0 }));
    }

    #[test]
    fn only_what_is_of_the_same_tree_and_was_asked_for_is_carried_over() {
        let folder = std::env::temp_dir().join(format!("xtask-carried-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let tree = tree(&folder);
        let open = |asked: &str| Resume::open(&tree, folder.join("progress"), asked).unwrap();
        let row = |name: &str| Row { name: name.into(), ..parse_row("1\t10\tx").unwrap() };
        let names = |resume: &Resume| {
            resume.rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>().join(" ")
        };
        let mut resume = open("seed 1");
        for name in ["tidy", "unit", "deb"] {
            resume.note(&row(name)).unwrap();
        }
        // The tree is another one while this runs.
        resume.tree.push('x');
        resume.note(&row("guest/fio")).unwrap();
        assert!(resume.tree_has_changed().unwrap());
        // Even if it comes back: what ran meanwhile is of the other.
        resume.tree.pop();
        resume.note(&row("guest/nbd")).unwrap();
        assert_eq!(names(&open("seed 1")), "unit");
        assert_eq!(names(&open("seed 2")), "");
        assert_eq!(names(&open("seed 1")), "", "it has been begun anew");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn records_are_there_to_be_left_out() {
        for record in RECORDS {
            let path = checkout().unwrap().join(record.trim_start_matches(":!"));
            assert!(path.exists(), "{record}");
        }
    }

    #[test]
    fn progress_is_read_back() {
        let row = parse_row("3\t1500\tguest/fio").unwrap();
        assert_eq!((row.name.as_str(), row.count.passed), ("guest/fio", 3));
        assert_eq!(row.took, Duration::from_millis(1500));
    }
}
