//! Connections that were given up while commands on them were unanswered.

use super::Requests;
use super::connection::Link;
use std::io;
use std::rc::Rc;
use std::time::Instant;

/// Receives at a time; what comes is dropped.
const RECEIVES_MAX: usize = 16;

/// A connection on which nothing is sent any more, with requests that may still be carried out.
pub(super) struct Old {
    link: Rc<Link>,
    held: Requests,
    /// From then on the controller has surely ended it.
    dead_at: Instant,
}

impl Old {
    /// Closes the connection at once if there is nothing to wait for.
    pub(super) fn new(link: Rc<Link>, held: Requests, dead_at: Instant) -> Option<Old> {
        if held.is_empty() {
            let _ = link.stream.shutdown();
            return None;
        }
        // The peer learns that nothing more comes, and answers with its own end once it is done.
        let _ = link.stream.end_sending();
        Some(Old { link, held, dead_at })
    }

    /// Whether the peer has closed it, or has been silent for long enough; then its requests are
    /// `done`. `scratch` takes what is not wanted any more.
    pub(super) fn is_dead(
        &mut self,
        now: Instant,
        scratch: &mut [u8],
        done: &mut Requests,
    ) -> bool {
        if !self.is_closed(scratch) && now < self.dead_at {
            return false;
        }
        let _ = self.link.stream.shutdown();
        done.append(&mut self.held);
        true
    }

    fn is_closed(&self, scratch: &mut [u8]) -> bool {
        for _ in 0..RECEIVES_MAX {
            match self.link.stream.recv(scratch) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    use io::ErrorKind::{BrokenPipe, ConnectionReset};
                    return matches!(error.kind(), ConnectionReset | BrokenPipe);
                }
            }
        }
        false
    }
}
