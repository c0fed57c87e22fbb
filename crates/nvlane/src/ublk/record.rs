//! Which volume a device was made of, for `nvlane ublk list` and `recover`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::{fs, io};

/// Where devices are noted; gone when the machine restarts, as they are.
const DIRECTORY: &str = "/run/nvlane";

/// What is noted of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The volume's URI.
    pub volume: String,
    /// The same in the words in which it was asked for, while these mean that volume.
    #[serde(default)]
    pub asked: String,
    /// It was made with --read-only.
    pub read_only: bool,
    /// Where its program runs, if it is one.
    #[serde(default)]
    pub program: Option<String>,
}

impl Record {
    /// What was noted of a device.
    pub fn read(id: u32) -> Option<Record> {
        serde_json::from_slice(&fs::read(path(id)).ok()?).ok()
    }

    /// Notes it, in one piece.
    pub fn write(&self, id: u32) -> io::Result<()> {
        fs::create_dir_all(DIRECTORY)?;
        let (path, text) = (path(id), serde_json::to_vec(self)?);
        let new = path.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(new, path)
    }

    /// Forgets it, and what its server has logged.
    pub fn remove(id: u32) {
        let _ = fs::remove_file(path(id));
        let _ = fs::remove_file(log_of(id.into()));
    }
}

/// What the server of a device logs that runs in the background.
pub fn log_of(id: u64) -> PathBuf {
    PathBuf::from(DIRECTORY).join(format!("ublk-{id}.log"))
}

/// The same while its device has no number yet; `process` starts it.
pub fn log_of_new_server(process: u32) -> PathBuf {
    PathBuf::from(DIRECTORY).join(format!("ublk-new-{process}.log"))
}

/// Where the server of a device answers.
pub fn socket_of(id: u32) -> PathBuf {
    PathBuf::from(DIRECTORY).join(format!("ublk-{id}.sock"))
}

fn path(id: u32) -> PathBuf {
    PathBuf::from(DIRECTORY).join(format!("ublk-{id}.json"))
}
