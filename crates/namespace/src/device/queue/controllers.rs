//! A queue's admin commands, which go to a controller's own device: opened at the first, and left for another's when it is
//! of no use any more.

use super::{Carrier, DeviceQueue, Extents, LOOK_EVERY};
use crate::device::admin::{self, AdminFile, Change};
use crate::{Data, Request};
use nvme::{NSID_ALL, Status};
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use uring::{BigEntry, NvmeOp, NvmeUringCmd, entry};

impl DeviceQueue {
    #[cold]
    pub(super) fn start_admin(&self, mut request: Box<Request>) {
        let (carrier, file) = match self.admin_file(&request) {
            Ok(found) => found,
            Err(status) => {
                (request.status, request.result) = (status, 0);
                return self.conclude(request, false, false);
            }
        };
        if admin::changes_namespaces(&request.command) {
            // The driver's call that blocks has none with vectors.
            if let Data::Vectors(_) = &request.data {
                return request.finish(Status::INVALID_FIELD.dnr());
            }
            let command = self.admin_command(&request);
            let own = self.admin.borrow().as_ref().map(|(_, file)| file.duplicate());
            return match own {
                Some(Ok(file)) => self.carry_out(request, command, file),
                _ => request.finish(Status::INTERNAL),
            };
        }
        let entry = self.admin_entry(&carrier, file, &request);
        self.hand_over(&carrier, request, entry);
    }

    /// The command as the kernel wants it: for the device's own namespace, unless it is for none or for all.
    fn admin_command(&self, request: &Request) -> NvmeUringCmd {
        let mut command = self.passed(request, &Extents::of(request), &request.command);
        if !matches!(command.nsid, 0 | NSID_ALL) {
            command.nsid = self.device.nsid;
        }
        command
    }

    /// The entry of the ring for an admin command to the controller's `file`: by the registered buffer, where there is one.
    pub(in crate::device) fn admin_entry(
        &self,
        carrier: &Carrier,
        file: uring::File,
        request: &Request,
    ) -> BigEntry {
        let mut command = self.admin_command(request);
        match &request.data {
            Data::Vectors(vectors) => {
                command.data_len = vectors.count();
                entry::nvme_command(file, &command, NvmeOp::AdminVec, None)
            }
            data => {
                let fixed = carrier.fixed_index(data);
                entry::nvme_command(file, &command, NvmeOp::Admin, fixed)
            }
        }
    }

    /// Has an admin command carried out that may change what the device's blocks look like.
    pub(in crate::device) fn carry_out(
        &self,
        request: Box<Request>,
        command: NvmeUringCmd,
        file: File,
    ) {
        let (device, result) = (Arc::clone(&self.device), Arc::new(AtomicU64::new(0)));
        let queue = self.me.upgrade().expect("the queue lives while it is called");
        let sink = Rc::new(admin::Carried { queue, result: Arc::clone(&result) });
        let token = Box::into_raw(request) as u64;
        let work = move || {
            // Not before: it may have to wait for a thread.
            let change = Change::begin(&device, command.nsid);
            // SAFETY: the command names memory of the request's data, which stays in its box until
            // `complete_command` takes it back, after this has returned.
            unsafe { change.carry_out(&file, command, &result) }
        };
        self.reactor.blocking_long(Box::new(work), sink, token);
    }

    /// The ring for admin commands, and a controller's device. What a command is told for which there is none is told
    /// to others for a moment: whoever may send them must not have us look for devices with each.
    pub(in crate::device) fn admin_file(
        &self,
        request: &Request,
    ) -> Result<(Carrier, uring::File), Status> {
        let now = self.reactor.now();
        if let Some((until, status)) = self.admin_refused.get()
            && now < until
        {
            return Err(status);
        }
        self.open_admin_file().map_err(|error| {
            let status = self.without_admin_file(request, &error);
            self.admin_refused.set(Some((now + LOOK_EVERY, status)));
            status
        })
    }

    fn open_admin_file(&self) -> io::Result<(Carrier, uring::File)> {
        let place = &self.device.place;
        let is_outdone = |admin: &(Carrier, AdminFile)| admin.1.is_outdone(place);
        if self.admin.borrow().as_ref().is_some_and(is_outdone) {
            self.leave_controller();
        }
        let mut admin = self.admin.borrow_mut();
        if admin.is_none() {
            let carrier = match self.device.polled() {
                true => Carrier::plain(&self.reactor)?,
                false => self.carrier.clone(),
            };
            let file = AdminFile::open(place, &carrier)?;
            *admin = Some((carrier, file));
        }
        let (carrier, file) = admin.as_ref().expect("just opened");
        Ok((carrier.clone(), file.file()))
    }

    /// What becomes of an admin command for which no controller's device can be opened: it was not sent.
    fn without_admin_file(&self, request: &Request, error: &io::Error) -> Status {
        let now = self.circumstances(request);
        // So the kernel says of a controller that is being reset.
        let is_busy = error.kind() == io::ErrorKind::WouldBlock;
        let status = match is_busy {
            _ if now.gone || now.no_path => self.of_kernel(libc::ENODEV, now),
            true => Status::COMMAND_INTERRUPTED,
            false => {
                self.device.log_closed(error);
                Status::OPERATION_DENIED.dnr()
            }
        };
        // Another path may do, whatever the command is.
        let is_elsewhere = now.is_path && (now.gone || now.no_path || is_busy);
        if is_elsewhere { Status::HOST_ABORTED } else { status }
    }

    /// Forgets which controller admin commands go to. Its device stays open until the kernel has those that were noted: another
    /// file may have its number then. When the queue goes there are none.
    pub(in crate::device) fn leave_controller(&self) {
        let mut left = self.left.borrow_mut();
        left.extend(self.admin.take());
        if left.iter().all(|(carrier, _)| carrier.hand_over()) {
            left.drain(..).for_each(|(carrier, file)| file.close(&carrier));
        }
    }
}
