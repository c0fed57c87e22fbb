//! Where connections are accepted, and how.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::str::FromStr;
use std::{fmt, io};

/// What stands before an address that accepts encrypted connections.
pub const TLS: &str = "tls://";

/// An address that accepts NVMe/TCP connections: `ADDRESS:PORT`, or `tls://ADDRESS:PORT` for encrypted ones alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Listen {
    /// The address, by which it goes elsewhere.
    pub address: SocketAddr,
    /// Only connections that are encrypted (TLS 1.3) are taken there.
    pub tls: bool,
}

/// A kernel that cannot encrypt what a listener takes.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {listen}: {source}")]
pub struct NoTls {
    listen: Listen,
    source: io::Error,
}

impl Listen {
    /// Whether this machine's kernel can do what is asked for.
    pub fn check_kernel(self) -> Result<(), NoTls> {
        if !self.tls {
            return Ok(());
        }
        tls::check().map_err(|source| NoTls { listen: self, source })
    }
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Listen {
        Listen { address, tls: false }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        let (tls, rest) = split(text);
        let address = rest.parse().map_err(|_| {
            format!(
                "`{text}` is no address: write ADDRESS:PORT, or {TLS}ADDRESS:PORT for encrypted connections"
            )
        })?;
        Ok(Listen { address, tls })
    }
}

/// What is said of an address, and the address.
pub(super) fn split(text: &str) -> (bool, &str) {
    text.strip_prefix(TLS).map_or((false, text), |rest| (true, rest))
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.tls { TLS } else { "" }, self.address)
    }
}

/// As it is written, by which names are derived as well.
impl fmt::Debug for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Listen, String> {
        text.parse()
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> String {
        listen.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_one_word() {
        for (text, tls) in [
            ("127.0.0.1:4420", false),
            ("[::]:4421", false),
            ("tls://192.0.2.1:4421", true),
            ("tls://[::1]:4421", true),
        ] {
            let listen: Listen = text.parse().unwrap();
            assert_eq!(
                (listen.tls, &*listen.to_string(), &*format!("{listen:?}")),
                (tls, text, text)
            );
            let json = serde_json::to_string(&listen).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Listen>(&json).unwrap(), listen);
        }
        for text in [
            "",
            "here",
            "127.0.0.1",
            "tls://",
            "tls:127.0.0.1:1",
            "tcp://127.0.0.1:1",
            "TLS://127.0.0.1:1",
        ] {
            assert!(text.parse::<Listen>().unwrap_err().contains("ADDRESS:PORT"), "{text}");
        }
    }

    #[test]
    fn a_kernel_without_tls_is_named_with_what_needs_it() {
        let address = "127.0.0.1:4420".parse().unwrap();
        Listen::from(address).check_kernel().unwrap();
        let checked = Listen { address, tls: true }.check_kernel();
        assert_eq!(checked.is_ok(), tls::check().is_ok());
        if let Err(error) = checked {
            let said = error.to_string();
            assert!(
                said.contains("tls://127.0.0.1:4420") && said.contains("modprobe tls"),
                "{said}"
            );
        }
    }
}
