//! Bringing a configuration up.

use super::add::Added;
use super::claims::{ClaimError, Claims};
use super::closing::Closing;
use super::jobs::Jobs;
use super::keys::Keys;
use super::looks::Looks;
use super::missing::Missing;
use super::snapshot::Snapshots;
use super::twice::named_twice;
use super::{Daemon, Started, Threads};
use crate::config::identity::{self, Machine};
use crate::config::store::{Store, StoreError};
use crate::config::{self, AnaState, Config, ControllerIds, Invalid, Listen, NoTls, Subsystem};
use crate::patience::{MOMENT, Patience};
use host::keys::KeyFileError;
use namespace::Namespace;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use target::{
    Bound, NamespaceOptions, PortState, Server, ServerConfig, SubsystemConfig, TargetConfig,
};
use uuid::Uuid;
use volume::OpenOptions;

/// Model number that hosts see.
const MODEL: &str = "nvlane";

/// How long what a killed daemon held may stay in use. Of one that was killed with another configuration nothing is
/// known here: then it is [`MOMENT`].
const CRASH_WAIT: Duration = Duration::from_secs(10);

/// Why a configuration cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It says something impossible.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Two volumes are one file.
    #[error("{}{} is named twice: a file has one writer", first.display(),
        if first == second { String::new() } else { format!(", as {},", second.display()) })]
    Twice {
        /// One path.
        first: PathBuf,
        /// The other, which may be the same.
        second: PathBuf,
    },
    /// Another server has controller ids that this one was to have.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// A volume cannot be opened; the message names it.
    #[error(transparent)]
    Volume(#[from] volume::Error),
    /// A host is to prove who it is by a key that cannot be read.
    #[error("{host}: {source}")]
    Key {
        /// The host, which is not let in without proof.
        host: String,
        /// The file, and what is wrong with it.
        source: KeyFileError,
    },
    /// A listener is to take encrypted connections, which this kernel cannot.
    #[error(transparent)]
    NoTls(#[from] NoTls),
    /// The data path refused.
    #[error(transparent)]
    Target(#[from] target::Error),
    /// The state of another configuration cannot be put aside.
    #[error(transparent)]
    State(#[from] StoreError),
}

impl Daemon {
    /// Starts the cores, reads all keys, opens all volumes, and only then takes the addresses; [`Daemon::accept`] serves hosts. With
    /// `nofail`, and where a namespace has it, a volume that cannot be opened is served once it can be.
    pub fn start(
        mut config: Config,
        threads: &Threads,
        store: Store,
        machine: Machine,
        nofail: bool,
    ) -> Result<Daemon, StartError> {
        config.complete();
        config.check()?;
        if let Some((first, second)) = named_twice(&config, nofail) {
            return Err(StartError::Twice { first, second });
        }
        config.listeners.iter().try_for_each(|listen| listen.check_kernel())?;
        let keys = Keys::load(&config)?;
        let wait = if store.is_after_crash() { CRASH_WAIT } else { MOMENT };
        let patience = Patience::new(wait);
        let server = Server::start(&server_config(&config, threads))?;
        let jobs = Jobs::none(store.path(), server.mailboxes().to_vec());
        let mut daemon = Daemon {
            jobs,
            server,
            cores: threads.cores.cpus().len(),
            missing: Missing::none(threads.cores.cpus().len(), wait, nofail),
            config: Config { subsystems: Vec::new(), listeners: Vec::new(), ..config.clone() },
            volumes: BTreeMap::new(),
            claims: Claims::default(),
            ports: Vec::new(),
            bound: Vec::new(),
            unwell: BTreeSet::new(),
            sizes: BTreeMap::new(),
            resizing: BTreeMap::new(),
            store,
            machine,
            started: Started::now(),
            snapshots: Snapshots::default(),
            added: Added::default(),
            closing: Closing::default(),
            looks: Looks::default(),
        };
        let ids = controller_ids(&config);
        let mut opened = BTreeMap::new();
        for subsystem in &config.subsystems {
            for namespace in &subsystem.namespaces {
                let nsid = namespace.nsid.expect("complete");
                let key = (subsystem.nqn.clone(), nsid);
                if nofail || namespace.nofail {
                    daemon.missing.insert(key, namespace.volume.clone(), subsystem.shared);
                    continue;
                }
                let volume =
                    patience.open(|| open(&namespace.volume, subsystem.shared, daemon.cores))?;
                opened.insert(key, volume);
                if subsystem.shared {
                    let (nqn, uri) = (&subsystem.nqn, &namespace.volume);
                    daemon.claims.wait(&patience, nqn, nsid, uri, ids)?;
                }
            }
        }
        for subsystem in config.subsystems {
            let nqn = subsystem.nqn.clone();
            daemon.start_subsystem(subsystem, &opened)?;
            keys.put(&daemon.server, &nqn)?;
        }
        daemon.wait_for_missing();
        daemon.bind(config.listeners, &patience.or(MOMENT))?;
        Ok(daemon)
    }

    /// Serves hosts, and goes on with jobs. A state that this start does not continue is put aside behind everything that may
    /// still fail: whoever starts the daemon as before then finds it.
    pub fn accept(&mut self) -> Result<(), StartError> {
        for socket in std::mem::take(&mut self.bound) {
            let address = socket.address();
            let port = self.server.listen(socket, &states_at(&self.config, address))?;
            self.ports.push((address, port));
        }
        for listen in self.config.listeners.iter().filter(|listen| listen.tls) {
            tracing::info!(
                "{listen} takes encrypted connections alone, of hosts with a key for TLS"
            );
        }
        self.store.put_aside()?;
        if let Err(error) = self.store.begin(&self.config) {
            tracing::warn!("the state is as it was, and cannot be brought up to date: {error}");
        }
        self.jobs.expect(self.missing.uris());
        self.jobs.go_on(&self.volumes, self.store.is_fresh());
        Ok(())
    }

    /// Takes all addresses; everything about them is known then.
    fn bind(&mut self, listeners: Vec<Listen>, patience: &Patience) -> Result<(), StartError> {
        for listen in listeners {
            let socket = bind(listen, patience)?;
            let (address, actual) = (listen.address, socket.address());
            self.config.listeners.push(Listen { address: actual, ..listen });
            // An ANA state may name the listener as it was written, with port 0.
            for subsystem in &mut self.config.subsystems {
                for ana in subsystem.ana.iter_mut().filter(|ana| ana.listener == Some(address)) {
                    ana.listener = Some(actual);
                }
            }
            self.bound.push(socket);
        }
        Ok(self.config.check()?)
    }

    fn start_subsystem(
        &mut self,
        mut subsystem: Subsystem,
        opened: &BTreeMap<(String, u32), Arc<dyn Namespace>>,
    ) -> Result<(), StartError> {
        self.server.add_subsystem(subsystem_config(&subsystem))?;
        let namespaces = std::mem::take(&mut subsystem.namespaces);
        let nqn = subsystem.nqn.clone();
        self.config.subsystems.push(subsystem);
        let at = self.config.subsystems.len() - 1;
        for mut namespace in namespaces {
            let key = (nqn.clone(), namespace.nsid.expect("complete"));
            if let Some(volume) = opened.get(&key) {
                self.identify(&nqn, &mut namespace, volume);
                self.server.add_namespace(&nqn, &options(&namespace), volume.clone())?;
                self.volumes.insert(key, volume.clone());
            }
            self.config.subsystems[at].namespaces.push(namespace);
        }
        Ok(())
    }

    /// Fills in a namespace's names and its volume's canonical URI.
    pub(super) fn identify(
        &self,
        nqn: &str,
        namespace: &mut config::Namespace,
        volume: &Arc<dyn Namespace>,
    ) {
        namespace.volume = volume.uri();
        let uuid = namespace.uuid.or_else(|| volume.uuid().map(Uuid::from_bytes));
        let uuid = uuid.unwrap_or_else(|| {
            let all = self.config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
            let used = all.filter_map(|namespace| namespace.uuid).collect();
            self.machine.volume(&namespace.volume, nqn, &used)
        });
        namespace.uuid = Some(uuid);
        namespace.nguid.get_or_insert_with(|| identity::nguid(uuid));
    }
}

/// Takes an address that somebody who is gone may still have.
pub(super) fn bind(listen: Listen, patience: &Patience) -> Result<Bound, target::Error> {
    let bound = patience.wait(
        || Server::bind(listen.address),
        |error| match error {
            target::Error::Listen { source, .. } => source.kind() == ErrorKind::AddrInUse,
            _ => false,
        },
    )?;
    Ok(if listen.tls { bound.secured() } else { bound })
}

/// Opens a volume for serving.
pub(super) fn open(
    uri: &str,
    shared: bool,
    cores: usize,
) -> Result<Arc<dyn Namespace>, volume::Error> {
    let options = OpenOptions { cores, shared, ..OpenOptions::default() };
    let volume = volume::open(uri, &options)?;
    #[cfg(feature = "mutants")]
    let volume = super::mutant::Mutant::over(volume);
    Ok(volume)
}

pub(super) fn subsystem_config(subsystem: &Subsystem) -> SubsystemConfig {
    SubsystemConfig {
        nqn: subsystem.nqn.clone(),
        serial: subsystem.serial.clone().expect("complete"),
        model: MODEL.to_owned(),
        allow_any_host: subsystem.allow_any_host.expect("complete"),
        hosts: subsystem.allowed_hosts.clone(),
        io_queues_max: 128,
        fused: !subsystem.shared,
    }
}

pub(super) fn options(namespace: &config::Namespace) -> NamespaceOptions {
    NamespaceOptions {
        nsid: namespace.nsid,
        uuid: namespace.uuid.expect("identified").into_bytes(),
        nguid: namespace.nguid.expect("identified").into_bytes(),
        ana_group: namespace.ana_group,
    }
}

/// The ANA states that hold through the listener at `address`.
pub(super) fn states_at(config: &Config, address: SocketAddr) -> Vec<PortState> {
    let all = config
        .subsystems
        .iter()
        .flat_map(|subsystem| subsystem.ana.iter().map(|ana| (&subsystem.nqn, ana)));
    all.filter(|(_, ana)| ana.listener.is_none_or(|listener| listener == address))
        .map(|(nqn, ana)| PortState {
            nqn: nqn.clone(),
            group: ana.group,
            state: ana_state(ana.state),
        })
        .collect()
}

pub(super) fn ana_state(state: AnaState) -> target::AnaState {
    match state {
        AnaState::Optimized => target::AnaState::OPTIMIZED,
        AnaState::NonOptimized => target::AnaState::NON_OPTIMIZED,
        AnaState::Inaccessible => target::AnaState::INACCESSIBLE,
        AnaState::PersistentLoss => target::AnaState::PERSISTENT_LOSS,
        AnaState::Change => target::AnaState::CHANGE,
    }
}

/// Those that the server gives out.
pub(super) fn controller_ids(config: &Config) -> ControllerIds {
    config.controller_ids.unwrap_or(ControllerIds::ALL)
}

fn server_config(config: &Config, threads: &Threads) -> ServerConfig {
    let ids = controller_ids(config);
    ServerConfig {
        cores: threads.cores.cpus().to_vec(),
        poll: threads.poll,
        target: TargetConfig {
            cntlid_min: ids.min,
            cntlid_max: ids.max,
            ..TargetConfig::default()
        },
        ..ServerConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::store::{Found, Start};
    use crate::config::{Ana, Cores};
    use std::path::Path;

    /// A daemon that does not continue the state that is there; and where that goes.
    fn other(directory: &Path) -> (Daemon, PathBuf) {
        let state = directory.join("state.json");
        let start = |text: &str| Start { text: text.into(), meaning: None };
        let (before, _) = Store::open(&state, start("before")).unwrap();
        before.save(&Config::default()).unwrap();
        drop(before);
        let (store, found) = Store::open(&state, start("now")).unwrap();
        assert!(matches!(found, Found::Other(_)), "{found:?}");
        let aside = store.aside();
        let listeners = vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()];
        let config = Config { listeners, ..Config::default() };
        let threads = Threads { cores: Cores::default(), poll: false };
        let machine = Machine::find(directory).unwrap();
        let daemon = Daemon::start(config, &threads, store, machine, false).unwrap();
        assert!(state.exists() && !aside.exists(), "nobody is served yet");
        (daemon, aside)
    }

    #[test]
    fn a_start_that_fails_at_its_listeners_leaves_the_state_of_before() {
        let directory = tempfile::tempdir().unwrap();
        let (mut daemon, aside) = other(directory.path());
        // States of something that it does not serve cannot hold on a listener.
        let ana = Ana { listener: None, group: 1, state: AnaState::Optimized };
        let nqn = "nqn.2026-11.com.example:a".to_owned();
        let unknown = Subsystem { nqn, ana: vec![ana], ..Subsystem::default() };
        daemon.config.subsystems.push(unknown);
        assert!(matches!(daemon.accept(), Err(StartError::Target(_))));
        let (state, says) = (daemon.store.path(), "who starts it as before has lost the state");
        assert!(state.exists() && !aside.exists(), "{says}");
    }

    #[test]
    fn a_start_that_succeeds_puts_the_state_of_before_aside() {
        let directory = tempfile::tempdir().unwrap();
        let (mut daemon, aside) = other(directory.path());
        daemon.accept().unwrap();
        assert!(!daemon.store.path().exists() && aside.exists());
        daemon.stop().unwrap();
    }
}
