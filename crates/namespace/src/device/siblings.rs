//! Which devices are open in this process: some commands to one change others, too.

use super::Device;
use nvme::NSID_ALL;
use std::sync::{Arc, Mutex, PoisonError, Weak};

static OPEN: Mutex<Vec<Weak<Device>>> = Mutex::new(Vec::new());

/// Notes a device that was opened.
pub(super) fn note(device: &Arc<Device>) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|it| it.strong_count() > 0);
    open.push(Arc::downgrade(device));
}

/// `device`, and the others beside it in /sys that a command is about which is sent to it and names `nsid`: all namespaces, or
/// other nodes of the same.
pub(super) fn meant(device: &Arc<Device>, nsid: u32) -> Vec<Arc<Device>> {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let others = open.iter().filter_map(Weak::upgrade).filter(|other| {
        !Arc::ptr_eq(device, other)
            && other.place.parent() == device.place.parent()
            && (nsid == NSID_ALL || other.nsid == nsid)
    });
    std::iter::once(Arc::clone(device)).chain(others).collect()
}
