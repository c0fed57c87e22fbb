//! A device's queue on `/dev/null`, which takes every command and does nothing.

mod controllers;

use super::*;
use crate::copy::{Place as In, Source, Sources};
use crate::layer::guard::{Guard, GuardOptions};
use crate::{Data, Request, Sink};
use nvme::limits::{CopyLimits, DiscardLimits};
use nvme::opcode::{admin, io as opcode};
use nvme::{Command, Status, copy};
use reactor::{Config, Drive};
use std::cell::RefCell;
use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;
use uring::Kind;

/// Keeps what has been completed.
#[derive(Default)]
pub(super) struct Done(
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    RefCell<Vec<Box<Request>>>,
);

impl Done {
    #[expect(clippy::vec_box, reason = "as above")]
    pub(super) fn take(&self) -> Vec<Box<Request>> {
        self.0.take()
    }
}

impl Sink for Done {
    fn completed(&self, request: Box<Request>, _state: u64) {
        self.0.borrow_mut().push(request);
    }
}

const SHAPE: [u8; 2] = [9, 12];

pub(super) fn shape(block_shift: u8) -> Shape {
    let mut namespace: identify::Namespace = zerocopy::FromZeros::new_zeroed();
    namespace.lbaf[0].lbads = block_shift;
    Shape::of(&namespace).unwrap()
}

pub(super) fn device(node: &str, passthrough: Passthrough) -> Arc<Device> {
    Arc::new(made(node, passthrough, "/nowhere/nvme0"))
}

/// A device with the node of another, and a directory in place of that in /sys.
fn made(node: &str, passthrough: Passthrough, parent: impl Into<PathBuf>) -> Device {
    let place = Place::at(parent.into());
    let options = DeviceOptions {
        path: node.into(),
        read_only: false,
        passthrough,
        iopoll: false,
        hybrid_iopoll: false,
        sqpoll: None,
        cores: 1,
        timeout_ms: 0,
        retries: true,
        uuid: None,
        uri: "nvme:none".into(),
    };
    let limits = Limits {
        block_shift: SHAPE[0],
        blocks: 1 << 20,
        transfer_bytes_max: 1 << 20,
        write_zeroes_bytes_max: u32::MAX,
        discard: DiscardLimits::UNLIMITED,
        optimal_write_bytes: 4096,
        read_only: false,
        volatile_write_cache: true,
        commands: nvme::limits::Commands::default(),
        copy: CopyLimits { ranges_max: 4, range_blocks_max: 100, blocks_max: 200 },
        metadata_bytes: 0,
        passthrough,
        lends_reads: false,
        immediate: false,
    };
    Device {
        file: OpenOptions::new().read(true).write(true).open(node).unwrap(),
        options,
        kernel_block_bytes: place.block_bytes(),
        resets: Resets::of(&place),
        place,
        nsid: 7,
        limits,
        blocks: AtomicU64::new(limits.blocks),
        facts: Facts { nqn: Some("nqn.x:y".into()), segments_max: 128, ..Facts::default() },
        shape: shape::Watch::new(shape(SHAPE[0])),
        flights: Flights::default(),
        zoned: false,
        polls: None,
        model: String::new(),
        logged: Mutex::default(),
        logged_closed: Mutex::default(),
        block: OnceLock::new(),
        carrier: OnceLock::new(),
        retried: AtomicU64::new(0),
    }
}

pub(super) fn reactor() -> Rc<Reactor> {
    let config =
        Config { kind: Kind::Big, entries: 64, buffer_bytes: 4 << 20, ..Config::default() };
    Reactor::new(&config).expect("io_uring is allowed where tests run")
}

pub(super) fn drive(reactor: &Reactor, done: &Done, count: usize) {
    let end = Instant::now() + Duration::from_secs(20);
    while done.0.borrow().len() < count {
        reactor.turn_for(Drive::Until(end));
        assert!(Instant::now() < end, "took too long");
    }
}

pub(super) fn submit(queue: &dyn Queue, done: &Rc<Done>, mut request: Box<Request>) {
    request.push(Rc::clone(done) as Rc<dyn Sink>, 0);
    queue.submit(request);
}

pub(super) fn copy_of(sdlba: u64, ranges: &[(u64, u32)]) -> Box<Request> {
    let mut request = Request::new();
    request.command = copy::command(1, sdlba, ranges.len(), copy::Format::Short);
    let source = |&(slba, blocks)| Source { place: In::Same, slba, blocks, fast_only: false };
    let ranges = ranges.iter().map(source).collect();
    request.data = Data::Sources(Box::new(Sources { ranges, ..Sources::default() }));
    request
}

#[test]
fn copies_come_back_with_their_sources_and_allocate_nothing() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let queue = device("/dev/null", Passthrough::NONE).open_queue(&reactor).unwrap();
    let mut idle: Vec<_> = (0..8).map(|_| copy_of(0, &[(500, 100), (700, 100)])).collect();
    let mut before = 0;
    for round in 0..200 {
        if round == 100 {
            before = counting_allocator::of_this_thread();
        }
        for request in idle.drain(..) {
            submit(&*queue, &done, request);
        }
        drive(&reactor, &done, 8);
        idle.append(&mut done.0.borrow_mut());
    }
    assert!(counting_allocator::of_this_thread() - before <= 4, "once warm, nothing is allocated");
    for request in &idle {
        assert_eq!(request.status, Status::SUCCESS);
        let Data::Sources(sources) = &request.data else { panic!("the sources are gone") };
        assert_eq!(sources.blocks(), 200);
    }
}

/// Devices exist whose subsystems have the same name.
#[test]
fn another_device_with_the_same_name_and_number_is_not_this_one() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let [this, other] = [(); 2].map(|()| device("/dev/null", Passthrough::NONE));
    let queue = Arc::clone(&this).open_queue(&reactor).unwrap();
    for (from, expected) in [(this, Status::SUCCESS), (other, Status::FAST_COPY_NOT_POSSIBLE.dnr())]
    {
        let located = from.origin(500, 100).expect("it tells where its blocks are");
        let place = In::Origin(located.origin);
        let ranges = vec![Source { place, slba: located.slba, blocks: 100, fast_only: false }];
        let mut request = copy_of(0, &[(500, 100)]);
        request.data = Data::Sources(Box::new(Sources { ranges, ..Sources::default() }));
        submit(&*queue, &done, request);
        drive(&reactor, &done, 1);
        assert_eq!(done.take().pop().unwrap().status, expected);
    }
}

#[test]
fn a_device_that_is_opened_twice_is_one() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let [this, again] = [(); 2].map(|()| {
        let mut device = made("/dev/null", Passthrough::NONE, "/nowhere/twice");
        device.facts.nqn = Some(names::shared(device.place.parent(), "nqn.x:y".into()));
        Arc::new(device)
    });
    let other = device("/dev/null", Passthrough::NONE);
    let [one, two, three] =
        [&this, &again, &other].map(|it| Arc::clone(it).origin(500, 100).unwrap().origin);
    assert!(one.keeper() == two.keeper() && one.keeper() != three.keeper());
    let mut request = copy_of(0, &[(500, 100)]);
    let ranges = vec![Source { place: In::Origin(two), slba: 500, blocks: 100, fast_only: false }];
    request.data = Data::Sources(Box::new(Sources { ranges, ..Sources::default() }));
    submit(&*this.open_queue(&reactor).unwrap(), &done, request);
    drive(&reactor, &done, 1);
    assert_eq!(done.take().pop().unwrap().status, Status::SUCCESS);
}

#[test]
fn copies_that_the_device_cannot_do_are_for_others() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let queue = Arc::clone(&device("/dev/null", Passthrough::NONE)).open_queue(&reactor).unwrap();
    for (request, expected) in [
        (copy_of(150, &[(100, 100)]), Status::FAST_COPY_NOT_POSSIBLE),
        (copy_of(0, &[(500, 101)]), Status::SIZE_LIMIT_EXCEEDED.dnr()),
    ] {
        submit(&*queue, &done, request);
        assert_eq!(done.0.borrow_mut().pop().expect("at once").status, expected);
    }
    // With bytes instead of sources it is a command that nobody knows.
    let mut raw = copy_of(0, &[(500, 1)]);
    raw.data = Data::Buffer(reactor.buffers().allocate(32).unwrap());
    submit(&*queue, &done, raw);
    let mut raw = done.0.borrow_mut().pop().expect("at once");
    assert_eq!(raw.status, Status::INVALID_OPCODE.dnr());
    let queue = device("/dev/null", Passthrough::ALL).open_queue(&reactor).unwrap();
    raw.status = Status::INTERNAL;
    submit(&*queue, &done, raw);
    drive(&reactor, &done, 1);
    assert_eq!(done.0.borrow()[0].status, Status::SUCCESS);
}

/// A file that takes no commands, and is not in /sys: a device that was removed.
#[test]
fn a_copy_on_a_device_that_is_gone_is_for_nobody() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let file = tempfile::NamedTempFile::new().unwrap();
    let device = device(file.path().to_str().unwrap(), Passthrough::NONE);
    let queue = Arc::clone(&device).open_queue(&reactor).unwrap();
    submit(&*queue, &done, copy_of(0, &[(500, 100)]));
    drive(&reactor, &done, 1);
    let request = done.0.borrow_mut().pop().unwrap();
    assert_eq!((request.status, request.result), (Status::NAMESPACE_NOT_READY.dnr(), 0));
}

#[test]
fn a_namespace_that_was_formatted_otherwise_is_sent_nothing() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let device = device("/dev/null", Passthrough::ALL);
    let queue = Arc::clone(&device).open_queue(&reactor).unwrap();
    let tried = |expected: Status| {
        for data in [true, false] {
            let mut request = copy_of(0, &[(500, 100)]);
            if data {
                request.command = Command::blocks(opcode::READ, 1, 0, 8);
                request.data = Data::Buffer(reactor.buffers().allocate(4096).unwrap());
            }
            submit(&*queue, &done, request);
            drive(&reactor, &done, 1);
            assert_eq!(done.0.borrow_mut().pop().unwrap().status, expected);
        }
    };
    tried(Status::SUCCESS);
    device.shape.begin();
    tried(Status::FORMAT_IN_PROGRESS);
    device.shape.end(Some(shape(SHAPE[0])));
    tried(Status::SUCCESS);
    assert!(Arc::clone(&device).origin(0, 1).is_some());
    device.shape.look(Some(shape(SHAPE[1])));
    tried(Status::NAMESPACE_NOT_READY.dnr());
    assert!(Arc::clone(&device).origin(0, 1).is_none());
    let mut facts = Vec::new();
    device.describe(&mut facts);
    assert!(facts.iter().any(|(key, value)| key == "blocks" && value.contains("opened again")));
}

/// Sessions ask no device while they are at work: their queues look at what the kernel says.
#[test]
fn queues_see_by_themselves_that_the_kernel_has_found_other_blocks() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let sys = tempfile::tempdir().unwrap();
    let queue = sys.path().join("nvme0n1/queue");
    std::fs::create_dir_all(&queue).unwrap();
    let kernel_says =
        |bytes: &str| std::fs::write(queue.join("logical_block_size"), bytes).unwrap();
    kernel_says("512\n");
    let device = Arc::new(made("/dev/null", Passthrough::NONE, sys.path()));
    let queue = Arc::clone(&device).open_queue(&reactor).unwrap();
    let tried = || {
        submit(&*queue, &done, copy_of(0, &[(500, 100)]));
        drive(&reactor, &done, 1);
        done.take().pop().unwrap().status
    };
    assert_eq!(tried(), Status::SUCCESS);
    kernel_says("4096\n");
    let begun = Instant::now();
    while tried() == Status::SUCCESS {
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody has looked");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(tried(), Status::NAMESPACE_NOT_READY.dnr());
}

/// The driver is asked by a call that waits, and the device is looked at before anybody is told.
#[test]
fn a_format_of_ours_is_followed_by_a_look() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let device = device("/dev/null", Passthrough::ALL);
    let file = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
    let command = uring::NvmeUringCmd { opcode: admin::FORMAT_NVM, ..Default::default() };
    let change = super::admin::Change::begin(&device, device.nsid);
    // SAFETY: the command names no memory.
    let answer = unsafe { change.carry_out(&file, command, &AtomicU64::new(0)) };
    // `/dev/null` has no such call, nor does it say what it looks like.
    assert_eq!(answer, -libc::ENOTTY);
    let queue = device.open_queue(&reactor).unwrap();
    submit(&*queue, &done, copy_of(0, &[(500, 100)]));
    assert_eq!(done.0.borrow()[0].status, Status::NAMESPACE_NOT_READY.dnr());
}

/// They are for blocks as they were, wherever they are noted.
#[test]
fn a_format_of_ours_waits_for_the_commands_before_it() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let device = device("/dev/null", Passthrough::ALL);
    let queue = queue::DeviceQueue::open(Arc::clone(&device), &reactor).unwrap();
    let (noted, wait_noted) = mpsc::channel();
    let (go, wait_go) = mpsc::channel::<()>();
    let there = Arc::clone(&device);
    let other = thread::spawn(move || {
        let (reactor, done) = (self::reactor(), Rc::new(Done::default()));
        submit(&*there.open_queue(&reactor).unwrap(), &done, copy_of(0, &[(500, 100)]));
        noted.send(()).unwrap();
        wait_go.recv().unwrap();
        drive(&reactor, &done, 1);
        done.take().pop().unwrap().status
    });
    wait_noted.recv().unwrap();
    submit(&*queue, &done, copy_of(0, &[(500, 100)]));
    let mut format = Request::new();
    format.command.opcode = admin::FORMAT_NVM;
    format.scratch = queue::OF_ADMIN;
    format.push(Rc::clone(&done) as Rc<dyn Sink>, 0);
    let command = uring::NvmeUringCmd { opcode: admin::FORMAT_NVM, ..Default::default() };
    let file = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
    queue.carry_out(format, command, file);
    // As for whoever looks at what it has left: `/dev/null` does not say what it looks like.
    let is_under_way = || device.shape.check() == Err(Status::FORMAT_IN_PROGRESS);
    let begun = Instant::now();
    while !is_under_way() {
        assert!(begun.elapsed() < Duration::from_secs(20), "no thread has taken it");
        thread::sleep(Duration::from_millis(1));
    }
    submit(&*queue, &done, copy_of(0, &[(500, 100)]));
    let statuses = || done.take().iter().map(|request| request.status).collect::<Vec<_>>();
    assert_eq!(statuses(), [Status::FORMAT_IN_PROGRESS]);
    thread::sleep(Duration::from_millis(100));
    assert!(is_under_way(), "nothing has been handed to the kernel yet");
    drive(&reactor, &done, 1);
    assert_eq!(statuses(), [Status::SUCCESS]);
    thread::sleep(Duration::from_millis(100));
    assert!(is_under_way(), "another core has something noted");
    go.send(()).unwrap();
    drive(&reactor, &done, 1);
    assert_eq!(statuses(), [Status::NAMESPACE_NOT_READY.dnr()], "`/dev/null` has no such call");
    assert_eq!(other.join().unwrap(), Status::SUCCESS);
    assert!(device.shape.is_changed());
}

/// No thread can be had for it, or the core ends.
#[test]
fn a_format_that_is_never_sent_is_over() {
    let device = device("/dev/null", Passthrough::ALL);
    let change = super::admin::Change::begin(&device, device.nsid);
    assert_eq!(device.shape.check(), Err(Status::FORMAT_IN_PROGRESS));
    drop(change);
    assert_eq!(device.shape.check(), Ok(()));
}

/// Those of one namespace, and of all that lie beside it.
#[test]
fn a_format_of_ours_is_about_other_devices_too() {
    let numbered = |parent: &str, nsid| {
        let device = Arc::new(Device { nsid, ..made("/dev/null", Passthrough::ALL, parent) });
        siblings::note(&device);
        device
    };
    let [one, same, beside] = [1, 1, 2].map(|nsid| numbered("/nowhere/siblings0", nsid));
    let elsewhere = numbered("/nowhere/siblings1", 1);
    for (nsid, expected) in [(1, [true, true, false]), (nvme::NSID_ALL, [true; 3])] {
        let change = super::admin::Change::begin(&one, nsid);
        for (device, is_meant) in [&one, &same, &beside].into_iter().zip(expected) {
            assert_eq!(device.shape.check().is_err(), is_meant, "{nsid:#x}, {}", device.nsid);
        }
        assert_eq!(elsewhere.shape.check(), Ok(()));
        // Under way at one that is meant.
        let count = same.flights.join();
        count.enter();
        let waits = thread::spawn(move || {
            let file = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
            let command = uring::NvmeUringCmd { opcode: admin::FORMAT_NVM, ..Default::default() };
            // SAFETY: the command names no memory.
            unsafe { change.carry_out(&file, command, &AtomicU64::new(0)) }
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        count.leave();
        assert_eq!(waits.join().unwrap(), -libc::ENOTTY);
        same.flights.quit(&count);
    }
    assert!(beside.shape.is_changed(), "`/dev/null` does not say what it looks like");
    assert!(!elsewhere.shape.is_changed());
}

#[test]
fn commands_that_wait_for_another_try_go_with_their_queue() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let device = device("/dev/null", Passthrough::NONE);
    let queue = queue::DeviceQueue::open(device, &reactor).unwrap();
    for _ in 0..3 {
        let mut request = Request::new();
        request.command = Command::blocks(opcode::READ, 1, 0, 8);
        request.push(Rc::clone(&done) as Rc<dyn Sink>, 0);
        // The device is not in /sys: a status of the driver's, then, which may be tried again.
        queue.failed(request, i32::from(Status::HOST_PATHING_ERROR.0));
    }
    assert_eq!((Rc::strong_count(&done), done.0.borrow().len()), (4, 0), "they wait");
    drop(queue);
    drop(reactor);
    assert_eq!(Rc::strong_count(&done), 1, "nothing is left of them");
}

#[test]
fn commands_that_wait_for_another_try_get_it() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let queue = queue::DeviceQueue::open(device("/dev/null", Passthrough::NONE), &reactor).unwrap();
    for round in 0..2 {
        for _ in 0..3 {
            let mut request = copy_of(0, &[(500, 100)]);
            request.push(Rc::clone(&done) as Rc<dyn Sink>, 0);
            // As if it had been under way.
            request.scratch[queue::LIST] = 1;
            queue.failed(request, i32::from(Status::HOST_PATHING_ERROR.0));
        }
        drive(&reactor, &done, 3 * (round + 1));
    }
    assert!(done.0.borrow().iter().all(|request| request.status == Status::SUCCESS));
}

/// The head of several controllers' ways finds a command invalid, too, when none of them can be used.
#[test]
fn what_is_invalid_by_a_head_is_tried_again_for_a_moment() {
    let root = tempfile::tempdir().unwrap();
    let subsystem = root.path().join("nvme-subsys0");
    let state = subsystem.join("nvme1/state");
    fs::create_dir_all(state.parent().unwrap()).unwrap();
    fs::write(subsystem.join("ng0n1"), "").unwrap();
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let open = |place: &Path| {
        let device = Arc::new(made("/dev/null", Passthrough::NONE, place));
        queue::DeviceQueue::open(device, &reactor).unwrap()
    };
    let (head, other) = (open(&subsystem), open(&subsystem.join("nvme1")));
    fs::write(subsystem.join("nvme1/ng0n1"), "").unwrap();
    let fail = |queue: &queue::DeviceQueue, command: Command, doubts: u64| {
        let mut request = Request::new();
        request.command = command;
        request.push(Rc::clone(&done) as Rc<dyn Sink>, 0);
        request.scratch = [0, 0, 0, doubts];
        queue.failed(request, -libc::EINVAL);
        drive(&reactor, &done, 1);
        done.take()[0].status
    };
    // Whatever it is: it was not carried out.
    let append = Command { opcode: opcode::ZONE_APPEND, ..Command::default() };
    let read = Command { opcode: opcode::READ, ..Command::default() };
    let invalid = Status::INVALID_FIELD.dnr();
    fs::write(&state, "live\n").unwrap();
    for command in [append, read] {
        assert_eq!(fail(&head, command, 0), Status::SUCCESS);
        assert_eq!(fail(&head, command, 6), Status::SUCCESS);
        assert_eq!(fail(&head, command, 7), invalid, "again and again");
        assert_eq!(fail(&other, command, 0), invalid, "with a single way it means what it says");
    }
    let resets = subsystem.join("nvme1/diag/reset_count");
    fs::create_dir(resets.parent().unwrap()).unwrap();
    fs::write(resets, "9\n").unwrap();
    assert_eq!(fail(&head, read, 9 << 8 | 7), invalid);
    assert_eq!(fail(&head, read, 8 << 8 | 7), Status::SUCCESS, "it was reset meanwhile");
    fs::write(&state, "connecting\n").unwrap();
    assert_eq!(fail(&head, read, 9 << 8 | 7), Status::SUCCESS);
}

/// A Compare that is not offered, since blocks have metadata, is passed with as much of both as the host likes.
#[test]
fn a_compare_with_too_little_data_is_refused_where_blocks_have_metadata() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let mut device = made("/dev/null", Passthrough::ALL, "/nowhere/nvme0");
    (device.limits.metadata_bytes, device.facts.protection) = (8, Some(protection::tests::TYPE_1));
    let options = GuardOptions::default();
    let guard = Guard::new(Arc::new(device), options);
    let offered = guard.limits().commands;
    let queue = guard.open_queue(&reactor).unwrap();
    let data = |bytes: usize| reactor.buffers().allocate(bytes).map_or(Data::None, Data::Buffer);
    let compare = |bytes: usize, around: usize| {
        let mut request = Request::new();
        request.command = Command::blocks(opcode::COMPARE, 1, 0, 8);
        request.data = data(bytes);
        if around > 0 {
            request.metadata = Data::Buffer(reactor.buffers().allocate(around).unwrap());
        }
        request
    };
    for (bytes, around) in [(0, 64), (512, 64), (4096, 0), (4096, 56), (4096, 64)] {
        let mut pair = compare(bytes, around);
        let mut write = compare(4096, 0);
        write.command.opcode = opcode::WRITE;
        pair.fused = Some(write);
        for request in [compare(bytes, around), pair] {
            submit(&*queue, &done, request);
            drive(&reactor, &done, 1);
            // The device itself compares what has come whole.
            let expected = match (bytes, around) {
                (4096, 64) => Status::SUCCESS,
                _ => Status::INVALID_FIELD.dnr(),
            };
            assert_eq!(done.take().pop().unwrap().status, expected, "{bytes} and {around}");
        }
    }
    let mut verify = compare(0, 0);
    verify.command.opcode = opcode::VERIFY;
    submit(&*queue, &done, verify);
    drive(&reactor, &done, 1);
    assert_eq!(done.take().pop().unwrap().status, Status::SUCCESS);
    assert!(!offered.compare && !offered.verify && !offered.compare_and_write);
}

/// Whatever passes otherwise: protection information is the controller's where a command brings none.
#[test]
fn blocks_that_bring_no_protection_information_have_the_tags_of_their_address() {
    let reactor = reactor();
    for passthrough in [Passthrough::NONE, Passthrough::ALL] {
        let mut device = made("/dev/null", passthrough, "/nowhere/nvme0");
        device.limits.metadata_bytes = 8;
        device.facts.protection = Some(protection::tests::TYPE_1);
        let queue = queue::DeviceQueue::open(Arc::new(device), &reactor).unwrap();
        let given = |opcode, metadata: bool| {
            let mut request = Request::new();
            request.command = Command::blocks(opcode, 1, 1000, 8);
            request.data = Data::Buffer(reactor.buffers().allocate(4096).unwrap());
            if metadata {
                request.metadata = Data::Buffer(reactor.buffers().allocate(64).unwrap());
            }
            let entry = queue.io_entry(&request, &queue::Extents::of(&request));
            let command = entry.command();
            (command.cdw12, command.cdw14)
        };
        for opcode in [opcode::READ, opcode::WRITE] {
            assert_eq!(given(opcode, false), (0x2000_0007, 1000));
            assert_eq!(given(opcode, true), (7, 0));
        }
        assert_eq!(given(opcode::WRITE_ZEROES, false), (0x2000_0007, 1000));
        assert_eq!(given(opcode::COMPARE, true), (7, 0));
    }
}

#[test]
fn words_that_nobody_knows_pass_where_unknown_commands_do() {
    let reactor = reactor();
    let mut request = Request::new();
    request.command = Command::blocks(opcode::WRITE, 1, 5, 8);
    request.command.cdw12 = 0x4050_0007.into();
    request.command.cdw13 = 0x0001_0000.into();
    request.data = Data::Buffer(reactor.buffers().allocate(4096).unwrap());
    let given = |passthrough| {
        let queue = queue::DeviceQueue::open(device("/dev/null", passthrough), &reactor).unwrap();
        let entry = queue.io_entry(&request, &queue::Extents::of(&request));
        let command = entry.command();
        assert_eq!((command.nsid, command.cdw10, command.data_len), (7, 5, 4096));
        (command.cdw12, command.cdw13)
    };
    assert_eq!(given(Passthrough::NONE), (0x4000_0007, 0));
    assert_eq!(given(Passthrough::ALL), (0x4050_0007, 0x0001_0000));
}

/// What sessions lend is a part of a buffer, of which only the place among the core's own is known.
#[test]
fn rings_beside_the_cores_own_use_registered_buffers_of_sessions() {
    let reactor = reactor();
    let options =
        uring::RingOptions { sqpoll: Some(SqPoll { cpu: None, idle_ms: 2 }), ..ring::options() };
    let beside = ring::Carrier::beside(&reactor, &options).expect("a submission thread");
    let own = ring::Carrier::plain(&reactor).expect("big entries");
    let mut buffer = reactor.buffers().allocate(4096).expect("room");
    let index = buffer.ensure_registered();
    assert!(index.is_some(), "lockable memory");
    let mut part = |fixed| {
        // SAFETY: nobody uses the part but to ask where it is.
        Data::Part(unsafe { crate::Part::new(buffer.as_mut_ptr(), 4096, fixed) })
    };
    for carrier in [own, beside] {
        assert_eq!(carrier.fixed_index(&part(index)), index);
        assert_eq!(carrier.fixed_index(&part(None)), None, "ordinary memory");
    }
}

/// The kernel then looks up neither pages nor the file.
#[test]
fn commands_name_the_registered_file_and_the_registered_buffer() {
    let reactor = reactor();
    for sqpoll in [None, Some(SqPoll { cpu: None, idle_ms: 2 })] {
        let mut device = made("/dev/null", Passthrough::NONE, "/nowhere/nvme0");
        device.options.sqpoll = sqpoll;
        let queue = queue::DeviceQueue::open(Arc::new(device), &reactor).unwrap();
        let mut request = Request::new();
        request.command = Command::blocks(opcode::READ, 1, 0, 8);
        let buffer = reactor.buffers().allocate(4096).expect("room");
        let index = buffer.ensure_registered();
        assert!(index.is_some(), "lockable memory");
        request.data = Data::Buffer(buffer);
        let entry = queue.io_entry(&request, &queue::Extents::of(&request));
        assert_eq!(entry.fixed_buffer(), index);
        assert!(matches!(entry.file(), uring::File::Fixed(_)), "{:?}", entry.file());
        let mut ordinary = vec![0; 4096];
        // SAFETY: nobody uses the part but to make the entry.
        request.data =
            Data::Part(unsafe { crate::Part::new(ordinary.as_mut_ptr(), ordinary.len(), None) });
        let entry = queue.io_entry(&request, &queue::Extents::of(&request));
        assert_eq!(entry.fixed_buffer(), None);
    }
}

/// The driver then finds a list of them where data begins, and how many there are where its length is.
#[test]
fn pieces_go_to_the_driver_as_they_are() {
    let reactor = reactor();
    let device = device("/dev/null", Passthrough::ALL);
    assert!(device.vectors_pages() > 0);
    let queue = queue::DeviceQueue::open(device, &reactor).unwrap();
    let (mut one, mut other) = (vec![0u8; 1000], vec![0u8; 3096]);
    let list = [&mut one, &mut other]
        .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() });
    let mut request = Request::new();
    request.command = Command::blocks(opcode::READ, 1, 5, 8);
    // SAFETY: nobody uses the pieces but to make the entry.
    request.data = Data::Vectors(unsafe { crate::Vectors::new(&list) });
    assert_eq!(request.data.len(), 4096);
    let extents = queue::Extents::of(&request);
    let entry = queue.vectors_entry(&request, &extents, 2);
    let command = entry.command();
    assert_eq!((command.addr, command.data_len), (list.as_ptr() as u64, 2));
    assert_eq!((command.nsid, command.cdw10, command.cdw12), (7, 5, 7));
    // `_IOWR('N', 0x81, struct nvme_uring_cmd)`.
    assert_eq!((entry.operation(), entry.fixed_buffer()), (0xc048_4e81, None));
}

#[test]
fn one_processor_is_not_for_several_submission_threads() {
    let options = DeviceOptions {
        sqpoll: Some(SqPoll { cpu: Some(3), idle_ms: 0 }),
        cores: 2,
        ..device("/dev/null", Passthrough::NONE).options.clone()
    };
    let refused = Device::open(options.clone()).unwrap_err().to_string();
    assert!(refused.contains("sqpoll=3") && refused.contains("2 cores"), "{refused}");
    let one = Device::open(DeviceOptions { cores: 1, ..options }).unwrap_err();
    assert!(matches!(one, DeviceError::NotNvme { .. }), "{one}");
}

#[test]
fn what_is_dropped_from_caches_is_whole_folios() {
    const MIB: i64 = 1 << 20;
    for (start, bytes, expected) in [
        (512, 512, (0, 2 * MIB)),
        (0, 2 * MIB, (0, 2 * MIB)),
        (2 * MIB - 1, 2, (0, 4 * MIB)),
        (5 * MIB, 3 * MIB, (4 * MIB, 4 * MIB)),
    ] {
        assert_eq!(super::whole_folios(start, bytes), expected, "{start}, {bytes}");
    }
    let (start, bytes) = super::whole_folios(4096, i64::MAX);
    assert_eq!((start, bytes), (0, i64::MAX));
}
