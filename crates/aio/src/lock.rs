//! A mutex of one word, without poisoning: the library aborts where it would panic, so nobody ever sees a
//! value that a panic has left behind. Locking and unlocking cost an atomic instruction and a branch each,
//! and a wait leaves the caller's `errno` alone.

use crate::system::call;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::{hint, mem};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may be asleep.
const WANTED: u32 = 2;
/// Looks before sleeping: holders seldom take longer than a system call.
const LOOKS: u32 = 100;

/// A value that one thread at a time may use.
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the word lets one thread at a time to the value.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The right to use the value, until it is dropped.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Shared between threads, it would share the value: only where that may be.
    value: PhantomData<&'a mut T>,
}

impl<T> Lock<T> {
    /// Free.
    pub const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits until nobody else has it.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.wait();
        }
        Guard { lock: self, value: PhantomData }
    }

    /// Without waiting: None while anybody has it.
    #[cold]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).ok()?;
        Some(Guard { lock: self, value: PhantomData })
    }

    /// The right that this thread has kept.
    ///
    /// # Safety
    /// This thread has locked it and then called [`Guard::leave_locked`], and nobody has asked for that right since.
    #[inline(always)]
    pub unsafe fn kept(&self) -> Guard<'_, T> {
        Guard { lock: self, value: PhantomData }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..LOOKS {
            if self.word.load(Relaxed) == FREE
                && self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok()
            {
                return;
            }
            hint::spin_loop();
        }
        while self.word.swap(WANTED, Acquire) != FREE {
            self.futex(libc::FUTEX_WAIT, WANTED);
        }
    }

    #[inline(always)]
    fn give_up(&self) {
        if self.word.swap(FREE, Release) == WANTED {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.futex(libc::FUTEX_WAKE, 1);
    }

    fn futex(&self, operation: i32, value: u32) {
        let (place, operation) = (self.word.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG);
        // SAFETY: the word outlives the call. Whatever it answers, the word is looked at again.
        unsafe {
            call(libc::SYS_futex, [place as usize, operation as usize, value as usize, 0, 0, 0])
        };
    }
}

impl<T> Guard<'_, T> {
    /// Leaves the lock held, for [`Lock::kept`]: so a function can be handed the right without its guard.
    #[inline(always)]
    pub fn leave_locked(guard: Self) {
        mem::forget(guard);
    }

    /// Whether somebody seems to be asleep until it is given up.
    #[inline(always)]
    pub fn is_wanted(guard: &Self) -> bool {
        guard.lock.word.load(Relaxed) == WANTED
    }

    /// Gives up the lock for as long as that takes, which may be long.
    pub fn without<R>(guard: &mut Self, work: impl FnOnce() -> R) -> R {
        let lock = guard.lock;
        lock.give_up();
        let result = work();
        mem::forget(lock.lock());
        result
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: whoever has the guard has the value alone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns_and_sleepers_are_woken() {
        const EACH: u64 = 20_000;
        let lock = Lock::new((0_u64, 0_u64));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let lock = &lock;
                scope.spawn(move || {
                    for round in 0..EACH {
                        let mut both = lock.lock();
                        both.0 += 1;
                        if round % 1024 == thread {
                            // Long enough for the others to fall asleep.
                            std::thread::sleep(std::time::Duration::from_micros(200));
                        }
                        both.1 += 1;
                        assert_eq!(both.0, both.1);
                    }
                });
            }
        });
        let mut held = lock.lock();
        assert!(lock.try_lock().is_none() && !Guard::is_wanted(&held));
        lock.word.store(WANTED, Relaxed);
        assert!(Guard::is_wanted(&held));
        assert!(Guard::without(&mut held, || lock.try_lock().is_some()));
        assert!(lock.try_lock().is_none());
        drop(held);
        assert_eq!(*lock.try_lock().unwrap(), (4 * EACH, 4 * EACH));
        assert_eq!(lock.word.load(Relaxed), FREE);
    }
}
