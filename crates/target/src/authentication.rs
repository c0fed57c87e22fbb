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
use reactor::Complete;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
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

/// An Authentication Send for which something is computed.
struct Computation {
    control: Rc<Control>,
    queue: (ControllerId, u16),
    place: Place,
    done: Arc<Mutex<Option<Done>>>,
}

impl Control {
    /// Has `work` carried out for a queue of a controller, then answers the command at `place`.
    pub(crate) fn compute(&self, queue: (ControllerId, u16), work: Work, place: Place) {
        let done = Arc::new(Mutex::new(None));
        let to = Arc::clone(&done);
        let work = move || {
            *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(work.run());
            0
        };
        let computation = Rc::new(Computation { control: self.me(), queue, place, done });
        self.core().reactor.blocking_long(Box::new(work), computation, 0);
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

impl Complete for Computation {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        let Computation { control, queue, place, done } = self;
        let done = done.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Place { key, cid, core } = *place;
        // Without a thread nothing was computed: the host may try again.
        let status = if done.is_some() { Status::SUCCESS } else { Status::COMMAND_INTERRUPTED };
        match done {
            Some(done) => control.target.borrow_mut().computed(queue.0, queue.1, done),
            None => control.target.borrow_mut().not_computed(queue.0, queue.1),
        }
        control.post(core, move |core: &Core| {
            if let Some(connection) = core.connection(key) {
                connection.complete_held(cid, status, 0);
            }
        });
    }
}
