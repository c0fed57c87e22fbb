//! What is to be sent on one connection, and in which order: commands before data.

use super::slot::Slot;
use nvme_tcp::digest::digest;
use nvme_tcp::host::Connection as Machine;
use reactor::Stream;
use std::collections::VecDeque;
use std::io::{self, IoSlice};

/// Pieces handed to one `writev`; a PDU has three at most.
const PIECES_MAX: usize = 384;
/// Data PDUs handed to one `writev`: more only delay commands that come meanwhile.
const DATA_PDUS_MAX: usize = 4;

/// PDUs to be sent, by command identifier.
pub(super) struct SendQueue {
    /// Sent before anything else: initialization and Connect.
    pub(super) handshake: Vec<u8>,
    /// Capsules that are not completely sent.
    pub(super) commands: VecDeque<u16>,
    /// Commands whose data was asked for.
    pub(super) transfers: VecDeque<u16>,
    /// The first capsule, or the first data PDU, was sent in part: so many bytes.
    begun: Option<(Lane, usize)>,
    pieces: Vec<IoSlice<'static>>,
    plan: Vec<(Lane, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Command,
    Data,
}

/// How far a flush got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Everything is with the kernel; something was sent if `true`.
    All(bool),
    /// The socket takes no more; something was sent if `true`.
    Blocked(bool),
}

impl SendQueue {
    pub(super) fn new(entries: u16) -> SendQueue {
        SendQueue {
            handshake: Vec::new(),
            commands: VecDeque::with_capacity(entries.into()),
            transfers: VecDeque::with_capacity(entries.into()),
            begun: None,
            pieces: Vec::with_capacity(PIECES_MAX),
            plan: Vec::with_capacity(PIECES_MAX),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.handshake.is_empty() && self.commands.is_empty() && self.transfers.is_empty()
    }

    /// Whether a part of command `cid`'s data PDU has gone out.
    pub(super) fn has_begun_data(&self, cid: u16) -> bool {
        matches!(self.begun, Some((Lane::Data, _))) && self.transfers.front() == Some(&cid)
    }

    /// Whether a part of command `cid`'s capsule has gone out, but not all.
    pub(super) fn has_begun_command(&self, cid: u16) -> bool {
        matches!(self.begun, Some((Lane::Command, _))) && self.commands.front() == Some(&cid)
    }

    /// Gives the socket as much as it takes. Sets `answered` if a command was answered before its data
    /// PDU was out, which it now is.
    pub(super) fn flush(
        &mut self,
        stream: &Stream,
        machine: &mut Machine,
        slots: &mut [Slot],
        answered: &mut bool,
    ) -> io::Result<Flushed> {
        let mut progress = false;
        while !self.is_empty() {
            let result = if self.handshake.is_empty() {
                self.plan(machine, slots);
                let result = stream.writev(&self.pieces);
                // They refer to slots and requests only until here.
                self.pieces.clear();
                result
            } else {
                stream.writev(&[IoSlice::new(&self.handshake)])
            };
            match result {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) if !self.handshake.is_empty() => {
                    self.handshake.drain(..count);
                }
                Ok(count) => self.sent(count, slots, answered),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Flushed::Blocked(progress));
                }
                Err(error) => return Err(error),
            }
            progress = true;
        }
        Ok(Flushed::All(progress))
    }

    /// Lines up pieces: the rest of a data PDU that has begun, commands, data PDUs.
    fn plan(&mut self, machine: &mut Machine, slots: &mut [Slot]) {
        self.plan.clear();
        debug_assert!(self.pieces.is_empty());
        let mut data_pdus = 0;
        let mut skip = self.begun.map_or(0, |(_, bytes)| bytes);
        let data_first = matches!(self.begun, Some((Lane::Data, _)));
        if data_first {
            let cid = self.transfers[0];
            self.push_data(machine, &mut slots[usize::from(cid)], skip);
            (data_pdus, skip) = (1, 0);
        }
        for at in 0..self.commands.len() {
            if self.pieces.len() + 3 > PIECES_MAX {
                return;
            }
            let slot = &slots[usize::from(self.commands[at])];
            self.push_command(slot, std::mem::take(&mut skip));
        }
        for at in data_pdus..self.transfers.len().min(DATA_PDUS_MAX) {
            if self.pieces.len() + 3 > PIECES_MAX {
                return;
            }
            let cid = self.transfers[at];
            self.push_data(machine, &mut slots[usize::from(cid)], 0);
        }
    }

    fn push_command(&mut self, slot: &Slot, skip: usize) {
        let capsule = &slot.capsule;
        let parts = [
            (capsule.bytes.as_ptr(), usize::from(capsule.len)),
            (slot.pointer.cast_const(), slot.in_capsule as usize),
            (capsule.digest.as_ptr(), usize::from(capsule.digest_len)),
        ];
        self.push(Lane::Command, parts, skip);
    }

    fn push_data(&mut self, machine: &mut Machine, slot: &mut Slot, skip: usize) {
        let pdu = match slot.data {
            Some(pdu) => pdu,
            None => {
                let outgoing = slot.outgoing.as_mut().expect("a transfer has data to send");
                let header = &mut slot.data_header;
                let pdu = machine.data_header(outgoing, &mut header.bytes);
                let pdu = pdu.expect("a transfer has data left");
                header.len = pdu.header_bytes as u8;
                header.digest_len = 0;
                if machine.data_digest() {
                    // SAFETY: the machine has checked that the range lies within the command's data,
                    // which the request in the slot owns.
                    let bytes = unsafe {
                        let start = slot.pointer.add(pdu.offset as usize);
                        std::slice::from_raw_parts(start, pdu.len as usize)
                    };
                    (header.digest, header.digest_len) = (digest(bytes), 4);
                }
                slot.data = Some(pdu);
                pdu
            }
        };
        let header = &slot.data_header;
        let parts = [
            (header.bytes.as_ptr(), usize::from(header.len)),
            (slot.pointer.wrapping_add(pdu.offset as usize).cast_const(), pdu.len as usize),
            (header.digest.as_ptr(), usize::from(header.digest_len)),
        ];
        self.push(Lane::Data, parts, skip);
    }

    fn push(&mut self, lane: Lane, parts: [(*const u8, usize); 3], mut skip: usize) {
        let mut bytes = 0;
        for (pointer, len) in parts {
            let skipped = skip.min(len);
            skip -= skipped;
            let left = len - skipped;
            if left == 0 {
                continue;
            }
            // SAFETY: the bytes are in a slot, which does not move or change while its command is in
            // flight, or in the buffer of the slot's request. The slice is used for one `writev` and
            // dropped right after it, see `flush`.
            let piece = unsafe { std::slice::from_raw_parts(pointer.add(skipped), left) };
            self.pieces.push(IoSlice::new(piece));
            bytes += left;
        }
        self.plan.push((lane, bytes));
    }

    /// The socket took `count` bytes of what was lined up.
    fn sent(&mut self, mut count: usize, slots: &mut [Slot], answered: &mut bool) {
        for at in 0..self.plan.len() {
            let (lane, bytes) = self.plan[at];
            if count < bytes {
                if count > 0 || at == 0 {
                    let before = match self.begun {
                        Some((_, before)) if at == 0 => before,
                        _ => 0,
                    };
                    self.begun = Some((lane, before + count)).filter(|(_, bytes)| *bytes > 0);
                }
                return;
            }
            count -= bytes;
            self.begun = None;
            match lane {
                Lane::Command => {
                    let cid = self.commands.pop_front().expect("lined up");
                    slots[usize::from(cid)].sent = true;
                }
                Lane::Data => {
                    let cid = self.transfers.pop_front().expect("lined up");
                    let slot = &mut slots[usize::from(cid)];
                    slot.data = None;
                    if slot.answer.is_some() {
                        slot.outgoing = None;
                        *answered = true;
                    } else if slot.outgoing.is_some_and(|outgoing| outgoing.remaining > 0) {
                        self.transfers.push_back(cid);
                    } else {
                        slot.outgoing = None;
                    }
                }
            }
        }
    }
}
