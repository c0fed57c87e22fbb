//! A blocking client of one controller, for administration: one admin queue, one command at a time,
//! on the calling thread.
//!
//! ```text
//!   Client::connect --> link (TcpStream + nvme_tcp::host::Connection) --> Connect, authenticate, enable, ...
//!     identify, list, namespace --> Identify        log_page, discovery_log, ana_groups --> Get Log Page
//!     property --> Property Get                     feature --> Get Features
//!     execute  --> any admin command                discovery_change --> Asynchronous Event Request, Keep Alive
//! ```
//!
//! What it does not do: I/O queues, reconnecting; keep alive and asynchronous events only while it waits
//! for those. A connection that has failed once fails every command after that; make another one.
//!
//! Whatever the controller sends ends in an error that names it, at the latest after
//! [`Options::command_timeout`] per command; lists and logs are bounded ([`LOG_BYTES_MAX`],
//! [`NAMESPACES_MAX`], [`DISCOVERY_ENTRIES_MAX`], [`LOG_CHANGES_MAX`]).

mod authenticate;
mod error;
mod events;
mod identify;
mod link;
mod log;

pub use error::{ClientError, Reason};
pub use identify::{Descriptor, Identify, NAMESPACES_MAX, lba_format};
pub use log::{AnaGroup, AnaGroups, LOG_BYTES_MAX, LogPage};

use association::SHUTDOWN_TIME;
pub use association::{DISCOVERY_ENTRIES_MAX, DiscoveryFault, DiscoveryLog, LOG_CHANGES_MAX};

use crate::Local;
use crate::keys::KeyFiles;
use link::Link;
use nvme::fabrics::{
    CNTLID_DYNAMIC, Cap, Cc, Connect, ConnectData, ConnectResult, Csts, NQN_BYTES_MAX, Property,
    PropertyAccess,
};
use nvme::feature::{Fid, Select};
use nvme::{Command, Status, opcode};
use nvme_tcp::host::Config;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use std::{fmt, thread};
use zerocopy::IntoBytes;

/// Entries of the admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// How often to look whether the controller is ready.
const READY_INTERVAL: Duration = Duration::from_millis(1);
/// Bytes of data that every NVMe/TCP controller takes in an admin capsule (NVMe/TCP Transport 1.1,
/// section 3.3.2).
const CAPSULE_BYTES_MAX: usize = 8192;

/// Which controller: where it listens, and the subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address and port.
    pub address: SocketAddr,
    /// NQN of the subsystem; of a discovery controller [`nvme::fabrics::DISCOVERY_NQN`].
    pub subsystem: String,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}", self.address)
    }
}

/// Who connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// Host NQN.
    pub nqn: String,
    /// Host identifier.
    pub id: [u8; 16],
}

/// How to connect, and how long to wait.
#[derive(Clone, Debug)]
pub struct Options {
    /// Until the TCP connection is there.
    pub connect_timeout: Duration,
    /// Until a command has completed.
    pub command_timeout: Duration,
    /// After so much silence the controller may forget this client, as one that was killed. Told to it in milliseconds;
    /// while changes are waited for, it hears something twice as often. Zero: it is told of none, and hears nothing.
    pub keep_alive: Duration,
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// This end of the connection.
    pub local: Local,
    /// The files of the keys of in-band authentication.
    pub keys: KeyFiles,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connect_timeout: Duration::from_secs(5),
            command_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(120),
            header_digest: false,
            data_digest: false,
            local: Local::default(),
            keys: KeyFiles::default(),
        }
    }
}

/// Data of a command.
#[derive(Debug)]
pub enum Payload<'a> {
    /// None.
    None,
    /// To the controller.
    Send(&'a [u8]),
    /// From the controller: exactly as many bytes.
    Receive(&'a mut [u8]),
    /// The same, or less: the rest stays as it is.
    ReceiveUpTo(&'a mut [u8]),
}

/// A controller whose admin queue is connected, enabled.
#[derive(Debug)]
pub struct Client {
    peer: Peer,
    link: Link,
    controller_id: u16,
    cap: Cap,
    keep_alive: Duration,
    /// When the controller heard of us last, at least.
    heard: Instant,
    /// It takes commands, and is to be told of the end.
    is_enabled: bool,
    /// It was asked to report changes of the discovery log.
    tells_changes: bool,
}

impl Client {
    /// Connects the admin queue and enables the controller.
    ///
    /// # Errors
    /// Nobody listens there, the controller refuses this host or that subsystem, does not become
    /// ready; or one of the two cannot prove who it is.
    pub fn connect(
        peer: &Peer,
        host: &HostIdentity,
        options: &Options,
    ) -> Result<Client, ClientError> {
        Client::connect_with(peer, host, options, |_| ())
    }

    /// The same for somebody who is to have the connection as soon as there is one.
    pub(crate) fn connect_with(
        peer: &Peer,
        host: &HostIdentity,
        options: &Options,
        opened: impl Fn(&TcpStream),
    ) -> Result<Client, ClientError> {
        let error = |doing: &str, reason| ClientError::new(peer, doing.to_owned(), reason);
        for nqn in [&peer.subsystem, &host.nqn] {
            if nqn.is_empty() || nqn.len() > NQN_BYTES_MAX {
                return Err(error("Connect", Reason::Nqn { nqn: nqn.clone() }));
            }
        }
        let keys = options.keys.read(&host.nqn, &peer.subsystem);
        let keys = keys.map_err(|it| error("authentication", Reason::Key(it)))?;
        let config = Config {
            header_digest: options.header_digest,
            data_digest: options.data_digest,
            queue_entries: ADMIN_ENTRIES,
            ..Config::default()
        };
        let link = Link::open(peer.address, config, options, keys.offers, opened)
            .map_err(|reason| error("connecting", reason))?;
        let mut client = Client {
            peer: peer.clone(),
            link,
            controller_id: CNTLID_DYNAMIC,
            cap: Cap(0),
            keep_alive: options.keep_alive,
            heard: Instant::now(),
            is_enabled: false,
            tells_changes: false,
        };
        let result = client.send_connect(host)?;
        client.controller_id = result.cntlid();
        client.authenticate(keys.credentials.as_ref(), result)?;
        client.cap = Cap(client.property(Property::CAP)?);
        client.enable()?;
        client.is_enabled = true;
        Ok(client)
    }

    /// Which controller it is.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Its id within the subsystem.
    pub fn controller_id(&self) -> u16 {
        self.controller_id
    }

    /// Our end of the connection.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.link.local_address()
    }

    /// Reads a property (NVMe Base 2.1, section 6.4).
    ///
    /// # Errors
    /// The controller has none there, or the connection failed.
    pub fn property(&mut self, property: Property) -> Result<u64, ClientError> {
        let doing = format!("Property Get {:#x}", property.0);
        self.execute(PropertyAccess::read(property), Payload::None, &doing)
    }

    /// Gets a feature (NVMe Base 2.1, section 5.1.11): dword 0 of the completion; `data`, if not
    /// empty, is filled with the feature's data structure.
    ///
    /// # Errors
    /// The controller has no such feature, or the connection failed.
    pub fn feature(
        &mut self,
        fid: Fid,
        select: Select,
        nsid: u32,
        data: &mut [u8],
    ) -> Result<u32, ClientError> {
        let command = Command {
            opcode: opcode::admin::GET_FEATURES,
            nsid: nsid.into(),
            cdw10: (u32::from(fid.0) | u32::from(select.0) << 8).into(),
            ..Command::default()
        };
        let payload = if data.is_empty() { Payload::None } else { Payload::Receive(data) };
        self.execute(command, payload, &format!("Get Features {:#04x}", fid.0))
            .map(|result| result as u32)
    }

    /// Carries out any admin command and gives dwords 0 and 1 of its completion. Command identifier
    /// and data pointer are set here; `doing` names the command in an error.
    ///
    /// # Errors
    /// Any status but success; the connection failed, now or before.
    pub fn execute(
        &mut self,
        command: Command,
        payload: Payload<'_>,
        doing: &str,
    ) -> Result<u64, ClientError> {
        self.link
            .execute(command, payload)
            .map_err(|reason| ClientError::new(&self.peer, doing.to_owned(), reason))
    }

    pub(crate) fn failed(&self, doing: &str, reason: Reason) -> ClientError {
        ClientError::new(&self.peer, doing.to_owned(), reason)
    }

    /// Connect (NVMe Base 2.1, section 6.3), without flow control, as Linux does.
    fn send_connect(&mut self, host: &HostIdentity) -> Result<ConnectResult, ClientError> {
        let mut data = ConnectData {
            hostid: host.id,
            cntlid: CNTLID_DYNAMIC.into(),
            reserved18: [0; 238],
            subnqn: [0; 256],
            hostnqn: [0; 256],
            reserved768: [0; 256],
        };
        data.subnqn[..self.peer.subsystem.len()].copy_from_slice(self.peer.subsystem.as_bytes());
        data.hostnqn[..host.nqn.len()].copy_from_slice(host.nqn.as_bytes());
        let connect = Connect {
            recfmt: 0,
            qid: 0,
            sqsize_z: ADMIN_ENTRIES - 1,
            cattr: Connect::NO_FLOW_CONTROL,
            kato_ms: self.keep_alive.as_millis().try_into().unwrap_or(u32::MAX),
        };
        let doing = format!("Connect to {} as {}", self.peer.subsystem, host.nqn);
        match self.execute(connect.command(), Payload::Send(data.as_bytes()), &doing) {
            Ok(result) => Ok(ConnectResult(result as u32)),
            Err(error) => Err(self.explained(error)),
        }
    }

    /// Says of a refused Connect what is most often wrong: the completion names the parameter
    /// (NVMe Base 2.1, Figure 548: IPO in bits 15:0, IATTR in bit 16).
    fn explained(&self, error: ClientError) -> ClientError {
        const IN_DATA: u64 = 1 << 16;
        let subnqn = IN_DATA | std::mem::offset_of!(ConnectData, subnqn) as u64;
        match error.reason {
            Reason::Status { status, result }
                if status.code() == Status::CONNECT_INVALID_PARAMETERS
                    && result & 0x1_ffff == subnqn =>
            {
                self.failed(&error.doing, Reason::NoSubsystem)
            }
            _ => error,
        }
    }

    /// Tells the controller that this is the end, if it still listens.
    fn shut_down(&mut self) -> Result<(), ClientError> {
        self.link.set_patience(SHUTDOWN_TIME);
        let ends = Cc::EN | Cc::ENTRY_SIZES | Cc::SHN_NORMAL | self.command_sets();
        let set = PropertyAccess::write(Property::CC, ends);
        self.execute(set, Payload::None, "shutting it down").map(drop)
    }

    /// What CC.CSS selects.
    fn command_sets(&self) -> u32 {
        /// CC.CSS: all supported I/O command sets.
        const CSS_ALL: u32 = 6 << 4;
        if self.cap.0 & Cap::CSS_IOCSS != 0 { CSS_ALL } else { 0 }
    }

    /// Sets CC.EN and waits for CSTS.RDY (NVMe Base 2.1, section 3.5.2). All I/O command sets are
    /// selected where there is such a choice, as Linux does.
    fn enable(&mut self) -> Result<(), ClientError> {
        let enabled = Cc::EN | Cc::ENTRY_SIZES | self.command_sets();
        let set = PropertyAccess::write(Property::CC, enabled);
        self.execute(set, Payload::None, "enabling it")?;
        let patience = Duration::from_millis(500) * u32::from(self.cap.timeout().max(1));
        let since = Instant::now();
        loop {
            let status = self.property(Property::CSTS)? as u32;
            if status & Csts::CFS != 0 {
                return Err(self.failed("enabling it", Reason::Fatal));
            }
            if Csts(status).ready() {
                return Ok(());
            }
            if since.elapsed() > patience {
                return Err(self.failed("enabling it", Reason::NotReady { patience }));
            }
            thread::sleep(READY_INTERVAL);
        }
    }
}

impl Drop for Client {
    /// For one second at most; one that was not connected, or has failed, is not told.
    fn drop(&mut self) {
        if self.is_enabled {
            // It is the last that is said.
            let _ = self.shut_down();
        }
    }
}
