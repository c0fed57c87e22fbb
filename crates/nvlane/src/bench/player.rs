//! Closed-loop load on any volume, from a reactor of its own on one core.
//!
//! ```text
//!   bench thread --letter(Load, Watch)--> reactor thread: Run --submit--> queue of the volume
//!        ^------- Played: windows, series ------|   ^------ completed ------'
//! ```
//!
//! As many commands are in flight as asked for; each is replaced when it comes back. The reactor
//! spins and sleeps as it does for users. What it does not do: check what is read; tests do.

use super::pipeline::histogram;
use super::random::Random;
use super::usage::{self, Usage};
use super::{cores, heed};
use anyhow::{Context, anyhow, bail};
use hdrhistogram::Histogram;
use namespace::{Data, Namespace, Queue, Request, Sink};
use nvme::{Command, Limits, Status, opcode};
use reactor::{Config, Mailbox, Poll, PollerId, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Memory for the data of all commands in flight.
const BUFFER_BYTES: usize = 64 << 20;

/// How often to look whether somebody wants it to end.
const HEED: Duration = Duration::from_millis(100);

/// What share of the commands reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All.
    Read,
    /// None.
    Write,
    /// Every other one, at random.
    Mixed,
}

/// What is asked for, at random places.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Reads or writes.
    pub mix: Mix,
    /// Bytes per command.
    pub bytes: u32,
    /// Commands in flight.
    pub in_flight: usize,
    /// Which places.
    pub seed: u64,
}

/// What is looked at, counted from the first command.
#[derive(Clone, Debug)]
pub struct Watch {
    /// Parts of the run, in order, that are measured.
    pub windows: Vec<Range<Duration>>,
    /// Commands are counted by intervals of this length over the whole run.
    pub interval: Duration,
}

/// What a run showed.
pub struct Played {
    /// As many as were watched.
    pub windows: Vec<PlayedWindow>,
    /// Commands answered per interval, until the end of the last window.
    pub series: Vec<u32>,
}

/// One window of a run.
pub struct PlayedWindow {
    /// Commands answered.
    pub ios: u64,
    /// Its length.
    pub seconds: f64,
    /// Nanoseconds from submission to completion.
    pub latency: Histogram<u32>,
    /// What the thread used.
    pub usage: Usage,
}

impl PlayedWindow {
    /// Commands per second.
    pub fn iops(&self) -> f64 {
        self.ios as f64 / self.seconds
    }
}

/// A thread with a reactor on one core, and volumes opened there.
pub struct Player {
    mailbox: Mailbox,
    thread: Option<JoinHandle<()>>,
}

impl Player {
    /// Starts the thread on `core`.
    pub fn start(core: usize) -> anyhow::Result<Player> {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::Builder::new().name("bench-player".into()).spawn(move || {
            cores::prefer();
            let config =
                Config { cpu: Some(core), buffer_bytes: BUFFER_BYTES, ..Config::default() };
            match Reactor::new(&config) {
                Ok(reactor) => {
                    let _ = sender.send(Ok(reactor.mailbox()));
                    reactor.run();
                    OPENED.with(|opened| opened.borrow_mut().clear());
                }
                Err(error) => drop(sender.send(Err(error))),
            }
        })?;
        let mailbox = receiver.recv().context("the player's thread ended")??;
        Ok(Player { mailbox, thread: Some(thread) })
    }

    /// Plays `load` on `volume` and watches it.
    pub fn play(
        &self,
        volume: &Arc<dyn Namespace>,
        load: Load,
        watch: &Watch,
    ) -> anyhow::Result<Played> {
        self.begin(volume, load, watch)?.end()
    }

    /// The same, without waiting for its end.
    pub fn begin(
        &self,
        volume: &Arc<dyn Namespace>,
        load: Load,
        watch: &Watch,
    ) -> anyhow::Result<Playing> {
        let limits = volume.limits();
        if u64::from(load.bytes) > limits.bytes() || limits.bytes() >> 32 >= u64::from(load.bytes) {
            bail!("a volume of {} bytes is of no use here", limits.bytes());
        }
        let (sender, receiver) = mpsc::channel();
        let (volume, watch) = (Arc::clone(volume), watch.clone());
        let posted = self.mailbox.post(move |reactor| {
            if let Err(error) = begin(reactor, &volume, load, watch, sender.clone()) {
                let _ = sender.send(Err(error));
            }
        });
        if !posted {
            bail!("the player's thread ended");
        }
        Ok(Playing(receiver))
    }
}

/// A load that is played.
pub struct Playing(Receiver<anyhow::Result<Played>>);

impl Playing {
    /// Waits for its end.
    pub fn end(self) -> anyhow::Result<Played> {
        loop {
            match self.0.recv_timeout(HEED) {
                Err(RecvTimeoutError::Timeout) => heed()?,
                played => return played.context("the player's thread ended")?,
            }
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.mailbox.post(|reactor| reactor.stop());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// A volume that this thread has a queue of, kept while others refer to the volume.
type Opened = (std::sync::Weak<dyn Namespace>, Rc<dyn Queue>);

thread_local! {
    static OPENED: RefCell<HashMap<usize, Opened>> = RefCell::default();
}

/// This thread's queue of the volume, opened when it is first used.
fn queue_of(reactor: &Rc<Reactor>, volume: &Arc<dyn Namespace>) -> anyhow::Result<Rc<dyn Queue>> {
    let key = Arc::as_ptr(volume).cast::<()>() as usize;
    let known = OPENED.with(|opened| {
        let mut opened = opened.borrow_mut();
        opened.retain(|_, (volume, _)| volume.strong_count() > 0);
        opened.get(&key).map(|(_, queue)| Rc::clone(queue))
    });
    if let Some(queue) = known {
        return Ok(queue);
    }
    let queue = Arc::clone(volume).open_queue(reactor).context("cannot open a queue")?;
    let entry = (Arc::downgrade(volume), Rc::clone(&queue));
    OPENED.with(|opened| opened.borrow_mut().insert(key, entry));
    Ok(queue)
}

fn begin(
    reactor: &Rc<Reactor>,
    volume: &Arc<dyn Namespace>,
    load: Load,
    watch: Watch,
    sender: Sender<anyhow::Result<Played>>,
) -> anyhow::Result<()> {
    let queue = queue_of(reactor, volume)?;
    let end = watch.windows.last().context("nothing is watched")?.end;
    let windows = watch
        .windows
        .iter()
        .map(|window| PlayedWindow {
            ios: 0,
            seconds: (window.end - window.start).as_secs_f64(),
            latency: histogram(),
            usage: Usage::default(),
        })
        .collect();
    let intervals = end.as_nanos().div_ceil(watch.interval.as_nanos()) as usize;
    let start = Instant::now();
    let mut idle = Vec::with_capacity(load.in_flight);
    for slot in 0..load.in_flight as u64 {
        let mut request = Request::new();
        let buffer = reactor.buffers().allocate(load.bytes as usize);
        let mut buffer = buffer.context("the player's buffer pool is too small")?;
        let fill = [load.seed.wrapping_mul(slot + 1) as u8; 64];
        buffer
            .as_mut_slice()
            .chunks_mut(64)
            .for_each(|part| part.copy_from_slice(&fill[..part.len()]));
        request.data = Data::Buffer(buffer);
        idle.push((slot, request));
    }
    let run = Rc::new_cyclic(|me| Run {
        me: Weak::clone(me),
        reactor: Rc::clone(reactor),
        queue,
        load,
        limits: volume.limits(),
        start,
        end,
        watched: RefCell::new(Watched {
            ranges: watch.windows,
            windows,
            now: 0,
            inside: None,
            series: vec![0; intervals],
            interval_ns: watch.interval.as_nanos() as u64,
        }),
        random: RefCell::new(Random::new(load.seed)),
        begun: RefCell::new(vec![start; load.in_flight]),
        done: RefCell::new(idle),
        spare: RefCell::default(),
        fresh: Cell::new(true),
        out: Cell::new(0),
        failure: Cell::new(None),
        poller: Cell::new(None),
        sender: RefCell::new(Some(sender)),
    });
    run.poller.set(Some(reactor.attach(run.clone())));
    Ok(())
}

/// One run on the reactor's thread.
struct Run {
    me: Weak<Run>,
    reactor: Rc<Reactor>,
    queue: Rc<dyn Queue>,
    load: Load,
    limits: Limits,
    start: Instant,
    end: Duration,
    watched: RefCell<Watched>,
    random: RefCell<Random>,
    begun: RefCell<Vec<Instant>>,
    done: RefCell<Vec<(u64, Box<Request>)>>,
    /// Empty between polls; swapped with `done`.
    spare: RefCell<Vec<(u64, Box<Request>)>>,
    /// What is in `done` was never submitted.
    fresh: Cell<bool>,
    out: Cell<usize>,
    failure: Cell<Option<Status>>,
    poller: Cell<Option<PollerId>>,
    sender: RefCell<Option<Sender<anyhow::Result<Played>>>>,
}

struct Watched {
    ranges: Vec<Range<Duration>>,
    windows: Vec<PlayedWindow>,
    /// The window that comes next or is on.
    now: usize,
    /// What had been used when it began.
    inside: Option<Usage>,
    series: Vec<u32>,
    interval_ns: u64,
}

impl Watched {
    /// Begins and ends windows as time passes.
    fn look(&mut self, at: Duration) {
        let Some(range) = self.ranges.get(self.now) else { return };
        if self.inside.is_none() && at >= range.start {
            self.inside = usage::of_this_thread().ok();
        }
        if at >= range.end {
            let used = usage::of_this_thread().unwrap_or_default();
            self.windows[self.now].usage = used.since(self.inside.take().unwrap_or_default());
            self.now += 1;
        }
    }

    #[inline]
    fn answered(&mut self, at: Duration, took: Duration) {
        let at_ns = at.as_nanos() as u64;
        if let Some(count) = self.series.get_mut((at_ns / self.interval_ns) as usize) {
            *count += 1;
        }
        if self.inside.is_some() {
            let window = &mut self.windows[self.now];
            window.ios += 1;
            window.latency.saturating_record(took.as_nanos() as u64);
        }
    }
}

impl Sink for Run {
    #[inline]
    fn completed(&self, request: Box<Request>, slot: u64) {
        if !request.status.is_success() {
            self.failure.set(Some(request.status));
        }
        self.done.borrow_mut().push((slot, request));
        if let Some(poller) = self.poller.get() {
            self.reactor.activate(poller);
        }
    }
}

impl Poll for Run {
    fn poll(&self) -> bool {
        if self.done.borrow().is_empty() {
            return false;
        }
        let now = Instant::now();
        let at = now.duration_since(self.start);
        self.watched.borrow_mut().look(at);
        let over = at >= self.end || self.failure.get().is_some();
        let fresh = self.fresh.replace(false);
        // Swapped, so that what completes within `submit` is seen in the next turn.
        let mut batch = self.spare.take();
        std::mem::swap(&mut batch, &mut *self.done.borrow_mut());
        for (slot, request) in batch.drain(..) {
            if !fresh {
                self.out.set(self.out.get() - 1);
                let took = now.duration_since(self.begun.borrow()[slot as usize]);
                self.watched.borrow_mut().answered(at, took);
            }
            if !over {
                self.begun.borrow_mut()[slot as usize] = now;
                self.submit(slot, request);
            }
        }
        self.spare.replace(batch);
        if over && self.out.get() == 0 {
            self.finish();
        }
        true
    }

    fn park(&self) -> bool {
        self.done.borrow().is_empty()
    }
}

impl Run {
    #[inline]
    fn submit(&self, slot: u64, mut request: Box<Request>) {
        let blocks = self.load.bytes >> self.limits.block_shift;
        let places = self.limits.blocks / u64::from(blocks);
        let (place, reads) = {
            let mut random = self.random.borrow_mut();
            let reads = match self.load.mix {
                Mix::Read => true,
                Mix::Write => false,
                Mix::Mixed => random.below(2) == 0,
            };
            (random.below(places), reads)
        };
        let opcode = if reads { opcode::io::READ } else { opcode::io::WRITE };
        request.command = Command::blocks(opcode, 1, place * u64::from(blocks), blocks);
        request.push(self.me.upgrade().expect("a run being polled is held"), slot);
        self.out.set(self.out.get() + 1);
        self.queue.submit(request);
    }

    fn finish(&self) {
        if let Some(poller) = self.poller.take() {
            self.reactor.detach(poller);
        }
        let Some(sender) = self.sender.take() else { return };
        let mut watched = self.watched.borrow_mut();
        let result = match self.failure.get() {
            Some(status) => Err(anyhow!("a command failed: {status}")),
            None => Ok(Played {
                windows: std::mem::take(&mut watched.windows),
                series: std::mem::take(&mut watched.series),
            }),
        };
        let _ = sender.send(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(uri: &str, load: Load, watch: &Watch) -> anyhow::Result<Played> {
        let volume = volume::open(uri, &volume::OpenOptions::default())?;
        Player::start(0)?.play(&volume, load, watch)
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_delayed_volume_gives_what_little_says_it_must() {
        let load = Load { mix: Mix::Mixed, bytes: 4096, in_flight: 8, seed: 1 };
        let watch =
            Watch { windows: vec![50 * MS..200 * MS, 200 * MS..300 * MS], interval: 50 * MS };
        // A thread that was not run throughout a window has counted nothing in it: of some runs, one has both.
        let both = (0..50).any(|_| {
            let played = play("delay:10ms(mem:8M)", load, &watch).unwrap();
            assert_eq!(played.windows.len(), 2);
            for window in played.windows.iter().filter(|window| window.ios > 0) {
                // 8 in flight, 10 ms each: never more than 800 a second.
                assert!(window.iops() < 900.0, "{}", window.iops());
                assert!(window.latency.min() >= 9_900_000, "{}", window.latency.min());
            }
            assert_eq!(played.series.len(), 6);
            let watched: u64 = played.windows.iter().map(|window| window.ios).sum();
            let all: u64 = played.series.iter().map(|&count| u64::from(count)).sum();
            assert!(all >= watched, "{all} of which {watched} were watched");
            played.windows.iter().all(|window| window.ios > 0)
        });
        assert!(both, "a window without any answer in each of fifty runs");
    }

    #[test]
    fn a_failed_command_ends_the_run_with_its_status() {
        let load = Load { mix: Mix::Read, bytes: 4096, in_flight: 4, seed: 1 };
        let watch = Watch { windows: vec![MS..10_000 * MS], interval: MS };
        let error = play("fault:rate=10%,op=read(mem:8M)", load, &watch).err().unwrap();
        assert!(error.to_string().contains("a command failed"), "{error}");
    }
}
