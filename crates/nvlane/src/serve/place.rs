//! The data directory, which a start that fails does not leave behind.

use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// What `Machine::find` may put there before anything is served.
const MACHINE_ID: &str = "machine-id";

/// The data directory. When dropped, it goes with what was made for it, unless it is kept or
/// something is in it.
pub struct DataDir {
    path: PathBuf,
    /// Directories that were not there before, the innermost first.
    made: Vec<PathBuf>,
}

impl DataDir {
    /// Makes it where it is missing, mode 0700.
    pub fn make(path: PathBuf) -> Result<DataDir> {
        let missing = path.ancestors().take_while(|place| !place.as_os_str().is_empty());
        let made = missing.take_while(|place| !place.exists()).map(Path::to_owned).collect();
        let data_dir = DataDir { path, made };
        DirBuilder::new().recursive(true).mode(0o700).create(&data_dir.path).with_context(
            || {
                format!(
                    "data directory {} (--data-dir DIR for another one)",
                    data_dir.path.display()
                )
            },
        )?;
        Ok(data_dir)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It is in use: it stays.
    pub fn keep(&mut self) {
        self.made.clear();
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if self.made.is_empty() {
            return;
        }
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        if names.iter().all(|name| name == OsStr::new(MACHINE_ID)) {
            let _ = fs::remove_file(self.path.join(MACHINE_ID));
            // Only empty ones can be removed.
            for place in &self.made {
                let _ = fs::remove_dir(place);
            }
        }
    }
}
