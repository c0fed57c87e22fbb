//! The target at the far end of the link, with volumes of every kind.

use super::load::Host;
use crate::bench::net::Net;
use crate::bench::served::subsystem;
use anyhow::{Context, ensure};
use namespace::Namespace;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use target::{NamespaceOptions, Server, ServerConfig};

const NQN: &str = "nqn.2026-11.io.nvlane:bench-copy";
const PORT: u16 = 4420;

/// The kind whose bound is the disk's: see [`super::bound::disk`].
pub const EMULATED_ON_DISK: &str = "emulated_disk";

/// What is copied, and where to.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// In figures.
    pub name: &'static str,
    /// In words.
    pub about: &'static str,
    /// Which volumes, by number: source and destination.
    pub volumes: (usize, usize),
    /// Below the directory of the bench, or on a file system of its own.
    pub on: On,
}

/// What volumes are kept on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Memory of the target.
    Memory,
    /// The file system of `--dir`.
    Disk,
    /// XFS on a loop device, which shares blocks.
    Xfs,
}

/// All of them. A target with memory has two volumes, and a third behind a layer that cannot be looked through; one with
/// files has one, and a second behind such a layer.
pub const KINDS: [Kind; 6] = [
    Kind { name: "memory", about: "within a volume in memory", volumes: (0, 0), on: On::Memory },
    Kind { name: "namespaces", about: "between two of them", volumes: (1, 0), on: On::Memory },
    Kind {
        name: "emulated",
        about: "read and written at the target",
        volumes: (2, 0),
        on: On::Memory,
    },
    Kind { name: "file", about: "within a file", volumes: (0, 0), on: On::Disk },
    Kind {
        name: EMULATED_ON_DISK,
        about: "read from one file and written to another at the target, past the page cache",
        volumes: (1, 0),
        on: On::Disk,
    },
    Kind { name: "xfs", about: "within a file, sharing blocks", volumes: (0, 0), on: On::Xfs },
];

/// The target, and how to reach it.
pub struct Target {
    server: Option<Server>,
    /// Of its volumes.
    pub uris: Vec<String>,
}

impl Target {
    /// Serves volumes of `mib` MiB on `core`, in memory or in files of `directory`: those that `kinds` name, all of them if there are no kinds.
    pub fn start(
        net: &Net,
        mib: u64,
        directory: Option<&Path>,
        kinds: &[Kind],
        core: usize,
    ) -> anyhow::Result<Target> {
        let mut volumes = match directory {
            None => {
                vec![format!("mem:{mib}M"), format!("mem:{mib}M"), format!("delay:0s(mem:{mib}M)")]
            }
            Some(directory) => {
                let of = |path: PathBuf| format!("file:{}?create&size={mib}M", path.display());
                vec![of(file(directory)), format!("delay:0s({})", of(second_file(directory)))]
            }
        };
        let last = kinds.iter().map(|kind| kind.volumes.0.max(kind.volumes.1)).max();
        volumes.truncate(last.map_or(usize::MAX, |last| last + 1));
        Target::serve(net, &volumes, core)
    }

    /// Serves `volumes`, each filled before.
    pub fn serve(net: &Net, volumes: &[String], core: usize) -> anyhow::Result<Target> {
        let config = ServerConfig { cores: vec![Some(core)], ..ServerConfig::default() };
        let server = Server::start(&config)?;
        server.add_subsystem(subsystem(NQN))?;
        let mut uris = Vec::new();
        let address = net.address(0, PORT);
        for (index, uri) in volumes.iter().enumerate() {
            let volume = volume::open(uri, &volume::OpenOptions::default())?;
            fill(&volume).with_context(|| format!("{uri} cannot be filled"))?;
            let nsid = index as u32 + 1;
            let options = NamespaceOptions {
                nsid: Some(nsid),
                uuid: [0x50 + index as u8; 16],
                nguid: [0; 16],
                ana_group: 1,
            };
            server.add_namespace(NQN, &options, volume)?;
            uris.push(format!("tcp://{address}/{NQN}?ns={nsid}"));
        }
        net.within(|| Ok(server.add_listener(address)?))?;
        Ok(Target { server: Some(server), uris })
    }

    /// Bytes that Copies have written to volume `number` since the start.
    pub fn copied_bytes(&self, number: usize) -> anyhow::Result<u64> {
        let server = self.server.as_ref().expect("it runs until it is dropped");
        let stats = server.stats()?;
        let one = stats.namespaces.iter().find(|one| one.nsid == number as u32 + 1);
        Ok(one.context("it is served")?.counted.copied_bytes)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.server.take());
    }
}

/// The file that a target in `directory` serves.
pub fn file(directory: &Path) -> PathBuf {
    directory.join("volume.img")
}

/// The one that it reads from where it is to read and write.
pub fn second_file(directory: &Path) -> PathBuf {
    directory.join("second.img")
}

/// Off this thread: the session that fills it has a reactor of its own.
fn fill(volume: &Arc<dyn Namespace>) -> anyhow::Result<()> {
    let volume = Arc::clone(volume);
    let thread = std::thread::spawn(move || Host::fill(&volume));
    thread.join().expect("it does not panic")
}

/// XFS on a loop device; taken down when dropped.
pub struct Xfs {
    directory: PathBuf,
}

impl Xfs {
    /// Makes one of `mib` MiB in a file below `parent`.
    pub fn new(parent: &Path, mib: u64) -> anyhow::Result<Xfs> {
        let image = parent.join("xfs.img");
        File::create(&image)?.set_len(mib << 20)?;
        run("mkfs.xfs", &["-q", "-f", "-m", "reflink=1", &image.to_string_lossy()])?;
        let directory = parent.join("xfs");
        std::fs::create_dir_all(&directory)?;
        run("mount", &["-o", "loop", &image.to_string_lossy(), &directory.to_string_lossy()])?;
        Ok(Xfs { directory })
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        let _ = run("umount", &[&self.directory.to_string_lossy()]);
    }
}

/// Bytes that a file system has left.
pub fn free_bytes(directory: &Path) -> anyhow::Result<u64> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: statvfs is plain numbers, for which zero is a value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a string that ends with a zero, and a structure of this frame.
    let result = unsafe { libc::statvfs(path.as_ptr(), &raw mut found) };
    ensure!(result == 0, "{}: {}", directory.display(), std::io::Error::last_os_error());
    Ok(found.f_bavail * found.f_frsize)
}

/// Writes back what a file system still has to write.
pub fn sync(directory: &Path) -> anyhow::Result<()> {
    let directory = File::open(directory)?;
    // SAFETY: an open descriptor.
    let result = unsafe { libc::syncfs(directory.as_raw_fd()) };
    ensure!(result == 0, "syncfs: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Runs a program to its end.
pub fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("{program} cannot be run"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), said.trim());
    Ok(())
}
