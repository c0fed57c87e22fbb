//! The workspace's own tests, a few programs of them side by side: two thirds of their time is waiting.
//!
//! ```text
//!   cargo test --no-run ──programs──> queue ──> association, bpf, copy, ...        each is shown in one
//!                                           ──> cargo test --doc, host, nbd, ...   piece when it has ended
//!                                           ──> ...
//! ```

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::lanes::{Count, Output, test_result};
use crate::process::{cargo, line_of};

/// Programs side by side: with more, those that measure time disturb each other.
const SIDE_BY_SIDE: usize = 3;

/// `uring::VARIABLE`.
const OFF: &str = "NVLANE_IO_URING";

/// Programs of tests that run once more with io_uring forbidden (`uring::VARIABLE`): their package, their name, what of them in the everyday
/// run, and what in none, since it is about rings of the kernel, or counts calls of them: one that is emulated looks by the clock.
const WITHOUT_RING: [(&str, &str, &[&str], &[&str]); 6] = [
    (
        "reactor",
        "it",
        &[],
        &[
            "files::fixed_buffers_and_registered_files",
            "outside::completions_of_a_further_ring_wake_it",
            "outside::who_has_to_look_may_not_sleep",
            "stop::a_sink_that_panics_takes_nobody_elses_completion_along",
            "waiting::a_turn_that_slept_leaves_nothing_undone_and_is_no_longer_than_that",
        ],
    ),
    (
        "namespace",
        "namespace",
        &["file::"],
        &["device::", "direct_transfers_are_from_registered_buffers_of_a_registered_file"],
    ),
    ("volume", "contract", &["races::"], &[]),
    ("target", "it", &["data::", "drain::", "races::"], &[]),
    ("host", "it", &["data::", "flush::", "multipath::"], &["pages::"]),
    ("nbd", "it", &["requests::", "durability::"], &[]),
];

/// Before what a test said that passed without having run all that it can.
const NOT_CHECKED: &str = "not checked: ";

/// Builds all tests of the workspace and runs them; a program that fails does not stop the others. Calls `then` in between.
/// In `full`, all that can do without io_uring runs once more without.
pub fn test(full: bool, output: &mut Output, then: impl FnOnce() -> Result<()>) -> Result<Count> {
    let what = ["test", "--workspace", "--locked", "--no-run"];
    let format = "--message-format=json-render-diagnostics";
    let said = output.captured(cargo()?.args(what).arg(format))?;
    then()?;
    let (mut programs, mut without) = (VecDeque::new(), Vec::new());
    for line in said.lines() {
        let Some(built) = built(line)?.filter(|built| built.is_test) else { continue };
        without.extend(without_ring(&built, full));
        programs.push_back(test_program(&built));
    }
    ensure!(!programs.is_empty(), "there are no tests");
    ensure!(without.len() == WITHOUT_RING.len(), "some tests are not where they were");
    programs.extend(without);
    // First, since it compiles while others wait.
    let mut examples = cargo()?;
    examples.args(["test", "--workspace", "--locked", "--doc", "--no-fail-fast"]);
    programs.push_front(examples);

    let queue = Mutex::new(programs);
    let next = || queue.lock().expect("no program runs under this lock").pop_front();
    let ended = Mutex::new((output, Count::NONE, Vec::new()));
    thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                while let Some(program) = next() {
                    // Who hangs is told by this.
                    let begin = format!(".. {}", line_of(&program));
                    ended.lock().unwrap_or_else(PoisonError::into_inner).0.say(&begin);
                    let (said, count) = run(program);
                    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                    ended.0.say(&said);
                    ended.1.passed += count.passed;
                    ended.1.failed += count.failed;
                    let marked = said.lines().filter(|line| line.starts_with(NOT_CHECKED));
                    ended.2.extend(marked.map(str::to_owned));
                }
            });
        }
    });
    let (output, count, marked) = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Once more where they are seen.
    marked.iter().for_each(|line| output.say(line));
    ensure!(count.passed + count.failed > 0, "no test has run");
    Ok(count)
}

/// A program that cargo has built.
pub struct Built {
    /// Where it is.
    pub executable: PathBuf,
    /// The folder of its package.
    pub folder: PathBuf,
    /// It runs tests.
    pub is_test: bool,
    /// It is an example.
    pub is_example: bool,
}

/// The program of which a line of cargo's JSON tells; none when it tells something else.
pub fn built(line: &str) -> Result<Option<Built>> {
    let said: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
    if said["reason"] != "compiler-artifact" {
        return Ok(None);
    }
    let Some(executable) = said["executable"].as_str() else { return Ok(None) };
    let manifest = said["manifest_path"].as_str().map(Path::new);
    let Some(folder) = manifest.and_then(Path::parent) else {
        bail!("cargo does not say where the package of {executable} is");
    };
    Ok(Some(Built {
        executable: executable.into(),
        folder: folder.into(),
        is_test: said["profile"]["test"] == true,
        is_example: said["target"]["kind"][0] == "example",
    }))
}

/// A program of tests, to be run as cargo does.
fn test_program(Built { executable, folder, .. }: &Built) -> Command {
    let mut program = Command::new(executable);
    program.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
    // For `briefly`.
    program.arg("--show-output");
    program
}

/// The same with io_uring forbidden, if it is one of those.
fn without_ring(built: &Built, full: bool) -> Option<Command> {
    let (name, _) = built.executable.file_name()?.to_str()?.rsplit_once('-')?;
    let whose = |(package, program, ..): &&(&str, &str, _, _)| {
        *program == name && built.folder.ends_with(package)
    };
    let (.., everyday, skipped) = WITHOUT_RING.iter().find(whose)?;
    let mut program = test_program(built);
    program.env(OFF, "off");
    if !full {
        program.args(*everyday);
    }
    program.args(skipped.iter().flat_map(|name| ["--skip", name]));
    Some(program)
}

/// Runs `program`; returns what it said, and what it counted.
fn run(mut program: Command) -> (String, Count) {
    let line = line_of(&program);
    let wants_some = program.get_envs().any(|(name, _)| name == OFF);
    let output = match program.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => return (format!("{line}: {error}"), Count::FAILED),
    };
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut said = format!("   {line}\n{}{stderr}", briefly(&stdout));
    let mut count = Count::NONE;
    let results: Vec<Count> =
        stdout.lines().filter(|line| is_result(line)).filter_map(test_result).collect();
    for result in &results {
        count.passed += result.passed;
        count.failed += result.failed;
    }
    if !output.status.success() && count.failed == 0 {
        said.push_str(&format!("{line} failed: {}\n", output.status));
        count.failed = 1;
    } else if wants_some && count.passed == 0 {
        said.push_str(&format!("{line}: nothing of it is left\n"));
        count.failed = 1;
    } else if results.is_empty() {
        // A test has ended the program, and those after it did not run.
        said.push_str(&format!("{line} ended without a result\n"));
        count.failed = 1;
    }
    (said, count)
}

/// Whether libtest says in this line how many tests have passed; a test may print what looks like that.
fn is_result(line: &str) -> bool {
    line.starts_with("test result: ") && line.contains("; finished in ")
}

/// What libtest said, without what tests printed that passed, but for the lines by which some of them say that they
/// lacked something.
fn briefly(stdout: &str) -> String {
    let (mut brief, mut within, mut test) = (String::new(), false, None);
    for line in stdout.lines() {
        match line {
            // What they printed; then once more, and only names follow.
            "successes:" => (within, test) = (true, None),
            "failures:" => within = false,
            _ if is_result(line) => within = false,
            _ => {}
        }
        let begin = line.strip_prefix("---- ").and_then(|it| it.strip_suffix(" stdout ----"));
        match (begin, test) {
            _ if !within => brief.push_str(&format!("{line}\n")),
            (Some(name), _) => test = Some(name),
            (None, Some(test)) if line.starts_with(NOT_CHECKED) => {
                brief.push_str(&format!("{NOT_CHECKED}{test}: {}\n", &line[NOT_CHECKED.len()..]));
            }
            (None, Some(test)) if line.contains("not run") || line.contains("skipped") => {
                brief.push_str(&format!("{NOT_CHECKED}{test}: {line}\n"));
            }
            _ => {}
        }
    }
    brief
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_what_cargo_built_for_tests_and_can_be_run() {
        let line = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/nvme/Cargo.toml",
                     "profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let program = built(&line(true, r#""/t/nvme-1""#)).unwrap().unwrap();
        assert!(program.is_test);
        let program = test_program(&program);
        assert_eq!(program.get_program(), "/t/nvme-1");
        assert_eq!(program.get_current_dir(), Some(Path::new("/w/nvme")));
        assert!(!built(&line(false, r#""/t/nvlane""#)).unwrap().unwrap().is_test);
        assert!(built(&line(true, "null")).unwrap().is_none());
        assert!(built(r#"{"reason":"build-finished","success":true}"#).unwrap().is_none());
        assert!(built("error").is_err());
    }

    #[test]
    fn some_run_once_more_with_io_uring_forbidden() {
        let built = |folder: &str, executable: &str| Built {
            executable: executable.into(),
            folder: folder.into(),
            is_test: true,
            is_example: false,
        };
        let arguments = |full| -> Vec<String> {
            let program = without_ring(&built("/w/crates/host", "/t/it-1"), full).unwrap();
            let off = program.get_envs().any(|(name, value)| {
                name == "NVLANE_IO_URING" && value.is_some_and(|value| value == "off")
            });
            assert!(off);
            program.get_args().map(|it| it.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(arguments(true), ["--show-output", "--skip", "pages::"]);
        assert_eq!(arguments(false)[1..3], ["data::", "flush::"]);
        assert!(without_ring(&built("/w/crates/host", "/t/shutdown-1"), true).is_none());
        assert!(without_ring(&built("/w/crates/nvlane", "/t/it-1"), true).is_none());
    }

    #[test]
    fn of_what_passes_only_that_is_shown_which_was_not_run() {
        let result = "test result: FAILED. 2 passed; 1 failed; 0 ignored; finished in 0.10s\n";
        let printed = "---- a stdout ----\ntest result: ok. 9 passed; 0 failed; 0 ignored\nno compiler: not run\nnot checked: a half\n\n---- b_is_skipped stdout ----\nwords\n";
        let failures = "failures:\n\n---- c stdout ----\nwords, skipped\n\n";
        let names = "successes:\n    a\n    b_is_skipped\n\n";
        let said = format!("test a ... ok\n\nsuccesses:\n\n{printed}\n{names}{failures}{result}");
        let wanted = format!(
            "test a ... ok\n\nnot checked: a: no compiler: not run\nnot checked: a: a half\n{failures}{result}"
        );
        assert_eq!(briefly(&said), wanted);
        let quiet =
            "test a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; finished in 0.10s\n";
        assert_eq!(briefly(quiet), quiet);
    }

    #[test]
    fn a_program_that_dies_counts_as_a_failure() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            run(command)
        };
        let ok = "echo 'test result: ok. 9 passed; 0 failed; 0 ignored'; echo 'test result: ok. 2 passed; 0 failed; 0 ignored; finished in 0.10s'; echo words >&2";
        let (said, count) = shell(ok);
        assert_eq!(count, Count { passed: 2, failed: 0 });
        assert!(said.contains("2 passed") && said.contains("words"), "{said}");
        let (said, count) = shell("echo before; kill -9 $$");
        assert_eq!(count, Count::FAILED);
        assert!(said.contains("before") && said.contains("signal: 9"), "{said}");
        let (said, count) = shell("echo 'test a ... ok'; exit 0");
        assert!(count == Count::FAILED && said.contains("without a result"), "{said}");
        let failed = "echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored; finished in 0.10s'; exit 101";
        assert_eq!(shell(failed).1, Count { passed: 2, failed: 1 });
    }
}
