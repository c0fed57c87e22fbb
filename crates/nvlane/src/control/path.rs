//! Where the control socket and the data directory are when nobody says.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// `/var/lib/nvlane` for root, `$XDG_DATA_HOME/nvlane` or `~/.local/share/nvlane` for others.
pub fn data_dir() -> PathBuf {
    if is_root() {
        return PathBuf::from("/var/lib/nvlane");
    }
    if let Some(data) = absolute("XDG_DATA_HOME") {
        return data.join("nvlane");
    }
    match absolute("HOME") {
        Some(home) => home.join(".local/share/nvlane"),
        None => last_resort(),
    }
}

/// Where everybody may make directories, by a name that everybody knows.
fn last_resort() -> PathBuf {
    env::temp_dir().join(format!("nvlane-{}", rustix::process::getuid().as_raw()))
}

/// An error if `directory` is where nobody said, and somebody else has made it, who then would say what is served, or hear
/// what we say.
pub fn check_owner(directory: &Path) -> io::Result<()> {
    match check_is_ours(directory) {
        Err(error) if directory == last_resort() && error.kind() != io::ErrorKind::NotFound => {
            Err(error)
        }
        _ => Ok(()),
    }
}

fn check_is_ours(directory: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(directory)?;
    let is_ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if is_ours && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let what = format!("{}: somebody else may write there", directory.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

/// `/run/nvlane.sock` for root (whose services and shells differ in `XDG_RUNTIME_DIR`),
/// `$XDG_RUNTIME_DIR/nvlane.sock` for others, or in the data directory where that is not set.
pub fn socket() -> PathBuf {
    if is_root() {
        return PathBuf::from("/run/nvlane.sock");
    }
    absolute("XDG_RUNTIME_DIR").unwrap_or_else(data_dir).join("nvlane.sock")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A directory from the environment; the XDG specification says to ignore relative ones.
fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_that_others_may_write_to_is_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        let (own, link) = (folder.path().join("own"), folder.path().join("link"));
        assert_eq!(check_is_ours(&own).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::create_dir(&own).unwrap();
        let set_mode = |mode| fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o700);
        check_is_ours(&own).unwrap();
        symlink(&own, &link).unwrap();
        assert!(check_is_ours(&link).is_err());
        for mode in [0o770, 0o702] {
            set_mode(mode);
            assert_eq!(check_is_ours(&own).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        // Of root, if we are not; wherever somebody said, it is for them to know.
        check_owner(Path::new("/tmp")).unwrap();
    }
}
