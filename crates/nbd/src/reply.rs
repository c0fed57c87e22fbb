//! Replies of the transmission phase as bytes.

use crate::failure::Failure;
use crate::wire::{CHUNK_DONE, ChunkHeader, Descriptor, SimpleReply, chunk, magic};
use std::io::Write;
use zerocopy::IntoBytes;
use zerocopy::big_endian::U64;

/// Most bytes of words in an error chunk.
const WORDS_MAX: usize = 128;

/// Most bytes of a reply without data.
pub const REPLY_BYTES_MAX: usize = 20 + 6 + WORDS_MAX;

/// Most bytes before the data of a read.
pub const HEADER_BYTES_MAX: usize = 28;

/// The metadata context id of `base:allocation`.
pub const ALLOCATION_CONTEXT: u32 = 1;

/// A simple reply: the whole of it, or what comes before the data of a read.
#[inline]
pub fn simple(cookie: u64, failure: Option<Failure>) -> [u8; 16] {
    let error = failure.map_or(0, |failure| failure.code as u32);
    let reply = SimpleReply {
        magic: magic::SIMPLE_REPLY.into(),
        error: error.into(),
        cookie: cookie.into(),
    };
    zerocopy::transmute!(reply)
}

#[inline]
fn header(cookie: u64, kind: u16, length: usize, is_last: bool) -> ChunkHeader {
    ChunkHeader {
        magic: magic::STRUCTURED_REPLY.into(),
        flags: if is_last { CHUNK_DONE } else { 0 }.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        length: u32::try_from(length).expect("chunks are at most 32 MiB").into(),
    }
}

/// What comes before `length` bytes of data from `offset` on in a chunk of its own.
#[inline]
pub fn data_header(cookie: u64, offset: u64, length: u32, is_last: bool) -> [u8; HEADER_BYTES_MAX] {
    let head = header(cookie, chunk::OFFSET_DATA, length as usize + 8, is_last);
    let mut bytes = [0; HEADER_BYTES_MAX];
    bytes[..20].copy_from_slice(head.as_bytes());
    bytes[20..].copy_from_slice(U64::new(offset).as_bytes());
    bytes
}

/// The end of a structured reply, of which all chunks were sent or none is needed.
pub fn end(cookie: u64) -> [u8; 20] {
    zerocopy::transmute!(header(cookie, chunk::NONE, 0, true))
}

/// An error that ends a structured reply; returns how many of `bytes` it takes.
pub fn error(cookie: u64, failure: Failure, bytes: &mut [u8; REPLY_BYTES_MAX]) -> usize {
    let (head, words) = bytes.split_at_mut(26);
    let mut rest = &mut words[..];
    // Words that do not fit are cut off, in the middle of no character: all of them are ASCII.
    let _ = write!(rest, "{failure}");
    let length = WORDS_MAX - rest.len();
    head[..20].copy_from_slice(header(cookie, chunk::ERROR, 6 + length, true).as_bytes());
    head[20..24].copy_from_slice(&(failure.code as u32).to_be_bytes());
    head[24..].copy_from_slice(&(length as u16).to_be_bytes());
    26 + length
}

/// A reply that describes extents; appended to `bytes`.
pub fn block_status(cookie: u64, descriptors: &[Descriptor], bytes: &mut Vec<u8>) {
    let length = 4 + size_of_val(descriptors);
    bytes.extend_from_slice(header(cookie, chunk::BLOCK_STATUS, length, true).as_bytes());
    bytes.extend_from_slice(&ALLOCATION_CONTEXT.to_be_bytes());
    bytes.extend_from_slice(descriptors.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Code;
    use nvme::Status;
    use zerocopy::FromBytes;

    #[test]
    fn errors_tell_the_volumes_own_words() {
        let mut bytes = [0; REPLY_BYTES_MAX];
        let failure = Failure::of(Status::WRITE_FAULT.dnr(), true);
        let length = error(9, failure, &mut bytes);
        let (head, payload) = ChunkHeader::ref_from_prefix(&bytes[..length]).unwrap();
        assert_eq!((head.kind.get(), head.cookie.get()), (chunk::ERROR, 9));
        assert_eq!(head.length.get() as usize, payload.len());
        assert_eq!(payload[..4], 5u32.to_be_bytes());
        assert_eq!(payload[4..6], (payload.len() as u16 - 6).to_be_bytes());
        let words = std::str::from_utf8(&payload[6..]).unwrap();
        assert_eq!(words, Status::WRITE_FAULT.dnr().to_string());
    }

    #[test]
    fn long_words_are_cut_off() {
        let mut bytes = [0; REPLY_BYTES_MAX];
        let long = "word ".repeat(99).leak();
        let length = error(9, Failure::refused(Code::Io, long), &mut bytes);
        assert_eq!(length, REPLY_BYTES_MAX);
        assert_eq!(&bytes[26..], &long.as_bytes()[..WORDS_MAX]);
    }
}
