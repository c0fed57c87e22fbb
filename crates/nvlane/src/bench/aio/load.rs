//! Random reads that keep a number of requests in flight.

use super::subject::{BLOCK, Kind, Subject};
use crate::bench::{random::Random, usage};
use ::aio::abi::Event;
use anyhow::bail;
use hdrhistogram::Histogram;
use std::io;
use std::time::{Duration, Instant};

/// One subject at work.
pub struct Load {
    subject: Subject,
    depth: usize,
    /// Most requests of one `io_submit`.
    list: usize,
    blocks: u64,
    begun: Vec<Instant>,
}

/// What one window gave.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Reads per second.
    pub iops: f64,
    /// CPU time per read, of this thread and of the kernel's that submits, if there is one.
    pub cpu_ns: f64,
    /// Time in `io_submit` per read; not a number where it is not known.
    pub submit_ns: f64,
    /// Median time from submission to event.
    pub p50_ns: f64,
}

impl Load {
    /// Reads within the first `bytes` of the file, submitting at most `list` of them by one call.
    pub fn new(subject: Subject, depth: usize, list: usize, bytes: usize) -> Load {
        let begun = vec![Instant::now(); depth];
        Load { subject, depth, list, blocks: (bytes / BLOCK) as u64, begun }
    }

    /// The subject's name.
    pub fn name(&self) -> &'static str {
        self.subject.kind.name()
    }

    /// Whether it finds completions by polling.
    pub fn polls(&self) -> bool {
        self.subject.polling
    }

    fn usage(&self) -> io::Result<usage::Usage> {
        match self.subject.kind {
            Kind::Setup2Thread => usage::with_submitters(),
            _ => usage::of_this_thread(),
        }
    }

    /// How many of these were submitted, list by list.
    fn submit(&mut self, free: &[usize]) -> anyhow::Result<usize> {
        let mut taken = 0;
        for list in free.chunks(self.list) {
            let count = self.subject.submit(list);
            // A thread that takes submissions may not have taken the ones before.
            let count = if count == -libc::EAGAIN { 0 } else { count };
            let Ok(count) = usize::try_from(count) else {
                bail!("{}: submitting gives {count} of {}", self.name(), list.len());
            };
            taken += count;
            if count < list.len() {
                break;
            }
        }
        Ok(taken)
    }

    /// Reads for so long; nothing is in flight before and after.
    pub fn window(&mut self, length: Duration, seed: u64) -> anyhow::Result<Window> {
        let mut random = Random::new(seed + 1);
        let mut latencies = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
        let mut events = vec![Event::default(); self.depth];
        let mut free: Vec<usize> = (0..self.depth).collect();
        let (mut done, mut submitting) = (0_u64, Duration::ZERO);
        let before = self.usage()?;
        let begin = Instant::now();
        loop {
            let now = Instant::now();
            if now - begin < length {
                for &index in &free {
                    self.subject.iocbs[index].offset =
                        (random.below(self.blocks) * BLOCK as u64) as i64;
                    self.begun[index] = now;
                }
                let taken = self.submit(&free)?;
                submitting += now.elapsed();
                free.drain(..taken);
            }
            if free.len() == self.depth {
                if now - begin >= length {
                    break;
                }
                continue;
            }
            let count = self.subject.take(1, &mut events);
            // Closing the rings of the case before interrupts whoever used them.
            let count = if count == -libc::EINTR { 0 } else { count };
            let Ok(count) = usize::try_from(count) else {
                bail!("{}: taking events gives {count}", self.name());
            };
            let now = Instant::now();
            for event in &events[..count] {
                if event.res != BLOCK as i64 {
                    bail!("{}: a read gives {}", self.name(), event.res);
                }
                let index = self.subject.index_of(event);
                latencies.saturating_record((now - self.begun[index]).as_nanos() as u64);
                free.push(index);
            }
            done += count as u64;
        }
        let elapsed = begin.elapsed();
        let used = self.usage()?.since(before);
        let reads = done.max(1) as f64;
        Ok(Window {
            iops: reads / elapsed.as_secs_f64(),
            cpu_ns: used.cpu.as_nanos() as f64 / reads,
            submit_ns: match self.subject.kind.submits_late() {
                true => f64::NAN,
                false => submitting.as_nanos() as f64 / reads,
            },
            p50_ns: latencies.value_at_quantile(0.5) as f64,
        })
    }
}
