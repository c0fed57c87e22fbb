//! A ring that is emulated, beside the kernel's: the same entries, the same results.

mod filter;

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs::File as Open;
use std::io::{Read, Seek, SeekFrom, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use uring::{Completion, Entry, File, Ring, Wait, entry};

const POLLIN: i32 = libc::POLLIN as i32;
const POLLOUT: i32 = libc::POLLOUT as i32;

fn emulated(entries: u32) -> Ring {
    Ring::emulated(entries, || {}).expect("epoll is allowed everywhere")
}

/// Both kinds.
fn both(entries: u32) -> [Ring; 2] {
    [Ring::new(entries).expect("io_uring is allowed where tests run"), emulated(entries)]
}

fn push(ring: &mut Ring, entry: &Entry) {
    // SAFETY: what entries of these tests point to outlives the ring, or what is waited for.
    unsafe { ring.push(entry) }.expect("room");
}

/// The next `count` completions, by their `user_data`.
fn next(ring: &mut Ring, count: usize) -> BTreeMap<u64, i32> {
    let until = Instant::now() + Duration::from_secs(30);
    let mut completions = Vec::with_capacity(64);
    let mut results = BTreeMap::new();
    while results.len() < count {
        assert!(Instant::now() < until, "{count} wanted, {results:?} came");
        ring.enter(Wait::AtMost(Duration::from_secs(1))).expect("sound");
        ring.reap(&mut completions);
        for Completion { user_data, result, .. } in completions.drain(..) {
            assert_eq!(results.insert(user_data, result), None, "{user_data} came twice");
        }
    }
    results
}

fn one(ring: &mut Ring, entry: Entry) -> i32 {
    push(ring, &entry.user_data(7));
    next(ring, 1)[&7]
}

/// An operation on a file of some blocks.
#[derive(Clone, Debug)]
enum Step {
    Read { offset: u64, len: u32 },
    Readv { offset: u64, lens: Vec<usize> },
    Write { offset: u64, len: u32, byte: u8, flags: i32 },
    Writev { offset: u64, lens: Vec<usize>, byte: u8 },
    Sync { data_only: bool },
    Allocate { mode: i32, offset: u64, len: u64 },
    Poll { events: u32 },
    Nop,
    Cancel,
    Unpoll,
    Fixed,
    Unknown { code: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let offset = 0..20_000u64;
    let lens = prop::collection::vec(0..3000usize, 0..4);
    prop_oneof![
        (offset.clone(), 0..9000u32).prop_map(|(offset, len)| Step::Read { offset, len }),
        (offset.clone(), lens.clone()).prop_map(|(offset, lens)| Step::Readv { offset, lens }),
        (
            offset.clone(),
            0..9000u32,
            any::<u8>(),
            prop_oneof![Just(0), Just(libc::RWF_DSYNC), Just(1 << 30)]
        )
            // Of no bytes, the calls look at no flags.
            .prop_filter("flags without bytes", |(_, len, _, flags)| *len > 0 || *flags == 0)
            .prop_map(|(offset, len, byte, flags)| Step::Write {
                offset,
                len,
                byte,
                flags
            }),
        (offset.clone(), lens, any::<u8>()).prop_map(|(offset, lens, byte)| Step::Writev {
            offset,
            lens,
            byte
        }),
        any::<bool>().prop_map(|data_only| Step::Sync { data_only }),
        (prop_oneof![Just(0), Just(3), Just(1), Just(0x100)], offset, 0..9000u64)
            .prop_map(|(mode, offset, len)| Step::Allocate { mode, offset, len }),
        prop_oneof![Just(1u32), Just(4), Just(5), Just(0x2000)]
            .prop_map(|events| Step::Poll { events }),
        Just(Step::Nop),
        Just(Step::Cancel),
        Just(Step::Unpoll),
        Just(Step::Fixed),
        (200..255u8).prop_map(|code| Step::Unknown { code }),
    ]
}

/// Does `step`, and says what came of it: the result, and what was read.
fn done(ring: &mut Ring, file: &Open, step: &Step) -> (i32, Vec<u8>) {
    let at = File::Fd(file.as_raw_fd());
    let vectors = |memory: &mut [Vec<u8>]| -> Vec<libc::iovec> {
        memory
            .iter_mut()
            .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
            .collect()
    };
    match step {
        Step::Read { offset, len } => {
            let mut memory = vec![0; *len as usize];
            let result = one(ring, entry::read(at, memory.as_mut_ptr(), *len, *offset));
            (result, memory)
        }
        Step::Readv { offset, lens } => {
            let mut memory: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
            let parts = vectors(&mut memory);
            let result = one(ring, entry::readv(at, parts.as_ptr(), parts.len() as u32, *offset));
            (result, memory.concat())
        }
        Step::Write { offset, len, byte, flags } => {
            let memory = vec![*byte; *len as usize];
            (one(ring, entry::write(at, memory.as_ptr(), *len, *offset, *flags)), Vec::new())
        }
        Step::Writev { offset, lens, byte } => {
            let mut memory: Vec<Vec<u8>> = lens.iter().map(|len| vec![*byte; *len]).collect();
            let parts = vectors(&mut memory);
            let count = parts.len() as u32;
            (one(ring, entry::writev(at, parts.as_ptr(), count, *offset, 0)), Vec::new())
        }
        Step::Sync { data_only: true } => (one(ring, entry::fdatasync(at)), Vec::new()),
        Step::Sync { data_only: false } => (one(ring, entry::fsync(at)), Vec::new()),
        Step::Allocate { mode, offset, len } => {
            (one(ring, entry::fallocate(at, *mode, *offset, *len)), Vec::new())
        }
        Step::Poll { events } => {
            // Of what always is there, what was asked for.
            (one(ring, entry::poll_add(at, *events | 5)), Vec::new())
        }
        Step::Nop => (one(ring, entry::nop()), Vec::new()),
        Step::Cancel => (one(ring, entry::cancel(99)), Vec::new()),
        Step::Unpoll => (one(ring, entry::poll_remove(99)), Vec::new()),
        Step::Fixed => {
            let mut byte = 0;
            (one(ring, entry::read(File::Fixed(3), &raw mut byte, 1, 0)), Vec::new())
        }
        Step::Unknown { code } => {
            let mut unknown = entry::nop();
            // SAFETY: an entry is the kernel's structure, whose first byte is the code.
            unsafe { (&raw mut unknown).cast::<u8>().write(*code) };
            (one(ring, unknown), Vec::new())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn files_are_as_the_kernel_would_leave_them(steps in prop::collection::vec(step(), 1..24)) {
        let [mut kernel, mut ours] = both(8);
        let mut files = [tempfile::tempfile().expect("a file"), tempfile::tempfile().expect("a file")];
        for step in &steps {
            let theirs = done(&mut kernel, &files[0], step);
            let got = done(&mut ours, &files[1], step);
            prop_assert_eq!(got.0, theirs.0, "{:?}", step);
            prop_assert!(got.1 == theirs.1, "{:?}", step);
        }
        let contents = files.each_mut().map(|file| {
            let mut all = Vec::new();
            file.seek(SeekFrom::Start(0)).expect("a file");
            file.read_to_end(&mut all).expect("readable");
            all
        });
        prop_assert!(contents[0] == contents[1]);
    }
}

#[test]
fn files_past_the_page_cache_and_at_their_own_position() {
    for ring in &mut both(8) {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"0123456789").expect("room");
        file.seek(SeekFrom::Start(2)).expect("a file");
        let at = File::Fd(file.as_raw_fd());
        let mut memory = [0; 4];
        assert_eq!(one(ring, entry::read(at, memory.as_mut_ptr(), 4, u64::MAX)), 4);
        assert_eq!((&memory, file.stream_position().expect("a file")), (b"2345", 6));
        assert_eq!(one(ring, entry::write(at, b"xy".as_ptr(), 2, u64::MAX, 0)), 2);
        assert_eq!(file.stream_position().expect("a file"), 8);
        // Read-only, so that writes fail; closed, so that everything does.
        let place = format!("/proc/self/fd/{}", file.as_raw_fd());
        let readable = Open::open(place).expect("our own");
        let fd = readable.as_raw_fd();
        assert_eq!(one(ring, entry::write(File::Fd(fd), b"z".as_ptr(), 1, 0, 0)), -libc::EBADF);
        drop(readable);
        let nowhere = File::Fd(1 << 20);
        assert_eq!(one(ring, entry::read(nowhere, memory.as_mut_ptr(), 1, 0)), -libc::EBADF);
        assert_eq!(one(ring, entry::poll_add(nowhere, 1)), -libc::EBADF);
        assert_eq!(one(ring, entry::fsync(nowhere)), -libc::EBADF);
        // Beyond what may be mapped.
        let wild = std::ptr::without_provenance_mut(8);
        assert_eq!(one(ring, entry::read(at, wild, 1, 0)), -libc::EFAULT);
    }
}

/// As are those of FUSE.
#[test]
fn a_file_that_can_be_polled_is_read_where_it_was_asked_for() {
    for ring in &mut both(8) {
        let file = Open::open("/proc/sys/kernel/ostype").expect("there");
        let mut memory = [0; 16];
        let read = entry::read(File::Fd(file.as_raw_fd()), memory.as_mut_ptr(), 16, 2);
        assert_eq!(one(ring, read), 4);
        assert_eq!(&memory[..4], b"nux\n");
    }
}

#[test]
fn streams_are_waited_for_and_give_what_has_come() {
    for ring in &mut both(8) {
        let (from, mut to) = pipe().expect("a pipe");
        let mut memory = [0u8; 16];
        let read = |memory: &mut [u8; 16]| {
            entry::read(File::Fd(from.as_raw_fd()), memory.as_mut_ptr(), 16, 0)
        };
        push(ring, &read(&mut memory).user_data(1));
        ring.enter(Wait::AtMost(Duration::from_millis(20))).expect("sound");
        assert!(!ring.has_completions(), "nothing has come");
        to.write_all(b"five.").expect("room");
        assert_eq!(next(ring, 1)[&1], 5);
        assert_eq!(&memory[..5], b"five.");
        // What is there is taken at once, and the end is the end.
        to.write_all(b"more").expect("room");
        assert_eq!(one(ring, read(&mut memory)), 4);
        drop(to);
        assert_eq!(one(ring, read(&mut memory)), 0);
        // Writes of a stream have no offset either.
        let (mut here, there) = UnixStream::pair().expect("sockets");
        assert_eq!(
            one(ring, entry::write(File::Fd(there.as_raw_fd()), b"hi".as_ptr(), 2, 0, 0)),
            2
        );
        let mut two = [0; 2];
        here.read_exact(&mut two).expect("they came");
        assert_eq!(&two, b"hi");
    }
}

#[test]
fn who_polls_is_told_once_and_of_what_was_asked() {
    for ring in &mut both(8) {
        let (here, mut there) = UnixStream::pair().expect("sockets");
        let at = File::Fd(here.as_raw_fd());
        // Several wait for one descriptor, for different things.
        push(ring, &entry::poll_add(at, 1).user_data(1));
        push(ring, &entry::poll_add(at, 1 | 4).user_data(2));
        push(ring, &entry::poll_add(at, 0x2000).user_data(3));
        assert_eq!(next(ring, 1), BTreeMap::from([(2, POLLOUT)]));
        there.write_all(b"x").expect("room");
        assert_eq!(next(ring, 1), BTreeMap::from([(1, POLLIN)]));
        ring.enter(Wait::AtMost(Duration::from_millis(20))).expect("sound");
        assert!(!ring.has_completions(), "each is told once");
        assert_eq!(one(ring, entry::poll_add(at, 1)), POLLIN, "what is there is told at once");
        drop(there);
        let ended = next(ring, 1)[&3];
        assert_eq!(ended & !(libc::POLLHUP as i32), 0x2000, "{ended:#x}");
        // Another file with the number of one that was polled.
        let (first, _writer) = pipe().expect("a pipe");
        let number = first.as_raw_fd();
        push(ring, &entry::poll_add(File::Fd(number), 1).user_data(4));
        push(ring, &entry::poll_remove(4).user_data(5));
        assert_eq!(next(ring, 2), BTreeMap::from([(4, -libc::ECANCELED), (5, 0)]));
        drop(first);
        let (second, mut writer) = pipe().expect("a pipe");
        // SAFETY: both are open; the number is nobody's by now, or ours.
        let moved = unsafe { libc::dup2(second.as_raw_fd(), number) };
        assert_eq!(moved, number);
        writer.write_all(b"y").expect("room");
        assert_eq!(one(ring, entry::poll_add(File::Fd(number), 1)), POLLIN);
        if second.as_raw_fd() != number {
            // SAFETY: made above.
            unsafe { libc::close(number) };
        }
    }
}

#[test]
fn what_waits_can_be_ended() {
    for ring in &mut both(16) {
        let (from, _to) = pipe().expect("a pipe");
        let (other, _its) = pipe().expect("a pipe");
        let mut byte = 0u8;
        let hour = entry::Timespec::from(Duration::from_secs(3600));
        push(ring, &entry::read(File::Fd(from.as_raw_fd()), &raw mut byte, 1, 0).user_data(1));
        push(ring, &entry::poll_add(File::Fd(other.as_raw_fd()), 1).user_data(2));
        push(ring, &entry::timeout(&raw const hour).user_data(3));
        ring.enter(Wait::No).expect("sound");
        push(ring, &entry::cancel(1).user_data(11));
        assert_eq!(next(ring, 2), BTreeMap::from([(1, -libc::ECANCELED), (11, 0)]));
        assert_eq!(one(ring, entry::cancel(1)), -libc::ENOENT);
        push(ring, &entry::cancel(3).user_data(13));
        assert_eq!(next(ring, 2), BTreeMap::from([(3, -libc::ECANCELED), (13, 0)]));
        push(ring, &entry::timeout(&raw const hour).user_data(4));
        push(ring, &entry::poll_add(File::Fd(from.as_raw_fd()), 1).user_data(5));
        ring.enter(Wait::No).expect("sound");
        push(ring, &entry::cancel_any().user_data(14));
        let ended = next(ring, 4);
        let gone = -libc::ECANCELED;
        assert_eq!(ended, BTreeMap::from([(2, gone), (4, gone), (5, gone), (14, 3)]));
    }
}

#[test]
fn times_pass_and_can_be_changed() {
    for ring in &mut both(8) {
        let (soon, hour) = (Duration::from_millis(30), Duration::from_secs(3600));
        let [soon, hour] = [soon, hour].map(entry::Timespec::from);
        let begin = Instant::now();
        push(ring, &entry::timeout(&raw const hour).user_data(1));
        push(ring, &entry::timeout(&raw const soon).user_data(2));
        assert_eq!(next(ring, 1), BTreeMap::from([(2, -libc::ETIME)]));
        assert!(begin.elapsed() >= Duration::from_millis(30));
        let quiet = entry::timeout_update(1, &raw const soon).flags(entry::Flags::SKIP_SUCCESS);
        push(ring, &quiet.user_data(3));
        assert_eq!(next(ring, 1), BTreeMap::from([(1, -libc::ETIME)]), "and not of the update");
        assert_eq!(one(ring, entry::timeout_update(1, &raw const soon)), -libc::ENOENT);
        // A wait ends by itself, and not before.
        let begin = Instant::now();
        ring.enter(Wait::AtMost(Duration::from_millis(30))).expect("sound");
        assert!(begin.elapsed() >= Duration::from_millis(30) && !ring.has_completions());
    }
}

#[test]
fn more_completions_than_there_is_room_for_are_kept() {
    for ring in &mut both(4) {
        assert_eq!(ring.setup().completions, 16);
        for round in 0..10 {
            for number in 0..4 {
                push(ring, &entry::nop().user_data(4 * round + number));
            }
            // The kernel's ring may say that it is busy, and has taken them.
            let _ = ring.enter(Wait::No);
        }
        let all = next(ring, 40);
        assert!(all.into_iter().eq((0..40).map(|number| (number, 0))));
        assert!(!ring.wants_enter());
    }
}

/// As direct reads and writes want it.
#[derive(Clone)]
#[repr(align(4096))]
struct Block([u8; 4096]);

#[test]
fn many_operations_at_once_all_end_also_past_the_page_cache() {
    let place = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    many(place.as_file());
    let mut options = Open::options();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    match options.open(place.path()) {
        Ok(file) => many(&file),
        Err(error) => println!("not checked: O_DIRECT is refused here: {error}"),
    }
}

/// Writes 256 blocks at once, and reads them back.
fn many(file: &Open) {
    let mut ring = emulated(256);
    let at = File::Fd(file.as_raw_fd());
    let mut memory = vec![Block([0u8; 4096]); 256];
    for (number, Block(block)) in memory.iter_mut().enumerate() {
        block.fill(number as u8);
        let offset = 4096 * number as u64;
        push(
            &mut ring,
            &entry::write(at, block.as_ptr(), 4096, offset, 0).user_data(number as u64),
        );
    }
    let written = next(&mut ring, 256);
    assert!(written.values().all(|result| *result == 4096));
    for (number, Block(block)) in memory.iter_mut().enumerate() {
        block.fill(0);
        let offset = 4096 * number as u64;
        push(
            &mut ring,
            &entry::read(at, block.as_mut_ptr(), 4096, offset).user_data(number as u64),
        );
    }
    next(&mut ring, 256);
    let is_whole =
        |(number, Block(block)): (usize, &Block)| block.iter().all(|it| *it == number as u8);
    assert!(memory.iter().enumerate().all(is_whole));
}

#[test]
fn what_waits_has_its_turn_beside_what_ends_at_once() {
    let mut ring = emulated(8);
    let (from, mut to) = pipe().expect("a pipe");
    push(&mut ring, &entry::poll_add(File::Fd(from.as_raw_fd()), 1).user_data(1));
    ring.enter(Wait::No).expect("sound");
    to.write_all(b"x").expect("room");
    push(&mut ring, &entry::nop().user_data(2));
    ring.enter(Wait::Forever).expect("sound");
    let mut completions = Vec::with_capacity(8);
    ring.reap(&mut completions);
    assert_eq!(completions.len(), 2, "{completions:?}");
}

#[test]
fn of_several_reads_of_a_stream_one_has_what_has_come() {
    let mut ring = emulated(8);
    let (from, mut to) = pipe().expect("a pipe");
    let mut memory = [[0u8; 8]; 2];
    for (number, part) in memory.iter_mut().enumerate() {
        let read = entry::read(File::Fd(from.as_raw_fd()), part.as_mut_ptr(), 8, 0);
        push(&mut ring, &read.user_data(number as u64));
    }
    ring.enter(Wait::No).expect("sound");
    to.write_all(b"one").expect("room");
    let first = next(&mut ring, 1);
    to.write_all(b"other").expect("room");
    let second = next(&mut ring, 1);
    let lens: Vec<i32> = first.into_values().chain(second.into_values()).collect();
    assert_eq!(lens, [3, 5]);
}

#[test]
fn what_no_thread_can_be_had_for_was_not_begun() {
    let thread = std::thread::spawn(|| {
        filter::refuse(libc::SYS_clone3, libc::EAGAIN);
        let mut ring = emulated(8);
        let file = tempfile::tempfile().expect("a file");
        one(&mut ring, entry::fsync(File::Fd(file.as_raw_fd())))
    });
    assert_eq!(thread.join().expect("no panic"), -libc::ECANCELED);
}

#[test]
fn what_it_has_not_is_refused_as_by_a_kernel_without() {
    let mut ring = emulated(8);
    assert!(ring.setup().emulated && !ring.takes_big());
    assert!(ring.supports(uring::code::PollAdd::CODE) && !ring.supports(uring::code::SendZc::CODE));
    let unsupported = |result: std::io::Result<()>| {
        assert_eq!(result.expect_err("there is no kernel").raw_os_error(), Some(libc::EOPNOTSUPP));
    };
    unsupported(ring.register_files(4));
    unsupported(ring.register_buffers(4));
    unsupported(ring.update_file(0, 0));
    let mut byte = 0u8;
    let fd = File::Fd(0);
    assert_eq!(one(&mut ring, entry::read_fixed(fd, &raw mut byte, 1, 0, 0)), -libc::EFAULT);
    assert_eq!(one(&mut ring, entry::uring_cmd(fd, 0, 0, [0; 16])), -libc::EOPNOTSUPP);
    let linked = entry::nop().flags(entry::Flags::IO_LINK);
    assert_eq!(one(&mut ring, linked), -libc::EINVAL);
}

#[test]
fn a_loop_elsewhere_is_told_by_the_rings_descriptor() {
    let mut ring = emulated(8);
    // SAFETY: makes a new descriptor.
    let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    // SAFETY: just made, and nobody else's.
    let mut event = unsafe { <Open as std::os::fd::FromRawFd>::from_raw_fd(event) };
    ring.register_eventfd(std::os::fd::AsFd::as_fd(&event)).expect("once");
    let again = ring.register_eventfd(std::os::fd::AsFd::as_fd(&event));
    assert_eq!(again.expect_err("one per ring").raw_os_error(), Some(libc::EBUSY));
    let is_readable = |ring: &Ring, limit: i32| {
        let mut place = libc::pollfd { fd: ring.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid place.
        (unsafe { libc::poll(&raw mut place, 1, limit) }) == 1
    };
    assert!(!is_readable(&ring, 0));
    // By the eventfd, by a thread that has ended something, by a descriptor that is ready.
    event.write_all(&1u64.to_ne_bytes()).expect("room");
    assert!(is_readable(&ring, 0));
    assert!(ring.flush().expect("sound") && !is_readable(&ring, 0));
    let file = tempfile::tempfile().expect("a file");
    push(&mut ring, &entry::fsync(File::Fd(file.as_raw_fd())).user_data(1));
    ring.flush().expect("sound");
    assert!(is_readable(&ring, 30_000));
    assert_eq!(next(&mut ring, 1), BTreeMap::from([(1, 0)]));
    let (from, mut to) = pipe().expect("a pipe");
    push(&mut ring, &entry::poll_add(File::Fd(from.as_raw_fd()), 1).user_data(2));
    ring.flush().expect("sound");
    assert!(!is_readable(&ring, 0));
    to.write_all(b"x").expect("room");
    assert!(is_readable(&ring, 30_000));
    assert_eq!(next(&mut ring, 1), BTreeMap::from([(2, POLLIN)]));
}
