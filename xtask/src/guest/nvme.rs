//! NVMe devices of a guest, for tests of passthrough: whoever loads the `nvme` module has them.
//!
//! ```text
//!   Set::Usual
//!   serial nvlane-plain    namespace 1: blocks of 512 bytes     namespace 2: 4096, with 8 bytes of
//!                                                               metadata and protection information
//!   serial nvlane-zoned    namespace 1: 64 MiB in zones of 4 MiB, of which 3 MiB can be written
//!                          namespace 2: a bit more than 2 TiB in zones of 4 GiB: blocks from 2^32 on
//!   serial nvlane-path     namespace 1 of two controllers: one subsystem; 300 commands a second at most, so that there is
//!                          something in flight whenever a controller goes
//!   and the kernel's own multipath is off
//!
//!   Set::Placed
//!   serial nvlane-placed   namespace 1: Flexible Data Placement, four handles to reclaim units of 16 MiB
//! ```
//!
//! Without the module they cost nothing but a PCI slot each.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::machine::Machine;
use crate::emulator::Emulator;

/// The images behind a guest's devices: sparse, and removed with this.
#[derive(Debug)]
pub struct Devices {
    images: Vec<PathBuf>,
}

/// Which devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Those that most tests have. From QEMU 10 on each of these controllers says that its subsystem may have others, and
    /// each namespace would be a multipath head; without multipath each is a device of its controller, as with older ones.
    Usual,
    /// What older emulators do not have.
    Placed,
}

/// Name, bytes, further options of the drive, and the namespace as QEMU wants it.
type Image = (&'static str, u64, &'static str, &'static str);

impl Set {
    fn namespaces(self) -> &'static [Image] {
        match self {
            Self::Usual => &[
                ("plain", 256 << 20, "", "bus=nvlane-plain,nsid=1,msrc=7,mssrl=64,mcl=128"),
                (
                    "metadata",
                    64 << 20,
                    "",
                    "bus=nvlane-plain,nsid=2,logical_block_size=4096,physical_block_size=4096,ms=8,mset=0,pi=1",
                ),
                (
                    "zoned",
                    64 << 20,
                    "",
                    "bus=nvlane-zoned,nsid=1,zoned=true,zoned.zone_size=4M,zoned.zone_capacity=3M",
                ),
                (
                    "large",
                    (2 << 40) + (8 << 30),
                    "",
                    "bus=nvlane-zoned,nsid=2,zoned=true,zoned.zone_size=4G",
                ),
                (
                    "shared",
                    64 << 20,
                    ",throttling.iops-total=300",
                    "bus=nvlane-path-a,nsid=1,shared=on",
                ),
            ],
            Self::Placed => &[("placed", 64 << 20, "", "bus=nvlane-placed,nsid=1,fdp.ruhs=0-3")],
        }
    }

    /// In order; those that share come after their subsystem.
    fn controllers(self) -> &'static [&'static str] {
        match self {
            Self::Usual => &[
                "nvme,id=nvlane-plain,serial=nvlane-plain,mdts=7",
                "nvme,id=nvlane-zoned,serial=nvlane-zoned,mdts=7",
                "nvme-subsys,id=nvlane-shared,nqn=nvlane-shared",
                "nvme,id=nvlane-path-a,serial=nvlane-path,subsys=nvlane-shared",
                "nvme,id=nvlane-path-b,serial=nvlane-path,subsys=nvlane-shared",
            ],
            Self::Placed => &[
                "nvme-subsys,id=nvlane-fdp,nqn=nvlane-fdp,fdp=on,fdp.nruh=8,fdp.nrg=1,fdp.runs=16M",
                "nvme,id=nvlane-placed,serial=nvlane-placed,subsys=nvlane-fdp",
            ],
        }
    }

    /// Words for the kernel's command line.
    fn append(self) -> &'static str {
        match self {
            Self::Usual => "nvme_core.multipath=N ",
            Self::Placed => "",
        }
    }
}

impl Devices {
    /// Gives `machine` the devices of `set`, if its emulator has such, with images in `directory`.
    pub fn attach(machine: &mut Machine, set: Set, directory: &Path) -> Result<Devices> {
        let mut devices = Devices { images: Vec::new() };
        if set == Set::Placed && !Emulator::newest()?.is_new {
            return Ok(devices);
        }
        // First: of two words for one thing the last counts.
        machine.append.insert_str(0, set.append());
        let mut add = |option: &str, value: String| {
            machine.qemu_arguments.extend([option.to_owned(), value]);
        };
        for controller in set.controllers() {
            add("-device", (*controller).into());
        }
        for &(name, bytes, more, namespace) in set.namespaces() {
            let image = directory.join(format!("nvme-{name}.img"));
            let shown = image.display().to_string();
            ensure!(!shown.contains(','), "QEMU cannot take a comma in a name: {shown:?}");
            // Anew: a zoned namespace keeps nothing about its zones.
            let file = File::create(&image).with_context(|| shown.clone())?;
            devices.images.push(image);
            file.set_len(bytes)?;
            let drive = format!("file={shown},if=none,id=nvlane-{name},format=raw,cache=unsafe");
            add("-drive", drive + more);
            add("-device", format!("nvme-ns,drive=nvlane-{name},{namespace}"));
        }
        Ok(devices)
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        for image in &self.images {
            // Nothing is lost if it stays. The folder does where there is something else in it.
            let _ = fs::remove_file(image);
            let _ = image.parent().map(fs::remove_dir);
        }
    }
}
