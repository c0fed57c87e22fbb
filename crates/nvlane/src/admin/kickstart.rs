//! `nvlane kickstart`: a centralized discovery controller is asked to fetch a discovery log (NVMe Base 2.1, section 8.3.2.2.2.1).
//!
//! ```text
//!   count the log's entries (host::client) --> connect to the CDC --> nvme_tcp::kickstart
//! ```
//!
//! One exchange of a few hundred bytes over a socket that blocks, with one limit of time for all of it.

use super::connect::DISCOVERY_PORT;
use super::{discover, json};
use crate::cli::{KickstartArgs, ListFormat};
use crate::stdout;
use anyhow::{Context, Result, anyhow, bail, ensure};
use host::Address;
use host::client::{Client, Options, Peer};
use nvme::fabrics::DISCOVERY_NQN;
use nvme::log::discovery::{AddressFamily, Entry, TransportType};
use nvme_tcp::kickstart::{Connection, Event, RECORDS_MAX};
use nvme_tcp::pdu::KickstartRecord;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// `nvlane kickstart`.
pub fn kickstart(args: &KickstartArgs) -> Result<()> {
    let timeout = Duration::from_millis(args.timeout);
    let cdc = first(&args.cdc, DISCOVERY_PORT)?;
    let listeners = if args.listener.is_empty() {
        vec![SocketAddr::new(local_address(cdc)?, host::PORT)]
    } else {
        let listeners = args.listener.iter().map(|listener| first(listener, host::PORT));
        listeners.collect::<Result<_>>()?
    };
    ensure!(listeners.len() <= RECORDS_MAX, "at most {RECORDS_MAX} listeners can be told");
    if let Some(listener) = listeners.iter().find(|listener| listener.ip().is_unspecified()) {
        bail!("{listener} is no address that another machine can reach");
    }
    let entries = match args.entries {
        Some(entries) => entries,
        None => count(&listeners, timeout)?,
    };
    let records: Vec<KickstartRecord> = listeners.iter().map(record).collect();
    let cdc_nqn = register(cdc, &records, entries, timeout).with_context(|| cdc.to_string())?;
    let out = match args.output_format {
        ListFormat::Normal => {
            let listeners: Vec<String> = listeners.iter().map(ToString::to_string).collect();
            let words = if entries == 1 { "entry" } else { "entries" };
            format!("{cdc} ({cdc_nqn}) fetches {entries} {words} from {}\n", listeners.join(", "))
                .into_bytes()
        }
        ListFormat::Json => json::write(json_of(cdc, &cdc_nqn, &listeners, entries)),
    };
    stdout::write(out)
}

fn json_of(
    cdc: SocketAddr,
    cdc_nqn: &str,
    listeners: &[SocketAddr],
    entries: u16,
) -> Map<String, Value> {
    let listeners = listeners.iter().map(|listener| {
        let record = record(listener);
        json!({
            "trtype": discover::transport(record.trtype), "adrfam": discover::family(record.adrfam),
            "traddr": listener.ip().to_string(), "trsvcid": listener.port().to_string(),
        })
    });
    let listeners: Vec<Value> = listeners.collect();
    Map::from_iter([
        ("cdc".to_owned(), cdc.to_string().into()),
        ("cdc_nqn".to_owned(), cdc_nqn.into()),
        ("listeners".to_owned(), listeners.into()),
        ("entries".to_owned(), entries.into()),
    ])
}

fn first(text: &str, port: u16) -> Result<SocketAddr> {
    let address = Address::parse(text, port).with_context(|| format!("{text:?}"))?;
    let found = address.resolve().with_context(|| format!("host name {:?}", address.host))?;
    // A name may have addresses of a kind that no way leads to from here.
    let is_routed = |address: &&SocketAddr| local_address(**address).is_ok();
    let first = found.iter().find(is_routed).or(found.first()).copied();
    first.with_context(|| format!("host name {:?}: it has no address", address.host))
}

/// The address of this machine from which `peer` is reached. Sends nothing.
fn local_address(peer: SocketAddr) -> Result<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let local = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(peer)?;
        Ok::<_, io::Error>(socket.local_addr()?.ip())
    };
    local().with_context(|| format!("{peer}: which address of this machine reaches it"))
}

/// Entries of the discovery logs at those addresses, each counted once: NUMDIE.
fn count(listeners: &[SocketAddr], timeout: Duration) -> Result<u16> {
    let options =
        Options { command_timeout: timeout, connect_timeout: timeout, ..Options::default() };
    let host = host::identity(None, None);
    let key =
        |entry: &Entry| (entry.trtype, entry.adrfam, entry.traddr, entry.trsvcid, entry.subnqn);
    let mut entries = BTreeSet::new();
    for listener in listeners {
        let peer = Peer { address: *listener, subsystem: DISCOVERY_NQN.to_owned() };
        let log = Client::connect(&peer, &host, &options)
            .and_then(|mut client| client.discovery_log())
            .map_err(|error| anyhow!("{error} (--entries N: not to be asked)"))?;
        entries.extend(log.entries.iter().map(key));
    }
    u16::try_from(entries.len()).context("more entries than can be told")
}

fn record(listener: &SocketAddr) -> KickstartRecord {
    let adrfam = match listener {
        SocketAddr::V4(_) => AddressFamily::IPV4,
        SocketAddr::V6(_) => AddressFamily::IPV6,
    };
    let (mut trsvcid, mut traddr) = ([0; 32], [0; 256]);
    for (field, text) in [
        (&mut trsvcid[..], listener.port().to_string()),
        (&mut traddr[..], listener.ip().to_string()),
    ] {
        field[..text.len()].copy_from_slice(text.as_bytes());
    }
    KickstartRecord { trtype: TransportType::TCP.0, adrfam: adrfam.0, trsvcid, traddr }
}

/// The whole exchange; gives the CDC's NQN.
fn register(
    cdc: SocketAddr,
    records: &[KickstartRecord],
    entries: u16,
    timeout: Duration,
) -> Result<String> {
    let deadline = Instant::now() + timeout;
    let mut socket = TcpStream::connect_timeout(&cdc, timeout)?;
    socket.set_write_timeout(Some(timeout))?;
    let mut connection = Connection::new();
    socket.write_all(&connection.initialize())?;
    let mut received = Vec::new();
    loop {
        let mut input = &received[..];
        let event = connection.receive(&mut input);
        let left = input.len();
        received.drain(..received.len() - left);
        match event {
            Ok(None) => receive(&mut socket, &mut received, deadline)?,
            Ok(Some(Event::Initialized)) => {
                socket.write_all(&connection.request(records, entries))?;
            }
            Ok(Some(Event::Accepted { cdc_nqn })) => return Ok(cdc_nqn),
            Ok(Some(Event::Refused(reason))) => bail!("it registers nothing: {reason}"),
            Ok(Some(Event::Terminated { fes, fei })) => bail!(
                "it ended the connection: {fes} (FEI {fei:#x}); only a centralized discovery controller takes kickstart requests"
            ),
            Err(terminate) => {
                // Whether that arrives changes nothing.
                let _ = socket.write_all(&terminate.pdu());
                bail!("it broke the protocol: {terminate}");
            }
        }
    }
}

fn receive(socket: &mut TcpStream, received: &mut Vec<u8>, deadline: Instant) -> Result<()> {
    let mut bytes = [0; 512];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "it does not answer");
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut bytes) {
            Ok(0) => bail!("it closed the connection without an answer"),
            Ok(len) => {
                received.extend_from_slice(&bytes[..len]);
                return Ok(());
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
