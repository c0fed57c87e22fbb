//! What proves that an end knows its key.

use crate::hash::Digest;
use crate::{Group, Hash, Key};

/// What both ends know of an exchange once the session key is there.
#[derive(Clone, Copy)]
pub(crate) struct Exchange<'a> {
    pub hash: Hash,
    pub group: Group,
    /// The secret that Diffie and Hellman gave; empty without a group.
    pub shared: &'a [u8],
    pub transaction: u16,
    pub host_nqn: &'a str,
    pub subsystem_nqn: &'a str,
}

impl Exchange<'_> {
    /// The host's response to the controller's challenge.
    pub fn of_host(&self, key: &Key, challenge: &[u8], sequence: u32) -> Digest {
        let names =
            [b"HostHost".as_slice(), self.host_nqn.as_bytes(), self.subsystem_nqn.as_bytes()];
        self.response(key.of(self.host_nqn).as_ref(), challenge, sequence, names)
    }

    /// The controller's response to the host's challenge.
    pub fn of_controller(&self, key: &Key, challenge: &[u8], sequence: u32) -> Digest {
        let names =
            [b"Controller".as_slice(), self.subsystem_nqn.as_bytes(), self.host_nqn.as_bytes()];
        self.response(key.of(self.subsystem_nqn).as_ref(), challenge, sequence, names)
    }

    fn response(&self, key: &[u8], challenge: &[u8], sequence: u32, names: [&[u8]; 3]) -> Digest {
        let [role, own, peer] = names;
        let (sequence, transaction) = (sequence.to_le_bytes(), self.transaction.to_le_bytes());
        // SC_C is 0: no secure channel concatenation.
        let rest = [&sequence[..], &transaction, &[0], role, own, &[0], peer];
        let augmented;
        let challenge = if self.group == Group::Null {
            challenge
        } else {
            let session = self.hash.digest(&[self.shared]);
            augmented = self.hash.hmac(session.as_ref(), &[challenge]);
            augmented.as_ref()
        };
        let mut parts = vec![challenge];
        parts.extend(rest);
        self.hash.hmac(key, &parts)
    }
}
