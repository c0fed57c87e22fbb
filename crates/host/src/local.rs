//! By which end of this machine connections are made: Linux's `host_traddr` and `host_iface`.

use crate::dial::words;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// The longest name of a network interface (`IFNAMSIZ` of linux/if.h, less the zero at its end).
const INTERFACE_BYTES_MAX: usize = 15;

/// This end of a connection; the kernel's choice where nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// The address that it comes from.
    pub address: Option<IpAddr>,
    /// The network interface that it goes by, whatever routes say.
    pub interface: Option<String>,
}

/// Whether `name` may be that of a network interface.
pub fn is_interface(name: &str) -> bool {
    let fits = (1..=INTERFACE_BYTES_MAX).contains(&name.len()) && name != "." && name != "..";
    fits && name.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '/' | ':' | ',' | '+'))
}

impl Local {
    /// Leaves of a peer's addresses those that can be reached from here, by their family; all if none can.
    pub fn choose(&self, peers: &mut Vec<SocketAddr>) {
        let fits =
            |peer: &SocketAddr| self.address.is_none_or(|own| own.is_ipv4() == peer.is_ipv4());
        if peers.iter().any(fits) {
            peers.retain(fits);
        }
    }

    /// A socket for a connection to `peer`, which does not block.
    ///
    /// # Errors
    /// The address is none of this machine's or of another family, there is no such interface, or it may not be used.
    pub(crate) fn socket(&self, peer: &SocketAddr) -> io::Result<OwnedFd> {
        let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        if let Some(interface) = &self.interface {
            bind_to(&socket, interface).map_err(|error| {
                io::Error::other(format!("interface {interface}: {}", words(&error)))
            })?;
        }
        if let Some(address) = self.address {
            let told = |what: String| io::Error::other(format!("from {address}: {what}"));
            if address.is_ipv4() != peer.is_ipv4() {
                return Err(told("an address of another family".into()));
            }
            let bound = rustix::net::bind(&socket, &SocketAddr::new(address, 0));
            bound.map_err(|error| told(words(&error.into())))?;
        }
        Ok(socket)
    }

    /// Connects to `peer`; blocks for `timeout` at most.
    pub(crate) fn connect(&self, peer: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        if *self == Local::default() {
            return TcpStream::connect_timeout(peer, timeout);
        }
        let socket = self.socket(peer)?;
        match rustix::net::connect(&socket, peer) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
            match poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&wait)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let stream = TcpStream::from(socket);
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

/// `SO_BINDTODEVICE`, which takes no privilege since Linux 5.7.
fn bind_to(socket: &OwnedFd, interface: &str) -> io::Result<()> {
    // SAFETY: an open socket, and bytes that live during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            interface.as_ptr().cast(),
            interface.len() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_connection_comes_from_where_it_is_told_to() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let peer = listener.local_addr().expect("it listens");
        let timeout = Duration::from_secs(30);
        let from = |address: &str, interface: Option<&str>| Local {
            address: Some(address.parse().expect("an address")),
            interface: interface.map(str::to_owned),
        };
        for (local, seen) in [
            (Local::default(), "127.0.0.1"),
            (from("127.0.0.7", None), "127.0.0.7"),
            (from("127.0.0.8", Some("lo")), "127.0.0.8"),
        ] {
            let stream = local.connect(&peer, timeout).expect("somebody listens");
            let (accepted, other) = listener.accept().expect("a connection");
            assert_eq!(other.ip().to_string(), seen);
            // It blocks, as any other.
            drop(accepted);
            assert_eq!(io::Read::read(&mut &stream, &mut [0]).expect("it ends"), 0);
        }
        let said = |local: Local| local.connect(&peer, timeout).expect_err("not so").to_string();
        assert!(said(from("192.0.2.1", None)).starts_with("from 192.0.2.1: "));
        assert!(said(from("::1", None)).contains("another family"));
        let none = Local { interface: Some("none0".into()), address: None };
        assert!(said(none).starts_with("interface none0: "));
        drop(listener);
        let refused = from("127.0.0.7", None).connect(&peer, timeout).expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn of_a_peers_addresses_those_of_the_own_family_are_tried() {
        let all: Vec<SocketAddr> =
            ["[::1]:1", "127.0.0.1:1"].map(|text| text.parse().expect("an address")).to_vec();
        for (own, left) in
            [(None, &all[..]), (Some("::2"), &all[..1]), (Some("127.0.0.2"), &all[1..])]
        {
            let address = own.map(|own| own.parse().expect("an address"));
            let (local, mut peers) = (Local { address, interface: None }, all.clone());
            local.choose(&mut peers);
            assert_eq!(peers, left);
            // Why it cannot be is told then.
            let mut other = all[..1].to_vec();
            local.choose(&mut other);
            assert_eq!(other, all[..1]);
        }
    }

    #[test]
    fn names_of_interfaces() {
        for name in ["lo", "enp3s0f0", "bond0.100", "a23456789012345"] {
            assert!(is_interface(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "eth0:1", "a b", "a234567890123456", "ä"] {
            assert!(!is_interface(name), "{name}");
        }
    }
}
