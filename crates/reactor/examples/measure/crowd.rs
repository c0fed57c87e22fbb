//! Many connections: 1,000 idle ones watched, and a few active, polled directly or told of by the
//! ring.

use crate::sleep::{Echo, MESSAGE};
use crate::{processor_time, quantile, us};
use reactor::{Config, Listener, Reactor};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const IDLE: usize = 1000;
const RUN: Duration = Duration::from_millis(150);

/// How the client uses its connections.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// A message on each, then all the answers.
    Burst,
    /// One message at a time, on a connection picked at random.
    Single,
}

/// When the reactor parks pollers: more active than this, and as many fruitless polls.
const RULES: [(&str, Option<(usize, u32)>); 3] =
    [("direct", Some((usize::MAX, 1))), ("ring at once", Some((0, 1))), ("the rule", None)];

fn exchange(streams: &mut [TcpStream]) {
    for stream in &mut *streams {
        stream.write_all(&[1; MESSAGE]).expect("room");
    }
    for stream in streams {
        let mut bytes = [0; MESSAGE];
        while stream.read(&mut bytes).is_err() {
            std::hint::spin_loop();
        }
    }
}

/// Messages answered, and the median time of an exchange.
fn drive(mut streams: Vec<TcpStream>, shape: Shape) -> (u64, Duration) {
    reactor::pin(1).expect("a second core");
    let mut times = Vec::new();
    let (mut state, mut count) = (0x9e37_79b9_u64, 0);
    let begin = Instant::now();
    while begin.elapsed() < RUN {
        let before = Instant::now();
        match shape {
            Shape::Burst => {
                exchange(&mut streams);
                count += streams.len() as u64;
            }
            Shape::Single => {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let picked = (state % streams.len() as u64) as usize;
                exchange(&mut streams[picked..=picked]);
                count += 1;
            }
        }
        times.push(before.elapsed());
    }
    times.sort_unstable();
    (count, quantile(&times, 0.5))
}

/// One run: messages per second, median time of an exchange, server's time per message, enters
/// per message.
fn run(active: usize, shape: Shape, rule: Option<(usize, u32)>) -> [f64; 4] {
    let (send, receive) = channel();
    let server = thread::spawn(move || {
        let config = Config { cpu: Some(0), ..Config::default() };
        let reactor = Reactor::new(&config).expect("io_uring");
        if let Some((direct_max, patience)) = rule {
            reactor.set_crowd(direct_max, patience);
        }
        let listener = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
        let address = listener.local_addr().expect("bound");
        let open: Rc<Cell<usize>> = Rc::default();
        let mut clients = Vec::new();
        for _ in 0..IDLE + active {
            clients.push(TcpStream::connect(address).expect("listening"));
            Echo::attach(&reactor, listener.accept().expect("one waits").0, &open, MESSAGE);
        }
        send.send((clients, reactor.mailbox())).expect("awaited");
        reactor.run();
    });
    let (mut clients, mailbox) = receive.recv().expect("connected");
    let ask = || {
        let (report, answer) = channel();
        assert!(mailbox.post(move |reactor| {
            report.send((processor_time(), reactor.stats().enters)).expect("awaited");
        }));
        answer.recv().expect("answered")
    };
    // The idle ones are parked by then.
    thread::sleep(Duration::from_millis(50));
    let busy = clients.split_off(IDLE);
    for stream in &busy {
        stream.set_nonblocking(true).expect("TCP");
        stream.set_nodelay(true).expect("TCP");
    }
    let (used, entered) = ask();
    let driver = thread::spawn(move || drive(busy, shape));
    let (count, p50) = driver.join().expect("answered");
    let (used, entered) = {
        let (used_after, entered_after) = ask();
        (used_after - used, entered_after - entered)
    };
    drop(clients);
    server.join().expect("served");
    let count = count as f64;
    [count / RUN.as_secs_f64() / 1e3, us(p50), us(used) / count, entered as f64 / count]
}

/// Rows for 1 to 64 active connections, both shapes, all rules; the best of several runs, taken in
/// turn, since the machine has other work too.
pub fn rows() {
    for shape in [Shape::Burst, Shape::Single] {
        for active in [1, 4, 8, 16, 64] {
            let mut best = [[0.0, f64::MAX, f64::MAX, f64::MAX]; RULES.len()];
            for _ in 0..5 {
                for ((_, rule), best) in RULES.iter().zip(&mut best) {
                    let [rate, p50, used, entered] = run(active, shape, *rule);
                    best[0] = best[0].max(rate);
                    best[1] = best[1].min(p50);
                    best[2] = best[2].min(used);
                    best[3] = best[3].min(entered);
                }
            }
            for ((name, _), [rate, p50, used, entered]) in RULES.iter().zip(best) {
                println!(
                    "{shape:?} {active:>2} of {:>4} {name:<12} {rate:6.1} K/s, p50 {p50:6.1} us, \
                     CPU {used:5.2} us, enters {entered:.2} per message",
                    IDLE + active,
                );
            }
        }
    }
}
