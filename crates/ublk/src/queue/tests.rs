//! A queue whose driver is a file: it refuses every command, and has descriptors and data where a device has them. What
//! a driver would say is told to the queue by the test.

use super::*;
use crate::driver::{Descriptor, data_position, operation};
use crate::translate::SHAPE;
use namespace::Namespace;
use namespace::layer::fault::{Fault, Rule};
use namespace::layer::program::Waker;
use namespace::memory::{Memory, MemoryOptions};
use nvme::Status;
use reactor::{Config, Drive};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const BYTES: usize = 8192;
const TAG: u16 = 1;

/// What a queue has told.
#[derive(Default)]
struct Told {
    ending: Cell<u32>,
    /// The error of the last of these.
    error: Cell<Option<i32>>,
    idle: Cell<u32>,
    failed: RefCell<Vec<Failed>>,
    ended: RefCell<Vec<Option<i32>>>,
}

impl Watcher for Rc<Told> {
    fn ending(&self, error: Option<i32>) {
        self.ending.set(self.ending.get() + 1);
        self.error.set(error);
    }

    fn idle(&self) {
        self.idle.set(self.idle.get() + 1);
    }

    fn failed(&self, failed: Failed) {
        self.failed.borrow_mut().push(failed);
    }

    fn ended(&self, error: Option<i32>) {
        self.ended.borrow_mut().push(error);
    }
}

struct Set {
    reactor: Rc<Reactor>,
    device: Arc<File>,
    memory: Arc<Memory>,
    queue: Rc<QueueServer>,
    told: Rc<Told>,
}

impl Set {
    /// Two tags by user copy, before a volume that fails what `rule` says.
    fn new(rule: Rule) -> Set {
        Set::with(rule, false)
    }

    /// The same, of which requests come and go many at a time or one by one.
    fn with(rule: Rule, batch: bool) -> Set {
        Set::of(rule, batch, Share::ALL)
    }

    /// The same, of which this thread has a share.
    fn of(rule: Rule, batch: bool, share: Share) -> Set {
        let memory = memory();
        let volume = Fault::new(Arc::clone(&memory) as _, rule);
        Set::serving(memory, volume, DataPath::UserCopy, batch, share)
    }

    /// The same, of any volume by any way. It sleeps rather than spins.
    fn serving(
        memory: Arc<Memory>,
        volume: Arc<dyn Namespace>,
        path: DataPath,
        batch: bool,
        share: Share,
    ) -> Set {
        let reactor = Reactor::new(&Config { spin: Duration::ZERO, ..Config::default() })
            .expect("io_uring is allowed");
        let device = Arc::new(tempfile::tempfile().unwrap());
        device.set_len(4096).unwrap();
        let shape = SHAPE;
        let depth = 2;
        let config =
            QueueConfig { queue: 0, depth, share, path, shape, encoded: true, batch, held: false };
        let told = Rc::new(Told::default());
        let watcher = Box::new(Rc::clone(&told));
        let queue = QueueServer::open(config, &reactor, &volume, Arc::clone(&device), watcher);
        Set { reactor, device, memory, queue: queue.unwrap(), told }
    }

    /// As if the driver had given a request for [`BYTES`] from the volume's start on.
    fn give(&self, operation: u8) {
        self.describe(TAG, operation);
        self.queue.complete(about::FETCH | u64::from(TAG), 0, 0);
    }

    /// As if the driver had written what a tag's request is.
    fn describe(&self, tag: u16, operation: u8) {
        let request = Descriptor {
            op_flags: operation.into(),
            nr_sectors: (BYTES >> SECTOR_SHIFT) as u32,
            start_sector: 0,
            addr: 0,
        };
        let mut bytes = Vec::new();
        bytes.extend(request.op_flags.to_ne_bytes());
        bytes.extend(request.nr_sectors.to_ne_bytes());
        bytes.extend(request.start_sector.to_ne_bytes());
        bytes.extend(request.addr.to_ne_bytes());
        self.device.write_all_at(&bytes, u64::from(tag) * bytes.len() as u64).unwrap();
    }

    /// As if the driver had taken the other tag back.
    fn refuse_other(&self, result: i32) {
        self.queue.complete(about::FETCH, result, 0);
    }

    /// Until all tags have ended.
    fn drive(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.told.ended.borrow().is_empty() {
            self.reactor.turn_for(Drive::Until(end));
            assert!(Instant::now() < end, "took too long");
        }
    }

    /// What the request's data is, or becomes, at the driver's.
    fn put(&self, bytes: &[u8]) {
        self.device.write_all_at(bytes, data_position(0, TAG, 0)).unwrap();
    }

    /// Reads or writes the volume's start, without what fails it.
    fn at_volume(&self, code: u8, bytes: &[u8]) -> Vec<u8> {
        struct Kept(RefCell<Option<Box<Request>>>);
        impl Sink for Kept {
            fn completed(&self, request: Box<Request>, _state: u64) {
                self.0.replace(Some(request));
            }
        }
        let queue = (Arc::clone(&self.memory) as Arc<dyn Namespace>).open_queue(&self.reactor);
        let kept = Rc::new(Kept(RefCell::default()));
        let mut buffer = self.reactor.buffers().allocate(BYTES).unwrap();
        // SAFETY: so many bytes are in the buffer, which is ours alone.
        let room = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr(), BYTES) };
        room.copy_from_slice(bytes);
        let mut request = Request::new();
        request.command = nvme::Command::blocks(code, 1, 0, (BYTES >> 9) as u32);
        request.data = Data::Buffer(buffer);
        request.push(Rc::clone(&kept) as Rc<dyn Sink>, 0);
        queue.unwrap().submit(request);
        let request = kept.0.take().expect("memory answers at once");
        assert!(request.status.is_success());
        // SAFETY: so many bytes are in the buffer, which has come back.
        unsafe { std::slice::from_raw_parts(request.data.as_ptr(), BYTES).to_vec() }
    }

    fn stored(&self) -> Vec<u8> {
        self.at_volume(opcode::READ, &[0; BYTES])
    }
}

fn memory() -> Arc<Memory> {
    let options =
        MemoryOptions { bytes: 1 << 20, block_shift: 9, cores: 1, lend: false, uuid: None };
    Memory::open(options).unwrap()
}

/// A file, and the volume behind it, which is to be asked for nothing but what the file cannot give.
#[derive(Debug)]
struct Bypassed {
    file: File,
    volume: Arc<Memory>,
    asked: Arc<AtomicU32>,
}

struct Asked(Rc<dyn Queue>, Arc<AtomicU32>);

impl Queue for Asked {
    fn submit(&self, request: Box<Request>) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.submit(request);
    }

    fn forget(&self) {
        self.0.forget();
    }
}

impl Namespace for Bypassed {
    fn limits(&self) -> nvme::Limits {
        self.volume.limits()
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let queue = Arc::clone(&self.volume).open_queue(reactor)?;
        Ok(Rc::new(Asked(queue, Arc::clone(&self.asked))))
    }

    fn plain_file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn refresh(&self) -> io::Result<bool> {
        self.volume.refresh()
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.volume.resize(bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.volume.flush()
    }

    fn uri(&self) -> String {
        self.volume.uri()
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        self.volume.describe(facts);
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.volume.uuid()
    }
}

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|at| (at % 251) as u8 + 1).collect()
}

/// Refuses so many commands for a moment.
fn again(count: u64) -> Rule {
    let status = Some(Status::COMMAND_INTERRUPTED);
    Rule { count: Some(count), status, ..Rule::default() }
}

#[test]
fn a_queue_that_may_not_fetch_ends_and_says_why() {
    let set = Set::new(again(0));
    set.queue.fetch();
    set.drive();
    // Once for all tags.
    assert_eq!(set.told.ending.get(), 1);
    assert_eq!(*set.told.ended.borrow(), [Some(libc::EOPNOTSUPP)]);
    assert_eq!((set.queue.refusal(), set.queue.requests()), (Some(libc::EOPNOTSUPP), 0));
}

#[test]
fn threads_share_every_tag_and_none_twice() {
    for (depth, threads) in [(1, 1), (2, 1), (7, 2), (128, 3), (64, 64)] {
        let share = |thread| Share { thread, threads };
        let mut tags: Vec<u16> = (0..threads).flat_map(|it| share(it).tags(depth)).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..depth).collect::<Vec<_>>(), "{threads} threads");
    }
}

/// Of two tags it has the second: nothing is heard of the other.
#[test]
fn a_thread_fetches_by_its_own_tags_and_ends_with_them() {
    let set = Set::of(again(0), false, Share { thread: 1, threads: 2 });
    let before = set.reactor.stats().submitted;
    set.queue.fetch();
    assert_eq!(set.reactor.stats().submitted - before, 1);
    set.drive();
    assert_eq!((set.told.ending.get(), set.told.idle.get() > 0), (1, true));
    assert_eq!(*set.told.ended.borrow(), [Some(libc::EOPNOTSUPP)]);
}

/// The end waits for the request, and says what was said first.
#[test]
fn a_refused_tag_does_not_end_the_request_of_another() {
    let set = Set::new(again(1));
    set.put(&pattern());
    set.give(operation::WRITE);
    set.refuse_other(-libc::EINVAL);
    assert_eq!((set.told.ending.get(), set.told.idle.get()), (1, 0));
    assert!(set.told.ended.borrow().is_empty(), "a request is at work");
    set.drive();
    assert_eq!(*set.told.ended.borrow(), [Some(libc::EINVAL)]);
    assert!(set.stored() == pattern(), "it was not carried out");
    assert!(set.told.idle.get() > 0);
}

#[test]
fn what_is_refused_for_a_moment_waits_and_keeps_its_data() {
    let set = Set::new(again(3));
    set.put(&pattern());
    let begun = Instant::now();
    set.give(operation::WRITE);
    // It was brought here, and is not asked for again.
    set.put(&[0xee; BYTES]);
    set.refuse_other(driver::ABORTED);
    set.drive();
    // 10, 20 and 40 ms.
    assert!(begun.elapsed() >= Duration::from_millis(70), "{:?}", begun.elapsed());
    assert!(set.stored() == pattern(), "other bytes");

    let set = Set::new(again(3));
    set.at_volume(opcode::WRITE, &pattern());
    set.give(operation::READ);
    set.refuse_other(driver::ABORTED);
    set.drive();
    let mut bytes = vec![0; BYTES];
    set.device.read_exact_at(&mut bytes, data_position(0, TAG, 0)).unwrap();
    assert!(bytes == pattern(), "other bytes were read");
}

#[test]
fn by_copies_too_a_plain_file_is_read_by_the_queue_and_what_it_lacks_by_its_volume() {
    for path in [DataPath::UserCopy, DataPath::Copy] {
        for (in_file, asked) in [(BYTES, 0), (BYTES / 2, 1), (0, 1)] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&pattern()[..in_file], 0).unwrap();
            let (volume, asked_of) = (memory(), Arc::new(AtomicU32::new(0)));
            let bypassed =
                Bypassed { file, volume: Arc::clone(&volume), asked: Arc::clone(&asked_of) };
            let set = Set::serving(volume, Arc::new(bypassed), path, false, Share::ALL);
            let stored: Vec<u8> = pattern().into_iter().rev().collect();
            set.at_volume(opcode::WRITE, &stored);
            let wanted = if asked == 0 { pattern() } else { stored };
            set.give(operation::READ);
            set.refuse_other(driver::ABORTED);
            set.drive();
            let mut bytes = vec![0; BYTES];
            match path {
                DataPath::Copy => {
                    let own = set.queue.slot(TAG).own.borrow();
                    bytes.copy_from_slice(&own.as_ref().unwrap().as_slice()[..BYTES]);
                }
                _ => set.device.read_exact_at(&mut bytes, data_position(0, TAG, 0)).unwrap(),
            }
            assert!(bytes == wanted, "{path}: other bytes with {in_file} in the file");
            assert_eq!(asked_of.load(Ordering::Relaxed), asked, "{path}: {in_file} in the file");
        }
    }
}

#[test]
fn by_copies_too_a_write_goes_by_the_queue_and_what_fails_is_written_again_by_the_volume() {
    for path in [DataPath::UserCopy, DataPath::Copy] {
        for (is_writable, asked) in [(true, 0), (false, 1)] {
            let named = tempfile::NamedTempFile::new().unwrap();
            let file = File::options().read(true).write(is_writable).open(named.path()).unwrap();
            let (volume, asked_of) = (memory(), Arc::new(AtomicU32::new(0)));
            let bypassed =
                Bypassed { file, volume: Arc::clone(&volume), asked: Arc::clone(&asked_of) };
            let set = Set::serving(volume, Arc::new(bypassed), path, false, Share::ALL);
            match path {
                DataPath::Copy => {
                    let mut own = set.queue.slot(TAG).own.borrow_mut();
                    own.as_mut().unwrap().as_mut_slice()[..BYTES].copy_from_slice(&pattern());
                }
                _ => set.put(&pattern()),
            }
            set.give(operation::WRITE);
            set.refuse_other(driver::ABORTED);
            set.drive();
            assert_eq!(asked_of.load(Ordering::Relaxed), asked, "{path}, writable: {is_writable}");
            let written = match is_writable {
                true => std::fs::read(named.path()).unwrap(),
                false => set.stored(),
            };
            assert!(written == pattern(), "{path}, writable: {is_writable}: other bytes");
        }
    }
}

#[test]
fn a_copy_that_stops_short_goes_on_where_it_stopped() {
    let set = Set::new(again(0));
    // The rest is not there. Copied from the beginning again, there would be enough.
    set.put(&pattern()[..BYTES / 4]);
    set.give(operation::WRITE);
    set.refuse_other(driver::ABORTED);
    set.drive();
    assert!(set.stored() == [0; BYTES], "half a write was carried out");
}

#[test]
fn a_queue_whose_batches_are_refused_ends_and_says_why() {
    let set = Set::with(again(0), true);
    set.queue.fetch();
    set.drive();
    assert_eq!(set.told.ending.get(), 1);
    assert_eq!(*set.told.ended.borrow(), [Some(libc::EOPNOTSUPP)]);
}

/// As if the driver had given tag 0 in a buffer, which holds zeroes, and `flags` beside.
fn give_first(set: &Set, flags: u32) {
    const BUFFER_0: u32 = 1;
    set.describe(0, operation::FLUSH);
    set.queue.complete(about::FETCHED, 2, BUFFER_0 | flags);
}

#[test]
fn what_the_driver_does_not_take_ends_and_the_rest_when_it_fetches_no_more() {
    let set = Set::with(again(0), true);
    give_first(&set, uring::MORE);
    // Its answer ends no sleep.
    let end = Instant::now() + Duration::from_secs(20);
    while set.told.ending.get() == 0 {
        set.reactor.turn_for(Drive::Poll);
        assert!(Instant::now() < end, "took too long");
    }
    // The result of tag 0 was refused, which is told at once. The driver has the other still.
    assert_eq!(set.told.error.get(), Some(libc::EOPNOTSUPP));
    assert_eq!((set.queue.requests(), set.told.idle.get() > 0), (1, true));
    assert!(set.told.ended.borrow().is_empty());
    set.queue.complete(about::FETCHED, driver::ABORTED, 0);
    assert_eq!(*set.told.ended.borrow(), [Some(libc::EOPNOTSUPP)]);
}

#[test]
fn a_request_that_is_at_work_when_the_driver_fetches_no_more_ends_when_its_result_was_told() {
    // Again after a pause: so long it is at work.
    let set = Set::with(again(1), true);
    give_first(&set, uring::MORE);
    set.queue.complete(about::FETCHED, driver::ABORTED, 0);
    assert_eq!((set.told.ending.get(), set.told.idle.get()), (1, 0));
    assert!(set.told.ended.borrow().is_empty(), "a request is at work");
    assert_eq!(set.told.error.get(), None);
    set.drive();
    assert_eq!(set.told.ended.borrow().len(), 1);
    // Its result was refused.
    assert_eq!((set.told.ending.get(), set.told.error.get()), (2, Some(libc::EOPNOTSUPP)));
}

/// The driver gives requests before it is told that the server is to have the device.
#[test]
fn what_is_held_is_begun_when_that_is_told_or_never() {
    for batch in [true, false] {
        let held = || {
            let set = Set::with(again(0), batch);
            set.queue.takes.set(false);
            set.queue.held.replace(Some(Vec::new()));
            set.put(&pattern());
            match batch {
                true => give_first(&set, uring::MORE),
                false => set.give(operation::WRITE),
            }
            assert_eq!(set.queue.requests(), 0);
            set
        };
        let set = held();
        set.queue.wake(GO);
        assert_eq!(set.queue.requests(), 1);
        set.describe(0, operation::FLUSH);
        set.queue.begin(0);
        assert_eq!(set.queue.requests(), 2, "the next is begun at once");
        // Who leaves before begins nothing, whatever comes.
        let set = held();
        set.queue.wake(LEAVE);
        assert_eq!(set.told.idle.get(), 1);
        set.queue.wake(GO);
        set.queue.begin(0);
        assert_eq!(set.queue.requests(), 0);
        // Nor does who was told meanwhile that there will be no more.
        if batch {
            let set = held();
            set.queue.complete(about::FETCHED, driver::ABORTED, 0);
            assert_eq!(*set.told.ended.borrow(), [None]);
            set.queue.wake(GO);
            assert_eq!(set.queue.requests(), 0);
        }
    }
}

/// Nothing is begun any more, and who leaves is idle when what he has begun is done and the driver has taken its result.
#[test]
fn a_queue_that_leaves_ends_what_it_has_begun_and_begins_nothing() {
    let set = Set::with(again(1), true);
    set.put(&pattern());
    give_first(&set, uring::MORE);
    set.queue.wake(LEAVE);
    assert_eq!((set.told.idle.get(), set.told.ending.get()), (0, 0), "a request is at work");
    // One that comes now stays with the driver.
    set.describe(TAG, operation::WRITE);
    set.queue.begin(TAG);
    assert_eq!(set.queue.requests(), 1);
    let end = Instant::now() + Duration::from_secs(20);
    let list = loop {
        // Before the turn hands it over, which this driver would refuse.
        if let Some((list, ..)) = set.queue.batch().borrow_mut().close() {
            break list;
        }
        set.reactor.turn_for(Drive::Poll);
        assert!(Instant::now() < end && set.told.error.get().is_none(), "no result");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(set.told.idle.get(), 0, "the result is not taken yet");
    set.queue.complete(about::COMMITTED | u64::from(list), 8, 0);
    assert_eq!((set.told.idle.get(), set.told.ending.get()), (1, 0));
    assert!(set.told.ended.borrow().is_empty() && set.stored() != pattern());

    // With nothing begun it is idle at once.
    for batch in [true, false] {
        let set = Set::with(again(0), batch);
        set.queue.wake(LEAVE);
        assert_eq!((set.told.idle.get(), set.told.ending.get()), (1, 0));
    }
}

/// The driver's answer to its last result is all that comes then.
#[test]
fn who_leaves_stops_or_is_given_no_more_is_woken_by_what_became_of_the_last_result() {
    for way in 0..3 {
        // Again after a pause: so long it is at work.
        let set = Set::with(again(1), true);
        give_first(&set, uring::MORE);
        match way {
            0 => set.queue.wake(LEAVE),
            1 => set.queue.wake(ATTEND),
            _ => set.queue.complete(about::FETCHED, driver::ABORTED, 0),
        }
        let begun = Instant::now();
        while set.told.error.get().is_none() {
            set.reactor.turn_for(Drive::Until(begun + Duration::from_secs(20)));
            assert!(begun.elapsed() < Duration::from_secs(10), "slept beside it");
        }
        assert_eq!(set.told.error.get(), Some(libc::EOPNOTSUPP));
    }
}

/// Where requests come all the time the driver's answer ends no sleep, and one that is told nothing else is called.
#[test]
fn an_answer_that_ended_no_sleep_is_read_when_the_queue_is_called() {
    let set = Set::with(again(0), true);
    let unheard = set.queue.unheard();
    give_first(&set, uring::MORE);
    assert!(!unheard.load(Ordering::Relaxed));
    let begun = Instant::now();
    while !unheard.load(Ordering::Relaxed) {
        set.reactor.turn_for(Drive::Poll);
        assert!(begun.elapsed() < Duration::from_secs(20), "no result");
    }
    assert_eq!(set.told.error.get(), None);
    let waker = Waker::new(&set.reactor, Rc::downgrade(&set.queue) as _);
    let long = Instant::now() + Duration::from_secs(20);
    let caller = std::thread::spawn({
        let waker = waker.clone();
        move || {
            std::thread::sleep(Duration::from_millis(50));
            waker.call(0)
        }
    });
    while set.told.error.get().is_none() {
        set.reactor.turn_for(Drive::Until(long));
        assert!(Instant::now() < long, "slept beside it");
    }
    assert!(caller.join().unwrap() && !unheard.load(Ordering::Relaxed));
    assert_eq!((set.told.error.get(), set.told.idle.get()), (Some(libc::EOPNOTSUPP), 1));
    waker.forget();
}

#[test]
fn what_fetches_is_given_again_where_it_ended_for_now_but_not_for_ever() {
    let set = Set::with(again(0), true);
    // This driver refuses it then.
    set.queue.complete(about::FETCHED, -libc::ENOBUFS, 0);
    assert_eq!(set.told.ending.get(), 0);
    set.drive();
    assert_eq!(*set.told.ended.borrow(), [Some(libc::EOPNOTSUPP)]);
    let set = Set::with(again(0), true);
    set.queue.in_vain.set(u32::MAX);
    set.queue.complete(about::FETCHED, -libc::ENOBUFS, 0);
    assert_eq!(*set.told.ended.borrow(), [Some(libc::ENOBUFS)]);
}

#[test]
fn results_that_the_driver_does_not_take_for_a_moment_are_given_again_but_not_for_ever() {
    for (in_vain, told) in [(0, None), (u32::MAX, Some(libc::EAGAIN))] {
        let set = Set::with(again(0), true);
        give_first(&set, uring::MORE);
        let list = set.queue.batch().borrow_mut().close().expect("a result was gathered").0;
        set.queue.in_vain.set(in_vain);
        let before = set.reactor.stats().submitted;
        set.queue.complete(about::COMMITTED | u64::from(list), -libc::EAGAIN, 0);
        assert_eq!((set.told.ending.get() > 0, set.queue.refusal()), (told.is_some(), told));
        assert_eq!(set.reactor.stats().submitted - before, u64::from(told.is_none()));
    }
}

#[test]
fn the_driver_is_asked_again_after_a_pause_where_it_has_refused_twice() {
    let refused = |set: &Set, in_vain: u32, token: u64| {
        set.queue.in_vain.set(in_vain);
        let (begun, before) = (Instant::now(), set.reactor.stats().submitted);
        set.queue.complete(token, -libc::ENOMEM, 0);
        assert_eq!(set.told.ending.get(), 0);
        let at_once = set.reactor.stats().submitted > before;
        let end = begun + Duration::from_secs(20);
        while set.reactor.stats().submitted == before {
            set.reactor.turn_for(Drive::Until(end));
            assert!(Instant::now() < end, "took too long");
        }
        (at_once, begun.elapsed() >= Duration::from_millis(1))
    };
    for in_vain in 0..3 {
        let set = Set::with(again(0), true);
        give_first(&set, uring::MORE);
        let list = set.queue.batch().borrow_mut().close().expect("a result was gathered").0;
        for token in [about::COMMITTED | u64::from(list), about::FETCHED] {
            let set = match token {
                about::FETCHED => &Set::with(again(0), true),
                _ => &set,
            };
            let (at_once, waited) = refused(set, in_vain, token);
            assert!(at_once == (in_vain == 0) && (at_once || waited), "{token:#x} {in_vain}");
        }
    }
}

#[test]
fn lists_that_are_refused_side_by_side_have_as_long_as_one() {
    let set = Set::with(again(0), true);
    let begun = Instant::now();
    assert!((0..5_000).all(|_| set.queue.may_go_on()));
    let most = begun.elapsed().as_millis() as u32 + 1;
    assert!((1..=most).contains(&set.queue.in_vain.get()), "{}", set.queue.in_vain.get());
}

/// Which blocks, and once: not each time that it is tried again.
#[test]
fn what_the_volume_fails_is_told_when_it_is_not_tried_again() {
    let failed = |rule, operation| {
        let set = Set::new(rule);
        set.give(operation);
        set.refuse_other(driver::ABORTED);
        set.drive();
        set.told.failed.take()
    };
    let status = Status::UNRECOVERED_READ;
    let blocks = Some((0, (BYTES >> 9) as u64));
    let wanted = |opcode, status| vec![Failed { opcode, blocks, status, os_error: 0 }];
    let rule = || Rule { status: Some(status), ..Rule::default() };
    assert_eq!(failed(rule(), operation::READ), wanted(opcode::READ, status));
    let discarded = failed(rule(), operation::DISCARD);
    assert_eq!(discarded, wanted(opcode::DATASET_MANAGEMENT, status));
    assert_eq!(failed(again(3), operation::READ), []);
    let interrupted = wanted(opcode::READ, Status::COMMAND_INTERRUPTED);
    assert_eq!(failed(again(u64::MAX), operation::READ), interrupted);
}
