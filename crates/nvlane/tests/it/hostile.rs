//! Controllers that break the protocol, never end or say nothing: a command that asks one ends with
//! one line that names it, soon, and whatever it has taken.
//!
//! The controllers are scripts over a socket, far from complete: they answer Connect and properties
//! as they should, and each does one thing wrong. Commands run with a limit on what they allocate, so that one
//! which allocates what a controller announces does not end as it should; `bounded` measures what others take.

use crate::daemon::{PATIENCE, nvlane};
use nvme::identify::{self, Cns};
use nvme::log::discovery::{Entry, Header};
use nvme::log::{GetLogPage, Lid};
use nvme::{Command, Completion, Status, opcode};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{self, Stdio};
use std::thread;
use std::time::Instant;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// PDU types and sizes (NVMe/TCP Transport 1.1, section 3.6).
const IC_RESP: u8 = 1;
const C2H_TERM_REQ: u8 = 3;
const CAPSULE_RESP: u8 = 5;
pub const C2H_DATA: u8 = 7;
const LAST: u8 = 1 << 2;

/// Bytes that a command may allocate (RLIMIT_DATA).
const ALLOCATED_MAX: u64 = 64 << 20;

/// One connection of a host, and what a controller can send it.
pub struct Host {
    pub socket: TcpStream,
}

/// What a script makes of a command; `Ok(false)` has it answered as it should be.
pub type Script = fn(&mut Host, &Command) -> io::Result<bool>;

impl Host {
    fn pdu(&mut self, kind: u8, flags: u8, hlen: u8, body: &[u8]) -> io::Result<()> {
        let plen = (8 + body.len()) as u32;
        let pdo = if kind == C2H_DATA { hlen } else { 0 };
        let mut pdu = vec![kind, flags, hlen, pdo];
        pdu.extend_from_slice(&plen.to_le_bytes());
        pdu.extend_from_slice(body);
        self.socket.write_all(&pdu)
    }

    pub fn respond(&mut self, cid: u16, status: Status, result: u64) -> io::Result<()> {
        self.pdu(CAPSULE_RESP, 0, 24, Completion::new(cid, status, result).as_bytes())
    }

    fn send(&mut self, cid: u16, data: &[u8]) -> io::Result<()> {
        let mut body = cid.to_le_bytes().to_vec();
        body.extend_from_slice(&[0; 6]);
        body.extend_from_slice(&(data.len() as u32).to_le_bytes());
        body.extend_from_slice(&[0; 4]);
        body.extend_from_slice(data);
        self.pdu(C2H_DATA, LAST, 24, &body)
    }

    /// Data and success.
    pub fn give(&mut self, command: &Command, data: &[u8]) -> io::Result<bool> {
        self.send(command.cid.get(), data)?;
        self.respond(command.cid.get(), Status::SUCCESS, 0)?;
        Ok(true)
    }

    /// A discovery log that has `numrec` entries, all alike, and a generation.
    pub fn give_log(
        &mut self,
        command: &Command,
        generation: u64,
        numrec: u64,
    ) -> io::Result<bool> {
        let wanted = GetLogPage::of(command);
        let mut header = Header::new_zeroed();
        header.genctr = generation.into();
        header.numrec = numrec.into();
        let mut entry = Entry::new_zeroed();
        (entry.trtype, entry.adrfam, entry.subtype) = (3, 1, 2);
        entry.subnqn[..9].copy_from_slice(b"nqn.\x1b[2J\x07");
        entry.traddr[..9].copy_from_slice(b"192.0.2.1");
        let mut data = vec![0; wanted.bytes as usize];
        if wanted.offset == 0 {
            data[..1024].copy_from_slice(header.as_bytes());
        } else {
            data.chunks_exact_mut(1024).for_each(|place| place.copy_from_slice(entry.as_bytes()));
        }
        self.give(command, &data)
    }

    fn serve(&mut self, script: Script) -> io::Result<()> {
        let mut request = [0; 128];
        self.socket.read_exact(&mut request)?;
        // PFV 0, no digests, MAXH2CDATA 128 KiB.
        let mut response = [0; 120];
        response[4..8].copy_from_slice(&(128u32 << 10).to_le_bytes());
        self.pdu(IC_RESP, 0, 128, &response)?;
        loop {
            let mut capsule = [0; 72];
            self.socket.read_exact(&mut capsule)?;
            let plen = u32::from_le_bytes(capsule[4..8].try_into().unwrap());
            let data = u64::from(plen.saturating_sub(72));
            io::copy(&mut (&self.socket).take(data), &mut io::sink())?;
            let command = Command::read_from_bytes(&capsule[8..]).unwrap();
            if !script(self, &command)? {
                self.answer(&command)?;
            }
        }
    }

    /// Connect gives controller 1; every property is 1, which says ready; all else succeeds.
    fn answer(&mut self, command: &Command) -> io::Result<()> {
        let wanted = match command.opcode {
            opcode::admin::IDENTIFY => identify::DATA_BYTES,
            opcode::admin::GET_LOG_PAGE => GetLogPage::of(command).bytes as usize,
            _ => return self.respond(command.cid.get(), Status::SUCCESS, 1),
        };
        self.give(command, &vec![0; wanted]).map(drop)
    }
}

/// Starts a controller; it serves until the test process ends.
pub fn controller(script: Script) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            // However it ends: the host is the one that is judged.
            let _ = socket.set_nodelay(true);
            thread::spawn(move || Host { socket }.serve(script));
        }
    });
    address
}

/// The binary, with that limit.
fn limited() -> process::Command {
    let mut command = process::Command::new("prlimit");
    command.arg(format!("--data={ALLOCATED_MAX}")).arg(env!("CARGO_BIN_EXE_nvlane"));
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// Runs a command against a script. It must fail soon, with one line that names the controller.
fn refused(script: Script, command: &str) -> String {
    // So long that the time is not over on a busy machine before the script has done what it does.
    refused_within(script, command, "20000")
}

/// The same with milliseconds to wait for an answer.
fn refused_within(script: Script, command: &str, timeout: &str) -> String {
    let address = controller(script);
    let uri = format!("tcp://{address}/nqn.x");
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let args: Vec<&str> = match command {
        "discover" => vec!["discover", "-a", &ip, "-s", &port],
        other => vec![other, &uri],
    };
    let started = Instant::now();
    let output = limited().args(&args).args(["--timeout", timeout]).output().unwrap();
    assert!(started.elapsed() < PATIENCE);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&address.to_string()), "{said}");
    said
}

pub fn is_log(command: &Command) -> bool {
    command.opcode == opcode::admin::GET_LOG_PAGE && GetLogPage::of(command).lid == Lid::DISCOVERY
}

pub fn is_identify(command: &Command, cns: Cns) -> bool {
    command.opcode == opcode::admin::IDENTIFY && command.cdw10.get() as u8 == cns.0
}

/// What a log says of itself depends on when it is asked.
fn generation() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static ASKED: AtomicU64 = AtomicU64::new(0);
    ASKED.fetch_add(1, Ordering::Relaxed)
}

#[test]
fn a_discovery_log_without_end_is_not_read() {
    for numrec in [u64::MAX, 1 << 40, 16_385] {
        static NUMREC: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        NUMREC.store(numrec, std::sync::atomic::Ordering::Relaxed);
        let script: Script = |host, command| {
            let numrec = NUMREC.load(std::sync::atomic::Ordering::Relaxed);
            if is_log(command) { host.give_log(command, 1, numrec) } else { Ok(false) }
        };
        let said = refused(script, "discover");
        assert!(said.contains(&format!("{numrec} entries are more than the 16384")), "{said}");
    }
}

#[test]
fn a_discovery_log_that_never_stands_still_is_given_up() {
    let script: Script = |host, command| {
        if is_log(command) { host.give_log(command, generation(), 5) } else { Ok(false) }
    };
    let said = refused(script, "discover");
    assert!(said.contains("has changed 10 times while it was read"), "{said}");
}

#[test]
fn what_a_log_says_cannot_move_the_cursor() {
    let script: Script =
        |host, command| if is_log(command) { host.give_log(command, 1, 2) } else { Ok(false) };
    let address = controller(script);
    let port = address.port().to_string();
    let output = nvlane().args(["discover", "-a", "127.0.0.1", "-s", &port]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("subnqn:  nqn.?[2J?\n"), "{text}");
    assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
}

#[test]
fn a_controller_that_breaks_the_protocol_is_told_by_name() {
    // It says nothing more.
    let said = refused_within(|_, command| Ok(is_log(command)), "discover", "1000");
    assert!(said.contains("no answer within 1000 ms"), "{said}");
    let cases: [(Script, &str); 7] = [
        // It goes in the middle of a PDU.
        (
            |host, command| {
                if !is_log(command) {
                    return Ok(false);
                }
                host.socket.write_all(&[C2H_DATA, LAST, 24, 24, 0, 4])?;
                Err(io::ErrorKind::Other.into())
            },
            "closed the connection",
        ),
        // A completion of a command that was not sent.
        (
            |host, command| {
                host.respond(command.cid.get() + 7, Status::SUCCESS, 0).map(|()| is_log(command))
            },
            "no NVMe/TCP",
        ),
        // Data that was not asked for.
        (
            |host, command| {
                let connect = command.opcode == opcode::admin::FABRICS;
                if connect { host.give(command, &[0; 4096]) } else { Ok(false) }
            },
            "no NVMe/TCP",
        ),
        // More data than was asked for.
        (
            |host, command| {
                if is_log(command) { host.give(command, &[0; 1 << 20]) } else { Ok(false) }
            },
            "no NVMe/TCP",
        ),
        // A header that cannot be.
        (
            |host, command| {
                if !is_log(command) {
                    return Ok(false);
                }
                host.socket.write_all(&[C2H_DATA, LAST, 24, 24, 0xff, 0xff, 0xff, 0xff])?;
                host.socket.write_all(&[0; 4096]).map(|()| true)
            },
            "no NVMe/TCP",
        ),
        // Success, but no data.
        (
            |host, command| {
                if !is_log(command) {
                    return Ok(false);
                }
                host.respond(command.cid.get(), Status::SUCCESS, 0).map(|()| true)
            },
            "it sent 0 of 1024 bytes",
        ),
        // It terminates the connection.
        (
            |host, command| {
                if !is_log(command) {
                    return Ok(false);
                }
                let mut body = [0; 16];
                body[0] = 2;
                host.pdu(C2H_TERM_REQ, 0, 24, &body).map(|()| true)
            },
            "terminated the connection: PDU Sequence Error",
        ),
    ];
    for (index, (script, part)) in cases.into_iter().enumerate() {
        let said = refused(script, "discover");
        assert!(said.contains(part), "case {index}: {said}");
    }
}

#[test]
fn lists_and_structures_that_make_no_sense_are_refused() {
    // Always a full page of ids, each above the last: it would go on for hours.
    let endless: Script = |host, command| {
        if !is_identify(command, Cns::ACTIVE_NAMESPACES) {
            return Ok(false);
        }
        let after = command.nsid.get();
        let ids: Vec<u8> = (1..=1024u32).flat_map(|step| (after + step).to_le_bytes()).collect();
        host.give(command, &ids)
    };
    let said = refused(endless, "list");
    assert!(said.contains("namespaces are more than"), "{said}");
    // Always the same page.
    let repeating: Script = |host, command| {
        if !is_identify(command, Cns::ACTIVE_NAMESPACES) {
            return Ok(false);
        }
        let ids: Vec<u8> = (1..=1024u32).flat_map(u32::to_le_bytes).collect();
        host.give(command, &ids)
    };
    let said = refused(repeating, "list");
    assert!(said.contains("NSID cannot be 1"), "{said}");
    // A block of 2^200 bytes.
    let shift: Script = |host, command| {
        if is_identify(command, Cns::ACTIVE_NAMESPACES) {
            let mut ids = vec![0; 4096];
            ids[0] = 1;
            return host.give(command, &ids);
        }
        if !is_identify(command, Cns::NAMESPACE) {
            return Ok(false);
        }
        let mut namespace = identify::Namespace::new_zeroed();
        namespace.nsze = 1.into();
        namespace.lbaf[0].lbads = 200;
        host.give(command, namespace.as_bytes())
    };
    let said = refused(shift, "id-ns");
    assert!(said.contains("LBADS cannot be 200"), "{said}");
    // It is never ready; it asks for half a second itself.
    let unready: Script = |host, command| {
        let csts = command.opcode == opcode::admin::FABRICS && command.cdw11.get() == 0x1c;
        if !csts {
            return Ok(false);
        }
        host.respond(command.cid.get(), Status::SUCCESS, 0).map(|()| true)
    };
    let said = refused(unready, "id-ctrl");
    assert!(said.contains("did not become ready within 500 ms"), "{said}");
    // Any bytes are shown.
    let noise: Script = |host, command| {
        if is_identify(command, Cns::CONTROLLER) {
            return host.give(command, &[0xff; 4096]);
        }
        Ok(false)
    };
    let uri = format!("tcp://{}/nqn.x", controller(noise));
    for args in [&["id-ctrl", &uri][..], &["id-ctrl", &uri, "-H"], &["id-ctrl", &uri, "-o", "json"]]
    {
        assert!(nvlane().args(args).output().unwrap().status.success(), "{args:?}");
    }
}
