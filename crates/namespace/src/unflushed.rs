//! What one way to a volume has acknowledged, and no Flush has made durable yet.
//!
//! ```text
//!   acknowledged --> needed = begun + 1        any: needed > done
//!   Flush sent   --> begun + 1, its number
//!   Flush ended  --> done = its number
//! ```
//!
//! A Flush covers what its controller completed before it was submitted (NVMe Base 2.1, section 7.2), by whichever
//! queue: cores share one of these. Numbers change once per Flush, so that its cache line is only read per command.

use association::retry::changes_nothing;
use nvme::Command;
use nvme::opcode::io as opcode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Which Flush is needed, and which was the last to succeed. All cores of a way share it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Unflushed {
    /// Flushes that were sent.
    begun: AtomicU64,
    /// The number of the first Flush that makes all durable that was acknowledged.
    needed: AtomicU64,
    /// The highest number of a Flush that has succeeded.
    done: AtomicU64,
    ended: AtomicBool,
}

impl Unflushed {
    /// A command was answered, with whatever status: part of one that failed may have been done. Returns true if the
    /// way had ended already, so that what this one changed may be gone.
    #[inline]
    pub fn acknowledged(&self, command: &Command) -> bool {
        if changes_nothing(command) || is_durable(command) {
            return false;
        }
        let needed = self.begun.load(Ordering::SeqCst) + 1;
        if self.needed.load(Ordering::SeqCst) < needed {
            self.needed.fetch_max(needed, Ordering::SeqCst);
        }
        // After that: either this sees the end, or `end` sees what is needed.
        self.ended.load(Ordering::SeqCst)
    }

    /// A Flush is about to be sent. Returns its number.
    pub fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The Flush of this number has succeeded.
    pub fn flushed(&self, number: u64) {
        self.done.fetch_max(number, Ordering::SeqCst);
    }

    /// Takes over what another way to the same controller had acknowledged and not flushed.
    pub fn inherit(&self) {
        let needed = self.begun.load(Ordering::SeqCst) + 1;
        self.needed.fetch_max(needed, Ordering::SeqCst);
    }

    /// Whether something was acknowledged that is not durable yet.
    pub fn any(&self) -> bool {
        self.needed.load(Ordering::SeqCst) > self.done.load(Ordering::SeqCst)
    }

    /// The number of the first Flush that makes all durable that was acknowledged, whether it was sent or not.
    pub fn needed(&self) -> u64 {
        self.needed.load(Ordering::SeqCst)
    }

    /// The way has ended, for good. Returns true, once, if something may have been lost by that.
    pub fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::SeqCst) && self.any()
    }
}

/// Whether all that the command changes is durable when it has completed: Force Unit Access. Deallocation that
/// comes with Write Zeroes is data like any other.
fn is_durable(command: &Command) -> bool {
    matches!(command.opcode, opcode::WRITE | opcode::WRITE_ZEROES | opcode::COPY) && command.fua()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(opcode: u8, fua: bool) -> Command {
        Command { opcode, cdw12: (u32::from(fua) << 30).into(), ..Command::default() }
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_was_sent() {
        let (way, write) = (Unflushed::default(), command(opcode::WRITE, false));
        assert!(!way.any());
        assert!(!way.acknowledged(&write) && way.any());
        let first = way.begin();
        assert!(way.any(), "it has not succeeded yet");
        let second = way.begin();
        way.acknowledged(&write);
        way.flushed(second);
        assert!(way.any(), "one came after both");
        way.flushed(first);
        way.flushed(way.begin());
        assert!(!way.any());
        way.inherit();
        assert_eq!(way.needed(), way.begin());
        assert!(way.any());
    }

    #[test]
    fn only_what_may_be_lost_counts() {
        let table = [
            (opcode::READ, false, false),
            (opcode::FLUSH, false, false),
            (opcode::COMPARE, false, false),
            (opcode::WRITE, true, false),
            (opcode::WRITE, false, true),
            (opcode::WRITE_ZEROES, true, false),
            (opcode::WRITE_ZEROES, false, true),
            (opcode::COPY, true, false),
            (opcode::COPY, false, true),
            // It has no such bit: this one is another's.
            (opcode::DATASET_MANAGEMENT, true, true),
            (0x81, true, true),
        ];
        for (opcode, fua, counts) in table {
            let way = Unflushed::default();
            assert!(!way.acknowledged(&command(opcode, fua)));
            assert_eq!(way.any(), counts, "{opcode:#04x}, FUA {fua}");
        }
    }

    #[test]
    fn an_end_is_told_once_and_to_who_comes_late() {
        let (way, write) = (Unflushed::default(), command(opcode::WRITE, false));
        way.acknowledged(&write);
        assert!(way.end() && !way.end());
        assert!(way.acknowledged(&write) && !way.acknowledged(&command(opcode::READ, false)));
        let way = Unflushed::default();
        way.acknowledged(&write);
        way.flushed(way.begin());
        assert!(!way.end(), "all of it was durable");
        assert!(way.acknowledged(&write));
    }
}
