//! The server as the control plane sees it: threads, one per core, and calls into them.

use crate::control::Control;
use crate::core::{Core, Cores};
use crate::durable;
use crate::journal::Refused;
use crate::report::ControllerReport;
use crate::view::NamespaceView;
use namespace::Namespace;
use namespace::counters::{Counted, Counters};
use namespace::failures::{self, Failures};
use namespace::layer::delay::Delays;
use reactor::{Listener, Mailbox, Reactor};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;
use std::{fmt, io};
use subsystem::{
    AnaState, Authentication, ConfigError, NamespaceConfig, PortConfig, PortId, SubsystemConfig,
    TargetConfig,
};

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// One entry per core: the CPU to run on, or `None` for wherever the kernel puts it.
    pub cores: Vec<Option<usize>>,
    /// Poll without ever sleeping.
    pub poll: bool,
    /// Address space of each core's buffer pool in bytes.
    pub buffer_bytes: usize,
    /// The target's identity.
    pub target: TargetConfig,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            cores: vec![None],
            poll: false,
            buffer_bytes: 32 << 20,
            target: TargetConfig::default(),
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
    /// The configuration cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A volume could not be made durable.
    #[error("cannot flush {volume}: {source}")]
    Flush {
        /// Its URI.
        volume: String,
        /// Why.
        source: io::Error,
    },
    /// Volumes have kept commands for too long after the last connection was closed.
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

/// A namespace to be served.
pub struct NamespaceOptions {
    /// Namespace id; `None` takes the lowest that is free.
    pub nsid: Option<u32>,
    /// UUID; must be the same after a restart.
    pub uuid: [u8; 16],
    /// NGUID; all zero: none.
    pub nguid: [u8; 16],
    /// ANA group, from 1.
    pub ana_group: u32,
}

/// What hosts had of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceStats {
    /// The subsystem.
    pub nqn: String,
    /// Namespace id.
    pub nsid: u32,
    /// Summed over the cores.
    pub counted: Counted,
}

/// Counters of one core.
#[derive(Clone, Debug, Default)]
pub struct CoreStats {
    /// Connections.
    pub connections: usize,
    /// The reactor's own counters.
    pub reactor: reactor::Stats,
    /// Free bytes of the buffer pool.
    pub buffer_bytes_free: usize,
    /// Bytes of the buffer pool.
    pub buffer_bytes: usize,
}

/// What a server has done.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Per namespace.
    pub namespaces: Vec<NamespaceStats>,
    /// Per core.
    pub cores: Vec<CoreStats>,
    /// Who was not let in.
    pub refused: Refused,
}

/// A running NVMe/TCP target.
pub struct Server {
    cores: Vec<Mailbox>,
    threads: Vec<JoinHandle<()>>,
    namespaces: Mutex<BTreeMap<(Arc<str>, u32), Served>>,
}

struct Served {
    namespace: Arc<dyn Namespace>,
    counters: Vec<Arc<Counters>>,
    failures: Arc<Failures>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("cores", &self.cores.len()).finish_non_exhaustive()
    }
}

/// An address that is taken, and at which nobody is accepted yet.
pub struct Bound {
    listener: Listener,
    address: SocketAddr,
    is_secured: bool,
}

impl Bound {
    /// Where it is, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Only connections that are encrypted are taken there (TLS 1.3), of hosts that have a key ([`Server::set_tls_keys`]).
    pub fn secured(self) -> Bound {
        Bound { is_secured: true, ..self }
    }
}

/// The ANA state of a group through a port.
#[derive(Clone, Debug)]
pub struct PortState {
    /// The subsystem.
    pub nqn: String,
    /// The group.
    pub group: u32,
    /// Its state.
    pub state: AnaState,
}

impl Server {
    /// Starts the cores; nothing is served and nobody can connect yet.
    pub fn start(config: &ServerConfig) -> Result<Server, Error> {
        assert!(!config.cores.is_empty(), "a server has at least one core");
        let target = TargetConfig { instance: instance(), ..config.target.clone() };
        subsystem::Target::new(target.clone())?;
        let shared: Cores = Arc::new(OnceLock::new());
        let epoch = Instant::now();
        let mut server =
            Server { cores: Vec::new(), threads: Vec::new(), namespaces: Mutex::default() };
        for (index, cpu) in config.cores.iter().enumerate() {
            let (sender, receiver) = mpsc::channel();
            let seed = Seed {
                index,
                reactor: reactor::Config {
                    cpu: *cpu,
                    poll_always: config.poll,
                    buffer_bytes: config.buffer_bytes,
                    // NVMe devices may be added at any time, and files lose nothing by it
                    // (docs/decisions/0005).
                    kind: reactor::Kind::Big,
                    ..reactor::Config::default()
                },
                target: (index == 0).then(|| target.clone()),
                shared: shared.clone(),
                epoch,
            };
            let thread = std::thread::Builder::new()
                .name(format!("nvlane-core-{index}"))
                .spawn(move || run_core(seed, &sender))
                .map_err(Error::Thread)?;
            match receiver.recv() {
                Ok(Ok(mailbox)) => {
                    server.cores.push(mailbox);
                    server.threads.push(thread);
                }
                Ok(Err(error)) => {
                    server.halt();
                    return Err(error.into());
                }
                Err(_) => {
                    server.halt();
                    return Err(Error::Stopped);
                }
            }
        }
        assert!(shared.set(server.cores.clone()).is_ok(), "set once");
        Ok(server)
    }

    /// The cores' mailboxes, for work beside the volumes that are served. What is started there ends before the
    /// server stops.
    pub fn mailboxes(&self) -> &[Mailbox] {
        &self.cores
    }

    /// Adds a subsystem.
    pub fn add_subsystem(&self, config: SubsystemConfig) -> Result<(), Error> {
        Ok(self.control(move |control| control.target.borrow_mut().add_subsystem(config))??)
    }

    /// Removes a subsystem with its namespaces, and drops its controllers.
    pub fn remove_subsystem(&self, nqn: &str) -> Result<(), Error> {
        let name = nqn.to_string();
        self.control(move |control| {
            let removed = control.target.borrow_mut().remove_subsystem(&name);
            if removed.is_ok() {
                control.keys.forget(&name);
            }
            control.forget_counters(|(nqn, _)| **nqn == *name);
            control.kick();
            removed
        })??;
        let nqn: Arc<str> = nqn.into();
        self.served().retain(|(of, _), served| {
            let is_kept = *of != nqn;
            if !is_kept {
                served.failures.finish();
            }
            is_kept
        });
        self.on_every_core(|_| {
            let nqn = nqn.clone();
            Box::new(move |core: &Core| {
                core.subsystems.borrow_mut().remove(&nqn);
            })
        })
    }

    /// Serves `namespace` in subsystem `nqn`. Returns its namespace id.
    pub fn add_namespace(
        &self,
        nqn: &str,
        options: &NamespaceOptions,
        namespace: Arc<dyn Namespace>,
    ) -> Result<u32, Error> {
        let nqn: Arc<str> = nqn.into();
        let mut served = self.served();
        let nsid = options.nsid.unwrap_or_else(|| {
            (1..).find(|nsid| !served.contains_key(&(nqn.clone(), *nsid))).expect("one is free")
        });
        if served.contains_key(&(nqn.clone(), nsid)) {
            return Err(ConfigError::NamespaceExists { nqn: nqn.to_string(), nsid }.into());
        }
        let limits = namespace.limits();
        let config = NamespaceConfig {
            nsid: Some(nsid),
            uuid: options.uuid,
            nguid: options.nguid,
            ana_group: options.ana_group,
            limits,
        };
        let counters: Vec<Arc<Counters>> = self.cores.iter().map(|_| Arc::default()).collect();
        let failures = Failures::new(failures::Served::Namespace(Arc::clone(&nqn), nsid));
        // Cores know it before any host can.
        self.on_every_core(|index| {
            let (nqn, namespace) = (nqn.clone(), namespace.clone());
            let (counters, group) = (counters[index].clone(), config.ana_group);
            let failures = failures.clone();
            Box::new(move |core: &Core| {
                let view = NamespaceView::new(namespace, group, counters, failures);
                core.subsystem(&nqn).insert(nsid, view);
            })
        })?;
        let (name, all) = (nqn.clone(), counters.clone());
        let added = self.control(move |control| {
            let added = control.target.borrow_mut().add_namespace(&name, config);
            if added.is_ok() {
                control.add_counters(&name, nsid, all);
            }
            control.kick();
            added
        })?;
        if let Err(error) = added {
            self.forget_view(&nqn, nsid)?;
            return Err(error.into());
        }
        served.insert((nqn, nsid), Served { namespace, counters, failures });
        Ok(nsid)
    }

    /// Stops serving a namespace. What is in flight is finished.
    pub fn remove_namespace(&self, nqn: &str, nsid: u32) -> Result<(), Error> {
        let name = nqn.to_string();
        self.control(move |control| {
            let removed = control.target.borrow_mut().remove_namespace(&name, nsid);
            control.forget_counters(|(nqn, of)| **nqn == *name && *of == nsid);
            control.kick();
            removed
        })??;
        let nqn: Arc<str> = nqn.into();
        self.forget_view(&nqn, nsid)?;
        if let Some(served) = self.served().remove(&(nqn, nsid)) {
            served.failures.finish();
        }
        Ok(())
    }

    /// Waits until each core has ended what it is at. Who sees that a volume has no other user left finds its queues
    /// closed then, down to the last of what they are made of.
    pub fn settle(&self) -> Result<(), Error> {
        self.on_every_core(|_| Box::new(|_| ()))
    }

    fn forget_view(&self, nqn: &Arc<str>, nsid: u32) -> Result<(), Error> {
        self.on_every_core(|_| {
            let nqn = nqn.clone();
            Box::new(move |core: &Core| {
                if let Some(view) = core.subsystem(&nqn).remove(nsid) {
                    core.connections(|_| true).iter().for_each(|it| it.forget_namespace(&view));
                }
            })
        })
    }

    /// The namespace's limits have changed: cores and hosts are told.
    pub fn namespace_changed(&self, nqn: &str, nsid: u32) -> Result<(), Error> {
        let nqn: Arc<str> = nqn.into();
        let Some(limits) =
            self.served().get(&(nqn.clone(), nsid)).map(|served| served.namespace.limits())
        else {
            return Err(ConfigError::UnknownNamespace { nqn: nqn.to_string(), nsid }.into());
        };
        // Before anybody goes by them.
        subsystem::check_limits(&limits)?;
        self.on_every_core(|_| {
            let nqn = nqn.clone();
            Box::new(move |core: &Core| {
                if let Some(view) = core.subsystem(&nqn).namespace(nsid) {
                    view.limits.set(limits);
                }
            })
        })?;
        self.control(move |control| {
            let updated = control.target.borrow_mut().update_limits(&nqn, nsid, limits);
            control.kick();
            updated
        })??;
        Ok(())
    }

    /// Listens on `address`; port 0 takes a free one. Returns the port's id and the address.
    pub fn add_listener(&self, address: SocketAddr) -> Result<(PortId, SocketAddr), Error> {
        let bound = Server::bind(address)?;
        let address = bound.address;
        Ok((self.listen(bound, &[])?, address))
    }

    /// Takes `address`, or a free port if that is 0; whoever connects waits for [`Server::listen`].
    pub fn bind(address: SocketAddr) -> Result<Bound, Error> {
        let refused = |source| Error::Listen { address, source };
        let listener = Listener::bind(address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Bound { listener, address, is_secured: false })
    }

    /// Accepts connections at `bound` once `states` hold through it. Returns the port's id.
    pub fn listen(&self, bound: Bound, states: &[PortState]) -> Result<PortId, Error> {
        let Bound { listener, address, is_secured } = bound;
        let config = PortConfig { traddr: address.ip(), trsvcid: address.port(), is_secured };
        let port = self.control(move |control| control.target.borrow_mut().add_port(config))??;
        let set = states
            .iter()
            .try_for_each(|it| self.set_ana_state(&it.nqn, port, it.group, it.state))
            .and_then(|()| {
                self.control(move |control| {
                    control.listen(port, listener, is_secured);
                    control.kick();
                })
            });
        if let Err(error) = set {
            let _ = self.remove_listener(port);
            return Err(error);
        }
        Ok(port)
    }

    /// Holds every command back that comes through `port` from now on, as the `delay:` layer does:
    /// one slow path to a namespace that has others. No delays: not any longer.
    pub fn set_delay(&self, port: PortId, delays: Delays) -> Result<(), Error> {
        self.on_every_core(|_| Box::new(move |core: &Core| core.set_delay(port, delays)))
    }

    /// Stops listening on a port and drops what is connected through it.
    pub fn remove_listener(&self, port: PortId) -> Result<(), Error> {
        self.control(move |control| {
            let removed = control.target.borrow_mut().remove_port(port);
            control.unlisten(port);
            control.kick();
            removed
        })??;
        self.on_every_core(|_| {
            Box::new(move |core: &Core| {
                // Those that belong to no controller yet would be another port's by the time that they do.
                core.close_connections(|connection| connection.is_fresh_on(port));
                core.set_delay(port, Delays::default());
                for view in core.subsystems.borrow().values() {
                    view.forget_port(port);
                }
            })
        })
    }

    /// Lets the host `host` connect to subsystem `nqn`.
    pub fn allow_host(&self, nqn: &str, host: &str) -> Result<(), Error> {
        let (nqn, host) = (nqn.to_string(), host.to_string());
        Ok(self.control(move |control| {
            let done = control.target.borrow_mut().allow_host(&nqn, &host);
            control.kick();
            done
        })??)
    }

    /// Takes the host off the list and drops its controllers.
    pub fn disallow_host(&self, nqn: &str, host: &str) -> Result<(), Error> {
        let (nqn, host) = (nqn.to_string(), host.to_string());
        Ok(self.control(move |control| {
            let done = control.target.borrow_mut().disallow_host(&nqn, &host);
            control.kick();
            done
        })??)
    }

    /// Says by what `host` has to prove who it is from its next Connect to `nqn` on, or that it need not.
    pub fn set_authentication(
        &self,
        nqn: &str,
        host: &str,
        authentication: Option<Authentication>,
    ) -> Result<(), Error> {
        let (nqn, host) = (nqn.to_string(), host.to_string());
        Ok(self.control(move |control| {
            control.target.borrow_mut().set_authentication(&nqn, &host, authentication)
        })??)
    }

    /// Says by which keys `host` comes to `nqn` by TLS (by each of them), and then by no other way from its next Connect on; none: as any host.
    /// Connections that are there stay.
    pub fn set_tls_keys(
        &self,
        nqn: &str,
        host: &str,
        keys: Option<Arc<[Arc<tls::Key>]>>,
    ) -> Result<(), Error> {
        let (nqn, host) = (nqn.to_string(), host.to_string());
        Ok(self.control(move |control| {
            let set = control.target.borrow_mut().set_secured(&nqn, &host, keys.is_some());
            if set.is_ok() {
                control.set_keys(&nqn, &host, keys);
            }
            set
        })??)
    }

    /// Lets any host connect to `nqn`, or only those listed.
    pub fn set_allow_any_host(&self, nqn: &str, allow: bool) -> Result<(), Error> {
        let nqn = nqn.to_string();
        Ok(self.control(move |control| {
            let done = control.target.borrow_mut().set_allow_any_host(&nqn, allow);
            control.kick();
            done
        })??)
    }

    /// Sets the ANA state of `group` through `port`. Every core keeps to it before hosts are told.
    pub fn set_ana_state(
        &self,
        nqn: &str,
        port: PortId,
        group: u32,
        state: AnaState,
    ) -> Result<(), Error> {
        let name = nqn.to_string();
        self.control(move |control| {
            let target = &control.target;
            target.borrow_mut().set_ana_state(&name, port, group, state)
        })??;
        let nqn: Arc<str> = nqn.into();
        self.on_every_core(|_| {
            let nqn = nqn.clone();
            Box::new(move |core: &Core| core.subsystem(&nqn).set_ana(port, group, state))
        })?;
        self.control(Control::kick)
    }

    /// Who is connected, ascending by controller id.
    pub fn controllers(&self) -> Result<Vec<ControllerReport>, Error> {
        self.control(Control::reports)
    }

    /// What was done so far.
    pub fn stats(&self) -> Result<Stats, Error> {
        let namespaces = self.served().iter().map(|((nqn, nsid), it)| it.sum(nqn, *nsid)).collect();
        let (sender, receiver) = mpsc::channel();
        self.on_every_core(|index| {
            let sender = sender.clone();
            Box::new(move |core: &Core| {
                let stats = CoreStats {
                    connections: core.connection_count(),
                    reactor: core.reactor.stats(),
                    buffer_bytes_free: core.reactor.buffers().available(),
                    buffer_bytes: core.reactor.buffers().capacity(),
                };
                let _ = sender.send((index, stats));
            })
        })?;
        drop(sender);
        let mut cores: Vec<_> = receiver.iter().collect();
        cores.sort_by_key(|(index, _)| *index);
        let refused = self.control(|control| control.core().journal.refused_count())?;
        Ok(Stats {
            namespaces,
            cores: cores.into_iter().map(|(_, stats)| stats).collect(),
            refused,
        })
    }

    /// Stops accepting, closes all connections, waits for what volumes hold (10 s at most) and makes all volumes
    /// durable, several at a time. Of several errors all are logged but the one that is returned.
    pub fn stop(mut self) -> Result<(), Error> {
        let commands = self.halt();
        let mut errors = Vec::new();
        let served = std::mem::take(&mut *self.served()).into_values();
        let finished = served.map(|served| {
            served.failures.finish();
            served.namespace
        });
        for (volume, source) in durable::flush_all(finished.collect()) {
            errors.push(Error::Flush { volume, source });
        }
        if commands > 0 {
            errors.push(Error::GivenUp { commands, is_flushed: errors.is_empty() });
        }
        let last = errors.pop();
        errors.iter().for_each(|error| tracing::error!("{error}"));
        last.map_or(Ok(()), Err)
    }

    /// Ends the threads. How many commands were given up.
    fn halt(&mut self) -> u64 {
        let given_up = Arc::<AtomicU64>::default();
        for mailbox in &self.cores {
            let given_up = Arc::clone(&given_up);
            mailbox.post(move |_reactor| {
                let core = Core::here();
                if let Some(control) = core.control.get() {
                    control.unlisten_all();
                }
                core.stop(given_up);
            });
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a core's thread panicked");
            }
        }
        given_up.load(Ordering::Relaxed)
    }

    fn served(&self) -> MutexGuard<'_, BTreeMap<(Arc<str>, u32), Served>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the control core and waits for its answer.
    fn control<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Control) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let (sender, receiver) = mpsc::channel();
        let posted = self.cores[0].post(move |_reactor| {
            let core = Core::here();
            let control = core.control.get().expect("core 0 is the control core");
            let _ = sender.send(work(control));
        });
        if !posted {
            return Err(Error::Stopped);
        }
        receiver.recv().map_err(|_| Error::Stopped)
    }

    /// Runs what `make` gives for each core there, and waits for all.
    fn on_every_core(
        &self,
        make: impl Fn(usize) -> Box<dyn FnOnce(&Core) + Send>,
    ) -> Result<(), Error> {
        let (sender, receiver) = mpsc::channel();
        for (index, mailbox) in self.cores.iter().enumerate() {
            let (work, sender) = (make(index), sender.clone());
            let posted = mailbox.post(move |_reactor| {
                work(&Core::here());
                let _ = sender.send(());
            });
            if !posted {
                return Err(Error::Stopped);
            }
        }
        drop(sender);
        if receiver.iter().count() == self.cores.len() { Ok(()) } else { Err(Error::Stopped) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.halt();
    }
}

impl Served {
    fn sum(&self, nqn: &str, nsid: u32) -> NamespaceStats {
        let counted = Counted::of(self.counters.iter().map(|core| &**core));
        NamespaceStats { nqn: nqn.into(), nsid, counted }
    }
}

/// What a core's thread starts from.
struct Seed {
    index: usize,
    reactor: reactor::Config,
    /// On the control core.
    target: Option<TargetConfig>,
    shared: Cores,
    epoch: Instant,
}

/// A number that no other start of a server has; zero if there is none to be had.
fn instance() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    namespace::uuid::parse(text.trim()).unwrap_or_default()
}

fn run_core(seed: Seed, started: &mpsc::Sender<Result<Mailbox, reactor::Error>>) {
    let reactor = match Reactor::new(&seed.reactor) {
        Ok(reactor) => reactor,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let core = Core::install(seed.index, reactor.clone(), seed.shared, seed.epoch);
    if let Some(config) = seed.target {
        let control =
            Control::new(&core, subsystem::Target::new(config).expect("checked by start"));
        assert!(core.control.set(control).is_ok(), "set once");
    }
    let _ = started.send(Ok(reactor.mailbox()));
    drop(core);
    reactor.run();
    Core::uninstall();
}
