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

use super::controller::open_node;
use super::ioctl;
use super::ring::Carrier;
use super::sysfs::Place;
use super::{Device, queue::DeviceQueue, siblings};
use nvme::opcode::admin as opcode;
use nvme::{Command, Status};
use reactor::{Complete, FixedFile};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uring::{NvmePassthruCmd64, NvmeUringCmd};

/// How the kernel calls a controller that takes commands.
const LIVE: &str = "live";

/// How long commands are waited for that were under way before one that changes namespaces: longer than the driver gives
/// them by itself.
const PATIENCE: Duration = Duration::from_secs(90);

/// A controller's device, open.
pub(super) struct AdminFile {
    file: File,
    registered: Option<FixedFile>,
    /// `nvme0`.
    controller: String,
}

impl AdminFile {
    /// Opens the device of a controller, a live one if there is one.
    pub(super) fn open(place: &Place, carrier: &Carrier) -> io::Result<AdminFile> {
        let controller = controller(place);
        let path = path(&controller);
        let named = |error: io::Error| {
            let what = format!("{}: {error}", path.display());
            io::Error::new(error.kind(), what)
        };
        let file = open_node(&path).map_err(named)?;
        let registered = carrier.register(file.as_raw_fd());
        Ok(AdminFile { file, registered, controller })
    }

    /// Whether another controller is to be had for commands, and this one not. Reads files in /sys, which do not wait
    /// for the device.
    pub(super) fn is_outdone(&self, place: &Place) -> bool {
        if !place.is_head() {
            return false;
        }
        let controllers = place.controllers();
        let mut live = controllers.iter().filter(|(_, state)| state == LIVE).peekable();
        live.peek().is_some() && live.all(|(name, _)| *name != self.controller)
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

    /// What was noted for the kernel must have been handed over: it may name the descriptor.
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

/// A command that may change the blocks of devices: I/O is refused meanwhile, and for good if the blocks are others then.
pub(super) struct Change {
    devices: Vec<Arc<Device>>,
    sent: bool,
}

impl Change {
    /// From here on no I/O is begun on the device, and on others that a command is about which names `nsid`.
    pub(super) fn begin(device: &Arc<Device>, nsid: u32) -> Change {
        let devices = siblings::meant(device, nsid);
        devices.iter().for_each(|device| device.shape.begin());
        Change { devices, sent: false }
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
        let until = Instant::now() + PATIENCE;
        let left = || until.saturating_duration_since(Instant::now());
        if !self.devices.iter().all(|device| device.flights.wait(left())) {
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
        for device in &self.devices {
            match self.sent {
                true => device.tell(device.shape.end(device.look().ok())),
                false => device.shape.give_up(),
            }
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

/// The first live controller, or the first.
fn controller(place: &Place) -> String {
    let mut controllers = place.controllers();
    let live = controllers.iter().position(|(_, state)| state == LIVE);
    match controllers.is_empty() {
        true => "nvme".to_owned(),
        false => controllers.swap_remove(live.unwrap_or(0)).0,
    }
}

fn path(controller: &str) -> PathBuf {
    PathBuf::from("/dev").join(controller)
}

/// Which device that is, and whether it may be used, for people.
pub(super) fn describe(place: &Place) -> String {
    let path = path(&controller(place));
    let shown = path.display();
    let choice = if place.is_head() { " (any controller of the subsystem)" } else { "" };
    match open_node(&path) {
        Ok(_) => format!("{shown}{choice}"),
        Err(error) => format!("{shown}: {error}; admin commands are refused: run as root"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_head_leaves_a_controller_that_is_not_live_for_one_that_is() {
        let root = tempfile::tempdir().unwrap();
        let set = |controller: &str, state: &str| {
            let directory = root.path().join("nvme-subsys0").join(controller);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("state"), state).unwrap();
        };
        let head = Place::at(root.path().join("nvme-subsys0"));
        let file = File::open("/dev/null").unwrap();
        let own = AdminFile { file, registered: None, controller: "nvme0".into() };
        for (first, second, chosen, is_outdone) in [
            ("live", "live", "nvme0", false),
            ("resetting", "live", "nvme1", true),
            ("resetting", "connecting", "nvme0", false),
            ("live", "dead", "nvme0", false),
        ] {
            set("nvme0", first);
            set("nvme1", second);
            assert_eq!(controller(&head), chosen, "{first} {second}");
            assert_eq!(own.is_outdone(&head), is_outdone, "{first} {second}");
        }
        set("nvme1", "live");
        fs::remove_dir_all(root.path().join("nvme-subsys0/nvme0")).unwrap();
        assert!(own.is_outdone(&head), "it was removed");
        // A device of one controller has no other.
        set("nvme0", "resetting");
        assert!(!own.is_outdone(&Place::at(root.path().join("nvme-subsys0/nvme0"))));
    }
}
