//! Serves 256 MiB of memory to any host that connects:
//!
//! ```text
//! cargo run --release -p target --example serve_memory -- 127.0.0.1:4420
//! ```

use namespace::memory::{Memory, MemoryOptions};
use std::error::Error;
use target::{NamespaceOptions, Server, ServerConfig, SubsystemConfig};

const NQN: &str = "nqn.2026-11.io.nvlane:memory";

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:4420".into()).parse()?;
    let memory = Memory::open(MemoryOptions {
        bytes: 256 << 20,
        block_shift: 12,
        cores: 1,
        lend: true,
        uuid: None,
    })?;
    let server = Server::start(&ServerConfig::default())?;
    server.add_subsystem(SubsystemConfig {
        nqn: NQN.into(),
        serial: "memory".into(),
        model: "nvlane".into(),
        allow_any_host: true,
        hosts: Vec::new(),
        io_queues_max: 128,
        fused: true,
    })?;
    let options = NamespaceOptions { nsid: None, uuid: [0x42; 16], nguid: [0; 16], ana_group: 1 };
    server.add_namespace(NQN, &options, memory)?;
    let (_, address) = server.add_listener(address)?;
    println!("nvme connect -t tcp -a {} -s {} -n {NQN}", address.ip(), address.port());
    println!("Enter stops the server.");
    std::io::stdin().read_line(&mut String::new())?;
    server.stop()?;
    Ok(())
}
