//! A relay between host and target that can be told to swallow everything, to hold back what the host
//! sends on one connection, and to say things of its own.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// No connection.
const NONE: usize = usize::MAX;

/// Forwards connections; threads end with their connections.
pub struct Relay {
    pub address: SocketAddr,
    switches: Arc<Switches>,
    /// Ends towards the host, by number of the connection: 0 is the admin queue's.
    hosts: Arc<Mutex<Vec<TcpStream>>>,
}

#[derive(Debug)]
struct Switches {
    /// Nothing is forwarded while this is set, nor read, nor closed.
    black_hole: AtomicBool,
    /// Of this connection nothing is forwarded to the target.
    held: AtomicUsize,
}

impl Relay {
    pub fn to(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("it listens");
        let switches = Switches { black_hole: AtomicBool::new(false), held: NONE.into() };
        let switches = Arc::new(switches);
        let hosts = Arc::<Mutex<Vec<TcpStream>>>::default();
        let relay = Relay { address, switches: switches.clone(), hosts: hosts.clone() };
        std::thread::spawn(move || {
            for host in listener.incoming() {
                let Ok(host) = host else { return };
                while switches.black_hole.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let Ok(target) = TcpStream::connect(target) else { continue };
                let number = {
                    let mut hosts = hosts.lock().expect("no panic");
                    hosts.push(host.try_clone().expect("a descriptor"));
                    hosts.len() - 1
                };
                for (from, to, number) in [(&host, &target, number), (&target, &host, NONE - 1)] {
                    let from = from.try_clone().expect("a descriptor");
                    let to = to.try_clone().expect("a descriptor");
                    let switches = Arc::clone(&switches);
                    std::thread::spawn(move || forward(from, to, number, &switches));
                }
            }
        });
        relay
    }

    pub fn swallow(&self, on: bool) {
        self.switches.black_hole.store(on, Ordering::Relaxed);
    }

    /// Holds back what the host sends on `connection`, or nothing.
    pub fn hold(&self, connection: Option<usize>) {
        self.switches.held.store(connection.unwrap_or(NONE), Ordering::Relaxed);
    }

    /// Says `bytes` to the host as if they were the target's. Whether it still listens.
    pub fn inject(&self, connection: usize, bytes: &[u8]) -> bool {
        let hosts = self.hosts.lock().expect("no panic");
        (&hosts[connection]).write_all(bytes).is_ok()
    }

    /// Ends `connection` towards the host, as if the target did.
    pub fn close(&self, connection: usize) {
        let hosts = self.hosts.lock().expect("no panic");
        hosts[connection].shutdown(Shutdown::Both).expect("it is connected");
    }

    /// The host's own address on `connection`.
    pub fn host_address(&self, connection: usize) -> SocketAddr {
        let hosts = self.hosts.lock().expect("no panic");
        hosts[connection].peer_addr().expect("it is connected")
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, number: usize, switches: &Switches) {
    let waits = || {
        switches.black_hole.load(Ordering::Relaxed)
            || switches.held.load(Ordering::Relaxed) == number
    };
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut bytes);
        while waits() {
            std::thread::sleep(Duration::from_millis(5));
        }
        match count {
            Ok(count) if count > 0 && to.write_all(&bytes[..count]).is_ok() => {}
            _ => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
        }
    }
}
