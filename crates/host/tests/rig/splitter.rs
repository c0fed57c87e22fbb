//! The real target behind a relay that takes large writes itself, a piece at a time.
//!
//! ```text
//!   host -> Write, R2T, H2CData, R2T, H2CData, ... answer -> host     none of it reaches the target
//!   host <-> everything else <-> target
//! ```

use nvme::{Command, opcode};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zerocopy::FromBytes;

const IC_RESP: u8 = 0x01;
const CAPSULE_CMD: u8 = 0x04;
const R2T: u8 = 0x09;

/// No PDU of data is cut for its length.
const MAX_H2C_DATA: u32 = 1 << 20;

/// Little is on its way at once: the host's socket is full with less than a piece.
const SEGMENT_BYTES: libc::c_int = 536;
const RECEIVE_BYTES: libc::c_int = 16 * 1024;

/// When the next piece is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The piece before is here.
    Read,
    /// The header of the piece before is here, and the host has been able to send no more for a while.
    Stuck,
}

pub struct Splitter {
    pub address: SocketAddr,
    noted: Arc<Mutex<Noted>>,
}

#[derive(Default)]
struct Noted {
    connections: usize,
    /// What the last write had.
    written: Vec<u8>,
}

impl Splitter {
    /// Asks for `piece` bytes at a time.
    pub fn before(target: SocketAddr, piece: usize, when: When) -> Splitter {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        set(&listener, libc::IPPROTO_TCP, libc::TCP_MAXSEG, SEGMENT_BYTES);
        set(&listener, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BYTES);
        let address = listener.local_addr().expect("it listens");
        let noted = Arc::<Mutex<Noted>>::default();
        let splitter = Splitter { address, noted: Arc::clone(&noted) };
        std::thread::spawn(move || {
            for host in listener.incoming() {
                let Ok(host) = host else { return };
                let Ok(target) = TcpStream::connect(target) else { continue };
                noted.lock().expect("no panic").connections += 1;
                let (down, up) =
                    (host.try_clone().expect("a fd"), target.try_clone().expect("a fd"));
                std::thread::spawn(move || {
                    let _ = hear_target(&target, &down);
                    let _ = down.shutdown(Shutdown::Both);
                });
                let noted = Arc::clone(&noted);
                std::thread::spawn(move || {
                    let _ = hear_host(&host, &up, (piece, when), &noted);
                    let _ = up.shutdown(Shutdown::Both);
                });
            }
        });
        splitter
    }

    /// Connections that were made.
    pub fn connections(&self) -> usize {
        self.noted.lock().expect("no panic").connections
    }

    /// What the last write had.
    pub fn written(&self) -> Vec<u8> {
        self.noted.lock().expect("no panic").written.clone()
    }
}

fn set(listener: &TcpListener, level: libc::c_int, name: libc::c_int, value: libc::c_int) {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is on the stack, and so long.
    let set = unsafe {
        libc::setsockopt(listener.as_raw_fd(), level, name, (&raw const value).cast(), len)
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

fn hear_target(target: &TcpStream, mut host: &TcpStream) -> io::Result<()> {
    loop {
        let mut pdu = start(target, 8)?;
        rest(target, &mut pdu)?;
        if pdu[0] == IC_RESP {
            pdu[12..16].copy_from_slice(&MAX_H2C_DATA.to_le_bytes());
        }
        host.write_all(&pdu)?;
    }
}

fn hear_host(
    host: &TcpStream,
    mut target: &TcpStream,
    how: (usize, When),
    noted: &Mutex<Noted>,
) -> io::Result<()> {
    loop {
        let mut pdu = start(host, 8)?;
        rest(host, &mut pdu)?;
        if pdu[0] == CAPSULE_CMD && pdu.len() == 72 {
            let command = Command::read_from_bytes(&pdu[8..72]).expect("64 bytes");
            if command.opcode == opcode::io::WRITE {
                let written = take(host, &command, how)?;
                noted.lock().expect("no panic").written = written;
                answer(host, command.cid.get())?;
                continue;
            }
        }
        target.write_all(&pdu)?;
    }
}

/// All of a write's data.
fn take(
    mut host: &TcpStream,
    command: &Command,
    (piece, when): (usize, When),
) -> io::Result<Vec<u8>> {
    let bytes = ((command.cdw12.get() & 0xffff) as usize + 1) * 512;
    let cid = command.cid.get();
    let ask = |at: usize| ask(host, cid, at, piece.min(bytes - at));
    let mut data = vec![0; bytes];
    ask(0)?;
    for at in (0..bytes).step_by(piece) {
        let end = bytes.min(at + piece);
        let header = start(host, 24)?;
        let pdo = usize::from(header[3]);
        assert_eq!(plen(&header), pdo + end - at, "one PDU for all that was asked for");
        let stuck = when == When::Stuck && end < bytes;
        if stuck {
            std::thread::sleep(Duration::from_millis(100));
            ask(end)?;
            std::thread::sleep(Duration::from_millis(100));
        }
        host.read_exact(&mut vec![0; pdo - 24])?;
        host.read_exact(&mut data[at..end])?;
        if !stuck && end < bytes {
            ask(end)?;
        }
    }
    Ok(data)
}

fn ask(mut host: &TcpStream, cid: u16, at: usize, bytes: usize) -> io::Result<()> {
    let mut pdu = vec![R2T, 0, 24, 0, 24, 0, 0, 0];
    pdu.extend(cid.to_le_bytes());
    pdu.extend([7, 0]);
    pdu.extend((at as u32).to_le_bytes());
    pdu.extend((bytes as u32).to_le_bytes());
    pdu.extend([0; 4]);
    host.write_all(&pdu)
}

fn answer(mut host: &TcpStream, cid: u16) -> io::Result<()> {
    let mut pdu = vec![0x05, 0, 24, 0, 24, 0, 0, 0];
    pdu.extend([0; 8]);
    // SQ head pointer (none is kept), queue, identifier, status.
    pdu.extend([0xff, 0xff, 0, 0]);
    pdu.extend(cid.to_le_bytes());
    pdu.extend([0; 2]);
    host.write_all(&pdu)
}

/// The first `bytes` bytes of a PDU.
fn start(mut stream: &TcpStream, bytes: usize) -> io::Result<Vec<u8>> {
    let mut pdu = vec![0; bytes];
    stream.read_exact(&mut pdu)?;
    Ok(pdu)
}

/// And what follows them.
fn rest(mut stream: &TcpStream, pdu: &mut Vec<u8>) -> io::Result<()> {
    let begun = pdu.len();
    pdu.resize(plen(pdu), 0);
    stream.read_exact(&mut pdu[begun..])
}

fn plen(pdu: &[u8]) -> usize {
    u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]) as usize
}
