//! Servers that the bench starts: processes, which it observes and ends, and subsystems of its own.

use super::cores;
use super::usage::Observed;
use anyhow::{Context, bail};
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use subsystem::SubsystemConfig;

/// How long a server may take until it accepts connections.
const START_MAX: Duration = Duration::from_secs(30);
/// How long a server may take to end by itself.
const STOP_MAX: Duration = Duration::from_secs(5);

/// The subsystem of a target in this process, open to every host.
pub fn subsystem(nqn: &str) -> SubsystemConfig {
    SubsystemConfig {
        nqn: nqn.into(),
        serial: "bench".into(),
        model: "nvlane".into(),
        allow_any_host: true,
        hosts: Vec::new(),
        io_queues_max: 16,
        fused: false,
    }
}

/// A running server, ended when dropped.
pub struct Served {
    child: Child,
    /// What it uses.
    pub observed: Observed,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Served {
    /// Starts `command` on `core` alone and waits until it accepts connections at `address`.
    pub fn start(
        command: &mut Command,
        address: SocketAddr,
        core: usize,
        scratch: &Scratch,
    ) -> anyhow::Result<Served> {
        let program = command.get_program().to_string_lossy().into_owned();
        let log_path = scratch.path().join(format!("server-{address}.log"));
        let log = File::create(&log_path)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = cores::pin_child(command, core)
            .spawn()
            .with_context(|| format!("{program} cannot be started"))?;
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = child.try_wait()?;
            if ended.is_some() || start.elapsed() > START_MAX {
                let said = std::fs::read_to_string(&log_path).unwrap_or_default();
                child.kill().ok();
                child.wait().ok();
                bail!("{program} does not serve at {address} ({ended:?}); it said:\n{said}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let observed = Observed::new(child.id())?;
        Ok(Served { child, observed, address })
    }
}

impl Served {
    /// Ends it as an accident does: nothing is finished, nothing is said.
    pub fn kill(&mut self) -> std::io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        // SAFETY: a signal to our own child, which has not been waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let start = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            if start.elapsed() > STOP_MAX {
                self.child.kill().ok();
                self.child.wait().ok();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A loopback address that nobody listens at now.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?)
}

/// A directory for the files of one run, removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one below `parent`.
    pub fn new(parent: &Path) -> anyhow::Result<Scratch> {
        let path = parent.join(format!(".nvlane-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("{} cannot be made; see --dir", path.display()))?;
        Ok(Scratch(path.canonicalize()?))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// The first line that `program --version` prints, or why there is none.
pub fn version(program: &str) -> Result<String, String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "missing: not installed".to_owned(),
        _ => format!("missing: {error}"),
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or("version unknown").trim().to_owned())
}
