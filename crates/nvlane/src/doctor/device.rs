//! A volume: whether it opens, and of the devices that it is on what this user may do with them. Or a controller.

mod nvme_node;

use super::{Check, Outcome, machine, ring};
use crate::patience::{MOMENT, Patience};
use namespace::device::controller;
use nvme::limits::Passthrough;
use nvme_node::Node;
use std::fs;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use volume::session::{Session, SessionConfig, Submission};
use volume::{Kind, OpenOptions, Uri};

pub fn check(uri: &str, checks: &mut Vec<Check>) {
    if controller::is_named_like_one(Path::new(uri)) {
        let device = Some(uri.to_owned());
        let admin = nvme_node::admin_by(uri);
        checks.push(Check { device, ..Check::needed("admin", "admin commands", admin) });
        return;
    }
    checks.push(Check::needed("volume", "the volume", opened(uri)));
    let Ok(uri) = uri.parse::<Uri>() else { return };
    let mut paths = Vec::new();
    leaves(&uri, &mut paths);
    for path in paths {
        let first = checks.len();
        if let Some(node) = Node::of(&path) {
            node.check(checks);
        } else if let Some(queue) = block_queue(&path) {
            checks.push(Check::optional("poll_queues", "poll queues", poll_queues(&queue)));
        }
        for check in &mut checks[first..] {
            check.device = Some(path.display().to_string());
            // A layer may do without one of several.
            check.needed &= uri.children().is_empty();
        }
    }
}

/// The files and devices that a volume is on, each once, whatever layers there are.
fn leaves(uri: &Uri, paths: &mut Vec<PathBuf>) {
    let own = file_of(&uri.kind).filter(|path| !paths.contains(path));
    paths.extend(own);
    uri.children().iter().for_each(|child| leaves(child, paths));
}

/// Opens it and reads its first block, unless it is a device that this user may not open.
fn opened(uri: &str) -> Outcome {
    let error = match read_first(uri) {
        Ok(facts) => return Outcome::yes(facts),
        Err(error) => error,
    };
    let found = crate::one_line(&error);
    let causes = || error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    if let Some(refusal) = causes().find_map(ring_refused) {
        return Outcome { found, ..ring::refused(refusal) };
    }
    let denied = causes().any(|cause| cause.kind() == io::ErrorKind::PermissionDenied);
    match mend(uri).filter(|_| denied) {
        Some(mend) => Outcome::no(found, mend),
        None => Outcome::never(found),
    }
}

/// That io_uring is refused, if that is why a queue was not opened.
fn ring_refused(cause: &io::Error) -> Option<&uring::Error> {
    match cause.get_ref()?.downcast_ref()? {
        reactor::Error::Ring(refusal) => Some(refusal),
        _ => None,
    }
}

/// The file or device that a URI names, whatever its options; None for layers and what is no file.
fn path_of(uri: &str) -> Option<PathBuf> {
    file_of(&uri.parse::<Uri>().ok()?.kind)
}

fn file_of(kind: &Kind) -> Option<PathBuf> {
    match kind {
        Kind::File { path, .. } => Some(path.clone()),
        Kind::Device(device) => Some(device.path.clone()),
        _ => None,
    }
}

/// What gives this user the file that it may not open, if it is there.
fn mend(uri: &str) -> Option<String> {
    let path = path_of(uri)?;
    if path.exists() { path.to_str().map(machine::to_this_user) } else { None }
}

/// Has a URI make nothing.
fn uncreated(uri: &mut Uri) -> bool {
    let own = match &mut uri.kind {
        Kind::File { create_bytes, .. } => create_bytes.take().is_some(),
        _ => false,
    };
    uri.children_mut().iter_mut().fold(own, |any, child| uncreated(child) | any)
}

fn read_first(uri: &str) -> anyhow::Result<String> {
    let mut parsed: Uri = uri.parse()?;
    let made_none = uncreated(&mut parsed).then(|| parsed.to_string());
    let uri = made_none.as_deref().unwrap_or(uri);
    let session = Session::new(&SessionConfig { depth: 1, ..SessionConfig::default() })?;
    let passthrough = Passthrough::ALL;
    let options = OpenOptions { read_only: true, passthrough, ..OpenOptions::default() };
    let volume = Patience::new(MOMENT).open(|| session.open_with(uri, &options))?;
    let limits = volume.limits();
    let block = vec![0u8; limits.block_bytes() as usize];
    let metadata = vec![0u8; usize::from(limits.metadata_bytes)];
    let read = Submission::read(0, 1, block);
    let read = if metadata.is_empty() { read } else { read.metadata(metadata) };
    volume.submit(read).map_err(|rejected| rejected.reason)?;
    session.wait(1, None);
    let mut done = Vec::with_capacity(1);
    session.reap(&mut done);
    let status = done.first().map(|done| done.status);
    if let Some(status) = status.filter(|status| !status.is_success()) {
        anyhow::bail!("{}: reading its first block: {status}", volume.uri());
    }
    let passed = match (limits.passthrough.io, limits.passthrough.admin) {
        (true, true) => "I/O and admin commands are passed through",
        (true, false) => "I/O commands are passed through",
        (false, true) => "admin commands are passed through",
        (false, false) => "it takes the commands of the NVM command set only",
    };
    let size = crate::size::format(limits.bytes());
    Ok(format!("opens and reads: {size} in blocks of {} bytes; {passed}", limits.block_bytes()))
}

/// The folder of queue attributes of the block device that `path` is, or is on.
fn block_queue(path: &Path) -> Option<PathBuf> {
    let metadata = fs::metadata(path).ok()?;
    let is_block = std::os::unix::fs::FileTypeExt::is_block_device(&metadata.file_type());
    let device = if is_block { metadata.st_rdev() } else { metadata.st_dev() };
    let (major, minor) = (libc::major(device), libc::minor(device));
    let folder = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // A partition has its disk's queue.
    [folder.join("queue"), folder.join("../queue")].into_iter().find(|queue| queue.is_dir())
}

/// Whether the device has queues whose completions are polled for; without them, polling looks for
/// completions that only interrupts bring.
fn poll_queues(queue: &Path) -> Outcome {
    let name =
        queue.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    // A device that has gone, or a namespace that is no block device, has none of which anything is known.
    let Ok(polls) = fs::read_to_string(queue.join("io_poll")) else {
        return Outcome::never(format!("no queues of {name} are known in /sys"));
    };
    if polls.trim() == "1" {
        return Outcome::yes(format!("{name} has queues that are polled"));
    }
    // Older kernels warn of more queues than processors (Linux 6.12, `group_cpus_evenly`).
    let many = thread::available_parallelism().map_or(1, |processors| processors.get().min(2));
    if name.starts_with("nvme") {
        return Outcome::no(
            format!("{name} has no poll queues: polling would wait for interrupts"),
            format!(
                "sudo modprobe -r nvme && sudo modprobe nvme poll_queues={many}   (at boot: nvme.poll_queues={many}; for NVMe/TCP: nvme connect --nr-poll-queues={many})"
            ),
        );
    }
    if name.starts_with("nullb") {
        return Outcome::no(
            format!("{name} has no poll queues"),
            format!("sudo modprobe -r null_blk && sudo modprobe null_blk poll_queues={many}"),
        );
    }
    Outcome::never(format!("{name} has no poll queues, and its driver none to be asked for"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_a_volume_are_those_below_its_layers() {
        let found = |uri: &str| {
            let mut paths = Vec::new();
            leaves(&uri.parse().unwrap(), &mut paths);
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(found("/dev/ng0n1?poll"), "/dev/ng0n1");
        assert_eq!(found("delay:1ms(/dev/ng0n1)"), "/dev/ng0n1");
        let paths = "multipath:(delay:1ms(/dev/ng0n1),/dev/ng1n1?passthrough=io,/dev/ng0n1,mem:1M)";
        assert_eq!(found(paths), "/dev/ng0n1 /dev/ng1n1");
        assert_eq!(found("tcp://h/nqn.x:y"), "");
    }

    /// Neither is there: what is said of them is about them all the same.
    #[test]
    fn each_device_of_a_layer_has_checks_of_its_own() {
        let checks = |uri: &str| {
            let mut checks = Vec::new();
            check(uri, &mut checks);
            checks
        };
        let of = |checks: &[Check], device: &str| {
            let of = checks.iter().filter(|check| check.device.as_deref() == Some(device));
            of.map(|check| (check.name, check.needed)).collect::<Vec<_>>()
        };
        let names = ["char_device", "char_device_write", "admin", "poll_queues"];
        let layered = checks("linear:(/dev/ng9998n1,/dev/ng9999n1)");
        assert_eq!((layered[0].name, layered[0].needed), ("volume", true));
        for device in ["/dev/ng9998n1", "/dev/ng9999n1"] {
            assert_eq!(of(&layered, device), names.map(|name| (name, false)));
        }
        let text = crate::doctor::table(&layered);
        assert!(text.contains("  /dev/ng9999n1: there is no /dev/ng9999n1"), "{text}");
        let one = checks("/dev/ng9998n1");
        assert_eq!(of(&one, "/dev/ng9998n1"), names.map(|name| (name, name == "char_device")));
        assert!(!crate::doctor::table(&one).contains("/dev/ng9998n1: there"));
        // Other queues than it has would not bring it back.
        let queues = one.iter().find(|check| check.name == "poll_queues").unwrap();
        let (found, mend) = (&queues.outcome.found, &queues.outcome.mend);
        assert_eq!((found.as_str(), mend), ("no queues of nvme9998n1 are known in /sys", &None));
        // A controller is no volume.
        let controller = checks("/dev/nvme9999");
        assert_eq!(of(&controller, "/dev/nvme9999"), [("admin", true)]);
        assert_eq!(controller.len(), 1);
    }

    #[test]
    fn the_mend_names_the_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("ng0n1").into_os_string().into_string().unwrap();
        let odd = folder.path().join("a 'b'?c").into_os_string().into_string().unwrap();
        fs::write(&plain, "").unwrap();
        fs::write(&odd, "").unwrap();
        let giving = |file: &str| Some(machine::to_this_user(file));
        for (kind, options) in
            [("", "?ro"), ("nvme:", "?poll&passthrough=io"), ("file:", "?buffered")]
        {
            assert_eq!(mend(&format!("{kind}{plain}")), giving(&plain), "{kind}");
            assert_eq!(mend(&format!("{kind}{plain}{options}")), giving(&plain), "{kind}");
        }
        assert_eq!(path_of("/dev/ng0n1?poll"), Some(PathBuf::from("/dev/ng0n1")));
        let encoded = odd.replace(' ', "%20").replace('?', "%3F");
        assert_eq!(mend(&format!("file:{encoded}?ro&buffered")), giving(&odd));
        assert_eq!(mend(&format!("{encoded}?ro")), giving(&odd));
        // What is not there, or is no file, or may be several, is not mended so.
        for uri in ["/nothing/there", "mem:1M", "tcp://h/nqn.x:y", &format!("delay:1ms({plain})")] {
            assert_eq!(mend(uri), None, "{uri}");
        }
    }
}
