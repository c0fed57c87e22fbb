//! The data directory, which a start that fails does not leave behind, unless this machine's id is kept in it.

use crate::cli::ServeArgs;
use crate::control::path;
use anyhow::{Context, Result};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The data directory. When dropped, it goes with what was made for it, unless it is kept or
/// something is in it: this machine's id stays, which another server may go by already.
pub struct DataDir {
    path: PathBuf,
    /// Directories that were not there before, the innermost first.
    made: Vec<PathBuf>,
}

impl DataDir {
    /// The one of a start. Where a configuration file is served, the state is beside that: it is not made for nothing then, unless it was
    /// named, or the control socket or this machine's id is to be there.
    pub fn of(args: &ServeArgs, knows_machine: impl Fn(&Path) -> bool) -> Result<DataDir> {
        let path = args.data_dir.clone().unwrap_or_else(path::data_dir);
        let socket = args.socket.clone().unwrap_or_else(path::socket);
        DataDir::where_needed(args, path, &socket, knows_machine)
    }

    fn where_needed(
        args: &ServeArgs,
        path: PathBuf,
        socket: &Path,
        knows_machine: impl Fn(&Path) -> bool,
    ) -> Result<DataDir> {
        let own = path::check_owner(&path);
        own.context("--data-dir DIR for another one")?;
        let is_elsewhere = args.config.is_some() && args.data_dir.is_none();
        if is_elsewhere && !socket.starts_with(&path) && knows_machine(&path) {
            return Ok(DataDir { path, made: Vec::new() });
        }
        DataDir::make(path)
    }

    /// Makes it where it is missing, mode 0700.
    fn make(path: PathBuf) -> Result<DataDir> {
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
        path::check_owner(&data_dir.path).context("--data-dir DIR for another one")?;
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
        // Only empty ones can be removed.
        for place in &self.made {
            let _ = fs::remove_dir(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn it_is_made_where_something_is_to_be_there() {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: ServeArgs,
        }
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("data");
        let named = ["--config", "a.toml", "--data-dir", "/named"];
        for (words, socket, knows_machine, is_made) in [
            (&["--config", "a.toml"][..], "/run/s", true, false),
            (&["--config", "a.toml"], "/run/s", false, true),
            (&["--config", "a.toml"], "data/s", true, true),
            (&named, "/run/s", true, true),
            (&["mem:1M"], "/run/s", true, true),
        ] {
            let args = Line::parse_from([&["serve"], words].concat()).args;
            let socket = folder.path().join(socket);
            let data_dir =
                DataDir::where_needed(&args, place.clone(), &socket, |_| knows_machine).unwrap();
            assert_eq!(data_dir.path(), place);
            assert_eq!(place.exists(), is_made, "{words:?}, {socket:?}, {knows_machine}");
            drop(data_dir);
            assert!(!place.exists());
        }
    }

    #[test]
    fn a_start_that_fails_leaves_what_others_may_go_by() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("made/data");
        let data_dir = DataDir::make(place.clone()).unwrap();
        fs::write(place.join("machine-id"), "").unwrap();
        drop(data_dir);
        assert!(place.join("machine-id").exists());
    }
}
