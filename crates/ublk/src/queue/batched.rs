//! Requests that come and go many at a time.

use super::{QueueServer, about};
use crate::batch::Batch;
use crate::driver::{self, BatchCommand};
use reactor::Complete;
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uring::entry;

/// How often the driver may refuse to fetch or to take results for a moment, until requests come again: for a second, with
/// a pause each time but the first.
const IN_VAIN_MAX: u32 = 1000;
/// Before it is asked again: what it is out of has to be given back by somebody else.
const AGAIN_AFTER: Duration = Duration::from_millis(1);

impl QueueServer {
    pub(super) fn batch(&self) -> &RefCell<Batch> {
        self.batch.as_ref().expect("nobody else is told of batches")
    }

    /// The driver knows that there is a server for every tag, or does not want it.
    pub(super) fn prepared(&self, list: u16, result: i32) {
        let batch = self.batch();
        batch.borrow_mut().done(list, 0);
        if result < 0 {
            return self.fetching_ended(result);
        }
        self.fetch_many(batch);
    }

    /// The driver has given requests.
    #[inline]
    pub(super) fn fetched_many(&self, result: i32, flags: u32) {
        let batch = self.batch();
        if let Some(buffer) = uring::buffer_of(flags) {
            let count = Batch::count(result);
            self.in_vain.set(0);
            self.reactor.stands_for(count as i64 - 1);
            for place in 0..count {
                // SAFETY: this completion tells of the buffer, which is given back below.
                let tag = unsafe { batch.borrow().tag(buffer, place) };
                self.begin(tag);
            }
            // SAFETY: as above.
            unsafe { batch.borrow_mut().give_back(buffer) };
        }
        if flags & uring::MORE == 0 {
            // Without buffers, or room for a completion, it ends for this time only.
            let for_now = [-libc::ENOBUFS, -libc::EAGAIN, -libc::ENOMEM, -libc::EOVERFLOW];
            // A buffer may be lost each time, and without any it would go on like this.
            match result {
                0.. => self.fetch_many(batch),
                _ if for_now.contains(&result) && self.may_go_on() => {
                    self.ask_again(about::FETCH_AGAIN);
                }
                _ => self.fetching_ended(result),
            }
        }
    }

    /// The driver has done with a list.
    #[inline]
    pub(super) fn committed(&self, list: u16, result: i32) {
        self.reactor.stands_for(-1);
        self.unheard.store(false, Ordering::Relaxed);
        if matches!(-result, libc::ENOMEM | libc::EAGAIN) && self.may_go_on() {
            // None of them was carried out: the same list is given again.
            return self.ask_again(about::COMMIT_AGAIN | u64::from(list));
        }
        let left = self.batch().borrow_mut().done(list, result);
        if !left.is_empty() {
            self.refused(&left, result);
        }
        if self.batch().borrow().is_over() {
            self.end_tags();
        } else if self.leaving.get() {
            self.tell_if_idle();
        }
    }

    /// Gives the driver the list again that it has refused.
    pub(super) fn commit_again(&self, list: u16) {
        let (command, elements) = self.batch().borrow().command(list);
        let token = about::COMMITTED | u64::from(list);
        // It may be refused again.
        self.hand_list(driver::io::COMMIT_IO_CMDS, token, (command, elements), true);
    }

    /// Whether the driver, which has refused something for a moment, is asked again. Lists that are refused side by side
    /// count as one: however many there are, it has as long.
    pub(super) fn may_go_on(&self) -> bool {
        let now = Instant::now();
        if now >= self.counted_until.get() {
            self.in_vain.set(self.in_vain.get().saturating_add(1));
            self.counted_until.set(now + AGAIN_AFTER);
        }
        self.in_vain.get() <= IN_VAIN_MAX
    }

    /// Asks it again: at once the first time, then after a pause.
    #[cold]
    fn ask_again(&self, token: u64) {
        match self.in_vain.get() {
            0..=1 => self.complete(token, 0, 0),
            _ => {
                self.reactor.timer(Instant::now() + AGAIN_AFTER, self.me(), token);
            }
        }
    }

    /// Results that the driver did not take.
    #[cold]
    fn refused(&self, tags: &[u16], result: i32) {
        self.note_end(if result < 0 { result } else { -libc::EIO });
        tags.iter().for_each(|tag| self.tags.borrow_mut().ended(*tag));
        self.tell_end();
    }

    /// The driver gives no more requests.
    #[cold]
    fn fetching_ended(&self, result: i32) {
        self.note_end(result);
        self.batch().borrow_mut().end();
        self.end_tags();
    }

    /// All tags end that nobody has any more: what the server has, and what the driver is yet to be told of, ends later.
    #[cold]
    fn end_tags(&self) {
        for tag in 0..self.config.depth {
            let is_told = !self.batch().borrow().has(tag);
            if is_told && self.tags.borrow().is_fetching(tag) {
                self.tags.borrow_mut().ended(tag);
            }
        }
        self.tell_end();
    }

    /// Hands the list that was gathered to the driver.
    pub(super) fn hand_over(&self, batch: &RefCell<Batch>, operation: u32, then: u64) {
        let Some((list, command, elements)) = batch.borrow_mut().close() else { return };
        // The answer to results is heard with the requests that come next, or within a second (`Device::look`), unless
        // there may be none, or it may be another refusal.
        let waits = operation != driver::io::COMMIT_IO_CMDS
            || self.attends.get()
            || self.in_vain.get() > 0
            || batch.borrow().is_over();
        self.hand_list(operation, then | u64::from(list), (command, elements), waits);
    }

    /// Where it `waits` the answer ends a sleep.
    fn hand_list(&self, operation: u32, token: u64, list: (BatchCommand, *const u8), waits: bool) {
        let (command, elements) = list;
        let entry = entry::uring_cmd(self.file, operation, elements as u64, command.to_bytes());
        // SAFETY: the list is the batch's until it is told that it is done, and that lives as long as this queue, the
        // sink. So does the memory that the list names.
        unsafe {
            match waits {
                true => self.reactor.submit(entry, self.me(), token),
                false => self.reactor.submit_at_once(entry, self.me(), token),
            }
        }
        self.unheard.store(!waits, Ordering::Relaxed);
    }

    /// Has the driver give requests many at a time, until it ends this.
    pub(super) fn fetch_many(&self, batch: &RefCell<Batch>) {
        let (group, command) = {
            let batch = batch.borrow();
            (batch.group(), batch.fetch().to_bytes())
        };
        let operation = driver::io::FETCH_IO_CMDS;
        let entry = entry::uring_cmd_multishot(self.file, operation, group, command);
        // SAFETY: the entry names a group of buffers which the queue, the sink, keeps.
        unsafe { self.reactor.submit(entry, self.me(), about::FETCHED) };
    }
}
