//! Entries of 128 bytes on the first ring, further rings, and turns taken by the caller.

mod recorder;

use reactor::{Complete, Config, Drive, Reactor};
use recorder::{Calls, Recorder, config, reactor};
use std::cell::{Cell, RefCell};
use std::io::{Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};
use uring::{Kind, RingOptions, SqPoll, entry};

const KINDS: [Kind; 2] = [Kind::Mixed, Kind::Big];

/// Notes results with their further word.
#[derive(Default)]
struct Commands(RefCell<Vec<(u64, i32, u64)>>);

impl Complete for Commands {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        panic!("what rings complete comes with the further word");
    }
    fn complete_command(&self, token: u64, result: i32, _flags: u32, extra: u64) {
        self.0.borrow_mut().push((token, result, extra));
    }
}

impl Commands {
    fn sorted(&self) -> Vec<(u64, i32, u64)> {
        let mut seen = self.0.borrow().clone();
        seen.sort_unstable();
        seen
    }
}

/// Whether the kernel's no-operations have a further word (6.18).
fn has_wide_nops() -> bool {
    let reactor = driven(&Config { kind: Kind::Big, ..config() });
    let seen = Rc::new(Commands::default());
    // SAFETY: a no-operation points to nothing.
    unsafe { reactor.submit_command(entry::big_nop(Some(1)), Rc::clone(&seen) as Rc<_>, 0) };
    drive(&reactor, || !seen.0.borrow().is_empty());
    seen.sorted() == [(0, 0, 1)]
}

fn driven(config: &Config) -> Rc<Reactor> {
    Reactor::new(config).expect("io_uring is allowed where tests run")
}

/// Takes turns until `done`, 20 seconds at most.
fn drive(reactor: &Reactor, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(reactor.turn_for(Drive::Until(end)) || Instant::now() < end, "took too long");
    }
}

#[test]
fn commands_carry_a_further_word_and_more_than_the_queue_holds_is_no_error() {
    let wide = has_wide_nops();
    for kind in KINDS {
        let reactor = driven(&Config { kind, entries: 8, ..config() });
        assert!(reactor.takes_commands());
        let seen = Rc::new(Commands::default());
        for token in 0..500 {
            let sink = Rc::clone(&seen) as Rc<dyn Complete>;
            // SAFETY: no-operations point to nothing.
            unsafe {
                match token % 3 {
                    0 => reactor.submit(entry::nop(), sink, token),
                    1 => reactor.submit_command(entry::big_nop(None), sink, token),
                    _ => {
                        let extra = wide.then_some(token << 40);
                        reactor.submit_command(entry::big_nop(extra), sink, token);
                    }
                }
            }
        }
        drive(&reactor, || seen.0.borrow().len() >= 500);
        let extra = |token| if wide && token % 3 == 2 { token << 40 } else { 0 };
        let expected: Vec<_> = (0..500).map(|token| (token, 0, extra(token))).collect();
        assert_eq!(seen.sorted(), expected, "{kind:?}");
        assert!(!reactor.turn_for(Drive::Poll), "nothing is left");
        assert_eq!(reactor.stats().in_flight, 0);
    }
}

#[test]
fn entries_are_made_in_their_place_as_long_as_there_is_room() {
    let wide = has_wide_nops();
    for further in [false, true] {
        let reactor = driven(&Config { kind: Kind::Big, entries: 8, ..config() });
        let options = RingOptions { kind: Kind::Big, entries: 8, ..RingOptions::default() };
        let ring = reactor.command_ring(&options).expect("allowed");
        let seen = Rc::new(Commands::default());
        let (mut placed, mut sent) = (0, 0);
        for round in 0..20 {
            for _ in 0..=round {
                let entry = entry::big_nop(wide.then_some(sent << 40));
                let (sink, fill) = (Rc::clone(&seen) as _, |place: &mut _| *place = entry);
                // SAFETY: no-operations point to nothing.
                let outcome = unsafe {
                    match further {
                        false => reactor.place_command(sink, sent, fill),
                        true => ring.place_command(sink, sent, fill),
                    }
                };
                placed += u64::from(outcome.is_ok());
                if let Err(sink) = outcome {
                    // SAFETY: as above.
                    unsafe {
                        match further {
                            false => reactor.submit_command(entry, sink, sent),
                            true => ring.submit_command(entry, sink, sent),
                        }
                    }
                }
                sent += 1;
            }
            drive(&reactor, || seen.0.borrow().len() as u64 == sent);
        }
        let extra = |token| if wide { token << 40 } else { 0 };
        let expected: Vec<_> = (0..sent).map(|token| (token, 0, extra(token))).collect();
        assert_eq!(seen.sorted(), expected);
        // Each round's first eight at least; the ninth finds the ring full.
        let least: u64 = (1..=20).map(|count: u64| count.min(8)).sum();
        assert!((least..sent).contains(&placed), "{placed} of {sent}");
        assert_eq!(Rc::strong_count(&seen), 1, "sinks that came back are let go of as well");
        assert!(reactor.stats().submitted >= sent, "they are counted");
        assert_eq!(ring.in_flight(), 0);
    }
}

#[test]
fn where_entries_cannot_be_made_in_place_the_sink_comes_back() {
    let never = |_: &mut uring::BigEntry| panic!("there is no place");
    let seen = Rc::new(Commands::default());
    let sink = || Rc::clone(&seen) as Rc<dyn Complete>;
    let is_ours = |refused: Result<(), Rc<dyn Complete>>| {
        refused.is_err_and(|sink| std::ptr::addr_eq(Rc::as_ptr(&sink), Rc::as_ptr(&seen)))
    };
    for kind in [Kind::Small, Kind::Mixed] {
        let reactor = driven(&Config { kind, ..config() });
        let options = RingOptions { kind, entries: 8, ..RingOptions::default() };
        let ring = reactor.command_ring(&options).expect("allowed");
        if reactor.setup().kind == Kind::Big {
            // What kernels without mixed rings give.
            continue;
        }
        // SAFETY: nothing is submitted.
        unsafe {
            assert!(is_ours(reactor.place_command(sink(), 1, never)));
            assert!(is_ours(ring.place_command(sink(), 1, never)));
        }
        assert_eq!((reactor.stats().in_flight, ring.in_flight()), (0, 0));
    }
    let reactor = driven(&Config { kind: Kind::Big, ..config() });
    let options = RingOptions { kind: Kind::Big, entries: 8, ..RingOptions::default() };
    let ring = reactor.command_ring(&options).expect("allowed");
    reactor.stop();
    reactor.run();
    // SAFETY: as above.
    unsafe {
        assert!(is_ours(reactor.place_command(sink(), 1, never)), "the reactor has ended");
        assert!(is_ours(ring.place_command(sink(), 1, never)));
    }
}

#[test]
fn a_ring_without_big_entries_refuses_commands_later_and_in_order() {
    let reactor = driven(&config());
    assert!(!reactor.takes_commands());
    let seen = Rc::new(Commands::default());
    let told = Rc::clone(&seen);
    let refused = Rc::new(Calls(move |token, result| told.complete_command(token, result, 0, 0)));
    // SAFETY: no-operations point to nothing.
    unsafe { reactor.submit_command(entry::big_nop(None), refused, 5) };
    assert!(seen.0.borrow().is_empty(), "not from within the call");
    let small = RingOptions { entries: 8, ..RingOptions::default() };
    let ring = reactor.command_ring(&small).expect("allowed");
    // SAFETY: as above.
    unsafe { ring.submit_command(entry::big_nop(None), Rc::clone(&seen) as Rc<_>, 6) };
    drive(&reactor, || seen.0.borrow().len() == 2);
    let unsupported = -libc::EOPNOTSUPP;
    assert_eq!(seen.sorted(), [(5, unsupported, 0), (6, unsupported, 0)]);
}

#[test]
fn a_turn_of_the_callers_ends_when_told() {
    let reactor = driven(&Config { spin: Duration::ZERO, ..config() });
    assert!(!reactor.turn_for(Drive::Poll));
    // A machine that is busy may let the time pass before there is anything to sleep for.
    for _ in 0..100 {
        let begin = Instant::now();
        assert!(!reactor.turn_for(Drive::Until(begin + Duration::from_millis(50))));
        assert!(begin.elapsed() >= Duration::from_millis(50));
        if reactor.stats().sleeps > 0 {
            break;
        }
    }
    assert!(reactor.stats().sleeps >= 1, "it slept, and did not spin");
    let fired = Rc::new(Cell::new(false));
    let fires = Rc::clone(&fired);
    let at = Instant::now() + Duration::from_millis(20);
    reactor.timer(at, Rc::new(Calls(move |_, _| fires.set(true))), 0);
    drive(&reactor, || fired.get());
    assert!(Instant::now() >= at);
    // Another thread wakes one that waits for ever.
    let mailbox = reactor.mailbox();
    let waker = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        assert!(mailbox.post(|reactor| reactor.stop()));
    });
    assert!(reactor.turn_for(Drive::Forever), "the letter");
    assert!(!reactor.turn_for(Drive::Forever), "stopped");
    waker.join().expect("posted");
    reactor.run();
}

#[test]
#[should_panic(expected = "not taken from within a turn")]
fn turns_do_not_nest() {
    let reactor = driven(&config());
    let inner = Rc::downgrade(&reactor);
    let nests = Calls(move |_, _| {
        inner.upgrade().expect("alive").turn_for(Drive::Poll);
    });
    reactor.defer(Rc::new(nests), 0);
    reactor.turn_for(Drive::Forever);
}

/// A further ring whose completions come by interrupt, while the loop sleeps in the first one.
#[test]
fn a_sleeping_loop_is_told_of_completions_on_further_rings() {
    for kind in [Kind::Small, Kind::Mixed, Kind::Big] {
        let reactor = reactor(&Config { spin: Duration::ZERO, ..config() });
        let options = RingOptions { entries: 8, kind, ..RingOptions::default() };
        let ring = reactor.command_ring(&options).expect("allowed");
        assert_eq!(ring.options(), &options, "as asked for, so that it can be found again");
        let (reader, mut writer) = pipe().expect("a pipe");
        let recorder = Recorder::new(&reactor, 3);
        let mut bytes = [[0u8; 1]; 3];
        let source = uring::File::Fd(reader.as_raw_fd());
        for (token, byte) in bytes.iter_mut().enumerate() {
            let read = entry::read(source, byte.as_mut_ptr(), 1, u64::MAX);
            // SAFETY: the byte outlives `run`, which returns when nothing is in flight.
            unsafe { ring.submit(read, Rc::clone(&recorder) as Rc<_>, token as u64) };
        }
        let writing = thread::spawn(move || {
            for byte in [b"a", b"b", b"c"] {
                thread::sleep(Duration::from_millis(60));
                writer.write_all(byte).expect("room");
            }
            writer
        });
        reactor.run();
        writing.join().expect("written");
        assert_eq!(recorder.results(), [(0, 1), (1, 1), (2, 1)], "{kind:?}");
        assert_eq!(bytes.concat().len(), 3);
        let turns = reactor.stats().turns;
        assert!(turns < 100, "{turns} turns for three bytes: the loop did not sleep");
    }
}

/// A file through a ring with a submission thread: plain and registered, own and fixed buffer.
#[test]
fn a_submission_thread_reads_with_registered_file_and_buffer() {
    for kind in [Kind::Small, Kind::Big] {
        let reactor = driven(&config());
        let sqpoll = Some(SqPoll { cpu: None, idle_ms: 2 });
        let options = RingOptions { entries: 4, kind, sqpoll, ..RingOptions::default() };
        let ring = reactor.command_ring(&options).expect("allowed");
        let mut file = tempfile::tempfile().expect("a place for files");
        let blocks: Vec<u8> = (0..64u8).flat_map(|block| [block; 4096]).collect();
        file.write_all(&blocks).expect("room");
        let place = ring.register_file(file.as_raw_fd()).expect("a place");
        let recorder = Recorder::new(&reactor, usize::MAX);
        for round in 0..3 {
            let mut buffers = Vec::new();
            for token in 0..64 {
                let mut buffer = reactor.buffers().allocate(4096).expect("room");
                // By the buffer, or by what the first ring calls it.
                let index = match token % 4 {
                    0 => ring.fixed_index(&buffer),
                    _ => buffer.ensure_registered().and_then(|index| ring.fixed_index_of(index)),
                };
                let index = index.expect("lockable memory");
                let (start, offset) = (buffer.as_mut_ptr(), token * 4096);
                let read = if token % 2 == 0 {
                    entry::read_fixed(place.file(), start, 4096, offset, index)
                } else {
                    entry::read(uring::File::Fd(file.as_raw_fd()), start, 4096, offset)
                };
                // SAFETY: the buffers are kept until all was read.
                unsafe { ring.submit(read, Rc::clone(&recorder) as Rc<_>, token) };
                buffers.push(buffer);
            }
            drive(&reactor, || recorder.seen.borrow().len() == 64 * (round + 1));
            assert!(recorder.seen.borrow().iter().all(|(_, result)| *result == 4096));
            for (token, buffer) in buffers.iter().enumerate() {
                assert!(buffer.as_slice().iter().all(|byte| usize::from(*byte) == token));
            }
            // The thread falls asleep, and is woken by the next round.
            thread::sleep(Duration::from_millis(30));
        }
        ring.unregister_file(place);
        let other = driven(&config());
        let foreign = other.buffers().allocate(4096).expect("room");
        assert_eq!(ring.fixed_index(&foreign), None, "another reactor's memory");
        assert_eq!(ring.fixed_index_of(u16::MAX), None, "more than the pool has");
    }
}

#[test]
fn a_ring_that_polls_is_polled_and_says_what_it_cannot_poll() {
    let reactor = driven(&config());
    let options =
        RingOptions { iopoll: true, kind: Kind::Big, entries: 4, ..RingOptions::default() };
    let ring = reactor.command_ring(&options).expect("allowed");
    let seen = Rc::new(Commands::default());
    let wide = has_wide_nops();
    for token in 0..40 {
        // SAFETY: no-operations point to nothing.
        unsafe {
            let sink = Rc::clone(&seen) as Rc<dyn Complete>;
            ring.submit_command(entry::big_nop(wide.then_some(token + 1)), sink, token);
        }
    }
    let file = tempfile::tempfile().expect("a place for files");
    let mut byte = [0u8];
    let read = entry::read(uring::File::Fd(file.as_raw_fd()), byte.as_mut_ptr(), 1, 0);
    // SAFETY: the byte lives until the read was refused.
    unsafe { ring.submit(read, Rc::clone(&seen) as Rc<_>, 40) };
    drive(&reactor, || seen.0.borrow().len() == 41);
    let seen = seen.sorted();
    let extra = |token| if wide { token + 1 } else { 0 };
    assert!((0..40).all(|token| seen[token as usize] == (token, 0, extra(token))), "{seen:?}");
    let words = ring.options().explain(seen[40].1).expect("the ring is the reason");
    assert!(words.contains("O_DIRECT"), "{words}");
    assert_eq!((ring.in_flight(), reactor.stats().in_flight), (0, 0));
}

/// Dropping waits for both rings: a read that somebody else ends, and one that can be cancelled.
#[test]
fn what_further_rings_hold_is_waited_for_when_the_reactor_goes() {
    for kind in [Kind::Small, Kind::Big] {
        let reactor = driven(&Config { kind, ..config() });
        let options = RingOptions { kind, ..RingOptions::default() };
        let ring = reactor.command_ring(&options).expect("allowed");
        let (mut reader, mut writer) = pipe().expect("a pipe");
        let told = Rc::new(Cell::new(0));
        let sink = || {
            let told = Rc::clone(&told);
            Rc::new(Calls(move |_, result| told.set(told.get() + result)))
        };
        let mut bytes = [0u8; 4];
        let source = uring::File::Fd(reader.as_raw_fd());
        let read = entry::read(source, bytes.as_mut_ptr(), 4, u64::MAX);
        // SAFETY: the bytes outlive the reactor, which waits for the read.
        unsafe { ring.submit(read, sink(), 0) };
        let (begin, begun) = std::sync::mpsc::channel();
        let writing = thread::spawn(move || {
            // An error, too: what failed waits for the read.
            let _ = begun.recv();
            thread::sleep(Duration::from_millis(80));
            writer.write_all(b"four").expect("room");
            writer
        });
        reactor.turn_for(Drive::Poll);
        assert_eq!(reactor.stats().in_flight, 1);
        begin.send(()).expect("awaited");
        drop(reactor);
        assert_eq!((told.get(), &bytes), (4, b"four"), "{kind:?}");
        // The ring is of no use any more, and whoever still has it comes to no harm.
        // SAFETY: a no-operation points to nothing.
        unsafe { ring.submit(entry::nop(), sink(), 1) };
        drop(ring);
        drop(writing.join().expect("written"));
        assert_eq!(reader.read(&mut bytes).expect("closed"), 0);
    }
}

#[test]
fn an_option_that_the_kernel_refuses_is_named() {
    let reactor = driven(&config());
    let sqpoll = Some(SqPoll { cpu: Some(9999), idle_ms: 1 });
    let refused = reactor.command_ring(&RingOptions { sqpoll, ..RingOptions::default() });
    let text = refused.expect_err("there are fewer processors").to_string();
    assert!(text.contains("processor 9999"), "{text}");
}

/// That thread takes entries in its own time: places are given back when it has.
#[test]
fn places_of_files_that_were_left_are_used_again() {
    let reactor = driven(&config());
    let sqpoll = Some(SqPoll { cpu: None, idle_ms: 2 });
    let options = RingOptions { entries: 4, kind: Kind::Small, sqpoll, ..RingOptions::default() };
    let ring = reactor.command_ring(&options).expect("allowed");
    let mut file = tempfile::tempfile().expect("a place for files");
    file.write_all(&[7; 4096]).expect("room");
    let recorder = Recorder::new(&reactor, usize::MAX);
    let mut bytes = [0u8; 4];
    for round in 1..=1100 {
        let place = ring.register_file(file.as_raw_fd()).expect("a place");
        for byte in &mut bytes {
            let read = entry::read(place.file(), byte, 1, 0);
            // SAFETY: the byte is there until all was read.
            unsafe { ring.submit(read, Rc::clone(&recorder) as Rc<_>, 0) };
        }
        ring.unregister_file(place);
        drive(&reactor, || recorder.seen.borrow().len() == 4 * round);
    }
    assert!(recorder.results().iter().all(|(_, result)| *result == 1));
}
