//! The same command in a guest, for machines whose kernel lacks what a scenario is about, or that do not give it
//! to this user.
//!
//! ```text
//!   nvlane bench ublk --quick      exec: cargo xtask guest --exact -- nvlane bench ublk --quick
//!        no ublk here         -->       NVLANE_BENCH_IN_GUEST=1; what it prints is what we were to print
//! ```
//!
//! The guest is exact: an instruction takes a nanosecond, so that CPU time is what was carried out, the same
//! on every run (docs/performance.md). Its processor copies eight bytes per instruction, which is nearer to
//! what processors do than one.

use super::Options;
use anyhow::{Context, anyhow, bail};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Set where this runs in a guest that it has started itself.
const IN_GUEST: &str = "NVLANE_BENCH_IN_GUEST";

/// The sources that this program was built from, where the guest is built, too.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// How long the guest may take, in seconds; a full run on a busy machine.
const TIME_MAX_S: &str = "5400";

/// The processor: without "enhanced" rep movsb, which an emulator takes byte by byte.
const PROCESSOR: &str = "max,-erms,-fsrm";

/// Windows in there are shorter by so much.
const SHORTER: u32 = 5;

/// Options that name a file or folder of this machine, and whether the guest is to write it for us.
const PATHS: [(&str, bool); 2] = [("--svg", true), ("--dir", false)];

/// Whether this is the guest.
pub fn is_inside() -> bool {
    std::env::var_os(IN_GUEST).is_some()
}

/// How long a window is, that has this `length` on a machine: a guest is slow, and repeats itself.
pub fn window(length: Duration) -> Duration {
    if is_inside() { length / SHORTER } else { length }
}

/// Becomes the guest, in which `scenario` finds `variables` in its environment; they are named NVLANE_*. Returns
/// only why it could not.
pub fn run(
    scenario: &str,
    why: &str,
    variables: &[(&str, String)],
    options: &Options,
) -> anyhow::Error {
    if is_inside() {
        return anyhow!("{why}, in the guest");
    }
    if !options.quiet {
        crate::stderr::line(format_args!(
            "{why}: measuring in a guest, which takes half a minute to start"
        ));
    }
    match try_run(variables) {
        Ok(never) => match never {},
        Err(error) => error.context(format!(
            "{why}, and no guest can be started; to measure in one by hand: cargo xtask guest --exact -- \
             nvlane bench {scenario}"
        )),
    }
}

fn try_run(variables: &[(&str, String)]) -> anyhow::Result<std::convert::Infallible> {
    let checkout = Path::new(CHECKOUT).canonicalize().context("the sources are not here")?;
    if !checkout.join("xtask/Cargo.toml").exists() {
        bail!("{} has no xtask", checkout.display());
    }
    let program = std::env::current_exe()?;
    let mut command = Command::new("cargo");
    command.args(["xtask", "guest", "--exact", "--timeout", TIME_MAX_S]);
    command.args(["--qemu=-cpu", &format!("--qemu={PROCESSOR}")]);
    if let Some(path) = std::env::var_os("PATH") {
        command.arg("--env").arg(format!("PATH={}", path.to_string_lossy()));
    }
    let words = words_for_guest(std::env::args_os().skip(1), &mut command)?;
    command.arg("--").arg(program).args(words).current_dir(checkout);
    command.env(IN_GUEST, "1").envs(variables.iter().map(|(name, value)| (name, value)));
    // What it prints is what we were to print.
    Err(command.exec()).context("cargo cannot be run")
}

/// The arguments of this program, with paths that mean the same in the guest, which starts in the sources. What
/// it draws is to be seen here: its folder is shared.
fn words_for_guest(
    own: impl Iterator<Item = OsString>,
    guest: &mut Command,
) -> anyhow::Result<Vec<OsString>> {
    let (mut words, mut own) = (Vec::new(), own);
    while let Some(word) = own.next() {
        let text = word.to_str().unwrap_or_default();
        let (name, joined) = match text.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (text, None),
        };
        let known = PATHS.into_iter().find(|(option, _)| *option == name);
        let Some((option, written)) = known else {
            words.push(word);
            continue;
        };
        let Some(value) = joined.or_else(|| own.next()) else { bail!("{option} names nothing") };
        let path = std::path::absolute(value)?;
        if written {
            guest.arg("--share").arg(path.parent().context("--svg names no file")?);
        }
        words.extend([option.into(), path.into()]);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(own: &[&str]) -> (Vec<OsString>, Vec<OsString>) {
        let mut guest = Command::new("guest");
        let words = words_for_guest(own.iter().map(OsString::from), &mut guest).unwrap();
        (words, guest.get_args().map(OsString::from).collect())
    }

    #[test]
    fn a_drawing_is_made_where_the_guest_can_write() {
        for own in [&["ublk", "--svg=/tmp/x/y.svg"] as &[_], &["ublk", "--svg", "/tmp/x/y.svg"]] {
            let (words, guest) = words(own);
            assert_eq!(words, ["ublk", "--svg", "/tmp/x/y.svg"]);
            assert_eq!(guest, ["--share", "/tmp/x"]);
        }
    }

    #[test]
    fn a_folder_is_the_same_wherever_the_guest_starts() {
        let here = std::env::current_dir().unwrap();
        for own in [&["aio", "--dir=a", "--quick"] as &[_], &["aio", "--dir", "a", "--quick"]] {
            let (words, guest) = words(own);
            assert_eq!(
                words,
                ["aio".into(), "--dir".into(), here.join("a").into(), "--quick".into()]
                    as [OsString; 4]
            );
            assert!(guest.is_empty(), "{guest:?}");
        }
    }
}
