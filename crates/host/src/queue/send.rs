//! What is to be sent on one connection, and in which order: commands before data.

use super::pages::Next;
use super::slot::Slot;
use namespace::Registered;
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
    /// What is not completely sent, most urgent lane first.
    lanes: [VecDeque<u16>; LANES],
    /// The first PDU of a lane was sent in part: so many bytes.
    begun: Option<(Lane, usize)>,
    pieces: Vec<IoSlice<'static>>,
    /// What `pieces` are: lane and bytes of each PDU.
    plan: Vec<(Lane, usize)>,
    /// The last PDU of the plan goes on with pages, which the ring sends.
    ends_with_pages: bool,
}

/// What is sent before what. Commands are small, and the sooner they are out, the sooner data comes
/// the other way; the peer keeps no order among commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Capsules without data.
    Command,
    /// Capsules with their data.
    Write,
    /// Data that was asked for.
    Data,
}

const LANES: usize = 3;
const IN_ORDER: [Lane; LANES] = [Lane::Command, Lane::Write, Lane::Data];

/// How far a flush got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Everything is with the kernel; something was sent if `true`.
    All(bool),
    /// The socket takes no more; something was sent if `true`.
    Blocked(bool),
    /// What is next the ring has to send; something was sent if `true`.
    Pages(Next, bool),
}

impl SendQueue {
    pub(super) fn new(entries: u16) -> SendQueue {
        SendQueue {
            handshake: Vec::new(),
            lanes: std::array::from_fn(|_| VecDeque::with_capacity(entries.into())),
            begun: None,
            pieces: Vec::with_capacity(PIECES_MAX),
            plan: Vec::with_capacity(PIECES_MAX),
            ends_with_pages: false,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.handshake.is_empty() && self.lanes.iter().all(VecDeque::is_empty)
    }

    /// Queues command `cid`'s capsule, which lies in its slot.
    #[inline]
    pub(super) fn push_command(&mut self, cid: u16, with_data: bool) {
        let lane = if with_data { Lane::Write } else { Lane::Command };
        self.lanes[lane as usize].push_back(cid);
    }

    /// Takes out the commands of which nothing has gone out.
    pub(super) fn take_commands(&mut self) -> Vec<u16> {
        let mut taken = Vec::new();
        for lane in [Lane::Command, Lane::Write] {
            let begun = self.begun.is_some_and(|(begun, _)| begun == lane);
            taken.extend(self.lanes[lane as usize].drain(usize::from(begun)..));
        }
        taken
    }

    /// Queues command `cid`'s outgoing data.
    pub(super) fn push_transfer(&mut self, cid: u16) {
        self.lanes[Lane::Data as usize].push_back(cid);
    }

    /// Forgets command `cid`'s outgoing data, unless a part of a PDU has gone out, which must be
    /// sent whole. Whether it could.
    pub(super) fn cancel_transfer(&mut self, cid: u16) -> bool {
        let transfers = &mut self.lanes[Lane::Data as usize];
        let begun = matches!(self.begun, Some((Lane::Data, _)));
        if begun && transfers.front() == Some(&cid) {
            return false;
        }
        transfers.retain(|other| *other != cid);
        true
    }

    /// Whether a part of command `cid`'s capsule has gone out, but not all.
    pub(super) fn has_begun_command(&self, cid: u16) -> bool {
        self.begun.is_some_and(|(lane, _)| {
            lane != Lane::Data && self.lanes[lane as usize].front() == Some(&cid)
        })
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
            if let Some(next) = self.next_pages(slots) {
                return Ok(Flushed::Pages(next, progress));
            }
            let result = if self.handshake.is_empty() {
                self.plan(machine, slots);
                let result = match self.ends_with_pages {
                    false => stream.writev(&self.pieces),
                    true => stream.writev_more(&self.pieces),
                };
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

    /// The pages that are to be sent before anything else: those of a PDU whose header has gone out.
    #[inline]
    fn next_pages(&self, slots: &[Slot]) -> Option<Next> {
        let (lane, sent) = self.begun?;
        let cid = *self.lanes[lane as usize].front().expect("what has begun is first");
        let slot = &slots[usize::from(cid)];
        let pages = slot.pages?;
        let (header, offset, len) = match lane {
            Lane::Command | Lane::Write => (slot.capsule.len, 0, slot.in_capsule),
            Lane::Data => {
                let pdu = slot.data.expect("a PDU that has begun has a header");
                (slot.data_header.len, pdu.offset, pdu.len)
            }
        };
        let skip = sent.checked_sub(usize::from(header))? as u32;
        assert!(skip < len && offset + len <= pages.len, "a PDU that is sent has ended");
        let offset = pages.offset + offset + skip;
        Some(Next { cid, pages: Registered { offset, len: len - skip, ..pages } })
    }

    /// The ring has sent `count` bytes of the pages that were next; sets `answered` as
    /// [`SendQueue::flush`] does.
    pub(super) fn sent_pages(&mut self, count: usize, slots: &mut [Slot], answered: &mut bool) {
        let next = self.next_pages(slots).expect("the ring was told to");
        let (lane, _) = self.begun.expect("its header has gone out");
        let left = next.pages.len as usize;
        assert!(count <= left, "the kernel sends what it was told to");
        self.plan.clear();
        self.plan.push((lane, left));
        self.sent(count, slots, answered);
    }

    /// Lines up pieces: the rest of a PDU that has begun, then lane by lane.
    fn plan(&mut self, machine: &mut Machine, slots: &mut [Slot]) {
        self.plan.clear();
        self.ends_with_pages = false;
        debug_assert!(self.pieces.is_empty());
        let mut first = [0; LANES];
        if let Some((lane, sent)) = self.begun {
            self.line_up(lane, 0, sent, machine, slots);
            first[lane as usize] = 1;
        }
        for lane in IN_ORDER {
            let most = if lane == Lane::Data { DATA_PDUS_MAX } else { usize::MAX };
            let end = self.lanes[lane as usize].len().min(most);
            for at in first[lane as usize]..end {
                if self.ends_with_pages || self.pieces.len() + 3 > PIECES_MAX {
                    return;
                }
                self.line_up(lane, at, 0, machine, slots);
            }
        }
    }

    /// Lines up a PDU but for its first `skip` bytes.
    #[inline]
    fn line_up(
        &mut self,
        lane: Lane,
        at: usize,
        skip: usize,
        machine: &mut Machine,
        slots: &mut [Slot],
    ) {
        let slot = &mut slots[usize::from(self.lanes[lane as usize][at])];
        if lane == Lane::Data {
            return self.push_data(machine, slot, skip);
        }
        let capsule = &slot.capsule;
        if slot.pages.is_some() && slot.in_capsule != 0 {
            let header = (capsule.bytes.as_ptr(), usize::from(capsule.len));
            return self.push_header(lane, header, slot.in_capsule, skip);
        }
        let parts = [
            (capsule.bytes.as_ptr(), usize::from(capsule.len)),
            (slot.pointer.cast_const(), slot.in_capsule as usize),
            (capsule.digest.as_ptr(), usize::from(capsule.digest_len)),
        ];
        self.push(lane, parts, skip);
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
                    assert!(slot.pages.is_none(), "pages cannot be seen");
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
        if slot.pages.is_some() {
            let header = (header.bytes.as_ptr(), usize::from(header.len));
            return self.push_header(Lane::Data, header, pdu.len, skip);
        }
        let parts = [
            (header.bytes.as_ptr(), usize::from(header.len)),
            (slot.pointer.wrapping_add(pdu.offset as usize).cast_const(), pdu.len as usize),
            (header.digest.as_ptr(), usize::from(header.digest_len)),
        ];
        self.push(Lane::Data, parts, skip);
    }

    /// Lines up the header of a PDU whose `len` bytes of data the ring sends.
    fn push_header(&mut self, lane: Lane, header: (*const u8, usize), len: u32, skip: usize) {
        debug_assert!(skip < header.1, "what follows the header is `next_pages`");
        self.push(lane, [header, (std::ptr::null(), 0), (std::ptr::null(), 0)], skip);
        self.plan.last_mut().expect("just pushed").1 += len as usize;
        self.ends_with_pages = true;
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

    /// The socket took `count` bytes of what was planned.
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
            let cid = self.lanes[lane as usize].pop_front().expect("it was lined up");
            let slot = &mut slots[usize::from(cid)];
            if lane != Lane::Data {
                slot.sent = true;
                *answered |= slot.answer.is_some();
                continue;
            }
            slot.data = None;
            let more = slot.outgoing.filter(|it| it.remaining > 0).or(slot.next.take());
            slot.outgoing = more.filter(|_| slot.answer.is_none());
            if slot.outgoing.is_some() {
                self.lanes[Lane::Data as usize].push_back(cid);
            }
            *answered |= slot.answer.is_some();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme_tcp::host::{Config, OutgoingPdu};
    use std::time::Instant;

    #[test]
    fn what_has_begun_is_sent_to_its_end_and_the_rest_may_be_taken_out() {
        for (begun, wanted) in [
            (None, [0, 1, 2, 3]),
            (Some((Lane::Command, 8)), [1, 2, 3, 0]),
            (Some((Lane::Write, 100)), [0, 1, 3, 2]),
            (Some((Lane::Data, 24)), [0, 1, 2, 3]),
        ] {
            let mut send = SendQueue::new(8);
            for cid in 0..4 {
                send.push_command(cid, cid >= 2);
            }
            send.push_transfer(4);
            send.begun = begun;
            let mut order = send.take_commands();
            assert_eq!(
                order.len(),
                if matches!(begun, None | Some((Lane::Data, _))) { 4 } else { 3 }
            );
            order.extend(send.take_left());
            assert_eq!(order, wanted, "{begun:?}");
            assert_eq!(send.lanes[Lane::Data as usize], [4]);
        }
    }

    /// A slot of a capsule of 72 bytes and of a data PDU with a header of 24, each with 8 bytes of `data` behind it.
    /// Headers and data are made of `cid`.
    fn slot(cid: u8, data: &mut [u8; 8]) -> Slot {
        let mut slot = Slot::new(Instant::now());
        data.fill(cid);
        slot.pointer = data.as_mut_ptr();
        slot.in_capsule = 8;
        (slot.capsule.len, slot.data_header.len) = (72, 24);
        slot.capsule.bytes.fill(cid);
        slot.data_header.bytes.fill(cid);
        slot.data = Some(OutgoingPdu { header_bytes: 24, offset: 0, len: 8 });
        slot
    }

    #[test]
    fn commands_go_before_data_and_what_has_begun_before_both() {
        let mut machine = Machine::new(Config::default());
        let mut data = [[0; 8]; 8];
        let mut slots: Vec<_> = (0..).zip(&mut data).map(|(cid, data)| slot(cid, data)).collect();
        slots[4].in_capsule = 0;
        slots[5].in_capsule = 0;
        for (capsule, order) in [
            (true, vec![(2, 70), (5, 72), (3, 80), (0, 32), (1, 32)]),
            (false, vec![(0, 22), (5, 72), (2, 80), (3, 80), (1, 32)]),
        ] {
            let mut send = SendQueue::new(8);
            send.push_transfer(0);
            send.push_transfer(1);
            if !capsule {
                send.plan(&mut machine, &mut slots);
                assert_eq!(send.planned(), [(0, 32), (1, 32)]);
                send.sent(10, &mut slots, &mut false);
            }
            send.push_command(2, true);
            send.push_command(3, true);
            if capsule {
                send.push_command(4, false);
                send.plan(&mut machine, &mut slots);
                assert_eq!(send.planned(), [(4, 72), (2, 80), (3, 80), (0, 32), (1, 32)]);
                send.sent(72 + 10, &mut slots, &mut false);
            }
            send.push_command(5, false);
            send.plan(&mut machine, &mut slots);
            assert_eq!(send.planned(), order);
        }
    }

    impl SendQueue {
        /// The PDUs that are lined up, as their commands and how many bytes of each are; takes out the pieces, as
        /// `flush` does.
        fn planned(&mut self) -> Vec<(u8, usize)> {
            let mut pdus: Vec<(u8, usize)> = Vec::new();
            for piece in std::mem::take(&mut self.pieces) {
                match pdus.last_mut() {
                    Some((cid, bytes)) if *cid == piece[0] => *bytes += piece.len(),
                    _ => pdus.push((piece[0], piece.len())),
                }
            }
            pdus
        }

        fn take_left(&mut self) -> Vec<u16> {
            self.lanes[..2].iter_mut().flat_map(std::mem::take).collect()
        }
    }
}
