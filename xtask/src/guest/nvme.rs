//! NVMe devices of a guest, for tests of passthrough: whoever loads the `nvme` module has them.
//!
//! ```text
//!   Set::Usual
//!   serial nvlane-plain    namespace 1: blocks of 512 bytes     namespace 2: 4096, with 8 bytes of
//!                                                               metadata and protection information
//!   serial nvlane-zoned    namespace 1: 64 MiB in zones of 4 MiB, of which 3 MiB can be written
//!   serial nvlane-path     namespace 1 of two controllers: one subsystem
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
    /// Those that most tests have, of the machine's own emulator: with that of Debian 12 a namespace of one controller is
    /// a device of its own, with those from QEMU 10 on each is a multipath head.
    Usual,
    /// What older emulators do not have.
    Placed,
}

/// Name, bytes, and the namespace as QEMU wants it.
type Image = (&'static str, u64, &'static str);

impl Set {
    fn namespaces(self) -> &'static [Image] {
        match self {
            Self::Usual => &[
                ("plain", 256 << 20, "bus=nvlane-plain,nsid=1,msrc=7,mssrl=64,mcl=128"),
                (
                    "metadata",
                    64 << 20,
                    "bus=nvlane-plain,nsid=2,logical_block_size=4096,physical_block_size=4096,ms=8,mset=0,pi=1",
                ),
                (
                    "zoned",
                    64 << 20,
                    "bus=nvlane-zoned,nsid=1,zoned=true,zoned.zone_size=4M,zoned.zone_capacity=3M",
                ),
                ("shared", 64 << 20, "bus=nvlane-path-a,nsid=1,shared=on"),
            ],
            Self::Placed => &[("placed", 64 << 20, "bus=nvlane-placed,nsid=1,fdp.ruhs=0-3")],
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

    fn emulator(self) -> Result<Emulator> {
        match self {
            Self::Usual => Ok(Emulator::installed()),
            Self::Placed => Emulator::newest(),
        }
    }
}

impl Devices {
    /// Gives `machine` the devices of `set`, with images in `directory`, whose names begin with `prefix`, and an
    /// emulator that has such.
    pub fn attach(
        machine: &mut Machine,
        set: Set,
        directory: &Path,
        prefix: &str,
    ) -> Result<Devices> {
        let emulator = set.emulator()?;
        fs::create_dir_all(directory)?;
        let mut devices = Devices { images: Vec::new() };
        let are_there = set == Set::Usual || emulator.is_new;
        machine.emulator = Some(emulator);
        if !are_there {
            return Ok(devices);
        }
        let mut add = |option: &str, value: String| {
            machine.qemu_arguments.extend([option.to_owned(), value]);
        };
        for controller in set.controllers() {
            add("-device", (*controller).into());
        }
        for &(name, bytes, namespace) in set.namespaces() {
            let image = directory.join(format!("{prefix}-{name}.img"));
            let shown = image.display().to_string();
            ensure!(!shown.contains(','), "QEMU cannot take a comma in a name: {shown:?}");
            // Anew: a zoned namespace keeps nothing about its zones.
            let file = File::create(&image).with_context(|| shown.clone())?;
            devices.images.push(image);
            file.set_len(bytes)?;
            add("-drive", format!("file={shown},if=none,id=nvlane-{name},format=raw,cache=unsafe"));
            add("-device", format!("nvme-ns,drive=nvlane-{name},{namespace}"));
        }
        Ok(devices)
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        for image in &self.images {
            // Nothing is lost if it stays.
            let _ = fs::remove_file(image);
        }
    }
}
