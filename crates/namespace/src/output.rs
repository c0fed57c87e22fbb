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

/// Outputs and chunks kept for reuse: a burst must not pin memory for good.
const SPARE_MAX: usize = 64;

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
    /// The chunk that is being filled, and how far it is.
    chunk: Option<Chunk>,
    chunk_used: usize,
    /// Those before it, each with a stream position at which all of it is sent.
    full: VecDeque<(u64, Chunk)>,
    /// The rest of a block that went out in part: of one at a time.
    rest: Option<Chunk>,
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
        if let Some(chunk) = output.chunk.take() {
            self.put_chunk(chunk);
        }
        if self.outputs.len() < SPARE_MAX {
            self.outputs.push(output);
        }
    }

    #[inline]
    fn chunk(&mut self) -> Chunk {
        self.chunks.pop().unwrap_or_else(|| Box::new([0; CHUNK_BYTES]))
    }

    #[inline]
    fn put_chunk(&mut self, chunk: Chunk) {
        if self.chunks.len() < SPARE_MAX {
            self.chunks.push(chunk);
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
        if self.chunk_used + bytes.len() > CHUNK_BYTES {
            self.full.extend(self.chunk.take().map(|chunk| (self.queued, chunk)));
            self.chunk_used = 0;
        }
        let chunk = self.chunk.get_or_insert_with(|| spare.chunk());
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
    /// meanwhile, else zero; `skip` is how much of their first block lies before them.
    ///
    /// # Safety
    /// The bytes must stay readable as long as the payload given to [`Output::hold`] next is kept.
    #[inline]
    pub unsafe fn borrowed(&mut self, pointer: *const u8, len: usize, lent: u32, skip: u32) {
        // A segment of its own, so that the one after it begins on a block as all others do.
        let begun = if skip == 0 { 0 } else { len.min(lent.saturating_sub(skip) as usize) };
        for (at, len) in [(0, begun), (begun, len - begun)] {
            if len > 0 {
                let pointer = pointer.wrapping_add(at).cast_mut().cast();
                self.segments.push(libc::iovec { iov_base: pointer, iov_len: len });
                self.lent.push(lent);
            }
        }
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
                    self.forget_sent(spare);
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
        while let Some((_, chunk)) = self.full.pop_front() {
            spare.put_chunk(chunk);
        }
        if let Some(chunk) = self.rest.take() {
            spare.put_chunk(chunk);
        }
        self.chunk_used = 0;
        self.queued = 0;
        self.sent = 0;
    }

    /// Gives back what was sent: a peer that always has more outstanding than the socket takes never lets all
    /// of it go.
    fn forget_sent(&mut self, spare: &mut Spare) {
        // Each segment is moved once at most for one that goes.
        if self.first > self.segments.len() / 2 {
            self.segments.drain(..self.first);
            self.lent.drain(..self.first);
            self.first = 0;
        }
        while self.full.front().is_some_and(|(end, _)| *end <= self.sent) {
            if let Some((_, chunk)) = self.full.pop_front() {
                spare.put_chunk(chunk);
            }
        }
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
        // A rest that is there already belongs to a block before this one, and was sent.
        let chunk = self.rest.get_or_insert_with(|| spare.chunk());
        assert!(rest <= CHUNK_BYTES);
        // SAFETY: the segment has at least `rest` readable bytes, kept by its held payload; the
        // chunk is ours and does not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(segment.iov_base.cast(), chunk.as_mut_ptr(), rest);
        }
        let copy = libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: rest };
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

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::Listener;

    const BLOCK: usize = 4096;
    const BLOCKS: usize = 16;
    /// A header, the data from some byte on, and a response; both are filled with the number of the answer.
    const HEADER: usize = 24;

    /// Data of answers, which changes all the time.
    struct Lent([u8; BLOCKS * BLOCK]);

    fn queue_answer(
        output: &mut Output,
        spare: &mut Spare,
        slot: u32,
        lent: *const Lent,
        skip: usize,
    ) {
        output.bytes(&[slot as u8; HEADER], spare);
        // SAFETY: the test keeps what it lends until the output is gone.
        unsafe {
            let from = lent.cast::<u8>().add(skip);
            output.borrowed(from, BLOCKS * BLOCK - skip, BLOCK as u32, skip as u32);
        }
        output.bytes(&[slot as u8; HEADER], spare);
        output.hold(slot, Payload::None);
    }

    /// Checks `bytes` of the stream, the first of which is at `position`; `block` is the block that is not
    /// complete yet.
    fn check(mut bytes: &[u8], mut position: usize, block: &mut Option<u8>, skip: usize) {
        let length = HEADER + BLOCKS * BLOCK - skip + HEADER;
        while !bytes.is_empty() {
            let (answer, at) = (position / length, position % length);
            let data = at.checked_sub(HEADER).map(|at| at + skip).filter(|at| *at < BLOCKS * BLOCK);
            let (wanted, end) = match data {
                Some(place) => {
                    let end = at + BLOCK - place % BLOCK;
                    let begins = place == skip || place % BLOCK == 0;
                    (if begins { bytes[0] } else { block.expect("begun before") }, end)
                }
                None if at < HEADER => (answer as u8, HEADER),
                None => (answer as u8, length),
            };
            let (part, rest) = bytes.split_at(bytes.len().min(end - at));
            assert!(part.iter().all(|byte| *byte == wanted), "at {at} of answer {answer}");
            *block = data.map(|_| wanted);
            position += part.len();
            bytes = rest;
        }
    }

    /// A peer that always has more outstanding than the socket takes: what it has read is not kept, and each
    /// block reaches it whole.
    #[test]
    fn what_a_peer_that_lags_behind_has_taken_is_given_back() {
        lag_behind(0);
    }

    /// The same for reads that do not begin on a block.
    #[test]
    fn a_peer_that_lags_behind_gets_each_block_whole_from_any_byte_on() {
        for skip in [1, 100, BLOCK - 1] {
            lag_behind(skip);
        }
    }

    fn lag_behind(skip: usize) {
        const OUTSTANDING: usize = 32;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = Listener::bind_local(&path).unwrap();
        let stream = Stream::connect_local(&path).unwrap();
        let peer = listener.accept_any().unwrap();
        let lent = Box::into_raw(Box::new(Lent([0; BLOCKS * BLOCK])));
        let (mut output, mut spare) = (Output::default(), Spare::default());
        let mut received = vec![0; 37_003];
        let (mut position, mut block, mut cuts) = (0, None, 0);
        let mut answers = 0u32;
        while answers < 1000 {
            while output.unread() < OUTSTANDING {
                queue_answer(&mut output, &mut spare, answers, lent, skip);
                answers += 1;
            }
            let flushed = output.flush(&stream, &mut spare, |_, _| ()).unwrap();
            assert!(matches!(flushed, Flushed::Blocked(_)), "the socket took everything");
            cuts += usize::from(output.lent[output.first] == 0);
            // SAFETY: memory of our own, to which the output has nothing but a pointer.
            unsafe { (*lent).0.fill((position / 1000) as u8) };
            let count = peer.recv(&mut received).unwrap();
            check(&received[..count], position, &mut block, skip);
            position += count;
            assert!(output.segments.len() <= 6 * OUTSTANDING, "{}", output.segments.len());
            let chunks = output.full.len() + spare.chunks.len();
            assert!(chunks <= 1, "{chunks} chunks");
        }
        assert!(cuts > 100, "blocks were to be cut");
        output.discard(&mut spare);
        // SAFETY: made above, and nobody has a pointer to it any more.
        drop(unsafe { Box::from_raw(lent) });
    }
}
