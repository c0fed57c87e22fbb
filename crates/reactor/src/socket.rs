//! TCP sockets operated by direct, non-blocking calls.

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Vectors that one call takes (`IOV_MAX`, limits.h).
pub const VECTORS_MAX: usize = 1024;

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
}

/// A connected, non-blocking socket with `TCP_NODELAY`.
#[derive(Debug)]
pub struct Stream {
    socket: TcpStream,
}

impl Listener {
    /// Listens on `address`. An IPv6 address takes IPv6 only, so that `0.0.0.0` and `[::]` may be
    /// listened on together. `SO_REUSEADDR` is set: a restarted server need not wait.
    pub fn bind(address: SocketAddr) -> io::Result<Listener> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        net::bind(&socket, &address)?;
        net::listen(&socket, BACKLOG)?;
        Ok(Listener { socket: TcpListener::from(socket) })
    }

    /// The next connection that waits; `WouldBlock` if none does.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            match net::accept_with(&self.socket, flags) {
                // The peer has gone already: that is no error of ours.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return Err(error.into()),
                Ok(socket) => {
                    let socket = TcpStream::from(socket);
                    let Ok(peer) = socket.peer_addr() else { continue };
                    socket.set_nodelay(true)?;
                    return Ok((Stream { socket }, peer));
                }
            }
        }
    }

    /// Where it listens, with the port that the kernel chose if 0 was asked for.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

impl Stream {
    /// Connects, blocking: not for use on a running reactor.
    pub fn connect(address: SocketAddr) -> io::Result<Stream> {
        Stream::from_socket(TcpStream::connect(address)?)
    }

    fn from_socket(socket: TcpStream) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Stream { socket })
    }

    /// Receives what is there into `bytes`: 0 at the end of the stream, `WouldBlock` if nothing.
    #[inline]
    pub fn recv(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let (count, _) =
            retry_on_intr(|| net::recv(&self.socket, &mut *bytes, RecvFlags::DONTWAIT))?;
        Ok(count)
    }

    /// Receives into several pieces, of which at most the first 1,024 are used.
    #[inline]
    pub fn readv(&self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let count = pieces.len().min(VECTORS_MAX);
        Ok(retry_on_intr(|| rustix::io::readv(&self.socket, &mut pieces[..count]))?)
    }

    /// Sends as much as there is room for, of at most the first 1,024 pieces; `WouldBlock` if
    /// there is none. Raises no `SIGPIPE`: a closed stream is `BrokenPipe`.
    #[inline]
    pub fn writev(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let pieces = &pieces[..pieces.len().min(VECTORS_MAX)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut control = net::SendAncillaryBuffer::default();
        Ok(retry_on_intr(|| net::sendmsg(&self.socket, pieces, &mut control, flags))?)
    }

    /// Turns Nagle's algorithm off (as it is at first) or on.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket.set_nodelay(on)
    }

    /// Asks for a send buffer of `bytes`; the kernel doubles and bounds that.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_send_buffer_size(&self.socket, bytes)?)
    }

    /// Asks for a receive buffer of `bytes`; the kernel doubles and bounds that.
    pub fn set_recv_buffer(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size(&self.socket, bytes)?)
    }

    /// This end's address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The other end's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Ends the stream in both directions: the peer sees it, and a watch of ours completes.
    pub fn shutdown(&self) -> io::Result<()> {
        self.socket.shutdown(std::net::Shutdown::Both)
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl From<Stream> for OwnedFd {
    /// For the way to another core: descriptors may cross threads, watches may not.
    fn from(stream: Stream) -> OwnedFd {
        stream.socket.into()
    }
}

impl TryFrom<OwnedFd> for Stream {
    type Error = io::Error;
    fn try_from(fd: OwnedFd) -> io::Result<Stream> {
        Stream::from_socket(TcpStream::from(fd))
    }
}

impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> OwnedFd {
        listener.socket.into()
    }
}

impl TryFrom<OwnedFd> for Listener {
    type Error = io::Error;
    /// Takes over a socket that listens already, as handed in by systemd.
    fn try_from(fd: OwnedFd) -> io::Result<Listener> {
        let socket = TcpListener::from(fd);
        socket.set_nonblocking(true)?;
        Ok(Listener { socket })
    }
}
