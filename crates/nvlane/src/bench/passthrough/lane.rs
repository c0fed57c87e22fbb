//! Reads on a bare ring: of the block device, or as commands to the character device.

use super::device::Device;
use super::{BYTES, Runs, Window};
use crate::bench::memory::Memory;
use crate::bench::pipeline::histogram;
use crate::bench::random::Random;
use crate::bench::usage;
use anyhow::{Context, bail};
use nvme::opcode;
use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};
use uring::{Completion, Kind, NvmeOp, NvmeUringCmd, Ring, RingOptions, SqPoll, Wait, entry};

/// Most commands in flight.
const DEPTH_MAX: usize = 128;
/// How long the kernel's thread looks for entries before it sleeps, in milliseconds.
const SQPOLL_IDLE_MS: u32 = 50;

/// What is switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Reads of the block device, not commands.
    pub block: bool,
    /// Buffers are registered.
    pub fixed: bool,
    /// The file is registered.
    pub file: bool,
    /// Completions are polled for.
    pub iopoll: bool,
    /// A thread of the kernel submits.
    pub sqpoll: bool,
}

impl Steps {
    /// `command_fixed_file`
    pub fn name(self, lane: &str) -> String {
        let mut name = lane.to_owned();
        for (on, word) in [
            (self.fixed, "_fixed"),
            (self.file, "_file"),
            (self.iopoll, "_iopoll"),
            (self.sqpoll, "_sqpoll"),
        ] {
            name.push_str(if on { word } else { "" });
        }
        name
    }
}

/// A [`Lane`] that a thread of the kernel submits for. It is set up for each run: that thread spins for a while after the
/// last command, and before the first, on processors that other lanes run on.
pub struct Submitted<'a> {
    device: &'a Device,
    steps: Steps,
}

impl<'a> Submitted<'a> {
    pub fn new(device: &'a Device, steps: Steps) -> Submitted<'a> {
        Submitted { device, steps }
    }
}

impl Runs for Submitted<'_> {
    fn name(&self) -> String {
        self.steps.name("command")
    }

    fn run(&mut self, depth: usize, warm: Duration, measure: Duration) -> anyhow::Result<Window> {
        let mut lane = Lane::new(self.device, self.steps)?;
        let window = lane.run(depth, warm, measure);
        drop(lane);
        // The kernel takes a ring apart when it finds the time.
        thread::sleep(2 * Duration::from_millis(SQPOLL_IDLE_MS.into()));
        window
    }
}

/// A ring with its memory.
pub struct Lane<'a> {
    // Before the memory, which the kernel may have.
    ring: Ring,
    device: &'a Device,
    steps: Steps,
    memory: Memory,
    file: uring::File,
    random: Random,
}

impl<'a> Lane<'a> {
    /// Sets up the ring.
    pub fn new(device: &'a Device, steps: Steps) -> anyhow::Result<Lane<'a>> {
        let mut ring = Ring::with_options(&RingOptions {
            entries: DEPTH_MAX as u32,
            kind: if steps.block { Kind::Small } else { Kind::Big },
            iopoll: steps.iopoll,
            sqpoll: steps.sqpoll.then_some(SqPoll { cpu: None, idle_ms: SQPOLL_IDLE_MS }),
            ..RingOptions::default()
        })?;
        let memory = Memory::new(DEPTH_MAX * BYTES as usize)?;
        if steps.fixed {
            ring.register_buffers(1)?;
            // SAFETY: the memory is dropped after the ring.
            unsafe { ring.update_buffer(0, memory.start(), memory.len()) }
                .context("registering buffers: raise RLIMIT_MEMLOCK")?;
        }
        let fd = if steps.block { device.blocks.as_raw_fd() } else { device.commands.as_raw_fd() };
        let mut file = uring::File::Fd(fd);
        if steps.file {
            ring.register_files(1)?;
            ring.update_file(0, fd)?;
            file = uring::File::Fixed(0);
        }
        Ok(Lane { ring, device, steps, memory, file, random: Random::new(1) })
    }

    /// Queues a read of a random place into the buffer `at`.
    fn push(&mut self, at: usize) -> anyhow::Result<()> {
        let place = self.random.below(self.device.places);
        // SAFETY: within the mapping, which has `DEPTH_MAX` buffers.
        let buffer = unsafe { self.memory.start().add(at * BYTES as usize) };
        let pushed = if self.steps.block {
            let offset = place * u64::from(BYTES);
            let entry = match self.steps.fixed {
                true => entry::read_fixed(self.file, buffer, BYTES, offset, 0),
                false => entry::read(self.file, buffer, BYTES, offset),
            };
            // SAFETY: the buffer is of this lane, which reaps all before it ends.
            unsafe { self.ring.push(&entry.user_data(at as u64)) }.is_ok()
        } else {
            let (slba, blocks) = self.device.blocks_of(place);
            let command = NvmeUringCmd {
                opcode: opcode::io::READ,
                nsid: self.device.nsid,
                addr: buffer as u64,
                data_len: BYTES,
                cdw10: slba as u32,
                cdw11: (slba >> 32) as u32,
                cdw12: blocks - 1,
                ..NvmeUringCmd::default()
            };
            let fixed = self.steps.fixed.then_some(0);
            let entry = entry::nvme_command(self.file, &command, NvmeOp::Io, fixed);
            // SAFETY: as above.
            unsafe { self.ring.push_big(&entry.user_data(at as u64)) }.is_ok()
        };
        if pushed { Ok(()) } else { bail!("the ring has as many entries as commands") }
    }

    /// CPU time until now, that of the kernel's thread included, if one submits.
    fn usage(&self) -> io::Result<usage::Usage> {
        if self.steps.sqpoll { usage::with_submitters() } else { usage::of_this_thread() }
    }

    fn check(&self, completion: &Completion) -> anyhow::Result<()> {
        let expected = if self.steps.block { BYTES as i32 } else { 0 };
        if completion.result != expected {
            bail!("a read ended with {}", completion.result);
        }
        Ok(())
    }
}

impl Runs for Lane<'_> {
    fn name(&self) -> String {
        self.steps.name(if self.steps.block { "block" } else { "command" })
    }

    fn run(&mut self, depth: usize, warm: Duration, measure: Duration) -> anyhow::Result<Window> {
        let mut latency = histogram();
        let mut begun = vec![Instant::now(); depth];
        let mut done = Vec::with_capacity(DEPTH_MAX);
        let start = Instant::now();
        for at in 0..depth {
            self.push(at)?;
        }
        let (mut in_flight, mut ios) = (depth, 0);
        let mut watched: Option<(Instant, usage::Usage)> = None;
        let mut ended: Option<(Duration, usage::Usage)> = None;
        while in_flight > 0 {
            self.ring.enter(Wait::Forever)?;
            self.ring.reap(&mut done);
            let now = Instant::now();
            if watched.is_none() && now - start >= warm {
                watched = Some((now, self.usage()?));
            }
            if let (Some((since, _)), None) = (watched, ended)
                && now - since >= measure
            {
                ended = Some((now - since, self.usage()?));
            }
            for completion in done.drain(..) {
                self.check(&completion)?;
                let at = completion.user_data as usize;
                if ended.is_some() {
                    in_flight -= 1;
                    continue;
                }
                if watched.is_some() {
                    ios += 1;
                    latency.saturating_record((now - begun[at]).as_nanos() as u64);
                }
                begun[at] = now;
                self.push(at)?;
            }
        }
        let ((_, before), (time, after)) = watched.zip(ended).context("it was watched")?;
        let cpu = after.since(before).cpu;
        Ok(Window { ios, seconds: time.as_secs_f64(), cpu, latency, stages: None })
    }
}
