//! The hash functions.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Sha256, Sha384, Sha512};
use std::fmt;
use std::str::FromStr;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// A hash function of DH-HMAC-CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

/// What a hash function gives.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Digest {
    bytes: [u8; 64],
    len: usize,
}

impl AsRef<[u8]> for Digest {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Digest {
    fn of(bytes: &[u8]) -> Digest {
        let mut digest = Digest { bytes: [0; 64], len: bytes.len() };
        digest.bytes[..bytes.len()].copy_from_slice(bytes);
        digest
    }
}

impl Hash {
    /// All, the strongest first.
    pub const ALL: [Hash; 3] = [Hash::Sha512, Hash::Sha384, Hash::Sha256];

    /// Its identifier on the wire and in keys.
    pub fn id(self) -> u8 {
        match self {
            Hash::Sha256 => 1,
            Hash::Sha384 => 2,
            Hash::Sha512 => 3,
        }
    }

    /// The hash function of that identifier.
    pub fn of_id(id: u8) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Bytes of what it gives.
    pub fn bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// Hashes `parts`, one after the other.
    pub(crate) fn digest(self, parts: &[&[u8]]) -> Digest {
        fn digest<D: sha2::Digest>(parts: &[&[u8]]) -> Digest {
            let mut state = D::new();
            parts.iter().for_each(|part| state.update(part));
            let mut bytes = state.finalize();
            let digest = Digest::of(&bytes);
            bytes.as_mut_slice().zeroize();
            digest
        }
        match self {
            Hash::Sha256 => digest::<Sha256>(parts),
            Hash::Sha384 => digest::<Sha384>(parts),
            Hash::Sha512 => digest::<Sha512>(parts),
        }
    }

    /// The keyed hash of `parts`, one after the other.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Digest {
        fn hmac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Digest {
            let mut state = <M as KeyInit>::new_from_slice(key).expect("HMAC takes any key");
            parts.iter().for_each(|part| state.update(part));
            let mut bytes = state.finalize().into_bytes();
            let digest = Digest::of(&bytes);
            bytes.as_mut_slice().zeroize();
            digest
        }
        match self {
            Hash::Sha256 => hmac::<Hmac<Sha256>>(key, parts),
            Hash::Sha384 => hmac::<Hmac<Sha384>>(key, parts),
            Hash::Sha512 => hmac::<Hmac<Sha512>>(key, parts),
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hash::Sha256 => "sha256",
            Hash::Sha384 => "sha384",
            Hash::Sha512 => "sha512",
        })
    }
}

/// `sha256`, or `hmac(sha256)` as Linux's nvmet has it.
impl FromStr for Hash {
    type Err = String;

    fn from_str(text: &str) -> Result<Hash, String> {
        let name = text.strip_prefix("hmac(").and_then(|it| it.strip_suffix(')')).unwrap_or(text);
        let found = Hash::ALL.into_iter().find(|hash| hash.to_string() == name);
        found.ok_or_else(|| format!("{text:?} is none of sha256, sha384 and sha512"))
    }
}
