//! The kernel's error number goes up beside the status of what failed, and belongs to no other command.

use double::Double;
use namespace::layer::linear::Linear;
use namespace::layer::multipath::{Multipath, MultipathOptions};
use namespace::layer::program::Routed;
use namespace::layer::volatile::{CACHE_BYTES, Volatile};
use namespace::memory::{Memory, MemoryOptions};
use namespace::{Data, Namespace, Queue, Request, Sink};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::{Config, Reactor};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

const BLOCK: usize = 512;

/// Ends everything with this status, and with an error number if there is one.
struct Failing(Status, Arc<AtomicI32>);

impl Queue for Failing {
    fn submit(&self, mut request: Box<Request>) {
        let errno = self.1.load(Ordering::Relaxed);
        if errno != 0 {
            request.os_error = errno;
        }
        request.finish(self.0);
    }

    fn forget(&self) {}
}

fn memory() -> Arc<dyn Namespace> {
    let (bytes, block_shift, cores) = (1 << 20, 9, 1);
    let options = MemoryOptions { bytes, block_shift, cores, lend: false, uuid: None };
    Memory::open(options).unwrap()
}

fn failing(status: Status, errno: &Arc<AtomicI32>) -> Arc<dyn Namespace> {
    let errno = Arc::clone(errno);
    let open = move |_, _: &_| Rc::new(Failing(status, Arc::clone(&errno))) as Rc<dyn Queue>;
    Arc::new(Double::over(memory()).queues(open))
}

/// Stops its reactor.
struct End {
    reactor: Rc<Reactor>,
    request: Cell<Option<Box<Request>>>,
}

impl Sink for End {
    fn completed(&self, request: Box<Request>, _state: u64) {
        self.request.set(Some(request));
        self.reactor.stop();
    }
}

/// How `commands` end, sent one after another, each with what `errno` is to be then.
fn ended(
    volume: Arc<dyn Namespace>,
    errno: &AtomicI32,
    commands: &[(Command, i32)],
) -> Vec<(Status, i32)> {
    let reactor = Reactor::new(&Config { buffer_bytes: 1 << 20, ..Config::default() }).unwrap();
    let queue = volume.open_queue(&reactor).unwrap();
    let end = Rc::new(End { reactor: Rc::clone(&reactor), request: Cell::default() });
    let mut all = Vec::new();
    for (command, now) in commands {
        errno.store(*now, Ordering::Relaxed);
        let mut request = Request::new();
        request.command = *command;
        if command.opcode != opcode::FLUSH {
            let len = command.block_count() as usize * BLOCK;
            request.data = Data::Buffer(reactor.buffers().allocate(len).unwrap());
            request.data.truncate(len);
        }
        request.push(Rc::clone(&end) as Rc<dyn Sink>, 0);
        queue.submit(request);
        let request = end.request.take().unwrap_or_else(|| {
            reactor.run();
            end.request.take().unwrap()
        });
        all.push((request.status, request.os_error));
    }
    all
}

#[test]
fn what_is_made_of_parts_fails_with_the_number_of_the_part_that_failed() {
    let object = include_bytes!("../../../../bpf/linear.bpf.o");
    let errno = Arc::default();
    let fault = Status::WRITE_FAULT;
    let parts = || vec![memory(), failing(fault, &errno)];
    let flush = Command { opcode: opcode::FLUSH, ..Command::default() };
    let write = |block| Command::blocks(opcode::WRITE, 1, block, 4);
    // At the end of the first, of 2048 blocks.
    let apart = write(2046);
    let failed = |errno| (fault, errno);
    let row = Linear::new(parts()).unwrap();
    let program = Routed::new(object, "linear".into(), parts(), 1).unwrap();
    for volume in [row as Arc<dyn Namespace>, program] {
        let name = volume.uri();
        let told = ended(volume, &errno, &[(apart, 5), (apart, 0), (flush, 28), (flush, 0)]);
        assert_eq!(told, [failed(5), failed(0), failed(28), failed(0)], "{name}");
    }
    let volatile = Volatile::new(failing(fault, &errno), CACHE_BYTES);
    let told = ended(volatile, &errno, &[(write(0), 0), (flush, 5), (flush, 0)]);
    assert_eq!(told, [(Status::SUCCESS, 0), failed(5), failed(0)]);
}

#[test]
fn that_of_a_lost_path_is_not_told_of_what_another_path_answers() {
    let (errno, none) = (Arc::default(), Arc::default());
    let paths = [(Status::HOST_PATHING_ERROR, &errno), (Status::UNRECOVERED_READ.dnr(), &none)];
    let paths = paths.map(|(status, errno)| failing(status, errno)).to_vec();
    let volume = Multipath::new(paths, MultipathOptions::default()).unwrap();
    let read = Command::blocks(opcode::READ, 1, 0, 1);
    let told = ended(volume, &errno, &[(read, 5); 4]);
    assert_eq!(told, [(Status::UNRECOVERED_READ.dnr(), 0); 4]);
}
