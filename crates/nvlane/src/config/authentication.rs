//! Hosts that have to prove who they are: by DH-HMAC-CHAP (NVMe Base 2.1, section 8.3.4), by a key for TLS, or by both.
//!
//! A configuration names the files that keys are in, and never holds a key: it is shown, sent and kept where secrets have no
//! place. Fields go by the names that Linux's nvmet gives them.

use super::limits::HOSTS_MAX;
use super::{ANY_HOST, Config, Invalid, Subsystem, bounded, check_nqn, invalid};
use dhchap::{Group, Hash};
use host::keys::{self, KeyFileError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// What one host has to prove to a subsystem, whether it is listed there or any host may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authentication {
    /// The host's NQN.
    pub host: String,
    /// The file that the host's key is in, an absolute path; none: it has nothing to prove but by TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_key: Option<String>,
    /// The file of the key by which the subsystem proves who it is, to hosts that want to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_ctrl_key: Option<String>,
    /// The only hash function that will do; any when left out.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "name")]
    pub dhchap_hash: Option<Hash>,
    /// The only group of Diffie and Hellman that will do; any, or none, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "name")]
    pub dhchap_dhgroup: Option<Group>,
    /// The file of the key by which it comes to listeners that take encrypted connections, and then to no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<String>,
}

/// What the files of a host's keys hold.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// By DH-HMAC-CHAP.
    pub authentication: Option<target::Authentication>,
    /// For TLS.
    pub tls_keys: Option<Arc<[Arc<tls::Key>]>>,
}

impl Loaded {
    /// Files of `one` that hold two keys of the host's, as one has while it is replaced.
    pub fn twofold(&self, one: &Authentication) -> Vec<String> {
        let of_host = self.authentication.as_ref().map_or(0, |it| it.host_keys.len());
        let for_tls = self.tls_keys.as_ref().map_or(0, |keys| keys.len());
        let files = [(&one.dhchap_key, of_host), (&one.tls_key, for_tls)];
        let twofold = files.into_iter().filter(|(_, count)| *count > 1);
        twofold.filter_map(|(path, _)| path.clone()).collect()
    }
}

impl Authentication {
    /// An entry of `host` that says nothing yet.
    pub fn new(host: String) -> Authentication {
        Authentication { host, ..Authentication::default() }
    }

    /// Checks what can be checked without reading a key.
    pub fn check(&self, at: &str) -> Result<(), Invalid> {
        if self.host == ANY_HOST {
            return invalid(format!("{at}.host"), "`*` has no key: each host has one of its own");
        }
        check_nqn(&self.host).or_else(|problem| invalid(format!("{at}.host"), problem))?;
        if self.dhchap_key.is_none() {
            if self.tls_key.is_none() {
                return invalid(at, "no key is said: dhchap_key, tls_key, or both");
            }
            let said = [
                ("dhchap_ctrl_key", self.dhchap_ctrl_key.is_some()),
                ("dhchap_hash", self.dhchap_hash.is_some()),
                ("dhchap_dhgroup", self.dhchap_dhgroup.is_some()),
            ];
            if let Some((field, _)) = said.iter().find(|(_, is_said)| *is_said) {
                let problem = format!("{field} means nothing without dhchap_key");
                return invalid(format!("{at}.{field}"), problem);
            }
        }
        for (field, path) in self.files() {
            if is_secret(path) {
                return invalid(format!("{at}.{field}"), SECRET);
            }
            if !Path::new(path).is_absolute() {
                let problem = format!("`{path}` is no absolute path of a file that holds the key");
                return invalid(format!("{at}.{field}"), problem);
            }
        }
        Ok(())
    }

    /// Reads the keys.
    pub fn load(&self) -> Result<Loaded, KeyFileError> {
        let read = |path: &String| keys::read_keys(Path::new(path));
        let first = |path: &String| read(path).map(|keys| Arc::clone(&keys[0]));
        let of_host = |path: &String| {
            Ok(target::Authentication {
                host_keys: read(path)?,
                controller_key: self.dhchap_ctrl_key.as_ref().map(first).transpose()?,
                hashes: self.dhchap_hash.map_or(Hash::ALL.to_vec(), |hash| vec![hash]),
                groups: self.dhchap_dhgroup.map_or(Group::ALL.to_vec(), |group| vec![group]),
            })
        };
        let authentication = self.dhchap_key.as_ref().map(of_host).transpose()?;
        let tls_keys = self.tls_key.as_ref().map(|path| keys::read_tls_keys(Path::new(path)));
        Ok(Loaded { authentication, tls_keys: tls_keys.transpose()? })
    }

    /// Files of keys that every user of this machine may read, or write.
    pub fn exposed(&self) -> Vec<String> {
        let files = self.files().map(|(_, path)| path);
        files.filter(|path| keys::is_exposed(Path::new(path))).map(str::to_owned).collect()
    }

    /// How the host proves who it is, in words.
    pub fn means(&self) -> String {
        let parts = [
            self.dhchap_key.as_ref().map(|path| format!("key {path}")),
            self.dhchap_ctrl_key
                .as_ref()
                .map(|path| format!("and proof of the subsystem by {path}")),
            self.dhchap_hash.map(|hash| format!("{hash} only")),
            self.dhchap_dhgroup.map(|group| format!("{group} only")),
            self.tls_key.as_ref().map(|path| format!("TLS by the key {path}")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Fields with a key of which `other` says nothing.
    pub fn files_without(&self, other: &Authentication) -> Vec<String> {
        let said = |field| other.files().any(|(name, _)| name == field);
        let fields = self.files().map(|(field, _)| field);
        fields.filter(|field| !said(*field)).map(str::to_owned).collect()
    }

    fn files(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [
            ("dhchap_key", &self.dhchap_key),
            ("dhchap_ctrl_key", &self.dhchap_ctrl_key),
            ("tls_key", &self.tls_key),
        ];
        all.into_iter().filter_map(|(field, path)| Some((field, path.as_deref()?)))
    }
}

impl Subsystem {
    /// What `host` has to prove here.
    pub fn authentication_of(&self, host: &str) -> Option<&Authentication> {
        self.authentication.iter().find(|it| it.host == host)
    }

    /// Whether a host that gives this name is let in, if it proves what it has to.
    pub fn lets_in(&self, host: &str) -> bool {
        let lists = |name: &str| self.allowed_hosts.iter().any(|listed| listed == name);
        self.allow_any_host.unwrap_or(self.allowed_hosts.is_empty() || lists(ANY_HOST))
            || lists(host)
    }

    /// Whether a host has to prove who it is.
    pub fn has_key(&self, host: &str) -> bool {
        self.authentication.iter().any(|one| one.host == host)
    }

    pub(super) fn check_authentication(&self, at: &str) -> Result<(), Invalid> {
        bounded(&format!("{at}.authentication"), self.authentication.len(), HOSTS_MAX)?;
        let mut hosts = BTreeSet::new();
        for (index, one) in self.authentication.iter().enumerate() {
            let at = format!("{at}.authentication[{index}]");
            one.check(&at)?;
            if !hosts.insert(&one.host) {
                return invalid(format!("{at}.host"), format!("{} is listed twice", one.host));
            }
        }
        Ok(())
    }
}

impl Config {
    /// Refuses keys of hosts that may not connect. Whoever writes that has mistyped a name: then the host that was meant might be let in without
    /// proof. In a state it is as it should be, of a host that was disallowed, and may be allowed again.
    pub fn check_hosts_with_keys(&self) -> Result<(), Invalid> {
        for (index, subsystem) in self.subsystems.iter().enumerate() {
            let unknown = |it: &&Authentication| !subsystem.lets_in(&it.host);
            if let Some(one) = subsystem.authentication.iter().find(unknown) {
                let at = format!("subsystems[{index}].authentication");
                let host = &one.host;
                let problem = format!(
                    "{host} has a key, and may not connect: add it to allowed_hosts, or take its key away"
                );
                return invalid(at, problem);
            }
        }
        Ok(())
    }

    /// Reads all keys, only to see that it can be done.
    pub fn check_keys(&self) -> Result<(), KeyFileError> {
        self.authentication().try_for_each(|(_, one)| one.load().map(|_| ()))
    }

    /// Files that hold two keys of a host's, either of which will do, until somebody takes the old one out: one line each.
    pub fn keys_being_replaced(&self) -> Vec<String> {
        let all = self.authentication().filter_map(|(_, one)| Some((one, one.load().ok()?)));
        let files = all.flat_map(|(one, loaded)| loaded.twofold(one));
        files.collect::<BTreeSet<_>>().iter().map(|path| twofold(path)).collect()
    }

    /// What is no mistake, but leaves authentication weaker than it looks: one line each.
    pub fn weak_authentication(&self) -> Vec<String> {
        let mut lines = BTreeSet::new();
        for (subsystem, one) in self.authentication() {
            lines.extend(one.exposed().iter().map(|path| exposed(path)));
            if subsystem.lets_in(ANY_HOST) {
                lines.insert(anybody(&subsystem.nqn));
            }
            // One key of the subsystem's may be known to several hosts.
            let own = || [&one.dhchap_key, &one.tls_key].into_iter().flatten();
            let is_same = |(_, other): &(&Subsystem, &Authentication)| {
                other.host != one.host && own().any(|path| other.files().any(|it| it.1 == path))
            };
            if let Some((_, other)) = self.authentication().find(is_same) {
                let [first, second] = if one.host < other.host {
                    [&one.host, &other.host]
                } else {
                    [&other.host, &one.host]
                };
                lines.insert(format!(
                    "{first} and {second} have the same key: each can pass for the other"
                ));
            }
        }
        lines.into_iter().collect()
    }

    /// What keeps hosts and listeners apart: TLS is had by a listener and by a host, or by neither. One line each.
    pub fn unreachable(&self) -> Vec<String> {
        let mut hosts = self.authentication().filter(|(_, one)| one.tls_key.is_some());
        let mut listeners = self.listeners.iter().filter(|listen| listen.tls);
        match (hosts.next(), listeners.next()) {
            (None, Some(listen)) => vec![format!("{listen}: {NO_HOST}")],
            (Some((subsystem, one)), None) => {
                let more = match hosts.count() {
                    0 => String::new(),
                    count => format!(" (and {count} more)"),
                };
                vec![format!("{}: {}{more} {NO_LISTENER}", subsystem.nqn, one.host)]
            }
            _ => Vec::new(),
        }
    }

    fn authentication(&self) -> impl Iterator<Item = (&Subsystem, &Authentication)> {
        let all = self.subsystems.iter();
        all.flat_map(|subsystem| subsystem.authentication.iter().map(move |one| (subsystem, one)))
    }
}

/// What is said of a key where the file's name should be, without saying it again.
pub const SECRET: &str = "this is a key itself, not the file that it is in: write it into a file that only its owner may read, and name that";

const NO_HOST: &str = "nobody can connect there, since no host has a key for TLS (tls_key, --host-tls-key, nvlane ctl host set-key --tls-key)";

/// What is said of a host that has a key for TLS, and nowhere to come to.
pub const NO_LISTENER: &str = "has a key for TLS, and no listener takes encrypted connections, \
    by which alone it may come: listen on tls://ADDRESS:PORT as well (nvlane ctl listener add)";

/// Whether a path is none but a key, as nvmet's configuration and `nvme connect` have it there.
pub fn is_secret(path: &str) -> bool {
    path.contains("DHHC-1:") || path.contains("NVMeTLSkey-1:")
}

/// What is said of a key's file that others may read.
pub fn exposed(path: &str) -> String {
    format!("{path}: every user of this machine may read or change this key: chmod 600")
}

/// What is said of a file that holds two keys of a host's.
pub fn twofold(path: &str) -> String {
    format!(
        "{path} holds two keys, and either will do: when the host has the new one, take the old one out"
    )
}

/// What is said where keys keep nobody out.
pub fn anybody(nqn: &str) -> String {
    format!(
        "{nqn}: some hosts have keys, but any host may connect, under a name that has none: nvlane ctl host disallow '*'"
    )
}

/// What has changed, one line each.
pub fn changes(nqn: &str, before: &[Authentication], after: &[Authentication]) -> Vec<String> {
    let of = |all: &[Authentication], host: &str| all.iter().find(|it| it.host == host).cloned();
    let mut lines = Vec::new();
    for now in after {
        let (host, means) = (&now.host, now.means());
        match of(before, host) {
            None => lines.push(format!("{nqn}: the host {host} has to authenticate: {means}")),
            Some(old) if old != *now => {
                let was = old.means();
                lines.push(format!(
                    "{nqn}: the host {host} has to authenticate otherwise: {means}; it was {was}"
                ));
            }
            Some(_) => {}
        }
    }
    let gone = before.iter().filter(|old| of(after, &old.host).is_none());
    lines.extend(gone.map(|it| format!("{nqn}: the host {} need not authenticate", it.host)));
    lines
}

/// Fields of what has a name: written as `Display` gives it, read by `FromStr`.
mod name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, T: FromStr<Err = String>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;

    const HOST: &str = "nqn.2014-08.org.example:host1";
    const FILE: &str = r#"
[[subsystems]]
nqn = "nqn.2026-11.com.example:a"
allowed_hosts = ["nqn.2014-08.org.example:host1", "nqn.2014-08.org.example:host2"]

[[subsystems.authentication]]
host = "nqn.2014-08.org.example:host1"
dhchap_key = "/etc/nvlane/host1.key"
dhchap_ctrl_key = "/etc/nvlane/a.key"
dhchap_hash = "hmac(sha384)"
dhchap_dhgroup = "ffdhe3072"

[[subsystems.authentication]]
host = "nqn.2014-08.org.example:host2"
dhchap_key = "/etc/nvlane/host2.key"

[[subsystems.namespaces]]
volume = "mem:1G"
"#;

    fn read(text: &str) -> Config {
        toml::from_str(text).unwrap()
    }

    /// What is wrong with the file, with `to` in place of `from`.
    fn wrong(from: &str, to: &str) -> Invalid {
        assert!(FILE.contains(from), "{from}");
        let config = read(&FILE.replace(from, to));
        config.check().and_then(|()| config.check_hosts_with_keys()).unwrap_err()
    }

    #[test]
    fn entries_survive_both_forms() {
        let mut config = read(FILE);
        config.check().unwrap();
        config.check_hosts_with_keys().unwrap();
        config.complete();
        let first = config.subsystems[0].authentication_of(HOST).unwrap();
        assert_eq!(first.dhchap_hash, Some(Hash::Sha384));
        assert_eq!(first.dhchap_dhgroup, Some(Group::Ffdhe3072));
        let text = file::to_toml(&config);
        assert!(text.contains("dhchap_hash = \"sha384\""), "{text}");
        assert_eq!(read(&text), config);
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), config);
    }

    #[test]
    fn wrong_entries_are_named_with_their_place() {
        let at = "subsystems[0].authentication";
        let second = "host = \"nqn.2014-08.org.example:host2\"";
        for (from, to, place) in [
            (second, "host = \"*\"", "[1].host"),
            (second, "host = \"a b\"", "[1].host"),
            (second, "host = \"nqn.2014-08.org.example:host1\"", "[1].host"),
            (second, "host = \"nqn.2014-08.org.example:hots2\"", ""),
            ("\"/etc/nvlane/host2.key\"", "\"host2.key\"", "[1].dhchap_key"),
            ("\"/etc/nvlane/host2.key\"", "\"\"", "[1].dhchap_key"),
            ("\"/etc/nvlane/a.key\"", "\"a.key\"", "[0].dhchap_ctrl_key"),
            ("\"/etc/nvlane/a.key\"", "\"DHHC-1:00:c2VjcmV0:\"", "[0].dhchap_ctrl_key"),
            ("dhchap_key = \"/etc/nvlane/host2.key\"", "", "[1]"),
            ("dhchap_key = \"/etc/nvlane/host2.key\"", "tls_key = \"host2.tls\"", "[1].tls_key"),
            (
                "dhchap_key = \"/etc/nvlane/host2.key\"",
                "tls_key = \"NVMeTLSkey-1:01:c2VjcmV0:\"",
                "[1].tls_key",
            ),
            (
                "dhchap_key = \"/etc/nvlane/host1.key\"",
                "tls_key = \"/etc/nvlane/host1.tls\"",
                "[0].dhchap_ctrl_key",
            ),
            (
                "\"/etc/nvlane/host1.key\"\ndhchap_ctrl_key = \"/etc/nvlane/a.key\"",
                "\"/etc/nvlane/host1.key\"\ntls_key = \"\"",
                "[0].tls_key",
            ),
        ] {
            let wrong = wrong(from, to);
            assert_eq!(wrong.at, format!("{at}{place}"), "{to}");
            assert!(!wrong.problem.contains("c2VjcmV0"), "{wrong}");
        }
        for (from, to) in [
            ("hmac(sha384)", "md5"),
            ("ffdhe3072", "ffdhe1024"),
            ("dhchap_ctrl_key", "dhchap_controller_key"),
        ] {
            assert!(toml::from_str::<Config>(&FILE.replace(from, to)).is_err(), "{to}");
        }
    }

    /// A name that is mistyped would let in without proof whom it is typed right for.
    #[test]
    fn a_key_needs_a_host_that_may_connect() {
        let hosts = "allowed_hosts = [\"nqn.2014-08.org.example:host1\", \"nqn.2014-08.org.example:host2\"]";
        for hosts_now in [
            "",
            "allowed_hosts = [\"*\"]",
            "allow_any_host = true",
            "allowed_hosts = [\"nqn.x\"]\nallow_any_host = true",
        ] {
            let config = read(&FILE.replace(hosts, hosts_now));
            config.check().unwrap();
            config.check_hosts_with_keys().unwrap();
            let weak = config.weak_authentication();
            assert!(weak.iter().any(|line| line.contains("any host may connect")), "{weak:?}");
        }
        for hosts_now in
            ["allow_any_host = false", "allowed_hosts = [\"nqn.2014-08.org.example:host2\"]"]
        {
            let problem = wrong(hosts, hosts_now).problem;
            assert!(problem.contains(HOST) && problem.contains("allowed_hosts"), "{problem}");
            // As a state, after `nvlane ctl host disallow`.
            read(&FILE.replace(hosts, hosts_now)).check().unwrap();
        }
        assert_eq!(read(FILE).weak_authentication(), Vec::<String>::new());
        let weak = read(&FILE.replace("host2.key", "host1.key")).weak_authentication();
        let said = "nqn.2014-08.org.example:host1 and nqn.2014-08.org.example:host2 have the same key: \
                    each can pass for the other";
        assert_eq!(weak, [said]);
        // The subsystem's key is known to both, as it may be.
        let ctrl = "\ndhchap_ctrl_key = \"/etc/nvlane/a.key\"";
        let both = FILE.replace("host2.key\"", &format!("host2.key\"{ctrl}"));
        assert_eq!(read(&both).weak_authentication(), Vec::<String>::new());
    }

    #[test]
    fn the_fingerprint_goes_by_what_is_said_and_not_by_the_order() {
        let first = read(FILE).fingerprint();
        let mut turned = read(FILE);
        turned.subsystems[0].authentication.reverse();
        assert_eq!(turned.fingerprint(), first);
        assert_eq!(read(&FILE.replace("hmac(sha384)", "sha384")).fingerprint(), first);
        for (from, to) in [
            ("host2.key", "other.key"),
            ("sha384", "sha512"),
            ("ffdhe3072", "null"),
            ("dhchap_key = \"/etc/nvlane/host2.key\"", "tls_key = \"/etc/nvlane/host2.key\""),
        ] {
            assert_ne!(read(&FILE.replace(from, to)).fingerprint(), first, "{to}");
        }
    }

    #[test]
    fn a_key_for_tls_is_enough_and_needs_a_listener() {
        let key = "dhchap_key = \"/etc/nvlane/host2.key\"";
        let text = FILE.replace(key, "tls_key = \"/etc/nvlane/host2.tls\"");
        let config = read(&text);
        config.check().unwrap();
        config.check_hosts_with_keys().unwrap();
        let one = &config.subsystems[0].authentication[1];
        assert_eq!(one.means(), "TLS by the key /etc/nvlane/host2.tls");
        assert_eq!(read(&file::to_toml(&config)), config);
        let [said] = &config.unreachable()[..] else { panic!("{:?}", config.unreachable()) };
        assert!(said.contains(":host2 has a key") && said.contains("tls://"), "{said}");

        let listening =
            |text: &str| read(&format!("listeners = [\"tls://192.0.2.1:4421\"]\n{text}"));
        assert_eq!(listening(&text).unreachable(), Vec::<String>::new());
        let [said] = &listening(FILE).unreachable()[..] else { panic!("nobody can connect") };
        assert!(said.starts_with("tls://192.0.2.1:4421: nobody"), "{said}");
        assert_eq!(read(FILE).unreachable(), Vec::<String>::new());
    }

    #[test]
    fn changes_are_told_host_by_host() {
        let before = read(FILE).subsystems.swap_remove(0).authentication;
        let mut after = before.clone();
        assert_eq!(changes("nqn.a", &before, &after), Vec::<String>::new());
        after.reverse();
        assert_eq!(changes("nqn.a", &before, &after), Vec::<String>::new());
        let gone = after.pop().unwrap();
        after[0].dhchap_hash = Some(Hash::Sha512);
        after.push(Authentication {
            host: "nqn.3".to_owned(),
            dhchap_key: Some("/k".to_owned()),
            tls_key: Some("/t".to_owned()),
            ..gone
        });
        let said = [
            "nqn.a: the host nqn.2014-08.org.example:host2 has to authenticate otherwise: \
             key /etc/nvlane/host2.key, sha512 only; it was key /etc/nvlane/host2.key",
            "nqn.a: the host nqn.3 has to authenticate: \
             key /k, and proof of the subsystem by /etc/nvlane/a.key, sha384 only, ffdhe3072 only, \
             TLS by the key /t",
            "nqn.a: the host nqn.2014-08.org.example:host1 need not authenticate",
        ];
        assert_eq!(changes("nqn.a", &before, &after), said);
    }
}
