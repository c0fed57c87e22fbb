//! Answers to admin commands that hosts have not read: memory outside the pool, bounded for all connections of a
//! core together.
//!
//! ```text
//!   respond_with --> output --flush--> socket
//!        '-- more than ANSWER_BYTES_MAX of all: no long ones, nothing is read from those who have any,
//!            and who takes nothing for a while is dropped
//! ```

use crate::connection::Connection;
use crate::core::Core;
use std::cell::Cell;

/// Unread answers of all connections of a core from which on there are only short ones.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A short answer, which is always given: a connection has few of them then.
const SHORT_BYTES: usize = 64 << 10;

/// What a connection has of them.
#[derive(Default)]
pub(crate) struct Unread {
    bytes: Cell<usize>,
    /// Some was sent, or came, since the last look.
    moves: Cell<bool>,
}

impl Core {
    /// Whether hosts leave too much unread.
    #[inline]
    pub(crate) fn is_full_of_answers(&self) -> bool {
        self.answer_bytes.get() > ANSWER_BYTES_MAX
    }
}

impl Connection {
    /// Whether there is room for an answer of so many bytes.
    pub(crate) fn may_answer(&self, bytes: usize) -> bool {
        bytes <= SHORT_BYTES || !self.core.is_full_of_answers()
    }

    /// Notes that so many bytes of answers are unread now, and whether any byte `moves`.
    #[inline]
    pub(crate) fn note_unread(&self, bytes: usize, moves: bool) {
        if bytes | self.unread.bytes.get() != 0 {
            self.note_some_unread(bytes, moves);
        }
    }

    #[cold]
    fn note_some_unread(&self, bytes: usize, moves: bool) {
        let before = self.unread.bytes.replace(bytes);
        self.core.answer_bytes.update(|all| all - before + bytes);
        self.unread.moves.set(self.unread.moves.get() | moves);
        if bytes > before && self.core.is_full_of_answers() {
            self.core.watch_stalls();
        }
    }

    /// Whether the peer leaves answers unread, and has taken nothing since it was asked last.
    pub(crate) fn reads_nothing(&self) -> bool {
        !self.unread.moves.take() && self.unread.bytes.get() != 0
    }
}
