//! A job from its record to the engine.

use super::identity::Identity;
use super::record::{Record, Records};
use super::{Key, Live, lock};
use crate::copy::engine::{Engine, Outcome, Setup};
use crate::copy::layout::{Layout, Order};
use crate::copy::open::{Opened, SERVED};
use crate::copy::plan;
use crate::copy::shared::{Counts, Shared, Wish};
use crate::copy::spec::{Options, Spec};
use crate::patience;
use crate::when;
use anyhow::{Context, Result, anyhow, bail, ensure};
use namespace::Namespace;
use namespace::copy::Origin;
use reactor::Mailbox;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use volume::{Kind, OpenOptions, Uri};

/// How often volumes that cannot be opened are tried again.
const OPEN_INTERVAL: Duration = Duration::from_millis(250);

/// Volumes of a job, and which bytes go where.
pub struct Ready {
    opened: Opened,
    layout: Layout,
}

/// The same for a job that goes on; or why not, and the disks that nobody can tell from others, if that is why.
fn prepare_again(record: &Record, served: &Live) -> Result<Ready, (String, Vec<String>)> {
    let ready = prepare(&record.spec, served).map_err(|error| (error, Vec::new()))?;
    record.check_volumes(&ready.volumes()).map(|()| ready)
}

/// Opens the volumes of a job: those that are served are used, others opened for it.
pub fn prepare(spec: &Spec, served: &Live) -> Result<Ready, String> {
    let prepared = || -> Result<Ready> {
        let opened = Opened::open_with(spec, |uri, written, _| open(uri, written, served))?;
        let layout = opened.layout(spec)?;
        opened.check_means(&layout, &spec.options)?;
        ensure!(
            layout.order == Order::Free,
            "what is copied overwrites its source: a job could not go on after a crash; leave out --detach"
        );
        Ok(Ready { opened, layout })
    };
    prepared().map_err(|error| crate::one_line(&error))
}

impl Ready {
    /// Which volumes sources and targets are.
    pub fn volumes(&self) -> Vec<Identity> {
        let volumes = self.opened.sources().chain(self.opened.targets());
        volumes.map(|volume| Identity::of(&**volume)).collect()
    }

    /// Whether `volume` is one of them.
    pub fn uses(&self, volume: &Arc<dyn Namespace>) -> bool {
        self.opened.volumes.iter().any(|used| Arc::ptr_eq(used, volume))
    }

    /// What it would do.
    pub fn plan(&self, options: &Options) -> plan::Told {
        plan::of(&self.opened, &self.layout, options).told(options)
    }

    /// Says in `spec` how long its sources are.
    pub fn fix(&self, spec: &mut Spec) {
        for (part, volume) in spec.sources.iter_mut().zip(self.opened.sources()) {
            let all = volume.limits().bytes();
            part.length.get_or_insert(all.saturating_sub(part.offset));
        }
    }
}

/// A volume by the name that a job has for it.
fn open(uri: &str, written: Option<u64>, served: &Live) -> Result<Arc<dyn Namespace>> {
    if let Some(name) = uri.strip_prefix(SERVED) {
        return named(name, served);
    }
    let parsed: Uri = uri.parse()?;
    // A file has one who opens it: the one that is served is used.
    if let Some((_, volume)) = served.find(|key, volume| is_meant(uri, key, volume)).pop() {
        return Ok(volume);
    }
    if let Some((nqn, nsid)) = served.missing(&parsed) {
        bail!("{uri}: it is to be served as namespace {nsid} of {nqn}, and is not there yet");
    }
    ensure!(
        !parsed.has_memory(),
        "{uri}: memory of a job's own would be empty, and gone with it; name a volume that is served"
    );
    let options = OpenOptions { read_only: written.is_none(), lend: false, ..Default::default() };
    Ok(patience::open_uri(&parsed, &options)?)
}

/// Whether a job that names `uri` means the volume that is served as `key`.
pub fn is_meant(uri: &str, key: &Key, volume: &Arc<dyn Namespace>) -> bool {
    if let Some(name) = uri.strip_prefix(SERVED) {
        let (of, id) = key;
        let is_it =
            |(nqn, nsid): (Option<&str>, u32)| nsid == *id && nqn.is_none_or(|nqn| nqn == of);
        return split(name).is_some_and(is_it);
    }
    let theirs = volume.uri();
    let both = uri.parse::<Uri>().ok().zip(theirs.parse::<Uri>().ok());
    let Some((one, other)) = both else { return theirs == uri };
    match (&one.kind, &other.kind) {
        // By what is open: a link may lead elsewhere by now.
        (Kind::File { path, .. }, Kind::File { .. }) => {
            match Arc::clone(volume).origin(0, 1).map(|located| located.origin) {
                Some(Origin::File(file)) => file.is_at(path),
                _ => theirs == uri,
            }
        }
        (Kind::Device(one), Kind::Device(other)) => one.path == other.path,
        _ => theirs == uri,
    }
}

/// A name of a served volume: of which subsystem, if that is said, and which namespace.
pub fn split(name: &str) -> Option<(Option<&str>, u32)> {
    match name.rsplit_once('/') {
        Some((nqn, nsid)) => Some((Some(nqn), nsid.parse().ok()?)),
        None => Some((None, name.parse().ok()?)),
    }
}

fn named(name: &str, served: &Live) -> Result<Arc<dyn Namespace>> {
    let (_, nsid) = split(name)
        .with_context(|| format!("{SERVED}{name}: write {SERVED}NSID or {SERVED}NQN/NSID"))?;
    let uri = format!("{SERVED}{name}");
    let mut found = served.find(|key, volume| is_meant(&uri, key, volume));
    let (_, volume) =
        found.pop().with_context(|| format!("{SERVED}{name}: there is no such namespace"))?;
    ensure!(
        found.is_empty(),
        "{SERVED}{name}: several subsystems have one: write {SERVED}NQN/{nsid}"
    );
    Ok(volume)
}

/// How a job has ended, and when: seconds since 1970.
pub struct Ended {
    pub outcome: Outcome,
    pub time_seconds: u64,
}

/// Where that is told, once.
pub type Told = Arc<Mutex<Option<Ended>>>;

/// A job ends now.
pub fn tell(told: &Told, outcome: Outcome) {
    *lock(told) = Some(Ended { outcome, time_seconds: when::now() });
}

/// What a job needs to begin.
pub struct Start {
    pub id: u64,
    pub record: Arc<Mutex<Record>>,
    pub records: Records,
    pub shared: Arc<Shared>,
    pub outcome: Told,
    pub volumes: Arc<Mutex<Vec<Arc<dyn Namespace>>>>,
    pub core: Mailbox,
}

impl Start {
    /// Begins when the volumes are open, which are tried for as long as `patience`.
    pub fn when_open(self, served: &Live, patience: Duration) {
        let until = Instant::now() + patience;
        let record = lock(&self.record).clone();
        let durable = record.durable;
        loop {
            if self.shared.wish() == Wish::Stop {
                return self.end(Outcome::Stopped(durable));
            }
            match prepare_again(&record, served) {
                Ok(ready) => return self.begin(ready, true),
                Err((error, untold)) if Instant::now() >= until => {
                    lock(&self.record).untold = untold;
                    return self.end(Outcome::Failed(error, durable));
                }
                Err((error, _)) => tracing::debug!("job {}: {error}", self.id),
            }
            std::thread::sleep(OPEN_INTERVAL);
        }
    }

    /// Begins a job that is new.
    pub fn now(self, ready: Ready) {
        self.begin(ready, false);
    }

    fn begin(self, ready: Ready, again: bool) {
        let Ready { opened, layout } = ready;
        *lock(&self.volumes) = opened.volumes.clone();
        let (mut options, from, before) = {
            let record = lock(&self.record);
            (record.spec.options.clone(), record.durable.min(layout.bytes), record.counts)
        };
        options.target_is_zero &= !again;
        let (record, records) = (Arc::clone(&self.record), self.records.clone());
        let keep = move |durable: u64, counts: Counts| {
            let mut record = lock(&record);
            (record.durable, record.counts) =
                (durable, Counts { durable_bytes: durable, ..counts });
            records.save(&record)
        };
        let setup = move |shared| Setup {
            volumes: opened.volumes,
            layout,
            options,
            from,
            before,
            shared,
            keep: Some(Arc::new(keep)),
            watch: None,
        };
        let (core, shared, outcome) =
            (self.core.clone(), Arc::clone(&self.shared), Arc::clone(&self.outcome));
        let (told, volumes) = (Arc::clone(&outcome), Arc::clone(&self.volumes));
        let posted = core.post(move |reactor| {
            let ended = Arc::clone(&told);
            let end = move |outcome| {
                // Whoever learns of the end may close the volumes.
                lock(&volumes).clear();
                tell(&ended, outcome);
            };
            if let Err(error) = Engine::start(reactor, setup(shared), Box::new(end)) {
                let failure = anyhow!(error).context("a volume's queue");
                tell(&told, Outcome::Failed(format!("{failure:#}"), from));
            }
        });
        if !posted {
            tell(&outcome, Outcome::Stopped(from));
        }
    }

    fn end(&self, outcome: Outcome) {
        tell(&self.outcome, outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_served_file_is_meant_by_whatever_path_leads_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for name in ["a", "b"] {
            fs::write(path(name), vec![0; 4096]).unwrap();
        }
        symlink("a", path("link")).unwrap();
        let volume = volume::open(&path("link"), &OpenOptions::default()).unwrap();
        let key = ("nqn.2026-11.com.example:a".to_owned(), 1);
        let meant = |name: &str| is_meant(&path(name), &key, &volume);
        assert_eq!(["a", "link", "b"].map(meant), [true, true, false]);
        assert!(is_meant(&volume.uri(), &key, &volume));
        fs::remove_file(path("link")).unwrap();
        symlink("b", path("link")).unwrap();
        assert_eq!(["a", "link", "b"].map(meant), [true, false, false]);
    }
}
