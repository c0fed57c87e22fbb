//! A server that breaks promises, to prove that the tests of durability would notice.
//!
//! Built only with the feature `mutants`. `NVLANE_MUTANT` says which promises, separated by commas: `ignore-flush`
//! answers Flush without flushing, `ignore-fua` takes the Force Unit Access bit away, `none` or
//! nothing keeps them all. What it does not do: touch the flush when the daemon stops in order.

use namespace::{Namespace, Queue, Request};
use nvme::opcode::io;
use nvme::{Limits, Status};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

/// Force Unit Access in command dword 12 (NVM 1.1, Write and Write Zeroes).
const FUA: u32 = 1 << 30;

/// The promises that are broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Broken {
    flush: bool,
    fua: bool,
}

/// A namespace over one that keeps its promises.
#[derive(Debug)]
pub struct Mutant {
    child: Arc<dyn Namespace>,
    broken: Broken,
}

impl Mutant {
    /// Puts the mutant that the environment asks for over `child`.
    ///
    /// # Panics
    /// If there is no such mutant: a test that means another one must not pass.
    pub fn over(child: Arc<dyn Namespace>) -> Arc<dyn Namespace> {
        let mut broken = Broken::default();
        for word in std::env::var("NVLANE_MUTANT").unwrap_or_default().split(',') {
            match word {
                // The last is of another place: crates/ublk-bpf/src/link.rs.
                "" | "none" | "failing-loop" => {}
                "ignore-flush" => broken.flush = true,
                "ignore-fua" => broken.fua = true,
                other => panic!("there is no mutant {other}"),
            }
        }
        if broken == Broken::default() {
            return child;
        }
        tracing::warn!("{}: ignored on purpose: {broken:?}", child.uri());
        Arc::new(Mutant { child, broken })
    }
}

impl Namespace for Mutant {
    fn limits(&self) -> Limits {
        self.child.limits()
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> std::io::Result<Rc<dyn Queue>> {
        let child = self.child.clone().open_queue(reactor)?;
        Ok(Rc::new(MutantQueue { child, broken: self.broken }))
    }

    fn refresh(&self) -> std::io::Result<bool> {
        self.child.refresh()
    }

    fn resize(&self, bytes: u64) -> std::io::Result<()> {
        self.child.resize(bytes)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.child.flush()
    }

    fn uri(&self) -> String {
        self.child.uri()
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        self.child.describe(facts);
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.child.uuid()
    }

    fn keeps_blocks_whole(&self) -> bool {
        self.child.keeps_blocks_whole()
    }

    fn cut(&self) -> u64 {
        self.child.cut()
    }

    fn lost(&self) -> namespace::Lost {
        self.child.lost()
    }

    fn volatile_epoch(&self) -> u64 {
        self.child.volatile_epoch()
    }
}

struct MutantQueue {
    child: Rc<dyn Queue>,
    broken: Broken,
}

impl Queue for MutantQueue {
    fn submit(&self, mut request: Box<Request>) {
        match request.command.opcode {
            io::FLUSH if self.broken.flush => return request.finish(Status::SUCCESS),
            io::WRITE | io::WRITE_ZEROES if self.broken.fua => {
                let dword = request.command.cdw12.get();
                request.command.cdw12.set(dword & !FUA);
            }
            _ => {}
        }
        self.child.submit(request);
    }

    fn forget(&self) {
        self.child.forget();
    }
}
