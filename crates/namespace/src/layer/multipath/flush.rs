//! A Flush over several paths: by each that has acknowledged what is not durable yet.
//!
//! ```text
//!   Flush --> the path chosen, or one that needs it      answered --.
//!        '--> beside it: every other path that needs it  answered --+--> up
//!   a path that needs it and is lost: `volatile_epoch` changes
//! ```
//!
//! A Flush covers what was completed "by the controller" that it is sent to (NVMe Base 2.1, section 7.2), and each path
//! is a controller. Linux sends it by one path. Where only one has written since it was flushed last, as many commands
//! go as there; where nothing was written, one. What a lost path's controller had acknowledged nobody can flush any
//! more: whoever has to know asks [`Namespace::volatile_epoch`].

use super::Multipath;
use super::queue::{ALONE, Flight, MultipathQueue, SIDE};
use crate::{Namespace, Request, Unflushed};
use association::retry::{Retry, may_retry};
use multipath::{Group, PathSet, Token};
use nvme::{Command, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one path has acknowledged, on all cores.
#[derive(Debug)]
pub struct Standing {
    unflushed: Unflushed,
    /// The path's own epoch when nothing was left to be flushed there.
    epoch: AtomicU64,
}

impl Standing {
    pub fn of(path: &Arc<dyn Namespace>) -> Standing {
        Standing { unflushed: Unflushed::default(), epoch: path.volatile_epoch().into() }
    }
}

/// A Flush that has others beside it.
pub struct Joint {
    /// Those that are on their way.
    left: u32,
    /// The first failure among them.
    status: Status,
    /// The Flush itself, once it has been answered.
    parked: Option<(Flight, Box<Request>)>,
}

/// A Flush beside another one.
pub struct Side {
    joint: u64,
    token: Token,
    number: u64,
}

impl Multipath {
    /// A path has answered `command`, which goes up so.
    #[inline]
    pub(super) fn acknowledged(&self, path: usize, command: &Command) {
        if self.paths.len() > 1 {
            self.standings[path].unflushed.acknowledged(command);
        }
    }

    fn flushed(&self, path: usize, number: u64) {
        let standing = &self.standings[path];
        standing.unflushed.flushed(number);
        standing.epoch.store(self.paths[path].volatile_epoch(), Ordering::Relaxed);
    }

    /// Whether `path` has something to flush, and a cache to flush it from.
    fn needs_flush(&self, path: usize) -> bool {
        self.standings[path].unflushed.any() && self.paths[path].limits().volatile_write_cache
    }

    /// A Flush is going to succeed without `path`, which needed it. Changes the epoch, unless the path has changed
    /// its own since.
    fn note_loss(&self, path: usize, is_usable: bool) {
        let standing = &self.standings[path];
        if !is_usable {
            self.paths[path].write_off();
        }
        let epoch = self.paths[path].volatile_epoch();
        if standing.epoch.swap(epoch, Ordering::Relaxed) == epoch {
            self.losses.fetch_add(1, Ordering::SeqCst);
        }
        if !is_usable {
            standing.unflushed.forget();
        }
    }
}

impl MultipathQueue {
    /// Before a Flush goes by `chosen`: sends others by the paths that need one too. Returns the path by which the
    /// Flush itself is to go.
    #[cold]
    pub(super) fn flush_beside(&self, chosen: usize, flight: &mut Flight) -> usize {
        let mut needing = PathSet::EMPTY;
        for path in 0..self.paths.len() {
            if !self.namespace.needs_flush(path) {
                continue;
            }
            let is_usable = self.paths[path].access().is_usable();
            if is_usable && !flight.avoid.contains(path) {
                needing = needing.with(path);
            } else {
                self.namespace.note_loss(path, is_usable);
            }
        }
        let chosen = match needing.lowest() {
            Some(lowest) if !needing.contains(chosen) => lowest,
            _ => chosen,
        };
        flight.flush_number = self.namespace.standings[chosen].unflushed.begin();
        let mut others = needing.without(PathSet::of(chosen));
        if !others.is_empty() && flight.joint == ALONE {
            let joint = Joint { left: 0, status: Status::SUCCESS, parked: None };
            flight.joint = self.joints.insert(joint);
        }
        while let Some(path) = others.lowest() {
            others = others.without(PathSet::of(path));
            self.send_side(path, flight);
        }
        chosen
    }

    fn send_side(&self, path: usize, flight: &Flight) {
        let mut request = self.spare_flushes.borrow_mut().pop().unwrap_or_else(Request::new);
        request.command = flight.command;
        (request.status, request.result) = (Status::SUCCESS, 0);
        let number = self.namespace.standings[path].unflushed.begin();
        self.joints.with(flight.joint, |joint| joint.left += 1);
        let token = self.dispatched(path, (Group::Other, 0), self.now_ns());
        let side = self.sides.insert(Side { joint: flight.joint, token, number });
        request.push(self.me.upgrade().expect("the queue lives while it is called"), SIDE | side);
        self.paths[path].submit(request);
    }

    #[cold]
    pub(super) fn side_completed(&self, request: Box<Request>, slot: u64) {
        let Side { joint, token, number } = self.sides.take(slot);
        let (path, status) = (token.path(), request.status);
        let verdict = may_retry(&request.command, false, status);
        self.account(&token, status, verdict);
        let is_usable = self.paths[path].access().is_usable();
        let mut failure = Status::SUCCESS;
        if status.is_success() {
            self.namespace.flushed(path, number);
        } else if verdict == Retry::OtherPath && (status.sct() == 3 || !is_usable) {
            self.namespace.note_loss(path, is_usable);
        } else {
            failure = status;
        }
        self.spare_flushes.borrow_mut().push(request);
        let parked = self.joints.with(joint, |joint| {
            joint.left -= 1;
            if joint.status.is_success() {
                joint.status = failure;
            }
            if joint.left == 0 { joint.parked.take() } else { None }
        });
        if let Some((flight, request)) = parked {
            self.finish(flight, request);
        }
    }

    /// The path of a Flush has answered it.
    #[cold]
    pub(super) fn flush_answered(&self, flight: &Flight, path: usize, status: Status) {
        if status.is_success() {
            self.namespace.flushed(path, flight.flush_number);
        }
    }

    /// Ends a Flush that has others beside it, once all are answered. Where one of those failed, it is done
    /// again, or fails so.
    #[cold]
    pub(super) fn join(&self, mut flight: Flight, mut request: Box<Request>) {
        let slot = flight.joint;
        if self.joints.with(slot, |joint| joint.left) > 0 {
            return self.joints.with(slot, |joint| joint.parked = Some((flight, request)));
        }
        let Joint { status, .. } = self.joints.take(slot);
        flight.joint = ALONE;
        if request.status.is_success() && !status.is_success() {
            if may_retry(&flight.command, false, status) != Retry::No {
                request.status = status;
                return self.retry(flight, request, 0, Retry::Delayed(0));
            }
            request.status = status;
        }
        request.complete();
    }
}
