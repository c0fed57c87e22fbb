//! What the same copies cost without a network: the bounds.

use super::load::{Shape, Timing};
use crate::bench::cores;
use crate::bench::exchange::Region;
use crate::bench::random::Random;
use anyhow::{Context, ensure};
use namespace::memory::stream;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes read and written at once where memory is copied by way of a buffer.
const PIECE_BYTES: usize = 128 << 10;
/// Threads that read from and write to a disk, and bytes that each takes at once: the best of them is its bound.
const DISK_WAYS: [(usize, usize); 3] = [(16, 128 << 10), (8, 512 << 10), (8, 1 << 20)];
/// What O_DIRECT wants buffers to begin at.
const PAGE_BYTES: usize = 4 << 10;
/// A line of the caches.
const LINE_BYTES: usize = 64;

/// Of places, where one thread copies.
const SEED: u64 = 5;

/// Runs `work` on `core` again and again; MiB/s of the bytes that it says it has copied.
fn rate(
    core: usize,
    seed: u64,
    timing: Timing,
    mut work: impl FnMut(&mut Random) -> anyhow::Result<u64> + Send,
) -> anyhow::Result<f64> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            cores::pin(core)?;
            let mut random = Random::new(seed);
            let start = Instant::now();
            while start.elapsed() < timing.warm {
                work(&mut random)?;
            }
            let (start, mut bytes) = (Instant::now(), 0);
            while start.elapsed() < timing.measure {
                bytes += work(&mut random)?;
            }
            Ok(bytes as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64())
        });
        thread.join().expect("it does not panic")
    })
}

/// `copy_file_range(2)` within the file, the ranges that a Copy would name.
pub fn local_file(path: &Path, shape: Shape, timing: Timing, core: usize) -> anyhow::Result<f64> {
    let file = File::options().read(true).write(true).open(path).context("the volume's file")?;
    let half = file.metadata()?.len() / 2;
    let bytes = u64::from(shape.bytes);
    let places = half / bytes;
    let together = bytes * shape.ranges as u64;
    rate(core, SEED, timing, |random| {
        let to = half + random.below(half / together) * together;
        for range in 0..shape.ranges as u64 {
            let (mut from, mut to) =
                ((random.below(places) * bytes) as i64, (to + range * bytes) as i64);
            let mut left = bytes as usize;
            while left > 0 {
                // SAFETY: open descriptors and two offsets of this frame.
                let count = unsafe {
                    libc::copy_file_range(
                        file.as_raw_fd(),
                        &raw mut from,
                        file.as_raw_fd(),
                        &raw mut to,
                        left,
                        0,
                    )
                };
                ensure!(count > 0, "copy_file_range: {}", std::io::Error::last_os_error());
                left -= count as usize;
            }
        }
        Ok(together)
    })
}

/// Read from one file and written to another past the page cache, by several threads: what reading and writing volumes in
/// files must do. By the best of several ways.
pub fn disk(
    (from, to): &(PathBuf, PathBuf),
    shape: Shape,
    timing: Timing,
    core: usize,
) -> anyhow::Result<f64> {
    let open = |path: &Path| {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        options.open(path).with_context(|| format!("{} past the page cache", path.display()))
    };
    let (from, to) = (&open(from)?, &open(to)?);
    let bytes = u64::from(shape.bytes);
    let half = from.metadata()?.len() / 2;
    let one = |piece: usize, seed: u64| {
        let mut buffer = vec![0_u8; piece + PAGE_BYTES];
        let first = buffer.as_ptr().align_offset(PAGE_BYTES);
        rate(core, seed, timing, move |random| {
            let buffer = &mut buffer[first..][..piece];
            let place = |random: &mut Random| random.below(half / bytes) * bytes;
            let (source, target) = (place(random), half + place(random));
            for at in (0..bytes).step_by(piece) {
                from.read_exact_at(buffer, source + at)?;
                to.write_all_at(buffer, target + at)?;
            }
            Ok(bytes)
        })
    };
    let mut best = 0.0_f64;
    for (threads, piece) in DISK_WAYS {
        let piece = piece.min(shape.bytes as usize);
        let total = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..threads as u64).map(|seed| scope.spawn(move || one(piece, seed))).collect();
            let rates = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
            rates.sum::<anyhow::Result<f64>>()
        })?;
        best = best.max(total);
    }
    Ok(best)
}

/// Memory to a buffer and from there to memory: what reading and writing a volume in memory must do. By the better of
/// both ways: volumes write past the caches from some size on.
pub fn memory(mib: u64, shape: Shape, timing: Timing, core: usize) -> anyhow::Result<f64> {
    let through = memory_by(<[u8]>::copy_from_slice, mib, shape, timing, core)?;
    let past = memory_by(write_past, mib, shape, timing, core)?;
    Ok(through.max(past))
}

/// Writes to memory past the caches.
fn write_past(target: &mut [u8], piece: &[u8]) {
    let is_of_lines = |number: usize| number.is_multiple_of(LINE_BYTES);
    assert!(is_of_lines(target.as_ptr() as usize) && is_of_lines(target.len()));
    assert_eq!(target.len(), piece.len());
    // SAFETY: two slices of one length, which is of whole lines, the one written from the start of a line on.
    unsafe { stream::copy(target.as_mut_ptr(), piece.as_ptr(), piece.len()) }
}

fn memory_by(
    write: fn(&mut [u8], &[u8]),
    mib: u64,
    shape: Shape,
    timing: Timing,
    core: usize,
) -> anyhow::Result<f64> {
    let len = (mib << 20) as usize;
    // Of the pages that volumes in memory have.
    let [from, mut to] = [Region::new(len)?, Region::new(len)?];
    let mut buffer = vec![0u8; PIECE_BYTES];
    let bytes = shape.bytes as usize;
    let together = bytes * shape.ranges;
    rate(core, SEED, timing, |random| {
        let base = random.below((len / together) as u64) as usize * together;
        for range in 0..shape.ranges {
            let source = random.below((len / bytes) as u64) as usize * bytes;
            let target = base + range * bytes;
            for at in (0..bytes).step_by(PIECE_BYTES) {
                let count = PIECE_BYTES.min(bytes - at);
                let piece = &mut buffer[..count];
                piece.copy_from_slice(from.slice(source + at, count));
                write(to.slice_mut(target + at, count), std::hint::black_box(piece));
            }
        }
        Ok(together as u64)
    })
}
