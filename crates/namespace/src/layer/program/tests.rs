use super::*;
use crate::dataset::{self, Range};
use crate::null::Null;
use crate::{Data, Part, Request, Sink};
use reactor::{Complete, Config};
use std::cell::RefCell;
use std::time::Instant;

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
