//! What comes from the controller.

use super::Requests;
use super::connection::{Connection, Lost, PAGE_BYTES, Stage, must_fill};
use super::copy;
use crate::dial::declined;
use association::retry::of_controller;
use namespace::Data;
use nvme::{Completion, Status};
use nvme_tcp::host::{DataEnd, Event, Outgoing};
use nvme_tcp::{Pending, Terminate};
use reactor::Reactor;
use std::io::{self, IoSlice, IoSliceMut};

/// Rest of a payload from which on it is received straight into its buffer.
pub(super) const DIRECT_BYTES_MIN: u32 = 4096;

/// Bytes received at a time while only large data is to come: enough for the headers, so that as
/// little as possible of the data behind them has to be copied.
const HEADERS_BYTES: usize = 512;

/// The same while large and small data is to come.
const MIXED_BYTES: usize = 16 * 1024;

/// Up to so many outstanding commands answers are taken by halves.
const HALVED_MAX: usize = 16;

impl Connection {
    /// Takes one helping of bytes from the socket. Whether there was any.
    pub(super) fn receive(
        &mut self,
        buffer: &mut [u8],
        done: &mut Requests,
        reactor: &Reactor,
    ) -> Result<bool, Lost> {
        if self.page_reads != 0 {
            return self.receive_exactly(buffer, done, reactor);
        }
        let stashed = self.stash.len();
        let room = match self.reads {
            [0, _] => self.helping().min(buffer.len()),
            [_, 0] => HEADERS_BYTES,
            _ => MIXED_BYTES,
        };
        let received = match self.machine.payload_pending() {
            Some(pending) if stashed == 0 && pending.remaining >= DIRECT_BYTES_MIN => {
                self.receive_payload(pending, &mut buffer[..room], done)
            }
            _ => self.receive_some(buffer, room),
        };
        match received {
            Err(error) => Err(error.into()),
            Ok(None) => Ok(false),
            Ok(Some(count)) => {
                self.process(&buffer[..count], done)?;
                Ok(true)
            }
        }
    }

    /// Receives the rest of a payload into its buffer, and what follows into `buffer`. Returns how
    /// much followed, or `None` if nothing came.
    pub(super) fn receive_payload(
        &mut self,
        pending: Pending,
        buffer: &mut [u8],
        done: &mut Requests,
    ) -> io::Result<Option<usize>> {
        let slot = &mut self.slots[usize::from(pending.key)];
        assert!(slot.sent && pending.offset + pending.remaining <= slot.len, "see `process`");
        // SAFETY: the range lies within the data of the command, whose request is in the slot and owns the
        // buffer, or which is one of authentication, whose buffer is the slot's own list; nobody else refers
        // to it.
        let place = unsafe {
            let start = slot.pointer.add(pending.offset as usize);
            std::slice::from_raw_parts_mut(start, pending.remaining as usize)
        };
        let pieces = &mut [IoSliceMut::new(place), IoSliceMut::new(buffer)];
        let Some(count) = ended(self.link.stream.readv(pieces))? else { return Ok(None) };
        let direct = count.min(place.len());
        self.received.direct += direct as u64;
        if let Some(end) = self.machine.payload_received(&place[..direct]) {
            self.data_end(end, done);
        }
        Ok(Some(count - direct))
    }

    /// Works through `input`, and keeps what is left of it.
    pub(super) fn process(&mut self, mut input: &[u8], done: &mut Requests) -> Result<(), Lost> {
        loop {
            match self.machine.receive(&mut input) {
                Ok(None) => break,
                Ok(Some(event)) => self.event(event, done)?,
                Err(fault) => return Err(self.terminate(&fault)),
            }
        }
        self.stash.clear();
        self.stash.extend_from_slice(input);
        match self.machine.payload_pending() {
            // Its header came alone, without a byte of data that would have shown it. Before it is received the command may
            // be withdrawn, and its identifier be that of one with less data.
            Some(pending) if !self.slots[usize::from(pending.key)].sent => Err(too_early()),
            _ => Ok(()),
        }
    }

    fn terminate(&mut self, fault: &Terminate) -> Lost {
        // In the middle of another PDU it would not be understood.
        if self.send.is_empty() {
            let _ = self.link.stream.writev(&[IoSlice::new(&fault.pdu())]);
        }
        Lost::ours(format!("the controller broke the protocol: {fault}"))
    }

    #[inline]
    fn event(&mut self, event: Event<'_>, done: &mut Requests) -> Result<(), Lost> {
        match event {
            Event::Data { cid, offset, bytes, end } => {
                let slot = &self.slots[usize::from(cid)];
                if !slot.sent {
                    return Err(too_early());
                }
                // Its data comes by the ring, and only the end of it may be told here.
                assert!(slot.pages.is_none(), "headers are received alone");
                debug_assert!(offset as usize + bytes.len() <= slot.len as usize);
                // SAFETY: as in `receive_payload`; `bytes` are in the receive buffer.
                unsafe {
                    let place = slot.pointer.add(offset as usize);
                    place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                }
                self.received.copied += bytes.len() as u64;
                if let Some(end) = end {
                    self.data_end(end, done);
                }
            }
            Event::Response { completion, received, digest_error } => match self.stage {
                Stage::Live => self.response(&completion, received, digest_error, done)?,
                Stage::Connecting { flow_control } => self.connected(&completion, flow_control)?,
                Stage::Authenticating => self.message_answered(&completion, digest_error)?,
                Stage::Initializing => unreachable!("no command was sent"),
            },
            Event::Initialized => match self.machine.declined() {
                Some(what) => return Err(Lost::ours(declined(what))),
                None => self.send_connect(self.params.flow_control),
            },
            Event::ReadyToTransfer(outgoing) => self.ready_to_transfer(outgoing)?,
            Event::Terminated { fes, fei } => {
                let words = format!("the controller ended the connection: {fes} ({fei:#x})");
                return Err(Lost::ours(words));
            }
        }
        Ok(())
    }

    /// All of a command's data has come.
    #[inline]
    pub(super) fn data_end(&mut self, end: DataEnd, done: &mut Requests) {
        if !end.success {
            return;
        }
        // No response follows that tells the head. (Only without flow control may a controller do so.)
        self.credits.untold();
        let status = if end.digest_error { Status::TRANSIENT_TRANSPORT } else { Status::SUCCESS };
        if let Some(authenticating) = &mut self.authenticating {
            return authenticating.answered(status);
        }
        self.finish(end.cid, status, 0, done);
    }

    #[inline]
    fn response(
        &mut self,
        completion: &Completion,
        received: u32,
        digest_error: bool,
        done: &mut Requests,
    ) -> Result<(), Lost> {
        let cid = completion.cid.get();
        let slot = &mut self.slots[usize::from(cid)];
        let on_its_way = !slot.sent && self.link.sending.is_of(cid);
        if !slot.sent && !on_its_way {
            return Err(too_early());
        }
        let mut status = completion.status();
        if status.sct() == 3 {
            status = of_controller(status);
            let about_source = matches!(
                slot.request.as_ref().map(|request| &request.data),
                Some(Data::Sources(sources)) if copy::names_another(sources)
            );
            self.ana_status |= copy::is_ana(status) && !about_source;
        }
        if let Some(request) = &slot.request {
            self.params.answered(&request.command, status, slot.flush_number);
        }
        if status.is_success() && slot.len != received {
            status = short(slot, received);
        }
        if digest_error {
            status = Status::TRANSIENT_TRANSPORT;
        }
        if !self.credits.fetched(completion.sqhd.get()) {
            return Err(Lost::ours("the controller's SQ head pointer cannot be"));
        }
        let result = completion.result.get();
        if on_its_way {
            // The ring has its last bytes sent, or nearly so, and has not said so yet.
            self.slots[usize::from(cid)].answer = Some((status, result));
            return Ok(());
        }
        if self.slots[usize::from(cid)].outgoing.is_some() {
            return self.answered_early(cid, status, result, done);
        }
        self.finish(cid, status, result, done);
        Ok(())
    }

    /// A command was answered although it asked for more data: it is not sent, but for the rest of
    /// a PDU that has begun.
    #[cold]
    fn answered_early(
        &mut self,
        cid: u16,
        status: Status,
        result: u64,
        done: &mut Requests,
    ) -> Result<(), Lost> {
        if !self.send.cancel_transfer(cid) {
            self.slots[usize::from(cid)].answer = Some((status, result));
            return Ok(());
        }
        let slot = &mut self.slots[usize::from(cid)];
        (slot.outgoing, slot.data) = (None, None);
        self.finish(cid, status, result, done);
        Ok(())
    }

    fn ready_to_transfer(&mut self, outgoing: Outgoing) -> Result<(), Lost> {
        let slot = &mut self.slots[usize::from(outgoing.cid)];
        if !slot.sent {
            return Err(too_early());
        }
        if let Some(before) = slot.outgoing {
            // The machine counts an R2T as answered when the header of its last PDU is made, and lets
            // one more come from then on.
            if before.remaining != 0 || !self.link.sending.is_of(outgoing.cid) {
                return Err(Lost::ours(
                    "the controller asked for more data before it had what it asked for",
                ));
            }
            // The ring has the last bytes sent, or nearly so, and has not said so yet.
            assert!(slot.next.is_none(), "the machine has counted them");
            slot.next = Some(outgoing);
            return Ok(());
        }
        slot.outgoing = Some(outgoing);
        self.send.push_transfer(outgoing.cid);
        Ok(())
    }

    /// Ends commands that were answered while the last of their data was on its way.
    pub(super) fn finish_answered(&mut self, done: &mut Requests) {
        for cid in 0..self.slots.len() as u16 {
            let slot = &mut self.slots[usize::from(cid)];
            if slot.outgoing.is_none()
                && slot.sent
                && let Some((status, result)) = slot.answer.take()
            {
                self.finish(cid, status, result, done);
            }
        }
    }
}

/// What half of the `outstanding` commands are answered with, if all are with `expected_bytes`: so the controller works on
/// one half while we work on the other. The answers of sixteen commands otherwise come and go all at once, and both sides
/// wait by turns. Everything where that is one answer, or many: then a part of them is on its way at any time, and fewer
/// calls cost less.
#[inline]
pub(super) fn half_of(outstanding: usize, expected_bytes: usize) -> usize {
    if !(2..=HALVED_MAX).contains(&outstanding) {
        return usize::MAX;
    }
    outstanding.div_ceil(2) * expected_bytes.div_ceil(outstanding)
}

#[cold]
pub(super) fn too_early() -> Lost {
    Lost::ours("the controller answered a command before it was sent")
}

/// The status of a command that succeeded, and whose data has not all come.
#[cold]
fn short(slot: &mut super::slot::Slot, received: u32) -> Status {
    let Some(request) = &slot.request else { return Status::SUCCESS };
    if request.command.opcode & 3 != 2 {
        return Status::SUCCESS;
    }
    if must_fill(request.command.opcode) {
        // As with data that a digest does not fit: another time, or another path, may do better.
        return Status::TRANSIENT_TRANSPORT;
    }
    // What was in the buffer before is nobody's business.
    // SAFETY: the request owns so many bytes there.
    unsafe {
        let rest = slot.pointer.add(received as usize);
        rest.write_bytes(0, (slot.len - received) as usize);
    }
    Status::SUCCESS
}

/// `None` if there is nothing, an error at the end of the stream.
#[inline]
pub(super) fn ended(received: io::Result<usize>) -> io::Result<Option<usize>> {
    match received {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

const _: () = assert!(PAGE_BYTES == DIRECT_BYTES_MIN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_by_halves_of_whole_ones() {
        for outstanding in 2..=HALVED_MAX {
            for answer in [24, 28, 4096 + 24, 4096 + 32] {
                let half = half_of(outstanding, outstanding * answer);
                assert_eq!(half, outstanding.div_ceil(2) * answer, "{outstanding} of {answer}");
            }
        }
        // Three reads of a page among writes: half of all bytes, and more than nothing.
        assert!(half_of(16, 3 * 4096 + 16 * 24) >= (3 * 4096 + 16 * 24) / 2);
    }

    #[test]
    fn one_answer_and_many_are_taken_whole() {
        for outstanding in [0, 1, HALVED_MAX + 1, 128] {
            assert_eq!(half_of(outstanding, outstanding * 4120), usize::MAX);
        }
    }
}
