//! One queue of a device on its core: what [`Tags`] says is done.

mod batched;
mod copies;

use crate::batch::{Batch, Element};
use crate::descriptors::Descriptors;
use crate::driver::{self, ABORTED, IoCommand, auto_buffer};
use crate::path::DataPath;
use crate::plain::Plain;
use crate::tags::{Carries, Step, Tags};
use crate::threads::ATTEND;
use crate::translate::Shape;
use crate::zoned;
use driver::SECTOR_SHIFT;
use namespace::failures::Failed;
use namespace::layer::program::Wake;
use namespace::{Data, Namespace, Part, Queue, Registered, Request, Sink, dataset};
use nvme::Status;
use nvme::opcode::io as opcode;
use reactor::{Buffer, Complete, FixedFile, Reactor};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use ublk_bpf::{GO, LEAVE};
use uring::entry;

/// What a completion is about: the upper half of a token; the lower is the tag, or the number of a list.
mod about {
    pub const FETCH: u64 = 0 << 32;
    pub const MEMORY: u64 = 1 << 32;
    pub const PAUSE: u64 = 2 << 32;
    pub const PLAIN: u64 = 3 << 32;
    pub const PREPARED: u64 = 4 << 32;
    pub const FETCHED: u64 = 5 << 32;
    pub const COMMIT: u64 = 6 << 32;
    pub const COMMITTED: u64 = 7 << 32;
    pub const FETCH_AGAIN: u64 = 8 << 32;
    pub const COMMIT_AGAIN: u64 = 9 << 32;
}

/// The tags of a queue that one of its threads has: they take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its number among them.
    pub thread: u16,
    /// How many there are.
    pub threads: u16,
}

impl Share {
    /// Of a queue with one thread.
    pub const ALL: Share = Share { thread: 0, threads: 1 };

    /// Its tags, of so many.
    pub fn tags(self, depth: u16) -> impl Iterator<Item = u16> {
        (0..depth).filter(move |tag| self.has(*tag))
    }

    fn has(self, tag: u16) -> bool {
        tag % self.threads == self.thread
    }
}

/// How a queue is served by one of its threads.
#[derive(Clone, Debug)]
pub struct QueueConfig {
    /// Its number.
    pub queue: u16,
    /// How many requests it has.
    pub depth: u16,
    /// Which of them this thread serves.
    pub share: Share,
    /// The way of data.
    pub path: DataPath,
    /// What the volume takes.
    pub shape: Shape,
    /// The driver knows commands by the numbers of ioctls.
    pub encoded: bool,
    /// It gives and takes requests many at a time.
    pub batch: bool,
    /// What it gives is not begun until the thread is told to ([`GO`]).
    pub held: bool,
}

/// Is told what becomes of a queue.
pub trait Watcher {
    /// The driver has ended the first of the tags: the device stops, or changes its server. Where it has an `error` the queue
    /// has failed, of which nothing more may be heard: it may come after an end without one.
    fn ending(&self, error: Option<i32>);
    /// Nothing that was ended is with the volume any more.
    fn idle(&self);
    /// The volume has failed a request, which is not tried again.
    fn failed(&self, failed: Failed);
    /// All tags have ended. `error` is what the driver said, if it was not the usual.
    fn ended(&self, error: Option<i32>);
}

/// One queue.
pub struct QueueServer {
    me: Weak<QueueServer>,
    config: QueueConfig,
    reactor: Rc<Reactor>,
    volume: Rc<dyn Queue>,
    lends: bool,
    /// Spares the volume what needs nothing of it.
    plain: Option<Plain>,
    watcher: Box<dyn Watcher>,
    device: Arc<File>,
    file: uring::File,
    registered: RefCell<Option<FixedFile>>,
    descriptors: Descriptors,
    tags: RefCell<Tags>,
    batch: Option<RefCell<Batch>>,
    /// The driver has been given results, and its answer does not end a sleep: it may be there, unread.
    unheard: Arc<AtomicBool>,
    /// Tags that the driver has given, until they may be begun.
    held: RefCell<Option<Vec<u16>>>,
    /// How often the driver has refused something for a moment since requests came last.
    in_vain: Cell<u32>,
    /// Until then what is refused counts as one with what was before.
    counted_until: Cell<Instant>,
    slots: Box<[Slot]>,
    /// Tags that wait for memory.
    waiting: RefCell<VecDeque<u16>>,
    /// The pool knows.
    waits: Cell<bool>,
    /// The registered buffer of tag 0.
    first_buffer: u16,
    /// The driver has begun to end tags.
    ending: Cell<bool>,
    /// It has ended all.
    has_ended: Cell<bool>,
    /// What comes is begun.
    takes: Cell<bool>,
    /// What comes is the next server's.
    leaving: Cell<bool>,
    /// Nothing else may come than the driver's answers.
    attends: Cell<bool>,
    error: Cell<Option<i32>>,
    /// The watcher knows of it.
    error_told: Cell<bool>,
    requests: Cell<u64>,
}

/// What a tag has.
struct Slot {
    /// While it is not with the volume.
    request: Cell<Option<Box<Request>>>,
    /// What is being copied to or from the request.
    data: Cell<Data>,
    /// The tag's own memory, which the driver copies to and from ([`DataPath::Copy`]).
    own: RefCell<Option<Buffer>>,
    /// Where an append went, in sectors, until the driver is told.
    appended: Cell<u64>,
    /// The range of a discard.
    range: UnsafeCell<[u8; dataset::RANGE_BYTES]>,
}

impl QueueServer {
    /// Opens the way to the volume and gets ready; [`QueueServer::fetch`] begins.
    pub fn open(
        config: QueueConfig,
        reactor: &Rc<Reactor>,
        namespace: &Arc<dyn Namespace>,
        device: Arc<File>,
        watcher: Box<dyn Watcher>,
    ) -> io::Result<Rc<QueueServer>> {
        let volume = Arc::clone(namespace).open_queue(reactor)?;
        let descriptors = Descriptors::map(&device, config.queue, config.depth)?;
        let first_buffer = match config.path {
            DataPath::ZeroCopy => {
                let places = reactor.kernel_buffers().filter(|it| it.len() >= config.depth.into());
                places.ok_or_else(|| io::Error::other("the ring has no table of buffers"))?.start
            }
            DataPath::Copy | DataPath::UserCopy => 0,
        };
        let batch = match config.batch {
            true => {
                let (queue, depth) = (config.queue, config.depth);
                let is_zoned = config.shape.zone_sectors > 0;
                let batch = Batch::new(reactor, queue, depth, config.path, is_zoned)?;
                Some(RefCell::new(batch))
            }
            false => None,
        };
        let slot = |tag| {
            let own = match config.path {
                DataPath::Copy if config.share.has(tag) => {
                    let buffer = reactor.buffers().allocate(config.shape.io_bytes_max as usize);
                    Some(buffer.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?)
                }
                DataPath::Copy | DataPath::UserCopy | DataPath::ZeroCopy => None,
            };
            Ok(Slot {
                request: Cell::new(config.share.has(tag).then(Request::new)),
                data: Cell::default(),
                own: RefCell::new(own),
                appended: Cell::new(0),
                range: UnsafeCell::new([0; dataset::RANGE_BYTES]),
            })
        };
        let slots = (0..config.depth).map(slot).collect::<io::Result<Box<[Slot]>>>()?;
        let mut tags = Tags::new(config.depth, config.path, config.shape);
        // The driver gives those to other threads.
        (0..config.depth).filter(|tag| !config.share.has(*tag)).for_each(|tag| tags.ended(tag));
        let plain = Plain::of(&**namespace, reactor);
        let registered = reactor.register_file(device.as_raw_fd());
        let file = registered.as_ref().map_or(uring::File::Fd(device.as_raw_fd()), FixedFile::file);
        Ok(Rc::new_cyclic(|me| QueueServer {
            me: me.clone(),
            reactor: Rc::clone(reactor),
            volume,
            lends: namespace.limits().lends_reads && config.path == DataPath::UserCopy,
            plain,
            watcher,
            device,
            file,
            registered: RefCell::new(registered),
            descriptors,
            tags: RefCell::new(tags),
            batch,
            unheard: Arc::default(),
            held: RefCell::new(config.held.then(Vec::new)),
            takes: Cell::new(!config.held),
            in_vain: Cell::new(0),
            counted_until: Cell::new(Instant::now()),
            slots,
            waiting: RefCell::new(VecDeque::with_capacity(config.depth.into())),
            waits: Cell::new(false),
            first_buffer,
            ending: Cell::new(false),
            has_ended: Cell::new(false),
            leaving: Cell::new(false),
            attends: Cell::new(false),
            error: Cell::new(None),
            error_told: Cell::new(false),
            requests: Cell::new(0),
            config,
        }))
    }

    /// Has the driver give requests, by all of its tags.
    pub fn fetch(&self) {
        for tag in self.config.share.tags(self.config.depth) {
            match &self.batch {
                Some(batch) => {
                    batch.borrow_mut().push(self.element(tag, 0));
                }
                None => self.command(driver::io::FETCH_REQ, tag, 0),
            }
        }
        if let Some(batch) = &self.batch {
            self.hand_over(batch, driver::io::PREP_IO_CMDS, about::PREPARED);
        }
    }

    /// Requests that the driver has given so far.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Whether an answer of the driver may be there that the queue has not read: then it is to be called.
    pub fn unheard(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.unheard)
    }

    /// What the driver said if it ended tags in another way than by ending the device.
    pub fn refusal(&self) -> Option<i32> {
        self.error.get()
    }

    fn me(&self) -> Rc<QueueServer> {
        self.me.upgrade().expect("the queue lives while it is called")
    }

    fn slot(&self, tag: u16) -> &Slot {
        &self.slots[usize::from(tag)]
    }

    /// Hands a tag to the driver.
    #[inline]
    fn command(&self, operation: u32, tag: u16, result: i32) {
        let operation = if self.config.encoded { operation } else { operation & 0xff };
        let Element { buffer, addr, .. } = self.element(tag, result);
        let index = match self.config.path {
            DataPath::ZeroCopy => auto_buffer(buffer),
            DataPath::Copy | DataPath::UserCopy => 0,
        };
        let command = IoCommand { q_id: self.config.queue, tag, result, addr };
        let entry = entry::uring_cmd(self.file, operation, index, command.to_bytes());
        // SAFETY: the entry names at most the tag's own memory, which lives as long as this queue, the
        // sink.
        unsafe { self.reactor.submit(entry, self.me(), about::FETCH | u64::from(tag)) };
    }

    /// What the driver is told of a tag that it gets.
    #[inline]
    fn element(&self, tag: u16, result: i32) -> Element {
        let own = self.slot(tag).own.borrow();
        let addr = match own.as_ref() {
            Some(buffer) => buffer.as_ptr() as u64,
            None => self.slot(tag).appended.take(),
        };
        Element { tag, buffer: self.first_buffer + tag, result, addr }
    }

    #[inline]
    fn take(&self, tag: u16, step: Step) {
        match step {
            Step::Submit => self.start(tag),
            Step::Commit(result) => self.commit(tag, result),
            Step::CopyIn { skip, bytes } => self.copy_in(tag, skip, bytes),
            Step::CopyOut { skip, bytes } => self.copy_out(tag, skip, bytes),
            Step::SubmitLater(pause) => {
                let token = about::PAUSE | u64::from(tag);
                self.reactor.timer(Instant::now() + pause, self.me(), token);
            }
        }
    }

    fn commit(&self, tag: u16, result: i32) {
        drop(self.slot(tag).data.take());
        match &self.batch {
            Some(batch) => {
                let is_first = batch.borrow_mut().push(self.element(tag, result));
                if is_first {
                    self.reactor.settle(self.me(), about::COMMIT);
                }
            }
            None => self.command(driver::io::COMMIT_AND_FETCH_REQ, tag, result),
        }
        self.tell_if_idle();
    }

    #[inline]
    fn tell_if_idle(&self) {
        if self.ending.get() && self.tags.borrow().busy() == 0 && !self.has_more_to_tell() {
            self.watcher.idle();
        }
    }

    /// Whether one that leaves has results which the driver has not taken. They would do no harm; the requests would come once
    /// more, to the next server.
    fn has_more_to_tell(&self) -> bool {
        let is_quiet = |batch: &RefCell<Batch>| batch.borrow().is_quiet();
        self.leaving.get() && !self.batch.as_ref().is_none_or(is_quiet)
    }

    /// Has the volume carry out a request, or the ring where that is the same.
    #[inline]
    fn start(&self, tag: u16) {
        match self.plain.as_ref().and_then(|plain| self.plain_entry(plain, tag)) {
            // SAFETY: the entry names the request's pages, which the driver keeps registered until the tag is
            // committed, or memory that the tag's slot keeps until this has ended (`plain_memory`); the queue, which
            // has the slots, is the sink.
            Some(entry) => unsafe {
                self.reactor.submit(entry, self.me(), about::PLAIN | u64::from(tag));
            },
            None => self.submit(tag),
        }
    }

    #[inline]
    fn plain_entry(&self, plain: &Plain, tag: u16) -> Option<uring::Entry> {
        let tags = self.tags.borrow();
        let command = tags.command(tag);
        if !plain.takes(command) {
            return None;
        }
        let (start, len, index) = match tags.carries(tag) {
            Carries::Pages(len) => (std::ptr::null_mut(), len, Some(self.first_buffer + tag)),
            carries @ (Carries::Room(len) | Carries::Bytes(len)) => {
                let is_read = matches!(carries, Carries::Room(_));
                let (start, index) = self.plain_memory(plain, tag, len, is_read)?;
                (start, len, index)
            }
            Carries::Nothing | Carries::Range(_) => return None,
        };
        plain.entry(command, start, len, index)
    }

    /// The ring has carried out what [`QueueServer::start`] gave it.
    #[inline]
    fn started(&self, tag: u16, result: i32) {
        let carries = self.tags.borrow().carries(tag);
        let (Carries::Pages(len) | Carries::Room(len) | Carries::Bytes(len)) = carries else {
            unreachable!("{carries:?} is not the ring's");
        };
        if len != result.cast_unsigned() {
            if matches!(carries, Carries::Room(_)) {
                drop(self.slot(tag).data.take());
            }
            return self.submit(tag);
        }
        let step = self.tags.borrow_mut().served(tag, Status::SUCCESS);
        self.take(tag, step);
    }

    fn submit(&self, tag: u16) {
        let (command, carries) = {
            let tags = self.tags.borrow();
            (*tags.command(tag), tags.carries(tag))
        };
        let slot = self.slot(tag);
        let data = match carries {
            Carries::Nothing => Data::None,
            Carries::Pages(len) => {
                Data::Registered(Registered { index: self.first_buffer + tag, offset: 0, len })
            }
            Carries::Range(range) => {
                let place = slot.range.get();
                // SAFETY: the range of a tag is used by nobody but its request, which is here; the part
                // is the volume's until the request comes back.
                unsafe {
                    place.write(range.to_bytes());
                    Data::Part(Part::new(place.cast(), dataset::RANGE_BYTES, None))
                }
            }
            Carries::Room(len) | Carries::Bytes(len) if self.config.path == DataPath::Copy => {
                self.own_memory(tag, len)
            }
            Carries::Room(_) if self.lends => Data::None,
            Carries::Room(len) => match self.memory(tag, len) {
                Some(memory) => memory,
                None => return,
            },
            Carries::Bytes(len) => {
                let data = slot.data.take();
                assert_eq!(data.len(), len as usize, "it was copied here");
                data
            }
        };
        let mut request =
            slot.request.take().expect("a tag that is not with the volume has its own");
        request.command = command;
        request.data = data;
        request.push(self.me(), u64::from(tag));
        self.volume.submit(request);
    }

    /// What only commands of zoned volumes come back with.
    fn completed_zoned(&self, tag: u16, request: &Request, data: &mut Data) {
        let shape = &self.config.shape;
        if !request.status.is_success() {
            return;
        }
        if request.command.opcode == opcode::ZONE_APPEND {
            let sector = request.result << (shape.block_shift - SECTOR_SHIFT);
            self.slot(tag).appended.set(sector);
        } else if self.tags.borrow().is_report(tag) {
            let (start, len) = (data.as_mut_ptr().expect("a buffer"), data.len());
            // SAFETY: so many bytes are in the buffer, which has come back and is ours alone.
            let report = unsafe { std::slice::from_raw_parts_mut(start, len) };
            zoned::convert(report, shape.block_shift, shape.zone_sectors);
        }
    }

    /// The volume has failed the request of a tag for good.
    #[cold]
    fn failed(&self, tag: u16, status: Status, os_error: i32) {
        let tags = self.tags.borrow();
        // As the tag has it: whoever failed it may have had the address of a part.
        let mut failed = Failed::of(tags.command(tag), status, os_error);
        if let Carries::Range(range) = tags.carries(tag) {
            failed.blocks = Some((range.slba, range.blocks.into()));
        }
        drop(tags);
        self.watcher.failed(failed);
    }

    /// The first `len` bytes of the tag's own memory.
    fn own_memory(&self, tag: u16, len: u32) -> Data {
        let mut own = self.slot(tag).own.borrow_mut();
        let own = own.as_mut().expect("every tag has");
        assert!(len as usize <= own.len());
        let fixed = own.fixed_index();
        // SAFETY: the memory is the tag's as long as the queue lives, and the driver leaves it alone
        // while the server has the tag.
        Data::Part(unsafe { Part::new(own.as_mut_ptr(), len as usize, fixed) })
    }

    /// The driver has answered.
    #[inline]
    fn fetched(&self, tag: u16, result: i32) {
        if result != 0 {
            return self.tag_ended(tag, result);
        }
        self.begin(tag);
    }

    /// The driver has given a request.
    #[inline]
    fn begin(&self, tag: u16) {
        if !self.takes.get() {
            return self.hold(tag);
        }
        self.requests.set(self.requests.get() + 1);
        let request = self.descriptors.read(tag);
        let step = self.tags.borrow_mut().begin(tag, &request);
        self.take(tag, step);
    }

    /// The next server is given it again, or it waits for the time when this one serves.
    #[cold]
    fn hold(&self, tag: u16) {
        if let Some(held) = &mut *self.held.borrow_mut() {
            held.push(tag);
        }
    }

    /// From now on what the driver gives is begun, and so is what it has given, unless that has ended meanwhile.
    fn go(&self) {
        self.takes.set(!self.leaving.get());
        for tag in self.held.take().into_iter().flatten() {
            if self.tags.borrow().is_fetching(tag) {
                self.begin(tag);
            }
        }
    }

    #[cold]
    fn tag_ended(&self, tag: u16, result: i32) {
        self.note_end(result);
        self.tags.borrow_mut().ended(tag);
        self.tell_end();
    }

    /// The driver said that it gives no more, or what is wrong.
    fn note_end(&self, result: i32) {
        if result != ABORTED && self.error.get().is_none() {
            let (queue, error) = (self.config.queue, io::Error::from_raw_os_error(-result));
            tracing::warn!(queue, %error, "the driver takes a request back");
            self.error.set(Some(-result));
        }
    }

    /// Tags have ended.
    fn tell_end(&self) {
        let error = self.error.get();
        let is_news = error.is_some() && !self.error_told.replace(true);
        if !self.ending.replace(true) || is_news {
            self.watcher.ending(error);
        }
        self.tell_if_idle();
        if self.tags.borrow().has_ended() && !self.has_ended.replace(true) {
            // Nothing of the device's may be left in the ring, or it could not be deleted.
            if let Some(file) = self.registered.take() {
                self.reactor.unregister_file(file);
            }
            self.watcher.ended(error);
        }
    }
}

impl Complete for QueueServer {
    #[inline]
    fn complete(&self, token: u64, result: i32, flags: u32) {
        let tag = token as u16;
        match token & !0xffff_ffff {
            about::FETCH => self.fetched(tag, result),
            about::PLAIN => self.started(tag, result),
            about::FETCHED => self.fetched_many(result, flags),
            about::COMMIT => {
                self.hand_over(self.batch(), driver::io::COMMIT_IO_CMDS, about::COMMITTED)
            }
            about::COMMITTED => self.committed(tag, result),
            about::PREPARED => self.prepared(tag, result),
            about::FETCH_AGAIN => self.fetch_many(self.batch()),
            about::COMMIT_AGAIN => self.commit_again(tag),
            about::MEMORY if result < 0 => {}
            about::MEMORY => self.memory_came(),
            about::PAUSE => {
                // The volume has failed: it is asked again, rather than the ring.
                match self.tags.borrow_mut().resume(tag) {
                    Step::Submit => {}
                    step => unreachable!("{step:?} after a pause"),
                }
                self.submit(tag);
            }
            _ => unreachable!("tokens are ours"),
        }
    }
}

impl Sink for QueueServer {
    /// Called from within `submit` too: nothing is submitted from here, but to the ring.
    #[inline]
    fn completed(&self, mut request: Box<Request>, state: u64) {
        let (tag, status) = (state as u16, request.status);
        let mut data = std::mem::take(&mut request.data);
        // The next that fails is to come with none.
        let os_error = std::mem::take(&mut request.os_error);
        let slot = self.slot(tag);
        if self.config.shape.zone_sectors > 0 {
            self.completed_zoned(tag, &request, &mut data);
        }
        slot.request.set(Some(request));
        let step = self.tags.borrow_mut().served(tag, status);
        match step {
            Step::CopyOut { .. } => slot.data.set(data),
            Step::Commit(_) if !status.is_success() => self.failed(tag, status, os_error),
            // What was to be written is needed again.
            Step::SubmitLater(_) if matches!(data, Data::Buffer(_)) => {
                let writes = matches!(self.tags.borrow().carries(tag), Carries::Bytes(_));
                if writes {
                    slot.data.set(data);
                }
            }
            _ => drop(data),
        }
        self.take(tag, step);
    }
}

impl Wake for QueueServer {
    /// By [`GO`] has it begin what it was given; by [`ATTEND`] be woken by each answer of the driver. By [`LEAVE`] has it leave:
    /// what it has begun it ends, and then it is idle. All else that the driver has given, or gives, comes again to the next
    /// server, when this process has ended. By anything else, only ends its sleep.
    fn wake(&self, value: u64) {
        match value {
            GO => self.go(),
            ATTEND => self.attends.set(true),
            LEAVE => {
                self.takes.set(false);
                self.held.take();
                self.leaving.set(true);
                self.attends.set(true);
                self.ending.set(true);
                self.tell_if_idle();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
