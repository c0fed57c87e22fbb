//! Cores that do nothing for a while: a program drives its session only when it has something to do.

use crate::rig;

use namespace::{Access, Data, Namespace, Queue, Request, Sink};
use nvme::Status;
use reactor::{Drive, Reactor};
use rig::{PATIENCE, Target, connect, options, read};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A core on the test's own thread.
struct Resting {
    reactor: Rc<Reactor>,
    queue: Rc<dyn Queue>,
    done: Rc<Done>,
}

#[derive(Default)]
struct Done(RefCell<Vec<Status>>);

impl Sink for Done {
    fn completed(&self, request: Box<Request>, _state: u64) {
        self.0.borrow_mut().push(request.status);
    }
}

impl Resting {
    fn on(path: Arc<host::Path>) -> Resting {
        let reactor = Reactor::new(&reactor::Config::default()).expect("a reactor");
        let queue = path.open_queue(&reactor).expect("a queue");
        Resting { reactor, queue, done: Rc::default() }
    }

    fn turn_until(&self, over: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !over() {
            assert!(Instant::now() < until, "access is {:?}", self.queue.access());
            self.reactor.turn_for(Drive::Until(Instant::now() + Duration::from_millis(10)));
        }
    }

    fn submit(&self, reads: usize) {
        self.done.0.borrow_mut().clear();
        for _ in 0..reads {
            let mut request = Request::new();
            request.command = read(0, 512);
            request.data = Data::Buffer(self.reactor.buffers().allocate(512).expect("memory"));
            request.push(self.done.clone(), 0);
            self.queue.submit(request);
        }
    }

    /// Waits until so many commands have come back well; how long it took.
    fn complete(&self, reads: usize) -> Duration {
        let begin = Instant::now();
        self.turn_until(|| self.done.0.borrow().len() == reads);
        let failed: Vec<Status> =
            self.done.0.borrow().iter().copied().filter(|status| !status.is_success()).collect();
        assert!(failed.is_empty(), "{failed:?}");
        begin.elapsed()
    }
}

/// Commands of a queue at most, with the default size.
const DEPTH: usize = 127;

#[test]
fn time_in_which_nobody_looked_is_not_the_commands() {
    let target = Target::memory();
    let mut options = options();
    // Each is shorter than a pause, and not so short that a machine that stalls would use it up.
    options.io_timeout = Duration::from_secs(8);
    options.association.keep_alive_tmo = Duration::from_secs(8);
    let path = connect(target.address, &options);
    let core = Resting::on(path.clone());
    core.turn_until(|| core.queue.access() == Access::Optimized);
    core.submit(1);
    core.complete(1);
    for sent_before in [false, true] {
        if sent_before {
            core.submit(DEPTH);
            core.reactor.turn_for(Drive::Poll);
        }
        std::thread::sleep(Duration::from_secs(10));
        if !sent_before {
            core.submit(DEPTH);
        }
        core.complete(DEPTH);
        // No identifier rests because its command was aborted, which would be for 15 s.
        core.submit(DEPTH);
        let took = core.complete(DEPTH);
        assert!(took < Duration::from_secs(12), "{took:?}");
    }
    assert_eq!(path.paths()[0].reconnects, 0);
}

#[test]
fn a_connection_that_was_not_used_in_time_is_made_again() {
    let target = Target::memory();
    let path = connect(target.address, &options());
    let core = Resting::on(path.clone());
    // Longer than the target lets a connection be without Connect.
    std::thread::sleep(Duration::from_secs(12));
    core.turn_until(|| core.queue.access() == Access::Optimized);
    core.submit(1);
    core.complete(1);
    assert_eq!(path.paths()[0].reconnects, 0, "the association has nothing to do with it");
}
