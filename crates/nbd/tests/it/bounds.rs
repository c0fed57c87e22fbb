//! Peers that break the protocol, never read, or never send: what they cost, and whom.

use crate::client;

use client::*;
use nbd::ServerConfig;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SIMPLE: Manners = Manners { structured: false, aligned: false, allocation: false };

/// A pool of two of the largest buffers.
fn small() -> ServerConfig {
    ServerConfig { buffer_bytes: 2 << 20, ..ServerConfig::default() }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends a clock, also where the test panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Who is hung up on while others are to be, for standing still, may have stood still himself on a machine that did: all of it
/// anew then, three times at most. A thread beside it shows whether the machine did.
fn unless_the_machine_stands_still(mut attempt: impl FnMut() -> io::Result<()>) {
    let hung_up = |_| {
        let is_over = AtomicBool::new(false);
        let (outcome, stood) = thread::scope(|scope| {
            let clock = scope.spawn(|| {
                let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
                while !is_over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(10));
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
                longest
            });
            let over = Over(&is_over);
            let outcome = attempt();
            drop(over);
            (outcome, clock.join().unwrap())
        });
        let error = outcome.err()?;
        let is_late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!is_late, "no answer, nor is it hung up on: {error}");
        assert!(stood > Duration::from_millis(500), "hung up on, and the machine stood: {stood:?}");
        Some(error)
    };
    let errors: Vec<_> = (0..3).map_while(hung_up).collect();
    assert!(errors.len() < 3, "it is hung up on again and again: {errors:?}");
}

/// Writes and reads a MiB twenty times.
fn write_and_read(address: SocketAddr) -> io::Result<()> {
    let mut good = Client::connect(address, "0", SIMPLE);
    for round in 0..20 {
        let data = pattern(round, 1 << 20);
        let written = good.try_send(WRITE, 0, 1 << 20, 1 << 20, &data)?;
        assert_eq!(good.receive()?, (written, Reply::Data(vec![])));
        let read = good.try_send(READ, 0, 1 << 20, 1 << 20, &[])?;
        assert!(good.receive()? == (read, Reply::Data(data)), "other bytes, or none");
    }
    Ok(())
}

#[test]
fn garbage_costs_the_connection_and_nothing_else() {
    let (server, address) = serve(&["mem:4M"], &ServerConfig::default());
    let mut good = Client::connect(address, "0", SIMPLE);
    for seed in 0..200u64 {
        let mut length = 1 + (seed as usize * 37) % 3000;
        if seed % 4 != 0 {
            // Almost a request: the head is right.
            let mut client = Client::connect(address, "0", SIMPLE);
            let mut bytes = pattern(seed, 28);
            bytes[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
            bytes[4] = 0;
            bytes[6] = 0;
            length = length.min(500);
            let _ = client.stream.write_all(&[bytes, pattern(seed + 1, length)].concat());
        } else {
            let _ = greet(address).write_all(&pattern(seed, length));
        }
    }
    assert_eq!(good.read(0, 4096).len(), 4096);
    drop(good);
    eventually("connections end", || server.activity().connections() == 0);
    server.stop().unwrap();
}

#[test]
fn breaking_the_protocol_is_hung_up_on() {
    let (server, address) = serve(&["mem:4M"], &ServerConfig::default());
    let mut client = Client::connect(address, "0", SIMPLE);
    client.stream.write_all(&[0x42; 28]).unwrap();
    assert!(client.is_hung_up_on());
    let mut client = Client::connect(address, "0", SIMPLE);
    client.stream.write_all(&request(WRITE, 0, 1, 0, u32::MAX)).unwrap();
    assert!(client.is_hung_up_on());
    let mut stream = greet(address);
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x04none").unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "no such export");
    server.stop().unwrap();
}

#[test]
fn a_connection_counts_until_its_commands_are_done() {
    const DELAY: Duration = Duration::from_millis(500);
    let (server, address) = serve(&["delay:500ms(mem:4M)"], &ServerConfig::default());
    for round in 0..3 {
        let mut clients: Vec<_> = (0..8).map(|_| Client::connect(address, "0", SIMPLE)).collect();
        let mut sent = Instant::now();
        for client in &mut clients {
            sent = Instant::now();
            client.send(READ, 0, 0, 4096, &[]);
            client.stream.write_all(&[0x42; 28]).unwrap();
        }
        eventually("connections end", || server.activity().connections() == 0);
        assert!(sent.elapsed() >= DELAY, "round {round}: counted out before its read was done");
        for client in &mut clients {
            assert!(client.is_hung_up_on());
        }
    }
    server.stop().unwrap();
}

#[test]
fn commands_that_do_not_end_do_not_keep_a_server_from_stopping() {
    let (server, address) = serve(&["delay:read=1000s(mem:4M)"], &ServerConfig::default());
    let mut client = Client::connect(address, "0", SIMPLE);
    client.send(READ, 0, 0, 4096, &[]);
    // The read came before it, and is with the volume.
    assert_eq!(client.ask(FLUSH, 0, 0, 0), Reply::Data(vec![]));
    client.stream.write_all(&[0x42; 28]).unwrap();
    let error = server.stop().unwrap_err();
    assert!(
        matches!(error, nbd::Error::GivenUp { commands: 1, is_flushed: true }),
        "what was given up is told: {error}"
    );
    assert!(client.is_hung_up_on());
}

/// Whoever listens at the socket next is to know that something of ours may still be carried out.
#[test]
fn a_socket_stays_when_the_end_does_not_wait_for_all_commands() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for (volume, is_left) in [("mem:4M", false), ("delay:write=1000s(mem:4M)", true)] {
        let (mut server, address) = serve(&[volume], &ServerConfig::default());
        server.listen_local(&path).unwrap();
        let mut client = Client::connect(address, "0", SIMPLE);
        client.read(0, 4096);
        if is_left {
            client.send(WRITE, 0, 0, 4096, &[1; 4096]);
            client.read(0, 4096);
        }
        assert_eq!(server.stop().is_err(), is_left, "{volume}");
        assert_eq!(path.exists(), is_left, "{volume}");
        assert_eq!(nbd::is_left_behind(&path).unwrap(), is_left, "{volume}");
    }
    // It is taken for one that was killed, and replaced.
    let (mut server, _) = serve(&["mem:4M"], &ServerConfig::default());
    server.listen_local(&path).unwrap();
    server.stop().unwrap();
    assert!(!path.exists());
}

/// Memory that is lent costs no buffers, but where a program has a read done by several parts.
#[test]
fn reads_of_lent_memory_wait_for_buffers_where_they_take_any() {
    let stripe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/stripe.bpf.o");
    let volume = format!("bpf:{stripe}(mem:8M,mem:8M)");
    let data = pattern(1, 16 << 20);
    unless_the_machine_stands_still(|| {
        let (server, address) = serve(&[&volume], &small());
        let mut client = Client::connect(address, "0", Manners { structured: true, ..SIMPLE });
        for (at, chunk) in data.chunks(1 << 20).enumerate() {
            client.write(0, (at as u64) << 20, chunk);
        }
        // One that asks for all of the pool and takes nothing is dropped, as elsewhere.
        let mut silent = Client::connect(address, "0", Manners { structured: true, ..SIMPLE });
        for _ in 0..64 {
            silent.send(READ, 0, 0, 4 << 20, &[]);
        }
        let ask = |at: u64| client.try_send(READ, 0, (at % 4) << 22, 4 << 20, &[]);
        let asked = (0..16).map(ask).collect::<io::Result<Vec<_>>>()?;
        for _ in &asked {
            let (cookie, reply) = client.receive()?;
            let at = asked.iter().position(|it| *it == cookie).unwrap() % 4;
            let expected = Reply::Data(data[at << 22..][..4 << 20].to_vec());
            assert!(reply == expected, "other bytes, or none");
        }
        server.stop().unwrap();
        Ok(())
    });
}

/// Who says goodbye is answered all that was asked before, however long that takes.
#[test]
fn a_slow_reader_that_has_said_goodbye_is_answered() {
    let (server, address) = serve(&["mem:32M"], &ServerConfig::default());
    unless_the_machine_stands_still(|| {
        let mut client = Client::connect(address, "0", SIMPLE);
        for _ in 0..4 {
            client.send(READ, 0, 0, 32 << 20, &[]);
        }
        client.send(DISC, 0, 0, 0, &[]);
        // Seven seconds, two more than one who takes nothing has.
        let (mut left, pieces) = (4 * ((32 << 20) + 16), 28);
        let (mut bytes, mut last) = (vec![0; left / pieces], Instant::now());
        while left > 0 {
            let piece = left.min(bytes.len());
            let read = client.stream.read_exact(&mut bytes[..piece]);
            let stood = last.elapsed() > Duration::from_secs(2);
            assert!(read.is_ok() || stood, "it comes in time, and is hung up on");
            read?;
            (left, last) = (left - piece, Instant::now());
            std::thread::sleep(Duration::from_millis(250));
        }
        assert!(client.is_hung_up_on());
        Ok(())
    });
    server.stop().unwrap();
}

#[test]
fn those_who_connect_and_say_nothing_do_not_keep_others_out() {
    let (server, address) = serve(&["mem:4M"], &ServerConfig::default());
    let mut good = Client::connect(address, "0", SIMPLE);
    let silent: Vec<_> = (0..300).map(|_| std::net::TcpStream::connect(address)).collect();
    let mut late = Client::connect(address, "0", SIMPLE);
    assert_eq!(late.read(0, 4096).len(), 4096);
    assert_eq!(good.read(0, 4096).len(), 4096);
    // 128, the two that are served, and one that came while this was counted.
    assert!(server.activity().connections() <= 131, "{}", server.activity().connections());
    drop(silent);
    server.stop().unwrap();
}

#[test]
fn one_that_never_reads_does_not_keep_others_from_memory() {
    // A file does not lend: its reads need buffers.
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}/a.img?size=64M&create", directory.path().display());
    unless_the_machine_stands_still(|| {
        let (server, address) = serve(&[&file], &small());
        let mut deaf: Vec<Client> = (0..4).map(|_| Client::connect(address, "0", SIMPLE)).collect();
        for client in &mut deaf {
            for round in 0..100u64 {
                client.try_send(READ, 0, (round % 32) << 20, 1 << 20, &[])?;
            }
        }
        write_and_read(address)?;
        server.stop().unwrap();
        Ok(())
    });
}

/// A simple reply that has begun holds up all others of its connection: it is the one that goes on when memory is free.
#[test]
fn long_reads_in_pieces_end_where_others_take_the_memory() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}/a.img?size=64M&create", directory.path().display());
    let volume = format!("delay:1ms({file})");
    // Nobody is to be dropped, however long the machine stands still.
    let stall_period = Duration::from_secs(600);
    let config = ServerConfig { buffer_bytes: 4 << 20, stall_period, ..ServerConfig::default() };
    let (server, address) = serve(&[&volume], &config);
    let read = |number: u64| {
        let mut client = Client::connect(address, "0", SIMPLE);
        for round in 0..40 {
            let at = ((number + round) % 32) << 20;
            let asked = [2 << 20, 1 << 20, 4096].map(|bytes| client.send(READ, 0, at, bytes, &[]));
            for _ in &asked {
                let (cookie, reply) = client.receive().expect("an answer in time");
                assert!(asked.contains(&cookie) && matches!(reply, Reply::Data(_)));
            }
        }
    };
    std::thread::scope(|scope| {
        (0..8).for_each(|number| drop(scope.spawn(move || read(number))));
    });
    server.stop().unwrap();
}

#[test]
fn one_that_never_sends_its_data_does_not_keep_others_from_memory() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}/a.img?size=64M&create", directory.path().display());
    unless_the_machine_stands_still(|| {
        let (server, address) = serve(&[&file], &small());
        let mut mute: Vec<Client> = (0..8).map(|_| Client::connect(address, "0", SIMPLE)).collect();
        for client in &mut mute {
            client.stream.write_all(&request(WRITE, 0, 1, 0, 1 << 20))?;
            client.stream.write_all(&[0; 4096])?;
        }
        write_and_read(address)?;
        server.stop().unwrap();
        Ok(())
    });
}

#[test]
fn more_requests_than_are_taken_at_a_time_are_all_answered() {
    for volume in ["mem:64M", "delay:1ms(mem:64M)"] {
        let (server, address) = serve(&[volume], &small());
        let mut client = Client::connect(address, "0", SIMPLE);
        let mut sender = client.stream.try_clone().unwrap();
        let count = 2000u64;
        let writer = std::thread::spawn(move || {
            for cookie in 0..count {
                let offset = cookie * 8192;
                let mut bytes = request(WRITE, 0, cookie, offset, 8192).to_vec();
                bytes.extend([cookie as u8; 8192]);
                sender.write_all(&bytes).unwrap();
            }
        });
        let mut seen = vec![false; count as usize];
        for _ in 0..count {
            let (cookie, reply) = client.receive().unwrap();
            assert_eq!(reply, Reply::Data(vec![]));
            assert!(!std::mem::replace(&mut seen[cookie as usize], true));
        }
        writer.join().unwrap();
        for cookie in 0..count {
            let read = client.read(cookie * 8192, 8192);
            assert!(read.iter().all(|byte| *byte == cookie as u8), "{cookie}");
        }
        server.stop().unwrap();
    }
}

#[test]
fn a_long_trim_leaves_room_for_others() {
    let (server, address) = serve(&["mem:64G"], &ServerConfig::default());
    let mut long = Client::connect(address, "0", SIMPLE);
    let mut good = Client::connect(address, "0", SIMPLE);
    let trims: Vec<u64> = (0..8u64).map(|n| long.send(TRIM, 0, n << 32, !511, &[])).collect();
    for _ in 0..50 {
        assert_eq!(good.read(0, 4096).len(), 4096);
    }
    for _ in &trims {
        assert_eq!(long.receive().unwrap().1, Reply::Data(vec![]));
    }
    server.stop().unwrap();
}
