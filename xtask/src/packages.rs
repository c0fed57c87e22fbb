//! Installs the Debian packages that a task needs, from the lists in packaging/apt.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::process::{capture, checkout, run};

/// A list of packages; each task's list has all that the task needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum List {
    /// Building and serving.
    Run,
    /// That and the tests.
    Test,
    /// That and the benchmarks' peers.
    Bench,
}

impl List {
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Run => &["run"],
            Self::Test => &["run", "test"],
            Self::Bench => &["run", "test", "bench"],
        }
    }
}

/// Installs what is missing when we are root; otherwise fails with the command to type.
/// Returns at once when nothing is missing.
pub fn install(list: List) -> Result<()> {
    let missing = missing(list)?;
    if missing.is_empty() {
        return Ok(());
    }
    let command = format!("apt-get install --no-install-recommends {}", missing.join(" "));
    if capture(Command::new("id").arg("-u"))?.trim() != "0" {
        bail!("Debian packages are missing. Install them:\n    sudo {command}");
    }
    eprintln!("installing: {}", missing.join(" "));
    // What comes after on stdout may be for programs.
    run(Command::new("apt-get").args(["-qq", "update"]).stdout(io::stderr()))?;
    run(Command::new("apt-get")
        .stdout(io::stderr())
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-qq", "-y", "install", "--no-install-recommends"])
        .args(&missing))
}

fn missing(list: List) -> Result<Vec<String>> {
    let mut wanted = BTreeSet::new();
    for file in list.files() {
        let path = checkout()?.join(format!("packaging/apt/{file}.txt"));
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        wanted.extend(names(&text));
    }
    // Fails when a package is unknown, and still lists those it knows.
    let known = Command::new("dpkg-query")
        .args(["-W", "-f", "${Package} ${db:Status-Status}\n"])
        .args(&wanted)
        .output()
        .with_context(|| {
            let names: Vec<&str> = wanted.iter().map(String::as_str).collect();
            format!("no dpkg-query: not a Debian machine? Needed is: {}", names.join(" "))
        })?;
    let known = String::from_utf8_lossy(&known.stdout);
    let installed: BTreeSet<&str> =
        known.lines().filter_map(|line| line.strip_suffix(" installed")).collect();
    Ok(wanted.into_iter().filter(|name| !installed.contains(name.as_str())).collect())
}

fn names(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_not_packages() {
        assert_eq!(names("# all\nfio  # why\n\n jq\n"), ["fio", "jq"]);
    }
}
