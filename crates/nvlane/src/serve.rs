//! `nvlane serve`: from the command line to a daemon that runs until it is told to stop.

mod announce;
pub mod log;
mod place;

use crate::cli::ServeArgs;
use crate::config::identity::Machine;
use crate::config::store::{Found, Store};
use crate::control::path;
use crate::control::server::ControlSocket;
use crate::daemon::{Daemon, Event, Threads};
use crate::origin::{Origin, threads};
use crate::{passed, signals};
use anyhow::{Context, Result, bail};
use place::DataDir;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::thread;

/// Calls and signals that wait for the daemon's loop.
const EVENTS_MAX: usize = 64;

/// Changes that are told one by one when they are dropped, and names that are others then.
const DROPPED_MAX: usize = 50;

/// Serves until SIGINT, SIGTERM or SIGHUP.
pub fn run(args: &ServeArgs) -> Result<()> {
    let ready_fd = args.ready_fd.map(|fd| passed::writer("--ready-fd", fd)).transpose()?;
    log::to_stderr(&args.log)?;
    raise_descriptor_limit();
    let mut data_dir = DataDir::of(args, |place| Machine::known(place).is_some())?;
    let machine =
        Machine::find(data_dir.path()).context("cannot find out which machine this is")?;
    let origin = Origin::find(args, data_dir.path(), &machine)?;
    let open = if args.fresh { Store::open_fresh } else { Store::open };
    let (store, found) = open(&origin.state, origin.start)?;
    let aside = store.aside();
    // Said once everything is open: an error before that is to be one line.
    let mut notes = Vec::new();
    let mut dropped = None;
    let mut config = origin.config;
    match found {
        Found::Nothing => {}
        Found::Other(left) => dropped = left,
        Found::State(state) => {
            notes.push(format!("continuing the state in {}", store.path().display()));
            config = state;
        }
    }
    config.complete();
    if let Some(problem) = dropped.as_ref().and_then(|left| left.lost_keys(&config)) {
        bail!(problem);
    }
    let changes = dropped.as_ref().map(|left| left.changes(&config));
    let threads = threads(&config, args);
    notes.extend(too_many_cores(&threads));

    let (events, inbox) = sync_channel(EVENTS_MAX);
    let stop = events.clone();
    // Blocks while calls fill the queue; the loop empties it.
    signals::on_stop(move || {
        let _ = stop.send(Event::Stop);
    })?;
    let mut socket = control_socket(args.socket.as_deref(), &mut notes)?;
    let mut daemon = Daemon::start(config, &threads, store, machine, args.nofail)?;
    data_dir.keep();
    notes.extend(daemon.config().weak_authentication());
    notes.extend(daemon.config().unreachable());
    notes.extend(daemon.config().keys_being_replaced());
    if let Some((changes, left)) = changes.zip(dropped) {
        notes.extend(bounded("dropped", &changes, "changes are dropped"));
        let renamed = left.renamed(daemon.config(), Some(machine));
        let what = "hosts that stay connected take it for another disk";
        notes.extend(bounded(what, &renamed, "names are others"));
        notes.push(format!(
            "the configuration file was edited: it is served as it is, without what was changed \
             meanwhile, which goes to {}",
            aside.display()
        ));
    }
    for note in notes {
        tracing::warn!("{note}");
    }
    // Its calls wait for the daemon's loop.
    if let Some(socket) = &mut socket {
        socket.serve(events, Event::Call).context("control socket")?;
    }
    daemon.accept()?;
    announce::ready(&daemon, socket.as_ref().map(ControlSocket::path), ready_fd);

    daemon.run(&inbox);
    tracing::info!("stopping");
    signals::notify(&[NotifyState::Stopping]);
    // Nobody reads calls any more: their clients are told that the daemon is stopping.
    drop(inbox);
    drop(socket);
    daemon.stop()?;
    tracing::info!("stopped; everything is flushed");
    Ok(())
}

/// What has become of each, a bounded number of them.
fn bounded(what: &str, all: &[String], of_more: &str) -> impl Iterator<Item = String> {
    let more = all.len().saturating_sub(DROPPED_MAX);
    let more = (more > 0).then(|| format!("{more} more {of_more}"));
    all.iter().take(DROPPED_MAX).map(move |one| format!("{what}: {one}")).chain(more)
}

/// More threads than processors only take turns.
fn too_many_cores(threads: &Threads) -> Option<String> {
    let wanted = threads.cores.cpus().len();
    let processors = thread::available_parallelism().ok()?.get();
    (wanted > processors).then(|| {
        format!("--cores: {wanted} threads share {processors} processor(s), which makes it slower")
    })
}

/// Connections are descriptors: take as many as an administrator allows.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("the limit of open files stays at {:?}: {error}", limit.current);
    }
}

/// Binds the control socket. The usual place being unusable costs a note, a place that was asked
/// for an error.
fn control_socket(asked: Option<&Path>, notes: &mut Vec<String>) -> Result<Option<ControlSocket>> {
    match (asked, ControlSocket::bind(&asked.map_or_else(path::socket, Path::to_owned))) {
        (_, Ok(socket)) => Ok(Some(socket)),
        (Some(_), Err(error)) => Err(error.into()),
        (None, Err(error)) => {
            notes.push(format!("this server cannot be controlled: {error}"));
            Ok(None)
        }
    }
}
