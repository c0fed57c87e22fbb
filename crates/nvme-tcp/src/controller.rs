//! The controller's end of one connection: one queue of one host.
//!
//! A driver hands received bytes to [`Connection::receive`] and obeys the events; it sends what
//! the emitting methods write. Nothing is allocated after initialization but the table of
//! transfers, sized by [`Connection::set_queue_entries`].
//!
//! ```text
//!   receive()  -> Initialize, Command, Data, Terminated, or Err(Terminate)
//!   response(), data_header(), expect()  -> headers to send
//! ```
//!
//! What this does not know, and the driver must check: whether a command identifier is already
//! in use (a host may wrongly use one twice; transfers are told apart by tag here), whether the
//! length of in-capsule data is what the command's SGL says, and the order of Connect and the rest.

use crate::frame::{Format, at};
use crate::payload::{Payload, Pending, Phase, Step};
use crate::pdu::{
    ALIGNMENT_Z_MAX, C2hData, CapsuleCmd, CapsuleResp, CommonHeader, H2cData, IcReq, IcResp, Kind,
    MAX_H2C_DATA_MIN, R2t, dgst, flags,
};
use crate::terminate::{self, FatalError, Fault, Terminate};
use nvme::{Command, Completion};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes that [`Connection::response`] and [`Connection::expect`] write at most.
pub const RESPONSE_BYTES_MAX: usize = 28;
/// Bytes that [`Connection::data_header`] writes at most: header, digest and padding.
pub const DATA_HEADER_BYTES_MAX: usize = 128;
/// In-capsule data that a controller must take on an admin queue, in bytes (section 3.3.2).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// What a controller offers to a host that connects.
#[derive(Clone, Debug)]
pub struct Config {
    /// MAXH2CDATA: most data in one H2CData PDU in bytes; a multiple of 4, at least 4096.
    pub max_h2c_data: u32,
    /// Most in-capsule data in bytes, until [`Connection::set_in_capsule_max`].
    pub in_capsule_max: u32,
    /// Header digests are used if the host asks for them.
    pub header_digest: bool,
    /// Data digests are used if the host asks for them.
    pub data_digest: bool,
    /// CPDA: alignment of in-capsule and H2CData data in dwords, zero-based, at most 31. Linux
    /// hosts accept only 0.
    pub cpda_z: u8,
    /// Transfer tags, until [`Connection::set_queue_entries`].
    pub queue_entries: u16,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            max_h2c_data: 1 << 20,
            in_capsule_max: ADMIN_IN_CAPSULE_BYTES,
            header_digest: true,
            data_digest: true,
            cpda_z: 0,
            queue_entries: 32,
        }
    }
}

/// What the host did.
#[derive(Debug)]
pub enum Event<'a> {
    /// The connection is initialized: send this ICResp before anything else.
    Initialize {
        /// The ICResp.
        response: [u8; 128],
    },
    /// A command capsule.
    Command {
        /// Submission queue entry. Its CID may be in use already: the driver's to check.
        command: Command,
        /// In-capsule data; empty if none came. Valid while the input is.
        data: &'a [u8],
        /// The data digest was wrong: complete the command with Transient Transport Error.
        digest_error: bool,
    },
    /// A part of the data asked for by [`Connection::expect`]; parts come in order.
    Data {
        /// Tag given to [`Connection::expect`].
        tag: u16,
        /// Offset of `bytes` within the command's whole data.
        offset: u32,
        /// The data; may be empty when `done`.
        bytes: &'a [u8],
        /// All that was asked for has come; the tag is free again.
        done: bool,
        /// A data digest of this transfer was wrong; certain only when `done`. Complete the
        /// command with Transient Transport Error.
        digest_error: bool,
    },
    /// The host terminates the connection: close it without sending anything more.
    Terminated {
        /// Fatal Error Status; 0 if the host's PDU was itself malformed.
        fes: FatalError,
        /// Fatal Error Information.
        fei: u32,
    },
}

/// A transfer completed by [`Connection::payload_received`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferDone {
    /// Tag given to [`Connection::expect`]; free again.
    pub tag: u16,
    /// A data digest of this transfer was wrong.
    pub digest_error: bool,
}

/// The protocol state of one connection.
#[derive(Debug)]
pub struct Connection {
    /// Common header of a capsule without data as this host sends it; compared as one word.
    plain_capsule: u64,
    /// Common header of a CapsuleResp.
    plain_response: CommonHeader,
    phase: Phase,
    payload: Payload,
    /// How the host sends: data aligned to CPDA.
    receives: Format,
    /// How we send: data aligned to HPDA.
    sends: Format,
    max_r2t: u64,
    transfers: Box<[Transfer]>,
    config: Config,
}

/// One outstanding R2T.
#[derive(Clone, Copy, Debug, Default)]
struct Transfer {
    state: TransferState,
    digest_error: bool,
    cid: u16,
    /// Offset of the next byte of an H2CData PDU.
    next: u32,
    end: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TransferState {
    #[default]
    Free,
    Active,
    Cancelled,
}

/// No PDU starts like this: type FFh.
const NO_CAPSULE: u64 = u64::MAX;

impl Connection {
    /// A connection that was just accepted.
    ///
    /// # Panics
    /// If `config` is out of the ranges that its fields state.
    pub fn new(config: Config) -> Connection {
        assert!(config.max_h2c_data >= MAX_H2C_DATA_MIN && config.max_h2c_data.is_multiple_of(4));
        assert!(config.cpda_z <= ALIGNMENT_Z_MAX);
        Connection {
            plain_capsule: NO_CAPSULE,
            plain_response: CommonHeader::default(),
            phase: Phase::Start,
            payload: Payload::NONE,
            receives: Format::PLAIN,
            sends: Format::PLAIN,
            max_r2t: 1,
            transfers: vec![Transfer::default(); usize::from(config.queue_entries)].into(),
            config,
        }
    }

    /// Consumes bytes from the front of `input` up to the next event.
    ///
    /// `Ok(None)`: more bytes are needed. What is then left in `input` is the beginning of a PDU,
    /// to be given again with more behind it; never more than [`Connection::input_bytes_max`].
    ///
    /// # Errors
    /// The host broke the protocol. From then on all input is dropped.
    #[inline]
    pub fn receive<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Terminate> {
        if self.phase == Phase::Ready
            && let Some((bytes, rest)) = input.split_first_chunk::<{ size_of::<CapsuleCmd>() }>()
            && bytes[..8] == self.plain_capsule.to_le_bytes()
        {
            // The common case: a capsule without digest and data.
            *input = rest;
            let capsule = CapsuleCmd::read_from_bytes(bytes).expect("sizes are equal");
            let command = capsule.command;
            return Ok(Some(Event::Command { command, data: &[], digest_error: false }));
        }
        self.receive_any(input)
    }

    /// Most bytes that [`Connection::receive`] leaves in its input: one capsule less one byte.
    pub fn input_bytes_max(&self) -> usize {
        // PDO is a byte.
        255 + self.config.in_capsule_max as usize + 4
    }

    fn receive_any<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Terminate> {
        loop {
            let pdu = *input;
            let result = match self.phase {
                Phase::Closed => {
                    *input = &[];
                    return Ok(None);
                }
                Phase::Payload => match self.receive_payload(input) {
                    // The rest of a cancelled transfer's PDU: go on with what follows it.
                    Received::Nothing if self.phase == Phase::Ready => continue,
                    Received::Nothing => return Ok(None),
                    Received::Event(event) => return Ok(Some(event)),
                },
                Phase::Start | Phase::Ready => self.receive_pdu(input),
            };
            return match result {
                // The header of an H2CData PDU.
                Ok(None) if self.phase == Phase::Payload => continue,
                Ok(event) => Ok(event),
                Err(fault) => {
                    self.phase = Phase::Closed;
                    *input = &[];
                    Err(Terminate::new(Kind::C2H_TERM_REQ, fault, pdu))
                }
            };
        }
    }

    fn receive_pdu<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Fault> {
        let pdu = *input;
        let Ok((common, _)) = CommonHeader::read_from_prefix(pdu) else { return Ok(None) };
        match common.kind {
            Kind::H2C_TERM_REQ => {
                let Some((fes, fei)) = terminate::parse(&common, pdu) else { return Ok(None) };
                *input = &[];
                self.phase = Phase::Closed;
                return Ok(Some(Event::Terminated { fes, fei }));
            }
            Kind::IC_REQ | Kind::CAPSULE_CMD | Kind::H2C_DATA => {}
            _ => return Err(Fault::field(at::KIND)),
        }
        if (common.kind == Kind::IC_REQ) != (self.phase == Phase::Start) {
            return Err(Fault::plain(FatalError::PDU_SEQUENCE));
        }
        let frame = self.receives.check(&common)?;
        match common.kind {
            Kind::IC_REQ => {
                let Ok((request, rest)) = IcReq::read_from_prefix(pdu) else { return Ok(None) };
                *input = rest;
                let response = self.initialize(&request)?;
                Ok(Some(Event::Initialize { response }))
            }
            Kind::CAPSULE_CMD => {
                if frame.data_bytes > self.config.in_capsule_max as usize {
                    return Err(Fault::plain(FatalError::DATA_LIMIT_EXCEEDED));
                }
                let Some((pdu, rest)) = pdu.split_at_checked(frame.bytes()) else {
                    return Ok(None);
                };
                *input = rest;
                self.receives.check_header_digest(pdu, size_of::<CapsuleCmd>())?;
                let (capsule, _) = CapsuleCmd::read_from_prefix(pdu).expect("HLEN was checked");
                let (data, digest) = pdu[frame.data_offset..].split_at(frame.data_bytes);
                let digest_error = !digest.is_empty() && digest != crate::digest::digest(data);
                Ok(Some(Event::Command { command: capsule.command, data, digest_error }))
            }
            _ => {
                let Some((pdu, rest)) = pdu.split_at_checked(frame.data_offset) else {
                    return Ok(None);
                };
                self.receives.check_header_digest(pdu, size_of::<H2cData>())?;
                let (header, _) = H2cData::read_from_prefix(pdu).expect("HLEN was checked");
                let discard = self.check_transfer(&header, frame.data_bytes)?;
                let pending = Pending {
                    key: header.ttag.get(),
                    offset: header.datao.get(),
                    remaining: header.datal.get(),
                };
                *input = rest;
                self.payload = Payload::new(pending, &frame, discard);
                self.phase = Phase::Payload;
                Ok(None)
            }
        }
    }

    /// "A controller that receives an ICReq PDU ..." (section 3.6.2.2 and 3.6.2.3).
    fn initialize(&mut self, request: &IcReq) -> Result<[u8; 128], Fault> {
        if request.pfv.get() != 0 {
            return Err(Fault::unsupported(8));
        }
        if request.hpda_z > ALIGNMENT_Z_MAX {
            return Err(Fault::field(10));
        }
        let header_digest = self.config.header_digest && request.dgst & dgst::HEADER != 0;
        let data_digest = self.config.data_digest && request.dgst & dgst::DATA != 0;
        let cpda_z = self.config.cpda_z;
        self.receives = Format { header_digest, data_digest, alignment_z: cpda_z };
        self.sends = Format { header_digest, data_digest, alignment_z: request.hpda_z };
        self.max_r2t = u64::from(request.maxr2t_z.get()) + 1;
        self.phase = Phase::Ready;
        if !header_digest {
            let hlen = size_of::<CapsuleCmd>();
            let frame = self.receives.frame(hlen, 0);
            let common = self.receives.common(Kind::CAPSULE_CMD, hlen, 0, &frame);
            self.plain_capsule = u64::from_le_bytes(zerocopy::transmute!(common));
        }
        let hlen = size_of::<CapsuleResp>();
        let frame = self.sends.frame(hlen, 0);
        self.plain_response = self.sends.common(Kind::CAPSULE_RESP, hlen, 0, &frame);
        let hlen = size_of::<IcResp>();
        let response = IcResp {
            common: Format::PLAIN.common(Kind::IC_RESP, hlen, 0, &Format::PLAIN.frame(hlen, 0)),
            pfv: 0.into(),
            cpda_z,
            dgst: if header_digest { dgst::HEADER } else { 0 }
                | if data_digest { dgst::DATA } else { 0 },
            maxh2cdata: self.config.max_h2c_data.into(),
            reserved: [0; 112],
        };
        Ok(zerocopy::transmute!(response))
    }

    /// Checks an H2CData header against the outstanding transfers (section 3.6.2.6); advances the
    /// transfer. True if its data is to be dropped.
    fn check_transfer(&mut self, header: &H2cData, data_bytes: usize) -> Result<bool, Fault> {
        let transfer = self.transfers.get_mut(usize::from(header.ttag.get()));
        let Some(transfer) = transfer.filter(|transfer| transfer.state != TransferState::Free)
        else {
            return Err(Fault::field(10));
        };
        if header.cccid.get() != transfer.cid {
            return Err(Fault::field(8));
        }
        let (offset, len) = (header.datao.get(), header.datal.get());
        if len as usize != data_bytes {
            return Err(Fault::field(16));
        }
        if len > self.config.max_h2c_data {
            return Err(Fault::plain(FatalError::DATA_LIMIT_EXCEEDED));
        }
        let end = u64::from(offset) + u64::from(len);
        if end > u64::from(transfer.end) {
            return Err(Fault::plain(FatalError::DATA_OUT_OF_RANGE));
        }
        let last = end == u64::from(transfer.end);
        if offset != transfer.next || last != (header.common.flags & flags::LAST != 0) {
            // An earlier offset repeats data, a later one leaves a gap.
            return Err(Fault::plain(FatalError::PDU_SEQUENCE));
        }
        transfer.next = end as u32;
        Ok(transfer.state == TransferState::Cancelled)
    }

    fn receive_payload<'a>(&mut self, input: &mut &'a [u8]) -> Received<'a> {
        let tag = self.payload.pending.key;
        match self.payload.step(input) {
            Step::Starved => Received::Nothing,
            Step::Data { offset, bytes, end } => {
                let bytes = if self.payload.discard { &[] } else { bytes };
                let done = end.and_then(|wrong| self.end_payload(wrong));
                let digest_error = done.is_some_and(|done| done.digest_error);
                let done = done.is_some();
                if bytes.is_empty() && !done {
                    return Received::Nothing;
                }
                Received::Event(Event::Data { tag, offset, bytes, done, digest_error })
            }
        }
    }

    /// The PDU's data and digest are in: the next PDU follows.
    fn end_payload(&mut self, digest_error: bool) -> Option<TransferDone> {
        self.phase = Phase::Ready;
        let tag = self.payload.pending.key;
        let transfer = &mut self.transfers[usize::from(tag)];
        transfer.digest_error |= digest_error;
        if transfer.next != transfer.end {
            return None;
        }
        let digest_error = transfer.digest_error;
        *transfer = Transfer::default();
        Some(TransferDone { tag, digest_error })
    }

    /// In the middle of H2CData: where its rest belongs, for a driver that receives it straight
    /// into the command's buffer. `key` is the transfer tag. A digest that follows comes to
    /// [`Connection::receive`].
    #[inline]
    pub fn payload_pending(&self) -> Option<Pending> {
        let show = self.phase == Phase::Payload
            && self.payload.pending.remaining != 0
            && !self.payload.discard;
        show.then_some(self.payload.pending)
    }

    /// Notes that `bytes`, the next ones of the pending payload, were received by the driver.
    ///
    /// `Some` if the transfer is complete with them. With data digests this is never so: then the
    /// end comes as [`Event::Data`] from [`Connection::receive`].
    ///
    /// # Panics
    /// If no payload is pending or `bytes` are more than remain.
    #[inline]
    pub fn payload_received(&mut self, bytes: &[u8]) -> Option<TransferDone> {
        assert!(self.payload_pending().is_some(), "no payload is pending");
        if self.payload.received(bytes) { self.end_payload(false) } else { None }
    }

    /// Asks the host for `len` bytes of command `cid`'s data from `offset`: writes the R2T to send
    /// into `out` and gives its length. The data comes as [`Event::Data`] under `tag`.
    ///
    /// The driver keeps to [`Connection::max_r2t`] outstanding ones per command.
    ///
    /// # Panics
    /// If `tag` is not below the queue's entries or is in use, `len` is zero, or the range
    /// overflows.
    pub fn expect(
        &mut self,
        cid: u16,
        tag: u16,
        offset: u32,
        len: u32,
        out: &mut [u8; RESPONSE_BYTES_MAX],
    ) -> usize {
        let end = offset.checked_add(len).expect("a command's data is below 4 GiB");
        let transfer = &mut self.transfers[usize::from(tag)];
        assert!(transfer.state == TransferState::Free, "transfer tag {tag} is in use");
        assert!(len != 0, "an R2T asks for data");
        *transfer =
            Transfer { state: TransferState::Active, digest_error: false, cid, next: offset, end };
        let hlen = size_of::<R2t>();
        let frame = self.sends.frame(hlen, 0);
        let header = R2t {
            common: self.sends.common(Kind::R2T, hlen, 0, &frame),
            cccid: cid.into(),
            ttag: tag.into(),
            r2to: offset.into(),
            r2tl: len.into(),
            reserved: [0; 4],
        };
        self.sends.emit(header.as_bytes(), &frame, out)
    }

    /// Nobody wants the transfer's data any more. The host may still send it: it is dropped, and
    /// the tag stays in use until its last byte, when a [`Event::Data`] without bytes says `done`.
    pub fn cancel(&mut self, tag: u16) {
        let transfer = &mut self.transfers[usize::from(tag)];
        if transfer.state == TransferState::Active {
            transfer.state = TransferState::Cancelled;
            if self.phase == Phase::Payload && self.payload.pending.key == tag {
                self.payload.discard = true;
            }
        }
    }

    /// Writes the CapsuleResp for `completion` into `out` and gives its length.
    #[inline]
    pub fn response(&self, completion: &Completion, out: &mut [u8; RESPONSE_BYTES_MAX]) -> usize {
        let capsule = CapsuleResp { common: self.plain_response, completion: *completion };
        let bytes: [u8; size_of::<CapsuleResp>()] = zerocopy::transmute!(capsule);
        out[..bytes.len()].copy_from_slice(&bytes);
        if !self.sends.header_digest {
            return bytes.len();
        }
        out[bytes.len()..].copy_from_slice(&crate::digest::digest(&bytes));
        RESPONSE_BYTES_MAX
    }

    /// Writes header, digest and padding of a C2HData PDU into `out` and gives their length. `len`
    /// bytes of data must follow, then their [`crate::Digest`] if [`Connection::data_digest`].
    ///
    /// `last` is set on the last PDU of a command's data; `success` with it if no CapsuleResp
    /// will follow since the command succeeded (only without SQ flow control).
    ///
    /// # Panics
    /// If `len` is zero, or `success` is set without `last`.
    #[inline]
    pub fn data_header(&self, data: DataHeader, out: &mut [u8; DATA_HEADER_BYTES_MAX]) -> usize {
        assert!(data.len != 0 && (data.last || !data.success));
        let hlen = size_of::<C2hData>();
        let frame = self.sends.frame(hlen, data.len as usize);
        let last = if data.last { flags::LAST } else { 0 };
        let success = if data.success { flags::SUCCESS } else { 0 };
        let header = C2hData {
            common: self.sends.common(Kind::C2H_DATA, hlen, last | success, &frame),
            cccid: data.cid.into(),
            reserved_10: [0; 2],
            datao: data.offset.into(),
            datal: data.len.into(),
            reserved_20: [0; 4],
        };
        self.sends.emit(header.as_bytes(), &frame, out)
    }

    /// Whether an ICReq was received.
    pub fn is_initialized(&self) -> bool {
        self.phase != Phase::Start
    }

    /// How the host sends now.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn received_format(&self) -> Format {
        self.receives
    }

    /// Whether either side has terminated the connection.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether header digests are in use.
    pub fn header_digest(&self) -> bool {
        self.sends.header_digest
    }

    /// Whether data digests are in use: then lent memory must be copied before it is sent, since a
    /// digest of bytes that change is wrong.
    #[inline]
    pub fn data_digest(&self) -> bool {
        self.sends.data_digest
    }

    /// R2Ts that the host allows to be outstanding per command: MAXR2T, one-based.
    pub fn max_r2t(&self) -> u64 {
        self.max_r2t
    }

    /// Sets the limit of in-capsule data in bytes: 16 * IOCCSZ - 64 on an I/O queue, once Connect
    /// has told that it is one.
    pub fn set_in_capsule_max(&mut self, bytes: u32) {
        self.config.in_capsule_max = bytes;
    }

    /// Makes transfer tags 0 to `entries - 1` usable, once Connect has told the queue's size.
    /// Never shrinks.
    pub fn set_queue_entries(&mut self, entries: usize) {
        assert!(entries <= 1 << 16, "a queue has at most 65,536 entries");
        if entries > self.transfers.len() {
            let mut transfers = std::mem::take(&mut self.transfers).into_vec();
            transfers.resize(entries, Transfer::default());
            self.transfers = transfers.into();
        }
    }
}

/// What a C2HData PDU carries.
#[derive(Clone, Copy, Debug)]
pub struct DataHeader {
    /// The command's identifier.
    pub cid: u16,
    /// Offset within the command's whole data in bytes.
    pub offset: u32,
    /// Bytes of data in this PDU.
    pub len: u32,
    /// This is the last PDU of the command's data.
    pub last: bool,
    /// The command succeeded; no CapsuleResp follows.
    pub success: bool,
}

enum Received<'a> {
    Nothing,
    Event(Event<'a>),
}
