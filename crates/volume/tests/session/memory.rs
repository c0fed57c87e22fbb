//! Whose memory it is: the pool's, the session's, the caller's.

use crate::behaviour::{PATIENCE, execute, file, session};
use volume::session::{Bytes, RawBytes, Reason, Session, SessionConfig, Submission};

#[test]
fn buffers_of_the_pool_are_registered() {
    let session = session(4);
    let buffer = session.allocate(4096).expect("room");
    let (registered, refusal) = session.registration();
    match refusal {
        None => assert!(registered >= 4096 && buffer.fixed_index().is_some()),
        // Memory may be locked elsewhere; then it works all the same, and the reason is told.
        Some(reason) => assert!(reason.contains("RLIMIT_MEMLOCK"), "{reason}"),
    }
    assert_eq!(buffer.as_ptr().addr() % 4096, 0);
}

#[test]
fn parts_of_one_buffer_serve_several_commands() {
    let directory = tempfile::tempdir().expect("a directory");
    let session = session(4);
    let volume = session.open(&file(&directory, "a")).expect("a file");
    for slba in 0..4 {
        execute(&session, &volume, Submission::write(slba, 1, vec![slba as u8 + 1; 4096]));
    }
    let mut buffer = session.allocate(4 * 4096).expect("room");
    let (start, fixed) = (buffer.as_mut_ptr(), buffer.fixed_index());
    for slba in 0..4usize {
        // SAFETY: a page of the buffer of its own, which is kept until all have completed.
        let part = unsafe { RawBytes::new(start.add(slba * 4096), 4096, fixed) };
        assert_eq!((part.len(), part.is_empty()), (4096, false));
        volume.submit(Submission::read(slba as u64, 1, part)).expect("room");
    }
    assert_eq!(session.wait(4, PATIENCE), 4);
    let mut done = Vec::new();
    session.reap(&mut done);
    assert!(done.iter().all(|done| done.status.is_success() && matches!(done.data, Bytes::Raw(_))));
    for (at, page) in buffer.as_slice().chunks(4096).enumerate() {
        assert!(page.iter().all(|byte| usize::from(*byte) == at + 1), "page {at}");
    }
}

/// Its ring knows other buffers, in the same places.
#[test]
fn a_buffer_of_another_session_is_memory_like_any() {
    let directory = tempfile::tempdir().expect("a directory");
    let (here, there) = (session(4), session(4));
    let volume = there.open(&file(&directory, "a")).expect("a file");
    let other = there.allocate(4096).expect("room");
    for byte in 1..3 {
        let mut buffer = here.allocate(4096).expect("room");
        buffer.as_mut_slice().fill(byte);
        execute(&there, &volume, Submission::write(0, 1, Bytes::Fixed(buffer)));
        let buffer = here.allocate(4096).expect("room");
        let done = execute(&there, &volume, Submission::read(0, 1, Bytes::Fixed(buffer)));
        assert!(done.status.is_success(), "{:?}", done.status);
        assert!(done.data.as_slice().iter().all(|found| *found == byte));
    }
    drop(other);
}

#[test]
fn a_pool_that_is_used_up_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = SessionConfig { buffer_bytes: 2 << 20, depth: 4, ..SessionConfig::default() };
    let session = Session::new(&config).expect("a session");
    let volume = session.open(&file(&directory, "a")).expect("a file");
    let mut held = Vec::new();
    while let Some(buffer) = session.allocate(4096) {
        held.push(buffer);
    }
    // One byte into a vector lies badly for sure, and there is nothing to copy it to.
    let mut memory = vec![0u8; 4096 + 513];
    let start = memory.as_mut_ptr();
    let skip = start.align_offset(512) + 1;
    // SAFETY: within the vector, which is kept.
    let part = |len| unsafe { RawBytes::new(start.add(skip), len, None) };
    let rejected = volume.submit(Submission::read(0, 1, part(4096))).expect_err("no room");
    assert_eq!((rejected.reason, session.outstanding()), (Reason::NoBuffer, 0));
    held.pop();
    volume.submit(rejected.submission).expect("room for one");
    assert_eq!(session.wait(1, PATIENCE), 1);
}

#[test]
fn the_kinds_of_memory_show_what_they_hold() {
    let session = session(1);
    let mut kinds: [Bytes; 3] =
        [Bytes::None, vec![1, 2].into(), session.allocate(2).expect("room").into()];
    kinds[2].as_mut_slice().copy_from_slice(&[3, 4]);
    let shown: Vec<&[u8]> = kinds.iter().map(Bytes::as_slice).collect();
    assert_eq!(shown, [&[][..], &[1, 2], &[3, 4]]);
    assert!(kinds[0].is_empty() && !kinds[1].is_empty());
}
