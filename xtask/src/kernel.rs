//! The newest stock Debian kernel of a suite: image, modules and their indexes, below `target/guest/kernel/SUITE`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::archive::{self, Apt, remove_tree};
use crate::process::{capture, run};

/// The suite with the newest stock kernel.
pub const NEWEST_SUITE: &str = "trixie-backports";
/// Depends on the newest kernel of its suite.
const META: &str = "linux-image-amd64";

/// An unpacked kernel and its modules.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// As `uname -r` says it.
    pub version: String,
    /// Holds `usr/lib/modules/VERSION`, with `vmlinuz` and `modules.dep` in it.
    pub root: PathBuf,
}

impl Kernel {
    /// The kernel of `suite`: from the cache, or fetched when missing or when `refresh` is asked.
    pub fn of_suite(suite: &str, refresh: bool) -> Result<Self> {
        let (version, root) = archive::cached(("kernel", suite), refresh, unpack)?;
        Ok(Self { version, root })
    }

    /// Where the modules, their indexes and the kernel image are.
    pub fn modules(&self) -> PathBuf {
        self.root.join("usr/lib/modules").join(&self.version)
    }

    /// The bootable image.
    pub fn image(&self) -> PathBuf {
        self.modules().join("vmlinuz")
    }
}

fn unpack(apt: &Apt, root: &Path) -> Result<String> {
    let packages = kernel_packages(apt)?;
    let list: Vec<&str> = packages.iter().map(String::as_str).collect();
    apt.unpack(&list, root)?;
    arrange(root)
}

/// What the meta package stands for: one image package (up to 6.12), or an image package with
/// `linux-binary-`, `linux-modules-` and `linux-base-` of the same version (7.x).
fn kernel_packages(apt: &Apt) -> Result<BTreeSet<String>> {
    let architecture = capture(Command::new("dpkg").arg("--print-architecture"))?;
    ensure!(architecture.trim() == "amd64", "the guest harness is for amd64 machines only");
    let mut packages = apt.with_dependencies(&[META], is_of_kernel)?;
    packages.remove(META);
    if packages.is_empty() {
        bail!("{META} depends on no kernel image");
    }
    Ok(packages)
}

fn is_of_kernel(package: &str) -> bool {
    let version = package.strip_prefix("linux-").and_then(|kind| {
        let prefixes = ["image-", "binary-", "modules-", "base-"];
        prefixes.iter().find_map(|prefix| kind.strip_prefix(prefix))
    });
    version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
}

/// Brings both package layouts into one and indexes the modules; returns the kernel's version.
fn arrange(root: &Path) -> Result<String> {
    let merged = root.join("usr/lib");
    let old = root.join("lib");
    fs::create_dir_all(&merged)?;
    if old.is_dir() && !old.is_symlink() {
        fs::rename(old.join("modules"), merged.join("modules"))?;
        remove_tree(&old)?;
    }
    if !old.exists() {
        // depmod of Debian 12 looks below lib/, not usr/lib/.
        std::os::unix::fs::symlink("usr/lib", &old)?;
    }
    let entry = fs::read_dir(merged.join("modules"))?.next().context("no modules unpacked")??;
    let version = entry.file_name().to_string_lossy().into_owned();
    let image = entry.path().join("vmlinuz");
    if !image.exists() {
        let boot = root.join(format!("boot/vmlinuz-{version}"));
        fs::copy(&boot, &image).with_context(|| boot.display().to_string())?;
    }
    run(Command::new("depmod").arg("-b").arg(root).arg(&version))?;
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::dependencies;

    #[test]
    fn dependencies_of_both_kernel_layouts() {
        let of_kernel = |record: &'static str| {
            dependencies(record).filter(|name| is_of_kernel(name)).collect::<Vec<_>>()
        };
        let meta = "Package: linux-image-amd64\nDepends: linux-image-7.2.12-amd64 (= 7.2-1)\n";
        assert_eq!(of_kernel(meta), ["linux-image-7.2.12-amd64"]);
        let image = "Depends: linux-binary-7.2-amd64 (= 1), linux-modules-7.2-amd64, kmod, \
                     linux-initramfs-tool | initramfs-tools\nPre-Depends: linux-base-7.2-amd64\n";
        assert_eq!(
            of_kernel(image),
            ["linux-binary-7.2-amd64", "linux-modules-7.2-amd64", "linux-base-7.2-amd64"]
        );
        assert!(of_kernel("Depends: kmod, linux-base (>= 4.3~)").is_empty());
    }
}
