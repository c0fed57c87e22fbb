//! Discovery log page (NVMe Base 2.1, section 5.1.12.3.1).

use crate::wire::{open_enum, wire};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

open_enum! {
    /// Transport type (NVMe Base 2.1, Figure 294, byte 0).
    pub enum TransportType: u8 {
        /// RDMA.
        RDMA = 1,
        /// Fibre Channel.
        FIBRE_CHANNEL = 2,
        /// TCP.
        TCP = 3,
        /// Within the host.
        INTRA_HOST = 254,
    }

    /// Address family (NVMe Base 2.1, Figure 294, byte 1).
    pub enum AddressFamily: u8 {
        /// IPv4, a dotted quad.
        IPV4 = 1,
        /// IPv6.
        IPV6 = 2,
    }

    /// Subsystem type (NVMe Base 2.1, Figure 294, byte 2).
    pub enum SubsystemType: u8 {
        /// Referral to another discovery subsystem.
        REFERRAL = 1,
        /// NVM subsystem.
        NVM = 2,
        /// The discovery subsystem that answers.
        CURRENT_DISCOVERY = 3,
    }
}

/// Entry flag: returns the same log on every port of this subsystem.
pub const EFLAG_DUPLICATE: u16 = 1 << 0;
/// Entry flag: explicit persistent connections are supported.
pub const EFLAG_PERSISTENT: u16 = 1 << 1;

wire! {
    /// Head of the log page (NVMe Base 2.1, Figure 296).
    pub struct Header[1024] {
        /// Generation counter.
        pub genctr: U64,
        /// Number of entries.
        pub numrec: U64,
        /// Record format: 0.
        pub recfmt: U16,
        /// Reserved.
        pub reserved18: [u8; 1006],
    }

    /// Entry (NVMe Base 2.1, Figure 294).
    pub struct Entry[1024] {
        /// Transport type.
        pub trtype: u8,
        /// Address family.
        pub adrfam: u8,
        /// Subsystem type.
        pub subtype: u8,
        /// Transport requirements: bits 1:0 secure channel, bit 2 SQ flow control can be disabled.
        pub treq: u8,
        /// Port id.
        pub portid: U16,
        /// Controller id; FFFFh: dynamic.
        pub cntlid: U16,
        /// Largest admin submission queue.
        pub asqsz: U16,
        /// Entry flags.
        pub eflags: U16,
        /// Reserved.
        pub reserved12: [u8; 20],
        /// Transport service id, ASCII, padded with spaces or zeroes.
        pub trsvcid: [u8; 32],
        /// Reserved.
        pub reserved64: [u8; 192],
        /// NVM subsystem NQN, terminated by zero.
        pub subnqn: [u8; 256],
        /// Transport address, ASCII.
        pub traddr: [u8; 256],
        /// Transport specific address subtype; TCP: byte 0 is the security type.
        pub tsas: [u8; 256],
    }
}
