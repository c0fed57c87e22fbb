//! Adding a volume: it is opened on a thread, which may take as long as a server that does not answer.
//!
//! ```text
//!   volume_add --what is wanted is looked at--> a thread opens it --> run: looked at again, served, answered
//! ```

use super::Daemon;
use super::jobs::Reply;
use super::start::{controller_ids, open, options};
use super::twice::named_twice;
use crate::config::{Config, Namespace};
use crate::control::method::{Volume, VolumeAdd};
use crate::control::protocol::Failure;
use crate::patience::{MOMENT, Patience};
use serde_json::json;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long it is looked for often whether a volume is open.
const QUICK: Duration = Duration::from_secs(3);

/// Volumes that are opened at a time: each keeps a client of the control socket, or what is left of one, of which there may be 32.
const ADDED_MAX: usize = 8;

type Opened = Result<Arc<dyn namespace::Namespace>, volume::Error>;

/// Volumes that are being opened.
#[derive(Default)]
pub(super) struct Added(Vec<Adding>);

struct Adding {
    wanted: VolumeAdd,
    /// Whether others have it as well.
    shared: bool,
    since: Instant,
    opened: Receiver<Opened>,
    reply: Reply,
}

/// What would be, were the volume open.
struct Plan {
    nqn: String,
    namespace: Namespace,
    /// With that namespace as the subsystem's last.
    config: Config,
    shared: bool,
}

impl Added {
    /// Whether one is to be open soon.
    pub(super) fn are_expected(&self) -> bool {
        self.0.iter().any(|adding| adding.since.elapsed() < QUICK)
    }

    /// Those that have been opened, or could not.
    fn ended(&mut self) -> Vec<(Adding, Opened)> {
        let mut ended = Vec::new();
        let mut index = 0;
        while index < self.0.len() {
            match self.0[index].opened.try_recv() {
                Ok(opened) => ended.push((self.0.remove(index), opened)),
                Err(TryRecvError::Empty) => index += 1,
                // Its thread has panicked; the client sees that there is no answer.
                Err(TryRecvError::Disconnected) => drop(self.0.remove(index)),
            }
        }
        ended
    }
}

impl Daemon {
    /// Begins to open a volume, and tells by `reply` what became of it.
    pub(super) fn volume_add(
        &mut self,
        mut wanted: VolumeAdd,
        reply: Reply,
    ) -> Result<(), Failure> {
        let Plan { nqn, shared, .. } = self.plan(&wanted)?;
        // That one, whichever there are when it is open.
        wanted.nqn = Some(nqn);
        if self.added.0.iter().any(|adding| adding.wanted.volume == wanted.volume) {
            let why = format!("{} is being opened already", wanted.volume);
            return Err(Failure::conflict(why));
        }
        if self.added.0.len() >= ADDED_MAX {
            let why = format!("{ADDED_MAX} volumes are being opened already");
            return Err(Failure::conflict(why));
        }
        let (sender, opened) = sync_channel(1);
        let (uri, cores) = (wanted.volume.clone(), self.cores);
        let open = move || {
            let opened = Patience::new(MOMENT).open(|| open(&uri, shared, cores));
            let _ = sender.send(opened);
        };
        let thread = thread::Builder::new().name("open-volume".to_owned()).spawn(open);
        thread.map_err(|error| Failure::conflict(format!("no thread: {error}")))?;
        let since = Instant::now();
        self.added.0.push(Adding { wanted, shared, since, opened, reply });
        Ok(())
    }

    /// Serves the volumes that are open now.
    pub(super) fn serve_added(&mut self) {
        for (Adding { wanted, shared, reply, .. }, opened) in self.added.ended() {
            let opened = opened.map_err(|error| Failure::volume(error.to_string()));
            let served = opened.and_then(|volume| {
                let served = self.serve_opened(&wanted, shared, &volume);
                if served.is_err() {
                    // What lies on a server that does not answer may take its time to be closed.
                    let close = move || drop(volume);
                    let _ = thread::Builder::new().name("close-volume".to_owned()).spawn(close);
                }
                served
            });
            // A client that has gone needs no answer.
            let _ = reply.send(served.map(|volume| json!(volume)));
        }
    }

    /// What is wanted, if it may be. Of what was asked for at once, something may be there by the time that a volume is open.
    fn plan(&self, wanted: &VolumeAdd) -> Result<Plan, Failure> {
        let nqn = self.nqn(wanted.nqn.clone())?;
        let subsystem = self.config.subsystem(&nqn).expect("resolved");
        if let Some(nsid) = wanted.nsid.filter(|&nsid| subsystem.namespace(nsid).is_some()) {
            return Err(Failure::conflict(format!("namespace {nsid} of {nqn} exists already")));
        }
        let mut namespace = Namespace::new(wanted.volume.clone());
        namespace.nsid = Some(wanted.nsid.unwrap_or_else(|| subsystem.nsid_free()));
        namespace.uuid = wanted.uuid;
        namespace.nguid = wanted.nguid;
        namespace.ana_group = wanted.ana_group.unwrap_or(namespace.ana_group);
        namespace.nofail = wanted.nofail;
        let shared = subsystem.shared;
        let mut config = self.config.clone();
        config.subsystem_mut(&nqn).expect("resolved").namespaces.push(namespace.clone());
        config.check().map_err(|error| Failure::params(error.problem))?;
        // One that is missing has no lock that would tell. Of the others their locks do; here none is looked at: it may hang.
        if let Some((_, twice)) = named_twice(&config, true) {
            let twice = twice.display();
            return Err(Failure::conflict(format!("{twice} is part of another volume already")));
        }
        Ok(Plan { nqn, namespace, config, shared })
    }

    fn serve_opened(
        &mut self,
        wanted: &VolumeAdd,
        shared: bool,
        volume: &Arc<dyn namespace::Namespace>,
    ) -> Result<Volume, Failure> {
        let plan = self.plan(wanted)?;
        let Plan { nqn, mut namespace, mut config, .. } = plan;
        if plan.shared != shared {
            return Err(Failure::conflict(format!("{nqn} is another subsystem by now")));
        }
        let nsid = namespace.nsid.expect("planned");
        if shared {
            let ids = controller_ids(&self.config);
            self.claims
                .wait(&Patience::new(MOMENT), &nqn, nsid, &namespace.volume, ids)
                .map_err(|error| Failure::conflict(error.to_string()))?;
        }
        self.identify(&nqn, &mut namespace, volume);
        let entries = &mut config.subsystem_mut(&nqn).expect("resolved").namespaces;
        *entries.last_mut().expect("planned") = namespace.clone();
        let added = self.change(config, |server| {
            server.add_namespace(&nqn, &options(&namespace), Arc::clone(volume)).map(|_| ())
        });
        if let Err(error) = added {
            self.claims.release(&nqn, nsid);
            return Err(error);
        }
        self.missing.note(&(nqn.clone(), nsid), &**volume);
        self.volumes.insert((nqn.clone(), nsid), Arc::clone(volume));
        Ok(self.volume(&nqn, &namespace).expect("inserted"))
    }
}
