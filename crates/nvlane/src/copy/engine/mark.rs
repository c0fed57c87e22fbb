//! How far a copy is durable: flushes of its targets, and the way back where a flush proves nothing.
//!
//! ```text
//!   epoch --> commands --> Flush --> epoch again: as before?  yes: the mark moves on, and is noted
//!                                                             no:  some of it may be gone; back to the mark
//! ```
//!
//! The epoch is looked at before the first command, and stays the one to compare with while the mark moves on,
//! since a slow piece may hold the mark back behind others that were copied long ago.

use super::{CHECKPOINT_INTERVAL, Engine, FLUSH, FLUSH_INTERVAL, NSID, SAVED, SETBACKS_MAX, State};
use crate::copy::layout::Order;
use crate::copy::shared::Phase;
use crate::copy::watermark::Watermark;
use crate::session::failure_text;
use namespace::Request;
use nvme::{Command, opcode};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Halvings of the interval at most.
const SOONER_MAX: u32 = 5;

impl Engine {
    /// Makes durable what is copied, at the end and now and then before.
    pub(super) fn flush_if_due(&self) {
        let mut state = self.state.borrow_mut();
        let is_flushing = state.flush.left > 0 || state.flush.saving;
        if state.phase != Phase::Copying || is_flushing || state.is_going_back {
            return;
        }
        let is_idle = state.idle.len() == state.pieces.len() && state.mapping.is_none();
        let is_over = Self::is_closing(&state) || state.next >= self.layout.bytes;
        let is_last = is_idle && is_over;
        let is_due = self.reactor.now() >= state.noted + self.flush_interval(&state)
            && state.mark.complete() > state.mark.durable();
        if !is_last && !is_due {
            return;
        }
        state.noted = self.reactor.now();
        state.mark.flush_began();
        if is_last {
            state.phase = Phase::Flushing;
        }
        let volumes = self.targets();
        state.flush.left = volumes.len();
        // One that has failed is not made good by a later one: who cannot write data back tells once, and drops it.
        state.flush.is_last = is_last;
        for volume in volumes {
            let mut request = state.flush.requests.pop().unwrap_or_else(Request::new);
            request.command =
                Command { opcode: opcode::io::FLUSH, nsid: NSID.into(), ..Command::default() };
            request.push(self.this(), FLUSH | volume as u64);
            let way = Rc::clone(&self.ways[volume]);
            drop(state);
            way.queue.submit(request);
            state = self.state.borrow_mut();
        }
    }

    pub(super) fn flushed(&self, request: Box<Request>, volume: usize) {
        let mut state = self.state.borrow_mut();
        if !request.status.is_success() {
            let text = failure_text(
                &*self.ways[volume].namespace,
                "flushing",
                opcode::io::FLUSH,
                request.status,
            );
            state.failure.get_or_insert(text);
            state.flush.failed = true;
        }
        state.flush.requests.push(request);
        state.flush.left -= 1;
        if state.flush.left > 0 {
            return;
        }
        let is_proof = self.epoch() == state.epoch;
        if !state.flush.failed && !is_proof {
            self.note_loss(&mut state);
        }
        let succeeded = !state.flush.failed && is_proof;
        let before = state.mark.durable();
        let durable = state.mark.flush_ended(succeeded);
        if durable > before {
            state.setbacks = 0;
        }
        match &self.keep {
            Some(keep) if succeeded => {
                state.flush.saving = true;
                let counts = self.counts_of(&state);
                let (keep, shared) = (Arc::clone(keep), Arc::clone(&self.shared));
                drop(state);
                let work = move || match keep(durable, counts) {
                    Ok(()) => 0,
                    Err(error) => {
                        tracing::error!("a job's record cannot be written: {error}");
                        shared.stop();
                        -error.raw_os_error().unwrap_or(libc::EIO)
                    }
                };
                self.reactor.blocking(Box::new(work), self.this(), SAVED);
            }
            _ => {
                drop(state);
                self.saved(0);
            }
        }
    }

    /// The record is written, or there is none.
    pub(super) fn saved(&self, result: i32) {
        let mut state = self.state.borrow_mut();
        state.flush.saving = false;
        if result < 0 {
            let error = io::Error::from_raw_os_error(-result);
            state.failure.get_or_insert(format!("the job's record cannot be written: {error}"));
        } else {
            state.counts.durable_bytes = state.mark.durable();
        }
        let is_done = state.mark.durable() >= self.layout.bytes && state.failure.is_none();
        if state.flush.is_last && self.options.verify && is_done && !state.stopping {
            state.phase = Phase::Verifying;
            self.shared.begin_verifying();
            (state.next, state.flush.is_last) = (0, false);
        }
    }

    /// How long work may go on without a flush.
    fn flush_interval(&self, state: &State) -> Duration {
        let usual = if self.keep.is_some() { CHECKPOINT_INTERVAL } else { FLUSH_INTERVAL };
        usual / (1 << state.setbacks.min(SOONER_MAX))
    }

    /// The volumes that are written, each once.
    pub(super) fn targets(&self) -> Vec<usize> {
        let mut volumes: Vec<usize> = self.layout.targets.iter().map(|it| it.volume).collect();
        volumes.sort_unstable();
        volumes.dedup();
        volumes
    }

    /// What changes whenever a target may have lost what it had acknowledged.
    pub(super) fn epoch(&self) -> u64 {
        let epochs = self.targets().into_iter().map(|it| self.ways[it].namespace.volatile_epoch());
        epochs.sum()
    }

    /// A target may have lost what was copied beyond the mark.
    fn note_loss(&self, state: &mut State) {
        state.setbacks += 1;
        state.counts.setbacks += 1;
        let names = self.targets().into_iter().map(|it| self.ways[it].namespace.uri());
        let names = names.collect::<Vec<_>>().join(", ");
        let durable = state.mark.durable();
        let why = "connected anew, without power meanwhile, or data could not be made durable";
        if Self::is_closing(state) {
            tracing::warn!("{names}: {why}: only the first {durable} bytes are surely durable");
        } else if self.layout.order != Order::Free {
            state.failure = Some(format!(
                "{names}: {why}: what was not flushed may be gone, and it has overwritten its source"
            ));
        } else if state.setbacks > SETBACKS_MAX {
            state.failure = Some(format!(
                "{names}: {why}, {SETBACKS_MAX} times and more before any of it was durable"
            ));
        } else {
            if state.counts.setbacks == 1 {
                tracing::warn!("{names}: {why}: copied again from byte {durable} on");
            }
            state.is_going_back = true;
            (state.phase, state.flush.is_last) = (Phase::Copying, false);
        }
    }

    /// Goes on at the mark, once nothing of what came after it is in flight.
    pub(super) fn go_back_if_due(&self) {
        let mut state = self.state.borrow_mut();
        let is_idle = state.idle.len() == state.pieces.len() && state.mapping.is_none();
        if !state.is_going_back || !is_idle {
            return;
        }
        let durable = state.mark.durable();
        state.mark = Watermark::new(durable);
        state.touched = state.touched.max(state.next);
        (state.next, state.counts.done_bytes) = (durable, durable);
        state.map.clear();
        (state.epoch, state.noted) = (self.epoch(), self.reactor.now());
        state.is_going_back = false;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Keep, Outcome, Setup};
    use super::*;
    use crate::copy::layout::{Extent, Layout, Target};
    use crate::copy::shared::{Counts, Shared};
    use crate::copy::spec::Options;
    use crate::copy::throttle::Throttle;
    use namespace::{Data, Namespace, Queue, Sink};
    use nvme::Limits;
    use reactor::{Complete, Config, Drive, Reactor};
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    /// A volume of which so many looks at the epoch find another one, and that may be without Write Zeroes.
    #[derive(Debug)]
    struct Restless {
        child: Arc<dyn Namespace>,
        looks: AtomicU64,
        changes: u64,
        write_zeroes: bool,
    }

    impl Namespace for Restless {
        fn limits(&self) -> Limits {
            let mut limits = self.child.limits();
            limits.commands.write_zeroes &= self.write_zeroes;
            limits
        }

        fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
            Arc::clone(&self.child).open_queue(reactor)
        }

        fn refresh(&self) -> io::Result<bool> {
            self.child.refresh()
        }

        fn resize(&self, bytes: u64) -> io::Result<()> {
            self.child.resize(bytes)
        }

        fn flush(&self) -> io::Result<()> {
            self.child.flush()
        }

        fn uri(&self) -> String {
            self.child.uri()
        }

        fn describe(&self, facts: &mut Vec<(String, String)>) {
            self.child.describe(facts);
        }

        fn uuid(&self) -> Option<[u8; 16]> {
            self.child.uuid()
        }

        fn volatile_epoch(&self) -> u64 {
            self.looks.fetch_add(1, Ordering::Relaxed).min(self.changes)
        }
    }

    /// Copies a MiB to a volume whose epoch changes so often.
    fn copied(changes: u64, order: Order) -> (Outcome, Counts) {
        run(changes, true, order, Options::default())
    }

    /// Copies a MiB of zeroes, which are looked for, to a volume with or without Write Zeroes.
    pub fn copied_sparse(write_zeroes: bool) -> (Outcome, Counts) {
        let options = Options { sparse_bytes: Some(4096), extents: false, ..Options::default() };
        run(0, write_zeroes, Order::Free, options)
    }

    fn run(changes: u64, write_zeroes: bool, order: Order, options: Options) -> (Outcome, Counts) {
        let child = open("mem:1M");
        let restless = Restless { child, looks: AtomicU64::new(0), changes, write_zeroes };
        run_on(Arc::new(restless), None, order, options)
    }

    fn open(uri: &str) -> Arc<dyn Namespace> {
        volume::open(uri, &volume::OpenOptions::default()).unwrap()
    }

    fn run_on(
        target: Arc<dyn Namespace>,
        keep: Option<Keep>,
        order: Order,
        options: Options,
    ) -> (Outcome, Counts) {
        let reactor = Reactor::new(&Config::default()).unwrap();
        run_from(&reactor, open("mem:1M"), target, keep, order, options)
    }

    fn run_from(
        reactor: &Rc<Reactor>,
        source: Arc<dyn Namespace>,
        target: Arc<dyn Namespace>,
        keep: Option<Keep>,
        order: Order,
        options: Options,
    ) -> (Outcome, Counts) {
        let (outcome, shared) = begin(reactor, source, target, keep, order, options);
        reactor.run();
        (outcome.take().expect("it has ended"), shared.now().1)
    }

    /// Nobody waits for these.
    struct Nobody;

    impl Sink for Nobody {
        fn completed(&self, _request: Box<Request>, _state: u64) {}
    }

    /// Stops the reactor, once nobody there has the volume any more.
    struct Stop(Rc<Reactor>, std::sync::Weak<dyn Namespace>);

    impl Complete for Stop {
        fn complete(&self, _: u64, _: i32, _: u32) {
            assert_eq!(self.1.strong_count(), 0, "the copy has ended and keeps its volume");
            self.0.stop();
        }
    }

    /// Begins a copy of a MiB; the reactor stops when it has ended, and says how.
    fn begin(
        reactor: &Rc<Reactor>,
        source: Arc<dyn Namespace>,
        target: Arc<dyn Namespace>,
        keep: Option<Keep>,
        order: Order,
        options: Options,
    ) -> (Rc<RefCell<Option<Outcome>>>, Arc<Shared>) {
        const BYTES: u64 = 1 << 20;
        let shared = Arc::new(Shared::new(options.throttle));
        let outcome = Rc::new(RefCell::new(None));
        let of_target = Arc::downgrade(&target);
        let setup = Setup {
            volumes: vec![source, target],
            layout: Layout {
                extents: vec![Extent { volume: 0, offset: 0, bytes: BYTES, start: 0 }],
                targets: vec![Target { volume: 1, offset: 0 }],
                bytes: BYTES,
                padded: vec![BYTES],
                order,
            },
            options,
            from: 0,
            before: Counts::default(),
            shared: Arc::clone(&shared),
            keep,
            watch: None,
        };
        let (end, told) = (Rc::clone(reactor), Rc::clone(&outcome));
        let ended = move |outcome| {
            *told.borrow_mut() = Some(outcome);
            // In a later turn, when the copy is gone.
            let stop = Rc::new(Stop(Rc::clone(&end), of_target));
            end.timer(end.now() + Duration::from_millis(10), stop, 0);
        };
        Engine::start(reactor, setup, Box::new(ended)).unwrap();
        (outcome, shared)
    }

    #[test]
    fn a_copy_that_is_ended_while_it_waits_for_memory_keeps_no_volume() {
        let reactor = Reactor::new(&Config::default()).unwrap();
        let take = || reactor.buffers().allocate(1 << 20);
        let held: Vec<_> = std::iter::from_fn(take).collect();
        let options = Options { read_write: true, extents: false, ..Options::default() };
        let (outcome, shared) =
            begin(&reactor, open("mem:1M"), open("mem:1M"), None, Order::Free, options);
        let stopper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            shared.stop();
        });
        reactor.run();
        stopper.join().unwrap();
        assert_eq!(outcome.take(), Some(Outcome::Stopped(0)));
        assert!(!held.is_empty());
    }

    /// Somebody's write has its blocks, and hangs.
    #[test]
    fn a_copy_that_waits_for_blocks_can_be_stopped() {
        let target = tempfile::NamedTempFile::new().unwrap();
        target.as_file().set_len(1 << 20).unwrap();
        let source = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(source.path(), vec![7; 1 << 20]).unwrap();
        let [source, target] = [&source, &target].map(|file| file.path().display().to_string());
        let (source, target) = (open(&source), open(&format!("delay:write=30s({target})")));
        let reactor = Reactor::new(&Config::default()).unwrap();
        let queue = Arc::clone(&target).open_queue(&reactor).unwrap();
        let mut write = Request::new();
        write.command = Command::blocks(opcode::io::WRITE, NSID, 0, 1);
        write.data = Data::Buffer(reactor.buffers().allocate(512).unwrap());
        write.push(Rc::new(Nobody), 0);
        queue.submit(write);
        let options = Options { extents: false, ..Options::default() };
        let (outcome, shared) = begin(&reactor, source, target, None, Order::Free, options);
        let turn_for = |time| {
            let until = Instant::now() + time;
            while outcome.borrow().is_none() && Instant::now() < until {
                reactor.turn_for(Drive::Until(until));
            }
        };
        turn_for(Duration::from_millis(200));
        assert!(shared.now().1.command_bytes > 0, "it has sent its Copy");
        shared.stop();
        turn_for(Duration::from_secs(20));
        assert_eq!(outcome.take(), Some(Outcome::Stopped(0)));
    }

    #[test]
    fn a_flush_that_proves_nothing_is_not_believed() {
        // Looks: at the start, after the flush, and when it goes on at the mark.
        for (changes, setbacks) in [(0, 0), (1, 1), (2, 1), (3, 2), (9, 5)] {
            let (outcome, counts) = copied(changes, Order::Free);
            assert_eq!(outcome, Outcome::Done(None), "{changes}");
            assert_eq!(counts.setbacks, setbacks, "{changes}");
            let sent = counts.command_bytes + counts.written_bytes;
            assert_eq!(sent, (setbacks + 1) << 20, "{changes}: {counts:?}");
            assert_eq!((counts.done_bytes, counts.durable_bytes), (1 << 20, 1 << 20));
        }
    }

    #[test]
    fn a_flush_that_failed_is_not_made_good_by_the_next() {
        let kept = Arc::new(AtomicU64::new(0));
        let noted = Arc::clone(&kept);
        let keep: Keep = Arc::new(move |durable, _| {
            noted.store(durable, Ordering::Relaxed);
            Ok(())
        });
        // So slow that it is flushed on the way, too.
        let throttle = Throttle::Rate(384 << 10);
        let options = Options { request_bytes: Some(64 << 10), throttle, ..Options::default() };
        let target = open("fault:op=flush,count=1(mem:1M)");
        let (outcome, counts) = run_on(target, Some(keep), Order::Free, options);
        let Outcome::Failed(failure, 0) = outcome else { panic!("{outcome:?}") };
        assert!(failure.contains("flushing"), "{failure}");
        assert!(counts.done_bytes > 0, "it failed on the way");
        assert_eq!((counts.durable_bytes, kept.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn a_percentage_of_the_time_is_kept_between_commands() {
        let copied_at = |percent| {
            let (request_bytes, throttle) = (Some(64 << 10), Throttle::Percent(percent));
            let options = Options { requests: 1, request_bytes, throttle, ..Options::default() };
            let begun = Instant::now();
            let target = open("delay:write=20ms(mem:1M)");
            let (outcome, _) = run_on(target, None, Order::Free, options);
            assert_eq!(outcome, Outcome::Done(None));
            begun.elapsed()
        };
        // Sixteen commands, and no wait after the last: 0.32 s, and 1.22 at a quarter; more where others are busy.
        let quarter = copied_at(25);
        assert!(quarter >= Duration::from_millis(1100), "{quarter:?}");
        let mut whole = (0..5).map(|_| copied_at(100));
        assert!(whole.any(|whole| whole * 2 < quarter), "100 % takes half of {quarter:?} and more");
    }

    /// What was written before the loss may be there, and the source may be another by now.
    #[test]
    fn a_target_is_zero_only_where_nothing_was_copied_yet() {
        let hole = tempfile::NamedTempFile::new().unwrap();
        hole.as_file().set_len(1 << 20).unwrap();
        for (changes, zeroed) in [(0, 0), (1, 1 << 20)] {
            let source = open(hole.path().to_str().unwrap());
            let (child, looks) = (open("mem:1M"), AtomicU64::new(0));
            let target = Arc::new(Restless { child, looks, changes, write_zeroes: true });
            let options = Options { target_is_zero: true, ..Options::default() };
            let reactor = Reactor::new(&Config::default()).unwrap();
            let (outcome, counts) = run_from(&reactor, source, target, None, Order::Free, options);
            assert_eq!(outcome, Outcome::Done(None));
            assert_eq!((counts.skipped_bytes, counts.zeroed_bytes), (1 << 20, zeroed));
        }
    }

    #[test]
    fn it_does_not_go_back_for_ever() {
        let (outcome, counts) = copied(u64::MAX, Order::Free);
        let Outcome::Failed(failure, 0) = outcome else { panic!("{outcome:?}") };
        assert!(failure.contains("16 times"), "{failure}");
        assert!(counts.setbacks > u64::from(SETBACKS_MAX) && counts.durable_bytes == 0);
    }

    #[test]
    fn what_has_overwritten_its_source_is_not_copied_again() {
        let (outcome, counts) = copied(1, Order::Forwards);
        let Outcome::Failed(failure, 0) = outcome else { panic!("{outcome:?}") };
        assert!(failure.contains("overwritten"), "{failure}");
        assert_eq!(counts.command_bytes + counts.written_bytes, 1 << 20);
    }
}
