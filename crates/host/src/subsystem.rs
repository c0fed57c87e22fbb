//! What the paths to one namespace have in common.

use crate::Options;
use association::{Identity, Namespace, Reason};
use nvme::Limits;
use std::sync::{Mutex, PoisonError};

/// The namespace that all paths lead to, as the first of them found it.
#[derive(Debug, Default)]
pub(crate) struct Subsystem {
    known: Mutex<Option<Known>>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    nsid: u32,
    identity: Identity,
    limits: Limits,
}

impl Subsystem {
    /// A path has found `namespace`: the same as before, or with other limits, or another one.
    pub(crate) fn found(&self, namespace: &Namespace, options: &Options) -> Result<(), Reason> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut limits = namespace.limits;
        limits.read_only |= options.read_only;
        limits.passthrough = options.passthrough;
        if let Some(before) = &*known {
            let same = before.identity == namespace.identity
                && before.limits.block_shift == limits.block_shift
                && (namespace.identity != Identity::default() || before.nsid == namespace.nsid);
            if !same {
                let shown = |identity: &Identity, nsid, shift| {
                    format!("{identity} (ns {nsid}, blocks of {} bytes)", 1u32 << shift)
                };
                return Err(Reason::OtherNamespace {
                    found: shown(&namespace.identity, namespace.nsid, limits.block_shift),
                    expected: shown(&before.identity, before.nsid, before.limits.block_shift),
                });
            }
            // A command is made before its path is chosen: it must suit them all.
            let most = before.limits.transfer_bytes_max;
            limits.transfer_bytes_max = limits.transfer_bytes_max.min(most);
        }
        *known = Some(Known { nsid: namespace.nsid, identity: namespace.identity, limits });
        Ok(())
    }

    /// The limits, once a path was live.
    pub(crate) fn limits(&self) -> Option<Limits> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).map(|known| known.limits)
    }

    /// Namespace id and identity, once a path was live.
    pub(crate) fn identity(&self) -> Option<(u32, Identity)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.map(|known| (known.nsid, known.identity))
    }
}
