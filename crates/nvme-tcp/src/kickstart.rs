//! Kickstart discovery: a direct discovery controller (DDC) asks a centralized one (CDC) to fetch its discovery log.
//!
//! ```text
//!   DDC                                   CDC
//!    | ICReq (KDCONN) -----------------> |
//!    | <------------------------- ICResp |
//!    | KDReq (ways to the DDC) --------> |
//!    | <---- KDResp (its NQN, or why not) |
//!    | close                             |
//!    | <----- Connect, Get Log Page 70h  |   on a connection of its own
//! ```
//!
//! Source of the sequence: NVMe Base 2.1, section 8.3.2.2.2.1. Of the fields: the PDUs as the client `acdc`
//! (github.com/hreinecke/acdc) has them. That client takes a KDResp of 10 + 264 bytes and reads the CDC's NQN, a field of
//! 256, right behind the header. Whether the eight bytes that are left come before or behind it is nothing that can be seen
//! there, so both are taken: PDO says where, and where it does not, the first byte that is not zero. It sets bit 6 of KDReq's
//! FLAGS, which has no name there; it is zero here.
//!
//! What it does not do: the CDC's end, and sockets.

use crate::frame::{Format, at};
use crate::pdu::{CommonHeader, IcReq, IcResp, KdReq, KdResp, KickstartRecord, Kind, flags};
use crate::terminate::{self, FatalError, Fault, Terminate};
use std::fmt;
use zerocopy::{FromBytes, IntoBytes};

/// Most records of one KDReq: its length then stays below 64 KiB.
pub const RECORDS_MAX: usize = 128;
/// Length of a KDResp, and so the most that [`Connection::receive`] leaves in its input.
pub const INPUT_BYTES_MAX: usize = RESPONSE_BYTES;

const RESPONSE_BYTES: usize = 274;
/// Length of an NQN's field.
const NQN_BYTES: usize = 256;
/// CDCNQN begins here at the latest.
const NQN_AT_MAX: usize = RESPONSE_BYTES - NQN_BYTES;

/// Why a CDC takes no registration (FAILRSN): a bit for each reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailureReason(pub u8);

impl FailureReason {
    /// Insufficient Discovery Resources: it has no room for so many entries.
    pub const INSUFFICIENT_RESOURCES: FailureReason = FailureReason(1 << 6);

    const WORDS: [(u8, &'static str); 6] = [
        (1 << 1, "no information"),
        (1 << 2, "invalid transport type"),
        (1 << 3, "invalid address family"),
        (1 << 4, "address family does not match"),
        (1 << 5, "transport service id does not match"),
        (1 << 6, "insufficient discovery resources"),
    ];
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words =
            Self::WORDS.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, words)| *words);
        let words: Vec<&str> = words.collect();
        if words.is_empty() {
            write!(f, "reason {:#04x}", self.0)
        } else {
            f.write_str(&words.join(", "))
        }
    }
}

/// What the CDC did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The connection is initialized: send [`Connection::request`].
    Initialized,
    /// It is going to fetch the log. Close the connection.
    Accepted {
        /// Its NQN (CDCNQN).
        cdc_nqn: String,
    },
    /// It will not. Close the connection.
    Refused(FailureReason),
    /// It terminates the connection: close it without sending anything more.
    Terminated {
        /// Fatal Error Status; 0 if its PDU was itself malformed.
        fes: FatalError,
        /// Fatal Error Information.
        fei: u32,
    },
}

/// The DDC's end of a connection for kickstart discovery.
#[derive(Debug)]
pub struct Connection {
    phase: Phase,
    sends: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Start,
    Initialized,
    Closed,
}

impl Connection {
    /// A connection that was just established.
    #[expect(clippy::new_without_default, reason = "a connection is made where there is one")]
    pub fn new() -> Connection {
        Connection { phase: Phase::Start, sends: Format::PLAIN }
    }

    /// The ICReq, to be sent first: without digests.
    pub fn initialize(&self) -> [u8; 128] {
        let hlen = size_of::<IcReq>();
        let frame = Format::PLAIN.frame(hlen, 0);
        let request = IcReq {
            common: Format::PLAIN.common(Kind::IC_REQ, hlen, flags::KDCONN, &frame),
            pfv: 0.into(),
            hpda_z: 0,
            dgst: 0,
            maxr2t_z: 0.into(),
            reserved: [0; 112],
        };
        zerocopy::transmute!(request)
    }

    /// The KDReq, to be sent once after [`Event::Initialized`]: `entries` is how many entries the log has that is to be fetched
    /// by one of the ways in `records`.
    ///
    /// # Panics
    /// If there are no records, or more than [`RECORDS_MAX`].
    pub fn request(&self, records: &[KickstartRecord], entries: u16) -> Vec<u8> {
        assert!((1..=RECORDS_MAX).contains(&records.len()));
        let hlen = size_of::<KdReq>();
        let frame = self.sends.frame(hlen, size_of_val(records));
        let request = KdReq {
            common: self.sends.common(Kind::KD_REQ, hlen, 0, &frame),
            numkr: (records.len() as u16).into(),
            numdie: entries.into(),
        };
        let mut pdu = vec![0; frame.bytes()];
        self.sends.emit(request.as_bytes(), &frame, &mut pdu);
        pdu[frame.data_offset..].copy_from_slice(records.as_bytes());
        pdu
    }

    /// Consumes bytes from the front of `input` up to the next event.
    ///
    /// `Ok(None)`: more bytes are needed. What is then left in `input` is the beginning of a PDU,
    /// to be given again with more behind it; at most [`INPUT_BYTES_MAX`].
    ///
    /// # Errors
    /// The CDC broke the protocol. From then on all input is dropped.
    pub fn receive(&mut self, input: &mut &[u8]) -> Result<Option<Event>, Terminate> {
        let pdu = *input;
        if self.phase == Phase::Closed {
            *input = &[];
            return Ok(None);
        }
        self.receive_pdu(input).map_err(|fault| {
            self.phase = Phase::Closed;
            *input = &[];
            Terminate::new(Kind::H2C_TERM_REQ, fault, pdu)
        })
    }

    fn receive_pdu(&mut self, input: &mut &[u8]) -> Result<Option<Event>, Fault> {
        let pdu = *input;
        let Ok((common, _)) = CommonHeader::read_from_prefix(pdu) else { return Ok(None) };
        let event = match (common.kind, self.phase) {
            (Kind::C2H_TERM_REQ, _) => {
                let Some((fes, fei)) = terminate::parse(&common, pdu) else { return Ok(None) };
                self.phase = Phase::Closed;
                *input = &[];
                return Ok(Some(Event::Terminated { fes, fei }));
            }
            (Kind::IC_RESP, Phase::Start) => {
                Format::PLAIN.check(&common)?;
                let Ok((response, rest)) = IcResp::read_from_prefix(pdu) else { return Ok(None) };
                *input = rest;
                self.sends = sends(&response)?;
                self.phase = Phase::Initialized;
                Event::Initialized
            }
            (Kind::KD_RESP, Phase::Initialized) => {
                check_response(&common)?;
                let Some((pdu, rest)) = pdu.split_first_chunk() else { return Ok(None) };
                *input = rest;
                let event = answer(&common, pdu)?;
                self.phase = Phase::Closed;
                event
            }
            (Kind::IC_RESP | Kind::KD_RESP, _) => {
                return Err(Fault::plain(FatalError::PDU_SEQUENCE));
            }
            _ => return Err(Fault::field(at::KIND)),
        };
        Ok(Some(event))
    }
}

/// How a CDC that has initialized the connection wants its KDReq.
fn sends(response: &IcResp) -> Result<Format, Fault> {
    use std::mem::offset_of;
    if response.pfv.get() != 0 {
        return Err(Fault::unsupported(offset_of!(IcResp, pfv) as u32));
    }
    if response.cpda_z > crate::pdu::ALIGNMENT_Z_MAX {
        return Err(Fault::field(offset_of!(IcResp, cpda_z) as u32));
    }
    // Digests were not asked for.
    if response.dgst != 0 {
        return Err(Fault::field(offset_of!(IcResp, dgst) as u32));
    }
    Ok(Format { alignment_z: response.cpda_z, ..Format::PLAIN })
}

fn check_response(common: &CommonHeader) -> Result<(), Fault> {
    if common.flags & (flags::HDGST | flags::DDGST) != 0 {
        return Err(Fault::field(at::FLAGS));
    }
    if usize::from(common.hlen) != size_of::<KdResp>() {
        return Err(Fault::field(at::HLEN));
    }
    if !(common.pdo == 0 || (size_of::<KdResp>()..=NQN_AT_MAX).contains(&usize::from(common.pdo))) {
        return Err(Fault::field(at::PDO));
    }
    if common.plen.get() as usize != RESPONSE_BYTES {
        return Err(Fault::field(at::PLEN));
    }
    Ok(())
}

fn answer(common: &CommonHeader, pdu: &[u8; RESPONSE_BYTES]) -> Result<Event, Fault> {
    let (response, _) = KdResp::read_from_prefix(pdu).expect("it is longer");
    match response.ksstat {
        0 => {}
        1 => return Ok(Event::Refused(FailureReason(response.failrsn))),
        _ => return Err(Fault::field(size_of::<CommonHeader>() as u32)),
    }
    let first = size_of::<KdResp>();
    let from = match usize::from(common.pdo) {
        0 => (first..NQN_AT_MAX).find(|at| pdu[*at] != 0).unwrap_or(NQN_AT_MAX),
        from => from,
    };
    let field = &pdu[from..from + NQN_BYTES];
    let len = field.iter().position(|byte| *byte == 0).unwrap_or(NQN_BYTES);
    let nqn = std::str::from_utf8(&field[..len]).ok();
    let nqn = nqn.filter(|nqn| !nqn.is_empty() && !nqn.contains(char::is_control));
    let cdc_nqn = nqn.ok_or(Fault::field(from as u32))?.to_owned();
    Ok(Event::Accepted { cdc_nqn })
}
