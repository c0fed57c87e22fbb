use super::*;
use crate::dataset::{self, Range};
use crate::file::{File, FileOptions};
use crate::null::Null;
use crate::{Data, Part, Request, Sink};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::{Complete, Config, Drive};
use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

/// Notes what comes in which order.
struct Order {
    reactor: Rc<Reactor>,
    seen: RefCell<Vec<&'static str>>,
}

impl Complete for Order {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        self.seen.borrow_mut().push("timer");
    }
}

impl Sink for Order {
    fn completed(&self, request: Box<Request>, _state: u64) {
        assert!(request.status.is_success());
        self.seen.borrow_mut().push("command");
        self.reactor.stop();
    }
}

#[test]
fn others_have_their_turn_during_a_command_of_many_pieces() {
    const RANGES: usize = 256;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/linear.bpf.o");
    let object = std::fs::read(path).expect("an object");
    let below = Null::open(1 << 40, 9, None).expect("a size");
    let routed = Routed::new(&object, "linear".to_owned(), vec![below], 1).expect("it loads");
    let reactor = Reactor::new(&Config::default()).expect("a reactor");
    let queue = Arc::clone(&routed).open_queue(&reactor).expect("a queue");
    let order = Rc::new(Order { reactor: Rc::clone(&reactor), seen: RefCell::default() });

    // Each range is of several pieces, all of which end while they are sent.
    let blocks = routed.device.blocks_max * 4;
    let range = |number: usize| Range { attributes: 0, blocks, slba: number as u64 * 65536 };
    let mut ranges: Vec<u8> = (0..RANGES).flat_map(|number| range(number).to_bytes()).collect();
    let mut request = Request::new();
    request.command = dataset::deallocate(1, RANGES);
    // SAFETY: the list is there until the command has ended, below.
    let list = unsafe { Part::new(ranges.as_mut_ptr(), ranges.len(), None) };
    request.data = Data::Part(list);
    request.push(Rc::clone(&order) as _, 0);
    reactor.timer(Instant::now(), Rc::clone(&order) as _, 0);
    queue.submit(request);
    reactor.run();
    assert_eq!(*order.seen.borrow(), ["timer", "command"]);
}

/// Runs a program as far as a replacement sees.
#[derive(Debug)]
struct Other {
    now: Mutex<Arc<ForKernel>>,
    next: Mutex<Option<Arc<ForKernel>>>,
}

impl Other {
    fn name(&self) -> String {
        self.now.lock().unwrap().name().to_owned()
    }

    fn swap(&self) {
        let mut next = self.next.lock().unwrap();
        std::mem::swap(next.as_mut().expect("it was prepared"), &mut *self.now.lock().unwrap());
    }
}

impl Elsewhere for Other {
    fn report(&self) -> ProgramReport {
        ProgramReport { name: self.name(), mistakes: 0, maps: Vec::new() }
    }

    fn prepare(&self, next: ForKernel, _: &[String], _: bool) -> Result<Arc<ForKernel>, String> {
        let next = Arc::new(next);
        *self.next.lock().unwrap() = Some(Arc::clone(&next));
        Ok(next)
    }

    fn take_over(&self) -> Result<(), String> {
        self.swap();
        Ok(())
    }

    fn take_back(&self) {
        self.swap();
    }

    fn forget(&self) {
        *self.next.lock().unwrap() = None;
    }
}

/// The status of a Flush.
struct Flushed(RefCell<Option<Status>>);

impl Sink for Flushed {
    fn completed(&self, request: Box<Request>, _state: u64) {
        *self.0.borrow_mut() = Some(request.status);
    }
}

#[test]
fn after_a_panic_in_a_replacement_requests_go_on_and_another_one_works() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/linear.bpf.o");
    let object = std::fs::read(path).expect("an object");
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 20).expect("it grows");
    for is_elsewhere in [false, true] {
        let below = File::open(&FileOptions::buffered(file.path(), None)).expect("it opens");
        let routed = Routed::new(&object, "first".to_owned(), vec![below], 1).expect("it loads");
        let other = is_elsewhere.then(|| {
            let (now, next) = (routed.for_kernel().expect("a plain file"), Mutex::default());
            Arc::new(Other { now: Mutex::new(Arc::new(now)), next })
        });
        if let Some(other) = &other {
            routed.hand_over(Arc::clone(other) as _);
        }
        let reactor = Reactor::new(&Config::default()).expect("a reactor");
        let queue = Arc::clone(&routed).open_queue(&reactor).expect("a queue");
        let turn_until = |holds: &dyn Fn() -> bool| {
            let end = Instant::now() + PATIENCE;
            while !holds() {
                assert!(Instant::now() < end, "it never holds");
                reactor.turn_for(Drive::Until(Instant::now() + Duration::from_millis(1)));
            }
        };
        let flush = || {
            let flushed = Rc::new(Flushed(RefCell::default()));
            let mut request = Request::new();
            request.command =
                Command { opcode: opcode::FLUSH, nsid: 1.into(), ..Command::default() };
            request.push(Rc::clone(&flushed) as _, 0);
            queue.submit(request);
            turn_until(&|| flushed.0.borrow().is_some());
            assert_eq!(flushed.0.take(), Some(Status::SUCCESS));
        };
        let replace = |name: &'static str, note: fn() -> Result<(), String>| {
            let (routed, object) = (Arc::clone(&routed), object.clone());
            let at_it = thread::spawn(move || {
                routed.replace_noted(&object, name.to_owned(), &note).expect("it fits");
            });
            turn_until(&|| at_it.is_finished());
            at_it.join()
        };
        let names = || (routed.name(), other.as_ref().map_or(routed.name(), |it| it.name()));
        let both = |name: &str| (name.to_owned(), name.to_owned());

        flush();
        assert!(replace("second", || panic!("on purpose")).is_err());
        assert_eq!(names(), both("first"));
        flush();
        assert!(replace("third", || Ok(())).is_ok());
        assert_eq!(names(), both("third"));
        flush();
    }
}
