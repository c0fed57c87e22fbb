//! Hosts that prove who they are: what takes long is computed elsewhere, and nobody may take for ever.
//!
//! ```text
//!   Authentication Send --> subsystem --> Compute: a thread for calls that block --> computed --> the command is answered
//!                                    \--> at once
//! ```

use crate::control::Control;
use crate::core::Core;
use crate::journal::End;
use dhchap::{Done, Work};
use nvme::Status;
use std::net::SocketAddr;
use std::time::Duration;
use subsystem::{ControllerId, Reply};

/// How long the host of a queue may take to prove who it is.
pub(crate) const PROOF_TIMEOUT: Duration = Duration::from_secs(60);

/// Where a command waits for its answer.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) core: usize,
    /// Key of its connection there.
    pub(crate) key: u64,
    pub(crate) cid: u16,
}

impl Control {
    /// Has `work` carried out for a queue of a controller, then answers the command at `place`.
    pub(crate) fn compute(&self, queue: (ControllerId, u16), work: Work, place: Place) {
        let control = self.me();
        let then = move |done| control.computed(queue, done, place);
        self.core().reactor.aside(true, move || work.run(), then);
    }

    /// It is there; or there was no thread for it, and the host may try again.
    fn computed(&self, queue: (ControllerId, u16), done: Option<Done>, place: Place) {
        let status = if done.is_some() { Status::SUCCESS } else { Status::COMMAND_INTERRUPTED };
        match done {
            Some(done) => self.target.borrow_mut().computed(queue.0, queue.1, done),
            None => self.target.borrow_mut().not_computed(queue.0, queue.1),
        }
        self.post(place.core, move |core: &Core| {
            if let Some(connection) = core.connection(place.key) {
                connection.complete_held(place.cid, status, 0);
            }
        });
    }

    /// What is told of a queue after one of the commands by which hosts prove who they are.
    pub(crate) fn tell_proof(
        &self,
        (controller, queue_id): (ControllerId, u16),
        peer: Option<SocketAddr>,
        reply: &Reply,
    ) {
        let ends = matches!(reply, Reply::Refuse { .. } | Reply::Disconnect);
        let target = self.target.borrow();
        if let Some(failure) = target.authentication_failure(controller, queue_id).filter(|_| ends)
        {
            let told =
                |owner: &_, _: &_| self.core().journal.unproven(owner, queue_id, peer, failure);
            self.with_owner(controller, told);
        } else if queue_id == 0 && target.is_proven(controller, 0) {
            drop(target);
            self.tell_connected(controller);
        }
    }

    /// Connection `key` has only so long to prove who it is.
    pub(crate) fn await_proof(&self, key: u64) {
        if let Some(key) = self.unproven.begin(self.core().now(), key) {
            self.close_if_unproven(key);
        }
        self.watch_trials();
    }

    /// Those that had their time.
    pub(crate) fn expire_unproven(&self) {
        for key in self.unproven.over(self.core().now()) {
            self.close_if_unproven(key);
        }
    }

    fn close_if_unproven(&self, key: u64) {
        let Some(connection) = self.core().connection(key) else { return };
        let proven = match connection.controller() {
            Some(controller) if connection.is_admin() => {
                self.target.borrow().is_proven(controller, 0)
            }
            _ => !connection.is_unproven(),
        };
        if !proven {
            connection.blame(End::Unproven, &"it has not proved in time who it is");
            connection.close();
        }
    }
}
