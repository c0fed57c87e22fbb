//! Pipes and sockets that are read by the kernel's AIO, which waits for them within `io_submit`: what a ring has for the thread
//! meanwhile (`TIF_NOTIFY_SIGNAL`) ends such a wait as a signal's handler does, and the read with `EINTR`. `ppoll` begins
//! again by itself then, so the wait is there.
//!
//! Only where `ppoll` waits for what a read would. It would wait longer for writes, since a socket is writable to it with a
//! good part of its buffer free, a pipe with a page to spare; and for reads of named pipes that nobody has opened for
//! writing, of sockets that listen or have limits of their own, and of terminals.

use crate::probe::{self, PIPEFS_MAGIC};
use crate::system::{call, failure};

/// Waits until a read of `fd` need not wait, if it may be known; false where a signal's handler came first.
pub fn wait(fd: i32) -> bool {
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let now = ppoll(fd, &raw const none);
    if now > 0 || !has_to_wait(fd) {
        return true;
    }
    ppoll(fd, std::ptr::null()) != failure(libc::EINTR) as isize
}

fn ppoll(fd: i32, timeout: *const libc::timespec) -> isize {
    let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let place = (&raw mut wanted) as usize;
    // SAFETY: one descriptor, and a time that outlives the call or none.
    unsafe { call(libc::SYS_ppoll, [place, 1, timeout as usize, 0, 0, 0]) }
}

/// Whether a read that finds nothing waits for what `ppoll` waits for.
fn has_to_wait(fd: i32) -> bool {
    if !probe::is_blocking(fd) {
        return false;
    }
    let Some(stat) = probe::stat(fd) else { return false };
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFIFO => probe::file_system(fd) == PIPEFS_MAGIC,
        libc::S_IFSOCK => is_usual_socket(fd),
        _ => false,
    }
}

fn is_usual_socket(fd: i32) -> bool {
    let known = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    let is = |name, value: i32| option(fd, name) == Some([value, 0, 0, 0]);
    known.iter().any(|&family| is(libc::SO_DOMAIN, family))
        && is(libc::SO_ACCEPTCONN, 0)
        && is(libc::SO_RCVLOWAT, 1)
        && is(libc::SO_RCVTIMEO, 0)
}

/// A socket's option, of a number or of a time.
fn option(fd: i32, name: i32) -> Option<[i32; 4]> {
    let mut value = [0_i32; 4];
    let mut len = size_of_val(&value) as u32;
    let (place, len) = ((&raw mut value) as usize, (&raw mut len) as usize);
    let arguments = [fd as usize, libc::SOL_SOCKET as usize, name as usize, place, len, 0];
    // SAFETY: places for the answer and its length.
    let code = unsafe { call(libc::SYS_getsockopt, arguments) };
    (code == 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Write, pipe};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn what_is_there_is_not_waited_for() {
        let (from, mut to) = pipe().unwrap();
        assert!(has_to_wait(from.as_raw_fd()));
        to.write_all(b"a").unwrap();
        assert!(wait(from.as_raw_fd()));
        let (from, to) = pipe().unwrap();
        drop(to);
        assert!(wait(from.as_raw_fd()));
        let (one, other) = UnixStream::pair().unwrap();
        drop(other);
        assert!(wait(one.as_raw_fd()));
    }

    #[test]
    fn where_a_read_would_not_wait_for_the_same_nothing_waits() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(has_to_wait(one.as_raw_fd()));
        one.set_nonblocking(true).unwrap();
        assert!(wait(one.as_raw_fd()));
        one.set_nonblocking(false).unwrap();
        one.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        assert!(wait(one.as_raw_fd()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(wait(listener.as_raw_fd()));
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(has_to_wait(stream.as_raw_fd()));
        let bytes = 100_i32;
        let (fd, place) = (stream.as_raw_fd(), (&raw const bytes).cast());
        // SAFETY: an option of four bytes.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, place, 4) };
        assert_eq!(set, 0);
        assert!(wait(fd));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(wait(null.as_raw_fd()) && wait(-1));
    }
}
