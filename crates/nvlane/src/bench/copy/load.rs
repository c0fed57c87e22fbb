//! The loads: Copy commands, or reads and writes of the same blocks, as many in flight as a link needs.

use crate::bench::net::Net;
use crate::bench::random::Random;
use anyhow::{Context, ensure};
use namespace::Namespace;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use volume::session::{Bytes, Done, Ranges, Session, SessionConfig, Submission, Volume};

/// Bytes of a read or write: what every target takes in one command.
const TRANSFER_BYTES: u32 = 1 << 20;

/// What is copied at once.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// In figures.
    pub name: &'static str,
    /// Bytes of one source range.
    pub bytes: u32,
    /// Source ranges of one command.
    pub ranges: usize,
    /// Copy commands in flight.
    pub depth: usize,
    /// Reads or writes in flight, where that is done instead.
    pub transfers: usize,
}

/// The proposal's sizes. In flight: what fills a link of 1 Gbit/s and keeps a core busy.
pub const SHAPES: [Shape; 3] = [
    Shape { name: "8k", bytes: 8 << 10, ranges: 1, depth: 64, transfers: 64 },
    Shape { name: "64k", bytes: 64 << 10, ranges: 1, depth: 16, transfers: 32 },
    Shape { name: "2m16", bytes: 2 << 20, ranges: 16, depth: 2, transfers: 8 },
];

/// How long Copies that are held to a rate wait for their turn, and how many begin together then: each packet has
/// headers of its own.
const HELD_WAIT: Duration = Duration::from_micros(50);
const HELD_TOGETHER: usize = 16;

/// How long a window is.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Before it.
    pub warm: Duration,
    /// It.
    pub measure: Duration,
}

/// What a window saw.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Window {
    /// Copied, in MiB/s.
    pub mib_s: f64,
    /// On the wire in the busier direction, in Mbit/s.
    pub wire_mbit_s: f64,
}

/// A host on this thread, with its volumes.
pub struct Host {
    session: Session,
    /// As they were opened.
    pub volumes: Vec<Volume>,
    random: Random,
}

/// One copy by reads and writes: what is at its slot.
struct Lane {
    buffer: Option<Bytes>,
    to: u64,
    writes: bool,
}

impl Host {
    /// Opens `uris`.
    pub fn new(uris: &[String]) -> anyhow::Result<Host> {
        let session = Session::new(&SessionConfig::default())?;
        let volumes = uris.iter().map(|uri| Ok(session.open(uri)?));
        let volumes = volumes.collect::<anyhow::Result<_>>()?;
        Ok(Host { session, volumes, random: Random::new(11) })
    }

    /// Fills `volume` from here, so that nothing of it is a hole.
    pub fn fill(volume: &Arc<dyn Namespace>) -> anyhow::Result<()> {
        let session = Session::new(&SessionConfig::default())?;
        let here = session.adopt(Arc::clone(volume), true)?;
        let limits = here.limits();
        let per = u64::from(TRANSFER_BYTES >> limits.block_shift);
        let mut done = Vec::new();
        for at in 0..limits.blocks / per {
            let mut buffer = session.allocate(TRANSFER_BYTES as usize).context("no buffer")?;
            for (index, word) in buffer.as_mut_slice().as_chunks_mut::<8>().0.iter_mut().enumerate()
            {
                *word = (at << 32 | index as u64).to_le_bytes();
            }
            let write = Submission::write(at * per, per as u32, Bytes::Fixed(buffer));
            here.submit(write).map_err(|rejected| anyhow::anyhow!("{}", rejected.reason))?;
            session.wait(1, None);
            session.reap(&mut done);
            for Done { status, .. } in done.drain(..) {
                ensure!(status.is_success(), "a write ended with {status}");
            }
        }
        here.submit(Submission::flush()).map_err(|it| anyhow::anyhow!("{}", it.reason))?;
        session.wait(1, None);
        Ok(())
    }

    /// Copies from volume `from` to volume `to` with Copy commands, of which no more begin than make `mib_s`.
    pub fn copy(
        &mut self,
        (from, to): (usize, usize),
        shape: Shape,
        timing: Timing,
        net: &Net,
        mib_s: f64,
    ) -> anyhow::Result<Window> {
        let bytes = u64::from(shape.bytes) * shape.ranges as u64;
        let mut clock = Clock::new(timing, net)?;
        let per_second = mib_s * f64::from(1 << 20) / bytes as f64;
        let together = if mib_s.is_finite() { HELD_TOGETHER.min(shape.depth) } else { 1 };
        // Those that may be in flight and are not.
        let (mut idle, mut begun) = (shape.depth, 0_u64);
        let mut done = Vec::with_capacity(shape.depth);
        loop {
            let is_over = clock.is_over()?;
            if is_over && idle == shape.depth {
                return clock.window();
            }
            while !is_over && idle >= together && (begun as f64) < per_second * clock.elapsed() {
                for _ in 0..together {
                    self.submit_copy(from, to, shape)?;
                }
                (idle, begun) = (idle - together, begun + together as u64);
            }
            let until_next = (!is_over && idle >= together).then_some(HELD_WAIT);
            self.session.wait(1, until_next);
            self.session.reap(&mut done);
            for Done { status, result, .. } in done.drain(..) {
                ensure!(status.is_success(), "a Copy ended with {status} at range {result}");
                clock.copied(bytes);
                idle += 1;
            }
        }
    }

    fn submit_copy(&mut self, from: usize, to: usize, shape: Shape) -> anyhow::Result<()> {
        let sources: Vec<(u64, u32)> =
            (0..shape.ranges).map(|_| self.source(from, shape.bytes)).collect();
        let sdlba = self.destination(to, shape.bytes * shape.ranges as u32);
        let mut ranges = Ranges::new();
        for (slba, blocks) in sources {
            match from == to {
                true => ranges.push(slba, blocks),
                false => ranges.push_from(&self.volumes[from], slba, blocks),
            }
        }
        self.submit(to, Submission::copy(sdlba, ranges))
    }

    /// The same by reading over the link and writing over it.
    pub fn read_and_write(
        &mut self,
        (from, to): (usize, usize),
        shape: Shape,
        timing: Timing,
        net: &Net,
    ) -> anyhow::Result<Window> {
        let mut clock = Clock::new(timing, net)?;
        let bytes = shape.bytes.min(TRANSFER_BYTES);
        let mut lanes = Vec::with_capacity(shape.transfers);
        for at in 0..shape.transfers {
            let buffer = self.session.allocate(bytes as usize).context("no buffer")?;
            lanes.push(Lane { buffer: Some(Bytes::Fixed(buffer)), to: 0, writes: false });
            self.read(from, to, &mut lanes[at], at, bytes)?;
        }
        let (mut in_flight, mut done) = (shape.transfers, Vec::with_capacity(shape.transfers));
        while in_flight > 0 {
            self.session.wait(1, None);
            self.session.reap(&mut done);
            for Done { status, token, data, .. } in done.drain(..) {
                ensure!(status.is_success(), "a transfer ended with {status}");
                let lane = &mut lanes[token as usize];
                if !lane.writes {
                    lane.writes = true;
                    let blocks = bytes >> self.volumes[to].namespace().limits().block_shift;
                    let write = Submission::write(lane.to, blocks, data).token(token);
                    self.submit(to, write)?;
                    continue;
                }
                clock.copied(bytes.into());
                lane.buffer = Some(data);
                match clock.is_over()? {
                    true => in_flight -= 1,
                    false => self.read(from, to, lane, token as usize, bytes)?,
                }
            }
        }
        clock.window()
    }

    fn read(
        &mut self,
        from: usize,
        to: usize,
        lane: &mut Lane,
        at: usize,
        bytes: u32,
    ) -> anyhow::Result<()> {
        let (slba, blocks) = self.source(from, bytes);
        lane.to = self.destination(to, bytes);
        lane.writes = false;
        let buffer = lane.buffer.take().context("the lane has its buffer")?;
        self.submit(from, Submission::read(slba, blocks, buffer).token(at as u64))
    }

    /// The latency that 99 of 100 random reads of 4 KiB do not exceed, with `depth` in flight.
    pub fn read_p99(
        &mut self,
        volume: usize,
        depth: usize,
        timing: Timing,
    ) -> anyhow::Result<Duration> {
        const BYTES: u32 = 4 << 10;
        let begin = Instant::now();
        let mut started = vec![begin; depth];
        for token in 0..depth {
            let buffer = self.session.allocate(BYTES as usize).context("no buffer")?;
            self.read_small(volume, Bytes::Fixed(buffer), token, BYTES)?;
        }
        let (mut in_flight, mut done) = (depth, Vec::with_capacity(depth));
        let mut latencies = Vec::new();
        while in_flight > 0 {
            self.session.wait(1, None);
            self.session.reap(&mut done);
            for Done { status, token, data, .. } in done.drain(..) {
                ensure!(status.is_success(), "a read ended with {status}");
                let (now, token) = (Instant::now(), token as usize);
                if now - begin >= timing.warm {
                    latencies.push(now - started[token]);
                }
                if now - begin >= timing.warm + timing.measure {
                    in_flight -= 1;
                    continue;
                }
                started[token] = now;
                self.read_small(volume, data, token, BYTES)?;
            }
        }
        latencies.sort_unstable();
        latencies.get(latencies.len() * 99 / 100).copied().context("there were reads")
    }

    fn read_small(
        &mut self,
        volume: usize,
        buffer: Bytes,
        token: usize,
        bytes: u32,
    ) -> anyhow::Result<()> {
        let (slba, blocks) = self.source(volume, bytes);
        self.submit(volume, Submission::read(slba, blocks, buffer).token(token as u64))
    }

    fn submit(&self, volume: usize, submission: Submission) -> anyhow::Result<()> {
        self.volumes[volume]
            .submit(submission)
            .map_err(|rejected| anyhow::anyhow!("{}", rejected.reason))
    }

    /// Somewhere in the first half of a volume.
    fn source(&mut self, volume: usize, bytes: u32) -> (u64, u32) {
        let limits = self.volumes[volume].namespace().limits();
        let blocks = bytes >> limits.block_shift;
        let places = limits.blocks / 2 / u64::from(blocks);
        (self.random.below(places) * u64::from(blocks), blocks)
    }

    /// Somewhere in the second half.
    fn destination(&mut self, volume: usize, bytes: u32) -> u64 {
        let half = self.volumes[volume].namespace().limits().blocks / 2;
        half + self.source(volume, bytes).0
    }

    /// Copies ranges from all over the first half and looks whether they have arrived.
    pub fn check(&mut self, from: usize, to: usize) -> anyhow::Result<()> {
        let shape = Shape { name: "check", bytes: 64 << 10, ranges: 16, depth: 1, transfers: 1 };
        let seed = Random::new(self.random.below(1 << 30));
        self.random = seed.clone();
        self.submit_copy(from, to, shape)?;
        self.random = seed;
        let sources: Vec<(u64, u32)> =
            (0..shape.ranges).map(|_| self.source(from, shape.bytes)).collect();
        let sdlba = self.destination(to, shape.bytes * shape.ranges as u32);
        self.one()?;
        for (at, (slba, blocks)) in sources.into_iter().enumerate() {
            let wanted = self.content(from, slba, blocks)?;
            let found = self.content(to, sdlba + at as u64 * u64::from(blocks), blocks)?;
            ensure!(wanted == found, "range {at} is not what was copied");
        }
        Ok(())
    }

    fn content(&self, volume: usize, slba: u64, blocks: u32) -> anyhow::Result<Vec<u8>> {
        let bytes = (blocks as usize) << self.volumes[volume].namespace().limits().block_shift;
        self.submit(volume, Submission::read(slba, blocks, vec![0; bytes]))?;
        Ok(self.one()?.data.as_slice().to_vec())
    }

    fn one(&self) -> anyhow::Result<Done> {
        self.session.wait(1, None);
        let mut done = Vec::new();
        self.session.reap(&mut done);
        let done = done.pop().context("one was submitted")?;
        ensure!(done.status.is_success(), "it ended with {}", done.status);
        Ok(done)
    }
}

/// When the window begins and ends, and what happened in it.
struct Clock<'a> {
    timing: Timing,
    net: &'a Net,
    start: Instant,
    begun: Option<(Instant, [u64; 2])>,
    ended: Option<(Duration, [u64; 2])>,
    bytes: u64,
}

impl<'a> Clock<'a> {
    fn new(timing: Timing, net: &'a Net) -> anyhow::Result<Clock<'a>> {
        let start = Instant::now();
        Ok(Clock { timing, net, start, begun: None, ended: None, bytes: 0 })
    }

    /// Seconds since warming up began.
    fn elapsed(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    fn copied(&mut self, bytes: u64) {
        if self.begun.is_some() && self.ended.is_none() {
            self.bytes += bytes;
        }
    }

    /// Whether the window is over.
    fn is_over(&mut self) -> anyhow::Result<bool> {
        let now = Instant::now();
        match self.begun {
            None if now - self.start >= self.timing.warm => {
                self.begun = Some((now, self.net.traffic(0)?));
            }
            Some((begun, _)) if self.ended.is_none() && now - begun >= self.timing.measure => {
                self.ended = Some((now - begun, self.net.traffic(0)?));
            }
            _ => {}
        }
        Ok(self.ended.is_some())
    }

    fn window(self) -> anyhow::Result<Window> {
        let ((_, before), (time, after)) =
            self.begun.zip(self.ended).context("the window came to its end")?;
        let seconds = time.as_secs_f64();
        let wire = (after[0] - before[0]).max(after[1] - before[1]);
        Ok(Window {
            mib_s: self.bytes as f64 / f64::from(1 << 20) / seconds,
            wire_mbit_s: wire as f64 * 8.0 / 1e6 / seconds,
        })
    }
}
