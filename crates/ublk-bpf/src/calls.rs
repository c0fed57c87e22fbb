//! How the thread of a queue, which sleeps in the ring, is called from others: by a descriptor that the ring listens to.

use namespace::layer::program::{Called, Told, number};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What a queue was told and has not heeded.
#[derive(Debug)]
pub struct Calls {
    number: u64,
    bell: OwnedFd,
    told: Mutex<VecDeque<Told>>,
    arrived: Condvar,
    has_been_called: AtomicBool,
}

impl Calls {
    /// Nothing yet.
    pub fn new() -> io::Result<Calls> {
        Ok(Calls {
            number: number(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            told: Mutex::default(),
            arrived: Condvar::new(),
            has_been_called: AtomicBool::new(false),
        })
    }

    /// Written to with each call.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Its own.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether there was any call, ever.
    pub fn has_been_called(&self) -> bool {
        self.has_been_called.load(Ordering::Acquire)
    }

    /// The next of what it was told.
    pub fn next(&self) -> Option<Told> {
        self.told().pop_front()
    }

    /// Blocks until it is told something.
    pub fn wait(&self) {
        let told = self.arrived.wait_while(self.told(), |told| told.is_empty());
        drop(told.unwrap_or_else(PoisonError::into_inner));
    }

    fn told(&self) -> MutexGuard<'_, VecDeque<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Called for Calls {
    fn id(&self) -> u64 {
        self.number
    }

    fn call(&self, value: u64) -> bool {
        self.told().push_back(Told::from(value));
        self.has_been_called.store(true, Ordering::Release);
        self.arrived.notify_all();
        // It counts up to 2^64 - 2.
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn what_is_told_comes_in_its_order_and_wakes_who_waits() {
        let calls = Arc::new(Calls::new().unwrap());
        assert!(!calls.has_been_called() && calls.next().is_none());
        let waiting = thread::spawn({
            let calls = Arc::clone(&calls);
            move || {
                calls.wait();
                calls.next()
            }
        });
        assert!(calls.call(7));
        assert_eq!(waiting.join().unwrap(), Some(Told::Pause(7)));
        assert!(calls.call(8) && calls.call(0) && calls.has_been_called());
        assert_eq!([calls.next(), calls.next()], [Some(Told::Pause(8)), Some(Told::Resume)]);
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(calls.bell(), &mut count), Ok(8));
        assert_eq!(u64::from_ne_bytes(count), 3, "the ring is told of each");
        assert_ne!(calls.id(), Calls::new().unwrap().id());
    }
}
