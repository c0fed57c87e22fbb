//! For tests: the end of one request, which stops its reactor.

use crate::{Request, Sink};
use reactor::Reactor;
use std::cell::Cell;
use std::rc::Rc;

pub struct End {
    pub reactor: Rc<Reactor>,
    pub request: Cell<Option<Box<Request>>>,
}

impl Sink for End {
    fn completed(&self, request: Box<Request>, _state: u64) {
        self.request.set(Some(request));
        self.reactor.stop();
    }
}
