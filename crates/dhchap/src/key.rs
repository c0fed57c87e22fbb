//! Keys, as people keep them.

use crate::Random;
use crate::hash::{Digest, Hash};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use thiserror::Error;
use zeroize::Zeroizing;

/// A key: `DHHC-1:HH:BASE64:`, as `nvme gen-dhchap-key` and `nvlane key new` write it (NVMe Base 2.1, section 8.3.4.5.7).
///
/// `HH` says how it is made the key of one name (00: not at all, 01 to 03: by HMAC with SHA-256, -384 or -512); the base64 holds
/// 32, 48 or 64 bytes and their CRC-32.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    secret: Zeroizing<Vec<u8>>,
    transform: Option<Hash>,
}

/// A text that is no key.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    /// The frame is wrong.
    #[error("a key looks like DHHC-1:00:BASE64:, with 00, 01, 02 or 03 for how it is transformed")]
    Form,
    /// What stands between the colons is not base64.
    #[error("what follows DHHC-1:NN: in the key is not base64")]
    Base64,
    /// It is of another length.
    #[error("a key has 32, 48 or 64 bytes and a checksum of 4, this one has {bytes} in all")]
    Length {
        /// Bytes, with the checksum.
        bytes: usize,
    },
    /// Its length is not that of its hash function.
    #[error("a key that is transformed by {hash} has {wanted} bytes, this one has {bytes}", wanted = hash.bytes())]
    HashLength {
        /// The hash function.
        hash: Hash,
        /// Bytes.
        bytes: usize,
    },
    /// The checksum does not fit.
    #[error("the key's checksum is wrong: was all of it copied?")]
    Checksum,
}

impl Key {
    /// Reads a key; white space around it is let go.
    pub fn parse(text: &str) -> Result<Key, KeyError> {
        let rest = text.trim().strip_prefix("DHHC-1:").ok_or(KeyError::Form)?;
        let (transform, rest) = rest.split_once(':').ok_or(KeyError::Form)?;
        let transform = match transform {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(KeyError::Form),
        };
        let bytes = STANDARD.decode(rest.strip_suffix(':').ok_or(KeyError::Form)?);
        let mut bytes = Zeroizing::new(bytes.map_err(|_| KeyError::Base64)?);
        let secret_bytes = match bytes.len() {
            36 | 52 | 68 => bytes.len() - 4,
            bytes => return Err(KeyError::Length { bytes }),
        };
        if let Some(hash) = transform.filter(|hash| hash.bytes() != secret_bytes) {
            return Err(KeyError::HashLength { hash, bytes: secret_bytes });
        }
        let (secret, checksum) = bytes.split_at(secret_bytes);
        if crc32fast::hash(secret).to_le_bytes() != checksum {
            return Err(KeyError::Checksum);
        }
        // Wipes what is cut off only with the rest, which is why nothing was copied.
        bytes.truncate(secret_bytes);
        Ok(Key { secret: bytes, transform })
    }

    /// A new key, of as many bytes as `transform` gives (32 without one).
    pub fn generate(transform: Option<Hash>, random: Random) -> Key {
        let mut secret = Zeroizing::new(vec![0; transform.map_or(32, Hash::bytes)]);
        random(&mut secret);
        Key { secret, transform }
    }

    /// The key as people keep it.
    pub fn to_text(&self) -> Zeroizing<String> {
        let checksum = crc32fast::hash(&self.secret).to_le_bytes();
        let bytes = Zeroizing::new([&self.secret[..], &checksum].concat());
        let transform = self.transform.map_or(0, Hash::id);
        let base64 = Zeroizing::new(STANDARD.encode(&*bytes));
        Zeroizing::new(format!("DHHC-1:{transform:02}:{}:", *base64))
    }

    /// How it is made the key of one name.
    pub fn transform(&self) -> Option<Hash> {
        self.transform
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.secret.len()
    }

    /// The key of `nqn`, whose key this is.
    pub(crate) fn of(&self, nqn: &str) -> Secret<'_> {
        match self.transform {
            None => Secret::Plain(&self.secret),
            Some(hash) => {
                Secret::Made(hash.hmac(&self.secret, &[nqn.as_bytes(), b"NVMe-over-Fabrics"]))
            }
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("transform", &self.transform).finish_non_exhaustive()
    }
}

/// A key that was made for one name.
pub(crate) enum Secret<'a> {
    Plain(&'a [u8]),
    Made(Digest),
}

impl AsRef<[u8]> for Secret<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Secret::Plain(bytes) => bytes,
            Secret::Made(digest) => digest.as_ref(),
        }
    }
}
