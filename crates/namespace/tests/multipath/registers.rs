//! Each block is a register: what was acknowledged is what is read, whatever paths lose.
//!
//! Fault model: a path loses a command before or after it was carried out, at random, and then
//! gives it back; so it does not carry it out later, which is what `failover=safe` promises. Paths
//! come and go; one at least comes back.

use crate::core::{Core, Fake, Store, World};
use namespace::Access;
use namespace::layer::multipath::Policy;
use nvme::opcode::io::{READ, WRITE};
use nvme::{Command, Status};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const BLOCKS: u64 = 8;
/// Reads that are checked, and commands that are lost, per policy. Pauses between retries are real
/// time, so steps are not counted.
const ENOUGH: usize = 400;
const PATIENCE: Duration = Duration::from_secs(60);

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// A model of what must be, and of what was stored.
struct Model {
    random: Random,
    store: Store,
    /// By block: what was last acknowledged.
    acknowledged: BTreeMap<u64, u8>,
    /// By block: the write in flight, or none for a read.
    in_flight: BTreeMap<u64, Option<u8>>,
    reads: usize,
    losses: usize,
}

impl Model {
    /// Sends a command for a block that has none in flight.
    fn send(&mut self, world: &World) {
        let block = self.random.below(BLOCKS);
        if self.in_flight.contains_key(&block) {
            return;
        }
        if self.random.below(2) == 0 {
            let value = 1 + self.random.below(200) as u8;
            self.in_flight.insert(block, Some(value));
            world.send_command(Command::blocks(WRITE, 1, block, 1), block, Some(value));
        } else {
            self.in_flight.insert(block, None);
            world.send_command(Command::blocks(READ, 1, block, 1), block, Some(0xee));
        }
    }

    /// A path answers or loses the command that has waited longest there.
    fn work(&mut self, world: &World) {
        let path = &world.paths[self.random.below(world.paths.len() as u64) as usize];
        let fate = self.random.below(4);
        let Some(mut request) = path.held.borrow_mut().pop_front() else { return };
        // The fake path has moved it.
        let block = request.command.slba() - 1000;
        if fate > 0 {
            let data = request.data.as_mut_ptr().expect("a buffer");
            match request.command.opcode {
                // SAFETY: the request holds a buffer of 4096 bytes.
                WRITE => drop(self.store.0.insert(block, unsafe { data.read() })),
                // SAFETY: the same.
                _ => unsafe { data.write(self.store.0.get(&block).copied().unwrap_or(0)) },
            }
        }
        let status = match fate {
            0 if self.random.below(2) == 0 => Status::HOST_ABORTED,
            0 | 1 => Status::HOST_PATHING_ERROR,
            _ => Status::SUCCESS,
        };
        self.losses += usize::from(!status.is_success());
        request.finish(status);
    }

    fn check(&mut self, world: &World) {
        for done in world.done() {
            assert!(done.status.is_success(), "{done:?}");
            let sent = self.in_flight.remove(&done.number).expect("it comes back once");
            match sent {
                Some(value) => drop(self.acknowledged.insert(done.number, value)),
                None => {
                    let wanted = self.acknowledged.get(&done.number).copied().unwrap_or(0);
                    assert_eq!(done.byte, Some(wanted), "block {}", done.number);
                    self.reads += 1;
                }
            }
        }
    }
}

#[test]
fn what_was_acknowledged_is_read() {
    for (seed, policy) in (1..).zip(Policy::ALL) {
        let core = Core::start(["a", "b", "c"].map(Fake::new).into(), policy);
        let model = Model {
            random: Random(0x9e37_79b9 * seed),
            store: Store::default(),
            acknowledged: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            reads: 0,
            losses: 0,
        };
        let mut model = core.run(move |world| {
            let mut model = model;
            model.send(world);
            model
        });
        let end = Instant::now() + PATIENCE;
        while model.reads < ENOUGH || model.losses < ENOUGH {
            assert!(Instant::now() < end, "{} reads, {} losses", model.reads, model.losses);
            model = core.run(move |world| {
                (0..3).for_each(|_| model.send(world));
                (0..3).for_each(|_| model.work(world));
                if model.random.below(10) == 0 {
                    let states = [Access::Optimized, Access::NonOptimized, Access::Lost];
                    let path = model.random.below(3) as usize;
                    world.paths[path].stand(states[model.random.below(3) as usize]);
                }
                model.check(world);
                model
            });
        }
        core.run(|world| world.paths[0].stand(Access::Optimized));
        while !model.in_flight.is_empty() {
            assert!(Instant::now() < end, "{:?} are still in flight", model.in_flight);
            model = core.run(move |world| {
                model.work(world);
                model.check(world);
                model
            });
        }
        assert!(core.counts().iter().all(|(in_flight, _)| *in_flight == 0));
    }
}
