//! The real target behind a relay that says what Copy there is, and answers every Copy itself, or has the target do it.
//!
//! ```text
//!   host -> Identify              -> target -> edited: ONCS, OCFS, MSSRL, MCL, MSRC -> host
//!   host -> Host Behavior Support -> noted and answered here
//!   host -> Copy (list in the capsule, or asked for by R2T) -> noted, answered or held here
//! ```
//!
//! With `passes` the target is given both, and answers.

use nvme::identify::{self, Cns};
use nvme::{Command, Status, opcode};
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

const CAPSULE_CMD: u8 = 0x04;
const CAPSULE_RESP: u8 = 0x05;
const H2C_DATA: u8 = 0x06;
const C2H_DATA: u8 = 0x07;
const R2T: u8 = 0x09;

/// What the controller is like.
#[derive(Clone, Copy)]
pub struct Copier {
    /// OCFS; 0: no Copy.
    pub formats: u16,
    /// What a host is answered that enables some of them.
    pub behavior: Status,
    /// MSSRL, MCL and MSRC plus one.
    pub limits: (u16, u32, u16),
    /// Lists may go in the capsule.
    pub in_capsule: bool,
    /// It is one of ours.
    pub ours: bool,
    /// CRDT1 to CRDT3.
    pub retry_delays: [u16; 3],
    /// Copies are noted, without the lists that are asked for, and are carried out by the target.
    pub passes: bool,
}

impl Default for Copier {
    fn default() -> Copier {
        let (behavior, limits) = (Status::SUCCESS, (100, 1000, 16));
        let retry_delays = [0; 3];
        let (in_capsule, ours, passes) = (true, true, false);
        Copier { formats: 0b1111, behavior, limits, in_capsule, ours, retry_delays, passes }
    }
}

/// A Copy that has come, with its list.
#[derive(Clone)]
pub struct Seen {
    pub command: Command,
    pub list: Vec<u8>,
}

#[derive(Default)]
struct Noted {
    copies: Vec<Seen>,
    /// CDFE, each time that the host set it.
    enabled: Vec<u16>,
    /// Ends towards the host by which a Copy has come.
    hosts: Vec<Arc<Mutex<TcpStream>>>,
    /// How the next ones are answered, before that.
    first: VecDeque<Status>,
    /// How a Copy is answered; not at all while there is nothing.
    answer: Option<(Status, u64)>,
}

pub struct Script {
    pub address: SocketAddr,
    noted: Arc<Mutex<Noted>>,
}

impl Script {
    pub fn before(target: SocketAddr, copier: Copier) -> Script {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("it listens");
        let noted = Arc::<Mutex<Noted>>::default();
        let script = Script { address, noted: Arc::clone(&noted) };
        std::thread::spawn(move || {
            for host in listener.incoming() {
                let Ok(host) = host else { return };
                let Ok(target) = TcpStream::connect(target) else { continue };
                let connection = Connection {
                    copier,
                    noted: Arc::clone(&noted),
                    to_host: Arc::new(Mutex::new(host.try_clone().expect("a descriptor"))),
                    identifies: Mutex::default(),
                };
                let connection = Arc::new(connection);
                let (down, up) =
                    (Arc::clone(&connection), target.try_clone().expect("a descriptor"));
                std::thread::spawn(move || {
                    let _ = down.hear_target(&target);
                    let _ = down.to_host.lock().expect("no panic").shutdown(Shutdown::Both);
                });
                std::thread::spawn(move || {
                    let _ = connection.hear_host(&host, &up);
                    let _ = up.shutdown(Shutdown::Both);
                });
            }
        });
        script
    }

    /// Answers every Copy from now on, or none.
    pub fn answer(&self, answer: Option<(Status, u64)>) {
        self.noted.lock().expect("no panic").answer = answer;
    }

    /// Answers each of the next so many Copies so.
    pub fn answer_first(&self, count: usize, status: Status) {
        self.noted.lock().expect("no panic").first = [status].repeat(count).into();
    }

    /// All Copies that have come.
    pub fn copies(&self) -> Vec<Seen> {
        self.noted.lock().expect("no panic").copies.clone()
    }

    /// What hosts have enabled.
    pub fn enabled(&self) -> Vec<u16> {
        self.noted.lock().expect("no panic").enabled.clone()
    }

    /// Waits until `count` Copies have come.
    #[track_caller]
    pub fn await_copies(&self, count: usize) {
        let until = Instant::now() + super::PATIENCE;
        while self.copies().len() < count {
            assert!(Instant::now() < until, "no Copy comes");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the connections by which a Copy has come.
    pub fn hang_up(&self) {
        for host in self.noted.lock().expect("no panic").hosts.drain(..) {
            let _ = host.lock().expect("no panic").shutdown(Shutdown::Both);
        }
    }
}

struct Connection {
    copier: Copier,
    noted: Arc<Mutex<Noted>>,
    to_host: Arc<Mutex<TcpStream>>,
    /// Identify commands at work, by identifier.
    identifies: Mutex<HashMap<u16, Cns>>,
}

impl Connection {
    fn hear_host(&self, host: &TcpStream, mut target: &TcpStream) -> io::Result<()> {
        // Copies whose list was asked for.
        let mut asked = HashMap::<u16, Command>::new();
        loop {
            let pdu = pdu(host)?;
            if pdu[0] == H2C_DATA
                && let Some(command) = asked.remove(&u16::from_le_bytes([pdu[8], pdu[9]]))
            {
                self.copy(command, pdu[usize::from(pdu[3])..].to_vec())?;
                continue;
            }
            if pdu[0] != CAPSULE_CMD {
                target.write_all(&pdu)?;
                continue;
            }
            let command = Command::read_from_bytes(&pdu[8..72]).expect("64 bytes");
            let data = pdu[usize::from(pdu[3]).max(72)..].to_vec();
            let (cid, dword10) = (command.cid.get(), command.cdw10.get());
            match command.opcode {
                opcode::io::COPY if self.copier.passes => {
                    self.noted.lock().expect("no panic").copies.push(Seen { command, list: data });
                    target.write_all(&pdu)?;
                }
                opcode::io::COPY if data.is_empty() => {
                    let bytes = command.copy_ranges() * 32;
                    asked.insert(cid, command);
                    self.ask(cid, bytes as u32)?;
                }
                opcode::io::COPY => self.copy(command, data)?,
                opcode::admin::SET_FEATURES
                    if dword10 as u8 == nvme::feature::Fid::HOST_BEHAVIOR.0
                        && !self.copier.passes =>
                {
                    let cdfe = u16::from_le_bytes([data[4], data[5]]);
                    self.noted.lock().expect("no panic").enabled.push(cdfe);
                    let status = if cdfe == 0 { Status::SUCCESS } else { self.copier.behavior };
                    self.respond(cid, status, 0)?;
                }
                code => {
                    if code == opcode::admin::IDENTIFY {
                        let mut identifies = self.identifies.lock().expect("no panic");
                        identifies.insert(cid, Cns(dword10 as u8));
                    }
                    target.write_all(&pdu)?;
                }
            }
        }
    }

    /// A Copy is complete: noted, and answered if it is to be.
    fn copy(&self, command: Command, list: Vec<u8>) -> io::Result<()> {
        let answer = {
            let mut noted = self.noted.lock().expect("no panic");
            noted.copies.push(Seen { command, list });
            noted.hosts.push(Arc::clone(&self.to_host));
            noted.first.pop_front().map_or(noted.answer, |status| Some((status, 0)))
        };
        match answer {
            Some((status, result)) => self.respond(command.cid.get(), status, result),
            None => Ok(()),
        }
    }

    fn respond(&self, cid: u16, status: Status, result: u64) -> io::Result<()> {
        let mut pdu = vec![CAPSULE_RESP, 0, 24, 0, 24, 0, 0, 0];
        pdu.extend(result.to_le_bytes());
        // SQ head pointer (none is kept), queue, identifier, status.
        pdu.extend([0xff, 0xff, 0, 0]);
        pdu.extend(cid.to_le_bytes());
        pdu.extend((status.0 << 1).to_le_bytes());
        self.to_host.lock().expect("no panic").write_all(&pdu)
    }

    fn ask(&self, cid: u16, bytes: u32) -> io::Result<()> {
        let mut pdu = vec![R2T, 0, 24, 0, 24, 0, 0, 0];
        pdu.extend(cid.to_le_bytes());
        pdu.extend([7, 0, 0, 0, 0, 0]);
        pdu.extend(bytes.to_le_bytes());
        pdu.extend([0; 4]);
        self.to_host.lock().expect("no panic").write_all(&pdu)
    }

    fn hear_target(&self, target: &TcpStream) -> io::Result<()> {
        loop {
            let mut pdu = pdu(target)?;
            if pdu[0] == C2H_DATA {
                let cid = u16::from_le_bytes([pdu[8], pdu[9]]);
                let cns = self.identifies.lock().expect("no panic").remove(&cid);
                let data = usize::from(pdu[3]);
                match cns {
                    Some(Cns::CONTROLLER) => self.edit_controller(&mut pdu[data..]),
                    Some(Cns::NAMESPACE) => self.edit_namespace(&mut pdu[data..]),
                    _ => {}
                }
            }
            self.to_host.lock().expect("no panic").write_all(&pdu)?;
        }
    }

    fn edit_controller(&self, data: &mut [u8]) {
        let controller = identify::Controller::mut_from_bytes(data).expect("4096 bytes");
        let oncs = controller.oncs.get() & !identify::oncs::COPY;
        let copy = if self.copier.formats == 0 { 0 } else { identify::oncs::COPY };
        controller.oncs = (oncs | copy).into();
        controller.cdfs = self.copier.formats.into();
        controller.crdt = self.copier.retry_delays.map(Into::into);
        if !self.copier.in_capsule {
            controller.ioccsz = 4.into();
        }
        if !self.copier.ours {
            controller.vs.as_mut_bytes().fill(0);
        }
    }

    fn edit_namespace(&self, data: &mut [u8]) {
        let namespace = identify::Namespace::mut_from_bytes(data).expect("4096 bytes");
        let (mssrl, mcl, ranges) = self.copier.limits;
        (namespace.mssrl, namespace.mcl) = (mssrl.into(), mcl.into());
        namespace.msrc_z = (ranges - 1) as u8;
    }
}

/// The next PDU of a connection without digests.
pub fn pdu(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut pdu = vec![0; 8];
    stream.read_exact(&mut pdu)?;
    let len = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]);
    pdu.resize(len as usize, 0);
    stream.read_exact(&mut pdu[8..])?;
    Ok(pdu)
}
