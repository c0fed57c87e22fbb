//! What beside io_uring this kernel and this user have: memory that may be locked, and kernel modules.

use super::{Check, Outcome};
use crate::size;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Memory that is locked to see whether that works: a pool's registered buffers when all are in use.
const LOCKED_BYTES: usize = 32 << 20;

pub fn check(checks: &mut Vec<Check>) {
    checks.push(Check::optional("locked_memory", "locked memory", locked_memory()));
    checks.push(Check::optional("ublk", "ublk", ublk()));
    checks.push(Check::optional("bpf", "BPF programs", bpf()));
    checks.push(Check::optional("bpf_ring", "BPF in the ring", bpf_ring()));
    checks.push(Check::optional("tls", "TLS in the kernel", kernel_tls()));
    checks.push(Check::optional("nbd", "NBD devices", nbd()));
    checks.push(Check::optional("aio", "native AIO", native_aio()));
    checks.push(Check::optional("aio_drop_in", "libaio drop-in", drop_in()));
}

/// Locks memory, as registered buffers do.
fn locked_memory() -> Outcome {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            LOCKED_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return Outcome::no(
            format!("no address space: {}", io::Error::last_os_error()),
            "sudo prlimit --pid $$ --as=unlimited:unlimited",
        );
    }
    // SAFETY: the mapping that was just made.
    let locked = unsafe { libc::mlock(memory, LOCKED_BYTES) };
    let error = io::Error::last_os_error();
    // SAFETY: the same; it is not used after this.
    unsafe { libc::munmap(memory, LOCKED_BYTES) };
    let limit = match rustix::process::getrlimit(rustix::process::Resource::Memlock).current {
        Some(bytes) => size::format(bytes),
        None => "unlimited".to_owned(),
    };
    let wanted = size::format(LOCKED_BYTES as u64);
    if locked == 0 {
        return Outcome::yes(format!("{wanted} can be locked (RLIMIT_MEMLOCK {limit})"));
    }
    Outcome::no(
        format!("{wanted} cannot be locked ({error}); RLIMIT_MEMLOCK is {limit}"),
        MORE_LOCKED_MEMORY,
    )
}

fn ublk() -> Outcome {
    const CONTROL: &str = "/dev/ublk-control";
    match OpenOptions::new().read(true).write(true).open(CONTROL) {
        Ok(_) => Outcome::yes(format!("{CONTROL} opens; {}", ublk_data())),
        Err(error) => node(CONTROL, &error, "ublk_drv"),
    }
}

/// How the driver lets data go.
fn ublk_data() -> String {
    match ::ublk::Control::open() {
        Err(error) => error.to_string(),
        Ok(control) => {
            let best = ::ublk::DataPath::choose(None, control.features(), true);
            let best = best.expect("copying needs nothing");
            match control.features().has(::ublk::driver::flag::AUTO_BUF_REG) {
                true => format!("data of files and devices goes by {best} (AUTO_BUF_REG)"),
                false => format!("data goes by {best}; zero copy needs AUTO_BUF_REG, Linux 6.16"),
            }
        }
    }
}

fn nbd() -> Outcome {
    const DEVICE: &str = "/dev/nbd0";
    match OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(_) => Outcome::yes(format!("{DEVICE} opens: nbd-client can attach what nvlane serves")),
        Err(error) => node(DEVICE, &error, "nbd"),
    }
}

/// Has a socket be one for TLS, as connections to `tls://` listeners are.
fn kernel_tls() -> Outcome {
    let Err(error) = tls::check() else {
        return Outcome::yes("the kernel encrypts connections (TLS 1.3), of targets and of hosts");
    };
    match kernel_without("tls") {
        Some(release) => {
            Outcome::never(format!("this kernel ({release}) comes without the module tls"))
        }
        None if error.kind() == io::ErrorKind::Unsupported => Outcome::no(
            format!("{error}: no connection can be encrypted, of targets or of hosts"),
            "sudo modprobe tls",
        ),
        None => Outcome::never(format!("{error}: no connection can be encrypted")),
    }
}

/// A device node that does not open: its module is not loaded or not to be had, or this user may not.
pub fn node(path: &str, error: &io::Error, module: &str) -> Outcome {
    let load = format!("sudo modprobe {module}");
    match error.kind() {
        io::ErrorKind::NotFound => match kernel_without(module) {
            Some(release) => Outcome::never(format!(
                "there is no {path}, and this kernel ({release}) comes without the module {module}"
            )),
            None => Outcome::no(format!("there is no {path}"), load),
        },
        io::ErrorKind::PermissionDenied => {
            Outcome::no(format!("this user may not open {path}"), to_this_user(path))
        }
        _ => Outcome::no(format!("{path}: {error}"), load),
    }
}

/// The running kernel's release, if its modules are known and that is none of them.
pub fn kernel_without(module: &str) -> Option<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let is_there = is_listed(&Path::new("/lib/modules").join(release), module)?;
    (!is_there).then(|| release.to_owned())
}

/// Whether a kernel's folder of modules lists one; None if it lists none at all, as in a container.
fn is_listed(modules: &Path, module: &str) -> Option<bool> {
    let listed = |line: &str| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        file.split('.').next().is_some_and(|name| name.replace('-', "_") == module)
    };
    let lists = ["modules.dep", "modules.builtin"];
    let texts: Vec<String> =
        lists.iter().filter_map(|list| fs::read_to_string(modules.join(list)).ok()).collect();
    (!texts.is_empty()).then(|| texts.iter().flat_map(|text| text.lines()).any(listed))
}

/// Loads the smallest program that is not for everybody.
fn bpf() -> Outcome {
    /// `BPF_PROG_LOAD`, and a program type for those with CAP_BPF and CAP_PERFMON: `BPF_PROG_TYPE_TRACEPOINT`.
    const PROG_LOAD: libc::c_int = 5;
    const TRACEPOINT: u32 = 5;
    /// `r0 = 0; exit`.
    const PROGRAM: [u64; 2] = [0x0000_0000_0000_00b7, 0x0000_0000_0000_0095];
    /// The start of `union bpf_attr` for that call.
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        kind: u32,
        instructions: u32,
        program: u64,
        license: u64,
        log_level: u32,
        log_bytes: u32,
        log: u64,
        kernel: u32,
        flags: u32,
    }
    let attributes = Attributes {
        kind: TRACEPOINT,
        instructions: PROGRAM.len() as u32,
        program: PROGRAM.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        ..Attributes::default()
    };
    let load = || {
        // SAFETY: attributes of the length that is told, which point to a program and a text that stay.
        let fd = unsafe {
            libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const attributes, size_of::<Attributes>())
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made and that nobody else knows.
        drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd as i32) });
        Ok(())
    };
    let error = match uninterrupted(load) {
        Ok(()) => return Outcome::yes("a program was loaded (CAP_BPF and CAP_PERFMON)"),
        Err(error) => error,
    };
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Outcome::no(
            format!("loading a program was refused ({error}): CAP_BPF and CAP_PERFMON are needed"),
            with_capabilities("cap_bpf,cap_perfmon"),
        ),
        Some(libc::ENOSYS) => Outcome::never("this kernel was built without CONFIG_BPF_SYSCALL"),
        _ => Outcome::never(format!("loading a program failed: {error}")),
    }
}

/// Calls again what a signal ended. The verifier gives up with EAGAIN where one is pending, and the end of a ring
/// that was closed before, as each check of io_uring closes its own, counts as one.
fn uninterrupted(mut call: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    const ATTEMPTS: usize = 100;
    let interrupted =
        |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
    for _ in 1..ATTEMPTS {
        match call() {
            Err(error) if interrupted(&error) => {}
            other => return other,
        }
    }
    call()
}

/// Whether the kernel's type information has the operations that a program for a ring implements.
fn bpf_ring() -> Outcome {
    const TYPES: &str = "/sys/kernel/btf/vmlinux";
    const NAME: &[u8] = b"\0io_uring_bpf_ops\0";
    match fs::read(TYPES) {
        Ok(types) if types.windows(NAME.len()).any(|window| window == NAME) => {
            Outcome::yes("this kernel runs BPF programs in a ring (io_uring_bpf_ops)")
        }
        Ok(_) => Outcome::never("this kernel has no io_uring_bpf_ops (CONFIG_IO_URING_BPF_OPS)"),
        Err(error) => Outcome::never(format!("{TYPES}: {error}: the kernel tells no types")),
    }
}

/// Makes a context, as the drop-in does where the ring would be slower.
fn native_aio() -> Outcome {
    let mut context: libc::c_ulong = 0;
    // SAFETY: the call fills in the context.
    let made = unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) };
    if made == 0 {
        // SAFETY: the context that was just made.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        return Outcome::yes("io_setup works");
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Outcome::no(
            "io_setup: all contexts that fs.aio-max-nr allows are taken",
            "sudo sysctl -w fs.aio-max-nr=1048576",
        ),
        _ => Outcome::never(format!("io_setup: {error}")),
    }
}

/// Looks where `nvlane aio run` does.
fn drop_in() -> Outcome {
    /// From the folder of this program. A build calls it `libnvlane_aio.so`.
    const PLACES: [&str; 4] =
        ["libaio.so.1", "libnvlane_aio.so", "deps/libnvlane_aio.so", "../lib/nvlane/libaio.so.1"];
    let named = std::env::var_os("NVLANE_AIO_LIBRARY").map(PathBuf::from);
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("/"));
    let beside = PLACES.iter().map(|place| folder.join(place));
    let found = named.into_iter().chain(beside).find(|path| is_ours(path));
    match found {
        Some(path) => Outcome::yes(format!("{} takes libaio's place", path.display())),
        None => Outcome::no(
            format!("no libaio.so.1 of nvlane beside {} or in ../lib/nvlane", program.display()),
            "export NVLANE_AIO_LIBRARY=/path/to/libaio.so.1   (cargo build --release -p libaio makes it)",
        ),
    }
}

/// Ours, not the distribution's: it has a version that libaio has not.
fn is_ours(path: &Path) -> bool {
    const VERSION: &[u8] = b"NVLANE_AIO_1";
    fs::read(path).is_ok_and(|bytes| bytes.windows(VERSION.len()).any(|window| window == VERSION))
}

/// The command that gives this program capabilities by its file, instead of those that it has.
pub fn with_capabilities(capabilities: &str) -> String {
    let path = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/bin/nvlane"));
    let path = quoted(&path.to_string_lossy());
    format!("sudo setcap {capabilities}+ep {path}   (for everyone who may run it)")
}

/// The command that lets the shell, and what it starts, lock memory: a user cannot raise the hard limit.
pub const MORE_LOCKED_MEMORY: &str =
    "sudo prlimit --pid $$ --memlock=unlimited:unlimited   (LimitMEMLOCK=infinity in a unit)";

/// The command that gives this user a file to read and write: beside its owner, where there is a program for that.
pub fn to_this_user(path: &str) -> String {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let has_acl = std::env::split_paths(&folders).any(|folder| folder.join("setfacl").is_file());
    giving(path, has_acl)
}

fn giving(path: &str, has_acl: bool) -> String {
    let path = quoted(path);
    match has_acl {
        true => format!("sudo setfacl -m u:$(id -un):rw {path}"),
        false => format!("sudo chown $(id -un) {path} && sudo chmod u+rw {path}"),
    }
}

/// A path as a shell takes it for one word, and no command for an option.
pub fn quoted(path: &str) -> String {
    let place = if path.starts_with('-') { "./" } else { "" };
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+=:,@%".contains(letter);
    if !path.is_empty() && path.chars().all(plain) {
        return format!("{place}{path}");
    }
    format!("{place}'{}'", path.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_given_by_a_program_that_is_there() {
        assert_eq!(giving("/dev/ng0n1", true), "sudo setfacl -m u:$(id -un):rw /dev/ng0n1");
        assert_eq!(giving("a b", false), "sudo chown $(id -un) 'a b' && sudo chmod u+rw 'a b'");
    }

    #[test]
    fn paths_are_one_word_for_a_shell() {
        for (path, word) in [
            ("/dev/ng0n1", "/dev/ng0n1"),
            ("disk.img", "disk.img"),
            ("-x", "./-x"),
            ("/a b", "'/a b'"),
            ("-a;b", "./'-a;b'"),
            ("/it's", "'/it'\\''s'"),
            ("/$(id)", "'/$(id)'"),
            ("~", "'~'"),
        ] {
            assert_eq!(quoted(path), word);
        }
    }

    #[test]
    fn what_is_interrupted_is_called_again_and_nothing_else() {
        let answers = |errors: &[i32]| {
            let mut errors: Vec<i32> = errors.iter().rev().copied().collect();
            let done = uninterrupted(|| match errors.pop() {
                None => Ok(()),
                Some(error) => Err(io::Error::from_raw_os_error(error)),
            });
            (done.err().and_then(|error| error.raw_os_error()), errors.len())
        };
        assert_eq!(answers(&[]), (None, 0));
        assert_eq!(answers(&[libc::EAGAIN, libc::EINTR, libc::EAGAIN]), (None, 0));
        assert_eq!(answers(&[libc::EAGAIN, libc::EPERM, libc::EAGAIN]), (Some(libc::EPERM), 1));
        assert_eq!(answers(&[libc::EAGAIN; 101]), (Some(libc::EAGAIN), 1));
    }

    #[test]
    fn modules_are_found_in_either_list_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(is_listed(folder.path(), "nbd"), None);
        let depends = "kernel/drivers/block/nbd.ko.xz:\nkernel/drivers/nvme/host/nvme.ko: kernel/a/nvme-core.ko\n";
        fs::write(folder.path().join("modules.dep"), depends).unwrap();
        fs::write(folder.path().join("modules.builtin"), "kernel/drivers/block/ublk-drv.ko\n")
            .unwrap();
        for (module, there) in
            [("nbd", true), ("nvme", true), ("ublk_drv", true), ("nvme_core", false), ("nb", false)]
        {
            assert_eq!(is_listed(folder.path(), module), Some(there), "{module}");
        }
    }
}
