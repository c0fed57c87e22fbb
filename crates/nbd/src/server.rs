//! The server as its user sees it: threads, one per core, and what they listen on.

use crate::core::{Activity, CONNECTIONS_MAX, Core, Export, Shared};
use crate::socket::{LocalSocket, SocketError};
use namespace::failures::{Failures, Served};
use reactor::{Complete, Interest, Listener, Mailbox, Reactor};
use rustix::net::Shutdown;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long accepting pauses when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections accepted in a row before others have their turn.
const ACCEPTS_MAX: usize = 64;

const TOKEN_READABLE: u64 = 0;
const TOKEN_PAUSE: u64 = 1;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// One entry per core: the CPU to run on, or `None` for wherever the kernel puts it.
    pub cores: Vec<Option<usize>>,
    /// Poll without ever sleeping.
    pub poll: bool,
    /// Address space of each core's buffer pool in bytes.
    pub buffer_bytes: usize,
    /// Time in which a client that holds buffers must let one go, while others wait for any; who does not is dropped.
    pub stall_period: Duration,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            cores: vec![None],
            poll: false,
            buffer_bytes: 64 << 20,
            stall_period: Duration::from_secs(2),
        }
    }
}

/// What may go wrong when a server is told to do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A reactor could not be made.
    #[error(transparent)]
    Reactor(#[from] reactor::Error),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The Unix socket cannot be listened on.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A volume could not be made durable.
    #[error("cannot flush {volume}: {source}")]
    Flush {
        /// Its URI.
        volume: String,
        /// Why.
        source: io::Error,
    },
    /// Volumes have kept commands for too long.
    #[error(
        "{commands} command(s) were not finished within {} s and are given up{}",
        crate::core::STOP_TIMEOUT.as_secs(),
        if *is_flushed { "; whatever else was written is flushed" } else { "" }
    )]
    GivenUp {
        /// How many, of all volumes.
        commands: u64,
        /// Whether all else is durable.
        is_flushed: bool,
    },
    /// The server's threads have ended.
    #[error("the server has stopped")]
    Stopped,
}

/// A running NBD server.
pub struct Server {
    shared: Arc<Shared>,
    cores: Vec<Mailbox>,
    threads: Vec<JoinHandle<()>>,
    sockets: Vec<LocalSocket>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("cores", &self.cores.len()).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts the cores; nobody can connect yet.
    ///
    /// # Panics
    /// If there is no core.
    pub fn start(config: &ServerConfig, exports: Vec<Export>) -> Result<Server, Error> {
        assert!(!config.cores.is_empty(), "a server has at least one core");
        let activity = Arc::new(Activity::new(exports.len(), config.cores.len()));
        let failures_of = |export: &Export| Failures::new(Served::Export((*export.name).into()));
        let failures = exports.iter().map(failures_of).collect();
        let shared = Arc::new(Shared {
            exports,
            mailboxes: OnceLock::new(),
            activity,
            failures,
            given_up: AtomicU64::new(0),
            stall_period: config.stall_period,
        });
        let mut server =
            Server { shared, cores: Vec::new(), threads: Vec::new(), sockets: Vec::new() };
        for (index, cpu) in config.cores.iter().enumerate() {
            let (sender, receiver) = mpsc::channel();
            let reactor = reactor::Config {
                cpu: *cpu,
                poll_always: config.poll,
                buffer_bytes: config.buffer_bytes,
                ..reactor::Config::default()
            };
            let shared = server.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("nbd-core-{index}"))
                .spawn(move || run_core(index, &reactor, shared, &sender))
                .map_err(Error::Thread)?;
            server.threads.push(thread);
            server.cores.push(receiver.recv().map_err(|_| Error::Stopped)??);
        }
        assert!(server.shared.mailboxes.set(server.cores.clone()).is_ok(), "set once");
        Ok(server)
    }

    /// Listens on `address`; port 0 takes a free one. Returns the address.
    pub fn listen(&self, address: SocketAddr) -> Result<SocketAddr, Error> {
        let refused = |source| Error::Listen { address, source };
        let listener = Listener::bind(address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        self.accept(listener)?;
        Ok(address)
    }

    /// Listens on a Unix socket at `path`, which is removed when the server stops. One that a server
    /// has left behind that was killed is replaced.
    pub fn listen_local(&mut self, path: &Path) -> Result<(), Error> {
        let (socket, listener) = LocalSocket::bind(path)?;
        self.sockets.push(socket);
        self.accept(listener)
    }

    fn accept(&self, listener: Listener) -> Result<(), Error> {
        let posted = self.cores[0].post(move |_reactor| Acceptor::start(&Core::here(), listener));
        if posted { Ok(()) } else { Err(Error::Stopped) }
    }

    /// What clients have done so far, and do from now on.
    pub fn activity(&self) -> Arc<Activity> {
        self.shared.activity.clone()
    }

    /// Stops accepting, answers what is in progress (within 10 s), closes all connections and makes all volumes
    /// durable. Of several errors all are logged but the one that is returned.
    ///
    /// Where that takes too long, or fails, the files of its Unix sockets stay: whoever listens there next knows that not all
    /// of it was carried out.
    pub fn stop(mut self) -> Result<(), Error> {
        self.halt();
        let mut errors = Vec::new();
        for export in &self.shared.exports {
            if let Err(source) = export.namespace.flush() {
                errors.push(Error::Flush { volume: export.namespace.uri(), source });
            }
        }
        let commands = self.shared.given_up.load(Ordering::Relaxed);
        if commands > 0 {
            errors.push(Error::GivenUp { commands, is_flushed: errors.is_empty() });
        }
        let Some(last) = errors.pop() else { return Ok(()) };
        errors.iter().for_each(|error| tracing::error!("{error}"));
        self.leave_sockets();
        Err(last)
    }

    fn halt(&mut self) {
        for mailbox in &self.cores {
            mailbox.post(|_reactor| {
                Acceptor::close_all();
                Core::here().stop();
            });
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a core's thread panicked");
            }
        }
        self.shared.failures.iter().for_each(|failures| failures.finish());
        if self.shared.given_up.load(Ordering::Relaxed) > 0 {
            self.leave_sockets();
        }
    }

    fn leave_sockets(&mut self) {
        self.sockets.drain(..).for_each(LocalSocket::leave);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.halt();
    }
}

fn run_core(
    index: usize,
    config: &reactor::Config,
    shared: Arc<Shared>,
    started: &mpsc::Sender<Result<Mailbox, reactor::Error>>,
) {
    let reactor = match Reactor::new(config) {
        Ok(reactor) => reactor,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    Core::install(index, reactor.clone(), shared);
    let _ = started.send(Ok(reactor.mailbox()));
    reactor.run();
    Acceptor::close_all();
    Core::uninstall();
}

thread_local! {
    static ACCEPTORS: RefCell<Vec<Rc<Acceptor>>> = const { RefCell::new(Vec::new()) };
}

/// A listening socket on the first core, which spreads what comes over all of them.
struct Acceptor {
    core: Rc<Core>,
    me: Weak<Acceptor>,
    listener: Listener,
    watch: Cell<Option<reactor::WatchId>>,
    is_closed: Cell<bool>,
    next_core: Cell<usize>,
}

impl Acceptor {
    fn start(core: &Rc<Core>, listener: Listener) {
        let acceptor = Rc::new_cyclic(|me| Acceptor {
            core: core.clone(),
            me: me.clone(),
            listener,
            watch: Cell::new(None),
            is_closed: Cell::new(false),
            next_core: Cell::new(0),
        });
        acceptor.wait();
        ACCEPTORS.with_borrow_mut(|all| all.push(acceptor));
    }

    fn close_all() {
        for acceptor in ACCEPTORS.take() {
            acceptor.is_closed.set(true);
            // The ring holds the descriptor a little longer: nobody is to be accepted meanwhile.
            // SAFETY: the listener, which the acceptor has, keeps the descriptor open.
            let socket = unsafe { BorrowedFd::borrow_raw(acceptor.listener.as_raw_fd()) };
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
            if let Some(watch) = acceptor.watch.take() {
                acceptor.core.reactor.unwatch(watch);
            }
        }
    }

    fn me(&self) -> Rc<Acceptor> {
        self.me.upgrade().expect("an acceptor that is called is held")
    }

    fn wait(&self) {
        let (fd, reactor) = (self.listener.as_raw_fd(), &self.core.reactor);
        let watch = reactor.watch(fd, Interest::READ, self.me(), TOKEN_READABLE);
        self.watch.set(Some(watch));
    }

    /// Takes what waits, a bounded number per turn.
    fn accept(&self) -> io::Result<()> {
        for _ in 0..ACCEPTS_MAX {
            match self.listener.accept_any() {
                Ok(stream) => self.hand_over(stream.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn hand_over(&self, socket: OwnedFd) {
        let shared = &self.core.shared;
        if shared.activity.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            shared.activity.connections.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("more than {CONNECTIONS_MAX} connections: one is turned away");
            return;
        }
        // A client whose machine is gone says nothing for ever. No effect on a Unix socket.
        let _ = rustix::net::sockopt::set_socket_keepalive(&socket, true);
        let cores = shared.mailboxes.get().map_or(&[][..], |mailboxes| mailboxes);
        let next = self.next_core.get();
        self.next_core.set((next + 1) % cores.len().max(1));
        if next == 0 {
            return self.core.adopt(socket);
        }
        if !cores[next].post(move |_reactor| Core::here().adopt(socket)) {
            shared.activity.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Complete for Acceptor {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        if token == TOKEN_READABLE {
            self.watch.set(None);
        }
        if self.is_closed.get() {
            return;
        }
        match self.accept() {
            Ok(()) => self.wait(),
            Err(error) => {
                tracing::warn!(%error, "cannot accept; trying again soon");
                let reactor = &self.core.reactor;
                reactor.timer(reactor.now() + ACCEPT_PAUSE, self.me(), TOKEN_PAUSE);
            }
        }
    }
}
