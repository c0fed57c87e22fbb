//! Copies: ranges of any volumes of the session, as ranges and as bytes of the wire; what is wrong with one is told
//! as a controller would tell it.

use crate::behaviour::{execute, file, session};
use nvme::copy::{Entry, Format};
use nvme::{Status, opcode};
use volume::OpenOptions;
use volume::session::{Bytes, CopyError, Done, Ranges, Reason, Session, Submission, Volume};

/// 1 MiB in blocks of 4 KiB, each of its number and `seed`.
fn filled(session: &Session, uri: &str, seed: u8) -> Volume {
    let volume = session.open(uri).expect("a volume");
    for slba in 0..256 {
        let block = vec![seed.wrapping_add(slba as u8); 4096];
        let done = execute(session, &volume, Submission::write(slba, 1, block));
        assert!(done.status.is_success(), "{}", done.status);
    }
    volume
}

/// What is at the start of a block.
fn at(session: &Session, volume: &Volume, slba: u64) -> u8 {
    let done = execute(session, volume, Submission::read(slba, 1, vec![0; 4096]));
    assert!(done.status.is_success(), "{}", done.status);
    let bytes = done.data.as_slice();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a block in part");
    bytes[0]
}

#[test]
fn blocks_come_from_any_volumes_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let session = session(8);
    let a = filled(&session, "mem:1M?bs=4096", 0);
    let b = filled(&session, &file(&folder, "b"), 100);
    let mut ranges = Ranges::new();
    for round in 0..2 {
        // Ranges are used again.
        ranges.push_from(&a, 200, 3);
        ranges.push(10 + round, 2);
        ranges.push_from(&b, 7, 1);
        assert_eq!((ranges.len(), ranges.blocks()), (3, 6));
        let done = execute(&session, &b, Submission::copy(40 + 10 * round, ranges).token(5));
        assert!(done.status.is_success(), "{}", done.status);
        assert_eq!((done.volume, done.token), (b.id(), 5));
        let Bytes::Ranges(back) = done.data else { panic!("{:?}", done.data) };
        assert!(back.is_empty());
        ranges = back;
        let first = 100 + 10 + round as u8;
        for (slba, byte) in (40 + 10 * round..).zip([200, 201, 202, first, first + 1, 107]) {
            assert_eq!(at(&session, &b, slba), byte, "block {slba}");
        }
    }
    assert_eq!((at(&session, &b, 39), at(&session, &b, 46)), (139, 146), "written beside");
}

/// In formats 2h and 3h the namespace is a volume of the session.
#[test]
fn ranges_may_come_as_bytes_of_the_wire() {
    let session = session(8);
    let a = filled(&session, "mem:1M?bs=4096", 0);
    let b = filled(&session, "mem:1M?bs=4096", 100);
    for format in Format::ALL {
        let names = format.names_namespaces();
        let mut list = vec![0; 2 * format.entry_bytes()];
        let nsids = if names { [a.id().0, b.id().0] } else { [0, 0] };
        for (bytes, nsid) in list.chunks_mut(format.entry_bytes()).zip(nsids) {
            Entry { nsid, slba: 5, blocks: 2, fast_only: false }.write(format, bytes);
        }
        let command = nvme::copy::command(1, 20, 2, format);
        let done = execute(&session, &b, Submission::new(command).data(list.clone()));
        assert!(done.status.is_success(), "{format:?}: {}", done.status);
        assert_eq!(done.data.len(), list.len(), "the memory comes back");
        let first = if names { 5 } else { 105 };
        for (slba, byte) in (20..).zip([first, first + 1, 105, 106]) {
            assert_eq!(at(&session, &b, slba), byte, "{format:?}, block {slba}");
        }
        let short = list[..list.len() - 1].to_vec();
        let done = execute(&session, &b, Submission::new(command).data(short));
        assert_eq!(done.status, Status::SGL_LENGTH_INVALID.dnr());
    }
    // What is not to be read and written is that range alone.
    let cached = session.open("volatile:(mem:1M?bs=4096)").expect("a volume");
    for (fast_only, status) in [
        ([false, true], Status::SUCCESS),
        ([true, false], Status::FAST_COPY_NOT_POSSIBLE),
        ([true, true], Status::FAST_COPY_NOT_POSSIBLE),
    ] {
        let mut list = vec![0; 64];
        let nsids = [cached.id().0, a.id().0];
        for ((bytes, nsid), fast_only) in list.chunks_mut(32).zip(nsids).zip(fast_only) {
            Entry { nsid, slba: 5, blocks: 2, fast_only }.write(Format::Namespaces, bytes);
        }
        let command = nvme::copy::command(1, 30, 2, Format::Namespaces);
        let done = execute(&session, &b, Submission::new(command).data(list));
        assert_eq!(done.status.code(), status, "{fast_only:?}");
    }
    assert_eq!((at(&session, &b, 30), at(&session, &b, 32)), (0, 5));
    // Of a volume that there is not; of itself where it writes.
    for (nsid, sdlba, status) in
        [(u32::MAX, 20, Status::INVALID_NAMESPACE), (b.id().0, 6, Status::OVERLAPPING_RANGE)]
    {
        let mut list = vec![0; 32];
        Entry { nsid, slba: 5, blocks: 2, fast_only: false }.write(Format::Namespaces, &mut list);
        let command = nvme::copy::command(1, sdlba, 1, Format::Namespaces);
        let done = execute(&session, &b, Submission::new(command).data(list));
        assert_eq!(done.status, status.dnr());
    }
    let mut command = nvme::copy::command(1, 0, 1, Format::Short);
    command.cdw12 = (9 << 8).into();
    let done = execute(&session, &b, Submission::new(command).data(vec![0; 32]));
    assert_eq!(done.status, Status::INVALID_FIELD.dnr());
}

#[test]
fn what_is_beyond_limits_is_refused_with_its_status() {
    let session = session(8);
    let a = session.open("mem:1M?bs=4096").expect("a volume");
    let small = session.open("mem:1M").expect("a volume");
    let fixed = session.open("null:1M?bs=4096&ro");
    let limits = a.limits().copy;
    assert!(limits.is_offered(), "every volume offers it");
    type Fill<'a> = &'a dyn Fn(&mut Ranges);
    let too_many: Fill<'_> = &|ranges| (0..=limits.ranges_max).for_each(|_| ranges.push(0, 1));
    let cases: [(u64, Fill<'_>, Status); 8] = [
        (0, &|_| {}, Status::INVALID_FIELD),
        (0, &|ranges| ranges.push(0, 0), Status::INVALID_FIELD),
        (0, too_many, Status::SIZE_LIMIT_EXCEEDED),
        (0, &|ranges| ranges.push(0, limits.range_blocks_max + 1), Status::SIZE_LIMIT_EXCEEDED),
        (0, &|ranges| ranges.push_from(&small, 0, 1), Status::INCOMPATIBLE_NAMESPACE),
        (0, &|ranges| ranges.push(255, 2), Status::LBA_OUT_OF_RANGE),
        (255, &|ranges| ranges.push(0, 2), Status::LBA_OUT_OF_RANGE),
        (u64::MAX, &|ranges| ranges.push(u64::MAX, 2), Status::LBA_OUT_OF_RANGE),
    ];
    for (number, (sdlba, fill, status)) in cases.into_iter().enumerate() {
        let mut ranges = Ranges::new();
        fill(&mut ranges);
        let done = execute(&session, &a, Submission::copy(sdlba, ranges));
        assert_eq!(done.status, status.dnr(), "case {number}");
    }
    if let Ok(fixed) = fixed {
        let mut ranges = Ranges::new();
        ranges.push(0, 1);
        let done = execute(&session, &fixed, Submission::copy(5, ranges));
        assert_eq!(done.status, Status::NAMESPACE_WRITE_PROTECTED.dnr());
    }
    // Nothing is read where ranges are expected.
    let mut ranges = Ranges::new();
    ranges.push(0, 1);
    let read = Submission { data: Bytes::Ranges(ranges), ..Submission::read(0, 1, Vec::new()) };
    assert_eq!(execute(&session, &a, read).status, Status::SGL_LENGTH_INVALID.dnr());
}

#[test]
fn volumes_of_another_session_are_no_sources() {
    let (one, other) = (session(4), session(4));
    let here = one.open("mem:1M").expect("a volume");
    let there = other.open("mem:1M").expect("a volume");
    let mut ranges = Ranges::new();
    ranges.push_from(&there, 0, 1);
    assert_eq!(Volume::copy_to_all(&[(&here, 0)], &ranges, 0), Err(Reason::Foreign));
    assert_eq!(Volume::copy_to_all(&[(&there, 0), (&here, 0)], &ranges, 0), Err(Reason::Foreign));
    let rejected = here.submit(Submission::copy(0, ranges)).expect_err("of another session");
    assert_eq!(rejected.reason, Reason::Foreign);
    let Bytes::Ranges(mut ranges) = rejected.submission.data else { panic!("they come back") };
    assert_eq!(ranges.len(), 1);
    ranges.push_from(&here, 0, 1);
    assert!(here.submit(Submission::copy(0, ranges)).is_err(), "of both");
    let outcome = here.copy_range(0, &there, 0, 1);
    assert_eq!(outcome, Err(CopyError::Rejected(Reason::Foreign)));
}

#[test]
fn one_source_goes_to_many_volumes_and_completes_once() {
    let session = session(4);
    let source = filled(&session, "mem:1M?bs=4096", 0);
    let targets: Vec<Volume> =
        (0..3).map(|_| session.open("mem:1M?bs=4096").expect("a volume")).collect();
    let all: Vec<(&Volume, u64)> = targets.iter().zip([0, 10, 250]).collect();
    let mut ranges = Ranges::new();
    ranges.push_from(&source, 30, 2);
    ranges.push_from(&source, 60, 4);
    for _ in 0..3 {
        Volume::copy_to_all(&all, &ranges, 77).expect("room");
        assert_eq!(session.wait(usize::MAX, crate::behaviour::PATIENCE), 1);
        let mut done = Vec::new();
        assert_eq!(session.reap(&mut done), 1);
        assert_eq!((done[0].token, done[0].status, done[0].result), (77, Status::SUCCESS, 3));
        assert_eq!(session.outstanding(), 0);
    }
    for (target, first) in &all {
        for (slba, byte) in (*first..).zip([30, 31, 60, 61, 62, 63]) {
            assert_eq!(at(&session, target, slba), byte);
        }
    }
    // The last two fail, the first is told; and the one before has its blocks.
    let all = [(&targets[0], 100), (&targets[1], 251), (&targets[2], 1000)];
    Volume::copy_to_all(&all, &ranges, 78).expect("room");
    session.wait(1, crate::behaviour::PATIENCE);
    let mut done = Vec::new();
    session.reap(&mut done);
    assert_eq!((done[0].token, done[0].result, done[0].volume), (78, 1, targets[1].id()));
    assert_eq!(done[0].status, Status::LBA_OUT_OF_RANGE.dnr());
    assert_eq!(at(&session, &targets[0], 105), 63);

    let many = [(&targets[0], 0); 5];
    assert_eq!(Volume::copy_to_all(&many, &ranges, 0), Err(Reason::Full));
    assert_eq!(Volume::copy_to_all(&[], &ranges, 0), Err(Reason::Empty));
}

#[test]
fn a_range_is_copied_and_waited_for_while_others_are_in_flight() {
    let folder = tempfile::tempdir().expect("a folder");
    let session = session(4);
    let a = filled(&session, &file(&folder, "a"), 0);
    let b = session.open("mem:1M?bs=4096").expect("a volume");
    let slow = session.open("delay:50ms(mem:1M)").expect("a volume");
    slow.submit(Submission::read(0, 1, vec![1; 512]).token(9)).expect("room");
    let mut done = Vec::new();
    let mut at_is = |slba: u64| at_is(&b, &session, slba, &mut done);
    assert_eq!(b.copy_range(16, &a, 0, 200), Ok(200));
    assert_eq!((at_is(16), at_is(215)), (0, 199));
    // Within one volume.
    assert_eq!(b.copy_range(0, &b, 16, 16), Ok(16));
    assert_eq!((at_is(0), at_is(15)), (0, 15));
    assert_eq!(b.copy_range(0, &a, 0, 0), Ok(0));
    let failed = b.copy_range(0, &a, 250, 7);
    assert_eq!(failed, Err(CopyError::Failed(Status::LBA_OUT_OF_RANGE.dnr())));
    assert!(failed.unwrap_err().to_string().contains("LBA Out of Range"));

    // On a slow machine it has come back meanwhile.
    if done.is_empty() {
        session.wait(1, crate::behaviour::PATIENCE);
        session.reap(&mut done);
    }
    assert_eq!((done.len(), done[0].token), (1, 9), "only what was submitted");
}

/// What is cut into several ranges, or is done by several Copies at once, may read what it has written.
#[test]
fn what_would_read_what_it_writes_is_refused() {
    const RANGE: u64 = 65_528;
    let folder = tempfile::tempdir().expect("a folder");
    let session = session(4);
    let refused = Err(CopyError::Rejected(Reason::Overlap));
    let file = format!("{}?size=40M&bs=512", folder.path().join("a").display());
    for uri in ["mem:40M", &format!("file:{file}&create"), "linear:(mem:20M,mem:20M)", "null:40M"] {
        let a = session.open(uri).expect(uri);
        // In both directions, by one block, by all but one, by none: beyond what one range may have.
        for (to, from) in [(8, 0), (0, 8), (0, RANGE), (RANGE, 0), (5, 5)] {
            assert_eq!(a.copy_range(to, &a, from, RANGE + 8), refused, "{uri}: {from} to {to}");
        }
        assert_eq!(a.copy_range(200, &a, 100, 100), Ok(100), "{uri}: beside");
        assert_eq!(a.copy_range(100, &a, 200, 100), Ok(100), "{uri}: beside");
        // To several at once.
        let b = session.open("mem:40M").expect("a volume");
        let (mut of_each, mut of_a) = (Ranges::new(), Ranges::new());
        of_each.push(100, 4);
        of_a.push_from(&a, 100, 4);
        let fails = |targets: &[(&Volume, u64)], ranges: &Ranges| {
            let started = Volume::copy_to_all(targets, ranges, 0);
            assert_eq!(started, Err(Reason::Overlap), "{uri}");
            assert_eq!(session.outstanding(), 0, "none was started");
        };
        // What both write; what the one writes and the other reads.
        fails(&[(&a, 200), (&b, 200), (&a, 203)], &of_a);
        fails(&[(&a, 203), (&a, 200)], &of_each);
        fails(&[(&b, 0), (&a, 103)], &of_a);
        fails(&[(&a, 97), (&b, 0)], &of_a);
        fails(&[(&a, 0), (&a, 102)], &of_each);
        // Beside one another; of itself only, which is in order, and so is a single one.
        for (targets, ranges) in [
            (&[(&a, 104), (&a, 96), (&b, 102)][..], &of_a),
            (&[(&a, 104), (&a, 96), (&b, 102)], &of_each),
            (&[(&a, 102)], &of_a),
        ] {
            Volume::copy_to_all(targets, ranges, 0).expect("nothing overlaps");
            let mut done = Vec::new();
            session.wait(1, crate::behaviour::PATIENCE);
            session.reap(&mut done);
            assert_eq!((done[0].status, done[0].result), (Status::SUCCESS, targets.len() as u64));
        }
    }
}

/// One file under two names, and one as a part of another volume.
#[test]
fn volumes_that_are_kept_by_the_same_are_seen_to_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let session = session(4);
    let path = folder.path().join("a");
    std::fs::write(&path, vec![1; 1 << 20]).expect("a file");
    std::os::unix::fs::symlink(&path, folder.path().join("b")).expect("a link");
    let open = |uri: String| {
        let shared = OpenOptions { shared: true, cores: 1, ..OpenOptions::default() };
        session.open_with(&uri, &shared).expect("a volume")
    };
    let a = open(format!("{}?bs=512", path.display()));
    let b = open(format!("linear:(mem:64K,{}/b?bs=512)", folder.path().display()));
    // Block 128 of b is block 0 of a.
    for (to, from, blocks) in [(100, 128, 101), (100, 327, 101), (1, 128, 1900)] {
        let refused = Err(CopyError::Rejected(Reason::Overlap));
        assert_eq!(a.copy_range(to, &b, from, blocks), refused, "{to}, {from}, {blocks}");
        assert_eq!(b.copy_range(from, &a, to, blocks), refused, "{to}, {from}, {blocks}");
    }
    assert_eq!(a.copy_range(100, &b, 128, 100), Ok(100));
    assert_eq!(b.copy_range(0, &a, 0, 128), Ok(128));
    let mut ranges = Ranges::new();
    ranges.push_from(&a, 0, 1);
    let all = [(&a, 10), (&b, 138)];
    assert_eq!(Volume::copy_to_all(&all, &ranges, 0), Err(Reason::Overlap));
}

/// As [`at`], while others are in flight: their completions are kept.
fn at_is(volume: &Volume, session: &Session, slba: u64, others: &mut Vec<Done>) -> u8 {
    let probe = session.open("mem:1M?bs=4096").expect("a volume");
    assert_eq!(probe.copy_range(0, volume, slba, 1), Ok(1));
    let mut buffer = session.allocate(4096).expect("room");
    buffer.as_mut_slice().fill(0);
    probe.submit(Submission::read(0, 1, buffer).token(1000)).expect("room");
    loop {
        session.wait(1, crate::behaviour::PATIENCE);
        session.reap(others);
        if let Some(at) = others.iter().position(|done| done.token == 1000) {
            return others.swap_remove(at).data.as_slice()[0];
        }
    }
}

#[test]
fn a_failure_tells_the_lowest_range() {
    let session = session(4);
    // Its block 100 cannot be read.
    let bad = filled(&session, "fault:lba=100,op=read(mem:1M?bs=4096)", 1);
    let target = session.open("mem:1M?bs=4096").expect("a volume");
    let mut ranges = Ranges::new();
    ranges.push_from(&bad, 0, 10);
    ranges.push_from(&bad, 10, 10);
    ranges.push_from(&bad, 95, 10);
    ranges.push_from(&bad, 20, 10);
    let done = execute(&session, &target, Submission::copy(0, ranges));
    assert_eq!((done.status.code(), done.result), (Status::UNRECOVERED_READ, 2));
    for slba in 0..20 {
        assert_eq!(at(&session, &target, slba), slba as u8 + 1, "before the range that failed");
    }
    assert_eq!(at(&session, &target, 25), 0, "what could not be read is not there");
}

#[test]
fn a_source_may_be_closed_while_it_is_copied() {
    let session = session(4);
    let source = session.open("delay:20ms(mem:1M?bs=4096)").expect("a volume");
    let target = session.open("mem:1M?bs=4096").expect("a volume");
    for _ in 0..2 {
        let done = execute(&session, &source, Submission::write(0, 1, vec![3; 4096]));
        assert!(done.status.is_success());
    }
    let mut ranges = Ranges::new();
    ranges.push_from(&source, 0, 1);
    target.submit(Submission::copy(9, ranges).token(1)).expect("room");
    session.flush();
    drop(source);
    session.wait(1, crate::behaviour::PATIENCE);
    let mut done = Vec::new();
    session.reap(&mut done);
    assert!(done[0].status.is_success(), "{}", done[0].status);
    assert_eq!(at(&session, &target, 9), 3);
}

#[test]
fn nothing_else_carries_a_copy() {
    let session = session(4);
    let volume = session.open("mem:1M").expect("a volume");
    let mut ranges = Ranges::new();
    ranges.push(0, 1);
    let command = nvme::Command { opcode: opcode::io::COPY, ..Default::default() };
    let done = execute(&session, &volume, Submission::admin(command).data(ranges));
    assert!(!done.status.is_success());
}
