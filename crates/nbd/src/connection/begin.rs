//! Requests: from the header to commands for the volume, and back to what is answered.

use super::{Connection, Inner, TOKEN_ALLOCATION};
use crate::exchange::{Answer, MERGES_MAX, READS_MAX, Read};
use crate::failure::{Code, Failure};
use crate::pieces::{self, Piece};
use crate::request::Request;
use crate::wire::{command, command_flag};
use namespace::failures::Failed;
use namespace::{Data, Namespace, dataset};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use std::sync::{Arc, PoisonError};

/// Namespace id of commands; a namespace does not look at it.
const NSID: u32 = 1;

/// Most bytes that one command trims or zeroes: a volume in memory does that at once, and others
/// wait; and devices have limits (WZSL and DMRSL, NVM 1.1, section 4.1.5.4), ours 8 MiB for zeroes.
pub(super) const BULK_BYTES_MAX: u32 = 8 << 20;

/// Runs of blocks that a volume is asked to tell at a time.
const RUNS_MAX: usize = crate::extents::DESCRIPTORS_MAX;

/// `Request::frames` state: the slot, and above it the number of the merge plus one, or of the read plus [`FIRST_READ`],
/// if it is one of them.
const NUMBER_SHIFT: u32 = 32;
const FIRST_READ: u64 = 1 + MERGES_MAX as u64;

/// Where the commands of merge `index` of a request come back to.
pub(super) fn merge_state(slot: u32, index: usize) -> u64 {
    (index as u64 + 1) << NUMBER_SHIFT | u64::from(slot)
}

fn read_state(slot: u32, index: usize) -> u64 {
    (index as u64 + FIRST_READ) << NUMBER_SHIFT | u64::from(slot)
}

/// FUA of Write and Write Zeroes (command dword 12, bit 30).
pub(super) fn set_fua(command: &mut Command) {
    command.cdw12 = (command.cdw12.get() | 1 << 30).into();
}

impl Connection {
    /// A request has come.
    #[inline]
    pub(super) fn begin(&self, inner: &mut Inner, mut request: Request, refusal: Option<Failure>) {
        match request.kind {
            // "There is no reply."
            command::DISC => {
                inner.closing = true;
                return;
            }
            // "Length and offset are reserved."
            command::FLUSH => (request.offset, request.length) = (0, 0),
            _ => {}
        }
        let (_, view) = inner.serving();
        let refusal = refusal.or_else(|| refuse(&request, view));
        let slot = inner.exchanges.begin(request, refusal);
        if request.kind == command::WRITE && request.length > 0 {
            self.begin_write(inner, slot);
        } else {
            self.proceed(inner, slot);
        }
    }

    /// Makes what further commands a request needs, and answers it if there are none.
    pub(super) fn proceed(&self, inner: &mut Inner, slot: u32) {
        let exchange = inner.exchanges.slot(slot);
        if exchange.is_sending || exchange.is_delayed || exchange.waits {
            return;
        }
        if exchange.failure.is_none() {
            match exchange.request.kind {
                command::READ => self.read(inner, slot),
                command::WRITE_ZEROES => self.write_zeroes(inner, slot),
                command::TRIM => self.trim(inner, slot),
                command::CACHE => self.cache(inner, slot),
                command::BLOCK_STATUS => self.ask_allocation(inner, slot),
                command::FLUSH => self.sync(inner, slot),
                _ => {}
            }
        }
        let receives = inner.incoming.as_ref().is_some_and(|incoming| incoming.slot == slot);
        let exchange = inner.exchanges.slot(slot);
        let is_over = exchange.failure.is_some() || exchange.is_covered();
        if exchange.running == 0 && is_over && !receives && !exchange.waits && !exchange.is_sending
        {
            self.answer(inner, slot);
        }
    }

    /// Sends `command` to the volume for the request in `slot`, and notes what is covered then.
    fn command(&self, inner: &mut Inner, slot: u32, command: Command, data: Data, at: u64) {
        self.command_of(inner, u64::from(slot), command, data, at);
    }

    /// The same; `state` has the slot.
    fn command_of(&self, inner: &mut Inner, state: u64, command: Command, data: Data, at: u64) {
        let slot = state as u32;
        let (_, view) = inner.serving();
        let is_immediate = view.limits.immediate;
        let exchange = inner.exchanges.slot(slot);
        exchange.before = std::mem::replace(&mut exchange.at, at);
        exchange.give(&self.core.reactor, is_immediate);
        let mut request = self.core.request();
        request.command = command;
        request.data = data;
        let (_, view) = inner.serving();
        self.submit(&view.queue, state, request);
    }

    /// There is no memory for the next command.
    fn wait(inner: &mut Inner, slot: u32) {
        inner.exchanges.slot(slot).waits = true;
        inner.waiting.push_back(slot);
    }

    fn read(&self, inner: &mut Inner, slot: u32) {
        let (transmission, view) = inner.serving();
        let (shift, blocks_max, lends) =
            (view.block_shift, view.blocks_max, view.limits.lends_reads);
        // A simple reply has its data in order.
        let reads_max = if transmission.session().structured { READS_MAX as u32 } else { 1 };
        loop {
            let exchange = inner.exchanges.slot(slot);
            if exchange.is_covered() || exchange.running >= reads_max || exchange.data.is_some() {
                return;
            }
            let (again, at) = (exchange.next_again(), exchange.at);
            let end = exchange.request.end();
            let piece = again.unwrap_or_else(|| pieces::covering(at, end, shift, blocks_max));
            let data = if lends && again.is_none() {
                Data::None
            } else {
                // Others of this connection wait for a reply that has begun.
                let is_urgent = inner.streaming == Some(slot);
                match self.allocate(inner, (piece.blocks as usize) << shift, is_urgent) {
                    Some(buffer) => Data::Buffer(buffer),
                    None => {
                        if let Some(piece) = again {
                            inner.exchanges.slot(slot).read_again(piece);
                        }
                        return Self::wait(inner, slot);
                    }
                }
            };
            let command = Command::blocks(opcode::READ, NSID, piece.slba, piece.blocks);
            let reads = &mut inner.exchanges.slot(slot).reads;
            let index = reads.iter().position(Option::is_none).expect("fewer are with the volume");
            reads[index] = Some(Read { piece, has_buffer: !matches!(data, Data::None) });
            let at = if again.is_some() { at } else { piece.end() };
            self.command_of(inner, read_state(slot, index), command, data, at);
        }
    }

    /// Sends whole blocks of a write to the volume.
    pub(super) fn submit_write(&self, inner: &mut Inner, slot: u32, piece: Piece, data: Data) {
        let mut command = Command::blocks(opcode::WRITE, NSID, piece.slba, piece.blocks);
        if inner.exchanges.slot(slot).request.has(command_flag::FUA) {
            set_fua(&mut command);
        }
        self.command(inner, slot, command, data, piece.end());
    }

    /// One command after another: whole blocks by Write Zeroes, parts of blocks by a merge.
    fn write_zeroes(&self, inner: &mut Inner, slot: u32) {
        let (_, view) = inner.serving();
        let (shift, deallocates) = (view.block_shift, view.limits.commands.deallocate);
        let blocks_max = (view.bulk_bytes_max.get() >> shift).min(view.limits.zero_blocks_max());
        let exchange = inner.exchanges.slot(slot);
        if exchange.is_covered() || exchange.running > 0 {
            return;
        }
        let request = exchange.request;
        let piece = pieces::exact(exchange.at, request.end(), shift, blocks_max);
        if !piece.is_whole(shift) {
            let Some(buffer) = self.allocate(inner, 3 << shift, false) else {
                return Self::wait(inner, slot);
            };
            return self.merge_zeroes(inner, slot, piece, buffer);
        }
        let mut command = Command::blocks(opcode::WRITE_ZEROES, NSID, piece.slba, piece.blocks);
        if deallocates && !request.has(command_flag::NO_HOLE) {
            // Deallocate (command dword 12, bit 25).
            command.cdw12 = (command.cdw12.get() | 1 << 25).into();
        }
        if request.has(command_flag::FUA) {
            set_fua(&mut command);
        }
        self.command(inner, slot, command, Data::None, piece.end());
    }

    /// One range after another, whole blocks only: "MAY round offset up and length down".
    fn trim(&self, inner: &mut Inner, slot: u32) {
        let (_, view) = inner.serving();
        let shift = view.block_shift;
        let most = view.limits.discard.one_range_blocks_max();
        let blocks_max = (view.bulk_bytes_max.get() >> shift).min(most);
        let exchange = inner.exchanges.slot(slot);
        if exchange.running > 0 {
            return;
        }
        let end = exchange.request.end();
        let Some(piece) = pieces::within(exchange.at, end, shift, blocks_max) else {
            exchange.at = end;
            // Dataset Management has no FUA.
            if exchange.request.has(command_flag::FUA) {
                self.sync(inner, slot);
            }
            return;
        };
        let Some(mut buffer) = self.allocate(inner, dataset::RANGE_BYTES, false) else {
            return Self::wait(inner, slot);
        };
        let range = dataset::Range { attributes: 0, blocks: piece.blocks, slba: piece.slba };
        buffer.as_mut_slice().copy_from_slice(&range.to_bytes());
        let command = dataset::deallocate(NSID, 1);
        self.command(inner, slot, command, Data::Buffer(buffer), piece.end());
    }

    /// Verify is Read without the data: it brings the blocks into whatever cache lies below.
    fn cache(&self, inner: &mut Inner, slot: u32) {
        let (_, view) = inner.serving();
        let (shift, blocks_max) = (view.block_shift, view.blocks_max);
        let exchange = inner.exchanges.slot(slot);
        if exchange.is_covered() || exchange.running > 0 {
            return;
        }
        let piece = pieces::covering(exchange.at, exchange.request.end(), shift, blocks_max);
        let command = Command::blocks(opcode::VERIFY, NSID, piece.slba, piece.blocks);
        self.command(inner, slot, command, Data::None, piece.end());
    }

    /// A Flush, once.
    fn sync(&self, inner: &mut Inner, slot: u32) {
        let exchange = inner.exchanges.slot(slot);
        if !std::mem::replace(&mut exchange.is_synced, true) {
            let end = exchange.request.end();
            let command =
                Command { opcode: opcode::FLUSH, nsid: NSID.into(), ..Command::default() };
            self.command(inner, slot, command, Data::None, end);
        }
    }

    /// Asks the volume for its holes, on a thread where that may block.
    fn ask_allocation(&self, inner: &mut Inner, slot: u32) {
        let (_, view) = inner.serving();
        let (namespace, shift) = (view.namespace.clone(), view.block_shift);
        let exchange = inner.exchanges.slot(slot);
        if exchange.is_covered() || exchange.running > 0 {
            return;
        }
        let request = exchange.request;
        let piece = pieces::covering(request.offset, request.end(), shift, u32::MAX);
        let runs_max = if request.has(command_flag::REQ_ONE) { 1 } else { RUNS_MAX };
        let answer = Answer::default();
        exchange.answer = Some(answer.clone());
        exchange.give(&self.core.reactor, false);
        self.running.set(self.running.get() + 1);
        let ask = move || {
            let runs = namespace.allocation(piece.slba, u64::from(piece.blocks), runs_max);
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(runs);
            0
        };
        let token = TOKEN_ALLOCATION + u64::from(slot);
        // A remote volume asks its controller.
        self.core.reactor.blocking_long(Box::new(ask), self.me(), token);
    }

    /// The volume has told its holes, or could not.
    pub(super) fn allocation_told(&self, inner: &mut Inner, slot: u32) {
        let exchange = inner.exchanges.slot(slot);
        exchange.take_back(&self.core.reactor);
        exchange.at = exchange.request.end();
        self.proceed(inner, slot);
    }

    /// The number of the read that comes back to `state`, if it is one.
    #[inline]
    pub(super) fn read_of(state: u64) -> Option<usize> {
        (state >> NUMBER_SHIFT).checked_sub(FIRST_READ).map(|index| index as usize)
    }

    /// A command came back from the volume.
    #[inline]
    pub(super) fn finished(
        &self,
        inner: &mut Inner,
        state: u64,
        mut request: Box<namespace::Request>,
    ) {
        let slot = state as u32;
        let exchange = inner.exchanges.slot(slot);
        exchange.take_back(&self.core.reactor);
        let number = state >> NUMBER_SHIFT;
        if (1..FIRST_READ).contains(&number) {
            self.merge_finished(inner, slot, number as usize - 1, request);
            return self.proceed(inner, slot);
        }
        let read = Self::read_of(state).and_then(|index| exchange.reads[index].take());
        let status = match request.command.opcode {
            opcode::FLUSH => {
                let (_, view) = inner.serving();
                view.told.borrow_mut().flushed(&*view.namespace, request.status)
            }
            _ => request.status,
        };
        let data = std::mem::take(&mut request.data);
        let (opcode, os_error) = (request.command.opcode, request.os_error);
        self.core.recycle(request);
        if let Some(Read { piece, has_buffer: false }) = read {
            inner.memory.given(&data);
            if status.code() == Status::COMMAND_INTERRUPTED && matches!(data, Data::None) {
                // What keeps it in several places had no memory to bring them together in: it gets some when it is its turn.
                inner.exchanges.slot(slot).read_again(piece);
                return self.proceed(inner, slot);
            }
        }
        if !status.is_success() && !Self::retry_smaller(inner, slot, status) {
            let blocks = read.map(|read| read.piece.range());
            self.volume_failed(inner, slot, Failed { opcode, blocks, status, os_error });
        }
        match read {
            Some(Read { piece, .. }) if inner.exchanges.slot(slot).failure.is_none() => {
                self.read_came(inner, slot, piece, data);
            }
            _ => inner.memory.dropped(&data),
        }
        self.proceed(inner, slot);
    }

    /// A volume that refuses to zero or trim so much at once is asked for as much as it reads at once,
    /// from then on. Whether that was it.
    #[cold]
    fn retry_smaller(inner: &mut Inner, slot: u32, status: Status) -> bool {
        let (_, view) = inner.serving();
        let limit = view.blocks_max << view.block_shift;
        let exchange = inner.exchanges.slot(slot);
        let is_bulk = matches!(exchange.request.kind, command::WRITE_ZEROES | command::TRIM);
        let is_large = exchange.at - exchange.before > u64::from(limit);
        if status.code() != Status::INVALID_FIELD || !is_bulk || !is_large {
            return false;
        }
        // One command at a time is made for such a request.
        exchange.at = exchange.before;
        let (_, view) = inner.serving();
        view.bulk_bytes_max.set(limit);
        true
    }

    /// The volume has failed a command of a request. The log tells the first of each; those without blocks are about all
    /// that the request is.
    #[cold]
    pub(super) fn volume_failed(&self, inner: &mut Inner, slot: u32, mut failed: Failed) {
        let (transmission, view) = inner.serving();
        let (export, shift) = (transmission.session().export, view.block_shift);
        let (is_read_only, namespace) = (view.limits.read_only, view.namespace.clone());
        let exchange = inner.exchanges.slot(slot);
        let (request, status) = (exchange.request, failed.status);
        let is_first = exchange.failure.is_none();
        tracing::debug!(?request, %status, "a request failed");
        exchange.fail(Failure::of(status, request.writes()));
        if !is_first {
            return;
        }
        if failed.opcode != opcode::FLUSH && request.length > 0 {
            let all = || pieces::covering(request.offset, request.end(), shift, u32::MAX).range();
            failed.blocks = failed.blocks.or_else(|| Some(all()));
        }
        let failures = &self.core.shared.failures[export];
        failures.note(&self.core.reactor, failed, is_read_only, || namespace.uri());
    }
}

/// Refuses what this volume cannot do.
fn refuse(request: &Request, view: &super::View) -> Option<Failure> {
    let mask = (1 << view.block_shift) - 1;
    let is_aligned = (request.offset | u64::from(request.length)) & mask == 0;
    if request.has(command_flag::FAST_ZERO) {
        // A hole is made without writing, and what is not made of whole blocks has to be written.
        let is_fast = view.limits.commands.deallocate && !request.has(command_flag::NO_HOLE);
        if !is_fast || !is_aligned {
            return Some(Failure::refused(Code::NotSup, "zeroing would be no faster than writing"));
        }
    }
    if request.has(command_flag::DF) && request.length > 0 {
        let piece =
            pieces::covering(request.offset, request.end(), view.block_shift, view.blocks_max);
        if piece.end() < request.end() {
            let why = "more than the volume reads in one piece";
            return Some(Failure::refused(Code::Overflow, why));
        }
    }
    let merges = view.limits.commands.compare_and_write;
    if !is_aligned && !merges && matches!(request.kind, command::WRITE | command::WRITE_ZEROES) {
        let why = "not whole blocks, and the volume has no Compare and Write";
        return Some(Failure::refused(Code::Inval, why));
    }
    None
}

/// The runs that a volume told; none if it could not.
pub(super) fn told(answer: Option<Answer>, namespace: &Arc<dyn Namespace>) -> Vec<namespace::Run> {
    let told =
        answer.and_then(|answer| answer.lock().unwrap_or_else(PoisonError::into_inner).take());
    match told {
        Some(Ok(runs)) => runs,
        Some(Err(error)) => {
            tracing::debug!(%error, volume = namespace.uri(), "holes cannot be told");
            Vec::new()
        }
        // The thread that was asked has panicked, or there was none.
        None => Vec::new(),
    }
}
