//! The state file: what run-time changes have made of a configuration, written atomically.
//!
//! A state continues one starting point, a configuration file or a command line; its fingerprint
//! is kept in it. When the starting point is edited, it wins, and the state is put aside once it is served.

use super::Config;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Version of the state file's layout.
const VERSION: u32 = 1;
/// Largest state file that is read.
const BYTES_MAX: u64 = 64 << 20;

/// Where one daemon keeps its state. Only one process has it open.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    fingerprint: String,
    lock: Lock,
    is_fresh: bool,
}

/// A lock file that is held. Removed when it is let go in order, so that the next holder knows.
#[derive(Debug)]
pub struct Lock {
    /// Held for its lock.
    _file: File,
    path: PathBuf,
    after_crash: bool,
}

/// What was found when a [`Store`] was opened.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// No state: nothing was ever changed.
    Nothing,
    /// The state that continues this starting point.
    State(Config),
    /// A state that this starting point does not continue: to be put aside once it is known that it can be served.
    Other,
}

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Another daemon has it.
    #[error(
        "the same is already being served by another nvlane (process {process}): stop that one, or give this one another --data-dir"
    )]
    Taken {
        /// Its process id, if known.
        process: String,
    },
    /// It does not say what a state file says.
    #[error("{path}: not a state file of this version: {problem}; move it away to start anew")]
    Content {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    fingerprint: String,
    config: Config,
}

/// A short name for a starting point: equal texts give equal names.
pub fn fingerprint(text: &str) -> String {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes()).simple().to_string()
}

impl Store {
    /// Opens the state at `path` for the starting point with this fingerprint.
    pub fn open(path: &Path, fingerprint: String) -> Result<(Store, Found), StoreError> {
        let store = Store::locked(path, fingerprint)?;
        let found = store.load()?;
        Ok((store, found))
    }

    /// The same for a starting point that begins anew: whatever is there, it does not continue that.
    pub fn open_fresh(path: &Path, fingerprint: String) -> Result<(Store, Found), StoreError> {
        let store = Store::locked(path, fingerprint)?;
        let is_there = fs::symlink_metadata(path).is_ok();
        let store = Store { is_fresh: true, ..store };
        Ok((store, if is_there { Found::Other } else { Found::Nothing }))
    }

    fn locked(path: &Path, fingerprint: String) -> Result<Store, StoreError> {
        let lock = lock(&beside(path, ".lock"))?;
        Ok(Store { path: path.to_owned(), fingerprint, lock, is_fresh: false })
    }

    /// Moves away the state that is there. Returns where it is now.
    pub fn put_aside(&self) -> Result<PathBuf, StoreError> {
        let aside = beside(&self.path, ".old");
        let done = directory_of(&self.path).and_then(|directory| {
            fs::rename(&self.path, &aside)?;
            directory.sync_all()
        });
        done.map_err(|error| io_error(&self.path, error))?;
        Ok(aside)
    }

    /// Replaces the state, durably: after a crash at any point there is the old or the new one.
    pub fn save(&self, config: &Config) -> Result<(), StoreError> {
        let document = Document {
            version: VERSION,
            fingerprint: self.fingerprint.clone(),
            config: config.clone(),
        };
        let mut text = serde_json::to_vec_pretty(&document).expect("a configuration is plain data");
        text.push(b'\n');
        write_atomically(&self.path, &text).map_err(|source| io_error(&self.path, source))
    }

    /// Whether the daemon that had this state before did not end in order. What it held in the
    /// kernel (sockets, locks of files) may then take a moment to be let go.
    pub fn is_after_crash(&self) -> bool {
        self.lock.after_crash
    }

    /// Whether nothing of what was before is to go on by itself.
    pub fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// Where the state is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn load(&self) -> Result<Found, StoreError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(error) => return Err(io_error(&self.path, error)),
        };
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text).map_err(|e| io_error(&self.path, e))?;
        let content = |problem: String| StoreError::Content { path: self.path.clone(), problem };
        let document: Document =
            serde_json::from_slice(&text).map_err(|error| content(error.to_string()))?;
        if document.version != VERSION {
            return Err(content(format!("version {}, not {VERSION}", document.version)));
        }
        if document.fingerprint != self.fingerprint {
            return Ok(Found::Other);
        }
        document.config.check().map_err(|error| content(error.to_string()))?;
        Ok(Found::State(document.config))
    }
}

/// Replaces the content of `path`: a new file beside it, synced, renamed over it, and the
/// directory synced, so that the rename is durable too.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = beside(path, ".new");
    // First, since what fails behind the rename comes too late.
    let directory = directory_of(path)?;
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    directory.sync_all()
}

fn directory_of(path: &Path) -> io::Result<File> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))
}

/// Takes the lock file at `path`, for as long as the result lives, and writes our process id there.
pub fn lock(path: &Path) -> Result<Lock, StoreError> {
    loop {
        let lock = lock_file(path)?;
        // The holder before us may have removed it after we opened it: then a third one could
        // lock another file of that name.
        if lock.file.metadata().map_err(|source| io_error(path, source))?.nlink() > 0 {
            return lock.claim(path);
        }
    }
}

/// A lock file that is locked, and what its last holder left in it.
struct Locked {
    file: File,
    process: String,
}

fn lock_file(path: &Path) -> Result<Locked, StoreError> {
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    let file = open.map_err(|source| io_error(path, source))?;
    let locked = file.try_lock();
    let mut process = String::new();
    let _ = (&file).take(20).read_to_string(&mut process);
    let process = process.trim();
    match locked {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let process = if process.is_empty() { "unknown" } else { process }.to_owned();
            return Err(StoreError::Taken { process });
        }
        Err(TryLockError::Error(source)) => return Err(io_error(path, source)),
    }
    Ok(Locked { file, process: process.to_owned() })
}

impl Locked {
    /// Writes our process id.
    fn claim(self, path: &Path) -> Result<Lock, StoreError> {
        let Locked { mut file, process } = self;
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(|source| io_error(path, source))?;
        Ok(Lock { _file: file, path: path.to_owned(), after_crash: !process.is_empty() })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

fn io_error(path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Namespace, Subsystem};

    fn config(volume: &str) -> Config {
        let nqn = "nqn.2026-11.com.example:a".to_owned();
        let mut subsystem = Subsystem { nqn, ..Subsystem::default() };
        subsystem.namespaces.push(Namespace::new(volume.to_owned()));
        Config { subsystems: vec![subsystem], ..Config::default() }
    }

    #[test]
    fn a_saved_state_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let (store, found) = Store::open(&path, "a".into()).unwrap();
        assert_eq!(found, Found::Nothing);
        store.save(&config("mem:1G")).unwrap();
        store.save(&config("mem:2G")).unwrap();
        drop(store);
        let (_store, found) = Store::open(&path, "a".into()).unwrap();
        assert_eq!(found, Found::State(config("mem:2G")));
    }

    #[test]
    fn an_edited_starting_point_wins_and_the_state_is_kept_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        Store::open(&path, "a".into()).unwrap().0.save(&config("mem:1G")).unwrap();
        let (store, found) = Store::open(&path, "b".into()).unwrap();
        assert_eq!(found, Found::Other);
        assert!(path.exists(), "nobody has said that it can be served");
        let aside = store.put_aside().unwrap();
        assert!(fs::read_to_string(aside).unwrap().contains("mem:1G"));
        assert!(!store.path().exists());
    }

    #[test]
    fn one_daemon_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let (store, _) = Store::open(&path, "a".into()).unwrap();
        let error = Store::open(&path, "a".into()).unwrap_err();
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(store);
        assert!(!beside(&path, ".lock").exists(), "left behind");
        assert!(!Store::open(&path, "a".into()).unwrap().0.is_after_crash());
        // What a killed process leaves behind.
        fs::write(beside(&path, ".lock"), "4711\n").unwrap();
        assert!(Store::open(&path, "a".into()).unwrap().0.is_after_crash());
    }

    #[test]
    fn an_interrupted_write_leaves_the_old_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        Store::open(&path, "a".into()).unwrap().0.save(&config("mem:1G")).unwrap();
        // What a kill in the middle of `write_all` leaves behind.
        fs::write(beside(&path, ".new"), b"{\"version\": 1, \"fing").unwrap();
        let (store, found) = Store::open(&path, "a".into()).unwrap();
        assert_eq!(found, Found::State(config("mem:1G")));
        store.save(&config("mem:3G")).unwrap();
        drop(store);
        let (_store, found) = Store::open(&path, "a".into()).unwrap();
        assert_eq!(found, Found::State(config("mem:3G")));
    }

    #[test]
    fn damage_is_an_error_and_not_an_empty_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        for damage in ["", "{}", "{\"version\":2,\"fingerprint\":\"a\",\"config\":{}}"] {
            fs::write(&path, damage).unwrap();
            let error = Store::open(&path, "a".into()).unwrap_err();
            assert!(matches!(error, StoreError::Content { .. }), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), damage);
        }
    }
}
