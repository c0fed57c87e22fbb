//! Submitting, batching, depth, waiting, and what is wrong with commands.

use nvme::{Command, Status, opcode};
use std::time::{Duration, Instant};
use volume::session::{
    Bytes, Done, Ranges, RawBytes, Reason, Session, SessionConfig, SessionError, Submission, Volume,
};

/// Long enough for anything that happens at all.
pub const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

pub fn session(depth: usize) -> Session {
    Session::new(&SessionConfig { depth, ..SessionConfig::default() }).expect("a session")
}

/// Carries out one command.
#[track_caller]
pub fn execute(session: &Session, volume: &Volume, submission: Submission) -> Done {
    volume.submit(submission).expect("there is room");
    assert_eq!(session.wait(1, PATIENCE), 1);
    let mut done = Vec::new();
    assert_eq!(session.reap(&mut done), 1);
    done.pop().expect("one was reaped")
}

/// A volume in a file that lives as long as the directory, with an option for those that need it.
pub fn file(directory: &tempfile::TempDir, name: &str) -> String {
    format!("file:{}?create&size=1M&bs=4096", directory.path().join(name).display())
}

#[test]
fn the_same_calls_do_for_memory_and_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = file(&directory, "a");
    for uri in [
        "mem:1M?bs=4096",
        "delay:1ms(mem:1M?bs=4096)",
        &file,
        &format!("linear:({})", self::file(&directory, "b")),
    ] {
        let session = session(4);
        let volume = session.open(uri).expect(uri);
        let pattern: Vec<u8> = (0..8192u32).map(|at| (at * 7 % 251) as u8).collect();
        let done = execute(&session, &volume, Submission::write(3, 2, pattern.clone()).token(11));
        assert_eq!(
            (done.status, done.token, done.volume),
            (Status::SUCCESS, 11, volume.id()),
            "{uri}"
        );
        assert_eq!(done.data.as_slice(), pattern, "{uri}: the memory comes back");
        assert!(execute(&session, &volume, Submission::flush()).status.is_success(), "{uri}");
        let mut buffer = session.allocate(8192).expect("room");
        buffer.as_mut_slice().fill(0);
        let done = execute(&session, &volume, Submission::read(3, 2, buffer));
        assert!(done.status.is_success(), "{uri}");
        assert_eq!(done.data.as_slice(), pattern, "{uri}: into a buffer of the pool");
        let done = execute(&session, &volume, Submission::read(4, 1, vec![0; 4096]));
        assert_eq!(done.data.as_slice(), &pattern[4096..], "{uri}: into ordinary memory");
        let compare = Command::blocks(opcode::io::COMPARE, 1, 3, 2);
        let done = execute(&session, &volume, Submission::new(compare).data(vec![0; 8192]));
        assert_eq!(done.status.code(), Status::COMPARE_FAILURE, "{uri}");
        let zeroes = Command::blocks(opcode::io::WRITE_ZEROES, 1, 3, 1);
        assert!(execute(&session, &volume, Submission::new(zeroes)).status.is_success(), "{uri}");
        let done = execute(&session, &volume, Submission::read(3, 1, vec![1; 4096]));
        assert!(done.data.as_slice().iter().all(|byte| *byte == 0), "{uri}");
    }
}

#[test]
fn what_waits_is_reaped_one_by_one() {
    let session = session(3);
    let volume = session.open("mem:1M?bs=4096").expect("memory");
    assert!(session.reap_one().is_none());
    for token in 0..3 {
        volume.submit(Submission::write(token, 1, vec![9; 4096]).token(token)).expect("room");
    }
    session.wait(3, PATIENCE);
    // In their order; the place of each is free again.
    for token in 0..3 {
        let done = session.reap_one().expect("it waits");
        assert_eq!((done.token, done.status, done.data.len()), (token, Status::SUCCESS, 4096));
        let wrong = Submission::read(1 << 20, 1, vec![0; 4096]).token(token + 3);
        volume.submit(wrong).expect("room");
    }
    session.wait(3, PATIENCE);
    let rest: Vec<Done> = std::iter::from_fn(|| session.reap_one()).collect();
    let told: Vec<(u64, Status)> = rest.iter().map(|done| (done.token, done.status)).collect();
    assert_eq!(told, [3, 4, 5].map(|token| (token, Status::LBA_OUT_OF_RANGE.dnr())));
    assert_eq!(session.outstanding(), 0);
    // What a file has to copy is more than plain.
    let directory = tempfile::tempdir().expect("a directory");
    let volume = session.open(&file(&directory, "a")).expect("a file");
    let odd = vec![7; 4096 + 1];
    let at = odd.as_ptr().addr();
    // SAFETY: the vector outlives the command.
    let raw = unsafe { RawBytes::new(odd.as_ptr().cast_mut().add(1), 4096, None) };
    assert!(!(at + 1).is_multiple_of(4096));
    volume.submit(Submission::write(0, 1, raw).token(8)).expect("room");
    session.wait(1, PATIENCE);
    let done = session.reap_one().expect("it waits");
    assert_eq!((done.token, done.status), (8, Status::SUCCESS));
    assert!(session.reap_one().is_none() && session.outstanding() == 0);
}

#[test]
fn memory_that_lies_badly_is_copied() {
    let directory = tempfile::tempdir().expect("a directory");
    let session = session(4);
    let volume = session.open(&file(&directory, "a")).expect("a file");
    // A megabyte of a vector begins behind the allocator's own words, not at a whole block; of several, one surely
    // does not lie at 4096.
    let vectors: Vec<Vec<u8>> = (1..5).map(|fill| vec![fill; 4096]).collect();
    assert!(vectors.iter().any(|vector| vector.as_ptr().addr() % 4096 != 0));
    for (slba, vector) in vectors.into_iter().enumerate() {
        let expected = vector[0];
        let done = execute(&session, &volume, Submission::write(slba as u64, 1, vector));
        assert!(done.status.is_success(), "{}", done.status);
        let done = execute(&session, &volume, Submission::read(slba as u64, 1, vec![0; 4096]));
        assert!(done.status.is_success(), "{}", done.status);
        assert!(done.data.as_slice().iter().all(|byte| *byte == expected));
    }
}

#[test]
fn ranges_are_deallocated_from_a_longer_buffer() {
    let session = session(1);
    let volume = session.open("mem:1M?bs=4096").expect("memory");
    execute(&session, &volume, Submission::write(5, 1, vec![9; 4096]));
    // One range of one block, in a buffer for all 256, as Linux sends it.
    let mut ranges = vec![0; 4096];
    ranges[4..8].copy_from_slice(&1u32.to_le_bytes());
    ranges[8..16].copy_from_slice(&5u64.to_le_bytes());
    let command =
        Command { opcode: opcode::io::DATASET_MANAGEMENT, cdw11: 4.into(), ..Command::default() };
    let done = execute(&session, &volume, Submission::new(command).data(ranges));
    assert!(done.status.is_success(), "{}", done.status);
    assert_eq!(done.data.len(), 4096, "the memory comes back whole");
    let done = execute(&session, &volume, Submission::read(5, 1, vec![1; 4096]));
    assert!(done.data.as_slice().iter().all(|byte| *byte == 0));
}

#[test]
fn a_time_that_never_comes_is_as_good_as_none() {
    let session = session(1);
    let volume = session.open("mem:1M").expect("memory");
    volume.submit(Submission::read(0, 1, vec![0; 512])).expect("room");
    assert_eq!(session.wait(1, Some(Duration::MAX)), 1);
}

#[test]
fn the_depth_is_kept_and_nothing_blocks() {
    let session = session(2);
    let slow = session.open("delay:5s(mem:1M)").expect("memory");
    let delay = Duration::from_secs(5);
    let begin = Instant::now();
    slow.submit(Submission::read(0, 1, vec![0; 512]).token(1)).expect("room");
    slow.submit(Submission::read(1, 1, vec![0; 512]).token(2)).expect("room");
    let rejected = slow.submit(Submission::read(2, 1, vec![7; 512]).token(3)).expect_err("full");
    assert_eq!(rejected.reason, Reason::Full);
    assert_eq!((rejected.submission.token, rejected.submission.data.len()), (3, 512));
    assert_eq!((session.outstanding(), session.wait(1, Some(Duration::ZERO))), (2, 0));
    let mut done = Vec::new();
    assert_eq!(session.reap(&mut done), 0);
    assert!(begin.elapsed() < delay, "nothing of that waits");
    // They wait to be reaped, and count until they are.
    assert_eq!(session.wait(5, PATIENCE), 2, "no more than there are");
    assert!(begin.elapsed() >= delay);
    assert_eq!(slow.submit(Submission::flush()).expect_err("full").reason, Reason::Full);
    assert_eq!(session.reap_up_to(&mut done, 1), 1);
    slow.submit(rejected.submission).expect("room");
    assert_eq!(session.wait(2, PATIENCE), 2);
    session.reap(&mut done);
    let mut tokens: Vec<u64> = done.iter().map(|done| done.token).collect();
    tokens.sort_unstable();
    assert_eq!((tokens, session.outstanding()), (vec![1, 2, 3], 0));
}

/// Whoever has a core to spare is not to be woken: and his waits end in time all the same.
#[test]
fn a_session_that_polls_never_sleeps() {
    let sleeps = |poll| (0..10).filter_map(move |_| sleeps_of_two_waits(poll));
    assert_eq!(sleeps(true).next(), Some(0), "the first wait ends in time, and nobody sleeps");
    assert!(sleeps(false).any(|sleeps| sleeps > 0), "who may sleep does");
}

/// For a command that takes 300 ms: 50 ms, then for as long as it takes. `None` if the first took that long: the machine may
/// have stood still.
fn sleeps_of_two_waits(poll: bool) -> Option<u64> {
    let delay = Duration::from_millis(300);
    let config = SessionConfig { depth: 4, poll, spin: Duration::ZERO, ..SessionConfig::default() };
    let session = Session::new(&config).expect("a session");
    let slow = session.open("delay:300ms(mem:1M)").expect("memory");
    let before = session.reactor().stats().sleeps;
    let begin = Instant::now();
    slow.submit(Submission::read(0, 1, vec![0; 512])).expect("room");
    let came = session.wait(1, Some(Duration::from_millis(50)));
    let waited = begin.elapsed();
    assert!(waited >= Duration::from_millis(50), "{waited:?}");
    if waited >= delay {
        return None;
    }
    assert_eq!(came, 0, "not yet");
    assert_eq!(session.wait(1, PATIENCE), 1);
    assert!(begin.elapsed() >= delay);
    let sleeps = session.reactor().stats().sleeps - before;
    session.reap(&mut Vec::new());
    Some(sleeps)
}

#[test]
fn what_is_submitted_goes_to_the_kernel_in_one_call() {
    let directory = tempfile::tempdir().expect("a directory");
    let session = session(16);
    let volume = session.open(&file(&directory, "a")).expect("a file");
    let before = session.reactor().stats();
    for slba in 0..16 {
        let buffer = session.allocate(4096).expect("room");
        volume.submit(Submission::read(slba, 1, buffer)).expect("room");
    }
    let submitted = session.reactor().stats();
    assert_eq!(submitted.enters, before.enters, "submitting calls nobody");
    session.flush();
    assert_eq!(session.reactor().stats().enters, before.enters + 1);
    assert_eq!(session.wait(16, PATIENCE), 16);
    session.reap(&mut Vec::new());
    // No time to wait is time to hand over.
    volume.submit(Submission::read(0, 1, session.allocate(4096).expect("room"))).expect("room");
    let before = session.reactor().stats();
    session.wait(1, Some(Duration::ZERO));
    assert!(session.reactor().stats().enters > before.enters);
    assert_eq!(session.wait(1, PATIENCE), 1);
}

#[test]
fn several_volumes_share_a_session() {
    let directory = tempfile::tempdir().expect("a directory");
    let session = session(8);
    let first = session.open("mem:1M").expect("memory");
    let second = session.open("delay:20ms(mem:2M)").expect("memory");
    let third = session.open(&file(&directory, "a")).expect("a file");
    assert_eq!((first.limits().bytes(), second.limits().bytes()), (1 << 20, 2 << 20));
    for (volume, bytes, token) in [(&first, 512, 1), (&second, 512, 2), (&third, 4096, 3)] {
        volume.submit(Submission::read(0, 1, vec![0; bytes]).token(token)).expect("room");
    }
    // Closed with a command in flight, which completes.
    let id = second.id();
    drop(second);
    assert_eq!(session.wait(3, PATIENCE), 3);
    let mut done = Vec::new();
    session.reap(&mut done);
    done.sort_by_key(|done| done.token);
    let volumes: Vec<_> = done.iter().map(|done| done.volume).collect();
    assert_eq!(volumes, [first.id(), id, third.id()]);
    assert!(done.iter().all(|done| done.status.is_success()));
}

#[test]
fn what_is_wrong_with_a_command_is_told_by_its_status() {
    let session = session(4);
    let volume = session.open("linear:(mem:1M)?ro").expect("memory");
    let blocks = Command::blocks;
    let fused = Command { flags: 1, ..blocks(opcode::io::COMPARE, 1, 0, 1) };
    let cases = [
        (Submission::read(0, 2, vec![0; 512]), Status::SGL_LENGTH_INVALID),
        (Submission::read(0, 1, Bytes::None), Status::SGL_LENGTH_INVALID),
        (Submission::read(2048, 1, vec![0; 512]), Status::LBA_OUT_OF_RANGE),
        (Submission::read(u64::MAX, 1, vec![0; 512]), Status::LBA_OUT_OF_RANGE),
        (Submission::read(0, 65_536, vec![0; 512]), Status::LBA_OUT_OF_RANGE),
        (Submission::write(0, 1, vec![0; 512]), Status::NAMESPACE_WRITE_PROTECTED),
        (Submission::read(0, 1, vec![0; 512]).metadata(vec![0; 8]), Status::SGL_LENGTH_INVALID),
        (Submission::flush().data(vec![0; 512]), Status::SGL_LENGTH_INVALID),
        (Submission::new(fused).data(vec![0; 512]), Status::INVALID_FIELD),
        (Submission::new(Command { opcode: 0x93, ..Command::default() }), Status::INVALID_OPCODE),
        // Identify changes nothing; what a vendor's command does, nobody knows.
        (Submission::admin(Command { opcode: 0x06, ..Command::default() }), Status::INVALID_OPCODE),
        (
            Submission::admin(Command { opcode: 0xc1, ..Command::default() }),
            Status::NAMESPACE_WRITE_PROTECTED,
        ),
    ];
    for (submission, expected) in cases {
        let text = format!("{submission:?}");
        let done = execute(&session, &volume, submission);
        assert_eq!(done.status.code(), expected, "{text}");
        assert_eq!(done.result, 0);
    }
    let done = execute(&session, &volume, Submission::read(2047, 1, vec![9; 512]));
    assert!(done.status.is_success(), "the last block");
}

#[test]
fn a_volume_that_changes_its_size_is_noticed() {
    let directory = tempfile::tempdir().expect("a directory");
    let session = session(2);
    let volume = session.open(&file(&directory, "a")).expect("a file");
    let beyond = || Submission::read(256, 1, vec![7; 4096]);
    let done = execute(&session, &volume, beyond());
    assert_eq!(done.status.code(), Status::LBA_OUT_OF_RANGE);
    volume.namespace().resize(2 << 20).expect("room on the disk");
    assert_eq!(volume.limits().blocks, 512);
    assert!(execute(&session, &volume, beyond()).status.is_success(), "at once");
    volume.namespace().resize(1 << 20).expect("it may shrink");
    let done = execute(&session, &volume, beyond());
    assert_eq!(done.status.code(), Status::LBA_OUT_OF_RANGE, "at once");
}

#[test]
fn a_file_that_others_make_longer_or_shorter_is_noticed() {
    let directory = tempfile::tempdir().expect("a directory");
    let session = session(2);
    let open = |name: &str| session.open(&file(&directory, name)).expect("a file");
    let (volume, source) = (open("a"), open("b"));
    let resize = |name: &str, mebibytes: u64| {
        let file = std::fs::File::options().write(true).open(directory.path().join(name));
        file.and_then(|file| file.set_len(mebibytes << 20)).expect("room on the disk");
    };
    resize("a", 2);
    assert_eq!(volume.limits().blocks, 512, "who asks is told at once");
    // And so is by and by who does not, however often he tries.
    let try_until = |submission: &dyn Fn() -> Submission, wanted: Status| {
        let begun = Instant::now();
        while execute(&session, &volume, submission()).status.code() != wanted {
            assert!(begun.elapsed() < Duration::from_secs(20), "nobody has looked");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let read = || Submission::read(700, 1, vec![7; 4096]);
    assert_eq!(execute(&session, &volume, read()).status.code(), Status::LBA_OUT_OF_RANGE);
    resize("a", 3);
    try_until(&read, Status::SUCCESS);
    resize("a", 2);
    try_until(&read, Status::LBA_OUT_OF_RANGE);
    // The other one has no commands of its own.
    let copy = || {
        let mut ranges = Ranges::new();
        ranges.push_from(&source, 300, 1);
        Submission::copy(0, ranges)
    };
    assert_eq!(execute(&session, &volume, copy()).status.code(), Status::LBA_OUT_OF_RANGE);
    resize("b", 2);
    try_until(&copy, Status::SUCCESS);
}

/// What a program does between two commands is no time of the paths by which they go.
#[test]
fn the_time_between_commands_is_not_the_paths() {
    const PAUSE: Duration = Duration::from_millis(50);
    let session = session(1);
    let volume = session.open("multipath:(delay:1ms(null:1M),delay:2ms(null:1M))").expect("paths");
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let begun = Instant::now();
        let done = execute(&session, &volume, Submission::read(0, 1, vec![0; 512]));
        longest = longest.max(begun.elapsed());
        assert!(done.status.is_success());
        std::thread::sleep(PAUSE);
    }
    for path in volume.namespace().paths() {
        // It is told to a sixteenth.
        let told = Duration::from_nanos(path.p99_ns);
        assert!(told <= longest + longest / 16, "{told:?}, of {longest:?} at most");
    }
}

#[test]
fn depths_and_volumes_that_make_no_sense_are_told() {
    for depth in [0, volume::session::DEPTH_MAX + 1] {
        let refused = Session::new(&SessionConfig { depth, ..SessionConfig::default() });
        assert!(matches!(refused, Err(SessionError::Depth(wrong)) if wrong == depth));
    }
    let session = session(1);
    assert!(session.open("memory:1G").expect_err("no such").to_string().contains("memory"));
    assert!(session.allocate(Session::BUFFER_BYTES_MAX + 1).is_none());
    assert_eq!(session.wait(1, None), 0, "nothing is in flight, so there is nothing to wait for");
}
