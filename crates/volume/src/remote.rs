//! `tcp://host:port[,host:port...]/NQN?ns=N&...`: a namespace of a remote NVMe/TCP subsystem; `discovery://` with the
//! same, where the hosts are discovery controllers that say where the subsystem is.

use crate::parse::bad;
use crate::{Error, Kind, Uri};
use association::Config;
use host::{Address, DISCOVERY_PORT, Failover, Local, PATHS_MAX, PORT};
use namespace::Namespace;
use namespace::human::{format_duration, parse_count, parse_duration};
use namespace::layer::multipath::{self, Multipath, MultipathOptions, Tuning};
use namespace::{percent, uuid};
use nvme::fabrics::DISCOVERY_NQN;
use nvme::limits::Passthrough;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What such a volume's URI begins with.
pub(crate) const PREFIX: &str = "tcp://";

/// The same where addresses are those of discovery controllers.
pub(crate) const DISCOVERY_PREFIX: &str = "discovery://";

/// Whether `uri` is that of a remote volume, from its looks.
pub fn is_remote(uri: &str) -> bool {
    [PREFIX, DISCOVERY_PREFIX].iter().any(|prefix| uri.starts_with(prefix))
}

/// Whether a part of `uri` may be a remote volume, from its looks.
pub fn may_be_remote(uri: &str) -> bool {
    [PREFIX, DISCOVERY_PREFIX].iter().any(|prefix| uri.contains(prefix))
}

/// Names of its options, beside `ro` and `uuid`, which all volumes have.
pub(crate) const OPTIONS: [&str; 28] = [
    "ro",
    "uuid",
    "passthrough",
    "ns",
    "hostnqn",
    "hostid",
    "dhchap_key",
    "dhchap_ctrl_key",
    "tls_key",
    "host_traddr",
    "host_iface",
    "hdr_digest",
    "data_digest",
    "queue_size",
    "disable_sqflow",
    "keep_alive_tmo",
    "reconnect_delay",
    "ctrl_loss_tmo",
    "fast_io_fail_tmo",
    "io_timeout",
    "connect_timeout",
    "quiesce_time",
    "failover",
    "policy",
    "latency_ewma_shift",
    "latency_batch_timeout",
    "numa_bias",
    "standby",
];

/// A remote namespace and how to reach it.
#[derive(Clone, Debug, PartialEq)]
pub struct Remote {
    /// One path each; or of discovery controllers, which name the paths.
    pub addresses: Vec<Address>,
    /// They are discovery controllers.
    pub discovered: bool,
    /// All but the volume's own options. No host NQN, and a host identifier of zero: this host's own.
    pub options: host::Options,
    /// Policy and tunables of multipath.
    pub tuning: Tuning,
}

impl Remote {
    /// From the two parts before the options.
    pub(crate) fn parse(hosts: &str, nqn: &str, discovered: bool) -> Result<Remote, Error> {
        let (prefix, port) =
            if discovered { (DISCOVERY_PREFIX, DISCOVERY_PORT) } else { (PREFIX, PORT) };
        let expected = "host:port[,host:port...], like 192.0.2.1:4420 or [::1]:4420";
        let parsed =
            |host: &str| Address::parse(host, port).map_err(|_| bad(prefix, host, expected));
        let addresses: Vec<Address> = hosts.split(',').map(parsed).collect::<Result<_, _>>()?;
        if addresses.len() > PATHS_MAX {
            return Err(bad(prefix, hosts, "16 addresses at most"));
        }
        let nqn = name("NQN", nqn)?;
        if discovered && nqn == DISCOVERY_NQN {
            return Err(bad(
                "NQN",
                &nqn,
                "the subsystem that has the volume, not the discovery service",
            ));
        }
        Ok(Remote { addresses, discovered, options: defaults(&nqn), tuning: Tuning::default() })
    }

    /// Takes an option; `false` if it is none of this volume's.
    pub(crate) fn set(&mut self, option: &str, value: Option<&str>) -> Result<bool, Error> {
        let options = &mut self.options;
        let config = &mut options.association;
        match (option, value) {
            ("hdr_digest", value) => options.header_digest = flag(option, value)?,
            ("data_digest", value) => options.data_digest = flag(option, value)?,
            ("disable_sqflow", value) => options.flow_control = !flag(option, value)?,
            (_, None) => return Ok(false),
            ("ns", Some(value)) => {
                let nsid = value.parse().ok().filter(|nsid| (1..u32::MAX).contains(nsid));
                config.nsid = Some(nsid.ok_or_else(|| bad(option, value, "a namespace id"))?);
            }
            ("hostnqn", Some(value)) => config.host_nqn = name(option, value)?,
            ("hostid", Some(value)) => {
                let id = uuid::parse(value).filter(|id| *id != [0; 16]);
                config.host_id = id.ok_or_else(|| bad(option, value, "a UUID"))?;
            }
            ("dhchap_key", Some(value)) => options.keys.host = Some(key_file(option, value)?),
            ("dhchap_ctrl_key", Some(value)) => {
                options.keys.controller = Some(key_file(option, value)?);
            }
            ("tls_key", Some(value)) => options.keys.tls = Some(key_file(option, value)?),
            ("host_traddr", Some(value)) => {
                let address = |text: &str| text.parse::<IpAddr>().ok();
                let expected = "addresses of this host, like 192.0.2.10 or 192.0.2.10+192.0.2.11";
                let set = |local: &mut Local, it| local.address = Some(it);
                self.set_locals((option, value), expected, address, set)?;
            }
            ("host_iface", Some(value)) => {
                let name = |text: &str| host::is_interface(text).then(|| text.to_owned());
                let expected = "names of network interfaces, like eth0 or eth0+eth1";
                let set = |local: &mut Local, it| local.interface = Some(it);
                self.set_locals((option, value), expected, name, set)?;
            }
            ("queue_size", Some(value)) => {
                let size = parse_count(value).filter(|size| (2..=1024).contains(size));
                let size = size.ok_or_else(|| bad(option, value, "2 to 1024"))?;
                config.queue_entries = size as u16;
            }
            ("keep_alive_tmo", Some(value)) => config.keep_alive_tmo = time(option, value)?,
            ("reconnect_delay", Some(value)) => config.reconnect_delay = time(option, value)?,
            ("io_timeout", Some(value)) => options.io_timeout = time(option, value)?,
            ("connect_timeout", Some(value)) => config.admin_timeout = time(option, value)?,
            ("quiesce_time", Some(value)) => config.quiesce_time = time(option, value)?,
            ("ctrl_loss_tmo", Some(value)) => config.ctrl_loss_tmo = limit(option, value)?,
            ("fast_io_fail_tmo", Some(value)) => config.fast_io_fail_tmo = limit(option, value)?,
            ("failover", Some(value)) => {
                options.failover = match value {
                    "safe" => Failover::Safe,
                    "fast" => Failover::Fast,
                    _ => return Err(bad(option, value, "safe or fast")),
                }
            }
            (setting, Some(value)) if multipath::SETTINGS.contains(&setting) => {
                multipath::set(&mut self.tuning, setting, value).map_err(Error::Setting)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The same namespace as the same host, with nothing said of how to reach it but where.
    pub(crate) fn identifying(&self) -> Remote {
        let config = &self.options.association;
        let mut options = defaults(&config.nqn);
        options.association.nsid = config.nsid;
        options.association.host_nqn.clone_from(&config.host_nqn);
        options.association.host_id = config.host_id;
        let (addresses, discovered) = (self.addresses.clone(), self.discovered);
        Remote { addresses, discovered, options, tuning: Tuning::default() }
    }

    /// Looks whether the options make sense together.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        // What is the same for each path is said once, as it is written again.
        let locals = &mut self.options.locals;
        if locals.windows(2).all(|pair| pair[0] == pair[1]) {
            locals.truncate(1);
        }
        let keys = &self.options.keys;
        match (&keys.host, &keys.controller) {
            (None, Some(path)) => {
                let expected =
                    "beside dhchap_key: who is to be proved something has to prove who he is";
                Err(bad("dhchap_ctrl_key", &path.to_string_lossy(), expected))
            }
            _ => Ok(()),
        }
    }

    /// Takes something of this end of each path: one for all, or one for each address.
    fn set_locals<T: Clone>(
        &mut self,
        (option, value): (&str, &str),
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
        set: impl Fn(&mut Local, T),
    ) -> Result<(), Error> {
        let given: Option<Vec<T>> = value.split('+').map(parse).collect();
        let given = given.ok_or_else(|| bad(option, value, expected))?;
        let count = if self.discovered { 1 } else { self.addresses.len() };
        if given.len() != 1 && given.len() != count {
            let expected = match self.discovered {
                true => "one for all paths",
                false => "one for all paths, or one for each address",
            };
            return Err(bad(option, value, expected));
        }
        let locals = &mut self.options.locals;
        let before = locals.first().cloned().unwrap_or_default();
        if locals.len() < given.len() {
            locals.resize(given.len(), before);
        }
        for (local, it) in locals.iter_mut().zip(given.iter().cycle()) {
            set(local, it.clone());
        }
        Ok(())
    }

    /// What differs from the defaults, as options of a URI.
    pub(crate) fn differing(&self) -> Vec<String> {
        let (options, usual) = (&self.options, defaults(&self.options.association.nqn));
        let (config, standard) = (&options.association, &usual.association);
        let mut out = Vec::new();
        out.extend(config.nsid.map(|nsid| format!("ns={nsid}")));
        if !config.host_nqn.is_empty() {
            out.push(format!("hostnqn={}", encoded(&config.host_nqn)));
        }
        if config.host_id != [0; 16] {
            out.push(format!("hostid={}", uuid::format(&config.host_id)));
        }
        let keys = [
            ("dhchap_key", &options.keys.host),
            ("dhchap_ctrl_key", &options.keys.controller),
            ("tls_key", &options.keys.tls),
        ];
        for (name, path) in keys {
            out.extend(path.as_ref().map(|path| format!("{name}={}", percent::encode(path))));
        }
        let locals = &options.locals;
        let addresses = locals.iter().map(|it| it.address.map(|address| address.to_string()));
        out.extend(listed("host_traddr", addresses));
        out.extend(listed("host_iface", locals.iter().map(|it| it.interface.clone())));
        out.extend(options.header_digest.then(|| "hdr_digest".to_owned()));
        out.extend(options.data_digest.then(|| "data_digest".to_owned()));
        if config.queue_entries != standard.queue_entries {
            out.push(format!("queue_size={}", config.queue_entries));
        }
        out.extend(options.flow_control.then(|| "disable_sqflow=0".to_owned()));
        for (name, now, usual) in [
            ("keep_alive_tmo", config.keep_alive_tmo, standard.keep_alive_tmo),
            ("reconnect_delay", config.reconnect_delay, standard.reconnect_delay),
            ("io_timeout", options.io_timeout, usual.io_timeout),
            ("connect_timeout", config.admin_timeout, standard.admin_timeout),
            ("quiesce_time", config.quiesce_time, standard.quiesce_time),
        ] {
            if now != usual {
                out.push(format!("{name}={}", format_duration(now)));
            }
        }
        for (name, now, usual) in [
            ("ctrl_loss_tmo", config.ctrl_loss_tmo, standard.ctrl_loss_tmo),
            ("fast_io_fail_tmo", config.fast_io_fail_tmo, standard.fast_io_fail_tmo),
        ] {
            if now != usual {
                let time = now.map_or_else(|| "-1".to_owned(), format_duration);
                out.push(format!("{name}={time}"));
            }
        }
        if options.failover == Failover::Fast {
            out.push("failover=fast".to_owned());
        }
        out.extend(multipath::differing(&self.tuning));
        out
    }

    /// Connects; blocks for a bounded time.
    pub(crate) fn open(
        &self,
        own: &crate::Options,
        wanted: Passthrough,
        is_path: bool,
    ) -> Result<Arc<dyn Namespace>, Error> {
        // Multipath tells the settings, since it knows when they are changed.
        let plain = Remote { tuning: Tuning::default(), ..self.clone() };
        let uri = Uri { kind: Kind::Remote(Box::new(plain)), options: *own }.to_string();
        let query = uri.find('?').map_or("", |at| &uri[at..]);
        let mut options = self.options.clone();
        let config = &mut options.association;
        let given = Some(config.host_nqn.as_str()).filter(|nqn| !nqn.is_empty());
        let id = Some(config.host_id).filter(|id| *id != [0; 16]);
        let identity = host::identity(given, id);
        (config.host_nqn, config.host_id) = (identity.nqn, identity.id);
        options.read_only = own.read_only;
        options.uuid = own.uuid;
        options.passthrough = own.passthrough.or(wanted);
        let open = if self.discovered { host::open_discovered } else { host::open };
        let paths = open(&self.addresses, &options, query)?;
        let paths = paths.into_iter().map(|path| path as Arc<dyn Namespace>).collect();
        // With one path too: it is what waits while that is lost, unless there are others above.
        let options = MultipathOptions { tuning: self.tuning.clone(), uri: Some(uri), is_path };
        Ok(Multipath::new(paths, options)?)
    }
}

/// Scheme, addresses and NQN.
impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.discovered { DISCOVERY_PREFIX } else { PREFIX })?;
        for (index, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{address}", if index > 0 { "," } else { "" })?;
        }
        write!(f, "/{}", encoded(&self.options.association.nqn))
    }
}

/// An option with one value for each address, or one if they are the same; none if there is none.
fn listed(option: &str, values: impl Iterator<Item = Option<String>>) -> Option<String> {
    let mut values: Vec<String> = values.collect::<Option<_>>()?;
    let first = values.first()?.clone();
    if values.iter().all(|value| *value == first) {
        values.truncate(1);
    }
    Some(format!("{option}={}", values.join("+")))
}

fn defaults(nqn: &str) -> host::Options {
    host::Options::new(Config::new(nqn, "", [0; 16]))
}

fn encoded(text: &str) -> String {
    percent::encode(Path::new(text))
}

/// An NQN, with `%XX` for what means something in a URI.
fn name(option: &str, text: &str) -> Result<String, Error> {
    let decoded = percent::decode(text).and_then(|path| path.into_os_string().into_string().ok());
    let fits = |nqn: &String| {
        let len = 1..=nvme::fabrics::NQN_BYTES_MAX;
        len.contains(&nqn.len()) && !nqn.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    let expected = "an NQN of 1 to 223 bytes, like nqn.2024-01.org.example:name";
    decoded.filter(fits).ok_or_else(|| bad(option, text, expected))
}

/// The path of a key's file, with `%XX` for what means something in a URI: one that stays right wherever the URI is used.
fn key_file(option: &str, text: &str) -> Result<PathBuf, Error> {
    let path = percent::decode(text).unwrap_or_default();
    if host::keys::is_secret(&path) || host::keys::is_secret(Path::new(text)) {
        // It is not said again.
        return Err(bad(option, "a key", "the path of a file that holds it"));
    }
    std::path::absolute(path)
        .map_err(|_| bad(option, text, "the path of a file that holds the key"))
}

fn flag(option: &str, value: Option<&str>) -> Result<bool, Error> {
    match value {
        None | Some("1" | "true" | "yes" | "on") => Ok(true),
        Some("0" | "false" | "no" | "off") => Ok(false),
        Some(value) => Err(bad(option, value, "nothing, or 0 or 1")),
    }
}

/// A time with a unit, or seconds as Linux has them.
fn time(option: &str, text: &str) -> Result<Duration, Error> {
    /// Nobody waits longer.
    const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
    let time = parse_duration(text).or_else(|| text.parse().ok().map(Duration::from_secs));
    let time = time.filter(|time| (Duration::from_millis(1)..=LONGEST).contains(time));
    time.ok_or_else(|| bad(option, text, "a time like 10s or 100ms, or seconds"))
}

/// The same, or 0 for at once, or -1 for never.
fn limit(option: &str, text: &str) -> Result<Option<Duration>, Error> {
    match text {
        "-1" | "off" => Ok(None),
        _ if parse_duration(text).is_some_and(|time| time.is_zero()) => Ok(Some(Duration::ZERO)),
        _ => time(option, text).map(Some),
    }
}
