//! What a key gives for one host and one subsystem: the PSK that a ClientHello names.

use crate::expand::{PREFIX, expand, expand_label, extract};
use crate::hash::Hash;
use crate::key::Key;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use thiserror::Error;
use zeroize::Zeroizing;

/// A TLS PSK, and how it is called (NVMe TCP Transport 1.1, section 3.6.1).
#[derive(Clone, PartialEq, Eq)]
pub struct Psk {
    /// The identity: `NVMe0R01 HOSTNQN SUBNQN` or `NVMe1R01 HOSTNQN SUBNQN DIGEST`. No secret.
    pub identity: String,
    /// The hash function of the cipher suite it may be used with.
    pub hash: Hash,
    /// The external PSK of TLS, of as many bytes as `hash` gives.
    pub secret: Zeroizing<Vec<u8>>,
}

/// The form of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The names alone: it does not tell one key from another.
    Zero,
    /// With a digest of the retained PSK.
    One,
}

/// How PSKs are derived from keys.
///
/// What libnvme does, and so `nvme` where it puts the PSKs of a key into the kernel's keyring:
///
/// - before 1.4 (1.3 is in Debian 12): nothing, it only writes and checks keys;
/// - 1.4 to 1.6: neither of these, it also leaves out the length of what it derives;
/// - 1.7 to 1.10: `Compatible` for version 0 and keys that are transformed; for version 1, 1.7 to 1.9 do neither of these
///   (the whole identity takes part), and 1.10 fails;
/// - 1.11 to 1.15 (1.13 is in Debian 13): `Compatible`, the only one it has;
/// - since 1.16 of November 2025: `Specified`, or `Compatible` where `nvme` is told `--compat`.
///
/// Before 1.16, on OpenSSL 3.0.0 to 3.0.13 (and 3.1, 3.2 and 3.3 of that time), it derived something else again: those kept
/// only the last of several pieces of HKDF's `info`, so that neither length nor label took part.
///
/// SPDK does as specified, with version 0 only. Linux does so since 6.18 where it generates PSKs; from keys it derives none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// By HKDF-Expand-Label of RFC 8446, as the specification has it.
    Specified,
    /// As libnvme did at first: label and context without their lengths before them, and the length of what is derived in
    /// little-endian order. From keys that are transformed, it makes other retained PSKs, and with them other digests.
    Compatible,
}

/// Whom an identity names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The NQN of the host.
    pub host_nqn: String,
    /// The NQN of the subsystem.
    pub subsystem_nqn: String,
}

/// Names for which there is no PSK.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PskError {
    /// One of them is no NQN.
    #[error(
        "{name:?} is no NQN: one has 1 to {NQN_BYTES_MAX} bytes, and neither white space nor control characters"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// HKDF-Expand-Label takes at most 255 bytes of identity.
    #[error(
        "the NQNs of host and subsystem have {bytes} bytes in all, and an identity of version 0 takes {NAMES_BYTES_MAX}"
    )]
    Long {
        /// Bytes of both names.
        bytes: usize,
    },
}

/// Longest NQN in bytes.
const NQN_BYTES_MAX: usize = 223;

/// Longest names in bytes, host's and subsystem's in all, whose identity of version 0 has 255 bytes.
const NAMES_BYTES_MAX: usize = 255 - "NVMe0R01  ".len();

impl Psk {
    /// The PSK of `key` for one host and one subsystem.
    pub fn derive(
        key: &Key,
        host_nqn: &str,
        subsystem_nqn: &str,
        version: Version,
        derivation: Derivation,
    ) -> Result<Psk, PskError> {
        if let Some(name) = [host_nqn, subsystem_nqn].into_iter().find(|name| !is_nqn(name)) {
            return Err(PskError::Name { name: name.to_owned() });
        }
        let bytes = host_nqn.len() + subsystem_nqn.len();
        if (version, derivation) == (Version::Zero, Derivation::Specified)
            && bytes > NAMES_BYTES_MAX
        {
            return Err(PskError::Long { bytes });
        }
        let hash = key.hash();
        let retained = match key.transform() {
            None => Zeroizing::new(key.secret().to_vec()),
            Some(hash) => derivation.make(hash, key.secret(), "HostNQN", host_nqn),
        };
        let id = hash.id();
        let (identity, context) = match version {
            Version::Zero => {
                let identity = format!("NVMe0R{id:02} {host_nqn} {subsystem_nqn}");
                (identity.clone(), identity)
            }
            Version::One => {
                let digest = digest(hash, &retained, host_nqn, subsystem_nqn);
                let identity = format!("NVMe1R{id:02} {host_nqn} {subsystem_nqn} {digest}");
                (identity, format!("{id:02} {digest}"))
            }
        };
        let secret = derivation.make(hash, &retained, "nvme-tls-psk", &context);
        Ok(Psk { identity, hash, secret })
    }
}

/// What of the retained PSK an identity of version 1 shows.
fn digest(hash: Hash, retained: &[u8], host_nqn: &str, subsystem_nqn: &str) -> String {
    let parts = [host_nqn, " ", subsystem_nqn, " ", "NVMe-over-Fabrics"];
    STANDARD.encode(hash.hmac(retained, &parts.map(str::as_bytes)))
}

impl Derivation {
    /// A secret of another, as long as the hash function gives.
    fn make(self, hash: Hash, secret: &[u8], label: &str, context: &str) -> Zeroizing<Vec<u8>> {
        let extracted = extract(hash, &[], secret);
        let context = context.as_bytes();
        match self {
            Derivation::Specified => expand_label(hash, &extracted, label, context, hash.bytes()),
            Derivation::Compatible => {
                let length = [hash.bytes() as u8, 0];
                let info = [&length, PREFIX.as_bytes(), label.as_bytes(), context];
                expand(hash, &extracted, &info, hash.bytes())
            }
        }
    }
}

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Psk")
            .field("identity", &self.identity)
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

/// The PSKs of `key` that are called `identity`, as specified first, then the compatible one.
///
/// There are up to two, for names of version 0 tell nothing of the derivation, nor do digests of keys that are not
/// transformed: which one the host has is known once it fits the binder.
pub fn accepted(identity: &[u8], key: &Key) -> Vec<Psk> {
    let Some(Identity { version, hash, host_nqn, subsystem_nqn }) = Identity::of(identity) else {
        return Vec::new();
    };
    if hash != key.hash() {
        return Vec::new();
    }
    [Derivation::Specified, Derivation::Compatible]
        .into_iter()
        .filter_map(|it| Psk::derive(key, host_nqn, subsystem_nqn, version, it).ok())
        .filter(|psk| psk.identity.as_bytes() == identity)
        .collect()
}

/// What a host may call `key`, and derive of it, the likeliest first: a controller knows one of these, and which one, the host finds out by trying.
pub fn offers(key: &Key, host_nqn: &str, subsystem_nqn: &str) -> Result<Vec<Psk>, PskError> {
    let mut offers: Vec<Psk> = Vec::new();
    let mut refused = None;
    for derivation in [Derivation::Specified, Derivation::Compatible] {
        for version in [Version::One, Version::Zero] {
            match Psk::derive(key, host_nqn, subsystem_nqn, version, derivation) {
                Ok(psk) if !offers.contains(&psk) => offers.push(psk),
                Ok(_) => {}
                Err(error) => refused = Some(error),
            }
        }
    }
    // Names that are too long for one are not for another.
    refused.filter(|_| offers.is_empty()).map_or(Ok(offers), Err)
}

impl Peer {
    /// Whom the identity of a retained PSK names; none where it is of another form.
    ///
    /// Identities of generated PSKs (`NVMe1G01`), which come of DH-HMAC-CHAP, are of another form.
    pub fn of(identity: &[u8]) -> Option<Peer> {
        let Identity { host_nqn, subsystem_nqn, .. } = Identity::of(identity)?;
        Some(Peer { host_nqn: host_nqn.to_owned(), subsystem_nqn: subsystem_nqn.to_owned() })
    }
}

/// An identity of the right form; its digest may be that of any key.
struct Identity<'a> {
    version: Version,
    hash: Hash,
    host_nqn: &'a str,
    subsystem_nqn: &'a str,
}

impl Identity<'_> {
    fn of(identity: &[u8]) -> Option<Identity<'_>> {
        let mut fields = std::str::from_utf8(identity).ok()?.split(' ');
        let (version, hash) = match fields.next()? {
            "NVMe0R01" => (Version::Zero, Hash::Sha256),
            "NVMe0R02" => (Version::Zero, Hash::Sha384),
            "NVMe1R01" => (Version::One, Hash::Sha256),
            "NVMe1R02" => (Version::One, Hash::Sha384),
            _ => return None,
        };
        let host_nqn = fields.next().filter(|name| is_nqn(name))?;
        let subsystem_nqn = fields.next().filter(|name| is_nqn(name))?;
        if version == Version::One {
            let digest = STANDARD.decode(fields.next()?).ok()?;
            if digest.len() != hash.bytes() {
                return None;
            }
        }
        let whole = fields.next().is_none();
        whole.then_some(Identity { version, hash, host_nqn, subsystem_nqn })
    }
}

/// Whether `name` can be an NQN. Names that do not start with `nqn.` are in use.
fn is_nqn(name: &str) -> bool {
    (1..=NQN_BYTES_MAX).contains(&name.len())
        && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests;
