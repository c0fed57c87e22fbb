//! What comes from the host: bytes, PDUs, commands and their data.

use super::{Connection, HEAP_BYTES_MAX, Inner, Role, UNREAD_MAX};
use crate::exchange::{Exchange, Kept, Refused, Stage};
use crate::journal::End;
use namespace::Data;
use namespace::output::Payload;
use nvme::{Command, Status};
use nvme_tcp::Pending;
use nvme_tcp::controller::{self, Event};
use std::io;
use std::sync::atomic::Ordering;
use subsystem::io::Direction;

/// Rest of a payload from which on it is received straight into its buffer.
const DIRECT_BYTES_MIN: usize = 4096;

impl Connection {
    /// Takes one helping of bytes from the socket and starts every command in it.
    pub(super) fn receive(&self, inner: &mut Inner) -> io::Result<bool> {
        let mut buffer = self.core.receive_buffer.borrow_mut();
        let stashed = inner.stash.len();
        let count = match inner.machine.payload_pending() {
            Some(pending) if stashed == 0 && pending.remaining as usize >= DIRECT_BYTES_MIN => {
                match self.receive_payload(inner, pending, &mut buffer)? {
                    Some(count) => count,
                    None => return Ok(false),
                }
            }
            _ => {
                buffer[..stashed].copy_from_slice(&inner.stash);
                if std::mem::take(&mut inner.stash_unseen) {
                    if self.is_out_of_time(inner) {
                        return Ok(true);
                    }
                    self.process(inner, &buffer[..stashed]);
                    return Ok(true);
                }
                match self.stream.recv(&mut buffer[stashed..]) {
                    Ok(0) => return Err(self.closed_by_peer()),
                    Ok(_) if self.is_out_of_time(inner) => return Ok(true),
                    Ok(count) => stashed + count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
        };
        self.process(inner, &buffer[..count]);
        Ok(true)
    }

    /// The peer sends nothing any more.
    pub(super) fn closed_by_peer(&self) -> io::Error {
        self.ends(End::Closed);
        io::ErrorKind::UnexpectedEof.into()
    }

    /// Works through `input`, and keeps what is left of it.
    pub(super) fn process(&self, inner: &mut Inner, mut input: &[u8]) {
        while !inner.closing {
            match inner.machine.receive(&mut input) {
                Ok(Some(event)) => {
                    // It may have stood still in the middle of what was read at once.
                    if self.core.may_have_paused() && self.is_out_of_time(inner) {
                        return;
                    }
                    self.event(inner, event);
                }
                Ok(None) => break,
                Err(fault) => self.terminate(inner, &fault),
            }
            if self.wants_to_move(inner) {
                break;
            }
            if self.is_held_back(inner) {
                inner.stash_unseen = !input.is_empty();
                break;
            }
        }
        inner.stash.clear();
        if !inner.closing {
            inner.stash.extend_from_slice(input);
        }
        if let Role::Io(queue) = &inner.role
            && !queue.link.shared.active.load(Ordering::Relaxed)
        {
            queue.link.shared.active.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn event(&self, inner: &mut Inner, event: Event<'_>) {
        match event {
            Event::Initialize { response } => {
                self.send(inner, &response);
            }
            Event::Command { command, data, digest_error } => {
                self.command(inner, command, data, digest_error);
            }
            Event::Data { tag, offset, bytes, done, digest_error } => {
                self.data(inner, u32::from(tag), offset, bytes);
                if done {
                    self.data_done(inner, u32::from(tag), digest_error);
                }
            }
            Event::Terminated { fes, fei } => {
                let fault = format_args!("the host terminates it: {fes:?}, {fei:#x}");
                self.blame(End::Terminated, &fault);
                // Whatever else it is sent it does not take.
                inner.closing = true;
                self.close();
            }
        }
    }

    /// Receives the rest of a payload into its buffer, and what follows into `buffer`. Returns
    /// how much followed, or `None` if nothing came.
    pub(super) fn receive_payload(
        &self,
        inner: &mut Inner,
        pending: Pending,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let slot = u32::from(pending.key);
        let exchange = inner.exchanges.slot(slot);
        let place = payload_place(exchange);
        let start = pending.offset as usize;
        let place = &mut place[start..start + pending.remaining as usize];
        let count =
            match self.stream.readv(&mut [io::IoSliceMut::new(place), io::IoSliceMut::new(buffer)])
            {
                Ok(0) => return Err(self.closed_by_peer()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
        let direct = count.min(place.len());
        if self.is_out_of_time(inner) {
            return Ok(None);
        }
        let place = &payload_place(inner.exchanges.slot(slot))[start..];
        let done = inner.machine.payload_received(&place[..direct]);
        if let Some(done) = done {
            self.data_done(inner, slot, done.digest_error);
        }
        Ok(Some(count - direct))
    }

    /// Part of a command's data has come.
    pub(super) fn data(&self, inner: &mut Inner, slot: u32, offset: u32, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let exchange = inner.exchanges.slot(slot);
        let start = offset as usize;
        payload_place(exchange)[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// All of a command's data has come.
    pub(super) fn data_done(&self, inner: &mut Inner, slot: u32, digest_error: bool) {
        let exchange = inner.exchanges.slot(slot);
        if exchange.stage == Stage::Cancelled {
            let status = exchange.status;
            self.respond(inner, slot, status, 0, Payload::None);
        } else if digest_error {
            self.data_failed(inner, slot, Status::TRANSIENT_TRANSPORT);
        } else if let Some(kept) = exchange.kept.take() {
            exchange.stage = Stage::Running;
            self.admin(inner, slot, &kept.command, &kept.data);
        } else {
            self.io_data_complete(inner, slot);
        }
    }

    /// A command capsule has come.
    pub(super) fn command(
        &self,
        inner: &mut Inner,
        command: Command,
        data: &[u8],
        digest_error: bool,
    ) {
        inner.sq_head = if inner.sq_head + 1 >= inner.entries { 0 } else { inner.sq_head + 1 };
        let slot = match inner.exchanges.begin(command.cid.get()) {
            Ok(slot) => slot,
            Err(Refused::CidInUse) => {
                self.respond_without_slot(inner, command.cid.get(), Status::CID_CONFLICT.dnr());
                if inner.output.as_ref().is_some_and(|output| output.unread() > UNREAD_MAX) {
                    self.blame(End::Protocol, &"the host reuses identifiers and reads nothing");
                    inner.closing = true;
                    self.close();
                }
                return;
            }
            Err(Refused::QueueOverrun) => {
                self.blame(End::Protocol, &"the host overruns its queue");
                self.hang_up(inner);
                return;
            }
        };
        match &inner.role {
            Role::Io(_) if digest_error => {
                self.io_refused(inner, slot, &command, Status::TRANSIENT_TRANSPORT);
            }
            _ if digest_error => {
                self.respond(inner, slot, Status::TRANSIENT_TRANSPORT, 0, Payload::None);
            }
            Role::Io(_) if command.opcode != nvme::opcode::admin::FABRICS => {
                self.io(inner, slot, command, data);
            }
            _ => self.admin_capsule(inner, slot, command, data),
        }
    }

    /// Keeps an admin command whose data is still to come.
    pub(crate) fn keep(&self, inner: &mut Inner, slot: u32, command: Command, bytes: u32) {
        if inner.exchanges.kept_bytes() > HEAP_BYTES_MAX {
            self.respond(inner, slot, Status::COMMAND_INTERRUPTED, 0, Payload::None);
            return;
        }
        let exchange = inner.exchanges.slot(slot);
        exchange.direction = Direction::ToController;
        exchange.bytes = bytes;
        exchange.kept = Some(Box::new(Kept { command, data: vec![0; bytes as usize] }));
        self.ask_for_data(inner, slot);
    }

    /// Sends a ready-to-transfer for all of a command's data.
    pub(crate) fn ask_for_data(&self, inner: &mut Inner, slot: u32) {
        let exchange = inner.exchanges.slot(slot);
        exchange.stage = Stage::Receiving;
        let (cid, bytes) = (exchange.cid, exchange.bytes);
        let mut header = [0; controller::RESPONSE_BYTES_MAX];
        let len = inner.machine.expect(cid, slot as u16, 0, bytes, &mut header);
        self.send(inner, &header[..len]);
    }
}

/// Where the data of a command that the host sends goes.
fn payload_place(exchange: &mut Exchange) -> &mut [u8] {
    if let Some(kept) = &mut exchange.kept {
        return &mut kept.data;
    }
    let request = exchange.request.as_mut().expect("a command that receives has its request");
    match &mut request.data {
        Data::Buffer(buffer) => buffer.as_mut_slice(),
        _ => unreachable!("a command that receives has a buffer"),
    }
}
