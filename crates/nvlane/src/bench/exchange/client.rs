//! The bare client: counts bytes, and knows that answers come in order.

use super::{COMMAND_BYTES, Shape};
use crate::bench::pipeline::{Batch, Protocol};
use std::io;

/// The client's side of a bare exchange.
pub struct Bare {
    shape: Shape,
    depth: u16,
    received: usize,
    next: u16,
}

impl Bare {
    /// For one connection with `depth` requests in flight.
    pub fn new(shape: Shape, depth: u16) -> Bare {
        Bare { shape, depth, received: 0, next: 0 }
    }
}

impl Protocol for Bare {
    #[inline]
    fn issue(&mut self, slot: u16, batch: &mut Batch) -> bool {
        batch.append::<COMMAND_BYTES>(|bytes| {
            bytes[..2].copy_from_slice(&slot.to_le_bytes());
            COMMAND_BYTES
        });
        if self.shape.request_data > 0 {
            batch.payload();
        }
        true
    }

    #[inline]
    fn receive(&mut self, bytes: &[u8], answered: &mut Vec<u16>) -> io::Result<()> {
        self.received += bytes.len();
        while self.received >= self.shape.answer_bytes() {
            self.received -= self.shape.answer_bytes();
            answered.push(self.next);
            self.next = (self.next + 1) % self.depth;
        }
        Ok(())
    }
}
