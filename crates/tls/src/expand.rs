//! How TLS 1.3 makes secrets of secrets: HKDF (RFC 5869), and its labels (RFC 8446, section 7).

use crate::hash::Hash;
use hkdf::Hkdf;
use sha2::{Sha256, Sha384};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of the initialization vector of a direction: that of AES-GCM.
pub const IV_BYTES: usize = 12;

/// The key with which a direction is encrypted, of its traffic secret.
pub fn traffic_key(hash: Hash, secret: &[u8], key_bytes: usize) -> Zeroizing<Vec<u8>> {
    expand_label(hash, secret, "key", &[], key_bytes)
}

/// The initialization vector of a direction, of its traffic secret.
pub fn traffic_iv(hash: Hash, secret: &[u8]) -> Zeroizing<[u8; IV_BYTES]> {
    let mut iv = Zeroizing::new([0; IV_BYTES]);
    iv.copy_from_slice(&expand_label(hash, secret, "iv", &[], IV_BYTES));
    iv
}

/// HKDF-Extract. No salt is the same as one of zeros.
pub fn extract(hash: Hash, salt: &[u8], input: &[u8]) -> Zeroizing<Vec<u8>> {
    macro_rules! extract {
        ($digest:ty) => {{
            let (mut secret, _) = Hkdf::<$digest>::extract(Some(salt), input);
            let extracted = Zeroizing::new(secret.to_vec());
            secret.as_mut_slice().zeroize();
            extracted
        }};
    }
    match hash {
        Hash::Sha256 => extract!(Sha256),
        Hash::Sha384 => extract!(Sha384),
    }
}

/// HKDF-Expand-Label; `label` is without `tls13 `.
///
/// # Panics
///
/// Where HKDF has no such output: `label` of more than 249 bytes, `context` of more than 255, or as [`expand`].
pub fn expand_label(
    hash: Hash,
    secret: &[u8],
    label: &str,
    context: &[u8],
    bytes: usize,
) -> Zeroizing<Vec<u8>> {
    let length = u16::try_from(bytes).expect("HKDF gives fewer bytes");
    let label_bytes = u8::try_from(PREFIX.len() + label.len()).expect("a label is short");
    let context_bytes = u8::try_from(context.len()).expect("a context is short");
    let info = [
        &length.to_be_bytes(),
        &[label_bytes][..],
        PREFIX.as_bytes(),
        label.as_bytes(),
        &[context_bytes],
        context,
    ];
    expand(hash, secret, &info, bytes)
}

/// What every label starts with.
pub(crate) const PREFIX: &str = "tls13 ";

/// HKDF-Expand, with the parts of `info` one after the other.
///
/// # Panics
///
/// If `secret` has fewer bytes than the hash function gives, or if more than 255 times as many are asked for.
pub fn expand(hash: Hash, secret: &[u8], info: &[&[u8]], bytes: usize) -> Zeroizing<Vec<u8>> {
    macro_rules! expand {
        ($digest:ty, $expanded:expr) => {{
            let hkdf = Hkdf::<$digest>::from_prk(secret).expect("a secret fills the hash function");
            hkdf.expand_multi_info(info, $expanded).expect("few bytes are asked for");
        }};
    }
    let mut expanded = Zeroizing::new(vec![0; bytes]);
    match hash {
        Hash::Sha256 => expand!(Sha256, &mut expanded),
        Hash::Sha384 => expand!(Sha384, &mut expanded),
    }
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<_> = hex.bytes().map(|it| (it as char).to_digit(16).unwrap()).collect();
        digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
    }

    #[track_caller]
    fn traffic(hash: Hash, secret: &str, key: &str, iv: &str) {
        let (secret, key) = (bytes(secret), bytes(key));
        assert_eq!(*traffic_key(hash, &secret, key.len()), key);
        assert_eq!(traffic_iv(hash, &secret)[..], bytes(iv));
    }

    /// RFC 8448, section 3: handshake keys of the server, and application keys of both.
    #[test]
    fn traffic_keys_with_sha256() {
        traffic(
            Hash::Sha256,
            "b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38",
            "3fce516009c21727d0f2e4e86ee403bc",
            "5d313eb2671276ee13000b30",
        );
        traffic(
            Hash::Sha256,
            "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5",
            "17422dda596ed5d9acd890e3c63f5051",
            "5b78923dee08579033e523d9",
        );
        traffic(
            Hash::Sha256,
            "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643",
            "9f02283b6c9c07efc26bb9f2ac92e356",
            "cf782b88dd83549aadf1e984",
        );
    }

    /// "The Illustrated TLS 1.3 Connection" (tls13.xargs.org): handshake keys of the server.
    #[test]
    fn traffic_keys_with_sha384() {
        traffic(
            Hash::Sha384,
            "23323da031634b241dd37d61032b62a4f450584d1f7f47983ba2f7cc0cdcc39a68f481f2b019f9403a3051908a5d1622",
            "9f13575ce3f8cfc1df64a77ceaffe89700b492ad31b4fab01c4792be1b266b7f",
            "9563bc8b590f671f488d2da3",
        );
    }

    /// RFC 8448, section 3: "extract secret early", and "derive secret for handshake tls13 derived".
    #[test]
    fn the_early_secret_without_a_key() {
        let early = extract(Hash::Sha256, &[], &[0; 32]);
        assert_eq!(
            *early,
            bytes("33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a")
        );
        let nothing = bytes("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(
            *expand_label(Hash::Sha256, &early, "derived", &nothing, 32),
            bytes("6f2615a108c702c5678f54fc9dbab69716c076189c48250cebeac3576c3611ba")
        );
    }

    /// RFC 5869, appendices A.1 and A.3; the first in two parts.
    #[test]
    fn hkdf() {
        let salt: Vec<u8> = (0..=0x0c).collect();
        let secret = extract(Hash::Sha256, &salt, &[0x0b; 22]);
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        assert_eq!(
            *expand(Hash::Sha256, &secret, &[&info[..3], &info[3..]], 42),
            bytes(
                "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
            )
        );
        let secret = extract(Hash::Sha256, &[], &[0x0b; 22]);
        assert_eq!(*secret, *extract(Hash::Sha256, &[0; 32], &[0x0b; 22]));
        assert_eq!(
            *expand(Hash::Sha256, &secret, &[], 42),
            bytes(
                "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
            )
        );
    }

    #[test]
    fn longest_label_and_context() {
        let label = "l".repeat(249);
        assert_eq!(expand_label(Hash::Sha384, &[1; 48], &label, &[2; 255], 48).len(), 48);
    }

    #[test]
    #[should_panic(expected = "a label is short")]
    fn a_label_that_is_too_long() {
        expand_label(Hash::Sha256, &[1; 32], &"l".repeat(250), &[], 32);
    }

    #[test]
    #[should_panic(expected = "a context is short")]
    fn a_context_that_is_too_long() {
        expand_label(Hash::Sha256, &[1; 32], "label", &[2; 256], 32);
    }
}
