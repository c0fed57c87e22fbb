//! Handshakes on connections of a reactor's. Where the kernel has no TLS, what is done ends with that it cannot encrypt.

use reactor::{Drive, Reactor, Stream};
use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use tls::{
    Derivation, Handshake, HandshakeError, Hash, Key, Progress, Psk, Secured, Upgrade,
    UpgradeError, Version, accepted,
};

const HOST: &str = "nqn.2014-08.org.example:host1";
const SUBSYSTEM: &str = "nqn.2024-01.org.example:disks";
const PATIENCE: Duration = Duration::from_secs(30);

type Outcome = Result<Secured, UpgradeError>;
type Told = Rc<RefCell<Vec<(&'static str, Outcome)>>>;

fn key() -> Key {
    Key::generate(Hash::Sha256, &mut |bytes| bytes.fill(7))
}

fn psk() -> Psk {
    let psk = Psk::derive(&key(), HOST, SUBSYSTEM, Version::Zero, Derivation::Compatible);
    psk.expect("short names")
}

fn controller() -> Handshake {
    Handshake::controller(Arc::new(|identity: &[u8]| accepted(identity, &key())))
}

fn reactor() -> Rc<Reactor> {
    Reactor::new(&reactor::Config::default()).expect("a reactor")
}

/// Both ends of a connection.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("it listens")).expect("a peer");
    (near, listener.accept().expect("it waits").0)
}

fn begin(
    reactor: &Rc<Reactor>,
    (name, stream): (&'static str, TcpStream),
    handshake: Handshake,
    until: Option<Instant>,
    told: &Told,
) -> Rc<Upgrade> {
    let told = Rc::clone(told);
    let done = move |outcome| told.borrow_mut().push((name, outcome));
    let stream = Stream::try_from(OwnedFd::from(stream)).expect("a socket");
    Upgrade::begin(reactor, stream, handshake, until, done)
}

fn turn_until(reactor: &Reactor, over: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !over() {
        assert!(Instant::now() < until, "it takes too long");
        reactor.turn_for(Drive::Until(Instant::now() + Duration::from_millis(5)));
    }
}

/// The handshake is done, whether the kernel can go on or not.
fn is_done(outcome: &Outcome) -> bool {
    match outcome {
        Ok(secured) => secured.peer.host_nqn == HOST && secured.peer.subsystem_nqn == SUBSYSTEM,
        Err(UpgradeError::Kernel(_)) => tls::check().is_err(),
        Err(_) => false,
    }
}

#[test]
fn both_ends_on_one_reactor() {
    let (reactor, told) = (reactor(), Told::default());
    let (near, far) = pair();
    let _host = begin(&reactor, ("host", near), Handshake::host(psk()), None, &told);
    let _controller = begin(&reactor, ("controller", far), controller(), None, &told);
    turn_until(&reactor, || told.borrow().len() == 2);
    let told = told.take();
    // Whoever cannot be encrypted leaves before the other has heard all.
    let has_left = |outcome: &Outcome| {
        tls::check().is_err() && matches!(outcome, Err(UpgradeError::Socket(_)))
    };
    assert!(told.iter().any(|(_, outcome)| is_done(outcome)), "{told:?}");
    for (name, outcome) in &told {
        assert!(is_done(outcome) || has_left(outcome), "{name}: {outcome:?}");
    }
}

/// What a host says to a controller that hears it byte by byte, and with a pause in the middle of a record.
#[test]
fn a_record_comes_in_pieces() {
    let (reactor, told) = (reactor(), Told::default());
    let (mut near, far) = pair();
    let _controller = begin(&reactor, ("controller", far), controller(), None, &told);
    let host = std::thread::spawn(move || {
        near.set_nodelay(true).expect("a socket");
        let mut host = Handshake::host(psk());
        assert!(matches!(host.advance(&[]), Ok(Progress::Receive)));
        for byte in host.take_output() {
            near.write_all(&[byte]).expect("somebody hears it");
        }
        loop {
            let mut record = vec![0; 5];
            near.read_exact(&mut record).expect("an answer");
            let bytes = u16::from_be_bytes([record[3], record[4]]);
            record.resize(5 + usize::from(bytes), 0);
            near.read_exact(&mut record[5..]).expect("a whole record");
            let progress = host.advance(&record).expect("no fault");
            let said = host.take_output();
            let (first, second) = said.split_at(said.len() / 2);
            near.write_all(first).expect("somebody hears it");
            std::thread::sleep(Duration::from_millis(20));
            near.write_all(second).expect("somebody hears it");
            if let Progress::Done(_) = progress {
                // Until the other end has gone, or for a while.
                near.set_read_timeout(Some(Duration::from_secs(2))).expect("a socket");
                let _ = near.read(&mut [0; 1]);
                return;
            }
        }
    });
    turn_until(&reactor, || !told.borrow().is_empty());
    let told = told.take();
    assert!(is_done(&told[0].1), "{told:?}");
    drop(told);
    host.join().expect("no panic");
}

#[test]
fn what_is_no_handshake_ends_it() {
    for (said, words) in [
        (&b"\x00\x00\x80\x00\x80"[..], "something else than a record"),
        (b"\x16\x03\x01\x00\x00", "a record is empty"),
        (b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", "something else than a ClientHello"),
        (b"\x16\x03\x01\x00\x08\x01\x7f\x00\x00aaaa", "too long"),
    ] {
        let (reactor, told) = (reactor(), Told::default());
        let (mut near, far) = pair();
        let _controller = begin(&reactor, ("controller", far), controller(), None, &told);
        near.write_all(said).expect("somebody hears it");
        turn_until(&reactor, || !told.borrow().is_empty());
        let Some((_, Err(error))) = told.borrow_mut().pop() else { panic!("{said:?}") };
        assert!(error.to_string().contains(words), "{said:?}: {error}");
        assert!(!error.may_know_another());
        // And the other end sees it.
        near.set_read_timeout(Some(PATIENCE)).expect("a socket");
        if let Err(error) = near.read_to_end(&mut Vec::new()) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
    }
}

#[test]
fn silence_ends_it_in_time_and_who_leaves_has_left() {
    let (reactor, told) = (reactor(), Told::default());
    let (mut near, far) = pair();
    let (gone, other) = pair();
    let until = Instant::now() + Duration::from_millis(100);
    let _late = begin(&reactor, ("late", far), controller(), Some(until), &told);
    let _left = begin(&reactor, ("left", other), controller(), None, &told);
    // Some of a header.
    near.write_all(&[22, 3]).expect("somebody hears it");
    drop(gone);
    turn_until(&reactor, || told.borrow().len() == 2);
    for told in told.borrow().iter() {
        match told {
            ("late", Err(UpgradeError::Late)) => {}
            ("left", Err(UpgradeError::Socket(error))) => {
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_given_up_tells_nothing() {
    let (reactor, told) = (reactor(), Told::default());
    let ((mut near, far), (waiting, other)) = (pair(), pair());
    let mut host = Handshake::host(psk());
    assert!(matches!(host.advance(&[]), Ok(Progress::Receive)));
    near.write_all(&host.take_output()).expect("it is heard");
    let computing = begin(&reactor, ("computing", far), controller(), None, &told);
    let silent = begin(&reactor, ("silent", other), controller(), None, &told);
    // One has a thread at it, perhaps; the other waits for bytes.
    reactor.turn_for(Drive::Until(Instant::now() + Duration::from_millis(1)));
    computing.give_up();
    silent.give_up();
    for stream in [near, waiting] {
        stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket");
        // An answer may have gone out before.
        turn_until(&reactor, || match (&stream).read(&mut [0; 512]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        });
    }
    assert!(told.borrow().is_empty(), "{told:?}");
}

/// The one thread of a core is kept by another while one waits for it that is given up: nobody looks for its key any more.
#[test]
fn what_is_given_up_while_it_waits_for_the_thread_is_not_computed() {
    let (reactor, told) = (reactor(), Told::default());
    let (entered, enters) = mpsc::channel();
    let (go, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let keeps = Handshake::controller(Arc::new(move |identity: &[u8]| {
        entered.send(()).expect("somebody listens");
        waits.lock().expect("one at a time").recv().expect("it is told to go on");
        accepted(identity, &key())
    }));
    let looks = Arc::new(AtomicU32::new(0));
    let counts = |looks: &Arc<AtomicU32>| {
        let looks = Arc::clone(looks);
        Handshake::controller(Arc::new(move |identity: &[u8]| {
            looks.fetch_add(1, Ordering::SeqCst);
            accepted(identity, &key())
        }))
    };
    let said = || {
        let (mut near, far) = pair();
        let mut host = Handshake::host(psk());
        assert!(matches!(host.advance(&[]), Ok(Progress::Receive)));
        near.write_all(&host.take_output()).expect("it is heard");
        (near, far)
    };
    let ((first, keeping), (_second, given_up), (third, after)) = (said(), said(), said());
    let _keeps = begin(&reactor, ("keeps", keeping), keeps, None, &told);
    turn_until(&reactor, || enters.try_recv().is_ok());
    let waiting = begin(&reactor, ("given up", given_up), counts(&looks), None, &told);
    let other = Arc::new(AtomicU32::new(0));
    let _after = begin(&reactor, ("after", after), counts(&other), None, &told);
    // Until both wait for the thread.
    for _ in 0..50 {
        reactor.turn_for(Drive::Until(Instant::now() + Duration::from_millis(1)));
    }
    waiting.give_up();
    go.send(()).expect("it waits");
    drop((first, third));
    turn_until(&reactor, || told.borrow().len() == 2);
    assert_eq!((looks.load(Ordering::SeqCst), other.load(Ordering::SeqCst)), (0, 1));
}

/// The same handshake for who has a thread of his own.
#[test]
fn a_host_with_a_thread() {
    let (reactor, told) = (reactor(), Told::default());
    let (near, far) = pair();
    let _controller = begin(&reactor, ("controller", far), controller(), None, &told);
    let host = std::thread::spawn(move || {
        let outcome = tls::secure(&near, psk(), Instant::now() + PATIENCE);
        // Not before the other end has heard all.
        near.set_read_timeout(Some(Duration::from_secs(2))).expect("a socket");
        let _ = (&near).read(&mut [0; 1]);
        outcome
    });
    turn_until(&reactor, || !told.borrow().is_empty());
    let (_, outcome) = told.borrow_mut().pop().expect("it was told");
    assert!(is_done(&outcome), "{outcome:?}");
    drop(outcome);
    match host.join().expect("no panic") {
        Ok(()) => {}
        Err(UpgradeError::Kernel(_)) => assert!(tls::check().is_err()),
        Err(error) => panic!("{error}"),
    }

    // One who has another key by the name, and one who hears nothing.
    let (near, far) = pair();
    let _controller = begin(&reactor, ("other", far), controller(), None, &told);
    let mut other = psk();
    other.secret.fill(1);
    let host = std::thread::spawn(move || tls::secure(&near, other, Instant::now() + PATIENCE));
    turn_until(&reactor, || !told.borrow().is_empty());
    let error = host.join().expect("no panic").expect_err("another key");
    assert!(matches!(error, UpgradeError::Handshake(HandshakeError::Refused(_))), "{error}");
    assert!(error.may_know_another());
    let (near, _silent) = pair();
    let late = tls::secure(&near, psk(), Instant::now() + Duration::from_millis(50));
    assert!(matches!(late, Err(UpgradeError::Late)), "{late:?}");
}
