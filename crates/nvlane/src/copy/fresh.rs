//! Files that are not there yet. They are made, and taken away again if nothing is copied to them after all; a dry run
//! has files without a name in their place.

use anyhow::{Context, Result};
use namespace::file::{Made, OpenError};
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
    /// Of which `made` has those that opening makes.
    pub fn new(made: Arc<Made>) -> Fresh {
        Fresh { made, imagined: Vec::new() }
    }

    /// Who has what opening makes.
    pub fn made(&self) -> Arc<Made> {
        Arc::clone(&self.made)
    }

    /// Puts others in the place of the files that opening `uri` would make.
    pub fn imagine(&mut self, uri: &mut Uri) -> Result<()> {
        let block_bytes = uri.options.block_bytes.unwrap_or(512);
        if let Kind::File { path, create_bytes, .. } = &mut uri.kind
            && let Some(bytes) = *create_bytes
            && !path.exists()
        {
            // By whatever name: a copy would find there what it has made.
            let name = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
            let known = self.imagined.iter().find(|one| one.path == name);
            let link = match known {
                Some(one) => one.link(),
                None => {
                    check(path, bytes, block_bytes).map_err(volume::Error::File)?;
                    let file = nameless(path, bytes).with_context(|| {
                        format!(
                            "{} is not there, and nobody can tell without making it what its file system can do",
                            path.display()
                        )
                    })?;
                    let imagined = Imagined { file, path: name };
                    let link = imagined.link();
                    self.imagined.push(imagined);
                    link
                }
            };
            (*path, *create_bytes) = (link, None);
        }
        uri.children_mut().iter_mut().try_for_each(|child| self.imagine(child))
    }

    /// What is said of a volume, with the names that imagined files would have.
    pub fn named(&self, text: String) -> String {
        self.imagined.iter().fold(text, |text, one| {
            let (link, path) = (one.link(), &one.path);
            let own = format!("file:{}?", percent::encode(&link));
            let text = text.replace(&own, &format!("file:{}?", percent::encode(path)));
            let link = link.display().to_string();
            // Not /proc/self/fd/12 for /proc/self/fd/1.
            let parts: Vec<&str> = text.split(&link).collect();
            let mut named = parts[0].to_owned();
            for part in &parts[1..] {
                let is_it = !part.starts_with(|next: char| next.is_ascii_digit());
                named += &if is_it { path.display().to_string() } else { link.clone() };
                named += part;
            }
            named
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

/// Refuses what making a file would.
fn check(path: &Path, bytes: u64, block_bytes: u32) -> Result<(), OpenError> {
    let path = path.to_owned();
    if !directory(&path).is_dir() {
        let directory = directory(&path).to_owned();
        return Err(OpenError::MissingDirectory { path, directory });
    }
    if bytes < u64::from(block_bytes) {
        return Err(OpenError::TooSmall { path, bytes, block_bytes });
    }
    if !bytes.is_multiple_of(u64::from(block_bytes)) {
        return Err(OpenError::Misaligned { path, bytes, block_bytes });
    }
    Ok(())
}

/// Where the file's name is.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file of so many bytes, all of them a hole, where `path` would be.
fn nameless(path: &Path, bytes: u64) -> std::io::Result<File> {
    let mut open = OpenOptions::new();
    open.read(true).write(true).custom_flags(libc::O_TMPFILE);
    let file = open.open(directory(path))?;
    file.set_len(bytes)?;
    Ok(file)
}

impl Drop for Fresh {
    fn drop(&mut self) {
        self.made.discard();
    }
}
