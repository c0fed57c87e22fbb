//! A host made of blocking sockets and raw PDUs, so that what it sends can be wrong.
//!
//! ```text
//!   Socket   bytes and PDUs of one connection          initialize, send, pdu, expect_termination
//!   Queue    commands on it, and their completions     issue, complete, command, read, write
//!   Host     who connects, and how                     admin, io
//!   rig      a server in this process, with a witness whose I/O must go on
//! ```
#![allow(dead_code, reason = "each test uses the part it needs")]

pub mod rig;

use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Connect, ConnectData, Csts, Property, PropertyAccess};
use nvme::{Command, Completion, Sgl, Status, opcode};
use nvme_tcp::digest::digest;
use nvme_tcp::pdu::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, H2cData, IcReq, IcResp, Kind, R2t, TermReq,
    flags,
};
use nvme_tcp::{FatalError, Format};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The NQN of the host that every subsystem lets in.
pub const HOST_NQN: &str = "nqn.2026-11.org.example:host";

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One connection.
pub struct Socket {
    pub stream: TcpStream,
    /// How both sides send: this host asks for no alignment.
    pub format: Format,
}

/// Makes the peer's window small, so that the kernel takes little for it.
pub fn narrow(socket: &Socket) {
    let bytes: libc::c_int = 128 << 10;
    // SAFETY: an open socket and an int.
    let done = unsafe {
        libc::setsockopt(
            socket.stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
    assert_eq!(done, 0);
}

/// A PDU as it was received, its digests checked.
pub struct Pdu {
    pub common: CommonHeader,
    pub header: Vec<u8>,
    pub data: Vec<u8>,
}

/// Repeats what a stop of this process has interrupted: with a time-out, the kernel does not (signal(7)).
fn uninterrupted<R>(mut work: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    loop {
        match work() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// An ICReq, edited.
pub fn ic_req(edit: impl FnOnce(&mut IcReq)) -> Vec<u8> {
    let common = CommonHeader { kind: Kind::IC_REQ, flags: 0, hlen: 128, pdo: 0, plen: 128.into() };
    let mut request =
        IcReq { common, pfv: 0.into(), hpda_z: 0, dgst: 0, maxr2t_z: 0.into(), reserved: [0; 112] };
    edit(&mut request);
    request.as_bytes().to_vec()
}

impl Socket {
    /// Connects, and sends nothing.
    pub fn open(address: SocketAddr) -> Socket {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a TCP socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a TCP socket");
        Socket { stream, format: Format::PLAIN }
    }

    /// Connects and initializes with the digests of `dgst`.
    pub fn initialized(address: SocketAddr, dgst: u8) -> Socket {
        let mut socket = Socket::open(address);
        socket.send(&ic_req(|request| request.dgst = dgst));
        let response = socket.pdu().expect("an ICResp");
        assert_eq!(response.common.kind, Kind::IC_RESP);
        let response = IcResp::read_from_bytes(&response.header).expect("128 bytes");
        assert_eq!(response.dgst, dgst, "the controller agrees to the digests");
        socket.format =
            Format { header_digest: dgst & 1 != 0, data_digest: dgst & 2 != 0, alignment_z: 0 };
        socket
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the controller takes bytes");
    }

    /// The PDU made of `header`, whose common header is filled in, and `data`.
    pub fn encode(&self, kind: Kind, more: u8, header: &[u8], data: &[u8]) -> Vec<u8> {
        let frame = self.format.frame(header.len(), data.len());
        let common = self.format.common(kind, header.len(), more, &frame);
        let mut pdu = header.to_vec();
        pdu[..8].copy_from_slice(common.as_bytes());
        if self.format.header_digest {
            let digest = digest(&pdu);
            pdu.extend(digest);
        }
        pdu.resize(frame.data_offset, 0);
        pdu.extend_from_slice(data);
        if frame.digest_bytes != 0 {
            pdu.extend(digest(data));
        }
        pdu
    }

    /// A command capsule.
    pub fn capsule(&self, command: &Command, data: &[u8]) -> Vec<u8> {
        let capsule = CapsuleCmd { common: CommonHeader::default(), command: *command };
        self.encode(Kind::CAPSULE_CMD, 0, capsule.as_bytes(), data)
    }

    /// An H2CData PDU.
    pub fn h2c(&self, cid: u16, tag: u16, offset: u32, data: &[u8], last: bool) -> Vec<u8> {
        let header = H2cData {
            cccid: cid.into(),
            ttag: tag.into(),
            datao: offset.into(),
            datal: (data.len() as u32).into(),
            ..H2cData::default()
        };
        let last = if last { flags::LAST } else { 0 };
        self.encode(Kind::H2C_DATA, last, header.as_bytes(), data)
    }

    /// The next PDU; an error at the connection's end.
    pub fn pdu(&mut self) -> io::Result<Pdu> {
        let mut common = [0; 8];
        self.stream.read_exact(&mut common)?;
        let (common, _) = CommonHeader::read_from_prefix(&common).expect("eight bytes");
        let plen = common.plen.get() as usize;
        assert!((8..=2 << 20).contains(&plen), "a PDU of {plen} bytes");
        let mut rest = vec![0; plen];
        rest[..8].copy_from_slice(common.as_bytes());
        self.stream.read_exact(&mut rest[8..])?;
        let hlen = usize::from(common.hlen);
        let header = rest[..hlen].to_vec();
        if common.flags & flags::HDGST != 0 {
            assert_eq!(rest[hlen..hlen + 4], digest(&header), "header digest");
        }
        let pdo = usize::from(common.pdo);
        let mut data = if pdo == 0 { Vec::new() } else { rest[pdo..].to_vec() };
        if common.kind == Kind::C2H_TERM_REQ {
            data = rest[hlen..].to_vec();
        } else if common.flags & flags::DDGST != 0 {
            let sent = data.split_off(data.len() - 4);
            assert_eq!(sent, digest(&data), "data digest");
        }
        Ok(Pdu { common, header, data })
    }

    /// The connection ends without another PDU.
    pub fn expect_end(&mut self) {
        let mut byte = [0];
        match uninterrupted(|| self.stream.read(&mut byte)) {
            Ok(0) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            other => panic!("the connection should end, not give {other:?} ({byte:?})"),
        }
    }

    /// The controller terminates the connection, and says why.
    pub fn expect_termination(&mut self, what: &str, fes: FatalError, fei: u32, culprit: &[u8]) {
        let pdu = self.pdu().unwrap_or_else(|error| panic!("{what}: {error}, no C2HTermReq"));
        assert_eq!(pdu.common.kind, Kind::C2H_TERM_REQ, "{what}");
        let term = TermReq::read_from_bytes(&pdu.header).expect("24 bytes");
        let got = (FatalError(term.fes.get()), u32::from_le_bytes(term.fei));
        assert_eq!(got, (fes, fei), "{what}");
        assert!(!pdu.data.is_empty() && culprit.starts_with(&pdu.data), "{what}: its header");
        self.expect_end();
    }
}

/// Data of a command that is sent.
#[derive(Clone, Copy)]
pub enum Bytes<'a> {
    /// None.
    None,
    /// With the capsule.
    InCapsule(&'a [u8]),
    /// When the controller asks for it.
    OnRequest(&'a [u8]),
    /// So many bytes are to come.
    Wanted(usize),
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Done {
    pub status: Status,
    pub result: u64,
    pub sqhd: u16,
    pub data: Vec<u8>,
    /// Told by the SUCCESS flag of its data, not by a response.
    pub by_flag: bool,
}

impl Done {
    #[track_caller]
    pub fn ok(self) -> Done {
        assert!(self.status.is_success(), "{}", self.status);
        self
    }

    #[track_caller]
    pub fn refused(&self, status: Status) {
        assert_eq!(self.status, status, "{} instead of {status}", self.status);
    }
}

/// A connected queue.
pub struct Queue {
    pub socket: Socket,
    pub cntlid: u16,
    pub next_cid: u16,
    /// Most data per H2CData PDU.
    pub h2c_max: usize,
    outgoing: HashMap<u16, Vec<u8>>,
    incoming: HashMap<u16, Vec<u8>>,
    done: HashMap<u16, Done>,
}

impl Queue {
    /// A queue on a connection that has not sent Connect.
    pub fn fresh(socket: Socket) -> Queue {
        Queue {
            socket,
            cntlid: 0,
            next_cid: 0,
            h2c_max: 1 << 17,
            outgoing: HashMap::new(),
            incoming: HashMap::new(),
            done: HashMap::new(),
        }
    }

    /// Fills in the identifier and the data pointer of a command.
    pub fn prepare(&mut self, mut command: Command, bytes: Bytes<'_>) -> Command {
        self.next_cid = self.next_cid.wrapping_add(1) & 0x7fff;
        command.cid = self.next_cid.into();
        command.set_sgl(match bytes {
            Bytes::None => Sgl::transport(0),
            Bytes::InCapsule(data) => Sgl::in_capsule(0, data.len() as u32),
            Bytes::OnRequest(data) => Sgl::transport(data.len() as u32),
            Bytes::Wanted(len) => Sgl::transport(len as u32),
        });
        command
    }

    /// Sends a command; gives its identifier.
    pub fn issue(&mut self, command: Command, bytes: Bytes<'_>) -> u16 {
        let command = self.prepare(command, bytes);
        self.send(&command, bytes)
    }

    /// Sends a command as it is.
    pub fn send(&mut self, command: &Command, bytes: Bytes<'_>) -> u16 {
        let cid = command.cid.get();
        let capsule = match bytes {
            Bytes::InCapsule(data) => self.socket.capsule(command, data),
            _ => self.socket.capsule(command, &[]),
        };
        if let Bytes::OnRequest(data) = bytes {
            self.outgoing.insert(cid, data.to_vec());
        }
        self.socket.send(&capsule);
        cid
    }

    /// Waits until the controller says something, and leaves that to be taken: the answer to what it has then.
    #[track_caller]
    pub fn await_word(&self) {
        let count = uninterrupted(|| self.socket.stream.peek(&mut [0]));
        let count = count.expect("the controller says something");
        assert_eq!(count, 1, "the connection has ended");
    }

    /// Waits until the commands that were issued before are with their core, which takes them in order: it has
    /// refused one that nobody knows.
    #[track_caller]
    pub fn settle(&mut self) {
        let unknown = Command { opcode: 0x84, nsid: 1.into(), ..Command::default() };
        self.command(unknown, Bytes::None).refused(Status::INVALID_OPCODE.dnr());
    }

    /// Issues a command without data of the host's, unless the connection has ended.
    pub fn issue_if_open(&mut self, command: Command, bytes: Bytes<'_>) -> Option<u16> {
        let command = self.prepare(command, bytes);
        let capsule = self.socket.capsule(&command, &[]);
        self.socket.stream.write_all(&capsule).ok().map(|()| command.cid.get())
    }

    /// Takes one PDU: answers what asks for data, notes what completes.
    pub fn step(&mut self) -> io::Result<()> {
        let pdu = self.socket.pdu()?;
        match pdu.common.kind {
            Kind::R2T => {
                let request = R2t::read_from_bytes(&pdu.header).expect("24 bytes");
                self.answer(&request);
            }
            Kind::C2H_DATA => {
                let header = C2hData::read_from_bytes(&pdu.header).expect("24 bytes");
                assert_eq!(header.datal.get() as usize, pdu.data.len());
                let cid = header.cccid.get();
                let data = self.incoming.entry(cid).or_default();
                assert_eq!(header.datao.get() as usize, data.len(), "data comes in order");
                data.extend_from_slice(&pdu.data);
                if pdu.common.flags & flags::SUCCESS != 0 {
                    let (status, data) = (Status::SUCCESS, std::mem::take(data));
                    let done = Done { status, result: 0, sqhd: 0, data, by_flag: true };
                    assert!(self.done.insert(cid, done).is_none());
                    self.incoming.remove(&cid);
                }
            }
            Kind::CAPSULE_RESP => {
                let response = CapsuleResp::read_from_bytes(&pdu.header).expect("24 bytes");
                self.completed(&response.completion);
            }
            kind => panic!("a PDU of type {:#04x}: {:x?}", kind.0, pdu.header),
        }
        Ok(())
    }

    fn answer(&mut self, request: &R2t) {
        let (cid, tag) = (request.cccid.get(), request.ttag.get());
        let (start, len) = (request.r2to.get() as usize, request.r2tl.get() as usize);
        let data = self.outgoing.remove(&cid).expect("an R2T for a command with data");
        assert_eq!((start, len), (0, data.len()), "all is asked for at once");
        let mut offset = 0;
        for part in data.chunks(self.h2c_max) {
            let last = offset + part.len() == data.len();
            let pdu = self.socket.h2c(cid, tag, offset as u32, part, last);
            self.socket.send(&pdu);
            offset += part.len();
        }
    }

    fn completed(&mut self, completion: &Completion) {
        let cid = completion.cid.get();
        let done = Done {
            status: completion.status(),
            result: completion.result.get(),
            sqhd: completion.sqhd.get(),
            data: self.incoming.remove(&cid).unwrap_or_default(),
            by_flag: false,
        };
        assert!(self.done.insert(cid, done).is_none(), "command {cid} completed twice");
        self.outgoing.remove(&cid);
    }

    /// Waits for command `cid`.
    #[track_caller]
    pub fn complete(&mut self, cid: u16) -> Done {
        self.try_complete(cid).unwrap_or_else(|error| panic!("command {cid}: {error}"))
    }

    /// Waits for command `cid`, or the connection's end.
    pub fn try_complete(&mut self, cid: u16) -> io::Result<Done> {
        loop {
            if let Some(done) = self.done.remove(&cid) {
                return Ok(done);
            }
            self.step()?;
        }
    }

    /// Carries out a command.
    #[track_caller]
    pub fn command(&mut self, command: Command, bytes: Bytes<'_>) -> Done {
        let cid = self.issue(command, bytes);
        self.complete(cid)
    }

    /// Reads `blocks` blocks, `len` bytes in all.
    #[track_caller]
    pub fn read(&mut self, nsid: u32, slba: u64, blocks: u32, len: usize) -> Vec<u8> {
        let command = Command::blocks(opcode::io::READ, nsid, slba, blocks);
        let data = self.command(command, Bytes::Wanted(len)).ok().data;
        assert_eq!(data.len(), len);
        data
    }

    /// Writes `data` to `blocks` blocks: in the capsule if it fits, else on request.
    #[track_caller]
    pub fn write(&mut self, nsid: u32, slba: u64, blocks: u32, data: &[u8]) {
        let command = Command::blocks(opcode::io::WRITE, nsid, slba, blocks);
        let bytes =
            if data.len() <= 16384 { Bytes::InCapsule(data) } else { Bytes::OnRequest(data) };
        self.command(command, bytes).ok();
    }

    /// Sets a property.
    #[track_caller]
    pub fn set_property(&mut self, property: Property, value: u32) {
        self.command(PropertyAccess::write(property, value), Bytes::None).ok();
    }

    /// Reads a property.
    #[track_caller]
    pub fn property(&mut self, property: Property) -> u64 {
        self.command(PropertyAccess::read(property), Bytes::None).ok().result
    }

    /// Sets CC.EN and sees CSTS.RDY.
    #[track_caller]
    pub fn enable(&mut self) {
        self.set_property(Property::CC, Cc::ENTRY_SIZES | Cc::EN);
        assert!(Csts(self.property(Property::CSTS) as u32).ready());
    }

    /// The connection ends; what was in flight may still complete before.
    pub fn expect_end(&mut self) {
        for _ in 0..10_000 {
            match self.step() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    panic!("the connection should end")
                }
                Err(_) => return,
            }
        }
        panic!("the connection should end, not go on");
    }
}

/// Who connects to what, and how.
#[derive(Clone)]
pub struct Host {
    pub address: SocketAddr,
    pub nqn: String,
    pub host_nqn: String,
    pub host_id: [u8; 16],
    /// Digests, as in ICReq.
    pub dgst: u8,
    pub kato_ms: u32,
    /// CATTR of Connect.
    pub attributes: u8,
    pub entries: u16,
}

impl Host {
    pub fn new(address: SocketAddr, nqn: &str) -> Host {
        Host {
            address,
            nqn: nqn.into(),
            host_nqn: HOST_NQN.into(),
            host_id: [7; 16],
            dgst: 0,
            kato_ms: 0,
            attributes: 0,
            entries: 128,
        }
    }

    /// The data of a Connect command.
    pub fn connect_data(&self, cntlid: u16) -> ConnectData {
        let mut data = ConnectData::new_zeroed();
        data.hostid = self.host_id;
        data.cntlid = cntlid.into();
        data.subnqn[..self.nqn.len()].copy_from_slice(self.nqn.as_bytes());
        data.hostnqn[..self.host_nqn.len()].copy_from_slice(self.host_nqn.as_bytes());
        data
    }

    /// The parameters of a Connect command.
    pub fn connect_parameters(&self, qid: u16) -> Connect {
        Connect {
            recfmt: 0,
            qid,
            sqsize_z: self.entries - 1,
            cattr: self.attributes,
            kato_ms: if qid == 0 { self.kato_ms } else { 0 },
        }
    }

    /// An initialized connection.
    pub fn socket(&self) -> Socket {
        Socket::initialized(self.address, self.dgst)
    }

    /// Sends Connect on a connection of its own; gives the connection and the outcome.
    pub fn connect(&self, qid: u16, cntlid: u16) -> (Queue, Done) {
        let mut queue = Queue::fresh(self.socket());
        let data = self.connect_data(cntlid);
        let command = self.connect_parameters(qid).command();
        let done = queue.command(command, Bytes::InCapsule(data.as_bytes()));
        queue.cntlid = if qid == 0 { done.result as u16 } else { cntlid };
        (queue, done)
    }

    /// A controller's admin queue, not enabled.
    #[track_caller]
    pub fn admin(&self) -> Queue {
        let (queue, done) = self.connect(0, CNTLID_DYNAMIC);
        done.ok();
        queue
    }

    /// The admin queue of an enabled controller.
    #[track_caller]
    pub fn enabled(&self) -> Queue {
        let mut admin = self.admin();
        admin.enable();
        admin
    }

    /// An I/O queue of that controller.
    #[track_caller]
    pub fn io(&self, admin: &Queue, qid: u16) -> Queue {
        let (queue, done) = self.connect(qid, admin.cntlid);
        assert_eq!(done.ok().result as u16, admin.cntlid);
        queue
    }
}
