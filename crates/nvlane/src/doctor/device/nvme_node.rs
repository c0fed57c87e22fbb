//! An NVMe character device: permissions, effects log, vendor specific commands, admin commands, poll queues.

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
const LOG_EFFECTS: u32 = 5;

/// The log: bytes, where the I/O commands begin, and of each: that it is supported, and the bits that may be set of one
/// which only reads (CSUPP, the bit of UUID selection, and its scope).
const EFFECTS_BYTES: usize = 4096;
const EFFECTS_IO: usize = 1024;
const EFFECTS_CSUPP: u32 = 1;
const EFFECTS_HARMLESS: u32 = EFFECTS_CSUPP | 1 << 19 | 0xfff << 20;

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
            let vendor = vendor(&smart_log(file));
            checks.push(Check::optional("vendor_commands", "vendor specific commands", vendor));
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

    /// Tries to read one block as this user, and looks at what others may.
    fn effects(&self, file: &File) -> Outcome {
        let mut controller = vec![0; 4096];
        if let Err(error) = identify(file, CNS_CONTROLLER, 0, &mut controller) {
            return not_identified(&error);
        }
        let log = match controller[LPA] & LPA_EFFECTS {
            0 => Effects::None,
            _ => effects_log(file),
        };
        unprivileged(&log, &read_block(file))
    }

    /// Reads the SMART log of the controller through its own node.
    fn admin(&self) -> Outcome {
        let Some(controller) = self.controller() else {
            return Outcome::never(format!("no controller of {} is known in /sys", self.name));
        };
        admin_by(&format!("/dev/{controller}"))
    }

    /// A controller of the namespace: its own, or of a multipath head any.
    fn controller(&self) -> Option<String> {
        let device = format!("/sys/class/nvme-generic/{}/device", self.name);
        let device = fs::canonicalize(device).ok()?;
        let own = device.file_name()?.to_str()?;
        if is_controller(own) { Some(own.to_owned()) } else { any_of(&device) }
    }
}

/// Reads the SMART log of a controller through its node.
pub fn admin_by(path: &str) -> Outcome {
    let file = match open_node(Path::new(path)) {
        Ok(file) => file,
        Err(error) => return machine::node(path, &error, "nvme"),
    };
    match smart_log(&file) {
        Ok(()) => Outcome::yes(format!("{path} opens, and its SMART log was read")),
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Outcome::no(
            format!("{path} opens, but admin commands other than Identify need CAP_SYS_ADMIN"),
            machine::with_capabilities("cap_sys_admin"),
        ),
        Err(error) => Outcome::never(format!("{path}: reading its SMART log: {error}")),
    }
}

/// What the kernel makes of vendor specific I/O commands of this user, of which none is sent: it has them need
/// CAP_SYS_ADMIN, whatever the effects log says and however the node was opened, as it has a log page.
fn vendor(log: &io::Result<()>) -> Outcome {
    match log.as_ref().map_err(|error| (error, error.raw_os_error())) {
        Err((_, Some(libc::EACCES))) => Outcome::no(
            "vendor specific I/O commands need CAP_SYS_ADMIN, whoever may write to the node",
            machine::with_capabilities("cap_sys_admin"),
        ),
        // It has not come to that question.
        Err((error, Some(_))) => Outcome::never(format!("reading the SMART log: {error}")),
        _ => Outcome::yes("vendor specific I/O commands of this user are passed through"),
    }
}

/// The Commands Supported and Effects log of a controller. The kernel reads it when the controller is made, and passes a
/// command of somebody without CAP_SYS_ADMIN only where it says that the command is supported and changes no more than
/// blocks.
enum Effects {
    /// Its Identify data says that there is none.
    None,
    /// It is said to be there; only root may ask for it.
    Unread,
    /// It is said to be there, and the controller refused to give it.
    Refused(String),
    /// It was read; whether it lists Read as a command that changes nothing.
    Read { lists_read: bool },
}

/// What reading one block by this user has come to, beside the log: what others than root may do.
fn unprivileged(log: &Effects, read: &io::Result<()>) -> Outcome {
    let denied = read.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EACCES));
    let came = match read {
        Ok(()) => "a Read was passed through by this user".to_owned(),
        Err(error) if denied => format!("a Read was refused ({error})"),
        Err(error) => {
            return Outcome::never(format!("a Read was passed through and failed: {error}"));
        }
    };
    let without = match log {
        Effects::None => "the controller has no Commands Supported and Effects log (LPA bit 1)".to_owned(),
        Effects::Refused(status) => {
            format!("the controller does not give its Commands Supported and Effects log ({status})")
        }
        Effects::Read { lists_read: false } => {
            "the controller's Commands Supported and Effects log does not say that Read is supported and harmless".to_owned()
        }
        Effects::Unread | Effects::Read { lists_read: true } if denied => {
            return Outcome::no(
                format!("{came}; the controller has the log that others than root need"),
                machine::with_capabilities("cap_sys_admin"),
            );
        }
        Effects::Unread | Effects::Read { lists_read: true } => {
            return Outcome::yes(format!(
                "{came}, and the controller has the log that others than root need"
            ));
        }
    };
    Outcome::no(
        format!(
            "{came}; {without}, so the kernel lets only root and CAP_SYS_ADMIN pass such commands through"
        ),
        machine::with_capabilities("cap_sys_admin"),
    )
}

/// Identify Controller failed, which since Linux 6.2 any user may send.
fn not_identified(error: &io::Error) -> Outcome {
    match error.raw_os_error() {
        Some(libc::EACCES) => Outcome::no(
            "this kernel lets only root and CAP_SYS_ADMIN pass commands through, whatever they are",
            machine::with_capabilities("cap_sys_admin"),
        ),
        _ => Outcome::never(format!("Identify Controller: {error}")),
    }
}

/// Reads the SMART log, which the kernel lets only CAP_SYS_ADMIN do.
fn smart_log(file: &File) -> io::Result<()> {
    let mut log = [0; 512];
    let dwords_z = log.len() as u32 / 4 - 1;
    let command = Passthrough {
        opcode: GET_LOG_PAGE,
        nsid: u32::MAX,
        cdw10: LOG_SMART | dwords_z << 16,
        ..Passthrough::default()
    };
    pass(file, IOCTL_ADMIN64, command, &mut log)
}

/// Reads the log, as the kernel does.
fn effects_log(file: &File) -> Effects {
    let mut log = vec![0; EFFECTS_BYTES];
    let dwords_z = log.len() as u32 / 4 - 1;
    let command = Passthrough {
        opcode: GET_LOG_PAGE,
        nsid: u32::MAX,
        cdw10: LOG_EFFECTS | dwords_z << 16,
        ..Passthrough::default()
    };
    match pass(file, IOCTL_ADMIN64, command, &mut log) {
        Ok(()) => Effects::Read { lists_read: lists_read(&log) },
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Effects::Unread,
        Err(error) => Effects::Refused(error.to_string()),
    }
}

/// Whether a log says of Read that it is supported, and has no effect (NVMe Base 2.1, section 5.1.12.1.6).
fn lists_read(log: &[u8]) -> bool {
    let at = EFFECTS_IO + 4 * usize::from(READ);
    let entry = u32::from_le_bytes(log[at..at + 4].try_into().expect("four bytes"));
    entry & EFFECTS_CSUPP != 0 && entry & !EFFECTS_HARMLESS == 0
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

    /// What is told of a controller without the log that others than root need, and what mends it.
    #[test]
    fn a_controller_without_an_effects_log_is_for_those_who_may_everything() {
        let denied = || Err(io::Error::from_raw_os_error(libc::EACCES));
        let refused = || Effects::Refused(nvme::Status::INVALID_FIELD.to_string());
        let lists = |lists_read| Effects::Read { lists_read };
        for (log, read, has, parts) in [
            (
                Effects::None,
                Ok(()),
                false,
                &["was passed through by this user", "no Commands", "LPA bit 1"][..],
            ),
            (Effects::None, denied(), false, &["a Read was refused", "no Commands", "LPA bit 1"]),
            (refused(), Ok(()), false, &["does not give", "Invalid Field"]),
            (refused(), denied(), false, &["a Read was refused", "does not give"]),
            (lists(false), Ok(()), false, &["does not say that Read is supported"]),
            (lists(false), denied(), false, &["a Read was refused", "does not say"]),
            (lists(true), Ok(()), true, &["and the controller has the log"]),
            (Effects::Unread, Ok(()), true, &["and the controller has the log"]),
            (Effects::Unread, denied(), false, &["a Read was refused", "has the log"]),
            (lists(true), denied(), false, &["a Read was refused", "has the log"]),
        ] {
            let outcome = unprivileged(&log, &read);
            assert_eq!(outcome.has, has, "{}", outcome.found);
            for part in parts {
                assert!(outcome.found.contains(part), "{part}: {}", outcome.found);
            }
            // What helps is the right to everything, for the program that asks.
            let mend = outcome.mend.unwrap_or_default();
            assert_eq!(mend.starts_with("sudo setcap cap_sys_admin+ep /"), !has, "{mend}");
            let who = "only root and CAP_SYS_ADMIN";
            let lacks = !matches!(log, Effects::Unread | Effects::Read { lists_read: true });
            assert_eq!(outcome.found.contains(who), lacks, "{}", outcome.found);
        }
        // The log has nothing to do with a medium that fails.
        let failed = unprivileged(&Effects::None, &Err(io::Error::other("Unrecovered Read Error")));
        assert!(failed.mend.is_none() && failed.found.contains("Unrecovered Read Error"));
    }

    /// Linux before 6.2.
    #[test]
    fn a_kernel_that_lets_only_root_pass_commands_is_told() {
        let denied = not_identified(&io::Error::from_raw_os_error(libc::EACCES));
        assert!(denied.found.contains("this kernel lets only root"), "{}", denied.found);
        assert!(denied.mend.unwrap().starts_with("sudo setcap cap_sys_admin+ep /"));
        let other = not_identified(&io::Error::from_raw_os_error(libc::ENODEV));
        assert!(other.mend.is_none() && other.found.starts_with("Identify Controller: "));
    }

    #[test]
    fn vendor_commands_are_for_those_who_may_read_a_log_page() {
        let denied = vendor(&Err(io::Error::from_raw_os_error(libc::EACCES)));
        assert!(!denied.has && denied.found.contains("need CAP_SYS_ADMIN"), "{}", denied.found);
        assert!(denied.mend.unwrap().starts_with("sudo setcap cap_sys_admin+ep /"));
        // The kernel let it pass, whatever the controller says of it.
        for log in [Ok(()), Err(io::Error::other("Invalid Log Page"))] {
            assert!(vendor(&log).has);
        }
    }

    #[test]
    fn a_log_says_whether_a_read_is_harmless() {
        let mut log = vec![0; EFFECTS_BYTES];
        assert!(!lists_read(&log), "not supported");
        // As an admin command 02h is Get Log Page.
        log[8] = 1;
        assert!(!lists_read(&log));
        for (entry, harmless) in [
            (1, true),
            (1 | 1 << 19 | 1 << 20, true),
            (1 << 20, false),
            (3, false),
            (1 | 1 << 16, false),
        ] {
            log[1032..1036].copy_from_slice(&u32::to_le_bytes(entry));
            assert_eq!(lists_read(&log), harmless, "{entry:#x}");
        }
    }

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
