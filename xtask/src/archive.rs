//! Packages of Debian's archive, fetched with apt alone and unpacked: nothing is installed.
//!
//! ```text
//! the machine's apt sources ──> archive base URI ──> own one-line source for SUITE
//!        own lists, own cache, empty dpkg status ──> apt-get update, show, download
//!        dpkg-deb -x ──> target/guest/KIND/SUITE/{what was in them, version}
//! ```
//!
//! The archive is whichever the machine already uses (one-line or deb822 format; mirror, proxy and
//! authentication settings stay as they are), so no host is named here. Nothing outside the cache
//! directory is written.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{capture, checkout, run};

/// Signs the archive of every Debian release; from the package debian-archive-keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What `unpack` brings of `suite` into a folder: from the cache, or anew when missing or when `refresh` is asked.
/// Returns what `unpack` has called its version, and the folder.
pub fn cached(
    (kind, suite): (&str, &str),
    refresh: bool,
    unpack: impl FnOnce(&Apt, &Path) -> Result<String>,
) -> Result<(String, PathBuf)> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    ensure!(suite.chars().all(plain), "not the name of a Debian suite: {suite:?}");
    let cache = checkout()?.join("target/guest").join(kind);
    fs::create_dir_all(&cache)?;
    // Two sessions that start at once fetch once.
    let lock = File::create(cache.join("lock"))?;
    lock.lock()?;

    let root = cache.join(suite);
    let version_file = root.join("version");
    if refresh || !version_file.exists() {
        eprintln!("fetching the newest {kind} of {suite} (once)");
        let fresh = cache.join(format!("{suite}.new"));
        remove_tree(&fresh)?;
        let folder = fresh.join("apt");
        let made = Apt::new(suite, &folder).and_then(|apt| {
            apt.run("apt-get", &["update"])?;
            unpack(&apt, &fresh)
        });
        let version = made.with_context(|| format!("no {kind} of {suite}"))?;
        remove_tree(&folder)?;
        fs::write(fresh.join("version"), version)?;
        remove_tree(&root)?;
        fs::rename(&fresh, &root)?;
    }
    Ok((fs::read_to_string(&version_file)?.trim().to_owned(), root))
}

/// The codename of this machine's release: `bookworm`.
pub fn codename() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let line = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(line.map(|name| name.trim_matches('"').to_owned()).unwrap_or_default())
}

/// An apt of our own: one source, own state, the machine's transport settings.
#[derive(Debug)]
pub struct Apt {
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

    /// These packages and all that they depend on whose names are `wanted`.
    pub fn with_dependencies(
        &self,
        packages: &[&str],
        wanted: fn(&str) -> bool,
    ) -> Result<BTreeSet<String>> {
        let mut waiting: Vec<String> = packages.iter().map(|&name| name.to_owned()).collect();
        let mut all = BTreeSet::new();
        while let Some(package) = waiting.pop() {
            let record = self.run("apt-cache", &["show", "--no-all-versions", &package])?;
            waiting.extend(dependencies(&record).filter(|name| wanted(name)).map(str::to_owned));
            all.insert(package);
            waiting.retain(|name| !all.contains(name));
        }
        Ok(all)
    }

    /// Downloads these packages, without what they depend on, and unpacks them below `root`.
    pub fn unpack(&self, packages: &[&str], root: &Path) -> Result<()> {
        self.run("apt-get", &[&["download"], packages].concat())?;
        for entry in fs::read_dir(self.downloads())? {
            run(Command::new("dpkg-deb").arg("-x").arg(entry?.path()).arg(root))?;
        }
        Ok(())
    }

    /// Runs apt-get or apt-cache with the own source and state; returns what it prints.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        capture(
            Command::new(program)
                .args(&self.options)
                .arg("-qq")
                .args(arguments)
                .current_dir(self.downloads()),
        )
    }
}

/// Names in a package's record of what it depends on, of alternatives the first.
pub fn dependencies(record: &str) -> impl Iterator<Item = &str> {
    let fields = record.lines().filter_map(|line| {
        line.strip_prefix("Depends: ").or_else(|| line.strip_prefix("Pre-Depends: "))
    });
    fields.flat_map(|field| field.split(',')).filter_map(|dependency| {
        let name = dependency.split_whitespace().next()?;
        name.split(':').next() // libc6:any
    })
}

/// The base URI of the archive that serves this machine's own release.
fn archive_base() -> Result<String> {
    let codename = codename()?;
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

/// Removes what is below `path`, if anything is there.
pub fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_the_names_of_both_fields() {
        let record = "Package: a\nPre-Depends: libc6 (>= 2.38)\nDepends: b:any, c (= 1) | d, e\n\
                      Recommends: f\n";
        assert_eq!(dependencies(record).collect::<Vec<_>>(), ["libc6", "b", "c", "e"]);
    }

    #[test]
    fn the_archive_is_the_one_of_the_running_release() {
        let uris = "'http://s.example/debian-security/dists/bookworm-security/InRelease' a 0 \n\
                    'http://m.example/debian/dists/bookworm-updates/InRelease' b 0 \n\
                    'http://m.example/debian/dists/bookworm/InRelease' c 0 \n\
                    'http://m.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' d 0 \n";
        assert_eq!(base_for(uris, "bookworm").unwrap(), "http://m.example/debian");
        assert_eq!(base_for(uris, "trixie"), None);
    }
}
