//! Code of the processor's own that a program was made into: what it is made of, how it is run, and what it needs of
//! the machine. Making it is not safe, and so another crate's (`bpf-native`).

use crate::machine;
use crate::program::{Entry, Fault};
use crate::request::Request;
use std::fmt;

pub use crate::memory::{CONTEXT_ADDRESS, FRAME_BYTES, FRAMES_MAX, STACK_BYTES, frame_address};
pub use crate::op::{Insn, Op, REGISTERS, Register};

/// Bytes of the context that such code is for.
pub const CONTEXT_BYTES: usize = size_of::<Request>();

/// A run with a request.
pub type Run<'a> = machine::Run<'a, [u8; CONTEXT_BYTES]>;

/// A program as code: does what the machine would do, the faults included.
pub trait Native: fmt::Debug + Send + Sync {
    /// Runs from `entry` on, with the context's address in r1, and gives r0.
    ///
    /// # Errors
    /// As [`Machine::run`](crate::Machine::run).
    fn run(&self, entry: Entry, run: &mut Run<'_>) -> Result<u64, Fault>;
}
