//! A file descriptor to a volume, in order of its bytes; commands complete in any order.

use super::descriptor::{self, Descriptor};
use super::progress::Progress;
use super::{DEPTH, Session};
use anyhow::{Result, anyhow};
use namespace::{Data, Request, Sink};
use nvme::opcode;
use reactor::{Complete, Interest};
use rustix::fd::AsRawFd;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};

/// Tokens: run a step; there is something to read; something was read.
const STEP: u64 = 0;
const READABLE: u64 = 1;
const READ: u64 = 2;
/// State of the Flush, beside the offsets of writes.
const FLUSH: u64 = u64::MAX;

/// The job.
pub struct Writer {
    this: Weak<Writer>,
    session: Session,
    input: Descriptor,
    /// A regular file is always ready.
    waits: bool,
    /// Fill up the last block with zeroes.
    pad: bool,
    /// Bytes of the input, if that is known.
    total: Option<u64>,
    /// The volume's before anything was written.
    epoch: u64,
    state: RefCell<State>,
    stepping: Cell<bool>,
}

struct State {
    /// Where the next command writes.
    next: u64,
    filling: Option<Filling>,
    /// Bytes that the input has given.
    taken: u64,
    /// The input has ended.
    ended: bool,
    in_flight: usize,
    /// Bytes whose commands have completed.
    written: u64,
    flush: Flush,
    #[expect(clippy::vec_box, reason = "requests travel in the boxes that they rest in")]
    idle: Vec<Box<Request>>,
    failure: Option<anyhow::Error>,
    progress: Progress,
}

/// A command whose data is being read.
struct Filling {
    request: Box<Request>,
    filled: usize,
    /// The reactor waits for the input, or reads it.
    busy: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    ToDo,
    Asked,
    Done,
}

impl Writer {
    /// Writes all of `input`, of which there are `total` bytes if that is known, from byte `offset`
    /// on, and flushes it.
    ///
    /// # Errors
    /// A command failed, the input could not be read, does not fit, or ends within a block without
    /// `pad`. What was written until then stays.
    pub fn run(
        session: Session,
        offset: u64,
        input: Descriptor,
        total: Option<u64>,
        pad: bool,
    ) -> Result<()> {
        let kind = rustix::fs::fstat(input).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let job = Rc::new_cyclic(|this| Writer {
            this: Weak::clone(this),
            epoch: session.volume.volatile_epoch(),
            session,
            input,
            waits: kind != Ok(FileType::RegularFile),
            pad,
            total,
            stepping: Cell::new(true),
            state: RefCell::new(State {
                next: offset,
                filling: None,
                taken: 0,
                ended: false,
                in_flight: 0,
                written: 0,
                flush: Flush::ToDo,
                idle: (0..DEPTH).map(|_| Request::new()).collect(),
                failure: None,
                progress: Progress::new("written", total),
            }),
        });
        job.session.run(Rc::clone(&job) as Rc<dyn Complete>, STEP);
        let mut state = job.state.borrow_mut();
        state.progress.end();
        state.failure.take().map_or(Ok(()), Err)
    }

    fn this(&self) -> Rc<Writer> {
        self.this.upgrade().expect("a job that is running is alive")
    }

    fn step(&self) {
        self.stepping.set(false);
        self.fill();
        self.flush();
        let mut state = self.state.borrow_mut();
        let (now, done) = (self.session.reactor.now(), state.written);
        state.progress.update(now, done);
        // An input that says nothing is not waited for after a failure; a read that has begun is,
        // since it ends by itself.
        let reading = state.filling.as_ref().is_some_and(|filling| filling.busy);
        let failed = state.failure.is_some();
        if state.in_flight == 0
            && (state.flush == Flush::Done || failed && (!reading || self.waits))
        {
            self.session.reactor.stop();
        }
    }

    /// Begins to read the data of the next command.
    fn fill(&self) {
        let capacity = self.session.limits.bytes();
        let mut state = self.state.borrow_mut();
        if state.failure.is_some() || state.ended {
            return;
        }
        if state.filling.is_none() {
            let Some(mut request) = state.idle.pop() else { return };
            // At the end of the volume a block is read all the same, to see whether there is more.
            let room = capacity - state.next;
            let block = self.session.limits.block_bytes();
            let len = u64::from(self.session.chunk_bytes()).min(room).max(block.into());
            self.session.give_buffer(&mut request, len as usize);
            state.filling = Some(Filling { request, filled: 0, busy: false });
        }
        let filling = state.filling.as_mut().expect("just made");
        if filling.busy {
            return;
        }
        filling.busy = true;
        drop(state);
        if self.waits {
            let (reactor, descriptor) = (&self.session.reactor, self.input.as_raw_fd());
            reactor.watch(descriptor, Interest::READ, self.this(), READABLE);
        } else {
            self.read();
        }
    }

    fn read(&self) {
        let mut state = self.state.borrow_mut();
        let Some(Filling { request, filled, .. }) = state.filling.as_mut() else { return };
        // SAFETY: the request is kept in `filling` until the read's completion.
        unsafe {
            let (reactor, this) = (&self.session.reactor, self.this());
            descriptor::read(reactor, self.input, &mut request.data, *filled, this, READ);
        }
    }

    /// Something was read, or nothing more can be.
    fn filled(&self, result: i32) {
        let mut state = self.state.borrow_mut();
        let Some(mut filling) = state.filling.take() else { return };
        filling.busy = false;
        if state.failure.is_some() {
            return;
        }
        if result < 0 {
            let error = io::Error::from(Errno::from_raw_os_error(-result));
            state.failure = Some(anyhow!("the input: {error}"));
            return;
        }
        filling.filled += result as usize;
        state.taken += result as u64;
        state.ended = result == 0;
        if let Some(total) = self.total.filter(|&total| state.ended && state.taken < total) {
            let taken = state.taken;
            state.failure = Some(anyhow!("the input of {total} bytes ended after {taken}"));
            return;
        }
        if filling.filled > 0 && state.next >= self.session.limits.bytes() {
            let uri = self.session.volume.uri();
            state.failure =
                Some(anyhow!("{uri}: the input is longer than the volume has room for"));
            return;
        }
        let full = filling.filled == filling.request.data.len();
        if !full && !state.ended {
            state.filling = Some(filling);
            return;
        }
        let Filling { mut request, filled, .. } = filling;
        if filled == 0 {
            state.idle.push(request);
            return;
        }
        if !full && let Err(failure) = self.close_block(&mut request, filled) {
            state.failure = Some(failure);
            return;
        }
        let offset = state.next;
        state.next += request.data.len() as u64;
        state.in_flight += 1;
        drop(state);
        self.session.submit_blocks(opcode::io::WRITE, offset, request, self.this(), offset);
    }

    /// The input ended within the buffer: fills up its last block, or drops what is no block.
    fn close_block(&self, request: &mut Request, filled: usize) -> Result<()> {
        let block = self.session.limits.block_bytes() as usize;
        let whole = filled.next_multiple_of(block);
        if whole != filled && !self.pad {
            return Err(anyhow!(
                "the input ends {} bytes into a block of {block}: give --pad to fill it up with zeroes",
                filled % block
            ));
        }
        request.data.truncate(whole);
        let Data::Buffer(buffer) = &mut request.data else { unreachable!("given above") };
        buffer.as_mut_slice()[filled..].fill(0);
        Ok(())
    }

    /// Everything is written: makes it durable.
    fn flush(&self) {
        let mut state = self.state.borrow_mut();
        let written = state.ended && state.in_flight == 0 && state.failure.is_none();
        if !written || state.flush != Flush::ToDo {
            return;
        }
        state.flush = Flush::Asked;
        state.in_flight += 1;
        let request = state.idle.pop().expect("none is in flight");
        drop(state);
        self.session.submit_flush(request, self.this(), FLUSH);
    }
}

impl Sink for Writer {
    fn completed(&self, request: Box<Request>, offset: u64) {
        let mut state = self.state.borrow_mut();
        state.in_flight -= 1;
        if !request.status.is_success() {
            let doing = match offset {
                FLUSH => "flushing".to_owned(),
                _ => format!("writing {} bytes at offset {offset}", request.data.len()),
            };
            let failure = self.session.failure(&doing, request.status);
            // The first failure is the one that says why.
            state.failure.get_or_insert(failure);
        } else if offset == FLUSH && self.session.volume.volatile_epoch() != self.epoch {
            // The input is gone: it cannot be written again from here.
            let uri = self.session.volume.uri();
            state.failure.get_or_insert(anyhow!(
                "{uri}: connected anew, without power meanwhile, or data could not be made durable: what was not flushed \
                 may be gone; write it again"
            ));
        } else if offset == FLUSH {
            state.flush = Flush::Done;
        } else {
            state.written += request.data.len() as u64;
        }
        state.idle.push(request);
        drop(state);
        if !self.stepping.replace(true) {
            self.session.reactor.defer(self.this(), STEP);
        }
    }
}

impl Complete for Writer {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        match token {
            // The session ends without it.
            READABLE if result == -Errno::CANCELED.raw_os_error() => return,
            READABLE => return self.read(),
            READ => self.filled(result),
            _ => {}
        }
        self.step();
    }
}
