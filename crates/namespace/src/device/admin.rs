//! Admin commands: by the character device of a controller that leads to the namespace.
//!
//! ```text
//!   most of them --------------------------------> ring: NVME_URING_CMD_ADMIN
//!   what changes namespaces (Format NVM, ...) ---> a thread that may block: NVME_IOCTL_ADMIN64_CMD
//! ```
//!
//! Around those of the second kind the driver has all I/O come to an end, our own included, and looks
//! at its namespaces afterwards; by a ring it does neither.

use super::ioctl;
use super::ring::Carrier;
use super::sysfs::Place;
use super::{Device, queue::DeviceQueue};
use nvme::Command;
use nvme::opcode::admin as opcode;
use reactor::{Complete, FixedFile};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uring::{NvmePassthruCmd64, NvmeUringCmd};

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

/// Carries out a command that may change the device's blocks, on a thread that may block: I/O is refused
/// meanwhile, and for good if the blocks are others then. Returns the driver's answer, a status or
/// `-errno`, and leaves dwords 0 and 1 of the completion in `result`.
///
/// # Safety
/// The memory that the command names stays valid until this returns, as [`reactor::Reactor::submit`] has
/// it.
pub(super) unsafe fn carry_out(
    device: &Device,
    file: &File,
    command: NvmeUringCmd,
    result: &AtomicU64,
) -> i32 {
    device.shape.begin();
    let mut call = NvmePassthruCmd64 { command, result: 0 };
    // SAFETY: passed on to the caller.
    let answer = unsafe { ioctl::admin(file, &mut call) };
    result.store(call.result, Ordering::Relaxed);
    device.tell(device.shape.end(device.look().ok()));
    answer
}

/// Takes the answer of [`carry_out`] back to the queue.
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
