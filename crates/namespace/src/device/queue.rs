//! One core's commands on a device.

mod controllers;

use super::admin::AdminFile;
use super::copy::{self, Lists, Own};
use super::flights::Count;
use super::ring::{self, Carrier};
use super::status::{self, Circumstances};
use super::{Device, RETRY_TIME, check, words};
use crate::{Access, AccessWatcher, Data, Queue, Request};
use association::retry::{Retry, may_retry, may_retry_admin};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::{Complete, FixedFile, Interval, Reactor};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uring::{BigEntry, NvmeOp, NvmeUringCmd, RingOptions, entry};

/// The first pause before a command is tried again; each next is twice the last, up to a second.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often a queue in use looks whether the namespace's blocks are what they were.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often a command is tried again that the driver has cancelled.
const CANCELLED_MAX: u32 = 6;

/// How often a command is tried again that the kernel finds invalid, where that may mean something else: for a second, if
/// no controller is reset meanwhile.
const DOUBTS_MAX: u64 = 7;

/// `Request::scratch[TRIES]`: how often it was tried again; with [`ADMIN`] set: an admin command.
const TRIES: usize = 0;
const ADMIN: u64 = 1 << 32;
/// The scratch of an admin command as it begins.
pub(super) const OF_ADMIN: [u64; 4] = [ADMIN, 0, 0, 0];
/// `Request::scratch[WAITED]`: milliseconds of pauses so far.
const WAITED: usize = 1;
/// `Request::scratch[LIST]`: of a Copy that is under way, the number of its list of source ranges plus one.
pub(super) const LIST: usize = 2;
/// `Request::scratch[DOUBTS]`: how often in a row the kernel has found it invalid where that may mean something else, in
/// the lowest byte, and how many resets were counted then.
const DOUBTS: usize = 3;

/// Where a request's memory is, and how long: found out once, and used as often as it is needed.
pub(super) struct Extents {
    data: (u64, usize),
    metadata: (u64, usize),
}

impl Extents {
    #[inline]
    pub(super) fn of(request: &Request) -> Extents {
        let metadata = match &request.metadata {
            Data::None => (0, 0),
            metadata => metadata.extent(),
        };
        Extents { data: request.data.extent(), metadata }
    }
}

pub(super) struct DeviceQueue {
    me: Weak<DeviceQueue>,
    device: Arc<Device>,
    reactor: Rc<Reactor>,
    carrier: Carrier,
    file: uring::File,
    registered: Option<FixedFile>,
    /// For admin commands, which cannot be polled for; opened at the first.
    admin: RefCell<Option<(Carrier, AdminFile)>>,
    /// Those that were left while commands were noted that name them.
    left: RefCell<Vec<(Carrier, AdminFile)>>,
    /// Until then admin commands are told so, since no controller's device could be opened.
    admin_refused: Cell<Option<(Instant, Status)>>,
    retries: Rc<Retries>,
    /// I/O commands with the kernel, or noted for it.
    in_flight: Arc<Count>,
    /// Of Copies under way.
    lists: RefCell<Lists>,
    /// When it is next looked whether the namespace's blocks are what they were.
    look: Interval,
    /// The device was removed.
    gone: Cell<bool>,
    watcher: RefCell<Option<Weak<dyn AccessWatcher>>>,
}

impl DeviceQueue {
    pub(super) fn open(device: Arc<Device>, reactor: &Rc<Reactor>) -> io::Result<Rc<DeviceQueue>> {
        let options = &device.options;
        let carrier = if device.polled() || options.sqpoll.is_some() {
            let wanted = RingOptions {
                iopoll: device.polled(),
                hybrid_iopoll: options.hybrid_iopoll,
                sqpoll: options.sqpoll,
                ..ring::options()
            };
            Carrier::beside(reactor, &wanted)?
        } else {
            Carrier::plain(reactor)?
        };
        let _ = device.carrier.set(carrier.describe());
        let fd = device.file.as_raw_fd();
        let registered = carrier.register(fd);
        let file = registered.as_ref().map_or(uring::File::Fd(fd), FixedFile::file);
        let lists = RefCell::new(Lists::new(device.limits.copy.ranges_max));
        Ok(Rc::new_cyclic(|me| DeviceQueue {
            me: me.clone(),
            in_flight: device.flights.join(),
            device,
            lists,
            reactor: Rc::clone(reactor),
            carrier,
            file,
            registered,
            admin: RefCell::new(None),
            left: RefCell::default(),
            admin_refused: Cell::new(None),
            retries: Rc::new(Retries { queue: me.clone(), waiting: RefCell::default() }),
            look: Interval::new(LOOK_EVERY),
            gone: Cell::new(false),
            watcher: RefCell::default(),
        }))
    }
}

impl Drop for DeviceQueue {
    fn drop(&mut self) {
        self.device.flights.quit(&self.in_flight);
        if let Some(registered) = self.registered.take() {
            self.carrier.unregister(registered);
        }
        self.leave_controller();
    }
}

impl Queue for DeviceQueue {
    #[inline]
    fn submit(&self, mut request: Box<Request>) {
        request.scratch = [0; 4];
        let extents = Extents::of(&request);
        self.in_flight.enter();
        match self.check(&request, &extents) {
            Ok(()) => self.start(request, &extents),
            Err(status) => self.refuse(request, status),
        }
    }

    fn submit_admin(&self, mut request: Box<Request>) {
        request.scratch = OF_ADMIN;
        if !self.device.limits.passthrough.admin {
            return request.finish(Status::INVALID_OPCODE.dnr());
        }
        let checked = check::admin_data(&request.command, request.data.len());
        // The driver's number of bytes has 32 bits.
        let has_room = u32::try_from(request.metadata.len()).is_ok();
        match checked.and(if has_room { Ok(()) } else { Err(Status::INVALID_FIELD.dnr()) }) {
            Ok(()) => self.start_admin(request),
            Err(status) => request.finish(status),
        }
    }

    fn access(&self) -> Access {
        if self.gone.get() { Access::Gone } else { Access::Optimized }
    }

    fn watch_access(&self, watcher: Weak<dyn AccessWatcher>) {
        self.watcher.replace(Some(watcher));
    }

    fn forget(&self) {
        drop(self.retries.waiting.take());
    }
}

impl Complete for DeviceQueue {
    fn complete(&self, token: u64, result: i32, flags: u32) {
        self.complete_command(token, result, flags, 0);
    }

    #[inline]
    fn complete_command(&self, token: u64, result: i32, _flags: u32, extra: u64) {
        // SAFETY: `hand_over` made the token from a box and gave it away; it is completed once.
        let mut request = unsafe { Box::from_raw(token as *mut Request) };
        request.result = extra;
        if request.scratch[TRIES] & ADMIN == 0 {
            self.in_flight.leave();
        }
        if request.scratch[LIST] != 0 {
            return self.copied(request, result);
        }
        if result == 0 {
            request.status = Status::SUCCESS;
            return request.complete();
        }
        self.failed(request, result);
    }
}

impl DeviceQueue {
    /// Refuses what cannot be started, or may not be.
    #[inline]
    fn check(&self, request: &Request, extents: &Extents) -> Result<(), Status> {
        let (command, limits) = (&request.command, &self.device.limits);
        if self.look.is_over(&self.reactor) {
            self.look.restart(&self.reactor);
            self.device.look_aside();
        }
        self.device.shape.check()?;
        if request.fused.is_some() || command.flags & 3 != 0 {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        match &request.data {
            // As it is laid out, it is checked.
            Data::Sources(_) => return Ok(()),
            // Of the core's own ring.
            Data::Registered(_) if !matches!(self.carrier, Carrier::Own(_)) => {
                return Err(Status::INVALID_FIELD.dnr());
            }
            _ => {}
        }
        if !limits.passthrough.io && !check::is_usual(command.opcode) {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        if limits.metadata_bytes != 0 || extents.metadata.1 != 0 {
            self.check_metadata(request)?;
        }
        let zone_extension_bytes = self.device.facts.zone_extension_bytes;
        check::data(command, limits, zone_extension_bytes, extents.data.1)
    }

    fn check_metadata(&self, request: &Request) -> Result<(), Status> {
        // The driver's number of bytes has 32 bits.
        if u32::try_from(request.metadata.len()).is_err() {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let per_block = usize::from(self.device.limits.metadata_bytes);
        let moves = check::moves_blocks(request.command.opcode);
        let expected = if moves { request.command.block_count() as usize * per_block } else { 0 };
        match request.metadata.len() {
            len if len >= expected => Ok(()),
            // The controller adds nothing to a Compare, and would look for the metadata at address 0.
            0 if request.command.opcode == opcode::COMPARE => Err(Status::INVALID_FIELD.dnr()),
            0 if self.device.facts.protection.is_some() => Ok(()),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// The command was not sent. It counts as in flight.
    #[cold]
    fn refuse(&self, request: Box<Request>, status: Status) {
        self.in_flight.leave();
        request.finish_pair(status);
    }

    /// Gives the command to the kernel. It counts as in flight.
    #[inline]
    fn start(&self, request: Box<Request>, extents: &Extents) {
        match &request.data {
            Data::Sources(_) => return self.start_copy(request),
            Data::Vectors(vectors) => {
                let entry = self.vectors_entry(&request, extents, vectors.count());
                return self.hand_over(&self.carrier, request, entry);
            }
            _ => {}
        }
        let fixed = self.carrier.fixed_index(&request.data);
        let sink = self.me.upgrade().expect("the queue lives while it is called");
        let token = Box::into_raw(request);
        // SAFETY: as in `hand_over`; it is looked at before it can have been completed, by nobody else.
        unsafe {
            let request = &*token;
            let fill = |entry: &mut BigEntry| self.fill(entry, request, extents, fixed);
            if let Err(sink) = self.carrier.place(sink, token as u64, fill) {
                let entry = self.io_entry(request, extents);
                self.carrier.submit(entry, sink, token as u64);
            }
        }
    }

    /// The entry of the ring for an I/O command: by the registered file, and the registered buffer, where there are such.
    #[inline(always)]
    fn fill(&self, entry: &mut BigEntry, request: &Request, extents: &Extents, fixed: Option<u16>) {
        let limits = &self.device.limits;
        let command = entry.set_nvme_command(self.file, NvmeOp::Io, fixed);
        self.pass(command, request, extents, &request.command);
        command.nsid = self.device.nsid;
        if !limits.passthrough.io || limits.metadata_bytes != 0 {
            self.adapt(command, extents);
        }
    }

    /// The same, to be put into its place.
    #[inline(never)]
    pub(super) fn io_entry(&self, request: &Request, extents: &Extents) -> BigEntry {
        let fixed = self.carrier.fixed_index(&request.data);
        let mut entry = entry::big_nop(None);
        self.fill(&mut entry, request, extents, fixed);
        entry
    }

    /// The same for data in pieces: where data begins is their list, and how long it is how many there are.
    #[cold]
    pub(super) fn vectors_entry(
        &self,
        request: &Request,
        extents: &Extents,
        count: u32,
    ) -> BigEntry {
        let mut command = self.passed(request, extents, &request.command);
        command.nsid = self.device.nsid;
        command.data_len = count;
        let mut entry = entry::nvme_command(self.file, &command, NvmeOp::IoVec, None);
        self.adapt(entry.command_mut(), extents);
        entry
    }

    /// Clears what is not to reach the device, and adds what it wants to be told besides.
    fn adapt(&self, command: &mut NvmeUringCmd, extents: &Extents) {
        let limits = &self.device.limits;
        if !limits.passthrough.io {
            words::mask(command);
        }
        if limits.metadata_bytes != 0
            && extents.metadata.1 == 0
            && let Some(protection) = self.device.facts.protection
        {
            protection.add(command);
        }
    }

    /// Has the device copy within the namespace.
    fn start_copy(&self, mut request: Box<Request>) {
        let Data::Sources(sources) = &request.data else { unreachable!("that is what it has") };
        let device = &self.device;
        let own = Own { nqn: device.facts.nqn.as_ref(), nsid: device.nsid };
        let mut lists = self.lists.borrow_mut();
        let number = lists.take();
        let list = lists.list(number);
        match copy::lay_out(&request.command, sources, &own, &device.limits.copy, list) {
            Ok((command, bytes)) => {
                let mut command = self.passed(&request, &Extents::of(&request), &command);
                (command.addr, command.data_len) = (list.as_ptr() as u64, bytes as u32);
                drop(lists);
                request.scratch[LIST] = number as u64 + 1;
                let entry = entry::nvme_command(self.file, &command, NvmeOp::Io, None);
                self.hand_over(&self.carrier, request, entry);
            }
            Err(status) => {
                lists.give_back(number);
                drop(lists);
                self.in_flight.leave();
                request.finish(status);
            }
        }
    }

    /// A Copy has ended, in whatever way: it is told of when nobody has in a cache what was there before.
    #[cold]
    fn copied(&self, request: Box<Request>, result: i32) {
        self.lists.borrow_mut().give_back(request.scratch[LIST] as usize - 1);
        let Data::Sources(sources) = &request.data else { unreachable!("that is what it has") };
        if !self.device.is_cached() {
            return self.ended(request, result);
        }
        let (slba, blocks) = (request.command.slba(), sources.blocks());
        let device = Arc::clone(&self.device);
        let queue = self.me.upgrade().expect("the queue lives while it is called");
        let (sink, token) = (Rc::new(Dropped { queue, result }), Box::into_raw(request) as u64);
        let work = move || {
            device.drop_cached(slba, blocks);
            0
        };
        self.reactor.blocking(Box::new(work), sink, token);
    }

    /// A command of which nothing is left to be done has succeeded, or has not.
    fn ended(&self, mut request: Box<Request>, result: i32) {
        if result == 0 {
            request.status = Status::SUCCESS;
            return request.complete();
        }
        self.failed(request, result);
    }

    /// The command as the kernel wants it, with the places of the request's data.
    fn passed(&self, request: &Request, extents: &Extents, command: &Command) -> NvmeUringCmd {
        let mut passed = NvmeUringCmd::default();
        self.pass(&mut passed, request, extents, command);
        passed
    }

    #[inline(always)]
    fn pass(&self, to: &mut NvmeUringCmd, request: &Request, extents: &Extents, command: &Command) {
        let command: &[u8; NvmeUringCmd::SHARED] = zerocopy::transmute_ref!(command);
        to.copy_from(command);
        (to.flags, to.rsvd1) = (0, 0);
        (to.metadata, to.addr) = (extents.metadata.0, extents.data.0);
        (to.metadata_len, to.data_len) = (extents.metadata.1 as u32, extents.data.1 as u32);
        to.timeout_ms = match request.timeout_ms {
            0 => self.device.options.timeout_ms,
            timeout_ms => timeout_ms,
        };
    }

    #[inline]
    fn hand_over(&self, carrier: &Carrier, request: Box<Request>, entry: BigEntry) {
        let sink = self.me.upgrade().expect("the queue lives while it is called");
        let token = Box::into_raw(request) as u64;
        // SAFETY: the entry names memory of the request's data and metadata, as long as they say; the
        // request stays in its box until `complete_command` takes it back. What the device moves was
        // checked against that, as far as it is known.
        unsafe { carrier.submit(entry, sink, token) };
    }

    /// A command did not succeed: it is tried again, or given back.
    #[cold]
    pub(super) fn failed(&self, mut request: Box<Request>, result: i32) {
        let admin = request.scratch[TRIES] & ADMIN != 0;
        request.status = match result {
            1.. => of_device(Status(result as u16)),
            _ => {
                // One look for everything: there may be a path again at any time.
                let now = self.circumstances(&request);
                if result == -libc::EINVAL
                    && let Some(doubts) = self.doubts(&request, now)
                {
                    let pause = PAUSE * (1 << ((doubts & 0xff) - 1));
                    request.scratch[DOUBTS] = doubts;
                    return self.again(request, pause, pause);
                }
                if admin && is_unsent(-result) && self.device.place.is_head() {
                    // The controller was removed; another may do, or the same one anew.
                    self.leave_controller();
                    if request.scratch[TRIES] == ADMIN {
                        request.scratch[TRIES] += 1;
                        return self.start_admin(request);
                    }
                }
                match self.of_kernel(-result, now) {
                    // Another path may do, whatever the command is.
                    _ if admin && now.is_path && is_unsent(-result) => Status::HOST_ABORTED,
                    status => status,
                }
            }
        };
        if result < 0 {
            request.os_error = -result;
            request.result = 0;
        }
        if request.timeout_ms != 0 && request.status.code() == Status::ABORT_REQUESTED {
            // By the driver, since its time was over: whoever set that does not want it tried again.
            request.status = request.status.dnr();
        }
        if admin && self.device.place.is_head() && is_of_path(request.status) {
            // Another controller may do next time.
            self.leave_controller();
        }
        let copies = std::mem::take(&mut request.scratch[LIST]) != 0;
        if copies {
            request.status = copy::refusal(request.status);
            request.result &= u64::from(u32::MAX);
        }
        // What the driver cancelled may have taken its whole time-out, and may be what breaks the
        // controller: a few times and no more.
        let cancelled = matches!(result.unsigned_abs() as i32, libc::EINTR) && result < 0
            || request.status.code() == Status::ABORT_REQUESTED;
        self.conclude(request, copies, cancelled);
    }

    /// A command has failed with its status: it is tried again if it may be, a few times where it was `cancelled`.
    #[cold]
    fn conclude(&self, mut request: Box<Request>, copies: bool, cancelled: bool) {
        let waited = Duration::from_millis(request.scratch[WAITED]);
        let again =
            self.device.options.retries && waited < RETRY_TIME && may_try_again(&request, copies);
        if !again {
            return request.complete();
        }
        let pause = pause_after(request.scratch[TRIES] & !ADMIN);
        let counts = if cancelled { RETRY_TIME / CANCELLED_MAX } else { pause };
        request.scratch[TRIES] += 1;
        self.again(request, pause, counts);
    }

    /// Tries a command again after `pause`, of which so much counts.
    fn again(&self, mut request: Box<Request>, pause: Duration, counts: Duration) {
        request.scratch[LIST] = 0;
        request.scratch[WAITED] += counts.as_millis() as u64;
        self.device.retried.fetch_add(1, Ordering::Relaxed);
        self.retries.later(&self.reactor, pause, request);
    }

    /// The new doubts about a command that the kernel finds invalid, if it may have come when there was no path for it: the
    /// head of several controllers' ways says the same then (Linux 7.3, `nvme_ns_head_chr_uring_cmd`), and by now there
    /// may be one again. It was not carried out in either case, so that whatever it is may be sent again.
    fn doubts(&self, request: &Request, now: Circumstances) -> Option<u64> {
        let place = &self.device.place;
        let is_admin = request.scratch[TRIES] & ADMIN != 0;
        let waited = Duration::from_millis(request.scratch[WAITED]);
        // Where there is no path now there was none, and such commands are tried again anyhow.
        if is_admin || now.gone || now.no_path || !place.is_head() || waited >= RETRY_TIME {
            return None;
        }
        let resets: u64 = place.resets().iter().filter_map(|(_, count)| *count).sum();
        let (before, count) = (request.scratch[DOUBTS] >> 8, request.scratch[DOUBTS] & 0xff);
        // Another reset since the last time: no wonder.
        let count = if before == resets { count } else { 0 };
        (count < DOUBTS_MAX).then_some(resets << 8 | (count + 1))
    }

    /// What an error of the kernel means depends on.
    fn circumstances(&self, request: &Request) -> Circumstances {
        let place = &self.device.place;
        // Looks into /sys, which does not wait for devices.
        let gone = !place.exists();
        Circumstances {
            gone,
            no_path: !gone && place.is_head() && !place.has_path(),
            is_path: !self.device.options.retries,
            // The volume's own is for all commands, and a reset cancels those as well that were in time.
            has_timeout: request.timeout_ms != 0,
            is_polled_fixed: self.device.polled()
                && self.carrier.fixed_index(&request.data).is_some(),
        }
    }

    /// The status for an error of the kernel, which is logged.
    fn of_kernel(&self, errno: i32, now: Circumstances) -> Status {
        if errno != libc::ECANCELED {
            self.device.log(errno, now);
        }
        if now.gone && !self.gone.replace(true) {
            let watcher = self.watcher.borrow().as_ref().and_then(Weak::upgrade);
            if let Some(watcher) = watcher {
                watcher.access_changed();
            }
        }
        status::of_errno(errno, now)
    }
}

/// A Copy with this result, while caches are told of it.
struct Dropped {
    queue: Rc<DeviceQueue>,
    result: i32,
}

impl Complete for Dropped {
    fn complete(&self, token: u64, done: i32, _flags: u32) {
        // SAFETY: `copied` made the token from a box and gave it away; it is told once.
        let request = unsafe { Box::from_raw(token as *mut Request) };
        // No thread was to be had, or the reactor is stopping: it is done here then.
        if done < 0
            && let Data::Sources(sources) = &request.data
        {
            self.queue.device.drop_cached(request.command.slba(), sources.blocks());
        }
        self.queue.ended(request, self.result);
    }
}

/// Commands that wait until they are tried again. They are forgotten with it, as the contract says of
/// those that wait here when their queue goes.
struct Retries {
    queue: Weak<DeviceQueue>,
    /// By the timer's token; those that are free are empty.
    waiting: RefCell<Vec<Option<Box<Request>>>>,
}

impl Retries {
    fn later(self: &Rc<Self>, reactor: &Reactor, pause: Duration, request: Box<Request>) {
        let mut waiting = self.waiting.borrow_mut();
        let place = waiting.iter().position(Option::is_none).unwrap_or_else(|| {
            waiting.push(None);
            waiting.len() - 1
        });
        waiting[place] = Some(request);
        let at = Instant::now() + pause;
        reactor.timer(at, Rc::clone(self) as Rc<dyn Complete>, place as u64);
    }
}

impl Complete for Retries {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        let request = self.waiting.borrow_mut()[token as usize].take();
        let (Some(mut request), Some(queue)) = (request, self.queue.upgrade()) else { return };
        (request.status, request.result, request.os_error) = (Status::SUCCESS, 0, 0);
        if request.scratch[TRIES] & ADMIN != 0 {
            return queue.start_admin(request);
        }
        queue.in_flight.enter();
        match queue.device.shape.check() {
            Ok(()) => {
                let extents = Extents::of(&request);
                queue.start(request, &extents);
            }
            Err(status) => {
                queue.in_flight.leave();
                request.finish(status);
            }
        }
    }
}

/// The pause before a command is tried again that has been `tries` times before.
fn pause_after(tries: u64) -> Duration {
    PAUSE.saturating_mul(1 << tries.min(10)).min(PAUSE_MAX)
}

/// Whether a command that came back may be sent again. One of our own copies may wherever a write may: its
/// sources do not overlap where it writes.
fn may_try_again(request: &Request, copies: bool) -> bool {
    if request.scratch[TRIES] & ADMIN != 0 {
        return may_retry_admin(&request.command, request.status) != Retry::No;
    }
    let write = Command { opcode: opcode::WRITE, ..Command::default() };
    let command = if copies { &write } else { &request.command };
    may_retry(command, false, request.status) != Retry::No
}

/// A status of the device, or of the driver in its place: that has commands Aborted By Host which
/// may have been carried out, where our own says that they surely were not.
fn of_device(status: Status) -> Status {
    match status.code() {
        Status::HOST_ABORTED => Status(Status::HOST_PATHING_ERROR.0 | status.0 & !0x7ff),
        _ => status,
    }
}

/// Whether an admin command that ended so was not sent: its controller has been removed.
fn is_unsent(errno: i32) -> bool {
    matches!(errno, libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN)
}

/// Whether the way to a controller is to blame, or the controller.
fn is_of_path(status: Status) -> bool {
    matches!(status.code(), Status::NAMESPACE_NOT_READY | Status::HOST_PATHING_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::Command;
    use nvme::opcode::admin as admin_opcode;

    #[test]
    fn admin_commands_are_tried_again_by_what_they_are_and_not_as_io_of_the_same_number() {
        let tried = |opcode: u8, cdw10: u32, scratch: [u64; 4]| {
            let mut request = Request::new();
            request.command = Command { opcode, cdw10: cdw10.into(), ..Command::default() };
            (request.scratch, request.status) = (scratch, Status::HOST_PATHING_ERROR);
            may_try_again(&request, false)
        };
        const KEEPS: u32 = 1 << 15;
        let second = [OF_ADMIN[0] + 1, 10, 0, 0];
        for scratch in [OF_ADMIN, second] {
            assert!(tried(admin_opcode::GET_LOG_PAGE, KEEPS, scratch));
            assert!(!tried(admin_opcode::GET_LOG_PAGE, 0, scratch));
            assert!(tried(admin_opcode::IDENTIFY, 0, scratch));
            assert!(!tried(opcode::WRITE, 0, scratch), "Create I/O Submission Queue");
        }
        assert!(tried(opcode::READ, 0, [0; 4]) && tried(opcode::WRITE, 0, [1, 0, 0, 0]));
        assert!(!tried(admin_opcode::IDENTIFY, 0, [0; 4]), "not an I/O command");
        let pauses = [0, 1, 2, 30].map(pause_after);
        assert_eq!(pauses.map(|pause| pause.as_millis()), [10, 20, 40, 1000]);
    }

    #[test]
    fn what_the_driver_cancelled_may_have_been_carried_out() {
        let status = Status(Status::HOST_ABORTED.0 | Status::MORE);
        assert_eq!(of_device(status).code(), Status::HOST_PATHING_ERROR);
        let append = Command { opcode: opcode::ZONE_APPEND, ..Command::default() };
        assert_eq!(may_retry(&append, false, of_device(status)), Retry::No);
        assert_eq!(of_device(Status::COMPARE_FAILURE.dnr()), Status::COMPARE_FAILURE.dnr());
    }
}
