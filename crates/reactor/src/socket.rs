//! Stream sockets, TCP or Unix, operated by direct, non-blocking calls.

use crate::records::pass_record;
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Vectors that one call takes (`IOV_MAX`, limits.h).
pub const VECTORS_MAX: usize = 1024;

/// Records that are no data, one after another, on a socket that the kernel decrypts: who sends more keeps its core for nothing.
const PASSED_MAX: usize = 16;

#[cold]
fn too_many_records() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "too many TLS records without data")
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
}

/// A connected, non-blocking socket; TCP with `TCP_NODELAY`.
#[derive(Debug)]
pub struct Stream {
    socket: OwnedFd,
    /// A Unix socket: there is nothing to delay, and no address worth telling.
    is_local: bool,
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
        Ok(Listener { socket })
    }

    /// Listens on a Unix socket at `path`, which must not exist and is left there when dropped.
    pub fn bind_local(path: &Path) -> io::Result<Listener> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        net::listen(&socket, BACKLOG)?;
        Ok(Listener { socket })
    }

    /// The next connection that waits, with its TCP address; `WouldBlock` if none does.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            let stream = self.accept_any()?;
            // Who has gone already has no address.
            let Ok(peer) = stream.peer_addr() else { continue };
            return Ok((stream, peer));
        }
    }

    /// The next connection that waits, TCP or Unix; `WouldBlock` if none does.
    pub fn accept_any(&self) -> io::Result<Stream> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            match net::accept_with(&self.socket, flags) {
                // The peer has gone already: that is no error of ours.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return Err(error.into()),
                Ok(socket) => return Stream::from_socket(socket),
            }
        }
    }

    /// Where it listens, with the port that the kernel chose if 0 was asked for; an error if that
    /// is a Unix socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(net::getsockname(&self.socket)?.try_into()?)
    }
}

impl Stream {
    /// Connects, blocking: not for use on a running reactor.
    pub fn connect(address: SocketAddr) -> io::Result<Stream> {
        Stream::from_socket(TcpStream::connect(address)?.into())
    }

    /// Connects to a Unix socket, blocking: not for use on a running reactor.
    pub fn connect_local(path: &Path) -> io::Result<Stream> {
        Stream::from_socket(UnixStream::connect(path)?.into())
    }

    fn from_socket(socket: OwnedFd) -> io::Result<Stream> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let is_local = sockopt::socket_domain(&socket)? == AddressFamily::UNIX;
        let stream = Stream { socket, is_local };
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Receives what is there into `bytes`: 0 at the end of the stream, `WouldBlock` if nothing.
    #[inline]
    pub fn recv(&self, bytes: &mut [u8]) -> io::Result<usize> {
        for _ in 0..=PASSED_MAX {
            match retry_on_intr(|| net::recv(&self.socket, &mut *bytes, RecvFlags::DONTWAIT)) {
                Ok((count, _)) => return Ok(count),
                Err(Errno::IO) if pass_record(&self.socket)? => {}
                Err(Errno::IO) => return Ok(0),
                Err(error) => return Err(error.into()),
            }
        }
        Err(too_many_records())
    }

    /// Receives into several pieces, of which at most the first 1,024 are used.
    #[inline]
    pub fn readv(&self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let count = pieces.len().min(VECTORS_MAX);
        for _ in 0..=PASSED_MAX {
            match retry_on_intr(|| rustix::io::readv(&self.socket, &mut pieces[..count])) {
                Ok(count) => return Ok(count),
                Err(Errno::IO) if pass_record(&self.socket)? => {}
                Err(Errno::IO) => return Ok(0),
                Err(error) => return Err(error.into()),
            }
        }
        Err(too_many_records())
    }

    /// Sends as much as there is room for, of at most the first 1,024 pieces; `WouldBlock` if
    /// there is none. Raises no `SIGPIPE`: a closed stream is `BrokenPipe`.
    #[inline]
    pub fn writev(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(pieces, SendFlags::empty())
    }

    /// The same for pieces that more follows at once, by whatever way: no packet need be sent for them.
    #[inline]
    pub fn writev_more(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(pieces, SendFlags::MORE)
    }

    #[inline]
    fn send(&self, pieces: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        let pieces = &pieces[..pieces.len().min(VECTORS_MAX)];
        let flags = flags | SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut control = net::SendAncillaryBuffer::default();
        Ok(retry_on_intr(|| net::sendmsg(&self.socket, pieces, &mut control, flags))?)
    }

    /// Turns Nagle's algorithm off (as it is at first) or on; no effect on a Unix socket.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        if self.is_local {
            return Ok(());
        }
        Ok(sockopt::set_tcp_nodelay(&self.socket, on)?)
    }

    /// Asks for a send buffer of `bytes`; the kernel doubles and bounds that.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_send_buffer_size(&self.socket, bytes)?)
    }

    /// Asks for a receive buffer of `bytes`; the kernel doubles and bounds that.
    pub fn set_recv_buffer(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size(&self.socket, bytes)?)
    }

    /// This end's address; an error on a Unix socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(net::getsockname(&self.socket)?.try_into()?)
    }

    /// The other end's address; an error on a Unix socket.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = net::getpeername(&self.socket)?.ok_or(io::ErrorKind::NotConnected)?;
        Ok(peer.try_into()?)
    }

    /// Ends the stream in both directions: the peer sees it, and a watch of ours completes.
    pub fn shutdown(&self) -> io::Result<()> {
        Ok(net::shutdown(&self.socket, Shutdown::Both)?)
    }
}

impl Stream {
    /// Ends only the direction from here to the peer: what it still sends can be received.
    pub fn end_sending(&self) -> io::Result<()> {
        Ok(net::shutdown(&self.socket, Shutdown::Write)?)
    }

    /// Ends the stream with a reset: what the kernel has queued is forgotten, and never sent again. `false` where the kernel encrypts
    /// the stream, and so does not let go of it (Linux 6.15, and stable kernels of 2025): instead it gives the stream up when it is about to
    /// send again what has not arrived, which is then not sent.
    pub fn abort(&self) -> io::Result<bool> {
        match net::connect_unspec(&self.socket) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP) => {
                sockopt::set_tcp_user_timeout(&self.socket, 1)?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Bytes sent that the peer's kernel has not acknowledged.
    pub fn unacknowledged(&self) -> io::Result<usize> {
        /// Linux's SIOCOUTQ (tcp(7)).
        const OUTPUT_QUEUE: ioctl::Opcode = 0x5411;
        // SAFETY: on a TCP socket the kernel writes one int.
        let bytes = unsafe {
            ioctl::ioctl(&self.socket, ioctl::Getter::<OUTPUT_QUEUE, std::ffi::c_int>::new())?
        };
        Ok(usize::try_from(bytes).unwrap_or(0))
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
        stream.socket
    }
}

impl TryFrom<OwnedFd> for Stream {
    type Error = io::Error;
    fn try_from(fd: OwnedFd) -> io::Result<Stream> {
        Stream::from_socket(fd)
    }
}

impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> OwnedFd {
        listener.socket
    }
}

impl TryFrom<OwnedFd> for Listener {
    type Error = io::Error;
    /// Takes over a socket that listens already, as handed in by systemd.
    fn try_from(fd: OwnedFd) -> io::Result<Listener> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Listener { socket: fd })
    }
}
