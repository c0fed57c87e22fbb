//! A job on disk: what is to be copied, and how far that is durable.
//!
//! A file per job beside the state file, replaced as that is: a new file, synced, renamed, the directory
//! synced. So after a crash there is the record of a moment at which everything before `durable` was flushed.

use super::identity::{Identity, RESTARTED, untold as untold_of};
use crate::config::store::write_atomically;
use crate::control::method::JobState;
use crate::copy::shared::Counts;
use crate::copy::spec::Spec;
use crate::when;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Version of a record's layout.
const VERSION: u32 = 1;
/// Largest record that is written and read.
const BYTES_MAX: u64 = 4 << 20;
/// By how much a record may become longer: numbers, and why it failed.
const ROOM_BYTES: u64 = 64 << 10;
/// How a record's name ends.
const SUFFIX: &str = ".json";

/// What is known of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    version: u32,
    /// Its number.
    pub id: u64,
    /// What has become of it.
    pub state: JobState,
    /// Why it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// URIs of the disks for which it has failed, since nobody can tell them from others: its error names them, and who has it
    /// go on says that they are the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untold: Vec<String>,
    /// What is to be copied.
    pub spec: Spec,
    /// Its volumes when it began, sources first.
    pub volumes: Vec<Identity>,
    /// Everything before is copied and flushed.
    pub durable: u64,
    /// What was counted until then.
    pub counts: Counts,
    /// Of everything, where both sides were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<u64>,
    /// When it was added, begun or resumed last, and has ended: seconds since 1970. Earlier versions have not noted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
}

impl Record {
    /// A job that begins.
    pub fn new(id: u64, spec: Spec, volumes: Vec<Identity>) -> Record {
        Record {
            version: VERSION,
            id,
            state: JobState::Running,
            error: None,
            untold: Vec::new(),
            spec,
            volumes,
            durable: 0,
            counts: Counts::default(),
            checksum: None,
            created: Some(when::now()),
            started: Some(when::now()),
            ended: None,
        }
    }

    /// It has come to another state.
    pub fn set_state(&mut self, state: JobState, error: Option<String>) {
        (self.state, self.error) = (state, error);
        match state {
            JobState::Running => (self.started, self.ended) = (Some(when::now()), None),
            JobState::Done | JobState::Failed | JobState::Cancelled => {
                self.ended = Some(when::now());
            }
            JobState::Pausing | JobState::Paused | JobState::Cancelling => self.ended = None,
        }
    }

    /// What it had copied is `lost`, and it does not go on. What it had failed of before is told as well.
    pub fn lose(&mut self, lost: String) {
        let (before, ended) = (self.error.take(), self.ended);
        let error = match before.filter(|_| self.state == JobState::Failed) {
            Some(error) => format!("{lost}; before that it had failed: {error}"),
            None => lost,
        };
        self.set_state(JobState::Cancelled, Some(error));
        self.ended = ended.or(self.ended);
    }

    /// Whether the volumes, which are open now, are those it began with. Otherwise why not, and the URIs of those of which
    /// nobody can tell, if nothing else is wrong.
    pub fn check_volumes(&self, now: &[Identity]) -> Result<(), (String, Vec<String>)> {
        let both = || self.volumes.iter().zip(now);
        let told = both().try_for_each(|(then, now)| then.check_told(now));
        told.map_err(|problem| (problem, Vec::new()))?;
        let untold = both().filter(|(then, now)| then.is_untold(now));
        let mut uris: Vec<&str> = untold.map(|(then, _)| then.uri.as_str()).collect();
        uris.dedup();
        match uris[..] {
            [] => Ok(()),
            _ => Err((untold_of(&uris), uris.iter().map(ToString::to_string).collect())),
        }
    }

    /// Somebody has it go on who knows why it failed, and so for which disks.
    pub fn vouch(&mut self) {
        let named = std::mem::take(&mut self.untold);
        // Earlier versions, which noted no times either, have the words only.
        let words = self.error.as_deref().filter(|error| error.contains(RESTARTED));
        let words = words.filter(|_| self.created.is_none());
        let is_named = |uri: &String| {
            named.contains(uri) || words.is_some_and(|words| words.contains(uri.as_str()))
        };
        let volumes = self.volumes.iter_mut().filter(|volume| is_named(&volume.uri));
        volumes.for_each(Identity::vouch);
    }

    /// The volume that was memory of a daemon that has ended, if there is one.
    pub fn forgotten(&self) -> Option<&str> {
        let forgotten = self.volumes.iter().find(|volume| volume.has_memory());
        forgotten.map(|volume| volume.uri.as_str())
    }

    /// Bytes of the copy: lengths are noted when it begins.
    pub fn total(&self) -> u64 {
        let lengths = self.spec.sources.iter().map(|part| part.length.unwrap_or(0));
        lengths.fold(0, u64::saturating_add)
    }

    /// Whether there is nothing left to do.
    pub fn is_over(&self) -> bool {
        matches!(self.state, JobState::Done | JobState::Cancelled)
    }
}

/// The directory of records. It is made when there is something to keep.
#[derive(Clone, Debug)]
pub struct Records {
    directory: PathBuf,
}

impl Records {
    /// Those beside the state file at `state`.
    pub fn beside(state: &Path) -> Records {
        let mut directory = state.as_os_str().to_owned();
        directory.push(".jobs");
        Records { directory: directory.into() }
    }

    /// Writes one, durably.
    pub fn save(&self, record: &Record) -> io::Result<()> {
        if !self.directory.exists() {
            fs::create_dir_all(&self.directory)?;
            if let Some(parent) = self.directory.parent().filter(|it| !it.as_os_str().is_empty()) {
                fs::File::open(parent)?.sync_all()?;
            }
        }
        let mut text = serde_json::to_vec_pretty(record).expect("a record is plain data");
        text.push(b'\n');
        let path = self.path(record.id);
        // One that could not be read again, now or when it knows more.
        let most = if path.exists() { BYTES_MAX } else { BYTES_MAX - ROOM_BYTES };
        if text.len() as u64 > most {
            let what = format!("a record of {} bytes is more than {most}", text.len());
            return Err(io::Error::new(ErrorKind::FileTooLarge, what));
        }
        write_atomically(&path, &text)
    }

    /// Forgets some, durably. Gives how many of them, the first ones, are gone, and why the next one is not.
    pub fn remove(&self, ids: &[u64]) -> (usize, io::Result<()>) {
        let removed = |id: &u64| match fs::remove_file(self.path(*id)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let failure = ids.iter().enumerate().find_map(|(at, id)| Some((at, removed(id).err()?)));
        let (gone, outcome) = match failure {
            Some((at, error)) => (at, Err(error)),
            None => (ids.len(), Ok(())),
        };
        let synced = match fs::File::open(&self.directory) {
            Ok(directory) if gone > 0 => directory.sync_all(),
            // Without a directory there were none.
            _ => Ok(()),
        };
        (gone, outcome.and(synced))
    }

    /// All of them, and what could not be read: path and why.
    pub fn load(&self) -> (Vec<Record>, Vec<(PathBuf, String)>) {
        let (mut records, mut damaged) = (Vec::new(), Vec::new());
        let Ok(entries) = fs::read_dir(&self.directory) else { return (records, damaged) };
        for entry in entries.flatten() {
            let path = entry.path();
            // What a crash left half written ends otherwise.
            if !path.to_string_lossy().ends_with(SUFFIX) {
                continue;
            }
            match read(&path) {
                Ok(record) if self.path(record.id) == path => records.push(record),
                Ok(record) => damaged.push((path, format!("it says that it is job {}", record.id))),
                Err(problem) => damaged.push((path, problem)),
            }
        }
        records.sort_by_key(|record| record.id);
        (records, damaged)
    }

    /// A number that no record has, readable or not.
    pub fn free_id(&self) -> u64 {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let number = |name: String| name.split('.').next().and_then(|id| id.parse::<u64>().ok());
        let used = entries.filter_map(|entry| number(entry.file_name().to_string_lossy().into()));
        used.max().map_or(1, |id| id.saturating_add(1))
    }

    fn path(&self, id: u64) -> PathBuf {
        self.directory.join(format!("{id}{SUFFIX}"))
    }
}

fn read(path: &Path) -> Result<Record, String> {
    let mut text = Vec::new();
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(BYTES_MAX).read_to_end(&mut text).map_err(|error| error.to_string())?;
    let record: Record = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if record.version != VERSION {
        return Err(format!("version {}, not {VERSION}", record.version));
    }
    record.spec.check()?;
    let (known, named) =
        (record.volumes.len(), record.spec.sources.len() + record.spec.targets.len());
    if known != named {
        return Err(format!("it knows {known} volumes, and copies between {named}"));
    }
    let has_lengths = record.spec.sources.iter().all(|part| part.length.is_some());
    if has_lengths && record.durable > record.total() {
        let (durable, total) = (record.durable, record.total());
        return Err(format!("{durable} bytes of {total} are durable, it says"));
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::spec::Options;

    fn spec() -> Spec {
        let part = |text: &str| text.parse().unwrap();
        Spec {
            sources: vec![part("mem:1M@4K+8K")],
            targets: vec![part("b.img")],
            options: Options::default(),
        }
    }

    fn uris() -> Vec<Identity> {
        let open = |uri| volume::open(uri, &volume::OpenOptions::default()).unwrap();
        ["mem:1M", "null:1M"].map(|uri| Identity::of(&*open(uri))).to_vec()
    }

    #[test]
    fn other_volumes_and_forgotten_ones_are_noticed() {
        let mut record = Record::new(1, spec(), uris());
        assert_eq!(record.forgotten(), Some("mem:1M?bs=512"));
        let mut now = uris();
        assert_eq!(record.check_volumes(&now), Ok(()));
        now.swap(0, 1);
        assert!(record.check_volumes(&now).unwrap_err().0.contains("null:1M"));
        record.volumes.remove(0);
        assert_eq!(record.forgotten(), None);
    }

    /// A disk that tells nothing of itself, before the machine was started again.
    fn untold(uri: &str) -> Identity {
        let mut text = serde_json::to_value(&uris()[1]).unwrap();
        (text["boot"], text["uri"]) = ("an earlier one".into(), uri.into());
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn who_has_it_go_on_vouches_for_what_nobody_could_tell() {
        let disks = || ["/dev/x", "/dev/y", "/dev/z"].map(untold).to_vec();
        let mut now = disks();
        // The last one does tell.
        let told = now.pop().unwrap();
        now.iter_mut().for_each(Identity::vouch);
        now.push(told);
        let mut record = Record::new(1, spec(), disks());
        let (said, named) = record.check_volumes(&now).unwrap_err();
        assert!(said.contains("/dev/x and /dev/y tell nothing of themselves"), "{said}");
        assert_eq!(named, ["/dev/x", "/dev/y"]);
        let (_, none) = record.check_volumes(&uris()).unwrap_err();
        assert!(none.is_empty(), "another volume");
        // It had failed for something else; or has the words, but is of this version.
        for error in ["no space", &said] {
            record.error = Some(error.into());
            record.vouch();
            assert!(record.check_volumes(&now).is_err());
        }
        // Whatever the words are; and by the words of an earlier version.
        let mut elder = record.clone();
        (record.untold, elder.created) = (named, None);
        record.error = None;
        for mut record in [record, elder] {
            record.vouch();
            assert_eq!(record.check_volumes(&now), Ok(()));
            assert!(record.untold.is_empty());
            // Nobody was asked of that one.
            now[2].vouch();
            let (said, _) = record.check_volumes(&now).unwrap_err();
            assert!(said.contains("/dev/z tells nothing of itself"), "{said}");
            now[2] = untold("/dev/z");
        }
    }

    #[test]
    fn a_failed_job_whose_memory_is_gone_says_why_it_had_failed() {
        let lost = |state, error: Option<&str>, ended| {
            let mut record = Record::new(1, spec(), uris());
            (record.state, record.error) = (state, error.map(str::to_owned));
            record.ended = ended;
            record.lose("it is gone".into());
            assert_eq!(record.state, JobState::Cancelled);
            (record.error.unwrap(), record.ended)
        };
        let (error, ended) = lost(JobState::Failed, Some("no space"), Some(7));
        assert_eq!(error, "it is gone; before that it had failed: no space");
        assert_eq!(ended, Some(7));
        let (error, ended) = lost(JobState::Running, None, None);
        assert!(error == "it is gone" && ended.is_some());
    }

    #[test]
    fn what_was_saved_is_there_again() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::beside(&folder.path().join("state.json"));
        assert_eq!(records.load(), (Vec::new(), Vec::new()));
        let mut record = Record::new(7, spec(), uris());
        records.save(&record).unwrap();
        record.durable = 4096;
        (record.state, record.error) = (JobState::Failed, Some("why".into()));
        records.save(&record).unwrap();
        records.save(&Record::new(3, spec(), uris())).unwrap();
        // What a kill in the middle of a write leaves behind.
        fs::write(records.directory.join("7.json.new"), "{\"ver").unwrap();
        assert_eq!(records.load(), (vec![Record::new(3, spec(), uris()), record], Vec::new()));
        for _ in 0..2 {
            let (gone, outcome) = records.remove(&[3]);
            assert_eq!((gone, outcome.unwrap()), (1, ()));
        }
        assert_eq!(records.load().0.len(), 1);
        // The second of three cannot be removed.
        for id in [1, 3] {
            records.save(&Record::new(id, spec(), uris())).unwrap();
        }
        fs::create_dir(records.directory.join("2.json")).unwrap();
        // One that could not be read again.
        let mut long = Record::new(4, spec(), uris());
        long.error = Some("x".repeat(BYTES_MAX as usize));
        assert_eq!(records.save(&long).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert!(!records.directory.join("4.json").exists());
        let (gone, outcome) = records.remove(&[1, 2, 3]);
        assert!(gone == 1 && outcome.is_err() && !records.directory.join("1.json").exists());
        assert!(records.directory.join("3.json").exists());
    }

    #[test]
    fn a_record_of_an_earlier_version_has_no_times() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::beside(&folder.path().join("state.json"));
        let mut record = Record::new(1, spec(), uris());
        assert!(record.created.is_some() && record.started.is_some() && record.ended.is_none());
        (record.created, record.started) = (None, None);
        records.save(&record).unwrap();
        let text = fs::read_to_string(records.directory.join("1.json")).unwrap();
        assert!(!text.contains("created") && !text.contains("untold"), "{text}");
        assert_eq!(records.load(), (vec![record.clone()], Vec::new()));
        record.set_state(JobState::Failed, Some("why".into()));
        assert!(record.ended.is_some());
        record.set_state(JobState::Running, None);
        assert!(record.started.is_some() && record.ended.is_none());
    }

    #[test]
    fn damage_is_told_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::beside(&folder.path().join("state.json"));
        records.save(&Record::new(1, spec(), uris())).unwrap();
        let text = fs::read_to_string(records.directory.join("1.json")).unwrap();
        let with = |id: &str, field: &str, value: &str| {
            let mut text: serde_json::Value = serde_json::from_str(&text).unwrap();
            text["id"] = id.parse().unwrap();
            text[field] = serde_json::from_str(value).unwrap();
            text.to_string()
        };
        fs::write(records.directory.join("7.json"), with("7", "durable", "8192")).unwrap();
        for (name, text) in [
            ("2.json", ""),
            ("3.json", &text),
            ("4.json", &text.replace("\"version\": 1", "\"version\": 9")),
            ("5.json", &with("5", "volumes", "[]")),
            ("6.json", &with("6", "durable", "8193")),
        ] {
            fs::write(records.directory.join(name), text).unwrap();
        }
        let (found, damaged) = records.load();
        assert_eq!((found.len(), damaged.len()), (2, 5), "{damaged:?}");
        assert_eq!(records.free_id(), 8, "the number of one that cannot be read is used");
    }
}
