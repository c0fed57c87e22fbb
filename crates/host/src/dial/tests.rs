use super::*;
use reactor::Drive;
use rustix::event::{PollFd, PollFlags, poll};
use std::net::TcpListener;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(30);

fn reactor(blocking_threads: usize) -> Rc<Reactor> {
    let config = reactor::Config { blocking_threads, ..reactor::Config::default() };
    Reactor::new(&config).expect("a reactor")
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("it listens");
    (listener, address)
}

/// An address that answers nothing: as many connections wait there as may. While the rest is held.
fn black_hole() -> (SocketAddr, impl Sized) {
    let (listener, address) = listener();
    rustix::net::listen(&listener, 0).expect("it listens");
    let stream = TcpStream::connect(address).expect("there is room for one");
    poll(&mut [PollFd::new(&listener, PollFlags::IN)], None).expect("it waits there");
    (address, (listener, stream))
}

type Told = Rc<RefCell<Vec<(&'static str, Dialed)>>>;

/// Tells by `name` what comes of it.
fn tell(told: &Told, name: &'static str) -> impl FnOnce(Dialed) + 'static {
    let told = Rc::clone(told);
    move |dialed| told.borrow_mut().push((name, dialed))
}

fn turn_until(reactor: &Reactor, over: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !over() {
        assert!(Instant::now() < until, "it takes too long");
        reactor.turn_for(Drive::Until(Instant::now() + Duration::from_millis(10)));
    }
}

#[test]
fn a_silent_address_leaves_time_for_the_next() {
    let reactor = reactor(1);
    let (hole, _held) = black_hole();
    let (_listener, good) = listener();
    let dialer = Dialer::new(&reactor, Local::default());
    let told = Told::default();
    dialer.dial(Peer::Known(vec![hole, good]), None, Duration::from_secs(4), tell(&told, "good"));
    turn_until(&reactor, || !told.borrow().is_empty());
    let (_, dialed) = told.borrow_mut().pop().expect("it was told");
    assert_eq!(dialed.expect("a connection").peer_addr().expect("it is connected"), good);
    dialer.dial(Peer::Known(vec![hole]), None, Duration::from_millis(50), tell(&told, "hole"));
    turn_until(&reactor, || !told.borrow().is_empty());
    let (_, dialed) = told.borrow_mut().pop().expect("it was told");
    assert_eq!(dialed.expect_err("nobody answers"), "connection timed out");
}

#[test]
fn an_address_that_refuses_is_not_waited_for() {
    let reactor = reactor(1);
    let (closed, refusing) = listener();
    drop(closed);
    let dialer = Dialer::new(&reactor, Local::default());
    let told = Told::default();
    dialer.dial(Peer::Known(vec![refusing; 2]), None, 2 * PATIENCE, tell(&told, "refusing"));
    turn_until(&reactor, || !told.borrow().is_empty());
    let (_, dialed) = told.borrow_mut().pop().expect("it was told");
    assert_eq!(dialed.expect_err("nobody listens"), "connection refused");
}

#[test]
fn silent_peers_hold_nobody_up() {
    let reactor = reactor(1);
    let (hole, _held) = black_hole();
    let (_listener, good) = listener();
    let told = Told::default();
    let address = |address: SocketAddr| {
        Peer::Named(Address { host: address.ip().to_string(), port: address.port() })
    };
    let silent: Vec<_> = (0..64).map(|_| Dialer::new(&reactor, Local::default())).collect();
    for dialer in &silent {
        dialer.dial(address(hole), None, 2 * PATIENCE, tell(&told, "silent"));
    }
    let dialer = Dialer::new(&reactor, Local::default());
    // The attempt before is given up.
    dialer.dial(address(hole), None, 2 * PATIENCE, tell(&told, "given up"));
    reactor.turn_for(Drive::Poll);
    dialer.dial(address(good), None, 2 * PATIENCE, tell(&told, "good"));
    turn_until(&reactor, || !told.borrow().is_empty());
    let (name, dialed) = told.borrow_mut().pop().expect("it was told");
    assert_eq!(name, "good");
    assert!(dialed.is_ok());
}

/// Look-ups so far, and what ends the first.
static LOOK_UPS: AtomicUsize = AtomicUsize::new(0);
static END: Mutex<Option<mpsc::Receiver<SocketAddr>>> = Mutex::new(None);

fn look_up_slowly(_: &Address) -> io::Result<Vec<SocketAddr>> {
    LOOK_UPS.fetch_add(1, Ordering::SeqCst);
    let end = END.lock().expect("no panic").take().expect("one at a time");
    Ok(vec![end.recv().expect("the test says when")])
}

#[test]
fn a_name_is_looked_up_once_at_a_time() {
    let reactor = reactor(4);
    let (_listener, good) = listener();
    let (sender, receiver) = mpsc::channel();
    *END.lock().expect("no panic") = Some(receiver);
    let dialer = Dialer::with(&reactor, Local::default(), look_up_slowly);
    let told = Told::default();
    let name = || Peer::Named("a.example".parse().expect("a name"));
    dialer.dial(name(), None, PATIENCE, tell(&told, "first"));
    turn_until(&reactor, || LOOK_UPS.load(Ordering::SeqCst) == 1);
    dialer.hang_up();
    for _ in 0..8 {
        dialer.dial(name(), None, PATIENCE, tell(&told, "given up"));
    }
    dialer.dial(name(), None, PATIENCE, tell(&told, "last"));
    sender.send(good).expect("it waits");
    turn_until(&reactor, || !told.borrow().is_empty());
    let (name, dialed) = told.borrow_mut().pop().expect("it was told");
    assert_eq!((name, LOOK_UPS.load(Ordering::SeqCst)), ("last", 1));
    assert!(dialed.is_ok());
}

#[test]
fn a_look_up_that_nobody_wants_is_left_out() {
    static ASKED: AtomicBool = AtomicBool::new(false);
    fn asked(_: &Address) -> io::Result<Vec<SocketAddr>> {
        ASKED.store(true, Ordering::SeqCst);
        Ok(Vec::new())
    }
    let reactor = reactor(1);
    let (sender, receiver) = mpsc::channel::<()>();
    let busy = Box::new(move || receiver.recv().map_or(0, |()| 1));
    // Without an attempt, a dialer has nothing to do.
    reactor.blocking(busy, Dialer::new(&reactor, Local::default()), TOKEN_BEGIN);
    let dialer = Dialer::with(&reactor, Local::default(), asked);
    let name = Peer::Named("a.example".parse().expect("a name"));
    dialer.dial(name, None, PATIENCE, |_| panic!("it was given up"));
    dialer.hang_up();
    drop(sender);
    turn_until(&reactor, || dialer.looking.borrow().is_none());
    assert!(!ASKED.load(Ordering::SeqCst));
}

/// A controller that knows `known` alone, does so many handshakes and counts them.
fn speaks_tls(known: Vec<Psk>, handshakes: usize) -> (SocketAddr, std::thread::JoinHandle<usize>) {
    use std::io::{Read, Write};
    let (listener, address) = listener();
    let thread = std::thread::spawn(move || {
        let known = Arc::new(known);
        for count in 0..handshakes {
            let (mut stream, _) = listener.accept().expect("a connection");
            let known = Arc::clone(&known);
            let find = move |identity: &[u8]| {
                known.iter().filter(|psk| psk.identity.as_bytes() == identity).cloned().collect()
            };
            let mut handshake = Handshake::controller(Arc::new(find));
            loop {
                let mut record = vec![0; 5];
                if stream.read_exact(&mut record).is_err() {
                    break;
                }
                record.resize(5 + usize::from(u16::from_be_bytes([record[3], record[4]])), 0);
                stream.read_exact(&mut record[5..]).expect("a whole record");
                let progress = handshake.advance(&record);
                let _ = stream.write_all(&handshake.take_output());
                match progress {
                    Ok(tls::Progress::Receive) => {}
                    Ok(tls::Progress::Done(_)) => return count + 1,
                    Err(_) => break,
                }
            }
        }
        handshakes
    });
    (address, thread)
}

fn offers() -> Vec<Psk> {
    let key = tls::Key::generate(tls::Hash::Sha256, &mut |bytes| bytes.fill(7));
    tls::offers(&key, "nqn.host", "nqn.subsystem").expect("short names")
}

#[test]
fn a_key_is_offered_by_all_its_names() {
    let reactor = reactor(1);
    let dialer = Dialer::new(&reactor, Local::default());
    let told = Told::default();
    let secure = Secure::by(offers(), None);
    let dial = |address, name| {
        dialer.dial(Peer::Known(vec![address]), secure.clone(), PATIENCE, tell(&told, name));
        turn_until(&reactor, || !told.borrow().is_empty());
        told.borrow_mut().pop().expect("it was told").1
    };
    let (address, thread) = speaks_tls(Vec::new(), 4);
    let refused = dial(address, "refused").expect_err("it knows none");
    assert!(refused.starts_with("no TLS session: the other end refuses"), "{refused}");
    assert_eq!(thread.join().expect("no panic"), 4);

    // The last of them; after that it is the first.
    for count in [4, 1] {
        let (address, thread) = speaks_tls(vec![offers().pop().expect("four")], 4);
        match dial(address, "taken") {
            Ok(_) => assert_eq!(thread.join().expect("no panic"), count),
            Err(words) => {
                assert!(words.contains("the kernel cannot encrypt"), "{words}");
                assert!(tls::check().is_err() && thread.join().expect("no panic") == 4);
            }
        }
    }
}

#[test]
fn what_a_key_was_taken_by_is_known_as_long_as_it_is_the_same() {
    let secure = Secure::by(offers(), None).expect("there are some");
    secure.taken.set(2);
    let same = Secure::by(offers(), Some(Rc::clone(&secure))).expect("there are some");
    assert_eq!(same.offer(same.taken.get(), 0).map(|(index, _)| index), Some(2));
    assert_eq!(same.offer(2, 3).map(|(index, _)| index), Some(1));
    assert!(same.offer(2, 4).is_none());
    let mut other = offers();
    other[0].secret.fill(1);
    assert_eq!(Secure::by(other, Some(secure)).expect("there are some").taken.get(), 0);
    assert!(Secure::by(Vec::new(), Some(same)).is_none());
}

/// One that does not speak TLS is not asked again.
#[test]
fn a_listener_without_tls_is_tried_once() {
    let reactor = reactor(1);
    let dialer = Dialer::new(&reactor, Local::default());
    let told = Told::default();
    let (listener, address) = listener();
    let thread = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(&[3, 0, 24, 0, 24]).expect("it is heard");
        listener.set_nonblocking(true).expect("a socket");
        std::thread::sleep(Duration::from_millis(200));
        listener.accept().is_err()
    });
    let secure = Secure::by(offers(), None);
    dialer.dial(Peer::Known(vec![address]), secure, PATIENCE, tell(&told, "plain"));
    turn_until(&reactor, || !told.borrow().is_empty());
    let refused = told.borrow_mut().pop().expect("it was told").1.expect_err("no TLS");
    assert!(refused.contains("is not TLS 1.3"), "{refused}");
    assert!(thread.join().expect("no panic"));
}
