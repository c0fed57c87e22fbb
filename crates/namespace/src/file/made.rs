//! Files that opening makes, and that go again unless somebody keeps them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Device and inode.
type Id = (u64, u64);

/// The files that opening has made for somebody who may not want them in the end. Each is taken away when it is closed, while
/// nobody else can lock it, unless they are kept by then.
#[derive(Debug, Default)]
pub struct Made {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Those that are open.
    open: Vec<(PathBuf, Id)>,
    kept: bool,
    /// No more is made.
    over: bool,
}

impl Made {
    /// They stay.
    pub fn keep(&self) {
        self.state().kept = true;
    }

    /// Takes away those that are open, unless they are kept; from now on none is made.
    pub fn discard(&self) {
        let mut state = self.state();
        state.over = true;
        if !state.kept {
            state.open.drain(..).for_each(|(path, id)| remove(&path, id));
        }
    }

    /// Has a file made and locked by `make`. Nobody takes others away meanwhile.
    pub(super) fn make<E>(
        self: &Arc<Made>,
        path: &Path,
        make: impl FnOnce() -> Result<fs::File, E>,
        failed: impl Fn(io::Error) -> E,
    ) -> Result<(fs::File, Own), E> {
        let mut state = self.state();
        if state.over {
            return Err(failed(io::ErrorKind::Interrupted.into()));
        }
        let file = make()?;
        let id = id(&file.metadata().map_err(&failed)?);
        state.open.push((path.to_owned(), id));
        Ok((file, Own { made: Arc::clone(self), id }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Belongs to an open file that was made, and goes before that is closed.
#[derive(Debug)]
pub(super) struct Own {
    made: Arc<Made>,
    id: Id,
}

impl Drop for Own {
    fn drop(&mut self) {
        let mut state = self.made.state();
        let Some(at) = state.open.iter().position(|(_, id)| *id == self.id) else { return };
        let (path, id) = state.open.swap_remove(at);
        if !state.kept {
            remove(&path, id);
        }
    }
}

/// What tells a file from others as long as it is open.
pub(super) fn id(metadata: &fs::Metadata) -> Id {
    (metadata.dev(), metadata.ino())
}

/// Takes a file away that is open, if its name still leads to it.
fn remove(path: &Path, its: Id) {
    if fs::symlink_metadata(path).is_ok_and(|found| id(&found) == its) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{File, FileOptions, OpenError};

    fn open(path: &Path, made: &Arc<Made>) -> Result<Arc<File>, OpenError> {
        let made = Some(Arc::clone(made));
        File::open(&FileOptions { made, ..FileOptions::buffered(path, Some(1 << 20)) })
    }

    #[test]
    fn what_was_made_goes_with_its_last_user_unless_it_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("there"), vec![0; 1 << 20]).unwrap();
        let made = Arc::default();
        let files = ["there", "made", "other", "moved"].map(|name| open(&path(name), &made));
        // Another has its name by now, and what is written to one does not make it another's.
        fs::rename(path("moved"), path("elsewhere")).unwrap();
        fs::write(path("moved"), "somebody's").unwrap();
        fs::write(path("made"), vec![1; 1 << 20]).unwrap();
        let [there, first, other, moved] = files.map(Result::unwrap);
        drop(first);
        assert!(!path("made").exists() && path("other").exists());
        made.discard();
        assert!(!path("other").exists(), "it is taken away before it is closed");
        drop((there, other, moved));
        assert!(["there", "moved", "elsewhere"].iter().all(|name| path(name).exists()));
        assert!(open(&path("late"), &made).is_err() && !path("late").exists());

        let made = Arc::default();
        let file = open(&path("kept"), &made).unwrap();
        made.keep();
        drop(file);
        made.discard();
        assert!(path("kept").exists());
    }

    #[test]
    fn of_two_at_once_only_the_one_that_made_it_takes_it_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let (one, other) = (Arc::default(), Arc::default());
        let file = open(&path, &one).unwrap();
        let busy = open(&path, &other);
        assert!(matches!(busy, Err(OpenError::Busy { .. })), "{busy:?}");
        other.discard();
        drop(other);
        assert!(path.exists() && file.is_at(&path));
        drop(file);
        assert!(!path.exists());
    }

    /// Nobody goes on with a file that has no name any more.
    #[test]
    fn many_that_make_one_file_have_it_one_after_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let had = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let opened = (0..50).filter(|_| match open(&path, &Arc::default()) {
                            Ok(file) => file.is_at(&path) || panic!("it is gone"),
                            Err(OpenError::Busy { .. }) => false,
                            Err(error) => panic!("{error}"),
                        });
                        opened.count()
                    })
                })
                .collect();
            all.into_iter().map(|one| one.join().unwrap()).sum::<usize>()
        });
        assert!(had > 0 && !path.exists());
    }
}
