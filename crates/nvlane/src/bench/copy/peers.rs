//! Whole volumes copied by programs: ours, and those that people use today.

use super::stage::{self, Target, Xfs};
use crate::bench::net::Net;
use crate::bench::report::{Report, Table, median};
use crate::bench::served::{self, Scratch, Served};
use crate::bench::{Options, heed};
use anyhow::{Context, ensure};
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Where the NBD servers of the peers listen, at the far end of the link.
const PORTS: [u16; 2] = [10809, 10810];
/// What XFS wants to have at least, in MiB, with its log.
const XFS_MIB: u64 = 400;
/// Rows that there are where each program is, and XFS.
const ROWS: [&str; 7] = [
    "volume_nvlane",
    "volume_nbdcopy",
    "volume_qemu_img",
    "file_cp",
    "file_nvlane",
    "xfs_cp",
    "xfs_nvlane",
];
/// Whole copies of each program.
const RUNS: usize = 3;

/// One program that copies a volume.
struct Peer {
    name: &'static str,
    about: &'static str,
    command: Vec<String>,
}

/// Copies volumes of `mib` MiB over a link of 1 Gbit/s, and files on the disk.
pub fn measure(
    mib: u64,
    brief: bool,
    options: &Options,
    scratch: &Scratch,
    report: &mut Report,
) -> anyhow::Result<()> {
    // Both are asked for, so that no word is taken for unknown.
    let is_wanted = |row: &str| options.wants("volume") | options.wants(row);
    // Each is asked for: which words are known is told in the end.
    if brief || ROWS.iter().filter(|row| is_wanted(row)).count() == 0 {
        return Ok(());
    }
    heed()?;
    let mib = mib / 4;
    let net = Net::new(&[1000])?;
    let mut peers = vec![];
    let target = Target::start(&net, mib, None, &[], options.server_core)?;
    peers.push(ours("volume_nvlane", "nvlane copy, NVMe/TCP", &target.uris[0], &target.uris[1])?);
    // They are kept until all is measured.
    let servers = nbd_servers(&net, mib, options.server_core, scratch).and_then(|servers| {
        let uris = [0, 1].map(|at: usize| format!("nbd://{}", servers[at].address));
        fill(&uris[0], mib, scratch).context("nothing fills its memory")?;
        Ok((servers, uris))
    });
    match &servers {
        Ok((_, uris)) => peers.extend(nbd_peers(uris, report)),
        Err(error) => {
            report.machine.peers.insert("nbdkit".into(), format!("missing: {error:#}"));
        }
    }
    peers.extend(file_peers(mib, scratch.path(), &ON_DISK)?);
    let parent = scratch.path().join("volumes");
    std::fs::create_dir(&parent)?;
    let xfs = Xfs::new(&parent, XFS_MIB + 3 * mib);
    match &xfs {
        Ok(xfs) => peers.extend(file_peers(mib, xfs.directory(), &ON_XFS)?),
        Err(error) => {
            report.machine.notes.push(format!("no rows of whole files on XFS: {error:#}"));
        }
    }
    peers.retain(|peer| is_wanted(peer.name));
    let mut table = Table {
        title: format!("whole volumes of {mib} MiB (MiB/s; medians of {RUNS})"),
        columns: vec!["row", "MiB/s", "with"],
        rows: Vec::new(),
    };
    let mut rates: Vec<anyhow::Result<Vec<f64>>> = peers.iter().map(|_| Ok(Vec::new())).collect();
    for _ in 0..RUNS {
        for (peer, rates) in peers.iter().zip(&mut rates) {
            heed()?;
            let Ok(known) = rates else { continue };
            match peer.seconds() {
                Ok(seconds) => known.push(mib as f64 / seconds),
                Err(error) => *rates = Err(error),
            }
        }
    }
    for (peer, rates) in peers.iter().zip(rates) {
        let rates = match rates {
            Ok(rates) => rates,
            Err(error) => {
                report.machine.notes.push(format!("no row {}: {error:#}", peer.name));
                continue;
            }
        };
        let rate = median(rates.iter().copied());
        table.rows.push(vec![peer.name.into(), format!("{rate:.0}"), peer.about.into()]);
        report.figure(format!("{}_mib_s", peer.name), rate);
        report.rows.push(json!({ "row": peer.name, "about": peer.about, "mib_s": rates }));
    }
    report.tables.push(table);
    Ok(())
}

impl Peer {
    /// How long one whole copy takes.
    fn seconds(&self) -> anyhow::Result<f64> {
        let (program, arguments) = self.command.split_first().context("a program")?;
        let start = Instant::now();
        let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("{program} cannot be run"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", self.command.join(" "), said.trim());
        Ok(start.elapsed().as_secs_f64())
    }
}

/// `nvlane copy` of one volume to another.
fn ours(name: &'static str, about: &'static str, from: &str, to: &str) -> anyhow::Result<Peer> {
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    Ok(Peer { name, about, command: words(&[&program, "copy", from, to]) })
}

fn nbd_peers(uris: &[String; 2], report: &mut Report) -> Vec<Peer> {
    let convert = ["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", &uris[0], &uris[1]];
    let all = [
        (
            "volume_nbdcopy",
            "nbdcopy, NBD over the same link",
            words(&["nbdcopy", &uris[0], &uris[1]]),
        ),
        ("volume_qemu_img", "qemu-img convert, the same", words(&convert)),
    ];
    let mut peers = Vec::new();
    for (name, about, command) in all {
        match served::version(&command[0]) {
            Ok(version) => {
                report.machine.peers.insert(command[0].clone(), version);
                peers.push(Peer { name, about, command });
            }
            Err(why) => {
                report.machine.peers.insert(command[0].clone(), why);
            }
        }
    }
    peers
}

/// Two servers with memory, at the far end of the link.
fn nbd_servers(net: &Net, mib: u64, core: usize, scratch: &Scratch) -> anyhow::Result<[Served; 2]> {
    let start = |port: u16| {
        let address: SocketAddr = net.address(0, port);
        let (host, port) = (address.ip().to_string(), port.to_string());
        let mut command = Command::new("ip");
        command.args(["netns", "exec", net.name(), "nbdkit", "-f", "-i", &host, "-p", &port]);
        command.args(["memory", &format!("{mib}M")]);
        Served::start(&mut command, address, core, scratch)
    };
    Ok([start(PORTS[0])?, start(PORTS[1])?])
}

/// Fills an export, so that nothing of it is a hole.
fn fill(uri: &str, mib: u64, scratch: &Scratch) -> anyhow::Result<()> {
    let path = scratch.path().join("content.img");
    content(&path, mib)?;
    stage::run("nbdcopy", &[&path.to_string_lossy(), uri])?;
    std::fs::remove_file(&path)?;
    Ok(())
}

/// Copies from file to file: rows of `cp` and of ours, and what each is about.
struct FilePeers {
    reflink: &'static str,
    cp: [&'static str; 2],
    ours: [&'static str; 2],
}

const ON_DISK: FilePeers = FilePeers {
    reflink: "--reflink=auto",
    cp: ["file_cp", "cp --reflink=auto on the disk"],
    ours: ["file_nvlane", "nvlane copy on the disk, flushed"],
};

/// Where blocks can be shared.
const ON_XFS: FilePeers = FilePeers {
    reflink: "--reflink=always",
    cp: ["xfs_cp", "cp --reflink=always on XFS on a loop device"],
    ours: ["xfs_nvlane", "nvlane copy on the same, flushed"],
};

/// `cp` and ours from file to file in a directory.
fn file_peers(mib: u64, directory: &Path, which: &FilePeers) -> anyhow::Result<Vec<Peer>> {
    let [from, to, ours_to] = ["from.img", "cp.img", "ours.img"].map(|name| directory.join(name));
    content(&from, mib)?;
    std::fs::File::create(&ours_to)?.set_len(mib << 20)?;
    let [from, to, ours_to] = [from, to, ours_to].map(|path| path.to_string_lossy().into_owned());
    let [name, about] = which.cp;
    let [our_name, our_about] = which.ours;
    Ok(vec![
        Peer { name, about, command: words(&["cp", which.reflink, &from, &to]) },
        ours(our_name, our_about, &from, &ours_to)?,
    ])
}

/// A file of `mib` MiB in which no block is like another.
fn content(path: &Path, mib: u64) -> anyhow::Result<()> {
    use std::io::Write;
    let mut file = std::fs::File::create(path)?;
    let mut piece = vec![0u8; 1 << 20];
    for at in 0..mib {
        for (index, word) in piece.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = ((at << 32 | index as u64) + 1).to_le_bytes();
        }
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
