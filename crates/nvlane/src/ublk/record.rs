//! Which volume a device was made of, for `nvlane ublk list` and `recover`.

use crate::cli::{ProgramPlace, UblkServeArgs};
use crate::config::Cores;
use crate::origin::{files, pinned, settled};
use ::ublk::{self, Runs};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::{fs, io, process};
use volume::Uri;

/// Where devices are noted; gone when the machine restarts, as they are.
const DIRECTORY: &str = "/run/nvlane";

/// What is noted of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The volume's URI.
    pub volume: String,
    /// The same in the words in which it was asked for ([`words`]), while these mean that volume.
    #[serde(default)]
    pub asked: String,
    /// It was made with --read-only.
    pub read_only: bool,
    /// Where its program runs, if it is one.
    #[serde(default)]
    pub program: Option<String>,
    /// The process that serves it, which wrote this.
    #[serde(default)]
    pub server: u32,
    /// How it is to be served.
    #[serde(default)]
    pub wishes: Wishes,
}

/// How a device is to be served, as far as anybody has said so: whoever serves it next goes by that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wishes {
    /// Where a program runs.
    pub bpf: Option<ProgramPlace>,
    /// Where queues are served.
    pub cores: Option<Cores>,
    /// By how many threads each queue is served.
    pub threads: Option<u16>,
    /// Without ever sleeping.
    pub poll: bool,
    /// What is logged.
    pub log: Option<String>,
}

impl Wishes {
    /// Threads of each queue.
    pub fn threads(&self) -> u16 {
        self.threads.unwrap_or(1)
    }

    /// What is logged.
    pub fn log(&self) -> &str {
        self.log.as_deref().unwrap_or("info")
    }

    /// What is said now, and what was said before where nothing is.
    pub fn of(args: &UblkServeArgs, before: Wishes) -> Wishes {
        Wishes {
            bpf: args.bpf.or(before.bpf),
            cores: args.cores.clone().or(before.cores),
            threads: args.threads.or(before.threads),
            poll: args.poll || before.poll,
            log: args.log.clone().or(before.log),
        }
    }
}

/// What a volume is called in words that mean the same in every directory: in its canonical form.
pub fn words(volume: &str) -> String {
    settled(volume).unwrap_or_else(|_| volume.to_owned())
}

impl Record {
    /// Whether whoever names a volume so means this device's.
    pub fn is_of(&self, named: &str) -> bool {
        let named = words(named);
        // Earlier versions noted what was typed. What depends on a directory there is nobody's.
        let canonical =
            |text: &str| text.parse::<Uri>().map_or(text.to_owned(), |it| it.to_string());
        canonical(&self.volume) == named
            || canonical(&self.asked) == named && self.is_where_links_lead(&named)
    }

    /// Whether what these words name by now, by way of links too, is in the volume: a link may lead elsewhere than when
    /// the device was made.
    fn is_where_links_lead(&self, named: &str) -> bool {
        let own = files(&self.volume);
        files(&pinned(named)).iter().all(|file| own.contains(file) || !file.exists())
    }

    /// For programs: `kernel` or `user`, where its program runs if it is one, and why it is not the kernel if it is not.
    pub fn place(&self) -> (Option<&'static str>, Option<&str>) {
        match self.program.as_deref().and_then(ublk::place_and_reason) {
            Some((place, reason)) => (Some(place), reason),
            None => (None, None),
        }
    }

    /// What was noted of a device.
    pub fn read(id: u32) -> Option<Record> {
        serde_json::from_slice(&fs::read(path(id)).ok()?).ok()
    }

    /// Notes it, in one piece.
    pub fn write(&self, id: u32) -> io::Result<()> {
        fs::create_dir_all(DIRECTORY)?;
        // An earlier server's, which may have had our number.
        let _ = fs::remove_file(left(id));
        let (path, text) = (path(id), serde_json::to_vec(self)?);
        let new = path.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(new, path)
    }

    /// The same of a device that this process is about to serve, in these places.
    pub fn of_ours(&self, runs: &Runs) -> Record {
        let program = match runs {
            Runs::Nowhere => None,
            runs => Some(runs.to_string()),
        };
        Record { program, server: process::id(), ..self.clone() }
    }

    /// Notes a new device, whose number may have been another one's. It needs that if it is to outlive its server;
    /// otherwise nothing is noted of it where that is impossible, and in any case nothing of the other one.
    ///
    /// # Errors
    /// [`ublk::Error::Unnoted`].
    pub fn write_new(&self, id: u32, is_needed: bool) -> Result<(), ublk::Error> {
        let _ = fs::remove_file(begun(id));
        let Err(source) = self.write(id) else { return Ok(()) };
        if is_needed {
            return Err(ublk::Error::Unnoted { id, source });
        }
        match fs::remove_file(path(id)) {
            Err(stale) if stale.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("what is noted of /dev/ublkb{id} is an earlier one's: {stale}");
            }
            // As always for users who are not root.
            _ if source.kind() == io::ErrorKind::PermissionDenied => {
                tracing::debug!("what /dev/ublkb{id} is served from is not noted: {source}");
            }
            _ => tracing::warn!("what /dev/ublkb{id} is served from is not noted: {source}"),
        }
        Ok(())
    }

    /// Notes a device that is taken over, of which `found` was noted when its volume was looked at.
    ///
    /// # Errors
    /// Another server has had it since then, or [`ublk::Error::Unnoted`].
    pub fn write_next(&self, id: u32, found: Option<&Record>) -> Result<(), ublk::Error> {
        let unreadable = fs::read(path(id)).err().filter(|it| it.kind() != io::ErrorKind::NotFound);
        if let Some(source) = unreadable {
            return Err(ublk::Error::Unnoted { id, source });
        }
        if Record::read(id).as_ref() != found {
            let why = "has had another server, or another program, in the meantime: try again";
            return Err(ublk::Error::NotRecoverable { id, why });
        }
        self.write(id).map_err(|source| ublk::Error::Unnoted { id, source })
    }

    /// Forgets what is noted of a device that this process serves, unless somebody else has: then the number may be
    /// another device's by now.
    pub fn remove_own(id: u32) {
        if Record::read(id).is_some_and(|record| record.server == process::id()) {
            Record::remove(id);
        }
    }

    /// Forgets it, what its server has logged, and what its programs have kept for the next one.
    pub fn remove(id: u32) {
        if let Err(error) = ublk_bpf::kept::forget(id) {
            tracing::debug!("maps of /dev/ublkb{id} are left: {error}");
        }
        let _ = fs::remove_file(path(id));
        let _ = fs::remove_file(begun(id));
        let _ = fs::remove_file(left(id));
        let _ = fs::remove_file(log_of(id.into()));
    }
}

/// What is noted of a device that this process serves, for as long as it does: whoever changes the volume and whoever ends
/// the server may be at it at once.
#[derive(Debug)]
pub struct Notes {
    id: u32,
    /// What was to be noted first, and whether it was.
    record: Record,
    was_noted: bool,
    is_over: Mutex<bool>,
}

impl Notes {
    /// Of device `id`, of which that is noted.
    pub fn new(id: u32, record: &Record) -> Notes {
        let was_noted = Record::read(id).is_some();
        Notes { id, record: record.clone(), was_noted, is_over: Mutex::new(false) }
    }

    /// Notes the device as it is now: what was changed before included.
    ///
    /// # Errors
    /// It is not this process's any more, or cannot be noted.
    pub fn change(&self, change: impl FnOnce(Record) -> Record) -> io::Result<()> {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = match Record::read(self.id) {
            // Nothing could be noted then.
            None if !self.was_noted => Some(self.record.clone()),
            None => match fs::read(path(self.id)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => None,
            },
            // Whoever deletes the device has removed it, or it is another server's.
            noted => noted.filter(|noted| noted.server == process::id()),
        };
        match noted {
            Some(noted) if !*is_over => change(noted).write(self.id),
            _ => Err(io::Error::other("this server has given the device up")),
        }
    }

    /// Forgets it, as [`Record::remove_own`] does, for good.
    pub fn forget(&self) {
        let mut is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        *is_over = true;
        Record::remove_own(self.id);
    }
}

/// Notes that a successor begins to take over a device, or that it is past where the next one would be one too many: for
/// drivers that do not survive that one. Of several at once, one begins.
///
/// # Errors
/// Another one has begun and failed, or is just there; or [`ublk::Error::Unnoted`].
pub fn begins(id: u32, does: bool) -> Result<(), ublk::Error> {
    let noted = match does {
        true => {
            fs::create_dir_all(DIRECTORY).and_then(|()| fs::File::create_new(begun(id)).map(drop))
        }
        false => fs::remove_file(begun(id)),
    };
    noted.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => {
            let why = "was to be taken over by a server that failed before it served, and this kernel (older than \
                6.16) may not survive another attempt: `nvlane ublk del` clears it away";
            ublk::Error::NotRecoverable { id, why }
        }
        _ => ublk::Error::Unnoted { id, source },
    })
}

/// Notes that this process has given a device up and nothing of it is under way: its successor need not wait as it does
/// after a crash. Where this cannot be noted it waits.
pub fn leaves(id: u32) {
    if let Err(error) = fs::write(left(id), process::id().to_string()) {
        tracing::debug!("that /dev/ublkb{id} was given up in order is not noted: {error}");
    }
}

/// Whether `server`, which is gone, has noted that of a device.
pub fn has_left(id: u32, server: i32) -> bool {
    fs::read_to_string(left(id)).is_ok_and(|noted| noted == server.to_string())
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

fn begun(id: u32) -> PathBuf {
    PathBuf::from(DIRECTORY).join(format!("ublk-{id}.begun"))
}

fn left(id: u32) -> PathBuf {
    PathBuf::from(DIRECTORY).join(format!("ublk-{id}.left"))
}

fn path(id: u32) -> PathBuf {
    PathBuf::from(DIRECTORY).join(format!("ublk-{id}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: UblkServeArgs,
    }

    fn wishes(line: &[&str], before: Wishes) -> Wishes {
        let line = ["ublk"].iter().chain(line);
        Wishes::of(&Line::parse_from(line).serve, before)
    }

    #[test]
    fn a_link_that_leads_elsewhere_by_now_is_another_volume() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        let path = |name: &str| top.join(name);
        for name in ["a", "b"] {
            fs::write(path(name), "").unwrap();
        }
        let lead = |to: &str| {
            let _ = fs::remove_file(path("link"));
            std::os::unix::fs::symlink(to, path("link")).unwrap();
        };
        lead("a");
        let link = path("link").display().to_string();
        let record = Record {
            volume: pinned(&link),
            asked: words(&link),
            read_only: false,
            program: None,
            server: 0,
            wishes: Wishes::default(),
        };
        assert!(record.is_of(&link));
        lead("b");
        assert!(!record.is_of(&link), "it would be a's data");
        lead("a");
        assert!(record.is_of(&format!("file:{link}")));
        fs::remove_file(path("link")).unwrap();
        fs::write(path("link"), "").unwrap();
        assert!(!record.is_of(&link), "a file of its own now");
    }

    #[test]
    fn what_was_said_once_counts_until_something_else_is_said() {
        let first = [
            &["--bpf", "user", "--cores", "0,2-3", "--threads", "2", "--poll"][..],
            &["--log", "ublk=debug,warn"],
        ];
        let first = wishes(&first.concat(), Wishes::default());
        assert_eq!((first.threads(), first.log()), (2, "ublk=debug,warn"));
        let record = Record {
            volume: "mem:1M".into(),
            asked: "mem:1M".into(),
            read_only: false,
            program: None,
            server: 0,
            wishes: first.clone(),
        };
        let noted: Record = serde_json::from_slice(&serde_json::to_vec(&record).unwrap()).unwrap();
        assert_eq!(noted, record);
        assert_eq!(wishes(&[], noted.wishes.clone()), first);
        let next = wishes(&["--bpf", "auto", "--cores", "2", "--log", "info"], noted.wishes);
        assert_eq!(next.bpf, Some(ProgramPlace::Auto));
        assert_eq!(next.cores, Some("2".parse().unwrap()));
        assert_eq!(next.log(), "info");
        assert!(next.poll, "nobody can take it back");
    }

    #[test]
    fn what_was_forgotten_is_not_noted_again() {
        let record = Record {
            volume: "mem:1M".into(),
            asked: "mem:1M".into(),
            read_only: false,
            program: None,
            server: process::id(),
            wishes: Wishes::default(),
        };
        // No device has that number.
        let notes = Notes::new(u32::MAX, &record);
        notes.forget();
        let refused = notes.change(|record| record).unwrap_err();
        assert_eq!(refused.to_string(), "this server has given the device up");
        // Somebody has removed it.
        let removed = Notes { was_noted: true, ..Notes::new(u32::MAX, &record) };
        assert!(removed.change(|record| record).is_err());
        assert_eq!(Record::read(u32::MAX), None);
    }

    #[test]
    fn a_record_of_before_there_were_wishes_has_none() {
        let text = r#"{"volume":"mem:1M","read_only":true}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!(record.wishes, Wishes::default());
        assert_eq!(record.wishes.log(), "info");
    }
}
