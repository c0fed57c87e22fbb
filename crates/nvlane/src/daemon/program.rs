//! Programs that take the place of others.

use super::Daemon;
use crate::bpf::replace;
use crate::control::method::{ProgramReplaced, VolumeProgram};
use crate::control::protocol::Failure;
use std::cell::RefCell;

impl Daemon {
    /// Replaces a volume's program, once it is saved which one it has from now on.
    pub(super) fn volume_program(
        &mut self,
        wanted: VolumeProgram,
    ) -> Result<ProgramReplaced, Failure> {
        let nqn = self.nqn(wanted.nqn)?;
        self.namespace(&nqn, wanted.nsid)?;
        let volume = self.served(&nqn, wanted.nsid)?;
        let config = RefCell::new(self.config.clone());
        let save = || {
            let config = &mut *config.borrow_mut();
            let subsystem = config.subsystem_mut(&nqn).expect("resolved");
            let entry = subsystem.namespaces.iter_mut().find(|n| n.nsid == Some(wanted.nsid));
            entry.expect("resolved").volume = volume.uri();
            self.store.save(config).map_err(|error| error.to_string())
        };
        let replaces = wanted.replaces.as_deref();
        let done = replace::in_volume(&*volume, &wanted.object, replaces, &save);
        let config = config.into_inner();
        match done {
            Ok(_) => self.config = config,
            // It may be there all the same, and not be durable.
            Err(_) if config != self.config => self.save_as_it_is(),
            Err(_) => {}
        }
        done
    }
}
