//! How this kernel moves registered buffers through sockets: found out once, by doing it.

use libc::{MSG_NOSIGNAL, MSG_WAITALL};
use namespace::Registered;
use reactor::{Buffer, Complete, Drive, Reactor};
use std::cell::Cell;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use uring::{Entry, File, entry};

/// Bytes that are moved to find out.
const PROBE_BYTES: usize = 64;

/// An operation that can be carried out at once is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Index of a registered buffer that there is not.
const NOWHERE: u16 = u16::MAX;

/// The operations of the ring by which pages get into a socket and out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    /// `SEND` and `RECV` with `IORING_RECVSEND_FIXED_BUF`: one completion for all bytes.
    SendAndReceive,
    /// `WRITE_FIXED` and `READ_FIXED`: a completion for what there was room for, or was there.
    WriteAndRead,
}

impl Means {
    /// The best that there is; `None` where the kernel takes neither, or buffers cannot be registered.
    pub(crate) fn find() -> Option<Means> {
        static FOUND: OnceLock<Option<Means>> = OnceLock::new();
        // A reactor is its thread's own, and the caller may have one.
        let probe = || std::thread::Builder::new().name("nvlane-probe".into()).spawn(probe);
        *FOUND.get_or_init(|| probe().ok()?.join().ok().flatten())
    }

    /// Sends `pages` by the socket `fd`.
    pub(crate) fn send(self, fd: RawFd, pages: Registered) -> Entry {
        let start = std::ptr::without_provenance(pages.offset as usize);
        self.send_from(fd, start, pages.len, pages.index)
    }

    /// Receives from the socket `fd` into `pages`.
    pub(crate) fn receive(self, fd: RawFd, pages: Registered) -> Entry {
        let start = std::ptr::without_provenance_mut(pages.offset as usize);
        self.receive_into(fd, start, pages.len, pages.index)
    }

    fn send_from(self, fd: RawFd, start: *const u8, len: u32, index: u16) -> Entry {
        let file = File::Fd(fd);
        match self {
            Means::SendAndReceive => {
                entry::send_fixed(file, start, len, MSG_WAITALL | MSG_NOSIGNAL, index)
            }
            Means::WriteAndRead => entry::write_fixed(file, start, len, 0, 0, index),
        }
    }

    fn receive_into(self, fd: RawFd, start: *mut u8, len: u32, index: u16) -> Entry {
        let file = File::Fd(fd);
        match self {
            Means::SendAndReceive => entry::recv_fixed(file, start, len, MSG_WAITALL, index),
            Means::WriteAndRead => entry::read_fixed(file, start, len, 0, index),
        }
    }

    /// Whether these move registered memory, look at the index that they are given, and wait at sockets that do not
    /// block, as those of connections are: what came back at once would be started again and again.
    fn work(self, reactor: &Rc<Reactor>) -> Option<bool> {
        let (near, far) = UnixStream::pair().ok()?;
        near.set_nonblocking(true).ok()?;
        far.set_nonblocking(true).ok()?;
        let mut from = reactor.buffers().allocate(PROBE_BYTES)?;
        let mut to = reactor.buffers().allocate(PROBE_BYTES)?;
        from.as_mut_slice().fill(1);
        to.as_mut_slice().fill(0);
        let indexes = [from.ensure_registered()?, to.ensure_registered()?];
        let (source, target) = (from.as_ptr(), to.as_mut_ptr());
        let held = Rc::new(Held { results: Default::default(), _buffers: [from, to] });
        let bytes = PROBE_BYTES as u32;
        let send = |index| self.send_from(near.as_raw_fd(), source, bytes, index);
        let receive = |index| self.receive_into(far.as_raw_fd(), target, bytes, index);
        let all = Some(PROBE_BYTES as i32);
        let works = held.outcome(reactor, send(indexes[0])) == all
            && held.outcome(reactor, receive(NOWHERE)).is_some_and(|result| result < 0)
            && held.outcome(reactor, receive(indexes[1])) == all
            && held.outcome(reactor, send(NOWHERE)).is_some_and(|result| result < 0)
            && held.waits(reactor, receive(indexes[1]))
            && held.outcome(reactor, send(indexes[0])) == all
            && held.awaited(reactor, LATER) == all;
        // SAFETY: `held` keeps the buffer, and the kernel has ended what was to write to it, or the read
        // is not reached.
        Some(
            works && unsafe { std::slice::from_raw_parts(target, PROBE_BYTES) } == [1; PROBE_BYTES],
        )
    }
}

fn probe() -> Option<Means> {
    let config = reactor::Config { entries: 8, buffer_bytes: 1, ..reactor::Config::default() };
    let reactor = Reactor::new(&config).ok()?;
    let all = [Means::SendAndReceive, Means::WriteAndRead];
    all.into_iter().find(|means| means.work(&reactor) == Some(true))
}

/// What operations of the probe use, and what they gave.
struct Held {
    /// By token.
    results: [Cell<Option<i32>>; 2],
    _buffers: [Buffer; 2],
}

/// Tokens: of what is waited for at once, and of what is to wait.
const NOW: u64 = 0;
const LATER: u64 = 1;

impl Held {
    fn start(self: &Rc<Self>, reactor: &Rc<Reactor>, entry: Entry, token: u64) {
        self.results[token as usize].set(None);
        // SAFETY: the entry points into the buffers that the sink holds.
        unsafe { reactor.submit(entry, Rc::<Held>::clone(self), token) };
    }

    fn awaited(&self, reactor: &Rc<Reactor>, token: u64) -> Option<i32> {
        let result = &self.results[token as usize];
        let until = Instant::now() + PATIENCE;
        while result.get().is_none() && reactor.turn_for(Drive::Until(until)) {}
        result.get()
    }

    fn outcome(self: &Rc<Self>, reactor: &Rc<Reactor>, entry: Entry) -> Option<i32> {
        self.start(reactor, entry, NOW);
        self.awaited(reactor, NOW)
    }

    /// Starts what cannot be carried out yet. Whether it waits.
    fn waits(self: &Rc<Self>, reactor: &Rc<Reactor>, entry: Entry) -> bool {
        self.start(reactor, entry, LATER);
        reactor.turn_for(Drive::Until(Instant::now()));
        self.results[LATER as usize].get().is_none()
    }
}

impl Complete for Held {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        self.results[token as usize].set(Some(result));
    }
}
