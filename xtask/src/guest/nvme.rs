//! NVMe devices of a guest, for tests of passthrough: whoever loads the `nvme` module has them.
//!
//! ```text
//!   serial nvlane-plain    namespace 1: blocks of 512 bytes     namespace 2: 4096, with 8 bytes of
//!                                                               metadata and protection information
//!   serial nvlane-zoned    namespace 1: 64 MiB in zones of 4 MiB, of which 3 MiB can be written
//!   serial nvlane-path     namespace 1 of two controllers: one subsystem
//! ```
//!
//! Without the module they cost nothing but a PCI slot each.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::machine::Machine;

/// The images behind a guest's devices: sparse, and removed with this.
#[derive(Debug)]
pub struct Devices {
    images: Vec<PathBuf>,
}

/// Name, bytes, and the namespace as QEMU wants it.
const NAMESPACES: [(&str, u64, &str); 4] = [
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
];

/// Controllers, in order; those that share come after their subsystem.
const CONTROLLERS: [&str; 5] = [
    "nvme,id=nvlane-plain,serial=nvlane-plain,mdts=7",
    "nvme,id=nvlane-zoned,serial=nvlane-zoned,mdts=7",
    "nvme-subsys,id=nvlane-shared,nqn=nvlane-shared",
    "nvme,id=nvlane-path-a,serial=nvlane-path,subsys=nvlane-shared",
    "nvme,id=nvlane-path-b,serial=nvlane-path,subsys=nvlane-shared",
];

impl Devices {
    /// Gives `machine` the devices, with images in `directory`, whose names begin with `prefix`.
    pub fn attach(machine: &mut Machine, directory: &Path, prefix: &str) -> Result<Devices> {
        fs::create_dir_all(directory)?;
        let mut devices = Devices { images: Vec::new() };
        let mut add = |option: &str, value: String| {
            machine.qemu_arguments.extend([option.to_owned(), value]);
        };
        for controller in CONTROLLERS {
            add("-device", controller.into());
        }
        for (name, bytes, namespace) in NAMESPACES {
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
