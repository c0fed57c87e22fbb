//! Where a remote namespace is, and how to treat it.

use crate::Local;
use crate::keys::KeyFiles;
use association::Config;
use nvme::limits::Passthrough;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

/// The port of NVMe/TCP I/O controllers (NVMe/TCP Transport 1.1, section 3.1).
pub const PORT: u16 = 4420;

/// The port of NVMe/TCP discovery controllers (NVMe/TCP Transport 1.1, section 3.1).
pub const DISCOVERY_PORT: u16 = 8009;

/// A host, by name or number, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Name, IPv4 or IPv6 address, the latter without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// `host:port`, `host`, `[::1]:port`, `[::1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("give an address like 192.0.2.1:4420, [2001:db8::1]:4420 or name:4420")]
pub struct BadAddress;

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        Address::parse(text, PORT)
    }
}

impl Address {
    /// The same with another port where none is said.
    pub fn parse(text: &str, default: u16) -> Result<Address, BadAddress> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or(BadAddress)?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| BadAddress)?;
                let port = match after {
                    "" => None,
                    _ => Some(after.strip_prefix(':').ok_or(BadAddress)?),
                };
                (host, port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port {
            Some(port) => port.parse().ok().filter(|&port| port != 0).ok_or(BadAddress)?,
            None => default,
        };
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_v6 = text.starts_with('[');
        if host.is_empty() || !is_v6 && !host.chars().all(named) {
            return Err(BadAddress);
        }
        Ok(Address { host: host.to_ascii_lowercase(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Address {
    /// The address, if it is one and not a name.
    pub(crate) fn number(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.host.parse().ok()?, self.port))
    }

    /// Looks the name up. Blocks.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        Ok((self.host.as_str(), self.port).to_socket_addrs()?.collect())
    }
}

/// When a write that a lost connection leaves unanswered may be sent on another path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failover {
    /// Once the old connection is surely dead, so that the write cannot be carried out after a
    /// later one to the same blocks.
    #[default]
    Safe,
    /// At once, as Linux does.
    Fast,
}

/// How to reach a namespace and how to treat it; the same for all its paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Subsystem, host, namespace and times.
    pub association: Config,
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// How long an I/O command may take before it is aborted, and the connection given up.
    pub io_timeout: Duration,
    /// When lost writes may go another way.
    pub failover: Failover,
    /// Refuse writes.
    pub read_only: bool,
    /// The volume's UUID instead of the namespace's own.
    pub uuid: Option<[u8; 16]>,
    /// Commands that are passed on although nobody here knows them.
    pub passthrough: Passthrough,
    /// Connect with submission queue flow control, whatever the controller can.
    pub flow_control: bool,
    /// The files of the keys of in-band authentication, which are read for each connection.
    pub keys: KeyFiles,
    /// By which end of this machine: nothing, one for all paths, or one for each address in order.
    pub locals: Vec<Local>,
}

impl Options {
    /// Options with the defaults.
    pub fn new(association: Config) -> Options {
        Options {
            association,
            header_digest: false,
            data_digest: false,
            io_timeout: Duration::from_secs(30),
            failover: Failover::Safe,
            read_only: false,
            uuid: None,
            passthrough: Passthrough::NONE,
            flow_control: false,
            keys: KeyFiles::default(),
            locals: Vec::new(),
        }
    }

    /// This end of the path to address `index`.
    pub fn local(&self, index: usize) -> Local {
        match &self.locals[..] {
            [] => Local::default(),
            [all] => all.clone(),
            each => each.get(index).cloned().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let parsed = |text: &str| text.parse::<Address>().map(|it| it.to_string()).ok();
        assert_eq!(parsed("127.0.0.1:4421").as_deref(), Some("127.0.0.1:4421"));
        assert_eq!(parsed("Storage-1.example").as_deref(), Some("storage-1.example:4420"));
        assert_eq!(parsed("[::1]:5").as_deref(), Some("[::1]:5"));
        assert_eq!(parsed("[2001:db8::1]").as_deref(), Some("[2001:db8::1]:4420"));
        for bad in ["", ":1", "a:", "a:0", "a:70000", "[::1", "[::1]x", "::1", "a b", "[a]:1"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
