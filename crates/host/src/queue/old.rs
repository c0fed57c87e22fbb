//! Connections that were given up, while what was sent on them may still be on its way or be carried
//! out.

use super::Requests;
use super::connection::Link;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Receives at a time; what comes is dropped.
const RECEIVES_MAX: usize = 16;

/// What the peer's kernel has not acknowledged after so long is taken back.
const ARRIVAL: Duration = Duration::from_millis(500);

/// A connection on which nothing is sent any more, with requests that may still be carried out.
///
/// The peer is told that nothing more comes, and answers with its own end once nothing of the
/// connection is being carried out. If it does not, the controller has surely ended the association
/// after it has heard nothing for the time of its keep alive timer. What our kernel has still to send
/// would count as heard, late: it is taken back by a reset, and only then the time begins.
pub(super) struct Old {
    link: Rc<Link>,
    held: Requests,
    /// Until when bytes of ours may have arrived.
    silent_since: Instant,
    quiet: Duration,
    /// When what has not arrived is taken back.
    reset_at: Instant,
    /// That was done, or our kernel gave the connection up (a time-out, no route): the socket says that
    /// the stream has ended, whatever the peer does.
    reset: bool,
}

impl Old {
    /// Ends the connection from here. `None` if nothing is to be waited for.
    pub(super) fn new(
        link: Rc<Link>,
        held: Requests,
        now: Instant,
        quiet: Duration,
        socket_failed: bool,
    ) -> Option<Old> {
        if held.is_empty() && (socket_failed || !has_unacknowledged(&link)) {
            let _ = link.stream.shutdown();
            return None;
        }
        let _ = link.stream.end_sending();
        let reset_at = now + ARRIVAL;
        Some(Old { link, held, silent_since: now, quiet, reset_at, reset: socket_failed })
    }

    /// Whether nothing that was sent can be carried out any more; then its requests are `done`.
    /// `scratch` takes what is not wanted any more.
    pub(super) fn is_dead(
        &mut self,
        now: Instant,
        scratch: &mut [u8],
        done: &mut Requests,
    ) -> bool {
        let closed = !self.reset && self.is_closed(scratch);
        let arriving = !self.reset && has_unacknowledged(&self.link);
        if arriving && !closed {
            self.silent_since = now;
            if now >= self.reset_at {
                let _ = self.link.stream.abort();
                self.reset = true;
            }
        }
        let unwanted = self.held.is_empty() && (self.reset || !arriving);
        if !closed && !unwanted && now < self.silent_since + self.quiet {
            return false;
        }
        let _ = self.link.stream.shutdown();
        done.append(&mut self.held);
        true
    }

    fn is_closed(&mut self, scratch: &mut [u8]) -> bool {
        for _ in 0..RECEIVES_MAX {
            match self.link.stream.recv(scratch) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    use io::ErrorKind::{BrokenPipe, ConnectionReset, Interrupted, WouldBlock};
                    let kind = error.kind();
                    self.reset |=
                        !matches!(kind, ConnectionReset | BrokenPipe | WouldBlock | Interrupted);
                    return matches!(kind, ConnectionReset | BrokenPipe);
                }
            }
        }
        false
    }
}

fn has_unacknowledged(link: &Link) -> bool {
    link.stream.unacknowledged().is_ok_and(|bytes| bytes > 0)
}
