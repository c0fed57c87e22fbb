//! What hosts have been told of data that volumes have lost.
//!
//! A core's queue to a volume tells of a loss once, whichever host's Flush it is. So each host is told here, by whichever of its
//! queues it flushes next: known by its name and identifier, also when it connects again. A host with queues on several cores may be
//! told by each of those that have not told anybody.
//!
//! Key constants: [`HOSTS_MAX`].

use namespace::{Lost, Namespace, Told};
use nvme::Status;
use nvme::fabrics::ConnectData;
use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

/// Hosts that are remembered; beyond that, only while they are connected.
const HOSTS_MAX: usize = 4096;

/// NQN and host identifier.
type Name = (Vec<u8>, [u8; 16]);

/// A host that has connected.
#[derive(Debug, Default)]
pub(crate) struct Host {
    /// When it came, if it was not here before.
    since: Option<Instant>,
    /// Of volumes that have lost something.
    told: Mutex<Vec<(Weak<dyn Namespace>, Told)>>,
}

impl Host {
    /// What to answer a Flush of this host that has ended with `status`.
    pub(crate) fn flushed(&self, namespace: &Arc<dyn Namespace>, status: Status) -> Status {
        if namespace.lost() == Lost::default() {
            return status;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|(of, _)| of.strong_count() > 0);
        let is_meant = |of: &Weak<_>| ptr::addr_eq(of.as_ptr(), Arc::as_ptr(namespace));
        let at = told.iter().position(|(of, _)| is_meant(of)).unwrap_or_else(|| {
            let of_it = self.since.map_or_else(Told::of_somebody, Told::since);
            told.push((Arc::downgrade(namespace), of_it));
            told.len() - 1
        });
        told[at].1.flushed(&**namespace, status)
    }
}

/// All hosts that have connected.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    known: HashMap<Name, Arc<Host>>,
    /// Some were: whoever is not known may have been here.
    forgotten: bool,
}

impl Hosts {
    /// The host that sends a Connect with that data. One without an identifier is not known again.
    pub(crate) fn of(&mut self, connect: &ConnectData) -> Arc<Host> {
        // What follows the terminating zero is no part of the name, and need not be the same each time.
        let nqn = connect.hostnqn.split(|byte| *byte == 0).next().unwrap_or_default();
        self.named((nqn.to_vec(), connect.hostid))
    }

    fn named(&mut self, name: Name) -> Arc<Host> {
        if name.1 == [0; 16] {
            return Arc::default();
        }
        if !self.known.contains_key(&name) && self.known.len() >= HOSTS_MAX {
            self.known.retain(|_, host| Arc::strong_count(host) > 1);
            self.forgotten = true;
        }
        let since = (!self.forgotten).then(Instant::now);
        let new = || Arc::new(Host { since, ..Host::default() });
        Arc::clone(self.known.entry(name).or_insert_with(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn what_follows_a_name_is_no_part_of_it() {
        let mut hosts = Hosts::default();
        let mut connect = ConnectData::new_zeroed();
        (connect.hostid, connect.hostnqn[0]) = ([1; 16], b'a');
        let first = hosts.of(&connect);
        connect.hostnqn[9] = b'x';
        assert!(Arc::ptr_eq(&first, &hosts.of(&connect)));
        connect.hostnqn[1] = b'b';
        assert!(!Arc::ptr_eq(&first, &hosts.of(&connect)));
    }

    #[test]
    fn a_host_is_known_again_and_not_for_ever() {
        let mut hosts = Hosts::default();
        let named = |name: &[u8], id: u128| (name.to_vec(), id.to_ne_bytes());
        let connected = hosts.named(named(b"a", 1));
        let gone = Arc::downgrade(&hosts.named(named(b"a", 2)));
        assert!(Arc::ptr_eq(&connected, &hosts.named(named(b"a", 1))));
        assert!(gone.upgrade().is_some());
        // Machines that were cloned differ in one of the two.
        assert!(!Arc::ptr_eq(&connected, &hosts.named(named(b"b", 1))));
        let nameless = hosts.named(named(b"a", 0));
        assert!(!Arc::ptr_eq(&nameless, &hosts.named(named(b"a", 0))));
        assert!(nameless.since.is_none() && connected.since.is_some());
        for id in 3..HOSTS_MAX as u128 + 3 {
            drop(hosts.named(named(b"a", id)));
        }
        assert!(hosts.known.len() <= HOSTS_MAX && gone.upgrade().is_none());
        assert!(Arc::ptr_eq(&connected, &hosts.named(named(b"a", 1))));
        assert!(hosts.named(named(b"a", 2)).since.is_none(), "it may have been here");
    }
}
