//! Latency of the first exchange after a pause, beside a blocking echo that paused as long.

use crate::{processor_time, quantile, us, wait_until};
use reactor::{Complete, Config, Interest, Listener, Poll, PollerId, Reactor, Stream};
use std::cell::Cell;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a request and of its answer.
pub const MESSAGE: usize = 64;

/// What answers are taken from.
static ANSWERS: [u8; 8192] = [1; 8192];

/// Answers every message.
pub struct Echo {
    pub stream: Stream,
    answer_bytes: usize,
    reactor: Rc<Reactor>,
    this: Weak<Echo>,
    id: Cell<Option<PollerId>>,
    open: Rc<Cell<usize>>,
}

impl Echo {
    pub fn attach(
        reactor: &Rc<Reactor>,
        stream: Stream,
        open: &Rc<Cell<usize>>,
        answer_bytes: usize,
    ) {
        open.set(open.get() + 1);
        let echo = Rc::new_cyclic(|this| Echo {
            stream,
            answer_bytes,
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
        let mut bytes = [0; 2 * MESSAGE];
        match self.stream.recv(&mut bytes) {
            Ok(0) => {
                self.reactor.detach(self.id.get().expect("attached"));
                self.open.set(self.open.get() - 1);
                if self.open.get() == 0 {
                    self.reactor.stop();
                }
                true
            }
            Ok(_) => {
                let answer = [IoSlice::new(&ANSWERS[..self.answer_bytes])];
                assert_eq!(self.stream.writev(&answer).expect("room"), self.answer_bytes);
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => panic!("{error}"),
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

/// A client of both servers: `rounds` exchanges with each by turns, each after `pause`.
fn client(servers: &[SocketAddr], pause: Duration, rounds: usize) -> Vec<Vec<Duration>> {
    reactor::pin(1).expect("a second core");
    let connect = |address: &SocketAddr| {
        let stream = TcpStream::connect(address).expect("listening");
        stream.set_nodelay(true).expect("TCP");
        stream.set_nonblocking(true).expect("TCP");
        stream
    };
    let mut streams: Vec<TcpStream> = servers.iter().map(connect).collect();
    let mut times = vec![Vec::with_capacity(rounds); servers.len()];
    for _ in 0..rounds {
        for (stream, times) in streams.iter_mut().zip(&mut times) {
            if pause < Duration::from_millis(1) {
                wait_until(Instant::now() + pause);
            } else {
                thread::sleep(pause);
            }
            let begin = Instant::now();
            stream.write_all(&[1; MESSAGE]).expect("room");
            let mut bytes = [0; MESSAGE];
            while stream.read(&mut bytes).is_err() {
                std::hint::spin_loop();
            }
            times.push(begin.elapsed());
        }
    }
    times
}

/// Runs `serve` on a thread; its address, and the processor time it will have used.
pub fn start(
    serve: impl FnOnce(Sender<SocketAddr>) + Send + 'static,
) -> (SocketAddr, thread::JoinHandle<Duration>) {
    let (send, receive) = channel();
    let server = thread::spawn(move || {
        serve(send);
        processor_time()
    });
    (receive.recv().expect("listening"), server)
}

fn row(
    servers: Vec<(SocketAddr, thread::JoinHandle<Duration>)>,
    pause: Duration,
    rounds: usize,
) -> Vec<String> {
    let addresses: Vec<SocketAddr> = servers.iter().map(|(address, _)| *address).collect();
    let client = thread::spawn(move || client(&addresses, pause, rounds));
    let times = client.join().expect("answered");
    let text = times.into_iter().zip(servers).map(|(mut times, (_, server))| {
        let used = server.join().expect("served") / rounds as u32;
        times.sort_unstable();
        let [p50, p99] = [0.5, 0.99].map(|share| us(quantile(&times, share)));
        format!("p50 {p50:6.1} p99 {p99:7.1} us, CPU {:5.1} us", us(used))
    });
    text.collect()
}

fn serve_blocking(ready: Sender<SocketAddr>) {
    reactor::pin(0).expect("a first core");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    ready.send(listener.local_addr().expect("bound")).expect("awaited");
    let (mut stream, _) = listener.accept().expect("one comes");
    stream.set_nodelay(true).expect("TCP");
    let mut bytes = [0; MESSAGE];
    while stream.read(&mut bytes).expect("connected") > 0 {
        stream.write_all(&bytes).expect("room");
    }
}

/// Answers one connection by a reactor; `with` is told of the reactor before it runs.
pub fn serve_reactor(
    ready: Sender<SocketAddr>,
    spin: Duration,
    answer_bytes: usize,
    with: impl FnOnce(&Rc<Reactor>),
) {
    let config = Config { cpu: Some(0), spin, ..Config::default() };
    let reactor = Reactor::new(&config).expect("io_uring");
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
    ready.send(listener.local_addr().expect("bound")).expect("awaited");
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) => thread::yield_now(),
        }
    };
    Echo::attach(&reactor, stream, &Rc::default(), answer_bytes);
    with(&reactor);
    reactor.run();
}

/// A row per pause: one server at a time for short ones, by turns with the blocking one for long
/// ones.
pub fn rows() {
    let spinning =
        |us| move |ready| serve_reactor(ready, Duration::from_micros(us), MESSAGE, |_| ());
    for (pause_us, rounds) in
        [(0, 50_000), (5, 50_000), (15, 30_000), (30, 30_000), (100, 10_000), (500, 4000)]
    {
        let pause = Duration::from_micros(pause_us);
        let blocking = row(vec![start(serve_blocking)], pause, rounds);
        println!("pause {pause_us:>3} us: blocking {}", blocking[0]);
        for spin in [0, 20] {
            let row = row(vec![start(spinning(spin))], pause, rounds);
            println!("         spin {spin:>2} us {}", row[0]);
        }
    }
    for (pause_ms, rounds) in [(10, 300), (1000, 15)] {
        let pause = Duration::from_millis(pause_ms);
        let servers = vec![start(serve_blocking), start(spinning(20))];
        let rows = row(servers, pause, rounds);
        println!("pause {pause_ms:>4} ms, by turns: blocking {}", rows[0]);
        println!("                         reactor  {}", rows[1]);
    }
}
