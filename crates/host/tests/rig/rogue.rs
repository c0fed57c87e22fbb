//! A controller that goes wrong again and again: the real target behind a relay that spoils PDUs of its I/O
//! queues, on every connection that the host makes.
//!
//! ```text
//!   host -> target            as it is
//!   target -> Spoil -> host   every Nth PDU after Connect's answer; those of the admin queue pass
//! ```
//!
//! It hangs up only when the target has: what the target says of draining holds for the two of them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What becomes of a PDU, and of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    GoOn,
    /// Says nothing more.
    Stall,
    /// Ends the connection.
    Close,
}

/// Changes a PDU; what is left in it is sent. The number counts what was spoiled before.
pub type Spoil = fn(&mut Vec<u8>, u64) -> Then;

pub struct Rogue {
    pub address: SocketAddr,
    spoiled: Arc<AtomicU64>,
}

/// An I/O queue's first PDUs: ICResp, and the answer to Connect.
const FIRST: u64 = 2;

/// Where Connect has the queue's id: behind the capsule's header, in dword 10.
const QID: usize = 8 + 42;

impl Rogue {
    /// Spoils one PDU of `every`.
    pub fn before(target: SocketAddr, every: u64, spoil: Spoil) -> Rogue {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("it listens");
        let spoiled = Arc::<AtomicU64>::default();
        let count = Arc::clone(&spoiled);
        std::thread::spawn(move || {
            for host in listener.incoming() {
                let Ok(host) = host else { return };
                let Ok(target) = TcpStream::connect(target) else { continue };
                let count = Arc::clone(&count);
                std::thread::spawn(move || {
                    // However it ends, both ends are told when this is dropped.
                    let _ = serve(&host, &target, (every, spoil), &count);
                });
            }
        });
        Rogue { address, spoiled }
    }

    /// PDUs that were spoiled.
    pub fn spoiled(&self) -> u64 {
        self.spoiled.load(Ordering::SeqCst)
    }
}

fn serve(
    mut host: &TcpStream,
    mut target: &TcpStream,
    (every, spoil): (u64, Spoil),
    count: &AtomicU64,
) -> io::Result<()> {
    let (_, start) = pdu(host)?;
    target.write_all(&start)?;
    let (_, answer) = pdu(target)?;
    host.write_all(&answer)?;
    let (_, connect) = pdu(host)?;
    target.write_all(&connect)?;
    let is_io = connect[QID..QID + 2] != [0, 0];
    let (up, down) = (host.try_clone()?, target.try_clone()?);
    let sending = std::thread::spawn(move || {
        let _ = io::copy(&mut &up, &mut &down);
        let _ = down.shutdown(Shutdown::Write);
    });
    let mut then = Then::GoOn;
    for number in FIRST - 1.. {
        let Ok((_, mut pdu)) = pdu(target) else { break };
        if then == Then::Stall {
            continue;
        }
        if is_io && number >= FIRST && number % every == 0 {
            let before = pdu.clone();
            then = spoil(&mut pdu, count.load(Ordering::SeqCst));
            // Not every kind of harm concerns every kind of PDU.
            let harmed = pdu != before || then != Then::GoOn;
            count.fetch_add(harmed.into(), Ordering::SeqCst);
        }
        if host.write_all(&pdu).is_err() || then == Then::Close {
            break;
        }
    }
    // The target has what it was sent, and no more, and says when it is done with that.
    let _ = target.shutdown(Shutdown::Write);
    let _ = io::copy(&mut target, &mut io::sink());
    let _ = host.shutdown(Shutdown::Both);
    let _ = sending.join();
    Ok(())
}

/// The next PDU, with its kind.
fn pdu(mut stream: &TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut pdu = vec![0; 8];
    stream.read_exact(&mut pdu)?;
    let len = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]);
    pdu.resize(len as usize, 0);
    stream.read_exact(&mut pdu[8..])?;
    Ok((pdu[0], pdu))
}
