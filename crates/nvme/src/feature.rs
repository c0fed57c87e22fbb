//! Features (NVMe Base 2.1, section 5.1.25).

use crate::wire::{open_enum, wire};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

open_enum! {
    /// Feature identifier (NVMe Base 2.1, Figure 385).
    pub enum Fid: u8 {
        /// Arbitration.
        ARBITRATION = 0x01,
        /// Power Management.
        POWER_MANAGEMENT = 0x02,
        /// Temperature Threshold.
        TEMPERATURE_THRESHOLD = 0x04,
        /// Error Recovery.
        ERROR_RECOVERY = 0x05,
        /// Volatile Write Cache.
        VOLATILE_WRITE_CACHE = 0x06,
        /// Number of Queues.
        NUMBER_OF_QUEUES = 0x07,
        /// Write Atomicity Normal.
        WRITE_ATOMICITY = 0x0a,
        /// Asynchronous Event Configuration.
        ASYNC_EVENT_CONFIGURATION = 0x0b,
        /// Keep Alive Timer.
        KEEP_ALIVE_TIMER = 0x0f,
        /// Host Behavior Support.
        HOST_BEHAVIOR = 0x16,
        /// I/O Command Set Profile.
        COMMAND_SET_PROFILE = 0x19,
        /// Host Identifier.
        HOST_IDENTIFIER = 0x81,
    }

    /// Select field of Get Features (NVMe Base 2.1, Figure 192).
    pub enum Select: u8 {
        /// Current value.
        CURRENT = 0,
        /// Default value.
        DEFAULT = 1,
        /// Saved value.
        SAVED = 2,
        /// Supported capabilities.
        CAPABILITIES = 3,
    }
}

/// Capabilities of a feature, as Get Features with [`Select::CAPABILITIES`] returns them.
pub mod capability {
    /// Can be saved.
    pub const SAVEABLE: u32 = 1 << 0;
    /// Is namespace specific.
    pub const NAMESPACE: u32 = 1 << 1;
    /// Can be changed.
    pub const CHANGEABLE: u32 = 1 << 2;
}

wire! {
    /// Host Behavior Support data structure (NVMe Base 2.1, Figure 407).
    pub struct HostBehavior[512] {
        /// Advanced command retry enable.
        pub acre: u8,
        /// Extended telemetry data area 4 supported.
        pub etdas: u8,
        /// LBA format extension enable.
        pub lbafee: u8,
        /// Host dispersed namespace support.
        pub hdisns: u8,
        /// Copy descriptor formats enable: [`crate::copy::FORMATS_TO_ENABLE`], the rest is reserved.
        pub cdfe: U16,
        /// Reserved.
        pub reserved6: [u8; 506],
    }
}
