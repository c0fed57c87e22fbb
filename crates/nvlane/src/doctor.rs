//! `nvlane doctor`: what this kernel, this user and a device allow, found out by trying it.
//!
//! ```text
//!   ring      io_uring, sizes of entries, polling, kernel thread, registered buffers
//!   machine   locked memory, ublk, BPF, TLS, NBD, native AIO and the drop-in     --> Check --> text, JSON
//!   device    a volume: opens, permissions, effects log, admin, poll queues
//! ```
//!
//! Nothing is concluded from a version number: each probe makes the call that nvlane would make, and what the
//! kernel answers is what is told. Nothing is written, to no volume.
//!
//! What it does not do: mend anything by itself.

mod device;
mod machine;
mod ring;

pub use machine::{kernel_without, quoted};

use crate::admin::json_object;
use crate::cli::{DoctorArgs, ListFormat};
use crate::serve::log;
use crate::stdout;
use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// What is logged to standard error: nothing but what ends the program, since each finding is told as such.
const LOG: &str = "error";

/// `nvlane doctor`.
pub fn run(args: &DoctorArgs) -> Result<()> {
    log::to_stderr(LOG)?;
    let mut checks = Vec::new();
    ring::check(&mut checks);
    machine::check(&mut checks);
    if let Some(uri) = &args.volume {
        device::check(uri, &mut checks);
    }
    let text = match args.output_format {
        ListFormat::Normal => table(&checks),
        ListFormat::Json => json(args.volume.as_deref(), &checks),
    };
    // What is missing is so whoever reads of it.
    let printed = stdout::write(text);
    let missing: Vec<&str> = checks
        .iter()
        .filter(|check| check.state() == State::Missing)
        .map(|check| check.title)
        .collect();
    match missing[..] {
        [] => printed,
        [one] => bail!("{one} is missing"),
        _ => bail!("{} things are missing: {}", missing.len(), missing.join(", ")),
    }
}

/// One capability.
struct Check {
    /// Its name in JSON.
    name: &'static str,
    /// Its name in text.
    title: &'static str,
    /// nvlane, or the volume that was named, cannot do without.
    needed: bool,
    /// The device that it is about, of those that the volume is on.
    device: Option<String>,
    outcome: Outcome,
}

/// What trying it has shown.
struct Outcome {
    has: bool,
    /// What was found, or why it is not to be had.
    found: String,
    /// The command that mends it.
    mend: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is there.
    Ok,
    /// It is not there, and needed.
    Missing,
    /// It is not there; something is slower, or cannot be used, without it.
    Absent,
}

impl Check {
    fn needed(name: &'static str, title: &'static str, outcome: Outcome) -> Check {
        Check { name, title, needed: true, device: None, outcome }
    }

    fn optional(name: &'static str, title: &'static str, outcome: Outcome) -> Check {
        Check { name, title, needed: false, device: None, outcome }
    }

    fn state(&self) -> State {
        match (self.outcome.has, self.needed) {
            (true, _) => State::Ok,
            (false, true) => State::Missing,
            (false, false) => State::Absent,
        }
    }
}

impl Outcome {
    fn yes(found: impl Into<String>) -> Outcome {
        Outcome { has: true, found: found.into(), mend: None }
    }

    fn no(found: impl Into<String>, mend: impl Into<String>) -> Outcome {
        Outcome { has: false, found: found.into(), mend: Some(mend.into()) }
    }

    /// There is nothing to be mended by a command.
    fn never(found: impl Into<String>) -> Outcome {
        Outcome { has: false, found: found.into(), mend: None }
    }
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Missing => "missing",
            State::Absent => "absent",
        }
    }
}

fn table(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.title.len()).max().unwrap_or(0);
    let devices: BTreeSet<&String> = checks.iter().filter_map(|it| it.device.as_ref()).collect();
    let mut text = String::new();
    for check in checks {
        let (state, outcome) = (check.state().word(), &check.outcome);
        // Of several, which one.
        let of = match &check.device {
            Some(device) if devices.len() > 1 => format!("{device}: "),
            _ => String::new(),
        };
        let _ = writeln!(text, "{state:<8} {:width$}  {of}{}", check.title, outcome.found);
        if let Some(mend) = &outcome.mend {
            let _ = writeln!(text, "{:<8} {:width$}  mend: {mend}", "", "");
        }
    }
    text
}

fn json(volume: Option<&str>, checks: &[Check]) -> String {
    let check = |check: &Check| {
        json!({
            "name": check.name,
            "state": check.state().word(),
            "needed": check.needed,
            "device": check.device,
            "found": check.outcome.found,
            "mend": check.outcome.mend,
        })
    };
    let checks: Vec<Value> = checks.iter().map(check).collect();
    let healthy = checks.iter().all(|check| check["state"] != State::Missing.word());
    let object = Map::from_iter([
        ("volume".to_owned(), volume.into()),
        ("healthy".to_owned(), healthy.into()),
        ("checks".to_owned(), checks.into()),
    ]);
    format!("{:#}\n", json_object(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_counts_as_missing() {
        let checks = [
            Check::needed("a", "first", Outcome::yes("there")),
            Check::optional("b", "second", Outcome::no("not there", "make it")),
            Check::needed("c", "third", Outcome::never("cannot be")),
        ];
        let text = table(&checks);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ok       first   there");
        assert_eq!(lines[1], "absent   second  not there");
        assert_eq!(lines[2], "                 mend: make it");
        assert_eq!(lines[3], "missing  third   cannot be");
        let document: Value = serde_json::from_str(&json(Some("mem:1M"), &checks)).unwrap();
        assert_eq!(document["healthy"], false);
        assert_eq!(document["checks"][1]["mend"], "make it");
        let document: Value = serde_json::from_str(&json(None, &checks[..2])).unwrap();
        assert_eq!((&document["healthy"], &document["volume"]), (&true.into(), &Value::Null));
    }
}
