//! Authentication of an I/O queue, between Connect and the first command.
//!
//! Its commands have identifier 0, as Connect has, one at a time; what comes for them is received into the memory of that
//! identifier's slot, as for any other command. What takes long is computed aside, while the core goes on.

use super::IoQueue;
use super::connection::{Connection, Lost, Stage};
use super::slot::Slot;
use association::{Authentication, AuthenticationCommand, Next};
use dhchap::{Done, Work};
use nvme::fabrics::ConnectResult;
use nvme::{Completion, Status};
use nvme_tcp::digest::digest;
use nvme_tcp::host::{COMMAND_HEADER_BYTES_MAX, Transfer};
use std::io::IoSlice;
use std::time::Instant;

/// How far it is.
pub(super) struct Authenticating {
    exchange: Authentication,
    /// The last command was answered.
    answer: Option<Status>,
}

impl Authenticating {
    pub(super) fn answered(&mut self, status: Status) {
        self.answer = Some(status);
    }
}

impl Connection {
    /// Connect has succeeded: commands may be sent, unless its result demands authentication first.
    pub(super) fn authenticate_or_live(&mut self, result: ConnectResult) -> Result<(), Lost> {
        let credentials = self.params.credentials.as_ref();
        let begun = Authentication::begin(credentials, self.queue(), result);
        match begun.map_err(|reason| Lost::ours(reason.to_string()))? {
            None => self.go_live(),
            Some((exchange, first)) => {
                self.stage = Stage::Authenticating;
                self.authenticating = Some(Box::new(Authenticating { exchange, answer: None }));
                self.send_message(&first)?;
            }
        }
        Ok(())
    }

    fn go_live(&mut self) {
        self.authenticating = None;
        (self.slots[0].pointer, self.slots[0].len) = (std::ptr::null_mut(), 0);
        self.slots[0].list = Vec::new();
        self.stage = Stage::Live;
        self.became_live = true;
    }

    /// A command of the exchange was answered.
    pub(super) fn message_answered(
        &mut self,
        completion: &Completion,
        digest_error: bool,
    ) -> Result<(), Lost> {
        if !self.credits.fetched(completion.sqhd.get()) {
            return Err(Lost::ours("the controller's SQ head pointer cannot be"));
        }
        let status = if digest_error { Status::TRANSIENT_TRANSPORT } else { completion.status() };
        if let Some(authenticating) = &mut self.authenticating {
            authenticating.answered(status);
        }
        Ok(())
    }

    /// Goes on with what was answered, if anything was. What is to be computed, if that is next.
    pub(super) fn authenticate(&mut self, now: Instant) -> Result<Option<Work>, Lost> {
        let Some(authenticating) = &mut self.authenticating else { return Ok(None) };
        let Some(status) = authenticating.answer.take() else { return Ok(None) };
        let next = authenticating.exchange.answered(status, &self.slots[0].list);
        self.go_on(next, now)
    }

    /// What was computed is there.
    fn computed(&mut self, done: Done, now: Instant) -> Result<(), Lost> {
        let Some(authenticating) = &mut self.authenticating else { return Ok(()) };
        if authenticating.exchange.is_computing() {
            let next = authenticating.exchange.computed(done);
            self.go_on(next, now)?;
        }
        Ok(())
    }

    fn go_on(&mut self, next: Next, now: Instant) -> Result<Option<Work>, Lost> {
        // Each step has its own time.
        self.since = now;
        match next {
            Next::Command(command) => self.send_message(&command)?,
            Next::Compute(work) => return Ok(Some(work)),
            Next::Proven => self.go_live(),
            Next::Failed(reason, last) => {
                if let Some(last) = last
                    && self.send.is_empty()
                    && self.send_message(&last).is_ok()
                {
                    // If it goes at once.
                    let _ = self.link.stream.writev(&[IoSlice::new(&self.send.handshake)]);
                }
                return Err(Lost::ours(reason.to_string()));
            }
        }
        Ok(None)
    }

    /// Queues a command of the exchange to be sent.
    fn send_message(&mut self, message: &AuthenticationCommand) -> Result<(), Lost> {
        let AuthenticationCommand { mut command, ref data, answer_bytes } = *message;
        if !self.credits.has_room() {
            return Err(Lost::ours("the controller does not fetch commands of authentication"));
        }
        self.credits.sent();
        command.cid = 0.into();
        let transfer = match answer_bytes {
            0 => Transfer::InCapsule(data.len() as u32),
            bytes => Transfer::ToHost(bytes),
        };
        receive_into(&mut self.slots[0], answer_bytes);
        let mut header = [0; COMMAND_HEADER_BYTES_MAX];
        let len = self.machine.command(&command, transfer, &mut header);
        let handshake = &mut self.send.handshake;
        handshake.extend_from_slice(&header[..len]);
        handshake.extend_from_slice(data);
        if self.machine.data_digest() && !data.is_empty() {
            handshake.extend_from_slice(&digest(data));
        }
        Ok(())
    }
}

/// Lays out `bytes` bytes of zeroes to receive into: what does not come stays so.
fn receive_into(slot: &mut Slot, bytes: u32) {
    slot.list.clear();
    slot.list.resize(bytes as usize, 0);
    (slot.pointer, slot.len) = (slot.list.as_mut_ptr(), bytes);
    // Nothing of a slot is in the lanes: it goes with the handshake.
    (slot.sent, slot.pages) = (true, None);
}

impl IoQueue {
    /// Does what authentication needs, on another thread.
    pub(super) fn compute(&self, generation: u64, work: Work) {
        let me = self.me.clone();
        self.reactor.aside(
            false,
            move || work.run(),
            move |done| {
                if let Some(queue) = me.upgrade() {
                    queue.computed(generation, done);
                }
            },
        );
    }

    fn computed(&self, generation: u64, done: Option<Done>) {
        if self.closed.get() {
            return;
        }
        let outcome = match &mut self.inner.borrow_mut().connection {
            Some(connection) if connection.generation() == generation => match done {
                Some(done) => connection.computed(done, self.reactor.now()),
                None => Err(Lost::ours("no thread can be had for authentication")),
            },
            _ => return,
        };
        if let Err(lost) = outcome {
            self.lose(lost, true);
            return self.deliver();
        }
        // What it sends next.
        self.defer();
    }
}
