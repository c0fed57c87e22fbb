//! Making TCP connections without blocking a reactor.

use crate::options::Address;
use reactor::{Complete, Reactor};
use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes that wait in the kernel for the peer or the network to take what was sent before.
const UNSENT_BYTES: i32 = 256 * 1024;

/// What to connect to.
pub(crate) enum Peer {
    /// A name to be looked up; its addresses are tried in turn.
    Named(Address),
    /// An address that was reached before.
    Known(SocketAddr),
}

/// What came of it; in words for people where nothing did.
pub(crate) type Dialed = Result<TcpStream, String>;

/// What is to be done with the connection.
type Done = Box<dyn FnOnce(Dialed)>;

struct Dial {
    outcome: Arc<Mutex<Option<Dialed>>>,
    done: RefCell<Option<Done>>,
}

/// Connects on a thread that may block, and calls `done` in a turn of `reactor`.
pub(crate) fn dial(
    reactor: &Reactor,
    peer: Peer,
    timeout: Duration,
    done: impl FnOnce(Dialed) + 'static,
) {
    let outcome: Arc<Mutex<Option<Dialed>>> = Arc::default();
    let place = Arc::clone(&outcome);
    let work = Box::new(move || {
        let dialed = connect(&peer, timeout);
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(dialed);
        0
    });
    let done: Done = Box::new(done);
    reactor.blocking(work, Rc::new(Dial { outcome, done: RefCell::new(Some(done)) }), 0);
}

impl Complete for Dial {
    fn complete(&self, _token: u64, result: i32, _flags: u32) {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        let outcome = outcome.unwrap_or_else(|| {
            Err(format!("cannot connect: {}", io::Error::from_raw_os_error(-result)))
        });
        if let Some(done) = self.done.take() {
            done(outcome);
        }
    }
}

fn connect(peer: &Peer, timeout: Duration) -> Dialed {
    let addresses = match peer {
        Peer::Known(address) => vec![*address],
        Peer::Named(address) => address
            .resolve()
            .map_err(|error| format!("the name {} cannot be looked up: {error}", address.host))?,
    };
    let mut refused = String::from("the name has no address");
    for address in &addresses {
        match TcpStream::connect_timeout(address, timeout) {
            Ok(stream) => {
                keep_queue_short(&stream);
                return Ok(stream);
            }
            Err(error) => refused = words(&error),
        }
    }
    Err(refused)
}

/// Has the socket report itself full while the kernel holds more than [`UNSENT_BYTES`] that it may
/// not send yet: what is more urgent is sent first only as long as it waits here and not there.
fn keep_queue_short(stream: &TcpStream) {
    let bytes: libc::c_int = UNSENT_BYTES;
    // SAFETY: an open socket and an int. Where the kernel refuses, its queue is longer.
    let _ = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
}

/// An error of a socket in words.
pub(crate) fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::TimedOut => "connection timed out".into(),
        io::ErrorKind::HostUnreachable => "no route to host".into(),
        io::ErrorKind::NetworkUnreachable => "network unreachable".into(),
        io::ErrorKind::ConnectionReset => "connection reset by the peer".into(),
        io::ErrorKind::UnexpectedEof => "the peer closed the connection".into(),
        io::ErrorKind::BrokenPipe => "the peer closed the connection".into(),
        _ => error.to_string(),
    }
}
