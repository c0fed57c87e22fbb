//! An NVMe character device: permissions, effects log, admin commands, poll queues.

use super::{Check, Outcome, poll_queues};
use crate::doctor::machine;
use namespace::device::controller::open_node;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// `NVME_IOCTL_ID`, `NVME_IOCTL_ADMIN64_CMD`, `NVME_IOCTL_IO64_CMD` (linux/nvme_ioctl.h).
const IOCTL_ID: libc::c_ulong = 0x4e40;
const IOCTL_ADMIN64: libc::c_ulong = 0xc050_4e47;
const IOCTL_IO64: libc::c_ulong = 0xc050_4e48;

/// Opcodes and selectors of the probes.
const GET_LOG_PAGE: u8 = 0x02;
const IDENTIFY: u8 = 0x06;
const READ: u8 = 0x02;
const CNS_NAMESPACE: u32 = 0;
const CNS_CONTROLLER: u32 = 1;
const LOG_SMART: u32 = 2;

/// Identify Controller: Log Page Attributes, of which bit 1 is the Commands Supported and Effects log
/// (NVMe Base 2.1, Figure 312).
const LPA: usize = 261;
const LPA_EFFECTS: u8 = 1 << 1;

/// Nobody waits longer for a probe.
const TIMEOUT_MS: u32 = 10_000;

/// `struct nvme_passthru_cmd64`.
#[repr(C)]
#[derive(Default)]
struct Passthrough {
    opcode: u8,
    flags: u8,
    reserved1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    reserved2: u32,
    result: u64,
}
const _: () = assert!(size_of::<Passthrough>() == 80);

/// `/dev/ngXnY`.
pub struct Node {
    path: PathBuf,
    /// `ngXnY`.
    name: String,
}

impl Node {
    /// The node, if `path` is called like one.
    pub fn of(path: &Path) -> Option<Node> {
        let name = path.file_name()?.to_str()?;
        let (controller, namespace) = name.strip_prefix("ng")?.split_once('n')?;
        let digits =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let named = digits(controller) && digits(namespace);
        named.then(|| Node { path: path.to_owned(), name: name.to_owned() })
    }

    pub fn check(&self, checks: &mut Vec<Check>) {
        let write = OpenOptions::new().read(true).write(true).open(&self.path);
        let read = File::open(&self.path);
        checks.push(Check::needed("char_device", "the device's node", self.node(&read)));
        checks.push(Check::optional("char_device_write", "writing to it", self.node(&write)));
        if let Ok(file) = &write.or(read) {
            let effects = self.effects(file);
            checks.push(Check::optional("effects_log", "unprivileged commands", effects));
        }
        checks.push(Check::optional("admin", "admin commands", self.admin()));
        let queue =
            PathBuf::from(format!("/sys/block/{}/queue", self.name.replacen("ng", "nvme", 1)));
        checks.push(Check::optional("poll_queues", "poll queues", poll_queues(&queue)));
    }

    fn node(&self, opened: &io::Result<File>) -> Outcome {
        let path = self.path.display().to_string();
        match opened {
            Ok(_) => Outcome::yes(format!("{path} opens")),
            Err(error) => machine::node(&path, error, "nvme"),
        }
    }

    /// Who is not root may send a command only if the controller's effects log says that it does no
    /// more than read or write: tries to read one block, and looks whether there is such a log.
    fn effects(&self, file: &File) -> Outcome {
        let mut controller = vec![0; 4096];
        let read = identify(file, CNS_CONTROLLER, 0, &mut controller);
        if let Err(error) = read {
            return Outcome::never(format!("Identify Controller: {error}"));
        }
        let has_log = controller[LPA] & LPA_EFFECTS != 0;
        let without = "the controller has no Commands Supported and Effects log (LPA bit 1), so the kernel lets \
                       only CAP_SYS_ADMIN pass commands through";
        match read_block(file) {
            Ok(()) if has_log => Outcome::yes(
                "a Read was passed through, and the controller has the log that others than root need",
            ),
            Ok(()) => Outcome::no(
                format!("a Read was passed through by this user; but {without}"),
                machine::with_capabilities("cap_sys_admin"),
            ),
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => Outcome::no(
                format!(
                    "a Read was refused ({error}); {}",
                    if has_log { "the controller has the log" } else { without }
                ),
                machine::with_capabilities("cap_sys_admin"),
            ),
            Err(error) => Outcome::never(format!("a Read was passed through and failed: {error}")),
        }
    }

    /// Reads the SMART log of the controller through its own node.
    fn admin(&self) -> Outcome {
        let Some(controller) = self.controller() else {
            return Outcome::never(format!("no controller of {} is known in /sys", self.name));
        };
        let path = format!("/dev/{controller}");
        let file = match open_node(Path::new(&path)) {
            Ok(file) => file,
            Err(error) => return machine::node(&path, &error, "nvme"),
        };
        let mut log = [0; 512];
        let dwords_z = log.len() as u32 / 4 - 1;
        let command = Passthrough {
            opcode: GET_LOG_PAGE,
            nsid: u32::MAX,
            cdw10: LOG_SMART | dwords_z << 16,
            ..Passthrough::default()
        };
        match pass(&file, IOCTL_ADMIN64, command, &mut log) {
            Ok(()) => Outcome::yes(format!("{path} opens, and its SMART log was read")),
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => Outcome::no(
                format!("{path} opens, but admin commands other than Identify need CAP_SYS_ADMIN"),
                machine::with_capabilities("cap_sys_admin"),
            ),
            Err(error) => Outcome::never(format!("{path}: reading its SMART log: {error}")),
        }
    }

    /// A controller of the namespace: its own, or of a multipath head any.
    fn controller(&self) -> Option<String> {
        let device = format!("/sys/class/nvme-generic/{}/device", self.name);
        let device = fs::canonicalize(device).ok()?;
        let own = device.file_name()?.to_str()?;
        if is_controller(own) { Some(own.to_owned()) } else { any_of(&device) }
    }
}

fn is_controller(name: &str) -> bool {
    name.strip_prefix("nvme").is_some_and(|digits| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// A controller of a subsystem: one that takes commands, if there is one.
fn any_of(subsystem: &Path) -> Option<String> {
    let mut names: Vec<String> = fs::read_dir(subsystem)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_controller(name))
        .collect();
    names.sort();
    let is_live = |name: &&String| {
        let state = fs::read_to_string(subsystem.join(name).join("state"));
        state.is_ok_and(|state| state.trim() == "live")
    };
    names.iter().find(is_live).or(names.first()).cloned()
}

fn identify(file: &File, cns: u32, nsid: u32, data: &mut [u8]) -> io::Result<()> {
    let command = Passthrough { opcode: IDENTIFY, nsid, cdw10: cns, ..Passthrough::default() };
    pass(file, IOCTL_ADMIN64, command, data)
}

/// Reads the first block, as long as blocks are here.
fn read_block(file: &File) -> io::Result<()> {
    // SAFETY: the call takes no argument.
    let nsid = unsafe { libc::ioctl(file.as_raw_fd(), IOCTL_ID) };
    let nsid = u32::try_from(nsid).map_err(|_| io::Error::last_os_error())?;
    let mut namespace = vec![0; 4096];
    identify(file, CNS_NAMESPACE, nsid, &mut namespace)?;
    // FLBAS bits 3:0 and 6:5 are the format; each LBA format has its metadata in bits 15:0, and its data size
    // in bits 23:16 (NVM 1.1, Figures 114 and 116).
    let flbas = namespace[26];
    let format = usize::from(flbas & 0xf | flbas >> 1 & 0x30);
    let at = 128 + 4 * format;
    let extended = flbas & 1 << 4 != 0;
    let metadata = usize::from(u16::from_le_bytes([namespace[at], namespace[at + 1]]));
    let shift = namespace[at + 2];
    if !(9..=16).contains(&shift) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no block size that is known"));
    }
    let mut block = vec![0; (1 << shift) + if extended { metadata } else { 0 }];
    let mut apart = vec![0; if extended { 0 } else { metadata }];
    let mut command = Passthrough { opcode: READ, nsid, ..Passthrough::default() };
    if !apart.is_empty() {
        (command.metadata, command.metadata_len) = (apart.as_mut_ptr() as u64, metadata as u32);
    }
    pass(file, IOCTL_IO64, command, &mut block)
}

/// Carries out a command with `data`; a status that is no success is an error in words.
fn pass(
    file: &File,
    request: libc::c_ulong,
    mut command: Passthrough,
    data: &mut [u8],
) -> io::Result<()> {
    command.address = data.as_mut_ptr() as u64;
    command.data_len = data.len() as u32;
    command.timeout_ms = TIMEOUT_MS;
    // SAFETY: the structure that the request wants, whose addresses are those of buffers that stay and are as long
    // as it says; the commands sent here read into them.
    let outcome = unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut command) };
    match outcome {
        0 => Ok(()),
        status if status > 0 => Err(io::Error::other(nvme::Status(status as u16).to_string())),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_controllers_a_live_one_is_asked() {
        let subsystem = tempfile::tempdir().unwrap();
        let set = |name: &str, state: &str| {
            fs::create_dir_all(subsystem.path().join(name)).unwrap();
            fs::write(subsystem.path().join(name).join("state"), state).unwrap();
        };
        assert_eq!(any_of(subsystem.path()), None);
        set("nvme0", "connecting\n");
        set("nvme0n1", "live\n");
        assert_eq!(any_of(subsystem.path()).as_deref(), Some("nvme0"));
        set("nvme1", "live\n");
        assert_eq!(any_of(subsystem.path()).as_deref(), Some("nvme1"));
    }

    #[test]
    fn nodes_are_known_by_their_names() {
        let name = |path: &str| Node::of(Path::new(path)).map(|node| node.name);
        assert_eq!(name("/dev/ng0n1").as_deref(), Some("ng0n1"));
        assert_eq!(name("/dev/ng12n34").as_deref(), Some("ng12n34"));
        for other in ["/dev/nvme0n1", "/dev/ng0", "/dev/ng0n", "/dev/ngn1", "/dev/ng0n1p1", "disk"]
        {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
