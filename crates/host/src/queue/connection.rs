//! An I/O queue's connection: commands by identifier, and what is sent for them.

use super::authenticate::Authenticating;
use super::ending::Fate;
use super::pages::{PageTransfer, RECEIVING, SENDING};
use super::receive::half_of;
use super::send::{Flushed, SendQueue};
use super::slot::Slot;
use super::{IoQueue, Params, Requests, copy};
use crate::dial::words;
use crate::pages::Means;
use association::{Credits, retry};
use namespace::copy::Sources;
use namespace::{Data, Request};
use nvme::fabrics::ConnectResult;
use nvme::{Command, Completion, Status, opcode};
use nvme_tcp::digest::digest;
use nvme_tcp::host::{COMMAND_HEADER_BYTES_MAX, Config, Connection as Machine, Transfer};
use reactor::{Complete, Interest, Reactor, Stream, WatchId};
use std::cell::Cell;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Offset of CATTR in Connect, as its result tells which parameter is invalid.
const CATTR_OFFSET: u64 = 46;

/// Reads of more than this have their data received straight into their buffers.
pub(super) const PAGE_BYTES: u32 = 4096;

/// A response, or the header of data.
const PDU_BYTES: usize = 24;

/// Why a connection is given up.
pub(crate) struct Lost {
    pub(super) words: String,
    /// The peer closed it: what was sent will not be carried out any more once it has settled.
    pub(super) by_peer: bool,
    /// Our own kernel gave up: what the peer does is not to be seen on this socket any more.
    pub(super) socket_failed: bool,
    /// The peer has reset it: nothing else is told so.
    pub(super) reset: bool,
    /// The command whose own pages were the reason: on another path they would be again.
    pub(super) refused: Option<u16>,
}

impl Lost {
    /// Something that this end noticed.
    pub(super) fn ours(words: impl Into<String>) -> Lost {
        let words = words.into();
        Lost { words, by_peer: false, socket_failed: false, reset: false, refused: None }
    }
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Lost {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let by_peer = matches!(error.kind(), ConnectionReset | BrokenPipe | UnexpectedEof);
        let reset = error.kind() == ConnectionReset;
        Lost { by_peer, socket_failed: !by_peer, reset, ..Lost::ours(words(&error)) }
    }
}

/// The socket, which its watches and transfers keep open.
pub(super) struct Link {
    pub(super) stream: Stream,
    queue: Weak<IoQueue>,
    watches: [Cell<Option<WatchId>>; 2],
    /// Pages on their way into the socket, and out of it.
    pub(super) sending: PageTransfer,
    pub(super) receiving: PageTransfer,
    /// One of the transfers has ended.
    pub(super) moved: Cell<bool>,
    pub(super) fate: Cell<Fate>,
}

impl Complete for Link {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        let queue = self.queue.upgrade();
        let transfer = match token {
            SENDING => &self.sending,
            RECEIVING => &self.receiving,
            watch => {
                self.watches[watch as usize].set(None);
                if let Some(queue) = queue {
                    queue.activate();
                }
                return;
            }
        };
        self.told(result, transfer.len());
        let request = transfer.ended(result);
        self.moved.set(true);
        if let Some(queue) = queue {
            queue.pages_back(request);
        }
    }
}

impl Link {
    /// Whether the kernel has pages of some request.
    pub(super) fn is_moving(&self) -> bool {
        self.sending.is_moving() || self.receiving.is_moving()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// ICReq is sent.
    Initializing,
    /// Connect is sent, with or without flow control.
    Connecting { flow_control: bool },
    /// The controller wants to know who this host is.
    Authenticating,
    /// Commands may be sent.
    Live,
}

/// Bytes of data that came.
#[derive(Clone, Copy, Default)]
pub(super) struct Received {
    /// Straight to where they belong.
    pub(super) direct: u64,
    /// By way of the receive buffer.
    pub(super) copied: u64,
}

/// One connection of a queue.
pub(super) struct Connection {
    pub(super) link: Rc<Link>,
    pub(super) params: Arc<Params>,
    queue: u16,
    pub(super) machine: Machine,
    pub(super) stage: Stage,
    /// As long as that goes on.
    pub(super) authenticating: Option<Box<Authenticating>>,
    pub(super) slots: Box<[Slot]>,
    /// Identifiers that are free; the last is used next, whose memory is warm.
    pub(super) free: Vec<u16>,
    /// Identifiers of commands that have ended while an Abort of them may be on its way, and since when:
    /// it would hit whichever command had the identifier next.
    aborted: Vec<(u16, Instant)>,
    pub(super) send: SendQueue,
    pub(super) credits: Credits,
    /// The beginning of a PDU.
    pub(super) stash: Vec<u8>,
    /// Reads outstanding of more than a page, and of less.
    pub(super) reads: [u32; 2],
    /// Bytes of the latter.
    small_bytes: u32,
    /// Reads outstanding into pages of the kernel.
    pub(super) page_reads: u32,
    /// Bytes of data that came since this was looked at.
    pub(super) received: Received,
    pub(super) since: Instant,
    /// A command was sent, or is to be, since this was last taken.
    pub(super) started: bool,
    blocked: bool,
    pub(super) became_live: bool,
    pub(super) ana_status: bool,
    /// Commands have ended whose data was being sent when they were answered.
    pub(super) late_answers: bool,
}

impl Connection {
    pub(super) fn new(
        queue: u16,
        params: &Arc<Params>,
        stream: Stream,
        owner: Weak<IoQueue>,
        now: Instant,
    ) -> Connection {
        let entries = params.entries;
        let machine = Machine::new(Config {
            header_digest: params.header_digest,
            data_digest: params.data_digest,
            queue_entries: entries,
            ..Config::default()
        });
        let mut send = SendQueue::new(entries);
        send.handshake.extend_from_slice(&machine.initialize());
        let watches = [Cell::new(None), Cell::new(None)];
        Connection {
            link: Rc::new(Link {
                stream,
                queue: owner,
                watches,
                sending: PageTransfer::default(),
                receiving: PageTransfer::default(),
                moved: Cell::new(false),
                fate: Cell::default(),
            }),
            params: Arc::clone(params),
            queue,
            machine,
            stage: Stage::Initializing,
            authenticating: None,
            slots: (0..entries).map(|_| Slot::new(now)).collect(),
            free: (0..params.commands_max).rev().collect(),
            aborted: Vec::new(),
            send,
            credits: Credits::new(entries, false),
            stash: Vec::new(),
            reads: [0; 2],
            small_bytes: 0,
            page_reads: 0,
            received: Received::default(),
            since: now,
            started: false,
            blocked: false,
            became_live: false,
            ana_status: false,
            late_answers: false,
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.params.generation
    }

    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    pub(super) fn is_live(&self) -> bool {
        self.stage == Stage::Live
    }

    /// Whether another command can be started.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() && self.credits.has_room()
    }

    /// Whether something is to be sent or to come.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.free.len() < usize::from(self.params.commands_max) || !self.send.is_empty()
    }

    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        !self.send.is_empty() && !self.blocked
    }

    /// Whether Connect has succeeded, or an ANA status was seen, since the last call.
    #[inline]
    pub(super) fn take_news(&mut self) -> (bool, bool) {
        (std::mem::take(&mut self.became_live), std::mem::take(&mut self.ana_status))
    }

    /// Queues a command to be sent. One that cannot be is given back with its status.
    #[inline]
    pub(super) fn start(
        &mut self,
        mut request: Box<Request>,
        now: Instant,
    ) -> Result<(), (Box<Request>, Status)> {
        let cid = *self.free.last().expect("there is room");
        let mut command = request.command;
        let nsid = self.params.nsid.load(Ordering::Relaxed);
        if nsid == 0 {
            return Err((request, Status::HOST_ABORTED));
        }
        (command.cid, command.nsid) = (cid.into(), nsid.into());
        let mut pages = None;
        let found = match &request.data {
            Data::Sources(sources) => self.lay_out(&mut command, sources),
            Data::Registered(registered) => {
                pages = Some(*registered);
                self.transfer_pages(&request)
            }
            _ => self.transfer(&mut request),
        };
        let (transfer, pointer, len) = match found {
            Ok(found) => found,
            Err(status) => return Err((request, status)),
        };
        self.free.pop();
        let slot = &mut self.slots[usize::from(cid)];
        let capsule = &mut slot.capsule;
        capsule.len = self.machine.command(&command, transfer, &mut capsule.bytes) as u8;
        const { assert!(COMMAND_HEADER_BYTES_MAX <= u8::MAX as usize) };
        (slot.in_capsule, capsule.digest_len) = (0, 0);
        if let Transfer::InCapsule(bytes) = transfer {
            slot.in_capsule = bytes;
            if self.machine.data_digest() {
                // SAFETY: the request owns so many readable bytes there.
                let data = unsafe { std::slice::from_raw_parts(pointer, len) };
                (capsule.digest, capsule.digest_len) = (digest(data), 4);
            }
        }
        if let Transfer::ToHost(bytes) = transfer {
            match pages {
                None if bytes <= PAGE_BYTES => {
                    self.reads[1] += 1;
                    self.small_bytes += bytes;
                }
                None => self.reads[0] += 1,
                Some(_) => self.page_reads += 1,
            }
        }
        (slot.pointer, slot.len, slot.pages) = (pointer, len as u32, pages);
        (slot.since, slot.reported, slot.sent) = (now, false, false);
        slot.flush_number = self.params.flush_number(&command);
        slot.request = Some(request);
        let with_data = slot.in_capsule != 0;
        self.credits.sent();
        self.started = true;
        self.send.push_command(cid, with_data);
        Ok(())
    }

    /// How much to receive at a time while no large data is to come.
    #[inline]
    pub(super) fn helping(&self) -> usize {
        let outstanding = usize::from(self.params.commands_max) - self.free.len();
        let header_bytes = PDU_BYTES + 4 * usize::from(self.machine.header_digest());
        let digest_bytes = 4 * usize::from(self.machine.data_digest());
        let data_bytes = self.small_bytes as usize + self.reads[1] as usize * digest_bytes;
        half_of(outstanding, data_bytes + outstanding * header_bytes)
    }

    /// Lays out the source ranges of a Copy in the slot that its identifier names. How the list moves, and
    /// where it is.
    #[cold]
    fn lay_out(
        &mut self,
        command: &mut Command,
        sources: &Sources,
    ) -> Result<(Transfer, *mut u8, usize), Status> {
        let params = &self.params;
        let list = &mut self.slots[usize::from(command.cid.get())].list;
        copy::lay_out(command, sources, params, list)?;
        Ok((params.to_controller(list.len() as u32), list.as_mut_ptr(), list.len()))
    }

    /// How a command moves its data, by the direction in its opcode (NVMe Base 2.1, Figure 91), and
    /// where the data is and how long.
    #[inline]
    fn transfer(&self, request: &mut Request) -> Result<(Transfer, *mut u8, usize), Status> {
        let len = request.data.len();
        if request.fused.is_some() || !request.metadata.is_empty() {
            // Neither is offered: no caller asks for it.
            return Err(Status::INVALID_FIELD.dnr());
        }
        if len == 0 {
            return Ok((Transfer::None, std::ptr::null_mut(), 0));
        }
        let Ok(bytes) = u32::try_from(len) else { return Err(Status::INVALID_FIELD.dnr()) };
        match request.command.opcode & 3 {
            1 => Ok((self.params.to_controller(bytes), request.data.as_ptr().cast_mut(), len)),
            2 => match request.data.as_mut_ptr() {
                Some(pointer) => Ok((Transfer::ToHost(bytes), pointer, len)),
                None => Err(Status::INVALID_FIELD.dnr()),
            },
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// The same for data that is pages of the kernel: only Read and Write have such.
    fn transfer_pages(&self, request: &Request) -> Result<(Transfer, *mut u8, usize), Status> {
        let len = request.data.len();
        let can = len != 0
            && Means::find().is_some()
            && !self.machine.data_digest()
            && !self.params.encrypted;
        let plain = request.fused.is_none() && request.metadata.is_empty();
        let bytes = u32::try_from(len).ok().filter(|_| can && plain);
        let Some(bytes) = bytes else { return Err(Status::INVALID_FIELD.dnr()) };
        let transfer = match request.command.opcode {
            opcode::io::WRITE => self.params.to_controller(bytes),
            opcode::io::READ => Transfer::ToHost(bytes),
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        Ok((transfer, std::ptr::null_mut(), len))
    }

    /// Gives the socket what is queued. Whether it took anything.
    pub(super) fn flush(&mut self, reactor: &Reactor) -> Result<bool, Lost> {
        if self.send.is_empty() || self.link.sending.is_busy() {
            return Ok(false);
        }
        let Connection { link, machine, slots, send, .. } = self;
        let flushed = send.flush(&link.stream, machine, slots, &mut self.late_answers);
        let flushed = flushed?;
        self.blocked = matches!(flushed, Flushed::Blocked(_));
        if let Flushed::Pages(next, _) = flushed {
            let means = Means::find().expect("they were not taken otherwise");
            self.start_sending(next, means, reactor);
            return Ok(true);
        }
        Ok(matches!(flushed, Flushed::All(true) | Flushed::Blocked(true)))
    }

    /// Whether [`Connection::finish_answered`] has something to do.
    #[inline]
    pub(super) fn take_late_answers(&mut self) -> bool {
        std::mem::take(&mut self.late_answers)
    }

    /// Ends command `cid`: its request is `done`.
    #[inline]
    pub(super) fn finish(&mut self, cid: u16, status: Status, result: u64, done: &mut Requests) {
        let slot = &mut self.slots[usize::from(cid)];
        let Some(mut request) = slot.request.take() else { return };
        slot.answer = None;
        if request.command.opcode & 3 == 2 && slot.len != 0 {
            match slot.pages {
                None if slot.len <= PAGE_BYTES => {
                    self.reads[1] -= 1;
                    self.small_bytes -= slot.len;
                    debug_assert!(self.reads[1] != 0 || self.small_bytes == 0);
                }
                None => self.reads[0] -= 1,
                Some(_) => self.page_reads -= 1,
            }
        }
        (request.status, request.result) = (copy::answer(&request, status, &self.params), result);
        if slot.reported {
            self.aborted.push((cid, slot.since));
        } else {
            self.free.push(cid);
        }
        done.push(request);
    }

    /// Reports commands that take too long, and whether any is outstanding. Of that time, `paused` does not count.
    pub(super) fn scan(
        &mut self,
        now: Instant,
        paused: Duration,
        mut late: impl FnMut(u16, bool),
    ) -> Result<bool, Lost> {
        let shifted = |since: Instant| (since + paused).min(now);
        self.since = shifted(self.since);
        if self.stage != Stage::Live {
            if now.saturating_duration_since(self.since) > self.params.connect_timeout {
                let what = match self.stage {
                    Stage::Authenticating => "authentication was not over in time",
                    _ => "no answer to Connect in time",
                };
                return Err(Lost::ours(what));
            }
            return Ok(true);
        }
        // By then the Abort was answered, or the controller is reset for not answering it.
        let answered = self.params.connect_timeout + super::ABORT_WAIT;
        let free = &mut self.free;
        self.aborted.retain(|&(cid, since)| {
            let over = now.saturating_duration_since(since) > answered;
            if over {
                free.push(cid);
            }
            !over
        });
        let timeout = self.params.io_timeout;
        for (cid, slot) in (0u16..).zip(&mut self.slots) {
            let Some(request) = &slot.request else { continue };
            slot.since = shifted(slot.since);
            let taken = now.saturating_duration_since(slot.since);
            let timeout = match request.timeout_ms {
                0 => timeout,
                timeout_ms => Duration::from_millis(timeout_ms.into()),
            };
            let allowed = if slot.reported { timeout.min(super::ABORT_WAIT) } else { timeout };
            if taken > allowed {
                late(cid, slot.reported);
                (slot.since, slot.reported) = (now, true);
            }
        }
        Ok(self.is_busy())
    }

    /// Arranges for the queue to be polled when there is something to do.
    pub(super) fn park(&self, reactor: &Reactor) -> bool {
        let fd = self.link.stream.as_raw_fd();
        let watch = |at: usize, interest: Interest| {
            if self.link.watches[at].get().is_none() {
                let id = reactor.watch(fd, interest, self.link.clone(), at as u64);
                self.link.watches[at].set(Some(id));
            }
        };
        // Where the ring moves pages it tells when that has ended.
        if !self.link.receiving.is_busy() {
            watch(0, Interest::READ);
        }
        if !self.send.is_empty() && !self.link.sending.is_busy() {
            watch(1, Interest::WRITE);
        }
        true
    }

    /// Gives back the commands of which nothing was sent.
    pub(super) fn withdraw(&mut self, done: &mut Requests) {
        for cid in self.send.take_commands() {
            self.machine.withdraw(cid);
            self.credits.withdrawn();
            self.finish(cid, Status::HOST_ABORTED, 0, done);
        }
    }

    /// Gives up: what may be completed is `done`, the rest comes back.
    pub(super) fn abandon(&mut self, lost: &Lost, done: &mut Requests) -> Requests {
        let Params { quiet, settle, .. } = *self.params;
        let dead = quiet.is_zero() || lost.by_peer && settle.is_zero();
        let mut held = Vec::new();
        let link = &self.link;
        // Those whose pages the kernel has go back when it has given them back.
        let mut give_back = |cid, request| {
            let request = link.sending.part(cid, request);
            done.extend(request.and_then(|request| link.receiving.part(cid, request)));
        };
        for cid in 0..self.slots.len() as u16 {
            let begun = self.send.has_begun_command(cid);
            let slot = &mut self.slots[usize::from(cid)];
            let Some(mut request) = slot.request.take() else { continue };
            request.result = 0;
            request.status = match lost.refused == Some(cid) {
                true => Status::DATA_TRANSFER_ERROR.dnr(),
                false => Status::HOST_PATHING_ERROR,
            };
            if let Some((status, result)) = slot.answer.take() {
                (request.status, request.result) = (status, result);
                give_back(cid, request);
            } else if !slot.sent && !begun {
                request.status = Status::HOST_ABORTED;
                give_back(cid, request);
            } else if dead || retry::changes_nothing(&request.command) {
                give_back(cid, request);
            } else {
                held.push(request);
            }
        }
        held
    }

    /// The socket, watched no more by its queue; the kernel is to give back pages that it has.
    pub(super) fn into_link(self, reactor: &Reactor) -> Rc<Link> {
        for watch in &self.link.watches {
            if let Some(watch) = watch.take() {
                reactor.unwatch(watch);
            }
        }
        self.link.sending.cancel(reactor);
        self.link.receiving.cancel(reactor);
        self.link
    }

    /// Connect, with its data, to be sent.
    pub(super) fn send_connect(&mut self, flow_control: bool) {
        let params = Arc::clone(&self.params);
        let (mut command, data) = params.connect(self.queue, flow_control);
        command.cid = 0.into();
        let mut header = [0; COMMAND_HEADER_BYTES_MAX];
        let transfer = Transfer::InCapsule(data.len() as u32);
        let len = self.machine.command(&command, transfer, &mut header);
        let handshake = &mut self.send.handshake;
        handshake.extend_from_slice(&header[..len]);
        handshake.extend_from_slice(data);
        if self.machine.data_digest() {
            handshake.extend_from_slice(&digest(data));
        }
        self.stage = Stage::Connecting { flow_control };
    }

    /// Connect was answered.
    pub(super) fn connected(
        &mut self,
        completion: &Completion,
        flow_control: bool,
    ) -> Result<(), Lost> {
        let (status, result) = (completion.status(), completion.result.get());
        if status.is_success() {
            self.credits = Credits::new(self.params.entries, flow_control);
            // Connect took an entry.
            self.credits.sent();
            let _ = self.credits.fetched(completion.sqhd.get());
            return self.authenticate_or_live(ConnectResult(result as u32));
        }
        let refuses_to_do_without = !flow_control
            && status.code() == Status::CONNECT_INVALID_PARAMETERS
            && result & 0x1_ffff == CATTR_OFFSET;
        if refuses_to_do_without {
            self.send_connect(true);
            return Ok(());
        }
        let reason = association::Reason::Connect { status, result };
        Err(Lost::ours(reason.to_string()))
    }
}

/// Whether a read that came back short is an error, rather than zeroes: for commands that are
/// known to fill their buffer.
pub(super) fn must_fill(opcode: u8) -> bool {
    opcode == opcode::io::READ
}
