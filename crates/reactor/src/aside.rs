//! Work with a result that would keep a reactor's thread: a thread of the pool that may block does it.

use crate::blocking::Work;
use crate::{Complete, Line, Reactor};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

impl Reactor {
    /// Has `work` done aside, as [`Reactor::blocking_long`] does if it `takes_long`, else as [`Reactor::blocking`]; then calls `then` on this thread with
    /// what came of it: with none if no thread could be had, it panicked, or the reactor ends.
    pub fn aside<T: Send + 'static>(
        &self,
        takes_long: bool,
        work: impl FnOnce() -> T + Send + 'static,
        then: impl FnOnce(Option<T>) + 'static,
    ) {
        let (work, sink) = aside(work, then);
        if takes_long {
            self.blocking_long(work, sink, 0);
        } else {
            self.blocking(work, sink, 0);
        }
    }

    /// The same for long work in a line of its own ([`Reactor::blocking_in`]).
    pub fn aside_in<T: Send + 'static>(
        &self,
        line: Line,
        work: impl FnOnce() -> T + Send + 'static,
        then: impl FnOnce(Option<T>) + 'static,
    ) {
        let (work, sink) = aside(work, then);
        self.blocking_in(line, work, sink, 0);
    }
}

/// Work that leaves what it finds to `then`, and who calls that.
fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    then: impl FnOnce(Option<T>) + 'static,
) -> (Work, Rc<dyn Complete>) {
    let place = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&place);
    let work = Box::new(move || {
        let found = work();
        *theirs.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        0
    });
    (work, Rc::new(Aside { place, then: Cell::new(Some(then)) }))
}

struct Aside<T, F> {
    place: Arc<Mutex<Option<T>>>,
    then: Cell<Option<F>>,
}

impl<T, F: FnOnce(Option<T>)> Complete for Aside<T, F> {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        let found = self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(then) = self.then.take() {
            then(found);
        }
    }
}
