//! The requests of one connection, each from its header until its reply is sent.

use crate::failure::Failure;
use crate::pieces::Piece;
use crate::request::Request;
use association::retry::Tries;
use namespace::{Data, Run};
use reactor::{Buffer, Reactor};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// Requests in progress on a connection; more stay in the socket.
pub(crate) const REQUESTS_MAX: usize = 128;

/// Reads of one request with the volume at a time.
pub(crate) const READS_MAX: usize = 4;

/// Parts of blocks that are written for a request at a time: its two ends.
pub(crate) const MERGES_MAX: usize = 2;

/// What a volume says about its holes, once it does.
pub(crate) type Answer = Arc<Mutex<Option<io::Result<Vec<Run>>>>>;

/// One request.
pub(crate) struct Exchange {
    pub(crate) request: Request,
    /// The next byte that no command was made for.
    pub(crate) at: u64,
    /// What that was before the command made last.
    pub(crate) before: u64,
    /// Commands with the volume.
    pub(crate) running: u32,
    /// It was given one.
    pub(crate) was_given: bool,
    /// Since when it has any, unless it ends them at once.
    since: Option<Instant>,
    /// For how long it had any before: not while the client sends data, or takes none.
    pub(crate) took: Duration,
    /// What those of them are for that read: a command that comes back may say something else.
    pub(crate) reads: [Option<Read>; READS_MAX],
    /// Pieces for which the volume, which was asked to lend its memory, had none.
    again: [Option<Piece>; READS_MAX],
    /// Why it failed; the first reason.
    pub(crate) failure: Option<Failure>,
    /// A command is to be made, and there is no memory for it.
    pub(crate) waits: bool,
    /// The end of its reply is queued.
    pub(crate) is_sending: bool,
    /// The head of a simple reply was sent, and not all data of it.
    pub(crate) has_begun: bool,
    /// The reply has to wait until another one is complete.
    pub(crate) is_delayed: bool,
    /// What was read meanwhile.
    pub(crate) data: Option<(Piece, Data)>,
    /// A Flush after everything else was started.
    pub(crate) is_synced: bool,
    pub(crate) merges: [Option<Merge>; MERGES_MAX],
    /// Of its commands together.
    pub(crate) tries: Tries,
    pub(crate) answer: Option<Answer>,
    in_use: bool,
}

/// A read with the volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) piece: Piece,
    /// It has a buffer from us.
    pub(crate) has_buffer: bool,
}

/// A part of a block that is written: read, changed, and written if nobody else has meanwhile.
pub(crate) struct Merge {
    /// Three blocks: what was read, what is to be written, and what the client sent.
    pub(crate) buffer: Buffer,
    pub(crate) piece: Piece,
    pub(crate) tries: u32,
}

impl Exchange {
    fn empty() -> Exchange {
        Exchange {
            request: Request::default(),
            at: 0,
            before: 0,
            running: 0,
            was_given: false,
            since: None,
            took: Duration::ZERO,
            reads: [None; READS_MAX],
            again: [None; READS_MAX],
            failure: None,
            waits: false,
            is_sending: false,
            has_begun: false,
            is_delayed: false,
            data: None,
            is_synced: false,
            merges: [None, None],
            tries: Tries::default(),
            answer: None,
            in_use: false,
        }
    }

    /// Whether a command was made for every byte.
    pub(crate) fn is_covered(&self) -> bool {
        self.at == self.request.end() && self.again.iter().all(Option::is_none)
    }

    /// A piece is to be read again, into a buffer.
    pub(crate) fn read_again(&mut self, piece: Piece) {
        let free = self.again.iter_mut().find(|it| it.is_none());
        *free.expect("as many as may be with the volume") = Some(piece);
    }

    /// The first of those.
    pub(crate) fn next_again(&mut self) -> Option<Piece> {
        self.again.iter_mut().find_map(Option::take)
    }

    /// The volume is given a command, which it ends at once or not.
    #[inline]
    pub(crate) fn give(&mut self, reactor: &Reactor, is_immediate: bool) {
        if self.running == 0 && !is_immediate {
            self.since = Some(reactor.now());
        }
        self.running += 1;
        self.was_given = true;
    }

    /// It has ended one.
    #[inline]
    pub(crate) fn take_back(&mut self, reactor: &Reactor) {
        self.running -= 1;
        if self.running == 0
            && let Some(since) = self.since.take()
        {
            self.took += reactor.now().saturating_duration_since(since);
        }
    }

    /// Notes a failure, unless there was one before.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }
}

/// The table of requests. Grows as the client uses it: an idle connection costs almost nothing.
#[derive(Default)]
pub(crate) struct Exchanges {
    slots: Vec<Exchange>,
    free: Vec<u32>,
}

impl Exchanges {
    /// Whether no further request may begin.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= REQUESTS_MAX
    }

    /// Takes a slot for `request`, which lies within the export unless it is refused.
    ///
    /// # Panics
    /// If the table is full.
    #[inline]
    pub(crate) fn begin(&mut self, request: Request, failure: Option<Failure>) -> u32 {
        assert!(!self.is_full(), "nothing is read then");
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Exchange::empty());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        debug_assert!(!slot.in_use);
        slot.in_use = true;
        slot.request = request;
        slot.at = request.offset;
        slot.before = request.offset;
        slot.failure = failure;
        slot.was_given = false;
        slot.took = Duration::ZERO;
        slot.waits = false;
        slot.is_sending = false;
        slot.has_begun = false;
        slot.is_delayed = false;
        slot.is_synced = false;
        slot.tries = Tries::default();
        index
    }

    /// The reply of `index` is sent.
    #[inline]
    pub(crate) fn end(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        assert!(slot.in_use && slot.running == 0, "an exchange ends once");
        debug_assert!(slot.data.is_none() && slot.merges.iter().all(Option::is_none));
        debug_assert!(slot.reads.iter().all(Option::is_none));
        slot.again = [None; READS_MAX];
        slot.in_use = false;
        self.free.push(index);
    }

    #[inline]
    pub(crate) fn slot(&mut self, index: u32) -> &mut Exchange {
        &mut self.slots[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_bounded() {
        let mut exchanges = Exchanges::default();
        let slots: Vec<u32> =
            (0..REQUESTS_MAX).map(|_| exchanges.begin(Request::default(), None)).collect();
        assert!(exchanges.is_full());
        exchanges.end(slots[7]);
        assert!(!exchanges.is_full());
        assert_eq!(exchanges.begin(Request::default(), None), slots[7]);
        assert!(exchanges.is_full());
    }
}
