//! The ways to the volumes, and settings that an open volume takes.

use super::Daemon;
use crate::control::method::{PathNow, Volume, VolumePaths, VolumePathsOf, VolumeTune};
use crate::control::protocol::Failure;
use namespace::Namespace;
use std::sync::Arc;

/// The fact that names the policy of a volume with several paths ([`Namespace::describe`]).
const POLICY: &str = "policy";

/// How commands are spread over the paths of a volume, where that can be chosen.
pub fn policy(volume: &dyn Namespace) -> Option<String> {
    let mut facts = Vec::new();
    volume.describe(&mut facts);
    facts.into_iter().find(|(name, _)| name == POLICY).map(|(_, value)| value)
}

/// A volume, and of which subsystem it is which namespace.
type Served<'a> = (&'a (String, u32), &'a Arc<dyn Namespace>);

impl Daemon {
    /// The paths of the volumes that are meant: of a named one, or of all that have paths.
    pub(super) fn volume_paths(&self, wanted: &VolumePathsOf) -> Result<Vec<VolumePaths>, Failure> {
        let mut all = Vec::new();
        for ((nqn, nsid), volume) in self.meant(wanted)? {
            let paths: Vec<PathNow> = volume.paths().into_iter().map(PathNow::from).collect();
            if paths.is_empty() && wanted.nsid.is_none() {
                continue;
            }
            all.push(VolumePaths {
                nqn: nqn.clone(),
                nsid: *nsid,
                volume: volume.uri(),
                policy: policy(&**volume),
                paths,
            });
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
        let nqn = self.nqn(wanted.nqn)?;
        self.namespace(&nqn, wanted.nsid)?;
        let volume = self.volumes[&(nqn.clone(), wanted.nsid)].clone();
        volume
            .tune(&wanted.name, &wanted.value)
            .map_err(|error| Failure::volume(format!("{}: {error}", volume.uri())))?;
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
