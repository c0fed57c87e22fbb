//! Authentication Send and Receive: hosts that prove who they are (NVMe Base 2.1, sections 6.1, 6.2 and 8.3.4).
//!
//! A queue whose host has a key takes nothing else before. What takes long is computed by who calls: see
//! [`Reply::Compute`] and [`Target::computed`].

use crate::admin::expect_length;
use crate::config::Authentication;
use crate::controller::Controller;
use crate::event::ControllerId;
use crate::target::Target;
use crate::{AUTHENTICATION_BYTES_MAX, Reply};
use dhchap::{ControllerConfig, Done, Failure, Sent};
use nvme::{Command, Status, opcode};
use std::sync::Arc;
use std::time::Duration;

impl Controller {
    /// Has the host of queue `queue_id`, which is being connected, prove who it is.
    pub(crate) fn demand(&mut self, queue_id: u16, authentication: &Authentication) {
        let config = self.to_prove(authentication);
        self.authentication.insert(queue_id, dhchap::Controller::new(config));
    }

    fn to_prove(&self, authentication: &Authentication) -> ControllerConfig {
        let Authentication { host_keys, controller_key, hashes, groups } = authentication.clone();
        ControllerConfig {
            host_nqn: Arc::clone(&self.host_nqn),
            subsystem_nqn: Arc::clone(&self.subsystem_nqn),
            host_keys,
            controller_key,
            hashes,
            groups,
        }
    }

    /// Whether a queue takes commands: its host has proved who it is, or need not.
    pub(crate) fn is_proven(&self, queue_id: u16) -> bool {
        self.authentication.get(&queue_id).is_none_or(dhchap::Controller::is_proven)
    }
}

impl Target {
    /// Whether a queue takes commands: its host has proved who it is, or need not.
    pub fn is_proven(&self, id: ControllerId, queue_id: u16) -> bool {
        self.controllers.get(&id).is_some_and(|controller| controller.is_proven(queue_id))
    }

    /// Why the host of a queue could not prove who it is, if it has failed to.
    pub fn authentication_failure(&self, id: ControllerId, queue_id: u16) -> Option<Failure> {
        self.controllers.get(&id)?.authentication.get(&queue_id)?.failure()
    }

    /// What [`Reply::Compute`] has asked for is there; the command it was for is complete.
    pub fn computed(&mut self, id: ControllerId, queue_id: u16, done: Done) {
        if let Some(end) = self.authentication(id, queue_id) {
            end.computed(done);
        }
    }

    /// The same cannot be had: the command is to be told so.
    pub fn not_computed(&mut self, id: ControllerId, queue_id: u16) {
        if let Some(end) = self.authentication(id, queue_id) {
            end.not_computed();
        }
    }

    /// Authentication Send or Receive, whether the host has to prove anything or not.
    pub(crate) fn authenticate(
        &mut self,
        id: ControllerId,
        queue_id: u16,
        command: &Command,
        data: &[u8],
        now: Duration,
    ) -> Result<Reply, Status> {
        let parameters = nvme::fabrics::Authentication::of(command);
        if !parameters.is_in_band() || parameters.bytes == 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if parameters.bytes > AUTHENTICATION_BYTES_MAX {
            return Err(Status::INVALID_FIELD.dnr());
        }
        expect_length(command, parameters.bytes.into())?;
        let before = self.is_proven(id, queue_id);
        let reply = if command.fctype() == opcode::fabrics::AUTHENTICATION_SEND {
            self.message_sent(id, queue_id, data)
        } else {
            self.message_fetched(id, queue_id, parameters.bytes as usize)
        };
        match (before, self.is_proven(id, queue_id)) {
            (false, true) if queue_id == 0 => self.begin_keep_alive(id, now),
            // A host sends no Keep Alive before it has all its queues; who has proved nothing keeps nobody alive.
            (_, true) => self.activity(id, now),
            _ => {}
        }
        reply
    }

    fn begin_keep_alive(&mut self, id: ControllerId, now: Duration) {
        if let Some(controller) = self.controllers.get_mut(&id) {
            controller.keep_alive.begin(now);
        }
        self.schedule(id);
    }

    fn message_sent(
        &mut self,
        id: ControllerId,
        queue_id: u16,
        data: &[u8],
    ) -> Result<Reply, Status> {
        let mut random = self.random;
        let wanted = self.wanted(id);
        let end = self.authentication(id, queue_id).ok_or(Status::INVALID_OPCODE.dnr())?;
        if let Some(wanted) = wanted.filter(|_| !end.has_begun()) {
            // The keys may have been changed since the last time.
            end.configure(wanted);
        }
        match end.sent(data, &mut random) {
            Sent::Taken if end.is_over() => Ok(Reply::Disconnect),
            Sent::Taken => Ok(Status::SUCCESS.into()),
            Sent::Work(work) => Ok(Reply::Compute(work)),
            Sent::Busy => Err(Status::COMMAND_SEQUENCE_ERROR.dnr()),
        }
    }

    fn message_fetched(
        &mut self,
        id: ControllerId,
        queue_id: u16,
        room: usize,
    ) -> Result<Reply, Status> {
        let end = self.authentication(id, queue_id).ok_or(Status::INVALID_OPCODE.dnr())?;
        // Before it is made: a message that was handed out is not handed out again.
        if room < dhchap::MESSAGE_BYTES_MIN {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let mut data = end.fetch(room).ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        data.resize(room, 0);
        if end.is_over() {
            return Ok(Reply::Refuse { data });
        }
        Ok(Reply::Complete { status: Status::SUCCESS, result: 0, data: Some(data) })
    }

    /// What the host of a controller has to prove as of now.
    fn wanted(&self, id: ControllerId) -> Option<ControllerConfig> {
        let controller = self.controllers.get(&id)?;
        let known = &self.subsystems.get(&controller.subsystem_nqn)?.authentication;
        Some(controller.to_prove(known.get(&*controller.host_nqn)?))
    }

    fn authentication(
        &mut self,
        id: ControllerId,
        queue_id: u16,
    ) -> Option<&mut dhchap::Controller> {
        self.controllers.get_mut(&id)?.authentication.get_mut(&queue_id)
    }
}
