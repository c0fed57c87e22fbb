//! A device's threads, each of which serves a queue or a share of one, and what they tell its owner.

use crate::device::{DeviceOptions, Ending, Wake};
use crate::error::Error;
use crate::kernel;
use crate::path::DataPath;
use crate::queue::{QueueConfig, QueueServer, Share, Watcher};
use namespace::Namespace;
use namespace::failures::{Failed, Failures};
use namespace::layer::program::{Called, Waker};
use reactor::{Drive, Kind, Reactor};
use std::fs::File;
use std::io;
use std::mem;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use ublk_bpf::{GO, KernelProgram, LEAVE};

/// After so long a device whose threads have not ended is told to stop again.
const STOP_AGAIN: Duration = Duration::from_secs(1);

/// Memory of a core beyond what its requests need: for layers and backends.
const FURTHER_BYTES: usize = 32 << 20;

/// The device's threads.
#[derive(Debug)]
pub struct Threads {
    /// Of each that has ended without an error, the device's node: until it is let go of nobody else gets the number.
    pub handles: Vec<JoinHandle<Option<Arc<File>>>>,
    /// To tell each something.
    callers: Vec<Caller>,
    pub sender: Sender<Event>,
    pub events: Receiver<Event>,
    /// Of each thread: nothing is with the volume, although the driver ends tags.
    pub idle: Vec<bool>,
    /// Of each: all tags have ended.
    pub ended: Vec<bool>,
    /// Of each: it has failed, and that has been said.
    pub failed: Vec<bool>,
    pub error: Option<i32>,
    pub fate: Option<Ending>,
}

/// A thread that can be called.
#[derive(Clone, Debug)]
pub struct Caller {
    pub thread: Arc<dyn Called>,
    /// Set where it may sleep beside an answer of the driver that it has not read. None of one that the kernel serves, which is
    /// not to be called for that.
    pub unheard: Option<Arc<AtomicBool>>,
}

/// Has a thread read what is there.
const LOOK: u64 = 0;
/// From then on, each answer ends its sleep.
pub const ATTEND: u64 = 1;

#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Of a thread; with an error the device fails.
    Ending(usize, Option<i32>),
    /// Of a thread.
    Idle(usize),
    Ended(usize, Option<i32>),
}

impl Threads {
    pub fn new() -> Threads {
        let (sender, events) = channel();
        let (idle, ended, failed) = (Vec::new(), Vec::new(), Vec::new());
        let (handles, callers, error, fate) = (Vec::new(), Vec::new(), None, None);
        Threads { handles, callers, sender, events, idle, ended, failed, error, fate }
    }

    pub fn start(&mut self, seed: Seed) -> Result<(), Error> {
        let (sender, receiver) = channel();
        let (queue, share) = (seed.config.queue, seed.config.share);
        let name = match share {
            Share::ALL => format!("ublk-{queue}"),
            Share { thread, .. } => format!("ublk-{queue}.{thread}"),
        };
        let thread = thread::Builder::new().name(name);
        let thread = thread.spawn(move || run(seed, &sender)).map_err(Error::Thread)?;
        self.handles.push(thread);
        self.idle.push(false);
        self.ended.push(false);
        self.failed.push(false);
        let gone = || Error::Ended(io::Error::other("a thread has ended"));
        self.callers.push(receiver.recv().map_err(|_| gone())??);
        Ok(())
    }

    /// Has threads that hold what they are given begin it.
    pub fn go(&self) {
        for caller in &self.callers {
            // One that has ended tells so.
            let _ = caller.thread.call(GO);
        }
    }

    /// Has the threads end what they have begun, and begin nothing more: another server takes the device over.
    pub fn leave(&mut self) {
        if self.fate.is_none() {
            self.fate = Some(Ending::HandedOver);
            // One that has ended has nothing to do with it any more.
            for caller in &self.callers {
                let _ = caller.thread.call(LEAVE);
            }
        }
    }

    /// Has threads that sleep beside an answer of the driver read it: results that it has refused for a moment are given again
    /// then, although nothing else comes. To be called now and then.
    pub fn look(&self) {
        for caller in &self.callers {
            if caller.unheard.as_ref().is_some_and(|unheard| unheard.load(Ordering::Relaxed)) {
                let _ = caller.thread.call(LOOK);
            }
        }
    }

    /// From now on [`Threads::look`] is not needed: whoever might call it waits for the driver.
    pub fn attend(&self) {
        for caller in self.callers.iter().filter(|caller| caller.unheard.is_some()) {
            let _ = caller.thread.call(ATTEND);
        }
    }

    /// Threads that have something to end yet before the device may have another server.
    pub fn busy(&self) -> usize {
        self.idle.iter().filter(|idle| !**idle).count()
    }

    pub fn all_ended(&self) -> bool {
        self.ended.iter().all(|ended| *ended)
    }

    pub fn ending(&self) -> Option<Ending> {
        match self.fate {
            // Without one of its queues it would be half dead.
            _ if self.error.is_some() => Some(Ending::Failed),
            Some(Ending::HandedOver) if self.idle.iter().all(|idle| *idle) => self.fate,
            _ if self.all_ended() => self.fate.or(Some(Ending::Stopped)),
            _ => None,
        }
    }

    /// Takes note of what a thread of `device` tells; `lives` says whether nobody has stopped that.
    pub fn note(&mut self, event: Event, device: u32, lives: impl FnOnce() -> bool) {
        match event {
            Event::Ending(thread, Some(errno)) => self.fails(thread, errno, device),
            Event::Ending(_, None) if self.fate.is_none() => {
                let fate = if lives() { Ending::HandedOver } else { Ending::Stopped };
                self.fate = Some(fate);
            }
            Event::Ending(_, None) => {}
            Event::Idle(thread) => self.idle[thread] = true,
            Event::Ended(thread, error) => {
                self.ended[thread] = true;
                error.into_iter().for_each(|errno| self.fails(thread, errno, device));
            }
        }
    }

    /// Says so, once for each thread.
    fn fails(&mut self, thread: usize, errno: i32, device: u32) {
        if !mem::replace(&mut self.failed[thread], true) {
            tracing::error!(device, thread, errno, "a queue has failed, and the device with it");
        }
        self.error = self.error.or(Some(errno));
    }

    /// Until the threads have ended; `again` is called now and then.
    pub fn await_end(&self, mut again: impl FnMut()) {
        let mut next = Instant::now() + STOP_AGAIN;
        while !self.handles.iter().all(JoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(1));
            if Instant::now() >= next {
                again();
                next = Instant::now() + STOP_AGAIN;
            }
        }
    }

    /// Waits for all; the device's node, if it is open.
    pub fn join(&mut self) -> Option<Arc<File>> {
        let mut node = None;
        for thread in self.handles.drain(..) {
            match thread.join() {
                Ok(its) => node = its.or(node),
                Err(_) => tracing::error!("a queue's thread panicked"),
            }
        }
        while let Ok(event) = self.events.try_recv() {
            if let Event::Ending(_, error) | Event::Ended(_, error) = event {
                self.error = self.error.or(error);
            }
        }
        node
    }
}

/// What a queue's thread begins with.
pub struct Seed {
    pub reactor: reactor::Config,
    pub config: QueueConfig,
    /// The program, if the kernel serves.
    pub program: Option<Arc<KernelProgram>>,
    pub namespace: Arc<dyn Namespace>,
    pub node: Arc<File>,
    /// What the log tells of the volume.
    pub failures: Arc<Failures>,
    pub teller: Teller,
}

/// Serves a queue until all of its tags have ended. Tells by whom it is called, and gives the device's node at the end, but not
/// if it has failed: what the driver has given to a queue that is no more, it ends when nobody has the node open.
fn run(seed: Seed, started: &Sender<Result<Caller, Error>>) -> Option<Arc<File>> {
    let node = Arc::clone(&seed.node);
    if let Some(program) = &seed.program {
        return kernel::run(&seed, program, started).then_some(node);
    }
    let queue = seed.config.queue;
    be_io_flusher();
    let reactor = match Reactor::new(&seed.reactor) {
        Ok(reactor) => reactor,
        Err(error) => {
            let _ = started.send(Err(error.into()));
            return None;
        }
    };
    let watcher = Box::new(Watch {
        teller: seed.teller,
        reactor: Rc::downgrade(&reactor),
        volume: Arc::clone(&seed.namespace),
        failures: seed.failures,
    });
    let server = QueueServer::open(seed.config, &reactor, &seed.namespace, seed.node, watcher);
    let server = match server {
        Ok(server) => server,
        Err(source) => {
            let _ = started.send(Err(Error::Queue { queue, source }));
            return None;
        }
    };
    server.fetch();
    // What the driver refuses it refuses at once: of batches, first what prepares, then what fetches.
    reactor.turn_for(Drive::Poll);
    reactor.turn_for(Drive::Poll);
    let caller = Waker::new(&reactor, Rc::downgrade(&server) as _);
    let outcome = match server.refusal() {
        None => Ok(Caller { thread: Arc::new(caller.clone()), unheard: Some(server.unheard()) }),
        Some(errno) => Err(Error::Queue { queue, source: io::Error::from_raw_os_error(errno) }),
    };
    let _ = started.send(outcome);
    // Where waiting is all that is left to do, one call hands over what is queued and waits.
    while reactor.wait_turn() {}
    reactor.run();
    caller.forget();
    let stats = reactor.stats();
    let (requests, enters) = (server.requests(), stats.enters);
    tracing::debug!(queue, requests, enters, sleeps = stats.sleeps, "a queue has ended");
    server.refusal().is_none().then_some(node)
}

/// Memory that this thread needs must not wait for I/O that goes through this thread.
pub fn be_io_flusher() {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: changes a flag of this thread and nothing else. It needs CAP_SYS_RESOURCE, without which
    // devices work, but should not be swapped to.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// A thread's way to the device's owner.
pub struct Teller {
    /// Its number.
    pub thread: usize,
    pub events: Sender<Event>,
    pub wake: Wake,
}

impl Teller {
    pub fn tell(&self, event: Event) {
        let _ = self.events.send(event);
        (self.wake)();
    }
}

struct Watch {
    teller: Teller,
    reactor: Weak<Reactor>,
    volume: Arc<dyn Namespace>,
    failures: Arc<Failures>,
}

impl Watcher for Watch {
    fn ending(&self, error: Option<i32>) {
        self.teller.tell(Event::Ending(self.teller.thread, error));
    }

    fn idle(&self) {
        self.teller.tell(Event::Idle(self.teller.thread));
    }

    fn failed(&self, failed: Failed) {
        if let Some(reactor) = self.reactor.upgrade() {
            let is_read_only = self.volume.limits().read_only;
            self.failures.note(&reactor, failed, is_read_only, || self.volume.uri());
        }
    }

    fn ended(&self, error: Option<i32>) {
        self.teller.tell(Event::Ended(self.teller.thread, error));
        if let Some(reactor) = self.reactor.upgrade() {
            reactor.stop();
        }
    }
}

pub fn reactor_config(
    config: &QueueConfig,
    thread: usize,
    options: &DeviceOptions,
) -> reactor::Config {
    let depth = config.share.tags(config.depth).count();
    let buffer = (config.shape.io_bytes_max as usize).next_power_of_two();
    let is_zero_copy = config.path == DataPath::ZeroCopy;
    reactor::Config {
        entries: u32::from(config.depth).saturating_mul(2).max(256),
        cpu: options.cpus.get(thread).copied().flatten(),
        poll_always: options.poll,
        // Address space: of one buffer per request one at least is always free.
        buffer_bytes: FURTHER_BYTES + if is_zero_copy { buffer } else { depth * buffer },
        kernel_buffers: if is_zero_copy { config.depth } else { 0 },
        // NVMe devices get their commands by this ring (docs/decisions/0005).
        kind: Kind::Big,
        // Drivers take commands by nothing else.
        emulate: false,
        ..reactor::Config::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads of which nothing was heard.
    fn two() -> Threads {
        let mut threads = Threads::new();
        for each in [&mut threads.idle, &mut threads.ended, &mut threads.failed] {
            *each = vec![false; 2];
        }
        threads
    }

    #[test]
    fn who_gives_a_device_up_waits_until_nothing_is_at_work() {
        let mut threads = two();
        threads.note(Event::Ending(0, None), 7, || true);
        threads.note(Event::Idle(0), 7, || true);
        assert_eq!(threads.ending(), None);
        threads.note(Event::Idle(1), 7, || true);
        assert_eq!(threads.ending(), Some(Ending::HandedOver));

        let mut threads = two();
        threads.note(Event::Ending(0, None), 7, || false);
        threads.note(Event::Ended(0, None), 7, || false);
        assert_eq!(threads.ending(), None);
        threads.note(Event::Ended(1, None), 7, || false);
        assert_eq!(threads.ending(), Some(Ending::Stopped));
    }

    #[test]
    fn who_is_told_to_leave_has_handed_the_device_over_once_all_are_idle() {
        let mut threads = two();
        threads.leave();
        threads.note(Event::Idle(1), 7, || true);
        assert_eq!(threads.ending(), None);
        threads.note(Event::Idle(0), 7, || true);
        assert_eq!(threads.ending(), Some(Ending::HandedOver));
        // One that is being stopped stays so.
        let mut threads = two();
        threads.note(Event::Ending(0, None), 7, || false);
        threads.leave();
        assert_eq!(threads.fate, Some(Ending::Stopped));
    }

    #[derive(Debug, Default)]
    struct Heard(std::sync::Mutex<Vec<u64>>);

    impl Called for Heard {
        fn id(&self) -> u64 {
            0
        }

        fn call(&self, value: u64) -> bool {
            self.0.lock().unwrap().push(value);
            true
        }
    }

    #[test]
    fn those_are_called_whom_it_concerns() {
        let heard = [(); 3].map(|()| Arc::<Heard>::default());
        let mut threads = two();
        let caller =
            |heard: &Arc<Heard>, unheard| Caller { thread: Arc::clone(heard) as _, unheard };
        let flags = [Some(false), Some(true), None];
        let flags = flags.map(|flag| flag.map(|flag| Arc::new(AtomicBool::new(flag))));
        threads.callers = heard.iter().zip(flags).map(|(it, flag)| caller(it, flag)).collect();
        threads.go();
        threads.look();
        threads.attend();
        threads.leave();
        let heard = heard.map(|it| it.0.lock().unwrap().clone());
        let wanted = [vec![GO, ATTEND, LEAVE], vec![GO, LOOK, ATTEND, LEAVE], vec![GO, LEAVE]];
        assert_eq!(heard, wanted);
    }

    /// The driver waits for results that it has refused: nothing is handed over so, and nothing ends by itself.
    #[test]
    fn a_queue_that_fails_ends_the_device_at_once() {
        for before in [&[][..], &[Event::Ending(1, None), Event::Idle(0), Event::Idle(1)]] {
            let mut threads = two();
            before.iter().for_each(|event| threads.note(*event, 7, || true));
            threads.note(Event::Ending(0, Some(libc::ENOMEM)), 7, || true);
            assert_eq!(threads.ending(), Some(Ending::Failed), "{before:?}");
            assert_eq!((threads.error, threads.all_ended()), (Some(libc::ENOMEM), false));
        }
    }
}
