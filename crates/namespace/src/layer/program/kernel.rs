//! What the kernel needs to route a volume's requests by itself.

use super::loaded::{Loaded, report};
use super::{Routed, unless_plain};
use crate::{MapReport, Namespace, ProgramReport};
use bpf::request::Device;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Whoever runs a program instead of us.
pub trait Elsewhere: Send + Sync + fmt::Debug {
    /// What the program keeps there, for people. Copies the maps: not for the data path.
    fn report(&self) -> ProgramReport;
}

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

    /// An empty report on a map, of those that the program has.
    pub fn report_on(&self, map: &bpf::Map) -> MapReport {
        MapReport { entries: Vec::new(), left_out: 0, ..report(map) }
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
    pub fn hand_over(&self, to: Arc<dyn Elsewhere>) {
        assert!(self.elsewhere.set(to).is_ok(), "a program is handed over once");
    }
}
