//! Operations on real files, through descriptors and registered files, plain and fixed buffers.

use crate::recorder;

use reactor::{Buffer, Reactor};
use recorder::{Recorder, config, reactor};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::rc::Rc;
use uring::entry;

struct Scratch {
    path: PathBuf,
    file: File,
}

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("reactor-{}-{name}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        Scratch { file: file.expect("a scratch file"), path }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Runs one entry to its end on a reactor of its own turn of `run`.
fn once(reactor: &Rc<Reactor>, entry: uring::Entry) -> i32 {
    let sink = Recorder::new(reactor, 1);
    // SAFETY: callers keep the memory until this returns, and the reactor drains.
    unsafe { reactor.submit(entry, Rc::clone(&sink) as Rc<_>, 7) };
    reactor.run();
    sink.results()[0].1
}

fn pattern(buffer: &mut Buffer, seed: usize) {
    let bytes = buffer.as_mut_slice().iter_mut().enumerate();
    bytes.for_each(|(place, byte)| *byte = (place * 31 + seed) as u8);
}

#[test]
fn what_was_written_is_read_back() {
    let scratch = Scratch::new("plain");
    let file = uring::File::Fd(scratch.file.as_raw_fd());
    let first = reactor(&config());
    let mut buffer = first.buffers().allocate(10_000).expect("room");
    pattern(&mut buffer, 1);
    assert_eq!(once(&first, entry::write(file, buffer.as_ptr(), 10_000, 4096, 0)), 10_000);
    let second = reactor(&config());
    assert_eq!(once(&second, entry::fdatasync(file)), 0);
    let third = reactor(&config());
    let mut copy = third.buffers().allocate(10_000).expect("room");
    assert_eq!(once(&third, entry::read(file, copy.as_mut_ptr(), 10_000, 4096)), 10_000);
    assert_eq!(copy.as_slice(), buffer.as_slice());
}

#[test]
fn fixed_buffers_and_registered_files() {
    let scratch = Scratch::new("fixed");
    let write = reactor(&config());
    let file = write.register_file(scratch.file.as_raw_fd()).expect("a place in the table");
    let mut buffer = write.buffers().allocate(1 << 20).expect("room");
    assert_eq!(buffer.fixed_index(), None);
    let index = buffer.ensure_registered().expect("2 MiB can be locked");
    assert_eq!(buffer.fixed_index(), Some(index));
    assert_eq!(write.buffers().registered(), 2 << 20, "only what is needed is pinned");
    pattern(&mut buffer, 2);
    let entry = entry::write_fixed(file.file(), buffer.as_ptr(), 1 << 20, 0, 0, index);
    assert_eq!(once(&write, entry), 1 << 20);
    write.unregister_file(file);
    assert_eq!(std::fs::read(&scratch.path).expect("readable"), buffer.as_slice());

    let read = reactor(&config());
    let file = read.register_file(scratch.file.as_raw_fd()).expect("a place in the table");
    let mut copy = read.buffers().allocate(1 << 20).expect("room");
    let index = copy.ensure_registered().expect("2 MiB can be locked");
    let entry = entry::read_fixed(file.file(), copy.as_mut_ptr(), 1 << 20, 0, index);
    assert_eq!(once(&read, entry), 1 << 20);
    assert_eq!(copy.as_slice(), buffer.as_slice());
}

#[test]
fn the_kernels_error_comes_through() {
    let read = reactor(&config());
    let mut buffer = read.buffers().allocate(4096).expect("room");
    let entry = entry::read(uring::File::Fd(-1), buffer.as_mut_ptr(), 4096, 0);
    assert_eq!(once(&read, entry), -libc::EBADF);
    let fixed = reactor(&config());
    let missing = uring::File::Fixed(3);
    assert_eq!(once(&fixed, entry::fsync(missing)), -libc::EBADF);
}

#[test]
fn a_hole_is_punched() {
    let scratch = Scratch::new("hole");
    std::fs::write(&scratch.path, vec![9; 16384]).expect("written");
    let punch = reactor(&config());
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let file = uring::File::Fd(scratch.file.as_raw_fd());
    assert_eq!(once(&punch, entry::fallocate(file, mode, 4096, 8192)), 0);
    let bytes = std::fs::read(&scratch.path).expect("readable");
    assert!(bytes[..4096].iter().chain(&bytes[12288..]).all(|byte| *byte == 9));
    assert!(bytes[4096..12288].iter().all(|byte| *byte == 0) && bytes.len() == 16384);
}

#[test]
fn more_than_the_queues_hold_is_no_error() {
    let many = reactor(&reactor::Config { entries: 8, ..config() });
    let sink = Recorder::new(&many, 10_000);
    for token in 0..10_000 {
        // SAFETY: a no-operation points to nothing.
        unsafe { many.submit(entry::nop(), Rc::clone(&sink) as Rc<_>, token) };
    }
    many.run();
    assert!(sink.results().into_iter().eq((0..10_000).map(|token| (token, 0))));
}
