//! One file under two names: what its lock would take for another server.

use crate::config::Config;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use volume::{Device, Kind, Uri};

/// The two paths of a file that would be opened twice, once for writing at least.
pub fn named_twice(config: &Config) -> Option<(PathBuf, PathBuf)> {
    let mut files = BTreeMap::new();
    let volumes = config
        .subsystems
        .iter()
        .filter(|subsystem| !subsystem.shared)
        .flat_map(|subsystem| &subsystem.namespaces);
    for volume in volumes {
        let Ok(uri) = volume.volume.parse::<Uri>() else { continue };
        if let Some(twice) = collect(&uri, &mut files) {
            return Some(twice);
        }
    }
    None
}

fn collect(
    uri: &Uri,
    files: &mut BTreeMap<PathBuf, (PathBuf, bool)>,
) -> Option<(PathBuf, PathBuf)> {
    match &uri.kind {
        Kind::File { path, .. } | Kind::Device(Device { path, .. }) => {
            let read_only = uri.options.read_only;
            let key = identity(path);
            match files.get(&key) {
                Some((other, both)) if !(read_only && *both) => {
                    return Some((other.clone(), path.clone()));
                }
                _ => drop(files.insert(key, (path.clone(), read_only))),
            }
            None
        }
        Kind::Linear(children) | Kind::Multipath(_, children) | Kind::Program(_, children) => {
            children.iter().find_map(|child| collect(child, files))
        }
        Kind::Delay(_, child)
        | Kind::Rate(_, child)
        | Kind::Fault(_, child)
        | Kind::Volatile(_, child) => collect(child, files),
        Kind::Memory(_) | Kind::Null(_) | Kind::Remote(_) => None,
    }
}

/// The same for every name of a file: its inode if it is there, its path if it is yet to be made.
fn identity(path: &PathBuf) -> PathBuf {
    match std::fs::metadata(path) {
        Ok(found) => PathBuf::from(format!("{}:{}", found.dev(), found.ino())),
        Err(_) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
    }
}
