//! Names and addresses as people write them.

use super::listen::{self, Listen};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// The port that IANA gave to NVMe over Fabrics.
pub const LISTEN_PORT: u16 = 4420;

/// The well-known name of discovery subsystems (NVMe Base 2.1, 4.7).
const NQN_DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Length of the serial number field of Identify Controller.
const SERIAL_BYTES_MAX: usize = 20;
/// FFF0h and above are reserved (NVMe Base 2.1, 5.1.13.2.1, CNTLID).
const CONTROLLER_ID_MAX: u16 = 0xffef;

/// A range of controller ids, both ends included, written `MIN-MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ControllerIds {
    /// Lowest id.
    pub min: u16,
    /// Highest id.
    pub max: u16,
}

/// Checks a subsystem's or host's NQN.
pub fn check_nqn(nqn: &str) -> Result<(), String> {
    if nqn == NQN_DISCOVERY {
        return Err("is the name of discovery, which is served beside every subsystem".to_owned());
    }
    if !subsystem::is_valid_nqn(nqn) {
        return Err(format!(
            "`{nqn}` is no NQN: it looks like nqn.2026-11.com.example:disk, without white space, \
             and has at most 223 bytes"
        ));
    }
    Ok(())
}

/// Reads a subsystem's NQN from a command line. What is imported or in a file may be any name that the
/// specification's length allows, since other targets gave such names; a typing mistake may not.
pub fn parse_nqn(text: &str) -> Result<String, String> {
    check_nqn(text)?;
    if !text.starts_with("nqn.") {
        return Err(format!("`{text}` is no NQN: it looks like nqn.2026-11.com.example:disk"));
    }
    Ok(text.to_owned())
}

/// Reads a host from a command line: a name, or `*`.
pub fn parse_host(text: &str) -> Result<String, String> {
    if text == super::ANY_HOST { Ok(text.to_owned()) } else { parse_one_host(text) }
}

/// Reads the name of a host from a command line. By the specification (NVMe Base 2.1, 4.7) it is an NQN, UTF-8 of 223 bytes at
/// most that begins with `nqn.`; but a host has its name already, Linux lets it have any, and so do the target and what is
/// imported: who is let in as `testhost` by a file is to be allowed, disallowed and given a key as that.
pub fn parse_one_host(text: &str) -> Result<String, String> {
    if text == super::ANY_HOST {
        return Err("`*` is any host: name one".to_owned());
    }
    check_nqn(text).map(|()| text.to_owned())
}

/// Checks a serial number: 1 to 20 printable ASCII characters without spaces at the ends.
pub(super) fn check_serial(serial: &str) -> Result<(), String> {
    let printable = serial.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if serial.is_empty() || serial.len() > SERIAL_BYTES_MAX || !printable || serial.trim() != serial
    {
        return Err(format!(
            "`{serial}` is not 1 to {SERIAL_BYTES_MAX} printable ASCII characters"
        ));
    }
    Ok(())
}

/// Reads `ADDRESS:PORT`, or an address alone, which gets port 4420; `tls://` may stand before either. A host's name stands
/// for the first of its addresses.
pub fn parse_listen(text: &str) -> Result<Listen, String> {
    let (tls, address) = listen::split(text);
    let address = parse_address(address, LISTEN_PORT)
        .map_err(|problem| format!("{problem}; with tls:// before it for encrypted connections"))?;
    Ok(Listen { address, tls })
}

/// Reads the address of a listener, as [`parse_listen`] does.
pub fn parse_listener(text: &str) -> Result<SocketAddr, String> {
    parse_listen(text).map(|listen| listen.address)
}

/// As [`parse_listener`], with another port for an address alone.
pub fn parse_address(text: &str, port: u16) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let wrong = || {
        format!(
            "`{text}` is no address and no known host: write 127.0.0.1:{port} or [::1]:{port}, or \
             an address alone"
        )
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
        None => (text, port),
    };
    let nameable = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !host.starts_with(|first: char| first.is_ascii_alphabetic()) || !host.bytes().all(nameable) {
        return Err(wrong());
    }
    (host, port).to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(wrong)
}

impl ControllerIds {
    /// Every id there is.
    pub const ALL: ControllerIds = ControllerIds { min: 1, max: CONTROLLER_ID_MAX };
}

impl FromStr for ControllerIds {
    type Err = String;

    fn from_str(text: &str) -> Result<ControllerIds, String> {
        let ids = text.split_once('-').and_then(|(min, max)| {
            Some(ControllerIds { min: min.trim().parse().ok()?, max: max.trim().parse().ok()? })
        });
        match ids {
            Some(ids) if 1 <= ids.min && ids.min <= ids.max && ids.max <= CONTROLLER_ID_MAX => {
                Ok(ids)
            }
            _ => Err(format!(
                "`{text}` is no range of controller ids: write MIN-MAX with 1 <= MIN <= MAX <= {CONTROLLER_ID_MAX}"
            )),
        }
    }
}

impl fmt::Display for ControllerIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.min, self.max)
    }
}

impl TryFrom<String> for ControllerIds {
    type Error = String;

    fn try_from(text: String) -> Result<ControllerIds, String> {
        text.parse()
    }
}

impl From<ControllerIds> for String {
    fn from(ids: ControllerIds) -> String {
        ids.to_string()
    }
}
