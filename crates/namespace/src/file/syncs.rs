//! What is known to be durable after a sync of a file, and who is told what is lost.
//!
//! The kernel tells of data that it could not write back once per open file: to the first sync that looks, whoever's data it was,
//! and has dropped it then. So a sync that succeeds proves nothing while another is under way that may have been told instead:
//! it ends after all that had begun before it ended, and fails if one of them was told of a loss.
//!
//! ```text
//!   A:  fdatasync ----------------- succeeds -> held -> B was told: A fails as well
//!   B:        fdatasync ------ EIO ........... seen here: data is counted as lost
//! ```
//!
//! Past the page cache nothing is written back later, and every sync is told of its own failure: none is held, and once a Copy
//! has left something in the cache, none but those of what that was. Writes with FUA may have been told of it even so.

use super::queue::{DONE, FileQueue, not_durable, status};
use super::{File, TOLD_WITHIN};
use crate::Request;
use crate::wake::{Wake, Waker};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where a request has the number of its sync, or 0, and how often data had been dropped when that began.
pub(super) const NUMBER: usize = 2;
const DROPPED: usize = 3;

/// For so long a thread that syncs by itself waits for others that do not end.
const OTHERS_MAX: Duration = Duration::from_secs(10);

/// Syncs of a file that are under way, on all cores and threads.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    state: Mutex<State>,
    one_ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    begun: u64,
    /// Numbers, the oldest first.
    under_way: Vec<u64>,
    /// To be called once nothing up to the number is under way.
    held: Vec<(u64, Waker)>,
}

impl State {
    fn is_over(&self, last: u64) -> bool {
        self.under_way.first().is_none_or(|&first| first > last)
    }
}

impl Syncs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One begins; its number, never 0.
    fn begin(&self) -> u64 {
        let mut state = self.state();
        state.begun += 1;
        let number = state.begun;
        state.under_way.push(number);
        number
    }

    /// How many have begun.
    #[cfg(test)]
    pub(super) fn begun(&self) -> u64 {
        self.state().begun
    }

    /// One has ended, and what it was told is counted. Nothing for number 0.
    pub(super) fn end(&self, number: u64) {
        self.end_by(number, None);
    }

    /// The same on the thread of `own`, which is not called: whether something of it that is held may go on.
    fn end_by(&self, number: u64, own: Option<&Waker>) -> bool {
        if number == 0 {
            return false;
        }
        let (own, mut is_own, mut others) = (own.map(Waker::id), false, Vec::new());
        let mut state = self.state();
        state.under_way.retain(|&other| other != number);
        let first = state.under_way.first().copied().unwrap_or(u64::MAX);
        state.held.retain(|(last, waker)| {
            let is_ready = *last < first;
            if is_ready && own == Some(waker.id()) {
                is_own = true;
            } else if is_ready {
                others.push((*last, waker.clone()));
            }
            !is_ready
        });
        drop(state);
        self.one_ended.notify_all();
        for (last, waker) in others {
            waker.call(last);
        }
        is_own
    }

    /// The newest that is under way, if one is. `waker` is called with it once no older one is either.
    fn hold(&self, waker: &Waker) -> Option<u64> {
        let mut state = self.state();
        let last = *state.under_way.last()?;
        state.held.push((last, waker.clone()));
        Some(last)
    }

    fn is_over(&self, last: u64) -> bool {
        self.state().is_over(last)
    }

    /// Waits until none is under way that is now; false if that takes too long.
    fn await_others(&self, most: Duration) -> bool {
        let state = self.state();
        let last = state.begun;
        let waited = self.one_ended.wait_timeout_while(state, most, |state| !state.is_over(last));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_over(last)
    }
}

impl File {
    /// Whether what is written may be written back later, by the kernel.
    fn is_cached(&self) -> bool {
        !self.is_direct() || self.has_copied() || self.has_parts()
    }

    /// Whether something was written or zeroed that is no whole blocks of the file system.
    pub(super) fn has_parts(&self) -> bool {
        self.has_parts.load(Ordering::Relaxed)
    }

    /// These bytes are about to be written or zeroed.
    #[inline]
    pub(super) fn note_extent(&self, offset: u64, len: u64) {
        if (offset | len) & self.within_block != 0 && !self.has_parts() {
            self.has_parts.store(true, Ordering::Relaxed);
        }
    }

    /// Has a thread, of which no reactor waits, `sync` the file.
    pub(super) fn sync(
        &self,
        sync: impl FnOnce(&std::fs::File) -> io::Result<()>,
    ) -> io::Result<()> {
        let dropped = self.dropped();
        let number = if self.is_cached() { self.syncs.begin() } else { 0 };
        let result = sync(&self.file).inspect_err(|_| self.sync_failed(true));
        self.syncs.end(number);
        result?;
        if number == 0 {
            return Ok(());
        }
        if !self.syncs.await_others(OTHERS_MAX) {
            let why =
                "another sync of the file, which may have been told of its losses, does not end";
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        let is_durable = self.dropped() == dropped;
        is_durable.then_some(()).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
    }

    /// Data could not be made durable. If the kernel `has_dropped` some, whoever had written it is not told by the kernel any more.
    pub(super) fn sync_failed(&self, has_dropped: bool) {
        if has_dropped {
            *self.dropped_at() = Some(Instant::now());
            self.dropped.fetch_add(1, Ordering::Release);
        }
        self.failed_syncs.fetch_add(1, Ordering::Release);
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Acquire)
    }

    pub(super) fn dropped_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.dropped_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a new queue's users know of [`File::dropped`]. They may have written by other queues before, and a loss of late is
    /// told to them as well.
    pub(super) fn told_at_first(&self) -> u64 {
        let is_late = self.dropped_at().is_some_and(|at| at.elapsed() < TOLD_WITHIN);
        if is_late { 0 } else { self.dropped() }
    }
}

impl FileQueue {
    /// Hands over an operation that makes data durable.
    pub(super) fn start_sync(&self, mut request: Box<Request>, entry: uring::Entry) {
        // Of a write in pieces the first counts.
        if request.command.opcode != opcode::WRITE || request.scratch[DONE] == 0 {
            request.scratch[DROPPED] = self.volume.dropped();
        }
        request.scratch[NUMBER] = match self.volume.is_cached() {
            true => self.volume.syncs.begin(),
            false => 0,
        };
        self.start(request, entry);
    }

    /// One of this queue's has ended: those that waited for it here go on, without a letter for each.
    pub(super) fn sync_ended(&self, number: u64) {
        if self.volume.syncs.end_by(number, Some(&self.waker)) {
            self.wake(number);
        }
    }

    /// A sync, or a write with FUA, was carried out: ends the request, now or after others that may have been told of what it was not.
    pub(super) fn durable(&self, request: Box<Request>) {
        if request.scratch[NUMBER] != 0
            && let Some(last) = self.volume.syncs.hold(&self.waker)
        {
            let queue = self.me.upgrade().expect("the queue lives while it is called");
            return self.held.borrow_mut().push((last, queue, request));
        }
        self.synced(request);
    }

    /// The kernel tells of a failure once, whoever asks then, and has dropped what it could not write: those who were not told have
    /// lost it as well, and learn it from this, if they began before, or from their next. A write is told of its own data alone.
    fn synced(&self, mut request: Box<Request>) {
        let dropped = self.volume.dropped();
        let meanwhile = request.scratch[NUMBER] != 0 && request.scratch[DROPPED] != dropped;
        let is_lost = match request.command.opcode {
            opcode::WRITE => meanwhile,
            _ => meanwhile | (self.told_by(&request.command).replace(dropped) != dropped),
        };
        let status = match request.command.opcode {
            _ if !is_lost => Status::SUCCESS,
            opcode::WRITE => status(opcode::WRITE, libc::EIO),
            _ => not_durable(libc::EIO),
        };
        if is_lost {
            request.os_error = libc::EIO;
        }
        request.finish(status);
    }

    /// What is known by such a command. What others have told does not spare a Flush ([`crate::Namespace::lost`]).
    pub(super) fn told_by(&self, command: &Command) -> &Cell<u64> {
        &self.told[usize::from(command.opcode != opcode::FLUSH)]
    }

    /// Whether a write with FUA that fails with `errno` surely failed for itself. Otherwise it may have told, as a Flush does, what
    /// the kernel had dropped of others' data, which keeps its errno; sent again, it is durable itself once it succeeds.
    pub(super) fn is_its_own(&self, errno: i32) -> bool {
        match errno {
            libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS => true,
            libc::EINVAL | libc::EFAULT | libc::EBADF | libc::EPERM => true,
            // Past the page cache nothing is allocated later than the write.
            libc::ENOSPC | libc::EDQUOT => !self.volume.is_cached(),
            _ => false,
        }
    }
}

impl Wake for FileQueue {
    /// What some of those that are held waited for has ended.
    fn wake(&self, _last: u64) {
        let next = || {
            let mut held = self.held.borrow_mut();
            let place = held.iter().position(|(last, ..)| self.volume.syncs.is_over(*last))?;
            Some(held.remove(place))
        };
        // One at a time: whoever is told may submit again.
        while let Some((_, queue, request)) = next() {
            queue.synced(request);
        }
    }
}

/// A request that waits for syncs up to a number, and keeps its queue until then.
pub(super) type Held = (u64, Rc<FileQueue>, Box<Request>);

#[cfg(test)]
mod tests {
    use super::super::open::FileOptions;
    use super::*;
    use crate::{Data, Namespace, Queue, Sink};
    use reactor::{Complete, Config, Reactor};
    use std::sync::Arc;
    use std::thread;

    const FUA: u32 = 1 << 30;

    #[derive(Default)]
    struct End(Cell<Option<Box<Request>>>);

    impl Sink for End {
        fn completed(&self, request: Box<Request>, _state: u64) {
            self.0.set(Some(request));
        }
    }

    struct Rig {
        volume: Arc<File>,
        reactor: Rc<Reactor>,
        queue: Rc<FileQueue>,
        _file: tempfile::NamedTempFile,
    }

    impl Rig {
        fn new() -> Rig {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(1 << 20).unwrap();
            Rig::of(File::open(&FileOptions::buffered(file.path(), None)).unwrap(), file)
        }

        fn of(volume: Arc<File>, file: tempfile::NamedTempFile) -> Rig {
            let reactor = Reactor::new(&Config::default()).unwrap();
            let queue = FileQueue::open(Arc::clone(&volume), &reactor);
            Rig { volume, reactor, queue, _file: file }
        }

        fn command(&self, opcode: u8) -> (Rc<End>, Box<Request>) {
            let end = Rc::new(End::default());
            let mut request = Request::new();
            request.command = Command::blocks(opcode, 1, 0, 8);
            request.command.cdw12 = (request.command.cdw12.get() | FUA).into();
            if [opcode::READ, opcode::WRITE].contains(&opcode) {
                request.data = Data::Buffer(self.reactor.buffers().allocate(4096).unwrap());
            }
            request.push(Rc::clone(&end) as Rc<dyn Sink>, 0);
            (end, request)
        }

        /// Runs it as far as it comes while another sync is under way.
        fn held(&self, opcode: u8) -> Rc<End> {
            let (end, request) = self.command(opcode);
            self.queue.submit(request);
            let begin = Instant::now();
            while self.queue.held.borrow().is_empty() {
                self.reactor.turn_for(reactor::Drive::Poll);
                assert!(begin.elapsed() < OTHERS_MAX, "{opcode} is not held");
            }
            end
        }

        fn status(&self, end: &End) -> Status {
            let limit = Instant::now() + OTHERS_MAX;
            loop {
                if let Some(request) = end.0.take() {
                    return request.status;
                }
                assert!(self.reactor.turn_for(reactor::Drive::Until(limit)), "it does not end");
            }
        }
    }

    #[test]
    fn what_succeeds_beside_a_sync_that_fails_has_failed() {
        for (opcode, lost) in [
            (opcode::FLUSH, Status::WRITE_FAULT.dnr()),
            (opcode::READ, Status::WRITE_FAULT.dnr()),
            (opcode::WRITE_ZEROES, Status::WRITE_FAULT.dnr()),
            // Sent again it is durable by itself.
            (opcode::WRITE, Status::WRITE_FAULT),
        ] {
            for fails in [false, true] {
                let rig = Rig::new();
                let other = rig.volume.syncs.begin();
                let end = rig.held(opcode);
                // Of another core, which wakes this one.
                let volume = Arc::clone(&rig.volume);
                let other = thread::spawn(move || {
                    if fails {
                        volume.sync_failed(true);
                    }
                    volume.syncs.end(other);
                });
                let expected = if fails { lost } else { Status::SUCCESS };
                assert_eq!(rig.status(&end), expected, "{opcode} {fails}");
                other.join().unwrap();
                assert!(rig.queue.held.borrow().is_empty());
            }
        }
    }

    #[test]
    fn a_flush_is_told_although_another_of_its_queue_was() {
        let rig = Rig::new();
        let other = rig.volume.syncs.begin();
        let end = rig.held(opcode::FLUSH);
        let (told, mut request) = rig.command(opcode::FLUSH);
        request.scratch[NUMBER] = other;
        rig.queue.complete(Box::into_raw(request) as u64, -libc::EIO, 0);
        assert_eq!(told.0.take().expect("at once").status, Status::WRITE_FAULT.dnr());
        assert_eq!(rig.status(&end), Status::WRITE_FAULT.dnr());
        // The next has not begun before.
        let (end, request) = rig.command(opcode::FLUSH);
        rig.queue.submit(request);
        assert_eq!(rig.status(&end), Status::SUCCESS);
    }

    #[test]
    fn a_write_in_pieces_is_told_of_what_was_lost_after_the_first() {
        let rig = Rig::new();
        let other = rig.volume.syncs.begin();
        let (end, request) = rig.command(opcode::WRITE);
        rig.queue.submit(request);
        rig.volume.sync_failed(true);
        rig.volume.syncs.end(other);
        assert_eq!(rig.status(&end), Status::WRITE_FAULT);
        let (end, mut request) = rig.command(opcode::WRITE);
        request.scratch[NUMBER] = rig.volume.syncs.begin();
        request.scratch[DROPPED] = rig.volume.dropped();
        rig.volume.sync_failed(true);
        rig.queue.complete(Box::into_raw(request) as u64, 512, 0);
        assert_eq!(rig.status(&end), Status::WRITE_FAULT);
    }

    #[test]
    fn those_that_begin_later_hold_nothing() {
        let syncs = Syncs::default();
        let reactor = Reactor::new(&Config::default()).unwrap();
        let nobody: std::rc::Weak<FileQueue> = std::rc::Weak::new();
        let waker = Waker::new(&reactor, nobody);
        let numbers = [(); 3].map(|()| syncs.begin());
        syncs.end(numbers[1]);
        assert_eq!(syncs.hold(&waker), Some(numbers[2]));
        let later = syncs.begin();
        syncs.end(numbers[2]);
        assert!(!syncs.is_over(numbers[2]), "an older one is under way");
        syncs.end(numbers[0]);
        assert!(syncs.is_over(numbers[2]) && !syncs.is_over(later));
        assert!(syncs.state().held.is_empty());
        syncs.end(later);
        assert_eq!(syncs.hold(&waker), None);
        waker.forget();
    }

    #[test]
    fn past_the_page_cache_flushes_are_held_alone_and_once_it_was_copied_to() {
        let directory = tempfile::tempdir_in(".").unwrap();
        let path = directory.path().join("a");
        let options = FileOptions { buffered: false, ..FileOptions::buffered(path, Some(1 << 20)) };
        let volume = File::open(&FileOptions { block_shift: None, ..options }).unwrap();
        assert!(volume.is_direct(), "the directory of the build takes O_DIRECT");
        volume.flush().unwrap();
        assert_eq!(volume.syncs.state().begun, 0);
        let rig = Rig::of(volume, tempfile::NamedTempFile::new().unwrap());
        for opcode in [opcode::FLUSH, opcode::WRITE] {
            let (end, request) = rig.command(opcode);
            rig.queue.submit(request);
            assert_eq!(rig.status(&end), Status::SUCCESS);
        }
        assert_eq!(rig.volume.syncs.state().begun, 0);
        // A Copy may have left some in the cache.
        rig.volume.cached();
        let other = rig.volume.syncs.begin();
        let (end, request) = rig.command(opcode::WRITE);
        rig.queue.submit(request);
        assert_eq!(rig.status(&end), Status::SUCCESS);
        assert_eq!(rig.volume.syncs.state().begun, other + 1, "it may be told of the Copy's loss");
        let end = rig.held(opcode::FLUSH);
        rig.volume.syncs.end(other);
        assert_eq!(rig.status(&end), Status::SUCCESS);
    }

    #[test]
    fn what_is_no_whole_block_of_the_file_system_may_be_in_the_page_cache() {
        let directory = tempfile::tempdir_in(".").unwrap();
        let path = directory.path().join("a");
        let options = FileOptions { buffered: false, ..FileOptions::buffered(path, Some(1 << 20)) };
        let volume = File::open(&FileOptions { block_shift: Some(9), ..options }).unwrap();
        assert!(volume.is_direct(), "the directory of the build takes O_DIRECT");
        assert!(volume.within_block > 511, "and has larger blocks than that");
        let rig = Rig::of(volume, tempfile::NamedTempFile::new().unwrap());
        for (opcode, slba) in [(opcode::WRITE, 0), (opcode::WRITE_ZEROES, 8)] {
            let (end, mut request) = rig.command(opcode);
            request.command.set_slba(slba);
            rig.queue.submit(request);
            assert_eq!(rig.status(&end), Status::SUCCESS);
            assert!(!rig.volume.is_cached(), "whole blocks are not");
        }
        assert!(rig.queue.is_its_own(libc::ENOSPC));
        let (end, mut request) = rig.command(opcode::WRITE_ZEROES);
        request.command.set_slba(3);
        rig.queue.submit(request);
        assert_eq!(rig.status(&end), Status::SUCCESS);
        assert!(rig.volume.is_cached() && !rig.queue.is_its_own(libc::ENOSPC));
        let other = rig.volume.syncs.begin();
        let end = rig.held(opcode::FLUSH);
        rig.volume.syncs.end(other);
        assert_eq!(rig.status(&end), Status::SUCCESS);
    }

    #[test]
    fn threads_wait_as_queues_do() {
        let rig = Rig::new();
        let other = rig.volume.syncs.begin();
        assert!(!rig.volume.syncs.await_others(Duration::from_millis(20)));
        let flush = |fails| {
            let other = rig.volume.syncs.begin();
            thread::scope(|scope| {
                let flush = scope.spawn(|| rig.volume.flush());
                while rig.volume.syncs.state().begun < other + 1
                    || rig.volume.syncs.state().under_way != [other]
                {
                    thread::yield_now();
                }
                assert!(!flush.is_finished());
                if fails {
                    rig.volume.sync_failed(true);
                }
                rig.volume.syncs.end(other);
                flush.join().unwrap()
            })
        };
        rig.volume.syncs.end(other);
        assert!(flush(false).is_ok());
        assert_eq!(flush(true).unwrap_err().raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn a_queue_that_is_forgotten_lets_go_of_what_is_held() {
        let rig = Rig::new();
        let other = rig.volume.syncs.begin();
        let end = rig.held(opcode::FLUSH);
        let queue = Rc::downgrade(&rig.queue);
        rig.queue.forget();
        let Rig { volume, queue: last, .. } = rig;
        drop(last);
        assert!(queue.upgrade().is_none() && Rc::strong_count(&end) == 1);
        volume.syncs.end(other);
    }
}
