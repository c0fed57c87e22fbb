//! The SGL descriptor in a command's data pointer, as this transport uses it (NVMe/TCP Transport
//! 1.1, section 3.3.2; NVMe Base 2.1, section 4.3.2).

/// PSDT of a command that uses SGLs, in the flags byte of [`nvme::Command`].
pub const PSDT_SGL: u8 = 1 << 6;

/// SGL Data Block descriptor with offset: data is in the capsule.
const TYPE_IN_CAPSULE: u8 = 0x01;
/// Transport SGL Data Block descriptor, subtype NVMe Transport Specific.
const TYPE_TRANSPORT: u8 = 0x5a;

/// Where a command's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// In the capsule, from `offset` of its data; writes only.
    InCapsule {
        /// Offset within the in-capsule data in bytes.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// To be moved by H2CData or C2HData PDUs; a command without data has length zero.
    Transport {
        /// Length in bytes.
        len: u32,
    },
    /// A descriptor that this transport does not allow: SGL Descriptor Type Invalid.
    Unsupported {
        /// SGL Identifier: type and subtype.
        identifier: u8,
    },
}

impl Descriptor {
    /// Reads a command's `dptr`.
    #[inline]
    pub fn parse(dptr: &[u8; 16]) -> Descriptor {
        let (address, rest) = dptr.split_first_chunk::<8>().expect("16 bytes");
        let len = u32::from_le_bytes(*rest.first_chunk().expect("8 bytes"));
        match dptr[15] {
            TYPE_IN_CAPSULE => Descriptor::InCapsule { offset: u64::from_le_bytes(*address), len },
            TYPE_TRANSPORT => Descriptor::Transport { len },
            identifier => Descriptor::Unsupported { identifier },
        }
    }

    /// The value for a command's `dptr`.
    #[inline]
    pub fn emit(&self) -> [u8; 16] {
        let (address, len, identifier) = match *self {
            Descriptor::InCapsule { offset, len } => (offset, len, TYPE_IN_CAPSULE),
            Descriptor::Transport { len } => (0, len, TYPE_TRANSPORT),
            Descriptor::Unsupported { identifier } => (0, 0, identifier),
        };
        let mut dptr = [0; 16];
        dptr[..8].copy_from_slice(&address.to_le_bytes());
        dptr[8..12].copy_from_slice(&len.to_le_bytes());
        dptr[15] = identifier;
        dptr
    }
}
