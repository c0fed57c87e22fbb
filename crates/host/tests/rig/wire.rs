//! A relay that notes which I/O commands a host sends, and can be cut.

use super::script::pdu;
use nvme::Command;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use zerocopy::FromBytes;

const CAPSULE_CMD: u8 = 0x04;

/// Where Connect has the queue's id: behind the capsule's header, in dword 10.
const QID: usize = 8 + 42;

/// Relays without digests, PDU by PDU.
pub struct Wire {
    pub address: SocketAddr,
    noted: Arc<Mutex<Noted>>,
}

#[derive(Default)]
struct Noted {
    commands: Vec<Command>,
    /// Ends towards the host.
    hosts: Vec<TcpStream>,
}

impl Wire {
    pub fn before(target: SocketAddr) -> Wire {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("it listens");
        let noted = Arc::<Mutex<Noted>>::default();
        let wire = Wire { address, noted: Arc::clone(&noted) };
        std::thread::spawn(move || {
            for host in listener.incoming() {
                let Ok(host) = host else { return };
                let Ok(target) = TcpStream::connect(target) else { continue };
                let (down, up) =
                    (target.try_clone().expect("a fd"), host.try_clone().expect("a fd"));
                noted.lock().expect("no panic").hosts.push(host.try_clone().expect("a fd"));
                std::thread::spawn(move || {
                    let _ = io::copy(&mut &down, &mut &up);
                    let _ = up.shutdown(Shutdown::Both);
                });
                let noted = Arc::clone(&noted);
                std::thread::spawn(move || {
                    let _ = hear_host(&host, &target, &noted);
                    let _ = target.shutdown(Shutdown::Write);
                });
            }
        });
        wire
    }

    /// The I/O commands that hosts have sent, once the target has them.
    pub fn seen(&self) -> Vec<Command> {
        self.noted.lock().expect("no panic").commands.clone()
    }

    /// Ends all connections towards the host, as if the target did. Later ones are relayed again.
    pub fn cut(&self) {
        for host in self.noted.lock().expect("no panic").hosts.drain(..) {
            let _ = host.shutdown(Shutdown::Both);
        }
    }
}

fn hear_host(host: &TcpStream, mut target: &TcpStream, noted: &Mutex<Noted>) -> io::Result<()> {
    // ICReq, then Connect.
    target.write_all(&pdu(host)?)?;
    let connect = pdu(host)?;
    target.write_all(&connect)?;
    let is_io = connect[QID..QID + 2] != [0, 0];
    loop {
        let pdu = pdu(host)?;
        // Whoever has the target's answer finds the command noted.
        let mut noted = noted.lock().expect("no panic");
        target.write_all(&pdu)?;
        if is_io && pdu[0] == CAPSULE_CMD {
            let command = Command::read_from_bytes(&pdu[8..72]).expect("64 bytes");
            noted.commands.push(command);
        }
    }
}
