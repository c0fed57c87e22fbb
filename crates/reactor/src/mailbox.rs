//! Work sent to a reactor by other threads.

use crate::Reactor;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::{fmt, io};

/// Letters that may wait in one mailbox; more are refused.
pub const LETTERS_MAX: usize = 65_536;

/// Something to run on the reactor's thread.
pub type Letter = Box<dyn FnOnce(&Rc<Reactor>) + Send>;

/// A handle to a reactor for any thread.
#[derive(Clone)]
pub struct Mailbox {
    shared: Arc<Shared>,
}

struct Shared {
    post: Mutex<Post>,
    /// There may be something in `post`. Stored after it was put there, read without the lock.
    pending: AtomicBool,
    /// Where the reactor sleeps or is about to ([`AWAKE`], ...): whoever takes this writes the eventfd of that place.
    asleep: AtomicU8,
    event: OwnedFd,
    /// Told when it sleeps outside.
    outside: OnceLock<OwnedFd>,
}

/// The reactor does not sleep.
const AWAKE: u8 = 0;
/// It sleeps in an enter of its ring, which reads [`Mailbox::event`].
const INSIDE: u8 = 1;
/// Its caller sleeps elsewhere, on [`Mailbox::outside`].
const OUTSIDE: u8 = 2;

/// What waits. The reactor swaps it for an empty one, so that memory is used again.
#[derive(Default)]
pub struct Post {
    /// To be run, in order.
    pub letters: VecDeque<Letter>,
    /// Blocking work that has ended: its slot and result.
    pub done: VecDeque<(u64, i32)>,
    closed: bool,
}

impl Post {
    /// Whether nothing waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.letters.is_empty() && self.done.is_empty()
    }
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Mailbox> {
        // Not EFD_NONBLOCK: a read through the ring would then fail instead of waiting.
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        let (pending, asleep) = (AtomicBool::new(false), AtomicU8::new(AWAKE));
        let (post, outside) = (Mutex::default(), OnceLock::new());
        let shared = Shared { post, pending, asleep, event, outside };
        Ok(Mailbox { shared: Arc::new(shared) })
    }

    /// Runs `work` on the reactor's thread, after what was posted before, and wakes the reactor if
    /// it sleeps. `false` if the reactor has ended or 65,536 letters wait. A letter that a
    /// reactor has not come to when it stops is dropped unrun.
    pub fn post(&self, work: impl FnOnce(&Rc<Reactor>) + Send + 'static) -> bool {
        self.put(LETTERS_MAX, work)
    }

    /// As [`Mailbox::post`], however many wait: for letters that must not be lost, such as the end
    /// of something that was counted when it began, and whose number is bounded by that.
    pub fn post_counted(&self, work: impl FnOnce(&Rc<Reactor>) + Send + 'static) -> bool {
        self.put(usize::MAX, work)
    }

    fn put(&self, most: usize, work: impl FnOnce(&Rc<Reactor>) + Send + 'static) -> bool {
        let mut post = self.lock();
        if post.closed || post.letters.len() >= most {
            return false;
        }
        post.letters.push_back(Box::new(work));
        drop(post);
        self.notify();
        true
    }

    /// Reports blocking work. Never refused: each was accounted for when it began.
    pub(crate) fn done(&self, key: u64, result: i32) {
        self.lock().done.push_back((key, result));
        self.notify();
    }

    /// The order of the two flags on either side is what loses no wake-up: here `pending` is
    /// written, then `asleep` read; [`Mailbox::fall_asleep`] writes `asleep`, then reads
    /// `pending`. All are SeqCst, so at least one side sees the other's write.
    fn notify(&self) {
        self.shared.pending.store(true, Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst) == AWAKE {
            return;
        }
        match self.shared.asleep.swap(AWAKE, Ordering::SeqCst) {
            AWAKE => {}
            OUTSIDE => self.rouse(),
            _ => {
                rustix::io::write(&self.shared.event, &1u64.to_ne_bytes())
                    .expect("an eventfd takes a 1 while we hold it");
            }
        }
    }

    /// Announces sleep. `false` if something waits, and then nobody will write the eventfd.
    #[inline]
    pub(crate) fn fall_asleep(&self) -> bool {
        self.fall_asleep_at(INSIDE)
    }

    /// The same where [`Mailbox::outside`] is slept on. Whoever is woken need not say so: at most it is told once too
    /// often.
    pub(crate) fn fall_asleep_outside(&self) -> bool {
        self.fall_asleep_at(OUTSIDE)
    }

    #[inline]
    fn fall_asleep_at(&self, place: u8) -> bool {
        self.shared.asleep.store(place, Ordering::SeqCst);
        if self.shared.pending.load(Ordering::SeqCst) {
            self.wake_up();
            return false;
        }
        true
    }

    /// Sleep is over.
    #[inline]
    pub(crate) fn wake_up(&self) {
        self.shared.asleep.store(AWAKE, Ordering::SeqCst);
    }

    /// Whether [`Mailbox::collect`] may find something.
    #[inline]
    pub(crate) fn has_post(&self) -> bool {
        self.shared.pending.load(Ordering::Relaxed)
    }

    /// Swaps what waits for the empty `into`.
    pub(crate) fn collect(&self, into: &mut Post) {
        debug_assert!(into.is_empty());
        let mut post = self.lock();
        // Under the lock: whoever pushes later also sets the flag later.
        self.shared.pending.store(false, Ordering::SeqCst);
        std::mem::swap(&mut post.letters, &mut into.letters);
        std::mem::swap(&mut post.done, &mut into.done);
    }

    /// Refuses letters from now on, and returns those that wait.
    pub(crate) fn close(&self) -> VecDeque<Letter> {
        let mut post = self.lock();
        post.closed = true;
        std::mem::take(&mut post.letters)
    }

    /// What tells those who sleep outside, made at the first call. It does not block.
    pub(crate) fn outside(&self) -> io::Result<&OwnedFd> {
        if let Some(event) = self.shared.outside.get() {
            return Ok(event);
        }
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(self.shared.outside.get_or_init(|| event))
    }

    /// Wakes those who sleep outside.
    pub(crate) fn rouse(&self) {
        let event = self.shared.outside.get().expect("made before anybody sleeps on it");
        // One that takes no more, since somebody else has written it, is readable.
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
    }

    /// The descriptor that becomes readable to wake the reactor.
    pub(crate) fn event(&self) -> RawFd {
        self.shared.event.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Post> {
        self.shared.post.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Mailbox").field("event", &self.event()).finish_non_exhaustive()
    }
}
