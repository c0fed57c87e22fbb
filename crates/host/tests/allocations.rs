//! In steady state a path's core allocates nothing per I/O.

mod rig;

use counting_allocator::{mark_this_thread, of_marked};
use namespace::{AccessWatcher, Data, Namespace, Queue, Request, Sink};
use nvme::{Command, opcode};
use reactor::{Complete, Reactor};
use rig::pages::{Pages, SLOTS};
use rig::{Target, connect, options};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// One kind of I/O.
#[derive(Clone, Copy, Debug)]
struct Load {
    opcode: u8,
    bytes: usize,
    depth: usize,
}

/// Requests that are not in flight.
type Requests = Vec<Box<Request>>;

/// A front door that keeps so many commands in flight, and uses requests and buffers again.
struct Door {
    me: Weak<Door>,
    reactor: Rc<Reactor>,
    queue: Rc<dyn Queue>,
    load: Load,
    left: Cell<u64>,
    in_flight: Cell<usize>,
    back: RefCell<Requests>,
    deferred: Cell<bool>,
}

/// Commands between two looks at the counter.
const IOS: u64 = 2000;

impl Door {
    fn go_on(&self) {
        self.deferred.set(false);
        while let Some(request) = self.next() {
            self.in_flight.set(self.in_flight.get() + 1);
            self.queue.submit(request);
        }
        if self.in_flight.get() == 0 {
            self.reactor.stop();
        }
    }

    fn next(&self) -> Option<Box<Request>> {
        let left = self.left.get().checked_sub(1)?;
        let mut request = self.back.borrow_mut().pop()?;
        self.left.set(left);
        let blocks = (self.load.bytes / 512) as u32;
        let slba = left * u64::from(blocks) % 65536;
        request.command = Command::blocks(self.load.opcode, 1, slba, blocks);
        request.push(self.me.upgrade().expect("held"), 0);
        Some(request)
    }

    fn defer(&self) {
        if !self.deferred.replace(true) {
            self.reactor.defer(self.me.upgrade().expect("held"), 0);
        }
    }
}

impl Sink for Door {
    fn completed(&self, request: Box<Request>, _state: u64) {
        assert!(request.status.is_success(), "{}", request.status);
        self.in_flight.set(self.in_flight.get() - 1);
        self.back.borrow_mut().push(request);
        self.defer();
    }
}

impl Complete for Door {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        self.go_on();
    }
}

impl AccessWatcher for Door {
    fn access_changed(&self) {
        if self.queue.access().is_usable() {
            self.defer();
        }
    }
}

/// Runs `IOS` commands on a reactor of their own and tells how much was allocated in the second half.
/// With `pages` the data is there, and the ring moves it.
fn run(path: Arc<dyn Namespace>, load: Load, pages: Option<&Pages>) -> u64 {
    let kernel_buffers = if pages.is_some() { SLOTS } else { 0 };
    let config = reactor::Config { kernel_buffers, ..reactor::Config::default() };
    let reactor = Reactor::new(&config).expect("a reactor");
    let queue = path.open_queue(&reactor).expect("a queue");
    let door = Rc::new_cyclic(|me| Door {
        me: me.clone(),
        reactor: Rc::clone(&reactor),
        queue: Rc::clone(&queue),
        load,
        left: Cell::new(IOS),
        in_flight: Cell::new(0),
        back: RefCell::default(),
        deferred: Cell::new(false),
    });
    for _ in 0..load.depth {
        let mut request = Request::new();
        request.data = match pages {
            Some(pages) => Data::Registered(pages.take(&reactor, &vec![0; load.bytes], false)),
            None => Data::Buffer(reactor.buffers().allocate(load.bytes).expect("a buffer")),
        };
        door.back.borrow_mut().push(request);
    }
    struct Halfway(Rc<Door>, Cell<u64>);
    impl Complete for Halfway {
        fn complete(&self, _token: u64, _result: i32, _flags: u32) {
            if self.0.left.get() > IOS / 2 {
                let halfway = HALFWAY.with_borrow(|it| it.clone()).expect("set");
                self.0.reactor.defer(halfway, 0);
            } else {
                mark_this_thread(true);
                self.1.set(of_marked());
            }
        }
    }
    thread_local! {
        static HALFWAY: RefCell<Option<Rc<Halfway>>> = const { RefCell::new(None) };
    }
    let halfway = Rc::new(Halfway(door.clone(), Cell::new(u64::MAX)));
    HALFWAY.set(Some(halfway.clone()));
    reactor.defer(halfway.clone(), 0);
    let watcher: Rc<dyn AccessWatcher> = door.clone();
    queue.watch_access(Rc::downgrade(&watcher));
    reactor.run();
    let after = of_marked();
    mark_this_thread(false);
    HALFWAY.take();
    assert_eq!(door.left.get(), 0, "all commands were carried out");
    assert_ne!(halfway.1.get(), u64::MAX, "half of them were seen");
    after - halfway.1.get()
}

#[test]
fn nothing_per_command() {
    let target = Target::memory();
    for (digests, in_pages) in [(false, false), (true, false), (false, true)] {
        let options = host::Options { header_digest: digests, data_digest: digests, ..options() };
        for opcode in [opcode::io::READ, opcode::io::WRITE] {
            for (bytes, depth) in [(4096, 1), (4096, 32), (4096, 128), (131_072, 4)] {
                let load = Load { opcode, bytes, depth };
                let path = connect(target.address, &options);
                let pages = (in_pages && path.takes_registered()).then(Pages::new);
                let allocated = run(path, load, pages.as_ref());
                // What grows with bursts still may, a few times in a thousand commands.
                assert!(allocated <= IOS / 100, "{allocated} in {} of {load:?}", IOS / 2);
            }
        }
    }
    mark_this_thread(true);
    let before = of_marked();
    drop(std::hint::black_box(Box::new(1)));
    assert!(of_marked() > before, "the counter counts");
}
