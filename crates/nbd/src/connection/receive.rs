//! What comes from the client: bytes, options, requests, and the data of writes.

use super::begin::BULK_BYTES_MAX;
use super::{Connection, Inner, Phase, View};
use crate::exchange::Merge;
use crate::export::Session;
use crate::handshake::Progress;
use crate::pieces::{self, Piece};
use crate::request::Transmission;
use crate::wire::command;
use namespace::output::Payload;
use namespace::{Data, Told, Transient};
use reactor::{Buffer, BufferPool};
use std::cell::{Cell, RefCell};
use std::io;

/// Rest of a piece from which on it is received straight into its buffer.
const DIRECT_BYTES_MIN: usize = 4096;

/// A write whose data is being received.
pub(super) struct Incoming {
    pub(super) slot: u32,
    /// There is no memory for the next piece.
    pub(super) waits: bool,
    placed: Option<(Piece, Place)>,
    /// Bytes of the piece that are there.
    filled: usize,
}

/// Where a piece of a write is received.
enum Place {
    Buffer(Buffer),
    /// A part of a block: in the exchange's merge of that number.
    Merge(usize),
}

impl Incoming {
    pub(super) fn holds_memory(&self) -> bool {
        self.placed.is_some()
    }
}

impl Connection {
    /// Takes one helping of bytes from the socket and starts every request in it.
    pub(super) fn receive(&self, inner: &mut Inner) -> io::Result<bool> {
        let mut buffer = self.core.receive_buffer.borrow_mut();
        let stashed = inner.stash.len();
        buffer[..stashed].copy_from_slice(&inner.stash);
        if std::mem::take(&mut inner.stash_unseen) {
            self.process(inner, &buffer[..stashed])?;
            return Ok(true);
        }
        let received = match inner.direct_place().filter(|_| stashed == 0) {
            Some(place) => {
                let direct = place.len();
                let mut pieces = [io::IoSliceMut::new(place), io::IoSliceMut::new(&mut buffer)];
                self.stream.readv(&mut pieces).map(|count| (count.min(direct), count))
            }
            None => self.stream.recv(&mut buffer[stashed..]).map(|count| (0, count)),
        };
        match received {
            // "A hard disconnect": what is in progress is finished; perhaps somebody still listens.
            Ok((_, 0)) => inner.closing = true,
            Ok((direct, count)) => {
                if direct > 0 {
                    self.payload_came(inner, direct);
                }
                self.process(inner, &buffer[..stashed + count - direct])?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Works through `input`, and keeps what is left of it.
    fn process(&self, inner: &mut Inner, mut input: &[u8]) -> io::Result<()> {
        while !inner.closing {
            if inner.is_held_back() {
                inner.stash_unseen = !input.is_empty();
                break;
            }
            let goes_on = match &mut inner.phase {
                Phase::Handshake(_) => self.shake_hands(inner, &mut input)?,
                Phase::Serving(transmission, _) if transmission.payload_left() > 0 => {
                    let count = self.take_payload(inner, input);
                    input = &input[count..];
                    count > 0 || inner.is_held_back()
                }
                Phase::Serving(transmission, _) => {
                    match transmission.receive(&mut input).map_err(misbehaved)? {
                        Some((request, refusal)) => {
                            self.begin(inner, request, refusal);
                            true
                        }
                        None => false,
                    }
                }
            };
            if !goes_on {
                break;
            }
        }
        inner.stash.clear();
        if !inner.closing {
            inner.stash.extend_from_slice(input);
        }
        Ok(())
    }

    /// One step of the handshake. Whether there may be another.
    fn shake_hands(&self, inner: &mut Inner, input: &mut &[u8]) -> io::Result<bool> {
        let Phase::Handshake(handshake) = &mut inner.phase else {
            unreachable!("called during the handshake")
        };
        let mut replies = Vec::new();
        let progress =
            handshake.receive(input, &*self.core.shared, &mut replies).map_err(misbehaved)?;
        if !replies.is_empty() {
            self.send_bytes(inner, crate::exchange::NONE, replies);
        }
        match progress {
            Progress::Incomplete => return Ok(false),
            Progress::Answered => {}
            Progress::Aborted => inner.closing = true,
            Progress::Agreed(session) => {
                let view = self.view(&session)?;
                inner.phase = Phase::Serving(Transmission::new(session), view);
                self.cancel_timer();
            }
        }
        Ok(true)
    }

    fn view(&self, session: &Session) -> io::Result<View> {
        let export = &self.core.shared.exports[session.export];
        let queue = self.core.queue(session.export).inspect_err(|error| {
            tracing::error!(%error, volume = export.namespace.uri(), "cannot open a queue");
        })?;
        let limits = export.namespace.limits();
        let bytes_max = limits.transfer_bytes_max.min(BufferPool::buffer_len_max() as u32);
        Ok(View {
            queue,
            namespace: export.namespace.clone(),
            block_shift: limits.block_shift,
            blocks_max: (bytes_max >> limits.block_shift).clamp(1, pieces::BLOCKS_MAX),
            bulk_bytes_max: Cell::new(BULK_BYTES_MAX),
            limits,
            told: RefCell::new(Told::of_somebody()),
        })
    }

    /// Queues bytes of their own memory; `slot` ends with them unless it is `NONE`.
    pub(super) fn send_bytes(&self, inner: &mut Inner, slot: u32, bytes: Vec<u8>) {
        let mut spare = self.core.spare.borrow_mut();
        let output = inner.output.get_or_insert_with(|| spare.take());
        // SAFETY: the payload keeps the vector, whose bytes do not move with it.
        unsafe { output.borrowed(bytes.as_ptr(), bytes.len(), 0, 0) };
        output.hold(slot, Payload::Bytes(bytes));
    }

    /// A write begins whose data is to come.
    pub(super) fn begin_write(&self, inner: &mut Inner, slot: u32) {
        debug_assert_eq!(inner.exchanges.slot(slot).request.kind, command::WRITE);
        inner.incoming = Some(Incoming { slot, waits: false, placed: None, filled: 0 });
    }

    /// Takes data of the write that is being received. Returns how much: none if there is no memory.
    fn take_payload(&self, inner: &mut Inner, input: &[u8]) -> usize {
        let (transmission, view) = inner.serving();
        let input = &input[..input.len().min(transmission.payload_left() as usize)];
        let (shift, immediate, blocks_max) =
            (view.block_shift, view.limits.immediate, view.blocks_max);
        let Some(incoming) = &mut inner.incoming else { unreachable!("data belongs to a write") };
        let exchange = inner.exchanges.slot(incoming.slot);
        if input.is_empty() {
            return 0;
        }
        if exchange.failure.is_some() {
            // An earlier piece has failed: the rest is of no use.
            match incoming.placed.take() {
                Some((_, Place::Buffer(buffer))) => inner.memory.given_back(&buffer),
                Some((_, Place::Merge(index))) => {
                    let merge = exchange.merges[index].take().expect("it was placed");
                    inner.memory.given_back(&merge.buffer);
                }
                None => {}
            }
            self.payload_taken(inner, input.len());
            return input.len();
        }
        if incoming.placed.is_none() && immediate {
            let piece = pieces::exact(exchange.at, exchange.request.end(), shift, blocks_max);
            if piece.is_whole(shift) && input.len() >= piece.length as usize {
                let bytes = &input[..piece.length as usize];
                // SAFETY: an immediate namespace is done with the bytes when submit returns, and
                // the receive buffer they lie in is not touched before that.
                let data = Data::Transient(unsafe { Transient::new(bytes) });
                let slot = incoming.slot;
                self.submit_write(inner, slot, piece, data);
                self.payload_taken(inner, bytes.len());
                return bytes.len();
            }
        }
        if incoming.placed.is_none() && !self.place_incoming(inner) {
            return 0;
        }
        let place = inner.incoming_place();
        let count = place.len().min(input.len());
        place[..count].copy_from_slice(&input[..count]);
        self.payload_came(inner, count);
        count
    }

    /// Finds memory for the next piece of the write that is being received; otherwise it waits.
    pub(super) fn place_incoming(&self, inner: &mut Inner) -> bool {
        let (_, view) = inner.serving();
        let (shift, blocks_max) = (view.block_shift, view.blocks_max);
        let slot = inner.incoming.as_ref().expect("a write is being received").slot;
        let exchange = inner.exchanges.slot(slot);
        let piece = pieces::exact(exchange.at, exchange.request.end(), shift, blocks_max);
        let is_whole = piece.is_whole(shift);
        let bytes = if is_whole { piece.length as usize } else { 3 << shift };
        let buffer = self.allocate(inner, bytes, false);
        let incoming = inner.incoming.as_mut().expect("just seen");
        incoming.waits = buffer.is_none();
        let Some(buffer) = buffer else { return false };
        let place = if is_whole {
            Place::Buffer(buffer)
        } else {
            let merge = Merge { buffer, piece, tries: 0 };
            Place::Merge(inner.exchanges.slot(slot).add_merge(merge))
        };
        incoming.placed = Some((piece, place));
        incoming.filled = 0;
        true
    }

    /// `count` bytes of the write that is being received are in their place.
    fn payload_came(&self, inner: &mut Inner, count: usize) {
        let incoming = inner.incoming.as_mut().expect("data belongs to a write");
        incoming.filled += count;
        let (piece, _) = incoming.placed.as_ref().expect("it was placed");
        if incoming.filled == piece.length as usize {
            let (piece, place) = incoming.placed.take().expect("just seen");
            let slot = incoming.slot;
            match place {
                Place::Buffer(buffer) => {
                    self.submit_write(inner, slot, piece, Data::Buffer(buffer));
                }
                Place::Merge(index) => {
                    inner.exchanges.slot(slot).at = piece.end();
                    self.merge(inner, slot, index);
                }
            }
        }
        self.payload_taken(inner, count);
    }

    /// `count` bytes of the client's data need no further attention.
    fn payload_taken(&self, inner: &mut Inner, count: usize) {
        let Phase::Serving(transmission, _) = &mut inner.phase else {
            unreachable!("data comes after the handshake")
        };
        transmission.payload_taken(count);
        if transmission.payload_left() == 0
            && let Some(Incoming { slot, .. }) = inner.incoming.take()
        {
            self.proceed(inner, slot);
        }
    }
}

impl Inner {
    /// Where the rest of the piece that is being received goes.
    fn incoming_place(&mut self) -> &mut [u8] {
        let incoming = self.incoming.as_mut().expect("a write is being received");
        let (piece, place) = incoming.placed.as_mut().expect("it was placed");
        let bytes = match place {
            Place::Buffer(buffer) => buffer.as_mut_slice(),
            Place::Merge(index) => {
                let merge = self.exchanges.slot(incoming.slot).merges[*index].as_mut();
                merge.expect("a merge that is being received").payload()
            }
        };
        &mut bytes[incoming.filled..piece.length as usize]
    }

    /// The same, if it is worth receiving into it directly.
    fn direct_place(&mut self) -> Option<&mut [u8]> {
        self.incoming.as_ref()?.placed.as_ref()?;
        Some(self.incoming_place()).filter(|place| place.len() >= DIRECT_BYTES_MIN)
    }
}

/// Nothing can be said to a client that breaks the protocol: "hard disconnect".
fn misbehaved(error: crate::failure::Misbehaved) -> io::Error {
    tracing::warn!("hanging up on a client: {error}");
    io::Error::new(io::ErrorKind::InvalidData, error)
}
