//! What tests run in guests: built, then kept in a folder of their own, where no other build replaces
//! them while a guest runs them.
//!
//! ```text
//!   target/PROFILE/{nvlane,libnvlane_aio.so,examples/nvme} ──copied──> target/guest/programs/PROFILE/
//!   this program, tests and examples of uring and reactor, the model of Copies  ──copied──>   the same
//!   a program in C on our libaio                           ──copied──>   .../aio_device
//!   libnvlane.so, examples of volume in Rust and C         ──copied──>   .../library/{rust,c}/
//!   nvlane with its promises made breakable                ──copied──>   .../mutants/nvlane, or everyday .../nvlane
//!   fio and jq that start quickly                          ──made───>    target/guest/programs/light/
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, ensure};

use crate::guest::light;
use crate::guest::session::Script;
use crate::lanes::Output;
use crate::process::{cargo, checkout, target_directory};
use crate::tls;
use crate::unit;

/// The profile of what users get: what is measured, and what guests of the full run try.
pub const RELEASE: &str = "release";
/// The same but for what takes long to build: what guests of the everyday run try.
pub const QUICK: &str = "quick";

/// What users get: the program, and the libaio that it runs others with.
pub const SHIPPED: [&str; 2] = ["--package=nvlane", "--package=libaio"];

/// The examples of the library, in Rust and in C.
const LIBRARY_EXAMPLES: [&str; 4] = ["passthrough", "poll", "zone_append", "vendor"];

/// Variables that name what is tested instead of what would be built.
pub const GIVEN: [&str; 5] =
    ["NVLANE", "NVLANE_PEER", "NVME_EXAMPLE", "LIBRARY_PROGRAMS", "COPY_MODEL"];

/// The programs of some scripts.
#[derive(Debug)]
pub struct Programs {
    scripts: Vec<Script>,
    full: bool,
    rounds: u32,
    /// Tests of durability want the program that breaks its promises.
    mutants: bool,
    /// All tests of the workspace are built in any case.
    with_all: bool,
    /// Variables for the guest; or that they could not be built.
    built: OnceLock<Option<Vec<(String, String)>>>,
}

impl Programs {
    /// Those that `scripts` and, if it is `cut`, the accident to the power need, as users get them when `full`;
    /// accidents are repeated `rounds` times.
    pub fn of(scripts: Vec<Script>, cut: bool, full: bool, rounds: u32) -> Self {
        let mutants = cut || scripts.iter().any(|script| script.name.contains("mutant"));
        Self { scripts, full, rounds, mutants, with_all: false, built: OnceLock::new() }
    }

    /// The same; `with_all` tests of the workspace, which are built in any case, or without.
    pub fn beside_unit_tests(self, with_all: bool) -> Self {
        Self { with_all, ..self }
    }

    /// Those who wait need not wait any longer: unless they are built, they will not be.
    pub fn give_up(&self) {
        let _ = self.built.set(None);
    }

    /// Builds them; once.
    pub fn make(&self, output: &mut Output) -> Result<()> {
        // Whatever happens, others wait for the end of it.
        let built = catch_unwind(AssertUnwindSafe(|| self.build(output)))
            .unwrap_or_else(|_| Err(anyhow!("the build panicked")));
        let (variables, result) = match built {
            Ok(variables) => (Some(variables), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.built.set(variables).expect("they are built once");
        result
    }

    /// What every script is told.
    fn depth(&self) -> [(String, String); 2] {
        [("FULL", u32::from(self.full)), ("ROUNDS", self.rounds)]
            .map(|(name, value)| (name.to_owned(), value.to_string()))
    }

    /// Waits until they are built; returns the variables that tell scripts where they are.
    pub fn ready(&self) -> Result<&[(String, String)]> {
        self.built.wait().as_deref().context("what guests run could not be built")
    }

    /// What takes longest, for who wants to begin it before its turn: cargo's part of what is shipped.
    pub fn longest_build(&self) -> Result<Option<Command>> {
        if std::env::var_os("NVLANE").is_some() {
            return Ok(None);
        }
        let plan = self.plan();
        let mut command = build(plan.profile)?;
        command.args(&plan.shipped);
        Ok(Some(command))
    }

    fn plan(&self) -> Plan {
        let mut others = Vec::new();
        if self.example() || self.needs("library") {
            others.extend(["--package=volume", "--examples"]);
        }
        if self.needs("library") {
            others.push("--package=capi");
        }
        let mut shipped = SHIPPED.to_vec();
        shipped.extend(["--bins", "--lib"]);
        // In one go where that is quicker, and this program too. What users get is built alone: other
        // packages may want other features of what both use.
        let together = !self.full && std::env::var_os("NVLANE").is_none();
        if together {
            shipped.push("--package=xtask");
            shipped.append(&mut others);
            // One program is both: it keeps its promises unless it is told to break them. It takes two minutes to build.
            shipped.extend(["--features", "nvlane/mutants"]);
        }
        let profile = if self.full { RELEASE } else { QUICK };
        Plan { profile, together, shipped, others }
    }

    fn needs(&self, what: &str) -> bool {
        self.scripts.iter().any(|script| script.name.contains(what))
    }

    fn example(&self) -> bool {
        self.scripts.iter().any(|script| script.has_example)
    }

    fn build(&self, output: &mut Output) -> Result<Vec<(String, String)>> {
        let Plan { profile, together, shipped, others } = self.plan();
        let kept = Kept { folder: checkout()?.join("target/guest/programs").join(profile) };
        let target = target_directory()?;
        let built = target.join(profile);
        let given = |name: &str| std::env::var(name).ok();

        let mut variables = self.depth().to_vec();
        match light::make(&checkout()?.join("target/guest/programs/light"), output) {
            Ok(light) => variables.extend(light.map(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
                (name, path.display().to_string())
            })),
            Err(error) => output.say(&format!("guests have the usual fio and jq: {error:#}")),
        }
        if self.scripts.iter().any(|script| script.has_tls) {
            match tls::tools() {
                Ok(tools) => variables.extend(tools),
                Err(error) => output.say(&format!("guests have no handshakes of TLS: {error:#}")),
            }
        }
        let mut add = |name: &str, value: String| variables.push((name.to_owned(), value));
        if self.mutants && !together {
            add("NVLANE_MUTANTS", build_mutants(&target, &shipped, &kept, output)?);
        }
        let program = match given("NVLANE") {
            Some(program) => program,
            None => {
                output.run(build(profile)?.args(&shipped))?;
                kept.copy(&built.join("libnvlane_aio.so"), "")?;
                kept.copy(&built.join("nvlane"), "")?
            }
        };
        if together {
            forget_mutants(&built)?;
            add("NVLANE_MUTANTS", program.clone());
        }
        if self.needs("aio") {
            add("AIO_DEVICE", build_aio_program(Path::new(&program), &kept, output)?);
        }
        add("NVLANE", program);
        let this = if together { built.join("xtask") } else { std::env::current_exe()? };
        add("XTASK", kept.copy(&this, "")?);
        if !others.is_empty() {
            output.run(build(profile)?.arg("--lib").args(&others))?;
        }
        if self.example() {
            let kept = || kept.copy(&built.join("examples/nvme"), "");
            add("NVME_EXAMPLE", given("NVME_EXAMPLE").map_or_else(kept, Ok)?);
        }
        if self.needs("library") {
            let kept = || keep_library(&built, &kept, output);
            add("LIBRARY_PROGRAMS", given("LIBRARY_PROGRAMS").map_or_else(kept, Ok)?);
        }
        if self.needs("rings") {
            add("RING_PROGRAMS", build_ring_programs(self.with_all, &kept, output)?);
        }
        if self.needs("copy_model") {
            let kept = || self.build_copy_model(&kept, output);
            add("COPY_MODEL", given("COPY_MODEL").map_or_else(kept, Ok)?);
        }
        if let Some(peer) = given("NVLANE_PEER") {
            add("NVLANE_PEER", peer);
        }
        Ok(variables)
    }

    /// The tests of Copy, with the model: guests have file systems and devices for it. As they are built in any case:
    /// everyday for the unit tests, in the full run for the model on this machine.
    fn build_copy_model(&self, kept: &Kept, output: &Output) -> Result<String> {
        let options: &[&str] = match (self.full, self.with_all) {
            (true, _) => &["--release", "--package=namespace", "--test=copy"],
            (false, true) => &["--workspace"],
            (false, false) => &["--package=namespace", "--test=copy"],
        };
        let built = build_tests(&["namespace"], options, output)?;
        let is_it = |built: &unit::Built| {
            let name = built.executable.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("copy-")
        };
        let found = built.into_iter().find(is_it).context("cargo has built no tests of Copy")?;
        kept.copy(&found.executable, "model")
    }
}

/// What cargo is asked for.
struct Plan {
    profile: &'static str,
    /// All in one go.
    together: bool,
    /// Of what users get, and all the others if they are built with it.
    shipped: Vec<&'static str>,
    /// Of what is built after it.
    others: Vec<&'static str>,
}

/// The folder that programs are copied to.
struct Kept {
    folder: PathBuf,
}

impl Kept {
    /// Copies `program` to the folder, or the one `below` it; returns where.
    fn copy(&self, program: &Path, below: &str) -> Result<String> {
        let folder = self.folder.join(below);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let kept = folder.join(program.file_name().context("a program has a name")?);
        // Not into the file that a guest of another run may be running.
        let new = kept.with_extension(format!("new-{}", std::process::id()));
        fs::copy(program, &new).with_context(|| program.display().to_string())?;
        fs::rename(&new, &kept).with_context(|| kept.display().to_string())?;
        Ok(kept.display().to_string())
    }
}

fn build(profile: &str) -> Result<Command> {
    let mut command = cargo()?;
    command.args(["build", "--locked", "--profile", profile]);
    Ok(command)
}

/// The program with its promises made breakable at run time; in a place where nobody takes it for
/// the real one.
fn build_mutants(target: &Path, shipped: &[&str], kept: &Kept, output: &Output) -> Result<String> {
    // Always in this profile: tests beside us run what is in the others.
    output.run(build(QUICK)?.args(shipped).args(["--features", "nvlane/mutants"]))?;
    let built = target.join(QUICK);
    let copy = kept.copy(&built.join("nvlane"), "mutants")?;
    forget_mutants(&built)?;
    Ok(copy)
}

/// What has the mutants in it is not left where the next build expects the real one.
fn forget_mutants(built: &Path) -> Result<()> {
    let program = built.join("nvlane");
    fs::remove_file(&program).with_context(|| program.display().to_string())
}

/// The library with its examples: libnvlane.so, rust/NAME, c/NAME in one folder.
fn keep_library(built: &Path, kept: &Kept, output: &Output) -> Result<String> {
    let checkout = checkout()?;
    kept.copy(&built.join("libnvlane.so"), "library")?;
    let folder = kept.folder.join("library");
    fs::create_dir_all(folder.join("c"))?;
    // The name that programs look for.
    let name = folder.join("libnvlane.so.0");
    if fs::symlink_metadata(&name).is_err() {
        symlink("libnvlane.so", name)?;
    }
    let compile = |source: PathBuf, options: &[&str], name: &str| {
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O2", "-I"]).arg(checkout.join("crates/capi/include"));
        compiler.args(options).arg(source).arg("-o").arg(folder.join("c").join(name));
        output.run(compiler.arg("-L").arg(&folder).arg("-lnvlane"))
    };
    for name in LIBRARY_EXAMPLES {
        kept.copy(&built.join("examples").join(name), "library/rust")?;
        compile(checkout.join("examples/c").join(format!("{name}.c")), &[], name)?;
    }
    // A test of devices, which minds memory as well.
    let minds = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    compile(checkout.join("crates/capi/tests/c/device.c"), &minds, "device")?;
    Ok(folder.display().to_string())
}

/// tests/c/device.c of crates/libaio, against the libaio of that nvlane: beside it as kept here, or where packages have it.
fn build_aio_program(nvlane: &Path, kept: &Kept, output: &Output) -> Result<String> {
    let folder = nvlane.parent().context("nvlane is in a folder")?;
    let places =
        ["libnvlane_aio.so", "deps/libnvlane_aio.so", "libaio.so.1", "../lib/nvlane/libaio.so.1"];
    let library = places.iter().map(|place| folder.join(place)).find(|place| place.exists());
    let library = library.with_context(|| format!("no libaio beside {}", nvlane.display()))?;
    fs::create_dir_all(&kept.folder)?;
    let program = kept.folder.join("aio_device");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O2", "-o"]).arg(&program);
    compiler.arg(checkout()?.join("crates/libaio/tests/c/device.c")).arg(library);
    output.run(&mut compiler)?;
    Ok(program.display().to_string())
}

/// The tests and examples of the crates around io_uring, separated by spaces: kernels differ in
/// what rings they have. With all other tests where those are built in any case: the crates alone would have other features.
fn build_ring_programs(with_all: bool, kept: &Kept, output: &Output) -> Result<String> {
    let of: &[&str] =
        if with_all { &["--workspace"] } else { &["--package=uring", "--package=reactor"] };
    let mut programs = Vec::new();
    for built in build_tests(&["uring", "reactor"], of, output)? {
        // rings.sh tells tests from examples by the name of the folder that cargo has them in.
        let program = &built.executable;
        let kind = program.parent().and_then(Path::file_name).context("cargo has folders")?;
        programs.push(kept.copy(program, &format!("rings/{}", kind.display()))?);
    }
    Ok(programs.join(" "))
}

/// The tests and examples of `crates` among what cargo makes of `options`.
fn build_tests(crates: &[&str], options: &[&str], output: &Output) -> Result<Vec<unit::Built>> {
    let mut command = cargo()?;
    command.args(["test", "--no-run", "--locked", "--message-format=json-render-diagnostics"]);
    let mut programs = Vec::new();
    for line in output.captured(command.args(options))?.lines() {
        let Some(built) = unit::built(line)? else { continue };
        let is_theirs = crates.iter().any(|name| built.folder.ends_with(name));
        if is_theirs && (built.is_test || built.is_example) {
            programs.push(built);
        }
    }
    ensure!(!programs.is_empty(), "cargo has built no tests of {}", crates.join(" and "));
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_told_how_much_is_wanted() {
        let told =
            |full, rounds| Programs::of(Vec::new(), false, full, rounds).depth().map(|it| it.1);
        assert_eq!(told(true, 20), ["1", "20"]);
        assert_eq!(told(false, 5), ["0", "5"]);
    }

    #[test]
    fn nobody_waits_for_what_will_not_be_built() {
        let programs = Programs::of(Vec::new(), false, false, 5);
        programs.give_up();
        assert!(programs.ready().is_err());
    }
}
