//! Work that would keep a reactor's thread: it is done aside, by a thread of the pool that may block.

use reactor::{Complete, Reactor};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// Has `work` done aside, and calls `then` on this thread with what came of it; with none if no thread could be had, or the
/// reactor ends.
pub(crate) fn aside<T: Send + 'static>(
    reactor: &Reactor,
    work: impl FnOnce() -> T + Send + 'static,
    then: impl FnOnce(Option<T>) + 'static,
) {
    let place = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&place);
    let work = Box::new(move || {
        let found = work();
        *theirs.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        0
    });
    let then = Cell::new(Some(Box::new(then) as Then<T>));
    reactor.blocking(work, Rc::new(Aside { place, then }), 0);
}

type Then<T> = Box<dyn FnOnce(Option<T>)>;

struct Aside<T> {
    place: Arc<Mutex<Option<T>>>,
    then: Cell<Option<Then<T>>>,
}

impl<T> Complete for Aside<T> {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        let found = self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(then) = self.then.take() {
            then(found);
        }
    }
}
