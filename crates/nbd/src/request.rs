//! The transmission phase as the server receives it: requests, and the data of writes.

use crate::export::{PAYLOAD_MAX, Session};
use crate::failure::{Code, Failure, Misbehaved};
use crate::wire::{RequestHeader, command, command_flag, magic, transmission_flag};
use zerocopy::FromBytes;

/// What a client asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The client's name for it.
    pub cookie: u64,
    /// What: [`command`].
    pub kind: u16,
    /// How: [`command_flag`].
    pub flags: u16,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

impl Request {
    /// One past the last byte.
    ///
    /// # Panics
    /// If the request was not checked and reaches beyond 2^64.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }

    /// Whether `flag` is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether it changes anything.
    pub fn writes(&self) -> bool {
        matches!(self.kind, command::WRITE | command::WRITE_ZEROES | command::TRIM)
    }
}

/// The receiving side of a connection after its handshake: cuts the stream into requests, and knows
/// how much of it is the data of a write.
#[derive(Debug)]
pub struct Transmission {
    session: Session,
    payload_left: u32,
}

impl Transmission {
    /// Begins with the first byte after the handshake.
    pub fn new(session: Session) -> Transmission {
        Transmission { session, payload_left: 0 }
    }

    /// What the handshake has agreed on.
    #[inline]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Bytes of a write that come before the next request.
    #[inline]
    pub fn payload_left(&self) -> u32 {
        self.payload_left
    }

    /// Notes that `count` of them were taken.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn payload_taken(&mut self, count: usize) {
        let count = u32::try_from(count).expect("a payload is at most 32 MiB");
        self.payload_left = self.payload_left.checked_sub(count).expect("no more than is left");
    }

    /// Takes the next request from `input`, with the reason if it has to be refused; `None` if it is
    /// not there in full. The data of a write is taken before (see [`Self::payload_left`]), that of a
    /// refused one too.
    ///
    /// # Panics
    /// If data of a write is left.
    #[inline]
    pub fn receive(
        &mut self,
        input: &mut &[u8],
    ) -> Result<Option<(Request, Option<Failure>)>, Misbehaved> {
        assert_eq!(self.payload_left, 0, "the data of a write comes first");
        let Ok((header, rest)) = RequestHeader::read_from_prefix(input) else { return Ok(None) };
        if header.magic.get() != magic::REQUEST {
            return Err(Misbehaved::RequestMagic(header.magic.get()));
        }
        *input = rest;
        let request = Request {
            cookie: header.cookie.get(),
            kind: header.kind.get(),
            flags: header.flags.get(),
            offset: header.offset.get(),
            length: header.length.get(),
        };
        if request.kind == command::WRITE {
            if request.length > PAYLOAD_MAX {
                return Err(Misbehaved::Payload(request.length));
            }
            self.payload_left = request.length;
        }
        Ok(Some((request, check(&request, &self.session).err())))
    }
}

/// Flags that a request of `kind` may have, if that is known.
fn allowed_flags(kind: u16) -> Option<u16> {
    let more = match kind {
        command::READ => command_flag::DF,
        command::BLOCK_STATUS => command_flag::REQ_ONE,
        command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
        command::WRITE | command::DISC | command::FLUSH | command::TRIM | command::CACHE => 0,
        _ => return None,
    };
    // "Existing clients are known to set this bit on other commands."
    Some(more | command_flag::FUA)
}

/// Refuses what the protocol, or what was agreed on, does not allow. What passes lies within the
/// export.
fn check(request: &Request, session: &Session) -> Result<(), Failure> {
    let refuse = |code, why| Err(Failure::refused(code, why));
    let Some(allowed) = allowed_flags(request.kind) else {
        return refuse(Code::Inval, "unknown command");
    };
    if request.flags & !allowed != 0
        || request.has(command_flag::DF) && !session.offers(transmission_flag::SEND_DF)
        || request.has(command_flag::FAST_ZERO)
            && !session.offers(transmission_flag::SEND_FAST_ZERO)
    {
        return refuse(Code::Inval, "a flag that this command does not have");
    }
    if matches!(request.kind, command::DISC | command::FLUSH) {
        return Ok(());
    }
    if request.writes() && session.offers(transmission_flag::READ_ONLY) {
        return refuse(Code::Perm, "the export is read-only");
    }
    let end = request.offset.checked_add(u64::from(request.length));
    if end.is_none_or(|end| end > session.bytes) {
        let code = match request.kind {
            command::WRITE | command::WRITE_ZEROES => Code::NoSpc,
            _ => Code::Inval,
        };
        return refuse(code, "beyond the end of the export");
    }
    let alignment = u64::from(session.alignment);
    if !(request.offset | u64::from(request.length)).is_multiple_of(alignment) {
        return refuse(Code::Inval, "not aligned to the minimum block size");
    }
    match request.kind {
        command::READ if request.length > PAYLOAD_MAX => {
            refuse(Code::Overflow, "more than the maximum payload size")
        }
        command::TRIM if !session.offers(transmission_flag::SEND_TRIM) => {
            refuse(Code::Inval, "the export does not trim")
        }
        command::CACHE if !session.offers(transmission_flag::SEND_CACHE) => {
            refuse(Code::Inval, "the export caches nothing")
        }
        command::WRITE_ZEROES if !session.offers(transmission_flag::SEND_WRITE_ZEROES) => {
            refuse(Code::Inval, "the export does not write zeroes")
        }
        command::BLOCK_STATUS if !session.has_allocation => {
            refuse(Code::Inval, "no metadata context was chosen")
        }
        command::BLOCK_STATUS if request.length == 0 => {
            refuse(Code::Inval, "the status of no block")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn session() -> Session {
        let flags = transmission_flag::HAS_FLAGS
            | transmission_flag::SEND_TRIM
            | transmission_flag::SEND_WRITE_ZEROES;
        Session {
            export: 0,
            bytes: 1 << 20,
            alignment: 512,
            flags,
            structured: false,
            has_allocation: false,
        }
    }

    fn header(kind: u16, flags: u16, offset: u64, length: u32) -> RequestHeader {
        RequestHeader {
            magic: magic::REQUEST.into(),
            flags: flags.into(),
            kind: kind.into(),
            cookie: 7.into(),
            offset: offset.into(),
            length: length.into(),
        }
    }

    fn code(session: Session, header: RequestHeader) -> Option<Code> {
        let mut input = header.as_bytes();
        let (request, refusal) = Transmission::new(session).receive(&mut input).unwrap().unwrap();
        assert!(input.is_empty());
        assert_eq!(request.cookie, 7);
        refusal.map(|refusal| refusal.code)
    }

    #[test]
    fn requests_are_checked_as_the_protocol_says() {
        let plain = session();
        let read_only = Session { flags: transmission_flag::READ_ONLY, ..plain };
        let end = 1 << 20;
        for (session, (kind, flags, offset, length), expected) in [
            (plain, (command::READ, 0, 0, 512), None),
            (plain, (command::READ, command_flag::FUA, end - 512, 512), None),
            (plain, (command::READ, 0, end, 512), Some(Code::Inval)),
            (plain, (command::READ, 0, u64::MAX - 511, 512), Some(Code::Inval)),
            (plain, (command::READ, 0, 1, 512), Some(Code::Inval)),
            (plain, (command::READ, 0, 0, 1), Some(Code::Inval)),
            (plain, (command::READ, command_flag::DF, 0, 512), Some(Code::Inval)),
            (plain, (command::WRITE, 0, end, 512), Some(Code::NoSpc)),
            (plain, (command::WRITE, 1 << 9, 0, 512), Some(Code::Inval)),
            (plain, (command::WRITE_ZEROES, command_flag::NO_HOLE, 0, 512), None),
            (plain, (command::WRITE_ZEROES, 0, end, 512), Some(Code::NoSpc)),
            (plain, (command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 512), Some(Code::Inval)),
            (plain, (command::TRIM, 0, 0, 1 << 20), None),
            (plain, (command::TRIM, 0, 512, 1 << 20), Some(Code::Inval)),
            (plain, (command::BLOCK_STATUS, 0, 0, 512), Some(Code::Inval)),
            (plain, (99, 0, 0, 512), Some(Code::Inval)),
            (plain, (command::FLUSH, 0, 0, 0), None),
            (read_only, (command::READ, 0, 0, 512), None),
            (read_only, (command::WRITE, 0, 0, 512), Some(Code::Perm)),
            (read_only, (command::TRIM, 0, 0, 512), Some(Code::Perm)),
        ] {
            let header = header(kind, flags, offset, length);
            assert_eq!(code(session, header), expected, "{header:?}");
        }
        let big = Session { bytes: 1 << 40, ..plain };
        let large = header(command::READ, 0, 0, PAYLOAD_MAX + 512);
        assert_eq!(code(big, large), Some(Code::Overflow));
    }

    #[test]
    fn who_sends_no_requests_or_endless_data_is_not_listened_to() {
        let mut transmission = Transmission::new(session());
        let bad = RequestHeader { magic: 1.into(), ..header(0, 0, 0, 0) };
        assert_eq!(transmission.receive(&mut bad.as_bytes()), Err(Misbehaved::RequestMagic(1)));
        let huge = header(command::WRITE, 0, 0, PAYLOAD_MAX + 1);
        let refused = transmission.receive(&mut huge.as_bytes());
        assert_eq!(refused, Err(Misbehaved::Payload(PAYLOAD_MAX + 1)));
    }

    #[test]
    fn the_data_of_a_refused_write_is_still_expected() {
        let mut transmission = Transmission::new(session());
        let write = header(command::WRITE, 0, 1, 700);
        let (_, refusal) = transmission.receive(&mut write.as_bytes()).unwrap().unwrap();
        assert!(refusal.is_some());
        transmission.payload_taken(600);
        assert_eq!(transmission.payload_left(), 100);
    }
}
