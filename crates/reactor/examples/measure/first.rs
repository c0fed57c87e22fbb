//! The first exchange after a rest, by ways of waiting for it: what docs/performance.md says of the first I/O
//! of an idle target rests on this.
//!
//! Each way is measured alone, the core otherwise idle: 72 bytes come after [`REST`], 4144 go back, the bytes of
//! a read of 4 KiB. Twice, the second time in the opposite order.

use crate::sleep::{serve_reactor, start};
use crate::{quantile, us};
use reactor::{Complete, Reactor};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::rc::{Rc, Weak};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};
use uring::{File, Ring, RingOptions, Wait, entry};

/// Bytes of a request: a command capsule.
const REQUEST: usize = 72;
/// Bytes of an answer: a block with its header, and a response.
const ANSWER: usize = 4144;
/// How long nothing happens before an exchange.
const REST: Duration = Duration::from_millis(500);
/// Exchanges that are measured of each way.
const ROUNDS: usize = 15;

/// How long a reactor looks for requests before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// How a server waits for a request.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// In `recv` on its only socket.
    Recv,
    /// The same, but it wakes up this often for nothing.
    RecvTicking(Duration),
    Poll,
    Epoll,
    /// In a ring that polls the socket; then `recv`.
    RingPoll,
    /// In a ring that reads from the socket.
    RingRead,
    /// The reactor, spinning for 20 us before it sleeps.
    Reactor,
    /// The same with a timer that fires this often.
    ReactorTicking(Duration),
}

const WAYS: [Way; 10] = [
    Way::Recv,
    Way::Poll,
    Way::Epoll,
    Way::RingPoll,
    Way::RingRead,
    Way::Reactor,
    Way::ReactorTicking(Duration::from_millis(10)),
    Way::ReactorTicking(Duration::from_millis(4)),
    Way::ReactorTicking(Duration::from_millis(1)),
    Way::RecvTicking(Duration::from_millis(4)),
];

/// Prints a row per way, twice.
pub fn rows() {
    let turns = WAYS.iter().chain(WAYS.iter().rev());
    for &way in turns {
        let (address, server) = start(move |ready| serve(way, ready));
        let client = thread::spawn(move || client(address));
        let mut times = client.join().expect("answered");
        let used = server.join().expect("served").as_secs_f64();
        times.sort_unstable();
        let rested = (REST * (ROUNDS as u32 + 1)).as_secs_f64();
        println!(
            "{:<24} p50 {:6.1} us, from {:6.1} to {:6.1}; CPU {:.2} %",
            format!("{way:?}"),
            us(quantile(&times, 0.5)),
            us(times[0]),
            us(times[times.len() - 1]),
            used / rested * 100.0
        );
    }
}

/// The times of the exchanges but for the first one.
fn client(server: SocketAddr) -> Vec<Duration> {
    reactor::pin(1).expect("a second core");
    let mut stream = TcpStream::connect(server).expect("listening");
    stream.set_nodelay(true).expect("TCP");
    stream.set_nonblocking(true).expect("TCP");
    let mut times = Vec::with_capacity(ROUNDS + 1);
    let mut bytes = [0; ANSWER];
    for _ in 0..=ROUNDS {
        thread::sleep(REST);
        let begin = Instant::now();
        stream.write_all(&[1; REQUEST]).expect("room");
        let mut got = 0;
        while got < ANSWER {
            match stream.read(&mut bytes[got..]) {
                Ok(0) => panic!("the server is gone"),
                Ok(count) => got += count,
                Err(_) => std::hint::spin_loop(),
            }
        }
        times.push(begin.elapsed());
    }
    times.split_off(1)
}

fn serve(way: Way, ready: Sender<SocketAddr>) {
    match way {
        Way::Reactor => serve_reactor(ready, SPIN, ANSWER, |_| ()),
        Way::ReactorTicking(period) => {
            serve_reactor(ready, SPIN, ANSWER, |reactor| Tick::begin(reactor, period));
        }
        _ => serve_one(way, &ready),
    }
}

/// Waits in `way` for whatever comes on the only connection.
fn serve_one(way: Way, ready: &Sender<SocketAddr>) {
    reactor::pin(0).expect("a first core");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    ready.send(listener.local_addr().expect("bound")).expect("awaited");
    let (mut stream, _) = listener.accept().expect("one comes");
    stream.set_nodelay(true).expect("TCP");
    let mut waiter = Waiter::new(way, &stream);
    let mut bytes = [0; REQUEST];
    loop {
        let count = waiter.receive(&mut stream, &mut bytes);
        if count == 0 {
            return;
        }
        assert_eq!(count, REQUEST, "one segment");
        stream.write_all(&[0; ANSWER]).expect("room");
    }
}

/// What a way of waiting needs beside the socket.
enum Waiter {
    Blocking,
    Poll,
    Epoll(RawFd),
    RingPoll(Ring),
    RingRead(Ring),
}

impl Waiter {
    fn new(way: Way, stream: &TcpStream) -> Waiter {
        let ring = || {
            let options = RingOptions { entries: 8, ..RingOptions::default() };
            Ring::with_options(&options).expect("io_uring")
        };
        match way {
            Way::RecvTicking(period) => {
                stream.set_read_timeout(Some(period)).expect("TCP");
                Waiter::Blocking
            }
            Way::Poll => Waiter::Poll,
            Way::Epoll => Waiter::Epoll(epoll_of(stream.as_raw_fd())),
            Way::RingPoll => Waiter::RingPoll(ring()),
            Way::RingRead => Waiter::RingRead(ring()),
            _ => Waiter::Blocking,
        }
    }

    /// Bytes received after waiting for some.
    fn receive(&mut self, stream: &mut TcpStream, bytes: &mut [u8; REQUEST]) -> usize {
        let fd = stream.as_raw_fd();
        match self {
            Waiter::Blocking => {}
            Waiter::Poll => {
                let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one entry, which outlives the call.
                let ready = unsafe { libc::poll(&raw mut wanted, 1, -1) };
                assert_eq!(ready, 1, "it waits for ever");
            }
            Waiter::Epoll(epoll) => {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                // SAFETY: room for one event, which outlives the call.
                let ready = unsafe { libc::epoll_wait(*epoll, &raw mut event, 1, -1) };
                assert_eq!(ready, 1, "it waits for ever");
            }
            Waiter::RingPoll(ring) => {
                let entry = entry::poll_add(File::Fd(fd), libc::POLLIN as u32);
                // SAFETY: it points to no memory.
                unsafe { ring.push(&entry) }.expect("room");
                completed(ring);
            }
            Waiter::RingRead(ring) => {
                let entry = entry::read(File::Fd(fd), bytes.as_mut_ptr(), REQUEST as u32, 0);
                // SAFETY: `bytes` outlives the operation, which is waited for.
                unsafe { ring.push(&entry) }.expect("room");
                return usize::try_from(completed(ring)).expect("connected");
            }
        }
        loop {
            match stream.read(bytes) {
                Ok(count) => return count,
                // One tick.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Waiter::Epoll(fd) = self {
            // SAFETY: it is ours and used no more.
            unsafe { libc::close(*fd) };
        }
    }
}

/// An epoll descriptor that watches `fd`.
fn epoll_of(fd: RawFd) -> RawFd {
    // SAFETY: no memory is involved.
    let epoll = unsafe { libc::epoll_create1(0) };
    assert!(epoll >= 0, "epoll");
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: the event outlives the call.
    let added = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    assert_eq!(added, 0, "epoll_ctl");
    epoll
}

/// Waits for the one operation in flight; its result.
fn completed(ring: &mut Ring) -> i32 {
    let mut done = Vec::with_capacity(1);
    while done.is_empty() {
        ring.enter(Wait::Forever).expect("io_uring");
        ring.reap(&mut done);
    }
    done[0].result
}

/// A timer that does nothing, again and again.
struct Tick {
    reactor: Rc<Reactor>,
    period: Duration,
    this: Weak<Tick>,
}

impl Tick {
    fn begin(reactor: &Rc<Reactor>, period: Duration) {
        let reactor = Rc::clone(reactor);
        Rc::new_cyclic(|this| Tick { reactor, period, this: Weak::clone(this) }).complete(0, 0, 0);
    }
}

impl Complete for Tick {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        let this = self.this.upgrade().expect("whoever calls holds it");
        self.reactor.timer(Instant::now() + self.period, this, token);
    }
}
