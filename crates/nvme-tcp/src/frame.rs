//! Where the parts of a PDU lie, checked against what was negotiated (NVMe/TCP Transport 1.1, section 3.2 to 3.4).
//!
//! ```text
//!   | header (HLEN) | HDGST | PAD | data | DDGST |
//!   0               HLEN          PDO            PLEN
//! ```

use crate::digest::digest;
use crate::pdu::{
    CapsuleCmd, CapsuleResp, CommonHeader, DIGEST_BYTES, H2cData, IcReq, Kind, R2t, flags,
};
use crate::terminate::Fault;
use zerocopy::little_endian::U32;

/// What both sides agreed on, as one of them sends or receives PDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Every header is followed by a digest.
    pub header_digest: bool,
    /// Data is followed by a digest.
    pub data_digest: bool,
    /// Data starts at a multiple of so many dwords, zero-based: HPDA or CPDA.
    pub alignment_z: u8,
}

/// Lengths of one PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Bytes of header and header digest.
    pub header_bytes: usize,
    /// Offset of the data; `header_bytes` when there is none.
    pub data_offset: usize,
    /// Bytes of data.
    pub data_bytes: usize,
    /// Bytes of the data digest: 4 or 0.
    pub digest_bytes: usize,
}

/// Byte offsets of the common header's fields, for FEI.
pub(crate) mod at {
    pub const KIND: u32 = 0;
    pub const FLAGS: u32 = 1;
    pub const HLEN: u32 = 2;
    pub const PDO: u32 = 3;
    pub const PLEN: u32 = 4;
}

impl Format {
    /// No digests, no padding: as on a connection that is not initialized.
    pub const PLAIN: Format = Format { header_digest: false, data_digest: false, alignment_z: 0 };

    /// Bytes of which data starts at a multiple.
    #[inline]
    pub fn alignment(&self) -> usize {
        4 * (usize::from(self.alignment_z) + 1)
    }

    /// The frame to send for a header of `hlen` bytes and so much data.
    #[inline]
    pub fn frame(&self, hlen: usize, data_bytes: usize) -> Frame {
        let header_bytes = hlen + if self.header_digest { DIGEST_BYTES } else { 0 };
        if data_bytes == 0 {
            return Frame { header_bytes, data_offset: header_bytes, data_bytes, digest_bytes: 0 };
        }
        Frame {
            header_bytes,
            data_offset: header_bytes.next_multiple_of(self.alignment()),
            data_bytes,
            digest_bytes: if self.data_digest { DIGEST_BYTES } else { 0 },
        }
    }

    /// The common header of `frame`; `more` are flags beside those for the digests.
    #[inline]
    pub fn common(&self, kind: Kind, hlen: usize, more: u8, frame: &Frame) -> CommonHeader {
        let header_digest = if self.header_digest { flags::HDGST } else { 0 };
        let data_digest = if frame.digest_bytes != 0 { flags::DDGST } else { 0 };
        CommonHeader {
            kind,
            flags: more | header_digest | data_digest,
            hlen: hlen as u8,
            pdo: if frame.data_bytes == 0 { 0 } else { frame.data_offset as u8 },
            plen: U32::new(frame.bytes() as u32),
        }
    }

    /// Puts `header`, its digest and the padding into `out`; gives the length.
    #[inline]
    pub(crate) fn emit(&self, header: &[u8], frame: &Frame, out: &mut [u8]) -> usize {
        out[..header.len()].copy_from_slice(header);
        if self.header_digest {
            out[header.len()..][..DIGEST_BYTES].copy_from_slice(&digest(header));
        }
        out[frame.header_bytes..frame.data_offset].fill(0);
        frame.data_offset
    }

    /// Checks the common header of a received PDU. The lowest wrong field is reported.
    ///
    /// The kind has been found to be allowed from this peer; the terminating PDUs do not come here.
    pub(crate) fn check(&self, common: &CommonHeader) -> Result<Frame, Fault> {
        let (hlen, more, data) = match common.kind {
            Kind::IC_REQ | Kind::IC_RESP => return check_initialize(common),
            Kind::CAPSULE_CMD => (size_of::<CapsuleCmd>(), 0, Data::Optional),
            Kind::CAPSULE_RESP => (size_of::<CapsuleResp>(), 0, Data::None),
            Kind::R2T => (size_of::<R2t>(), 0, Data::None),
            Kind::H2C_DATA => (size_of::<H2cData>(), flags::LAST, Data::Always),
            Kind::C2H_DATA => (size_of::<H2cData>(), flags::LAST | flags::SUCCESS, Data::Always),
            _ => return Err(Fault::field(at::KIND)),
        };
        let header_digest = if self.header_digest { flags::HDGST } else { 0 };
        let header_bytes = hlen + if self.header_digest { DIGEST_BYTES } else { 0 };
        let plen = common.plen.get() as usize;
        let has_data = match data {
            Data::None => false,
            Data::Always => true,
            Data::Optional => plen != header_bytes,
        };
        let data_digest = if self.data_digest && has_data { flags::DDGST } else { 0 };
        if common.flags & !more != header_digest | data_digest {
            return Err(Fault::field(at::FLAGS));
        }
        if usize::from(common.hlen) != hlen {
            return Err(Fault::field(at::HLEN));
        }
        let pdo = usize::from(common.pdo);
        if !has_data {
            // PDO is reserved without data; some senders put the end of the header there.
            if plen != header_bytes {
                return Err(Fault::field(at::PLEN));
            }
            if matches!(data, Data::Optional) && pdo != 0 && pdo != header_bytes {
                return Err(Fault::field(at::PDO));
            }
            return Ok(Frame {
                header_bytes,
                data_offset: header_bytes,
                data_bytes: 0,
                digest_bytes: 0,
            });
        }
        if pdo < header_bytes || pdo > plen || !pdo.is_multiple_of(self.alignment()) {
            // A PDU too short for its header has no data that PDO could be wrong about.
            let at = if plen < header_bytes { at::PLEN } else { at::PDO };
            return Err(Fault::field(at));
        }
        let digest_bytes = if self.data_digest { DIGEST_BYTES } else { 0 };
        match plen.checked_sub(pdo + digest_bytes) {
            None | Some(0) => Err(Fault::field(at::PLEN)),
            Some(data_bytes) => {
                Ok(Frame { header_bytes, data_offset: pdo, data_bytes, digest_bytes })
            }
        }
    }

    /// Checks the digest of a header of `hlen` bytes at the front of `pdu`.
    #[inline]
    pub(crate) fn check_header_digest(&self, pdu: &[u8], hlen: usize) -> Result<(), Fault> {
        if !self.header_digest {
            return Ok(());
        }
        let (header, rest) = pdu.split_at(hlen);
        let received = *rest.first_chunk().expect("the whole header and digest are here");
        if digest(header) == received { Ok(()) } else { Err(Fault::digest(received)) }
    }
}

impl Frame {
    /// Bytes of the whole PDU: PLEN.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.data_offset + self.data_bytes + self.digest_bytes
    }
}

enum Data {
    None,
    Optional,
    Always,
}

fn check_initialize(common: &CommonHeader) -> Result<Frame, Fault> {
    let bytes = size_of::<IcReq>();
    if common.flags != 0 {
        return Err(Fault::field(at::FLAGS));
    }
    if usize::from(common.hlen) != bytes {
        return Err(Fault::field(at::HLEN));
    }
    if common.plen.get() as usize != bytes {
        return Err(Fault::field(at::PLEN));
    }
    Ok(Frame { header_bytes: bytes, data_offset: bytes, data_bytes: 0, digest_bytes: 0 })
}
