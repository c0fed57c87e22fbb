//! Which pieces of the pool's memory are registered with a ring.

use std::cell::RefCell;
use std::io;
use uring::Ring;

/// Memory is registered in pieces of this size, each when it is first needed: registering pins it,
/// and an idle server shall not hold what it does not use.
pub const PIECE: usize = 2 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Untried,
    Registered,
    Refused,
}

/// The pieces of one pool as one ring has them; the index of a piece is that of its registered
/// buffer.
pub struct Pieces {
    states: RefCell<Box<[State]>>,
    refusal: RefCell<Option<io::Error>>,
    /// The ring has a table.
    made: bool,
}

impl Pieces {
    /// Makes the ring's table of registered buffers, with `further` places behind the pieces; it must
    /// have none yet.
    pub fn new(ring: Option<&mut Ring>, count: usize, further: u16) -> Pieces {
        let table = ring.map(|ring| ring.register_buffers(count as u32 + u32::from(further)));
        let usable = matches!(table, Some(Ok(())));
        let state = if usable { State::Untried } else { State::Refused };
        let refusal = RefCell::new(table.and_then(Result::err));
        Pieces { states: RefCell::new(vec![state; count].into()), refusal, made: usable }
    }

    /// Whether the ring has a table of registered buffers.
    pub fn is_made(&self) -> bool {
        self.made
    }

    /// Whether a piece is registered; `None` if that was not tried yet.
    #[inline]
    pub fn state(&self, piece: usize) -> Option<bool> {
        match self.states.borrow()[piece] {
            State::Untried => None,
            State::Registered => Some(true),
            State::Refused => Some(false),
        }
    }

    /// Registers a piece that begins at `start`. Whether the kernel took it.
    ///
    /// # Safety
    /// The memory stays mapped as long as the ring lives.
    #[cold]
    pub unsafe fn register(&self, ring: &mut Ring, piece: usize, start: *mut u8) -> bool {
        // SAFETY: passed on to the caller.
        match unsafe { ring.update_buffer(piece as u32, start, PIECE) } {
            Ok(()) => {
                self.states.borrow_mut()[piece] = State::Registered;
                true
            }
            Err(error) => {
                // What was refused once for want of lockable memory will be again: ask no more.
                for state in self.states.borrow_mut().iter_mut() {
                    if *state == State::Untried {
                        *state = State::Refused;
                    }
                }
                *self.refusal.borrow_mut() = Some(error);
                false
            }
        }
    }

    /// Bytes registered, and so pinned.
    pub fn registered(&self) -> usize {
        let states = self.states.borrow();
        states.iter().filter(|state| **state == State::Registered).count() * PIECE
    }

    /// Why some pieces are not registered, for people; `None` if all that were tried are.
    pub fn refusal(&self) -> Option<String> {
        let refusal = self.refusal.borrow();
        let error = refusal.as_ref()?;
        if !self.made && error.raw_os_error() == Some(libc::EOPNOTSUPP) {
            return Some("io_uring is not used: there are no fixed buffers".into());
        }
        Some(format!(
            "{} of {} KiB are registered as fixed buffers, the kernel refused more ({error}); \
             raise RLIMIT_MEMLOCK (`ulimit -l`) to register all",
            self.registered() >> 10,
            (self.states.borrow().len() * PIECE) >> 10,
        ))
    }
}
