//! What a front door's connection has still to send: headers and responses packed into chunks,
//! data where it lies, and whatever must stay alive until the socket has taken it.

use crate::Data;
use reactor::Stream;
use std::collections::VecDeque;
use std::io::{self, IoSlice};

/// Size of the chunks that headers and responses are packed into.
pub const CHUNK_BYTES: usize = 16 * 1024;

/// A chunk: bytes at a stable address.
pub type Chunk = Box<[u8; CHUNK_BYTES]>;

/// Most segments that one `writev` takes (IOV_MAX).
const SEGMENTS_MAX: usize = 1024;

/// Spare outputs and chunks of one core. Idle connections hold none.
#[derive(Default)]
pub struct Spare {
    #[expect(clippy::vec_box, reason = "connections hold a pointer, not the whole")]
    outputs: Vec<Box<Output>>,
    chunks: Vec<Chunk>,
}

/// The payload of a response, kept until it is sent.
pub enum Payload {
    /// None.
    None,
    /// Data of an I/O command.
    Data(Data),
    /// Memory outside the buffer pool.
    Bytes(Vec<u8>),
}

/// Bytes on their way out. Those given to [`Output::borrowed`] are read until they are sent.
#[derive(Default)]
pub struct Output {
    segments: Vec<libc::iovec>,
    /// Per segment: the block size in bytes if it is lent memory, else zero.
    lent: Vec<u32>,
    /// First segment that is not fully sent, and how much of it (as first queued) was.
    first: usize,
    first_sent: usize,
    chunks: Vec<Chunk>,
    chunk_used: usize,
    held: VecDeque<Held>,
    /// Bytes of `Payload::Bytes` among them.
    heap_bytes: usize,
    queued: u64,
    sent: u64,
}

struct Held {
    /// Stream position at which this is sent.
    end: u64,
    slot: u32,
    payload: Payload,
}

/// How far a flush got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flushed {
    /// Everything is with the kernel.
    All,
    /// The socket takes no more; some was sent if `true`.
    Blocked(bool),
}

impl Spare {
    /// An empty output.
    pub fn take(&mut self) -> Box<Output> {
        self.outputs.pop().unwrap_or_default()
    }

    /// Takes back an output that is empty.
    pub fn put(&mut self, mut output: Box<Output>) {
        debug_assert!(output.held.is_empty() && output.segments.is_empty());
        self.chunks.append(&mut output.chunks);
        // A burst must not pin memory for good.
        self.chunks.truncate(64);
        if self.outputs.len() < 64 {
            self.outputs.push(output);
        }
    }
}

impl Output {
    /// Responses and other messages that the peer has not taken yet.
    pub fn unread(&self) -> usize {
        self.held.len()
    }

    /// Memory that payloads outside the buffer pool take until they are sent.
    #[inline]
    pub fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }

    /// Copies `bytes` behind what is queued.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8], spare: &mut Spare) {
        assert!(bytes.len() <= CHUNK_BYTES);
        if self.chunks.is_empty() || self.chunk_used + bytes.len() > CHUNK_BYTES {
            self.chunks.push(spare.chunks.pop().unwrap_or_else(|| Box::new([0; CHUNK_BYTES])));
            self.chunk_used = 0;
        }
        let chunk = self.chunks.last_mut().expect("a chunk was just ensured");
        let place = &mut chunk[self.chunk_used..self.chunk_used + bytes.len()];
        place.copy_from_slice(bytes);
        let pointer = place.as_mut_ptr();
        self.chunk_used += bytes.len();
        self.queued += bytes.len() as u64;
        if let (Some(last), Some(0)) = (self.segments.last_mut(), self.lent.last())
            && last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == pointer
        {
            last.iov_len += bytes.len();
            return;
        }
        self.segments.push(libc::iovec { iov_base: pointer.cast(), iov_len: bytes.len() });
        self.lent.push(0);
    }

    /// Queues `len` bytes at `pointer` without copying. `lent` is the block size if they may change
    /// meanwhile, else zero.
    ///
    /// # Safety
    /// The bytes must stay readable as long as the payload given to [`Output::hold`] next is kept.
    #[inline]
    pub unsafe fn borrowed(&mut self, pointer: *const u8, len: usize, lent: u32) {
        if len == 0 {
            return;
        }
        self.segments.push(libc::iovec { iov_base: pointer.cast_mut().cast(), iov_len: len });
        self.lent.push(lent);
        self.queued += len as u64;
    }

    /// Notes that what was queued so far answers the command in `slot` and needs `payload`.
    #[inline]
    pub fn hold(&mut self, slot: u32, payload: Payload) {
        if let Payload::Bytes(bytes) = &payload {
            self.heap_bytes += bytes.len();
        }
        self.held.push_back(Held { end: self.queued, slot, payload });
    }

    /// Gives the socket as much as it takes; `released` is told the slot of each response that is
    /// completely sent, and given its payload.
    pub fn flush(
        &mut self,
        stream: &Stream,
        spare: &mut Spare,
        mut released: impl FnMut(u32, Payload),
    ) -> io::Result<Flushed> {
        let mut progress = false;
        while self.first < self.segments.len() {
            let end = self.segments.len().min(self.first + SEGMENTS_MAX);
            let pending = &self.segments[self.first..end];
            // SAFETY: IoSlice is guaranteed to have iovec's layout, and every segment points to
            // bytes that a chunk or a held payload keeps alive until they are sent.
            let slices = unsafe {
                std::slice::from_raw_parts(pending.as_ptr().cast::<IoSlice<'_>>(), pending.len())
            };
            match stream.writev(slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    progress = true;
                    self.advance(count, spare);
                    self.release(&mut released);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Flushed::Blocked(progress));
                }
                Err(error) => return Err(error),
            }
        }
        self.reset(spare);
        Ok(Flushed::All)
    }

    /// Forgets everything: the connection is gone.
    pub fn discard(&mut self, spare: &mut Spare) {
        self.held.clear();
        self.heap_bytes = 0;
        self.reset(spare);
    }

    fn reset(&mut self, spare: &mut Spare) {
        debug_assert!(self.held.is_empty());
        self.segments.clear();
        self.lent.clear();
        self.first = 0;
        self.first_sent = 0;
        while self.chunks.len() > 1 {
            spare.chunks.extend(self.chunks.pop());
        }
        self.chunk_used = 0;
        self.queued = 0;
        self.sent = 0;
    }

    fn release(&mut self, released: &mut impl FnMut(u32, Payload)) {
        while self.held.front().is_some_and(|held| held.end <= self.sent) {
            if let Some(held) = self.held.pop_front() {
                if let Payload::Bytes(bytes) = &held.payload {
                    self.heap_bytes -= bytes.len();
                }
                released(held.slot, held.payload);
            }
        }
    }

    fn advance(&mut self, mut count: usize, spare: &mut Spare) {
        self.sent += count as u64;
        while count > 0 {
            let segment = &mut self.segments[self.first];
            if count >= segment.iov_len {
                count -= segment.iov_len;
                self.first += 1;
                self.first_sent = 0;
                continue;
            }
            segment.iov_base = segment.iov_base.cast::<u8>().wrapping_add(count).cast();
            segment.iov_len -= count;
            self.first_sent += count;
            count = 0;
            self.keep_block_whole(spare);
        }
    }

    /// A logical block of lent memory went out in part: the rest of it must be what it was when
    /// the first part went, whatever is written to the block before the socket takes more.
    fn keep_block_whole(&mut self, spare: &mut Spare) {
        let block = self.lent[self.first] as usize;
        if block == 0 || self.first_sent.is_multiple_of(block) {
            return;
        }
        let segment = self.segments[self.first];
        let rest = (block - self.first_sent % block).min(segment.iov_len);
        let mut chunk = spare.chunks.pop().unwrap_or_else(|| Box::new([0; CHUNK_BYTES]));
        assert!(rest <= CHUNK_BYTES);
        // SAFETY: the segment has at least `rest` readable bytes, kept by its held payload; the
        // chunk is ours and does not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(segment.iov_base.cast(), chunk.as_mut_ptr(), rest);
        }
        let copy = libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: rest };
        // Kept below the chunk that is being filled, which stays last.
        let below = self.chunks.len().saturating_sub(1);
        let was_empty = self.chunks.is_empty();
        self.chunks.insert(below, chunk);
        if was_empty {
            self.chunk_used = CHUNK_BYTES;
        }
        if rest == segment.iov_len {
            self.segments[self.first] = copy;
            self.lent[self.first] = 0;
            return;
        }
        self.segments[self.first] = libc::iovec {
            iov_base: segment.iov_base.cast::<u8>().wrapping_add(rest).cast(),
            iov_len: segment.iov_len - rest,
        };
        self.segments.insert(self.first, copy);
        self.lent.insert(self.first, 0);
        // The copy counts from zero; the rest starts at a block boundary again.
        self.first_sent = 0;
    }
}
