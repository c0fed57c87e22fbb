//! A child that was forked may have other files by the numbers of what this process has open.

use reactor::{Config, Reactor};
use std::fs;
use std::io::{Read, pipe};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

static LOG: AtomicI32 = AtomicI32::new(-1);

extern "C" fn write_log() {
    // SAFETY: it reads one byte.
    unsafe { libc::write(LOG.load(Ordering::Relaxed), c"x".as_ptr().cast(), 1) };
}

/// The ring that a thread keeps, by its number.
fn kept_ring() -> i32 {
    let descriptors = fs::read_dir("/proc/self/fd").expect("/proc is there");
    let is_ring = |path: &std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains("io_uring"))
    };
    let ring = descriptors.filter_map(|it| Some(it.ok()?.path())).find(is_ring);
    let name = ring.expect("one is kept").file_name().expect("a number").to_owned();
    name.into_string().expect("digits").parse().expect("a number")
}

#[test]
fn a_child_keeps_its_own_file_that_has_a_rings_number() {
    drop(Reactor::new(&Config::default()).expect("a reactor"));
    let ring = kept_ring();
    let (mut reader, writer) = pipe().expect("a pipe");
    LOG.store(ring, Ordering::Relaxed);
    // SAFETY: the child, which has this thread alone, calls nothing that may wait for another.
    match unsafe { libc::fork() } {
        // SAFETY: as daemons do: another file by that number, written to at the end.
        0 => unsafe {
            libc::dup2(writer.as_raw_fd(), ring);
            libc::atexit(write_log);
            libc::exit(0);
        },
        child => {
            drop(writer);
            let mut written = Vec::new();
            reader.read_to_end(&mut written).expect("a pipe");
            assert_eq!(written, b"x", "its file was closed before its end");
            // SAFETY: nobody else waits for it.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
}
