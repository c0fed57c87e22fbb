//! Reads by `ioctl(NVME_IOCTL_IO64_CMD)`: the thread waits for each.

use super::device::Device;
use super::{BYTES, Runs, Window};
use crate::bench::pipeline::histogram;
use crate::bench::random::Random;
use crate::bench::usage;
use anyhow::{Context, bail};
use nvme::opcode;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use uring::{NvmePassthruCmd64, NvmeUringCmd};

/// One thread, or as many as there are commands in flight.
pub struct Sync<'a> {
    device: &'a Device,
    threads: bool,
}

impl<'a> Sync<'a> {
    /// With `threads`, one per command.
    pub fn new(device: &'a Device, threads: bool) -> Sync<'a> {
        Sync { device, threads }
    }
}

impl Runs for Sync<'_> {
    fn name(&self) -> String {
        if self.threads { "sync_threads" } else { "sync" }.to_owned()
    }

    fn run(&mut self, depth: usize, warm: Duration, measure: Duration) -> anyhow::Result<Window> {
        let threads = if self.threads { depth } else { 1 };
        let device = self.device;
        let windows: Vec<anyhow::Result<Window>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads)
                .map(|seed| scope.spawn(move || one(device, seed as u64, warm, measure)))
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let mut all = Window {
            ios: 0,
            seconds: measure.as_secs_f64(),
            cpu: Duration::ZERO,
            latency: histogram(),
            stages: None,
        };
        for window in windows {
            let window = window?;
            // Each by its own clock.
            // Whoever has just one, in more time than that, has had one.
            let ios = window.ios as f64 / window.seconds * all.seconds;
            all.ios += (ios.round() as u64).max(1);
            all.cpu += window.cpu;
            all.latency.add(&window.latency)?;
        }
        Ok(all)
    }
}

fn one(device: &Device, seed: u64, warm: Duration, measure: Duration) -> anyhow::Result<Window> {
    let mut random = Random::new(seed);
    let mut buffer = vec![0u8; BYTES as usize];
    let mut latency = histogram();
    let start = Instant::now();
    let mut watched: Option<(Instant, usage::Usage)> = None;
    let (mut begun, mut ios) = (start, 0);
    loop {
        let (slba, blocks) = device.blocks_of(random.below(device.places));
        let command = NvmeUringCmd {
            opcode: opcode::io::READ,
            nsid: device.nsid,
            addr: buffer.as_mut_ptr() as u64,
            data_len: BYTES,
            cdw10: slba as u32,
            cdw11: (slba >> 32) as u32,
            cdw12: blocks - 1,
            ..NvmeUringCmd::default()
        };
        let mut call = NvmePassthruCmd64 { command, result: 0 };
        let request = NvmePassthruCmd64::IO as libc::Ioctl;
        // SAFETY: the command and the buffer that it names are ours until the call returns.
        let result = unsafe { libc::ioctl(device.commands.as_raw_fd(), request, &raw mut call) };
        if result != 0 {
            bail!("a read ended with {result}: {}", std::io::Error::last_os_error());
        }
        let now = Instant::now();
        match watched {
            None if now - start >= warm => watched = Some((now, usage::of_this_thread()?)),
            None => {}
            Some((since, before)) => {
                ios += 1;
                latency.saturating_record((now - begun).as_nanos() as u64);
                let time = now - since;
                if time >= measure {
                    let cpu = usage::of_this_thread().context("usage")?.since(before).cpu;
                    let seconds = time.as_secs_f64();
                    return Ok(Window { ios, seconds, cpu, latency, stages: None });
                }
            }
        }
        begun = now;
    }
}
