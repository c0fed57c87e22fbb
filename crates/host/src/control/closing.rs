//! Paths that are closed in order: their controllers are told, which takes a moment.

use super::Driver;
use reactor::Reactor;
use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Paths of this process that are being closed.
static COUNT: Mutex<usize> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// Those of them that this control thread has, and whether it is to end after them.
    static HERE: Cell<usize> = const { Cell::new(0) };
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// A path that is being closed.
pub(super) struct Closing(());

impl Closing {
    pub(super) fn begin() -> Closing {
        *count() += 1;
        Closing(())
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        *count() -= 1;
        CHANGED.notify_all();
    }
}

fn count() -> MutexGuard<'static, usize> {
    COUNT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the controllers of paths that were closed know, but no longer than `timeout`: what a process does before it
/// ends. Paths that are still in use are not waited for.
pub fn await_closed(timeout: Duration) {
    drop(CHANGED.wait_timeout_while(count(), timeout, |count| *count > 0));
}

/// Has this control thread end once no path is being closed.
pub(super) fn stop_once_closed(reactor: &Reactor) {
    ENDS.set(true);
    if HERE.get() == 0 {
        reactor.stop();
    }
}

impl Driver {
    /// The path is closed: its controller is told, if there is one.
    pub(super) fn end(&self, closing: Closing) {
        HERE.set(HERE.get() + 1);
        let me = self.me.upgrade().expect("it is being called");
        self.closing.replace(Some((me, closing)));
        self.association.borrow_mut().shut_down(self.now());
        self.pump();
    }

    pub(super) fn look_whether_it_has_closed(&self) {
        if self.closing.borrow().is_none() || self.association.borrow().is_closing() {
            return;
        }
        if let Some((timer, _)) = self.timer.take() {
            self.reactor.cancel_timer(timer);
        }
        HERE.set(HERE.get() - 1);
        if ENDS.get() && HERE.get() == 0 {
            self.reactor.stop();
        }
        // Whoever is being called holds it as well.
        self.closing.take();
    }
}
