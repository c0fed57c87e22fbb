//! `nvlane copy`: any volumes, or parts of them, to any others.
//!
//! ```text
//!   spec (what was said) --> volumes opened --> layout (which bytes go where) --> engine, on this thread's reactor
//!                                                    |                             or, as a job, on a core of the daemon
//!                                                    '--> plan: by which means (--dry-run)
//! ```
//!
//! Pure: `spec`, `layout`, `recent`, `throttle`, `watermark`. The engine does the I/O.
//!
//! What it does not do: formats of images; bytes are bytes.

pub mod engine;
mod fresh;
pub mod layout;
pub mod line;
pub mod open;
pub mod plan;
mod recent;
pub mod report;
pub mod shared;
pub mod spec;
pub mod throttle;
mod watermark;

use crate::cli::{CopyArgs, ListFormat};
use crate::control::path;
use crate::jobs;
use crate::serve::log;
use crate::stdout;
use crate::{passed, signals};
use anyhow::{Context, Error, Result, anyhow, bail};
use engine::{Engine, Outcome, Setup, Watch};
use line::{Line, Percents};
use namespace::file::{Made, OpenError};
use open::Opened;
use reactor::{Config, Kind, Reactor};
use report::{Report, so_far};
use shared::{Counts, Shared, Wish};
use spec::{Part, Spec};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// What is logged to standard error: that a path is lost, and that commands wait.
const LOG: &str = "warn";
/// How often it is looked whether a signal has come while volumes are opened.
const STOP_INTERVAL: Duration = Duration::from_millis(20);

/// `nvlane copy`.
pub fn run(args: &CopyArgs) -> Result<()> {
    let percents = percents(args)?;
    log::to_stderr(LOG)?;
    let spec = spec_of(args);
    spec.check().map_err(|problem| anyhow!(problem))?;
    if args.detach {
        return match args.dry_run {
            true => show(&jobs::plan(args, spec)?, args),
            false => jobs::add(args, spec),
        };
    }
    let mut parts = spec.sources.iter().chain(&spec.targets);
    if let Some(part) = parts.find(|part| part.volume.starts_with(open::SERVED)) {
        bail!("{}: a volume of the daemon's is copied by the daemon: add --detach", part.volume);
    }
    let shared = Arc::new(Shared::new(spec.options.throttle));
    let stop = Arc::clone(&shared);
    signals::on_stop(move || stop.stop())?;
    let Some(opened) = open(args, &spec, &shared)? else {
        return interrupted_before(args, &spec);
    };
    let layout = opened.layout(&spec)?;
    opened.check_means(&layout, &spec.options)?;
    if args.dry_run {
        return show(&plan::of(&opened, &layout, &spec.options).told(&spec.options), args);
    }

    let started = Instant::now();
    let (total, order) = (layout.bytes, layout.order);
    let watch = watch(percents, args.progress.is_some());
    let outcome = carry_out(&opened, layout, &spec, &shared, watch)?;
    let (_, counts) = shared.now();
    let (verifying, ended) = (shared.verifying_since(), Instant::now());
    let seconds = |since: Instant, until: Instant| (until - since).as_secs_f64();
    let report = Report {
        spec: &spec,
        order: Some(order),
        counts,
        copy_seconds: seconds(started, verifying.unwrap_or(ended)),
        verify_seconds: verifying.map(|since| seconds(since, ended)),
        outcome: &outcome,
    };
    let printed = match (args.output_format, &outcome) {
        // Programs learn the end of one that is not done as well.
        (ListFormat::Json, _) => print(&report.json()),
        (ListFormat::Normal, Outcome::Done(_)) => print(&report.text()),
        (ListFormat::Normal, _) => Ok(()),
    };
    match outcome {
        Outcome::Done(_) => printed,
        Outcome::Stopped(durable) if spec.options.verify && durable >= total => {
            bail!("interrupted: everything is copied and flushed, but not all of it was compared")
        }
        Outcome::Stopped(durable) => bail!("interrupted: {}", so_far(durable, total, order)),
        Outcome::Failed(failure, durable) if durable >= total => bail!("{failure}"),
        Outcome::Failed(failure, durable) => bail!("{failure}; {}", so_far(durable, total, order)),
    }
}

/// Writes a plan down; whether it is refused does not depend on who reads it.
fn show(plan: &plan::Told, args: &CopyArgs) -> Result<()> {
    let printed = print(&plan::written(plan, args.output_format));
    plan.check()?;
    printed
}

/// Opens the volumes, on a thread of their own: it may take long, and a signal ends it (none).
fn open(args: &CopyArgs, spec: &Spec, shared: &Shared) -> Result<Option<Opened>> {
    let made = Arc::<Made>::default();
    let (opened, outcome) = sync_channel(1);
    let (spec, create, dry_run, making) =
        (spec.clone(), args.create, args.dry_run, Arc::clone(&made));
    let thread = thread::Builder::new().name("open".to_owned());
    thread.spawn(move || {
        // Nobody waits for it any more after a signal.
        let _ = opened.send(Opened::open(&spec, create, dry_run, making));
    })?;
    loop {
        let opened = outcome.recv_timeout(STOP_INTERVAL);
        if shared.wish() == Wish::Stop {
            made.discard();
            return Ok(None);
        }
        match opened {
            Ok(opened) => return opened.map(Some).map_err(|error| in_use(error, args)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("opening the volumes has failed"),
        }
    }
}

/// A signal has come before anything was copied.
fn interrupted_before(args: &CopyArgs, spec: &Spec) -> Result<()> {
    if args.output_format == ListFormat::Json && !args.dry_run {
        let report = Report {
            spec,
            order: None,
            counts: Counts::default(),
            copy_seconds: 0.0,
            verify_seconds: None,
            outcome: &Outcome::Stopped(0),
        };
        // Whether or not anybody reads it.
        let _ = print(&report.json());
    }
    bail!("interrupted: the volumes were still being opened, and nothing is copied")
}

/// A volume that somebody has: if that is a daemon, it can copy it.
fn in_use(error: Error, args: &CopyArgs) -> Error {
    let Some(volume::Error::File(OpenError::Busy { path, .. })) = error.downcast_ref() else {
        return error;
    };
    // What does not go together with that.
    let without = if args.create { ", leave out --create" } else { "" };
    let socket = args.socket.clone().unwrap_or_else(path::socket);
    match jobs::served(path, &socket) {
        Some(name) => anyhow!(
            "{} is served by `nvlane serve`: have that copy it: add --detach{without}, and name it {name}",
            path.display()
        ),
        None => anyhow!(
            "{} is in use by another process; if that is `nvlane serve`, have that copy it: add --detach{without}, and \
             name the volume served:NSID (`nvlane ctl volume list` tells the NSID)",
            path.display()
        ),
    }
}

/// What the command line says.
fn spec_of(args: &CopyArgs) -> Spec {
    let (target, sources) = args.parts.split_last().expect("there are two at least");
    let targets = [target].into_iter().chain(&args.also).cloned();
    let options = args.how.options();
    Spec { sources: sources.to_vec(), targets: targets.collect::<Vec<Part>>(), options }
}

/// A program that is told how far it is.
fn percents(args: &CopyArgs) -> Result<Option<Percents>> {
    let Some(Some(fd)) = args.progress else { return Ok(None) };
    Ok(Some(Percents::to(passed::writer("--progress", fd)?)))
}

/// Tells that, or whoever is before a terminal.
fn watch(percents: Option<Percents>, always: bool) -> Watch {
    if let Some(percents) = percents {
        let percents = RefCell::new(percents);
        return Box::new(move |shared| percents.borrow_mut().update(&shared.now().1));
    }
    let line = RefCell::new(Line::new(always));
    Box::new(move |shared| {
        let (phase, counts) = shared.now();
        line.borrow_mut().update(phase, &counts, None);
    })
}

/// Runs the copy on this thread.
fn carry_out(
    opened: &Opened,
    layout: layout::Layout,
    spec: &Spec,
    shared: &Arc<Shared>,
    watch: Watch,
) -> Result<Outcome> {
    if layout.bytes == 0 {
        opened.keep();
        return Ok(Outcome::Done(None));
    }
    // Who is held back leaves the processor to others.
    let spin = match spec.options.throttle.holds_back() {
        true => Duration::ZERO,
        false => Config::default().spin,
    };
    // Devices take commands from big entries only.
    let reactor = Reactor::new(&Config { kind: Kind::Big, spin, ..Config::default() })?;
    let outcome = Rc::new(RefCell::new(None));
    let (end, told) = (Rc::clone(&reactor), Rc::clone(&outcome));
    let setup = Setup {
        volumes: opened.volumes.clone(),
        layout,
        options: spec.options.clone(),
        from: 0,
        before: Counts::default(),
        shared: Arc::clone(shared),
        keep: None,
        watch: Some(watch),
    };
    let ended = move |outcome| {
        *told.borrow_mut() = Some(outcome);
        end.stop();
    };
    Engine::start(&reactor, setup, Box::new(ended)).context("a volume's queue")?;
    reactor.run();
    let outcome = outcome.take().context("the copy has not ended")?;
    // What has nothing in it that is known to be there is of no use to anybody.
    if !matches!(outcome, Outcome::Failed(_, 0) | Outcome::Stopped(0)) {
        opened.keep();
    }
    Ok(outcome)
}

fn print(text: &str) -> Result<()> {
    stdout::write(text)
}
