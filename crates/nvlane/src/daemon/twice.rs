//! One file under two names: what its lock would take for another server.

use crate::config::Config;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use volume::{Device, Kind, Uri};

/// The two paths of a file that would be opened twice, once for writing at least. With `nofail`, and of volumes that may be missing,
/// by their paths alone: what they lie on may not answer.
pub fn named_twice(config: &Config, nofail: bool) -> Option<(PathBuf, PathBuf)> {
    let mut files = BTreeMap::<PathBuf, (PathBuf, bool)>::new();
    let volumes = config
        .subsystems
        .iter()
        .filter(|subsystem| !subsystem.shared)
        .flat_map(|subsystem| &subsystem.namespaces);
    for volume in volumes {
        let Ok(uri) = volume.volume.parse::<Uri>() else { continue };
        let mut own = BTreeMap::new();
        for (path, read_only) in files_of(&uri) {
            let by_path = absolute(path);
            let by_inode = if nofail || volume.nofail { by_path.clone() } else { identity(path) };
            for key in [by_path, by_inode] {
                match files.get(&key) {
                    Some((other, both)) if !(read_only && *both) => {
                        return Some((other.clone(), path.to_owned()));
                    }
                    _ => drop(own.insert(key, (path.to_owned(), read_only))),
                }
            }
            files.append(&mut own);
        }
    }
    None
}

/// The files and devices that a volume is on, and whether each is only read.
pub fn files_of(uri: &Uri) -> Vec<(&Path, bool)> {
    let own = match &uri.kind {
        Kind::File { path, .. } | Kind::Device(Device { path, .. }) => {
            Some((path.as_path(), uri.options.read_only))
        }
        _ => None,
    };
    own.into_iter().chain(uri.children().iter().flat_map(files_of)).collect()
}

/// The same for every name of a file: its inode if it is there, its path if it is yet to be made.
pub fn identity(path: &Path) -> PathBuf {
    match std::fs::metadata(path) {
        Ok(found) => PathBuf::from(format!("{}:{}", found.dev(), found.ino())),
        Err(_) => absolute(path),
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
