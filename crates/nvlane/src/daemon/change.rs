//! Changes to a running daemon.
//!
//! A change is saved before it is made: if it cannot be saved it is not made, and if it cannot be
//! made the old state is saved again. A crash between the two leaves a change that nobody was told
//! of, which the next start makes. A new size alone is made first: it is the volume's.

use super::Daemon;
use super::jobs::Reply;
use super::start::{ana_state, bind, states_at, subsystem_config};
use crate::config::{ANY_HOST, Ana, Config, Listen, Namespace, Subsystem, check_group, check_nqn};
use crate::control::method::{
    AnaSet, Host, Listener, ListenerChanged, SubsystemAdd, SubsystemRemove, Volume, VolumeRemove,
    VolumeResize,
};
use crate::control::protocol::Failure;
use crate::patience::{MOMENT, Patience};
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use target::{PortId, Server};

/// How long a volume that is removed may take to finish what is in flight.
const CLOSE_WAIT: Duration = Duration::from_secs(10);
/// How long one that gets another size may take, while other calls wait.
const RESIZE_WAIT: Duration = Duration::from_secs(10);
/// How often to look whether it has.
const CLOSE_INTERVAL: Duration = Duration::from_millis(2);

type Done<T = ()> = Result<T, Failure>;

impl Daemon {
    /// Ends a namespace, and tells by `reply` when its volume is flushed and closed.
    pub(super) fn volume_remove(&mut self, wanted: VolumeRemove, reply: Reply) -> Done {
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
            self.closing.flush(Vec::new(), Ok(()), reply);
            return Ok(());
        }
        self.change(config, |server| server.remove_namespace(&key.0, wanted.nsid))?;
        let (volume, settled) = self.close(key);
        self.closing.flush(volume.into_iter().collect(), settled, reply);
        Ok(())
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
        let key = (nqn.clone(), wanted.nsid);
        // One that comes late is not to come after another that was asked for since.
        self.resizing.retain(|_, resize| !resize.is_finished());
        if self.resizing.contains_key(&key) {
            let why = format!("{}: it has not answered to the last new size yet", volume.uri());
            return Err(Failure::conflict(why));
        }
        self.sizes.entry(key.clone()).or_insert(bytes_now);
        resize(&volume, wanted.bytes, |late| drop(self.resizing.insert(key.clone(), late)))
            .map_err(|error| Failure::volume(format!("{}: {error}", volume.uri())))?;
        let bytes = volume.limits().bytes();
        self.missing.resized(&key, bytes);
        self.sizes.insert(key, bytes);
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

    /// Ends a subsystem, and tells by `reply` when its volumes are flushed and closed.
    pub(super) fn subsystem_remove(&mut self, wanted: SubsystemRemove, reply: Reply) -> Done {
        let nqn = self.nqn(Some(wanted.nqn))?;
        self.check_unused(&nqn, None)?;
        let mut config = self.config.clone();
        config.subsystems.retain(|subsystem| subsystem.nqn != nqn);
        self.change(config, |server| server.remove_subsystem(&nqn))?;
        self.missing.remove_all(&nqn);
        let keys: Vec<_> = self.volumes.keys().filter(|(of, _)| *of == nqn).cloned().collect();
        let closed: Vec<_> = keys.into_iter().map(|key| self.close(key)).collect();
        let (volumes, settled): (Vec<_>, Vec<Done>) = closed.into_iter().unzip();
        let volumes = volumes.into_iter().flatten().collect();
        self.closing.flush(volumes, settled.into_iter().collect(), reply);
        Ok(())
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

    /// Lets go of a volume that is no longer served, which is to be flushed then.
    fn close(&mut self, key: (String, u32)) -> (Option<Arc<dyn namespace::Namespace>>, Done) {
        self.looks.forget(&key);
        self.unwell.remove(&key);
        self.sizes.remove(&key);
        self.resizing.remove(&key);
        self.missing.forget(&key);
        let Some(volume) = self.volumes.remove(&key) else {
            self.claims.release(&key.0, key.1);
            return (None, Ok(()));
        };
        // What is in flight on the cores holds it too.
        let deadline = Instant::now() + CLOSE_WAIT;
        while Arc::strong_count(&volume) > 1 {
            if Instant::now() >= deadline {
                tracing::warn!("{}: removed, but some I/O on it does not end", volume.uri());
                break;
            }
            thread::sleep(CLOSE_INTERVAL);
        }
        // A core may have let go of the volume and not yet of what is below it, such as a file and its lock.
        let settled = self.server.settle().map_err(refused);
        // Another server may give out the same ids from now on.
        self.claims.release(&key.0, key.1);
        (Some(volume), settled)
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

/// Gives a volume another size, unless that takes too long: it goes on then, as `late` is told, and its size is looked at as ever.
fn resize(
    volume: &Arc<dyn namespace::Namespace>,
    bytes: u64,
    late: impl FnOnce(JoinHandle<()>),
) -> std::io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    let its = Arc::clone(volume);
    let resize = move || {
        let outcome = its.resize(bytes);
        drop(its);
        let _ = sender.send(outcome);
    };
    let thread = thread::Builder::new().name("resize-volume".to_owned()).spawn(resize)?;
    receiver.recv_timeout(RESIZE_WAIT).unwrap_or_else(|_| {
        late(thread);
        let seconds = RESIZE_WAIT.as_secs();
        let why = format!("it does not answer; should it get the new size after these {seconds} s, its hosts are told");
        Err(std::io::Error::new(std::io::ErrorKind::TimedOut, why))
    })
}

fn no_listener(address: SocketAddr) -> Failure {
    Failure::missing(format!("{address} is not listened on"))
}

pub(super) fn refused(error: target::Error) -> Failure {
    Failure::refused(error.to_string())
}
