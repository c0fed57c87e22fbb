//! A clone of a large volume that is mostly holes, where blocks are shared: XFS on a loop device.

use super::stage::{self, Xfs};
use crate::bench::random::Random;
use crate::bench::report::{Report, Table, median};
use crate::bench::served::Scratch;
use crate::bench::{Options, heed};
use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::json;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Row, and in words.
const ROW: &str = "clone";
const ABOUT: &str = "nvlane copy --create --fast-only of 100 GiB, 4 GiB of it in 1,024 extents, on XFS on a loop device";
/// Figures.
const SECONDS: &str = "clone_100g_seconds";
const OVER_CP: &str = "clone_100g_over_cp";
const OVER_CP_DURABLE: &str = "clone_100g_over_cp_durable";
pub const FIGURES: [&str; 3] = [SECONDS, OVER_CP, OVER_CP_DURABLE];
/// Size of the volume.
const VOLUME_BYTES: u64 = 100 << 30;
/// How much of it is there: so many extents of that size, at that distance.
const EXTENTS: u64 = 1024;
const EXTENT_BYTES: usize = 4 << 20;
const STRIDE_BYTES: u64 = 99 << 20;
/// As many extents have to come of it.
const EXTENTS_MIN: usize = 1000;
/// The file system's size, and what it takes of the disk below: the data, its log and what it keeps of files.
const XFS_MIB: u64 = 10 << 10;
const ROOM_MIB: u64 = 5 << 10;
/// What a clone may take of the file system: its own list of extents.
const USED_MAX: i64 = 48 << 20;
/// Clones of each program, one after another.
const RUNS: usize = 5;
/// How long the file system may take until it has back what a removed clone had.
const REMOVED_MAX: Duration = Duration::from_secs(2);
/// Extents of a clone that are read, and how much at either end.
const LOOKS: usize = 16;
const LOOK_BYTES: usize = 4 << 10;

/// One clone.
#[derive(Debug, Serialize)]
struct Clone {
    /// Until the program had ended.
    seconds: f64,
    /// Until the clone was durable as well: `nvlane copy` says that it is done when it is.
    durable_seconds: f64,
    /// What the file system has less of since.
    used_bytes: i64,
}

/// Clones by `nvlane copy` and by `cp`, in turn.
pub fn measure(options: &Options, scratch: &Scratch, report: &mut Report) -> anyhow::Result<()> {
    // It writes 4 GiB first: in a full run, or when it is named.
    let is_named = !options.only.is_empty();
    if !options.wants(ROW) || (options.quick && !is_named) {
        return Ok(());
    }
    options.begin(format_args!("{ROW}: {ABOUT}"))?;
    let free_mib = stage::free_bytes(scratch.path())? >> 20;
    let is_room = free_mib >= ROOM_MIB;
    let xfs = is_room.then(|| {
        let parent = scratch.path().join(ROW);
        std::fs::create_dir(&parent)?;
        Xfs::new(&parent, XFS_MIB)
    });
    let xfs = match xfs {
        Some(Ok(xfs)) => xfs,
        missing => {
            let why = match missing {
                Some(Err(error)) => format!("no XFS: {error:#}"),
                _ => format!("--dir has {free_mib} MiB free, and {ROOM_MIB} are needed"),
            };
            for figure in FIGURES {
                report.figure_or_null(figure, f64::NAN, &why);
            }
            return Ok(());
        }
    };
    let source = xfs.directory().join("source.img");
    // Where only the form of the report matters the extents are smaller.
    let extent_bytes = if options.tiny { 64 << 10 } else { EXTENT_BYTES };
    write_source(&source, extent_bytes)?;
    stage::sync(xfs.directory())?;
    let free = stage::free_bytes(xfs.directory())?;
    let bench = Bench { directory: xfs.directory(), source: &source, extent_bytes, free };
    let (mut ours, mut cp) = (Vec::new(), Vec::new());
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    for run in 0..RUNS {
        heed()?;
        ours.push(bench.clone(run, &program, &["copy", "--create", "--fast-only"])?);
        cp.push(bench.clone(run, "cp", &["--reflink=always"])?);
    }
    bench.report(&ours, &cp, report)
}

struct Bench<'a> {
    directory: &'a Path,
    source: &'a Path,
    extent_bytes: usize,
    /// Bytes that the file system has left without a clone.
    free: u64,
}

impl Bench<'_> {
    /// Makes one, looks at it and removes it.
    fn clone(&self, run: usize, program: &str, arguments: &[&str]) -> anyhow::Result<Clone> {
        let path = self.directory.join("clone.img");
        let (from, to) = (self.source.to_string_lossy(), path.to_string_lossy());
        let arguments = [arguments, &[&from, &to]].concat();
        let start = Instant::now();
        stage::run(program, &arguments)?;
        let seconds = start.elapsed().as_secs_f64();
        File::open(&path)?.sync_all()?;
        let durable_seconds = start.elapsed().as_secs_f64();
        let used_bytes = self.free as i64 - stage::free_bytes(self.directory)? as i64;
        ensure!(used_bytes < USED_MAX, "a clone by {program} took {used_bytes} bytes");
        self.check(run, &path).with_context(|| format!("a clone by {program}"))?;
        std::fs::remove_file(&path)?;
        // What it had is given back some time later.
        stage::sync(self.directory)?;
        let removed = Instant::now();
        while stage::free_bytes(self.directory)? < self.free && removed.elapsed() < REMOVED_MAX {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Clone { seconds, durable_seconds, used_bytes })
    }

    /// Whether it is a clone: the same blocks of the disk, and some of them read.
    fn check(&self, run: usize, path: &Path) -> anyhow::Result<()> {
        let (source, clone) = (File::open(self.source)?, File::open(path)?);
        ensure!(clone.metadata()?.len() == VOLUME_BYTES, "it has not the source's size");
        let [wanted, found] = [extents(&source)?, extents(&clone)?];
        ensure!(wanted.len() >= EXTENTS_MIN, "the source has only {} extents", wanted.len());
        ensure!(wanted == found, "it does not share all extents");
        let mut random = Random::new(run as u64 + 1);
        let (mut expected, mut read) = (vec![0; self.extent_bytes], vec![0; LOOK_BYTES]);
        let mut hole = vec![1; LOOK_BYTES];
        for look in 0..LOOKS {
            let number = match look {
                0 => 0,
                1 => EXTENTS - 1,
                _ => random.below(EXTENTS),
            };
            fill(number, &mut expected);
            let start = number * STRIDE_BYTES;
            for at in [0, self.extent_bytes - LOOK_BYTES] {
                clone.read_exact_at(&mut read, start + at as u64)?;
                ensure!(
                    read == expected[at..][..LOOK_BYTES],
                    "extent {number} is not the source's"
                );
            }
            clone.read_exact_at(&mut hole, start + self.extent_bytes as u64)?;
            ensure!(hole.iter().all(|&byte| byte == 0), "behind extent {number} is no hole");
        }
        Ok(())
    }

    fn report(&self, ours: &[Clone], cp: &[Clone], report: &mut Report) -> anyhow::Result<()> {
        let seconds = |clones: &[Clone]| median(clones.iter().map(|clone| clone.seconds));
        let durable = |clones: &[Clone]| median(clones.iter().map(|clone| clone.durable_seconds));
        let used = |clones: &[Clone]| median(clones.iter().map(|clone| clone.used_bytes as f64));
        let cells = |name: &str, clones: &[Clone]| {
            vec![
                name.to_owned(),
                format!("{:.3}", seconds(clones)),
                format!("{:.3}", durable(clones)),
                format!("{:.0}", used(clones) / f64::from(1 << 10)),
            ]
        };
        report.tables.push(Table {
            title: format!("a clone of 100 GiB in {EXTENTS} extents (medians of {RUNS})"),
            columns: vec!["row", "s", "s until durable", "KiB used"],
            rows: vec![cells(ROW, ours), cells("cp --reflink=always", cp)],
        });
        report.figure(SECONDS, seconds(ours));
        let pairs = || ours.iter().zip(cp);
        report.figure(OVER_CP, median(pairs().map(|(ours, cp)| ours.seconds / cp.seconds)));
        report.figure(
            OVER_CP_DURABLE,
            median(pairs().map(|(ours, cp)| ours.durable_seconds / cp.durable_seconds)),
        );
        report.rows.push(json!({
            "row": ROW, "about": ABOUT, "beside": "cp --reflink=always of the same file",
            "extents": extents(&File::open(self.source)?)?.len(),
            "data_bytes": EXTENTS * self.extent_bytes as u64,
            "clones": ours, "cp": cp,
        }));
        Ok(())
    }
}

fn write_source(path: &Path, extent_bytes: usize) -> anyhow::Result<()> {
    let file = File::create_new(path)?;
    file.set_len(VOLUME_BYTES)?;
    let mut extent = vec![0; extent_bytes];
    for number in 0..EXTENTS {
        fill(number, &mut extent);
        file.write_all_at(&extent, number * STRIDE_BYTES).context("the volume to be cloned")?;
    }
    Ok(file.sync_all()?)
}

/// What extent `number` has: no block is like another.
fn fill(number: u64, extent: &mut [u8]) {
    for (index, word) in extent.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = ((number << 32 | index as u64) + 1).to_le_bytes();
    }
}

/// Extents of a file: where in it, where on the disk, and how long.
fn extents(file: &File) -> anyhow::Result<Vec<[u64; 3]>> {
    /// `FS_IOC_FIEMAP`, and its structures in words: a header, and an extent each.
    const FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;
    const HEADER: usize = 4;
    const EXTENT: usize = 7;
    const ROOM: usize = 4 * EXTENTS as usize;
    /// `FIEMAP_FLAG_SYNC`.
    const SYNC: u64 = 1;
    let mut words = vec![0_u64; HEADER + ROOM * EXTENT];
    words[..HEADER].copy_from_slice(&[0, u64::MAX, SYNC, ROOM as u64]);
    // SAFETY: an open descriptor, and a header of this frame with room for as many extents as it says.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP, words.as_mut_ptr()) };
    ensure!(result == 0, "FIEMAP: {}", std::io::Error::last_os_error());
    let count = (words[2] >> 32) as usize;
    ensure!(count < ROOM, "a file has {count} extents or more");
    let extents = words[HEADER..].chunks_exact(EXTENT).take(count);
    Ok(extents.map(|extent| [extent[0], extent[1], extent[2]]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_a_file_are_told() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        for at in [8_u64 << 20, 32 << 20] {
            file.write_all_at(&[1; 64 << 10], at).unwrap();
        }
        let extents = match extents(&file) {
            Ok(extents) => extents,
            Err(error) => return crate::stderr::line(format_args!("{error}: not run")),
        };
        let is_there =
            |at: u64| extents.iter().any(|[first, _, len]| (*first..first + len).contains(&at));
        assert!(is_there(8 << 20) && is_there((32 << 20) + 65_535), "{extents:?}");
        assert!(!is_there(0) && !is_there(16 << 20), "{extents:?}");
    }

    #[test]
    fn the_volume_has_room_for_its_extents() {
        assert!((EXTENTS - 1) * STRIDE_BYTES + (EXTENT_BYTES + LOOK_BYTES) as u64 <= VOLUME_BYTES);
        assert_eq!(EXTENTS * EXTENT_BYTES as u64, 4 << 30);
    }
}
