//! Data that is pages of the kernel: the ring moves it between socket and pages, so that it does not pass
//! through our memory.
//!
//! ```text
//!   write:  header --writev, MSG_MORE--> socket <--ring-- pages     nothing else is written meanwhile
//!   read:   socket --recv, header only--> machine
//!           socket --ring--> pages                                  nothing else is read meanwhile
//! ```
//!
//! While a read into pages is outstanding, headers are received alone, without a byte of the data that may
//! follow: that costs a system call per PDU. A connection without such reads is not concerned.
//!
//! The kernel holds pages until the ring's operation has ended: a request whose connection is lost
//! is kept until then, see [`PageTransfer::part`].

use super::Requests;
use super::connection::{Connection, Link, Lost};
use super::receive::{DIRECT_BYTES_MIN, ended, too_early};
use crate::pages::Means;
use namespace::{Registered, Request};
use nvme_tcp::Pending;
use reactor::{OperationId, Reactor};
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;

/// Tokens of the two directions; those of the link's watches are below.
pub(super) const SENDING: u64 = 2;
pub(super) const RECEIVING: u64 = 3;

/// Headers received in one turn.
const HEADERS_MAX: usize = 64;

/// One direction of a socket, in which the ring moves the pages of one command at a time.
#[derive(Default)]
pub(super) struct PageTransfer {
    state: Cell<State>,
    /// Whose pages they are, where the connection was given up meanwhile.
    parting: Cell<Option<Box<Request>>>,
}

#[derive(Clone, Copy, Default)]
enum State {
    #[default]
    Idle,
    /// The kernel has pages of command `cid`.
    Moving { operation: OperationId, cid: u16 },
    /// It has given them back: bytes moved, or `-errno`.
    Moved { result: i32, cid: u16 },
}

impl PageTransfer {
    /// Whether nobody else may use this direction of the socket.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        !matches!(self.state.get(), State::Idle)
    }

    /// Whether the kernel has pages.
    pub(super) fn is_moving(&self) -> bool {
        matches!(self.state.get(), State::Moving { .. })
    }

    /// Whether the kernel has pages of command `cid`, or has just given them back.
    pub(super) fn is_of(&self, cid: u16) -> bool {
        match self.state.get() {
            State::Idle => false,
            State::Moving { cid: moving, .. } | State::Moved { cid: moving, .. } => moving == cid,
        }
    }

    /// Has the end of the operation awaited before `request`, command `cid`, goes back: if the kernel has
    /// its pages. Otherwise it is given back at once.
    pub(super) fn part(&self, cid: u16, request: Box<Request>) -> Option<Box<Request>> {
        match self.state.get() {
            State::Moving { cid: moving, .. } if moving == cid => {
                self.parting.set(Some(request));
                None
            }
            _ => Some(request),
        }
    }

    /// Asks the kernel to give back the pages, if it has any.
    pub(super) fn cancel(&self, reactor: &Reactor) {
        if let State::Moving { operation, .. } = self.state.get() {
            reactor.cancel(operation);
        }
    }

    /// The kernel has given back the pages; the request that waited for that.
    pub(super) fn ended(&self, result: i32) -> Option<Box<Request>> {
        let State::Moving { cid, .. } = self.state.get() else {
            unreachable!("an operation ends once");
        };
        self.state.set(State::Moved { result, cid });
        self.parting.take()
    }

    /// How many bytes were moved, once per transfer; none where it is to be started again.
    fn take(&self) -> Option<Result<Option<u32>, Lost>> {
        let State::Moved { result, cid } = self.state.get() else { return None };
        self.state.set(State::Idle);
        Some(match u32::try_from(result) {
            Ok(count) => Ok(Some(count)),
            Err(_) => failed(result, cid),
        })
    }
}

/// What an error of the ring means, that was to move pages of command `cid`.
#[cold]
fn failed(result: i32, cid: u16) -> Result<Option<u32>, Lost> {
    let is = |all: &[Errno]| all.iter().any(|errno| errno.raw_os_error() == -result);
    if is(&[Errno::AGAIN, Errno::INTR]) {
        return Ok(None);
    }
    let error = io::Error::from_raw_os_error(-result);
    // The socket is as good as it was, but a PDU has begun on it that cannot end.
    let ours = || Lost::ours(format!("the kernel does not move pages: {error}"));
    if is(&[Errno::INVAL, Errno::FAULT]) {
        return Err(Lost { refused: Some(cid), ..ours() });
    }
    if is(&[Errno::NOMEM, Errno::CANCELED]) {
        return Err(ours());
    }
    Err(error.into())
}

/// What is next to be sent: pages of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) cid: u16,
    pub(super) pages: Registered,
}

impl Connection {
    /// Has the ring send what is next.
    pub(super) fn start_sending(&mut self, next: Next, means: Means, reactor: &Reactor) {
        let entry = means.send(self.link.stream.as_raw_fd(), next.pages);
        // SAFETY: the pages are with the command's request, which stays in its slot or in the
        // transfer until the sink was told; the sink keeps the socket open.
        let operation = unsafe { reactor.start(entry, Rc::<Link>::clone(&self.link), SENDING) };
        self.link.sending.state.set(State::Moving { operation, cid: next.cid });
    }

    /// Has the ring receive the rest of a payload into `pages`, which are all of the command's.
    fn start_receiving(&mut self, pending: Pending, pages: Registered, reactor: &Reactor) {
        assert!(pending.offset + pending.remaining <= pages.len, "the machine has checked it");
        let means = Means::find().expect("pages are given to those who take them");
        let offset = pages.offset + pending.offset;
        let place = Registered { offset, len: pending.remaining, ..pages };
        let entry = means.receive(self.link.stream.as_raw_fd(), place);
        // SAFETY: as in `start_sending`.
        let operation = unsafe { reactor.start(entry, Rc::<Link>::clone(&self.link), RECEIVING) };
        self.link.receiving.state.set(State::Moving { operation, cid: pending.key });
    }

    /// Goes on where the ring has moved pages. Whether it has, and whether data of the controller.
    pub(super) fn moved(&mut self, done: &mut Requests) -> Result<(bool, bool), Lost> {
        let (sent, received) = (self.link.sending.take(), self.link.receiving.take());
        let (sent, received) = (sent.transpose()?.flatten(), received.transpose()?.flatten());
        if let Some(count) = sent {
            let Connection { slots, send, late_answers, .. } = self;
            send.sent_pages(count as usize, slots, late_answers);
        }
        match received {
            None => {}
            Some(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Some(count) => {
                self.received.direct += u64::from(count);
                if let Some(end) = self.machine.payload_passed(count) {
                    self.data_end(end, done);
                }
            }
        }
        Ok((sent.is_some() || received.is_some(), received.is_some()))
    }

    /// [`Connection::receive`] while data is to come that belongs into pages: not a byte of it may come here.
    pub(super) fn receive_exactly(
        &mut self,
        buffer: &mut [u8],
        done: &mut Requests,
        reactor: &Reactor,
    ) -> Result<bool, Lost> {
        let mut progress = false;
        for _ in 0..HEADERS_MAX {
            if self.link.receiving.is_busy() {
                break;
            }
            let stashed = self.stash.len();
            let received = match self.machine.payload_pending() {
                Some(pending) => {
                    let slot = &self.slots[usize::from(pending.key)];
                    if !slot.sent {
                        return Err(too_early());
                    }
                    if let Some(pages) = slot.pages {
                        self.start_receiving(pending, pages, reactor);
                        return Ok(true);
                    }
                    let len = buffer.len().min(pending.remaining as usize);
                    if stashed == 0 && pending.remaining >= DIRECT_BYTES_MIN {
                        self.receive_payload(pending, &mut [], done)
                    } else {
                        self.receive_some(buffer, len)
                    }
                }
                None => self.receive_some(buffer, self.machine.header_missing(&self.stash)),
            };
            let Some(count) = received? else { break };
            self.process(&buffer[..count], done)?;
            progress = true;
        }
        Ok(progress)
    }

    /// Receives at most `len` bytes behind what is stashed. How many there are then.
    pub(super) fn receive_some(
        &mut self,
        buffer: &mut [u8],
        len: usize,
    ) -> io::Result<Option<usize>> {
        let stashed = self.stash.len();
        buffer[..stashed].copy_from_slice(&self.stash);
        let end = buffer.len().min(stashed + len);
        let received = self.link.stream.recv(&mut buffer[stashed..end]);
        ended(received).map(|count| count.map(|count| stashed + count))
    }
}
