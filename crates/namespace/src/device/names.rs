//! Names of subsystems: one object for all devices of this machine that surely are of the same one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A subsystem in use: where its devices are in /sys, and its NQN.
struct Named {
    parent: PathBuf,
    nqn: Weak<str>,
}

static NAMED: Mutex<Vec<Named>> = Mutex::new(Vec::new());

/// `nqn`, of a device in the directory `parent` of /sys, as the object that the others there have. Equal NQNs elsewhere
/// show nothing: devices exist that share theirs.
pub(super) fn shared(parent: &Path, nqn: Arc<str>) -> Arc<str> {
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    named.retain(|it| it.nqn.strong_count() > 0);
    let here = named.iter().filter(|it| it.parent == parent);
    if let Some(known) = here.filter_map(|it| it.nqn.upgrade()).find(|known| **known == *nqn) {
        return known;
    }
    named.push(Named { parent: parent.to_owned(), nqn: Arc::downgrade(&nqn) });
    nqn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_for_all_devices_of_a_directory() {
        let name = |parent: &str, nqn: &str| shared(Path::new(parent), nqn.into());
        let first = name("/nowhere/names0", "nqn.x:y");
        assert!(Arc::ptr_eq(&first, &name("/nowhere/names0", "nqn.x:y")));
        let others = [name("/nowhere/names1", "nqn.x:y"), name("/nowhere/names0", "nqn.x:z")];
        assert!(others.iter().all(|other| !Arc::ptr_eq(&first, other)));
        drop(first);
        assert_eq!(&*name("/nowhere/names0", "nqn.x:y"), "nqn.x:y");
    }
}
