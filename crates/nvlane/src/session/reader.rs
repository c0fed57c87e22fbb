//! A range of a volume to a file descriptor, in order.

use super::descriptor::{self, Descriptor};
use super::progress::Progress;
use super::{DEPTH, Session};
use crate::stdout;
use anyhow::Result;
use namespace::{Request, Sink};
use nvme::opcode;
use reactor::Complete;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::rc::{Rc, Weak};

/// Tokens: run a step; what was written has been taken.
const STEP: u64 = 0;
const WRITTEN: u64 = 1;

/// The job.
pub struct Reader {
    this: Weak<Reader>,
    session: Session,
    output: Descriptor,
    /// Bytes that are wanted; not always whole blocks.
    range: Range<u64>,
    state: RefCell<State>,
    /// A step was deferred.
    stepping: Cell<bool>,
}

struct State {
    /// Where the next command reads.
    next: u64,
    /// Commands in the order of what they read: on their way (`None`) or back.
    slots: VecDeque<Option<Box<Request>>>,
    /// Number of the first slot.
    first: u64,
    /// Commands on their way.
    in_flight: usize,
    /// Where the first slot reads.
    written: u64,
    /// What is being written.
    writing: Option<Box<Request>>,
    #[expect(clippy::vec_box, reason = "requests travel in the boxes that they rest in")]
    idle: Vec<Box<Request>>,
    failure: Option<anyhow::Error>,
    progress: Progress,
}

impl Reader {
    /// Writes bytes `range` of the session's volume to `output`.
    ///
    /// # Errors
    /// A command failed: everything before it was written. Or the output could not be written.
    pub fn run(session: Session, range: Range<u64>, output: Descriptor) -> Result<()> {
        let block = u64::from(session.limits.block_bytes());
        let start = range.start - range.start % block;
        let progress = Progress::new("read", Some(range.end - range.start));
        let job = Rc::new_cyclic(|this| Reader {
            this: Weak::clone(this),
            session,
            output,
            range,
            stepping: Cell::new(true),
            state: RefCell::new(State {
                next: start,
                slots: VecDeque::with_capacity(DEPTH),
                first: 0,
                in_flight: 0,
                written: start,
                writing: None,
                idle: (0..DEPTH).map(|_| Request::new()).collect(),
                failure: None,
                progress,
            }),
        });
        job.session.run(Rc::clone(&job) as Rc<dyn Complete>, STEP);
        let mut state = job.state.borrow_mut();
        state.progress.end();
        state.failure.take().map_or(Ok(()), Err)
    }

    fn this(&self) -> Rc<Reader> {
        self.this.upgrade().expect("a job that is running is alive")
    }

    fn defer_step(&self) {
        if !self.stepping.replace(true) {
            self.session.reactor.defer(self.this(), STEP);
        }
    }

    fn step(&self) {
        self.stepping.set(false);
        self.write_next();
        self.read_more();
        let mut state = self.state.borrow_mut();
        let (now, done) = (self.session.reactor.now(), state.written);
        state.progress.update(now, done.saturating_sub(self.range.start));
        let ended = state.failure.is_some() || state.written >= self.range.end;
        if ended && state.in_flight == 0 && state.writing.is_none() {
            self.session.reactor.stop();
        }
    }

    /// Hands the oldest command's data to the output, if it is back.
    fn write_next(&self) {
        let mut state = self.state.borrow_mut();
        let back = matches!(state.slots.front(), Some(Some(_)));
        if !back || state.writing.is_some() || state.failure.is_some() {
            return;
        }
        let request = state.slots.pop_front().flatten().expect("just seen");
        state.first += 1;
        let (at, len) = (state.written, request.data.len() as u64);
        if !request.status.is_success() {
            let doing = format!("reading {len} bytes at offset {at}");
            state.failure = Some(self.session.failure(&doing, request.status));
            return;
        }
        state.written = at + len;
        // The first and the last block may be wanted in part.
        let from = self.range.start.saturating_sub(at) as usize;
        let to = len.min(self.range.end - at) as usize;
        let request = state.writing.insert(request);
        // SAFETY: the request is kept in `writing` until its completion.
        unsafe {
            let reactor = &self.session.reactor;
            descriptor::write(reactor, self.output, &request.data, from..to, self.this(), WRITTEN);
        }
    }

    /// Keeps commands in flight.
    fn read_more(&self) {
        let chunk = u64::from(self.session.chunk_bytes());
        let block = u64::from(self.session.limits.block_bytes());
        let end = self.range.end.next_multiple_of(block);
        loop {
            let mut state = self.state.borrow_mut();
            if state.failure.is_some() || state.next >= end {
                return;
            }
            let Some(mut request) = state.idle.pop() else { return };
            let offset = state.next;
            let len = chunk.min(end - offset);
            let number = state.first + state.slots.len() as u64;
            state.slots.push_back(None);
            state.in_flight += 1;
            state.next += len;
            drop(state);
            self.session.give_buffer(&mut request, len as usize);
            self.session.submit_blocks(opcode::io::READ, offset, request, self.this(), number);
        }
    }
}

impl Sink for Reader {
    fn completed(&self, request: Box<Request>, number: u64) {
        let mut state = self.state.borrow_mut();
        state.in_flight -= 1;
        let index = (number - state.first) as usize;
        state.slots[index] = Some(request);
        drop(state);
        self.defer_step();
    }
}

impl Complete for Reader {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        if token == WRITTEN {
            let mut state = self.state.borrow_mut();
            let request = state.writing.take().expect("one is written at a time");
            state.idle.push(request);
            if result < 0 {
                let error = io::Error::from(Errno::from_raw_os_error(-result));
                state.failure = stdout::told(Err(error)).err();
            }
        }
        self.step();
    }
}
