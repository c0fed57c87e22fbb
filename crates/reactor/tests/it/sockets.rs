//! Sockets, readiness, and pollers: few and many.

use crate::recorder;

use reactor::{Complete, Config, Interest, Listener, Poll, PollerId, Reactor, Stream};
use recorder::{Calls, Recorder, config, reactor};
use std::cell::Cell;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Accepts a connection that has been made; it may come a little after the other end was told.
fn accept(listener: &Listener) -> (Stream, SocketAddr) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(Instant::now() < until, "no connection comes");
                thread::sleep(Duration::from_millis(1));
            }
            accepted => return accepted.expect("it listens"),
        }
    }
}

fn pair(address: &str) -> (Stream, TcpStream) {
    let listener = Listener::bind(address.parse().expect("an address")).expect("bound");
    let address = listener.local_addr().expect("bound");
    assert_eq!(listener.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
    let client = TcpStream::connect(address).expect("connected");
    let (server, peer) = accept(&listener);
    assert_eq!(peer, client.local_addr().expect("connected"));
    assert_eq!(server.local_addr().expect("connected"), address);
    (server, client)
}

#[test]
fn both_families_on_one_port() {
    let bound = || {
        let four = Listener::bind("0.0.0.0:0".parse().expect("an address")).expect("bound");
        let port = four.local_addr().expect("bound").port();
        let six: SocketAddr = format!("[::]:{port}").parse().expect("an address");
        match Listener::bind(six) {
            // Another may have taken it there.
            Err(error) if error.kind() == ErrorKind::AddrInUse => None,
            six => Some((four, six.expect("bound"), port)),
        }
    };
    let (four, six, port) = (0..10).find_map(|_| bound()).expect("[::] leaves IPv4 alone");
    TcpStream::connect(("127.0.0.1", port)).expect("connected");
    accept(&four);
    TcpStream::connect(("::1", port)).expect("connected");
    accept(&six);
    assert!(four.accept().is_err());
}

#[test]
fn unix_sockets_are_streams_too() {
    let path = std::env::temp_dir().join(format!("reactor-{}.s", std::process::id()));
    let listener = Listener::bind_local(&path).expect("bound");
    assert_eq!(listener.accept_any().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
    let client = Stream::connect_local(&path).expect("connected");
    let server = listener.accept_any().expect("one waits");
    assert_eq!(Listener::bind_local(&path).map(drop).unwrap_err().kind(), ErrorKind::AddrInUse);
    std::fs::remove_file(&path).expect("it is left there");
    assert_eq!(server.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    // On the way to another core.
    let server = Stream::try_from(OwnedFd::from(server)).expect("a socket");
    server.set_nodelay(false).expect("no effect");
    assert!(server.peer_addr().is_err() && listener.local_addr().is_err());
    assert_eq!(client.writev(&[IoSlice::new(b"to "), IoSlice::new(b"you")]).expect("room"), 6);
    let mut bytes = [0; 8];
    assert_eq!(server.recv(&mut bytes).expect("sent"), 6);
    assert_eq!(&bytes[..6], b"to you");
    client.shutdown().expect("connected");
    assert_eq!(server.recv(&mut bytes).expect("ended"), 0);
}

#[test]
fn vectors_go_out_whole_and_come_in_whole() {
    let (server, mut client) = pair("[::1]:0");
    let pieces: Vec<[u8; 3]> = (0..2000u32).map(|n| [n as u8, (n >> 8) as u8, 7]).collect();
    let slices: Vec<IoSlice> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let sent = server.writev(&slices).expect("room");
    assert_eq!(sent, 1024 * 3, "as many vectors as a call takes");
    let mut bytes = vec![0; sent];
    client.read_exact(&mut bytes).expect("sent");
    assert_eq!(bytes, pieces[..1024].concat());

    client.write_all(b"head and body").expect("room");
    let (mut head, mut body) = ([0; 4], [0; 32]);
    let count = loop {
        let mut into = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut body)];
        match server.readv(&mut into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            other => break other.expect("connected"),
        }
    };
    assert_eq!((count, &head, &body[..9]), (13, b"head", &b" and body"[..]));
}

#[test]
fn a_closed_stream_is_an_error_and_no_signal() {
    let (server, client) = pair("127.0.0.1:0");
    drop(client);
    let until = Instant::now() + Duration::from_secs(10);
    // Until its reset comes, which may be after there is room for more.
    let error = loop {
        match server.writev(&[IoSlice::new(b"x")]) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => break error,
            _ => assert!(Instant::now() < until, "nothing tells that it is closed"),
        }
    };
    assert!([ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&error.kind()));
}

#[test]
fn a_watch_tells_readiness_once() {
    let (server, mut client) = pair("127.0.0.1:0");
    let watching = reactor(&config());
    let sink = Recorder::new(&watching, 2);
    watching.watch(server.as_raw_fd(), Interest::READ, Rc::clone(&sink) as Rc<_>, 1);
    watching.watch(server.as_raw_fd(), Interest::WRITE, Rc::clone(&sink) as Rc<_>, 2);
    let writer = thread::spawn(move || {
        thread::sleep(std::time::Duration::from_millis(20));
        client.write_all(b"ready").expect("room");
        client
    });
    watching.run();
    let seen = sink.results();
    assert!(seen[0].0 == 1 && seen[0].1 & i32::from(libc::POLLIN) != 0, "{seen:?}");
    assert!(seen[1].0 == 2 && seen[1].1 & i32::from(libc::POLLOUT) != 0, "{seen:?}");
    drop(writer.join());
}

#[test]
fn an_ended_watch_is_told_and_a_later_one_is_not_met() {
    let (server, client) = pair("127.0.0.1:0");
    let watching = reactor(&config());
    let cancelled = Recorder::new(&watching, usize::MAX);
    let id = watching.watch(server.as_raw_fd(), Interest::READ, Rc::clone(&cancelled) as Rc<_>, 1);
    watching.unwatch(id);
    let done = Recorder::new(&watching, 1);
    let again = Rc::clone(&watching);
    let fd = server.as_raw_fd();
    let step = Calls({
        let done = Rc::clone(&done);
        move |_, _| {
            // The first watch has ended; the new one takes its place, and the old id is void.
            again.watch(fd, Interest::READ, Rc::clone(&done) as Rc<_>, 2);
            again.unwatch(id);
            (&client).write_all(b"x").expect("room");
        }
    });
    let soon = watching.now() + std::time::Duration::from_millis(20);
    watching.timer(soon, Rc::new(step), 0);
    watching.run();
    assert_eq!(cancelled.results(), [(1, -libc::ECANCELED)]);
    let seen = done.results();
    assert!(seen[0].1 > 0, "{seen:?}");
}

/// Sends back what comes, as a front door would: directly, and watched when parked.
struct Echo {
    stream: Stream,
    reactor: Rc<Reactor>,
    this: Weak<Echo>,
    id: Cell<Option<PollerId>>,
    open: Rc<Cell<usize>>,
}

impl Echo {
    fn start(reactor: &Rc<Reactor>, stream: Stream, open: &Rc<Cell<usize>>) {
        let echo = Rc::new_cyclic(|this| Echo {
            stream,
            reactor: Rc::clone(reactor),
            this: Weak::clone(this),
            id: Cell::new(None),
            open: Rc::clone(open),
        });
        echo.id.set(Some(reactor.attach(Rc::clone(&echo) as Rc<_>)));
    }
}

impl Poll for Echo {
    fn poll(&self) -> bool {
        let mut bytes = [0; 64];
        match self.stream.recv(&mut bytes) {
            Ok(0) => {
                self.reactor.detach(self.id.get().expect("attached"));
                self.open.set(self.open.get() - 1);
                if self.open.get() == 0 {
                    self.reactor.stop();
                }
                true
            }
            Ok(count) => {
                let sent = self.stream.writev(&[IoSlice::new(&bytes[..count])]);
                assert_eq!(sent.expect("room for an answer"), count);
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                false
            }
        }
    }

    fn park(&self) -> bool {
        let this = self.this.upgrade().expect("attached");
        self.reactor.watch(self.stream.as_raw_fd(), Interest::READ, this, 0);
        true
    }
}

impl Complete for Echo {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        self.reactor.activate(self.id.get().expect("attached"));
    }
}

/// `connections` clients on a thread of their own, each sending `rounds` messages in turn.
fn echo(config: &Config, connections: usize, rounds: usize) -> reactor::Stats {
    let serving = reactor(config);
    let open = Rc::new(Cell::new(connections));
    let mut clients = Vec::new();
    for _ in 0..connections {
        let (server, client) = pair("127.0.0.1:0");
        Echo::start(&serving, server, &open);
        clients.push(client);
    }
    let client = thread::spawn(move || {
        for round in 0..rounds {
            for (number, client) in clients.iter_mut().enumerate() {
                let text = format!("{number}:{round}");
                client.write_all(text.as_bytes()).expect("room");
                let mut answer = vec![0; text.len()];
                client.read_exact(&mut answer).expect("echoed");
                assert_eq!(answer, text.as_bytes());
            }
            thread::sleep(std::time::Duration::from_micros(round as u64 % 5 * 50));
        }
    });
    serving.run();
    client.join().expect("all answers came");
    serving.stats()
}

#[test]
fn one_connection_echoes() {
    let stats = echo(&config(), 1, 500);
    assert_eq!(stats.crowd_parks, 0, "{stats:?}");
}

#[test]
fn a_crowd_echoes_through_the_ring() {
    // Long enough that the loop does not sleep between two messages, however slow the client is.
    let spin = std::time::Duration::from_millis(20);
    let stats = echo(&Config { spin, ..config() }, 40, 50);
    // All but the last few were parked at least once without the loop going to sleep.
    assert!(stats.crowd_parks >= 36, "{stats:?}");
    assert_eq!(stats.in_flight, 0);
}

#[test]
fn without_spinning_each_message_still_arrives() {
    let spin = std::time::Duration::ZERO;
    echo(&Config { spin, ..config() }, 3, 200);
}

#[test]
fn never_sleeping_is_a_choice() {
    let stats = echo(&Config { poll_always: true, ..config() }, 1, 100);
    assert_eq!(stats.sleeps, 0);
}

#[test]
fn a_stream_moves_to_another_core() {
    let (server, mut client) = pair("127.0.0.1:0");
    let (send, receive) = std::sync::mpsc::channel();
    let other = thread::spawn(move || {
        let other = reactor(&config());
        send.send(other.mailbox()).expect("awaited");
        other.run();
    });
    let mailbox = receive.recv().expect("sent");
    let fd = OwnedFd::from(server);
    assert!(mailbox.post(move |reactor| {
        let stream = Stream::try_from(fd).expect("a socket");
        Echo::start(reactor, stream, &Rc::new(Cell::new(1)));
    }));
    client.write_all(b"hello").expect("room");
    let mut answer = [0; 5];
    client.read_exact(&mut answer).expect("echoed");
    assert_eq!(&answer, b"hello");
    drop(client);
    other.join().expect("stopped at the end of the stream");
}

#[test]
fn completions_beyond_the_queue_are_not_lost() {
    let (server, client) = pair("127.0.0.1:0");
    let watching = reactor(&Config { entries: 4, ..config() });
    let sink = Recorder::new(&watching, 500);
    for token in 0..500 {
        watching.watch(server.as_raw_fd(), Interest::READ, Rc::clone(&sink) as Rc<_>, token);
    }
    // All become ready at one blow, with 16 places for completions.
    let soon = watching.now() + std::time::Duration::from_millis(5);
    let write = Calls(move |_, _| (&client).write_all(b"x").expect("room"));
    watching.timer(soon, Rc::new(write), 0);
    watching.run();
    assert!(sink.results().iter().map(|seen| seen.0).eq(0..500));
}
