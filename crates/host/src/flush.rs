//! One Flush: on a queue of its own, on the control thread, or on a core's where all are in use.

use crate::control::{self, Control};
use crate::queue::{IoQueue, PathQueue};
use crate::shared::Shared;
use namespace::{AccessWatcher, Queue, Request, Sink};
use nvme::{Command, Status, opcode};
use reactor::{Complete, Reactor, TimerId};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

const TOKEN_TRY: u64 = 0;
const TOKEN_END: u64 = 1;

/// Waits until the queue is usable, flushes, and tells how that went. Held by its timer and by its
/// request; nothing is told when the time is over. The queue is closed as soon as there is an answer: it
/// is one of those that the controller grants, and some core may want it.
struct Flush {
    me: Weak<Flush>,
    reactor: Rc<Reactor>,
    queue: RefCell<Option<Rc<PathQueue>>>,
    timer: Cell<Option<TimerId>>,
    sent: Cell<bool>,
    sender: Sender<Status>,
}

impl Flush {
    fn start(
        reactor: &Rc<Reactor>,
        queue: Rc<PathQueue>,
        timeout: Duration,
        sender: Sender<Status>,
    ) {
        let flush = Rc::new_cyclic(|me| Flush {
            me: me.clone(),
            reactor: Rc::clone(reactor),
            queue: RefCell::new(Some(Rc::clone(&queue))),
            timer: Cell::new(None),
            sent: Cell::new(false),
            sender,
        });
        let watcher: Rc<dyn AccessWatcher> = flush.clone();
        queue.watch_access(Rc::downgrade(&watcher));
        let timer = reactor.timer(reactor.now() + timeout, flush.clone(), TOKEN_END);
        flush.timer.set(Some(timer));
        reactor.defer(flush, TOKEN_TRY);
    }

    fn try_now(&self) {
        let queue = self.queue.borrow().clone();
        let Some(queue) = queue.filter(|queue| queue.is_connected()) else { return };
        if self.sent.replace(true) {
            return;
        }
        let mut request = Request::new();
        request.command = Command { opcode: opcode::io::FLUSH, ..Command::default() };
        request.push(self.me.upgrade().expect("it is being called"), 0);
        queue.submit(request);
    }
}

/// Sends Flush by a queue of its own of the path `id`, on the control thread, or by a core's if there can be no other.
/// Its status is told unless `timeout` is over first.
pub(crate) fn flush(
    control: &Arc<Control>,
    id: u64,
    shared: &Arc<Shared>,
    reactor: &Rc<Reactor>,
    (timeout, sender): (Duration, Sender<Status>),
) {
    match control::queue_to_share(id) {
        Some(handle) => {
            // Whoever waited may have given up.
            let answer = Answer::new(move |status| {
                let _ = sender.send(status);
            });
            handle.tell(move |queue| flush_on(queue, answer));
        }
        None => {
            // There may be as many as the controller grants meanwhile; then it waits for one.
            shared.reserve(usize::MAX);
            let queue = IoQueue::open(control, id, shared, reactor, None);
            Flush::start(reactor, queue, timeout, sender);
        }
    }
}

/// Sends Flush on `queue`, which has its own user, if that is connected.
pub(crate) fn flush_on(queue: &IoQueue, answer: Answer) {
    let mut request = Request::new();
    request.command = Command { opcode: opcode::io::FLUSH, ..Command::default() };
    request.push(Rc::new(Asked(Cell::new(Some(answer)))), 0);
    queue.submit_here(request);
}

/// Whoever waits for the status, on any thread. Dropped, that is Host Pathing Error.
pub(crate) struct Answer(Option<Box<dyn FnOnce(Status) + Send>>);

impl Answer {
    pub(crate) fn new(give: impl FnOnce(Status) + Send + 'static) -> Answer {
        Answer(Some(Box::new(give)))
    }

    fn give(mut self, status: Status) {
        if let Some(give) = self.0.take() {
            give(status);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(give) = self.0.take() {
            give(Status::HOST_PATHING_ERROR);
        }
    }
}

struct Asked(Cell<Option<Answer>>);

impl Sink for Asked {
    fn completed(&self, request: Box<Request>, _state: u64) {
        if let Some(answer) = self.0.take() {
            answer.give(request.status);
        }
    }
}

impl Complete for Flush {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        if token == TOKEN_TRY {
            self.try_now();
        } else {
            if let Some(timer) = self.timer.take() {
                self.reactor.cancel_timer(timer);
            }
            drop(self.queue.take());
        }
    }
}

impl AccessWatcher for Flush {
    fn access_changed(&self) {
        if let Some(me) = self.me.upgrade() {
            self.reactor.defer(me, TOKEN_TRY);
        }
    }
}

impl Sink for Flush {
    fn completed(&self, request: Box<Request>, _state: u64) {
        // Whoever waited may have given up.
        let _ = self.sender.send(request.status);
        // Not from within the queue's call.
        if let Some(me) = self.me.upgrade() {
            self.reactor.defer(me, TOKEN_END);
        }
    }
}
