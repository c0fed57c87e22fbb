//! What comes through a socket that the kernel decrypts (TLS), and is no data.
//!
//! A plain receive tells of it by EIO, and leaves it there (Documentation/networking/tls.rst of Linux). This is not on the way of data.

use libc::{SOL_TLS, TCP_ULP, TLS_GET_RECORD_TYPE, c_void, socklen_t};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Types of records, messages and alerts (RFC 8446, sections 5.1, 4 and 6).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
const CLOSE_NOTIFY: u8 = 0;

/// The most that a record holds (RFC 8446, section 5.2).
const RECORD_BYTES_MAX: usize = (1 << 14) + 256;

/// Takes the record at which a receive from `socket` has failed with EIO. Whether there may be data behind it: `false` if the other end says
/// that it sends nothing any more. An error if it says something else, or that was another failure.
#[cold]
pub fn pass_record(socket: &impl AsFd) -> io::Result<bool> {
    let socket = socket.as_fd();
    if !is_encrypted(socket) {
        return Err(io::Error::from_raw_os_error(libc::EIO));
    }
    // What begins it says what it is; of a long one the rest is let go.
    let (mut begin, mut rest) = ([0_u8; 64], [0_u8; 4096]);
    let (count, kind, ends) = receive(socket, &mut begin)?;
    let (mut is_whole, mut more) = (ends || count < begin.len(), 0);
    while !is_whole {
        let (count, of, ends) = receive(socket, &mut rest)?;
        is_whole = ends || count < rest.len();
        more += count;
        if of != kind || more > RECORD_BYTES_MAX {
            return Err(ended("a TLS record without end".into()));
        }
    }
    let message = &begin[..count];
    match (kind, message) {
        (Some(ALERT), [_, CLOSE_NOTIFY]) => Ok(false),
        (Some(ALERT), [_, alert]) => {
            Err(ended(format!("the other end sent the TLS alert {alert}")))
        }
        // Of no use here: each connection begins with a handshake of its own.
        (Some(HANDSHAKE), [NEW_SESSION_TICKET, ..]) => Ok(true),
        (Some(HANDSHAKE), [KEY_UPDATE, ..]) => {
            Err(ended("the other end changes its TLS keys, which is not supported".into()))
        }
        _ => Err(ended(format!("an unexpected TLS record of type {}", kind.unwrap_or(0)))),
    }
}

fn ended(words: String) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, words)
}

fn is_encrypted(socket: BorrowedFd<'_>) -> bool {
    let mut name = [0_u8; 16];
    let mut len = name.len() as socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `name`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_ULP,
            name.as_mut_ptr().cast::<c_void>(),
            &raw mut len,
        )
    };
    result == 0 && name.starts_with(b"tls\0")
}

/// Receives of one record that is no data: how much, its type, and whether that was its end.
fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Option<u8>, bool)> {
    // Room for one control message of one byte, aligned as its header.
    let mut control = [0_u64; 8];
    let mut piece =
        libc::iovec { iov_base: bytes.as_mut_ptr().cast::<c_void>(), iov_len: bytes.len() };
    // SAFETY: a plain structure, for which zeroes are good.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast::<c_void>();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the message refers to what lives meanwhile, with its sizes.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled the message; the first header lies within the control buffer, or there is none.
    let kind = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let is_type = !header.is_null()
            && (*header).cmsg_level == SOL_TLS
            && (*header).cmsg_type == TLS_GET_RECORD_TYPE;
        is_type.then(|| *libc::CMSG_DATA(header))
    };
    Ok((count, kind, message.msg_flags & libc::MSG_EOR != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn an_error_of_another_socket_stays_one() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("it listens"));
        let error = pass_record(&stream.expect("a connection")).expect_err("it is not encrypted");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
}
