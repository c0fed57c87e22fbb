//! Admin commands: by the character device of a controller that leads to the namespace.

use super::ring::Carrier;
use super::sysfs::Place;
use reactor::FixedFile;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

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

    pub(super) fn close(mut self, carrier: &Carrier) {
        if let Some(registered) = self.registered.take() {
            carrier.unregister(registered);
        }
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
