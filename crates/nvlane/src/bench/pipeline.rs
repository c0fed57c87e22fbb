//! The measuring client: one connection, a fixed number of requests in flight, busy polling.
//!
//! The same loop drives the bare exchange, our target and the peers, so that none of them gains or
//! loses by its client. Per turn it makes one `recv`, one clock reading and one `writev` for all
//! requests that the turn gave rise to; it allocates nothing and does not touch received payload.
//!
//! ```text
//!        +--> recv --> Protocol::receive --> record latencies --> Protocol::issue --> writev --+
//!        +-------------------------------------------------------------------------------------+
//! ```

use super::usage::{self, Usage};
use hdrhistogram::Histogram;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Bytes taken by one `recv`: small enough to stay in the second-level cache.
const RECEIVE_BYTES: usize = 256 << 10;
/// The most vectors that one `writev` takes (UIO_MAXIOV).
const VECTORS_MAX: usize = 1024;
/// A server that says nothing for this long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Fruitless polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 4096;

/// What a client says and how it understands the answers.
pub trait Protocol {
    /// Adds the request of `slot` to the batch. `false` when there is nothing left to ask for.
    fn issue(&mut self, slot: u16, batch: &mut Batch) -> bool;

    /// Takes received bytes, wherever they were cut, and names the slots that they answer.
    fn receive(&mut self, bytes: &[u8], answered: &mut Vec<u16>) -> io::Result<()>;
}

/// Requests that leave together.
pub struct Batch {
    headers: Box<[u8]>,
    headers_used: usize,
    payload: Box<[u8]>,
    vectors: Vec<libc::iovec>,
    first: usize,
}

impl Batch {
    /// Room for `headers_bytes` of what is appended; every payload is the same `payload`.
    pub fn new(headers_bytes: usize, payload: Vec<u8>) -> Batch {
        Batch {
            headers: vec![0; headers_bytes].into(),
            headers_used: 0,
            payload: payload.into(),
            vectors: Vec::with_capacity(2 * VECTORS_MAX),
            first: 0,
        }
    }

    /// Appends bytes: `write` is given room for `MAX` and says how many it has written.
    ///
    /// # Panics
    /// If more is appended than a full queue needs: our own mistake.
    #[inline]
    pub fn append<const MAX: usize>(&mut self, write: impl FnOnce(&mut [u8; MAX]) -> usize) {
        let room = &mut self.headers[self.headers_used..];
        let room = room.first_chunk_mut::<MAX>().expect("a batch has room for a full queue");
        let len = write(room);
        let base = room.as_mut_ptr();
        self.headers_used += len;
        match self.vectors.last_mut() {
            Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == base.cast() => {
                last.iov_len += len;
            }
            _ => self.vectors.push(libc::iovec { iov_base: base.cast(), iov_len: len }),
        }
    }

    /// Appends the payload, without copying it.
    #[inline]
    pub fn payload(&mut self) {
        let base = self.payload.as_mut_ptr().cast();
        self.vectors.push(libc::iovec { iov_base: base, iov_len: self.payload.len() });
    }

    fn is_empty(&self) -> bool {
        self.vectors.is_empty()
    }

    /// Writes as much as the socket takes. Returns whether everything has left.
    fn flush(&mut self, fd: i32) -> io::Result<bool> {
        let vectors = &self.vectors[self.first..];
        let count = vectors.len().min(VECTORS_MAX);
        // SAFETY: the vectors name `headers` and `payload`, which this batch owns and leaves alone
        // until they were written.
        let sent = unsafe { send_vectors(fd, vectors.as_ptr(), count, libc::MSG_DONTWAIT) };
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        self.first += advance(&mut self.vectors[self.first..], sent);
        if self.first < self.vectors.len() {
            return Ok(false);
        }
        self.vectors.clear();
        self.first = 0;
        self.headers_used = 0;
        Ok(true)
    }
}

/// Moves past `sent` bytes. Returns how many vectors were sent completely.
pub fn advance(vectors: &mut [libc::iovec], mut sent: usize) -> usize {
    for (index, vector) in vectors.iter_mut().enumerate() {
        if sent < vector.iov_len {
            vector.iov_base = vector.iov_base.wrapping_byte_add(sent);
            vector.iov_len -= sent;
            return index;
        }
        sent -= vector.iov_len;
    }
    vectors.len()
}

/// One `sendmsg` of `count` vectors.
///
/// # Safety
/// The vectors and the memory they name must be readable until the call returns.
pub unsafe fn send_vectors(
    fd: i32,
    vectors: *const libc::iovec,
    count: usize,
    flags: i32,
) -> io::Result<usize> {
    // SAFETY: msghdr is plain data, zero meaning absent.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.cast_mut();
    message.msg_iovlen = count as _;
    // SAFETY: the caller vouches for the vectors; sendmsg only reads them.
    let sent = unsafe { libc::sendmsg(fd, &raw const message, flags | libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// How long to run.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Runs first, and is not counted.
    pub warm: Duration,
    /// The measured part.
    pub measure: Duration,
}

/// What one window showed.
pub struct Window {
    /// Requests answered in the measured part.
    pub ios: u64,
    /// Length of the measured part.
    pub seconds: f64,
    /// Nanoseconds from issue to answer.
    pub latency: Histogram<u32>,
    /// What the client used in the measured part.
    pub client: Usage,
    /// What the observed server used in the measured part.
    pub server: Usage,
}

impl Window {
    /// Requests per second.
    pub fn iops(&self) -> f64 {
        self.ios as f64 / self.seconds
    }

    /// The share of the time in which one of both sides waited for its core, because something
    /// else ran there.
    pub fn disturbed(&self) -> f64 {
        (self.client.waited + self.server.waited).as_secs_f64() / self.seconds
    }
}

/// An empty histogram: nanoseconds up to ten seconds, within 1 %.
pub fn histogram() -> Histogram<u32> {
    Histogram::new_with_bounds(1, 10_000_000_000, 2).expect("the bounds are in order")
}

/// Runs one window on a connected socket. `depth` requests are kept in flight until the time is over
/// or `protocol` has nothing left to ask for; what is in flight then is waited for.
///
/// `server` tells what the other side has used; it is asked at both ends of the measured part.
pub fn drive<P: Protocol>(
    socket: &TcpStream,
    protocol: &mut P,
    batch: &mut Batch,
    depth: u16,
    timing: Timing,
    server: &mut dyn FnMut() -> io::Result<Usage>,
) -> io::Result<Window> {
    let mut run = Run::new(socket.as_raw_fd(), depth);
    let start = Instant::now();
    run.ready.extend(0..depth);
    run.issue(protocol, batch, start);
    run.turn_until(protocol, batch, start + timing.warm)?;

    let (client_before, server_before) = (usage::of_this_thread()?, server()?);
    run.latency.reset();
    (run.answers, run.system_calls) = (0, 0);
    let start = Instant::now();
    let end = run.turn_until(protocol, batch, start + timing.measure)?;
    let mut client = usage::of_this_thread()?.since(client_before);
    client.system_calls = run.system_calls;
    let server = server()?.since(server_before);
    let ios = run.answers;

    run.issuing = false;
    let latency = std::mem::replace(&mut run.latency, histogram());
    run.turn_until(protocol, batch, Instant::now() + SILENCE_MAX)?;
    Ok(Window { ios, seconds: (end - start).as_secs_f64(), latency, client, server })
}

/// One request alone: the time from sending it until its answer is there.
pub fn once<P: Protocol>(
    socket: &TcpStream,
    protocol: &mut P,
    batch: &mut Batch,
) -> io::Result<Duration> {
    let mut run = Run::new(socket.as_raw_fd(), 1);
    run.ready.push(0);
    // Making the request is the client's own time, and longer after a rest.
    run.issue(protocol, batch, Instant::now());
    run.issuing = false;
    let start = Instant::now();
    let end = run.turn_until(protocol, batch, start + SILENCE_MAX)?;
    Ok(end - start)
}

struct Run {
    fd: i32,
    buffer: Box<[u8]>,
    issued_at: Box<[Instant]>,
    answered: Vec<u16>,
    /// Slots whose next request waits until the batch before it has left.
    ready: Vec<u16>,
    in_flight: usize,
    issuing: bool,
    answers: u64,
    system_calls: u64,
    latency: Histogram<u32>,
}

impl Run {
    fn new(fd: i32, depth: u16) -> Run {
        Run {
            fd,
            buffer: vec![0; RECEIVE_BYTES].into(),
            issued_at: vec![Instant::now(); depth.into()].into(),
            answered: Vec::with_capacity(depth.into()),
            ready: Vec::with_capacity(depth.into()),
            in_flight: 0,
            issuing: true,
            answers: 0,
            system_calls: 0,
            latency: histogram(),
        }
    }

    /// Issues a request for every slot that is ready.
    #[inline]
    fn issue<P: Protocol>(&mut self, protocol: &mut P, batch: &mut Batch, now: Instant) {
        for &slot in &self.ready {
            if protocol.issue(slot, batch) {
                self.issued_at[usize::from(slot)] = now;
                self.in_flight += 1;
            }
        }
        self.ready.clear();
    }

    /// Turns until `end`, or until nothing is in flight. Returns the time of the last answers.
    fn turn_until<P: Protocol>(
        &mut self,
        protocol: &mut P,
        batch: &mut Batch,
        end: Instant,
    ) -> io::Result<Instant> {
        let mut heard = Instant::now();
        let mut polls = 0;
        while self.in_flight > 0 {
            if !batch.is_empty() {
                self.system_calls += 1;
                if batch.flush(self.fd)? && self.issuing && !self.ready.is_empty() {
                    self.issue(protocol, batch, Instant::now());
                    continue;
                }
            }
            let len = self.receive()?;
            if len == 0 {
                polls += 1;
                if polls % POLLS_PER_LOOK == 0 && heard.elapsed() > SILENCE_MAX {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the server went silent"));
                }
                std::hint::spin_loop();
                continue;
            }
            heard = Instant::now();
            protocol.receive(&self.buffer[..len], &mut self.answered)?;
            self.account(protocol, batch, heard);
            if heard >= end {
                break;
            }
        }
        Ok(heard)
    }

    #[inline]
    fn account<P: Protocol>(&mut self, protocol: &mut P, batch: &mut Batch, now: Instant) {
        self.answers += self.answered.len() as u64;
        self.in_flight -= self.answered.len();
        for index in 0..self.answered.len() {
            let slot = self.answered[index];
            let taken = now - self.issued_at[usize::from(slot)];
            self.latency.saturating_record(taken.as_nanos() as u64);
        }
        self.ready.append(&mut self.answered);
        if self.issuing && batch.is_empty() {
            self.issue(protocol, batch, now);
        }
    }

    /// One non-blocking receive; 0 when there is nothing.
    #[inline]
    fn receive(&mut self) -> io::Result<usize> {
        self.system_calls += 1;
        // SAFETY: the buffer is ours and as long as we say.
        let len = unsafe {
            libc::recv(
                self.fd,
                self.buffer.as_mut_ptr().cast(),
                self.buffer.len(),
                libc::MSG_DONTWAIT,
            )
        };
        match len {
            0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection",
            )),
            len if len > 0 => Ok(len as usize),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                error => Err(error),
            },
        }
    }
}
