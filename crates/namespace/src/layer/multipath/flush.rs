//! A Flush over several paths: by each that has acknowledged what is not durable yet.
//!
//! ```text
//!   Flush --> the path chosen, or one that needs it      answered --.
//!        '--> beside it: every other path that needs it  answered --+--> up
//!   a path that needs it and is lost: `volatile_epoch` changes
//!   one that is not, but fails it:    all of it again, after a pause, or it fails
//! ```
//!
//! A Flush covers what was completed "by the controller" that it is sent to (NVMe Base 2.1, section 7.2), and each path
//! is a controller. Linux sends it by one path. Where only one has written since it was flushed last, as many commands
//! go as there; where nothing was written, one. What a lost path's controller had acknowledged nobody can flush any
//! more: whoever has to know asks [`crate::Namespace::volatile_epoch`]. It stays to be flushed, in case the path comes back.
//!
//! Whether a path is lost is its own to say ([`crate::Namespace::access`]), not this core's queue's: that may be still to be
//! connected, or never be, while the controller has what other cores wrote.

use super::queue::{ALONE, Flight, MultipathQueue, SIDE};
use super::{Multipath, any_succeeds};
use crate::{Access, Request, Unflushed};
use association::retry::{Retry, may_retry};
use multipath::{Group, PathSet, Token};
use nvme::{Command, Status};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one path has acknowledged, on all cores.
#[derive(Debug)]
pub struct Standing {
    unflushed: Unflushed,
    /// What [`Unflushed::needed`] was when its loss was told last.
    told: AtomicU64,
}

impl Default for Standing {
    /// Who had the volume before may have left something to flush, so that the first Flush goes by every path. What
    /// was lost of that is no loss here: nobody has looked at the epoch yet.
    fn default() -> Standing {
        let unflushed = Unflushed::default();
        unflushed.inherit();
        let told = AtomicU64::new(unflushed.needed());
        // What is acknowledged from now on needs a later one.
        unflushed.begin();
        Standing { unflushed, told }
    }
}

impl Standing {
    /// Whether something may be lost of which nobody was told.
    fn is_untold(&self) -> bool {
        self.unflushed.any() && self.told.load(Ordering::SeqCst) < self.unflushed.needed()
    }
}

/// A Flush that has others beside it.
pub struct Joint {
    /// The paths of those that are on their way.
    on_way: PathSet,
    /// The first failure among them.
    failure: Option<Failure>,
    /// The Flush itself, once it has been answered.
    parked: Option<(Flight, Box<Request>)>,
}

/// What came of a Flush that has failed, and by which path.
#[derive(Clone, Copy)]
struct Failure {
    status: Status,
    os_error: i32,
    path: usize,
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

    /// Whether `path` has something to flush, and a cache to flush it from.
    fn needs_flush(&self, path: usize) -> bool {
        self.standings[path].unflushed.any() && self.paths[path].writes_back()
    }

    /// A Flush is going to succeed without `path`, which needed it and stands so. Changes the epoch, once.
    fn note_loss(&self, path: usize, access: Access) {
        let Standing { unflushed, told } = &self.standings[path];
        let needed = unflushed.needed();
        if told.load(Ordering::SeqCst) >= needed {
            return;
        }
        // First: what is acknowledged by a path that comes back needs a later one, and is told of again.
        unflushed.begin();
        if access >= Access::Lost {
            self.paths[path].write_off();
        }
        self.losses.fetch_add(1, Ordering::SeqCst);
        // Last: another core's Flush that finds this sees the new epoch.
        told.fetch_max(needed, Ordering::SeqCst);
    }

    /// Flushes by every path that has something to flush, or else by one. What a path cannot flush is an error,
    /// once if the path is lost.
    pub(super) fn flush_now(&self) -> io::Result<()> {
        let owes = |path: &usize| {
            let is_wanted =
                || self.paths[*path].access().is_usable() || self.standings[*path].is_untold();
            self.paths.len() > 1 && self.needs_flush(*path) && is_wanted()
        };
        let owing: Vec<usize> = (0..self.paths.len()).filter(owes).collect();
        if owing.is_empty() {
            return any_succeeds(self.paths.iter().map(|path| path.flush())).map(drop);
        }
        let mut result = Ok(());
        for path in owing {
            let unflushed = &self.standings[path].unflushed;
            let number = unflushed.begin();
            match self.paths[path].flush() {
                Ok(()) => unflushed.flushed(number),
                // Where a path was let go, it was flushed before.
                Err(_) if !self.needs_flush(path) => {}
                Err(error) => {
                    let access = self.paths[path].access();
                    if !access.is_usable() {
                        self.note_loss(path, access);
                    }
                    result = result.and(Err(error));
                }
            }
        }
        result
    }
}

impl MultipathQueue {
    /// How `path` stands for a Flush: as this core's queue, or as others' may.
    fn access_to_flush(&self, path: usize) -> Access {
        let here = self.paths[path].access();
        if here.is_usable() { here } else { self.namespace.paths[path].access() }
    }

    /// Before a Flush goes by `chosen`: sends others by the paths that need one too. Returns the path by which the
    /// Flush itself is to go.
    #[cold]
    pub(super) fn flush_beside(&self, chosen: usize, flight: &mut Flight) -> usize {
        let on_way = match flight.joint {
            ALONE => PathSet::EMPTY,
            joint => self.joints.with(joint, |joint| joint.on_way),
        };
        // All that need one, whatever came of those before, and the best to send the Flush itself by.
        let (mut needing, mut best) = (PathSet::EMPTY, None);
        for path in 0..self.paths.len() {
            if on_way.contains(path) || !self.namespace.needs_flush(path) {
                continue;
            }
            let access = self.access_to_flush(path);
            if !access.is_usable() {
                self.namespace.note_loss(path, access);
                continue;
            }
            needing = needing.with(path);
            if best.is_none() && self.paths[path].access().is_usable() {
                best = Some(path);
            }
        }
        let chosen = match best {
            Some(best) if !needing.contains(chosen) => best,
            _ => chosen,
        };
        flight.flush_number = self.namespace.standings[chosen].unflushed.begin();
        let mut others = needing.without(PathSet::of(chosen));
        if !others.is_empty() && flight.joint == ALONE {
            let joint = Joint { on_way: PathSet::EMPTY, failure: None, parked: None };
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
        (request.status, request.os_error, request.result) = (Status::SUCCESS, 0, 0);
        let number = self.namespace.standings[path].unflushed.begin();
        self.joints.with(flight.joint, |joint| joint.on_way = joint.on_way.with(path));
        let token = self.dispatched(path, (Group::Other, 0), self.now_ns());
        let side = self.sides.insert(Side { joint: flight.joint, token, number });
        request.push(self.me.upgrade().expect("the queue lives while it is called"), SIDE | side);
        self.paths[path].submit(request);
    }

    #[cold]
    pub(super) fn side_completed(&self, request: Box<Request>, slot: u64) {
        let Side { joint, token, number } = self.sides.take(slot);
        let (path, status, os_error) = (token.path(), request.status, request.os_error);
        let verdict = may_retry(&request.command, false, status);
        self.account(&token, status, verdict);
        self.spare_flushes.borrow_mut().push(request);
        let access = self.access_to_flush(path);
        let mut failure = None;
        if status.is_success() {
            self.namespace.standings[path].unflushed.flushed(number);
        } else if verdict == Retry::OtherPath && !access.is_usable() {
            // Where a path was let go, it was flushed before.
            if self.namespace.needs_flush(path) {
                self.namespace.note_loss(path, access);
            }
        } else {
            failure = Some(Failure { status, os_error, path });
        }
        let parked = self.joints.with(joint, |joint| {
            joint.on_way = joint.on_way.without(PathSet::of(path));
            joint.failure = joint.failure.or(failure);
            if joint.on_way.is_empty() { joint.parked.take() } else { None }
        });
        if let Some((flight, request)) = parked {
            self.finish(flight, request);
        }
    }

    /// The path of a Flush has answered it.
    #[cold]
    pub(super) fn flush_answered(&self, flight: &Flight, path: usize, status: Status) {
        if status.is_success() {
            self.namespace.standings[path].unflushed.flushed(flight.flush_number);
        }
    }

    /// Ends a Flush that has others beside it, once all are answered. Where one of those failed, it is done
    /// again as if it had failed so itself, or fails so.
    #[cold]
    pub(super) fn join(&self, mut flight: Flight, mut request: Box<Request>) {
        let slot = flight.joint;
        if self.joints.with(slot, |joint| !joint.on_way.is_empty()) {
            return self.joints.with(slot, |joint| joint.parked = Some((flight, request)));
        }
        let Joint { failure, .. } = self.joints.take(slot);
        flight.joint = ALONE;
        if let Some(Failure { status, os_error, path }) = failure
            && request.status.is_success()
        {
            (request.status, request.os_error, request.result) = (status, os_error, 0);
            match may_retry(&flight.command, false, status) {
                Retry::No => {}
                verdict => return self.retry(flight, request, path, verdict),
            }
        }
        request.complete();
    }
}
