//! I/O on one volume from a command: a reactor on this thread, a queue, several commands in flight.
//!
//! ```text
//!   job (Reader, Writer, ...) --submit--> Queue ... backend, or a remote host
//!        ^  step(), deferred                |
//!        '------- completed: noted ---------'
//!   file descriptors: on the reactor's threads for calls that block
//! ```
//!
//! A job is a sink: what completes is noted, and its `step` runs at the end of the turn. It ends
//! the session by [`reactor::Reactor::stop`] when nothing of it is in flight any more. The reactor's
//! thread never blocks, so that a remote volume's connections stay served.
//!
//! What it does not do: several cores, or more than one job per session. Where speed counts more
//! than that, serve the volume.
//!
//! Key constants: [`DEPTH`] commands of [`CHUNK_BYTES`] in flight.

mod descriptor;
mod progress;
mod reader;
mod writer;

pub use progress::Progress;
pub use reader::Reader;
pub use writer::Writer;

use crate::patience;
use anyhow::{Context, Result};
use namespace::{Data, Namespace, Queue, Request, Sink};
use nvme::{Command, Limits, Status, opcode};
use reactor::{Complete, Config, Reactor};
use std::rc::Rc;
use std::sync::Arc;

/// Commands in flight.
pub const DEPTH: usize = 32;
/// Bytes of a command, if the volume takes as many.
pub const CHUNK_BYTES: u32 = 128 << 10;
/// Status code type of what went wrong on the way (NVMe Base 2.1, Figure 104).
const SCT_PATH: u8 = 3;
/// The namespace id in commands: a volume is one namespace, whatever its id elsewhere.
const NSID: u32 = 1;

/// A volume, opened on this thread.
pub struct Session {
    /// This thread's loop.
    pub reactor: Rc<Reactor>,
    /// The volume.
    pub volume: Arc<dyn Namespace>,
    /// The way to it.
    pub queue: Rc<dyn Queue>,
    /// What it can do, when it was opened.
    pub limits: Limits,
}

impl Session {
    /// Opens a volume, read as `serve` would.
    pub fn open(uri: &str, read_only: bool) -> Result<Session> {
        let options = volume::OpenOptions { read_only, lend: false, ..Default::default() };
        let volume = patience::open(uri, &options)?;
        let reactor = Reactor::new(&Config::default())?;
        let queue = Arc::clone(&volume).open_queue(&reactor).with_context(|| volume.uri())?;
        let limits = volume.limits();
        Ok(Session { reactor, volume, queue, limits })
    }

    /// Bytes of a command: whole blocks.
    pub fn chunk_bytes(&self) -> u32 {
        let chunk = CHUNK_BYTES.min(self.limits.transfer_bytes_max);
        (chunk - chunk % self.limits.block_bytes()).max(self.limits.block_bytes())
    }

    /// Runs `job` until it stops the reactor.
    pub fn run(&self, job: Rc<dyn Complete>, start: u64) {
        self.reactor.defer(job, start);
        self.reactor.run();
    }

    fn failure(&self, doing: &str, status: Status) -> anyhow::Error {
        anyhow::Error::msg(failure_text(&*self.volume, doing, opcode::io::READ, status))
    }

    /// Reads into the request's buffer, or writes from it, at byte `offset`.
    pub fn submit_blocks(
        &self,
        code: u8,
        offset: u64,
        mut request: Box<Request>,
        sink: Rc<dyn Sink>,
        state: u64,
    ) {
        let shift = self.limits.block_shift;
        let blocks = request.data.len() as u32 >> shift;
        request.command = Command::blocks(code, NSID, offset >> shift, blocks);
        request.push(sink, state);
        self.queue.submit(request);
    }

    /// Makes what was written durable.
    fn submit_flush(&self, mut request: Box<Request>, sink: Rc<dyn Sink>, state: u64) {
        request.command =
            Command { opcode: opcode::io::FLUSH, nsid: NSID.into(), ..Command::default() };
        request.data = Data::None;
        request.push(sink, state);
        self.queue.submit(request);
    }

    /// Gives the request a buffer of `bytes`, its own if that is as long.
    ///
    /// # Panics
    /// If the pool has none: a session's commands fit it.
    pub fn give_buffer(&self, request: &mut Request, bytes: usize) {
        if request.data.len() != bytes {
            request.data = Data::None;
            let buffer = self.reactor.buffers().allocate(bytes);
            request.data =
                Data::Buffer(buffer.expect("the pool holds what a session has in flight"));
        }
    }
}

/// What a failed command is told as: the volume, what was done, the status, and of paths that are not live why.
pub fn failure_text(volume: &dyn Namespace, doing: &str, code: u8, status: Status) -> String {
    let mut text = format!("{}: {doing}: {}", volume.uri(), status.io_text(code));
    if status.sct() == SCT_PATH {
        for path in volume.paths().iter().filter(|path| !path.reason.is_empty()) {
            text.push_str(&format!("; {}: {}", path.name, path.reason));
        }
    }
    text
}
