//! Fatal transport errors and the PDU that reports them (NVMe/TCP Transport 1.1, section 3.5 and 3.6.2.4).

use crate::pdu::{CommonHeader, Kind, TERM_BYTES_MAX, TermReq};
use std::fmt;
use zerocopy::{FromBytes, IntoBytes};

/// Fatal Error Status (FES). An open enumeration: unknown values survive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FatalError(pub u16);

impl FatalError {
    /// Invalid PDU Header Field; FEI is the byte offset of the field in the PDU header.
    pub const INVALID_HEADER_FIELD: FatalError = FatalError(1);
    /// PDU Sequence Error.
    pub const PDU_SEQUENCE: FatalError = FatalError(2);
    /// Header Digest Error; FEI is the digest that was received.
    pub const HEADER_DIGEST: FatalError = FatalError(3);
    /// Data Transfer Out of Range.
    pub const DATA_OUT_OF_RANGE: FatalError = FatalError(4);
    /// In C2HTermReq: Data Transfer Limit Exceeded, by in-capsule data or an H2CData PDU.
    pub const DATA_LIMIT_EXCEEDED: FatalError = FatalError(5);
    /// In H2CTermReq: R2T Limit Exceeded.
    pub const R2T_LIMIT_EXCEEDED: FatalError = FatalError(5);
    /// Unsupported Parameter; FEI is the byte offset of the parameter in the PDU header.
    pub const UNSUPPORTED_PARAMETER: FatalError = FatalError(6);
}

impl fmt::Display for FatalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            1 => "Invalid PDU Header Field",
            2 => "PDU Sequence Error",
            3 => "Header Digest Error",
            4 => "Data Transfer Out of Range",
            5 => "Transfer Limit Exceeded",
            6 => "Unsupported Parameter",
            status => return write!(f, "unknown fatal error status {status:#06x}"),
        };
        f.write_str(words)
    }
}

/// What is wrong with a PDU, before it is known whose PDU it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub fes: FatalError,
    pub fei: u32,
}

impl Fault {
    /// A header field with a wrong value, by its byte offset.
    pub const fn field(offset: u32) -> Fault {
        Fault { fes: FatalError::INVALID_HEADER_FIELD, fei: offset }
    }

    /// A header field with a value that this side does not support, by its byte offset.
    pub const fn unsupported(offset: u32) -> Fault {
        Fault { fes: FatalError::UNSUPPORTED_PARAMETER, fei: offset }
    }

    /// An error whose FEI is reserved.
    pub const fn plain(fes: FatalError) -> Fault {
        Fault { fes, fei: 0 }
    }

    pub const fn digest(received: [u8; 4]) -> Fault {
        Fault { fes: FatalError::HEADER_DIGEST, fei: u32::from_le_bytes(received) }
    }
}

/// FES and FEI of a terminating PDU; `None` if it is not all there.
///
/// A malformed one ends the connection all the same, with FES 0: terminations are never answered
/// with a termination (section 3.5).
#[cold]
pub(crate) fn parse(common: &CommonHeader, pdu: &[u8]) -> Option<(FatalError, u32)> {
    let hlen = size_of::<TermReq>();
    let plen = common.plen.get() as usize;
    if usize::from(common.hlen) != hlen || !(hlen..=TERM_BYTES_MAX).contains(&plen) {
        return Some((FatalError(0), 0));
    }
    let (request, _) = TermReq::read_from_prefix(pdu).ok()?;
    Some((FatalError(request.fes.get()), u32::from_le_bytes(request.fei)))
}

/// The peer has broken the protocol: send [`Terminate::pdu`], close the connection, and do not
/// process what it sent after that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terminate {
    /// Fatal Error Status.
    pub fes: FatalError,
    /// Fatal Error Information.
    pub fei: u32,
    kind: Kind,
    header: Box<[u8]>,
}

impl Terminate {
    /// `kind` is the terminating PDU to send, `pdu` what has been received of the PDU in error.
    #[cold]
    pub(crate) fn new(kind: Kind, fault: Fault, pdu: &[u8]) -> Terminate {
        let available = pdu.len().min(TERM_BYTES_MAX - size_of::<TermReq>());
        let len = match CommonHeader::read_from_prefix(pdu) {
            // Lengths that cannot be are not believed: then only the common header is told.
            Ok((common, _)) if (8..=common.plen.get()).contains(&u32::from(common.hlen)) => {
                usize::from(common.hlen)
            }
            _ => size_of::<CommonHeader>(),
        };
        let header = pdu[..len.min(available)].into();
        Terminate { fes: fault.fes, fei: fault.fei, kind, header }
    }

    /// What was received of the header of the PDU in error.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The H2CTermReq or C2HTermReq to send: at most [`TERM_BYTES_MAX`] bytes.
    pub fn pdu(&self) -> Vec<u8> {
        let len = size_of::<TermReq>() + self.header.len();
        let request = TermReq {
            common: CommonHeader {
                kind: self.kind,
                hlen: size_of::<TermReq>() as u8,
                plen: (len as u32).into(),
                ..CommonHeader::default()
            },
            fes: self.fes.0.into(),
            fei: self.fei.to_le_bytes(),
            ..TermReq::default()
        };
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(request.as_bytes());
        bytes.extend_from_slice(&self.header);
        bytes
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.header.first().copied().unwrap_or(0);
        write!(f, "{} in a PDU of type {kind:#04x} (FEI {:#x})", self.fes, self.fei)?;
        // Types of TLS records (RFC 8446, section 5.1), of which none is one of a PDU.
        if (0x14..=0x17).contains(&kind) {
            f.write_str(", as records of TLS have: only one end speaks that")?;
        }
        Ok(())
    }
}

impl std::error::Error for Terminate {}
