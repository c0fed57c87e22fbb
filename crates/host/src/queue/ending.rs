//! Whose doing it was that a connection has ended.
//!
//! A socket tells once why it is dead, to whoever asks first. Where the ring moves pages that may be one of its
//! operations; the other direction, or a call of our own, only sees that the stream is over then, as if the
//! peer had ended it. And what has moved some of its bytes before tells their number, and the reason is lost.

use super::connection::{Link, Lost};
use super::pages::failed;
use reactor::Stream;
use rustix::io::Errno;
use std::os::fd::AsRawFd;

/// What operations of the ring were told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing: whoever asks next is told.
    #[default]
    Untold,
    /// Perhaps the reason, which is lost.
    Doubtful,
    /// Our own kernel has given the connection up.
    Failed,
    /// The peer has reset it.
    Reset,
}

/// How a TCP stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The peer may still send.
    Open,
    /// The peer has said that nothing more comes.
    EndedByPeer,
    /// There is no connection any more: by both ends' doing, by a reset, or our kernel has given it up. Or it cannot
    /// be told.
    Over,
}

fn state(stream: &Stream) -> State {
    // The first byte of tcp_info.
    let (mut state, mut len) = (0u8, 1);
    // SAFETY: the kernel writes no more than `len` bytes.
    let result = unsafe {
        let place = (&raw mut state).cast();
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        libc::getsockopt(stream.as_raw_fd(), level, name, place, &raw mut len)
    };
    // TCP_CLOSE and its neighbours (include/net/tcp_states.h of Linux).
    const CLOSE: u8 = 7;
    const TIME_WAIT: u8 = 6;
    const CLOSE_WAIT: u8 = 8;
    const LAST_ACK: u8 = 9;
    const CLOSING: u8 = 11;
    match state {
        CLOSE => State::Over,
        _ if result != 0 => State::Over,
        TIME_WAIT | CLOSE_WAIT | LAST_ACK | CLOSING => State::EndedByPeer,
        _ => State::Open,
    }
}

impl Link {
    /// A transfer of `len` bytes has ended with `result`.
    pub(super) fn told(&self, result: i32, len: u32) {
        let fate = match u32::try_from(result) {
            // A socket that has died has told nobody if it is alive.
            Ok(count) if count == 0 || count >= len || state(&self.stream) != State::Over => return,
            Ok(_) => Fate::Doubtful,
            Err(_) if result == -Errno::CONNRESET.raw_os_error() => Fate::Reset,
            Err(_) if failed(result, 0).is_err_and(|lost| lost.socket_failed) => Fate::Failed,
            Err(_) => return,
        };
        if matches!(self.fate.get(), Fate::Untold | Fate::Doubtful) {
            self.fate.set(fate);
        }
    }

    /// Whether our kernel has no connection any more, and sends nothing.
    pub(super) fn is_over(&self) -> bool {
        state(&self.stream) == State::Over
    }

    /// Whether it was the peer that has ended the stream, of which nothing more comes.
    pub(super) fn is_ended_by_peer(&self) -> bool {
        match self.fate.get() {
            Fate::Reset => true,
            Fate::Failed => false,
            Fate::Untold if !self.is_moving() => true,
            // The operation under way may be the one that was told.
            _ => state(&self.stream) == State::EndedByPeer,
        }
    }

    /// Corrects whose doing it was by what is known here.
    pub(super) fn judge(&self, lost: &mut Lost) {
        lost.socket_failed |= self.fate.get() == Fate::Failed;
        lost.by_peer &= lost.reset || self.is_ended_by_peer();
    }
}
