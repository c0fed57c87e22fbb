//! The bare server's work, by direct system calls: in a loop of its own, or as a poller.

use super::Answers;
use crate::bench::pipeline::{advance, send_vectors};
use std::io;

/// Bytes taken by one `recv`.
const RECEIVE_BYTES: usize = 256 << 10;
/// The most vectors that one `sendmsg` takes (UIO_MAXIOV).
const VECTORS_MAX: usize = 1024;

/// One connection of the bare server.
pub struct Server {
    fd: i32,
    answers: Answers,
    buffer: Box<[u8]>,
    received: usize,
    /// Vectors of `answers` that have left.
    sent: usize,
}

/// What became of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something was received or sent.
    Worked,
    /// Nothing to do; there is nothing to send either.
    Idle,
    /// Answers wait for room in the socket.
    Blocked,
    /// The client has closed the connection.
    Closed,
}

impl Server {
    /// Serves `fd`, which the caller keeps open.
    pub fn new(fd: i32, answers: Answers) -> Server {
        Server { fd, answers, buffer: vec![0; RECEIVE_BYTES].into(), received: 0, sent: 0 }
    }

    /// One receive, and one send of all answers that it gives rise to. `flags` are those of
    /// recv(2): MSG_DONTWAIT so as never to block.
    pub fn step(&mut self, flags: i32) -> io::Result<Step> {
        if self.sent < self.answers.vectors.len() {
            return self.send(flags);
        }
        // SAFETY: the buffer is ours and as long as we say.
        let len = unsafe {
            libc::recv(self.fd, self.buffer.as_mut_ptr().cast(), self.buffer.len(), flags)
        };
        match len {
            0 => return Ok(Step::Closed),
            len if len > 0 => self.received += len as usize,
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => return Ok(Step::Idle),
                error => return Err(error),
            },
        }
        let request = self.answers.shape.request_bytes();
        let count = self.received / request;
        self.received %= request;
        if count == 0 {
            return Ok(Step::Worked);
        }
        self.answers.build(count);
        self.sent = 0;
        self.send(flags)
    }

    fn send(&mut self, flags: i32) -> io::Result<Step> {
        let vectors = &mut self.answers.vectors[self.sent..];
        let count = vectors.len().min(VECTORS_MAX);
        // SAFETY: the vectors name headers and region of `answers`, which lives as long as we do.
        match unsafe { send_vectors(self.fd, vectors.as_ptr(), count, flags) } {
            Ok(sent) => {
                self.sent += advance(vectors, sent);
                Ok(Step::Worked)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Step::Blocked),
            Err(error) => Err(error),
        }
    }
}

/// Serves until the client closes.
pub fn serve(fd: i32, answers: Answers, flags: i32) -> io::Result<()> {
    let mut server = Server::new(fd, answers);
    loop {
        match server.step(flags)? {
            Step::Worked => {}
            Step::Idle | Step::Blocked => std::hint::spin_loop(),
            Step::Closed => return Ok(()),
        }
    }
}
