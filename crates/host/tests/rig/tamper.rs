//! A controller that breaks the protocol once: the real target behind a relay that edits one PDU.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What to do with a PDU from the target; the bytes that are left in it are sent. `false`: close then.
pub type Edit = Arc<dyn Fn(&mut Vec<u8>) -> bool + Send + Sync>;

/// Which PDUs on one connection.
#[derive(Clone, Copy)]
enum Which {
    None,
    /// The one with this number, from 0: ICResp.
    Number(usize),
    /// From this number on.
    From(usize),
}

/// Relays; edits PDU number `pdu` (from 0, ICResp) that the target sends on connection number
/// `connection` (from 0, the admin queue's).
pub struct Tamper {
    pub address: SocketAddr,
    pub done: Arc<AtomicBool>,
}

impl Tamper {
    pub fn with(target: SocketAddr, connection: usize, pdu: usize, edit: Edit) -> Tamper {
        Tamper::start(target, connection, Which::Number(pdu), edit)
    }

    /// Edits all PDUs from number `first` on.
    pub fn each(target: SocketAddr, connection: usize, first: usize, edit: Edit) -> Tamper {
        Tamper::start(target, connection, Which::From(first), edit)
    }

    fn start(target: SocketAddr, connection: usize, which: Which, edit: Edit) -> Tamper {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("it listens");
        let done = Arc::<AtomicBool>::default();
        let told = Arc::clone(&done);
        std::thread::spawn(move || {
            for (number, host) in listener.incoming().enumerate() {
                let Ok(host) = host else { return };
                let Ok(target) = TcpStream::connect(target) else { continue };
                let (up, down) =
                    (host.try_clone().expect("a fd"), target.try_clone().expect("a fd"));
                std::thread::spawn(move || {
                    let _ = io::copy(&mut &up, &mut &down);
                    let _ = down.shutdown(Shutdown::Write);
                });
                let (edit, told) = (Arc::clone(&edit), Arc::clone(&told));
                let which = if number == connection { which } else { Which::None };
                std::thread::spawn(move || {
                    let _ = relay(&target, &host, which, &edit, &told);
                    let _ = host.shutdown(Shutdown::Both);
                    let _ = target.shutdown(Shutdown::Both);
                });
            }
        });
        Tamper { address, done }
    }
}

fn relay(
    mut target: &TcpStream,
    mut host: &TcpStream,
    which: Which,
    edit: &Edit,
    told: &AtomicBool,
) -> io::Result<()> {
    for number in 0.. {
        let mut pdu = vec![0; 8];
        target.read_exact(&mut pdu)?;
        let plen = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]);
        pdu.resize(plen as usize, 0);
        target.read_exact(&mut pdu[8..])?;
        let mut go_on = true;
        let wanted = match which {
            Which::None => false,
            Which::Number(at) => number == at,
            Which::From(first) => number >= first,
        };
        if wanted {
            told.store(true, Ordering::SeqCst);
            go_on = edit(&mut pdu);
        }
        host.write_all(&pdu)?;
        if !go_on {
            break;
        }
    }
    Ok(())
}
