//! The client: direct I/O on a block device from one ring, which sleeps while nothing has ended.

use crate::bench::memory::Memory;
use crate::bench::pipeline::histogram;
use crate::bench::random::Random;
use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use uring::{Completion, Kind, Ring, RingOptions, Wait, entry};

/// Most requests in flight, and the most bytes of one.
pub const DEPTH_MAX: usize = 128;
pub const BYTES_MAX: u32 = 1 << 20;

/// What is kept in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// In rows and figures.
    pub name: &'static str,
    /// Writes, or reads.
    pub writes: bool,
    /// Bytes of each.
    pub bytes: u32,
    /// How many.
    pub depth: usize,
}

/// What one window showed of the client.
pub struct Window<T> {
    /// Requests that ended within it.
    pub requests: u64,
    /// Its length.
    pub seconds: f64,
    /// Nanoseconds from submission to completion.
    pub latency: Histogram<u32>,
    /// What was seen at its begin and at its end.
    pub seen: [T; 2],
}

/// A client of one device.
pub struct Client {
    // Before the memory, which the kernel may have.
    ring: Ring,
    file: File,
    memory: Memory,
    bytes: u64,
}

impl Client {
    /// Opens the device, of so many bytes.
    pub fn open(device: &Path, bytes: u64) -> anyhow::Result<Client> {
        let mut direct = OpenOptions::new();
        direct.read(true).write(true).custom_flags(libc::O_DIRECT);
        let file = direct.open(device).with_context(|| device.display().to_string())?;
        let options =
            RingOptions { entries: DEPTH_MAX as u32, kind: Kind::Small, ..RingOptions::default() };
        let mut ring = Ring::with_options(&options)?;
        let memory = Memory::new(DEPTH_MAX * BYTES_MAX as usize)?;
        ring.register_buffers(1)?;
        // SAFETY: the memory is dropped after the ring.
        unsafe { ring.update_buffer(0, memory.start(), memory.len()) }
            .context("registering buffers: raise RLIMIT_MEMLOCK")?;
        Ok(Client { ring, file, memory, bytes })
    }

    /// Keeps requests of that shape in flight, for `warm` and then, watched, for `measure`. All have ended
    /// when it returns.
    pub fn run<T>(
        &mut self,
        shape: Shape,
        seed: u64,
        warm: Duration,
        measure: Duration,
        mut look: impl FnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<Window<T>> {
        let mut random = Random::new(seed + 1);
        let mut latency = histogram();
        let start = Instant::now();
        let mut begun = vec![start; shape.depth];
        let mut done = Vec::with_capacity(DEPTH_MAX);
        for at in 0..shape.depth {
            self.push(shape, at, &mut random)?;
        }
        let (mut in_flight, mut requests) = (shape.depth, 0);
        let mut first: Option<(Instant, T)> = None;
        let mut last: Option<(Duration, T)> = None;
        while in_flight > 0 {
            self.ring.enter(Wait::Forever)?;
            self.ring.reap(&mut done);
            let now = Instant::now();
            match &first {
                None if now - start >= warm => first = Some((now, look()?)),
                Some((since, _)) if last.is_none() && now - *since >= measure => {
                    last = Some((now - *since, look()?));
                }
                _ => {}
            }
            for completion in done.drain(..) {
                check(shape, &completion)?;
                let at = completion.user_data as usize;
                if last.is_some() {
                    in_flight -= 1;
                    continue;
                }
                if first.is_some() {
                    requests += 1;
                    latency.saturating_record((now - begun[at]).as_nanos() as u64);
                }
                begun[at] = now;
                self.push(shape, at, &mut random)?;
            }
        }
        let ((_, before), (time, after)) = first.zip(last).context("it was watched")?;
        Ok(Window { requests, seconds: time.as_secs_f64(), latency, seen: [before, after] })
    }

    /// Queues a request at a random place, with the buffer `at`.
    fn push(&mut self, shape: Shape, at: usize, random: &mut Random) -> anyhow::Result<()> {
        assert!(at < DEPTH_MAX && shape.bytes <= BYTES_MAX);
        let offset = random.below(self.bytes / u64::from(shape.bytes)) * u64::from(shape.bytes);
        // SAFETY: within the mapping, which has `DEPTH_MAX` buffers.
        let buffer = unsafe { self.memory.start().add(at * BYTES_MAX as usize) };
        let file = uring::File::Fd(self.file.as_raw_fd());
        let entry = match shape.writes {
            true => entry::write_fixed(file, buffer, shape.bytes, offset, 0, 0),
            false => entry::read_fixed(file, buffer, shape.bytes, offset, 0),
        };
        // SAFETY: the buffer is of this client, whose requests all end before the memory goes, or the
        // process does.
        match unsafe { self.ring.push(&entry.user_data(at as u64)) } {
            Ok(()) => Ok(()),
            Err(_) => bail!("the ring has as many entries as requests"),
        }
    }
}

fn check(shape: Shape, completion: &Completion) -> anyhow::Result<()> {
    if completion.result == shape.bytes as i32 {
        return Ok(());
    }
    let result = completion.result;
    let what = if shape.writes { "write" } else { "read" };
    if result < 0 {
        let error = std::io::Error::from_raw_os_error(-result);
        bail!("a {what} of {} bytes failed: {error}", shape.bytes);
    }
    bail!("a {what} of {} bytes ended after {result}", shape.bytes);
}
