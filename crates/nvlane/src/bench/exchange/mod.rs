//! The limit: a bare TCP exchange of the byte counts of an NVMe/TCP I/O, without NVMe.
//!
//! ```text
//!   client (core 1, busy polling)            server (core 0, three ways)
//!        72 B  ------------------------------>  counts requests
//!              <------------------------------  24 B + data + 24 B, gathered, one writev per batch
//! ```
//!
//! The server answers in order, knows nothing of the requests but their number, and does no work
//! but the exchange itself; so nothing that speaks NVMe/TCP over these sockets can be faster.

mod client;
mod direct;
mod on_reactor;
mod region;

pub use client::Bare;
pub use region::Region;

use super::pipeline::{self, Batch, Timing, Window};
use super::usage::{self, Usage};
use super::{cores, random::Random};
use anyhow::Context;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Bytes of a command capsule without data: 8 of PDU header, 64 of command.
pub const COMMAND_BYTES: usize = 72;
/// Bytes of a C2HData header, and of a response capsule.
pub const HEADER_BYTES: usize = 24;

/// How the server waits for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Non-blocking `recv` in a loop.
    BusyPolled,
    /// Blocking calls.
    Blocking,
    /// This project's reactor.
    Reactor,
}

impl Waiting {
    /// All of them.
    pub const ALL: [Waiting; 3] = [Waiting::BusyPolled, Waiting::Blocking, Waiting::Reactor];

    /// Key in rows.
    pub fn name(self) -> &'static str {
        match self {
            Waiting::BusyPolled => "busy_polled",
            Waiting::Blocking => "blocking",
            Waiting::Reactor => "reactor",
        }
    }
}

/// What is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes that follow a request.
    pub request_data: usize,
    /// Bytes between the two headers of an answer; 0 for a single header.
    pub answer_data: usize,
    /// Which bytes those are.
    pub source: Source,
}

/// Where the data of an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// One buffer, again and again.
    Hot,
    /// Random blocks of the region.
    Random,
    /// The region's blocks in order.
    Sequential,
}

impl Shape {
    /// Bytes of one request.
    pub fn request_bytes(self) -> usize {
        COMMAND_BYTES + self.request_data
    }

    /// Bytes of one answer.
    pub fn answer_bytes(self) -> usize {
        if self.answer_data == 0 { HEADER_BYTES } else { 2 * HEADER_BYTES + self.answer_data }
    }
}

/// Answers of one connection, built as vectors over headers and data.
struct Answers {
    shape: Shape,
    region: Arc<Region>,
    random: Random,
    next: u64,
    headers: Box<[u8; 2 * HEADER_BYTES]>,
    vectors: Vec<libc::iovec>,
}

impl Answers {
    fn new(shape: Shape, region: Arc<Region>) -> Answers {
        let headers = Box::new([0x55; 2 * HEADER_BYTES]);
        Answers { shape, region, random: Random::new(1), next: 0, headers, vectors: Vec::new() }
    }

    /// Replaces the vectors by `count` answers. The second header of one answer and the first of
    /// the next share a vector.
    fn build(&mut self, count: usize) {
        self.vectors.clear();
        let headers = self.headers.as_mut_ptr().cast::<libc::c_void>();
        if self.shape.answer_data == 0 {
            let one = libc::iovec { iov_base: headers, iov_len: HEADER_BYTES };
            self.vectors.extend(std::iter::repeat_n(one, count));
            return;
        }
        self.vectors.push(libc::iovec { iov_base: headers, iov_len: HEADER_BYTES });
        for index in 0..count {
            let data = self.block().as_ptr().cast_mut().cast();
            self.vectors.push(libc::iovec { iov_base: data, iov_len: self.shape.answer_data });
            let last = index + 1 == count;
            let iov_len = if last { HEADER_BYTES } else { 2 * HEADER_BYTES };
            self.vectors.push(libc::iovec { iov_base: headers, iov_len });
        }
    }

    fn block(&mut self) -> &[u8] {
        let len = self.shape.answer_data;
        let blocks = (self.region.len() / len) as u64;
        let block = match self.shape.source {
            Source::Hot => 0,
            Source::Random => self.random.below(blocks),
            Source::Sequential => {
                self.next = (self.next + 1) % blocks;
                self.next
            }
        };
        self.region.slice(block as usize * len, len)
    }
}

/// Runs bare exchanges.
pub struct Exchange {
    region: Arc<Region>,
    server_core: usize,
}

impl Exchange {
    /// Prepares `bytes` of memory to answer from. The servers will run on `server_core`.
    pub fn new(bytes: usize, server_core: usize) -> io::Result<Exchange> {
        Ok(Exchange { region: Arc::new(Region::new(bytes)?), server_core })
    }

    /// One window of `shape` at `depth` on a new connection.
    pub fn window(
        &self,
        shape: Shape,
        waiting: Waiting,
        depth: u16,
        timing: Timing,
    ) -> anyhow::Result<Window> {
        let (socket, server) = self.connect(shape, waiting)?;
        let mut batch =
            Batch::new(usize::from(depth) * COMMAND_BYTES, vec![0xa5; shape.request_data]);
        let mut bare = Bare::new(shape, depth);
        let mut observe = || server.clock.usage();
        let window = pipeline::drive(&socket, &mut bare, &mut batch, depth, timing, &mut observe)
            .with_context(|| format!("the bare exchange ({}) failed", waiting.name()))?;
        drop(socket);
        server.thread.join().expect("the bare server does not panic")?;
        Ok(window)
    }

    /// A connection to a bare server of its own, which ends with the connection.
    pub fn connect(
        &self,
        shape: Shape,
        waiting: Waiting,
    ) -> anyhow::Result<(TcpStream, BareServer)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        let (accepted, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        accepted.set_nodelay(true)?;
        let (core, region) = (self.server_core, Arc::clone(&self.region));
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("bare server".into()).spawn(move || {
            cores::pin(core)?;
            cores::prefer();
            // SAFETY: gettid has no preconditions.
            tell.send(unsafe { libc::gettid() }).expect("the starter waits for this");
            let answers = Answers::new(shape, region);
            match waiting {
                Waiting::BusyPolled => {
                    direct::serve(accepted.as_raw_fd(), answers, libc::MSG_DONTWAIT)
                }
                Waiting::Blocking => direct::serve(accepted.as_raw_fd(), answers, 0),
                Waiting::Reactor => on_reactor::serve(accepted, answers),
            }
        })?;
        let clock = ThreadClock(told.recv().context("the bare server did not start")?);
        Ok((socket, BareServer { thread, clock }))
    }
}

/// A running bare server.
pub struct BareServer {
    /// Ends when the connection is closed.
    pub thread: JoinHandle<io::Result<()>>,
    clock: ThreadClock,
}

/// CPU time of another thread of this process.
#[derive(Clone, Copy)]
struct ThreadClock(libc::pid_t);

impl ThreadClock {
    fn usage(self) -> io::Result<Usage> {
        usage::of_own_thread(self.0)
    }
}
