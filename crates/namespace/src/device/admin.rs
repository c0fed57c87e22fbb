//! Admin commands: by the character device of a controller that leads to the namespace.
//!
//! ```text
//!   most of them --------------------------------> ring: NVME_URING_CMD_ADMIN
//!   what changes namespaces (Format NVM, ...) ---> a thread that may block: NVME_IOCTL_ADMIN64_CMD
//! ```
//!
//! Around those of the second kind the driver has all I/O come to an end, our own included, and looks
//! at its namespaces afterwards; by a ring it does neither. What we have been given before and the driver
//! has not yet (notes in rings) would reach the device afterwards, in blocks of another size: so all of that
//! is waited for first.

use super::ioctl;
use super::ring::Carrier;
use super::sysfs::Place;
use super::{Device, queue::DeviceQueue};
use nvme::opcode::admin as opcode;
use nvme::{Command, Status};
use reactor::{Complete, FixedFile};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use uring::{NvmePassthruCmd64, NvmeUringCmd};

/// How long commands are waited for that were under way before one that changes namespaces: longer than the driver gives
/// them by itself.
const PATIENCE: Duration = Duration::from_secs(90);

/// A controller's device, open.
pub(super) struct AdminFile {
    file: File,
    registered: Option<FixedFile>,
}

impl AdminFile {
    /// Opens the device of a controller, a live one if there is one.
    pub(super) fn open(place: &Place, carrier: &Carrier) -> io::Result<AdminFile> {
        let path = path(place);
        let named = |error: io::Error| {
            let what = format!("{}: {error}", path.display());
            io::Error::new(error.kind(), what)
        };
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(named)?;
        let registered = carrier.register(file.as_raw_fd());
        Ok(AdminFile { file, registered })
    }

    pub(super) fn file(&self) -> uring::File {
        match &self.registered {
            Some(registered) => registered.file(),
            None => uring::File::Fd(self.file.as_raw_fd()),
        }
    }

    /// A handle of its own to the device.
    pub(super) fn duplicate(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    pub(super) fn close(mut self, carrier: &Carrier) {
        if let Some(registered) = self.registered.take() {
            carrier.unregister(registered);
        }
    }
}

/// Whether the command may change what namespaces look like, or which there are.
pub(super) fn changes_namespaces(command: &Command) -> bool {
    matches!(
        command.opcode,
        opcode::FORMAT_NVM | opcode::NAMESPACE_MANAGEMENT | opcode::NAMESPACE_ATTACHMENT
    )
}

/// A command that may change the device's blocks: I/O is refused meanwhile, and for good if the blocks are others
/// then.
pub(super) struct Change {
    device: Arc<Device>,
    sent: bool,
}

impl Change {
    /// From here on no I/O is begun.
    pub(super) fn begin(device: &Arc<Device>) -> Change {
        device.shape.begin();
        Change { device: Arc::clone(device), sent: false }
    }

    /// Carries it out when all I/O has come back, on a thread that may block. Returns the driver's answer, a status or
    /// `-errno`, and leaves dwords 0 and 1 of the completion in `result`.
    ///
    /// # Safety
    /// The memory that the command names stays valid until this returns, as [`reactor::Reactor::submit`] has
    /// it.
    pub(super) unsafe fn carry_out(
        mut self,
        file: &File,
        command: NvmeUringCmd,
        result: &AtomicU64,
    ) -> i32 {
        if !self.device.flights.wait(PATIENCE) {
            return Status::COMMAND_INTERRUPTED.0.into();
        }
        self.sent = true;
        let mut call = NvmePassthruCmd64 { command, result: 0 };
        // SAFETY: passed on to the caller.
        let answer = unsafe { ioctl::admin(file, &mut call) };
        result.store(call.result, Ordering::Relaxed);
        answer
    }
}

/// Whatever has become of it: nobody is told of its end before the blocks have been looked at.
impl Drop for Change {
    fn drop(&mut self) {
        let device = &self.device;
        match self.sent {
            true => device.tell(device.shape.end(device.look().ok())),
            false => device.shape.give_up(),
        }
    }
}

/// Takes the answer of [`Change::carry_out`] back to the queue.
pub(super) struct Carried {
    pub(super) queue: Rc<DeviceQueue>,
    pub(super) result: Arc<AtomicU64>,
}

impl Complete for Carried {
    fn complete(&self, token: u64, result: i32, flags: u32) {
        self.queue.complete_command(token, result, flags, self.result.load(Ordering::Relaxed));
    }
}

/// `/dev/nvmeX` of the first live controller, or of the first.
fn path(place: &Place) -> PathBuf {
    let controllers = place.controllers();
    let live = controllers.iter().find(|(_, state)| state == "live");
    let name = live.or(controllers.first()).map_or("nvme", |(name, _)| name);
    PathBuf::from("/dev").join(name)
}

/// Which device that is, and whether it may be used, for people.
pub(super) fn describe(place: &Place) -> String {
    let path = path(place);
    let shown = path.display();
    let choice = if place.is_head() { " (any controller of the subsystem)" } else { "" };
    match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(_) => format!("{shown}{choice}"),
        Err(error) => format!("{shown}: {error}; admin commands are refused: run as root"),
    }
}
