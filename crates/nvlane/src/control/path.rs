//! Where the control socket and the data directory are when nobody says.

use std::env;
use std::path::PathBuf;

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
        None => env::temp_dir().join(format!("nvlane-{}", rustix::process::getuid().as_raw())),
    }
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
