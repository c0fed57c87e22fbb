//! What a namespace's blocks look like, and whether they still do.
//!
//! ```text
//!   refresh, and queues by /sys, once a second -> compare with what it was when opened
//!   our own Format NVM: begin -> I/O back -> device -> end |
//!                        |                                v
//!   I/O meanwhile: Format In Progress          another: Namespace Not Ready, until opened again
//! ```
//!
//! A command says how many blocks it moves, and brings memory for blocks as they were when the volume
//! was opened. Of a namespace that has been formatted otherwise the device would move more than there is
//! memory for.

use nvme::Status;
use nvme::identify::{self, LbaFormat};
use std::sync::atomic::{AtomicU32, Ordering};

/// What decides how many bytes a block takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Data bytes as a power of two; 0 where the namespace is not formatted, or gone.
    pub(super) block_shift: u8,
    /// Bytes of metadata.
    pub(super) metadata_bytes: u16,
    /// Metadata follow the data of each block (FLBAS, bit 4).
    pub(super) is_extended: bool,
    /// End-to-end protection settings (DPS).
    protection: u8,
}

impl Shape {
    /// None if the namespace names a format that there is not.
    pub(super) fn of(namespace: &identify::Namespace) -> Option<Shape> {
        let format = namespace.lbaf.get(namespace.format_index())?;
        let LbaFormat { ms, lbads, .. } = format;
        Some(Shape {
            block_shift: *lbads,
            metadata_bytes: ms.get(),
            is_extended: namespace.flbas & 1 << 4 != 0 && ms.get() != 0,
            protection: namespace.dps,
        })
    }
}

/// Like no namespace in use.
pub(super) const UNKNOWN: Shape =
    Shape { block_shift: 0, metadata_bytes: 0, is_extended: false, protection: 0 };

/// Set in [`Watch::state`] once the shape was found to be another.
const CHANGED: u32 = 1 << 31;

/// The shape at open, and what has become of it.
#[derive(Debug)]
pub(super) struct Watch {
    at_open: Shape,
    /// How many commands are under way that may change it; with [`CHANGED`] set, one has.
    state: AtomicU32,
}

impl Watch {
    pub(super) fn new(at_open: Shape) -> Watch {
        Watch { at_open, state: AtomicU32::new(0) }
    }

    /// Whether commands may be sent, or why not.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Status> {
        match self.state.load(Ordering::Relaxed) {
            0 => Ok(()),
            state if state & CHANGED != 0 => Err(Status::NAMESPACE_NOT_READY.dnr()),
            _ => Err(Status::FORMAT_IN_PROGRESS),
        }
    }

    /// Looks at the namespace as it is now; none if it does not say. Whether it is found to be another for
    /// the first time.
    pub(super) fn look(&self, now: Option<Shape>) -> bool {
        now != Some(self.at_open) && self.state.fetch_or(CHANGED, Ordering::Relaxed) & CHANGED == 0
    }

    /// Whether it was found to be another.
    pub(super) fn is_changed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & CHANGED != 0
    }

    /// A command is about to be sent that may change it.
    pub(super) fn begin(&self) {
        self.state.fetch_add(1, Ordering::Relaxed);
    }

    /// That command was not sent.
    pub(super) fn give_up(&self) {
        self.state.fetch_sub(1, Ordering::Relaxed);
    }

    /// That command has ended, and this is what the namespace looks like then. Answers as
    /// [`Watch::look`].
    pub(super) fn end(&self, now: Option<Shape>) -> bool {
        let first = self.look(now);
        self.state.fetch_sub(1, Ordering::Relaxed);
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn namespace() -> identify::Namespace {
        let mut data = identify::Namespace::new_zeroed();
        data.lbaf[0].lbads = 9;
        data.lbaf[1].lbads = 12;
        data.lbaf[17] = LbaFormat { ms: 8.into(), lbads: 9, rp: 0 };
        data
    }

    #[test]
    fn whatever_changes_the_bytes_of_a_block_is_seen() {
        let open = Shape::of(&namespace()).unwrap();
        assert_eq!((open.block_shift, open.metadata_bytes, open.is_extended), (9, 0, false));
        let changes: [fn(&mut identify::Namespace); 5] = [
            |data| data.flbas = 1,
            |data| data.flbas = 1 | 1 << 5,
            |data| data.dps = 1,
            |data| data.lbaf[0].lbads = 12,
            |data| data.lbaf[0].lbads = 0,
        ];
        for change in changes {
            let mut data = namespace();
            change(&mut data);
            let watch = Watch::new(open);
            watch.look(Shape::of(&data));
            assert_eq!(watch.check(), Err(Status::NAMESPACE_NOT_READY.dnr()));
            // Nor does it help that it is formatted back: nobody knows what is in flight.
            watch.look(Some(open));
            assert!(watch.is_changed());
        }
        let mut data = namespace();
        data.nsze = 77.into();
        let watch = Watch::new(open);
        watch.look(Shape::of(&data));
        assert_eq!(watch.check(), Ok(()), "size is no matter of shape");
        data.flbas = 1 << 4;
        assert!(!Shape::of(&data).unwrap().is_extended, "there is no metadata");
        data.flbas = 1 | 1 << 5 | 1 << 4;
        assert!(Shape::of(&data).unwrap().is_extended);
        data.flbas = 0x7f;
        watch.look(Shape::of(&data));
        assert!(watch.is_changed(), "format 63 is of no size");
    }

    #[test]
    fn while_a_format_is_under_way_nothing_is_sent() {
        let open = Shape::of(&namespace()).unwrap();
        let watch = Watch::new(open);
        watch.begin();
        watch.begin();
        assert_eq!(watch.check(), Err(Status::FORMAT_IN_PROGRESS));
        watch.end(Some(open));
        assert_eq!(watch.check(), Err(Status::FORMAT_IN_PROGRESS), "another is");
        watch.end(Some(open));
        assert_eq!(watch.check(), Ok(()));
        watch.begin();
        watch.give_up();
        assert_eq!(watch.check(), Ok(()), "it was not sent");
        watch.begin();
        watch.end(None);
        assert_eq!(watch.check(), Err(Status::NAMESPACE_NOT_READY.dnr()), "it does not say");
    }
}
