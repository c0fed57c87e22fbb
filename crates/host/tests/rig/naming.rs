//! A discovery controller whose log is what a test says, on connections that it can end.
//!
//! Far from complete: it answers Connect, properties and Identify as far as our client looks at them.

use super::{NQN, script::pdu};
use nvme::event::AsyncEvent;
use nvme::identify;
use nvme::log::GetLogPage;
use nvme::log::discovery::{AddressFamily, Entry, Header, SubsystemType, TransportType};
use nvme::{Command, Completion, Status, opcode};
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// PDU types (NVMe/TCP Transport 1.1, section 3.6).
const IC_RESP: u8 = 1;
const CAPSULE_RESP: u8 = 5;
const C2H_DATA: u8 = 7;
const LAST: u8 = 1 << 2;

pub struct Naming {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    generation: u64,
    entries: Vec<Entry>,
    /// It tells of changes.
    tells: bool,
    /// It ends each connection at once.
    refuses: bool,
    hosts: Vec<Host>,
    /// How often its log was read from the start, which is twice for each time that it is read whole.
    reads: u64,
}

struct Host {
    socket: Arc<Mutex<TcpStream>>,
    /// The identifier of its Asynchronous Event Request.
    held: Option<u16>,
    /// There is something to report, as soon as there is one.
    owed: bool,
}

impl Host {
    fn report(&mut self) {
        if self.owed
            && let Some(cid) = self.held.take()
        {
            self.owed = false;
            // The host may have gone.
            let _ = respond(&self.socket, cid, AsyncEvent::DISCOVERY_CHANGE.dword0().into());
        }
    }
}

fn entry(subtype: SubsystemType, nqn: &str, address: SocketAddr) -> Entry {
    let mut entry = Entry {
        trtype: TransportType::TCP.0,
        adrfam: AddressFamily::IPV4.0,
        subtype: subtype.0,
        ..Entry::new_zeroed()
    };
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    entry.subnqn[..nqn.len()].copy_from_slice(nqn.as_bytes());
    entry.traddr[..ip.len()].copy_from_slice(ip.as_bytes());
    entry.trsvcid[..port.len()].copy_from_slice(port.as_bytes());
    entry
}

/// An entry for the subsystem of the tests.
pub fn path(address: SocketAddr) -> Entry {
    entry(SubsystemType::NVM, NQN, address)
}

/// An entry for another discovery controller.
pub fn referral(address: SocketAddr) -> Entry {
    entry(SubsystemType::REFERRAL, nvme::fabrics::DISCOVERY_NQN, address)
}

/// An entry for another subsystem.
pub fn other(nqn: &str, address: SocketAddr) -> Entry {
    entry(SubsystemType::NVM, nqn, address)
}

impl Naming {
    pub fn new(entries: Vec<Entry>) -> Naming {
        Naming::telling(entries, true)
    }

    /// One that tells of changes, or does not.
    pub fn telling(entries: Vec<Entry>, tells: bool) -> Naming {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("it listens");
        let state = State { generation: 1, entries, tells, ..State::default() };
        let state = Arc::new(Mutex::new(state));
        let naming = Naming { address, state: Arc::clone(&state) };
        std::thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&state);
                if state.lock().expect("no panic").refuses {
                    continue;
                }
                std::thread::spawn(move || {
                    let to_host = Arc::new(Mutex::new(host.try_clone().expect("a descriptor")));
                    let socket = Arc::clone(&to_host);
                    let one = Host { socket, held: None, owed: false };
                    state.lock().expect("no panic").hosts.push(one);
                    // However it ends.
                    let _ = serve(&host, &to_host, &state);
                    let _ = host.shutdown(Shutdown::Both);
                    let mut state = state.lock().expect("no panic");
                    state.hosts.retain(|it| !Arc::ptr_eq(&it.socket, &to_host));
                });
            }
        });
        naming
    }

    /// Another log, of which hosts are told.
    pub fn name(&self, entries: Vec<Entry>) {
        let mut state = self.state.lock().expect("no panic");
        state.generation += 1;
        state.entries = entries;
        for host in &mut state.hosts {
            host.owed = true;
            host.report();
        }
    }

    /// Ends all connections, and from now on each at once, or none.
    pub fn refuse(&self, refuses: bool) {
        let mut state = self.state.lock().expect("no panic");
        state.refuses = refuses;
        for host in state.hosts.drain(..) {
            let _ = host.socket.lock().expect("no panic").shutdown(Shutdown::Both);
        }
    }

    /// Hosts that are connected.
    pub fn hosts(&self) -> usize {
        self.state.lock().expect("no panic").hosts.len()
    }

    pub fn reads(&self) -> u64 {
        self.state.lock().expect("no panic").reads
    }
}

fn send(host: &Mutex<TcpStream>, kind: u8, flags: u8, hlen: u8, body: &[u8]) -> io::Result<()> {
    let pdo = if kind == C2H_DATA { hlen } else { 0 };
    let mut pdu = vec![kind, flags, hlen, pdo];
    pdu.extend_from_slice(&((8 + body.len()) as u32).to_le_bytes());
    pdu.extend_from_slice(body);
    host.lock().expect("no panic").write_all(&pdu)
}

fn respond(host: &Mutex<TcpStream>, cid: u16, result: u64) -> io::Result<()> {
    send(host, CAPSULE_RESP, 0, 24, Completion::new(cid, Status::SUCCESS, result).as_bytes())
}

fn give(host: &Mutex<TcpStream>, cid: u16, data: &[u8]) -> io::Result<()> {
    let mut body = cid.to_le_bytes().to_vec();
    body.extend_from_slice(&[0; 6]);
    body.extend_from_slice(&(data.len() as u32).to_le_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(data);
    send(host, C2H_DATA, LAST, 24, &body)?;
    respond(host, cid, 0)
}

fn serve(
    host: &TcpStream,
    to_host: &Arc<Mutex<TcpStream>>,
    state: &Mutex<State>,
) -> io::Result<()> {
    pdu(host)?;
    // PFV 0, no digests, MAXH2CDATA 128 KiB.
    let mut response = [0; 120];
    response[4..8].copy_from_slice(&(128u32 << 10).to_le_bytes());
    send(to_host, IC_RESP, 0, 128, &response)?;
    loop {
        let pdu = pdu(host)?;
        let command = Command::read_from_bytes(&pdu[8..72]).expect("64 bytes");
        let cid = command.cid.get();
        match command.opcode {
            opcode::admin::IDENTIFY => {
                let mut data = vec![0; identify::DATA_BYTES];
                if state.lock().expect("no panic").tells {
                    // OAES (NVMe Base 2.1, Figure 312).
                    data[92..96]
                        .copy_from_slice(&nvme::event::notice::DISCOVERY_CHANGE.to_le_bytes());
                }
                give(to_host, cid, &data)?;
            }
            opcode::admin::GET_LOG_PAGE => {
                let wanted = GetLogPage::of(&command);
                let mut state = state.lock().expect("no panic");
                let mut header = Header::new_zeroed();
                header.genctr = state.generation.into();
                header.numrec = (state.entries.len() as u64).into();
                let log = [header.as_bytes(), state.entries.as_bytes()].concat();
                state.reads += u64::from(wanted.offset == 0);
                drop(state);
                let from = (wanted.offset as usize).min(log.len());
                let mut data = log[from..].to_vec();
                data.resize(wanted.bytes as usize, 0);
                give(to_host, cid, &data)?;
            }
            opcode::admin::ASYNC_EVENT_REQUEST => {
                let mut state = state.lock().expect("no panic");
                let own = state.hosts.iter_mut().find(|it| Arc::ptr_eq(&it.socket, to_host));
                let Some(own) = own else { return Ok(()) };
                own.held = Some(cid);
                own.report();
            }
            // Connect gives controller 1; every property is 1, which says ready.
            _ => respond(to_host, cid, 1)?,
        }
    }
}
