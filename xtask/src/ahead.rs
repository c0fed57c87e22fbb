//! Builds that begin before it is their turn: while unit tests run, of which most wait, at the lowest priority.
//!
//! ```text
//!   unit:   cargo test --no-run | tests, most of them waiting ......... |
//!   ahead:                      | cargo build, then fuzz/run --build    | ── at the usual priority from here on, the one
//!   others:                                                             | that runs; cargo's lock has others wait for it
//! ```
//!
//! How they end is of no interest: whose turn it is does the same again, which is quick then, or fails and says why.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

/// Some commands, one after the other. Dropping it waits for the one that runs.
#[derive(Debug)]
pub struct Ahead {
    commands: Vec<Command>,
    thread: Option<JoinHandle<()>>,
    now: Arc<Mutex<Now>>,
}

#[derive(Debug, Default)]
struct Now {
    /// The process group of the command that runs.
    group: Option<u32>,
    /// No more are begun.
    over: bool,
}

impl Ahead {
    /// Runs none of `commands` yet.
    pub fn new(commands: Vec<Command>) -> Self {
        Self { commands, thread: None, now: Arc::default() }
    }

    /// Begins; what they say goes to `ahead.log` in the folder `logs`.
    pub fn begin(&mut self, logs: &Path) -> Result<()> {
        if self.commands.is_empty() {
            return Ok(());
        }
        std::fs::create_dir_all(logs)?;
        let log = File::create(logs.join("ahead.log")).context("ahead.log")?;
        let (commands, now) = (std::mem::take(&mut self.commands), Arc::clone(&self.now));
        self.thread = Some(thread::spawn(move || {
            for command in &commands {
                let _ = run(command, &log, &now);
            }
        }));
        Ok(())
    }

    /// It is their turn now.
    pub fn hurry(&self) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.over = true;
        if let Some(group) = now.group {
            let mut renice = Command::new("renice");
            renice.args(["-n", "0", "-g"]).arg(group.to_string());
            let done = renice.stdout(Stdio::null()).stderr(Stdio::null()).status();
            if !done.is_ok_and(|status| status.success()) {
                // Only root may. What it has built is there; whose turn it is builds the rest.
                let _ = Command::new("kill").args(["--", &format!("-{group}")]).status();
            }
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.hurry();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(command: &Command, log: &File, now: &Mutex<Now>) -> Result<()> {
    // It ends with us, and may be told as a whole to hurry.
    let mut nice = Command::new("setpriv");
    nice.args(["--pdeathsig", "KILL", "nice", "-n", "19"]).arg(command.get_program());
    nice.args(command.get_args()).process_group(0);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    let mut child = {
        let mut now = now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.over {
            return Ok(());
        }
        let child = nice.spawn()?;
        now.group = Some(child.id());
        child
    };
    let ended = child.wait();
    now.lock().unwrap_or_else(PoisonError::into_inner).group = None;
    ended?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, file: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("FILE", file);
        command
    }

    #[test]
    fn commands_run_niced_one_after_the_other_and_none_is_begun_once_it_is_their_turn() {
        let folder = std::env::temp_dir().join(format!("xtask-ahead-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [first, second, third] = ["first", "second", "third"].map(|name| folder.join(name));
        let wait = "nice >>$FILE; until [ -e $FILE.go ]; do sleep 0.02; done; nice >>$FILE";
        let commands =
            vec![shell("nice >$FILE", &first), shell(wait, &second), shell("nice >$FILE", &third)];
        let mut ahead = Ahead::new(commands);
        ahead.begin(&folder).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while std::fs::read_to_string(&second).unwrap_or_default().is_empty() {
            assert!(std::time::Instant::now() < until, "it has not begun");
            thread::sleep(std::time::Duration::from_millis(10));
        }
        ahead.hurry();
        std::fs::write(second.with_extension("go"), "").unwrap();
        drop(ahead);
        assert_eq!(std::fs::read_to_string(&first).unwrap().trim(), "19");
        let said = std::fs::read_to_string(&second).unwrap();
        // Who is not root may not hurry it, and ends it.
        assert!(said == "19\n0\n" || said == "19\n", "{said}");
        assert!(!third.exists(), "one has begun after it was their turn");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
