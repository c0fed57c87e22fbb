//! Buffers that the kernel takes from.

use io_uring::{opcode, types};
use std::io::{PipeReader, Write, pipe};
use std::os::fd::AsRawFd;
use uring::{BufferRing, Completion, Ring, Wait, buffer_of, entry};

const GROUP: u16 = 3;

/// What is in a buffer that a completion has told of.
fn get(buffers: &BufferRing, id: u16, len: usize) -> &[u8] {
    // SAFETY: all who call have been told.
    unsafe { buffers.get(id, len) }
}

/// Reads from a pipe into a buffer of the group.
fn read(ring: &mut Ring, from: &PipeReader) -> Completion {
    let fd = types::Fd(from.as_raw_fd());
    let read = opcode::Read::new(fd, std::ptr::null_mut(), 64).offset(u64::MAX).buf_group(GROUP);
    let entry = read.build().flags(entry::Flags::BUFFER_SELECT);
    // SAFETY: the entry names a group of buffers, if there is one.
    unsafe { ring.push(&entry) }.expect("room");
    let mut completions = Vec::with_capacity(1);
    while completions.is_empty() {
        ring.enter(Wait::Forever).expect("sound");
        ring.reap(&mut completions);
    }
    completions[0]
}

#[test]
fn each_buffer_is_used_once_until_it_is_given_back() {
    let mut ring = Ring::new(8).expect("io_uring is allowed where tests run");
    let mut buffers = BufferRing::new(GROUP, 4, 16).expect("memory");
    // SAFETY: the group is unregistered below.
    unsafe { ring.register_buffer_ring(&buffers) }.expect("Linux 5.19");
    let (from, mut to) = pipe().expect("a pipe");
    let mut seen = Vec::new();
    for round in 0..4u8 {
        to.write_all(&[round; 5]).expect("room");
        let completion = read(&mut ring, &from);
        let buffer = buffer_of(completion.flags).expect("one was used");
        assert_eq!((completion.result, get(&buffers, buffer, 5)), (5, &[round; 5][..]));
        seen.push(buffer);
    }
    // What was read first is still there, whatever was read since.
    assert_eq!(get(&buffers, seen[0], 5), [0; 5]);
    let mut sorted = seen.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 1, 2, 3]);
    to.write_all(&[9; 16]).expect("room");
    assert_eq!(read(&mut ring, &from).result, -libc::ENOBUFS);
    // Round the ring's end, many times: the kernel takes them in the order in which they came back.
    for round in 0..50 {
        let next = seen[round % 4];
        // SAFETY: a completion has told of it.
        unsafe { buffers.give_back(next) };
        let completion = read(&mut ring, &from);
        assert_eq!((completion.result, buffer_of(completion.flags)), (16, Some(next)));
        assert_eq!(get(&buffers, next, 16), [if round == 0 { 9 } else { round as u8 }; 16]);
        to.write_all(&[round as u8 + 1; 16]).expect("room");
    }
    ring.unregister_buffer_ring(&buffers).expect("it was registered");
    assert_eq!(read(&mut ring, &from).result, -libc::ENOBUFS);
    assert_eq!(buffer_of(2), None);
}

#[test]
#[should_panic(expected = "id < self.count")]
fn a_buffer_that_is_not_there_is_not_read() {
    get(&BufferRing::new(GROUP, 4, 16).expect("memory"), 4, 1);
}
