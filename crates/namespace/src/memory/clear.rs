//! Dataset Management that clears more than a turn should take: some of it in each of the reactor's turns.

use super::MemoryQueue;
use crate::Request;
use crate::dataset::Range;
use nvme::Status;
use reactor::Complete;
use std::cell::RefCell;
use std::collections::VecDeque;

/// Bytes that all such commands of a queue clear in one turn: below a millisecond, if all of it was in use.
pub(super) const TURN_BYTES: usize = 4 << 20;

/// A command that is not done.
struct Clearing {
    request: Box<Request>,
    /// What is left, the next at the end.
    ranges: Vec<Range>,
}

/// The commands of one queue that are not done, in their order.
#[derive(Default)]
pub(super) struct Clearings(RefCell<VecDeque<Clearing>>);

impl Clearings {
    /// Takes a command that clears `ranges`, which are within the volume. True if the queue is to be told to go on.
    pub(super) fn add(&self, request: Box<Request>, mut ranges: Vec<Range>) -> bool {
        ranges.reverse();
        let mut all = self.0.borrow_mut();
        all.push_back(Clearing { request, ranges });
        all.len() == 1
    }

    /// Drops all of them.
    pub(super) fn forget(&self) {
        let dropped = self.0.take();
        drop(dropped);
    }
}

impl Complete for MemoryQueue {
    /// The next piece.
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        let shift = self.memory.options.block_shift;
        let mut left = TURN_BYTES as u64 >> shift;
        let ended = {
            let mut all = self.clearings.0.borrow_mut();
            let Some(first) = all.front_mut() else { return };
            while left > 0
                && let Some(range) = first.ranges.last_mut()
            {
                let blocks = left.min(u64::from(range.blocks)) as u32;
                self.zero((range.slba << shift) as usize, (blocks as usize) << shift, true);
                range.slba += u64::from(blocks);
                range.blocks -= blocks;
                left -= u64::from(blocks);
                if range.blocks == 0 {
                    first.ranges.pop();
                }
            }
            let ended = if first.ranges.is_empty() { all.pop_front() } else { None };
            if !all.is_empty() {
                self.reactor.defer(self.me(), token);
            }
            ended
        };
        if let Some(ended) = ended {
            ended.request.finish(Status::SUCCESS);
        }
    }
}
