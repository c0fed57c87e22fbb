//! What a host keeps of what its peer sends: a controller that streams, announces, changes or reports without end
//! makes the program no larger. Measured at the program itself: VmHWM, the most memory that it ever had
//! (proc_pid_status(5)), while several times as much has come as it may take.
//!
//! ```text
//!   discover, discover --watch --> script (`hostile`): logs without end, events without end
//!   cat    --> relay (`rogue`) that spoils each answer on one of two paths --> serve
//!   paths  --> relay that reports changes whenever it may ------------------> serve
//! ```

use crate::daemon::{Daemon, PATIENCE, nvlane};
use crate::hostile::{C2H_DATA, Script, controller, is_identify, is_log};
use crate::rogue::{Rogue, Spoil, Then};
use nvme::event::{AsyncEvent, notice};
use nvme::identify::{self, Cns};
use nvme::log::GetLogPage;
use nvme::{Command, Status, opcode};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const NQN: &str = "nqn.2026-11.com.example:a";
const M: u64 = 1 << 20;

/// All that a command which asks may have in memory, the program itself included. The longest discovery log that it
/// reads, 16,384 entries, is 16 MiB.
const ASKING_MAX: u64 = 48 * M;
/// The same of one that reads a volume: 32 reads of 128 KiB and its receive buffer are among it.
const READING_MAX: u64 = 48 * M;
/// A program that has done something many times has all the memory that it needs for it: it may grow by so much.
const GROWTH_MAX: u64 = M;

/// A program that runs. Killed when dropped.
struct Measured {
    child: Child,
    /// Most of the memory that it was seen to have had.
    most: u64,
}

impl Measured {
    /// One that runs on, whatever it logs.
    fn start(args: &[&str]) -> Measured {
        Measured::saying(args, Stdio::null())
    }

    fn saying(args: &[&str], stderr: Stdio) -> Measured {
        let mut command = nvlane();
        command.args(args).stdout(Stdio::null()).stderr(stderr);
        Measured { child: command.spawn().unwrap(), most: 0 }
    }

    /// The most memory that it ever had, in bytes, also when it has ended meanwhile.
    fn most(&mut self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.unwrap_or_default();
        // Who has ended has no such line.
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        if let Some(line) = line {
            let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
            self.most = self.most.max(kib << 10);
        }
        self.most
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Looks at it until it has ended: how, with which words, and how much it had.
    fn ended(&mut self) -> (ExitStatus, String, u64) {
        let until = Instant::now() + 2 * PATIENCE;
        while self.is_running() {
            self.most();
            assert!(Instant::now() < until, "it does not end");
            thread::sleep(Duration::from_millis(1));
        }
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said, self.most)
    }

    /// The most memory that it had when `count` was there, while it runs.
    fn at(&mut self, counter: &AtomicU64, count: u64) -> u64 {
        let until = Instant::now() + 2 * PATIENCE;
        while counter.load(Ordering::SeqCst) < count {
            assert!(self.is_running(), "it has ended");
            assert!(Instant::now() < until, "{} of {count}", counter.load(Ordering::SeqCst));
            thread::sleep(Duration::from_millis(1));
        }
        self.most()
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `nvlane discover` of that controller.
fn discover(address: SocketAddr, more: &[&str], stderr: Stdio) -> Measured {
    let port = address.port().to_string();
    let args = ["discover", "-a", "127.0.0.1", "-s", &port];
    Measured::saying(&[&args[..], more].concat(), stderr)
}

/// A C2HData PDU without data.
fn empty_data(cid: u16, offset: u32) -> Vec<u8> {
    let mut pdu = vec![C2H_DATA, 0, 24, 24, 24, 0, 0, 0];
    pdu.extend(cid.to_le_bytes());
    pdu.extend([0; 2]);
    pdu.extend(offset.to_le_bytes());
    pdu.extend([0; 8]);
    pdu
}

#[test]
fn the_longest_log_that_changes_whenever_it_is_read() {
    const ENTRIES: u64 = 16_384;
    static SENT: AtomicU64 = AtomicU64::new(0);
    static GENERATION: AtomicU64 = AtomicU64::new(0);
    let script: Script = |host, command| {
        if !is_log(command) {
            return Ok(false);
        }
        SENT.fetch_add(GetLogPage::of(command).bytes, Ordering::SeqCst);
        host.give_log(command, GENERATION.fetch_add(1, Ordering::SeqCst), ENTRIES)
    };
    let mut program = discover(controller(script), &["--timeout", "20000"], Stdio::piped());
    let (status, said, most) = program.ended();
    assert_eq!(status.code(), Some(1), "the log never stands still");
    assert!(said.contains("has changed 10 times"), "{said}");
    let sent = SENT.load(Ordering::SeqCst);
    assert!(sent > 2 * ASKING_MAX, "{sent} bytes of logs");
    println!("{most} bytes of memory, {sent} of logs");
    assert!(most > 0 && most < ASKING_MAX, "{most} bytes of memory, {sent} of logs");
}

#[test]
fn changes_of_a_log_without_end() {
    const ENTRIES: u64 = 64;
    static CHANGES: AtomicU64 = AtomicU64::new(0);
    let script: Script = |host, command| {
        if is_log(command) {
            return host.give_log(command, 1, ENTRIES);
        }
        if is_identify(command, Cns::CONTROLLER) {
            let mut controller = identify::Controller::new_zeroed();
            controller.oaes = notice::DISCOVERY_CHANGE.into();
            return host.give(command, controller.as_bytes());
        }
        if command.opcode != opcode::admin::ASYNC_EVENT_REQUEST {
            return Ok(false);
        }
        CHANGES.fetch_add(1, Ordering::SeqCst);
        let event = AsyncEvent::DISCOVERY_CHANGE.dword0();
        host.respond(command.cid.get(), Status::SUCCESS, event.into()).map(|()| true)
    };
    let mut program = discover(controller(script), &["--watch"], Stdio::null());
    let before = program.at(&CHANGES, 200);
    let after = program.at(&CHANGES, 2200);
    println!("{before} bytes of memory, then {after}");
    // 2000 logs of 64 KiB: a hundredth of each would be more.
    assert!(after < ASKING_MAX && after - before < GROWTH_MAX, "{before}, then {after}");
}

/// A target, and one of the two paths to it by a relay that spoils every answer to a read. The volume is read all the while,
/// until so many were spoiled; then it must be as large as it was after a tenth of them.
#[track_caller]
fn reads_beside(spoils: u64, spoil: Spoil) {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &["null:1T", "--nqn", NQN]);
    let rogue = Rogue::before(daemon.listeners[0], 1, spoil);
    let options = "ns=1&policy=round-robin&reconnect_delay=10ms";
    let volume = format!("tcp://{},{}/{NQN}?{options}", daemon.listeners[0], rogue.address);
    let mut program = Measured::start(&["cat", &volume]);
    let mut after = |count: u64| {
        let until = Instant::now() + 2 * PATIENCE;
        while rogue.spoiled() < count {
            assert!(program.is_running(), "the other path serves");
            assert!(Instant::now() < until, "{} of {count} were spoiled", rogue.spoiled());
            thread::sleep(Duration::from_millis(1));
        }
        program.most()
    };
    let (before, after) = (after(spoils / 10), after(spoils));
    println!("{before} bytes of memory, then {after}");
    assert!(after < READING_MAX && after - before < GROWTH_MAX, "{before}, then {after}");
}

/// 60 times 4 MiB for commands that were never sent.
#[test]
fn data_that_nobody_asked_for() {
    reads_beside(60, |pdu, _| {
        let mut data = empty_data(0x7777, 0);
        data[4..8].copy_from_slice(&(24 + (128u32 << 10)).to_le_bytes());
        data[16..20].copy_from_slice(&(128u32 << 10).to_le_bytes());
        data.resize(24 + (128 << 10), 0x55);
        *pdu = data.repeat(32);
        Then::GoOn
    });
}

/// As much, in a PDU that says that it has four gigabytes.
#[test]
fn lengths_of_gigabytes() {
    reads_beside(60, |pdu, number| {
        let (plen, datal) = [(u32::MAX, u32::MAX - 24), (1 << 31, 1 << 31)][number as usize % 2];
        if pdu[0] == C2H_DATA {
            pdu[4..8].copy_from_slice(&plen.to_le_bytes());
            pdu[16..20].copy_from_slice(&datal.to_le_bytes());
            pdu.resize(4 << 20, 0x55);
        }
        Then::GoOn
    });
}

/// The beginning of an answer, over and over.
#[test]
fn answers_that_are_cut() {
    reads_beside(60, |pdu, number| {
        pdu.truncate(1 + pdu.len() * (number as usize % 5) / 5);
        Then::Close
    });
}

/// 4 MiB of headers that bring nothing, before each answer.
#[test]
fn headers_without_end() {
    reads_beside(60, |pdu, _| {
        if pdu[0] == C2H_DATA {
            let cid = u16::from_le_bytes([pdu[8], pdu[9]]);
            let offset = u32::from_le_bytes([pdu[12], pdu[13], pdu[14], pdu[15]]);
            pdu.splice(..0, empty_data(cid, offset).repeat((4 << 20) / 24));
        }
        Then::GoOn
    });
}

/// Where Connect has the queue's id: behind the capsule's header, in dword 10.
const QID: usize = 8 + 42;
const CAPSULE_CMD: u8 = 4;
const CAPSULE_RESP: u8 = 5;

/// Before a target whose controllers report something whenever they may: admin queues' Asynchronous Event Requests are
/// answered here, each at once.
fn reporting(target: SocketAddr, reported: &'static AtomicU64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for host in listener.incoming().map_while(Result::ok) {
            let Ok(target) = TcpStream::connect(target) else { continue };
            let _ = host.set_nodelay(true).and_then(|()| target.set_nodelay(true));
            let to_host = Arc::new(Mutex::new(host.try_clone().unwrap()));
            let (answers, from) = (Arc::clone(&to_host), target.try_clone().unwrap());
            thread::spawn(move || {
                while let Ok(pdu) = pdu(&from) {
                    if answers.lock().unwrap().write_all(&pdu).is_err() {
                        break;
                    }
                }
                let _ = answers.lock().unwrap().shutdown(Shutdown::Both);
            });
            thread::spawn(move || {
                let _ = report(&host, &target, &to_host, reported);
                let _ = target.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

/// Passes on what a host sends, but for requests of events.
fn report(
    host: &TcpStream,
    mut target: &TcpStream,
    to_host: &Mutex<TcpStream>,
    reported: &AtomicU64,
) -> io::Result<()> {
    let events = [
        AsyncEvent::NAMESPACE_ATTRIBUTE,
        AsyncEvent::ANA_CHANGE,
        AsyncEvent::DISCOVERY_CHANGE,
        AsyncEvent { kind: 7, information: 0x55, log_page: 0xc0 },
    ];
    // ICReq, then Connect.
    target.write_all(&pdu(host)?)?;
    let connect = pdu(host)?;
    target.write_all(&connect)?;
    let is_admin = connect[QID..QID + 2] == [0, 0];
    loop {
        let pdu = pdu(host)?;
        let command = Command::read_from_prefix(&pdu[8..]).ok().map(|(command, _)| command);
        let asks = |command: &Command| command.opcode == opcode::admin::ASYNC_EVENT_REQUEST;
        let Some(request) = command.filter(|it| is_admin && pdu[0] == CAPSULE_CMD && asks(it))
        else {
            target.write_all(&pdu)?;
            continue;
        };
        let number = reported.fetch_add(1, Ordering::SeqCst);
        let mut answer = vec![CAPSULE_RESP, 0, 24, 0, 24, 0, 0, 0];
        answer.extend(u64::from(events[number as usize % events.len()].dword0()).to_le_bytes());
        // SQ head pointer (none is kept), queue, identifier, status.
        answer.extend([0xff, 0xff, 0, 0]);
        answer.extend(request.cid.get().to_le_bytes());
        answer.extend([0, 0]);
        to_host.lock().unwrap().write_all(&answer)?;
    }
}

/// The next PDU of a connection without digests.
fn pdu(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut pdu = vec![0; 8];
    stream.read_exact(&mut pdu)?;
    let len = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]);
    pdu.resize(len as usize, 0);
    stream.read_exact(&mut pdu[8..])?;
    Ok(pdu)
}

/// After 256 in a row ten a second are asked for.
#[test]
fn events_without_end() {
    static REPORTED: AtomicU64 = AtomicU64::new(0);
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &["mem:1M", "--nqn", NQN]);
    let address = reporting(daemon.listeners[0], &REPORTED);
    let volume =
        format!("tcp://{address},{}/{NQN}?ns=1&reconnect_delay=150ms", daemon.listeners[0]);
    let mut program = Measured::start(&["paths", &volume, "--watch", "--interval", "100ms"]);
    let before = program.at(&REPORTED, 280);
    let after = program.at(&REPORTED, 480);
    println!("{before} bytes of memory, then {after}");
    assert!(after < READING_MAX && after - before < GROWTH_MAX, "{before}, then {after}");
}
