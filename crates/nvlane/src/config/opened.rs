//! Volumes as they are named once they are open: what serves them fills in what nobody has said.

use namespace::file::lasting;
use std::fs;
use volume::{Kind, Uri};

/// Sizes of blocks that a volume may have of which none is said.
const BLOCK_BYTES: [u32; 2] = [512, 4096];

/// The URIs of which an open volume has one that was named so; none if that cannot be known here.
pub fn opened(volume: &str) -> Option<[Uri; 2]> {
    let uri: Uri = volume.parse().ok()?;
    let [small, large] = BLOCK_BYTES.map(|block_bytes| {
        let mut uri = uri.clone();
        fill(&mut uri, block_bytes)?;
        Some(uri)
    });
    Some([small?, large?])
}

/// Whether both may name one volume with the same settings, one of them before it was opened perhaps: also where a relative
/// path in that one keeps it from being known.
pub fn is_same(one: &str, other: &str) -> bool {
    match (opened(one), opened(other)) {
        _ if one == other => true,
        (Some(one), Some(other)) => one.iter().zip(&other).any(|(a, b)| a == b),
        (one, other) => one.is_some() || other.is_some(),
    }
}

/// As `Namespace::uri` has it; none where a path is relative, to where the daemon is started.
fn fill(uri: &mut Uri, block_bytes: u32) -> Option<()> {
    match &mut uri.kind {
        Kind::File { path, create_bytes, .. } => {
            *path = Some(&*path).filter(|path| path.is_absolute()).map(|path| lasting(path))?;
            *create_bytes = None;
        }
        Kind::Memory(_) | Kind::Null(_) => {}
        Kind::Program(path, _) => {
            *path = Some(&*path)
                .filter(|path| path.is_absolute())
                .and_then(|path| fs::canonicalize(path).ok())?;
        }
        _ => {}
    }
    if matches!(uri.kind, Kind::File { .. } | Kind::Memory(_) | Kind::Null(_)) {
        uri.options.block_bytes.get_or_insert(block_bytes);
    }
    uri.children_mut().iter_mut().try_for_each(|child| fill(child, block_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use volume::OpenOptions;

    #[test]
    fn open_volumes_are_named_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.img");
        let path = path.to_str().unwrap();
        for volume in [
            "mem:1048576",
            "null:1G?bs=4096",
            &format!("{path}?create&size=1M"),
            &format!("rate:bytes=1G(linear:({path}?buffered,mem:1M?bs=512))?ro"),
            "multipath:policy=numa,numa_bias=20us(null:1M)",
            "delay:read=1ms,write=2ms(fault:rate=0.5(mem:1M))",
            "volatile:cache=1M(mem:1M)",
        ] {
            let open = volume::open(volume, &OpenOptions::default()).unwrap().uri();
            assert!(opened(volume).unwrap().contains(&open.parse().unwrap()), "{volume}: {open}");
            assert!(is_same(volume, &open) && is_same(&open, &open), "{volume}: {open}");
        }
    }

    #[test]
    fn paths_are_known_where_they_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        // Without symbolic links, which stay as they are.
        let whole = fs::canonicalize(folder.path()).unwrap();
        let path = whole.join("a.img");
        fs::write(&path, [0; 4096]).unwrap();
        let open = volume::open(path.to_str().unwrap(), &OpenOptions::default()).unwrap().uri();
        let (folder, name) = (whole.display(), path.file_name().unwrap().display());
        for spelled in [format!("{folder}//{name}"), format!("{folder}/./{name}")] {
            assert!(is_same(&spelled, &open), "{spelled}: {open}");
        }
        let parent =
            format!("{folder}/../{}/{name}", folder.to_string().rsplit('/').next().unwrap());
        assert!(is_same(&parent, &open), "{parent}: {open}");
        assert!(opened("a.img").is_none() && opened("rate:1G(./a.img)").is_none());
        assert!(is_same("a.img", &open) && !is_same("a.img", "./b.img"));
    }

    #[test]
    fn others_are_told_apart() {
        for (one, other) in [
            ("mem:1M", "mem:2M?bs=512"),
            ("/a", "file:/b?bs=512"),
            ("/a?bs=4096", "file:/a?bs=512"),
            ("rate:1G(/a)", "rate:2G(file:/a?bs=512)"),
            ("tcp://h:1/nqn.r?ns=1", "tcp://h:1/nqn.r?ns=1&policy=numa"),
            ("linear:(/a,/b)", "linear:(file:/b?bs=512,file:/a?bs=512)"),
        ] {
            assert!(!is_same(one, other), "{one} {other}");
        }
    }
}
