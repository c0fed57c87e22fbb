//! A volume that is closed in order says so to its controller, and holds nobody up.

mod rig;

use host::client::{Client, HostIdentity, Options, Peer};
use nvme::fabrics::{Cc, Property};
use nvme::opcode::{admin, fabrics};
use rig::{Core, HOST_NQN, NQN, PATIENCE, Target, connect, options, pattern};
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What is waited for is counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Relays; counts the shutdowns that hosts tell of, and says nothing more once it hangs.
struct Listener {
    address: SocketAddr,
    shutdowns: Arc<AtomicUsize>,
    hangs: Arc<AtomicBool>,
}

impl Listener {
    fn before(target: SocketAddr) -> Listener {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("it listens");
        let (shutdowns, hangs) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let it = Listener { address, shutdowns: shutdowns.clone(), hangs: hangs.clone() };
        std::thread::spawn(move || {
            for host in listener.incoming() {
                let (Ok(host), Ok(target)) = (host, TcpStream::connect(target)) else { return };
                let (up, down) =
                    (host.try_clone().expect("a fd"), target.try_clone().expect("a fd"));
                let (shutdowns, hangs) = (shutdowns.clone(), hangs.clone());
                std::thread::spawn(move || {
                    let _ = forward(&up, &down, &shutdowns);
                    let _ = down.shutdown(Shutdown::Write);
                });
                std::thread::spawn(move || {
                    while let Ok(pdu) = rig::script::pdu(&target) {
                        if hangs.load(Ordering::SeqCst) {
                            continue;
                        }
                        if (&host).write_all(&pdu).is_err() {
                            break;
                        }
                    }
                    let _ = host.shutdown(Shutdown::Both);
                });
            }
        });
        it
    }

    fn shutdowns(&self) -> usize {
        self.shutdowns.load(Ordering::SeqCst)
    }

    /// Waits until hosts have told of `count`, and sees that there are no more.
    #[track_caller]
    fn expect_shutdowns(&self, count: usize) {
        let until = Instant::now() + PATIENCE;
        while self.shutdowns() < count {
            assert!(Instant::now() < until, "{} of {count}", self.shutdowns());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.shutdowns(), count);
    }
}

fn forward(host: &TcpStream, mut target: &TcpStream, shutdowns: &AtomicUsize) -> io::Result<()> {
    const CAPSULE_CMD: u8 = 0x04;
    loop {
        let pdu = rig::script::pdu(host)?;
        let dword = |at: usize| u32::from_le_bytes(pdu[8 + at..][..4].try_into().expect("four"));
        if pdu[0] == CAPSULE_CMD
            && pdu[8] == admin::FABRICS
            && pdu[12] == fabrics::PROPERTY_SET
            && dword(44) == Property::CC.0
            && Cc(dword(48)).shn() == 1
        {
            shutdowns.fetch_add(1, Ordering::SeqCst);
        }
        target.write_all(&pdu)?;
    }
}

#[test]
fn a_volume_that_is_closed_says_so() {
    let _alone = alone();
    let target = Target::memory();
    let listener = Listener::before(target.address);
    let path = connect(listener.address, &options());
    let core = Core::usable(path.clone());
    core.write(0, &pattern(1, 64 << 10));
    drop(core);
    assert_eq!(listener.shutdowns(), 0);
    drop(path);
    host::await_closed(PATIENCE);
    listener.expect_shutdowns(1);
    // The next one has a control thread of its own, or the same.
    let path = connect(listener.address, &options());
    Core::usable(path.clone()).write(0, &pattern(2, 4096));
    drop(path);
    let path = connect(listener.address, &options());
    Core::usable(path.clone()).write(0, &pattern(3, 4096));
    drop(path);
    host::await_closed(PATIENCE);
    listener.expect_shutdowns(3);
}

#[test]
fn a_controller_that_hangs_holds_nobody_up() {
    let _alone = alone();
    let target = Target::memory();
    // Whether it waits no longer than it was told.
    let is_quick = || {
        let listener = Listener::before(target.address);
        let path = connect(listener.address, &options());
        Core::usable(path.clone()).write(0, &pattern(1, 4096));
        listener.hangs.store(true, Ordering::SeqCst);
        drop(path);
        let begin = Instant::now();
        host::await_closed(Duration::from_millis(100));
        let took = begin.elapsed();
        host::await_closed(PATIENCE);
        assert!(begin.elapsed() < PATIENCE, "and there is nothing to wait for a second later");
        listener.expect_shutdowns(1);
        took < Duration::from_millis(900)
    };
    // Unless the machine stalls.
    assert!((0..3).any(|_| is_quick()), "it waits longer than it was told");
}

#[test]
fn a_client_says_so_too() {
    let _alone = alone();
    let target = Target::memory();
    let listener = Listener::before(target.address);
    let peer = Peer { address: listener.address, subsystem: NQN.into() };
    let host = HostIdentity { nqn: HOST_NQN.into(), id: [7; 16] };
    let connect = || Client::connect(&peer, &host, &Options::default()).expect("a client");
    drop(connect());
    listener.expect_shutdowns(1);
    let client = connect();
    listener.hangs.store(true, Ordering::SeqCst);
    let begin = Instant::now();
    drop(client);
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    listener.expect_shutdowns(2);
}
