//! SGL descriptors (NVMe Base 2.1, section 4.3.2) as fabrics use them.

use crate::Command;
use crate::wire::wire;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire! {
    /// SGL descriptor (NVMe Base 2.1, Figures 114 to 122).
    #[derive(Default)]
    pub struct Sgl[16] {
        /// Address, or offset into the capsule's data for the offset subtype.
        pub address: U64,
        /// Length in bytes.
        pub length: U32,
        /// Reserved.
        pub reserved: [u8; 3],
        /// SGL identifier: type in bits 7:4, subtype in bits 3:0.
        pub identifier: u8,
    }
}

impl Sgl {
    /// Data block whose address is an offset into the capsule (type 0h, subtype 1h).
    pub const IN_CAPSULE: u8 = 0x01;
    /// Transport data block: the transport moves the data (type 5h, subtype Ah).
    pub const TRANSPORT: u8 = 0x5a;
    /// PSDT value for SGLs with a contiguous metadata buffer (NVMe Base 2.1, Figure 91).
    pub const PSDT_SGL: u8 = 0b01 << 6;

    /// Data of `length` bytes that the transport moves in PDUs of its own.
    pub fn transport(length: u32) -> Sgl {
        Sgl { length: length.into(), identifier: Sgl::TRANSPORT, ..Sgl::default() }
    }

    /// Data of `length` bytes at `offset` of the capsule's data.
    pub fn in_capsule(offset: u64, length: u32) -> Sgl {
        Sgl {
            address: offset.into(),
            length: length.into(),
            identifier: Sgl::IN_CAPSULE,
            ..Sgl::default()
        }
    }
}

impl Command {
    /// The SGL descriptor in the data pointer.
    #[inline]
    pub fn sgl(&self) -> Sgl {
        zerocopy::transmute!(self.dptr)
    }

    /// Sets the data pointer and the PSDT field to one SGL descriptor.
    pub fn set_sgl(&mut self, sgl: Sgl) {
        self.dptr = zerocopy::transmute!(sgl);
        self.flags = self.flags & 0x3f | Sgl::PSDT_SGL;
    }

    /// Whether the command transfers data: Data Transfer Direction in bits 1:0 of the opcode, for
    /// fabrics commands of the fabrics command type (NVMe Base 2.1, Figures 141, 540 and 555).
    #[inline]
    pub fn transfers_data(&self) -> bool {
        let fabrics = self.opcode == crate::opcode::admin::FABRICS;
        let code = if fabrics { self.fctype() } else { self.opcode };
        code & 3 != 0
    }

    /// Whether the data pointer is an SGL (PSDT 01b or 10b), as fabrics demand.
    #[inline]
    pub fn uses_sgl(&self) -> bool {
        matches!(self.flags >> 6, 1 | 2)
    }
}
