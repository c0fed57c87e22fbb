//! Paths that are kept for when no other can be used: a spare link, or one whose far end is about to be worked on.
//!
//! ```text
//!   an active path is usable    the standby ones are given nothing but Flushes of what they have acknowledged,
//!                               and commands that every usable active path has failed
//!   none is                     they are used like others, until one is again
//! ```

use multipath::{PATHS_MAX, PathSet};
use std::fmt;
use std::str::FromStr;

/// Longest name of a path: that of a host, with a port.
const NAME_BYTES_MAX: usize = 300;
/// How it is written that there are none.
const NONE: &str = "none";

/// Which paths are on standby, as they were named: by number from 1 on, or by address with or without its port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standby(Vec<String>);

/// That names no paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPaths;

impl Standby {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of the paths with these names, in order.
    pub(super) fn of(&self, names: &[String]) -> PathSet {
        let is_meant = |&path: &usize| self.0.iter().any(|word| means(word, path, &names[path]));
        (0..names.len()).filter(is_meant).fold(PathSet::EMPTY, PathSet::with)
    }

    /// The first name that is none of these paths'.
    pub(super) fn stranger(&self, names: &[String]) -> Option<&str> {
        let is_known = |word: &String| (0..names.len()).any(|path| means(word, path, &names[path]));
        self.0.iter().find(|word| !is_known(word)).map(String::as_str)
    }
}

/// Whether `word` means path `path`, counted from 0, which is called `name`. Without a name there is none.
fn means(word: &str, path: usize, name: &str) -> bool {
    if is_number(word) {
        return word.parse() == Ok(path + 1) && !name.is_empty();
    }
    let address = name.split_once("://").map_or(name, |(_, address)| address);
    let (Some(same), Some(rest)) = (address.get(..word.len()), address.get(word.len()..)) else {
        return false;
    };
    // What follows is the port, not more of an address.
    let is_port = |rest: &str| rest.strip_prefix(':').is_some_and(is_number);
    same.eq_ignore_ascii_case(word) && (rest.is_empty() || is_port(rest))
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Nothing in it has a meaning in a URI.
fn is_name(word: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&word.len()) && word.bytes().all(known) && word != NONE
}

impl FromStr for Standby {
    type Err = NoPaths;

    fn from_str(text: &str) -> Result<Standby, NoPaths> {
        if text == NONE {
            return Ok(Standby::default());
        }
        let names: Vec<String> = text.split('+').map(str::to_owned).collect();
        let are_names = names.len() <= PATHS_MAX && names.iter().all(|name| is_name(name));
        if are_names { Ok(Standby(names)) } else { Err(NoPaths) }
    }
}

impl fmt::Display for Standby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() { f.write_str(NONE) } else { f.write_str(&self.0.join("+")) }
    }
}

impl fmt::Display for NoPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "addresses of paths, like 192.0.2.2 or 192.0.2.2:4420+[::1]:4420; their numbers, like 2; or none",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standby(text: &str) -> Standby {
        text.parse().unwrap()
    }

    #[test]
    fn paths_are_found_by_number_and_by_address() {
        let names = [
            "tcp://192.0.2.1:4420",
            "tcp://192.0.2.10:4420",
            "tcp://192.0.2.1:4421",
            "tcp://[::1]:4420",
            "tcp://storage.example:4420",
            "/dev/nvme0n1",
        ]
        .map(str::to_owned);
        for (text, paths) in [
            ("1", &[0][..]),
            ("6+2", &[1, 5]),
            ("192.0.2.1", &[0, 2]),
            ("192.0.2.1:4420", &[0]),
            ("192.0.2.1:442", &[]),
            ("192.0.2", &[]),
            ("192.0.2.1:4421+[::1]", &[2, 3]),
            ("[::1", &[]),
            ("[::1]:4420", &[3]),
            ("Storage.Example", &[4]),
            ("storage", &[]),
            ("7", &[]),
            ("none", &[]),
        ] {
            assert_eq!(standby(text).of(&names).collect::<Vec<_>>(), paths, "{text}");
        }
        assert_eq!(standby("1+192.0.2.10").stranger(&names), None);
        assert_eq!(standby("1+192.0.2.11+0").stranger(&names), Some("192.0.2.11"));
        assert_eq!(standby("0").stranger(&names), Some("0"));
        let vacant = ["tcp://192.0.2.1:4420".to_owned(), String::new()];
        assert_eq!(standby("1+2").stranger(&vacant), Some("2"));
    }

    #[test]
    fn what_is_read_is_written_again() {
        for text in ["none", "2", "192.0.2.1:4420+[::1]+b-1.example_x"] {
            assert_eq!(standby(text).to_string(), text);
        }
        assert!(standby("none").is_empty() && !standby("1").is_empty());
        let many = |count: usize| vec!["1"; count].join("+");
        assert!(many(PATHS_MAX).parse::<Standby>().is_ok());
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for wrong in
            ["", "+", "1+", "a+none", "a,b", "a b", "a/b", "a(b", "ä", &many(PATHS_MAX + 1), &long]
        {
            assert_eq!(wrong.parse::<Standby>(), Err(NoPaths), "{wrong}");
        }
    }
}
