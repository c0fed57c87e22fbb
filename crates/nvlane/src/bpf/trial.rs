//! Gives a program requests of every kind, on volumes that are imagined.

use anyhow::{Result, bail};
use bpf::actions::{self, Asked, Decision, MisuseKind, Then, op};
use bpf::request::{Backend, Device, ONE_PLACE, Request};
use bpf::{Entry, Instance, Machine, Program};
use std::sync::Arc;
use std::time::Instant;
use zerocopy::IntoBytes;

/// Block size of the volumes, as a power of two.
pub const BLOCK_SHIFT: u8 = 9;
/// Blocks that a volume takes at once: 1 MiB.
const BLOCKS_MAX: u32 = 2048;
/// Rounds, and calls of each, from which the fastest round is taken.
const ROUNDS: u32 = 20;
const CALLS: u32 = 2_000;
/// Unrecovered Read Error, for parts that fail.
const FAILED: u16 = 0x281;

/// What came of it.
pub struct Outcome {
    /// How many requests were tried.
    pub requests: usize,
    /// What would fail, in words.
    pub problems: Vec<String>,
    /// Nanoseconds that the program takes for a read of 4 KiB, if nothing would fail.
    pub read_ns: f64,
    /// It promises that a block is always at one place.
    pub has_one_place: bool,
}

/// Tries `program` on volumes of `sizes` blocks.
pub fn run(program: Program, sizes: &[u64]) -> Result<Outcome> {
    let mut instance = Instance::new(program, 1)?;
    // Where that cannot be, it is interpreted, and measured so.
    let _ = bpf_native::compile(&mut instance);
    let instance = Arc::new(instance);
    let machine = Machine::new(Arc::clone(&instance), 0, 1);
    let mut trial = Trial { instance, machine, sizes, device: Device::default() };
    trial.set_up()?;
    let Device { blocks, blocks_max, .. } = trial.device;
    let mut problems = Vec::new();
    let mut requests = 0;
    for code in [op::READ, op::WRITE, op::WRITE_ZEROES, op::DISCARD, op::FLUSH] {
        let lengths = if code == op::FLUSH { vec![0] } else { vec![1, 8, blocks_max] };
        for length in lengths {
            let length = length.min(blocks_max).min(blocks.min(u64::from(u32::MAX)) as u32);
            let last = blocks - u64::from(length);
            for start in [0, last / 3, last / 2, last] {
                requests += 1;
                if let Err(what) = trial.request(code, start, length) {
                    problems
                        .push(format!("opcode {code:#04x}, {length} blocks at {start}: {what}"));
                }
            }
        }
    }
    // One that never ends would take minutes to measure.
    let read_ns = if problems.is_empty() { trial.cost(blocks_max.min(8)) } else { 0.0 };
    let has_one_place = trial.device.flags & ONE_PLACE != 0;
    Ok(Outcome { requests, problems, read_ns, has_one_place })
}

struct Trial<'a> {
    instance: Arc<Instance>,
    machine: Machine,
    sizes: &'a [u64],
    device: Device,
}

impl Trial<'_> {
    fn set_up(&mut self) -> Result<()> {
        self.device = Device {
            backends: self.sizes.len() as u16,
            block_shift: BLOCK_SHIFT,
            cores: 1,
            blocks: self.sizes.iter().copied().min().unwrap_or(0),
            blocks_max: BLOCKS_MAX,
            optimal_blocks: 8,
            ..Device::default()
        };
        for (backend, blocks) in self.device.backend.iter_mut().zip(self.sizes) {
            backend.blocks = *blocks;
        }
        if let Some(entry) = self.instance.program().setup() {
            match self.machine.run(entry, self.device.as_mut_bytes(), &|| 1_000_000_000) {
                Ok(result) if result as u32 == 0 => {}
                Ok(result) => bail!("NVLANE_SETUP returned {} for these volumes", result as i32),
                Err(fault) => {
                    let place = self.instance.program().locate(fault.instruction);
                    bail!("NVLANE_SETUP: {place}: {}", fault.kind)
                }
            }
        }
        if self.device.blocks == 0 || !(1..=BLOCKS_MAX).contains(&self.device.blocks_max) {
            bail!(
                "NVLANE_SETUP made a device of no blocks, or set blocks_max beyond what there was"
            );
        }
        Ok(())
    }

    fn blank(&self, code: u8, start: u64, blocks: u32) -> Request {
        let mut request = Request {
            op: code,
            start,
            blocks,
            block_shift: BLOCK_SHIFT,
            device_blocks: self.device.blocks,
            backends: self.sizes.len() as u16,
            ..Request::default()
        };
        for (backend, blocks) in request.backend.iter_mut().zip(self.sizes) {
            *backend = Backend { blocks: *blocks, ..Backend::default() };
        }
        request
    }

    /// One request; then, if it has parts, NVLANE_DONE for parts that went well, and for some that failed.
    fn request(&mut self, code: u8, start: u64, blocks: u32) -> Result<(), String> {
        let (route, done) = (self.instance.program().route(), self.instance.program().done());
        let mut request = self.blank(code, start, blocks);
        if let Then::End(_) = self.step(route, code, blocks, &mut request, false)? {
            return Ok(());
        }
        let Some(done) = done else { return Ok(()) };
        for (failed, status) in [(0, 0), (1, FAILED)] {
            let mut ended = self.blank(code, start, blocks);
            (ended.state, ended.phase) = (request.state, 1);
            (ended.failed, ended.status) = (failed, status);
            self.step(done, code, blocks, &mut ended, status == 0)?;
        }
        Ok(())
    }

    fn step(
        &mut self,
        entry: Entry,
        code: u8,
        blocks: u32,
        request: &mut Request,
        is_whole: bool,
    ) -> Result<Then, String> {
        let program = self.instance.program();
        let before = request.clone();
        let ran = self.machine.run(entry, request.as_mut_bytes(), &|| 1_000_000_000);
        match ran {
            Ok(result) if result as u32 == 0 => {}
            Ok(result) => return Err(MisuseKind::Returned(result as i32).to_string()),
            Err(fault) => {
                return Err(format!("{}: {}", program.locate(fault.instruction), fault.kind));
            }
        }
        let deferred = program.deferred().filter(|deferred| *deferred != entry);
        let (sizes, phase, may_defer) = (self.sizes, before.phase, deferred.is_some());
        let asked = Asked { op: code, blocks, sizes, phase, is_whole, may_defer };
        match (actions::check(request, &asked), deferred) {
            (Ok(Decision::Plan(plan)), _) => Ok(plan.then),
            (Ok(Decision::Deferred), Some(deferred)) => {
                *request = Request { state: request.state, ..before };
                self.step(deferred, code, blocks, request, is_whole)
            }
            (Ok(Decision::Deferred), None) => unreachable!("it may not defer"),
            (Err(misuse), _) => {
                Err(format!("{}: {}", program.place_of_line(entry, misuse.line), misuse.kind))
            }
        }
    }

    /// What the program takes for a read, the least of some rounds.
    fn cost(&mut self, blocks: u32) -> f64 {
        let route = self.instance.program().route();
        let mut request = self.blank(op::READ, self.device.blocks / 2, blocks);
        let mut least = f64::MAX;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for _ in 0..CALLS {
                request.clear_actions();
                // What it says was looked at before.
                let _ = self.machine.run(route, request.as_mut_bytes(), &|| 1_000_000_000);
            }
            least = least.min(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
        }
        least
    }
}
