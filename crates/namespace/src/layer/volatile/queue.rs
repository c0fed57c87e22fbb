//! One core's side of `volatile:`: overlays reads, and writes down in jobs.

use super::Shared;
use crate::layer::addresses_blocks;
use crate::layer::slab::Slab;
use crate::memory::Mapping;
use crate::wake::{Wake, Waker};
use crate::{Access, AccessWatcher, Data, Namespace, Part, Queue, Request, Sink, dataset};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::Reactor;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Written down at once, if the child takes so much.
const RUN_BYTES: usize = 128 << 10;
/// Frame state of the request that writes down, and of one that passes through. Others are
/// slots of overlaid reads.
const OWN: u64 = u64::MAX;
const THROUGH: u64 = u64::MAX - 1;

pub(super) struct VolatileQueue {
    me: Weak<VolatileQueue>,
    shared: Arc<Shared>,
    namespace: Arc<dyn Namespace>,
    child: Rc<dyn Queue>,
    waker: Waker,
    shift: u8,
    /// The child did when this was opened: what it has said it keeps to, also where it offers that no more.
    deallocates: bool,
    overlays: Slab<Vec<(usize, Arc<[u8]>)>>,
    /// Waiting for their turn; the first is at work once it has it.
    jobs: RefCell<VecDeque<Job>>,
    work: RefCell<Work>,
    /// Memory that runs of blocks are collected in.
    run: Mapping,
    /// The request that writes down, when it is not below.
    own: RefCell<Option<Box<Request>>>,
    /// `proceed` is on the stack; it goes on when the step it started has ended already.
    proceeding: Cell<bool>,
    ended: Cell<bool>,
}

struct Job {
    kind: Kind,
    /// As it came: layers below may rewrite the request's.
    command: Command,
    request: Option<Box<Request>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Write down, flush the child.
    Flush,
    /// Write down, then have the child read: what is read with FUA is durable.
    Read,
    /// Write down, then keep this write.
    MakeRoom,
    /// Send this to the child, then drop what was kept of its blocks.
    Through,
}

/// How far the job at work has come.
#[derive(Default)]
struct Work {
    /// Next block to write down.
    cursor: u64,
    /// When the job began: the number of the newest write, and of cuts.
    sequence: u64,
    cuts: u64,
    /// Numbers of the writes whose blocks are going down now, from block `run_start`.
    run: Vec<u64>,
    run_start: u64,
    step: Step,
    /// What the last step came to, with its errno.
    status: Status,
    os_error: i32,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Step {
    #[default]
    WriteDown,
    Flush,
    Through,
}

impl VolatileQueue {
    pub(super) fn open(
        shared: Arc<Shared>,
        namespace: Arc<dyn Namespace>,
        child: Rc<dyn Queue>,
        reactor: &Rc<Reactor>,
    ) -> io::Result<Rc<VolatileQueue>> {
        let limits = namespace.limits();
        let (shift, deallocates) = (limits.block_shift, limits.commands.deallocate);
        let run = Mapping::fixed(RUN_BYTES)?;
        Ok(Rc::new_cyclic(|me: &Weak<VolatileQueue>| VolatileQueue {
            me: me.clone(),
            shared,
            namespace,
            child,
            waker: Waker::new(reactor, me.clone() as Weak<dyn Wake>),
            shift,
            deallocates,
            overlays: Slab::default(),
            jobs: RefCell::default(),
            work: RefCell::default(),
            run,
            own: RefCell::new(Some(Request::new())),
            proceeding: Cell::new(false),
            ended: Cell::new(false),
        }))
    }
}

impl Drop for VolatileQueue {
    fn drop(&mut self) {
        self.waker.forget();
    }
}

impl Queue for VolatileQueue {
    fn submit(&self, request: Box<Request>) {
        let command = request.command;
        match command.opcode {
            _ if request.fused.is_some() => request.finish_pair(Status::INVALID_OPCODE.dnr()),
            _ if addresses_blocks(&command) && !self.is_inside(&command) => {
                request.finish(Status::LBA_OUT_OF_RANGE.dnr());
            }
            opcode::DATASET_MANAGEMENT if !self.are_inside(&request) => {
                request.finish(Status::LBA_OUT_OF_RANGE.dnr());
            }
            opcode::READ => self.read(request),
            opcode::WRITE if command.fua() => self.add(Kind::Through, request),
            opcode::WRITE => self.write(request),
            opcode::FLUSH => self.add(Kind::Flush, request),
            opcode::WRITE_ZEROES | opcode::DATASET_MANAGEMENT => self.add(Kind::Through, request),
            // The child knows neither what is kept, nor that it is older than what is copied.
            opcode::COPY => request.finish(Status::FAST_COPY_NOT_POSSIBLE.dnr()),
            _ => request.finish(Status::INVALID_OPCODE.dnr()),
        }
    }

    fn access(&self) -> Access {
        self.child.access()
    }

    fn watch_access(&self, watcher: Weak<dyn AccessWatcher>) {
        self.child.watch_access(watcher);
    }

    fn forget(&self) {
        self.child.forget();
        drop(self.jobs.take());
    }
}

impl Sink for VolatileQueue {
    fn completed(&self, request: Box<Request>, state: u64) {
        if state != OWN && state != THROUGH {
            return self.overlay(request, state);
        }
        {
            let mut work = self.work.borrow_mut();
            (work.status, work.os_error) = (request.status, request.os_error);
        }
        if state == OWN {
            self.own.replace(Some(request));
        } else {
            self.jobs.borrow_mut()[0].request = Some(request);
        }
        self.ended.set(true);
        if !self.proceeding.get() {
            self.proceed();
        }
    }
}

impl Wake for VolatileQueue {
    /// The turn is ours.
    fn wake(&self, _value: u64) {
        self.start();
        if !self.proceeding.get() {
            self.proceed();
        }
    }
}

impl VolatileQueue {
    fn sink(&self) -> Rc<dyn Sink> {
        self.me.upgrade().expect("the queue lives while it is called")
    }

    /// What is kept would hide that the child has ended before.
    fn is_inside(&self, command: &Command) -> bool {
        self.namespace.limits().contains(command.slba(), command.block_count())
    }

    fn are_inside(&self, request: &Request) -> bool {
        let (data, blocks) = (&request.data, self.namespace.limits().blocks);
        // SAFETY: the request holds its data during this call.
        unsafe { dataset::ranges(&request.command, data.as_ptr(), data.len(), blocks) }.is_ok()
    }

    fn write(&self, request: Box<Request>) {
        if self.keep(&request) {
            return request.finish(Status::SUCCESS);
        }
        self.add(Kind::MakeRoom, request);
    }

    fn keep(&self, request: &Request) -> bool {
        let start = request.command.slba();
        let most = self.shared.blocks_max;
        self.shared.cache().keep(start, &request.data, 1 << self.shift, most)
    }

    fn read(&self, mut request: Box<Request>) {
        let start = request.command.slba();
        let end = start + u64::from(request.command.block_count());
        let kept: Vec<_> = {
            let cache = self.shared.cache();
            let kept = cache.blocks.range(start..end);
            kept.map(|(block, kept)| ((block - start) as usize, Arc::clone(&kept.data))).collect()
        };
        if kept.is_empty() {
            return self.child.submit(request);
        }
        if request.command.fua() {
            return self.add(Kind::Read, request);
        }
        let all = kept.len() as u64 == end - start;
        let slot = self.overlays.insert(kept);
        if all {
            request.status = Status::SUCCESS;
            request.result = 0;
            return self.overlay(request, slot);
        }
        request.push(self.sink(), slot);
        self.child.submit(request);
    }

    /// Puts what was kept when the read came over what the child says.
    fn overlay(&self, mut request: Box<Request>, slot: u64) {
        let kept = self.overlays.take(slot);
        if request.status.is_success() {
            let len = request.data.len();
            let target = request.data.as_mut_ptr().expect("a read comes with a buffer");
            for (index, block) in kept {
                let place = index << self.shift;
                assert!(place + block.len() <= len, "a read comes with a buffer of its length");
                // SAFETY: checked just above; the buffer is this request's alone.
                unsafe { target.add(place).copy_from_nonoverlapping(block.as_ptr(), block.len()) };
            }
        }
        request.complete();
    }

    /// Puts a job in line, and starts it if nobody is at work.
    fn add(&self, kind: Kind, request: Box<Request>) {
        let first = {
            let mut jobs = self.jobs.borrow_mut();
            jobs.push_back(Job { kind, command: request.command, request: Some(request) });
            jobs.len() == 1
        };
        if first && self.shared.take_turn(&self.waker) {
            self.start();
        }
        if !self.proceeding.get() {
            self.proceed();
        }
    }

    /// Starts the first job; it has the turn.
    fn start(&self) {
        let kind = self.jobs.borrow()[0].kind;
        let mut work = self.work.borrow_mut();
        {
            let mut cache = self.shared.cache();
            // The child was made smaller.
            drop(cache.blocks.split_off(&self.namespace.limits().blocks));
            (work.sequence, work.cuts) = (cache.sequence, cache.cuts);
        }
        work.cursor = 0;
        work.run.clear();
        (work.status, work.os_error) = (Status::SUCCESS, 0);
        if kind != Kind::Through {
            work.step = Step::WriteDown;
            return self.ended.set(true);
        }
        work.step = Step::Through;
        drop(work);
        let request = self.jobs.borrow_mut()[0].request.take();
        let mut request = request.expect("a job waits with its request");
        request.push(self.sink(), THROUGH);
        self.child.submit(request);
    }

    /// Goes from step to step as long as they end at once: not by recursion, which a child that
    /// completes at once would make as deep as there are runs.
    fn proceed(&self) {
        self.proceeding.set(true);
        while self.ended.take() {
            if let Some(status) = self.step_ended() {
                self.job_ended(status);
            }
        }
        self.proceeding.set(false);
    }

    /// A step has ended: starts the next, or says how the job ended.
    fn step_ended(&self) -> Option<Status> {
        let mut work = self.work.borrow_mut();
        if work.step != Step::WriteDown || !work.status.is_success() {
            return Some(work.status);
        }
        if !self.collect_run(&mut work) {
            return Some(Status::POWER_LOSS);
        }
        let (start, count) = (work.run_start, work.run.len());
        if count > 0 {
            drop(work);
            let len = count << self.shift;
            // SAFETY: the mapping lives as long as this queue, which the request's frame keeps.
            let data = Data::Part(unsafe { Part::new(self.run.base(), len, None) });
            self.submit_own(Command::blocks(opcode::WRITE, 0, start, count as u32), data);
            return None;
        }
        if self.jobs.borrow()[0].kind != Kind::Flush {
            return Some(Status::SUCCESS);
        }
        work.step = Step::Flush;
        drop(work);
        self.submit_own(Command { opcode: opcode::FLUSH, ..Command::default() }, Data::None);
        None
    }

    /// Forgets the run that went down, and copies the next one together; false after a cut.
    fn collect_run(&self, work: &mut Work) -> bool {
        let mut cache = self.shared.cache();
        if cache.cuts != work.cuts {
            return false;
        }
        for (index, &sequence) in work.run.iter().enumerate() {
            let block = work.run_start + index as u64;
            cache.drop_range(block, block + 1, sequence);
        }
        work.run.clear();
        let most = (self.namespace.limits().transfer_bytes_max as usize).min(RUN_BYTES);
        // Also what was written since the job began: it may have taken the place of what has to go down.
        for (&block, kept) in cache.blocks.range(work.cursor..) {
            let count = work.run.len();
            if count == 0 {
                work.run_start = block;
            }
            let place = count << self.shift;
            let follows = block == work.run_start + count as u64;
            if !follows || count > 0 && place + kept.data.len() > most {
                break;
            }
            // SAFETY: checked just above, and it is longer than a block; the mapping is this queue's alone.
            unsafe { self.run.base().add(place).copy_from(kept.data.as_ptr(), kept.data.len()) };
            work.run.push(kept.sequence);
        }
        work.cursor = work.run_start + work.run.len() as u64;
        true
    }

    fn submit_own(&self, command: Command, data: Data) {
        let nsid = self.jobs.borrow()[0].request.as_ref().map(|request| request.command.nsid);
        let mut own = self.own.take().expect("one step at a time");
        own.command = Command { nsid: nsid.unwrap_or_default(), ..command };
        (own.data, own.os_error) = (data, 0);
        own.push(self.sink(), OWN);
        self.child.submit(own);
    }

    /// The first job has ended with `status`.
    fn job_ended(&self, status: Status) {
        let Job { kind, command, request } =
            self.jobs.borrow_mut().pop_front().expect("the job at work is the first");
        let mut request = request.expect("what went down has come back");
        request.command = command;
        let (newest, os_error) = {
            let work = self.work.borrow();
            (work.sequence, work.os_error)
        };
        if kind == Kind::Through && status.is_success() {
            self.drop_kept(&request, newest);
        }
        // Others may have been quicker to take the room; then it waits once more.
        let again = kind == Kind::MakeRoom && status.is_success() && !self.keep(&request);
        self.shared.pass_turn();
        let more = !self.jobs.borrow().is_empty();
        if more && self.shared.take_turn(&self.waker) {
            self.start();
        }
        if again {
            return self.add(kind, request);
        }
        if kind == Kind::Read && status.is_success() {
            return self.child.submit(request);
        }
        if kind != Kind::Through {
            request.result = 0;
        }
        (request.status, request.os_error) = (status, os_error);
        request.complete();
    }

    /// What was kept of the blocks that went through is older than what the child has now.
    fn drop_kept(&self, request: &Request, newest: u64) {
        let command = &request.command;
        let mut cache = self.shared.cache();
        if command.opcode != opcode::DATASET_MANAGEMENT {
            let start = command.slba();
            let end = start + u64::from(command.block_count());
            return cache.drop_range(start, end, newest);
        }
        let data = &request.data;
        // SAFETY: the request holds its data during this call.
        let ranges = unsafe { dataset::ranges(command, data.as_ptr(), data.len(), u64::MAX) };
        // Where the child leaves it alone, what it has is older.
        if let Ok(ranges) = ranges
            && dataset::deallocates(command)
            && self.deallocates
        {
            for range in ranges {
                cache.drop_range(range.slba, range.slba + u64::from(range.blocks), newest);
            }
        }
    }
}
