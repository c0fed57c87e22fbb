//! `cargo xtask deb`: a Debian package of what `make run` builds, with the C library, units, manual pages, completions and
//! programs for `bpf:`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::lanes::{Count, Output};
use crate::objects;
use crate::packages::{self, List};
use crate::process::{capture, cargo, checkout, run, target_directory};
use crate::programs::{RELEASE, SHIPPED};

/// The name that programs which are linked with the library look for (crates/capi/build.rs).
const SONAME: &str = "libnvlane.so.0";

/// A file of the checkout, and where it goes.
const FILES: [(&str, &str); 7] = [
    ("crates/capi/include/nvlane.h", "usr/include/nvlane.h"),
    ("crates/libaio/include/nvlane_aio.h", "usr/include/nvlane_aio.h"),
    ("packaging/man/nvlane_aio.3", "usr/share/man/man3/nvlane_aio.3"),
    ("README.md", "usr/share/doc/nvlane/README.md"),
    ("CHANGELOG.md", "usr/share/doc/nvlane/CHANGELOG.md"),
    ("LICENSE-APACHE", "usr/share/doc/nvlane/LICENSE-APACHE"),
    ("LICENSE-MIT", "usr/share/doc/nvlane/copyright"),
];

/// Where the libaio is, for those who name it, beside which programs find the system's; and its second name, as Debian 13 has it.
const AIO_FOLDER: &str = "usr/lib/nvlane";
const AIO_NAMES: [&str; 2] = ["libaio.so.1", "libaio.so.1t64"];

/// Files of a folder of the checkout whose names end so, and where they go.
const FOLDERS: [(&str, &str, &str); 5] = [
    ("docs", ".md", "usr/share/doc/nvlane/docs"),
    ("packaging/systemd", ".service", "usr/lib/systemd/system"),
    ("bpf", ".bpf.o", "usr/share/nvlane/bpf"),
    ("bpf", ".bpf.c", "usr/share/nvlane/bpf"),
    ("bpf", ".h", "usr/share/nvlane/bpf"),
];

/// What `nvlane completions` makes, and where shells look for it.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/nvlane"),
    ("zsh", "usr/share/zsh/vendor-completions/_nvlane"),
    ("fish", "usr/share/fish/vendor_completions.d/nvlane.fish"),
];

/// Has systemd look at the units. Nothing is started: which volumes are to be served is not known.
const MAINTAINER: &str = "#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
";

/// Stops the target where the package is removed; where it is upgraded the one that runs goes on.
const BEFORE_REMOVAL: &str = "#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now nvlane.service
fi
";

/// Builds in release mode and makes the package; says where it is.
pub fn make() -> Result<u8> {
    packages::install(List::Run)?;
    objects::compile_changed()?;
    let build = ["build", "--locked", "--profile", RELEASE, "--package=capi"];
    run(cargo()?.args(build).args(SHIPPED))?;
    println!("{}", pack()?.display());
    Ok(0)
}

/// The same as a step of the tests, which looks into the package.
pub fn test(output: &mut Output) -> Result<Count> {
    let build = ["build", "--locked", "--profile", RELEASE, "--package=capi"];
    output.run(cargo()?.args(build).args(SHIPPED))?;
    let package = pack()?;
    let root = package.with_extension("root");
    clear(&root)?;
    output.run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&root))?;
    let version = capture(Command::new(root.join("usr/bin/nvlane")).arg("--version"))?;
    ensure!(version.trim() == format!("nvlane {}", env!("CARGO_PKG_VERSION")), "{version}");
    // A program that is built with what is in there, and runs with it.
    let libraries = root.join(libraries()?);
    let flags = capture(
        Command::new("pkg-config")
            .env("PKG_CONFIG_PATH", libraries.join("pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", &root)
            .args(["--cflags", "--libs", "nvlane"]),
    )?;
    let program = root.join("passthrough");
    let source = checkout()?.join("examples/c/passthrough.c");
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(&program).arg(source);
    // Where the linker looks by itself once it is installed.
    compiler.args(flags.split_whitespace()).arg("-L").arg(&libraries);
    output.run(&mut compiler)?;
    let mut reads = Command::new(&program);
    output.run(reads.arg("mem:1M").env("LD_LIBRARY_PATH", &libraries))?;
    let names = capture(Command::new("readelf").arg("-d").arg(&program))?;
    ensure!(names.contains(SONAME), "it is not linked with {SONAME}: {names}");
    let fields = capture(Command::new("dpkg-deb").arg("--field").arg(&package))?;
    ensure!(fields.contains("Depends: libc6 (>= "), "{fields}");
    let listed = capture(Command::new("dpkg-deb").arg("--contents").arg(&package))?;
    for file in ["man/man1/nvlane-serve.1", "nvlane/bpf/stripe.bpf.o", "system/nvlane.service"] {
        ensure!(listed.contains(file), "{file} is missing: {listed}");
    }
    let is_plain = |line: &str| {
        ["drwxr-xr-x ", "-rwxr-xr-x ", "-rw-r--r-- ", "l"].iter().any(|mode| line.starts_with(mode))
    };
    ensure!(listed.lines().all(is_plain), "modes of the builder's umask: {listed}");
    let prerm = capture(Command::new("dpkg-deb").arg("--info").arg(&package).arg("prerm"))?;
    ensure!(prerm == BEFORE_REMOVAL, "{prerm}");
    clear(&root)?;
    Ok(Count::ONE)
}

/// Makes the package of what was built.
fn pack() -> Result<PathBuf> {
    let built = target_directory()?.join(RELEASE);
    let architecture = capture(Command::new("dpkg").arg("--print-architecture"))?;
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("nvlane_{version}_{}.deb", architecture.trim());
    let root = target_directory()?.join("deb");
    clear(&root)?;
    stage(&built, &root)?;
    let nvlane = root.join("usr/bin/nvlane");
    for (shell, to) in COMPLETIONS {
        let made = capture(Command::new(&nvlane).args(["completions", shell]))?;
        write(&root.join(to), made.as_bytes(), 0o644)?;
    }
    let pages = root.join("usr/share/man/man1");
    fs::create_dir_all(&pages)?;
    capture(Command::new(&nvlane).args(["man", "--dir"]).arg(&pages))?;
    let size = capture(Command::new("du").args(["-sk", "--apparent-size"]).arg(&root))?;
    let size = size.split_whitespace().next().context("du says a number")?;
    let control = control(version, architecture.trim(), &libc_version()?, size);
    write(&root.join("DEBIAN/control"), control.as_bytes(), 0o644)?;
    for (name, script) in
        [("postinst", MAINTAINER), ("prerm", BEFORE_REMOVAL), ("postrm", MAINTAINER)]
    {
        write(&root.join("DEBIAN").join(name), script.as_bytes(), 0o755)?;
    }
    plain_modes(&root)?;
    let package = target_directory()?.join(name);
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.args(["--root-owner-group", "--build"]).arg(&root).arg(&package);
    capture(&mut dpkg)?;
    Ok(package)
}

/// Gives folders and files below `folder`, and itself, the modes that they are to have, whatever umask made them.
fn plain_modes(folder: &Path) -> Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            plain_modes(&path)?;
        } else if kind.is_file() {
            let is_program = fs::metadata(&path)?.permissions().mode() & 0o100 != 0;
            let mode = if is_program { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

/// Puts files where they belong below `root`.
fn stage(built: &Path, root: &Path) -> Result<()> {
    let checkout = checkout()?;
    copy(&built.join("nvlane"), &root.join("usr/bin/nvlane"), 0o755)?;
    stage_aio(built, root)?;
    let libraries = libraries()?;
    copy(&built.join("libnvlane.so"), &root.join(&libraries).join(SONAME), 0o644)?;
    symlink(SONAME, root.join(&libraries).join("libnvlane.so"))?;
    let described = pkg_config(&libraries, env!("CARGO_PKG_VERSION"));
    write(&root.join(&libraries).join("pkgconfig/nvlane.pc"), described.as_bytes(), 0o644)?;
    stage_files(&checkout, root)?;
    for (folder, end, to) in FOLDERS {
        for entry in fs::read_dir(checkout.join(folder))? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_file() && name.ends_with(end) {
                copy(&path, &root.join(to).join(name), 0o644)?;
            }
        }
    }
    Ok(())
}

/// The libaio, by both of its names.
fn stage_aio(built: &Path, root: &Path) -> Result<()> {
    let (folder, [name, second]) = (root.join(AIO_FOLDER), AIO_NAMES);
    copy(&built.join("libnvlane_aio.so"), &folder.join(name), 0o644)?;
    Ok(symlink(name, folder.join(second))?)
}

/// Single files of the checkout.
fn stage_files(checkout: &Path, root: &Path) -> Result<()> {
    FILES.iter().try_for_each(|(from, to)| copy(&checkout.join(from), &root.join(to), 0o644))
}

/// Where this architecture has its libraries, without the first slash.
fn libraries() -> Result<PathBuf> {
    let triplet = capture(Command::new("cc").arg("-print-multiarch"))?;
    let triplet = triplet.trim();
    Ok(if triplet.is_empty() { "usr/lib".into() } else { Path::new("usr/lib").join(triplet) })
}

/// The version of the C library here, up to its revision: what was linked with it may need as much.
fn libc_version() -> Result<String> {
    let version = capture(Command::new("dpkg-query").args(["-W", "-f=${Version}", "libc6"]))?;
    Ok(version.split('-').next().unwrap_or_default().to_owned())
}

fn control(version: &str, architecture: &str, libc: &str, kilobytes: &str) -> String {
    format!(
        "Package: nvlane
Version: {version}
Architecture: {architecture}
Maintainer: The nvlane authors <nvlane@localhost>
Installed-Size: {kilobytes}
Depends: libc6 (>= {libc}), libgcc-s1, libelf1 | libelf1t64, libssl3 | libssl3t64, zlib1g
Suggests: nvme-cli, qemu-utils
Section: admin
Priority: optional
Description: NVMe data path: target, multipath host, copies, AIO, block devices
 Serves files, disks and memory over NVMe/TCP, connects to such volumes by several
 paths, copies where the data is, and makes any volume a block device whose requests
 an eBPF program routes. With a library for C and a libaio on io_uring.
"
    )
}

fn pkg_config(libraries: &Path, version: &str) -> String {
    format!(
        "Name: nvlane
Description: NVMe commands to any volume, asynchronously
Version: {version}
Libs: -L/{} -lnvlane
Cflags: -I/usr/include
",
        libraries.display()
    )
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let bytes = fs::read(from).with_context(|| from.display().to_string())?;
    write(to, &bytes, mode)
}

fn write(to: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("it is in a folder")?)?;
    fs::write(to, bytes).with_context(|| to.display().to_string())?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

fn clear(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| folder.display().to_string())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_not_those_of_whoever_builds() {
        let root = std::env::temp_dir().join(format!("nvlane-modes-{}", std::process::id()));
        let mode =
            |path: &str| fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777;
        for (path, mode) in [("usr/bin/nvlane", 0o700), ("usr/man/nvlane.1", 0o600)] {
            write(&root.join(path), b"", mode).unwrap();
        }
        symlink("nowhere", root.join("usr/bin/link")).unwrap();
        for (path, mode) in [("usr/man", 0o700), ("usr", 0o2775), (".", 0o700)] {
            fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        plain_modes(&root).unwrap();
        for folder in [".", "usr", "usr/man", "usr/bin"] {
            assert_eq!(mode(folder), 0o755, "{folder}");
        }
        assert_eq!((mode("usr/bin/nvlane"), mode("usr/man/nvlane.1")), (0o755, 0o644));
        clear(&root).unwrap();
    }

    #[test]
    fn what_runs_before_and_after_is_shell() {
        for script in [MAINTAINER, BEFORE_REMOVAL] {
            capture(Command::new("sh").args(["-n", "-c", script])).unwrap();
        }
        let upgrade = ["-c", BEFORE_REMOVAL, "prerm", "upgrade", "1.0"];
        assert_eq!(capture(Command::new("/bin/sh").args(upgrade).env("PATH", "")).unwrap(), "");
    }

    #[test]
    fn the_libaio_its_header_and_its_page_are_where_they_are_looked_for() {
        let folder = std::env::temp_dir().join(format!("nvlane-deb-{}", std::process::id()));
        let (built, root) = (folder.join("built"), folder.join("root"));
        write(&built.join("libnvlane_aio.so"), b"a library", 0o755).unwrap();
        stage_aio(&built, &root).unwrap();
        stage_files(&checkout().unwrap(), &root).unwrap();
        for name in ["libaio.so.1", "libaio.so.1t64"] {
            assert_eq!(fs::read(root.join("usr/lib/nvlane").join(name)).unwrap(), b"a library");
        }
        let second = fs::read_link(root.join("usr/lib/nvlane/libaio.so.1t64")).unwrap();
        assert_eq!(second, Path::new("libaio.so.1"), "within the package");
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        assert!(text("usr/include/nvlane_aio.h").contains("io_setup2"));
        assert!(text("usr/share/man/man3/nvlane_aio.3").contains(".TH NVLANE_AIO 3"));
        clear(&folder).unwrap();
    }
}
