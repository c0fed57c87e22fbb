//! What listens at the far ends of the links: one target of this process, or a process at each.

use crate::bench::Options;
use crate::bench::net::Net;
use crate::bench::served::{Scratch, Served, subsystem};
use anyhow::{Context, bail, ensure};
use namespace::layer::delay::Delays;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;
use target::{NamespaceOptions, PortId, Server, ServerConfig};

/// Of the subsystem.
pub const NQN: &str = "nqn.2026-11.io.nvlane:bench-links";
const PORT: u16 = 4420;
/// By which hosts know that several processes serve one volume.
const UUID: &str = "43434343-4343-4343-8343-434343434343";
/// Controller identifiers that each process may give out.
const IDS_EACH: usize = 100;

/// Targets of one volume, a port on each link.
pub enum Target {
    /// Within this process, in memory.
    Here {
        /// The target.
        server: Server,
        /// By link.
        ports: Vec<PortId>,
    },
    /// A process for each link, all with the same file.
    Processes(Processes),
}

/// Processes that serve one file.
pub struct Processes {
    by_link: Vec<Served>,
    core: usize,
    // After the processes, which have files in there.
    scratch: Scratch,
}

impl Target {
    /// Serves on `links` links; of `processes` one may be killed.
    pub fn start(
        net: &Net,
        links: usize,
        processes: bool,
        options: &Options,
    ) -> anyhow::Result<Target> {
        if processes {
            return Ok(Target::Processes(Processes::start(net, links, options)?));
        }
        let config =
            ServerConfig { cores: vec![Some(options.server_core)], ..ServerConfig::default() };
        let server = Server::start(&config)?;
        server.add_subsystem(subsystem(NQN))?;
        let volume = volume::open("mem:1G", &volume::OpenOptions::default())?;
        let namespace =
            NamespaceOptions { nsid: Some(1), uuid: [0x43; 16], nguid: [0; 16], ana_group: 1 };
        server.add_namespace(NQN, &namespace, volume)?;
        let mut ports = Vec::new();
        for link in 0..links {
            let address = Target::address(net, link);
            let (port, _) = net.within(|| Ok(server.add_listener(address)?))?;
            ports.push(port);
        }
        ensure!(ports.len() == links, "a port per link");
        Ok(Target::Here { server, ports })
    }

    /// Where it listens on a link.
    pub fn address(net: &Net, link: usize) -> SocketAddr {
        net.address(link, PORT)
    }

    /// What comes by `link` is answered so much later.
    pub fn delay(&self, link: usize, time: Duration) -> anyhow::Result<()> {
        let Target::Here { server, ports } = self else {
            bail!("only a target in this process delays")
        };
        Ok(server.set_delay(ports[link], Delays::all(time))?)
    }

    /// Ends the process on `link` as an accident does: what it was asked is never answered.
    pub fn kill(&mut self, link: usize) -> anyhow::Result<()> {
        let Target::Processes(processes) = self else { bail!("this process is not to be killed") };
        processes.by_link[link].kill().context("a target cannot be killed")
    }

    /// Starts another process in place of one that was killed; returns once it listens.
    pub fn start_again(&mut self, net: &Net, link: usize) -> anyhow::Result<()> {
        let Target::Processes(processes) = self else { bail!("this process was not killed") };
        processes.by_link[link] = process(net, link, processes.core, &processes.scratch)?;
        Ok(())
    }
}

impl Processes {
    fn start(net: &Net, links: usize, options: &Options) -> anyhow::Result<Processes> {
        let (core, scratch) = (options.server_core, Scratch::new(&options.dir)?);
        let by_link = (0..links).map(|link| process(net, link, core, &scratch));
        let by_link = by_link.collect::<anyhow::Result<_>>()?;
        Ok(Processes { by_link, core, scratch })
    }
}

/// One of them. All of the file is a hole, so that reading it takes no disk.
fn process(net: &Net, link: usize, core: usize, scratch: &Scratch) -> anyhow::Result<Served> {
    let program = std::env::current_exe().context("this program's own path is unknown")?;
    let (address, state) =
        (Target::address(net, link), scratch.path().join(format!("link-{link}")));
    std::fs::create_dir_all(&state)?;
    let first = link * IDS_EACH + 1;
    let mut command = Command::new("ip");
    command.args(["netns", "exec", net.name()]).arg(program).arg("serve");
    command.arg(format!("file:{}?create&size=1G", scratch.path().join("links.img").display()));
    command.args(["--shared", "--nqn", NQN, "--uuid", UUID, "--log", "warn"]);
    command.arg("--cntlid").arg(format!("{first}-{}", first + IDS_EACH - 1));
    command.arg("--cores").arg(format!("{core}-{core}")).args(["--listen", &address.to_string()]);
    command.arg("--data-dir").arg(&state).arg("--socket").arg(state.join("control"));
    Served::start(&mut command, address, core, scratch)
}
