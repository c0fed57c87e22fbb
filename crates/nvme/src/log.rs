//! Log pages (NVMe Base 2.1, section 5.1.12).

pub mod ana;
pub mod discovery;

use crate::Command;
use crate::wire::{open_enum, wire};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Entries of the Changed Attached Namespace List; with more, the first entry is FFFFFFFFh.
pub const CHANGED_NAMESPACES_MAX: usize = 1024;

open_enum! {
    /// Log page identifier (NVMe Base 2.1, Figure 202).
    pub enum Lid: u8 {
        /// Supported Log Pages.
        SUPPORTED = 0x00,
        /// Error Information.
        ERROR = 0x01,
        /// SMART / Health Information.
        SMART = 0x02,
        /// Firmware Slot Information.
        FIRMWARE = 0x03,
        /// Changed Attached Namespace List.
        CHANGED_NAMESPACES = 0x04,
        /// Commands Supported and Effects.
        EFFECTS = 0x05,
        /// Asymmetric Namespace Access.
        ANA = 0x0c,
        /// Feature Identifiers Supported and Effects.
        FEATURE_EFFECTS = 0x12,
        /// Discovery.
        DISCOVERY = 0x70,
    }
}

wire! {
    /// Error Information log entry (NVMe Base 2.1, Figure 205).
    pub struct ErrorEntry[64] {
        /// Error count: unique, increasing; 0 is an unused entry.
        pub error_count: U64,
        /// Submission queue of the command.
        pub sqid: U16,
        /// Command identifier.
        pub cid: U16,
        /// Status field with the phase tag in bit 0.
        pub status: U16,
        /// Parameter error location: byte in bits 7:0, bit in 10:8; FFFFh: not specific.
        pub location: U16,
        /// First LBA with the error.
        pub lba: U64,
        /// Namespace.
        pub nsid: U32,
        /// Log page with vendor specific information.
        pub vendor_page: u8,
        /// Transport type.
        pub trtype: u8,
        /// Command set indicator.
        pub csi: u8,
        /// Opcode of the command.
        pub opcode: u8,
        /// Command specific information.
        pub command_specific: U64,
        /// Transport type specific information.
        pub transport_specific: U16,
        /// Reserved.
        pub reserved42: [u8; 21],
        /// Log page version; 1 says that `opcode` is filled in.
        pub version: u8,
    }

    /// SMART / Health Information log page (NVMe Base 2.1, Figure 206).
    pub struct Smart[512] {
        /// Critical warnings.
        pub critical_warning: u8,
        /// Composite temperature in kelvin.
        pub temperature: U16,
        /// Available spare in percent.
        pub spare: u8,
        /// Available spare threshold in percent.
        pub spare_threshold: u8,
        /// Percentage used.
        pub used: u8,
        /// Endurance group critical warning summary.
        pub endurance_warning: u8,
        /// Reserved.
        pub reserved7: [u8; 25],
        /// Data units read: thousands of 512 bytes, rounded up; 128 bits.
        pub data_units_read: [U64; 2],
        /// Data units written: thousands of 512 bytes, rounded up; 128 bits.
        pub data_units_written: [U64; 2],
        /// Read and Compare commands; 128 bits.
        pub host_reads: [U64; 2],
        /// Write commands; 128 bits.
        pub host_writes: [U64; 2],
        /// Controller busy time in minutes; 128 bits.
        pub busy_minutes: [U64; 2],
        /// Power cycles; 128 bits.
        pub power_cycles: [U64; 2],
        /// Power on hours; 128 bits.
        pub power_on_hours: [U64; 2],
        /// Unexpected power losses; 128 bits.
        pub power_losses: [U64; 2],
        /// Media and data integrity errors; 128 bits.
        pub media_errors: [U64; 2],
        /// Error Information log entries over the life of the controller; 128 bits.
        pub error_entries: [U64; 2],
        /// Warning composite temperature time in minutes.
        pub warning_minutes: U32,
        /// Critical composite temperature time in minutes.
        pub critical_minutes: U32,
        /// Temperature sensors 1 to 8 in kelvin.
        pub sensors: [U16; 8],
        /// Thermal management figures, and reserved.
        pub reserved216: [u8; 296],
    }

    /// Firmware Slot Information log page (NVMe Base 2.1, Figure 208).
    pub struct FirmwareSlots[512] {
        /// Active firmware slot in bits 2:0, next slot in bits 6:4.
        pub active: u8,
        /// Reserved.
        pub reserved1: [u8; 7],
        /// Revision per slot, ASCII.
        pub revisions: [[u8; 8]; 7],
        /// Reserved.
        pub reserved64: [u8; 448],
    }

    /// Commands Supported and Effects log page (NVMe Base 2.1, Figure 209).
    pub struct Effects[4096] {
        /// Admin commands by opcode; see [`effect`].
        pub admin: [U32; 256],
        /// I/O commands by opcode; see [`effect`].
        pub io: [U32; 256],
        /// Reserved.
        pub reserved2048: [u8; 2048],
    }

    /// Supported Log Pages log page (NVMe Base 2.1, Figure 203): by log page, bit 0 supported.
    pub struct SupportedPages[1024] {
        /// Descriptor by log page identifier.
        pub pages: [U32; 256],
    }

    /// Feature Identifiers Supported and Effects log page (NVMe Base 2.1, Figure 261): by feature,
    /// bit 0 supported, bit 4 changes controller capability.
    pub struct FeatureEffects[1024] {
        /// Descriptor by feature identifier.
        pub features: [U32; 256],
    }
}

/// Bits of a Commands Supported and Effects descriptor (NVMe Base 2.1, Figure 210).
pub mod effect {
    /// Command supported.
    pub const CSUPP: u32 = 1 << 0;
    /// Logical block content change.
    pub const LBCC: u32 = 1 << 1;
}

/// Get Log Page's parameters (NVMe Base 2.1, Figures 197 to 201).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Log page identifier.
    pub lid: Lid,
    /// Log specific parameter, seven bits.
    pub lsp: u8,
    /// Retain Asynchronous Event: do not clear the event of this page.
    pub retain_event: bool,
    /// Length in bytes: four to 16 GiB.
    pub bytes: u64,
    /// Offset into the page in bytes, or an index when `index_offset`.
    pub offset: u64,
    /// The offset is an index.
    pub index_offset: bool,
    /// Command set identifier.
    pub csi: u8,
}

impl GetLogPage {
    /// Reads the parameters of a Get Log Page command.
    pub fn of(command: &Command) -> GetLogPage {
        let (cdw10, cdw11) = (command.cdw10.get(), command.cdw11.get());
        let dwords_z = u64::from(cdw10 >> 16) | u64::from(cdw11 & 0xffff) << 16;
        let cdw14 = command.cdw14.get();
        GetLogPage {
            lid: Lid(cdw10 as u8),
            lsp: (cdw10 >> 8 & 0x7f) as u8,
            retain_event: cdw10 & 1 << 15 != 0,
            bytes: (dwords_z + 1) * 4,
            offset: u64::from(command.cdw12.get()) | u64::from(command.cdw13.get()) << 32,
            index_offset: cdw14 & 1 << 23 != 0,
            csi: (cdw14 >> 24) as u8,
        }
    }

    /// Writes the parameters into a command; `bytes` must be a multiple of four, not zero.
    pub fn command(self) -> Command {
        debug_assert!(self.bytes >= 4 && self.bytes.is_multiple_of(4));
        let dwords_z = (self.bytes / 4 - 1) as u32;
        let cdw10 = u32::from(self.lid.0)
            | u32::from(self.lsp & 0x7f) << 8
            | u32::from(self.retain_event) << 15
            | dwords_z << 16;
        Command {
            opcode: crate::opcode::admin::GET_LOG_PAGE,
            cdw10: cdw10.into(),
            cdw11: (dwords_z >> 16).into(),
            cdw12: (self.offset as u32).into(),
            cdw13: ((self.offset >> 32) as u32).into(),
            cdw14: (u32::from(self.index_offset) << 23 | u32::from(self.csi) << 24).into(),
            ..Command::default()
        }
    }
}
