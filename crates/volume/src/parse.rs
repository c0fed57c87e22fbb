//! The parser of volume URIs.

use crate::uri::{Kind, Options, Uri};
use crate::{DEPTH_MAX, Device, Error, Remote, device, remote};
use namespace::human::{parse_bytes, parse_count, parse_duration};
use namespace::layer::delay::Delays;
use namespace::layer::fault::{OPCODE_NAMES, Rule};
use namespace::layer::multipath::{self, Tuning};
use namespace::layer::rate::Rates;
use namespace::{percent, uuid};
use nvme::Status;
use nvme::limits::Passthrough;
use std::path::PathBuf;

/// Longest text that is looked at.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// Schemes, for telling and for suggesting.
pub const SCHEMES: [&str; 13] = [
    "file",
    "nvme",
    "mem",
    "null",
    "tcp",
    "discovery",
    "linear",
    "multipath",
    "delay",
    "rate",
    "fault",
    "volatile",
    "bpf",
];
/// Those of them that have volumes in parentheses.
const LAYERS: [&str; 7] = ["linear", "multipath", "bpf", "delay", "rate", "fault", "volatile"];
/// Names of statuses in a fault rule, beside numbers.
const STATUSES: [(&str, Status); 8] = [
    ("unrecovered-read", Status::UNRECOVERED_READ),
    ("write-fault", Status::WRITE_FAULT),
    ("internal", Status::INTERNAL),
    ("compare-failure", Status::COMPARE_FAILURE),
    ("capacity-exceeded", Status::CAPACITY_EXCEEDED),
    ("not-ready", Status::NAMESPACE_NOT_READY),
    ("interrupted", Status::COMMAND_INTERRUPTED),
    ("path-error", Status::INTERNAL_PATH_ERROR),
];

/// Parses a whole text.
pub fn volume(text: &str) -> Result<Uri, Error> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Error::syntax("", 0, "the URI is longer than 64 KiB"));
    }
    let mut parser = Parser { text, at: 0 };
    let uri = parser.volume(0)?;
    if parser.at < text.len() {
        return Err(parser
            .error("nothing may follow here; write ( ) , ? & in paths as %28 %29 %2C %3F %26"));
    }
    Ok(uri)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn error(&self, message: &'static str) -> Error {
        Error::syntax(self.text, self.at, message)
    }

    /// Takes everything before the first of `ends`.
    fn until(&mut self, ends: &[char]) -> &'a str {
        let rest = self.rest();
        let len = rest.find(ends).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn take(&mut self, letter: char) -> bool {
        let found = self.rest().starts_with(letter);
        if found {
            self.at += letter.len_utf8();
        }
        found
    }

    fn volume(&mut self, depth: usize) -> Result<Uri, Error> {
        if depth >= DEPTH_MAX {
            return Err(Error::TooDeep);
        }
        for prefix in [remote::PREFIX, remote::DISCOVERY_PREFIX] {
            if self.rest().starts_with(prefix) {
                return self.remote(prefix);
            }
        }
        let start = self.at;
        let mut head = self.until(&['(', ')', ',', '?']);
        if split_scheme(head).is_some_and(|(scheme, _)| LAYERS.contains(&scheme)) {
            // Arguments of a layer may be several; they end where its volumes begin.
            self.at = start;
            head = self.until(&['(', ')', '?']);
        }
        if head.is_empty() {
            return Err(self.error("a volume is missing here"));
        }
        let Some((scheme, body)) = split_scheme(head) else {
            return self.file(head);
        };
        match scheme {
            "file" => self.file(body),
            "nvme" => self.device(body),
            "mem" | "null" => {
                let bytes = volume_size(&format!("{scheme}:"), body)?;
                let kind = if scheme == "mem" { Kind::Memory(bytes) } else { Kind::Null(bytes) };
                let options = self.options(scheme, &["bs", "uuid"], |_, _| Ok(false))?;
                Ok(Uri { kind, options })
            }
            _ if LAYERS.contains(&scheme) => {
                if !self.rest().starts_with('(') {
                    return Err(
                        self.error("a layer has its volumes in parentheses: delay:30ms(mem:1G)")
                    );
                }
                self.layer(scheme, body, depth)
            }
            _ => {
                self.at = start;
                Err(Error::UnknownScheme { scheme: scheme.into(), hint: hint(scheme, head) })
            }
        }
    }

    fn path(&self, path: &str) -> Result<PathBuf, Error> {
        if path.is_empty() {
            return Err(self.error("a path is missing here"));
        }
        let words = "% is followed by two hexadecimal digits; write it as %25";
        percent::decode(path).ok_or_else(|| self.error(words))
    }

    fn device(&mut self, path: &str) -> Result<Uri, Error> {
        let mut device = Device::new(self.path(path)?);
        let set = |name: &str, value: Option<&str>| device.set(name, value);
        let options = self.options("nvme", &device::OPTIONS, set)?;
        device.check()?;
        Ok(Uri { kind: Kind::Device(device), options })
    }

    fn file(&mut self, text: &str) -> Result<Uri, Error> {
        let path = self.path(text)?;
        if device::is_named_like_one(&path) {
            return self.device(text);
        }
        let (mut create, mut bytes, mut buffered) = (false, None, false);
        let known = ["size", "create", "bs", "ro", "uuid", "buffered"];
        let options = self.options("file", &known, |name, value| {
            match (name, value) {
                ("create", None) => create = true,
                ("buffered", None) => buffered = true,
                ("size", Some(value)) => bytes = Some(volume_size("size=", value)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let create_bytes = match (create, bytes) {
            (true, Some(bytes)) => Some(bytes),
            (false, None) => None,
            (true, None) => return Err(self.error("create needs a size: ?create&size=10G")),
            (false, Some(_)) => {
                return Err(self.error("size is for making a file: ?create&size=10G"));
            }
        };
        Ok(Uri { kind: Kind::File { path, create_bytes, buffered }, options })
    }

    fn remote(&mut self, prefix: &str) -> Result<Uri, Error> {
        self.at += prefix.len();
        // Commas are part of it up to the slash.
        let hosts = self.until(&['(', ')', '/', '?']);
        if !self.take('/') {
            return Err(self.error(if prefix == remote::PREFIX {
                "write tcp://host:port/NQN: the subsystem is missing here"
            } else {
                "write discovery://host:port/NQN: the subsystem is missing here"
            }));
        }
        let nqn = self.until(&['(', ')', ',', '?']);
        let mut remote = Remote::parse(hosts, nqn, prefix == remote::DISCOVERY_PREFIX)?;
        let set = |name: &str, value: Option<&str>| remote.set(name, value);
        let scheme = prefix.trim_end_matches("://");
        let options = self.options(scheme, &remote::OPTIONS, set)?;
        remote.check()?;
        Ok(Uri { kind: Kind::Remote(Box::new(remote)), options })
    }

    fn layer(&mut self, scheme: &str, arguments: &str, depth: usize) -> Result<Uri, Error> {
        self.take('(');
        let mut children = vec![self.volume(depth + 1)?];
        while self.take(',') {
            children.push(self.volume(depth + 1)?);
        }
        if !self.take(')') {
            return Err(self.error("a closing parenthesis is missing here"));
        }
        let kind = if scheme == "linear" {
            if !arguments.is_empty() {
                return Err(bad("linear:", arguments, "nothing: linear:(a,b)"));
            }
            Kind::Linear(children)
        } else if scheme == "multipath" {
            Kind::Multipath(tuning(arguments)?, children)
        } else if scheme == "bpf" {
            Kind::Program(self.path(arguments)?, children)
        } else {
            let child = children.pop().expect("one was parsed");
            if !children.is_empty() {
                return Err(
                    self.error("this layer has one volume; put linear:(...) around several")
                );
            }
            let child = Box::new(child);
            match scheme {
                "delay" => Kind::Delay(delays(arguments)?, child),
                "rate" => Kind::Rate(rates(arguments)?, child),
                "fault" => Kind::Fault(rule(arguments)?, child),
                _ => Kind::Volatile(cache(arguments)?, child),
            }
        };
        let options = self.options(scheme, &["ro", "uuid"], |_, _| Ok(false))?;
        Ok(Uri { kind, options })
    }

    /// Parses `?a&b=c`, if there is one. `own` takes the options that only this volume has.
    fn options(
        &mut self,
        scheme: &str,
        known: &[&str],
        mut own: impl FnMut(&str, Option<&str>) -> Result<bool, Error>,
    ) -> Result<Options, Error> {
        let mut options = Options::default();
        if !self.take('?') {
            return Ok(options);
        }
        for option in self.until(&['(', ')', ',', '?']).split('&') {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            let taken =
                known.contains(&name) && (own(name, value)? || options.take(name, value)?);
            if !taken {
                let (scheme, known) = (scheme.to_owned(), known.join(", "));
                return Err(Error::UnknownOption { option: option.into(), scheme, known });
            }
        }
        Ok(options)
    }
}

impl Options {
    /// Takes an option that several kinds of volumes have.
    fn take(&mut self, name: &str, value: Option<&str>) -> Result<bool, Error> {
        match (name, value) {
            ("bs", Some(value)) => {
                let bytes = parse_bytes(value).filter(|bytes| [512, 4096].contains(bytes));
                let bytes = bytes.ok_or_else(|| bad("bs", value, "512 or 4096"))?;
                self.block_bytes = Some(bytes as u32);
            }
            ("ro", None) => self.read_only = true,
            ("passthrough", Some(value)) => {
                let commands = Passthrough::parse(value);
                let commands = commands.ok_or_else(|| bad(name, value, "io, admin or io+admin"))?;
                self.passthrough = commands;
            }
            ("uuid", Some(value)) => {
                let uuid = uuid::parse(value);
                self.uuid = Some(uuid.ok_or_else(|| bad("uuid", value, "32 hexadecimal digits"))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// `mem:1G` is a scheme and its rest; a path has none.
fn split_scheme(head: &str) -> Option<(&str, &str)> {
    let (scheme, body) = head.split_once(':')?;
    let letters = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    letters.then_some((scheme, body))
}

/// What may have been meant by an unknown scheme.
fn hint(scheme: &str, head: &str) -> String {
    let near = SCHEMES.into_iter().find(|known| {
        let shared = known.bytes().zip(scheme.bytes()).take_while(|(a, b)| a == b).count();
        shared >= 2 || (scheme.len() == known.len() && shared >= 1)
    });
    match near {
        Some(near) => format!("did you mean {near}: ? For a file of that name write ./{head}"),
        None => format!("known are {}; for a file of that name write ./{head}", SCHEMES.join(", ")),
    }
}

pub(crate) fn bad(option: &str, value: &str, expected: &'static str) -> Error {
    Error::BadValue { option: option.into(), value: value.into(), expected }
}

fn size(option: &str, text: &str) -> Result<u64, Error> {
    parse_bytes(text).filter(|&bytes| bytes > 0).ok_or_else(|| bad(option, text, "a size like 10G"))
}

/// The size of a volume; `what` is how it is said, up to the size.
fn volume_size(what: &str, text: &str) -> Result<u64, Error> {
    match parse_bytes(text) {
        Some(0) => Err(Error::Empty { what: format!("{what}{text}") }),
        _ => size(what.trim_end_matches([':', '=']), text),
    }
}

/// The `name=value` pairs of a layer's arguments.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(',')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn delays(text: &str) -> Result<Delays, Error> {
    if let Some(time) = parse_duration(text) {
        return Ok(Delays::all(time));
    }
    let mut delays = Delays::default();
    if text.is_empty() {
        return Err(bad("delay:", text, "a time like 30ms, or read=1ms,write=2ms"));
    }
    for (name, value) in pairs(text) {
        let field = match name {
            "read" => &mut delays.read,
            "write" => &mut delays.write,
            "flush" => &mut delays.flush,
            "other" => &mut delays.other,
            _ => return Err(bad("delay:", text, "a time like 30ms, or read=1ms,write=2ms")),
        };
        *field = parse_duration(value).ok_or_else(|| bad(name, value, "a time like 30ms"))?;
    }
    Ok(delays)
}

fn rates(text: &str) -> Result<Rates, Error> {
    let expected = "bytes a second like 1G, or bytes=1G,iops=10K";
    if let Some(bytes) = parse_bytes(text).filter(|&bytes| bytes > 0) {
        return Ok(Rates { bytes: Some(bytes), commands: None });
    }
    let mut rates = Rates::default();
    for (name, value) in pairs(text) {
        match name {
            "bytes" => rates.bytes = Some(size(name, value)?),
            "iops" => {
                let count = parse_count(value).filter(|&count| count > 0);
                rates.commands = Some(count.ok_or_else(|| bad(name, value, "a count like 10K"))?);
            }
            _ => return Err(bad("rate:", text, expected)),
        }
    }
    if rates == Rates::default() {
        return Err(bad("rate:", text, expected));
    }
    Ok(rates)
}

fn tuning(text: &str) -> Result<Tuning, Error> {
    let mut tuning = Tuning::default();
    for (name, value) in pairs(text) {
        multipath::set(&mut tuning, name, value).map_err(Error::Setting)?;
    }
    Ok(tuning)
}

fn cache(text: &str) -> Result<Option<u64>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.split_once('=') {
        Some(("cache", value)) => size("cache", value).map(Some),
        _ => Err(bad("volatile:", text, "cache=64M or nothing")),
    }
}

fn rule(text: &str) -> Result<Rule, Error> {
    let mut rule = Rule::default();
    let count =
        |name: &str, value: &str| parse_count(value).ok_or_else(|| bad(name, value, "a count"));
    for (name, value) in pairs(text) {
        match name {
            "rate" => rule.rate = share(value).ok_or_else(|| bad(name, value, "0 to 1, or 1%"))?,
            "op" => rule.opcodes.push(
                opcode(value).ok_or_else(|| bad(name, value, "read, write, flush, compare, write-zeroes, write-uncorrectable, dsm, verify, copy or 0xNN"))?,
            ),
            "lba" => rule.lba = Some(span(value).ok_or_else(|| bad(name, value, "first-last"))?),
            "skip" => rule.skip = count(name, value)?,
            "count" => rule.count = Some(count(name, value)?),
            "seed" => rule.seed = count(name, value)?,
            "status" => {
                rule.status = Some(status(value).ok_or_else(|| bad(name, value, "a status like 0x281 or unrecovered-read"))?);
            }
            _ => return Err(bad("fault:", name, "rate=, op=, lba=, skip=, count=, status=, seed=")),
        }
    }
    Ok(rule)
}

/// A probability.
fn share(text: &str) -> Option<f64> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().ok()? / 100.0,
        None => text.parse::<f64>().ok()?,
    };
    (0.0..=1.0).contains(&share).then_some(share.abs())
}

/// A number, hexadecimal with `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn opcode(text: &str) -> Option<u8> {
    let named = OPCODE_NAMES.iter().find(|(name, _)| *name == text).map(|(_, code)| *code);
    named.or_else(|| u8::try_from(number(text)?).ok())
}

/// Status type and code, 1 to 0x7ff, optionally with Do Not Retry (0x4000).
fn status(text: &str) -> Option<Status> {
    if let Some((_, status)) = STATUSES.iter().find(|(name, _)| *name == text) {
        return Some(*status);
    }
    let status = Status(u16::try_from(number(text)?).ok().filter(|bits| bits >> 15 == 0)?);
    (!status.is_success()).then_some(status)
}

fn span(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some((first, last))
}
