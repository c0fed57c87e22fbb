//! A controller that breaks the protocol once: the real target behind a relay that edits one PDU.

use super::script::pdu;
use nvme::opcode;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const CAPSULE_CMD: u8 = 0x04;

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
        Tamper::start(target, connection, Which::Number(pdu), edit, Arc::default())
    }

    /// Edits all PDUs from number `first` on.
    pub fn each(target: SocketAddr, connection: usize, first: usize, edit: Edit) -> Tamper {
        Tamper::each_noting_aborts(target, connection, first, edit, Arc::default())
    }

    /// The same; counts the Aborts that the host sends on its first connection.
    pub fn each_noting_aborts(
        target: SocketAddr,
        connection: usize,
        first: usize,
        edit: Edit,
        aborts: Arc<AtomicUsize>,
    ) -> Tamper {
        Tamper::start(target, connection, Which::From(first), edit, aborts)
    }

    fn start(
        target: SocketAddr,
        connection: usize,
        which: Which,
        edit: Edit,
        aborts: Arc<AtomicUsize>,
    ) -> Tamper {
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
                let aborts = (number == 0).then(|| Arc::clone(&aborts));
                std::thread::spawn(move || {
                    let _ = match aborts {
                        Some(aborts) => note_aborts(&up, &down, &aborts),
                        None => io::copy(&mut &up, &mut &down).map(drop),
                    };
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

/// Forwards what the host sends. Each Abort is counted once the target has it.
fn note_aborts(host: &TcpStream, mut target: &TcpStream, aborts: &AtomicUsize) -> io::Result<()> {
    loop {
        let pdu = pdu(host)?;
        target.write_all(&pdu)?;
        if pdu[0] == CAPSULE_CMD && pdu[8] == opcode::admin::ABORT {
            aborts.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn relay(
    target: &TcpStream,
    mut host: &TcpStream,
    which: Which,
    edit: &Edit,
    told: &AtomicBool,
) -> io::Result<()> {
    for number in 0.. {
        let mut pdu = pdu(target)?;
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
