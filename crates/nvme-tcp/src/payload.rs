//! Where a connection is in what it receives, and the data of one H2CData or C2HData PDU.

use crate::digest::Digest;
use crate::frame::Frame;
use crate::pdu::DIGEST_BYTES;

/// What the next byte received is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The first of an ICReq or ICResp.
    Start,
    /// The first of any other PDU.
    Ready,
    /// Data or data digest.
    Payload,
    /// Nothing: terminated by either side; whatever comes is dropped.
    Closed,
}

/// Where the rest of the data belongs whose header was received.
///
/// `key` is the transfer tag on the controller and the command identifier on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Whose data it is: transfer tag (controller) or command identifier (host).
    pub key: u16,
    /// Offset within the command's whole data in bytes.
    pub offset: u32,
    /// Bytes that this PDU still brings.
    pub remaining: u32,
}

/// Data of the PDU being received, then its digest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload {
    pub pending: Pending,
    /// Nobody wants it: do not show it to the driver.
    pub discard: bool,
    digest: Digest,
    digested: bool,
}

/// A step through the payload.
pub(crate) enum Step<'a> {
    /// More bytes are needed.
    Starved,
    /// Some data; `Some` at the end of the PDU, with whether the digest was wrong.
    Data { offset: u32, bytes: &'a [u8], end: Option<bool> },
}

impl Payload {
    pub const NONE: Payload = Payload {
        pending: Pending { key: 0, offset: 0, remaining: 0 },
        discard: false,
        digest: Digest::new(),
        digested: false,
    };

    pub fn new(pending: Pending, frame: &Frame, discard: bool) -> Payload {
        Payload { pending, discard, digest: Digest::new(), digested: frame.digest_bytes != 0 }
    }

    /// Takes what is there of data and digest from the front of `input`.
    #[inline]
    pub fn step<'a>(&mut self, input: &mut &'a [u8]) -> Step<'a> {
        let offset = self.pending.offset;
        let len = input.len().min(self.pending.remaining as usize);
        let (bytes, rest) = input.split_at(len);
        *input = rest;
        self.advance(bytes);
        if self.pending.remaining == 0 {
            if !self.digested {
                return Step::Data { offset, bytes, end: Some(false) };
            }
            if let Some((received, rest)) = rest.split_first_chunk::<DIGEST_BYTES>() {
                *input = rest;
                let wrong = *received != self.digest.finish();
                return Step::Data { offset, bytes, end: Some(wrong) };
            }
        }
        if bytes.is_empty() { Step::Starved } else { Step::Data { offset, bytes, end: None } }
    }

    /// Notes bytes that the driver received itself; true when the PDU is complete with them.
    #[inline]
    pub fn received(&mut self, bytes: &[u8]) -> bool {
        assert!(bytes.len() <= self.pending.remaining as usize, "received beyond the payload");
        self.advance(bytes);
        self.pending.remaining == 0 && !self.digested
    }

    /// Notes bytes that were received where nobody here sees them; true when the PDU is complete with them.
    #[inline]
    pub fn passed(&mut self, len: u32) -> bool {
        assert!(len <= self.pending.remaining, "received beyond the payload");
        assert!(!self.digested, "a digest needs the bytes");
        self.pending.offset += len;
        self.pending.remaining -= len;
        self.pending.remaining == 0
    }

    #[inline]
    fn advance(&mut self, bytes: &[u8]) {
        if self.digested {
            self.digest.update(bytes);
        }
        self.pending.offset += bytes.len() as u32;
        self.pending.remaining -= bytes.len() as u32;
    }
}
