//! The state file: what run-time changes have made of a configuration, written atomically.
//!
//! A state continues one starting point, a configuration file or a command line; its fingerprints
//! are kept in it. When what the starting point says is edited, it wins, and the state is put aside once it can be
//! served.
//!
//! ```text
//!   nvlane.toml.state.json          the state
//!                         .old      the one that was put aside last; .old.2 and .old.3 before it
//!                         .bak      the state as another version of this program left it
//!                         .lock     held by who serves it; .new: being written
//! ```

use super::identity::Machine;
use super::renamed;
use super::{Config, difference};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Version of the state file's layout.
const VERSION: u32 = 1;
/// Largest state file that is read.
const BYTES_MAX: u64 = 64 << 20;
/// States that were put aside and are kept.
const ASIDE_MAX: u32 = 3;
/// The version of this program.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// Where one daemon keeps its state. Only one process has it open.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    start: Start,
    lock: Lock,
    is_fresh: bool,
    /// What was served before the first change, as far as it is known: of a file only.
    base: Option<Config>,
    found: Kept,
}

/// What a state continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Fingerprint of its text. Older versions of this program know no other.
    pub text: String,
    /// Fingerprint of what it says; none of a command line, whose state has a name of its own.
    pub meaning: Option<String>,
}

/// How the state was found that is continued, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// None is.
    Nothing,
    /// By this version, for what is started from.
    Current,
    /// By this version, for a text that says the same.
    Renamed,
    /// By another version.
    Foreign,
    /// It is there, and not continued.
    Other,
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
    /// A state that this starting point does not continue: it stays where it is until [`Store::put_aside`], which is for
    /// when this one is served.
    Other(Option<Box<Left>>),
}

/// A state that is not continued.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    base: Option<Config>,
    config: Config,
}

/// What a restart makes of a state, without having it.
#[derive(Debug, PartialEq, Eq)]
pub enum Outlook {
    /// There is none.
    Nothing,
    /// It is continued, with these changes, if they are known.
    Continued(Option<Vec<String>>),
    /// It is put aside.
    Discarded(Left),
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    meaning: Option<String>,
    /// The version of the program that wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<Config>,
    config: Config,
}

impl Document {
    fn read(path: &Path) -> Result<Option<Document>, StoreError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(path, error)),
        };
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text).map_err(|e| io_error(path, e))?;
        let content = |problem: String| StoreError::Content { path: path.to_owned(), problem };
        let document: Document =
            serde_json::from_slice(&text).map_err(|error| content(error.to_string()))?;
        if document.version != VERSION {
            return Err(content(format!("version {}, not {VERSION}", document.version)));
        }
        Ok(Some(document))
    }

    /// A text that is the same says the same, whatever a newer version takes it for.
    fn continues(&self, start: &Start) -> bool {
        self.fingerprint == start.text || (self.meaning.is_some() && self.meaning == start.meaning)
    }
}

impl Left {
    /// What was changed, one line each. Where that is not known, what the state has otherwise than `now`.
    pub fn changes(&self, now: &Config) -> Vec<String> {
        difference::changes(self.base.as_ref().unwrap_or(now), &self.config)
    }

    /// Which namespaces hosts find under other names once `now` is served instead, one line each.
    pub fn renamed(&self, now: &Config, machine: Option<Machine>) -> Vec<String> {
        renamed::renamed(&self.config, now, machine)
    }

    /// Why `now` is not to be served: who has to prove who it is is not let in without because a file was edited for
    /// something else.
    pub fn lost_keys(&self, now: &Config) -> Option<String> {
        let hosts = self.unproven(now);
        (!hosts.is_empty()).then(|| {
            format!(
                "the configuration file was edited, and does not have what `nvlane ctl` said of the keys of {}: without, they would be let in \
                 unproven; add [[subsystems.authentication]] for them, or start once with --fresh to drop it",
                hosts.join(", ")
            )
        })
    }

    /// Hosts that had to prove who they are only because that was said later, and that `now` lets in without.
    fn unproven(&self, now: &Config) -> Vec<String> {
        let base = self.base.as_ref();
        let said_at_first = |nqn: &str, host: &str| {
            base.and_then(|base| base.subsystem(nqn)).is_some_and(|it| it.has_key(host))
        };
        let mut hosts = Vec::new();
        for subsystem in &self.config.subsystems {
            let Some(now) = now.subsystem(&subsystem.nqn) else { continue };
            let known = subsystem.authentication.iter().map(|one| &one.host);
            let lost = known.filter(|host| {
                !said_at_first(&subsystem.nqn, host) && !now.has_key(host) && now.lets_in(host)
            });
            hosts.extend(lost.cloned());
        }
        hosts
    }
}

/// What a start from there would make of the state at `path`, which may be in use.
pub fn outlook(path: &Path, start: &Start) -> Result<Outlook, StoreError> {
    let Some(document) = Document::read(path)? else { return Ok(Outlook::Nothing) };
    if document.continues(start) {
        let changes = |base| difference::changes(base, &document.config);
        return Ok(Outlook::Continued(document.base.as_ref().map(changes)));
    }
    Ok(Outlook::Discarded(Left { base: document.base, config: document.config }))
}

/// A short name for a starting point: equal texts give equal names.
pub fn fingerprint(text: &str) -> String {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes()).simple().to_string()
}

impl Store {
    /// Opens the state at `path` for a starting point.
    pub fn open(path: &Path, start: Start) -> Result<(Store, Found), StoreError> {
        let mut store = Store::locked(path, start)?;
        let found = store.load()?;
        Ok((store, found))
    }

    /// The same for a starting point that begins anew: whatever is there, it does not continue that.
    pub fn open_fresh(path: &Path, start: Start) -> Result<(Store, Found), StoreError> {
        let store = Store::locked(path, start)?;
        let (found, told) = match fs::symlink_metadata(path) {
            Ok(_) => (Kept::Other, Found::Other(None)),
            Err(_) => (Kept::Nothing, Found::Nothing),
        };
        Ok((Store { is_fresh: true, found, ..store }, told))
    }

    fn locked(path: &Path, start: Start) -> Result<Store, StoreError> {
        let lock = lock(&beside(path, ".lock"))?;
        let (path, found) = (path.to_owned(), Kept::Nothing);
        Ok(Store { path, start, lock, is_fresh: false, base: None, found })
    }

    /// Where a state goes that is put aside.
    pub fn aside(&self) -> PathBuf {
        self.aside_of(1)
    }

    fn aside_of(&self, number: u32) -> PathBuf {
        match number {
            1 => beside(&self.path, ".old"),
            _ => beside(&self.path, &format!(".old.{number}")),
        }
    }

    /// Moves away a state that is not continued, if there is one.
    pub fn put_aside(&mut self) -> Result<(), StoreError> {
        if self.found == Kept::Other {
            self.move_aside()?;
            self.found = Kept::Nothing;
        }
        Ok(())
    }

    fn move_aside(&self) -> Result<(), StoreError> {
        let done = directory_of(&self.path).and_then(|directory| {
            for number in (1..ASIDE_MAX).rev() {
                match fs::rename(self.aside_of(number), self.aside_of(number + 1)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            fs::rename(&self.path, self.aside())?;
            directory.sync_all()
        });
        done.map_err(|error| io_error(&self.path, error))
    }

    /// `config` is served now: what changes will be changes of, if no state is continued; of one that is continued,
    /// what it is kept by is brought up to date.
    pub fn begin(&mut self, config: &Config) -> Result<(), StoreError> {
        match self.found {
            Kept::Nothing if self.start.meaning.is_some() => self.base = Some(config.clone()),
            Kept::Nothing | Kept::Current | Kept::Other => {}
            Kept::Renamed => self.save(config)?,
            Kept::Foreign => {
                let kept = fs::read(&self.path)
                    .and_then(|text| write_atomically(&beside(&self.path, ".bak"), &text));
                kept.map_err(|source| io_error(&self.path, source))?;
                self.save(config)?;
            }
        }
        Ok(())
    }

    /// Replaces the state, durably: after a crash at any point there is the old or the new one.
    pub fn save(&self, config: &Config) -> Result<(), StoreError> {
        let document = Document {
            version: VERSION,
            fingerprint: self.start.text.clone(),
            meaning: self.start.meaning.clone(),
            program: Some(PROGRAM.to_owned()),
            base: self.base.clone(),
            config: config.clone(),
        };
        let text = |document: &Document| {
            serde_json::to_vec_pretty(document).expect("a configuration is plain data")
        };
        let mut text = match text(&document) {
            // It is to be read again.
            long if long.len() as u64 >= BYTES_MAX => text(&Document { base: None, ..document }),
            text => text,
        };
        text.push(b'\n');
        if text.len() as u64 > BYTES_MAX {
            let what = format!("it would be longer than {BYTES_MAX} bytes, and could not be read");
            return Err(io_error(&self.path, io::Error::new(io::ErrorKind::FileTooLarge, what)));
        }
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

    fn load(&mut self) -> Result<Found, StoreError> {
        let Some(document) = Document::read(&self.path)? else { return Ok(Found::Nothing) };
        if !document.continues(&self.start) {
            self.found = Kept::Other;
            let left = Left { base: document.base, config: document.config };
            return Ok(Found::Other(Some(Box::new(left))));
        }
        document.config.check().map_err(|error| StoreError::Content {
            path: self.path.clone(),
            problem: error.to_string(),
        })?;
        let is_same =
            document.fingerprint == self.start.text && document.meaning == self.start.meaning;
        self.found = match document.program.as_deref() {
            Some(PROGRAM) if is_same => Kept::Current,
            Some(PROGRAM) => Kept::Renamed,
            _ => Kept::Foreign,
        };
        self.base = document.base;
        Ok(Found::State(document.config))
    }
}

/// Replaces the content of `path`: a new file beside it, synced, renamed over it, and the
/// directory synced, so that the rename is durable too.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = beside(path, ".new");
    // First, since what fails behind the rename comes too late.
    let directory = directory_of(path)?;
    // What an interrupted write has left; and whoever may write to that directory does not choose what we write to.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    // Whatever the umask says.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    directory.sync_all()
}

/// Writes where a user has said: replaces a file as a whole, by one of that mode; into anything else that is there (a device, a
/// pipe, a link) it is written.
pub fn write_output(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => return fs::write(path, bytes),
        _ => {}
    }
    let directory = directory_of(path)?;
    let beside = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    // Somebody else may write it at the same time.
    let mut new = tempfile::Builder::new()
        .prefix(".nvlane-")
        .suffix(".new")
        .tempfile_in(beside.unwrap_or(Path::new(".")))?;
    // Whatever the umask says.
    new.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    new.write_all(bytes)?;
    new.as_file().sync_all()?;
    new.persist(path).map_err(|error| error.error)?;
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
        // Where others may put files, a link would have us write over what it leads to.
        .custom_flags(libc::O_NOFOLLOW)
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

    #[test]
    fn a_lock_is_written_over_nothing_that_a_link_leads_to() {
        let directory = tempfile::tempdir().unwrap();
        let (other, path) = (directory.path().join("other"), directory.path().join("a.lock"));
        std::fs::write(&other, "somebody's").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(lock(&path).is_err());
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "somebody's");
    }

    fn config(volume: &str) -> Config {
        let nqn = "nqn.2026-11.com.example:a".to_owned();
        let mut subsystem = Subsystem { nqn, ..Subsystem::default() };
        subsystem.namespaces.push(Namespace::new(volume.to_owned()));
        Config { subsystems: vec![subsystem], ..Config::default() }
    }

    fn start(text: &str) -> Start {
        Start { text: text.into(), meaning: None }
    }

    /// The start from a file.
    fn file(text: &str, meaning: &str) -> Start {
        Start { text: text.into(), meaning: Some(meaning.into()) }
    }

    #[test]
    fn a_saved_state_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let (store, found) = Store::open(&path, start("a")).unwrap();
        assert_eq!(found, Found::Nothing);
        store.save(&config("mem:1G")).unwrap();
        store.save(&config("mem:2G")).unwrap();
        drop(store);
        let (_store, found) = Store::open(&path, start("a")).unwrap();
        assert_eq!(found, Found::State(config("mem:2G")));
    }

    #[test]
    fn an_edited_starting_point_wins_and_the_state_is_kept_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        Store::open(&path, start("a")).unwrap().0.save(&config("mem:1G")).unwrap();
        let (mut store, found) = Store::open(&path, start("b")).unwrap();
        assert!(matches!(found, Found::Other(Some(_))), "{found:?}");
        assert!(path.exists(), "nobody has said that it can be served");
        store.put_aside().unwrap();
        assert!(fs::read_to_string(store.aside()).unwrap().contains("mem:1G"));
        assert!(!store.path().exists());
        // What is served now is its own.
        store.save(&config("mem:2G")).unwrap();
        store.put_aside().unwrap();
        assert!(store.path().exists());
    }

    #[test]
    fn one_daemon_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let (store, _) = Store::open(&path, start("a")).unwrap();
        let error = Store::open(&path, start("a")).unwrap_err();
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(store);
        assert!(!beside(&path, ".lock").exists(), "left behind");
        assert!(!Store::open(&path, start("a")).unwrap().0.is_after_crash());
        // What a killed process leaves behind.
        fs::write(beside(&path, ".lock"), "4711\n").unwrap();
        assert!(Store::open(&path, start("a")).unwrap().0.is_after_crash());
    }

    #[test]
    fn an_interrupted_write_leaves_the_old_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        Store::open(&path, start("a")).unwrap().0.save(&config("mem:1G")).unwrap();
        // What a kill in the middle of `write_all` leaves behind.
        fs::write(beside(&path, ".new"), b"{\"version\": 1, \"fing").unwrap();
        let (store, found) = Store::open(&path, start("a")).unwrap();
        assert_eq!(found, Found::State(config("mem:1G")));
        store.save(&config("mem:3G")).unwrap();
        drop(store);
        let (_store, found) = Store::open(&path, start("a")).unwrap();
        assert_eq!(found, Found::State(config("mem:3G")));
    }

    #[test]
    fn output_goes_through_links_and_takes_the_place_of_files() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| directory.path().join(name));
        fs::write(&file, "before, and longer").unwrap();
        let inode = || fs::metadata(&file).unwrap().ino();
        let before = inode();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_output(&link, b"by the link", 0o644).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!((fs::read(&file).unwrap(), inode()), (b"by the link".to_vec(), before));
        write_output(&file, b"itself", 0o644).unwrap();
        assert_eq!(fs::read(&link).unwrap(), b"itself");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o644);
        assert!(inode() != before && fs::read_dir(directory.path()).unwrap().count() == 2);
    }

    #[test]
    fn a_state_that_could_not_be_read_again_is_not_saved() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let (store, _) = Store::open(&path, start("a")).unwrap();
        store.save(&config("mem:1G")).unwrap();
        let said = store.save(&config(&"x".repeat(BYTES_MAX as usize))).unwrap_err().to_string();
        assert!(said.contains("longer than"), "{said}");
        drop(store);
        let (_store, found) = Store::open(&path, start("a")).unwrap();
        assert_eq!(found, Found::State(config("mem:1G")));
    }

    #[test]
    fn damage_is_an_error_and_not_an_empty_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        for damage in ["", "{}", "{\"version\":2,\"fingerprint\":\"a\",\"config\":{}}"] {
            fs::write(&path, damage).unwrap();
            let error = Store::open(&path, start("a")).unwrap_err();
            assert!(matches!(error, StoreError::Content { .. }), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), damage);
        }
    }

    #[test]
    fn a_text_that_says_the_same_continues_the_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let (mut store, _) = Store::open(&path, file("a", "x")).unwrap();
        store.begin(&config("mem:1G")).unwrap();
        assert!(!path.exists(), "nothing was changed");
        store.save(&config("mem:2G")).unwrap();
        drop(store);
        let (mut store, found) = Store::open(&path, file("b", "x")).unwrap();
        assert_eq!(found, Found::State(config("mem:2G")));
        store.begin(&config("mem:2G")).unwrap();
        drop(store);
        // It goes by the new text from then on, as a version that knows no meaning would.
        let (_, found) = Store::open(&path, file("b", "y")).unwrap();
        assert_eq!(found, Found::State(config("mem:2G")));
        let (_, found) = Store::open(&path, file("a", "y")).unwrap();
        let Found::Other(Some(left)) = found else { panic!("{found:?}") };
        assert_eq!(left.base, Some(config("mem:1G")));
        assert!(!beside(&path, ".bak").exists());
    }

    /// As it was written before there was more than that in it.
    #[test]
    fn a_state_of_before_is_continued_and_kept_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let config = config("mem:1G");
        let old = serde_json::json!({"version": 1, "fingerprint": "a", "config": config});
        fs::write(&path, old.to_string()).unwrap();
        assert_eq!(outlook(&path, &file("a", "x")).unwrap(), Outlook::Continued(None));
        let (mut store, found) = Store::open(&path, file("a", "x")).unwrap();
        assert_eq!(found, Found::State(config.clone()));
        store.begin(&config).unwrap();
        drop(store);
        assert_eq!(fs::read_to_string(beside(&path, ".bak")).unwrap(), old.to_string());
        let (_, found) = Store::open(&path, file("b", "x")).unwrap();
        assert_eq!(found, Found::State(config));
    }

    #[test]
    fn so_many_are_kept_that_were_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let (store, _) = Store::open(&path, start("a")).unwrap();
        for size in 1..=5 {
            store.save(&config(&format!("mem:{size}G"))).unwrap();
            store.move_aside().unwrap();
        }
        for (suffix, volume) in [(".old", "mem:5G"), (".old.2", "mem:4G"), (".old.3", "mem:3G")] {
            let text = fs::read_to_string(beside(&path, suffix)).unwrap();
            assert!(text.contains(volume), "{suffix}: {text}");
        }
        assert!(!beside(&path, ".old.4").exists());
    }
}
