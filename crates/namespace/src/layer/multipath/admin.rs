//! Admin commands: each goes by the best path, and by another one only if it surely was not carried out.
//!
//! Nobody here knows what such a command does, so none is repeated after it may have reached a
//! controller; nor does any wait for a path to come back.

use super::queue::{ADMIN, MultipathQueue};
use crate::Request;
use multipath::PathSet;
use nvme::Status;

/// An admin command on its way.
pub(super) struct AdminFlight {
    /// Here while it is not below.
    request: Option<Box<Request>>,
    /// Paths that it was given.
    tried: PathSet,
}

impl MultipathQueue {
    #[cold]
    pub(super) fn start_admin(&self, request: Box<Request>) {
        self.look_around();
        let flight = AdminFlight { request: Some(request), tried: PathSet::EMPTY };
        self.send_admin(self.admins.insert(flight));
    }

    /// Gives the command to the best path that has not had it yet.
    pub(super) fn send_admin(&self, slot: u64) {
        let tried = self.admins.with(slot, |flight| flight.tried);
        let left = self.paths.iter().enumerate().filter(|(path, _)| !tried.contains(*path));
        let spared = self.spared.get();
        let best = left.min_by_key(|(number, path)| (spared.contains(*number), path.access()));
        let Some((path, queue)) = best else {
            let request = self.admins.take(slot).request.expect("what is sent is here");
            return request.finish(Status::HOST_PATHING_ERROR);
        };
        let mut request = self.admins.with(slot, |flight| {
            flight.tried = flight.tried.with(path);
            flight.request.take().expect("what is sent is here")
        });
        request.push(self.me.upgrade().expect("the queue lives while it is called"), ADMIN | slot);
        queue.submit_admin(request);
    }

    #[cold]
    pub(super) fn admin_completed(&self, mut request: Box<Request>, slot: u64) {
        let refused_before_it_began = matches!(
            request.status.code(),
            Status::HOST_ABORTED | Status::ANA_INACCESSIBLE | Status::ANA_TRANSITION
        );
        let tried = self.admins.with(slot, |flight| flight.tried);
        let all_tried = (0..self.paths.len()).all(|path| tried.contains(path));
        if !refused_before_it_began || all_tried {
            drop(self.admins.take(slot));
            return request.complete();
        }
        (request.status, request.result) = (Status::SUCCESS, 0);
        self.admins.with(slot, |flight| flight.request = Some(request));
        // Not from within the path's call: it may be in the middle of giving back others.
        let me = self.me.upgrade().expect("the queue lives while it is called");
        self.reactor.defer(me, ADMIN | slot);
    }
}
