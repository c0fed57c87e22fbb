//! Connections that are encrypted: the handshake comes before anything else, and nothing is a connection of the target's that has not done it.
//!
//! ```text
//!   accepted --> tls::Upgrade (records by this core, cryptography by a thread) --> the kernel encrypts --> a connection as any other,
//!                                                                                  which speaks for the host of its key alone
//! ```

use crate::control::Control;
use reactor::Stream;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use subsystem::PortId;
use tls::{FindAll, Handshake, KEYS_MAX, Key, Peer, Psk, Secured, Upgrade, UpgradeError};

/// The keys of a host for a subsystem, by each of which it may come.
pub(crate) type HostKeys = Arc<[Arc<Key>]>;

/// The keys of hosts, which threads look into.
#[derive(Default)]
pub(crate) struct Keys {
    /// By subsystem, then by host: one, or two while it is replaced.
    keys: RwLock<BTreeMap<String, BTreeMap<String, HostKeys>>>,
    /// How often they were changed.
    changes: AtomicU64,
}

impl Keys {
    /// Whether it was another before.
    pub(crate) fn set(&self, nqn: &str, host: &str, wanted: Option<HostKeys>) -> bool {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let hosts = keys.entry(nqn.to_owned()).or_default();
        let before = match &wanted {
            Some(wanted) => hosts.insert(host.to_owned(), Arc::clone(wanted)),
            None => hosts.remove(host),
        };
        keys.retain(|_, hosts| !hosts.is_empty());
        let is_changed = before != wanted;
        self.changes.fetch_add(is_changed.into(), Ordering::Relaxed);
        is_changed
    }

    /// All of a subsystem.
    pub(crate) fn forget(&self, nqn: &str) {
        let hosts = self.keys.write().unwrap_or_else(PoisonError::into_inner).remove(nqn);
        self.changes.fetch_add(hosts.is_some().into(), Ordering::Relaxed);
    }

    /// What `identity` may stand for. To discovery, which is of no subsystem, a host comes by whichever key it has.
    fn find(&self, identity: &[u8], discovery_nqn: &str) -> Vec<Psk> {
        let Some(Peer { host_nqn, subsystem_nqn }) = Peer::of(identity) else { return Vec::new() };
        let all = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let mut keys: Vec<Arc<Key>> = Vec::new();
        for (nqn, hosts) in all.iter() {
            let is_meant = *nqn == subsystem_nqn || subsystem_nqn == discovery_nqn;
            let of_host = hosts.get(&host_nqn).filter(|_| is_meant);
            for key in of_host.into_iter().flat_map(|of_host| of_host.iter()) {
                if keys.len() < KEYS_MAX && !keys.contains(key) {
                    keys.push(Arc::clone(key));
                }
            }
        }
        drop(all);
        keys.iter().flat_map(|key| tls::accepted(identity, key)).collect()
    }
}

/// Handshakes under way, by their numbers.
#[derive(Default)]
pub(crate) struct Handshakes {
    under_way: HashMap<u64, Handshaking>,
    next: u64,
}

struct Handshaking {
    port: PortId,
    peer: SocketAddr,
    upgrade: Rc<Upgrade>,
}

impl Control {
    /// A connection to a port that takes encrypted ones alone.
    pub(crate) fn secure(&self, port: PortId, stream: Stream, peer: SocketAddr) {
        let core = self.core();
        let (keys, discovery) = (Arc::clone(&self.keys), self.target.borrow().discovery_nqn());
        let changes = keys.changes.load(Ordering::Relaxed);
        let find: Arc<FindAll> = Arc::new(move |identity: &[u8]| keys.find(identity, &discovery));
        let number = self.handshakes.borrow().next;
        let me = self.me();
        let done = move |outcome| me.secured((number, changes), (port, peer), outcome);
        let upgrade =
            Upgrade::begin(&core.reactor, stream, Handshake::controller(find), None, done);
        let mut handshakes = self.handshakes.borrow_mut();
        handshakes.next += 1;
        handshakes.under_way.insert(number, Handshaking { port, peer, upgrade });
        drop(handshakes);
        if let Some(oldest) = self.unsecured.begin(core.now(), number) {
            self.expire_handshake(oldest);
        }
        self.watch_trials();
    }

    fn secured(
        &self,
        (number, changes): (u64, u64),
        (port, peer): (PortId, SocketAddr),
        outcome: Result<Secured, UpgradeError>,
    ) {
        self.handshakes.borrow_mut().under_way.remove(&number);
        self.unsecured.passed(number);
        match outcome {
            // The key may be another by now: a host begins anew.
            Ok(_) if self.keys.changes.load(Ordering::Relaxed) != changes => {
                tracing::debug!(%peer, "no TLS session: keys have changed meanwhile");
            }
            Ok(Secured { stream, peer: identified }) => {
                tracing::debug!(%peer, host = ?identified.host_nqn, "connection is encrypted");
                self.accepted(port, stream, Some(identified));
            }
            Err(error) => self.core().journal.unsecured(peer, &error),
        }
    }

    /// The keys of a host are others, or none any more: what was encrypted by an old one, and is nobody's yet, becomes nobody's.
    pub(crate) fn set_keys(&self, nqn: &str, host: &str, keys: Option<HostKeys>) {
        if !self.keys.set(nqn, host, keys) {
            return;
        }
        let nobodys = self.core().connections(|connection| {
            connection.is_fresh()
                && connection.secured.get().is_some_and(|peer| peer.host_nqn == host)
        });
        for connection in nobodys {
            tracing::debug!(?host, "connection ends: its key was changed before its Connect");
            connection.close();
        }
    }

    /// Those that had their time.
    pub(crate) fn expire_unsecured(&self) {
        for number in self.unsecured.over(self.core().now()) {
            self.expire_handshake(number);
        }
    }

    /// Its time is over, or it makes room.
    fn expire_handshake(&self, number: u64) {
        if let Some(peer) = self.give_up_handshake(number) {
            self.core().journal.unsecured(peer, &UpgradeError::Late);
        }
    }

    fn give_up_handshake(&self, number: u64) -> Option<SocketAddr> {
        let handshaking = self.handshakes.borrow_mut().under_way.remove(&number);
        let Handshaking { peer, upgrade, .. } = handshaking?;
        upgrade.give_up();
        Some(peer)
    }

    /// Gives up the handshakes of connections to the ports that `which` picks.
    pub(crate) fn give_up_handshakes(&self, which: impl Fn(PortId) -> bool) {
        let all = self.handshakes.borrow();
        let numbers = all.under_way.iter().filter(|(_, it)| which(it.port));
        let numbers: Vec<_> = numbers.map(|(number, _)| *number).collect();
        drop(all);
        for number in numbers {
            self.unsecured.passed(number);
            self.give_up_handshake(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tls::{Derivation, Hash, Version};

    const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

    fn key(byte: u8) -> Arc<Key> {
        Arc::new(Key::generate(Hash::Sha256, &mut |bytes| bytes.fill(byte)))
    }

    fn identity(key: &Key, host: &str, subsystem: &str) -> Vec<u8> {
        let psk = Psk::derive(key, host, subsystem, Version::One, Derivation::Specified);
        psk.expect("short names").identity.into_bytes()
    }

    #[test]
    fn a_key_is_of_one_host_and_one_subsystem() {
        let keys = Keys::default();
        let (one, other) = (key(1), key(2));
        let keyed = |keys: &[&Arc<Key>]| -> Option<HostKeys> {
            Some(keys.iter().map(|key| Arc::clone(key)).collect())
        };
        keys.set("nqn.a", "nqn.host1", keyed(&[&one]));
        keys.set("nqn.b", "nqn.host1", keyed(&[&other]));
        let count = |key: &Key, host, subsystem| {
            keys.find(&identity(key, host, subsystem), DISCOVERY).len()
        };
        assert_eq!(count(&one, "nqn.host1", "nqn.a"), 1);
        assert_eq!(count(&one, "nqn.host1", "nqn.b"), 0, "its key for another subsystem");
        assert_eq!(count(&one, "nqn.host2", "nqn.a"), 0);
        for key in [&one, &other] {
            assert_eq!(count(key, "nqn.host1", DISCOVERY), 1);
        }
        assert_eq!(count(&one, "nqn.host2", DISCOVERY), 0);
        let changes = || keys.changes.load(Ordering::Relaxed);
        let before = changes();
        assert!(!keys.set("nqn.a", "nqn.host1", keyed(&[&one])), "as it is");
        assert!(!keys.set("nqn.a", "nqn.host2", None));
        assert_eq!(changes(), before);
        let next = key(3);
        assert!(keys.set("nqn.a", "nqn.host1", keyed(&[&one, &next])));
        for either in [&one, &next] {
            assert_eq!(count(either, "nqn.host1", "nqn.a"), 1, "while it is replaced");
            assert_eq!(count(either, "nqn.host1", DISCOVERY), 1);
        }
        assert!(keys.set("nqn.a", "nqn.host1", keyed(&[&next])));
        assert_eq!((count(&one, "nqn.host1", "nqn.a"), count(&next, "nqn.host1", "nqn.a")), (0, 1));
        assert!(keys.set("nqn.a", "nqn.host1", None));
        assert_eq!(changes(), before + 3);
        assert_eq!(count(&next, "nqn.host1", "nqn.a"), 0);
        assert_eq!(count(&one, "nqn.host1", "nqn.a"), 0);
        keys.forget("nqn.b");
        assert_eq!(changes(), before + 4);
        assert_eq!(count(&other, "nqn.host1", DISCOVERY), 0);
        assert!(keys.find(b"NVMe1R01", DISCOVERY).is_empty());
    }
}
