//! By what hosts prove who they are, brought to the data path.
//!
//! A key that cannot be read keeps its host out: a start fails, and a change is not made. Nothing falls back to a host that proves nothing.

use super::Daemon;
use super::start::StartError;
use crate::config::authentication::Loaded;
use crate::config::{Authentication, Config};
use crate::control::method::{HostClearKey, HostKeySet, HostSetKey};
use crate::control::protocol::Failure;
use std::str::FromStr;
use target::Server;

/// The keys of a configuration, as its files hold them.
pub(super) struct Keys(Vec<Entry>);

struct Entry {
    nqn: String,
    host: String,
    loaded: Loaded,
}

impl Keys {
    /// Reads all of them.
    pub(super) fn load(config: &Config) -> Result<Keys, StartError> {
        let mut keys = Vec::new();
        for subsystem in &config.subsystems {
            for one in &subsystem.authentication {
                let (nqn, host) = (subsystem.nqn.clone(), one.host.clone());
                match one.load() {
                    Ok(loaded) => keys.push(Entry { nqn, host, loaded }),
                    Err(source) => return Err(StartError::Key { host, source }),
                }
            }
        }
        Ok(Keys(keys))
    }

    /// Says those of a subsystem that was added, and to which nobody can connect yet.
    pub(super) fn put(&self, server: &Server, nqn: &str) -> Result<(), target::Error> {
        let mut of_subsystem = self.0.iter().filter(|it| it.nqn == nqn);
        of_subsystem.try_for_each(|it| demand(server, nqn, &it.host, &it.loaded))
    }
}

/// Has a host prove this from its next Connect on, and nothing else. What is new holds before what was is let go: at no moment is it let in
/// without proof.
fn demand(server: &Server, nqn: &str, host: &str, loaded: &Loaded) -> Result<(), target::Error> {
    let Loaded { authentication, tls_keys } = loaded;
    if tls_keys.is_some() {
        server.set_tls_keys(nqn, host, tls_keys.clone())?;
    }
    server.set_authentication(nqn, host, authentication.clone())?;
    if tls_keys.is_none() {
        server.set_tls_keys(nqn, host, None)?;
    }
    Ok(())
}

impl Daemon {
    /// Has a host prove who it is from its next Connect on.
    pub(super) fn host_set_key(&mut self, wanted: HostSetKey) -> Result<HostKeySet, Failure> {
        let nqn = self.nqn(wanted.nqn)?;
        let one = Authentication {
            host: wanted.host,
            dhchap_key: wanted.dhchap_key,
            dhchap_ctrl_key: wanted.dhchap_ctrl_key,
            dhchap_hash: named("dhchap_hash", wanted.dhchap_hash)?,
            dhchap_dhgroup: named("dhchap_dhgroup", wanted.dhchap_dhgroup)?,
            tls_key: wanted.tls_key,
        };
        one.check("params").map_err(|error| Failure::params(error.problem))?;
        let loaded = one.load().map_err(|error| Failure::params(error.to_string()))?;

        let mut config = self.config.clone();
        let subsystem = config.subsystem_mut(&nqn).expect("resolved");
        let mut dropped = Vec::new();
        match subsystem.authentication.iter_mut().find(|known| known.host == one.host) {
            Some(known) => {
                dropped = known.files_without(&one);
                *known = one.clone();
            }
            None => subsystem.authentication.push(one.clone()),
        }
        let set = HostKeySet {
            nqn: nqn.clone(),
            host: one.host.clone(),
            may_connect: subsystem.lets_in(&one.host),
            allow_any_host: subsystem.lets_in(crate::config::ANY_HOST),
            has_listener: one.tls_key.is_none() || self.config.listeners.iter().any(|it| it.tls),
            exposed: one.exposed(),
            twofold: loaded.twofold(&one),
            dropped,
        };
        self.change(config, |server| demand(server, &nqn, &one.host, &loaded))?;
        tracing::info!(host = one.host, subsystem = nqn, "a key was set: {}", one.means());
        Ok(set)
    }

    /// No longer has a host prove who it is.
    pub(super) fn host_clear_key(&mut self, wanted: HostClearKey) -> Result<(), Failure> {
        let (nqn, host) = (self.nqn(wanted.nqn)?, wanted.host);
        let mut config = self.config.clone();
        let subsystem = config.subsystem_mut(&nqn).expect("resolved");
        if subsystem.authentication_of(&host).is_none() {
            return Err(Failure::missing(format!("{host} has no key in {nqn}")));
        }
        subsystem.authentication.retain(|known| known.host != host);
        let nothing = Loaded { authentication: None, tls_keys: None };
        self.change(config, |server| demand(server, &nqn, &host, &nothing))?;
        tracing::info!(host, subsystem = nqn, "a key was taken away");
        Ok(())
    }
}

/// What is called `text`.
fn named<T: FromStr<Err = String>>(
    field: &str,
    text: Option<String>,
) -> Result<Option<T>, Failure> {
    let read = text.map(|text| text.parse()).transpose();
    read.map_err(|problem| Failure::params(format!("{field}: {problem}")))
}
