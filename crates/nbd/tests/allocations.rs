//! In steady state the server's core allocates nothing per request.

mod client;

use client::*;
use counting_allocator::{mark_this_thread, of_marked};
use double::Double;
use namespace::Namespace;
use nbd::{Export, Server, ServerConfig};
use std::sync::{Arc, Mutex, PoisonError};

/// Marks the thread of each core that opens a queue; everything else is the child's.
fn marked(child: Arc<dyn Namespace>) -> Arc<dyn Namespace> {
    Arc::new(Double::over(child).queues(|queue, _| {
        mark_this_thread(true);
        queue
    }))
}

/// One kind of I/O: what, bytes each, and how many at a time.
type Load = (u16, u32, u64);

fn run(client: &mut Client, (kind, length, depth): Load, rounds: u64) {
    let data = vec![0x5a; if kind == WRITE { length as usize } else { 0 }];
    for round in 0..rounds {
        for index in 0..depth {
            let offset = (round * depth + index) * u64::from(length) % (8 << 20);
            // An odd length is written at an odd place.
            client.send(kind, 0, offset, length, &data);
        }
        for _ in 0..depth {
            let (_, reply) = client.receive().unwrap();
            assert!(matches!(reply, Reply::Data(_)), "{reply:?}");
        }
    }
}

/// Tests take turns: there is one count.
static TURN: Mutex<()> = Mutex::new(());

fn check(volume: &str) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let loads: Vec<Load> = [READ, WRITE, WRITE_ZEROES, TRIM, FLUSH]
        .into_iter()
        .flat_map(|kind| [(kind, 4096, 1), (kind, 4096, 32), (kind, 131_072, 4), (kind, 700, 3)])
        .collect();
    let namespace = marked(volume::open(volume, &volume::OpenOptions::default()).unwrap());
    let export = Export { name: String::new(), description: String::new(), namespace };
    let server = Server::start(&ServerConfig::default(), vec![export]).unwrap();
    let address = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    for structured in [false, true] {
        let manners = Manners { structured, ..Manners::default() };
        let mut client = Client::connect(address, "", manners);
        let fresh = of_marked();
        // Warm for all kinds: what grows with the depth has grown.
        for load in &loads {
            run(&mut client, *load, 40);
        }
        assert!(of_marked() > fresh, "the counter counts");
        for load in &loads {
            let rounds = 400 / load.2;
            // An idle connection gives back the memory for parts of requests, which it takes again
            // when the socket cuts one in two: rare, neither per request nor per batch.
            let mut counts = Vec::new();
            let steady = (0..5).any(|_| {
                let before = of_marked();
                run(&mut client, *load, rounds);
                counts.push(of_marked() - before);
                counts.last().is_some_and(|count| *count <= 4)
            });
            assert!(steady, "allocations in 400 requests: {counts:?}, {load:?}, {volume}");
        }
    }
    server.stop().unwrap();
}

#[test]
fn memory() {
    check("mem:16M");
}

#[test]
fn file() {
    let directory = tempfile::tempdir().unwrap();
    check(&format!("file:{}/a.img?size=16M&create", directory.path().display()));
}
