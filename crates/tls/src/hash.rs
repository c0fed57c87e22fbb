//! The hash functions.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Sha256, Sha384};
use std::fmt;

/// A hash function of TLS 1.3, and with it a cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256: TLS_AES_128_GCM_SHA256.
    Sha256,
    /// SHA-384: TLS_AES_256_GCM_SHA384.
    Sha384,
}

impl Hash {
    /// All, the strongest first.
    pub const ALL: [Hash; 2] = [Hash::Sha384, Hash::Sha256];

    /// Its identifier in keys and in identities of PSKs.
    pub fn id(self) -> u8 {
        match self {
            Hash::Sha256 => 1,
            Hash::Sha384 => 2,
        }
    }

    /// Bytes of what it gives.
    pub fn bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
        }
    }

    /// The one that gives so many bytes.
    pub fn of_bytes(bytes: usize) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.bytes() == bytes)
    }

    /// The keyed hash of `parts`, one after the other.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        fn hmac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
            let mut state = <M as KeyInit>::new_from_slice(key).expect("HMAC takes any key");
            parts.iter().for_each(|part| state.update(part));
            state.finalize().into_bytes().to_vec()
        }
        match self {
            Hash::Sha256 => hmac::<Hmac<Sha256>>(key, parts),
            Hash::Sha384 => hmac::<Hmac<Sha384>>(key, parts),
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hash::Sha256 => "sha256",
            Hash::Sha384 => "sha384",
        })
    }
}
