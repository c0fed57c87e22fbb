//! What the kernel needs to route a volume's requests by itself.

use super::loaded::Loaded;
use super::{Routed, unless_plain};
use crate::Namespace;
use bpf::request::Device;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A program, and the files that its parts are for.
#[derive(Debug)]
pub struct ForKernel {
    loaded: Arc<Loaded>,
    /// What the program has made of the device.
    pub device: Device,
    /// The backends' sizes in blocks.
    pub sizes: Vec<u64>,
    /// The backends' files.
    pub files: Vec<OwnedFd>,
    /// Write Zeroes may deallocate.
    pub deallocates: bool,
    /// Each block is always at the same one place.
    pub has_one_place: bool,
}

impl ForKernel {
    /// The object.
    pub fn object(&self) -> &[u8] {
        &self.loaded.object
    }

    /// What the program is called.
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// The program with its maps in user space, as `NVLANE_SETUP` has left them.
    pub fn instance(&self) -> &bpf::Instance {
        &self.loaded.instance
    }
}

impl Routed {
    /// What the kernel needs, if all backends are plain files and block devices; otherwise why not.
    pub fn for_kernel(&self) -> Result<ForKernel, String> {
        let each = self.children.iter().enumerate();
        let files = each.map(|(number, child)| {
            let file = child.plain_file().ok_or_else(|| unless_plain(number, &child.uri()))?;
            let copied = |error: io::Error| format!("backend {number}: {error}");
            file.try_clone_to_owned().map_err(copied)
        });
        let files = files.collect::<Result<Vec<_>, _>>()?;
        Ok(ForKernel {
            loaded: self.programs.now(),
            device: self.device.clone(),
            sizes: self.sizes.clone(),
            files,
            deallocates: self.limits().commands.deallocate,
            has_one_place: self.has_one_place,
        })
    }

    /// From here on the kernel routes: the program cannot be replaced here any more.
    pub fn hand_to_kernel(&self) {
        self.in_kernel.store(true, Ordering::Relaxed);
    }
}
