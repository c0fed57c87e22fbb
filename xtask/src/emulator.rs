//! QEMU, as new as the guests' devices need it: the machine's own, or the one that its release offers as a backport,
//! unpacked below `target/guest/emulator` and not installed.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::Once;

use anyhow::{Context, Result};

use crate::archive::{self, Apt};
use crate::process::capture;

/// The first that has Flexible Data Placement; it is also a tenth to a quarter quicker than Debian 12's 7.2.
const WANTED: u32 = 10;
const PROGRAM: &str = "qemu-system-x86_64";
/// What the unpacked program needs that an older one's installation does not have.
const PACKAGES: [&str; 3] = ["qemu-system-x86", "qemu-system-data", "seabios"];

/// How to call it.
#[derive(Clone, Debug)]
pub struct Emulator {
    /// The program and where it finds its firmware.
    pub command: Vec<OsString>,
    /// It is as new as wanted.
    pub is_new: bool,
}

impl Emulator {
    /// The machine's own, whatever its version.
    pub fn installed() -> Self {
        Self { command: vec![PROGRAM.into()], is_new: false }
    }

    /// One that is new enough; fetched once where the machine's own is not, or that one where none can be fetched.
    pub fn newest() -> Result<Self> {
        static SAID: Once = Once::new();
        let said = capture(Command::new(PROGRAM).arg("--version"));
        let said = said.context("no emulator (package qemu-system-x86)")?;
        if major(&said).is_some_and(|major| major >= WANTED) {
            return Ok(Self { is_new: true, ..Self::installed() });
        }
        Ok(Self::fetched().unwrap_or_else(|error| {
            SAID.call_once(|| eprintln!("guests have the machine's own emulator: {error:#}"));
            Self::installed()
        }))
    }

    fn fetched() -> Result<Self> {
        let suite = format!("{}-backports", archive::codename()?);
        let (_, root) = archive::cached(("emulator", &suite), false, unpack)?;
        let mut command = vec![root.join("usr/bin").join(PROGRAM).into_os_string()];
        for share in ["usr/share/qemu", "usr/share/seabios"] {
            command.extend(["-L".into(), root.join(share).into_os_string()]);
        }
        Ok(Self { command, is_new: true })
    }
}

fn unpack(apt: &Apt, root: &Path) -> Result<String> {
    apt.unpack(&PACKAGES, root)?;
    // It must run with the libraries that the machine's own has brought.
    capture(Command::new(root.join("usr/bin").join(PROGRAM)).arg("--version"))
}

/// Of `QEMU emulator version 7.2.19 (Debian ...)`.
fn major(said: &str) -> Option<u32> {
    let version =
        said.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_first_number() {
        let said =
            "QEMU emulator version 7.2.19 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright (c) 2003";
        assert_eq!(major(said), Some(7));
        assert_eq!(major("QEMU emulator version 10.0.2"), Some(10));
        assert_eq!(major("no such thing"), None);
    }
}
