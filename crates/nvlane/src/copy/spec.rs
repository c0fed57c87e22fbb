//! What is to be copied, as it was said: on the command line, over the control socket, in a job's record.

use super::throttle::Throttle;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Volumes that one copy may write to.
pub const TARGETS_MAX: usize = 16;
/// Ranges that one copy may read from.
pub const SOURCES_MAX: usize = 1024;
/// Commands in flight.
pub const REQUESTS_MAX: usize = 1024;

/// A volume, or a part of it: `VOLUME`, `VOLUME@OFFSET`, `VOLUME@OFFSET+LENGTH`, `VOLUME@+LENGTH`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The volume: a path or a URI.
    pub volume: String,
    /// First byte.
    #[serde(default)]
    pub offset: u64,
    /// Bytes; to the end when left out. Of targets it is never given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        let whole = || Part { volume: text.to_owned(), offset: 0, length: None };
        let Some((volume, range)) = text.rsplit_once('@') else { return Ok(whole()) };
        let (offset, length) = match range.split_once('+') {
            Some((offset, length)) => (offset, Some(length)),
            None => (range, None),
        };
        let bytes = |text: &str| namespace::human::parse_bytes(text);
        let offset = if offset.is_empty() { length.and(Some(0)) } else { bytes(offset) };
        let length = length.map(bytes);
        match (offset, length) {
            (Some(offset), None) => Ok(Part { volume: volume.to_owned(), offset, length: None }),
            (Some(offset), Some(Some(length))) => {
                Ok(Part { volume: volume.to_owned(), offset, length: Some(length) })
            }
            // A name may have an @ in it.
            _ => Ok(whole()),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.volume)?;
        match (self.offset, self.length) {
            (0, None) => Ok(()),
            (0, Some(length)) => write!(f, "@+{length}"),
            (offset, None) => write!(f, "@{offset}"),
            (offset, Some(length)) => write!(f, "@{offset}+{length}"),
        }
    }
}

/// How it is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Commands in flight, at most.
    pub requests: usize,
    /// Bytes of a command, at most; chosen when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_bytes: Option<u64>,
    /// Ask the source for its holes.
    pub extents: bool,
    /// Write holes as zeroes that take room.
    pub allocated: bool,
    /// The targets read as zeroes where nothing was copied yet.
    pub target_is_zero: bool,
    /// Look for zeroes in what is read, in pieces of so many bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparse_bytes: Option<u32>,
    /// Fill up the block of a target that the source ends within with zeroes.
    pub pad: bool,
    /// Fail where blocks can only be read and written.
    pub fast_only: bool,
    /// Read and write here, without Copy commands.
    pub read_write: bool,
    /// Compare both sides afterwards.
    pub verify: bool,
    /// How much of the time, or of the rate.
    #[serde(skip_serializing_if = "Throttle::is_none")]
    pub throttle: Throttle,
}

impl Options {
    /// Why everything is read and written here, if it is.
    pub fn why_read(&self) -> Option<&'static str> {
        match self {
            Options { read_write: true, .. } => Some("as asked for"),
            Options { sparse_bytes: Some(_), .. } => Some("to look for zeroes"),
            // A Copy keeps holes, and nobody asks where they are.
            Options { allocated: true, extents: false, .. } => Some("to have holes take room"),
            _ => None,
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            requests: 16,
            request_bytes: None,
            extents: true,
            allocated: false,
            target_is_zero: false,
            sparse_bytes: None,
            pad: false,
            fast_only: false,
            read_write: false,
            verify: false,
            throttle: Throttle::None,
        }
    }
}

/// A copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// What is read, one after another.
    pub sources: Vec<Part>,
    /// What all of it is written to.
    pub targets: Vec<Part>,
    /// How.
    #[serde(default)]
    pub options: Options,
}

impl Spec {
    /// Checks what can be checked without the volumes.
    pub fn check(&self) -> Result<(), String> {
        let Options { requests, request_bytes, sparse_bytes, .. } = self.options;
        let within = |count: usize, most: usize, what: &str| match (1..=most).contains(&count) {
            true => Ok(()),
            false => Err(format!("{count} {what}: a copy has 1 to {most}")),
        };
        within(self.sources.len(), SOURCES_MAX, "sources")?;
        within(self.targets.len(), TARGETS_MAX, "targets")?;
        within(requests, REQUESTS_MAX, "requests in flight")?;
        if let Some(target) = self.targets.iter().find(|target| target.length.is_some()) {
            return Err(format!("{target}: a target has no length: give it to the source"));
        }
        if request_bytes.is_some_and(|bytes| bytes < 4096) {
            return Err("the request size is less than 4096 bytes".to_owned());
        }
        if sparse_bytes.is_some_and(|bytes| bytes < 512 || !bytes.is_power_of_two()) {
            return Err("the sparse size is no power of two from 512 to 2G".to_owned());
        }
        if self.options.fast_only && self.options.why_read().is_some() {
            return Err(
                "what is never read here cannot be read here: leave out one of --fast-only, \
                        and --read-write, --sparse, or --allocated with --no-extents"
                    .to_owned(),
            );
        }
        self.options.throttle.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_and_written() {
        for (text, volume, offset, length) in [
            ("disk.img", "disk.img", 0, None),
            ("disk.img@1M", "disk.img", 1 << 20, None),
            ("mem:1G@4K+64K", "mem:1G", 4096, Some(65536)),
            ("mem:1G@+64K", "mem:1G", 0, Some(65536)),
            ("delay:1ms(mem:1G)@0", "delay:1ms(mem:1G)", 0, None),
            ("me@home.img", "me@home.img", 0, None),
            ("me@home@1M", "me@home", 1 << 20, None),
            ("a@", "a@", 0, None),
            ("a@+", "a@+", 0, None),
            ("a@1M+x", "a@1M+x", 0, None),
        ] {
            let part: Part = text.parse().unwrap();
            assert_eq!(part, Part { volume: volume.to_owned(), offset, length }, "{text}");
            assert_eq!(part.to_string().parse(), Ok(part), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let part = |text: &str| text.parse::<Part>().unwrap();
        let spec = |target: &str, options| Spec {
            sources: vec![part("a")],
            targets: vec![part(target)],
            options,
        };
        assert_eq!(spec("b", Options::default()).check(), Ok(()));
        let none = Spec { targets: Vec::new(), ..spec("b", Options::default()) };
        assert!(none.check().unwrap_err().contains("0 targets"));
        assert!(spec("b@0+1M", Options::default()).check().unwrap_err().contains("no length"));
        for options in [
            Options { requests: 0, ..Options::default() },
            Options { request_bytes: Some(1), ..Options::default() },
            Options { sparse_bytes: Some(1000), ..Options::default() },
            Options { fast_only: true, read_write: true, ..Options::default() },
            Options { fast_only: true, allocated: true, extents: false, ..Options::default() },
            Options { throttle: Throttle::Percent(0), ..Options::default() },
        ] {
            assert!(spec("b", options.clone()).check().is_err(), "{options:?}");
        }
    }

    #[test]
    fn a_record_needs_to_name_only_what_is_not_usual() {
        let spec: Spec = serde_json::from_str(
            r#"{"sources": [{"volume": "a"}], "targets": [{"volume": "b", "offset": 512}],
                "options": {"throttle": "30%"}}"#,
        )
        .unwrap();
        assert_eq!(spec.options.throttle, Throttle::Percent(30));
        assert_eq!(spec.options.requests, 16);
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&text).unwrap(), spec);
    }
}
