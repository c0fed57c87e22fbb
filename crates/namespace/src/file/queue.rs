//! One core's ring operations on a file: a request is one operation at a time until it is done.

use super::syncs::{Held, NUMBER};
use super::{File, ZeroesBy};
use crate::memory::Mapping;
use crate::wake::{Wake, Waker};
use crate::{Access, AccessWatcher, Namespace, Queue, Request, dataset};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::{Complete, FixedFile, Reactor};
use std::cell::{Cell, RefCell};
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use uring::entry;

/// Zeroes written at once where a range cannot be zeroed.
const ZEROES_BYTES: u64 = 1 << 20;
/// `RWF_DSYNC`: durable before it completes.
const DSYNC: i32 = libc::RWF_DSYNC;

/// What a request in flight is doing: `Request::scratch[STEP]`. `Request::scratch[DONE]` counts
/// the bytes done, or for Dataset Management the ranges.
pub(super) mod step {
    pub const MAIN: u64 = 0;
    pub const WRITE_ZEROES: u64 = 1;
    pub const SYNC: u64 = 2;
    pub const MAKE_HOLE: u64 = 3;
}
pub(super) const DONE: usize = 0;
pub(super) const STEP: usize = 1;

pub(super) struct FileQueue {
    pub(super) me: Weak<FileQueue>,
    pub(super) volume: Arc<File>,
    pub(super) reactor: Rc<Reactor>,
    file: uring::File,
    registered: Option<FixedFile>,
    /// How often the kernel has dropped data, as far as the users of this queue know: by Flush, and by what else syncs.
    pub(super) told: [Cell<u64>; 2],
    pub(super) held: RefCell<Vec<Held>>,
    pub(super) waker: Waker,
    /// The device has been removed.
    gone: Cell<bool>,
    watcher: RefCell<Option<Weak<dyn AccessWatcher>>>,
}

impl FileQueue {
    pub(super) fn open(volume: Arc<File>, reactor: &Rc<Reactor>) -> Rc<FileQueue> {
        let registered = reactor.register_file(volume.as_raw_fd());
        let file = match &registered {
            Some(registered) => registered.file(),
            None => uring::File::Fd(volume.as_raw_fd()),
        };
        let reactor = Rc::clone(reactor);
        Rc::new_cyclic(|me: &Weak<FileQueue>| FileQueue {
            me: me.clone(),
            waker: Waker::new(&reactor, me.clone() as Weak<dyn Wake>),
            held: RefCell::default(),
            told: [(); 2].map(|()| Cell::new(volume.told_at_first())),
            volume,
            reactor,
            file,
            registered,
            gone: Cell::new(false),
            watcher: RefCell::default(),
        })
    }
}

impl Drop for FileQueue {
    fn drop(&mut self) {
        self.waker.forget();
        if let Some(registered) = self.registered.take() {
            self.reactor.unregister_file(registered);
        }
    }
}

impl Queue for FileQueue {
    fn submit(&self, mut request: Box<Request>) {
        if request.command.opcode == opcode::COPY {
            return self.copy(request);
        }
        request.scratch = [0; 4];
        let outcome = if request.fused.is_some() {
            Err(Status::INVALID_OPCODE.dnr())
        } else {
            self.check(&request.command, &request)
        };
        match outcome {
            Ok(()) => self.proceed(request),
            Err(status) => request.finish_pair(status),
        }
    }

    fn access(&self) -> Access {
        if self.gone.get() { Access::Gone } else { Access::Optimized }
    }

    fn watch_access(&self, watcher: Weak<dyn AccessWatcher>) {
        self.watcher.replace(Some(watcher));
    }

    /// What is under way the kernel has, or a thread.
    fn forget(&self) {
        drop(self.held.take());
    }
}

impl Complete for FileQueue {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        // SAFETY: `start` made the token from a box and gave it away; it is completed once.
        let mut request = unsafe { Box::from_raw(token as *mut Request) };
        let command = &request.command;
        let zeroes = command.opcode == opcode::WRITE_ZEROES;
        if command.opcode == opcode::WRITE || zeroes && request.scratch[STEP] == step::WRITE_ZEROES
        {
            // Checked when it came in; the file may have been made smaller since.
            self.volume.written(command.slba() + u64::from(command.block_count()));
        }
        let sync = request.scratch[NUMBER];
        if result < 0 {
            self.failed(request, -result);
            return self.sync_ended(sync);
        }
        self.sync_ended(sync);
        match (request.command.opcode, request.scratch[STEP]) {
            (opcode::FLUSH, _) | (_, step::SYNC) => return self.durable(request),
            (opcode::READ | opcode::WRITE, _) if result == 0 => return self.ended(request),
            (opcode::READ | opcode::WRITE, _)
                if request.scratch[DONE] + result as u64 == request.data.len() as u64 =>
            {
                return self.transferred(request);
            }
            (opcode::READ | opcode::WRITE, _) | (_, step::WRITE_ZEROES) => {
                request.scratch[DONE] += result as u64;
            }
            (opcode::WRITE_ZEROES, _) => request.scratch[DONE] = self.bytes(&request.command).1,
            (opcode::DATASET_MANAGEMENT, _) => request.scratch[DONE] += 1,
            (other, _) => unreachable!("opcode {other:#x} was never started"),
        }
        self.proceed(request);
    }
}

impl FileQueue {
    /// Refuses what cannot be started.
    fn check(&self, command: &Command, request: &Request) -> Result<(), Status> {
        let addresses =
            matches!(command.opcode, opcode::READ | opcode::WRITE | opcode::WRITE_ZEROES);
        let known = [opcode::FLUSH, opcode::DATASET_MANAGEMENT];
        if !addresses && !known.contains(&command.opcode) {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        if self.volume.read_only && ![opcode::READ, opcode::FLUSH].contains(&command.opcode) {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
        }
        let count = u64::from(command.block_count());
        let end = command.slba().checked_add(count);
        if addresses && end.is_none_or(|end| end > self.volume.blocks()) {
            return Err(Status::LBA_OUT_OF_RANGE.dnr());
        }
        if matches!(command.opcode, opcode::READ | opcode::WRITE) {
            let len = request.data.len() as u64;
            assert_eq!(len, self.bytes(command).1, "a transfer comes with a buffer of its length");
        }
        if command.opcode == opcode::DATASET_MANAGEMENT {
            let (data, blocks) = (&request.data, self.volume.blocks());
            // SAFETY: the request holds its data during this call.
            let ranges = unsafe { dataset::ranges(command, data.as_ptr(), data.len(), blocks) };
            drop(ranges.map_err(Status::dnr)?);
        }
        Ok(())
    }

    /// First byte and length that the command addresses.
    fn bytes(&self, command: &Command) -> (u64, u64) {
        let shift = self.volume.block_shift;
        (command.slba() << shift, u64::from(command.block_count()) << shift)
    }

    /// Starts the next operation of a request, or completes it.
    fn proceed(&self, request: Box<Request>) {
        match request.command.opcode {
            opcode::READ | opcode::WRITE => self.transfer(request),
            opcode::FLUSH if self.volume.read_only => request.finish(Status::SUCCESS),
            opcode::FLUSH => self.start_sync(request, entry::fdatasync(self.file)),
            opcode::WRITE_ZEROES => self.zero(request),
            _ => self.deallocate(request),
        }
    }

    fn transfer(&self, mut request: Box<Request>) {
        let (start, len) = self.bytes(&request.command);
        let done = request.scratch[DONE];
        if done == len {
            return self.transferred(request);
        }
        let (offset, left) = (start + done, (len - done) as u32);
        if self.volume.is_direct() {
            request.data.ensure_registered();
        }
        let (memory, fixed) = request.data.ring_address(done as usize);
        let entry = if request.command.opcode == opcode::READ {
            match fixed {
                Some(index) => entry::read_fixed(self.file, memory, left, offset, index),
                None => entry::read(self.file, memory, left, offset),
            }
        } else {
            self.volume.note_extent(offset, left.into());
            let flags = if request.command.fua() { DSYNC } else { 0 };
            match fixed {
                Some(index) => entry::write_fixed(self.file, memory, left, offset, flags, index),
                None => entry::write(self.file, memory, left, offset, flags),
            }
        };
        match request.command.fua() && request.command.opcode == opcode::WRITE {
            true => self.start_sync(request, entry),
            false => self.start(request, entry),
        }
    }

    /// A Read or Write has moved all its data. What is read with FUA is durable before it is told (NVM 1.1, section 3.3.4).
    #[inline]
    fn transferred(&self, mut request: Box<Request>) {
        if request.command.fua() && request.command.opcode == opcode::READ && !self.volume.read_only
        {
            request.scratch[STEP] = step::SYNC;
            return self.start_sync(request, entry::fdatasync(self.file));
        }
        // Past the page cache it is told of its own failure.
        let is_past = self.volume.is_direct() && !self.volume.has_parts();
        if request.scratch[NUMBER] != 0 && !is_past {
            return self.durable(request);
        }
        request.finish(Status::SUCCESS);
    }

    fn zero(&self, mut request: Box<Request>) {
        let (start, len) = self.bytes(&request.command);
        let done = request.scratch[DONE];
        if done == len {
            if request.command.fua() {
                request.scratch[STEP] = step::SYNC;
                return self.start_sync(request, entry::fdatasync(self.file));
            }
            return request.finish(Status::SUCCESS);
        }
        let (offset, left) = (start + done, len - done);
        self.volume.note_extent(offset, left);
        let hole = request.command.deac() && self.volume.punches;
        if let Some((step, mode)) = fallocate_mode(&self.volume.zeroes_by, hole) {
            request.scratch[STEP] = step;
            let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
            return self.start(request, entry::fallocate(self.file, mode, offset, left));
        }
        let Some(zeroes) = zeroes() else {
            return request.finish(Status::INTERNAL);
        };
        request.scratch[STEP] = step::WRITE_ZEROES;
        let len = left.min(ZEROES_BYTES) as u32;
        self.start(request, entry::write(self.file, zeroes.base(), len, offset, 0));
    }

    /// Makes a hole of the next range, if there is one left.
    fn deallocate(&self, mut request: Box<Request>) {
        let (command, data) = (request.command, &request.data);
        if !dataset::deallocates(&command) || !self.volume.punches {
            // Advice may be left alone (NVM 1.1, section 3.3.3).
            return request.finish(Status::SUCCESS);
        }
        // SAFETY: the request holds its data during this call.
        let ranges =
            unsafe { dataset::ranges(&command, data.as_ptr(), data.len(), self.volume.blocks()) };
        let Ok(mut ranges) = ranges else {
            return request.finish(Status::LBA_OUT_OF_RANGE.dnr());
        };
        let mut index = request.scratch[DONE];
        let next = ranges.by_ref().skip(index as usize).find(|range| {
            index += u64::from(range.blocks == 0);
            range.blocks > 0
        });
        request.scratch[DONE] = index;
        let Some(range) = next else {
            return request.finish(Status::SUCCESS);
        };
        let shift = self.volume.block_shift;
        // Who was told that holes can be made counts on zeroes, also where the device has refused one since.
        let Some((step, mode)) = fallocate_mode(&self.volume.zeroes_by, true) else {
            return request.finish(Status::INVALID_OPCODE.dnr());
        };
        request.scratch[STEP] = step;
        let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, len) = (range.slba << shift, u64::from(range.blocks) << shift);
        self.volume.note_extent(offset, len);
        self.start(request, entry::fallocate(self.file, mode, offset, len));
    }

    /// Hands one operation to the kernel, with the request as its token.
    pub(super) fn start(&self, request: Box<Request>, entry: uring::Entry) {
        let sink = self.me.upgrade().expect("the queue lives while it is called");
        let token = Box::into_raw(request) as u64;
        // SAFETY: the entry names memory of the request's data (or zeroes that are mapped for
        // good), and the request stays in its box until `complete` takes it back.
        unsafe { self.reactor.submit(entry, sink, token) };
    }

    /// Nothing was transferred: the file ends before the size we know.
    fn ended(&self, request: Box<Request>) {
        let status = match request.command.opcode {
            _ if self.is_gone() => self.removed(),
            opcode::READ => Status::LBA_OUT_OF_RANGE,
            _ => Status::WRITE_FAULT,
        };
        request.finish(status);
    }

    /// The kernel refused an operation.
    fn failed(&self, mut request: Box<Request>, errno: i32) {
        let command = request.command;
        let refused = matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY);
        let step = request.scratch[STEP];
        match command.opcode {
            _ if errno == libc::EINTR => self.proceed(request),
            opcode::WRITE_ZEROES | opcode::DATASET_MANAGEMENT
                if refused && refuse(&self.volume.zeroes_by, step) =>
            {
                self.proceed(request);
            }
            _ => {
                request.os_error = errno;
                let is_durable = step == step::SYNC || command.opcode == opcode::FLUSH;
                let is_fua = command.opcode == opcode::WRITE && command.fua();
                let gone = self.is_gone();
                if !is_durable && !is_fua {
                    return request.finish(match gone {
                        true => self.removed(),
                        false => status(command.opcode, errno),
                    });
                }
                // What the reactor has given up was not carried out.
                let has_dropped =
                    errno != libc::ECANCELED && (is_durable || !self.is_its_own(errno));
                self.volume.sync_failed(has_dropped);
                if is_durable {
                    self.told_by(&command).set(self.volume.dropped());
                }
                request.finish(match is_durable {
                    _ if gone => self.removed(),
                    true => not_durable(errno),
                    false => status(command.opcode, errno),
                });
            }
        }
    }
}

impl FileQueue {
    /// Whether the device has been removed. Whoever chooses among several is told at the first time.
    fn is_gone(&self) -> bool {
        let gone = self.volume.is_gone();
        if gone && !self.gone.replace(true) {
            tracing::error!(volume = self.volume.uri(), "the device was removed");
            let watcher = self.watcher.borrow().as_ref().and_then(Weak::upgrade);
            if let Some(watcher) = watcher {
                watcher.access_changed();
            }
        }
        gone
    }

    /// What a command ends with whose device is not there any more.
    fn removed(&self) -> Status {
        match self.volume.is_path {
            true => Status::HOST_PATHING_ERROR,
            false => Status::NAMESPACE_NOT_READY.dnr(),
        }
    }
}

/// How to zero a range, unless zeroes have to be written: the step and fallocate(2)'s mode.
fn fallocate_mode(by: &ZeroesBy, hole: bool) -> Option<(u64, libc::c_int)> {
    if hole && by.hole.load(Ordering::Relaxed) {
        return Some((step::MAKE_HOLE, libc::FALLOC_FL_PUNCH_HOLE));
    }
    let range = by.range.load(Ordering::Relaxed);
    range.then_some((step::MAIN, libc::FALLOC_FL_ZERO_RANGE))
}

/// Remembers that the file system refuses this way to zero a range; another one is to be tried.
/// False if it was no way of ours.
fn refuse(by: &ZeroesBy, step: u64) -> bool {
    match step {
        step::MAKE_HOLE => by.hole.store(false, Ordering::Relaxed),
        step::MAIN => by.range.store(false, Ordering::Relaxed),
        _ => return false,
    }
    true
}

/// The status that tells an error of the kernel best (NVMe Base 2.1, section 4.2.3).
pub(super) fn status(opcode: u8, errno: i32) -> Status {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Status::CAPACITY_EXCEEDED,
        libc::EROFS | libc::EPERM | libc::EBADF => Status::NAMESPACE_WRITE_PROTECTED,
        libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS => Status::COMMAND_INTERRUPTED,
        // The reactor is stopping.
        libc::ECANCELED => Status::ABORT_REQUESTED,
        libc::ENODEV | libc::ENXIO => Status::NAMESPACE_NOT_READY,
        libc::EINVAL | libc::EFAULT | libc::EOPNOTSUPP => Status::INTERNAL,
        _ if opcode == opcode::READ => Status::UNRECOVERED_READ,
        _ => Status::WRITE_FAULT,
    }
}

/// The status of what was to make data durable and has not. Nobody may send it again: the kernel forgets the failure once it has told
/// of it, and the same would succeed.
pub(super) fn not_durable(errno: i32) -> Status {
    match status(opcode::FLUSH, errno) {
        status @ (Status::CAPACITY_EXCEEDED | Status::NAMESPACE_WRITE_PROTECTED) => status.dnr(),
        // The reactor is stopping, or there is no such call.
        status @ (Status::ABORT_REQUESTED | Status::INTERNAL) => status,
        _ => Status::WRITE_FAULT.dnr(),
    }
}

/// Zeroes to write from, mapped when first needed.
fn zeroes() -> Option<&'static Mapping> {
    static ZEROES: OnceLock<Mapping> = OnceLock::new();
    if let Some(zeroes) = ZEROES.get() {
        return Some(zeroes);
    }
    let mapping = Mapping::zeroes(ZEROES_BYTES as usize).ok()?;
    Some(ZEROES.get_or_init(|| mapping))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::ending::End;
    use crate::file::{FileOptions, TOLD_WITHIN};
    use crate::{Data, Namespace, Sink};
    use reactor::Config;
    use std::time::Instant;

    #[test]
    fn a_way_to_zero_that_is_refused_does_not_take_the_others_along() {
        let by = ZeroesBy::default();
        let mode = |hole| fallocate_mode(&by, hole).map(|(_, mode)| mode);
        assert_eq!(mode(true), Some(libc::FALLOC_FL_PUNCH_HOLE));
        let (step, _) = fallocate_mode(&by, true).unwrap();
        assert!(refuse(&by, step));
        assert_eq!((mode(true), mode(false)), (Some(libc::FALLOC_FL_ZERO_RANGE), mode(true)));
        assert!(refuse(&by, fallocate_mode(&by, true).unwrap().0));
        assert_eq!((mode(true), mode(false)), (None, None));
        assert!(!refuse(&by, step::WRITE_ZEROES));
    }

    /// A kernel does not have to read or write all at once.
    #[test]
    fn a_transfer_that_came_short_goes_on_behind_what_was_done() {
        const BYTES: usize = 16 << 10;
        const DONE: usize = 6 << 10;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; BYTES]).unwrap();
        let options = FileOptions::buffered(file.path(), None);
        for (code, done) in [
            (opcode::READ, DONE),
            (opcode::WRITE, DONE),
            (opcode::READ, BYTES),
            (opcode::WRITE, BYTES),
        ] {
            let config = Config { buffer_bytes: 1 << 20, ..Config::default() };
            let reactor = Reactor::new(&config).unwrap();
            let queue = FileQueue::open(File::open(&options).unwrap(), &reactor);
            let end = Rc::new(End { reactor: Rc::clone(&reactor), request: Cell::default() });
            let mut request = Request::new();
            request.command = Command::blocks(code, 1, 0, (BYTES >> 9) as u32);
            let mut buffer = reactor.buffers().allocate(BYTES).unwrap();
            buffer.as_mut_slice().fill(9);
            request.data = Data::Buffer(buffer);
            request.push(Rc::clone(&end) as Rc<dyn Sink>, 0);
            queue.complete(Box::into_raw(request) as u64, done as i32, 0);
            let ended = end.request.take();
            assert_eq!(ended.is_some(), done == BYTES, "{code}");
            let request = ended.unwrap_or_else(|| {
                reactor.run();
                end.request.take().expect("it ran until then")
            });
            assert_eq!(request.status, Status::SUCCESS);
            let Data::Buffer(buffer) = &request.data else { panic!("it keeps its buffer") };
            let there = std::fs::read(file.path()).unwrap();
            let (seen, moved) = match code {
                opcode::READ => (buffer.as_slice(), [9, 7]),
                _ => (&there[..], [7, 9]),
            };
            assert!(seen[..done].iter().all(|byte| *byte == moved[0]), "{code}");
            assert!(seen[done..].iter().all(|byte| *byte == moved[1]), "{code}");
            std::fs::write(file.path(), [7; BYTES]).unwrap();
        }
    }

    /// Direct I/O goes by a registered file and from a registered buffer; the page cache gains nothing by pinned memory.
    #[test]
    fn direct_transfers_are_from_registered_buffers_of_a_registered_file() {
        const BYTES: usize = 16 << 10;
        for (buffered, code) in
            [(true, opcode::READ), (false, opcode::READ), (false, opcode::WRITE)]
        {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), [7; BYTES]).unwrap();
            let options = FileOptions {
                buffered,
                block_shift: Some(12),
                ..FileOptions::buffered(file.path(), None)
            };
            let reactor = Reactor::new(&Config::default()).unwrap();
            let volume = File::open(&options).unwrap();
            assert_eq!(volume.is_direct(), !buffered, "{} allows it", file.path().display());
            let queue = FileQueue::open(volume, &reactor);
            let by = queue.registered.as_ref().map(FixedFile::file);
            assert!(matches!(by, Some(uring::File::Fixed(_))) && by == Some(queue.file), "{by:?}");
            let end = Rc::new(End { reactor: Rc::clone(&reactor), request: Cell::default() });
            let mut request = Request::new();
            request.command = Command::blocks(code, 1, 0, (BYTES >> 12) as u32);
            request.data = Data::Buffer(reactor.buffers().allocate(BYTES).unwrap());
            request.push(Rc::clone(&end) as Rc<dyn Sink>, 0);
            queue.submit(request);
            reactor.run();
            let request = end.request.take().expect("it ran until then");
            assert_eq!(request.status, Status::SUCCESS);
            let Data::Buffer(buffer) = &request.data else { panic!("it keeps its buffer") };
            assert_eq!(
                buffer.fixed_index().is_some(),
                !buffered,
                "{:?}",
                reactor.buffers().refusal()
            );
        }
    }

    /// The kernel tells one of them that data was not written back, and nobody after it.
    #[test]
    fn after_a_failure_to_make_data_durable_no_flush_proves_anything_of_what_was_before() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let options = FileOptions::buffered(file.path(), None);
        let volume = File::open(&options).unwrap();
        let reactor = Reactor::new(&Config::default()).unwrap();
        let queue = FileQueue::open(Arc::clone(&volume), &reactor);
        const FUA: u32 = 1 << 30;
        for (code, dword, step, changes) in [
            (opcode::READ, 0, step::MAIN, false),
            (opcode::WRITE, 0, step::MAIN, false),
            (opcode::WRITE, FUA, step::MAIN, true),
            (opcode::WRITE_ZEROES, FUA, step::MAIN, false),
            (opcode::WRITE_ZEROES, FUA, step::SYNC, true),
            (opcode::FLUSH, 0, step::MAIN, true),
        ] {
            let before = volume.volatile_epoch();
            let end = Rc::new(End { reactor: Rc::clone(&reactor), request: Cell::default() });
            let mut request = Request::new();
            request.command = Command::blocks(code, 1, 0, 1);
            request.command.cdw12 = (request.command.cdw12.get() | dword).into();
            request.push(Rc::clone(&end) as Rc<dyn Sink>, 0);
            request.scratch[STEP] = step;
            queue.complete(Box::into_raw(request) as u64, -libc::EIO, 0);
            assert!(!end.request.take().expect("it has ended").status.is_success(), "{code}");
            assert_eq!(volume.volatile_epoch() != before, changes, "{code} {dword:#x} {step}");
        }
    }

    #[test]
    fn errors_become_the_status_that_says_most() {
        assert_eq!(status(opcode::READ, libc::EIO), Status::UNRECOVERED_READ);
        assert_eq!(status(opcode::WRITE, libc::EIO), Status::WRITE_FAULT);
        assert_eq!(status(opcode::FLUSH, libc::EIO), Status::WRITE_FAULT);
        assert_eq!(status(opcode::WRITE, libc::ENOSPC), Status::CAPACITY_EXCEEDED);
        assert_eq!(status(opcode::WRITE, libc::EDQUOT), Status::CAPACITY_EXCEEDED);
    }

    #[test]
    fn what_is_not_durable_is_not_sent_again() {
        for errno in
            [libc::EIO, libc::ENOSPC, libc::ENOMEM, libc::EAGAIN, libc::ENODEV, libc::EROFS]
        {
            assert!(not_durable(errno).0 & Status::DNR != 0, "{errno}");
        }
    }

    #[test]
    fn each_queue_is_told_once_that_data_is_lost() {
        let reactor = Reactor::new(&Config::default()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![0; 1 << 16]).unwrap();
        let volume = File::open(&FileOptions::buffered(file.path(), None)).unwrap();
        let queues = [(); 2].map(|()| FileQueue::open(Arc::clone(&volume), &reactor));
        let ended = |queue: &FileQueue, command: Command, result: i32| {
            let end = Rc::new(End { reactor: Rc::clone(&reactor), request: Cell::default() });
            let mut request = Request::new();
            request.command = command;
            request.push(Rc::clone(&end) as Rc<dyn Sink>, 0);
            request.scratch[STEP] = u64::from(command.opcode != opcode::WRITE) * step::SYNC;
            queue.complete(Box::into_raw(request) as u64, result, 0);
            end.request.take().expect("it has ended").status
        };
        let flush = |queue: &FileQueue, result: i32| {
            let command = Command { opcode: opcode::FLUSH, ..Command::default() };
            ended(queue, command, result)
        };
        assert!(queues.iter().all(|queue| flush(queue, 0).is_success()));
        // What was not carried out, and what fails for itself, is nobody else's.
        let mut write = Command::blocks(opcode::WRITE, 1, 0, 1);
        write.cdw12 = (write.cdw12.get() | 1 << 30).into();
        assert_eq!(flush(&queues[0], -libc::ECANCELED), Status::ABORT_REQUESTED);
        assert_eq!(ended(&queues[0], write, -libc::ENOMEM), Status::COMMAND_INTERRUPTED);
        assert!(queues.iter().all(|queue| flush(queue, 0).is_success()));
        // What the kernel could not write back keeps its errno: a full pool below, a medium.
        for errno in [libc::EIO, libc::ENOSPC, libc::ENODATA] {
            assert_eq!(ended(&queues[0], write, -errno), status(opcode::WRITE, errno));
            let told = queues.each_ref().map(|queue| flush(queue, 0));
            assert_eq!(told, [Status::WRITE_FAULT.dnr(); 2], "{errno}");
        }
        // What reads or zeroes with FUA is told as well, and spares no Flush.
        for code in [opcode::READ, opcode::WRITE_ZEROES] {
            let synced = |result| ended(&queues[1], Command::blocks(code, 1, 0, 1), result);
            assert_eq!(flush(&queues[0], -libc::EIO), Status::WRITE_FAULT.dnr());
            assert_eq!([synced(0), synced(0)], [Status::WRITE_FAULT.dnr(), Status::SUCCESS]);
            assert_eq!(flush(&queues[1], 0), Status::WRITE_FAULT.dnr(), "it has not been told");
        }
        assert_eq!(flush(&queues[0], -libc::EIO), Status::WRITE_FAULT.dnr());
        assert!(flush(&queues[0], 0).is_success(), "it has been told");
        assert_eq!(flush(&queues[1], 0), Status::WRITE_FAULT.dnr(), "it has not");
        assert!(queues.iter().all(|queue| flush(queue, 0).is_success()));
        // Its users may have written by the others.
        let later = FileQueue::open(Arc::clone(&volume), &reactor);
        assert_eq!(
            [flush(&later, 0), flush(&later, 0)],
            [Status::WRITE_FAULT.dnr(), Status::SUCCESS]
        );
        *volume.dropped_at() = Instant::now().checked_sub(2 * TOLD_WITHIN);
        let next_day = FileQueue::open(volume, &reactor);
        assert!(flush(&next_day, 0).is_success());
    }

    /// Past the page cache no space is looked for later than a write is carried out, so that it has failed for itself.
    #[test]
    fn a_full_file_system_fails_a_direct_write_alone() {
        let directory = tempfile::tempdir_in(".").unwrap();
        let path = directory.path().join("a");
        let options = FileOptions { buffered: false, ..FileOptions::buffered(path, Some(1 << 20)) };
        let volume = File::open(&FileOptions { block_shift: None, ..options }).unwrap();
        assert!(volume.is_direct(), "the directory of the build takes O_DIRECT");
        let reactor = Reactor::new(&Config::default()).unwrap();
        let queue = FileQueue::open(Arc::clone(&volume), &reactor);
        assert!(queue.is_its_own(libc::ENOSPC) && !queue.is_its_own(libc::EIO));
        volume.cached();
        assert!(!queue.is_its_own(libc::ENOSPC), "a Copy may have left some in the cache");
    }

    #[test]
    fn what_is_read_or_zeroed_with_fua_is_durable_first() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 4096]).unwrap();
        for (code, read_only) in
            [(opcode::READ, false), (opcode::READ, true), (opcode::WRITE_ZEROES, false)]
        {
            for fua in [false, true] {
                let options = FileOptions::buffered(file.path(), None);
                let reactor = Reactor::new(&Config::default()).unwrap();
                let volume = File::open(&FileOptions { read_only, ..options }).unwrap();
                let queue = FileQueue::open(volume, &reactor);
                let end = Rc::new(End { reactor: Rc::clone(&reactor), request: Cell::default() });
                let mut request = Request::new();
                request.command = Command::blocks(code, 1, 0, 8);
                request.command.cdw12 = (request.command.cdw12.get() | u32::from(fua) << 30).into();
                request.data = Data::Buffer(reactor.buffers().allocate(4096).unwrap());
                request.push(Rc::clone(&end) as Rc<dyn Sink>, 0);
                queue.complete(Box::into_raw(request) as u64, 4096, 0);
                let ended = end.request.take();
                assert_eq!(ended.is_none(), fua && !read_only, "{code} {read_only} {fua}");
                let step = if ended.is_none() { step::SYNC } else { step::MAIN };
                let request = ended.unwrap_or_else(|| {
                    reactor.run();
                    end.request.take().expect("it ran until then")
                });
                assert_eq!((request.status, request.scratch[STEP]), (Status::SUCCESS, step));
            }
        }
    }
}
