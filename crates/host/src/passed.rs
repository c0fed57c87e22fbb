//! Admin commands that somebody passes on to the controller: from any core, by the control thread.

use crate::admin::AdminConnection;
use association::retry::of_controller;
use nvme::{Command, Completion, NSID_ALL, Status};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

/// Whoever waits for the answer: status, result, data.
type Answer = Box<dyn FnOnce(Status, u64, Vec<u8>) + Send>;

/// A command on its way to the controller and back. Dropped, it is answered with Host Pathing Error.
pub(crate) struct Passing {
    command: Command,
    /// What goes along.
    data: Vec<u8>,
    /// Room for what comes.
    answer_bytes: u32,
    timeout: Duration,
    answer: Option<Answer>,
}

impl Passing {
    pub(crate) fn new(
        command: Command,
        data: Vec<u8>,
        answer_bytes: u32,
        timeout: Duration,
        answer: Answer,
    ) -> Passing {
        Passing { command, data, answer_bytes, timeout, answer: Some(answer) }
    }

    fn is_for_namespace(&self) -> bool {
        !matches!(self.command.nsid.get(), 0 | NSID_ALL)
    }

    pub(crate) fn answer(mut self, status: Status, result: u64, data: Vec<u8>) {
        if let Some(answer) = self.answer.take() {
            answer(status, result, data);
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            answer(Status::HOST_PATHING_ERROR, 0, Vec::new());
        }
    }
}

impl fmt::Debug for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passing").field("command", &self.command).finish_non_exhaustive()
    }
}

/// The commands of one path. There are as many as its users have given to it.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    waiting: RefCell<VecDeque<Passing>>,
    /// With the controller, by identifier.
    sent: RefCell<HashMap<u16, Passing>>,
}

impl Passed {
    pub(crate) fn wait(&self, passing: Passing) {
        self.waiting.borrow_mut().push_back(passing);
    }

    /// How long the command that is to be sent next may take, and whether it is for the namespace.
    pub(crate) fn next(&self) -> Option<(Duration, bool)> {
        let waiting = self.waiting.borrow();
        waiting.front().map(|passing| (passing.timeout, passing.is_for_namespace()))
    }

    /// Gives it back: there is no namespace for it.
    pub(crate) fn give_back(&self) {
        let passing = self.waiting.borrow_mut().pop_front().expect("one waits");
        passing.answer(Status::HOST_ABORTED, 0, Vec::new());
    }

    /// Sends it as `cid`; if it is for the namespace, that is `nsid` there.
    pub(crate) fn send(&self, cid: u16, nsid: u32, admin: &AdminConnection) {
        let mut passing = self.waiting.borrow_mut().pop_front().expect("one waits");
        let mut command = passing.command;
        command.cid = cid.into();
        if passing.is_for_namespace() {
            command.nsid = nsid.into();
        }
        let data = std::mem::take(&mut passing.data);
        admin.pass(&command, data, passing.answer_bytes);
        self.sent.borrow_mut().insert(cid, passing);
    }

    pub(crate) fn answered(&self, cid: u16, completion: &Completion, data: Vec<u8>) {
        let passing = self.sent.borrow_mut().remove(&cid);
        if let Some(passing) = passing {
            let status = of_controller(completion.status());
            passing.answer(status, completion.result.get(), data);
        }
    }

    /// The association has ended: what was sent may have been carried out, the rest was not.
    pub(crate) fn hang_up(&self) {
        let sent = self.sent.take();
        for (_, passing) in sent {
            passing.answer(Status::HOST_PATHING_ERROR, 0, Vec::new());
        }
        for passing in self.waiting.take() {
            passing.answer(Status::HOST_ABORTED, 0, Vec::new());
        }
    }
}
