//! What a volume URI says, as a value; text to value and back.
//!
//! ```text
//!   volume   = backend | layer
//!   backend  = path query? | ("file:" path | "nvme:" path | "mem:" size | "null:" size) query?
//!   layer    = name ":" arguments? "(" volume ("," volume)* ")" query?
//!            | ("tcp://" | "discovery://") host (":" port)? ("," host (":" port)?)* "/" NQN query?
//!   query    = "?" option ("&" option)*
//! ```

use crate::parse;
use crate::{Device, Error, Remote};
use namespace::human::format_bytes;
use namespace::layer::delay::Delays;
use namespace::layer::fault::Rule;
use namespace::layer::multipath::{self, Tuning};
use namespace::layer::rate::Rates;
use namespace::{percent, uuid};
use nvme::limits::Passthrough;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::slice;
use std::str::FromStr;

/// A volume as it was named.
#[derive(Clone, Debug, PartialEq)]
pub struct Uri {
    /// Backend or layer, with what only it knows.
    pub kind: Kind,
    /// What every volume can be told.
    pub options: Options,
}

/// Options of every volume; `block_bytes` only of backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `bs=`: logical block size, 512 or 4096.
    pub block_bytes: Option<u32>,
    /// `ro`: refuse writes.
    pub read_only: bool,
    /// `uuid=`.
    pub uuid: Option<[u8; 16]>,
    /// `passthrough=`: commands that whoever the volume is served to may make although nobody here
    /// knows them. Only of `ngXnY` devices and remote volumes.
    pub passthrough: Passthrough,
}

/// A backend, or a layer with its volumes.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// `mem:1G`: bytes.
    Memory(u64),
    /// `null:1G`: bytes.
    Null(u64),
    /// `file:/path`, or a path: a file or block device.
    File {
        /// Where it is.
        path: PathBuf,
        /// `create&size=`: make it of this size if there is none.
        create_bytes: Option<u64>,
        /// `buffered`: never bypass the page cache.
        buffered: bool,
    },
    /// `/dev/ng0n1`, `nvme:/dev/ng0n1`: the character device of an NVMe namespace.
    Device(Device),
    /// `tcp://host:port/NQN`, `discovery://host:port/NQN`.
    Remote(Box<Remote>),
    /// `linear:(a,b)`.
    Linear(Vec<Uri>),
    /// `multipath:policy=latency(a,b)`.
    Multipath(Tuning, Vec<Uri>),
    /// `bpf:prog.bpf.o(a,b)`: the program's object, and its backends.
    Program(PathBuf, Vec<Uri>),
    /// `delay:30ms(a)`.
    Delay(Delays, Box<Uri>),
    /// `rate:1G(a)`.
    Rate(Rates, Box<Uri>),
    /// `fault:rate=0.01(a)`.
    Fault(Rule, Box<Uri>),
    /// `volatile:(a)`, `volatile:cache=1M(a)`.
    Volatile(Option<u64>, Box<Uri>),
}

impl Uri {
    /// The volumes that this one is made of.
    pub fn children(&self) -> &[Uri] {
        match &self.kind {
            Kind::Linear(children) | Kind::Multipath(_, children) | Kind::Program(_, children) => {
                children
            }
            Kind::Delay(_, child)
            | Kind::Rate(_, child)
            | Kind::Fault(_, child)
            | Kind::Volatile(_, child) => slice::from_ref(child),
            Kind::Memory(_)
            | Kind::Null(_)
            | Kind::File { .. }
            | Kind::Device(_)
            | Kind::Remote(_) => &[],
        }
    }

    /// The same, to be changed.
    pub fn children_mut(&mut self) -> &mut [Uri] {
        match &mut self.kind {
            Kind::Linear(children) | Kind::Multipath(_, children) | Kind::Program(_, children) => {
                children
            }
            Kind::Delay(_, child)
            | Kind::Rate(_, child)
            | Kind::Fault(_, child)
            | Kind::Volatile(_, child) => slice::from_mut(child),
            Kind::Memory(_)
            | Kind::Null(_)
            | Kind::File { .. }
            | Kind::Device(_)
            | Kind::Remote(_) => &mut [],
        }
    }

    /// The volume without what only says how it is opened and used, which may differ from one start to the next: what is left
    /// says which data it is, in which blocks.
    ///
    /// | stays | goes |
    /// |---|---|
    /// | path, program, parts in their order, layers with their arguments | `create`, `size`, `buffered`, `ro`, `passthrough` |
    /// | `bs`: in other blocks a host finds another disk, whose partitions lie elsewhere | what a device is told: `poll`, `hybrid`, `sqpoll`, `sqpoll_idle`, `timeout` |
    /// | addresses, NQN and `ns`; `hostnqn` and `hostid`, as there are arrays where one id leads each host elsewhere | keys, digests, sizes, times, `failover`, own addresses |
    /// | `uuid`, a name itself; the size of memory, as nothing else tells it apart | policy and tunables of multipath |
    pub fn identifying(&self) -> Uri {
        let mut uri = self.clone();
        uri.reduce();
        uri
    }

    fn reduce(&mut self) {
        match &mut self.kind {
            Kind::File { create_bytes, buffered, .. } => (*create_bytes, *buffered) = (None, false),
            Kind::Device(device) => *device = Device::new(std::mem::take(&mut device.path)),
            Kind::Remote(remote) => **remote = remote.identifying(),
            Kind::Multipath(tuning, _) => *tuning = Tuning::default(),
            Kind::Memory(_)
            | Kind::Null(_)
            | Kind::Linear(_)
            | Kind::Program(..)
            | Kind::Delay(..)
            | Kind::Rate(..)
            | Kind::Fault(..)
            | Kind::Volatile(..) => {}
        }
        self.options.read_only = false;
        self.options.passthrough = Passthrough::default();
        self.children_mut().iter_mut().for_each(Uri::reduce);
    }

    /// Changes a setting as the open volume's [`tune`](namespace::Namespace::tune) does, for one that is yet to be opened.
    /// An error of kind `Unsupported` says that it has no such setting; after any other some parts may have it.
    pub fn tune(&mut self, name: &str, value: &str) -> io::Result<()> {
        let unknown = || {
            let what = format!("{name}={value}: nothing here has such a setting");
            io::Error::new(ErrorKind::Unsupported, what)
        };
        let own = match &mut self.kind {
            Kind::Remote(remote) => multipath::set(&mut remote.tuning, name, value),
            Kind::Multipath(tuning, _) => multipath::set(tuning, name, value),
            Kind::Rate(rates, _) => rates.set(name, value),
            _ => Err(unknown()),
        };
        match own {
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            done => return done,
        }
        let mut known = false;
        for child in self.children_mut() {
            match child.tune(name, value) {
                Ok(()) => known = true,
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        if known { Ok(()) } else { Err(unknown()) }
    }

    /// Whether the volume, or a part of it, is of a kind.
    fn has(&self, is: fn(&Kind) -> bool) -> bool {
        is(&self.kind) || self.children().iter().any(|child| child.has(is))
    }

    /// Volumes above one another, this one included; a layer's options count as one more.
    pub fn depth(&self) -> usize {
        let options = usize::from(self.options.read_only || self.options.uuid.is_some());
        // Multipath is on top of the paths.
        let own = 1 + usize::from(matches!(self.kind, Kind::Remote(_)));
        options + own + self.children().iter().map(Uri::depth).max().unwrap_or(0)
    }

    /// Whether the volume, or a part of it, exists within one process only.
    pub fn has_memory(&self) -> bool {
        self.has(|kind| matches!(kind, Kind::Memory(_)))
    }

    /// Whether a part of the volume is a file or block device, whose memory must lie at whole blocks.
    pub fn has_file(&self) -> bool {
        self.has(|kind| matches!(kind, Kind::File { .. }))
    }

    /// Whether a part of the volume is an NVMe namespace of this machine, by either of its devices: to look at it takes
    /// a command that waits.
    pub fn has_device(&self) -> bool {
        self.has(|kind| match kind {
            Kind::Device(_) => true,
            Kind::File { path, .. } => namespace::device::block::is_namespace(path),
            _ => false,
        })
    }

    /// Whether commands of a part of the volume go by a ring beside the core's own (`poll`, `hybrid`, `sqpoll`).
    pub fn has_ring_beside(&self) -> bool {
        self.has(|kind| match kind {
            Kind::Device(device) => device.poll || device.hybrid || device.sqpoll.is_some(),
            _ => false,
        })
    }

    /// Has them go by the core's own.
    pub fn drop_rings_beside(&mut self) {
        if let Kind::Device(device) = &mut self.kind {
            (device.poll, device.hybrid) = (false, false);
            (device.sqpoll, device.sqpoll_idle) = (None, None);
        }
        self.children_mut().iter_mut().for_each(Uri::drop_rings_beside);
    }
}

impl FromStr for Uri {
    type Err = Error;

    fn from_str(text: &str) -> Result<Uri, Error> {
        parse::volume(text)
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = Vec::new();
        match &self.kind {
            Kind::Memory(bytes) => write!(f, "mem:{}", format_bytes(*bytes))?,
            Kind::Null(bytes) => write!(f, "null:{}", format_bytes(*bytes))?,
            Kind::File { path, create_bytes, buffered } => {
                write!(f, "file:{}", percent::encode(path))?;
                if let Some(bytes) = create_bytes {
                    options.push(format!("create&size={}", format_bytes(*bytes)));
                }
                if *buffered {
                    options.push("buffered".to_owned());
                }
            }
            Kind::Device(device) => {
                write!(f, "{device}")?;
                options.extend(device.differing());
            }
            Kind::Remote(remote) => {
                write!(f, "{remote}")?;
                options.extend(remote.differing());
            }
            Kind::Linear(children) => {
                f.write_str("linear:")?;
                list(f, children)?;
            }
            Kind::Multipath(tuning, children) => {
                write!(f, "multipath:{}", multipath::differing(tuning).join(","))?;
                list(f, children)?;
            }
            Kind::Program(path, children) => {
                write!(f, "bpf:{}", percent::encode(path))?;
                list(f, children)?;
            }
            Kind::Delay(delays, child) => write!(f, "delay:{delays}({child})")?,
            Kind::Rate(rates, child) => write!(f, "rate:{rates}({child})")?,
            Kind::Fault(rule, child) => write!(f, "fault:{rule}({child})")?,
            Kind::Volatile(None, child) => write!(f, "volatile:({child})")?,
            Kind::Volatile(Some(bytes), child) => {
                write!(f, "volatile:cache={}({child})", format_bytes(*bytes))?;
            }
        }
        options.extend(self.options.block_bytes.map(|bytes| format!("bs={bytes}")));
        options.extend(self.options.read_only.then(|| "ro".to_owned()));
        options.extend(self.options.passthrough.words().map(|it| format!("passthrough={it}")));
        options.extend(self.options.uuid.map(|uuid| format!("uuid={}", uuid::format(&uuid))));
        if options.is_empty() { Ok(()) } else { write!(f, "?{}", options.join("&")) }
    }
}

/// `(a,b)`
fn list(f: &mut fmt::Formatter<'_>, volumes: &[Uri]) -> fmt::Result {
    for (index, volume) in volumes.iter().enumerate() {
        write!(f, "{}{volume}", if index > 0 { "," } else { "(" })?;
    }
    f.write_str(")")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_changed_where_the_open_volume_has_them() {
        for (uri, name, value, tuned) in [
            ("tcp://h:1/nqn.r?ns=2", "policy", "numa", "tcp://h:1/nqn.r?ns=2&policy=numa"),
            (
                "multipath:(file:/a,file:/b)",
                "numa_bias",
                "30us",
                "multipath:numa_bias=30us(file:/a,file:/b)",
            ),
            (
                "tcp://h:1,[::1]:2/nqn.r?ns=2",
                "standby",
                "[::1]:2",
                "tcp://h:1,[::1]:2/nqn.r?ns=2&standby=[::1]:2",
            ),
            (
                "multipath:standby=1(file:/a,file:/b)",
                "standby",
                "none",
                "multipath:(file:/a,file:/b)",
            ),
            ("rate:1G(file:/a)", "rate.iops", "10K", "rate:bytes=1G,iops=10K(file:/a)"),
            ("rate:bytes=1G,iops=10K(file:/a)", "rate.bytes", "none", "rate:iops=10K(file:/a)"),
            (
                "linear:(file:/a,rate:1M(file:/b))?ro",
                "rate.bytes",
                "2M",
                "linear:(file:/a,rate:2M(file:/b))?ro",
            ),
            (
                "rate:1G(tcp://h:1/nqn.r?ns=2)",
                "policy",
                "numa",
                "rate:1G(tcp://h:1/nqn.r?ns=2&policy=numa)",
            ),
        ] {
            let mut it: Uri = uri.parse().unwrap();
            it.tune(name, value).unwrap();
            assert_eq!(it.to_string(), tuned);
        }
        for (uri, name, value, kind) in [
            ("file:/a", "policy", "numa", ErrorKind::Unsupported),
            ("rate:1G(file:/a)", "policy", "numa", ErrorKind::Unsupported),
            ("rate:1G(file:/a)", "rate.bytes", "none", ErrorKind::InvalidInput),
            ("tcp://h:1/nqn.r?ns=2", "policy", "best", ErrorKind::InvalidInput),
        ] {
            let mut it: Uri = uri.parse().unwrap();
            assert_eq!(it.tune(name, value).unwrap_err().kind(), kind, "{uri} {name}");
        }
    }
}
