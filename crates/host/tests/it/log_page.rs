//! Log pages that are longer than the least that a controller transfers with one command.

use crate::rig;

use host::client::{Client, HostIdentity, LogPage, Options, Peer};
use nvme::log::ana::AnaState;
use nvme::log::{GetLogPage, Lid};
use nvme::{Command, identify, opcode};
use rig::script::pdu;
use rig::{HOST_NQN, NQN, Target};
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use zerocopy::FromBytes;

const CAPSULE_CMD: u8 = 0x04;
const C2H_DATA: u8 = 0x07;
/// LPA: log pages have offsets.
const OFFSETS: u8 = 1 << 2;
/// Groups of which the last has its state, and all behind it, beyond 4 KiB.
const GROUPS: u32 = 128;
/// The whole log, as hosts compute it: the greatest number of groups and of namespaces.
const ANA_BYTES: u64 = 16 + GROUPS as u64 * 32 + 1024 * 4;

/// LPA, MDTS, what is read, and where each command begins and whether it leaves the event as it is.
type Case = (u8, u8, LogPage, &'static [(u64, bool)]);

/// The target as a controller with that LPA and MDTS; without offsets it gives every log from its start.
struct Relay {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<GetLogPage>>>,
}

impl Relay {
    fn before(target: SocketAddr, lpa: u8, mdts: u8) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("it listens");
        let seen = Arc::<Mutex<Vec<GetLogPage>>>::default();
        let noted = Arc::clone(&seen);
        std::thread::spawn(move || {
            let (host, _) = listener.accept().expect("a host");
            let target = TcpStream::connect(target).expect("a target");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _ = hear_target(&target, &host, lpa, mdts);
                    let _ = host.shutdown(Shutdown::Both);
                });
                let _ = hear_host(&host, &target, lpa & OFFSETS != 0, &noted);
                let _ = target.shutdown(Shutdown::Both);
            });
        });
        Relay { address, seen }
    }
}

fn hear_host(
    host: &TcpStream,
    mut target: &TcpStream,
    offsets: bool,
    seen: &Mutex<Vec<GetLogPage>>,
) -> io::Result<()> {
    loop {
        let mut pdu = pdu(host)?;
        if pdu[0] == CAPSULE_CMD && pdu[8] == opcode::admin::GET_LOG_PAGE {
            let command = Command::mut_from_bytes(&mut pdu[8..72]).expect("64 bytes");
            seen.lock().expect("no panic").push(GetLogPage::of(command));
            if !offsets {
                (command.cdw12, command.cdw13) = (0.into(), 0.into());
            }
        }
        target.write_all(&pdu)?;
    }
}

fn hear_target(target: &TcpStream, mut host: &TcpStream, lpa: u8, mdts: u8) -> io::Result<()> {
    let mut identified = false;
    loop {
        let mut pdu = pdu(target)?;
        // Data comes for Identify first.
        if pdu[0] == C2H_DATA && !identified {
            let data = usize::from(pdu[3]);
            let controller = identify::Controller::mut_from_bytes(&mut pdu[data..]);
            let controller = controller.expect("Identify Controller data");
            (controller.lpa, controller.mdts) = (lpa, mdts);
            identified = true;
        }
        host.write_all(&pdu)?;
    }
}

fn connect(address: SocketAddr) -> Client {
    let peer = Peer { address, subsystem: NQN.into() };
    let host = HostIdentity { nqn: HOST_NQN.into(), id: [7; 16] };
    Client::connect(&peer, &host, &Options::default()).expect("a controller")
}

#[test]
fn a_long_log_is_read_with_as_few_commands_as_the_controller_takes() {
    let target = Target::memory();
    for group in 1..=GROUPS {
        let state = AnaState::NON_OPTIMIZED;
        target.server.set_ana_state(NQN, target.port, group, state).expect("a group");
    }
    let clears = LogPage { retain_event: false, ..LogPage::new(Lid::ANA) };
    let retains = LogPage::new(Lid::ANA);
    let whole = connect(target.address).log_page(&retains, ANA_BYTES).expect("the log");
    assert_eq!(whole[4100], AnaState::NON_OPTIMIZED.0, "there is something beyond 4 KiB");
    let cases: &[Case] = &[
        (OFFSETS, 8, clears, &[(0, false)]),
        (OFFSETS, 0, clears, &[(0, false)]),
        (OFFSETS, 1, clears, &[(0, true), (8192, false)]),
        (OFFSETS, 0, retains, &[(0, true)]),
        (OFFSETS, 1, retains, &[(0, true), (8192, true)]),
        (0, 8, clears, &[(0, false)]),
        // More than it says that it takes: in pieces it would be wrong.
        (0, 1, clears, &[(0, false)]),
    ];
    for (lpa, mdts, page, commands) in cases {
        let relay = Relay::before(target.address, *lpa, *mdts);
        let log = connect(relay.address).log_page(page, ANA_BYTES).expect("the log");
        let seen = relay.seen.lock().expect("no panic");
        let seen: Vec<_> = seen.iter().map(|it| (it.offset, it.retain_event)).collect();
        assert_eq!(seen, *commands, "LPA {lpa:#x}, MDTS {mdts}");
        assert!(log == whole, "LPA {lpa:#x}, MDTS {mdts}: another log");
    }
}
