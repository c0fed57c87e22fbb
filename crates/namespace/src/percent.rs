//! Percent-encoding of paths inside volume URIs.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Bytes that stand for themselves. All others, among them those with a meaning in a volume URI
/// (`%`, `?`, `&`, `(`, `)`, `,`), are written as `%XX`.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-+=@~:".contains(&byte)
}

/// `path` so that it can stand in a volume URI.
pub fn encode(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if is_plain(byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// The path that `text` encodes; none if a `%` is not followed by two hexadecimal digits.
pub fn decode(text: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = tail else { return None };
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        bytes.push((digit(high)? << 4 | digit(low)?) as u8);
        rest = tail;
    }
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives() {
        let bytes: Vec<u8> = (1..=255).collect();
        let path = PathBuf::from(OsString::from_vec(bytes));
        let text = encode(&path);
        assert!(text.is_ascii() && !text.contains(['(', ')', ',', '?', '&', ' ']));
        assert_eq!(decode(&text), Some(path));
        assert_eq!(decode("a%2"), None);
        assert_eq!(decode("a%zz"), None);
        assert_eq!(decode("a%41b"), Some(PathBuf::from("aAb")));
    }
}
