//! Fetches the newest stock Debian kernel of a suite, with apt alone and without installing it.
//!
//! ```text
//! the machine's apt sources ──> archive base URI ──> own one-line source for SUITE
//!        own lists, own cache, empty dpkg status ──> apt-get update, show, download
//!        dpkg-deb -x, depmod ──> target/guest/kernel/SUITE/{usr/lib/modules/VERSION,version}
//! ```
//!
//! The archive is whichever the machine already uses (one-line or deb822 format; mirror, proxy and
//! authentication settings stay as they are), so no host is named here. Nothing outside the cache
//! directory is written.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{capture, checkout, run};

/// The suite with the newest stock kernel.
pub const NEWEST_SUITE: &str = "trixie-backports";

/// Signs the archive of every Debian release; from the package debian-archive-keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

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
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        ensure!(suite.chars().all(plain), "not the name of a Debian suite: {suite:?}");
        let cache = checkout()?.join("target/guest/kernel");
        fs::create_dir_all(&cache)?;
        // Two sessions that start at once fetch once.
        let lock = File::create(cache.join("lock"))?;
        lock.lock()?;

        let root = cache.join(suite);
        let version_file = root.join("version");
        if refresh || !version_file.exists() {
            eprintln!("fetching the newest kernel of {suite} (once; about 180 MB on disk)");
            let fresh = cache.join(format!("{suite}.new"));
            remove_tree(&fresh)?;
            fetch(suite, &fresh).with_context(|| format!("no kernel of {suite}"))?;
            remove_tree(&root)?;
            fs::rename(&fresh, &root)?;
        }
        let version = fs::read_to_string(&version_file)?.trim().to_owned();
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

fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

fn fetch(suite: &str, root: &Path) -> Result<()> {
    let apt = Apt::new(suite, &root.join("apt"))?;
    apt.run("apt-get", &["update"])?;
    let packages = kernel_packages(&apt)?;
    let list: Vec<&str> = packages.iter().map(String::as_str).collect();
    apt.run("apt-get", &[&["download"], &list[..]].concat())?;
    for entry in fs::read_dir(apt.downloads())? {
        run(Command::new("dpkg-deb").arg("-x").arg(entry?.path()).arg(root))?;
    }
    remove_tree(&root.join("apt"))?;
    let version = arrange(root)?;
    fs::write(root.join("version"), version)?;
    Ok(())
}

/// An apt of our own: one source, own state, the machine's transport settings.
struct Apt {
    directory: PathBuf,
    options: Vec<String>,
}

impl Apt {
    fn new(suite: &str, directory: &Path) -> Result<Self> {
        for part in ["lists/partial", "cache/archives/partial", "downloads"] {
            fs::create_dir_all(directory.join(part))?;
        }
        let source = directory.join("sources.list");
        let status = directory.join("status");
        let signed = if Path::new(KEYRING).exists() {
            format!("[signed-by={KEYRING}] ")
        } else {
            String::new() // the machine's trusted.gpg.d decides
        };
        fs::write(&source, format!("deb {signed}{} {suite} main\n", archive_base()?))?;
        fs::write(&status, "")?;
        let at = |path: &Path| path.display().to_string();
        let options = [
            format!("Dir::Etc::SourceList={}", at(&source)),
            "Dir::Etc::SourceParts=/dev/null".into(),
            "Dir::Etc::Preferences=/dev/null".into(),
            "Dir::Etc::PreferencesParts=/dev/null".into(),
            format!("Dir::State::Lists={}", at(&directory.join("lists"))),
            format!("Dir::State::Status={}", at(&status)),
            format!("Dir::Cache={}", at(&directory.join("cache"))),
            "Acquire::Languages=none".into(),
            "Acquire::Retries=3".into(),
            // The sandbox user may not reach a checkout in somebody's home.
            "APT::Sandbox::User=".into(),
        ];
        let options = options.into_iter().flat_map(|option| ["-o".to_owned(), option]).collect();
        Ok(Self { directory: directory.to_owned(), options })
    }

    fn downloads(&self) -> PathBuf {
        self.directory.join("downloads")
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        capture(
            Command::new(program)
                .args(&self.options)
                .arg("-qq")
                .args(arguments)
                .current_dir(self.downloads()),
        )
    }
}

/// The base URI of the archive that serves this machine's own release.
fn archive_base() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|name| name.trim_matches('"').to_owned())
        .unwrap_or_default();
    // Prints what an update would fetch, whatever the format of the sources, and fetches nothing.
    let uris = capture(Command::new("apt-get").args(["update", "--print-uris"]))?;
    base_for(&uris, &codename).context(
        "the machine's apt sources name no Debian archive for its own release: \
         add one with this release, component main",
    )
}

/// Picks the base of `URI/dists/SUITE/InRelease` whose suite is the running release.
fn base_for(print_uris: &str, codename: &str) -> Option<String> {
    let releases = print_uris.lines().filter_map(|line| {
        let uri = line.strip_prefix('\'')?.split('\'').next()?;
        let (base, suite) = uri.strip_suffix("/InRelease")?.rsplit_once("/dists/")?;
        Some((base.to_owned(), suite.to_owned()))
    });
    let own = |suite: &str| suite == codename || matches!(suite, "stable" | "oldstable");
    releases.into_iter().find(|(_, suite)| own(suite)).map(|(base, _)| base)
}

/// What the meta package stands for: one image package (up to 6.12), or an image package with
/// `linux-binary-`, `linux-modules-` and `linux-base-` of the same version (7.x).
fn kernel_packages(apt: &Apt) -> Result<BTreeSet<String>> {
    let architecture = capture(Command::new("dpkg").arg("--print-architecture"))?;
    ensure!(architecture.trim() == "amd64", "the guest harness is for amd64 machines only");
    let mut wanted = vec!["linux-image-amd64".to_owned()];
    let mut packages = BTreeSet::new();
    while let Some(package) = wanted.pop() {
        let record = apt.run("apt-cache", &["show", "--no-all-versions", &package])?;
        for dependency in kernel_dependencies(&record) {
            if packages.insert(dependency.clone()) {
                wanted.push(dependency);
            }
        }
    }
    if packages.is_empty() {
        bail!("linux-image-amd64 depends on no kernel image");
    }
    Ok(packages)
}

fn kernel_dependencies(record: &str) -> Vec<String> {
    let fields = record.lines().filter_map(|line| {
        line.strip_prefix("Depends: ").or_else(|| line.strip_prefix("Pre-Depends: "))
    });
    let names = fields.flat_map(|field| field.split([',', '|'])).filter_map(|dependency| {
        let name = dependency.split_whitespace().next()?;
        let kind = name.strip_prefix("linux-")?;
        let version = ["image-", "binary-", "modules-", "base-"]
            .iter()
            .find_map(|prefix| kind.strip_prefix(prefix))?;
        version.starts_with(|c: char| c.is_ascii_digit()).then(|| name.to_owned())
    });
    names.collect()
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

    #[test]
    fn the_archive_is_the_one_of_the_running_release() {
        let uris = "'http://s.example/debian-security/dists/bookworm-security/InRelease' a 0 \n\
                    'http://m.example/debian/dists/bookworm-updates/InRelease' b 0 \n\
                    'http://m.example/debian/dists/bookworm/InRelease' c 0 \n\
                    'http://m.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' d 0 \n";
        assert_eq!(base_for(uris, "bookworm").unwrap(), "http://m.example/debian");
        assert_eq!(base_for(uris, "trixie"), None);
    }

    #[test]
    fn dependencies_of_both_kernel_layouts() {
        let meta = "Package: linux-image-amd64\nDepends: linux-image-7.2.12-amd64 (= 7.2-1)\n";
        assert_eq!(kernel_dependencies(meta), ["linux-image-7.2.12-amd64"]);
        let image = "Depends: linux-binary-7.2-amd64 (= 1), linux-modules-7.2-amd64, kmod, \
                     linux-initramfs-tool | initramfs-tools\nPre-Depends: linux-base-7.2-amd64\n";
        assert_eq!(
            kernel_dependencies(image),
            ["linux-binary-7.2-amd64", "linux-modules-7.2-amd64", "linux-base-7.2-amd64"]
        );
        assert!(kernel_dependencies("Depends: kmod, linux-base (>= 4.3~)").is_empty());
    }
}
