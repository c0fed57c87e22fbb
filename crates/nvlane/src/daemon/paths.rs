//! The ways to the volumes, and settings that an open volume takes.

use super::Daemon;
use crate::config::{self, Config};
use crate::control::method::{SubsystemTune, Volume, VolumePaths, VolumePathsOf, VolumeTune};
use crate::control::protocol::Failure;
use crate::paths;
use namespace::Namespace;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use volume::Uri;

/// A volume, and of which subsystem it is which namespace.
type Served<'a> = (&'a (String, u32), &'a Arc<dyn Namespace>);

impl Daemon {
    /// The paths of the volumes that are meant: of a named one, or of all that have paths.
    pub(super) fn volume_paths(&self, wanted: &VolumePathsOf) -> Result<Vec<VolumePaths>, Failure> {
        let mut all = Vec::new();
        for ((nqn, nsid), volume) in self.meant(wanted)? {
            let sample = paths::sample(nqn, *nsid, &**volume);
            if !sample.paths.is_empty() || wanted.nsid.is_some() {
                all.push(sample);
            }
        }
        Ok(all)
    }

    /// The volumes that are meant, which exist if they are named.
    pub(super) fn meant<'a>(
        &'a self,
        wanted: &'a VolumePathsOf,
    ) -> Result<impl Iterator<Item = Served<'a>>, Failure> {
        if let Some(nqn) = &wanted.nqn {
            self.nqn(Some(nqn.clone()))?;
        }
        if let Some(nsid) = wanted.nsid {
            let nqn = self.nqn(wanted.nqn.clone())?;
            self.namespace(&nqn, nsid)?;
            self.served(&nqn, nsid)?;
        }
        Ok(self.volumes.iter().filter(|((nqn, nsid), _)| {
            wanted.nqn.as_ref().is_none_or(|wanted| wanted == nqn)
                && wanted.nsid.is_none_or(|wanted| wanted == *nsid)
        }))
    }

    /// Changes a setting. Where it is part of the URI it is saved with it.
    pub(super) fn volume_tune(&mut self, wanted: VolumeTune) -> Result<Volume, Failure> {
        let nqn = self.nqn(wanted.nqn.clone())?;
        self.namespace(&nqn, wanted.nsid)?;
        let volume = self.served(&nqn, wanted.nsid)?;
        paths::tune(&*volume, &wanted)?;
        let mut tuned = self.save_settings(self.config.clone(), &nqn, &[wanted.nsid])?;
        Ok(tuned.pop().expect("it is served"))
    }

    /// Changes a setting of all volumes of a subsystem that have it; those that are missing will be opened with it.
    pub(super) fn subsystem_tune(&mut self, wanted: SubsystemTune) -> Result<Vec<Volume>, Failure> {
        let nqn = self.nqn(Some(wanted.nqn))?;
        let (mut tuned, mut without, mut refused) = (Vec::new(), None, None);
        for ((_, nsid), volume) in self.volumes.iter().filter(|((of, _), _)| *of == nqn) {
            let failure = |error| Failure::volume(format!("{}: {error}", volume.uri()));
            match volume.tune(&wanted.name, &wanted.value) {
                Ok(()) => tuned.push(*nsid),
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    without.get_or_insert(failure(error));
                }
                Err(error) => {
                    refused.get_or_insert(failure(error));
                }
            }
        }
        let mut config = self.config.clone();
        let mut expected = Vec::new();
        let subsystem = config.subsystem_mut(&nqn).expect("resolved");
        for entry in &mut subsystem.namespaces {
            let Some(nsid) = entry.nsid else { continue };
            let key = (nqn.clone(), nsid);
            if !self.missing.has(&key) {
                continue;
            }
            let failure = |error| Failure::volume(format!("{}: {error}", entry.volume));
            match tuned_uri(entry, &wanted.name, &wanted.value) {
                Ok(uri) => {
                    entry.volume.clone_from(&uri);
                    expected.push((key, uri));
                }
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    without.get_or_insert(failure(error));
                }
                Err(error) => {
                    refused.get_or_insert(failure(error));
                }
            }
        }
        let none = tuned.is_empty() && expected.is_empty();
        for (key, uri) in expected {
            self.missing.retune(&key, uri);
        }
        // Those that have taken it are saved, whatever the others say.
        let volumes = self.save_settings(config, &nqn, &tuned)?;
        match refused.or(without.filter(|_| none)) {
            Some(failure) => Err(failure),
            None if none => Err(Failure::refused(format!("{nqn} has no volumes"))),
            None => Ok(volumes),
        }
    }

    /// Saves `config` with what volumes are by now, whose settings were changed. Gives those volumes.
    fn save_settings(
        &mut self,
        mut config: Config,
        nqn: &str,
        nsids: &[u32],
    ) -> Result<Vec<Volume>, Failure> {
        let subsystem = config.subsystem_mut(nqn).expect("resolved");
        let mut entries = Vec::new();
        for entry in &mut subsystem.namespaces {
            let Some(nsid) = entry.nsid.filter(|nsid| nsids.contains(nsid)) else { continue };
            entry.volume = self.volumes[&(nqn.to_owned(), nsid)].uri();
            entries.push(entry.clone());
        }
        let is_same = entries.is_empty() && config == self.config;
        let saved = if is_same { Ok(()) } else { self.store.save(&config) };
        self.config = config;
        saved.map_err(|error| {
            Failure::unsaved(format!("the setting is made, but it could not be saved: {error}"))
        })?;
        let volume = |entry| self.volume(nqn, entry).expect("it is served");
        Ok(entries.iter().map(volume).collect())
    }
}

/// The URI of a volume that is missing with a setting changed.
fn tuned_uri(entry: &config::Namespace, name: &str, value: &str) -> io::Result<String> {
    let invalid = |what: String| io::Error::new(ErrorKind::InvalidInput, what);
    let before: Uri =
        entry.volume.parse().map_err(|error: volume::Error| invalid(error.to_string()))?;
    let mut uri = before.clone();
    uri.tune(name, value)?;
    // Its UUID is made when it is opened, and would be another one.
    if entry.uuid.is_none() && uri.identifying() != before.identifying() {
        let what =
            "it is missing, and has no UUID yet, which goes by this setting: once it is there";
        return Err(invalid(format!("{name}={value}: {what}")));
    }
    Ok(uri.to_string())
}
