//! One namespace by several paths, whose blocks are registers: what a write has stored is what reads give, until
//! the next write.

use super::{Core, PATIENCE, memory, read, write};
use namespace::layer::multipath::{Multipath, MultipathOptions, Settings};
use namespace::memory::Memory;
use namespace::{Access, Namespace};
use nvme::opcode;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a block, if nothing else is said.
const BLOCK: usize = 4096;
/// Blocks that are written again and again.
const BLOCKS: u64 = 16;

pub fn shared_volume() -> Arc<Memory> {
    // Two servers use it at once, so that it keeps blocks whole by locks.
    memory(1 << 20, 9, 2)
}

/// The namespace behind all of `addresses`.
pub fn open(addresses: &[SocketAddr], options: &host::Options) -> Arc<dyn Namespace> {
    open_with(addresses, options, Settings::default())
}

pub fn open_with(
    addresses: &[SocketAddr],
    options: &host::Options,
    settings: Settings,
) -> Arc<dyn Namespace> {
    let addresses: Vec<_> = addresses.iter().copied().map(super::address).collect();
    over(host::open(&addresses, options, "").expect("a path"), settings)
}

/// The namespace at the addresses that the discovery controllers at `controllers` name.
pub fn open_discovered(
    controllers: &[SocketAddr],
    options: &host::Options,
) -> Result<Arc<dyn Namespace>, host::Error> {
    let controllers: Vec<_> = controllers.iter().copied().map(super::address).collect();
    Ok(over(host::open_discovered(&controllers, options, "")?, Settings::default()))
}

/// The same, by paths with options of their own.
pub fn open_each(paths: &[(SocketAddr, &host::Options)], settings: Settings) -> Arc<dyn Namespace> {
    let paths = paths.iter().map(|(address, options)| super::connect(*address, options));
    over(paths.collect(), settings)
}

fn over(paths: Vec<Arc<host::Path>>, settings: Settings) -> Arc<dyn Namespace> {
    let paths = paths.into_iter().map(|path| path as Arc<dyn Namespace>).collect();
    let options = MultipathOptions { tuning: settings.into(), ..MultipathOptions::default() };
    Multipath::new(paths, options).expect("one namespace")
}

/// Writes ever higher numbers to each block, and reads them back.
pub struct Checker {
    pub core: Core,
    block: usize,
    number: u64,
    pub longest: Duration,
}

impl Checker {
    pub fn new(namespace: Arc<dyn Namespace>) -> Checker {
        Checker::sized(namespace, BLOCK)
    }

    /// With so many bytes to a block.
    pub fn sized(namespace: Arc<dyn Namespace>, block: usize) -> Checker {
        let core = Core::usable(namespace);
        Checker { core, block, number: 0, longest: Duration::ZERO }
    }

    /// One write to each block and, once they are acknowledged, a read of each.
    pub fn round(&mut self) {
        self.number += 1;
        let begin = Instant::now();
        for opcode in [opcode::io::WRITE, opcode::io::READ] {
            let content = |block: u64| {
                let number = (self.number << 8 | block).to_le_bytes();
                number.repeat(self.block / 8)
            };
            let at = |block: u64| block * self.block as u64;
            let answers: Vec<_> = (0..BLOCKS)
                .map(|block| match opcode {
                    opcode::io::WRITE => {
                        self.core.issue(write(at(block), self.block), content(block))
                    }
                    _ => self.core.issue(read(at(block), self.block), vec![0; self.block]),
                })
                .collect();
            for (block, answer) in answers.into_iter().enumerate() {
                let done = answer.recv_timeout(PATIENCE).expect("an answer");
                assert!(done.status.is_success(), "round {}: {}", self.number, done.status);
                let right = opcode == opcode::io::WRITE || done.data == content(block as u64);
                assert!(right, "round {}: block {block} is stale", self.number);
            }
        }
        self.longest = self.longest.max(begin.elapsed());
    }

    pub fn rounds(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.round();
        }
    }
}

pub fn await_path(namespace: &Arc<dyn Namespace>, path: usize, wanted: impl Fn(Access) -> bool) {
    let until = Instant::now() + PATIENCE;
    while !wanted(namespace.paths()[path].access) {
        assert!(Instant::now() < until, "{:?}", namespace.paths());
        std::thread::sleep(Duration::from_millis(2));
    }
}
