//! What the URI of an NVMe character device says.

use crate::parse::bad;
use crate::{Error, OpenOptions, Uri};
use namespace::device::{self, DeviceOptions, SqPoll};
use namespace::human::{format_duration, parse_duration};
use namespace::{Namespace, percent};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Names of its options.
pub(crate) const OPTIONS: [&str; 8] =
    ["ro", "uuid", "passthrough", "poll", "hybrid", "sqpoll", "sqpoll_idle", "timeout"];

/// The longest time that the kernel takes for a command, and for an idle submission thread, a day.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The character device of a namespace, and how to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// `/dev/ngXnY`.
    pub path: PathBuf,
    /// `poll`: completions are looked for on the device's poll queues.
    pub poll: bool,
    /// `hybrid`: the same, after a sleep.
    pub hybrid: bool,
    /// `sqpoll`, `sqpoll=cpu`: a thread of the kernel submits; on that processor.
    pub sqpoll: Option<Option<u32>>,
    /// `sqpoll_idle=`: it sleeps after so long without work.
    pub sqpoll_idle: Option<Duration>,
    /// `timeout=`: for commands that do not say themselves; the kernel's own if none.
    pub timeout: Option<Duration>,
}

impl Device {
    pub(crate) fn new(path: PathBuf) -> Device {
        Device { path, poll: false, hybrid: false, sqpoll: None, sqpoll_idle: None, timeout: None }
    }

    /// Takes an option; `false` if it is none of this volume's.
    pub(crate) fn set(&mut self, option: &str, value: Option<&str>) -> Result<bool, Error> {
        match (option, value) {
            ("poll", None) => self.poll = true,
            ("hybrid", None) => self.hybrid = true,
            ("sqpoll", None) => self.sqpoll = Some(None),
            ("sqpoll", Some(value)) => {
                let cpu = value.parse().ok().filter(|cpu| *cpu < 1 << 16);
                let cpu = cpu.ok_or_else(|| bad(option, value, "a processor's number"))?;
                self.sqpoll = Some(Some(cpu));
            }
            ("sqpoll_idle", Some(value)) => self.sqpoll_idle = Some(time(option, value)?),
            ("timeout", Some(value)) => self.timeout = Some(time(option, value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether the options go together.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.sqpoll_idle.is_some() && self.sqpoll.is_none() {
            let value = self.sqpoll_idle.map(format_duration).unwrap_or_default();
            return Err(bad("sqpoll_idle", &value, "it together with sqpoll"));
        }
        Ok(())
    }

    /// What differs from the defaults, as options of a URI.
    pub(crate) fn differing(&self) -> Vec<String> {
        let mut out = Vec::new();
        out.extend(self.poll.then(|| "poll".to_owned()));
        out.extend(self.hybrid.then(|| "hybrid".to_owned()));
        out.extend(self.sqpoll.map(|cpu| match cpu {
            None => "sqpoll".to_owned(),
            Some(cpu) => format!("sqpoll={cpu}"),
        }));
        out.extend(self.sqpoll_idle.map(|idle| format!("sqpoll_idle={}", format_duration(idle))));
        out.extend(self.timeout.map(|time| format!("timeout={}", format_duration(time))));
        out
    }

    pub(crate) fn open(
        &self,
        uri: &Uri,
        options: &OpenOptions,
        retries: bool,
    ) -> Result<Arc<dyn Namespace>, Error> {
        let milliseconds = |time: Duration| time.as_millis() as u32;
        let idle_ms = self.sqpoll_idle.map_or(0, milliseconds);
        Ok(device::Device::open(DeviceOptions {
            path: self.path.clone(),
            read_only: uri.options.read_only || options.read_only,
            passthrough: uri.options.passthrough.or(options.passthrough),
            iopoll: self.poll,
            hybrid_iopoll: self.hybrid,
            sqpoll: self.sqpoll.map(|cpu| SqPoll { cpu, idle_ms }),
            cores: options.cores,
            timeout_ms: self.timeout.map_or(0, milliseconds),
            retries,
            uuid: uri.options.uuid,
            uri: uri.to_string(),
        })?)
    }
}

/// `nvme:` and the path.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nvme:{}", percent::encode(&self.path))
    }
}

/// Whether a path is one that the kernel gives to NVMe character devices: `/dev/ng0n1`.
pub(crate) fn is_named_like_one(path: &Path) -> bool {
    let name = path.to_str().and_then(|path| path.strip_prefix("/dev/ng"));
    let numbers = name.and_then(|name| name.split_once('n'));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(controller, namespace)| digits(controller) && digits(namespace))
}

fn time(option: &str, text: &str) -> Result<Duration, Error> {
    let time = parse_duration(text).or_else(|| text.parse().ok().map(Duration::from_secs));
    let whole = |time: &Duration| time.subsec_nanos().is_multiple_of(1_000_000);
    let time =
        time.filter(|time| (Duration::from_millis(1)..=LONGEST).contains(time) && whole(time));
    time.ok_or_else(|| bad(option, text, "a time like 30s or 100ms, or seconds"))
}
