//! A relay between host and target that can be told to swallow everything.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Forwards connections; threads end with their connections.
pub struct Relay {
    pub address: SocketAddr,
    /// Nothing is forwarded while this is set, nor read, nor closed.
    pub black_hole: Arc<AtomicBool>,
}

impl Relay {
    pub fn to(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("it listens");
        let black_hole = Arc::<AtomicBool>::default();
        let hole = Arc::clone(&black_hole);
        std::thread::spawn(move || {
            for host in listener.incoming() {
                let Ok(host) = host else { return };
                while hole.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let Ok(target) = TcpStream::connect(target) else { continue };
                for (from, to) in [(&host, &target), (&target, &host)] {
                    let from = from.try_clone().expect("a descriptor");
                    let to = to.try_clone().expect("a descriptor");
                    let hole = Arc::clone(&hole);
                    std::thread::spawn(move || forward(from, to, &hole));
                }
            }
        });
        Relay { address, black_hole }
    }

    pub fn swallow(&self, on: bool) {
        self.black_hole.store(on, Ordering::Relaxed);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, hole: &AtomicBool) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut bytes);
        while hole.load(Ordering::Relaxed) {
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
