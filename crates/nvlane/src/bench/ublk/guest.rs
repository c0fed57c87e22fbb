//! The same command in a guest, for machines whose kernel has no ublk.
//!
//! The guest is exact: an instruction takes a nanosecond, so that CPU time is what was carried out, the same
//! on every run (docs/performance.md). Its processor copies eight bytes per instruction, which is nearer to
//! what processors do than one.

use super::IN_GUEST;
use super::program::HOST_NS;
use crate::bench::Options;
use anyhow::{Context, bail};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The sources that this program was built from, where the guest is built, too.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// How long the guest may take, in seconds; a full run on a busy machine.
const TIME_MAX_S: &str = "5400";

/// The processor: without "enhanced" rep movsb, which an emulator takes byte by byte.
const PROCESSOR: &str = "max,-erms,-fsrm";

/// Becomes the guest. Returns only why it could not.
pub fn run(why: &str, user_space_ns: f64, options: &Options) -> anyhow::Error {
    match try_run(user_space_ns, options) {
        Ok(never) => match never {},
        Err(error) => error.context(format!(
            "{why}, and no guest can be started; to measure in one by hand: cargo xtask guest --exact -- \
             nvlane bench ublk"
        )),
    }
}

fn try_run(user_space_ns: f64, options: &Options) -> anyhow::Result<std::convert::Infallible> {
    let checkout = Path::new(CHECKOUT).canonicalize().context("the sources are not here")?;
    if !checkout.join("xtask/Cargo.toml").exists() {
        bail!("{} has no xtask", checkout.display());
    }
    if !options.quiet {
        eprintln!("no ublk here: measuring in a guest, which takes half a minute to start");
    }
    let program = std::env::current_exe()?;
    let mut command = Command::new("cargo");
    command.args(["xtask", "guest", "--exact", "--timeout", TIME_MAX_S]);
    command.args(["--qemu=-cpu", &format!("--qemu={PROCESSOR}")]);
    if let Some(path) = std::env::var_os("PATH") {
        command.arg("--env").arg(format!("PATH={}", path.to_string_lossy()));
    }
    let words = words_for_guest(std::env::args_os().skip(1), &mut command)?;
    command.arg("--").arg(program).args(words);
    command.env(IN_GUEST, "1").env(HOST_NS, user_space_ns.to_string()).current_dir(checkout);
    // What it prints is what we were to print.
    Err(command.exec()).context("cargo cannot be run")
}

/// The arguments of this program. What it draws is to be seen here: its directory is shared.
fn words_for_guest(
    own: impl Iterator<Item = OsString>,
    guest: &mut Command,
) -> anyhow::Result<Vec<OsString>> {
    let (mut words, mut draws) = (Vec::new(), false);
    for word in own {
        let joined = word.to_str().and_then(|word| word.strip_prefix("--svg=").map(OsString::from));
        if draws || joined.is_some() {
            let path = std::path::absolute(joined.as_ref().unwrap_or(&word))?;
            guest.arg("--share").arg(path.parent().context("--svg names no file")?);
            if joined.is_some() {
                words.push("--svg".into());
            }
            words.push(path.into());
            draws = false;
        } else {
            draws = word == "--svg";
            words.push(word);
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_is_made_where_the_guest_can_write() {
        for own in [&["ublk", "--svg=/tmp/x/y.svg"] as &[_], &["ublk", "--svg", "/tmp/x/y.svg"]] {
            let mut guest = Command::new("guest");
            let words = words_for_guest(own.iter().map(OsString::from), &mut guest).unwrap();
            assert_eq!(words, ["ublk", "--svg", "/tmp/x/y.svg"]);
            assert_eq!(guest.get_args().collect::<Vec<_>>(), ["--share", "/tmp/x"]);
        }
    }
}
