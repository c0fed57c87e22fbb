//! Checks of the tree that neither rustfmt nor clippy makes. Each rule says what to do about it.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{capture, checkout};

mod licenses;

/// The workspace from its foundation up (ARCHITECTURE.md): a crate may depend only on those before it.
const ORDER: &[&str] = &[
    "nvme",
    "dhchap",
    "nvme-tcp",
    "subsystem",
    "association",
    "multipath",
    "copy",
    "bpf",
    "bpf-native",
    "uring",
    "reactor",
    "tls",
    "namespace",
    "host",
    "volume",
    "target",
    "ublk-bpf",
    "ublk",
    "nbd",
    "aio",
    "libaio",
    "nvlane",
    "capi",
];

/// Crates that only tests depend on, of any crate; they may depend on any of the others themselves.
const TEST_ONLY: &[&str] = &["counting-allocator", "double"];

/// What the tests of a crate may depend on all the same: the real peer of what is tested.
const TEST_PEERS: &[(&str, &str)] = &[("host", "target")];

/// No I/O, no clock, no unsafe: time and bytes come in as arguments.
const PURE: &[&str] =
    &["nvme", "dhchap", "nvme-tcp", "subsystem", "association", "multipath", "copy", "bpf"];

/// What a pure crate does not name; addresses are data and allowed.
const IMPURE: &[&str] =
    &["std::fs", "TcpStream", "TcpListener", "std::thread", "Instant::now", "SystemTime::now"];

/// Names that say nothing.
const BANNED: &[&str] =
    &["util", "utils", "common", "base", "helper", "helpers", "misc", "manager"];

/// Lines of a Rust file, at most.
const LINES_MAX: usize = 700;

/// Files that may be longer, with the reason.
const LONG: &[(&str, &str)] = &[];

/// What belongs to one machine, or names one server of a registry, and not into the repository;
/// in pieces, so that this list keeps its own rule.
const MACHINE: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/tmp/tar", "get-"),
    concat!("/ro", "ot/."),
    concat!("/ho", "me/"),
    concat!("deb.", "debian", ".org"),
];

/// The only place that crates come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A rule that a file breaks.
struct Complaint {
    path: PathBuf,
    line: Option<usize>,
    what: String,
}

/// Checks the whole tree and says so; an error lists everything that is wrong.
pub fn check() -> Result<String> {
    let tree = Tree::read()?;
    let mut complaints = Vec::new();
    for rule in [
        crates,
        names,
        lengths,
        machine_words,
        unfinished,
        lock_file,
        licenses::licenses,
        decisions,
        scripts,
        pipes,
        units,
    ] {
        rule(&tree, &mut complaints)?;
    }
    if complaints.is_empty() {
        return Ok(format!("tidy: {} files are in order", tree.files.len()));
    }
    let mut list = String::new();
    for Complaint { path, line, what } in &complaints {
        let line = line.map_or(String::new(), |line| format!(":{line}"));
        list.push_str(&format!("\n{}{line}: {what}", path.display()));
    }
    bail!("tidy: {} complaints{list}", complaints.len());
}

/// The files of the repository: tracked, or about to be.
struct Tree {
    root: PathBuf,
    /// Relative to the root, sorted.
    files: Vec<PathBuf>,
}

impl Tree {
    fn read() -> Result<Self> {
        let root = checkout()?;
        let list = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
        let listed = capture(Command::new("git").args(list).current_dir(&root))?;
        let names: BTreeSet<PathBuf> =
            listed.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
        // A file that was deleted and not yet committed is still listed.
        let files = names.into_iter().filter(|path| root.join(path).is_file()).collect();
        Ok(Self { root, files })
    }

    /// The text of a file; None when it is no text.
    fn text(&self, path: &Path) -> Result<Option<String>> {
        let bytes = fs::read(self.root.join(path)).with_context(|| path.display().to_string())?;
        Ok(String::from_utf8(bytes).ok())
    }

    fn rust(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs"))
    }
}

fn complain(complaints: &mut Vec<Complaint>, path: &Path, line: Option<usize>, what: String) {
    complaints.push(Complaint { path: path.to_owned(), line, what });
}

/// Every crate is in the order, keeps to it, takes the workspace's lints, and says what it is for.
fn crates(tree: &Tree, complaints: &mut Vec<Complaint>) -> Result<()> {
    for entry in fs::read_dir(tree.root.join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let manifest = Path::new("crates").join(&name).join("Cargo.toml");
        if !tree.root.join(&manifest).exists() {
            continue;
        }
        let mut say = |path: &Path, what: String| complain(complaints, path, None, what);
        let text = tree.text(&manifest)?.unwrap_or_default();
        let place = match TEST_ONLY.contains(&name.as_str()) {
            true => Some(ORDER.len()),
            false => ORDER.iter().position(|crate_| *crate_ == name),
        };
        let Some(place) = place else {
            say(&manifest, "not in the order of the workspace; give it a place in tidy.rs".into());
            continue;
        };
        let shipped = text.split("[dev-dependencies").next().map(dependencies).unwrap_or_default();
        for dependency in shipped.iter().filter(|it| TEST_ONLY.contains(&it.as_str())) {
            say(&manifest, format!("ships {dependency}, which is for tests only"));
        }
        for dependency in dependencies(&text) {
            let peer = TEST_PEERS.contains(&(name.as_str(), dependency.as_str()));
            if peer && !shipped.contains(&dependency) {
                continue;
            }
            if ORDER.iter().position(|crate_| *crate_ == dependency).is_some_and(|it| it >= place) {
                say(&manifest, format!("depends on {dependency}, which is not above it"));
            }
        }
        if !text.contains("[lints]\nworkspace = true") {
            say(&manifest, "does not take the workspace's lints".into());
        }
        let folder = Path::new("crates").join(&name).join("src");
        let roots = ["lib.rs", "main.rs"].map(|file| folder.join(file));
        let Some(root) = roots.iter().find(|path| tree.root.join(path).exists()) else {
            say(&manifest, "has neither lib.rs nor main.rs".into());
            continue;
        };
        let source = tree.text(root)?.unwrap_or_default();
        if source.lines().filter(|line| line.starts_with("//!")).count() < 3 {
            say(root, "no crate docs: what it is for, a picture, what it does not do".into());
        }
        if PURE.contains(&name.as_str()) {
            if !source.contains("#![forbid(unsafe_code)]") {
                say(root, "a pure crate says #![forbid(unsafe_code)]".into());
            }
            pure_sources(tree, &folder, complaints)?;
        }
    }
    Ok(())
}

fn pure_sources(tree: &Tree, folder: &Path, complaints: &mut Vec<Complaint>) -> Result<()> {
    for path in tree.rust().filter(|path| path.starts_with(folder)) {
        let text = tree.text(path)?.unwrap_or_default();
        for (number, line) in (1..).zip(shipped(&text).lines()) {
            let code = line.split("//").next().unwrap_or_default();
            for word in IMPURE.iter().filter(|word| code.contains(**word)) {
                complain(complaints, path, Some(number), format!("{word} in a pure crate"));
            }
        }
    }
    Ok(())
}

/// A source without the tests at its end; what else is only for tests is looked at with the rest.
fn shipped(source: &str) -> &str {
    source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

/// Names of the crates that a manifest depends on, in whatever section.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end().trim_end_matches(']');
            inside = section.ends_with("dependencies");
            // A section for one of them.
            if let Some((_, name)) = section.rsplit_once("dependencies.") {
                found.push(name.trim_matches('"').to_owned());
            }
            continue;
        }
        let name: String = line.chars().take_while(|c| c.is_alphanumeric() || *c == '-').collect();
        if inside && !name.is_empty() {
            found.push(name);
        }
    }
    found
}

fn names(tree: &Tree, complaints: &mut Vec<Complaint>) -> Result<()> {
    for path in tree.rust() {
        for part in path.iter() {
            let part = part.to_string_lossy();
            let stem = part.strip_suffix(".rs").unwrap_or(&part);
            if BANNED.contains(&stem) {
                complain(complaints, path, None, format!("{stem} says nothing; name the thing"));
            }
        }
    }
    Ok(())
}

fn lengths(tree: &Tree, complaints: &mut Vec<Complaint>) -> Result<()> {
    for path in tree.rust() {
        let lines = tree.text(path)?.unwrap_or_default().lines().count();
        let allowed = LONG.iter().any(|(long, _)| Path::new(long) == path);
        if lines > LINES_MAX && !allowed {
            let what = format!(
                "{lines} lines; split it where a real noun appears, or give tidy.rs a reason"
            );
            complain(complaints, path, None, what);
        }
    }
    for (long, reason) in LONG {
        let lines = tree.text(Path::new(long))?.unwrap_or_default().lines().count();
        if lines <= LINES_MAX || reason.is_empty() {
            complain(complaints, Path::new(long), None, "needs no exception in tidy.rs".into());
        }
    }
    Ok(())
}

fn machine_words(tree: &Tree, complaints: &mut Vec<Complaint>) -> Result<()> {
    each_line(tree, complaints, |line| {
        let word = MACHINE.iter().find(|word| line.contains(**word))?;
        Some(format!("{word} belongs to one machine"))
    })
}

fn unfinished(tree: &Tree, complaints: &mut Vec<Complaint>) -> Result<()> {
    each_line(tree, complaints, |line| {
        let words = ["todo!(", "unimplemented!(", "FIXME", "XXX", "TODO"];
        let word = words.iter().find(|word| {
            // XXXXXX is mktemp's and nobody's note.
            line.contains(**word) && !(**word == "XXX" && line.contains("XXXX"))
        })?;
        Some(format!("{word}: do it, or write it down where plans are kept"))
    })
}

/// Applies `rule` to each line of each text, this file (which quotes what it bans) aside.
fn each_line(
    tree: &Tree,
    complaints: &mut Vec<Complaint>,
    rule: impl Fn(&str) -> Option<String>,
) -> Result<()> {
    for path in &tree.files {
        if path == Path::new("xtask/src/tidy.rs") || path.ends_with("Cargo.lock") {
            continue;
        }
        let Some(text) = tree.text(path)? else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(what) = rule(line) {
                complain(complaints, path, Some(number), what);
            }
        }
    }
    Ok(())
}

/// Crates come from crates.io or from here.
fn lock_file(tree: &Tree, complaints: &mut Vec<Complaint>) -> Result<()> {
    for path in tree.files.iter().filter(|path| path.ends_with("Cargo.lock")) {
        let text = tree.text(path)?.unwrap_or_default();
        for (number, line) in (1..).zip(text.lines()) {
            let Some(source) = line.strip_prefix("source = ") else { continue };
            if source.trim_matches('"') != REGISTRY {
                complain(complaints, path, Some(number), format!("not from crates.io: {source}"));
            }
        }
    }
    Ok(())
}

/// Decisions are numbered from 0001 without gaps.
fn decisions(tree: &Tree, complaints: &mut Vec<Complaint>) -> Result<()> {
    let folder = Path::new("docs/decisions");
    let numbered = tree.files.iter().filter(|path| {
        path.parent() == Some(folder) && path.file_name().is_some_and(|name| name != "README.md")
    });
    for (expected, path) in (1..).zip(numbered) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let wanted = format!("{expected:04}-");
        if !name.starts_with(&wanted) || !name.ends_with(".md") {
            complain(complaints, path, None, format!("the next decision is {wanted}title.md"));
        }
    }
    Ok(())
}

/// Shell scripts parse, also those whose first line says what they are, and not their name.
fn scripts(tree: &Tree, complaints: &mut Vec<Complaint>) -> Result<()> {
    for path in &tree.files {
        let is_named = path.extension().is_some_and(|e| e == "sh");
        if !is_named && !tree.text(path)?.is_some_and(|text| is_shell(&text)) {
            continue;
        }
        if let Err(error) = capture(Command::new("bash").arg("-n").arg(tree.root.join(path))) {
            complain(complaints, path, None, format!("{error:#}"));
        }
    }
    Ok(())
}

/// Whether a shell is to run that.
fn is_shell(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    let mut words = first.strip_prefix("#!").unwrap_or_default().split(['/', ' ']);
    words.any(|word| word == "sh" || word == "bash")
}

/// Tests in guests have `pipefail`: whoever writes into a pipe whose reader has left early fails, now and
/// then. They keep what is said first, or compare it whole.
fn pipes(tree: &Tree, complaints: &mut Vec<Complaint>) -> Result<()> {
    let folder = Path::new("tests/guest");
    for path in tree.files.iter().filter(|path| path.parent() == Some(folder)) {
        let text = tree.text(path)?.unwrap_or_default();
        let mut piped = false;
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(reader) = leaves_early(line, piped) {
                let what =
                    format!("{reader} leaves its pipe early, which fails its writer at times");
                complain(complaints, path, Some(number), what);
            }
            piped = line.ends_with('|') && !line.ends_with("||");
        }
    }
    Ok(())
}

/// The program in this line that reads a pipe and may end before the pipe does; `piped` when the line before ended
/// in a pipe.
fn leaves_early(line: &str, piped: bool) -> Option<&'static str> {
    let alternatives = line.replace("||", ";");
    alternatives.split('|').map(str::trim_start).skip(usize::from(!piped)).find_map(|program| {
        let mut words = program.split_whitespace();
        let (name, option) = (words.next()?, words.next().unwrap_or_default());
        match name {
            "head" => Some("head"),
            "cmp" if option.starts_with("-n") => Some("cmp -n"),
            "grep" if option.starts_with('-') && option.contains(['q', 'm', 'l']) => {
                Some("grep -q")
            }
            _ => None,
        }
    })
}

/// Where the packages put the program.
const INSTALLED: &str = "/usr/bin/nvlane";

/// Units of systemd: known keys, values that it understands. It says what it ignores and succeeds
/// all the same, so what counts is what it says about our file. Our program is not installed where
/// this runs, so a copy of the unit starts this one instead.
fn units(tree: &Tree, complaints: &mut Vec<Complaint>) -> Result<()> {
    let units = tree.files.iter().filter(|path| path.extension().is_some_and(|e| e == "service"));
    for path in units {
        let text = tree.text(path)?.context("a unit is text")?;
        if !text.contains(&format!("\nExecStart={INSTALLED} ")) {
            complain(complaints, path, None, format!("ExecStart is not {INSTALLED}"));
            continue;
        }
        let present = std::env::current_exe()?.display().to_string();
        let folder = std::env::temp_dir().join(format!("nvlane-tidy-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let copy = folder.join(path.file_name().context("a file has a name")?);
        fs::write(&copy, text.replace(INSTALLED, &present))?;
        let mut command = Command::new("systemd-analyze");
        let output = command.args(["verify", "--man=no"]).arg(&copy).output();
        fs::remove_dir_all(&folder)?;
        let output = match output {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                println!("tidy: {} not verified: systemd-analyze is missing", path.display());
                continue;
            }
            output => output.context("systemd-analyze")?,
        };
        let said = String::from_utf8_lossy(&output.stderr);
        let name = copy.file_name().unwrap_or_default().to_string_lossy();
        let mut about = said.lines().filter(|line| line.contains(&*name)).peekable();
        if about.peek().is_none() && !output.status.success() {
            complain(complaints, path, None, format!("systemd-analyze failed: {said}"));
        }
        for line in about {
            let line = line.strip_prefix(&format!("{}:", copy.display())).unwrap_or(line);
            complain(complaints, path, None, format!("systemd-analyze verify: {line}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_of_every_form_are_found() {
        let manifest = "[package]\nname = \"x\"\n[dependencies]\nnvme.workspace = true\n\
                        reactor = { path = \"../reactor\" }\n[target.'cfg(unix)'.dev-dependencies]\n\
                        nvme-tcp = \"1\"\n[dependencies.target]\npath = \"../target\"\n\
                        [target.'cfg(unix)'.dev-dependencies.host]\nworkspace = true\n\
                        [features]\nnamespace = []\n";
        assert_eq!(dependencies(manifest), ["nvme", "reactor", "nvme-tcp", "target", "host"]);
    }

    #[test]
    fn only_tests_at_the_end_of_a_source_are_not_shipped() {
        let source = "a\n#[cfg(test)]\nuse b;\nc\n#[cfg(test)]\nmod tests;\nd\n";
        assert_eq!(shipped(source), source);
        assert_eq!(shipped(&format!("{source}#[cfg(test)]\nmod tests {{\n}}\n")), source);
    }

    #[test]
    fn scripts_are_told_by_their_first_line() {
        for first in ["#!/bin/sh", "#!/bin/bash -eu", "#!/usr/bin/env bash", "#!/bin/busybox sh"] {
            assert!(is_shell(&format!("{first}\ntrue\n")), "{first}");
        }
        for first in ["", "true", "#!/usr/bin/env python3", "#!/usr/bin/perl", "# bash"] {
            assert!(!is_shell(&format!("{first}\n")), "{first}");
        }
    }

    #[test]
    fn readers_that_leave_early_are_found() {
        assert_eq!(leaves_early("a --b | grep -q c || die", false), Some("grep -q"));
        assert_eq!(leaves_early("a | sort | head -n 4", false), Some("head"));
        assert_eq!(leaves_early("a | cmp -n 76 - b", false), Some("cmp -n"));
        assert_eq!(leaves_early("    cmp -n 76 - <(b)", true), Some("cmp -n"));
        assert_eq!(leaves_early("grep -q a b || head -c 4 b", false), None);
        assert_eq!(leaves_early("a | grep -c b || true", false), None);
        assert_eq!(leaves_early("cmp -n 4 a <(head -c 4 b | tr a b)", false), None);
    }

    #[test]
    fn pure_crates_are_the_foundation() {
        assert_eq!(&ORDER[..PURE.len()], PURE);
    }
}
