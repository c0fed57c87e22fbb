//! One command in flight, with the PDUs that are sent for it.

use namespace::{Registered, Request};
use nvme::Status;
use nvme_tcp::host::{COMMAND_HEADER_BYTES_MAX, DATA_HEADER_BYTES_MAX, Outgoing, OutgoingPdu};
use std::time::Instant;

/// A place for a command; its number is the command identifier. What the socket is given lies here
/// and in the request's buffer or in the list, so that nothing is copied or allocated to send it.
pub(super) struct Slot {
    pub(super) request: Option<Box<Request>>,
    /// The request's data.
    pub(super) pointer: *mut u8,
    pub(super) len: u32,
    /// The same where it is pages of the kernel; `pointer` is null then.
    pub(super) pages: Option<Registered>,
    /// The source ranges of a Copy as they are sent, or a message of authentication as it comes. The memory is used
    /// again.
    pub(super) list: Vec<u8>,
    /// [`super::Params::flush_number`].
    pub(super) flush_number: u64,
    pub(super) since: Instant,
    /// It was reported as late.
    pub(super) reported: bool,
    /// Its capsule has been sent.
    pub(super) sent: bool,
    /// Bytes of data that go in the capsule.
    pub(super) in_capsule: u32,
    pub(super) capsule: Header<COMMAND_HEADER_BYTES_MAX>,
    /// Data that the controller asked for and that is to be sent.
    pub(super) outgoing: Option<Outgoing>,
    /// What it asked for next, while the ring sends the last of that: the end may be with the
    /// controller before we are told.
    pub(super) next: Option<Outgoing>,
    /// The data PDU that is being sent of it.
    pub(super) data: Option<OutgoingPdu>,
    pub(super) data_header: Header<DATA_HEADER_BYTES_MAX>,
    /// It was answered while its data was being sent.
    pub(super) answer: Option<(Status, u64)>,
}

/// The bytes before a PDU's data, and the digest behind it.
pub(super) struct Header<const N: usize> {
    pub(super) bytes: [u8; N],
    pub(super) len: u8,
    pub(super) digest: [u8; 4],
    pub(super) digest_len: u8,
}

impl<const N: usize> Header<N> {
    const EMPTY: Header<N> = Header { bytes: [0; N], len: 0, digest: [0; 4], digest_len: 0 };
}

impl Slot {
    pub(super) fn new(now: Instant) -> Slot {
        Slot {
            request: None,
            pointer: std::ptr::null_mut(),
            len: 0,
            pages: None,
            list: Vec::new(),
            flush_number: 0,
            since: now,
            reported: false,
            sent: false,
            in_capsule: 0,
            capsule: Header::EMPTY,
            outgoing: None,
            next: None,
            data: None,
            data_header: Header::EMPTY,
            answer: None,
        }
    }
}
