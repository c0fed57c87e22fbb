//! A server in this process on a port of its own, and a witness beside the test's own connections.

use super::{Host, Queue};
use namespace::Namespace;
use namespace::memory::{Memory, MemoryOptions};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use target::{NamespaceOptions, PortId, Server, ServerConfig, SubsystemConfig};
use tempfile::TempDir;
use volume::OpenOptions;

pub const NQN: &str = "nqn.2026-11.org.example:volume";

/// A memory volume of `bytes` bytes.
pub fn memory(bytes: u64, block_shift: u8, cores: usize) -> Arc<Memory> {
    let options = MemoryOptions { bytes, block_shift, cores, lend: true, uuid: None };
    Memory::open(options).expect("memory")
}

/// A file volume of `bytes` bytes in `directory`, opened as by its URI; every command is held back
/// by `delay`.
pub fn file(
    directory: &TempDir,
    bytes: u64,
    block_shift: u8,
    cores: usize,
    delay: Duration,
) -> Arc<dyn Namespace> {
    let path = directory.path().join("volume.img");
    let file = format!("{}?create&size={bytes}&bs={}", path.display(), 1 << block_shift);
    let uri = match delay.as_millis() {
        0 => file,
        time => format!("delay:{time}ms({file})"),
    };
    volume::open(&uri, &OpenOptions { cores, ..OpenOptions::default() }).expect("a volume")
}

/// A directory on the disk that the tests are built on.
pub fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// A server with one subsystem that lets every host in.
pub struct Rig {
    pub server: Server,
    pub port: PortId,
    pub address: SocketAddr,
}

impl Rig {
    /// A server without namespaces on `cores` cores.
    pub fn empty(cores: usize) -> Rig {
        let config = ServerConfig { cores: vec![None; cores], ..ServerConfig::default() };
        let server = Server::start(&config).expect("a server");
        server.add_subsystem(subsystem(NQN)).expect("a subsystem");
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let (port, address) = server.add_listener(any).expect("a listener");
        let address = SocketAddr::from(([127, 0, 0, 1], address.port()));
        Rig { server, port, address }
    }

    /// A server of 64 MiB of memory in blocks of 4 KiB, as namespace 1.
    pub fn memory(cores: usize) -> Rig {
        let rig = Rig::empty(cores);
        rig.add(1, memory(64 << 20, 12, cores));
        rig
    }

    /// Serves `namespace` as `nsid`.
    pub fn add(&self, nsid: u32, namespace: Arc<dyn Namespace>) {
        let mut uuid = [0x42; 16];
        uuid[12..].copy_from_slice(&nsid.to_be_bytes());
        let options = NamespaceOptions { nsid: Some(nsid), uuid, nguid: [0; 16], ana_group: 1 };
        self.server.add_namespace(NQN, &options, namespace).expect("a namespace");
    }

    /// The host that is let in.
    pub fn host(&self) -> Host {
        Host::new(self.address, NQN)
    }

    /// An enabled controller's admin queue, and its I/O queue 1.
    pub fn connect(&self) -> (Queue, Queue) {
        let admin = self.host().enabled();
        let io = self.host().io(&admin, 1);
        (admin, io)
    }

    /// Somebody whose I/O must go on.
    pub fn witness(&self) -> Witness {
        let (admin, io) = self.connect();
        Witness { admin, io, round: 0 }
    }
}

/// A subsystem open to all.
pub fn subsystem(nqn: &str) -> SubsystemConfig {
    SubsystemConfig {
        nqn: nqn.into(),
        serial: "test".into(),
        model: "nvlane".into(),
        allow_any_host: true,
        hosts: Vec::new(),
        io_queues_max: 128,
        fused: true,
    }
}

/// A host that was there before, with a controller of its own.
pub struct Witness {
    pub admin: Queue,
    pub io: Queue,
    round: u8,
}

impl Witness {
    /// Writes and reads the blocks 4 to 7 of namespace 1 (4 KiB each), in the capsule and out of it.
    #[track_caller]
    pub fn check(&mut self) {
        self.round = self.round.wrapping_add(1);
        let data = vec![self.round; 16384];
        self.io.write(1, 4, 4, &data);
        assert!(self.io.read(1, 4, 4, data.len()) == data, "the witness reads what it wrote");
    }
}
