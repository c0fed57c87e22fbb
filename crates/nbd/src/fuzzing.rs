//! Body of the fuzz target in fuzz/: what must hold whatever a client sends.
//!
//! The fuzzer's bytes are a script that makes a client's stream: raw bytes, options that are framed
//! well, requests that are framed well. The stream is fed to the machines twice, whole and cut to
//! pieces, and both must understand the same. What passes the checks lies within the export, and
//! is cut into commands that cover it.

use crate::export::{Exports, PAYLOAD_MAX, Session, transmission_flags};
use crate::extents;
use crate::failure::{Failure, Misbehaved};
use crate::handshake::{Handshake, OPTION_BYTES_MAX, Progress};
use crate::pieces::{self, Piece};
use crate::request::{Request, Transmission};
use crate::wire::{OptionHeader, OptionReply, RequestHeader, command, magic};
use namespace::Run;
use nvme::Limits;
use nvme::limits::{Commands, DiscardLimits, Passthrough};
use zerocopy::{FromBytes, IntoBytes};

/// Replies to one option: two exports with all there is to tell.
const REPLY_BYTES_MAX: usize = 1024;

/// Two exports, one of which is read-only.
struct Two;

impl Exports for Two {
    fn count(&self) -> usize {
        2
    }

    fn name(&self, index: usize) -> &str {
        ["a", "bb"][index]
    }

    fn description(&self, index: usize) -> &str {
        ["", "words"][index]
    }

    fn limits(&self, index: usize) -> Limits {
        Limits {
            block_shift: [9, 12][index],
            blocks: [u64::MAX >> 12, 3][index],
            transfer_bytes_max: 1 << 20,
            write_zeroes_bytes_max: u32::MAX,
            discard: DiscardLimits::UNLIMITED,
            optimal_write_bytes: [4096, 777][index],
            read_only: index == 1,
            volatile_write_cache: true,
            commands: Commands { write_zeroes: true, deallocate: true, ..Commands::default() },
            copy: nvme::limits::CopyLimits::NONE,
            metadata_bytes: 0,
            passthrough: Passthrough::NONE,
            lends_reads: false,
            immediate: false,
        }
    }
}

/// The fuzzer's bytes as decisions; zeroes when they are used up.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let given = self.bytes(8);
        bytes[..given.len()].copy_from_slice(given);
        u64::from_le_bytes(bytes)
    }
}

/// What a client that follows `script` sends.
fn stream(script: &mut Script<'_>) -> Vec<u8> {
    let mut stream = Vec::new();
    if script.byte() & 7 != 0 {
        stream.extend(3u32.to_be_bytes());
    }
    while !script.0.is_empty() && stream.len() < 1 << 20 {
        let choice = script.byte();
        match choice >> 6 {
            0 => stream.extend(script.bytes(usize::from(choice & 63))),
            1 | 2 => {
                let length = usize::from(script.byte());
                let data = script.bytes(length);
                let head = OptionHeader {
                    magic: magic::OPTION.into(),
                    option: u32::from(choice & 15).into(),
                    length: (data.len() as u32).into(),
                };
                stream.extend(head.as_bytes());
                stream.extend(data);
            }
            _ => {
                let length = script.number() as u32 >> (choice & 31);
                let kind = u16::from(script.byte() & 15);
                let head = RequestHeader {
                    magic: magic::REQUEST.into(),
                    flags: u16::from(script.byte()).into(),
                    kind: kind.into(),
                    cookie: 1.into(),
                    offset: (script.number() >> (script.byte() & 63)).into(),
                    length: length.into(),
                };
                stream.extend(head.as_bytes());
                if kind == command::WRITE {
                    stream.resize(stream.len() + (length as usize).min(1 << 17), 7);
                }
            }
        }
    }
    stream
}

/// What was understood of a stream.
#[derive(Debug, Default, PartialEq)]
struct Understood {
    replies: Vec<u8>,
    session: Option<Session>,
    requests: Vec<(Request, Option<Failure>)>,
    error: Option<Misbehaved>,
    aborted: bool,
}

/// A server's ears: the machines as a connection uses them.
#[derive(Default)]
struct Server {
    handshake: Handshake,
    transmission: Option<Transmission>,
    held: Vec<u8>,
    understood: Understood,
}

impl Server {
    fn is_over(&self) -> bool {
        self.understood.error.is_some() || self.understood.aborted
    }

    fn hear(&mut self, bytes: &[u8]) {
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(bytes);
        let mut input = &held[..];
        while !self.is_over() {
            let before = input.len();
            match self.step(&mut input) {
                Ok(true) => assert!(input.len() < before, "progress without bytes"),
                Ok(false) => break,
                Err(error) => self.understood.error = Some(error),
            }
        }
        assert!(self.is_over() || input.len() < 16 + OPTION_BYTES_MAX as usize, "bounded memory");
        self.held = input.to_vec();
    }

    /// One message. Whether there may be another.
    fn step(&mut self, input: &mut &[u8]) -> Result<bool, Misbehaved> {
        let Some(transmission) = &mut self.transmission else {
            let before = self.understood.replies.len();
            let progress = self.handshake.receive(input, &Two, &mut self.understood.replies)?;
            assert!(self.understood.replies.len() - before <= REPLY_BYTES_MAX, "bounded replies");
            match progress {
                Progress::Incomplete => return Ok(false),
                Progress::Answered => {}
                Progress::Aborted => self.understood.aborted = true,
                Progress::Agreed(session) => {
                    agreed(&session);
                    self.understood.session = Some(session);
                    self.transmission = Some(Transmission::new(session));
                }
            }
            return Ok(true);
        };
        let payload = input.len().min(transmission.payload_left() as usize);
        if transmission.payload_left() > 0 {
            transmission.payload_taken(payload);
            *input = &input[payload..];
            return Ok(payload > 0);
        }
        let Some((request, refusal)) = transmission.receive(input)? else { return Ok(false) };
        if refusal.is_none() {
            passed(&request, transmission.session());
        }
        self.understood.requests.push((request, refusal));
        Ok(true)
    }
}

/// A session is what the export allows.
fn agreed(session: &Session) {
    let limits = Two.limits(session.export);
    assert_eq!(session.bytes, limits.bytes());
    assert_eq!(session.flags, transmission_flags(&limits, session.structured));
    assert!(session.alignment == 1 || session.alignment == limits.block_bytes());
    assert!(session.structured || !session.has_allocation);
}

/// A request that is not refused can be carried out.
fn passed(request: &Request, session: &Session) {
    if matches!(request.kind, command::FLUSH | command::DISC) {
        return;
    }
    let limits = Two.limits(session.export);
    let (shift, end) = (limits.block_shift, request.end());
    assert!(end <= session.bytes);
    assert!(!(request.writes() && limits.read_only));
    assert!(request.kind != command::READ || request.length <= PAYLOAD_MAX);
    let next = |at: u64| -> Option<Piece> {
        match request.kind {
            _ if at >= end => None,
            command::TRIM => pieces::within(at, end, shift, 1 << 20),
            command::WRITE | command::WRITE_ZEROES => Some(pieces::exact(at, end, shift, 2048)),
            _ => Some(pieces::covering(at, end, shift, 2048)),
        }
    };
    let mut at = request.offset;
    // The first pieces stand for the others.
    for _ in 0..20 {
        let Some(piece) = next(at) else { break };
        assert!(piece.offset >= at && piece.end() > at && piece.end() <= end);
        assert!(piece.slba + u64::from(piece.blocks) <= limits.blocks, "within the volume");
        at = piece.end();
    }
    if request.kind == command::BLOCK_STATUS {
        let runs = [1, 7, u64::MAX].map(|blocks| Run { blocks, is_stored: blocks == 7 });
        let mut descriptors = Vec::new();
        extents::describe(&runs, request.offset, request.length, shift, &mut descriptors);
        let sum: u64 = descriptors.iter().map(|it| u64::from(it.length.get())).sum();
        assert_eq!(sum, u64::from(request.length));
        assert!(descriptors.iter().all(|it| it.length.get() > 0));
    }
}

/// Replies to options are framed well; after them comes at most the answer to `EXPORT_NAME`.
fn framed(understood: &Understood) {
    let mut rest = &understood.replies[..];
    while let Ok((head, data)) = OptionReply::read_from_prefix(rest) {
        if head.magic.get() != magic::OPTION_REPLY {
            break;
        }
        rest = &data[head.length.get() as usize..];
    }
    let old = understood.session.is_some() && matches!(rest.len(), 10 | 134);
    assert!(rest.is_empty() || old, "{} bytes after the replies", rest.len());
}

/// Has a client follow the script in `bytes`.
pub fn fuzz_nbd(bytes: &[u8]) {
    let mut script = Script(bytes);
    let cut = 1 + usize::from(script.byte());
    let stream = stream(&mut script);
    let mut whole = Server::default();
    whole.hear(&stream);
    let mut pieces = Server::default();
    for part in stream.chunks(cut) {
        if !pieces.is_over() {
            pieces.hear(part);
        }
    }
    assert_eq!(whole.understood, pieces.understood);
    framed(&whole.understood);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_a_client_sends(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            fuzz_nbd(&bytes);
        }
    }

    #[test]
    fn a_good_client_is_understood() {
        // Flags, structured replies, GO for the first export, a read, a write.
        let mut script = vec![3, 1, 0x48, 0, 0x47, 6, 0, 0, 0, 0, 0, 0];
        for kind in [0, 1] {
            script.extend([0xc0, 0, 2, 0, 0, 0, 0, 0, 0, kind, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        }
        let stream = stream(&mut Script(&script[1..]));
        let mut server = Server::default();
        server.hear(&stream);
        assert_eq!(server.understood.error, None);
        assert!(server.understood.session.is_some());
        assert_eq!(server.understood.requests.len(), 2);
        fuzz_nbd(&script);
    }
}
