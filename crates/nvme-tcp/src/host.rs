//! The host's end of one connection: one queue of one controller.
//!
//! The driver sends [`Connection::initialize`], hands received bytes to [`Connection::receive`]
//! until [`Event::Initialized`], and then sends command capsules.
//!
//! ```text
//!   command(), data_header()  -> headers to send
//!   receive()  -> Initialized, Data, ReadyToTransfer, Response, Terminated, or Err(Terminate)
//! ```
//!
//! A table by command identifier, sized when the connection is made, holds what each command
//! still has to move: the controller is held to it.

use crate::frame::{Format, at};
use crate::payload::{Payload, Pending, Phase, Step};
use crate::pdu::{
    ALIGNMENT_Z_MAX, C2hData, CapsuleCmd, CapsuleResp, CommonHeader, H2cData, IcReq, IcResp, Kind,
    MAX_H2C_DATA_MIN, R2t, dgst, flags,
};
use crate::sgl::{Descriptor, PSDT_SGL};
use crate::terminate::{self, FatalError, Fault, Terminate};
use nvme::{Command, Completion};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes that [`Connection::command`] writes at most: header, digest and padding.
pub const COMMAND_HEADER_BYTES_MAX: usize = 144;
/// Bytes that [`Connection::data_header`] writes at most: header, digest and padding.
pub const DATA_HEADER_BYTES_MAX: usize = 128;
/// Bytes that [`Connection::receive`] leaves in its input at most: the beginning of a header.
pub const INPUT_BYTES_MAX: usize = 255;

/// No PDU of a controller is shorter: CapsuleResp, R2T, the header of C2HData, and C2HTermReq without data
/// (section 3.6.2).
const PDU_BYTES_MIN: usize = 24;

const _: () = {
    assert!(size_of::<CapsuleResp>() == PDU_BYTES_MIN);
    assert!(size_of::<R2t>() == PDU_BYTES_MIN);
    assert!(size_of::<C2hData>() == PDU_BYTES_MIN);
};

/// What a host asks of a controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// HPDA: alignment of C2HData data in dwords, zero-based, at most 31. Linux targets accept
    /// only 0.
    pub hpda_z: u8,
    /// MAXR2T, one-based: R2Ts that may be outstanding per command, at least 1.
    pub max_r2t: u16,
    /// Command identifiers in use are below this.
    pub queue_entries: u16,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            header_digest: false,
            data_digest: false,
            hpda_z: 0,
            max_r2t: 1,
            queue_entries: 128,
        }
    }
}

/// What data a command moves, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// None.
    None,
    /// So many bytes come by C2HData.
    ToHost(u32),
    /// So many bytes go by H2CData when the controller asks for them.
    ToController(u32),
    /// So many bytes follow the command at once; the driver keeps to the controller's IOCCSZ.
    InCapsule(u32),
}

/// What the controller did.
#[derive(Debug)]
pub enum Event<'a> {
    /// The connection is initialized: commands may be sent.
    Initialized,
    /// A command has completed; its identifier is free again.
    Response {
        /// Completion queue entry.
        completion: Completion,
        /// Bytes of data that came for it.
        received: u32,
        /// A data digest was wrong: the data is not to be used.
        digest_error: bool,
    },
    /// A part of a command's data; parts come in order.
    Data {
        /// Command identifier.
        cid: u16,
        /// Offset of `bytes` within the command's whole data.
        offset: u32,
        /// The data; may be empty when `end` is there.
        bytes: &'a [u8],
        /// The command's last data has come.
        end: Option<DataEnd>,
    },
    /// The controller asks for data: send PDUs by [`Connection::data_header`].
    ReadyToTransfer(Outgoing),
    /// The controller terminates the connection: close it without sending anything more.
    Terminated {
        /// Fatal Error Status; 0 if the controller's PDU was itself malformed.
        fes: FatalError,
        /// Fatal Error Information.
        fei: u32,
    },
}

/// All data of a command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataEnd {
    /// Command identifier.
    pub cid: u16,
    /// The command has completed successfully, without CapsuleResp; its identifier is free again.
    pub success: bool,
    /// A data digest was wrong: the data is not to be used.
    pub digest_error: bool,
}

/// Data that the controller has asked for and that is still to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Command identifier.
    pub cid: u16,
    /// Transfer tag of the R2T.
    pub tag: u16,
    /// Offset of the rest within the command's whole data.
    pub offset: u32,
    /// Bytes still to be sent.
    pub remaining: u32,
}

/// One H2CData PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingPdu {
    /// Bytes of header, digest and padding written.
    pub header_bytes: usize,
    /// Offset of its data within the command's whole data.
    pub offset: u32,
    /// Bytes of data that follow the header.
    pub len: u32,
}

/// The protocol state of one connection.
#[derive(Debug)]
pub struct Connection {
    /// Common header of a CapsuleResp without digest; compared as one word.
    plain_response: u64,
    phase: Phase,
    payload: Payload,
    /// SUCCESS and LAST of the PDU that `payload` is of.
    payload_flags: u8,
    /// How the controller sends: data aligned to HPDA.
    receives: Format,
    /// How we send: data aligned to CPDA.
    sends: Format,
    max_h2c_data: u32,
    slots: Box<[Slot]>,
    config: Config,
}

/// One command in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    state: SlotState,
    digest_error: bool,
    /// R2Ts whose data has not all been sent.
    r2ts: u16,
    /// Offset up to which data has come or has been asked for.
    next: u32,
    /// Length of the command's data.
    len: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotState {
    #[default]
    Free,
    /// In flight; no PDUs but its response are expected.
    Plain,
    ToHost,
    ToController,
}

/// No PDU starts like this: type FFh.
const NO_RESPONSE: u64 = u64::MAX;

impl Connection {
    /// A connection that was just established.
    ///
    /// # Panics
    /// If `config` is out of the ranges that its fields state.
    pub fn new(config: Config) -> Connection {
        assert!(config.hpda_z <= ALIGNMENT_Z_MAX);
        assert!(config.max_r2t >= 1);
        Connection {
            plain_response: NO_RESPONSE,
            phase: Phase::Start,
            payload: Payload::NONE,
            payload_flags: 0,
            receives: Format::PLAIN,
            sends: Format::PLAIN,
            max_h2c_data: 0,
            slots: vec![Slot::default(); usize::from(config.queue_entries)].into(),
            config,
        }
    }

    /// The ICReq, to be sent first.
    pub fn initialize(&self) -> [u8; 128] {
        let hlen = size_of::<IcReq>();
        let request = IcReq {
            common: Format::PLAIN.common(Kind::IC_REQ, hlen, 0, &Format::PLAIN.frame(hlen, 0)),
            pfv: 0.into(),
            hpda_z: self.config.hpda_z,
            dgst: if self.config.header_digest { dgst::HEADER } else { 0 }
                | if self.config.data_digest { dgst::DATA } else { 0 },
            maxr2t_z: u32::from(self.config.max_r2t - 1).into(),
            reserved: [0; 112],
        };
        zerocopy::transmute!(request)
    }

    /// Consumes bytes from the front of `input` up to the next event.
    ///
    /// `Ok(None)`: more bytes are needed. What is then left in `input` is the beginning of a PDU,
    /// to be given again with more behind it; at most [`INPUT_BYTES_MAX`].
    ///
    /// # Errors
    /// The controller broke the protocol. From then on all input is dropped.
    #[inline]
    pub fn receive<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Terminate> {
        if self.phase == Phase::Ready
            && let Some((bytes, rest)) = input.split_first_chunk::<{ size_of::<CapsuleResp>() }>()
            && bytes[..8] == self.plain_response.to_le_bytes()
        {
            // The common case: a response without digest.
            let capsule = CapsuleResp::read_from_bytes(bytes).expect("sizes are equal");
            if let Ok(event) = self.complete(&capsule.completion) {
                *input = rest;
                return Ok(Some(event));
            }
        }
        self.receive_any(input)
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
                    // The digest of a PDU that is not the command's last: go on behind it.
                    None if self.phase == Phase::Ready => continue,
                    event => return Ok(event),
                },
                Phase::Start | Phase::Ready => self.receive_pdu(input),
            };
            return match result {
                // The header of a C2HData PDU.
                Ok(None) if self.phase == Phase::Payload => continue,
                Ok(event) => Ok(event),
                Err(fault) => {
                    self.phase = Phase::Closed;
                    *input = &[];
                    Err(Terminate::new(Kind::H2C_TERM_REQ, fault, pdu))
                }
            };
        }
    }

    fn receive_pdu<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Fault> {
        let pdu = *input;
        let Ok((common, _)) = CommonHeader::read_from_prefix(pdu) else { return Ok(None) };
        match common.kind {
            Kind::C2H_TERM_REQ => {
                let Some((fes, fei)) = terminate::parse(&common, pdu) else { return Ok(None) };
                *input = &[];
                self.phase = Phase::Closed;
                return Ok(Some(Event::Terminated { fes, fei }));
            }
            Kind::IC_RESP | Kind::CAPSULE_RESP | Kind::C2H_DATA | Kind::R2T => {}
            _ => return Err(Fault::field(at::KIND)),
        }
        if (common.kind == Kind::IC_RESP) != (self.phase == Phase::Start) {
            return Err(Fault::plain(FatalError::PDU_SEQUENCE));
        }
        let frame = self.receives.check(&common)?;
        let success_without_last = common.flags & (flags::SUCCESS | flags::LAST) == flags::SUCCESS;
        if success_without_last {
            return Err(Fault::field(at::FLAGS));
        }
        let Some((header, rest)) = pdu.split_at_checked(frame.data_offset) else {
            return Ok(None);
        };
        *input = rest;
        self.receives.check_header_digest(header, usize::from(common.hlen))?;
        const CHECKED: &str = "HLEN was checked";
        match common.kind {
            Kind::IC_RESP => {
                let (response, _) = IcResp::read_from_prefix(header).expect(CHECKED);
                self.initialized(&response)?;
                Ok(Some(Event::Initialized))
            }
            Kind::CAPSULE_RESP => {
                let (capsule, _) = CapsuleResp::read_from_prefix(header).expect(CHECKED);
                self.complete(&capsule.completion).map(Some)
            }
            Kind::R2T => {
                let (request, _) = R2t::read_from_prefix(header).expect(CHECKED);
                self.requested(&request).map(|outgoing| Some(Event::ReadyToTransfer(outgoing)))
            }
            _ => {
                let (data, _) = C2hData::read_from_prefix(header).expect(CHECKED);
                self.check_data(&data, frame.data_bytes)?;
                let pending = Pending {
                    key: data.cccid.get(),
                    offset: data.datao.get(),
                    remaining: data.datal.get(),
                };
                self.payload = Payload::new(pending, &frame, false);
                self.payload_flags = common.flags;
                self.phase = Phase::Payload;
                Ok(None)
            }
        }
    }

    /// Section 3.6.2.3.
    fn initialized(&mut self, response: &IcResp) -> Result<(), Fault> {
        if response.pfv.get() != 0 {
            return Err(Fault::unsupported(8));
        }
        if response.cpda_z > ALIGNMENT_Z_MAX {
            return Err(Fault::field(10));
        }
        let header_digest = response.dgst & dgst::HEADER != 0;
        let data_digest = response.dgst & dgst::DATA != 0;
        if header_digest && !self.config.header_digest || data_digest && !self.config.data_digest {
            // A digest that was not asked for.
            return Err(Fault::field(11));
        }
        let max_h2c_data = response.maxh2cdata.get();
        if max_h2c_data < MAX_H2C_DATA_MIN {
            return Err(Fault::field(12));
        }
        // PDUs after the first of a transfer start at a dword.
        self.max_h2c_data = max_h2c_data & !3;
        let hpda_z = self.config.hpda_z;
        self.receives = Format { header_digest, data_digest, alignment_z: hpda_z };
        self.sends = Format { header_digest, data_digest, alignment_z: response.cpda_z };
        if !header_digest {
            let hlen = size_of::<CapsuleResp>();
            let frame = self.receives.frame(hlen, 0);
            let common = self.receives.common(Kind::CAPSULE_RESP, hlen, 0, &frame);
            self.plain_response = u64::from_le_bytes(zerocopy::transmute!(common));
        }
        self.phase = Phase::Ready;
        Ok(())
    }

    #[inline]
    fn slot(&mut self, cid: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(cid)).filter(|slot| slot.state != SlotState::Free)
    }

    #[inline]
    fn complete<'a>(&mut self, completion: &Completion) -> Result<Event<'a>, Fault> {
        // The CID is at bytes 12 and 13 of the entry, which is at byte 8.
        let slot = self.slot(completion.cid.get()).ok_or(Fault::field(20))?;
        let received = if slot.state == SlotState::ToHost { slot.next } else { 0 };
        let digest_error = slot.digest_error;
        slot.state = SlotState::Free;
        Ok(Event::Response { completion: *completion, received, digest_error })
    }

    /// Checks an R2T against its command (section 3.6.2.8).
    fn requested(&mut self, request: &R2t) -> Result<Outgoing, Fault> {
        let max_r2t = self.config.max_r2t;
        let (cid, tag) = (request.cccid.get(), request.ttag.get());
        let (offset, remaining) = (request.r2to.get(), request.r2tl.get());
        let slot = self.slot(cid).filter(|slot| slot.state == SlotState::ToController);
        let slot = slot.ok_or(Fault::field(8))?;
        if remaining == 0 {
            return Err(Fault::field(16));
        }
        let end = u64::from(offset) + u64::from(remaining);
        if end > u64::from(slot.len) {
            return Err(Fault::plain(FatalError::DATA_OUT_OF_RANGE));
        }
        if offset != slot.next {
            return Err(Fault::plain(FatalError::PDU_SEQUENCE));
        }
        if slot.r2ts >= max_r2t {
            return Err(Fault::plain(FatalError::R2T_LIMIT_EXCEEDED));
        }
        slot.r2ts += 1;
        slot.next = end as u32;
        Ok(Outgoing { cid, tag, offset, remaining })
    }

    /// Checks a C2HData header against its command (section 3.6.2.7); advances the command.
    fn check_data(&mut self, data: &C2hData, data_bytes: usize) -> Result<(), Fault> {
        let (offset, len) = (data.datao.get(), data.datal.get());
        let slot = self.slot(data.cccid.get()).filter(|slot| slot.state == SlotState::ToHost);
        let slot = slot.ok_or(Fault::field(8))?;
        if len as usize != data_bytes {
            return Err(Fault::field(16));
        }
        let end = u64::from(offset) + u64::from(len);
        if end > u64::from(slot.len) {
            return Err(Fault::plain(FatalError::DATA_OUT_OF_RANGE));
        }
        let last = end == u64::from(slot.len);
        if offset != slot.next || last != (data.common.flags & flags::LAST != 0) {
            return Err(Fault::plain(FatalError::PDU_SEQUENCE));
        }
        slot.next = end as u32;
        Ok(())
    }

    fn receive_payload<'a>(&mut self, input: &mut &'a [u8]) -> Option<Event<'a>> {
        let cid = self.payload.pending.key;
        match self.payload.step(input) {
            Step::Starved => None,
            Step::Data { offset, bytes, end } => {
                let end = end.and_then(|wrong| self.end_payload(wrong));
                if bytes.is_empty() && end.is_none() {
                    return None;
                }
                Some(Event::Data { cid, offset, bytes, end })
            }
        }
    }

    /// The PDU's data and digest are in: the next PDU follows.
    fn end_payload(&mut self, digest_error: bool) -> Option<DataEnd> {
        self.phase = Phase::Ready;
        let cid = self.payload.pending.key;
        let slot = &mut self.slots[usize::from(cid)];
        slot.digest_error |= digest_error;
        if self.payload_flags & flags::LAST == 0 {
            return None;
        }
        let success = self.payload_flags & flags::SUCCESS != 0;
        if success {
            slot.state = SlotState::Free;
        }
        Some(DataEnd { cid, success, digest_error: slot.digest_error })
    }

    /// In the middle of C2HData: where its rest belongs, for a driver that receives it straight
    /// into the command's buffer. `key` is the command identifier. A digest that follows comes to
    /// [`Connection::receive`].
    #[inline]
    pub fn payload_pending(&self) -> Option<Pending> {
        let show = self.phase == Phase::Payload && self.payload.pending.remaining != 0;
        show.then_some(self.payload.pending)
    }

    /// Notes that `bytes`, the next ones of the pending payload, were received by the driver.
    ///
    /// `Some` if the command's data is complete with them. With data digests this is never so:
    /// then the end comes as [`Event::Data`] from [`Connection::receive`].
    ///
    /// # Panics
    /// If no payload is pending or `bytes` are more than remain.
    #[inline]
    pub fn payload_received(&mut self, bytes: &[u8]) -> Option<DataEnd> {
        assert!(self.payload_pending().is_some(), "no payload is pending");
        if self.payload.received(bytes) { self.end_payload(false) } else { None }
    }

    /// Notes that `len` bytes of the pending payload were received where they cannot be seen from here, such as
    /// memory of the kernel. `Some` if the command's data is complete with them.
    ///
    /// # Panics
    /// If no payload is pending, `len` is more than remains, or data digests are in use.
    #[inline]
    pub fn payload_passed(&mut self, len: u32) -> Option<DataEnd> {
        assert!(self.payload_pending().is_some(), "no payload is pending");
        if self.payload.passed(len) { self.end_payload(false) } else { None }
    }

    /// So many bytes at least, and never more than there are, are still to come of the header that begins
    /// with `input`, which is what [`Connection::receive`] has left: who receives no more than that has
    /// not received any of the data behind it. Not for use while a payload is pending.
    pub fn header_missing(&self, input: &[u8]) -> usize {
        let end = match CommonHeader::read_from_prefix(input) {
            Ok((common, _)) if input.len() >= PDU_BYTES_MIN => match common.kind {
                Kind::C2H_DATA => usize::from(common.pdo),
                _ => common.plen.get() as usize,
            },
            _ => PDU_BYTES_MIN,
        };
        // What is wrong with a header that ends before it begins, `receive` says.
        end.saturating_sub(input.len()).clamp(1, INPUT_BYTES_MAX)
    }

    /// Writes the command capsule's header, digest and padding into `out` and gives their length.
    /// The data pointer and PSDT are set here. In-capsule data must follow, then its
    /// [`crate::Digest`] if [`Connection::data_digest`].
    ///
    /// # Panics
    /// If the connection is not initialized, or the command's identifier is not below the queue's
    /// entries or is in flight.
    #[inline]
    pub fn command(
        &mut self,
        command: &Command,
        transfer: Transfer,
        out: &mut [u8; COMMAND_HEADER_BYTES_MAX],
    ) -> usize {
        assert!(self.phase == Phase::Ready || self.phase == Phase::Payload, "not initialized");
        let cid = command.cid.get();
        let slot = &mut self.slots[usize::from(cid)];
        assert!(slot.state == SlotState::Free, "command identifier {cid} is in flight");
        let (state, len, in_capsule) = match transfer {
            Transfer::None => (SlotState::Plain, 0, 0),
            Transfer::ToHost(len) => (SlotState::ToHost, len, 0),
            Transfer::ToController(len) => (SlotState::ToController, len, 0),
            Transfer::InCapsule(len) => (SlotState::Plain, len, len),
        };
        *slot = Slot { state, digest_error: false, r2ts: 0, next: 0, len };
        let descriptor = match transfer {
            Transfer::InCapsule(len) => Descriptor::InCapsule { offset: 0, len },
            _ => Descriptor::Transport { len },
        };
        let hlen = size_of::<CapsuleCmd>();
        let frame = self.sends.frame(hlen, in_capsule as usize);
        let capsule = CapsuleCmd {
            common: self.sends.common(Kind::CAPSULE_CMD, hlen, 0, &frame),
            command: Command {
                flags: command.flags & 0x3f | PSDT_SGL,
                dptr: descriptor.emit(),
                ..*command
            },
        };
        self.sends.emit(capsule.as_bytes(), &frame, out)
    }

    /// Command `cid` is not sent after all: not a byte of its capsule was. Its identifier is free again.
    ///
    /// # Panics
    /// If it is not in flight.
    pub fn withdraw(&mut self, cid: u16) {
        let slot = self.slot(cid).expect("a command that is withdrawn is in flight");
        slot.state = SlotState::Free;
    }

    /// Writes the next H2CData PDU's header, digest and padding for `outgoing` into `out`; `None`
    /// when all was sent. The data must follow, then its [`crate::Digest`] if
    /// [`Connection::data_digest`].
    ///
    /// # Panics
    /// If the command is not in flight: when it completes early, the driver drops its `outgoing`
    /// (a PDU whose header it has sent must be sent whole).
    #[inline]
    pub fn data_header(
        &mut self,
        outgoing: &mut Outgoing,
        out: &mut [u8; DATA_HEADER_BYTES_MAX],
    ) -> Option<OutgoingPdu> {
        if outgoing.remaining == 0 {
            return None;
        }
        let Outgoing { cid, tag, offset, remaining } = *outgoing;
        let len = remaining.min(self.max_h2c_data);
        let last = len == remaining;
        outgoing.offset += len;
        outgoing.remaining -= len;
        let slot = self.slot(cid).expect("data is sent for commands in flight");
        if last {
            slot.r2ts -= 1;
        }
        let hlen = size_of::<H2cData>();
        let frame = self.sends.frame(hlen, len as usize);
        let more = if last { flags::LAST } else { 0 };
        let header = H2cData {
            common: self.sends.common(Kind::H2C_DATA, hlen, more, &frame),
            cccid: cid.into(),
            ttag: tag.into(),
            datao: offset.into(),
            datal: len.into(),
            reserved: [0; 4],
        };
        let header_bytes = self.sends.emit(header.as_bytes(), &frame, out);
        Some(OutgoingPdu { header_bytes, offset, len })
    }

    /// Whether the ICResp has come.
    pub fn is_initialized(&self) -> bool {
        self.phase != Phase::Start
    }

    /// How the controller sends now.
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

    /// Whether data digests are in use.
    #[inline]
    pub fn data_digest(&self) -> bool {
        self.sends.data_digest
    }

    /// The digests, in words, that were asked for and that the controller does not use, as it may (section 3.6.2.3).
    /// Nothing was promised then: whoever asked should not go on as if it were. Known once initialized.
    pub fn declined(&self) -> Option<&'static str> {
        let header = self.config.header_digest && !self.header_digest();
        let data = self.config.data_digest && !self.data_digest();
        match (header, data) {
            (false, false) => None,
            (true, false) => Some("header digests"),
            (false, true) => Some("data digests"),
            (true, true) => Some("header digests and data digests"),
        }
    }

    /// MAXH2CDATA: most data in one H2CData PDU in bytes, rounded down to dwords.
    pub fn max_h2c_data(&self) -> u32 {
        self.max_h2c_data
    }
}
