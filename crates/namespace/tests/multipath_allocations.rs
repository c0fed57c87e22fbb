//! No allocation per command through multipath: choices and retries included.

use counting_allocator::Rounds;
use namespace::layer::delay::{Delay, Delays};
use namespace::layer::fault::{Fault, Rule};
use namespace::layer::multipath::{Multipath, MultipathOptions, Policy, Settings};
use namespace::null::Null;
use namespace::{Data, Namespace, Queue, Request, Sink};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::{Config, Poll, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

const DEPTH: u64 = 16;
/// Commands before counting starts: tables grow to what they need.
const WARM_UP: u64 = 4_000;
const COUNTED: u64 = 20_000;

/// Keeps `DEPTH` commands in flight, until all are done.
struct Load {
    queue: Rc<dyn Queue>,
    reactor: Rc<Reactor>,
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    done: RefCell<Vec<Box<Request>>>,
    sent: Cell<u64>,
    rounds: RefCell<Rounds>,
    allocations: Cell<Option<u64>>,
    me: Weak<Load>,
}

impl Sink for Load {
    fn completed(&self, request: Box<Request>, _state: u64) {
        assert!(request.status.is_success(), "{} {:?}", request.status, request.command);
        self.done.borrow_mut().push(request);
    }
}

impl Poll for Load {
    fn poll(&self) -> bool {
        let mut worked = false;
        loop {
            let Some(request) = self.done.borrow_mut().pop() else { return worked };
            worked = true;
            if let Some(allocations) = self.rounds.borrow_mut().ended() {
                self.allocations.set(Some(allocations));
                self.reactor.stop();
                return true;
            }
            self.send(request);
        }
    }

    fn park(&self) -> bool {
        false
    }
}

impl Load {
    fn send(&self, mut request: Box<Request>) {
        let number = self.sent.replace(self.sent.get() + 1);
        let code = match number % 4 {
            0 | 1 => opcode::READ,
            2 => opcode::WRITE,
            _ => opcode::FLUSH,
        };
        request.command = Command::blocks(code, 1, number % 200, 1);
        request.push(self.me.upgrade().expect("alive"), 0);
        self.queue.submit(request);
    }
}

/// Two paths that lose one command in ten, of which one takes a while.
fn lossy(delay: Duration) -> Vec<Arc<dyn Namespace>> {
    let path = |seed| {
        let null = Null::open(1 << 20, 12, None).expect("memory");
        let status = Some(Status::INTERNAL_PATH_ERROR);
        Fault::new(null, Rule { rate: 0.1, status, seed, ..Rule::default() })
    };
    vec![path(1), Delay::new(path(2), Delays::all(delay))]
}

#[test]
fn commands_allocate_nothing() {
    for policy in Policy::ALL {
        let settings = Settings { policy, ..Settings::default() };
        let options = MultipathOptions { tuning: settings.into(), ..MultipathOptions::default() };
        let delay = Duration::from_micros(if policy == Policy::Numa { 0 } else { 20 });
        let namespace = Multipath::new(lossy(delay), options).expect("they go together");
        let reactor = Reactor::new(&Config::default()).expect("a reactor");
        let queue = Arc::clone(&namespace).open_queue(&reactor).expect("a queue");
        let load = Rc::new_cyclic(|me| Load {
            queue,
            reactor: Rc::clone(&reactor),
            done: RefCell::default(),
            sent: Cell::new(0),
            rounds: RefCell::new(Rounds::new(WARM_UP, COUNTED)),
            allocations: Cell::new(None),
            me: Weak::clone(me),
        });
        for _ in 0..DEPTH {
            let mut request = Request::new();
            let mut buffer = reactor.buffers().allocate(4096).expect("the pool is large enough");
            buffer.as_mut_slice().fill(1);
            request.data = Data::Buffer(buffer);
            load.send(request);
        }
        reactor.attach(load.clone());
        reactor.run();
        let count = load.allocations.get().expect("all were done");
        assert_eq!(count, 0, "{policy}: {count} allocations for {COUNTED} commands");
        let errors: u64 = namespace.paths().iter().map(|path| path.errors).sum();
        assert!(errors > COUNTED / 20, "{policy}: {errors} errors, so retries were not among it");
    }
}

#[test]
fn the_count_counts() {
    let before = counting_allocator::of_this_thread();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(counting_allocator::of_this_thread(), before + 1);
}
