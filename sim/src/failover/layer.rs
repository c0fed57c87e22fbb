//! Users, and the layer that chooses paths for them and retries.

use super::{BLOCKS, Event, USERS_UNTIL_NS, World};
use crate::model::{MS, US};
use association::retry::{Retry, may_retry};
use multipath::{Group, Outcome, PathSet, Selector, Settings, Shared, Token};
use nvme::{Command, Status, opcode};
use std::collections::VecDeque;
use std::sync::Arc;

/// Pauses between retries, once each path may have failed: a millisecond, twice as long each time,
/// up to this.
const PAUSE_NS_MAX: u64 = 1_000 * MS;
/// A command that has failed so often is not sent again.
const FAILURES_MAX: u32 = 64;

/// The layer above the paths.
pub struct Layer {
    selector: Selector,
    /// Commands while no path is usable, in order.
    waiting: VecDeque<usize>,
}

/// A user's command.
#[derive(Clone, Debug)]
pub struct Op {
    pub command: Command,
    /// What a write stores.
    pub value: u64,
    pub is_done: bool,
    user: usize,
    block: usize,
    /// What a read may return at least.
    floor: u64,
    begun_ns: u64,
    failures: u32,
    /// Paths that have failed it since the last pause.
    avoid: PathSet,
    token: Option<Token>,
}

impl Layer {
    pub fn new(paths: usize, settings: Settings, shared: Arc<Shared>, seed: u64) -> Layer {
        let mut selector = Selector::new(paths, settings, shared, seed);
        for path in 0..paths {
            selector.stand(path, multipath::Standing::Unusable);
        }
        Layer { selector, waiting: VecDeque::new() }
    }
}

impl World {
    /// A user begins his next command: the first [`BLOCKS`] users write their blocks, others read.
    pub fn user(&mut self, user: usize) {
        let begun_ns = self.agenda.now_ns();
        if begun_ns >= USERS_UNTIL_NS {
            return;
        }
        let (code, block, value) = if user < BLOCKS {
            (opcode::io::WRITE, user, self.registers.next(user))
        } else {
            (opcode::io::READ, self.random.below(BLOCKS as u64) as usize, 0)
        };
        let floor = self.registers.floor(block);
        let command = Command::blocks(code, 1, block as u64, 1);
        let (is_done, failures, avoid, token) = (false, 0, PathSet::EMPTY, None);
        self.ops.push(Op {
            command,
            value,
            is_done,
            user,
            block,
            floor,
            begun_ns,
            failures,
            avoid,
            token,
        });
        self.submit(self.ops.len() - 1);
    }

    /// Sends a command on a path, or has it wait for one.
    pub fn submit(&mut self, number: usize) {
        let now_ns = self.agenda.now_ns();
        let op = &mut self.ops[number];
        let is_read = op.command.opcode == opcode::io::READ;
        let group = if is_read { Group::Read } else { Group::Write };
        let selector = &mut self.layer.selector;
        let avoiding = selector.select(now_ns, group, 4096, op.avoid);
        let chosen = avoiding.or_else(|| selector.select(now_ns, group, 4096, PathSet::EMPTY));
        let Some(path) = chosen else {
            self.layer.waiting.push_back(number);
            return;
        };
        op.token = Some(selector.submitted(path, now_ns, group, 4096));
        self.send_io(path, number);
    }

    /// A path gives a command back.
    pub fn completed(&mut self, number: usize, status: Status, value: u64) {
        let now_ns = self.agenda.now_ns();
        let op = &mut self.ops[number];
        let token = op.token.expect("a command that comes back was sent");
        let outcome = if status.code().sct() == 3 { Outcome::Failed } else { Outcome::Answered };
        self.layer.selector.completed(&token, now_ns, outcome);
        let verdict = may_retry(&op.command, false, status);
        if verdict == Retry::No || op.failures == FAILURES_MAX {
            return self.finished(number, status, value);
        }
        op.failures += 1;
        op.avoid = op.avoid.with(token.path());
        self.report.retries += 1;
        let pause_ns = match op.failures.checked_sub(self.paths.len() as u32) {
            None | Some(0) => 0,
            Some(further) => (MS << (further - 1).min(10)).min(PAUSE_NS_MAX),
        };
        if pause_ns > 0 {
            op.avoid = PathSet::EMPTY;
        }
        // Not from within the path's call: it may be in the middle of giving back others.
        self.agenda.after(pause_ns, Event::Retry(number));
    }

    fn finished(&mut self, number: usize, status: Status, value: u64) {
        let now_ns = self.agenda.now_ns();
        let op = &mut self.ops[number];
        op.is_done = true;
        let (user, block, floor, written) = (op.user, op.block, op.floor, op.value);
        let is_write = op.command.opcode == opcode::io::WRITE;
        let took_ms = (now_ns - op.begun_ns) / MS;
        self.report.completed += 1;
        self.report.stall_ms = self.report.stall_ms.max(took_ms);
        let checked = match status.is_success() {
            false => Err(format!("user {user} has an error: {status}")),
            true if is_write => self.registers.acknowledged(block, written),
            true => self.registers.read(block, value, floor),
        };
        if let Err(what) = checked {
            self.violation(what);
        }
        let pause_ns = 200 * US + self.random.below(20 * MS);
        self.agenda.after(pause_ns, Event::User(user));
    }

    /// A path has become usable, or is no longer.
    pub fn access_changed(&mut self, path: usize) {
        let standing = self.paths[path].standing();
        self.layer.selector.stand(path, standing);
        if !self.layer.selector.has_usable() {
            return;
        }
        for op in std::mem::take(&mut self.layer.waiting) {
            self.submit(op);
        }
    }
}
