//! Calling a queue on its own core from any other.

use reactor::{Mailbox, Reactor};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};

/// Something that can be called from other cores, by number since it cannot leave its own.
pub trait Wake {
    /// Called on its own thread, from the reactor's loop.
    fn wake(&self, value: u64);
}

thread_local! {
    static SLEEPERS: RefCell<HashMap<u64, Weak<dyn Wake>>> = RefCell::default();
}

/// A handle for other threads. Dropping the last use of its number is [`Waker::forget`].
#[derive(Clone)]
pub struct Waker {
    mailbox: Mailbox,
    id: u64,
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Waker").field(&self.id).finish()
    }
}

/// Something that is told numbers from other threads, whichever way.
pub trait Called: Send + Sync + std::fmt::Debug {
    /// A number that nothing else of the process has: see [`number`].
    fn id(&self) -> u64;

    /// Has it told soon. `false` if it has ended.
    fn call(&self, value: u64) -> bool;
}

/// A number that nothing else which is called has.
pub fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Called for Waker {
    fn id(&self) -> u64 {
        self.id
    }

    fn call(&self, value: u64) -> bool {
        Waker::call(self, value)
    }
}

impl Waker {
    /// Makes `sleeper`, which lives on this thread under `reactor`, reachable.
    pub fn new(reactor: &Reactor, sleeper: Weak<dyn Wake>) -> Waker {
        let id = number();
        SLEEPERS.with_borrow_mut(|sleepers| sleepers.insert(id, sleeper));
        Waker { mailbox: reactor.mailbox(), id }
    }

    /// A number that no other waker of the process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Has `wake(value)` called soon. `false` if the reactor has ended. However many letters wait: the number of calls is
    /// bounded, and they must not be lost.
    pub fn call(&self, value: u64) -> bool {
        self.mailbox.post_counted(self.letter(value))
    }

    /// Whether the reactor has not ended.
    pub fn is_alive(&self) -> bool {
        self.mailbox.post_counted(|_| ())
    }

    fn letter(&self, value: u64) -> impl FnOnce(&Rc<Reactor>) + Send + use<> {
        let id = self.id;
        move |_| {
            let sleeper = SLEEPERS.with_borrow(|sleepers| sleepers.get(&id).cloned());
            if let Some(sleeper) = sleeper.and_then(|sleeper| sleeper.upgrade()) {
                sleeper.wake(value);
            }
        }
    }

    /// Ends reachability. To be called on the sleeper's thread, when it ends.
    pub fn forget(&self) {
        // The table may be gone already when the thread is ending.
        let _ = SLEEPERS.try_with(|sleepers| sleepers.borrow_mut().remove(&self.id));
    }
}
