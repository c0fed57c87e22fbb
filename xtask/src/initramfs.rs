//! The guest's first file system: busybox, the modules that reach the machine's root, and an init
//! script that mounts it. Written as an uncompressed cpio archive of the `newc` form, anew for each
//! boot (3 MB, a few milliseconds), so that nothing can be stale.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::kernel::Kernel;

/// What mounting the machine's root needs; everything else is loaded from there. Kernels before
/// 6.12 have `virtio_pci` and `virtio_console`, which brings the output back, as modules.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_console", "9p", "9pnet_virtio", "overlay"];

/// From busybox-static: it must run before any library is there.
const BUSYBOX: &str = "/bin/busybox";

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// Writes the initramfs for `kernel` to `path`; `init` is its first program, a busybox shell script.
pub fn write(kernel: &Kernel, init: &str, path: &Path) -> Result<()> {
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "proc", "sys", "modules", "host", "upper", "root"] {
        archive.add(directory, DIRECTORY, &[]);
    }
    let busybox = fs::read(BUSYBOX).context("/bin/busybox (package busybox-static)")?;
    archive.add("bin/busybox", PROGRAM, &busybox);
    archive.add("init", PROGRAM, init.as_bytes());
    for (index, module) in in_load_order(kernel)?.iter().enumerate() {
        let bytes = decompressed(&kernel.modules().join(module))?;
        archive.add(&format!("modules/{index:02}.ko"), PROGRAM, &bytes);
    }
    fs::write(path, archive.finish()).with_context(|| path.display().to_string())
}

/// Paths below the module directory of [`MODULES`] and all they depend on, dependencies first.
fn in_load_order(kernel: &Kernel) -> Result<Vec<String>> {
    let index = kernel.modules().join("modules.dep");
    let index = fs::read_to_string(&index).with_context(|| index.display().to_string())?;
    let mut seen = HashSet::new();
    let mut order = Vec::new();
    for module in MODULES {
        // A module that the kernel has built in is not in the index.
        let Some(line) = index.lines().find(|line| name_of(line) == module) else { continue };
        let (path, needs) = line.split_once(':').context("modules.dep: a line has no colon")?;
        // modules.dep lists the nearest dependency first, so the last is loaded first.
        for path in needs.split_whitespace().rev().chain([path]) {
            if seen.insert(path.to_owned()) {
                order.push(path.to_owned());
            }
        }
    }
    Ok(order)
}

/// `kernel/fs/9p/9p.ko.xz: ...` is `9p`.
fn name_of(line: &str) -> &str {
    let path = line.split(':').next().unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    file.split(".ko").next().unwrap_or_default()
}

fn decompressed(module: &Path) -> Result<Vec<u8>> {
    let program = match module.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(module).with_context(|| module.display().to_string()),
    };
    let output = Command::new(program)
        .arg("-dc")
        .arg(module)
        .output()
        .with_context(|| format!("{program} -dc"))?;
    anyhow::ensure!(output.status.success(), "{program} -dc {} failed", module.display());
    Ok(output.stdout)
}

/// A cpio archive of the `newc` form, the one that the kernel unpacks.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.inode += 1;
        let size = u32::try_from(data.len()).expect("a file of the initramfs is under 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("a name is short");
        self.bytes.extend_from_slice(b"070701");
        // inode, mode, uid, gid, links, mtime, size, device and rdevice numbers, name size, check
        for field in [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0] {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    /// Headers and data start on multiples of four bytes.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Stdio;

    #[test]
    fn busybox_unpacks_what_we_pack() {
        if !Path::new(BUSYBOX).exists() {
            eprintln!("no {BUSYBOX}: nothing to unpack with");
            return;
        }
        let mut archive = Archive::default();
        archive.add("d", DIRECTORY, &[]);
        archive.add("d/odd", PROGRAM, b"12345");
        archive.add("d/empty", PROGRAM, b"");
        let directory = std::env::temp_dir().join(format!("xtask-cpio-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut child = Command::new(BUSYBOX)
            .args(["cpio", "-i"])
            .current_dir(&directory)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&archive.finish()).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(fs::read(directory.join("d/odd")).unwrap(), b"12345");
        assert_eq!(fs::read(directory.join("d/empty")).unwrap(), b"");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_line_of_the_module_index_has_a_name() {
        assert_eq!(name_of("kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz"), "9p");
        assert_eq!(name_of("kernel/fs/overlayfs/overlay.ko:"), "overlay");
    }
}
