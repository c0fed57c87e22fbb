//! Files that are not there yet. They are made, and taken away again if nothing is copied to them after all; a dry run
//! has files without a name in their place.

use anyhow::{Context, Result};
use namespace::file::Made;
use namespace::percent;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use volume::{Kind, Uri};

/// The files of a copy that were not there when it was asked for. It goes before the volumes are closed: until then nobody
/// else has what was made.
#[derive(Default)]
pub struct Fresh {
    /// Those that opening makes.
    made: Arc<Made>,
    imagined: Vec<Imagined>,
}

/// What a dry run has in the place of a file that a copy would make: one of that size in the same directory.
struct Imagined {
    file: File,
    path: PathBuf,
}

impl Fresh {
    /// Who has what opening makes.
    pub fn made(&self) -> Arc<Made> {
        Arc::clone(&self.made)
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
        self.made.keep();
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
        self.made.discard();
    }
}
