//! Replies.

use super::begin::told;
use super::{Connection, Inner};
use crate::exchange::NONE;
use crate::extents;
use crate::failure::Why;
use crate::pieces::Piece;
use crate::reply::{self, REPLY_BYTES_MAX};
use crate::wire::command;
use namespace::Data;
use namespace::counters::Kind;
use namespace::output::Payload;

impl Connection {
    /// A piece of a read is there.
    pub(super) fn read_came(&self, inner: &mut Inner, slot: u32, piece: Piece, data: Data) {
        let (transmission, _) = inner.serving();
        if transmission.session().structured {
            let exchange = inner.exchanges.slot(slot);
            let cookie = exchange.request.cookie;
            let is_last = exchange.is_covered() && exchange.running == 0;
            exchange.is_sending = is_last;
            if is_last {
                self.count(inner, slot);
            }
            let header = reply::data_header(cookie, piece.offset, piece.length, is_last);
            return self.send_read(inner, &header, if is_last { slot } else { NONE }, piece, data);
        }
        if inner.streaming.is_some_and(|other| other != slot) {
            inner.exchanges.slot(slot).data = Some((piece, data));
            return Self::delay(inner, slot);
        }
        self.send_simple_read(inner, slot, piece, data);
    }

    /// Sends a piece of a simple reply. No other reply may come before the last piece.
    fn send_simple_read(&self, inner: &mut Inner, slot: u32, piece: Piece, data: Data) {
        let exchange = inner.exchanges.slot(slot);
        let request = exchange.request;
        let is_first = !std::mem::replace(&mut exchange.has_begun, true);
        let is_last = piece.end() == request.end();
        exchange.is_sending = is_last;
        if is_last {
            self.count(inner, slot);
        }
        let header = reply::simple(request.cookie, None);
        let header = if is_first { &header[..] } else { &[] };
        self.send_read(inner, header, if is_last { slot } else { NONE }, piece, data);
        inner.streaming = (!is_last).then_some(slot);
        if is_last && !is_first {
            self.send_delayed(inner);
        }
    }

    /// Queues the bytes of a piece after `header`; `slot` ends with them unless it is `NONE`.
    fn send_read(&self, inner: &mut Inner, header: &[u8], slot: u32, piece: Piece, data: Data) {
        inner.memory.send(&data);
        let (_, view) = inner.serving();
        let lent = match &data {
            Data::Lent(_) => view.limits.block_bytes(),
            _ => 0,
        };
        let (skip, length) = (piece.skip as usize, piece.length as usize);
        assert!(skip + length <= data.len(), "a read has filled its data");
        let mut spare = self.core.spare.borrow_mut();
        let output = inner.output.get_or_insert_with(|| spare.take());
        output.bytes(header, &mut spare);
        // SAFETY: the data has so many bytes, and is held as the payload.
        unsafe { output.borrowed(data.as_ptr().add(skip), length, lent, piece.skip) };
        output.hold(slot, Payload::Data(data));
    }

    /// Counts a request of which nothing is with the volume any more. What never came there is not counted.
    fn count(&self, inner: &mut Inner, slot: u32) {
        let (transmission, _) = inner.serving();
        let counters = self.core.counters(transmission.session().export);
        let exchange = inner.exchanges.slot(slot);
        if !exchange.was_given {
            return;
        }
        match exchange.failure.map(|failure| failure.why) {
            Some(Why::Volume(status)) => return counters.failed(status),
            Some(Why::Request(_)) => return,
            None => {}
        }
        let kind = match exchange.request.kind {
            command::READ => Kind::Read,
            command::WRITE => Kind::Write,
            _ => Kind::Other,
        };
        let bytes = if kind == Kind::Other { 0 } else { u64::from(exchange.request.length) };
        counters.succeeded(kind, bytes, exchange.took);
    }

    fn delay(inner: &mut Inner, slot: u32) {
        inner.exchanges.slot(slot).is_delayed = true;
        inner.delayed.push_back(slot);
    }

    /// The long reply is complete: those that had to wait follow, until another long one.
    fn send_delayed(&self, inner: &mut Inner) {
        while inner.streaming.is_none()
            && let Some(slot) = inner.delayed.pop_front()
        {
            let exchange = inner.exchanges.slot(slot);
            exchange.is_delayed = false;
            if let Some((piece, data)) = exchange.data.take() {
                self.send_simple_read(inner, slot, piece, data);
            }
            self.proceed(inner, slot);
        }
    }

    /// Ends a request whose commands are all back.
    pub(super) fn answer(&self, inner: &mut Inner, slot: u32) {
        if inner.streaming.is_some_and(|other| other != slot) {
            return Self::delay(inner, slot);
        }
        let (transmission, view) = inner.serving();
        let (is_structured, shift) = (transmission.session().structured, view.block_shift);
        let exchange = inner.exchanges.slot(slot);
        let (request, failure) = (exchange.request, exchange.failure);
        if failure.is_some() && exchange.has_begun {
            // "An error ... after the server has already sent out the reply header": what the
            // client takes for data could not be told from it.
            tracing::warn!("a read failed after its reply had begun: hanging up");
            self.count(inner, slot);
            return self.close();
        }
        exchange.is_sending = true;
        self.count(inner, slot);
        let exchange = inner.exchanges.slot(slot);
        if failure.is_none() && request.kind == command::BLOCK_STATUS {
            let answer = exchange.answer.take();
            let (_, view) = inner.serving();
            let runs = told(answer, &view.namespace);
            let mut descriptors = Vec::new();
            extents::describe(&runs, request.offset, request.length, shift, &mut descriptors);
            let mut bytes = Vec::new();
            reply::block_status(request.cookie, &descriptors, &mut bytes);
            return self.send_bytes(inner, slot, bytes);
        }
        let mut spare = self.core.spare.borrow_mut();
        let output = inner.output.get_or_insert_with(|| spare.take());
        match failure {
            Some(failure) if is_structured => {
                let mut bytes = [0; REPLY_BYTES_MAX];
                let length = reply::error(request.cookie, failure, &mut bytes);
                output.bytes(&bytes[..length], &mut spare);
            }
            // A read without data: "MUST NOT use a simple reply".
            None if is_structured && request.kind == command::READ => {
                output.bytes(&reply::end(request.cookie), &mut spare);
            }
            failure => output.bytes(&reply::simple(request.cookie, failure), &mut spare),
        }
        output.hold(slot, Payload::None);
    }
}
