//! Steps in lanes side by side: each lane takes the next step when it has ended its last.
//!
//! ```text
//!   queue                        lane 1: build ───────────> guest/fio ──> guest/nbd ──> ...
//!   build, fuzz/pdu, ...         lane 2: fuzz/pdu ─> ... ─> guest/holes ──> ...
//! ```
//!
//! A lane takes the first step for which there is room: guests with several processors take more of it, so that fewer
//! of them are beside each other. What a step prints is shown in one piece when it has ended; until then it is in its log (see
//! [`Output`]). In a single lane it is shown as it comes. A step that fails or panics does not stop
//! those after it, nor those beside it.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::process::line_of;

/// Lanes that steps run in, side by side.
const LANES: usize = 2;
/// One more everyday, when most guests have one processor, and what of them waits leaves time for it.
const LANES_EVERYDAY: usize = 3;
/// Of memory for each lane's guest, and for what else runs there.
const LANE_BYTES: u64 = 5 << 30;

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
    /// A step that checks nothing, such as a build.
    pub const NONE: Self = Self { passed: 0, failed: 0 };
    /// A step that could not do its work.
    pub const FAILED: Self = Self { passed: 0, failed: 1 };
}

/// What a step does; `S` is what its lane keeps from step to step, such as a running guest.
type Action<'a, S> = Box<dyn FnOnce(&mut S, &mut Output) -> Result<Count> + Send + 'a>;

/// Something to do, and its name.
pub struct Step<'a, S> {
    /// As shown, filtered and remembered.
    pub name: String,
    /// It makes what others need, and is done whatever was asked for.
    pub prepares: bool,
    /// Of the room that all steps share.
    weight: usize,
    action: Action<'a, S>,
}

impl<'a, S> Step<'a, S> {
    /// `action` gets what its lane keeps, and where it is to write.
    pub fn new(
        name: impl Into<String>,
        action: impl FnOnce(&mut S, &mut Output) -> Result<Count> + Send + 'a,
    ) -> Self {
        Self { name: name.into(), prepares: false, weight: 1, action: Box::new(action) }
    }

    /// The same, taking as much room as `weight` others.
    pub fn weighing(self, weight: usize) -> Self {
        Self { weight, ..self }
    }

    /// The same, done whatever was asked for.
    pub fn preparing(self) -> Self {
        Self { prepares: true, ..self }
    }
}

/// How a step ended.
#[derive(Clone, Debug)]
pub struct Row {
    /// The step's name.
    pub name: String,
    /// What it counted.
    pub count: Count,
    /// How long it took.
    pub took: Duration,
    /// Why it failed, in a few lines, as far as that is known.
    pub why: Vec<String>,
}

/// Lanes on this machine where nobody says how many: fewer in the full run, whose guests have more processors.
pub fn usual(full: bool) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    lanes_for(processors, memory_bytes(&memory).unwrap_or(0), full)
}

/// One on a single processor. As many as there is memory for, two at least, as ever.
fn lanes_for(processors: usize, memory: u64, full: bool) -> usize {
    let most = if full { LANES } else { LANES_EVERYDAY };
    let fit = usize::try_from(memory / LANE_BYTES).unwrap_or(most);
    if processors == 1 { 1 } else { most.min(fit.max(LANES)) }
}

/// What this machine has, as /proc/meminfo tells it.
fn memory_bytes(told: &str) -> Option<u64> {
    let line = told.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// A step's part of the room, given back when it is dropped: however the step ends.
struct Place<'a, 'b, S> {
    queue: &'b Queue<'a, S>,
    weight: usize,
}

impl<S> Drop for Place<'_, '_, S> {
    fn drop(&mut self) {
        let mut waiting = self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.1 += self.weight;
        self.queue.changed.notify_all();
    }
}

/// Steps that nobody has taken, and the room that is left beside those that run.
struct Queue<'a, S> {
    room: usize,
    waiting: Mutex<(VecDeque<Step<'a, S>>, usize)>,
    changed: Condvar,
}

impl<'a, S> Queue<'a, S> {
    fn new(steps: Vec<Step<'a, S>>, room: usize) -> Self {
        Self { room, waiting: Mutex::new((steps.into(), room)), changed: Condvar::new() }
    }

    /// The first step that fits, and its place; waits for room. None when all are taken.
    fn take(&self) -> Option<(Step<'a, S>, Place<'a, '_, S>)> {
        let mut waiting = self.waiting.lock().expect("no step runs under this lock");
        loop {
            let (steps, left) = &mut *waiting;
            if steps.is_empty() {
                return None;
            }
            // What is larger than all the room gets all of it.
            let weight = |step: &Step<'_, S>| step.weight.min(self.room);
            if let Some(at) = steps.iter().position(|step| weight(step) <= *left) {
                let step = steps.remove(at)?;
                let weight = weight(&step);
                *left -= weight;
                return Some((step, Place { queue: self, weight }));
            }
            waiting = self.changed.wait(waiting).expect("no step runs under this lock");
        }
    }
}

/// Runs `steps` in `lanes` lanes, in order as far as they fit into `room`; `ended` hears of each, before the next is shown. Logs
/// of steps are in the folder `logs`. A lane starts with `S::default()`, and drops it at its end.
pub fn run<S: Default>(
    lanes: usize,
    room: usize,
    logs: &Path,
    steps: Vec<Step<'_, S>>,
    ended: impl FnMut(&Row) + Send,
) {
    let queue = Queue::new(steps, room);
    let ended = Mutex::new(ended);
    let lane = || {
        let mut kept = S::default();
        while let Some((step, place)) = queue.take() {
            let row = run_one(step, (lanes > 1).then_some(logs), &mut kept);
            drop(place);
            // Also orders what is shown: that of one step, then that of another.
            let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
            show(&row);
            ended(&row.0);
        }
    };
    thread::scope(|scope| {
        for _ in 1..lanes {
            scope.spawn(lane);
        }
        lane();
    });
}

/// The row, and what is still to be shown.
fn run_one<S>(step: Step<'_, S>, logs: Option<&Path>, kept: &mut S) -> (Row, String) {
    let Step { name, action, .. } = step;
    let begin = if logs.is_some() { ".." } else { "\n==" };
    println!("{begin} {name}");
    let started = Instant::now();
    let mut output = Output { log: None, started, why: Vec::new() };
    let done = logs.map_or(Ok(()), |logs| output.keep(logs, &name)).and_then(|()| {
        catch_unwind(AssertUnwindSafe(|| action(kept, &mut output)))
            .unwrap_or_else(|panic| Err(anyhow!("the step panicked: {}", words_of(&*panic))))
    });
    let count = done.unwrap_or_else(|error| {
        let error = format!("{error:#}");
        output.say(&error);
        output.blame(&error);
        Count::FAILED
    });
    let why = std::mem::take(&mut output.why);
    let row = Row { name, count, took: output.started.elapsed(), why };
    (row, output.rest())
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

fn show((row, rest): &(Row, String)) {
    let Row { name, count, took, .. } = row;
    let seconds = took.as_secs_f64();
    let verdict = match count.failed {
        0 => format!("-- {name}: {} passed in {seconds:.1} s", count.passed),
        failed => format!("-- {name}: {failed} FAILED in {seconds:.1} s"),
    };
    let begin = if rest.is_empty() { String::new() } else { format!("\n== {name}\n{rest}") };
    println!("{begin}{verdict}");
}

/// Where a step writes: to our own stdout and stderr when it is alone, else to its log
/// `NAME.log`, which can be followed while it runs.
#[derive(Debug)]
pub struct Output {
    log: Option<(PathBuf, File)>,
    started: Instant,
    why: Vec<String>,
}

/// So many lines say why a step has failed, at most; the rest is in its log.
const WHY_MAX: usize = 6;

impl Output {
    /// What is said from now on is kept in the log of the step `name`.
    fn keep(&mut self, logs: &Path, name: &str) -> Result<()> {
        fs::create_dir_all(logs).with_context(|| logs.display().to_string())?;
        let path = logs.join(format!("{}.log", name.replace('/', "-")));
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        self.log = Some((path, file));
        Ok(())
    }

    /// What was kept.
    fn rest(&self) -> String {
        let Some((path, _)) = &self.log else { return String::new() };
        match fs::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => format!("{}: {error}\n", path.display()),
        }
    }

    /// Writes a line, or several.
    pub fn say(&mut self, text: &str) {
        let text = text.trim_end_matches('\n');
        match &mut self.log {
            None => println!("{text}"),
            // What cannot be written is not worth the step.
            Some((_, file)) => drop(writeln!(file, "{text}")),
        }
    }

    /// Notes why the step fails, for the summary.
    pub fn blame(&mut self, text: &str) {
        let room = WHY_MAX - self.why.len();
        self.why.extend(text.lines().take(room).map(str::to_owned));
    }

    /// The step's time begins now: what came before was waiting for others.
    pub fn start_clock(&mut self) {
        self.started = Instant::now();
    }

    /// Runs `command` with stdin closed; its output goes where ours goes.
    pub fn run(&self, command: &mut Command) -> Result<()> {
        let said = command.stdin(Stdio::null()).stdout(self.stdio()?).stderr(self.stdio()?);
        let status = said.status().with_context(|| line_of(command))?;
        if !status.success() {
            bail!("{} failed: {status}", line_of(command));
        }
        Ok(())
    }

    /// Runs cargo's or libtest's command and adds up its `test result:` lines.
    pub fn counted(&mut self, command: &mut Command) -> Result<Count> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(self.stdio()?);
        let mut child = command.spawn().with_context(|| line_of(command))?;
        let mut count = Count::NONE;
        let stdout = child.stdout.take().expect("stdout is a pipe");
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            self.say(&line);
            if line.starts_with("test ") && line.ends_with(" FAILED") {
                self.blame(&line);
            }
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

    /// Runs `command` and returns its stdout; its stderr goes where ours goes.
    pub fn captured(&self, command: &mut Command) -> Result<String> {
        let said = command.stdin(Stdio::null()).stderr(self.stdio()?).output();
        let said = said.with_context(|| line_of(command))?;
        if !said.status.success() {
            bail!("{} failed: {}", line_of(command), said.status);
        }
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    }

    fn stdio(&self) -> Result<Stdio> {
        match &self.log {
            None => Ok(Stdio::inherit()),
            Some((_, file)) => Ok(file.try_clone()?.into()),
        }
    }
}

/// `test result: ok. 3 passed; 0 failed; 0 ignored; ...`
pub fn test_result(line: &str) -> Option<Count> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = counts.split("; ");
    let mut next = |word: &str| counts.next()?.strip_suffix(word)?.trim().parse().ok();
    Some(Count { passed: next("passed")?, failed: next("failed")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of logs of its own, gone with the test.
    struct Logs(PathBuf);

    impl Logs {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("xtask-lanes-{}-{name}", std::process::id())))
        }
    }

    impl Drop for Logs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn rows<S: Default>(lanes: usize, logs: &Logs, steps: Vec<Step<'_, S>>) -> Vec<Row> {
        let mut rows = Vec::new();
        run(lanes, lanes, &logs.0, steps, |row| rows.push(row.clone()));
        rows
    }

    #[test]
    fn steps_beside_each_other_fit_into_the_room_and_the_first_that_fits_goes_first() {
        let step =
            |name: &str, weight| Step::new(name, |(): &mut (), _| Ok(Count::ONE)).weighing(weight);
        let queue = Queue::new(
            vec![step("a", 2), step("b", 2), step("c", 2), step("d", 1), step("all", 9)],
            5,
        );
        let take = || queue.take().expect("there are more");
        let said =
            |(step, place): &(Step<'_, ()>, Place<'_, '_, ()>)| (step.name.clone(), place.weight);
        let is = |name: &str, weight| (name.to_owned(), weight);
        let (a, b, d) = (take(), take(), take());
        assert_eq!([said(&a), said(&b), said(&d)], [is("a", 2), is("b", 2), is("d", 1)]);
        thread::scope(|scope| {
            // For c.
            let waits = scope.spawn(take);
            drop(d);
            assert!(!waits.is_finished(), "it does not fit");
            drop(a);
            let c = waits.join().unwrap();
            assert_eq!(said(&c), is("c", 2));
            let waits = scope.spawn(take);
            drop((b, c));
            assert_eq!(said(&waits.join().unwrap()), is("all", 5));
        });
        assert!(queue.take().is_none());
    }

    #[test]
    fn what_fails_or_panics_in_a_lane_stops_nothing_else() {
        for lanes in [1, 2, 3] {
            let logs = Logs::new(&format!("fails-{lanes}"));
            let mut steps: Vec<Step<'_, ()>> = vec![
                Step::new("fails", |(), _| bail!("broken")),
                Step::new("panics", |(), _| panic!("on {}", "purpose")),
            ];
            steps.extend((0..6).map(|n| Step::new(format!("good/{n}"), |(), _| Ok(Count::ONE))));
            let rows = rows(lanes, &logs, steps);
            let bad = ["fails", "panics"];
            assert_eq!(rows.len(), 8);
            for row in rows {
                assert_eq!(row.count.failed, u32::from(bad.contains(&&*row.name)), "{row:?}");
                let why = match &*row.name {
                    "fails" => vec!["broken"],
                    "panics" => vec!["the step panicked: on purpose"],
                    _ => Vec::new(),
                };
                assert_eq!(row.why, why);
            }
            if lanes > 1 {
                let said = |name| fs::read_to_string(logs.0.join(name)).unwrap();
                assert_eq!(said("fails.log"), "broken\n");
                assert_eq!(said("panics.log"), "the step panicked: on purpose\n");
            }
        }
    }

    #[test]
    fn two_lanes_work_at_the_same_time_and_each_keeps_what_is_its_own() {
        let both = std::sync::Barrier::new(2);
        let both = &both;
        let steps = (0..2).map(|n| {
            Step::new(n.to_string(), move |kept: &mut Vec<i32>, _| {
                // With one of them after the other this would never end.
                both.wait();
                kept.push(n);
                assert_eq!(*kept, [n]);
                Ok(Count::ONE)
            })
        });
        let rows = rows(2, &Logs::new("both"), steps.collect());
        assert!(rows.len() == 2 && rows.iter().all(|row| row.count == Count::ONE), "{rows:?}");
    }

    #[test]
    fn what_a_step_and_its_commands_say_stays_in_one_piece() {
        let logs = Logs::new("whole");
        let steps = ["a", "b"].map(|name| {
            Step::new(name, move |(): &mut (), output: &mut Output| {
                let shell = |script: &str| {
                    let mut command = Command::new("sh");
                    command.args(["-c", script]).env("NAME", name);
                    command
                };
                output.say("first");
                output.run(&mut shell("echo $NAME; echo $NAME >&2"))?;
                let result = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'; echo err >&2";
                let count = output.counted(&mut shell(result))?;
                assert_eq!(output.captured(&mut shell("echo out; echo err >&2"))?, "out\n");
                Ok(count)
            })
        });
        for row in rows(2, &logs, steps.into()) {
            assert_eq!(row.count, Count { passed: 3, failed: 0 });
            let said = fs::read_to_string(logs.0.join(format!("{}.log", row.name))).unwrap();
            let mut lines: Vec<&str> = said.lines().collect();
            // The command's two outputs are two ways into the log.
            lines[3..5].sort_unstable();
            let result = "test result: ok. 3 passed; 0 failed; 0 ignored";
            assert_eq!(lines, ["first", &row.name, &row.name, "err", result, "err"]);
        }
    }

    #[test]
    fn there_are_as_many_lanes_as_processors_and_memory_have_room_for() {
        assert_eq!(lanes_for(2, 24 << 30, false), 3);
        assert_eq!(lanes_for(8, 15 << 30, false), 3);
        assert_eq!(lanes_for(2, 24 << 30, true), 2);
        assert_eq!([8 << 30, 0].map(|memory| lanes_for(2, memory, false)), [2, 2]);
        assert_eq!(lanes_for(1, 64 << 30, false), 1);
        let told = "MemTotal:       24590000 kB\nMemFree:        1 kB\n";
        assert_eq!(memory_bytes(told), Some(24_590_000 << 10));
        assert_eq!(memory_bytes("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn results_of_libtest_are_counted() {
        let line =
            "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(test_result(line), Some(Count { passed: 12, failed: 3 }));
        assert_eq!(test_result("test tests::x ... ok"), None);
    }
}
