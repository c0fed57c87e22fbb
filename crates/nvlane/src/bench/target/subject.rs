//! The target under measurement: our own, started here, or another that runs already.

use super::plan::{Plan, Volume};
use crate::bench::initiator::{Controller, Geometry, Peer, Queue};
use crate::bench::served::{Scratch, Served, free_address};
use crate::bench::usage::{Observed, Usage};
use anyhow::{Context, bail};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// NQN under which the bench serves.
const NQN: &str = "nqn.2026-11.io.nvlane:bench";

/// A target, and how it is reached.
pub struct Subject {
    /// Where and what.
    pub peer: Peer,
    served: Option<Served>,
    observed: Option<Observed>,
}

impl Subject {
    /// Our own target in a process of its own, with `volumes` as namespaces 1, 2, ...
    pub fn start(volumes: &[String], core: usize, scratch: &Scratch) -> anyhow::Result<Subject> {
        let address = free_address()?;
        let state = scratch.path().join(format!("state-{}", address.port()));
        std::fs::create_dir_all(&state)?;
        let program = std::env::current_exe().context("this program's own path is unknown")?;
        let mut command = Command::new(program);
        command.arg("serve").args(volumes);
        command.args(["--listen", &address.to_string(), "--nqn", NQN]);
        command.arg("--cores").arg(format!("{core}-{core}")).args(["--log", "warn"]);
        command.arg("--data-dir").arg(&state).arg("--socket").arg(state.join("control"));
        let served = Served::start(&mut command, address, core, scratch)?;
        let peer = Peer { address, subsystem: NQN.into() };
        Ok(Subject { peer, served: Some(served), observed: None })
    }

    /// A target that runs already: `tcp://HOST:PORT/NQN`; `pid` is observed if it is known.
    pub fn running(uri: &str, pid: Option<u32>) -> anyhow::Result<Subject> {
        let Some((address, nqn)) = uri.strip_prefix("tcp://").and_then(|rest| rest.split_once('/'))
        else {
            bail!("{uri} is not of the form tcp://ADDRESS:PORT/NQN");
        };
        let address: SocketAddr =
            address.parse().with_context(|| format!("{address} is no address with a port"))?;
        let observed = pid.map(Observed::new).transpose().context("no such process")?;
        let peer = Peer { address, subsystem: nqn.to_owned() };
        Ok(Subject { peer, served: None, observed })
    }

    /// A controller with a queue for `depth` commands, and the size of the volume.
    pub fn open(
        &self,
        volume: Volume,
        depth: u16,
    ) -> anyhow::Result<(Controller, Queue, Geometry)> {
        let mut controller = Controller::connect(&self.peer, 1)?;
        let geometry = controller.geometry(volume.nsid())?;
        let queue = controller.queue(1, depth)?;
        Ok((controller, queue, geometry))
    }

    /// The server process, if it can be observed.
    pub fn observed(&mut self) -> Option<&mut Observed> {
        self.served.as_mut().map(|served| &mut served.observed).or(self.observed.as_mut())
    }

    /// What the server has used until now; nothing if it cannot be observed.
    pub fn usage(&mut self) -> io::Result<Usage> {
        self.observed().map_or(Ok(Usage::default()), |observed| observed.usage())
    }
}

/// The volumes of the speed rows, in the order of [`Volume::nsid`].
pub fn volumes(plan: &Plan, file: &Path) -> Vec<String> {
    let bytes = plan.memory_bytes >> 20;
    vec![format!("mem:{bytes}M"), format!("null:{bytes}M"), format!("file:{}", file.display())]
}
