//! Asymmetric Namespace Access log page (NVMe Base 2.1, section 5.1.12.1.13).

use crate::Status;
use crate::wire::{open_enum, wire};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Log Specific Parameter bit 0: return groups only, without namespaces.
pub const GROUPS_ONLY: u8 = 1;

open_enum! {
    /// Asymmetric Namespace Access state (NVMe Base 2.1, section 8.1.1.4 to 8.1.1.8).
    pub enum AnaState: u8 {
        /// Optimized.
        OPTIMIZED = 0x01,
        /// Non-optimized.
        NON_OPTIMIZED = 0x02,
        /// Inaccessible: commands fail and may be retried elsewhere.
        INACCESSIBLE = 0x03,
        /// Persistent Loss.
        PERSISTENT_LOSS = 0x04,
        /// Change: in transition.
        CHANGE = 0x0f,
    }
}

impl AnaState {
    /// Whether the state is one that the specification names.
    pub fn is_known(self) -> bool {
        matches!(self.0, 0x01..=0x04 | 0x0f)
    }

    /// The status with which I/O commands fail in this state, if they do.
    #[inline]
    pub fn io_status(self) -> Option<Status> {
        match self {
            AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED => None,
            AnaState::PERSISTENT_LOSS => Some(Status::ANA_PERSISTENT_LOSS),
            AnaState::CHANGE => Some(Status::ANA_TRANSITION),
            _ => Some(Status::ANA_INACCESSIBLE),
        }
    }
}

wire! {
    /// Head of the log page (NVMe Base 2.1, Figure 223).
    pub struct Header[16] {
        /// Change count of the page.
        pub change_count: U64,
        /// Number of ANA group descriptors.
        pub groups: U16,
        /// Reserved.
        pub reserved10: [u8; 6],
    }

    /// Head of an ANA group descriptor; the namespace ids follow, ascending
    /// (NVMe Base 2.1, Figure 224).
    pub struct Group[32] {
        /// ANA group identifier.
        pub group: U32,
        /// Number of namespace ids that follow.
        pub namespaces: U32,
        /// Change count of the group.
        pub change_count: U64,
        /// State; see [`AnaState`].
        pub state: u8,
        /// Reserved.
        pub reserved17: [u8; 15],
    }
}
