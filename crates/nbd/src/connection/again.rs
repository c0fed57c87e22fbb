//! Commands that are tried again: their clients would take an error of the moment for one of the disk.

use super::{Connection, Inner, TOKEN_AGAIN};
use crate::exchange::Read;
use namespace::{Data, Request};
use nvme::Status;
use std::time::Duration;

/// Commands that wait for it, each at its place, with what they come back to.
#[derive(Default)]
pub(super) struct Later(Vec<Option<(u64, Box<Request>)>>);

impl Later {
    /// Takes one in; returns its place.
    fn add(&mut self, state: u64, request: Box<Request>) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[place] = Some((state, request));
        place
    }
}

impl Connection {
    /// For how long to wait before the command is given to the volume again, if it is.
    #[inline]
    pub(super) fn pause(
        &self,
        inner: &mut Inner,
        state: u64,
        request: &Request,
    ) -> Option<Duration> {
        if request.status.is_success() {
            return None;
        }
        Self::pause_of_failed(inner, state, request)
    }

    #[cold]
    fn pause_of_failed(inner: &mut Inner, state: u64, request: &Request) -> Option<Duration> {
        let read =
            Self::read_of(state).and_then(|index| inner.exchanges.slot(state as u32).reads[index]);
        if let Some(Read { has_buffer: false, .. }) = read {
            // It was to lend memory of its own, and wants some of ours, or has taken some.
            let is_as_before = matches!(request.data, Data::None);
            if !is_as_before || request.status.code() == Status::COMMAND_INTERRUPTED {
                return None;
            }
        }
        inner.exchanges.slot(state as u32).tries.next(&request.asked, request.status)
    }

    /// As [`Connection::submit`], after a while. Until then it counts as being with the volume.
    #[cold]
    pub(super) fn submit_after(&self, pause: Duration, state: u64, request: Box<Request>) {
        tracing::debug!(status = %request.status, ?pause, "a command is tried again");
        self.running.set(self.running.get() + 1);
        let place = self.later.borrow_mut().add(state, request);
        let reactor = &self.core.reactor;
        reactor.timer(reactor.now() + pause, self.me(), TOKEN_AGAIN + place as u64);
    }

    /// The pause is over.
    #[cold]
    pub(super) fn submit_again(&self, place: usize) {
        let Some((state, mut request)) = self.later.borrow_mut().0[place].take() else { return };
        self.running.set(self.running.get() - 1);
        if self.closed.get() {
            self.core.recycle(request);
            return self.drained();
        }
        // Layers have changed it; and if it fails again, that may come with no error of the system's.
        (request.command, request.os_error) = (request.asked, 0);
        self.within(|inner| {
            let (_, view) = inner.serving();
            self.submit(&view.queue, state, request);
        });
        self.defer();
    }
}
