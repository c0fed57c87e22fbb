//! Connections that were given up, while what was sent on them may still be on its way or be carried
//! out.

use super::connection::{Link, Lost};
use super::ending::Fate;
use super::{Params, Requests};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Receives at a time; what comes is dropped.
const RECEIVES_MAX: usize = 16;

/// What the peer's kernel has not acknowledged after so long is taken back.
const ARRIVAL: Duration = Duration::from_millis(500);

/// A connection on which nothing is sent any more, with requests that may still be carried out.
///
/// The peer is told that nothing more comes, and answers with its own end. A controller that is known to
/// drain does so once nothing of the connection is being carried out; any other is given the time in
/// which its commands must end. If there is no answer, the controller has surely ended the association
/// after it has heard nothing for the time of its keep alive timer. What our kernel has still to send
/// would count as heard, late: it is taken back by a reset, and only then the time begins. Of an encrypted connection the kernel takes it
/// back when it would send it again, and says that the connection is over.
pub(super) struct Old {
    link: Rc<Link>,
    held: Requests,
    /// Until when bytes of ours may have arrived.
    silent_since: Instant,
    quiet: Duration,
    /// When the peer's end was seen.
    closed_at: Option<Instant>,
    settle: Duration,
    /// When what has not arrived is taken back.
    reset_at: Instant,
    /// That was done, or our kernel gave the connection up (a time-out, no route), or may have: the socket says
    /// that the stream has ended, whatever the peer does.
    reset: bool,
    /// Our kernel was told to give the connection up.
    is_let_go: bool,
}

impl Old {
    /// Ends the connection from here. `None` if nothing is to be waited for.
    pub(super) fn new(
        link: Rc<Link>,
        held: Requests,
        now: Instant,
        params: &Params,
        lost: &Lost,
    ) -> Option<Old> {
        // Not every error is the end of the socket: one that lives may still deliver.
        let is_over = lost.socket_failed && link.is_over();
        let unwanted = is_over || !has_unacknowledged(&link);
        if held.is_empty() && unwanted {
            let _ = link.stream.shutdown();
            return None;
        }
        let _ = link.stream.end_sending();
        Some(Old {
            link,
            held,
            silent_since: now,
            quiet: params.quiet,
            closed_at: lost.by_peer.then_some(now),
            settle: params.settle,
            reset_at: now + ARRIVAL,
            reset: is_over,
            is_let_go: false,
        })
    }

    /// Whether nothing that was sent can be carried out any more, and the kernel has no pages of it;
    /// then its requests are `done`. `scratch` takes what is not wanted any more.
    pub(super) fn is_dead(
        &mut self,
        now: Instant,
        scratch: &mut [u8],
        done: &mut Requests,
    ) -> bool {
        if self.link.is_moving() {
            // What was cancelled ends soon, and is nobody else's to read until then. What was sent of it may
            // just arrive.
            self.silent_since = now;
            return false;
        }
        self.reset |= self.link.fate.get() == Fate::Failed || self.is_let_go && self.link.is_over();
        if self.closed_at.is_none() && !self.reset && self.is_closed(scratch) {
            self.closed_at = Some(now);
        }
        let arriving = !self.reset && has_unacknowledged(&self.link);
        if arriving && self.closed_at.is_none() {
            self.silent_since = now;
        }
        if arriving && (now >= self.reset_at || self.closed_at.is_some()) {
            // Where it cannot be taken back, it is waited for.
            if let Ok(is_reset) = self.link.stream.abort() {
                (self.reset, self.is_let_go) = (is_reset, true);
            }
        }
        let settled = self.closed_at.is_some_and(|at| now >= at + self.settle);
        let unwanted = self.held.is_empty() && (self.reset || !arriving);
        if !settled && !unwanted && now < self.silent_since + self.quiet {
            return false;
        }
        let _ = self.link.stream.shutdown();
        done.append(&mut self.held);
        true
    }

    fn is_closed(&mut self, scratch: &mut [u8]) -> bool {
        for _ in 0..RECEIVES_MAX {
            match self.link.stream.recv(scratch) {
                Ok(0) => {
                    let by_peer = self.link.is_ended_by_peer();
                    self.reset |= !by_peer;
                    return by_peer;
                }
                Ok(_) => {}
                Err(error) => {
                    use io::ErrorKind::{BrokenPipe, ConnectionReset, Interrupted, WouldBlock};
                    let kind = error.kind();
                    let is_other =
                        !matches!(kind, ConnectionReset | BrokenPipe | WouldBlock | Interrupted);
                    self.reset |= is_other && self.link.is_over();
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
