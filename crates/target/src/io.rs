//! I/O commands: from the capsule to the namespace and back to a response.

use crate::connection::{Connection, Inner, KEPT_BYTES_MAX, Role};
use crate::copy::is_copy;
use crate::exchange::{Kept, NONE, Stage};
use crate::view::NamespaceView;
use namespace::counters::Kind;
use namespace::failures::Failed;
use namespace::output::Payload;
use namespace::{Data, Request, Transient};
use nvme::dataset::Range;
use nvme::{Command, Completion, Fuse, Status, opcode};
use nvme_tcp::Digest;
use nvme_tcp::controller::{DATA_HEADER_BYTES_MAX, DataHeader, RESPONSE_BYTES_MAX};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use subsystem::io::{Direction, Placement, Transfer};
use subsystem::not_active;

impl Connection {
    /// An I/O command has come in `slot`, with `capsule` as its in-capsule data.
    #[inline]
    pub(crate) fn io(&self, inner: &mut Inner, slot: u32, command: Command, capsule: &[u8]) {
        let (view, transfer, placement) = match self.admit(inner, &command, capsule) {
            Ok(admitted) => admitted,
            Err(status) => {
                self.io_refused(inner, slot, &command, status);
                return;
            }
        };
        let exchange = inner.exchanges.slot(slot);
        exchange.direction = transfer.direction;
        exchange.slba = command.slba();
        exchange.view = Some(view.clone());
        let capsule = match placement {
            Placement::InCapsule { offset, bytes } => {
                exchange.bytes = transfer.bytes;
                &capsule[offset as usize..][..bytes.min(transfer.bytes) as usize]
            }
            Placement::Transport { bytes } => {
                exchange.bytes = bytes;
                &[]
            }
            Placement::None => &[],
        };
        let mut request = self.core.request();
        request.command = command;
        if command.fuse() != Fuse::None {
            self.io_fused(inner, slot, request, capsule);
            return;
        }
        if inner.fused.is_some() {
            self.fuse_broken(inner);
        }
        let limits = view.limits.get();
        match transfer.direction {
            Direction::None => self.io_submit(inner, slot, request),
            Direction::ToHost
                if limits.lends_reads
                    && command.opcode == opcode::io::READ
                    && !inner.machine.data_digest() =>
            {
                self.io_submit(inner, slot, request);
            }
            Direction::ToHost => self.io_with_buffer(inner, slot, request, &[]),
            Direction::ToController if is_copy(&command, &limits) => {
                self.io_copy(inner, slot, request, capsule);
            }
            Direction::ToController
                if limits.immediate && !capsule.is_empty() && !self.core.is_delayed(inner.port) =>
            {
                // SAFETY: an immediate namespace is done with the bytes when submit returns,
                // and the receive buffer they lie in is not touched before that.
                request.data = Data::Transient(unsafe { Transient::new(capsule) });
                self.io_submit(inner, slot, request);
            }
            Direction::ToController => self.io_with_buffer(inner, slot, request, capsule),
        }
    }

    /// Checks a command and finds its namespace.
    #[inline]
    fn admit(
        &self,
        inner: &mut Inner,
        command: &Command,
        capsule: &[u8],
    ) -> Result<(Rc<NamespaceView>, Transfer, Placement), Status> {
        let Role::Io(queue) = &mut inner.role else { unreachable!("I/O comes on I/O queues") };
        let nsid = command.nsid.get();
        let generation = queue.view.generation.get();
        let used_last = match &queue.cached {
            Some((at, cached, view)) if *at == generation && *cached == nsid => view.upgrade(),
            _ => None,
        };
        let view = match used_last {
            Some(view) => view,
            None => {
                let view = queue.view.namespace(nsid).ok_or(not_active(nsid))?;
                queue.cached = Some((generation, nsid, Rc::downgrade(&view)));
                view
            }
        };
        if let Some(status) = queue.view.ana(inner.port, view.ana_group).io_status() {
            return Err(status);
        }
        let transfer = subsystem::io::check(command, &view.limits.get())?;
        let placement = subsystem::io::locate(command, transfer, capsule.len() as u32)?;
        Ok((view, transfer, placement))
    }

    /// A command that may not run is answered; its fused partner goes with it.
    pub(crate) fn io_refused(
        &self,
        inner: &mut Inner,
        slot: u32,
        command: &Command,
        status: Status,
    ) {
        match command.fuse() {
            Fuse::Second => self.drop_first(inner, Status::ABORTED_FAILED_FUSED),
            fuse => {
                self.fuse_broken(inner);
                if fuse == Fuse::First {
                    // The second is to learn that it came in vain.
                    inner.fused = Some(NONE);
                }
            }
        }
        self.respond(inner, slot, status, 0, Payload::None);
    }

    /// The first of a fused pair was not followed by its second.
    fn fuse_broken(&self, inner: &mut Inner) {
        self.drop_first(inner, Status::ABORTED_MISSING_FUSED);
    }

    /// Answers the first of a fused pair, unless it was answered when it failed.
    fn drop_first(&self, inner: &mut Inner, status: Status) {
        if let Some(first) = inner.fused.take().filter(|first| *first != NONE) {
            self.drop_exchange(inner, first, status);
        }
    }

    /// Answers a command that has not been submitted, and cancels what it waits for.
    fn drop_exchange(&self, inner: &mut Inner, slot: u32, status: Status) {
        inner.waiting.retain(|waiting| *waiting != slot);
        let exchange = inner.exchanges.slot(slot);
        exchange.partner = NONE;
        exchange.kept = None;
        if let Some(request) = exchange.request.take() {
            self.core.recycle(request);
            inner.exchanges.give_back(slot);
        }
        let exchange = inner.exchanges.slot(slot);
        if exchange.stage == Stage::Receiving {
            // The host may still send the data: the answer waits until it has.
            inner.machine.cancel(slot as u16);
            exchange.stage = Stage::Cancelled;
            exchange.status = status;
            exchange.view = None;
        } else {
            self.respond(inner, slot, status, 0, Payload::None);
        }
    }

    /// An Abort: cancels command `cid` if nothing of it was started. Whether it was. A Copy that was
    /// started is stopped.
    pub(crate) fn abort(&self, cid: u16) -> bool {
        let aborted = {
            let mut inner = self.inner.borrow_mut();
            let inner = &mut *inner;
            let slot = inner.exchanges.find_unstarted(cid);
            if let Some(slot) = slot {
                let partner = inner.exchanges.slot(slot).partner;
                if inner.fused == Some(slot) {
                    inner.fused = Some(NONE);
                }
                self.drop_exchange(inner, slot, Status::ABORT_REQUESTED);
                if partner != NONE {
                    self.drop_exchange(inner, partner, Status::ABORTED_FAILED_FUSED);
                }
            } else {
                // It ends by itself, soon.
                inner.exchanges.stop_copy(cid);
            }
            slot.is_some()
        };
        self.defer();
        aborted
    }

    /// A namespace was removed: nothing more is begun on it.
    pub(crate) fn forget_namespace(&self, view: &Rc<NamespaceView>) {
        if self.closed.get() {
            return;
        }
        {
            let mut inner = self.inner.borrow_mut();
            let inner = &mut *inner;
            while let Some(slot) = inner.exchanges.find_unstarted_on(view) {
                if inner.fused == Some(slot) {
                    inner.fused = Some(NONE);
                }
                // It is there no more.
                self.drop_exchange(inner, slot, Status::INVALID_FIELD.dnr());
            }
        }
        self.defer();
    }

    /// One half of a fused Compare-and-Write.
    fn io_fused(&self, inner: &mut Inner, slot: u32, request: Box<Request>, capsule: &[u8]) {
        let command = request.command;
        match (command.fuse(), inner.fused) {
            (Fuse::First, _) => {
                self.fuse_broken(inner);
                inner.exchanges.slot(slot).command = command;
                inner.fused = Some(slot);
            }
            (_, Some(first)) if first != NONE => {
                inner.fused = None;
                let compare = inner.exchanges.slot(first).command;
                if let Err(status) = subsystem::io::check_fused(&compare, &command) {
                    self.core.recycle(request);
                    self.drop_exchange(inner, first, status);
                    self.respond(inner, slot, status, 0, Payload::None);
                    return;
                }
                inner.exchanges.slot(first).partner = slot;
                inner.exchanges.slot(slot).partner = first;
            }
            (_, failed) => {
                inner.fused = None;
                self.core.recycle(request);
                let status = match failed {
                    Some(_) => Status::ABORTED_FAILED_FUSED,
                    None => Status::ABORTED_MISSING_FUSED,
                };
                self.respond(inner, slot, status, 0, Payload::None);
                return;
            }
        }
        self.io_with_buffer(inner, slot, request, capsule);
    }

    /// Gives `request` a buffer, and gets or copies the host's data into it.
    pub(crate) fn io_with_buffer(
        &self,
        inner: &mut Inner,
        slot: u32,
        mut request: Box<Request>,
        capsule: &[u8],
    ) {
        let bytes = inner.exchanges.slot(slot).bytes as usize;
        let allowed = match request.command.fuse() {
            Fuse::Second => {
                let first = inner.exchanges.slot(slot).partner;
                inner.exchanges.slot(first).stage != Stage::Waiting
            }
            _ => self.may_take(inner, bytes),
        };
        let buffer = (allowed && self.is_next(inner))
            .then(|| self.core.reactor.buffers().allocate(bytes))
            .flatten();
        let Some(mut buffer) = buffer else {
            if !capsule.is_empty() && inner.exchanges.kept_bytes() >= KEPT_BYTES_MAX {
                self.core.recycle(request);
                self.data_failed(inner, slot, Status::COMMAND_INTERRUPTED);
                return;
            }
            let exchange = inner.exchanges.slot(slot);
            exchange.stage = Stage::Waiting;
            exchange.request = Some(request);
            if !capsule.is_empty() {
                let command = Command::default();
                exchange.kept = Some(Box::new(Kept { command, data: capsule[..bytes].to_vec() }));
            }
            inner.waiting.push_back(slot);
            if allowed {
                self.wait_for_buffers(inner);
            }
            return;
        };
        inner.exchanges.give(slot, buffer.capacity());
        let exchange = inner.exchanges.slot(slot);
        if exchange.direction == Direction::ToHost {
            if request.command.opcode != opcode::io::READ {
                // A device need not fill it: what others have left there is none of this host's.
                buffer.as_mut_slice().fill(0);
            }
            request.data = Data::Buffer(buffer);
            self.io_submit(inner, slot, request);
        } else if capsule.is_empty() {
            request.data = Data::Buffer(buffer);
            exchange.request = Some(request);
            self.ask_for_data(inner, slot);
        } else {
            buffer.as_mut_slice().copy_from_slice(&capsule[..bytes]);
            request.data = Data::Buffer(buffer);
            exchange.request = Some(request);
            self.io_data_complete(inner, slot);
        }
    }

    /// Whether this connection's share of the pool leaves room for `bytes` more: it never holds
    /// more than is free, so that however many peers sit on what they have, something is left for
    /// the next; and who holds something takes no more while others wait for any. The first of
    /// its commands may always try.
    ///
    /// What this refuses is tried again when another command of the connection has ended. The second
    /// of a fused pair does not ask: it may take memory once its first has some, which cannot end before
    /// it, and not earlier, or the first might wait for it.
    #[inline]
    pub(crate) fn may_take(&self, inner: &Inner, bytes: usize) -> bool {
        let held = inner.exchanges.pool_bytes();
        let others_wait = || self.core.buffer_waiters.get() != 0;
        held == 0 || held + bytes <= self.core.reactor.buffers().available() && !others_wait()
    }

    /// Whether nobody stands in line before a connection that holds nothing: what its last command has given back is not its
    /// own to take at once, or many busy ones would leave nothing to those who wait.
    fn is_next(&self, inner: &Inner) -> bool {
        inner.is_served || inner.exchanges.pool_bytes() != 0 || self.core.buffer_waiters.get() == 0
    }

    /// Whether commands wait for this connection's share, and not for the pool.
    pub(crate) fn may_retry(&self, inner: &Inner) -> bool {
        !inner.waiting.is_empty() && !inner.waits_for_buffers
    }

    /// Commands that waited for this connection's share get another try. Returns whether any was
    /// let through.
    pub(crate) fn retry_share(&self, inner: &mut Inner) -> bool {
        if !self.may_retry(inner) {
            return false;
        }
        let before = inner.waiting.len();
        self.retry_waiting(inner);
        inner.waiting.len() < before
    }

    /// Memory of the pool came free: commands that wait get another try, in order.
    pub(crate) fn retry_waiting(&self, inner: &mut Inner) {
        for _ in 0..inner.waiting.len() {
            let Some(slot) = inner.waiting.pop_front() else { return };
            let exchange = inner.exchanges.slot(slot);
            exchange.stage = Stage::Running;
            let request = exchange.request.take().expect("a waiting command has its request");
            let kept = exchange.kept.take();
            let capsule = kept.as_ref().map_or(&[][..], |kept| &kept.data);
            self.io_with_buffer(inner, slot, request, capsule);
            if inner.exchanges.slot(slot).stage == Stage::Waiting {
                // It went to the back; the order is restored.
                inner.waiting.rotate_right(1);
                return;
            }
            // The rest in another turn, which looks at the clock.
            if self.core.may_have_paused() {
                return;
            }
        }
    }

    /// The data of an I/O command is complete in its buffer.
    pub(crate) fn io_data_complete(&self, inner: &mut Inner, slot: u32) {
        let exchange = inner.exchanges.slot(slot);
        let request = exchange.request.as_mut().expect("data went into the request's buffer");
        let view = exchange.view.as_ref().expect("an admitted command has its namespace");
        if is_copy(&request.command, &view.limits.get()) {
            self.copy_list_complete(inner, slot);
            return;
        }
        let fuse = request.command.fuse();
        if request.command.opcode == opcode::io::DATASET_MANAGEMENT
            && let Data::Buffer(buffer) = &mut request.data
        {
            // Linux sends room for all ranges.
            buffer.truncate(request.command.range_count() as usize * size_of::<Range>());
        }
        if fuse == Fuse::None {
            let request = exchange.request.take().expect("just seen");
            self.io_submit(inner, slot, request);
            return;
        }
        exchange.stage = Stage::Paired;
        let partner = exchange.partner;
        if partner == NONE || inner.exchanges.slot(partner).stage != Stage::Paired {
            return;
        }
        let (first, second) = if fuse == Fuse::First { (slot, partner) } else { (partner, slot) };
        let exchange = inner.exchanges.slot(second);
        exchange.stage = Stage::Running;
        let write = exchange.request.take().expect("a paired command has its request");
        let exchange = inner.exchanges.slot(first);
        let mut compare = exchange.request.take().expect("a paired command has its request");
        compare.fused = Some(write);
        self.io_submit(inner, first, compare);
    }

    /// Data of a command came damaged.
    pub(crate) fn data_failed(&self, inner: &mut Inner, slot: u32, status: Status) {
        let exchange = inner.exchanges.slot(slot);
        exchange.kept = None;
        exchange.stage = Stage::Running;
        let partner = std::mem::replace(&mut exchange.partner, NONE);
        if let Some(request) = exchange.request.take() {
            self.core.recycle(request);
        }
        if inner.fused == Some(slot) {
            inner.fused = Some(NONE);
        }
        self.respond(inner, slot, status, 0, Payload::None);
        if partner != NONE {
            self.drop_exchange(inner, partner, Status::ABORTED_FAILED_FUSED);
        }
    }

    #[inline]
    pub(crate) fn io_submit(&self, inner: &mut Inner, slot: u32, request: Box<Request>) {
        let exchange = inner.exchanges.slot(slot);
        exchange.stage = Stage::Running;
        let view = exchange.view.as_ref().expect("an admitted command has its namespace");
        let immediate = view.limits.get().immediate;
        exchange.begun = (!immediate).then(|| self.core.reactor.now());
        match view.queue(&self.core, inner.port) {
            Ok(queue) => self.start_request(&queue, slot, request),
            Err(error) => {
                self.core.journal.no_queue(&*view.namespace, &error);
                self.has_no_queue(inner, slot, request);
            }
        }
    }

    /// Answers a command that cannot be given to its namespace.
    #[cold]
    fn has_no_queue(&self, inner: &mut Inner, slot: u32, mut request: Box<Request>) {
        let (second, partner) = (request.fused.take(), inner.exchanges.slot(slot).partner);
        let failed = Status::NAMESPACE_NOT_READY;
        self.count(inner, slot, request.command.opcode, failed, Duration::ZERO);
        self.note_error(inner, &request.command, failed);
        self.core.recycle(request);
        self.respond(inner, slot, failed, 0, Payload::None);
        if let Some(second) = second {
            let failed = Status::ABORTED_FAILED_FUSED;
            self.count(inner, partner, second.command.opcode, failed, Duration::ZERO);
            self.core.recycle(second);
            self.respond(inner, partner, failed, 0, Payload::None);
        }
    }

    /// A request came back from its namespace.
    #[inline]
    pub(crate) fn finished(&self, inner: &mut Inner, slot: u32, mut request: Box<Request>) {
        let status = request.status;
        if status.code() == Status::COMMAND_INTERRUPTED
            && request.command.opcode == opcode::io::READ
            && matches!(request.data, Data::None)
            && inner.exchanges.slot(slot).bytes != 0
            && !inner.closing
        {
            // It was to lend its memory, and keeps the blocks in several places: it gets some to bring them together in.
            // Whoever found that out may have had the address of a part.
            request.command.set_slba(inner.exchanges.slot(slot).slba);
            (request.status, request.result) = (Status::SUCCESS, 0);
            return self.io_with_buffer(inner, slot, request, &[]);
        }
        let status = match request.command.opcode {
            opcode::io::FLUSH => self.flushed(inner, slot, status),
            _ => status,
        };
        let begun = inner.exchanges.slot(slot).begun;
        let took = begun.map_or(Duration::ZERO, |begun| {
            self.core.reactor.now().saturating_duration_since(begun)
        });
        self.count(inner, slot, request.command.opcode, status, took);
        if !status.is_success() {
            self.failed(inner, slot, &mut request, status);
            self.note_error(inner, &request.command, status);
        }
        if let Some(mut second) = request.fused.take() {
            let partner = inner.exchanges.slot(slot).partner;
            let failed = second.status;
            if !failed.is_success() {
                self.failed(inner, partner, &mut second, failed);
            }
            self.core.recycle(second);
            self.core.recycle(request);
            self.respond(inner, slot, status, 0, Payload::None);
            self.count(inner, partner, opcode::io::WRITE, failed, took);
            self.respond(inner, partner, failed, 0, Payload::None);
            return;
        }
        let data = match &request.data {
            // They go back to the core's with the request.
            Data::Sources(_) => Data::None,
            _ => std::mem::take(&mut request.data),
        };
        let (result, opcode) = (request.result, request.command.opcode);
        self.core.recycle(request);
        if let Data::Buffer(buffer) = &data
            && opcode == opcode::io::READ
        {
            inner.exchanges.brings(slot, buffer.capacity());
        }
        self.respond(inner, slot, status, result, Payload::Data(data));
    }

    /// The namespace has ended a command with an error, of which people are told if it is the volume's.
    #[cold]
    fn failed(&self, inner: &mut Inner, slot: u32, request: &mut Request, status: Status) {
        let Role::Io(_) = inner.role else { return };
        let exchange = inner.exchanges.slot(slot);
        // Whoever failed it may have had the address of a part.
        request.command.set_slba(exchange.slba);
        let Some(view) = &exchange.view else { return };
        let mut failed = Failed::of(&request.command, status, request.os_error);
        if failed.opcode == opcode::io::COPY && exchange.copy_blocks != 0 {
            failed.blocks = Some((exchange.slba, exchange.copy_blocks.into()));
        }
        let is_read_only = view.limits.get().read_only;
        view.failures.note(&self.core.reactor, failed, is_read_only, || view.namespace.uri());
    }

    /// What becomes of a Flush that has ended with `status`.
    #[cold]
    fn flushed(&self, inner: &mut Inner, slot: u32, status: Status) -> Status {
        let view = inner.exchanges.slot(slot).view.clone();
        match (&inner.role, view) {
            (Role::Io(queue), Some(view)) => {
                queue.link.shared.host.flushed(&view.namespace, status)
            }
            _ => status,
        }
    }

    /// Failures of the volume go into the error log (a Compare that differs is none).
    #[cold]
    pub(crate) fn note_error(&self, inner: &Inner, command: &Command, status: Status) {
        if status.code() == Status::COMPARE_FAILURE {
            return;
        }
        let (controller, queue_id) = match &inner.role {
            Role::Io(queue) => (queue.link.controller, queue.link.queue_id),
            Role::Admin(controller) => (*controller, 0),
            Role::Fresh | Role::Unproven(_) => return,
        };
        // One at a time: failing commands must not fill the control core's mailbox.
        if self.noting_error.swap(true, Ordering::AcqRel) {
            return;
        }
        let (command, noting) = (*command, self.noting_error.clone());
        self.core.post_control(move |control| {
            noting.store(false, Ordering::Release);
            control.note_error(controller, queue_id, &command, status);
        });
    }

    /// Counts a command that the namespace has ended after so long.
    #[inline]
    pub(crate) fn count(
        &self,
        inner: &mut Inner,
        slot: u32,
        opcode: u8,
        status: Status,
        took: Duration,
    ) {
        let exchange = inner.exchanges.slot(slot);
        let Some(view) = &exchange.view else { return };
        if !status.is_success() {
            return view.counters.failed(status);
        }
        let bytes = u64::from(exchange.bytes);
        let (kind, bytes) = match opcode {
            opcode::io::READ | opcode::io::COMPARE => (Kind::Read, bytes),
            opcode::io::WRITE => (Kind::Write, bytes),
            // Not one that was passed, of which nothing is known.
            opcode::io::COPY if exchange.copy_blocks != 0 => {
                (Kind::Copy, u64::from(exchange.copy_blocks) << view.limits.get().block_shift)
            }
            _ => (Kind::Other, 0),
        };
        view.counters.succeeded(kind, bytes, took);
    }

    /// Queues the response of the command in `slot`: its data first, if it succeeded and sends any. The namespace is let go
    /// of, since nobody knows when the host reads what is sent.
    #[inline]
    pub(crate) fn respond(
        &self,
        inner: &mut Inner,
        slot: u32,
        status: Status,
        result: u64,
        mut payload: Payload,
    ) {
        if self.is_silent(inner) {
            return self.end_silently(inner, slot);
        }
        let sq_head = inner.sq_head;
        let flow_control = match &inner.role {
            Role::Io(queue) => queue.link.flow_control,
            Role::Unproven(link) => link.flow_control,
            _ => true,
        };
        let lent_block = self.lent_block(inner, slot, &payload);
        let exchange = inner.exchanges.slot(slot);
        exchange.stage = Stage::Sending;
        exchange.view = None;
        let cid = exchange.cid;
        let (pointer, available) = match &payload {
            Payload::Data(data) if exchange.direction == Direction::ToHost => {
                (data.as_ptr(), data.len())
            }
            Payload::Bytes(bytes) => (bytes.as_ptr(), bytes.len()),
            _ => (std::ptr::null(), 0),
        };
        let len = available.min(exchange.bytes as usize);
        let send = status.is_success() && len > 0;
        if !send {
            payload = Payload::None;
        }
        let mut spare = self.core.spare.borrow_mut();
        let machine = &inner.machine;
        let output = inner.output.get_or_insert_with(|| spare.take());
        let mut success_told = false;
        if send {
            // "SUCCESS flag: ... set only if SQ flow control is disabled" and the completion
            // carries nothing else (NVMe/TCP 1.1, section 3.3.2.3).
            success_told = !flow_control && result == 0 && status == Status::SUCCESS;
            let mut header = [0; DATA_HEADER_BYTES_MAX];
            let data =
                DataHeader { cid, offset: 0, len: len as u32, last: true, success: success_told };
            let header_len = machine.data_header(data, &mut header);
            output.bytes(&header[..header_len], &mut spare);
            // SAFETY: the payload has `len` readable bytes, and is held below.
            unsafe { output.borrowed(pointer, len, lent_block, 0) };
            if machine.data_digest() {
                let mut digest = Digest::new();
                // SAFETY: the payload has `len` readable bytes; with digests on, none is lent, so
                // nobody changes them.
                digest.update(unsafe { std::slice::from_raw_parts(pointer, len) });
                output.bytes(&digest.finish(), &mut spare);
            }
        }
        if !success_told {
            let mut completion = Completion::new(cid, status, result);
            completion.sqhd = if flow_control { sq_head.into() } else { 0xffff.into() };
            let mut bytes = [0; RESPONSE_BYTES_MAX];
            let len = machine.response(&completion, &mut bytes);
            output.bytes(&bytes[..len], &mut spare);
        }
        output.hold(slot, payload);
    }

    /// Block size of memory that was lent for the response, zero if none was.
    #[inline]
    fn lent_block(&self, inner: &mut Inner, slot: u32, payload: &Payload) -> u32 {
        match (payload, &inner.exchanges.slot(slot).view) {
            (Payload::Data(Data::Lent(_)), Some(view)) => view.limits.get().block_bytes(),
            _ => 0,
        }
    }

    /// Answers a command that got no slot.
    pub(crate) fn respond_without_slot(&self, inner: &mut Inner, cid: u16, status: Status) {
        let mut completion = Completion::new(cid, status, 0);
        completion.sqhd = inner.sq_head.into();
        let mut bytes = [0; RESPONSE_BYTES_MAX];
        let len = inner.machine.response(&completion, &mut bytes);
        self.send(inner, &bytes[..len]);
    }
}
