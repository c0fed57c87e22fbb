//! A volume: whether it opens, and of a device what this user may do with it.

mod nvme_node;

use super::{Check, Outcome, machine};
use crate::patience::{MOMENT, Patience};
use nvme::limits::Passthrough;
use nvme_node::Node;
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use volume::session::{Session, SessionConfig, Submission};
use volume::{Kind, OpenOptions, Uri};

pub fn check(uri: &str, checks: &mut Vec<Check>) {
    checks.push(Check::needed("volume", "the volume", opened(uri)));
    let Some(path) = path_of(uri) else { return };
    let path = path.as_path();
    if let Some(node) = Node::of(path) {
        node.check(checks);
    } else if let Some(queue) = block_queue(path) {
        checks.push(Check::optional("poll_queues", "poll queues", poll_queues(&queue)));
    }
}

/// Opens it and reads its first block, unless it is a device that this user may not open.
fn opened(uri: &str) -> Outcome {
    match read_first(uri) {
        Ok(facts) => Outcome::yes(facts),
        Err(error) => {
            let text = format!("{error:#}");
            let denied = error.chain().any(|cause| {
                cause
                    .downcast_ref::<std::io::Error>()
                    .is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
            });
            match mend(uri).filter(|_| denied) {
                Some(mend) => Outcome::no(text, mend),
                None => Outcome::never(text),
            }
        }
    }
}

/// The file or device that a URI names, whatever its options; None for layers and what is no file.
fn path_of(uri: &str) -> Option<PathBuf> {
    match uri.parse::<Uri>().ok()?.kind {
        Kind::File { path, .. } => Some(path),
        Kind::Device(device) => Some(device.path),
        _ => None,
    }
}

/// What gives this user the file that it may not open, if it is there.
fn mend(uri: &str) -> Option<String> {
    let path = path_of(uri)?;
    if path.exists() { path.to_str().map(machine::to_this_user) } else { None }
}

fn read_first(uri: &str) -> anyhow::Result<String> {
    let session = Session::new(&SessionConfig { depth: 1, ..SessionConfig::default() })?;
    let passthrough = Passthrough::ALL;
    let options = OpenOptions { read_only: true, passthrough, ..OpenOptions::default() };
    let volume = Patience::new(MOMENT).open(|| session.open_with(uri, &options))?;
    let limits = volume.limits();
    let block = vec![0u8; limits.block_bytes() as usize];
    volume.submit(Submission::read(0, 1, block)).map_err(|rejected| rejected.reason)?;
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
    let polls = fs::read_to_string(queue.join("io_poll")).unwrap_or_default();
    let name =
        queue.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
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
