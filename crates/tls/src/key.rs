//! Keys, as people keep them.

use crate::Random;
use crate::hash::Hash;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use thiserror::Error;
use zeroize::Zeroizing;

/// A configured PSK: `NVMeTLSkey-1:HH:BASE64:`, as `nvme gen-tls-key` writes it (NVMe TCP Transport 1.1, section 3.6.1).
///
/// `HH` says how it is made the retained PSK of one host (00: not at all, 01 and 02: by HKDF with SHA-256 or SHA-384);
/// the base64 holds 32 or 48 bytes and their CRC-32.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// As many bytes as `hash` gives.
    secret: Zeroizing<Vec<u8>>,
    hash: Hash,
    transformed: bool,
}

/// A text that is no key.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    /// The frame is wrong.
    #[error(
        "a TLS key looks like NVMeTLSkey-1:01:BASE64:, with 00, 01 or 02 for how it is transformed"
    )]
    Form,
    /// What stands between the colons is not base64.
    #[error("what follows NVMeTLSkey-1:NN: in the TLS key is not base64")]
    Base64,
    /// It is of another length.
    #[error("a TLS key has 32 or 48 bytes and a checksum of 4, this one has {bytes} in all")]
    Length {
        /// Bytes, with the checksum.
        bytes: usize,
    },
    /// Its length is not that of its hash function.
    #[error("a TLS key that is transformed by {hash} has {wanted} bytes, this one has {bytes}", wanted = hash.bytes())]
    HashLength {
        /// The hash function.
        hash: Hash,
        /// Bytes.
        bytes: usize,
    },
    /// The checksum does not fit.
    #[error("the TLS key's checksum is wrong: was all of it copied?")]
    Checksum,
}

impl Key {
    /// Reads a key; white space around it is let go.
    pub fn parse(text: &str) -> Result<Key, KeyError> {
        let rest = text.trim().strip_prefix("NVMeTLSkey-1:").ok_or(KeyError::Form)?;
        let (transform, rest) = rest.split_once(':').ok_or(KeyError::Form)?;
        let transform = match transform {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            _ => return Err(KeyError::Form),
        };
        let bytes = STANDARD.decode(rest.strip_suffix(':').ok_or(KeyError::Form)?);
        let mut bytes = Zeroizing::new(bytes.map_err(|_| KeyError::Base64)?);
        let hash = bytes.len().checked_sub(CHECKSUM_BYTES).and_then(Hash::of_bytes);
        let hash = hash.ok_or(KeyError::Length { bytes: bytes.len() })?;
        if let Some(wanted) = transform.filter(|&wanted| wanted != hash) {
            return Err(KeyError::HashLength { hash: wanted, bytes: hash.bytes() });
        }
        let (secret, checksum) = bytes.split_at(hash.bytes());
        if crc32fast::hash(secret).to_le_bytes() != checksum {
            return Err(KeyError::Checksum);
        }
        // Wipes what is cut off only with the rest, which is why nothing was copied.
        bytes.truncate(hash.bytes());
        Ok(Key { secret: bytes, hash, transformed: transform.is_some() })
    }

    /// A new key for PSKs with `hash`, by which it is transformed.
    pub fn generate(hash: Hash, random: Random) -> Key {
        let mut secret = Zeroizing::new(vec![0; hash.bytes()]);
        random(&mut secret);
        Key { secret, hash, transformed: true }
    }

    /// The key as people keep it.
    pub fn to_text(&self) -> Zeroizing<String> {
        let checksum = crc32fast::hash(&self.secret).to_le_bytes();
        let bytes = Zeroizing::new([&self.secret[..], &checksum].concat());
        let transform = self.transform().map_or(0, Hash::id);
        let base64 = Zeroizing::new(STANDARD.encode(&*bytes));
        Zeroizing::new(format!("NVMeTLSkey-1:{transform:02}:{}:", *base64))
    }

    /// The hash function of its PSKs: that of its length.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// How it is made the retained PSK of one host.
    pub fn transform(&self) -> Option<Hash> {
        self.transformed.then_some(self.hash)
    }

    pub(crate) fn secret(&self) -> &[u8] {
        &self.secret
    }
}

const CHECKSUM_BYTES: usize = 4;

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("hash", &self.hash)
            .field("transform", &self.transform())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of libnvme's test/psk.c.
    const SHA256: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const PLAIN: &str = "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const SHA384: &str =
        "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
    const SECRET: [u8; 48] = [
        0x55, 0x12, 0xDB, 0xB6, 0x73, 0x7D, 0x01, 0x06, 0xF6, 0x59, 0x75, 0xB7, 0x73, 0xDF, 0xB0,
        0x11, 0xFF, 0xC3, 0x44, 0xBC, 0xF4, 0x42, 0xE2, 0xDD, 0x6D, 0x8B, 0xC4, 0x87, 0x0B, 0x5D,
        0x5B, 0x03, 0xFF, 0xC3, 0x44, 0xBC, 0xF4, 0x42, 0xE2, 0xDD, 0x6D, 0x8B, 0xC4, 0x87, 0x0B,
        0x5D, 0x5B, 0x03,
    ];

    #[test]
    fn keys_of_libnvme() {
        for (text, secret, transform) in [
            (SHA256, &SECRET[..32], Some(Hash::Sha256)),
            (SHA384, &SECRET[..], Some(Hash::Sha384)),
            (PLAIN, &SECRET[..32], None),
        ] {
            let key = Key::parse(text).unwrap();
            assert_eq!(key.secret(), secret);
            assert_eq!(key.transform(), transform);
            assert_eq!(Some(key.hash()), Hash::of_bytes(secret.len()));
            assert_eq!(*key.to_text(), text);
            assert_eq!(Key::parse(&format!(" {text}\n")), Ok(key));
        }
    }

    /// Written by nvme-cli 2.3: `nvme gen-tls-key`, with `--hmac 2` for the second.
    #[test]
    fn keys_of_nvme_cli() {
        for text in [
            "NVMeTLSkey-1:01:Qx2aCWJEU0nrVArtKuKsIvOXQk4evECh0B1Da302EfkmQAEQ:",
            "NVMeTLSkey-1:02:jS/EEfaCgnRS5hEY+EITZuLWSjNF/H9BPsxnZtzU4XO8vAu3qQ3ZTn/l6LVn2ulAFRK17A==:",
        ] {
            assert_eq!(*Key::parse(text).unwrap().to_text(), text);
        }
    }

    #[test]
    fn a_key_without_transform_has_the_hash_of_its_length() {
        let key = Key::parse(&SHA384.replace(":02:", ":00:")).unwrap();
        assert_eq!((key.hash(), key.transform()), (Hash::Sha384, None));
        assert_eq!(*key.to_text(), SHA384.replace(":02:", ":00:"));
    }

    #[test]
    fn no_keys() {
        for text in [
            "",
            "NVMeTLSkey-1:",
            "NVMeTLSkey-1:01",
            "DHHC-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
            &SHA256.replace("key-1:", "key-0:"),
            &SHA256.replace("key-1:", "key-2:"),
            &SHA256.replace("NVMeTLS", "nvmetls"),
            &SHA256.replace(":01:", ":03:"),
            &SHA256.replace(":01:", ":1:"),
            &SHA256.replace(":01:", ":001:"),
            &SHA256.replace(":01:", "::"),
            &SHA256[..SHA256.len() - 1],
        ] {
            assert_eq!(Key::parse(text), Err(KeyError::Form), "{text}");
        }
        for text in [
            &format!("{SHA256}:"),
            &SHA256.replace("VRL", "VR "),
            &SHA256.replace("+wEf/", "-wEf_"),
            &SHA384.replace("==", "="),
            &SHA384.replace("==", ""),
            &SHA256.replace("VRL", "é"),
        ] {
            assert_eq!(Key::parse(text), Err(KeyError::Base64), "{text}");
        }
        let length = |bytes| Err(KeyError::Length { bytes });
        assert_eq!(Key::parse("NVMeTLSkey-1:01::"), length(0));
        assert_eq!(Key::parse("NVMeTLSkey-1:00:AAAA:"), length(3));
        assert_eq!(Key::parse(&SHA256.replace("VRLb", "")), length(33));
        let long = format!("NVMeTLSkey-1:00:{}:", STANDARD.encode([0; 68]));
        assert_eq!(Key::parse(&long), length(68));
        assert_eq!(
            Key::parse(&SHA256.replace(":01:", ":02:")),
            Err(KeyError::HashLength { hash: Hash::Sha384, bytes: 32 })
        );
        assert_eq!(
            Key::parse(&SHA384.replace(":02:", ":01:")),
            Err(KeyError::HashLength { hash: Hash::Sha256, bytes: 48 })
        );
        assert_eq!(Key::parse(&SHA256.replace("VRL", "VRM")), Err(KeyError::Checksum));
        assert_eq!(Key::parse(&SHA256.replace("LrZ:", "LrA:")), Err(KeyError::Checksum));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        assert_eq!(
            KeyError::HashLength { hash: Hash::Sha384, bytes: 32 }.to_string(),
            "a TLS key that is transformed by sha384 has 48 bytes, this one has 32"
        );
        assert_eq!(
            KeyError::Length { bytes: 68 }.to_string(),
            "a TLS key has 32 or 48 bytes and a checksum of 4, this one has 68 in all"
        );
    }

    #[test]
    fn new_keys() {
        let mut random = |buffer: &mut [u8]| getrandom::fill(buffer).unwrap();
        for hash in Hash::ALL {
            let key = Key::generate(hash, &mut random);
            assert_eq!((key.hash(), key.transform()), (hash, Some(hash)));
            assert_eq!(Key::parse(&key.to_text()), Ok(key.clone()));
            assert_ne!(Key::generate(hash, &mut random), key);
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        let shown = format!("{:?}", Key::parse(SHA256).unwrap());
        assert_eq!(shown, "Key { hash: Sha256, transform: Some(Sha256), .. }");
    }

    proptest! {
        #[test]
        fn any_key_is_read_as_it_was_written(
            (hash, secret) in prop_oneof![Just(Hash::Sha256), Just(Hash::Sha384)]
                .prop_flat_map(|hash| (Just(hash), prop::collection::vec(any::<u8>(), hash.bytes()))),
            transformed: bool,
        ) {
            let key = Key { secret: Zeroizing::new(secret), hash, transformed };
            prop_assert_eq!(Key::parse(&key.to_text()), Ok(key));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String, hash in "0[0-3]", base64 in "[A-Za-z0-9+/]{0,80}={0,2}") {
            let _ = Key::parse(&text);
            let _ = Key::parse(&format!("NVMeTLSkey-1:{hash}:{base64}:"));
            let _ = Key::parse(&format!("NVMeTLSkey-1:{hash}:{text}:"));
        }

        /// A single wrong character does not go unnoticed.
        #[test]
        fn a_slip_is_noticed(at in 16..SHA256.len() - 1, by in "[A-Za-z0-9+/]") {
            let mut text = SHA256.to_owned();
            text.replace_range(at..=at, &by);
            prop_assert_eq!(Key::parse(&text).is_ok(), text == SHA256);
        }
    }
}
