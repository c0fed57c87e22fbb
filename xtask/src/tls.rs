//! What a guest's kernel needs for NVMe/TCP with TLS: a `tlshd` that does its handshakes, an nvme-cli that derives keys and gives
//! them to it, and keyctl. This machine's release lacks the first two: all are of later ones, unpacked with the libraries that they
//! load and their dynamic loader below `target/guest/tls`, and not installed. tests/guest/_tls.sh runs them.

use std::path::Path;
use std::process::Command;
use std::sync::Once;

use anyhow::Result;

use crate::archive::{self, Apt};
use crate::process::capture;

/// Variables that tell guests where they are, and the suites that they are of. Those of the first derive keys and prove them in ways
/// of their own, those of the second as NVMe/TCP and TLS demand (docs/testing.md). That one is not released yet.
const SUITES: [(&str, &str); 2] = [("TLS_TOOLS", "trixie"), ("TLS_TOOLS_NEWER", "forky")];
const PACKAGES: [&str; 3] = ["ktls-utils", "nvme-cli", "keyutils"];
/// Below the folder.
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The variables with the folders; fetched once. Without the second, scripts do without it: what is not released changes any day.
pub fn tools() -> Result<Vec<(String, String)>> {
    static SAID: Once = Once::new();
    let folder = |(variable, suite): (&str, &str)| -> Result<(String, String)> {
        let (_, root) = archive::cached(("tls", suite), false, unpack)?;
        Ok((variable.to_owned(), root.display().to_string()))
    };
    let [released, newer] = SUITES.map(folder);
    let newer = newer.inspect_err(|error| {
        SAID.call_once(|| eprintln!("guests have no newer tools for TLS: {error:#}"));
    });
    Ok([Some(released?), newer.ok()].into_iter().flatten().collect())
}

fn unpack(apt: &Apt, root: &Path) -> Result<String> {
    let packages = apt.with_dependencies(&PACKAGES, |name| name.starts_with("lib"))?;
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    apt.unpack(&packages, root)?;
    // They must run, with nothing but that.
    let run = |program: &str, argument: &str| {
        let mut command = Command::new(root.join(LOADER));
        command.arg("--library-path").arg(root.join(LIBRARIES));
        capture(command.arg(root.join("usr/sbin").join(program)).arg(argument))
    };
    run("tlshd", "--version")?;
    run("nvme", "version")
}
