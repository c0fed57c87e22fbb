//! What the kernel holds is not freed before it lets go, and everything is freed then.

use crate::recorder;

use reactor::{Buffer, Complete, Interest, Reactor};
use recorder::{Calls, Recorder, config, reactor};
use std::cell::{Cell, RefCell};
use std::io::{Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};
use uring::{File, RingOptions, entry};

/// Owns the buffers of reads in flight, and counts the results.
struct Reads {
    buffers: RefCell<Vec<Option<Buffer>>>,
    ended: Rc<Cell<usize>>,
}

impl Complete for Reads {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        self.ended.set(self.ended.get() + 1);
        drop(self.buffers.borrow_mut()[token as usize].take());
    }
}

/// Starts `count` reads of a pipe that nobody writes to, and keeps nothing of them.
fn start_reads(reactor: &Rc<Reactor>, count: usize, fd: i32) -> Rc<Cell<usize>> {
    let ended: Rc<Cell<usize>> = Rc::default();
    let reads = Rc::new(Reads { buffers: RefCell::default(), ended: Rc::clone(&ended) });
    for token in 0..count {
        let mut buffer = reactor.buffers().allocate(4096).expect("room");
        let entry = entry::read(File::Fd(fd), buffer.as_mut_ptr(), 4096, 0);
        reads.buffers.borrow_mut().push(Some(buffer));
        // SAFETY: the sink owns the buffer and gives it up when told.
        unsafe { reactor.submit(entry, Rc::clone(&reads) as Rc<_>, token as u64) };
    }
    ended
}

#[test]
fn eighteen_reads_in_flight_end_and_their_buffers_come_back() {
    let stopping = reactor(&config());
    let (reader, writer) = pipe().expect("a pipe");
    let ended = start_reads(&stopping, 18, reader.as_raw_fd());
    let (total, before) = (stopping.buffers().capacity(), stopping.buffers().available());
    assert_eq!(total - before, 18 * 4096);
    let handle = Rc::clone(&stopping);
    let reader = Cell::new(Some(reader));
    let stop = Calls(move |_, _| {
        assert_eq!(handle.stats().in_flight, 18);
        // Nobody cares for the file any more, and the kernel reads on.
        drop(reader.take());
        handle.stop();
    });
    stopping.timer(Instant::now() + Duration::from_millis(10), Rc::new(stop), 0);
    stopping.run();
    assert_eq!((ended.get(), stopping.stats().in_flight), (18, 0));
    assert_eq!(stopping.buffers().available(), total);
    drop(writer);
    assert_eq!(Rc::strong_count(&stopping), 1, "nothing holds the reactor any more");
}

#[test]
fn a_reactor_dropped_without_running_waits_too() {
    let dropped = reactor(&config());
    let (reader, writer) = pipe().expect("a pipe");
    let ended = start_reads(&dropped, 18, reader.as_raw_fd());
    let closer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(writer);
    });
    drop(dropped);
    assert_eq!(ended.get(), 18);
    closer.join().expect("closed");
}

#[test]
fn files_written_before_the_stop_are_whole() {
    let path = std::env::temp_dir().join(format!("reactor-{}-stop", std::process::id()));
    let file = std::fs::File::create(&path).expect("a scratch file");
    let stopping = reactor(&config());
    let results: Rc<RefCell<Vec<i32>>> = Rc::default();
    for place in 0..18u64 {
        let mut buffer = stopping.buffers().allocate(128 << 10).expect("room");
        buffer.as_mut_slice().fill(place as u8 + 1);
        let fd = File::Fd(file.as_raw_fd());
        let entry = entry::write(fd, buffer.as_ptr(), 128 << 10, place * (128 << 10), 0);
        let (results, held) = (Rc::clone(&results), Cell::new(Some(buffer)));
        let sink = Calls(move |_, result| {
            held.take();
            results.borrow_mut().push(result);
        });
        // SAFETY: the sink owns the buffer and gives it up when told.
        unsafe { stopping.submit(entry, Rc::new(sink), place) };
    }
    stopping.stop();
    stopping.run();
    let bytes = std::fs::read(&path).expect("readable");
    std::fs::remove_file(&path).expect("ours");
    assert_eq!(*results.borrow(), [128 << 10; 18]);
    assert_eq!(bytes.len(), 18 * (128 << 10));
    assert!(bytes.chunks(128 << 10).zip(1..).all(|(chunk, n)| chunk.iter().all(|b| *b == n)));
}

#[test]
fn what_starts_too_late_is_refused_and_watches_end() {
    let stopping = reactor(&config());
    let (reader, _writer) = pipe().expect("a pipe");
    let late: Rc<RefCell<Vec<(u64, i32)>>> = Rc::default();
    let note = Rc::clone(&late);
    let noting: Rc<dyn Complete> =
        Rc::new(Calls(move |token, result| note.borrow_mut().push((token, result))));
    let (this, fd, sink) = (Rc::clone(&stopping), reader.as_raw_fd(), Rc::clone(&noting));
    let on_cancel = Calls(move |_, result| {
        assert_eq!(result, -libc::ECANCELED);
        this.watch(fd, Interest::READ, Rc::clone(&sink), 1);
        // SAFETY: a no-operation points to nothing.
        unsafe { this.submit(entry::nop(), Rc::clone(&sink), 2) };
        this.blocking(Box::new(|| 0), Rc::clone(&sink), 3);
    });
    stopping.watch(reader.as_raw_fd(), Interest::READ, Rc::new(on_cancel), 0);
    stopping.blocking(Box::new(|| 5), Rc::clone(&noting), 4);
    let handle = Rc::clone(&stopping);
    let stop = Calls(move |_, _| handle.stop());
    stopping.timer(Instant::now() + Duration::from_millis(5), Rc::new(stop), 0);
    stopping.run();
    let mut late = late.borrow().clone();
    late.sort_unstable();
    let refused = -libc::ECANCELED;
    assert_eq!(late, [(1, refused), (2, refused), (3, refused), (4, 5)]);
}

#[test]
fn blocking_work_is_waited_for() {
    let stopping = reactor(&config());
    let result: Rc<Cell<i32>> = Rc::default();
    let seen = Rc::clone(&result);
    let work = || {
        std::thread::sleep(Duration::from_millis(50));
        42
    };
    let sink = Calls(move |_, result| seen.set(result));
    stopping.blocking(Box::new(work), Rc::new(sink), 0);
    stopping.stop();
    stopping.run();
    assert_eq!(result.get(), 42);
}

/// Starts eight operations, of which the fourth panics when told, and returns which were told by
/// the time the reactor has gone.
fn told_around_a_panic(start: impl FnOnce(&Rc<Reactor>, &Rc<dyn Complete>)) -> Vec<u64> {
    let panicking = reactor(&config());
    let told: Rc<RefCell<Vec<u64>>> = Rc::default();
    let note = Rc::clone(&told);
    let sink: Rc<dyn Complete> = Rc::new(Calls(move |token, _| {
        note.borrow_mut().push(token);
        assert_ne!(token, 3, "this one panics");
    }));
    start(&panicking, &sink);
    let ran = catch_unwind(AssertUnwindSafe(|| panicking.run()));
    assert!(ran.is_err(), "it panicked");
    drop(panicking);
    let mut told = told.borrow().clone();
    told.sort_unstable();
    told
}

#[test]
fn a_sink_that_panics_takes_nobody_elses_completion_along() {
    const ALL: [u64; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
    let by_ring = told_around_a_panic(|reactor, sink| {
        for token in ALL {
            // SAFETY: a no-operation points to nothing.
            unsafe { reactor.submit(entry::nop(), Rc::clone(sink), token) };
        }
    });
    assert_eq!(by_ring, ALL);
    let by_further_ring = told_around_a_panic(|reactor, sink| {
        let ring = reactor.command_ring(&RingOptions::default()).expect("a plain ring");
        for token in ALL {
            // SAFETY: as above.
            unsafe { ring.submit(entry::nop(), Rc::clone(sink), token) };
        }
    });
    assert_eq!(by_further_ring, ALL);
    let deferred = told_around_a_panic(|reactor, sink| {
        for token in ALL {
            reactor.defer(Rc::clone(sink), token);
        }
    });
    assert_eq!(deferred, ALL);
    let blocking = told_around_a_panic(|reactor, sink| {
        for token in ALL {
            reactor.blocking(Box::new(|| 0), Rc::clone(sink), token);
        }
    });
    assert_eq!(blocking, ALL);
}

#[test]
fn an_operation_that_is_cancelled_ends_and_others_go_on() {
    let reactor = reactor(&config());
    let (near, far) = UnixStream::pair().expect("sockets");
    let recorder = Recorder::new(&reactor, 3);
    let mut buffers: Vec<_> =
        (0..2).map(|_| reactor.buffers().allocate(4096).expect("room")).collect();
    let mut start = |token: usize, socket: &UnixStream| {
        let entry = entry::read(File::Fd(socket.as_raw_fd()), buffers[token].as_mut_ptr(), 4096, 0);
        // SAFETY: the buffers are dropped when the reactor has ended what is in flight.
        unsafe { reactor.start(entry, Rc::clone(&recorder) as Rc<_>, token as u64) }
    };
    let cancelled = start(0, &near);
    start(1, &far);
    let (handle, told, near) = (Rc::clone(&reactor), Rc::clone(&recorder), near);
    let later = Calls(move |_, _| {
        handle.cancel(cancelled);
        handle.cancel(cancelled);
        (&near).write_all(b"for the other").expect("room in a socket");
        told.complete(2, 0, 0);
    });
    reactor.timer(Instant::now() + Duration::from_millis(10), Rc::new(later), 0);
    reactor.run();
    assert_eq!(recorder.results(), [(0, -libc::ECANCELED), (1, 13), (2, 0)]);
    // Its place is another's by now, or nobody's.
    reactor.cancel(cancelled);
}
