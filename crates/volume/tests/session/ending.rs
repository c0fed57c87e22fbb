//! A session that ends with commands in flight.

use crate::behaviour::{file, session};
use std::time::{Duration, Instant};
use volume::session::{Ranges, RawBytes, Reason, Submission, Volume};

#[test]
fn the_end_waits_for_what_is_in_flight() {
    let directory = tempfile::tempdir().expect("a directory");
    // Memory that must not be touched any more once the session is gone.
    let mut memory = vec![0u8; 2 * 4096];
    let begin = Instant::now();
    {
        let session = session(4);
        let slow = session.open("delay:200ms(mem:1M?bs=4096)").expect("memory");
        let fast = session.open(&file(&directory, "a")).expect("a file");
        // SAFETY: the memory outlives the session.
        let raw = unsafe { RawBytes::new(memory.as_mut_ptr(), 4096, None) };
        slow.submit(Submission::read(0, 1, raw)).expect("room");
        // SAFETY: the same.
        let raw = unsafe { RawBytes::new(memory.as_mut_ptr().add(4096), 4096, None) };
        fast.submit(Submission::read(0, 1, raw)).expect("room");
        fast.submit(Submission::write(1, 1, vec![5; 4096])).expect("room");
        // Neither flushed nor reaped; the session first, as the volumes may outlive it.
        drop(session);
        assert!(begin.elapsed() >= Duration::from_millis(200), "it waited");
        let rejected = slow.submit(Submission::flush()).expect_err("it has ended");
        assert_eq!(rejected.reason, Reason::Ended);
    }
    memory.fill(0xa5);
    let again = session(1);
    let volume = again.open(&file(&directory, "a")).expect("nobody has it locked any more");
    let done = crate::behaviour::execute(&again, &volume, Submission::read(1, 1, vec![0; 4096]));
    assert_eq!(done.data.as_slice(), [5; 4096], "what was submitted was carried out");
    assert!(memory.iter().all(|byte| *byte == 0xa5), "nobody has it any more");
}

#[test]
fn what_never_comes_is_not_waited_for_for_good() {
    let begin = Instant::now();
    let session = session(4);
    let never = session.open("delay:60s(mem:1M)").expect("memory");
    never.submit(Submission::read(0, 1, vec![0; 512])).expect("room");
    let buffer = session.allocate(512).expect("room");
    never.submit(Submission::write(0, 1, buffer)).expect("room");
    drop(session);
    let waited = begin.elapsed();
    assert!(waited >= volume::session::CLOSE_WAIT, "{waited:?}");
    assert!(waited < volume::session::CLOSE_WAIT + Duration::from_secs(20), "{waited:?}");
}

/// What is dropped with commands that wait lets go of its files, whatever they wait in.
#[test]
fn nothing_of_a_volume_is_left_behind_commands_that_wait() {
    let waiting = |name: &'static str, stack: &'static str| {
        move || {
            let directory = tempfile::tempdir().expect("a directory");
            let file = file(&directory, name);
            let session = session(8);
            let volume = session.open(&stack.replace("FILE", &file)).expect(stack);
            for _ in 0..2 {
                volume.submit(Submission::read(0, 4, vec![0; 4 * 4096])).expect("room");
                volume.submit(Submission::write(0, 4, vec![1; 4 * 4096])).expect("room");
            }
            volume.submit(Submission::flush()).expect("room");
            drop((session, volume));
            let again = crate::behaviour::session(1);
            again.open(&file).unwrap_or_else(|error| panic!("{stack}: {error}"));
        }
    };
    let stacks = [
        ("delay", "delay:60s(FILE)"),
        ("rate", "rate:1(FILE)"),
        ("fault", "fault:rate=0(delay:60s(FILE))"),
        ("linear", "linear:(delay:60s(mem:8K?bs=4096),FILE)"),
        ("volatile", "volatile:(delay:60s(FILE))"),
        ("multipath", "multipath:(delay:60s(FILE))"),
        ("guard", "delay:60s(linear:(mem:8K?bs=4096,FILE))"),
    ];
    let ends = stacks.map(|(name, stack)| std::thread::spawn(waiting(name, stack)));
    for end in ends {
        end.join().expect("nothing is left");
    }
}

/// What a Copy reads waits in the volume that it is read from, which may have been closed.
#[test]
fn nothing_is_left_behind_copies_that_wait() {
    const MEMORY: &str = "mem:1M?bs=4096";
    const SLOW_MEMORY: &str = "delay:60s(mem:1M?bs=4096)";
    let copied = |from: &Volume, to: &Volume| {
        let mut ranges = Ranges::new();
        ranges.push_from(from, 0, 4);
        to.submit(Submission::copy(8, ranges)).expect("room");
    };
    let waiting = move |name: &'static str, from: &'static str, to: &'static str| {
        move || {
            let directory = tempfile::tempdir().expect("a directory");
            let file = file(&directory, name);
            let session = session(8);
            let to = session.open(to).expect("memory");
            let from = session.open(&from.replace("FILE", &file)).expect(from);
            if name == "behind" {
                from.submit(Submission::write(0, 4, vec![1; 4 * 4096])).expect("room");
            }
            copied(&from, &to);
            if name == "both" {
                copied(&to, &from);
            }
            drop(from);
            drop((session, to));
            let again = crate::behaviour::session(1);
            again.open(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    };
    let ends = [
        waiting("alone", "delay:60s(FILE)", MEMORY),
        waiting("both", "delay:60s(FILE)", SLOW_MEMORY),
        waiting("behind", "delay:60s(volatile:(FILE))", MEMORY),
    ];
    for end in ends.map(std::thread::spawn) {
        end.join().expect("nothing is left");
    }
}

#[test]
fn volumes_may_be_closed_in_any_order() {
    let session = session(4);
    let (first, second) = (session.open("mem:1M"), session.open("mem:1M"));
    let (first, second) = (first.expect("memory"), second.expect("memory"));
    first.submit(Submission::read(0, 1, vec![0; 512])).expect("room");
    drop(first);
    second.submit(Submission::read(0, 1, vec![0; 512])).expect("room");
    drop(session);
    drop(second);
}

#[test]
fn nobody_waits_for_a_reactor_that_was_stopped() {
    let begin = Instant::now();
    let session = session(4);
    let never = session.open("delay:60s(mem:1M)").expect("memory");
    never.submit(Submission::read(0, 1, vec![0; 512])).expect("room");
    session.reactor().stop();
    assert_eq!(session.wait(1, None), 0);
    assert_eq!(session.wait(1, Some(Duration::from_secs(40))), 0);
    drop(session);
    let waited = begin.elapsed();
    assert!(waited < Duration::from_secs(30), "{waited:?}");
}
