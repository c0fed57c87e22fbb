//! The handshake on a connection of a reactor's: from a socket to one that encrypts.
//!
//! ```text
//!   readable --> one record, no byte more --> a thread: Handshake::advance --> what it answers --> writable
//!        ^                                                                            |
//!        +------------------------- there is more to come ----------------------------+--> done: keys to the kernel
//! ```
//!
//! Nothing is read beyond the handshake's own records, since what follows is the kernel's to decrypt.

use crate::handshake::{HEADER_BYTES, Handshake, HandshakeError, Progress, Secrets, record_bytes};
use crate::kernel;
use crate::psk::Peer;
use reactor::{Complete, Interest, Line, Reactor, Stream, TimerId, WatchId};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use thiserror::Error;

/// What controllers compute: by one thread of a core, beside other long work.
const LINE: Line = Line { number: u64::MAX - 1, threads: 1 };

const TOKEN_READY: u64 = 0;
const TOKEN_LATE: u64 = 1;

/// Why a connection is not encrypted; it is closed.
#[derive(Debug, Error)]
pub enum UpgradeError {
    /// The two ends do not agree.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The socket.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// The kernel does not encrypt.
    #[error("the kernel cannot encrypt the connection: {0}")]
    Kernel(#[source] io::Error),
    /// It has taken too long.
    #[error("the other end has not answered in time")]
    Late,
    /// No thread could be had, or it has failed.
    #[error("the handshake could not be computed")]
    NotComputed,
}

impl UpgradeError {
    /// Whether the other end may know the same key by another name: it refuses, as some do by closing the connection.
    pub fn may_know_another(&self) -> bool {
        use HandshakeError::{OtherKey, Refused, UnknownIdentity};
        match self {
            UpgradeError::Socket(_) => true,
            UpgradeError::Handshake(error) => {
                matches!(error, Refused(_) | UnknownIdentity { .. } | OtherKey { .. })
            }
            _ => false,
        }
    }

    /// Whether both ends have found the same key, and what failed came after that.
    pub fn is_agreed(&self) -> bool {
        matches!(self, UpgradeError::Kernel(_))
    }

    /// What the kernel says to keys. Whose other end has gone meanwhile is no connection to it.
    pub(crate) fn of_kernel(error: io::Error) -> UpgradeError {
        match error.kind() {
            io::ErrorKind::NotConnected => io::Error::from(io::ErrorKind::UnexpectedEof).into(),
            _ => UpgradeError::Kernel(error),
        }
    }
}

/// A connection whose data the kernel encrypts and decrypts.
#[derive(Debug)]
pub struct Secured {
    /// The connection.
    pub stream: Stream,
    /// Who is at the other end, as the identity of the key says.
    pub peer: Peer,
}

type Done = Box<dyn FnOnce(Result<Secured, UpgradeError>)>;

/// A handshake under way. Given up, it tells nothing, and its connection is closed; who drops it does not end it.
pub struct Upgrade {
    me: Weak<Upgrade>,
    reactor: Rc<Reactor>,
    inner: RefCell<Option<Inner>>,
    watch: Cell<Option<WatchId>>,
    timer: Cell<Option<TimerId>>,
    /// What is closed when its watch has ended.
    ended: RefCell<Option<Stream>>,
    /// Somebody waits for what a thread computes.
    wanted: Arc<AtomicBool>,
}

struct Inner {
    stream: Stream,
    is_host: bool,
    /// With a thread while it computes.
    handshake: Option<Handshake>,
    /// Of the record that comes, as far as it has come.
    record: Vec<u8>,
    output: Vec<u8>,
    /// Of the output.
    sent: usize,
    /// What it has come to, once the output is sent.
    outcome: Option<Result<Secrets, HandshakeError>>,
    done: Done,
}

impl Upgrade {
    /// Begins `handshake` on `stream`, and calls `done` in a turn of the reactor, until `until` at the latest.
    pub fn begin(
        reactor: &Rc<Reactor>,
        stream: Stream,
        handshake: Handshake,
        until: Option<Instant>,
        done: impl FnOnce(Result<Secured, UpgradeError>) + 'static,
    ) -> Rc<Upgrade> {
        let is_host = handshake.is_host();
        let inner = Inner {
            stream,
            is_host,
            handshake: Some(handshake),
            record: Vec::new(),
            output: Vec::new(),
            sent: 0,
            outcome: None,
            done: Box::new(done),
        };
        let upgrade = Rc::new_cyclic(|me| Upgrade {
            me: me.clone(),
            reactor: Rc::clone(reactor),
            inner: RefCell::new(Some(inner)),
            watch: Cell::new(None),
            timer: Cell::new(None),
            ended: RefCell::new(None),
            wanted: Arc::new(AtomicBool::new(true)),
        });
        if let Some(until) = until {
            let timer = reactor.timer(until, upgrade.clone(), TOKEN_LATE);
            upgrade.timer.set(Some(timer));
        }
        if is_host {
            upgrade.compute();
        } else {
            upgrade.watch(Interest::READ);
        }
        upgrade
    }

    /// Gives it up: nothing more is heard of it.
    pub fn give_up(&self) {
        if let Some(Inner { stream, .. }) = self.end() {
            self.close(stream);
        }
    }

    /// The other end sees it at once; the descriptor is closed when nothing watches it any more.
    fn close(&self, stream: Stream) {
        // Whose peer has gone is shut down already.
        let _ = stream.shutdown();
        if self.watch.get().is_some() {
            *self.ended.borrow_mut() = Some(stream);
        }
    }

    fn me(&self) -> Rc<Upgrade> {
        self.me.upgrade().expect("who calls it holds it")
    }

    fn watch(&self, interest: Interest) {
        let Some(fd) = self.inner.borrow().as_ref().map(|inner| inner.stream.as_raw_fd()) else {
            return;
        };
        let watch = self.reactor.watch(fd, interest, self.me(), TOKEN_READY);
        self.watch.set(Some(watch));
    }

    /// Ends watch and timer; the rest is whose it is.
    fn end(&self) -> Option<Inner> {
        self.wanted.store(false, Ordering::Relaxed);
        if let Some(watch) = self.watch.get() {
            self.reactor.unwatch(watch);
        }
        if let Some(timer) = self.timer.take() {
            self.reactor.cancel_timer(timer);
        }
        self.inner.take()
    }

    fn fail(&self, error: impl Into<UpgradeError>) {
        if let Some(Inner { stream, done, .. }) = self.end() {
            self.close(stream);
            done(Err(error.into()));
        }
    }

    /// The socket may give or take bytes.
    fn ready(&self) {
        let step = self.inner.borrow_mut().as_mut().map(Inner::step);
        match step {
            None => {}
            Some(Ok(Step::Wait(interest))) => self.watch(interest),
            Some(Ok(Step::Compute)) => self.compute(),
            Some(Ok(Step::Over)) => self.over(),
            Some(Err(error)) => self.fail(error),
        }
    }

    fn compute(&self) {
        let taken = self.inner.borrow_mut().as_mut().and_then(|inner| {
            let record = std::mem::take(&mut inner.record);
            inner.handshake.take().map(|handshake| (handshake, record, inner.is_host))
        });
        let Some((mut handshake, record, is_host)) = taken else { return };
        let (me, wanted) = (self.me(), Arc::clone(&self.wanted));
        let work = move || {
            // What was given up, or whose time is over, keeps nobody waiting.
            let is_wanted = wanted.load(Ordering::Relaxed);
            is_wanted.then(|| {
                let outcome = handshake.advance(&record);
                (handshake, outcome)
            })
        };
        let then = move |computed: Option<Option<_>>| match computed {
            Some(Some((handshake, outcome))) => me.computed(handshake, outcome),
            Some(None) => {}
            None => me.fail(UpgradeError::NotComputed),
        };
        // Anybody may ask a controller for this, which is to keep nothing else from being done; a host asks for it itself.
        match is_host {
            true => self.reactor.aside(false, work, then),
            false => self.reactor.aside_in(LINE, work, then),
        }
    }

    fn computed(&self, mut handshake: Handshake, outcome: Result<Progress, HandshakeError>) {
        if let Some(inner) = self.inner.borrow_mut().as_mut() {
            inner.output.extend_from_slice(&handshake.take_output());
            inner.handshake = Some(handshake);
            inner.outcome = match outcome {
                Ok(Progress::Receive) => None,
                Ok(Progress::Done(secrets)) => Some(Ok(secrets)),
                Err(error) => Some(Err(error)),
            };
        }
        self.ready();
    }

    /// All is said.
    fn over(&self) {
        let Some(Inner { stream, outcome, done, .. }) = self.end() else { return };
        let encrypted = match outcome {
            Some(Ok(secrets)) => kernel::encrypt(stream.as_raw_fd(), &secrets)
                .map(|()| secrets.peer)
                .map_err(UpgradeError::of_kernel),
            Some(Err(error)) => Err(error.into()),
            None => unreachable!("it is over when there is an outcome"),
        };
        match encrypted {
            Ok(peer) => done(Ok(Secured { stream, peer })),
            Err(error) => {
                self.close(stream);
                done(Err(error));
            }
        }
    }
}

/// What is to be done.
enum Step {
    Wait(Interest),
    Compute,
    Over,
}

impl Inner {
    fn step(&mut self) -> Result<Step, UpgradeError> {
        while self.sent < self.output.len() {
            match self.stream.writev(&[IoSlice::new(&self.output[self.sent..])]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Step::Wait(Interest::WRITE));
                }
                // What it has come to says more than that the other end does not hear of it.
                Err(_) if matches!(self.outcome, Some(Err(_))) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if self.outcome.is_some() {
            return Ok(Step::Over);
        }
        self.receive()
    }

    fn receive(&mut self) -> Result<Step, UpgradeError> {
        loop {
            let have = self.record.len();
            let wanted = match self.record.first_chunk::<HEADER_BYTES>() {
                None => HEADER_BYTES,
                Some(header) => HEADER_BYTES + record_bytes(*header)?,
            };
            if have == wanted && have > HEADER_BYTES {
                return Ok(Step::Compute);
            }
            // Memory for what has come, not for what was promised.
            let mut bytes = [0; 2048];
            let room = (wanted - have).min(bytes.len());
            if room == 0 {
                return Err(HandshakeError::Protocol("a record is empty".into()).into());
            }
            match self.stream.recv(&mut bytes[..room]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.record.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Step::Wait(Interest::READ));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Complete for Upgrade {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        match token {
            TOKEN_LATE if result >= 0 => {
                self.timer.set(None);
                self.fail(UpgradeError::Late);
            }
            TOKEN_READY => {
                self.watch.set(None);
                let ended = self.ended.take();
                // Otherwise the reactor ends.
                if ended.is_none() && result != -libc::ECANCELED {
                    self.ready();
                }
            }
            _ => {}
        }
    }
}

impl std::fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upgrade").finish_non_exhaustive()
    }
}
