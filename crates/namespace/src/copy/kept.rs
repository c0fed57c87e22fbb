//! What keeps blocks, so that two volumes that are kept by the same can be told.

use super::Origin;
use crate::Namespace;
use std::sync::Arc;

/// Places of one range that are asked for; what lies beyond is known by its volume only.
const PLACES_MAX: usize = 64;

/// What keeps blocks. Two that are equal are one, as long as a volume over each is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keeper {
    /// A file or block device, by what the kernel knows it by.
    File(u64, u64),
    /// Memory of this process, by its address.
    Memory(usize),
    /// A namespace, by the address of its subsystem's name, which is one for all that know the subsystem.
    Subsystem(usize, u32),
    /// A volume, by its address.
    Volume(usize),
}

impl Origin {
    /// What tells it from others.
    pub fn keeper(&self) -> Keeper {
        match self {
            Origin::File(file) => {
                let (device, inode) = file.identity();
                Keeper::File(device, inode)
            }
            Origin::Memory(memory) => Keeper::Memory(Arc::as_ptr(memory).addr()),
            Origin::Subsystem { nqn, nsid, .. } => Keeper::Subsystem(nqn.as_ptr().addr(), *nsid),
        }
    }
}

/// Tells of `blocks` blocks from `slba` on what keeps them: who, and from which byte to which. The volume itself is
/// told first, and what it knows to be below then.
pub fn kept(
    volume: &Arc<dyn Namespace>,
    slba: u64,
    blocks: u64,
    mut told: impl FnMut(Keeper, u64, u64),
) {
    let end = slba.saturating_add(blocks);
    let bytes = u64::from(volume.limits().block_bytes());
    let mut tell = |keeper, from: u64, to: u64| {
        if from < to {
            told(keeper, from.saturating_mul(bytes), to.saturating_mul(bytes));
        }
    };
    tell(Keeper::Volume(Arc::as_ptr(volume).addr()), slba, end);
    let mut at = slba;
    for _ in 0..PLACES_MAX {
        if at >= end {
            return;
        }
        let Some(located) = Arc::clone(volume).origin(at, end - at) else { return };
        let to = located.slba.saturating_add(located.blocks);
        tell(located.origin.keeper(), located.slba, to);
        at = at.saturating_add(located.blocks.max(1));
    }
}
