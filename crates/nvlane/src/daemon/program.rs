//! Programs that take the place of others.

use super::Daemon;
use crate::bpf::replace;
use crate::control::method::{ProgramReplaced, VolumeProgram};
use crate::control::protocol::Failure;

impl Daemon {
    /// Replaces a volume's program, and saves which one it has now.
    pub(super) fn volume_program(
        &mut self,
        wanted: VolumeProgram,
    ) -> Result<ProgramReplaced, Failure> {
        let nqn = self.nqn(wanted.nqn)?;
        self.namespace(&nqn, wanted.nsid)?;
        let volume = self.volumes[&(nqn.clone(), wanted.nsid)].clone();
        let done =
            replace::in_volume(&*volume, &wanted.object, wanted.replaces.as_deref(), &|| Ok(()))?;
        let mut config = self.config.clone();
        let subsystem = config.subsystem_mut(&nqn).expect("resolved");
        let entry = subsystem.namespaces.iter_mut().find(|n| n.nsid == Some(wanted.nsid));
        entry.expect("resolved").volume = volume.uri();
        let saved = self.store.save(&config);
        self.config = config;
        saved.map_err(|error| {
            Failure::unsaved(format!("the program is replaced, but it could not be saved: {error}"))
        })?;
        Ok(done)
    }
}
