//! PDUs as they lie on the wire (NVMe/TCP Transport 1.1, section 3.6).
//!
//! Reserved fields are zero when sent and not looked at when received.

use nvme::{Command, Completion};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A digest's length in bytes (section 3.3).
pub const DIGEST_BYTES: usize = 4;
/// Largest HPDA or CPDA: data starts at a multiple of 128 bytes (section 3.4).
pub const ALIGNMENT_Z_MAX: u8 = 31;
/// Smallest MAXH2CDATA that a controller may state, in bytes (section 3.6.2.3).
pub const MAX_H2C_DATA_MIN: u32 = 4096;
/// Largest H2CTermReq or C2HTermReq in bytes: its header and the header of the PDU in error.
pub const TERM_BYTES_MAX: usize = 152;

/// PDU-Type (section 3.6.1). An open enumeration: unknown values survive.
#[repr(transparent)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct Kind(pub u8);

impl Kind {
    /// Initialize Connection Request, host to controller.
    pub const IC_REQ: Kind = Kind(0x00);
    /// Initialize Connection Response, controller to host.
    pub const IC_RESP: Kind = Kind(0x01);
    /// Host to Controller Terminate Connection Request.
    pub const H2C_TERM_REQ: Kind = Kind(0x02);
    /// Controller to Host Terminate Connection Request.
    pub const C2H_TERM_REQ: Kind = Kind(0x03);
    /// Command Capsule, host to controller.
    pub const CAPSULE_CMD: Kind = Kind(0x04);
    /// Response Capsule, controller to host.
    pub const CAPSULE_RESP: Kind = Kind(0x05);
    /// Host to Controller Data Transfer.
    pub const H2C_DATA: Kind = Kind(0x06);
    /// Controller to Host Data Transfer.
    pub const C2H_DATA: Kind = Kind(0x07);
    /// Ready to Transfer, controller to host.
    pub const R2T: Kind = Kind(0x09);
    /// Kickstart Discovery Request, direct to centralized discovery controller.
    pub const KD_REQ: Kind = Kind(0x0a);
    /// Kickstart Discovery Response, centralized to direct discovery controller.
    pub const KD_RESP: Kind = Kind(0x0b);
}

/// FLAGS of the common header (section 3.6.1 and each PDU's figure).
pub mod flags {
    /// HDGSTF: a header digest follows the header.
    pub const HDGST: u8 = 1 << 0;
    /// DDGSTF: a data digest follows the data.
    pub const DDGST: u8 = 1 << 1;
    /// LAST_PDU of H2CData and C2HData: the last one of the transfer.
    pub const LAST: u8 = 1 << 2;
    /// SUCCESS of C2HData: the command succeeded and no CapsuleResp follows.
    pub const SUCCESS: u8 = 1 << 3;
    /// KDCONN of ICReq: a connection for kickstart discovery (NVMe Base 2.1, section 8.3.2.2.2.1).
    pub const KDCONN: u8 = 1 << 7;
}

/// DGST of ICReq and ICResp: which digests are wanted, respectively used.
pub mod dgst {
    /// HDGST_ENABLE.
    pub const HEADER: u8 = 1 << 0;
    /// DDGST_ENABLE.
    pub const DATA: u8 = 1 << 1;
}

/// PDU Common Header (CH).
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct CommonHeader {
    /// PDU-Type.
    pub kind: Kind,
    /// FLAGS; see [`flags`].
    pub flags: u8,
    /// Header Length in bytes, without the header digest.
    pub hlen: u8,
    /// PDU Data Offset: bytes from the start of the PDU to its data; zero where there is none.
    pub pdo: u8,
    /// PDU Length: bytes of header, digests, padding and data.
    pub plen: U32,
}
const _: () = assert!(size_of::<CommonHeader>() == 8);

/// Initialize Connection Request (ICReq).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct IcReq {
    /// Common header; HLEN and PLEN are 128.
    pub common: CommonHeader,
    /// PDU Format Version: zero.
    pub pfv: U16,
    /// Host PDU Data Alignment in dwords, zero-based, for C2HData.
    pub hpda_z: u8,
    /// Digests that the host wants; see [`dgst`].
    pub dgst: u8,
    /// Maximum number of outstanding R2Ts per command, zero-based.
    pub maxr2t_z: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}
const _: () = assert!(size_of::<IcReq>() == 128);

/// Initialize Connection Response (ICResp).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct IcResp {
    /// Common header; HLEN and PLEN are 128.
    pub common: CommonHeader,
    /// PDU Format Version: zero.
    pub pfv: U16,
    /// Controller PDU Data Alignment in dwords, zero-based, for CapsuleCmd and H2CData.
    pub cpda_z: u8,
    /// Digests in use from the next PDU on; see [`dgst`].
    pub dgst: u8,
    /// Maximum Host to Controller Data length of one H2CData PDU in bytes.
    pub maxh2cdata: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}
const _: () = assert!(size_of::<IcResp>() == 128);

/// H2CTermReq and C2HTermReq, followed by the header of the PDU in error.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct TermReq {
    /// Common header; HLEN is 24, PLEN at most 152.
    pub common: CommonHeader,
    /// Fatal Error Status; see [`crate::FatalError`].
    pub fes: U16,
    /// Fatal Error Information; its meaning depends on FES.
    pub fei: [u8; 4],
    /// Reserved.
    pub reserved: [u8; 10],
}
const _: () = assert!(size_of::<TermReq>() == 24);

/// Command Capsule (CapsuleCmd), followed by in-capsule data if any.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct CapsuleCmd {
    /// Common header; HLEN is 72.
    pub common: CommonHeader,
    /// Submission queue entry.
    pub command: Command,
}
const _: () = assert!(size_of::<CapsuleCmd>() == 72);

/// Response Capsule (CapsuleResp).
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct CapsuleResp {
    /// Common header; HLEN is 24.
    pub common: CommonHeader,
    /// Completion queue entry.
    pub completion: Completion,
}
const _: () = assert!(size_of::<CapsuleResp>() == 24);

/// Host to Controller Data Transfer (H2CData), followed by data.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct H2cData {
    /// Common header; HLEN is 24.
    pub common: CommonHeader,
    /// Command Capsule CID.
    pub cccid: U16,
    /// Transfer Tag: that of the R2T.
    pub ttag: U16,
    /// Data Offset within the command's data in bytes.
    pub datao: U32,
    /// Data Length in bytes.
    pub datal: U32,
    /// Reserved.
    pub reserved: [u8; 4],
}
const _: () = assert!(size_of::<H2cData>() == 24);

/// Controller to Host Data Transfer (C2HData), followed by data.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct C2hData {
    /// Common header; HLEN is 24.
    pub common: CommonHeader,
    /// Command Capsule CID.
    pub cccid: U16,
    /// Reserved.
    pub reserved_10: [u8; 2],
    /// Data Offset within the command's data in bytes.
    pub datao: U32,
    /// Data Length in bytes.
    pub datal: U32,
    /// Reserved.
    pub reserved_20: [u8; 4],
}
const _: () = assert!(size_of::<C2hData>() == 24);

/// Ready to Transfer (R2T).
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct R2t {
    /// Common header; HLEN is 24.
    pub common: CommonHeader,
    /// Command Capsule CID.
    pub cccid: U16,
    /// Transfer Tag, echoed by H2CData.
    pub ttag: U16,
    /// Requested Data Offset within the command's data in bytes.
    pub r2to: U32,
    /// Requested Data Length in bytes.
    pub r2tl: U32,
    /// Reserved.
    pub reserved: [u8; 4],
}
const _: () = assert!(size_of::<R2t>() == 24);

/// Kickstart Discovery Request (KDReq), followed by its kickstart records as data.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct KdReq {
    /// Common header; HLEN is 12.
    pub common: CommonHeader,
    /// Number of Kickstart Records.
    pub numkr: U16,
    /// Number of Discovery Information Entries that are to be registered.
    pub numdie: U16,
}
const _: () = assert!(size_of::<KdReq>() == 12);

/// Kickstart Record: one way to a direct discovery controller, with the fields of a discovery log entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct KickstartRecord {
    /// Transport type.
    pub trtype: u8,
    /// Address family.
    pub adrfam: u8,
    /// Transport service id, ASCII, padded with zeroes.
    pub trsvcid: [u8; 32],
    /// Transport address, ASCII, padded with zeroes.
    pub traddr: [u8; 256],
}
const _: () = assert!(size_of::<KickstartRecord>() == 290);

/// Kickstart Discovery Response (KDResp), followed by 264 bytes that have the CDC's NQN in them.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct KdResp {
    /// Common header; HLEN is 10, PLEN 274.
    pub common: CommonHeader,
    /// Kickstart Status: 0 success, 1 failure.
    pub ksstat: u8,
    /// Failure Reason; see [`crate::kickstart::FailureReason`].
    pub failrsn: u8,
}
const _: () = assert!(size_of::<KdResp>() == 10);
