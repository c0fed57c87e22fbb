//! Rings that poll for completions, and rings whose entries a thread of the kernel takes.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use uring::{Completion, Error, Kind, Ring, RingOption, RingOptions, SqPoll, Wait, entry};

/// Waits for one completion, 20 seconds at most.
fn one(ring: &mut Ring) -> Completion {
    let begin = Instant::now();
    let mut completions = Vec::with_capacity(1);
    while completions.is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(20), "nothing was completed");
        ring.enter(Wait::No).expect("sound");
        ring.reap(&mut completions);
    }
    completions[0]
}

fn read(ring: &mut Ring, file: uring::File, bytes: &mut [u8], user_data: u64) -> Completion {
    let entry = entry::read(file, bytes.as_mut_ptr(), bytes.len() as u32, 0).user_data(user_data);
    // SAFETY: the bytes outlive the operation, whose completion is waited for.
    unsafe { ring.push(&entry) }.expect("room");
    one(ring)
}

fn file(contents: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a place for files");
    file.write_all(contents).expect("room");
    file
}

#[test]
fn a_thread_of_the_kernel_submits_and_is_woken() {
    for kind in [Kind::Small, Kind::Big] {
        let sqpoll = Some(SqPoll { cpu: Some(0), idle_ms: 1 });
        let options = RingOptions { entries: 8, kind, sqpoll, ..RingOptions::default() };
        let mut ring = Ring::with_options(&options).expect("io_uring is allowed where tests run");
        assert!(ring.setup().sqpoll && !ring.setup().defer_taskrun);
        let file = file(b"contents");
        ring.register_files(4).expect("a table");
        ring.update_file(2, file.as_raw_fd()).expect("a place");
        for (number, source) in [uring::File::Fd(file.as_raw_fd()), uring::File::Fixed(2)]
            .into_iter()
            .cycle()
            .take(6)
            .enumerate()
        {
            let mut bytes = [0; 16];
            let completion = read(&mut ring, source, &mut bytes, number as u64);
            assert_eq!((completion.user_data, completion.result), (number as u64, 8));
            assert_eq!(&bytes[..8], b"contents");
            // The thread goes to sleep in between, and the next entry has to wake it.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_processor_that_is_not_there_is_named() {
    let sqpoll = Some(SqPoll { cpu: Some(100_000), idle_ms: 1 });
    let refused = Ring::with_options(&RingOptions { sqpoll, ..RingOptions::default() });
    match refused {
        Err(error @ Error::OptionRefused { option: RingOption::Processor(100_000), .. }) => {
            assert!(error.to_string().contains("processor 100000"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_cannot_be_polled_is_refused_in_words() {
    for hybrid_iopoll in [false, true] {
        let options = RingOptions { iopoll: true, hybrid_iopoll, ..RingOptions::default() };
        let mut ring = match Ring::with_options(&options) {
            Ok(ring) => ring,
            Err(Error::OptionRefused { option: RingOption::Hybrid, .. }) if hybrid_iopoll => return,
            Err(error) => panic!("{error}"),
        };
        assert!(ring.setup().iopoll);
        let file = file(b"contents");
        let source = uring::File::Fd(file.as_raw_fd());
        let completion = read(&mut ring, source, &mut [0; 8], 7);
        assert_eq!((completion.user_data, completion.result), (7, -libc::EOPNOTSUPP));
        let words = options.explain(completion.result).expect("the ring is the reason");
        assert!(words.contains("O_DIRECT") && words.contains("poll_queues"), "{words}");
        assert_eq!(options.explain(-libc::EIO), None);
        // The ring works all the same.
        // SAFETY: a no-operation points to nothing.
        unsafe { ring.push(&entry::nop().user_data(8)) }.expect("room");
        assert_eq!(one(&mut ring).user_data, 8);
    }
}

#[test]
fn a_shared_ring_is_used_by_threads_in_turn() {
    struct Handed(Ring);
    // SAFETY: the ring was set up to be shared, and one thread at a time has it.
    unsafe impl Send for Handed {}
    let options = RingOptions { shared: true, entries: 8, ..RingOptions::default() };
    let mut handed = Handed(Ring::with_options(&options).expect("allowed"));
    for number in 0..4 {
        handed = std::thread::spawn(move || {
            let mut handed = handed;
            let ring = &mut { &mut handed }.0;
            // SAFETY: a no-operation points to nothing.
            unsafe { ring.push(&entry::nop().user_data(number)) }.expect("room");
            assert_eq!(one(ring).user_data, number);
            handed
        })
        .join()
        .expect("completed");
    }
}
