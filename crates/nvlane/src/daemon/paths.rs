//! The ways to the volumes, and settings that an open volume takes.

use super::Daemon;
use crate::control::method::{Volume, VolumePaths, VolumePathsOf, VolumeTune};
use crate::control::protocol::Failure;
use crate::paths;
use namespace::Namespace;
use std::sync::Arc;

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
            self.namespace(&self.nqn(wanted.nqn.clone())?, nsid)?;
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
        let volume = self.volumes[&(nqn.clone(), wanted.nsid)].clone();
        paths::tune(&*volume, &wanted)?;
        let mut config = self.config.clone();
        let subsystem = config.subsystem_mut(&nqn).expect("resolved");
        let entry = subsystem.namespaces.iter_mut().find(|n| n.nsid == Some(wanted.nsid));
        let entry = entry.expect("resolved");
        entry.volume = volume.uri();
        let entry = entry.clone();
        let saved = self.store.save(&config);
        self.config = config;
        saved.map_err(|error| {
            Failure::unsaved(format!("the setting is made, but it could not be saved: {error}"))
        })?;
        Ok(self.volume(&nqn, &entry).expect("it is served"))
    }
}
