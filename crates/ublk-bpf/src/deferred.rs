//! Requests that a program in the kernel defers: `NVLANE_DEFERRED` decides here, and the loop carries it out.
//!
//! ```text
//!   loop: NVLANE_ROUTE or NVLANE_DONE defers --> the tag is noted; the loop stops when nothing else is to be done
//!   here: the request from its flight --> NVLANE_DEFERRED --> the actions back into it, and an answer
//!   loop: begins with the answers: checks the actions as it does the program's own
//! ```
//!
//! One of both runs at a time, on the queue's own thread, so that a flight has one owner.

use crate::abi::{Answer, TAKEN_MAX};
use crate::object::Loop;
use bpf::request::Request;
use namespace::layer::program::Decider;
use std::collections::VecDeque;
use std::io;
use zerocopy::{FromBytes, IntoBytes};

/// One queue's requests that are deferred.
#[derive(Debug)]
pub struct Deferred {
    decider: Decider,
    /// Tags that were given, and not decided on yet.
    waiting: VecDeque<u16>,
}

impl Deferred {
    /// None yet.
    pub fn new(decider: Decider) -> Deferred {
        Deferred { decider, waiting: VecDeque::new() }
    }

    /// Decides on as many as the loop takes at once. While it does not run.
    pub fn work(&mut self, turns: &Loop) -> io::Result<()> {
        let mut deferrals = turns.deferrals()?;
        if deferrals.taken > 0 {
            // The loop has not been there since.
            return Ok(());
        }
        let given = deferrals.tag.iter().take(deferrals.given as usize);
        self.waiting.extend(given);
        deferrals.given = 0;
        let count = self.waiting.len().min(TAKEN_MAX);
        if count == 0 && deferrals.more == 0 {
            return Ok(());
        }
        for (answer, tag) in deferrals.answer.iter_mut().zip(self.waiting.drain(..count)) {
            let mut flight = turns.flight(tag)?;
            let (_, mut request) =
                Request::read_from_suffix(&flight).map_err(|_| another_size())?;
            *answer = Answer { tag: tag.into(), returned: self.decider.decide(&mut request) };
            request.write_to_suffix(&mut flight).map_err(|_| another_size())?;
            turns.set_flight(tag, &flight)?;
        }
        deferrals.taken = count as u32;
        deferrals.more = u32::from(!self.waiting.is_empty());
        turns.set_deferrals(&deferrals)
    }
}

fn another_size() -> io::Error {
    io::Error::other("what the loop keeps is of another size")
}
