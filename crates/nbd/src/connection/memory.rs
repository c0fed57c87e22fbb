//! Memory of the buffer pool: who may take how much, and who waits for it.

use super::{Connection, Inner, TOKEN_BUFFERS};
use namespace::Data;
use namespace::output::Payload;
use reactor::{Buffer, Complete};
use std::rc::Rc;

/// What a connection has of the core's buffer pool, in bytes.
#[derive(Default)]
pub(super) struct Holding {
    held: usize,
    /// Of that, data of replies that the client has not taken yet.
    sending: usize,
    /// Some was given back since [`Connection::memory_state`] last looked.
    has_given_back: bool,
    /// The peer had some that waited for nobody else then.
    was_holding: bool,
    /// In the queue of those to whom the pool's free memory goes next.
    pub(super) waits_for_buffers: bool,
}

impl Holding {
    /// A reply was sent.
    pub(super) fn sent(&mut self, payload: Payload) {
        if let Payload::Data(Data::Buffer(buffer)) = &payload {
            self.sending -= buffer.capacity();
            self.given_back(buffer);
        }
    }

    /// Data is about to be queued for the client.
    pub(super) fn send(&mut self, data: &Data) {
        if let Data::Buffer(buffer) = data {
            self.sending += buffer.capacity();
        }
    }

    /// A volume that was asked to lend its memory has answered with data, possibly in a buffer that it took itself.
    pub(super) fn given(&mut self, data: &Data) {
        if let Data::Buffer(buffer) = data {
            self.held += buffer.capacity();
        }
    }

    /// A buffer is about to be dropped.
    pub(super) fn given_back(&mut self, buffer: &Buffer) {
        self.held -= buffer.capacity();
        self.has_given_back = true;
    }

    /// Data is about to be dropped.
    pub(super) fn dropped(&mut self, data: &Data) {
        if let Data::Buffer(buffer) = data {
            self.given_back(buffer);
        }
    }

    /// Whether the peer sits on memory of the pool: it has some that waits for nobody else, as when this
    /// was last asked, and nothing was given back since. `receiving`: data is on its way into some.
    fn stalled(&mut self, receiving: bool) -> bool {
        let holding = self.sending > 0 || receiving;
        let for_long = std::mem::replace(&mut self.was_holding, holding) && holding;
        !std::mem::take(&mut self.has_given_back) && for_long
    }
}

impl Connection {
    /// A buffer of `bytes`, if this connection's share of the pool leaves room: it never holds more
    /// than is free, so that however many peers sit on what they have, something is left for the
    /// next; and who holds something takes no more while others wait for any. The first buffer may
    /// always be tried for, and one that `is_urgent`.
    ///
    /// What this refuses is tried again when another command of the connection has ended.
    #[inline]
    pub(super) fn allocate(
        &self,
        inner: &mut Inner,
        bytes: usize,
        is_urgent: bool,
    ) -> Option<Buffer> {
        let held = inner.memory.held;
        let pool = self.core.reactor.buffers();
        let others_wait = || self.core.buffer_waiters.get() != 0;
        if !is_urgent && held > 0 && (held + bytes > pool.available() || others_wait()) {
            return None;
        }
        let Some(buffer) = pool.allocate(bytes) else {
            self.wait_for_buffers(inner);
            return None;
        };
        inner.memory.held += buffer.capacity();
        Some(buffer)
    }

    /// Be told when some memory is free.
    fn wait_for_buffers(&self, inner: &mut Inner) {
        if !inner.memory.waits_for_buffers {
            inner.memory.waits_for_buffers = true;
            self.core.buffer_waiters.set(self.core.buffer_waiters.get() + 1);
            self.core.reactor.buffers().wait(self.me(), TOKEN_BUFFERS);
            self.core.watch_stalls();
        }
    }

    /// It is told of memory no more: or those behind would wait for that.
    pub(super) fn leave_line(&self, inner: &mut Inner) {
        if inner.memory.waits_for_buffers {
            let me: Rc<dyn Complete> = self.me();
            self.core.reactor.buffers().stop_waiting(&me, TOKEN_BUFFERS);
        }
        self.waits_no_more(inner);
    }

    pub(super) fn waits_no_more(&self, inner: &mut Inner) {
        if std::mem::take(&mut inner.memory.waits_for_buffers) {
            self.core.buffer_waiters.set(self.core.buffer_waiters.get() - 1);
        }
    }

    /// What waited for this connection's share gets another try. Whether anything was let through.
    pub(super) fn retry_share(&self, inner: &mut Inner) -> bool {
        let waits = inner.incoming.as_ref().is_some_and(|incoming| incoming.waits);
        if inner.memory.waits_for_buffers || !waits && inner.waiting.is_empty() {
            return false;
        }
        self.retry_waiting(inner)
    }

    /// Memory of the pool came free: a reply that has begun gets another try, then the write that is being received, then
    /// the requests that wait, in order. Whether anything was let through.
    pub(super) fn retry_waiting(&self, inner: &mut Inner) -> bool {
        let mut progress = false;
        // First, since what else was read is answered after it, and the share refuses others without a place in the line.
        if let Some(slot) = inner.streaming
            && inner.exchanges.slot(slot).waits
        {
            inner.waiting.retain(|waiting| *waiting != slot);
            if !self.retry(inner, slot) {
                return false;
            }
            progress = true;
        }
        if inner.incoming.as_ref().is_some_and(|incoming| incoming.waits) {
            if !self.place_incoming(inner) {
                return false;
            }
            progress = true;
        }
        for _ in 0..inner.waiting.len() {
            let Some(slot) = inner.waiting.pop_front() else { break };
            if !self.retry(inner, slot) {
                break;
            }
            progress = true;
        }
        progress
    }

    /// Goes on with a request that was taken out of those that wait. False if it is there again, before all others.
    fn retry(&self, inner: &mut Inner, slot: u32) -> bool {
        inner.exchanges.slot(slot).waits = false;
        self.proceed(inner, slot);
        let waits = inner.exchanges.slot(slot).waits;
        if waits {
            // It went to the back.
            inner.waiting.rotate_right(1);
        }
        !waits
    }

    /// Whether requests wait for the pool, and whether the peer sits on memory of it.
    pub(crate) fn memory_state(&self) -> (bool, bool) {
        if self.closed.get() {
            return (false, false);
        }
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let receiving = inner.incoming.as_ref().is_some_and(|incoming| incoming.holds_memory());
        (inner.memory.waits_for_buffers, inner.memory.stalled(receiving))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_stalls_when_it_held_memory_before_and_has_given_none_back() {
        let mut memory = Holding::default();
        assert!(!memory.stalled(false));
        assert!(!memory.stalled(true), "for a moment only");
        assert!(memory.stalled(true));
        memory.sending = 4096;
        assert!(memory.stalled(false), "it is answered, and does not read");
        memory.has_given_back = true;
        assert!(!memory.stalled(false));
        assert!(memory.stalled(false));
        memory.sending = 0;
        assert!(!memory.stalled(false), "it has none");
        assert!(!memory.stalled(true), "for a moment only");
    }
}
