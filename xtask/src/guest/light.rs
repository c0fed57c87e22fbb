//! Programs of guests that start quickly. An emulated processor takes seconds for what a real one does in 50 ms, and
//! scripts start these some hundred times:
//!
//! - fio links Ceph, Gluster, RDMA and TLS. The guests' fio is the installed one, with a run path to a folder of
//!   libraries of the same names that are hollow: of each function that is asked of them they have one that ends the
//!   program. Nothing that tests ask of fio gets there.
//! - jq 1.6 compiles its own library of filters at each start; gojq, which takes the same filters, does not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::lanes::Output;
use crate::process::capture;

/// Libraries of fio's that are hollow, by the beginnings of their names; those that it does not have are left out, as
/// its packages differ in what they link.
const HOLLOW: [&str; 8] = [
    "libgfapi.so",
    "libgnutls.so",
    "libibverbs.so",
    "libpmem.so",
    "libpmemblk.so",
    "librados.so",
    "librbd.so",
    "librdmacm.so",
];

/// Makes fio and jq in `folder`, unless they are there; returns their paths.
pub fn make(folder: &Path, output: &Output) -> Result<[PathBuf; 2]> {
    let (fio, jq) = (installed("fio")?, installed("gojq")?);
    let libraries = libraries(&fio)?;
    let made = [folder.join("fio"), folder.join("jq")];
    let of = folder.join("made-of");
    let mut about = format!("{jq:?}\n{HOLLOW:?}\n");
    for path in libraries.values().chain([&fio]) {
        about.push_str(&format!("{path:?} {:?}\n", fs::metadata(path)?.modified()?));
    }
    if fs::read_to_string(&of).is_ok_and(|said| said == about) {
        return Ok(made);
    }
    if folder.exists() {
        // What is hollow no more would stay there.
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    // Who asks for them: the program, and those of its libraries that stay as they are.
    let is_hollow = |name: &str| HOLLOW.iter().any(|begin| name.starts_with(begin));
    let real = libraries.iter().filter(|(name, _)| !is_hollow(name)).map(|(_, path)| path);
    let mut asked = BTreeSet::new();
    for path in real.chain([&fio]) {
        asked.extend(symbols(path, "--undefined-only")?);
    }
    for (name, path) in libraries.iter().filter(|(name, _)| is_hollow(name)) {
        let there = symbols(path, "--defined-only")?;
        hollow(folder, name, asked.intersection(&there), output)?;
    }
    let [light, light_jq] = &made;
    fs::copy(&fio, light).with_context(|| light.display().to_string())?;
    // The old kind of run path, which also goes for the libraries of its libraries.
    let mut patch = Command::new("patchelf");
    output.run(patch.args(["--force-rpath", "--set-rpath"]).arg(folder).arg(light))?;
    symlink(jq, light_jq)?;
    fs::write(of, about)?;
    Ok(made)
}

fn installed(name: &str) -> Result<PathBuf> {
    let path = capture(Command::new("sh").args(["-c", "command -v \"$1\"", "sh", name]))?;
    Ok(path.trim_end().into())
}

/// All that `program` loads: names, and where they are.
fn libraries(program: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let said = capture(Command::new("ldd").arg(program))?;
    let libraries = said.lines().filter_map(|line| line.trim().split_once(" => "));
    let path = |rest: &str| PathBuf::from(rest.split(" (").next().unwrap_or_default());
    Ok(libraries.map(|(name, rest)| (name.to_owned(), path(rest))).collect())
}

/// Names of dynamic symbols, `name` or `name@VERSION`.
fn symbols(path: &Path, which: &str) -> Result<BTreeSet<String>> {
    let said = capture(Command::new("nm").args(["-D", which]).arg(path))?;
    Ok(said.lines().filter_map(|line| line.split_whitespace().last()).map(symbol).collect())
}

/// The default version of a name is the same as that version.
fn symbol(said: &str) -> String {
    said.replace("@@", "@")
}

/// Compiles a library of that name whose functions end the program.
fn hollow<'a>(
    folder: &Path,
    name: &str,
    functions: impl Iterator<Item = &'a String>,
    output: &Output,
) -> Result<()> {
    let (source, script) = sources(functions);
    if source.is_empty() {
        // Only other hollow ones ask for it.
        return Ok(());
    }
    let [c, map] = ["c", "map"].map(|ending| folder.join(format!("{name}.{ending}")));
    fs::write(&c, source)?;
    fs::write(&map, &script)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-nostdlib", "-o"]).arg(folder.join(name)).arg(&c);
    compiler.arg(format!("-Wl,-soname,{name}"));
    if !script.is_empty() {
        compiler.arg(format!("-Wl,--version-script,{}", map.display()));
    }
    output.run(&mut compiler)
}

/// The C of such a library, and the versions of its functions as the linker is told them.
fn sources<'a>(functions: impl Iterator<Item = &'a String>) -> (String, String) {
    let mut source = String::new();
    let mut versions: BTreeMap<&str, String> = BTreeMap::new();
    for function in functions {
        let (name, version) = function.split_once('@').unwrap_or((function, ""));
        source.push_str(&format!("void {name}(void) {{ __builtin_trap(); }}\n"));
        if !version.is_empty() {
            versions.entry(version).or_default().push_str(&format!(" {name};"));
        }
    }
    let script =
        versions.iter().map(|(version, names)| format!("{version} {{ global:{names} }};\n"));
    (source, script.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hollow_library_has_what_is_asked_of_it_in_the_versions_that_are_asked_for() {
        let asked = ["a@V_1", "b@V_2", "c@V_1", "d"].map(String::from);
        let (source, script) = sources(asked.iter());
        assert_eq!(source.lines().count(), 4);
        assert!(source.starts_with("void a(void) { __builtin_trap(); }\n"), "{source}");
        assert_eq!(script, "V_1 { global: a; c; };\nV_2 { global: b; };\n");
        assert_eq!(symbol("a@@V_1"), "a@V_1");
    }
}
