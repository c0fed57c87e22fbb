//! Requests that a program in the kernel defers: `NVLANE_DEFERRED` decides here, and the loop carries it out.
//!
//! ```text
//!   loop: NVLANE_ROUTE or NVLANE_DONE defers --> the tag is noted; the loop stops when nothing else is to be done
//!   here: the request from its flight --> NVLANE_DEFERRED --> the actions back into it, and an answer
//!   loop: begins with the answers: checks the actions as it does the program's own
//! ```
//!
//! One of both runs at a time, on the queue's own thread, so that a flight has one owner.

use crate::abi::{Answer, DEFERRALS, Deferrals, FLIGHTS, TAKEN_MAX};
use crate::error::Error;
use crate::object::{Loop, io_error};
use bpf::request::Request;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use namespace::layer::program::Decider;
use std::collections::VecDeque;
use std::io;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// One queue's requests that are deferred.
#[derive(Debug)]
pub struct Deferred {
    decider: Decider,
    flights: MapHandle,
    deferrals: MapHandle,
    /// Tags that were given, and not decided on yet.
    waiting: VecDeque<u16>,
}

impl Deferred {
    /// For a loop's requests.
    pub fn of(turns: &Loop, decider: Decider) -> Result<Deferred, Error> {
        let (flights, deferrals) = (turns.map(FLIGHTS)?, turns.map(DEFERRALS)?);
        Ok(Deferred { decider, flights, deferrals, waiting: VecDeque::new() })
    }

    /// Decides on as many as the loop takes at once. While it does not run.
    pub fn work(&mut self) -> io::Result<()> {
        let key = 0_u32.to_ne_bytes();
        let mut deferrals = Deferrals::new_zeroed();
        let value = lookup(&self.deferrals, key)?;
        if value.len() != size_of::<Deferrals>() {
            return Err(another_size());
        }
        deferrals.as_mut_bytes().copy_from_slice(&value);
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
            let tag = u32::from(tag);
            let mut flight = lookup(&self.flights, tag.to_ne_bytes())?;
            let (_, mut request) =
                Request::read_from_suffix(&flight).map_err(|_| another_size())?;
            *answer = Answer { tag, returned: self.decider.decide(&mut request) };
            request.write_to_suffix(&mut flight).map_err(|_| another_size())?;
            update(&self.flights, tag.to_ne_bytes(), &flight)?;
        }
        deferrals.taken = count as u32;
        deferrals.more = u32::from(!self.waiting.is_empty());
        update(&self.deferrals, key, deferrals.as_bytes())
    }
}

fn lookup(map: &MapHandle, key: [u8; 4]) -> io::Result<Vec<u8>> {
    let value = map.lookup(&key, MapFlags::ANY).map_err(|error| io_error(&error))?;
    value.ok_or_else(|| io::Error::other("the loop does not have a request that it has deferred"))
}

fn update(map: &MapHandle, key: [u8; 4], value: &[u8]) -> io::Result<()> {
    map.update(&key, value, MapFlags::ANY).map_err(|error| io_error(&error))
}

fn another_size() -> io::Error {
    io::Error::other("what the loop keeps is of another size")
}
