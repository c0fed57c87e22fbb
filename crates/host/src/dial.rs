//! Making TCP connections on a reactor: only names are looked up where that may block.

use crate::Local;
use crate::options::Address;
use reactor::{Complete, Interest, Reactor, Stream, TimerId, WatchId};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tls::{Handshake, Psk, Secured, Upgrade, UpgradeError};

/// Bytes that wait in the kernel for the peer or the network to take what was sent before.
const UNSENT_BYTES: i32 = 256 * 1024;

const TOKEN_BEGIN: u64 = 0;
const TOKEN_LOOKED_UP: u64 = 1;
const TOKEN_READY: u64 = 2;
const TOKEN_LATE: u64 = 3;

/// What a look-up gives that nobody wanted any more when its turn came.
const SKIPPED: i32 = 1;

/// What to connect to.
pub(crate) enum Peer {
    /// A name to be looked up; its addresses are tried in turn.
    Named(Address),
    /// Addresses that are known, the same.
    Known(Vec<SocketAddr>),
}

/// By what connections to one controller are encrypted.
#[derive(Debug)]
pub(crate) struct Secure {
    offers: Vec<Psk>,
    /// The one that it has taken.
    taken: Cell<usize>,
}

impl Secure {
    /// By one of `offers`; none if there are none.
    ///
    /// As `before`, with what was taken, if these are the same.
    pub(crate) fn by(offers: Vec<Psk>, before: Option<Rc<Secure>>) -> Option<Rc<Secure>> {
        let before = before.filter(|before| before.offers == offers);
        let anew = || (!offers.is_empty()).then(|| Rc::new(Secure { offers, taken: Cell::new(0) }));
        before.or_else(anew)
    }

    /// The one to be tried after so many others, of which `first` was the first.
    fn offer(&self, first: usize, tried: usize) -> Option<(usize, &Psk)> {
        let index = (first + tried) % self.offers.len();
        (tried < self.offers.len()).then(|| (index, &self.offers[index]))
    }
}

/// What came of it; in words for people where nothing did.
pub(crate) type Dialed = Result<TcpStream, String>;

/// What is to be done with the connection.
type Done = Box<dyn FnOnce(Dialed)>;

type LookUp = fn(&Address) -> io::Result<Vec<SocketAddr>>;

/// Makes connections to one peer, one at a time.
pub(crate) struct Dialer {
    me: Weak<Dialer>,
    reactor: Rc<Reactor>,
    /// This end of its connections.
    local: Local,
    attempt: RefCell<Option<Attempt>>,
    look_up: LookUp,
    /// A thread is at the name or will be, for this attempt or an earlier one: one does for all.
    looking: RefCell<Option<Arc<Looking>>>,
}

struct Attempt {
    /// When it is to be over.
    until: Instant,
    /// What has to be looked up first.
    name: Option<Address>,
    /// What was not tried yet.
    addresses: VecDeque<SocketAddr>,
    connecting: Option<Rc<Connecting>>,
    /// How it is to be encrypted, if at all, and with which key it is tried first.
    secure: Option<Rc<Secure>>,
    first: usize,
    securing: Option<Securing>,
    /// Why the first key was of no use, which says more than what came of the others.
    unsecured: Option<String>,
    /// Why the last address was of no use.
    refused: String,
    done: Done,
}

/// A handshake under way.
struct Securing {
    upgrade: Rc<Upgrade>,
    address: SocketAddr,
    /// When the address has had its time.
    until: Instant,
    /// How many were tried before.
    tried: usize,
}

/// A socket on its way. It stays open until the reactor has ended the watch.
struct Connecting {
    dialer: Weak<Dialer>,
    stream: Cell<Option<TcpStream>>,
    address: SocketAddr,
    until: Instant,
    tried: usize,
    watch: Cell<Option<WatchId>>,
    timer: Cell<Option<TimerId>>,
}

struct Looking {
    wanted: AtomicBool,
    found: Mutex<Option<io::Result<Vec<SocketAddr>>>>,
}

impl Dialer {
    pub(crate) fn new(reactor: &Rc<Reactor>, local: Local) -> Rc<Dialer> {
        Dialer::with(reactor, local, Address::resolve)
    }

    fn with(reactor: &Rc<Reactor>, local: Local, look_up: LookUp) -> Rc<Dialer> {
        Rc::new_cyclic(|me| Dialer {
            me: me.clone(),
            reactor: Rc::clone(reactor),
            local,
            attempt: RefCell::new(None),
            look_up,
            looking: RefCell::new(None),
        })
    }

    /// Connects and calls `done` in a turn of the reactor: within `timeout`, unless it takes longer to
    /// look a name up. Gives the attempt before up.
    pub(crate) fn dial(
        &self,
        peer: Peer,
        secure: Option<Rc<Secure>>,
        timeout: Duration,
        done: impl FnOnce(Dialed) + 'static,
    ) {
        self.hang_up();
        let (name, addresses) = match peer {
            Peer::Known(addresses) => (None, addresses),
            Peer::Named(address) => match address.number() {
                Some(number) => (None, vec![number]),
                None => (Some(address), Vec::new()),
            },
        };
        let mut addresses = addresses;
        self.local.choose(&mut addresses);
        let is_named = name.is_some();
        *self.attempt.borrow_mut() = Some(Attempt {
            until: self.reactor.now() + timeout,
            name,
            addresses: addresses.into(),
            connecting: None,
            first: secure.as_ref().map_or(0, |secure| secure.taken.get()),
            secure,
            securing: None,
            unsecured: None,
            refused: String::from("the name has no address"),
            done: Box::new(done),
        });
        if is_named {
            self.look_up();
        } else {
            self.reactor.defer(self.me(), TOKEN_BEGIN);
        }
    }

    /// Gives the attempt up: nothing more is heard of it.
    pub(crate) fn hang_up(&self) {
        if let Some(looking) = &*self.looking.borrow() {
            looking.wanted.store(false, Ordering::Relaxed);
        }
        let Some(attempt) = self.attempt.take() else { return };
        if let Some(connecting) = attempt.connecting {
            connecting.end(&self.reactor);
        }
        if let Some(securing) = attempt.securing {
            securing.upgrade.give_up();
        }
    }

    fn me(&self) -> Rc<Dialer> {
        self.me.upgrade().expect("who calls it holds it")
    }

    /// Has the name looked up, unless a thread is at it already.
    fn look_up(&self) {
        let name = self.attempt.borrow().as_ref().and_then(|attempt| attempt.name.clone());
        let Some(name) = name else { return };
        if let Some(looking) = &*self.looking.borrow() {
            return looking.wanted.store(true, Ordering::Relaxed);
        }
        let looking = Arc::new(Looking { wanted: true.into(), found: Mutex::default() });
        *self.looking.borrow_mut() = Some(Arc::clone(&looking));
        let look_up = self.look_up;
        let work = Box::new(move || {
            if !looking.wanted.load(Ordering::Relaxed) {
                return SKIPPED;
            }
            let found = look_up(&name);
            *looking.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            0
        });
        self.reactor.blocking(work, self.me(), TOKEN_LOOKED_UP);
    }

    fn looked_up(&self, result: i32) {
        let looking = self.looking.take();
        let found = looking.and_then(|looking| {
            looking.found.lock().unwrap_or_else(PoisonError::into_inner).take()
        });
        if result == SKIPPED {
            return self.look_up();
        }
        let found = found.unwrap_or_else(|| Err(io::Error::from_raw_os_error(-result)));
        {
            let mut attempt = self.attempt.borrow_mut();
            let Some(attempt) = &mut *attempt else { return };
            let Some(name) = attempt.name.take() else { return };
            match found {
                Ok(mut addresses) => {
                    self.local.choose(&mut addresses);
                    attempt.addresses = addresses.into();
                }
                Err(error) => {
                    let host = name.host;
                    attempt.refused = format!("the name {host} cannot be looked up: {error}");
                }
            }
        }
        self.next();
    }

    /// Tries the next address. A silent one leaves the others their share of the time.
    fn next(&self) {
        let now = self.reactor.now();
        loop {
            let mut attempt = self.attempt.borrow_mut();
            let Some(attempt) = &mut *attempt else { return };
            let left = attempt.addresses.len() as u32;
            let Some(address) = attempt.addresses.pop_front() else { break };
            let until = now + attempt.until.saturating_duration_since(now) / left;
            match self.connect(&address, until, 0) {
                Ok(connecting) => {
                    attempt.connecting = Some(connecting);
                    return;
                }
                Err(error) => attempt.refused = words(&error),
            }
        }
        let attempt = self.attempt.take();
        if let Some(Attempt { done, refused, unsecured, .. }) = attempt {
            done(Err(unsecured.unwrap_or(refused)));
        }
    }

    /// `tried`: how many keys the controller has refused.
    fn connect(
        &self,
        address: &SocketAddr,
        until: Instant,
        tried: usize,
    ) -> io::Result<Rc<Connecting>> {
        let socket = self.local.socket(address)?;
        match rustix::net::connect(&socket, address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let fd = socket.as_raw_fd();
        let connecting = Rc::new(Connecting {
            dialer: self.me.clone(),
            stream: Cell::new(Some(TcpStream::from(socket))),
            address: *address,
            until,
            tried,
            watch: Cell::new(None),
            timer: Cell::new(None),
        });
        let watch = self.reactor.watch(fd, Interest::WRITE, connecting.clone(), TOKEN_READY);
        connecting.watch.set(Some(watch));
        let timer = self.reactor.timer(until, connecting.clone(), TOKEN_LATE);
        connecting.timer.set(Some(timer));
        Ok(connecting)
    }

    /// What became of the address that is being tried.
    fn tried(&self, outcome: io::Result<TcpStream>) {
        let mut attempt = self.attempt.borrow_mut();
        let connecting = attempt.as_mut().and_then(|attempt| attempt.connecting.take());
        if let Some(connecting) = &connecting {
            connecting.end(&self.reactor);
        }
        let secure = attempt.as_ref().and_then(|attempt| attempt.secure.clone());
        drop(attempt);
        match (outcome, connecting, secure) {
            (Ok(stream), Some(connecting), Some(secure)) => {
                self.secure(stream, &connecting, &secure);
            }
            (Ok(stream), _, None) => self.reached(stream),
            // Not without being encrypted.
            (Ok(_), None, Some(_)) => self.failed("it is not the one that was wanted".into()),
            (Err(error), ..) => self.failed(words(&error)),
        }
    }

    /// A connection is as it is to be.
    fn reached(&self, stream: TcpStream) {
        keep_queue_short(&stream);
        let reached = self.attempt.take();
        if let Some(reached) = reached {
            (reached.done)(Ok(stream));
        }
    }

    /// An address is of no use.
    fn failed(&self, words: String) {
        if let Some(attempt) = &mut *self.attempt.borrow_mut() {
            attempt.refused = words;
        }
        self.next();
    }

    /// Has the connection encrypted by the next key that was not refused.
    fn secure(&self, stream: TcpStream, connecting: &Connecting, secure: &Rc<Secure>) {
        let Connecting { address, until, tried, .. } = *connecting;
        let first = self.attempt.borrow().as_ref().map_or(0, |attempt| attempt.first);
        let (index, psk) = secure.offer(first, tried).expect("it is tried only if there is one");
        let stream = match Stream::try_from(OwnedFd::from(stream)) {
            Ok(stream) => stream,
            Err(error) => return self.failed(words(&error)),
        };
        let (me, secure) = (self.me.clone(), Rc::clone(secure));
        let done = move |secured: Result<Secured, UpgradeError>| {
            let Some(dialer) = me.upgrade() else { return };
            match secured {
                Ok(secured) => {
                    secure.taken.set(index);
                    dialer.reached(TcpStream::from(OwnedFd::from(secured.stream)));
                }
                Err(error) => dialer.unsecured(&error, &secure),
            }
        };
        let handshake = Handshake::host(psk.clone());
        let upgrade = Upgrade::begin(&self.reactor, stream, handshake, Some(until), done);
        if let Some(attempt) = &mut *self.attempt.borrow_mut() {
            attempt.securing = Some(Securing { upgrade, address, until, tried });
        }
    }

    /// The controller does not take that key: perhaps it knows it by another name. Many say no by closing the connection.
    fn unsecured(&self, error: &UpgradeError, secure: &Secure) {
        let mut attempt = self.attempt.borrow_mut();
        let Some(attempt) = &mut *attempt else { return };
        let Some(Securing { address, until, tried, .. }) = attempt.securing.take() else { return };
        if error.is_agreed() {
            attempt.unsecured = None;
        }
        attempt.unsecured.get_or_insert_with(|| unsecured(error));
        if error.may_know_another()
            && secure.offer(attempt.first, tried + 1).is_some()
            && let Ok(connecting) = self.connect(&address, until, tried + 1)
        {
            attempt.connecting = Some(connecting);
            return;
        }
        self.reactor.defer(self.me(), TOKEN_BEGIN);
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl Complete for Dialer {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        if token == TOKEN_LOOKED_UP {
            return self.looked_up(result);
        }
        let begins =
            |it: &Attempt| it.name.is_none() && it.connecting.is_none() && it.securing.is_none();
        if self.attempt.borrow().as_ref().is_some_and(begins) {
            self.next();
        }
    }
}

impl Connecting {
    fn end(&self, reactor: &Reactor) {
        if let Some(watch) = self.watch.take() {
            reactor.unwatch(watch);
        }
        if let Some(timer) = self.timer.take() {
            reactor.cancel_timer(timer);
        }
    }

    fn outcome(&self, result: i32) -> io::Result<TcpStream> {
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        let stream = self.stream.take().ok_or(io::ErrorKind::NotConnected)?;
        stream.take_error()?.map_or(Ok(stream), Err)
    }
}

impl Complete for Connecting {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        let Some(dialer) = self.dialer.upgrade() else { return };
        let current = |attempt: &Attempt| {
            attempt.connecting.as_ref().is_some_and(|it| std::ptr::eq(&**it, self))
        };
        if !dialer.attempt.borrow().as_ref().is_some_and(current) {
            return;
        }
        match token {
            TOKEN_LATE => dialer.tried(Err(io::ErrorKind::TimedOut.into())),
            // The reactor ends.
            _ if result == -Errno::CANCELED.raw_os_error() => {}
            _ => dialer.tried(self.outcome(result)),
        }
    }
}

/// Has the socket report itself full while the kernel holds more than [`UNSENT_BYTES`] that it may
/// not send yet: what is more urgent is sent first only as long as it waits here and not there.
fn keep_queue_short(stream: &TcpStream) {
    let bytes: libc::c_int = UNSENT_BYTES;
    // SAFETY: an open socket and an int. Where the kernel refuses, its queue is longer.
    let _ = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
}

/// Why a connection whose controller declines `digests` is of no use, in words.
pub(crate) fn declined(digests: &str) -> String {
    format!("the controller does not use {digests}")
}

/// Why a connection is not encrypted, in words.
pub(crate) fn unsecured(error: &UpgradeError) -> String {
    match error {
        UpgradeError::Socket(error) => format!("no TLS session: {}", words(error)),
        _ => format!("no TLS session: {error}"),
    }
}

/// An error of a socket in words.
pub(crate) fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::TimedOut => "connection timed out".into(),
        io::ErrorKind::HostUnreachable => "no route to host".into(),
        io::ErrorKind::NetworkUnreachable => "network unreachable".into(),
        io::ErrorKind::ConnectionReset => "connection reset by the peer".into(),
        io::ErrorKind::UnexpectedEof => "the peer closed the connection".into(),
        io::ErrorKind::BrokenPipe => "the peer closed the connection".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
