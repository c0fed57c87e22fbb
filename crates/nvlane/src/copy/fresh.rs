//! Files that are not there yet. They are made, and taken away again if nothing is copied to them after all; a dry run
//! has files without a name in their place.

use anyhow::{Context, Result};
use namespace::percent;
use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use volume::{Kind, Uri};

/// The files of a copy that were not there when it was asked for.
#[derive(Default)]
pub struct Fresh {
    /// Those that opening has made: where, and how large.
    made: Vec<(PathBuf, u64)>,
    kept: Cell<bool>,
    imagined: Vec<Imagined>,
}

/// What a dry run has in the place of a file that a copy would make: one of that size in the same directory.
struct Imagined {
    file: File,
    path: PathBuf,
}

impl Fresh {
    /// Notes the files that opening `uri` is about to make.
    pub fn note(&mut self, uri: &Uri) {
        if let Kind::File { path, create_bytes: Some(bytes), .. } = &uri.kind
            && !path.exists()
        {
            self.made.push((path.clone(), *bytes));
        }
        uri.children().iter().for_each(|child| self.note(child));
    }

    /// Puts others in the place of the files that opening `uri` would make.
    pub fn imagine(&mut self, uri: &mut Uri) -> Result<()> {
        if let Kind::File { path, create_bytes, .. } = &mut uri.kind
            && let Some(bytes) = *create_bytes
            && !path.exists()
        {
            let file = nameless(path, bytes).with_context(|| {
                format!(
                    "{} is not there, and nobody can tell without making it what its file system can do",
                    path.display()
                )
            })?;
            let imagined = Imagined { file, path: std::mem::take(path) };
            (*path, *create_bytes) = (imagined.link(), None);
            self.imagined.push(imagined);
        }
        uri.children_mut().iter_mut().try_for_each(|child| self.imagine(child))
    }

    /// A volume's URI, with the names that imagined files would have.
    pub fn named(&self, uri: String) -> String {
        self.imagined.iter().fold(uri, |uri, one| {
            let path = std::path::absolute(&one.path).unwrap_or_else(|_| one.path.clone());
            let own = format!("file:{}?", percent::encode(&one.link()));
            uri.replace(&own, &format!("file:{}?", percent::encode(&path)))
        })
    }

    /// Something is copied to them: they stay.
    pub fn keep(&self) {
        self.kept.set(true);
    }
}

impl Imagined {
    /// By which it can be opened.
    fn link(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// A file of so many bytes, all of them a hole, where `path` would be.
fn nameless(path: &Path, bytes: u64) -> std::io::Result<File> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut open = OpenOptions::new();
    open.read(true).write(true).custom_flags(libc::O_TMPFILE);
    let file = open.open(directory.unwrap_or(Path::new(".")))?;
    file.set_len(bytes)?;
    Ok(file)
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if self.kept.get() {
            return;
        }
        for (path, bytes) in &self.made {
            // Somebody else may have made it at the same moment, and have written to it.
            let is_ours = |it: fs::Metadata| it.is_file() && it.len() == *bytes && it.blocks() == 0;
            if fs::symlink_metadata(path).is_ok_and(is_ours) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_and_is_empty_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let noted = |names: &[&str]| {
            let mut fresh = Fresh::default();
            for name in names {
                let uri = format!("{}?create&size=1M", path(name).display());
                fresh.note(&uri.parse().unwrap());
            }
            fresh
        };
        let make = |name: &str| File::create(path(name)).unwrap().set_len(1 << 20).unwrap();
        make("there");
        let fresh = noted(&["there", "made", "written", "never"]);
        make("made");
        fs::write(path("written"), vec![1; 1 << 20]).unwrap();
        drop(fresh);
        let left = ["there", "made", "written"].map(|name| path(name).exists());
        assert_eq!(left, [true, false, true]);
        let fresh = noted(&["made"]);
        make("made");
        fresh.keep();
        drop(fresh);
        assert!(path("made").exists());
    }
}
