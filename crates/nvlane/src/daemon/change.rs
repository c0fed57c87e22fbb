//! Changes to a running daemon.
//!
//! A change is saved before it is made: if it cannot be saved it is not made, and if it cannot be
//! made the old state is saved again. A crash between the two leaves a change that nobody was told
//! of, which the next start makes. A new size alone is made first: it is the volume's.

use super::Daemon;
use super::start::{ana_state, bind, controller_ids, open, options, states_at, subsystem_config};
use super::twice::named_twice;
use crate::config::{ANY_HOST, Ana, Config, Listen, Namespace, Subsystem, check_group, check_nqn};
use crate::control::method::{
    AnaSet, Host, Listener, ListenerChanged, SubsystemAdd, SubsystemRemove, Volume, VolumeAdd,
    VolumeRemove, VolumeResize,
};
use crate::control::protocol::Failure;
use crate::patience::{MOMENT, Patience};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use target::{PortId, Server};

/// How long a volume that is removed may take to finish what is in flight.
const CLOSE_WAIT: Duration = Duration::from_secs(10);
/// How often to look whether it has.
const CLOSE_INTERVAL: Duration = Duration::from_millis(2);

type Done<T = ()> = Result<T, Failure>;

impl Daemon {
    pub(super) fn volume_add(&mut self, wanted: VolumeAdd) -> Done<Volume> {
        let nqn = self.nqn(wanted.nqn)?;
        let subsystem = self.config.subsystem(&nqn).expect("resolved");
        if let Some(nsid) = wanted.nsid.filter(|&nsid| subsystem.namespace(nsid).is_some()) {
            return Err(Failure::conflict(format!("namespace {nsid} of {nqn} exists already")));
        }
        let mut namespace = Namespace::new(wanted.volume);
        namespace.nsid = Some(wanted.nsid.unwrap_or_else(|| subsystem.nsid_free()));
        namespace.uuid = wanted.uuid;
        namespace.nguid = wanted.nguid;
        namespace.ana_group = wanted.ana_group.unwrap_or(namespace.ana_group);
        namespace.nofail = wanted.nofail;
        let mut config = self.config.clone();
        config.subsystem_mut(&nqn).expect("resolved").namespaces.push(namespace.clone());
        config.check().map_err(|error| Failure::params(error.problem))?;
        // One that is missing has no lock that would tell.
        if let Some((_, twice)) = named_twice(&config, false) {
            let twice = twice.display();
            return Err(Failure::conflict(format!("{twice} is part of another volume already")));
        }

        let patience = Patience::new(MOMENT);
        let volume = patience
            .open(|| open(&namespace.volume, subsystem.shared, self.cores))
            .map_err(|error| Failure::volume(error.to_string()))?;
        let nsid = namespace.nsid.expect("set above");
        if subsystem.shared {
            let ids = controller_ids(&self.config);
            self.claims
                .wait(&patience, &nqn, nsid, &namespace.volume, ids)
                .map_err(|error| Failure::conflict(error.to_string()))?;
        }
        self.identify(&nqn, &mut namespace, &volume);
        let entries = &mut config.subsystem_mut(&nqn).expect("resolved").namespaces;
        *entries.last_mut().expect("pushed above") = namespace.clone();
        let added = self.change(config, |server| {
            server.add_namespace(&nqn, &options(&namespace), volume.clone()).map(|_| ())
        });
        if let Err(error) = added {
            self.claims.release(&nqn, nsid);
            return Err(error);
        }
        self.missing.note(&(nqn.clone(), nsid), &*volume);
        self.volumes.insert((nqn.clone(), nsid), volume);
        Ok(self.volume(&nqn, &namespace).expect("inserted"))
    }

    pub(super) fn volume_remove(&mut self, wanted: VolumeRemove) -> Done {
        let nqn = self.nqn(wanted.nqn)?;
        self.namespace(&nqn, wanted.nsid)?;
        self.check_unused(&nqn, Some(wanted.nsid))?;
        let mut config = self.config.clone();
        let subsystem = config.subsystem_mut(&nqn).expect("resolved");
        subsystem.namespaces.retain(|namespace| namespace.nsid != Some(wanted.nsid));
        let key = (nqn, wanted.nsid);
        if self.missing.has(&key) {
            self.change(config, |_| Ok(()))?;
            self.missing.remove(&key);
            self.missing.forget(&key);
            return Ok(());
        }
        self.change(config, |server| server.remove_namespace(&key.0, wanted.nsid))?;
        self.close(key)
    }

    pub(super) fn volume_resize(&mut self, wanted: VolumeResize) -> Done<Volume> {
        let nqn = self.nqn(wanted.nqn)?;
        self.namespace(&nqn, wanted.nsid)?;
        let volume = self.served(&nqn, wanted.nsid)?;
        let bytes_now = volume.limits().bytes();
        if wanted.bytes < bytes_now && !wanted.shrink {
            return Err(Failure::volume(format!(
                "{}: it has {bytes_now} bytes, and {} would cut off its end and the data there: say so by --shrink (`shrink` in \
                 a call)",
                volume.uri(),
                wanted.bytes
            )));
        }
        volume
            .resize(wanted.bytes)
            .map_err(|error| Failure::volume(format!("{}: {error}", volume.uri())))?;
        self.missing.resized(&(nqn.clone(), wanted.nsid), volume.limits().bytes());
        // The size may be part of the URI (memory), and must be found again at the next start.
        let mut config = self.config.clone();
        let subsystem = config.subsystem_mut(&nqn).expect("resolved");
        let entry = subsystem.namespaces.iter_mut().find(|n| n.nsid == Some(wanted.nsid));
        let entry = entry.expect("resolved");
        entry.volume = volume.uri();
        let entry = entry.clone();
        let saved = self.store.save(&config);
        self.config = config;
        self.server.namespace_changed(&nqn, wanted.nsid).map_err(refused)?;
        saved.map_err(|error| {
            Failure::unsaved(format!(
                "the volume has its new size, but it could not be saved: {error}"
            ))
        })?;
        Ok(self.volume(&nqn, &entry).expect("it is served"))
    }

    pub(super) fn host_allow(&mut self, wanted: Host) -> Done {
        let nqn = self.nqn(wanted.nqn)?;
        let host = wanted.host;
        let mut config = self.config.clone();
        let subsystem = config.subsystem_mut(&nqn).expect("resolved");
        if host == ANY_HOST {
            subsystem.allow_any_host = Some(true);
            return self.change(config, |server| server.set_allow_any_host(&nqn, true));
        }
        check_nqn(&host).map_err(|problem| Failure::params(format!("host: {problem}")))?;
        if subsystem.allowed_hosts.contains(&host) {
            return Ok(());
        }
        subsystem.allowed_hosts.push(host.clone());
        self.change(config, |server| server.allow_host(&nqn, &host))
    }

    pub(super) fn host_disallow(&mut self, wanted: Host) -> Done {
        let nqn = self.nqn(wanted.nqn)?;
        let host = wanted.host;
        let mut config = self.config.clone();
        let subsystem = config.subsystem_mut(&nqn).expect("resolved");
        if host == ANY_HOST {
            subsystem.allow_any_host = Some(false);
            return self.change(config, |server| server.set_allow_any_host(&nqn, false));
        }
        if !subsystem.allowed_hosts.contains(&host) {
            return Err(Failure::missing(format!("{host} is not on the list of {nqn}")));
        }
        subsystem.allowed_hosts.retain(|listed| *listed != host);
        self.change(config, |server| server.disallow_host(&nqn, &host))
    }

    pub(super) fn listener_add(&mut self, wanted: Listener) -> Done<ListenerChanged> {
        let listen = wanted.address;
        if self.port(listen.address).is_some() {
            return Err(Failure::conflict(format!("{} is listened on already", listen.address)));
        }
        let mut config = self.config.clone();
        config.listeners.push(listen);
        config.check().map_err(|error| Failure::params(error.to_string()))?;
        listen.check_kernel().map_err(|error| Failure::refused(error.to_string()))?;
        // Which port it is, if the kernel chooses, is known only when it is bound.
        let bound = bind(listen, &Patience::new(MOMENT)).map_err(refused)?;
        let address = bound.address();
        let listen = Listen { address, ..listen };
        *config.listeners.last_mut().expect("pushed above") = listen;
        let states = states_at(&config, address);
        let mut port = None;
        self.change(config, |server| {
            port = Some(server.listen(bound, &states)?);
            Ok(())
        })?;
        self.ports.push((address, port.expect("it is listened on")));
        Ok(listen.into())
    }

    pub(super) fn listener_remove(&mut self, wanted: Listener) -> Done<ListenerChanged> {
        let address = wanted.address.address;
        let port = self.port(address).ok_or_else(|| no_listener(address))?;
        let mut config = self.config.clone();
        let at = config.listeners.iter().position(|listen| listen.address == address);
        let removed = config.listeners.remove(at.expect("it has a port"));
        for subsystem in &mut config.subsystems {
            subsystem.ana.retain(|ana| ana.listener != Some(address));
        }
        if config.listeners.is_empty() {
            return Err(Failure::conflict(format!(
                "{address} is the last listener: nobody could connect any more"
            )));
        }
        self.change(config, |server| server.remove_listener(port))?;
        self.ports.retain(|&(_, known)| known != port);
        Ok(removed.into())
    }

    pub(super) fn ana_set(&mut self, wanted: AnaSet) -> Done {
        let nqn = self.nqn(wanted.nqn)?;
        check_group("group", wanted.group).map_err(|error| Failure::params(error.to_string()))?;
        let ports: Vec<PortId> = match wanted.listener {
            Some(address) => vec![self.port(address).ok_or_else(|| no_listener(address))?],
            None => self.ports.iter().map(|&(_, port)| port).collect(),
        };
        let mut config = self.config.clone();
        let subsystem = config.subsystem_mut(&nqn).expect("resolved");
        // A state for all listeners replaces those for single ones.
        subsystem.ana.retain(|ana| {
            ana.group != wanted.group
                || (wanted.listener.is_some() && ana.listener != wanted.listener)
        });
        let (listener, group, state) = (wanted.listener, wanted.group, wanted.state);
        subsystem.ana.push(Ana { listener, group, state });
        self.change(config, |server| {
            ports.iter().try_for_each(|&port| {
                server.set_ana_state(&nqn, port, wanted.group, ana_state(wanted.state))
            })
        })
    }

    pub(super) fn subsystem_add(&mut self, wanted: SubsystemAdd) -> Done {
        if self.config.subsystem(&wanted.nqn).is_some() {
            return Err(Failure::conflict(format!("{} exists already", wanted.nqn)));
        }
        let mut subsystem = Subsystem {
            nqn: wanted.nqn,
            serial: wanted.serial,
            allowed_hosts: wanted.allowed_hosts,
            shared: wanted.shared,
            ..Subsystem::default()
        };
        subsystem.complete();
        let mut config = self.config.clone();
        config.subsystems.push(subsystem.clone());
        config.check().map_err(|error| Failure::params(error.problem))?;
        self.change(config, |server| server.add_subsystem(subsystem_config(&subsystem)))
    }

    pub(super) fn subsystem_remove(&mut self, wanted: SubsystemRemove) -> Done {
        let nqn = self.nqn(Some(wanted.nqn))?;
        self.check_unused(&nqn, None)?;
        let mut config = self.config.clone();
        config.subsystems.retain(|subsystem| subsystem.nqn != nqn);
        self.change(config, |server| server.remove_subsystem(&nqn))?;
        self.missing.remove_all(&nqn);
        let keys: Vec<_> = self.volumes.keys().filter(|(of, _)| *of == nqn).cloned().collect();
        // Every volume is closed, even if one before it could not be flushed.
        let closed: Vec<Done> = keys.into_iter().map(|key| self.close(key)).collect();
        closed.into_iter().collect()
    }

    /// Saves `config`, then makes it true with `make`.
    pub(super) fn change(
        &mut self,
        config: Config,
        make: impl FnOnce(&Server) -> Result<(), target::Error>,
    ) -> Done {
        // What is saved must be served again.
        config.check().map_err(|error| Failure::params(error.to_string()))?;
        self.store.save(&config).map_err(|error| {
            // It may be there all the same, and not be durable.
            self.save_as_it_is();
            Failure::unsaved(format!("nothing was changed, since it could not be saved: {error}"))
        })?;
        match make(&self.server) {
            Ok(()) => {
                self.config = config;
                Ok(())
            }
            Err(error) => {
                self.save_as_it_is();
                Err(refused(error))
            }
        }
    }

    /// Takes a change that was not made back.
    pub(super) fn save_as_it_is(&self) {
        if let Err(error) = self.store.save(&self.config) {
            tracing::error!("a change that was not made may be in the state file: {error}");
        }
    }

    /// Makes a volume that is no longer served durable, and closes it.
    fn close(&mut self, key: (String, u32)) -> Done {
        self.unwell.remove(&key);
        self.missing.forget(&key);
        let Some(volume) = self.volumes.remove(&key) else {
            self.claims.release(&key.0, key.1);
            return Ok(());
        };
        // What is in flight on the cores holds it too.
        let deadline = Instant::now() + CLOSE_WAIT;
        while Arc::strong_count(&volume) > 1 {
            if Instant::now() >= deadline {
                tracing::warn!("{}: removed, but some I/O on it does not end", volume.uri());
                break;
            }
            std::thread::sleep(CLOSE_INTERVAL);
        }
        // A core may have let go of the volume and not yet of what is below it, such as a file and its lock.
        let settled = self.server.settle().map_err(refused);
        // Another server may give out the same ids from now on.
        self.claims.release(&key.0, key.1);
        volume.flush().map_err(|error| {
            Failure::volume(format!("{}: removed, but not flushed: {error}", volume.uri()))
        })?;
        settled
    }

    /// No job is at work on the namespace, or on any of the subsystem's.
    fn check_unused(&mut self, nqn: &str, nsid: Option<u32>) -> Done {
        let named = |of: &str, id: u32| of == nqn && nsid.is_none_or(|nsid| nsid == id);
        for (key @ (of, id), volume) in &self.volumes {
            if named(of, *id)
                && let Some(why) = self.jobs.user_of(key, volume)
            {
                return Err(Failure::conflict(format!("namespace {id}: {why}")));
            }
            if named(of, *id) && self.snapshots.has(key) {
                let what = format!("namespace {id}: a snapshot of it is being made");
                return Err(Failure::conflict(what));
            }
        }
        Ok(())
    }

    /// The subsystem that is meant: the named one, or the only one.
    pub(super) fn nqn(&self, nqn: Option<String>) -> Done<String> {
        match (nqn, &self.config.subsystems[..]) {
            (Some(nqn), _) if self.config.subsystem(&nqn).is_some() => Ok(nqn),
            (Some(nqn), _) => Err(Failure::missing(format!("there is no subsystem {nqn}"))),
            (None, [only]) => Ok(only.nqn.clone()),
            (None, all) => Err(Failure::params(format!(
                "there are {} subsystems: say which, with its NQN",
                all.len()
            ))),
        }
    }

    pub(super) fn namespace(&self, nqn: &str, nsid: u32) -> Done<&Namespace> {
        self.config
            .subsystem(nqn)
            .and_then(|subsystem| subsystem.namespace(nsid))
            .ok_or_else(|| Failure::missing(format!("there is no namespace {nsid} in {nqn}")))
    }

    fn port(&self, address: SocketAddr) -> Option<PortId> {
        self.ports.iter().find(|&&(known, _)| known == address).map(|&(_, port)| port)
    }
}

fn no_listener(address: SocketAddr) -> Failure {
    Failure::missing(format!("{address} is not listened on"))
}

fn refused(error: target::Error) -> Failure {
    Failure::refused(error.to_string())
}
